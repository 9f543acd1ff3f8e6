/* SPDX-License-Identifier: Apache-2.0
 *
 * The tier's database: only cache/kv*.c see RocksDB.
 *
 * Threads:   any thread. Calls may touch the local disk; hold no lock.
 * Ownership: dctf_kv_open() gives a database to pass to dctf_kv_close(), after
 *            every value, batch and iterator was given back. Keys and values
 *            passed in are borrowed for the call.
 */
#ifndef DCTF_CACHE_KV_H
#define DCTF_CACHE_KV_H

#include "base/clock.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Column families. Keys' layouts are in cache/record.h and cache/listing.h. */
enum dctf_kv_cf {
    DCTF_KV_META,    /* counters and settings of the cache */
    DCTF_KV_SHARD,   /* shard id → shard record */
    DCTF_KV_EXTENT,  /* shard id, extent number → presence and checksums */
    DCTF_KV_SMALL,   /* shard id → bytes of a small shard; blob files */
    DCTF_KV_LISTING, /* directories and their entries */
    DCTF_KV_HEAT,    /* heat records, merged */
    DCTF_KV_CF_COUNT
};

struct dctf_kv;
struct dctf_kv_batch;
struct dctf_kv_iter;

/* Value of a get; release it with dctf_kv_value_put(), from any thread. */
struct dctf_kv_value {
    const char *data; /* borrowed from `pin` */
    size_t len;
    void *pin;
    struct dctf_kv *kv; /* kept from reopening while the value is held */
    unsigned lane;
};

struct dctf_kv_config {
    const char *dir; /* created when missing */
    uint64_t block_cache_bytes;
    uint64_t cache_bytes;        /* cap of the whole cache, which log and index are sized after; 0: large */
    uint64_t blob_file_bytes;    /* size of a blob file */
    uint64_t write_buffer_bytes; /* memtables of all column families together */
    /* Merge of DCTF_KV_HEAT: fold `operand` into `state` (both `state_len` bytes
     * fixed size `merge_record_bytes`); `state` starts as all zeros. Pure. */
    size_t merge_record_bytes;
    void (*merge)(void *ctx, void *state, const void *operand);
    /* True: compaction may drop this DCTF_KV_HEAT record. Pure but for ctx. */
    bool (*expired)(void *ctx, const char *key, size_t key_len, const char *value, size_t len);
    void *ctx;    /* borrowed for the database's life */
    char *detail; /* ≥ DCTF_KV_DETAIL_BYTES or NULL: gets the raw reason when the open fails */
};
#define DCTF_KV_DETAIL_BYTES 256

/* See from a child process whether the files are damaged so that RocksDB would end the process that opens
 * them: DCTF_ERR_CACHE_CORRUPT. All else dctf_kv_open() finds. To be called before the process has threads:
 * the child starts some. The log is replayed and every table's end read, as by the opening itself. */
DCTF_MUST_CHECK
enum dctf_err dctf_kv_check(const struct dctf_kv_config *config);
/* DCTF_ERR_CACHE_CORRUPT when it cannot be opened, _NO_SPACE or _IO when that is the
 * disk's fault; the raw reason is logged. On failure *out is NULL. */
DCTF_MUST_CHECK
enum dctf_err dctf_kv_open(const struct dctf_kv_config *config, struct dctf_kv **out);
/* Flush and close. */
void dctf_kv_close(struct dctf_kv *kv);

/* DCTF_ERR_MISS when there is no such key; then *value is empty. DCTF_KV_SMALL is read without RocksDB's
 * checksums: its values have their own, and a CRC of theirs costs more than all else of a read. But RocksDB
 * may end the process on what it finds in a damaged block around them, so dctf_kv_touch() comes first. */
DCTF_MUST_CHECK
enum dctf_err dctf_kv_get(
    struct dctf_kv *kv, enum dctf_kv_cf cf, const void *key, size_t key_len, struct dctf_kv_value *value);
void dctf_kv_value_put(struct dctf_kv_value *value);
/* Read the block that says where the value of a key is, with its checksum, and keep it in memory; the value
 * is not read. DCTF_ERR_CACHE_CORRUPT when it is damaged. */
DCTF_MUST_CHECK
enum dctf_err dctf_kv_touch(struct dctf_kv *kv, enum dctf_kv_cf cf, const void *key, size_t key_len);

