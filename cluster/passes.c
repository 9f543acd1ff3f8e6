/* SPDX-License-Identifier: Apache-2.0
 *
 * Entries lie in one array, found through an open hash of their indices.
 */
#include "cluster/passes.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define FIRST 256u
#define EMPTY UINT32_MAX

struct dctf_passes {
    struct dctf_passes_entry *entries;
    size_t count, cap, max;
    uint32_t *slots;
    size_t slot_count; /* a power of two, at least 2 × cap */
};

static size_t slot_of(const struct dctf_passes *passes, uint64_t id)
{
    size_t at = (size_t)(id ^ id >> 32) & (passes->slot_count - 1);

    while (passes->slots[at] != EMPTY && passes->entries[passes->slots[at]].feature_id != id)
        at = (at + 1) & (passes->slot_count - 1);
    return at;
}

static void rehash(struct dctf_passes *passes)
{
    memset(passes->slots, 0xff, passes->slot_count * sizeof(*passes->slots));
    for (size_t i = 0; i < passes->count; i++)
        passes->slots[slot_of(passes, passes->entries[i].feature_id)] = (uint32_t)i;
}

static bool grow(struct dctf_passes *passes)
{
    size_t cap = passes->cap ? passes->cap * 2 : FIRST;
    struct dctf_passes_entry *entries = realloc(passes->entries, cap * sizeof(*entries));
    uint32_t *slots;

    if (!entries)
        return false;
    memset(entries + passes->count, 0, (cap - passes->count) * sizeof(*entries));
    passes->entries = entries;
    slots = realloc(passes->slots, 2 * cap * sizeof(*slots));
    if (!slots)
        return false;
    passes->slots = slots;
    passes->slot_count = 2 * cap;
    passes->cap = cap;
    rehash(passes);
    return true;
}

static int compare_bytes(const void *a, const void *b)
{
    const struct dctf_passes_entry *left = a, *right = b;
    uint64_t left_bytes = left->bytes + left->sent, right_bytes = right->bytes + right->sent;

    return left_bytes > right_bytes ? -1 : left_bytes < right_bytes;
}

static void forget_half(struct dctf_passes *passes)
{
    size_t kept = passes->count / 2;

    assert(passes->entries);
    qsort(passes->entries, passes->count, sizeof(*passes->entries), compare_bytes);
    for (size_t i = kept; i < passes->count; i++)
        free(passes->entries[i].path);
    passes->count = kept;
    rehash(passes);
}

enum dctf_err dctf_passes_new(size_t max, struct dctf_passes **out)
{
    struct dctf_passes *passes = calloc(1, sizeof(*passes));

    *out = NULL;
    if (!passes)
        return DCTF_ERR_NO_MEMORY;
    passes->max = max;
    if (!grow(passes)) {
        dctf_passes_free(passes);
        return DCTF_ERR_NO_MEMORY;
    }
    *out = passes;
    return DCTF_OK;
}

void dctf_passes_free(struct dctf_passes *passes)
{
    if (!passes)
        return;
    for (size_t i = 0; i < passes->count; i++)
        free(passes->entries[i].path);
    free(passes->entries);
    free(passes->slots);
    free(passes);
}

struct dctf_passes_entry *dctf_passes_find(struct dctf_passes *passes, uint64_t feature_id)
{
    uint32_t at = passes->slots[slot_of(passes, feature_id)];

    return at == EMPTY ? NULL : &passes->entries[at];
}

struct dctf_passes_entry *dctf_passes_claim(struct dctf_passes *passes, uint64_t feature_id, const char *path)
{
    struct dctf_passes_entry *entry = dctf_passes_find(passes, feature_id);
    char *copy;

    if (entry)
        return entry;
    if (passes->count && passes->count >= passes->max)
        forget_half(passes);
    if (passes->count == passes->cap && !grow(passes))
        return NULL;
    copy = strdup(path);
    if (!copy)
        return NULL;
    passes->slots[slot_of(passes, feature_id)] = (uint32_t)passes->count;
    entry = &passes->entries[passes->count++];
    *entry = (struct dctf_passes_entry){.feature_id = feature_id, .path = copy};
    return entry;
}

size_t dctf_passes_count(const struct dctf_passes *passes)
{
    return passes->count;
}

struct dctf_passes_entry *dctf_passes_at(struct dctf_passes *passes, size_t i)
{
    return &passes->entries[i];
}
