/* SPDX-License-Identifier: Apache-2.0
 *
 * The scheduler between an origin whose every answer the test gives by hand, and a
 * caller that notes what it is told.
 *
 * Threads:   one thread tests; the origin's answers run where the test gives them.
 * Ownership: world_new() gives a world to world_free().
 */
#ifndef DCTF_TESTS_FETCH_FIXTURE_H
#define DCTF_TESTS_FETCH_FIXTURE_H

#include "base/metric.h"
#include "base/timer.h"
#include "transport/fetch.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
/* cmocka needs the four above first */
#include <cmocka.h>

#define FOREVER_MS 60000u
#define HOLD_MS 600u

/* --- an origin answered by hand --- */

enum op {
    OP_LIST,
    OP_HEAD,
    OP_GET,
};

struct started {
    enum op op;
    void *request;
    bool cancelled;
};

struct manual {
    struct dctf_origin base; /* first */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct started started[256];
    size_t count;
    enum dctf_err start_err; /* what the next starts answer */
    unsigned start_errs;     /* how many of them */
    bool answers_cancel;     /* cancel answers at once */
};

static inline struct manual *from_base(struct dctf_origin *base)
{
    return (struct manual *)base;
}

static inline enum dctf_err manual_start(struct dctf_origin *base, enum op op, void *request)
{
    struct manual *manual = from_base(base);
    enum dctf_err err = DCTF_OK;

    pthread_mutex_lock(&manual->lock);
    if (manual->start_errs > 0) {
        manual->start_errs--;
        err = manual->start_err;
    } else {
        manual->started[manual->count++] = (struct started){op, request, false};
    }
    pthread_cond_broadcast(&manual->changed);
    pthread_mutex_unlock(&manual->lock);
    return err;
}

static inline enum dctf_err manual_list(struct dctf_origin *base, struct dctf_origin_list *list)
{
    return manual_start(base, OP_LIST, list);
}

static inline enum dctf_err manual_head(struct dctf_origin *base, struct dctf_origin_head *head)
{
    return manual_start(base, OP_HEAD, head);
}

static inline enum dctf_err manual_get(struct dctf_origin *base, struct dctf_origin_get *get)
{
    return manual_start(base, OP_GET, get);
}

static inline bool manual_cancel(struct dctf_origin *base, const void *request)
{
    struct manual *manual = from_base(base);
    bool answers;

    pthread_mutex_lock(&manual->lock);
    answers = manual->answers_cancel;
    for (size_t i = 0; i < manual->count; i++)
        if (manual->started[i].request == request)
            manual->started[i].cancelled = true;
    pthread_cond_broadcast(&manual->changed);
    pthread_mutex_unlock(&manual->lock);
    return answers;
}

static inline void manual_cancel_list(struct dctf_origin *base, struct dctf_origin_list *list)
{
    if (manual_cancel(base, list))
        list->done(list, DCTF_ERR_CANCELLED);
}

static inline void manual_cancel_head(struct dctf_origin *base, struct dctf_origin_head *head)
{
    if (manual_cancel(base, head))
        head->done(head, DCTF_ERR_CANCELLED, NULL);
}

static inline void manual_cancel_get(struct dctf_origin *base, struct dctf_origin_get *get)
{
    if (manual_cancel(base, get))
        get->done(get, DCTF_ERR_CANCELLED, 0);
}

static const struct dctf_origin_ops manual_ops = {
    .scheme = "manual",
    .list = manual_list,
    .head = manual_head,
    .get = manual_get,
    .cancel_list = manual_cancel_list,
    .cancel_head = manual_cancel_head,
    .cancel_get = manual_cancel_get,
};

static inline void *wait_started(struct manual *manual, size_t i)
{
    void *request;

    pthread_mutex_lock(&manual->lock);
    while (manual->count <= i)
        pthread_cond_wait(&manual->changed, &manual->lock);
    request = manual->started[i].request;
    pthread_mutex_unlock(&manual->lock);
    return request;
}

static inline size_t count_started(struct manual *manual)
{
    size_t count;

    pthread_mutex_lock(&manual->lock);
    count = manual->count;
    pthread_mutex_unlock(&manual->lock);
    return count;
}

