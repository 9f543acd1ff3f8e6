/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/health.h"

#define FAILURES_MAX 3u
#define PAUSE_FIRST_MS 1000u
#define PAUSE_MAX_MS 30000u
/* A probe whose end is never told must not keep the breaker shut. */
#define PROBE_MAX_MS 30000u
/* A timer that is later than this is not late by chance. */
#define LATE_MS 100u
#define LATE_MAX 4u
/* A ping takes a round trip and, on a busy machine, some milliseconds. */
#define SLOW_PING_MS 50u
#define SLOW_PING_RTTS 4u

static void open_breaker(struct dctf_breaker *breaker, uint64_t now_ms)
{
    breaker->state = DCTF_BREAKER_OPEN;
    breaker->pause_ms = breaker->pause_ms ? breaker->pause_ms * 2 : PAUSE_FIRST_MS;
    if (breaker->pause_ms > PAUSE_MAX_MS)
        breaker->pause_ms = PAUSE_MAX_MS;
    breaker->until_ms = now_ms + breaker->pause_ms;
}

bool dctf_breaker_allows(struct dctf_breaker *breaker, uint64_t now_ms)
{
    if (breaker->state == DCTF_BREAKER_CLOSED)
        return true;
    if (now_ms < breaker->until_ms)
        return false;
    breaker->state = DCTF_BREAKER_PROBING;
    breaker->until_ms = now_ms + PROBE_MAX_MS;
    return true;
}

void dctf_breaker_ok(struct dctf_breaker *breaker)
{
    *breaker = (struct dctf_breaker){.state = DCTF_BREAKER_CLOSED};
}

void dctf_breaker_failed(struct dctf_breaker *breaker, bool deadline, uint64_t now_ms)
{
    switch (breaker->state) {
    case DCTF_BREAKER_CLOSED:
        if (++breaker->failures >= FAILURES_MAX || deadline)
            open_breaker(breaker, now_ms);
        break;
    case DCTF_BREAKER_PROBING:
        open_breaker(breaker, now_ms);
        break;
    case DCTF_BREAKER_OPEN: /* requests that had begun before */
        break;
    }
}

bool dctf_ping_counts(unsigned *late, uint64_t took_ms, uint64_t timeout_ms)
{
    if (took_ms < timeout_ms + LATE_MS || *late >= LATE_MAX)
        return true;
    ++*late;
    return false;
}

bool dctf_ping_is_slow(uint64_t out_ms, unsigned missed, uint64_t rtt_us)
{
    return missed || (out_ms >= SLOW_PING_MS && out_ms >= SLOW_PING_RTTS * rtt_us / 1000);
}

void dctf_hedge_init(struct dctf_hedge_budget *budget, double per_fetch, double burst, unsigned running_max)
{
    *budget = (struct dctf_hedge_budget){.per_fetch = per_fetch, .burst = burst, .running_max = running_max};
}

void dctf_hedge_earn(struct dctf_hedge_budget *budget)
{
    budget->tokens += budget->per_fetch;
    if (budget->tokens > budget->burst)
        budget->tokens = budget->burst;
}

bool dctf_hedge_take(struct dctf_hedge_budget *budget)
{
    if (budget->tokens < 1 || budget->running >= budget->running_max)
        return false;
    budget->tokens -= 1;
    budget->running++;
    return true;
}

void dctf_hedge_end(struct dctf_hedge_budget *budget)
{
    if (budget->running)
        budget->running--;
}

uint64_t dctf_hedge_after_us(uint64_t p50_us, uint64_t p99_us, uint64_t floor_us)
{
    uint64_t after = p99_us > 3 * p50_us ? p99_us : 3 * p50_us;

    return after > floor_us ? after : floor_us;
}
