/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/loop.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define PATIENCE_S 30

/* A kernel at the other end of a pipe; a request is one byte:
 *   q answered at once          b answered when the gate is opened
 *   a -EAGAIN, nothing there    x the device fails     e the session is over */
struct kernel {
    int pipe[2];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned answered; /* all guarded by lock */
    unsigned blocked;
    unsigned gate; /* so many of the blocked may go */
    struct dctf_loop *loop;
    pthread_t runner;
    int result;
};

static int receive(void *ctx, struct fuse_buf *buf)
{
    struct kernel *kernel = ctx;
    char kind;

    if (!buf->mem && !(buf->mem = malloc(1)))
        return -ENOMEM;
    if (read(kernel->pipe[0], &kind, 1) != 1)
        return -errno;
    switch (kind) {
    case 'a':
        return -EAGAIN;
    case 'x':
        return -EIO;
    case 'e':
        return 0;
    default:
        break;
    }
    memcpy(buf->mem, &kind, 1);
    return 1;
}

static void process(void *ctx, const struct fuse_buf *buf)
{
    struct kernel *kernel = ctx;

    pthread_mutex_lock(&kernel->lock);
    if (*(const char *)buf->mem == 'b') {
        kernel->blocked++;
        pthread_cond_broadcast(&kernel->changed);
        while (kernel->gate == 0)
            pthread_cond_wait(&kernel->changed, &kernel->lock);
        kernel->gate--;
        kernel->blocked--;
    }
    kernel->answered++;
    pthread_cond_broadcast(&kernel->changed);
    pthread_mutex_unlock(&kernel->lock);
}

static void wake_handler(int number)
{
    (void)number;
}

static void kernel_init(struct kernel *kernel, unsigned threads_max, unsigned receivers_max)
{
    struct dctf_loop_config config = {
        .threads_max = threads_max,
        .receivers_max = receivers_max,
        .wake_signal = SIGUSR2,
        .receive = receive,
        .process = process,
        .ctx = kernel,
    };
    struct sigaction action = {.sa_handler = wake_handler};

    sigaction(SIGUSR2, &action, NULL);
    *kernel = (struct kernel){.result = 1};
    assert_int_equal(pipe(kernel->pipe), 0);
    pthread_mutex_init(&kernel->lock, NULL);
    pthread_cond_init(&kernel->changed, NULL);
    assert_int_equal(dctf_loop_new(&config, &kernel->loop), DCTF_OK);
}

static void kernel_fini(struct kernel *kernel)
{
    dctf_loop_free(kernel->loop);
    close(kernel->pipe[0]);
    close(kernel->pipe[1]);
    pthread_cond_destroy(&kernel->changed);
    pthread_mutex_destroy(&kernel->lock);
}

static void *run(void *arg)
{
    struct kernel *kernel = arg;

    kernel->result = dctf_loop_run(kernel->loop);
    return NULL;
}

static void kernel_run(struct kernel *kernel)
{
    assert_int_equal(pthread_create(&kernel->runner, NULL, run, kernel), 0);
}

static int kernel_join(struct kernel *kernel)
{
    pthread_join(kernel->runner, NULL);
    return kernel->result;
}

static void ask(struct kernel *kernel, const char *kinds)
{
    assert_int_equal(write(kernel->pipe[1], kinds, strlen(kinds)), strlen(kinds));
}

static void open_gate(struct kernel *kernel, unsigned count)
{
    pthread_mutex_lock(&kernel->lock);
    kernel->gate += count;
    pthread_cond_broadcast(&kernel->changed);
    pthread_mutex_unlock(&kernel->lock);
}

/* Until *value, one of the kernel's, is `wanted`. */
static void await(struct kernel *kernel, const unsigned *value, unsigned wanted)
{
    struct timespec until;
    int rc = 0;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_S;
    pthread_mutex_lock(&kernel->lock);
    while (*value != wanted && !rc)
        rc = pthread_cond_timedwait(&kernel->changed, &kernel->lock, &until);
    assert_int_equal(*value, wanted);
    pthread_mutex_unlock(&kernel->lock);
}

/* Until as many threads receive as the loop wants; the others are parked then. */
static struct dctf_loop_stats await_rest(struct kernel *kernel, unsigned receiving_min)
{
    struct dctf_loop_stats stats;
    time_t until = time(NULL) + PATIENCE_S;

    do {
        sched_yield();
        dctf_loop_stats(kernel->loop, &stats);
        assert_true(time(NULL) < until);
    } while (stats.receiving < receiving_min);
    return stats;
}

static void test_run_answers_every_request(void **state)
{
    struct kernel kernel;
    char hundred[101];

    (void)state;
    memset(hundred, 'q', 100);
    hundred[100] = '\0';
    kernel_init(&kernel, 16, 16);
    kernel_run(&kernel);
    for (unsigned i = 0; i < 20; i++)
        ask(&kernel, hundred);
    await(&kernel, &kernel.answered, 2000);
    ask(&kernel, "e");
    assert_int_equal(kernel_join(&kernel), 0);
    assert_int_equal(kernel.answered, 2000);
    kernel_fini(&kernel);
}

/* Handlers block; what comes then, an interrupt of one of them, must be read all the same. */
static void test_run_reads_on_while_handlers_block(void **state)
{
    struct kernel kernel;

    (void)state;
    kernel_init(&kernel, 16, 16);
    kernel_run(&kernel);
    ask(&kernel, "bbbbbbbbbbbbbbb");
    await(&kernel, &kernel.blocked, 15);
    ask(&kernel, "q");
    await(&kernel, &kernel.answered, 1);
    open_gate(&kernel, 15);
    await(&kernel, &kernel.answered, 16);
    ask(&kernel, "e");
    assert_int_equal(kernel_join(&kernel), 0);
    kernel_fini(&kernel);
}

