/* SPDX-License-Identifier: Apache-2.0
 *
 * How objects come into the store, and leave it.
 */
#include "lib/s3_store.h"
#include "lib/s3_store_index.h"
#include "lib/s3_text.h"

#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <inttypes.h>
#include <limits.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void new_path(const struct s3_store *store, uint64_t number, char *out)
{
    snprintf(out, PATH_MAX, "%s/.new/%016llx", store->dir, (unsigned long long)number);
}

bool s3_store_put_begin(struct s3_store *store, struct s3_put *put)
{
    char path[PATH_MAX];

    *put = (struct s3_put){.number = atomic_fetch_add(&store->next_number, 1)};
    new_path(store, put->number, path);
    put->fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    return put->fd >= 0;
}

bool s3_store_put_write(struct s3_put *put, const void *data, size_t len)
{
    const char *at = data;

    while (len) {
        ssize_t done = write(put->fd, at, len);

        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return false;
        at += done;
        len -= (size_t)done;
        put->size += (uint64_t)done;
    }
    return true;
}

void s3_store_put_abort(struct s3_store *store, struct s3_put *put)
{
    char path[PATH_MAX];

    if (!put->number)
        return;
    if (put->fd >= 0)
        close(put->fd);
    new_path(store, put->number, path);
    unlink(path);
    *put = (struct s3_put){.fd = -1};
}

/* The file of a stored object that is no more; readers that have it open go on. */
static void drop_stored(struct s3_store *store, const char *bucket, struct s3_object *object)
{
    char path[PATH_MAX];

    if (object && !object->source) {
        s3_stored_path(store, bucket, object->number, path);
        unlink(path);
    }
    free(object);
}

enum s3_found s3_store_put_commit(struct s3_store *store, struct s3_put *put, const char *bucket,
    const char *key, const unsigned char md5[16], int64_t now_ns)
{
    char from[PATH_MAX], to[PATH_MAX];
    struct s3_object *object = s3_object_new(key);
    enum s3_found found = S3_FOUND;

    object->number = put->number;
    object->size = put->size;
    object->mtime_ns = now_ns;
    memcpy(object->etag, md5, 16);
    new_path(store, put->number, from);
    s3_stored_path(store, bucket, put->number, to);
    bool written = s3_disk_write_trailer(put->fd, object);

    pthread_rwlock_wrlock(&store->lock);
    struct s3_bucket *in = s3_bucket_find(store, bucket);

    if (!in)
        found = S3_NO_BUCKET;
    else if (!written || rename(from, to))
        found = S3_IO_ERROR;
    else
        drop_stored(store, bucket, s3_index_put(&in->index, object));
    pthread_rwlock_unlock(&store->lock);
    if (found != S3_FOUND) {
        free(object);
        s3_store_put_abort(store, put);
        return found;
    }
    close(put->fd);
    *put = (struct s3_put){.fd = -1};
    return S3_FOUND;
}

enum s3_found s3_store_delete(struct s3_store *store, const char *bucket, const char *key)
{
    pthread_rwlock_wrlock(&store->lock);
    struct s3_bucket *in = s3_bucket_find(store, bucket);
    struct s3_object *object = in ? s3_index_take(&in->index, key) : NULL;
    enum s3_found found = object ? S3_FOUND : in ? S3_NO_KEY : S3_NO_BUCKET;

    drop_stored(store, bucket, object);
    pthread_rwlock_unlock(&store->lock);
    return found;
}

/* An ETag that says as much as mtime, size and inode do. */
static void derive_etag(struct s3_object *object, uint64_t inode)
{
    uint64_t words[3] = {object->size, (uint64_t)object->mtime_ns, inode};
    unsigned char digest[EVP_MAX_MD_SIZE];

    EVP_Digest(words, sizeof(words), digest, NULL, EVP_md5(), NULL);
    memcpy(object->etag, digest, 16);
}

struct replaced {
    struct s3_store *store;
    const char *bucket;
};

static void drop_replaced(void *arg, struct s3_object *object)
{
    struct replaced *replaced = arg;

    drop_stored(replaced->store, replaced->bucket, object);
}

/* Takes ownership of the objects, and frees the list. */
static enum s3_found add_many(
    struct s3_store *store, const char *bucket, struct s3_object **objects, size_t count)
{
    pthread_rwlock_wrlock(&store->lock);
    struct s3_bucket *in = s3_bucket_find(store, bucket);

