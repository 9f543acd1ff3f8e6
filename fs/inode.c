/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/inode.h"

#include "base/metric.h"
#include "base/version.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MIN_BUCKETS 1024u
#define SHRUNK_MIN 65536u

struct dctf_inodes {
    uint64_t dataset;
    struct dctf_metrics *metrics;
    pthread_mutex_t lock;
    struct dctf_inode **buckets; /* guarded by lock */
    size_t bucket_count;         /* power of two; guarded by lock */
    size_t count;                /* guarded by lock */
    size_t freed;                /* since dctf_inodes_shrunk() last said true; guarded by lock */
    struct dctf_inode *root;
};

enum dctf_err dctf_path_join(const char *dir, const char *name, char *buf)
{
    size_t dir_len = strlen(dir);
    size_t name_len = strlen(name);
    size_t slash = dir_len ? 1 : 0;

    if (dir_len + slash + name_len > DCTF_KEY_MAX)
        return DCTF_ERR_NAME_TOO_LONG;
    memmove(buf, dir, dir_len);
    if (slash)
        buf[dir_len] = '/';
    memcpy(buf + dir_len + slash, name, name_len + 1);
    return DCTF_OK;
}

bool dctf_path_at_or_below(const char *path, const char *top)
{
    size_t len = strlen(top);

    return len == 0 || (!strncmp(path, top, len) && (path[len] == '\0' || path[len] == '/'));
}

enum dctf_err dctf_inode_path(const struct dctf_inode *inode, char *buf)
{
    char reversed[DCTF_KEY_MAX + 1];
    size_t at = sizeof(reversed) - 1;

    reversed[at] = '\0';
    for (; inode->parent; inode = inode->parent) {
        size_t len = inode->name_len;

        if (len + 1 > at)
            return DCTF_ERR_NAME_TOO_LONG;
        if (reversed[at])
            reversed[--at] = '/';
        at -= len;
        memcpy(reversed + at, inode->name, len);
    }
    memcpy(buf, reversed + at, sizeof(reversed) - at);
    return DCTF_OK;
}

static struct dctf_inode *inode_alloc(const char *name, const char *etag)
{
    size_t name_len = strlen(name);
    size_t etag_len = strlen(etag);
    struct dctf_inode *inode = malloc(sizeof(*inode) + name_len + etag_len + 2);

    if (!inode)
        return NULL;
    memset(inode, 0, sizeof(*inode));
    inode->name_len = (uint16_t)name_len;
    memcpy(inode->name, name, name_len + 1);
    memcpy(inode->name + name_len + 1, etag, etag_len + 1);
    return inode;
}

enum dctf_err dctf_inodes_new(uint64_t dataset, struct dctf_metrics *metrics, struct dctf_inodes **out)
{
    struct dctf_inodes *inodes = calloc(1, sizeof(*inodes));

    *out = NULL;
    if (!inodes)
        return DCTF_ERR_NO_MEMORY;
    inodes->dataset = dataset;
    inodes->metrics = metrics;
    inodes->bucket_count = MIN_BUCKETS;
    inodes->buckets = calloc(MIN_BUCKETS, sizeof(struct dctf_inode *));
    inodes->root = inode_alloc("", "");
    if (!inodes->buckets || !inodes->root) {
        free(inodes->buckets);
        free(inodes->root);
        free(inodes);
        return DCTF_ERR_NO_MEMORY;
    }
    pthread_mutex_init(&inodes->lock, NULL);
    inodes->root->ino = DCTF_INO_ROOT;
    inodes->root->is_dir = true;
    inodes->root->refs = 1; /* never given back */
    inodes->buckets[DCTF_INO_ROOT] = inodes->root;
    inodes->count = 1;
    dctf_metric_add(metrics, DCTF_METRIC_INODES, 1);
    *out = inodes;
    return DCTF_OK;
}

