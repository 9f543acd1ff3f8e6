/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests of what the nodes of a cluster tell each other of names: core_fixture.h, and at each node the
 * mount's part of it, which lists what the test wants, can be held, and counts.
 *
 * Threads:   the test's, but where it is marked; a host's fields are guarded by its lock.
 * Ownership: open_all() … close_all().
 */
#ifndef DCTF_TESTS_LISTINGS_FIXTURE_H
#define DCTF_TESTS_LISTINGS_FIXTURE_H

#include "core_fixture.h"

#define DIR_TRIES 1000u
#define ENTRY_BYTES 7u
#define WAITING_MAX 16u

struct waiting {
    void (*done)(void *ctx, enum dctf_err err, const struct dctf_listing_state *state);
    void *ctx;
};

struct host {
    struct core *core;
    unsigned node;
    pthread_mutex_t lock;
    /* guarded by lock */
    unsigned entries; /* of every directory */
    uint64_t age_ms;  /* of what it writes */
    unsigned listed, synced, evicted, stale;
    enum dctf_listing_course course;
    bool hold, knows;                 /* knows: word of a stale version is news */
    struct waiting held[WAITING_MAX]; /* all for `dir` */
    unsigned held_count;
    char dir[256];
};

static struct host hosts[NODES];

#define set_host(node, field, value)                                                                         \
    do {                                                                                                     \
        pthread_mutex_lock(&hosts[node].lock);                                                               \
        hosts[node].field = (value);                                                                         \
        pthread_mutex_unlock(&hosts[node].lock);                                                             \
    } while (0)

static inline bool is_held(struct host *host)
{
    bool held;

    pthread_mutex_lock(&host->lock);
    held = host->held_count != 0;
    pthread_mutex_unlock(&host->lock);
    return held;
}

static inline enum dctf_err write_listing(
    struct host *host, const char *dir, struct dctf_listing_state *state)
{
    struct dctf_listings *listings = dctf_store_listings(host->core->nodes[host->node].store);
    struct dctf_listing_writer *writer;
    uint64_t age_ms;
    unsigned entries;
    char name[256];

    pthread_mutex_lock(&host->lock);
    entries = host->entries;
    age_ms = host->age_ms;
    pthread_mutex_unlock(&host->lock);
    assert_int_equal(dctf_listing_begin(listings, dir, &writer), DCTF_OK);
    for (unsigned i = 0; i < entries; i++) {
        struct dctf_entry entry = {.name = name, .size = ENTRY_BYTES, .mtime_ns = 5, .etag = "e"};

        snprintf(name, sizeof(name), "entry-%0200u", i);
        assert_int_equal(dctf_listing_add(writer, &entry), DCTF_OK);
    }
    dctf_listing_set_age(writer, age_ms);
    return dctf_listing_commit(writer, state);
}

/* On any thread, as the next ones. */
static inline enum dctf_err host_resolve(void *ctx, const char *dir, uint64_t max_age_ms,
    void (*done)(void *done_ctx, enum dctf_err err, const struct dctf_listing_state *state), void *done_ctx)
{
    struct host *host = ctx;
    struct dctf_listing_state state;
    bool hold;

    (void)max_age_ms;
    pthread_mutex_lock(&host->lock);
    host->listed++;
    hold = host->hold;
    if (hold) {
        assert_true(host->held_count < WAITING_MAX);
        host->held[host->held_count++] = (struct waiting){done, done_ctx};
        snprintf(host->dir, sizeof(host->dir), "%s", dir);
    }
    pthread_mutex_unlock(&host->lock);
    if (!hold) {
        assert_int_equal(write_listing(host, dir, &state), DCTF_OK);
        done(done_ctx, DCTF_OK, &state);
    }
    return DCTF_OK;
}

static inline enum dctf_listing_course host_course(void *ctx, const char *dir)
{
    struct host *host = ctx;
    enum dctf_listing_course course;

    (void)dir;
    pthread_mutex_lock(&host->lock);
    course = host->course;
    pthread_mutex_unlock(&host->lock);
    return course;
}

