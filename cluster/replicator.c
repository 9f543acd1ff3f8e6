/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/replicator_internal.h"

#include "base/config.h"
#include "base/log.h"
#include "base/str.h"
#include "base/thread.h"
#include "base/version.h"
#include "cache/listing.h"
#include "cache/store.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COPIED_MAX 1048576u
#define LOOK_ALL_INTERVALS                                                                                   \
    10u /* of the policy; then also what was whole is looked at: eviction says nothing */
#define PAUSE_MAX_MS 30000u
/* Opens that admission may expect of what the cluster holds to be hot or mid. */
#define HOT_HEAT 4.0
#define MID_HEAT 2.0

enum sizes { ALL, SMALL_ONLY, LARGE_ONLY };

bool dctf_replicator_is_stopping(struct dctf_replicator *replicator)
{
    bool stopping;

    pthread_mutex_lock(&replicator->lock);
    stopping = replicator->stopping;
    pthread_mutex_unlock(&replicator->lock);
    return stopping;
}

void dctf_replicator_refuse(struct dctf_replicator *replicator, enum dctf_metric reason)
{
    dctf_metric_add(replicator->cluster->config.metrics, reason, 1);
}

static uint64_t now_ms(const struct dctf_replicator *replicator)
{
    return dctf_cluster_now_ms(replicator->cluster);
}

/* Another table, or the end: what is walked may not be wanted any more. */
static bool is_outdated(struct dctf_replicator *replicator)
{
    bool outdated;

    pthread_mutex_lock(&replicator->lock);
    outdated = replicator->stopping || replicator->changed;
    pthread_mutex_unlock(&replicator->lock);
    return outdated;
}

/* Whether it is time to look at what was whole as well. */
static bool is_all_due(const struct dctf_replicator *replicator)
{
    return now_ms(replicator) - replicator->looked_ms >=
           LOOK_ALL_INTERVALS * replicator->cluster->config.options->policy_interval;
}

static uint64_t share_bytes(struct dctf_replicator *replicator)
{
    struct dctf_store_stats stats;

    dctf_store_stats(replicator->cluster->config.store, &stats);
    return stats.limit_bytes / 100 * replicator->cluster->config.options->replicate_share_pct;
}

/* --- extents --- */

/* Whether this node should have the extent, and whether as its home. */
static bool is_wanted(const struct dctf_view *view, uint64_t key, enum dctf_policy_class class, bool *home)
{
    uint32_t found[3], self = dctf_view_self(view);
    size_t count = dctf_view_replicas(view, key, found, class == DCTF_POLICY_HOT ? 1 : 3);
    bool wanted = class == DCTF_POLICY_HOT;

    *home = count && found[0] == self;
    for (size_t i = 0; i < count; i++)
        wanted |= found[i] == self;
    return wanted && self != DCTF_NODE_NONE;
}

static void count_shadow(struct dctf_replicator *replicator, uint64_t bytes)
{
    dctf_metric_add(replicator->cluster->config.metrics, DCTF_METRIC_REPLICATION_SHADOW, (int64_t)bytes);
    pthread_mutex_lock(&replicator->lock);
    replicator->status.shadow_bytes += bytes;
    pthread_mutex_unlock(&replicator->lock);
}

static uint64_t bytes_of(const struct dctf_version *version, uint32_t first, uint32_t count)
{
    return (uint64_t)(count - 1) * DCTF_BLOCK_BYTES + dctf_block_len(version->size, first + count - 1);
}

static void bring_missing(struct dctf_replicator *replicator, struct dctf_walk *walk,
    struct dctf_shard *shard, uint64_t key, uint32_t first, uint32_t count)
{
    bool small = dctf_shard_version(shard)->size <= DCTF_SMALL_BYTES; /* whole or not at all */

    for (uint32_t block = first; block < first + count;) {
        uint32_t run = 0, most = small ? count : dctf_piece_blocks(replicator, key);

        if (most > first + count - block)
            most = first + count - block;
        while (run < most && (small || !dctf_shard_is_present(shard, block + run)))
            run++;
        if (run) {
            dctf_piece_bring(replicator, walk, shard, key, first, count, block, run);
            block += run;
        } else {
            block++;
        }
        if (walk->dropped || dctf_replicator_is_stopping(replicator))
            return;
    }
}

