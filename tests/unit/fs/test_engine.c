/* SPDX-License-Identifier: Apache-2.0
 *
 * The read engine on a real store and scheduler, with an origin whose answers the test
 * holds back and gives when it likes.
 */
#include "base/budget.h"
#include "base/metric.h"
#include "base/pool.h"
#include "base/timer.h"
#include "cache/store.h"
#include "fs/engine.h"
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

#define BLOCK DCTF_BLOCK_BYTES
#define HELD_MAX 4096

/* An origin that answers at once, or holds requests until they are let go. */
struct held_origin {
    struct dctf_origin base;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool hold; /* guarded by lock; so are the rest */
    struct dctf_origin_get *held[HELD_MAX];
    size_t held_count;
    size_t gets;
    uint64_t bytes;
    size_t largest;
    enum dctf_err fail_with;
};

static unsigned char byte_at(uint64_t offset)
{
    return (unsigned char)(offset * 31 + offset / 4096 + offset / 1000003);
}

static void answer(struct held_origin *origin, struct dctf_origin_get *get)
{
    enum dctf_err err = origin->fail_with;

    for (size_t i = 0; !err && i < get->len; i++)
        ((unsigned char *)get->buf)[i] = byte_at(get->offset + i);
    get->done(get, err, err ? 0 : get->len);
}

static enum dctf_err held_get(struct dctf_origin *base, struct dctf_origin_get *get)
{
    struct held_origin *origin = (struct held_origin *)base;
    bool hold;

    pthread_mutex_lock(&origin->lock);
    origin->gets++;
    origin->bytes += get->len;
    if (get->len > origin->largest)
        origin->largest = get->len;
    hold = origin->hold;
    if (hold)
        origin->held[origin->held_count++] = get;
    pthread_cond_broadcast(&origin->cond);
    pthread_mutex_unlock(&origin->lock);
    if (!hold)
        answer(origin, get);
    return DCTF_OK;
}

static void held_cancel(struct dctf_origin *base, struct dctf_origin_get *get)
{
    struct held_origin *origin = (struct held_origin *)base;
    bool found = false;

    pthread_mutex_lock(&origin->lock);
    for (size_t i = 0; i < origin->held_count; i++) {
        if (origin->held[i] == get) {
            origin->held[i] = origin->held[--origin->held_count];
            found = true;
            break;
        }
    }
    pthread_mutex_unlock(&origin->lock);
    if (found)
        get->done(get, DCTF_ERR_CANCELLED, 0);
}

static void held_wait(struct held_origin *origin, size_t gets)
{
    pthread_mutex_lock(&origin->lock);
    while (origin->gets < gets)
        pthread_cond_wait(&origin->cond, &origin->lock);
    pthread_mutex_unlock(&origin->lock);
}

static void held_release(struct held_origin *origin)
{
    for (;;) {
        struct dctf_origin_get *get = NULL;

        pthread_mutex_lock(&origin->lock);
        origin->hold = false;
        if (origin->held_count)
            get = origin->held[--origin->held_count];
        pthread_mutex_unlock(&origin->lock);
        if (!get)
            return;
        answer(origin, get);
    }
}

static const struct dctf_origin_ops held_ops = {.scheme = "held", .get = held_get, .cancel_get = held_cancel};

struct fixture {
    char dir[64];
    struct held_origin origin;
    struct dctf_metrics *metrics;
    struct dctf_timers *timers;
    struct dctf_budget *budget;
    struct dctf_pool *pool;
    struct dctf_store *store;
    struct dctf_fetch *fetch;
    struct dctf_engine *engine;
    struct dctf_version *version;
    struct dctf_source *source;
};

static uint64_t budget_bytes = 64u << 20;
static uint64_t deadline_ms = 20000;
static uint64_t cache_bytes = 1u << 30;

