/* SPDX-License-Identifier: Apache-2.0
 *
 * Victims: a random sample of the residents, judged by admission. There is no list
 * of residents to keep in order: shard ids are uniform, so a seek to a random id is
 * a random sample of the index. Where this node has a share of a cluster's dataset, copies
 * are looked for first, in more samples when there are none in one.
 */
#include "base/metric.h"
#include "cache/admission.h"
#include "cache/kv.h"
#include "cache/state.h"

#include <string.h>

#define COPY_ROUNDS 8u /* samples to find a copy in, every other one of files */

struct sample {
    struct dctf_admission_candidate candidates[DCTF_EVICT_SAMPLE];
    struct dctf_id ids[DCTF_EVICT_SAMPLE];
    uint64_t heat_keys[DCTF_EVICT_SAMPLE];    /* what the heat table knows them by */
    enum dctf_claim least[DCTF_EVICT_SAMPLE]; /* that is seen of it */
    size_t count;
    struct dctf_id bad; /* of a record that makes no sense */
    bool found_bad;
};

static bool is_listed(const struct sample *sample, const struct dctf_id *id)
{
    for (size_t i = 0; i < sample->count; i++) {
        if (!memcmp(&sample->ids[i], id, sizeof(*id)))
            return true;
    }
    return false;
}

struct sampling {
    const struct dctf_evict_wish *wish;
    struct dctf_kv_iter *shards;
    struct dctf_kv_iter *extents; /* NULL: there is no share */
    struct dctf_rng rng;
};

/* Take a resident into the sample if it may be a victim. */
static void consider(struct dctf_store *store, struct sample *sample, struct sampling *sampling,
    const struct dctf_id *id, const char *data, size_t len)
{
    const struct dctf_shard *newcomer = sampling->wish->newcomer;
    struct dctf_record_shard record;

    if (dctf_record_shard_decode(id, data, len, &record)) {
        sample->bad = *id;
        sample->found_bad = true;
        return;
    }
    if ((sampling->wish->whole && record.kind != DCTF_RECORD_FILE) || is_listed(sample, id) ||
        (newcomer && !memcmp(&newcomer->version->id, id, sizeof(*id))) || dctf_table_is_pinned(store, id))
        return;
    sample->least[sample->count] = DCTF_CLAIM_SHARE;
    if (sampling->extents)
        sample->least[sample->count] =
            dctf_share_least(store, sampling->extents, id, &record, dctf_rng_next(&sampling->rng));
    sample->ids[sample->count] = *id;
    sample->heat_keys[sample->count] = record.key_hash;
    sample->candidates[sample->count++] = (struct dctf_admission_candidate){
        .key_hash = dctf_shard_admission_key(id),
        .feature_id = record.feature_id,
        .bytes = record.present_bytes,
    };
}

/* Seek to a random id; false when there is nothing at all. */
static bool seek_random(struct sampling *sampling, struct dctf_kv_iter *iter)
{
    uint64_t at[2] = {dctf_rng_next(&sampling->rng), dctf_rng_next(&sampling->rng)};

    dctf_kv_iter_seek(iter, at, sizeof(at));
    if (!dctf_kv_iter_valid(iter))
        dctf_kv_iter_seek(iter, "", 0); /* past the last: the first */
    return dctf_kv_iter_valid(iter);
}

static void consider_random(struct dctf_store *store, struct sample *sample, struct sampling *sampling)
{
    size_t key_len, len;
    struct dctf_id id;
    const char *key = dctf_kv_iter_key(sampling->shards, &key_len);
    const char *data = dctf_kv_iter_value(sampling->shards, &len);

    if (key_len != sizeof(id))
        return;
    memcpy(&id, key, sizeof(id));
    consider(store, sample, sampling, &id, data, len);
}

/* Of the shards that have a file, which may be few among many small ones, and take most of the bytes. */
static void consider_random_file(struct dctf_store *store, struct sample *sample, struct sampling *sampling)
{
    struct dctf_kv_value value;
    struct dctf_id id;
    uint32_t extent;
    size_t key_len;
    const char *key = dctf_kv_iter_key(sampling->extents, &key_len);

    if (!dctf_record_extent_key_decode(key, key_len, &id, &extent) ||
        dctf_kv_get(store->kv, DCTF_KV_SHARD, id.bytes, sizeof(id.bytes), &value))
        return;
    consider(store, sample, sampling, &id, value.data, value.len);
    dctf_kv_value_put(&value);
}

