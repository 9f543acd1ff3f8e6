/* SPDX-License-Identifier: Apache-2.0
 *
 * What the store is made of; for the files of this folder that implement
 * cache/store.h. Who does what:
 *
 *   store.c     open, close, figures        table.c     shard objects by version
 *   shard.c     reading, pinning            shard_write.c  keeping and dropping bytes
 *   space.c     cap, reserves, admission    evict.c     victims
 *   maintain.c  the round once a second     scrub.c     verify while idle
 *   share.c     this node's share and copies
 *
 * Locks, outermost first: maintain_lock, a shard's change_lock, a shard's lock;
 * then share.lock (read, around the question whose an extent is);
 * leaves are a stripe's lock, space.lock and those inside heat, admission, idset
 * and kv. change_lock is held across the disk and the database on purpose: it
 * serialises the changes of one shard. Readers never take it, evictors only try.
 *
 * Threads:   as told per field.
 * Ownership: as told per field.
 */
#ifndef DCTF_CACHE_STATE_H
#define DCTF_CACHE_STATE_H

#include "base/clock.h"
#include "base/list.h"
#include "base/version.h"
#include "cache/heat.h"
#include "cache/idset.h"
#include "cache/layout.h"
#include "cache/record.h"
#include "cache/store.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

_Static_assert(DCTF_SMALL_BYTES == DCTF_RECORD_SMALL_BYTES, "one bound for small shards");

#define DCTF_TABLE_STRIPES 64u
#define DCTF_TABLE_HEADS 256u /* per stripe */

/* Blocks of one extent. A bit of `present` is set after its hash was written and
 * its bytes are on disk; it is cleared with the shard's lock held exclusively. Both
 * words change only under change_lock, but `verified` gains bits under the shared
 * lock too. */
struct dctf_extent {
    atomic_uint present;
    atomic_uint verified;
    uint64_t hash[DCTF_EXTENT_BLOCKS];
};

enum dctf_shard_verdict {
    DCTF_SHARD_UNDECIDED,
    DCTF_SHARD_FITS,     /* kept in free room; to be decided when that ends */
    DCTF_SHARD_ADMITTED, /* may evict until the next touch */
    DCTF_SHARD_BYPASSED, /* not kept until the next touch */
};

/* A shard may hold extents of each claim, and is judged as each by itself. */
#define DCTF_CLAIMS 3u

enum dctf_shard_state {
    DCTF_SHARD_LOADING,
    DCTF_SHARD_READY,
    DCTF_SHARD_FAILED,
};

struct dctf_shard {
    struct dctf_store *store;
    struct dctf_version *version; /* ref'd */
    uint64_t dataset;
    enum dctf_record_kind kind;
    uint32_t blocks;
    uint32_t extent_count;

    struct dctf_shard *next; /* in its head's chain; guarded by the stripe's lock, as are */
    struct dctf_list idle;   /* on the stripe's list while refs is 0 */
    unsigned refs;
    enum dctf_shard_state state; /* waiters use the stripe's cond */
    size_t footprint;            /* counted while idle */

    pthread_mutex_t change_lock;
    pthread_rwlock_t lock; /* shared: presence is believed and fd is used; exclusive: they are taken away */
    _Atomic(struct dctf_extent *) *extents; /* file shards; made when needed, freed with the shard */
    atomic_uint present_blocks;
    atomic_uint verified_blocks;
    atomic_int fd;    /* -1 when not open; closed under the exclusive lock, or when refs is 0 */
    atomic_uint pins; /* rises under the shared lock */
    atomic_int verdict[DCTF_CLAIMS]; /* enum dctf_shard_verdict, by claim */
    atomic_bool seeded;              /* admission was told of its past heat */
    atomic_bool expected;            /* others want it here: it is more than a reader's copy */
};

/* After a touch: all is to be decided afresh. */
static inline void dctf_shard_undecide(struct dctf_shard *shard)
{
    for (unsigned i = 0; i < DCTF_CLAIMS; i++)
        atomic_store(&shard->verdict[i], DCTF_SHARD_UNDECIDED);
}

