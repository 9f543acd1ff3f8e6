/* SPDX-License-Identifier: Apache-2.0
 *
 * Placement at size: balance, what a join or a leave moves, and how replicas spread.
 */
#include "sim.h"

#include "cluster/view.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ZONES 4u
#define NODES_PER_RACK 16u
#define NODES_PER_HOST 2u
#define REPLICAS 3u

static void fill_nodes(struct dctf_node *nodes, unsigned count)
{
    memset(nodes, 0, (count + 1) * sizeof(*nodes));
    for (unsigned i = 0; i <= count; i++) {
        snprintf(nodes[i].id, sizeof(nodes[i].id), "node-%04u", i);
        snprintf(nodes[i].host, sizeof(nodes[i].host), "host-%u", i / NODES_PER_HOST);
        snprintf(nodes[i].rack, sizeof(nodes[i].rack), "rack-%u", i / NODES_PER_RACK);
        snprintf(nodes[i].zone, sizeof(nodes[i].zone), "zone-%u", i / NODES_PER_RACK % ZONES);
        nodes[i].weight = 1u << 30;
        nodes[i].joined_ms = 1 + i;
    }
}

static struct dctf_view *build(const struct sim_run *run, const struct dctf_node *nodes, unsigned count)
{
    struct dctf_view *view;
    enum dctf_err err = dctf_view_build(nodes, count, "", &view);

    SIM_CHECK(run, 0, !err, "no view of %u members: err=%d", count, (int)err);
    return view;
}

static uint64_t key_of(const struct sim_run *run, unsigned i)
{
    char key[32];

    snprintf(key, sizeof(key), "feature-%u/part-0", i);
    return dctf_extent_key(run->seed, key, "etag", 0);
}

/* Ids have as many digits each, so that indices are in the order of numbers. */
static uint32_t home(const struct dctf_view *view, uint64_t key)
{
    uint32_t found = DCTF_NODE_NONE;

    (void)dctf_view_rank(view, key, &found, 1);
    return found;
}

static void balance(struct sim_run *run, const struct dctf_view *view, unsigned count, unsigned features)
{
    unsigned *homes = sim_alloc(count, sizeof(*homes)), *copies = sim_alloc(count, sizeof(*copies));
    unsigned most = 0, most_copies = 0, same_host = 0, same_rack = 0, one_zone = 0;
    double mean = (double)features / count, bound;

    for (unsigned i = 0; i < features; i++) {
        uint32_t found[REPLICAS];
        size_t n = dctf_view_replicas(view, key_of(run, i), found, REPLICAS);

        SIM_CHECK(run, 0, n == REPLICAS, "feature %u has %zu replicas", i, n);
        homes[found[0]]++;
        for (unsigned a = 0; a < REPLICAS; a++) {
            copies[found[a]]++;
            for (unsigned b = 0; b < a; b++) {
                same_host += found[a] / NODES_PER_HOST == found[b] / NODES_PER_HOST;
                same_rack += found[a] / NODES_PER_RACK == found[b] / NODES_PER_RACK;
            }
        }
        one_zone += found[0] / NODES_PER_RACK % ZONES == found[1] / NODES_PER_RACK % ZONES &&
                    found[0] / NODES_PER_RACK % ZONES == found[2] / NODES_PER_RACK % ZONES;
    }
    for (unsigned i = 0; i < count; i++) {
        most = homes[i] > most ? homes[i] : most;
        most_copies = copies[i] > most_copies ? copies[i] : most_copies;
    }
    /* Independent choices: the largest of N lies about √(2 ln N) deviations above the mean; five are rare. */
    bound = 1 + 5 / sqrt(mean);
    sim_row(run, "balance of homes|max ÷ mean|%.3f|≤ %.3f", most / mean, bound);
    sim_row(run, "balance of three copies|max ÷ mean|%.3f|≤ %.3f", most_copies / (REPLICAS * mean), bound);
    sim_row(run, "two copies on a host|features|%u|0", same_host);
    sim_row(run, "two copies in a rack|features|%u|0", same_rack);
    sim_row(run, "all copies in one of %u zones|share|%.4f|", ZONES, (double)one_zone / features);
    SIM_CHECK(run, 0, most <= bound * mean && most_copies <= REPLICAS * bound * mean,
        "the fullest of %u nodes is the home of %u of %u", count, most, features);
    SIM_CHECK(run, 0, !same_host && !same_rack, "copies share %u hosts, %u racks", same_host, same_rack);
    free(homes);
    free(copies);
}

/* From `before` to `after`, which has one member more or less, at the end of the ids. */
static void move(struct sim_run *run, const char *what, const struct dctf_view *before,
    const struct dctf_view *after, unsigned features)
{
    uint32_t small = (uint32_t)(dctf_view_count(before) < dctf_view_count(after) ? dctf_view_count(before)
                                                                                 : dctf_view_count(after));
    unsigned moved = 0, between = 0;
    double share, bound = 1.2 / small;

    for (unsigned i = 0; i < features; i++) {
        uint64_t key = key_of(run, i);
        uint32_t from = home(before, key), to = home(after, key);

        moved += from != to;
        between += from != to && from < small && to < small;
    }
    share = (double)moved / features;
    /* A sample of F features counts F/N of them: five of its deviations are chance. */
    bound += 5 * sqrt(1.0 / small / features);
    sim_row(run, "%s|share of homes moved|%.5f|≤ %.5f", what, share, bound);
    sim_row(run, "%s|moved between others|%u|0", what, between);
    SIM_CHECK(run, 0, share <= bound && !between, "%s: %.5f moved, %u between others", what, share, between);
}

void scenario_placement(struct sim_run *run)
{
    unsigned count = run->full ? 1000 : 64, features = run->full ? 1000000 : 2000;
    struct dctf_node *nodes = sim_alloc(count + 1, sizeof(*nodes));
    struct dctf_view *now, *more;

    fill_nodes(nodes, count);
    now = build(run, nodes, count);
    more = build(run, nodes, count + 1);
    sim_columns(run, "what|figure|measured|bound");
    sim_row(run, "%u nodes, %u features|||", count, features);
    balance(run, now, count, features);
    move(run, "a node joins", now, more, features / 2);
    move(run, "a node leaves", more, now, features / 2);
    sim_trace(run, dctf_view_hash(now));
    dctf_view_unref(now);
    dctf_view_unref(more);
    free(nodes);
}
