/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading and pinning shards. A reader holds the shard's lock shared from looking
 * at presence until its bytes are copied, so that what it saw present cannot be
 * punched meanwhile. Small shards need no lock: a value got from the database stays
 * whole however the database changes.
 */
#include "base/log.h"
#include "base/metric.h"
#include "base/str.h"
#include "cache/admission.h"
#include "cache/kv.h"
#include "cache/state.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct dctf_version *dctf_shard_version(struct dctf_shard *shard)
{
    return shard->version;
}

uint32_t dctf_shard_extent_blocks(const struct dctf_shard *shard, uint32_t extent)
{
    uint32_t left = shard->blocks - extent * DCTF_EXTENT_BLOCKS;

    return left < DCTF_EXTENT_BLOCKS ? left : DCTF_EXTENT_BLOCKS;
}

struct dctf_extent *dctf_shard_extent(struct dctf_shard *shard, uint32_t extent)
{
    return atomic_load_explicit(&shard->extents[extent], memory_order_acquire);
}

enum dctf_err dctf_shard_file(struct dctf_shard *shard, bool create, int *fd)
{
    int none = -1;
    enum dctf_err err;

    *fd = atomic_load(&shard->fd);
    if (*fd >= 0)
        return DCTF_OK;
    err = dctf_layout_file_open(&shard->store->layout, &shard->version->id, create, shard->version->size, fd);
    if (err)
        return err;
    if (!atomic_compare_exchange_strong(&shard->fd, &none, *fd)) {
        close(*fd);
        *fd = none; /* another thread was faster */
    }
    return DCTF_OK;
}

void dctf_shard_note_verified(struct dctf_shard *shard, unsigned blocks)
{
    if (atomic_fetch_add(&shard->verified_blocks, blocks) + blocks == shard->blocks)
        dctf_idset_add(shard->store->verified, &shard->version->id);
}

/* ---- presence ---- */

bool dctf_shard_is_present(struct dctf_shard *shard, uint32_t block)
{
    struct dctf_extent *extent;

    if (block >= shard->blocks)
        return false;
    if (shard->kind == DCTF_RECORD_SMALL)
        return atomic_load(&shard->present_blocks) == shard->blocks;
    extent = dctf_shard_extent(shard, block / DCTF_EXTENT_BLOCKS);
    return extent &&
           (atomic_load_explicit(&extent->present, memory_order_acquire) >> block % DCTF_EXTENT_BLOCKS & 1);
}

uint32_t dctf_shard_count_present(struct dctf_shard *shard, uint32_t first, uint32_t count)
{
    uint32_t sum = 0;
    uint32_t end;

    if (first >= shard->blocks)
        return 0;
    end = count < shard->blocks - first ? first + count : shard->blocks;
    if (shard->kind == DCTF_RECORD_SMALL)
        return atomic_load(&shard->present_blocks) == shard->blocks ? end - first : 0;
    for (uint32_t block = first; block < end;) {
        uint32_t number = block / DCTF_EXTENT_BLOCKS;
        uint32_t from = block % DCTF_EXTENT_BLOCKS;
        uint32_t take = DCTF_EXTENT_BLOCKS - from < end - block ? DCTF_EXTENT_BLOCKS - from : end - block;
        uint32_t mask = take == DCTF_EXTENT_BLOCKS ? UINT32_MAX : ((1u << take) - 1) << from;
        struct dctf_extent *extent = dctf_shard_extent(shard, number);

        if (extent)
            sum += (uint32_t)__builtin_popcount(
                atomic_load_explicit(&extent->present, memory_order_acquire) & mask);
        block += take;
    }
    return sum;
}

uint64_t dctf_shard_present_bytes(struct dctf_shard *shard)
{
    uint64_t bytes = (uint64_t)atomic_load(&shard->present_blocks) * DCTF_BLOCK_BYTES;

    if (shard->blocks && dctf_shard_is_present(shard, shard->blocks - 1))
        bytes -= DCTF_BLOCK_BYTES - dctf_block_len(shard->version->size, shard->blocks - 1);
    return bytes;
}

bool dctf_shard_is_complete(struct dctf_shard *shard)
{
    return atomic_load(&shard->present_blocks) == shard->blocks;
}

enum dctf_tier dctf_shard_tier(struct dctf_shard *shard)
{
    if (shard->kind == DCTF_RECORD_FILE && dctf_shard_is_complete(shard) &&
        atomic_load(&shard->verified_blocks) == shard->blocks)
        return DCTF_TIER_HOT;
    return atomic_load(&shard->present_blocks) || !shard->blocks ? DCTF_TIER_WARM : DCTF_TIER_COLD;
}

