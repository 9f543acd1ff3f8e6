/* SPDX-License-Identifier: Apache-2.0
 *
 * The cache directory:
 *
 *   FORMAT              "dctffs-cache 1", then a line for humans
 *   OPENING             there while the database is being opened: how many times in a row
 *                       that was begun and not ended
 *   LOCK                flock'd while in use; names its holder
 *   db/                 the database
 *   shards/XX/<32 hex>  sparse file of one shard version; XX begins its id
 *
 * Threads:   open and close: one thread; the rest: any thread.
 * Ownership: dctf_layout_open() fills an embedded object for dctf_layout_close().
 */
#ifndef DCTF_CACHE_LAYOUT_H
#define DCTF_CACHE_LAYOUT_H

#include "base/err.h"
#include "base/version.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DCTF_LAYOUT_DETAIL_BYTES 256
#define DCTF_LAYOUT_DB "db" /* the database, in the cache directory */
#define DCTF_LAYOUT_BUCKETS 256u
#define DCTF_LAYOUT_NAME_BYTES 33u /* 32 hex digits and the NUL */

struct dctf_layout {
    char *db_dir;  /* path of the database */
    int dir_fd;    /* of the cache directory */
    int shards_fd; /* of shards/ */
    int lock_fd;
};

/* Make the directory when missing (0700), lock it and check its format.
 * DCTF_ERR_CACHE_IN_USE, _FOREIGN, _FORMAT, _IO, _NO_SPACE: `detail` (≥
 * DCTF_LAYOUT_DETAIL_BYTES, may be NULL) says what stands in the way. On failure
 * there is nothing to close. `owner` (may be NULL) is told to the next one. */
DCTF_MUST_CHECK
enum dctf_err dctf_layout_open(const char *dir, const char *owner, char *detail, struct dctf_layout *out);
void dctf_layout_close(struct dctf_layout *layout);

/* The database library may abort on damage it does not expect. Note that an open begins;
 * returns how many before it did not end. dctf_layout_end_opening() forgets them. */
unsigned dctf_layout_begin_opening(const struct dctf_layout *layout);
void dctf_layout_end_opening(const struct dctf_layout *layout);

/* Open a shard's file for reading and writing; with `create` it is made when
 * missing and given `size` bytes, all holes. DCTF_ERR_MISS when there is none. On
 * failure *fd is -1. The caller closes *fd. */
DCTF_MUST_CHECK
enum dctf_err dctf_layout_file_open(
    const struct dctf_layout *layout, const struct dctf_id *id, bool create, uint64_t size, int *fd);
/* The same file for writes past the page cache (O_DIRECT), whose addresses, offsets and lengths are multiples
 * of DCTF_DIRECT_ALIGN. -1 when the filesystem has no such thing; the caller closes it. */
#define DCTF_DIRECT_ALIGN 4096u
int dctf_layout_file_direct(const struct dctf_layout *layout, const struct dctf_id *id);
/* A file that is not there is fine. */
DCTF_MUST_CHECK
enum dctf_err dctf_layout_file_unlink(const struct dctf_layout *layout, const struct dctf_id *id);

void dctf_layout_file_name(const struct dctf_id *id, char name[DCTF_LAYOUT_NAME_BYTES]);
bool dctf_layout_file_parse(const char *name, struct dctf_id *id);

/* Call back for each file below shards/ of one bucket until it returns false. Names
 * that are no shard's have `id` NULL. */
void dctf_layout_each_file(const struct dctf_layout *layout, unsigned bucket,
    bool (*visit)(void *ctx, const struct dctf_id *id), void *ctx);

/* Bytes allocated to the directories that shard files lie in, and to the cache's own. */
uint64_t dctf_layout_dir_bytes(const struct dctf_layout *layout);
/* A new file makes one directory, or lets one grow, by at most so much. */
#define DCTF_LAYOUT_DIR_GROWTH 4096u

struct dctf_layout_space {
    uint64_t total_bytes, free_bytes;   /* of the filesystem, free for this user */
    uint64_t total_inodes, free_inodes; /* total 0: the filesystem does not say */
};

DCTF_MUST_CHECK
enum dctf_err dctf_layout_space(const struct dctf_layout *layout, struct dctf_layout_space *out);

#endif
