/* SPDX-License-Identifier: Apache-2.0
 *
 * Names and directories. Both look-up and opendir need a listing of the directory; when it
 * has to be fetched the request is parked, and a signal ends the wait.
 */
#include "fs/fs_private.h"

#include "base/log.h"
#include "cache/store.h"
#include "fs/deferred.h"
#include "fs/notify.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NS_PER_S 1000000000
/* Listings dropped between being resolved and being read (a storm of `dctf sync`). */
#define ATTEMPTS_MAX 8u
#define DRAIN_MS 3000u

struct dir_handle {
    struct dctf_list node; /* in fs->dir_handles; guarded by files_lock */
    pthread_mutex_t lock;
    struct dctf_listing_cursor *cursor; /* guarded by lock */
    struct dctf_inode *inode;           /* ref held */
    uint64_t generation;
    char path[]; /* of the directory */
};

/* A look-up (name set) or an opendir (name empty) that needs a listing. */
struct dir_op {
    struct dctf_ns_wait wait;
    struct dctf_deferred_job job;
    struct dctf_fs *fs;
    fuse_req_t req;
    struct dctf_inode *dir; /* ref held */
    struct fuse_file_info fi;
    atomic_uint refs; /* whoever may still call back, and the submitter */
    atomic_bool interrupted;
    unsigned attempt;
    char path[DCTF_KEY_MAX + 1];
    char name[DCTF_NAME_MAX + 1];
};

void dctf_inode_stat(const struct dctf_fs *fs, const struct dctf_inode *inode, struct stat *st)
{
    mode_t bits = (mode_t)(0555 & ~fs->config->umask);

    memset(st, 0, sizeof(*st));
    st->st_ino = inode->ino;
    st->st_uid = (uid_t)fs->config->uid;
    st->st_gid = (gid_t)fs->config->gid;
    st->st_nlink = 1; /* also for directories: "count unknown", find(1) then looks */
    st->st_blksize = DCTF_BLOCK_BYTES;
    if (inode->is_dir) {
        st->st_mode = S_IFDIR | bits;
    } else {
        st->st_mode = S_IFREG | (bits & 0444);
        st->st_size = (off_t)inode->size;
        st->st_blocks = (blkcnt_t)((inode->size + 511) / 512);
    }
    if (inode->parent) {
        st->st_mtim.tv_sec = (time_t)(inode->mtime_ns / NS_PER_S);
        st->st_mtim.tv_nsec = (long)(inode->mtime_ns % NS_PER_S);
        if (st->st_mtim.tv_nsec < 0) { /* before 1970 */
            st->st_mtim.tv_sec--;
            st->st_mtim.tv_nsec += NS_PER_S;
        }
    } else { /* nobody lists the root */
        st->st_mtim.tv_sec = (time_t)(fs->started_ms / 1000);
    }
    st->st_atim = st->st_ctim = st->st_mtim;
}

static double seconds(uint64_t ms)
{
    return ms > 86400000u ? 86400.0 : (double)ms / 1000.0;
}

/* How long the kernel may keep a name: as long as the listing is trusted, and a second when
 * an old one had to answer. */
static double entry_timeout(struct dctf_fs *fs, const struct dctf_listing_state *state)
{
    uint64_t left = dctf_ns_remaining_ms(fs->ns, state);

    return seconds(left ? left : 1000);
}

static void fill_entry(
    struct dctf_fs *fs, const struct dctf_inode *inode, double timeout, struct fuse_entry_param *param)
{
    memset(param, 0, sizeof(*param));
    param->ino = inode->ino;
    param->entry_timeout = timeout;
    param->attr_timeout = 86400.0; /* an inode is one version: its attributes never change */
    dctf_inode_stat(fs, inode, &param->attr);
}

/* Look-up ------------------------------------------------------------------------ */

static void reply_negative(struct dctf_fs *fs, fuse_req_t req, const struct dctf_listing_state *state)
{
    struct fuse_entry_param param = {0};
    uint64_t left = dctf_ns_remaining_ms(fs->ns, state);

    if (left > fs->config->negative_ttl_ms)
        left = fs->config->negative_ttl_ms;
    if (left == 0) {
        fuse_reply_err(req, ENOENT);
        return;
    }
    param.entry_timeout = seconds(left);
    fuse_reply_entry(req, &param); /* ino 0: the name does not exist */
}

