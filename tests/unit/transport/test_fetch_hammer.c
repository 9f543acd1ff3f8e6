/* SPDX-License-Identifier: Apache-2.0
 *
 * Many threads against an origin that answers at random: each transfer is told once.
 */
#include "transport/fetch.h"

#include "base/log.h"
#include "base/metric.h"
#include "base/thread.h"
#include "base/timer.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
/* cmocka needs the four above first */
#include <cmocka.h>

#define HAMMER_SUBMITTERS 8
#define HAMMER_JOBS 400
#define HAMMER_WORKERS 3

struct chaos {
    struct dctf_origin base; /* first */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct dctf_origin_get *queue[4096]; /* guarded by lock */
    size_t count;                        /* guarded by lock */
    bool closing;                        /* guarded by lock */
    struct dctf_rng rng;                 /* guarded by lock */
};

struct shot {
    atomic_uint done;
    atomic_uint released;
    atomic_bool buf_free;
    char buf[64];
};

struct hammer {
    struct chaos chaos;
    struct dctf_fetch *fetch;
    atomic_uint next;
    struct shot shots[HAMMER_SUBMITTERS * HAMMER_JOBS];
};

static enum dctf_err chaos_get(struct dctf_origin *base, struct dctf_origin_get *get)
{
    struct chaos *chaos = (struct chaos *)base;
    enum dctf_err err = DCTF_OK;

    pthread_mutex_lock(&chaos->lock);
    if (dctf_rng_below(&chaos->rng, 20) == 0)
        err = DCTF_ERR_NO_MEMORY;
    else
        chaos->queue[chaos->count++] = get;
    pthread_cond_signal(&chaos->wake);
    pthread_mutex_unlock(&chaos->lock);
    return err;
}

/* Two cancels of three are obeyed at once, the others ignored. */
static void chaos_cancel_get(struct dctf_origin *base, struct dctf_origin_get *get)
{
    struct chaos *chaos = (struct chaos *)base;
    bool found = false;

    pthread_mutex_lock(&chaos->lock);
    for (size_t i = 0; i < chaos->count && dctf_rng_below(&chaos->rng, 3) > 0; i++) {
        if (chaos->queue[i] != get)
            continue;
        chaos->queue[i] = chaos->queue[--chaos->count];
        found = true;
        break;
    }
    pthread_mutex_unlock(&chaos->lock);
    if (found)
        get->done(get, DCTF_ERR_CANCELLED, 0);
}

static const struct dctf_origin_ops chaos_ops = {
    .scheme = "chaos",
    .get = chaos_get,
    .cancel_get = chaos_cancel_get,
};

static void *run_chaos(void *ctx)
{
    static const enum dctf_err answers[] = {
        DCTF_OK, DCTF_OK, DCTF_OK, DCTF_ERR_ORIGIN_IO, DCTF_ERR_SHORT_BODY, DCTF_ERR_VERSION_MISMATCH};
    struct chaos *chaos = ctx;

    pthread_mutex_lock(&chaos->lock);
    while (!chaos->closing || chaos->count > 0) {
        struct dctf_origin_get *get;
        struct timespec delay = {0};
        enum dctf_err err;
        size_t i;

        if (chaos->count == 0) {
            pthread_cond_wait(&chaos->wake, &chaos->lock);
            continue;
        }
        i = dctf_rng_below(&chaos->rng, chaos->count);
        get = chaos->queue[i];
        chaos->queue[i] = chaos->queue[--chaos->count];
        err = answers[dctf_rng_below(&chaos->rng, 6)];
        delay.tv_nsec = (long)dctf_rng_below(&chaos->rng, 400000);
        pthread_mutex_unlock(&chaos->lock);
        nanosleep(&delay, NULL); /* the origin's latency */
        memset(get->buf, err ? 'e' : 'x', get->len);
        get->done(get, err, err ? 0 : get->len);
        pthread_mutex_lock(&chaos->lock);
    }
    pthread_mutex_unlock(&chaos->lock);
    return NULL;
}

static void shot_done(void *ctx, enum dctf_err err, bool buf_free)
{
    struct shot *shot = ctx;

    if (!err)
        assert_int_equal(shot->buf[sizeof(shot->buf) - 1], 'x');
    if (buf_free)
        memset(shot->buf, 'd', sizeof(shot->buf)); /* ours again: a race if the origin still writes */
    atomic_store(&shot->buf_free, buf_free);
    atomic_fetch_add(&shot->done, 1);
}

