/* SPDX-License-Identifier: Apache-2.0
 *
 * Listings and heads, and the end of the scheduler under all that runs.
 */
#include "fetch_fixture.h"

#include "base/log.h"
#include "base/thread.h"

/* --- list and head --- */

static void test_list_delivers(void **state)
{
    struct world *world = world_new(1, 3, 1);
    struct dctf_origin_list *list;

    (void)state;
    submit_list(world, &world->calls[0], FOREVER_MS);
    list = wait_started(&world->manual, 0);
    assert_string_equal(list->dir, "dir");
    assert_true(list->page(list, two_entries, 2));
    assert_true(list->page(list, two_entries, 1));
    list->done(list, DCTF_OK);
    assert_int_equal(wait_done(&world->calls[0]), DCTF_OK);
    assert_int_equal(world->calls[0].entries, 3);
    assert_int_equal(dctf_metric_get(world->metrics, DCTF_METRIC_ORIGIN_LIST), 1);
    assert_int_equal(dctf_metric_get(world->metrics, DCTF_METRIC_TRANSFER_LISTING), 1);
    world_free(world);
}

static void test_list_stops_when_told(void **state)
{
    struct world *world = world_new(1, 3, 1);
    struct dctf_origin_list *list;

    (void)state;
    world->calls[0].stop_after = 2;
    submit_list(world, &world->calls[0], FOREVER_MS);
    list = wait_started(&world->manual, 0);
    assert_true(list->page(list, two_entries, 2));
    assert_false(list->page(list, two_entries, 2));
    list->done(list, DCTF_ERR_CANCELLED);
    assert_int_equal(wait_done(&world->calls[0]), DCTF_ERR_CANCELLED);
    world_free(world);
}

static void test_list_silence_ends_it(void **state)
{
    struct world *world = world_new(1, 3, 1);
    struct dctf_origin_list *list;

    (void)state;
    submit_list(world, &world->calls[0], 250);
    list = wait_started(&world->manual, 0);
    assert_true(list->page(list, two_entries, 2));
    assert_int_equal(wait_done(&world->calls[0]), DCTF_ERR_DEADLINE);
    assert_true(was_cancelled(&world->manual, 0));
    /* nothing after done() */
    assert_false(list->page(list, two_entries, 2));
    assert_int_equal(world->calls[0].pages, 1);
    list->done(list, DCTF_OK);
    world_free(world);
}

static void test_list_consumer_is_not_silence(void **state)
{
    struct world *world = world_new(1, 3, 1);
    struct dctf_origin_list *list;

    (void)state;
    world->calls[0].hold_timers = world->timers; /* page() takes three times the silence */
    submit_list(world, &world->calls[0], 200);
    list = wait_started(&world->manual, 0);
    assert_true(list->page(list, two_entries, 2));
    list->done(list, DCTF_OK);
    assert_int_equal(wait_done(&world->calls[0]), DCTF_OK);
    assert_false(world->calls[0].done_in_page);
    world_free(world);
}

static void test_list_is_retried_only_before_its_first_page(void **state)
{
    struct world *world = world_new(1, 3, 1);
    struct dctf_origin_list *list;

    (void)state;
    submit_list(world, &world->calls[0], FOREVER_MS);
    list = wait_started(&world->manual, 0);
    list->done(list, DCTF_ERR_ORIGIN_IO);
    list = wait_started(&world->manual, 1);
    assert_true(list->page(list, two_entries, 2));
    list->done(list, DCTF_ERR_ORIGIN_IO);
    assert_int_equal(wait_done(&world->calls[0]), DCTF_ERR_ORIGIN_IO);
    assert_int_equal(count_started(&world->manual), 2);
    world_free(world);
}

static void test_list_has_slots_of_its_own(void **state)
{
    struct world *world = world_new(1, 3, 1);
    struct dctf_origin_list *list;
    struct dctf_origin_head *head;

    (void)state;
    submit(world, &world->calls[0], DCTF_FETCH_DEMAND, FOREVER_MS);
    submit_list(world, &world->calls[1], FOREVER_MS);
    submit_head(world, &world->calls[2], FOREVER_MS);
    submit_list(world, &world->calls[3], FOREVER_MS);
    assert_int_equal(count_started(&world->manual), 3); /* of listings and heads two at once */
    list = wait_started(&world->manual, 1);
    list->done(list, DCTF_OK);
    list = wait_started(&world->manual, 3);
    list->done(list, DCTF_OK);
    head = wait_started(&world->manual, 2);
    head->done(head, DCTF_OK, two_entries);
    answer(&world->manual, 0, DCTF_OK);
    world_free(world);
}

