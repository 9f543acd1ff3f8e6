/* SPDX-License-Identifier: Apache-2.0
 *
 * Chunks: runs of blocks on their way from the source to readers and tiers. The states
 * are in fs/engine.h; every move is made here, under the engine's lock.
 */
#include "fs/chunk.h"

#include "base/metric.h"
#include "base/pool.h"
#include "cache/store.h"

#include <assert.h>
#include <stdlib.h>

#define IDLE_MS 5000u
#define BACKLOG_MAX_BYTES (64u * 1024u * 1024u)

void engine_lock(struct dctf_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
}

static void tell_hungry_locked(struct dctf_engine *engine)
{
    if (!dctf_list_empty(&engine->hungry)) {
        engine->memory_freed = true;
        pthread_cond_signal(&engine->work);
    }
}

void engine_unlock(struct dctf_engine *engine)
{
    struct dctf_chunk *dead = engine->dead;
    bool freed = dead != NULL;

    engine->dead = NULL;
    pthread_mutex_unlock(&engine->lock);
    while (dead) {
        struct dctf_chunk *next = dead->dead_next;

        if (dead->buf)
            dctf_budget_buf_put(engine->config.budget, dead->buf, dead->len);
        dctf_engine_put(engine, dead->source);
        free(dead);
        dead = next;
    }
    if (freed) { /* told only now: a read that looked before the buffer was back would wait on */
        pthread_mutex_lock(&engine->lock);
        tell_hungry_locked(engine);
        pthread_mutex_unlock(&engine->lock);
    }
}

void chunk_ref_locked(struct dctf_chunk *chunk)
{
    chunk->refs++;
}

void chunk_unref_locked(struct dctf_chunk *chunk)
{
    struct dctf_engine *engine = chunk->engine;

    assert(chunk->refs > 0);
    if (--chunk->refs == 0) {
        assert(!chunk->mapped && dctf_list_empty(&chunk->waiters));
        engine->chunk_count--;
        engine->chunk_bytes -= chunk->len;
        chunk->dead_next = engine->dead;
        engine->dead = chunk;
    }
    if (chunk->refs == 1) /* may be evicted now; one that is gone is told of in engine_unlock() */
        tell_hungry_locked(engine);
}

void chunk_unmap_locked(struct dctf_chunk *chunk)
{
    assert(chunk->mapped);
    for (uint32_t i = 0; i < chunk->count; i++)
        chunk->source->map[chunk->first + i] = NULL;
    chunk->mapped = false;
    atomic_fetch_sub_explicit(&chunk->source->mapped, 1, memory_order_relaxed);
    chunk->source->drops++;
    dctf_list_remove(&chunk->lru);
    chunk_unref_locked(chunk);
}

/* Give the memory of the coldest idle chunk back. False when there is none. */
static bool evict_one_locked(struct dctf_engine *engine)
{
    for (struct dctf_list *node = engine->lru.next; node != &engine->lru; node = node->next) {
        struct dctf_chunk *chunk = dctf_list_entry(node, struct dctf_chunk, lru);

        if (chunk->refs == 1) {
            dctf_budget_buf_put(engine->config.budget, chunk->buf, chunk->len);
            chunk->buf = NULL;
            chunk_unmap_locked(chunk);
            return true;
        }
    }
    return false;
}

/* Read-ahead leaves a quarter of the budget to demand, evicts only what was read or is in the tiers, and
 * waits for the disk when that falls behind: buffers that are reused soon are still in the processor's cache.
 */
static void *buffer_get_locked(struct dctf_engine *engine, size_t len, enum dctf_fetch_class class)
{
    struct dctf_budget *budget = engine->config.budget;
    uint64_t room = dctf_budget_limit(budget) / 4 * (class == DCTF_FETCH_DEMAND ? 4 : 3);
    void *buf = NULL;

    if (class != DCTF_FETCH_DEMAND && engine->unwritten_bytes > BACKLOG_MAX_BYTES)
        return NULL;
    while (dctf_budget_used(budget) + len > room || !(buf = dctf_budget_buf_get(budget, len))) {
        struct dctf_chunk *coldest =
            dctf_list_empty(&engine->lru) ? NULL : dctf_list_entry(engine->lru.next, struct dctf_chunk, lru);

        if (class != DCTF_FETCH_DEMAND && coldest && coldest->read_bytes < coldest->len && !coldest->kept)
            return NULL;
        if (!evict_one_locked(engine))
            return NULL;
    }
    return buf;
}

