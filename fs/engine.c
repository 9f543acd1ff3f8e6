/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads. A read is RUNNING (one thread scans or assembles it), PARKED (on a chunk's
 * waiters or, for want of memory, on `hungry`), CLAIMED (its verdict is in, the engine's
 * thread will finish it) or finished. Who moves it out of PARKED owns it: completion,
 * interrupt, deadline and shutdown meet under the lock, and exactly one wins.
 */
#include "fs/chunk.h"

#include "base/log.h"
#include "base/metric.h"
#include "base/thread.h"
#include "cache/store.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define ATTEMPTS_MAX 8u
#define EXPIRE_S 2
/* The kernel asks again at once for a page it could not read; a deadline that was just
 * missed is not waited for twice. */
#define FAILURE_MEMORY_MS 1000u

static void *engine_thread(void *arg);
static void read_run(struct dctf_engine *engine, struct dctf_read *read);

static void scratch_free(void *buf)
{
    munmap(buf, DCTF_READ_MAX);
}

void *dctf_engine_scratch(struct dctf_engine *engine)
{
    void *buf = pthread_getspecific(engine->scratch);

    if (buf)
        return buf;
    buf = mmap(NULL, DCTF_READ_MAX, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buf == MAP_FAILED)
        return NULL;
    if (pthread_setspecific(engine->scratch, buf)) {
        scratch_free(buf);
        return NULL;
    }
    return buf;
}

enum dctf_err dctf_engine_new(const struct dctf_engine_config *config, struct dctf_engine **out)
{
    struct dctf_engine *engine = calloc(1, sizeof(*engine));
    uint64_t unit_bytes = dctf_budget_limit(config->budget) / 16;

    *out = NULL;
    if (!engine)
        return DCTF_ERR_NO_MEMORY;
    engine->config = *config;
    if (unit_bytes > config->fetch_max)
        unit_bytes = config->fetch_max;
    engine->unit_max = 1;
    while (engine->unit_max < UNIT_MAX_BLOCKS && engine->unit_max * 2ull * DCTF_BLOCK_BYTES <= unit_bytes)
        engine->unit_max *= 2;
    dctf_list_init(&engine->lru);
    dctf_list_init(&engine->active);
    dctf_list_init(&engine->claimed);
    dctf_list_init(&engine->hungry);
    if (pthread_key_create(&engine->scratch, scratch_free))
        goto fail;
    pthread_mutex_init(&engine->lock, NULL);
    if (dctf_thread_cond_init(&engine->work) || dctf_thread_cond_init(&engine->settled) ||
        pthread_create(&engine->thread, NULL, engine_thread, engine)) {
        pthread_key_delete(engine->scratch);
        goto fail;
    }
    *out = engine;
    return DCTF_OK;
fail:
    free(engine);
    return DCTF_ERR_NO_MEMORY;
}

/* Reading --------------------------------------------------------------------- */

static uint32_t pow2_ceil(uint32_t n)
{
    uint32_t p = 1;

    while (p < n)
        p *= 2;
    return p;
}

static void count_bytes(struct dctf_engine *engine, enum dctf_metric from, size_t bytes)
{
    dctf_metric_add(engine->config.metrics, from, (int64_t)bytes);
}

/* Whether the read begins in memory, from where it costs neither the disk nor a copy. */
static bool begins_in_memory(struct dctf_engine *engine, struct dctf_source *source, uint64_t offset)
{
    const struct dctf_chunk *chunk;
    bool ready;

    if (atomic_load_explicit(&source->mapped, memory_order_relaxed) == 0)
        return false;
    engine_lock(engine);
    chunk = chunk_at_locked(source, (uint32_t)(offset / DCTF_BLOCK_BYTES));
    ready = chunk && chunk->state == CHUNK_READY;
    engine_unlock(engine);
    return ready;
}

enum dctf_err dctf_engine_read_now(
    struct dctf_engine *engine, struct dctf_stream *stream, uint64_t offset, size_t len, void *buf)
{
    uint32_t missing;
    enum dctf_err err;

    if (begins_in_memory(engine, stream->source, offset))
        return DCTF_ERR_MISS;
    err = dctf_shard_read(stream->source->shard, offset, len, buf, &missing);
    if (!err)
        count_bytes(engine, DCTF_METRIC_READ_BYTES_WARM, len);
    return err ? DCTF_ERR_MISS : DCTF_OK;
}

static struct dctf_chunk *pin_of(const struct dctf_read *read, uint32_t block)
{
    for (unsigned i = 0; i < read->pin_count; i++) {
        struct dctf_chunk *chunk = read->pins[i];

        if (block >= chunk->first && block < chunk->first + chunk->count)
            return chunk;
    }
    return NULL;
}

