/* SPDX-License-Identifier: Apache-2.0
 *
 * What the mount does for the other nodes of its cluster: lists directories for them, and what they tell it
 * to.
 */
#include "fs/fs_private.h"

#include "base/config.h"
#include "cluster/listings.h"

#include <stdlib.h>

/* A source that was silent for this part of its deadline is not waited for by others. */
#define MOVING_PART 4u

struct asked {
    struct dctf_ns_wait wait; /* first */
    void (*done)(void *done_ctx, enum dctf_err err, const struct dctf_listing_state *state);
    void *ctx;
};

static void resolved(struct dctf_ns_wait *wait, enum dctf_err err, const struct dctf_listing_state *state)
{
    struct asked *asked = (struct asked *)wait;

    asked->done(asked->ctx, err, state);
    free(asked);
}

static enum dctf_err resolve(void *ctx, const char *dir, uint64_t max_age_ms,
    void (*done)(void *done_ctx, enum dctf_err err, const struct dctf_listing_state *state), void *done_ctx)
{
    struct dctf_fs *fs = ctx;
    struct asked *asked = calloc(1, sizeof(*asked));
    enum dctf_err err;

    if (!asked)
        return DCTF_ERR_NO_MEMORY;
    asked->wait.done = resolved;
    asked->done = done;
    asked->ctx = done_ctx;
    err = dctf_ns_resolve_for_peer(fs->ns, dir, max_age_ms, &asked->wait);
    if (err)
        free(asked);
    return err;
}

static enum dctf_listing_course course(void *ctx, const char *dir)
{
    struct dctf_fs *fs = ctx;
    uint64_t silent_ms = dctf_ns_silent_ms(fs->ns, dir);

    if (silent_ms == UINT64_MAX)
        return DCTF_LISTING_IDLE;
    return silent_ms > fs->config->list_deadline_ms / MOVING_PART ? DCTF_LISTING_SILENT : DCTF_LISTING_MOVING;
}

static enum dctf_err do_sync(void *ctx, const char *path, bool force, uint64_t *directories)
{
    return dctf_dir_sync(ctx, path, force, directories);
}

static enum dctf_err do_evict(void *ctx, const char *path, uint64_t *shards, uint64_t *bytes, uint64_t *busy)
{
    struct dctf_evicted out;
    enum dctf_err err = dctf_evict(ctx, path, &out);

    *shards = out.shards;
    *bytes = out.bytes;
    *busy = out.busy;
    return err;
}

static bool stale(void *ctx, const char *key, const char *etag, uint64_t size)
{
    return dctf_dir_forget_version(ctx, key, etag, size);
}

enum dctf_err dctf_share_listings(struct dctf_fs *fs)
{
    struct dctf_listing_host host = {
        .ctx = fs,
        .resolve = resolve,
        .course = course,
        .sync = do_sync,
        .evict = do_evict,
        .stale = stale,
    };

    return fs->cluster ? dctf_cluster_share_listings(fs->cluster, &host) : DCTF_OK;
}
