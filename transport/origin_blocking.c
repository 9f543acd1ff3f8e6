/* SPDX-License-Identifier: Apache-2.0
 *
 * Lanes of threads that run blocking calls; see the header for what a lost thread is.
 *
 * Ownership: the origin is counted: one reference by its owner, one per thread. What
 * close() has to leave behind stays valid for the threads that use it.
 */
#include "transport/origin_blocking.h"

#include "base/clock.h"
#include "base/list.h"
#include "base/log.h"
#include "base/thread.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum op {
    OP_LIST,
    OP_HEAD,
    OP_GET,
    OP_PROBE,
};

enum lane_id { LANE_READ, LANE_META, LANE_COUNT };

struct task {
    struct dctf_list link; /* queue or running list of the lane */
    enum op op;
    void *request; /* of op */
    atomic_bool cancelled;
    bool lost; /* guarded by lock */
};

struct lane {
    struct blocking *origin;
    pthread_cond_t wake;
    struct dctf_list queue; /* guarded by lock, as all that follows */
    struct dctf_list running;
    size_t queued;
    size_t threads; /* alive, with the lost ones */
    size_t idle;
    size_t lost;
    size_t limit; /* threads that are not lost */
};

struct blocking {
    struct dctf_origin base; /* first */
    struct dctf_origin_ops table;
    const struct dctf_blocking_ops *ops;
    void *source;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a thread ended, a probe has its answer */
    unsigned refs;          /* guarded by lock */
    bool closing;           /* guarded by lock */
    struct lane lanes[LANE_COUNT];
};

/* A probe outlives its caller when the source hangs. */
struct probe {
    struct blocking *origin;
    unsigned what;
    bool answered;  /* guarded by the origin's lock */
    bool abandoned; /* likewise: the caller is gone, the task frees */
    enum dctf_err err;
    char detail[DCTF_BLOCKING_DETAIL_BYTES];
};

static struct blocking *from_base(struct dctf_origin *base)
{
    return (struct blocking *)base;
}

static void origin_free(struct blocking *origin)
{
    origin->ops->free(origin->source);
    for (size_t i = 0; i < LANE_COUNT; i++)
        pthread_cond_destroy(&origin->lanes[i].wake);
    pthread_cond_destroy(&origin->changed);
    pthread_mutex_destroy(&origin->lock);
    free(origin);
}

/* --- one task --- */

struct result {
    enum dctf_err err;
    size_t got;
    struct dctf_origin_entry entry;
    char etag[DCTF_BLOCKING_ETAG_BYTES];
};

static void execute(struct blocking *origin, struct task *task, struct result *result)
{
    const struct dctf_blocking_ops *ops = origin->ops;
    struct probe *probe;

    switch (task->op) {
    case OP_LIST:
        result->err = ops->list(origin->source, task->request, &task->cancelled);
        break;
    case OP_HEAD:
        result->err = ops->head(origin->source, ((struct dctf_origin_head *)task->request)->key,
            &result->entry, result->etag, &task->cancelled);
        break;
    case OP_GET:
        result->err = ops->get(origin->source, task->request, &task->cancelled, &result->got);
        break;
    case OP_PROBE:
        probe = task->request;
        result->err = ops->probe(origin->source, probe->what, probe->detail);
        break;
    }
}

static void probe_answer(struct probe *probe, enum dctf_err err)
{
    struct blocking *origin = probe->origin;
    bool abandoned;

    pthread_mutex_lock(&origin->lock);
    probe->err = err;
    probe->answered = true;
    abandoned = probe->abandoned;
    pthread_cond_broadcast(&origin->changed);
    pthread_mutex_unlock(&origin->lock);
    if (abandoned)
        free(probe);
}

