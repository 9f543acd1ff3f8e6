/* SPDX-License-Identifier: Apache-2.0
 *
 * A fill is planned under the lock: each block is in a flight, in the tiers, or nowhere, and for
 * those a flight is made. Presence is asked under the same lock that takes flights out of the
 * table, so that no block is missed between the two. Tiers are read after that, without it;
 * what they lost meanwhile is planned again.
 */
#include "cluster/internal.h"

#include "cache/store.h"

#include <assert.h>
#include <stdlib.h>

#define ATTEMPTS_MAX 3u
#define NEW_MAX DCTF_EXTENT_BLOCKS

struct plan {
    struct dctf_flight *fresh[NEW_MAX];  /* to start */
    struct dctf_flight *joined[NEW_MAX]; /* to kick; counted */
    unsigned fresh_count, joined_count;
    uint32_t tier_mask; /* bit i: block first + i is in the tiers */
    enum dctf_err err;
};

static bool is_small(const struct dctf_version *version)
{
    return version->size <= DCTF_SMALL_BYTES;
}

static uint64_t extent_key_of(const struct dctf_fill *fill)
{
    return dctf_extent_key(fill->cluster->config.dataset, fill->version->key, fill->version->etag,
        fill->first / DCTF_EXTENT_BLOCKS);
}

/* What was refused here may lie in pieces at others, and is asked for by piece. */
static bool ends_piece(unsigned refused, uint32_t block)
{
    return block % DCTF_SUB_BLOCKS == 0 &&
           refused & (dctf_spare_pieces(block, 1) | dctf_spare_pieces(block - 1, 1));
}

/* The run around `block` to fetch: what will be wanted, up to a block that is here or on its way. */
static void plan_flight_locked(struct dctf_fill *fill, struct plan *plan, uint32_t block, uint32_t *end)
{
    struct dctf_cluster *cluster = fill->cluster;
    uint32_t first = block, last = block + 1, ignored;
    uint32_t want_end = fill->want_first + fill->want_count;
    unsigned refused;
    struct dctf_flight *flight;

    if (is_small(fill->version)) { /* the tiers take a small shard whole or not at all */
        first = 0;
        last = dctf_blocks_of(fill->version->size);
    } else {
        refused = dctf_spare_home_refused(&cluster->spare, extent_key_of(fill));
        while (last < want_end && !ends_piece(refused, last) &&
               !dctf_flight_find_locked(cluster, fill->version, last, &ignored) &&
               !dctf_shard_is_present(fill->shard, last))
            last++;
    }
    flight = dctf_flight_new_locked(cluster, fill->version, first, last - first, fill->class);
    plan->err = flight ? dctf_flight_join_locked(flight, fill) : DCTF_ERR_NO_MEMORY;
    if (flight)
        plan->fresh[plan->fresh_count++] = flight; /* its waiters may be none; it runs all the same */
    *end = last;
}

static void plan_locked(
    struct dctf_fill *fill, struct plan *plan, uint32_t first, uint32_t end_block, bool use_tiers)
{
    struct dctf_cluster *cluster = fill->cluster;
    uint32_t end;

    plan->err = fill->err; /* cancelled meanwhile */
    for (uint32_t block = first; block < end_block && !plan->err; block = end) {
        struct dctf_flight *flight = dctf_flight_find_locked(cluster, fill->version, block, &end);

        if (flight) {
            if (fill->probe && !dctf_flight_from_source_locked(flight)) {
                plan->err = DCTF_ERR_PEER_ABSENT; /* it may be waiting for who asks */
                return;
            }
            plan->err = dctf_flight_join_locked(flight, fill);
            if (!plan->err) {
                dctf_flight_ref_locked(flight);
                plan->joined[plan->joined_count++] = flight; /* each covers a block: at most NEW_MAX */
            }
        } else if (use_tiers && dctf_shard_is_present(fill->shard, block)) {
            plan->tier_mask |= 1u << (block - fill->first);
            end = block + 1;
        } else if (fill->probe) {
            plan->err = DCTF_ERR_PEER_ABSENT;
        } else {
            plan_flight_locked(fill, plan, block, &end);
        }
    }
}

/* Drop `pending` by one; the last one ends it. */
static void unpend(struct dctf_fill *fill, enum dctf_err err)
{
    struct dctf_cluster *cluster = fill->cluster;
    bool last;

    pthread_mutex_lock(&cluster->lock);
    if (err && !fill->err)
        fill->err = err;
    last = --fill->pending == 0;
    err = fill->err;
    pthread_mutex_unlock(&cluster->lock);
    if (!last)
        return;
    if (fill->shard)
        dctf_shard_put(fill->shard);
    fill->done(fill, err);
    dctf_cluster_release(cluster);
}

void dctf_fill_delivered(struct dctf_fill *fill, enum dctf_err err, bool from_origin)
{
    bool told = !err && fill->offer && fill->offer(fill);

    pthread_mutex_lock(&fill->cluster->lock);
    fill->from_origin |= from_origin;
    fill->told |= told;
    pthread_mutex_unlock(&fill->cluster->lock);
    unpend(fill, err);
}

