/* SPDX-License-Identifier: Apache-2.0
 *
 * What nodes note of pieces that a home has no room for.
 */
#include "cluster/spare.h"

#include "base/version.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#define KEY 0x1234567890abcd00u

static int setup(void **state)
{
    *state = calloc(1, sizeof(struct dctf_spare));
    return *state ? 0 : -1;
}

static int teardown(void **state)
{
    free(*state);
    return 0;
}

static void test_pieces_of_blocks(void **state)
{
    (void)state;
    assert_int_equal(dctf_spare_pieces(0, 1), 0x01);
    assert_int_equal(dctf_spare_pieces(0, 4), 0x01);
    assert_int_equal(dctf_spare_pieces(3, 2), 0x03);
    assert_int_equal(dctf_spare_pieces(31, 1), 0x80);
    assert_int_equal(dctf_spare_pieces(0, 32), 0xff);
    assert_int_equal(dctf_spare_pieces(64 + 8, 9), 0x1c); /* of the third extent */
}

static void test_refused_until_kept(void **state)
{
    struct dctf_spare *spare = *state;

    assert_int_equal(dctf_spare_home_refused(spare, KEY), 0);
    assert_false(spare->short_of_room);
    dctf_spare_home_kept(spare, KEY, 0x0f, true);
    assert_int_equal(dctf_spare_home_refused(spare, KEY), 0);
    dctf_spare_home_kept(spare, KEY, 0xf0, false);
    dctf_spare_home_kept(spare, KEY, 0x08, false);
    assert_int_equal(dctf_spare_home_refused(spare, KEY), 0xf8);
    assert_int_equal(dctf_spare_home_refused(spare, KEY + 0x100), 0);
    assert_true(spare->short_of_room);
    dctf_spare_home_kept(spare, KEY, 0x88, true);
    assert_int_equal(dctf_spare_home_refused(spare, KEY), 0x70);
    dctf_spare_home_kept(spare, KEY, 0xff, true);
    assert_int_equal(dctf_spare_home_refused(spare, KEY), 0);
}

static void test_told_once(void **state)
{
    struct dctf_spare *spare = *state;

    dctf_spare_tell(spare, KEY, 0x03);
    assert_false(dctf_spare_was_told(spare, KEY, 0x04));
    assert_true(dctf_spare_was_told(spare, KEY, 0x01));
    assert_false(dctf_spare_was_told(spare, KEY, 0x01));
    assert_true(dctf_spare_was_told(spare, KEY, 0x02));
}

/* The first question may be about what is new to the home. */
static void test_adopted_after_the_same_question_twice(void **state)
{
    struct dctf_spare *spare = *state;

    dctf_spare_asked(spare, KEY, 0x01);
    dctf_spare_asked(spare, KEY, 0x06); /* other pieces of it */
    assert_int_equal(dctf_spare_adopted(spare, KEY), 0);
    dctf_spare_asked(spare, KEY, 0x0c);
    assert_int_equal(dctf_spare_adopted(spare, KEY), 0x04);
    assert_int_equal(dctf_spare_adopted(spare, KEY + 0x100), 0);
}

/* Far more than there is room for: whatever is remembered is right, and some is. */
static void test_forgets(void **state)
{
    struct dctf_spare *spare = *state;
    unsigned known = 0;
    uint64_t key;

    for (uint64_t i = 0; i < 4 * DCTF_SPARE_EXTENTS; i++) {
        key = dctf_hash64(&i, sizeof(i));
        dctf_spare_adopt(spare, key, 1u << i % 8);
        assert_int_equal(dctf_spare_adopted(spare, key), 1u << i % 8);
    }
    for (uint64_t i = 0; i < 4 * DCTF_SPARE_EXTENTS; i++) {
        key = dctf_hash64(&i, sizeof(i));
        if (!dctf_spare_adopted(spare, key))
            continue;
        known++;
        assert_int_equal(dctf_spare_adopted(spare, key), 1u << i % 8);
    }
    assert_in_range(known, DCTF_SPARE_EXTENTS / 2, DCTF_SPARE_EXTENTS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces_of_blocks),
        cmocka_unit_test_setup_teardown(test_refused_until_kept, setup, teardown),
        cmocka_unit_test_setup_teardown(test_told_once, setup, teardown),
        cmocka_unit_test_setup_teardown(test_adopted_after_the_same_question_twice, setup, teardown),
        cmocka_unit_test_setup_teardown(test_forgets, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
