/* SPDX-License-Identifier: Apache-2.0 */
#include "base/thread.h"
#include "cache/heat.h"
#include "cache/heat_record.h"
#include "cache/kv_private.h"

#include <ftw.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define HALF_LIFE_MS 1000u
#define TTL_MS 10000u
#define DATASET 77u

struct fixture {
    char dir[64];
    uint64_t wall_ms;
    struct dctf_clock clock;
    struct dctf_heat_config config;
    struct dctf_kv *kv;
    struct dctf_heat *heat;
};

static uint64_t fake_wall(void *ctx)
{
    return *(uint64_t *)ctx;
}

static void open_all(struct fixture *f)
{
    struct dctf_kv_config config = {.dir = f->dir,
        .block_cache_bytes = 1 << 20,
        .write_buffer_bytes = 1 << 20,
        .merge_record_bytes = dctf_heat_record_bytes(),
        .merge = dctf_heat_merge,
        .expired = dctf_heat_expired,
        .ctx = &f->config};

    assert_int_equal(dctf_kv_open(&config, &f->kv), DCTF_OK);
    assert_int_equal(dctf_heat_new(&f->config, f->kv, &f->heat), DCTF_OK);
}

static void close_all(struct fixture *f)
{
    dctf_heat_free(f->heat);
    dctf_kv_close(f->kv);
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    if (!f)
        return -1;
    snprintf(f->dir, sizeof(f->dir), "/tmp/dctf-test-heat.XXXXXX");
    if (!mkdtemp(f->dir))
        return -1;
    f->wall_ms = 1000000;
    f->clock = (struct dctf_clock){.wall_ms = fake_wall, .ctx = &f->wall_ms};
    f->config = (struct dctf_heat_config){
        .half_life_ms = HALF_LIFE_MS, .ttl_ms = TTL_MS, .clock = &f->clock, .dataset = DATASET};
    open_all(f);
    *state = f;
    return 0;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    close_all(f);
    nftw(f->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(f);
    return 0;
}

static void record_times(struct fixture *f, unsigned times, uint64_t key, uint64_t feature, const char *name)
{
    while (times-- > 0)
        dctf_heat_record(f->heat, key, feature, name);
}

static void assert_shard(struct fixture *f, uint64_t key, double heat, uint64_t count, uint64_t last)
{
    struct dctf_heat_value value;

    dctf_heat_of_shard(f->heat, key, &value);
    assert_true(fabs(value.heat - heat) < 1e-9);
    assert_int_equal(value.access_count, count);
    assert_int_equal(value.last_accessed_ms, last);
}

static void assert_feature(struct fixture *f, uint64_t id, double heat, uint64_t count)
{
    struct dctf_heat_value value;

    dctf_heat_of_feature(f->heat, id, &value);
    assert_true(fabs(value.heat - heat) < 1e-9);
    assert_int_equal(value.access_count, count);
}

static void test_record_is_seen_at_once(void **state)
{
    struct fixture *f = *state;

    assert_shard(f, 1, 0, 0, 0);
    record_times(f, 3, 1, 10, "user_age");
    record_times(f, 1, 2, 10, "user_age");
    assert_shard(f, 1, 3, 3, 1000000);
    assert_shard(f, 2, 1, 1, 1000000);
    assert_feature(f, 10, 4, 4);
    assert_int_equal(dctf_heat_flush(f->heat), DCTF_OK);
    assert_shard(f, 1, 3, 3, 1000000);
    assert_feature(f, 10, 4, 4);
    record_times(f, 1, 1, 10, "user_age");
    assert_shard(f, 1, 4, 4, 1000000);
}

static void test_record_decays(void **state)
{
    struct fixture *f = *state;

    record_times(f, 4, 1, 10, "a");
    f->wall_ms += HALF_LIFE_MS;
    assert_shard(f, 1, 2, 4, 1000000);
    assert_int_equal(dctf_heat_flush(f->heat), DCTF_OK);
    record_times(f, 1, 1, 10, "a");
    assert_shard(f, 1, 3, 5, f->wall_ms);
    f->wall_ms += HALF_LIFE_MS;
    assert_int_equal(dctf_heat_flush(f->heat), DCTF_OK);
    assert_shard(f, 1, 1.5, 5, 1000000 + HALF_LIFE_MS);
    /* A clock that steps back neither heats nor breaks. */
    f->wall_ms = 500000;
    assert_shard(f, 1, 3, 5, 1000000 + HALF_LIFE_MS);
    record_times(f, 1, 1, 10, "a");
    dctf_kv_flush(f->kv, DCTF_KV_HEAT);
    dctf_kv_compact_inside(f->kv, DCTF_KV_HEAT);
    assert_feature(f, 10, 3 + exp2(-(501.0 + 0)), 6);
}

static void test_record_survives_reopening(void **state)
{
    struct fixture *f = *state;

    record_times(f, 5, 1, 10, "a");
    close_all(f); /* flushes */
    open_all(f);
    assert_shard(f, 1, 5, 5, 1000000);
    record_times(f, 2, 1, 10, "a");
    assert_shard(f, 1, 7, 7, 1000000);
}

static void test_ttl_ends_a_record(void **state)
{
    struct fixture *f = *state;
    struct dctf_heat_rank *ranks;
    size_t count;

    record_times(f, 5, 1, 10, "a");
    assert_int_equal(dctf_heat_flush(f->heat), DCTF_OK);
    f->wall_ms += TTL_MS;
    assert_int_equal(dctf_heat_ranks(f->heat, NULL, NULL, 0, 0, &ranks, &count), DCTF_OK);
    assert_int_equal(count, 1);
    dctf_heat_ranks_free(ranks, count);
    f->wall_ms += 1;
    assert_shard(f, 1, 0, 0, 0);
    assert_feature(f, 10, 0, 0);
    assert_int_equal(dctf_heat_ranks(f->heat, NULL, NULL, 0, 0, &ranks, &count), DCTF_OK);
    assert_int_equal(count, 0);
    dctf_heat_ranks_free(ranks, count);
    /* It begins anew, without the counts of its first life. */
    record_times(f, 1, 1, 10, "a");
    assert_shard(f, 1, 1, 1, f->wall_ms);
    assert_int_equal(dctf_heat_flush(f->heat), DCTF_OK);
    assert_shard(f, 1, 1, 1, f->wall_ms);
}

static size_t stored_keys(struct fixture *f)
{
    struct dctf_kv_iter *iter;
    size_t count = 0;

    assert_int_equal(dctf_kv_iter_new(f->kv, DCTF_KV_HEAT, "", 0, &iter), DCTF_OK);
    for (; dctf_kv_iter_valid(iter); dctf_kv_iter_next(iter))
        count++;
    assert_int_equal(dctf_kv_iter_err(iter), DCTF_OK);
    dctf_kv_iter_free(iter);
    return count;
}

static void test_compaction_drops_what_ended(void **state)
{
    struct fixture *f = *state;
    struct dctf_heat_rank *ranks;
    size_t count;

    record_times(f, 1, 1, 10, "gone");
    record_times(f, 1, 2, 20, "kept");
    assert_int_equal(dctf_heat_flush(f->heat), DCTF_OK);
    for (unsigned i = 0; i < 8; i++) {
        f->wall_ms += TTL_MS / 4;
        record_times(f, 1, 2, 20, "kept");
        assert_int_equal(dctf_heat_flush(f->heat), DCTF_OK);
        dctf_kv_flush(f->kv, DCTF_KV_HEAT);
        dctf_kv_compact_inside(f->kv, DCTF_KV_HEAT);
    }
    assert_int_equal(stored_keys(f), 3);
    assert_int_equal(dctf_heat_ranks(f->heat, NULL, NULL, 0, 0, &ranks, &count), DCTF_OK);
    assert_int_equal(count, 1);
    assert_string_equal(ranks[0].feature, "kept");
    assert_int_equal(ranks[0].value.access_count, 9);
    dctf_heat_ranks_free(ranks, count);
}

static uint64_t hundred_bytes(void *ctx, uint64_t feature_id, const char *feature)
{
    ++*(unsigned *)ctx;
    assert_int_equal((uint64_t)strtoull(feature + 1, NULL, 10), feature_id);
    return feature_id == 0 ? 1000 : 100;
}

static void test_ranks_classes_and_bounds(void **state)
{
    struct fixture *f = *state;
    struct dctf_heat_rank *ranks;
    unsigned asked = 0;
    size_t count;

    for (uint64_t i = 0; i < 20; i++) {
        char name[16];

        snprintf(name, sizeof(name), "f%llu", (unsigned long long)i);
        record_times(f, i < 10 ? 30 - (unsigned)i : 5, i, i, name); /* the last ten tie */
    }
    assert_int_equal(dctf_heat_ranks(f->heat, hundred_bytes, &asked, 0, 0, &ranks, &count), DCTF_OK);
    assert_int_equal(count, 20);
    assert_int_equal(asked, 20);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(ranks[i].feature_id, i);
        assert_int_equal(ranks[i].class, i < 2 ? DCTF_HEAT_HOT : i < 8 ? DCTF_HEAT_MID : DCTF_HEAT_COLD);
    }
    dctf_heat_ranks_free(ranks, count);
    /* The hottest is too large for the hot share, and for both. */
    assert_int_equal(dctf_heat_ranks(f->heat, hundred_bytes, &asked, 150, 450, &ranks, &count), DCTF_OK);
    assert_int_equal(ranks[0].class, DCTF_HEAT_COLD);
    assert_int_equal(ranks[1].class, DCTF_HEAT_HOT);
    for (size_t i = 2; i < count; i++)
        assert_int_equal(ranks[i].class, i < 5 ? DCTF_HEAT_MID : DCTF_HEAT_COLD);
    dctf_heat_ranks_free(ranks, count);
    /* Too large for the hot share alone: mid. */
    assert_int_equal(dctf_heat_ranks(f->heat, hundred_bytes, &asked, 150, 0, &ranks, &count), DCTF_OK);
    assert_int_equal(ranks[0].class, DCTF_HEAT_MID);
    assert_int_equal(ranks[1].class, DCTF_HEAT_HOT);
    dctf_heat_ranks_free(ranks, count);
    assert_string_equal(dctf_heat_class_name(DCTF_HEAT_HOT), "hot");
    assert_string_equal(dctf_heat_class_name(DCTF_HEAT_MID), "mid");
    assert_string_equal(dctf_heat_class_name(DCTF_HEAT_COLD), "cold");
}

