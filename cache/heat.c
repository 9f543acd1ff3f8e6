/* SPDX-License-Identifier: Apache-2.0
 *
 * Accesses gather in one of two pairs of tables. A flush swaps the pairs under the
 * lock and writes the full one without it; both are seen by readers until the
 * write has landed. For the instant between, a reader may count that batch twice.
 */
#include "cache/heat.h"

#include "base/log.h"
#include "base/version.h"
#include "cache/heat_pending.h"
#include "cache/heat_private.h"
#include "cache/heat_record.h"
#include "cache/kv.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define PENDING_SHARDS_MAX 8192u
#define PENDING_FEATURES_MAX 4096u
/* Features whose name is known to be in the database, by id modulo this. */
#define NAMED_SLOTS 4096u

struct pending {
    struct dctf_heat_pending shards, features;
};

struct named {
    uint64_t feature_id;
    uint64_t stamp_ms; /* 0: an empty place */
};

struct dctf_heat {
    struct dctf_heat_config config;
    struct dctf_clock clock;
    struct dctf_kv *kv;

    pthread_mutex_t lock;
    pthread_cond_t flushed;
    /* guarded by lock */
    struct pending tables[2];
    unsigned filling; /* which of tables takes accesses */
    bool flushing;    /* the other one is being written: its owner is the flusher */
    uint64_t flushes; /* begun and ended */
    uint64_t dropped; /* accesses not counted since the last flush */
    struct named named[NAMED_SLOTS];
};

static uint64_t now_ms(const struct dctf_heat *heat)
{
    return dctf_clock_wall_ms(&heat->clock);
}

const struct dctf_heat_config *dctf_heat_config_of(const struct dctf_heat *heat)
{
    return &heat->config;
}

struct dctf_kv *dctf_heat_kv_of(const struct dctf_heat *heat)
{
    return heat->kv;
}

enum dctf_err dctf_heat_new(const struct dctf_heat_config *config, struct dctf_kv *kv, struct dctf_heat **out)
{
    struct dctf_heat *heat = calloc(1, sizeof(*heat));
    enum dctf_err err = DCTF_OK;

    *out = NULL;
    if (!heat)
        return DCTF_ERR_NO_MEMORY;
    heat->config = *config;
    if (config->clock)
        heat->clock = *config->clock;
    heat->config.clock = &heat->clock;
    heat->kv = kv;
    pthread_mutex_init(&heat->lock, NULL);
    pthread_cond_init(&heat->flushed, NULL);
    for (unsigned i = 0; i < 2 && !err; i++) {
        err = dctf_heat_pending_init(&heat->tables[i].shards, PENDING_SHARDS_MAX);
        if (!err)
            err = dctf_heat_pending_init(&heat->tables[i].features, PENDING_FEATURES_MAX);
    }
    if (err) {
        dctf_heat_free(heat);
        return err;
    }
    *out = heat;
    return DCTF_OK;
}

void dctf_heat_free(struct dctf_heat *heat)
{
    enum dctf_err err;

    if (!heat)
        return;
    err = heat->tables[1].features.entries ? dctf_heat_flush(heat) : DCTF_OK;
    if (err)
        dctf_log(DCTF_LOG_WARN, "heat", "err=%d accesses of the last moments are lost", (int)err);
    for (unsigned i = 0; i < 2; i++) {
        dctf_heat_pending_fini(&heat->tables[i].shards);
        dctf_heat_pending_fini(&heat->tables[i].features);
    }
    pthread_cond_destroy(&heat->flushed);
    pthread_mutex_destroy(&heat->lock);
    free(heat);
}

/* ---- counting ---- */

static bool add_locked(struct dctf_heat *heat, struct dctf_heat_pending *table, uint64_t id,
    const struct dctf_heat_count *more, struct dctf_heat_pending_entry **out)
{
    struct dctf_heat_pending_entry *entry = dctf_heat_pending_claim(table, id);

    if (entry)
        dctf_heat_count_add(&entry->count, more, heat->config.half_life_ms, heat->config.ttl_ms);
    if (out)
        *out = entry;
    return entry != NULL;
}

/* The name's stamp must not fall behind by more than what dctf_heat_expired() allows. */
static bool needs_name_locked(struct dctf_heat *heat, uint64_t feature_id, uint64_t now)
{
    const struct named *named = &heat->named[feature_id % NAMED_SLOTS];

    return named->stamp_ms == 0 || named->feature_id != feature_id || now < named->stamp_ms ||
           now - named->stamp_ms > heat->config.ttl_ms / 4;
}

