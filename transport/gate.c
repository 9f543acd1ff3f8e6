/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/gate.h"

#include <stdlib.h>
#include <string.h>

#define MINUTE_MS 60000u
#define SAMPLE_MAX_US 60000000u
#define CUT_PAUSE_MS 100u
#define RETRY_MAX_MS 5000u
#define FLOOR_MIN_US 200u
#define FLOOR_MAX_US 2000u
/* Without a clean sample for so long, the path is emptied to get one. */
#define CLEAN_MAX_MS (10u * MINUTE_MS)
#define SLOWDOWN_MIN_MS 50u
/* A current time this old says nothing. */
#define SAMPLE_AGE_MS 10000u
/* Time after which a sample weighs as much as all before it. */
#define SMOOTH_MS 250u
/* Doubling the window has to bring so much more, else it was a queue that grew. */
#define KNEE_GAIN 1.1
#define RATE_PERIOD_MS 200u
#define ENOUGH_SAMPLES 8u
/* Readers use the path for so long after the last of their requests. */
#define DEMAND_MS 1000u
/* Between two looks whether readers are done. */
#define DEMAND_RETRY_MS 1u

const struct dctf_gate_constants dctf_gate_defaults = {
    .base_factor = 1.25,
    .congested = 0.85,
    .open = 0.92,
    .slow_start = 16,
};

enum dctf_gate_verdict dctf_gate_trigger(const struct dctf_gate_constants *constants, uint64_t window,
    uint32_t mss, uint64_t min_rtt_us, uint64_t current_rtt_us, uint64_t floor_us)
{
    double base = (double)(min_rtt_us + floor_us) * constants->base_factor;
    double current = (double)(current_rtt_us + floor_us);
    double expected, actual;

    if (!min_rtt_us || !current_rtt_us || base <= 0 || current <= 0)
        return DCTF_GATE_YES; /* nothing is known: the window's start bounds it */
    expected = (double)window / base;
    actual = (double)window / current;
    if (actual < constants->congested * expected)
        return DCTF_GATE_NO;
    if (window < (uint64_t)constants->slow_start * mss)
        return DCTF_GATE_YES;
    return actual >= constants->open * expected ? DCTF_GATE_YES : DCTF_GATE_HOLD;
}

void dctf_gate_init(struct dctf_gate *gate, const struct dctf_gate_config *config, uint64_t now_ms)
{
    memset(gate, 0, sizeof(*gate));
    gate->config = *config;
    gate->window = config->block_bytes;
    gate->mss = 1460;
    gate->floor_us = config->floor_us;
    gate->mark_ms = gate->last_clean_ms = now_ms;
    gate->verdict = DCTF_GATE_YES;
}

/* --- measuring --- */

uint64_t dctf_gate_min_rtt_us(const struct dctf_gate *gate, uint64_t now_ms)
{
    uint64_t minute = now_ms / MINUTE_MS, least = 0;

    for (unsigned i = 0; i < DCTF_GATE_BUCKETS; i++) {
        if (gate->minute[i] && minute - gate->minute_of[i] < DCTF_GATE_BUCKETS &&
            (!least || gate->minute[i] < least))
            least = gate->minute[i];
    }
    return least;
}

static int compare_numbers(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;

    return left < right ? -1 : left > right;
}

/* The 95th percentile of a ring of `count` ≤ DCTF_GATE_WAIT_SAMPLES samples. */
static uint64_t p95(const uint64_t *samples, unsigned count)
{
    uint64_t sorted[DCTF_GATE_WAIT_SAMPLES];

    memcpy(sorted, samples, count * sizeof(*samples));
    qsort(sorted, count, sizeof(*sorted), compare_numbers);
    return sorted[count * 95 / 100 < count ? count * 95 / 100 : count - 1];
}

/* Add to a ring whose count goes on past its size. */
static void ring_add(uint64_t *ring, unsigned size, unsigned *count, uint64_t value)
{
    ring[*count % size] = value;
    if (++*count == 2 * size) /* full stays full */
        *count = size;
}

static unsigned ring_used(unsigned count, unsigned size)
{
    return count < size ? count : size;
}

/* Four times the jitter of an idle path is not a queue. */
static void calibrate(struct dctf_gate *gate, uint64_t rtt_us, uint64_t now_ms)
{
    uint64_t least, spread;
    unsigned used;

    ring_add(gate->idle, DCTF_GATE_IDLE_SAMPLES, &gate->idle_count, rtt_us);
    used = ring_used(gate->idle_count, DCTF_GATE_IDLE_SAMPLES);
    if (used < ENOUGH_SAMPLES)
        return;
    least = dctf_gate_min_rtt_us(gate, now_ms);
    spread = p95(gate->idle, used);
    spread = spread > least ? 4 * (spread - least) : 0;
    gate->floor_us = spread < FLOOR_MIN_US ? FLOOR_MIN_US : spread > FLOOR_MAX_US ? FLOOR_MAX_US : spread;
}

