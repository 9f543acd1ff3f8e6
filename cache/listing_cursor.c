/* SPDX-License-Identifier: Apache-2.0
 *
 * Walking a generation. Entries are copied out in chunks and the iterator is given
 * back at once, so that an idle cursor holds nothing of the database. Where every
 * 1024th entry begins is remembered as the cursor passes, by the name before it.
 */
#include "cache/listing.h"
#include "cache/listing_private.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK_ENTRIES 128u
#define CHUNK_TEXT (16u * 1024u)
#define INDEX_STEP 1024u

struct chunk_entry {
    uint16_t text; /* name and etag, each with its NUL */
    uint16_t name_len;
    bool is_dir;
    uint64_t size;
    int64_t mtime_ns;
};

struct dctf_listing_cursor {
    struct dctf_listings *listings;
    struct dctf_listing_held *held;
    struct dctf_id id;
    uint64_t generation;

    struct chunk_entry entries[CHUNK_ENTRIES];
    char text[CHUNK_TEXT];
    size_t count, next;            /* of entries */
    bool at_end;                   /* nothing comes after this chunk */
    char after[DCTF_NAME_MAX + 1]; /* the chunk's last name, or what was sought */

    bool offset_known;
    uint64_t offset; /* of entries[next] */
    char **index;    /* the name after which entry (i + 1) × INDEX_STEP comes */
    size_t index_count, index_cap;
};

enum dctf_err dctf_listing_open(
    struct dctf_listings *listings, const char *dir, uint64_t generation, struct dctf_listing_cursor **out)
{
    struct dctf_listing_cursor *cursor = calloc(1, sizeof(*cursor));
    enum dctf_err err = cursor ? DCTF_OK : DCTF_ERR_NO_MEMORY;

    *out = NULL;
    if (!err)
        err = dctf_listing_dir_id(listings, dir, &cursor->id);
    if (!err)
        err = dctf_listing_hold(listings, &cursor->id, &generation, &cursor->held);
    if (err) {
        free(cursor);
        return err;
    }
    cursor->listings = listings;
    cursor->generation = generation;
    cursor->offset_known = true;
    *out = cursor;
    return DCTF_OK;
}

void dctf_listing_close(struct dctf_listing_cursor *cursor)
{
    struct dctf_listings *listings;

    if (!cursor)
        return;
    listings = cursor->listings;
    dctf_listing_release(listings, cursor->held, false);
    for (size_t i = 0; i < cursor->index_count; i++)
        free(cursor->index[i]);
    free(cursor->index);
    free(cursor);
    dctf_listing_purge(listings);
}

uint64_t dctf_listing_generation(const struct dctf_listing_cursor *cursor)
{
    return cursor->generation;
}

/* ---- chunks ---- */

/* Copy one entry into the chunk; false when it is full. A damaged one is an error:
 * a listing with a hole must not pass for whole. */
static bool copy_entry(
    struct dctf_listing_cursor *cursor, struct dctf_kv_iter *iter, size_t *text_used, enum dctf_err *err)
{
    struct chunk_entry *to = &cursor->entries[cursor->count];
    size_t key_len, len, name_len;
    const char *key = dctf_kv_iter_key(iter, &key_len);
    const char *value = dctf_kv_iter_value(iter, &len);
    struct dctf_entry entry;

    if (cursor->count == CHUNK_ENTRIES || CHUNK_TEXT - *text_used < DCTF_ENTRY_BUF_BYTES)
        return false;
    name_len = key_len - DCTF_LISTING_GENERATION_KEY;
    *err = dctf_listing_entry_decode(
        key + DCTF_LISTING_GENERATION_KEY, name_len, value, len, cursor->text + *text_used, &entry);
    if (*err)
        return false;
    *to = (struct chunk_entry){.text = (uint16_t)*text_used,
        .name_len = (uint16_t)name_len,
        .is_dir = entry.is_dir,
        .size = entry.size,
        .mtime_ns = entry.mtime_ns};
    *text_used += name_len + 1 + strlen(entry.etag) + 1;
    cursor->count++;
    return true;
}

/* The chunk that follows `after`. */
static enum dctf_err refill(struct dctf_listing_cursor *cursor)
{
    uint8_t key[DCTF_LISTING_ENTRY_KEY_MAX];
    size_t text_used = 0, after_len = strlen(cursor->after), key_len;
    struct dctf_kv_iter *iter;
    enum dctf_err err;

