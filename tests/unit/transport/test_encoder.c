/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "base/version.h"
#include "transport/encoder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MB 1e6

static void fill_random(uint8_t *out, size_t len, uint64_t seed)
{
    struct dctf_rng rng = {seed};

    for (size_t i = 0; i < len; i++)
        out[i] = (uint8_t)dctf_rng_next(&rng);
}

/* Like feature columns: floats of few distinct values. */
static void fill_features(uint8_t *out, size_t len)
{
    struct dctf_rng rng = {5};

    for (size_t i = 0; i + 4 <= len; i += 4) {
        float value = (float)dctf_rng_below(&rng, 16) / 8;

        memcpy(out + i, &value, sizeof(value));
    }
}

static void test_frames_come_back(void **state)
{
    static const size_t lens[] = {1, 2, 100, 4096, DCTF_BLOCK_BYTES - 1, DCTF_BLOCK_BYTES};
    uint8_t *plain = malloc(DCTF_BLOCK_BYTES), *frame = malloc(DCTF_FRAME_MAX),
            *back = malloc(DCTF_BLOCK_BYTES);

    (void)state;
    for (int random = 0; random < 2; random++) {
        for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
            for (int wanted = DCTF_ENCODE_PLAIN; wanted <= 6; wanted++) {
                int level = wanted;
                size_t len;

                if (random)
                    fill_random(plain, lens[i], lens[i]);
                else
                    memset(plain, 7, lens[i]);
                len = dctf_frame_encode(plain, lens[i], &level, frame);
                assert_true(len <= DCTF_FRAME_HEAD_BYTES + lens[i]);
                assert_int_equal(level, random || lens[i] < 100 ? DCTF_ENCODE_PLAIN : wanted);
                assert_int_equal(dctf_frame_len(frame), len);
                assert_int_equal(dctf_frame_decode(frame, len, back, lens[i]), DCTF_OK);
                assert_memory_equal(plain, back, lens[i]);
                if (lens[i] > 1)
                    assert_int_equal(dctf_frame_decode(frame, len, back, lens[i] - 1), DCTF_ERR_BAD_RESPONSE);
            }
        }
    }
    free(plain);
    free(frame);
    free(back);
}

static void test_bad_frames_are_refused(void **state)
{
    uint8_t plain[5000], frame[DCTF_FRAME_HEAD_BYTES + 5000], back[5000];
    int level = DCTF_ENCODE_FAST;
    size_t len;

    (void)state;
    memset(plain, 'x', sizeof(plain));
    len = dctf_frame_encode(plain, sizeof(plain), &level, frame);
    assert_int_equal(level, DCTF_ENCODE_FAST);
    assert_int_equal(dctf_frame_decode(frame, len - 1, back, sizeof(back)), DCTF_ERR_BAD_RESPONSE);
    assert_int_equal(dctf_frame_decode(frame, 3, back, sizeof(back)), DCTF_ERR_BAD_RESPONSE);
    assert_int_equal(dctf_frame_decode(frame, len, back, 0), DCTF_ERR_BAD_RESPONSE);
    for (size_t i = DCTF_FRAME_HEAD_BYTES; i < len;
         i++) { /* no flip reaches past the end; most are noticed */
        frame[i] ^= 0x5a;
        (void)!dctf_frame_decode(frame, len, back, sizeof(back));
        frame[i] ^= 0x5a;
    }
    memset(frame, 0xff, DCTF_FRAME_HEAD_BYTES);
    assert_int_equal(dctf_frame_len(frame), 0);
    memset(frame, 0, DCTF_FRAME_HEAD_BYTES);
    assert_int_equal(dctf_frame_len(frame), 0);
}

/* Run the choice against a model: speeds in bytes/s, ratios of what is sent. */
static double share_of(
    struct dctf_encoder *encoder, double bandwidth, double fast_ratio, double hc_ratio, int level)
{
    unsigned hits = 0;

    /* A second in all, of what the wire carries: of 16 cores. */
    for (unsigned i = 0; i < 1000; i++) {
        uint64_t now_ms = (uint64_t)(i * DCTF_BLOCK_BYTES / (bandwidth / 1000));
        int chosen = dctf_encoder_choose(encoder, DCTF_BLOCK_BYTES, 32, 16, now_ms);
        double ratio = chosen == DCTF_ENCODE_PLAIN ? 1 : chosen == DCTF_ENCODE_FAST ? fast_ratio : hc_ratio;
        double speed = chosen == DCTF_ENCODE_FAST ? 500 * MB : 60 * MB;
        size_t bytes = (size_t)(ratio * DCTF_BLOCK_BYTES);

        dctf_encoder_encoded(
            encoder, chosen, DCTF_BLOCK_BYTES, bytes, (uint64_t)(DCTF_BLOCK_BYTES / speed * 1e9));
        dctf_encoder_rate(encoder, (uint64_t)bandwidth);
        if (chosen != DCTF_ENCODE_PLAIN)
            dctf_encoder_decoded(encoder, DCTF_BLOCK_BYTES, (uint64_t)(DCTF_BLOCK_BYTES / (2000 * MB) * 1e9));
        hits += chosen == level;
    }
    return hits / 1000.0;
}

