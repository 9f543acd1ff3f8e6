/* SPDX-License-Identifier: Apache-2.0
 *
 * A bounded set of shard ids in little memory, so that what was verified once
 * stays known after its shard object is gone. An id counts as its first 64 bits.
 *
 * Threads:   any thread; calls serialise on one lock for a few nanoseconds.
 * Ownership: dctf_idset_new() gives a set to pass to dctf_idset_free().
 */
#ifndef DCTF_CACHE_IDSET_H
#define DCTF_CACHE_IDSET_H

#include "base/err.h"
#include "base/version.h"

#include <stdbool.h>
#include <stddef.h>

struct dctf_idset;

/* Room for at least `max` ids; what does not fit is not remembered. */
DCTF_MUST_CHECK
enum dctf_err dctf_idset_new(size_t max, struct dctf_idset **out);
void dctf_idset_free(struct dctf_idset *set);

void dctf_idset_add(struct dctf_idset *set, const struct dctf_id *id);
void dctf_idset_remove(struct dctf_idset *set, const struct dctf_id *id);
bool dctf_idset_has(struct dctf_idset *set, const struct dctf_id *id);
size_t dctf_idset_count(struct dctf_idset *set);

#endif
