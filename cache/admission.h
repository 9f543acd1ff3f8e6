/* SPDX-License-Identifier: Apache-2.0
 *
 * What a full cache keeps: Hold unless the newcomer is clearly hotter, features
 * nobody touches go first, and a duel of two miniature caches picks recency when
 * popularity drifts. Pure policy: it holds no data and does no I/O.
 *
 * Time is counted in accesses (opens for reading), not in seconds: an epoch has
 * no fixed length. Heat here is in accesses decayed with a half-life of four
 * estimated epochs.
 *
 * Threads:   any thread; calls serialise on one lock, never blocking on disk.
 * Ownership: dctf_admission_new() gives a policy to pass to dctf_admission_free().
 */
#ifndef DCTF_CACHE_ADMISSION_H
#define DCTF_CACHE_ADMISSION_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dctf_admission;

struct dctf_admission_config {
    size_t max_shards_tracked; /* shards whose heat is remembered; the oldest go first */
    uint64_t seed;
};

/* One resident, as a victim candidate. */
struct dctf_admission_candidate {
    uint64_t key_hash;
    uint64_t feature_id;
    uint64_t bytes; /* resident */
};

enum dctf_admission_verdict {
    DCTF_ADMIT,  /* evict the chosen victim, then admit */
    DCTF_BYPASS, /* serve without keeping */
};

struct dctf_admission_stats {
    uint64_t now;                  /* accesses so far */
    uint64_t epoch_accesses;       /* estimated epoch length; 0: not known yet */
    bool recency;                  /* the duel's winner is recency */
    double hold_hits, follow_hits; /* decayed hits of the miniatures */
    size_t shards_tracked;
};

DCTF_MUST_CHECK
enum dctf_err dctf_admission_new(const struct dctf_admission_config *config, struct dctf_admission **out);
void dctf_admission_free(struct dctf_admission *admission);

/* Count one open for reading. `capacity_bytes` is the cache's cap, `bytes` the
 * shard's size: the miniatures are sized from them. Without a capacity (0) there is
 * no duel. */
void dctf_admission_access(struct dctf_admission *admission, uint64_t key_hash, uint64_t feature_id,
    uint64_t bytes, uint64_t capacity_bytes);

/* The cache is full. Of `count` random residents (16 is what the rule was tuned
 * for) pick the victim for a newcomer that wants `bytes`: *victim is its index, or
 * `count` on DCTF_BYPASS. The newcomer itself, when it is among them, is passed over. */
enum dctf_admission_verdict dctf_admission_choose(struct dctf_admission *admission, uint64_t key_hash,
    uint64_t feature_id, uint64_t bytes, const struct dctf_admission_candidate *candidates, size_t count,
    size_t *victim);
/* The coldest of the candidates, without a newcomer (space must be given back). */
size_t dctf_admission_coldest(
    struct dctf_admission *admission, const struct dctf_admission_candidate *candidates, size_t count);

/* Seed a shard's heat from the persistent table after a restart, if it is not
 * tracked yet. `heat` in accesses. A shard neither seeded nor accessed counts as
 * accessed once at the start: seed newcomers and candidates alike, or neither. */
void dctf_admission_seed(
    struct dctf_admission *admission, uint64_t key_hash, uint64_t feature_id, double heat);

void dctf_admission_stats(struct dctf_admission *admission, struct dctf_admission_stats *out);

#endif