static void run(struct dctf_fill *fill, uint32_t first, uint32_t end, bool use_tiers);

/* Read one block of the tiers; what is not there any more is planned again. */
static enum dctf_err read_block(struct dctf_fill *fill, uint32_t block)
{
    uint64_t offset = (uint64_t)block * DCTF_BLOCK_BYTES;
    uint32_t missing;

    return dctf_shard_read(fill->shard, offset, dctf_block_len(fill->version->size, block),
        (char *)fill->buf + (size_t)(block - fill->first) * DCTF_BLOCK_BYTES, &missing);
}

static void read_tiers(struct dctf_fill *fill, uint32_t mask)
{
    for (uint32_t i = 0; i < fill->count; i++) {
        enum dctf_err err;

        if (!(mask >> i & 1))
            continue;
        err = read_block(fill, fill->first + i);
        if (!err)
            continue;
        if (fill->probe) {
            dctf_fill_cancel(fill, DCTF_ERR_PEER_ABSENT);
            return;
        }
        run(fill, fill->first + i, fill->first + i + 1, ++fill->attempts < ATTEMPTS_MAX);
    }
}

static void run(struct dctf_fill *fill, uint32_t first, uint32_t end, bool use_tiers)
{
    struct plan plan = {0};

    pthread_mutex_lock(&fill->cluster->lock);
    plan_locked(fill, &plan, first, end, use_tiers);
    pthread_mutex_unlock(&fill->cluster->lock);
    for (unsigned i = 0; i < plan.fresh_count; i++)
        dctf_flight_start(plan.fresh[i]);
    for (unsigned i = 0; i < plan.joined_count; i++) {
        dctf_flight_kick(plan.joined[i]);
        dctf_flight_unref(plan.joined[i]);
    }
    if (plan.err)
        dctf_fill_cancel(fill, plan.err);
    else
        read_tiers(fill, plan.tier_mask);
}

void dctf_fill_start(struct dctf_fill *fill)
{
    enum dctf_err err;

    assert(fill->count > 0 && fill->count <= DCTF_EXTENT_BLOCKS);
    assert(
        fill->first >= fill->want_first && fill->first + fill->count <= fill->want_first + fill->want_count);
    pthread_mutex_lock(&fill->cluster->lock); /* a cancel may come already */
    dctf_list_init(&fill->waits);
    fill->pending = 1;
    fill->attempts = 0;
    fill->err = DCTF_OK;
    fill->from_origin = fill->told = false;
    fill->shard = NULL;
    pthread_mutex_unlock(&fill->cluster->lock);
    if (!dctf_cluster_hold(fill->cluster)) {
        fill->done(fill, DCTF_ERR_SHUTTING_DOWN);
        return;
    }
    err = dctf_shard_get(fill->cluster->config.store, fill->version, &fill->shard);
    if (!err)
        run(fill, fill->first, fill->first + fill->count, true);
    unpend(fill, err);
}

void dctf_fill_cancel(struct dctf_fill *fill, enum dctf_err err)
{
    struct dctf_cluster *cluster = fill->cluster;
    struct dctf_list freed;
    struct dctf_list *node;

    dctf_list_init(&freed);
    pthread_mutex_lock(&cluster->lock);
    if (fill->pending == 0) { /* its end is under way */
        pthread_mutex_unlock(&cluster->lock);
        return;
    }
    if (!fill->err)
        fill->err = err;
    while ((node = dctf_list_pop(&fill->waits))) {
        struct dctf_flight_wait *wait = dctf_list_entry(node, struct dctf_flight_wait, of_fill);

        dctf_list_remove(&wait->of_flight);
        dctf_list_push_back(&freed, &wait->of_fill);
    }
    pthread_mutex_unlock(&cluster->lock);
    while ((node = dctf_list_pop(&freed))) {
        free(dctf_list_entry(node, struct dctf_flight_wait, of_fill));
        unpend(fill, err);
    }
}

bool dctf_fill_have(struct dctf_cluster *cluster, struct dctf_version *version, uint32_t first,
    uint32_t count, bool *on_its_way)
{
    struct dctf_shard *shard;
    bool here = true;
    uint32_t end;

    *on_its_way = false;
    if (dctf_shard_get(cluster->config.store, version, &shard))
        return false;
    pthread_mutex_lock(&cluster->lock);
    for (uint32_t block = first; here && block < first + count; block = end) {
        struct dctf_flight *flight = dctf_flight_find_locked(cluster, version, block, &end);

        if (flight) {
            here = dctf_flight_from_source_locked(flight);
            *on_its_way = true;
        } else {
            here = dctf_shard_is_present(shard, block);
            end = block + 1;
        }
    }
    pthread_mutex_unlock(&cluster->lock);
    dctf_shard_put(shard);
    if (!here)
        *on_its_way = false;
    return here;
}
