/* SPDX-License-Identifier: Apache-2.0
 *
 * What the database takes on disk, and the work that gives some of it back.
 *
 * Between two measurements its files grow by what is written to it, once to the log and once by
 * a flush, and for a while by the output of a compaction. The first is added up as it is
 * written; for the second its bound is told, to be kept free.
 */
#include "cache/disk.h"
#include "cache/kv_options.h"
#include "cache/kv_private.h"

#include <stdio.h>

void dctf_kv_flush_inside(struct dctf_kv *kv, enum dctf_kv_cf cf)
{
    rocksdb_flushoptions_t *options = rocksdb_flushoptions_create();
    char *text = NULL;

    rocksdb_flush_cf(kv->db, options, kv->cfs[cf], &text);
    rocksdb_flushoptions_destroy(options);
    if (text)
        (void)dctf_kv_take_error(text, "flush", false, NULL);
}

static uint64_t property(struct dctf_kv *kv, int cf, const char *name)
{
    uint64_t value;

    return rocksdb_property_int_cf(kv->db, kv->cfs[cf], name, &value) ? 0 : value;
}

static uint64_t memtable_bytes(struct dctf_kv *kv)
{
    uint64_t sum = 0;

    for (int i = 0; i < DCTF_KV_CF_COUNT; i++)
        sum += property(kv, i, "rocksdb.cur-size-all-mem-tables");
    return sum;
}

/* What one compaction reads, and so at most writes before what it read is removed, but for blobs. */
static uint64_t compactable_bytes(struct dctf_kv *kv, int cf)
{
    uint64_t most = dctf_kv_options_compaction_bytes(&kv->config);
    uint64_t bytes = property(kv, cf, "rocksdb.live-sst-files-size");

    if (cf != DCTF_KV_SMALL)
        bytes += property(kv, cf, "rocksdb.cur-size-all-mem-tables");
    return bytes < most ? bytes : most;
}

void dctf_kv_measure(struct dctf_kv *kv)
{
    /* In this order: what moves from memory to a file meanwhile is counted twice, not never. */
    unsigned long long written = atomic_load(&kv->written);
    struct dctf_disk_usage files;
    uint64_t memtables = 0, index = 0, small = 0;
    unsigned lane = dctf_door_enter(&kv->door);

    if (kv->db) {
        memtables = memtable_bytes(kv);
        small = compactable_bytes(kv, DCTF_KV_SMALL);
        for (int i = 0; i < DCTF_KV_CF_COUNT; i++) {
            uint64_t bytes = i == DCTF_KV_SMALL ? 0 : compactable_bytes(kv, i);

            index = bytes > index ? bytes : index;
        }
    }
    dctf_door_leave(&kv->door, lane);
    dctf_disk_usage_of(kv->dir, ".blob", &files);
    atomic_store(&kv->measured_base, files.bytes + memtables + memtables / DCTF_KV_ROUNDING_SHARE - written);
    atomic_store(&kv->index_spare, index);
    atomic_store(&kv->small_spare, small);
    atomic_store(&kv->blob_file_max, files.largest);
}

void dctf_kv_usage(struct dctf_kv *kv, struct dctf_kv_usage *out)
{
    unsigned long long base = atomic_load(&kv->measured_base);

    out->disk_bytes = base + atomic_load(&kv->written);
    out->index_spare = atomic_load(&kv->index_spare);
    out->small_spare = atomic_load(&kv->small_spare);
    out->blob_file_max = atomic_load(&kv->blob_file_max);
}

uint64_t dctf_kv_cf_bytes(struct dctf_kv *kv, enum dctf_kv_cf cf)
{
    static const char *const names[] = {
        "rocksdb.live-sst-files-size",
        "rocksdb.live-blob-file-size",
        "rocksdb.cur-size-all-mem-tables",
    };
    unsigned lane = dctf_door_enter(&kv->door);
    uint64_t sum = 0;

    for (size_t i = 0; kv->db && i < sizeof(names) / sizeof(names[0]); i++)
        sum += property(kv, (int)cf, names[i]);
    dctf_door_leave(&kv->door, lane);
    return sum;
}

uint64_t dctf_kv_memory_bytes(struct dctf_kv *kv)
{
    unsigned lane = dctf_door_enter(&kv->door);
    uint64_t sum = rocksdb_cache_get_usage(kv->cache);

    for (int i = 0; kv->db && i < DCTF_KV_CF_COUNT; i++)
        sum += property(kv, i, "rocksdb.estimate-table-readers-mem");
    if (kv->db)
        sum += memtable_bytes(kv);
    dctf_door_leave(&kv->door, lane);
    return sum;
}

/* Compactions of small shards collect the garbage of this share of their files, the oldest; 0: of none. */
static void set_collected_share(struct dctf_kv *kv, double share)
{
    static const char *const names[] = {
        "enable_blob_garbage_collection", "blob_garbage_collection_age_cutoff"};
    char number[32];
    const char *const values[] = {share > 0 ? "true" : "false", number};
    char *text = NULL;

    snprintf(number, sizeof(number), "%.9f", share);
    rocksdb_set_options_cf(kv->db, kv->cfs[DCTF_KV_SMALL], 2, names, values, &text);
    if (text)
        (void)dctf_kv_take_error(text, "set_options", false, NULL);
}

void dctf_kv_flush(struct dctf_kv *kv, enum dctf_kv_cf cf)
{
    unsigned lane = dctf_door_enter(&kv->door);

    if (kv->db)
        dctf_kv_flush_inside(kv, cf);
    dctf_door_leave(&kv->door, lane);
    dctf_kv_measure(kv);
}

void dctf_kv_compact_inside(struct dctf_kv *kv, enum dctf_kv_cf cf)
{
    rocksdb_compactoptions_t *options = rocksdb_compactoptions_create();

    rocksdb_compactoptions_set_exclusive_manual_compaction(options, 0);
    rocksdb_compactoptions_set_bottommost_level_compaction(options, 2); /* force: garbage is there too */
    rocksdb_compact_range_cf_opt(kv->db, kv->cfs[cf], options, NULL, 0, NULL, 0);
    rocksdb_compactoptions_destroy(options);
}

void dctf_kv_collect(struct dctf_kv *kv, uint64_t room)
{
    uint64_t files = 0, part = 0, largest;
    unsigned lane;

    dctf_kv_flush(kv, DCTF_KV_SMALL);
    largest = atomic_load(&kv->blob_file_max);
    lane = dctf_door_enter(&kv->door);
    if (kv->db)
        files = property(kv, DCTF_KV_SMALL, "rocksdb.num-blob-files");
    if (files) {
        part = largest ? room / largest : files;
        part = part < 1 ? 1 : part;
        /* RocksDB takes the whole part of share × files. */
        set_collected_share(kv, part < files ? ((double)part + 0.5) / (double)files : 1.0);
        dctf_kv_compact_inside(kv, DCTF_KV_SMALL);
        set_collected_share(kv, 0);
    }
    dctf_door_leave(&kv->door, lane);
    dctf_kv_measure(kv);
}
