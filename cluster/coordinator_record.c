/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/coordinator_record.h"

#include "base/version.h"

#include <assert.h>
#include <string.h>

#define REPORT_HEAD 24u
#define REPORT_ENTRY 20u
#define PART_HEAD 25u
#define PART_ENTRY 9u
#define UNREACHED_HEAD 8u
#define UNREACHED_ENTRY 12u
#define EXCLUDED_HEAD 24u
#define EXCLUDED_ENTRY 8u
#define SUM 8u
#define PASSES_MAX 1e9f

_Static_assert(
    REPORT_HEAD + DCTF_COORDINATOR_HEAT_MAX * REPORT_ENTRY + SUM <= DCTF_COORDINATOR_RECORD_MAX, "");
_Static_assert(PART_HEAD + DCTF_POLICY_PART_MAX * PART_ENTRY + SUM <= DCTF_COORDINATOR_RECORD_MAX, "");
_Static_assert(
    UNREACHED_HEAD + DCTF_UNREACHED_MAX * UNREACHED_ENTRY + SUM <= DCTF_COORDINATOR_RECORD_MAX, "");
_Static_assert(EXCLUDED_HEAD + DCTF_EXCLUDED_MAX * EXCLUDED_ENTRY + SUM <= DCTF_COORDINATOR_RECORD_MAX, "");

static void put(unsigned char *at, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        at[i] = (unsigned char)(value >> 8 * i);
}

static uint64_t get(const unsigned char *at, unsigned bytes)
{
    uint64_t value = 0;

    for (unsigned i = 0; i < bytes; i++)
        value |= (uint64_t)at[i] << 8 * i;
    return value;
}

static size_t seal(unsigned char *out, size_t len)
{
    put(out + len, dctf_hash64(out, len), SUM);
    return len + SUM;
}

/* The count of entries when the magic, the length and the sum are right; false otherwise. */
static bool unseal(const unsigned char *at, size_t len, const char *magic, size_t head, size_t entry,
    size_t most, size_t *out)
{
    size_t count;

    if (len < head + SUM || memcmp(at, magic, 4) != 0)
        return false;
    count = (size_t)get(at + 4, 4);
    *out = count;
    return count <= most && len == head + count * entry + SUM &&
           get(at + len - SUM, SUM) == dctf_hash64(at, len - SUM);
}

size_t dctf_report_encode(const struct dctf_report_head *head, const struct dctf_coordinator_heat *heat,
    unsigned char out[DCTF_COORDINATOR_RECORD_MAX])
{
    unsigned char *at = out + REPORT_HEAD;

    assert(head->count <= DCTF_COORDINATOR_HEAT_MAX);
    memcpy(out, "DCH1", 4);
    put(out + 4, head->count, 4);
    put(out + 8, head->incarnation, 8);
    put(out + 16, head->seq, 8);
    for (size_t i = 0; i < head->count; i++, at += REPORT_ENTRY) {
        float passes = heat[i].passes > 0 ? (float)heat[i].passes : 0;
        uint32_t bits;

        if (passes > PASSES_MAX)
            passes = PASSES_MAX;
        memcpy(&bits, &passes, sizeof(bits));
        put(at, heat[i].feature_id, 8);
        put(at + 8, bits, 4);
        put(at + 12, heat[i].bytes, 8);
    }
    return seal(out, (size_t)(at - out));
}

bool dctf_report_decode(const void *data, size_t len, struct dctf_report_head *head,
    struct dctf_coordinator_heat out[DCTF_COORDINATOR_HEAT_MAX])
{
    const unsigned char *at = data;

    *head = (struct dctf_report_head){.count = 0};
    if (!unseal(at, len, "DCH1", REPORT_HEAD, REPORT_ENTRY, DCTF_COORDINATOR_HEAT_MAX, &head->count))
        return false;
    head->incarnation = get(at + 8, 8);
    head->seq = get(at + 16, 8);
    at += REPORT_HEAD;
    for (size_t i = 0; i < head->count; i++, at += REPORT_ENTRY) {
        uint32_t bits = (uint32_t)get(at + 8, 4);
        float passes;

        memcpy(&passes, &bits, sizeof(passes));
        out[i] = (struct dctf_coordinator_heat){get(at, 8), (double)passes, get(at + 12, 8)};
        if (!(passes >= 0 && passes <= PASSES_MAX) || (i && out[i].feature_id <= out[i - 1].feature_id))
            return false;
    }
    return true;
}