void dctf_heat_record(struct dctf_heat *heat, uint64_t key_hash, uint64_t feature_id, const char *feature)
{
    struct dctf_heat_count once = {.access_count = 1, .last_ms = now_ms(heat), .weight = 1};
    struct dctf_heat_pending_entry *entry;
    struct pending *pending;

    pthread_mutex_lock(&heat->lock);
    pending = &heat->tables[heat->filling];
    if (!add_locked(heat, &pending->features, feature_id, &once, &entry)) {
        heat->dropped++;
    } else {
        if (!entry->name && needs_name_locked(heat, feature_id, once.last_ms))
            entry->name = strdup(feature); /* on failure a later access brings it */
        if (!add_locked(heat, &pending->shards, key_hash, &once, NULL))
            heat->dropped++;
    }
    pthread_mutex_unlock(&heat->lock);
}

/* ---- flushing ---- */

static void put_name(
    struct dctf_heat *heat, struct dctf_kv_batch *batch, const struct dctf_heat_pending_entry *entry)
{
    size_t len = strlen(entry->name);
    uint8_t *value = malloc(DCTF_HEAT_STAMP_BYTES + len);
    uint8_t key[DCTF_HEAT_KEY_BYTES];

    if (!value)
        return;
    dctf_heat_key('n', heat->config.dataset, entry->id, key);
    dctf_heat_stamp_encode(entry->count.last_ms, value);
    memcpy(value + DCTF_HEAT_STAMP_BYTES, entry->name, len);
    dctf_kv_batch_put(batch, heat->kv, DCTF_KV_HEAT, key, sizeof(key), value, DCTF_HEAT_STAMP_BYTES + len);
    free(value);
}

static void merge_all(
    struct dctf_heat *heat, struct dctf_kv_batch *batch, char kind, const struct dctf_heat_pending *table)
{
    uint8_t key[DCTF_HEAT_KEY_BYTES], record[DCTF_HEAT_RECORD_BYTES];

    for (size_t i = 0; table->used > 0 && i <= table->mask; i++) {
        const struct dctf_heat_pending_entry *entry = &table->entries[i];

        if (entry->count.access_count == 0)
            continue;
        dctf_heat_key(kind, heat->config.dataset, entry->id, key);
        dctf_heat_count_encode(&entry->count, record);
        dctf_kv_batch_merge(batch, heat->kv, DCTF_KV_HEAT, key, sizeof(key), record, sizeof(record));
        if (entry->name)
            put_name(heat, batch, entry);
    }
}

static enum dctf_err write_pending(struct dctf_heat *heat, const struct pending *pending)
{
    struct dctf_kv_batch *batch;
    enum dctf_err err = dctf_kv_batch_new(&batch);

    if (err)
        return err;
    merge_all(heat, batch, 's', &pending->shards);
    merge_all(heat, batch, 'f', &pending->features);
    err = dctf_kv_write(heat->kv, batch, DCTF_KV_LOGGED);
    dctf_kv_batch_free(batch);
    return err;
}

static void note_names_locked(struct dctf_heat *heat, const struct dctf_heat_pending *features)
{
    for (size_t i = 0; features->used > 0 && i <= features->mask; i++) {
        const struct dctf_heat_pending_entry *entry = &features->entries[i];

        if (entry->name)
            heat->named[entry->id % NAMED_SLOTS] =
                (struct named){.feature_id = entry->id, .stamp_ms = entry->count.last_ms};
    }
}

/* The write failed: what it held waits again, as far as there is room. */
static void take_back_locked(
    struct dctf_heat *heat, struct dctf_heat_pending *from, struct dctf_heat_pending *to)
{
    for (size_t i = 0; from->used > 0 && i <= from->mask; i++) {
        struct dctf_heat_pending_entry *old = &from->entries[i], *entry;

        if (old->count.access_count == 0)
            continue;
        if (!add_locked(heat, to, old->id, &old->count, &entry)) {
            heat->dropped += old->count.access_count;
        } else if (!entry->name) {
            entry->name = old->name;
            old->name = NULL;
        }
    }
}

enum dctf_err dctf_heat_flush(struct dctf_heat *heat)
{
    struct pending *full, *filling;
    uint64_t dropped;
    enum dctf_err err;

    pthread_mutex_lock(&heat->lock);
    while (heat->flushing)
        pthread_cond_wait(&heat->flushed, &heat->lock);
    full = &heat->tables[heat->filling];
    if (full->shards.used == 0 && full->features.used == 0) {
        pthread_mutex_unlock(&heat->lock);
        return DCTF_OK;
    }
    heat->flushing = true;
    heat->flushes++;
    heat->filling ^= 1;
    dropped = heat->dropped;
    heat->dropped = 0;
    pthread_mutex_unlock(&heat->lock);

    err = write_pending(heat, full);
    if (dropped)
        dctf_log(DCTF_LOG_WARN, "heat",
            "dropped=%llu accesses not counted: too many shards or features at once",
            (unsigned long long)dropped);

