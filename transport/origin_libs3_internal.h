/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to the origin that reads S3 through libs3.
 *
 *   origin_libs3_mixed.c   the interface: what libs3 cannot name goes to the default client
 *   origin_libs3.c         opening, what is refused, credentials, reading
 *   origin_libs3_list.c    directories and heads, from listings
 *   origin_libs3_call.c    one request: the only file that calls libs3
 *   origin_libs3_status.c  what its statuses mean
 *   origin_libs3_examine.c step by step for `dctf doctor`
 *
 * What libs3 2.0 gets wrong decides how it is used here; see docs/s3.md for users.
 *
 * - It reports a body that was cut as a success: every byte is counted, and a listing is read
 *   as raw bytes and parsed here, where only a whole document counts. (Its own listing
 *   call also overwrites the beginning of directory names that its parser gets in pieces,
 *   and drops the last byte of a key of 1,024.)
 * - A GET of the bucket has no place for a query but the host name, which the library puts into
 *   the URL as it is: "HOST/BUCKET/?QUERY#". What the library adds behind is the fragment, which
 *   is never sent. Opening verifies that the URL is made like this.
 * - It encodes a space in a key as '+', which stores take for a plus. Opening learns which bytes
 *   are encoded as they should be; keys with others are read by the default client.
 * - It knows headers in the customary case only. Behind a proxy that writes "etag" the ETag of
 *   an answer is not seen; then If-Match alone must do, and whether the store honours it is
 *   tried first.
 * - It gives a transfer up after 15 s below 1 KiB/s; connecting takes as long as the kernel
 *   tries. Such a thread is lost for that time (origin_blocking.h).
 * - It shows no Content-Range: a store that answers another range than asked for, with the right
 *   length, is not found out.
 *
 * Threads:   any thread; requests block.
 */
#ifndef DCTF_TRANSPORT_ORIGIN_LIBS3_INTERNAL_H
#define DCTF_TRANSPORT_ORIGIN_LIBS3_INTERNAL_H

#include "base/err.h"
#include "base/str.h"
#include "transport/origin.h"
#include "transport/origin_blocking.h"
#include "transport/s3_address.h"
#include "transport/s3_credentials.h"
#include "transport/s3_xml.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DCTF_LIBS3_DETAIL_BYTES DCTF_BLOCKING_DETAIL_BYTES
#define DCTF_LIBS3_KEY_MAX 1024

struct dctf_libs3 {
    struct dctf_s3_address address;
    char *host; /* with the port, without the bucket */
    struct dctf_s3_credentials *credentials;
    bool plain[256];         /* bytes of keys that the library encodes as they should be */
    atomic_bool if_match_ok; /* the store was seen to honour If-Match */
    pthread_mutex_t lock;    /* of what examine() found so far */
    char *sample_key;        /* whole; NULL: none; guarded by lock, as all below */
    char *sample_etag;
    uint64_t sample_size;
};

/* One GET. */
struct dctf_libs3_call {
    const char *key;   /* whole, prefix included; "": the bucket, with a query */
    const char *query; /* percent-encoded; only with key "" */
    const char *etag;  /* without quotes; NULL: any version */
    uint64_t offset;   /* of `len` bytes to `buf`, */
    size_t len;        /* or 0: all of the body to `body` */
    void *buf;
    struct dctf_str *body;
    const atomic_bool *cancelled; /* may be NULL */

    size_t got;
    char detail[DCTF_LIBS3_DETAIL_BYTES]; /* why it failed, in words, no secret */
};

/* The origin that asks libs3 alone, and what it is made of, which is the origin's. config->options are
 * given; `detail` (256 bytes) may be NULL. */
DCTF_MUST_CHECK
enum dctf_err dctf_libs3_open(const struct dctf_origin_config *config, char *detail,
    struct dctf_libs3 **source, struct dctf_origin **out);
/* Once per process: libs3 has global state. */
DCTF_MUST_CHECK
enum dctf_err dctf_libs3_init(void);
/* "2.0", "4.x" */
const char *dctf_libs3_version(void);
/* Whether a listing can be had as raw bytes: 4.x signs the host name, which carries the query. Its own
 * listing call takes a cut document, and any other, for a short or empty list. */
bool dctf_libs3_lists(void);
/* Fill in libs3->plain, and see whether URLs are made as this needs them
 * (DCTF_ERR_S3_CLIENT_UNSAFE, and `detail`). */
DCTF_MUST_CHECK
enum dctf_err dctf_libs3_learn(struct dctf_libs3 *libs3, char *detail);
/* DCTF_OK: all `len` bytes of that version, or a whole body. */
DCTF_MUST_CHECK
enum dctf_err dctf_libs3_get(struct dctf_libs3 *libs3, struct dctf_libs3_call *call);

/* The meaning of a status (enum S3Status as int) of a GET; `listing`: of the bucket. */
enum dctf_err dctf_libs3_status(int status, bool listing);

/* The keys to sign with, counted; refuses what the library cannot sign with. */
DCTF_MUST_CHECK
enum dctf_err dctf_libs3_keys(struct dctf_libs3 *libs3, struct dctf_s3_keys **out, char *detail);
/* Whether `key` (whole) can be asked for: DCTF_ERR_S3_CLIENT_UNSAFE, _NAME_TOO_LONG. */
DCTF_MUST_CHECK
enum dctf_err dctf_libs3_key_check(const struct dctf_libs3 *libs3, const char *key, char *detail);

/* One page of a listing of what begins with `prefix` (whole); to dctf_s3_list_fini(). */
struct dctf_libs3_page {
    const char *prefix;
    bool delimiter;
    unsigned max_keys;
    const char *token; /* NULL: the first page */
    const atomic_bool *cancelled;
    char detail[DCTF_LIBS3_DETAIL_BYTES];
};
DCTF_MUST_CHECK
enum dctf_err dctf_libs3_page(
    struct dctf_libs3 *libs3, struct dctf_libs3_page *page, struct dctf_s3_list *out);

/* See struct dctf_blocking_ops. */
enum dctf_err dctf_libs3_list(void *source, struct dctf_origin_list *list, const atomic_bool *cancelled);
enum dctf_err dctf_libs3_head(
    void *source, const char *key, struct dctf_origin_entry *entry, char *etag, const atomic_bool *cancelled);
enum dctf_err dctf_libs3_probe(void *source, unsigned what, char *detail);
void dctf_libs3_examine(struct dctf_origin *origin, uint64_t deadline_ms,
    void (*step)(void *ctx, const struct dctf_origin_step *step), void *ctx);

#endif
