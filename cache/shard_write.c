/* SPDX-License-Identifier: Apache-2.0
 *
 * Keeping and dropping bytes. Keeping: data is on disk before the index says so, and
 * the index says so before memory does. Dropping goes the other way: memory, index,
 * data. So a crash between any two steps leaves blocks that are absent, or bytes
 * that nobody points at and the sweep finds; never an index that promises bytes that
 * were not written.
 *
 * One batch carries all records of one change.
 */
#include "base/log.h"
#include "base/metric.h"
#include "cache/kv.h"
#include "cache/state.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FS_BLOCK 4096u

/* Bits of an extent that lie in blocks [first, first + count). */
static uint32_t mask_of(uint32_t extent, uint32_t first, uint32_t count)
{
    uint64_t base = (uint64_t)extent * DCTF_EXTENT_BLOCKS;
    uint64_t from = first > base ? first - base : 0;
    uint64_t to = (uint64_t)first + count - base;

    if (to > DCTF_EXTENT_BLOCKS)
        to = DCTF_EXTENT_BLOCKS;
    return (uint32_t)(((uint64_t)1 << to) - ((uint64_t)1 << from));
}

/* What `count` blocks take on disk, the shard's last one among them or not. */
static uint64_t cost_of(const struct dctf_shard *shard, uint64_t count, bool with_last)
{
    uint64_t bytes = count * DCTF_BLOCK_BYTES;

    if (with_last) {
        uint32_t len = dctf_block_len(shard->version->size, shard->blocks - 1);

        bytes -= DCTF_BLOCK_BYTES - ((len + FS_BLOCK - 1) & ~(FS_BLOCK - 1));
    }
    return bytes;
}

uint64_t dctf_shard_resident(struct dctf_shard *shard, uint32_t first, uint32_t count)
{
    uint32_t present = dctf_shard_count_present(shard, first, count);
    bool with_last =
        first + count == shard->blocks && count && dctf_shard_is_present(shard, shard->blocks - 1);

    return cost_of(shard, present, with_last);
}

/* ---- records ---- */

static void batch_shard(struct dctf_shard *shard, struct dctf_kv_batch *batch, uint64_t present_bytes)
{
    const struct dctf_id *id = &shard->version->id;
    struct dctf_record_shard record;
    uint8_t buf[DCTF_RECORD_SHARD_MAX];
    size_t len;

    if (!present_bytes) {
        dctf_kv_batch_delete(batch, shard->store->kv, DCTF_KV_SHARD, id->bytes, sizeof(id->bytes));
        return;
    }
    dctf_record_shard_of(shard->version, shard->dataset, shard->kind, present_bytes, &record);
    len = dctf_record_shard_encode(id, &record, buf);
    dctf_kv_batch_put(batch, shard->store->kv, DCTF_KV_SHARD, id->bytes, sizeof(id->bytes), buf, len);
}

static void batch_extent(struct dctf_shard *shard, struct dctf_kv_batch *batch, uint32_t number,
    const struct dctf_extent *extent, uint32_t present)
{
    struct dctf_record_extent record = {.present = present};
    uint8_t key[DCTF_RECORD_EXTENT_KEY];
    uint8_t buf[DCTF_RECORD_EXTENT_MAX];
    size_t len;

    dctf_record_extent_key(&shard->version->id, number, key);
    if (!present) {
        dctf_kv_batch_delete(batch, shard->store->kv, DCTF_KV_EXTENT, key, sizeof(key));
        return;
    }
    memcpy(record.hash, extent->hash, sizeof(record.hash));
    len = dctf_record_extent_encode(key, &record, buf);
    dctf_kv_batch_put(batch, shard->store->kv, DCTF_KV_EXTENT, key, sizeof(key), buf, len);
}

static enum dctf_err write_batch(
    struct dctf_store *store, struct dctf_kv_batch *batch, enum dctf_kv_durability durability)
{
    enum dctf_err err = dctf_kv_write(store->kv, batch, durability);

    if (err)
        atomic_store(&store->db_failed, true);
    return err;
}

