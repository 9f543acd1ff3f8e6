/* SPDX-License-Identifier: Apache-2.0
 *
 * The controller and the replicator of this node: their beginning and end, and what is told of them.
 */
#include "cluster/internal.h"

#include "base/config.h"
#include "base/log.h"
#include "base/metric.h"
#include "cluster/controller.h"
#include "cluster/coordinator.h"
#include "cluster/replicator.h"

#include <stdlib.h>

#define TICK_MS 1000u

static struct dctf_view *view_of(void *ctx)
{
    return dctf_cluster_view(ctx);
}

static void table_changed(void *ctx)
{
    struct dctf_cluster *cluster = ctx;

    pthread_mutex_lock(&cluster->lock);
    if (cluster->replicator)
        dctf_replicator_wake(cluster->replicator);
    pthread_mutex_unlock(&cluster->lock);
}

enum dctf_err dctf_copies_open(struct dctf_cluster *cluster)
{
    const struct dctf_cluster_config *config = &cluster->config;
    struct dctf_controller_config controller = {
        .coordinator = dctf_members_coordinator(cluster->members),
        .store = config->store,
        .metrics = config->metrics,
        .clock = &cluster->clock,
        .dataset = config->dataset,
        .feature_by = config->feature_by,
        /* Bounds follow the options of the one that judges: not those of who takes no copies. */
        .lead = config->options->replicate != DCTF_REPLICATE_OFF && config->options->replicate_share_pct,
        .interval_ms = config->options->policy_interval,
        .share_pct = (unsigned)config->options->replicate_share_pct,
        .view = view_of,
        .judged = dctf_heat_judged,
        .changed = table_changed,
        .ctx = cluster,
    };

    if (!controller.coordinator)
        return DCTF_OK;
    return dctf_controller_start(&controller, &cluster->controller);
}

static int compare_ids(const void *key, const void *entry)
{
    uint64_t id = *(const uint64_t *)key, other = ((const struct dctf_policy_entry *)entry)->feature_id;

    return id < other ? -1 : id > other;
}

enum dctf_policy_class dctf_copies_class(struct dctf_cluster *cluster, uint64_t feature_id)
{
    enum dctf_policy_class class = DCTF_POLICY_COLD;
    const struct dctf_policy_entry *entry;
    struct dctf_policy_table *table;

    if (!cluster->controller || cluster->config.options->replicate != DCTF_REPLICATE_ON)
        return class;
    table = dctf_controller_table(cluster->controller);
    if (!table)
        return class;
    entry = table->count
                ? bsearch(&feature_id, table->entries, table->count, sizeof(table->entries[0]), compare_ids)
                : NULL;
    if (entry)
        class = entry->class;
    dctf_controller_table_put(cluster->controller, table);
    return class;
}

enum dctf_err dctf_cluster_start_copies(
    struct dctf_cluster *cluster, enum dctf_err (*list)(void *ctx, const char *dir), void *ctx)
{
    struct dctf_replicator *replicator;
    enum dctf_err err = dctf_replicator_start(cluster, list, ctx, &replicator);

    pthread_mutex_lock(&cluster->lock);
    cluster->replicator = replicator;
    pthread_mutex_unlock(&cluster->lock);
    return err;
}

void dctf_copies_close(struct dctf_cluster *cluster)
{
    struct dctf_replicator *replicator;

    pthread_mutex_lock(&cluster->lock);
    replicator = cluster->replicator;
    cluster->replicator = NULL;
    pthread_mutex_unlock(&cluster->lock);
    dctf_replicator_stop(replicator);
    dctf_controller_stop(cluster->controller);
    cluster->controller = NULL;
}

/* --- slow transfers --- */

bool dctf_cluster_is_degraded(const struct dctf_cluster *cluster)
{
    return atomic_load_explicit(&cluster->degraded, memory_order_relaxed);
}

