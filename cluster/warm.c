/* SPDX-License-Identifier: Apache-2.0
 *
 * A home is brought to have an extent by asking it for one block, as a reader that will want all of
 * them: it fetches the whole extent, and only the block comes here, to be dropped. What it has already is
 * not asked for.
 */
#include "cluster/internal.h"

#include "base/config.h"
#include "base/thread.h"

#include <stdlib.h>
#include <string.h>

#define LOOK_MS 100u      /* between looks at whether to stop */
#define BUSY_MAX_MS 500u  /* longest pause that a busy home is given */
#define HAVE_MS 2000u     /* deadline of a question without bytes */
#define LANDING_TRIES 10u /* looks at whether what came has been written */

struct call {
    struct dctf_peer_get get; /* first */
    struct dctf_cluster *cluster;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool over; /* guarded by lock, as is what follows */
    enum dctf_err err;
    uint64_t retry_ms;
    bool on_its_way;
    char addr[DCTF_NODE_ADDR_MAX + 1];
    bool (*stop)(void *ctx);
    void *ctx;
};

static void call_done(struct dctf_peer_get *get, enum dctf_err err, const struct dctf_peer_answer *answer)
{
    struct call *call = (struct call *)get;

    pthread_mutex_lock(&call->lock);
    call->err = err;
    call->retry_ms = answer->retry_ms;
    call->on_its_way = answer->on_its_way;
    call->over = true;
    pthread_cond_signal(&call->ended);
    pthread_mutex_unlock(&call->lock);
}

static void wait_locked(struct call *call, uint64_t ms)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)(ms * 1000000);
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&call->ended, &call->lock, &until);
}

static void pause_for(struct call *call, uint64_t ms)
{
    pthread_mutex_lock(&call->lock);
    wait_locked(call, ms);
    pthread_mutex_unlock(&call->lock);
}

/* One request, waited for. */
static enum dctf_err call_once(struct call *call)
{
    enum dctf_err err;

    call->over = false;
    err = dctf_peer_get_start(call->cluster->client, &call->get);
    if (err)
        return err;
    pthread_mutex_lock(&call->lock);
    while (!call->over) {
        wait_locked(call, LOOK_MS);
        if (call->over || !call->stop(call->ctx))
            continue;
        pthread_mutex_unlock(&call->lock);
        dctf_peer_get_cancel(call->cluster->client, &call->get);
        pthread_mutex_lock(&call->lock);
    }
    err = call->err;
    pthread_mutex_unlock(&call->lock);
    return err;
}

/* DCTF_ERR_PEER_ABSENT when one of the blocks is neither there nor, see call->on_its_way, coming. */
static enum dctf_err have(struct call *call, uint32_t first, uint32_t count)
{
    call->get.ask.op = DCTF_PEER_HAVE;
    call->get.ask.first = call->get.ask.want_first = first;
    call->get.ask.count = call->get.ask.want_count = count;
    call->get.deadline_ms = HAVE_MS;
    return call_once(call);
}

/* Have it fetch blocks [block, end): one of them comes here. A busy home is asked again. */
static enum dctf_err fetch(struct call *call, uint32_t block, uint32_t end)
{
    uint64_t end_ms = dctf_cluster_now_ms(call->cluster) + call->cluster->read_deadline_ms;
    enum dctf_err err;

    call->get.ask.op = DCTF_PEER_BLOCKS;
    call->get.ask.first = call->get.ask.want_first = block;
    call->get.ask.count = 1;
    call->get.ask.want_count = end - block;
    call->get.buf = malloc(DCTF_BLOCK_BYTES);
    if (!call->get.buf)
        return DCTF_ERR_NO_MEMORY;
    for (;;) {
        uint64_t now_ms = dctf_cluster_now_ms(call->cluster);

        call->get.deadline_ms = end_ms > now_ms ? end_ms - now_ms : 1;
        err = call_once(call);
        if (err != DCTF_ERR_PEER_BUSY || now_ms >= end_ms || call->stop(call->ctx))
            break;
        pause_for(call, call->retry_ms < BUSY_MAX_MS ? call->retry_ms + 1 : BUSY_MAX_MS);
    }
    free(call->get.buf);
    call->get.buf = NULL;
    return err;
}

/* The first block of [first, end) that it does not have, one of which it does not. */
static enum dctf_err find_missing(struct call *call, uint32_t first, uint32_t end, uint32_t *block)
{
    uint32_t low = first, high = end; /* all before `low` is there; one before `high` is not */

    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        enum dctf_err err = have(call, low, middle - low);

