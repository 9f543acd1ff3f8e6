/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/members_internal.h"

#include "base/log.h"
#include "base/thread.h"
#include "cluster/coordinator_internal.h"
#include "cluster/redis.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DETAIL_BYTES 256u
#define HEARTBEAT_MS 5000u
#define POLL_MS 250u
#define EXCLUDE_AFTER_MS 60000u
/* For how long members that vanished together are kept. */
#define HOLD_MS 30000u
#define DNS_PREFIX "dns:"

uint64_t dctf_members_now_ms(const struct dctf_members *members)
{
    return dctf_clock_mono_ms(&members->clock);
}

uint64_t dctf_members_jitter(struct dctf_members *members, uint64_t interval_ms)
{
    return interval_ms * 4 / 5 + dctf_rng_below(&members->rng, interval_ms * 2 / 5 + 1);
}

uint64_t dctf_members_return_ms(const struct dctf_members *members)
{
    return members->config.heartbeat_ms * DCTF_LEASE_BEATS + DCTF_REDIS_BACKOFF_MAX_MS;
}

bool dctf_members_closing(struct dctf_members *members)
{
    bool closing;

    pthread_mutex_lock(&members->lock);
    closing = members->closing;
    pthread_mutex_unlock(&members->lock);
    return closing;
}

bool dctf_members_sleep(struct dctf_members *members, uint64_t until_ms, bool *refresh)
{
    uint64_t now_ms = dctf_members_now_ms(members);
    uint64_t wait_ms = until_ms > now_ms ? until_ms - now_ms : 0;
    struct timespec due;
    bool closing;
    int rc = 0;

    clock_gettime(CLOCK_MONOTONIC, &due);
    due.tv_sec += (time_t)(wait_ms / 1000);
    due.tv_nsec += (long)(wait_ms % 1000) * 1000000;
    due.tv_sec += due.tv_nsec / 1000000000;
    due.tv_nsec %= 1000000000;
    pthread_mutex_lock(&members->lock);
    while (!rc && wait_ms && !members->closing && !members->refresh)
        rc = pthread_cond_timedwait(&members->wake, &members->lock, &due);
    *refresh = members->refresh;
    members->refresh = false;
    closing = members->closing;
    pthread_mutex_unlock(&members->lock);
    return closing;
}

/* --- the view --- */

static bool same_node(const struct dctf_node *a, const struct dctf_node *b)
{
    return !strcmp(a->id, b->id) && !strcmp(a->addr, b->addr) && !strcmp(a->zone, b->zone) &&
           !strcmp(a->rack, b->rack) && !strcmp(a->host, b->host) && a->weight == b->weight &&
           a->joined_ms == b->joined_ms && a->incarnation == b->incarnation && a->excluded == b->excluded;
}

static bool same_views(const struct dctf_view *a, const struct dctf_view *b)
{
    if (dctf_view_count(a) != dctf_view_count(b) || dctf_view_self(a) != dctf_view_self(b))
        return false;
    for (uint32_t i = 0; i < dctf_view_count(a); i++) {
        if (!same_node(dctf_view_node(a, i), dctf_view_node(b, i)))
            return false;
    }
    return true;
}

static void tell_excluded(const struct dctf_view *old, const struct dctf_view *view)
{
    for (uint32_t i = 0; i < dctf_view_count(view); i++) {
        const struct dctf_node *node = dctf_view_node(view, i);
        uint32_t before = dctf_view_find(old, node->id);
        bool was = before != DCTF_NODE_NONE && dctf_view_node(old, before)->excluded;

        if (node->excluded && !was)
            dctf_log(DCTF_LOG_WARN, "members", "op=exclude node=%s%s err=%d most others do not reach it",
                node->id, i == dctf_view_self(view) ? " (this one)" : "", (int)DCTF_ERR_TOPOLOGY_TIMEOUT);
        else if (was && !node->excluded)
            dctf_log(DCTF_LOG_INFO, "members", "op=exclude node=%s is taken back", node->id);
    }
}

