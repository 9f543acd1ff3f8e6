/* SPDX-License-Identifier: Apache-2.0
 *
 * Shard objects, one per version: a striped hash table. An object whose last
 * reference is put stays on its stripe's idle list, within a bound, so that what
 * it knows (presence, what was verified) need not be read again.
 *
 * The first to ask for a version puts a LOADING object in the table and reads the
 * index without any lock; others wait for it. So nobody ever works from an index
 * read before the last object of the version was dropped.
 */
#include "base/log.h"
#include "cache/kv.h"
#include "cache/state.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct dctf_stripe *stripe_of(struct dctf_store *store, const struct dctf_id *id)
{
    return &store->stripes[id->bytes[15] % DCTF_TABLE_STRIPES];
}

static struct dctf_shard **head_of(struct dctf_stripe *stripe, const struct dctf_id *id)
{
    return &stripe->heads[id->bytes[14] % DCTF_TABLE_HEADS];
}

enum dctf_err dctf_table_init(struct dctf_store *store)
{
    store->stripes =
        aligned_alloc(_Alignof(struct dctf_stripe), DCTF_TABLE_STRIPES * sizeof(*store->stripes));
    if (!store->stripes)
        return DCTF_ERR_NO_MEMORY;
    memset(store->stripes, 0, DCTF_TABLE_STRIPES * sizeof(*store->stripes));
    for (unsigned i = 0; i < DCTF_TABLE_STRIPES; i++) {
        pthread_mutex_init(&store->stripes[i].lock, NULL);
        pthread_cond_init(&store->stripes[i].loaded, NULL);
        dctf_list_init(&store->stripes[i].idle);
    }
    return DCTF_OK;
}

static void free_shard(struct dctf_shard *shard)
{
    if (shard->fd >= 0)
        close(shard->fd);
    for (uint32_t i = 0; shard->extents && i < shard->extent_count; i++)
        free(atomic_load_explicit(&shard->extents[i], memory_order_relaxed));
    free(shard->extents);
    pthread_mutex_destroy(&shard->change_lock);
    pthread_rwlock_destroy(&shard->lock);
    dctf_version_unref(shard->version);
    free(shard);
}

static struct dctf_shard *find_locked(struct dctf_stripe *stripe, const struct dctf_id *id)
{
    struct dctf_shard *shard = *head_of(stripe, id);

    while (shard && memcmp(shard->version->id.bytes, id->bytes, sizeof(id->bytes)) != 0)
        shard = shard->next;
    return shard;
}

static void unlink_locked(struct dctf_stripe *stripe, struct dctf_shard *shard)
{
    struct dctf_shard **at = head_of(stripe, &shard->version->id);

    while (*at != shard)
        at = &(*at)->next;
    *at = shard->next;
}

void dctf_table_fini(struct dctf_store *store)
{
    if (!store->stripes)
        return;
    for (unsigned i = 0; i < DCTF_TABLE_STRIPES; i++) {
        struct dctf_stripe *stripe = &store->stripes[i];
        struct dctf_list *node;

        while ((node = dctf_list_pop(&stripe->idle))) {
            struct dctf_shard *shard = dctf_list_entry(node, struct dctf_shard, idle);

            unlink_locked(stripe, shard);
            free_shard(shard);
        }
        for (unsigned head = 0; head < DCTF_TABLE_HEADS; head++)
            assert(!stripe->heads[head]);
        pthread_mutex_destroy(&stripe->lock);
        pthread_cond_destroy(&stripe->loaded);
    }
    free(store->stripes);
    store->stripes = NULL;
}

static struct dctf_shard *new_shard(struct dctf_store *store, struct dctf_version *version, uint64_t dataset)
{
    struct dctf_shard *shard = calloc(1, sizeof(*shard));
    pthread_rwlockattr_t attr;

    if (!shard)
        return NULL;
    shard->store = store;
    shard->version = dctf_version_ref(version);
    shard->dataset = dataset;
    shard->kind = version->size <= DCTF_SMALL_BYTES ? DCTF_RECORD_SMALL : DCTF_RECORD_FILE;
    shard->blocks = dctf_blocks_of(version->size);
    shard->extent_count = (shard->blocks + DCTF_EXTENT_BLOCKS - 1) / DCTF_EXTENT_BLOCKS;
    shard->state = DCTF_SHARD_LOADING;
    shard->refs = 1;
    dctf_list_init(&shard->idle);
    atomic_init(&shard->fd, -1);
    pthread_mutex_init(&shard->change_lock, NULL);
    /* An evictor must get its turn under a steady stream of readers. */
    pthread_rwlockattr_init(&attr);
    pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&shard->lock, &attr);
    pthread_rwlockattr_destroy(&attr);
    return shard;
}

