/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/replicator_internal.h"

#include "base/budget.h"
#include "base/config.h"
#include "base/log.h"
#include "base/str.h"
#include "base/version.h"
#include "cache/store.h"

#include <assert.h>
#include <string.h>
#include <time.h>

#define LOOK_MS 200u       /* longest wait without a look at whether to stop */
#define PATIENCE_MS 30000u /* a piece that found no opening for so long is left to the next walk */
#define UNREADY_MS 250u
#define BUSY_MAX_MS 2000u
#define PACE_PCT 80u
#define PACE_MIN (4ull << 20) /* a piece must not take long, whatever was seen */

/* --- waiting --- */

static void wait_until(struct dctf_replicator *replicator, uint64_t now_ms, uint64_t due_ms)
{
    uint64_t ms = due_ms > now_ms ? due_ms - now_ms : 0;
    struct timespec until;

    if (ms > LOOK_MS)
        ms = LOOK_MS;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)ms * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&replicator->lock);
    if (!replicator->ended && ms)
        pthread_cond_timedwait(&replicator->wake, &replicator->lock, &until);
    replicator->ended = false;
    pthread_mutex_unlock(&replicator->lock);
}

static enum dctf_piece_state state_of(struct dctf_piece *piece)
{
    enum dctf_piece_state state;

    pthread_mutex_lock(&piece->replicator->lock);
    state = piece->state;
    pthread_mutex_unlock(&piece->replicator->lock);
    return state;
}

static void set_state(struct dctf_piece *piece, enum dctf_piece_state state)
{
    pthread_mutex_lock(&piece->replicator->lock);
    piece->state = state;
    pthread_mutex_unlock(&piece->replicator->lock);
}

static void piece_ended(struct dctf_piece *piece, enum dctf_err err, const struct dctf_peer_answer *answer)
{
    struct dctf_replicator *replicator = piece->replicator;

    pthread_mutex_lock(&replicator->lock);
    piece->err = err;
    piece->answer = answer ? *answer : (struct dctf_peer_answer){.view = 0};
    piece->state = DCTF_PIECE_ENDED;
    replicator->ended = true;
    pthread_cond_broadcast(&replicator->wake);
    pthread_mutex_unlock(&replicator->lock);
}

static void get_done(struct dctf_peer_get *get, enum dctf_err err, const struct dctf_peer_answer *answer)
{
    piece_ended((struct dctf_piece *)get, err, answer);
}

static void fill_done(struct dctf_fill *fill, enum dctf_err err)
{
    piece_ended(fill->ctx, err, NULL);
}

/* --- the end of a piece --- */

static void release(struct dctf_piece *piece)
{
    struct dctf_replicator *replicator = piece->replicator;

    if (piece->buf)
        dctf_budget_buf_put(replicator->cluster->config.budget, piece->buf, piece->bytes);
    piece->buf = NULL;
    dctf_shard_put(piece->shard);
    dctf_version_unref(piece->version);
    piece->walk->pieces--;
    piece->walk = NULL;
    set_state(piece, DCTF_PIECE_FREE);
}

/* Count why it waits, once for each piece and reason in a row; it is tried again after `ms`. */
static void put_off(struct dctf_piece *piece, enum dctf_metric reason, uint64_t ms)
{
    uint64_t now_ms = dctf_cluster_now_ms(piece->replicator->cluster);

    if (reason != DCTF_METRIC_COUNT && piece->refused != reason)
        dctf_replicator_refuse(piece->replicator, reason);
    piece->refused = reason;
    piece->for_path = false;
    piece->due_ms = now_ms + ms;
    set_state(piece, DCTF_PIECE_WAIT);
}

static void give_up(struct dctf_piece *piece)
{
    piece->walk->missing = true;
    release(piece);
}

/* What the path carries, by a piece that went unpaced. */
static void note_rate_locked(struct dctf_piece *piece, uint64_t per_s, uint64_t now_ms)
{
    struct dctf_peer *peer = piece->peer;
    struct dctf_path_rate alone = {.seen = {per_s}, .count = 1};
    uint64_t had = piece->get.window_bytes, min_rtt_us = dctf_gate_min_rtt_us(&peer->gate, now_ms);

    if (had < DCTF_PEER_WINDOW_NARROW)
        had = DCTF_PEER_WINDOW_NARROW;
    dctf_path_rate_note(&peer->copy_rate, per_s,
        had < DCTF_PEER_WINDOW_WIDE && dctf_path_rate_window(&alone, min_rtt_us) > had, now_ms);
}

