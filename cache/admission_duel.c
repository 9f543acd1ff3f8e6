/* SPDX-License-Identifier: Apache-2.0
 *
 * An entry is one sampled key that at least one miniature remembers: held, in a
 * queue of S3-FIFO, or both. It goes back to the pool when neither does.
 */
#include "cache/admission_duel.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NIL UINT32_MAX
#define FREQUENCY_MAX 3
#define HOLD_SAMPLE 16
/* A newcomer that needs more victims than this is not worth the time under the lock. */
#define HOLD_VICTIMS_MAX 64

struct duel_entry {
    struct dctf_admission_candidate shard;
    uint64_t hash;
    uint32_t chain; /* next in the hash bucket, or in the free list */
    uint32_t prev, next;
    uint32_t slot; /* in held[], or NIL */
    uint8_t queue; /* enum duel_queue */
    uint8_t frequency;
};

enum dctf_err dctf_duel_init(
    struct dctf_duel *duel, size_t entries_max, uint64_t seed, dctf_duel_hold_rule *rule, void *ctx)
{
    size_t buckets = 1;

    while (buckets < entries_max)
        buckets *= 2;
    *duel = (struct dctf_duel){.entries_max = entries_max,
        .bucket_mask = buckets - 1,
        .rng = {.state = seed},
        .rule = rule,
        .ctx = ctx};
    duel->entries = calloc(entries_max, sizeof(*duel->entries));
    duel->buckets = calloc(buckets, sizeof(*duel->buckets));
    duel->held = calloc(entries_max, sizeof(*duel->held));
    if (!duel->entries || !duel->buckets || !duel->held) {
        dctf_duel_fini(duel);
        return DCTF_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < buckets; i++)
        duel->buckets[i] = NIL;
    for (size_t i = 0; i < entries_max; i++)
        duel->entries[i].chain = i + 1 < entries_max ? (uint32_t)(i + 1) : NIL;
    for (size_t i = 0; i < DUEL_QUEUES; i++)
        duel->fifo[i] = (struct duel_fifo){.head = NIL, .tail = NIL};
    return DCTF_OK;
}

void dctf_duel_fini(struct dctf_duel *duel)
{
    free(duel->entries);
    free(duel->buckets);
    free(duel->held);
    *duel = (struct dctf_duel){0};
}

static uint32_t *bucket_of(struct dctf_duel *duel, uint64_t hash)
{
    return &duel->buckets[hash & duel->bucket_mask];
}

static uint32_t find_entry(struct dctf_duel *duel, uint64_t key_hash, uint64_t hash)
{
    uint32_t i = *bucket_of(duel, hash);

    while (i != NIL && duel->entries[i].shard.key_hash != key_hash)
        i = duel->entries[i].chain;
    return i;
}

static uint32_t take_entry(
    struct dctf_duel *duel, const struct dctf_admission_candidate *shard, uint64_t hash)
{
    uint32_t i = duel->free_head;
    uint32_t *bucket = bucket_of(duel, hash);

    if (i == NIL)
        return NIL;
    duel->free_head = duel->entries[i].chain;
    duel->entries[i] = (struct duel_entry){.shard = *shard,
        .hash = hash,
        .chain = *bucket,
        .prev = NIL,
        .next = NIL,
        .slot = NIL,
        .queue = DUEL_NONE};
    *bucket = i;
    return i;
}

static void release_if_unused(struct dctf_duel *duel, uint32_t i)
{
    struct duel_entry *entry = &duel->entries[i];
    uint32_t *link = bucket_of(duel, entry->hash);

    if (entry->slot != NIL || entry->queue != DUEL_NONE)
        return;
    while (*link != i)
        link = &duel->entries[*link].chain;
    *link = entry->chain;
    entry->chain = duel->free_head;
    duel->free_head = i;
}

static void fifo_push(struct dctf_duel *duel, uint32_t i, enum duel_queue queue)
{
    struct duel_fifo *fifo = &duel->fifo[queue];
    struct duel_entry *entry = &duel->entries[i];

    assert(entry->queue == DUEL_NONE);
    entry->queue = (uint8_t)queue;
    entry->prev = fifo->tail;
    entry->next = NIL;
    if (fifo->tail == NIL)
        fifo->head = i;
    else
        duel->entries[fifo->tail].next = i;
    fifo->tail = i;
    fifo->bytes += entry->shard.bytes;
}

