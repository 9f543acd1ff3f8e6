/* SPDX-License-Identifier: Apache-2.0
 *
 * What a node knows of its peers, after cluster/peers.c: pings, breakers, and leaving who is dead.
 * The smallest round trip of a path is taken as too short to lengthen a ping's time.
 */
#include "world.h"

#include <stdlib.h>

#define TICK_MS 1000u
#define PINGS_PER_TICK 16u
#define STARTING_MS 10000u
#define STARTING_PING_MS 100u
#define PING_SUSPECT_MS 250u
#define PING_MAX_MS 2000u /* topology_timeout_ms */
#define READ_DEADLINE_MS 30000u

bool peer_usable(const struct node *node, uint32_t peer)
{
    return node->peers[peer].breaker.state == DCTF_BREAKER_CLOSED;
}

bool peer_doubted(const struct world *world, const struct node *node, uint32_t number)
{
    const struct peer *peer = &node->peers[number];

    return peer->heard && peer->pinging &&
           dctf_ping_is_slow(world_now_ms(world) - peer->pinged_ms, peer->missed, 0);
}

void peer_account(struct world *world, struct ask *ask, enum dctf_err err)
{
    struct node *node = &world->nodes[ask->from];
    struct peer *peer = &node->peers[ask->to];

    if (err == DCTF_ERR_DEADLINE && ask->op == ASK_HAVE)
        return; /* so short a time is missed by a busy peer as well */
    if (err == DCTF_ERR_PEER_GONE || err == DCTF_ERR_DEADLINE) {
        dctf_breaker_failed(&peer->breaker, false, world_now_ms(world));
        return;
    }
    if (err == DCTF_ERR_CANCELLED)
        return;
    peer->probes_off_ms = 0;
    if (peer->breaker.state == DCTF_BREAKER_CLOSED)
        dctf_breaker_ok(&peer->breaker);
    if (!err && ask->read)
        dctf_quantile_add(&node->first_byte, (world->now_us - ask->begun_us) * 1000);
}

size_t peers_unheard(const struct world *world, const struct node *node)
{
    size_t count = 0;

    for (uint32_t i = 0; i < dctf_view_count(node->version->view); i++) {
        uint32_t number = node->version->numbers[i];

        count += &world->nodes[number] != node && !node->peers[number].heard;
    }
    return count;
}

/* --- pings --- */

/* What waits for it goes elsewhere. */
static void leave_peer(struct world *world, uint32_t number, uint32_t peer)
{
    struct dctf_list *asks = &world->nodes[number].asks;
    struct dctf_list *node = asks->next;

    while (node != asks) {
        struct ask *ask = (struct ask *)dctf_list_entry(node, struct object, link);
        struct read *read = ask->read;
        unsigned slot = ask->slot;

        node = node->next;
        if (ask->to != peer || ask->op == ASK_PING)
            continue;
        if (read) {
            ask_end(world, ask);
            read_slot_over(world, read, slot, DCTF_ERR_CANCELLED);
        } else {
            flight_probe_over(world, ask->flight, DCTF_ERR_CANCELLED);
        }
        node = asks->next; /* the list is another now */
    }
}

static void ping(struct world *world, uint32_t number, uint32_t to, uint64_t timeout_ms);

void peer_ping_over(struct world *world, struct ask *ask, enum dctf_err err)
{
    uint32_t number = ask->from, to = ask->to;
    struct peer *peer = &world->nodes[number].peers[to];

    ask_end(world, ask);
    peer->pinging = false;
    if (!err) {
        peer->heard = true;
        peer->dead = false;
        peer->missed = 0;
        peer->probes_off_ms = 0;
        dctf_breaker_ok(&peer->breaker);
        return;
    }
    if (err == DCTF_ERR_DEADLINE && peer->heard && !peer->dead && peer->missed++ == 0) {
        ping(world, number, to, PING_SUSPECT_MS); /* only the second in a row counts */
        return;
    }
    peer->dead = peer->heard;
    dctf_breaker_failed(&peer->breaker, true, world_now_ms(world));
    leave_peer(world, number, to);
}

static void ping_late(struct world *world, const struct event *event)
{
    peer_ping_over(world, event->ask, DCTF_ERR_DEADLINE);
}

