/* SPDX-License-Identifier: Apache-2.0
 *
 * Gets: order, deadlines, cancel; memory that is not there.
 */
#include "fetch_fixture.h"

#include "base/log.h"
#include "lib/fail_alloc.h"

/* --- get --- */

static void test_get_delivers(void **state)
{
    struct world *world = world_new(4, 3, 1);
    struct dctf_fetch_stats stats;

    (void)state;
    submit(world, &world->calls[0], DCTF_FETCH_DEMAND, FOREVER_MS);
    assert_int_equal(dctf_metric_get(world->metrics, DCTF_METRIC_ORIGIN_INFLIGHT), 1);
    answer(&world->manual, 0, DCTF_OK);
    assert_int_equal(wait_done(&world->calls[0]), DCTF_OK);
    assert_true(world->calls[0].buf_free);
    assert_int_equal(world->calls[0].buf[15], 'x');
    dctf_fetch_stats(world->fetch, &stats);
    assert_int_equal(stats.running, 0);
    assert_int_not_equal(stats.last_success_ms, 0);
    assert_int_equal(stats.last_error_ms, 0);
    assert_int_equal(dctf_metric_get(world->metrics, DCTF_METRIC_ORIGIN_GET), 1);
    assert_int_equal(dctf_metric_get(world->metrics, DCTF_METRIC_ORIGIN_BYTES), 16);
    assert_int_equal(dctf_metric_get(world->metrics, DCTF_METRIC_TRANSFER_FEATURE), 1);
    world_free(world);
}

static void test_get_short_success_is_short_body(void **state)
{
    struct world *world = world_new(4, 0, 1);
    struct dctf_origin_get *get;

    (void)state;
    submit(world, &world->calls[0], DCTF_FETCH_DEMAND, FOREVER_MS);
    get = wait_started(&world->manual, 0);
    get->done(get, DCTF_OK, get->len - 1);
    assert_int_equal(wait_done(&world->calls[0]), DCTF_ERR_SHORT_BODY);
    world_free(world);
}

static void test_get_orders_by_class(void **state)
{
    struct world *world = world_new(1, 0, 1);

    (void)state;
    submit(world, &world->calls[0], DCTF_FETCH_DEMAND, FOREVER_MS);
    submit(world, &world->calls[1], DCTF_FETCH_REPLICATION, FOREVER_MS);
    submit(world, &world->calls[2], DCTF_FETCH_PREFETCH, FOREVER_MS);
    submit(world, &world->calls[3], DCTF_FETCH_DEMAND, FOREVER_MS);
    submit(world, &world->calls[4], DCTF_FETCH_DEMAND, FOREVER_MS);
    assert_int_equal(count_started(&world->manual), 1);
    for (size_t i = 0; i < 5; i++) {
        static const size_t order[] = {0, 3, 4, 2, 1};

        assert_ptr_equal(call_of(world, i), &world->calls[order[i]]);
        answer(&world->manual, i, DCTF_OK);
    }
    world_free(world);
}

static void test_get_background_leaves_a_quarter(void **state)
{
    struct world *world = world_new(4, 0, 1);
    struct dctf_fetch_stats stats;

    (void)state;
    for (size_t i = 0; i < 4; i++)
        submit(world, &world->calls[i], DCTF_FETCH_PREFETCH, FOREVER_MS);
    assert_int_equal(count_started(&world->manual), 3);
    submit(world, &world->calls[4], DCTF_FETCH_DEMAND, FOREVER_MS);
    assert_int_equal(count_started(&world->manual), 4);
    assert_ptr_equal(call_of(world, 3), &world->calls[4]);
    dctf_fetch_stats(world->fetch, &stats);
    assert_int_equal(stats.running, 4);
    assert_int_equal(stats.queued[DCTF_FETCH_PREFETCH], 1);
    /* one ends: still three run, so the fourth prefetch goes on waiting */
    answer(&world->manual, 0, DCTF_OK);
    assert_int_equal(count_started(&world->manual), 4);
    answer(&world->manual, 1, DCTF_OK);
    assert_int_equal(count_started(&world->manual), 5);
    world->manual.answers_cancel = true;
    world_free(world);
}

