/* SPDX-License-Identifier: Apache-2.0
 *
 * Nodes are killed, stopped, sent away and started again while all of them read; connections break and
 * peers are busy. Every read of a node that lives ends well, nobody waits in a circle, and what is
 * fetched twice is bounded by what those that were lost held.
 */
#include "world.h"

#include <inttypes.h>
#include <string.h>

enum fault { FAULT_KILL, FAULT_KILL_SILENT, FAULT_PAUSE, FAULT_LEAVE, FAULT_COUNT };

#define PAUSE_MIN_MS 300u
#define PAUSE_MAX_MS 20000u
#define RETURN_MIN_MS 500u
#define RETURN_MAX_MS 20000u
/* A paused or dead peer costs a read its ping, not its deadline. */
#define READ_MAX_US 12000000u
#define COMPARED 1000u /* clusters, by seed */

static void returns(struct world *world, const struct event *event)
{
    struct node *node = &world->nodes[event->number];

    if (node->up)
        return;
    if (sim_chance(&world->rng, 300)) /* with another disk */
        memset(node->have, 0, world->config.extents);
    node_start(world, event->number);
}

static void strikes(struct world *world, const struct event *event)
{
    struct node *node = &world->nodes[event->number];
    enum fault fault = (enum fault)event->from;

    if (!node->up || node->paused_until_us > world->now_us)
        return;
    if (fault == FAULT_PAUSE) {
        node_pause(world, event->number, sim_between(&world->rng, PAUSE_MIN_MS, PAUSE_MAX_MS));
        return;
    }
    if (fault == FAULT_LEAVE)
        node_leave(world, event->number);
    else
        node_kill(world, event->number, fault == FAULT_KILL_SILENT);
    if (sim_chance(&world->rng, 700))
        world_push(world, sim_between(&world->rng, RETURN_MIN_MS, RETURN_MAX_MS) * 1000,
            (struct event){.fire = returns, .node = NOBODY, .number = event->number});
}

static void plan_faults(struct world *world, unsigned count)
{
    uint64_t span_ms = world->config.extents * world->config.gap_ms;

    for (unsigned i = 0; i < count; i++)
        world_push(world, sim_between(&world->rng, 200, 200 + span_ms) * 1000,
            (struct event){.fire = strikes,
                .node = NOBODY,
                .number = (uint32_t)dctf_rng_below(&world->rng, world->config.nodes),
                .from = (uint32_t)dctf_rng_below(&world->rng, FAULT_COUNT)});
}

/* How far the source may be asked more than once; NULL when it is kept, else what is wrong. */
static const char *broken_rule(const struct world *world)
{
    const struct world_stats *stats = &world->stats;
    double extents = world->config.extents, share = extents / world->config.nodes;
    /* What a node held is fetched again while it is away, and what stood in for it when it is back. */
    double bound = 1.05 * extents + 2 + (double)stats->held_by_lost + (double)stats->faults * share;

    if (stats->failed)
        return "reads failed";
    if (stats->longest_us > READ_MAX_US)
        return "a read took too long";
    return (double)stats->gets > bound ? "more GETs than what the lost held allows" : NULL;
}

static void run_one(struct sim_run *run, const struct world_config *config, unsigned faults)
{
    struct world *world = world_new(run, config, run->seed * 7919 + config->nodes);
    const struct world_stats *stats = &world->stats;
    const char *broken;

    plan_faults(world, faults);
    world_run(world);
    broken = broken_rule(world);
    sim_row(run,
        "%u|%u|%" PRIu64 "|%.3f|%.3f|%" PRIu64 "|%" PRIu64 "|%" PRIu64 "|%" PRIu64 "|%" PRIu64 "|%.1f",
        config->nodes, config->extents, stats->faults, (double)stats->gets / config->extents,
        (double)stats->held_by_lost / config->extents, stats->reads, stats->hedges, stats->failovers,
        stats->fills_local, stats->waits_checked, (double)stats->longest_us / 1e6);
    SIM_CHECK(run, world->now_us, !broken,
        "%s: %" PRIu64 " failed, the longest took %.1f s, %" PRIu64 " GETs of %u extents, %" PRIu64
        " were on nodes that were lost",
        broken, stats->failed, (double)stats->longest_us / 1e6, stats->gets, config->extents,
        stats->held_by_lost);
    world_free(world);
}

/* A small cluster with faults, as the seed wants it; returns their number. */
static unsigned draw(struct dctf_rng *rng, struct world_config *config)
{
    *config = world_defaults;
    config->reset_permille = 2;
    config->busy_permille = 10;
    config->shuffled = sim_chance(rng, 500);
    config->keep = sim_chance(rng, 500);
    config->nodes = (unsigned)sim_between(rng, 3, 16);
    config->extents = (unsigned)sim_between(rng, 40, 240);
    config->spread_ms = (unsigned)sim_between(rng, 0, 3000);
    return (unsigned)sim_between(rng, 0, config->nodes);
}

/* What each of the rules that deal with faults is worth: the same runs without it. */
static void compare(struct sim_run *run)
{
    static const char *const without[] = {"nothing", "third and fourth homes for readers",
        "probes of stand-ins", "pings of peers that requests wait for",
        "probes of the home by others that fill", "all of these"};

    sim_columns(run, "1,000 small clusters without|runs that break a rule|reads that failed|longest read, "
                     "s|source ÷ dataset, mean|worst");
    for (unsigned variant = 0; variant < 6; variant++) {
        uint64_t broken = 0, failed = 0, longest_us = 0;
        double worst = 0, sum = 0;

        for (uint64_t seed = 1; seed <= COMPARED; seed++) {
            struct sim_run one = {.scenario = run->scenario, .seed = seed};
            struct dctf_rng rng = {seed};
            struct world_config config;
            unsigned faults = draw(&rng, &config);
            struct world *world;
            double ratio;

            config.homes = variant == 1 || variant == 5 ? 2 : config.homes;
            config.stand_ins = variant == 2 || variant == 5 ? 0 : config.stand_ins;
            config.no_watch = variant == 3 || variant == 5;
            config.filler = variant == 4 || variant == 5 ? FILLER_PAST_HOMES : config.filler;
            world = world_new(&one, &config, seed * 7919 + config.nodes);
            plan_faults(world, faults);
            world_run(world);
            broken += broken_rule(world) != NULL;
            failed += world->stats.failed;
            longest_us = world->stats.longest_us > longest_us ? world->stats.longest_us : longest_us;
            ratio = (double)world->stats.gets / config.extents;
            worst = ratio > worst ? ratio : worst;
            sum += ratio / COMPARED;
            world_free(world);
        }
        sim_row(run, "%s|%" PRIu64 "|%" PRIu64 "|%.1f|%.3f|%.2f", without[variant], broken, failed,
            (double)longest_us / 1e6, sum, worst);
    }
}

void scenario_churn(struct sim_run *run)
{
    static const unsigned nodes[] = {8, 64, 256};
    struct dctf_rng rng = {run->seed};
    struct world_config config;
    unsigned faults = draw(&rng, &config);

    sim_columns(run,
        "nodes|extents|faults|source ÷ dataset|held by those lost ÷ dataset|reads|hedges|failovers|own "
        "fills|waits checked|longest read, s");
    run_one(run, &config, faults);
    for (unsigned i = 0; run->full && i < 3; i++) {
        config.nodes = nodes[i];
        config.extents = 1000;
        run_one(run, &config, 2 + nodes[i] / 8);
    }
    if (run->full) {
        sim_text(run, "");
        compare(run);
    }
}