static void fifo_remove(struct dctf_duel *duel, uint32_t i)
{
    struct duel_entry *entry = &duel->entries[i];
    struct duel_fifo *fifo = &duel->fifo[entry->queue];

    if (entry->prev == NIL)
        fifo->head = entry->next;
    else
        duel->entries[entry->prev].next = entry->next;
    if (entry->next == NIL)
        fifo->tail = entry->prev;
    else
        duel->entries[entry->next].prev = entry->prev;
    fifo->bytes -= entry->shard.bytes;
    entry->queue = DUEL_NONE;
}

static void hold_add(struct dctf_duel *duel, uint32_t i)
{
    duel->entries[i].slot = (uint32_t)duel->held_count;
    duel->held[duel->held_count++] = i;
    duel->held_bytes += duel->entries[i].shard.bytes;
}

static void hold_remove(struct dctf_duel *duel, uint32_t i)
{
    struct duel_entry *entry = &duel->entries[i];
    uint32_t last = duel->held[--duel->held_count];

    duel->held[entry->slot] = last;
    duel->entries[last].slot = entry->slot;
    entry->slot = NIL;
    duel->held_bytes -= entry->shard.bytes;
}

/* Sizes of a key may change with its version: both miniatures see the new one. */
static void resize_entry(struct dctf_duel *duel, uint32_t i, uint64_t bytes)
{
    struct duel_entry *entry = &duel->entries[i];

    if (entry->slot != NIL)
        duel->held_bytes += bytes - entry->shard.bytes;
    if (entry->queue != DUEL_NONE)
        duel->fifo[entry->queue].bytes += bytes - entry->shard.bytes;
    entry->shard.bytes = bytes;
}

static void halve_sample(struct dctf_duel *duel)
{
    uint64_t mask;

    duel->share_log2++;
    mask = ((uint64_t)1 << duel->share_log2) - 1;
    for (size_t b = 0; b <= duel->bucket_mask; b++) {
        uint32_t i = duel->buckets[b];

        while (i != NIL) {
            uint32_t next = duel->entries[i].chain;

            if (duel->entries[i].hash >> 32 & mask) {
                if (duel->entries[i].slot != NIL)
                    hold_remove(duel, i);
                if (duel->entries[i].queue != DUEL_NONE)
                    fifo_remove(duel, i);
                release_if_unused(duel, i);
            }
            i = next;
        }
    }
    duel->hold_hits /= 2;
    duel->follow_hits /= 2;
}

static bool hold_evict_one(struct dctf_duel *duel, const struct dctf_admission_candidate *newcomer)
{
    struct dctf_admission_candidate candidates[HOLD_SAMPLE];
    uint32_t sample[HOLD_SAMPLE];
    size_t victim;

    if (duel->held_count == 0)
        return false;
    for (size_t i = 0; i < HOLD_SAMPLE; i++) {
        sample[i] = duel->held[dctf_rng_below(&duel->rng, duel->held_count)];
        candidates[i] = duel->entries[sample[i]].shard;
    }
    victim = duel->rule(duel->ctx, newcomer, candidates, HOLD_SAMPLE);
    if (victim == HOLD_SAMPLE)
        return false;
    hold_remove(duel, sample[victim]);
    release_if_unused(duel, sample[victim]);
    return true;
}

static bool hold_access(struct dctf_duel *duel, uint32_t i, uint64_t capacity)
{
    struct duel_entry *entry = &duel->entries[i];
    unsigned victims = 0;

    while (duel->held_bytes > capacity && hold_evict_one(duel, NULL))
        continue;
    if (entry->slot != NIL)
        return true;
    if (entry->shard.bytes > capacity)
        return false;
    while (duel->held_bytes + entry->shard.bytes > capacity)
        if (victims++ == HOLD_VICTIMS_MAX || !hold_evict_one(duel, &entry->shard))
            return false;
    hold_add(duel, i);
    return false;
}

