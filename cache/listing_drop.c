/* SPDX-License-Identifier: Apache-2.0
 *
 * Forgetting listings, and deleting the entries of dead generations.
 */
#include "cache/listing.h"
#include "cache/listing_private.h"

#include <stdlib.h>
#include <string.h>

/* A range deletion slows every later read of its neighbourhood; a few single ones do not. */
#define SINGLE_DELETES_MAX 256u
#define PURGE_MAX 64u
#define SWEEP_MAX 256u

/* ---- dead generations ---- */

/* Delete one by one while there are few; false when more are left. */
static enum dctf_err delete_few(
    struct dctf_listings *listings, const uint8_t *prefix, struct dctf_kv_batch *batch, bool *all)
{
    struct dctf_kv_iter *iter;
    enum dctf_err err =
        dctf_kv_iter_new(listings->kv, DCTF_KV_LISTING, prefix, DCTF_LISTING_GENERATION_KEY, &iter);
    unsigned count = 0;

    if (err)
        return err;
    for (; dctf_kv_iter_valid(iter) && count < SINGLE_DELETES_MAX; dctf_kv_iter_next(iter), count++) {
        size_t len;
        const char *key = dctf_kv_iter_key(iter, &len);

        dctf_kv_batch_delete(batch, listings->kv, DCTF_KV_LISTING, key, len);
    }
    *all = !dctf_kv_iter_valid(iter);
    if (*all)
        err = dctf_kv_iter_err(iter);
    dctf_kv_iter_free(iter);
    return err;
}

enum dctf_err dctf_listing_delete_generation(
    struct dctf_listings *listings, const struct dctf_id *id, uint64_t generation)
{
    uint8_t from[DCTF_LISTING_GENERATION_KEY], to[DCTF_LISTING_GENERATION_KEY];
    struct dctf_kv_batch *batch;
    bool all;
    enum dctf_err err = dctf_kv_batch_new(&batch);

    if (err)
        return err;
    dctf_listing_generation_key(id, generation, from);
    dctf_listing_generation_key(id, generation + 1, to);
    err = delete_few(listings, from, batch, &all);
    if (!err && !all) {
        dctf_kv_batch_clear(batch);
        dctf_kv_batch_delete_range(batch, listings->kv, DCTF_KV_LISTING, from, sizeof(from), to, sizeof(to));
    }
    if (!err)
        err = dctf_kv_write(listings->kv, batch, DCTF_KV_LOGGED);
    dctf_kv_batch_free(batch);
    return err;
}

void dctf_listing_purge(struct dctf_listings *listings)
{
    uint64_t now = dctf_clock_mono_ms(&listings->clock);
    struct dctf_list dead;
    struct dctf_list *node;
    unsigned count = 0;

    dctf_list_init(&dead);
    pthread_mutex_lock(&listings->lock);
    for (size_t i = 0; i < DCTF_LISTING_HELD_BUCKETS && count < PURGE_MAX; i++) {
        struct dctf_list *next, *at = listings->held[i].next;

        for (; at != &listings->held[i]; at = next) {
            struct dctf_listing_held *held = dctf_list_entry(at, struct dctf_listing_held, node);

            next = at->next;
            if (held->refs > 0 || held->due_ms == 0 || held->due_ms > now)
                continue;
            dctf_list_remove(&held->node);
            dctf_list_push_back(&dead, &held->node);
            count++;
        }
    }
    pthread_mutex_unlock(&listings->lock);
    while ((node = dctf_list_pop(&dead))) {
        struct dctf_listing_held *held = dctf_list_entry(node, struct dctf_listing_held, node);

        /* What stays is swept. */
        (void)!dctf_listing_delete_generation(listings, &held->id, held->generation);
        free(held);
    }
}

/* ---- forgetting ---- */

static void outdate_writers_locked(struct dctf_listings *listings, const struct dctf_id *id)
{
    for (struct dctf_list *at = listings->writers.next; at != &listings->writers; at = at->next) {
        struct dctf_listing_writer *writer = dctf_list_entry(at, struct dctf_listing_writer, node);

        if (!id || !memcmp(&writer->id, id, sizeof(*id)))
            writer->outdated = true;
    }
}

static enum dctf_err delete_record(struct dctf_listings *listings, const struct dctf_id *id)
{
    uint8_t key[DCTF_LISTING_DIR_KEY];
    struct dctf_kv_batch *batch;
    enum dctf_err err = dctf_kv_batch_new(&batch);

    if (err)
        return err;
    dctf_listing_dir_key('d', id, key);
    dctf_kv_batch_delete(batch, listings->kv, DCTF_KV_LISTING, key, sizeof(key));
    dctf_listing_dir_key('a', id, key);
    dctf_kv_batch_delete(batch, listings->kv, DCTF_KV_LISTING, key, sizeof(key));
    err = dctf_kv_write(listings->kv, batch, DCTF_KV_LOGGED);
    dctf_kv_batch_free(batch);
    return err;
}

