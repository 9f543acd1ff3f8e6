/* SPDX-License-Identifier: Apache-2.0
 *
 * What the server counts, and the last requests.
 *
 * Threads:   any thread.
 * Ownership: s3_stats_new() gives what s3_stats_free() takes; strings are copied.
 */
#ifndef DCTF_TESTS_S3_STATS_H
#define DCTF_TESTS_S3_STATS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum s3_op {
    S3_LIST,
    S3_GET,
    S3_HEAD,
    S3_PUT,
    S3_DELETE,
    S3_BUCKET, /* ListBuckets, HeadBucket, GetBucketLocation */
    S3_STS,
    S3_IMDS,
    S3_CONTAINER,
    S3_OTHER,
    S3_OPS
};

enum s3_auth_kind { S3_AUTH_NONE, S3_AUTH_ANONYMOUS, S3_AUTH_V2, S3_AUTH_V4, S3_AUTH_KINDS };

struct s3_stats; /* opaque */

/* One request as it is answered. Pointers may be NULL. */
struct s3_record {
    enum s3_op op;
    const char *method;
    const char *target;
    const char *host;
    const char *range;
    const char *if_match;
    const char *access_key;
    const char *error; /* S3 error code that was answered */
    unsigned status;   /* 0: no answer in HTTP */
    uint64_t bytes_out, bytes_in;
    uint64_t connection;
    enum s3_auth_kind auth;
    bool not_canonical;
    unsigned faults[8]; /* rules that acted, ended by 0 */
};

const char *s3_op_name(enum s3_op op);
/* S3_OPS when there is none of this name. */
enum s3_op s3_op_named(const char *name);

struct s3_stats *s3_stats_new(void);
void s3_stats_free(struct s3_stats *stats);
void s3_stats_reset(struct s3_stats *stats);

/* A connection came (its number is returned), went, or turns out to be of the control interface. */
uint64_t s3_stats_accept(struct s3_stats *stats);
void s3_stats_close(struct s3_stats *stats);
void s3_stats_forget_connection(struct s3_stats *stats);

void s3_stats_begin(struct s3_stats *stats, enum s3_op op);
/* Before the first byte of the answer goes out, so that a client that has it finds it counted. Returns a
 * number for s3_stats_end(). */
uint64_t s3_stats_answer(struct s3_stats *stats, const struct s3_record *record);
/* The answer is over: of the bytes that s3_stats_answer() counted, `sent` were sent. */
void s3_stats_end(struct s3_stats *stats, uint64_t number, uint64_t counted, uint64_t sent);

/* New references. */
json_t *s3_stats_json(struct s3_stats *stats);
json_t *s3_stats_requests(struct s3_stats *stats, size_t last);

#endif
