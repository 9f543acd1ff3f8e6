/* SPDX-License-Identifier: Apache-2.0
 *
 * What the database is made of, for cache/kv*.c: kv.c opens, reads and writes, kv_upkeep.c
 * measures, flushes and compacts, kv_options.c says how RocksDB is set up, kv_check.c looks at the
 * files from a child.
 *
 * Threads:   as cache/kv.h; functions that need the door passed say so.
 * Ownership: dctf_kv_open() makes it.
 */
#ifndef DCTF_CACHE_KV_PRIVATE_H
#define DCTF_CACHE_KV_PRIVATE_H

#include "cache/door.h"
#include "cache/kv.h"

#include <pthread.h>
#include <rocksdb/c.h>
#include <stdatomic.h>

/* File ends rounded up to blocks, headers and index entries come to at most this part of what
 * is written. */
#define DCTF_KV_ROUNDING_SHARE 64u

struct dctf_kv {
    struct dctf_door door;
    pthread_mutex_t recover_lock; /* one recovery at a time */

    /* Written only while the door is closed. */
    rocksdb_t *db; /* NULL: the last reopening failed */
    rocksdb_column_family_handle_t *cfs[DCTF_KV_CF_COUNT];

    char *dir;
    struct dctf_kv_config config;
    rocksdb_options_t *db_options;
    rocksdb_options_t *cf_options[DCTF_KV_CF_COUNT];
    rocksdb_compactionfilter_t *filter;
    rocksdb_cache_t *cache;
    rocksdb_readoptions_t *read_checked, *read_raw;
    rocksdb_writeoptions_t *write_logged, *write_unlogged;

    atomic_ullong written;       /* what all writes so far can come to on disk; only rises */
    atomic_ullong measured_base; /* bytes measured, less `written` as it was before; modulo 2^64 */
    atomic_ullong index_spare, small_spare, blob_file_max; /* as last measured */
};

extern const char *const dctf_kv_cf_names[DCTF_KV_CF_COUNT];

/* All but the database itself. */
DCTF_MUST_CHECK
enum dctf_err dctf_kv_make(const struct dctf_kv_config *config, struct dctf_kv **out);
/* Takes the error text and logs it. `opening`: whatever is not the disk's fault is a
 * damaged database. */
enum dctf_err dctf_kv_take_error(char *text, const char *what, bool opening, char *detail);
/* dctf_kv_flush() for who has passed the door and finds the database open; does not measure. */
void dctf_kv_flush_inside(struct dctf_kv *kv, enum dctf_kv_cf cf);
/* Likewise: rewrite all files of one column family, but not what is still in memory. RocksDB does
 * so by itself, in parts and at times of its own, for which tests cannot wait. */
void dctf_kv_compact_inside(struct dctf_kv *kv, enum dctf_kv_cf cf);

#endif
