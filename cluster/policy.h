/* SPDX-License-Identifier: Apache-2.0
 *
 * The policy controller's judgement: which features are hot (a copy on every node), mid (on
 * three) or cold (on their home alone), from what the nodes report.
 *
 * Heat is in *passes*: bytes delivered to readers ÷ bytes of the feature, averaged over evaluations with
 * a half-life. Classes are ranks, top 10 % and next 30 %, behind four guards, so that neither noise
 * nor a plain epoch makes copies:
 *   contrast    hot has at least 1.5 × the mean heat, mid 1.5 × the median, both by more than chance (six
 *               standard deviations of as many reads), and at least two nodes read it: in a uniform scan
 *               nothing is
 *   band        enter at 8 % (36 %), leave at 15 % (48 %)
 *   streak      three evaluations in a row to enter, six to leave; then ten minutes without a change
 *   bounds      bytes of hot and of mid features; changes and new bytes per evaluation
 * A feature that does not fit by bytes is passed over for smaller ones after it.
 *
 * Threads:   caller locks. Pure: time is an argument. evaluate() is O(n log n).
 * Ownership: new() gives an object to free().
 */
#ifndef DCTF_CLUSTER_POLICY_H
#define DCTF_CLUSTER_POLICY_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dctf_policy_class { DCTF_POLICY_COLD, DCTF_POLICY_MID, DCTF_POLICY_HOT };

struct dctf_policy_config {
    double hot_enter, hot_leave;           /* share of the ranks; 0.08 and 0.15 */
    double mid_enter, mid_leave;           /* 0.36 and 0.48 */
    double contrast;                       /* 1.5 */
    unsigned enter_streak, leave_streak;   /* evaluations; 3 and 6 */
    unsigned half_life;                    /* of the average, in evaluations; 30 */
    uint64_t dwell_ms;                     /* between two changes of a feature; 600000 */
    uint64_t hot_bytes_max, mid_bytes_max; /* 0: no bound */
    size_t changes_max;                    /* per evaluation; 64 */
    uint64_t new_bytes_max;                /* of features that enter, per evaluation, but for the first
                                            * of them; 0: no bound */
    size_t features_max;                   /* the coldest is forgotten for a new one; 1 << 20 */
    size_t told_max;                       /* features that an evaluation tells of; 1000 */
};
extern const struct dctf_policy_config dctf_policy_defaults;

struct dctf_policy;

struct dctf_policy_entry {
    uint64_t feature_id;
    enum dctf_policy_class class;
};

DCTF_MUST_CHECK
enum dctf_err dctf_policy_new(const struct dctf_policy_config *config, struct dctf_policy **out);
void dctf_policy_free(struct dctf_policy *policy);

/* Bounds follow the caches of the members. What is in the table beyond new ones stays until it cools. */
void dctf_policy_set_bounds(
    struct dctf_policy *policy, uint64_t hot_bytes_max, uint64_t mid_bytes_max, uint64_t new_bytes_max);
/* Begin with a table that another judged, as if its features had entered at `now_ms`: they stay for dwell_ms
 * at least, while heat is gathered anew. Features that are known already are left alone. */
DCTF_MUST_CHECK
enum dctf_err dctf_policy_seed(
    struct dctf_policy *policy, const struct dctf_policy_entry *table, size_t count, uint64_t now_ms);

/* What one node saw since it reported last. `node` is any number that stands for it. */
DCTF_MUST_CHECK
enum dctf_err dctf_policy_report(
    struct dctf_policy *policy, uint64_t feature_id, uint64_t node, double passes, uint64_t feature_bytes);

struct dctf_policy_change {
    uint64_t feature_id;
    enum dctf_policy_class from, to;
};
/* One of the hottest. */
struct dctf_policy_heat {
    uint64_t feature_id;
    enum dctf_policy_class class;
    double passes;  /* per evaluation, averaged */
    unsigned nodes; /* that read it in the last one or two half-lives; an estimate above a few */
    uint64_t bytes;
};
struct dctf_policy_result {
    struct dctf_policy_entry *table; /* hot and mid only, by feature id; owned */
    size_t count;
    struct dctf_policy_change *changes; /* of this evaluation; owned */
    size_t change_count;
    uint64_t hot_bytes, mid_bytes; /* of the features in the table */
    double mean, median;
    struct dctf_policy_heat *hottest; /* hottest first; owned */
    size_t hottest_count;
    size_t features; /* all that are known */
};
/* Close the interval and judge. On failure nothing has changed. */
DCTF_MUST_CHECK
enum dctf_err dctf_policy_evaluate(
    struct dctf_policy *policy, uint64_t now_ms, struct dctf_policy_result *out);
void dctf_policy_result_fini(struct dctf_policy_result *result);

/* Class in a table sorted by id. */
enum dctf_policy_class dctf_policy_class_of(
    const struct dctf_policy_entry *table, size_t count, uint64_t feature_id);

#endif
