/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/ahead.h"

#include "base/pool.h"
#include "cache/listing.h"
#include "cache/store.h"
#include "fs/engine.h"
#include "fs/inode.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS 64u
#define RUN_STREAK 2u
#define STEP_MAX 4u /* names that may lie between two opens of a run (other workers read those) */

/* One directory being read. */
struct slot {
    uint64_t dir_hash; /* 0: free */
    uint64_t used;     /* for replacement: the slot used longest ago goes */
    uint32_t streak;
    uint32_t remaining; /* fetched ahead and not opened yet, about */
    bool busy;          /* a job of it is queued or running */
    char last[DCTF_NAME_MAX + 1];
    char until[DCTF_NAME_MAX + 1]; /* fetched ahead up to here; "" when nothing is */
};

struct dctf_ahead {
    struct dctf_ahead_config config;
    pthread_mutex_t lock;
    uint64_t clock;           /* guarded by lock */
    struct slot slots[SLOTS]; /* guarded by lock */
};

struct job {
    struct dctf_ahead *ahead;
    uint64_t dir_hash;
    char last[DCTF_NAME_MAX + 1];
    char name[DCTF_NAME_MAX + 1];
    char until[DCTF_NAME_MAX + 1];
    uint32_t streak;
    char dir[];
};

enum dctf_err dctf_ahead_new(const struct dctf_ahead_config *config, struct dctf_ahead **out)
{
    struct dctf_ahead *ahead = calloc(1, sizeof(*ahead));

    *out = NULL;
    if (!ahead)
        return DCTF_ERR_NO_MEMORY;
    ahead->config = *config;
    pthread_mutex_init(&ahead->lock, NULL);
    *out = ahead;
    return DCTF_OK;
}

void dctf_ahead_free(struct dctf_ahead *ahead)
{
    if (!ahead)
        return;
    pthread_mutex_destroy(&ahead->lock);
    free(ahead);
}

static struct slot *slot_of_locked(struct dctf_ahead *ahead, uint64_t dir_hash, bool make)
{
    struct slot *oldest = &ahead->slots[0];

    for (unsigned i = 0; i < SLOTS; i++) {
        struct slot *slot = &ahead->slots[i];

        if (slot->dir_hash == dir_hash) {
            slot->used = ++ahead->clock;
            return slot;
        }
        if (slot->used < oldest->used)
            oldest = slot;
    }
    if (!make || oldest->busy)
        return NULL;
    memset(oldest, 0, sizeof(*oldest));
    oldest->dir_hash = dir_hash;
    oldest->used = ++ahead->clock;
    return oldest;
}

/* Is `name` among the next few names after `last`? */
static bool follows(struct dctf_listing_cursor *cursor, const char *last, const char *name)
{
    struct dctf_entry entry;

    if (!*last || dctf_listing_seek_name(cursor, last))
        return false;
    for (unsigned i = 0; i < STEP_MAX && !dctf_listing_next(cursor, &entry); i++) {
        if (!strcmp(entry.name, name))
            return true;
    }
    return false;
}

/* Fetch one entry ahead. Returns false when memory is short. */
static bool fetch_entry(struct dctf_ahead *ahead, const char *dir, const struct dctf_entry *entry,
    uint64_t bytes_left, uint64_t *asked)
{
    char key[DCTF_KEY_MAX + 1];
    struct dctf_version *version = NULL;
    struct dctf_source *source = NULL;
    enum dctf_err err = dctf_path_join(dir, entry->name, key);

    *asked = 0;
    if (!err)
        err = dctf_version_new(
            ahead->config.dataset, key, entry->etag, entry->size, ahead->config.feature_by, &version);
    if (!err)
        err = dctf_engine_get(ahead->config.engine, version, &source);
    if (!err) {
        /* Of a large shard only the beginning: whether the reader wants the rest shows when it
         * reads, and read-ahead within the shard has started by then. */
        *asked = dctf_engine_prefetch(ahead->config.engine, source,
            entry->size > DCTF_SMALL_BYTES && bytes_left > DCTF_SMALL_BYTES ? DCTF_SMALL_BYTES : bytes_left);
        dctf_engine_put(ahead->config.engine, source);
    }
    dctf_version_unref(version);
    return !err;
}

