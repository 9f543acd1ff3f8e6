/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/kv_options.h"

#include "base/log.h"

#include <rocksdb/c.h>
#include <stdlib.h>
#include <string.h>

#define BLOB_MIN_BYTES 4096u
#define BLOB_FILE_BYTES (32u * 1024u * 1024u)
#define LOG_HEADERS 5 /* InfoLogLevel::HEADER_LEVEL */
#define KIB ((uint64_t)1024)
#define MIB (1024 * KIB)
#define FILES_PER_LEVEL 4u /* in the index's first level; RocksDB's own proportion */

/* ---- merge and expiry of heat records ---- */

static char *heat_full_merge(void *state, const char *key, size_t key_len, const char *existing,
    size_t existing_len, const char *const *operands, const size_t *operand_lens, int count,
    unsigned char *success, size_t *len)
{
    const struct dctf_kv_config *config = state;
    size_t size = config->merge_record_bytes;
    char *merged = calloc(1, size);

    (void)key;
    (void)key_len;
    *success = merged != NULL;
    *len = merged ? size : 0;
    if (!merged)
        return NULL;
    if (existing && existing_len == size)
        memcpy(merged, existing, size);
    for (int i = 0; i < count; i++) {
        if (operand_lens[i] == size)
            config->merge(config->ctx, merged, operands[i]);
    }
    return merged;
}

/* Operands are kept apart until there is a value to fold them into. */
static char *heat_partial_merge(void *state, const char *key, size_t key_len, const char *const *operands,
    const size_t *operand_lens, int count, unsigned char *success, size_t *len)
{
    (void)state;
    (void)key;
    (void)key_len;
    (void)operands;
    (void)operand_lens;
    (void)count;
    *success = 0;
    *len = 0;
    return NULL;
}

static void heat_delete_value(void *state, const char *value, size_t len)
{
    (void)state;
    (void)len;
    free((char *)value);
}

static unsigned char heat_filter(void *state, int level, const char *key, size_t key_len, const char *value,
    size_t len, char **new_value, size_t *new_len, unsigned char *changed)
{
    const struct dctf_kv_config *config = state;

    (void)level;
    (void)new_value;
    (void)new_len;
    *changed = 0;
    return config->expired(config->ctx, key, key_len, value, len);
}

static const char *heat_name(void *state)
{
    (void)state;
    return "dctf-heat";
}

static void nothing(void *state)
{
    (void)state;
}

rocksdb_compactionfilter_t *dctf_kv_options_filter(const struct dctf_kv_config *config)
{
    if (!config->expired)
        return NULL;
    return rocksdb_compactionfilter_create((void *)config, nothing, heat_filter, heat_name);
}

/* ---- sizes ---- */

/* A share of the cache's cap, within bounds. The upper one is what a large cache gets. */
static uint64_t share_of(const struct dctf_kv_config *config, uint64_t divisor, uint64_t low, uint64_t high)
{
    uint64_t share = config->cache_bytes ? config->cache_bytes / divisor : high;

    return share < low ? low : share > high ? high : share;
}

static uint64_t level_bytes(const struct dctf_kv_config *config)
{
    return share_of(config, 128, 2 * MIB, 256 * MIB);
}

/* What the log and the memtables of the index hold comes and goes, and the cache must have room for
 * the most of it: they are short where the cache is small. */
static uint64_t log_bytes(const struct dctf_kv_config *config)
{
    return share_of(config, 800, 128 * KIB, 64 * MIB);
}

static uint64_t index_buffer_bytes(const struct dctf_kv_config *config)
{
    uint64_t buffer = share_of(config, 800, 128 * KIB, 64 * MIB);

    return buffer < config->write_buffer_bytes ? buffer : config->write_buffer_bytes;
}

/* A file of a level and what it overlaps in the next, which is ten times as large; or the first
 * level and what waits above it. */
uint64_t dctf_kv_options_compaction_bytes(const struct dctf_kv_config *config)
{
    return level_bytes(config) / FILES_PER_LEVEL * 12 + 4 * config->write_buffer_bytes;
}

/* ---- options ---- */

