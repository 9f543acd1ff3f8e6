/* SPDX-License-Identifier: Apache-2.0
 *
 * An object store in memory, for tests: flat keys of any bytes but NUL, listed with
 * the delimiter "/" as S3 lists them. What that means where keys are odd:
 *
 *   key "a/"     listing "a" tells a file named "" (the marker object itself)
 *   key "a//b"   listing "a" tells a directory named ""
 *   key "a", "a/b"   listing "" tells a file "a" and a directory "a"
 *
 * A prefix without keys is DCTF_ERR_NOT_FOUND, but for the root.
 *
 * Threads:   any thread. Requests are answered on one thread of the store, in order.
 * Ownership: dctf_origin_memory_new() gives a store that is freed by its ops->close.
 */
#ifndef DCTF_TESTS_ORIGIN_MEMORY_H
#define DCTF_TESTS_ORIGIN_MEMORY_H

#include "transport/origin.h"

#include <stddef.h>
#include <stdint.h>

struct dctf_origin_memory;

DCTF_MUST_CHECK
enum dctf_err dctf_origin_memory_new(struct dctf_origin_memory **out);
/* The store as an origin; the same object. */
struct dctf_origin *dctf_origin_memory_base(struct dctf_origin_memory *memory);

/* Add or replace; the bytes are copied. A replaced key always gets a new ETag. */
DCTF_MUST_CHECK
enum dctf_err dctf_origin_memory_put(
    struct dctf_origin_memory *memory, const char *key, const void *data, size_t len);
/* DCTF_ERR_NOT_FOUND when there is no such key. */
enum dctf_err dctf_origin_memory_delete(struct dctf_origin_memory *memory, const char *key);
/* The ETag now, into `out` (DCTF_ETAG_MAX + 1 bytes). */
DCTF_MUST_CHECK
enum dctf_err dctf_origin_memory_etag(struct dctf_origin_memory *memory, const char *key, char *out);
/* Entries per page of a listing; default 1000. */
void dctf_origin_memory_page_size(struct dctf_origin_memory *memory, size_t entries);

struct dctf_origin_memory_counts {
    uint64_t list;
    uint64_t head;
    uint64_t get;
    uint64_t bytes; /* delivered by get */
};
void dctf_origin_memory_counts(struct dctf_origin_memory *memory, struct dctf_origin_memory_counts *out);

#endif
