/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies what the policy table wants on this node: all of a hot feature on every node, extents of a mid one
 * where this node is among the first three for them. A feature is walked by its listing, kept or asked for;
 * what is missing comes from its home, in requests of at most 1 MiB (of a block while readers use the path),
 * class REPLICATION, one at a time per path, paced to four fifths of what the path was seen to carry, with a
 * window that is no larger than that needs (cluster/rate.h), and only when
 *
 *   the path's gate opens (transport/gate.h) and the peer is no busier than that
 *   this node has memory, writers, disk and peace for it (cluster/readiness.h)
 *   replicate_rate is not used up, nor replicate_share_pct of the cache by other copies, hot ones first
 *   the cache would keep it, and did not evict it within half an hour
 *   transfers for readers are not slow (cluster/degrade.h)
 *
 * Extents whose home is this node are brought from earlier homes or the source. Nothing is ever
 * deleted: a feature that cooled is not walked any more, and eviction takes it in time. A version that is
 * gone drops the walk of its feature and its listing.
 *
 *   piece: WAIT ⇄ ASK → CAME → (written, or dropped)     WAIT → FILL where this node is the home
 *
 * In shadow mode what would be copied is counted, once, and nothing is asked for.
 *
 * Threads:   any thread; the work is done by one thread of its own, which writes to the tiers.
 * Ownership: start() gives an object to stop(), before the cluster's client ends.
 */
#ifndef DCTF_CLUSTER_REPLICATOR_H
#define DCTF_CLUSTER_REPLICATOR_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DCTF_REPLICATE_SHADOW, DCTF_REPLICATE_OFF, DCTF_REPLICATE_ON }; /* words of the option `replicate` */

struct dctf_cluster;
struct dctf_replicator;

/* Read the listing of a directory from the source into the database, waiting here. */
typedef enum dctf_err dctf_replicator_list(void *ctx, const char *dir);

DCTF_MUST_CHECK
enum dctf_err dctf_replicator_start(
    struct dctf_cluster *cluster, dctf_replicator_list *list, void *ctx, struct dctf_replicator **out);
void dctf_replicator_stop(struct dctf_replicator *replicator); /* NULL is allowed */
/* There may be something to do. */
void dctf_replicator_wake(struct dctf_replicator *replicator);

struct dctf_replicator_status {
    bool shadow;
    uint64_t copied_bytes, shadow_bytes; /* since the start */
    uint64_t held_bytes, share_bytes;    /* of copies: here, and allowed */
    uint64_t walks;                      /* of the whole table, ended */
    size_t missing;                      /* features not wholly here at the end of the last walk */
};
void dctf_replicator_status(struct dctf_replicator *replicator, struct dctf_replicator_status *out);

#endif