static void test_choose_what_arrives_first(void **state)
{
    static const struct {
        double bandwidth, fast, hc;
        int best;
    } cases[] = {
        {118 * MB, 0.5, 0.45, DCTF_ENCODE_FAST},   /* 1 Gbit/s, compressible */
        {118 * MB, 1.0, 1.0, DCTF_ENCODE_PLAIN},   /* random bytes */
        {3000 * MB, 0.5, 0.45, DCTF_ENCODE_PLAIN}, /* loopback */
        {3000 * MB, 1.0, 1.0, DCTF_ENCODE_PLAIN}, {10 * MB, 0.5, 0.3, DCTF_ENCODE_HC}, /* between sites */
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dctf_encoder encoder;

        dctf_encoder_init(&encoder);
        /* 0.95 of the better fixed choice: what is spent on trials is less than that. */
        assert_true(share_of(&encoder, cases[i].bandwidth, cases[i].fast, cases[i].hc, cases[i].best) > 0.95);
    }
}

static void test_choose_follows_a_change(void **state)
{
    struct dctf_encoder encoder;

    (void)state;
    dctf_encoder_init(&encoder);
    share_of(&encoder, 118 * MB, 1.0, 1.0, 0);
    assert_true(share_of(&encoder, 118 * MB, 0.4, 0.35, DCTF_ENCODE_FAST) > 0.9);
    assert_true(share_of(&encoder, 118 * MB, 1.0, 1.0, DCTF_ENCODE_PLAIN) > 0.9);
    assert_true(share_of(&encoder, 3000 * MB, 0.4, 0.35, DCTF_ENCODE_PLAIN) > 0.9);
}

static void test_choose_plain_without_knowledge_or_cpu(void **state)
{
    struct dctf_encoder encoder;

    (void)state;
    dctf_encoder_init(&encoder);
    assert_int_equal(dctf_encoder_choose(&encoder, DCTF_BLOCK_BYTES, 32, 2, 1), DCTF_ENCODE_PLAIN);
    dctf_encoder_rate(&encoder, 10000000);
    assert_int_equal(dctf_encoder_choose(&encoder, DCTF_BLOCK_BYTES, 32, 0, 2), DCTF_ENCODE_PLAIN);
    assert_int_equal(dctf_encoder_choose(&encoder, 100, 1, 2, 3), DCTF_ENCODE_PLAIN);
    assert_int_equal(dctf_encoder_choose(&encoder, DCTF_BLOCK_BYTES, 32, 2, 4), DCTF_ENCODE_FAST);
}

/* Eight connections share 1 Gbit/s, so each looks slow enough for LZ4HC; two cores could not carry it. */
static void test_choose_no_more_than_the_cores_can_do(void **state)
{
    const double each = 118 * MB / 8, asked = 118 * MB / 0.56;
    struct dctf_encoder encoder;
    unsigned fast = 0, hc = 0;

    (void)state;
    dctf_encoder_init(&encoder);
    for (unsigned i = 0; i < 4000; i++) {
        uint64_t now_ms = (uint64_t)(i * DCTF_BLOCK_BYTES / (asked / 1000));
        int chosen = dctf_encoder_choose(&encoder, DCTF_BLOCK_BYTES, 4, 2, now_ms);

        dctf_encoder_rate(&encoder, (uint64_t)each);
        dctf_encoder_encoded(&encoder, chosen, DCTF_BLOCK_BYTES,
            (size_t)(chosen == DCTF_ENCODE_FAST ? 0.56 * DCTF_BLOCK_BYTES : 0.49 * DCTF_BLOCK_BYTES),
            (uint64_t)(DCTF_BLOCK_BYTES / ((chosen == DCTF_ENCODE_FAST ? 500 : 70) * MB) * 1e9));
        fast += chosen == DCTF_ENCODE_FAST;
        hc += chosen != DCTF_ENCODE_FAST && chosen != DCTF_ENCODE_PLAIN;
    }
    assert_int_equal(hc, 0);
    assert_true(fast > 3900);
}

static void test_one_burst_does_not_make_a_path_fast(void **state)
{
    struct dctf_encoder encoder;

    (void)state;
    dctf_encoder_init(&encoder);
    for (unsigned i = 0; i < 20; i++)
        dctf_encoder_rate(&encoder, (uint64_t)(100 * MB));
    dctf_encoder_rate(&encoder, (uint64_t)(5000 * MB));
    assert_true(encoder.bandwidth < 150 * MB);
    for (unsigned i = 0; i < 60; i++) /* it is */
        dctf_encoder_rate(&encoder, (uint64_t)(5000 * MB));
    assert_true(encoder.bandwidth > 4000 * MB);
}

static void test_pool_size(void **state)
{
    (void)state;
    assert_int_equal(dctf_encoder_pool_size(8, 0), 1);
    assert_int_equal(dctf_encoder_pool_size(8, 3), 1);
    assert_int_equal(dctf_encoder_pool_size(8, 12), 6);
    assert_int_equal(dctf_encoder_pool_size(8, 1000), 10);
    assert_int_equal(dctf_encoder_pool_size(1, 1000), 3);
}

static void test_features_shrink(void **state)
{
    uint8_t *plain = malloc(DCTF_BLOCK_BYTES), *frame = malloc(DCTF_FRAME_MAX);
    int level = DCTF_ENCODE_FAST;

    (void)state;
    fill_features(plain, DCTF_BLOCK_BYTES);
    assert_true(dctf_frame_encode(plain, DCTF_BLOCK_BYTES, &level, frame) < DCTF_BLOCK_BYTES * 6 / 10);
    free(plain);
    free(frame);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frames_come_back),
        cmocka_unit_test(test_bad_frames_are_refused),
        cmocka_unit_test(test_choose_what_arrives_first),
        cmocka_unit_test(test_choose_follows_a_change),
        cmocka_unit_test(test_choose_plain_without_knowledge_or_cpu),
        cmocka_unit_test(test_choose_no_more_than_the_cores_can_do),
        cmocka_unit_test(test_one_burst_does_not_make_a_path_fast),
        cmocka_unit_test(test_pool_size),
        cmocka_unit_test(test_features_shrink),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
