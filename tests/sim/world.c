/* SPDX-License-Identifier: Apache-2.0
 *
 * Virtual time, messages, and faults.
 */
#include "world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define START_MAX_MS 100u
#define LINK_MIN_US 80u
#define LINK_MAX_US 250u
#define DISK_MAX_US 3000u

const char *const world_cause_names[CAUSE_COUNT] = {
    "first", "lost", "hedge", "failover", "unseen", "probe", "chain"};

const struct world_config world_defaults = {
    .nodes = 8,
    .extents = 2000,
    .filler = FILLER_HOME,
    .stand_ins = 2,
    .chain = 8,
    .homes = 4,
    .poll_ms = 1000,
    .settle_ms = 1000,
    .gap_ms = 20,
    .depth = 4,
    .bytes_per_s = 1250000000,
    .end_ms = 900000,
};

/* --- objects --- */

struct object *object_take(struct dctf_list *free_ones, size_t size, struct dctf_list *owner)
{
    struct dctf_list *node = dctf_list_pop(free_ones);
    struct object *object;

    if (node) {
        uint32_t generation;

        object = dctf_list_entry(node, struct object, link);
        generation = object->generation;
        memset(object, 0, size);
        object->generation = generation;
    } else {
        object = sim_alloc(1, size);
        object->generation = 1;
    }
    dctf_list_push_back(owner, &object->link);
    return object;
}

void object_end(struct object *object, struct dctf_list *free_ones)
{
    object->generation++;
    dctf_list_remove(&object->link);
    dctf_list_push_back(free_ones, &object->link);
}

static void free_objects(struct dctf_list *list)
{
    struct dctf_list *node;

    while ((node = dctf_list_pop(list)))
        free(dctf_list_entry(node, struct object, link));
}

/* --- time --- */

static bool is_before(const struct event *a, const struct event *b)
{
    return a->at_us != b->at_us ? a->at_us < b->at_us : a->sequence < b->sequence;
}

