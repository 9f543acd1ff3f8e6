/* SPDX-License-Identifier: Apache-2.0
 *
 * Directories' records, in memory and in the database, and look-ups.
 */
#include "cache/listing.h"

#include "base/log.h"
#include "cache/listing_private.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* When a directory was last asked for is written this often. */
#define ASKED_GRAIN_MS 3600000u

static uint32_t hash_of(const struct dctf_id *id)
{
    uint32_t hash;

    memcpy(&hash, id->bytes, sizeof(hash));
    return hash;
}

static bool same(const struct dctf_id *a, const struct dctf_id *b)
{
    return !memcmp(a->bytes, b->bytes, sizeof(a->bytes));
}

enum dctf_err dctf_listings_new(
    struct dctf_kv *kv, uint64_t dataset, const struct dctf_clock *clock, struct dctf_listings **out)
{
    struct dctf_listings *listings = calloc(1, sizeof(*listings));
    struct dctf_kv_value value;
    enum dctf_err err;

    *out = NULL;
    if (!listings)
        return DCTF_ERR_NO_MEMORY;
    listings->kv = kv;
    listings->dataset = dataset;
    if (clock)
        listings->clock = *clock;
    err = dctf_kv_get(kv, DCTF_KV_LISTING, "g", 1, &value);
    if (!err) {
        /* Without it the wall clock alone keeps generations apart. */
        if (dctf_listing_number_decode(value.data, value.len, &listings->generation_reserved))
            dctf_log(DCTF_LOG_WARN, "listing", "err=%d the generations' record is damaged",
                DCTF_ERR_CACHE_CORRUPT);
        dctf_kv_value_put(&value);
    }
    if (err && err != DCTF_ERR_MISS) {
        free(listings);
        return err;
    }
    listings->generation_last = listings->generation_reserved;
    pthread_mutex_init(&listings->lock, NULL);
    pthread_cond_init(&listings->unclaimed, NULL);
    dctf_list_init(&listings->lru);
    dctf_list_init(&listings->writers);
    dctf_list_init(&listings->claims);
    for (size_t i = 0; i < DCTF_LISTING_HELD_BUCKETS; i++)
        dctf_list_init(&listings->held[i]);
    for (size_t i = 0; i < DCTF_LISTING_DIRS_MAX; i++)
        dctf_list_push_back(&listings->lru, &listings->dirs[i].lru);
    *out = listings;
    return DCTF_OK;
}

void dctf_listings_free(struct dctf_listings *listings)
{
    if (!listings)
        return;
    assert(dctf_list_empty(&listings->writers) && dctf_list_empty(&listings->claims));
    for (size_t i = 0; i < DCTF_LISTING_HELD_BUCKETS; i++) {
        while (!dctf_list_empty(&listings->held[i])) {
            struct dctf_listing_held *held =
                dctf_list_entry(listings->held[i].next, struct dctf_listing_held, node);

            assert(held->refs == 0);
            dctf_list_remove(&held->node);
            /* What stays is swept after the next start. */
            (void)!dctf_listing_delete_generation(listings, &held->id, held->generation);
            free(held);
        }
    }
    pthread_cond_destroy(&listings->unclaimed);
    pthread_mutex_destroy(&listings->lock);
    free(listings);
}

enum dctf_err dctf_listing_dir_id(const struct dctf_listings *listings, const char *dir, struct dctf_id *out)
{
    char buf[sizeof(listings->dataset) + DCTF_KEY_MAX];
    size_t len = strlen(dir);

    if (len > DCTF_KEY_MAX)
        return DCTF_ERR_NAME_TOO_LONG;
    for (size_t i = 0; i < sizeof(listings->dataset); i++)
        buf[i] = (char)(listings->dataset >> 8 * i);
    memcpy(buf + sizeof(listings->dataset), dir, len);
    *out = dctf_hash128(buf, sizeof(listings->dataset) + len);
    return DCTF_OK;
}

/* ---- claims ---- */

static bool is_claimed_locked(struct dctf_listings *listings, const struct dctf_id *id)
{
    if (listings->all_claimed)
        return true;
    for (struct dctf_list *at = listings->claims.next; at != &listings->claims; at = at->next)
        if (same(&dctf_list_entry(at, struct dctf_listing_claim, node)->id, id))
            return true;
    return false;
}

