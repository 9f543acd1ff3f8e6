/* SPDX-License-Identifier: Apache-2.0
 *
 * The duel of dctf_admission: a sample of the keys also runs through two
 * miniature caches without data, one that holds and one that follows recency
 * (S3-FIFO, Yang et al., SOSP '23). Internal to admission*.c.
 *
 * The sample starts with every key and halves whenever the fixed pool of entries
 * is full, so small datasets are judged exactly and large ones by a share, in
 * the same memory (fixed-size SHARDS, Waldspurger et al., FAST '15).
 *
 * Threads:   caller locks.
 * Ownership: dctf_duel_init() gives memory that dctf_duel_fini() frees.
 */
#ifndef DCTF_CACHE_ADMISSION_DUEL_H
#define DCTF_CACHE_ADMISSION_DUEL_H

#include "base/clock.h"
#include "base/err.h"
#include "cache/admission.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct duel_entry;

enum duel_queue { DUEL_SMALL, DUEL_MAIN, DUEL_GHOST, DUEL_QUEUES, DUEL_NONE = DUEL_QUEUES };

struct duel_fifo {
    uint32_t head, tail; /* entry numbers, oldest at the head */
    uint64_t bytes;
};

/* The holding rule, asked for the miniature: which of the candidates gives way to
 * the newcomer, `count` when none does. Without a newcomer (NULL), the coldest. */
typedef size_t dctf_duel_hold_rule(void *ctx, const struct dctf_admission_candidate *newcomer,
    const struct dctf_admission_candidate *candidates, size_t count);

struct dctf_duel {
    struct duel_entry *entries;
    size_t entries_max;
    uint32_t *buckets; /* chains through entries, by hash */
    size_t bucket_mask;
    uint32_t free_head;
    uint32_t *held; /* entries the holding miniature keeps */
    size_t held_count;
    uint64_t held_bytes;
    struct duel_fifo fifo[DUEL_QUEUES];
    unsigned share_log2; /* one key in 2^share_log2 takes part */
    double hold_hits, follow_hits;
    bool recency; /* the winner */
    struct dctf_rng rng;
    dctf_duel_hold_rule *rule;
    void *ctx;
};

DCTF_MUST_CHECK
enum dctf_err dctf_duel_init(
    struct dctf_duel *duel, size_t entries_max, uint64_t seed, dctf_duel_hold_rule *rule, void *ctx);
void dctf_duel_fini(struct dctf_duel *duel);

/* Play one access of `shard`. `hash` spreads its key; `worth` is what a hit counts
 * (1 for an average shard); `mean_bytes` the size of an average shard. */
void dctf_duel_access(struct dctf_duel *duel, const struct dctf_admission_candidate *shard, uint64_t hash,
    double worth, uint64_t capacity_bytes, uint64_t mean_bytes);

#endif
