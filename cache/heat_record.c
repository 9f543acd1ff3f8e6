/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/heat_record.h"

#include "base/le.h"
#include "cache/heat.h"

#include <float.h>
#include <math.h>
#include <string.h>

void dctf_heat_count_encode(const struct dctf_heat_count *count, uint8_t *buf)
{
    uint64_t bits;

    memcpy(&bits, &count->weight, sizeof(bits));
    dctf_le_put(buf, count->access_count, 8);
    dctf_le_put(buf + 8, count->last_ms, 8);
    dctf_le_put(buf + 16, bits, 8);
}

bool dctf_heat_count_decode(const void *data, size_t len, struct dctf_heat_count *out)
{
    const uint8_t *bytes = data;
    uint64_t bits;

    *out = (struct dctf_heat_count){0};
    if (len != DCTF_HEAT_RECORD_BYTES)
        return false;
    bits = dctf_le_get(bytes + 16, 8);
    memcpy(&out->weight, &bits, sizeof(bits));
    if (!isfinite(out->weight) || out->weight < 0) {
        out->weight = 0;
        return false;
    }
    out->access_count = dctf_le_get(bytes, 8);
    out->last_ms = dctf_le_get(bytes + 8, 8);
    return true;
}

double dctf_heat_count_at(const struct dctf_heat_count *count, uint64_t now_ms, uint64_t half_life_ms)
{
    /* A wall clock may step back; half_life 0 would divide by it. */
    if (now_ms <= count->last_ms || half_life_ms == 0)
        return count->weight;
    return count->weight * exp2(-(double)(now_ms - count->last_ms) / (double)half_life_ms);
}

bool dctf_heat_count_ended(const struct dctf_heat_count *count, uint64_t now_ms, uint64_t ttl_ms)
{
    return now_ms > count->last_ms && now_ms - count->last_ms > ttl_ms;
}

void dctf_heat_count_add(
    struct dctf_heat_count *count, const struct dctf_heat_count *more, uint64_t half_life_ms, uint64_t ttl_ms)
{
    uint64_t last = count->last_ms > more->last_ms ? count->last_ms : more->last_ms;

    if (count->access_count == 0 || dctf_heat_count_ended(count, more->last_ms, ttl_ms)) {
        *count = *more;
        return;
    }
    count->weight =
        dctf_heat_count_at(count, last, half_life_ms) + dctf_heat_count_at(more, last, half_life_ms);
    if (!isfinite(count->weight))
        count->weight = DBL_MAX;
    if (__builtin_add_overflow(count->access_count, more->access_count, &count->access_count))
        count->access_count = UINT64_MAX;
    count->last_ms = last;
}

void dctf_heat_key(char kind, uint64_t dataset, uint64_t id, uint8_t *buf)
{
    uint64_t be;

    buf[0] = (uint8_t)kind;
    be = htobe64(dataset);
    memcpy(buf + 1, &be, sizeof(be));
    be = htobe64(id);
    memcpy(buf + DCTF_HEAT_PREFIX_BYTES, &be, sizeof(be));
}

uint64_t dctf_heat_key_id(const void *key)
{
    uint64_t be;

    memcpy(&be, (const uint8_t *)key + DCTF_HEAT_PREFIX_BYTES, sizeof(be));
    return be64toh(be);
}

void dctf_heat_stamp_encode(uint64_t stamp_ms, uint8_t *buf)
{
    dctf_le_put(buf, stamp_ms, 8);
}

uint64_t dctf_heat_stamp_decode(const void *data)
{
    return dctf_le_get(data, 8);
}

/* ---- what the database calls ---- */

size_t dctf_heat_record_bytes(void)
{
    return DCTF_HEAT_RECORD_BYTES;
}

void dctf_heat_merge(void *ctx, void *state, const void *operand)
{
    const struct dctf_heat_config *config = ctx;
    struct dctf_heat_count count, more;

    (void)dctf_heat_count_decode(state, DCTF_HEAT_RECORD_BYTES, &count);
    if (dctf_heat_count_decode(operand, DCTF_HEAT_RECORD_BYTES, &more))
        dctf_heat_count_add(&count, &more, config->half_life_ms, config->ttl_ms);
    dctf_heat_count_encode(&count, state);
}

bool dctf_heat_expired(void *ctx, const char *key, size_t key_len, const char *value, size_t len)
{
    const struct dctf_heat_config *config = ctx;
    uint64_t now = dctf_clock_wall_ms(config->clock);
    struct dctf_heat_count count;

    if (key_len != DCTF_HEAT_KEY_BYTES)
        return false;
    if (key[0] == 'n' && len >= DCTF_HEAT_STAMP_BYTES) {
        /* The stamp trails the feature's last access by up to half the ttl. */
        count = (struct dctf_heat_count){.last_ms = dctf_heat_stamp_decode(value)};
        return dctf_heat_count_ended(&count, now, config->ttl_ms + config->ttl_ms / 2);
    }
    if (key[0] != 's' && key[0] != 'f')
        return false;
    return !dctf_heat_count_decode(value, len, &count) || dctf_heat_count_ended(&count, now, config->ttl_ms);
}
