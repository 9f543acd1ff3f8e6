/* SPDX-License-Identifier: Apache-2.0
 *
 * Open files. How an inode is served (by the kernel from a backing file, or by the daemon
 * through the page cache) is decided at its first open and kept until its last release:
 * the kernel refuses to mix the two on one inode.
 */
#include "fs/fs_private.h"

#include "cache/store.h"
#include "cluster/cluster.h"
#include "fs/ahead.h"
#include "fs/early.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PUSH_MAX_BYTES DCTF_EARLY_BYTES

struct dctf_file {
    struct dctf_inode *inode;   /* ref held */
    struct dctf_source *source; /* ref held */
    unsigned opens;             /* guarded by files_lock */
    pthread_mutex_t lock;
    bool decided;   /* guarded by lock */
    int backing_id; /* guarded by lock until decided; > 0: served by passthrough */
};

enum dctf_err dctf_inode_version(
    struct dctf_fs *fs, const struct dctf_inode *inode, struct dctf_version **out)
{
    char key[DCTF_KEY_MAX + 1];
    enum dctf_err err = dctf_inode_path(inode, key);

    *out = NULL;
    if (err)
        return err;
    return dctf_version_new(fs->dataset, key, dctf_inode_etag(inode), inode->size, fs->feature_by, out);
}

static void file_free(struct dctf_fs *fs, struct dctf_file *file)
{
    if (file->backing_id > 0) {
        dctf_passthrough_close(fs->passthrough, file->backing_id);
        dctf_shard_unpin(dctf_source_shard(file->source));
    }
    dctf_engine_put(fs->engine, file->source);
    dctf_inodes_put(fs->inodes, file->inode);
    pthread_mutex_destroy(&file->lock);
    free(file);
}

/* The file of an inode with one more open. */
static struct dctf_file *file_attach(
    struct dctf_fs *fs, struct dctf_inode *inode, struct dctf_version *version)
{
    struct dctf_file *fresh = calloc(1, sizeof(*fresh));
    struct dctf_file *file;

    if (!fresh)
        return NULL;
    if (dctf_engine_get(fs->engine, version, &fresh->source)) {
        free(fresh);
        return NULL;
    }
    pthread_mutex_init(&fresh->lock, NULL);
    fresh->inode = dctf_inodes_get(fs->inodes, inode->ino);
    pthread_mutex_lock(&fs->files_lock);
    file = inode->file;
    if (!file)
        file = inode->file = fresh;
    file->opens++;
    pthread_mutex_unlock(&fs->files_lock);
    if (file != fresh)
        file_free(fs, fresh);
    return file;
}

static void file_detach(struct dctf_fs *fs, struct dctf_file *file)
{
    bool last;

    pthread_mutex_lock(&fs->files_lock);
    assert(file->opens > 0);
    last = --file->opens == 0;
    if (last)
        file->inode->file = NULL;
    pthread_mutex_unlock(&fs->files_lock);
    if (last)
        file_free(fs, file);
}

/* True when the pages of a file of this size travel with the answer to its open. */
static bool is_pushed(const struct dctf_inode *inode)
{
    return inode->size > 0 && inode->size <= PUSH_MAX_BYTES &&
           !atomic_load_explicit(&inode->pages_pushed, memory_order_relaxed);
}

/* Give the kernel the pages of a small shard with the answer to its open: a round trip less than
 * letting it ask. Not when the shard is being read early: then its pages are allotted by the reader
 * while the disk is busy. Safe here and nowhere else: with the file's lock held its first open has not
 * been answered, so nobody can hold a page of it locked while waiting for this daemon. */
