/* SPDX-License-Identifier: Apache-2.0
 *
 * The policy controller of one node: tells what was read here, judges what all nodes read while this one
 * leads, and keeps the newest table.
 *
 *   readers → bytes by feature → report (each interval, through the coordinator)
 *   this node leads: reports of all → cluster/policy.h → table → coordinator
 *   coordinator → table, if its fence is not lower than one accepted before, in this life or an earlier one
 *
 * Heat is counted in passes: bytes that readers got ÷ bytes of the feature, by its listing. What was not
 * reported is kept and told later; a report whose answer was lost may count twice. Reads since the last
 * report are lost with the process. When the coordinator is away the table stays as it is.
 *
 * Threads:   any thread. One thread of its own, for reports; the rest runs on the coordinator's.
 * Ownership: start() gives an object to stop().
 */
#ifndef DCTF_CLUSTER_CONTROLLER_H
#define DCTF_CLUSTER_CONTROLLER_H

#include "base/err.h"
#include "base/version.h"
#include "cluster/policy.h"
#include "cluster/view.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dctf_clock;
struct dctf_controller;
struct dctf_coordinator;
struct dctf_metrics;
struct dctf_store;

struct dctf_controller_config {
    struct dctf_coordinator *coordinator; /* these are borrowed */
    struct dctf_store *store;
    struct dctf_metrics *metrics;   /* may be NULL */
    const struct dctf_clock *clock; /* NULL: the system's */
    uint64_t dataset;
    enum dctf_feature_by feature_by;
    bool lead; /* this node may judge */
    uint64_t interval_ms;
    unsigned share_pct;                   /* of the smallest cache, for hot features */
    struct dctf_view *(*view)(void *ctx); /* counted */
    /* This node has judged: what it found, on the coordinator's thread; may be NULL. */
    void (*judged)(void *ctx, struct dctf_controller *controller, uint64_t fence,
        const struct dctf_policy_result *result);
    void (*changed)(void *ctx); /* another table, or a path that was asked for; must be short; may be NULL */
    void *ctx;
};

DCTF_MUST_CHECK
enum dctf_err dctf_controller_start(
    const struct dctf_controller_config *config, struct dctf_controller **out);
void dctf_controller_stop(struct dctf_controller *controller); /* NULL is allowed */

/* A reader got `bytes` of a shard. Never waits. */
void dctf_controller_read(
    struct dctf_controller *controller, const struct dctf_version *version, uint64_t bytes);

/* A table, counted and immutable. */
struct dctf_policy_table {
    struct dctf_policy_entry *entries; /* hot and mid alone, by id */
    size_t count;
    uint64_t fence, version;
    uint64_t heard_ms; /* monotonic */
    unsigned refs;     /* private */
};
/* NULL: none yet. */
struct dctf_policy_table *dctf_controller_table(struct dctf_controller *controller);
void dctf_controller_table_put(struct dctf_controller *controller, struct dctf_policy_table *table);

/* The path of a feature; `path` ≥ DCTF_KEY_MAX + 1 bytes. False: not known here; with `ask` the other nodes
 * are asked, and changed() tells when one has answered. Reads the database. */
bool dctf_controller_path(struct dctf_controller *controller, uint64_t feature_id, bool ask, char *path);

/* Make and hand over a report now; the controller's thread does so each interval. */
void dctf_controller_report(struct dctf_controller *controller);

/* The fence if this node leads now, else 0. */
uint64_t dctf_controller_leads(struct dctf_controller *controller);

/* Leave `max` entries of a table at most, hot ones before mid ones, in order; returns how many. */
size_t dctf_controller_cap(struct dctf_policy_entry *entries, size_t count, size_t max);

/* Bounds of the policy, from the caches of the members that serve. */
struct dctf_controller_bounds {
    uint64_t hot_bytes, mid_bytes, new_bytes;
};
void dctf_controller_bounds(
    const struct dctf_view *view, unsigned share_pct, struct dctf_controller_bounds *out);

#endif
