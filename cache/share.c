/* SPDX-License-Identifier: Apache-2.0
 *
 * What of the cache is this node's share and what are copies. The one who knows is asked each time:
 * nothing of it is kept, so a change of the members costs nothing, and eviction follows it.
 */
#include "cache/kv.h"
#include "cache/state.h"

void dctf_share_init(struct dctf_store *store)
{
    pthread_rwlock_init(&store->share.lock, NULL);
}

void dctf_share_fini(struct dctf_store *store)
{
    pthread_rwlock_destroy(&store->share.lock);
}

void dctf_store_set_share(struct dctf_store *store, dctf_claim_of *claim_of, void *ctx)
{
    pthread_rwlock_wrlock(&store->share.lock); /* calls that run end before */
    store->share.claim_of = claim_of;
    store->share.ctx = ctx;
    atomic_store(&store->share.is_set, claim_of != NULL);
    pthread_rwlock_unlock(&store->share.lock);
}

enum dctf_claim dctf_share_of(struct dctf_store *store, const struct dctf_version *version, uint64_t dataset,
    uint32_t first, uint32_t count)
{
    enum dctf_claim claim = DCTF_CLAIM_SHARE;

    if (!atomic_load(&store->share.is_set))
        return claim;
    pthread_rwlock_rdlock(&store->share.lock);
    if (store->share.claim_of)
        claim = dataset == store->config.dataset
                    ? store->share.claim_of(store->share.ctx, version, first, count)
                    : DCTF_CLAIM_COPY;
    pthread_rwlock_unlock(&store->share.lock);
    return claim;
}

/* Look at up to DCTF_SHARE_ASKS extents of a file that lie here, from a random one on. */
static enum dctf_claim least_of_file(struct dctf_store *store, struct dctf_kv_iter *extents,
    const struct dctf_id *id, const struct dctf_version *version, uint64_t dataset, uint32_t from)
{
    uint8_t key[DCTF_RECORD_EXTENT_KEY];
    enum dctf_claim least = DCTF_CLAIM_SHARE;
    unsigned asked = 0;
    bool again = from > 0;

    dctf_record_extent_key(id, from, key);
    dctf_kv_iter_seek(extents, key, sizeof(key));
    while (asked < DCTF_SHARE_ASKS && least < DCTF_CLAIM_COPY) {
        struct dctf_id found;
        uint32_t extent;
        size_t len;
        const char *at = dctf_kv_iter_valid(extents) ? dctf_kv_iter_key(extents, &len) : NULL;

        if (at && dctf_record_extent_key_decode(at, len, &found, &extent) &&
            !memcmp(&found, id, sizeof(found))) {
            enum dctf_claim claim =
                dctf_share_of(store, version, dataset, extent * DCTF_EXTENT_BLOCKS, DCTF_EXTENT_BLOCKS);

            least = claim > least ? claim : least;
            asked++;
            dctf_kv_iter_next(extents);
        } else if (again) { /* past its last: its first */
            again = false;
            dctf_record_extent_key(id, 0, key);
            dctf_kv_iter_seek(extents, key, sizeof(key));
        } else {
            break;
        }
    }
    return least;
}

enum dctf_claim dctf_share_least(struct dctf_store *store, struct dctf_kv_iter *extents,
    const struct dctf_id *id, const struct dctf_record_shard *record, uint64_t random)
{
    enum dctf_claim least;
    struct dctf_version *version;

    if (dctf_record_shard_version(id, record, &version))
        return DCTF_CLAIM_SHARE;
    if (record->kind == DCTF_RECORD_SMALL) {
        least = dctf_share_of(store, version, record->dataset, 0, DCTF_EXTENT_BLOCKS);
    } else {
        uint64_t count = (record->size + DCTF_EXTENT_BYTES - 1) / DCTF_EXTENT_BYTES;

        least = least_of_file(
            store, extents, id, version, record->dataset, count ? (uint32_t)(random % count) : 0);
    }
    dctf_version_unref(version);
    return least;
}

uint64_t dctf_share_drop_locked(struct dctf_shard *shard, enum dctf_claim least, uint64_t need)
{
    unsigned asked = 0;
    uint64_t bytes = 0;

    for (uint32_t extent = shard->extent_count;
         extent-- > 0 && bytes < need && asked < DCTF_SHARE_ASKS_EVICTING;) {
        uint32_t first = extent * DCTF_EXTENT_BLOCKS, count = dctf_shard_extent_blocks(shard, extent);

        if (!dctf_shard_count_present(shard, first, count))
            continue;
        asked++;
        if (dctf_share_of(shard->store, shard->version, shard->dataset, first, count) >= least)
            bytes += dctf_shard_drop_locked(shard, first, count, DCTF_DROP_EVICT);
    }
    return bytes;
}

bool dctf_share_is_all(struct dctf_shard *shard, enum dctf_claim least)
{
    unsigned asked = 0;

    for (uint32_t extent = 0; extent < shard->extent_count; extent++) {
        uint32_t first = extent * DCTF_EXTENT_BLOCKS, count = dctf_shard_extent_blocks(shard, extent);

        if (!dctf_shard_count_present(shard, first, count))
            continue;
        if (asked++ == DCTF_SHARE_ASKS_EVICTING ||
            dctf_share_of(shard->store, shard->version, shard->dataset, first, count) < least)
            return false;
    }
    return true;
}

enum dctf_claim dctf_share_claim(struct dctf_shard *shard, uint32_t first, uint32_t last, uint32_t *end)
{
    struct dctf_store *store = shard->store;
    enum dctf_claim claim = dctf_share_of(store, shard->version, shard->dataset, first, 1);
    uint32_t next = last;

    if (shard->kind == DCTF_RECORD_FILE && atomic_load(&store->share.is_set))
        next = (first / DCTF_SHARE_STEP + 1) * DCTF_SHARE_STEP;
    while (next < last && dctf_share_of(store, shard->version, shard->dataset, next, 1) == claim)
        next += DCTF_SHARE_STEP;
    *end = next < last ? next : last;
    return claim;
}
