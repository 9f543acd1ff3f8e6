/* SPDX-License-Identifier: Apache-2.0
 *
 * A bound on bytes per second: a bucket of a quarter of a second. What is taken may be more than is in it,
 * and is paid back before anything more: over any time t at most rate × (t + 1/4 s) and one request pass.
 * And what a path carries, as far as this node has seen.
 *
 * Threads:   caller locks. Pure: time is an argument.
 * Ownership: embedded; no resources.
 */
#ifndef DCTF_CLUSTER_RATE_H
#define DCTF_CLUSTER_RATE_H

#include <stdbool.h>
#include <stdint.h>

struct dctf_rate {
    uint64_t per_s; /* > 0 */
    double tokens;
    uint64_t filled_ms;
};

static inline void dctf_rate_init(struct dctf_rate *rate, uint64_t per_s, uint64_t now_ms)
{
    *rate = (struct dctf_rate){.per_s = per_s, .tokens = (double)per_s / 4, .filled_ms = now_ms};
}

/* Milliseconds until something may be taken; 0: now. */
static inline uint64_t dctf_rate_wait_ms(struct dctf_rate *rate, uint64_t now_ms)
{
    double most = (double)rate->per_s / 4;

    rate->tokens += (double)(now_ms - rate->filled_ms) * (double)rate->per_s / 1000;
    rate->filled_ms = now_ms;
    if (rate->tokens > most)
        rate->tokens = most;
    return rate->tokens > 0 ? 0 : (uint64_t)(-rate->tokens * 1000 / (double)rate->per_s) + 1;
}

static inline void dctf_rate_take(struct dctf_rate *rate, uint64_t bytes)
{
    rate->tokens -= (double)bytes;
}

/* --- what a path carries --- */

#define DCTF_PATH_RATES 4u
#define DCTF_PATH_RATE_MS 2500u     /* between two looks */
#define DCTF_PATH_RATE_SOON_MS 200u /* when the last one was bounded by the window */

/* The best of what some requests that went unpaced came by. The best, since whatever disturbs one makes it
 * slower. */
struct dctf_path_rate {
    uint64_t seen[DCTF_PATH_RATES]; /* bytes/s, a ring */
    unsigned count;
    uint64_t due_ms; /* of the next look */
};

/* Is it time to send one unpaced? */
static inline bool dctf_path_rate_is_due(const struct dctf_path_rate *rate, uint64_t now_ms)
{
    return !rate->count || now_ms >= rate->due_ms;
}

/* `full`: it filled its window, and there is a larger one. */
static inline void dctf_path_rate_note(
    struct dctf_path_rate *rate, uint64_t per_s, bool full, uint64_t now_ms)
{
    rate->seen[rate->count % DCTF_PATH_RATES] = per_s;
    if (++rate->count == 2 * DCTF_PATH_RATES) /* full stays full */
        rate->count = DCTF_PATH_RATES;
    rate->due_ms = now_ms + (full ? DCTF_PATH_RATE_SOON_MS : DCTF_PATH_RATE_MS);
}

/* Bytes/s; 0: not known. */
static inline uint64_t dctf_path_rate(const struct dctf_path_rate *rate)
{
    uint64_t most = 0;

    for (unsigned i = 0; i < DCTF_PATH_RATES && i < rate->count; i++) {
        if (rate->seen[i] > most)
            most = rate->seen[i];
    }
    return most;
}

/* What has to be under way at once to carry that much: half as much again as rate × round trip. A window that
 * was too small shows, since it was full: so it grows from one look to the next, for as long as that helps.
 */
static inline uint64_t dctf_path_rate_window(const struct dctf_path_rate *rate, uint64_t min_rtt_us)
{
    return dctf_path_rate(rate) / 1000 * min_rtt_us / 1000 * 3 / 2 + 1;
}

#endif