size_t dctf_part_encode(const struct dctf_part_head *head, const struct dctf_policy_entry *entries,
    unsigned char out[DCTF_COORDINATOR_RECORD_MAX])
{
    unsigned char *at = out + PART_HEAD;

    assert(head->count <= DCTF_POLICY_PART_MAX && head->part < DCTF_POLICY_PARTS);
    memcpy(out, "DCP1", 4);
    put(out + 4, head->count, 4);
    put(out + 8, head->fence, 8);
    put(out + 16, head->version, 8);
    out[24] = (unsigned char)head->part;
    for (size_t i = 0; i < head->count; i++, at += PART_ENTRY) {
        put(at, entries[i].feature_id, 8);
        at[8] = (unsigned char)entries[i].class;
    }
    return seal(out, (size_t)(at - out));
}

bool dctf_part_decode(const void *data, size_t len, struct dctf_part_head *head,
    struct dctf_policy_entry out[DCTF_POLICY_PART_MAX])
{
    const unsigned char *at = data;

    *head = (struct dctf_part_head){.count = 0};
    if (!unseal(at, len, "DCP1", PART_HEAD, PART_ENTRY, DCTF_POLICY_PART_MAX, &head->count))
        return false;
    head->fence = get(at + 8, 8);
    head->version = get(at + 16, 8);
    head->part = at[24];
    if (head->fence > DCTF_FENCE_MAX || head->part >= DCTF_POLICY_PARTS)
        return false;
    at += PART_HEAD;
    for (size_t i = 0; i < head->count; i++, at += PART_ENTRY) {
        out[i].feature_id = get(at, 8);
        if ((at[8] != DCTF_POLICY_MID && at[8] != DCTF_POLICY_HOT) ||
            dctf_policy_part_of(out[i].feature_id) != head->part ||
            (i && out[i].feature_id <= out[i - 1].feature_id))
            return false;
        out[i].class = at[8];
    }
    return true;
}

size_t dctf_unreached_encode(
    const struct dctf_unreached *entries, size_t count, unsigned char out[DCTF_COORDINATOR_RECORD_MAX])
{
    unsigned char *at = out + UNREACHED_HEAD;

    assert(count <= DCTF_UNREACHED_MAX);
    memcpy(out, "DCU1", 4);
    put(out + 4, count, 4);
    for (size_t i = 0; i < count; i++, at += UNREACHED_ENTRY) {
        put(at, entries[i].node, 8);
        put(at + 8, entries[i].ms < UINT32_MAX ? entries[i].ms : UINT32_MAX, 4);
    }
    return seal(out, (size_t)(at - out));
}

bool dctf_unreached_decode(
    const void *data, size_t len, struct dctf_unreached out[DCTF_UNREACHED_MAX], size_t *count)
{
    const unsigned char *at = data;

    if (!unseal(at, len, "DCU1", UNREACHED_HEAD, UNREACHED_ENTRY, DCTF_UNREACHED_MAX, count))
        return false;
    at += UNREACHED_HEAD;
    for (size_t i = 0; i < *count; i++, at += UNREACHED_ENTRY) {
        out[i] = (struct dctf_unreached){get(at, 8), get(at + 8, 4)};
        if (i && out[i].node <= out[i - 1].node)
            return false;
    }
    return true;
}

size_t dctf_excluded_encode(const struct dctf_excluded_head *head, const uint64_t *nodes,
    unsigned char out[DCTF_COORDINATOR_RECORD_MAX])
{
    unsigned char *at = out + EXCLUDED_HEAD;

    assert(head->count <= DCTF_EXCLUDED_MAX);
    memcpy(out, "DCX1", 4);
    put(out + 4, head->count, 4);
    put(out + 8, head->fence, 8);
    put(out + 16, head->version, 8);
    for (size_t i = 0; i < head->count; i++, at += EXCLUDED_ENTRY)
        put(at, nodes[i], 8);
    return seal(out, (size_t)(at - out));
}

bool dctf_excluded_decode(
    const void *data, size_t len, struct dctf_excluded_head *head, uint64_t out[DCTF_EXCLUDED_MAX])
{
    const unsigned char *at = data;

    *head = (struct dctf_excluded_head){.count = 0};
    if (!unseal(at, len, "DCX1", EXCLUDED_HEAD, EXCLUDED_ENTRY, DCTF_EXCLUDED_MAX, &head->count))
        return false;
    head->fence = get(at + 8, 8);
    head->version = get(at + 16, 8);
    if (head->fence > DCTF_FENCE_MAX)
        return false;
    at += EXCLUDED_HEAD;
    for (size_t i = 0; i < head->count; i++, at += EXCLUDED_ENTRY) {
        out[i] = get(at, 8);
        if (i && out[i] <= out[i - 1])
            return false;
    }
    return true;
}
