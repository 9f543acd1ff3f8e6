/* SPDX-License-Identifier: Apache-2.0
 *
 * What peers ask of this node. A shard that is hot here goes out of its file, unless encoded it would arrive
 * sooner; all else is filled into a buffer, from tiers and flights, and sent from there.
 */
#include "cluster/internal.h"

#include "base/budget.h"
#include "base/config.h"
#include "base/metric.h"
#include "base/pool.h"
#include "base/version.h"
#include "cache/store.h"
#include "transport/encoder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUSY_RETRY_MS 20u
/* Answers for each encoder, with the one it is at: a reader's requests come in bursts, and waiting for two
 * others to be encoded is nothing beside sending them. */
#define ENCODE_WAITING_MAX 3u
/* Answers on their way out from which on others are named: the requests of four readers. More of them wait
 * for each other on this node's link. */
#define SENDING_MAX 16u

/* One request for blocks, from its arrival until its bytes are out. */
struct order {
    struct dctf_cluster *cluster;
    struct dctf_peer_request *request;
    struct dctf_version *version;
    struct dctf_fill fill;
    struct dctf_timer timer;
    unsigned refs; /* guarded by lock: the fill or the reply, and the timer */
    bool accepts_lz4;
    bool asked_for_all; /* hop 1: not only for what is here */
    bool sending;       /* guarded by lock */
    uint64_t begun_ns;
    size_t bytes;
    void *plain, *framed; /* of the budget; NULL: none */
    size_t framed_cap;
    int level; /* of encoding */
    struct dctf_shard *pinned;
    char node[DCTF_NODE_ID_MAX + 1];
    uint64_t sums[DCTF_PEER_BLOCKS_MAX];
};

uint64_t dctf_serve_view(void *ctx)
{
    struct dctf_view *view = dctf_cluster_view(ctx);
    uint64_t hash = dctf_view_hash(view);

    dctf_view_unref(view);
    return hash;
}

static void unref(struct order *order)
{
    struct dctf_cluster *cluster = order->cluster;
    bool last;

    pthread_mutex_lock(&cluster->lock);
    last = --order->refs == 0;
    if (last && order->sending)
        cluster->sending--;
    pthread_mutex_unlock(&cluster->lock);
    if (!last)
        return;
    if (order->pinned) {
        dctf_shard_unpin(order->pinned);
        dctf_shard_put(order->pinned);
    }
    if (order->plain)
        dctf_budget_buf_put(cluster->config.budget, order->plain, order->bytes);
    if (order->framed)
        dctf_budget_buf_put(cluster->config.budget, order->framed, order->framed_cap);
    dctf_version_unref(order->version);
    free(order);
    dctf_cluster_release(cluster);
}

static void release(void *ctx)
{
    unref(ctx);
}

static struct dctf_peer_origin origin_of(const struct order *order)
{
    return (struct dctf_peer_origin){
        .from = order->fill.from_origin ? DCTF_PEER_FROM_ORIGIN : DCTF_PEER_FROM_CACHE,
        .waited_us = (dctf_clock_mono_ns(&order->cluster->clock) - order->begun_ns) / 1000,
    };
}

/* Who asks, as a member; NULL when it is none. */
static struct dctf_peer *asker_locked(const struct order *order)
{
    struct dctf_cluster *cluster = order->cluster;
    uint32_t at = dctf_view_find(cluster->view, order->node);

    return at == DCTF_NODE_NONE ? NULL : dctf_peer_of_locked(cluster, dctf_view_node(cluster->view, at));
}

static uint64_t extent_key_of(const struct order *order)
{
    return dctf_extent_key(order->cluster->config.dataset, order->version->key, order->version->etag,
        order->fill.first / DCTF_EXTENT_BLOCKS);
}

/* The blocks go out now. */
static void count_out(struct order *order, size_t bytes)
{
    uint64_t key = extent_key_of(order);
    struct dctf_peer *peer;

    pthread_mutex_lock(&order->cluster->lock);
    order->cluster->counts.peer_bytes_out += bytes;
    order->sending = true;
    order->cluster->sending++;
    peer = asker_locked(order);
    if (peer)
        peer->bytes_out += bytes;
    if (peer && order->asked_for_all)
        dctf_tracker_fetched(&order->cluster->tracker, key, peer);
    pthread_mutex_unlock(&order->cluster->lock);
}

/* --- encoding --- */

