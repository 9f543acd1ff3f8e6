/* SPDX-License-Identifier: Apache-2.0
 *
 * Start and end of the cluster, and what passes it through: lists and heads go to the upstream as they are.
 */
#include "cluster/internal.h"

#include "base/config.h"
#include "base/log.h"
#include "base/pool.h"
#include "base/str.h"
#include "base/thread.h"
#include "cache/store.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CLOSE_ROUND_MS 20u
#define SOURCE_CONCURRENCY_MIN 2u
#define PROBE_MS 20u     /* an answer to `have` comes from memory */
#define ENCODE_QUEUE 64u /* replies waiting to be encoded; more go plain */
#define UNHEARD_ROUND_MS 50u
#define HEDGE_PER_FETCH 0.05
#define HEDGE_BURST 16
#define HEDGE_AT_ONCE 4
/* A start does not wait for a quiet membership longer than so many times settle_ms. */
#define SETTLE_FACTOR 3u

static const struct dctf_origin_ops ops;

bool dctf_cluster_is_wanted(const struct dctf_config *options)
{
    return *options->listen || *options->peers || *options->redis;
}

bool dctf_cluster_is_of_one_node(enum dctf_err err)
{
    switch (err) {
    case DCTF_ERR_ORIGIN_UNREACHABLE:
    case DCTF_ERR_ORIGIN_TLS:
    case DCTF_ERR_ORIGIN_AUTH:
    case DCTF_ERR_CREDENTIALS_NONE:
    case DCTF_ERR_CREDENTIALS_FAILED:
    case DCTF_ERR_CLOCK_SKEW:
        return true;
    default:
        return false;
    }
}

uint64_t dctf_cluster_now_ms(const struct dctf_cluster *cluster)
{
    return dctf_clock_mono_ms(&cluster->clock);
}

bool dctf_cluster_source_is_off_locked(struct dctf_cluster *cluster)
{
    return !dctf_breaker_allows(&cluster->source, dctf_cluster_now_ms(cluster));
}

bool dctf_cluster_hold(struct dctf_cluster *cluster)
{
    bool held;

    pthread_mutex_lock(&cluster->lock);
    held = !cluster->closing;
    cluster->alive += held;
    pthread_mutex_unlock(&cluster->lock);
    return held;
}

void dctf_cluster_release(struct dctf_cluster *cluster)
{
    pthread_mutex_lock(&cluster->lock);
    assert(cluster->alive > 0);
    if (--cluster->alive == 0)
        pthread_cond_broadcast(&cluster->idle);
    pthread_mutex_unlock(&cluster->lock);
}

struct dctf_view *dctf_cluster_view(struct dctf_cluster *cluster)
{
    struct dctf_view *view;

    pthread_mutex_lock(&cluster->lock);
    view = dctf_view_ref(cluster->view);
    pthread_mutex_unlock(&cluster->lock);
    return view;
}

bool dctf_cluster_is_young(const struct dctf_cluster *cluster)
{
    return dctf_cluster_now_ms(cluster) - cluster->started_ms <
           SETTLE_FACTOR * cluster->config.options->settle_ms;
}

uint64_t dctf_cluster_settle_ms(struct dctf_cluster *cluster)
{
    uint64_t settle = cluster->config.options->settle_ms;
    uint64_t stable = dctf_members_stable_ms(cluster->members);
    uint64_t since = dctf_cluster_now_ms(cluster) - cluster->started_ms;
    uint64_t quiet, end;
    size_t members, unheard;

    pthread_mutex_lock(&cluster->lock);
    members = dctf_view_count(cluster->view);
    unheard = dctf_peers_unheard_locked(cluster);
    pthread_mutex_unlock(&cluster->lock);
    if (cluster->config.options->nodes && members >= cluster->config.options->nodes)
        stable = settle;
    if (since >= SETTLE_FACTOR * settle || (stable >= settle && !unheard))
        return 0;
    /* Members that have not answered yet may be starting, and may have what is missed here. */
    quiet = stable < settle ? settle - stable : UNHEARD_ROUND_MS;
    end = SETTLE_FACTOR * settle - since;
    return quiet < end ? quiet : end;
}

