/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to the cluster.
 *
 *   cluster.c   start and end, the origin's operations, status
 *   peers.c     what is known of each other member: breaker, times, path; pings
 *   get.c       a read that missed here: which node is asked for which part
 *   get_try.c   nodes beside the home that are asked for what they have, the nearest first
 *   fill.c      blocks for one asker, from tiers and flights
 *   flight.c    blocks on their way to this node: other homes (flight_probe.c), then upstream, then tiers
 *   serve.c     what peers ask of this node
 *   listings_*.c  listings that nodes share, and what they tell each other of names
 *   cluster_heat.c  what all nodes read, for people to look at
 *   spare.c     what a home has no room for, and who keeps it
 *   tracker.c   who fetched what from this node
 *   copies.c    the controller and the replicator of this node, and what is told of them
 *
 * One lock guards all of it, but for what says otherwise. It is a leaf above only those of the members, the
 * replicator and base/: not held across callbacks, the tiers, the client, the upstream, a timer's cancel or
 * a log sink.
 */
#ifndef DCTF_CLUSTER_INTERNAL_H
#define DCTF_CLUSTER_INTERNAL_H

#include "base/clock.h"
#include "base/list.h"
#include "base/quantile.h"
#include "base/timer.h"
#include "cluster/cluster.h"
#include "cluster/cluster_heat.h"
#include "cluster/degrade.h"
#include "cluster/exclusion.h"
#include "cluster/health.h"
#include "cluster/listings_internal.h"
#include "cluster/members.h"
#include "cluster/policy.h"
#include "cluster/rate.h"
#include "cluster/spare.h"
#include "cluster/tracker.h"
#include "transport/encoder.h"
#include "transport/fetch.h"
#include "transport/gate.h"
#include "transport/origin.h"
#include "transport/peer_client.h"
#include "transport/peer_server.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct dctf_controller;
struct dctf_replicator;
struct dctf_shard;

#define DCTF_SUB_BLOCKS 4u /* 1 MiB: what one request to a peer asks for */
#define DCTF_RANKS 4u      /* looked at for peers that can be asked: two of them may be gone */
#define DCTF_FLIGHT_BUCKETS 256u

/* Words of the option `zone_fill`. */
enum { DCTF_ZONE_FILL_PEER, DCTF_ZONE_FILL_ORIGIN };
/* Words of the option `encoder`. */
enum { DCTF_ENCODER_AUTO, DCTF_ENCODER_OFF, DCTF_ENCODER_LZ4 };

/* --- peers.c --- */

/* Another member, by id; stays until the end. All fields are guarded by the lock. */
struct dctf_peer {
    struct dctf_list link;
    char id[DCTF_NODE_ID_MAX + 1];
    char addr[DCTF_NODE_ADDR_MAX + 1];
    struct dctf_breaker breaker;
    struct dctf_quantile first_byte; /* of demand */
    struct dctf_gate gate;
    struct dctf_encoder encoder; /* of what this node sends to it */
    uint64_t bytes_in, bytes_out;
    uint64_t requests, failures;
    uint64_t pinged_ms; /* monotonic; when the last ping began */
    bool pinging;
    uint64_t unreached_ms; /* since when no ping was answered; 0: the last one was */
    unsigned missed, late; /* pings in a row; dctf_ping_counts() */
    bool heard;            /* it answered once */
    bool dead;             /* it was told of in the log */
    bool spare_full;       /* it said last that it has no room for what is spare */
    bool copying;          /* a piece for the replicator is under way */
    struct dctf_path_rate copy_rate;
    uint64_t listings_off_ms; /* monotonic; not asked for listings before */
    uint64_t probes_off_ms;   /* monotonic; not asked by flights whether it has something before */
};

struct dctf_cluster {
    struct dctf_origin base; /* first */
    struct dctf_cluster_config config;
    struct dctf_clock clock;
    struct dctf_members *members;
    struct dctf_peer_client *client;
    struct dctf_peer_server *server; /* NULL: does not listen */
    struct dctf_pool *encoders;      /* NULL: nothing is encoded */
    unsigned encoder_threads, cores;
    struct dctf_fetch *upstream;        /* scheduler of what this node asks of the source */
    struct dctf_controller *controller; /* NULL: no coordinator, nothing is judged */
    char id[DCTF_NODE_ID_MAX + 1];
    uint64_t started_ms; /* monotonic */
    uint64_t read_deadline_ms;
    uint64_t probe_ms; /* a flight waits so long for whether a peer has the bytes */