DCTF_MUST_CHECK
enum dctf_err dctf_kv_batch_new(struct dctf_kv_batch **out);
void dctf_kv_batch_free(struct dctf_kv_batch *batch);
void dctf_kv_batch_put(struct dctf_kv_batch *batch, struct dctf_kv *kv, enum dctf_kv_cf cf, const void *key,
    size_t key_len, const void *value, size_t len);
void dctf_kv_batch_delete(
    struct dctf_kv_batch *batch, struct dctf_kv *kv, enum dctf_kv_cf cf, const void *key, size_t key_len);
void dctf_kv_batch_delete_range(struct dctf_kv_batch *batch, struct dctf_kv *kv, enum dctf_kv_cf cf,
    const void *from, size_t from_len, const void *to, size_t to_len);
void dctf_kv_batch_merge(struct dctf_kv_batch *batch, struct dctf_kv *kv, enum dctf_kv_cf cf, const void *key,
    size_t key_len, const void *operand, size_t len);
void dctf_kv_batch_clear(struct dctf_kv_batch *batch);

enum dctf_kv_durability {
    DCTF_KV_LOGGED,   /* survives kill -9: written to the log, not synced */
    DCTF_KV_UNLOGGED, /* survives a clean close only: for bytes that can be fetched again */
};

/* All or nothing. DCTF_ERR_CACHE_NO_SPACE when the disk is full. */
DCTF_MUST_CHECK
enum dctf_err dctf_kv_write(
    struct dctf_kv *kv, struct dctf_kv_batch *batch, enum dctf_kv_durability durability);

/* Iterate keys in order within [seek, …) that start with `prefix`. Snapshot at
 * creation. key/value are valid until the next call on the iterator. */
DCTF_MUST_CHECK
enum dctf_err dctf_kv_iter_new(
    struct dctf_kv *kv, enum dctf_kv_cf cf, const void *prefix, size_t prefix_len, struct dctf_kv_iter **out);
void dctf_kv_iter_free(struct dctf_kv_iter *iter);
void dctf_kv_iter_seek(struct dctf_kv_iter *iter, const void *key, size_t key_len);
bool dctf_kv_iter_valid(const struct dctf_kv_iter *iter);
void dctf_kv_iter_next(struct dctf_kv_iter *iter);
/* Once it is not valid: DCTF_OK when it came to the end, else why it stopped short. */
DCTF_MUST_CHECK
enum dctf_err dctf_kv_iter_err(const struct dctf_kv_iter *iter);
const char *dctf_kv_iter_key(const struct dctf_kv_iter *iter, size_t *len);
const char *dctf_kv_iter_value(const struct dctf_kv_iter *iter, size_t *len);

/* What the database takes on disk is known at any time: measured now and then, and in between
 * raised by what every write can add at most. */
struct dctf_kv_usage {
    uint64_t disk_bytes; /* at most: its files, garbage and log included, and what is still in memory */
    /* Compactions write before they remove, one at a time: so much is to be free, the larger of what
     * the index needs and what small shards do, which need room for blobs as well. */
    uint64_t index_spare, small_spare;
    uint64_t blob_file_max; /* the largest file of small shards: collecting its garbage may write as much */
};

/* Touches no disk. */
void dctf_kv_usage(struct dctf_kv *kv, struct dctf_kv_usage *out);
/* Look at the files afresh. dctf_kv_open(), _flush(), _collect() and _recover() end with it. */
void dctf_kv_measure(struct dctf_kv *kv);
/* Bytes of one column family, garbage and memtables included. */
uint64_t dctf_kv_cf_bytes(struct dctf_kv *kv, enum dctf_kv_cf cf);
/* Memory of block cache, memtables and readers, bytes. */
uint64_t dctf_kv_memory_bytes(struct dctf_kv *kv);
/* Write the memtable of one column family to files, so that what was UNLOGGED survives a kill. */
void dctf_kv_flush(struct dctf_kv *kv, enum dctf_kv_cf cf);
/* Rewrite the live bytes in the oldest files of DCTF_KV_SMALL and remove those files: as many of
 * them as `room` bytes suffice for, at least one. Slow: for the maintenance thread. */
void dctf_kv_collect(struct dctf_kv *kv, uint64_t room);
/* After writes failed for want of space: reopen if the database refuses writes.
 * DCTF_OK when writes work again. Waits up to two seconds for values and
 * iterators to be given back, and meanwhile calls of others wait; the caller may
 * hold none. */
DCTF_MUST_CHECK
enum dctf_err dctf_kv_recover(struct dctf_kv *kv);

#endif
