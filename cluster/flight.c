/* SPDX-License-Identifier: Apache-2.0
 *
 * A flight brings a run of blocks of one extent to this node, once for all who want
 * them. It stands in the table from before its first request until its bytes are in the
 * tiers (or the tiers did not want them), so that a block is never neither here nor on its way.
 *
 *   NEW → MEMORY → SETTLE → PROBE → SOURCE → READY → (out of the table)
 *            ↻        ↻       ↻                ↑
 *                             └────────────────┤    a past home had it
 *   any of the first five → FAILED (out of the table at once; waiters see the error)
 *
 * MEMORY waits for a buffer, SETTLE for the membership to be quiet or a peer that was busy, PROBE asks others
 * that may have it (flight_probe.c). References: the table, whoever runs a step, the source while it holds
 * the buffer.
 */
#include "cluster/flight_internal.h"

#include "base/budget.h"
#include "base/log.h"
#include "base/metric.h"
#include "base/pool.h"
#include "cache/store.h"

#include <stdlib.h>
#include <string.h>

#define MEMORY_RETRY_MS 10u

static void step(struct dctf_flight *flight);

static struct dctf_list *bucket_of(
    struct dctf_cluster *cluster, const struct dctf_version *version, uint32_t block)
{
    size_t at = (size_t)(version->id.bytes[0] ^ version->id.bytes[5] ^ block / DCTF_EXTENT_BLOCKS * 7);

    return &cluster->flights[at % DCTF_FLIGHT_BUCKETS];
}

struct dctf_flight *dctf_flight_find_locked(
    struct dctf_cluster *cluster, const struct dctf_version *version, uint32_t block, uint32_t *end)
{
    struct dctf_list *bucket = bucket_of(cluster, version, block);

    for (struct dctf_list *node = bucket->next; node != bucket; node = node->next) {
        struct dctf_flight *flight = dctf_list_entry(node, struct dctf_flight, link);

        if (block < flight->first || block >= flight->first + flight->count ||
            memcmp(&flight->version->id, &version->id, sizeof(version->id)) != 0)
            continue;
        *end = flight->first + flight->count;
        return flight;
    }
    return NULL;
}

bool dctf_flight_from_source_locked(const struct dctf_flight *flight)
{
    return flight->state == DCTF_FLIGHT_SOURCE || flight->state == DCTF_FLIGHT_READY;
}

static size_t bytes_of(const struct dctf_version *version, uint32_t first, uint32_t count)
{
    uint64_t start = (uint64_t)first * DCTF_BLOCK_BYTES, end = start + (uint64_t)count * DCTF_BLOCK_BYTES;

    return (size_t)((end < version->size ? end : version->size) - start);
}

struct dctf_flight *dctf_flight_new_locked(struct dctf_cluster *cluster, struct dctf_version *version,
    uint32_t first, uint32_t count, enum dctf_fetch_class class)
{
    struct dctf_flight *flight = calloc(1, sizeof(*flight));

    if (!flight)
        return NULL;
    flight->cluster = cluster;
    flight->version = dctf_version_ref(version);
    flight->first = first;
    flight->count = count;
    flight->bytes = bytes_of(version, first, count);
    flight->extent_key =
        dctf_extent_key(cluster->config.dataset, version->key, version->etag, first / DCTF_EXTENT_BLOCKS);
    flight->class = class;
    flight->refs = 2; /* the table, and whoever starts it */
    flight->begun_ms = dctf_cluster_now_ms(cluster);
    dctf_list_init(&flight->waits);
    dctf_list_init(&flight->stopped);
    dctf_list_push_back(bucket_of(cluster, version, first), &flight->link);
    cluster->flight_count++;
    cluster->alive++;
    return flight;
}

void dctf_flight_ref_locked(struct dctf_flight *flight)
{
    flight->refs++;
}