/* A sample weighs an eighth among many, and the more the longer there was none: pings once a second must
 * not take half a minute to tell that a queue is gone. */
static void smooth(struct dctf_gate *gate, uint64_t rtt_us, uint64_t since_ms)
{
    uint64_t least = 0, span_ms = since_ms + SMOOTH_MS;
    unsigned used;

    ring_add(gate->recent, DCTF_GATE_RECENT, &gate->recent_count, rtt_us);
    used = ring_used(gate->recent_count, DCTF_GATE_RECENT);
    for (unsigned i = 0; i < used; i++) { /* noise only ever adds */
        if (!least || gate->recent[i] < least)
            least = gate->recent[i];
    }
    if (since_ms * 8 < span_ms) {
        since_ms = 1;
        span_ms = 8;
    }
    gate->current_us =
        gate->current_us ? (gate->current_us * (span_ms - since_ms) + least * since_ms) / span_ms : least;
}

void dctf_gate_sample(struct dctf_gate *gate, uint64_t rtt_us, bool clean, uint64_t now_ms)
{
    uint64_t minute = now_ms / MINUTE_MS;
    unsigned at = (unsigned)(minute % DCTF_GATE_BUCKETS);

    if (!rtt_us || rtt_us > SAMPLE_MAX_US)
        return;
    if (now_ms - gate->last_sample_ms > SAMPLE_AGE_MS) { /* the old ones are of another time */
        gate->recent_count = 0;
        gate->current_us = 0;
    }
    smooth(gate, rtt_us, now_ms - gate->last_sample_ms);
    gate->last_sample_ms = now_ms;
    /* Without any clean sample yet a loaded one is better than none; it is an upper bound. */
    if (!clean && dctf_gate_min_rtt_us(gate, now_ms) && dctf_gate_min_rtt_us(gate, now_ms) <= rtt_us)
        return;
    if (!gate->minute[at] || gate->minute_of[at] != minute || rtt_us < gate->minute[at])
        gate->minute[at] = rtt_us;
    gate->minute_of[at] = minute;
    if (clean) {
        gate->last_clean_ms = now_ms;
        calibrate(gate, rtt_us, now_ms);
    }
}

void dctf_gate_demand_begin(struct dctf_gate *gate)
{
    gate->demand++;
}

void dctf_gate_demand_end(struct dctf_gate *gate, uint64_t first_byte_us, uint64_t now_ms)
{
    gate->demand_ms = now_ms;
    if (gate->demand)
        gate->demand--;
    if (!first_byte_us)
        return;
    if (gate->in_flight)
        ring_add(gate->now, DCTF_GATE_WAIT_SAMPLES, &gate->now_count, first_byte_us);
    else
        ring_add(gate->usual, DCTF_GATE_WAIT_SAMPLES, &gate->usual_count, first_byte_us);
}

/* --- deciding --- */

/* What the gate is there for, measured itself: demand waits twice as long as it does without background. */
static bool demand_suffers(const struct dctf_gate *gate)
{
    unsigned usual = ring_used(gate->usual_count, DCTF_GATE_WAIT_SAMPLES);
    unsigned now = ring_used(gate->now_count, DCTF_GATE_WAIT_SAMPLES);

    return usual >= ENOUGH_SAMPLES && now >= ENOUGH_SAMPLES &&
           p95(gate->now, now) > 2 * p95(gate->usual, usual) + gate->floor_us;
}

static enum dctf_gate_verdict by_round_trip(const struct dctf_gate *gate, uint64_t now_ms)
{
    uint64_t current = now_ms - gate->last_sample_ms > SAMPLE_AGE_MS ? 0 : gate->current_us;

    return dctf_gate_trigger(&gate->config.constants, gate->window, gate->mss,
        dctf_gate_min_rtt_us(gate, now_ms), current, gate->floor_us);
}

enum dctf_gate_verdict dctf_gate_look(const struct dctf_gate *gate, uint64_t now_ms)
{
    return demand_suffers(gate) ? DCTF_GATE_NO : by_round_trip(gate, now_ms);
}

static void judge(struct dctf_gate *gate, uint64_t now_ms)
{
    gate->why = DCTF_GATE_WHY_NONE;
    gate->verdict = by_round_trip(gate, now_ms);
    if (gate->verdict == DCTF_GATE_NO)
        gate->why = DCTF_GATE_WHY_RTT;
    if (demand_suffers(gate)) {
        gate->verdict = DCTF_GATE_NO;
        gate->why = DCTF_GATE_WHY_WAIT;
    }
}

