/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/origin_sync.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct wait {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done;
    enum dctf_err err;
    void *out;
    size_t got;
};

#define WAIT_INIT                                                                                            \
    {                                                                                                        \
        .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER                               \
    }

static void answered(struct wait *wait, enum dctf_err err)
{
    pthread_mutex_lock(&wait->lock);
    assert(!wait->done);
    wait->done = true;
    wait->err = err;
    pthread_cond_signal(&wait->changed);
    pthread_mutex_unlock(&wait->lock);
}

static enum dctf_err wait_for(struct wait *wait, enum dctf_err start_err)
{
    if (start_err)
        return start_err;
    pthread_mutex_lock(&wait->lock);
    while (!wait->done)
        pthread_cond_wait(&wait->changed, &wait->lock);
    pthread_mutex_unlock(&wait->lock);
    return wait->err;
}

static void copy_entry(const struct dctf_origin_entry *entry, struct dctf_sync_entry *out)
{
    *out = (struct dctf_sync_entry){
        .is_dir = entry->is_dir,
        .size = entry->size,
        .mtime_ns = entry->mtime_ns,
    };
    snprintf(out->etag, sizeof(out->etag), "%s", entry->etag);
}

static bool on_page(struct dctf_origin_list *list, const struct dctf_origin_entry *entries, size_t count)
{
    struct dctf_sync_listing *out = ((struct wait *)list->ctx)->out;
    struct dctf_sync_entry *grown = realloc(out->entries, (out->count + count) * sizeof(*grown));

    assert(grown);
    out->entries = grown;
    for (size_t i = 0; i < count; i++) {
        copy_entry(&entries[i], &out->entries[out->count]);
        out->entries[out->count++].name = strdup(entries[i].name);
    }
    out->pages++;
    return out->pages != out->stop_after;
}

static void on_list(struct dctf_origin_list *list, enum dctf_err err)
{
    answered(list->ctx, err);
}

enum dctf_err dctf_origin_sync_list(
    struct dctf_origin *origin, const char *dir, struct dctf_sync_listing *out)
{
    struct wait wait = WAIT_INIT;
    struct dctf_origin_list list = {.dir = dir, .page = on_page, .done = on_list, .ctx = &wait};

    wait.out = out;
    return wait_for(&wait, origin->ops->list(origin, &list));
}

void dctf_origin_sync_clear(struct dctf_sync_listing *listing)
{
    for (size_t i = 0; i < listing->count; i++)
        free(listing->entries[i].name);
    free(listing->entries);
    memset(listing, 0, sizeof(*listing));
}

const struct dctf_sync_entry *dctf_origin_sync_find(
    const struct dctf_sync_listing *listing, const char *name, bool is_dir)
{
    for (size_t i = 0; i < listing->count; i++)
        if (listing->entries[i].is_dir == is_dir && strcmp(listing->entries[i].name, name) == 0)
            return &listing->entries[i];
    return NULL;
}

static void on_head(struct dctf_origin_head *head, enum dctf_err err, const struct dctf_origin_entry *entry)
{
    struct wait *wait = head->ctx;

    if (entry && wait->out)
        copy_entry(entry, wait->out);
    answered(wait, err);
}

enum dctf_err dctf_origin_sync_head(struct dctf_origin *origin, const char *key, struct dctf_sync_entry *out)
{
    struct wait wait = WAIT_INIT;
    struct dctf_origin_head head = {.key = key, .done = on_head, .ctx = &wait};

    wait.out = out;
    return wait_for(&wait, origin->ops->head(origin, &head));
}

static void on_get(struct dctf_origin_get *get, enum dctf_err err, size_t got)
{
    struct wait *wait = get->ctx;

    wait->got = got;
    answered(wait, err);
}

enum dctf_err dctf_origin_sync_get(struct dctf_origin *origin, const char *key, const char *etag,
    uint64_t size, uint64_t offset, void *buf, size_t len, size_t *got)
{
    struct wait wait = WAIT_INIT;
    struct dctf_origin_get get = {.key = key,
        .etag = etag,
        .size = size,
        .offset = offset,
        .len = len,
        .buf = buf,
        .done = on_get,
        .ctx = &wait};
    enum dctf_err err = wait_for(&wait, origin->ops->get(origin, &get));

    *got = wait.got;
    return err;
}