const char *dctf_tier_name(enum dctf_tier tier)
{
    switch (tier) {
    case DCTF_TIER_COLD:
        return "cold";
    case DCTF_TIER_WARM:
        return "warm";
    case DCTF_TIER_HOT:
        return "hot";
    }
    return "unknown";
}

/* ---- reading ---- */

static void note_bad_block(struct dctf_shard *shard, uint32_t block, int errnum)
{
    struct dctf_store *store = shard->store;
    enum dctf_err err = errnum ? DCTF_ERR_CACHE_IO : DCTF_ERR_BLOCK_CORRUPT;
    char quoted[300];

    dctf_metric_add(store->config.metrics, DCTF_METRIC_CACHE_BAD_BLOCKS, 1);
    dctf_metric_error(store->config.metrics, err);
    dctf_log(DCTF_LOG_WARN, "cache", "err=%d key=%s block=%u errno=%d", (int)err,
        dctf_str_quote(shard->version->key, quoted, sizeof(quoted)), block, errnum);
}

static enum dctf_err read_small(
    struct dctf_shard *shard, uint64_t offset, size_t len, void *buf, uint32_t *missing)
{
    const struct dctf_id *id = &shard->version->id;
    uint32_t first = (uint32_t)(offset / DCTF_BLOCK_BYTES);
    uint32_t end = dctf_blocks_of(offset + len);
    uint64_t size = shard->version->size;
    struct dctf_record_small record;
    struct dctf_kv_value value;
    enum dctf_err err;

    *missing = first;
    if (!dctf_shard_is_complete(shard))
        return DCTF_ERR_MISS;
    err = dctf_kv_get(shard->store->kv, DCTF_KV_SMALL, id->bytes, sizeof(id->bytes), &value);
    if (!err) {
        err = dctf_record_small_decode(id, size, value.data, value.len, &record);
        for (uint32_t block = first; !err && block < end; block++) {
            if (dctf_hash64(record.bytes + (size_t)block * DCTF_BLOCK_BYTES, dctf_block_len(size, block)) !=
                record.hash[block]) {
                *missing = block;
                err = DCTF_ERR_CACHE_CORRUPT;
            }
        }
        if (!err)
            memcpy(buf, record.bytes + offset, len);
        dctf_kv_value_put(&value);
    }
    if (!err)
        return DCTF_OK;
    /* The bytes did not survive a crash, or did not survive at all. */
    dctf_shard_drop(shard, 0, shard->blocks);
    if (err == DCTF_ERR_MISS)
        return DCTF_ERR_MISS;
    note_bad_block(shard, *missing, 0);
    return DCTF_ERR_BLOCK_CORRUPT;
}

/* One block that is not verified yet: read it whole, check it, copy the part wanted. */
static enum dctf_err read_unverified(struct dctf_shard *shard, int fd, struct dctf_extent *extent,
    uint32_t block, size_t from, size_t len, void *buf)
{
    uint32_t block_len = dctf_block_len(shard->version->size, block);
    uint32_t bit = 1u << block % DCTF_EXTENT_BLOCKS;
    enum dctf_err err = DCTF_OK;
    void *scratch = len == block_len ? NULL : malloc(block_len);
    void *whole = len == block_len ? buf : scratch;
    ssize_t n;

    if (!whole)
        return DCTF_ERR_NO_MEMORY;
    n = pread(fd, whole, block_len, (off_t)block * DCTF_BLOCK_BYTES);
    if (n < 0)
        err = DCTF_ERR_CACHE_IO;
    else if ((size_t)n < block_len)
        err = DCTF_ERR_MISS; /* cut short */
    else if (dctf_hash64(whole, block_len) != extent->hash[block % DCTF_EXTENT_BLOCKS])
        err = DCTF_ERR_BLOCK_CORRUPT;
    else if (!(atomic_fetch_or(&extent->verified, bit) & bit))
        dctf_shard_note_verified(shard, 1);
    if (!err && scratch)
        memcpy(buf, (char *)scratch + from, len);
    free(scratch);
    return err;
}

/* How many blocks from `block` on, up to `end`, are verified in one run. 0 with
 * *present false: the first is absent. */
static uint32_t verified_run(struct dctf_shard *shard, uint32_t block, uint32_t end, bool *present)
{
    uint32_t run = 0;

    *present = dctf_shard_is_present(shard, block);
    for (uint32_t b = block; *present && b < end; b++, run++) {
        struct dctf_extent *extent = dctf_shard_extent(shard, b / DCTF_EXTENT_BLOCKS);
        uint32_t bit = 1u << b % DCTF_EXTENT_BLOCKS;

        if (!extent || !(atomic_load_explicit(&extent->present, memory_order_acquire) &
                           atomic_load_explicit(&extent->verified, memory_order_acquire) & bit))
            break;
    }
    return run;
}