static void push_pages_locked(struct dctf_fs *fs, struct dctf_file *file)
{
    struct dctf_shard *shard = dctf_source_shard(file->source);
    size_t size = (size_t)file->inode->size;
    struct fuse_bufvec pages = FUSE_BUFVEC_INIT(size);
    uint32_t missing;

    if (!is_pushed(file->inode) || !dctf_shard_is_complete(shard) ||
        dctf_early_has(fs->early, &dctf_shard_version(shard)->id))
        return;
    pages.buf[0].mem = dctf_engine_scratch(fs->engine);
    if (!pages.buf[0].mem || dctf_shard_read(shard, 0, size, pages.buf[0].mem, &missing))
        return;
    if (fuse_lowlevel_notify_store(fs->session, file->inode->ino, 0, &pages, 0))
        return;
    atomic_store_explicit(&file->inode->pages_pushed, true, memory_order_relaxed);
    dctf_metric_add(fs->metrics, DCTF_METRIC_READ_BYTES_WARM, (int64_t)size);
}

static int file_backing(struct dctf_fs *fs, struct dctf_file *file)
{
    int backing_id;

    pthread_mutex_lock(&file->lock);
    if (!file->decided) {
        struct dctf_shard *shard = dctf_source_shard(file->source);
        int fd = dctf_passthrough_active(fs->passthrough) ? dctf_shard_pin(shard) : -1;

        if (fd >= 0) {
            file->backing_id = dctf_passthrough_open(fs->passthrough, fd);
            if (file->backing_id <= 0)
                dctf_shard_unpin(shard);
        }
        if (file->backing_id <= 0)
            push_pages_locked(fs, file);
        file->decided = true;
    }
    backing_id = file->backing_id;
    pthread_mutex_unlock(&file->lock);
    return backing_id;
}

static void handle_unref(struct dctf_handle *handle)
{
    if (atomic_fetch_sub_explicit(&handle->refs, 1, memory_order_acq_rel) != 1)
        return;
    dctf_stream_fini(&handle->stream);
    dctf_engine_put(handle->fs->engine, handle->source);
    free(handle);
}

/* The kernel will not use the handle any more. */
static void handle_close(struct dctf_handle *handle)
{
    pthread_mutex_lock(&handle->fs->files_lock);
    dctf_list_remove(&handle->node);
    pthread_mutex_unlock(&handle->fs->files_lock);
    dctf_metric_add(handle->fs->metrics, DCTF_METRIC_HANDLES, -1);
    file_detach(handle->fs, handle->file);
    handle->file = NULL;
    handle_unref(handle);
}

static enum dctf_err handle_new(struct dctf_fs *fs, struct dctf_inode *inode, struct dctf_handle **out)
{
    struct dctf_version *version;
    struct dctf_handle *handle = NULL;
    enum dctf_err err = dctf_inode_version(fs, inode, &version);

    *out = NULL;
    if (err)
        return err;
    handle = calloc(1, sizeof(*handle));
    if (!handle) {
        err = DCTF_ERR_NO_MEMORY;
        goto out;
    }
    atomic_init(&handle->refs, 1);
    handle->fs = fs;
    err = dctf_engine_get(fs->engine, version, &handle->source);
    if (err)
        goto out;
    handle->file = file_attach(fs, inode, version);
    if (!handle->file) {
        dctf_engine_put(fs->engine, handle->source);
        err = DCTF_ERR_NO_MEMORY;
        goto out;
    }
    dctf_stream_init(&handle->stream, handle->source);
    pthread_mutex_lock(&fs->files_lock);
    dctf_list_push_back(&fs->file_handles, &handle->node);
    pthread_mutex_unlock(&fs->files_lock);
    dctf_metric_add(fs->metrics, DCTF_METRIC_HANDLES, 1);
    *out = handle;
    handle = NULL;
out:
    free(handle);
    dctf_version_unref(version);
    return err;
}