static void test_ranks_see_one_dataset(void **state)
{
    struct fixture *f = *state;
    struct dctf_heat_config other = f->config;
    struct dctf_heat_rank *ranks;
    struct dctf_heat *heat;
    size_t count;

    other.dataset = DATASET + 1;
    assert_int_equal(dctf_heat_new(&other, f->kv, &heat), DCTF_OK);
    dctf_heat_record(heat, 1, 10, "theirs");
    record_times(f, 1, 1, 10, "");
    assert_int_equal(dctf_heat_flush(heat), DCTF_OK);
    assert_int_equal(dctf_heat_ranks(f->heat, NULL, NULL, 0, 0, &ranks, &count), DCTF_OK);
    assert_int_equal(count, 1);
    assert_string_equal(ranks[0].feature, "");
    assert_int_equal(ranks[0].class, DCTF_HEAT_HOT);
    dctf_heat_ranks_free(ranks, count);
    dctf_heat_free(heat);
}

static void test_record_is_bounded(void **state)
{
    struct fixture *f = *state;
    struct dctf_heat_value value;

    /* More shards than fit: their feature goes on counting. */
    for (uint64_t i = 0; i < 20000; i++)
        dctf_heat_record(f->heat, i * 0x9e3779b97f4a7c15u, 10, "a");
    assert_feature(f, 10, 20000, 20000);
    dctf_heat_of_shard(f->heat, 19999 * 0x9e3779b97f4a7c15u, &value);
    assert_int_equal(value.access_count, 0);
    assert_int_equal(dctf_heat_flush(f->heat), DCTF_OK);
    dctf_heat_record(f->heat, 19999 * 0x9e3779b97f4a7c15u, 10, "a");
    assert_shard(f, 19999 * 0x9e3779b97f4a7c15u, 1, 1, f->wall_ms);
    for (uint64_t i = 0; i < 10000; i++)
        dctf_heat_record(f->heat, 1, i * 0x9e3779b97f4a7c15u, "b");
    assert_int_equal(dctf_heat_flush(f->heat), DCTF_OK);
}