/* Note how it went on the path. */
static void account(struct dctf_piece *piece, enum dctf_err err)
{
    struct dctf_cluster *cluster = piece->replicator->cluster;
    struct dctf_peer *peer = piece->peer;
    uint64_t now_ms = dctf_cluster_now_ms(cluster);
    uint64_t body_us = piece->answer.total_us > piece->answer.first_byte_us
                           ? piece->answer.total_us - piece->answer.first_byte_us
                           : 0;

    pthread_mutex_lock(&cluster->lock);
    peer->copying = false;
    dctf_gate_done(&peer->gate, piece->bytes, err ? 0 : piece->bytes, now_ms);
    /* What is slow because it was paced, or gave way, says nothing about the peer. */
    dctf_peer_account_locked(cluster, peer, DCTF_FETCH_REPLICATION,
        err == DCTF_ERR_DEADLINE ? DCTF_ERR_CANCELLED : err, &piece->answer);
    if (!err && body_us && piece->probe)
        note_rate_locked(piece, piece->answer.wire_bytes * 1000000 / body_us, now_ms);
    pthread_mutex_unlock(&cluster->lock);
}

/* The bytes are here. */
static void keep(struct dctf_piece *piece)
{
    struct dctf_replicator *replicator = piece->replicator;
    struct dctf_cluster *cluster = replicator->cluster;
    bool kept = true;
    enum dctf_err err = DCTF_OK;

    if (!piece->filling) /* a flight writes by itself, in a while, and all of the extent */
        err = dctf_shard_write(piece->shard, piece->first, piece->buf, piece->bytes, &kept);
    if (err)
        dctf_log(DCTF_LOG_WARN, "replicate", "op=keep err=%d %s", (int)err, dctf_err_text(err));
    dctf_metric_add(cluster->config.metrics, DCTF_METRIC_REPLICATION_COPIED, (int64_t)piece->bytes);
    pthread_mutex_lock(&replicator->lock);
    replicator->status.copied_bytes += piece->bytes;
    pthread_mutex_unlock(&replicator->lock);
    piece->walk->copied = true;
    if (err || !kept) {
        dctf_copied_unkept(replicator->copied, piece->extent_key, dctf_cluster_now_ms(cluster));
        give_up(piece);
        return;
    }
    if (piece->filling || dctf_shard_count_present(piece->shard, piece->extent_first, piece->extent_count) ==
                              piece->extent_count)
        (void)dctf_copied_done(replicator->copied, piece->extent_key); /* without a place: copied again */
    release(piece);
}

static void drop_walk(struct dctf_piece *piece, enum dctf_err err)
{
    char path[512];

    if (!piece->walk->dropped)
        dctf_log(DCTF_LOG_INFO, "replicate", "op=copy feature=%s err=%d %s: its listing is read again",
            dctf_str_quote(piece->walk->path, path, sizeof(path)), (int)err, dctf_err_text(err));
    piece->walk->dropped = true;
    piece->walk->told |= dctf_cluster_version_gone(piece->replicator->cluster, piece->version);
    give_up(piece);
}

/* Its bytes came; they are kept after the path was given to the next one. */
static void settle(struct dctf_piece *piece)
{
    enum dctf_err err = piece->err;

    if (!piece->filling)
        account(piece, err);
    switch (err) {
    case DCTF_OK:
        set_state(piece, DCTF_PIECE_CAME);
        return;
    case DCTF_ERR_PEER_BUSY:
    case DCTF_ERR_NO_MEMORY:
        put_off(piece, DCTF_METRIC_REPLICATION_REFUSED_PEER,
            piece->answer.retry_ms < UNREADY_MS    ? UNREADY_MS
            : piece->answer.retry_ms > BUSY_MAX_MS ? BUSY_MAX_MS
                                                   : piece->answer.retry_ms);
        return;
    case DCTF_ERR_VERSION_MISMATCH:
    case DCTF_ERR_NOT_FOUND:
        drop_walk(piece, err);
        return;
    default:
        dctf_replicator_refuse(piece->replicator, DCTF_METRIC_REPLICATION_REFUSED_PEER);
        give_up(piece);
    }
}

/* --- the beginning --- */