static inline enum dctf_err host_sync(void *ctx, const char *path, bool force, uint64_t *directories)
{
    struct host *host = ctx;

    assert_string_equal(path, "a/b");
    assert_true(force);
    pthread_mutex_lock(&host->lock);
    host->synced++;
    pthread_mutex_unlock(&host->lock);
    *directories = 3;
    return DCTF_OK;
}

static inline enum dctf_err host_evict(
    void *ctx, const char *path, uint64_t *shards, uint64_t *bytes, uint64_t *busy)
{
    struct host *host = ctx;

    assert_string_equal(path, "");
    pthread_mutex_lock(&host->lock);
    host->evicted++;
    pthread_mutex_unlock(&host->lock);
    *shards = 1;
    *bytes = 1ull << 40;
    *busy = 2;
    return host->node == 2 ? DCTF_ERR_CACHE_IO : DCTF_OK;
}

static inline bool host_stale(void *ctx, const char *key, const char *etag, uint64_t size)
{
    struct host *host = ctx;
    bool knows;

    assert_true(!strncmp(key, "d", 1) && !strcmp(etag, "etag") && size == 9);
    pthread_mutex_lock(&host->lock);
    host->stale++;
    knows = host->knows;
    host->knows = false;
    pthread_mutex_unlock(&host->lock);
    return knows;
}

static inline unsigned count_of(struct host *host, const unsigned *count)
{
    unsigned now;

    pthread_mutex_lock(&host->lock);
    now = *count;
    pthread_mutex_unlock(&host->lock);
    return now;
}

static inline struct core *open_all(const char *what, unsigned entries)
{
    struct core *core = core_open(what, "");

    for (unsigned i = 0; i < NODES; i++) {
        struct dctf_listing_host host = {
            .ctx = &hosts[i],
            .resolve = host_resolve,
            .course = host_course,
            .sync = host_sync,
            .evict = host_evict,
            .stale = host_stale,
        };

        hosts[i] = (struct host){
            .core = core, .node = i, .entries = entries, .course = DCTF_LISTING_MOVING, .knows = true};
        pthread_mutex_init(&hosts[i].lock, NULL);
        if (what[i] == 'n')
            assert_int_equal(dctf_cluster_share_listings(core->nodes[i].cluster, &host), DCTF_OK);
    }
    return core;
}

static inline void close_all(struct core *core)
{
    core_close(core);
    for (unsigned i = 0; i < NODES; i++)
        pthread_mutex_destroy(&hosts[i].lock);
}

/* Answer who was held; what comes later is not. */
static inline void host_release(struct host *host, enum dctf_err err)
{
    struct waiting held[WAITING_MAX];
    struct dctf_listing_state state = {0};
    unsigned count;

    pthread_mutex_lock(&host->lock);
    host->hold = false;
    count = host->held_count;
    memcpy(held, host->held, sizeof(held));
    host->held_count = 0;
    pthread_mutex_unlock(&host->lock);
    assert_true(count > 0);
    if (!err)
        assert_int_equal(write_listing(host, host->dir, &state), DCTF_OK);
    for (unsigned i = 0; i < count; i++)
        held[i].done(held[i].ctx, err, &state);
}

/* A directory whose best two ranks are at these places (ANY: anywhere). */
static inline void name_dir(struct core *core, uint32_t home, uint32_t second, char *dir)
{
    struct dctf_view *view = dctf_cluster_view(core->nodes[0].cluster);
    bool found = false;

    for (unsigned i = 0; !found; i++) {
        uint32_t ranks[2], places[2] = {ANY, ANY};

        assert_true(i < DIR_TRIES);
        sprintf(dir, "d%u", i);
        assert_int_equal(dctf_listings_rank(view, DATASET, dir, ranks, 2), 2);
        for (unsigned r = 0; r < 2; r++)
            for (uint32_t p = 0; p < NODES; p++)
                if (!strcmp(dctf_view_node(view, ranks[r])->id, core->places[p].addr))
                    places[r] = p;
        found = places[0] == home && (second == ANY || places[1] == second);
    }
    dctf_view_unref(view);
}

#endif
