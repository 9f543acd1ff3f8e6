/* SPDX-License-Identifier: Apache-2.0
 *
 * When to renew, who gets what, and the two threads; see the header.
 */
#include "transport/s3_credentials_keeper.h"

#include "base/thread.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RENEW_AHEAD_MS 300000u
#define RETRY_MIN_MS 1000u
#define RETRY_MAX_MS 60000u
/* A set this close to its end is not handed out while the next one is on its way. */
#define LAST_MOMENTS_MS 5000u
/* The wall clock may jump and a suspended machine's monotonic one stands still. */
#define LOOK_MS 30000u

uint64_t dctf_cred_wall_ms(const struct dctf_s3_credentials *c)
{
    return dctf_clock_wall_ms(&c->setup.clock);
}

uint64_t dctf_cred_mono_ms(const struct dctf_s3_credentials *c)
{
    return dctf_clock_mono_ms(&c->setup.clock);
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static struct dctf_s3_keys *ref(struct dctf_s3_keys *keys)
{
    __atomic_add_fetch(&keys->refs, 1, __ATOMIC_RELAXED);
    return keys;
}

void dctf_cred_unlock(struct dctf_s3_credentials *c)
{
    struct note note = c->note;

    c->note.text[0] = '\0';
    pthread_mutex_unlock(&c->lock);
    if (note.text[0] && note.level == DCTF_LOG_WARN)
        dctf_log(DCTF_LOG_WARN, "s3", "%s", note.text);
    else if (note.text[0])
        dctf_log(DCTF_LOG_INFO, "s3", "%s", note.text);
}

/* --- what to do now --- */

bool dctf_cred_is_valid_locked(const struct dctf_s3_credentials *c)
{
    return c->current && c->current->expires_ms > dctf_cred_wall_ms(c);
}

/* A walk should begin. */
bool dctf_cred_is_due_locked(const struct dctf_s3_credentials *c)
{
    if (c->asking || c->stopping || dctf_cred_mono_ms(c) < c->retry_at_ms)
        return false;
    return c->wanted || (c->current && dctf_cred_wall_ms(c) >= c->renew_at_ms);
}

/* The set was rejected or will expire within moments, and another one is on its way. */
static bool is_better_to_wait_locked(const struct dctf_s3_credentials *c)
{
    uint64_t moments = min_u64(LAST_MOMENTS_MS, c->life_ms / 10);

    if (!c->asking && !dctf_cred_is_due_locked(c))
        return false;
    return c->rejected || c->current->expires_ms - dctf_cred_wall_ms(c) < moments;
}

/* What somebody who came at walk `asked` and waits until `deadline_ms` gets; false: wait on. */
bool dctf_cred_verdict_locked(const struct dctf_s3_credentials *c, uint64_t asked, uint64_t deadline_ms,
    enum dctf_err *err, struct dctf_s3_keys **keys)
{
    bool late = dctf_cred_mono_ms(c) >= deadline_ms;

    *keys = NULL;
    *err = DCTF_OK;
    if (c->stopping)
        *err = DCTF_ERR_SHUTTING_DOWN;
    else if (dctf_cred_is_valid_locked(c) && (late || c->walks > asked || !is_better_to_wait_locked(c)))
        *keys = ref(c->current);
    else if (dctf_cred_is_valid_locked(c))
        return false;
    else if (c->last && (c->walks > asked || (!c->asking && c->retry_at_ms > deadline_ms)))
        *err = c->last;
    else if (late)
        *err = DCTF_ERR_DEADLINE;
    else
        return false;
    return true;
}

void dctf_cred_poke_locked(struct dctf_s3_credentials *c)
{
    c->keeper_idle = false;
    pthread_cond_signal(&c->keeper_wake);
}

/* --- results --- */

static uint64_t backoff_ms_locked(struct dctf_s3_credentials *c)
{
    uint64_t delay = RETRY_MAX_MS;

    if (c->failures < 6)
        delay = min_u64((uint64_t)RETRY_MIN_MS << c->failures, RETRY_MAX_MS);
    /* The nearer the end of the set in use, the sooner. */
    if (dctf_cred_is_valid_locked(c)) {
        uint64_t left = c->current->expires_ms - dctf_cred_wall_ms(c);

        delay = min_u64(delay, left / 4 > RETRY_MIN_MS ? left / 4 : RETRY_MIN_MS);
    }
    return delay / 2 + dctf_rng_below(&c->rng, delay / 2 + 1);
}

static void fail_locked(struct dctf_s3_credentials *c, enum dctf_err err, const char *why)
{
    c->last = err;
    c->retry_at_ms = dctf_cred_mono_ms(c) + backoff_ms_locked(c);
    if (c->failures < 6)
        c->failures++;
    snprintf(c->failure, sizeof(c->failure), "%s", why);
}

static bool is_same(const struct dctf_s3_keys *a, const struct dctf_s3_keys *b)
{
    return a->expires_ms == b->expires_ms && !strcmp(a->access_key_id, b->access_key_id) &&
           !strcmp(a->secret_access_key, b->secret_access_key) && !strcmp(a->session_token, b->session_token);
}

/* A service gives out a set until shortly before its end: it is to be asked again, not at once. */
static void keep_locked(struct dctf_s3_credentials *c)
{
    uint64_t now = dctf_cred_wall_ms(c);
    uint64_t pause = (c->current->expires_ms - now) / 4;

    pause = pause < RETRY_MIN_MS ? RETRY_MIN_MS : min_u64(pause, RETRY_MAX_MS);
    if (c->current->expires_ms != UINT64_MAX)
        c->renew_at_ms = now + pause;
    c->retry_at_ms = dctf_cred_mono_ms(c) + RETRY_MIN_MS;
}

/* Takes keys. */
static void install_locked(struct dctf_s3_credentials *c, struct dctf_s3_keys *keys)
{
    uint64_t now = dctf_cred_wall_ms(c);
    char mask[24];

    c->last = DCTF_OK;
    c->failures = 0;
    c->retry_at_ms = 0;
    c->failure[0] = '\0';
    c->rejected = false;
    if (c->current && is_same(c->current, keys)) {
        dctf_s3_keys_unref(keys);
        keep_locked(c);
        return;
    }
    dctf_s3_keys_unref(c->current);
    c->current = keys;
    c->life_ms = UINT64_MAX;
    c->renew_at_ms = UINT64_MAX;
    if (keys->expires_ms != UINT64_MAX) {
        c->life_ms = keys->expires_ms - now;
        c->renew_at_ms = keys->expires_ms - min_u64(RENEW_AHEAD_MS, c->life_ms / 2);
    }
    dctf_cred_mask(keys->access_key_id, mask);
    c->note.level = DCTF_LOG_INFO;
    snprintf(c->note.text, sizeof(c->note.text), "credentials source=\"%s\" key=%s expires_s=%" PRId64,
        keys->source, mask, keys->expires_ms == UINT64_MAX ? -1 : (int64_t)((keys->expires_ms - now) / 1000));
}

static void move_trail_locked(struct dctf_s3_credentials *c, struct dctf_str *trail)
{
    dctf_str_fini(&c->trail);
    c->trail = *trail;
    dctf_str_init(trail);
}

/* A failure that no provider told of. */
static void note_failure_locked(struct dctf_s3_credentials *c, enum dctf_err err, const char *why)
{
    c->note.level = DCTF_LOG_WARN;
    snprintf(c->note.text, sizeof(c->note.text), "err=%d credentials failed: %s", (int)err, why);
}

/* Takes keys and what is in `trail`. */
static void take_result_locked(struct dctf_s3_credentials *c, enum dctf_err err, struct dctf_s3_keys *keys,
    const struct dctf_cred_span *span, struct dctf_str *trail)
{
    static const char *const late = "the set had expired when it came: is this machine's clock right?";

    if (!err && keys->expires_ms <= dctf_cred_wall_ms(c)) {
        dctf_str_printf(trail, "%s%s: %s", trail->len ? "; " : "", keys->source, late);
        dctf_s3_keys_unref(keys);
        err = DCTF_ERR_CREDENTIALS_FAILED;
        note_failure_locked(c, err, late);
    } else if (err == DCTF_ERR_CREDENTIALS_NONE && c->current) {
        /* There was a set: that nobody has one now may pass. */
        err = DCTF_ERR_CREDENTIALS_FAILED;
        note_failure_locked(c, err, dctf_str_c(trail));
    }
    c->walks++;
    c->wanted = false;
    if (err) {
        fail_locked(c, err, trail->len ? dctf_str_c(trail) : dctf_err_text(err));
        /* The reasons of the set in use stay. */
        if (!c->current)
            move_trail_locked(c, trail);
    } else {
        c->renewal = *span;
        if (trail->len || !c->current || strcmp(c->current->source, keys->source) != 0)
            move_trail_locked(c, trail);
        install_locked(c, keys);
    }
    dctf_str_fini(trail);
}

/* --- threads --- */

static void ask_providers(struct dctf_s3_credentials *c)
{
    struct dctf_cred_walk walk;
    struct dctf_s3_keys *keys;
    struct dctf_cred_span span;
    struct dctf_str trail;
    enum dctf_err err;

    /* While a set is valid no other identity is put in its place. */
    pthread_mutex_lock(&c->lock);
    span = dctf_cred_is_valid_locked(c) ? c->renewal : dctf_cred_span_all();
    pthread_mutex_unlock(&c->lock);
    dctf_str_init(&trail);
    dctf_cred_walk_init(&walk, &c->setup);
    err = dctf_cred_walk_ask(&walk, &span, &trail, &keys);
    dctf_cred_walk_fini(&walk);
    pthread_mutex_lock(&c->lock);
    take_result_locked(c, err, keys, &span, &trail);
    dctf_cred_unlock(c);
}

static void *run_asker(void *ctx)
{
    struct dctf_s3_credentials *c = ctx;

    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (!c->stopping && !c->asking)
            pthread_cond_wait(&c->asker_wake, &c->lock);
        if (c->stopping)
            break;
        pthread_mutex_unlock(&c->lock);
        ask_providers(c);
        pthread_mutex_lock(&c->lock);
        c->asking = false;
        dctf_cred_poke_locked(c);
        pthread_cond_broadcast(&c->news);
    }
    c->asker_ended = true;
    pthread_cond_broadcast(&c->news);
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* Take those off the list that have a verdict; *next_ms: when the next one's time is up. */
static void judge_locked(struct dctf_s3_credentials *c, struct dctf_list *judged, uint64_t *next_ms)
{
    struct dctf_list *node = c->waiters.next;

    *next_ms = UINT64_MAX;
    while (node != &c->waiters) {
        struct waiter *waiter = dctf_list_entry(node, struct waiter, node);

        node = node->next;
        if (dctf_cred_verdict_locked(c, waiter->asked, waiter->deadline_ms, &waiter->err, &waiter->keys)) {
            dctf_list_remove(&waiter->node);
            dctf_list_push_back(judged, &waiter->node);
        } else {
            *next_ms = min_u64(*next_ms, waiter->deadline_ms);
        }
    }
}

static void answer(struct dctf_list *judged)
{
    struct dctf_list *node;

    while ((node = dctf_list_pop(judged))) {
        struct waiter *waiter = dctf_list_entry(node, struct waiter, node);

        waiter->ready(waiter->ctx, waiter->err, waiter->keys);
        free(waiter);
    }
}

void dctf_cred_wait_locked(struct dctf_s3_credentials *c, pthread_cond_t *cond, uint64_t ms)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(ms / 1000);
    until.tv_nsec += (long)(ms % 1000) * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000L;
    }
    (void)pthread_cond_timedwait(cond, &c->lock, &until);
}