/* This node's part of what all of them may ask of the source at once. */
static unsigned source_concurrency(const struct dctf_cluster *cluster, size_t members)
{
    const struct dctf_config *options = cluster->config.options;
    uint64_t part = options->cluster_origin_concurrency;

    if (members)
        part = (part + members - 1) / members;
    if (part < SOURCE_CONCURRENCY_MIN)
        part = SOURCE_CONCURRENCY_MIN;
    return (unsigned)(part < options->origin_concurrency ? part : options->origin_concurrency);
}

/* The members as placement sees them. Without memory for what is this zone's alone, homes are everywhere. */
static struct dctf_view *placing_view(struct dctf_cluster *cluster)
{
    struct dctf_view *view = dctf_members_view(cluster->members), *own;

    if (cluster->config.options->zone_fill != DCTF_ZONE_FILL_ORIGIN || dctf_view_within_zone(view, &own))
        return view;
    dctf_view_unref(view);
    return own;
}

static void view_changed(void *ctx)
{
    struct dctf_cluster *cluster = ctx;
    struct dctf_view *view, *old;

    pthread_mutex_lock(&cluster->lock);
    view = placing_view(cluster); /* under the lock, so that an older one never comes last */
    old = cluster->view;
    cluster->view = dctf_view_ref(view);
    pthread_mutex_unlock(&cluster->lock);
    dctf_fetch_limit(cluster->upstream, source_concurrency(cluster, dctf_view_count(view)));
    if (dctf_view_hash(old) != dctf_view_hash(view))
        dctf_log(DCTF_LOG_INFO, "cluster", "op=view members=%zu before=%zu", dctf_view_count(view),
            dctf_view_count(old));
    dctf_view_unref(old);
    dctf_view_unref(view);
}

/* --- start --- */

static void fill_self(struct dctf_cluster *cluster, struct dctf_node *self)
{
    const struct dctf_config *options = cluster->config.options;
    const char *addr = *options->advertise ? options->advertise : options->listen;

    *self = (struct dctf_node){.weight = *options->listen && options->serve ? options->cache_size : 0};
    snprintf(self->addr, sizeof(self->addr), "%s", addr);
    snprintf(self->zone, sizeof(self->zone), "%s", options->zone);
    snprintf(self->rack, sizeof(self->rack), "%s", options->rack);
    if (gethostname(self->host, sizeof(self->host) - 1))
        self->host[0] = '\0';
    if (*options->peers) /* in a list the address is all that everybody knows of a member */
        snprintf(self->id, sizeof(self->id), "%s", addr);
    else
        snprintf(self->id, sizeof(self->id), "%s", *options->node ? options->node : self->host);
    self->incarnation = dctf_clock_wall_ms(&cluster->clock);
    memcpy(cluster->id, self->id, sizeof(cluster->id));
}

/* The id by which the others know this node: a list spells addresses in its own way. */
static void know_thyself(struct dctf_cluster *cluster)
{
    struct dctf_view *view = dctf_cluster_view(cluster);

    if (dctf_view_self(view) != DCTF_NODE_NONE)
        memcpy(cluster->id, dctf_view_node(view, dctf_view_self(view))->id, sizeof(cluster->id));
    dctf_view_unref(view);
}

static enum dctf_err open_members(struct dctf_cluster *cluster, char *detail)
{
    const struct dctf_config *options = cluster->config.options;
    struct dctf_members_config members = {
        .peers = options->peers,
        .redis = options->redis,
        .cluster = options->cluster,
        .redis_user = options->redis_user,
        .redis_password = options->redis_password,
        .ca_file = options->ca_file,
        .dataset = cluster->config.dataset,
        .heartbeat_ms = options->heartbeat_ms,
        .poll_ms = options->policy_poll_ms,
        .exclude_after_ms = options->exclude_after_ms,
        .clock = &cluster->clock,
        .changed = view_changed,
        .ctx = cluster,
    };
    enum dctf_err err;

    fill_self(cluster, &members.self);
    /* changed() may come before open() has returned: it finds a view to replace. */
    err = dctf_view_build(&members.self, 1, members.self.id, &cluster->view);
    if (!err)
        err = dctf_members_open(&members, detail, &cluster->members);
    if (!err) {
        view_changed(cluster);
        know_thyself(cluster);
    }
    return err;
}

