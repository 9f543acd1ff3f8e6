/* SPDX-License-Identifier: Apache-2.0
 *
 * Members that are registered but that the others do not reach: a cut link between nodes that still see the
 * coordinator. Breakers route around such a node within a second, but it stays the home of its extents, for
 * which everybody asks the second then. So it is left out of placement when it stays so.
 *
 * Every node tells whom it does not reach, and for how long; who tells nothing of a member reaches it. A
 * member is left out when more than half of the others, and at least two, have not reached it for
 * `after_ms`. Those that are left out have no say: a node behind a cut link complains of all
 * others. When those that the others do not reach, however short, are half of the members that serve, or
 * more, nobody is left out, nor for `after_ms` from then: while such a split ends, links are found to be
 * mended one by one, and the complaints that remain look like those of a few.
 *
 * Threads:   any thread. Pure.
 * Ownership: the result is the caller's to free().
 */
#ifndef DCTF_CLUSTER_EXCLUSION_H
#define DCTF_CLUSTER_EXCLUSION_H

#include "base/err.h"
#include "cluster/view.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Members that one node tells of; when there are more, the same ones at all nodes. */
#define DCTF_UNREACHED_MAX 512u

/* No ping was answered for so long. */
struct dctf_unreached {
    uint64_t node; /* dctf_exclusion_id() */
    uint64_t ms;
};

struct dctf_unreached_report {
    uint64_t node; /* whose it is */
    struct dctf_unreached *entries;
    size_t count;
};

uint64_t dctf_exclusion_id(const char *node);

struct dctf_exclusion_times {
    uint64_t now_ms, after_ms;
    uint64_t
        calm_ms; /* until then nobody is left out: kept from one judgement to the next, 0 before the first */
};

/* Who is to be left out, in ascending order; DCTF_ERR_NO_MEMORY. At most one report of a node; those of nodes
 * that are no members do not count. Members of weight 0 are nobody's home and stay. */
DCTF_MUST_CHECK
enum dctf_err dctf_exclusion_judge(const struct dctf_node *members, size_t count,
    const struct dctf_unreached_report *reports, size_t report_count, struct dctf_exclusion_times *times,
    uint64_t **out, size_t *out_count);

/* Whether `ids`, in ascending order, names the node. */
bool dctf_exclusion_has(const uint64_t *ids, size_t count, uint64_t id);

/* Leave those out of placement that `ids` names: their weight is 0 then. Does nothing when they are half
 * of the members that serve, or more. */
void dctf_exclusion_apply(struct dctf_node *members, size_t count, const uint64_t *ids, size_t id_count);

#endif
