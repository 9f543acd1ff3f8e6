/* SPDX-License-Identifier: Apache-2.0
 *
 * AWS Signature Version 4, header form, as a pure function of its arguments.
 * Source: "Authenticating Requests: Using the Authorization Header", Amazon S3 API
 * Reference, and "Create a signed AWS API request", IAM User Guide.
 *
 * Threads:   any thread; no state.
 * Ownership: nothing is kept.
 */
#ifndef DCTF_TRANSPORT_SIGV4_H
#define DCTF_TRANSPORT_SIGV4_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dctf_str;

#define DCTF_SIGV4_UNSIGNED_PAYLOAD "UNSIGNED-PAYLOAD"
/* SHA-256 of nothing, for requests without a body. */
#define DCTF_SIGV4_EMPTY_PAYLOAD "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

struct dctf_sigv4_header {
    const char *name;  /* any case */
    const char *value; /* as sent */
};

struct dctf_sigv4_request {
    const char *method;
    /* As on the request line, percent-encoded, without the query; "" means "/". For s3 it
     * is signed as it is; for other services it is encoded once more, as AWS asks. */
    const char *path;
    /* As on the request line after '?', percent-encoded, "" for none. The signer sorts and
     * encodes as AWS does; a bare '+' is a plus here, so send "%20" for a space. */
    const char *query;
    /* All headers to sign; `host` must be among them, as it is sent. x-amz-date,
     * x-amz-content-sha256 and x-amz-security-token are added by the signer, and by the
     * caller to what is sent; if they are among these, theirs are not looked at. */
    const struct dctf_sigv4_header *headers;
    size_t header_count;
    const char *payload_hash; /* hex, or one of the words above */
    const char *region;       /* "us-east-1" */
    const char *service;      /* "s3", "sts" */
    uint64_t now_s;           /* wall clock, seconds since the epoch */
    const char *access_key_id;
    const char *secret_access_key;
    const char *session_token; /* NULL or "": none */
    bool no_content_sha256;    /* leave x-amz-content-sha256 out (services other than S3) */
};

/* Header lines to add to the request. */
struct dctf_sigv4_signature {
    char date[32];       /* "20130524T000000Z" */
    char *authorization; /* "AWS4-HMAC-SHA256 Credential=…"; owned */
};

/* DCTF_ERR_NO_MEMORY, or _INTERNAL (no host header, a header value with a line break). */
DCTF_MUST_CHECK
enum dctf_err dctf_sigv4_sign(const struct dctf_sigv4_request *request, struct dctf_sigv4_signature *out);
void dctf_sigv4_signature_fini(struct dctf_sigv4_signature *signature);

/* The steps in between, for the published test vectors: appended to `out`. */
DCTF_MUST_CHECK
enum dctf_err dctf_sigv4_canonical_request(const struct dctf_sigv4_request *request, struct dctf_str *out);
DCTF_MUST_CHECK
enum dctf_err dctf_sigv4_string_to_sign(
    const struct dctf_sigv4_request *request, const char *canonical_request, struct dctf_str *out);

#endif