static void unpin_all_locked(struct dctf_read *read)
{
    while (read->pin_count)
        chunk_unref_locked(read->pins[--read->pin_count]);
}

/* What one look at the blocks of a read found. */
struct scan {
    uint32_t first, last; /* blocks of the read */
    uint32_t ahead;       /* blocks from `first` whose presence is known, ≥ last - first + 1 */
    bool present[UNIT_MAX_BLOCKS + 8];
    uint32_t unit;
    uint64_t drops;
    struct dctf_chunk *wait;       /* first block not here is on its way in it */
    struct dctf_chunk *started[8]; /* to be submitted, ref held */
    unsigned started_count;
    uint64_t promote[8];
    unsigned promote_count;
    bool short_of_memory;
    bool failing; /* the source missed a deadline on this shard just now */
    bool refused; /* so nothing new is asked of it */
};

static void scan_presence(struct dctf_engine *engine, struct dctf_read *read, struct scan *scan)
{
    struct dctf_source *source = read->stream->source;

    uint64_t now = dctf_clock_mono_ms(NULL);

    engine_lock(engine);
    scan->drops = source->drops;
    scan->failing = source->failed_ms && now < source->failed_ms + FAILURE_MEMORY_MS;
    engine_unlock(engine);
    scan->first = (uint32_t)(read->offset / DCTF_BLOCK_BYTES);
    scan->last = (uint32_t)((read->offset + read->len - 1) / DCTF_BLOCK_BYTES);
    pthread_mutex_lock(&read->stream->lock);
    scan->unit = read->stream->unit_blocks;
    pthread_mutex_unlock(&read->stream->lock);
    scan->ahead = scan->last - scan->first + scan->unit;
    if (scan->first + scan->ahead > source->blocks)
        scan->ahead = source->blocks - scan->first;
    for (uint32_t i = 0; i < scan->ahead; i++)
        scan->present[i] = dctf_shard_is_present(source->shard, scan->first + i);
}

/* Blocks from `block` on that are neither here nor on their way, cut to one fetch unit but
 * never below what the read itself wants. */
static uint32_t missing_run_locked(const struct scan *scan, const struct dctf_source *source, uint32_t block)
{
    uint32_t wanted = 0, run = 0, limit;

    while (block + run < scan->first + scan->ahead && !scan->present[block + run - scan->first] &&
           !chunk_at_locked(source, block + run))
        run++;
    wanted = scan->last - block + 1 < run ? scan->last - block + 1 : run;
    limit = pow2_ceil(wanted) > scan->unit ? pow2_ceil(wanted) : scan->unit;
    limit -= block % limit; /* end on a boundary, so that later units are aligned */
    if (limit < wanted)
        limit = wanted;
    return run < limit ? run : limit;
}

static bool start_fetch_locked(
    struct dctf_engine *engine, struct dctf_source *source, struct scan *scan, uint32_t block)
{
    struct dctf_chunk *chunk = NULL;

    if (source->version->size <= DCTF_SMALL_BYTES) { /* whole or not at all */
        chunk = chunk_new_locked(engine, source, 0, source->blocks, DCTF_FETCH_DEMAND);
    } else {
        /* Under pressure a smaller unit may still fit. */
        for (uint32_t run = missing_run_locked(scan, source, block); run && !chunk; run /= 2)
            chunk = chunk_new_locked(engine, source, block, run, DCTF_FETCH_DEMAND);
    }
    if (!chunk)
        return false;
    chunk_ref_locked(chunk);
    scan->started[scan->started_count++] = chunk;
    if (!scan->wait)
        scan->wait = chunk;
    return true;
}

static void scan_blocks_locked(struct dctf_engine *engine, struct dctf_read *read, struct scan *scan)
{
    struct dctf_source *source = read->stream->source;
    uint32_t block = (uint32_t)(read->offset / DCTF_BLOCK_BYTES);

    for (; block <= scan->last; block++) {
        struct dctf_chunk *chunk = chunk_at_locked(source, block);

        if (pin_of(read, block))
            continue;
        if (chunk && chunk->state == CHUNK_READY) {
            chunk_ref_locked(chunk);
            assert(read->pin_count < sizeof(read->pins) / sizeof(read->pins[0]));
            read->pins[read->pin_count++] = chunk;
        } else if (chunk) {
            if (!scan->wait)
                scan->wait = chunk;
            if (chunk->class != DCTF_FETCH_DEMAND) {
                chunk->class = DCTF_FETCH_DEMAND;
                if (chunk->job_id)
                    scan->promote[scan->promote_count++] = chunk->job_id;
            }
        } else if (!scan->present[block - scan->first]) {
            scan->refused = scan->failing;
            if (!scan->refused)
                scan->short_of_memory = !start_fetch_locked(engine, source, scan, block);
            if (scan->refused || scan->short_of_memory)
                return;
        }
    }
}