void dctf_copies_tick(struct dctf_cluster *cluster)
{
    uint64_t now_ms = dctf_cluster_now_ms(cluster);
    bool changed = false, on;

    pthread_mutex_lock(&cluster->lock);
    if (now_ms - cluster->degrade_ms >= TICK_MS) {
        cluster->degrade_ms = now_ms;
        changed = dctf_degrade_tick(&cluster->degrade);
    }
    on = cluster->degrade.on;
    pthread_mutex_unlock(&cluster->lock);
    if (!changed)
        return;
    atomic_store_explicit(&cluster->degraded, on, memory_order_relaxed);
    dctf_metric_set(cluster->config.metrics, DCTF_METRIC_REPLICATION_DEGRADED, on);
    if (on)
        dctf_log(DCTF_LOG_WARN, "cluster",
            "transfers from peers take longer than %u ms err=%d: read-ahead and copies pause",
            DCTF_DEGRADE_US / 1000, DCTF_ERR_DEADLINE);
    else
        dctf_log(
            DCTF_LOG_INFO, "cluster", "transfers from peers are fast again: read-ahead and copies go on");
    table_changed(cluster);
}

/* --- what is told --- */

void dctf_cluster_count_read(struct dctf_cluster *cluster, const struct dctf_version *version, uint64_t bytes)
{
    if (cluster->controller && bytes)
        dctf_controller_read(cluster->controller, version, bytes);
}

void dctf_cluster_copies_status(struct dctf_cluster *cluster, struct dctf_copies_status *out)
{
    struct dctf_policy_table *table = NULL;
    struct dctf_replicator_status copies = {.shadow = false};

    *out = (struct dctf_copies_status){.degraded = dctf_cluster_is_degraded(cluster)};
    pthread_mutex_lock(&cluster->lock);
    out->copies = cluster->replicator != NULL;
    if (cluster->replicator)
        dctf_replicator_status(cluster->replicator, &copies);
    pthread_mutex_unlock(&cluster->lock);
    out->shadow = copies.shadow;
    out->copied_bytes = copies.copied_bytes;
    out->shadow_bytes = copies.shadow_bytes;
    out->held_bytes = copies.held_bytes;
    out->share_bytes = copies.share_bytes;
    out->missing = copies.missing;
    if (!cluster->controller)
        return;
    out->judged = true;
    out->leads = dctf_controller_leads(cluster->controller) != 0;
    table = dctf_controller_table(cluster->controller);
    if (!table)
        return;
    out->fence = table->fence;
    out->version = table->version;
    out->table_age_ms = dctf_cluster_now_ms(cluster) - table->heard_ms;
    for (size_t i = 0; i < table->count; i++)
        out->hot += table->entries[i].class == DCTF_POLICY_HOT;
    out->mid = table->count - out->hot;
    dctf_controller_table_put(cluster->controller, table);
}

void dctf_cluster_each_feature(struct dctf_cluster *cluster,
    bool (*visit)(void *ctx, const struct dctf_feature_policy *feature), void *ctx)
{
    struct dctf_policy_table *table = cluster->controller ? dctf_controller_table(cluster->controller) : NULL;
    char path[DCTF_KEY_MAX + 1];
    struct dctf_feature_policy feature;
    struct dctf_view *view;
    bool more = table != NULL;

    if (!table)
        return;
    view = dctf_cluster_view(cluster);
    for (size_t i = 0; more && i < table->count; i++) {
        size_t nodes = dctf_view_count(view);
        bool hot = table->entries[i].class == DCTF_POLICY_HOT;

        feature = (struct dctf_feature_policy){
            .feature_id = table->entries[i].feature_id,
            .hot = hot,
            .replicas = hot || nodes < DCTF_MID_REPLICAS ? nodes : DCTF_MID_REPLICAS,
        };
        if (dctf_controller_path(cluster->controller, feature.feature_id, false, path))
            feature.path = path;
        more = visit(ctx, &feature);
    }
    dctf_view_unref(view);
    dctf_controller_table_put(cluster->controller, table);
}
