/* SPDX-License-Identifier: Apache-2.0
 *
 * What listing*.c share.
 *
 * A generation is *current* (its directory's record names it), *open* (a cursor
 * holds it), *retired* (replaced or dropped, and readable for a while yet: someone
 * may have asked for the state a moment ago) or dead. A dead one never comes back:
 * its entries may be deleted at any time.
 *
 * Changes to one directory's record take turns by a claim, which is not a lock:
 * readers pass.
 *
 * Threads:   any thread, but for functions that end in _locked.
 * Ownership: as told per function.
 */
#ifndef DCTF_CACHE_LISTING_PRIVATE_H
#define DCTF_CACHE_LISTING_PRIVATE_H

#include "base/list.h"
#include "cache/kv.h"
#include "cache/listing.h"
#include "cache/listing_record.h"

#include <pthread.h>

#define DCTF_LISTING_DIRS_MAX 4096u
#define DCTF_LISTING_HELD_BUCKETS 256u
#define DCTF_LISTING_RETIRED_MS 10000u

/* One directory's state in memory. */
struct dctf_listing_dir {
    struct dctf_list lru;
    struct dctf_listing_dir *chain;
    struct dctf_id id;
    bool used;
    struct dctf_listing_state state;
    uint64_t asked_ms;       /* wall clock */
    uint64_t asked_saved_ms; /* as in the database; 0: not known */
};

/* A generation that must not be deleted yet: open or retired. */
struct dctf_listing_held {
    struct dctf_list node;
    struct dctf_id id;
    uint64_t generation;
    unsigned refs;   /* cursors, and a commit that replaces it */
    uint64_t due_ms; /* retired: when it dies (monotonic); 0: current */
};

struct dctf_listing_claim {
    struct dctf_list node;
    struct dctf_id id;
};

struct dctf_listings {
    struct dctf_kv *kv;
    uint64_t dataset;
    struct dctf_clock clock;

    pthread_mutex_t lock;
    pthread_cond_t unclaimed;
    /* guarded by lock */
    struct dctf_listing_dir dirs[DCTF_LISTING_DIRS_MAX];
    struct dctf_listing_dir *dir_buckets[DCTF_LISTING_DIRS_MAX];
    struct dctf_list lru; /* least recently asked for at the front */
    uint64_t changes;     /* of any directory's record */
    struct dctf_list held[DCTF_LISTING_HELD_BUCKETS];
    struct dctf_list writers;
    struct dctf_list claims;
    bool all_claimed;
    uint64_t generation_last;
    uint64_t generation_reserved; /* up to here the database knows */
    uint64_t quiet_until_ms;      /* monotonic; the sweep deletes nothing before */
    /* used by one sweep at a time: guarded by `sweeping` */
    bool sweeping;
    uint8_t sweep_dir[DCTF_LISTING_DIR_KEY];
    uint8_t sweep_entry[DCTF_LISTING_GENERATION_KEY];
};

struct dctf_listing_writer {
    struct dctf_list node; /* guarded by the listings' lock, with `outdated` */
    bool outdated;         /* dropped while it was written: fetched long ago */
    struct dctf_listings *listings;
    struct dctf_id id;
    struct dctf_listing_state state;
    struct dctf_kv_batch *batch;
    uint64_t *seen; /* bits of the hashes of names added */
    char *arena;    /* entries waiting: fixed header, name, record */
    size_t arena_used;
    uint32_t *waiting; /* where in the arena */
    size_t waiting_count;
    bool flushed;                                  /* something of it is in the database */
    void (*shadowed)(void *ctx, const char *name); /* may be NULL */
    void *shadowed_ctx;
};

enum dctf_err dctf_listing_dir_id(const struct dctf_listings *listings, const char *dir, struct dctf_id *out);

void dctf_listing_claim(
    struct dctf_listings *listings, const struct dctf_id *id, struct dctf_listing_claim *claim);
void dctf_listing_unclaim(struct dctf_listings *listings, struct dctf_listing_claim *claim);

/* The current state, from memory or the database. */
DCTF_MUST_CHECK
enum dctf_err dctf_listing_load(
    struct dctf_listings *listings, const struct dctf_id *id, struct dctf_listing_state *out);
/* NULL when not in memory. */
struct dctf_listing_dir *dctf_listing_dir_find_locked(
    struct dctf_listings *listings, const struct dctf_id *id);
/* Replace what memory knows; the database was changed already. */
void dctf_listing_set_locked(
    struct dctf_listings *listings, const struct dctf_id *id, const struct dctf_listing_state *state);

struct dctf_listing_held *dctf_listing_held_find_locked(struct dctf_listings *listings, uint64_t generation);
/* Hold a generation that is current or held (else the current one): sets *generation.
 * DCTF_ERR_MISS when there is none. */
DCTF_MUST_CHECK
enum dctf_err dctf_listing_hold(struct dctf_listings *listings, const struct dctf_id *id,
    uint64_t *generation, struct dctf_listing_held **out);
/* Let go. With `retire`, it dies after a while. */
void dctf_listing_release(struct dctf_listings *listings, struct dctf_listing_held *held, bool retire);

/* Delete the retired generations that are due. */
void dctf_listing_purge(struct dctf_listings *listings);
/* Delete a dead generation's entries. */
DCTF_MUST_CHECK
enum dctf_err dctf_listing_delete_generation(
    struct dctf_listings *listings, const struct dctf_id *id, uint64_t generation);
/* Drop a directory by its id. */
DCTF_MUST_CHECK
enum dctf_err dctf_listing_drop_id(struct dctf_listings *listings, const struct dctf_id *id);

#endif
