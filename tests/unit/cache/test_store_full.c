/* SPDX-License-Identifier: Apache-2.0
 *
 * What happens when there is no room below the cap.
 */
#include "store_fixture.h"

static struct dctf_shard *get_numbered(struct fixture *fx, int i, uint64_t size)
{
    char key[32];

    snprintf(key, sizeof(key), "f/%d", i);
    return get_shard(fx, key, size);
}

/* Open for reading: miss, fetch, keep if wanted. */
static bool read_through(struct fixture *fx, int i, uint64_t size)
{
    struct dctf_shard *shard = get_numbered(fx, i, size);
    bool kept = true;

    dctf_shard_touch(shard);
    if (check_read_all(shard))
        kept = write_all_blocks(shard);
    dctf_shard_put(shard);
    return kept;
}

static void reopen_with(struct fixture *fx, uint64_t size_bytes)
{
    fx->size_bytes = size_bytes;
    fixture_reopen(fx);
}

static void test_cap_holds_for_files(void **state)
{
    struct fixture *fx = *state;
    unsigned kept = 0;

    reopen_with(fx, 64 * MIB);
    for (int i = 0; i < 40; i++) {
        kept += read_through(fx, i, 5 * MIB);
        assert_true(disk_usage(fx) <= 64 * MIB);
    }
    dctf_store_maintain(fx->store);
    assert_true(kept >= 10); /* 64 MiB less the index */
    assert_true(stats_of(fx).file_bytes >= 45 * MIB);
    assert_true(stats_of(fx).file_bytes + stats_of(fx).index_bytes <= stats_of(fx).limit_bytes);
}

static void test_cap_holds_for_small_shards(void **state)
{
    struct fixture *fx = *state;
    uint64_t worst = 0;
    unsigned kept = 0;

    reopen_with(fx, 64 * MIB);
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 500; i++) {
            kept += read_through(fx, round * 500 + i, 256 * 1024);
            if (i % 50 == 0) {
                uint64_t used = disk_usage(fx);

                worst = used > worst ? used : worst;
                dctf_store_maintain(fx->store);
            }
        }
    }
    assert_true(worst <= 64 * MIB);
    assert_true(kept >= 120);
    assert_true(stats_of(fx).small_bytes >= 20 * MIB);
}

/* A newcomer read much more often than what lies here gets in, garbage or not. */
static void test_hot_small_shard_gets_in(void **state)
{
    struct fixture *fx = *state;
    bool kept = false;

    reopen_with(fx, 32 * MIB);
    for (int i = 0; i < 200; i++)
        (void)read_through(fx, i, 256 * 1024);
    for (int i = 0; i < 200 && !kept; i++) {
        struct dctf_shard *hot = get_shard(fx, "hot/one", 256 * 1024);

        dctf_shard_touch(hot);
        kept = write_all_blocks(hot);
        dctf_shard_put(hot);
        fx->now_ms += 20000; /* compactions are paced */
        dctf_store_maintain(fx->store);
    }
    assert_true(kept);
    assert_true(disk_usage(fx) <= 32 * MIB);
}

static void test_hot_file_evicts_cold_ones(void **state)
{
    struct fixture *fx = *state;
    struct dctf_shard *hot;
    bool kept = false;

    reopen_with(fx, 64 * MIB);
    for (int i = 0; i < 20; i++)
        (void)read_through(fx, i, 5 * MIB);
    hot = get_shard(fx, "hot/one", 5 * MIB);
    for (int i = 0; i < 50 && !kept; i++) {
        dctf_shard_touch(hot);
        kept = write_all_blocks(hot);
    }
    assert_true(kept);
    assert_true(dctf_metric_get(fx->metrics, DCTF_METRIC_CACHE_EVICTED) > 0);
    assert_int_equal(check_read_all(hot), DCTF_OK);
    assert_true(disk_usage(fx) <= 64 * MIB);
    dctf_shard_put(hot);
}

