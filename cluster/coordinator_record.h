/* SPDX-License-Identifier: Apache-2.0
 *
 * Reports, parts of tables and who is left out, as they lie in Redis. Little-endian, a magic number before
 * and an XXH3 sum after; decoding takes any bytes.
 *
 *   report   "DCH1" u32 count, u64 incarnation, u64 seq, count × (u64 feature, f32 passes, u64 bytes)
 *   part     "DCP1" u32 count, u64 fence, u64 version, u8 part, count × (u64 feature, u8 class)
 *   unreached  "DCU1" u32 count, count × (u64 node, u32 ms)
 *   excluded   "DCX1" u32 count, u64 fence, u64 version, count × u64 node
 *
 * Features and nodes are in ascending order.
 *
 * Threads:   any thread; no state.
 * Ownership: buffers are the caller's.
 */
#ifndef DCTF_CLUSTER_COORDINATOR_RECORD_H
#define DCTF_CLUSTER_COORDINATOR_RECORD_H

#include "cluster/coordinator.h"
#include "cluster/exclusion.h"

#define DCTF_POLICY_PARTS 64u
#define DCTF_POLICY_PART_MAX 7200u /* entries of one part */
#define DCTF_COORDINATOR_RECORD_MAX 65536u
/* Above it a fence is no fence: what a script's numbers keep. */
#define DCTF_FENCE_MAX ((UINT64_C(1) << 53) - 1)

struct dctf_report_head {
    uint64_t incarnation, seq;
    size_t count;
};
struct dctf_part_head {
    uint64_t fence, version;
    unsigned part;
    size_t count;
};

struct dctf_excluded_head {
    uint64_t fence, version;
    size_t count;
};
/* Members that can be left out at once: a minority. */
#define DCTF_EXCLUDED_MAX (DCTF_NODES_MAX / 2)

/* The part that holds a feature. */
static inline unsigned dctf_policy_part_of(uint64_t feature_id)
{
    return (unsigned)(feature_id >> 58);
}

/* Bytes written; `heat` is in order, count ≤ DCTF_COORDINATOR_HEAT_MAX. */
size_t dctf_report_encode(const struct dctf_report_head *head, const struct dctf_coordinator_heat *heat,
    unsigned char out[DCTF_COORDINATOR_RECORD_MAX]);
bool dctf_report_decode(const void *data, size_t len, struct dctf_report_head *head,
    struct dctf_coordinator_heat out[DCTF_COORDINATOR_HEAT_MAX]);
/* count ≤ DCTF_POLICY_PART_MAX, all of the part. */
size_t dctf_part_encode(const struct dctf_part_head *head, const struct dctf_policy_entry *entries,
    unsigned char out[DCTF_COORDINATOR_RECORD_MAX]);
bool dctf_part_decode(const void *data, size_t len, struct dctf_part_head *head,
    struct dctf_policy_entry out[DCTF_POLICY_PART_MAX]);
/* count ≤ DCTF_UNREACHED_MAX. */
size_t dctf_unreached_encode(
    const struct dctf_unreached *entries, size_t count, unsigned char out[DCTF_COORDINATOR_RECORD_MAX]);
bool dctf_unreached_decode(
    const void *data, size_t len, struct dctf_unreached out[DCTF_UNREACHED_MAX], size_t *count);
/* count ≤ DCTF_EXCLUDED_MAX. */
size_t dctf_excluded_encode(const struct dctf_excluded_head *head, const uint64_t *nodes,
    unsigned char out[DCTF_COORDINATOR_RECORD_MAX]);
bool dctf_excluded_decode(
    const void *data, size_t len, struct dctf_excluded_head *head, uint64_t out[DCTF_EXCLUDED_MAX]);

#endif