/* What admission knows a shard by: the version, so that one that was overwritten grows cold
 * while the key stays hot. */
static inline uint64_t dctf_shard_admission_key(const struct dctf_id *id)
{
    uint64_t key;

    memcpy(&key, id->bytes, sizeof(key));
    return key;
}

struct dctf_stripe {
    _Alignas(64) pthread_mutex_t lock;
    pthread_cond_t loaded;
    struct dctf_shard *heads[DCTF_TABLE_HEADS];
    struct dctf_list idle; /* most recent first */
    size_t idle_bytes;
};

struct dctf_space {
    pthread_mutex_t lock;
    uint64_t limit; /* all guarded by lock */
    uint64_t file_bytes;
    uint64_t small_bytes;   /* live bytes of small shards */
    uint64_t small_dead;    /* evicted, and still on disk until garbage is collected */
    uint64_t small_evicted; /* since garbage was collected last */
    /* Of it, evicted for shards that admission let in and that found no room yet: what comes back
     * is for such, not for whoever comes first. */
    uint64_t promised;
    uint64_t copies_refused; /* small ones, since the share grew last */
    uint64_t shards;
    uint64_t dir_bytes; /* of directories: when last looked, and what new files may have added since */
    uint64_t looked_ms;
    uint64_t reserved;         /* for writes under way */
    uint64_t written;          /* since the limit was last refreshed */
    uint64_t backoff_until_ms; /* 0: none */
    bool inodes_low;
    bool changed; /* since the figures were last persisted */
    struct dctf_rng rng;
};

struct dctf_share {
    pthread_rwlock_t lock; /* guards what follows; held shared across claim_of() */
    dctf_claim_of *claim_of;
    void *ctx;
    atomic_bool is_set; /* a hint, for who need not ask */
};

struct dctf_store {
    struct dctf_store_config config; /* `dir` and `owner` are not kept */
    struct dctf_clock clock;
    struct dctf_layout layout;
    struct dctf_kv *kv;
    struct dctf_heat_config heat_config; /* also the context of the database's merges */
    struct dctf_heat *heat;
    struct dctf_listings *listings;
    struct dctf_admission *admission;
    struct dctf_idset *verified; /* file shards wholly verified */
    struct dctf_stripe *stripes;
    size_t idle_bytes_max; /* per stripe */
    struct dctf_space space;
    struct dctf_share share;
    atomic_bool no_punch;  /* the filesystem cannot punch holes */
    atomic_bool db_failed; /* a database write failed: recovery is due */
    atomic_bool compact_due;
    atomic_ullong spare_refused_ms; /* when something spare found no room last; 0: it did since, or never */
    atomic_ullong last_io_ms;
    atomic_ullong small_dirty_ms;   /* since when small shards wait for a flush; 0: none does */
    atomic_ullong small_written_ms; /* when the last one was written */

    pthread_mutex_t maintain_lock;
    bool counting;            /* guarded by maintain_lock to change */
    atomic_bool counting_now; /* the same, for readers */
    int64_t opened_s;         /* wall clock */
    unsigned sweep_bucket;    /* guarded by maintain_lock, as all below */
    bool was_over;            /* the limit, in the last round */
    uint64_t compact_not_before_ms;
    uint64_t compact_pause_ms;
    uint64_t listings_swept_ms;
    struct dctf_id scrub_at;
    struct dctf_shard *scrub_shard; /* half verified; a reference */
    uint32_t scrub_block;
    uint64_t scrub_again_ms;

    pthread_mutex_t thread_lock;
    pthread_cond_t thread_cond;
    bool stopping;       /* guarded by thread_lock */
    bool heat_waits;     /* guarded by thread_lock: accesses pile up, flush soon */
    atomic_uint touches; /* since the last flush */
    pthread_t thread;
};

/* ---- table.c ---- */

