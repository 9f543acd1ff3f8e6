/* SPDX-License-Identifier: Apache-2.0
 *
 * A directory tree as a source: the blocking half of the file origin.
 *
 * What is a key: a regular file, or a symbolic link to one whose target lies
 * beneath the root. Hidden are links to directories, links that dangle or lead out,
 * fifos, sockets and devices; directories are entered by their own name only. No
 * path is ever resolved out of the root, whatever changes in the tree meanwhile.
 *
 * Threads:   any thread. Every call may block in the kernel for as long as the
 *            filesystem below likes.
 * Ownership: requests are borrowed for the call; their done() is not called here.
 */
#ifndef DCTF_TRANSPORT_FILE_TREE_H
#define DCTF_TRANSPORT_FILE_TREE_H

#include "base/err.h"
#include "transport/origin.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

struct dctf_file_tree;

/* "mtime ns-size-inode" in hex */
#define DCTF_FILE_ETAG_BYTES 52

/* `root` is an absolute path, not touched here. `walk`: do without openat2(2), as on
 * kernels before 5.6. */
DCTF_MUST_CHECK
enum dctf_err dctf_file_tree_new(const char *root, bool walk, struct dctf_file_tree **out);
void dctf_file_tree_free(struct dctf_file_tree *tree);

/* All of these end with DCTF_ERR_CANCELLED soon after *cancelled, if the kernel lets them. */

DCTF_MUST_CHECK
enum dctf_err dctf_file_tree_list(
    struct dctf_file_tree *tree, struct dctf_origin_list *list, const atomic_bool *cancelled);
/* entry->etag points into `etag` (DCTF_FILE_ETAG_BYTES), entry->name into the key. */
DCTF_MUST_CHECK
enum dctf_err dctf_file_tree_head(
    struct dctf_file_tree *tree, const char *key, struct dctf_origin_entry *entry, char *etag);
/* The bytes are those of the version asked for, or it fails: the file is compared with
 * the etag before and after it was read. */
DCTF_MUST_CHECK
enum dctf_err dctf_file_tree_get(struct dctf_file_tree *tree, const struct dctf_origin_get *get,
    const atomic_bool *cancelled, size_t *got);
/* Can the root be listed? `detail` (256 bytes) says why not. */
DCTF_MUST_CHECK
enum dctf_err dctf_file_tree_check(struct dctf_file_tree *tree, char *detail);

#endif
