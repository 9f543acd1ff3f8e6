/* SPDX-License-Identifier: Apache-2.0
 *
 * Extents that this node copied: what is missing again was evicted here, and is not copied anew for half an
 * hour, so that eviction and copying do not chase each other.
 *
 * Threads:   caller locks. Pure: time is an argument.
 * Ownership: new() gives an object to free().
 */
#ifndef DCTF_CLUSTER_COPIED_H
#define DCTF_CLUSTER_COPIED_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DCTF_COPIED_PAUSE_MS (30u * 60u * 1000u)

struct dctf_copied;

DCTF_MUST_CHECK
enum dctf_err dctf_copied_new(size_t max, struct dctf_copied **out);
void dctf_copied_free(struct dctf_copied *copied); /* NULL is allowed */

/* The extent is missing here; may it be copied? False within the pause after it was seen missing first. */
bool dctf_copied_may(struct dctf_copied *copied, uint64_t extent_key, uint64_t now_ms);
/* It was copied whole and kept (in shadow mode: would have been). False when no place was left to note it. */
bool dctf_copied_done(struct dctf_copied *copied, uint64_t extent_key);
/* It came, and the cache did not keep it: as if evicted at once. */
void dctf_copied_unkept(struct dctf_copied *copied, uint64_t extent_key, uint64_t now_ms);
/* Whether it is noted as copied. Marks it as still wanted, for sweep(). */
bool dctf_copied_is(struct dctf_copied *copied, uint64_t extent_key);
/* Forget what was not asked about since the last sweep. */
void dctf_copied_sweep(struct dctf_copied *copied);
size_t dctf_copied_count(const struct dctf_copied *copied);

#endif
