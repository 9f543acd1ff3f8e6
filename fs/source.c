/* SPDX-License-Identifier: Apache-2.0
 *
 * Sources: the shard versions that handles and chunks are about, one object per version.
 */
#include "fs/chunk.h"

#include "cache/store.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static struct dctf_source **bucket_of(struct dctf_engine *engine, const struct dctf_id *id)
{
    uint32_t hash;

    memcpy(&hash, id->bytes, sizeof(hash));
    return &engine->sources[hash % SOURCE_BUCKETS];
}

static struct dctf_source *source_find_locked(struct dctf_engine *engine, const struct dctf_id *id)
{
    struct dctf_source *source = *bucket_of(engine, id);

    while (source && memcmp(&source->version->id, id, sizeof(*id)) != 0)
        source = source->next;
    if (source)
        source->refs++;
    return source;
}

static void source_free(struct dctf_source *source)
{
    if (source->shard)
        dctf_shard_put(source->shard);
    dctf_version_unref(source->version);
    free(source->map);
    free(source);
}

enum dctf_err dctf_engine_get(
    struct dctf_engine *engine, struct dctf_version *version, struct dctf_source **out)
{
    struct dctf_source *source, *other;
    enum dctf_err err;

    engine_lock(engine);
    *out = source_find_locked(engine, &version->id);
    engine_unlock(engine);
    if (*out)
        return DCTF_OK;
    source = calloc(1, sizeof(*source));
    if (!source)
        return DCTF_ERR_NO_MEMORY;
    source->version = dctf_version_ref(version);
    source->blocks = dctf_blocks_of(version->size);
    source->refs = 1;
    err = dctf_shard_get(engine->config.store, version, &source->shard);
    if (err) {
        source_free(source);
        return err;
    }
    engine_lock(engine);
    other = source_find_locked(engine, &version->id);
    if (!other) {
        source->next = *bucket_of(engine, &version->id);
        *bucket_of(engine, &version->id) = source;
        engine->source_count++;
    }
    engine_unlock(engine);
    if (other)
        source_free(source);
    *out = other ? other : source;
    return DCTF_OK;
}

void dctf_engine_put(struct dctf_engine *engine, struct dctf_source *source)
{
    bool last;

    if (!source)
        return;
    pthread_mutex_lock(&engine->lock); /* not engine_unlock(): that calls this */
    assert(source->refs > 0);
    last = --source->refs == 0;
    if (last) {
        struct dctf_source **at = bucket_of(engine, &source->version->id);

        while (*at != source)
            at = &(*at)->next;
        *at = source->next;
        engine->source_count--;
    }
    pthread_mutex_unlock(&engine->lock);
    if (last)
        source_free(source);
}

struct dctf_shard *dctf_source_shard(struct dctf_source *source)
{
    return source->shard;
}

void sources_disown_locked(struct dctf_engine *engine)
{
    for (size_t i = 0; i < SOURCE_BUCKETS; i++) {
        for (struct dctf_source *source = engine->sources[i]; source; source = source->next) {
            dctf_shard_put(source->shard);
            source->shard = NULL;
        }
    }
}
