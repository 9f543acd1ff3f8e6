/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/layout.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64];

static int set_up(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/dctf-test-layout-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int tear_down(void **state)
{
    char command[128];

    (void)state;
    snprintf(command, sizeof(command), "rm -rf '%s'", dir);
    return system(command);
}

static void put_file(const char *name, const char *text)
{
    char path[128];
    FILE *file;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void test_open_makes_private_directory(void **state)
{
    struct dctf_layout layout;
    char path[128];
    struct stat st;

    (void)state;
    snprintf(path, sizeof(path), "%s/a/b", dir);
    assert_int_equal(dctf_layout_open(path, "me", NULL, &layout), DCTF_OK);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    assert_string_equal(layout.db_dir + strlen(path), "/db");
    dctf_layout_close(&layout);
    assert_int_equal(dctf_layout_open(path, "me", NULL, &layout), DCTF_OK); /* and again */
    dctf_layout_close(&layout);
}

static void test_open_twice_names_the_holder(void **state)
{
    struct dctf_layout first, second;
    char detail[DCTF_LAYOUT_DETAIL_BYTES] = "";

    (void)state;
    assert_int_equal(dctf_layout_open(dir, "pid 12 on /mnt", NULL, &first), DCTF_OK);
    assert_int_equal(dctf_layout_open(dir, "pid 13 on /data", detail, &second), DCTF_ERR_CACHE_IN_USE);
    assert_non_null(strstr(detail, "pid 12 on /mnt"));
    dctf_layout_close(&first);
    assert_int_equal(dctf_layout_open(dir, "pid 13 on /data", detail, &second), DCTF_OK);
    assert_int_equal(dctf_layout_open(dir, NULL, detail, &first), DCTF_ERR_CACHE_IN_USE);
    assert_non_null(strstr(detail, "pid 13 on /data"));
    dctf_layout_close(&second);
}

static void test_open_foreign_directory(void **state)
{
    struct dctf_layout layout;
    char detail[DCTF_LAYOUT_DETAIL_BYTES] = "";
    char path[128];

    (void)state;
    snprintf(path, sizeof(path), "%s/lost+found", dir);
    assert_int_equal(mkdir(path, 0700), 0);
    put_file("thesis.doc", "precious");
    assert_int_equal(dctf_layout_open(dir, "me", detail, &layout), DCTF_ERR_CACHE_FOREIGN);
    assert_non_null(strstr(detail, dir));
    snprintf(path, sizeof(path), "%s/LOCK", dir);
    assert_int_equal(access(path, F_OK), -1); /* nothing was touched */
    snprintf(path, sizeof(path), "%s/thesis.doc", dir);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(dctf_layout_open(dir, "me", detail, &layout), DCTF_OK);
    dctf_layout_close(&layout);
}

static void test_open_unknown_format(void **state)
{
    struct dctf_layout layout;
    char detail[DCTF_LAYOUT_DETAIL_BYTES] = "";
    static const char *const texts[] = {
        "dctffs-cache 2\n", "dctffs-cache 10\n", "", "\x01\xff junk", "dctffs-cache 1x"};

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        put_file("FORMAT", texts[i]);
        assert_int_equal(dctf_layout_open(dir, "me", detail, &layout), DCTF_ERR_CACHE_FORMAT);
    }
    put_file("FORMAT", "dctffs-cache 1\n");
    assert_int_equal(dctf_layout_open(dir, "me", detail, &layout), DCTF_OK);
    dctf_layout_close(&layout);
}

static void test_open_not_a_directory(void **state)
{
    struct dctf_layout layout;
    char detail[DCTF_LAYOUT_DETAIL_BYTES] = "";
    char path[128];

    (void)state;
    put_file("file", "");
    snprintf(path, sizeof(path), "%s/file", dir);
    assert_int_equal(dctf_layout_open(path, "me", detail, &layout), DCTF_ERR_CACHE_IO);
    assert_non_null(strstr(detail, "Not a directory"));
}

static bool count_files(void *ctx, const struct dctf_id *id)
{
    unsigned *counts = ctx;

    counts[id ? 0 : 1]++;
    return true;
}

static void test_files(void **state)
{
    struct dctf_layout layout;
    struct dctf_id id = {{0xab, 0xcd, 1}}, parsed;
    char name[DCTF_LAYOUT_NAME_BYTES];
    unsigned counts[2] = {0, 0};
    struct stat st;
    int fd, again;

    (void)state;
    assert_int_equal(dctf_layout_open(dir, "me", NULL, &layout), DCTF_OK);
    assert_int_equal(dctf_layout_file_open(&layout, &id, false, 0, &fd), DCTF_ERR_MISS);
    assert_int_equal(fd, -1);
    assert_int_equal(dctf_layout_file_open(&layout, &id, true, 5 << 20, &fd), DCTF_OK);
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_size, 5 << 20);
    assert_int_equal(dctf_layout_file_open(&layout, &id, false, 0, &again), DCTF_OK);
    close(again);
    close(fd);
    dctf_layout_file_name(&id, name);
    assert_string_equal(name, "abcd0100000000000000000000000000");
    assert_true(dctf_layout_file_parse(name, &parsed));
    assert_memory_equal(&parsed, &id, sizeof(id));
    assert_false(dctf_layout_file_parse("ABCD0100000000000000000000000000", &parsed));
    assert_false(dctf_layout_file_parse("abcd", &parsed));
    put_file("shards/ab/stray", "");
    dctf_layout_each_file(&layout, 0xab, count_files, counts);
    assert_int_equal(counts[0], 1);
    assert_int_equal(counts[1], 1);
    dctf_layout_each_file(&layout, 0xac, count_files, counts); /* no such folder */
    assert_int_equal(dctf_layout_file_unlink(&layout, &id), DCTF_OK);
    assert_int_equal(dctf_layout_file_unlink(&layout, &id), DCTF_OK);
    dctf_layout_close(&layout);
}

static void test_space(void **state)
{
    struct dctf_layout layout;
    struct dctf_layout_space space;

    (void)state;
    assert_int_equal(dctf_layout_open(dir, "me", NULL, &layout), DCTF_OK);
    assert_int_equal(dctf_layout_space(&layout, &space), DCTF_OK);
    assert_true(space.total_bytes > 0 && space.free_bytes <= space.total_bytes);
    dctf_layout_close(&layout);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_open_makes_private_directory, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_open_twice_names_the_holder, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_open_foreign_directory, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_open_unknown_format, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_open_not_a_directory, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_files, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_space, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