static enum dctf_metric reason_of(enum dctf_ready ready)
{
    switch (ready) {
    case DCTF_READY:
        break;
    case DCTF_UNREADY_MEMORY:
        return DCTF_METRIC_REPLICATION_REFUSED_MEMORY;
    case DCTF_UNREADY_WRITERS:
        return DCTF_METRIC_REPLICATION_REFUSED_WRITERS;
    case DCTF_UNREADY_DISK:
        return DCTF_METRIC_REPLICATION_REFUSED_DISK;
    case DCTF_UNREADY_PRESSURE:
        return DCTF_METRIC_REPLICATION_REFUSED_PRESSURE;
    }
    return DCTF_METRIC_COUNT;
}

/* Bytes/s to ask the server to pace to: a little less than the path carries, so that what readers want
 * meanwhile finds no queue; 0: none, which shows what it carries. Only a piece of full length tells. */
static uint64_t pace_locked(struct dctf_piece *piece, uint64_t now_ms)
{
    struct dctf_peer *peer = piece->peer;
    uint64_t rate = dctf_path_rate(&peer->copy_rate) / 100 * PACE_PCT, most = piece->replicator->rate.per_s;

    piece->probe = piece->count == DCTF_SUB_BLOCKS && dctf_path_rate_is_due(&peer->copy_rate, now_ms);
    if (piece->probe)
        return most;
    if (!rate)
        return most;
    if (rate < PACE_MIN)
        rate = PACE_MIN;
    return rate < most ? rate : most;
}

struct way {
    uint64_t view;
    uint64_t max_rate, window_bytes; /* 0: not bounded by us */
};

static void prepare_get(struct dctf_piece *piece, const struct way *way)
{
    struct dctf_cluster *cluster = piece->replicator->cluster;

    piece->get = (struct dctf_peer_get){
        .addr = piece->addr,
        .ask = {.op = DCTF_PEER_BLOCKS,
            .dataset = cluster->config.dataset,
            .size = piece->version->size,
            .first = piece->first,
            .count = piece->count,
            .want_first = piece->extent_first,
            .want_count = piece->extent_count},
        .buf = piece->buf,
        .class = DCTF_FETCH_REPLICATION,
        .hop = 1,
        .view = way->view,
        .deadline_ms = cluster->read_deadline_ms,
        .silence_ms = cluster->config.options->stall_timeout_max_ms,
        .max_rate = way->max_rate,
        .window_bytes = way->window_bytes,
        .done = get_done,
    };
    strcpy(piece->get.ask.key, piece->version->key);
    strcpy(piece->get.ask.etag, piece->version->etag);
}

static void ask_home(struct dctf_piece *piece, const struct way *way)
{
    enum dctf_err err;

    prepare_get(piece, way);
    piece->filling = false;
    set_state(piece, DCTF_PIECE_ASK);
    dctf_rate_take(&piece->replicator->rate, piece->bytes);
    err = dctf_peer_get_start(piece->replicator->cluster->client, &piece->get);
    if (err)
        piece_ended(piece, err, NULL);
}

static void fill_here(struct dctf_piece *piece)
{
    piece->fill = (struct dctf_fill){
        .cluster = piece->replicator->cluster,
        .version = piece->version,
        .first = piece->first,
        .count = piece->count,
        .want_first = piece->extent_first,
        .want_count = piece->extent_count,
        .class = DCTF_FETCH_REPLICATION,
        .buf = piece->buf,
        .done = fill_done,
        .ctx = piece,
    };
    piece->filling = true;
    set_state(piece, DCTF_PIECE_FILL);
    dctf_rate_take(&piece->replicator->rate, piece->bytes);
    dctf_fill_start(&piece->fill);
}

static bool others_fill(const struct dctf_replicator *replicator)
{
    for (unsigned i = 0; i < DCTF_PIECES; i++) {
        if (state_of((struct dctf_piece *)&replicator->pieces[i]) == DCTF_PIECE_FILL)
            return true;
    }
    return false;
}

/* Take the path to the home, if it is free: `peer` is set then. False: not now, or not at all (`*gone`). */
static bool take_path_locked(
    struct dctf_piece *piece, uint32_t home, uint64_t now_ms, bool *gone, uint64_t *retry_ms)
{
    struct dctf_cluster *cluster = piece->replicator->cluster;
    struct dctf_peer *peer = dctf_peer_of_locked(cluster, dctf_view_node(cluster->view, home));

