/* SPDX-License-Identifier: Apache-2.0
 *
 * Start a named helper thread that takes no signals, so that they reach the
 * thread that waits for them.
 *
 * Threads:   any thread.
 * Ownership: the caller joins (or detaches) the thread. `name` is copied.
 */
#ifndef DCTF_BASE_THREAD_H
#define DCTF_BASE_THREAD_H

#include "base/err.h"

#include <pthread.h>

/* `name` ≤ 15 bytes, longer is cut. On failure nothing runs: DCTF_ERR_SYSTEM. */
DCTF_MUST_CHECK
enum dctf_err dctf_thread_start(const char *name, void *(*run)(void *ctx), void *ctx, pthread_t *out);

/* Condition variable whose timed waits count CLOCK_MONOTONIC. */
DCTF_MUST_CHECK
enum dctf_err dctf_thread_cond_init(pthread_cond_t *cond);

#endif