/* Call back and free the task. The request may be gone afterwards. */
static void answer(struct task *task, const struct result *result)
{
    struct dctf_origin_list *list = task->request;
    struct dctf_origin_head *head = task->request;
    struct dctf_origin_get *get = task->request;

    switch (task->op) {
    case OP_LIST:
        list->done(list, result->err);
        break;
    case OP_HEAD:
        head->done(head, result->err, result->err ? NULL : &result->entry);
        break;
    case OP_GET:
        get->done(get, result->err, result->got);
        break;
    case OP_PROBE:
        probe_answer(task->request, result->err);
        break;
    }
    free(task);
}

static void answer_cancelled(struct task *task)
{
    struct result result = {.err = DCTF_ERR_CANCELLED};

    answer(task, &result);
}

/* --- threads --- */

static bool is_surplus_locked(const struct lane *lane)
{
    return lane->threads - lane->lost > lane->limit;
}

/* The next task, NULL when the thread shall end. */
static struct task *take_locked(struct lane *lane)
{
    struct blocking *origin = lane->origin;
    struct task *task;

    while (!is_surplus_locked(lane) && lane->queued == 0 && !origin->closing) {
        lane->idle++;
        pthread_cond_wait(&lane->wake, &origin->lock);
        lane->idle--;
    }
    if (is_surplus_locked(lane) || lane->queued == 0)
        return NULL;
    task = dctf_list_entry(dctf_list_pop(&lane->queue), struct task, link);
    lane->queued--;
    dctf_list_push_back(&lane->running, &task->link);
    return task;
}

static void *work(void *ctx)
{
    struct lane *lane = ctx;
    struct blocking *origin = lane->origin;
    struct task *task;
    bool last;

    pthread_mutex_lock(&origin->lock);
    while ((task = take_locked(lane))) {
        struct result result = {0};

        pthread_mutex_unlock(&origin->lock);
        execute(origin, task, &result);
        pthread_mutex_lock(&origin->lock);
        /* Off the list before the callback: the request's address may be used again. */
        dctf_list_remove(&task->link);
        if (task->lost)
            lane->lost--;
        pthread_mutex_unlock(&origin->lock);
        answer(task, &result);
        pthread_mutex_lock(&origin->lock);
    }
    lane->threads--;
    /* In one step, so that close() frees all itself when the last thread has gone. */
    last = --origin->refs == 0;
    pthread_cond_broadcast(&origin->changed);
    pthread_mutex_unlock(&origin->lock);
    if (last)
        origin_free(origin);
    return NULL;
}

/* Have a thread for what is queued. False: there is none at all. */
static bool staff_locked(struct lane *lane)
{
    pthread_t thread;

    if (lane->idle < lane->queued && lane->threads - lane->lost < lane->limit &&
        dctf_thread_start(lane->origin->ops->thread_name, work, lane, &thread) == DCTF_OK) {
        pthread_detach(thread);
        lane->threads++;
        lane->origin->refs++;
    }
    pthread_cond_signal(&lane->wake);
    return lane->threads > lane->lost;
}

static enum dctf_err submit(struct blocking *origin, enum lane_id id, enum op op, void *request)
{
    struct lane *lane = &origin->lanes[id];
    struct task *task = calloc(1, sizeof(*task));
    enum dctf_err err = DCTF_OK;

    if (!task)
        return DCTF_ERR_NO_MEMORY;
    dctf_list_init(&task->link);
    task->op = op;
    task->request = request;
    pthread_mutex_lock(&origin->lock);
    if (origin->closing) {
        err = DCTF_ERR_SHUTTING_DOWN;
    } else {
        dctf_list_push_back(&lane->queue, &task->link);
        lane->queued++;
        if (!staff_locked(lane)) {
            dctf_list_remove(&task->link);
            lane->queued--;
            err = DCTF_ERR_NO_MEMORY;
        }
    }
    pthread_mutex_unlock(&origin->lock);
    if (err)
        free(task);
    return err;
}

