/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/notify.h"

#include "base/log.h"
#include "base/metric.h"
#include "base/thread.h"
#include "base/version.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* One invalidation that waits: in arrival order, and in a bucket of equal hashes. */
struct item {
    struct item *next;  /* in the queue, towards the newest */
    struct item *chain; /* in the bucket */
    uint64_t parent;
    uint64_t hash;
    size_t len; /* of the name */
    char name[];
};

struct dctf_notify {
    struct dctf_notify_ops ops;
    struct dctf_metrics *metrics;
    size_t queue_max;
    size_t bucket_mask;
    pthread_t thread;

    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_cond_t idle;
    struct item **buckets; /* guarded by lock; so are the rest */
    struct item *oldest;
    struct item *newest;
    size_t count;
    bool sending;
    bool stopping;
};

static uint64_t hash_of(uint64_t parent, const char *name, size_t len)
{
    return dctf_hash64_seed(name, len, dctf_hash64(&parent, sizeof(parent)));
}

static struct item *find_locked(const struct dctf_notify *notify, const struct item *wanted)
{
    struct item *item = notify->buckets[wanted->hash & notify->bucket_mask];

    while (item) {
        if (item->parent == wanted->parent && item->len == wanted->len &&
            !memcmp(item->name, wanted->name, item->len))
            return item;
        item = item->chain;
    }
    return NULL;
}

static void push_locked(struct dctf_notify *notify, struct item *item)
{
    struct item **bucket = &notify->buckets[item->hash & notify->bucket_mask];

    item->chain = *bucket;
    *bucket = item;
    item->next = NULL;
    if (notify->newest)
        notify->newest->next = item;
    else
        notify->oldest = item;
    notify->newest = item;
    notify->count++;
}

/* The oldest, for the caller to free; NULL when nothing waits. */
static struct item *take_locked(struct dctf_notify *notify)
{
    struct item *item = notify->oldest;
    struct item **link;

    if (!item)
        return NULL;
    notify->oldest = item->next;
    if (!notify->oldest)
        notify->newest = NULL;
    notify->count--;
    link = &notify->buckets[item->hash & notify->bucket_mask];
    while (*link != item)
        link = &(*link)->chain;
    *link = item->chain;
    return item;
}

static void send(struct dctf_notify *notify, const struct item *item)
{
    int rc = notify->ops.inval_entry(notify->ops.ctx, item->parent, item->name, item->len);

    dctf_metric_add(notify->metrics, DCTF_METRIC_NOTIFY_SENT, 1);
    if (rc < 0 && rc != -ENOENT)
        dctf_log(DCTF_LOG_DEBUG, "fs", "op=invalidate parent=%llu errno=%d", (unsigned long long)item->parent,
            -rc);
}

static void *run(void *arg)
{
    struct dctf_notify *notify = arg;

    pthread_mutex_lock(&notify->lock);
    while (!notify->stopping) {
        struct item *item = take_locked(notify);

        if (!item) {
            pthread_cond_broadcast(&notify->idle);
            pthread_cond_wait(&notify->wake, &notify->lock);
            continue;
        }
        notify->sending = true;
        pthread_mutex_unlock(&notify->lock);
        send(notify, item);
        free(item);
        pthread_mutex_lock(&notify->lock);
        notify->sending = false;
    }
    pthread_cond_broadcast(&notify->idle);
    pthread_mutex_unlock(&notify->lock);
    return NULL;
}

enum dctf_err dctf_notify_new(const struct dctf_notify_ops *ops, size_t queue_max,
    struct dctf_metrics *metrics, struct dctf_notify **out)
{
    struct dctf_notify *notify;
    size_t buckets = 16;
    enum dctf_err err;

    assert(queue_max > 0);
    *out = NULL;
    notify = calloc(1, sizeof(*notify));
    if (!notify)
        return DCTF_ERR_NO_MEMORY;
    while (buckets < queue_max)
        buckets *= 2;
    notify->ops = *ops;
    notify->metrics = metrics;
    notify->queue_max = queue_max;
    notify->bucket_mask = buckets - 1;
    notify->buckets = calloc(buckets, sizeof(struct item *));
    if (!notify->buckets) {
        free(notify);
        return DCTF_ERR_NO_MEMORY;
    }
    pthread_mutex_init(&notify->lock, NULL);
    pthread_cond_init(&notify->wake, NULL);
    err = dctf_thread_cond_init(&notify->idle);
    if (!err) {
        err = dctf_thread_start("dctf-notify", run, notify, &notify->thread);
        if (err)
            pthread_cond_destroy(&notify->idle);
    }
    if (err) {
        pthread_cond_destroy(&notify->wake);
        pthread_mutex_destroy(&notify->lock);
        free(notify->buckets);
        free(notify);
        return err;
    }
    *out = notify;
    return DCTF_OK;
}

void dctf_notify_free(struct dctf_notify *notify)
{
    struct item *item;

    if (!notify)
        return;
    pthread_mutex_lock(&notify->lock);
    notify->stopping = true;
    pthread_cond_signal(&notify->wake);
    pthread_mutex_unlock(&notify->lock);
    pthread_join(notify->thread, NULL);
    while ((item = take_locked(notify)))
        free(item);
    pthread_cond_destroy(&notify->idle);
    pthread_cond_destroy(&notify->wake);
    pthread_mutex_destroy(&notify->lock);
    free(notify->buckets);
    free(notify);
}

void dctf_notify_entry(struct dctf_notify *notify, uint64_t parent, const char *name)
{
    size_t len = strlen(name);
    struct item *item = malloc(sizeof(*item) + len + 1);
    struct item *dropped = NULL;

    if (!item) {
        dctf_metric_add(notify->metrics, DCTF_METRIC_NOTIFY_DROPPED, 1);
        return;
    }
    *item = (struct item){.parent = parent, .len = len, .hash = hash_of(parent, name, len)};
    memcpy(item->name, name, len + 1);

    pthread_mutex_lock(&notify->lock);
    if (find_locked(notify, item)) {
        pthread_mutex_unlock(&notify->lock);
        free(item);
        return;
    }
    if (notify->count >= notify->queue_max)
        dropped = take_locked(notify);
    push_locked(notify, item);
    pthread_cond_signal(&notify->wake);
    pthread_mutex_unlock(&notify->lock);

    if (dropped) {
        dctf_metric_add(notify->metrics, DCTF_METRIC_NOTIFY_DROPPED, 1);
        free(dropped);
    }
}

bool dctf_notify_drain(struct dctf_notify *notify, uint64_t timeout_ms)
{
    struct timespec until;
    bool drained;
    int rc = 0;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(timeout_ms / 1000);
    until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&notify->lock);
    while ((notify->count || notify->sending) && !notify->stopping && !rc)
        rc = pthread_cond_timedwait(&notify->idle, &notify->lock, &until);
    drained = !notify->count && !notify->sending;
    pthread_mutex_unlock(&notify->lock);
    return drained;
}
