/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/heat_pending.h"

#include <stdlib.h>
#include <string.h>

enum dctf_err dctf_heat_pending_init(struct dctf_heat_pending *table, size_t max)
{
    size_t places = 2;

    while (places < 2 * max)
        places *= 2;
    *table = (struct dctf_heat_pending){.mask = places - 1, .max = max};
    table->entries = calloc(places, sizeof(*table->entries));
    return table->entries ? DCTF_OK : DCTF_ERR_NO_MEMORY;
}

void dctf_heat_pending_fini(struct dctf_heat_pending *table)
{
    if (table->entries)
        dctf_heat_pending_clear(table);
    free(table->entries);
    *table = (struct dctf_heat_pending){0};
}

/* Ids are hashes already. Half of the places stay empty, so the walk ends. */
static size_t place_of(const struct dctf_heat_pending *table, uint64_t id)
{
    size_t at = id & table->mask;

    while (table->entries[at].count.access_count != 0 && table->entries[at].id != id)
        at = (at + 1) & table->mask;
    return at;
}

const struct dctf_heat_pending_entry *dctf_heat_pending_find(
    const struct dctf_heat_pending *table, uint64_t id)
{
    size_t at = place_of(table, id);

    return table->entries[at].count.access_count ? &table->entries[at] : NULL;
}

struct dctf_heat_pending_entry *dctf_heat_pending_claim(struct dctf_heat_pending *table, uint64_t id)
{
    size_t at = place_of(table, id);

    if (table->entries[at].count.access_count == 0) {
        if (table->used == table->max)
            return NULL;
        table->used++;
        table->entries[at].id = id;
    }
    return &table->entries[at];
}

void dctf_heat_pending_clear(struct dctf_heat_pending *table)
{
    if (table->used == 0)
        return;
    for (size_t i = 0; i <= table->mask; i++)
        free(table->entries[i].name);
    memset(table->entries, 0, (table->mask + 1) * sizeof(*table->entries));
    table->used = 0;
}
