/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing a generation. Entries wait in an arena of about a megabyte; it is
 * sorted, rid of repeated names and written in one batch. A listing that fits is
 * committed by that same batch, record and all.
 *
 * A name that came before is known by one bit of its hash. Only then is the
 * database asked, which is rare up to millions of entries.
 */
#include "cache/listing.h"
#include "cache/listing_private.h"

#include <stdlib.h>
#include <string.h>

#define ARENA_BYTES (1024u * 1024u)
#define WAITING_MAX 16384u
#define SEEN_BITS (1u << 24)
/* Generations are handed out up to here before the database must know: an hour, as
 * they follow the clock in nanoseconds. */
#define RESERVE 3600000000000u

struct waiting_entry {
    uint16_t name_len, record_len;
    uint8_t is_dir;
    uint8_t maybe_seen;
    /* name and record follow */
};

static enum dctf_err save_reserve(struct dctf_listings *listings, uint64_t reserve)
{
    uint8_t record[DCTF_LISTING_NUMBER_BYTES];
    struct dctf_kv_batch *batch;
    enum dctf_err err = dctf_kv_batch_new(&batch);

    if (err)
        return err;
    dctf_listing_number_encode(reserve, record);
    dctf_kv_batch_put(batch, listings->kv, DCTF_KV_LISTING, "g", 1, record, sizeof(record));
    err = dctf_kv_write(listings->kv, batch, DCTF_KV_LOGGED);
    dctf_kv_batch_free(batch);
    return err;
}

/* A generation newer than any before, also before a restart. */
static enum dctf_err next_generation(struct dctf_listings *listings, uint64_t wall_ms, uint64_t *out)
{
    uint64_t reserve;
    enum dctf_err err;
    bool known;

    pthread_mutex_lock(&listings->lock);
    if (listings->generation_last < wall_ms * 1000000u)
        listings->generation_last = wall_ms * 1000000u;
    *out = ++listings->generation_last;
    known = *out <= listings->generation_reserved;
    pthread_mutex_unlock(&listings->lock);
    if (known)
        return DCTF_OK;
    reserve = *out + RESERVE;
    err = save_reserve(listings, reserve);
    if (err)
        return err;
    pthread_mutex_lock(&listings->lock);
    if (listings->generation_reserved < reserve)
        listings->generation_reserved = reserve;
    pthread_mutex_unlock(&listings->lock);
    return DCTF_OK;
}

static void free_writer(struct dctf_listing_writer *writer)
{
    dctf_kv_batch_free(writer->batch);
    free(writer->seen);
    free(writer->arena);
    free(writer->waiting);
    free(writer);
}

enum dctf_err dctf_listing_begin(
    struct dctf_listings *listings, const char *dir, struct dctf_listing_writer **out)
{
    struct dctf_listing_writer *writer = calloc(1, sizeof(*writer));
    enum dctf_err err;

    *out = NULL;
    if (!writer)
        return DCTF_ERR_NO_MEMORY;
    writer->listings = listings;
    writer->state.fetched_ms = dctf_clock_wall_ms(&listings->clock);
    err = dctf_listing_dir_id(listings, dir, &writer->id);
    if (!err)
        err = dctf_kv_batch_new(&writer->batch);
    writer->seen = calloc(SEEN_BITS / 64, sizeof(*writer->seen));
    writer->arena = malloc(ARENA_BYTES);
    writer->waiting = malloc(WAITING_MAX * sizeof(*writer->waiting));
    if (!err && (!writer->seen || !writer->arena || !writer->waiting))
        err = DCTF_ERR_NO_MEMORY;
    if (!err)
        err = next_generation(listings, writer->state.fetched_ms, &writer->state.generation);
    if (err) {
        free_writer(writer);
        return err;
    }
    pthread_mutex_lock(&listings->lock);
    dctf_list_push_back(&listings->writers, &writer->node);
    pthread_mutex_unlock(&listings->lock);
    *out = writer;
    return DCTF_OK;
}

void dctf_listing_watch_shadowed(
    struct dctf_listing_writer *writer, void (*shadowed)(void *ctx, const char *name), void *ctx)
{
    writer->shadowed = shadowed;
    writer->shadowed_ctx = ctx;
}

/* ---- the arena ---- */

static struct waiting_entry waiting_at(const char *arena, uint32_t at)
{
    struct waiting_entry entry;

    memcpy(&entry, arena + at, sizeof(entry));
    return entry;
}

static const char *name_at(const char *arena, uint32_t at)
{
    return arena + at + sizeof(struct waiting_entry);
}

