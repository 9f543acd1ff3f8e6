/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/admission_table.h"

#include <stdlib.h>
#include <string.h>

#define WAYS 16

enum dctf_err dctf_recent_init(struct dctf_recent *table, size_t entry_bytes, size_t max)
{
    /* A third to spare: at this load fewer than one key in a hundred finds its bucket full. */
    size_t buckets = max / WAYS + max / WAYS / 2 + 1;

    *table = (struct dctf_recent){.entry_bytes = entry_bytes, .buckets = buckets};
    table->entries = calloc(buckets, WAYS * entry_bytes);
    return table->entries ? DCTF_OK : DCTF_ERR_NO_MEMORY;
}

void dctf_recent_fini(struct dctf_recent *table)
{
    free(table->entries);
    *table = (struct dctf_recent){0};
}

static unsigned char *bucket_of(const struct dctf_recent *table, uint64_t hash)
{
    size_t bucket = (size_t)(((__uint128_t)hash * table->buckets) >> 64);

    return table->entries + bucket * WAYS * table->entry_bytes;
}

void *dctf_recent_find(const struct dctf_recent *table, uint64_t key, uint64_t hash)
{
    unsigned char *at = bucket_of(table, hash);

    for (size_t i = 0; i < WAYS; i++, at += table->entry_bytes) {
        struct dctf_recent_head *head = (struct dctf_recent_head *)(void *)at;

        if (head->last == 0)
            return NULL;
        if (head->key == key)
            return head;
    }
    return NULL;
}

void *dctf_recent_claim(struct dctf_recent *table, uint64_t key, uint64_t hash)
{
    unsigned char *at = bucket_of(table, hash);
    struct dctf_recent_head *oldest = NULL;

    for (size_t i = 0; i < WAYS; i++, at += table->entry_bytes) {
        struct dctf_recent_head *head = (struct dctf_recent_head *)(void *)at;

        if (head->last != 0 && head->key == key)
            return head;
        if (!oldest || head->last < oldest->last)
            oldest = head;
        if (head->last == 0)
            break;
    }
    if (oldest->last == 0)
        table->used++;
    memset(oldest, 0, table->entry_bytes);
    oldest->key = key;
    return oldest;
}
