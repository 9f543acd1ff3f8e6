/* SPDX-License-Identifier: Apache-2.0
 *
 * The lock guards what readers add and the table that is handed out; it is a leaf, not held across the
 * database, the coordinator or callbacks. What judges belongs to the coordinator's thread alone.
 */
#include "cluster/controller.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/metric.h"
#include "base/thread.h"
#include "cache/heat.h"
#include "cache/listing.h"
#include "cache/store.h"
#include "cluster/coordinator.h"
#include "cluster/passes.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FEATURES_MAX 131072u
#define MID_SHARE_PCT 20u
#define NEW_SHARE_PCT 1u
#define DWELL_INTERVALS 20u
#define FENCE_NAME "policy fence"

struct dctf_controller {
    struct dctf_controller_config config;
    struct dctf_clock clock;
    pthread_t thread;

    /* the coordinator's thread's */
    struct dctf_policy *policy; /* NULL: this node does not judge */
    uint64_t judged_fence;      /* under which it was last seeded or used */
    uint64_t judged_ms;         /* when it judged last */

    pthread_mutex_t lock;
    pthread_cond_t wake;
    /* guarded by lock */
    struct dctf_passes *passes;
    struct dctf_policy_table *table;
    uint64_t written; /* reports that had arrived when the last one was handed over */
    bool stopping;
    struct dctf_rng rng;
};

static uint64_t now_ms(const struct dctf_controller *controller)
{
    return dctf_clock_mono_ms(&controller->clock);
}

/* --- the table --- */

struct dctf_policy_table *dctf_controller_table(struct dctf_controller *controller)
{
    struct dctf_policy_table *table;

    pthread_mutex_lock(&controller->lock);
    table = controller->table;
    if (table)
        table->refs++;
    pthread_mutex_unlock(&controller->lock);
    return table;
}

void dctf_controller_table_put(struct dctf_controller *controller, struct dctf_policy_table *table)
{
    bool last;

    if (!table)
        return;
    pthread_mutex_lock(&controller->lock);
    last = --table->refs == 0;
    pthread_mutex_unlock(&controller->lock);
    if (!last)
        return;
    free(table->entries);
    free(table);
}

static void show_table(struct dctf_controller *controller, const struct dctf_policy_table *table)
{
    int64_t hot = 0;

    for (size_t i = 0; i < table->count; i++)
        hot += table->entries[i].class == DCTF_POLICY_HOT;
    dctf_metric_set(controller->config.metrics, DCTF_METRIC_POLICY_HOT, hot);
    dctf_metric_set(controller->config.metrics, DCTF_METRIC_POLICY_MID, (int64_t)table->count - hot);
    dctf_log(DCTF_LOG_DEBUG, "policy",
        "op=table fence=%" PRIu64 " version=%" PRIu64 " hot=%" PRId64 " mid=%" PRId64, table->fence,
        table->version, hot, (int64_t)table->count - hot);
}

static void take_table(
    void *ctx, const struct dctf_policy_entry *entries, size_t count, uint64_t fence, uint64_t version)
{
    struct dctf_controller *controller = ctx;
    struct dctf_policy_table *table = calloc(1, sizeof(*table)), *old;

    if (table)
        table->entries = calloc(count + 1, sizeof(*entries));
    if (!table || !table->entries) {
        free(table);
        dctf_log(DCTF_LOG_ERROR, "policy", "op=table err=%d the old one stays", DCTF_ERR_NO_MEMORY);
        return;
    }
    if (count)
        memcpy(table->entries, entries, count * sizeof(*entries));
    table->count = count;
    table->fence = fence;
    table->version = version;
    table->heard_ms = now_ms(controller);
    table->refs = 1;
    show_table(controller, table);
    pthread_mutex_lock(&controller->lock);
    old = controller->table;
    controller->table = table;
    pthread_mutex_unlock(&controller->lock);
    dctf_controller_table_put(controller, old);
    if (controller->config.changed)
        controller->config.changed(controller->config.ctx);
}

static void keep_fence(void *ctx, uint64_t fence)
{
    struct dctf_controller *controller = ctx;
    enum dctf_err err = dctf_store_number_put(controller->config.store, FENCE_NAME, fence);

    if (err)
        dctf_log(DCTF_LOG_WARN, "policy",
            "op=fence err=%d not kept: after a restart an older table may be taken", (int)err);
}

/* --- judging --- */

