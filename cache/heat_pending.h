/* SPDX-License-Identifier: Apache-2.0
 *
 * Accesses not yet in the database: a table of fixed size. Internal to heat*.c.
 *
 * Threads:   caller locks.
 * Ownership: dctf_heat_pending_init() gives memory that _fini() frees; names too.
 */
#ifndef DCTF_CACHE_HEAT_PENDING_H
#define DCTF_CACHE_HEAT_PENDING_H

#include "base/err.h"
#include "cache/heat_record.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dctf_heat_pending_entry {
    uint64_t id;
    struct dctf_heat_count count; /* access_count 0: an empty place */
    char *name;                   /* to be written with it, or NULL */
};

struct dctf_heat_pending {
    struct dctf_heat_pending_entry *entries;
    size_t mask;
    size_t used, max;
};

/* Room for `max` entries. */
DCTF_MUST_CHECK
enum dctf_err dctf_heat_pending_init(struct dctf_heat_pending *table, size_t max);
void dctf_heat_pending_fini(struct dctf_heat_pending *table);
/* NULL when it has none. */
const struct dctf_heat_pending_entry *dctf_heat_pending_find(
    const struct dctf_heat_pending *table, uint64_t id);
/* The entry of `id`, made when there is none and room; its count is then zeros, and
 * the caller adds to it. NULL when full. */
struct dctf_heat_pending_entry *dctf_heat_pending_claim(struct dctf_heat_pending *table, uint64_t id);
void dctf_heat_pending_clear(struct dctf_heat_pending *table);

#endif
