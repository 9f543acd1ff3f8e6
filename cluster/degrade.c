/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/degrade.h"

void dctf_degrade_sample(struct dctf_degrade *degrade, uint64_t total_us)
{
    degrade->sum_us += total_us;
    degrade->count++;
}

bool dctf_degrade_tick(struct dctf_degrade *degrade)
{
    bool was = degrade->on;

    if (!degrade->count) {
        degrade->silent++;
        if (degrade->on || degrade->silent >= DCTF_DEGRADE_SECONDS) {
            degrade->fast++;
            degrade->slow = 0;
        }
    } else if (degrade->sum_us / degrade->count > DCTF_DEGRADE_US) {
        degrade->slow++;
        degrade->fast = degrade->silent = 0;
    } else {
        degrade->fast++;
        degrade->slow = degrade->silent = 0;
    }
    degrade->sum_us = degrade->count = 0;
    if (degrade->slow >= DCTF_DEGRADE_SECONDS)
        degrade->on = true;
    else if (degrade->fast >= DCTF_DEGRADE_SECONDS)
        degrade->on = false;
    return degrade->on != was;
}
