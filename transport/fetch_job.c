/* SPDX-License-Identifier: Apache-2.0
 *
 * One transfer: its states, who holds it, how it ends.
 *
 * Every end goes one of two ways. The origin answers a RUNNING job: it is DONE and
 * done() runs on the origin's thread. Or deadline, cancel, shutdown or a start that
 * failed decide: the job is ENDING, on the reap list, and done() runs on the timer's
 * thread (submit and cancel must not call back into a caller that may hold a lock).
 */
#include "transport/fetch_internal.h"

#include "base/log.h"
#include "base/metric.h"
#include "base/str.h"

#include <assert.h>
#include <stdlib.h>

void dctf_fetch_job_move_locked(struct dctf_fetch_job *job, enum dctf_fetch_state to)
{
    static const unsigned char moves[DCTF_FETCH_STATE_COUNT] = {
        [DCTF_FETCH_NEW] = 1u << DCTF_FETCH_QUEUED,
        [DCTF_FETCH_QUEUED] = 1u << DCTF_FETCH_RUNNING | 1u << DCTF_FETCH_ENDING,
        [DCTF_FETCH_RUNNING] = 1u << DCTF_FETCH_BACKOFF | 1u << DCTF_FETCH_ENDING | 1u << DCTF_FETCH_DONE,
        [DCTF_FETCH_BACKOFF] = 1u << DCTF_FETCH_QUEUED | 1u << DCTF_FETCH_ENDING,
        [DCTF_FETCH_ENDING] = 1u << DCTF_FETCH_DONE,
    };
    struct dctf_fetch *fetch = job->fetch;
    struct dctf_fetch_lane *lane = &fetch->lanes[job->lane];
    enum dctf_fetch_state from = job->state;

    assert(moves[from] & 1u << to);
    if (from == DCTF_FETCH_QUEUED || from == DCTF_FETCH_BACKOFF)
        fetch->waiting[job->class]--;
    if (to == DCTF_FETCH_QUEUED || to == DCTF_FETCH_BACKOFF)
        fetch->waiting[job->class]++;
    if (from == DCTF_FETCH_QUEUED)
        TAILQ_REMOVE(&lane->queue[job->class], job, link);
    if (from == DCTF_FETCH_RUNNING)
        lane->running--;
    if (to == DCTF_FETCH_RUNNING)
        lane->running++;
    if (from == DCTF_FETCH_RUNNING && job->held) { /* its slot goes back, its request stays out */
        lane->abandoned++;
        if (!fetch->config.counted_below)
            dctf_metric_add(fetch->config.metrics, DCTF_METRIC_ORIGIN_ABANDONED, 1);
    }
    job->state = to;
}

