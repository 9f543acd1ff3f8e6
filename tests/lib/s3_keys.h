/* SPDX-License-Identifier: Apache-2.0
 *
 * Access keys: those that were added, and those handed out by STS, IMDS and the container endpoint.
 *
 * Threads:   any thread.
 * Ownership: s3_keys_new() gives what s3_keys_free() takes; strings are copied.
 */
#ifndef DCTF_TESTS_S3_KEYS_H
#define DCTF_TESTS_S3_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct s3_keys; /* opaque */

struct s3_key {
    char access[64];
    char secret[128];
    char token[2304];   /* empty: a key without a session */
    int64_t expires_ns; /* on the server's clock; 0: never */
};

struct s3_keys *s3_keys_new(void);
void s3_keys_free(struct s3_keys *keys);

/* Add a key or change it. When there are too many, the one that was added first goes. */
void s3_keys_add(struct s3_keys *keys, const struct s3_key *key);

/* False when there is no such key. */
bool s3_keys_find(struct s3_keys *keys, const char *access, struct s3_key *out);
bool s3_keys_remove(struct s3_keys *keys, const char *access);

/* Make up a key with a session token, good until expires_ns, and add it. */
void s3_keys_issue(struct s3_keys *keys, int64_t expires_ns, struct s3_key *out);

/* Every key with a session token expires at now_ns. */
void s3_keys_expire(struct s3_keys *keys, int64_t now_ns);

/* Random text of letters and digits, `len` of them and a NUL. */
void s3_random_text(char *out, size_t len);

#endif