/* Fetch the next shards after `from`; the name reached goes to `until`. 0 when there was
 * nothing to fetch: the run has reached what is here already, or the end. */
static uint32_t fetch_next(struct dctf_ahead *ahead, struct dctf_listing_cursor *cursor, const char *dir,
    const char *from, uint32_t count, char *until)
{
    uint64_t bytes = 0;
    uint32_t done = 0;
    struct dctf_entry entry;

    if (dctf_listing_seek_name(cursor, from))
        return 0;
    while (done < count && bytes < ahead->config.bytes_max && !dctf_listing_next(cursor, &entry)) {
        uint64_t asked;

        if (entry.is_dir)
            continue;
        if (!fetch_entry(ahead, dir, &entry, ahead->config.bytes_max - bytes, &asked))
            break;
        bytes += asked;
        done++;
        strcpy(until, entry.name);
    }
    return bytes ? done : 0;
}

static void run_job(void *ctx)
{
    struct job *job = ctx;
    struct dctf_ahead *ahead = job->ahead;
    struct dctf_listing_state state;
    struct dctf_listing_cursor *cursor = NULL;
    uint32_t fetched = 0, count;
    struct slot *slot;

    if (dctf_listings_state(ahead->config.listings, job->dir, &state) || state.generation == 0 ||
        dctf_listing_open(ahead->config.listings, job->dir, state.generation, &cursor))
        goto out;
    if (*job->last) /* an open that missed: is it part of a run? */
        job->streak = follows(cursor, job->last, job->name) ? job->streak + 1 : 0;
    if (job->streak >= RUN_STREAK) {
        const char *from = strcmp(job->until, job->name) > 0 ? job->until : job->name;

        count = job->streak < 16 ? 1u << job->streak : ahead->config.shards_max;
        if (count > ahead->config.shards_max)
            count = ahead->config.shards_max;
        fetched = fetch_next(ahead, cursor, job->dir, from, count, job->until);
        if (!fetched)
            job->streak = 0;
    }
    dctf_listing_close(cursor);
out:
    pthread_mutex_lock(&ahead->lock);
    slot = slot_of_locked(ahead, job->dir_hash, false);
    if (slot) {
        slot->busy = false;
        slot->streak = job->streak;
        if (job->streak < RUN_STREAK) {
            slot->until[0] = '\0';
            slot->remaining = 0;
        }
        if (fetched) {
            slot->remaining += fetched;
            strcpy(slot->until, job->until);
        }
    }
    pthread_mutex_unlock(&ahead->lock);
    free(job);
}

/* True when this open calls for work: it missed, or a run has half used up what was fetched. */
static bool wants_job_locked(struct slot *slot, bool complete, uint32_t shards_max)
{
    if (slot->remaining)
        slot->remaining--;
    if (slot->busy)
        return false;
    if (!complete)
        return true;
    return slot->streak >= RUN_STREAK && slot->remaining < shards_max / 2;
}

void dctf_ahead_opened(struct dctf_ahead *ahead, const char *dir, const char *name, bool complete)
{
    size_t dir_len = strlen(dir);
    uint64_t dir_hash = dctf_hash64(dir, dir_len) | 1;
    struct job *job = NULL;
    struct slot *slot;

    if (ahead->config.shards_max == 0)
        return;
    pthread_mutex_lock(&ahead->lock);
    slot = slot_of_locked(ahead, dir_hash, !complete);
    if (slot && wants_job_locked(slot, complete, ahead->config.shards_max))
        job = calloc(1, sizeof(*job) + dir_len + 1);
    if (job) {
        job->ahead = ahead;
        job->dir_hash = dir_hash;
        job->streak = slot->streak + (complete ? 1 : 0);
        if (!complete)
            strcpy(job->last, slot->last);
        strcpy(job->name, name);
        strcpy(job->until, slot->until);
        memcpy(job->dir, dir, dir_len + 1);
        slot->busy = true;
    }
    if (slot)
        strcpy(slot->last, name);
    pthread_mutex_unlock(&ahead->lock);
    if (job && dctf_pool_submit(ahead->config.pool, run_job, job)) {
        pthread_mutex_lock(&ahead->lock);
        slot = slot_of_locked(ahead, dir_hash, false);
        if (slot)
            slot->busy = false;
        pthread_mutex_unlock(&ahead->lock);
        free(job);
    }
}