DCTF_MUST_CHECK
enum dctf_err dctf_table_init(struct dctf_store *store);
void dctf_table_fini(struct dctf_store *store); /* every shard was put back */
/* dctf_shard_get() for a version of any dataset. */
DCTF_MUST_CHECK
enum dctf_err dctf_table_get(
    struct dctf_store *store, struct dctf_version *version, uint64_t dataset, struct dctf_shard **out);
/* True when an object says that this shard is pinned. */
bool dctf_table_is_pinned(struct dctf_store *store, const struct dctf_id *id);

/* ---- shard.c ---- */

/* The open file; with `create` it is made. For holders of lock or change_lock. */
DCTF_MUST_CHECK
enum dctf_err dctf_shard_file(struct dctf_shard *shard, bool create, int *fd);
/* NULL when no block of it was ever present. */
struct dctf_extent *dctf_shard_extent(struct dctf_shard *shard, uint32_t extent);
uint32_t dctf_shard_extent_blocks(const struct dctf_shard *shard, uint32_t extent);
/* Count newly set bits of `verified`. */
void dctf_shard_note_verified(struct dctf_shard *shard, unsigned blocks);
/* Verify blocks from `first` on, at most about `max` bytes of them, `again` those that
 * are verified too; *next is where to go on, *bad counts dropped blocks. */
DCTF_MUST_CHECK
enum dctf_err dctf_shard_verify_some(
    struct dctf_shard *shard, uint32_t first, uint64_t max, bool again, uint32_t *next, uint32_t *bad);

/* ---- shard_write.c ---- */

/* Bytes on disk of blocks [first, first + count) that are present. */
uint64_t dctf_shard_resident(struct dctf_shard *shard, uint32_t first, uint32_t count);
enum dctf_drop {
    DCTF_DROP_EVICT, /* nothing happens to a pinned shard */
    DCTF_DROP_BAD,   /* lost or bad bytes: a pinned shard loses presence, not bytes */
};
/* Drop blocks: index first, then the bytes. For holders of change_lock. Returns the
 * bytes no longer kept: of files, given back at once; of small shards, after the
 * next compaction. */
uint64_t dctf_shard_drop_locked(struct dctf_shard *shard, uint32_t first, uint32_t count, enum dctf_drop why);
/* Take change_lock and drop what is bad. */
void dctf_shard_drop(struct dctf_shard *shard, uint32_t first, uint32_t count);
/* Delete a record that makes no sense, with what hangs on it. */
void dctf_shard_purge_record(struct dctf_store *store, const void *key, size_t len);

/* ---- space.c ---- */

void dctf_space_init(struct dctf_store *store);
void dctf_space_fini(struct dctf_store *store);
/* Look at the filesystem and the database, at most once a second, and set the limit in force. */
void dctf_space_refresh(struct dctf_store *store);
/* May `want` bytes of this shard be kept? True: they are reserved until
 * dctf_space_settle(). May evict others. */
bool dctf_space_admit(
    struct dctf_store *store, struct dctf_shard *shard, enum dctf_claim claim, uint64_t want);
void dctf_space_settle(struct dctf_store *store, uint64_t reserved, uint64_t written);
/* True when dctf_space_admit() would say yes; decides for this open if need be. */
bool dctf_space_wants(struct dctf_store *store, struct dctf_shard *shard, enum dctf_claim claim);
/* Book changes of what lies on disk. */
void dctf_space_book(struct dctf_store *store, int64_t file_bytes, int64_t small_bytes, int64_t shards);
/* A shard file is about to be made: its directory may grow. */
void dctf_space_book_new_file(struct dctf_store *store);
/* A write of this shard failed with `err`: give back some space. True when a retry may help. */
bool dctf_space_make_room(struct dctf_store *store, struct dctf_shard *shard, enum dctf_claim claim,
    uint64_t want, enum dctf_err err);