static void test_run_keeps_to_its_threads(void **state)
{
    struct dctf_loop_stats stats;
    struct kernel kernel;

    (void)state;
    kernel_init(&kernel, 3, 3);
    kernel_run(&kernel);
    ask(&kernel, "bbbq");
    await(&kernel, &kernel.blocked, 3);
    dctf_loop_stats(kernel.loop, &stats);
    assert_int_equal(stats.threads, 3);
    assert_int_equal(stats.receiving, 0);
    assert_int_equal(kernel.answered, 0);
    open_gate(&kernel, 1); /* its thread goes on to the last one */
    await(&kernel, &kernel.answered, 2);
    open_gate(&kernel, 2);
    await(&kernel, &kernel.answered, 4);
    ask(&kernel, "e");
    assert_int_equal(kernel_join(&kernel), 0);
    kernel_fini(&kernel);
}

static void test_run_with_one_thread(void **state)
{
    struct kernel kernel;

    (void)state;
    kernel_init(&kernel, 1, 1);
    kernel_run(&kernel);
    ask(&kernel, "qaqaaqe");
    assert_int_equal(kernel_join(&kernel), 0);
    assert_int_equal(kernel.answered, 3);
    kernel_fini(&kernel);
}

/* Sixteen requests at a time, 64 times. */
static struct dctf_loop_stats load_sixteen(struct kernel *kernel)
{
    struct dctf_loop_stats stats;

    for (unsigned round = 0; round < 64; round++) {
        ask(kernel, "bbbbbbbbbbbbbbbb");
        await(kernel, &kernel->blocked, 16);
        open_gate(kernel, 16);
        await(kernel, &kernel->answered, 16 * (round + 1));
        dctf_loop_stats(kernel->loop, &stats);
        stats = await_rest(kernel, stats.wanted);
    }
    assert_int_equal(stats.threads, 16);
    return stats;
}

static void test_receivers_keep_to_their_bound(void **state)
{
    struct kernel kernel;

    (void)state;
    kernel_init(&kernel, 16, 3);
    kernel_run(&kernel);
    assert_int_equal(load_sixteen(&kernel).wanted, 3);
    ask(&kernel, "e");
    assert_int_equal(kernel_join(&kernel), 0);
    kernel_fini(&kernel);
}

/* Sixteen at a time ask for more receivers; one at a time does with two. */
static void test_receivers_follow_the_load(void **state)
{
    struct dctf_loop_stats stats;
    struct kernel kernel;
    unsigned answered = 16 * 64;

    (void)state;
    kernel_init(&kernel, 16, 16);
    kernel_run(&kernel);
    assert_true(load_sixteen(&kernel).wanted > 2);
    for (unsigned i = 0; i < 16 * 256; i++) {
        ask(&kernel, "q");
        await(&kernel, &kernel.answered, ++answered);
        dctf_loop_stats(kernel.loop, &stats);
        (void)await_rest(&kernel, stats.wanted);
    }
    assert_int_equal(stats.wanted, 2);
    ask(&kernel, "e");
    assert_int_equal(kernel_join(&kernel), 0);
    kernel_fini(&kernel);
}

static void test_stop_wakes_those_that_receive(void **state)
{
    struct kernel kernel;

    (void)state;
    kernel_init(&kernel, 16, 16);
    kernel_run(&kernel);
    ask(&kernel, "bbbb");
    await(&kernel, &kernel.blocked, 4);
    open_gate(&kernel, 4);
    await(&kernel, &kernel.answered, 4);
    (void)await_rest(&kernel, 2);
    dctf_loop_stop(kernel.loop);
    assert_int_equal(kernel_join(&kernel), 0);
    kernel_fini(&kernel);
}

static void test_stop_waits_for_handlers(void **state)
{
    struct kernel kernel;

    (void)state;
    kernel_init(&kernel, 4, 4);
    kernel_run(&kernel);
    ask(&kernel, "bb");
    await(&kernel, &kernel.blocked, 2);
    dctf_loop_stop(kernel.loop);
    dctf_loop_stop(kernel.loop);
    open_gate(&kernel, 2);
    assert_int_equal(kernel_join(&kernel), 0);
    assert_int_equal(kernel.answered, 2);
    kernel_fini(&kernel);
}

static void test_stop_before_run(void **state)
{
    struct kernel kernel;

    (void)state;
    kernel_init(&kernel, 4, 4);
    dctf_loop_stop(kernel.loop);
    assert_int_equal(dctf_loop_run(kernel.loop), 0);
    kernel_fini(&kernel);
}

static void test_run_returns_the_devices_error(void **state)
{
    struct kernel kernel;

    (void)state;
    kernel_init(&kernel, 4, 4);
    kernel_run(&kernel);
    ask(&kernel, "qqx");
    assert_int_equal(kernel_join(&kernel), -EIO);
    assert_int_equal(kernel.answered, 2);
    kernel_fini(&kernel);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run_answers_every_request),
        cmocka_unit_test(test_run_reads_on_while_handlers_block),
        cmocka_unit_test(test_run_keeps_to_its_threads),
        cmocka_unit_test(test_run_with_one_thread),
        cmocka_unit_test(test_receivers_keep_to_their_bound),
        cmocka_unit_test(test_receivers_follow_the_load),
        cmocka_unit_test(test_stop_wakes_those_that_receive),
        cmocka_unit_test(test_stop_waits_for_handlers),
        cmocka_unit_test(test_stop_before_run),
        cmocka_unit_test(test_run_returns_the_devices_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
