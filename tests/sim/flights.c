/* SPDX-License-Identifier: Apache-2.0
 *
 * Extents on their way to a node, and what a node answers, after cluster/flight.c, fill.c and serve.c: join a
 * flight or make one; settle, past homes newest first, source.
 */
#include "world.h"

#include <assert.h>
#include <stdlib.h>

#define PROBE_MS 20u
#define PROBES_OFF_MS 500u
#define UNHEARD_ROUND_MS 50u
#define SETTLE_FACTOR 3u
#define KEEP_MAX_US 10000u /* until the tiers have it */
#define GET_MIN_US 100000u
#define GET_MAX_US 300000u
#define GET_SLOW_US 2000000u
#define GET_SLOW_PERMILLE 10u
#define EXTENT_BYTES (8ull << 20)

static void step(struct world *world, struct flight *flight);
static void probe_next(struct world *world, struct flight *flight);

static bool is_from_source(const struct flight *flight)
{
    return flight->state == FLIGHT_SOURCE || flight->state == FLIGHT_READY;
}

/* --- waiters --- */

static void add_waiter(struct flight *flight, struct object *object, bool is_read)
{
    if (flight->waiter_count == flight->waiter_cap) {
        size_t cap = flight->waiter_cap ? 2 * flight->waiter_cap : 4;
        struct waiter *waiters = sim_alloc(cap, sizeof(*waiters));

        for (size_t i = 0; i < flight->waiter_count; i++)
            waiters[i] = flight->waiters[i];
        free(flight->waiters);
        flight->waiters = waiters;
        flight->waiter_cap = cap;
    }
    flight->waiters[flight->waiter_count++] = (struct waiter){object, object->generation, is_read};
}

static void deliver(struct world *world, struct flight *flight)
{
    for (size_t i = 0; i < flight->waiter_count; i++) {
        struct waiter waiter = flight->waiters[i];

        if (waiter.object->generation != waiter.generation)
            continue;
        if (waiter.is_read)
            read_over(world, (struct read *)waiter.object, true);
        else
            ask_answer(
                world, flight->node, (struct ask *)waiter.object, waiter.generation, DCTF_OK, EXTENT_BYTES);
    }
    flight->waiter_count = 0;
}

/* No wait may lead back to itself: from what `flight` waits for on, each waits for one flight at most. */
static void check_waits(struct world *world, const struct flight *flight)
{
    const struct flight *at = flight;

    world->stats.waits_checked++;
    for (unsigned hops = 0; at->ask && at->ask->waits_for; hops++) {
        if (at->ask->waits_for->object.generation != at->ask->waits_generation)
            return;
        at = at->ask->waits_for;
        if (at != flight && hops <= world->config.nodes)
            continue;
        world->stats.cycle = true;
        SIM_CHECK(world->run, world->now_us, world->config.no_hop_rule,
            "nodes wait for each other: node %u, extent %u", flight->node, flight->extent);
        return;
    }
}

/* --- life of a flight --- */

static struct flight *flight_new(
    struct world *world, uint32_t number, uint32_t extent, enum world_cause made_by)
{
    struct node *node = &world->nodes[number];
    struct flight *flight =
        (struct flight *)object_take(&world->free_flights, sizeof(*flight), &node->flight_list);

    SIM_CHECK(world->run, world->now_us, !node->flights[extent], "two flights of extent %u on node %u",
        extent, number);
    flight->node = number;
    flight->extent = extent;
    flight->made_by = made_by;
    node->flights[extent] = flight;
    return flight;
}

static void kept(struct world *world, const struct event *event)
{
    struct flight *flight = (struct flight *)event->object;
    struct node *node = &world->nodes[flight->node];

    node->have[flight->extent] = 1;
    node->flights[flight->extent] = NULL;
    free(flight->waiters);
    object_end(&flight->object, &world->free_flights);
}

static void flight_end(struct world *world, struct flight *flight)
{
    flight->state = FLIGHT_READY;
    deliver(world, flight);
    world_push(world, sim_between(&world->rng, 100, KEEP_MAX_US),
        (struct event){
            .fire = kept, .object = &flight->object, .node = flight->node, .number = flight->extent});
}

static void source_done(struct world *world, const struct event *event)
{
    flight_end(world, (struct flight *)event->object);
}

/* Single flight at the home, in one view: it is asked for once. */
static void check_home(struct world *world, const struct flight *flight)
{
    struct node *node = &world->nodes[flight->node];
    uint64_t view = dctf_view_hash(node->version->view);

    if (version_ranks(world, node->version, flight->extent)[0] != flight->node)
        return;
    SIM_CHECK(world->run, world->now_us,
        world->stats.faults || world->fetched_at_home[flight->extent] != view,
        "the home of extent %u fetched it twice in one view", flight->extent);
    world->fetched_at_home[flight->extent] = view;
}

