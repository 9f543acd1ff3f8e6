/* SPDX-License-Identifier: Apache-2.0
 *
 * Several nodes of one cluster in this process, on loopback, as a static list of members; and what stands at
 * the other places of the list: peers whose answers the test decides, or none. The source is in memory, can
 * hold what it is asked for, and counts.
 *
 * Threads:   the test's thread but where a callback is marked; what callbacks leave is guarded by a lock.
 * Ownership: core_open() … core_close(); gets and shards are ended with it.
 */
#ifndef DCTF_TESTS_CORE_FIXTURE_H
#define DCTF_TESTS_CORE_FIXTURE_H

#include "base/budget.h"
#include "base/config.h"
#include "base/metric.h"
#include "base/pool.h"
#include "base/thread.h"
#include "base/version.h"
#include "cache/store.h"
#include "cluster/internal.h"
#include "core_peer_fixture.h"
#include "lib/origin_memory.h"

#include <ftw.h>

#define MIB ((uint64_t)1 << 20)
#define SMALL_BYTES (600u * 1024) /* one request to a peer */
#define NODES 3u
#define ANY UINT32_MAX
#define HELD_MAX 32u
/* Neither silence nor the deadline ends what is waited for before the test gives up. */
#define PATIENT "read_deadline_ms=60s stall_timeout_max_ms=60s"

/* --- the source --- */

struct source {
    struct dctf_origin base; /* first */
    struct dctf_origin *memory;
    pthread_mutex_t lock;
    /* guarded by lock */
    bool hold;
    struct dctf_origin_get *held[HELD_MAX];
    unsigned held_count;
};

static inline enum dctf_err source_get(struct dctf_origin *base, struct dctf_origin_get *get)
{
    struct source *source = (struct source *)base;
    bool hold;

    pthread_mutex_lock(&source->lock);
    hold = source->hold && source->held_count < HELD_MAX;
    if (hold)
        source->held[source->held_count++] = get;
    pthread_mutex_unlock(&source->lock);
    return hold ? DCTF_OK : source->memory->ops->get(source->memory, get);
}

static inline void source_cancel(struct dctf_origin *base, struct dctf_origin_get *get)
{
    struct source *source = (struct source *)base;
    bool found = false;

    pthread_mutex_lock(&source->lock);
    for (unsigned i = 0; i < source->held_count && !found; i++) {
        found = source->held[i] == get;
        if (found)
            source->held[i] = source->held[--source->held_count];
    }
    pthread_mutex_unlock(&source->lock);
    if (found)
        get->done(get, DCTF_ERR_CANCELLED, 0);
}

static inline void source_hold(struct source *source)
{
    pthread_mutex_lock(&source->lock);
    source->hold = true;
    pthread_mutex_unlock(&source->lock);
}

static inline unsigned source_held(struct source *source)
{
    unsigned count;

    pthread_mutex_lock(&source->lock);
    count = source->held_count;
    pthread_mutex_unlock(&source->lock);
    return count;
}

/* Answer what is held, and hold no more. */
static inline void source_release(struct source *source)
{
    for (;;) {
        struct dctf_origin_get *get = NULL;
        enum dctf_err err;

        pthread_mutex_lock(&source->lock);
        source->hold = false;
        if (source->held_count)
            get = source->held[--source->held_count];
        pthread_mutex_unlock(&source->lock);
        if (!get)
            return;
        err = source->memory->ops->get(source->memory, get);
        if (err)
            get->done(get, err, 0);
    }
}

/* A node's way to the source, which may be cut. */
struct way {
    struct dctf_origin base; /* first */
    struct source *source;
    atomic_bool cut;
    atomic_uint tries;
};

static inline enum dctf_err way_get(struct dctf_origin *base, struct dctf_origin_get *get)
{
    struct way *way = (struct way *)base;

    atomic_fetch_add(&way->tries, 1);
    return atomic_load(&way->cut) ? DCTF_ERR_ORIGIN_UNREACHABLE : source_get(&way->source->base, get);
}

static inline void way_cancel(struct dctf_origin *base, struct dctf_origin_get *get)
{
    source_cancel(&((struct way *)base)->source->base, get);
}

static const struct dctf_origin_ops way_ops = {
    .scheme = "way",
    .get = way_get,
    .cancel_get = way_cancel,
};

/* --- the cluster --- */