/* Takes the view. */
static void replace_view(struct dctf_members *members, struct dctf_view *view)
{
    uint64_t now_ms = dctf_members_now_ms(members);
    struct dctf_view *old = members->view; /* only this thread replaces it */

    if (same_views(old, view)) {
        dctf_view_unref(view);
        return;
    }
    pthread_mutex_lock(&members->lock);
    if (dctf_view_hash(old) != dctf_view_hash(view))
        members->changed_ms = now_ms;
    members->view = view;
    pthread_mutex_unlock(&members->lock);
    tell_excluded(old, view);
    dctf_view_unref(old);
    if (members->config.changed)
        members->config.changed(members->config.ctx);
}

/* What `listed` and the guard make together becomes the view. */
static enum dctf_err judge(
    struct dctf_members *members, const struct dctf_node *nodes, size_t count, const char *self, bool lost)
{
    struct dctf_coordinator *coordinator = dctf_members_coordinator(members);
    bool held = members->guard.held_until_ms != 0;
    const uint64_t *out;
    size_t out_count;
    struct dctf_node *all;
    struct dctf_view *view;
    size_t all_count;
    enum dctf_err err = dctf_guard_apply(&members->guard, dctf_members_now_ms(members), members->listed,
        members->listed_count, nodes, count, lost, &all, &all_count);

    if (err)
        return err;
    if (!held && members->guard.held_until_ms)
        dctf_log(DCTF_LOG_WARN, "members", "op=guard missing=%zu of=%zu kept for now", all_count - count,
            all_count);
    else if (held && !members->guard.held_until_ms)
        dctf_log(DCTF_LOG_INFO, "members", "op=guard members=%zu no longer kept", all_count);
    if (coordinator) {
        (void)dctf_coordinator_excluded(coordinator, &out, &out_count);
        dctf_exclusion_apply(all, all_count, out, out_count);
    }
    err = dctf_view_build(all, all_count, self, &view);
    free(all);
    if (err)
        return err;
    if (coordinator)
        dctf_coordinator_excluded_taken(coordinator);
    replace_view(members, view);
    return DCTF_OK;
}

void dctf_members_heard(
    struct dctf_members *members, const struct dctf_node *nodes, size_t count, const char *self, bool lost)
{
    struct dctf_node *copy = calloc(count + 1, sizeof(*copy));
    enum dctf_err err = copy ? DCTF_OK : DCTF_ERR_NO_MEMORY;

    if (copy && count)
        memcpy(copy, nodes, count * sizeof(*nodes));
    if (!err)
        err = judge(members, nodes, count, self, lost);
    if (err) {
        dctf_log(DCTF_LOG_ERROR, "members", "op=view err=%d members=%zu the old view stays", err, count);
        free(copy);
        return;
    }
    free(members->listed);
    members->listed = copy;
    members->listed_count = count;
    dctf_members_confirm(members);
}

void dctf_members_left(struct dctf_members *members, const char *id)
{
    dctf_guard_left(&members->guard, id);
    for (size_t i = 0; i < members->listed_count; i++) {
        if (strcmp(members->listed[i].id, id) != 0)
            continue;
        memmove(&members->listed[i], &members->listed[i + 1],
            (members->listed_count - i - 1) * sizeof(*members->listed));
        members->listed_count--;
        return;
    }
}

void dctf_members_review(struct dctf_members *members, const char *self)
{
    enum dctf_err err;

    if (dctf_members_now_ms(members) < dctf_guard_due_ms(&members->guard))
        return;
    err = judge(members, members->listed, members->listed_count, self, false);
    if (err)
        dctf_log(DCTF_LOG_ERROR, "members", "op=view err=%d the old view stays", err);
}

