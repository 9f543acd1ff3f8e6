/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/encoder.h"

#include "base/version.h"

#include <assert.h>
#include <lz4.h>
#include <lz4hc.h>
#include <string.h>

#define LZ4_BIT (1u << 31)
/* Guesses until something was measured: bytes/s on one core. */
#define FIRST_SPEED_FAST 500e6
#define FIRST_SPEED_HC 60e6
#define FIRST_SPEED_DECODE 2e9
/* Weight of a new measurement. */
#define SMOOTHING 0.125
#define TRIAL_FIRST 4u
#define TRIAL_MAX 64u
#define HC_TRIAL_EVERY 64u
#define ASKED_MS 250u
#define RATE_STEP 4
#define SMALLEST 4096u /* below this the head and the call are not worth it */

static void put_head(uint8_t *out, uint32_t value)
{
    for (unsigned i = 0; i < DCTF_FRAME_HEAD_BYTES; i++)
        out[i] = (uint8_t)(value >> 8 * i);
}

static uint32_t get_head(const uint8_t *head)
{
    uint32_t value = 0;

    for (unsigned i = 0; i < DCTF_FRAME_HEAD_BYTES; i++)
        value |= (uint32_t)head[i] << 8 * i;
    return value;
}

/* Bytes of the LZ4 block, 0 when it would not be shorter. */
static size_t compress(const void *plain, size_t len, int level, void *out)
{
    int cap = (int)len - 1; /* must gain something */
    int n;

    if (level == DCTF_ENCODE_PLAIN || len < 2)
        return 0;
    if (level == DCTF_ENCODE_FAST)
        n = LZ4_compress_default(plain, out, (int)len, cap);
    else
        n = LZ4_compress_HC(plain, out, (int)len, cap, level);
    return n > 0 ? (size_t)n : 0;
}

size_t dctf_frame_encode(const void *plain, size_t len, int *level, void *out)
{
    uint8_t *bytes = out;
    size_t packed;

    assert(len <= DCTF_BLOCK_BYTES);
    packed = compress(plain, len, *level, bytes + DCTF_FRAME_HEAD_BYTES);
    if (packed) {
        put_head(bytes, (uint32_t)packed | LZ4_BIT);
        return DCTF_FRAME_HEAD_BYTES + packed;
    }
    *level = DCTF_ENCODE_PLAIN;
    put_head(bytes, (uint32_t)len);
    memcpy(bytes + DCTF_FRAME_HEAD_BYTES, plain, len);
    return DCTF_FRAME_HEAD_BYTES + len;
}

size_t dctf_frame_len(const uint8_t head[DCTF_FRAME_HEAD_BYTES])
{
    uint32_t value = get_head(head) & ~LZ4_BIT;

    return value && value <= DCTF_BLOCK_BYTES ? DCTF_FRAME_HEAD_BYTES + (size_t)value : 0;
}

enum dctf_err dctf_frame_decode(const void *frame, size_t frame_len, void *plain, size_t len)
{
    const uint8_t *bytes = frame;
    size_t body_len;

    if (frame_len < DCTF_FRAME_HEAD_BYTES || dctf_frame_len(bytes) != frame_len || len > DCTF_BLOCK_BYTES)
        return DCTF_ERR_BAD_RESPONSE;
    body_len = frame_len - DCTF_FRAME_HEAD_BYTES;
    if (!(get_head(bytes) & LZ4_BIT)) {
        if (body_len != len)
            return DCTF_ERR_BAD_RESPONSE;
        memcpy(plain, bytes + DCTF_FRAME_HEAD_BYTES, len);
        return DCTF_OK;
    }
    if (LZ4_decompress_safe((const char *)bytes + DCTF_FRAME_HEAD_BYTES, plain, (int)body_len, (int)len) !=
        (int)len)
        return DCTF_ERR_BAD_RESPONSE;
    return DCTF_OK;
}

/* --- the choice --- */

void dctf_encoder_init(struct dctf_encoder *encoder)
{
    *encoder = (struct dctf_encoder){
        .speed_fast = FIRST_SPEED_FAST,
        .speed_hc = FIRST_SPEED_HC,
        .speed_decode = FIRST_SPEED_DECODE,
        .trial_every = TRIAL_FIRST,
        .since_trial = TRIAL_FIRST, /* the first block is a trial */
        .since_hc = HC_TRIAL_EVERY,
    };
}

static void smooth(double *value, double sample)
{
    *value = *value > 0 ? *value + (sample - *value) * SMOOTHING : sample;
}

/* Seconds per plain byte over a transfer of `blocks`. */
static double cost(const struct dctf_encoder *encoder, int level, unsigned blocks)
{
    double encode = 0, decode = 0, wire = 1 / encoder->bandwidth, longest;

    if (level == DCTF_ENCODE_FAST) {
        encode = 1 / encoder->speed_fast;
        wire *= encoder->ratio_fast;
    } else if (level != DCTF_ENCODE_PLAIN) {
        encode = 1 / encoder->speed_hc;
        wire *= encoder->ratio_hc;
    }
    if (level != DCTF_ENCODE_PLAIN)
        decode = 1 / encoder->speed_decode;
    longest = encode > wire ? encode : wire;
    if (decode > longest)
        longest = decode;
    return (encode + wire + decode + longest * (blocks - 1)) / blocks;
}

