/* SPDX-License-Identifier: Apache-2.0
 *
 * The directory origin reads: ranges, versions, failures, open files.
 */
#include "origin_file_fixture.h"

#include "base/log.h"

#include <dirent.h>

static enum dctf_err get_with(struct dctf_origin *origin, const char *key, const char *etag, uint64_t size)
{
    struct reply *reply = start_get(origin, key, etag, size, 0, size);
    enum dctf_err err = reply_wait(reply);

    free(reply);
    return err;
}

static void test_get_reads_ranges(void **state)
{
    struct world *world = *state;
    struct reply *looked;
    struct reply *got;

    assert_reads(world->origin, "dir/one", "0123456789");
    assert_int_equal(head(world->origin, "dir/one", &looked), DCTF_OK);
    assert_string_equal(looked->entry.name, "one");
    got = start_get(world->origin, "dir/one", looked->etag, 10, 3, 4);
    assert_int_equal(reply_wait(got), DCTF_OK);
    assert_memory_equal(got->buf, "3456", 4);
    free(got);
    hook.short_by = 1; /* the kernel may always deliver less than asked */
    assert_reads(world->origin, "dir/one", "0123456789");
    hook.short_by = 0;
    free(looked);
}

static void test_get_notices_each_change(void **state)
{
    struct world *world = *state;
    struct reply *looked;
    char old[DCTF_FILE_ETAG_BYTES];

    assert_reads(world->origin, "dir/one", "0123456789"); /* now its file is kept open */
    assert_int_equal(head(world->origin, "dir/one", &looked), DCTF_OK);
    strcpy(old, looked->etag);
    free(looked);
    write_file(at(world, "root/dir/new"), "abcdefghij", 10); /* same size, other file */
    assert_int_equal(rename(at(world, "root/dir/new"), at(world, "root/dir/one")), 0);
    assert_int_equal(get_with(world->origin, "dir/one", old, 10), DCTF_ERR_VERSION_MISMATCH);
    assert_reads(world->origin, "dir/one", "abcdefghij");

    assert_int_equal(head(world->origin, "dir/one", &looked), DCTF_OK);
    write_file(at(world, "root/dir/one"), "ABCDEFGHIJ", 10); /* in place */
    assert_int_equal(get_with(world->origin, "dir/one", looked->etag, 10), DCTF_ERR_VERSION_MISMATCH);
    assert_reads(world->origin, "dir/one", "ABCDEFGHIJ");
    free(looked);

    assert_int_equal(truncate(at(world, "root/dir/one"), 5), 0);
    assert_int_equal(get_with(world->origin, "dir/one", old, 10), DCTF_ERR_VERSION_MISMATCH);
    assert_int_equal(unlink(at(world, "root/dir/one")), 0);
    assert_int_equal(get_with(world->origin, "dir/one", old, 10), DCTF_ERR_NOT_FOUND);
    assert_int_equal(symlink("../../out/secret", at(world, "root/dir/one")), 0);
    assert_int_equal(get_with(world->origin, "dir/one", old, 10), DCTF_ERR_NOT_FOUND);
}

static void test_get_never_delivers_a_torn_read(void **state)
{
    struct world *world = *state;
    struct reply *looked;

    assert_int_equal(head(world->origin, "dir/one", &looked), DCTF_OK);
    hook.touch = at(world, "root/dir/one");
    assert_int_equal(get_with(world->origin, "dir/one", looked->etag, 10), DCTF_ERR_VERSION_MISMATCH);
    assert_reads(world->origin, "dir/one", "changed!!!");
    free(looked);
}

static void test_get_fails_with_the_cause(void **state)
{
    struct world *world = *state;
    struct reply *looked;
    struct reply *got;

    assert_int_equal(head(world->origin, "dir/one", &looked), DCTF_OK);
    hook.errnum = EIO;
    assert_int_equal(get_with(world->origin, "dir/one", looked->etag, 10), DCTF_ERR_ORIGIN_IO);
    hook.errnum = ESTALE;
    assert_int_equal(get_with(world->origin, "dir/one", looked->etag, 10), DCTF_ERR_VERSION_MISMATCH);
    hook.errnum = EINTR;
    assert_int_equal(get_with(world->origin, "dir/one", looked->etag, 10), DCTF_OK);
    got = start_get(world->origin, "dir/one", looked->etag, 12, 8, 4);
    assert_int_equal(reply_wait(got), DCTF_ERR_SHORT_BODY);
    assert_int_equal(got->got, 2);
    free(got);
    free(looked);
}

static size_t count_fds(void)
{
    DIR *stream = opendir("/proc/self/fd");
    size_t count = 0;

    while (readdir(stream))
        count++;
    closedir(stream);
    return count;
}

static void test_get_keeps_few_files_open(void **state)
{
    struct world *world = *state;
    size_t before = count_fds();

    for (unsigned round = 0; round < 2; round++) {
        for (unsigned i = 0; i < 150; i++) {
            char key[16];
            char path[256];

            snprintf(key, sizeof(key), "file%u", i);
            snprintf(path, sizeof(path), "%s/%s", at(world, "root"), key);
            if (round == 0)
                write_file(path, key, strlen(key));
            assert_reads(world->origin, key, key);
        }
    }
    assert_true(count_fds() > before);
    assert_true(count_fds() <= before + 64);
    world->origin->ops->close(world->origin, 10000);
    world->origin = NULL;
    assert_int_equal(count_fds(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_get_reads_ranges),
        TEST(test_get_notices_each_change),
        TEST(test_get_never_delivers_a_torn_read),
        TEST(test_get_fails_with_the_cause),
        TEST(test_get_keeps_few_files_open),
    };

    dctf_log_set_level(DCTF_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