static void test_limit_changes_what_runs(void **state)
{
    struct world *world = world_new(2, 0, 1);

    (void)state;
    for (size_t i = 0; i < 5; i++)
        submit(world, &world->calls[i], DCTF_FETCH_DEMAND, FOREVER_MS);
    assert_int_equal(count_started(&world->manual), 2);
    dctf_fetch_limit(world->fetch, 4);
    assert_int_equal(count_started(&world->manual), 4);
    dctf_fetch_limit(world->fetch, 1); /* what runs goes on, nothing follows until one slot is left */
    for (size_t i = 0; i < 3; i++)
        answer(&world->manual, i, DCTF_OK);
    assert_int_equal(count_started(&world->manual), 4);
    answer(&world->manual, 3, DCTF_OK);
    assert_int_equal(count_started(&world->manual), 5);
    answer(&world->manual, 4, DCTF_OK);
    world_free(world);
}

static void test_promote_overtakes(void **state)
{
    struct world *world = world_new(1, 0, 1);
    struct dctf_fetch_stats stats;
    uint64_t id;

    (void)state;
    submit(world, &world->calls[0], DCTF_FETCH_DEMAND, FOREVER_MS);
    submit(world, &world->calls[1], DCTF_FETCH_PREFETCH, FOREVER_MS);
    id = submit(world, &world->calls[2], DCTF_FETCH_PREFETCH, FOREVER_MS);
    dctf_fetch_promote(world->fetch, 4711);
    dctf_fetch_promote(world->fetch, id);
    dctf_fetch_promote(world->fetch, id);
    dctf_fetch_stats(world->fetch, &stats);
    assert_int_equal(stats.queued[DCTF_FETCH_DEMAND], 1);
    assert_int_equal(stats.queued[DCTF_FETCH_PREFETCH], 1);
    answer(&world->manual, 0, DCTF_OK);
    assert_ptr_equal(call_of(world, 1), &world->calls[2]);
    answer(&world->manual, 1, DCTF_OK);
    answer(&world->manual, 2, DCTF_OK);
    world_free(world);
}

/* --- deadlines --- */

static void test_deadline_abandons_a_stalled_get(void **state)
{
    struct world *world = world_new(1, 3, 1);
    struct dctf_fetch_stats stats;

    (void)state;
    submit(world, &world->calls[0], DCTF_FETCH_DEMAND, 100);
    submit(world, &world->calls[1], DCTF_FETCH_DEMAND, FOREVER_MS);
    assert_int_equal(wait_done(&world->calls[0]), DCTF_ERR_DEADLINE);
    assert_false(world->calls[0].buf_free);
    assert_true(was_cancelled(&world->manual, 0));
    wait_started(&world->manual, 1); /* the slot was given back */
    dctf_fetch_stats(world->fetch, &stats);
    assert_int_equal(stats.abandoned, 1);
    assert_int_equal(stats.running, 1);
    assert_int_equal(stats.last_error, DCTF_ERR_DEADLINE);
    assert_int_equal(count_released(&world->calls[0]), 0);
    assert_int_equal(dctf_metric_get(world->metrics, DCTF_METRIC_ORIGIN_ABANDONED), 1);
    assert_int_equal(dctf_metric_errors(world->metrics, DCTF_ERR_DEADLINE), 1);
    assert_int_equal(dctf_metric_get(world->metrics, DCTF_METRIC_ORIGIN_INFLIGHT), 2);

    answer(&world->manual, 0, DCTF_OK);
    wait_released(&world->calls[0]);
    assert_int_equal(count_done(&world->calls[0]), 1);
    dctf_fetch_stats(world->fetch, &stats);
    assert_int_equal(stats.abandoned, 0);
    answer(&world->manual, 1, DCTF_OK);
    world_free(world);
}