void dctf_flight_unref(struct dctf_flight *flight)
{
    struct dctf_cluster *cluster = flight->cluster;
    bool last;

    pthread_mutex_lock(&cluster->lock);
    last = --flight->refs == 0;
    pthread_mutex_unlock(&cluster->lock);
    if (!last)
        return;
    if (flight->buf)
        dctf_budget_buf_put(cluster->config.budget, flight->buf, flight->bytes);
    dctf_view_unref(flight->view);
    dctf_version_unref(flight->version);
    free(flight);
    dctf_cluster_release(cluster);
}

static void leave_table(struct dctf_flight *flight)
{
    struct dctf_cluster *cluster = flight->cluster;

    pthread_mutex_lock(&cluster->lock);
    dctf_list_remove(&flight->link);
    cluster->flight_count--;
    pthread_mutex_unlock(&cluster->lock);
    dctf_flight_unref(flight);
}

/* --- waiters --- */

enum dctf_err dctf_flight_join_locked(struct dctf_flight *flight, struct dctf_fill *fill)
{
    struct dctf_flight_wait *wait = malloc(sizeof(*wait));

    if (!wait)
        return DCTF_ERR_NO_MEMORY;
    *wait = (struct dctf_flight_wait){.flight = flight, .fill = fill};
    dctf_list_push_back(&flight->waits, &wait->of_flight);
    dctf_list_push_back(&fill->waits, &wait->of_fill);
    fill->pending++;
    if (fill->class < flight->class)
        flight->class = fill->class;
    return DCTF_OK;
}

/* The part of the flight that the fill asked for. */
static void copy_part(const struct dctf_flight *flight, const struct dctf_fill *fill)
{
    uint32_t first = flight->first > fill->first ? flight->first : fill->first;
    uint32_t flight_end = flight->first + flight->count, fill_end = fill->first + fill->count;
    uint32_t end = flight_end < fill_end ? flight_end : fill_end;

    memcpy((char *)fill->buf + (size_t)(first - fill->first) * DCTF_BLOCK_BYTES,
        (const char *)flight->buf + (size_t)(first - flight->first) * DCTF_BLOCK_BYTES,
        bytes_of(flight->version, first, end - first));
}

static void deliver(struct dctf_flight *flight)
{
    struct dctf_cluster *cluster = flight->cluster;

    for (;;) {
        struct dctf_list *node;
        struct dctf_flight_wait *wait = NULL;
        enum dctf_err err;
        bool from_origin;

        pthread_mutex_lock(&cluster->lock);
        node = dctf_list_pop(&flight->waits);
        if (node) {
            wait = dctf_list_entry(node, struct dctf_flight_wait, of_flight);
            dctf_list_remove(&wait->of_fill); /* from here on the fill cannot be ended without us */
        }
        err = flight->err;
        from_origin = flight->from_origin;
        pthread_mutex_unlock(&cluster->lock);
        if (!wait)
            return;
        if (!err)
            copy_part(flight, wait->fill);
        dctf_fill_delivered(wait->fill, err, from_origin);
        free(wait);
    }
}

void dctf_flight_kick(struct dctf_flight *flight)
{
    struct dctf_cluster *cluster = flight->cluster;
    bool ready, promote;
    uint64_t job_id;

    pthread_mutex_lock(&cluster->lock);
    ready = flight->state >= DCTF_FLIGHT_READY;
    promote = flight->state == DCTF_FLIGHT_SOURCE && flight->class == DCTF_FETCH_DEMAND;
    job_id = flight->job_id;
    pthread_mutex_unlock(&cluster->lock);
    if (ready)
        deliver(flight);
    else if (promote)
        dctf_fetch_promote(cluster->upstream, job_id);
}

/* --- the end --- */

static bool is_home_here(struct dctf_flight *flight)
{
    struct dctf_view *view = dctf_cluster_view(flight->cluster);
    uint32_t home;
    bool here = dctf_view_rank(view, flight->extent_key, &home, 1) && home == dctf_view_self(view);

    dctf_view_unref(view);
    return here;
}