/* What a restart made admission forget, the heat table still knows. */
static void seed(struct dctf_store *store, const struct sample *sample)
{
    struct dctf_heat_value heat;

    for (size_t i = 0; i < sample->count; i++) {
        dctf_heat_of_shard(store->heat, sample->heat_keys[i], &heat);
        if (heat.heat > 0)
            dctf_admission_seed(store->admission, sample->candidates[i].key_hash,
                sample->candidates[i].feature_id, heat.heat);
    }
}

static void take_sample(
    struct dctf_store *store, const struct dctf_evict_wish *wish, bool files, struct sample *sample)
{
    struct sampling sampling = {.wish = wish};

    memset(sample, 0, sizeof(*sample));
    pthread_mutex_lock(&store->space.lock);
    sampling.rng.state = dctf_rng_next(&store->space.rng);
    pthread_mutex_unlock(&store->space.lock);
    if (dctf_kv_iter_new(store->kv, DCTF_KV_SHARD, NULL, 0, &sampling.shards))
        return;
    if (atomic_load(&store->share.is_set) &&
        dctf_kv_iter_new(store->kv, DCTF_KV_EXTENT, NULL, 0, &sampling.extents)) {
        dctf_kv_iter_free(sampling.shards);
        return;
    }
    for (unsigned i = 0; i < DCTF_EVICT_SAMPLE; i++) {
        if (files && sampling.extents) {
            if (!seek_random(&sampling, sampling.extents))
                break;
            consider_random_file(store, sample, &sampling);
        } else {
            if (!seek_random(&sampling, sampling.shards))
                break;
            consider_random(store, sample, &sampling);
        }
    }
    dctf_kv_iter_free(sampling.shards);
    if (sampling.extents)
        dctf_kv_iter_free(sampling.extents);
    if (sample->found_bad)
        dctf_shard_purge_record(store, &sample->bad, sizeof(sample->bad));
}

/* Leave those in the sample that are `least` or less; true when there are any, else nothing changes. */
static bool filter(struct sample *sample, enum dctf_claim least)
{
    size_t count = 0;

    for (size_t i = 0; i < sample->count; i++) {
        if (sample->least[i] < least)
            continue;
        sample->candidates[count] = sample->candidates[i];
        sample->heat_keys[count] = sample->heat_keys[i];
        sample->ids[count++] = sample->ids[i];
    }
    if (!count)
        return false;
    sample->count = count;
    return true;
}

static enum dctf_claim search_lesser(
    struct dctf_store *store, const struct dctf_evict_wish *wish, struct sample *sample)
{
    bool has_share = atomic_load(&store->share.is_set);
    bool for_copy = wish->newcomer && wish->claim == DCTF_CLAIM_COPY;
    bool for_spare = wish->newcomer && wish->claim == DCTF_CLAIM_SPARE;
    unsigned rounds = !has_share || for_copy ? 1 : COPY_ROUNDS;

    for (unsigned round = 0; round < rounds; round++) {
        take_sample(store, wish, round + 1 < rounds && round % 2 == 0, sample);
        if (has_share && filter(sample, DCTF_CLAIM_COPY))
            return DCTF_CLAIM_COPY;
        if (has_share && !for_copy && !for_spare && filter(sample, DCTF_CLAIM_SPARE))
            return DCTF_CLAIM_SPARE;
    }
    return DCTF_CLAIM_SHARE;
}

/* Look for what makes way for the newcomer whatever its heat, or for copies if it is one; what it is, when
 * the sample has nothing else, or SHARE. Files first: what is given back of them can be used at once. */
static enum dctf_claim take_lesser(
    struct dctf_store *store, const struct dctf_evict_wish *wish, struct sample *sample)
{
    enum dctf_claim least = search_lesser(store, wish, sample);

    seed(store, sample); /* of many samples, the one that is judged */
    return least;
}

/* The shard object of a record in the index. */
static struct dctf_shard *get_resident(struct dctf_store *store, const struct dctf_id *id)
{
    struct dctf_record_shard record;
    struct dctf_version *version = NULL;
    struct dctf_shard *shard = NULL;
    struct dctf_kv_value value;
    uint64_t dataset = 0;

    if (dctf_kv_get(store->kv, DCTF_KV_SHARD, id->bytes, sizeof(id->bytes), &value))
        return NULL;
    if (!dctf_record_shard_decode(id, value.data, value.len, &record) &&
        !dctf_record_shard_version(id, &record, &version))
        dataset = record.dataset;
    dctf_kv_value_put(&value);
    if (!version) {
        dctf_shard_purge_record(store, id->bytes, sizeof(id->bytes));
        return NULL;
    }
    if (dctf_table_get(store, version, dataset, &shard))
        shard = NULL;
    dctf_version_unref(version);
    return shard;
}

