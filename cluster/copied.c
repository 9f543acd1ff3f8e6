/* SPDX-License-Identifier: Apache-2.0
 *
 * An open hash with linear probing; entries are removed by sweep() alone, which builds it anew.
 */
#include "cluster/copied.h"

#include <stdlib.h>
#include <string.h>

#define FIRST 1024u

struct entry {
    uint64_t key;      /* 0: free */
    uint64_t until_ms; /* 0: it is here */
    bool wanted;
};

struct dctf_copied {
    struct entry *entries;
    size_t count, places, max;
};

/* Keys are hashes; 0 stands for a free place. */
static uint64_t key_of(uint64_t extent_key)
{
    return extent_key ? extent_key : 1;
}

static struct entry *place_in(struct entry *entries, size_t places, uint64_t key)
{
    size_t at = (size_t)(key ^ key >> 32) & (places - 1);

    while (entries[at].key && entries[at].key != key)
        at = (at + 1) & (places - 1);
    return &entries[at];
}

static struct entry *find(struct dctf_copied *copied, uint64_t extent_key)
{
    struct entry *entry = place_in(copied->entries, copied->places, key_of(extent_key));

    return entry->key ? entry : NULL;
}

/* Move what `keep` wants to a table of `places`; false without memory: all stays. */
static bool rebuild(struct dctf_copied *copied, size_t places, bool wanted_only)
{
    struct entry *entries = calloc(places, sizeof(*entries));

    if (!entries)
        return false;
    copied->count = 0;
    for (size_t i = 0; i < copied->places; i++) {
        struct entry *from = &copied->entries[i];

        if (!from->key || (wanted_only && !from->wanted))
            continue;
        *place_in(entries, places, from->key) = *from;
        copied->count++;
    }
    free(copied->entries);
    copied->entries = entries;
    copied->places = places;
    return true;
}

static struct entry *claim(struct dctf_copied *copied, uint64_t extent_key)
{
    struct entry *entry = find(copied, extent_key);

    if (entry)
        return entry;
    if (copied->count >= copied->max)
        return NULL;
    if (2 * (copied->count + 1) > copied->places && !rebuild(copied, 2 * copied->places, false))
        return NULL;
    entry = place_in(copied->entries, copied->places, key_of(extent_key));
    *entry = (struct entry){.key = key_of(extent_key), .wanted = true};
    copied->count++;
    return entry;
}

enum dctf_err dctf_copied_new(size_t max, struct dctf_copied **out)
{
    struct dctf_copied *copied = calloc(1, sizeof(*copied));

    *out = NULL;
    if (!copied)
        return DCTF_ERR_NO_MEMORY;
    copied->max = max;
    copied->places = FIRST;
    copied->entries = calloc(copied->places, sizeof(*copied->entries));
    if (!copied->entries) {
        free(copied);
        return DCTF_ERR_NO_MEMORY;
    }
    *out = copied;
    return DCTF_OK;
}

void dctf_copied_free(struct dctf_copied *copied)
{
    if (!copied)
        return;
    free(copied->entries);
    free(copied);
}

bool dctf_copied_may(struct dctf_copied *copied, uint64_t extent_key, uint64_t now_ms)
{
    struct entry *entry = find(copied, extent_key);

    if (!entry)
        return true;
    entry->wanted = true;
    if (!entry->until_ms)
        entry->until_ms = now_ms + DCTF_COPIED_PAUSE_MS;
    return now_ms >= entry->until_ms;
}

bool dctf_copied_done(struct dctf_copied *copied, uint64_t extent_key)
{
    struct entry *entry = claim(copied, extent_key);

    if (!entry)
        return false;
    entry->until_ms = 0;
    entry->wanted = true;
    return true;
}

void dctf_copied_unkept(struct dctf_copied *copied, uint64_t extent_key, uint64_t now_ms)
{
    struct entry *entry = claim(copied, extent_key);

    if (entry)
        entry->until_ms = now_ms + DCTF_COPIED_PAUSE_MS;
}

bool dctf_copied_is(struct dctf_copied *copied, uint64_t extent_key)
{
    struct entry *entry = find(copied, extent_key);

    if (!entry)
        return false;
    entry->wanted = true;
    return entry->until_ms == 0;
}

void dctf_copied_sweep(struct dctf_copied *copied)
{
    if (!rebuild(copied, copied->places, true))
        return;
    for (size_t i = 0; i < copied->places; i++)
        copied->entries[i].wanted = false;
}

size_t dctf_copied_count(const struct dctf_copied *copied)
{
    return copied->count;
}
