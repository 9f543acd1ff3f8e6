/* SPDX-License-Identifier: Apache-2.0
 *
 * The tiers of one node: which blocks of which shard versions lie here, their
 * bytes, and what is kept when there is no room.
 *
 * A shard ≤ DCTF_SMALL_BYTES has its bytes in the database; a larger one in a
 * sparse file of its own, each block at its own offset. Every block has a 64-bit
 * XXH3; it is checked on the first read after this cache was opened, and written
 * before the index says that the block is there.
 *
 * Threads:   any thread. Calls touch the local disk: hold no lock.
 * Ownership: dctf_store_open() gives a store to pass to dctf_store_close() once
 *            every shard was put back.
 */
#ifndef DCTF_CACHE_STORE_H
#define DCTF_CACHE_STORE_H

#include "base/clock.h"
#include "base/err.h"
#include "base/version.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DCTF_SMALL_BYTES (1024u * 1024u)

struct dctf_admission;
struct dctf_heat;
struct dctf_kv;
struct dctf_listings;
struct dctf_metrics;
struct dctf_store;
struct dctf_shard;

struct dctf_store_config {
    const char *dir;        /* of the cache; made when missing */
    uint64_t size_bytes;    /* hard cap on bytes on disk */
    uint64_t reserve_bytes; /* left free on the filesystem; UINT64_MAX: 5 %, at most 1 GiB */
    unsigned reserve_inodes_pct;
    uint64_t memory_bytes; /* for the database and the idle shard objects */
    uint64_t dataset;      /* hash of the source */
    uint64_t heat_half_life_ms;
    uint64_t heat_ttl_ms;
    bool scrub;                     /* verify while idle */
    const struct dctf_clock *clock; /* NULL: the system's; copied */
    struct dctf_metrics *metrics;   /* borrowed; may be NULL */
    const char *owner; /* who holds the directory, for the message of the next one: "pid 12 on /mnt" */
};

/* Whether the database in the directory is damaged in a way that would end this process when it is opened:
 * DCTF_ERR_CACHE_CORRUPT, with words in `detail` (≥ 256 bytes). To be called before the process has threads;
 * all other damage dctf_store_open() tells. */
DCTF_MUST_CHECK
enum dctf_err dctf_store_check(const struct dctf_store_config *config, char *detail);
/* Lock the directory, check its format, open the database, start maintenance.
 * O(1) in cached bytes. DCTF_ERR_CACHE_IN_USE, _FOREIGN, _FORMAT, _CORRUPT, _IO:
 * the raw detail is logged and `detail` (≥ 256 bytes, may be NULL) gets it too. */
DCTF_MUST_CHECK
enum dctf_err dctf_store_open(const struct dctf_store_config *config, char *detail, struct dctf_store **out);
/* Stop maintenance, flush, release the lock. */
void dctf_store_close(struct dctf_store *store);

/* What lies beside the bytes in the same database. Borrowed. */
struct dctf_heat *dctf_store_heat(struct dctf_store *store);
struct dctf_listings *dctf_store_listings(struct dctf_store *store);
struct dctf_admission *dctf_store_admission(struct dctf_store *store);

/* In a cluster every extent of a version has a home. What this node is the home of is its *share*, and may be
 * the only one of its kind; the rest of what lies here are *copies*, and go before any of the share does,
 * whatever their heat; no copy is kept in the place of the share. What another home has no room for may
 * be *spare*: it comes between the two. claim_of() says which blocks of one extent are; it is asked
 * a few times per decision, holding locks of the store, from any thread, and does not wait for disk or
 * network. Its answer may change with time: nothing moves, eviction follows. NULL, as at the start: all is
 * our share. After the return no call of the one before runs. */
enum dctf_claim {
    DCTF_CLAIM_SHARE,
    DCTF_CLAIM_SPARE,
    DCTF_CLAIM_COPY,
};
typedef enum dctf_claim dctf_claim_of(
    void *ctx, const struct dctf_version *version, uint32_t first, uint32_t count);
void dctf_store_set_share(struct dctf_store *store, dctf_claim_of *claim_of, void *ctx);
/* Something spare was offered within the last seconds, and found no room. */
bool dctf_store_spare_is_full(struct dctf_store *store);

/* The shard object of a version, made when there is none; one per version, shared
 * and counted. Reads the index, not the bytes. `version` is ref'd. */
DCTF_MUST_CHECK
enum dctf_err dctf_shard_get(struct dctf_store *store, struct dctf_version *version, struct dctf_shard **out);
void dctf_shard_put(struct dctf_shard *shard);
struct dctf_version *dctf_shard_version(struct dctf_shard *shard); /* borrowed */

