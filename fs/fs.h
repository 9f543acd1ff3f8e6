/* SPDX-License-Identifier: Apache-2.0
 *
 * The filesystem: origin, tiers, namespace and read engine behind one mount.
 *
 * Threads:   dctf_fs_new() starts threads, so it is called after daemonising.
 *            One thread calls new, mount, serve and free, in this order;
 *            dctf_fs_stop() may be called from any thread.
 * Ownership: dctf_fs_new() gives an object to pass to dctf_fs_free().
 */
#ifndef DCTF_FS_FS_H
#define DCTF_FS_FS_H

#include "base/config.h"
#include "base/err.h"
#include "transport/origin.h"

#include <stdint.h>

struct dctf_fs;

struct dctf_fs_config {
    const struct dctf_config *config; /* borrowed for the life of the object */
    const char *source;               /* "file:///dir" */
    const char *mountpoint;           /* absolute, exists */
    const struct dctf_origin_scheme *schemes;
};

/* Before the process has threads: DCTF_ERR_CACHE_CORRUPT and words when opening the cache would end it. */
DCTF_MUST_CHECK
enum dctf_err dctf_fs_check_cache(const struct dctf_fs_config *config, char *detail);
/* Open source and cache and prepare the session. On failure *out is NULL and
 * `detail` (≥ 256 bytes) says in words what is wrong. */
DCTF_MUST_CHECK
enum dctf_err dctf_fs_new(const struct dctf_fs_config *config, char *detail, struct dctf_fs **out);
/* Mount; the kernel's requests are answered once dctf_fs_serve() runs. */
DCTF_MUST_CHECK
enum dctf_err dctf_fs_mount(struct dctf_fs *fs, char *detail);
/* Answer requests until the filesystem is unmounted or dctf_fs_stop() was called. */
DCTF_MUST_CHECK
enum dctf_err dctf_fs_serve(struct dctf_fs *fs);
/* Begin to leave: unmount, waiting up to unmount_timeout for open files, then
 * detach; a second call detaches at once. Returns at once. */
void dctf_fs_stop(struct dctf_fs *fs);
void dctf_fs_free(struct dctf_fs *fs);

#endif
