/* SPDX-License-Identifier: Apache-2.0
 *
 * A small cache of open files, least recently used out first, so that ranged
 * reads of one shard open it once.
 *
 * Threads:   any thread. Files are closed with no lock held, as that may block
 *            on a network filesystem.
 * Ownership: a handle is counted: one reference by the cache, one per get or
 *            add, given back by put. Its descriptor is closed with the last one.
 */
#ifndef DCTF_TRANSPORT_FILE_HANDLES_H
#define DCTF_TRANSPORT_FILE_HANDLES_H

#include "base/err.h"

#include <stddef.h>
#include <sys/types.h>

struct dctf_file_handles;

struct dctf_file_handle {
    int fd;
    dev_t dev; /* of the file that was opened */
    ino_t ino;
};

DCTF_MUST_CHECK
enum dctf_err dctf_file_handles_new(size_t max, struct dctf_file_handles **out);
/* Every handle must have been put back. */
void dctf_file_handles_free(struct dctf_file_handles *handles);

/* The open file of `key`, NULL when there is none. */
struct dctf_file_handle *dctf_file_handles_get(struct dctf_file_handles *handles, const char *key);
/* Keep `fd` for `key`, in place of one kept before. Takes ownership of fd, also on
 * failure. */
DCTF_MUST_CHECK
enum dctf_err dctf_file_handles_add(struct dctf_file_handles *handles, const char *key, int fd, dev_t dev,
    ino_t ino, struct dctf_file_handle **out);
/* Never hand it out again; the caller's reference stays. */
void dctf_file_handles_drop(struct dctf_file_handles *handles, struct dctf_file_handle *handle);
void dctf_file_handles_put(struct dctf_file_handles *handles, struct dctf_file_handle *handle);

#endif
