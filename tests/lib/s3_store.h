/* SPDX-License-Identifier: Apache-2.0
 *
 * Buckets and objects. The index is in memory, sorted by key; the bytes are on disk, in files that
 * are named by number and end with a trailer that tells the key, so any key works and the index can
 * be built anew at the next start. Imported objects stay where they are.
 *
 * Threads:   any thread; one lock for reading and writing, never held while bytes are copied.
 * Ownership: s3_store_open() gives what s3_store_close() takes. Strings are copied.
 */
#ifndef DCTF_TESTS_S3_STORE_H
#define DCTF_TESTS_S3_STORE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct s3_store; /* opaque */

struct s3_bucket_info {
    char name[64];
    char region[64];
    char redirect[256]; /* host:port; empty: it is here */
    bool is_public;
    bool requester_pays;
    int64_t created_ns;
};

struct s3_object_info {
    uint64_t size;
    int64_t mtime_ns;
    char etag[33]; /* hex, without quotes */
    bool read_only;
};

/* Bytes on their way to become an object. All zero before s3_store_put_begin(). */
struct s3_put {
    int fd;
    uint64_t number;
    uint64_t size;
};

enum s3_found { S3_FOUND, S3_NO_BUCKET, S3_NO_KEY, S3_READ_ONLY, S3_IO_ERROR };

/* dir NULL: a private directory, removed by close. NULL on failure, which is logged to stderr. */
struct s3_store *s3_store_open(const char *dir);
void s3_store_close(struct s3_store *store);

/* Make or change a bucket. NULL, or what is wrong (static). */
const char *s3_store_set_bucket(struct s3_store *store, const struct s3_bucket_info *info);
bool s3_store_bucket(struct s3_store *store, const char *name, struct s3_bucket_info *out);
bool s3_store_drop_bucket(struct s3_store *store, const char *name);
/* Copies of all, to free(); returns their number. */
size_t s3_store_buckets(struct s3_store *store, struct s3_bucket_info **out);

/* *fd may be NULL; else it is open for reading at offset 0 and the caller closes it. */
enum s3_found s3_store_get(
    struct s3_store *store, const char *bucket, const char *key, struct s3_object_info *out, int *fd);
/* Count a GET of the key. */
void s3_store_count(struct s3_store *store, const char *bucket, const char *key);
/* {"BUCKET/KEY": gets} of what was read; new reference. Keys that are no UTF-8 are left out. */
json_t *s3_store_counts(struct s3_store *store);
void s3_store_reset_counts(struct s3_store *store);

/* Begin, write(2) to put->fd through s3_store_put_write(), then either commit or abort. */
bool s3_store_put_begin(struct s3_store *store, struct s3_put *put);
bool s3_store_put_write(struct s3_put *put, const void *data, size_t len);
enum s3_found s3_store_put_commit(struct s3_store *store, struct s3_put *put, const char *bucket,
    const char *key, const unsigned char md5[16], int64_t now_ns);
void s3_store_put_abort(struct s3_store *store, struct s3_put *put);
enum s3_found s3_store_delete(struct s3_store *store, const char *bucket, const char *key);

/* `count` objects PREFIX%0*uSUFFIX of `size` bytes from one file. */
enum s3_found s3_store_bulk(struct s3_store *store, const char *bucket, const char *prefix,
    const char *suffix, uint64_t first, uint64_t count, unsigned digits, uint64_t size, int64_t now_ns);
/* The files below dir, as keys that begin with prefix. *count: how many. */
enum s3_found s3_store_import(
    struct s3_store *store, const char *bucket, const char *dir, const char *prefix, size_t *count);

/* One page of a listing. */
struct s3_page_query {
    const char *prefix;    /* "" for none */
    const char *delimiter; /* "" for none */
    const char *after;     /* keys and common prefixes behind this one; "" for all */
    size_t max;
};

/* Called for each entry, in order, with the store's lock held. info is NULL for a common prefix. */
typedef void s3_page_entry(void *arg, const char *name, const struct s3_object_info *info);

/* False when there is no such bucket. *last (to free()) names the last entry, NULL when there was none. */
bool s3_store_page(struct s3_store *store, const char *bucket, const struct s3_page_query *query,
    s3_page_entry *entry, void *arg, bool *truncated, char **last);

#endif