void dctf_shard_purge_record(struct dctf_store *store, const void *key, size_t len)
{
    struct dctf_kv_batch *batch;

    dctf_log(DCTF_LOG_WARN, "cache", "err=%d what=shard_record", (int)DCTF_ERR_CACHE_CORRUPT);
    dctf_metric_error(store->config.metrics, DCTF_ERR_CACHE_CORRUPT);
    if (dctf_kv_batch_new(&batch))
        return;
    dctf_kv_batch_delete(batch, store->kv, DCTF_KV_SHARD, key, len);
    dctf_kv_batch_delete(batch, store->kv, DCTF_KV_SMALL, key, len);
    if (write_batch(store, batch, DCTF_KV_LOGGED))
        dctf_log(DCTF_LOG_DEBUG, "cache", "what=record_not_purged");
    dctf_kv_batch_free(batch);
}

/* ---- dropping ---- */

/* Drop presence in memory and put the records that follow from it into the batch.
 * Returns the number of blocks dropped. With the lock held exclusively. */
static uint32_t forget_blocks(
    struct dctf_shard *shard, struct dctf_kv_batch *batch, uint32_t first, uint32_t count)
{
    uint32_t dropped = 0;
    uint32_t verified = 0;

    for (uint32_t e = first / DCTF_EXTENT_BLOCKS; e <= (first + count - 1) / DCTF_EXTENT_BLOCKS; e++) {
        struct dctf_extent *extent = dctf_shard_extent(shard, e);
        uint32_t mask = mask_of(e, first, count);
        uint32_t before;

        if (!extent || !(atomic_load(&extent->present) & mask))
            continue;
        before = atomic_fetch_and(&extent->present, ~mask);
        dropped += (uint32_t)__builtin_popcount(before & mask);
        verified += (uint32_t)__builtin_popcount(atomic_fetch_and(&extent->verified, ~mask) & mask);
        if (batch)
            batch_extent(shard, batch, e, extent, before & ~mask);
    }
    atomic_fetch_sub(&shard->present_blocks, dropped);
    atomic_fetch_sub(&shard->verified_blocks, verified);
    return dropped;
}

static bool punch(struct dctf_shard *shard, uint32_t first, uint32_t count)
{
    int fd;

    if (dctf_shard_file(shard, false, &fd))
        return true; /* no file, no bytes */
    if (!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)first * DCTF_BLOCK_BYTES,
            (off_t)count * DCTF_BLOCK_BYTES))
        return true;
    if (errno == EOPNOTSUPP)
        atomic_store(&shard->store->no_punch, true);
    return false;
}

/* Give the bytes back. With the lock held exclusively: nobody reads. */
static void release_bytes(struct dctf_shard *shard, uint32_t first, uint32_t count)
{
    int fd;

    if (atomic_load(&shard->present_blocks)) {
        if (!punch(shard, first, count))
            dctf_log(DCTF_LOG_DEBUG, "cache", "what=punch errno=%d", errno);
        return;
    }
    fd = atomic_exchange(&shard->fd, -1);
    if (fd >= 0)
        close(fd);
    if (dctf_layout_file_unlink(&shard->store->layout, &shard->version->id))
        dctf_log(DCTF_LOG_WARN, "cache", "err=%d what=unlink errno=%d", (int)DCTF_ERR_CACHE_IO, errno);
}

static uint64_t drop_small(struct dctf_shard *shard, struct dctf_kv_batch *batch)
{
    struct dctf_store *store = shard->store;
    const struct dctf_id *id = &shard->version->id;
    uint64_t bytes = shard->version->size + dctf_record_small_header_bytes(shard->version->size);

    if (!shard->blocks || !atomic_exchange(&shard->present_blocks, 0))
        return 0;
    if (batch) {
        dctf_kv_batch_delete(batch, store->kv, DCTF_KV_SHARD, id->bytes, sizeof(id->bytes));
        dctf_kv_batch_delete(batch, store->kv, DCTF_KV_SMALL, id->bytes, sizeof(id->bytes));
        if (write_batch(store, batch, DCTF_KV_LOGGED))
            dctf_log(DCTF_LOG_DEBUG, "cache", "what=drop_not_recorded");
    }
    dctf_space_book(store, 0, -(int64_t)bytes, -1);
    return bytes;
}