/* With the lock held shared. On failure *missing is the block that failed. */
static enum dctf_err read_file_locked(
    struct dctf_shard *shard, uint64_t offset, size_t len, char *buf, uint32_t *missing)
{
    uint32_t end = dctf_blocks_of(offset + len);
    int fd = -1;
    enum dctf_err err;

    for (size_t done = 0; done < len;) {
        uint64_t at = offset + done;
        uint32_t block = (uint32_t)(at / DCTF_BLOCK_BYTES);
        size_t from = (size_t)(at % DCTF_BLOCK_BYTES);
        bool present;
        uint32_t run = verified_run(shard, block, end, &present);
        size_t part = (size_t)(run ? run : 1) * DCTF_BLOCK_BYTES - from;

        *missing = block;
        if (!present)
            return DCTF_ERR_MISS;
        if (fd < 0 && (err = dctf_shard_file(shard, false, &fd)))
            return err;
        if (part > len - done)
            part = len - done;
        if (run) {
            ssize_t n = pread(fd, buf + done, part, (off_t)at);

            if (n <= 0)
                return n ? DCTF_ERR_CACHE_IO : DCTF_ERR_MISS;
            part = (size_t)n;
        } else {
            err = read_unverified(shard, fd, dctf_shard_extent(shard, block / DCTF_EXTENT_BLOCKS), block,
                from, part, buf + done);
            if (err)
                return err;
        }
        done += part;
    }
    return DCTF_OK;
}

/* The index promised `block` and the disk did not keep it: what it promises must
 * shrink. Without any lock. Returns what the reader is told. */
static enum dctf_err mend(struct dctf_shard *shard, uint32_t block, enum dctf_err err, int errnum)
{
    if (err == DCTF_ERR_NO_MEMORY)
        return err;
    if (err == DCTF_ERR_MISS) {
        dctf_log(DCTF_LOG_WARN, "cache", "err=%d what=file_lost block=%u", (int)err, block);
        dctf_shard_drop(shard, block, shard->blocks - block);
        return DCTF_ERR_MISS;
    }
    dctf_shard_drop(shard, block, 1);
    note_bad_block(shard, block, err == DCTF_ERR_CACHE_IO ? errnum : 0);
    return DCTF_ERR_BLOCK_CORRUPT;
}

static enum dctf_err read_file(
    struct dctf_shard *shard, uint64_t offset, size_t len, void *buf, uint32_t *missing)
{
    bool present;
    enum dctf_err err;
    int errnum;

    pthread_rwlock_rdlock(&shard->lock);
    err = read_file_locked(shard, offset, len, buf, missing);
    errnum = errno;
    present = err && dctf_shard_is_present(shard, *missing);
    pthread_rwlock_unlock(&shard->lock);
    return present ? mend(shard, *missing, err, errnum) : err;
}

static void note_io(struct dctf_store *store)
{
    if (store->config.scrub)
        atomic_store_explicit(&store->last_io_ms, dctf_clock_mono_ms(&store->clock), memory_order_relaxed);
}

enum dctf_err dctf_shard_read(
    struct dctf_shard *shard, uint64_t offset, size_t len, void *buf, uint32_t *missing)
{
    assert(offset <= shard->version->size && len <= shard->version->size - offset);
    *missing = 0;
    note_io(shard->store);
    if (!len)
        return DCTF_OK;
    if (shard->kind == DCTF_RECORD_SMALL)
        return read_small(shard, offset, len, buf, missing);
    return read_file(shard, offset, len, buf, missing);
}

/* ---- opens ---- */

void dctf_shard_touch(struct dctf_shard *shard)
{
    struct dctf_store *store = shard->store;
    const struct dctf_version *version = shard->version;
    uint64_t key = dctf_shard_admission_key(&version->id);
    struct dctf_heat_value heat;
    uint64_t limit;

    if (!atomic_exchange(&shard->seeded, true)) {
        dctf_heat_of_shard(store->heat, version->key_hash, &heat);
        if (heat.heat > 0)
            dctf_admission_seed(store->admission, key, version->feature_id, heat.heat);
    }
    pthread_mutex_lock(&store->space.lock);
    limit = store->space.limit;
    pthread_mutex_unlock(&store->space.lock);
    dctf_heat_record(store->heat, version->key_hash, version->feature_id, version->feature);
    dctf_metric_add(store->config.metrics, DCTF_METRIC_HEAT_RECORDED, 1);
    dctf_admission_access(store->admission, key, version->feature_id, version->size, limit);
    dctf_shard_undecide(shard);
    dctf_maintain_note_touch(store);
}

