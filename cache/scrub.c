/* SPDX-License-Identifier: Apache-2.0
 *
 * Verify complete file shards while nobody reads or writes, so that the kernel may
 * be handed them. Walks the index in order of ids, a bounded piece at a time; a pass
 * is not begun again for a while, because whatever this process writes is verified.
 */
#include "base/metric.h"
#include "cache/kv.h"
#include "cache/state.h"

#include <string.h>

#define IDLE_MS 2000u
#define ROUND_BYTES ((uint64_t)64 << 20)
#define STEP_BYTES ((uint64_t)4 << 20)
#define RECORDS_MAX 4096u
#define AGAIN_MS 600000u

static bool is_idle(struct dctf_store *store)
{
    uint64_t last = atomic_load_explicit(&store->last_io_ms, memory_order_relaxed);

    return dctf_clock_mono_ms(&store->clock) - last >= IDLE_MS;
}

/* The first id after `id`; false when it was the last possible. */
static bool step(struct dctf_id *id)
{
    for (size_t i = sizeof(id->bytes); i-- > 0;) {
        if (++id->bytes[i])
            return true;
    }
    return false;
}

static bool is_due(struct dctf_store *store, const struct dctf_id *id, const struct dctf_record_shard *record)
{
    return record->kind == DCTF_RECORD_FILE && record->present_bytes == record->size &&
           !dctf_idset_has(store->verified, id);
}

/* Find the next shard to verify; NULL when this pass has ended, or the round has. */
static struct dctf_shard *next_shard(struct dctf_store *store)
{
    struct dctf_version *version = NULL;
    struct dctf_shard *shard = NULL;
    struct dctf_kv_iter *iter;
    uint64_t dataset = 0;
    unsigned seen = 0;
    bool more = true;

    if (dctf_kv_iter_new(store->kv, DCTF_KV_SHARD, NULL, 0, &iter))
        return NULL;
    dctf_kv_iter_seek(iter, store->scrub_at.bytes, sizeof(store->scrub_at.bytes));
    for (; !version && more && seen < RECORDS_MAX && dctf_kv_iter_valid(iter); dctf_kv_iter_next(iter)) {
        struct dctf_record_shard record;
        struct dctf_id id;
        size_t key_len, len;
        const char *key = dctf_kv_iter_key(iter, &key_len);
        const char *data = dctf_kv_iter_value(iter, &len);

        seen++;
        if (key_len != sizeof(id))
            continue;
        memcpy(&id, key, sizeof(id));
        if (!dctf_record_shard_decode(&id, data, len, &record) && is_due(store, &id, &record) &&
            !dctf_record_shard_version(&id, &record, &version))
            dataset = record.dataset;
        more = step(&id);
        store->scrub_at = id;
    }
    if (!version && seen < RECORDS_MAX) {
        memset(&store->scrub_at, 0, sizeof(store->scrub_at));
        store->scrub_again_ms = dctf_clock_mono_ms(&store->clock) + AGAIN_MS;
    }
    dctf_kv_iter_free(iter);
    if (version && dctf_table_get(store, version, dataset, &shard))
        shard = NULL;
    dctf_version_unref(version);
    return shard;
}

void dctf_scrub_round(struct dctf_store *store)
{
    uint64_t done = 0;

    while (done < ROUND_BYTES && is_idle(store)) {
        uint32_t before = store->scrub_block;
        uint32_t bad = 0;

        if (!store->scrub_shard) {
            if (dctf_clock_mono_ms(&store->clock) < store->scrub_again_ms)
                return;
            store->scrub_shard = next_shard(store);
            store->scrub_block = before = 0;
            if (!store->scrub_shard)
                return;
        }
        if (dctf_shard_verify_some(store->scrub_shard, before, STEP_BYTES, false, &store->scrub_block, &bad))
            return;
        done += (uint64_t)(store->scrub_block - before) * DCTF_BLOCK_BYTES;
        dctf_metric_add(store->config.metrics, DCTF_METRIC_CACHE_SCRUBBED_BYTES,
            (int64_t)(store->scrub_block - before) * DCTF_BLOCK_BYTES);
        if (store->scrub_block >= store->scrub_shard->blocks) {
            dctf_shard_put(store->scrub_shard);
            store->scrub_shard = NULL;
        }
    }
}
