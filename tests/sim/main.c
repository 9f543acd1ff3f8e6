/* SPDX-License-Identifier: Apache-2.0
 *
 *   cluster_sim [--seed N] [--runs N] [--full] [--markdown] [SCENARIO …]
 *
 * Runs each scenario with `runs` seeds from `seed` on; without names, all of them. The first run of a
 * scenario is repeated and must come out the same. --markdown writes docs/cluster-simulation.md to stdout.
 */
#include "sim.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct scenario {
    const char *name;
    void (*run)(struct sim_run *run);
    const char *title, *text;
};

static const struct scenario scenarios[] = {
    {"coldstart", scenario_coldstart, "Cold start",
        "All nodes read the whole dataset, 50 extents a second each, four at once; views are up to a second "
        "old. "
        "*Source ÷ dataset* must stay at or below 1.05. The columns after it count the extents that were "
        "fetched "
        "again, by why: who has it is not in the view of who fills (*unseen*), was probed in vain (*probe*), "
        "or "
        "was not among those probed (*chain*). The last rows compare rules and are not held to the bound."},
    {"churn", scenario_churn, "Churn",
        "Nodes are killed, cut off, stopped for up to 20 s, sent away and started again while all read; of a "
        "thousand requests two break and ten are put off. No read fails or takes more than 12 s, and "
        "GETs are bounded by the dataset, what lost nodes held, and one share of the dataset per fault."},
    {"views", scenario_views, "Views that differ",
        "Each node takes its neighbour for the home of everything. With the rule of hops all reads end; "
        "without it the simulator finds the circle."},
    {"placement", scenario_placement, "Placement",
        "Rendezvous hashing of features, two nodes a host, 16 a rack."},
    {"exclusion", scenario_exclusion, "Nodes that others do not reach",
        "A member that most others have not reached for 60 s is nobody's home until they do. Cut links are "
        "noticed within 4 s, mended ones within 30; reports are 5 s apart, judgements 10. Nobody is left out "
        "whom most "
        "others reach, nor half of all; who is to be left out is so by 81 s and as long as it lasts, "
        "all are back 47 s after it ends, and nobody changes more than twice."},
    {"policy", scenario_policy, "Policy",
        "An interval is 30 s; mean six passes per feature and interval; features of 1 to 64 MiB; at most 64 "
        "changes and 1 % of all bytes copied at once; the hot set is read eight times as much as the rest, "
        "and "
        "flips every 20 intervals."},
    {"gate", scenario_gate, "The gate",
        "10 Gbit/s, 20 % jitter, a ping a second. A path without a queue has a *yes* at least every five "
        "seconds, the window stays between one block and 64."},
};

#define SCENARIO_COUNT (sizeof(scenarios) / sizeof(scenarios[0]))

struct settings {
    uint64_t seed, runs;
    bool full, markdown;
};

static double cpu_s(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

static uint64_t run_once(const struct scenario *scenario, const struct settings *settings, uint64_t seed,
    bool table, uint64_t *steps)
{
    struct sim_run run = {.scenario = scenario->name, .seed = seed, .full = settings->full, .table = table};

    scenario->run(&run);
    *steps += run.steps;
    return run.trace;
}

static void run_scenario(const struct scenario *scenario, const struct settings *settings)
{
    double begun = cpu_s();
    uint64_t steps = 0, first, again;

    printf("\n## %s\n\n", scenario->title);
    if (settings->markdown)
        printf("%s\n\n", scenario->text);
    first = run_once(scenario, settings, settings->seed, true, &steps);
    again = settings->full ? first : run_once(scenario, settings, settings->seed, false, &steps);
    if (first != again) {
        fprintf(
            stderr, "FAILED scenario=%s seed=%" PRIu64 ": two runs differ\n", scenario->name, settings->seed);
        exit(1);
    }
    for (uint64_t i = 1; i < settings->runs; i++)
        (void)run_once(scenario, settings, settings->seed + i, false, &steps);
    fflush(stdout);
    fprintf(stderr, "%s: %" PRIu64 " runs from seed %" PRIu64 ", %" PRIu64 " steps, %.1f s\n", scenario->name,
        settings->runs, settings->seed, steps, cpu_s() - begun);
}

static void print_preface(const struct settings *settings)
{
    printf(
        "# Simulation of the cluster\n\n"
        "Written by the simulator of `tests/sim`, which runs the cluster's pure parts (placement, past "
        "homes, "
        "breakers, hedges, exclusion, policy, gate) and a model of the requests around them in virtual time, "
        "on one "
        "thread, without sockets:\n\n"
        "    build/release/tests/cluster_sim --full --markdown --seed %" PRIu64
        " > docs/cluster-simulation.md\n\n"
        "The same seed gives the same figures. Each invariant is an assertion: a run that breaks one "
        "ends with the command that repeats it. Time, views and caches are modelled; of bandwidth only each "
        "node's own sending rate, of the source a time of 0.1 to 0.3 s per GET with one in a hundred "
        "slower.\n",
        settings->seed);
}

static bool parse(int argc, char **argv, struct settings *settings)
{
    static const struct option options[] = {{"seed", required_argument, NULL, 's'},
        {"runs", required_argument, NULL, 'r'}, {"full", no_argument, NULL, 'f'},
        {"markdown", no_argument, NULL, 'm'}, {0}};
    int option;

    *settings = (struct settings){.seed = 1, .runs = 1};
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (option) {
        case 's':
            settings->seed = strtoull(optarg, NULL, 10);
            break;
        case 'r':
            settings->runs = strtoull(optarg, NULL, 10);
            break;
        case 'f':
            settings->full = true;
            break;
        case 'm':
            settings->markdown = true;
            break;
        default:
            return false;
        }
    }
    return true;
}

static bool is_wanted(const struct scenario *scenario, int argc, char **argv)
{
    bool wanted = argc == 0;

    for (int i = 0; i < argc; i++)
        wanted |= !strcmp(argv[i], scenario->name);
    return wanted;
}

int main(int argc, char **argv)
{
    struct settings settings;
    unsigned ran = 0;

    if (!parse(argc, argv, &settings)) {
        fprintf(stderr, "usage: cluster_sim [--seed N] [--runs N] [--full] [--markdown] [SCENARIO ...]\n");
        return 2;
    }
    if (settings.markdown)
        print_preface(&settings);
    for (size_t i = 0; i < SCENARIO_COUNT; i++) {
        if (!is_wanted(&scenarios[i], argc - optind, argv + optind))
            continue;
        run_scenario(&scenarios[i], &settings);
        ran++;
    }
    if (!ran)
        fprintf(stderr, "cluster_sim: no such scenario\n");
    return ran ? 0 : 2;
}