static uint64_t drop_file(
    struct dctf_shard *shard, struct dctf_kv_batch *batch, uint32_t first, uint32_t count, enum dctf_drop why)
{
    struct dctf_store *store = shard->store;
    uint64_t before, bytes;
    uint32_t dropped;
    bool pinned;

    pthread_rwlock_wrlock(&shard->lock);
    pinned = atomic_load(&shard->pins) > 0;
    if (pinned && why == DCTF_DROP_EVICT) {
        pthread_rwlock_unlock(&shard->lock);
        return 0;
    }
    before = dctf_shard_resident(shard, 0, shard->blocks);
    dropped = forget_blocks(shard, batch, first, count);
    pthread_rwlock_unlock(&shard->lock);
    if (!dropped)
        return 0;
    bytes = before - dctf_shard_resident(shard, 0, shard->blocks);
    dctf_idset_remove(store->verified, &shard->version->id);
    /* A record that could not be taken back promises bytes that fail their sums: they
     * are seen and dropped then. Space is needed now. */
    if (batch) {
        batch_shard(shard, batch, dctf_shard_present_bytes(shard));
        if (write_batch(store, batch, DCTF_KV_LOGGED))
            dctf_log(DCTF_LOG_DEBUG, "cache", "what=drop_not_recorded");
    }
    if (!pinned) {
        pthread_rwlock_wrlock(&shard->lock);
        release_bytes(shard, first, count);
        pthread_rwlock_unlock(&shard->lock);
    }
    dctf_space_book(store, -(int64_t)bytes, 0, atomic_load(&shard->present_blocks) ? 0 : -1);
    return bytes;
}

uint64_t dctf_shard_drop_locked(struct dctf_shard *shard, uint32_t first, uint32_t count, enum dctf_drop why)
{
    struct dctf_kv_batch *batch;
    uint64_t bytes;

    if (first >= shard->blocks || !count)
        return 0;
    if (count > shard->blocks - first)
        count = shard->blocks - first;
    if (dctf_kv_batch_new(&batch))
        batch = NULL; /* presence must go all the same */
    bytes = shard->kind == DCTF_RECORD_SMALL ? drop_small(shard, batch)
                                             : drop_file(shard, batch, first, count, why);
    dctf_kv_batch_free(batch);
    return bytes;
}

void dctf_shard_drop(struct dctf_shard *shard, uint32_t first, uint32_t count)
{
    pthread_mutex_lock(&shard->change_lock);
    (void)dctf_shard_drop_locked(shard, first, count, DCTF_DROP_BAD);
    pthread_mutex_unlock(&shard->change_lock);
}

enum dctf_err dctf_shard_evict(struct dctf_shard *shard)
{
    enum dctf_err err = DCTF_OK;
    uint64_t bytes;

    pthread_mutex_lock(&shard->change_lock);
    bytes = dctf_shard_drop_locked(shard, 0, shard->blocks, DCTF_DROP_EVICT);
    if (!bytes && atomic_load(&shard->pins) > 0)
        err = DCTF_ERR_CACHE_IN_USE;
    pthread_mutex_unlock(&shard->change_lock);
    if (bytes) {
        dctf_metric_add(shard->store->config.metrics, DCTF_METRIC_CACHE_EVICTED, 1);
        dctf_metric_add(shard->store->config.metrics, DCTF_METRIC_CACHE_EVICTED_BYTES, (int64_t)bytes);
    }
    return err;
}

/* ---- keeping ---- */

static void note_small_written(struct dctf_store *store)
{
    unsigned long long now = dctf_clock_mono_ms(&store->clock);
    unsigned long long clean = 0;

    atomic_store(&store->small_written_ms, now);
    atomic_compare_exchange_strong(&store->small_dirty_ms, &clean, now ? now : 1);
}