static void test_deadline_frees_the_buffer_when_the_origin_lets_go(void **state)
{
    struct world *world = world_new(1, 3, 1);

    (void)state;
    world->manual.answers_cancel = true;
    submit(world, &world->calls[0], DCTF_FETCH_DEMAND, 100);
    assert_int_equal(wait_done(&world->calls[0]), DCTF_ERR_DEADLINE);
    assert_true(world->calls[0].buf_free);
    world_free(world);
    assert_true(true);
}

static void test_deadline_covers_the_queue(void **state)
{
    struct world *world = world_new(1, 3, 1);

    (void)state;
    submit(world, &world->calls[0], DCTF_FETCH_DEMAND, FOREVER_MS);
    submit(world, &world->calls[1], DCTF_FETCH_DEMAND, 20);
    assert_int_equal(wait_done(&world->calls[1]), DCTF_ERR_DEADLINE);
    assert_true(world->calls[1].buf_free);
    assert_int_equal(count_started(&world->manual), 1);
    answer(&world->manual, 0, DCTF_OK);
    world_free(world);
}

static void test_deadline_bounds_what_a_stuck_origin_holds(void **state)
{
    struct world *world = world_new(1, 0, 1);
    struct dctf_fetch_stats stats;

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        submit(world, &world->calls[i], DCTF_FETCH_DEMAND, 100);
        assert_int_equal(wait_done(&world->calls[i]), DCTF_ERR_DEADLINE);
        assert_false(world->calls[i].buf_free);
    }
    submit(world, &world->calls[4], DCTF_FETCH_DEMAND, 10);
    assert_int_equal(wait_done(&world->calls[4]), DCTF_ERR_DEADLINE);
    assert_true(world->calls[4].buf_free); /* never started */
    assert_int_equal(count_started(&world->manual), 4);
    submit(world, &world->calls[5], DCTF_FETCH_DEMAND, FOREVER_MS);
    dctf_fetch_stats(world->fetch, &stats);
    assert_int_equal(stats.abandoned, 4);
    assert_int_equal(stats.queued[DCTF_FETCH_DEMAND], 1);

    answer(&world->manual, 2, DCTF_ERR_CANCELLED);
    answer(&world->manual, 4, DCTF_OK);
    assert_int_equal(wait_done(&world->calls[5]), DCTF_OK);
    answer(&world->manual, 0, DCTF_OK);
    answer(&world->manual, 1, DCTF_OK);
    answer(&world->manual, 3, DCTF_OK);
    for (size_t i = 0; i < 4; i++)
        wait_released(&world->calls[i]);
    world_free(world);
}

/* --- cancel --- */

static void test_cancel_queued(void **state)
{
    struct world *world = world_new(1, 0, 1);
    uint64_t id;

    (void)state;
    submit(world, &world->calls[0], DCTF_FETCH_DEMAND, FOREVER_MS);
    id = submit(world, &world->calls[1], DCTF_FETCH_DEMAND, FOREVER_MS);
    dctf_fetch_cancel(world->fetch, id);
    dctf_fetch_cancel(world->fetch, id);
    dctf_fetch_cancel(world->fetch, 4711);
    assert_int_equal(wait_done(&world->calls[1]), DCTF_ERR_CANCELLED);
    assert_true(world->calls[1].buf_free);
    assert_false(pthread_equal(world->calls[1].thread, pthread_self()));
    assert_int_equal(dctf_metric_errors(world->metrics, DCTF_ERR_CANCELLED), 0);
    answer(&world->manual, 0, DCTF_OK);
    world_free(world);
}

static void test_cancel_running(void **state)
{
    struct world *world = world_new(1, 3, 1);
    uint64_t id;

    (void)state;
    id = submit(world, &world->calls[0], DCTF_FETCH_DEMAND, FOREVER_MS);
    dctf_fetch_cancel(world->fetch, id);
    assert_int_equal(wait_done(&world->calls[0]), DCTF_ERR_CANCELLED);
    assert_false(world->calls[0].buf_free);
    assert_true(was_cancelled(&world->manual, 0));
    answer(&world->manual, 0, DCTF_ERR_CANCELLED);
    wait_released(&world->calls[0]);
    world_free(world);
}

