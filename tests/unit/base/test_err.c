/* SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void test_table_is_complete(void **state)
{
    size_t count = 0;
    enum dctf_err err;

    (void)state;
    for (; (err = dctf_err_at(count)) != DCTF_OK; count++) {
        int layer = (int)err / 1000;

        assert_true(layer == 1 || layer == 2 || layer == 3 || layer == 4 || layer == 9);
        assert_string_not_equal(dctf_err_name(err), "UNKNOWN");
        assert_true(*dctf_err_text(err) && *dctf_err_remedy(err));
        assert_null(strchr(dctf_err_text(err), '\n'));
        assert_null(strchr(dctf_err_remedy(err), '\n'));
        assert_true(dctf_err_errno(err) >= 0 && dctf_err_errno(err) < 133); /* else libfuse answers ERANGE */
        for (size_t i = 0; i < count; i++)
            assert_string_not_equal(dctf_err_name(err), dctf_err_name(dctf_err_at(i)));
    }
    assert_true(count > 40);
    assert_int_equal(dctf_err_at(count + 1), DCTF_OK);
    assert_int_equal(dctf_err_at(SIZE_MAX), DCTF_OK);
}

static void test_codes_users_meet(void **state)
{
    (void)state;
    assert_int_equal(DCTF_ERR_VERSION_MISMATCH, 1003);
    assert_int_equal(dctf_err_errno(DCTF_ERR_VERSION_MISMATCH), ESTALE);
    assert_string_equal(dctf_err_name(DCTF_ERR_VERSION_MISMATCH), "VERSION_MISMATCH");
    assert_int_equal(DCTF_ERR_TRANSFER_CHECKSUM, 2011);
    assert_int_equal(dctf_err_errno(DCTF_ERR_TRANSFER_CHECKSUM), EIO);
    assert_int_equal(dctf_err_class(DCTF_ERR_TRANSFER_CHECKSUM), DCTF_ERR_CLASS_NEXT);
    assert_int_equal(DCTF_ERR_TOPOLOGY_TIMEOUT, 3055);
    assert_int_equal(dctf_err_errno(DCTF_ERR_TOPOLOGY_TIMEOUT), 0);
    assert_non_null(strstr(dctf_err_remedy(DCTF_ERR_TOPOLOGY_TIMEOUT), "topology_timeout_ms"));
}

/* A job that takes a missing shard for the end of its data learns from fewer shards. */
static void test_only_not_found_is_enoent(void **state)
{
    (void)state;
    for (size_t i = 0; dctf_err_at(i) != DCTF_OK; i++) {
        enum dctf_err err = dctf_err_at(i);

        if ((int)err / 1000 < 4 && dctf_err_errno(err) == ENOENT)
            assert_true(err == DCTF_ERR_NOT_FOUND || err == DCTF_ERR_NOT_MOUNTED);
    }
    for (int errnum = 1; errnum < 133; errnum++) {
        if (errnum != ENOENT)
            assert_int_not_equal(dctf_err_from_errno_origin(errnum), DCTF_ERR_NOT_FOUND);
    }
}

static void test_ok_and_unknown(void **state)
{
    enum dctf_err unknown = (enum dctf_err)1234;

    (void)state;
    assert_string_equal(dctf_err_name(DCTF_OK), "OK");
    assert_int_equal(dctf_err_errno(DCTF_OK), 0);
    assert_string_equal(dctf_err_name(unknown), "UNKNOWN");
    assert_int_equal(dctf_err_errno(unknown), EIO);
    assert_int_equal(dctf_err_class(unknown), DCTF_ERR_CLASS_FATAL);
    assert_true(*dctf_err_text(unknown) && *dctf_err_remedy(unknown));
    assert_true(*dctf_err_text(DCTF_OK) && *dctf_err_remedy(DCTF_OK));
}

static void test_from_errno_origin(void **state)
{
    static const struct {
        int errnum;
        enum dctf_err err;
    } cases[] = {
        {0, DCTF_OK},
        {ENOENT, DCTF_ERR_NOT_FOUND},
        {ENOTDIR, DCTF_ERR_NOT_A_DIRECTORY},
        {EISDIR, DCTF_ERR_IS_A_DIRECTORY},
        {EACCES, DCTF_ERR_ORIGIN_ACCESS},
        {EPERM, DCTF_ERR_ORIGIN_ACCESS},
        {ENAMETOOLONG, DCTF_ERR_NAME_TOO_LONG},
        {ESTALE, DCTF_ERR_VERSION_MISMATCH},
        {ETIMEDOUT, DCTF_ERR_DEADLINE},
        {ENOTCONN, DCTF_ERR_ORIGIN_UNREACHABLE},
        {ENOMEM, DCTF_ERR_NO_MEMORY},
        {EIO, DCTF_ERR_ORIGIN_IO},
        {4095, DCTF_ERR_ORIGIN_IO},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_int_equal(dctf_err_from_errno_origin(cases[i].errnum), cases[i].err);
}

static void test_from_errno_cache(void **state)
{
    (void)state;
    assert_int_equal(dctf_err_from_errno_cache(0), DCTF_OK);
    assert_int_equal(dctf_err_from_errno_cache(ENOSPC), DCTF_ERR_CACHE_NO_SPACE);
    assert_int_equal(dctf_err_from_errno_cache(EDQUOT), DCTF_ERR_CACHE_NO_SPACE);
    assert_int_equal(dctf_err_from_errno_cache(ENOENT), DCTF_ERR_MISS);
    assert_int_equal(dctf_err_from_errno_cache(ENOMEM), DCTF_ERR_NO_MEMORY);
    assert_int_equal(dctf_err_from_errno_cache(EIO), DCTF_ERR_CACHE_IO);
    assert_int_equal(dctf_err_from_errno_cache(4095), DCTF_ERR_CACHE_IO);
    assert_int_equal(dctf_err_class(DCTF_ERR_CACHE_NO_SPACE), DCTF_ERR_CLASS_NEXT); /* serve uncached */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table_is_complete),
        cmocka_unit_test(test_codes_users_meet),
        cmocka_unit_test(test_only_not_found_is_enoent),
        cmocka_unit_test(test_ok_and_unknown),
        cmocka_unit_test(test_from_errno_origin),
        cmocka_unit_test(test_from_errno_cache),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
