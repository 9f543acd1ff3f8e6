/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "cluster/policy.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FEATURES 1000u
#define MIB (1ull << 20)

struct lab {
    struct dctf_policy *policy;
    struct dctf_rng rng;
    uint64_t now_ms;
    uint64_t changes;
    uint64_t entered_bytes;
    uint64_t hot, mid; /* of the last evaluation */
    struct dctf_policy_result last;
};

static struct dctf_policy_config config(void)
{
    struct dctf_policy_config made = dctf_policy_defaults;

    made.changes_max = 10000;
    made.dwell_ms = 0;
    return made;
}

static void lab_init(struct lab *lab, const struct dctf_policy_config *with)
{
    *lab = (struct lab){.rng = {7}, .now_ms = 1000};
    assert_int_equal(dctf_policy_new(with, &lab->policy), DCTF_OK);
}

static void lab_fini(struct lab *lab)
{
    dctf_policy_result_fini(&lab->last);
    dctf_policy_free(lab->policy);
}

/* Ids as they are in life: hashes. */
static uint64_t id_of(unsigned i)
{
    struct dctf_rng rng = {i};

    return dctf_rng_next(&rng);
}

/* Poisson by multiplication (Knuth); for small means. */
static unsigned poisson(struct lab *lab, double mean)
{
    double limit = exp(-mean), product = 1;
    unsigned n = 0;

    while ((product *= (double)(dctf_rng_next(&lab->rng) >> 11) * 0x1p-53) > limit)
        n++;
    return n;
}

static void evaluate(struct lab *lab)
{
    dctf_policy_result_fini(&lab->last);
    lab->now_ms += 30000;
    assert_int_equal(dctf_policy_evaluate(lab->policy, lab->now_ms, &lab->last), DCTF_OK);
    lab->changes += lab->last.change_count;
    lab->hot = lab->mid = 0;
    for (size_t i = 0; i < lab->last.count; i++) {
        assert_true(i == 0 || lab->last.table[i - 1].feature_id < lab->last.table[i].feature_id);
        lab->hot += lab->last.table[i].class == DCTF_POLICY_HOT;
        lab->mid += lab->last.table[i].class == DCTF_POLICY_MID;
    }
    for (size_t i = 0; i < lab->last.change_count; i++) {
        if (lab->last.changes[i].to > lab->last.changes[i].from)
            lab->entered_bytes += MIB;
    }
}

/* One interval in which feature i is read mean(i) times, by four nodes. */
static void interval(struct lab *lab, double (*mean)(unsigned i))
{
    for (unsigned i = 0; i < FEATURES; i++) {
        for (unsigned reads = poisson(lab, mean(i)); reads; reads--)
            assert_int_equal(
                dctf_policy_report(lab->policy, id_of(i), dctf_rng_below(&lab->rng, 4), 1, MIB), DCTF_OK);
    }
    evaluate(lab);
}

static double uniform(unsigned i)
{
    (void)i;
    return 6;
}

static double steps(unsigned i)
{
    return i < FEATURES / 10 ? 30 : i < FEATURES * 4 / 10 ? 8 : 0.5;
}

static double steps_moved(unsigned i)
{
    return steps((i + FEATURES / 2) % FEATURES);
}

static void test_uniform_scan_makes_nothing_hot(void **state)
{
    struct dctf_policy_config with = config();
    struct lab lab;

    (void)state;
    lab_init(&lab, &with);
    for (unsigned i = 0; i < 200; i++)
        interval(&lab, uniform);
    assert_int_equal(lab.changes, 0);
    assert_int_equal(lab.last.count, 0);
    lab_fini(&lab);
}

