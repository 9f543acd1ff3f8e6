/* SPDX-License-Identifier: Apache-2.0
 *
 * The other members as this node sees them. Whether one is alive is found out by pings, which a peer
 * answers without its disk or the source: a reader's request that takes long says only that
 * something is slow. Once a second a few members are pinged: those whose breaker is due first,
 * then those not looked at for longest. A request that takes longer than usual pings at once.
 */
#include "cluster/internal.h"

#include "base/config.h"
#include "base/log.h"
#include "base/metric.h"
#include "base/str.h"
#include "cluster/coordinator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TICK_MS 1000u
#define COST_BYTES (1024.0 * 1024) /* of a request */
#define PINGS_PER_TICK 16u
#define SLOW_MS 1000u
#define SLOW_MAX 64u
/* For so long after its start a node expects others to start as well. */
#define STARTING_MS 10000u
#define STARTING_PING_MS 100u
#define PING_FACTOR 20u      /* × the smallest round trip */
#define PING_SUSPECT_MS 250u /* a peer that is well answers a ping within a millisecond or a round trip */

struct ping {
    struct dctf_peer_get get; /* first */
    struct dctf_cluster *cluster;
    struct dctf_peer *peer;
    uint64_t begun_ms, timeout_ms;
    char addr[DCTF_NODE_ADDR_MAX + 1];
};

static struct dctf_peer *find_locked(struct dctf_cluster *cluster, const char *id)
{
    for (struct dctf_list *node = cluster->peers.next; node != &cluster->peers; node = node->next) {
        struct dctf_peer *peer = dctf_list_entry(node, struct dctf_peer, link);

        if (!strcmp(peer->id, id))
            return peer;
    }
    return NULL;
}

struct dctf_peer *dctf_peer_of_locked(struct dctf_cluster *cluster, const struct dctf_node *node)
{
    static const struct dctf_gate_config gate = {
        .constants = {1.25, 0.85, 0.92, 16},
        .block_bytes = DCTF_BLOCK_BYTES,
        .window_max_bytes = 64ull * DCTF_BLOCK_BYTES,
        .floor_us = 1000,
    };
    struct dctf_peer *peer = find_locked(cluster, node->id);

    if (!peer) {
        peer = calloc(1, sizeof(*peer));
        if (!peer)
            return NULL;
        memcpy(peer->id, node->id, sizeof(peer->id));
        dctf_gate_init(&peer->gate, &gate, dctf_cluster_now_ms(cluster));
        dctf_encoder_init(&peer->encoder);
        dctf_list_push_front(&cluster->peers, &peer->link);
    }
    memcpy(peer->addr, node->addr, sizeof(peer->addr));
    return peer;
}

bool dctf_peer_usable_locked(const struct dctf_peer *peer)
{
    return peer->breaker.state == DCTF_BREAKER_CLOSED;
}

bool dctf_peer_doubted_locked(const struct dctf_cluster *cluster, struct dctf_peer *peer)
{
    uint64_t now_ms = dctf_cluster_now_ms(cluster);

    return peer->heard && peer->pinging &&
           dctf_ping_is_slow(
               now_ms - peer->pinged_ms, peer->missed, dctf_gate_min_rtt_us(&peer->gate, now_ms));
}

uint64_t dctf_peer_cost_locked(struct dctf_cluster *cluster, const struct dctf_view *view, uint32_t node)
{
    const struct dctf_peer *peer = dctf_peer_of_locked(cluster, dctf_view_node(view, node));
    uint64_t us = peer ? dctf_gate_min_rtt_us(&peer->gate, dctf_cluster_now_ms(cluster)) : 0;

    if (!us)
        us = UINT32_MAX;                  /* not measured yet */
    else if (peer->encoder.bandwidth > 0) /* of what this node sends there, taken to be the same back */
        us += (uint64_t)(COST_BYTES / peer->encoder.bandwidth * 1e6);
    return (uint64_t)dctf_view_near(view, node) << 32 | (us < UINT32_MAX ? us : UINT32_MAX);
}

