/* SPDX-License-Identifier: Apache-2.0
 *
 * Ask an origin and wait for the answer; for tests.
 *
 * Threads:   any thread.
 * Ownership: a listing is the caller's, ended by dctf_origin_sync_clear().
 */
#ifndef DCTF_TESTS_ORIGIN_SYNC_H
#define DCTF_TESTS_ORIGIN_SYNC_H

#include "base/version.h"
#include "transport/origin.h"

struct dctf_sync_entry {
    char *name;
    bool is_dir;
    uint64_t size;
    int64_t mtime_ns;
    char etag[DCTF_ETAG_MAX + 1];
};

struct dctf_sync_listing {
    struct dctf_sync_entry *entries; /* in the order told */
    size_t count;
    size_t pages;
    size_t stop_after; /* pages; 0: never */
};

/* `out` is zeroed but for stop_after by the caller. */
enum dctf_err dctf_origin_sync_list(
    struct dctf_origin *origin, const char *dir, struct dctf_sync_listing *out);
void dctf_origin_sync_clear(struct dctf_sync_listing *listing);
/* The entry of that name, a directory or not; NULL when there is none. */
const struct dctf_sync_entry *dctf_origin_sync_find(
    const struct dctf_sync_listing *listing, const char *name, bool is_dir);

/* `out` may be NULL; its name is NULL. */
enum dctf_err dctf_origin_sync_head(struct dctf_origin *origin, const char *key, struct dctf_sync_entry *out);
enum dctf_err dctf_origin_sync_get(struct dctf_origin *origin, const char *key, const char *etag,
    uint64_t size, uint64_t offset, void *buf, size_t len, size_t *got);

#endif