/* By name; the earlier of two alike first. */
static int compare_waiting(const void *left, const void *right, void *context)
{
    const char *arena = context;
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    size_t a_len = waiting_at(arena, a).name_len, b_len = waiting_at(arena, b).name_len;
    int order = memcmp(name_at(arena, a), name_at(arena, b), a_len < b_len ? a_len : b_len);

    if (order)
        return order;
    if (a_len != b_len)
        return a_len < b_len ? -1 : 1;
    return a < b ? -1 : a > b;
}

static bool same_name(const char *arena, uint32_t a, uint32_t b)
{
    size_t len = waiting_at(arena, a).name_len;

    return waiting_at(arena, b).name_len == len && !memcmp(name_at(arena, a), name_at(arena, b), len);
}

/* What an earlier batch wrote under this name. */
static enum dctf_err find_written(struct dctf_listing_writer *writer, const uint8_t *key, size_t key_len,
    const char *name, size_t name_len, bool *found, bool *is_dir)
{
    char buf[DCTF_ENTRY_BUF_BYTES];
    struct dctf_kv_value value;
    struct dctf_entry entry;
    enum dctf_err err = dctf_kv_get(writer->listings->kv, DCTF_KV_LISTING, key, key_len, &value);

    *found = *is_dir = false;
    if (err)
        return err == DCTF_ERR_MISS ? DCTF_OK : err;
    err = dctf_listing_entry_decode(name, name_len, value.data, value.len, buf, &entry);
    dctf_kv_value_put(&value);
    *found = true;
    *is_dir = entry.is_dir;
    return err;
}

static void tell_shadowed(struct dctf_listing_writer *writer, const char *name, size_t len)
{
    char text[DCTF_NAME_MAX + 1];

    if (!writer->shadowed)
        return;
    memcpy(text, name, len);
    text[len] = '\0';
    writer->shadowed(writer->shadowed_ctx, text);
}

/* Put the winner of entries alike, waiting[first] to waiting[last - 1]. */
static enum dctf_err put_winner(struct dctf_listing_writer *writer, size_t first, size_t last)
{
    uint32_t winner = writer->waiting[first];
    bool maybe_seen = false, found = false, found_dir = false, has_dir = false, has_file = false;
    uint8_t key[DCTF_LISTING_ENTRY_KEY_MAX];
    struct waiting_entry entry;
    const char *name;
    size_t key_len;
    enum dctf_err err = DCTF_OK;

    for (size_t i = first; i < last; i++) {
        entry = waiting_at(writer->arena, writer->waiting[i]);
        maybe_seen |= entry.maybe_seen;
        has_dir |= entry.is_dir;
        has_file |= !entry.is_dir;
        if (entry.is_dir || !waiting_at(writer->arena, winner).is_dir)
            winner = writer->waiting[i];
    }
    entry = waiting_at(writer->arena, winner);
    name = name_at(writer->arena, winner);
    key_len = dctf_listing_entry_key(&writer->id, writer->state.generation, name, entry.name_len, key);
    if (maybe_seen && writer->flushed)
        err = find_written(writer, key, key_len, name, entry.name_len, &found, &found_dir);
    if (err)
        return err;
    if ((has_dir || found_dir) && (has_file || (found && !found_dir)))
        tell_shadowed(writer, name, entry.name_len);
    if (found_dir && !entry.is_dir)
        return DCTF_OK;
    if (!found)
        writer->state.entries++;
    dctf_kv_batch_put(writer->batch, writer->listings->kv, DCTF_KV_LISTING, key, key_len,
        name + entry.name_len, entry.record_len);
    return DCTF_OK;
}

/* Sort what waits into the batch. */
static enum dctf_err fill_batch(struct dctf_listing_writer *writer)
{
    enum dctf_err err = DCTF_OK;
    size_t last;

    if (writer->waiting_count > 0)
        qsort_r(
            writer->waiting, writer->waiting_count, sizeof(*writer->waiting), compare_waiting, writer->arena);
    for (size_t first = 0; !err && first < writer->waiting_count; first = last) {
        last = first + 1;
        while (last < writer->waiting_count &&
               same_name(writer->arena, writer->waiting[first], writer->waiting[last]))
            last++;
        err = put_winner(writer, first, last);
    }
    writer->waiting_count = 0;
    writer->arena_used = 0;
    return err;
}

static enum dctf_err flush(struct dctf_listing_writer *writer)
{
    enum dctf_err err = fill_batch(writer);

    if (!err)
        err = dctf_kv_write(writer->listings->kv, writer->batch, DCTF_KV_LOGGED);
    writer->flushed = true;
    dctf_kv_batch_clear(writer->batch);
    return err;
}

static bool note_seen(struct dctf_listing_writer *writer, const char *name, size_t len)
{
    uint64_t hash = dctf_hash64(name, len);
    uint64_t *word = &writer->seen[hash % SEEN_BITS / 64], bit = (uint64_t)1 << hash % 64;
    bool seen = *word & bit;

    *word |= bit;
    return seen;
}

