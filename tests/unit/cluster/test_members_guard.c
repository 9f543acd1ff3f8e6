/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/members_guard.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define WINDOW 20000u
#define HOLD 30000u
#define LOST 25000u
#define MAX 64u

struct look {
    struct dctf_guard guard;
    struct dctf_node before[MAX];
    size_t before_count;
};

/* Members `from` … `to` - 1 are listed at `now_ms`; how many count. */
static size_t look_at(struct look *look, uint64_t now_ms, unsigned from, unsigned to, bool lost)
{
    struct dctf_node now[MAX] = {{.weight = 0}}, *out;
    size_t count = to - from, out_count;

    for (unsigned i = 0; i < count; i++) {
        now[i].weight = 1;
        snprintf(now[i].id, sizeof(now[i].id), "n%02u", from + i);
    }
    assert_int_equal(dctf_guard_apply(&look->guard, now_ms, look->before, look->before_count, now, count,
                         lost, &out, &out_count),
        DCTF_OK);
    for (size_t i = 1; i < out_count; i++)
        assert_true(strcmp(out[i - 1].id, out[i].id) < 0);
    free(out);
    memcpy(look->before, now, count * sizeof(now[0]));
    look->before_count = count;
    return out_count;
}

static void look_init(struct look *look)
{
    memset(look, 0, sizeof(*look));
    dctf_guard_init(&look->guard, WINDOW, HOLD, LOST);
}

static void test_apply_lets_few_go(void **state)
{
    struct look look;

    (void)state;
    look_init(&look);
    assert_int_equal(look_at(&look, 1000, 0, 10, false), 10);
    assert_int_equal(look_at(&look, 2000, 2, 10, false), 8);
    assert_int_equal(look_at(&look, 2000 + WINDOW, 4, 10, false), 6); /* the first two are forgotten */
    assert_true(dctf_guard_due_ms(&look.guard) == UINT64_MAX);
    dctf_guard_fini(&look.guard);
}

static void test_apply_keeps_many(void **state)
{
    struct look look;

    (void)state;
    look_init(&look);
    assert_int_equal(look_at(&look, 1000, 0, 10, false), 10);
    assert_int_equal(look_at(&look, 2000, 3, 10, false), 10);
    assert_true(dctf_guard_due_ms(&look.guard) == 2000 + HOLD);
    assert_int_equal(look_at(&look, 3000, 9, 10, false), 10);
    assert_int_equal(look_at(&look, 2000 + HOLD - 1, 9, 10, false), 10);
    assert_int_equal(look_at(&look, 2000 + HOLD, 9, 10, false), 1);
    assert_int_equal(look_at(&look, 2000 + HOLD + 1, 9, 10, false), 1);
    assert_true(dctf_guard_due_ms(&look.guard) == UINT64_MAX);
    dctf_guard_fini(&look.guard);
}

/* A few at a time, but all within a lease: the first that went come back too. */
static void test_apply_keeps_those_that_trickle_away(void **state)
{
    struct look look;

    (void)state;
    look_init(&look);
    assert_int_equal(look_at(&look, 1000, 0, 10, false), 10);
    assert_int_equal(look_at(&look, 2000, 1, 10, false), 9);
    assert_int_equal(look_at(&look, 3000, 2, 10, false), 8);
    assert_int_equal(look_at(&look, 4000, 3, 10, false), 10);
    dctf_guard_fini(&look.guard);
}

static void test_apply_ends_when_all_are_back(void **state)
{
    struct look look;

    (void)state;
    look_init(&look);
    assert_int_equal(look_at(&look, 1000, 0, 10, false), 10);
    assert_int_equal(look_at(&look, 2000, 5, 10, false), 10);
    assert_int_equal(look_at(&look, 3000, 0, 10, false), 10);
    assert_true(dctf_guard_due_ms(&look.guard) == UINT64_MAX);
    assert_int_equal(look_at(&look, 4000, 1, 10, false), 9);
    dctf_guard_fini(&look.guard);
}

static void test_apply_lost_keeps_even_one(void **state)
{
    struct look look;

    (void)state;
    look_init(&look);
    assert_int_equal(look_at(&look, 1000, 0, 2, false), 2);
    assert_int_equal(look_at(&look, 2000, 0, 1, true), 2);
    assert_int_equal(look_at(&look, 2000 + LOST - 1, 0, 1, false), 2);
    assert_int_equal(look_at(&look, 2000 + LOST, 0, 1, false), 1);
    dctf_guard_fini(&look.guard);
}

static void test_left_is_not_kept(void **state)
{
    struct look look;

    (void)state;
    look_init(&look);
    assert_int_equal(look_at(&look, 1000, 0, 10, false), 10);
    assert_int_equal(look_at(&look, 2000, 5, 10, false), 10);
    dctf_guard_left(&look.guard, "n00");
    dctf_guard_left(&look.guard, "n04");
    dctf_guard_left(&look.guard, "nobody");
    assert_int_equal(look_at(&look, 3000, 5, 10, false), 8);
    dctf_guard_fini(&look.guard);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_apply_lets_few_go),
        cmocka_unit_test(test_apply_keeps_many),
        cmocka_unit_test(test_apply_keeps_those_that_trickle_away),
        cmocka_unit_test(test_apply_ends_when_all_are_back),
        cmocka_unit_test(test_apply_lost_keeps_even_one),
        cmocka_unit_test(test_left_is_not_kept),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
