/* SPDX-License-Identifier: Apache-2.0
 *
 * The round once a second: heat to the database, cap and reserves, garbage, what a
 * crash left behind, figures. Each step does a bounded amount of work.
 */
#include "base/log.h"
#include "base/thread.h"
#include "cache/kv.h"
#include "cache/listing.h"
#include "cache/state.h"

#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define EVICT_ROUNDS 64u
#define SWEEP_BUCKETS 32u
#define SMALL_IDLE_MS 2000u
#define SMALL_DIRTY_MS 30000u
#define COLLECT_PASSES 16u
#define COLLECT_MS 500u /* in one round, and the pass that was begun */
#define COMPACT_PAUSE_MS 10000u
#define COMPACT_PAUSE_MAX_MS 3600000u
#define LISTINGS_SWEEP_MS 10000u
#define TOUCHES_MAX 2048u

/* ---- cap and reserves ---- */

/* Garbage on its way back to the filesystem; of what was not got back lately, nothing is expected. */
static uint64_t returning(struct dctf_store *store)
{
    struct dctf_space *space = &store->space;
    uint64_t bytes;

    pthread_mutex_lock(&space->lock);
    bytes = store->compact_pause_ms ? space->small_evicted : space->small_dead;
    pthread_mutex_unlock(&space->lock);
    return bytes;
}

/* A compaction that runs is counted twice, in its files and in the room for it; that passes before the
 * next round. What takes more than half of the headroom does not wait. */
static bool is_over(struct dctf_store *store)
{
    uint64_t excess = dctf_space_excess(store);
    bool before = store->was_over;

    store->was_over = excess > 0;
    return excess && (before || excess > dctf_space_headroom(store) / 2);
}

static void enforce(struct dctf_store *store)
{
    uint64_t dead = returning(store);
    uint64_t excess;
    bool inodes_low, over;

    dctf_space_refresh(store);
    over = is_over(store);
    for (unsigned i = 0; over && i < EVICT_ROUNDS && (excess = dctf_space_excess(store)) > dead; i++) {
        struct dctf_evict_freed freed =
            dctf_evict_one(store, &(struct dctf_evict_wish){.need = excess - dead});

        if (!freed.bytes && !freed.dead)
            break;
        dead += freed.dead;
    }
    if (dead && dctf_space_excess(store))
        atomic_store(&store->compact_due, true);
    pthread_mutex_lock(&store->space.lock);
    inodes_low = store->space.inodes_low;
    pthread_mutex_unlock(&store->space.lock);
    for (unsigned i = 0; inodes_low && i < EVICT_ROUNDS / 4; i++)
        (void)dctf_evict_one(store, &(struct dctf_evict_wish){.whole = true});
}

static bool is_stopping(struct dctf_store *store)
{
    bool stopping;

    pthread_mutex_lock(&store->thread_lock);
    stopping = store->stopping;
    pthread_mutex_unlock(&store->thread_lock);
    return stopping;
}

/* What the database takes beside what was written to it lately, which goes on while garbage is collected. */
static int64_t bytes_beside(struct dctf_store *store)
{
    struct dctf_space *space = &store->space;
    struct dctf_kv_usage db;
    uint64_t written;

    dctf_kv_usage(store->kv, &db);
    pthread_mutex_lock(&space->lock);
    written = space->small_bytes + space->small_evicted;
    pthread_mutex_unlock(&space->lock);
    return (int64_t)db.disk_bytes - (int64_t)written;
}

/* Collect when the garbage of small shards is worth it, or somebody waits for it. Each pass takes
 * the files that are the oldest then, so passes go round. */
static void collect_garbage(struct dctf_store *store)
{
    struct dctf_space *space = &store->space;
    uint64_t now = dctf_clock_mono_ms(&store->clock);
    uint64_t dead = dctf_space_dead(store);
    uint64_t until = dctf_clock_mono_ms(NULL) + COLLECT_MS;
    int64_t before, gained = 0;

    if (!dead || (!atomic_load(&store->compact_due) && dead < dctf_space_dead_max(store)) ||
        now < store->compact_not_before_ms)
        return;
    atomic_store(&store->compact_due, false);
    dctf_kv_measure(store->kv);
    before = bytes_beside(store);
    for (unsigned pass = 0; pass < COLLECT_PASSES && gained < (int64_t)(dead / 2) && !is_stopping(store) &&
                            (!pass || dctf_clock_mono_ms(NULL) < until);
         pass++) {
        dctf_kv_collect(store->kv, dctf_space_collect_room(store));
        gained = before - bytes_beside(store);
    }
    pthread_mutex_lock(&space->lock);
    space->looked_ms = 0;
    space->small_evicted = 0;
    pthread_mutex_unlock(&space->lock);
    dctf_space_refresh(store);
    /* What gave little back is not tried again soon. */
    if (gained > (int64_t)(dead / 32))
        store->compact_pause_ms = 0;
    else
        store->compact_pause_ms =
            store->compact_pause_ms ? store->compact_pause_ms * 2 : (uint64_t)COMPACT_PAUSE_MS;
    if (store->compact_pause_ms > COMPACT_PAUSE_MAX_MS)
        store->compact_pause_ms = COMPACT_PAUSE_MAX_MS;
    store->compact_not_before_ms = now + store->compact_pause_ms;
    dctf_log(DCTF_LOG_DEBUG, "cache", "what=collected dead=%llu gained=%lld", (unsigned long long)dead,
        (long long)gained);
}