void dctf_inodes_free(struct dctf_inodes *inodes)
{
    if (!inodes)
        return;
    for (size_t i = 0; i < inodes->bucket_count; i++) {
        struct dctf_inode *inode = inodes->buckets[i];

        while (inode) {
            struct dctf_inode *next = inode->next;

            free(inode);
            inode = next;
        }
    }
    dctf_metric_add(inodes->metrics, DCTF_METRIC_INODES, -(int64_t)inodes->count);
    free(inodes->buckets);
    pthread_mutex_destroy(&inodes->lock);
    free(inodes);
}

static struct dctf_inode **bucket_locked(struct dctf_inodes *inodes, uint64_t ino)
{
    /* Numbers are hashes already: the low bits are as good as any. */
    return &inodes->buckets[ino & (inodes->bucket_count - 1)];
}

static struct dctf_inode *find_locked(struct dctf_inodes *inodes, uint64_t ino)
{
    struct dctf_inode *inode = *bucket_locked(inodes, ino);

    while (inode && inode->ino != ino)
        inode = inode->next;
    return inode;
}

/* Grow at one inode per bucket, shrink at one eighth; a failed allocation only costs
 * longer chains. */
static void resize_locked(struct dctf_inodes *inodes)
{
    size_t want = inodes->bucket_count;
    struct dctf_inode **old = inodes->buckets;
    size_t old_count = inodes->bucket_count;
    struct dctf_inode **fresh;

    if (inodes->count > want)
        want *= 2;
    else if (want > MIN_BUCKETS && inodes->count < want / 8)
        want /= 4;
    if (want < MIN_BUCKETS)
        want = MIN_BUCKETS;
    if (want == inodes->bucket_count)
        return;
    fresh = calloc(want, sizeof(struct dctf_inode *));
    if (!fresh)
        return;
    inodes->buckets = fresh;
    inodes->bucket_count = want;
    for (size_t i = 0; i < old_count; i++) {
        struct dctf_inode *inode = old[i];

        while (inode) {
            struct dctf_inode *next = inode->next;
            struct dctf_inode **bucket = bucket_locked(inodes, inode->ino);

            inode->next = *bucket;
            *bucket = inode;
            inode = next;
        }
    }
    free(old);
}

/* Drop inodes nobody refers to, from `inode` up through parents that it alone kept. */
static void reap_locked(struct dctf_inodes *inodes, struct dctf_inode *inode)
{
    while (inode && inode->refs == 0 && inode->lookups == 0) {
        struct dctf_inode *parent = inode->parent;
        struct dctf_inode **at = bucket_locked(inodes, inode->ino);

        assert(!inode->file);
        while (*at != inode)
            at = &(*at)->next;
        *at = inode->next;
        free(inode);
        inodes->count--;
        inodes->freed++;
        dctf_metric_add(inodes->metrics, DCTF_METRIC_INODES, -1);
        if (parent) {
            assert(parent->refs > 0);
            parent->refs--;
        }
        inode = parent;
    }
    resize_locked(inodes);
}

struct dctf_inode *dctf_inodes_get(struct dctf_inodes *inodes, uint64_t ino)
{
    struct dctf_inode *inode;

    pthread_mutex_lock(&inodes->lock);
    inode = find_locked(inodes, ino);
    if (inode)
        inode->refs++;
    pthread_mutex_unlock(&inodes->lock);
    return inode;
}

void dctf_inodes_put(struct dctf_inodes *inodes, struct dctf_inode *inode)
{
    if (!inode)
        return;
    pthread_mutex_lock(&inodes->lock);
    assert(inode->refs > 0);
    inode->refs--;
    reap_locked(inodes, inode);
    pthread_mutex_unlock(&inodes->lock);
}

static uint64_t number_of(struct dctf_inodes *inodes, const char *path, const struct dctf_entry *entry)
{
    uint64_t ino = dctf_hash64_seed(path, strlen(path), inodes->dataset);

    if (!entry->is_dir)
        ino = dctf_hash64_seed(entry->etag, strlen(entry->etag), ino ^ (entry->size * 2 + 1));
    ino &= UINT64_MAX >> 1; /* some programs keep it in a signed 64-bit type */
    return ino < DCTF_INO_RESERVED ? ino + DCTF_INO_RESERVED : ino;
}

