/* SPDX-License-Identifier: Apache-2.0
 *
 * Nodes that others do not reach are left out of placement, and come back: who, when, and who never.
 *
 * Every node notices a cut link within a ping and its time-out, and a mended one with the next ping, which
 * are seldom by then. It writes whom it misses with each heartbeat; the leader reads what all wrote, and
 * judges.
 */
#include "sim.h"

#include "cluster/exclusion.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As cluster/coordinator_exclude.c and the defaults of the options have them. */
#define AFTER_MS 60000u
#define NOTICE_MS 4000u
#define MEND_MS 30000u
#define REPORT_MS 5000u
#define JUDGE_MS 10000u
#define STEP_MS 1000u
/* From the time at which all that is needed has happened, until it has been judged. */
#define LAG_MS (REPORT_MS + JUDGE_MS + 2 * STEP_MS)

enum fault {
    FAULT_ALONE, /* each of the group reaches nobody */
    FAULT_SPLIT, /* the group reaches itself, and so do the others */
    FAULT_SEEN,  /* one member is missed by less than half of the others */
    FAULT_LINKS, /* one link in five is cut, evenly */
    FAULT_SHORT, /* as ALONE, mended before it counts */
};

struct link {
    uint64_t cut_ms, mended_ms; /* when this end notices; 0: never */
};

struct exclusion {
    struct sim_run *run;
    struct dctf_rng rng;
    unsigned count;
    struct dctf_node *nodes;
    uint64_t *ids;
    struct link *links; /* from the row to the column */
    bool *group;
    unsigned group_count;
    bool *out, *expected;
    unsigned *changes;
    struct dctf_unreached_report *reports;
    uint64_t now_ms, calm_ms;
    uint64_t first_ms, last_ms; /* the first was left out, all were */
    unsigned wrongly;
};

static struct link *link_of(struct exclusion *sim, unsigned from, unsigned to)
{
    return &sim->links[(size_t)from * sim->count + to];
}

/* Of the link between two nodes, a > b; `seen` counts those that FAULT_SEEN has cut. */
static bool is_cut(const struct exclusion *sim, enum fault fault, unsigned a, unsigned b, unsigned *seen)
{
    switch (fault) {
    case FAULT_ALONE:
    case FAULT_SHORT:
        return sim->group[a] || sim->group[b];
    case FAULT_SPLIT:
        return sim->group[a] != sim->group[b];
    case FAULT_SEEN:
        return sim->group[a] != sim->group[b] && (*seen)++ < 2 * (sim->count - 1) / 5;
    case FAULT_LINKS:
        return (a - b) % 5 == 0;
    }
    return false;
}

static void cut_links(struct exclusion *sim, enum fault fault, uint64_t held_ms)
{
    unsigned seen = 0;

    memset(sim->links, 0, (size_t)sim->count * sim->count * sizeof(*sim->links));
    for (unsigned a = 0; a < sim->count; a++) {
        for (unsigned b = 0; b < a; b++) {
            if (!is_cut(sim, fault, a, b, &seen))
                continue;
            *link_of(sim, a, b) = (struct link){
                sim_between(&sim->rng, 1, NOTICE_MS), held_ms + sim_between(&sim->rng, 1, MEND_MS)};
            *link_of(sim, b, a) = (struct link){
                sim_between(&sim->rng, 1, NOTICE_MS), held_ms + sim_between(&sim->rng, 1, MEND_MS)};
        }
    }
}

static void choose_group(struct exclusion *sim, unsigned size)
{
    uint32_t *order = sim_alloc(sim->count, sizeof(*order));

    sim_shuffle(&sim->rng, order, sim->count);
    memset(sim->group, 0, sim->count * sizeof(*sim->group));
    for (unsigned i = 0; i < size; i++)
        sim->group[order[i]] = true;
    sim->group_count = size;
    free(order);
}

static int compare_unreached(const void *a, const void *b)
{
    const struct dctf_unreached *left = a, *right = b;

    return left->node < right->node ? -1 : left->node > right->node;
}