/* Whether encoding takes longer than sending plain: then there is nothing to try. */
static bool hopeless(const struct dctf_encoder *encoder)
{
    return encoder->speed_fast < encoder->bandwidth;
}

static void note_asked(struct dctf_encoder *encoder, size_t len, uint64_t now_ms)
{
    uint64_t spent = now_ms - encoder->asked_ms;

    if (spent >= ASKED_MS) {
        encoder->asked_rate = (double)encoder->asked * 1000 / (double)spent;
        encoder->asked = 0;
        encoder->asked_ms = now_ms;
    }
    encoder->asked += len;
}

static bool can_afford_hc(const struct dctf_encoder *encoder, unsigned cores)
{
    return encoder->asked_rate > 0 && 2 * encoder->asked_rate < cores * encoder->speed_hc;
}

int dctf_encoder_choose(
    struct dctf_encoder *encoder, size_t len, unsigned blocks, unsigned cores, uint64_t now_ms)
{
    int best = DCTF_ENCODE_PLAIN;
    bool hc;

    note_asked(encoder, len, now_ms);
    hc = can_afford_hc(encoder, cores);
    if (!cores || encoder->bandwidth <= 0 || len < SMALLEST || !blocks || hopeless(encoder))
        return DCTF_ENCODE_PLAIN;
    if (encoder->since_trial >= encoder->trial_every)
        return DCTF_ENCODE_FAST;
    if (cost(encoder, DCTF_ENCODE_FAST, blocks) < cost(encoder, best, blocks))
        best = DCTF_ENCODE_FAST;
    /* HC is tried where LZ4 pays and HC would keep up with the wire. */
    if (hc && best == DCTF_ENCODE_FAST && encoder->since_hc >= HC_TRIAL_EVERY &&
        encoder->speed_hc * encoder->ratio_fast > encoder->bandwidth)
        return DCTF_ENCODE_HC;
    if (hc && encoder->ratio_hc > 0 && cost(encoder, DCTF_ENCODE_HC, blocks) < cost(encoder, best, blocks))
        best = DCTF_ENCODE_HC;
    if (best == DCTF_ENCODE_PLAIN)
        encoder->since_trial++;
    else if (best == DCTF_ENCODE_FAST)
        encoder->since_hc++;
    return best;
}

/* How the stream is now; smoothing a trial would hide a change for long. */
static void end_trial(struct dctf_encoder *encoder, double ratio)
{
    bool pays;

    encoder->ratio_fast = ratio;
    pays = encoder->bandwidth > 0 &&
           cost(encoder, DCTF_ENCODE_FAST, UINT16_MAX) < cost(encoder, DCTF_ENCODE_PLAIN, UINT16_MAX);
    encoder->since_trial = 0;
    if (pays)
        encoder->trial_every = TRIAL_FIRST;
    else if (encoder->trial_every < TRIAL_MAX)
        encoder->trial_every *= 2;
}

void dctf_encoder_encoded(
    struct dctf_encoder *encoder, int level, size_t plain_len, size_t encoded_len, uint64_t encode_ns)
{
    double speed = encode_ns ? (double)plain_len * 1e9 / (double)encode_ns : 0;
    double ratio = plain_len ? (double)encoded_len / (double)plain_len : 1;

    if (level == DCTF_ENCODE_PLAIN)
        return;
    if (level == DCTF_ENCODE_FAST) {
        if (speed > 0)
            smooth(&encoder->speed_fast, speed);
        if (encoder->since_trial >= encoder->trial_every)
            end_trial(encoder, ratio);
        else
            smooth(&encoder->ratio_fast, ratio);
        return;
    }
    if (speed > 0)
        smooth(&encoder->speed_hc, speed);
    if (encoder->since_hc >= HC_TRIAL_EVERY)
        encoder->ratio_hc = ratio;
    else
        smooth(&encoder->ratio_hc, ratio);
    encoder->since_hc = 0;
}

void dctf_encoder_decoded(struct dctf_encoder *encoder, size_t plain_len, uint64_t decode_ns)
{
    if (decode_ns && plain_len)
        smooth(&encoder->speed_decode, (double)plain_len * 1e9 / (double)decode_ns);
}

void dctf_encoder_rate(struct dctf_encoder *encoder, uint64_t rate)
{
    double most = encoder->bandwidth * RATE_STEP;

    if (rate) /* one burst must not outweigh all others */
        smooth(&encoder->bandwidth, most > 0 && (double)rate > most ? most : (double)rate);
}

unsigned dctf_encoder_pool_size(unsigned cores, size_t queued)
{
    size_t wanted = queued / 2;

    if (wanted > cores + 2)
        wanted = cores + 2;
    return wanted ? (unsigned)wanted : 1;
}
