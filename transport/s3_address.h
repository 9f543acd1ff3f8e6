/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a bucket is: source URL, endpoint, region and addressing style turned into
 * the URLs of requests.
 *
 * Threads:   any thread; read-only once made, but for the region, which changes
 *            by making a new address.
 * Ownership: dctf_s3_address_init() gives an embedded object to _fini().
 */
#ifndef DCTF_TRANSPORT_S3_ADDRESS_H
#define DCTF_TRANSPORT_S3_ADDRESS_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

struct dctf_str;

enum dctf_s3_style { DCTF_S3_STYLE_AUTO, DCTF_S3_STYLE_PATH, DCTF_S3_STYLE_VIRTUAL };

struct dctf_s3_address {
    char *bucket;
    char *prefix;    /* "" or "some/prefix/": what all keys of the mount begin with */
    char *scheme;    /* "https" */
    char *host;      /* of requests: "bucket.s3.eu-west-1.amazonaws.com", "127.0.0.1:9000" */
    char *region;    /* signed with; never "" */
    char *base_path; /* "" or "/base", encoded: what the endpoint puts before every path */
    bool path_style;
    bool is_aws; /* no endpoint was given: the host follows the region */
};

/* `source` is "s3://bucket[/prefix]"; the prefix is a plain key prefix that ends at a
 * component ("s3://b/p" shows what is below "p/"), not encoded; "." , ".." and empty
 * components in it are refused. ARNs, access points and directory buckets are refused.
 * `endpoint` "" or NULL: AWS's of the region ("https://s3.REGION.amazonaws.com", with the
 * suffix of the region's partition: .cn and so on), and AWS's rules for bucket names; else
 * "http[s]://host[:port][/base-path]", and looser names; a bare host means https. IPv6 in
 * brackets. User names, queries and fragments in it are refused. `region` "" or NULL:
 * us-east-1. AUTO: path style when the bucket's name is no single DNS label (dots, capitals,
 * underscores), or the endpoint is an address, "localhost", or has a port other than its
 * scheme's or a base path; else virtual. `detail` (>= 256 bytes, may be NULL) says what is
 * wrong and never repeats the text, which may hold a secret: DCTF_ERR_SOURCE_BAD (bucket or
 * prefix), DCTF_ERR_OPTION_VALUE (endpoint, region). */
DCTF_MUST_CHECK
enum dctf_err dctf_s3_address_init(struct dctf_s3_address *address, const char *source, const char *endpoint,
    const char *region, enum dctf_s3_style style, char *detail);
void dctf_s3_address_fini(struct dctf_s3_address *address);

/* Append the path of the request line for `key`, encoded, as it is both sent (dot segments
 * kept) and signed. `key` is a key below the mount: the prefix is put before it. "" is the
 * bucket itself, without the prefix: "/" or "/bucket/". */
void dctf_s3_address_path(const struct dctf_s3_address *address, const char *key, struct dctf_str *out);
/* Append scheme://host + path [+ ?query]; `query` may be "" or NULL. */
void dctf_s3_address_url(
    const struct dctf_s3_address *address, const char *path, const char *query, struct dctf_str *out);

#endif
