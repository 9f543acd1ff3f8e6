/* SPDX-License-Identifier: Apache-2.0
 *
 * A pool of worker threads with one bounded first-in-first-out queue.
 *
 * Threads:   any thread may submit. Jobs run on the pool's threads, with no
 *            lock held.
 * Ownership: dctf_pool_new() gives a pool to pass to dctf_pool_free(). A job's
 *            context belongs to the job.
 */
#ifndef DCTF_BASE_POOL_H
#define DCTF_BASE_POOL_H

#include "base/err.h"

#include <stddef.h>

struct dctf_pool;

struct dctf_pool_config {
    const char *name; /* thread name, ≤ 15 bytes */
    unsigned threads; /* started at once; ≥ 1 */
    size_t queue_max; /* jobs waiting; more are refused */
};

DCTF_MUST_CHECK
enum dctf_err dctf_pool_new(const struct dctf_pool_config *config, struct dctf_pool **out);
/* Stop taking jobs, run those that wait, join the threads. */
void dctf_pool_free(struct dctf_pool *pool);

/* Queue `run(ctx)`. DCTF_ERR_NO_MEMORY when the queue is full or the pool is
 * stopping: then run is never called. */
DCTF_MUST_CHECK
enum dctf_err dctf_pool_submit(struct dctf_pool *pool, void (*run)(void *ctx), void *ctx);
/* Jobs waiting and running now. */
size_t dctf_pool_load(struct dctf_pool *pool);

#endif