static enum dctf_err open_encoders(struct dctf_cluster *cluster)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);

    cluster->cores = cores > 0 ? (unsigned)cores : 1;
    cluster->encoder_threads = dctf_encoder_pool_size(cluster->cores, ENCODE_QUEUE);
    return dctf_pool_new(&(struct dctf_pool_config){"dctf-encode", cluster->encoder_threads, ENCODE_QUEUE},
        &cluster->encoders);
}

static enum dctf_err open_transport(struct dctf_cluster *cluster, char *detail)
{
    const struct dctf_config *options = cluster->config.options;
    bool tls = *options->peer_cert;
    struct dctf_peer_client_config client = {
        .node = cluster->id,
        .secret = options->cluster_secret,
        .cert_file = tls ? options->peer_cert : NULL,
        .key_file = tls ? options->peer_key : NULL,
        .ca_file = tls ? options->peer_ca : NULL,
        .accept_lz4 = options->encoder != DCTF_ENCODER_OFF,
        .metrics = cluster->config.metrics,
        .clock = &cluster->clock,
    };
    struct dctf_peer_server_config server = {
        .listen = options->listen,
        .secret = options->cluster_secret,
        .cert_file = client.cert_file,
        .key_file = client.key_file,
        .ca_file = client.ca_file,
        .metrics = cluster->config.metrics,
        .handle = dctf_serve_handle,
        .view = dctf_serve_view,
        .ctx = cluster,
    };
    enum dctf_err err = dctf_peer_client_new(&client, &cluster->client);

    if (!err && *options->listen && options->encoder != DCTF_ENCODER_OFF)
        err = open_encoders(cluster);
    if (!err && *options->listen)
        err = dctf_peer_server_start(&server, detail, &cluster->server);
    return err;
}

static enum dctf_err open_upstream(struct dctf_cluster *cluster)
{
    struct dctf_fetch_config fetch = {
        .origin = cluster->config.upstream,
        .timers = cluster->config.timers,
        .metrics = cluster->config.metrics,
        .clock = &cluster->clock,
        .concurrency = (unsigned)cluster->config.options->origin_concurrency,
        .retries = (unsigned)cluster->config.options->origin_retries,
        .retry_budget = (unsigned)cluster->config.options->origin_retry_budget,
        .seed = dctf_rng_seed(),
    };

    return dctf_fetch_new(&fetch, &cluster->upstream);
}

static enum dctf_claim claim_of(void *ctx, const struct dctf_version *version, uint32_t first, uint32_t count)
{
    struct dctf_cluster *cluster = ctx;
    struct dctf_view *view = dctf_cluster_view(cluster);
    uint64_t key =
        dctf_extent_key(cluster->config.dataset, version->key, version->etag, first / DCTF_EXTENT_BLOCKS);
    uint32_t ranks[DCTF_SPARE_RANKS];
    size_t ranked = dctf_view_rank(view, key, ranks, DCTF_SPARE_RANKS);
    size_t own = dctf_view_place(ranks, ranked, dctf_view_self(view));
    enum dctf_claim claim = DCTF_CLAIM_COPY;

    if (!ranked || !own)
        claim = DCTF_CLAIM_SHARE;
    else if (own < ranked && dctf_spare_adopted(&cluster->spare, key) & dctf_spare_pieces(first, count))
        claim = DCTF_CLAIM_SPARE;
    dctf_view_unref(view);
    return claim;
}

static void cluster_free(struct dctf_cluster *cluster)
{
    struct dctf_list *node;

    dctf_copies_close(cluster);
    dctf_members_close(cluster->members);
    dctf_pool_free(cluster->encoders);
    dctf_pool_free(cluster->listings.pool);
    free(cluster->heat.entries);
    if (cluster->client)
        dctf_peer_client_free(cluster->client);
    if (cluster->upstream)
        dctf_fetch_free(cluster->upstream);
    while ((node = dctf_list_pop(&cluster->peers)))
        free(dctf_list_entry(node, struct dctf_peer, link));
    dctf_view_unref(cluster->view);
    pthread_cond_destroy(&cluster->idle);
    pthread_mutex_destroy(&cluster->lock);
    free(cluster);
}

