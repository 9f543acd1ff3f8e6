/* SPDX-License-Identifier: Apache-2.0
 *
 * The coordinator and each node's look at it: leases, joining times, views that lag. As with
 * cluster/members_redis.c, but that members which vanish together are not held back.
 */
#include "world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BEAT_MS 5000u
#define LEASE_MS 15000u
#define APART_MS 100u /* between two looks, however wanted */
#define LOOK_MAX_US 2000u
#define UNKNOWN (UINT32_MAX - 1)

static struct version *version_alloc(const struct world *world, size_t count)
{
    struct version *version = sim_alloc(1, sizeof(*version));

    version->refs = 1;
    version->numbers = sim_alloc(count, sizeof(*version->numbers));
    version->ranks = sim_alloc(world->config.extents, sizeof(*version->ranks));
    for (uint32_t i = 0; i < world->config.extents; i++)
        version->ranks[i][0] = UNKNOWN;
    return version;
}

struct version *version_new(struct world *world, const uint32_t *numbers, size_t count)
{
    struct version *version = version_alloc(world, count);
    struct dctf_node *nodes = sim_alloc(count, sizeof(*nodes));
    enum dctf_err err;

    for (size_t i = 0; i < count; i++) {
        snprintf(nodes[i].id, sizeof(nodes[i].id), "node-%04u", numbers[i]);
        nodes[i].weight = 1u << 30;
        nodes[i].joined_ms = world->nodes[numbers[i]].joined_ms;
    }
    err = dctf_view_build(nodes, count, "", &version->view);
    SIM_CHECK(world->run, world->now_us, !err, "no view of %zu members: err=%d", count, (int)err);
    for (size_t i = 0; i < count; i++)
        version->numbers[dctf_view_find(version->view, nodes[i].id)] = numbers[i];
    free(nodes);
    return version;
}

void version_unref(struct version *version)
{
    if (!version || --version->refs)
        return;
    dctf_view_unref(version->view);
    free(version->numbers);
    free(version->ranks);
    free(version);
}

/* The homes, best first; NOBODY where there is none. */
const uint32_t *version_ranks(struct world *world, struct version *version, uint32_t extent)
{
    uint32_t *ranks = version->ranks[extent];

    if (ranks[0] == UNKNOWN) {
        uint32_t found[HOMES_MAX];
        size_t count = dctf_view_rank(version->view, world->keys[extent], found, HOMES_MAX);

        for (size_t i = 0; i < HOMES_MAX; i++)
            ranks[i] = i < count ? version->numbers[found[i]] : NOBODY;
    }
    return ranks;
}

/* --- the coordinator --- */

static void reap(struct world *world)
{
    for (uint32_t i = 0; i < world->config.nodes; i++) {
        struct node *node = &world->nodes[i];

        if (node->registered && world->now_us - node->beat_us > LEASE_MS * 1000ull) {
            node->registered = false;
            world->members_changed = true;
        }
    }
}

static void bring_up_to_date(struct world *world)
{
    uint32_t *numbers;
    size_t count = 0;

    reap(world);
    if (!world->members_changed)
        return;
    world->members_changed = false;
    numbers = sim_alloc(world->config.nodes, sizeof(*numbers));
    for (uint32_t i = 0; i < world->config.nodes; i++) {
        if (world->nodes[i].registered)
            numbers[count++] = i;
    }
    version_unref(world->current);
    world->current = version_new(world, numbers, count);
    free(numbers);
}

void members_register(struct world *world, uint32_t number)
{
    struct node *node = &world->nodes[number];

    node->beat_us = world->now_us;
    if (node->registered)
        return;
    node->registered = true;
    node->joined_ms = world_now_ms(world);
    world->members_changed = true;
}

void members_leave(struct world *world, uint32_t number)
{
    world->members_changed |= world->nodes[number].registered;
    world->nodes[number].registered = false;
}

/* --- a node's look --- */

void members_poll(struct world *world, uint32_t number)
{
    struct node *node = &world->nodes[number];
    struct version *old = node->version;

    node->poll_due = false;
    node->polled_us = world->now_us;
    bring_up_to_date(world);
    if (old == world->current)
        return;
    if (old && dctf_view_hash(old->view) != dctf_view_hash(world->current->view))
        node->view_changed_us = world->now_us;
    node->version = world->current;
    node->version->refs++;
    version_unref(old);
}

static void soon_fired(struct world *world, const struct event *event)
{
    members_poll(world, event->number);
}

void members_poll_soon(struct world *world, uint32_t number)
{
    struct node *node = &world->nodes[number];
    uint64_t next_us = node->polled_us + APART_MS * 1000ull;

    if (node->poll_due || world->config.frozen_views)
        return;
    node->poll_due = true;
    world_push(world,
        (next_us > world->now_us ? next_us - world->now_us : 0) + sim_between(&world->rng, 100, LOOK_MAX_US),
        (struct event){.fire = soon_fired, .node = number, .epoch = node->epoch, .number = number});
}

static void poll_fired(struct world *world, const struct event *event)
{
    members_poll(world, event->number);
    world_push(world, world->config.poll_ms * 1000ull, *event);
}

static void beat_fired(struct world *world, const struct event *event)
{
    members_register(world, event->number);
    world_push(world, sim_between(&world->rng, BEAT_MS * 800ull, BEAT_MS * 1200ull), *event);
}

void members_arm(struct world *world, uint32_t number)
{
    struct event event = {
        .fire = poll_fired, .node = number, .epoch = world->nodes[number].epoch, .number = number};

    world_push(world, sim_between(&world->rng, 1, world->config.poll_ms * 1000ull), event);
    event.fire = beat_fired;
    world_push(world, BEAT_MS * 1000ull, event);
}
