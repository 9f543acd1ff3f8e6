/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel's requests. Each is answered at once or parked by file.c and dir.c; no thread
 * of the session waits for the source.
 */
#include "fs/fs_private.h"

#include "base/log.h"
#include "base/pool.h"
#include "cache/store.h"

#include <errno.h>
#include <malloc.h>
#include <string.h>

static struct dctf_fs *fs_of(fuse_req_t req)
{
    return fuse_req_userdata(req);
}

/* The inode of a request, with a reference; answers ESTALE when it is not known. */
static struct dctf_inode *inode_of(fuse_req_t req, fuse_ino_t ino)
{
    struct dctf_inode *inode = dctf_inodes_get(fs_of(req)->inodes, ino);

    if (!inode)
        fuse_reply_err(req, ESTALE);
    return inode;
}

static void op_init(void *userdata, struct fuse_conn_info *conn)
{
    struct dctf_fs *fs = userdata;

    conn->max_read = DCTF_READ_MAX;
    conn->max_readahead = 32 * 1024 * 1024;
    conn->max_write = DCTF_READ_MAX; /* libfuse derives the pages of any request from it, reads too */
    /* The kernel's read-ahead counts as background: what waits for the source must not use
     * up the slots that reads of cached shards need, too. */
    conn->max_background = UINT16_MAX;
    conn->congestion_threshold = UINT16_MAX;
    /* Asynchronous direct reads are waited for by the kernel without regard to signals. */
    conn->want &= ~(unsigned)(FUSE_CAP_AUTO_INVAL_DATA | FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE |
                              FUSE_CAP_SPLICE_MOVE | FUSE_CAP_ASYNC_DIO);
    conn->want |= conn->capable & (FUSE_CAP_ASYNC_READ | FUSE_CAP_PARALLEL_DIROPS | FUSE_CAP_READDIRPLUS |
                                      FUSE_CAP_READDIRPLUS_AUTO);
    dctf_passthrough_init(fs->passthrough, conn);
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct dctf_fs *fs = fs_of(req);
    struct dctf_inode *inode;

    if (dctf_virtual_is(parent) || (parent == DCTF_INO_ROOT && !strcmp(name, ".dctf"))) {
        dctf_virtual_lookup(fs, req, parent, name);
        return;
    }
    inode = inode_of(req, parent);
    if (!inode)
        return;
    dctf_dir_lookup(fs, req, inode, name);
    dctf_inodes_put(fs->inodes, inode);
}

/* The allocator keeps what `find` over a million files once needed, unless told not to. */
static void trim_memory(void *ctx)
{
    (void)ctx;
    malloc_trim(0);
}

static void after_forget(struct dctf_fs *fs)
{
    if (dctf_inodes_shrunk(fs->inodes) && dctf_pool_submit(fs->ahead_pool, trim_memory, NULL))
        dctf_log(DCTF_LOG_DEBUG, "fs", "memory not trimmed: busy");
}

static void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t count)
{
    dctf_inodes_forget(fs_of(req)->inodes, ino, count);
    after_forget(fs_of(req));
    fuse_reply_none(req);
}

static void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
    for (size_t i = 0; i < count; i++)
        dctf_inodes_forget(fs_of(req)->inodes, forgets[i].ino, forgets[i].nlookup);
    after_forget(fs_of(req));
    fuse_reply_none(req);
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct dctf_fs *fs = fs_of(req);
    struct dctf_inode *inode;
    struct stat st;

    (void)fi;
    if (dctf_virtual_is(ino)) {
        dctf_virtual_getattr(fs, req, ino);
        return;
    }
    inode = inode_of(req, ino);
    if (!inode)
        return;
    dctf_inode_stat(fs, inode, &st);
    dctf_inodes_put(fs->inodes, inode);
    fuse_reply_attr(req, &st, 86400.0);
}

static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct dctf_fs *fs = fs_of(req);
    struct dctf_inode *inode;

    if ((fi->flags & O_ACCMODE) != O_RDONLY) {
        fuse_reply_err(req, EROFS);
        return;
    }
    if (dctf_virtual_is(ino)) {
        dctf_virtual_open(fs, req, ino, fi);
        return;
    }
    inode = inode_of(req, ino);
    if (!inode)
        return;
    if (inode->is_dir)
        fuse_reply_err(req, EISDIR);
    else
        dctf_file_open(fs, req, inode, fi);
    dctf_inodes_put(fs->inodes, inode);
}