struct node {
    struct way way;
    char dir[64];
    struct dctf_config options;
    struct dctf_metrics *metrics;
    struct dctf_timers *timers;
    struct dctf_budget *budget;
    struct dctf_pool *pool;
    struct dctf_store *store;
    struct dctf_cluster *cluster;
};

struct core {
    char peers[256];
    struct place places[NODES]; /* by position in the list */
    struct node nodes[NODES];   /* cluster NULL: something else stands there */
    struct source source;
    struct dctf_origin_memory *memory;
    struct shards shards;
};

static inline int remove_one(const char *path, const struct stat *info, int type, struct FTW *walk)
{
    (void)info;
    (void)type;
    (void)walk;
    return remove(path);
}

static inline void set_option(struct node *node, const char *name, const char *value)
{
    assert_int_equal(dctf_config_set(&node->options, name, value, "test", NULL), DCTF_OK);
}

/* `options`: name=value pairs separated by blanks. */
static inline void set_options(struct node *node, const char *options)
{
    char copy[256], *save = NULL;

    snprintf(copy, sizeof(copy), "%s", options);
    for (char *word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        char *value = strchr(word, '=');

        assert_non_null(value);
        *value++ = '\0';
        set_option(node, word, value);
    }
}

static inline void node_open(struct core *core, unsigned i, const char *options)
{
    struct node *node = &core->nodes[i];
    struct dctf_store_config store = {
        .dir = node->dir,
        .size_bytes = 512 * MIB,
        .memory_bytes = 16 * MIB,
        .dataset = DATASET,
        .heat_half_life_ms = 3600000,
        .heat_ttl_ms = 86400000,
        .owner = "unit test",
    };
    struct dctf_cluster_config cluster = {
        .options = &node->options,
        .dataset = DATASET,
        .feature_by = DCTF_FEATURE_BY_DIRECTORY,
        .upstream = &node->way.base,
    };
    char detail[256];

    node->way.base.ops = &way_ops;
    node->way.source = &core->source;
    strcpy(node->dir, "/tmp/dctf-test-core-XXXXXX");
    assert_non_null(mkdtemp(node->dir));
    assert_int_equal(dctf_config_init(&node->options), DCTF_OK);
    set_option(node, "listen", core->places[i].addr);
    set_option(node, "peers", core->peers);
    set_option(node, "cluster_secret", SECRET);
    set_option(node, "settle_ms", "0");
    set_options(node, options);
    assert_int_equal(dctf_metrics_new(&node->metrics), DCTF_OK);
    assert_int_equal(dctf_timers_new(&node->timers), DCTF_OK);
    assert_int_equal(dctf_budget_new(64 * MIB, &node->budget), DCTF_OK);
    assert_int_equal(dctf_pool_new(&(struct dctf_pool_config){.name = "write", .threads = 2, .queue_max = 64},
                         &node->pool),
        DCTF_OK);
    assert_int_equal(dctf_store_open(&store, NULL, &node->store), DCTF_OK);
    cluster.store = node->store;
    cluster.budget = node->budget;
    cluster.pool = node->pool;
    cluster.timers = node->timers;
    cluster.metrics = node->metrics;
    assert_int_equal(dctf_cluster_new(&cluster, detail, &node->cluster), DCTF_OK);
}

/* A probe is late only when the test gives up, also on a busy machine. Before the first read. */
static inline void node_probes_patiently(struct node *node)
{
    node->cluster->probe_ms = FOREVER_MS;
}

static inline void cluster_close(struct node *node)
{
    struct dctf_origin *origin = node->cluster ? dctf_cluster_origin(node->cluster) : NULL;

    if (origin)
        origin->ops->close(origin, 0);
    node->cluster = NULL;
}

