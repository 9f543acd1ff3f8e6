/* SPDX-License-Identifier: Apache-2.0
 *
 * A cluster in virtual time: nodes that read a dataset, the messages between them, a coordinator that
 * knows the members, and a source that counts.
 *
 * Judged by the product's own code: placement and past homes (cluster/view.h), breakers and hedges
 * (cluster/health.h), quantiles. The order of steps around them follows cluster/get.c, fill.c,
 * flight.c, serve.c and peers.c, with one read for a whole extent; reads of a node run at once.
 * The network is a delay and each node's own sending rate; a connection loses nothing, but may break.
 *
 * Threads:   one thread.
 * Ownership: new() gives a world to free().
 */
#ifndef DCTF_TESTS_SIM_WORLD_H
#define DCTF_TESTS_SIM_WORLD_H

#include "sim.h"

#include "base/err.h"
#include "base/list.h"
#include "base/quantile.h"
#include "cluster/health.h"
#include "cluster/view.h"

#define NOBODY UINT32_MAX
#define CHAIN_MAX 8u
#define HOMES_MAX 6u

/* What a node does that is asked for an extent of another home: because of an older view, a hedge, a
 * failover. */
enum world_filler {
    FILLER_PAST_HOMES, /* asks past homes only */
    FILLER_HOME,       /* asks the home first, only for what it has or gets from the source */
    FILLER_DELEGATES,  /* and lets the home fetch it, when that answers */
};

struct world_config {
    unsigned nodes, extents;
    unsigned spread_ms; /* nodes start at random within this */
    bool shuffled;      /* each node reads in an order of its own */
    bool keep;          /* readers keep what they read from peers */
    enum world_filler filler;
    unsigned stand_ins; /* next ranks that a filler asks before past homes */
    unsigned chain;     /* probes of a filler, at most */
    unsigned homes;     /* ranks among which a reader looks for one that it can ask */
    bool no_hop_rule;   /* who is asked asks on and waits: must be caught */
    bool no_watch;      /* a peer is not pinged again while requests wait for it */
    bool frozen_views;  /* given by the scenario, never refreshed */
    unsigned poll_ms;   /* how often a node looks at the members */
    unsigned settle_ms;
    unsigned gap_ms;         /* between the reads that a node starts */
    unsigned depth;          /* reads of a node at once */
    unsigned reset_permille; /* requests whose connection breaks */
    unsigned busy_permille;  /* requests that a peer puts off */
    uint64_t bytes_per_s;    /* that a node sends */
    uint64_t end_ms;         /* by then all must be over */
};
extern const struct world_config world_defaults;

/* Why an extent was asked of the source more than once. */
enum world_cause {
    CAUSE_FIRST,    /* it was not */
    CAUSE_LOST,     /* nobody who had it was there any more */
    CAUSE_HEDGE,    /* the second home was asked because the first was slow */
    CAUSE_FAILOVER, /* the home could not be asked */
    CAUSE_UNSEEN,   /* who has it is not in the view of who fills */
    CAUSE_PROBE,    /* who has it was to be probed, but did not answer in time or had not begun */
    CAUSE_CHAIN,    /* who has it was not among those probed */
    CAUSE_COUNT
};
extern const char *const world_cause_names[CAUSE_COUNT];

struct world_stats {
    uint64_t gets; /* of extents, from the source */
    uint64_t causes[CAUSE_COUNT];
    uint64_t reads, hits, failed;
    uint64_t longest_us; /* read */
    uint64_t probes, probe_hits, hedges, failovers, fills_local, pauses;
    uint64_t held_by_lost;  /* extents on nodes at the time they were lost, paused or left */
    uint64_t faults;        /* kills, pauses, goodbyes */
    uint64_t waits_checked; /* edges of the wait graph */
    bool cycle;
};

/* Objects that events point at begin with this; it changes when the object ends. */
struct object {
    uint32_t generation;
    struct dctf_list link; /* of the node's, or of free ones */
};

enum ask_op {
    ASK_PING,
    ASK_HAVE,     /* is it there, or on its way from the source? */
    ASK_PROBE,    /* its bytes, if so (hop 0) */
    ASK_WAIT,     /* its bytes, wherever they come from (hop 1) */
    ASK_DELEGATE, /* alike, of a filler that is not the home (hop 2) */
};

/* A request of one node to another. */
struct ask {
    struct object object; /* first; ended with the answer */
    uint32_t from, to;
    enum ask_op op;
    uint32_t extent;
    uint64_t begun_us;
    enum world_cause made_by; /* HEDGE and FAILOVER */
    struct read *read;        /* who asks; NULL: flight */
    unsigned slot;
    struct flight *flight;
    struct flight *waits_for; /* at the other node; NULL: none yet */
    uint32_t waits_generation;
};

struct slot {
    struct ask *ask; /* under way */
    uint32_t peer;   /* asked, in vain or not; NOBODY: none */
};

enum read_state { READ_ASK, READ_PAUSE, READ_FILL };

struct read {
    struct object object; /* first */
    uint32_t node, extent;
    uint64_t begun_us, paused_us; /* how long the node had been paused by then */
    enum read_state state;
    bool hedged;
    struct slot slots[2];
};

enum flight_state { FLIGHT_SETTLE, FLIGHT_PROBE, FLIGHT_SOURCE, FLIGHT_READY };

struct waiter {
    struct object *object; /* ask or read */
    uint32_t generation;
    bool is_read;
};

struct flight {
    struct object object; /* first */
    uint32_t node, extent;
    enum flight_state state;
    enum world_cause made_by; /* HEDGE and FAILOVER: what it was made for */
    uint32_t chain[CHAIN_MAX];
    unsigned chain_count, chain_next;
    bool delegates; /* may wait for the home */
    bool claimed;   /* another waits for it that delegated: it must not do so itself */
    struct ask *ask;
    struct waiter *waiters;
    size_t waiter_count, waiter_cap;
};

