/* SPDX-License-Identifier: Apache-2.0
 *
 * One page of a listing as nodes send it to each other. What comes is untrusted: names that follow each other
 * in byte order, each one a component of a path, or the page is refused.
 *
 *   "DLP1" flags(1) 0 0 0 generation(8) age_ms(8) entries(8), then entries until the end:
 *   kind(1) name_len(1) etag_len(1) size(8) mtime_ns(8) name etag
 *
 * Numbers are little-endian. flags: 1 the last page. kind: 0 a file, 1 a directory, which has no size and no
 * ETag. age_ms: since the listing began at the source; entries: of the whole listing; both as the node that
 * answers knows them, and 0 in pages after the first.
 *
 * Threads:   any thread; everything here is pure.
 * Ownership: nothing is kept but the buffers given to init(), as long as the structure is used.
 */
#ifndef DCTF_CLUSTER_LISTINGS_PAGE_H
#define DCTF_CLUSTER_LISTINGS_PAGE_H

#include "base/err.h"
#include "base/version.h"
#include "cache/listing.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DCTF_LISTINGS_PAGE_HEAD 32u
#define DCTF_LISTINGS_PAGE_ENTRY_MAX (19u + DCTF_NAME_MAX + DCTF_ETAG_MAX)

struct dctf_listings_page_head {
    bool last;
    uint64_t generation; /* > 0 */
    uint64_t age_ms;
    uint64_t entries;
};

struct dctf_listings_page_writer {
    uint8_t *data; /* private, as all of it */
    size_t used, cap;
};
/* `cap` ≥ HEAD + ENTRY_MAX, so that each page has an entry. */
void dctf_listings_page_begin(struct dctf_listings_page_writer *writer, void *buf, size_t cap);
/* False: full; the entry is for the next page. Entries come in byte order of their names. */
bool dctf_listings_page_add(struct dctf_listings_page_writer *writer, const struct dctf_entry *entry);
/* Its bytes. */
size_t dctf_listings_page_end(
    struct dctf_listings_page_writer *writer, const struct dctf_listings_page_head *head);

struct dctf_listings_page {
    struct dctf_listings_page_head head;
    /* private */
    const uint8_t *at, *end;
    char name[DCTF_NAME_MAX + 1]; /* the last one */
    char etag[DCTF_ETAG_MAX + 1];
};
/* `after`: names come after this one; "" for the first page. DCTF_ERR_BAD_RESPONSE. */
DCTF_MUST_CHECK
enum dctf_err dctf_listings_page_open(
    struct dctf_listings_page *page, const void *data, size_t len, const char *after);
/* DCTF_ERR_NOT_FOUND at the end, DCTF_ERR_BAD_RESPONSE. The strings are valid until the next call. */
DCTF_MUST_CHECK
enum dctf_err dctf_listings_page_next(struct dctf_listings_page *page, struct dctf_entry *out);

#endif