        if (err && err != DCTF_ERR_PEER_ABSENT)
            return err;
        if (err)
            high = middle;
        else
            low = middle;
    }
    *block = low;
    return DCTF_OK;
}

/* Whether blocks are there once they have been written; where there is no room they never are. */
static bool have_landed(struct call *call, uint32_t first, uint32_t count)
{
    uint64_t end_ms = dctf_cluster_now_ms(call->cluster) + call->cluster->read_deadline_ms;

    for (unsigned tries = 0; tries < LANDING_TRIES && !call->stop(call->ctx);) {
        enum dctf_err err = have(call, first, count);

        if (!err && !call->on_its_way)
            return true;
        if (err || dctf_cluster_now_ms(call->cluster) >= end_ms)
            tries++;
        pause_for(call, LOOK_MS);
    }
    return false;
}

/* A fetch reaches up to a block that is there, so an extent with holes takes one for each. */
static enum dctf_err warm(struct call *call, uint32_t first, uint32_t end, struct dctf_cluster_warmed *out)
{
    while (first < end) {
        enum dctf_err err = have(call, first, end - first);
        uint32_t block;

        if (err && err != DCTF_ERR_PEER_ABSENT)
            return err;
        if (!err) {
            out->kept = !call->on_its_way || have_landed(call, first, end - first);
            return out->kept || !call->stop(call->ctx) ? DCTF_OK : DCTF_ERR_CANCELLED;
        }
        err = find_missing(call, first, end, &block);
        if (!err)
            err = fetch(call, block, end);
        if (err)
            return err;
        out->fetched = true;
        if (!have_landed(call, block, 1))
            return call->stop(call->ctx) ? DCTF_ERR_CANCELLED : DCTF_OK;
        first = block + 1;
    }
    out->kept = true;
    return DCTF_OK;
}

/* Where the home of an extent is; false: it is this node, or there is none. */
static bool find_home(struct dctf_cluster *cluster, const struct dctf_version *version, uint32_t extent,
    char *addr, uint64_t *view_hash)
{
    struct dctf_view *view = dctf_cluster_view(cluster);
    uint64_t key = dctf_extent_key(cluster->config.dataset, version->key, version->etag, extent);
    uint32_t home;
    bool other = dctf_view_rank(view, key, &home, 1) == 1 && home != dctf_view_self(view);

    if (other)
        memcpy(addr, dctf_view_node(view, home)->addr, DCTF_NODE_ADDR_MAX + 1);
    *view_hash = dctf_view_hash(view);
    dctf_view_unref(view);
    return other;
}

bool dctf_cluster_is_home(struct dctf_cluster *cluster, const struct dctf_version *version, uint32_t extent)
{
    char addr[DCTF_NODE_ADDR_MAX + 1];
    uint64_t view_hash;

    return !find_home(cluster, version, extent, addr, &view_hash);
}

enum dctf_err dctf_cluster_warm(struct dctf_cluster *cluster, const struct dctf_version *version,
    uint32_t extent, bool (*stop)(void *ctx), void *ctx, struct dctf_cluster_warmed *out)
{
    uint32_t first = extent * DCTF_EXTENT_BLOCKS, left = dctf_blocks_of(version->size) - first;
    struct call call = {.cluster = cluster, .lock = PTHREAD_MUTEX_INITIALIZER, .stop = stop, .ctx = ctx};
    uint64_t view_hash;
    enum dctf_err err;

    *out = (struct dctf_cluster_warmed){0};
    if (!find_home(cluster, version, extent, call.addr, &view_hash)) {
        out->own = true;
        return DCTF_OK;
    }
    if (dctf_thread_cond_init(&call.ended))
        return DCTF_ERR_NO_MEMORY;
    call.get = (struct dctf_peer_get){
        .addr = call.addr,
        .ask = {.dataset = cluster->config.dataset, .size = version->size},
        .class = DCTF_FETCH_REPLICATION,
        .hop = 1,
        .view = view_hash,
        .silence_ms = cluster->config.options->stall_timeout_max_ms,
        .done = call_done,
    };
    strcpy(call.get.ask.key, version->key);
    strcpy(call.get.ask.etag, version->etag);
    err = dctf_cluster_hold(cluster) ? DCTF_OK : DCTF_ERR_SHUTTING_DOWN;
    if (!err) {
        err = warm(&call, first, first + (left < DCTF_EXTENT_BLOCKS ? left : DCTF_EXTENT_BLOCKS), out);
        dctf_cluster_release(cluster);
    }
    pthread_cond_destroy(&call.ended);
    pthread_mutex_destroy(&call.lock);
    return err;
}