enum scan_result {
    SCAN_READY,
    SCAN_PARKED,
    SCAN_FAILED,
    SCAN_AGAIN,
};

static enum scan_result scan_settle_locked(
    struct dctf_engine *engine, struct dctf_read *read, struct scan *scan)
{
    if (engine->stopped && !read->verdict)
        read->verdict = DCTF_ERR_SHUTTING_DOWN;
    if (read->verdict)
        return SCAN_FAILED;
    if (scan->drops != read->stream->source->drops)
        return SCAN_AGAIN; /* a chunk went to the tiers since we asked them */
    scan_blocks_locked(engine, read, scan);
    if (scan->refused) {
        read->verdict = DCTF_ERR_DEADLINE;
        return SCAN_FAILED;
    }
    if (!scan->wait && !scan->short_of_memory)
        return SCAN_READY;
    read->parked = true;
    read->hungry = !scan->wait;
    engine->waiting++;
    if (scan->wait) {
        dctf_list_push_back(&scan->wait->waiters, &read->node);
    } else {
        /* Hold nothing while waiting for memory, or readers wait for each other. */
        unpin_all_locked(read);
        dctf_metric_add(engine->config.metrics, DCTF_METRIC_MEMORY_WAITS, 1);
        dctf_list_push_back(&engine->hungry, &read->node);
    }
    return SCAN_PARKED;
}

static enum scan_result read_scan(struct dctf_engine *engine, struct dctf_read *read)
{
    struct scan scan = {0};
    enum scan_result result;

    scan_presence(engine, read, &scan);
    engine_lock(engine);
    result = scan_settle_locked(engine, read, &scan);
    engine_unlock(engine);
    /* From here on a parked read may be finished by others: it is not touched again. */
    for (unsigned i = 0; i < scan.started_count; i++) {
        chunk_submit(scan.started[i]);
        engine_lock(engine);
        chunk_unref_locked(scan.started[i]);
        engine_unlock(engine);
    }
    for (unsigned i = 0; i < scan.promote_count; i++)
        dctf_fetch_promote(engine->config.fetch, scan.promote[i]);
    return result;
}

/* Hand the result over. The caller owns the read: it is on no list but `active`. */
static void read_finish(struct dctf_engine *engine, struct dctf_read *read, enum dctf_err err,
    const struct iovec *pieces, int count)
{
    struct dctf_chunk *pins[sizeof(read->pins) / sizeof(read->pins[0])];
    unsigned pin_count = read->pin_count;

    if (read->timed)
        dctf_timer_cancel(engine->config.timers, &read->timer);
    engine_lock(engine);
    dctf_list_remove(&read->all);
    engine_unlock(engine);
    /* The pieces point into the pinned chunks, and the read is gone after done(). */
    memcpy(pins, read->pins, sizeof(pins));
    if (err && err != DCTF_ERR_INTERRUPTED)
        dctf_metric_error(engine->config.metrics, err);
    if (err == DCTF_ERR_INTERRUPTED)
        dctf_metric_add(engine->config.metrics, DCTF_METRIC_READS_INTERRUPTED, 1);
    dctf_metric_add(engine->config.metrics, DCTF_METRIC_READS_WAITING, -1);
    read->done(read, err, pieces, count);
    engine_lock(engine);
    while (pin_count)
        chunk_unref_locked(pins[--pin_count]);
    engine_unlock(engine);
}

/* The pieces of a read whose blocks are pinned or in the tiers. DCTF_ERR_MISS when the
 * tiers lost one since. */
static enum dctf_err read_assemble(
    struct dctf_engine *engine, struct dctf_read *read, char *scratch, struct iovec *pieces, int *count)
{
    uint64_t at = read->offset;
    uint64_t end = read->offset + read->len;
    size_t from_tiers = 0;