enum dctf_err dctf_listing_add(struct dctf_listing_writer *writer, const struct dctf_entry *entry)
{
    size_t name_len = strlen(entry->name);
    struct waiting_entry header = {.name_len = (uint16_t)name_len, .is_dir = entry->is_dir};
    char *at;
    enum dctf_err err;

    if (!dctf_listing_name_ok(entry->name, name_len) || strlen(entry->etag) > DCTF_ETAG_MAX)
        return DCTF_ERR_NAME_TOO_LONG;
    if (writer->waiting_count == WAITING_MAX ||
        ARENA_BYTES - writer->arena_used < sizeof(header) + name_len + DCTF_LISTING_ENTRY_MAX) {
        err = flush(writer);
        if (err)
            return err;
    }
    at = writer->arena + writer->arena_used;
    header.record_len = (uint16_t)dctf_listing_entry_encode(entry, (uint8_t *)at + sizeof(header) + name_len);
    header.maybe_seen = note_seen(writer, entry->name, name_len);
    memcpy(at, &header, sizeof(header));
    memcpy(at + sizeof(header), entry->name, name_len);
    writer->waiting[writer->waiting_count++] = (uint32_t)writer->arena_used;
    writer->arena_used += sizeof(header) + name_len + header.record_len;
    return DCTF_OK;
}

void dctf_listing_set_age(struct dctf_listing_writer *writer, uint64_t age_ms)
{
    uint64_t now_ms = dctf_clock_wall_ms(&writer->listings->clock);

    writer->state.fetched_ms = now_ms > age_ms ? now_ms - age_ms : 1;
}

/* ---- the end ---- */

static void end_writer(struct dctf_listing_writer *writer)
{
    pthread_mutex_lock(&writer->listings->lock);
    dctf_list_remove(&writer->node);
    pthread_mutex_unlock(&writer->listings->lock);
    free_writer(writer);
}

void dctf_listing_abort(struct dctf_listing_writer *writer)
{
    if (!writer)
        return;
    /* What stays is swept. */
    if (writer->flushed)
        (void)!dctf_listing_delete_generation(writer->listings, &writer->id, writer->state.generation);
    end_writer(writer);
}

/* Record and remaining entries in one batch. The directory is claimed. */
static enum dctf_err write_record(struct dctf_listing_writer *writer)
{
    uint8_t key[DCTF_LISTING_DIR_KEY], record[DCTF_LISTING_DIR_BYTES];

    dctf_listing_dir_key('d', &writer->id, key);
    dctf_listing_dir_encode(&writer->state, record);
    dctf_kv_batch_put(
        writer->batch, writer->listings->kv, DCTF_KV_LISTING, key, sizeof(key), record, sizeof(record));
    return dctf_kv_write(writer->listings->kv, writer->batch, DCTF_KV_LOGGED);
}

static enum dctf_err replace(struct dctf_listing_writer *writer)
{
    struct dctf_listings *listings = writer->listings;
    struct dctf_listing_held *old;
    uint64_t generation = 0;
    /* Held, so that nobody takes it for dead while both are on their way. */
    enum dctf_err err = dctf_listing_hold(listings, &writer->id, &generation, &old);

    if (err && err != DCTF_ERR_MISS)
        return err;
    pthread_mutex_lock(&listings->lock);
    if (writer->outdated)
        writer->state.fetched_ms = 0;
    pthread_mutex_unlock(&listings->lock);
    err = write_record(writer);
    if (!err) {
        pthread_mutex_lock(&listings->lock);
        dctf_listing_set_locked(listings, &writer->id, &writer->state);
        pthread_mutex_unlock(&listings->lock);
    }
    if (old)
        dctf_listing_release(listings, old, !err);
    return err;
}

enum dctf_err dctf_listing_commit(struct dctf_listing_writer *writer, struct dctf_listing_state *out)
{
    struct dctf_listings *listings = writer->listings;
    struct dctf_listing_claim claim;
    enum dctf_err err;

    *out = (struct dctf_listing_state){0};
    err = fill_batch(writer);
    if (err) {
        dctf_listing_abort(writer);
        return err;
    }
    dctf_listing_claim(listings, &writer->id, &claim);
    err = dctf_listing_load(listings, &writer->id, out);
    /* Another listing that began later may have ended first: it stays. */
    if (!err && out->generation < writer->state.generation) {
        err = replace(writer);
        if (!err)
            *out = writer->state;
        writer->flushed = writer->flushed || err; /* who knows what of a failed write lies there */
    }
    dctf_listing_unclaim(listings, &claim);
    if (err)
        *out = (struct dctf_listing_state){0};
    if (!err && out->generation == writer->state.generation)
        end_writer(writer);
    else
        dctf_listing_abort(writer);
    dctf_listing_purge(listings);
    return err;
}
