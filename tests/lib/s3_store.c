/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/s3_store.h"

#include "lib/s3_store_index.h"
#include "lib/s3_text.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct s3_store *s3_store_open(const char *dir)
{
    char temporary[PATH_MAX];
    const char *tmp = getenv("TMPDIR");

    if (!dir) {
        snprintf(temporary, sizeof(temporary), "%s/dctf-s3-XXXXXX", tmp && *tmp ? tmp : "/tmp");
        if (!mkdtemp(temporary)) {
            perror("dctf-s3-server: a temporary directory");
            return NULL;
        }
    } else if (mkdir(dir, 0700) && errno != EEXIST) {
        perror(dir);
        return NULL;
    }
    const char *root = dir ? dir : temporary;
    struct s3_store *store = s3_alloc(sizeof(*store) + strlen(root) + 1);

    memcpy(store->dir, root, strlen(root));
    store->temporary = !dir;
    store->next_number = 1;
    pthread_rwlock_init(&store->lock, NULL);
    if (!s3_disk_load(store)) {
        perror(store->dir);
        s3_store_close(store);
        return NULL;
    }
    return store;
}

static void free_bucket(struct s3_bucket *bucket)
{
    s3_index_fini(&bucket->index);
    free(bucket);
}

void s3_store_close(struct s3_store *store)
{
    if (store->temporary)
        s3_disk_remove_tree(store->dir);
    for (size_t i = 0; i < store->count; i++)
        free_bucket(store->buckets[i]);
    free(store->buckets);
    while (store->sources) {
        struct s3_source *next = store->sources->next;

        free(store->sources);
        store->sources = next;
    }
    pthread_rwlock_destroy(&store->lock);
    free(store);
}

static const char *bad_name(const char *name)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyz0123456789-._";
    size_t len = strlen(name);

    if (len < 3 || len > 63 || strspn(name, allowed) != len || !strchr(allowed, name[0]) || name[0] == '.' ||
        name[0] == '-')
        return "a bucket's name is 3 to 63 of a-z, 0-9, '-', '.' and '_', and begins with a letter or digit";
    return strcmp(name, "latest") ? NULL : "the name latest is reserved for IMDS";
}

const char *s3_store_set_bucket(struct s3_store *store, const struct s3_bucket_info *info)
{
    const char *wrong = bad_name(info->name);

    if (wrong)
        return wrong;
    pthread_rwlock_wrlock(&store->lock);
    struct s3_bucket *bucket = s3_bucket_find(store, info->name);

    if (!s3_disk_save_bucket(store, info)) {
        wrong = "the bucket's directory cannot be written";
    } else if (bucket) {
        bucket->info = *info;
    } else {
        size_t i = store->count;

        bucket = s3_alloc(sizeof(*bucket));
        bucket->info = *info;
        store->buckets = s3_realloc(store->buckets, (store->count + 1) * sizeof(struct s3_bucket *));
        for (; i > 0 && strcmp(store->buckets[i - 1]->info.name, info->name) > 0; i--)
            store->buckets[i] = store->buckets[i - 1];
        store->buckets[i] = bucket;
        store->count++;
    }
    pthread_rwlock_unlock(&store->lock);
    return wrong;
}

bool s3_store_bucket(struct s3_store *store, const char *name, struct s3_bucket_info *out)
{
    pthread_rwlock_rdlock(&store->lock);
    struct s3_bucket *bucket = s3_bucket_find(store, name);

    if (bucket)
        *out = bucket->info;
    pthread_rwlock_unlock(&store->lock);
    return bucket != NULL;
}

bool s3_store_drop_bucket(struct s3_store *store, const char *name)
{
    char path[PATH_MAX];
    bool found = false;

    pthread_rwlock_wrlock(&store->lock);
    for (size_t i = 0; i < store->count && !found; i++) {
        if (strcmp(store->buckets[i]->info.name, name) != 0)
            continue;
        found = true;
        free_bucket(store->buckets[i]);
        memmove(
            &store->buckets[i], &store->buckets[i + 1], (store->count - i - 1) * sizeof(struct s3_bucket *));
        store->count--;
        snprintf(path, sizeof(path), "%s/%s", store->dir, name);
        s3_disk_remove_tree(path);
    }
    pthread_rwlock_unlock(&store->lock);
    return found;
}

size_t s3_store_buckets(struct s3_store *store, struct s3_bucket_info **out)
{
    pthread_rwlock_rdlock(&store->lock);
    size_t count = store->count;

    *out = s3_alloc((count + 1) * sizeof(**out));
    for (size_t i = 0; i < count; i++)
        (*out)[i] = store->buckets[i]->info;
    pthread_rwlock_unlock(&store->lock);
    return count;
}