/* Where to cut so that at least `need` bytes lie behind, whole extents. */
static uint32_t tail_of(struct dctf_shard *shard, uint64_t need)
{
    uint32_t extent = shard->extent_count;
    uint64_t bytes = 0;

    while (extent > 0 && bytes < need) {
        extent--;
        bytes +=
            dctf_shard_resident(shard, extent * DCTF_EXTENT_BLOCKS, dctf_shard_extent_blocks(shard, extent));
    }
    return extent * DCTF_EXTENT_BLOCKS;
}

/* With change_lock held. */
static uint64_t evict_blocks(struct dctf_store *store, struct dctf_shard *shard,
    const struct dctf_evict_wish *wish, enum dctf_claim least)
{
    bool in_parts = !wish->whole && shard->kind == DCTF_RECORD_FILE && !atomic_load(&store->no_punch);
    bool lesser = least > DCTF_CLAIM_SHARE;
    uint32_t first = 0;

    if (lesser && in_parts)
        return dctf_share_drop_locked(shard, least, wish->need);
    if (lesser && !wish->whole && shard->kind == DCTF_RECORD_FILE && !dctf_share_is_all(shard, least))
        return 0;
    if (in_parts && dctf_shard_resident(shard, 0, shard->blocks) > wish->need + DCTF_EVICT_SLACK_BYTES)
        first = tail_of(shard, wish->need);
    return dctf_shard_drop_locked(shard, first, shard->blocks - first, DCTF_DROP_EVICT);
}

static struct dctf_evict_freed evict_id(struct dctf_store *store, const struct dctf_id *id,
    const struct dctf_evict_wish *wish, enum dctf_claim least)
{
    struct dctf_evict_freed freed = {.lesser = least > DCTF_CLAIM_SHARE};
    struct dctf_shard *shard = get_resident(store, id);
    uint64_t bytes;

    if (!shard)
        return freed;
    if (pthread_mutex_trylock(&shard->change_lock)) {
        dctf_shard_put(shard); /* it is being written */
        return freed;
    }
    bytes = evict_blocks(store, shard, wish, least);
    pthread_mutex_unlock(&shard->change_lock);
    if (shard->kind == DCTF_RECORD_SMALL)
        freed.dead = bytes;
    else
        freed.bytes = bytes;
    if (bytes) {
        dctf_metric_add(store->config.metrics, DCTF_METRIC_CACHE_EVICTED, 1);
        dctf_metric_add(store->config.metrics, DCTF_METRIC_CACHE_EVICTED_BYTES, (int64_t)bytes);
    }
    dctf_shard_put(shard);
    return freed;
}

static bool choose(
    struct dctf_store *store, const struct dctf_shard *newcomer, const struct sample *sample, size_t *victim)
{
    const struct dctf_version *version = newcomer->version;

    return dctf_admission_choose(store->admission, dctf_shard_admission_key(&version->id),
               version->feature_id, version->size, sample->candidates, sample->count, victim) == DCTF_ADMIT;
}

struct dctf_evict_freed dctf_evict_one(struct dctf_store *store, const struct dctf_evict_wish *wish)
{
    struct sample sample;
    enum dctf_claim least = take_lesser(store, wish, &sample);
    bool lesser = least > DCTF_CLAIM_SHARE;
    bool for_copy = wish->newcomer && wish->claim == DCTF_CLAIM_COPY;
    size_t victim;

    if (!lesser && (wish->lesser_only || (wish->newcomer && wish->claim > DCTF_CLAIM_SHARE)))
        return (struct dctf_evict_freed){.bypass = true};
    if (!sample.count)
        return (struct dctf_evict_freed){0};
    if (!wish->newcomer || wish->admitted || (lesser && !for_copy))
        victim = dctf_admission_coldest(store->admission, sample.candidates, sample.count);
    else if (!choose(store, wish->newcomer, &sample, &victim))
        return (struct dctf_evict_freed){.bypass = true};
    return evict_id(store, &sample.ids[victim], wish, least);
}

bool dctf_evict_would_admit(struct dctf_store *store, struct dctf_shard *newcomer, enum dctf_claim claim)
{
    const struct dctf_evict_wish wish = {.newcomer = newcomer, .claim = claim};
    struct sample sample;
    bool lesser = take_lesser(store, &wish, &sample) > DCTF_CLAIM_SHARE;
    size_t victim;

    if (claim != DCTF_CLAIM_COPY && lesser)
        return true;
    if (claim != DCTF_CLAIM_SHARE && !lesser)
        return false;
    return sample.count && choose(store, newcomer, &sample, &victim);
}
