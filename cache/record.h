/* SPDX-License-Identifier: Apache-2.0
 *
 * Records of the tier's database, as bytes. Everything read back is untrusted: a
 * record that is not exactly what encoding would have written is refused.
 *
 * All integers are little-endian but for those in keys, which are big-endian so
 * that keys sort. Every record begins with its format version and ends with an
 * XXH3 of itself seeded by its key, so that a bit flip, and a record that lies
 * under the wrong key, are seen.
 *
 *   SHARD   id(16) → version kind feature_by 0 | dataset size present key_hash
 *           feature_id (8 each) | key_len etag_len (2 each) | key etag | sum(8)
 *   EXTENT  id(16) extent(4) → version 0 0 0 | presence(4) | one XXH3 (8) for each
 *           block present | sum(8)
 *   SMALL   id(16) → version 0 0 0 | blocks(4) | size(8) | one XXH3 (8) for each
 *           block | sum(8) of the header | bytes
 *   META    "store" → version clean 0 0 | 0(4) | file_bytes small_bytes shards (8
 *           each) | sum(8)
 *
 * Threads:   any thread; everything here is pure.
 * Ownership: decoded views borrow from the bytes they were decoded from.
 */
#ifndef DCTF_CACHE_RECORD_H
#define DCTF_CACHE_RECORD_H

#include "base/err.h"
#include "base/version.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Shards up to this size have their bytes in the database. */
#define DCTF_RECORD_SMALL_BYTES (1024u * 1024u)
#define DCTF_RECORD_SMALL_BLOCKS (DCTF_RECORD_SMALL_BYTES / DCTF_BLOCK_BYTES)
/* Larger objects are never kept: block numbers have 32 bits. */
#define DCTF_RECORD_SIZE_MAX ((uint64_t)(UINT32_MAX - DCTF_EXTENT_BLOCKS) * DCTF_BLOCK_BYTES)

enum dctf_record_kind {
    DCTF_RECORD_SMALL = 1, /* bytes in the database, always whole */
    DCTF_RECORD_FILE = 2,  /* bytes in a sparse file */
};

struct dctf_record_shard {
    enum dctf_record_kind kind;
    enum dctf_feature_by feature_by;
    uint64_t dataset;
    uint64_t size;
    uint64_t present_bytes; /* of blocks present */
    uint64_t key_hash;
    uint64_t feature_id;
    const char *key; /* not NUL-terminated */
    size_t key_len;
    const char *etag; /* not NUL-terminated */
    size_t etag_len;
};

#define DCTF_RECORD_SHARD_MAX (56u + DCTF_KEY_MAX + DCTF_ETAG_MAX)

/* Describe a version; strings are borrowed from it. */
void dctf_record_shard_of(const struct dctf_version *version, uint64_t dataset, enum dctf_record_kind kind,
    uint64_t present_bytes, struct dctf_record_shard *out);
/* Bytes written to `buf` (≥ DCTF_RECORD_SHARD_MAX). */
size_t dctf_record_shard_encode(
    const struct dctf_id *id, const struct dctf_record_shard *record, uint8_t *buf);
/* DCTF_ERR_CACHE_CORRUPT for anything unexpected. */
DCTF_MUST_CHECK
enum dctf_err dctf_record_shard_decode(
    const struct dctf_id *id, const void *data, size_t len, struct dctf_record_shard *out);
/* Rebuild the version; DCTF_ERR_CACHE_CORRUPT when it does not have this id. */
DCTF_MUST_CHECK
enum dctf_err dctf_record_shard_version(
    const struct dctf_id *id, const struct dctf_record_shard *record, struct dctf_version **out);

struct dctf_record_extent {
    uint32_t present; /* bit i: block i of the extent */
    uint64_t hash[DCTF_EXTENT_BLOCKS];
};

#define DCTF_RECORD_EXTENT_KEY 20u
#define DCTF_RECORD_EXTENT_MAX (16u + 8u * DCTF_EXTENT_BLOCKS)

void dctf_record_extent_key(const struct dctf_id *id, uint32_t extent, uint8_t key[DCTF_RECORD_EXTENT_KEY]);
/* False when it is no extent key. */
bool dctf_record_extent_key_decode(const void *key, size_t len, struct dctf_id *id, uint32_t *extent);
size_t dctf_record_extent_encode(
    const uint8_t key[DCTF_RECORD_EXTENT_KEY], const struct dctf_record_extent *record, uint8_t *buf);
DCTF_MUST_CHECK
enum dctf_err dctf_record_extent_decode(
    const uint8_t key[DCTF_RECORD_EXTENT_KEY], const void *data, size_t len, struct dctf_record_extent *out);

struct dctf_record_small {
    uint32_t blocks;
    uint64_t hash[DCTF_RECORD_SMALL_BLOCKS];
    const uint8_t *bytes; /* `size` of them */
    uint64_t size;
};

#define DCTF_RECORD_SMALL_HEADER_MAX (24u + 8u * DCTF_RECORD_SMALL_BLOCKS)

size_t dctf_record_small_header_bytes(uint64_t size);
/* Header of a shard of `size` ≤ DCTF_RECORD_SMALL_BYTES bytes; `hash` has one entry
 * per block. Bytes written to `buf` (≥ DCTF_RECORD_SMALL_HEADER_MAX). */
size_t dctf_record_small_encode(const struct dctf_id *id, uint64_t size, const uint64_t *hash, uint8_t *buf);
/* The bytes themselves are not checked. */
DCTF_MUST_CHECK
enum dctf_err dctf_record_small_decode(
    const struct dctf_id *id, uint64_t size, const void *data, size_t len, struct dctf_record_small *out);

struct dctf_record_meta {
    bool clean; /* written by a clean close: the figures are exact */
    uint64_t file_bytes;
    uint64_t small_bytes;
    uint64_t shards;
};

#define DCTF_RECORD_META_KEY "store"
#define DCTF_RECORD_META_BYTES 40u

void dctf_record_meta_encode(const struct dctf_record_meta *record, uint8_t buf[DCTF_RECORD_META_BYTES]);
DCTF_MUST_CHECK
enum dctf_err dctf_record_meta_decode(const void *data, size_t len, struct dctf_record_meta *out);

#endif