struct dctf_chunk *chunk_new_locked(struct dctf_engine *engine, struct dctf_source *source, uint32_t first,
    uint32_t count, enum dctf_fetch_class class)
{
    uint64_t start = (uint64_t)first * DCTF_BLOCK_BYTES;
    uint64_t end = (uint64_t)(first + count) * DCTF_BLOCK_BYTES;
    struct dctf_chunk *chunk;

    if (!source->map)
        source->map = calloc(source->blocks, sizeof(struct dctf_chunk *));
    chunk = calloc(1, sizeof(*chunk));
    if (!source->map || !chunk)
        goto fail;
    chunk->len = (size_t)((end < source->version->size ? end : source->version->size) - start);
    chunk->buf = buffer_get_locked(engine, chunk->len, class);
    if (!chunk->buf)
        goto fail;
    dctf_list_init(&chunk->lru);
    dctf_list_init(&chunk->waiters);
    chunk->engine = engine;
    chunk->source = source;
    source->refs++;
    chunk->first = first;
    chunk->count = count;
    chunk->class = class;
    chunk->began_ahead = class != DCTF_FETCH_DEMAND;
    chunk->refs = 2; /* map and transfer */
    chunk->mapped = true;
    atomic_fetch_add_explicit(&source->mapped, 1, memory_order_relaxed);
    for (uint32_t i = 0; i < count; i++) {
        assert(!source->map[first + i]);
        source->map[first + i] = chunk;
    }
    engine->chunk_count++;
    engine->chunk_bytes += chunk->len;
    return chunk;
fail:
    free(chunk);
    return NULL;
}

void chunks_expire_locked(struct dctf_engine *engine)
{
    uint64_t now = dctf_clock_mono_ms(NULL);
    struct dctf_list *node = engine->lru.next;

    while (node != &engine->lru) {
        struct dctf_chunk *chunk = dctf_list_entry(node, struct dctf_chunk, lru);

        node = node->next;
        if (chunk->refs == 1 && now - chunk->used_ms > IDLE_MS)
            chunk_unmap_locked(chunk);
    }
}

void chunk_consumed_locked(struct dctf_chunk *chunk, size_t bytes)
{
    chunk->read_bytes += bytes;
    chunk->used_ms = dctf_clock_mono_ms(NULL);
    if (chunk->read_bytes < chunk->len || !chunk->mapped)
        return;
    if (chunk->kept) {
        chunk_unmap_locked(chunk);
    } else {
        dctf_list_remove(&chunk->lru);
        dctf_list_push_front(&chunk->engine->lru, &chunk->lru);
    }
}

/* Whether a reader is on its way to the bytes: from here it has them without the disk, which may be slower
 * than the source. */
static bool is_awaited(const struct dctf_chunk *chunk)
{
    return chunk->began_ahead && chunk->class != DCTF_FETCH_REPLICATION && chunk->read_bytes < chunk->len;
}

/* On a pool's thread: offer the bytes to the tiers. */
static void chunk_write(void *ctx)
{
    struct dctf_chunk *chunk = ctx;
    struct dctf_engine *engine = chunk->engine;
    bool kept = false;
    enum dctf_err err = dctf_shard_write(chunk->source->shard, chunk->first, chunk->buf, chunk->len, &kept);

    if (err)
        dctf_metric_error(engine->config.metrics, err);
    engine_lock(engine);
    engine->unwritten_bytes -= chunk->len;
    chunk->written = true;
    chunk->kept = kept && !err;
    if (chunk->kept && chunk->mapped && !is_awaited(chunk))
        chunk_unmap_locked(chunk); /* reads find the bytes in the tiers from here on */
    pthread_cond_broadcast(&engine->settled);
    chunk_unref_locked(chunk);
    engine_unlock(engine);
}