struct racer {
    struct fixture *f;
    unsigned flushes;
};

static void *race(void *arg)
{
    struct racer *racer = arg;

    for (unsigned i = 0; i < 2000; i++) {
        struct dctf_heat_value value;

        if (racer->flushes && i % 50 == 0)
            assert_int_equal(dctf_heat_flush(racer->f->heat), DCTF_OK);
        if (!racer->flushes)
            dctf_heat_record(racer->f->heat, i % 7, 10, "a");
        else
            dctf_heat_of_feature(racer->f->heat, 10, &value);
    }
    return NULL;
}

static void test_flush_loses_nothing_under_load(void **state)
{
    struct fixture *f = *state;
    struct racer racers[4] = {{f, 0}, {f, 0}, {f, 1}, {f, 1}};
    pthread_t threads[4];

    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(dctf_thread_start("racer", race, &racers[i], &threads[i]), DCTF_OK);
    for (unsigned i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_feature(f, 10, 4000, 4000);
    assert_int_equal(dctf_heat_flush(f->heat), DCTF_OK);
    assert_feature(f, 10, 4000, 4000);
}

static void test_merge_distrusts_records(void **state)
{
    struct dctf_heat_config config = {.half_life_ms = 1000, .ttl_ms = 10000};
    struct dctf_heat_count count = {.access_count = UINT64_MAX - 1, .last_ms = 5000, .weight = 8};
    uint8_t record[DCTF_HEAT_RECORD_BYTES] = {0}, operand[DCTF_HEAT_RECORD_BYTES];

    (void)state;
    dctf_heat_count_encode(&count, operand);
    dctf_heat_merge(&config, record, operand);
    assert_memory_equal(record, operand, sizeof(record));
    count.last_ms = 4000; /* an older one comes late */
    dctf_heat_count_encode(&count, operand);
    dctf_heat_merge(&config, record, operand);
    assert_true(dctf_heat_count_decode(record, sizeof(record), &count));
    assert_true(fabs(count.weight - 12) < 1e-9);
    assert_int_equal(count.access_count, UINT64_MAX);
    assert_int_equal(count.last_ms, 5000);
    /* Not a number: ignored. */
    memset(operand + 16, 0xff, 8);
    dctf_heat_merge(&config, record, operand);
    assert_true(dctf_heat_count_decode(record, sizeof(record), &count));
    assert_true(fabs(count.weight - 12) < 1e-9);
    assert_false(dctf_heat_count_decode(record, 23, &count));
    assert_false(dctf_heat_expired(&config, "x", 1, "", 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_record_is_seen_at_once, setup, teardown),
        cmocka_unit_test_setup_teardown(test_record_decays, setup, teardown),
        cmocka_unit_test_setup_teardown(test_record_survives_reopening, setup, teardown),
        cmocka_unit_test_setup_teardown(test_ttl_ends_a_record, setup, teardown),
        cmocka_unit_test_setup_teardown(test_compaction_drops_what_ended, setup, teardown),
        cmocka_unit_test_setup_teardown(test_ranks_classes_and_bounds, setup, teardown),
        cmocka_unit_test_setup_teardown(test_ranks_see_one_dataset, setup, teardown),
        cmocka_unit_test_setup_teardown(test_record_is_bounded, setup, teardown),
        cmocka_unit_test_setup_teardown(test_flush_loses_nothing_under_load, setup, teardown),
        cmocka_unit_test(test_merge_distrusts_records),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