    if (in)
        s3_index_merge(&in->index, objects, count, drop_replaced, &(struct replaced){store, bucket});
    pthread_rwlock_unlock(&store->lock);
    for (size_t i = 0; !in && i < count; i++)
        free(objects[i]);
    free(objects);
    return in ? S3_FOUND : S3_NO_BUCKET;
}

/* One file of `size` bytes that do not repeat, for all objects of a bulk. */
static struct s3_source *shared_file(struct s3_store *store, const char *bucket, uint64_t size)
{
    char path[PATH_MAX], block[65536];
    struct s3_put put;
    uint64_t state = size + 1;

    if (!s3_store_put_begin(store, &put))
        return NULL;
    for (uint64_t done = 0; done < size;) {
        for (size_t i = 0; i < sizeof(block); i += sizeof(state)) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            memcpy(block + i, &state, sizeof(state));
        }
        size_t len = size - done < sizeof(block) ? (size_t)(size - done) : sizeof(block);

        if (!s3_store_put_write(&put, block, len)) {
            s3_store_put_abort(store, &put);
            return NULL;
        }
        done += len;
    }
    close(put.fd);
    new_path(store, put.number, block);
    snprintf(path, sizeof(path), "%s/%s/shared-%llx", store->dir, bucket, (unsigned long long)put.number);
    if (rename(block, path))
        return NULL;
    pthread_rwlock_wrlock(&store->lock);
    struct s3_source *source = s3_source_new(store, S3_SHARED, path, 0);

    pthread_rwlock_unlock(&store->lock);
    return source;
}

enum s3_found s3_store_bulk(struct s3_store *store, const char *bucket, const char *prefix,
    const char *suffix, uint64_t first, uint64_t count, unsigned digits, uint64_t size, int64_t now_ns)
{
    struct s3_bucket_info info;

    if (!s3_store_bucket(store, bucket, &info))
        return S3_NO_BUCKET;
    struct s3_source *source = shared_file(store, bucket, size);
    struct s3_text key = {0};

    if (!source)
        return S3_IO_ERROR;
    struct s3_object **objects = s3_alloc((count + 1) * sizeof(*objects));

    for (uint64_t i = 0; i < count; i++) {
        key.len = 0;
        s3_text_printf(&key, "%s%0*" PRIu64 "%s", prefix, (int)digits, first + i, suffix);
        objects[i] = s3_object_new(key.data);
        objects[i]->source = source;
        objects[i]->size = size;
        objects[i]->mtime_ns = now_ns;
        derive_etag(objects[i], first + i);
    }
    s3_text_fini(&key);
    return add_many(store, bucket, objects, count);
}

/* One file of the walk; NULL when its name cannot be a key. */
static struct s3_object *imported(const FTSENT *entry, struct s3_source *source, const char *prefix)
{
    const char *name = entry->fts_path + strlen(source->path) + 1;
    struct s3_text key = {0};

    if (!s3_is_utf8(name))
        return NULL;
    s3_text_printf(&key, "%s%s", prefix, name);
    struct s3_object *object = s3_object_new(key.data);

    object->source = source;
    object->size = (uint64_t)entry->fts_statp->st_size;
    object->mtime_ns =
        entry->fts_statp->st_mtim.tv_sec * INT64_C(1000000000) + entry->fts_statp->st_mtim.tv_nsec;
    derive_etag(object, entry->fts_statp->st_ino);
    s3_text_fini(&key);
    return object;
}

enum s3_found s3_store_import(
    struct s3_store *store, const char *bucket, const char *dir, const char *prefix, size_t *count)
{
    char root[PATH_MAX];
    char *roots[2] = {realpath(dir, root), NULL};
    FTS *walk = roots[0] ? fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL) : NULL;
    struct s3_object **objects = NULL;
    size_t cap = 0;
    FTSENT *entry;

    *count = 0;
    if (!walk)
        return S3_IO_ERROR;
    pthread_rwlock_wrlock(&store->lock);
    struct s3_source *source = s3_source_new(store, S3_IMPORTED, root, strlen(prefix));

    pthread_rwlock_unlock(&store->lock);
    while ((entry = fts_read(walk))) {
        struct s3_object *object = entry->fts_info == FTS_F ? imported(entry, source, prefix) : NULL;

        if (!object)
            continue;
        if (*count == cap) {
            cap = cap ? 2 * cap : 1024;
            objects = s3_realloc(objects, cap * sizeof(*objects));
        }
        objects[(*count)++] = object;
    }
    fts_close(walk);
    return add_many(store, bucket, objects, *count);
}
