/* SPDX-License-Identifier: Apache-2.0
 *
 * The scheduler: which job runs next, what its answer, its timers and its caller
 * do to it. All that decides is done under the lock, once; all that calls out is
 * done without it.
 */
#include "transport/fetch.h"

#include "base/metric.h"
#include "transport/fetch_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define BACKOFF_DEFAULT_MS 50u
#define THROTTLE_BACKOFF_DEFAULT_MS 500u
#define BACKOFF_MAX_MS 10000u
/* Requests given up but held by the origin, per slot, before nothing new is started:
 * each pins a buffer, and a stuck source must not eat the memory. */
#define ABANDONED_PER_SLOT 4u

/* The retry budget is a bucket of tokens: a retry takes one, a first try that the
 * origin answered adds a part of one. A source that fails everybody is so asked only
 * a little more often than one that fails nobody. */
#define RETRY_TOKEN 100u
#define RETRY_BURST 10u

/* --- starting --- */

static bool lane_open(const struct dctf_fetch_lane *lane, enum dctf_fetch_class class)
{
    size_t limit = class == DCTF_FETCH_DEMAND ? lane->limit : lane->background_limit;

    return lane->running < limit && lane->abandoned < lane->limit * ABANDONED_PER_SLOT;
}

static struct dctf_fetch_job *next_locked(struct dctf_fetch *fetch)
{
    if (fetch->closing)
        return NULL;
    for (size_t i = 0; i < DCTF_FETCH_LANE_COUNT; i++) {
        struct dctf_fetch_lane *lane = &fetch->lanes[i];

        for (enum dctf_fetch_class class = DCTF_FETCH_DEMAND; class < DCTF_FETCH_CLASS_COUNT; class ++) {
            struct dctf_fetch_job *job = TAILQ_FIRST(&lane->queue[class]);

            if (job && lane_open(lane, class))
                return job;
        }
    }
    return NULL;
}

static void count_origin(const struct dctf_fetch *fetch, enum dctf_metric metric, int64_t delta)
{
    if (!fetch->config.counted_below)
        dctf_metric_add(fetch->config.metrics, metric, delta);
}

/* The origin lets go of the request. */
static void let_go_locked(struct dctf_fetch_job *job, size_t bytes)
{
    struct dctf_fetch *fetch = job->fetch;

    assert(job->held);
    job->held = false;
    fetch->held--;
    if (job->state != DCTF_FETCH_RUNNING)
        fetch->lanes[job->lane].abandoned--;
    count_origin(fetch, DCTF_METRIC_ORIGIN_INFLIGHT, -1);
    if (bytes > 0)
        count_origin(fetch, DCTF_METRIC_ORIGIN_BYTES, (int64_t)bytes);
}

static uint64_t retry_tokens_max(const struct dctf_fetch *fetch)
{
    return (uint64_t)RETRY_TOKEN * (RETRY_BURST + fetch->config.concurrency);
}

static void refill_retries_locked(struct dctf_fetch *fetch)
{
    fetch->retry_tokens += fetch->config.retry_budget;
    if (fetch->retry_tokens > retry_tokens_max(fetch))
        fetch->retry_tokens = retry_tokens_max(fetch);
}

/* Full jitter (Brooker, "Exponential Backoff And Jitter", AWS 2015): uniform in
 * [0, base × 2^tries]. */
static uint64_t backoff_locked(struct dctf_fetch *fetch, enum dctf_err err, unsigned tries)
{
    uint64_t top =
        err == DCTF_ERR_ORIGIN_THROTTLED ? fetch->config.throttle_backoff_ms : fetch->config.backoff_ms;

    for (unsigned i = 1; i < tries && top < BACKOFF_MAX_MS; i++)
        top *= 2;
    if (top > BACKOFF_MAX_MS)
        top = BACKOFF_MAX_MS;
    return dctf_rng_below(&fetch->rng, top + 1);
}

static void backoff_fired(void *ctx);

/* A pause that the source asked for, as far as it leaves a quarter of the time for one more try, and the
 * jitter behind it, so that those who were refused together do not come back together. */
static uint64_t pause_of(struct dctf_fetch_job *job, uint64_t left_ms)
{
    uint64_t pause_ms = dctf_fetch_request_pause_ms(job);
    uint64_t most_ms = left_ms / 4 * 3;

    return pause_ms < most_ms ? pause_ms : most_ms;
}

static bool gives_up(const struct dctf_fetch_job *job, enum dctf_err err)
{
    return job->kind == DCTF_FETCH_KIND_GET && job->ask.get.gives_up && job->ask.get.gives_up(err);
}