    *count = 0;
    while (at < end) {
        uint32_t block = (uint32_t)(at / DCTF_BLOCK_BYTES);
        struct dctf_chunk *chunk = pin_of(read, block);
        uint64_t stop = (uint64_t)(chunk ? chunk->first + chunk->count : block + 1) * DCTF_BLOCK_BYTES;
        char *data = scratch + (at - read->offset);
        uint32_t missing;

        if (stop > end)
            stop = end;
        if (chunk) {
            data = (char *)chunk->buf + (at - (uint64_t)chunk->first * DCTF_BLOCK_BYTES);
        } else {
            if (dctf_shard_read(read->stream->source->shard, at, stop - at, data, &missing))
                return DCTF_ERR_MISS;
            from_tiers += stop - at;
        }
        pieces[(*count)++] = (struct iovec){.iov_base = data, .iov_len = stop - at};
        at = stop;
    }
    count_bytes(engine, DCTF_METRIC_READ_BYTES_WARM, from_tiers);
    return DCTF_OK;
}

static void account_pins(struct dctf_engine *engine, struct dctf_read *read)
{
    size_t origin = 0, memory = 0;

    engine_lock(engine);
    for (unsigned i = 0; i < read->pin_count; i++) {
        struct dctf_chunk *chunk = read->pins[i];
        uint64_t start = (uint64_t)chunk->first * DCTF_BLOCK_BYTES;
        uint64_t stop = start + chunk->len;
        uint64_t from = read->offset > start ? read->offset : start;
        uint64_t to = read->offset + read->len < stop ? read->offset + read->len : stop;
        size_t bytes = to > from ? (size_t)(to - from) : 0;

        if (chunk->read_bytes + bytes <= chunk->len)
            origin += bytes;
        else
            memory += bytes;
        chunk_consumed_locked(chunk, bytes);
    }
    engine_unlock(engine);
    count_bytes(engine, DCTF_METRIC_READ_BYTES_ORIGIN, origin);
    count_bytes(engine, DCTF_METRIC_READ_BYTES_MEMORY, memory);
}

static void read_run(struct dctf_engine *engine, struct dctf_read *read)
{
    struct iovec pieces[16];
    char *scratch = dctf_engine_scratch(engine);
    int count = 0;

    if (!scratch) {
        read_finish(engine, read, DCTF_ERR_NO_MEMORY, NULL, 0);
        return;
    }
    for (;;) {
        switch (read_scan(engine, read)) {
        case SCAN_PARKED:
            return;
        case SCAN_FAILED:
            read_finish(engine, read, read->verdict, NULL, 0);
            return;
        case SCAN_AGAIN:
            continue;
        case SCAN_READY:
            break;
        }
        if (!read_assemble(engine, read, scratch, pieces, &count)) {
            account_pins(engine, read);
            read_finish(engine, read, DCTF_OK, pieces, count);
            return;
        }
        if (++read->attempts > ATTEMPTS_MAX) {
            read_finish(engine, read, DCTF_ERR_CACHE_IO, NULL, 0);
            return;
        }
    }
}

/* Give a verdict; a parked read goes to the engine's thread. */
static void read_judge(struct dctf_engine *engine, struct dctf_read *read, enum dctf_err verdict)
{
    uint64_t now = dctf_clock_mono_ms(NULL);

    engine_lock(engine);
    if (!read->verdict)
        read->verdict = verdict;
    if (verdict == DCTF_ERR_DEADLINE && !(read->parked && read->hungry))
        read->stream->source->failed_ms = now;
    if (read->parked) {
        read->parked = false;
        engine->waiting--;
        dctf_list_remove(&read->node);
        dctf_list_push_back(&engine->claimed, &read->node);
        pthread_cond_signal(&engine->work);
    }
    engine_unlock(engine);
}

static void read_expired(void *ctx)
{
    struct dctf_read *read = ctx;

    read_judge(read->engine, read, DCTF_ERR_DEADLINE);
}

void dctf_engine_interrupt(struct dctf_engine *engine, struct dctf_read *read)
{
    read_judge(engine, read, DCTF_ERR_INTERRUPTED);
}

void dctf_engine_read(struct dctf_engine *engine, struct dctf_read *read)
{
    read->engine = engine;
    read->pin_count = 0;
    read->attempts = 0;
    read->parked = false;
    read->verdict = DCTF_OK;
    memset(&read->timer, 0, sizeof(read->timer));
    dctf_list_init(&read->node);
    dctf_metric_add(engine->config.metrics, DCTF_METRIC_READS_PARKED, 1);
    dctf_metric_add(engine->config.metrics, DCTF_METRIC_READS_WAITING, 1);
    engine_lock(engine);
    dctf_list_push_back(&engine->active, &read->all);
    engine_unlock(engine);
    if (read->parking)
        read->parking(read);
    read->timed = true;
    if (dctf_timer_arm(
            engine->config.timers, &read->timer, engine->config.read_deadline_ms, read_expired, read)) {
        /* Without a deadline a read may not wait. */
        read->timed = false;
        read_finish(engine, read, DCTF_ERR_NO_MEMORY, NULL, 0);
        return;
    }
    read_run(engine, read);
}

