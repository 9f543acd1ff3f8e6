/* SPDX-License-Identifier: Apache-2.0
 *
 * The read engine: composes the tiers (cache/store.h) and the source
 * (transport/fetch.h) into answers to reads.
 *
 * A read is answered at once from the tiers or from chunks in memory, or it is parked
 * on a chunk that is being fetched. A chunk is a run of blocks of one shard on its
 * way from the source, and then in memory until it is written to the tiers; when they do not keep
 * it, or it was read ahead of a reader, until that has read it, memory is wanted or nobody has read it for
 * some seconds. At most one chunk covers a block: that is single flight.
 *
 *   FETCHING → READY → (dropped)         READY: bytes valid, written to the tiers beside
 *       └────→ FAILED → (dropped)        FAILED: out of the map, waiters see its error
 *
 * Threads:   any thread, unless told. One lock for chunks and waiters, held for short
 *            sections without I/O; copies of bytes run outside it.
 * Ownership: see each function. Everything is refused after dctf_engine_stop().
 */
#ifndef DCTF_FS_ENGINE_H
#define DCTF_FS_ENGINE_H

#include "base/clock.h"
#include "base/err.h"
#include "base/list.h"
#include "base/timer.h"
#include "base/version.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

struct dctf_budget;
struct dctf_engine;
struct dctf_fetch;
struct dctf_metrics;
struct dctf_pool;
struct dctf_shard;
struct dctf_store;

struct dctf_engine_config {
    struct dctf_store *store; /* these are borrowed and outlive the engine */
    struct dctf_fetch *fetch;
    struct dctf_budget *budget;
    struct dctf_timers *timers;
    struct dctf_pool *pool; /* writes to the tiers */
    struct dctf_metrics *metrics;
    uint64_t read_deadline_ms;
    uint64_t fetch_max; /* bytes, a power of two ≥ DCTF_BLOCK_BYTES */
    uint64_t readahead; /* bytes ahead of one sequential reader */
    /* The source does not have a version any more; must not wait, nor call the engine. May be NULL. */
    void (*version_gone)(void *ctx, struct dctf_version *version);
    void *ctx;
};

DCTF_MUST_CHECK
enum dctf_err dctf_engine_new(const struct dctf_engine_config *config, struct dctf_engine **out);
/* End parked reads with DCTF_ERR_SHUTTING_DOWN and refuse new ones. Before
 * dctf_fetch_free(). */
void dctf_engine_stop(struct dctf_engine *engine);
/* After dctf_fetch_free(), the origin's close and once the pool has run dry. False: an
 * origin stuck in the kernel still holds buffers; the engine then stays allocated for its
 * late answer, and so must the budget. Shards are put back in either case. */
bool dctf_engine_free(struct dctf_engine *engine);

/* A shard version that is being read or fetched: one per version, counted. */
struct dctf_source;
DCTF_MUST_CHECK
enum dctf_err dctf_engine_get(
    struct dctf_engine *engine, struct dctf_version *version, struct dctf_source **out);
void dctf_engine_put(struct dctf_engine *engine, struct dctf_source *source);
struct dctf_shard *dctf_source_shard(struct dctf_source *source); /* borrowed */

/* How one handle reads: sequential grows the fetch unit, random shrinks it to the
 * block. Embedded in the handle. */
struct dctf_stream {
    struct dctf_source *source; /* borrowed; outlives the stream */
    pthread_mutex_t lock;
    uint64_t next_offset;          /* end of the furthest read of the run; guarded by lock */
    uint64_t run_start, run_bytes; /* span and sum of the run's reads; guarded by lock */
    uint32_t streak;               /* reads in sequence; guarded by lock */
    uint32_t unit_blocks;          /* guarded by lock */
    uint32_t ahead_block;          /* read-ahead has been asked for up to here; guarded by lock */
};
void dctf_stream_init(struct dctf_stream *stream, struct dctf_source *source);
void dctf_stream_fini(struct dctf_stream *stream);
/* A read is about to be answered. */
void dctf_stream_note(struct dctf_stream *stream, uint64_t offset, size_t len);

/* One read that may have to wait. The owner sets the first part and keeps it alive
 * until done(), which runs exactly once. */
struct dctf_read {
    struct dctf_stream *stream;
    uint64_t offset; /* within the shard */
    size_t len;      /* > 0, at most DCTF_READ_MAX, offset + len ≤ size */
    /* Called before the read may wait, on the caller's thread with no lock held:
     * the place to arm what calls dctf_engine_interrupt(). May be NULL. */
    void (*parking)(struct dctf_read *read);
    /* The pieces hold len bytes and are valid during the call. */
    void (*done)(struct dctf_read *read, enum dctf_err err, const struct iovec *pieces, int count);
    void *ctx;

    /* private */
    struct dctf_list node; /* on a chunk's waiters, hungry or claimed */
    struct dctf_list all;
    struct dctf_timer timer;
    struct dctf_engine *engine;
    struct dctf_chunk *pins[8];
    unsigned pin_count;
    unsigned attempts;
    bool timed;
    bool parked;
    bool hungry; /* parked for want of memory */
    enum dctf_err verdict;
};
#define DCTF_READ_MAX (1024u * 1024u)

/* Read from the tiers into `buf` without waiting for anybody. DCTF_ERR_MISS when it
 * takes a dctf_engine_read(), or that is quicker: it has the bytes in memory. */
DCTF_MUST_CHECK
enum dctf_err dctf_engine_read_now(
    struct dctf_engine *engine, struct dctf_stream *stream, uint64_t offset, size_t len, void *buf);
/* This thread's buffer of DCTF_READ_MAX bytes; NULL when memory is short. */
void *dctf_engine_scratch(struct dctf_engine *engine);
/* Read, fetching what is missing. done() may run before it returns. */
void dctf_engine_read(struct dctf_engine *engine, struct dctf_read *read);
/* End a parked read with DCTF_ERR_INTERRUPTED. Takes no lock but the engine's, and never
 * calls done() itself: a thread of the engine does. Safe until done() ran. */
void dctf_engine_interrupt(struct dctf_engine *engine, struct dctf_read *read);
/* After a read was answered: fetch ahead if the handle reads in sequence. */
void dctf_engine_ahead(struct dctf_engine *engine, struct dctf_stream *stream);

/* Fetch the first `bytes` of a shard nobody reads yet, as read-ahead. Returns the
 * bytes asked for, 0 when memory is short or they are here. */
uint64_t dctf_engine_prefetch(struct dctf_engine *engine, struct dctf_source *source, uint64_t bytes);

struct dctf_warm_result {
    uint64_t fetched_bytes;
    bool kept;
};
/* Bring a whole shard into the tiers, waiting here. */
DCTF_MUST_CHECK
enum dctf_err dctf_engine_warm(
    struct dctf_engine *engine, struct dctf_source *source, struct dctf_warm_result *result);
/* The same for blocks [first, end); adds to *result. */
DCTF_MUST_CHECK
enum dctf_err dctf_engine_warm_blocks(struct dctf_engine *engine, struct dctf_source *source, uint32_t first,
    uint32_t end, struct dctf_warm_result *result);

struct dctf_engine_stats {
    size_t sources;
    size_t chunks;
    size_t waiting;
    uint64_t chunk_bytes;
};
void dctf_engine_stats(struct dctf_engine *engine, struct dctf_engine_stats *out);

#endif