enum dctf_err dctf_cluster_new(
    const struct dctf_cluster_config *config, char *detail, struct dctf_cluster **out)
{
    struct dctf_cluster *cluster = calloc(1, sizeof(*cluster));
    enum dctf_err err;

    *out = NULL;
    *detail = '\0';
    if (!cluster)
        return DCTF_ERR_NO_MEMORY;
    err = dctf_thread_cond_init(&cluster->idle);
    if (err) {
        free(cluster);
        return err;
    }
    pthread_mutex_init(&cluster->lock, NULL);
    cluster->base.ops = &ops;
    cluster->config = *config;
    if (config->clock)
        cluster->clock = *config->clock;
    cluster->started_ms = dctf_cluster_now_ms(cluster);
    cluster->read_deadline_ms = config->options->read_deadline_ms;
    cluster->probe_ms = PROBE_MS;
    cluster->rng.state = dctf_rng_seed();
    dctf_hedge_init(&cluster->hedge, HEDGE_PER_FETCH, HEDGE_BURST, HEDGE_AT_ONCE);
    dctf_list_init(&cluster->peers);
    dctf_list_init(&cluster->gets);
    dctf_list_init(&cluster->listings.errands);
    for (unsigned i = 0; i < DCTF_FLIGHT_BUCKETS; i++)
        dctf_list_init(&cluster->flights[i]);
    err = open_upstream(cluster);
    if (!err)
        err = open_members(cluster, detail); /* whose changes limit the upstream */
    if (!err)
        err = dctf_copies_open(cluster);
    if (!err)
        err = open_transport(cluster, detail); /* last: peers may ask from here on */
    if (err) {
        cluster_free(cluster);
        return err;
    }
    dctf_store_set_share(config->store, claim_of, cluster);
    dctf_peers_tick(cluster);
    *out = cluster;
    return DCTF_OK;
}

struct dctf_origin *dctf_cluster_origin(struct dctf_cluster *cluster)
{
    return &cluster->base;
}

/* --- the origin --- */

static struct dctf_origin *upstream_of(struct dctf_origin *origin)
{
    return ((struct dctf_cluster *)origin)->config.upstream;
}

static enum dctf_err pass_list(struct dctf_origin *origin, struct dctf_origin_list *list)
{
    return upstream_of(origin)->ops->list(upstream_of(origin), list);
}

static enum dctf_err pass_head(struct dctf_origin *origin, struct dctf_origin_head *head)
{
    return upstream_of(origin)->ops->head(upstream_of(origin), head);
}

static void pass_cancel_list(struct dctf_origin *origin, struct dctf_origin_list *list)
{
    upstream_of(origin)->ops->cancel_list(upstream_of(origin), list);
}

static void pass_cancel_head(struct dctf_origin *origin, struct dctf_origin_head *head)
{
    upstream_of(origin)->ops->cancel_head(upstream_of(origin), head);
}

static enum dctf_err pass_check(struct dctf_origin *origin, uint64_t deadline_ms, char *detail)
{
    return upstream_of(origin)->ops->check(upstream_of(origin), deadline_ms, detail);
}

static void pass_examine(struct dctf_origin *origin, uint64_t deadline_ms,
    void (*each)(void *ctx, const struct dctf_origin_step *step), void *ctx)
{
    struct dctf_origin *upstream = upstream_of(origin);

    if (upstream->ops->examine)
        upstream->ops->examine(upstream, deadline_ms, each, ctx);
}

/* Wait until nobody holds on; each round cancels what was begun only after the round before. */
static void drain(struct dctf_cluster *cluster)
{
    for (;;) {
        struct timespec due;
        bool idle;

        dctf_gets_cancel_all(cluster);
        dctf_flights_cancel_all(cluster);
        dctf_listings_cancel_all(cluster);
        clock_gettime(CLOCK_MONOTONIC, &due);
        due.tv_nsec += CLOSE_ROUND_MS * 1000000;
        due.tv_sec += due.tv_nsec / 1000000000;
        due.tv_nsec %= 1000000000;
        pthread_mutex_lock(&cluster->lock);
        if (cluster->alive)
            pthread_cond_timedwait(&cluster->idle, &cluster->lock, &due);
        idle = cluster->alive == 0;
        pthread_mutex_unlock(&cluster->lock);
        if (idle)
            return;
    }
}

