/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/spare.h"

#include "base/version.h"
#include "cluster/internal.h"

#include <stddef.h>

#define WAYS 4u /* places that an extent may have in a table */
#define PIECES 0xffull

_Static_assert(DCTF_EXTENT_BLOCKS / DCTF_SUB_BLOCKS == 8, "a piece of an extent is a bit of PIECES");

static atomic_ullong *places_of(struct dctf_spare_table *table, uint64_t key)
{
    return &table->places[(key >> 8) % (DCTF_SPARE_EXTENTS / WAYS) * WAYS];
}

static bool is_of(unsigned long long place, uint64_t key)
{
    return place & PIECES && (place & ~PIECES) == (key & ~PIECES);
}

static unsigned get(struct dctf_spare_table *table, uint64_t key)
{
    atomic_ullong *places = places_of(table, key);

    for (unsigned i = 0; i < WAYS; i++) {
        unsigned long long place = atomic_load_explicit(&places[i], memory_order_relaxed);

        if (is_of(place, key))
            return (unsigned)(place & PIECES);
    }
    return 0;
}

static void clear(struct dctf_spare_table *table, uint64_t key, unsigned pieces)
{
    atomic_ullong *places = places_of(table, key);

    for (unsigned i = 0; i < WAYS; i++) {
        if (is_of(atomic_load_explicit(&places[i], memory_order_relaxed), key))
            atomic_fetch_and(&places[i], ~(unsigned long long)pieces); /* without pieces it is free */
    }
}

/* When there is no place left, that of another extent is taken. */
static void set(struct dctf_spare_table *table, uint64_t key, unsigned pieces)
{
    atomic_ullong *places = places_of(table, key);
    unsigned at = (unsigned)(key >> 32) % WAYS;

    for (unsigned i = 0; i < WAYS; i++) {
        unsigned long long place = atomic_load_explicit(&places[i], memory_order_relaxed);

        if (is_of(place, key)) {
            atomic_fetch_or(&places[i], pieces);
            return;
        }
        if (!(place & PIECES))
            at = i;
    }
    atomic_store(&places[at], (key & ~PIECES) | pieces);
}

unsigned dctf_spare_pieces(uint32_t first, uint32_t count)
{
    uint32_t from = first % DCTF_EXTENT_BLOCKS / DCTF_SUB_BLOCKS;
    uint32_t to = (first % DCTF_EXTENT_BLOCKS + count + DCTF_SUB_BLOCKS - 1) / DCTF_SUB_BLOCKS;

    return (1u << to) - (1u << from);
}

void dctf_spare_home_kept(struct dctf_spare *spare, uint64_t extent_key, unsigned pieces, bool kept)
{
    if (kept) {
        clear(&spare->refused, extent_key, pieces);
        return;
    }
    set(&spare->refused, extent_key, pieces);
    atomic_store_explicit(&spare->short_of_room, true, memory_order_relaxed);
}

unsigned dctf_spare_home_refused(struct dctf_spare *spare, uint64_t extent_key)
{
    return get(&spare->refused, extent_key);
}

void dctf_spare_tell(struct dctf_spare *spare, uint64_t extent_key, unsigned pieces)
{
    set(&spare->told, extent_key, pieces);
}

bool dctf_spare_was_told(struct dctf_spare *spare, uint64_t extent_key, unsigned pieces)
{
    bool told = get(&spare->told, extent_key) & pieces;

    if (told)
        clear(&spare->told, extent_key, pieces);
    return told;
}

void dctf_spare_adopt(struct dctf_spare *spare, uint64_t extent_key, unsigned pieces)
{
    set(&spare->adopted, extent_key, pieces);
}

unsigned dctf_spare_adopted(struct dctf_spare *spare, uint64_t extent_key)
{
    return get(&spare->adopted, extent_key);
}

void dctf_spare_asked(struct dctf_spare *spare, uint64_t extent_key, unsigned pieces)
{
    unsigned again = get(&spare->asked, extent_key) & pieces;

    set(&spare->asked, extent_key, pieces);
    if (again)
        dctf_spare_adopt(spare, extent_key, again);
}