/* `cost`: the tokens it takes. No retry that would begin after the deadline. */
static bool retry_locked(struct dctf_fetch_job *job, enum dctf_err err, uint64_t cost)
{
    struct dctf_fetch *fetch = job->fetch;
    uint64_t now_ms = dctf_clock_mono_ms(&fetch->clock);
    uint64_t delay_ms, left_ms;

    if (dctf_err_class(err) != DCTF_ERR_CLASS_RETRY || job->tries > fetch->config.retries || job->paged ||
        gives_up(job, err) || fetch->closing)
        return false;
    if (fetch->config.retry_budget == 0)
        cost = 0;
    if (fetch->retry_tokens < cost)
        return false;
    left_ms = job->due_ms > now_ms ? job->due_ms - now_ms : 0;
    delay_ms = backoff_locked(fetch, err, job->tries) + pause_of(job, left_ms);
    if (delay_ms >= left_ms)
        return false;
    if (dctf_timer_arm(fetch->config.timers, &job->backoff, delay_ms, backoff_fired, job))
        return false;
    fetch->retry_tokens -= cost;
    dctf_fetch_job_ref(job);
    dctf_fetch_job_move_locked(job, DCTF_FETCH_BACKOFF);
    count_origin(fetch, DCTF_METRIC_ORIGIN_RETRIES, 1);
    return true;
}

/* The start failed, on a thread whose caller must not be called back: what would
 * be told now is told by the reaper. Takes the origin's reference. */
static void start_failed(struct dctf_fetch_job *job, enum dctf_err err)
{
    struct dctf_fetch *fetch = job->fetch;
    bool keep = false;

    dctf_fetch_job_log(job, err);
    pthread_mutex_lock(&fetch->lock);
    let_go_locked(job, 0);
    if (job->state == DCTF_FETCH_RUNNING) {
        /* It asked the source for nothing: no cost. */
        if (!retry_locked(job, err, 0) && dctf_fetch_job_end_locked(job, err))
            dctf_fetch_job_unpin_locked(job);
    } else if (job->told) {
        TAILQ_INSERT_TAIL(&fetch->reap, job, link);
        keep = true;
    }
    dctf_fetch_kick_locked(fetch);
    pthread_mutex_unlock(&fetch->lock);
    if (!keep)
        dctf_fetch_job_unref(job);
}

static void start(struct dctf_fetch_job *job)
{
    struct dctf_fetch *fetch = job->fetch;
    enum dctf_err err;
    bool ended = false;

    err = dctf_fetch_request_start(job);
    if (err) {
        start_failed(job, err);
        return;
    }
    pthread_mutex_lock(&fetch->lock);
    job->started = true;
    ended = job->held && job->state != DCTF_FETCH_RUNNING; /* its cancel came too early for the origin */
    pthread_mutex_unlock(&fetch->lock);
    if (ended)
        dctf_fetch_job_cancel(job);
}

/* Start all that may start. One thread at a time: others only leave the work to it,
 * so that an origin that fails at once cannot recurse. */
static void pump(struct dctf_fetch *fetch)
{
    static const enum dctf_metric requests[] = {
        [DCTF_FETCH_KIND_GET] = DCTF_METRIC_ORIGIN_GET,
        [DCTF_FETCH_KIND_LIST] = DCTF_METRIC_ORIGIN_LIST,
        [DCTF_FETCH_KIND_HEAD] = DCTF_METRIC_ORIGIN_HEAD,
    };
    struct dctf_fetch_job *job;

    pthread_mutex_lock(&fetch->lock);
    if (fetch->pumping) {
        pthread_mutex_unlock(&fetch->lock);
        return;
    }
    fetch->pumping = true;
    while ((job = next_locked(fetch))) {
        dctf_fetch_job_move_locked(job, DCTF_FETCH_RUNNING);
        job->held = true;
        job->started = false;
        job->cancel_sent = false;
        job->tries++;
        fetch->held++;
        count_origin(fetch, requests[job->kind], 1);
        count_origin(fetch, DCTF_METRIC_ORIGIN_INFLIGHT, 1);
        dctf_fetch_job_ref(job); /* the origin's */
        dctf_fetch_job_ref(job); /* ours, as its answer may come before start() ends */
        pthread_mutex_unlock(&fetch->lock);
        start(job);
        dctf_fetch_job_unref(job);
        pthread_mutex_lock(&fetch->lock);
    }
    fetch->pumping = false;
    pthread_cond_broadcast(&fetch->idle);
    pthread_mutex_unlock(&fetch->lock);
}

/* --- what happens to a job --- */

