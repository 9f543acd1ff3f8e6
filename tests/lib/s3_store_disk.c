/* SPDX-License-Identifier: Apache-2.0
 *
 * Files of the store: DIR/BUCKET/bucket.json and DIR/BUCKET/<number>. A file is the object's
 * bytes, then its key, then struct trailer. Files come by rename from DIR/.new, so they are whole.
 */
#include "lib/s3_store_index.h"
#include "lib/s3_text.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC UINT64_C(0x3173336674636401)

struct trailer {
    uint64_t size;
    int64_t mtime_ns;
    unsigned char etag[16];
    uint64_t key_len;
    uint64_t magic;
};

bool s3_disk_write_trailer(int fd, const struct s3_object *object)
{
    struct trailer trailer = {
        .size = object->size,
        .mtime_ns = object->mtime_ns,
        .key_len = strlen(object->key),
        .magic = MAGIC,
    };
    struct s3_text text = {0};

    memcpy(trailer.etag, object->etag, 16);
    s3_text_add_n(&text, object->key, trailer.key_len);
    s3_text_add_n(&text, &trailer, sizeof(trailer));
    bool ok = pwrite(fd, text.data, text.len, (off_t)object->size) == (ssize_t)text.len;

    s3_text_fini(&text);
    return ok;
}

static struct s3_object *read_object(int fd)
{
    struct trailer trailer;
    struct stat st;

    if (fstat(fd, &st) || st.st_size < (off_t)sizeof(trailer) ||
        pread(fd, &trailer, sizeof(trailer), st.st_size - (off_t)sizeof(trailer)) != (ssize_t)sizeof(trailer))
        return NULL;
    if (trailer.magic != MAGIC || trailer.key_len > PATH_MAX ||
        trailer.size + trailer.key_len + sizeof(trailer) != (uint64_t)st.st_size)
        return NULL;
    char *key = s3_alloc(trailer.key_len + 1);
    struct s3_object *object = NULL;

    if (pread(fd, key, trailer.key_len, (off_t)trailer.size) == (ssize_t)trailer.key_len) {
        object = s3_object_new(key);
        object->size = trailer.size;
        object->mtime_ns = trailer.mtime_ns;
        memcpy(object->etag, trailer.etag, 16);
    }
    free(key);
    return object;
}

static void load_objects(struct s3_store *store, struct s3_bucket *bucket, DIR *dir)
{
    struct dirent *entry;

    while ((entry = readdir(dir))) {
        char *end;
        uint64_t number = strtoull(entry->d_name, &end, 16);

        if (strlen(entry->d_name) != 16 || *end)
            continue;
        int fd = openat(dirfd(dir), entry->d_name, O_RDONLY | O_CLOEXEC);
        struct s3_object *object = fd < 0 ? NULL : read_object(fd);

        if (fd >= 0)
            close(fd);
        if (!object)
            continue;
        object->number = number;
        if (number >= store->next_number)
            store->next_number = number + 1;
        struct s3_object *old = s3_index_get(&bucket->index, object->key);

        /* Two of one key: a crash came between rename and unlink. The later one counts. */
        if (old && old->number > number)
            free(object);
        else
            free(s3_index_put(&bucket->index, object));
    }
}

static void load_bucket(struct s3_store *store, const char *name)
{
    char path[PATH_MAX];
    struct s3_bucket_info info = {0};

    snprintf(path, sizeof(path), "%s/%s/bucket.json", store->dir, name);
    json_t *json = json_load_file(path, 0, NULL);
    const char *region = json_string_value(json_object_get(json, "region"));
    const char *redirect = json_string_value(json_object_get(json, "redirect"));

    if (strlen(name) >= sizeof(info.name)) {
        json_decref(json);
        return;
    }
    strcpy(info.name, name);
    snprintf(info.region, sizeof(info.region), "%s", region ? region : "us-east-1");
    snprintf(info.redirect, sizeof(info.redirect), "%s", redirect ? redirect : "");
    info.is_public = json_is_true(json_object_get(json, "public"));
    info.requester_pays = json_is_true(json_object_get(json, "requester_pays"));
    info.created_ns = json_integer_value(json_object_get(json, "created_ns"));
    if (json && !s3_store_set_bucket(store, &info)) {
        snprintf(path, sizeof(path), "%s/%s", store->dir, name);
        DIR *dir = opendir(path);

        if (dir) {
            load_objects(store, s3_bucket_find(store, name), dir);
            closedir(dir);
        }
    }
    json_decref(json);
}

bool s3_disk_load(struct s3_store *store)
{
    char path[PATH_MAX];
    DIR *dir = opendir(store->dir);
    struct dirent *entry;

    if (!dir)
        return false;
    while ((entry = readdir(dir))) {
        if (entry->d_name[0] != '.')
            load_bucket(store, entry->d_name);
    }
    closedir(dir);
    snprintf(path, sizeof(path), "%s/.new", store->dir);
    s3_disk_remove_tree(path);
    return mkdir(path, 0700) == 0;
}

bool s3_disk_save_bucket(const struct s3_store *store, const struct s3_bucket_info *info)
{
    char path[PATH_MAX];
    int len = snprintf(path, sizeof(path), "%s/%s", store->dir, info->name);

    if (mkdir(path, 0700) && errno != EEXIST)
        return false;
    snprintf(path + len, sizeof(path) - (size_t)len, "/bucket.json");
    json_t *json = json_pack("{s:s,s:s,s:b,s:b,s:I}", "region", info->region, "redirect", info->redirect,
        "public", info->is_public, "requester_pays", info->requester_pays, "created_ns",
        (json_int_t)info->created_ns);
    bool ok = json && json_dump_file(json, path, 0) == 0;

    json_decref(json);
    return ok;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

bool s3_disk_remove_tree(const char *dir)
{
    return nftw(dir, remove_one, 32, FTW_DEPTH | FTW_PHYS) == 0;
}

struct s3_source *s3_source_new(
    struct s3_store *store, enum s3_source_kind kind, const char *path, size_t strip)
{
    struct s3_source *source = s3_alloc(sizeof(*source) + strlen(path) + 1);

    source->kind = kind;
    source->strip = strip;
    memcpy(source->path, path, strlen(path));
    source->next = store->sources;
    store->sources = source;
    return source;
}