void dctf_members_exclude(struct dctf_members *members)
{
    const uint64_t *out;
    size_t count;
    enum dctf_err err;

    if (!dctf_coordinator_excluded(dctf_members_coordinator(members), &out, &count))
        return;
    err = judge(members, members->listed, members->listed_count, members->config.self.id, false);
    if (err)
        dctf_log(DCTF_LOG_ERROR, "members", "op=exclude err=%d the old view stays", err);
}

void dctf_members_confirm(struct dctf_members *members)
{
    uint64_t now_ms = dctf_members_now_ms(members);

    pthread_mutex_lock(&members->lock);
    members->confirmed = true;
    members->confirmed_ms = now_ms;
    pthread_mutex_unlock(&members->lock);
}

struct dctf_view *dctf_members_view(struct dctf_members *members)
{
    struct dctf_view *view;

    pthread_mutex_lock(&members->lock);
    view = dctf_view_ref(members->view);
    pthread_mutex_unlock(&members->lock);
    return view;
}

uint64_t dctf_members_stable_ms(struct dctf_members *members)
{
    uint64_t now_ms = dctf_members_now_ms(members), since = UINT64_MAX;

    pthread_mutex_lock(&members->lock);
    if (members->started) /* a list never changes */
        since = now_ms > members->changed_ms ? now_ms - members->changed_ms : 0;
    pthread_mutex_unlock(&members->lock);
    return since;
}

uint64_t dctf_members_age_ms(struct dctf_members *members)
{
    uint64_t now_ms = dctf_members_now_ms(members), age = 0;

    pthread_mutex_lock(&members->lock);
    if (members->started && !members->confirmed)
        age = UINT64_MAX;
    else if (members->started)
        age = now_ms > members->confirmed_ms ? now_ms - members->confirmed_ms : 0;
    pthread_mutex_unlock(&members->lock);
    return age;
}

void dctf_members_refresh(struct dctf_members *members)
{
    pthread_mutex_lock(&members->lock);
    members->refresh = true;
    pthread_cond_signal(&members->wake);
    pthread_mutex_unlock(&members->lock);
}

struct dctf_coordinator *dctf_members_coordinator(struct dctf_members *members)
{
    return members->redis ? dctf_members_redis_coordinator(members->redis) : NULL;
}

/* --- start and end --- */

static void *run(void *ctx)
{
    struct dctf_members *members = ctx;

    if (members->dns)
        dctf_members_dns_run(members);
    else
        dctf_members_redis_run(members);
    return NULL;
}

static enum dctf_err own_text(struct dctf_members *members, const char **field, unsigned i)
{
    members->text[i] = strdup(*field ? *field : "");
    *field = members->text[i];
    return *field ? DCTF_OK : DCTF_ERR_NO_MEMORY;
}

static enum dctf_err own_config(struct dctf_members *members, const struct dctf_members_config *config)
{
    const char **fields[] = {&members->config.peers, &members->config.redis, &members->config.cluster,
        &members->config.redis_user, &members->config.redis_password, &members->config.ca_file};
    enum dctf_err err = DCTF_OK;

    members->config = *config;
    if (config->clock)
        members->clock = *config->clock;
    members->config.clock = &members->clock;
    if (!members->config.heartbeat_ms)
        members->config.heartbeat_ms = HEARTBEAT_MS;
    if (!members->config.poll_ms)
        members->config.poll_ms = POLL_MS;
    if (!members->config.exclude_after_ms)
        members->config.exclude_after_ms = EXCLUDE_AFTER_MS;
    for (unsigned i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        if (own_text(members, fields[i], i))
            err = DCTF_ERR_NO_MEMORY;
    }
    return err;
}

/* A view of the list, complete. */
static enum dctf_err open_list(struct dctf_members *members, char *detail)
{
    struct dctf_address self = {.text = ""};
    struct dctf_node *nodes;
    size_t count;
    enum dctf_err err = dctf_members_list_parse(members->config.peers, detail, &nodes, &count);