/* Whether the end of a request says that the peer itself is in trouble. */
static bool is_its_fault(enum dctf_err err)
{
    switch (err) {
    case DCTF_ERR_PEER_GONE:
    case DCTF_ERR_DEADLINE:
    case DCTF_ERR_TRANSFER_CHECKSUM:
    case DCTF_ERR_BAD_RESPONSE:
    case DCTF_ERR_SHORT_BODY:
    case DCTF_ERR_PEER_AUTH:
        return true;
    default:
        return false;
    }
}

static void count_zone_locked(struct dctf_cluster *cluster, const struct dctf_peer *peer, size_t bytes)
{
    static const enum dctf_metric metrics[] = {
        [DCTF_NEAR_HOST] = DCTF_METRIC_PEER_ZONE_SAME,
        [DCTF_NEAR_RACK] = DCTF_METRIC_PEER_ZONE_SAME,
        [DCTF_NEAR_ZONE] = DCTF_METRIC_PEER_ZONE_SAME,
        [DCTF_NEAR_UNKNOWN] = DCTF_METRIC_PEER_ZONE_UNKNOWN,
        [DCTF_NEAR_OTHER_ZONE] = DCTF_METRIC_PEER_ZONE_OTHER,
    };
    uint32_t node = dctf_view_find(cluster->view, peer->id);

    dctf_metric_add(cluster->config.metrics,
        node == DCTF_NODE_NONE ? DCTF_METRIC_PEER_ZONE_UNKNOWN : metrics[dctf_view_near(cluster->view, node)],
        (int64_t)bytes);
}

void dctf_peer_account_locked(struct dctf_cluster *cluster, struct dctf_peer *peer,
    enum dctf_fetch_class class, enum dctf_err err, const struct dctf_peer_answer *answer)
{
    uint64_t now_ms = dctf_cluster_now_ms(cluster);

    peer->requests++;
    if (is_its_fault(err)) {
        peer->failures++;
        dctf_breaker_failed(&peer->breaker, false, now_ms);
        return;
    }
    if (err == DCTF_ERR_CANCELLED || !answer)
        return;
    peer->bytes_in += answer->wire_bytes;
    cluster->counts.peer_bytes_in += answer->wire_bytes;
    dctf_metric_add(cluster->config.metrics, DCTF_METRIC_PEER_BYTES_IN, (int64_t)answer->wire_bytes);
    count_zone_locked(cluster, peer, answer->wire_bytes);
    peer->probes_off_ms = 0;
    if (peer->breaker.state == DCTF_BREAKER_CLOSED)
        dctf_breaker_ok(&peer->breaker); /* failures count in a row */
    if (class != DCTF_FETCH_REPLICATION && !answer->from_origin && answer->wire_bytes && !err)
        dctf_degrade_sample(&cluster->degrade, answer->total_us);
    if (class == DCTF_FETCH_DEMAND && answer->first_byte_us && !err)
        dctf_quantile_add(&peer->first_byte, answer->first_byte_us * 1000);
    if (answer->path.rtt_us)
        dctf_gate_sample(&peer->gate, answer->path.rtt_us, false, now_ms);
}

/* --- pings --- */

enum verdict { WELL, AGAIN, DEAD };

/* Note the end of a ping. *news: the peer was thought otherwise of before. One ping is missed by a healthy
 * peer on a busy machine as well: only the second in a row counts. */
static enum verdict judge_ping_locked(
    struct ping *ping, enum dctf_err err, const struct dctf_peer_answer *answer, bool *news)
{
    struct dctf_peer *peer = ping->peer;
    uint64_t now_ms = dctf_cluster_now_ms(ping->cluster);