void dctf_fetch_job_answered(
    struct dctf_fetch_job *job, enum dctf_err err, size_t bytes, const struct dctf_origin_entry *entry)
{
    struct dctf_fetch *fetch = job->fetch;
    bool finished = false;
    bool release = false;

    dctf_fetch_job_log(job, err); /* now: once let go, the key may be gone */
    pthread_mutex_lock(&fetch->lock);
    let_go_locked(job, bytes);
    if (job->tries == 1)
        refill_retries_locked(fetch);
    if (job->state != DCTF_FETCH_RUNNING) {
        release = job->told;
    } else if (!retry_locked(job, err, RETRY_TOKEN)) {
        job->verdict = err;
        dctf_fetch_job_move_locked(job, DCTF_FETCH_DONE);
        dctf_fetch_job_account_locked(job);
        finished = true;
    }
    pthread_mutex_unlock(&fetch->lock);
    pump(fetch); /* before done(), which may take its time */
    if (finished)
        dctf_fetch_job_tell(job, true, entry);
    if (release)
        dctf_fetch_request_release(job);
    dctf_fetch_job_unref(job);
}

bool dctf_fetch_job_page_begin(struct dctf_fetch_job *job)
{
    struct dctf_fetch *fetch = job->fetch;
    bool go;

    pthread_mutex_lock(&fetch->lock);
    go = job->state == DCTF_FETCH_RUNNING;
    if (go) {
        job->pins++;
        job->paging = true;
        job->paged = true;
    }
    pthread_mutex_unlock(&fetch->lock);
    return go;
}

bool dctf_fetch_job_page_end(struct dctf_fetch_job *job)
{
    struct dctf_fetch *fetch = job->fetch;
    bool go;

    pthread_mutex_lock(&fetch->lock);
    job->paging = false;
    if (job->due_ms != UINT64_MAX)
        job->due_ms = dctf_clock_mono_ms(&fetch->clock) + job->silence_ms;
    dctf_fetch_job_unpin_locked(job);
    go = job->state == DCTF_FETCH_RUNNING;
    pthread_mutex_unlock(&fetch->lock);
    if (!go)
        dctf_fetch_reap(fetch);
    return go;
}

static void backoff_fired(void *ctx)
{
    struct dctf_fetch_job *job = ctx;
    struct dctf_fetch *fetch = job->fetch;

    pthread_mutex_lock(&fetch->lock);
    if (job->state == DCTF_FETCH_BACKOFF) {
        dctf_fetch_job_move_locked(job, DCTF_FETCH_QUEUED);
        /* in front: it has waited longest */
        TAILQ_INSERT_HEAD(&fetch->lanes[job->lane].queue[job->class], job, link);
    }
    pthread_mutex_unlock(&fetch->lock);
    pump(fetch);
    dctf_fetch_job_unref(job);
}

static void deadline_fired(void *ctx);

/* A listing that delivered pages since the timer was armed has more time. */
static bool postpone_locked(struct dctf_fetch_job *job)
{
    struct dctf_fetch *fetch = job->fetch;
    uint64_t now_ms = dctf_clock_mono_ms(&fetch->clock);
    uint64_t delay_ms = job->silence_ms;

    if (!job->paged || job->state != DCTF_FETCH_RUNNING)
        return false;
    if (!job->paging) {
        if (now_ms >= job->due_ms)
            return false;
        delay_ms = job->due_ms - now_ms;
    }
    return dctf_timer_arm(fetch->config.timers, &job->deadline, delay_ms, deadline_fired, job) == DCTF_OK;
}

static void deadline_fired(void *ctx)
{
    struct dctf_fetch_job *job = ctx;
    struct dctf_fetch *fetch = job->fetch;
    bool ended;

    pthread_mutex_lock(&fetch->lock);
    if (postpone_locked(job)) {
        pthread_mutex_unlock(&fetch->lock);
        return;
    }
    ended = dctf_fetch_job_end_locked(job, DCTF_ERR_DEADLINE);
    pthread_mutex_unlock(&fetch->lock);
    if (ended) {
        dctf_fetch_job_cancel(job); /* first: an origin that lets go at once frees the buffer now */
        pthread_mutex_lock(&fetch->lock);
        dctf_fetch_job_unpin_locked(job);
        pthread_mutex_unlock(&fetch->lock);
    }
    dctf_fetch_reap(fetch);
    pump(fetch);
    dctf_fetch_job_unref(job);
}

