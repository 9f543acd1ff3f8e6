/* SPDX-License-Identifier: Apache-2.0
 *
 * Who asks: AWS Signature Version 4 and Version 2 in the Authorization header. Written from the "Signature
 * Version 4 signing process" and "Signing and authenticating REST requests" of the S3 documentation, and
 * meant to stay independent of the signer it judges.
 *
 * Version 4. The canonical request is made from the request line as it came: path and query are decoded
 * and encoded anew, a '+' in the query is a space, one in the path is a plus; paths are not normalised.
 * Demanded: host and every x-amz-* header signed, names sorted and in lower case, x-amz-content-sha256
 * (of the body, or UNSIGNED-PAYLOAD), the date of the scope, the bucket's region, a clock within max_skew.
 *
 * Threads:   the thread of the request.
 * Ownership: nothing is kept.
 */
#ifndef DCTF_TESTS_S3_AUTH_H
#define DCTF_TESTS_S3_AUTH_H

#include "lib/s3_request.h"

/* What the check needs to know about the service. */
struct s3_auth_want {
    const char *service;      /* "s3", "sts" */
    const char *region;       /* NULL: any */
    const char *other_region; /* allowed too; NULL: none */
};

/* Why a request is refused. */
struct s3_denial {
    unsigned status;
    const char *code;
    char message[256];
    struct s3_text more; /* XML; s3_text_fini() */
};

/* The request's body has ended. True: request->auth and access_key tell who asks (S3_AUTH_ANONYMOUS when
 * nothing is signed). False: *denial tells why not. */
bool s3_auth_check(struct s3_request *request, const struct s3_auth_want *want, struct s3_denial *denial);

/* Of the two files s3_auth_v*.c: like s3_auth_check(), `authorization` is the header. */
bool s3_auth_check_v4(struct s3_request *request, const struct s3_auth_want *want, const char *authorization,
    struct s3_denial *denial);
bool s3_auth_check_v2(struct s3_request *request, const char *authorization, struct s3_denial *denial);

/* Their parts in common (s3_auth.c). Always false. */
__attribute__((format(printf, 4, 5))) bool s3_deny(
    struct s3_denial *denial, unsigned status, const char *code, const char *format, ...);
/* The key exists, and its session token is the one sent and not expired. */
bool s3_auth_find_key(
    struct s3_request *request, const char *access, struct s3_key *key, struct s3_denial *denial);
/* sent_ns is the request's time; text is how the request tells it. */
bool s3_auth_check_skew(
    struct s3_request *request, int64_t sent_ns, const char *text, struct s3_denial *denial);
/* All values of a header, trimmed, runs of spaces made one, joined by ','. name in any case. False: none. */
bool s3_auth_header_values(struct s3_request *request, const char *name, struct s3_text *out);
/* Names of the headers, in lower case, sorted, each once; to free() one by one, and the list. */
size_t s3_auth_header_names(struct s3_request *request, char ***out);
/* Sun, 06 Nov 1994 08:49:37 GMT or +0000. */
bool s3_auth_parse_http_date(const char *text, int64_t *ns);

#endif