static void count_open(struct dctf_fs *fs, struct dctf_shard *shard, bool passed)
{
    static const enum dctf_metric by_tier[] = {
        [DCTF_TIER_COLD] = DCTF_METRIC_OPENS_COLD,
        [DCTF_TIER_WARM] = DCTF_METRIC_OPENS_WARM,
        [DCTF_TIER_HOT] = DCTF_METRIC_OPENS_WARM, /* hot, but served by the daemon */
    };
    bool complete = dctf_shard_is_complete(shard);

    dctf_metric_add(fs->metrics, passed ? DCTF_METRIC_OPENS_HOT : by_tier[dctf_shard_tier(shard)], 1);
    dctf_metric_add(fs->metrics, complete ? DCTF_METRIC_CACHE_SHARD_HITS : DCTF_METRIC_CACHE_SHARD_MISSES, 1);
}

/* What a reader got of a shard, for the cluster. Of one that was whole when it was opened, the kernel may
 * answer any part by itself, from the backing file or from pages it kept: each open counts as all of it. Of
 * others what this daemon delivers is counted. */
static void count_delivered(struct dctf_fs *fs, const struct dctf_handle *handle, size_t bytes)
{
    if (fs->cluster && !handle->counted_whole)
        dctf_cluster_count_read(fs->cluster, dctf_shard_version(dctf_source_shard(handle->source)), bytes);
}

static bool is_ahead_paused(const struct dctf_fs *fs)
{
    return fs->cluster && dctf_cluster_is_degraded(fs->cluster);
}

/* Next shards of the directory, once the reader has its answer. */
static void tell_ahead(struct dctf_fs *fs, const char *key, bool complete)
{
    char dir[DCTF_KEY_MAX + 1];
    const char *slash = strrchr(key, '/');
    size_t dir_len = slash ? (size_t)(slash - key) : 0;

    memcpy(dir, key, dir_len);
    dir[dir_len] = '\0';
    dctf_ahead_opened(fs->ahead, dir, slash ? slash + 1 : key, complete);
}

static void open_answer(
    struct dctf_fs *fs, fuse_req_t req, struct dctf_handle *handle, struct fuse_file_info *fi)
{
    struct dctf_shard *shard = dctf_source_shard(handle->source);
    struct dctf_version *version = dctf_version_ref(dctf_shard_version(shard));
    int backing_id = file_backing(fs, handle->file);
    bool complete = dctf_shard_is_complete(shard);
    int sent;

    count_open(fs, shard, backing_id > 0);
    handle->counted_whole = complete;
    if (fs->cluster && complete)
        dctf_cluster_count_read(fs->cluster, version, version->size);
    fi->fh = (uint64_t)(uintptr_t)handle;
    fi->noflush = 1;
    if (backing_id > 0) {
        sent = dctf_passthrough_reply_open(fs->passthrough, req, fi, backing_id);
    } else {
        fi->keep_cache = 1; /* an inode is one version: its pages are never stale */
        sent = fuse_reply_open(req, fi);
    }
    /* The kernel may have released the handle by now. */
    if (sent == -ENOENT) /* interrupted: the kernel will not release it */
        handle_close(handle);
    if (!is_ahead_paused(fs))
        tell_ahead(fs, version->key, complete);
    dctf_version_unref(version);
}

void dctf_file_open(struct dctf_fs *fs, fuse_req_t req, struct dctf_inode *inode, struct fuse_file_info *fi)
{
    struct dctf_handle *handle;
    enum dctf_err err;

    dctf_early_opened(fs->early, inode->ino);
    err = handle_new(fs, inode, &handle);
    if (err) {
        dctf_metric_error(fs->metrics, err);
        fuse_reply_err(req, dctf_err_errno(err));
        return;
    }
    dctf_shard_touch(dctf_source_shard(handle->source));
    open_answer(fs, req, handle, fi);
}

void dctf_file_release(struct dctf_fs *fs, fuse_req_t req, struct fuse_file_info *fi)
{
    (void)fs;
    handle_close((struct dctf_handle *)(uintptr_t)fi->fh);
    fuse_reply_err(req, 0);
}

