/* SPDX-License-Identifier: Apache-2.0
 *
 * The interface; what happens behind it is in s3_credentials_keeper.c.
 */
#include "transport/s3_credentials.h"

#include "base/thread.h"
#include "transport/s3_credentials_keeper.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A wait is looked at again after so much real time: an injected clock may have gone on. */
#define LOOK_MS 1000u

enum dctf_err dctf_s3_credentials_new(
    const struct dctf_s3_credentials_config *config, struct dctf_s3_credentials **out)
{
    struct dctf_s3_credentials *c = calloc(1, sizeof(*c));
    enum dctf_err err;

    *out = NULL;
    if (!c)
        return DCTF_ERR_NO_MEMORY;
    err = dctf_cred_setup_init(&c->setup, config);
    if (err) {
        free(c);
        return err;
    }
    pthread_mutex_init(&c->lock, NULL);
    dctf_list_init(&c->waiters);
    dctf_str_init(&c->trail);
    c->rng.state = dctf_rng_seed();
    c->renew_at_ms = UINT64_MAX;
    err = dctf_thread_cond_init(&c->keeper_wake);
    if (!err)
        err = dctf_thread_cond_init(&c->asker_wake);
    if (!err)
        err = dctf_thread_cond_init(&c->news);
    if (err) {
        /* Conditions hold nothing on Linux; those that were made may be left. */
        dctf_cred_setup_fini(&c->setup);
        free(c);
        return err;
    }
    *out = c;
    return DCTF_OK;
}

void dctf_s3_credentials_free(struct dctf_s3_credentials *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&c->lock);
    c->stopping = true;
    pthread_cond_signal(&c->keeper_wake);
    pthread_cond_signal(&c->asker_wake);
    pthread_cond_broadcast(&c->news);
    pthread_mutex_unlock(&c->lock);
    dctf_cred_end(c);
    dctf_s3_keys_unref(c->current);
    dctf_str_fini(&c->trail);
    pthread_cond_destroy(&c->news);
    pthread_cond_destroy(&c->asker_wake);
    pthread_cond_destroy(&c->keeper_wake);
    pthread_mutex_destroy(&c->lock);
    dctf_cred_setup_fini(&c->setup);
    free(c);
}

static uint64_t deadline_of(const struct dctf_s3_credentials *c, uint64_t wait_ms)
{
    uint64_t now = dctf_cred_mono_ms(c);

    return wait_ms > UINT64_MAX - now ? UINT64_MAX : now + wait_ms;
}

enum dctf_err dctf_s3_credentials_get(
    struct dctf_s3_credentials *c, uint64_t wait_ms, struct dctf_s3_keys **out)
{
    enum dctf_err err;
    uint64_t deadline_ms;
    uint64_t asked;

    *out = NULL;
    pthread_mutex_lock(&c->lock);
    deadline_ms = deadline_of(c, wait_ms);
    asked = c->walks;
    err = dctf_cred_need_locked(c);
    while (!err && !dctf_cred_verdict_locked(c, asked, deadline_ms, &err, out)) {
        uint64_t now = dctf_cred_mono_ms(c);

        if (now < deadline_ms)
            dctf_cred_wait_locked(c, &c->news, deadline_ms - now < LOOK_MS ? deadline_ms - now : LOOK_MS);
    }
    dctf_cred_unlock(c);
    return err;
}

void dctf_s3_credentials_ask(
    struct dctf_s3_credentials *c, uint64_t wait_ms, dctf_s3_keys_ready *ready, void *ctx)
{
    struct dctf_s3_keys *keys = NULL;
    struct waiter *waiter = NULL;
    enum dctf_err err;
    uint64_t deadline_ms;
    bool now;

    pthread_mutex_lock(&c->lock);
    deadline_ms = deadline_of(c, wait_ms);
    err = dctf_cred_need_locked(c);
    now = err || dctf_cred_verdict_locked(c, c->walks, deadline_ms, &err, &keys);
    if (!now) {
        waiter = calloc(1, sizeof(*waiter));
        if (waiter) {
            *waiter =
                (struct waiter){.ready = ready, .ctx = ctx, .asked = c->walks, .deadline_ms = deadline_ms};
            dctf_list_push_back(&c->waiters, &waiter->node);
            dctf_cred_poke_locked(c);
        }
    }
    dctf_cred_unlock(c);
    if (now)
        ready(ctx, err, keys);
    else if (!waiter)
        ready(ctx, DCTF_ERR_NO_MEMORY, NULL);
}