/* Something of an extent that should be here is not. */
static void want_extent(struct dctf_replicator *replicator, struct dctf_walk *walk, struct dctf_shard *shard,
    uint64_t key, uint32_t first, uint32_t count)
{
    if (replicator->shadow) {
        if (dctf_copied_is(replicator->copied, key) || !dctf_copied_done(replicator->copied, key))
            return;
        count_shadow(
            replicator, bytes_of(dctf_shard_version(shard), first, count) -
                            (uint64_t)dctf_shard_count_present(shard, first, count) * DCTF_BLOCK_BYTES);
        return;
    }
    walk->again = true;
    if (!dctf_copied_may(replicator->copied, key, now_ms(replicator))) {
        walk->missing = true;
        dctf_replicator_refuse(replicator, DCTF_METRIC_REPLICATION_REFUSED_EVICTED);
        return;
    }
    dctf_shard_expect(shard, walk->class == DCTF_POLICY_HOT ? HOT_HEAT : MID_HEAT);
    if (!dctf_shard_wants(shard)) {
        walk->missing = true;
        dctf_replicator_refuse(replicator, DCTF_METRIC_REPLICATION_REFUSED_CACHE);
        return;
    }
    bring_missing(replicator, walk, shard, key, first, count);
}

static void walk_extent(struct dctf_replicator *replicator, struct dctf_walk *walk, struct dctf_shard *shard,
    const struct dctf_view *view, uint32_t extent)
{
    const struct dctf_version *version = dctf_shard_version(shard);
    uint32_t first = extent * DCTF_EXTENT_BLOCKS, left = dctf_blocks_of(version->size) - first;
    uint32_t count = left < DCTF_EXTENT_BLOCKS ? left : DCTF_EXTENT_BLOCKS;
    uint64_t key = dctf_extent_key(replicator->cluster->config.dataset, version->key, version->etag, extent);
    uint64_t bytes = bytes_of(version, first, count);
    bool whole = dctf_shard_count_present(shard, first, count) == count, home;

    if (!is_wanted(view, key, walk->class, &home))
        return;
    if (!home && replicator->held + bytes > share_bytes(replicator)) {
        if (!whole) {
            walk->missing = true;
            dctf_replicator_refuse(replicator, DCTF_METRIC_REPLICATION_REFUSED_QUOTA);
        }
        return;
    }
    if (!home) { /* reserved, whether it is here yet or not */
        replicator->held += bytes;
        walk->held += bytes;
    }
    if (whole)
        (void)dctf_copied_is(replicator->copied, key); /* still wanted */
    else
        want_extent(replicator, walk, shard, key, first, count);
}

/* --- shards and features --- */

static void walk_shard(struct dctf_replicator *replicator, struct dctf_walk *walk,
    const struct dctf_view *view, const char *key, const struct dctf_entry *entry)
{
    const struct dctf_cluster_config *config = &replicator->cluster->config;
    struct dctf_version *version;
    struct dctf_shard *shard;

    if (!entry->size ||
        dctf_version_new(config->dataset, key, entry->etag, entry->size, config->feature_by, &version))
        return;
    if (dctf_shard_get(config->store, version, &shard)) {
        walk->missing = true;
    } else {
        uint32_t extents = (dctf_blocks_of(entry->size) + DCTF_EXTENT_BLOCKS - 1) / DCTF_EXTENT_BLOCKS;

        for (uint32_t i = 0; i < extents && !walk->dropped && !dctf_replicator_is_stopping(replicator); i++)
            walk_extent(replicator, walk, shard, view, i);
        dctf_shard_put(shard);
    }
    dctf_version_unref(version);
}

static bool fits_sizes(enum sizes sizes, uint64_t bytes)
{
    return sizes == ALL || (sizes == SMALL_ONLY) == (bytes <= DCTF_SMALL_BYTES);
}

