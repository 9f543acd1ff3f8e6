/* SPDX-License-Identifier: Apache-2.0
 *
 * The reader of a node, and the way of each of its reads, after cluster/get.c: home, second home, own fill;
 * pauses while a peer is busy; a hedge when it is slow.
 */
#include "world.h"

#include <assert.h>

#define READER_START_MS 50u
#define BUSY_RETRY_MS 20u
#define START_ROUND_MS 50u
#define YOUNG_FACTOR 3u /* × settle_ms */
#define HEDGE_FLOOR_US 50000u
#define HEDGE_DOUBTED_US 10000u

static void go(struct world *world, struct read *read);

static void pump(struct world *world, uint32_t number);

static void reader_fired(struct world *world, const struct event *event)
{
    pump(world, event->number);
}

void reader_arm(struct world *world, uint32_t number)
{
    struct node *node = &world->nodes[number];

    node->reader_waits = false;
    world_push(world, READER_START_MS * 1000ull,
        (struct event){.fire = reader_fired, .node = number, .epoch = node->epoch, .number = number});
}

static void begin(struct world *world, uint32_t number, uint32_t extent)
{
    struct node *node = &world->nodes[number];
    struct read *read = (struct read *)object_take(&world->free_reads, sizeof(*read), &node->reads);

    read->node = number;
    read->extent = extent;
    read->begun_us = world->now_us;
    read->paused_us = node->paused_us;
    read->slots[0].peer = read->slots[1].peer = NOBODY;
    node->outstanding++;
    world->stats.reads++;
    go(world, read);
}

/* Begin the next read when it is time; wait for one to end when too many are under way. */
static void pump(struct world *world, uint32_t number)
{
    struct node *node = &world->nodes[number];

    if (node->next >= world->config.extents)
        return;
    if (node->outstanding >= world->config.depth) {
        node->reader_waits = true;
        return;
    }
    node->last_start_us = world->now_us;
    world_push(world, world->config.gap_ms * 1000ull,
        (struct event){.fire = reader_fired, .node = number, .epoch = node->epoch, .number = number});
    begin(world, number, node->order[node->next++]);
}

void read_over(struct world *world, struct read *read, bool ok)
{
    struct node *node = &world->nodes[read->node];
    uint64_t took_us = world->now_us - read->begun_us - (node->paused_us - read->paused_us);
    uint32_t number = read->node;

    if (took_us > world->stats.longest_us)
        world->stats.longest_us = took_us;
    world->stats.failed += !ok;
    if (read->hedged)
        dctf_hedge_end(&node->hedge);
    if (ok)
        dctf_hedge_earn(&node->hedge);
    if (ok && world->config.keep)
        node->have[read->extent] = 1;
    object_end(&read->object, &world->free_reads);
    node->outstanding--;
    node->done++;
    world->to_read--;
    if (node->reader_waits) {
        uint64_t due_us = node->last_start_us + world->config.gap_ms * 1000ull;

        node->reader_waits = false;
        world_push(world, due_us > world->now_us ? due_us - world->now_us : 0,
            (struct event){.fire = reader_fired, .node = number, .epoch = node->epoch, .number = number});
    }
}

/* --- asking --- */

/* The first of the homes that can be asked and was not yet; NOBODY: none, or this node comes before. */
static uint32_t candidate(struct world *world, const struct read *read)
{
    struct node *node = &world->nodes[read->node];
    const uint32_t *ranks = version_ranks(world, node->version, read->extent);

    for (unsigned i = 0; i < world->config.homes && ranks[i] != NOBODY; i++) {
        if (ranks[i] == read->node)
            return NOBODY;
        if (peer_usable(node, ranks[i]) && read->slots[0].peer != ranks[i] && read->slots[1].peer != ranks[i])
            return ranks[i];
    }
    return NOBODY;
}

static void hedge_fired(struct world *world, const struct event *event);
static void pause(struct world *world, struct read *read, uint64_t ms);

static void ask_peer(
    struct world *world, struct read *read, unsigned slot, uint32_t peer, enum world_cause made_by)
{
    struct ask *ask = ask_new(world, read->node, peer, ASK_WAIT, read->extent);

