/* SPDX-License-Identifier: Apache-2.0
 *
 * What ns*.c share: ns.c has the table of flights and who waits, ns_flight.c the course of one, ns_now.c
 * what waits here.
 *
 * A flight is one listing under way. It lives in the table from the first waiter until
 * its done() ran; waiters hang on it and are called back there. Lock: ns->lock guards
 * the table and every flight's waiters; it is not held across listings, the fetch
 * scheduler, the cluster, timers or callbacks.
 *
 *   SHARED (a peer is asked) ─→ done
 *      └─→ DIRECT (the source is asked) ─→ done
 *             └─→ OTHERS (the source failed this node: another is asked) ─→ done
 *
 * Peers join direct flights alone, and are answered when it comes to others, so that no node waits for one
 * that waits for it.
 *
 * Threads:   any thread, but for functions that end in _locked.
 * Ownership: a flight belongs to the table from the first waiter on, and frees itself.
 */
#ifndef DCTF_FS_NS_PRIVATE_H
#define DCTF_FS_NS_PRIVATE_H

#include "base/version.h"
#include "cluster/listings.h"
#include "fs/ns.h"

#include <pthread.h>

#define DCTF_NS_SYNCS_MAX 16u

struct dctf_ns_flight {
    struct dctf_list node;    /* in ns->flights; guarded by lock */
    struct dctf_list waiters; /* guarded by lock */
    struct dctf_ns *ns;
    struct dctf_listing_writer *writer;
    uint64_t started_ms; /* monotonic */
    uint64_t hidden;
    bool closed;              /* outdated: nobody may join any more; guarded by lock */
    bool for_peer;            /* direct from the start */
    uint64_t direct_ms;       /* monotonic: when the source was asked; 0: it is not; guarded by lock */
    uint64_t moved_ms;        /* monotonic: when it told something last; guarded by lock */
    enum dctf_err err;        /* of a page */
    enum dctf_err source_err; /* why another node is asked */
    struct dctf_cluster_list shared;
    bool sharing; /* a peer is asked; guarded by lock */
    char dir[];
};

/* A sync: what was read before is not wanted at or below. */
struct dctf_ns_sync {
    uint64_t at_ms; /* monotonic */
    char top[DCTF_KEY_MAX + 1];
};

struct dctf_ns {
    struct dctf_ns_config config;
    struct dctf_clock clock;
    pthread_mutex_t lock;
    struct dctf_list flights; /* guarded by lock; few at a time */
    bool stopped;             /* guarded by lock */
    size_t starting;          /* flights that have yet to ask the source, or not to; guarded by lock */
    pthread_cond_t started;   /* none is */
    /* guarded by lock */
    struct dctf_ns_sync syncs[DCTF_NS_SYNCS_MAX]; /* the latest */
    unsigned sync_next;
    uint64_t sync_floor_ms; /* of those forgotten, whatever they were about */
};

/* Fresh enough for who asks here; at most so old. */
bool dctf_ns_is_fresh(struct dctf_ns *ns, const struct dctf_listing_state *state);
bool dctf_ns_is_at_most(struct dctf_ns *ns, const struct dctf_listing_state *state, uint64_t age_ms);
/* How old a listing may be, by the time to live and by syncs; UINT64_MAX: as old as it likes. */
uint64_t dctf_ns_max_age(struct dctf_ns *ns, const char *dir);
/* A flight that reads from the source, begun at most so long ago; not `but`. */
struct dctf_ns_flight *dctf_ns_direct_find_locked(
    struct dctf_ns *ns, const char *dir, uint64_t max_age_ms, const struct dctf_ns_flight *but);

/* One that is in no table yet, to start or to free. */
DCTF_MUST_CHECK
enum dctf_err dctf_ns_flight_new(struct dctf_ns *ns, const char *dir, struct dctf_ns_flight **out);
void dctf_ns_flight_free(struct dctf_ns_flight *flight);
/* One that is in the table: ask the node that lists for all, and the source when that is this one. It ends by
 * itself. `max_age_ms` for a peer's. */
void dctf_ns_flight_start(struct dctf_ns_flight *flight, uint64_t max_age_ms);

#endif