    atomic_bool degraded;

    pthread_mutex_t lock;
    pthread_cond_t idle;
    /* guarded by lock */
    struct dctf_view *view;
    struct dctf_list peers;
    struct dctf_list gets;
    struct dctf_list flights[DCTF_FLIGHT_BUCKETS];
    size_t alive; /* gets, fills, flights, pings and asked requests that hold on to the cluster */
    size_t flight_count;
    struct dctf_hedge_budget hedge;
    struct dctf_rng rng;
    bool closing;
    bool view_differs; /* a peer told another view than ours */
    struct dctf_timer tick;
    struct dctf_cluster_status counts;
    struct dctf_degrade degrade;
    uint64_t degrade_ms;                /* of its last tick */
    struct dctf_replicator *replicator; /* NULL: copies nothing */
    struct dctf_listings_part listings;
    struct dctf_heat_kept heat;
    struct dctf_breaker source; /* this node's own way there */
    enum dctf_err source_err;   /* why it is not closed */
    struct dctf_spare spare;    /* not guarded */
    struct dctf_tracker tracker;
    unsigned sending; /* answers with blocks that are on their way out */
};

/* This node's last tries at the source failed it alone: others are asked first. False now and then, for who
 * tries again. */
bool dctf_cluster_source_is_off_locked(struct dctf_cluster *cluster);
uint64_t dctf_cluster_now_ms(const struct dctf_cluster *cluster);
/* Hold on to the cluster; false while it is closing. */
bool dctf_cluster_hold(struct dctf_cluster *cluster);
void dctf_cluster_release(struct dctf_cluster *cluster);
/* The view now, counted. */
struct dctf_view *dctf_cluster_view(struct dctf_cluster *cluster);
/* Milliseconds a miss has to wait before it may go to the source; 0: none. */
uint64_t dctf_cluster_settle_ms(struct dctf_cluster *cluster);
/* So soon after its start that others may be starting as well: three times settle_ms. */
bool dctf_cluster_is_young(const struct dctf_cluster *cluster);

/* The peer of a member, made when it is new; NULL without memory. */
struct dctf_peer *dctf_peer_of_locked(struct dctf_cluster *cluster, const struct dctf_node *node);
/* Demand may be sent to it: its breaker is closed. Pings, not readers, find out when it is back. */
bool dctf_peer_usable_locked(const struct dctf_peer *peer);
/* It may be gone: a ping is out for longer than usual. Nothing is known of one that never answered. */
bool dctf_peer_doubted_locked(const struct dctf_cluster *cluster, struct dctf_peer *peer);
/* A request to it ended. `answer` may be NULL. */
void dctf_peer_account_locked(struct dctf_cluster *cluster, struct dctf_peer *peer,
    enum dctf_fetch_class class, enum dctf_err err, const struct dctf_peer_answer *answer);
/* What the way to a member costs, for the choice between some that may have the same bytes: how near it is,
 * then how long a MiB takes there by what was measured. */
uint64_t dctf_peer_cost_locked(struct dctf_cluster *cluster, const struct dctf_view *view, uint32_t node);
/* Members that never answered so far. */
size_t dctf_peers_unheard_locked(struct dctf_cluster *cluster);
/* Members that no ping reaches. For one that has left time begins anew when it comes back: it is told of
 * before it is pinged again. Returns how many. */
size_t dctf_peers_unreached_locked(struct dctf_cluster *cluster, struct dctf_unreached *out, size_t max);
/* Look at once whether it is alive. */
void dctf_peer_suspect(struct dctf_cluster *cluster, struct dctf_peer *peer);
/* Start and stop the pings. */
void dctf_peers_tick(struct dctf_cluster *cluster);
void dctf_peers_stop(struct dctf_cluster *cluster);

/* --- fill.c --- */

/* Blocks of one version wanted here, wherever they come from but another waiting peer. */
struct dctf_fill {
    /* set by the caller, and kept until done() */
    struct dctf_cluster *cluster;
    struct dctf_version *version;
    uint32_t first, count;           /* blocks to deliver, within one extent */
    uint32_t want_first, want_count; /* what will be wanted of the extent in all; holds first … */
    enum dctf_fetch_class class;
    bool probe; /* only what is here, or on its way from the source */
    void *buf;  /* for the blocks */
    /* Some of it was not in the tiers: whether who asks is told to keep it (spare.h). NULL: nobody is. */
    bool (*offer)(struct dctf_fill *fill);
    void (*done)(struct dctf_fill *fill, enum dctf_err err);
    void *ctx;