static void shot_release(void *ctx)
{
    struct shot *shot = ctx;

    memset(shot->buf, 'r', sizeof(shot->buf));
    assert_int_equal(atomic_load(&shot->done), 1);
    atomic_fetch_add(&shot->released, 1);
}

static void *run_submitter(void *ctx)
{
    struct hammer *hammer = ctx;
    struct dctf_rng rng = {.state = atomic_load(&hammer->next)};

    for (size_t i = 0; i < HAMMER_JOBS; i++) {
        struct shot *shot = &hammer->shots[atomic_fetch_add(&hammer->next, 1)];
        struct dctf_fetch_get get = {
            .key = "k",
            .etag = "e",
            .size = sizeof(shot->buf),
            .len = sizeof(shot->buf),
            .buf = shot->buf,
            .class = (enum dctf_fetch_class)dctf_rng_below(&rng, DCTF_FETCH_CLASS_COUNT),
            .deadline_ms = dctf_rng_below(&rng, 40),
            .done = shot_done,
            .release = shot_release,
            .ctx = shot,
        };
        uint64_t id;

        if (dctf_rng_below(&rng, 8) == 0)
            get.deadline_ms = UINT64_MAX;
        assert_int_equal(dctf_fetch_get_submit(hammer->fetch, &get, &id), DCTF_OK);
        if (dctf_rng_below(&rng, 4) == 0)
            dctf_fetch_promote(hammer->fetch, dctf_rng_below(&rng, id) + 1);
        if (dctf_rng_below(&rng, 4) == 0)
            dctf_fetch_cancel(hammer->fetch, dctf_rng_below(&rng, id) + 1);
    }
    return NULL;
}

static void test_hammer_tells_each_transfer_once(void **state)
{
    struct hammer *hammer = calloc(1, sizeof(*hammer));
    struct dctf_fetch_config config = {
        .concurrency = 16, .retries = 2, .retry_budget = 30, .backoff_ms = 2, .seed = 7};
    struct dctf_timers *timers;
    struct dctf_metrics *metrics;
    pthread_t workers[HAMMER_WORKERS];
    pthread_t submitters[HAMMER_SUBMITTERS];

    (void)state;
    assert_non_null(hammer);
    hammer->chaos.base.ops = &chaos_ops;
    hammer->chaos.rng.state = 3;
    pthread_mutex_init(&hammer->chaos.lock, NULL);
    pthread_cond_init(&hammer->chaos.wake, NULL);
    assert_int_equal(dctf_timers_new(&timers), DCTF_OK);
    assert_int_equal(dctf_metrics_new(&metrics), DCTF_OK);
    config.origin = &hammer->chaos.base;
    config.timers = timers;
    config.metrics = metrics;
    assert_int_equal(dctf_fetch_new(&config, &hammer->fetch), DCTF_OK);
    for (size_t i = 0; i < HAMMER_WORKERS; i++)
        assert_int_equal(dctf_thread_start("chaos", run_chaos, &hammer->chaos, &workers[i]), DCTF_OK);
    for (size_t i = 0; i < HAMMER_SUBMITTERS; i++)
        assert_int_equal(dctf_thread_start("submit", run_submitter, hammer, &submitters[i]), DCTF_OK);
    for (size_t i = 0; i < HAMMER_SUBMITTERS; i++)
        pthread_join(submitters[i], NULL);
    dctf_fetch_free(hammer->fetch);
    assert_int_equal(dctf_metric_get(metrics, DCTF_METRIC_ORIGIN_INFLIGHT), 0);
    dctf_timers_free(timers);
    dctf_metrics_free(metrics);
    pthread_mutex_lock(&hammer->chaos.lock);
    hammer->chaos.closing = true;
    pthread_cond_broadcast(&hammer->chaos.wake);
    pthread_mutex_unlock(&hammer->chaos.lock);
    for (size_t i = 0; i < HAMMER_WORKERS; i++)
        pthread_join(workers[i], NULL);
    for (size_t i = 0; i < HAMMER_SUBMITTERS * HAMMER_JOBS; i++) {
        struct shot *shot = &hammer->shots[i];

        assert_int_equal(atomic_load(&shot->done), 1);
        assert_int_equal(atomic_load(&shot->released), atomic_load(&shot->buf_free) ? 0 : 1);
    }
    free(hammer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hammer_tells_each_transfer_once),
    };

    dctf_log_set_level(DCTF_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