static enum dctf_err write_small(struct dctf_shard *shard, const uint8_t *data, uint64_t *written)
{
    struct dctf_store *store = shard->store;
    const struct dctf_id *id = &shard->version->id;
    uint64_t size = shard->version->size;
    uint64_t hash[DCTF_RECORD_SMALL_BLOCKS];
    size_t header = dctf_record_small_header_bytes(size);
    struct dctf_kv_batch *batch = NULL;
    uint8_t *value;
    enum dctf_err err;

    if (dctf_shard_is_complete(shard))
        return DCTF_OK;
    value = malloc(header + size);
    if (!value)
        return DCTF_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < shard->blocks; i++)
        hash[i] = dctf_hash64(data + (size_t)i * DCTF_BLOCK_BYTES, dctf_block_len(size, i));
    (void)dctf_record_small_encode(id, size, hash, value);
    memcpy(value + header, data, size);
    err = dctf_kv_batch_new(&batch);
    if (err)
        goto out;
    dctf_kv_batch_put(batch, store->kv, DCTF_KV_SMALL, id->bytes, sizeof(id->bytes), value, header + size);
    err = write_batch(store, batch, DCTF_KV_UNLOGGED);
    if (err)
        goto out;
    dctf_kv_batch_clear(batch);
    batch_shard(shard, batch, size);
    err = write_batch(store, batch, DCTF_KV_LOGGED);
    if (err)
        goto out;
    atomic_store(&shard->present_blocks, shard->blocks);
    note_small_written(store);
    dctf_space_book(store, 0, (int64_t)(header + size), 1);
    *written = header + size;
out:
    dctf_kv_batch_free(batch);
    free(value);
    return err;
}

static enum dctf_err write_all(int fd, const uint8_t *data, size_t len, off_t offset)
{
    while (len) {
        ssize_t n = pwrite(fd, data, len, offset);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return dctf_err_from_errno_cache(errno);
        data += n;
        len -= (size_t)n;
        offset += n;
    }
    return DCTF_OK;
}

/* Where the bytes of a shard go. */
struct target {
    int fd;
    int direct_fd; /* -1: none */
};

/* Past the page cache as far as alignment allows: the copy there costs more than all else of a first read,
 * and pushes out pages that are read. What is left is the end of the last block. */
static enum dctf_err write_run(const struct target *to, const uint8_t *data, size_t len, off_t offset)
{
    size_t direct = len & ~(size_t)(DCTF_DIRECT_ALIGN - 1);
    enum dctf_err err;

    if (to->direct_fd < 0 || (uintptr_t)data % DCTF_DIRECT_ALIGN)
        direct = 0;
    err = write_all(to->direct_fd, data, direct, offset);
    if (err && errno == EINVAL) { /* a device with larger sectors */
        direct = 0;
        err = DCTF_OK;
    }
    return err ? err : write_all(to->fd, data + direct, len - direct, offset + (off_t)direct);
}

/* Write the absent blocks of one extent among [first, first + count), whose bytes begin
 * at `data`. Their hashes are ready to be believed once their bits are set. */
static enum dctf_err write_extent(struct dctf_shard *shard, const struct target *to,
    struct dctf_extent *extent, uint32_t number, uint32_t absent, uint32_t first, const uint8_t *data)
{
    uint32_t base = number * DCTF_EXTENT_BLOCKS;
    enum dctf_err err = DCTF_OK;

    for (uint32_t i = 0; !err && i < DCTF_EXTENT_BLOCKS;) {
        const uint8_t *run = data + (size_t)(base + i - first) * DCTF_BLOCK_BYTES;
        size_t len = 0;
        uint32_t from = i;

        for (; i < DCTF_EXTENT_BLOCKS && (absent >> i & 1); i++) {
            uint32_t block_len = dctf_block_len(shard->version->size, base + i);

            extent->hash[i] = dctf_hash64(run + len, block_len);
            len += block_len;
        }
        if (len)
            err = write_run(to, run, len, (off_t)(base + from) * DCTF_BLOCK_BYTES);
        else
            i++;
    }
    return err;
}