/* DCTF_ERR_MISS, and no answer given: the listing was dropped meanwhile. *file is the number of a
 * file the kernel was told of, else 0. */
static enum dctf_err lookup_answer(struct dctf_fs *fs, fuse_req_t req, struct dctf_inode *dir,
    const char *path, const char *name, const struct dctf_listing_state *state, uint64_t *file)
{
    char buf[DCTF_ENTRY_BUF_BYTES];
    struct dctf_entry entry;
    struct dctf_inode *inode;
    struct fuse_entry_param param;
    enum dctf_err err =
        dctf_listing_lookup(dctf_store_listings(fs->store), path, state->generation, name, buf, &entry);

    *file = 0;
    if (err == DCTF_ERR_MISS)
        return err;
    if (err == DCTF_ERR_NOT_FOUND) {
        reply_negative(fs, req, state);
        return DCTF_OK;
    }
    if (!err)
        err = dctf_inodes_lookup(fs->inodes, dir, path, &entry, &inode);
    if (err) {
        dctf_metric_error(fs->metrics, err);
        fuse_reply_err(req, dctf_err_errno(err));
        return DCTF_OK;
    }
    fill_entry(fs, inode, entry_timeout(fs, state), &param);
    if (fuse_reply_entry(req, &param) == -ENOENT)
        dctf_inodes_forget(fs->inodes, param.ino, 1);
    else if (!entry.is_dir)
        *file = param.ino;
    return DCTF_OK;
}

/* Opendir ------------------------------------------------------------------------ */

static void dir_handle_free(struct dctf_fs *fs, struct dir_handle *handle)
{
    pthread_mutex_lock(&fs->files_lock);
    dctf_list_remove(&handle->node);
    pthread_mutex_unlock(&fs->files_lock);
    dctf_listing_close(handle->cursor);
    dctf_inodes_put(fs->inodes, handle->inode);
    pthread_mutex_destroy(&handle->lock);
    free(handle);
}

/* As lookup_answer(). */
static enum dctf_err opendir_answer(struct dctf_fs *fs, fuse_req_t req, struct dctf_inode *dir,
    const char *path, struct fuse_file_info *fi, const struct dctf_listing_state *state)
{
    struct dir_handle *handle = calloc(1, sizeof(*handle) + strlen(path) + 1);
    enum dctf_err err = handle ? DCTF_OK : DCTF_ERR_NO_MEMORY;

    if (!err)
        err = dctf_listing_open(dctf_store_listings(fs->store), path, state->generation, &handle->cursor);
    if (err == DCTF_ERR_MISS) {
        free(handle);
        return err;
    }
    if (err) {
        free(handle);
        dctf_metric_error(fs->metrics, err);
        fuse_reply_err(req, dctf_err_errno(err));
        return DCTF_OK;
    }
    strcpy(handle->path, path);
    handle->generation = state->generation;
    handle->inode = dctf_inodes_get(fs->inodes, dir->ino);
    pthread_mutex_init(&handle->lock, NULL);
    pthread_mutex_lock(&fs->files_lock);
    dctf_list_push_back(&fs->dir_handles, &handle->node);
    pthread_mutex_unlock(&fs->files_lock);
    fi->fh = (uint64_t)(uintptr_t)handle;
    if (fuse_reply_open(req, fi) == -ENOENT)
        dir_handle_free(fs, handle);
    return DCTF_OK;
}

/* Waiting for a listing ----------------------------------------------------------- */

static void dir_op_unref(struct dir_op *op)
{
    if (atomic_fetch_sub(&op->refs, 1) != 1)
        return;
    dctf_inodes_put(op->fs->inodes, op->dir);
    free(op);
}

static void dir_op_start(struct dctf_fs *fs, fuse_req_t req, struct dctf_inode *dir, const char *path,
    const char *name, const struct fuse_file_info *fi, unsigned attempt);

