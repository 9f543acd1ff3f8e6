/* SPDX-License-Identifier: Apache-2.0
 *
 * A thread that runs small jobs for those who may not act where they stand (an
 * interrupt handler holds a lock of libfuse and must not reply).
 *
 * Threads:   any thread may submit; never blocks, never fails.
 * Ownership: a job is embedded in its owner, which lives until run() began.
 */
#ifndef DCTF_FS_DEFERRED_H
#define DCTF_FS_DEFERRED_H

#include "base/err.h"
#include "base/list.h"

struct dctf_deferred;

struct dctf_deferred_job {
    struct dctf_list node;
    void (*run)(void *ctx);
    void *ctx;
};

DCTF_MUST_CHECK
enum dctf_err dctf_deferred_new(struct dctf_deferred **out);
/* Run what waits, join the thread. */
void dctf_deferred_free(struct dctf_deferred *deferred);
void dctf_deferred_submit(
    struct dctf_deferred *deferred, struct dctf_deferred_job *job, void (*run)(void *), void *ctx);

#endif