    *gone = !peer || !dctf_peer_usable_locked(peer);
    if (*gone)
        return false;
    *retry_ms = peer->copying ? LOOK_MS : dctf_gate_retry_ms(&peer->gate, now_ms);
    if (cluster->config.options->gate &&
        (peer->copying || !dctf_gate_try(&peer->gate, piece->bytes, false, now_ms)))
        return false;
    peer->copying = true;
    piece->peer = peer;
    memcpy(piece->addr, peer->addr, sizeof(piece->addr));
    return true;
}

/* This node can take it. Ask whoever is to be asked. */
static void send_piece(struct dctf_piece *piece, uint64_t now_ms)
{
    struct dctf_cluster *cluster = piece->replicator->cluster;
    uint64_t retry_ms = 0;
    struct way way = {0};
    bool here, gone = false, taken = false;
    uint32_t home;

    pthread_mutex_lock(&cluster->lock);
    way.view = dctf_view_hash(cluster->view);
    here = dctf_view_rank(cluster->view, piece->extent_key, &home, 1) == 0 ||
           home == dctf_view_self(cluster->view);
    if (!here)
        taken = take_path_locked(piece, home, now_ms, &gone, &retry_ms);
    if (taken && cluster->config.options->gate) {
        way.max_rate = pace_locked(piece, now_ms);
        way.window_bytes =
            dctf_path_rate_window(&piece->peer->copy_rate, dctf_gate_min_rtt_us(&piece->peer->gate, now_ms));
    }
    pthread_mutex_unlock(&cluster->lock);
    if (taken) {
        ask_home(piece, &way);
    } else if (gone) {
        dctf_replicator_refuse(piece->replicator, DCTF_METRIC_REPLICATION_REFUSED_PEER);
        give_up(piece);
    } else if (!here) {
        put_off(piece, DCTF_METRIC_REPLICATION_REFUSED_GATE, retry_ms);
        piece->for_path = true;
    } else if (others_fill(piece->replicator)) {
        put_off(piece, DCTF_METRIC_COUNT, UNREADY_MS);
    } else {
        fill_here(piece);
    }
}

/* A piece that waits, and is due. */
static void try_piece(struct dctf_piece *piece, uint64_t now_ms)
{
    struct dctf_replicator *replicator = piece->replicator;
    struct dctf_cluster *cluster = replicator->cluster;
    uint64_t wait_ms = dctf_rate_wait_ms(&replicator->rate, now_ms);
    enum dctf_ready ready;

    if (piece->walk->dropped || dctf_cluster_is_degraded(cluster) ||
        dctf_replicator_is_stopping(replicator) || now_ms - piece->begun_ms > PATIENCE_MS) {
        give_up(piece);
        return;
    }
    if (wait_ms) {
        put_off(piece, piece->refused, wait_ms);
        return;
    }
    ready = dctf_readiness_ask(&replicator->readiness, piece->bytes, now_ms);
    if (!ready && !piece->buf) {
        piece->buf = dctf_budget_buf_get(cluster->config.budget, piece->bytes);
        ready = piece->buf ? DCTF_READY : DCTF_UNREADY_MEMORY;
    }
    if (ready)
        put_off(piece, reason_of(ready), UNREADY_MS);
    else
        send_piece(piece, now_ms);
}

/* Take note of what ended. Whoever waits for its path is due. */
static void settle_ended(struct dctf_replicator *replicator, uint64_t now_ms)
{
    for (unsigned i = 0; i < DCTF_PIECES; i++) {
        struct dctf_piece *piece = &replicator->pieces[i];

        if (state_of(piece) != DCTF_PIECE_ENDED)
            continue;
        settle(piece);
        for (unsigned j = 0; j < DCTF_PIECES; j++) {
            if (replicator->pieces[j].for_path && replicator->pieces[j].due_ms > now_ms)
                replicator->pieces[j].due_ms = now_ms;
        }
    }
}

static void keep_what_came(struct dctf_replicator *replicator)
{
    for (unsigned i = 0; i < DCTF_PIECES; i++) {
        if (state_of(&replicator->pieces[i]) == DCTF_PIECE_CAME)
            keep(&replicator->pieces[i]);
    }
}

/* Move all pieces on as far as they go; returns when the next one is due. */
static uint64_t pump(struct dctf_replicator *replicator)
{
    uint64_t now_ms = dctf_cluster_now_ms(replicator->cluster), due_ms = UINT64_MAX;

    settle_ended(replicator, now_ms);
    for (unsigned i = 0; i < DCTF_PIECES; i++) {
        struct dctf_piece *piece = &replicator->pieces[i];

        if (state_of(piece) == DCTF_PIECE_WAIT && now_ms >= piece->due_ms)
            try_piece(piece, now_ms);
        if (state_of(piece) == DCTF_PIECE_WAIT && piece->due_ms < due_ms)
            due_ms = piece->due_ms;
    }
    keep_what_came(replicator); /* while the next ones are on their way */
    return due_ms;
}