    peer->pinging = false;
    *news = false;
    if (!err) {
        *news = peer->dead;
        peer->dead = false;
        peer->heard = true;
        peer->missed = peer->late = 0;
        peer->probes_off_ms = 0;
        peer->unreached_ms = 0;
        dctf_breaker_ok(&peer->breaker);
        if (answer->first_byte_us)
            dctf_gate_sample(&peer->gate, answer->first_byte_us, peer->gate.in_flight == 0, now_ms);
        return WELL;
    }
    if (err == DCTF_ERR_CANCELLED || err == DCTF_ERR_SHUTTING_DOWN)
        return WELL;
    peer->failures++;
    if (err == DCTF_ERR_DEADLINE)
        dctf_metric_error(ping->cluster->config.metrics, DCTF_ERR_TOPOLOGY_TIMEOUT);
    if (peer->heard && !peer->dead && err == DCTF_ERR_DEADLINE &&
        (!dctf_ping_counts(&peer->late, now_ms - ping->begun_ms, ping->timeout_ms) || peer->missed++ == 0)) {
        peer->pinging = true;
        peer->pinged_ms = now_ms;
        return AGAIN;
    }
    dctf_breaker_failed(&peer->breaker, true, now_ms);
    *news = peer->heard && !peer->dead;
    peer->dead = peer->heard;
    if (!peer->unreached_ms)
        peer->unreached_ms = now_ms;
    return DEAD;
}

static void ping(struct dctf_cluster *cluster, struct dctf_peer *peer, const char *addr, uint64_t timeout_ms);

static void ping_done(struct dctf_peer_get *get, enum dctf_err err, const struct dctf_peer_answer *answer)
{
    struct ping *done = (struct ping *)get;
    struct dctf_cluster *cluster = done->cluster;
    struct dctf_peer *peer = done->peer;
    enum verdict verdict;
    bool news;
    char id[128];

    pthread_mutex_lock(&cluster->lock);
    verdict = judge_ping_locked(done, err, answer, &news);
    dctf_str_quote(peer->id, id, sizeof(id));
    pthread_mutex_unlock(&cluster->lock);
    if (news && verdict == DEAD)
        dctf_log(DCTF_LOG_WARN, "cluster", "peer=%s does not answer err=%d: its extents are read elsewhere",
            id, (int)(err == DCTF_ERR_DEADLINE ? DCTF_ERR_TOPOLOGY_TIMEOUT : err));
    else if (news)
        dctf_log(DCTF_LOG_INFO, "cluster", "peer=%s answers again", id);
    if (verdict == AGAIN)
        ping(cluster, peer, done->addr, PING_SUSPECT_MS);
    if (verdict == DEAD) { /* also when its breaker was open: requests from before that wait for it */
        dctf_gets_leave_peer(cluster, peer);
        dctf_flights_leave_peer(cluster, peer);
        dctf_listings_leave_peer(cluster, peer);
    }
    free(done);
    dctf_cluster_release(cluster);
}

/* Begin a ping; the peer is marked as pinged already. */
static void ping(struct dctf_cluster *cluster, struct dctf_peer *peer, const char *addr, uint64_t timeout_ms)
{
    struct ping *ping = calloc(1, sizeof(*ping));
    enum dctf_err err = DCTF_ERR_NO_MEMORY;

    if (ping) {
        ping->cluster = cluster;
        ping->peer = peer;
        ping->begun_ms = dctf_cluster_now_ms(cluster);
        ping->timeout_ms = timeout_ms;
        snprintf(ping->addr, sizeof(ping->addr), "%s", addr);
        ping->get = (struct dctf_peer_get){
            .addr = ping->addr,
            .ask.op = DCTF_PEER_PING,
            .deadline_ms = timeout_ms,
            .done = ping_done,
        };
        err = dctf_cluster_hold(cluster) ? DCTF_OK : DCTF_ERR_SHUTTING_DOWN;
        if (!err) {
            err = dctf_peer_get_start(cluster->client, &ping->get);
            if (err)
                dctf_cluster_release(cluster);
        }
    }
    if (!err)
        return;
    free(ping);
    pthread_mutex_lock(&cluster->lock);
    peer->pinging = false;
    pthread_mutex_unlock(&cluster->lock);
}