static struct dctf_extent *make_extent(struct dctf_shard *shard, uint32_t number)
{
    struct dctf_extent *extent = dctf_shard_extent(shard, number);

    if (extent)
        return extent;
    extent = calloc(1, sizeof(*extent));
    if (extent)
        atomic_store_explicit(&shard->extents[number], extent, memory_order_release);
    return extent;
}

/* The bytes and the index are safe: readers may believe. */
static void publish(struct dctf_shard *shard, uint32_t first, uint32_t count)
{
    unsigned added = 0;
    unsigned verified = 0;

    for (uint32_t e = first / DCTF_EXTENT_BLOCKS; e <= (first + count - 1) / DCTF_EXTENT_BLOCKS; e++) {
        struct dctf_extent *extent = dctf_shard_extent(shard, e);
        uint32_t mask = mask_of(e, first, count);
        uint32_t absent = mask & ~atomic_load(&extent->present);

        verified += (unsigned)__builtin_popcount(absent & ~atomic_fetch_or(&extent->verified, absent));
        atomic_fetch_or(&extent->present, absent);
        added += (unsigned)__builtin_popcount(absent);
    }
    atomic_fetch_add(&shard->present_blocks, added);
    dctf_shard_note_verified(shard, verified);
}

static enum dctf_err write_file(
    struct dctf_shard *shard, uint32_t first, uint32_t count, const uint8_t *data, uint64_t *written)
{
    struct dctf_store *store = shard->store;
    uint64_t before = dctf_shard_resident(shard, 0, shard->blocks);
    uint64_t present_bytes = dctf_shard_present_bytes(shard);
    struct dctf_kv_batch *batch = NULL;
    struct target to = {-1, -1};
    enum dctf_err err;

    if (!before)
        dctf_space_book_new_file(store);
    err = dctf_shard_file(shard, true, &to.fd);
    if (!err)
        err = dctf_kv_batch_new(&batch);
    if (!err)
        to.direct_fd = dctf_layout_file_direct(&store->layout, &shard->version->id);
    for (uint32_t e = first / DCTF_EXTENT_BLOCKS; !err && e <= (first + count - 1) / DCTF_EXTENT_BLOCKS;
         e++) {
        struct dctf_extent *extent = make_extent(shard, e);
        uint32_t present, absent;

        if (!extent) {
            err = DCTF_ERR_NO_MEMORY;
            break;
        }
        present = atomic_load(&extent->present);
        absent = mask_of(e, first, count) & ~present;
        if (!absent)
            continue;
        err = write_extent(shard, &to, extent, e, absent, first, data);
        batch_extent(shard, batch, e, extent, present | absent);
        for (uint32_t i = 0; i < DCTF_EXTENT_BLOCKS; i++) {
            if (absent >> i & 1)
                present_bytes += dctf_block_len(shard->version->size, e * DCTF_EXTENT_BLOCKS + i);
        }
    }
    if (!err) {
        batch_shard(shard, batch, present_bytes);
        err = write_batch(store, batch, DCTF_KV_LOGGED);
    }
    if (!err) {
        publish(shard, first, count);
        *written = dctf_shard_resident(shard, 0, shard->blocks) - before;
        dctf_space_book(store, (int64_t)*written, 0, before ? 0 : 1);
    }
    if (to.direct_fd >= 0)
        close(to.direct_fd);
    dctf_kv_batch_free(batch);
    return err;
}

/* A write failed half-way: its bytes must not take space that nobody accounts for. */
static void undo_file(struct dctf_shard *shard, uint32_t first, uint32_t count)
{
    pthread_rwlock_wrlock(&shard->lock);
    if (!atomic_load(&shard->present_blocks)) {
        release_bytes(shard, first, count);
    } else {
        for (uint32_t block = first; block < first + count; block++) {
            if (!dctf_shard_is_present(shard, block) && !punch(shard, block, 1))
                break;
        }
    }
    pthread_rwlock_unlock(&shard->lock);
}

