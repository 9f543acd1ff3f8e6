/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantiles of durations, of late: a histogram of quarter octaves whose counts are halved
 * now and then, so that what was long ago fades (exponential decay by count).
 *
 * Threads:   caller locks.
 * Ownership: embedded; all zeros is an empty one.
 */
#ifndef DCTF_BASE_QUANTILE_H
#define DCTF_BASE_QUANTILE_H

#include <stdint.h>

#define DCTF_QUANTILE_BUCKETS 112u /* from 4 µs to a quarter of an hour */

struct dctf_quantile {
    uint32_t count[DCTF_QUANTILE_BUCKETS];
    uint32_t total;
};

void dctf_quantile_add(struct dctf_quantile *quantile, uint64_t ns);
/* Upper bound of the bucket that holds the quantile, ns; `permille` 500 is the median, 990
 * the 99th percentile. 0 while empty. */
uint64_t dctf_quantile_ns(const struct dctf_quantile *quantile, unsigned permille);

#endif
