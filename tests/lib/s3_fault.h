/* SPDX-License-Identifier: Apache-2.0
 *
 * Rules for how the server misbehaves; s3_server.h has the words.
 *
 * Threads:   any thread.
 * Ownership: s3_faults_new() gives what s3_faults_free() takes.
 */
#ifndef DCTF_TESTS_S3_FAULT_H
#define DCTF_TESTS_S3_FAULT_H

#include "lib/s3_stats.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct s3_faults; /* opaque */

enum s3_fault_kind {
    S3_FAULT_NONE,
    S3_FAULT_LATENCY,
    S3_FAULT_SLOW,
    S3_FAULT_STATUS,
    S3_FAULT_REDIRECT,
    S3_FAULT_WRONG_REGION,
    S3_FAULT_RESET,
    S3_FAULT_CUT,
    S3_FAULT_STALL,
    S3_FAULT_GARBAGE,
    S3_FAULT_WRONG_ETAG,
    S3_FAULT_WRONG_RANGE,
    S3_FAULT_IGNORE_RANGE,
    S3_FAULT_OVERWRITE,
    S3_FAULT_ERROR_200,
    S3_FAULT_TRUNCATED_XML,
    S3_FAULT_INVALID_XML,
    S3_FAULT_EMPTY,
};

/* What a rule does. */
struct s3_act {
    enum s3_fault_kind kind;
    unsigned id;
    unsigned status;
    int retry_after; /* seconds; -1: not told */
    int64_t after;   /* bytes of the body; -1: before the headers */
    double ms;
    double rate; /* bytes per second */
    bool total;
    char code[64];
    char message[256];
    char endpoint[256];
    char region[64];
    char etag[128];
};

/* What befalls one request. */
struct s3_plan {
    double latency_ms;
    double rate; /* 0: as fast as it goes */
    struct s3_act act;
    unsigned fired[8]; /* ids, ended by 0 */
};

struct s3_faults *s3_faults_new(void);
void s3_faults_free(struct s3_faults *faults);

/* Start the dice anew. */
void s3_faults_seed(struct s3_faults *faults, uint64_t seed);

/* One rule or {"rules", "replace"}. All of the rules or, on an error, none. *ids is a new reference.
 * NULL, or what is wrong (static). */
const char *s3_faults_add(struct s3_faults *faults, json_t *object, json_t **ids);
/* id 0: all. False when there is no such rule. */
bool s3_faults_remove(struct s3_faults *faults, unsigned id);
bool s3_faults_has(struct s3_faults *faults, unsigned id);
json_t *s3_faults_json(struct s3_faults *faults);

/* bucket and key may be NULL. Counts the rules that match. */
void s3_faults_plan(
    struct s3_faults *faults, enum s3_op op, const char *bucket, const char *key, struct s3_plan *out);

#endif
