/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening, closing and the figures of a store.
 */
#include "cache/store.h"

#include "base/log.h"
#include "base/thread.h"
#include "cache/admission.h"
#include "cache/kv.h"
#include "cache/listing.h"
#include "cache/state.h"

#include <assert.h>
#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIB ((uint64_t)1 << 20)
#define ADMISSION_SHARDS 262144u
#define VERIFIED_MAX 4194304u
#define EACH_CHUNK 256u
#define OPENINGS_MAX 3u

static uint64_t clamp(uint64_t value, uint64_t low, uint64_t high)
{
    return value < low ? low : value > high ? high : value;
}

struct room {
    struct dctf_store *store;
    unsigned freed;
};

static bool unlink_one(void *ctx, const struct dctf_id *id)
{
    struct room *room = ctx;

    if (id && !dctf_layout_file_unlink(&room->store->layout, id))
        room->freed++;
    return true;
}

/* The disk was filled while nobody was mounted: the database cannot even open. Any
 * file may go, it is a copy; its record is mended when somebody reads it. */
static bool make_room_to_open(struct dctf_store *store)
{
    struct dctf_layout_space space;
    struct room room = {.store = store};

    for (unsigned bucket = 0; bucket < DCTF_LAYOUT_BUCKETS; bucket++) {
        dctf_layout_each_file(&store->layout, bucket, unlink_one, &room);
        if (room.freed && !dctf_layout_space(&store->layout, &space) && space.free_bytes > 32 * MIB)
            break;
    }
    dctf_log(DCTF_LOG_WARN, "cache", "err=%d what=room_to_open files=%u", (int)DCTF_ERR_CACHE_NO_SPACE,
        room.freed);
    return room.freed > 0;
}

static struct dctf_kv_config kv_config(
    const struct dctf_store_config *config, struct dctf_heat_config *heat, const char *dir, char *detail)
{
    uint64_t memory = config->memory_bytes;

    return (struct dctf_kv_config){
        .dir = dir,
        .block_cache_bytes = clamp(memory / 4, 4 * MIB, 256 * MIB),
        /* Also the database's log and what a flush adds at once: small for a small cache. */
        .write_buffer_bytes = clamp(config->size_bytes / 64, MIB, clamp(memory / 8, 2 * MIB, 64 * MIB)),
        .cache_bytes = config->size_bytes,
        .blob_file_bytes = clamp(config->size_bytes / 128, MIB / 2, 64 * MIB),
        .merge_record_bytes = dctf_heat_record_bytes(),
        .merge = dctf_heat_merge,
        .expired = dctf_heat_expired,
        .ctx = heat,
        .detail = detail,
    };
}

static enum dctf_err open_db(struct dctf_store *store, char *detail)
{
    struct dctf_kv_config config =
        kv_config(&store->config, &store->heat_config, store->layout.db_dir, detail);
    enum dctf_err err;

    if (dctf_layout_begin_opening(&store->layout) >= OPENINGS_MAX) {
        if (detail)
            snprintf(detail, DCTF_LAYOUT_DETAIL_BYTES, "%u openings of the index in a row ended in a crash",
                OPENINGS_MAX);
        return DCTF_ERR_CACHE_CORRUPT;
    }
    err = dctf_kv_open(&config, &store->kv);
    if (err == DCTF_ERR_CACHE_NO_SPACE && make_room_to_open(store))
        err = dctf_kv_open(&config, &store->kv);
    dctf_layout_end_opening(&store->layout);
    return err;
}

/* The last figures; exact after a clean close. Until they are written cleanly again,
 * they are not clean. */
static void load_figures(struct dctf_store *store)
{
    struct dctf_record_meta meta = {0};
    struct dctf_kv_value value;
    bool fresh = true;

    if (!dctf_kv_get(
            store->kv, DCTF_KV_META, DCTF_RECORD_META_KEY, sizeof(DCTF_RECORD_META_KEY) - 1, &value)) {
        fresh = false;
        if (dctf_record_meta_decode(value.data, value.len, &meta))
            dctf_log(DCTF_LOG_WARN, "cache", "err=%d what=figures", (int)DCTF_ERR_CACHE_CORRUPT);
        dctf_kv_value_put(&value);
    }
    store->space.file_bytes = meta.file_bytes;
    store->space.small_bytes = meta.small_bytes;
    store->space.shards = meta.shards;
    store->space.changed = true;
    store->counting = !fresh && !meta.clean;
    atomic_store(&store->counting_now, store->counting);
    if (meta.clean)
        store->sweep_bucket = DCTF_LAYOUT_BUCKETS; /* nothing was cut off */
    dctf_maintain_persist(store, false);
}

static struct dctf_heat_config heat_config(
    const struct dctf_store_config *config, const struct dctf_clock *clock)
{
    return (struct dctf_heat_config){
        .half_life_ms = config->heat_half_life_ms,
        .ttl_ms = config->heat_ttl_ms,
        .clock = clock,
        .dataset = config->dataset,
    };
}