/* What the tiers refused of this node's share, another may keep (spare.h). */
static void note_kept(struct dctf_flight *flight, struct dctf_shard *shard)
{
    uint32_t flight_end = flight->first + flight->count, end;

    for (uint32_t block = flight->first; block < flight_end; block = end) {
        end = (block / DCTF_SUB_BLOCKS + 1) * DCTF_SUB_BLOCKS;
        if (end > flight_end)
            end = flight_end;
        dctf_spare_home_kept(&flight->cluster->spare, flight->extent_key,
            dctf_spare_pieces(block, end - block),
            dctf_shard_count_present(shard, block, end - block) == end - block);
    }
}

static void write_to_tiers(void *ctx)
{
    struct dctf_flight *flight = ctx;
    struct dctf_shard *shard;
    enum dctf_err err = dctf_shard_get(flight->cluster->config.store, flight->version, &shard);
    bool kept = false;

    if (!err) {
        err = dctf_shard_write(shard, flight->first, flight->buf, flight->bytes, &kept);
        if (is_home_here(flight))
            note_kept(flight, shard);
        dctf_shard_put(shard);
    }
    if (err)
        dctf_log(DCTF_LOG_WARN, "cluster", "op=keep err=%d %s", (int)err, dctf_err_text(err));
    else
        dctf_log(DCTF_LOG_DEBUG, "cluster", "op=keep first=%u count=%u kept=%d", (unsigned)flight->first,
            (unsigned)flight->count, kept);
    leave_table(flight);
}

/* Another keeps what this node had no room for, or is about to: to take it back would leave it at both. */
static bool lies_elsewhere(struct dctf_flight *flight)
{
    struct dctf_spare *spare = &flight->cluster->spare;
    unsigned pieces = dctf_spare_pieces(flight->first, flight->count);

    if (!(dctf_spare_home_refused(spare, flight->extent_key) & pieces))
        return false;
    return !flight->from_origin || dctf_spare_was_told(spare, flight->extent_key, pieces);
}

void dctf_flight_end(struct dctf_flight *flight, enum dctf_err err)
{
    struct dctf_cluster *cluster = flight->cluster;

    pthread_mutex_lock(&cluster->lock);
    flight->err = err;
    flight->state = err ? DCTF_FLIGHT_FAILED : DCTF_FLIGHT_READY;
    flight->asked = NULL;
    pthread_mutex_unlock(&cluster->lock);
    if (err)
        leave_table(flight); /* before its waiters may ask anew */
    deliver(flight);
    if (!err && lies_elsewhere(flight)) { /* after the answers, which tell who should keep it */
        leave_table(flight);
    } else if (!err && dctf_pool_submit(cluster->config.pool, write_to_tiers, flight)) {
        dctf_log(DCTF_LOG_DEBUG, "cluster", "op=keep first=%u count=%u the writers have too much to do",
            (unsigned)flight->first, (unsigned)flight->count);
        leave_table(flight);
    }
    dctf_flight_unref(flight);
}

/* --- steps --- */

static void timer_fired(void *ctx)
{
    step(ctx);
}

void dctf_flight_wait_for(struct dctf_flight *flight, enum dctf_flight_state state, uint64_t ms)
{
    enum dctf_err err;

    pthread_mutex_lock(&flight->cluster->lock);
    flight->state = state;
    pthread_mutex_unlock(&flight->cluster->lock);
    err = dctf_timer_arm(flight->cluster->config.timers, &flight->timer, ms, timer_fired, flight);
    if (err)
        dctf_flight_end(flight, err);
}

/* What an answer of the source says of this node's way there. True: something else than before. */
static bool note_source_locked(struct dctf_cluster *cluster, enum dctf_err err)
{
    bool was_off = cluster->source.state != DCTF_BREAKER_CLOSED;
    bool is_off = was_off;

    if (!err) {
        dctf_breaker_ok(&cluster->source);
        is_off = false;
    } else if (dctf_cluster_is_of_one_node(err)) {
        cluster->source_err = err;
        dctf_breaker_failed(&cluster->source, true, dctf_cluster_now_ms(cluster));
        is_off = true;
    }
    dctf_metric_set(cluster->config.metrics, DCTF_METRIC_CLUSTER_SOURCE_OFF, is_off);
    return is_off != was_off;
}

