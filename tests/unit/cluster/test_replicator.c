/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts that decide whether something is copied now: what was copied before, the rate, this node's own
 * state, slow transfers.
 */
#include "base/budget.h"
#include "base/pool.h"
#include "cache/store.h"
#include "cluster/copied.h"
#include "cluster/degrade.h"
#include "cluster/rate.h"
#include "cluster/readiness.h"

#include <ftw.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB (1ull << 20)

/* --- what was copied --- */

static void test_evicted_is_copied_after_half_an_hour(void **state)
{
    struct dctf_copied *copied;
    uint64_t now = 1000;

    (void)state;
    assert_int_equal(dctf_copied_new(100, &copied), DCTF_OK);
    assert_true(dctf_copied_may(copied, 7, now)); /* never heard of */
    assert_false(dctf_copied_is(copied, 7));
    assert_true(dctf_copied_done(copied, 7));
    assert_true(dctf_copied_is(copied, 7));
    assert_false(dctf_copied_may(copied, 7, now)); /* it is missing again */
    assert_false(dctf_copied_may(copied, 7, now + DCTF_COPIED_PAUSE_MS - 1));
    assert_false(dctf_copied_is(copied, 7));
    assert_true(dctf_copied_may(copied, 7, now + DCTF_COPIED_PAUSE_MS));
    assert_true(dctf_copied_done(copied, 7));
    assert_true(dctf_copied_is(copied, 7));
    dctf_copied_unkept(copied, 8, now);
    assert_false(dctf_copied_may(copied, 8, now + 1));
    assert_true(dctf_copied_may(copied, 8, now + DCTF_COPIED_PAUSE_MS));
    dctf_copied_free(copied);
}

static void test_sweep_forgets_what_is_not_wanted(void **state)
{
    struct dctf_copied *copied;

    (void)state;
    assert_int_equal(dctf_copied_new(4000, &copied), DCTF_OK);
    for (uint64_t key = 0; key < 4000; key++)
        assert_true(dctf_copied_done(copied, key * 0x9e3779b97f4a7c15u));
    assert_false(dctf_copied_done(copied, 99)); /* full */
    dctf_copied_sweep(copied);                  /* they are new: wanted */
    assert_int_equal(dctf_copied_count(copied), 4000);
    for (uint64_t key = 0; key < 1000; key++)
        assert_true(dctf_copied_is(copied, key * 0x9e3779b97f4a7c15u));
    dctf_copied_sweep(copied);
    assert_int_equal(dctf_copied_count(copied), 1000);
    assert_true(dctf_copied_is(copied, 999 * 0x9e3779b97f4a7c15u));
    assert_false(dctf_copied_is(copied, 1000 * 0x9e3779b97f4a7c15u));
    dctf_copied_free(copied);
}

/* --- rate --- */

static void test_rate_bounds_bytes_over_time(void **state)
{
    const uint64_t per_s = 4 * MIB, piece = MIB;
    struct dctf_rate rate;
    uint64_t sent = 0;

    (void)state;
    dctf_rate_init(&rate, per_s, 5000);
    for (uint64_t now = 5000; now < 65000; now += 7) {
        while (!dctf_rate_wait_ms(&rate, now)) {
            dctf_rate_take(&rate, piece);
            sent += piece;
        }
        assert_true(sent <= per_s * (now - 5000) / 1000 + per_s / 4 + piece);
    }
    assert_true(sent >= per_s * 59); /* and it is used */
    /* What is told to wait is enough. */
    dctf_rate_take(&rate, 10 * MIB);
    assert_int_equal(dctf_rate_wait_ms(&rate, 65000 + dctf_rate_wait_ms(&rate, 65000)), 0);
}

/* --- slow transfers --- */

static bool seconds(struct dctf_degrade *degrade, unsigned count, unsigned transfers, uint64_t us)
{
    bool changed = false;

    for (unsigned i = 0; i < count; i++) {
        for (unsigned k = 0; k < transfers; k++)
            dctf_degrade_sample(degrade, us);
        changed = dctf_degrade_tick(degrade) || changed;
    }
    return changed;
}

