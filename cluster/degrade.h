/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether transfers from peers have been so slow, for so long, that this node should only do what readers
 * wait for. On after ten seconds in which transfers took more than 500 ms on average, off after ten in which
 * they did not, or there were none: it cannot stay on by itself.
 *
 * Threads:   caller locks. Pure: time is an argument.
 * Ownership: embedded; no resources. Zeros are a good start.
 */
#ifndef DCTF_CLUSTER_DEGRADE_H
#define DCTF_CLUSTER_DEGRADE_H

#include <stdbool.h>
#include <stdint.h>

#define DCTF_DEGRADE_US 500000u
#define DCTF_DEGRADE_SECONDS 10u

struct dctf_degrade {
    uint64_t sum_us, count; /* since the last tick */
    unsigned slow, fast;    /* ticks in a row */
    unsigned silent;        /* ticks without a transfer, in a row */
    bool on;
};

/* A transfer for a reader came to its end. */
void dctf_degrade_sample(struct dctf_degrade *degrade, uint64_t total_us);
/* Once a second. True: `on` has changed. */
bool dctf_degrade_tick(struct dctf_degrade *degrade);

#endif
