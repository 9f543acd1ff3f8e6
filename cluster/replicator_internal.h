/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to replicator*.c.
 *
 *   replicator.c        the thread, the walk over table, features, shards and extents
 *   replicator_copy.c   pieces: asking, waiting, writing
 *
 * All of it belongs to the replicator's thread but for what the lock guards.
 */
#ifndef DCTF_CLUSTER_REPLICATOR_INTERNAL_H
#define DCTF_CLUSTER_REPLICATOR_INTERNAL_H

#include "base/metric.h"
#include "cluster/controller.h"
#include "cluster/copied.h"
#include "cluster/internal.h"
#include "cluster/rate.h"
#include "cluster/readiness.h"
#include "cluster/replicator.h"

#define DCTF_PIECES 8u

/* A feature that is being walked. */
struct dctf_walk {
    uint64_t feature_id;
    enum dctf_policy_class class;
    const char *path;
    uint64_t held;   /* bytes of copies that are here */
    bool missing;    /* something that should be here is not, and was not brought */
    bool again;      /* something was not: the next walk looks whether it is */
    bool copied;     /* something came */
    bool dropped;    /* a version is gone */
    bool told;       /* and who forgets the listing was told, here and on the other nodes */
    unsigned pieces; /* that are under way */
};

enum dctf_piece_state {
    DCTF_PIECE_FREE,
    DCTF_PIECE_WAIT,
    DCTF_PIECE_ASK,
    DCTF_PIECE_FILL,
    DCTF_PIECE_ENDED,
    DCTF_PIECE_CAME /* what it was asked of is free again; its bytes are to be kept */
};

/* At most 1 MiB of one extent, on its way here. */
struct dctf_piece {
    struct dctf_peer_get get; /* first */
    struct dctf_replicator *replicator;
    struct dctf_fill fill;
    enum dctf_piece_state state; /* guarded by lock, as are err and answer */
    bool filling;                /* it was FILL before it ENDED */
    enum dctf_err err;
    struct dctf_peer_answer answer;
    struct dctf_walk *walk;
    struct dctf_version *version; /* counted */
    struct dctf_shard *shard;     /* counted */
    struct dctf_peer *peer;       /* that is asked; NULL: none */
    char addr[DCTF_NODE_ADDR_MAX + 1];
    uint32_t first, count, extent_first, extent_count;
    uint64_t extent_key;
    size_t bytes;
    void *buf; /* of the budget; NULL: none */
    uint64_t begun_ms, due_ms;
    bool probe;               /* it went unpaced, to see how fast the path is */
    bool for_path;            /* it waits for the path to its home, not only for due_ms */
    enum dctf_metric refused; /* counted already; DCTF_METRIC_COUNT: nothing was */
};

/* What is known of an entry of the table, in its order. */
struct dctf_memo {
    uint64_t feature_id;
    enum dctf_policy_class class;
    uint64_t view_hash;
    uint64_t held;
    bool whole;  /* all that should be here is */
    bool listed; /* its listing was asked for */
};

struct dctf_replicator {
    struct dctf_cluster *cluster;
    struct dctf_controller *controller;
    dctf_replicator_list *list;
    void *list_ctx;
    bool shadow;
    pthread_t thread;
    struct dctf_readiness readiness;
    struct dctf_rate rate;
    struct dctf_copied *copied;
    struct dctf_piece pieces[DCTF_PIECES];
    struct dctf_memo *memos;
    size_t memo_count;
    uint64_t held;      /* of copies so far in this walk */
    uint64_t looked_ms; /* when all was looked at last, memos or not */
    bool all;           /* so it is in this walk */
    bool small_first;   /* transfers were slow: what is quick to come goes first, once */

    pthread_mutex_t lock;
    pthread_cond_t wake;
    /* guarded by lock */
    bool stopping, changed, ended;
    struct dctf_replicator_status status;
};

bool dctf_replicator_is_stopping(struct dctf_replicator *replicator);
void dctf_replicator_refuse(struct dctf_replicator *replicator, enum dctf_metric reason);

/* --- replicator_copy.c --- */

/* Bring blocks [first, first + count) of an extent, waiting until there is a place for it. */
void dctf_piece_bring(struct dctf_replicator *replicator, struct dctf_walk *walk, struct dctf_shard *shard,
    uint64_t extent_key, uint32_t extent_first, uint32_t extent_count, uint32_t first, uint32_t count);
/* Blocks that a piece of the extent should have at most: what its path takes at once. */
uint32_t dctf_piece_blocks(struct dctf_replicator *replicator, uint64_t extent_key);
/* Wait until no piece is under way; with `cancel` their requests are ended. */
void dctf_pieces_drain(struct dctf_replicator *replicator, bool cancel);

#endif
