/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to flight.c and flight_probe.c.
 */
#ifndef DCTF_CLUSTER_FLIGHT_INTERNAL_H
#define DCTF_CLUSTER_FLIGHT_INTERNAL_H

#include "cluster/internal.h"

#define DCTF_FLIGHT_PROBES 8u /* others that are asked, at most */

enum dctf_flight_state {
    DCTF_FLIGHT_NEW,
    DCTF_FLIGHT_MEMORY,
    DCTF_FLIGHT_SETTLE,
    DCTF_FLIGHT_PROBE,
    DCTF_FLIGHT_SOURCE,
    DCTF_FLIGHT_READY,
    DCTF_FLIGHT_FAILED
};

struct dctf_flight {
    struct dctf_list link; /* of the table; guarded by lock, as all that is not marked */
    struct dctf_cluster *cluster;
    struct dctf_version *version; /* counted; constant */
    uint32_t first, count;        /* constant */
    size_t bytes;                 /* constant */
    uint64_t extent_key;          /* constant */
    enum dctf_fetch_class class;
    enum dctf_flight_state state;
    unsigned refs;
    struct dctf_list waits;
    void *buf; /* written by the step that runs; whole in DCTF_FLIGHT_READY */
    uint64_t begun_ms;
    uint64_t job_id;
    bool from_origin;
    struct dctf_list stopped; /* of who is about to end what it waits for */
    enum dctf_err err;
    struct dctf_timer timer; /* of the step that runs */
    /* of the step that runs */
    uint32_t chain[DCTF_FLIGHT_PROBES];
    unsigned chain_count, chain_next, busy;
    struct dctf_view *view;
    struct dctf_peer *asked;
    uint64_t asked_ms;
    char addr[DCTF_NODE_ADDR_MAX + 1];
    struct dctf_peer_get get;
};

/* --- flight.c --- */

/* Consumes the reference of the step that ran. */
void dctf_flight_end(struct dctf_flight *flight, enum dctf_err err);
/* Go on later; consumes nothing: the step's reference goes to the timer. */
void dctf_flight_wait_for(struct dctf_flight *flight, enum dctf_flight_state state, uint64_t ms);
void dctf_flight_ask_source(struct dctf_flight *flight);

/* --- flight_probe.c --- */

/* Ask those that may have it, from where it was left; the source when none of them has. */
void dctf_flight_probe(struct dctf_flight *flight);

#endif