static void dir_op_reply(struct dir_op *op, enum dctf_err err, const struct dctf_listing_state *state)
{
    bool is_lookup = *op->name != '\0';
    uint64_t file;

    fuse_req_interrupt_func(op->req, NULL, NULL);
    if (!err && is_lookup)
        err = lookup_answer(op->fs, op->req, op->dir, op->path, op->name, state, &file);
    else if (!err)
        err = opendir_answer(op->fs, op->req, op->dir, op->path, &op->fi, state);
    if (err == DCTF_ERR_MISS && op->attempt < ATTEMPTS_MAX)
        dir_op_start(
            op->fs, op->req, op->dir, op->path, op->name, is_lookup ? NULL : &op->fi, op->attempt + 1);
    else if (err)
        fuse_reply_err(op->req, dctf_err_errno(err));
    dir_op_unref(op);
}

static void dir_op_done(struct dctf_ns_wait *wait, enum dctf_err err, const struct dctf_listing_state *state)
{
    dir_op_reply((struct dir_op *)wait, err, state);
}

static void dir_op_end_interrupted(void *ctx)
{
    struct dir_op *op = ctx;

    dctf_metric_add(op->fs->metrics, DCTF_METRIC_READS_INTERRUPTED, 1);
    dir_op_reply(op, DCTF_ERR_INTERRUPTED, NULL);
}

/* Called with a lock of libfuse held: take the wait back, let another thread reply. */
static void dir_op_interrupted(fuse_req_t req, void *data)
{
    struct dir_op *op = data;

    (void)req;
    atomic_store(&op->interrupted, true);
    if (dctf_ns_cancel(op->fs->ns, &op->wait))
        dctf_deferred_submit(op->fs->deferred, &op->job, dir_op_end_interrupted, op);
}

static void dir_op_start(struct dctf_fs *fs, fuse_req_t req, struct dctf_inode *dir, const char *path,
    const char *name, const struct fuse_file_info *fi, unsigned attempt)
{
    struct dir_op *op = calloc(1, sizeof(*op));
    enum dctf_err err;

    if (!op) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    op->wait.done = dir_op_done;
    op->fs = fs;
    op->req = req;
    op->dir = dctf_inodes_get(fs->inodes, dir->ino);
    if (fi)
        op->fi = *fi;
    op->attempt = attempt;
    atomic_init(&op->refs, 2);
    strcpy(op->path, path);
    strcpy(op->name, name);
    fuse_req_interrupt_func(req, dir_op_interrupted, op);
    err = dctf_ns_resolve(fs->ns, path, &op->wait);
    if (err) /* the callback will not run */
        dir_op_reply(op, err, NULL);
    else if (atomic_load(&op->interrupted) && dctf_ns_cancel(fs->ns, &op->wait))
        dir_op_reply(op, DCTF_ERR_INTERRUPTED, NULL); /* the signal came before there was a wait */
    dir_op_unref(op);
}

/* True and a state when the listing of `path` need not be waited for. */
static bool listed(struct dctf_fs *fs, const char *path, struct dctf_listing_state *state)
{
    return !dctf_listings_state(dctf_store_listings(fs->store), path, state) && state->generation != 0 &&
           dctf_ns_remaining_ms(fs->ns, state) > 0;
}

void dctf_dir_lookup(struct dctf_fs *fs, fuse_req_t req, struct dctf_inode *parent, const char *name)
{
    char path[DCTF_KEY_MAX + 1];
    struct dctf_listing_state state;
    enum dctf_err err = dctf_inode_path(parent, path);
    uint64_t file = 0;

    dctf_metric_add(fs->metrics, DCTF_METRIC_LOOKUPS, 1);
    if (!parent->is_dir)
        fuse_reply_err(req, ENOTDIR);
    else if (err || strlen(name) > DCTF_NAME_MAX)
        fuse_reply_err(req, ENAMETOOLONG);
    else if (!listed(fs, path, &state) || lookup_answer(fs, req, parent, path, name, &state, &file))
        dir_op_start(fs, req, parent, path, name, NULL, 0);
    if (file)
        dctf_file_looked_up(fs, file);
}

void dctf_dir_open(struct dctf_fs *fs, fuse_req_t req, struct dctf_inode *inode, struct fuse_file_info *fi)
{
    char path[DCTF_KEY_MAX + 1];
    struct dctf_listing_state state;
    enum dctf_err err = dctf_inode_path(inode, path);

    if (!inode->is_dir)
        fuse_reply_err(req, ENOTDIR);
    else if (err)
        fuse_reply_err(req, dctf_err_errno(err));
    else if (!listed(fs, path, &state) || opendir_answer(fs, req, inode, path, fi, &state))
        dir_op_start(fs, req, inode, path, "", fi, 0);
}

