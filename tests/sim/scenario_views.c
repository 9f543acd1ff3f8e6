/* SPDX-License-Identifier: Apache-2.0
 *
 * Nodes whose views send them round in a circle ask each other for the same extents. The rule of hops
 * ends it; without the rule they wait for each other, which the simulator must notice.
 */
#include "world.h"

#include <inttypes.h>

#define RING_MAX 5u
#define EXTENTS 20u
#define READ_MAX_US 10000000u

static void run_ring(struct sim_run *run, unsigned ring, enum world_filler filler, bool no_hop_rule)
{
    struct world_config config = world_defaults;
    struct world *world;

    config.nodes = ring;
    config.extents = EXTENTS;
    config.frozen_views = true;
    config.filler = filler;
    config.no_hop_rule = no_hop_rule;
    world = world_new(run, &config, run->seed * 31 + ring);
    for (uint32_t i = 0; i < ring; i++) {
        uint32_t next = (i + 1) % ring;

        world->nodes[i].version = version_new(world, &next, 1);
    }
    for (uint32_t i = 0; i < ring; i++)
        node_start(world, i);
    world_run(world);
    sim_row(run, "%u|%s|%s|%.2f|%.1f|%s", ring,
        filler == FILLER_PAST_HOMES ? "past homes"
        : filler == FILLER_HOME     ? "home, past homes"
                                    : "home fetches",
        no_hop_rule ? "no" : "yes", (double)world->stats.gets / EXTENTS,
        (double)world->stats.longest_us / 1e6, world->stats.cycle ? "they wait for each other" : "all end");
    SIM_CHECK(run, world->now_us, world->stats.cycle == no_hop_rule, "the circle was %snoticed",
        no_hop_rule ? "not " : "");
    SIM_CHECK(run, world->now_us,
        no_hop_rule || (!world->stats.failed && world->stats.longest_us < READ_MAX_US),
        "%" PRIu64 " reads failed, the longest took %.1f s", world->stats.failed,
        (double)world->stats.longest_us / 1e6);
    world_free(world);
}

void scenario_views(struct sim_run *run)
{
    sim_columns(run, "nodes in a circle|a filler that is not the home asks|rule of hops|source ÷ "
                     "dataset|longest read, s|end");
    for (unsigned ring = 2; ring <= RING_MAX; ring++) {
        for (unsigned filler = FILLER_PAST_HOMES; filler <= FILLER_DELEGATES; filler++)
            run_ring(run, ring, (enum world_filler)filler, false);
        run_ring(run, ring, FILLER_HOME, true);
    }
}
