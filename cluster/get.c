/* SPDX-License-Identifier: Apache-2.0
 *
 * A get from its beginning, cut into subs that each find their own way (get_sub.c), to its answer; and its
 * early end.
 */
#include "cluster/get_internal.h"

#include "base/version.h"

#include <assert.h>
#include <stdlib.h>

#define SUBS_AT_ONCE 4u /* of one get */

void dctf_get_unref(struct dctf_get_task *task)
{
    struct dctf_cluster *cluster = task->cluster;
    bool last;

    pthread_mutex_lock(&cluster->lock);
    last = --task->refs == 0;
    pthread_mutex_unlock(&cluster->lock);
    if (!last)
        return;
    dctf_version_unref(task->version);
    free(task);
    dctf_cluster_release(cluster);
}

/* --- the end --- */

static void answer(void *ctx)
{
    struct dctf_get_task *task = ctx;
    struct dctf_origin_get *get = task->get;
    enum dctf_err err;

    pthread_mutex_lock(&task->cluster->lock);
    dctf_list_remove(&task->link); /* cancel does not find it any more */
    err = task->err;
    pthread_mutex_unlock(&task->cluster->lock);
    get->done(get, err, err ? 0 : get->len);
    dctf_get_unref(task);
}

void dctf_get_finish(struct dctf_get_task *task)
{
    bool starting;

    pthread_mutex_lock(&task->cluster->lock);
    starting = task->starting;
    task->refs++;
    pthread_mutex_unlock(&task->cluster->lock);
    /* Without memory for a timer an answer from within start is still better than none. */
    if (!starting || dctf_timer_arm(task->cluster->config.timers, &task->answer_timer, 0, answer, task))
        answer(task);
}

/* --- giving up --- */

size_t dctf_gets_waiting_locked(
    struct dctf_cluster *cluster, uint64_t before_ms, struct dctf_peer **out, size_t max)
{
    size_t count = 0;

    for (struct dctf_list *node = cluster->gets.next; node != &cluster->gets; node = node->next) {
        struct dctf_get_task *task = dctf_list_entry(node, struct dctf_get_task, link);

        for (unsigned i = 0; i < task->count * DCTF_SUB_SLOTS && count < max; i++) {
            const struct dctf_slot *slot = &task->subs[i / DCTF_SUB_SLOTS].slots[i % DCTF_SUB_SLOTS];

            if (slot->out && slot->sent_ms < before_ms)
                out[count++] = slot->peer;
        }
    }
    return count;
}

void dctf_gets_leave_peer(struct dctf_cluster *cluster, const struct dctf_peer *peer)
{
    for (;;) { /* one at a time, since the lock is let go for each */
        struct dctf_slot *found = NULL;
        struct dctf_get_task *held = NULL;

        pthread_mutex_lock(&cluster->lock);
        for (struct dctf_list *node = cluster->gets.next; node != &cluster->gets && !found;
             node = node->next) {
            struct dctf_get_task *task = dctf_list_entry(node, struct dctf_get_task, link);

            for (unsigned i = 0; i < task->count * DCTF_SUB_SLOTS && !found; i++) {
                struct dctf_slot *slot = &task->subs[i / DCTF_SUB_SLOTS].slots[i % DCTF_SUB_SLOTS];

                if (slot->peer == peer && slot->out && !slot->left)
                    found = slot;
            }
        }
        if (found) {
            found->left = true;
            held = found->sub->task;
            held->refs++;
        }
        pthread_mutex_unlock(&cluster->lock);
        if (!found)
            return;
        dctf_peer_get_cancel(cluster->client, &found->get);
        dctf_get_unref(held); /* the slot may be another request's by now */
    }
}

/* End what runs of a get; its subs that have not begun see the error. Holds a reference. */
static void cancel(struct dctf_get_task *task, enum dctf_err err)
{
    struct dctf_cluster *cluster = task->cluster;

    pthread_mutex_lock(&cluster->lock);
    if (!task->err)
        task->err = err;
    pthread_mutex_unlock(&cluster->lock);
    for (unsigned i = 0; i < task->count; i++)
        dctf_sub_stop(&task->subs[i]);
}

static struct dctf_get_task *find_task(struct dctf_cluster *cluster, const struct dctf_origin_get *get)
{
    struct dctf_get_task *found = NULL;

    pthread_mutex_lock(&cluster->lock);
    for (struct dctf_list *node = cluster->gets.next; node != &cluster->gets && !found; node = node->next) {
        struct dctf_get_task *task = dctf_list_entry(node, struct dctf_get_task, link);

        if (task->get == get)
            found = task;
    }
    if (found)
        found->refs++;
    pthread_mutex_unlock(&cluster->lock);
    return found;
}

void dctf_cluster_cancel_get(struct dctf_origin *origin, struct dctf_origin_get *get)
{
    struct dctf_get_task *task = find_task((struct dctf_cluster *)origin, get);

    if (!task)
        return;
    cancel(task, DCTF_ERR_CANCELLED);
    dctf_get_unref(task);
}