void dctf_fetch_cancel(struct dctf_fetch *fetch, uint64_t job_id)
{
    struct dctf_fetch_job *job;

    pthread_mutex_lock(&fetch->lock);
    job = dctf_fetch_find_locked(fetch, job_id);
    if (!job || !dctf_fetch_job_end_locked(job, DCTF_ERR_CANCELLED)) {
        pthread_mutex_unlock(&fetch->lock);
        return;
    }
    dctf_fetch_job_ref(job);
    pthread_mutex_unlock(&fetch->lock);
    dctf_fetch_job_cancel(job);
    pthread_mutex_lock(&fetch->lock);
    dctf_fetch_job_unpin_locked(job);
    dctf_fetch_kick_locked(fetch);
    pthread_mutex_unlock(&fetch->lock);
    pump(fetch);
    dctf_fetch_job_unref(job);
}

void dctf_fetch_promote(struct dctf_fetch *fetch, uint64_t job_id)
{
    struct dctf_fetch_job *job;

    pthread_mutex_lock(&fetch->lock);
    job = dctf_fetch_find_locked(fetch, job_id);
    if (job && job->class != DCTF_FETCH_DEMAND) {
        struct dctf_fetch_queue *queues = fetch->lanes[job->lane].queue;

        if (job->state == DCTF_FETCH_QUEUED) {
            TAILQ_REMOVE(&queues[job->class], job, link);
            TAILQ_INSERT_TAIL(&queues[DCTF_FETCH_DEMAND], job, link);
        }
        if (job->state == DCTF_FETCH_QUEUED || job->state == DCTF_FETCH_BACKOFF) {
            fetch->waiting[job->class]--;
            fetch->waiting[DCTF_FETCH_DEMAND]++;
        }
        job->class = DCTF_FETCH_DEMAND;
    }
    pthread_mutex_unlock(&fetch->lock);
    pump(fetch);
}

/* --- jobs come in --- */

enum dctf_err dctf_fetch_job_new(
    struct dctf_fetch *fetch, enum dctf_fetch_kind kind, const char *name, struct dctf_fetch_job **out)
{
    size_t len = name ? strlen(name) + 1 : 0;
    struct dctf_fetch_job *job = calloc(1, sizeof(*job) + len);

    *out = NULL;
    if (!job)
        return DCTF_ERR_NO_MEMORY;
    __atomic_add_fetch(&fetch->refs, 1, __ATOMIC_RELAXED);
    job->fetch = fetch;
    job->kind = kind;
    job->lane = kind == DCTF_FETCH_KIND_GET ? DCTF_FETCH_LANE_READ : DCTF_FETCH_LANE_META;
    job->refs = 1;
    if (name)
        memcpy(job->name, name, len);
    *out = job;
    return DCTF_OK;
}

enum dctf_err dctf_fetch_job_submit(struct dctf_fetch_job *job, uint64_t deadline_ms, uint64_t *job_id)
{
    struct dctf_fetch *fetch = job->fetch;
    enum dctf_err err = DCTF_OK;

    job->submitted_ns = dctf_clock_mono_ns(&fetch->clock);
    job->due_ms = UINT64_MAX;
    pthread_mutex_lock(&fetch->lock);
    if (fetch->closing)
        err = DCTF_ERR_SHUTTING_DOWN;
    if (!err && deadline_ms < UINT64_MAX - job->submitted_ns / 1000000) {
        job->due_ms = job->submitted_ns / 1000000 + deadline_ms;
        err = dctf_timer_arm(fetch->config.timers, &job->deadline, deadline_ms, deadline_fired, job);
        if (!err)
            dctf_fetch_job_ref(job);
    }
    if (err) {
        pthread_mutex_unlock(&fetch->lock);
        dctf_fetch_job_unref(job);
        return err;
    }
    job->id = ++fetch->next_id;
    if (job_id)
        *job_id = job->id;
    job->bucket_next = *dctf_fetch_bucket_locked(fetch, job->id);
    *dctf_fetch_bucket_locked(fetch, job->id) = job;
    fetch->active++;
    dctf_fetch_job_move_locked(job, DCTF_FETCH_QUEUED);
    TAILQ_INSERT_TAIL(&fetch->lanes[job->lane].queue[job->class], job, link);
    pthread_mutex_unlock(&fetch->lock);
    pump(fetch);
    return DCTF_OK;
}

/* --- the scheduler itself --- */

static void set_limits(struct dctf_fetch *fetch, size_t concurrency)
{
    for (size_t i = 0; i < DCTF_FETCH_LANE_COUNT; i++) {
        struct dctf_fetch_lane *lane = &fetch->lanes[i];

        lane->limit = concurrency;
        if (i == DCTF_FETCH_LANE_META)
            lane->limit = concurrency / 4 > 2 ? concurrency / 4 : 2;
        lane->background_limit = lane->limit > 1 ? lane->limit - (lane->limit + 3) / 4 : 1;
    }
}

