/* SPDX-License-Identifier: Apache-2.0
 *
 * Dropping cached shards by their paths.
 */
#include "fs/fs_private.h"

#include "cache/store.h"

#include <stdlib.h>
#include <string.h>

#define BATCH 1024

struct evict {
    struct dctf_fs *fs;
    const char *path;
    struct dctf_version *batch[BATCH];
    size_t count;
    struct dctf_evicted out;
    uint64_t passed; /* in this round: busy ones of the rounds before */
};

static bool evict_visit(void *ctx, const struct dctf_version *version, uint64_t present_bytes)
{
    struct evict *evict = ctx;
    size_t len = strlen(evict->path);
    const char *key = version->key;

    (void)present_bytes;
    if (len && (strncmp(key, evict->path, len) != 0 || (key[len] != '\0' && key[len] != '/')))
        return true;
    if (evict->passed < evict->out.busy) {
        evict->passed++;
        return true;
    }
    evict->batch[evict->count] = dctf_version_ref((struct dctf_version *)(uintptr_t)version);
    return ++evict->count < BATCH;
}

static enum dctf_err evict_one(struct evict *evict, struct dctf_version *version)
{
    struct dctf_shard *shard;
    enum dctf_err err = dctf_shard_get(evict->fs->store, version, &shard);
    uint64_t bytes;

    if (err)
        return err;
    bytes = dctf_shard_present_bytes(shard);
    err = dctf_shard_evict(shard);
    if (!err) {
        evict->out.shards++;
        evict->out.bytes += bytes;
    }
    dctf_shard_put(shard);
    return err;
}

enum dctf_err dctf_evict(struct dctf_fs *fs, const char *path, struct dctf_evicted *out)
{
    struct evict *evict = calloc(1, sizeof(*evict));
    enum dctf_err err = evict ? DCTF_OK : DCTF_ERR_NO_MEMORY;
    bool more = true;

    *out = (struct dctf_evicted){0};
    if (evict) {
        evict->fs = fs;
        evict->path = path;
    }
    /* Batch by batch to the end, in the order of the index. What is passed through stays and is
     * stepped over by later rounds, each of which begins anew. */
    while (!err && more) {
        evict->count = 0;
        evict->passed = 0;
        err = dctf_store_each(fs->store, evict_visit, evict);
        more = evict->count == BATCH;
        for (size_t i = 0; i < evict->count; i++) {
            enum dctf_err one;

            if (!err && dctf_fs_is_leaving(fs))
                err = DCTF_ERR_SHUTTING_DOWN;
            one = err ? err : evict_one(evict, evict->batch[i]);
            if (one == DCTF_ERR_CACHE_IN_USE)
                evict->out.busy++;
            else if (one)
                err = one;
            dctf_version_unref(evict->batch[i]);
        }
    }
    if (!err)
        *out = evict->out;
    free(evict);
    return err;
}