void dctf_listing_claim(
    struct dctf_listings *listings, const struct dctf_id *id, struct dctf_listing_claim *claim)
{
    claim->id = *id;
    pthread_mutex_lock(&listings->lock);
    while (is_claimed_locked(listings, id))
        pthread_cond_wait(&listings->unclaimed, &listings->lock);
    dctf_list_push_back(&listings->claims, &claim->node);
    pthread_mutex_unlock(&listings->lock);
}

void dctf_listing_unclaim(struct dctf_listings *listings, struct dctf_listing_claim *claim)
{
    pthread_mutex_lock(&listings->lock);
    dctf_list_remove(&claim->node);
    pthread_cond_broadcast(&listings->unclaimed);
    pthread_mutex_unlock(&listings->lock);
}

/* ---- states in memory ---- */

struct dctf_listing_dir *dctf_listing_dir_find_locked(
    struct dctf_listings *listings, const struct dctf_id *id)
{
    struct dctf_listing_dir *dir = listings->dir_buckets[hash_of(id) % DCTF_LISTING_DIRS_MAX];

    while (dir && !same(&dir->id, id))
        dir = dir->chain;
    return dir;
}

static void forget_locked(struct dctf_listings *listings, struct dctf_listing_dir *dir)
{
    struct dctf_listing_dir **link = &listings->dir_buckets[hash_of(&dir->id) % DCTF_LISTING_DIRS_MAX];

    if (!dir->used)
        return;
    while (*link != dir)
        link = &(*link)->chain;
    *link = dir->chain;
    dir->used = false;
}

static struct dctf_listing_dir *remember_locked(
    struct dctf_listings *listings, const struct dctf_id *id, const struct dctf_listing_state *state)
{
    struct dctf_listing_dir *dir = dctf_listing_dir_find_locked(listings, id);
    struct dctf_listing_dir **bucket = &listings->dir_buckets[hash_of(id) % DCTF_LISTING_DIRS_MAX];

    if (!dir) {
        dir = dctf_list_entry(listings->lru.next, struct dctf_listing_dir, lru);
        forget_locked(listings, dir);
        dir->used = true;
        dir->id = *id;
        dir->asked_ms = dir->asked_saved_ms = 0;
        dir->chain = *bucket;
        *bucket = dir;
    }
    dctf_list_remove(&dir->lru);
    dctf_list_push_back(&listings->lru, &dir->lru);
    dir->state = *state;
    return dir;
}

void dctf_listing_set_locked(
    struct dctf_listings *listings, const struct dctf_id *id, const struct dctf_listing_state *state)
{
    listings->changes++;
    remember_locked(listings, id, state);
}

static enum dctf_err read_record(
    struct dctf_listings *listings, const struct dctf_id *id, struct dctf_listing_state *out)
{
    uint8_t key[DCTF_LISTING_DIR_KEY];
    struct dctf_kv_value value;
    enum dctf_err err;

    *out = (struct dctf_listing_state){0};
    dctf_listing_dir_key('d', id, key);
    err = dctf_kv_get(listings->kv, DCTF_KV_LISTING, key, sizeof(key), &value);
    if (err)
        return err == DCTF_ERR_MISS ? DCTF_OK : err;
    /* A listing can always be fetched again: a bad record is none. */
    if (dctf_listing_dir_decode(value.data, value.len, out))
        dctf_log(DCTF_LOG_WARN, "listing", "err=%d a directory's record is damaged", DCTF_ERR_CACHE_CORRUPT);
    dctf_kv_value_put(&value);
    return DCTF_OK;
}

enum dctf_err dctf_listing_load(
    struct dctf_listings *listings, const struct dctf_id *id, struct dctf_listing_state *out)
{
    struct dctf_listing_dir *dir;
    uint64_t changes;
    enum dctf_err err;

    pthread_mutex_lock(&listings->lock);
    while (!(dir = dctf_listing_dir_find_locked(listings, id))) {
        changes = listings->changes;
        pthread_mutex_unlock(&listings->lock);
        err = read_record(listings, id, out);
        if (err)
            return err;
        pthread_mutex_lock(&listings->lock);
        if (changes == listings->changes)
            remember_locked(listings, id, out);
    }
    *out = dir->state;
    pthread_mutex_unlock(&listings->lock);
    return DCTF_OK;
}

