/* SPDX-License-Identifier: Apache-2.0
 *
 * The policy controller over many intervals: which classes change, what is copied, and how soon a known
 * hot set is hot.
 */
#include "sim.h"

#include "cluster/policy.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#define INTERVAL_MS 30000u
#define MEAN_PASSES 6.0
#define HOT_FACTOR 8.0
#define FLIP_EVERY 20u /* intervals */

enum load { UNIFORM, ZIPF, HOT_SET, FLIPPING };
static const char *const load_names[] = {"uniform", "Zipf 0.6", "hot set", "hot set that flips"};

struct load_run {
    struct sim_run *run;
    struct dctf_rng rng;
    struct dctf_policy_config config;
    struct dctf_policy *policy;
    uint32_t features, intervals;
    enum load load;
    double hot_share; /* of features in a known hot set */
    double scale;     /* makes the mean MEAN_PASSES */
    uint64_t *bytes;
    /* seen */
    uint64_t changes, most_changes, late_changes, copied, most_copied;
    uint64_t hot_bytes;
    uint32_t hot, mid, all_hot_at; /* interval; 0: never */
    double share_hot;
};

/* Ids are spread like hashes, and lead back to the number (2^64 ÷ golden ratio, and its inverse). */
static uint64_t id_of(uint32_t feature)
{
    return (feature + 1) * UINT64_C(0x9e3779b97f4a7c15);
}

static uint32_t number_of(uint64_t id)
{
    return (uint32_t)(id * UINT64_C(0xf1de83e19937733d) - 1);
}

static bool is_in_hot_set(const struct load_run *load, uint32_t feature, uint32_t interval)
{
    uint32_t size = (uint32_t)(load->hot_share * load->features);
    uint32_t first = load->load == FLIPPING ? interval / FLIP_EVERY % 2 * size : 0;

    return feature >= first && feature < first + size;
}

static double mean_of(const struct load_run *load, uint32_t feature, uint32_t interval)
{
    switch (load->load) {
    case UNIFORM:
        return MEAN_PASSES;
    case ZIPF:
        return load->scale * pow(feature + 1, -0.6);
    case HOT_SET:
    case FLIPPING:
        return is_in_hot_set(load, feature, interval) ? HOT_FACTOR * MEAN_PASSES : MEAN_PASSES;
    }
    return 0;
}

static void report(struct load_run *load, uint32_t interval)
{
    for (uint32_t i = 0; i < load->features; i++) {
        unsigned reads = sim_poisson(&load->rng, mean_of(load, i, interval));
        unsigned first = reads / 2;
        enum dctf_err err = DCTF_OK;

        if (first)
            err = dctf_policy_report(load->policy, id_of(i), 1 + i % 7, first, load->bytes[i]);
        if (!err && reads - first)
            err = dctf_policy_report(load->policy, id_of(i), 100 + i % 5, reads - first, load->bytes[i]);
        SIM_CHECK(load->run, 0, !err, "report: err=%d", (int)err);
    }
}

static void account(struct load_run *load, uint32_t interval, const struct dctf_policy_result *result)
{
    const struct dctf_policy_config *config = &load->config;
    uint64_t copied = 0;

    for (size_t i = 0; i < result->change_count; i++) {
        const struct dctf_policy_change *change = &result->changes[i];

        if (change->to > change->from)
            copied += load->bytes[number_of(change->feature_id)];
        sim_trace(load->run, change->feature_id ^ change->to);
    }
    load->changes += result->change_count;
    load->late_changes += interval >= load->intervals / 2 ? result->change_count : 0;
    load->most_changes =
        result->change_count > load->most_changes ? result->change_count : load->most_changes;
    load->copied += copied;
    load->most_copied = copied > load->most_copied ? copied : load->most_copied;
    load->hot_bytes = result->hot_bytes;
    SIM_CHECK(load->run, interval * 30000000ull, result->change_count <= config->changes_max,
        "%zu changes at once", result->change_count);
    SIM_CHECK(load->run, interval * 30000000ull, copied <= config->new_bytes_max,
        "%" PRIu64 " bytes of new copies at once", copied);
    SIM_CHECK(load->run, interval * 30000000ull,
        result->hot_bytes <= config->hot_bytes_max && result->mid_bytes <= config->mid_bytes_max,
        "%" PRIu64 " hot and %" PRIu64 " mid bytes", result->hot_bytes, result->mid_bytes);
}

