/* SPDX-License-Identifier: Apache-2.0
 *
 * What can be set while the server runs, and its clock.
 *
 * Threads:   any thread.
 * Ownership: s3_settings_new() gives what s3_settings_free() takes.
 */
#ifndef DCTF_TESTS_S3_SETTINGS_H
#define DCTF_TESTS_S3_SETTINGS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct s3_settings; /* opaque */

/* A copy of all of them. */
struct s3_values {
    double clock_offset;
    double max_skew;
    double session_seconds;
    uint64_t seed;
    bool imds_v1;
    char imds_role[128];
    char imds_region[64];
    char container_token[2048];
    char web_identity_token[4096];
    char list_space[16];
};

struct s3_settings *s3_settings_new(void);
void s3_settings_free(struct s3_settings *settings);

void s3_settings_get(struct s3_settings *settings, struct s3_values *out);

/* New reference. */
json_t *s3_settings_json(struct s3_settings *settings);

/* All of the object's fields or, on an error, none of them. NULL, or what is wrong (static). */
const char *s3_settings_set(struct s3_settings *settings, json_t *object);

/* The server's clock: nanoseconds since 1970. */
int64_t s3_settings_now(struct s3_settings *settings);

#endif
