/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/listing_record.h"

#include "base/le.h"

#include <string.h>

#define RECORD_VERSION 1u
#define KIND_FILE 1u
#define KIND_DIRECTORY 2u

void dctf_listing_dir_key(char kind, const struct dctf_id *dir, uint8_t *key)
{
    key[0] = (uint8_t)kind;
    memcpy(key + 1, dir->bytes, sizeof(dir->bytes));
}

void dctf_listing_generation_key(const struct dctf_id *dir, uint64_t generation, uint8_t *key)
{
    uint64_t be = htobe64(generation);

    dctf_listing_dir_key('e', dir, key);
    memcpy(key + DCTF_LISTING_DIR_KEY, &be, sizeof(be));
}

size_t dctf_listing_entry_key(
    const struct dctf_id *dir, uint64_t generation, const char *name, size_t name_len, uint8_t *key)
{
    dctf_listing_generation_key(dir, generation, key);
    memcpy(key + DCTF_LISTING_GENERATION_KEY, name, name_len);
    return DCTF_LISTING_GENERATION_KEY + name_len;
}

bool dctf_listing_entry_key_decode(const void *key, size_t len, struct dctf_id *dir, uint64_t *generation)
{
    const uint8_t *bytes = key;
    uint64_t be;

    if (len < DCTF_LISTING_GENERATION_KEY || bytes[0] != 'e')
        return false;
    memcpy(dir->bytes, bytes + 1, sizeof(dir->bytes));
    memcpy(&be, bytes + DCTF_LISTING_DIR_KEY, sizeof(be));
    *generation = be64toh(be);
    return *generation != 0 && *generation != UINT64_MAX;
}

void dctf_listing_dir_encode(const struct dctf_listing_state *state, uint8_t *buf)
{
    buf[0] = RECORD_VERSION;
    dctf_le_put(buf + 1, state->generation, 8);
    dctf_le_put(buf + 9, state->fetched_ms, 8);
    dctf_le_put(buf + 17, state->entries, 8);
}

enum dctf_err dctf_listing_dir_decode(const void *data, size_t len, struct dctf_listing_state *out)
{
    const uint8_t *bytes = data;

    *out = (struct dctf_listing_state){0};
    if (len != DCTF_LISTING_DIR_BYTES || bytes[0] != RECORD_VERSION || dctf_le_get(bytes + 1, 8) == 0)
        return DCTF_ERR_CACHE_CORRUPT;
    out->generation = dctf_le_get(bytes + 1, 8);
    out->fetched_ms = dctf_le_get(bytes + 9, 8);
    out->entries = dctf_le_get(bytes + 17, 8);
    return DCTF_OK;
}

void dctf_listing_number_encode(uint64_t number, uint8_t *buf)
{
    buf[0] = RECORD_VERSION;
    dctf_le_put(buf + 1, number, 8);
}

enum dctf_err dctf_listing_number_decode(const void *data, size_t len, uint64_t *out)
{
    const uint8_t *bytes = data;

    *out = 0;
    if (len != DCTF_LISTING_NUMBER_BYTES || bytes[0] != RECORD_VERSION)
        return DCTF_ERR_CACHE_CORRUPT;
    *out = dctf_le_get(bytes + 1, 8);
    return DCTF_OK;
}

bool dctf_listing_name_ok(const char *name, size_t len)
{
    return len > 0 && len <= DCTF_NAME_MAX && !memchr(name, '\0', len) && !memchr(name, '/', len);
}

size_t dctf_listing_entry_encode(const struct dctf_entry *entry, uint8_t *buf)
{
    size_t etag_len = entry->is_dir ? 0 : strlen(entry->etag);

    buf[0] = entry->is_dir ? KIND_DIRECTORY : KIND_FILE;
    dctf_le_put(buf + 1, entry->is_dir ? 0 : entry->size, 8);
    dctf_le_put(buf + 9, (uint64_t)entry->mtime_ns, 8);
    memcpy(buf + DCTF_LISTING_ENTRY_MIN, entry->etag, etag_len);
    return DCTF_LISTING_ENTRY_MIN + etag_len;
}

enum dctf_err dctf_listing_entry_decode(
    const void *name, size_t name_len, const void *data, size_t len, char *buf, struct dctf_entry *out)
{
    const uint8_t *bytes = data;
    size_t etag_len = len - DCTF_LISTING_ENTRY_MIN;
    char *etag = buf + name_len + 1;

    *out = (struct dctf_entry){.name = "", .etag = ""};
    if (!dctf_listing_name_ok(name, name_len) || len < DCTF_LISTING_ENTRY_MIN ||
        len > DCTF_LISTING_ENTRY_MAX || (bytes[0] != KIND_FILE && bytes[0] != KIND_DIRECTORY) ||
        memchr(bytes + DCTF_LISTING_ENTRY_MIN, '\0', etag_len) ||
        (bytes[0] == KIND_DIRECTORY && (etag_len || dctf_le_get(bytes + 1, 8))))
        return DCTF_ERR_CACHE_CORRUPT;
    memcpy(buf, name, name_len);
    buf[name_len] = '\0';
    memcpy(etag, bytes + DCTF_LISTING_ENTRY_MIN, etag_len);
    etag[etag_len] = '\0';
    *out = (struct dctf_entry){.name = buf,
        .is_dir = bytes[0] == KIND_DIRECTORY,
        .size = dctf_le_get(bytes + 1, 8),
        .mtime_ns = (int64_t)dctf_le_get(bytes + 9, 8),
        .etag = etag};
    return DCTF_OK;
}