void dctf_controller_bounds(
    const struct dctf_view *view, unsigned share_pct, struct dctf_controller_bounds *out)
{
    uint64_t least = UINT64_MAX, sum = 0, serving = 0;

    for (uint32_t i = 0; i < dctf_view_count(view); i++) {
        uint64_t weight = dctf_view_node(view, i)->weight;

        if (!weight)
            continue;
        least = weight < least ? weight : least;
        sum += weight / 100 * NEW_SHARE_PCT;
        serving++;
    }
    *out = (struct dctf_controller_bounds){0};
    if (!serving)
        return;
    /* 0 would be no bound. */
    out->hot_bytes = least / 100 * share_pct + 1;
    out->mid_bytes = least / 100 * (share_pct < MID_SHARE_PCT ? share_pct : MID_SHARE_PCT) + 1;
    out->new_bytes = sum / serving + 1;
}

/* Who begins to lead goes on from the table that is there; who led before without another in between goes
 * on from what it knows. */
static bool become_judge(struct dctf_controller *controller, uint64_t fence)
{
    struct dctf_policy_config config = dctf_policy_defaults;
    struct dctf_policy_table *table;
    enum dctf_err err;

    if (!dctf_coordinator_table_known(controller->config.coordinator))
        return false;
    table = dctf_controller_table(controller);
    if (controller->policy && (!table || table->fence <= controller->judged_fence)) {
        controller->judged_fence = fence;
        dctf_controller_table_put(controller, table);
        return true;
    }
    dctf_policy_free(controller->policy);
    config.dwell_ms = DWELL_INTERVALS * controller->config.interval_ms;
    err = dctf_policy_new(&config, &controller->policy);
    if (!err && table)
        err = dctf_policy_seed(controller->policy, table->entries, table->count, now_ms(controller));
    dctf_controller_table_put(controller, table);
    if (err) {
        dctf_policy_free(controller->policy);
        controller->policy = NULL;
        dctf_log(DCTF_LOG_ERROR, "policy", "op=lead err=%d heat is not judged", (int)err);
        return false;
    }
    controller->judged_fence = fence;
    return true;
}

static bool may_judge(struct dctf_controller *controller)
{
    uint64_t fence = dctf_coordinator_fence(controller->config.coordinator);

    if (!fence)
        return false;
    return (controller->policy && fence == controller->judged_fence) || become_judge(controller, fence);
}

static void take_report(void *ctx, const char *node, const struct dctf_coordinator_heat *heat, size_t count)
{
    struct dctf_controller *controller = ctx;
    uint64_t hash = dctf_hash64(node, strlen(node));

    if (!may_judge(controller))
        return;
    for (size_t i = 0; i < count; i++) {
        enum dctf_err err =
            dctf_policy_report(controller->policy, heat[i].feature_id, hash, heat[i].passes, heat[i].bytes);

        if (err) {
            dctf_log(DCTF_LOG_WARN, "policy", "op=report err=%d the rest of it is passed over", (int)err);
            return;
        }
    }
}

size_t dctf_controller_cap(struct dctf_policy_entry *entries, size_t count, size_t max)
{
    size_t hot = 0, mid, kept = 0;

    if (count <= max)
        return count;
    for (size_t i = 0; i < count; i++)
        hot += entries[i].class == DCTF_POLICY_HOT;
    hot = hot < max ? hot : max;
    mid = max - hot;
    for (size_t i = 0; i < count; i++) {
        size_t *left = entries[i].class == DCTF_POLICY_HOT ? &hot : &mid;

        if (!*left)
            continue;
        --*left;
        entries[kept++] = entries[i];
    }
    return kept;
}

static void judge(void *ctx)
{
    struct dctf_controller *controller = ctx;
    struct dctf_controller_bounds bounds;
    struct dctf_policy_result result;
    struct dctf_view *view;
    size_t count = 0;
    enum dctf_err err;

    /* Reports are read twice in an interval. */
    if (!may_judge(controller) ||
        now_ms(controller) - controller->judged_ms < controller->config.interval_ms * 3 / 4)
        return;
    controller->judged_ms = now_ms(controller);
    view = controller->config.view(controller->config.ctx);
    dctf_controller_bounds(view, controller->config.share_pct, &bounds);
    dctf_view_unref(view);
    dctf_policy_set_bounds(controller->policy, bounds.hot_bytes, bounds.mid_bytes, bounds.new_bytes);
    err = dctf_policy_evaluate(controller->policy, now_ms(controller), &result);
    if (!err) {
        count = dctf_controller_cap(result.table, result.count, DCTF_COORDINATOR_POLICY_MAX);
        err = dctf_coordinator_publish(controller->config.coordinator, result.table, count);
    }
    if (err)
        dctf_log(DCTF_LOG_WARN, "policy", "op=judge err=%d the table stays as it is", (int)err);
    else if (result.change_count)
        dctf_log(DCTF_LOG_INFO, "policy",
            "op=judge changes=%zu features=%zu hot_mib=%" PRIu64 " mid_mib=%" PRIu64, result.change_count,
            count, result.hot_bytes >> 20, result.mid_bytes >> 20);
    if (!err && controller->config.judged)
        controller->config.judged(controller->config.ctx, controller, controller->judged_fence, &result);
    dctf_policy_result_fini(&result);
}