/* Rate of delivery, and the knee: twice the window without a tenth more delivered was too much. */
static bool past_knee(struct dctf_gate *gate, uint64_t now_ms)
{
    uint64_t spent = now_ms - gate->mark_ms;
    bool past = false;

    if (spent < RATE_PERIOD_MS)
        return false;
    gate->rate = gate->delivered * 1000 / spent;
    gate->delivered = 0;
    gate->mark_ms = now_ms;
    if (!gate->window_at_half || gate->window < gate->window_at_half) {
        gate->window_at_half = gate->window;
        gate->rate_at_half = gate->rate;
    } else if (gate->window >= 2 * gate->window_at_half) {
        past = (double)gate->rate < KNEE_GAIN * (double)gate->rate_at_half;
        if (!past) {
            gate->window_at_half = gate->window;
            gate->rate_at_half = gate->rate;
        }
    }
    return past;
}

static void cut(struct dctf_gate *gate, uint64_t now_ms)
{
    uint64_t rtt_ms = gate->current_us / 1000;

    if (now_ms - gate->last_cut_ms < (rtt_ms > CUT_PAUSE_MS ? rtt_ms : CUT_PAUSE_MS))
        return;
    gate->last_cut_ms = now_ms;
    gate->window /= 2;
    if (gate->window < gate->config.block_bytes)
        gate->window = gate->config.block_bytes;
    gate->window_at_half = 0;
    gate->now_count = 0; /* what was measured is of the old window */
}

/* The smallest round trip must not come from a path that is never empty. */
static bool in_slowdown(struct dctf_gate *gate, uint64_t now_ms)
{
    uint64_t pause = 2 * gate->current_us / 1000;

    if (now_ms < gate->slowdown_until_ms)
        return true;
    if (now_ms - gate->last_clean_ms < CLEAN_MAX_MS)
        return false;
    pause = pause < SLOWDOWN_MIN_MS ? SLOWDOWN_MIN_MS : pause > RETRY_MAX_MS ? RETRY_MAX_MS : pause;
    gate->slowdown_until_ms = now_ms + pause;
    /* At most a tenth of the time, should no sample come of it. */
    gate->last_clean_ms = now_ms + 10 * pause - CLEAN_MAX_MS;
    gate->slowdowns++;
    return true;
}

bool dctf_gate_try(struct dctf_gate *gate, uint64_t bytes, bool pressure, uint64_t now_ms)
{
    if (gate->demand || pressure || in_slowdown(gate, now_ms))
        return false;
    judge(gate, now_ms);
    /* A request larger than the window may go alone, else it never would. */
    if (gate->in_flight && gate->in_flight + bytes > gate->window)
        return false;
    if (gate->verdict == DCTF_GATE_NO && gate->in_flight)
        return false;
    gate->in_flight += bytes;
    return true;
}

uint64_t dctf_gate_request_bytes(const struct dctf_gate *gate, uint64_t now_ms)
{
    bool used = gate->demand || (gate->demand_ms && now_ms - gate->demand_ms < DEMAND_MS);

    return used || gate->verdict == DCTF_GATE_NO ? gate->config.block_bytes : gate->window;
}

void dctf_gate_done(struct dctf_gate *gate, uint64_t bytes, uint64_t delivered, uint64_t now_ms)
{
    gate->in_flight = gate->in_flight > bytes ? gate->in_flight - bytes : 0;
    gate->delivered += delivered;
    judge(gate, now_ms);
    if (past_knee(gate, now_ms)) {
        gate->verdict = DCTF_GATE_NO;
        gate->why = DCTF_GATE_WHY_KNEE;
    }
    if (gate->verdict == DCTF_GATE_NO) {
        cut(gate, now_ms);
    } else if (gate->verdict == DCTF_GATE_YES && delivered) {
        gate->window += delivered < gate->config.block_bytes ? delivered : gate->config.block_bytes;
        if (gate->window > gate->config.window_max_bytes)
            gate->window = gate->config.window_max_bytes;
    }
}

uint64_t dctf_gate_retry_ms(const struct dctf_gate *gate, uint64_t now_ms)
{
    uint64_t wait = gate->current_us / 500; /* two round trips */

    if (now_ms < gate->slowdown_until_ms)
        wait = gate->slowdown_until_ms - now_ms;
    else if (gate->demand)
        wait = DEMAND_RETRY_MS;
    else if (gate->verdict == DCTF_GATE_NO && wait < CUT_PAUSE_MS)
        wait = CUT_PAUSE_MS;
    return wait < 1 ? 1 : wait > RETRY_MAX_MS ? RETRY_MAX_MS : wait;
}