    cursor->count = cursor->next = 0;
    cursor->at_end = false;
    key_len = dctf_listing_entry_key(&cursor->id, cursor->generation, cursor->after, after_len, key);
    err = dctf_kv_iter_new(cursor->listings->kv, DCTF_KV_LISTING, key, DCTF_LISTING_GENERATION_KEY, &iter);
    if (err)
        return err;
    if (after_len) {
        key[key_len++] = '\0'; /* no name has one: the first key past this name */
        dctf_kv_iter_seek(iter, key, key_len);
    }
    while (dctf_kv_iter_valid(iter) && copy_entry(cursor, iter, &text_used, &err))
        dctf_kv_iter_next(iter);
    if (!err && !dctf_kv_iter_valid(iter)) {
        cursor->at_end = true;
        err = dctf_kv_iter_err(iter);
    }
    dctf_kv_iter_free(iter);
    if (err) {
        cursor->count = 0;
        cursor->at_end = false;
    } else if (cursor->count > 0) {
        const struct chunk_entry *last = &cursor->entries[cursor->count - 1];

        memcpy(cursor->after, cursor->text + last->text, last->name_len + 1u);
    }
    return err;
}

/* Losing a mark only makes a later seek longer. */
static void note_index(struct dctf_listing_cursor *cursor, const struct chunk_entry *passed)
{
    char **grown;
    size_t cap;

    if (!cursor->offset_known || cursor->offset % INDEX_STEP != 0 ||
        cursor->offset / INDEX_STEP != cursor->index_count + 1)
        return;
    if (cursor->index_count == cursor->index_cap) {
        cap = cursor->index_cap ? 2 * cursor->index_cap : 16;
        grown = reallocarray(cursor->index, cap, sizeof(*grown));
        if (!grown)
            return;
        cursor->index = grown;
        cursor->index_cap = cap;
    }
    cursor->index[cursor->index_count] = strdup(cursor->text + passed->text);
    if (cursor->index[cursor->index_count])
        cursor->index_count++;
}

static enum dctf_err advance(struct dctf_listing_cursor *cursor, const struct chunk_entry **out)
{
    enum dctf_err err;

    if (cursor->next == cursor->count) {
        if (cursor->at_end)
            return DCTF_ERR_NOT_FOUND;
        err = refill(cursor);
        if (err)
            return err;
        if (cursor->count == 0)
            return DCTF_ERR_NOT_FOUND;
    }
    *out = &cursor->entries[cursor->next++];
    cursor->offset++;
    note_index(cursor, *out);
    return DCTF_OK;
}

enum dctf_err dctf_listing_next(struct dctf_listing_cursor *cursor, struct dctf_entry *out)
{
    const struct chunk_entry *entry;
    enum dctf_err err = advance(cursor, &entry);

    *out = (struct dctf_entry){.name = "", .etag = ""};
    if (err)
        return err;
    *out = (struct dctf_entry){.name = cursor->text + entry->text,
        .is_dir = entry->is_dir,
        .size = entry->size,
        .mtime_ns = entry->mtime_ns,
        .etag = cursor->text + entry->text + entry->name_len + 1};
    return DCTF_OK;
}

/* ---- seeking ---- */

static void restart(struct dctf_listing_cursor *cursor, const char *after)
{
    cursor->count = cursor->next = 0;
    cursor->at_end = false;
    memmove(cursor->after, after, strlen(after) + 1);
}

enum dctf_err dctf_listing_seek(struct dctf_listing_cursor *cursor, uint64_t offset)
{
    size_t mark =
        offset / INDEX_STEP < cursor->index_count ? (size_t)(offset / INDEX_STEP) : cursor->index_count;
    const struct chunk_entry *entry;
    enum dctf_err err = DCTF_OK;

    if (cursor->offset_known && offset <= cursor->offset && cursor->offset - offset <= cursor->next) {
        cursor->next -= (size_t)(cursor->offset - offset);
        cursor->offset = offset;
        return DCTF_OK;
    }
    if (!cursor->offset_known || offset < cursor->offset || mark * INDEX_STEP > cursor->offset) {
        restart(cursor, mark ? cursor->index[mark - 1] : "");
        cursor->offset = mark * INDEX_STEP;
        cursor->offset_known = true;
    }
    while (!err && cursor->offset < offset)
        err = advance(cursor, &entry);
    return err == DCTF_ERR_NOT_FOUND ? DCTF_OK : err;
}

uint64_t dctf_listing_offset(const struct dctf_listing_cursor *cursor)
{
    return cursor->offset_known ? cursor->offset : UINT64_MAX;
}

enum dctf_err dctf_listing_seek_name(struct dctf_listing_cursor *cursor, const char *name)
{
    if (strlen(name) > DCTF_NAME_MAX)
        return DCTF_ERR_NAME_TOO_LONG;
    restart(cursor, name);
    cursor->offset_known = false;
    return DCTF_OK;
}
