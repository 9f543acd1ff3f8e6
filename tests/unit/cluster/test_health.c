/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/health.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void test_three_failures_open(void **state)
{
    struct dctf_breaker breaker = {0};

    (void)state;
    dctf_breaker_failed(&breaker, false, 0);
    dctf_breaker_failed(&breaker, false, 0);
    dctf_breaker_ok(&breaker); /* in a row only */
    dctf_breaker_failed(&breaker, false, 0);
    dctf_breaker_failed(&breaker, false, 0);
    assert_true(dctf_breaker_allows(&breaker, 0));
    dctf_breaker_failed(&breaker, false, 0);
    assert_false(dctf_breaker_allows(&breaker, 0));
    assert_false(dctf_breaker_allows(&breaker, 999));
}

static void test_one_deadline_opens(void **state)
{
    struct dctf_breaker breaker = {0};

    (void)state;
    dctf_breaker_failed(&breaker, true, 5000);
    assert_false(dctf_breaker_allows(&breaker, 5999));
    assert_true(dctf_breaker_allows(&breaker, 6000));
}

static void test_one_probe_at_a_time(void **state)
{
    struct dctf_breaker breaker = {0};

    (void)state;
    dctf_breaker_failed(&breaker, true, 0);
    assert_true(dctf_breaker_allows(&breaker, 1000));
    assert_false(dctf_breaker_allows(&breaker, 1000));
    dctf_breaker_ok(&breaker);
    assert_true(dctf_breaker_allows(&breaker, 1000));
    assert_true(dctf_breaker_allows(&breaker, 1000));
    /* A probe that is never heard of again does not shut it for ever. */
    dctf_breaker_failed(&breaker, true, 1000);
    assert_true(dctf_breaker_allows(&breaker, 2000));
    assert_false(dctf_breaker_allows(&breaker, 31999));
    assert_true(dctf_breaker_allows(&breaker, 32000));
}

static void test_pauses_double_up_to_half_a_minute(void **state)
{
    static const uint64_t pauses[] = {1000, 2000, 4000, 8000, 16000, 30000, 30000};
    struct dctf_breaker breaker = {0};
    uint64_t now = 0;

    (void)state;
    for (unsigned i = 0; i < sizeof(pauses) / sizeof(pauses[0]); i++) {
        dctf_breaker_failed(&breaker, true, now);
        dctf_breaker_failed(&breaker, true, now); /* one that had begun before changes nothing */
        assert_false(dctf_breaker_allows(&breaker, now + pauses[i] - 1));
        now += pauses[i];
        assert_true(dctf_breaker_allows(&breaker, now));
    }
    dctf_breaker_ok(&breaker);
    dctf_breaker_failed(&breaker, true, now);
    assert_true(dctf_breaker_allows(&breaker, now + 1000));
}

static void test_hedges_are_a_share_of_fetches(void **state)
{
    struct dctf_hedge_budget budget;
    unsigned hedged = 0;

    (void)state;
    dctf_hedge_init(&budget, 0.05, 16, 4);
    assert_false(dctf_hedge_take(&budget));
    for (unsigned i = 0; i < 10000; i++) {
        dctf_hedge_earn(&budget);
        if (dctf_hedge_take(&budget)) {
            hedged++;
            dctf_hedge_end(&budget);
        }
    }
    assert_in_range(hedged, 495, 500);
    for (unsigned i = 0; i < 1000; i++)
        dctf_hedge_earn(&budget);
    for (hedged = 0; dctf_hedge_take(&budget); hedged++)
        ;
    assert_int_equal(hedged, 4); /* at once */
    for (unsigned i = 0; i < 4; i++)
        dctf_hedge_end(&budget);
    for (hedged = 0; dctf_hedge_take(&budget); hedged++)
        dctf_hedge_end(&budget);
    assert_int_equal(hedged, 12); /* the rest of the burst */
}

static void test_hedge_waits_for_the_slowest_hundredth(void **state)
{
    (void)state;
    assert_int_equal(dctf_hedge_after_us(1000, 80000, 50000), 80000);
    assert_int_equal(dctf_hedge_after_us(1000, 2000, 50000), 50000);
    assert_int_equal(dctf_hedge_after_us(30000, 60000, 50000), 90000);
}

static void test_ping_is_slow(void **state)
{
    (void)state;
    assert_false(dctf_ping_is_slow(0, 0, 0));
    assert_false(dctf_ping_is_slow(49, 0, 200));
    assert_true(dctf_ping_is_slow(50, 0, 200));
    assert_false(dctf_ping_is_slow(300, 0, 100000)); /* a long way */
    assert_true(dctf_ping_is_slow(400, 0, 100000));
    assert_true(dctf_ping_is_slow(0, 1, 200)); /* the second ping of two */
}

static void test_ping_counts(void **state)
{
    unsigned late = 0, passed_over = 0;

    (void)state;
    assert_true(dctf_ping_counts(&late, 250, 250));
    assert_true(dctf_ping_counts(&late, 300, 250));
    assert_int_equal(late, 0);
    /* This node slept over it; but not for ever. */
    while (!dctf_ping_counts(&late, 900, 250))
        passed_over++;
    assert_in_range(passed_over, 2, 8);
    assert_true(dctf_ping_counts(&late, 900, 250));
    late = 0; /* it was answered */
    assert_false(dctf_ping_counts(&late, 900, 250));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_three_failures_open),
        cmocka_unit_test(test_one_deadline_opens),
        cmocka_unit_test(test_one_probe_at_a_time),
        cmocka_unit_test(test_pauses_double_up_to_half_a_minute),
        cmocka_unit_test(test_hedges_are_a_share_of_fetches),
        cmocka_unit_test(test_ping_counts),
        cmocka_unit_test(test_ping_is_slow),
        cmocka_unit_test(test_hedge_waits_for_the_slowest_hundredth),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