void dctf_gets_cancel_all(struct dctf_cluster *cluster)
{
    for (;;) {
        struct dctf_get_task *found = NULL;

        pthread_mutex_lock(&cluster->lock);
        for (struct dctf_list *node = cluster->gets.next; node != &cluster->gets && !found;
             node = node->next) {
            struct dctf_get_task *task = dctf_list_entry(node, struct dctf_get_task, link);

            if (!task->cancelled)
                found = task;
        }
        if (found) {
            found->cancelled = true;
            found->refs++;
        }
        pthread_mutex_unlock(&cluster->lock);
        if (!found)
            return;
        cancel(found, DCTF_ERR_SHUTTING_DOWN);
        dctf_get_unref(found);
    }
}

/* --- the beginning --- */

static bool is_home_here(const struct dctf_view *view, uint64_t extent_key)
{
    uint32_t first;

    return dctf_view_rank(view, extent_key, &first, 1) == 0 || first == dctf_view_self(view);
}

/* Cut [first, end) of one extent. */
static void cut_extent(struct dctf_get_task *task, struct dctf_view *view, uint32_t first, uint32_t end)
{
    struct dctf_cluster *cluster = task->cluster;
    const struct dctf_version *version = task->version;
    uint64_t key =
        dctf_extent_key(cluster->config.dataset, version->key, version->etag, first / DCTF_EXTENT_BLOCKS);
    uint32_t step = is_home_here(view, key) ? DCTF_EXTENT_BLOCKS : DCTF_SUB_BLOCKS;
    uint32_t begin = (uint32_t)(task->get->offset / DCTF_BLOCK_BYTES);

    for (uint32_t block = first; block < end; block += step) {
        struct dctf_sub *sub = &task->subs[task->count++];
        uint64_t offset = (uint64_t)block * DCTF_BLOCK_BYTES, last;

        sub->task = task;
        sub->first = block;
        sub->count = step < end - block ? step : end - block;
        sub->want_first = first;
        sub->want_count = end - first;
        sub->extent_key = key;
        sub->buf = (char *)task->get->buf + (size_t)(block - begin) * DCTF_BLOCK_BYTES;
        last = offset + (uint64_t)sub->count * DCTF_BLOCK_BYTES;
        sub->bytes = (size_t)((last < version->size ? last : version->size) - offset);
    }
}

static enum dctf_err task_new(
    struct dctf_cluster *cluster, struct dctf_origin_get *get, struct dctf_get_task **out)
{
    uint32_t first = (uint32_t)(get->offset / DCTF_BLOCK_BYTES);
    uint32_t end = dctf_blocks_of(get->offset + get->len);
    struct dctf_get_task *task = calloc(1, sizeof(*task) + (end - first) * sizeof(task->subs[0]));
    struct dctf_view *view;
    enum dctf_err err;

    *out = NULL;
    if (!task)
        return DCTF_ERR_NO_MEMORY;
    err = dctf_version_new(
        cluster->config.dataset, get->key, get->etag, get->size, cluster->config.feature_by, &task->version);
    if (err) {
        free(task);
        return err;
    }
    task->cluster = cluster;
    task->get = get;
    task->class = (enum dctf_fetch_class)get->class;
    task->begun_ms = dctf_cluster_now_ms(cluster);
    task->refs = 1;
    task->starting = true;
    dctf_list_init(&task->link);
    task->copied = dctf_copies_class(cluster, task->version->feature_id);
    view = dctf_cluster_view(cluster);
    for (uint32_t block = first; block < end;) {
        uint32_t extent_end = (block / DCTF_EXTENT_BLOCKS + 1) * DCTF_EXTENT_BLOCKS;

        cut_extent(task, view, block, extent_end < end ? extent_end : end);
        block = extent_end;
    }
    dctf_view_unref(view);
    task->left = task->count;
    *out = task;
    return DCTF_OK;
}

void dctf_get_advance(struct dctf_get_task *task)
{
    for (;;) {
        struct dctf_sub *sub = NULL;

        pthread_mutex_lock(&task->cluster->lock);
        if (task->next < task->count && task->running < SUBS_AT_ONCE) {
            sub = &task->subs[task->next++];
            task->running++;
            task->refs++;
        }
        pthread_mutex_unlock(&task->cluster->lock);
        if (!sub)
            return;
        dctf_sub_go(sub);
    }
}

enum dctf_err dctf_cluster_get(struct dctf_origin *origin, struct dctf_origin_get *get)
{
    struct dctf_cluster *cluster = (struct dctf_cluster *)origin;
    struct dctf_get_task *task;
    enum dctf_err err;

    /* The engine reads whole blocks. */
    assert(get->offset % DCTF_BLOCK_BYTES == 0);
    assert(get->len % DCTF_BLOCK_BYTES == 0 || get->offset + get->len == get->size);
    if (!dctf_cluster_hold(cluster))
        return DCTF_ERR_SHUTTING_DOWN;
    err = task_new(cluster, get, &task);
    if (err) {
        dctf_cluster_release(cluster);
        return err;
    }
    pthread_mutex_lock(&cluster->lock);
    dctf_list_push_back(&cluster->gets, &task->link);
    pthread_mutex_unlock(&cluster->lock);
    dctf_get_advance(task);
    pthread_mutex_lock(&cluster->lock);
    task->starting = false;
    pthread_mutex_unlock(&cluster->lock);
    dctf_get_unref(task);
    return DCTF_OK;
}
