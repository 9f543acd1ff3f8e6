/* SPDX-License-Identifier: Apache-2.0
 *
 * The adaptive encoder: whether a block travels plain or as LZ4, by whichever is expected
 * to arrive first, and the frames it travels in.
 *
 *   plain   wire = len / bandwidth
 *   LZ4     encode = len / encoding speed, wire = ratio × len / bandwidth, decode = len / decoding speed
 *
 * Blocks of one transfer overlap in these stages: n of them take the sum of the stages once, and the
 * longest of them n − 1 times. Bandwidth is that of one connection; where many share the wire they
 * share the cores as well, so LZ4HC is out of question unless the cores could do twice of what is asked for.
 *
 * Speeds, bandwidth and ratio are what was seen on this path lately; the ratio is tried again now
 * and then, so that a stream that becomes compressible is noticed. A block that does not shrink
 * travels plain whatever was decided.
 *
 * A frame is a head of four bytes, little-endian: length of what follows; its highest bit says
 * LZ4 (else plain). A block of DCTF_BLOCK_BYTES or less makes one frame.
 *
 * Threads:   caller locks an encoder; the frame functions are pure.
 * Ownership: embedded; no resources.
 */
#ifndef DCTF_TRANSPORT_ENCODER_H
#define DCTF_TRANSPORT_ENCODER_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DCTF_FRAME_HEAD_BYTES 4u
/* Largest frame of a block: an LZ4 frame is never longer than the plain one. */
#define DCTF_FRAME_MAX (DCTF_FRAME_HEAD_BYTES + 256u * 1024u)

/* 0: plain; 1: LZ4; 3 to 12: LZ4HC at that level, of which 4 to 6 are worth their time. */
#define DCTF_ENCODE_PLAIN 0
#define DCTF_ENCODE_FAST 1
#define DCTF_ENCODE_HC 4

/* --- frames --- */

/* Write `len` ≤ 256 KiB plain bytes as one frame to `out` (≥ DCTF_FRAME_MAX). Returns its
 * length. Falls back to plain when LZ4 does not shrink it; `*level` says what was done. */
size_t dctf_frame_encode(const void *plain, size_t len, int *level, void *out);
/* Length of the frame that begins at `head`, head included; 0 when it cannot be one. */
size_t dctf_frame_len(const uint8_t head[DCTF_FRAME_HEAD_BYTES]);
/* Decode one whole frame into exactly `len` plain bytes. DCTF_ERR_BAD_RESPONSE when it is no frame
 * of that many: nothing outside of `plain` is touched. */
DCTF_MUST_CHECK
enum dctf_err dctf_frame_decode(const void *frame, size_t frame_len, void *plain, size_t len);

/* --- the choice --- */

struct dctf_encoder {
    /* bytes per second; 0: not seen yet */
    double bandwidth;
    double speed_fast, speed_hc, speed_decode;
    double ratio_fast, ratio_hc; /* encoded ÷ plain, 0 … 1 */
    unsigned since_trial;        /* blocks sent plain since LZ4 was last tried */
    unsigned since_hc;           /* blocks sent as LZ4 since LZ4HC was last tried */
    unsigned trial_every;        /* doubles while trials do not pay */
    uint64_t asked, asked_ms;    /* bytes that were asked for since then */
    double asked_rate;           /* and in the time before, per second; 0: not seen yet */
};

void dctf_encoder_init(struct dctf_encoder *encoder);
/* Level for a transfer of `len` bytes in so many blocks. `cores`: that encode; 0 when all are busy, then
 * the answer is plain. */
int dctf_encoder_choose(
    struct dctf_encoder *encoder, size_t len, unsigned blocks, unsigned cores, uint64_t now_ms);
/* What came of it: `level` as chosen, plain bytes and those of the frames without their heads, time spent. */
void dctf_encoder_encoded(
    struct dctf_encoder *encoder, int level, size_t plain_len, size_t encoded_len, uint64_t encode_ns);
/* Decoding speed, taken to be the receiver's as well; and the path's rate, bytes per second. */
void dctf_encoder_decoded(struct dctf_encoder *encoder, size_t plain_len, uint64_t decode_ns);
void dctf_encoder_rate(struct dctf_encoder *encoder, uint64_t rate);

/* Blocks that may be encoded at once: min(cores + 2, queued / 2), at least 1. */
unsigned dctf_encoder_pool_size(unsigned cores, size_t queued);

#endif
