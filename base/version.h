/* SPDX-License-Identifier: Apache-2.0
 *
 * A shard version: one immutable object of a dataset. Everything below the
 * namespace is keyed by it, never by a path alone.
 *
 * Threads:   any thread; values.
 * Ownership: dctf_version_new() gives a counted object; ref/unref. Immutable
 *            once made.
 */
#ifndef DCTF_BASE_VERSION_H
#define DCTF_BASE_VERSION_H

#include "base/err.h"

#include <stdint.h>

/* Unit of checksum and presence, on disk and on the wire, the same everywhere. */
#define DCTF_BLOCK_BYTES (256u * 1024u)
/* Unit of placement, and of the index records: 32 blocks. */
#define DCTF_EXTENT_BLOCKS 32u
#define DCTF_EXTENT_BYTES (DCTF_EXTENT_BLOCKS * DCTF_BLOCK_BYTES)
#define DCTF_KEY_MAX 1024u /* bytes of a key, without the NUL */
#define DCTF_NAME_MAX 255u /* bytes of one component */
#define DCTF_ETAG_MAX 128u
/* Largest shard: block numbers, and sums of two, fit 32 bits. */
#define DCTF_SIZE_MAX (1ull << 49)

/* 128-bit XXH3 in big-endian byte order: uniform, so a random seek in the index
 * is a random sample. */
struct dctf_id {
    uint8_t bytes[16];
};

struct dctf_version {
    struct dctf_id id;   /* of dataset, key, etag and size */
    uint64_t key_hash;   /* of dataset and key: what shard heat is counted for */
    uint64_t feature_id; /* of dataset and feature path */
    uint64_t size;       /* bytes */
    const char *key;     /* relative to the source, no leading slash */
    const char *etag;    /* opaque; equal means the same bytes */
    const char *feature; /* feature path, "" for the root directory */
};

/* Which part of the key heat is counted for. */
enum dctf_feature_by {
    DCTF_FEATURE_BY_DIRECTORY,
    DCTF_FEATURE_BY_FILE,
};

/* Make a counted version; `key` ≤ DCTF_KEY_MAX and `etag` ≤ DCTF_ETAG_MAX bytes
 * are copied. On failure *out is NULL. */
DCTF_MUST_CHECK
enum dctf_err dctf_version_new(uint64_t dataset, const char *key, const char *etag, uint64_t size,
    enum dctf_feature_by by, struct dctf_version **out);
struct dctf_version *dctf_version_ref(struct dctf_version *version);
void dctf_version_unref(struct dctf_version *version); /* NULL is allowed */

/* Hashes used across the tree (XXH3). The empty input is allowed. */
uint64_t dctf_hash64(const void *data, size_t len);
uint64_t dctf_hash64_seed(const void *data, size_t len, uint64_t seed);
struct dctf_id dctf_hash128(const void *data, size_t len);

/* Number of blocks of a shard of `size` ≤ DCTF_SIZE_MAX bytes; 0 for an empty one. */
static inline uint32_t dctf_blocks_of(uint64_t size)
{
    return (uint32_t)((size + DCTF_BLOCK_BYTES - 1) / DCTF_BLOCK_BYTES);
}

/* Bytes in block `block` of a shard of `size` bytes: DCTF_BLOCK_BYTES but for the last. */
static inline uint32_t dctf_block_len(uint64_t size, uint32_t block)
{
    uint64_t start = (uint64_t)block * DCTF_BLOCK_BYTES;

    return size - start < DCTF_BLOCK_BYTES ? (uint32_t)(size - start) : DCTF_BLOCK_BYTES;
}

#endif