enum dctf_err dctf_listing_drop_id(struct dctf_listings *listings, const struct dctf_id *id)
{
    struct dctf_listing_state none = {0};
    struct dctf_listing_claim claim;
    struct dctf_listing_held *old;
    uint64_t generation = 0;
    enum dctf_err err;

    dctf_listing_claim(listings, id, &claim);
    pthread_mutex_lock(&listings->lock);
    outdate_writers_locked(listings, id);
    pthread_mutex_unlock(&listings->lock);
    err = dctf_listing_hold(listings, id, &generation, &old);
    if (!err || err == DCTF_ERR_MISS)
        err = delete_record(listings, id);
    if (!err) {
        pthread_mutex_lock(&listings->lock);
        dctf_listing_set_locked(listings, id, &none);
        pthread_mutex_unlock(&listings->lock);
    }
    if (old)
        dctf_listing_release(listings, old, !err);
    dctf_listing_unclaim(listings, &claim);
    return err;
}

enum dctf_err dctf_listing_drop(struct dctf_listings *listings, const char *dir)
{
    struct dctf_id id;
    enum dctf_err err = dctf_listing_dir_id(listings, dir, &id);

    return err ? err : dctf_listing_drop_id(listings, &id);
}

static void claim_all(struct dctf_listings *listings)
{
    pthread_mutex_lock(&listings->lock);
    while (listings->all_claimed)
        pthread_cond_wait(&listings->unclaimed, &listings->lock);
    listings->all_claimed = true;
    while (!dctf_list_empty(&listings->claims))
        pthread_cond_wait(&listings->unclaimed, &listings->lock);
    outdate_writers_locked(listings, NULL);
    /* Who has just asked for a state may read on: the sweep waits as well. */
    listings->quiet_until_ms = dctf_clock_mono_ms(&listings->clock) + DCTF_LISTING_RETIRED_MS;
    pthread_mutex_unlock(&listings->lock);
}

static void unclaim_all(struct dctf_listings *listings, bool forget)
{
    struct dctf_listing_state none = {0};

    pthread_mutex_lock(&listings->lock);
    for (size_t i = 0; forget && i < DCTF_LISTING_DIRS_MAX; i++)
        listings->dirs[i].state = none;
    listings->changes++;
    listings->all_claimed = false;
    pthread_cond_broadcast(&listings->unclaimed);
    pthread_mutex_unlock(&listings->lock);
}

enum dctf_err dctf_listings_drop_all(struct dctf_listings *listings)
{
    struct dctf_kv_batch *batch;
    enum dctf_err err = dctf_kv_batch_new(&batch);

    if (err)
        return err;
    claim_all(listings);
    dctf_kv_batch_delete_range(batch, listings->kv, DCTF_KV_LISTING, "a", 1, "b", 1);
    dctf_kv_batch_delete_range(batch, listings->kv, DCTF_KV_LISTING, "d", 1, "e", 1);
    /* The entries are the sweep's. */
    err = dctf_kv_write(listings->kv, batch, DCTF_KV_LOGGED);
    unclaim_all(listings, !err);
    dctf_kv_batch_free(batch);
    return err;
}

/* ---- sweep ---- */

struct sweep_find {
    struct dctf_id id;
    uint64_t generation;
};

/* Directories' records from the last one of the last sweep on. */
static enum dctf_err find_dirs(struct dctf_listings *listings, struct sweep_find *finds, size_t *count)
{
    struct dctf_kv_iter *iter;
    enum dctf_err err = dctf_kv_iter_new(listings->kv, DCTF_KV_LISTING, "d", 1, &iter);

    *count = 0;
    if (err)
        return err;
    dctf_kv_iter_seek(iter, listings->sweep_dir, sizeof(listings->sweep_dir));
    for (; dctf_kv_iter_valid(iter) && *count < SWEEP_MAX; dctf_kv_iter_next(iter)) {
        size_t len;
        const char *key = dctf_kv_iter_key(iter, &len);

        if (len == DCTF_LISTING_DIR_KEY)
            memcpy(finds[(*count)++].id.bytes, key + 1, sizeof(finds->id.bytes));
    }
    memset(listings->sweep_dir, 0, sizeof(listings->sweep_dir));
    if (*count == SWEEP_MAX)
        dctf_listing_dir_key('d', &finds[*count - 1].id, listings->sweep_dir);
    else
        err = dctf_kv_iter_err(iter);
    dctf_kv_iter_free(iter);
    return err;
}

/* Generations that have entries, one seek each. */
static enum dctf_err find_generations(struct dctf_listings *listings, struct sweep_find *finds, size_t *count)
{
    struct dctf_kv_iter *iter;
    enum dctf_err err = dctf_kv_iter_new(listings->kv, DCTF_KV_LISTING, "e", 1, &iter);

