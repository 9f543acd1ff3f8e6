/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to fs/: what the operations, the control files and the control socket share.
 *
 * Threads:   everything here is set up before the session loop and only read after,
 *            unless it says otherwise.
 */
#ifndef DCTF_FS_FS_PRIVATE_H
#define DCTF_FS_FS_PRIVATE_H

#include "base/list.h"
#include "base/metric.h"
#include "base/str.h"
#include "base/version.h"
#include "fs/engine.h"
#include "fs/fs.h"
#include "fs/fuse_api.h"
#include "fs/inode.h"
#include "fs/ns.h"
#include "fs/passthrough.h"

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>

struct dctf_ahead;
struct dctf_control;
struct dctf_deferred;
struct dctf_early;
struct dctf_loop;
struct dctf_network;
struct dctf_notify;

/* fs/dir_stale.c: when a directory's listing was forgotten last because it named a version that is gone. */
#define DCTF_STALE_PAUSES 256u
struct dctf_stale_pause {
    uint64_t hash; /* of the directory */
    uint64_t at_ms;
};

struct dctf_fs {
    const struct dctf_config *config;
    char *source;
    char *mountpoint;
    char *cache_dir;
    char node[256];
    uint64_t dataset;
    enum dctf_feature_by feature_by;
    uint64_t started_ms; /* wall clock */
    uint64_t memory_bytes;

    struct dctf_metrics *metrics;
    struct dctf_timers *timers;
    struct dctf_budget *budget;
    struct dctf_pool *writers;
    struct dctf_pool *ahead_pool;
    struct dctf_deferred *deferred;
    struct dctf_origin *origin;   /* what the engine asks: the cluster's, or the source itself */
    struct dctf_origin *upstream; /* the source, when `origin` is the cluster's */
    struct dctf_cluster *cluster; /* NULL: none; ended by the close of `origin` */
    struct dctf_network *network; /* NULL without a cluster */
    struct dctf_fetch *fetch;
    struct dctf_store *store;
    struct dctf_inodes *inodes;
    struct dctf_ns *ns;
    struct dctf_engine *engine;
    struct dctf_ahead *ahead;
    struct dctf_early *early;
    struct dctf_notify *notify;
    struct dctf_passthrough *passthrough;
    struct dctf_control *control;
    struct fuse_session *session;
    struct dctf_loop *loop;
    bool mounted;
    unsigned dev_major, dev_minor;
    unsigned read_ahead_kb;

    pthread_mutex_t stale_lock;                              /* a leaf */
    struct dctf_stale_pause stale_pauses[DCTF_STALE_PAUSES]; /* guarded by stale_lock */

    pthread_mutex_t files_lock; /* guards inode->file, dctf_file.opens and the lists of handles */
    struct dctf_list file_handles;
    struct dctf_list dir_handles;
    struct dctf_list contents; /* of virtual files that are open */

    /* Leaving; guarded by stop_lock. */
    pthread_mutex_t stop_lock;
    pthread_cond_t stop_cond;
    pthread_t stop_thread;
    unsigned stops; /* calls of dctf_fs_stop() */
    bool stop_started;
    bool ended; /* the session's loop is over */
};

/* fs/identity.c: source, mount point, dataset, node, memory and place of the cache. */
DCTF_MUST_CHECK
enum dctf_err dctf_fs_identify(struct dctf_fs *fs, const struct dctf_fs_config *config);

/* fs/leave.c: end all that waits in the kernel for this daemon, once nobody answers it any more. Best
 * effort: needs the control filesystem in /sys/fs/fuse/connections. */
void dctf_fs_abort(struct dctf_fs *fs);
/* The mount ends: what takes long should break off. */
bool dctf_fs_is_leaving(struct dctf_fs *fs);

/* fs/ops.c */
extern const struct fuse_lowlevel_ops dctf_fs_ops;

/* fs/file.c: open files. A handle is what fi->fh holds. */
struct dctf_file;
struct dctf_handle {
    struct dctf_list node; /* in fs->file_handles; guarded by files_lock */
    atomic_uint refs;
    struct dctf_fs *fs;
    struct dctf_file *file;
    struct dctf_source *source; /* ref held */
    struct dctf_stream stream;
    bool counted_whole; /* as read, for the cluster; set before the open is answered */
};
void dctf_file_open(struct dctf_fs *fs, fuse_req_t req, struct dctf_inode *inode, struct fuse_file_info *fi);
/* After the answer to a look-up of a file, on a thread that may read from local disk. */
void dctf_file_looked_up(struct dctf_fs *fs, uint64_t ino);
void dctf_file_read(struct dctf_fs *fs, fuse_req_t req, size_t size, off_t offset, struct fuse_file_info *fi);
void dctf_file_release(struct dctf_fs *fs, fuse_req_t req, struct fuse_file_info *fi);
/* Close what is still open; the session is over. */
void dctf_files_close_all(struct dctf_fs *fs);
/* The version an inode stands for. */
DCTF_MUST_CHECK
enum dctf_err dctf_inode_version(
    struct dctf_fs *fs, const struct dctf_inode *inode, struct dctf_version **out);

/* fs/dir.c: look-ups and directory handles. */
void dctf_dir_lookup(struct dctf_fs *fs, fuse_req_t req, struct dctf_inode *parent, const char *name);
void dctf_dir_open(struct dctf_fs *fs, fuse_req_t req, struct dctf_inode *inode, struct fuse_file_info *fi);
void dctf_dir_read(
    struct dctf_fs *fs, fuse_req_t req, size_t size, off_t offset, struct fuse_file_info *fi, bool plus);
