/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory budget of a mount and the transfer buffers that are charged to it.
 *
 * Threads:   any thread.
 * Ownership: dctf_budget_buf_get() lends a buffer to give back with
 *            dctf_budget_buf_put(). Buffers are page-aligned.
 */
#ifndef DCTF_BASE_BUDGET_H
#define DCTF_BASE_BUDGET_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct dctf_budget;

/* `limit_bytes` bounds the buffers lent out and kept for reuse together. */
DCTF_MUST_CHECK
enum dctf_err dctf_budget_new(uint64_t limit_bytes, struct dctf_budget **out);
void dctf_budget_free(struct dctf_budget *budget); /* all buffers are back */

/* A buffer of at least `bytes` (rounded up to a power of two ≥ 64 KiB). NULL
 * when the budget has no room: the caller frees something or waits. */
void *dctf_budget_buf_get(struct dctf_budget *budget, size_t bytes);
void dctf_budget_buf_put(struct dctf_budget *budget, void *buf, size_t bytes); /* the bytes asked for */

/* Give buffers kept for reuse back to the system. */
void dctf_budget_trim(struct dctf_budget *budget);

uint64_t dctf_budget_used(struct dctf_budget *budget); /* lent out */
uint64_t dctf_budget_limit(const struct dctf_budget *budget);

/* Bytes this process may use: the smaller of physical memory and the cgroup's
 * memory.max (v2, every ancestor) or memory.limit_in_bytes (v1). `root` is "/"
 * but in tests. */
uint64_t dctf_budget_system_limit(const char *root);

#endif
