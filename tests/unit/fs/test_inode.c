/* SPDX-License-Identifier: Apache-2.0 */
#include "base/version.h"
#include "fs/inode.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

static int setup(void **state)
{
    struct dctf_inodes *inodes;

    assert_int_equal(dctf_inodes_new(7, NULL, &inodes), DCTF_OK);
    *state = inodes;
    return 0;
}

static int teardown(void **state)
{
    dctf_inodes_free(*state);
    return 0;
}

static struct dctf_inode *look_up(struct dctf_inodes *inodes, struct dctf_inode *parent, const char *path,
    const char *name, const char *etag)
{
    struct dctf_entry entry = {.name = name, .is_dir = !etag, .size = etag ? 5 : 0, .etag = etag ? etag : ""};
    struct dctf_inode *inode;

    assert_int_equal(dctf_inodes_lookup(inodes, parent, path, &entry, &inode), DCTF_OK);
    return inode;
}

static void test_lookup_same_version_is_one_inode(void **state)
{
    struct dctf_inodes *inodes = *state;
    struct dctf_inode *root = dctf_inodes_get(inodes, DCTF_INO_ROOT);
    struct dctf_inode *first = look_up(inodes, root, "", "a", "v1");

    assert_ptr_equal(first, look_up(inodes, root, "", "a", "v1"));
    assert_int_equal(first->lookups, 2);
    assert_ptr_not_equal(first, look_up(inodes, root, "", "a", "v2"));
    assert_int_equal(dctf_inodes_count(inodes), 3);
    dctf_inodes_put(inodes, root);
}

static void test_number_is_stable_and_out_of_the_reserved_range(void **state)
{
    struct dctf_inodes *inodes = *state;
    struct dctf_inode *root = dctf_inodes_get(inodes, DCTF_INO_ROOT);
    struct dctf_entry entry = {.name = "a", .size = 5, .etag = "v1"};
    uint64_t number = dctf_inodes_number(inodes, "", &entry);
    struct dctf_inodes *others;

    assert_true(number >= DCTF_INO_RESERVED);
    assert_true(number <= INT64_MAX);
    assert_int_equal(look_up(inodes, root, "", "a", "v1")->ino, number);
    assert_int_equal(dctf_inodes_new(7, NULL, &others), DCTF_OK);
    assert_int_equal(dctf_inodes_number(others, "", &entry), number);
    dctf_inodes_free(others);
    dctf_inodes_put(inodes, root);
}

static void test_forget_frees_parents_last(void **state)
{
    struct dctf_inodes *inodes = *state;
    struct dctf_inode *root = dctf_inodes_get(inodes, DCTF_INO_ROOT);
    struct dctf_inode *dir = look_up(inodes, root, "", "d", NULL);
    struct dctf_inode *file = look_up(inodes, dir, "d", "f", "v");
    char path[DCTF_KEY_MAX + 1];

    dctf_inodes_forget(inodes, dir->ino, 1);
    assert_int_equal(dctf_inode_path(file, path), DCTF_OK); /* the child keeps its parent */
    assert_string_equal(path, "d/f");
    assert_int_equal(dctf_inodes_count(inodes), 3);
    dctf_inodes_forget(inodes, file->ino, 1);
    assert_int_equal(dctf_inodes_count(inodes), 1);
    dctf_inodes_put(inodes, root);
}

static void test_forget_more_than_known_does_no_harm(void **state)
{
    struct dctf_inodes *inodes = *state;
    struct dctf_inode *root = dctf_inodes_get(inodes, DCTF_INO_ROOT);
    struct dctf_inode *file = look_up(inodes, root, "", "f", "v");

    dctf_inodes_forget(inodes, file->ino, 100);
    dctf_inodes_forget(inodes, DCTF_INO_ROOT, 100);
    dctf_inodes_forget(inodes, 12345, 1);
    assert_int_equal(dctf_inodes_count(inodes), 1);
    dctf_inodes_put(inodes, root);
}

static void test_lookup_survives_growth_and_shrinks_back(void **state)
{
    enum { COUNT = 50000 };
    struct dctf_inodes *inodes = *state;
    struct dctf_inode *root = dctf_inodes_get(inodes, DCTF_INO_ROOT);
    static uint64_t numbers[COUNT];
    char name[32];

    for (int i = 0; i < COUNT; i++) {
        snprintf(name, sizeof(name), "shard-%d", i);
        numbers[i] = look_up(inodes, root, "", name, "v")->ino;
    }
    assert_int_equal(dctf_inodes_count(inodes), COUNT + 1);
    for (int i = 0; i < COUNT; i++) {
        struct dctf_inode *inode = dctf_inodes_get(inodes, numbers[i]);

        assert_non_null(inode);
        dctf_inodes_put(inodes, inode);
        dctf_inodes_forget(inodes, numbers[i], 1);
    }
    assert_int_equal(dctf_inodes_count(inodes), 1);
    dctf_inodes_put(inodes, root);
}

static void test_join_refuses_a_key_that_is_too_long(void **state)
{
    char dir[DCTF_KEY_MAX + 1], out[DCTF_KEY_MAX + 1];

    (void)state;
    memset(dir, 'd', sizeof(dir));
    dir[DCTF_KEY_MAX - 2] = '\0';
    assert_int_equal(dctf_path_join(dir, "x", out), DCTF_OK);
    assert_int_equal(strlen(out), DCTF_KEY_MAX);
    assert_int_equal(dctf_path_join(dir, "xy", out), DCTF_ERR_NAME_TOO_LONG);
    assert_int_equal(dctf_path_join("", "x", out), DCTF_OK);
    assert_string_equal(out, "x");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_lookup_same_version_is_one_inode, setup, teardown),
        cmocka_unit_test_setup_teardown(test_number_is_stable_and_out_of_the_reserved_range, setup, teardown),
        cmocka_unit_test_setup_teardown(test_forget_frees_parents_last, setup, teardown),
        cmocka_unit_test_setup_teardown(test_forget_more_than_known_does_no_harm, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lookup_survives_growth_and_shrinks_back, setup, teardown),
        cmocka_unit_test(test_join_refuses_a_key_that_is_too_long),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
