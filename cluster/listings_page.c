/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/listings_page.h"

#include "base/le.h"

#include <assert.h>
#include <string.h>

#define MAGIC "DLP1"
#define FLAG_LAST 1u
#define ENTRY_HEAD 19u

enum { KIND_FILE, KIND_DIRECTORY };

/* --- writing --- */

void dctf_listings_page_begin(struct dctf_listings_page_writer *writer, void *buf, size_t cap)
{
    assert(cap >= DCTF_LISTINGS_PAGE_HEAD + DCTF_LISTINGS_PAGE_ENTRY_MAX);
    *writer = (struct dctf_listings_page_writer){.data = buf, .used = DCTF_LISTINGS_PAGE_HEAD, .cap = cap};
}

bool dctf_listings_page_add(struct dctf_listings_page_writer *writer, const struct dctf_entry *entry)
{
    size_t name_len = strlen(entry->name), etag_len = entry->is_dir ? 0 : strlen(entry->etag);
    uint8_t *at = writer->data + writer->used;

    assert(name_len <= DCTF_NAME_MAX && etag_len <= DCTF_ETAG_MAX);
    if (writer->cap - writer->used < ENTRY_HEAD + name_len + etag_len)
        return false;
    at[0] = entry->is_dir ? KIND_DIRECTORY : KIND_FILE;
    at[1] = (uint8_t)name_len;
    at[2] = (uint8_t)etag_len;
    dctf_le_put(at + 3, entry->is_dir ? 0 : entry->size, 8);
    dctf_le_put(at + 11, (uint64_t)entry->mtime_ns, 8);
    memcpy(at + ENTRY_HEAD, entry->name, name_len);
    memcpy(at + ENTRY_HEAD + name_len, entry->etag, etag_len);
    writer->used += ENTRY_HEAD + name_len + etag_len;
    return true;
}

size_t dctf_listings_page_end(
    struct dctf_listings_page_writer *writer, const struct dctf_listings_page_head *head)
{
    memset(writer->data, 0, DCTF_LISTINGS_PAGE_HEAD);
    memcpy(writer->data, MAGIC, 4);
    writer->data[4] = head->last ? FLAG_LAST : 0;
    dctf_le_put(writer->data + 8, head->generation, 8);
    dctf_le_put(writer->data + 16, head->age_ms, 8);
    dctf_le_put(writer->data + 24, head->entries, 8);
    return writer->used;
}

/* --- reading --- */

enum dctf_err dctf_listings_page_open(
    struct dctf_listings_page *page, const void *data, size_t len, const char *after)
{
    const uint8_t *bytes = data;

    memset(page, 0, sizeof(*page));
    if (len < DCTF_LISTINGS_PAGE_HEAD || memcmp(bytes, MAGIC, 4) != 0 || bytes[4] > FLAG_LAST || bytes[5] ||
        bytes[6] || bytes[7] || strlen(after) > DCTF_NAME_MAX)
        return DCTF_ERR_BAD_RESPONSE;
    page->head = (struct dctf_listings_page_head){
        .last = bytes[4] == FLAG_LAST,
        .generation = dctf_le_get(bytes + 8, 8),
        .age_ms = dctf_le_get(bytes + 16, 8),
        .entries = dctf_le_get(bytes + 24, 8),
    };
    page->at = bytes + DCTF_LISTINGS_PAGE_HEAD;
    page->end = bytes + len;
    strcpy(page->name, after);
    /* One that is not the last brings the listing on. */
    return page->head.generation && (page->head.last || page->at < page->end) ? DCTF_OK
                                                                              : DCTF_ERR_BAD_RESPONSE;
}

static bool name_ok(const uint8_t *name, size_t len)
{
    return len && !memchr(name, '\0', len) && !memchr(name, '/', len);
}

enum dctf_err dctf_listings_page_next(struct dctf_listings_page *page, struct dctf_entry *out)
{
    const uint8_t *at = page->at;
    size_t left = (size_t)(page->end - page->at), name_len, etag_len, last_len = strlen(page->name);
    int order;

    *out = (struct dctf_entry){.name = "", .etag = ""};
    if (!left)
        return DCTF_ERR_NOT_FOUND;
    if (left < ENTRY_HEAD)
        return DCTF_ERR_BAD_RESPONSE;
    name_len = at[1];
    etag_len = at[2];
    if (at[0] > KIND_DIRECTORY || etag_len > DCTF_ETAG_MAX || left - ENTRY_HEAD < name_len + etag_len ||
        !name_ok(at + ENTRY_HEAD, name_len) || memchr(at + ENTRY_HEAD + name_len, '\0', etag_len) ||
        dctf_le_get(at + 3, 8) > DCTF_SIZE_MAX ||
        (at[0] == KIND_DIRECTORY && (etag_len || dctf_le_get(at + 3, 8))))
        return DCTF_ERR_BAD_RESPONSE;
    order = memcmp(page->name, at + ENTRY_HEAD, last_len < name_len ? last_len : name_len);
    if (order > 0 || (order == 0 && last_len >= name_len))
        return DCTF_ERR_BAD_RESPONSE;
    memcpy(page->name, at + ENTRY_HEAD, name_len);
    page->name[name_len] = '\0';
    memcpy(page->etag, at + ENTRY_HEAD + name_len, etag_len);
    page->etag[etag_len] = '\0';
    *out = (struct dctf_entry){
        .name = page->name,
        .is_dir = at[0] == KIND_DIRECTORY,
        .size = dctf_le_get(at + 3, 8),
        .mtime_ns = (int64_t)dctf_le_get(at + 11, 8),
        .etag = page->etag,
    };
    page->at += ENTRY_HEAD + name_len + etag_len;
    return DCTF_OK;
}