/* How the blocks go: by what was seen on the way to who asks. */
static int choose_level(struct order *order)
{
    struct dctf_cluster *cluster = order->cluster;
    struct dctf_peer_path path;
    int level = DCTF_ENCODE_PLAIN;
    struct dctf_peer *peer;

    if (!order->accepts_lz4 || !cluster->encoders)
        return DCTF_ENCODE_PLAIN;
    if (cluster->config.options->encoder == DCTF_ENCODER_LZ4)
        return DCTF_ENCODE_FAST;
    dctf_peer_request_path(order->request, &path);
    pthread_mutex_lock(&cluster->lock);
    peer = asker_locked(order);
    if (peer) {
        dctf_encoder_rate(&peer->encoder, path.rate);
        level = dctf_encoder_choose(&peer->encoder, order->bytes, order->fill.count,
            dctf_pool_load(cluster->encoders) < ENCODE_WAITING_MAX * cluster->encoder_threads ? cluster->cores
                                                                                              : 0,
            order->begun_ns / 1000000);
    }
    pthread_mutex_unlock(&cluster->lock);
    return level;
}

/* Encode all blocks into frames; returns their length, 0 when there is no memory for them. */
static size_t encode(struct order *order)
{
    struct dctf_cluster *cluster = order->cluster;
    uint64_t begun = dctf_clock_mono_ns(&cluster->clock);
    struct dctf_peer *peer;
    size_t done = 0;

    order->framed_cap = (size_t)order->fill.count * DCTF_FRAME_MAX;
    order->framed = dctf_budget_buf_get(cluster->config.budget, order->framed_cap);
    if (!order->framed)
        return 0;
    for (uint32_t i = 0; i < order->fill.count; i++) {
        int level = order->level; /* a block that does not shrink goes plain in its frame */

        done += dctf_frame_encode((char *)order->plain + (size_t)i * DCTF_BLOCK_BYTES,
            dctf_block_len(order->version->size, order->fill.first + i), &level,
            (char *)order->framed + done);
    }
    pthread_mutex_lock(&cluster->lock);
    peer = asker_locked(order);
    if (peer)
        dctf_encoder_encoded(&peer->encoder, order->level, order->bytes,
            done - (size_t)order->fill.count * DCTF_FRAME_HEAD_BYTES,
            dctf_clock_mono_ns(&cluster->clock) - begun);
    pthread_mutex_unlock(&cluster->lock);
    return done;
}

/* --- answers --- */

static unsigned pieces_of(const struct order *order)
{
    return dctf_spare_pieces(order->fill.first, order->fill.count);
}

/* Where this node has no room for what it is the home of: whether the asker is the first of the next in rank
 * that has (cluster/spare.h). */
static bool should_keep(struct dctf_fill *fill)
{
    struct order *order = fill->ctx;
    struct dctf_cluster *cluster = order->cluster;
    uint64_t key = extent_key_of(order);
    uint32_t ranks[DCTF_SPARE_RANKS], asker;
    size_t count, place;
    bool keep;

    if (!order->asked_for_all || !(dctf_spare_home_refused(&cluster->spare, key) & pieces_of(order)))
        return false;
    pthread_mutex_lock(&cluster->lock);
    count = dctf_view_rank(cluster->view, key, ranks, DCTF_SPARE_RANKS);
    asker = dctf_view_find(cluster->view, order->node);
    for (place = 1; place < count && ranks[place] != asker; place++) {
        const struct dctf_peer *before =
            dctf_peer_of_locked(cluster, dctf_view_node(cluster->view, ranks[place]));

        if (before && dctf_peer_usable_locked(before) && !before->spare_full)
            place = count; /* it is told when it asks */
    }
    keep = place < count && ranks[0] == dctf_view_self(cluster->view);
    pthread_mutex_unlock(&cluster->lock);
    if (keep)
        dctf_spare_tell(&cluster->spare, key, pieces_of(order));
    return keep;
}

static void send_memory(struct order *order, size_t framed)
{
    struct dctf_peer_origin origin = origin_of(order);

    count_out(order, framed ? framed : order->bytes);
    dctf_peer_reply_memory(order->request, framed ? order->framed : order->plain,
        framed ? framed : order->bytes, framed != 0, order->sums, &origin, release, order);
}

static void encode_and_send(void *ctx)
{
    send_memory(ctx, encode(ctx));
}

static void reply(struct order *order)
{
    if (order->fill.told)
        dctf_peer_reply_spare(order->request, DCTF_PEER_SPARE_KEEP);
    for (uint32_t i = 0; i < order->fill.count; i++)
        order->sums[i] = dctf_hash64((char *)order->plain + (size_t)i * DCTF_BLOCK_BYTES,
            dctf_block_len(order->version->size, order->fill.first + i));
    /* Not on this thread: it may be one that transfers wait for. */
    if (order->level == DCTF_ENCODE_PLAIN ||
        dctf_pool_submit(order->cluster->encoders, encode_and_send, order))
        send_memory(order, 0);
}