static void recover_db(struct dctf_store *store)
{
    if (atomic_load(&store->db_failed) && !dctf_kv_recover(store->kv))
        atomic_store(&store->db_failed, false);
}

/* ---- what a crash left behind ---- */

/* The index is read as of one moment; changes since are booked on top of it. */
static void recount(struct dctf_store *store)
{
    struct dctf_space *space = &store->space;
    uint64_t file_bytes = 0, small_bytes = 0, shards = 0;
    uint64_t old_files, old_small, old_shards;
    struct dctf_kv_iter *iter;

    if (!store->counting)
        return;
    pthread_mutex_lock(&space->lock);
    old_files = space->file_bytes;
    old_small = space->small_bytes;
    old_shards = space->shards;
    pthread_mutex_unlock(&space->lock);
    if (dctf_kv_iter_new(store->kv, DCTF_KV_SHARD, NULL, 0, &iter))
        return;
    for (; dctf_kv_iter_valid(iter); dctf_kv_iter_next(iter)) {
        struct dctf_record_shard record;
        struct dctf_id id;
        size_t key_len, len;
        const char *key = dctf_kv_iter_key(iter, &key_len);
        const char *data = dctf_kv_iter_value(iter, &len);

        if (key_len != sizeof(id))
            continue;
        memcpy(&id, key, sizeof(id));
        if (dctf_record_shard_decode(&id, data, len, &record))
            continue;
        shards++;
        if (record.kind == DCTF_RECORD_SMALL)
            small_bytes += record.size + dctf_record_small_header_bytes(record.size);
        else
            file_bytes += (record.present_bytes + 4095) & ~(uint64_t)4095;
    }
    dctf_kv_iter_free(iter);
    pthread_mutex_lock(&space->lock);
    space->file_bytes += file_bytes;
    space->file_bytes -= space->file_bytes < old_files ? space->file_bytes : old_files;
    space->small_bytes += small_bytes;
    space->small_bytes -= space->small_bytes < old_small ? space->small_bytes : old_small;
    space->shards += shards;
    space->shards -= space->shards < old_shards ? space->shards : old_shards;
    space->changed = true;
    pthread_mutex_unlock(&space->lock);
    store->counting = false;
    atomic_store(&store->counting_now, false);
    dctf_log(DCTF_LOG_INFO, "cache", "what=recounted shards=%llu file_bytes=%llu small_bytes=%llu",
        (unsigned long long)shards, (unsigned long long)file_bytes, (unsigned long long)small_bytes);
}

struct orphans {
    struct dctf_store *store;
    struct dctf_id ids[64];
    size_t count;
};

static bool note_orphan(void *ctx, const struct dctf_id *id)
{
    struct orphans *orphans = ctx;
    struct dctf_kv_value value;
    enum dctf_err err;

    if (!id)
        return true;
    err = dctf_kv_get(orphans->store->kv, DCTF_KV_SHARD, id->bytes, sizeof(id->bytes), &value);
    dctf_kv_value_put(&value);
    if (err == DCTF_ERR_MISS)
        orphans->ids[orphans->count++] = *id;
    return orphans->count < sizeof(orphans->ids) / sizeof(orphans->ids[0]);
}

/* A file without a record: a write was cut off between the two, or a drop was. There
 * is no object to lock, but what this process writes is younger than itself. */
static void unlink_orphan(struct dctf_store *store, const struct dctf_id *id)
{
    struct stat st;
    int fd;

    if (dctf_layout_file_open(&store->layout, id, false, 0, &fd))
        return;
    if (!fstat(fd, &st) && st.st_ctim.tv_sec < store->opened_s &&
        !dctf_layout_file_unlink(&store->layout, id))
        dctf_log(DCTF_LOG_INFO, "cache", "what=orphan_removed bytes=%lld", (long long)st.st_blocks * 512);
    close(fd);
}

static void sweep(struct dctf_store *store)
{
    struct orphans orphans = {.store = store};

    for (unsigned i = 0; i < SWEEP_BUCKETS && store->sweep_bucket < DCTF_LAYOUT_BUCKETS; i++) {
        orphans.count = 0;
        dctf_layout_each_file(&store->layout, store->sweep_bucket, note_orphan, &orphans);
        for (size_t k = 0; k < orphans.count; k++)
            unlink_orphan(store, &orphans.ids[k]);
        store->sweep_bucket++;
    }
}