    /* for done(): */
    bool from_origin; /* some of it came from the source just now */
    bool told;        /* offer() said so of some of it */

    /* private */
    struct dctf_shard *shard;
    struct dctf_list waits; /* on flights; guarded by lock, as what follows */
    unsigned pending;
    unsigned attempts;
    enum dctf_err err;
};

/* done() may run before it returns. Reads the tiers on this thread. */
void dctf_fill_start(struct dctf_fill *fill);
/* End early; done() gets `err` unless another end came first. */
void dctf_fill_cancel(struct dctf_fill *fill, enum dctf_err err);
/* Whether all blocks are here, or, *on_its_way, some not yet: they are coming from the source. */
bool dctf_fill_have(struct dctf_cluster *cluster, struct dctf_version *version, uint32_t first,
    uint32_t count, bool *on_its_way);

/* --- flight.c --- */

struct dctf_flight;

/* A fill that waits for a flight. */
struct dctf_flight_wait {
    struct dctf_list of_flight, of_fill;
    struct dctf_flight *flight;
    struct dctf_fill *fill;
};

/* The flight that covers a block, NULL when there is none. *end is the first block past it. */
struct dctf_flight *dctf_flight_find_locked(
    struct dctf_cluster *cluster, const struct dctf_version *version, uint32_t block, uint32_t *end);
bool dctf_flight_from_source_locked(const struct dctf_flight *flight);
/* A new one in the table, not started. NULL without memory. */
struct dctf_flight *dctf_flight_new_locked(struct dctf_cluster *cluster, struct dctf_version *version,
    uint32_t first, uint32_t count, enum dctf_fetch_class class);
void dctf_flight_start(struct dctf_flight *flight);
/* Ask for an early end of what waits for peers or the source. */
void dctf_flights_cancel_all(struct dctf_cluster *cluster);
/* A peer was found dead: flights that ask it go on to the next. */
void dctf_flights_leave_peer(struct dctf_cluster *cluster, const struct dctf_peer *peer);
/* Hang a fill on it. A flight that has its bytes calls back from dctf_flight_kick(). */
enum dctf_err dctf_flight_join_locked(struct dctf_flight *flight, struct dctf_fill *fill);
/* Deliver to waiters of a flight that already has its bytes; take the class of who waits. Without the lock.
 */
void dctf_flight_kick(struct dctf_flight *flight);
void dctf_flight_ref_locked(struct dctf_flight *flight);
void dctf_flight_unref(struct dctf_flight *flight);
/* A flight delivered its part of a fill, or failed. */
void dctf_fill_delivered(struct dctf_fill *fill, enum dctf_err err, bool from_origin);

/* --- get.c --- */

enum dctf_err dctf_cluster_get(struct dctf_origin *origin, struct dctf_origin_get *get);
void dctf_cluster_cancel_get(struct dctf_origin *origin, struct dctf_origin_get *get);
/* Peers that a request has waited for since before that time; with repetitions. */
size_t dctf_gets_waiting_locked(
    struct dctf_cluster *cluster, uint64_t before_ms, struct dctf_peer **out, size_t max);
size_t dctf_flights_waiting_locked(
    struct dctf_cluster *cluster, uint64_t before_ms, struct dctf_peer **out, size_t max);
/* A peer was found dead: what waits for it goes elsewhere. */
void dctf_gets_leave_peer(struct dctf_cluster *cluster, const struct dctf_peer *peer);
void dctf_gets_cancel_all(struct dctf_cluster *cluster);

/* --- copies.c --- */

/* The controller, where there is a coordinator. */
DCTF_MUST_CHECK
enum dctf_err dctf_copies_open(struct dctf_cluster *cluster);
/* Where copies are made: what the policy says of a feature. From get() alone: close() ends what it reads. */
enum dctf_policy_class dctf_copies_class(struct dctf_cluster *cluster, uint64_t feature_id);
/* Before anything that it uses ends. */
void dctf_copies_close(struct dctf_cluster *cluster);
/* Once a second: whether transfers are slow. */
void dctf_copies_tick(struct dctf_cluster *cluster);

/* --- serve.c --- */

void dctf_serve_handle(void *ctx, struct dctf_peer_request *request, const struct dctf_peer_asked *asked);
uint64_t dctf_serve_view(void *ctx);

#endif
