/* SPDX-License-Identifier: Apache-2.0
 *
 * What a directory takes on disk, and whether it can take more.
 *
 * Threads:   any thread; touches the disk.
 * Ownership: none.
 */
#ifndef DCTF_CACHE_DISK_H
#define DCTF_CACHE_DISK_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct dctf_disk_usage {
    uint64_t bytes;   /* allocated to the directory and the files directly in it */
    uint64_t largest; /* of the files whose name ends as asked for; allocated bytes */
};

/* Files may come and go meanwhile: what stood when the call began is counted, whether or not
 * it has been replaced since. All 0 when `dir` cannot be listed. */
void dctf_disk_usage_of(const char *dir, const char *suffix, struct dctf_disk_usage *out);
/* See that `bytes` can be written to `dir`, by writing them to a file that is then
 * removed: free-space figures know nothing of quotas. Makes the directory (0700) when
 * missing. */
DCTF_MUST_CHECK
enum dctf_err dctf_disk_check_room(const char *dir, size_t bytes);

#endif
