/* SPDX-License-Identifier: Apache-2.0 */
#include "base/quantile.h"

#define BASE_NS 4000u
#define HALVE_AT 1024u

static unsigned bucket_of(uint64_t ns)
{
    uint64_t units = ns / BASE_NS;
    unsigned octave, quarter, bucket;

    if (units == 0)
        return 0;
    octave = 63u - (unsigned)__builtin_clzll(units);
    quarter = octave >= 2 ? (unsigned)(units >> (octave - 2)) & 3u : (unsigned)(units << (2 - octave)) & 3u;
    bucket = octave * 4 + quarter + 1;
    return bucket < DCTF_QUANTILE_BUCKETS ? bucket : DCTF_QUANTILE_BUCKETS - 1;
}

static uint64_t bound_ns(unsigned bucket)
{
    unsigned octave, quarter;

    if (bucket == 0)
        return BASE_NS;
    octave = (bucket - 1) / 4;
    quarter = (bucket - 1) % 4;
    return (((uint64_t)BASE_NS << octave) / 4) * (5 + quarter);
}

void dctf_quantile_add(struct dctf_quantile *quantile, uint64_t ns)
{
    if (quantile->total >= HALVE_AT) {
        quantile->total = 0;
        for (unsigned i = 0; i < DCTF_QUANTILE_BUCKETS; i++)
            quantile->total += quantile->count[i] /= 2;
    }
    quantile->count[bucket_of(ns)]++;
    quantile->total++;
}

uint64_t dctf_quantile_ns(const struct dctf_quantile *quantile, unsigned permille)
{
    uint64_t above = (uint64_t)quantile->total * (1000 - permille) / 1000; /* may lie above it */
    unsigned bucket = DCTF_QUANTILE_BUCKETS;

    if (!quantile->total)
        return 0;
    while (bucket > 0) {
        bucket--;
        if (quantile->count[bucket] > above)
            break;
        above -= quantile->count[bucket];
    }
    return bound_ns(bucket);
}