static void source_done(void *ctx, enum dctf_err err, bool buf_free)
{
    struct dctf_flight *flight = ctx;
    struct dctf_cluster *cluster = flight->cluster;
    bool news;

    pthread_mutex_lock(&cluster->lock);
    flight->refs += !buf_free; /* released later, with a reference of its own */
    flight->from_origin = true;
    if (!err)
        cluster->counts.origin_bytes += flight->bytes;
    news = note_source_locked(cluster, err);
    pthread_mutex_unlock(&cluster->lock);
    if (news && err)
        dctf_log(DCTF_LOG_WARN, "cluster",
            "op=source err=%d this node does not get there: others are asked first", (int)err);
    else if (news)
        dctf_log(DCTF_LOG_INFO, "cluster", "op=source reached again");
    dctf_flight_end(flight, err);
}

static void source_released(void *ctx)
{
    dctf_flight_unref(ctx);
}

/* Whether there is somebody to ask when the source fails this node alone. */
static bool has_others_locked(struct dctf_flight *flight)
{
    struct dctf_cluster *cluster = flight->cluster;
    uint32_t ranks[DCTF_RANKS];
    size_t count = dctf_view_rank(cluster->view, flight->extent_key, ranks, DCTF_RANKS);

    for (size_t i = 0; i < count; i++) {
        const struct dctf_peer *peer;

        if (ranks[i] == dctf_view_self(cluster->view))
            continue;
        peer = dctf_peer_of_locked(cluster, dctf_view_node(cluster->view, ranks[i]));
        if (peer && dctf_peer_usable_locked(peer))
            return true;
    }
    return false;
}

void dctf_flight_ask_source(struct dctf_flight *flight)
{
    struct dctf_cluster *cluster = flight->cluster;
    struct dctf_fetch_get get = {
        .key = flight->version->key,
        .etag = flight->version->etag,
        .size = flight->version->size,
        .offset = (uint64_t)flight->first * DCTF_BLOCK_BYTES,
        .len = flight->bytes,
        .buf = flight->buf,
        .deadline_ms = cluster->read_deadline_ms,
        .done = source_done,
        .release = source_released,
        .ctx = flight,
    };
    uint64_t job_id;
    enum dctf_err err;
    bool promote;

    pthread_mutex_lock(&cluster->lock);
    flight->state = DCTF_FLIGHT_SOURCE;
    flight->asked = NULL;
    get.class = flight->class;
    if (has_others_locked(flight))
        get.gives_up = dctf_cluster_is_of_one_node;
    flight->refs++; /* it may end before job_id is noted */
    err = cluster->closing ? DCTF_ERR_SHUTTING_DOWN : DCTF_OK;
    pthread_mutex_unlock(&cluster->lock);
    if (!err)
        err = dctf_fetch_get_submit(cluster->upstream, &get, &job_id);
    if (err) {
        dctf_flight_end(flight, err);
    } else {
        pthread_mutex_lock(&cluster->lock);
        flight->job_id = job_id;
        promote = flight->class == DCTF_FETCH_DEMAND && get.class != DCTF_FETCH_DEMAND; /* meanwhile */
        pthread_mutex_unlock(&cluster->lock);
        if (promote)
            dctf_fetch_promote(cluster->upstream, job_id);
    }
    dctf_flight_unref(flight);
}

