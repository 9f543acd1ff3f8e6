/* SPDX-License-Identifier: Apache-2.0
 *
 * An origin made of blocking calls: threads that run them, in two lanes, so that reads
 * that hang do not hold up listings, nor the other way round.
 *
 * A cancelled request that still runs is taken to be stuck: its thread is *lost* and may
 * be replaced, so that a lane goes on while its source holds some of it. A lost
 * thread that comes back answers and, if it is one too many, ends. fetch.h bounds how
 * many requests can be lost.
 *
 * Threads:   see origin.h. The calls run on the origin's threads, several at once.
 * Ownership: the source is the origin's from new() on, and is freed when the last thread that
 *            uses it has ended, which may be after close().
 */
#ifndef DCTF_TRANSPORT_ORIGIN_BLOCKING_H
#define DCTF_TRANSPORT_ORIGIN_BLOCKING_H

#include "base/err.h"
#include "transport/origin.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* The longest ETag of a head, with its NUL. */
#define DCTF_BLOCKING_ETAG_BYTES 160
#define DCTF_BLOCKING_DETAIL_BYTES 256

/* All of them end with DCTF_ERR_CANCELLED soon after *cancelled, if what they wait for
 * lets them. They do not call done(). */
struct dctf_blocking_ops {
    const char *scheme;
    const char *thread_name; /* ≤ 15 bytes */
    enum dctf_err (*list)(void *source, struct dctf_origin_list *list, const atomic_bool *cancelled);
    /* entry->name points into the key, entry->etag into `etag` (DCTF_BLOCKING_ETAG_BYTES). */
    enum dctf_err (*head)(void *source, const char *key, struct dctf_origin_entry *entry, char *etag,
        const atomic_bool *cancelled);
    enum dctf_err (*get)(
        void *source, const struct dctf_origin_get *get, const atomic_bool *cancelled, size_t *got);
    /* Look whether the source is well: `what` 0 is check(), other numbers are the source's own
     * and come from dctf_blocking_probe(). `detail` (256 bytes, "" before) gets words. */
    enum dctf_err (*probe)(void *source, unsigned what, char *detail);
    void (*examine)(struct dctf_origin *origin, uint64_t deadline_ms,
        void (*step)(void *ctx, const struct dctf_origin_step *step), void *ctx); /* may be NULL */
    void (*free)(void *source);
    const char *silent; /* detail of a check that takes too long: "the directory did not answer" */
};

/* At most `readers` threads for get, `listers` for the rest. `ops` is borrowed for life. On
 * failure the source stays the caller's. */
DCTF_MUST_CHECK
enum dctf_err dctf_blocking_new(const struct dctf_blocking_ops *ops, void *source, unsigned readers,
    unsigned listers, struct dctf_origin **out);

/* For ops->examine: run probe(what) on a thread of the origin and wait at most `deadline_ms`
 * (DCTF_ERR_DEADLINE). `detail` as there. */
DCTF_MUST_CHECK
enum dctf_err dctf_blocking_probe(
    struct dctf_origin *origin, unsigned what, uint64_t deadline_ms, char *detail);

#endif