static void test_hot_set_gets_its_classes_and_keeps_them(void **state)
{
    struct dctf_policy_config with = config();
    struct lab lab;
    uint64_t settled;

    (void)state;
    lab_init(&lab, &with);
    for (unsigned i = 0; i < 10; i++)
        interval(&lab, steps);
    /* The band keeps the last ranks out: 8 % and 36 % enter. */
    assert_in_range(lab.hot, FEATURES * 8 / 100, FEATURES * 10 / 100);
    assert_in_range(lab.hot + lab.mid, FEATURES * 36 / 100, FEATURES * 40 / 100);
    for (unsigned i = 0; i < FEATURES; i++) {
        enum dctf_policy_class class = dctf_policy_class_of(lab.last.table, lab.last.count, id_of(i));

        if (i >= FEATURES * 4 / 10)
            assert_int_equal(class, DCTF_POLICY_COLD);
        else if (i >= FEATURES / 10)
            assert_int_not_equal(class, DCTF_POLICY_HOT);
    }
    settled = lab.changes;
    for (unsigned i = 0; i < 100; i++)
        interval(&lab, steps);
    assert_true(lab.changes - settled < 200); /* two of a thousand per interval, at the edges of the bands */
    lab_fini(&lab);
}

static void test_hot_set_that_moves_is_followed(void **state)
{
    struct dctf_policy_config with = config();
    struct lab lab;

    (void)state;
    with.half_life = 3;
    lab_init(&lab, &with);
    for (unsigned i = 0; i < 20; i++)
        interval(&lab, steps);
    assert_int_equal(dctf_policy_class_of(lab.last.table, lab.last.count, id_of(5)), DCTF_POLICY_HOT);
    for (unsigned i = 0; i < 40; i++)
        interval(&lab, steps_moved);
    assert_int_equal(dctf_policy_class_of(lab.last.table, lab.last.count, id_of(5)), DCTF_POLICY_COLD);
    assert_int_not_equal(
        dctf_policy_class_of(lab.last.table, lab.last.count, id_of(FEATURES / 2 + 5)), DCTF_POLICY_COLD);
    lab_fini(&lab);
}

/* Two evaluations a minute, a hot set that flips every minute: what is copied stays within the budget. */
static void test_flapping_is_bounded(void **state)
{
    struct dctf_policy_config with = dctf_policy_defaults;
    struct lab lab;

    (void)state;
    with.new_bytes_max = 4 * MIB;
    lab_init(&lab, &with);
    for (unsigned minute = 0; minute < 60; minute++) {
        uint64_t before = lab.entered_bytes;

        interval(&lab, minute % 2 ? steps : steps_moved);
        interval(&lab, minute % 2 ? steps : steps_moved);
        assert_true(lab.entered_bytes - before <= 8 * MIB);
    }
    lab_fini(&lab);
}

static void test_one_reader_makes_nothing_hot(void **state)
{
    struct dctf_policy_config with = config();
    struct lab lab;

    (void)state;
    lab_init(&lab, &with);
    for (unsigned round = 0; round < 20; round++) {
        for (unsigned i = 0; i < 100; i++)
            assert_int_equal(dctf_policy_report(lab.policy, id_of(i), 3, i < 10 ? 50 : 1, MIB), DCTF_OK);
        evaluate(&lab);
    }
    assert_int_equal(lab.last.count, 0);
    lab_fini(&lab);
}

static void test_bytes_are_bounded(void **state)
{
    struct dctf_policy_config with = config();
    struct lab lab;

    (void)state;
    with.hot_bytes_max = 20 * MIB;
    with.mid_bytes_max = 50 * MIB;
    lab_init(&lab, &with);
    for (unsigned i = 0; i < 30; i++) {
        interval(&lab, steps);
        assert_true(lab.last.hot_bytes <= 20 * MIB);
        assert_true(lab.last.mid_bytes <= 50 * MIB);
    }
    assert_in_range(lab.hot, 17, 20); /* while one takes another's place both wait */
    assert_in_range(lab.mid, 40, 50);
    lab_fini(&lab);
}