/* Count one open for reading (heat table and admission), and decide afresh whether
 * missing blocks of this shard may be kept. */
void dctf_shard_touch(struct dctf_shard *shard);

/* Others say that the shard will be opened about `heat` times: admission takes that for its heat unless it
 * knows better, and decides afresh whether missing blocks may be kept. */
void dctf_shard_expect(struct dctf_shard *shard, double heat);

/* Blocks present in [first, first + count). */
uint32_t dctf_shard_count_present(struct dctf_shard *shard, uint32_t first, uint32_t count);
bool dctf_shard_is_present(struct dctf_shard *shard, uint32_t block);
uint64_t dctf_shard_present_bytes(struct dctf_shard *shard);
bool dctf_shard_is_complete(struct dctf_shard *shard);

/* Copy [offset, offset + len) (within the shard) to `buf`, verifying blocks not
 * verified yet. DCTF_ERR_MISS when a block is absent, DCTF_ERR_BLOCK_CORRUPT when
 * one was bad and has been dropped: *missing is the first such block. */
DCTF_MUST_CHECK
enum dctf_err dctf_shard_read(
    struct dctf_shard *shard, uint64_t offset, size_t len, void *buf, uint32_t *missing);

/* Keep whole blocks fetched from the source: `len` bytes from block `first` on (the
 * last block of the shard may be short). Blocks that are present are skipped.
 * DCTF_OK also when admission or lack of space decided against it: *kept tells. */
DCTF_MUST_CHECK
enum dctf_err dctf_shard_write(
    struct dctf_shard *shard, uint32_t first, const void *data, size_t len, bool *kept);
/* True when a write of its first absent block would be kept as things stand; a hint. */
bool dctf_shard_wants(struct dctf_shard *shard);

/* Passthrough. When every block is present and verified, in a file: a descriptor
 * valid until dctf_shard_unpin(), during which nothing of the file is evicted.
 * -1 otherwise. */
int dctf_shard_pin(struct dctf_shard *shard);
void dctf_shard_unpin(struct dctf_shard *shard);

/* XXH3 of blocks [first, first + count) of a pinned shard. */
void dctf_shard_sums(struct dctf_shard *shard, uint32_t first, uint32_t count, uint64_t *sums);

/* Verify everything present; *bad counts dropped blocks. */
DCTF_MUST_CHECK
enum dctf_err dctf_shard_verify(struct dctf_shard *shard, uint32_t *bad);
/* Drop all blocks. DCTF_ERR_CACHE_IN_USE when it is pinned. */
DCTF_MUST_CHECK
enum dctf_err dctf_shard_evict(struct dctf_shard *shard);

enum dctf_tier {
    DCTF_TIER_COLD, /* nothing here */
    DCTF_TIER_WARM, /* partly or wholly here, served by the daemon */
    DCTF_TIER_HOT,  /* complete, verified and in a file: may be passed through */
};
enum dctf_tier dctf_shard_tier(struct dctf_shard *shard);
const char *dctf_tier_name(enum dctf_tier tier);

struct dctf_store_stats {
    uint64_t limit_bytes;     /* cap now in force */
    uint64_t file_bytes;      /* of shard files */
    uint64_t index_bytes;     /* of the database, small shards and garbage included, and directories */
    uint64_t small_bytes;     /* live bytes of small shards */
    uint64_t shards;          /* with at least one block (settles after start) */
    uint64_t verified_shards; /* wholly verified since the start */
    bool counting;            /* the recount after an unclean stop still runs */
    bool bypassing;           /* nothing is kept at present: no space, or a broken disk */
};
void dctf_store_stats(struct dctf_store *store, struct dctf_store_stats *out);

/* Call back for every resident shard until it returns false. `present_bytes` is what
 * lies here. Slow; for tools. */
DCTF_MUST_CHECK
enum dctf_err dctf_store_each(struct dctf_store *store,
    bool (*visit)(void *ctx, const struct dctf_version *version, uint64_t present_bytes), void *ctx);

/* A number that outlives the mount, under a name of at most 32 bytes. False: never kept, or not readable. Not
 * synced: a power loss may bring an older one back. */
bool dctf_store_number_get(struct dctf_store *store, const char *name, uint64_t *out);
DCTF_MUST_CHECK
enum dctf_err dctf_store_number_put(struct dctf_store *store, const char *name, uint64_t number);

/* One round of maintenance now: flush heat, enforce cap and reserves, sweep. The
 * store's own thread calls it about once a second; tests call it directly. */
void dctf_store_maintain(struct dctf_store *store);

#endif