/* Members as the coordinator knew them at one time. */
struct version {
    unsigned refs;
    struct dctf_view *view;
    uint32_t *numbers;            /* of nodes, by index in the view */
    uint32_t (*ranks)[HOMES_MAX]; /* by extent; UINT32_MAX - 1: not asked for yet */
};

struct peer {
    struct dctf_breaker breaker;
    uint64_t pinged_ms, probes_off_ms;
    bool pinging, heard, dead;
    unsigned missed; /* pings in a row */
};

struct node {
    bool up;
    bool silent; /* down and does not even refuse */
    uint32_t epoch;
    uint64_t paused_until_us, paused_us; /* in all */
    uint64_t started_us, view_changed_us, polled_us, beat_us, joined_ms;
    bool poll_due; /* an early look at the members is planned */
    bool registered;
    uint64_t sending_until_us;
    struct version *version;
    struct peer *peers;
    uint32_t ping_cursor;
    uint8_t *have; /* by extent */
    struct flight **flights;
    struct dctf_list asks, flight_list, reads;
    struct dctf_hedge_budget hedge;
    struct dctf_quantile first_byte;
    /* the reader */
    uint32_t *order;
    uint32_t next, outstanding, done;
    uint64_t last_start_us;
    bool reader_waits;
};

struct event;
struct world {
    struct sim_run *run;
    struct world_config config;
    struct world_stats stats;
    struct dctf_rng rng;
    uint64_t now_us, sequence;
    struct event *heap;
    size_t heap_count, heap_cap;
    struct node *nodes;
    uint64_t *keys;            /* by extent */
    uint32_t *gets;            /* from the source, by extent */
    uint64_t *fetched_at_home; /* by extent: hash of the view in which its home fetched it last */
    struct version *current;
    bool members_changed;
    uint32_t to_read; /* extents that readers of live nodes still want */
    struct dctf_list free_asks, free_reads, free_flights;
};

struct event {
    uint64_t at_us, sequence;
    void (*fire)(struct world *world, const struct event *event);
    struct object *object; /* of this generation, or the event is dropped; NULL: none */
    uint32_t generation;
    uint32_t node;  /* whose event it is: waits while it is paused; NOBODY: none */
    uint32_t epoch; /* of the node, or the event is dropped; 0: any */
    uint32_t number;
    struct ask *ask; /* of a message; its generation counts with the answer only */
    uint32_t ask_generation;
    uint32_t from;
    enum ask_op op;
    enum dctf_err err;
    enum world_cause made_by;
    uint64_t view;
};

struct world *world_new(struct sim_run *run, const struct world_config *config, uint64_t seed);
void world_free(struct world *world);
/* Until all readers are done. Fails the run when that takes too long. */
void world_run(struct world *world);
static inline uint64_t world_now_ms(const struct world *world)
{
    return world->now_us / 1000;
}
/* The event is copied; `delay_us` from now. */
void world_push(struct world *world, uint64_t delay_us, struct event event);

struct object *object_take(struct dctf_list *free_ones, size_t size, struct dctf_list *owner);
void object_end(struct object *object, struct dctf_list *free_ones);

/* --- faults --- */

void node_start(struct world *world, uint32_t number);
void node_kill(struct world *world, uint32_t number, bool silent);
void node_pause(struct world *world, uint32_t number, uint64_t ms);
/* It says goodbye to the coordinator, then ends. */
void node_leave(struct world *world, uint32_t number);

/* --- members --- */

void members_register(struct world *world, uint32_t number);
void members_leave(struct world *world, uint32_t number);
void members_poll(struct world *world, uint32_t number);
void members_poll_soon(struct world *world, uint32_t number);
void members_arm(struct world *world, uint32_t number);
struct version *version_new(struct world *world, const uint32_t *numbers, size_t count);
void version_unref(struct version *version);
const uint32_t *version_ranks(struct world *world, struct version *version, uint32_t extent);

/* --- messages --- */

/* Fill in what it is for and whose it is, then send it. */
struct ask *ask_new(struct world *world, uint32_t from, uint32_t to, enum ask_op op, uint32_t extent);
void ask_send(struct world *world, struct ask *ask);
/* No answer is awaited any more. */
void ask_end(struct world *world, struct ask *ask);
/* Answer a request that arrived; `bytes` of body. */
void ask_answer(struct world *world, uint32_t server, struct ask *ask, uint32_t generation, enum dctf_err err,
    uint64_t bytes);

/* --- peers --- */

bool peer_usable(const struct node *node, uint32_t peer);
bool peer_doubted(const struct world *world, const struct node *node, uint32_t number);
void peer_account(struct world *world, struct ask *ask, enum dctf_err err);
void peer_suspect(struct world *world, uint32_t node, uint32_t peer);
void peer_ping_over(struct world *world, struct ask *ask, enum dctf_err err);
void peers_arm(struct world *world, uint32_t number);
size_t peers_unheard(const struct world *world, const struct node *node);

/* --- reads --- */

void reader_arm(struct world *world, uint32_t number);
void read_slot_over(struct world *world, struct read *read, unsigned slot, enum dctf_err err);
void read_over(struct world *world, struct read *read, bool ok);

/* --- flights --- */

/* A request for an extent arrived at a node. */
void serve_ask(struct world *world, const struct event *event);
void flight_join_read(struct world *world, struct read *read);
void flight_probe_over(struct world *world, struct flight *flight, enum dctf_err err);
/* Of the flight's GET of the source, as what it turned out to be. */
enum world_cause flight_cause(const struct world *world, const struct flight *flight);

#endif
