/* SPDX-License-Identifier: Apache-2.0
 *
 * Mount points as the kernel tells of them, without ever touching a mounted
 * filesystem that may hang: /proc/self/mountinfo, /sys, umount2().
 *
 * Threads:   any thread.
 * Ownership: struct dctf_mount_info is embedded; dctf_mount_info_fini() frees it.
 */
#ifndef DCTF_FS_MOUNTPOINT_H
#define DCTF_FS_MOUNTPOINT_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

#define DCTF_FSTYPE "fuse.dctffs"

struct dctf_mount_info {
    unsigned major, minor;
    char *path; /* unescaped */
    char *fstype;
    char *source;
    char *options; /* per superblock */
};

/* The topmost mount whose mount point is exactly `path` (absolute, normalised
 * lexically). DCTF_ERR_NOT_MOUNTED when there is none. */
DCTF_MUST_CHECK
enum dctf_err dctf_mount_find(const char *path, struct dctf_mount_info *out);
/* The dctffs mount that `path` (absolute or not) lies on or below. */
DCTF_MUST_CHECK
enum dctf_err dctf_mount_find_dctffs(const char *path, struct dctf_mount_info *out);
/* Parse one line of mountinfo (fuzzed). DCTF_ERR_REQUEST_BAD on a malformed one. */
DCTF_MUST_CHECK
enum dctf_err dctf_mount_parse_line(const char *line, struct dctf_mount_info *out);
void dctf_mount_info_fini(struct dctf_mount_info *info);
/* Visit every dctffs mount until visit returns false. */
DCTF_MUST_CHECK
enum dctf_err dctf_mount_each(bool (*visit)(void *ctx, const struct dctf_mount_info *info), void *ctx);

/* Absolute path of `path`, symbolic links followed, without touching a dctffs mount: from
 * one on, and from the first component that does not exist, the rest is taken
 * lexically. Caller frees *out. */
DCTF_MUST_CHECK
enum dctf_err dctf_mountpoint_resolve(const char *path, char **out);

/* Make `path` fit to mount on: a directory with nothing mounted on it. A dead
 * dctffs mount (daemon gone: ENOTCONN) is detached first, and told in the log. A
 * live mount is DCTF_ERR_MOUNTPOINT_IN_USE. `detail` ≥ 256 bytes. */
DCTF_MUST_CHECK
enum dctf_err dctf_mountpoint_prepare(const char *path, char *detail);

/* Write the mount's read-ahead to /sys/class/bdi. DCTF_ERR_SYSTEM where not allowed. */
DCTF_MUST_CHECK
enum dctf_err dctf_mount_set_read_ahead(const struct dctf_mount_info *info, unsigned kb);
/* The kernel's read-ahead in KiB, 0 when unknown. */
unsigned dctf_mount_read_ahead(const struct dctf_mount_info *info);
/* Requests waiting in the kernel for the daemon (/sys/fs/fuse/connections), -1
 * when unknown. */
int dctf_mount_waiting(const struct dctf_mount_info *info);

/* umount2(); falls back to `fusermount3 -u` for users without the right. `lazy`
 * detaches. DCTF_ERR_MOUNTPOINT_IN_USE when busy. */
DCTF_MUST_CHECK
enum dctf_err dctf_mount_unmount(const char *path, bool lazy);

#endif
