/* SPDX-License-Identifier: Apache-2.0
 *
 * Inodes the kernel knows. An inode of a file is one shard *version*: an object that
 * was overwritten gets a new inode, as a rename over a file gives on a local disk.
 * So pages of two versions never meet, and the pages of an inode are never stale.
 *
 * Inode numbers are hashes (of the path for a directory, of the version for a file):
 * the same after a remount.
 *
 * Threads:   any thread; one short lock. Fields of an inode are immutable but for
 *            those marked. An inode found by dctf_inodes_get() lives until its put.
 * Ownership: the kernel's references are counted in `lookups`, ours in `refs`.
 */
#ifndef DCTF_FS_INODE_H
#define DCTF_FS_INODE_H

#include "base/err.h"
#include "cache/listing.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#define DCTF_INO_ROOT 1u
#define DCTF_INO_RESERVED 64u /* numbers below are the root's and the virtual files' */

struct dctf_file;
struct dctf_inodes;
struct dctf_metrics;

struct dctf_inode {
    uint64_t ino;
    struct dctf_inode *parent; /* ref held; NULL for the root */
    struct dctf_inode *next;   /* of the hash chain; guarded by the table's lock */
    struct dctf_file *file;    /* state of an open file; guarded by fs/file.c's lock */
    uint64_t lookups;          /* guarded by the table's lock */
    uint64_t size;
    int64_t mtime_ns;
    uint32_t refs; /* guarded by the table's lock: children, handles, callers */
    uint16_t name_len;
    bool is_dir;
    atomic_bool pages_pushed; /* the kernel was given all pages, and has not asked for one since */
    char name[];              /* name, NUL, etag, NUL */
};

static inline const char *dctf_inode_etag(const struct dctf_inode *inode)
{
    return inode->name + inode->name_len + 1;
}

DCTF_MUST_CHECK
enum dctf_err dctf_inodes_new(uint64_t dataset, struct dctf_metrics *metrics, struct dctf_inodes **out);
void dctf_inodes_free(struct dctf_inodes *inodes);

/* The inode of a number, with a reference to put; NULL when it is not known. */
struct dctf_inode *dctf_inodes_get(struct dctf_inodes *inodes, uint64_t ino);
void dctf_inodes_put(struct dctf_inodes *inodes, struct dctf_inode *inode);

/* The inode of an entry of `parent` whose path is `parent_path`, found or made, with
 * `lookups` raised by one on the kernel's behalf. The pointer is good until the
 * matching forget. */
DCTF_MUST_CHECK
enum dctf_err dctf_inodes_lookup(struct dctf_inodes *inodes, struct dctf_inode *parent,
    const char *parent_path, const struct dctf_entry *entry, struct dctf_inode **out);
/* The number such an entry has or would have, without making the inode (readdir). */
uint64_t dctf_inodes_number(
    struct dctf_inodes *inodes, const char *parent_path, const struct dctf_entry *entry);
/* The kernel gives `count` references back. */
void dctf_inodes_forget(struct dctf_inodes *inodes, uint64_t ino, uint64_t count);
/* True when many inodes were forgotten since it last said so: a time to give memory back to
 * the system. */
bool dctf_inodes_shrunk(struct dctf_inodes *inodes);
/* Visit every inode but the root, with the table's lock held: visit() must be short and
 * call nothing of this module but dctf_inode_path(). */
void dctf_inodes_each(
    struct dctf_inodes *inodes, void (*visit)(void *ctx, const struct dctf_inode *inode), void *ctx);
uint64_t dctf_inodes_count(struct dctf_inodes *inodes);

/* Path relative to the root, "" for the root; `buf` ≥ DCTF_KEY_MAX + 1 bytes. */
DCTF_MUST_CHECK
enum dctf_err dctf_inode_path(const struct dctf_inode *inode, char *buf);
/* Join a directory's path and a name; `buf` ≥ DCTF_KEY_MAX + 1 bytes. */
DCTF_MUST_CHECK
enum dctf_err dctf_path_join(const char *dir, const char *name, char *buf);
/* "" is above everything. */
bool dctf_path_at_or_below(const char *path, const char *top);

#endif