static struct task *find_locked(struct dctf_list *list, const void *request)
{
    for (struct dctf_list *node = list->next; node != list; node = node->next) {
        struct task *task = dctf_list_entry(node, struct task, link);

        if (task->request == request)
            return task;
    }
    return NULL;
}

static void cancel(struct blocking *origin, enum lane_id id, const void *request)
{
    struct lane *lane = &origin->lanes[id];
    struct task *waiting;
    struct task *running;

    pthread_mutex_lock(&origin->lock);
    waiting = find_locked(&lane->queue, request);
    if (waiting) {
        dctf_list_remove(&waiting->link);
        lane->queued--;
    } else {
        running = find_locked(&lane->running, request);
        if (running && !running->lost) {
            atomic_store_explicit(&running->cancelled, true, memory_order_relaxed);
            running->lost = true;
            lane->lost++;
            if (lane->queued > 0)
                staff_locked(lane); /* if there is none to be had, later answers free one */
        }
    }
    pthread_mutex_unlock(&origin->lock);
    if (waiting)
        answer_cancelled(waiting);
}

/* --- the interface --- */

static enum dctf_err start_list(struct dctf_origin *base, struct dctf_origin_list *list)
{
    return submit(from_base(base), LANE_META, OP_LIST, list);
}

static enum dctf_err start_head(struct dctf_origin *base, struct dctf_origin_head *head)
{
    return submit(from_base(base), LANE_META, OP_HEAD, head);
}

static enum dctf_err start_get(struct dctf_origin *base, struct dctf_origin_get *get)
{
    assert(get->len > 0 && get->offset <= get->size && get->len <= get->size - get->offset);
    return submit(from_base(base), LANE_READ, OP_GET, get);
}

static void cancel_list(struct dctf_origin *base, struct dctf_origin_list *list)
{
    cancel(from_base(base), LANE_META, list);
}

static void cancel_head(struct dctf_origin *base, struct dctf_origin_head *head)
{
    cancel(from_base(base), LANE_META, head);
}

static void cancel_get(struct dctf_origin *base, struct dctf_origin_get *get)
{
    cancel(from_base(base), LANE_READ, get);
}

/* Wait for `changed` until monotonic `due_ms`; false when it has passed. */
static bool wait_locked(struct blocking *origin, uint64_t due_ms)
{
    struct timespec ts = {(time_t)(due_ms / 1000), (long)(due_ms % 1000) * 1000000};

    return pthread_cond_timedwait(&origin->changed, &origin->lock, &ts) == 0;
}

/* Wait for the answer until `due_ms`; false when there is none, and the probe is then no longer
 * the caller's. */
static bool await_probe(struct blocking *origin, struct probe *probe, uint64_t due_ms)
{
    bool answered;

    pthread_mutex_lock(&origin->lock);
    while (!probe->answered && wait_locked(origin, due_ms))
        ;
    answered = probe->answered;
    pthread_mutex_unlock(&origin->lock);
    if (answered)
        return true;
    cancel(origin, LANE_META, probe); /* answers it if it has not begun */
    pthread_mutex_lock(&origin->lock);
    answered = probe->answered;
    probe->abandoned = !answered;
    pthread_mutex_unlock(&origin->lock);
    if (answered)
        free(probe);
    return false;
}

enum dctf_err dctf_blocking_probe(struct dctf_origin *base, unsigned what, uint64_t deadline_ms, char *detail)
{
    struct blocking *origin = from_base(base);
    uint64_t due_ms = dctf_clock_mono_ms(NULL) + deadline_ms;
    struct probe *probe = calloc(1, sizeof(*probe));
    enum dctf_err err;

    detail[0] = '\0';
    if (!probe)
        return DCTF_ERR_NO_MEMORY;
    probe->origin = origin;
    probe->what = what;
    err = submit(origin, LANE_META, OP_PROBE, probe);
    if (err) {
        free(probe);
        return err;
    }
    if (!await_probe(origin, probe, due_ms)) {
        snprintf(detail, DCTF_BLOCKING_DETAIL_BYTES, "%s within %llu ms", origin->ops->silent,
            (unsigned long long)deadline_ms);
        return DCTF_ERR_DEADLINE;
    }
    err = probe->err;
    memcpy(detail, probe->detail, sizeof(probe->detail));
    free(probe);
    return err;
}