/* ---- the round ---- */

void dctf_maintain_persist(struct dctf_store *store, bool clean)
{
    struct dctf_space *space = &store->space;
    struct dctf_record_meta meta = {.clean = clean && !store->counting};
    struct dctf_kv_batch *batch;
    uint8_t buf[DCTF_RECORD_META_BYTES];
    bool changed;

    pthread_mutex_lock(&space->lock);
    meta.file_bytes = space->file_bytes;
    meta.small_bytes = space->small_bytes;
    meta.shards = space->shards;
    changed = space->changed;
    space->changed = false;
    pthread_mutex_unlock(&space->lock);
    if ((!changed && !clean) || dctf_kv_batch_new(&batch))
        return;
    dctf_record_meta_encode(&meta, buf);
    dctf_kv_batch_put(batch, store->kv, DCTF_KV_META, DCTF_RECORD_META_KEY, sizeof(DCTF_RECORD_META_KEY) - 1,
        buf, sizeof(buf));
    if (dctf_kv_write(store->kv, batch, DCTF_KV_LOGGED))
        atomic_store(&store->db_failed, true);
    dctf_kv_batch_free(batch);
}

static void sweep_listings(struct dctf_store *store)
{
    uint64_t now = dctf_clock_mono_ms(&store->clock);

    if (now - store->listings_swept_ms < LISTINGS_SWEEP_MS)
        return;
    store->listings_swept_ms = now;
    if (dctf_listings_sweep(store->listings, store->config.heat_ttl_ms))
        atomic_store(&store->db_failed, true);
}

static void flush_heat(struct dctf_store *store)
{
    atomic_store(&store->touches, 0);
    if (dctf_heat_flush(store->heat))
        atomic_store(&store->db_failed, true);
}

/* Small shards are written without the log; a burst that is over, or one that goes on, is
 * made to survive a kill. Not more often: each time makes a file. */
static void flush_small(struct dctf_store *store)
{
    uint64_t now = dctf_clock_mono_ms(&store->clock);
    uint64_t since = atomic_load(&store->small_dirty_ms);

    if (!since ||
        (now - atomic_load(&store->small_written_ms) < SMALL_IDLE_MS && now - since < SMALL_DIRTY_MS))
        return;
    atomic_store(&store->small_dirty_ms, 0);
    dctf_kv_flush(store->kv, DCTF_KV_SMALL);
}

void dctf_store_maintain(struct dctf_store *store)
{
    pthread_mutex_lock(&store->maintain_lock);
    recover_db(store);
    flush_heat(store);
    recount(store);
    flush_small(store);
    enforce(store);
    collect_garbage(store);
    sweep(store);
    sweep_listings(store);
    if (store->config.scrub)
        dctf_scrub_round(store);
    dctf_maintain_persist(store, false);
    pthread_mutex_unlock(&store->maintain_lock);
}

void dctf_maintain_note_touch(struct dctf_store *store)
{
    if (atomic_fetch_add_explicit(&store->touches, 1, memory_order_relaxed) + 1 != TOUCHES_MAX)
        return;
    pthread_mutex_lock(&store->thread_lock);
    store->heat_waits = true;
    pthread_cond_signal(&store->thread_cond);
    pthread_mutex_unlock(&store->thread_lock);
}

/* Wait for the next second; true when only heat is to be flushed before. */
static bool wait_locked(struct dctf_store *store, const struct timespec *until)
{
    int rc = 0;

    while (!store->stopping && !store->heat_waits && !rc)
        rc = pthread_cond_timedwait(&store->thread_cond, &store->thread_lock, until);
    return !store->stopping && store->heat_waits;
}

static void *run(void *ctx)
{
    struct dctf_store *store = ctx;
    struct timespec until;
    bool stopping = false;
    bool heat_only = false;

    if (atomic_load(&store->counting_now)) /* nothing is kept before the figures are right */
        dctf_store_maintain(store);
    while (!stopping) {
        if (!heat_only) {
            clock_gettime(CLOCK_MONOTONIC, &until);
            until.tv_sec++;
        }
        pthread_mutex_lock(&store->thread_lock);
        heat_only = wait_locked(store, &until);
        store->heat_waits = false;
        stopping = store->stopping;
        pthread_mutex_unlock(&store->thread_lock);
        if (heat_only)
            flush_heat(store);
        else if (!stopping)
            dctf_store_maintain(store);
    }
    return NULL;
}

enum dctf_err dctf_maintain_start(struct dctf_store *store)
{
    return dctf_thread_start("dctf-cache", run, store, &store->thread);
}

void dctf_maintain_stop(struct dctf_store *store)
{
    pthread_mutex_lock(&store->thread_lock);
    store->stopping = true;
    pthread_cond_signal(&store->thread_cond);
    pthread_mutex_unlock(&store->thread_lock);
    pthread_join(store->thread, NULL);
}
