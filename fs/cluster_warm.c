/* SPDX-License-Identifier: Apache-2.0
 *
 * `dctf warm` in a cluster: only what this node is the home of, or all of it, each extent at its home.
 */
#include "fs/fs_private.h"

#include "cache/store.h"
#include "cluster/cluster.h"

static bool is_leaving(void *ctx)
{
    return dctf_fs_is_leaving(ctx);
}

static enum dctf_err warm_own(struct dctf_fs *fs, struct dctf_source *source, uint32_t first, uint32_t end,
    uint64_t bytes, struct dctf_cluster_share *share)
{
    struct dctf_warm_result result = {.kept = true};
    enum dctf_err err = dctf_engine_warm_blocks(fs->engine, source, first, end, &result);

    share->fetched_bytes += result.fetched_bytes;
    if (!err && !result.kept)
        share->unkept_bytes += bytes;
    return err;
}

static enum dctf_err warm_other(struct dctf_fs *fs, const struct dctf_version *version, uint32_t extent,
    uint64_t bytes, struct dctf_cluster_share *share, struct dctf_cluster_warmed *warmed)
{
    enum dctf_err err = dctf_cluster_warm(fs->cluster, version, extent, is_leaving, fs, warmed);

    if (err == DCTF_ERR_PEER_GONE || err == DCTF_ERR_DEADLINE || err == DCTF_ERR_PEER_AUTH) {
        share->away_bytes += bytes; /* the rest goes on */
        share->away = err;
        return DCTF_OK;
    }
    if (err)
        return err;
    if (warmed->fetched)
        share->fetched_bytes += bytes;
    if (!warmed->own && !warmed->kept)
        share->unkept_bytes += bytes;
    return DCTF_OK;
}

enum dctf_err dctf_cluster_share_warm(struct dctf_fs *fs, struct dctf_version *version,
    struct dctf_source *source, bool all, struct dctf_cluster_share *share)
{
    uint32_t blocks = dctf_blocks_of(version->size);
    enum dctf_err err = DCTF_OK;

    *share = (struct dctf_cluster_share){0};
    for (uint32_t first = 0; first < blocks && !err; first += DCTF_EXTENT_BLOCKS) {
        uint32_t extent = first / DCTF_EXTENT_BLOCKS;
        uint32_t end = blocks - first > DCTF_EXTENT_BLOCKS ? first + DCTF_EXTENT_BLOCKS : blocks;
        uint64_t bytes =
            (uint64_t)(end - first - 1) * DCTF_BLOCK_BYTES + dctf_block_len(version->size, end - 1);
        bool own = dctf_cluster_is_home(fs->cluster, version, extent);
        struct dctf_cluster_warmed warmed = {.own = true};

        if (!own && !all)
            continue;
        share->bytes += bytes;
        if (!own)
            err = warm_other(fs, version, extent, bytes, share, &warmed);
        if (!err && warmed.own) /* by now, perhaps */
            err = warm_own(fs, source, first, end, bytes, share);
    }
    return err;
}