/* Take one extent record into the object; false when it makes no sense. */
static bool load_extent(
    struct dctf_shard *shard, const void *key, size_t key_len, const void *data, size_t len, bool verified)
{
    struct dctf_record_extent record;
    struct dctf_extent *extent;
    struct dctf_id id;
    uint32_t number, blocks;

    if (!dctf_record_extent_key_decode(key, key_len, &id, &number) || number >= shard->extent_count ||
        dctf_record_extent_decode(key, data, len, &record))
        return false;
    blocks = dctf_shard_extent_blocks(shard, number);
    if (blocks < DCTF_EXTENT_BLOCKS && record.present >> blocks)
        return false;
    extent = calloc(1, sizeof(*extent));
    if (!extent)
        return true; /* absent is always a safe answer */
    memcpy(extent->hash, record.hash, sizeof(extent->hash));
    atomic_init(&extent->present, record.present);
    atomic_init(&extent->verified, verified ? record.present : 0);
    atomic_store(&shard->extents[number], extent);
    shard->present_blocks += (unsigned)__builtin_popcount(record.present);
    return true;
}

static void load_extents(struct dctf_shard *shard)
{
    struct dctf_store *store = shard->store;
    bool verified = dctf_idset_has(store->verified, &shard->version->id);
    struct dctf_kv_iter *iter;

    if (dctf_kv_iter_new(store->kv, DCTF_KV_EXTENT, shard->version->id.bytes, 16, &iter))
        return;
    for (; dctf_kv_iter_valid(iter); dctf_kv_iter_next(iter)) {
        size_t key_len, len;
        const char *key = dctf_kv_iter_key(iter, &key_len);
        const char *data = dctf_kv_iter_value(iter, &len);

        if (!load_extent(shard, key, key_len, data, len, verified))
            dctf_log(DCTF_LOG_WARN, "cache", "err=%d what=extent_record", (int)DCTF_ERR_CACHE_CORRUPT);
    }
    dctf_kv_iter_free(iter);
    if (verified)
        shard->verified_blocks = shard->present_blocks;
}

/* What the index says of a shard. An index that cannot be read, or makes no sense,
 * says nothing is here: that is safe, and a reader gets its bytes elsewhere. */
static enum dctf_err load(struct dctf_shard *shard)
{
    struct dctf_store *store = shard->store;
    const struct dctf_id *id = &shard->version->id;
    struct dctf_record_shard record;
    struct dctf_kv_value value;
    enum dctf_err err;
    uint64_t actual;

    if (shard->kind == DCTF_RECORD_FILE) {
        shard->extents = calloc(shard->extent_count, sizeof(*shard->extents));
        if (!shard->extents)
            return DCTF_ERR_NO_MEMORY;
    }
    if (!shard->blocks || dctf_kv_get(store->kv, DCTF_KV_SHARD, id->bytes, sizeof(id->bytes), &value))
        return DCTF_OK;
    err = dctf_record_shard_decode(id, value.data, value.len, &record);
    if (err || record.kind != shard->kind || record.size != shard->version->size) {
        dctf_kv_value_put(&value);
        dctf_shard_purge_record(store, id->bytes, sizeof(id->bytes));
        return DCTF_OK;
    }
    dctf_kv_value_put(&value);
    if (shard->kind == DCTF_RECORD_SMALL) {
        err = dctf_kv_touch(store->kv, DCTF_KV_SMALL, id->bytes, sizeof(id->bytes));
        if (!err)
            shard->present_blocks = shard->blocks;
        else if (err == DCTF_ERR_CACHE_CORRUPT)
            dctf_shard_purge_record(store, id->bytes, sizeof(id->bytes));
        return DCTF_OK;
    }
    load_extents(shard);
    actual = dctf_shard_resident(shard, 0, shard->blocks);
    record.present_bytes = (record.present_bytes + 4095) & ~(uint64_t)4095;
    if (actual != record.present_bytes)
        dctf_space_book(store, (int64_t)(actual - record.present_bytes), 0, 0);
    return DCTF_OK;
}

/* The object is READY, or the caller's reference is gone. */
static enum dctf_err wait_locked(struct dctf_stripe *stripe, struct dctf_shard *shard, bool *last)
{
    while (shard->state == DCTF_SHARD_LOADING)
        pthread_cond_wait(&stripe->loaded, &stripe->lock);
    *last = false;
    if (shard->state == DCTF_SHARD_READY)
        return DCTF_OK;
    *last = --shard->refs == 0;
    return DCTF_ERR_NO_MEMORY;
}