/* It failed for good: keep nothing for a second. */
void dctf_space_give_up(struct dctf_store *store, enum dctf_err err);
/* Left free of what is counted, for what is not. */
uint64_t dctf_space_headroom(struct dctf_store *store);
/* Bytes above the limit now, less headroom and room for compactions; 0 when within. */
uint64_t dctf_space_excess(struct dctf_store *store);
/* Garbage of small shards; beyond the most that is left alone it is collected. */
uint64_t dctf_space_dead(struct dctf_store *store);
uint64_t dctf_space_dead_max(const struct dctf_store *store);
/* Bytes that collecting garbage may write before it removes anything. */
uint64_t dctf_space_collect_room(struct dctf_store *store);
/* What the database and the directories take on disk now. */
uint64_t dctf_space_index_bytes(struct dctf_store *store);

/* ---- evict.c ---- */

#define DCTF_EVICT_SAMPLE 16u
#define DCTF_EVICT_SLACK_BYTES ((uint64_t)DCTF_EXTENT_BYTES) /* one fetch unit */

struct dctf_evict_freed {
    uint64_t bytes; /* given back to the filesystem */
    uint64_t dead;  /* of small shards: given back by the next compaction */
    bool bypass;    /* admission said no */
    bool lesser;    /* it was copies, or what is spare */
};

struct dctf_evict_wish {
    struct dctf_shard *newcomer; /* NULL: space must be given back */
    enum dctf_claim claim;       /* of the newcomer */
    bool admitted;               /* admission has said yes before: the coldest goes */
    bool lesser_only;            /* admission has said no before: copies, or what is spare */
    bool whole;                  /* of files, all, whatever `need` */
    uint64_t need;               /* bytes to give back */
};

/* Pick a victim among random residents, and give back what is needed of it, or all. Copies go first, then
 * what is spare, the coldest of those seen, for the newcomer that is more than that; where there are none,
 * for one of the share the one that admission names. For a copy colder copies go, by admission's verdict. */
struct dctf_evict_freed dctf_evict_one(struct dctf_store *store, const struct dctf_evict_wish *wish);
/* The verdict alone. */
bool dctf_evict_would_admit(struct dctf_store *store, struct dctf_shard *newcomer, enum dctf_claim claim);

/* ---- share.c ---- */

#define DCTF_SHARE_STEP 4u           /* blocks that have one answer */
#define DCTF_SHARE_ASKS 4u           /* extents of a candidate whose home is asked for */
#define DCTF_SHARE_ASKS_EVICTING 64u /* of a victim */

struct dctf_kv_iter;

void dctf_share_init(struct dctf_store *store);
void dctf_share_fini(struct dctf_store *store);
enum dctf_claim dctf_share_of(struct dctf_store *store, const struct dctf_version *version, uint64_t dataset,
    uint32_t first, uint32_t count);
/* The least that a resident has extents of, as far as a few questions tell. `extents` iterates over
 * DCTF_KV_EXTENT. */
enum dctf_claim dctf_share_least(struct dctf_store *store, struct dctf_kv_iter *extents,
    const struct dctf_id *id, const struct dctf_record_shard *record, uint64_t random);
/* What block `first` is, and those after it up to *end, `last` at most. */
enum dctf_claim dctf_share_claim(struct dctf_shard *shard, uint32_t first, uint32_t last, uint32_t *end);
/* Drop extents of a file that are `least` or less, from its end on, until `need` bytes are given back. For
 * holders of change_lock. */
uint64_t dctf_share_drop_locked(struct dctf_shard *shard, enum dctf_claim least, uint64_t need);
/* Nothing of it is more than `least`, as far as that can be told. */
bool dctf_share_is_all(struct dctf_shard *shard, enum dctf_claim least);

/* ---- maintain.c, scrub.c ---- */

DCTF_MUST_CHECK
enum dctf_err dctf_maintain_start(struct dctf_store *store);
void dctf_maintain_stop(struct dctf_store *store);
/* Count an access; many of them are flushed before the second is over. */
void dctf_maintain_note_touch(struct dctf_store *store);
/* Write the figures to the database. */
void dctf_maintain_persist(struct dctf_store *store, bool clean);
void dctf_scrub_round(struct dctf_store *store);

#endif
