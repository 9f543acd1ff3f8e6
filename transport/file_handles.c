/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/file_handles.h"

#include <assert.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <unistd.h>

struct handle {
    struct dctf_file_handle pub; /* first */
    unsigned refs;               /* guarded by lock */
    bool kept;                   /* guarded by lock: on the list */
    TAILQ_ENTRY(handle) link;
    char key[];
};

TAILQ_HEAD(handle_list, handle);

struct dctf_file_handles {
    pthread_mutex_t lock;
    struct handle_list list; /* guarded by lock; most recently used first; short, so searched in line */
    size_t count;            /* guarded by lock */
    size_t max;
};

enum dctf_err dctf_file_handles_new(size_t max, struct dctf_file_handles **out)
{
    struct dctf_file_handles *handles = calloc(1, sizeof(*handles));

    *out = NULL;
    if (!handles)
        return DCTF_ERR_NO_MEMORY;
    pthread_mutex_init(&handles->lock, NULL);
    TAILQ_INIT(&handles->list);
    handles->max = max;
    *out = handles;
    return DCTF_OK;
}

static struct handle *find_locked(struct dctf_file_handles *handles, const char *key)
{
    struct handle *handle;

    TAILQ_FOREACH(handle, &handles->list, link)
    {
        if (strcmp(handle->key, key) == 0)
            return handle;
    }
    return NULL;
}

/* The handle if it is now nobody's, for the caller to destroy without the lock. */
static struct handle *unref_locked(struct handle *handle)
{
    assert(handle->refs > 0);
    return --handle->refs == 0 ? handle : NULL;
}

static struct handle *unkeep_locked(struct dctf_file_handles *handles, struct handle *handle)
{
    if (!handle || !handle->kept)
        return NULL;
    TAILQ_REMOVE(&handles->list, handle, link);
    handles->count--;
    handle->kept = false;
    return unref_locked(handle);
}

static void destroy(struct handle *handle)
{
    if (!handle)
        return;
    close(handle->pub.fd);
    free(handle);
}

void dctf_file_handles_free(struct dctf_file_handles *handles)
{
    struct handle *handle;

    if (!handles)
        return;
    while ((handle = TAILQ_FIRST(&handles->list))) {
        assert(handle->refs == 1);
        destroy(unkeep_locked(handles, handle));
    }
    pthread_mutex_destroy(&handles->lock);
    free(handles);
}

struct dctf_file_handle *dctf_file_handles_get(struct dctf_file_handles *handles, const char *key)
{
    struct handle *handle;

    pthread_mutex_lock(&handles->lock);
    handle = find_locked(handles, key);
    if (handle) {
        handle->refs++;
        TAILQ_REMOVE(&handles->list, handle, link);
        TAILQ_INSERT_HEAD(&handles->list, handle, link);
    }
    pthread_mutex_unlock(&handles->lock);
    return handle ? &handle->pub : NULL;
}

enum dctf_err dctf_file_handles_add(struct dctf_file_handles *handles, const char *key, int fd, dev_t dev,
    ino_t ino, struct dctf_file_handle **out)
{
    size_t len = strlen(key) + 1;
    struct handle *handle = calloc(1, sizeof(*handle) + len);
    struct handle *replaced;
    struct handle *oldest = NULL;

    *out = NULL;
    if (!handle) {
        close(fd);
        return DCTF_ERR_NO_MEMORY;
    }
    handle->pub = (struct dctf_file_handle){fd, dev, ino};
    handle->refs = 2;
    handle->kept = true;
    memcpy(handle->key, key, len);
    pthread_mutex_lock(&handles->lock);
    replaced = unkeep_locked(handles, find_locked(handles, key));
    if (handles->count >= handles->max)
        oldest = unkeep_locked(handles, TAILQ_LAST(&handles->list, handle_list));
    TAILQ_INSERT_HEAD(&handles->list, handle, link);
    handles->count++;
    pthread_mutex_unlock(&handles->lock);
    destroy(replaced);
    destroy(oldest);
    *out = &handle->pub;
    return DCTF_OK;
}

void dctf_file_handles_drop(struct dctf_file_handles *handles, struct dctf_file_handle *pub)
{
    struct handle *handle = (struct handle *)pub;
    struct handle *dead;

    pthread_mutex_lock(&handles->lock);
    dead = unkeep_locked(handles, handle);
    pthread_mutex_unlock(&handles->lock);
    assert(!dead);
}

void dctf_file_handles_put(struct dctf_file_handles *handles, struct dctf_file_handle *pub)
{
    struct handle *dead;

    pthread_mutex_lock(&handles->lock);
    dead = unref_locked((struct handle *)pub);
    pthread_mutex_unlock(&handles->lock);
    destroy(dead);
}