static enum dctf_err load_new(struct dctf_stripe *stripe, struct dctf_shard *shard)
{
    enum dctf_err err = load(shard);
    bool last = false;

    pthread_mutex_lock(&stripe->lock);
    shard->state = err ? DCTF_SHARD_FAILED : DCTF_SHARD_READY;
    if (err) {
        unlink_locked(stripe, shard);
        last = --shard->refs == 0;
    }
    pthread_cond_broadcast(&stripe->loaded);
    pthread_mutex_unlock(&stripe->lock);
    if (last)
        free_shard(shard);
    return err;
}

enum dctf_err dctf_table_get(
    struct dctf_store *store, struct dctf_version *version, uint64_t dataset, struct dctf_shard **out)
{
    struct dctf_stripe *stripe = stripe_of(store, &version->id);
    struct dctf_shard **head = head_of(stripe, &version->id);
    struct dctf_shard *shard;
    enum dctf_err err = DCTF_OK;
    bool last = false;
    bool fresh = false;

    *out = NULL;
    if (version->size > DCTF_RECORD_SIZE_MAX)
        return DCTF_ERR_CACHE_IO;
    pthread_mutex_lock(&stripe->lock);
    shard = find_locked(stripe, &version->id);
    if (shard) {
        if (shard->refs++ == 0) {
            dctf_list_remove(&shard->idle);
            stripe->idle_bytes -= shard->footprint;
        }
        err = wait_locked(stripe, shard, &last);
    } else {
        shard = new_shard(store, version, dataset);
        fresh = shard != NULL;
        if (fresh) {
            shard->next = *head;
            *head = shard;
        } else {
            err = DCTF_ERR_NO_MEMORY;
        }
    }
    pthread_mutex_unlock(&stripe->lock);
    if (last)
        free_shard(shard);
    if (fresh)
        err = load_new(stripe, shard);
    if (!err)
        *out = shard;
    return err;
}

enum dctf_err dctf_shard_get(struct dctf_store *store, struct dctf_version *version, struct dctf_shard **out)
{
    return dctf_table_get(store, version, store->config.dataset, out);
}

static size_t footprint_of(const struct dctf_shard *shard)
{
    size_t bytes = sizeof(*shard) + 256; /* the version and the allocator's share */

    if (shard->extents) {
        bytes += shard->extent_count * sizeof(*shard->extents);
        for (uint32_t i = 0; i < shard->extent_count; i++) {
            if (atomic_load_explicit(&shard->extents[i], memory_order_relaxed))
                bytes += sizeof(struct dctf_extent);
        }
    }
    return bytes;
}

/* Idle objects past the bound, as a chain for the caller to free. */
static struct dctf_shard *trim_locked(struct dctf_stripe *stripe, size_t max)
{
    struct dctf_shard *chain = NULL;

    while (stripe->idle_bytes > max) {
        struct dctf_shard *coldest = dctf_list_entry(stripe->idle.prev, struct dctf_shard, idle);

        dctf_list_remove(&coldest->idle);
        stripe->idle_bytes -= coldest->footprint;
        unlink_locked(stripe, coldest);
        coldest->next = chain;
        chain = coldest;
    }
    return chain;
}

void dctf_shard_put(struct dctf_shard *shard)
{
    struct dctf_stripe *stripe;
    struct dctf_shard *chain = NULL;
    int fd = -1;

    if (!shard)
        return;
    stripe = stripe_of(shard->store, &shard->version->id);
    pthread_mutex_lock(&stripe->lock);
    assert(shard->refs > 0);
    if (--shard->refs == 0) {
        assert(atomic_load(&shard->pins) == 0);
        fd = atomic_exchange(&shard->fd, -1); /* nobody else can be using it */
        shard->footprint = footprint_of(shard);
        stripe->idle_bytes += shard->footprint;
        dctf_list_push_front(&stripe->idle, &shard->idle);
        chain = trim_locked(stripe, shard->store->idle_bytes_max);
    }
    pthread_mutex_unlock(&stripe->lock);
    if (fd >= 0)
        close(fd);
    while (chain) {
        struct dctf_shard *next = chain->next;

        free_shard(chain);
        chain = next;
    }
}

bool dctf_table_is_pinned(struct dctf_store *store, const struct dctf_id *id)
{
    struct dctf_stripe *stripe = stripe_of(store, id);
    struct dctf_shard *shard;
    bool pinned;

    pthread_mutex_lock(&stripe->lock);
    shard = find_locked(stripe, id);
    pinned = shard && atomic_load(&shard->pins) > 0;
    pthread_mutex_unlock(&stripe->lock);
    return pinned;
}