static void test_head_answers(void **state)
{
    struct world *world = world_new(1, 3, 1);
    struct dctf_origin_head *head;
    struct dctf_fetch_stats stats;

    (void)state;
    submit_head(world, &world->calls[0], FOREVER_MS);
    head = wait_started(&world->manual, 0);
    assert_string_equal(head->key, "dir/key");
    head->done(head, DCTF_OK, two_entries);
    assert_int_equal(wait_done(&world->calls[0]), DCTF_OK);
    assert_true(world->calls[0].had_entry);

    submit_head(world, &world->calls[1], FOREVER_MS);
    head = wait_started(&world->manual, 1);
    head->done(head, DCTF_ERR_NOT_FOUND, NULL);
    assert_int_equal(wait_done(&world->calls[1]), DCTF_ERR_NOT_FOUND);
    assert_false(world->calls[1].had_entry);
    dctf_fetch_stats(world->fetch, &stats);
    assert_int_equal(stats.last_error_ms, 0); /* an answer, not a failure */

    submit_head(world, &world->calls[2], 100);
    assert_int_equal(wait_done(&world->calls[2]), DCTF_ERR_DEADLINE);
    head = wait_started(&world->manual, 2);
    head->done(head, DCTF_OK, two_entries);
    assert_int_equal(count_done(&world->calls[2]), 1);
    world_free(world);
}

/* --- shutdown --- */

static void test_free_ends_all(void **state)
{
    struct world *world = world_new(1, 3, 5000);
    struct dctf_origin_get *stalled;
    struct call *calls = world->calls;

    (void)state;
    submit(world, &calls[0], DCTF_FETCH_DEMAND, FOREVER_MS); /* fails, backs off */
    answer(&world->manual, 0, DCTF_ERR_ORIGIN_IO);
    submit(world, &calls[1], DCTF_FETCH_DEMAND, FOREVER_MS); /* stalls */
    submit(world, &calls[2], DCTF_FETCH_DEMAND, FOREVER_MS); /* queued */
    submit_list(world, &calls[3], FOREVER_MS);               /* stalls */
    stalled = wait_started(&world->manual, 1);
    wait_started(&world->manual, 2);
    dctf_fetch_free(world->fetch);
    world->fetch = NULL;
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(count_done(&calls[i]), 1);
        assert_int_equal(calls[i].err, DCTF_ERR_SHUTTING_DOWN);
        assert_int_equal(calls[i].buf_free, i != 1);
    }
    assert_true(was_cancelled(&world->manual, 1));
    assert_int_equal(dctf_metric_get(world->metrics, DCTF_METRIC_ORIGIN_INFLIGHT), 0);
    dctf_metrics_free(world->metrics);
    dctf_timers_free(world->timers);
    /* the origin lets go when scheduler, timers and metrics are gone */
    stalled->done(stalled, DCTF_OK, stalled->len);
    assert_int_equal(count_released(&calls[1]), 1);
    ((struct dctf_origin_list *)world->manual.started[2].request)
        ->done(world->manual.started[2].request, DCTF_ERR_CANCELLED);
    free(world);
}

struct pager {
    struct dctf_origin_list *list;
    bool more;
};

static void *run_pager(void *ctx)
{
    struct pager *pager = ctx;

    pager->more = pager->list->page(pager->list, two_entries, 2);
    pager->list->done(pager->list, DCTF_ERR_CANCELLED);
    return NULL;
}

static void test_free_waits_for_a_page(void **state)
{
    struct world *world = world_new(1, 3, 1);
    struct call *call = &world->calls[0];
    struct pager pager;
    pthread_t thread;

    (void)state;
    call->hold_manual = &world->manual;
    submit_list(world, call, FOREVER_MS);
    pager.list = wait_started(&world->manual, 0);
    assert_int_equal(dctf_thread_start("pager", run_pager, &pager, &thread), DCTF_OK);
    pthread_mutex_lock(&call->lock);
    while (call->pages == 0)
        pthread_cond_wait(&call->changed, &call->lock);
    pthread_mutex_unlock(&call->lock);
    dctf_fetch_free(world->fetch);
    world->fetch = NULL;
    assert_int_equal(count_done(call), 1);
    assert_int_equal(call->err, DCTF_ERR_SHUTTING_DOWN);
    assert_false(call->done_in_page);
    pthread_join(thread, NULL);
    assert_false(pager.more);
    world_free(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list_delivers),
        cmocka_unit_test(test_list_stops_when_told),
        cmocka_unit_test(test_list_silence_ends_it),
        cmocka_unit_test(test_list_consumer_is_not_silence),
        cmocka_unit_test(test_list_is_retried_only_before_its_first_page),
        cmocka_unit_test(test_list_has_slots_of_its_own),
        cmocka_unit_test(test_head_answers),
        cmocka_unit_test(test_free_ends_all),
        cmocka_unit_test(test_free_waits_for_a_page),
    };

    dctf_log_set_level(DCTF_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
