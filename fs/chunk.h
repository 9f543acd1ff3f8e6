/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to the engine (fs/engine*.c): chunks, sources and the lock they share.
 *
 * Threads:   functions named _locked need engine->lock.
 * Ownership: a chunk is counted: one reference each for the map, the transfer, the write
 *            to the tiers, and every pin. The last one frees it, in engine_unlock().
 */
#ifndef DCTF_FS_CHUNK_H
#define DCTF_FS_CHUNK_H

#include "base/budget.h"
#include "base/list.h"
#include "fs/engine.h"
#include "transport/fetch.h"

#include <stdatomic.h>

#define SOURCE_BUCKETS 4096u
#define UNIT_MAX_BLOCKS 128u /* 32 MiB */

enum chunk_state {
    CHUNK_FETCHING,
    CHUNK_READY,
    CHUNK_FAILED,
};

struct dctf_chunk {
    struct dctf_list lru;     /* in engine->lru while READY and mapped, coldest first */
    struct dctf_list waiters; /* parked struct dctf_read */
    struct dctf_chunk *dead_next;
    struct dctf_source *source; /* ref held */
    struct dctf_engine *engine;
    void *buf; /* of the budget; NULL once given back */
    size_t len;
    size_t read_bytes;
    uint64_t job_id;
    uint64_t used_ms;      /* monotonic, when it became READY or was last read */
    uint32_t first, count; /* blocks */
    unsigned refs;
    enum chunk_state state;
    enum dctf_err err;
    enum dctf_fetch_class class; /* becomes DEMAND when a read joins */
    bool began_ahead;            /* nobody waited when it was submitted */
    bool mapped;
    bool written; /* the tiers have had their chance */
    bool kept;
};

struct dctf_source {
    struct dctf_source *next; /* of the hash chain */
    struct dctf_version *version;
    struct dctf_shard *shard;
    struct dctf_chunk **map; /* block → chunk, NULL until the first chunk */
    uint32_t blocks;
    atomic_uint mapped; /* chunks in the map; changed under the lock */
    uint64_t refs;
    uint64_t drops;     /* chunks taken out of the map so far */
    uint64_t failed_ms; /* monotonic, when a deadline was last missed; 0 once bytes came */
};

struct dctf_engine {
    struct dctf_engine_config config;
    uint32_t unit_max; /* blocks */
    pthread_mutex_t lock;
    pthread_cond_t work;    /* for the engine's thread */
    pthread_cond_t settled; /* a chunk failed or was written: for dctf_engine_warm() */
    /* all below guarded by lock */
    struct dctf_source *sources[SOURCE_BUCKETS];
    size_t source_count;
    size_t chunk_count;
    uint64_t chunk_bytes;
    uint64_t unwritten_bytes; /* fetched, and not yet offered to the tiers */
    struct dctf_list lru;
    struct dctf_chunk *dead;
    struct dctf_list active;  /* every read not finished, by `all` */
    struct dctf_list claimed; /* reads whose verdict is in, by `node` */
    struct dctf_list hungry;  /* reads parked for want of memory, by `node` */
    size_t waiting;
    bool memory_freed;
    bool stopped;
    bool ending; /* the thread leaves */
    pthread_t thread;
    pthread_key_t scratch;
};

void engine_lock(struct dctf_engine *engine);
/* Unlock, then free what died meanwhile. */
void engine_unlock(struct dctf_engine *engine);

/* A new chunk in the map, FETCHING, not yet submitted; NULL when memory is short. */
struct dctf_chunk *chunk_new_locked(struct dctf_engine *engine, struct dctf_source *source, uint32_t first,
    uint32_t count, enum dctf_fetch_class class);
/* Start its transfer. Call without the lock. */
void chunk_submit(struct dctf_chunk *chunk);
void chunk_ref_locked(struct dctf_chunk *chunk);
void chunk_unref_locked(struct dctf_chunk *chunk);
void chunk_unmap_locked(struct dctf_chunk *chunk);
/* Give up chunks nobody has read for a while: what the tiers did not keep is held for readers who
 * come soon, not for ever. */
void chunks_expire_locked(struct dctf_engine *engine);
/* Bytes of it were handed to a reader; once all were, it goes, or is the first to go when the tiers have
 * not kept it. */
void chunk_consumed_locked(struct dctf_chunk *chunk, size_t bytes);

static inline struct dctf_chunk *chunk_at_locked(const struct dctf_source *source, uint32_t block)
{
    return source->map ? source->map[block] : NULL;
}

/* Put the shards of sources that stuck transfers keep for good. */
void sources_disown_locked(struct dctf_engine *engine);

/* From chunk.c to engine.c: the chunk is READY or FAILED; go on with its waiters,
 * which are off their list. */
void engine_resume(struct dctf_engine *engine, struct dctf_list *woken);

#endif