/* From NEW, MEMORY or SETTLE on as far as it goes. Holds the step's reference. */
static void step(struct dctf_flight *flight)
{
    struct dctf_cluster *cluster = flight->cluster;
    uint64_t waited = dctf_cluster_now_ms(cluster) - flight->begun_ms;
    uint64_t settle;
    bool closing;

    pthread_mutex_lock(&cluster->lock);
    closing = cluster->closing;
    pthread_mutex_unlock(&cluster->lock);
    if (closing || waited > cluster->read_deadline_ms) {
        dctf_flight_end(flight, closing ? DCTF_ERR_SHUTTING_DOWN : DCTF_ERR_DEADLINE);
        return;
    }
    if (!flight->buf)
        flight->buf = dctf_budget_buf_get(cluster->config.budget, flight->bytes);
    if (!flight->buf) {
        dctf_flight_wait_for(flight, DCTF_FLIGHT_MEMORY, MEMORY_RETRY_MS);
        return;
    }
    settle = dctf_cluster_settle_ms(cluster);
    if (settle) {
        dctf_flight_wait_for(flight, DCTF_FLIGHT_SETTLE, settle);
        return;
    }
    dctf_flight_probe(flight);
}

/* --- giving up --- */

static bool waits_locked(const struct dctf_flight *flight, const struct dctf_peer *peer)
{
    if (flight->state == DCTF_FLIGHT_PROBE)
        return !peer || flight->asked == peer;
    return flight->state == DCTF_FLIGHT_SOURCE && !peer && flight->job_id;
}

/* End what flights wait for: for `peer`, or, NULL, for anybody. What begins to wait meanwhile may be missed:
 * both who close and who ping come again. */
static void stop_waiting(struct dctf_cluster *cluster, const struct dctf_peer *peer)
{
    struct dctf_list found, *node;

    dctf_list_init(&found);
    pthread_mutex_lock(&cluster->lock);
    for (unsigned i = 0; i < DCTF_FLIGHT_BUCKETS; i++) {
        struct dctf_list *bucket = &cluster->flights[i];

        for (node = bucket->next; node != bucket; node = node->next) {
            struct dctf_flight *flight = dctf_list_entry(node, struct dctf_flight, link);

            if (!waits_locked(flight, peer) || !dctf_list_empty(&flight->stopped))
                continue;
            flight->refs++;
            dctf_list_push_back(&found, &flight->stopped);
        }
    }
    while ((node = dctf_list_pop(&found))) {
        struct dctf_flight *flight = dctf_list_entry(node, struct dctf_flight, stopped);
        bool asks = flight->state == DCTF_FLIGHT_PROBE, waits = waits_locked(flight, peer); /* still */
        uint64_t job_id = flight->job_id;

        pthread_mutex_unlock(&cluster->lock);
        if (waits && asks)
            dctf_peer_get_cancel(cluster->client, &flight->get); /* its end asks the next */
        else if (waits)
            dctf_fetch_cancel(cluster->upstream, job_id);
        dctf_flight_unref(flight);
        pthread_mutex_lock(&cluster->lock);
    }
    pthread_mutex_unlock(&cluster->lock);
}

void dctf_flights_leave_peer(struct dctf_cluster *cluster, const struct dctf_peer *peer)
{
    stop_waiting(cluster, peer);
}

void dctf_flights_cancel_all(struct dctf_cluster *cluster)
{
    stop_waiting(cluster, NULL);
}

size_t dctf_flights_waiting_locked(
    struct dctf_cluster *cluster, uint64_t before_ms, struct dctf_peer **out, size_t max)
{
    size_t count = 0;

    for (unsigned i = 0; i < DCTF_FLIGHT_BUCKETS; i++) {
        struct dctf_list *bucket = &cluster->flights[i];

        for (struct dctf_list *node = bucket->next; node != bucket && count < max; node = node->next) {
            struct dctf_flight *flight = dctf_list_entry(node, struct dctf_flight, link);

            if (flight->state == DCTF_FLIGHT_PROBE && flight->asked && flight->asked_ms < before_ms)
                out[count++] = flight->asked;
        }
    }
    return count;
}

void dctf_flight_start(struct dctf_flight *flight)
{
    step(flight);
}