static void build(struct fixture *f, uint64_t size)
{
    struct dctf_store_config store = {.dir = f->dir,
        .size_bytes = cache_bytes,
        .memory_bytes = 32u << 20,
        .heat_half_life_ms = 3600000,
        .heat_ttl_ms = 86400000};
    struct dctf_fetch_config fetch;
    struct dctf_engine_config engine;

    strcpy(f->dir, "/tmp/dctf-engine-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    f->origin.base.ops = &held_ops;
    pthread_mutex_init(&f->origin.lock, NULL);
    pthread_cond_init(&f->origin.cond, NULL);
    assert_int_equal(dctf_metrics_new(&f->metrics), DCTF_OK);
    assert_int_equal(dctf_timers_new(&f->timers), DCTF_OK);
    assert_int_equal(dctf_budget_new(budget_bytes, &f->budget), DCTF_OK);
    assert_int_equal(
        dctf_pool_new(&(struct dctf_pool_config){.name = "t", .threads = 2, .queue_max = 64}, &f->pool),
        DCTF_OK);
    store.metrics = f->metrics;
    assert_int_equal(dctf_store_open(&store, NULL, &f->store), DCTF_OK);
    fetch = (struct dctf_fetch_config){.origin = &f->origin.base,
        .timers = f->timers,
        .metrics = f->metrics,
        .concurrency = 16,
        .retries = 0,
        .seed = 1};
    assert_int_equal(dctf_fetch_new(&fetch, &f->fetch), DCTF_OK);
    engine = (struct dctf_engine_config){.store = f->store,
        .fetch = f->fetch,
        .budget = f->budget,
        .timers = f->timers,
        .pool = f->pool,
        .metrics = f->metrics,
        .read_deadline_ms = deadline_ms,
        .fetch_max = 8u << 20,
        .readahead = 32u << 20};
    assert_int_equal(dctf_engine_new(&engine, &f->engine), DCTF_OK);
    assert_int_equal(
        dctf_version_new(1, "f/shard", "v1", size, DCTF_FEATURE_BY_DIRECTORY, &f->version), DCTF_OK);
    assert_int_equal(dctf_engine_get(f->engine, f->version, &f->source), DCTF_OK);
    dctf_shard_touch(dctf_source_shard(f->source));
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static void tear_down(struct fixture *f)
{
    dctf_engine_put(f->engine, f->source);
    dctf_engine_stop(f->engine);
    dctf_fetch_free(f->fetch);
    dctf_pool_free(f->pool);
    assert_true(dctf_engine_free(f->engine));
    dctf_store_close(f->store);
    assert_int_equal(dctf_budget_used(f->budget), 0);
    assert_int_equal(dctf_metric_get(f->metrics, DCTF_METRIC_READS_WAITING), 0);
    dctf_budget_free(f->budget);
    dctf_timers_free(f->timers);
    dctf_metrics_free(f->metrics);
    dctf_version_unref(f->version);
    nftw(f->dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* A read and what came of it. */
struct result {
    struct dctf_read read;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    int done; /* times done() ran; guarded by lock */
    enum dctf_err err;
    bool right;
};

static void on_done(struct dctf_read *read, enum dctf_err err, const struct iovec *pieces, int count)
{
    struct result *result = read->ctx;
    uint64_t at = read->offset;
    bool right = true;

    for (int i = 0; i < count; i++) {
        for (size_t j = 0; j < pieces[i].iov_len; j++)
            right &= ((unsigned char *)pieces[i].iov_base)[j] == byte_at(at++);
    }
    pthread_mutex_lock(&result->lock);
    result->done++;
    result->err = err;
    result->right = right && (err || at == read->offset + read->len);
    pthread_cond_broadcast(&result->cond);
    pthread_mutex_unlock(&result->lock);
}

static void start_read(
    struct fixture *f, struct dctf_stream *stream, uint64_t offset, size_t len, struct result *result)
{
    memset(result, 0, sizeof(*result));
    pthread_mutex_init(&result->lock, NULL);
    pthread_cond_init(&result->cond, NULL);
    result->read =
        (struct dctf_read){.stream = stream, .offset = offset, .len = len, .done = on_done, .ctx = result};
    dctf_stream_note(stream, offset, len);
    dctf_engine_read(f->engine, &result->read);
}

static enum dctf_err wait_read(struct result *result)
{
    pthread_mutex_lock(&result->lock);
    while (!result->done)
        pthread_cond_wait(&result->cond, &result->lock);
    assert_int_equal(result->done, 1);
    assert_true(result->right);
    pthread_mutex_unlock(&result->lock);
    return result->err;
}

static enum dctf_err read_once(struct fixture *f, struct dctf_stream *stream, uint64_t offset, size_t len)
{
    struct result result;

    start_read(f, stream, offset, len, &result);
    return wait_read(&result);
}

static void test_read_fetches_once_and_is_then_warm(void **state)
{
    struct fixture f = {0};
    struct dctf_stream stream;
    static unsigned char buf[100];

    (void)state;
    build(&f, 4 * BLOCK + 5000);
    dctf_stream_init(&stream, f.source);
    assert_int_equal(dctf_engine_read_now(f.engine, &stream, 0, sizeof(buf), buf), DCTF_ERR_MISS);
    assert_int_equal(read_once(&f, &stream, BLOCK - 50, 100), DCTF_OK);      /* across two blocks */
    assert_int_equal(read_once(&f, &stream, 4 * BLOCK + 4990, 10), DCTF_OK); /* the short last block */
    assert_int_equal(f.origin.bytes, 2 * BLOCK + 5000);
    while (dctf_pool_load(f.pool))
        sched_yield();
    assert_int_equal(dctf_engine_read_now(f.engine, &stream, BLOCK - 50, 100, buf), DCTF_OK);
    for (int i = 0; i < 100; i++)
        assert_int_equal(buf[i], byte_at(BLOCK - 50 + (uint64_t)i));
    assert_int_equal(f.origin.bytes, 2 * BLOCK + 5000);
    dctf_stream_fini(&stream);
    tear_down(&f);
}

static void test_read_of_many_is_one_flight(void **state)
{
    enum { READERS = 16 };
    struct fixture f = {0};
    struct dctf_stream streams[READERS];
    static struct result results[READERS];

    (void)state;
    build(&f, 8 * BLOCK);
    f.origin.hold = true;
    for (int i = 0; i < READERS; i++) {
        dctf_stream_init(&streams[i], f.source);
        start_read(&f, &streams[i], 3 * BLOCK + (uint64_t)i, 1000, &results[i]);
    }
    held_wait(&f.origin, 1);
    held_release(&f.origin);
    for (int i = 0; i < READERS; i++) {
        assert_int_equal(wait_read(&results[i]), DCTF_OK);
        dctf_stream_fini(&streams[i]);
    }
    assert_int_equal(f.origin.gets, 1);
    tear_down(&f);
}

static void test_interrupt_ends_a_parked_read_at_once(void **state)
{
    struct fixture f = {0};
    struct dctf_stream stream;
    struct result result;

    (void)state;
    build(&f, 8 * BLOCK);
    f.origin.hold = true;
    dctf_stream_init(&stream, f.source);
    start_read(&f, &stream, 0, 1000, &result);
    held_wait(&f.origin, 1);
    dctf_engine_interrupt(f.engine, &result.read);
    assert_int_equal(wait_read(&result), DCTF_ERR_INTERRUPTED);
    held_release(&f.origin); /* the fetch goes on, for the next reader */
    assert_int_equal(read_once(&f, &stream, 0, 1000), DCTF_OK);
    assert_int_equal(f.origin.gets, 1);
    dctf_stream_fini(&stream);
    tear_down(&f);
}

static void test_read_ends_at_its_deadline(void **state)
{
    struct fixture f = {0};
    struct dctf_stream stream;
    size_t before;

    (void)state;
    deadline_ms = 50;
    build(&f, 8 * BLOCK);
    deadline_ms = 20000;
    f.origin.hold = true;
    dctf_stream_init(&stream, f.source);
    assert_int_equal(read_once(&f, &stream, 0, 1000), DCTF_ERR_DEADLINE);
    before = f.origin.gets; /* the kernel asks again at once: that is not waited for */
    assert_int_equal(read_once(&f, &stream, 0, 1000), DCTF_ERR_DEADLINE);
    assert_int_equal(f.origin.gets, before);
    dctf_stream_fini(&stream);
    held_release(&f.origin);
    tear_down(&f);
}

static void test_stop_ends_parked_reads(void **state)
{
    struct fixture f = {0};
    struct dctf_stream stream;
    struct result result;

    (void)state;
    build(&f, 8 * BLOCK);
    f.origin.hold = true;
    dctf_stream_init(&stream, f.source);
    start_read(&f, &stream, 0, 1000, &result);
    held_wait(&f.origin, 1);
    dctf_engine_stop(f.engine);
    assert_int_equal(wait_read(&result), DCTF_ERR_SHUTTING_DOWN);
    assert_int_equal(read_once(&f, &stream, 0, 1000), DCTF_ERR_SHUTTING_DOWN);
    dctf_stream_fini(&stream);
    tear_down(&f);
}

static void test_read_of_a_version_that_is_gone_says_so(void **state)
{
    struct fixture f = {0};
    struct dctf_stream stream;

    (void)state;
    build(&f, 8 * BLOCK);
    dctf_stream_init(&stream, f.source);
    f.origin.fail_with = DCTF_ERR_NOT_FOUND;
    assert_int_equal(read_once(&f, &stream, 0, 1000), DCTF_ERR_VERSION_MISMATCH);
    f.origin.fail_with = DCTF_ERR_ORIGIN_IO;
    assert_int_equal(read_once(&f, &stream, 0, 1000), DCTF_ERR_ORIGIN_IO);
    f.origin.fail_with = DCTF_OK; /* an error is not remembered */
    assert_int_equal(read_once(&f, &stream, 0, 1000), DCTF_OK);
    dctf_stream_fini(&stream);
    tear_down(&f);
}

static void test_random_reads_fetch_single_blocks(void **state)
{
    struct fixture f = {0};
    struct dctf_stream stream;
    struct dctf_rng rng = {42};
    uint64_t blocks = 400;

    (void)state;
    build(&f, blocks * BLOCK);
    dctf_stream_init(&stream, f.source);
    for (int i = 0; i < 100; i++) {
        uint64_t block = dctf_rng_below(&rng, blocks);

        assert_int_equal(read_once(&f, &stream, block * BLOCK + 4096, 4096), DCTF_OK);
        dctf_engine_ahead(f.engine, &stream);
    }
    assert_true(f.origin.bytes <= 100u * BLOCK);
    assert_int_equal(f.origin.largest, BLOCK);
    dctf_stream_fini(&stream);
    tear_down(&f);
}

static void test_sequential_reads_grow_the_unit_and_waste_nothing(void **state)
{
    struct fixture f = {0};
    struct dctf_stream stream;
    uint64_t size = 200 * (uint64_t)BLOCK + 77;

    (void)state;
    build(&f, size);
    dctf_stream_init(&stream, f.source);
    for (uint64_t at = 0; at < size; at += 128 * 1024) {
        size_t len = size - at < 128 * 1024 ? (size_t)(size - at) : 128 * 1024;

        assert_int_equal(read_once(&f, &stream, at, len), DCTF_OK);
        dctf_engine_ahead(f.engine, &stream);
    }
    assert_int_equal(f.origin.bytes, size);
    assert_true(f.origin.largest > 2u << 20);
    /* 6 of 1 MiB, 4 of 2, 3 of 4, then 8 MiB each: no piece is left over where the unit grows. */
    assert_true(f.origin.gets <= 18);
    dctf_stream_fini(&stream);
    tear_down(&f);
}

static void test_readers_share_little_memory(void **state)
{
    enum { READERS = 64 };
    struct fixture f = {0};
    struct dctf_stream streams[READERS];
    static struct result results[READERS];

    (void)state;
    budget_bytes = 4u << 20; /* far less than the readers want at once */
    cache_bytes = 1;         /* and the tiers keep nothing */
    build(&f, 600 * (uint64_t)BLOCK);
    budget_bytes = 64u << 20;
    cache_bytes = 1u << 30;
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < READERS; i++) {
            dctf_stream_init(&streams[i], f.source);
            start_read(&f, &streams[i], ((uint64_t)i * 8 + (uint64_t)round) * BLOCK - (i ? 1000 : 0), 300000,
                &results[i]);
        }
        for (int i = 0; i < READERS; i++) {
            assert_int_equal(wait_read(&results[i]), DCTF_OK);
            dctf_stream_fini(&streams[i]);
        }
    }
    tear_down(&f);
}

static void test_small_shards_travel_whole(void **state)
{
    struct fixture f = {0};
    struct dctf_stream stream;

    (void)state;
    build(&f, 3 * BLOCK + 9);
    dctf_stream_init(&stream, f.source);
    assert_int_equal(read_once(&f, &stream, 2 * BLOCK + 5, 10), DCTF_OK);
    assert_int_equal(f.origin.gets, 1);
    assert_int_equal(f.origin.bytes, 3 * BLOCK + 9);
    dctf_stream_fini(&stream);
    tear_down(&f);
}

static void test_warm_brings_the_rest(void **state)
{
    struct fixture f = {0};
    struct dctf_stream stream;
    struct dctf_warm_result result;
    uint64_t size = 40 * (uint64_t)BLOCK + 1;

    (void)state;
    build(&f, size);
    dctf_stream_init(&stream, f.source);
    assert_int_equal(read_once(&f, &stream, 20 * BLOCK, 100), DCTF_OK);
    assert_int_equal(dctf_engine_warm(f.engine, f.source, &result), DCTF_OK);
    assert_true(result.kept);
    assert_true(dctf_shard_is_complete(dctf_source_shard(f.source)));
    assert_int_equal(f.origin.bytes, size);
    assert_int_equal(dctf_engine_warm(f.engine, f.source, &result), DCTF_OK);
    assert_int_equal(result.fetched_bytes, 0);
    dctf_stream_fini(&stream);
    tear_down(&f);
}

static void test_prefetch_is_joined_and_promoted(void **state)
{
    struct fixture f = {0};
    struct dctf_stream stream;
    struct result result;

    (void)state;
    build(&f, 2 * BLOCK);
    f.origin.hold = true;
    dctf_stream_init(&stream, f.source);
    assert_int_equal(dctf_engine_prefetch(f.engine, f.source, UINT64_MAX), 2 * BLOCK);
    held_wait(&f.origin, 1);
    start_read(&f, &stream, 10, 10, &result);
    held_release(&f.origin);
    assert_int_equal(wait_read(&result), DCTF_OK);
    assert_int_equal(f.origin.gets, 1);
    dctf_stream_fini(&stream);
    tear_down(&f);
}

static void wait_written(struct fixture *f)
{
    while (dctf_pool_load(f->pool))
        sched_yield();
}

static uint64_t bytes_in_memory(struct fixture *f)
{
    struct dctf_engine_stats stats;

    dctf_engine_stats(f->engine, &stats);
    return stats.chunk_bytes;
}

/* Its reader need not wait for the disk; what nobody is on the way to leaves memory for the tiers. */
static void test_read_ahead_stays_until_it_is_read(void **state)
{
    struct fixture f = {0};
    struct dctf_stream stream;
    struct dctf_warm_result result = {.kept = true};
    static unsigned char buf[4096];

    (void)state;
    build(&f, 24 * (uint64_t)BLOCK);
    dctf_stream_init(&stream, f.source);
    assert_int_equal(dctf_engine_prefetch(f.engine, f.source, 8 * (uint64_t)BLOCK), 8 * BLOCK);
    assert_int_equal(dctf_engine_warm_blocks(f.engine, f.source, 16, 24, &result), DCTF_OK);
    wait_written(&f);
    assert_true(dctf_shard_is_present(dctf_source_shard(f.source), 7));
    assert_int_equal(bytes_in_memory(&f), 8 * BLOCK);
    assert_int_equal(dctf_engine_read_now(f.engine, &stream, 0, sizeof(buf), buf), DCTF_ERR_MISS);
    for (uint64_t at = 0; at < 8 * BLOCK; at += BLOCK)
        assert_int_equal(read_once(&f, &stream, at, BLOCK), DCTF_OK);
    assert_int_equal(dctf_metric_get(f.metrics, DCTF_METRIC_READ_BYTES_WARM), 0);
    assert_int_equal(bytes_in_memory(&f), 0);
    assert_int_equal(dctf_engine_read_now(f.engine, &stream, 0, sizeof(buf), buf), DCTF_OK);
    assert_int_equal(f.origin.bytes, 16 * BLOCK);
    dctf_stream_fini(&stream);
    tear_down(&f);
}

static bool is_done(struct result *result)
{
    bool done;

    pthread_mutex_lock(&result->lock);
    done = result->done > 0;
    pthread_mutex_unlock(&result->lock);
    return done;
}

static size_t held_gets(struct held_origin *origin)
{
    size_t gets;

    pthread_mutex_lock(&origin->lock);
    gets = origin->gets;
    pthread_mutex_unlock(&origin->lock);
    return gets;
}

/* The read came later, so it has time left when the read-ahead it joined has none. */
static void test_deadline_of_read_ahead_is_not_that_of_a_read(void **state)
{
    struct fixture f = {0};
    struct dctf_stream stream;
    struct result result;

    (void)state;
    deadline_ms = 3000;
    build(&f, 2 * BLOCK);
    deadline_ms = 20000;
    f.origin.hold = true;
    dctf_stream_init(&stream, f.source);
    assert_int_equal(dctf_engine_prefetch(f.engine, f.source, UINT64_MAX), 2 * BLOCK);
    held_wait(&f.origin, 1);
    usleep(1500 * 1000); /* of real time: the engine's deadlines know no other */
    start_read(&f, &stream, 10, 10, &result);
    while (held_gets(&f.origin) < 2 && !is_done(&result))
        usleep(1000);
    held_release(&f.origin);
    assert_int_equal(wait_read(&result), DCTF_OK);
    assert_int_equal(f.origin.gets, 2);
    dctf_stream_fini(&stream);
    tear_down(&f);
}

/* Readers, interrupts and late answers at once; for the sanitizers. */
struct hammer {
    struct fixture *f;
    uint64_t seed;
};

static void *hammer_thread(void *arg)
{
    struct hammer *hammer = arg;
    struct dctf_rng rng = {hammer->seed};
    struct dctf_stream stream;

    dctf_stream_init(&stream, hammer->f->source);
    for (int i = 0; i < 300; i++) {
        uint64_t size = hammer->f->version->size;
        size_t len = 1 + (size_t)dctf_rng_below(&rng, 700000);
        uint64_t at = dctf_rng_below(&rng, size - len);
        struct result result;
        enum dctf_err err;

        start_read(hammer->f, &stream, at, len, &result);
        if (dctf_rng_below(&rng, 4) == 0)
            dctf_engine_interrupt(hammer->f->engine, &result.read);
        dctf_engine_ahead(hammer->f->engine, &stream);
        err = wait_read(&result);
        assert_true(err == DCTF_OK || err == DCTF_ERR_INTERRUPTED);
    }
    dctf_stream_fini(&stream);
    return NULL;
}

static void test_hammer_reads_and_interrupts(void **state)
{
    enum { THREADS = 6 };
    struct fixture f = {0};
    struct hammer hammers[THREADS];
    pthread_t threads[THREADS];

    (void)state;
    budget_bytes = 16u << 20;
    cache_bytes = 60u << 20; /* half of the shard: the tiers keep a part */
    build(&f, 480 * (uint64_t)BLOCK);
    budget_bytes = 64u << 20;
    cache_bytes = 1u << 30;
    for (int i = 0; i < THREADS; i++) {
        hammers[i] = (struct hammer){&f, (uint64_t)i + 1};
        assert_int_equal(pthread_create(&threads[i], NULL, hammer_thread, &hammers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read_fetches_once_and_is_then_warm),
        cmocka_unit_test(test_read_of_many_is_one_flight),
        cmocka_unit_test(test_interrupt_ends_a_parked_read_at_once),
        cmocka_unit_test(test_read_ends_at_its_deadline),
        cmocka_unit_test(test_stop_ends_parked_reads),
        cmocka_unit_test(test_read_of_a_version_that_is_gone_says_so),
        cmocka_unit_test(test_random_reads_fetch_single_blocks),
        cmocka_unit_test(test_sequential_reads_grow_the_unit_and_waste_nothing),
        cmocka_unit_test(test_readers_share_little_memory),
        cmocka_unit_test(test_small_shards_travel_whole),
        cmocka_unit_test(test_warm_brings_the_rest),
        cmocka_unit_test(test_prefetch_is_joined_and_promoted),
        cmocka_unit_test(test_read_ahead_stays_until_it_is_read),
        cmocka_unit_test(test_deadline_of_read_ahead_is_not_that_of_a_read),
        cmocka_unit_test(test_hammer_reads_and_interrupts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
