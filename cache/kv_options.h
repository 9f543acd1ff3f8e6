/* SPDX-License-Identifier: Apache-2.0
 *
 * How RocksDB is set up for the tier; a part of cache/kv.c and of nobody else.
 *
 * Threads:   one thread. What is made runs on RocksDB's own threads.
 * Ownership: the caller destroys what it gets. `config`, `cache` and `filter` are
 *            borrowed for the database's life.
 */
#ifndef DCTF_CACHE_KV_OPTIONS_H
#define DCTF_CACHE_KV_OPTIONS_H

#include "cache/kv.h"

typedef struct rocksdb_options_t rocksdb_options_t;
typedef struct rocksdb_cache_t rocksdb_cache_t;
typedef struct rocksdb_compactionfilter_t rocksdb_compactionfilter_t;

/* Bytes one compaction of the index reads, and so writes, at most. */
uint64_t dctf_kv_options_compaction_bytes(const struct dctf_kv_config *config);
/* NULL when an option is not known to this RocksDB: logged. */
rocksdb_options_t *dctf_kv_options_db(const struct dctf_kv_config *config);
/* NULL when the config has nothing to expire. */
rocksdb_compactionfilter_t *dctf_kv_options_filter(const struct dctf_kv_config *config);
rocksdb_options_t *dctf_kv_options_cf(const struct dctf_kv_config *config, enum dctf_kv_cf cf,
    rocksdb_cache_t *cache, rocksdb_compactionfilter_t *filter);

#endif
