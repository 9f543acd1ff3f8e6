/* SPDX-License-Identifier: Apache-2.0
 *
 * What is tried again, when, and how often.
 */
#include "fetch_fixture.h"

#include "base/log.h"

static void test_retry_until_it_passes(void **state)
{
    struct world *world = world_new(1, 3, 1);

    (void)state;
    submit(world, &world->calls[0], DCTF_FETCH_DEMAND, FOREVER_MS);
    answer(&world->manual, 0, DCTF_ERR_ORIGIN_IO);
    answer(&world->manual, 1, DCTF_ERR_SHORT_BODY);
    answer(&world->manual, 2, DCTF_OK);
    assert_int_equal(wait_done(&world->calls[0]), DCTF_OK);
    assert_int_equal(dctf_metric_get(world->metrics, DCTF_METRIC_ORIGIN_RETRIES), 2);
    assert_int_equal(dctf_metric_get(world->metrics, DCTF_METRIC_ORIGIN_GET), 3);
    world_free(world);
}

static void test_retry_ends(void **state)
{
    struct world *world = world_new(1, 2, 1);

    (void)state;
    submit(world, &world->calls[0], DCTF_FETCH_DEMAND, FOREVER_MS);
    for (size_t i = 0; i < 3; i++)
        answer(&world->manual, i, DCTF_ERR_ORIGIN_THROTTLED);
    assert_int_equal(wait_done(&world->calls[0]), DCTF_ERR_ORIGIN_THROTTLED);
    assert_true(world->calls[0].buf_free);
    assert_int_equal(count_started(&world->manual), 3);
    assert_int_equal(dctf_metric_errors(world->metrics, DCTF_ERR_ORIGIN_THROTTLED), 1);
    world_free(world);
}

static void test_retry_only_what_can_pass(void **state)
{
    static const enum dctf_err finals[] = {
        DCTF_ERR_NOT_FOUND, DCTF_ERR_VERSION_MISMATCH, DCTF_ERR_ORIGIN_ACCESS, DCTF_ERR_DEADLINE};
    struct world *world = world_new(1, 3, 1);

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        submit(world, &world->calls[i], DCTF_FETCH_DEMAND, FOREVER_MS);
        answer(&world->manual, i, finals[i]);
        assert_int_equal(wait_done(&world->calls[i]), finals[i]);
    }
    assert_int_equal(dctf_metric_get(world->metrics, DCTF_METRIC_ORIGIN_RETRIES), 0);
    world_free(world);
}

static void test_retry_not_past_the_deadline(void **state)
{
    struct world *world = world_new(1, 3, 9000);

    (void)state;
    submit(world, &world->calls[0], DCTF_FETCH_DEMAND, 2000);
    answer(&world->manual, 0, DCTF_ERR_ORIGIN_IO);
    /* told at once, with the cause, rather than as DEADLINE later */
    assert_int_equal(count_done(&world->calls[0]), 1);
    assert_int_equal(wait_done(&world->calls[0]), DCTF_ERR_ORIGIN_IO);
    world_free(world);
}

static void test_start_that_fails_is_retried(void **state)
{
    struct world *world = world_new(1, 3, 1);

    (void)state;
    world->manual.start_err = DCTF_ERR_NO_MEMORY;
    world->manual.start_errs = 2;
    submit(world, &world->calls[0], DCTF_FETCH_DEMAND, FOREVER_MS);
    answer(&world->manual, 0, DCTF_OK);
    assert_int_equal(wait_done(&world->calls[0]), DCTF_OK);
    assert_int_equal(dctf_metric_get(world->metrics, DCTF_METRIC_ORIGIN_RETRIES), 2);
    world_free(world);
}