    pthread_mutex_lock(&heat->lock);
    filling = &heat->tables[heat->filling];
    if (err) {
        take_back_locked(heat, &full->shards, &filling->shards);
        take_back_locked(heat, &full->features, &filling->features);
    } else {
        note_names_locked(heat, &full->features);
    }
    dctf_heat_pending_clear(&full->shards);
    dctf_heat_pending_clear(&full->features);
    heat->flushing = false;
    heat->flushes++;
    pthread_cond_broadcast(&heat->flushed);
    pthread_mutex_unlock(&heat->lock);
    return err;
}

/* ---- reading ---- */

static void add_waiting_locked(struct dctf_heat *heat, char kind, uint64_t id, struct dctf_heat_count *count)
{
    /* The one being written is the older. */
    for (unsigned i = 0; i < 2; i++) {
        const struct pending *pending = &heat->tables[heat->filling ^ 1 ^ i];
        const struct dctf_heat_pending_entry *entry =
            dctf_heat_pending_find(kind == 's' ? &pending->shards : &pending->features, id);

        if (entry)
            dctf_heat_count_add(count, &entry->count, heat->config.half_life_ms, heat->config.ttl_ms);
    }
}

void dctf_heat_value_of(const struct dctf_heat_config *config, const struct dctf_heat_count *count,
    uint64_t now, struct dctf_heat_value *out)
{
    *out = (struct dctf_heat_value){0};
    if (count->access_count == 0 || dctf_heat_count_ended(count, now, config->ttl_ms))
        return;
    out->heat = dctf_heat_count_at(count, now, config->half_life_ms);
    out->access_count = count->access_count;
    out->last_accessed_ms = count->last_ms;
}

static void read_stored(struct dctf_heat *heat, char kind, uint64_t id, struct dctf_heat_count *out)
{
    uint8_t key[DCTF_HEAT_KEY_BYTES];
    struct dctf_kv_value value;

    *out = (struct dctf_heat_count){0};
    dctf_heat_key(kind, heat->config.dataset, id, key);
    /* Heat that cannot be read is no heat: nobody fails a read for it. */
    if (dctf_kv_get(heat->kv, DCTF_KV_HEAT, key, sizeof(key), &value))
        return;
    (void)dctf_heat_count_decode(value.data, value.len, out);
    dctf_kv_value_put(&value);
}

static void heat_of(struct dctf_heat *heat, char kind, uint64_t id, struct dctf_heat_value *out)
{
    struct dctf_heat_count count;
    uint64_t flushes;
    bool steady = false;

    for (unsigned attempt = 0; attempt < 3 && !steady; attempt++) {
        pthread_mutex_lock(&heat->lock);
        flushes = heat->flushes;
        pthread_mutex_unlock(&heat->lock);
        read_stored(heat, kind, id, &count);
        pthread_mutex_lock(&heat->lock);
        steady = flushes == heat->flushes;
        add_waiting_locked(heat, kind, id, &count);
        pthread_mutex_unlock(&heat->lock);
    }
    dctf_heat_value_of(&heat->config, &count, now_ms(heat), out);
}

void dctf_heat_of_shard(struct dctf_heat *heat, uint64_t key_hash, struct dctf_heat_value *out)
{
    heat_of(heat, 's', key_hash, out);
}

void dctf_heat_of_feature(struct dctf_heat *heat, uint64_t feature_id, struct dctf_heat_value *out)
{
    heat_of(heat, 'f', feature_id, out);
}

/* Not written yet. */
static bool waiting_path_locked(const struct dctf_heat *heat, uint64_t feature_id, char *out)
{
    for (unsigned i = 0; i < 2; i++) {
        const struct dctf_heat_pending_entry *entry =
            dctf_heat_pending_find(&heat->tables[i].features, feature_id);

        if (entry && entry->name && strlen(entry->name) <= DCTF_KEY_MAX) {
            strcpy(out, entry->name);
            return true;
        }
    }
    return false;
}

bool dctf_heat_feature_path(struct dctf_heat *heat, uint64_t feature_id, char *out)
{
    uint8_t key[DCTF_HEAT_KEY_BYTES];
    struct dctf_kv_value value;
    bool found;

    pthread_mutex_lock(&heat->lock);
    found = waiting_path_locked(heat, feature_id, out);
    pthread_mutex_unlock(&heat->lock);
    if (found)
        return true;
    dctf_heat_key('n', heat->config.dataset, feature_id, key);
    if (dctf_kv_get(heat->kv, DCTF_KV_HEAT, key, sizeof(key), &value))
        return false;
    found = value.len >= DCTF_HEAT_STAMP_BYTES && value.len - DCTF_HEAT_STAMP_BYTES <= DCTF_KEY_MAX;
    if (found) {
        memcpy(out, value.data + DCTF_HEAT_STAMP_BYTES, value.len - DCTF_HEAT_STAMP_BYTES);
        out[value.len - DCTF_HEAT_STAMP_BYTES] = '\0';
    }
    dctf_kv_value_put(&value);
    return found;
}
