/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/notify.h"

#include "base/metric.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* A kernel that writes down what it is told, and can be held at the first one. */
struct kernel {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool held;
    bool waiting; /* the notifying thread stands at the gate */
    unsigned sent;
    char log[4096];
};

static void kernel_init(struct kernel *kernel, bool held)
{
    *kernel = (struct kernel){.held = held};
    pthread_mutex_init(&kernel->lock, NULL);
    pthread_cond_init(&kernel->changed, NULL);
}

static void kernel_take(struct kernel *kernel, const char *text)
{
    pthread_mutex_lock(&kernel->lock);
    kernel->waiting = true;
    pthread_cond_broadcast(&kernel->changed);
    while (kernel->held)
        pthread_cond_wait(&kernel->changed, &kernel->lock);
    kernel->sent++;
    if (strlen(kernel->log) + strlen(text) < sizeof(kernel->log))
        strcat(kernel->log, text);
    pthread_cond_broadcast(&kernel->changed);
    pthread_mutex_unlock(&kernel->lock);
}

static int take_entry(void *ctx, uint64_t parent, const char *name, size_t len)
{
    char text[128];

    snprintf(text, sizeof(text), "%llu/%.*s ", (unsigned long long)parent, (int)len, name);
    kernel_take(ctx, text);
    return -ENOENT;
}

static void await_gate(struct kernel *kernel)
{
    pthread_mutex_lock(&kernel->lock);
    while (!kernel->waiting)
        pthread_cond_wait(&kernel->changed, &kernel->lock);
    pthread_mutex_unlock(&kernel->lock);
}

static void release(struct kernel *kernel)
{
    pthread_mutex_lock(&kernel->lock);
    kernel->held = false;
    pthread_cond_broadcast(&kernel->changed);
    pthread_mutex_unlock(&kernel->lock);
}

static void await_sent(struct kernel *kernel, unsigned count)
{
    pthread_mutex_lock(&kernel->lock);
    while (kernel->sent < count)
        pthread_cond_wait(&kernel->changed, &kernel->lock);
    pthread_mutex_unlock(&kernel->lock);
}

static struct dctf_notify *start(struct kernel *kernel, size_t queue_max, struct dctf_metrics *metrics)
{
    struct dctf_notify_ops ops = {.inval_entry = take_entry, .ctx = kernel};
    struct dctf_notify *notify;

    assert_int_equal(dctf_notify_new(&ops, queue_max, metrics, &notify), DCTF_OK);
    return notify;
}

static void test_send_keeps_order(void **state)
{
    struct kernel kernel;
    struct dctf_notify *notify;

    (void)state;
    kernel_init(&kernel, false);
    notify = start(&kernel, 8, NULL);
    dctf_notify_entry(notify, 1, "a");
    await_sent(&kernel, 1);
    dctf_notify_entry(notify, 1, "b");
    await_sent(&kernel, 2);
    dctf_notify_entry(notify, 2, "a");
    await_sent(&kernel, 3);
    dctf_notify_free(notify);
    assert_string_equal(kernel.log, "1/a 1/b 2/a ");
}

static void test_queue_coalesces_equal(void **state)
{
    struct kernel kernel;
    struct dctf_notify *notify;

    (void)state;
    kernel_init(&kernel, true);
    notify = start(&kernel, 8, NULL);
    dctf_notify_entry(notify, 1, "first");
    await_gate(&kernel);
    for (int i = 0; i < 100; i++) {
        dctf_notify_entry(notify, 1, "first"); /* the one being sent does not count */
        dctf_notify_entry(notify, 2, "first");
        dctf_notify_entry(notify, 1, "");
        dctf_notify_entry(notify, 1, "firs");
    }
    release(&kernel);
    await_sent(&kernel, 5);
    dctf_notify_free(notify);
    assert_int_equal(kernel.sent, 5);
    assert_string_equal(kernel.log, "1/first 1/first 2/first 1/ 1/firs ");
}

