/* SPDX-License-Identifier: Apache-2.0
 *
 * The directory origin on a directory that hangs: who waits, who does not, and what becomes of threads.
 */
#include "origin_file_fixture.h"

#include "base/clock.h"
#include "base/log.h"

#include <dirent.h>

static void test_stuck_reads_leave_the_rest_alone(void **state)
{
    struct world *world = *state;
    struct dctf_origin *origin = world->origin;
    struct reply *stuck[2];
    struct reply *looked;
    struct reply *waiting;
    struct reply *list;

    assert_int_equal(head(origin, "dir/one", &looked), DCTF_OK);
    stall(true);
    for (size_t i = 0; i < 2; i++)
        stuck[i] = start_get(origin, "dir/one", looked->etag, 10, 0, 10);
    wait_stalled(2);
    list = start_list(origin, "", false); /* listings have threads of their own */
    assert_int_equal(reply_wait(list), DCTF_OK);
    waiting = start_get(origin, "dir/one", looked->etag, 10, 0, 10);
    origin->ops->cancel_get(origin, &waiting->get); /* not begun: answered at once */
    assert_int_equal(waiting->done, 1);
    assert_int_equal(reply_wait(waiting), DCTF_ERR_CANCELLED);
    free(waiting);

    waiting = start_get(origin, "dir/one", looked->etag, 10, 0, 10);
    origin->ops->cancel_get(origin, &stuck[0]->get); /* given up: another thread in its place */
    origin->ops->cancel_get(origin, &stuck[0]->get);
    wait_stalled(3);
    stall(false);
    assert_int_equal(reply_wait(waiting), DCTF_OK);
    assert_int_equal(reply_wait(stuck[1]), DCTF_OK);
    reply_wait(stuck[0]);
    assert_reads(origin, "dir/one", "0123456789");
    free(stuck[0]);
    free(stuck[1]);
    free(waiting);
    free(looked);
    free(list);
}

static size_t count_threads(void)
{
    DIR *stream = opendir("/proc/self/task");
    size_t count = 0;

    while (readdir(stream))
        count++;
    closedir(stream);
    return count;
}

static void test_threads_that_come_back_are_not_replaced_for_ever(void **state)
{
    struct world *world = *state;
    struct dctf_origin *origin = world->origin;
    size_t before = count_threads();
    struct reply *gets[10];
    struct reply *looked;

    assert_int_equal(head(origin, "dir/one", &looked), DCTF_OK);
    for (size_t i = 0; i < 10; i++) {
        stall(true);
        gets[0] = start_get(origin, "dir/one", looked->etag, 10, 0, 10);
        wait_stalled(1);
        origin->ops->cancel_get(origin, &gets[0]->get);
        stall(false);
        reply_wait(gets[0]);
        free(gets[0]);
    }
    stall(true);
    for (size_t i = 0; i < 10; i++)
        gets[i] = start_get(origin, "dir/one", looked->etag, 10, 0, 10);
    assert_true(count_threads() <= before + 1 + 2); /* the head's, and two that read */
    stall(false);
    for (size_t i = 0; i < 10; i++) {
        assert_int_equal(reply_wait(gets[i]), DCTF_OK);
        free(gets[i]);
    }
    free(looked);
}

static void test_stuck_listings_leave_reads_alone(void **state)
{
    struct world *world = *state;
    struct dctf_origin *origin = world->origin;
    struct reply *stuck[2];
    struct reply *looked;
    struct reply *got;
    char detail[256];

    assert_int_equal(head(origin, "dir/one", &looked), DCTF_OK);
    for (size_t i = 0; i < 2; i++)
        stuck[i] = start_list(origin, "", true);
    got = start_get(origin, "dir/one", looked->etag, 10, 0, 10);
    assert_int_equal(reply_wait(got), DCTF_OK);
    assert_int_equal(origin->ops->check(origin, 20, detail), DCTF_ERR_DEADLINE);
    assert_non_null(strstr(detail, "20 ms"));
    origin->ops->cancel_list(origin, &stuck[0]->list);
    assert_int_equal(origin->ops->check(origin, 10000, detail), DCTF_OK);
    for (size_t i = 0; i < 2; i++) {
        reply_set_hold(stuck[i], false);
        reply_wait(stuck[i]);
        free(stuck[i]);
    }
    free(got);
    free(looked);
}

static void test_close_leaves_stuck_threads_behind(void **state)
{
    struct world *world = *state;
    struct dctf_origin *origin = world->origin;
    struct reply *stuck[2];
    struct reply *waiting;
    struct reply *looked;
    uint64_t begun_ms;

    assert_int_equal(head(origin, "dir/one", &looked), DCTF_OK);
    stall(true);
    for (size_t i = 0; i < 2; i++)
        stuck[i] = start_get(origin, "dir/one", looked->etag, 10, 0, 10);
    wait_stalled(2);
    waiting = start_get(origin, "dir/one", looked->etag, 10, 0, 10);
    begun_ms = dctf_clock_mono_ms(NULL);
    origin->ops->close(origin, 50);
    world->origin = NULL;
    assert_in_range(dctf_clock_mono_ms(NULL) - begun_ms, 49, 5000);
    assert_int_equal(waiting->done, 1);
    assert_int_equal(waiting->err, DCTF_ERR_CANCELLED);
    stall(false); /* they come back to an origin that was closed */
    for (size_t i = 0; i < 2; i++) {
        reply_wait(stuck[i]);
        free(stuck[i]);
    }
    free(waiting);
    free(looked);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_stuck_reads_leave_the_rest_alone),
        TEST(test_threads_that_come_back_are_not_replaced_for_ever),
        TEST(test_stuck_listings_leave_reads_alone),
        TEST(test_close_leaves_stuck_threads_behind),
    };

    dctf_log_set_level(DCTF_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
