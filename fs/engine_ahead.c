/* SPDX-License-Identifier: Apache-2.0
 *
 * Patterns and what follows from them: read-ahead within a shard, whole shards ahead of a
 * reader, and bringing shards into the tiers on request.
 *
 * A handle reads in sequence while its reads cover most of the span they moved over. The
 * kernel sends the reads of one stream several at once and not always in order, so
 * "adjacent" is a window, not an equality.
 */
#include "fs/chunk.h"

#include "base/metric.h"
#include "cache/store.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#define WINDOW_BYTES (4u * 1024u * 1024u)
#define SEQUENTIAL_STREAK 2u
#define FIRST_UNIT_BLOCKS 4u /* 1 MiB */
#define WARM_RETRY_MS 100u

void dctf_stream_init(struct dctf_stream *stream, struct dctf_source *source)
{
    memset(stream, 0, sizeof(*stream));
    stream->source = source;
    stream->unit_blocks = 1;
    pthread_mutex_init(&stream->lock, NULL);
}

void dctf_stream_fini(struct dctf_stream *stream)
{
    pthread_mutex_destroy(&stream->lock);
}

void dctf_stream_note(struct dctf_stream *stream, uint64_t offset, size_t len)
{
    uint64_t end = offset + len;

    pthread_mutex_lock(&stream->lock);
    if (offset <= stream->next_offset + WINDOW_BYTES && end + WINDOW_BYTES >= stream->next_offset) {
        stream->run_bytes += len;
        if (offset < stream->run_start)
            stream->run_start = offset;
        if (end > stream->next_offset)
            stream->next_offset = end;
        /* Half of the span covered: a reader, not somebody who probes nearby places. */
        if (stream->run_bytes >= (stream->next_offset - stream->run_start) / 2)
            stream->streak++;
        else
            stream->streak = 0;
    } else {
        stream->run_start = offset;
        stream->run_bytes = len;
        stream->next_offset = end;
        stream->streak = 0;
    }
    if (stream->streak < SEQUENTIAL_STREAK) {
        stream->unit_blocks = 1;
        stream->ahead_block = 0;
    }
    pthread_mutex_unlock(&stream->lock);
}

/* Ask for the missing blocks of [start, stop) in chunks of `unit`. Returns the block
 * up to which everything is here or asked for. */
static uint32_t fetch_range(struct dctf_engine *engine, struct dctf_source *source, uint32_t start,
    uint32_t stop, uint32_t unit, enum dctf_fetch_class class, uint64_t *asked)
{
    bool small = source->version->size <= DCTF_SMALL_BYTES; /* whole or not at all */
    uint32_t block = small ? 0 : start;

    if (small)
        stop = unit = source->blocks;
    while (block < stop) {
        struct dctf_chunk *chunk;
        uint32_t run = 0, room = unit - block % unit;
        uint64_t drops;

        engine_lock(engine);
        drops = source->drops;
        engine_unlock(engine);
        while (run < room && block + run < stop && !dctf_shard_is_present(source->shard, block + run))
            run++;
        if (run == 0) {
            if (small) /* an eviction right now must not make the rest look wanted by itself */
                return stop;
            block++;
            continue;
        }
        engine_lock(engine);
        if (engine->stopped) {
            engine_unlock(engine);
            return block;
        }
        chunk = chunk_at_locked(source, block);
        if (chunk) { /* on its way */
            block = chunk->first + chunk->count;
            engine_unlock(engine);
            continue;
        }
        if (drops != source->drops) {
            engine_unlock(engine);
            continue;
        }
        for (uint32_t i = 1; i < run; i++) {
            if (chunk_at_locked(source, block + i))
                run = i;
        }
        chunk = chunk_new_locked(engine, source, block, run, class);
        if (chunk)
            chunk_ref_locked(chunk);
        engine_unlock(engine);
        if (!chunk)
            return block;
        *asked += chunk->len;
        chunk_submit(chunk);
        engine_lock(engine);
        chunk_unref_locked(chunk);
        engine_unlock(engine);
        block += run;
    }
    return stop;
}