    ask->read = read;
    ask->slot = slot;
    ask->made_by = made_by;
    read->slots[slot] = (struct slot){ask, peer};
    read->state = READ_ASK;
    ask_send(world, ask);
}

/* The home has not answered since this node began, and may be starting just as well. */
static bool is_starting(const struct world *world, const struct node *node, uint32_t home)
{
    return world->now_us - node->started_us < YOUNG_FACTOR * world->config.settle_ms * 1000ull &&
           home != NOBODY && node != &world->nodes[home] && !node->peers[home].heard;
}

static void go(struct world *world, struct read *read)
{
    struct node *node = &world->nodes[read->node];
    uint32_t peer, home;
    unsigned slot = read->slots[0].peer == NOBODY ? 0 : 1;
    bool free_slot = read->slots[slot].peer == NOBODY;
    uint64_t hedge_us;

    if (node->have[read->extent]) { /* the engine finds it in the tiers */
        world->stats.hits++;
        read_over(world, read, true);
        return;
    }
    home = version_ranks(world, node->version, read->extent)[0];
    if (is_starting(world, node, home)) {
        pause(world, read, START_ROUND_MS);
        return;
    }
    peer = free_slot ? candidate(world, read) : NOBODY;
    if (peer == NOBODY) {
        read->state = READ_FILL;
        world->stats.fills_local += slot != 0;
        flight_join_read(world, read);
        return;
    }
    world->stats.failovers += slot != 0;
    ask_peer(world, read, slot, peer, peer == home ? CAUSE_FIRST : CAUSE_FAILOVER);
    hedge_us = dctf_hedge_after_us(dctf_quantile_ns(&node->first_byte, 500) / 1000,
        dctf_quantile_ns(&node->first_byte, 990) / 1000, HEDGE_FLOOR_US);
    world_push(world, peer_doubted(world, node, peer) ? HEDGE_DOUBTED_US : hedge_us / 1000 * 1000,
        (struct event){.fire = hedge_fired,
            .object = &read->object,
            .node = read->node,
            .epoch = node->epoch,
            .number = read->extent,
            .ask = read->slots[slot].ask,
            .ask_generation = read->slots[slot].ask->object.generation});
}

/* The first home is slower than it usually is. */
static void hedge_fired(struct world *world, const struct event *event)
{
    struct read *read = (struct read *)event->object;
    struct node *node = &world->nodes[read->node];
    uint32_t slow = read->slots[0].peer, peer;

    /* The timer is cancelled when the sub moves on, so that it is of this request. */
    if (read->state != READ_ASK || !read->slots[0].ask || read->slots[1].peer != NOBODY ||
        read->slots[0].ask != event->ask || event->ask->object.generation != event->ask_generation)
        return;
    peer = candidate(world, read);
    if (peer != NOBODY && dctf_hedge_take(&node->hedge)) {
        read->hedged = true;
        world->stats.hedges++;
        ask_peer(world, read, 1, peer, CAUSE_HEDGE);
    }
    peer_suspect(world, read->node, slow);
}

static void pause_fired(struct world *world, const struct event *event)
{
    go(world, (struct read *)event->object);
}

static void pause(struct world *world, struct read *read, uint64_t ms)
{
    ms = ms / 2 + dctf_rng_below(&world->rng, ms);
    world->stats.pauses++;
    read->state = READ_PAUSE;
    read->slots[0].peer = read->slots[1].peer = NOBODY;
    world_push(world, ms * 1000,
        (struct event){
            .fire = pause_fired, .object = &read->object, .node = read->node, .number = read->extent});
}

void read_slot_over(struct world *world, struct read *read, unsigned slot, enum dctf_err err)
{
    struct slot *other = &read->slots[!slot];

    assert(read->state == READ_ASK);
    read->slots[slot].ask = NULL;
    if (!err) {
        if (other->ask) {
            ask_end(world, other->ask);
            other->ask = NULL;
        }
        read_over(world, read, true);
        return;
    }
    if (other->ask)
        return;
    if (err == DCTF_ERR_PEER_BUSY)
        pause(world, read, BUSY_RETRY_MS);
    else
        go(world, read);
}
