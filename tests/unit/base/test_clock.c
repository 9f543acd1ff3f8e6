/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static uint64_t fake_now(void *ctx)
{
    return *(uint64_t *)ctx;
}

static void test_fake_clock(void **state)
{
    uint64_t now = 1234567890;
    struct dctf_clock clock = {.mono_ns = fake_now, .wall_ms = fake_now, .ctx = &now};

    (void)state;
    assert_int_equal(dctf_clock_mono_ns(&clock), 1234567890);
    assert_int_equal(dctf_clock_mono_ms(&clock), 1234);
    assert_int_equal(dctf_clock_wall_ms(&clock), 1234567890);
    now = 5000000;
    assert_int_equal(dctf_clock_mono_ms(&clock), 5);
}

static void test_system_clocks(void **state)
{
    struct dctf_clock defaults = {0};
    uint64_t before_ms = (uint64_t)time(NULL) * 1000 - 1000;
    uint64_t wall_ms = dctf_clock_wall_ms(NULL);
    uint64_t mono_ns = dctf_clock_mono_ns(NULL);

    (void)state;
    assert_true(wall_ms >= before_ms && wall_ms <= before_ms + 60000);
    assert_true(dctf_clock_mono_ns(&defaults) >= mono_ns);
    assert_true(dctf_clock_mono_ms(NULL) >= mono_ns / 1000000);
    assert_true(dctf_clock_wall_ms(&defaults) >= before_ms);
}

/* The published values of splitmix64 for seed 1234567. */
static void test_rng_known_values(void **state)
{
    static const uint64_t expected[] = {6457827717110365317u, 3203168211198807973u, 9817491932198370423u,
        4593380528125082431u, 16408922859458223821u};
    struct dctf_rng rng = {1234567};

    (void)state;
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++)
        assert_true(dctf_rng_next(&rng) == expected[i]);
}

static void test_rng_below_is_even(void **state)
{
    struct dctf_rng rng = {1};
    unsigned seen[10] = {0};

    (void)state;
    for (int i = 0; i < 10000; i++) {
        uint64_t value = dctf_rng_below(&rng, 10);

        assert_true(value < 10);
        seen[value]++;
    }
    for (int i = 0; i < 10; i++)
        assert_in_range(seen[i], 850, 1150); /* five standard deviations */
    assert_int_equal(dctf_rng_below(&rng, 1), 0);
    assert_true(dctf_rng_below(&rng, UINT64_MAX) < UINT64_MAX);
}

static void test_rng_seeds_differ(void **state)
{
    (void)state;
    assert_true(dctf_rng_seed() != dctf_rng_seed());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fake_clock),
        cmocka_unit_test(test_system_clocks),
        cmocka_unit_test(test_rng_known_values),
        cmocka_unit_test(test_rng_below_is_even),
        cmocka_unit_test(test_rng_seeds_differ),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