void dctf_fetch_limit(struct dctf_fetch *fetch, unsigned concurrency)
{
    pthread_mutex_lock(&fetch->lock);
    set_limits(fetch, concurrency);
    pthread_mutex_unlock(&fetch->lock);
    pump(fetch);
}

enum dctf_err dctf_fetch_new(const struct dctf_fetch_config *config, struct dctf_fetch **out)
{
    struct dctf_fetch *fetch = calloc(1, sizeof(*fetch));

    *out = NULL;
    assert(config->origin && config->timers && config->concurrency > 0);
    if (!fetch)
        return DCTF_ERR_NO_MEMORY;
    fetch->config = *config;
    if (config->clock)
        fetch->clock = *config->clock;
    if (fetch->config.backoff_ms == 0)
        fetch->config.backoff_ms = BACKOFF_DEFAULT_MS;
    if (fetch->config.throttle_backoff_ms == 0)
        fetch->config.throttle_backoff_ms = THROTTLE_BACKOFF_DEFAULT_MS;
    fetch->retry_tokens = retry_tokens_max(fetch);
    fetch->refs = 1;
    fetch->rng.state = config->seed;
    pthread_mutex_init(&fetch->lock, NULL);
    pthread_cond_init(&fetch->idle, NULL);
    TAILQ_INIT(&fetch->reap);
    for (size_t i = 0; i < DCTF_FETCH_LANE_COUNT; i++) {
        struct dctf_fetch_lane *lane = &fetch->lanes[i];

        for (size_t class = 0; class < DCTF_FETCH_CLASS_COUNT; class ++)
            TAILQ_INIT(&lane->queue[class]);
    }
    set_limits(fetch, config->concurrency);
    *out = fetch;
    return DCTF_OK;
}

/* Decide SHUTTING_DOWN for all; the jobs to cancel at the origin come back chained,
 * pinned and referenced. */
static struct dctf_fetch_job *end_all_locked(struct dctf_fetch *fetch)
{
    struct dctf_fetch_job *chain = NULL;

    for (size_t i = 0; i < DCTF_FETCH_BUCKETS; i++) {
        for (struct dctf_fetch_job *job = fetch->buckets[i]; job; job = job->bucket_next) {
            if (!dctf_fetch_job_end_locked(job, DCTF_ERR_SHUTTING_DOWN))
                continue;
            dctf_fetch_job_ref(job);
            job->cancel_next = chain;
            chain = job;
        }
    }
    return chain;
}

void dctf_fetch_free(struct dctf_fetch *fetch)
{
    struct dctf_fetch_job *chain;

    if (!fetch)
        return;
    pthread_mutex_lock(&fetch->lock);
    fetch->closing = true;
    chain = end_all_locked(fetch);
    pthread_mutex_unlock(&fetch->lock);
    while (chain) {
        struct dctf_fetch_job *job = chain;

        chain = job->cancel_next;
        dctf_fetch_job_cancel(job);
        pthread_mutex_lock(&fetch->lock);
        dctf_fetch_job_unpin_locked(job);
        pthread_mutex_unlock(&fetch->lock);
        dctf_fetch_job_unref(job);
    }
    dctf_fetch_reap(fetch);
    pthread_mutex_lock(&fetch->lock);
    while (fetch->active > 0 || fetch->pumping)
        pthread_cond_wait(&fetch->idle, &fetch->lock);
    /* Late answers still come, when timers and metrics may be gone. */
    count_origin(fetch, DCTF_METRIC_ORIGIN_INFLIGHT, -(int64_t)fetch->held);
    fetch->config.metrics = NULL;
    pthread_mutex_unlock(&fetch->lock);
    dctf_timer_cancel(fetch->config.timers, &fetch->reaper);
    dctf_fetch_reap(fetch);
    dctf_fetch_unref(fetch);
}

void dctf_fetch_stats(struct dctf_fetch *fetch, struct dctf_fetch_stats *out)
{
    memset(out, 0, sizeof(*out));
    pthread_mutex_lock(&fetch->lock);
    memcpy(out->queued, fetch->waiting, sizeof(out->queued));
    for (size_t i = 0; i < DCTF_FETCH_LANE_COUNT; i++) {
        out->running += fetch->lanes[i].running;
        out->abandoned += fetch->lanes[i].abandoned;
    }
    out->last_error_ms = fetch->last_error_ms;
    out->last_error = fetch->last_error;
    out->last_success_ms = fetch->last_success_ms;
    pthread_mutex_unlock(&fetch->lock);
}