void dctf_files_close_all(struct dctf_fs *fs)
{
    while (!dctf_list_empty(&fs->file_handles))
        handle_close(dctf_list_entry(fs->file_handles.next, struct dctf_handle, node));
}

/* A read that had to wait. */
struct waiting_read {
    struct dctf_read read;
    struct dctf_handle *handle; /* ref held */
    fuse_req_t req;
    bool armed;
};

static void read_interrupted(fuse_req_t req, void *data)
{
    struct waiting_read *waiting = data;

    (void)req;
    dctf_engine_interrupt(waiting->handle->fs->engine, &waiting->read);
}

static void read_parking(struct dctf_read *read)
{
    struct waiting_read *waiting = read->ctx;

    waiting->armed = true;
    fuse_req_interrupt_func(waiting->req, read_interrupted, waiting);
}

static void read_done(struct dctf_read *read, enum dctf_err err, const struct iovec *pieces, int count)
{
    struct waiting_read *waiting = read->ctx;

    if (waiting->armed) /* waits for an interrupt handler that runs right now */
        fuse_req_interrupt_func(waiting->req, NULL, NULL);
    if (err)
        fuse_reply_err(waiting->req, dctf_err_errno(err));
    else
        fuse_reply_iov(waiting->req, pieces, count);
    if (!err)
        count_delivered(waiting->handle->fs, waiting->handle, read->len);
    handle_unref(waiting->handle);
    free(waiting);
}

static struct waiting_read *waiting_new(
    fuse_req_t req, struct dctf_handle *handle, uint64_t offset, size_t size)
{
    struct waiting_read *waiting = calloc(1, sizeof(*waiting));

    if (!waiting)
        return NULL;
    atomic_fetch_add_explicit(&handle->refs, 1, memory_order_relaxed);
    waiting->handle = handle;
    waiting->req = req;
    waiting->read = (struct dctf_read){
        .stream = &handle->stream,
        .offset = offset,
        .len = size,
        .parking = read_parking,
        .done = read_done,
        .ctx = waiting,
    };
    return waiting;
}

static void read_slowly(
    struct dctf_fs *fs, fuse_req_t req, struct dctf_handle *handle, uint64_t offset, size_t size)
{
    struct waiting_read *waiting = waiting_new(req, handle, offset, size);

    if (waiting)
        dctf_engine_read(fs->engine, &waiting->read);
    else
        fuse_reply_err(req, ENOMEM);
}

/* Early reads ----------------------------------------------------------------------- */

static bool read_whole(struct dctf_fs *fs, struct dctf_version *version, void *buf)
{
    struct dctf_shard *shard;
    uint32_t missing;
    bool done;

    if (dctf_shard_get(fs->store, version, &shard))
        return false;
    done = dctf_shard_is_complete(shard) && !dctf_shard_read(shard, 0, (size_t)version->size, buf, &missing);
    dctf_shard_put(shard);
    return done;
}

/* Answer a read from the shard's bytes, and give them up once the last was read. What was read in one go,
 * the kernel keeps. */
static void answer_early(struct dctf_fs *fs, fuse_req_t req, struct dctf_handle *handle, uint64_t offset,
    size_t size, const char *bytes)
{
    uint64_t shard_size = dctf_shard_version(dctf_source_shard(handle->source))->size;

    if (size == shard_size)
        atomic_store_explicit(&handle->file->inode->pages_pushed, true, memory_order_relaxed);
    dctf_metric_add(fs->metrics, DCTF_METRIC_READ_BYTES_WARM, (int64_t)size);
    fuse_reply_buf(req, bytes + offset, size);
    dctf_early_release(fs->early, offset + size < shard_size);
    count_delivered(fs, handle, size);
}

/* Read the shard of `inode` before the read that is on its way, and answer that if it comes
 * meanwhile. */
