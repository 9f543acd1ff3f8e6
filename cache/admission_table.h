/* SPDX-License-Identifier: Apache-2.0
 *
 * A bounded table of recent keys: buckets of fixed width, the entry touched
 * longest ago gives way. No deletion, no rehash, one or two cache misses. Internal
 * to admission*.c.
 *
 * Threads:   caller locks.
 * Ownership: dctf_recent_init() gives memory that dctf_recent_fini() frees.
 */
#ifndef DCTF_CACHE_ADMISSION_TABLE_H
#define DCTF_CACHE_ADMISSION_TABLE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What every entry begins with. Zeros: an empty place. */
struct dctf_recent_head {
    uint64_t key;
    uint64_t last; /* access number of the last touch, from 1; kept by the caller */
};

struct dctf_recent {
    unsigned char *entries;
    size_t entry_bytes;
    size_t buckets;
    size_t used;
};

/* Room for about `max` entries of `entry_bytes`, which begin with the head. */
DCTF_MUST_CHECK
enum dctf_err dctf_recent_init(struct dctf_recent *table, size_t entry_bytes, size_t max);
void dctf_recent_fini(struct dctf_recent *table);
/* The entry of a key, or NULL. `hash` spreads the key and is a pure function of it. */
void *dctf_recent_find(const struct dctf_recent *table, uint64_t key, uint64_t hash);
/* The entry of a key, made when there is none: then all zeros but for its key, and
 * the caller sets `last`. */
void *dctf_recent_claim(struct dctf_recent *table, uint64_t key, uint64_t hash);

#endif
