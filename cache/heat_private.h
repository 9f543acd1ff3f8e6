/* SPDX-License-Identifier: Apache-2.0
 *
 * What heat.c and heat_rank.c share.
 *
 * Threads:   any thread.
 * Ownership: everything returned is borrowed from the table.
 */
#ifndef DCTF_CACHE_HEAT_PRIVATE_H
#define DCTF_CACHE_HEAT_PRIVATE_H

#include "cache/heat.h"
#include "cache/heat_record.h"

const struct dctf_heat_config *dctf_heat_config_of(const struct dctf_heat *heat);
struct dctf_kv *dctf_heat_kv_of(const struct dctf_heat *heat);
/* Zeros when the count has ended. */
void dctf_heat_value_of(const struct dctf_heat_config *config, const struct dctf_heat_count *count,
    uint64_t now_ms, struct dctf_heat_value *out);

#endif