static int open_object_locked(struct s3_store *store, const char *bucket, const struct s3_object *object)
{
    const struct s3_source *source = object->source;
    char path[PATH_MAX];

    if (!source)
        s3_stored_path(store, bucket, object->number, path);
    else if (source->kind == S3_SHARED)
        snprintf(path, sizeof(path), "%s", source->path);
    else if (snprintf(path, sizeof(path), "%s/%s", source->path, object->key + source->strip) >= PATH_MAX)
        return -1;
    return open(path, O_RDONLY | O_CLOEXEC);
}

enum s3_found s3_store_get(
    struct s3_store *store, const char *bucket, const char *key, struct s3_object_info *out, int *fd)
{
    enum s3_found found = S3_FOUND;

    pthread_rwlock_rdlock(&store->lock);
    struct s3_bucket *in = s3_bucket_find(store, bucket);
    struct s3_object *object = in ? s3_index_get(&in->index, key) : NULL;

    if (!object)
        found = in ? S3_NO_KEY : S3_NO_BUCKET;
    else
        s3_object_info(object, out);
    if (object && fd && (*fd = open_object_locked(store, bucket, object)) < 0)
        found = S3_IO_ERROR;
    pthread_rwlock_unlock(&store->lock);
    return found;
}

void s3_store_count(struct s3_store *store, const char *bucket, const char *key)
{
    pthread_rwlock_rdlock(&store->lock);
    struct s3_bucket *in = s3_bucket_find(store, bucket);
    struct s3_object *object = in ? s3_index_get(&in->index, key) : NULL;

    if (object)
        atomic_fetch_add(&object->gets, 1);
    pthread_rwlock_unlock(&store->lock);
}

json_t *s3_store_counts(struct s3_store *store)
{
    json_t *counts = json_object();
    struct s3_text name = {0};

    pthread_rwlock_rdlock(&store->lock);
    for (size_t b = 0; b < store->count; b++) {
        const struct s3_bucket *bucket = store->buckets[b];

        for (size_t i = 0; i < bucket->index.count; i++) {
            struct s3_object *object = bucket->index.objects[i];
            unsigned gets = atomic_load(&object->gets);

            if (!gets)
                continue;
            name.len = 0;
            s3_text_printf(&name, "%s/%s", bucket->info.name, object->key);
            json_object_set_new(counts, name.data, json_integer(gets));
        }
    }
    pthread_rwlock_unlock(&store->lock);
    s3_text_fini(&name);
    return counts;
}

void s3_store_reset_counts(struct s3_store *store)
{
    pthread_rwlock_rdlock(&store->lock);
    for (size_t b = 0; b < store->count; b++) {
        for (size_t i = 0; i < store->buckets[b]->index.count; i++)
            atomic_store(&store->buckets[b]->index.objects[i]->gets, 0);
    }
    pthread_rwlock_unlock(&store->lock);
}

/* Length of the name of the entry at i: of the common prefix it is part of, or 0 for a key. */
static size_t common_length(const char *key, const struct s3_page_query *query)
{
    size_t prefix = strlen(query->prefix);
    const char *end = *query->delimiter ? strstr(key + prefix, query->delimiter) : NULL;

    return end ? (size_t)(end - key) + strlen(query->delimiter) : 0;
}

static size_t first_entry(const struct s3_index *index, const struct s3_page_query *query)
{
    size_t first = s3_index_find(index, query->prefix, false), prefix = strlen(query->prefix);

    if (!*query->after)
        return first;
    /* Behind a common prefix is behind all of its keys. */
    bool common = !strncmp(query->after, query->prefix, prefix) &&
                  common_length(query->after, query) == strlen(query->after);
    size_t behind = common ? s3_index_behind(index, query->after) : s3_index_find(index, query->after, true);

    return behind > first ? behind : first;
}

bool s3_store_page(struct s3_store *store, const char *bucket, const struct s3_page_query *query,
    s3_page_entry *entry, void *arg, bool *truncated, char **last)
{
    size_t count = 0, prefix = strlen(query->prefix);
    struct s3_object_info info;

    *truncated = false;
    *last = NULL;
    pthread_rwlock_rdlock(&store->lock);
    struct s3_bucket *in = s3_bucket_find(store, bucket);
    const struct s3_index *index = in ? &in->index : NULL;

    for (size_t i = in ? first_entry(index, query) : 0; in && query->max && i < index->count; count++) {
        const struct s3_object *object = index->objects[i];

        if (strncmp(object->key, query->prefix, prefix) != 0)
            break;
        if (count == query->max) {
            *truncated = true;
            break;
        }
        size_t common = common_length(object->key, query);

        free(*last);
        *last = common ? s3_copy_n(object->key, common) : s3_copy(object->key);
        if (!common)
            s3_object_info(object, &info);
        entry(arg, *last, common ? NULL : &info);
        i = common ? s3_index_behind(index, *last) : i + 1;
    }
    pthread_rwlock_unlock(&store->lock);
    return in != NULL;
}
