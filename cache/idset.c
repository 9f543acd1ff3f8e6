/* SPDX-License-Identifier: Apache-2.0
 *
 * Open addressing with linear probing; removal shifts the run back, so that there
 * are no tombstones. The table doubles while it may and never passes ¾ full.
 */
#include "cache/idset.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_SLOTS 256u

struct dctf_idset {
    pthread_mutex_t lock;
    uint64_t *slots;  /* 0: empty; guarded by lock, as all below */
    size_t slot_mask; /* slots - 1; a power of two less one */
    size_t count;
    size_t max;
};

enum dctf_err dctf_idset_new(size_t max, struct dctf_idset **out)
{
    struct dctf_idset *set = calloc(1, sizeof(*set));

    *out = NULL;
    if (!set)
        return DCTF_ERR_NO_MEMORY;
    set->slots = calloc(FIRST_SLOTS, sizeof(*set->slots));
    if (!set->slots) {
        free(set);
        return DCTF_ERR_NO_MEMORY;
    }
    set->slot_mask = FIRST_SLOTS - 1;
    set->max = max;
    pthread_mutex_init(&set->lock, NULL);
    *out = set;
    return DCTF_OK;
}

void dctf_idset_free(struct dctf_idset *set)
{
    if (!set)
        return;
    pthread_mutex_destroy(&set->lock);
    free(set->slots);
    free(set);
}

static uint64_t value_of(const struct dctf_id *id)
{
    uint64_t value;

    memcpy(&value, id->bytes, sizeof(value));
    return value ? value : 1; /* 0 marks an empty slot */
}

/* The slot that holds `value`, or the empty one where it would go. */
static size_t find(const uint64_t *slots, size_t mask, uint64_t value)
{
    size_t i = (size_t)value & mask;

    while (slots[i] && slots[i] != value)
        i = (i + 1) & mask;
    return i;
}

static bool grow_locked(struct dctf_idset *set)
{
    size_t slots = 2 * (set->slot_mask + 1);
    uint64_t *fresh = calloc(slots, sizeof(*fresh));

    if (!fresh)
        return false;
    for (size_t i = 0; i <= set->slot_mask; i++) {
        if (set->slots[i])
            fresh[find(fresh, slots - 1, set->slots[i])] = set->slots[i];
    }
    free(set->slots);
    set->slots = fresh;
    set->slot_mask = slots - 1;
    return true;
}

void dctf_idset_add(struct dctf_idset *set, const struct dctf_id *id)
{
    uint64_t value = value_of(id);
    size_t i;

    pthread_mutex_lock(&set->lock);
    i = find(set->slots, set->slot_mask, value);
    if (!set->slots[i] && set->count < set->max &&
        ((set->count + 1) * 4 <= (set->slot_mask + 1) * 3 || grow_locked(set))) {
        set->slots[find(set->slots, set->slot_mask, value)] = value;
        set->count++;
    }
    pthread_mutex_unlock(&set->lock);
}

void dctf_idset_remove(struct dctf_idset *set, const struct dctf_id *id)
{
    size_t hole, i;

    pthread_mutex_lock(&set->lock);
    hole = find(set->slots, set->slot_mask, value_of(id));
    if (set->slots[hole]) {
        set->count--;
        for (i = (hole + 1) & set->slot_mask; set->slots[i]; i = (i + 1) & set->slot_mask) {
            size_t home = (size_t)set->slots[i] & set->slot_mask;

            /* Move it back unless its home lies between the hole and itself. */
            if (((i - home) & set->slot_mask) >= ((i - hole) & set->slot_mask)) {
                set->slots[hole] = set->slots[i];
                hole = i;
            }
        }
        set->slots[hole] = 0;
    }
    pthread_mutex_unlock(&set->lock);
}

bool dctf_idset_has(struct dctf_idset *set, const struct dctf_id *id)
{
    bool has;

    pthread_mutex_lock(&set->lock);
    has = set->slots[find(set->slots, set->slot_mask, value_of(id))] != 0;
    pthread_mutex_unlock(&set->lock);
    return has;
}

size_t dctf_idset_count(struct dctf_idset *set)
{
    size_t count;

    pthread_mutex_lock(&set->lock);
    count = set->count;
    pthread_mutex_unlock(&set->lock);
    return count;
}