void dctf_peer_suspect(struct dctf_cluster *cluster, struct dctf_peer *peer)
{
    char addr[DCTF_NODE_ADDR_MAX + 1];
    uint64_t now_ms = dctf_cluster_now_ms(cluster);
    bool go;

    pthread_mutex_lock(&cluster->lock);
    go = !peer->pinging && now_ms - peer->pinged_ms >= PING_SUSPECT_MS;
    if (go) {
        peer->pinging = true;
        peer->pinged_ms = now_ms;
        memcpy(addr, peer->addr, sizeof(addr));
    }
    pthread_mutex_unlock(&cluster->lock);
    if (go)
        ping(cluster, peer, addr, PING_SUSPECT_MS);
}

size_t dctf_peers_unheard_locked(struct dctf_cluster *cluster)
{
    size_t count = 0;

    for (uint32_t i = 0; i < dctf_view_count(cluster->view); i++) {
        const struct dctf_node *node = dctf_view_node(cluster->view, i);
        struct dctf_peer *peer;

        if (i == dctf_view_self(cluster->view) || !node->weight)
            continue;
        peer = dctf_peer_of_locked(cluster, node);
        count += peer && !peer->heard;
    }
    return count;
}

/* While a cluster starts its members do not answer yet; they are asked again soon. */
static uint64_t pause_of_locked(
    const struct dctf_cluster *cluster, const struct dctf_peer *peer, uint64_t now_ms)
{
    uint64_t since = now_ms - cluster->started_ms;

    return !peer->heard && since < STARTING_MS ? STARTING_PING_MS : TICK_MS;
}

/* The member most in need of a ping: one whose breaker is due, else the one looked at longest ago, if that
 * is a second or more. Marks it. */
static struct dctf_peer *pick_locked(struct dctf_cluster *cluster, uint64_t now_ms)
{
    struct dctf_peer *best = NULL;

    for (uint32_t i = 0; i < dctf_view_count(cluster->view); i++) {
        const struct dctf_node *node = dctf_view_node(cluster->view, i);
        struct dctf_peer *peer;

        if (i == dctf_view_self(cluster->view) || !node->addr[0])
            continue;
        peer = dctf_peer_of_locked(cluster, node);
        if (!peer || peer->pinging || now_ms - peer->pinged_ms < pause_of_locked(cluster, peer, now_ms))
            continue;
        if (!peer->heard && now_ms - cluster->started_ms < STARTING_MS) {
            peer->breaker = (struct dctf_breaker){0};
            best = peer;
            break;
        }
        if (peer->breaker.state == DCTF_BREAKER_CLOSED) {
            if (!best || (best->breaker.state == DCTF_BREAKER_CLOSED && peer->pinged_ms < best->pinged_ms))
                best = peer;
        } else if (now_ms >= peer->breaker.until_ms) {
            best = peer;
            break;
        }
    }
    if (!best || !dctf_breaker_allows(&best->breaker, now_ms))
        return NULL;
    best->pinging = true;
    best->pinged_ms = now_ms;
    return best;
}

/* Long enough for a path that is what it was; the first pings get all the time there is. */
static uint64_t ping_timeout_locked(
    const struct dctf_cluster *cluster, const struct dctf_peer *peer, uint64_t now_ms)
{
    uint64_t most = cluster->config.options->topology_timeout_ms;
    uint64_t usual = dctf_gate_min_rtt_us(&peer->gate, now_ms) * PING_FACTOR / 1000;

    if (!peer->heard || usual > most)
        return most;
    return usual > PING_SUSPECT_MS ? usual : PING_SUSPECT_MS < most ? PING_SUSPECT_MS : most;
}

static void tick_fired(void *ctx)
{
    struct dctf_cluster *cluster = ctx;

    dctf_peers_tick(cluster);
    dctf_copies_tick(cluster);
    dctf_cluster_release(cluster);
}

