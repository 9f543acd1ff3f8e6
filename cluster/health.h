/* SPDX-License-Identifier: Apache-2.0
 *
 * What this node knows of each peer from its own requests and pings: a circuit breaker, and when
 * and how often to hedge.
 *
 *   CLOSED ── 3 failures in a row, or found dead by a ping ──→ OPEN for 1 s, doubling to 30 s
 *   OPEN ── time is up ──→ PROBING: one ping is let through ── ok → CLOSED, failed → OPEN
 *
 * Threads:   caller locks. Pure: time is an argument.
 * Ownership: embedded.
 */
#ifndef DCTF_CLUSTER_HEALTH_H
#define DCTF_CLUSTER_HEALTH_H

#include <stdbool.h>
#include <stdint.h>

enum dctf_breaker_state { DCTF_BREAKER_CLOSED, DCTF_BREAKER_OPEN, DCTF_BREAKER_PROBING };

struct dctf_breaker {
    enum dctf_breaker_state state;
    unsigned failures;
    uint64_t pause_ms;
    uint64_t until_ms; /* OPEN; PROBING: when the probe is given up */
};

/* May a ping go to the peer now? In OPEN past its time the first that asks becomes the probe. */
bool dctf_breaker_allows(struct dctf_breaker *breaker, uint64_t now_ms);
void dctf_breaker_ok(struct dctf_breaker *breaker);
/* `deadline`: it is known to be dead, which opens at once. */
void dctf_breaker_failed(struct dctf_breaker *breaker, bool deadline, uint64_t now_ms);

/* Whether a ping that was not answered in time counts as missed. One whose end came long after its time says
 * that this node gets no processor, and may not have looked at the answer yet: it does not count, but for
 * several in a row. `late` counts those; a ping that is answered sets it to 0. */
bool dctf_ping_counts(unsigned *late, uint64_t took_ms, uint64_t timeout_ms);

/* Whether a ping that is out, or one before it that was missed, says already that something may be wrong: it
 * takes several round trips. */
bool dctf_ping_is_slow(uint64_t out_ms, unsigned missed, uint64_t rtt_us);

/* A token bucket that completed fetches fill. */
struct dctf_hedge_budget {
    double tokens, per_fetch, burst;
    unsigned running, running_max;
};
void dctf_hedge_init(struct dctf_hedge_budget *budget, double per_fetch, double burst, unsigned running_max);
void dctf_hedge_earn(struct dctf_hedge_budget *budget);
/* Take one for a hedge; false: none left or too many under way. Give `running` back with _end(). */
bool dctf_hedge_take(struct dctf_hedge_budget *budget);
void dctf_hedge_end(struct dctf_hedge_budget *budget);
/* When to hedge: max(p99, 3 × p50, floor), microseconds. */
uint64_t dctf_hedge_after_us(uint64_t p50_us, uint64_t p99_us, uint64_t floor_us);

#endif