/* Losing it in a crash makes the directory look idle for an hour longer. */
static void save_asked(struct dctf_listings *listings, const struct dctf_id *id, uint64_t asked_ms)
{
    uint8_t key[DCTF_LISTING_DIR_KEY], record[DCTF_LISTING_NUMBER_BYTES];
    struct dctf_kv_batch *batch;

    if (dctf_kv_batch_new(&batch))
        return;
    dctf_listing_dir_key('a', id, key);
    dctf_listing_number_encode(asked_ms, record);
    dctf_kv_batch_put(batch, listings->kv, DCTF_KV_LISTING, key, sizeof(key), record, sizeof(record));
    (void)!dctf_kv_write(listings->kv, batch, DCTF_KV_UNLOGGED);
    dctf_kv_batch_free(batch);
}

enum dctf_err dctf_listings_state(
    struct dctf_listings *listings, const char *dir, struct dctf_listing_state *out)
{
    uint64_t now = dctf_clock_wall_ms(&listings->clock);
    struct dctf_listing_dir *known;
    struct dctf_id id;
    bool save = false;
    enum dctf_err err;

    *out = (struct dctf_listing_state){0};
    err = dctf_listing_dir_id(listings, dir, &id);
    if (!err)
        err = dctf_listing_load(listings, &id, out);
    if (err || out->generation == 0)
        return err;
    pthread_mutex_lock(&listings->lock);
    known = dctf_listing_dir_find_locked(listings, &id);
    if (known) {
        dctf_list_remove(&known->lru);
        dctf_list_push_back(&listings->lru, &known->lru);
        known->asked_ms = now;
        save = now < known->asked_saved_ms || now - known->asked_saved_ms > ASKED_GRAIN_MS;
        if (save)
            known->asked_saved_ms = now;
    }
    pthread_mutex_unlock(&listings->lock);
    if (save)
        save_asked(listings, &id, now);
    return DCTF_OK;
}

/* ---- generations that are held ---- */

struct dctf_listing_held *dctf_listing_held_find_locked(struct dctf_listings *listings, uint64_t generation)
{
    struct dctf_list *bucket = &listings->held[generation % DCTF_LISTING_HELD_BUCKETS];

    for (struct dctf_list *at = bucket->next; at != bucket; at = at->next) {
        struct dctf_listing_held *held = dctf_list_entry(at, struct dctf_listing_held, node);

        if (held->generation == generation)
            return held;
    }
    return NULL;
}

static struct dctf_listing_held *hold_locked(struct dctf_listings *listings, const struct dctf_id *id,
    uint64_t generation, struct dctf_listing_held **spare)
{
    struct dctf_listing_dir *dir = dctf_listing_dir_find_locked(listings, id);
    struct dctf_listing_held *held = dctf_listing_held_find_locked(listings, generation);

    if (!held) {
        if (!dir || dir->state.generation != generation)
            return NULL;
        held = *spare;
        *spare = NULL;
        *held = (struct dctf_listing_held){.id = *id, .generation = generation};
        dctf_list_push_back(&listings->held[generation % DCTF_LISTING_HELD_BUCKETS], &held->node);
    }
    held->refs++;
    return held;
}

enum dctf_err dctf_listing_hold(struct dctf_listings *listings, const struct dctf_id *id,
    uint64_t *generation, struct dctf_listing_held **out)
{
    struct dctf_listing_held *spare = malloc(sizeof(*spare));
    struct dctf_listing_state state = {0};
    enum dctf_err err = spare ? DCTF_OK : DCTF_ERR_NO_MEMORY;

    *out = NULL;
    while (!err && !*out) {
        pthread_mutex_lock(&listings->lock);
        if (*generation)
            *out = hold_locked(listings, id, *generation, &spare);
        pthread_mutex_unlock(&listings->lock);
        if (*out)
            break;
        /* Dead, or no longer in memory: what is there now? */
        err = dctf_listing_load(listings, id, &state);
        if (!err && state.generation == 0)
            err = DCTF_ERR_MISS;
        *generation = state.generation;
    }
    free(spare);
    return err;
}

void dctf_listing_release(struct dctf_listings *listings, struct dctf_listing_held *held, bool retire)
{
    pthread_mutex_lock(&listings->lock);
    assert(held->refs > 0);
    held->refs--;
    if (retire)
        held->due_ms = dctf_clock_mono_ms(&listings->clock) + DCTF_LISTING_RETIRED_MS;
    if (held->refs > 0 || held->due_ms)
        held = NULL;
    else
        dctf_list_remove(&held->node);
    pthread_mutex_unlock(&listings->lock);
    free(held);
}

