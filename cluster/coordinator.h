/* SPDX-License-Identifier: Apache-2.0
 *
 * What the nodes of a cluster agree on through Redis beyond who they are: who judges heat, what each
 * saw, what was judged, and that listings are to be read anew. All of it is soft: losing it costs work,
 * never a wrong byte.
 *
 *   leader   one node at a time, by a lease. Its fence is a number that only grows: at least the
 *            server's clock in milliseconds, and more than any fence that the claimant knows, so that it
 *            grows over a loss of all data. The leader stops by its own clock at two thirds of the lease.
 *   heat     every node writes a report now and then; the leader reads them all
 *   policy   the leader writes a table of hot and mid features, in 64 parts by the top bits of the
 *            feature's id; the others read the parts that changed, 0 to 2 s after they were told. Tables
 *            with a lower fence than one that was accepted are ignored.
 *   unreached  every node tells whom it does not reach; the leader judges who is left out of placement
 *            (exclusion.h), and the members' view follows
 *   sync     a counter; that it moved is all that is told
 *
 * Threads:   any thread. Nothing waits for the network, except that listen() waits for a callback that
 *            runs. Callbacks run on the members' thread, which meanwhile does not renew the node's lease:
 *            they must be short, and may call all functions here but listen().
 * Ownership: belongs to its members object.
 */
#ifndef DCTF_CLUSTER_COORDINATOR_H
#define DCTF_CLUSTER_COORDINATOR_H

#include "base/err.h"
#include "cluster/exclusion.h"
#include "cluster/policy.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dctf_coordinator;
struct dctf_members;

/* Features of one report, entries of a table. */
#define DCTF_COORDINATOR_HEAT_MAX 3200u
#define DCTF_COORDINATOR_POLICY_MAX 65536u

/* NULL unless members are by Redis. */
struct dctf_coordinator *dctf_members_coordinator(struct dctf_members *members);

struct dctf_coordinator_heat {
    uint64_t feature_id;
    double passes;  /* 0 to 10^9; kept as a float */
    uint64_t bytes; /* of the feature */
};

/* Callbacks may be NULL. */
struct dctf_coordinator_listener {
    bool lead;            /* this node may lead */
    uint64_t fence;       /* the highest that was accepted earlier, in another life of this node too */
    uint64_t interval_ms; /* between two reports; they are read twice as often; 0: 30000 */
    /* A table with this fence is about to be accepted: keep the number. */
    void (*fence_grew)(void *ctx, uint64_t fence);
    /* By id. */
    void (*policy)(
        void *ctx, const struct dctf_policy_entry *table, size_t count, uint64_t fence, uint64_t version);
    /* While this node leads, twice in an interval: once per report that was not read before, then the end. */
    void (*report)(void *ctx, const char *node, const struct dctf_coordinator_heat *heat, size_t count);
    void (*reports_end)(void *ctx);
    void (*sync)(void *ctx);
    /* Somebody wants to know the path of a feature; `path` ≥ DCTF_KEY_MAX + 1 bytes. False: not known here.
     */
    bool (*path_of)(void *ctx, uint64_t feature_id, char *path);
    /* The path that was asked for, as another node told it: to be checked against the id. */
    void (*path)(void *ctx, uint64_t feature_id, const char *path);
    void *ctx;
};
/* NULL: nobody listens any more, and when it returns no callback runs. Copied. The table that is known
 * already is told to who begins to listen. */
void dctf_coordinator_listen(
    struct dctf_coordinator *coordinator, const struct dctf_coordinator_listener *listener);

/* The fence if this node leads now, else 0. */
uint64_t dctf_coordinator_fence(struct dctf_coordinator *coordinator);

/* From within a callback: whether the table that lies in Redis is the one that policy() told, or there is
 * none. Who begins to lead must not publish before. */
bool dctf_coordinator_table_known(const struct dctf_coordinator *coordinator);

/* What this node saw since its last report, in any order; those with most passes when there are too many.
 * Written when the interval is over; a report that was not written by then is replaced. */
DCTF_MUST_CHECK
enum dctf_err dctf_coordinator_report(
    struct dctf_coordinator *coordinator, const struct dctf_coordinator_heat *heat, size_t count);

/* Reports written since the start: what was handed over before the number grew is known to have arrived. */
uint64_t dctf_coordinator_reports_written(struct dctf_coordinator *coordinator);

/* Ask the others for the path of a feature: the table has ids alone, and who never read a feature does not
 * know where it lies. path() is called when somebody has told, which may be never: ask again then. At most
 * DCTF_COORDINATOR_PATHS_MAX questions are open at once; more are DCTF_ERR_NO_MEMORY. */
#define DCTF_COORDINATOR_PATHS_MAX 64u
DCTF_MUST_CHECK
enum dctf_err dctf_coordinator_ask_path(struct dctf_coordinator *coordinator, uint64_t feature_id);

/* The table, hot and mid alone, by id; written if this node leads, again when the server lost it.
 * DCTF_ERR_OPTION_VALUE: too many, or not in order. */
DCTF_MUST_CHECK
enum dctf_err dctf_coordinator_publish(
    struct dctf_coordinator *coordinator, const struct dctf_policy_entry *table, size_t count);

/* Whom this node does not reach now, in any order; replaces what was told before. */
DCTF_MUST_CHECK
enum dctf_err dctf_coordinator_unreached(
    struct dctf_coordinator *coordinator, const struct dctf_unreached *entries, size_t count);

/* Tell all nodes, this one too, to read their listings anew. */
void dctf_coordinator_sync(struct dctf_coordinator *coordinator);

#endif