static void test_start_that_fails_is_not_told_inside_submit(void **state)
{
    struct world *world = world_new(1, 3, 1);

    (void)state;
    world->manual.start_err = DCTF_ERR_SHUTTING_DOWN;
    world->manual.start_errs = 1;
    submit(world, &world->calls[0], DCTF_FETCH_DEMAND, FOREVER_MS);
    assert_int_equal(wait_done(&world->calls[0]), DCTF_ERR_SHUTTING_DOWN);
    assert_true(world->calls[0].buf_free);
    assert_false(pthread_equal(world->calls[0].thread, pthread_self()));
    world_free(world);
}

/* --- budget --- */

#define BURST 11u /* ten and the concurrency of one */

static struct world *budget_world(unsigned budget)
{
    return world_new_with((struct dctf_fetch_config){
        .concurrency = 1,
        .retries = 1,
        .retry_budget = budget,
        .backoff_ms = 1,
        .throttle_backoff_ms = 1,
    });
}

/* One transfer that the origin answers with `err` until it ends. Its tries. */
static size_t run_one(struct world *world, enum dctf_err err)
{
    struct call *call = &world->calls[0];
    size_t before = count_started(&world->manual);
    size_t tries = 0;

    call_init(call);
    submit(world, call, DCTF_FETCH_DEMAND, FOREVER_MS);
    while (count_done(call) == 0)
        answer(&world->manual, before + tries++, err);
    assert_int_equal(wait_done(call), err);
    assert_int_equal(count_started(&world->manual) - before, tries);
    return tries;
}

/* The burst that a new scheduler has, each transfer adding a fifth of a retry. */
static void test_budget_runs_out(void **state)
{
    struct world *world = budget_world(20);
    size_t retried = 0;

    (void)state;
    for (size_t i = 0; i < 50; i++)
        retried += run_one(world, DCTF_ERR_ORIGIN_IO) - 1;
    /* The bucket is full at first, so that the first transfer adds nothing. */
    assert_int_equal(retried, BURST + (50 * 20 - 20) / 100);
    assert_int_equal(dctf_metric_get(world->metrics, DCTF_METRIC_ORIGIN_RETRIES), retried);
    /* What is left is one in five. */
    retried = 0;
    for (size_t i = 0; i < 20; i++)
        retried += run_one(world, DCTF_ERR_ORIGIN_THROTTLED) - 1;
    assert_int_equal(retried, 4);
    world_free(world);
}

static void test_budget_refills_with_successes(void **state)
{
    struct world *world = budget_world(50);

    (void)state;
    while (run_one(world, DCTF_ERR_ORIGIN_IO) == 2)
        ;
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(run_one(world, DCTF_OK), 1);
    assert_int_equal(run_one(world, DCTF_ERR_ORIGIN_IO), 2);
    world_free(world);
}

/* However much went well, only a burst is saved up. */
static void test_budget_has_a_cap(void **state)
{
    struct world *world = budget_world(10);
    size_t retried = 0;

    (void)state;
    for (size_t i = 0; i < 60; i++)
        assert_int_equal(run_one(world, DCTF_OK), 1);
    while (run_one(world, DCTF_ERR_ORIGIN_IO) == 2)
        retried++;
    assert_int_equal(retried, BURST + 1); /* the failures add a tenth each themselves */
    world_free(world);
}

static void test_budget_of_none_is_no_bound(void **state)
{
    struct world *world = budget_world(0);

    (void)state;
    for (size_t i = 0; i < 40; i++)
        assert_int_equal(run_one(world, DCTF_ERR_ORIGIN_IO), 2);
    world_free(world);
}

/* A start that failed asked the source for nothing. */
static void test_budget_is_not_for_starts(void **state)
{
    struct world *world = budget_world(1);

    (void)state;
    while (run_one(world, DCTF_ERR_ORIGIN_IO) == 2)
        ;
    world->manual.start_err = DCTF_ERR_NO_MEMORY;
    world->manual.start_errs = 1;
    assert_int_equal(run_one(world, DCTF_OK), 1);
    assert_int_equal(dctf_metric_get(world->metrics, DCTF_METRIC_ORIGIN_RETRIES), BURST + 1);
    world_free(world);
}