    *count = 0;
    if (err)
        return err;
    dctf_kv_iter_seek(iter, listings->sweep_entry, sizeof(listings->sweep_entry));
    while (dctf_kv_iter_valid(iter) && *count < SWEEP_MAX) {
        struct sweep_find *find = &finds[*count];
        size_t len;
        const char *key = dctf_kv_iter_key(iter, &len);

        if (!dctf_listing_entry_key_decode(key, len, &find->id, &find->generation)) {
            dctf_kv_iter_next(iter);
            continue;
        }
        ++*count;
        dctf_listing_generation_key(&find->id, find->generation + 1, listings->sweep_entry);
        dctf_kv_iter_seek(iter, listings->sweep_entry, sizeof(listings->sweep_entry));
    }
    if (!dctf_kv_iter_valid(iter)) {
        memset(listings->sweep_entry, 0, sizeof(listings->sweep_entry));
        err = dctf_kv_iter_err(iter);
    }
    dctf_kv_iter_free(iter);
    return err;
}

static bool is_idle(struct dctf_listings *listings, const struct dctf_id *id, uint64_t idle_ms)
{
    uint64_t now = dctf_clock_wall_ms(&listings->clock), asked = 0, saved = 0;
    uint8_t key[DCTF_LISTING_DIR_KEY];
    struct dctf_listing_state state;
    struct dctf_listing_dir *dir;
    struct dctf_kv_value value;

    if (dctf_listing_load(listings, id, &state))
        return false;
    pthread_mutex_lock(&listings->lock);
    dir = dctf_listing_dir_find_locked(listings, id);
    if (dir)
        asked = dir->asked_ms;
    pthread_mutex_unlock(&listings->lock);
    dctf_listing_dir_key('a', id, key);
    if (!dctf_kv_get(listings->kv, DCTF_KV_LISTING, key, sizeof(key), &value)) {
        (void)!dctf_listing_number_decode(value.data, value.len, &saved);
        dctf_kv_value_put(&value);
    }
    if (asked < saved)
        asked = saved;
    if (asked < state.fetched_ms)
        asked = state.fetched_ms;
    return now > asked && now - asked > idle_ms;
}

static bool is_written_locked(struct dctf_listings *listings, uint64_t generation)
{
    for (struct dctf_list *at = listings->writers.next; at != &listings->writers; at = at->next)
        if (dctf_list_entry(at, struct dctf_listing_writer, node)->state.generation == generation)
            return true;
    return false;
}

/* The order matters: a generation not being written whose directory's record does
 * not name it will never be current, and one neither current nor held will not be
 * opened. */
static bool is_dead(struct dctf_listings *listings, const struct sweep_find *find)
{
    struct dctf_listing_state state;
    struct dctf_listing_dir *dir;
    struct dctf_kv_value value;
    uint8_t key[DCTF_LISTING_DIR_KEY];
    bool alive;
    enum dctf_err err;

    pthread_mutex_lock(&listings->lock);
    alive = is_written_locked(listings, find->generation);
    pthread_mutex_unlock(&listings->lock);
    if (alive)
        return false;
    dctf_listing_dir_key('d', &find->id, key);
    err = dctf_kv_get(listings->kv, DCTF_KV_LISTING, key, sizeof(key), &value);
    if (!err) {
        alive =
            !dctf_listing_dir_decode(value.data, value.len, &state) && state.generation == find->generation;
        dctf_kv_value_put(&value);
    } else if (err != DCTF_ERR_MISS) {
        return false;
    }
    pthread_mutex_lock(&listings->lock);
    dir = dctf_listing_dir_find_locked(listings, &find->id);
    alive = alive || (dir && dir->state.generation == find->generation) ||
            dctf_listing_held_find_locked(listings, find->generation) ||
            dctf_clock_mono_ms(&listings->clock) < listings->quiet_until_ms;
    pthread_mutex_unlock(&listings->lock);
    return !alive;
}

static bool begin_sweep(struct dctf_listings *listings)
{
    bool begun;

    pthread_mutex_lock(&listings->lock);
    begun = !listings->sweeping;
    listings->sweeping = true;
    pthread_mutex_unlock(&listings->lock);
    return begun;
}

enum dctf_err dctf_listings_sweep(struct dctf_listings *listings, uint64_t idle_ms)
{
    struct sweep_find *finds;
    enum dctf_err err;
    size_t count = 0;

    dctf_listing_purge(listings);
    if (!begin_sweep(listings))
        return DCTF_OK;
    finds = calloc(SWEEP_MAX, sizeof(*finds));
    err = finds ? find_dirs(listings, finds, &count) : DCTF_ERR_NO_MEMORY;
    for (size_t i = 0; !err && i < count; i++)
        if (is_idle(listings, &finds[i].id, idle_ms))
            err = dctf_listing_drop_id(listings, &finds[i].id);
    if (!err)
        err = find_generations(listings, finds, &count);
    for (size_t i = 0; !err && i < count; i++)
        if (is_dead(listings, &finds[i]))
            err = dctf_listing_delete_generation(listings, &finds[i].id, finds[i].generation);
    free(finds);
    pthread_mutex_lock(&listings->lock);
    listings->sweeping = false;
    pthread_mutex_unlock(&listings->lock);
    return err;
}