static void write_report(struct exclusion *sim, unsigned node)
{
    struct dctf_unreached_report *report = &sim->reports[node];
    struct dctf_unreached *all = sim_alloc(sim->count, sizeof(*all));
    size_t count = 0;

    for (unsigned to = 0; to < sim->count; to++) {
        const struct link *link = link_of(sim, node, to);

        if (link->cut_ms && link->cut_ms <= sim->now_ms && sim->now_ms < link->mended_ms)
            all[count++] = (struct dctf_unreached){sim->ids[to], sim->now_ms - link->cut_ms};
    }
    qsort(all, count, sizeof(*all), compare_unreached);
    free(report->entries);
    report->entries = all;
    report->count = count < DCTF_UNREACHED_MAX ? count : DCTF_UNREACHED_MAX;
}

static void judge(struct exclusion *sim)
{
    unsigned out_count = 0, right = 0;
    struct dctf_exclusion_times times = {
        .now_ms = sim->now_ms, .after_ms = AFTER_MS, .calm_ms = sim->calm_ms};
    size_t count;
    uint64_t *out;
    enum dctf_err err =
        dctf_exclusion_judge(sim->nodes, sim->count, sim->reports, sim->count, &times, &out, &count);

    sim->calm_ms = times.calm_ms;
    SIM_CHECK(sim->run, sim->now_ms * 1000, !err, "no judgement: err=%d", (int)err);
    for (unsigned i = 0; i < sim->count; i++) {
        bool is = dctf_exclusion_has(out, count, sim->ids[i]);

        sim->changes[i] += is != sim->out[i];
        sim->out[i] = is;
        out_count += is;
        right += is && sim->expected[i];
        sim->wrongly += is && !sim->expected[i];
        sim_trace(sim->run, is);
    }
    free(out);
    if (right && !sim->first_ms)
        sim->first_ms = sim->now_ms;
    SIM_CHECK(sim->run, sim->now_ms * 1000, 2 * out_count < sim->count, "%u of %u are left out", out_count,
        sim->count);
    SIM_CHECK(sim->run, sim->now_ms * 1000, !sim->wrongly, "somebody is left out whom most others reach");
}

static unsigned count_of(const bool *set, unsigned count)
{
    unsigned sum = 0;

    for (unsigned i = 0; i < count; i++)
        sum += set[i];
    return sum;
}

/* Whom the rule names: those alone, or the smaller part, if it is less than half and the fault lasts. */
static void expect(struct exclusion *sim, enum fault fault)
{
    unsigned group = sim->group_count, others = sim->count - group;
    bool small = 2 * group<sim->count, large = 2 * group> sim->count;

    for (unsigned i = 0; i < sim->count; i++)
        sim->expected[i] = (fault == FAULT_ALONE && small && sim->group[i]) ||
                           (fault == FAULT_SPLIT && ((small && sim->group[i]) || (large && !sim->group[i])));
    SIM_CHECK(sim->run, 0, others > 0, "everybody is in the group");
}

static const char *name_of(enum fault fault)
{
    static const char *const names[] = {"reach nobody", "are split from the others",
        "is missed by two in five", "one link in five is cut", "reach nobody for a while"};

    return names[fault];
}

