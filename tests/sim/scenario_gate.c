/* SPDX-License-Identifier: Apache-2.0
 *
 * The gate on simulated paths: a round trip with jitter, one bottleneck with a queue, pings, background
 * transfers that the gate lets go, and traffic of others.
 */
#include "sim.h"

#include "transport/gate.h"

#include <inttypes.h>
#include <string.h>

#define BLOCK (256u * 1024u)
#define PING_MS 1000u
#define TRANSFERS 64u
#define QUEUE_MAX_MS 200u
#define YES_WITHIN_MS 5000u
#define JITTER 0.2

enum traffic { IDLE, OWN, FOREIGN, LATECOMER, ROUTE };
static const char *const traffic_names[] = {
    "idle", "own transfers", "traffic of others", "latecomer to a queue", "route becomes 10 × longer"};

struct path {
    struct sim_run *run;
    struct dctf_rng rng;
    struct dctf_gate gate;
    uint64_t now_us, base_us, tick_us;
    double rate;          /* of the bottleneck, bytes per µs */
    double foreign, mine; /* bytes queued */
    double foreign_rate;
    uint64_t due[TRANSFERS]; /* 0: free; when the last byte arrives */
    /* seen */
    uint64_t yes_us, empty_since_us, longest_no_us;
    uint64_t delivered, asked, refused;
};

static uint64_t round_trip(struct path *path)
{
    double queue_us = (path->foreign + path->mine) / path->rate;

    return (uint64_t)((double)path->base_us * (1 + JITTER * sim_unit(&path->rng)) + queue_us) + 1;
}

/* The queue drains; others fill it. */
static void flow(struct path *path)
{
    double room = path->rate * (double)path->tick_us, queue_max = path->rate * QUEUE_MAX_MS * 1000;
    double share = path->foreign + path->mine > 0 ? path->foreign / (path->foreign + path->mine) : 0;

    path->foreign += path->foreign_rate * (double)path->tick_us;
    path->foreign -= room * share < path->foreign ? room * share : path->foreign;
    path->mine -= room * (1 - share) < path->mine ? room * (1 - share) : path->mine;
    if (path->foreign > queue_max)
        path->foreign = queue_max;
}

static void transfers(struct path *path, bool wanted)
{
    uint64_t now_ms = path->now_us / 1000;

    for (unsigned i = 0; i < TRANSFERS; i++) {
        if (path->due[i] && path->due[i] <= path->now_us) {
            path->due[i] = 0;
            path->delivered += BLOCK;
            dctf_gate_sample(&path->gate, round_trip(path), false, now_ms);
            dctf_gate_done(&path->gate, BLOCK, BLOCK, now_ms);
        }
        if (!path->due[i] && wanted) {
            path->asked++;
            if (dctf_gate_try(&path->gate, BLOCK, false, now_ms)) {
                path->mine += BLOCK;
                path->due[i] = path->now_us + round_trip(path);
            } else {
                path->refused++;
                wanted = false; /* none of the others may go either */
            }
        }
    }
}

static void watch(struct path *path)
{
    bool empty = path->foreign < 1 && path->mine < 1;

    SIM_CHECK(path->run, path->now_us,
        path->gate.window >= BLOCK && path->gate.window <= path->gate.config.window_max_bytes,
        "a window of %" PRIu64 " bytes", path->gate.window);
    SIM_CHECK(path->run, path->now_us, dctf_gate_retry_ms(&path->gate, path->now_us / 1000) <= 5000,
        "the next try is too far off");
    if (!empty)
        path->empty_since_us = path->now_us;
    if (path->gate.verdict == DCTF_GATE_YES)
        path->yes_us = path->now_us;
}

/* On a path without a queue a "yes" comes at least once in five seconds. */
static void check_yes(struct path *path, uint64_t grace_us)
{
    uint64_t since = path->yes_us > path->empty_since_us ? path->yes_us : path->empty_since_us;

    if (path->now_us < grace_us)
        return;
    if (path->now_us - since > path->longest_no_us)
        path->longest_no_us = path->now_us - since;
    SIM_CHECK(path->run, path->now_us, path->now_us - since <= YES_WITHIN_MS * 1000ull,
        "no yes for %.1f s on a path without a queue (round trip %.2f ms)",
        (double)(path->now_us - since) / 1e6, (double)path->base_us / 1000);
}

