/* SPDX-License-Identifier: Apache-2.0
 *
 * XML answers of S3 and STS, read with libxml2 (no network, no entities, bounded).
 *
 * Threads:   any thread.
 * Ownership: results are given to their _fini().
 */
#ifndef DCTF_TRANSPORT_S3_XML_H
#define DCTF_TRANSPORT_S3_XML_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dctf_s3_object {
    const char *key; /* whole, decoded; borrowed from the list */
    bool is_prefix;  /* of CommonPrefixes: ends with the delimiter */
    uint64_t size;
    int64_t mtime_ns;
    const char *etag; /* without quotes; "" for a prefix */
};

struct dctf_s3_list {
    struct dctf_s3_object *objects;
    size_t count;
    bool truncated;
    char *next_token; /* NextContinuationToken, not encoded; NULL when not truncated */
    size_t unusable;  /* keys with a NUL byte, which no name can hold: left out */
    void *memory;     /* what the strings lie in */
};

/* ListBucketResult of ListObjectsV2, with encoding-type=url or without, in the answer's order.
 * An answer that is no whole, well-formed ListBucketResult, or lacks IsTruncated, the token of
 * a truncated page, or an object's Key, Size, ETag or LastModified, is DCTF_ERR_BAD_RESPONSE:
 * never a short list. DCTF_ERR_NO_MEMORY. On failure there is nothing to _fini(). */
DCTF_MUST_CHECK
enum dctf_err dctf_s3_list_parse(const char *xml, size_t len, struct dctf_s3_list *out);
void dctf_s3_list_fini(struct dctf_s3_list *list);

/* Whether the text of an ETag can be a header: not empty, and without control characters. */
bool dctf_s3_is_etag(const char *text);
/* Object `at` as an entry of the directory whose whole prefix, with its slash, is `prefix`. The entry's
 * strings are the list's, in which a directory's name is ended where its slash stands. False, and nothing is
 * changed: the object does not belong into a listing of that directory, or its version could not be asked
 * for. */
struct dctf_origin_entry;
bool dctf_s3_list_entry(
    struct dctf_s3_list *list, size_t at, const char *prefix, struct dctf_origin_entry *entry);

/* <Error> of S3, or <ErrorResponse><Error> of STS; fields are "" when absent or when the body
 * is no error document. Printable, cut to fit. */
struct dctf_s3_error {
    char code[64];
    char message[256];
    char region[64];
    char endpoint[256];
    char server_time[40];
    char request_id[64];
};
void dctf_s3_error_parse(const char *xml, size_t len, struct dctf_s3_error *out);

/* Text of the first element of that name (any namespace), for STS. NULL when absent,
 * when it has elements within, or when the document is not well-formed; malloc'd. */
char *dctf_xml_text(const char *xml, size_t len, const char *element);

/* "2026-01-31T12:00:00.000Z" → ns since the epoch; false (and 0) when it is not such a
 * time, with or without a fraction, from 1678 to 2261. */
bool dctf_iso8601_parse(const char *text, int64_t *out_ns);

#endif