/* --- paths --- */

bool dctf_controller_path(struct dctf_controller *controller, uint64_t feature_id, bool ask, char *path)
{
    struct dctf_passes_entry *entry;
    bool known = false;

    pthread_mutex_lock(&controller->lock);
    entry = dctf_passes_find(controller->passes, feature_id);
    if (entry) {
        strcpy(path, entry->path); /* no longer than a key */
        known = true;
    }
    pthread_mutex_unlock(&controller->lock);
    if (!known)
        known = dctf_heat_feature_path(dctf_store_heat(controller->config.store), feature_id, path);
    if (!known && ask && dctf_coordinator_ask_path(controller->config.coordinator, feature_id))
        dctf_log(DCTF_LOG_DEBUG, "policy", "op=path many are asked for: later");
    return known;
}

static bool tell_path(void *ctx, uint64_t feature_id, char *path)
{
    return dctf_controller_path(ctx, feature_id, false, path);
}

/* Taken only if it is the path that the id is a hash of. */
static void take_path(void *ctx, uint64_t feature_id, const char *path)
{
    struct dctf_controller *controller = ctx;
    size_t len = strlen(path);

    if (len > DCTF_KEY_MAX || dctf_hash64_seed(path, len, controller->config.dataset) != feature_id)
        return;
    pthread_mutex_lock(&controller->lock);
    (void)dctf_passes_claim(controller->passes, feature_id, path);
    pthread_mutex_unlock(&controller->lock);
    if (controller->config.changed)
        controller->config.changed(controller->config.ctx);
}

/* --- reports --- */

void dctf_controller_read(
    struct dctf_controller *controller, const struct dctf_version *version, uint64_t bytes)
{
    struct dctf_passes_entry *entry;

    pthread_mutex_lock(&controller->lock);
    entry = dctf_passes_claim(controller->passes, version->feature_id, version->feature);
    if (entry) {
        entry->bytes += bytes;
        if (controller->config.feature_by == DCTF_FEATURE_BY_FILE)
            entry->feature_bytes = version->size;
    }
    pthread_mutex_unlock(&controller->lock);
}

/* Bytes of all files of a directory, unless it is as it was. Without a listing what was known stays. */
static void measure(struct dctf_controller *controller, struct dctf_passes_entry *feature)
{
    struct dctf_listings *listings = dctf_store_listings(controller->config.store);
    struct dctf_listing_state state;
    struct dctf_listing_cursor *cursor;
    struct dctf_entry entry;
    uint64_t sum = 0;

    if (controller->config.feature_by == DCTF_FEATURE_BY_FILE)
        return;
    if (dctf_listings_state(listings, feature->path, &state) || !state.generation ||
        state.generation == feature->generation ||
        dctf_listing_open(listings, feature->path, state.generation, &cursor))
        return;
    while (!dctf_listing_next(cursor, &entry))
        sum += entry.is_dir ? 0 : entry.size;
    dctf_listing_close(cursor);
    feature->feature_bytes = sum;
    feature->generation = state.generation;
}

/* What was handed over before has arrived, or waits again. Copies what is to be told; NULL: nothing. */
static struct dctf_passes_entry *gather(struct dctf_controller *controller, uint64_t written, size_t *count)
{
    struct dctf_passes_entry *out;
    size_t all;

    *count = 0;
    pthread_mutex_lock(&controller->lock);
    all = dctf_passes_count(controller->passes);
    out = calloc(all + 1, sizeof(*out));
    for (size_t i = 0; i < all; i++) {
        struct dctf_passes_entry *entry = dctf_passes_at(controller->passes, i);

        if (written == controller->written)
            entry->bytes += entry->sent;
        entry->sent = 0;
        if (!out || !entry->bytes)
            continue;
        out[*count] = *entry;
        out[*count].path = strdup(entry->path);
        *count += out[*count].path != NULL;
    }
    pthread_mutex_unlock(&controller->lock);
    return out;
}

/* They were handed over; what is known of their bytes is kept. */
static void note_sent(struct dctf_controller *controller, const struct dctf_passes_entry *told, size_t count,
    bool sent, uint64_t written)
{
    pthread_mutex_lock(&controller->lock);
    for (size_t i = 0; i < count; i++) {
        struct dctf_passes_entry *entry = dctf_passes_find(controller->passes, told[i].feature_id);

        if (!entry)
            continue;
        entry->feature_bytes = told[i].feature_bytes;
        entry->generation = told[i].generation;
        if (!sent || !told[i].feature_bytes || entry->bytes < told[i].bytes) /* forgotten meanwhile */
            continue;
        entry->bytes -= told[i].bytes;
        entry->sent = told[i].bytes;
    }
    controller->written = written;
    pthread_mutex_unlock(&controller->lock);
}