/* The number of whole blocks in `len` bytes from `first` on. */
static uint32_t whole_blocks(const struct dctf_shard *shard, uint32_t first, size_t len)
{
    uint32_t count = 0;
    uint32_t block_len;

    for (; first + count < shard->blocks; count++, len -= block_len) {
        block_len = dctf_block_len(shard->version->size, first + count);
        if (len < block_len)
            break;
    }
    return count;
}

static enum dctf_err keep(
    struct dctf_shard *shard, uint32_t first, uint32_t count, const void *data, uint64_t *written)
{
    enum dctf_err err;

    pthread_mutex_lock(&shard->change_lock);
    err = shard->kind == DCTF_RECORD_SMALL ? write_small(shard, data, written)
                                           : write_file(shard, first, count, data, written);
    if (err && shard->kind == DCTF_RECORD_FILE)
        undo_file(shard, first, count);
    pthread_mutex_unlock(&shard->change_lock);
    return err;
}

/* Keep blocks that have one claim, if there is room; true when all are here. */
static bool offer(
    struct dctf_shard *shard, uint32_t first, uint32_t count, const void *data, enum dctf_claim claim)
{
    struct dctf_store *store = shard->store;
    uint32_t present = dctf_shard_count_present(shard, first, count);
    uint64_t want = shard->kind == DCTF_RECORD_SMALL
                        ? shard->version->size + dctf_record_small_header_bytes(shard->version->size)
                        : (uint64_t)(count - present) * DCTF_BLOCK_BYTES;
    uint64_t written = 0;
    enum dctf_err err;

    if (present == count)
        return true;
    if (!dctf_space_admit(store, shard, claim, want))
        return false;
    err = keep(shard, first, count, data, &written);
    if (err && dctf_space_make_room(store, shard, claim, want, err))
        err = keep(shard, first, count, data, &written);
    dctf_space_settle(store, want, written);
    if (err)
        dctf_space_give_up(store, err);
    dctf_metric_add(store->config.metrics, DCTF_METRIC_CACHE_WRITTEN_BYTES, (int64_t)written);
    return !err;
}

/* The last room there is takes what fits of the share, or of what is spare: nobody else may have room. */
static bool offer_pieces(
    struct dctf_shard *shard, uint32_t first, uint32_t count, const uint8_t *data, enum dctf_claim claim)
{
    uint32_t next;

    for (uint32_t block = first; block < first + count; block = next) {
        next = (block / DCTF_SHARE_STEP + 1) * DCTF_SHARE_STEP;
        if (next > first + count)
            next = first + count;
        if (!offer(shard, block, next - block, data + (size_t)(block - first) * DCTF_BLOCK_BYTES, claim))
            return false;
    }
    return true;
}

enum dctf_err dctf_shard_write(
    struct dctf_shard *shard, uint32_t first, const void *data, size_t len, bool *kept)
{
    struct dctf_store *store = shard->store;
    uint32_t count = first < shard->blocks ? whole_blocks(shard, first, len) : 0;
    uint32_t end;

    *kept = dctf_shard_count_present(shard, first, count) == count;
    if (*kept)
        return DCTF_OK;
    if (shard->kind == DCTF_RECORD_SMALL && count != shard->blocks)
        return DCTF_OK; /* small shards are kept whole */
    if (store->config.scrub)
        atomic_store(&store->last_io_ms, dctf_clock_mono_ms(&store->clock));
    *kept = true;
    for (uint32_t block = first; block < first + count; block = end) {
        const uint8_t *from = (const uint8_t *)data + (size_t)(block - first) * DCTF_BLOCK_BYTES;
        enum dctf_claim claim = dctf_share_claim(shard, block, first + count, &end);
        bool all = offer(shard, block, end - block, from, claim);

        if (!all && claim != DCTF_CLAIM_COPY && end - block > DCTF_SHARE_STEP &&
            atomic_load(&store->share.is_set))
            all = offer_pieces(shard, block, end - block, from, claim);
        *kept &= all;
    }
    return DCTF_OK;
}