static void test_large_victim_is_trimmed_from_its_tail(void **state)
{
    struct fixture *fx = *state;
    struct dctf_shard *victim, *hot;
    bool kept = false;

    reopen_with(fx, 96 * MIB);
    victim = get_shard(fx, "f/victim", 64 * MIB);
    assert_true(write_all_blocks(victim));
    hot = get_shard(fx, "hot/one", 40 * MIB);
    for (int i = 0; i < 50 && !kept; i++) {
        dctf_shard_touch(hot);
        kept = write_all_blocks(hot);
    }
    assert_true(kept);
    assert_true(dctf_shard_is_present(victim, 0)); /* the beginning is read first */
    assert_false(dctf_shard_is_present(victim, dctf_blocks_of(64 * MIB) - 1));
    assert_true(dctf_shard_present_bytes(victim) >= 32 * MIB); /* no more than needed */
    assert_int_equal(check_read_all(hot), DCTF_OK);
    assert_true(disk_usage(fx) <= 96 * MIB);
    dctf_shard_put(hot);
    dctf_shard_put(victim);
}

static void test_bypass_costs_one_decision_per_open(void **state)
{
    struct fixture *fx = *state;
    struct dctf_shard *cold;

    reopen_with(fx, 64 * MIB);
    for (int i = 0; i < 10; i++) {
        for (int k = 0; k < 5; k++)
            (void)read_through(fx, i, 8 * MIB);
    }
    cold = get_shard(fx, "cold/one", 8 * MIB);
    dctf_shard_touch(cold);
    for (uint32_t i = 0; i < 32; i++) /* some blocks may still fit; the shard does not */
        (void)write_blocks(cold, i, 1);
    assert_true(dctf_metric_get(fx->metrics, DCTF_METRIC_CACHE_BYPASSED) >= 1);
    assert_false(dctf_shard_wants(cold));
    {
        int64_t before = dctf_metric_get(fx->metrics, DCTF_METRIC_CACHE_BYPASSED);

        assert_false(write_blocks(cold, 0, 32));
        assert_int_equal(dctf_metric_get(fx->metrics, DCTF_METRIC_CACHE_BYPASSED), before);
    }
    dctf_shard_put(cold);
}

static void test_pinned_shard_is_never_a_victim(void **state)
{
    struct fixture *fx = *state;
    struct dctf_shard *pinned;
    int fd;

    reopen_with(fx, 64 * MIB);
    pinned = get_shard(fx, "f/pinned", 20 * MIB);
    assert_true(write_all_blocks(pinned));
    fd = dctf_shard_pin(pinned);
    assert_true(fd >= 0);
    for (int i = 0; i < 30; i++) {
        for (int k = 0; k < 6; k++)
            (void)read_through(fx, i, 5 * MIB);
    }
    assert_true(dctf_shard_is_complete(pinned));
    assert_int_equal(check_read_all(pinned), DCTF_OK);
    dctf_shard_unpin(pinned);
    dctf_shard_put(pinned);
}

static void test_smaller_cap_is_enforced_by_maintenance(void **state)
{
    struct fixture *fx = *state;

    reopen_with(fx, 128 * MIB);
    for (int i = 0; i < 20; i++)
        (void)read_through(fx, i, 5 * MIB);
    assert_true(stats_of(fx).file_bytes >= 90 * MIB);
    reopen_with(fx, 48 * MIB);
    for (int i = 0; i < 3; i++)
        dctf_store_maintain(fx->store);
    assert_true(disk_usage(fx) <= 48 * MIB);
    assert_true(stats_of(fx).file_bytes >= 24 * MIB); /* not all of it */
}

#define OPEN(test) cmocka_unit_test_setup_teardown(test, fixture_set_up, fixture_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        OPEN(test_cap_holds_for_files),
        OPEN(test_cap_holds_for_small_shards),
        OPEN(test_hot_small_shard_gets_in),
        OPEN(test_hot_file_evicts_cold_ones),
        OPEN(test_large_victim_is_trimmed_from_its_tail),
        OPEN(test_bypass_costs_one_decision_per_open),
        OPEN(test_pinned_shard_is_never_a_victim),
        OPEN(test_smaller_cap_is_enforced_by_maintenance),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