uint32_t dctf_piece_blocks(struct dctf_replicator *replicator, uint64_t extent_key)
{
    struct dctf_cluster *cluster = replicator->cluster;
    uint64_t blocks = DCTF_SUB_BLOCKS, now_ms = dctf_cluster_now_ms(cluster);
    struct dctf_peer *peer = NULL;
    uint32_t home;

    if (!cluster->config.options->gate)
        return DCTF_SUB_BLOCKS;
    pthread_mutex_lock(&cluster->lock);
    if (dctf_view_rank(cluster->view, extent_key, &home, 1) && home != dctf_view_self(cluster->view))
        peer = dctf_peer_of_locked(cluster, dctf_view_node(cluster->view, home));
    if (peer && !dctf_path_rate_is_due(&peer->copy_rate, now_ms))
        blocks = dctf_gate_request_bytes(&peer->gate, now_ms) / DCTF_BLOCK_BYTES;
    pthread_mutex_unlock(&cluster->lock);
    return blocks < 1 ? 1 : blocks < DCTF_SUB_BLOCKS ? (uint32_t)blocks : DCTF_SUB_BLOCKS;
}

static struct dctf_piece *find_free(struct dctf_replicator *replicator)
{
    for (unsigned i = 0; i < DCTF_PIECES; i++) {
        if (state_of(&replicator->pieces[i]) == DCTF_PIECE_FREE)
            return &replicator->pieces[i];
    }
    return NULL;
}

void dctf_piece_bring(struct dctf_replicator *replicator, struct dctf_walk *walk, struct dctf_shard *shard,
    uint64_t extent_key, uint32_t extent_first, uint32_t extent_count, uint32_t first, uint32_t count)
{
    struct dctf_version *version = dctf_shard_version(shard);
    struct dctf_piece *piece;

    assert(count > 0 && count <= DCTF_SUB_BLOCKS);
    while (!(piece = find_free(replicator)) && !dctf_replicator_is_stopping(replicator))
        wait_until(replicator, dctf_cluster_now_ms(replicator->cluster), pump(replicator));
    /* The shard is one that the walk holds: taking it again cannot fail but for memory. */
    if (!piece || walk->dropped || dctf_shard_get(replicator->cluster->config.store, version, &shard)) {
        walk->missing = true;
        return;
    }
    piece->walk = walk;
    piece->shard = shard;
    piece->version = dctf_version_ref(version);
    piece->extent_key = extent_key;
    piece->extent_first = extent_first;
    piece->extent_count = extent_count;
    piece->first = first;
    piece->count = count;
    piece->bytes = (size_t)(count - 1) * DCTF_BLOCK_BYTES + dctf_block_len(version->size, first + count - 1);
    piece->peer = NULL;
    piece->begun_ms = piece->due_ms = dctf_cluster_now_ms(replicator->cluster);
    piece->refused = DCTF_METRIC_COUNT;
    walk->pieces++;
    set_state(piece, DCTF_PIECE_WAIT);
    (void)pump(replicator);
}

static void cancel_all(struct dctf_replicator *replicator)
{
    for (unsigned i = 0; i < DCTF_PIECES; i++) {
        struct dctf_piece *piece = &replicator->pieces[i];
        enum dctf_piece_state state = state_of(piece);

        if (state == DCTF_PIECE_ASK)
            dctf_peer_get_cancel(replicator->cluster->client, &piece->get);
        else if (state == DCTF_PIECE_FILL)
            dctf_fill_cancel(&piece->fill, DCTF_ERR_CANCELLED);
    }
}

void dctf_pieces_drain(struct dctf_replicator *replicator, bool cancel)
{
    for (;;) {
        uint64_t due_ms = pump(replicator);
        bool busy = false;

        for (unsigned i = 0; i < DCTF_PIECES; i++)
            busy |= state_of(&replicator->pieces[i]) != DCTF_PIECE_FREE;
        if (!busy)
            return;
        if (cancel || dctf_replicator_is_stopping(replicator))
            cancel_all(replicator);
        wait_until(replicator, dctf_cluster_now_ms(replicator->cluster), due_ms);
    }
}
