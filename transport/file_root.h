/* SPDX-License-Identifier: Apache-2.0
 *
 * Open files beneath a root directory. No path is ever resolved out of the root,
 * whatever changes in the tree meanwhile: everything is opened without following
 * any link; a link is resolved to the path it means, and that is opened in the
 * same way, so that a link swapped in at the wrong moment makes an open fail,
 * never escape.
 *
 * Threads:   any thread; may block in the kernel.
 * Ownership: a root is embedded; its path is borrowed. Descriptors are the
 *            caller's, close-on-exec.
 */
#ifndef DCTF_TRANSPORT_FILE_ROOT_H
#define DCTF_TRANSPORT_FILE_ROOT_H

#include <stdatomic.h>
#include <stdbool.h>

struct dctf_file_root {
    const char *path; /* absolute; may lead through links */
    atomic_bool walk; /* do without openat2(2), as on kernels before 5.6 */
};

/* All return a descriptor, or -errno. `root_fd` is an O_PATH descriptor of the root. */

/* A path ("" is the root) with no link in it, else -ELOOP or -ENOTDIR. */
int dctf_file_root_open_plain(struct dctf_file_root *root, int root_fd, const char *path, int flags);
/* The same, but the last component may be a link to a regular file beneath the root. */
int dctf_file_root_open_key(struct dctf_file_root *root, int root_fd, const char *key, int flags);
/* The path, relative to the root, of what the link at `key` means, into `out` (PATH_MAX
 * bytes), and 0; -EXDEV when that is not beneath the root. */
int dctf_file_root_resolve(struct dctf_file_root *root, const char *key, char *out);

#endif