static void close_cluster(struct dctf_origin *origin, uint64_t wait_ms)
{
    struct dctf_cluster *cluster = (struct dctf_cluster *)origin;

    (void)wait_ms; /* every wait in here has a deadline of its own */
    dctf_copies_close(cluster);
    pthread_mutex_lock(&cluster->lock);
    cluster->closing = true;
    pthread_mutex_unlock(&cluster->lock);
    dctf_peers_stop(cluster);
    dctf_gets_cancel_all(cluster);
    dctf_flights_cancel_all(cluster);
    if (cluster->server)
        dctf_peer_server_stop(cluster->server);
    drain(cluster);
    dctf_store_set_share(cluster->config.store, NULL, NULL);
    cluster_free(cluster);
}

static const struct dctf_origin_ops ops = {
    .scheme = "cluster",
    .list = pass_list,
    .head = pass_head,
    .get = dctf_cluster_get,
    .cancel_list = pass_cancel_list,
    .cancel_head = pass_cancel_head,
    .cancel_get = dctf_cluster_cancel_get,
    .check = pass_check,
    .examine = pass_examine,
    .close = close_cluster,
};

/* --- telling --- */

size_t dctf_cluster_homes(struct dctf_cluster *cluster, const struct dctf_version *version, uint32_t block,
    struct dctf_node *out, size_t max)
{
    struct dctf_view *view = dctf_cluster_view(cluster);
    uint64_t key =
        dctf_extent_key(cluster->config.dataset, version->key, version->etag, block / DCTF_EXTENT_BLOCKS);
    uint32_t found[16];
    size_t count = dctf_view_replicas(view, key, found, max < 16 ? max : 16);

    for (size_t i = 0; i < count; i++)
        out[i] = *dctf_view_node(view, found[i]);
    dctf_view_unref(view);
    return count;
}

void dctf_cluster_status(struct dctf_cluster *cluster, struct dctf_cluster_status *out)
{
    bool settled = dctf_cluster_settle_ms(cluster) == 0;
    uint64_t age = dctf_members_age_ms(cluster->members);

    pthread_mutex_lock(&cluster->lock);
    *out = cluster->counts;
    out->view_hash = dctf_view_hash(cluster->view);
    out->flights = cluster->flight_count;
    pthread_mutex_unlock(&cluster->lock);
    out->settled = settled;
    out->view_age_ms = age;
    out->port = cluster->server ? dctf_peer_server_port(cluster->server) : 0;
}

static void describe_locked(
    struct dctf_cluster *cluster, const struct dctf_node *node, bool self, struct dctf_peer_status *out)
{
    struct dctf_peer *peer = self ? NULL : dctf_peer_of_locked(cluster, node);
    uint64_t now_ms = dctf_cluster_now_ms(cluster);

    *out = (struct dctf_peer_status){.node = *node, .self = self};
    if (!peer)
        return;
    out->breaker = peer->breaker.state;
    out->p50_us = dctf_quantile_ns(&peer->first_byte, 500) / 1000;
    out->p99_us = dctf_quantile_ns(&peer->first_byte, 990) / 1000;
    out->rtt_us = peer->gate.current_us;
    out->min_rtt_us = dctf_gate_min_rtt_us(&peer->gate, now_ms);
    out->bytes_in = peer->bytes_in;
    out->bytes_out = peer->bytes_out;
    out->requests = peer->requests;
    out->failures = peer->failures;
    out->gate_window_kib = (unsigned)(peer->gate.window / 1024);
    out->gate_open = dctf_gate_look(&peer->gate, now_ms) != DCTF_GATE_NO;
}

void dctf_cluster_each_peer(
    struct dctf_cluster *cluster, bool (*visit)(void *ctx, const struct dctf_peer_status *peer), void *ctx)
{
    struct dctf_view *view = dctf_cluster_view(cluster);
    bool more = true;

    for (uint32_t i = 0; more && i < dctf_view_count(view); i++) {
        struct dctf_peer_status status;

        pthread_mutex_lock(&cluster->lock);
        describe_locked(cluster, dctf_view_node(view, i), i == dctf_view_self(view), &status);
        pthread_mutex_unlock(&cluster->lock);
        more = visit(ctx, &status);
    }
    dctf_view_unref(view);
}