void dctf_controller_report(struct dctf_controller *controller)
{
    uint64_t written = dctf_coordinator_reports_written(controller->config.coordinator);
    size_t count, told = 0;
    struct dctf_passes_entry *entries = gather(controller, written, &count);
    struct dctf_coordinator_heat *heat = entries ? calloc(count + 1, sizeof(*heat)) : NULL;
    enum dctf_err err = heat ? DCTF_OK : DCTF_ERR_NO_MEMORY;

    for (size_t i = 0; heat && i < count; i++) {
        measure(controller, &entries[i]);
        if (entries[i].feature_bytes)
            heat[told++] = (struct dctf_coordinator_heat){
                .feature_id = entries[i].feature_id,
                .passes = (double)entries[i].bytes / (double)entries[i].feature_bytes,
                .bytes = entries[i].feature_bytes,
            };
    }
    if (!err && told)
        err = dctf_coordinator_report(controller->config.coordinator, heat, told);
    if (entries)
        note_sent(controller, entries, count, !err && told, written);
    if (err)
        dctf_log(DCTF_LOG_WARN, "policy", "op=report err=%d later", (int)err);
    for (size_t i = 0; i < count; i++)
        free(entries[i].path);
    free(entries);
    free(heat);
}

uint64_t dctf_controller_leads(struct dctf_controller *controller)
{
    return dctf_coordinator_fence(controller->config.coordinator);
}

static void *run(void *ctx)
{
    struct dctf_controller *controller = ctx;

    pthread_mutex_lock(&controller->lock);
    while (!controller->stopping) {
        uint64_t interval = controller->config.interval_ms;
        uint64_t ms = interval - interval / 10 + dctf_rng_below(&controller->rng, interval / 5 + 1);
        struct timespec until;
        int result = 0;

        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += (time_t)(ms / 1000);
        until.tv_nsec += (long)(ms % 1000) * 1000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        while (!controller->stopping && !result)
            result = pthread_cond_timedwait(&controller->wake, &controller->lock, &until);
        if (controller->stopping)
            break;
        pthread_mutex_unlock(&controller->lock);
        dctf_controller_report(controller);
        pthread_mutex_lock(&controller->lock);
    }
    pthread_mutex_unlock(&controller->lock);
    return NULL;
}

/* --- start and end --- */

static void begin_to_listen(struct dctf_controller *controller)
{
    struct dctf_coordinator_listener listener = {
        .lead = controller->config.lead,
        .interval_ms = controller->config.interval_ms,
        .fence_grew = keep_fence,
        .policy = take_table,
        .report = take_report,
        .reports_end = judge,
        .path_of = tell_path,
        .path = take_path,
        .ctx = controller,
    };

    (void)dctf_store_number_get(controller->config.store, FENCE_NAME, &listener.fence); /* else 0 */
    dctf_coordinator_listen(controller->config.coordinator, &listener);
}

static void controller_free(struct dctf_controller *controller)
{
    dctf_controller_table_put(controller, controller->table);
    dctf_policy_free(controller->policy);
    dctf_passes_free(controller->passes);
    pthread_cond_destroy(&controller->wake);
    pthread_mutex_destroy(&controller->lock);
    free(controller);
}

enum dctf_err dctf_controller_start(const struct dctf_controller_config *config, struct dctf_controller **out)
{
    struct dctf_controller *controller = calloc(1, sizeof(*controller));
    enum dctf_err err;

    *out = NULL;
    if (!controller)
        return DCTF_ERR_NO_MEMORY;
    err = dctf_thread_cond_init(&controller->wake);
    if (err) {
        free(controller);
        return err;
    }
    pthread_mutex_init(&controller->lock, NULL);
    controller->config = *config;
    if (config->clock)
        controller->clock = *config->clock;
    controller->rng.state = dctf_rng_seed();
    err = dctf_passes_new(FEATURES_MAX, &controller->passes);
    if (!err)
        err = dctf_thread_start("dctf-policy", run, controller, &controller->thread);
    if (err) {
        controller_free(controller);
        return err;
    }
    begin_to_listen(controller);
    *out = controller;
    return DCTF_OK;
}

void dctf_controller_stop(struct dctf_controller *controller)
{
    if (!controller)
        return;
    dctf_coordinator_listen(controller->config.coordinator, NULL);
    pthread_mutex_lock(&controller->lock);
    controller->stopping = true;
    pthread_cond_broadcast(&controller->wake);
    pthread_mutex_unlock(&controller->lock);
    pthread_join(controller->thread, NULL);
    controller_free(controller);
}