void dctf_s3_credentials_renew(struct dctf_s3_credentials *c, const struct dctf_s3_keys *stale)
{
    pthread_mutex_lock(&c->lock);
    if (!c->stopping && c->current && c->current == stale) {
        c->wanted = true;
        c->rejected = true;
        /* Without threads the next get() begins it. */
        if (!dctf_cred_start_threads_locked(c))
            dctf_cred_poke_locked(c);
    }
    pthread_mutex_unlock(&c->lock);
}

void dctf_s3_credentials_region(struct dctf_s3_credentials *c, bool ask_imds, uint64_t wait_ms, char out[64])
{
    struct dctf_cred_walk walk;
    const char *region;

    out[0] = '\0';
    dctf_cred_walk_init(&walk, &c->setup);
    walk.call_timeout_ms = wait_ms;
    region = dctf_cred_region(&walk);
    if (region)
        snprintf(out, 64, "%s", region);
    else if (ask_imds && wait_ms > 0 && dctf_cred_imds_region(&walk, out))
        dctf_log(DCTF_LOG_DEBUG, "s3", "region of the instance: %s", walk.why);
    dctf_cred_walk_fini(&walk);
}

enum dctf_err dctf_s3_credentials_endpoint(struct dctf_s3_credentials *c, char **out, const char **where)
{
    struct dctf_cred_walk walk;
    const char *url;
    enum dctf_err err = DCTF_OK;

    *out = NULL;
    dctf_cred_walk_init(&walk, &c->setup);
    url = dctf_cred_endpoint(&walk, "AWS_ENDPOINT_URL_S3", where);
    if (url && !(*out = strdup(url)))
        err = DCTF_ERR_NO_MEMORY;
    dctf_cred_walk_fini(&walk);
    return err;
}

static void format_left(uint64_t left_ms, char *out, size_t cap)
{
    uint64_t s = left_ms / 1000;

    if (s < 120)
        snprintf(out, cap, "%" PRIu64 " s", s);
    else if (s < 7200)
        snprintf(out, cap, "%" PRIu64 " min", s / 60);
    else
        snprintf(out, cap, "%" PRIu64 " h", s / 3600);
}

void dctf_s3_credentials_describe(struct dctf_s3_credentials *c, char *out, size_t cap)
{
    char expiry[64] = "does not expire";
    char left[32];
    char mask[24];

    pthread_mutex_lock(&c->lock);
    if (!c->current) {
        snprintf(out, cap, "%s", c->trail.len ? dctf_str_c(&c->trail) : "not asked for yet");
    } else {
        uint64_t now = dctf_cred_wall_ms(c);

        dctf_cred_mask(c->current->access_key_id, mask);
        if (c->current->expires_ms <= now)
            snprintf(expiry, sizeof(expiry), "expired");
        else if (c->current->expires_ms != UINT64_MAX) {
            format_left(c->current->expires_ms - now, left, sizeof(left));
            snprintf(expiry, sizeof(expiry), "expires in %s", left);
        }
        snprintf(out, cap, "%s, key %s, %s%s%s%s%s", c->current->source, mask, expiry,
            *c->failure ? "; renewal failed: " : "", c->failure, c->trail.len ? "; before it: " : "",
            dctf_str_c(&c->trail));
    }
    pthread_mutex_unlock(&c->lock);
}

void dctf_s3_credentials_settle(struct dctf_s3_credentials *c)
{
    pthread_mutex_lock(&c->lock);
    if (c->has_keeper) {
        dctf_cred_poke_locked(c);
        while (!c->keeper_idle || c->asking || dctf_cred_is_due_locked(c))
            pthread_cond_wait(&c->news, &c->lock);
    }
    pthread_mutex_unlock(&c->lock);
}
