/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a running daemon can be found without touching its mount: a small JSON file
 * and the control socket, both named after the mount point, in /run/dctf (root, mode
 * 0755) or $XDG_RUNTIME_DIR/dctf, else /tmp/dctf-<uid> (mode 0700).
 *
 * Threads:   any thread.
 * Ownership: strings in struct dctf_runtime are owned; dctf_runtime_fini() frees.
 */
#ifndef DCTF_FS_RUNTIME_H
#define DCTF_FS_RUNTIME_H

#include "base/err.h"

#include <stdint.h>
#include <sys/types.h>

struct dctf_config;

struct dctf_runtime {
    char *mountpoint;
    char *source;
    char *cache_dir;
    char *socket;
    char *version;
    char *options; /* `-o` text of the source's options, without secrets; NULL: none */
    pid_t pid;
    uint64_t started_ms;   /* wall clock */
    unsigned major, minor; /* device of the mount */
};

/* Path of the control socket for a mount point (absolute): caller frees. `make_dir`:
 * create the directory. DCTF_ERR_PERMISSION when it belongs to someone else. */
DCTF_MUST_CHECK
enum dctf_err dctf_runtime_socket_path(const char *mountpoint, int make_dir, char **out);
/* Write the file atomically (runtime->socket gives its place). */
DCTF_MUST_CHECK
enum dctf_err dctf_runtime_write(const struct dctf_runtime *runtime);
/* Read the file of a mount point: this user's directory, then root's.
 * DCTF_ERR_NOT_MOUNTED when there is none. The daemon may have died since: compare
 * pid and device. */
DCTF_MUST_CHECK
enum dctf_err dctf_runtime_read(const char *mountpoint, struct dctf_runtime *out);
/* Remove file and socket, unless a later daemon has put its own there. */
void dctf_runtime_remove(const struct dctf_runtime *runtime);

/* Keep others from mounting on the same mount point until dctf_runtime_unlock() or the
 * end of this process and its children. DCTF_ERR_MOUNTPOINT_IN_USE when another has the
 * lock; another error when none can be had here (*fd is -1: go on without). */
DCTF_MUST_CHECK
enum dctf_err dctf_runtime_lock(const char *mountpoint, int *fd);
/* Children that share the lock lose it too. -1 is allowed. */
void dctf_runtime_unlock(const char *mountpoint, int fd);

/* The options of a configuration that another process needs to look at the same source, as
 * `-o` text without anything secret: caller frees; NULL when there are none, or no memory. */
char *dctf_runtime_options(const struct dctf_config *config);

void dctf_runtime_fini(struct dctf_runtime *runtime);

#endif