/* How long the keeper may wait when nothing happens. */
static uint64_t pause_ms_locked(const struct dctf_s3_credentials *c, uint64_t next_deadline_ms)
{
    uint64_t mono = dctf_cred_mono_ms(c);
    uint64_t pause = LOOK_MS;

    if (next_deadline_ms <= mono)
        return 0;
    pause = min_u64(pause, next_deadline_ms - mono);
    if (c->asking)
        return pause;
    if (c->retry_at_ms > mono) {
        pause = min_u64(pause, c->retry_at_ms - mono);
    } else if (c->current && c->renew_at_ms != UINT64_MAX) {
        uint64_t wall = dctf_cred_wall_ms(c);

        pause = min_u64(pause, c->renew_at_ms > wall ? c->renew_at_ms - wall : 0);
    }
    return pause;
}

static void *run_keeper(void *ctx)
{
    struct dctf_s3_credentials *c = ctx;
    uint64_t next_ms;
    struct dctf_list judged;

    dctf_list_init(&judged);
    pthread_mutex_lock(&c->lock);
    while (!c->stopping) {
        uint64_t pause;

        if (dctf_cred_is_due_locked(c)) {
            c->asking = true;
            pthread_cond_signal(&c->asker_wake);
        }
        judge_locked(c, &judged, &next_ms);
        if (!dctf_list_empty(&judged)) {
            pthread_mutex_unlock(&c->lock);
            answer(&judged);
            pthread_mutex_lock(&c->lock);
            continue;
        }
        pause = pause_ms_locked(c, next_ms);
        c->keeper_idle = true;
        pthread_cond_broadcast(&c->news);
        if (pause > 0)
            dctf_cred_wait_locked(c, &c->keeper_wake, pause);
        c->keeper_idle = false;
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

enum dctf_err dctf_cred_start_threads_locked(struct dctf_s3_credentials *c)
{
    enum dctf_err err = DCTF_OK;

    if (!c->has_asker) {
        err = dctf_thread_start("s3-creds-ask", run_asker, c, &c->asker);
        c->has_asker = !err;
    }
    if (!err && !c->has_keeper) {
        err = dctf_thread_start("s3-creds", run_keeper, c, &c->keeper);
        c->has_keeper = !err;
    }
    return err;
}

/* Options and environment need no thread: tried where they are asked for, the first time. */
static void try_instant_locked(struct dctf_s3_credentials *c)
{
    struct dctf_cred_walk walk;
    struct dctf_s3_keys *keys;
    struct dctf_str trail;
    struct dctf_cred_span span = dctf_cred_span_instant();

    if (c->current || c->walks || c->asking)
        return;
    dctf_str_init(&trail);
    dctf_cred_walk_init(&walk, &c->setup);
    walk.quiet = true;
    if (!dctf_cred_walk_ask(&walk, &span, &trail, &keys))
        take_result_locked(c, DCTF_OK, keys, &span, &trail);
    dctf_str_fini(&trail);
    dctf_cred_walk_fini(&walk);
}

/* Somebody needs a set: have one made when there is none or it is time. */
enum dctf_err dctf_cred_need_locked(struct dctf_s3_credentials *c)
{
    enum dctf_err err = DCTF_OK;

    if (c->stopping)
        return DCTF_OK;
    try_instant_locked(c);
    if (!dctf_cred_is_valid_locked(c))
        c->wanted = true;
    if (c->wanted || c->current->expires_ms != UINT64_MAX)
        err = dctf_cred_start_threads_locked(c);
    if (!err && dctf_cred_is_due_locked(c))
        dctf_cred_poke_locked(c);
    return dctf_cred_is_valid_locked(c) ? DCTF_OK : err;
}

/* The asker may be between two calls when it is told: tell it again. */
static void stop_asker(struct dctf_s3_credentials *c)
{
    bool ended = !c->has_asker;

    while (!ended) {
        dctf_cred_setup_stop(&c->setup);
        pthread_mutex_lock(&c->lock);
        if (!c->asker_ended)
            dctf_cred_wait_locked(c, &c->news, 20);
        ended = c->asker_ended;
        pthread_mutex_unlock(&c->lock);
    }
    if (c->has_asker)
        pthread_join(c->asker, NULL);
}

void dctf_cred_end(struct dctf_s3_credentials *c)
{
    struct dctf_list judged;
    uint64_t next_ms;

    stop_asker(c);
    if (c->has_keeper)
        pthread_join(c->keeper, NULL);
    dctf_list_init(&judged);
    pthread_mutex_lock(&c->lock);
    judge_locked(c, &judged, &next_ms);
    pthread_mutex_unlock(&c->lock);
    answer(&judged);
}
