/* SPDX-License-Identifier: Apache-2.0
 *
 * The store's parts: the index of a bucket, and the files behind it. Of s3_store*.c only.
 *
 * Threads:   the caller holds the store's lock, for writing where something changes.
 * Ownership: an index owns its objects; sources live as long as the store.
 */
#ifndef DCTF_TESTS_S3_STORE_INDEX_H
#define DCTF_TESTS_S3_STORE_INDEX_H

#include "lib/s3_store.h"

#include <pthread.h>
#include <stdatomic.h>

enum s3_source_kind {
    S3_STORED,   /* DIR/BUCKET/NUMBER, with a trailer */
    S3_SHARED,   /* `path` is the file, for all of its objects */
    S3_IMPORTED, /* path, then the key without `strip` bytes */
};

struct s3_source {
    enum s3_source_kind kind;
    size_t strip;
    struct s3_source *next;
    char path[];
};

struct s3_object {
    struct s3_source *source; /* NULL: S3_STORED */
    uint64_t number;
    uint64_t size;
    int64_t mtime_ns;
    atomic_uint gets;
    unsigned char etag[16];
    char key[];
};

struct s3_index {
    struct s3_object **objects; /* sorted by the bytes of the key */
    size_t count;
    size_t cap;
};

struct s3_bucket {
    struct s3_bucket_info info;
    struct s3_index index;
};

struct s3_store {
    pthread_rwlock_t lock;
    struct s3_bucket **buckets; /* guarded by lock; sorted by name */
    size_t count;               /* guarded by lock */
    struct s3_source *sources;  /* guarded by lock */
    atomic_uint_fast64_t next_number;
    bool temporary;
    char dir[];
};

struct s3_object *s3_object_new(const char *key);
void s3_object_info(const struct s3_object *object, struct s3_object_info *out);

void s3_index_fini(struct s3_index *index);
/* Where the first key is that is not less than (or, with `behind`, greater than) this one. */
size_t s3_index_find(const struct s3_index *index, const char *key, bool behind);
/* Behind all keys that begin with this. */
size_t s3_index_behind(const struct s3_index *index, const char *prefix);
struct s3_object *s3_index_get(const struct s3_index *index, const char *key);
/* Takes ownership; the object that had the key is returned, for the caller to free. */
struct s3_object *s3_index_put(struct s3_index *index, struct s3_object *object);
struct s3_object *s3_index_take(struct s3_index *index, const char *key);
/* Takes ownership of many, in any order, the later of one key wins. What they replace is given to `replaced`.
 */
void s3_index_merge(struct s3_index *index, struct s3_object **objects, size_t count,
    void (*replaced)(void *arg, struct s3_object *object), void *arg);

struct s3_bucket *s3_bucket_find(const struct s3_store *store, const char *name);
/* Of a stored object. out holds PATH_MAX bytes. */
void s3_stored_path(const struct s3_store *store, const char *bucket, uint64_t number, char *out);

/* Files (s3_store_disk.c). */
bool s3_disk_write_trailer(int fd, const struct s3_object *object);
/* The objects of a bucket's directory, and its bucket.json. */
bool s3_disk_load(struct s3_store *store);
bool s3_disk_save_bucket(const struct s3_store *store, const struct s3_bucket_info *info);
bool s3_disk_remove_tree(const char *dir);
struct s3_source *s3_source_new(
    struct s3_store *store, enum s3_source_kind kind, const char *path, size_t strip);

#endif
