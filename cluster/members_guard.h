/* SPDX-License-Identifier: Apache-2.0
 *
 * Shrink guard: when many members vanish at once, it is more likely that the place they are
 * listed at forgot them than that they died. They are kept for a while, so that homes do not move to
 * and fro; those that really died are passed over by the breakers meanwhile.
 *
 *   more than max(2, 20 %) gone within `window_ms`  → all of them are kept for `hold_ms`
 *   the list was lost as a whole                    → whoever was in it is kept for `lost_ms`
 *   a member said good-bye                          → goes at once, and does not count
 *
 * Threads:   caller locks. Pure: time is an argument.
 * Ownership: embedded; fini() frees what it keeps.
 */
#ifndef DCTF_CLUSTER_MEMBERS_GUARD_H
#define DCTF_CLUSTER_MEMBERS_GUARD_H

#include "base/err.h"
#include "cluster/view.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dctf_guard_missing;

struct dctf_guard {
    uint64_t window_ms, hold_ms, lost_ms;
    uint64_t held_until_ms; /* 0: nothing is held */
    struct dctf_guard_missing *missing;
    size_t count;
};

void dctf_guard_init(struct dctf_guard *guard, uint64_t window_ms, uint64_t hold_ms, uint64_t lost_ms);
void dctf_guard_fini(struct dctf_guard *guard);

/* One look at the list. `now` has the members it names and `before` those it named at the last look, both
 * in the order of their ids. `*out` gets the members that count, in that order: `now` and those
 * that are held; free() it. On failure nothing has changed. */
DCTF_MUST_CHECK
enum dctf_err dctf_guard_apply(struct dctf_guard *guard, uint64_t now_ms, const struct dctf_node *before,
    size_t before_count, const struct dctf_node *now, size_t now_count, bool lost, struct dctf_node **out,
    size_t *out_count);
/* Said good-bye: call before apply(), and leave it out of `before`. */
void dctf_guard_left(struct dctf_guard *guard, const char *id);
/* When apply() should be called again though nothing was heard; UINT64_MAX: no need. */
uint64_t dctf_guard_due_ms(const struct dctf_guard *guard);

#endif