static void filled(struct dctf_fill *fill, enum dctf_err err)
{
    struct order *order = fill->ctx;

    if (dctf_timer_cancel(order->cluster->config.timers, &order->timer))
        unref(order);
    if (!err) {
        reply(order);
        return;
    }
    dctf_peer_reply_error(
        order->request, err == DCTF_ERR_NO_MEMORY ? DCTF_ERR_PEER_BUSY : err, BUSY_RETRY_MS, NULL);
    unref(order);
}

static void too_late(void *ctx)
{
    struct order *order = ctx;

    dctf_fill_cancel(&order->fill, DCTF_ERR_DEADLINE);
    unref(order);
}

/* A shard that is hot here goes out of its file. */
static bool reply_from_file(struct order *order)
{
    struct dctf_peer_origin origin = origin_of(order);
    struct dctf_shard *shard;
    int fd = -1;

    if (dctf_shard_get(order->cluster->config.store, order->version, &shard))
        return false;
    fd = dctf_shard_pin(shard);
    if (fd < 0) {
        dctf_shard_put(shard);
        return false;
    }
    order->pinned = shard;
    dctf_shard_sums(shard, order->fill.first, order->fill.count, order->sums);
    count_out(order, order->bytes);
    dctf_peer_reply_file(order->request, fd, (uint64_t)order->fill.first * DCTF_BLOCK_BYTES, order->bytes,
        order->sums, &origin, release, order);
    return true;
}

static struct order *order_new(
    struct dctf_cluster *cluster, struct dctf_peer_request *request, const struct dctf_peer_asked *asked)
{
    const struct dctf_peer_ask *ask = &asked->ask;
    struct order *order = calloc(1, sizeof(*order));

    if (!order)
        return NULL;
    if (dctf_version_new(cluster->config.dataset, ask->key, ask->etag, ask->size, cluster->config.feature_by,
            &order->version)) {
        free(order);
        return NULL;
    }
    order->cluster = cluster;
    order->request = request;
    order->refs = 1;
    order->accepts_lz4 = asked->accepts_lz4;
    order->asked_for_all = asked->hop != 0;
    order->begun_ns = dctf_clock_mono_ns(&cluster->clock);
    order->bytes = (size_t)dctf_peer_ask_bytes(ask);
    snprintf(order->node, sizeof(order->node), "%s", asked->node);
    order->fill = (struct dctf_fill){
        .cluster = cluster,
        .version = order->version,
        .first = ask->first,
        .count = ask->count,
        .want_first = ask->want_count ? ask->want_first : ask->first,
        .want_count = ask->want_count ? ask->want_count : ask->count,
        .class = asked->class,
        .probe = asked->hop == 0,
        .offer = should_keep,
        .done = filled,
        .ctx = order,
    };
    return order;
}

/* What the peer would wait for here, while this node does not get at the source, is at others sooner. */
static enum dctf_err is_in_vain(struct order *order)
{
    struct dctf_cluster *cluster = order->cluster;
    enum dctf_err err = DCTF_OK;
    bool on_its_way;

    pthread_mutex_lock(&cluster->lock);
    if (order->asked_for_all && cluster->source.state != DCTF_BREAKER_CLOSED)
        err = cluster->source_err;
    pthread_mutex_unlock(&cluster->lock);
    if (!err || dctf_fill_have(cluster, order->version, order->fill.first, order->fill.count, &on_its_way))
        return DCTF_OK;
    pthread_mutex_lock(&cluster->lock);
    if (!dctf_cluster_source_is_off_locked(cluster))
        err = DCTF_OK;
    pthread_mutex_unlock(&cluster->lock);
    return err;
}

static void serve_blocks(struct order *order, uint64_t deadline_ms)
{
    struct dctf_cluster *cluster = order->cluster;
    enum dctf_err err = is_in_vain(order);

    if (err) {
        dctf_peer_reply_error(order->request, err, 0, NULL);
        unref(order);
        return;
    }
    order->level = choose_level(order);
    if (order->level == DCTF_ENCODE_PLAIN && reply_from_file(order))
        return;
    order->plain = dctf_budget_buf_get(cluster->config.budget, order->bytes);
    if (!order->plain) {
        dctf_peer_reply_error(order->request, DCTF_ERR_PEER_BUSY, BUSY_RETRY_MS, NULL);
        unref(order);
        return;
    }
    order->fill.buf = order->plain;
    pthread_mutex_lock(&cluster->lock);
    order->refs += 2; /* of the timer, and of this function: the fill may end at once */
    pthread_mutex_unlock(&cluster->lock);
    if (deadline_ms > cluster->read_deadline_ms)
        deadline_ms = cluster->read_deadline_ms;
    if (dctf_timer_arm(cluster->config.timers, &order->timer, deadline_ms, too_late, order))
        unref(order); /* the asker has a deadline of its own */
    dctf_fill_start(&order->fill);
    unref(order);
}