static void walk_directory(struct dctf_replicator *replicator, struct dctf_walk *walk,
    const struct dctf_view *view, enum sizes sizes, uint64_t generation)
{
    struct dctf_listings *listings = dctf_store_listings(replicator->cluster->config.store);
    struct dctf_listing_cursor *cursor;
    struct dctf_entry entry;
    char key[DCTF_KEY_MAX + DCTF_NAME_MAX + 2];

    if (dctf_listing_open(listings, walk->path, generation, &cursor)) {
        walk->missing = true;
        return;
    }
    while (!walk->dropped && !is_outdated(replicator) && !dctf_listing_next(cursor, &entry)) {
        if (entry.is_dir || !fits_sizes(sizes, entry.size))
            continue;
        snprintf(key, sizeof(key), "%s%s%s", walk->path, *walk->path ? "/" : "", entry.name);
        walk_shard(replicator, walk, view, key, &entry);
    }
    dctf_listing_close(cursor);
}

static void walk_file(struct dctf_replicator *replicator, struct dctf_walk *walk,
    const struct dctf_view *view, enum sizes sizes, const char *dir, uint64_t generation)
{
    struct dctf_listings *listings = dctf_store_listings(replicator->cluster->config.store);
    const char *slash = strrchr(walk->path, '/');
    char buf[DCTF_ENTRY_BUF_BYTES];
    struct dctf_entry entry;
    enum dctf_err err =
        dctf_listing_lookup(listings, dir, generation, slash ? slash + 1 : walk->path, buf, &entry);

    if (err)
        walk->missing = err != DCTF_ERR_NOT_FOUND;
    else if (!entry.is_dir && fits_sizes(sizes, entry.size))
        walk_shard(replicator, walk, view, walk->path, &entry);
}

/* The directory whose listing tells of the feature. */
static void directory_of(const struct dctf_replicator *replicator, const char *path, char *dir)
{
    const char *end = path + strlen(path);

    if (replicator->cluster->config.feature_by == DCTF_FEATURE_BY_FILE) {
        end = strrchr(path, '/');
        if (!end)
            end = path;
    }
    memcpy(dir, path, (size_t)(end - path));
    dir[end - path] = '\0';
}

/* The listing to walk by: the one that is here, however old, since an object that changed is found out when
 * it is asked for; the source's where there is none. */
static bool find_listing(
    struct dctf_replicator *replicator, struct dctf_memo *memo, const char *dir, uint64_t *generation)
{
    struct dctf_listings *listings = dctf_store_listings(replicator->cluster->config.store);
    struct dctf_listing_state state;
    enum dctf_err err = dctf_listings_state(listings, dir, &state);

    if (!err && !state.generation && replicator->list && (!memo->listed || replicator->all)) {
        memo->listed = true; /* one that cannot be listed is not asked for in each walk */
        err = replicator->list(replicator->list_ctx, dir);
        if (!err)
            err = dctf_listings_state(listings, dir, &state);
    }
    if (err)
        dctf_log(DCTF_LOG_DEBUG, "replicate", "op=list err=%d later", (int)err);
    *generation = err ? 0 : state.generation;
    return *generation != 0;
}

static void end_walk(struct dctf_replicator *replicator, const struct dctf_walk *walk, const char *dir)
{
    enum dctf_metric result = DCTF_METRIC_REPLICATION_JOBS_DONE;

    if (walk->dropped) {
        if (!walk->told && dctf_listing_drop(dctf_store_listings(replicator->cluster->config.store), dir))
            dctf_log(DCTF_LOG_DEBUG, "replicate", "op=drop the old listing stays");
        result = DCTF_METRIC_REPLICATION_JOBS_DROPPED;
    } else if (walk->missing) {
        result = DCTF_METRIC_REPLICATION_JOBS_PARTLY;
    }
    if (walk->copied || walk->missing || walk->dropped)
        dctf_metric_add(replicator->cluster->config.metrics, result, 1);
}

