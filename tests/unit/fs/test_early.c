/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/early.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const struct dctf_id first = {.bytes = {1}};
static const struct dctf_id second = {.bytes = {2}};

static int setup(void **state)
{
    struct dctf_early *early;

    assert_int_equal(dctf_early_new(&early), DCTF_OK);
    *state = early;
    return 0;
}

static int teardown(void **state)
{
    dctf_early_free(*state);
    return 0;
}

/* Files looked up and opened, one after the other; the last look-up's verdict. */
static bool open_in_turn(struct dctf_early *early, uint64_t from, unsigned count)
{
    bool likely = false;

    for (uint64_t ino = from; ino < from + count; ino++) {
        likely = dctf_early_looked_up(early, ino);
        dctf_early_opened(early, ino);
    }
    return likely;
}

static void test_looked_up_predicts_after_a_streak(void **state)
{
    assert_false(open_in_turn(*state, 1, DCTF_EARLY_STREAK));
    assert_true(open_in_turn(*state, 100, 1));
}

static void test_looked_up_predicts_nothing_for_find(void **state)
{
    open_in_turn(*state, 1, 100);
    assert_true(dctf_early_looked_up(*state, 200)); /* and nobody opens it */
    assert_false(dctf_early_looked_up(*state, 201));
    for (uint64_t ino = 300; ino < 400; ino++)
        assert_false(dctf_early_looked_up(*state, ino));
    dctf_early_opened(*state, 399);
    assert_false(dctf_early_looked_up(*state, 400)); /* one open is no streak */
}

static void test_opened_of_another_file_is_no_streak(void **state)
{
    for (uint64_t ino = 1; ino < 100; ino++) {
        assert_false(dctf_early_looked_up(*state, ino));
        dctf_early_opened(*state, ino + 1000);
    }
}

static void test_take_after_done(void **state)
{
    const void *bytes;
    char *buf = dctf_early_claim(*state, &first);

    assert_non_null(buf);
    memset(buf, 'x', DCTF_EARLY_BYTES);
    assert_null(dctf_early_done(*state, true));
    assert_int_equal(dctf_early_take(*state, &second, *state, &bytes), DCTF_EARLY_NONE);
    assert_int_equal(dctf_early_take(*state, &first, *state, &bytes), DCTF_EARLY_TAKEN);
    assert_ptr_equal(bytes, buf);
    assert_null(dctf_early_claim(*state, &second)); /* being used */
    assert_int_equal(dctf_early_take(*state, &first, *state, &bytes), DCTF_EARLY_NONE);
    assert_null(bytes);
    dctf_early_release(*state, true); /* more will be read */
    assert_true(dctf_early_has(*state, &first));
    assert_false(dctf_early_has(*state, &second));
    assert_int_equal(dctf_early_take(*state, &first, *state, &bytes), DCTF_EARLY_TAKEN);
    dctf_early_release(*state, false);
    assert_false(dctf_early_has(*state, &first));
    assert_int_equal(dctf_early_take(*state, &first, *state, &bytes), DCTF_EARLY_NONE);
}

static void test_take_parks_one_read_while_reading(void **state)
{
    int one, two;
    const void *bytes;
    void *buf = dctf_early_claim(*state, &first);

    assert_non_null(buf);
    assert_null(dctf_early_claim(*state, &second));
    assert_int_equal(dctf_early_take(*state, &second, &two, &bytes), DCTF_EARLY_NONE);
    assert_int_equal(dctf_early_take(*state, &first, &one, &bytes), DCTF_EARLY_PARKED);
    assert_int_equal(dctf_early_take(*state, &first, &two, &bytes), DCTF_EARLY_NONE);
    assert_ptr_equal(dctf_early_done(*state, true), &one);
    assert_null(dctf_early_claim(*state, &second)); /* the reader answers from the buffer */
    dctf_early_release(*state, false);
    assert_non_null(dctf_early_claim(*state, &second));
    assert_null(dctf_early_done(*state, false));
}

static void test_done_failed_frees_the_buffer(void **state)
{
    int read;
    const void *bytes;

    assert_non_null(dctf_early_claim(*state, &first));
    assert_int_equal(dctf_early_take(*state, &first, &read, &bytes), DCTF_EARLY_PARKED);
    assert_ptr_equal(dctf_early_done(*state, false), &read);
    assert_int_equal(dctf_early_take(*state, &first, &read, &bytes), DCTF_EARLY_NONE);
    assert_non_null(dctf_early_claim(*state, &first));
    assert_null(dctf_early_done(*state, false));
}

static void test_claim_replaces_what_nobody_read(void **state)
{
    const void *bytes;

    assert_non_null(dctf_early_claim(*state, &first));
    assert_null(dctf_early_done(*state, true));
    assert_non_null(dctf_early_claim(*state, &second));
    assert_int_equal(dctf_early_take(*state, &first, *state, &bytes), DCTF_EARLY_NONE);
    assert_null(dctf_early_done(*state, true));
    assert_int_equal(dctf_early_take(*state, &first, *state, &bytes), DCTF_EARLY_NONE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_looked_up_predicts_after_a_streak, setup, teardown),
        cmocka_unit_test_setup_teardown(test_looked_up_predicts_nothing_for_find, setup, teardown),
        cmocka_unit_test_setup_teardown(test_opened_of_another_file_is_no_streak, setup, teardown),
        cmocka_unit_test_setup_teardown(test_take_after_done, setup, teardown),
        cmocka_unit_test_setup_teardown(test_take_parks_one_read_while_reading, setup, teardown),
        cmocka_unit_test_setup_teardown(test_done_failed_frees_the_buffer, setup, teardown),
        cmocka_unit_test_setup_teardown(test_claim_replaces_what_nobody_read, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
