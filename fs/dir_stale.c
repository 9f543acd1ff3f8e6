/* SPDX-License-Identifier: Apache-2.0
 *
 * Versions that the source has no more while a listing still names them: the listing is forgotten, so that
 * who opens the file again gets what is there now, and the other nodes are told.
 */
#include "fs/fs_private.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/pool.h"
#include "cache/store.h"
#include "cluster/listings.h"
#include "fs/notify.h"

#include <stdlib.h>
#include <string.h>

/* A source whose listings lag behind its objects must not be listed over and over. */
#define PAUSE_MS 5000u

/* Cut a path into its directory and its last component. */
static const char *split(const char *path, char *dir)
{
    const char *slash = strrchr(path, '/');
    size_t len = slash ? (size_t)(slash - path) : 0;

    memcpy(dir, path, len);
    dir[len] = '\0';
    return slash ? slash + 1 : path;
}

static uint64_t number_of(struct dctf_fs *fs, const char *dir)
{
    char parent[DCTF_KEY_MAX + 1];
    struct dctf_entry entry = {.is_dir = true, .etag = ""};

    if (!*dir)
        return DCTF_INO_ROOT;
    entry.name = split(dir, parent);
    return dctf_inodes_number(fs->inodes, parent, &entry);
}

static bool may_forget(struct dctf_fs *fs, const char *dir)
{
    uint64_t now_ms = dctf_clock_mono_ms(NULL), hash = dctf_hash64(dir, strlen(dir));
    struct dctf_stale_pause *pause = &fs->stale_pauses[hash % DCTF_STALE_PAUSES];
    bool may;

    pthread_mutex_lock(&fs->stale_lock);
    may = pause->hash != hash || now_ms - pause->at_ms >= PAUSE_MS;
    if (may)
        *pause = (struct dctf_stale_pause){hash, now_ms};
    pthread_mutex_unlock(&fs->stale_lock);
    return may;
}

bool dctf_dir_forget_version(struct dctf_fs *fs, const char *key, const char *etag, uint64_t size)
{
    struct dctf_listings *listings = dctf_store_listings(fs->store);
    char dir[DCTF_KEY_MAX + 1], buf[DCTF_ENTRY_BUF_BYTES], quoted[256];
    struct dctf_listing_state state;
    struct dctf_entry entry;
    const char *name = split(key, dir);

    if (dctf_listings_state(listings, dir, &state) || !state.generation || !state.fetched_ms ||
        dctf_listing_lookup(listings, dir, state.generation, name, buf, &entry) || entry.is_dir ||
        entry.size != size || strcmp(entry.etag, etag) != 0 || !may_forget(fs, dir))
        return false;
    if (dctf_listing_drop(listings, dir) || dctf_ns_outdate(fs->ns, dir))
        return false;
    dctf_notify_entry(fs->notify, number_of(fs, dir), name);
    dctf_log(DCTF_LOG_INFO, "namespace",
        "op=stale key=%s the source has this version no more: listing forgotten",
        dctf_str_quote(key, quoted, sizeof(quoted)));
    return true;
}

struct gone {
    struct dctf_fs *fs;
    struct dctf_version *version;
};

static void forget(void *ctx)
{
    struct gone *gone = ctx;
    const struct dctf_version *version = gone->version;

    (void)dctf_dir_forget_version(gone->fs, version->key, version->etag, version->size);
    dctf_version_unref(gone->version);
    free(gone);
}

void dctf_dir_version_gone(struct dctf_fs *fs, struct dctf_version *version)
{
    struct gone *gone;

    if (fs->cluster) {
        (void)dctf_cluster_version_gone(fs->cluster, version); /* else who reads next finds it out */
        return;
    }
    gone = malloc(sizeof(*gone));
    if (!gone)
        return;
    *gone = (struct gone){.fs = fs, .version = dctf_version_ref(version)};
    if (!dctf_pool_submit(fs->writers, forget, gone))
        return;
    dctf_version_unref(gone->version);
    free(gone);
}
