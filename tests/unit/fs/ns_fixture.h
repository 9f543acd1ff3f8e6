/* SPDX-License-Identifier: Apache-2.0
 *
 * A namespace over a database and a store in memory, whose listings can be held back; and waits that count
 * their answers. The wall clock is the test's, and the monotonic one can be put forward.
 *
 * Threads:   the test's; what callbacks leave is guarded by locks.
 * Ownership: setup() … teardown().
 */
#ifndef DCTF_TESTS_NS_FIXTURE_H
#define DCTF_TESTS_NS_FIXTURE_H

#include "base/metric.h"
#include "base/thread.h"
#include "base/timer.h"
#include "base/version.h"
#include "cache/heat.h"
#include "cache/kv.h"
#include "cache/listing.h"
#include "fs/inode.h"
#include "fs/ns.h"
#include "lib/origin_memory.h"
#include "transport/fetch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <ftw.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TTL_MS 60000u
#define FOREVER_S 60 /* for what comes at once */

/* An origin in front of another that can hold listings back. */
struct gate {
    struct dctf_origin base;
    struct dctf_origin *below;
    bool odd; /* answer with what only free-form keys and no real file can be; set before it is asked */
    pthread_mutex_t lock;
    bool closed; /* guarded by lock, as are the rest */
    struct dctf_origin_list *held[8];
    unsigned held_count;
    unsigned lists;
};

static inline void answer_odd(struct dctf_origin_list *list)
{
    static const struct dctf_origin_entry entries[] = {
        {.name = "fits", .size = DCTF_SIZE_MAX, .etag = "1"},
        {.name = "over", .size = DCTF_SIZE_MAX + 1, .etag = "1"},
        {.name = "huge", .size = UINT64_MAX, .etag = "1"},
        {.name = "", .etag = "1"}, /* the marker of the directory itself */
        {.name = "", .size = 1, .etag = "1"},
        {.name = "both", .size = 1, .etag = "1"},
        {.name = "both", .is_dir = true, .etag = ""},
    };

    list->page(list, entries, sizeof(entries) / sizeof(entries[0]));
    list->done(list, DCTF_OK);
}

static inline enum dctf_err gate_list(struct dctf_origin *base, struct dctf_origin_list *list)
{
    struct gate *gate = (struct gate *)base;
    bool closed;

    if (gate->odd) {
        answer_odd(list);
        return DCTF_OK;
    }
    pthread_mutex_lock(&gate->lock);
    gate->lists++;
    closed = gate->closed;
    if (closed)
        gate->held[gate->held_count++] = list;
    pthread_mutex_unlock(&gate->lock);
    return closed ? DCTF_OK : gate->below->ops->list(gate->below, list);
}

/* Take `list`, or any one when it is NULL, out of those held. */
static inline struct dctf_origin_list *gate_take(struct gate *gate, struct dctf_origin_list *list)
{
    struct dctf_origin_list *taken = NULL;

    pthread_mutex_lock(&gate->lock);
    for (unsigned i = 0; i < gate->held_count && !taken; i++) {
        if (list && gate->held[i] != list)
            continue;
        taken = gate->held[i];
        gate->held[i] = gate->held[--gate->held_count];
    }
    pthread_mutex_unlock(&gate->lock);
    return taken;
}

static inline void gate_cancel(struct dctf_origin *base, struct dctf_origin_list *list)
{
    if (gate_take((struct gate *)base, list))
        list->done(list, DCTF_ERR_CANCELLED);
}

static inline void gate_open(struct gate *gate)
{
    struct dctf_origin_list *list;

    pthread_mutex_lock(&gate->lock);
    gate->closed = false;
    pthread_mutex_unlock(&gate->lock);
    while ((list = gate_take(gate, NULL))) {
        if (gate->below->ops->list(gate->below, list))
            list->done(list, DCTF_ERR_ORIGIN_IO);
    }
}

static const struct dctf_origin_ops gate_ops = {
    .scheme = "gate", .list = gate_list, .cancel_list = gate_cancel};

static _Atomic uint64_t wall_now;

static inline uint64_t fake_wall(void *ctx)
{
    (void)ctx;
    return atomic_load(&wall_now);
}

/* Milliseconds that the monotonic clock of the namespace is ahead of the machine's. */
static _Atomic uint64_t mono_ahead;

static inline uint64_t fake_mono(void *ctx)
{
    (void)ctx;
    return dctf_clock_mono_ns(NULL) + atomic_load(&mono_ahead) * 1000000;
}

struct fixture {
    char dir[64];
    struct dctf_clock clock;
    struct dctf_heat_config heat;
    struct dctf_origin_memory *memory;
    struct gate gate;
    struct dctf_metrics *metrics;
    struct dctf_timers *timers;
    struct dctf_kv *kv;
    struct dctf_listings *listings;
    struct dctf_fetch *fetch;
    struct dctf_ns *ns;
};