rocksdb_options_t *dctf_kv_options_cf(const struct dctf_kv_config *config, enum dctf_kv_cf cf,
    rocksdb_cache_t *cache, rocksdb_compactionfilter_t *filter)
{
    rocksdb_options_t *options = rocksdb_options_create();
    rocksdb_block_based_table_options_t *table = rocksdb_block_based_options_create();

    rocksdb_block_based_options_set_block_cache(table, cache);
    rocksdb_block_based_options_set_cache_index_and_filter_blocks(table, 1);
    rocksdb_block_based_options_set_pin_l0_filter_and_index_blocks_in_cache(table, 1);
    /* Whole-file index and filter blocks of a million keys do not fit one shard of the block
     * cache, and are then read again for each get. */
    rocksdb_block_based_options_set_index_type(
        table, rocksdb_block_based_table_index_type_two_level_index_search);
    rocksdb_block_based_options_set_partition_filters(table, 1);
    rocksdb_block_based_options_set_metadata_block_size(table, 4096);
    rocksdb_block_based_options_set_pin_top_level_index_and_filter(table, 1);
    rocksdb_block_based_options_set_filter_policy(table, rocksdb_filterpolicy_create_bloom_full(10));
    rocksdb_options_set_block_based_table_factory(options, table);
    rocksdb_block_based_options_destroy(table);

    rocksdb_options_set_write_buffer_size(
        options, cf == DCTF_KV_SMALL ? config->write_buffer_bytes : index_buffer_bytes(config));
    rocksdb_options_set_arena_block_size(options, 64 * 1024);
    rocksdb_options_set_max_bytes_for_level_base(options, level_bytes(config));
    rocksdb_options_set_target_file_size_base(options, level_bytes(config) / FILES_PER_LEVEL);
    rocksdb_options_set_max_compaction_bytes(options, level_bytes(config) / FILES_PER_LEVEL * 12);
    rocksdb_options_set_compression(options,
        cf == DCTF_KV_LISTING || cf == DCTF_KV_HEAT ? rocksdb_lz4_compression : rocksdb_no_compression);
    /* Every epoch writes a record of every shard: they are folded before they pile up. */
    if (cf == DCTF_KV_HEAT)
        rocksdb_options_set_level0_file_num_compaction_trigger(options, 2);
    if (cf == DCTF_KV_SMALL) {
        rocksdb_options_set_enable_blob_files(options, 1);
        rocksdb_options_set_min_blob_size(options, BLOB_MIN_BYTES);
        rocksdb_options_set_blob_file_size(
            options, config->blob_file_bytes ? config->blob_file_bytes : BLOB_FILE_BYTES);
        rocksdb_options_set_blob_compression_type(options, rocksdb_no_compression);
        /* Garbage is collected by dctf_kv_collect() alone, which turns this on: else
         * every compaction rewrites live bytes. */
        rocksdb_options_set_enable_blob_gc(options, 0);
    }
    if (cf == DCTF_KV_HEAT && config->merge) {
        rocksdb_options_set_merge_operator(
            options, rocksdb_mergeoperator_create((void *)config, nothing, heat_full_merge,
                         heat_partial_merge, heat_delete_value, heat_name));
        rocksdb_options_set_max_successive_merges(options, 16);
    }
    if (cf == DCTF_KV_HEAT && filter)
        rocksdb_options_set_compaction_filter(options, filter);
    return options;
}

/* Options that the C interface has no setter for. Takes `options`. */
static rocksdb_options_t *set_by_name(rocksdb_options_t *options, const char *text)
{
    rocksdb_options_t *with = rocksdb_options_create();
    char *error = NULL;

    rocksdb_get_options_from_string(options, text, with, &error);
    rocksdb_options_destroy(options);
    if (!error)
        return with;
    dctf_log(DCTF_LOG_ERROR, "kv", "err=%d op=options detail=\"%s\"", (int)DCTF_ERR_INTERNAL, error);
    rocksdb_free(error);
    rocksdb_options_destroy(with);
    return NULL;
}

rocksdb_options_t *dctf_kv_options_db(const struct dctf_kv_config *config)
{
    rocksdb_options_t *options = rocksdb_options_create();

    rocksdb_options_set_create_if_missing(options, 1);
    rocksdb_options_set_create_missing_column_families(options, 1);
    rocksdb_options_set_db_write_buffer_size(options, config->write_buffer_bytes);
    rocksdb_options_set_max_total_wal_size(options, log_bytes(config));
    rocksdb_options_set_max_background_jobs(options, 2);
    rocksdb_options_set_max_open_files(options, 256);
    rocksdb_options_set_skip_stats_update_on_db_open(options, 1);
    rocksdb_options_set_skip_checking_sst_file_sizes_on_db_open(options, 1);
    rocksdb_options_set_max_manifest_file_size(options, share_of(config, 512, 128 * KIB, 16 * MIB));
    /* Its own log gets headers only: a line written after the disk was full trips an
     * assertion of RocksDB 7.8 (Debian builds it with them on), and that would end the
     * mount. Errors reach our log as statuses. */
    rocksdb_options_set_info_log_level(options, LOG_HEADERS);
    rocksdb_options_set_max_log_file_size(options, 1024 * 1024);
    rocksdb_options_set_keep_log_file_num(options, 2);
    rocksdb_options_set_bytes_per_sync(options, 4 * 1024 * 1024);
    /* POSIX_FADV_RANDOM has the kernel allot single pages, which costs a small shard more than it saves. What
     * the kernel reads too much without it: nothing of a shuffled epoch, 8 % of sparse reads of 64 KiB. */
    rocksdb_options_set_advise_random_on_open(options, 0);
    /* Else each new log takes the size of a memtable at once, however little is written to it, and
     * each file of a compaction that of all it is made from: space the cap knows nothing of. */
    return set_by_name(options, "allow_fallocate=false");
}
