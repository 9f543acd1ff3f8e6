/* SPDX-License-Identifier: Apache-2.0
 *
 * Who fetched an extent from this node last. A home that has more to send than is good names some of them to
 * whoever asks for it next: they may still have it, so that nodes which read the same thing at the same time
 * serve each other. Lossy: places are few, and who fetched an extent may have kept nothing of it.
 *
 * Threads:   the caller locks.
 * Ownership: embedded; zeroed is empty. Peers are borrowed, and stay as long as the tracker.
 */
#ifndef DCTF_CLUSTER_TRACKER_H
#define DCTF_CLUSTER_TRACKER_H

#include <stddef.h>
#include <stdint.h>

#define DCTF_TRACKER_EXTENTS 4096u
#define DCTF_TRACKER_NODES 8u

struct dctf_peer;

struct dctf_tracked {
    uint64_t extent_key;
    struct dctf_peer *nodes[DCTF_TRACKER_NODES]; /* latest first */
};

struct dctf_tracker {
    struct dctf_tracked extents[DCTF_TRACKER_EXTENTS];
};

void dctf_tracker_fetched(struct dctf_tracker *tracker, uint64_t extent_key, struct dctf_peer *peer);
/* The latest that fetched it, at most `max`. Returns how many. */
size_t dctf_tracker_nodes(
    const struct dctf_tracker *tracker, uint64_t extent_key, struct dctf_peer **out, size_t max);

#endif