/* Whether the home of an extent is asking who may hold what it has no room for. */
static bool is_home_asking(struct order *order, uint64_t extent_key)
{
    struct dctf_view *view = dctf_cluster_view(order->cluster);
    uint32_t ranks[DCTF_SPARE_RANKS];
    size_t count = dctf_view_rank(view, extent_key, ranks, DCTF_SPARE_RANKS);
    bool asking = dctf_view_place(ranks, count, dctf_view_self(view)) < count &&
                  ranks[0] == dctf_view_find(view, order->node);

    dctf_view_unref(view);
    return asking;
}

static void serve_have(struct order *order)
{
    struct dctf_cluster *cluster = order->cluster;
    uint64_t key = extent_key_of(order);
    bool on_its_way;
    bool here = dctf_fill_have(cluster, order->version, order->fill.first, order->fill.count, &on_its_way);

    if (here && is_home_asking(order, key))
        dctf_spare_asked(&cluster->spare, key, pieces_of(order));
    else if (!here && dctf_store_spare_is_full(cluster->config.store))
        dctf_peer_reply_spare(order->request, DCTF_PEER_SPARE_FULL);
    dctf_peer_reply_have(order->request, here && !on_its_way, on_its_way);
    unref(order);
}

/* Much is on its way out already: names others that fetched the extent lately, who may have it. `names` holds
 * DCTF_PEER_TRY_BYTES. */
static bool name_others(struct order *order, const struct dctf_peer_asked *asked, char *names)
{
    struct dctf_cluster *cluster = order->cluster;
    uint64_t key = extent_key_of(order);
    struct dctf_peer *nodes[DCTF_TRACKER_NODES];
    size_t count, named = 0, len = 0;

    if (!order->asked_for_all || asked->tried || asked->class == DCTF_FETCH_REPLICATION)
        return false;
    pthread_mutex_lock(&cluster->lock);
    count = cluster->sending < SENDING_MAX
                ? 0
                : dctf_tracker_nodes(&cluster->tracker, key, nodes, DCTF_TRACKER_NODES);
    for (size_t i = 0; i < count && named < DCTF_PEER_TRY_MAX; i++) {
        if (strcmp(nodes[i]->id, order->node) != 0 && dctf_peer_usable_locked(nodes[i]))
            len += (size_t)snprintf(
                names + len, DCTF_PEER_TRY_BYTES - len, "%s%s", named++ ? "," : "", nodes[i]->id);
    }
    pthread_mutex_unlock(&cluster->lock);
    if (named)
        dctf_metric_add(cluster->config.metrics, DCTF_METRIC_CLUSTER_NAMED, 1);
    return named != 0;
}

static void handle_blocks(struct order *order, const struct dctf_peer_asked *asked)
{
    char names[DCTF_PEER_TRY_BYTES];

    if (!name_others(order, asked, names)) {
        serve_blocks(order, asked->deadline_ms);
        return;
    }
    dctf_peer_reply_error(order->request, DCTF_ERR_PEER_BUSY, BUSY_RETRY_MS, names);
    unref(order);
}

void dctf_serve_handle(void *ctx, struct dctf_peer_request *request, const struct dctf_peer_asked *asked)
{
    struct dctf_cluster *cluster = ctx;
    struct order *order;

    if (asked->ask.dataset != cluster->config.dataset) {
        dctf_peer_reply_error(request, DCTF_ERR_BAD_REQUEST, 0, NULL);
        return;
    }
    if (!dctf_cluster_hold(cluster)) {
        dctf_peer_reply_error(request, DCTF_ERR_SHUTTING_DOWN, 0, NULL);
        return;
    }
    if (dctf_peer_is_meta(asked->ask.op)) {
        dctf_listings_serve(cluster, request, asked);
        return;
    }
    order = order_new(cluster, request, asked);
    if (!order) {
        dctf_peer_reply_error(request, DCTF_ERR_PEER_BUSY, BUSY_RETRY_MS, NULL);
        dctf_cluster_release(cluster);
        return;
    }
    if (asked->ask.op == DCTF_PEER_HAVE)
        serve_have(order);
    else
        handle_blocks(order, asked);
}
