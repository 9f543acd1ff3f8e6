/* SPDX-License-Identifier: Apache-2.0
 *
 * `user.dctf.*` attributes of shards: what this node knows and holds of them.
 */
#include "fs/fs_private.h"

#include "cache/heat.h"
#include "cache/store.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define HOMES "user.dctf.homes" /* only in a cluster */
#define VALUE_BYTES 4096u

static const char *const names[] = {
    "user.dctf.etag", "user.dctf.tier", "user.dctf.present", "user.dctf.feature", "user.dctf.heat", HOMES};

static int format(struct dctf_fs *fs, const char *what, struct dctf_version *version,
    struct dctf_shard *shard, char *out, size_t cap)
{
    struct dctf_heat_value heat;

    if (!strcmp(what, "etag"))
        return snprintf(out, cap, "%s", version->etag);
    if (!strcmp(what, "tier"))
        return snprintf(out, cap, "%s", dctf_tier_name(dctf_shard_tier(shard)));
    if (!strcmp(what, "present"))
        return snprintf(out, cap, "%" PRIu64, dctf_shard_present_bytes(shard));
    if (!strcmp(what, "feature"))
        return snprintf(out, cap, "%s", version->feature);
    if (!strcmp(what, "heat")) {
        dctf_heat_of_shard(dctf_store_heat(fs->store), version->key_hash, &heat);
        return snprintf(out, cap, "%.3f", heat.heat);
    }
    if (!strcmp(what, "homes"))
        return dctf_homes_text(fs, version, out, cap);
    return -1;
}

static void reply(fuse_req_t req, const char *value, size_t len, size_t size)
{
    if (size == 0)
        fuse_reply_xattr(req, len);
    else if (size < len)
        fuse_reply_err(req, ERANGE);
    else
        fuse_reply_buf(req, value, len);
}

void dctf_xattr_get(
    struct dctf_fs *fs, fuse_req_t req, struct dctf_inode *inode, const char *name, size_t size)
{
    struct dctf_version *version = NULL;
    struct dctf_source *source = NULL;
    char value[VALUE_BYTES];
    enum dctf_err err;
    int len = -1;

    if (inode->is_dir) {
        fuse_reply_err(req, ENODATA);
        return;
    }
    err = dctf_inode_version(fs, inode, &version);
    if (!err)
        err = dctf_engine_get(fs->engine, version, &source);
    if (!err)
        len =
            format(fs, name + strlen("user.dctf."), version, dctf_source_shard(source), value, sizeof(value));
    dctf_engine_put(fs->engine, source);
    dctf_version_unref(version);
    if (err)
        fuse_reply_err(req, dctf_err_errno(err));
    else if (len < 0)
        fuse_reply_err(req, ENODATA);
    else
        reply(req, value, (size_t)len, size);
}

void dctf_xattr_list(const struct dctf_fs *fs, fuse_req_t req, const struct dctf_inode *inode, size_t size)
{
    char list[256];
    size_t len = 0;

    for (size_t i = 0; !inode->is_dir && i < sizeof(names) / sizeof(names[0]); i++) {
        size_t bytes = strlen(names[i]) + 1;

        if (!fs->cluster && !strcmp(names[i], HOMES))
            continue;
        memcpy(list + len, names[i], bytes);
        len += bytes;
    }
    reply(req, list, len, size);
}
