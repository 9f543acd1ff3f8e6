/* SPDX-License-Identifier: Apache-2.0
 *
 * Who is asked for a flight's bytes before the source: first whether it has them, then for them.
 */
#include "cluster/flight_internal.h"

#include "base/config.h"
#include "base/metric.h"

#include <string.h>

#define BUSY_ROUNDS 8u /* in all: so often those that have it may be busy */
#define BUSY_MAX_MS 200u
#define PROBES_OFF_MS 500u  /* two pings have told by then that a peer is gone */
#define PROBE_RANKS 3u      /* that may have stood in for each other */
#define SPARE_PROBE_MS 200u /* of what this node could not keep, and another therefore may have */

static void probe_next(struct dctf_flight *flight);

/* It has the bytes, but no buffer for them now. */
static void ask_again(struct dctf_flight *flight, uint64_t ms)
{
    flight->chain_next--;
    dctf_flight_wait_for(flight, DCTF_FLIGHT_SETTLE, ms < BUSY_MAX_MS ? ms + 1 : BUSY_MAX_MS);
}

static void probe_done(struct dctf_peer_get *get, enum dctf_err err, const struct dctf_peer_answer *answer)
{
    struct dctf_flight *flight = get->ctx;
    struct dctf_cluster *cluster = flight->cluster;
    struct dctf_peer *peer = flight->asked;
    bool had = !err && get->ask.op == DCTF_PEER_HAVE;
    /* So short a time is missed by a busy peer as well: only a ping tells whether it is alive. */
    bool late = err == DCTF_ERR_DEADLINE && get->ask.op == DCTF_PEER_HAVE;

    pthread_mutex_lock(&cluster->lock);
    dctf_peer_account_locked(cluster, peer, DCTF_FETCH_PREFETCH, late ? DCTF_ERR_CANCELLED : err, answer);
    if (!err && get->ask.op == DCTF_PEER_BLOCKS)
        cluster->counts.probe_hits++;
    if (late)
        peer->probes_off_ms = dctf_cluster_now_ms(cluster) + PROBES_OFF_MS;
    if (err == DCTF_ERR_PEER_ABSENT && answer)
        peer->spare_full = answer->spare == DCTF_PEER_SPARE_FULL;
    if (!had)
        dctf_metric_add(cluster->config.metrics,
            err ? DCTF_METRIC_CLUSTER_PROBES_MISS : DCTF_METRIC_CLUSTER_PROBES_HIT, 1);
    pthread_mutex_unlock(&cluster->lock);
    if (late)
        dctf_peer_suspect(cluster, peer);
    if (!had) {
        if (!err)
            dctf_flight_end(flight, DCTF_OK);
        else if (err == DCTF_ERR_PEER_BUSY && flight->busy++ < BUSY_ROUNDS)
            ask_again(flight, answer->retry_ms);
        else
            probe_next(flight);
        return;
    }
    /* It is there, or coming: now the bytes. */
    get->ask.op = DCTF_PEER_BLOCKS;
    get->deadline_ms = cluster->read_deadline_ms;
    get->silence_ms = cluster->config.options->stall_timeout_max_ms;
    if (dctf_peer_get_start(cluster->client, get))
        probe_next(flight);
}

/* A peer that left a probe unanswered would cost each flight as much until pings have told that it is gone.
 */
static bool is_worth_asking_locked(const struct dctf_peer *peer, uint64_t now_ms, bool refused)
{
    return dctf_peer_usable_locked(peer) && (refused || now_ms >= peer->probes_off_ms);
}

/* Ask the next; the source when there is none left. */
static void probe_next(struct dctf_flight *flight)
{
    struct dctf_cluster *cluster = flight->cluster;
    bool refused = dctf_spare_home_refused(&cluster->spare, flight->extent_key);
    uint64_t now_ms = dctf_cluster_now_ms(cluster);
    struct dctf_peer *peer = NULL;

    pthread_mutex_lock(&cluster->lock);
    while (!peer && flight->chain_next < flight->chain_count && !cluster->closing) {
        const struct dctf_node *node = dctf_view_node(flight->view, flight->chain[flight->chain_next++]);

        peer = dctf_peer_of_locked(cluster, node);
        if (peer && !is_worth_asking_locked(peer, now_ms, refused))
            peer = NULL;
    }
    flight->state = DCTF_FLIGHT_PROBE;
    flight->asked = peer;
    flight->asked_ms = now_ms;
    if (peer) {
        memcpy(flight->addr, peer->addr, sizeof(flight->addr));
        cluster->counts.probes++;
    }
    pthread_mutex_unlock(&cluster->lock);
    if (!peer) {
        dctf_flight_ask_source(flight);
        return;
    }
    flight->get.addr = flight->addr;
    flight->get.ask.op = DCTF_PEER_HAVE;
    flight->get.deadline_ms = refused ? SPARE_PROBE_MS : cluster->probe_ms;
    flight->get.silence_ms = 0;
    if (dctf_peer_get_start(cluster->client, &flight->get))
        probe_next(flight);
}

static void add_probe(struct dctf_flight *flight, uint32_t node)
{
    if (node == dctf_view_self(flight->view) || flight->chain_count == DCTF_FLIGHT_PROBES)
        return;
    for (unsigned i = 0; i < flight->chain_count; i++) {
        if (flight->chain[i] == node)
            return;
    }
    flight->chain[flight->chain_count++] = node;
}

/* The home, when another fills in for it; who fills in for it, when it comes back; then past homes. */
static void plan_probes(struct dctf_flight *flight)
{
    struct dctf_spare *spare = &flight->cluster->spare;
    uint32_t ranks[DCTF_SPARE_RANKS], past[DCTF_FLIGHT_PROBES];
    size_t rank_count, past_count;

    flight->view = dctf_cluster_view(flight->cluster);
    rank_count = dctf_view_rank(flight->view, flight->extent_key, ranks,
        atomic_load_explicit(&spare->short_of_room, memory_order_relaxed) ? DCTF_SPARE_RANKS : PROBE_RANKS);
    past_count = dctf_view_past_homes(flight->view, flight->extent_key, past, DCTF_FLIGHT_PROBES);
    for (size_t i = 0; i < rank_count; i++)
        add_probe(flight, ranks[i]);
    for (size_t i = 0; i < past_count; i++)
        add_probe(flight, past[i]);
    flight->get = (struct dctf_peer_get){
        .ask = {.dataset = flight->cluster->config.dataset,
            .size = flight->version->size,
            .first = flight->first,
            .count = flight->count},
        .buf = flight->buf,
        .class = flight->class,
        .view = dctf_view_hash(flight->view),
        .done = probe_done,
        .ctx = flight,
    };
    strcpy(flight->get.ask.key, flight->version->key);
    strcpy(flight->get.ask.etag, flight->version->etag);
}

void dctf_flight_probe(struct dctf_flight *flight)
{
    if (!flight->view)
        plan_probes(flight);
    probe_next(flight);
}