static void test_cancel_running_that_lets_go(void **state)
{
    struct world *world = world_new(1, 3, 1);
    uint64_t id;

    (void)state;
    world->manual.answers_cancel = true;
    id = submit(world, &world->calls[0], DCTF_FETCH_DEMAND, FOREVER_MS);
    dctf_fetch_cancel(world->fetch, id);
    assert_int_equal(wait_done(&world->calls[0]), DCTF_ERR_CANCELLED);
    assert_true(world->calls[0].buf_free);
    assert_false(pthread_equal(world->calls[0].thread, pthread_self()));
    assert_int_equal(count_released(&world->calls[0]), 0);
    world_free(world);
}

static void test_cancel_in_backoff(void **state)
{
    struct world *world = world_new(1, 3, 8000);
    struct dctf_fetch_stats stats;
    uint64_t id;

    (void)state;
    id = submit(world, &world->calls[0], DCTF_FETCH_DEMAND, FOREVER_MS);
    answer(&world->manual, 0, DCTF_ERR_ORIGIN_IO);
    dctf_fetch_stats(world->fetch, &stats);
    assert_int_equal(stats.queued[DCTF_FETCH_DEMAND], 1);
    dctf_fetch_cancel(world->fetch, id);
    assert_int_equal(wait_done(&world->calls[0]), DCTF_ERR_CANCELLED);
    assert_true(world->calls[0].buf_free);
    world_free(world);
}

/* --- out of memory --- */

static enum dctf_err sweep_new(void *ctx)
{
    struct world *world = ctx;
    struct dctf_fetch_config config = {
        .origin = &world->manual.base, .timers = world->timers, .concurrency = 1};

    return dctf_fetch_new(&config, &world->fetch);
}

static void sweep_free(void *ctx)
{
    struct world *world = ctx;

    dctf_fetch_free(world->fetch);
    world->fetch = NULL;
}

static enum dctf_err sweep_submit(void *ctx)
{
    struct world *world = ctx;
    struct dctf_fetch_list list = {"dir", FOREVER_MS, on_page, on_list, &world->calls[0]};

    return dctf_fetch_list_submit(world->fetch, &list);
}

static void sweep_end(void *ctx)
{
    struct world *world = ctx;
    struct dctf_origin_list *list = wait_started(&world->manual, 1);

    list->done(list, DCTF_OK);
}

static void test_no_memory_is_told_by_the_call(void **state)
{
    struct world *world = world_new(1, 0, 1);

    (void)state;
    submit(world, &world->calls[1], DCTF_FETCH_DEMAND, FOREVER_MS); /* room for timers stays with them */
    answer(&world->manual, 0, DCTF_OK);
    assert_int_equal(fail_alloc_sweep(sweep_submit, sweep_end, world, NULL), 1);
    assert_int_equal(count_done(&world->calls[0]), 1);
    dctf_fetch_free(world->fetch);
    assert_int_equal(fail_alloc_sweep(sweep_new, sweep_free, world, (void **)&world->fetch), 1);
    world_free(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_get_delivers),
        cmocka_unit_test(test_get_short_success_is_short_body),
        cmocka_unit_test(test_get_orders_by_class),
        cmocka_unit_test(test_get_background_leaves_a_quarter),
        cmocka_unit_test(test_limit_changes_what_runs),
        cmocka_unit_test(test_promote_overtakes),
        cmocka_unit_test(test_deadline_abandons_a_stalled_get),
        cmocka_unit_test(test_deadline_frees_the_buffer_when_the_origin_lets_go),
        cmocka_unit_test(test_deadline_covers_the_queue),
        cmocka_unit_test(test_deadline_bounds_what_a_stuck_origin_holds),
        cmocka_unit_test(test_cancel_queued),
        cmocka_unit_test(test_cancel_running),
        cmocka_unit_test(test_cancel_running_that_lets_go),
        cmocka_unit_test(test_cancel_in_backoff),
        cmocka_unit_test(test_no_memory_is_told_by_the_call),
    };

    dctf_log_set_level(DCTF_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