uint64_t dctf_inodes_number(
    struct dctf_inodes *inodes, const char *parent_path, const struct dctf_entry *entry)
{
    char path[DCTF_KEY_MAX + 1];

    if (dctf_path_join(parent_path, entry->name, path) != DCTF_OK)
        return DCTF_INO_RESERVED;
    return number_of(inodes, path, entry);
}

static bool same_identity(
    const struct dctf_inode *inode, const struct dctf_inode *parent, const struct dctf_entry *entry)
{
    return inode->parent == parent && inode->is_dir == entry->is_dir && inode->size == entry->size &&
           !strcmp(inode->name, entry->name) && !strcmp(dctf_inode_etag(inode), entry->etag);
}

enum dctf_err dctf_inodes_lookup(struct dctf_inodes *inodes, struct dctf_inode *parent,
    const char *parent_path, const struct dctf_entry *entry, struct dctf_inode **out)
{
    char path[DCTF_KEY_MAX + 1];
    enum dctf_err err = dctf_path_join(parent_path, entry->name, path);
    struct dctf_inode *inode;
    uint64_t ino;

    *out = NULL;
    if (err)
        return err;
    ino = number_of(inodes, path, entry);
    pthread_mutex_lock(&inodes->lock);
    /* Two identities with one hash: the later one takes the next free number. */
    while ((inode = find_locked(inodes, ino)) && !same_identity(inode, parent, entry))
        ino++;
    if (!inode) {
        inode = inode_alloc(entry->name, entry->etag);
        if (!inode) {
            err = DCTF_ERR_NO_MEMORY;
            goto out;
        }
        inode->ino = ino;
        inode->parent = parent;
        inode->is_dir = entry->is_dir;
        inode->size = entry->size;
        inode->mtime_ns = entry->mtime_ns;
        parent->refs++;
        inode->next = *bucket_locked(inodes, ino);
        *bucket_locked(inodes, ino) = inode;
        inodes->count++;
        dctf_metric_add(inodes->metrics, DCTF_METRIC_INODES, 1);
        resize_locked(inodes);
    }
    inode->lookups++;
    *out = inode;
out:
    pthread_mutex_unlock(&inodes->lock);
    return err;
}

void dctf_inodes_forget(struct dctf_inodes *inodes, uint64_t ino, uint64_t count)
{
    struct dctf_inode *inode;

    pthread_mutex_lock(&inodes->lock);
    inode = find_locked(inodes, ino);
    if (inode && inode != inodes->root) {
        inode->lookups -= count < inode->lookups ? count : inode->lookups;
        reap_locked(inodes, inode);
    }
    pthread_mutex_unlock(&inodes->lock);
}

uint64_t dctf_inodes_count(struct dctf_inodes *inodes)
{
    uint64_t count;

    pthread_mutex_lock(&inodes->lock);
    count = inodes->count;
    pthread_mutex_unlock(&inodes->lock);
    return count;
}

bool dctf_inodes_shrunk(struct dctf_inodes *inodes)
{
    bool shrunk;

    pthread_mutex_lock(&inodes->lock);
    shrunk = inodes->freed >= SHRUNK_MIN;
    if (shrunk)
        inodes->freed = 0;
    pthread_mutex_unlock(&inodes->lock);
    return shrunk;
}

void dctf_inodes_each(
    struct dctf_inodes *inodes, void (*visit)(void *ctx, const struct dctf_inode *inode), void *ctx)
{
    pthread_mutex_lock(&inodes->lock);
    for (size_t i = 0; i < inodes->bucket_count; i++) {
        for (struct dctf_inode *inode = inodes->buckets[i]; inode; inode = inode->next) {
            if (inode->parent)
                visit(ctx, inode);
        }
    }
    pthread_mutex_unlock(&inodes->lock);
}