static inline void node_close(struct node *node)
{
    if (!*node->dir)
        return;
    cluster_close(node);
    dctf_pool_free(node->pool);
    dctf_timers_free(node->timers);
    assert_int_equal(dctf_budget_used(node->budget), 0);
    dctf_budget_free(node->budget);
    dctf_store_close(node->store);
    dctf_metrics_free(node->metrics);
    dctf_config_fini(&node->options);
    assert_int_equal(nftw(node->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

static inline bool count_heard(void *ctx, const struct dctf_peer_status *peer)
{
    *(unsigned *)ctx += peer->self || (peer->min_rtt_us && peer->breaker == DCTF_BREAKER_CLOSED);
    return true;
}

/* Whether the node at a place has heard so many, itself included. */
static inline bool has_heard(struct core *core, unsigned i, unsigned wanted)
{
    unsigned count = 0;

    dctf_cluster_each_peer(core->nodes[i].cluster, count_heard, &count);
    return count >= wanted;
}

/* What stands at each place: 'n' a node, 'p' a peer that answers as the test says, 's' a socket that accepts
 * and never answers. Returns when the nodes have heard of all that speak. */
static inline struct core *core_open(const char *what, const char *options)
{
    struct core *core = calloc(1, sizeof(*core));
    unsigned speaking = 0;

    assert_non_null(core);
    pthread_mutex_init(&core->source.lock, NULL);
    assert_int_equal(dctf_origin_memory_new(&core->memory), DCTF_OK);
    core->source.memory = dctf_origin_memory_base(core->memory);
    for (unsigned i = 0; i < NODES; i++) {
        place_take(&core->places[i]);
        snprintf(core->peers + strlen(core->peers), sizeof(core->peers) - strlen(core->peers), "%s%s",
            i ? "," : "", core->places[i].addr);
    }
    for (unsigned i = 0; i < NODES; i++) {
        if (what[i] == 'p')
            peer_open(&core->places[i], &core->shards);
        else if (what[i] == 's')
            assert_int_equal(listen(core->places[i].fd, 64), 0);
        speaking += what[i] != 's';
    }
    for (unsigned i = 0; i < NODES; i++) {
        if (what[i] == 'n')
            node_open(core, i, options);
    }
    for (unsigned i = 0; i < NODES; i++) {
        if (what[i] == 'n')
            wait_until(has_heard(core, i, speaking));
    }
    return core;
}

static inline void core_close(struct core *core)
{
    source_release(&core->source);
    for (unsigned i = 0; i < NODES; i++)
        node_close(&core->nodes[i]);
    for (unsigned i = 0; i < NODES; i++)
        place_leave(&core->places[i]);
    core->source.memory->ops->close(core->source.memory, 0);
    pthread_mutex_destroy(&core->source.lock);
    shards_clear(&core->shards);
    free(core);
}

static inline struct dctf_cluster_status status_of(struct core *core, unsigned i)
{
    struct dctf_cluster_status status;

    dctf_cluster_status(core->nodes[i].cluster, &status);
    return status;
}

struct wanted_peer {
    const char *id;
    struct dctf_peer_status status;
};

static inline bool find_peer(void *ctx, const struct dctf_peer_status *peer)
{
    struct wanted_peer *wanted = ctx;

    if (strcmp(peer->node.id, wanted->id) != 0)
        return true;
    wanted->status = *peer;
    return false;
}

/* What node `i` knows of the one at place `of`. */
static inline struct dctf_peer_status peer_of(struct core *core, unsigned i, unsigned of)
{
    struct wanted_peer wanted = {.id = core->places[of].addr};

    dctf_cluster_each_peer(core->nodes[i].cluster, find_peer, &wanted);
    return wanted.status;
}

static inline struct dctf_origin_memory_counts source_counts(struct core *core)
{
    struct dctf_origin_memory_counts counts;

    dctf_origin_memory_counts(core->memory, &counts);
    return counts;
}

/* --- shards --- */

static inline uint64_t extent_key(const struct shard *shard, uint32_t extent)
{
    return dctf_extent_key(DATASET, shard->key, shard->etag, extent);
}

/* The places of an extent's best `count`, as node 0 sees them. */
static inline void rank_places(
    struct core *core, const struct shard *shard, uint32_t extent, uint32_t *out, size_t count)
{
    struct dctf_view *view = dctf_cluster_view(core->nodes[0].cluster);
    uint32_t ranks[NODES];

    assert_int_equal(dctf_view_rank(view, extent_key(shard, extent), ranks, NODES), NODES);
    for (size_t r = 0; r < count; r++) {
        for (uint32_t i = 0; i < NODES; i++) {
            if (!strcmp(dctf_view_node(view, ranks[r])->id, core->places[i].addr))
                out[r] = i;
        }
    }
    dctf_view_unref(view);
}

/* An object whose first extent has its home at `home` and the second at `second`; and whose second extent,
 * if there is one, has its home at `next_home`. ANY: anywhere. */
static inline struct shard *make_shard(
    struct core *core, uint64_t size, uint32_t home, uint32_t second, uint32_t next_home)
{
    struct shard *shard = shards_add(&core->shards, size);
    bool found = false;

    for (unsigned i = 0; !found; i++) {
        uint32_t places[2], next = ANY;

        assert_true(i < 1000);
        snprintf(shard->key, sizeof(shard->key), "f%u/s%u", core->shards.count, i);
        assert_int_equal(dctf_origin_memory_put(core->memory, shard->key, shard->data, size), DCTF_OK);
        assert_int_equal(dctf_origin_memory_etag(core->memory, shard->key, shard->etag), DCTF_OK);
        rank_places(core, shard, 0, places, 2);
        if (next_home != ANY)
            rank_places(core, shard, 1, &next, 1);
        found =
            (home == ANY || places[0] == home) && (second == ANY || places[1] == second) && next == next_home;
        if (!found)
            assert_int_equal(dctf_origin_memory_delete(core->memory, shard->key), DCTF_OK);
    }
    return shard;
}

/* --- reads --- */

struct reading {
    struct dctf_origin_get get; /* first */
    const struct shard *shard;
    struct dctf_origin *origin;
    pthread_mutex_t lock;
    pthread_cond_t over;
    unsigned ended; /* guarded by lock, as is `err` */
    enum dctf_err err;
};

/* On any thread. */
static inline void reading_done(struct dctf_origin_get *get, enum dctf_err err, size_t got)
{
    struct reading *reading = (struct reading *)get;

    (void)got;
    pthread_mutex_lock(&reading->lock);
    reading->ended++;
    reading->err = err;
    pthread_cond_broadcast(&reading->over);
    pthread_mutex_unlock(&reading->lock);
}

/* Two steps, for who wants to know it before it begins. */
static inline struct reading *read_new(
    struct core *core, unsigned i, const struct shard *shard, uint64_t offset, uint64_t len)
{
    struct reading *reading = calloc(1, sizeof(*reading));

    assert_non_null(reading);
    pthread_mutex_init(&reading->lock, NULL);
    assert_int_equal(dctf_thread_cond_init(&reading->over), DCTF_OK);
    reading->shard = shard;
    reading->origin = dctf_cluster_origin(core->nodes[i].cluster);
    reading->get = (struct dctf_origin_get){
        .key = shard->key,
        .etag = shard->etag,
        .size = shard->size,
        .offset = offset,
        .len = len,
        .buf = calloc(1, len),
        .class = DCTF_FETCH_DEMAND,
        .done = reading_done,
    };
    assert_non_null(reading->get.buf);
    return reading;
}

static inline void read_go(struct reading *reading)
{
    assert_int_equal(reading->origin->ops->get(reading->origin, &reading->get), DCTF_OK);
}

static inline struct reading *read_start(
    struct core *core, unsigned i, const struct shard *shard, uint64_t offset, uint64_t len)
{
    struct reading *reading = read_new(core, i, shard, offset, len);

    read_go(reading);
    return reading;
}

static inline bool has_ended(struct reading *reading)
{
    bool ended;

    pthread_mutex_lock(&reading->lock);
    ended = reading->ended != 0;
    pthread_mutex_unlock(&reading->lock);
    return ended;
}

/* Its result, and what it read is right; within `ms`. Ends the reading. */
static inline enum dctf_err read_wait(struct reading *reading, uint64_t ms)
{
    struct timespec due = in_ms(ms);
    enum dctf_err err;
    int rc = 0;

    pthread_mutex_lock(&reading->lock);
    while (!reading->ended && !rc)
        rc = pthread_cond_timedwait(&reading->over, &reading->lock, &due);
    err = reading->err;
    assert_int_equal(reading->ended, 1);
    pthread_mutex_unlock(&reading->lock);
    if (!err)
        assert_memory_equal(reading->get.buf, reading->shard->data + reading->get.offset, reading->get.len);
    free(reading->get.buf);
    pthread_cond_destroy(&reading->over);
    pthread_mutex_destroy(&reading->lock);
    free(reading);
    return err;
}

static inline enum dctf_err read_whole(struct core *core, unsigned i, const struct shard *shard)
{
    return read_wait(read_start(core, i, shard, 0, shard->size), FOREVER_MS);
}

static inline void read_cancel(struct reading *reading)
{
    reading->origin->ops->cancel_get(reading->origin, &reading->get);
}

#endif
