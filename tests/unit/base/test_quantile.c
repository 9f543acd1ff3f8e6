/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "base/quantile.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* A bucket is a quarter octave: the answer lies at most a quarter above. */
static void assert_about(uint64_t got, uint64_t wanted)
{
    assert_in_range(got, wanted, wanted + wanted / 4 + 4000);
}

static void test_empty_tells_nothing(void **state)
{
    struct dctf_quantile quantile = {0};

    (void)state;
    assert_int_equal(dctf_quantile_ns(&quantile, 990), 0);
}

static void test_one_value_is_every_quantile(void **state)
{
    static const uint64_t values[] = {1, 5000, 123456, 1000000, 77000000, 2000000000};

    (void)state;
    for (unsigned i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        struct dctf_quantile quantile = {0};

        dctf_quantile_add(&quantile, values[i]);
        assert_about(dctf_quantile_ns(&quantile, 1), values[i]);
        assert_about(dctf_quantile_ns(&quantile, 990), values[i]);
    }
}

static void test_quantiles_of_a_uniform_spread(void **state)
{
    struct dctf_quantile quantile = {0};

    (void)state;
    for (uint64_t i = 1; i <= 1000; i++)
        dctf_quantile_add(&quantile, i * 1000000);
    assert_about(dctf_quantile_ns(&quantile, 500), 500000000);
    assert_about(dctf_quantile_ns(&quantile, 990), 990000000);
    assert_about(dctf_quantile_ns(&quantile, 100), 100000000);
}

static void test_a_tail_of_a_hundredth_is_seen(void **state)
{
    struct dctf_quantile quantile = {0};

    (void)state;
    for (unsigned i = 0; i < 1000; i++)
        dctf_quantile_add(&quantile, i % 50 ? 1000000 : 800000000);
    assert_about(dctf_quantile_ns(&quantile, 500), 1000000);
    assert_about(dctf_quantile_ns(&quantile, 990), 800000000);
}

static void test_what_was_long_ago_fades(void **state)
{
    struct dctf_quantile quantile = {0};

    (void)state;
    for (unsigned i = 0; i < 1000; i++)
        dctf_quantile_add(&quantile, 900000000);
    for (unsigned i = 0; i < 10000; i++)
        dctf_quantile_add(&quantile, 1000000);
    assert_about(dctf_quantile_ns(&quantile, 990), 1000000);
    /* Beyond the last bucket is the last bucket. */
    dctf_quantile_add(&quantile, UINT64_MAX);
    assert_true(dctf_quantile_ns(&quantile, 1000) > 1000000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty_tells_nothing),
        cmocka_unit_test(test_one_value_is_every_quantile),
        cmocka_unit_test(test_quantiles_of_a_uniform_spread),
        cmocka_unit_test(test_a_tail_of_a_hundredth_is_seen),
        cmocka_unit_test(test_what_was_long_ago_fades),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