    if (err)
        return err;
    if (dctf_address_parse(members->config.self.addr, strlen(members->config.self.addr), 0, &self))
        self.text[0] = '\0';
    err = dctf_view_build(nodes, count, self.text, &members->view);
    free(nodes);
    if (!err && dctf_view_self(members->view) == DCTF_NODE_NONE)
        dctf_log(DCTF_LOG_WARN, "members",
            "op=list self=\"%s\" is not among peers: this node reads only; set advertise to its entry there",
            self.text);
    return err;
}

static enum dctf_err open_alone(struct dctf_members *members)
{
    return dctf_view_build(&members->config.self, 1, members->config.self.id, &members->view);
}

static enum dctf_err open_dns(struct dctf_members *members, char *detail)
{
    enum dctf_err err = open_alone(members);

    if (!err)
        err =
            dctf_members_dns_new(members, members->config.peers + strlen(DNS_PREFIX), detail, &members->dns);
    return err;
}

static enum dctf_err open_place(struct dctf_members *members, char *detail)
{
    const struct dctf_members_config *config = &members->config;

    if (*config->redis && *config->peers) {
        snprintf(detail, DETAIL_BYTES, "peers and redis exclude each other");
        return DCTF_ERR_OPTION_VALUE;
    }
    if (*config->redis) {
        enum dctf_err err = dctf_members_redis_new(members, detail, &members->redis);

        return err ? err : open_alone(members);
    }
    if (!strncmp(config->peers, DNS_PREFIX, strlen(DNS_PREFIX)))
        return open_dns(members, detail);
    return *config->peers ? open_list(members, detail) : open_alone(members);
}

static enum dctf_err start_thread(struct dctf_members *members)
{
    enum dctf_err err;

    if (!members->dns && !members->redis)
        return DCTF_OK;
    members->started = true; /* before the thread, which reads it */
    err = dctf_thread_start("members", run, members, &members->thread);
    if (err)
        members->started = false;
    return err;
}

static void members_free(struct dctf_members *members)
{
    dctf_members_dns_free(members->dns);
    dctf_members_redis_free(members->redis);
    dctf_guard_fini(&members->guard);
    free(members->listed);
    dctf_view_unref(members->view);
    pthread_cond_destroy(&members->wake);
    pthread_mutex_destroy(&members->lock);
    for (unsigned i = 0; i < sizeof(members->text) / sizeof(members->text[0]); i++) {
        if (members->text[i])
            explicit_bzero(members->text[i], strlen(members->text[i]));
        free(members->text[i]);
    }
    free(members);
}

enum dctf_err dctf_members_open(
    const struct dctf_members_config *config, char *detail, struct dctf_members **out)
{
    struct dctf_members *members = calloc(1, sizeof(*members));
    enum dctf_err err;

    *out = NULL;
    *detail = '\0';
    if (!members)
        return DCTF_ERR_NO_MEMORY;
    err = dctf_thread_cond_init(&members->wake);
    if (err) {
        free(members);
        return err;
    }
    pthread_mutex_init(&members->lock, NULL);
    members->rng.state = dctf_rng_seed();
    err = own_config(members, config);
    dctf_guard_init(&members->guard, members->config.heartbeat_ms * DCTF_LEASE_BEATS, HOLD_MS,
        dctf_members_return_ms(members));
    members->changed_ms = dctf_members_now_ms(members);
    if (!err)
        err = open_place(members, detail);
    *out = members; /* before the thread: changed() may look there */
    if (!err)
        err = start_thread(members);
    if (err) {
        *out = NULL;
        members_free(members);
    }
    return err;
}

void dctf_members_close(struct dctf_members *members)
{
    if (!members)
        return;
    pthread_mutex_lock(&members->lock);
    members->closing = true;
    pthread_cond_signal(&members->wake);
    pthread_mutex_unlock(&members->lock);
    if (members->started)
        pthread_join(members->thread, NULL);
    members_free(members);
}