static enum dctf_err check(struct dctf_origin *base, uint64_t deadline_ms, char *detail)
{
    return dctf_blocking_probe(base, 0, deadline_ms, detail);
}

static size_t threads_locked(const struct blocking *origin)
{
    size_t count = 0;

    for (size_t i = 0; i < LANE_COUNT; i++)
        count += origin->lanes[i].threads;
    return count;
}

static void close_origin(struct dctf_origin *base, uint64_t wait_ms)
{
    struct blocking *origin = from_base(base);
    uint64_t due_ms = dctf_clock_mono_ms(NULL) + wait_ms;
    struct dctf_list waiting;
    struct dctf_list *node;
    size_t left;
    bool last;

    dctf_list_init(&waiting);
    pthread_mutex_lock(&origin->lock);
    origin->closing = true;
    for (size_t i = 0; i < LANE_COUNT; i++) {
        struct lane *lane = &origin->lanes[i];

        while ((node = dctf_list_pop(&lane->queue)))
            dctf_list_push_back(&waiting, node);
        lane->queued = 0;
        for (node = lane->running.next; node != &lane->running; node = node->next)
            atomic_store_explicit(
                &dctf_list_entry(node, struct task, link)->cancelled, true, memory_order_relaxed);
        pthread_cond_broadcast(&lane->wake);
    }
    pthread_mutex_unlock(&origin->lock);
    while ((node = dctf_list_pop(&waiting)))
        answer_cancelled(dctf_list_entry(node, struct task, link));
    pthread_mutex_lock(&origin->lock);
    while ((left = threads_locked(origin)) > 0 && wait_locked(origin, due_ms))
        ;
    last = --origin->refs == 0;
    pthread_mutex_unlock(&origin->lock);
    if (left > 0)
        dctf_log(DCTF_LOG_WARN, "origin", "scheme=%s threads=%zu stuck in the source are left behind err=%d",
            origin->ops->scheme, left, (int)DCTF_ERR_DEADLINE);
    if (last)
        origin_free(origin);
}

static void fill_table(struct blocking *origin)
{
    origin->table = (struct dctf_origin_ops){
        .scheme = origin->ops->scheme,
        .list = start_list,
        .head = start_head,
        .get = start_get,
        .cancel_list = cancel_list,
        .cancel_head = cancel_head,
        .cancel_get = cancel_get,
        .examine = origin->ops->examine,
        .check = check,
        .close = close_origin,
    };
    origin->base.ops = &origin->table;
}

enum dctf_err dctf_blocking_new(const struct dctf_blocking_ops *ops, void *source, unsigned readers,
    unsigned listers, struct dctf_origin **out)
{
    struct blocking *origin = calloc(1, sizeof(*origin));
    enum dctf_err err;

    *out = NULL;
    assert(readers > 0 && listers > 0);
    if (!origin)
        return DCTF_ERR_NO_MEMORY;
    err = dctf_thread_cond_init(&origin->changed);
    if (err) {
        free(origin);
        return err;
    }
    pthread_mutex_init(&origin->lock, NULL);
    origin->refs = 1;
    origin->ops = ops;
    origin->source = source;
    fill_table(origin);
    for (size_t i = 0; i < LANE_COUNT; i++) {
        struct lane *lane = &origin->lanes[i];

        lane->origin = origin;
        pthread_cond_init(&lane->wake, NULL);
        dctf_list_init(&lane->queue);
        dctf_list_init(&lane->running);
        lane->limit = i == LANE_META ? listers : readers;
    }
    *out = &origin->base;
    return DCTF_OK;
}
