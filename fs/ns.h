/* SPDX-License-Identifier: Apache-2.0
 *
 * Namespace: directories listed on demand from the origin, kept in the database
 * for metadata_ttl. Look-ups are answered from the parent's listing; one listing per
 * directory runs at a time, for everybody who waits.
 *
 * A listing older than its TTL is refreshed; who asks waits for the new one, but not
 * longer than a second: then the old one answers (a stalled source must not take `ls`
 * and `stat` of what is known down with it).
 *
 * In a cluster the node that lists a directory for the others is asked first (cluster/listings.h); the
 * source, when that is this one, or is of no help; another node, when this one does not get at the source.
 *
 * Threads:   any thread. Callbacks run exactly once, on the caller's thread (then
 *            dctf_ns_resolve() has returned DCTF_OK after it) or on a thread of the
 *            origin or the timer, with no lock held.
 * Ownership: a wait is embedded in its owner until its callback began or
 *            dctf_ns_cancel() said true.
 */
#ifndef DCTF_FS_NS_H
#define DCTF_FS_NS_H

#include "base/clock.h"
#include "base/err.h"
#include "base/list.h"
#include "base/timer.h"
#include "cache/listing.h"

#include <stdbool.h>
#include <stdint.h>

struct dctf_cluster;
struct dctf_fetch;
struct dctf_metrics;
struct dctf_ns;

struct dctf_ns_config {
    struct dctf_fetch *fetch; /* these are borrowed */
    struct dctf_listings *listings;
    struct dctf_timers *timers;
    struct dctf_metrics *metrics;
    struct dctf_cluster *cluster;   /* NULL: none */
    const struct dctf_clock *clock; /* NULL: the system's; copied */
    uint64_t ttl_ms;                /* UINT64_MAX: for ever */
    uint64_t silence_ms;            /* of the source while listing */
};

struct dctf_ns_wait {
    /* `state` is valid when err is DCTF_OK. */
    void (*done)(struct dctf_ns_wait *wait, enum dctf_err err, const struct dctf_listing_state *state);
    /* private */
    struct dctf_list node;
    struct dctf_timer grace;
    struct dctf_ns *ns;
    void *flight;
    bool for_peer;
    struct dctf_listing_state stale;
};

DCTF_MUST_CHECK
enum dctf_err dctf_ns_new(const struct dctf_ns_config *config, struct dctf_ns **out);
/* Answer every wait with DCTF_ERR_SHUTTING_DOWN and refuse new ones; no peer is asked any more, and
 * nothing is handed to the scheduler after it. */
void dctf_ns_stop(struct dctf_ns *ns);
/* After dctf_fetch_free(): no listing runs any more. */
void dctf_ns_free(struct dctf_ns *ns);

/* The listing of `dir`, fresh enough. Call from a place that may touch the disk. */
DCTF_MUST_CHECK
enum dctf_err dctf_ns_resolve(struct dctf_ns *ns, const char *dir, struct dctf_ns_wait *wait);
/* The same for a peer: what the source is asked for from now on, or was begun to be read from it at most
 * `max_age_ms` ago. */
DCTF_MUST_CHECK
enum dctf_err dctf_ns_resolve_for_peer(
    struct dctf_ns *ns, const char *dir, uint64_t max_age_ms, struct dctf_ns_wait *wait);
/* How long the source has told nothing of a directory that is being read from it; UINT64_MAX: it is not. */
uint64_t dctf_ns_silent_ms(struct dctf_ns *ns, const char *dir);
/* True: the callback will not run. False: it ran or runs. */
bool dctf_ns_cancel(struct dctf_ns *ns, struct dctf_ns_wait *wait);

/* The same, waiting here; for the control socket. */
DCTF_MUST_CHECK
enum dctf_err dctf_ns_resolve_now(struct dctf_ns *ns, const char *dir, struct dctf_listing_state *state);

/* The entry at `path` ("" is the root), resolved from the root, waiting here. `buf` as
 * for dctf_listing_lookup(). */
DCTF_MUST_CHECK
enum dctf_err dctf_ns_stat_now(struct dctf_ns *ns, const char *path, char *buf, struct dctf_entry *out);

/* Milliseconds the kernel may keep an answer from a listing of this state. */
uint64_t dctf_ns_remaining_ms(struct dctf_ns *ns, const struct dctf_listing_state *state);

/* Listings at or below `top` that are under way answer who waits for them already, and nobody
 * who asks after this; nor does what other nodes had read before. */
DCTF_MUST_CHECK
enum dctf_err dctf_ns_outdate(struct dctf_ns *ns, const char *top);

/* Key rules: NULL when a component may be shown, else why it is hidden. */
const char *dctf_ns_hidden(const char *dir, const char *name);

#endif