/* Readdir ------------------------------------------------------------------------- */

/* Offsets the kernel sees: 1 after ".", 2 after "..", 2 + n after n entries. */
#define DOTS 2

struct dir_buffer {
    fuse_req_t req;
    char *data;
    size_t size, used;
    bool plus;
    uint64_t *looked_up; /* inodes counted for the kernel, to be taken back when it is not listening */
    size_t looked_up_count;
};

/* The smallest entry of readdirplus: 128 bytes of attributes and 24 of entry. */
#define PLUS_ENTRY_MIN 152u

static enum dctf_err buffer_init(struct dir_buffer *buffer, fuse_req_t req, size_t size, bool plus)
{
    *buffer = (struct dir_buffer){.req = req, .size = size, .plus = plus};
    buffer->data = malloc(size);
    if (plus)
        buffer->looked_up = calloc(size / PLUS_ENTRY_MIN + 1, sizeof(uint64_t));
    return buffer->data && (!plus || buffer->looked_up) ? DCTF_OK : DCTF_ERR_NO_MEMORY;
}

static bool add_entry(
    struct dir_buffer *buffer, const char *name, const struct fuse_entry_param *param, off_t next)
{
    char *at = buffer->data + buffer->used;
    size_t left = buffer->size - buffer->used;
    size_t need = buffer->plus ? fuse_add_direntry_plus(buffer->req, at, left, name, param, next)
                               : fuse_add_direntry(buffer->req, at, left, name, &param->attr, next);

    if (need > left)
        return false;
    buffer->used += need;
    return true;
}

static void add_dots(struct dctf_fs *fs, struct dir_handle *handle, struct dir_buffer *buffer, off_t offset)
{
    static const char *const names[] = {".", ".."};
    const struct dctf_inode *inode = handle->inode;

    for (off_t i = offset; i < DOTS; i++) {
        struct fuse_entry_param param = {0}; /* ino 0: not looked up, nothing to forget */

        dctf_inode_stat(fs, i == 1 && inode->parent ? inode->parent : inode, &param.attr);
        if (!add_entry(buffer, names[i], &param, i + 1))
            return;
    }
}

/* One entry; *fits tells whether there was room for it. */
static enum dctf_err add_listed(struct dctf_fs *fs, struct dir_handle *handle, struct dir_buffer *buffer,
    const struct dctf_entry *entry, double timeout, off_t next, bool *fits)
{
    struct fuse_entry_param param = {0};
    struct dctf_inode *inode;
    enum dctf_err err;

    if (!buffer->plus) {
        param.attr.st_ino = dctf_inodes_number(fs->inodes, handle->path, entry);
        param.attr.st_mode = entry->is_dir ? S_IFDIR : S_IFREG;
        *fits = add_entry(buffer, entry->name, &param, next);
        return DCTF_OK;
    }
    err = dctf_inodes_lookup(fs->inodes, handle->inode, handle->path, entry, &inode);
    if (err)
        return err;
    fill_entry(fs, inode, timeout, &param);
    *fits = add_entry(buffer, entry->name, &param, next);
    if (*fits)
        buffer->looked_up[buffer->looked_up_count++] = inode->ino;
    else
        dctf_inodes_forget(fs->inodes, inode->ino, 1);
    return DCTF_OK;
}

static enum dctf_err fill_listed(
    struct dctf_fs *fs, struct dir_handle *handle, struct dir_buffer *buffer, uint64_t position)
{
    struct dctf_listing_state state;
    struct dctf_entry entry;
    double timeout = 1.0;
    bool fits = true;
    enum dctf_err err = DCTF_OK;

    /* A later generation than this handle's may be known already. */
    if (listed(fs, handle->path, &state) && state.generation == handle->generation)
        timeout = entry_timeout(fs, &state);
    if (dctf_listing_offset(handle->cursor) != position)
        err = dctf_listing_seek(handle->cursor, position);
    while (!err && fits) {
        err = dctf_listing_next(handle->cursor, &entry);
        if (!err)
            err = add_listed(fs, handle, buffer, &entry, timeout, (off_t)++position + DOTS, &fits);
    }
    return err == DCTF_ERR_NOT_FOUND ? DCTF_OK : err;
}

