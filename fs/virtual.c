/* SPDX-License-Identifier: Apache-2.0
 *
 * The directory `.dctf` at the root: small files made when they are opened. Reads bypass the
 * page cache, so that each open sees the present.
 */
#include "fs/fs_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define INO_DIR 2u
#define INO_FIRST_FILE 3u

struct content {
    struct dctf_list node; /* in fs->contents, while it is open; guarded by files_lock */
    struct dctf_str text;
    atomic_uint refs; /* the handle, and each read until its reply has returned */
};

static enum dctf_err make_status(struct dctf_fs *fs, struct dctf_str *out)
{
    json_t *status = dctf_status_json(fs);
    char *text = status ? json_dumps(status, JSON_INDENT(2) | JSON_PRESERVE_ORDER) : NULL;

    json_decref(status);
    if (!text)
        return DCTF_ERR_NO_MEMORY;
    dctf_str_puts(out, text);
    dctf_str_puts(out, "\n");
    free(text);
    return out->err;
}

static enum dctf_err make_config(struct dctf_fs *fs, struct dctf_str *out)
{
    dctf_config_write(fs->config, out);
    return out->err;
}

static const struct {
    const char *name;
    enum dctf_err (*make)(struct dctf_fs *fs, struct dctf_str *out);
} files[] = {
    {"status.json", make_status},
    {"metrics", dctf_metrics_text},
    {"heat.tsv", dctf_heat_tsv},
    {"config", make_config},
    {"peers.tsv", dctf_peers_tsv},
    {"policy.tsv", dctf_policy_tsv},
};
#define FILE_COUNT (sizeof(files) / sizeof(files[0]))

bool dctf_virtual_is(uint64_t ino)
{
    return ino != DCTF_INO_ROOT && ino < DCTF_INO_RESERVED;
}

static void virtual_stat(const struct dctf_fs *fs, uint64_t ino, struct stat *st)
{
    memset(st, 0, sizeof(*st));
    st->st_ino = ino;
    st->st_nlink = 1;
    st->st_uid = (uid_t)fs->config->uid;
    st->st_gid = (gid_t)fs->config->gid;
    st->st_mode = ino == INO_DIR ? S_IFDIR | 0555 : S_IFREG | 0444;
    st->st_mtim.tv_sec = (time_t)(fs->started_ms / 1000);
    st->st_atim = st->st_ctim = st->st_mtim;
}

void dctf_virtual_lookup(struct dctf_fs *fs, fuse_req_t req, uint64_t parent, const char *name)
{
    struct fuse_entry_param param = {.attr_timeout = 1.0, .entry_timeout = 60.0};

    if (parent == DCTF_INO_ROOT) {
        param.ino = INO_DIR;
    } else if (parent == INO_DIR) {
        for (size_t i = 0; i < FILE_COUNT; i++) {
            if (!strcmp(name, files[i].name))
                param.ino = INO_FIRST_FILE + i;
        }
    }
    if (param.ino == 0) {
        fuse_reply_err(req, ENOENT);
        return;
    }
    virtual_stat(fs, param.ino, &param.attr);
    fuse_reply_entry(req, &param);
}

void dctf_virtual_getattr(struct dctf_fs *fs, fuse_req_t req, uint64_t ino)
{
    struct stat st;

    if (ino < INO_DIR || ino >= INO_FIRST_FILE + FILE_COUNT) {
        fuse_reply_err(req, ENOENT);
        return;
    }
    virtual_stat(fs, ino, &st);
    fuse_reply_attr(req, &st, 1.0);
}

static void content_unref(struct content *content)
{
    if (atomic_fetch_sub(&content->refs, 1) != 1)
        return;
    dctf_str_fini(&content->text);
    free(content);
}

/* The kernel will not use it any more. */
static void content_close(struct dctf_fs *fs, struct content *content)
{
    pthread_mutex_lock(&fs->files_lock);
    dctf_list_remove(&content->node);
    pthread_mutex_unlock(&fs->files_lock);
    content_unref(content);
}

void dctf_virtual_close_all(struct dctf_fs *fs)
{
    while (!dctf_list_empty(&fs->contents))
        content_close(fs, dctf_list_entry(fs->contents.next, struct content, node));
}

void dctf_virtual_open(struct dctf_fs *fs, fuse_req_t req, uint64_t ino, struct fuse_file_info *fi)
{
    struct content *content;
    enum dctf_err err;

    if (ino < INO_FIRST_FILE || ino >= INO_FIRST_FILE + FILE_COUNT) {
        fuse_reply_err(req, ino == INO_DIR ? EISDIR : ENOENT);
        return;
    }
    content = calloc(1, sizeof(*content));
    if (!content) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    atomic_init(&content->refs, 1);
    dctf_str_init(&content->text);
    dctf_list_init(&content->node);
    err = files[ino - INO_FIRST_FILE].make(fs, &content->text);
    if (err) {
        content_unref(content);
        fuse_reply_err(req, dctf_err_errno(err));
        return;
    }
    pthread_mutex_lock(&fs->files_lock);
    dctf_list_push_back(&fs->contents, &content->node);
    pthread_mutex_unlock(&fs->files_lock);
    fi->fh = (uint64_t)(uintptr_t)content;
    fi->direct_io = 1;
    fi->noflush = 1;
    if (fuse_reply_open(req, fi) == -ENOENT)
        content_close(fs, content);
}

void dctf_virtual_read(fuse_req_t req, size_t size, off_t offset, struct fuse_file_info *fi)
{
    struct content *content = (struct content *)(uintptr_t)fi->fh;
    size_t at = offset < 0 ? content->text.len : (size_t)offset;

    if (at >= content->text.len) {
        fuse_reply_buf(req, NULL, 0);
        return;
    }
    if (size > content->text.len - at)
        size = content->text.len - at;
    /* The reader may close as soon as it has its answer, while we are still sending. */
    atomic_fetch_add(&content->refs, 1);
    fuse_reply_buf(req, content->text.data + at, size);
    content_unref(content);
}

void dctf_virtual_release(struct dctf_fs *fs, fuse_req_t req, struct fuse_file_info *fi)
{
    content_close(fs, (struct content *)(uintptr_t)fi->fh);
    fuse_reply_err(req, 0);
}

void dctf_virtual_readdir(
    struct dctf_fs *fs, fuse_req_t req, uint64_t ino, size_t size, off_t offset, bool plus)
{
    char buf[2048];
    size_t used = 0, cap = size < sizeof(buf) ? size : sizeof(buf);

    if (ino != INO_DIR) {
        fuse_reply_err(req, ENOTDIR);
        return;
    }
    for (off_t i = offset; i >= 0 && i < (off_t)(FILE_COUNT + 2); i++) {
        const char *name = i == 0 ? "." : i == 1 ? ".." : files[i - 2].name;
        struct fuse_entry_param param = {0}; /* ino 0: not looked up by this */
        size_t left = cap - used, need;

        virtual_stat(fs, i < 2 ? INO_DIR : INO_FIRST_FILE + (uint64_t)i - 2, &param.attr);
        need = plus ? fuse_add_direntry_plus(req, buf + used, left, name, &param, i + 1)
                    : fuse_add_direntry(req, buf + used, left, name, &param.attr, i + 1);
        if (need > left)
            break;
        used += need;
    }
    fuse_reply_buf(req, buf, used);
}