enum dctf_err dctf_store_check(const struct dctf_store_config *config, char *detail)
{
    struct dctf_heat_config heat = heat_config(config, config->clock);
    struct dctf_kv_config kv;
    enum dctf_err err;
    char *dir;

    if (asprintf(&dir, "%s/" DCTF_LAYOUT_DB, config->dir) < 0)
        return DCTF_ERR_NO_MEMORY;
    kv = kv_config(config, &heat, dir, detail);
    err = dctf_kv_check(&kv);
    free(dir);
    return err;
}

static void init_store(struct dctf_store *store, const struct dctf_store_config *config)
{
    store->config = *config;
    store->config.dir = NULL;
    store->config.owner = NULL;
    if (config->clock)
        store->clock = *config->clock;
    store->config.clock = &store->clock;
    store->heat_config = heat_config(config, &store->clock);
    store->opened_s = (int64_t)time(NULL);
    store->idle_bytes_max = (size_t)(clamp(config->memory_bytes / 8, MIB, 256 * MIB) / DCTF_TABLE_STRIPES);
    pthread_mutex_init(&store->maintain_lock, NULL);
    pthread_mutex_init(&store->thread_lock, NULL);
}

/* Whatever of it was made. */
static void free_store(struct dctf_store *store)
{
    dctf_table_fini(store);
    dctf_idset_free(store->verified);
    dctf_admission_free(store->admission);
    dctf_listings_free(store->listings);
    dctf_heat_free(store->heat);
    dctf_kv_close(store->kv);
    dctf_layout_close(&store->layout);
    dctf_space_fini(store);
    dctf_share_fini(store);
    pthread_cond_destroy(&store->thread_cond);
    pthread_mutex_destroy(&store->maintain_lock);
    pthread_mutex_destroy(&store->thread_lock);
    free(store);
}

static enum dctf_err open_parts(struct dctf_store *store)
{
    struct dctf_admission_config admission = {
        .max_shards_tracked = ADMISSION_SHARDS,
        .seed = dctf_rng_seed(),
    };
    enum dctf_err err = dctf_heat_new(&store->heat_config, store->kv, &store->heat);

    if (!err)
        err = dctf_listings_new(store->kv, store->config.dataset, &store->clock, &store->listings);
    if (!err)
        err = dctf_admission_new(&admission, &store->admission);
    if (!err)
        err = dctf_idset_new(VERIFIED_MAX, &store->verified);
    if (!err)
        err = dctf_table_init(store);
    return err;
}

enum dctf_err dctf_store_open(const struct dctf_store_config *config, char *detail, struct dctf_store **out)
{
    struct dctf_store *store = calloc(1, sizeof(*store));
    enum dctf_err err;

    *out = NULL;
    if (detail)
        detail[0] = '\0';
    if (!store)
        return DCTF_ERR_NO_MEMORY;
    init_store(store, config);
    err = dctf_thread_cond_init(&store->thread_cond);
    if (err) {
        free(store);
        return err;
    }
    dctf_space_init(store);
    dctf_share_init(store);
    err = dctf_layout_open(config->dir, config->owner, detail, &store->layout);
    if (!err)
        err = open_db(store, detail);
    if (!err)
        err = open_parts(store);
    if (!err) {
        load_figures(store);
        dctf_space_refresh(store);
        err = dctf_maintain_start(store);
    }
    if (err) {
        free_store(store);
        return err;
    }
    *out = store;
    return DCTF_OK;
}

void dctf_store_close(struct dctf_store *store)
{
    if (!store)
        return;
    dctf_maintain_stop(store);
    if (store->scrub_shard)
        dctf_shard_put(store->scrub_shard);
    dctf_maintain_persist(store, true);
    free_store(store);
}

struct dctf_heat *dctf_store_heat(struct dctf_store *store)
{
    return store->heat;
}

struct dctf_listings *dctf_store_listings(struct dctf_store *store)
{
    return store->listings;
}

struct dctf_admission *dctf_store_admission(struct dctf_store *store)
{
    return store->admission;
}

void dctf_store_stats(struct dctf_store *store, struct dctf_store_stats *out)
{
    struct dctf_space *space = &store->space;

    *out = (struct dctf_store_stats){
        .index_bytes = dctf_space_index_bytes(store),
        .verified_shards = dctf_idset_count(store->verified),
        .counting = atomic_load(&store->counting_now),
    };
    pthread_mutex_lock(&space->lock);
    out->limit_bytes = space->limit;
    out->file_bytes = space->file_bytes;
    out->small_bytes = space->small_bytes;
    out->shards = space->shards;
    out->bypassing = space->inodes_low || dctf_clock_mono_ms(&store->clock) < space->backoff_until_ms;
    pthread_mutex_unlock(&space->lock);
}

/* ---- walking the residents ---- */