static inline int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct dctf_kv_config kv;

    assert_non_null(f);
    atomic_store(&wall_now, 1700000000000u);
    f->clock.wall_ms = fake_wall;
    f->clock.mono_ns = fake_mono;
    f->heat = (struct dctf_heat_config){.half_life_ms = 1000, .ttl_ms = 1000000, .clock = &f->clock};
    strcpy(f->dir, "/tmp/dctf-ns-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    kv = (struct dctf_kv_config){.dir = f->dir,
        .block_cache_bytes = 4u << 20,
        .write_buffer_bytes = 4u << 20,
        .merge_record_bytes = dctf_heat_record_bytes(),
        .merge = dctf_heat_merge,
        .expired = dctf_heat_expired,
        .ctx = &f->heat};
    assert_int_equal(dctf_origin_memory_new(&f->memory), DCTF_OK);
    f->gate.base.ops = &gate_ops;
    f->gate.below = dctf_origin_memory_base(f->memory);
    pthread_mutex_init(&f->gate.lock, NULL);
    assert_int_equal(dctf_metrics_new(&f->metrics), DCTF_OK);
    assert_int_equal(dctf_timers_new(&f->timers), DCTF_OK);
    assert_int_equal(dctf_kv_open(&kv, &f->kv), DCTF_OK);
    assert_int_equal(dctf_listings_new(f->kv, 1, &f->clock, &f->listings), DCTF_OK);
    assert_int_equal(dctf_fetch_new(&(struct dctf_fetch_config){.origin = &f->gate.base,
                                        .timers = f->timers,
                                        .metrics = f->metrics,
                                        .concurrency = 8,
                                        .retries = 0},
                         &f->fetch),
        DCTF_OK);
    assert_int_equal(dctf_ns_new(&(struct dctf_ns_config){.fetch = f->fetch,
                                     .listings = f->listings,
                                     .timers = f->timers,
                                     .metrics = f->metrics,
                                     .clock = &f->clock,
                                     .ttl_ms = TTL_MS,
                                     .silence_ms = 5000},
                         &f->ns),
        DCTF_OK);
    *state = f;
    return 0;
}

static inline int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static inline int teardown(void **state)
{
    struct fixture *f = *state;

    dctf_ns_stop(f->ns);
    dctf_fetch_free(f->fetch);
    dctf_ns_free(f->ns);
    dctf_listings_free(f->listings);
    dctf_kv_close(f->kv);
    dctf_timers_free(f->timers);
    dctf_metrics_free(f->metrics);
    f->gate.below->ops->close(f->gate.below, 1000);
    nftw(f->dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    free(f);
    return 0;
}

static inline void put(struct fixture *f, const char *key)
{
    assert_int_equal(dctf_origin_memory_put(f->memory, key, key, strlen(key)), DCTF_OK);
}

/* A wait that counts its answers. */
struct waiter {
    struct dctf_ns_wait wait;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    int answers; /* guarded by lock */
    enum dctf_err err;
    struct dctf_listing_state state;
};

static inline void on_answer(
    struct dctf_ns_wait *wait, enum dctf_err err, const struct dctf_listing_state *state)
{
    struct waiter *waiter = (struct waiter *)wait;

    pthread_mutex_lock(&waiter->lock);
    waiter->answers++;
    waiter->err = err;
    if (!err)
        waiter->state = *state;
    pthread_cond_signal(&waiter->cond);
    pthread_mutex_unlock(&waiter->lock);
}

static inline void waiter_init(struct waiter *waiter)
{
    memset(waiter, 0, sizeof(*waiter));
    waiter->wait.done = on_answer;
    pthread_mutex_init(&waiter->lock, NULL);
    assert_int_equal(dctf_thread_cond_init(&waiter->cond), DCTF_OK);
}

static inline void ask(struct fixture *f, const char *dir, struct waiter *waiter)
{
    waiter_init(waiter);
    assert_int_equal(dctf_ns_resolve(f->ns, dir, &waiter->wait), DCTF_OK);
}

static inline enum dctf_err answered(struct waiter *waiter)
{
    struct timespec due;
    int rc = 0;

    clock_gettime(CLOCK_MONOTONIC, &due);
    due.tv_sec += FOREVER_S;
    pthread_mutex_lock(&waiter->lock);
    while (!waiter->answers && !rc)
        rc = pthread_cond_timedwait(&waiter->cond, &waiter->lock, &due);
    assert_int_equal(waiter->answers, 1);
    pthread_mutex_unlock(&waiter->lock);
    return waiter->err;
}

#endif
