/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/s3_store_index.h"

#include "lib/s3_text.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct s3_object *s3_object_new(const char *key)
{
    size_t len = strlen(key);
    struct s3_object *object = s3_alloc(sizeof(*object) + len + 1);

    memcpy(object->key, key, len);
    return object;
}

void s3_object_info(const struct s3_object *object, struct s3_object_info *out)
{
    static const char digits[] = "0123456789abcdef";

    *out = (struct s3_object_info){
        .size = object->size, .mtime_ns = object->mtime_ns, .read_only = object->source};
    for (size_t i = 0; i < 16; i++) {
        out->etag[2 * i] = digits[object->etag[i] >> 4];
        out->etag[2 * i + 1] = digits[object->etag[i] & 15];
    }
}

void s3_index_fini(struct s3_index *index)
{
    for (size_t i = 0; i < index->count; i++)
        free(index->objects[i]);
    free(index->objects);
    *index = (struct s3_index){0};
}

size_t s3_index_find(const struct s3_index *index, const char *key, bool behind)
{
    size_t low = 0, high = index->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(index->objects[middle]->key, key);

        if (order < 0 || (behind && order == 0))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

size_t s3_index_behind(const struct s3_index *index, const char *prefix)
{
    size_t low = 0, high = index->count, len = strlen(prefix);

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (strncmp(index->objects[middle]->key, prefix, len) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct s3_object *s3_index_get(const struct s3_index *index, const char *key)
{
    size_t i = s3_index_find(index, key, false);

    return i < index->count && !strcmp(index->objects[i]->key, key) ? index->objects[i] : NULL;
}

static void reserve(struct s3_index *index, size_t count)
{
    if (count <= index->cap)
        return;
    index->cap = count + count / 2 + 64;
    index->objects = s3_realloc(index->objects, index->cap * sizeof(struct s3_object *));
}

struct s3_object *s3_index_put(struct s3_index *index, struct s3_object *object)
{
    size_t i = s3_index_find(index, object->key, false);

    if (i < index->count && !strcmp(index->objects[i]->key, object->key)) {
        struct s3_object *old = index->objects[i];

        atomic_store(&object->gets, atomic_load(&old->gets));
        index->objects[i] = object;
        return old;
    }
    reserve(index, index->count + 1);
    memmove(&index->objects[i + 1], &index->objects[i], (index->count - i) * sizeof(struct s3_object *));
    index->objects[i] = object;
    index->count++;
    return NULL;
}

struct s3_object *s3_index_take(struct s3_index *index, const char *key)
{
    size_t i = s3_index_find(index, key, false);

    if (i == index->count || strcmp(index->objects[i]->key, key) != 0)
        return NULL;
    struct s3_object *object = index->objects[i];

    memmove(&index->objects[i], &index->objects[i + 1], (index->count - i - 1) * sizeof(struct s3_object *));
    index->count--;
    return object;
}

/* Where it stood decides among equal keys. */
struct placed {
    struct s3_object *object;
    size_t at;
};

static int compare(const void *a, const void *b)
{
    const struct placed *left = a, *right = b;
    int order = strcmp(left->object->key, right->object->key);

    return order ? order : (left->at > right->at) - (left->at < right->at);
}

void s3_index_merge(struct s3_index *index, struct s3_object **objects, size_t count,
    void (*replaced)(void *arg, struct s3_object *object), void *arg)
{
    size_t all = index->count + count, kept = 0;
    struct placed *sorted = s3_alloc((all + 1) * sizeof(*sorted));

    for (size_t i = 0; i < all; i++)
        sorted[i] = (struct placed){i < index->count ? index->objects[i] : objects[i - index->count], i};
    qsort(sorted, all, sizeof(*sorted), compare);
    reserve(index, all);
    for (size_t i = 0; i < all; i++) {
        if (i + 1 < all && !strcmp(sorted[i].object->key, sorted[i + 1].object->key))
            replaced(arg, sorted[i].object);
        else
            index->objects[kept++] = sorted[i].object;
    }
    index->count = kept;
    free(sorted);
}

struct s3_bucket *s3_bucket_find(const struct s3_store *store, const char *name)
{
    for (size_t i = 0; i < store->count; i++) {
        if (!strcmp(store->buckets[i]->info.name, name))
            return store->buckets[i];
    }
    return NULL;
}

void s3_stored_path(const struct s3_store *store, const char *bucket, uint64_t number, char *out)
{
    snprintf(out, PATH_MAX, "%s/%s/%016llx", store->dir, bucket, (unsigned long long)number);
}