/* ---- look-up and change ---- */

static enum dctf_err read_entry(struct dctf_listings *listings, const struct dctf_id *id, uint64_t generation,
    const char *name, char *buf, struct dctf_entry *out)
{
    uint8_t key[DCTF_LISTING_ENTRY_KEY_MAX];
    size_t name_len = strlen(name);
    struct dctf_kv_value value;
    enum dctf_err err;

    err = dctf_kv_get(listings->kv, DCTF_KV_LISTING, key,
        dctf_listing_entry_key(id, generation, name, name_len, key), &value);
    if (err)
        return err;
    err = dctf_listing_entry_decode(name, name_len, value.data, value.len, buf, out);
    dctf_kv_value_put(&value);
    return err;
}

/* True when the entries of a generation are all there, so that a miss means no such name. */
static bool is_alive(struct dctf_listings *listings, const struct dctf_id *id, uint64_t generation)
{
    struct dctf_listing_dir *dir;
    bool alive;

    pthread_mutex_lock(&listings->lock);
    dir = dctf_listing_dir_find_locked(listings, id);
    alive = (dir && dir->state.generation == generation) ||
            dctf_listing_held_find_locked(listings, generation) != NULL ||
            dctf_clock_mono_ms(&listings->clock) < listings->quiet_until_ms;
    pthread_mutex_unlock(&listings->lock);
    return alive;
}

enum dctf_err dctf_listing_lookup(struct dctf_listings *listings, const char *dir, uint64_t generation,
    const char *name, char *buf, struct dctf_entry *out)
{
    struct dctf_listing_state state;
    struct dctf_id id;
    enum dctf_err err;

    *out = (struct dctf_entry){.name = "", .etag = ""};
    if (!dctf_listing_name_ok(name, strlen(name)))
        return DCTF_ERR_NOT_FOUND;
    err = dctf_listing_dir_id(listings, dir, &id);
    while (!err) {
        err = generation ? read_entry(listings, &id, generation, name, buf, out) : DCTF_ERR_MISS;
        if (err != DCTF_ERR_MISS)
            return err;
        if (generation && is_alive(listings, &id, generation))
            return DCTF_ERR_NOT_FOUND;
        /* It died meanwhile, or memory has forgotten that it is the current one. */
        err = dctf_listing_load(listings, &id, &state);
        if (!err && state.generation == 0)
            err = DCTF_ERR_MISS;
        else if (!err && state.generation == generation)
            err = DCTF_ERR_NOT_FOUND;
        generation = state.generation;
    }
    return err;
}

enum dctf_err dctf_listing_patch(
    struct dctf_listings *listings, const char *dir, const char *name, const struct dctf_entry *entry)
{
    uint8_t key[DCTF_LISTING_ENTRY_KEY_MAX], record[DCTF_LISTING_ENTRY_MAX];
    struct dctf_kv_batch *batch = NULL;
    struct dctf_listing_claim claim;
    struct dctf_listing_state state;
    struct dctf_id id;
    enum dctf_err err;

    if (!dctf_listing_name_ok(name, strlen(name)) || (entry && strlen(entry->etag) > DCTF_ETAG_MAX))
        return DCTF_ERR_NAME_TOO_LONG;
    err = dctf_listing_dir_id(listings, dir, &id);
    if (err)
        return err;
    dctf_listing_claim(listings, &id, &claim);
    err = dctf_listing_load(listings, &id, &state);
    if (!err && state.generation != 0)
        err = dctf_kv_batch_new(&batch);
    if (batch) {
        size_t key_len = dctf_listing_entry_key(&id, state.generation, name, strlen(name), key);

        if (entry)
            dctf_kv_batch_put(batch, listings->kv, DCTF_KV_LISTING, key, key_len, record,
                dctf_listing_entry_encode(entry, record));
        else
            dctf_kv_batch_delete(batch, listings->kv, DCTF_KV_LISTING, key, key_len);
        err = dctf_kv_write(listings->kv, batch, DCTF_KV_LOGGED);
    }
    dctf_listing_unclaim(listings, &claim);
    dctf_kv_batch_free(batch);
    return err;
}