static void wake_all_locked(struct dctf_chunk *chunk, struct dctf_list *woken)
{
    struct dctf_list *node;

    while ((node = dctf_list_pop(&chunk->waiters))) {
        struct dctf_read *read = dctf_list_entry(node, struct dctf_read, node);

        read->parked = false;
        chunk->engine->waiting--;
        if (chunk->state == CHUNK_READY) {
            chunk_ref_locked(chunk);
            read->pins[read->pin_count++] = chunk;
        } else if (chunk->err != DCTF_ERR_DEADLINE || !chunk->began_ahead) {
            /* The deadline of read-ahead began before its waiters came: they ask again. */
            read->verdict = chunk->err;
        }
        dctf_list_push_back(woken, &read->node);
    }
}

static void chunk_done(void *ctx, enum dctf_err err, bool buf_free)
{
    struct dctf_chunk *chunk = ctx;
    struct dctf_engine *engine = chunk->engine;
    struct dctf_version *gone = NULL;
    struct dctf_list woken;
    uint64_t now = dctf_clock_mono_ms(NULL);
    bool first = false;

    dctf_list_init(&woken);
    if (err == DCTF_ERR_NOT_FOUND) /* an open version that is gone is a version that changed */
        err = DCTF_ERR_VERSION_MISMATCH;
    engine_lock(engine);
    chunk->err = err;
    if (!err) {
        chunk->state = CHUNK_READY;
        chunk->used_ms = now;
        engine->unwritten_bytes += chunk->len;
        chunk->source->failed_ms = 0;
        first = dctf_list_empty(&engine->lru);
        dctf_list_push_back(&engine->lru, &chunk->lru);
    } else {
        chunk->state = CHUNK_FAILED;
        if (err == DCTF_ERR_DEADLINE && !chunk->began_ahead)
            chunk->source->failed_ms = now;
        chunk_unmap_locked(chunk);
        pthread_cond_broadcast(&engine->settled);
    }
    wake_all_locked(chunk, &woken);
    if (err == DCTF_ERR_VERSION_MISMATCH)
        gone = dctf_version_ref(chunk->source->version);
    if (err && buf_free)
        chunk_unref_locked(chunk);
    engine_unlock(engine);
    if (gone && engine->config.version_gone)
        engine->config.version_gone(engine->config.ctx, gone);
    dctf_version_unref(gone);

    /* Readers before threads that would take their processor. */
    engine_resume(engine, &woken);
    if (first)
        pthread_cond_signal(&engine->work); /* something to expire from now on */
    /* The transfer's reference goes over to the write; when the queue is full the
     * write happens here, which slows the source down as it should. */
    if (!err && dctf_pool_submit(engine->config.pool, chunk_write, chunk))
        chunk_write(chunk);
}

static void chunk_release(void *ctx)
{
    struct dctf_chunk *chunk = ctx;
    struct dctf_engine *engine = chunk->engine;

    engine_lock(engine);
    chunk_unref_locked(chunk);
    engine_unlock(engine);
}

void chunk_submit(struct dctf_chunk *chunk)
{
    struct dctf_engine *engine = chunk->engine;
    struct dctf_version *version = chunk->source->version;
    struct dctf_fetch_get get = {
        .key = version->key,
        .etag = version->etag,
        .size = version->size,
        .offset = (uint64_t)chunk->first * DCTF_BLOCK_BYTES,
        .len = chunk->len,
        .buf = chunk->buf,
        .deadline_ms = engine->config.read_deadline_ms,
        .done = chunk_done,
        .release = chunk_release,
        .ctx = chunk,
    };
    uint64_t job_id = 0;
    bool promote;
    enum dctf_err err;

    engine_lock(engine);
    chunk_ref_locked(chunk); /* done() may run before submit returns */
    get.class = chunk->class;
    engine_unlock(engine);
    if (get.class != DCTF_FETCH_DEMAND)
        dctf_metric_add(engine->config.metrics, DCTF_METRIC_PREFETCH_BYTES, (int64_t)get.len);
    err = dctf_fetch_get_submit(engine->config.fetch, &get, &job_id);
    if (err)
        chunk_done(chunk, err, true);
    engine_lock(engine);
    chunk->job_id = job_id;
    promote = chunk->class != get.class; /* a reader came meanwhile */
    chunk_unref_locked(chunk);
    engine_unlock(engine);
    if (promote)
        dctf_fetch_promote(engine->config.fetch, job_id);
}
