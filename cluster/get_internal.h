/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to get.c, get_sub.c and get_try.c: a get of the read engine, cut into *subs*: 1 MiB of one extent
 * each, or the whole part of an extent whose home this node is.
 *
 * References of a get: who starts or cancels it, each sub that has begun and is not DONE, each timer.
 */
#ifndef DCTF_CLUSTER_GET_INTERNAL_H
#define DCTF_CLUSTER_GET_INTERNAL_H

#include "cluster/internal.h"
#include "cluster/policy.h"

#define DCTF_SUB_SLOTS 2u
#define DCTF_SUB_TRIES 2u /* of those that a busy home names */

enum dctf_sub_state { DCTF_SUB_IDLE, DCTF_SUB_ASK, DCTF_SUB_PAUSE, DCTF_SUB_FILL, DCTF_SUB_DONE };

struct dctf_slot {
    struct dctf_peer_get get; /* first */
    struct dctf_sub *sub;
    struct dctf_peer *peer; /* asked by this sub, in vain or not; NULL: none */
    char addr[DCTF_NODE_ADDR_MAX + 1];
    void *own_buf; /* of a hedge; NULL: the sub's */
    uint64_t sent_ms;
    bool out;  /* under way */
    bool left; /* given up because the peer is dead */
};

struct dctf_sub {
    struct dctf_get_task *task;
    uint32_t first, count, want_first, want_count; /* constant, as is what follows */
    uint64_t extent_key;
    void *buf; /* in the get's */
    size_t bytes;
    enum dctf_sub_state state; /* guarded by lock, as is the rest */
    bool decided;              /* `verdict` holds */
    enum dctf_err verdict;
    struct dctf_slot *winner;
    /* To be asked for what they have before the home is (again), nearest first; NULL: none, or taken. */
    struct dctf_peer *tries[DCTF_SUB_TRIES];
    bool tried;              /* a home has named some: it answers now */
    bool looked;             /* for a copy in this zone */
    enum dctf_err own_err;   /* why this node's own try was in vain; it is not made again */
    bool assumed;            /* it was not made, since others before it were in vain: it comes last */
    struct dctf_timer timer; /* ASK: of the hedge; PAUSE */
    struct dctf_slot slots[DCTF_SUB_SLOTS];
    struct dctf_fill fill;
};

struct dctf_get_task {
    struct dctf_list link; /* of the cluster's gets; guarded by lock */
    struct dctf_cluster *cluster;
    struct dctf_origin_get *get;
    struct dctf_version *version;
    enum dctf_fetch_class class;
    enum dctf_policy_class copied; /* nodes beside the home should have it */
    uint64_t begun_ms;
    struct dctf_timer answer_timer;
    unsigned refs;    /* guarded by lock, as what follows */
    unsigned left;    /* subs that are not DONE */
    unsigned running; /* subs that have begun and are not DONE */
    unsigned next;    /* sub to begin */
    enum dctf_err err;
    bool starting;  /* done() must not run within start */
    bool cancelled; /* by the end of the cluster */
    unsigned count;
    struct dctf_sub subs[];
};

/* --- get.c --- */

void dctf_get_unref(struct dctf_get_task *task);
/* Begin as many subs as may run. */
void dctf_get_advance(struct dctf_get_task *task);
/* All subs are over. */
void dctf_get_finish(struct dctf_get_task *task);

/* --- get_sub.c --- */

/* Find a way, from IDLE, after a pause, or when those asked so far are gone. */
void dctf_sub_go(struct dctf_sub *sub);
/* End what the sub waits for and needs no more: its get has failed or was given up, or the other of its two
 * requests has decided it. Whoever begins a wait calls this after, since the reason may have come in
 * between. Holds a reference. */
void dctf_sub_stop(struct dctf_sub *sub);

/* --- get_try.c --- */

bool dctf_sub_was_asked_locked(const struct dctf_sub *sub, const struct dctf_peer *peer);
/* Note the nearest of those that a busy home named; DCTF_PEER_TRY_BYTES of `names` are read. */
void dctf_sub_take_names_locked(struct dctf_sub *sub, const char *names);
/* A home in another zone: note the nearest node of this zone that should have a copy of what is hot or mid,
 * once, to be asked before it. */
void dctf_sub_take_copy_locked(struct dctf_sub *sub);
bool dctf_sub_has_named_locked(const struct dctf_sub *sub);
/* Take the next of those noted that can be asked; NULL: none is left. */
struct dctf_peer *dctf_sub_named_locked(struct dctf_sub *sub);

#endif
