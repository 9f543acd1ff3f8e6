/* SPDX-License-Identifier: Apache-2.0
 *
 * This node's part in the cluster: where a miss goes, and what this node fetches and serves for
 * the others. To the read engine it is an origin like another (transport/origin.h); above the real
 * one, the *upstream*.
 *
 *   get(range) ── cut at extents ──→ part
 *     part: who comes first of the four best ranks: a peer whose breaker is closed, or this node
 *           this node, or nobody → fill
 *           a peer → ask it (hop 1), in sub-ranges of 1 MiB
 *              busy   → wait as it says and ask again
 *              gone, or slower than it usually is with budget left → the next of the ranks as well
 *              both gone → fill
 *   fill(extent, blocks): what the tiers have is read; what is in flight is joined; for the rest a
 *           flight: settle → probes (hop 0) of the first three ranks (four once this node had no room
 *           for something), then of past homes, newest first, eight in all → upstream (If-Match) →
 *           waiters → tiers
 *
 *   peer asks (hop 1): as fill. (hop 0): tiers and flights from upstream, or "absent"
 *
 * A node that was asked by a peer never makes a waiting request to another peer (hop rule): no two
 * nodes can wait for each other, whatever their views are.
 *
 * list() and head() go to the upstream; listings are shared above it (cluster/listings.h).
 *
 * Threads:   any thread. Waits for the network happen in callbacks; no lock is held across them.
 * Ownership: new() gives an object to free() after everything above it has ended.
 */
#ifndef DCTF_CLUSTER_CLUSTER_H
#define DCTF_CLUSTER_CLUSTER_H

#include "base/err.h"
#include "base/version.h"
#include "cluster/view.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dctf_budget;
struct dctf_clock;
struct dctf_cluster;
struct dctf_config;
struct dctf_metrics;
struct dctf_origin;
struct dctf_pool;
struct dctf_store;
struct dctf_timers;

struct dctf_cluster_config {
    const struct dctf_config *options; /* borrowed for life, as all pointers here */
    uint64_t dataset;
    enum dctf_feature_by feature_by;
    struct dctf_origin *upstream;
    struct dctf_store *store;
    struct dctf_budget *budget; /* of flights */
    struct dctf_pool *pool;     /* reads from and writes to the tiers */
    struct dctf_timers *timers;
    struct dctf_metrics *metrics;
    const struct dctf_clock *clock; /* NULL: the system's */
};

/* Whether the options ask for a cluster at all (listen, peers or redis). */
bool dctf_cluster_is_wanted(const struct dctf_config *options);

/* Start membership and, with `listen`, the server. DCTF_ERR_PEER_UNSAFE, _OPTION_VALUE, _SYSTEM with
 * words in `detail` (≥ 256 bytes). Never waits for the network. */
DCTF_MUST_CHECK
enum dctf_err dctf_cluster_new(
    const struct dctf_cluster_config *config, char *detail, struct dctf_cluster **out);
/* What the read engine's scheduler asks; owned by the cluster: its close() ends the server, the flights and
 * the requests, and frees the cluster. */
struct dctf_origin *dctf_cluster_origin(struct dctf_cluster *cluster);

/* Members that should have block `block` of a version, best first (user.dctf.homes). */
size_t dctf_cluster_homes(struct dctf_cluster *cluster, const struct dctf_version *version, uint32_t block,
    struct dctf_node *out, size_t max);

/* Trouble that a node has with the source, not the source with all: its link, its clock, its credentials. */
bool dctf_cluster_is_of_one_node(enum dctf_err err);
/* Whether this node is the home of an extent, or nobody else is. */
bool dctf_cluster_is_home(struct dctf_cluster *cluster, const struct dctf_version *version, uint32_t extent);
struct dctf_cluster_warmed {
    bool own;     /* this node is the home: nothing was done */
    bool fetched; /* the home had to fetch some of it; else it had all */
    bool kept;    /* it is there now; false: the home has no room for it */
};
/* Have another home of an extent fetch what it misses, waiting here: until it has, stop() says so, which is
 * asked several times a second (DCTF_ERR_CANCELLED), or read_deadline_ms are over. DCTF_ERR_PEER_GONE, _AUTH
 * … as transport/peer_client.h has them. The home itself waits for no other peer. */
