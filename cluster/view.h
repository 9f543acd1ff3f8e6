/* SPDX-License-Identifier: Apache-2.0
 *
 * Who is in the cluster: an immutable snapshot of its members, and where each
 * extent has its home among them.
 *
 * Placement is rendezvous hashing, weighted (Mosharaf et al.; score −w/ln u, Schindelhauer and
 * Schomaker 2005): each member scores each extent, the highest score is the home. A
 * member that leaves moves only its own extents, one that joins takes about its
 * share from all. Members are hashed by id, so a changed address moves nothing.
 *
 * Threads:   any thread; a view never changes once built.
 * Ownership: counted; build() gives a view to dctf_view_unref().
 */
#ifndef DCTF_CLUSTER_VIEW_H
#define DCTF_CLUSTER_VIEW_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DCTF_NODES_MAX 4096u
#define DCTF_NODE_ID_MAX 63u
#define DCTF_NODE_ADDR_MAX 127u
#define DCTF_NODE_LABEL_MAX 31u
/* No member. */
#define DCTF_NODE_NONE UINT32_MAX

struct dctf_node {
    char id[DCTF_NODE_ID_MAX + 1];      /* stable over restarts; unique */
    char addr[DCTF_NODE_ADDR_MAX + 1];  /* "host:port" */
    char zone[DCTF_NODE_LABEL_MAX + 1]; /* "" : unknown */
    char rack[DCTF_NODE_LABEL_MAX + 1];
    char host[DCTF_NODE_LABEL_MAX + 1];
    uint64_t weight;    /* bytes of cache; 0: reads only, is nobody's home */
    uint64_t joined_ms; /* by the coordinator's clock; 0: not known */
    uint64_t incarnation;
    bool excluded; /* others do not reach it: it has lost its weight for now (exclusion.h) */
};

struct dctf_view;

/* Copy `count` members; `self` is this node's id ("" when it is none of them). Ids that
 * repeat and more than DCTF_NODES_MAX are DCTF_ERR_OPTION_VALUE. */
DCTF_MUST_CHECK
enum dctf_err dctf_view_build(
    const struct dctf_node *nodes, size_t count, const char *self, struct dctf_view **out);
struct dctf_view *dctf_view_ref(struct dctf_view *view);
void dctf_view_unref(struct dctf_view *view); /* NULL is allowed */

size_t dctf_view_count(const struct dctf_view *view);
/* Members in the order of their ids; i < count. */
const struct dctf_node *dctf_view_node(const struct dctf_view *view, uint32_t i);
uint32_t dctf_view_self(const struct dctf_view *view); /* DCTF_NODE_NONE when it is no member */
uint32_t dctf_view_find(const struct dctf_view *view, const char *id);
/* Of ids, weights and zones: two nodes with the same hash place alike. */
uint64_t dctf_view_hash(const struct dctf_view *view);

/* What placement hashes: the same on every node. `extent` counts from 0 within the shard. */
uint64_t dctf_extent_key(uint64_t dataset, const char *key, const char *etag, uint64_t extent);

/* The members with the highest scores for the extent, best first; returns how many
 * (fewer than `max` when there are not as many with a weight). O(members). */
size_t dctf_view_rank(const struct dctf_view *view, uint64_t extent_key, uint32_t *out, size_t max);
/* Where `node` stands among `count` ranks; `count` when it does not. */
size_t dctf_view_place(const uint32_t *ranks, size_t count, uint32_t node);
/* How far the way from this node to a member is, by what is known of both. */
enum dctf_near { DCTF_NEAR_HOST, DCTF_NEAR_RACK, DCTF_NEAR_ZONE, DCTF_NEAR_UNKNOWN, DCTF_NEAR_OTHER_ZONE };
enum dctf_near dctf_view_near(const struct dctf_view *view, uint32_t node);
/* The same members and hash, but homes in this node's zone alone. Where no zone is known of this node it is
 * the same view, counted once more. */
DCTF_MUST_CHECK
enum dctf_err dctf_view_within_zone(struct dctf_view *view, struct dctf_view **out);
/* The first `copies` members to hold it: the home, then by score with those first that share no host
 * with a member chosen before, then no rack. */
size_t dctf_view_replicas(const struct dctf_view *view, uint64_t extent_key, uint32_t *out, size_t copies);
/* Members that were the home of the extent while the cluster grew to this view, without the present
 * one, most recent first: the left-to-right maxima of the scores by time of joining, about ln N of
 * them. Empty when join times are not known. */
size_t dctf_view_past_homes(const struct dctf_view *view, uint64_t extent_key, uint32_t *out, size_t max);

#endif