struct chunk {
    struct dctf_version *versions[EACH_CHUNK];
    uint64_t present[EACH_CHUNK];
    size_t count;
    bool more;
};

/* Read records from *at on; *at becomes where to go on. No iterator is held while the
 * caller's function runs. */
static enum dctf_err read_chunk(struct dctf_store *store, struct dctf_id *at, bool skip, struct chunk *chunk)
{
    struct dctf_kv_iter *iter;
    enum dctf_err err = dctf_kv_iter_new(store->kv, DCTF_KV_SHARD, NULL, 0, &iter);

    chunk->count = 0;
    chunk->more = false;
    if (err)
        return err;
    dctf_kv_iter_seek(iter, at->bytes, sizeof(at->bytes));
    for (; dctf_kv_iter_valid(iter); dctf_kv_iter_next(iter)) {
        struct dctf_record_shard record;
        struct dctf_id id;
        size_t key_len, len;
        const char *key = dctf_kv_iter_key(iter, &key_len);
        const char *data = dctf_kv_iter_value(iter, &len);

        if (key_len != sizeof(id))
            continue;
        memcpy(&id, key, sizeof(id));
        if (skip && !memcmp(&id, at, sizeof(id)))
            continue;
        if (chunk->count == EACH_CHUNK) {
            chunk->more = true;
            break;
        }
        *at = id;
        skip = true;
        if (dctf_record_shard_decode(&id, data, len, &record) || record.dataset != store->config.dataset ||
            dctf_record_shard_version(&id, &record, &chunk->versions[chunk->count]))
            continue;
        chunk->present[chunk->count++] = record.present_bytes;
    }
    dctf_kv_iter_free(iter);
    return DCTF_OK;
}

enum dctf_err dctf_store_each(struct dctf_store *store,
    bool (*visit)(void *ctx, const struct dctf_version *version, uint64_t present_bytes), void *ctx)
{
    struct chunk *chunk = malloc(sizeof(*chunk));
    struct dctf_id at = {{0}};
    enum dctf_err err = chunk ? DCTF_OK : DCTF_ERR_NO_MEMORY;
    bool skip = false;
    bool going = true;

    while (!err && going) {
        err = read_chunk(store, &at, skip, chunk);
        skip = true;
        for (size_t i = 0; !err && i < chunk->count; i++) {
            going = going && visit(ctx, chunk->versions[i], chunk->present[i]);
            dctf_version_unref(chunk->versions[i]);
        }
        going = going && !err && chunk->more;
    }
    free(chunk);
    return err;
}

/* ---- numbers ---- */

#define NUMBER_NAME_MAX 32u
#define NUMBER_PREFIX "number:"

/* The number and the XXH3 of itself seeded by its key's. */
struct number_record {
    uint64_t number, sum;
};

static size_t number_key(const char *name, char out[NUMBER_NAME_MAX + sizeof(NUMBER_PREFIX)])
{
    int len = snprintf(out, NUMBER_NAME_MAX + sizeof(NUMBER_PREFIX), NUMBER_PREFIX "%s", name);

    assert(len > 0 && (size_t)len < NUMBER_NAME_MAX + sizeof(NUMBER_PREFIX));
    return (size_t)len;
}

bool dctf_store_number_get(struct dctf_store *store, const char *name, uint64_t *out)
{
    char key[NUMBER_NAME_MAX + sizeof(NUMBER_PREFIX)];
    size_t len = number_key(name, key);
    struct number_record record = {0};
    struct dctf_kv_value value;
    bool ok;

    *out = 0;
    if (dctf_kv_get(store->kv, DCTF_KV_META, key, len, &value))
        return false;
    ok = value.len == sizeof(record);
    if (ok)
        memcpy(&record, value.data, sizeof(record));
    dctf_kv_value_put(&value);
    if (!ok || record.sum != dctf_hash64_seed(&record.number, sizeof(record.number), dctf_hash64(key, len))) {
        dctf_log(DCTF_LOG_WARN, "cache", "err=%d what=number", (int)DCTF_ERR_CACHE_CORRUPT);
        return false;
    }
    *out = le64toh(record.number);
    return true;
}

enum dctf_err dctf_store_number_put(struct dctf_store *store, const char *name, uint64_t number)
{
    char key[NUMBER_NAME_MAX + sizeof(NUMBER_PREFIX)];
    size_t len = number_key(name, key);
    struct number_record record = {.number = htole64(number)};
    struct dctf_kv_batch *batch;
    enum dctf_err err = dctf_kv_batch_new(&batch);

    if (err)
        return err;
    record.sum = dctf_hash64_seed(&record.number, sizeof(record.number), dctf_hash64(key, len));
    dctf_kv_batch_put(batch, store->kv, DCTF_KV_META, key, len, &record, sizeof(record));
    err = dctf_kv_write(store->kv, batch, DCTF_KV_LOGGED);
    dctf_kv_batch_free(batch);
    return err;
}
