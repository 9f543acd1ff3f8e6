/* SPDX-License-Identifier: Apache-2.0
 *
 * The fetch scheduler: orders transfers by class, bounds how many run, retries
 * what can pass, and puts a deadline on every wait.
 *
 *   QUEUED → RUNNING → DONE
 *      │        ├─→ BACKOFF → QUEUED        (class RETRY, tries left, time left, budget left)
 *      │        └─→ ABANDONED               (deadline passed while the origin holds on:
 *      └─→ DONE (deadline, cancel, shutdown)   done() runs now, the late answer is dropped)
 *
 * Threads:   any thread. done() runs exactly once per submitted transfer, on a
 *            thread of the origin or the timer (at the end also that of
 *            dctf_fetch_free()), never inside submit, promote or cancel, with no lock
 *            held, and must not block on the network. So does release(), always after
 *            done() returned.
 * Ownership: a transfer is made by dctf_fetch_get/list/head; it frees itself after
 *            done(). The buffer of a GET belongs to the transfer from submit on and is
 *            handed over in done(); when the transfer was abandoned the buffer stays
 *            with it until the origin lets go, then goes to release().
 */
#ifndef DCTF_TRANSPORT_FETCH_H
#define DCTF_TRANSPORT_FETCH_H

#include "base/clock.h"
#include "base/err.h"
#include "transport/origin.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dctf_fetch;
struct dctf_metrics;
struct dctf_timers;

enum dctf_fetch_class {
    DCTF_FETCH_DEMAND,      /* a reader waits */
    DCTF_FETCH_PREFETCH,    /* a reader will probably ask */
    DCTF_FETCH_REPLICATION, /* nobody waits */
    DCTF_FETCH_CLASS_COUNT
};

struct dctf_fetch_config {
    struct dctf_origin *origin;   /* borrowed; outlives the scheduler */
    struct dctf_timers *timers;   /* borrowed */
    struct dctf_metrics *metrics; /* borrowed; may be NULL */
    const struct dctf_clock *clock;
    bool counted_below;   /* `origin` asks others: who asks the source counts the requests to it */
    unsigned concurrency; /* running at once; classes but demand leave a quarter of it free */
    unsigned retries;
    unsigned retry_budget; /* retries per hundred transfers, and a burst of 10 + concurrency; 0: no bound */
    uint64_t backoff_ms;   /* first backoff; doubles, full jitter; 0: 50 */
    uint64_t throttle_backoff_ms; /* the same after DCTF_ERR_ORIGIN_THROTTLED; 0: 500 */
    uint64_t seed;
};

DCTF_MUST_CHECK
enum dctf_err dctf_fetch_new(const struct dctf_fetch_config *config, struct dctf_fetch **out);
/* End every transfer with DCTF_ERR_SHUTTING_DOWN, wait until done() ran for each. What
 * the origin still holds is released when the origin answers, at the latest when it is
 * closed (never, if it is stuck in the kernel). Not from within a callback. */
void dctf_fetch_free(struct dctf_fetch *fetch);
/* Change how many run at once, > 0; what runs goes on. */
void dctf_fetch_limit(struct dctf_fetch *fetch, unsigned concurrency);

struct dctf_fetch_get {
    const char *key;  /* borrowed until done(), and until release() when abandoned */
    const char *etag; /* likewise */
    uint64_t size;
    uint64_t offset;
    size_t len;
    void *buf;
    enum dctf_fetch_class class;
    uint64_t deadline_ms;                /* from now */
    bool (*gives_up)(enum dctf_err err); /* errors that are not tried again; NULL: none but what never is */
    /* err DCTF_OK: `buf` holds len bytes and is the caller's again. Else, when
     * `buf_free` the buffer is the caller's again; when not, release(ctx) tells when. */
    void (*done)(void *ctx, enum dctf_err err, bool buf_free);
    void (*release)(void *ctx);
    void *ctx;
};

/* On failure done() never runs. *job_id (may be NULL) names the transfer for
 * promotion and cancelling; ids are never reused. */
DCTF_MUST_CHECK
enum dctf_err dctf_fetch_get_submit(
    struct dctf_fetch *fetch, const struct dctf_fetch_get *get, uint64_t *job_id);
/* A reader now waits for what was read-ahead: order it as demand. Unknown ids are
 * ignored. */
void dctf_fetch_promote(struct dctf_fetch *fetch, uint64_t job_id);
/* Ask for an early end; done() still runs (DCTF_ERR_CANCELLED or the result). */
void dctf_fetch_cancel(struct dctf_fetch *fetch, uint64_t job_id);

/* List a directory as demand. page() may run several times, on an origin's thread; it
 * never runs after done(). `silence_ms`: longest time between pages. A listing that
 * fails is not restarted once a page was delivered. Listings have slots of their own
 * (a quarter of the concurrency, at least 2), so that they and reads never starve
 * each other. */
struct dctf_fetch_list {
    const char *dir; /* copied */
    uint64_t silence_ms;
    bool (*page)(void *ctx, const struct dctf_origin_entry *entries, size_t count);
    void (*done)(void *ctx, enum dctf_err err);
    void *ctx;
};
DCTF_MUST_CHECK
enum dctf_err dctf_fetch_list_submit(struct dctf_fetch *fetch, const struct dctf_fetch_list *list);

struct dctf_fetch_head {
    const char *key; /* copied */
    uint64_t deadline_ms;
    void (*done)(void *ctx, enum dctf_err err, const struct dctf_origin_entry *entry);
    void *ctx;
};
DCTF_MUST_CHECK
enum dctf_err dctf_fetch_head_submit(struct dctf_fetch *fetch, const struct dctf_fetch_head *head);

struct dctf_fetch_stats {
    size_t queued[DCTF_FETCH_CLASS_COUNT];
    size_t running;
    size_t abandoned;       /* given up, still held by the origin */
    uint64_t last_error_ms; /* wall clock of the last failure; 0: none */
    enum dctf_err last_error;
    uint64_t last_success_ms; /* wall clock */
};
void dctf_fetch_stats(struct dctf_fetch *fetch, struct dctf_fetch_stats *out);

#endif
