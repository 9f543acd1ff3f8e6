/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#include <sys/random.h>
#include <time.h>
#include <unistd.h>

static uint64_t read_ns(clockid_t id)
{
    struct timespec ts;

    clock_gettime(id, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

uint64_t dctf_clock_mono_ns(const struct dctf_clock *clock)
{
    if (clock && clock->mono_ns)
        return clock->mono_ns(clock->ctx);
    return read_ns(CLOCK_MONOTONIC);
}

uint64_t dctf_clock_mono_ms(const struct dctf_clock *clock)
{
    return dctf_clock_mono_ns(clock) / 1000000u;
}

uint64_t dctf_clock_wall_ms(const struct dctf_clock *clock)
{
    if (clock && clock->wall_ms)
        return clock->wall_ms(clock->ctx);
    return read_ns(CLOCK_REALTIME) / 1000000u;
}

uint64_t dctf_rng_next(struct dctf_rng *rng)
{
    uint64_t z = (rng->state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t dctf_rng_below(struct dctf_rng *rng, uint64_t bound)
{
    return (uint64_t)(((__uint128_t)dctf_rng_next(rng) * bound) >> 64);
}

uint64_t dctf_rng_seed(void)
{
    uint64_t seed;

    if (getrandom(&seed, sizeof(seed), 0) != (ssize_t)sizeof(seed))
        seed = read_ns(CLOCK_REALTIME) ^ ((uint64_t)getpid() << 32);
    return seed;
}