/* --- throttling --- */

static _Atomic uint64_t fake_ns;

static uint64_t fake_mono_ns(void *ctx)
{
    (void)ctx;
    return fake_ns;
}

/* How many of sixteen transfers that fail with `err` a little before their deadline are
 * tried again: those whose backoff is shorter than what is left. */
static size_t count_retried_after(enum dctf_err err, uint64_t pause_ms, uint64_t left_ms)
{
    static const struct dctf_clock clock = {.mono_ns = fake_mono_ns};
    struct world *world =
        world_new_with((struct dctf_fetch_config){.concurrency = 16, .retries = 1, .clock = &clock});
    size_t retried;

    fake_ns = 0;
    for (size_t i = 0; i < 16; i++)
        submit(world, &world->calls[i], DCTF_FETCH_DEMAND, FOREVER_MS);
    fake_ns = (FOREVER_MS - left_ms) * 1000000;
    for (size_t i = 0; i < 16; i++) {
        ((struct dctf_origin_get *)wait_started(&world->manual, i))->retry_after_ms = pause_ms;
        answer(&world->manual, i, err);
    }
    retried = (size_t)dctf_metric_get(world->metrics, DCTF_METRIC_ORIGIN_RETRIES);
    for (size_t i = 0; i < 16; i++)
        assert_true(count_done(&world->calls[i]) == 0 || world->calls[i].err == err);
    world->manual.answers_cancel = true;
    world_free(world);
    return retried;
}

static size_t count_retried(enum dctf_err err, uint64_t left_ms)
{
    return count_retried_after(err, 0, left_ms);
}

/* A pause that the source asks for is waited for before the backoff, but for the last quarter of the time. */
static void test_retry_after_the_pause_that_is_asked_for(void **state)
{
    size_t retried;

    (void)state;
    assert_int_equal(count_retried_after(DCTF_ERR_ORIGIN_IO, 60, 111), 16);
    retried = count_retried_after(DCTF_ERR_ORIGIN_IO, 60, 85);
    assert_true(retried > 2 && retried < 14);
    assert_int_equal(count_retried_after(DCTF_ERR_ORIGIN_IO, 86400000, 204), 16);
    retried = count_retried_after(DCTF_ERR_ORIGIN_IO, 86400000, 100);
    assert_true(retried > 2 && retried < 14);
}

/* By default up to 500 ms where other failures wait up to 50. */
static void test_throttled_waits_longer(void **state)
{
    size_t retried;

    (void)state;
    assert_int_equal(count_retried(DCTF_ERR_ORIGIN_IO, 51), 16);
    assert_int_equal(count_retried(DCTF_ERR_ORIGIN_THROTTLED, 501), 16);
    retried = count_retried(DCTF_ERR_ORIGIN_THROTTLED, 250);
    assert_true(retried > 2 && retried < 14);
    assert_true(count_retried(DCTF_ERR_ORIGIN_THROTTLED, 51) < 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_retry_until_it_passes),
        cmocka_unit_test(test_retry_ends),
        cmocka_unit_test(test_retry_only_what_can_pass),
        cmocka_unit_test(test_retry_not_past_the_deadline),
        cmocka_unit_test(test_start_that_fails_is_retried),
        cmocka_unit_test(test_start_that_fails_is_not_told_inside_submit),
        cmocka_unit_test(test_budget_runs_out),
        cmocka_unit_test(test_budget_refills_with_successes),
        cmocka_unit_test(test_budget_has_a_cap),
        cmocka_unit_test(test_budget_of_none_is_no_bound),
        cmocka_unit_test(test_budget_is_not_for_starts),
        cmocka_unit_test(test_throttled_waits_longer),
        cmocka_unit_test(test_retry_after_the_pause_that_is_asked_for),
    };

    dctf_log_set_level(DCTF_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
