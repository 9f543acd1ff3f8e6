/* SPDX-License-Identifier: Apache-2.0
 *
 * How long a transfer of this service may be silent before it is given up: four times
 * the 99th percentile of the time to the first byte, of late, within bounds; twice as long
 * after each stall in a row, so that a service that is slow as a whole still gets through.
 * Until there are enough answers to judge by it is the upper bound.
 *
 * Answers from long ago fade (base/quantile.h). What stalled is no sample: its end is not
 * known.
 *
 * Threads:   any thread; calls serialise on a lock. Never blocks.
 * Ownership: _new() gives an object to pass to _free().
 */
#ifndef DCTF_TRANSPORT_S3_SILENCE_H
#define DCTF_TRANSPORT_S3_SILENCE_H

#include "base/err.h"

#include <stdint.h>

struct dctf_s3_silence;

enum dctf_s3_silence_kind {
    DCTF_S3_SILENCE_READ, /* a range of an object */
    DCTF_S3_SILENCE_META, /* lists and heads */
    DCTF_S3_SILENCE_KINDS
};

/* `max_ms` bounds reads, and lists until one stalled: some services look through millions of
 * keys for a page, so that lists may then take up to `list_max_ms` (if that is more). */
DCTF_MUST_CHECK
enum dctf_err dctf_s3_silence_new(
    uint64_t min_ms, uint64_t max_ms, uint64_t list_max_ms, struct dctf_s3_silence **out);
void dctf_s3_silence_free(struct dctf_s3_silence *silence);

/* Longest silence to allow now. */
uint64_t dctf_s3_silence_ms(struct dctf_s3_silence *silence, enum dctf_s3_silence_kind kind);
/* An answer began `first_byte_ns` after its request was sent. */
void dctf_s3_silence_answered(
    struct dctf_s3_silence *silence, enum dctf_s3_silence_kind kind, uint64_t first_byte_ns);
/* A request that was allowed `allowed_ms` stalled. Stalls that began under the same
 * allowance count once: they may all have one cause. */
void dctf_s3_silence_stalled(
    struct dctf_s3_silence *silence, enum dctf_s3_silence_kind kind, uint64_t allowed_ms);

#endif
