/* SPDX-License-Identifier: Apache-2.0
 *
 * Invalidations to the kernel, from one thread of their own: a notification may wait
 * for a lock the kernel holds while a request of that inode is being answered, so no
 * handler and no holder of a lock may send one.
 *
 * Threads:   any thread may queue; never blocks. The queue is bounded and coalesces equal
 *            entries; when it is full the oldest is dropped and counted (time-outs
 *            of entries still bound staleness).
 * Ownership: dctf_notify_new() gives an object to pass to dctf_notify_free(), which
 *            drops what is queued and joins the thread, before the session is destroyed.
 */
#ifndef DCTF_FS_NOTIFY_H
#define DCTF_FS_NOTIFY_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dctf_notify;
struct dctf_metrics;

struct dctf_notify_ops {
    /* Send one; < 0 is an errno (-ENOENT: the kernel does not know it, fine). */
    int (*inval_entry)(void *ctx, uint64_t parent, const char *name, size_t len);
    void *ctx;
};

DCTF_MUST_CHECK
enum dctf_err dctf_notify_new(const struct dctf_notify_ops *ops, size_t queue_max,
    struct dctf_metrics *metrics, struct dctf_notify **out);
void dctf_notify_free(struct dctf_notify *notify);
void dctf_notify_entry(struct dctf_notify *notify, uint64_t parent, const char *name);
/* Wait until everything queued before was sent, at most `timeout_ms`; false when it was
 * not. Never from a handler of the kernel's requests. */
bool dctf_notify_drain(struct dctf_notify *notify, uint64_t timeout_ms);

#endif