static void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *fi)
{
    if (dctf_virtual_is(ino))
        dctf_virtual_read(req, size, offset, fi);
    else
        dctf_file_read(fs_of(req), req, size, offset, fi);
}

static void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    if (dctf_virtual_is(ino))
        dctf_virtual_release(fs_of(req), req, fi);
    else
        dctf_file_release(fs_of(req), req, fi);
}

static void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct dctf_fs *fs = fs_of(req);
    struct dctf_inode *inode;

    if (dctf_virtual_is(ino)) {
        fuse_reply_open(req, fi);
        return;
    }
    inode = inode_of(req, ino);
    if (!inode)
        return;
    dctf_dir_open(fs, req, inode, fi);
    dctf_inodes_put(fs->inodes, inode);
}

static void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *fi)
{
    if (dctf_virtual_is(ino))
        dctf_virtual_readdir(fs_of(req), req, ino, size, offset, false);
    else
        dctf_dir_read(fs_of(req), req, size, offset, fi, false);
}

static void op_readdirplus(
    fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *fi)
{
    if (dctf_virtual_is(ino))
        dctf_virtual_readdir(fs_of(req), req, ino, size, offset, true);
    else
        dctf_dir_read(fs_of(req), req, size, offset, fi, true);
}

static void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    if (dctf_virtual_is(ino))
        fuse_reply_err(req, 0);
    else
        dctf_dir_release(fs_of(req), req, fi);
}

/* The cache as a disk: its cap, and what is left of it. Never touches the source. */
static void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
    struct dctf_fs *fs = fs_of(req);
    struct dctf_store_stats stats;
    struct statvfs st = {0};
    uint64_t used;

    (void)ino;
    dctf_store_stats(fs->store, &stats);
    used = stats.file_bytes + stats.index_bytes;
    if (used > stats.limit_bytes)
        used = stats.limit_bytes;
    st.f_bsize = st.f_frsize = 4096;
    st.f_blocks = stats.limit_bytes / 4096;
    st.f_bfree = st.f_bavail = (stats.limit_bytes - used) / 4096;
    st.f_namemax = DCTF_NAME_MAX;
    st.f_flag = ST_RDONLY;
    fuse_reply_statfs(req, &st);
}

static void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
    struct dctf_fs *fs = fs_of(req);
    struct dctf_inode *inode;

    if (strncmp(name, "user.", 5) != 0) {
        /* For labels and ACLs: `ls -l` then stops asking for every file. */
        fuse_reply_err(req, EOPNOTSUPP);
        return;
    }
    if (dctf_virtual_is(ino) || strncmp(name, "user.dctf.", 10) != 0) {
        fuse_reply_err(req, ENODATA);
        return;
    }
    inode = inode_of(req, ino);
    if (!inode)
        return;
    dctf_xattr_get(fs, req, inode, name, size);
    dctf_inodes_put(fs->inodes, inode);
}

static void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
    struct dctf_fs *fs = fs_of(req);
    struct dctf_inode *inode;

    if (dctf_virtual_is(ino)) {
        fuse_reply_xattr(req, 0);
        return;
    }
    inode = inode_of(req, ino);
    if (!inode)
        return;
    dctf_xattr_list(fs, req, inode, size);
    dctf_inodes_put(fs->inodes, inode);
}

/* The mount is read-only in the kernel already; these say the same should a request that
 * changes something ever arrive. */
static void op_setattr(
    fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set, struct fuse_file_info *fi)
{
    (void)ino;
    (void)attr;
    (void)to_set;
    (void)fi;
    fuse_reply_err(req, EROFS);
}

const struct fuse_lowlevel_ops dctf_fs_ops = {
    .init = op_init,
    .lookup = op_lookup,
    .forget = op_forget,
    .forget_multi = op_forget_multi,
    .getattr = op_getattr,
    .setattr = op_setattr,
    .open = op_open,
    .read = op_read,
    .release = op_release,
    .opendir = op_opendir,
    .readdir = op_readdir,
    .readdirplus = op_readdirplus,
    .releasedir = op_releasedir,
    .statfs = op_statfs,
    .getxattr = op_getxattr,
    .listxattr = op_listxattr,
};