/* Whoever keeps a request waiting for long is looked at, also when it is no member any more. */
static void suspect_the_slow(struct dctf_cluster *cluster)
{
    struct dctf_peer *slow[SLOW_MAX];
    uint64_t now_ms = dctf_cluster_now_ms(cluster);
    size_t count;

    pthread_mutex_lock(&cluster->lock);
    count = dctf_gets_waiting_locked(cluster, now_ms - SLOW_MS, slow, SLOW_MAX);
    count += dctf_flights_waiting_locked(cluster, now_ms - SLOW_MS, slow + count, SLOW_MAX - count);
    pthread_mutex_unlock(&cluster->lock);
    for (size_t i = 0; i < count; i++) /* peers stay to the end; one is not pinged twice at once */
        dctf_peer_suspect(cluster, slow[i]);
}

size_t dctf_peers_unreached_locked(struct dctf_cluster *cluster, struct dctf_unreached *out, size_t max)
{
    uint64_t now_ms = dctf_cluster_now_ms(cluster);
    size_t count = 0;

    for (struct dctf_list *node = cluster->peers.next; node != &cluster->peers; node = node->next) {
        struct dctf_peer *peer = dctf_list_entry(node, struct dctf_peer, link);

        if (dctf_view_find(cluster->view, peer->id) == DCTF_NODE_NONE)
            peer->unreached_ms = 0;
        else if (peer->unreached_ms && count < max)
            out[count++] = (struct dctf_unreached){dctf_exclusion_id(peer->id), now_ms - peer->unreached_ms};
    }
    return count;
}

/* What the leader judges by who is left out of placement. */
static void tell_unreached(struct dctf_cluster *cluster)
{
    struct dctf_coordinator *coordinator = dctf_members_coordinator(cluster->members);
    struct dctf_unreached *out;
    size_t count;

    if (!coordinator)
        return;
    out = calloc(DCTF_NODES_MAX, sizeof(*out));
    if (!out)
        return; /* what was told before stays */
    pthread_mutex_lock(&cluster->lock);
    count = dctf_peers_unreached_locked(cluster, out, DCTF_NODES_MAX);
    pthread_mutex_unlock(&cluster->lock);
    if (dctf_coordinator_unreached(coordinator, out, count))
        dctf_log(DCTF_LOG_DEBUG, "cluster", "op=unreached err=%d later", (int)DCTF_ERR_NO_MEMORY);
    free(out);
}

void dctf_peers_tick(struct dctf_cluster *cluster)
{
    uint64_t timeout_ms = 0;
    bool starting;

    suspect_the_slow(cluster);
    tell_unreached(cluster);
    for (unsigned i = 0; i < PINGS_PER_TICK; i++) {
        char addr[DCTF_NODE_ADDR_MAX + 1];
        struct dctf_peer *peer;

        pthread_mutex_lock(&cluster->lock);
        peer = cluster->closing ? NULL : pick_locked(cluster, dctf_cluster_now_ms(cluster));
        if (peer) {
            memcpy(addr, peer->addr, sizeof(addr));
            timeout_ms = ping_timeout_locked(cluster, peer, dctf_cluster_now_ms(cluster));
        }
        pthread_mutex_unlock(&cluster->lock);
        if (!peer)
            break;
        ping(cluster, peer, addr, timeout_ms);
    }
    if (!dctf_cluster_hold(cluster))
        return;
    pthread_mutex_lock(&cluster->lock);
    starting = dctf_peers_unheard_locked(cluster) &&
               dctf_cluster_now_ms(cluster) - cluster->started_ms < STARTING_MS;
    pthread_mutex_unlock(&cluster->lock);
    if (dctf_timer_arm(cluster->config.timers, &cluster->tick, starting ? STARTING_PING_MS : TICK_MS,
            tick_fired, cluster)) {
        dctf_log(DCTF_LOG_ERROR, "cluster", "op=tick err=%d no more pings", DCTF_ERR_NO_MEMORY);
        dctf_cluster_release(cluster);
    }
}

void dctf_peers_stop(struct dctf_cluster *cluster)
{
    if (dctf_timer_cancel(cluster->config.timers, &cluster->tick))
        dctf_cluster_release(cluster);
}