static void count_classes(struct load_run *load, uint32_t interval, const struct dctf_policy_result *result)
{
    uint32_t of_set = 0, size = 0;

    load->hot = load->mid = 0;
    for (size_t i = 0; i < result->count; i++) {
        load->hot += result->table[i].class == DCTF_POLICY_HOT;
        load->mid += result->table[i].class == DCTF_POLICY_MID;
    }
    for (uint32_t i = 0; i < load->features; i++) {
        if (!is_in_hot_set(load, i, interval))
            continue;
        size++;
        of_set += dctf_policy_class_of(result->table, result->count, id_of(i)) == DCTF_POLICY_HOT;
    }
    load->share_hot = size ? (double)of_set / size : 0;
    if (!load->all_hot_at && of_set == size && size)
        load->all_hot_at = interval + 1;
}

static void check(const struct load_run *load)
{
    switch (load->load) {
    case UNIFORM: /* a plain epoch makes no copies */
        SIM_CHECK(load->run, 0, !load->changes, "%" PRIu64 " changes under a uniform load", load->changes);
        break;
    case ZIPF:
        break;
    case HOT_SET:
        SIM_CHECK(load->run, 0, load->all_hot_at, "after %u intervals %.3f of the hot set is hot",
            load->intervals, load->share_hot);
        break;
    case FLIPPING: /* copies come no faster than the budget, whatever is hot: asserted in each interval */
        break;
    }
}

static void run_load(struct sim_run *run, enum load kind)
{
    struct load_run load = {
        .run = run,
        .rng = {run->seed * 17 + kind},
        .config = dctf_policy_defaults,
        .features = run->full ? 1000000 : 1000,
        .intervals = run->full ? 40 : 50,
        .hot_share = run->full ? 0.001 : 0.05,
        .load = kind,
    };
    uint64_t all = 0;
    double sum = 0;
    enum dctf_err err;

    load.bytes = sim_alloc(load.features, sizeof(*load.bytes));
    for (uint32_t i = 0; i < load.features; i++) {
        load.bytes[i] = sim_between(&load.rng, 1u << 20, 64u << 20);
        all += load.bytes[i];
        sum += pow(i + 1, -0.6);
    }
    load.scale = MEAN_PASSES * load.features / sum;
    load.config.hot_bytes_max = all / 10;
    load.config.mid_bytes_max = all / 5;
    load.config.new_bytes_max = all / 100;
    err = dctf_policy_new(&load.config, &load.policy);
    SIM_CHECK(run, 0, !err, "no policy: err=%d", (int)err);
    for (uint32_t interval = 0; interval < load.intervals; interval++) {
        struct dctf_policy_result result;

        report(&load, interval);
        err = dctf_policy_evaluate(load.policy, 1000 + interval * (uint64_t)INTERVAL_MS, &result);
        SIM_CHECK(run, 0, !err, "evaluate: err=%d", (int)err);
        account(&load, interval, &result);
        count_classes(&load, interval, &result);
        dctf_policy_result_fini(&result);
    }
    sim_row(run, "%s|%u|%u|%.1f|%" PRIu64 "|%.1f|%.2f|%.2f|%u|%u|%.3f|%u", load_names[kind], load.features,
        load.intervals, (double)load.changes / load.intervals, load.most_changes,
        2.0 * (double)load.late_changes / load.intervals, 100.0 * (double)load.most_copied / (double)all,
        100.0 * (double)load.hot_bytes / (double)all, load.hot, load.mid,
        kind >= HOT_SET ? load.share_hot : 0, load.all_hot_at);
    check(&load);
    dctf_policy_free(load.policy);
    free(load.bytes);
}

void scenario_policy(struct sim_run *run)
{
    sim_columns(run,
        "load|features|intervals|changes per interval|most|in the second half|most copied at once, % of all "
        "bytes|hot bytes, %|hot|mid|share of the hot set that is hot|all of it hot after intervals");
    for (enum load load = UNIFORM; load <= FLIPPING; load++) {
        if (run->full || run->seed % 4 == (uint64_t)load)
            run_load(run, load);
    }
}