static void follow_evict_one(struct dctf_duel *duel, uint64_t capacity)
{
    struct duel_fifo *small = &duel->fifo[DUEL_SMALL], *ghosts = &duel->fifo[DUEL_GHOST];
    bool from_small =
        small->head != NIL && (small->bytes >= capacity / 10 || duel->fifo[DUEL_MAIN].head == NIL);
    uint32_t i = from_small ? small->head : duel->fifo[DUEL_MAIN].head;
    struct duel_entry *entry = &duel->entries[i];
    bool touched = entry->frequency > 0;

    fifo_remove(duel, i);
    if (from_small && touched) {
        entry->frequency = 0;
        fifo_push(duel, i, DUEL_MAIN);
    } else if (from_small) {
        fifo_push(duel, i, DUEL_GHOST);
        while (ghosts->bytes > capacity) {
            uint32_t oldest = ghosts->head;

            fifo_remove(duel, oldest);
            release_if_unused(duel, oldest);
        }
    } else if (touched) {
        entry->frequency--;
        fifo_push(duel, i, DUEL_MAIN);
    } else {
        release_if_unused(duel, i);
    }
}

static bool follow_access(struct dctf_duel *duel, uint32_t i, uint64_t capacity)
{
    struct duel_entry *entry = &duel->entries[i];
    bool ghost = entry->queue == DUEL_GHOST;

    if (entry->queue == DUEL_SMALL || entry->queue == DUEL_MAIN) {
        if (entry->frequency < FREQUENCY_MAX)
            entry->frequency++;
        return true;
    }
    if (entry->shard.bytes > capacity)
        return false;
    /* Out of the ghosts before they are trimmed, so that the entry stays. */
    if (ghost)
        fifo_remove(duel, i);
    while (duel->fifo[DUEL_SMALL].bytes + duel->fifo[DUEL_MAIN].bytes + entry->shard.bytes > capacity)
        follow_evict_one(duel, capacity);
    entry->frequency = 0;
    fifo_push(duel, i, ghost ? DUEL_MAIN : DUEL_SMALL);
    return false;
}

static void judge(struct dctf_duel *duel)
{
    /* At the start of a second epoch a handful of hits is luck: two standard deviations. */
    double luck = 2 * sqrt(duel->follow_hits + duel->hold_hits);
    double lead = duel->hold_hits * 0.1 > luck ? duel->hold_hits * 0.1 : luck;

    /* Not symmetric: following recency when holding is right costs more. */
    if (!duel->recency && duel->follow_hits > duel->hold_hits + lead + 1)
        duel->recency = true;
    else if (duel->recency && duel->hold_hits > duel->follow_hits * 1.02)
        duel->recency = false;
}

void dctf_duel_access(struct dctf_duel *duel, const struct dctf_admission_candidate *shard, uint64_t hash,
    double worth, uint64_t capacity_bytes, uint64_t mean_bytes)
{
    uint64_t capacity, shards;
    double fade;
    uint32_t i;

    for (;;) {
        if (hash >> 32 & (((uint64_t)1 << duel->share_log2) - 1))
            return;
        i = find_entry(duel, shard->key_hash, hash);
        if (i == NIL)
            i = take_entry(duel, shard, hash);
        if (i != NIL)
            break;
        if (duel->share_log2 == 31)
            return;
        halve_sample(duel);
    }
    if (duel->entries[i].shard.bytes != shard->bytes)
        resize_entry(duel, i, shard->bytes);
    capacity = capacity_bytes >> duel->share_log2;
    if (capacity < 4 * mean_bytes)
        capacity = 4 * mean_bytes < capacity_bytes ? 4 * mean_bytes : capacity_bytes;
    shards = mean_bytes ? capacity / mean_bytes : 0;
    fade = 1 - 1 / (4.0 * (double)(shards < 4 ? 4 : shards));
    duel->hold_hits = duel->hold_hits * fade + (hold_access(duel, i, capacity) ? worth : 0);
    duel->follow_hits = duel->follow_hits * fade + (follow_access(duel, i, capacity) ? worth : 0);
    release_if_unused(duel, i);
    judge(duel);
}