static void push_at(struct world *world, uint64_t at_us, struct event event)
{
    size_t at = world->heap_count++;

    if (at == world->heap_cap) {
        struct event *heap;

        world->heap_cap = at ? 2 * at : 1024;
        heap = realloc(world->heap, world->heap_cap * sizeof(*heap));
        SIM_CHECK(world->run, world->now_us, heap, "no memory for %zu events", world->heap_cap);
        world->heap = heap;
    }
    event.at_us = at_us;
    event.sequence = world->sequence++;
    while (at && is_before(&event, &world->heap[(at - 1) / 2])) {
        world->heap[at] = world->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    world->heap[at] = event;
}

void world_push(struct world *world, uint64_t delay_us, struct event event)
{
    if (event.object)
        event.generation = event.object->generation;
    push_at(world, world->now_us + delay_us, event);
}

static struct event pop(struct world *world)
{
    struct event first = world->heap[0], last = world->heap[--world->heap_count];
    size_t at = 0;

    for (;;) {
        size_t child = 2 * at + 1;

        if (child >= world->heap_count)
            break;
        if (child + 1 < world->heap_count && is_before(&world->heap[child + 1], &world->heap[child]))
            child++;
        if (!is_before(&world->heap[child], &last))
            break;
        world->heap[at] = world->heap[child];
        at = child;
    }
    if (world->heap_count)
        world->heap[at] = last;
    return first;
}

static void dispatch(struct world *world, struct event *event)
{
    if (event->object && event->object->generation != event->generation)
        return;
    if (event->node != NOBODY) {
        struct node *node = &world->nodes[event->node];

        if (event->epoch && (!node->up || event->epoch != node->epoch))
            return;
        if (node->up && node->paused_until_us > world->now_us) {
            push_at(world, node->paused_until_us, *event);
            return;
        }
    }
    sim_trace(world->run, world->now_us ^ (uint64_t)event->node << 40 ^ (uint64_t)event->number << 52);
    event->fire(world, event);
}

void world_run(struct world *world)
{
    while (world->to_read && !world->stats.cycle) {
        struct event event;

        SIM_CHECK(world->run, world->now_us, world->heap_count, "%u reads wait for nothing", world->to_read);
        event = pop(world);
        world->now_us = event.at_us;
        SIM_CHECK(world->run, world->now_us, world_now_ms(world) < world->config.end_ms,
            "%u extents were not read by then", world->to_read);
        dispatch(world, &event);
    }
}

/* --- messages --- */

static uint64_t link_us(struct world *world)
{
    return sim_between(&world->rng, LINK_MIN_US, LINK_MAX_US);
}

static void answer_arrived(struct world *world, const struct event *event)
{
    struct ask *ask = event->ask;
    struct read *read = ask->read;
    struct flight *flight = ask->flight;
    unsigned slot = ask->slot;
    struct node *node = &world->nodes[ask->from];

    if (ask->op == ASK_PING) {
        peer_ping_over(world, ask, event->err);
        return;
    }
    peer_account(world, ask, event->err);
    if (!event->err && ask->op != ASK_HAVE && event->view != dctf_view_hash(node->version->view))
        members_poll_soon(world, ask->from);
    if (read) {
        ask_end(world, ask);
        read_slot_over(world, read, slot, event->err);
    } else {
        flight_probe_over(world, flight, event->err); /* ends it */
    }
}

/* `extra_us`: what the answer takes besides its way. */
static void send_answer(
    struct world *world, struct ask *ask, enum dctf_err err, uint64_t view, uint64_t extra_us)
{
    world_push(world, extra_us + link_us(world),
        (struct event){.fire = answer_arrived,
            .object = &ask->object,
            .node = ask->from,
            .ask = ask,
            .err = err,
            .view = view});
}

void ask_answer(struct world *world, uint32_t server, struct ask *ask, uint32_t generation, enum dctf_err err,
    uint64_t bytes)
{
    struct node *node = &world->nodes[server];
    uint64_t start = world->now_us;

    if (ask->object.generation != generation)
        return;
    if (bytes) {
        start += sim_between(&world->rng, 0, DISK_MAX_US);
        if (start < node->sending_until_us)
            start = node->sending_until_us;
        start += bytes * 1000000 / world->config.bytes_per_s;
        node->sending_until_us = start;
    }
    send_answer(world, ask, err, dctf_view_hash(node->version->view), start - world->now_us);
}

static void ask_arrived(struct world *world, const struct event *event)
{
    const struct node *node = &world->nodes[event->node];

    if (!node->up) {
        if (!node->silent && event->ask->object.generation == event->ask_generation)
            send_answer(world, event->ask, DCTF_ERR_PEER_GONE, 0, 0);
        return;
    }
    serve_ask(world, event);
}

struct ask *ask_new(struct world *world, uint32_t from, uint32_t to, enum ask_op op, uint32_t extent)
{
    struct ask *ask = (struct ask *)object_take(&world->free_asks, sizeof(*ask), &world->nodes[from].asks);

    ask->from = from;
    ask->to = to;
    ask->op = op;
    ask->extent = extent;
    ask->begun_us = world->now_us;
    return ask;
}

void ask_send(struct world *world, struct ask *ask)
{
    if (ask->op != ASK_PING && sim_chance(&world->rng, world->config.reset_permille)) {
        send_answer(world, ask, DCTF_ERR_PEER_GONE, 0, 0);
        return;
    }
    world_push(world, link_us(world),
        (struct event){.fire = ask_arrived,
            .node = ask->to,
            .number = ask->extent,
            .ask = ask,
            .ask_generation = ask->object.generation,
            .from = ask->from,
            .op = ask->op,
            .made_by = ask->made_by});
}

void ask_end(struct world *world, struct ask *ask)
{
    object_end(&ask->object, &world->free_asks);
}

/* --- nodes --- */

static void node_init(struct world *world, uint32_t number)
{
    struct node *node = &world->nodes[number];

    node->peers = sim_alloc(world->config.nodes, sizeof(*node->peers));
    node->have = sim_alloc(world->config.extents, 1);
    node->flights = sim_alloc(world->config.extents, sizeof(struct flight *));
    node->order = sim_alloc(world->config.extents, sizeof(*node->order));
    dctf_list_init(&node->asks);
    dctf_list_init(&node->flight_list);
    dctf_list_init(&node->reads);
    if (world->config.shuffled)
        sim_shuffle(&world->rng, node->order, world->config.extents);
    for (uint32_t i = 0; !world->config.shuffled && i < world->config.extents; i++)
        node->order[i] = i;
}

static void break_requests_to(struct world *world, uint32_t number)
{
    for (uint32_t i = 0; i < world->config.nodes; i++) {
        struct dctf_list *asks = &world->nodes[i].asks;

        for (struct dctf_list *node = asks->next; world->nodes[i].up && node != asks; node = node->next) {
            struct ask *ask = (struct ask *)dctf_list_entry(node, struct object, link);

            if (ask->to == number)
                send_answer(world, ask, DCTF_ERR_PEER_GONE, 0, LINK_MIN_US);
        }
    }
}

static void start_fired(struct world *world, const struct event *event)
{
    node_start(world, event->number);
}

void node_start(struct world *world, uint32_t number)
{
    struct node *node = &world->nodes[number];

    node->up = true;
    if (node->epoch++) {
        break_requests_to(world, number); /* of before */
        world->to_read += world->config.extents - node->done;
    }
    node->paused_until_us = 0;
    node->started_us = node->view_changed_us = world->now_us;
    node->sending_until_us = world->now_us;
    node->poll_due = false;
    memset(node->peers, 0, world->config.nodes * sizeof(*node->peers));
    memset(&node->first_byte, 0, sizeof(node->first_byte));
    dctf_hedge_init(&node->hedge, 0.05, 16, 4); /* as cluster.c */
    if (!world->config.frozen_views) {
        members_register(world, number);
        members_poll(world, number);
        members_arm(world, number);
    }
    peers_arm(world, number);
    node->next = node->done; /* reads that were under way are read again */
    node->outstanding = 0;
    reader_arm(world, number);
}

/* What it holds or fetches, which others may have to fetch again. */
static uint64_t held_by(const struct world *world, const struct node *node)
{
    uint64_t count = 0;

    for (uint32_t i = 0; i < world->config.extents; i++)
        count += node->have[i] || node->flights[i];
    return count;
}

static void end_all(struct dctf_list *list, struct dctf_list *free_ones)
{
    while (!dctf_list_empty(list))
        object_end(dctf_list_entry(list->next, struct object, link), free_ones);
}

static void forget_all(struct world *world, struct node *node)
{
    for (struct dctf_list *at = node->flight_list.next; at != &node->flight_list; at = at->next)
        free(((struct flight *)dctf_list_entry(at, struct object, link))->waiters);
    memset(node->flights, 0, world->config.extents * sizeof(struct flight *));
    end_all(&node->asks, &world->free_asks);
    end_all(&node->reads, &world->free_reads);
    end_all(&node->flight_list, &world->free_flights);
}

void node_kill(struct world *world, uint32_t number, bool silent)
{
    struct node *node = &world->nodes[number];

    world->stats.held_by_lost += held_by(world, node);
    world->stats.faults++;
    node->up = false;
    node->silent = silent;
    world->to_read -= world->config.extents - node->done;
    forget_all(world, node);
    if (!silent)
        break_requests_to(world, number);
}

static void resumed(struct world *world, const struct event *event)
{
    /* Others may have fetched meanwhile what it holds. */
    world->stats.held_by_lost += held_by(world, &world->nodes[event->number]);
}

void node_pause(struct world *world, uint32_t number, uint64_t ms)
{
    struct node *node = &world->nodes[number];

    world->stats.faults++;
    node->paused_until_us = world->now_us + ms * 1000;
    node->paused_us += ms * 1000;
    world_push(world, ms * 1000,
        (struct event){.fire = resumed, .node = number, .epoch = node->epoch, .number = number});
}

void node_leave(struct world *world, uint32_t number)
{
    members_leave(world, number);
    node_kill(world, number, false);
}

/* --- start and end --- */

struct world *world_new(struct sim_run *run, const struct world_config *config, uint64_t seed)
{
    struct world *world = sim_alloc(1, sizeof(*world));

    world->run = run;
    world->config = *config;
    world->rng.state = seed;
    world->now_us = 1000000; /* no time is 0: that means unknown */
    world->nodes = sim_alloc(config->nodes, sizeof(*world->nodes));
    world->keys = sim_alloc(config->extents, sizeof(*world->keys));
    world->gets = sim_alloc(config->extents, sizeof(*world->gets));
    world->fetched_at_home = sim_alloc(config->extents, sizeof(*world->fetched_at_home));
    dctf_list_init(&world->free_asks);
    dctf_list_init(&world->free_reads);
    dctf_list_init(&world->free_flights);
    for (uint32_t i = 0; i < config->extents; i++) {
        char key[32];

        snprintf(key, sizeof(key), "shard-%u", i / 16);
        world->keys[i] = dctf_extent_key(seed, key, "etag", i % 16);
    }
    for (uint32_t i = 0; i < config->nodes; i++) {
        /* "At once" is what it is on machines: within a tenth of a second. */
        uint64_t delay_us = dctf_rng_below(&world->rng, (config->spread_ms + START_MAX_MS) * 1000ull);

        node_init(world, i);
        world->to_read += config->extents;
        if (!config->frozen_views)
            world_push(world, delay_us, (struct event){.fire = start_fired, .node = NOBODY, .number = i});
    }
    return world;
}

void world_free(struct world *world)
{
    for (uint32_t i = 0; i < world->config.nodes; i++) {
        struct node *node = &world->nodes[i];

        forget_all(world, node);
        version_unref(node->version);
        free(node->peers);
        free(node->have);
        free(node->flights);
        free(node->order);
    }
    free_objects(&world->free_asks);
    free_objects(&world->free_reads);
    free_objects(&world->free_flights);
    version_unref(world->current);
    free(world->nodes);
    free(world->keys);
    free(world->gets);
    free(world->fetched_at_home);
    free(world->heap);
    free(world);
}
