/* SPDX-License-Identifier: Apache-2.0 */
#include "base/thread.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <time.h>

#include <cmocka.h>

struct seen {
    sigset_t blocked;
    char name[16];
    pthread_barrier_t named;
};

static void *look(void *ctx)
{
    struct seen *seen = ctx;

    pthread_barrier_wait(&seen->named);
    pthread_sigmask(SIG_SETMASK, NULL, &seen->blocked);
    pthread_getname_np(pthread_self(), seen->name, sizeof(seen->name));
    return NULL;
}

static void test_start_names_and_blocks_signals(void **state)
{
    struct seen seen;
    sigset_t mine;
    pthread_t thread;

    (void)state;
    pthread_barrier_init(&seen.named, NULL, 2);
    assert_int_equal(dctf_thread_start("a-name-that-is-too-long", look, &seen, &thread), DCTF_OK);
    pthread_barrier_wait(&seen.named);
    pthread_join(thread, NULL);
    pthread_barrier_destroy(&seen.named);
    assert_string_equal(seen.name, "a-name-that-is-");
    assert_int_equal(sigismember(&seen.blocked, SIGTERM), 1);
    assert_int_equal(sigismember(&seen.blocked, SIGINT), 1);
    pthread_sigmask(SIG_SETMASK, NULL, &mine);
    assert_int_equal(sigismember(&mine, SIGTERM), 0); /* the caller's mask is as before */
}

static void test_cond_counts_monotonic_time(void **state)
{
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t cond;
    struct timespec until;
    struct timespec after;

    (void)state;
    assert_int_equal(dctf_thread_cond_init(&cond), DCTF_OK);
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += 5000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&lock);
    while (pthread_cond_timedwait(&cond, &lock, &until) != ETIMEDOUT)
        ;
    pthread_mutex_unlock(&lock);
    /* Taken for a wall-clock time it would be decades ago, and nothing would wait. */
    clock_gettime(CLOCK_MONOTONIC, &after);
    assert_true(
        after.tv_sec > until.tv_sec || (after.tv_sec == until.tv_sec && after.tv_nsec >= until.tv_nsec));
    pthread_cond_destroy(&cond);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_start_names_and_blocks_signals),
        cmocka_unit_test(test_cond_counts_monotonic_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
