/* SPDX-License-Identifier: Apache-2.0
 *
 * Time and randomness, injectable, so that tests need no sleeps.
 *
 * Threads:   any thread.
 * Ownership: a clock is a small value, copied into whoever needs it.
 */
#ifndef DCTF_BASE_CLOCK_H
#define DCTF_BASE_CLOCK_H

#include <stdint.h>

struct dctf_clock {
    /* Monotonic milliseconds and nanoseconds; NULL means CLOCK_MONOTONIC. */
    uint64_t (*mono_ns)(void *ctx);
    /* Wall-clock milliseconds since the epoch; NULL means CLOCK_REALTIME. */
    uint64_t (*wall_ms)(void *ctx);
    void *ctx; /* borrowed */
};

/* `clock` may be NULL: the system's clocks. */
uint64_t dctf_clock_mono_ns(const struct dctf_clock *clock);
uint64_t dctf_clock_mono_ms(const struct dctf_clock *clock);
uint64_t dctf_clock_wall_ms(const struct dctf_clock *clock);

/* A small, fast, seedable generator (splitmix64, Steele et al. 2014); not for
 * secrets. The caller locks. */
struct dctf_rng {
    uint64_t state;
};

uint64_t dctf_rng_next(struct dctf_rng *rng);
/* Uniform in [0, bound); bound > 0. */
uint64_t dctf_rng_below(struct dctf_rng *rng, uint64_t bound);
/* A seed from the kernel's entropy, for production use. */
uint64_t dctf_rng_seed(void);

#endif