static void ask_source(struct world *world, struct flight *flight)
{
    uint64_t us = sim_between(&world->rng, GET_MIN_US, GET_MAX_US);

    check_home(world, flight);
    if (world->gets[flight->extent]++)
        world->stats.causes[flight_cause(world, flight)]++;
    world->stats.gets++;
    flight->state = FLIGHT_SOURCE;
    if (sim_chance(&world->rng, GET_SLOW_PERMILLE))
        us += GET_SLOW_US;
    world_push(world, us,
        (struct event){
            .fire = source_done, .object = &flight->object, .node = flight->node, .number = flight->extent});
}

enum world_cause flight_cause(const struct world *world, const struct flight *flight)
{
    const struct node *filler = &world->nodes[flight->node];
    bool live = false, seen = false, probed = false;

    for (uint32_t i = 0; i < world->config.nodes; i++) {
        const struct node *node = &world->nodes[i];
        const struct flight *other = node->flights[flight->extent];

        if (i == flight->node || !node->up || node->paused_until_us > world->now_us ||
            !(node->have[flight->extent] || (other && is_from_source(other))))
            continue;
        live = true;
        for (uint32_t k = 0; k < dctf_view_count(filler->version->view); k++)
            seen |= filler->version->numbers[k] == i;
        for (unsigned k = 0; k < flight->chain_count; k++)
            probed |= flight->chain[k] == i;
    }
    if (!live)
        return CAUSE_LOST;
    if (probed)
        return CAUSE_PROBE;
    if (flight->made_by == CAUSE_HEDGE || flight->made_by == CAUSE_FAILOVER)
        return flight->made_by;
    return seen ? CAUSE_CHAIN : CAUSE_UNSEEN;
}

/* --- probes --- */

static void probe_late(struct world *world, const struct event *event)
{
    struct ask *ask = event->ask;
    uint32_t from = ask->from, to = ask->to;

    world->nodes[from].peers[to].probes_off_ms = world_now_ms(world) + PROBES_OFF_MS;
    flight_probe_over(world, ask->flight, DCTF_ERR_DEADLINE);
    peer_suspect(world, from, to);
}

static struct ask *probe(struct world *world, struct flight *flight, uint32_t peer, enum ask_op op)
{
    struct ask *ask = ask_new(world, flight->node, peer, op, flight->extent);

    ask->flight = flight;
    flight->ask = ask;
    ask_send(world, ask);
    return ask;
}

static void probe_next(struct world *world, struct flight *flight)
{
    struct node *node = &world->nodes[flight->node];
    uint32_t peer = NOBODY;
    struct ask *ask;

    flight->state = FLIGHT_PROBE;
    while (peer == NOBODY && flight->chain_next < flight->chain_count) {
        peer = flight->chain[flight->chain_next++];
        if (!peer_usable(node, peer) || world_now_ms(world) < node->peers[peer].probes_off_ms)
            peer = NOBODY;
    }
    if (peer == NOBODY) {
        ask_source(world, flight);
        return;
    }
    world->stats.probes++;
    if (world->config.no_hop_rule) {
        probe(world, flight, peer, ASK_WAIT);
        return;
    }
    ask = probe(world, flight, peer, ASK_HAVE);
    world_push(world, PROBE_MS * 1000ull,
        (struct event){.fire = probe_late, .object = &ask->object, .node = flight->node, .ask = ask});
}

/* Ends the request of the flight. */
void flight_probe_over(struct world *world, struct flight *flight, enum dctf_err err)
{
    enum ask_op op = flight->ask->op;
    uint32_t peer = flight->ask->to;

    assert(flight->state == FLIGHT_PROBE);
    ask_end(world, flight->ask);
    flight->ask = NULL;
    if (err == DCTF_ERR_PEER_ABSENT && op == ASK_HAVE && flight->delegates && peer == flight->chain[0] &&
        !flight->claimed) {
        probe(world, flight, peer, ASK_DELEGATE);
    } else if (err) {
        probe_next(world, flight);
    } else if (op == ASK_HAVE) {
        probe(world, flight, peer, ASK_PROBE);
    } else {
        world->stats.probe_hits++;
        flight_end(world, flight);
    }
}

static void add_to_chain(const struct world *world, struct flight *flight, uint32_t number)
{
    bool known = number == NOBODY || number == flight->node;

    for (unsigned i = 0; i < flight->chain_count; i++)
        known |= flight->chain[i] == number;
    if (!known && flight->chain_count < world->config.chain)
        flight->chain[flight->chain_count++] = number;
}