void dctf_dir_release(struct dctf_fs *fs, fuse_req_t req, struct fuse_file_info *fi);
void dctf_dirs_close_all(struct dctf_fs *fs);
void dctf_inode_stat(const struct dctf_fs *fs, const struct dctf_inode *inode, struct stat *st);
/* The source has this version no more: forget the listing that names it, and the name in the kernel. False:
 * none does. At most once in a few seconds for each directory. */
bool dctf_dir_forget_version(struct dctf_fs *fs, const char *key, const char *etag, uint64_t size);
/* A read found that out: the same, later, and the other nodes are told. Never waits. */
void dctf_dir_version_gone(struct dctf_fs *fs, struct dctf_version *version);
/* Forget listings at or below `path` and the names the kernel keeps. */
DCTF_MUST_CHECK
enum dctf_err dctf_dir_sync(struct dctf_fs *fs, const char *path, bool force, uint64_t *directories);

/* fs/virtual.c: `.dctf` and what is in it. Inode numbers below DCTF_INO_RESERVED. */
bool dctf_virtual_is(uint64_t ino);
void dctf_virtual_lookup(struct dctf_fs *fs, fuse_req_t req, uint64_t parent, const char *name);
void dctf_virtual_getattr(struct dctf_fs *fs, fuse_req_t req, uint64_t ino);
void dctf_virtual_open(struct dctf_fs *fs, fuse_req_t req, uint64_t ino, struct fuse_file_info *fi);
void dctf_virtual_read(fuse_req_t req, size_t size, off_t offset, struct fuse_file_info *fi);
void dctf_virtual_release(struct dctf_fs *fs, fuse_req_t req, struct fuse_file_info *fi);
/* Close what is still open; the session is over. */
void dctf_virtual_close_all(struct dctf_fs *fs);
void dctf_virtual_readdir(
    struct dctf_fs *fs, fuse_req_t req, uint64_t ino, size_t size, off_t offset, bool plus);

/* fs/status.c: the same facts for files and socket. Returned objects are the caller's;
 * NULL when memory is short. */
/* Set `field`, or `field`_hex for a name that is not UTF-8. */
void dctf_json_set_name(json_t *object, const char *field, const char *name);
json_t *dctf_status_json(struct dctf_fs *fs);
json_t *dctf_heat_json(struct dctf_fs *fs, size_t limit, size_t *total);
DCTF_MUST_CHECK
enum dctf_err dctf_heat_tsv(struct dctf_fs *fs, struct dctf_str *out);
DCTF_MUST_CHECK
enum dctf_err dctf_metrics_text(struct dctf_fs *fs, struct dctf_str *out);

/* fs/cluster_status.c: what is told of the cluster; without one there is nothing to tell: null, no rows. */
json_t *dctf_cluster_json(struct dctf_fs *fs);
json_t *dctf_peers_json(struct dctf_fs *fs);
DCTF_MUST_CHECK
enum dctf_err dctf_peers_tsv(struct dctf_fs *fs, struct dctf_str *out);
/* The policy table and the copies; null without a cluster. */
json_t *dctf_copies_json(struct dctf_fs *fs);
DCTF_MUST_CHECK
enum dctf_err dctf_policy_tsv(struct dctf_fs *fs, struct dctf_str *out);
/* Append dctf_network_utilization{az}, where it can be told. */
void dctf_cluster_utilization(struct dctf_fs *fs, struct dctf_str *out);
/* Bring the gauges of the cluster up to date. */
void dctf_cluster_gauges(struct dctf_fs *fs);
/* "a,b" for a shard of one extent, else "0:a,b 1:c,d", cut with " ..." where the room ends. Its length;
 * -1 without a cluster. */
int dctf_homes_text(struct dctf_fs *fs, const struct dctf_version *version, char *out, size_t cap);

/* fs/cluster_warm.c: bring the extents of a shard to their homes, waiting here; only in a cluster. `all`:
 * those of other homes too, which fetch them themselves. */
struct dctf_cluster_share {
    uint64_t bytes; /* of the extents this is about; of these: */
    uint64_t fetched_bytes;
    uint64_t unkept_bytes; /* no room */
    uint64_t away_bytes;   /* their home cannot be reached, because: */
    enum dctf_err away;
};
DCTF_MUST_CHECK
enum dctf_err dctf_cluster_share_warm(struct dctf_fs *fs, struct dctf_version *version,
    struct dctf_source *source, bool all, struct dctf_cluster_share *share);

/* fs/cluster_listings.c: answer the other nodes that ask for listings, and do what they tell. */
DCTF_MUST_CHECK
enum dctf_err dctf_share_listings(struct dctf_fs *fs);

/* fs/evict.c: drop the bytes of all shards at or below `path`. */
struct dctf_evicted {
    uint64_t shards, bytes;
    uint64_t busy; /* kept: the kernel reads them */
};
DCTF_MUST_CHECK
enum dctf_err dctf_evict(struct dctf_fs *fs, const char *path, struct dctf_evicted *out);

/* fs/xattr.c */
void dctf_xattr_get(
    struct dctf_fs *fs, fuse_req_t req, struct dctf_inode *inode, const char *name, size_t size);
void dctf_xattr_list(const struct dctf_fs *fs, fuse_req_t req, const struct dctf_inode *inode, size_t size);

/* fs/control_commands.c: one request, answered. NULL when memory is short. */
json_t *dctf_control_answer(struct dctf_fs *fs, const json_t *request);

/* fs/control.c: the socket of docs/control-protocol.md. */
DCTF_MUST_CHECK
enum dctf_err dctf_control_start(struct dctf_fs *fs, const char *socket_path, struct dctf_control **out);
void dctf_control_stop(struct dctf_control *control);

#endif