static void read_early(struct dctf_fs *fs, struct dctf_inode *inode)
{
    struct waiting_read *waiting;
    struct dctf_version *version;
    void *buf;
    bool done;

    if (!is_pushed(inode) || dctf_inode_version(fs, inode, &version))
        return;
    buf = dctf_early_claim(fs->early, &version->id);
    if (buf) {
        done = read_whole(fs, version, buf);
        waiting = dctf_early_done(fs->early, done);
        if (waiting && done) {
            answer_early(fs, waiting->req, waiting->handle, waiting->read.offset, waiting->read.len, buf);
            handle_unref(waiting->handle);
            free(waiting);
        } else if (waiting) {
            dctf_engine_read(fs->engine, &waiting->read);
        }
    }
    dctf_version_unref(version);
}

void dctf_file_looked_up(struct dctf_fs *fs, uint64_t ino)
{
    struct dctf_inode *inode;

    if (!dctf_early_looked_up(fs->early, ino))
        return;
    inode = dctf_inodes_get(fs->inodes, ino);
    if (inode && !inode->is_dir)
        read_early(fs, inode);
    dctf_inodes_put(fs->inodes, inode);
}

/* True when the read is answered, or will be by the thread that reads the shard early. */
static bool take_early(
    struct dctf_fs *fs, fuse_req_t req, struct dctf_handle *handle, uint64_t offset, size_t size)
{
    const struct dctf_id *id = &dctf_shard_version(dctf_source_shard(handle->source))->id;
    struct waiting_read *waiting;
    const void *bytes;

    if (!dctf_early_has(fs->early, id))
        return false;
    waiting = waiting_new(req, handle, offset, size);
    if (!waiting)
        return false;
    switch (dctf_early_take(fs->early, id, waiting, &bytes)) {
    case DCTF_EARLY_PARKED:
        return true;
    case DCTF_EARLY_TAKEN:
        answer_early(fs, req, handle, offset, size, bytes);
        break;
    case DCTF_EARLY_NONE:
        bytes = NULL;
        break;
    }
    handle_unref(handle);
    free(waiting);
    return bytes;
}

static void read_from_engine(
    struct dctf_fs *fs, fuse_req_t req, struct dctf_handle *handle, uint64_t offset, size_t size, void *buf)
{
    if (dctf_engine_read_now(fs->engine, &handle->stream, offset, size, buf)) {
        read_slowly(fs, req, handle, offset, size);
        return;
    }
    fuse_reply_buf(req, buf, size);
    count_delivered(fs, handle, size);
}

void dctf_file_read(struct dctf_fs *fs, fuse_req_t req, size_t size, off_t offset, struct fuse_file_info *fi)
{
    struct dctf_handle *handle = (struct dctf_handle *)(uintptr_t)fi->fh;
    uint64_t shard_size = dctf_shard_version(dctf_source_shard(handle->source))->size;
    uint64_t at = (uint64_t)offset;
    void *buf;

    dctf_metric_add(fs->metrics, DCTF_METRIC_READS, 1);
    if (offset < 0 || at >= shard_size || size == 0) {
        fuse_reply_buf(req, NULL, 0);
        return;
    }
    if (size > shard_size - at)
        size = (size_t)(shard_size - at);
    if (size > DCTF_READ_MAX)
        size = DCTF_READ_MAX; /* max_read says so too */
    buf = dctf_engine_scratch(fs->engine);
    if (!buf) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    /* The kernel may release the handle as soon as it has its answer. */
    atomic_fetch_add_explicit(&handle->refs, 1, memory_order_relaxed);
    atomic_store_explicit(&handle->file->inode->pages_pushed, false, memory_order_relaxed);
    dctf_stream_note(&handle->stream, at, size);
    if (shard_size > DCTF_EARLY_BYTES || !take_early(fs, req, handle, at, size))
        read_from_engine(fs, req, handle, at, size, buf);
    if (!is_ahead_paused(fs))
        dctf_engine_ahead(fs->engine, &handle->stream);
    handle_unref(handle);
}