static void run_fault(struct exclusion *sim, enum fault fault, unsigned group, uint64_t held_ms)
{
    unsigned expected, most = 0;

    choose_group(sim, group);
    cut_links(sim, fault, held_ms);
    expect(sim, fault);
    expected = count_of(sim->expected, sim->count);
    memset(sim->changes, 0, sim->count * sizeof(*sim->changes));
    sim->first_ms = sim->last_ms = sim->calm_ms = 0;
    for (sim->now_ms = STEP_MS; sim->now_ms <= held_ms + MEND_MS + LAG_MS; sim->now_ms += STEP_MS) {
        bool all;

        for (unsigned i = 0; i < sim->count; i++) {
            if ((sim->now_ms / STEP_MS + i) % (REPORT_MS / STEP_MS) == 0)
                write_report(sim, i);
        }
        if (sim->now_ms % JUDGE_MS == 0)
            judge(sim);
        all = !memcmp(sim->out, sim->expected, sim->count * sizeof(*sim->out));
        if (all && expected && !sim->last_ms)
            sim->last_ms = sim->now_ms;
        SIM_CHECK(sim->run, sim->now_ms * 1000,
            all || sim->now_ms < AFTER_MS + NOTICE_MS + LAG_MS || sim->now_ms > held_ms,
            "%u of %u are left out after all that is needed was known", count_of(sim->out, sim->count),
            expected);
    }
    for (unsigned i = 0; i < sim->count; i++)
        most = sim->changes[i] > most ? sim->changes[i] : most;
    SIM_CHECK(sim->run, sim->now_ms * 1000, !count_of(sim->out, sim->count), "not all came back");
    SIM_CHECK(sim->run, sim->now_ms * 1000, most <= 2, "a node changed %u times", most);
    sim_row(sim->run, "%u|%s|%u|%.0f|%u|%.0f|%.0f|%u", sim->count, name_of(fault), group,
        (double)held_ms / 1e3, expected, (double)sim->first_ms / 1e3, (double)sim->last_ms / 1e3, most);
}

static void make(struct exclusion *sim, struct sim_run *run, unsigned count)
{
    *sim = (struct exclusion){.run = run, .rng = {run->seed * 1009 + count}, .count = count};
    sim->nodes = sim_alloc(count, sizeof(*sim->nodes));
    sim->ids = sim_alloc(count, sizeof(*sim->ids));
    sim->links = sim_alloc((size_t)count * count, sizeof(*sim->links));
    sim->group = sim_alloc(count, sizeof(*sim->group));
    sim->out = sim_alloc(count, sizeof(*sim->out));
    sim->expected = sim_alloc(count, sizeof(*sim->expected));
    sim->changes = sim_alloc(count, sizeof(*sim->changes));
    sim->reports = sim_alloc(count, sizeof(*sim->reports));
    for (unsigned i = 0; i < count; i++) {
        snprintf(sim->nodes[i].id, sizeof(sim->nodes[i].id), "node-%04u", i);
        sim->nodes[i].weight = 1;
        sim->ids[i] = sim->reports[i].node = dctf_exclusion_id(sim->nodes[i].id);
    }
}

static void drop(struct exclusion *sim)
{
    for (unsigned i = 0; i < sim->count; i++)
        free(sim->reports[i].entries);
    free(sim->reports);
    free(sim->changes);
    free(sim->expected);
    free(sim->out);
    free(sim->group);
    free(sim->links);
    free(sim->ids);
    free(sim->nodes);
}

void scenario_exclusion(struct sim_run *run)
{
    static const unsigned sizes[] = {8, 64, 1000};

    sim_columns(run, "nodes|fault|nodes in it|held, s|to be left out|the first after, s|all after, s|most "
                     "changes of one");
    for (unsigned i = 0; i < (run->full ? 3u : 2u); i++) {
        unsigned count = sizes[i];
        struct exclusion sim;

        make(&sim, run, count);
        run_fault(&sim, FAULT_ALONE, 1, 120000);
        run_fault(&sim, FAULT_ALONE, count / 8, sim_between(&sim.rng, 90000, 300000));
        run_fault(&sim, FAULT_SPLIT, 1 + (unsigned)sim_between(&sim.rng, 1, count / 4), 180000);
        run_fault(&sim, FAULT_SPLIT, count / 2 - 1, 180000);
        run_fault(&sim, FAULT_SPLIT, count / 2, 180000);
        run_fault(&sim, FAULT_SPLIT, count / 2 + 1, 180000);
        run_fault(&sim, FAULT_ALONE, count / 2, 180000);
        run_fault(&sim, FAULT_SEEN, 1, 180000);
        run_fault(&sim, FAULT_LINKS, 0, 180000);
        run_fault(&sim, FAULT_SHORT, count / 8, sim_between(&sim.rng, 5000, AFTER_MS - NOTICE_MS - MEND_MS));
        drop(&sim);
    }
}