static inline bool was_cancelled(struct manual *manual, size_t i)
{
    bool cancelled;

    pthread_mutex_lock(&manual->lock);
    cancelled = manual->started[i].cancelled;
    pthread_mutex_unlock(&manual->lock);
    return cancelled;
}

static inline void wait_cancelled(struct manual *manual, size_t i)
{
    pthread_mutex_lock(&manual->lock);
    while (!manual->started[i].cancelled)
        pthread_cond_wait(&manual->changed, &manual->lock);
    pthread_mutex_unlock(&manual->lock);
}

/* Answer the i-th started get. */
static inline void answer(struct manual *manual, size_t i, enum dctf_err err)
{
    struct dctf_origin_get *get = wait_started(manual, i);
    size_t len = get->len;

    if (!err)
        memset(get->buf, 'x', len);
    get->done(get, err, err ? 0 : len);
}

/* --- what the caller of the scheduler sees --- */

struct call {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned done;
    unsigned released;
    unsigned pages;
    size_t entries;
    unsigned stop_after;             /* pages; 0: never */
    struct dctf_timers *hold_timers; /* page() lasts until the timer fired */
    struct manual *hold_manual;      /* page() lasts until its listing is cancelled */
    bool hold_over;
    bool done_in_page;
    bool in_page;
    enum dctf_err err;
    bool buf_free;
    pthread_t thread; /* that ran done() */
    bool had_entry;
    char buf[16];
};

static inline void call_init(struct call *call)
{
    memset(call, 0, sizeof(*call));
    pthread_mutex_init(&call->lock, NULL);
    pthread_cond_init(&call->changed, NULL);
}

static inline void call_ended(struct call *call, enum dctf_err err, bool buf_free)
{
    pthread_mutex_lock(&call->lock);
    call->done++;
    call->err = err;
    call->buf_free = buf_free;
    call->thread = pthread_self();
    call->done_in_page = call->in_page;
    pthread_cond_broadcast(&call->changed);
    pthread_mutex_unlock(&call->lock);
}

static inline void on_get(void *ctx, enum dctf_err err, bool buf_free)
{
    call_ended(ctx, err, buf_free);
}

static inline void on_release(void *ctx)
{
    struct call *call = ctx;

    pthread_mutex_lock(&call->lock);
    call->released++;
    pthread_cond_broadcast(&call->changed);
    pthread_mutex_unlock(&call->lock);
}

static inline void on_list(void *ctx, enum dctf_err err)
{
    call_ended(ctx, err, true);
}

static inline void on_head(void *ctx, enum dctf_err err, const struct dctf_origin_entry *entry)
{
    ((struct call *)ctx)->had_entry = entry != NULL;
    call_ended(ctx, err, true);
}

static inline void hold_fired(void *ctx)
{
    struct call *call = ctx;

    pthread_mutex_lock(&call->lock);
    call->hold_over = true;
    pthread_cond_broadcast(&call->changed);
    pthread_mutex_unlock(&call->lock);
}

static inline bool on_page(void *ctx, const struct dctf_origin_entry *entries, size_t count)
{
    struct call *call = ctx;
    struct dctf_timer timer = {0};
    bool more;

    (void)entries;
    pthread_mutex_lock(&call->lock);
    call->pages++;
    call->entries += count;
    call->in_page = true;
    pthread_cond_broadcast(&call->changed);
    more = call->stop_after == 0 || call->pages < call->stop_after;
    if (call->hold_timers) {
        assert_int_equal(dctf_timer_arm(call->hold_timers, &timer, HOLD_MS, hold_fired, call), DCTF_OK);
        while (!call->hold_over)
            pthread_cond_wait(&call->changed, &call->lock);
        pthread_mutex_unlock(&call->lock);
        dctf_timer_cancel(call->hold_timers, &timer);
        pthread_mutex_lock(&call->lock);
    }
    if (call->hold_manual) {
        pthread_mutex_unlock(&call->lock);
        wait_cancelled(call->hold_manual, 0);
        pthread_mutex_lock(&call->lock);
    }
    call->in_page = false;
    pthread_mutex_unlock(&call->lock);
    return more;
}

static inline enum dctf_err wait_done(struct call *call)
{
    enum dctf_err err;

    pthread_mutex_lock(&call->lock);
    while (call->done == 0)
        pthread_cond_wait(&call->changed, &call->lock);
    assert_int_equal(call->done, 1);
    err = call->err;
    pthread_mutex_unlock(&call->lock);
    return err;
}