void engine_resume(struct dctf_engine *engine, struct dctf_list *woken)
{
    struct dctf_list *node;

    while ((node = dctf_list_pop(woken)))
        read_run(engine, dctf_list_entry(node, struct dctf_read, node));
}

/* Let the reads that wait for memory try again, each once, oldest first. */
static void feed_hungry_locked(struct dctf_engine *engine)
{
    struct dctf_list woken, *node;

    dctf_list_init(&woken);
    while ((node = dctf_list_pop(&engine->hungry))) {
        dctf_list_entry(node, struct dctf_read, node)->parked = false;
        engine->waiting--;
        dctf_list_push_back(&woken, node);
    }
    engine_unlock(engine);
    engine_resume(engine, &woken);
    engine_lock(engine);
}

/* True when nothing came for EXPIRE_MS while chunks lie in memory. */
static bool wait_for_work_locked(struct dctf_engine *engine)
{
    struct timespec until;

    if (dctf_list_empty(&engine->lru)) {
        pthread_cond_wait(&engine->work, &engine->lock);
        return false;
    }
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += EXPIRE_S;
    return pthread_cond_timedwait(&engine->work, &engine->lock, &until) == ETIMEDOUT;
}

/* Finishes what was interrupted or timed out, and feeds reads that wait for memory. */
static void *engine_thread(void *arg)
{
    struct dctf_engine *engine = arg;

    pthread_setname_np(pthread_self(), "dctf-engine");
    engine_lock(engine);
    for (;;) {
        struct dctf_list *node = dctf_list_pop(&engine->claimed);

        if (node) {
            struct dctf_read *read = dctf_list_entry(node, struct dctf_read, node);

            engine_unlock(engine);
            read_finish(engine, read, read->verdict, NULL, 0);
            engine_lock(engine);
        } else if (engine->memory_freed) {
            engine->memory_freed = false;
            feed_hungry_locked(engine);
        } else if (engine->ending) {
            break;
        } else if (wait_for_work_locked(engine)) {
            chunks_expire_locked(engine);
            engine_unlock(engine); /* frees them */
            dctf_budget_trim(engine->config.budget);
            engine_lock(engine);
        }
    }
    engine_unlock(engine);
    return NULL;
}

void dctf_engine_stop(struct dctf_engine *engine)
{
    engine_lock(engine);
    engine->stopped = true;
    for (struct dctf_list *node = engine->active.next; node != &engine->active; node = node->next) {
        struct dctf_read *read = dctf_list_entry(node, struct dctf_read, all);

        if (!read->parked)
            continue;
        read->parked = false;
        read->verdict = DCTF_ERR_SHUTTING_DOWN;
        engine->waiting--;
        dctf_list_remove(&read->node);
        dctf_list_push_back(&engine->claimed, &read->node);
    }
    pthread_cond_signal(&engine->work);
    pthread_cond_broadcast(&engine->settled);
    engine_unlock(engine);
}

bool dctf_engine_free(struct dctf_engine *engine)
{
    bool stuck;
    void *buf;

    if (!engine)
        return true;
    engine_lock(engine);
    engine->ending = true;
    pthread_cond_signal(&engine->work);
    engine_unlock(engine);
    pthread_join(engine->thread, NULL);
    engine_lock(engine);
    assert(dctf_list_empty(&engine->active));
    while (!dctf_list_empty(&engine->lru))
        chunk_unmap_locked(dctf_list_entry(engine->lru.next, struct dctf_chunk, lru));
    stuck = engine->chunk_count > 0;
    if (stuck)
        sources_disown_locked(engine);
    else
        assert(engine->source_count == 0 || engine->dead);
    engine_unlock(engine);
    if (stuck) {
        dctf_log(DCTF_LOG_WARN, "engine", "the source still holds buffers: chunks=%zu", engine->chunk_count);
        return false;
    }
    buf = pthread_getspecific(engine->scratch);
    if (buf)
        scratch_free(buf);
    pthread_key_delete(engine->scratch);
    pthread_cond_destroy(&engine->work);
    pthread_cond_destroy(&engine->settled);
    pthread_mutex_destroy(&engine->lock);
    free(engine);
    return true;
}

void dctf_engine_stats(struct dctf_engine *engine, struct dctf_engine_stats *out)
{
    engine_lock(engine);
    *out = (struct dctf_engine_stats){
        .sources = engine->source_count,
        .chunks = engine->chunk_count,
        .waiting = engine->waiting,
        .chunk_bytes = engine->chunk_bytes,
    };
    engine_unlock(engine);
}
