/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes that readers got of each feature since this was last reported, and the paths of features by id. When
 * there are too many features the half of which least was read is forgotten.
 *
 * Threads:   caller locks. Pure.
 * Ownership: new() gives an object to free(). Paths are copied.
 */
#ifndef DCTF_CLUSTER_PASSES_H
#define DCTF_CLUSTER_PASSES_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dctf_passes;

struct dctf_passes_entry {
    uint64_t feature_id;
    char *path;             /* owned by the table */
    uint64_t bytes;         /* not reported */
    uint64_t sent;          /* reported, and not known to have arrived */
    uint64_t feature_bytes; /* 0: not known yet */
    uint64_t generation;    /* of the listing that it comes from */
};

DCTF_MUST_CHECK
enum dctf_err dctf_passes_new(size_t max, struct dctf_passes **out);
void dctf_passes_free(struct dctf_passes *passes); /* NULL is allowed */

/* The entry, made when there is none; NULL without memory. Valid until the next claim. */
struct dctf_passes_entry *dctf_passes_claim(
    struct dctf_passes *passes, uint64_t feature_id, const char *path);
struct dctf_passes_entry *dctf_passes_find(struct dctf_passes *passes, uint64_t feature_id);
/* All of them, in no order; i < count. */
size_t dctf_passes_count(const struct dctf_passes *passes);
struct dctf_passes_entry *dctf_passes_at(struct dctf_passes *passes, size_t i);

#endif