void dctf_engine_ahead(struct dctf_engine *engine, struct dctf_stream *stream)
{
    struct dctf_source *source = stream->source;
    uint32_t window = (uint32_t)(engine->config.readahead / DCTF_BLOCK_BYTES);
    uint32_t position, start, target, unit, reached;
    uint64_t asked = 0;

    if (window == 0 || dctf_shard_is_complete(source->shard))
        return;
    pthread_mutex_lock(&stream->lock);
    unit = stream->unit_blocks < FIRST_UNIT_BLOCKS ? FIRST_UNIT_BLOCKS : stream->unit_blocks;
    if (unit > engine->unit_max)
        unit = engine->unit_max;
    position = (uint32_t)(stream->next_offset / DCTF_BLOCK_BYTES);
    if (window > 4 * unit) /* grows with the unit */
        window = 4 * unit;
    start = stream->ahead_block > position ? stream->ahead_block : position;
    target = position + window < source->blocks ? position + window : source->blocks;
    if (target < source->blocks) /* a piece asked for now costs a request of its own */
        target -= target % unit;
    if (stream->streak < SEQUENTIAL_STREAK || start >= target) {
        pthread_mutex_unlock(&stream->lock);
        return;
    }
    stream->ahead_block = target;
    stream->unit_blocks = unit * 2 < engine->unit_max ? unit * 2 : engine->unit_max;
    pthread_mutex_unlock(&stream->lock);

    reached = fetch_range(engine, source, start, target, unit, DCTF_FETCH_PREFETCH, &asked);
    if (reached < target) {
        dctf_metric_add(engine->config.metrics, DCTF_METRIC_PREFETCH_REFUSED, 1);
        pthread_mutex_lock(&stream->lock);
        if (stream->ahead_block == target)
            stream->ahead_block = reached;
        pthread_mutex_unlock(&stream->lock);
    }
}

/* The unit for a whole shard: small ones travel in one piece. */
static uint32_t whole_unit(const struct dctf_engine *engine, const struct dctf_source *source)
{
    return source->version->size <= DCTF_SMALL_BYTES ? DCTF_SMALL_BYTES / DCTF_BLOCK_BYTES : engine->unit_max;
}

uint64_t dctf_engine_prefetch(struct dctf_engine *engine, struct dctf_source *source, uint64_t bytes)
{
    uint32_t stop = source->blocks;
    uint64_t asked = 0;

    if (bytes < source->version->size && source->version->size > DCTF_SMALL_BYTES)
        stop = dctf_blocks_of(bytes);
    if (stop == 0 || dctf_shard_count_present(source->shard, 0, stop) == stop)
        return 0;
    fetch_range(engine, source, 0, stop, whole_unit(engine, source), DCTF_FETCH_PREFETCH, &asked);
    return asked;
}

/* Wait until something settles, at most WARM_RETRY_MS: memory may free up unseen. */
static void wait_settled_locked(struct dctf_engine *engine)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += WARM_RETRY_MS * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_cond_timedwait(&engine->settled, &engine->lock, &until);
}

/* Wait for the chunk at `block`; none there is fine. *next: the first block after it. */
static enum dctf_err wait_chunk(
    struct dctf_engine *engine, struct dctf_source *source, uint32_t block, uint32_t *next, bool *kept)
{
    struct dctf_chunk *chunk;
    enum dctf_err err = DCTF_OK;

    engine_lock(engine);
    chunk = chunk_at_locked(source, block);
    *next = block;
    if (chunk) {
        chunk_ref_locked(chunk);
        while (chunk->state != CHUNK_FAILED && !chunk->written && !engine->stopped)
            wait_settled_locked(engine);
        err = engine->stopped ? DCTF_ERR_SHUTTING_DOWN : chunk->err;
        if (!err) {
            *next = chunk->first + chunk->count;
            *kept &= chunk->kept;
        }
        chunk_unref_locked(chunk);
    }
    engine_unlock(engine);
    return err;
}

enum dctf_err dctf_engine_warm_blocks(struct dctf_engine *engine, struct dctf_source *source, uint32_t first,
    uint32_t end, struct dctf_warm_result *result)
{
    uint32_t unit = whole_unit(engine, source);
    uint32_t block = first;
    uint64_t idle_until = dctf_clock_mono_ms(NULL) + engine->config.read_deadline_ms;

    while (block < end) {
        uint32_t stop = block + unit - block % unit;
        uint64_t asked = 0;
        uint32_t next;
        enum dctf_err err;

        if (stop > end)
            stop = end;
        if (dctf_shard_is_present(source->shard, block)) {
            block++;
            continue;
        }
        fetch_range(engine, source, block, stop, unit, DCTF_FETCH_REPLICATION, &asked);
        result->fetched_bytes += asked;
        err = wait_chunk(engine, source, block, &next, &result->kept);
        if (err)
            return err;
        if (next > block) {
            block = next;
            idle_until = dctf_clock_mono_ms(NULL) + engine->config.read_deadline_ms;
        } else if (!dctf_shard_is_present(source->shard, block)) {
            /* No memory for it now. */
            if (dctf_clock_mono_ms(NULL) > idle_until)
                return DCTF_ERR_NO_MEMORY;
            engine_lock(engine);
            if (!engine->stopped)
                wait_settled_locked(engine);
            err = engine->stopped ? DCTF_ERR_SHUTTING_DOWN : DCTF_OK;
            engine_unlock(engine);
            if (err)
                return err;
        }
    }
    return DCTF_OK;
}

enum dctf_err dctf_engine_warm(
    struct dctf_engine *engine, struct dctf_source *source, struct dctf_warm_result *result)
{
    *result = (struct dctf_warm_result){.kept = true};
    return dctf_engine_warm_blocks(engine, source, 0, source->blocks, result);
}
