/* SPDX-License-Identifier: Apache-2.0
 *
 * Records of listings as bytes. Everything read back is untrusted: what is not
 * exactly what encoding would have written is refused. Internal to listing*.c and
 * its tests.
 *
 *   'd' dir_hash(16)                      → version generation fetched_ms entries
 *   'a' dir_hash(16)                      → version asked_ms
 *   'e' dir_hash(16) generation(8, BE) name → kind size mtime_ns etag (the rest)
 *   'g'                                   → version generation not handed out yet
 *
 * version and kind are one byte, numbers eight, little-endian but in keys.
 *
 * Threads:   any thread; everything here is pure.
 * Ownership: decoded strings point into the caller's buffer.
 */
#ifndef DCTF_CACHE_LISTING_RECORD_H
#define DCTF_CACHE_LISTING_RECORD_H

#include "base/err.h"
#include "base/version.h"
#include "cache/listing.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DCTF_LISTING_DIR_KEY 17u
#define DCTF_LISTING_GENERATION_KEY 25u /* what the keys of a generation's entries begin with */
#define DCTF_LISTING_ENTRY_KEY_MAX                                                                           \
    (DCTF_LISTING_GENERATION_KEY + DCTF_NAME_MAX + 1) /* one more to seek past */
#define DCTF_LISTING_DIR_BYTES 25u
#define DCTF_LISTING_NUMBER_BYTES 9u
#define DCTF_LISTING_ENTRY_MIN 17u
#define DCTF_LISTING_ENTRY_MAX (DCTF_LISTING_ENTRY_MIN + DCTF_ETAG_MAX)

/* `kind` is 'd' or 'a'; `key` ≥ DCTF_LISTING_DIR_KEY. */
void dctf_listing_dir_key(char kind, const struct dctf_id *dir, uint8_t *key);
/* `key` ≥ DCTF_LISTING_GENERATION_KEY. */
void dctf_listing_generation_key(const struct dctf_id *dir, uint64_t generation, uint8_t *key);
/* Append a name; returns the key's length. `key` ≥ DCTF_LISTING_ENTRY_KEY_MAX. */
size_t dctf_listing_entry_key(
    const struct dctf_id *dir, uint64_t generation, const char *name, size_t name_len, uint8_t *key);
/* Directory and generation of an entry's key; false when it is none. */
bool dctf_listing_entry_key_decode(const void *key, size_t len, struct dctf_id *dir, uint64_t *generation);

void dctf_listing_dir_encode(const struct dctf_listing_state *state, uint8_t *buf);
DCTF_MUST_CHECK
enum dctf_err dctf_listing_dir_decode(const void *data, size_t len, struct dctf_listing_state *out);
void dctf_listing_number_encode(uint64_t number, uint8_t *buf);
DCTF_MUST_CHECK
enum dctf_err dctf_listing_number_decode(const void *data, size_t len, uint64_t *out);

/* A name that can be one component of a path: 1 to DCTF_NAME_MAX bytes, no NUL, no '/'. */
bool dctf_listing_name_ok(const char *name, size_t len);
/* Bytes written to `buf` (≥ DCTF_LISTING_ENTRY_MAX). The entry's etag is not too long. */
size_t dctf_listing_entry_encode(const struct dctf_entry *entry, uint8_t *buf);
/* Decode an entry; its strings go to `buf` (≥ DCTF_ENTRY_BUF_BYTES). */
DCTF_MUST_CHECK
enum dctf_err dctf_listing_entry_decode(
    const void *name, size_t name_len, const void *data, size_t len, char *buf, struct dctf_entry *out);

#endif
