/* SPDX-License-Identifier: Apache-2.0
 *
 * Heat of the whole cluster, for people to look at: what the node that leads found when it judged last. That
 * one keeps it, the others ask it.
 *
 * As members send it to each other, little-endian: fence(8) age_ms(8) features(8), then for each of the
 * hottest, in order: id(8) passes(8, a double) bytes(8) nodes(4) class(1) path_len(2) path. Without entries
 * it answers who only asks whether there is any.
 *
 * Threads:   any thread.
 * Ownership: nothing is kept of arguments.
 */
#ifndef DCTF_CLUSTER_CLUSTER_HEAT_H
#define DCTF_CLUSTER_CLUSTER_HEAT_H

#include "base/err.h"
#include "cluster/policy.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dctf_cluster;

struct dctf_cluster_heat_entry {
    struct dctf_policy_heat heat;
    const char *path; /* "" is the root, or not known: see `known` */
    bool known;
};

struct dctf_cluster_heat {
    bool coordinated;  /* members are by Redis: else nothing is reported, and the rest is empty */
    bool judged;       /* a node has judged, and could be asked */
    char node[64];     /* its id */
    uint64_t age_ms;   /* since then */
    uint64_t features; /* known to it */
    uint64_t half_life_ms;
};
/* Ask who leads, waiting here up to `deadline_ms`; each() gets at most `max` features, hottest first.
 * DCTF_ERR_NO_MEMORY, _SHUTTING_DOWN. */
DCTF_MUST_CHECK
enum dctf_err dctf_cluster_heat(struct dctf_cluster *cluster, size_t max, uint64_t deadline_ms,
    void (*each)(void *ctx, const struct dctf_cluster_heat_entry *entry), void *ctx,
    struct dctf_cluster_heat *out);

/* --- for the rest of cluster/, and tests --- */

struct dctf_heat_cursor {
    uint64_t fence, age_ms, features;
    const uint8_t *at, *end; /* private */
    char path[1025];         /* private */
};
/* DCTF_ERR_BAD_RESPONSE. */
DCTF_MUST_CHECK
enum dctf_err dctf_heat_open(struct dctf_heat_cursor *cursor, const void *data, size_t len);
/* DCTF_ERR_NOT_FOUND at the end, DCTF_ERR_BAD_RESPONSE. `entry->path` is valid until the next call. */
DCTF_MUST_CHECK
enum dctf_err dctf_heat_next(struct dctf_heat_cursor *cursor, struct dctf_cluster_heat_entry *entry);

#define DCTF_HEAT_HEAD 24u
/* What this node keeps while it leads. Guarded by the cluster's lock. */
struct dctf_heat_kept {
    uint8_t *entries; /* as sent; NULL: none */
    size_t len;
    uint64_t fence, features;
    uint64_t judged_ms; /* monotonic */
};
struct dctf_controller;
void dctf_heat_judged(
    void *ctx, struct dctf_controller *controller, uint64_t fence, const struct dctf_policy_result *result);

struct dctf_peer_request;
/* Answer a peer: with `max` 0 the head alone. */
void dctf_heat_serve(struct dctf_cluster *cluster, struct dctf_peer_request *request, uint64_t max);

#endif