static void ping(struct world *world, uint32_t number, uint32_t to, uint64_t timeout_ms)
{
    struct peer *peer = &world->nodes[number].peers[to];
    struct ask *ask = ask_new(world, number, to, ASK_PING, 0);

    peer->pinging = true;
    peer->pinged_ms = world_now_ms(world);
    world_push(world, timeout_ms * 1000,
        (struct event){.fire = ping_late, .object = &ask->object, .node = number, .ask = ask});
    ask_send(world, ask);
}

void peer_suspect(struct world *world, uint32_t number, uint32_t to)
{
    const struct peer *peer = &world->nodes[number].peers[to];

    if (!peer->pinging && world_now_ms(world) - peer->pinged_ms >= PING_SUSPECT_MS)
        ping(world, number, to, PING_SUSPECT_MS);
}

/* Whether it is to be pinged in this tick; those in need come in the first of two rounds. */
static bool is_due(struct world *world, const struct node *node, struct peer *peer, unsigned round)
{
    uint64_t now_ms = world_now_ms(world);
    bool starting = !peer->heard && now_ms - node->started_us / 1000 < STARTING_MS;

    if (peer->pinging || now_ms - peer->pinged_ms < (starting ? STARTING_PING_MS : TICK_MS))
        return false;
    if (starting) {
        if (!round)
            peer->breaker = (struct dctf_breaker){0};
        return !round;
    }
    if (peer->breaker.state != DCTF_BREAKER_CLOSED)
        return !round && dctf_breaker_allows(&peer->breaker, now_ms);
    return round;
}

/* Peers that requests wait for longer than usual, members of the view or not. */
static void watch(struct world *world, uint32_t number)
{
    struct dctf_list *asks = &world->nodes[number].asks;

    for (struct dctf_list *at = asks->next; at != asks; at = at->next) {
        struct ask *ask = (struct ask *)dctf_list_entry(at, struct object, link);

        if (ask->op != ASK_PING && world->now_us - ask->begun_us > TICK_MS * 1000ull)
            peer_suspect(world, number, ask->to); /* its ping comes last in the list */
    }
}

/* Requests that outlived their deadline. */
static void sweep(struct world *world, uint32_t number)
{
    struct node *node = &world->nodes[number];
    struct dctf_list *at = node->reads.next;

    while (at != &node->reads) {
        struct read *read = (struct read *)dctf_list_entry(at, struct object, link);

        at = at->next;
        if (world->now_us - read->begun_us - (node->paused_us - read->paused_us) < READ_DEADLINE_MS * 1000ull)
            continue;
        for (unsigned i = 0; i < 2; i++) {
            if (read->slots[i].ask)
                ask_end(world, read->slots[i].ask);
        }
        read_over(world, read, false);
        at = node->reads.next;
    }
    at = node->asks.next;
    while (at != &node->asks) {
        struct ask *ask = (struct ask *)dctf_list_entry(at, struct object, link);

        at = at->next;
        if (!ask->flight || world->now_us - ask->begun_us < READ_DEADLINE_MS * 1000ull)
            continue;
        peer_account(world, ask, DCTF_ERR_DEADLINE);
        flight_probe_over(world, ask->flight, DCTF_ERR_DEADLINE);
        at = node->asks.next;
    }
}

static void tick_fired(struct world *world, const struct event *event)
{
    struct node *node = &world->nodes[event->number];
    size_t count = dctf_view_count(node->version->view);
    unsigned left = PINGS_PER_TICK;
    bool starting;

    for (unsigned round = 0; round < 2; round++) {
        for (size_t i = 0; left && i < count; i++) {
            uint32_t at = round ? node->ping_cursor++ % (uint32_t)count : (uint32_t)i;
            uint32_t number = node->version->numbers[at];
            struct peer *peer = &node->peers[number];

            if (number == event->number || !is_due(world, node, peer, round))
                continue;
            ping(world, event->number, number, peer->heard ? PING_SUSPECT_MS : PING_MAX_MS);
            left--;
        }
    }
    if (!world->config.no_watch)
        watch(world, event->number);
    sweep(world, event->number);
    starting = world_now_ms(world) - node->started_us / 1000 < STARTING_MS && peers_unheard(world, node);
    world_push(world, (starting ? STARTING_PING_MS : TICK_MS) * 1000ull, *event);
}

void peers_arm(struct world *world, uint32_t number)
{
    world_push(world, 100,
        (struct event){
            .fire = tick_fired, .node = number, .epoch = world->nodes[number].epoch, .number = number});
}