static inline unsigned count_done(struct call *call)
{
    unsigned done;

    pthread_mutex_lock(&call->lock);
    done = call->done;
    pthread_mutex_unlock(&call->lock);
    return done;
}

static inline void wait_released(struct call *call)
{
    pthread_mutex_lock(&call->lock);
    while (call->released == 0)
        pthread_cond_wait(&call->changed, &call->lock);
    assert_int_equal(call->released, 1);
    pthread_mutex_unlock(&call->lock);
}

static inline unsigned count_released(struct call *call)
{
    unsigned released;

    pthread_mutex_lock(&call->lock);
    released = call->released;
    pthread_mutex_unlock(&call->lock);
    return released;
}

/* --- one test's world --- */

struct world {
    struct manual manual;
    struct dctf_timers *timers;
    struct dctf_metrics *metrics;
    struct dctf_fetch *fetch;
    struct call calls[16];
};

/* `config` without what the world has. */
static inline struct world *world_new_with(struct dctf_fetch_config config)
{
    struct world *world = calloc(1, sizeof(*world));

    assert_non_null(world);
    config.origin = &world->manual.base;
    config.seed = 42;
    world->manual.base.ops = &manual_ops;
    pthread_mutex_init(&world->manual.lock, NULL);
    pthread_cond_init(&world->manual.changed, NULL);
    for (size_t i = 0; i < 16; i++)
        call_init(&world->calls[i]);
    assert_int_equal(dctf_timers_new(&world->timers), DCTF_OK);
    assert_int_equal(dctf_metrics_new(&world->metrics), DCTF_OK);
    config.timers = world->timers;
    config.metrics = world->metrics;
    assert_int_equal(dctf_fetch_new(&config, &world->fetch), DCTF_OK);
    return world;
}

static inline struct world *world_new(unsigned concurrency, unsigned retries, uint64_t backoff_ms)
{
    return world_new_with((struct dctf_fetch_config){
        .concurrency = concurrency,
        .retries = retries,
        .backoff_ms = backoff_ms,
        .throttle_backoff_ms = backoff_ms,
    });
}

static inline void world_free(struct world *world)
{
    dctf_fetch_free(world->fetch);
    assert_int_equal(dctf_metric_get(world->metrics, DCTF_METRIC_ORIGIN_INFLIGHT), 0);
    dctf_metrics_free(world->metrics);
    dctf_timers_free(world->timers);
    free(world);
}

static inline uint64_t submit(
    struct world *world, struct call *call, enum dctf_fetch_class class, uint64_t deadline_ms)
{
    struct dctf_fetch_get get = {
        .key = "dir/shard \n.bin",
        .etag = "v1",
        .size = 100,
        .offset = 10,
        .len = sizeof(call->buf),
        .buf = call->buf,
        .class = class,
        .deadline_ms = deadline_ms,
        .done = on_get,
        .release = on_release,
        .ctx = call,
    };
    uint64_t id;

    assert_int_equal(dctf_fetch_get_submit(world->fetch, &get, &id), DCTF_OK);
    assert_int_not_equal(id, 0);
    return id;
}

static inline void submit_list(struct world *world, struct call *call, uint64_t silence_ms)
{
    struct dctf_fetch_list list = {"dir", silence_ms, on_page, on_list, call};

    assert_int_equal(dctf_fetch_list_submit(world->fetch, &list), DCTF_OK);
}

static inline void submit_head(struct world *world, struct call *call, uint64_t deadline_ms)
{
    struct dctf_fetch_head head = {"dir/key", deadline_ms, on_head, call};

    assert_int_equal(dctf_fetch_head_submit(world->fetch, &head), DCTF_OK);
}

/* The call that the i-th started get belongs to. */
static inline struct call *call_of(struct world *world, size_t i)
{
    const struct dctf_origin_get *get = wait_started(&world->manual, i);

    for (size_t c = 0; c < 16; c++)
        if (get->buf == world->calls[c].buf)
            return &world->calls[c];
    return NULL;
}

static const struct dctf_origin_entry two_entries[] = {
    {.name = "a", .size = 1, .etag = "v"},
    {.name = "b", .is_dir = true, .etag = ""},
};

#endif