void dctf_shard_expect(struct dctf_shard *shard, double heat)
{
    const struct dctf_version *version = shard->version;

    dctf_admission_seed(
        shard->store->admission, dctf_shard_admission_key(&version->id), version->feature_id, heat);
    atomic_store(&shard->expected, true);
    dctf_shard_undecide(shard);
}

int dctf_shard_pin(struct dctf_shard *shard)
{
    struct stat st;
    int fd = -1;
    enum dctf_err err;
    bool lost = false;

    if (shard->kind != DCTF_RECORD_FILE)
        return -1;
    pthread_rwlock_rdlock(&shard->lock);
    if (dctf_shard_tier(shard) == DCTF_TIER_HOT) {
        err = dctf_shard_file(shard, false, &fd);
        /* The kernel would serve a file cut short, or a deleted one, as it is. */
        lost = err == DCTF_ERR_MISS ||
               (!err && (fstat(fd, &st) || (uint64_t)st.st_size != shard->version->size || !st.st_nlink));
        if (err || lost)
            fd = -1;
        else
            atomic_fetch_add(&shard->pins, 1);
    }
    pthread_rwlock_unlock(&shard->lock);
    if (lost)
        dctf_shard_drop(shard, 0, shard->blocks);
    return fd;
}

void dctf_shard_unpin(struct dctf_shard *shard)
{
    unsigned before = atomic_fetch_sub(&shard->pins, 1);

    assert(before > 0);
    (void)before;
}

void dctf_shard_sums(struct dctf_shard *shard, uint32_t first, uint32_t count, uint64_t *sums)
{
    assert(atomic_load(&shard->pins) > 0); /* nothing of it is dropped meanwhile */
    for (uint32_t i = 0; i < count; i++) {
        struct dctf_extent *extent = dctf_shard_extent(shard, (first + i) / DCTF_EXTENT_BLOCKS);

        sums[i] = extent->hash[(first + i) % DCTF_EXTENT_BLOCKS];
    }
}

/* ---- verifying ---- */

/* DCTF_OK for an absent block. */
static enum dctf_err verify_block(struct dctf_shard *shard, uint32_t block, bool again, void *buf)
{
    uint32_t len = dctf_block_len(shard->version->size, block);
    struct dctf_extent *extent;
    enum dctf_err err = DCTF_OK;
    uint32_t missing;
    int errnum, fd;

    if (shard->kind == DCTF_RECORD_SMALL) {
        err = read_small(shard, (uint64_t)block * DCTF_BLOCK_BYTES, len, buf, &missing);
        return err == DCTF_ERR_MISS ? DCTF_OK : err;
    }
    pthread_rwlock_rdlock(&shard->lock);
    extent = dctf_shard_extent(shard, block / DCTF_EXTENT_BLOCKS);
    if (dctf_shard_is_present(shard, block) &&
        (again || !(atomic_load(&extent->verified) >> block % DCTF_EXTENT_BLOCKS & 1))) {
        err = dctf_shard_file(shard, false, &fd);
        if (!err)
            err = read_unverified(shard, fd, extent, block, 0, len, buf);
    }
    errnum = errno;
    pthread_rwlock_unlock(&shard->lock);
    return err ? mend(shard, block, err, errnum) : DCTF_OK;
}

enum dctf_err dctf_shard_verify_some(
    struct dctf_shard *shard, uint32_t first, uint64_t max, bool again, uint32_t *next, uint32_t *bad)
{
    void *buf = malloc(DCTF_BLOCK_BYTES);
    enum dctf_err err = buf ? DCTF_OK : DCTF_ERR_NO_MEMORY;
    uint32_t block = first;

    for (uint64_t done = 0; !err && block < shard->blocks && done < max; block++) {
        if (!dctf_shard_is_present(shard, block))
            continue;
        err = verify_block(shard, block, again, buf);
        done += DCTF_BLOCK_BYTES;
        if (err == DCTF_ERR_BLOCK_CORRUPT || err == DCTF_ERR_MISS) {
            ++*bad;
            err = DCTF_OK;
        }
    }
    *next = block;
    free(buf);
    return err;
}

enum dctf_err dctf_shard_verify(struct dctf_shard *shard, uint32_t *bad)
{
    uint32_t next;

    *bad = 0;
    return dctf_shard_verify_some(shard, 0, UINT64_MAX, true, &next, bad);
}
