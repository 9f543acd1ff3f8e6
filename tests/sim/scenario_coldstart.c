/* SPDX-License-Identifier: Apache-2.0
 *
 * N nodes start within a time and read the same dataset: how often is the source asked?
 */
#include "world.h"

#include <inttypes.h>

#define BOUND 1.05

struct row {
    unsigned nodes, extents, spread_s;
    bool shuffled, keep;
    enum world_filler filler;
};

static const char *const fillers[] = {"past homes", "home, past homes", "home fetches"};

static double run_row(struct sim_run *run, const struct row *row)
{
    struct world_config config = world_defaults;
    struct world *world;
    const struct world_stats *stats;
    double ratio;

    config.nodes = row->nodes;
    config.extents = row->extents;
    config.spread_ms = row->spread_s * 1000;
    config.shuffled = row->shuffled;
    config.keep = row->keep;
    config.filler = row->filler;
    world =
        world_new(run, &config, run->seed * 1000003 + row->nodes * 101 + row->spread_s * 7 + row->shuffled);
    stats = &world->stats;
    world_run(world);
    ratio = (double)stats->gets / row->extents;
    sim_row(run,
        "%u|%u|%s|%s|%s|%u|%.3f|%" PRIu64 "|%" PRIu64 "|%" PRIu64 "|%" PRIu64 "|%" PRIu64 "|%.1f|%" PRIu64
        "|%.1f",
        row->nodes, row->spread_s, row->shuffled ? "shuffled" : "same", fillers[row->filler],
        row->keep ? "yes" : "no", row->extents, ratio, stats->causes[CAUSE_UNSEEN],
        stats->causes[CAUSE_PROBE], stats->causes[CAUSE_CHAIN], stats->causes[CAUSE_HEDGE],
        stats->causes[CAUSE_FAILOVER] + stats->causes[CAUSE_LOST],
        (double)stats->probes / (double)stats->gets, stats->hedges, (double)stats->longest_us / 1e6);
    SIM_CHECK(run, world->now_us, stats->failed == 0, "%" PRIu64 " reads failed", stats->failed);
    SIM_CHECK(run, world->now_us, (double)stats->hedges <= 0.05 * (double)stats->reads + 16 * row->nodes,
        "%" PRIu64 " hedges of %" PRIu64 " reads", stats->hedges, stats->reads);
    world_free(world);
    return ratio;
}

static void check_row(struct sim_run *run, const struct row *row)
{
    double ratio = run_row(run, row);

    SIM_CHECK(run, 0, ratio <= BOUND, "%u nodes within %u s: %.3f of the dataset", row->nodes, row->spread_s,
        ratio);
}

/* What the rules of a filler that is not the home are worth, and what readers that keep copies add. */
static void compare(struct sim_run *run)
{
    static const struct row rows[] = {
        {8, 400, 20, false, false, FILLER_PAST_HOMES},
        {8, 400, 20, false, false, FILLER_HOME},
        {8, 400, 20, false, false, FILLER_DELEGATES},
        {64, 400, 0, true, false, FILLER_PAST_HOMES},
        {64, 400, 0, true, false, FILLER_HOME},
        {64, 400, 0, true, false, FILLER_DELEGATES},
        {64, 2000, 20, true, false, FILLER_HOME},
        {64, 2000, 20, true, true, FILLER_HOME},
    };

    for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        run_row(run, &rows[i]);
}

void scenario_coldstart(struct sim_run *run)
{
    static const unsigned nodes[] = {8, 64, 256, 1000}, spreads[] = {0, 2, 10, 20};
    struct dctf_rng rng = {run->seed};
    struct row small = {(unsigned)sim_between(&rng, 2, 48), 300, spreads[sim_between(&rng, 0, 3)],
        sim_chance(&rng, 500), sim_chance(&rng, 500), FILLER_HOME};

    sim_columns(run,
        "nodes|start within, s|order|a filler that is not the home asks|readers keep|extents|source ÷ "
        "dataset|unseen|probe|chain|hedge|failover, lost|probes per GET|hedges|longest read, s");
    if (!run->full) {
        check_row(run, &small);
        return;
    }
    for (unsigned n = 0; n < 4; n++) {
        for (unsigned s = 0; s < 4; s++) {
            for (unsigned shuffled = 0; shuffled < 2; shuffled++) {
                struct row row = {nodes[n], 2000, spreads[s], shuffled, false, FILLER_HOME};

                check_row(run, &row);
            }
        }
    }
    compare(run);
}