static void walk_feature(struct dctf_replicator *replicator, struct dctf_memo *memo,
    const struct dctf_view *view, enum sizes sizes)
{
    char path[DCTF_KEY_MAX + 1], dir[DCTF_KEY_MAX + 1];
    struct dctf_walk walk = {.feature_id = memo->feature_id, .class = memo->class, .path = path};
    uint64_t generation, hash = dctf_view_hash(view);

    if (memo->whole && memo->view_hash == hash && !replicator->all) {
        replicator->held += memo->held;
        return;
    }
    memo->whole = false;
    if (!dctf_controller_path(replicator->controller, memo->feature_id, true, path))
        return;
    directory_of(replicator, path, dir);
    if (!find_listing(replicator, memo, dir, &generation))
        return;
    if (replicator->cluster->config.feature_by == DCTF_FEATURE_BY_FILE)
        walk_file(replicator, &walk, view, sizes, dir, generation);
    else
        walk_directory(replicator, &walk, view, sizes, generation);
    dctf_pieces_drain(replicator, false);
    end_walk(replicator, &walk, dir);
    memo->whole = !walk.missing && !walk.again && !walk.dropped && sizes == ALL && !is_outdated(replicator);
    memo->listed = memo->listed && !walk.dropped;
    memo->view_hash = hash;
    memo->held = walk.held;
}

/* --- the table --- */

/* Memos in the order of the table; those of features that stayed as they were are taken over. */
static bool remember(struct dctf_replicator *replicator, const struct dctf_policy_table *table)
{
    struct dctf_memo *memos = calloc(table->count + 1, sizeof(*memos));
    size_t old = 0;

    if (!memos)
        return false;
    for (size_t i = 0; i < table->count; i++) {
        uint64_t id = table->entries[i].feature_id;

        while (old < replicator->memo_count && replicator->memos[old].feature_id < id)
            old++;
        if (old < replicator->memo_count && replicator->memos[old].feature_id == id &&
            replicator->memos[old].class == table->entries[i].class)
            memos[i] = replicator->memos[old];
        else
            memos[i] = (struct dctf_memo){.feature_id = id, .class = table->entries[i].class};
    }
    free(replicator->memos);
    replicator->memos = memos;
    replicator->memo_count = table->count;
    return true;
}

static void walk_class(struct dctf_replicator *replicator, enum dctf_policy_class class,
    const struct dctf_view *view, enum sizes sizes)
{
    for (size_t i = 0; i < replicator->memo_count && !is_outdated(replicator); i++) {
        if (replicator->memos[i].class == class && !dctf_cluster_is_degraded(replicator->cluster))
            walk_feature(replicator, &replicator->memos[i], view, sizes);
    }
}

/* Small shards of all first, after a time in which transfers were slow. */
static void walk_small(struct dctf_replicator *replicator, const struct dctf_view *view)
{
    replicator->held = 0;
    walk_class(replicator, DCTF_POLICY_HOT, view, SMALL_ONLY);
    walk_class(replicator, DCTF_POLICY_MID, view, SMALL_ONLY);
    replicator->small_first = is_outdated(replicator);
}

static void walk_table(struct dctf_replicator *replicator)
{
    struct dctf_policy_table *table = dctf_controller_table(replicator->controller);
    struct dctf_view *view;
    size_t missing = 0;

    if (!table)
        return;
    if (!remember(replicator, table)) {
        dctf_controller_table_put(replicator->controller, table);
        return;
    }
    view = dctf_cluster_view(replicator->cluster);
    replicator->all = is_all_due(replicator);
    if (replicator->small_first)
        walk_small(replicator, view);
    replicator->held = 0;
    walk_class(replicator, DCTF_POLICY_HOT, view, ALL);
    walk_class(replicator, DCTF_POLICY_MID, view, ALL);
    dctf_view_unref(view);
    dctf_controller_table_put(replicator->controller, table);
    if (is_outdated(replicator) || dctf_cluster_is_degraded(replicator->cluster))
        return;
    if (replicator->all) {
        replicator->looked_ms = now_ms(replicator);
        dctf_copied_sweep(replicator->copied);
    }
    for (size_t i = 0; i < replicator->memo_count; i++)
        missing += !replicator->memos[i].whole;
    dctf_metric_set(
        replicator->cluster->config.metrics, DCTF_METRIC_REPLICATION_HELD, (int64_t)replicator->held);
    pthread_mutex_lock(&replicator->lock);
    replicator->status.held_bytes = replicator->held;
    replicator->status.missing = missing;
    replicator->status.walks++;
    pthread_mutex_unlock(&replicator->lock);
}