static void plan_probes(struct world *world, struct flight *flight)
{
    struct version *version = world->nodes[flight->node].version;
    const uint32_t *ranks = version_ranks(world, version, flight->extent);
    uint32_t found[CHAIN_MAX + 2];
    size_t count = dctf_view_past_homes(version->view, world->keys[flight->extent], found, CHAIN_MAX);

    if (!count)
        count = dctf_view_rank(version->view, world->keys[flight->extent], found, 3);
    if (world->config.filler != FILLER_PAST_HOMES)
        add_to_chain(world, flight, ranks[0]);
    for (unsigned i = 1; i <= world->config.stand_ins; i++)
        add_to_chain(world, flight, ranks[i]);
    for (size_t i = 0; i < count; i++)
        add_to_chain(world, flight, version->numbers[found[i]]);
    flight->delegates = world->config.filler == FILLER_DELEGATES && ranks[0] != flight->node;
}

static uint64_t settle_ms(const struct world *world, const struct node *node)
{
    uint64_t settle = world->config.settle_ms;
    uint64_t stable = (world->now_us - node->view_changed_us) / 1000;
    uint64_t since = (world->now_us - node->started_us) / 1000;
    uint64_t quiet, end;
    size_t unheard;

    if (since >= SETTLE_FACTOR * settle)
        return 0;
    unheard = peers_unheard(world, node);
    if (stable >= settle && !unheard)
        return 0;
    quiet = stable < settle ? settle - stable : UNHEARD_ROUND_MS;
    end = SETTLE_FACTOR * settle - since;
    return quiet < end ? quiet : end;
}

static void settled(struct world *world, const struct event *event)
{
    step(world, (struct flight *)event->object);
}

static void step(struct world *world, struct flight *flight)
{
    uint64_t wait_ms = settle_ms(world, &world->nodes[flight->node]);

    if (wait_ms) {
        flight->state = FLIGHT_SETTLE;
        world_push(world, wait_ms * 1000,
            (struct event){
                .fire = settled, .object = &flight->object, .node = flight->node, .number = flight->extent});
        return;
    }
    plan_probes(world, flight);
    probe_next(world, flight);
}

void flight_join_read(struct world *world, struct read *read)
{
    struct flight *flight = world->nodes[read->node].flights[read->extent];

    if (flight && flight->state == FLIGHT_READY) {
        read_over(world, read, true);
        return;
    }
    if (flight) {
        add_waiter(flight, &read->object, true);
        return;
    }
    flight = flight_new(
        world, read->node, read->extent, read->slots[0].peer == NOBODY ? CAUSE_FIRST : CAUSE_FAILOVER);
    add_waiter(flight, &read->object, true);
    step(world, flight);
}

/* --- serving --- */

static void join_ask(struct world *world, struct flight *flight, const struct event *event)
{
    struct ask *ask = event->ask;

    if (ask->object.generation != event->ask_generation)
        return; /* given up meanwhile; the flight runs all the same */
    if (flight->state == FLIGHT_READY) {
        ask_answer(world, event->node, ask, event->ask_generation, DCTF_OK, EXTENT_BYTES);
        return;
    }
    add_waiter(flight, &ask->object, false);
    ask->waits_for = flight;
    ask->waits_generation = flight->object.generation;
    if (ask->flight)
        check_waits(world, ask->flight);
}

void serve_ask(struct world *world, const struct event *event)
{
    struct node *node = &world->nodes[event->node];
    uint32_t extent = event->number;
    struct flight *flight = node->flights[extent];
    bool here = node->have[extent] || (flight && is_from_source(flight));
    enum dctf_err err = DCTF_OK;

    if (event->op == ASK_PING || event->op == ASK_HAVE) {
        err = event->op == ASK_PING || here ? DCTF_OK : DCTF_ERR_PEER_ABSENT;
        ask_answer(world, event->node, event->ask, event->ask_generation, err, 0);
    } else if (event->op == ASK_PROBE && !here) {
        ask_answer(world, event->node, event->ask, event->ask_generation, DCTF_ERR_PEER_ABSENT, 0);
    } else if (!flight && node->have[extent]) {
        ask_answer(world, event->node, event->ask, event->ask_generation, DCTF_OK, EXTENT_BYTES);
    } else if (flight) {
        if (event->op == ASK_DELEGATE && flight->ask && flight->ask->op == ASK_DELEGATE) {
            ask_answer(world, event->node, event->ask, event->ask_generation, DCTF_ERR_PEER_ABSENT, 0);
            return;
        }
        flight->claimed |= event->op == ASK_DELEGATE;
        join_ask(world, flight, event);
    } else if (sim_chance(&world->rng, world->config.busy_permille)) {
        ask_answer(world, event->node, event->ask, event->ask_generation, DCTF_ERR_PEER_BUSY, 0);
    } else {
        flight = flight_new(world, event->node, extent, event->made_by);
        flight->claimed = event->op == ASK_DELEGATE;
        join_ask(world, flight, event);
        step(world, flight);
    }
}