static void test_queue_full_drops_oldest(void **state)
{
    struct kernel kernel;
    struct dctf_metrics *metrics;
    struct dctf_notify *notify;

    (void)state;
    assert_int_equal(dctf_metrics_new(&metrics), DCTF_OK);
    kernel_init(&kernel, true);
    notify = start(&kernel, 3, metrics);
    dctf_notify_entry(notify, 100, "");
    await_gate(&kernel);
    for (uint64_t ino = 1; ino <= 5; ino++)
        dctf_notify_entry(notify, ino, "");
    release(&kernel);
    await_sent(&kernel, 4);
    dctf_notify_free(notify);
    assert_string_equal(kernel.log, "100/ 3/ 4/ 5/ ");
    assert_int_equal(dctf_metric_get(metrics, DCTF_METRIC_NOTIFY_DROPPED), 2);
    assert_int_equal(dctf_metric_get(metrics, DCTF_METRIC_NOTIFY_SENT), 4);
    dctf_metrics_free(metrics);
}

static void *release_soon(void *arg)
{
    release(arg);
    return NULL;
}

static void test_free_drops_what_waits(void **state)
{
    struct kernel kernel;
    struct dctf_notify *notify;
    pthread_t thread;

    (void)state;
    kernel_init(&kernel, true);
    notify = start(&kernel, 1000, NULL);
    for (uint64_t ino = 1; ino <= 1000; ino++)
        dctf_notify_entry(notify, ino, "");
    await_gate(&kernel);
    assert_int_equal(pthread_create(&thread, NULL, release_soon, &kernel), 0);
    dctf_notify_free(notify);
    pthread_join(thread, NULL);
    assert_true(kernel.sent >= 1 && kernel.sent <= 1000);
}

struct storm {
    struct dctf_notify *notify;
    uint64_t seed;
};

static void *queue_many(void *arg)
{
    struct storm *storm = arg;
    char name[16];

    for (uint64_t i = 0; i < 5000; i++) {
        snprintf(name, sizeof(name), "n%u", (unsigned)((i * 7 + storm->seed) % 97));
        dctf_notify_entry(storm->notify, i % 13, name);
        dctf_notify_entry(storm->notify, (i + storm->seed) % 41, "");
    }
    return NULL;
}

static void test_queue_from_many_threads(void **state)
{
    struct kernel kernel;
    struct storm storms[4];
    pthread_t threads[4];
    struct dctf_notify *notify;

    (void)state;
    kernel_init(&kernel, false);
    notify = start(&kernel, 64, NULL);
    for (size_t i = 0; i < 4; i++) {
        storms[i] = (struct storm){notify, i};
        assert_int_equal(pthread_create(&threads[i], NULL, queue_many, &storms[i]), 0);
    }
    for (size_t i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    await_sent(&kernel, 1);
    dctf_notify_free(notify);
}

static void test_free_null(void **state)
{
    (void)state;
    dctf_notify_free(NULL);
}

static void test_drain_waits_for_what_was_queued(void **state)
{
    struct kernel kernel;
    struct dctf_notify *notify;

    (void)state;
    kernel_init(&kernel, true);
    assert_int_equal(
        dctf_notify_new(&(struct dctf_notify_ops){take_entry, &kernel}, 8, NULL, &notify), DCTF_OK);
    assert_true(dctf_notify_drain(notify, 1)); /* nothing to wait for */
    dctf_notify_entry(notify, 1, "");
    await_gate(&kernel);
    dctf_notify_entry(notify, 2, "");
    assert_false(dctf_notify_drain(notify, 20)); /* the kernel holds on: the wait is bounded */
    release(&kernel);
    assert_true(dctf_notify_drain(notify, 10000));
    assert_string_equal(kernel.log, "1/ 2/ ");
    dctf_notify_free(notify);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_send_keeps_order),
        cmocka_unit_test(test_queue_coalesces_equal),
        cmocka_unit_test(test_queue_full_drops_oldest),
        cmocka_unit_test(test_free_drops_what_waits),
        cmocka_unit_test(test_queue_from_many_threads),
        cmocka_unit_test(test_drain_waits_for_what_was_queued),
        cmocka_unit_test(test_free_null),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