void dctf_dir_read(
    struct dctf_fs *fs, fuse_req_t req, size_t size, off_t offset, struct fuse_file_info *fi, bool plus)
{
    struct dir_handle *handle = (struct dir_handle *)(uintptr_t)fi->fh;
    struct dir_buffer buffer;
    enum dctf_err err = buffer_init(&buffer, req, size, plus);

    if (!err && offset < DOTS)
        add_dots(fs, handle, &buffer, offset);
    if (!err) {
        pthread_mutex_lock(&handle->lock);
        err = fill_listed(fs, handle, &buffer, offset < DOTS ? 0 : (uint64_t)(offset - DOTS));
        pthread_mutex_unlock(&handle->lock);
    }
    if (err && buffer.used == 0) {
        dctf_metric_error(fs->metrics, err);
        fuse_reply_err(req, dctf_err_errno(err));
    } else if (fuse_reply_buf(req, buffer.data, buffer.used) == -ENOENT) {
        while (buffer.looked_up_count)
            dctf_inodes_forget(fs->inodes, buffer.looked_up[--buffer.looked_up_count], 1);
    }
    free(buffer.looked_up);
    free(buffer.data);
}

void dctf_dir_release(struct dctf_fs *fs, fuse_req_t req, struct fuse_file_info *fi)
{
    dir_handle_free(fs, (struct dir_handle *)(uintptr_t)fi->fh);
    fuse_reply_err(req, 0);
}

void dctf_dirs_close_all(struct dctf_fs *fs)
{
    while (!dctf_list_empty(&fs->dir_handles))
        dir_handle_free(fs, dctf_list_entry(fs->dir_handles.next, struct dir_handle, node));
}

/* Sync ----------------------------------------------------------------------------- */

/* Drop the listings of a directory and of those its last listing knows below it. */
static enum dctf_err drop_tree(struct dctf_fs *fs, const char *path, uint64_t *directories)
{
    struct dctf_listings *listings = dctf_store_listings(fs->store);
    struct dctf_listing_state state;
    struct dctf_listing_cursor *cursor = NULL;
    struct dctf_entry entry;
    char child[DCTF_KEY_MAX + 1];
    enum dctf_err err = dctf_listings_state(listings, path, &state);

    if (err || state.generation == 0)
        return err;
    err = dctf_listing_open(listings, path, state.generation, &cursor);
    while (!err && !(err = dctf_listing_next(cursor, &entry))) {
        if (entry.is_dir && !dctf_path_join(path, entry.name, child))
            err = drop_tree(fs, child, directories);
    }
    dctf_listing_close(cursor);
    if (err && err != DCTF_ERR_NOT_FOUND)
        return err;
    (*directories)++;
    return dctf_listing_drop(listings, path);
}

struct forget_names {
    struct dctf_fs *fs;
    const char *top;
};

static void forget_name(void *ctx, const struct dctf_inode *inode)
{
    struct forget_names *forget = ctx;
    char path[DCTF_KEY_MAX + 1];

    if (!dctf_inode_path(inode, path) && dctf_path_at_or_below(path, forget->top))
        dctf_notify_entry(forget->fs->notify, inode->parent->ino, inode->name);
}

enum dctf_err dctf_dir_sync(struct dctf_fs *fs, const char *path, bool force, uint64_t *directories)
{
    struct forget_names forget = {.fs = fs, .top = path};
    enum dctf_err err;

    *directories = 0;
    err = drop_tree(fs, path, directories);
    /* Also what no current listing leads to. */
    if (!err && *path == '\0')
        err = dctf_listings_drop_all(dctf_store_listings(fs->store));
    if (!err)
        err = dctf_ns_outdate(fs->ns, path);
    if (!err && force) {
        dctf_inodes_each(fs->inodes, forget_name, &forget);
        /* So that who opens after this sees what is there now. */
        if (!dctf_notify_drain(fs->notify, DRAIN_MS))
            dctf_log(DCTF_LOG_WARN, "fs", "the kernel still forgets names; the rest follows");
    }
    return err;
}