static void test_streaks_and_dwell(void **state)
{
    struct dctf_policy_config with = dctf_policy_defaults;
    struct lab lab;

    (void)state;
    with.half_life = 1;
    lab_init(&lab, &with);
    interval(&lab, steps);
    interval(&lab, steps);
    assert_int_equal(lab.last.count, 0);
    interval(&lab, steps);
    assert_int_equal(lab.last.change_count, 64); /* the bound on changes */
    while (lab.last.change_count)
        interval(&lab, steps);
    lab.changes = 0;
    /* Six to leave, and ten minutes of dwell: twenty evaluations of half a minute. */
    for (unsigned i = 0; i < 5; i++)
        interval(&lab, steps_moved);
    assert_int_equal(dctf_policy_class_of(lab.last.table, lab.last.count, id_of(5)), DCTF_POLICY_HOT);
    for (unsigned i = 0; i < 40; i++)
        interval(&lab, steps_moved);
    assert_int_equal(dctf_policy_class_of(lab.last.table, lab.last.count, id_of(5)), DCTF_POLICY_COLD);
    lab_fini(&lab);
}

static void test_newcomers_are_not_starved(void **state)
{
    struct dctf_policy_config with = config();
    struct lab lab;

    (void)state;
    with.features_max = 500;
    lab_init(&lab, &with);
    for (unsigned round = 0; round < 20; round++)
        interval(&lab, steps_moved); /* the hot ones are reported last */
    assert_true(lab.hot > 20);
    assert_int_not_equal(
        dctf_policy_class_of(lab.last.table, lab.last.count, id_of(FEATURES / 2 + 5)), DCTF_POLICY_COLD);
    lab_fini(&lab);
}

/* For people to look at: the hottest in order, and how many nodes read each lately. */
static void test_hottest_are_told(void **state)
{
    struct dctf_policy_config with = config();
    struct lab lab;

    (void)state;
    with.told_max = 3;
    lab_init(&lab, &with);
    for (unsigned i = 0; i < 10; i++)
        for (unsigned node = 0; node <= 10 * i; node++)
            assert_int_equal(
                dctf_policy_report(lab.policy, id_of(i), id_of(1000 + node), 1, i * MIB), DCTF_OK);
    evaluate(&lab);
    assert_int_equal(lab.last.features, 10);
    assert_int_equal(lab.last.hottest_count, 3);
    for (unsigned i = 0; i < 3; i++) {
        const struct dctf_policy_heat *told = &lab.last.hottest[i];
        unsigned nodes = 10 * (9 - i) + 1;

        assert_true(told->feature_id == id_of(9 - i) && told->bytes == (9 - i) * MIB && told->passes > 0);
        assert_true(told->nodes > nodes / 2 && told->nodes < 2 * nodes); /* counted by 64 bits */
        assert_true(i == 0 || told->passes <= lab.last.hottest[i - 1].passes);
    }
    /* Nobody reads any more: after two half-lives nobody is counted. */
    for (unsigned i = 0; i < 2 * with.half_life + 1; i++)
        evaluate(&lab);
    assert_int_equal(lab.last.hottest[0].nodes, 0);
    lab_fini(&lab);
}

static void test_nothing_and_nonsense(void **state)
{
    struct dctf_policy_config with = config();
    struct lab lab;

    (void)state;
    lab_init(&lab, &with);
    evaluate(&lab);
    assert_int_equal(lab.last.count, 0);
    assert_int_equal(dctf_policy_report(lab.policy, 1, 1, (double)NAN, 1), DCTF_OK);
    assert_int_equal(dctf_policy_report(lab.policy, 1, 1, -5, 1), DCTF_OK);
    assert_int_equal(dctf_policy_report(lab.policy, 1, 1, HUGE_VAL, 1), DCTF_OK);
    evaluate(&lab);
    assert_int_equal(dctf_policy_class_of(NULL, 0, 1), DCTF_POLICY_COLD);
    lab_fini(&lab);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_uniform_scan_makes_nothing_hot),
        cmocka_unit_test(test_hot_set_gets_its_classes_and_keeps_them),
        cmocka_unit_test(test_hot_set_that_moves_is_followed),
        cmocka_unit_test(test_flapping_is_bounded),
        cmocka_unit_test(test_one_reader_makes_nothing_hot),
        cmocka_unit_test(test_bytes_are_bounded),
        cmocka_unit_test(test_streaks_and_dwell),
        cmocka_unit_test(test_newcomers_are_not_starved),
        cmocka_unit_test(test_hottest_are_told),
        cmocka_unit_test(test_nothing_and_nonsense),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
