/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine of `dctf warm`: one thread walks the arguments, others ask the daemon to
 * fetch shard by shard. Each thread has connections of its own.
 *
 * Threads:   one thread calls start, look and finish; the rest is inside.
 * Ownership: dctf_warm_start() gives a run to pass to dctf_warm_finish().
 */
#ifndef DCTF_TOOLS_DCTF_WARM_H
#define DCTF_TOOLS_DCTF_WARM_H

#include "mount-tools/dctf_tool.h"

#include <stdbool.h>
#include <stdint.h>

struct dctf_warm;

struct dctf_warm_config {
    const struct dctf_target *targets; /* borrowed until finish */
    const char *const *names;          /* of the targets in messages; borrowed */
    size_t count;
    unsigned jobs;
    bool verify;
    const char *scope;         /* "share" or "cluster"; NULL: all of it on this node */
    uint64_t timeout_ms;       /* of connecting */
    uint64_t shard_timeout_ms; /* 0: by the size of the shard */
    int stop_fd;               /* readable: end early */
};

struct dctf_warm_counts {
    uint64_t files, bytes; /* found by the walk */
    uint64_t files_done;   /* well or not */
    uint64_t bytes_done;   /* of those, and of shards under way */
    uint64_t fetched_bytes;
    uint64_t present_bytes;              /* were here before */
    uint64_t present_files;              /* of which nothing had to be fetched */
    uint64_t unkept_files, unkept_bytes; /* read from the source, but not kept: no room */
    uint64_t away_files, away_bytes;     /* of which a home cannot be reached */
    uint64_t bad_files, bad_blocks;
    uint64_t failed; /* files and directories */
    bool walked;     /* the walk has ended: files and bytes are final */
    bool finished;   /* nothing left to do */
};

DCTF_MUST_CHECK
enum dctf_err dctf_warm_start(const struct dctf_warm_config *config, struct dctf_warm **out);
/* Wait until the run has finished, at most `wait_ms`, and tell how far it is. */
void dctf_warm_look(struct dctf_warm *warm, uint64_t wait_ms, struct dctf_warm_counts *out);
/* Ask the daemon how much of the shards under way is here by now, so that progress moves
 * within a large shard. */
void dctf_warm_probe(struct dctf_warm *warm);
/* Join the threads (the caller has made stop_fd readable, or the run has finished). */
void dctf_warm_finish(struct dctf_warm *warm, struct dctf_warm_counts *out);

#endif