/* --- the thread --- */

/* Until something changed, or it is time to look again; false at the end. */
static bool wait_for_work(struct dctf_replicator *replicator)
{
    uint64_t ms = replicator->cluster->config.options->policy_interval;
    struct timespec until;
    int result = 0;
    bool going;

    ms = ms < PAUSE_MAX_MS ? ms : PAUSE_MAX_MS;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(ms / 1000);
    until.tv_nsec += (long)(ms % 1000) * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&replicator->lock);
    while (!replicator->stopping && !replicator->changed && !result)
        result = pthread_cond_timedwait(&replicator->wake, &replicator->lock, &until);
    replicator->changed = false;
    going = !replicator->stopping;
    pthread_mutex_unlock(&replicator->lock);
    return going;
}

static void *run(void *ctx)
{
    struct dctf_replicator *replicator = ctx;

    while (wait_for_work(replicator)) {
        if (dctf_cluster_is_degraded(replicator->cluster))
            replicator->small_first = true;
        else
            walk_table(replicator);
    }
    dctf_pieces_drain(replicator, true);
    return NULL;
}

void dctf_replicator_wake(struct dctf_replicator *replicator)
{
    pthread_mutex_lock(&replicator->lock);
    replicator->changed = true;
    pthread_cond_broadcast(&replicator->wake);
    pthread_mutex_unlock(&replicator->lock);
}

void dctf_replicator_status(struct dctf_replicator *replicator, struct dctf_replicator_status *out)
{
    uint64_t share = share_bytes(replicator);

    pthread_mutex_lock(&replicator->lock);
    *out = replicator->status;
    pthread_mutex_unlock(&replicator->lock);
    out->shadow = replicator->shadow;
    out->share_bytes = share;
}

/* --- start and end --- */

static void replicator_free(struct dctf_replicator *replicator)
{
    dctf_copied_free(replicator->copied);
    free(replicator->memos);
    pthread_cond_destroy(&replicator->wake);
    pthread_mutex_destroy(&replicator->lock);
    free(replicator);
}

enum dctf_err dctf_replicator_start(
    struct dctf_cluster *cluster, dctf_replicator_list *list, void *ctx, struct dctf_replicator **out)
{
    const struct dctf_config *options = cluster->config.options;
    struct dctf_replicator *replicator;
    enum dctf_err err;

    *out = NULL;
    if (options->replicate == DCTF_REPLICATE_OFF || !cluster->controller)
        return DCTF_OK;
    replicator = calloc(1, sizeof(*replicator));
    if (!replicator)
        return DCTF_ERR_NO_MEMORY;
    err = dctf_thread_cond_init(&replicator->wake);
    if (err) {
        free(replicator);
        return err;
    }
    pthread_mutex_init(&replicator->lock, NULL);
    replicator->cluster = cluster;
    replicator->controller = cluster->controller;
    replicator->list = list;
    replicator->list_ctx = ctx;
    replicator->shadow = options->replicate == DCTF_REPLICATE_SHADOW;
    replicator->readiness = (struct dctf_readiness){
        .budget = cluster->config.budget,
        .writers = cluster->config.pool,
        .store = cluster->config.store,
        .root = "",
    };
    replicator->looked_ms = now_ms(replicator);
    dctf_rate_init(&replicator->rate, options->replicate_rate, now_ms(replicator));
    for (unsigned i = 0; i < DCTF_PIECES; i++)
        replicator->pieces[i].replicator = replicator;
    err = dctf_copied_new(COPIED_MAX, &replicator->copied);
    if (!err)
        err = dctf_thread_start("dctf-replicate", run, replicator, &replicator->thread);
    if (err) {
        replicator_free(replicator);
        return err;
    }
    *out = replicator;
    return DCTF_OK;
}

void dctf_replicator_stop(struct dctf_replicator *replicator)
{
    if (!replicator)
        return;
    pthread_mutex_lock(&replicator->lock);
    replicator->stopping = true;
    pthread_cond_broadcast(&replicator->wake);
    pthread_mutex_unlock(&replicator->lock);
    pthread_join(replicator->thread, NULL);
    replicator_free(replicator);
}
