/* SPDX-License-Identifier: Apache-2.0
 *
 * Heat records as bytes. Internal to heat*.c and its tests.
 *
 *   's' dataset(8, BE) key_hash(8, BE)   → record: access_count last_ms weight
 *   'f' dataset(8, BE) feature_id(8, BE) → record
 *   'n' dataset(8, BE) feature_id(8, BE) → stamp_ms, path (its rest, no NUL)
 *
 * Values are little-endian; weight is the bits of a double: accesses decayed to
 * last_ms. A record is also the operand that adds to one.
 *
 * Threads:   any thread; everything here is pure.
 * Ownership: nothing is kept.
 */
#ifndef DCTF_CACHE_HEAT_RECORD_H
#define DCTF_CACHE_HEAT_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DCTF_HEAT_RECORD_BYTES 24u
#define DCTF_HEAT_KEY_BYTES 17u
#define DCTF_HEAT_PREFIX_BYTES 9u
#define DCTF_HEAT_STAMP_BYTES 8u

struct dctf_heat_count {
    uint64_t access_count;
    uint64_t last_ms;
    double weight; /* at last_ms */
};

void dctf_heat_count_encode(const struct dctf_heat_count *count, uint8_t *buf);
/* False, and zeros, when the bytes are not a record. */
bool dctf_heat_count_decode(const void *data, size_t len, struct dctf_heat_count *out);
/* Add accesses, decaying both sides to the later time. Older than `ttl_ms` before
 * the addition, `count` had ended and begins anew. */
void dctf_heat_count_add(struct dctf_heat_count *count, const struct dctf_heat_count *more,
    uint64_t half_life_ms, uint64_t ttl_ms);
double dctf_heat_count_at(const struct dctf_heat_count *count, uint64_t now_ms, uint64_t half_life_ms);
/* Not touched for the ttl. */
bool dctf_heat_count_ended(const struct dctf_heat_count *count, uint64_t now_ms, uint64_t ttl_ms);

/* `buf` ≥ DCTF_HEAT_KEY_BYTES. */
void dctf_heat_key(char kind, uint64_t dataset, uint64_t id, uint8_t *buf);
uint64_t dctf_heat_key_id(const void *key); /* of DCTF_HEAT_KEY_BYTES */

void dctf_heat_stamp_encode(uint64_t stamp_ms, uint8_t *buf);
uint64_t dctf_heat_stamp_decode(const void *data);

#endif