static void advance(struct path *path, uint64_t ms, bool wanted, uint64_t grace_us)
{
    for (uint64_t end = path->now_us + ms * 1000; path->now_us < end; path->now_us += path->tick_us) {
        uint64_t now_ms = path->now_us / 1000;

        flow(path);
        if (now_ms % PING_MS == 0)
            dctf_gate_sample(&path->gate, round_trip(path), path->gate.in_flight == 0, now_ms);
        transfers(path, wanted);
        if (!wanted && now_ms % 100 == 0 && dctf_gate_try(&path->gate, BLOCK, false, now_ms))
            dctf_gate_done(&path->gate, BLOCK, 0, now_ms); /* only to ask */
        watch(path);
        check_yes(path, grace_us);
    }
    sim_trace(path->run, path->gate.window ^ path->delivered);
}

static void path_init(struct path *path, struct sim_run *run, uint64_t base_us, enum traffic traffic)
{
    static const struct dctf_gate_config config = {
        .constants = {1.25, 0.85, 0.92, 16},
        .block_bytes = BLOCK,
        .window_max_bytes = 64ull * BLOCK,
        .floor_us = 1000,
    };

    *path = (struct path){
        .run = run,
        .rng = {run->seed * 131 + base_us + traffic},
        .now_us = 1000000,
        .base_us = base_us,
        .tick_us = 1000,
        .rate = 1250, /* 10 Gbit/s */
    };
    path->yes_us = path->empty_since_us = path->now_us;
    dctf_gate_init(&path->gate, &config, path->now_us / 1000);
}

/* Others keep the queue at this many milliseconds for a time; returns the mean window meanwhile. */
static uint64_t with_others(struct path *path, uint64_t queue_ms, uint64_t ms)
{
    uint64_t sum = 0, rounds = 0;

    for (uint64_t spent = 0; spent < ms; spent += 100) {
        path->foreign = path->rate * (double)queue_ms * 1000;
        path->foreign_rate = path->rate;
        advance(path, 100, true, 0);
        if (spent > ms / 2) {
            sum += path->gate.window;
            rounds++;
        }
    }
    path->foreign_rate = 0;
    return rounds ? sum / rounds : 0;
}

static void run_path(struct sim_run *run, uint64_t base_us, enum traffic traffic)
{
    struct path path;
    uint64_t queue_ms = 20 + 2 * base_us / 1000, crowded = 0, horizon_ms = run->full ? 120000 : 8000;

    path_init(&path, run, base_us, traffic);
    if (traffic == LATECOMER)
        crowded = with_others(&path, queue_ms, 5000);
    if (traffic == ROUTE) {
        advance(&path, 5000, false, 0);
        path.base_us *= 10;
        /* The smallest round trip is forgotten after ten minutes; until then one block may go. */
        path.tick_us = 20000;
        advance(&path, 660000, true, UINT64_MAX);
        path.tick_us = 1000;
        path.yes_us = path.empty_since_us = path.now_us;
    }
    advance(&path, horizon_ms, traffic == OWN || traffic == FOREIGN || traffic == ROUTE, 0);
    if (traffic == FOREIGN) {
        crowded = with_others(&path, queue_ms, 10000);
        SIM_CHECK(run, path.now_us, crowded <= 4 * BLOCK, "a mean window of %" PRIu64 " bytes beside others",
            crowded);
        path.empty_since_us = path.now_us;
    }
    advance(&path, horizon_ms, traffic != IDLE, 0);
    sim_row(run, "%.2f|%s|%.2f|%" PRIu64 "|%" PRIu64 "|%.0f", (double)base_us / 1000, traffic_names[traffic],
        (double)path.longest_no_us / 1e6, path.gate.window / BLOCK, crowded / BLOCK,
        (double)path.delivered / 1e6 / ((double)path.now_us / 1e6));
    SIM_CHECK(run, path.now_us, traffic == IDLE || path.delivered, "nothing was delivered");
}

void scenario_gate(struct sim_run *run)
{
    static const uint64_t round_trips[] = {10, 100, 1000, 10000, 100000, 200000};

    sim_columns(run,
        "round trip, ms|traffic|longest without yes, s|window at the end, blocks|window beside others, "
        "blocks|MB/s over all");
    for (unsigned i = 0; i < sizeof(round_trips) / sizeof(round_trips[0]); i++) {
        for (enum traffic traffic = IDLE; traffic <= ROUTE; traffic++) {
            if (run->full || (i == run->seed % 6 && (unsigned)traffic == run->seed / 6 % 5))
                run_path(run, round_trips[i], traffic);
        }
    }
}
