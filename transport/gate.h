/* SPDX-License-Identifier: Apache-2.0
 *
 * The condition trigger: may a background transfer start on this path now?
 *
 * One gate per path (the way from one peer to this node). It keeps what is known of the path
 * (smallest and current round-trip time, how long demand reads wait for their first byte,
 * what background delivers) and turns it into a window: the bytes of background transfers that
 * may be under way. Demand never asks it.
 *
 *   demand waits on the path, or this node is under pressure ── window 0
 *   verdict "no"    window / 2, at most once per max(RTT, 100 ms); never below one block
 *   verdict "hold"  as it is
 *   verdict "yes"   + one block for each block delivered, up to the cap
 *
 * There is no state without a way out: one block may always go once demand is done, and
 * no back-off lasts longer than five seconds.
 *
 * Threads:   caller locks. Pure: time comes in as an argument, nothing blocks.
 * Ownership: embedded; no resources.
 */
#ifndef DCTF_TRANSPORT_GATE_H
#define DCTF_TRANSPORT_GATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* --- the trigger function --- */

/* Constants of the Vegas variant: base = min_rtt × base_factor, expected = window / base, actual = window /
 * current_rtt. */
struct dctf_gate_constants {
    double base_factor;  /* 1.25 */
    double congested;    /* actual below this share of expected: no; 0.85 */
    double open;         /* at or above this share: yes; 0.92 */
    unsigned slow_start; /* a window below this many MSS need not be "open", only not congested; 16 */
};
extern const struct dctf_gate_constants dctf_gate_defaults;

enum dctf_gate_verdict {
    DCTF_GATE_NO,   /* congested */
    DCTF_GATE_HOLD, /* neither */
    DCTF_GATE_YES,
};

/* `floor_us` is added to both times: scheduling noise must not look like a queue on a path whose
 * round trip is shorter than it. Window in bytes; MSS in bytes. */
enum dctf_gate_verdict dctf_gate_trigger(const struct dctf_gate_constants *constants, uint64_t window,
    uint32_t mss, uint64_t min_rtt_us, uint64_t current_rtt_us, uint64_t floor_us);

/* --- one path --- */

#define DCTF_GATE_BUCKETS 10u /* of a minute each: horizon of the smallest round-trip time */
#define DCTF_GATE_RECENT 4u
#define DCTF_GATE_IDLE_SAMPLES 32u
#define DCTF_GATE_WAIT_SAMPLES 64u

struct dctf_gate_config {
    struct dctf_gate_constants constants;
    uint64_t block_bytes;      /* the window's unit; 256 KiB */
    uint64_t window_max_bytes; /* cap; 16 MiB */
    uint64_t floor_us;         /* added to round-trip times until calibrated; 1000 */
};

/* Everything here is private but for reading in status; use the functions. */
struct dctf_gate {
    struct dctf_gate_config config;
    uint64_t window;    /* bytes */
    uint64_t in_flight; /* bytes of background asked for and not delivered */
    unsigned demand;    /* demand reads waiting on the path */
    uint64_t demand_ms; /* when the last of them ended; 0: none did */
    uint32_t mss;
    /* smallest round trip by minute of the clean samples; 0: none */
    uint64_t minute[DCTF_GATE_BUCKETS];
    uint64_t minute_of[DCTF_GATE_BUCKETS];
    /* current: minimum of the last few, then smoothed */
    uint64_t recent[DCTF_GATE_RECENT];
    unsigned recent_count;
    uint64_t current_us;
    uint64_t last_sample_ms;
    /* noise of an idle path, for the floor */
    uint64_t idle[DCTF_GATE_IDLE_SAMPLES];
    unsigned idle_count;
    uint64_t floor_us;
    /* first-byte times of demand: usual (path without background) and now */
    uint64_t usual[DCTF_GATE_WAIT_SAMPLES], now[DCTF_GATE_WAIT_SAMPLES];
    unsigned usual_count, now_count;
    /* the knee: delivery at half the window */
    uint64_t delivered, mark_ms, rate, rate_at_half, window_at_half;
    uint64_t last_cut_ms;
    uint64_t last_clean_ms; /* of a clean sample; decides on a slowdown */
    uint64_t slowdown_until_ms;
    uint64_t slowdowns;
    enum dctf_gate_verdict verdict;
    enum { DCTF_GATE_WHY_NONE, DCTF_GATE_WHY_RTT, DCTF_GATE_WHY_WAIT, DCTF_GATE_WHY_KNEE } why;
};

void dctf_gate_init(struct dctf_gate *gate, const struct dctf_gate_config *config, uint64_t now_ms);

/* A round trip was measured: by an idle ping, or by the serving side on its socket. `clean`: nothing of ours
 * was under way on the path. Zero and absurd (> 60 s) times are ignored. */
void dctf_gate_sample(struct dctf_gate *gate, uint64_t rtt_us, bool clean, uint64_t now_ms);
/* A demand read began, and got its first byte (net of what the server says it waited for disk and
 * origin; 0: it ended without one). */
void dctf_gate_demand_begin(struct dctf_gate *gate);
void dctf_gate_demand_end(struct dctf_gate *gate, uint64_t first_byte_us, uint64_t now_ms);

/* May `bytes` of background start? Takes them into flight when so. Never while demand waits or a
 * slowdown lasts. `pressure`: this node cannot take more (memory, disk, PSI). */
bool dctf_gate_try(struct dctf_gate *gate, uint64_t bytes, bool pressure, uint64_t now_ms);
/* How much one request should ask for: the window, but a block while readers use the path, so that what one
 * of them comes upon is soon over. */
uint64_t dctf_gate_request_bytes(const struct dctf_gate *gate, uint64_t now_ms);
/* They came (or failed: delivered = 0). Grows or cuts the window. */
void dctf_gate_done(struct dctf_gate *gate, uint64_t bytes, uint64_t delivered, uint64_t now_ms);
/* When to try again at the latest, from now; ≤ 5000. */
uint64_t dctf_gate_retry_ms(const struct dctf_gate *gate, uint64_t now_ms);

/* The verdict as it would be now, for who looks on. */
enum dctf_gate_verdict dctf_gate_look(const struct dctf_gate *gate, uint64_t now_ms);
/* Smallest round trip of the last ten minutes, 0 when unknown. */
uint64_t dctf_gate_min_rtt_us(const struct dctf_gate *gate, uint64_t now_ms);

#endif