static void test_path_rate_is_the_best_seen_lately(void **state)
{
    struct dctf_path_rate rate = {0};
    uint64_t now = 1000;

    (void)state;
    assert_int_equal(dctf_path_rate(&rate), 0);
    assert_true(dctf_path_rate_is_due(&rate, now));
    dctf_path_rate_note(&rate, 100, false, now);
    assert_false(dctf_path_rate_is_due(&rate, now + DCTF_PATH_RATE_MS - 1));
    assert_true(dctf_path_rate_is_due(&rate, now + DCTF_PATH_RATE_MS));
    dctf_path_rate_note(&rate, 30, false, now); /* disturbed */
    assert_int_equal(dctf_path_rate(&rate), 100);
    for (unsigned i = 0; i < 1000; i++) /* the path became slower */
        dctf_path_rate_note(&rate, 40 + i % 2, false, now);
    assert_int_equal(dctf_path_rate(&rate), 41);
    assert_in_range(rate.count, DCTF_PATH_RATES, 2 * DCTF_PATH_RATES);
    /* One that filled its window does not tell much: soon the next. */
    dctf_path_rate_note(&rate, 50, true, now);
    assert_true(dctf_path_rate_is_due(&rate, now + DCTF_PATH_RATE_SOON_MS));
}

/* A path that carries `per_s` at that round trip, looked at with windows of 64 KiB, 256 KiB and 2 MiB. */
static uint64_t window_found(uint64_t per_s, uint64_t rtt_us)
{
    static const uint64_t windows[] = {64 << 10, 256 << 10, 2 << 20};
    unsigned at = 0;

    for (unsigned look = 0; look < 10; look++) {
        struct dctf_path_rate rate = {0};
        uint64_t by_window = windows[at] * 1000000 / rtt_us, need;

        dctf_path_rate_note(&rate, by_window < per_s ? by_window : per_s, false, look);
        need = dctf_path_rate_window(&rate, rtt_us);
        for (at = 0; at < 2 && windows[at] < need; at++)
            ;
    }
    return windows[at];
}

static void test_window_grows_until_it_is_not_full(void **state)
{
    (void)state;
    assert_int_equal(window_found(118000000, 200), 64 << 10);   /* 1 Gbit/s in a rack */
    assert_int_equal(window_found(1180000000, 50), 256 << 10);  /* 10 Gbit/s */
    assert_int_equal(window_found(118000000, 1000), 256 << 10); /* 1 Gbit/s in a town */
    assert_int_equal(window_found(118000000, 10000), 2 << 20);
    assert_int_equal(window_found(1000000, 100000), 256 << 10);
    assert_int_equal(window_found(1180000000, 100000), 2 << 20); /* there is no larger one */
}

static void test_degrade_when_slow_for_long(void **state)
{
    struct dctf_degrade degrade = {0};

    (void)state;
    assert_false(seconds(&degrade, 9, 3, 600000));
    assert_false(seconds(&degrade, 1, 3, 400000)); /* one good second begins anew */
    assert_false(seconds(&degrade, 9, 3, 600000));
    assert_true(seconds(&degrade, 1, 3, 600000));
    assert_true(degrade.on);
    assert_false(seconds(&degrade, 100, 1, 700000));
    assert_false(seconds(&degrade, 9, 1, 20000));
    assert_true(seconds(&degrade, 1, 1, 20000));
    assert_false(degrade.on);
}

static void test_degrade_ends_by_itself(void **state)
{
    struct dctf_degrade degrade = {0};

    (void)state;
    assert_true(seconds(&degrade, 10, 1, 900000));
    assert_true(seconds(&degrade, 10, 0, 0)); /* nothing comes any more */
    assert_false(degrade.on);
    /* Slow ones far apart are not one long time. */
    for (unsigned i = 0; i < 30; i++) {
        assert_false(seconds(&degrade, 1, 1, 900000));
        assert_false(seconds(&degrade, DCTF_DEGRADE_SECONDS, 0, 0));
    }
}

/* --- this node --- */

static void test_pressure_reads_the_full_line(void **state)
{
    (void)state;
    assert_int_equal(dctf_pressure_full("some avg10=97.22 avg60=95.70 avg300=93.88 total=85\n"
                                        "full avg10=12.34 avg60=0.00 avg300=0.00 total=0\n"),
        1234);
    assert_int_equal(dctf_pressure_full("some avg10=97.22 avg60=95.70 avg300=93.88 total=85\n"), 0);
    assert_int_equal(dctf_pressure_full("full avg10=100.00 avg60=1.00"), 10000);
    assert_int_equal(dctf_pressure_full("full avg10=nonsense"), 0);
    assert_int_equal(dctf_pressure_full(""), 0);
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *at)
{
    (void)st;
    (void)flag;
    (void)at;
    return remove(path);
}

struct house {
    char dir[64], cache[96];
    struct dctf_store *store;
    struct dctf_budget *budget;
    struct dctf_pool *pool;
    struct dctf_readiness readiness;
};

static void write_pressure(const struct house *house, const char *what, const char *full)
{
    char path[160];
    FILE *file;

    snprintf(path, sizeof(path), "%s/proc/pressure/%s", house->dir, what);
    file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "some avg10=50.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=%s avg60=0.00\n", full);
    fclose(file);
}