DCTF_MUST_CHECK
enum dctf_err dctf_cluster_warm(struct dctf_cluster *cluster, const struct dctf_version *version,
    uint32_t extent, bool (*stop)(void *ctx), void *ctx, struct dctf_cluster_warmed *out);

/* A reader got so many bytes of a version: heat of its feature, which the cluster judges what to copy by. Of
 * what the kernel answers by itself nobody can tell how much was read: then the whole shard, once for each
 * open. */
void dctf_cluster_count_read(
    struct dctf_cluster *cluster, const struct dctf_version *version, uint64_t bytes);
/* Begin to copy what is hot to this node, as `replicate` says. list() reads the listing of a directory from
 * the source into the database, waiting; it may be called until the origin's close(). */
DCTF_MUST_CHECK
enum dctf_err dctf_cluster_start_copies(
    struct dctf_cluster *cluster, enum dctf_err (*list)(void *ctx, const char *dir), void *ctx);
/* Transfers from peers have been slow for a while: only what readers wait for should be asked for. */
bool dctf_cluster_is_degraded(const struct dctf_cluster *cluster);

struct dctf_copies_status {
    bool judged; /* there is a coordinator: else all of this is empty */
    bool leads;  /* this node judges */
    bool copies; /* replicate is not off */
    bool shadow; /* and only counts */
    bool degraded;
    uint64_t fence, version, table_age_ms; /* of the table; fence 0: none yet */
    size_t hot, mid;                       /* features in it */
    uint64_t copied_bytes, shadow_bytes;   /* since the start */
    uint64_t held_bytes, share_bytes;      /* of copies: here, and at most */
    size_t missing; /* features of the table that are not wholly where they should be */
};
void dctf_cluster_copies_status(struct dctf_cluster *cluster, struct dctf_copies_status *out);
#define DCTF_MID_REPLICAS 3u
struct dctf_feature_policy {
    uint64_t feature_id;
    bool hot;         /* else mid */
    size_t replicas;  /* nodes that should have it */
    const char *path; /* NULL: not known here */
};
/* Visit the table, by id, until it returns false. */
void dctf_cluster_each_feature(struct dctf_cluster *cluster,
    bool (*visit)(void *ctx, const struct dctf_feature_policy *feature), void *ctx);

/* For `dctf doctor`: each member asked anew, whatever is thought of it. */
struct dctf_peer_examined {
    struct dctf_node node;
    bool self;              /* not asked */
    enum dctf_err err;      /* of a ping; PEER_AUTH: another secret, or a clock more than two minutes off */
    uint64_t first_byte_us; /* of its answer */
    uint64_t view;          /* hash of its view; 0: not told */
    bool other_view;        /* which is not ours */
    bool other_dataset;     /* it serves another source, or speaks another language */
};
/* Waits here, up to `deadline_ms`, which all members share. DCTF_ERR_NO_MEMORY, _SHUTTING_DOWN: nobody was
 * asked. */
DCTF_MUST_CHECK
enum dctf_err dctf_cluster_examine(struct dctf_cluster *cluster, uint64_t deadline_ms,
    void (*each)(void *ctx, const struct dctf_peer_examined *peer), void *ctx);

/* For status and tools. */
struct dctf_peer_status {
    struct dctf_node node;
    bool self;
    unsigned breaker;             /* enum dctf_breaker_state */
    uint64_t p50_us, p99_us;      /* first byte of demand; 0: not known */
    uint64_t rtt_us, min_rtt_us;  /* of the path; 0: not known */
    uint64_t bytes_in, bytes_out; /* received from it, sent to it */
    uint64_t requests, failures;
    unsigned gate_window_kib;
    bool gate_open;
};
struct dctf_cluster_status {
    uint64_t view_hash;
    uint64_t view_age_ms; /* UINT64_MAX: never confirmed */
    bool settled;
    size_t flights;
    uint64_t origin_bytes, peer_bytes_in, peer_bytes_out;
    uint64_t hedges, hedges_won, failovers, fills_local, probes, probe_hits;
    unsigned port; /* 0: does not listen */
};
void dctf_cluster_status(struct dctf_cluster *cluster, struct dctf_cluster_status *out);
/* Visit every member until it returns false. */
void dctf_cluster_each_peer(
    struct dctf_cluster *cluster, bool (*visit)(void *ctx, const struct dctf_peer_status *peer), void *ctx);

#endif
