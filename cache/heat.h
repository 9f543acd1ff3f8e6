/* SPDX-License-Identifier: Apache-2.0
 *
 * Heat: table feature_heat(feature_id 64 bit, access_count, last_accessed), and
 * the same for single shards (by key hash), kept in the database with a merge
 * operator. Counts decay: an access `half_life` ago counts half. Records not
 * touched for `ttl` are gone.
 *
 * Threads:   any thread; calls serialise on the table's lock for a few hundred
 *            nanoseconds. dctf_heat_record() never touches the disk; accesses wait in
 *            memory until dctf_heat_flush() and are seen by every reader at once.
 * Ownership: dctf_heat_new() gives a table to pass to dctf_heat_free(), before the
 *            database closes.
 */
#ifndef DCTF_CACHE_HEAT_H
#define DCTF_CACHE_HEAT_H

#include "base/clock.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dctf_heat;
struct dctf_kv;

struct dctf_heat_config {
    uint64_t half_life_ms;
    uint64_t ttl_ms;
    const struct dctf_clock *clock; /* NULL: the system's; copied */
    uint64_t dataset;
};

struct dctf_heat_value {
    double heat;               /* decayed accesses, now */
    uint64_t access_count;     /* accesses since the record began */
    uint64_t last_accessed_ms; /* wall clock; 0 when never */
};

/* Size and functions for struct dctf_kv_config; `ctx` is a struct dctf_heat_config. */
size_t dctf_heat_record_bytes(void);
void dctf_heat_merge(void *ctx, void *state, const void *operand);
bool dctf_heat_expired(void *ctx, const char *key, size_t key_len, const char *value, size_t len);

DCTF_MUST_CHECK
enum dctf_err dctf_heat_new(
    const struct dctf_heat_config *config, struct dctf_kv *kv, struct dctf_heat **out);
void dctf_heat_free(struct dctf_heat *heat); /* flushes */

/* Count one open for reading of a shard (key hash) of a feature. `feature` is its
 * path, kept so that the table can name it. */
void dctf_heat_record(struct dctf_heat *heat, uint64_t key_hash, uint64_t feature_id, const char *feature);
/* Write waiting accesses to the database. Called about once a second. */
DCTF_MUST_CHECK
enum dctf_err dctf_heat_flush(struct dctf_heat *heat);

/* Heat now; zeros when never accessed. */
void dctf_heat_of_shard(struct dctf_heat *heat, uint64_t key_hash, struct dctf_heat_value *out);
void dctf_heat_of_feature(struct dctf_heat *heat, uint64_t feature_id, struct dctf_heat_value *out);
/* The path of a feature that was accessed here; `out` ≥ DCTF_KEY_MAX + 1 bytes. False when it is not known.
 * Reads the database. */
bool dctf_heat_feature_path(struct dctf_heat *heat, uint64_t feature_id, char *out);

enum dctf_heat_class {
    DCTF_HEAT_HOT,  /* top 10 % of the features by heat */
    DCTF_HEAT_MID,  /* next 30 % */
    DCTF_HEAT_COLD, /* the rest */
};

struct dctf_heat_rank {
    uint64_t feature_id;
    char *feature; /* path; owned by the table of ranks */
    struct dctf_heat_value value;
    uint64_t bytes; /* as told by bytes_of */
    enum dctf_heat_class class;
};

/* All features of the dataset, hottest first, with their classes. `bytes_of` (may
 * be NULL) tells a feature's bytes; hot features take no more than
 * `hot_bytes_max` together, hot and mid no more than `mid_bytes_max` (0: no
 * bound): what does not fit falls to the next class. Free with
 * dctf_heat_ranks_free(). */
DCTF_MUST_CHECK
enum dctf_err dctf_heat_ranks(struct dctf_heat *heat,
    uint64_t (*bytes_of)(void *ctx, uint64_t feature_id, const char *feature), void *ctx,
    uint64_t hot_bytes_max, uint64_t mid_bytes_max, struct dctf_heat_rank **out, size_t *count);
void dctf_heat_ranks_free(struct dctf_heat_rank *ranks, size_t count);
const char *dctf_heat_class_name(enum dctf_heat_class class);

#endif