static void house_init(struct house *house)
{
    char detail[256], path[160];
    struct dctf_store_config config = {
        .dir = house->cache,
        .size_bytes = 64 * MIB,
        .memory_bytes = 16 * MIB,
        .dataset = 1,
        .heat_half_life_ms = 3600000,
        .heat_ttl_ms = 86400000,
        .owner = "a test",
    };

    *house = (struct house){.dir = "/tmp/dctf-replicator-XXXXXX"};
    assert_non_null(mkdtemp(house->dir));
    snprintf(house->cache, sizeof(house->cache), "%s/cache", house->dir);
    snprintf(path, sizeof(path), "%s/proc", house->dir);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof(path), "%s/proc/pressure", house->dir);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(dctf_store_open(&config, detail, &house->store), DCTF_OK);
    assert_int_equal(dctf_budget_new(16 * MIB, &house->budget), DCTF_OK);
    assert_int_equal(dctf_pool_new(&(struct dctf_pool_config){"test", 1, 64}, &house->pool), DCTF_OK);
    house->readiness = (struct dctf_readiness){
        .budget = house->budget, .writers = house->pool, .store = house->store, .root = house->dir};
}

static void house_fini(struct house *house)
{
    dctf_pool_free(house->pool);
    dctf_budget_free(house->budget);
    dctf_store_close(house->store);
    assert_int_equal(nftw(house->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

static void test_not_ready_without_memory(void **state)
{
    struct house house;
    void *buf;

    (void)state;
    house_init(&house);
    assert_int_equal(dctf_readiness_ask(&house.readiness, MIB, 1000), DCTF_READY);
    buf = dctf_budget_buf_get(house.budget, 8 * MIB); /* the other half is for readers */
    assert_non_null(buf);
    assert_int_equal(dctf_readiness_ask(&house.readiness, MIB, 1000), DCTF_UNREADY_MEMORY);
    dctf_budget_buf_put(house.budget, buf, 8 * MIB);
    assert_int_equal(dctf_readiness_ask(&house.readiness, MIB, 1000), DCTF_READY);
    house_fini(&house);
}

static void wait_for_lock(void *ctx)
{
    pthread_mutex_lock(ctx);
    pthread_mutex_unlock(ctx);
}

static void test_not_ready_while_writers_are_behind(void **state)
{
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    struct house house;

    (void)state;
    house_init(&house);
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < 20; i++)
        assert_int_equal(dctf_pool_submit(house.pool, wait_for_lock, &lock), DCTF_OK);
    assert_int_equal(dctf_readiness_ask(&house.readiness, MIB, 1000), DCTF_UNREADY_WRITERS);
    pthread_mutex_unlock(&lock);
    while (dctf_pool_load(house.pool))
        usleep(1000);
    assert_int_equal(dctf_readiness_ask(&house.readiness, MIB, 1000), DCTF_READY);
    house_fini(&house);
}

static void test_pressure_slows_but_does_not_stop(void **state)
{
    struct house house;
    unsigned passed = 0;

    (void)state;
    house_init(&house);
    write_pressure(&house, "io", "90.00");
    write_pressure(&house, "memory", "0.00");
    for (uint64_t now = 100000; now < 160000; now += 100)
        passed += dctf_readiness_ask(&house.readiness, MIB, now) == DCTF_READY;
    assert_in_range(passed, 10, 13);
    write_pressure(&house, "io", "1.00");
    assert_int_equal(dctf_readiness_ask(&house.readiness, MIB, 170000), DCTF_READY);
    assert_int_equal(dctf_readiness_ask(&house.readiness, MIB, 170001), DCTF_READY);
    write_pressure(&house, "memory", "20.00");
    assert_int_equal(dctf_readiness_ask(&house.readiness, MIB, 172001), DCTF_UNREADY_PRESSURE);
    house_fini(&house);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_evicted_is_copied_after_half_an_hour),
        cmocka_unit_test(test_sweep_forgets_what_is_not_wanted),
        cmocka_unit_test(test_rate_bounds_bytes_over_time),
        cmocka_unit_test(test_path_rate_is_the_best_seen_lately),
        cmocka_unit_test(test_window_grows_until_it_is_not_full),
        cmocka_unit_test(test_degrade_when_slow_for_long),
        cmocka_unit_test(test_degrade_ends_by_itself),
        cmocka_unit_test(test_pressure_reads_the_full_line),
        cmocka_unit_test(test_not_ready_without_memory),
        cmocka_unit_test(test_not_ready_while_writers_are_behind),
        cmocka_unit_test(test_pressure_slows_but_does_not_stop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