void dctf_fetch_unref(struct dctf_fetch *fetch)
{
    if (__atomic_sub_fetch(&fetch->refs, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    pthread_cond_destroy(&fetch->idle);
    pthread_mutex_destroy(&fetch->lock);
    free(fetch);
}

void dctf_fetch_job_ref(struct dctf_fetch_job *job)
{
    __atomic_add_fetch(&job->refs, 1, __ATOMIC_RELAXED);
}

void dctf_fetch_job_unref(struct dctf_fetch_job *job)
{
    struct dctf_fetch *fetch = job->fetch;

    if (__atomic_sub_fetch(&job->refs, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    free(job);
    dctf_fetch_unref(fetch);
}

struct dctf_fetch_job **dctf_fetch_bucket_locked(struct dctf_fetch *fetch, uint64_t id)
{
    return &fetch->buckets[id % DCTF_FETCH_BUCKETS];
}

struct dctf_fetch_job *dctf_fetch_find_locked(struct dctf_fetch *fetch, uint64_t id)
{
    struct dctf_fetch_job *job = *dctf_fetch_bucket_locked(fetch, id);

    while (job && job->id != id)
        job = job->bucket_next;
    return job;
}

static void forget_locked(struct dctf_fetch_job *job)
{
    struct dctf_fetch_job **at = dctf_fetch_bucket_locked(job->fetch, job->id);

    while (*at != job)
        at = &(*at)->bucket_next;
    *at = job->bucket_next;
}

/* --- telling --- */

static bool is_failure(const struct dctf_fetch_job *job, enum dctf_err err)
{
    switch (err) {
    case DCTF_OK:
    case DCTF_ERR_CANCELLED:
    case DCTF_ERR_SHUTTING_DOWN:
        return false;
    case DCTF_ERR_NOT_FOUND: /* an answer like another, but for bytes that a listing promised */
        return job->kind == DCTF_FETCH_KIND_GET;
    default:
        return true;
    }
}

void dctf_fetch_job_log(const struct dctf_fetch_job *job, enum dctf_err err)
{
    char key[256];

    if (!is_failure(job, err))
        return;
    dctf_log(DCTF_LOG_WARN, "fetch", "op=%s key=%s try=%u/%u err=%d %s", dctf_fetch_request_verb(job),
        dctf_str_quote(dctf_fetch_request_key(job), key, sizeof(key)), job->tries,
        job->fetch->config.retries + 1, (int)err, dctf_err_text(err));
}

void dctf_fetch_job_account_locked(struct dctf_fetch_job *job)
{
    struct dctf_fetch *fetch = job->fetch;
    struct dctf_metrics *metrics = fetch->config.metrics;

    if (is_failure(job, job->verdict)) {
        fetch->last_error = job->verdict;
        fetch->last_error_ms = dctf_clock_wall_ms(&fetch->clock);
        dctf_metric_error(metrics, job->verdict);
    }
    if (job->verdict != DCTF_OK)
        return;
    fetch->last_success_ms = dctf_clock_wall_ms(&fetch->clock);
    if (job->kind != DCTF_FETCH_KIND_HEAD)
        dctf_metric_observe_ns(metrics,
            job->kind == DCTF_FETCH_KIND_GET ? DCTF_METRIC_TRANSFER_FEATURE : DCTF_METRIC_TRANSFER_LISTING,
            dctf_clock_mono_ns(&fetch->clock) - job->submitted_ns);
}

/* --- ending --- */

static void timer_off(struct dctf_fetch_job *job, struct dctf_timer *timer)
{
    if (dctf_timer_cancel(job->fetch->config.timers, timer))
        dctf_fetch_job_unref(job); /* else its fire drops, or dropped, the reference */
}

void dctf_fetch_job_tell(struct dctf_fetch_job *job, bool buf_free, const struct dctf_origin_entry *entry)
{
    struct dctf_fetch *fetch = job->fetch;
    bool release;

    timer_off(job, &job->deadline);
    timer_off(job, &job->backoff);
    dctf_fetch_request_done(job, buf_free, entry);
    pthread_mutex_lock(&fetch->lock);
    job->told = true;
    release = !buf_free && !job->held; /* answered while done() ran */
    pthread_mutex_unlock(&fetch->lock);
    if (release)
        dctf_fetch_request_release(job);
    pthread_mutex_lock(&fetch->lock);
    forget_locked(job);
    fetch->active--;
    pthread_cond_broadcast(&fetch->idle);
    pthread_mutex_unlock(&fetch->lock);
    dctf_fetch_job_unref(job);
}

void dctf_fetch_reap(struct dctf_fetch *fetch)
{
    struct dctf_fetch_job *job;

    pthread_mutex_lock(&fetch->lock);
    while ((job = TAILQ_FIRST(&fetch->reap))) {
        bool late = job->state == DCTF_FETCH_DONE; /* a start failed after its transfer had ended */
        bool buf_free = !job->held;

        TAILQ_REMOVE(&fetch->reap, job, link);
        if (!late) {
            dctf_fetch_job_move_locked(job, DCTF_FETCH_DONE);
            dctf_fetch_job_account_locked(job);
        }
        pthread_mutex_unlock(&fetch->lock);
        if (late) {
            dctf_fetch_request_release(job);
            dctf_fetch_job_unref(job);
        } else {
            if (job->verdict == DCTF_ERR_DEADLINE)
                dctf_fetch_job_log(job, job->verdict);
            dctf_fetch_job_tell(job, buf_free, NULL);
        }
        pthread_mutex_lock(&fetch->lock);
    }
    pthread_mutex_unlock(&fetch->lock);
}

static void reaper_fired(void *ctx)
{
    struct dctf_fetch *fetch = ctx;

    pthread_mutex_lock(&fetch->lock);
    fetch->reaper_armed = false;
    pthread_mutex_unlock(&fetch->lock);
    dctf_fetch_reap(fetch);
}

/* When the timer has no memory the list waits for the next kick, deadline or the end. */
void dctf_fetch_kick_locked(struct dctf_fetch *fetch)
{
    if (fetch->reaper_armed || TAILQ_EMPTY(&fetch->reap))
        return;
    fetch->reaper_armed =
        dctf_timer_arm(fetch->config.timers, &fetch->reaper, 0, reaper_fired, fetch) == DCTF_OK;
}

void dctf_fetch_job_unpin_locked(struct dctf_fetch_job *job)
{
    if (--job->pins == 0 && job->state == DCTF_FETCH_ENDING)
        TAILQ_INSERT_TAIL(&job->fetch->reap, job, link);
}

bool dctf_fetch_job_end_locked(struct dctf_fetch_job *job, enum dctf_err verdict)
{
    if (job->state == DCTF_FETCH_ENDING || job->state == DCTF_FETCH_DONE)
        return false;
    job->verdict = verdict;
    job->pins++;
    dctf_fetch_job_move_locked(job, DCTF_FETCH_ENDING);
    return true;
}

void dctf_fetch_job_cancel(struct dctf_fetch_job *job)
{
    struct dctf_fetch *fetch = job->fetch;
    bool go;

    pthread_mutex_lock(&fetch->lock);
    go = job->held && job->started && !job->cancel_sent;
    if (go)
        job->cancel_sent = true;
    pthread_mutex_unlock(&fetch->lock);
    if (go)
        dctf_fetch_request_cancel(job);
}
