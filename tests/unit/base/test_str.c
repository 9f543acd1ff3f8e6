/* SPDX-License-Identifier: Apache-2.0 */
#include "base/str.h"

#include "lib/fail_alloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void test_add_grows(void **state)
{
    struct dctf_str str;
    char big[1000];

    (void)state;
    memset(big, 'x', sizeof(big));
    dctf_str_init(&str);
    assert_string_equal(dctf_str_c(&str), "");
    assert_null(str.data);
    dctf_str_puts(&str, "ab");
    dctf_str_add(&str, "c\0d", 3);
    assert_int_equal(str.len, 5);
    assert_memory_equal(str.data, "abc\0d", 6);
    dctf_str_add(&str, big, sizeof(big));
    assert_int_equal(str.len, 1005);
    assert_int_equal(str.data[1005], '\0');
    assert_int_equal(str.err, DCTF_OK);
    dctf_str_clear(&str);
    assert_string_equal(dctf_str_c(&str), "");
    assert_int_equal(str.len, 0);
    dctf_str_fini(&str);
    assert_null(str.data);
}

static void test_add_nothing(void **state)
{
    struct dctf_str str;

    (void)state;
    dctf_str_init(&str);
    dctf_str_add(&str, NULL, 0);
    assert_int_equal(str.err, DCTF_OK);
    assert_int_equal(str.len, 0);
    dctf_str_fini(&str);
}

static void test_printf_any_length(void **state)
{
    (void)state;
    for (int width = 0; width < 300; width++) { /* every place around the growth bounds */
        struct dctf_str str;

        dctf_str_init(&str);
        dctf_str_puts(&str, "<");
        dctf_str_printf(&str, "%*d", width, 7);
        dctf_str_puts(&str, ">");
        assert_int_equal(str.err, DCTF_OK);
        assert_int_equal(str.len, (width ? width : 1) + 2);
        assert_int_equal(strlen(str.data), str.len);
        assert_string_equal(str.data + str.len - 2, "7>");
        dctf_str_fini(&str);
    }
}

static void test_add_no_memory(void **state)
{
    struct dctf_str str;
    bool struck;

    (void)state;
    dctf_str_init(&str);
    dctf_str_puts(&str, "kept");
    fail_alloc_arm(1);
    dctf_str_printf(&str, "%200d", 1);
    struck = fail_alloc_disarm();
    assert_true(struck);
    assert_int_equal(str.err, DCTF_ERR_NO_MEMORY);
    dctf_str_puts(&str, "!"); /* there would be room: the failure sticks */
    assert_string_equal(dctf_str_c(&str), "kept");
    dctf_str_clear(&str);
    dctf_str_puts(&str, "again");
    assert_int_equal(str.err, DCTF_OK);
    assert_string_equal(dctf_str_c(&str), "again");
    dctf_str_add(&str, "x", SIZE_MAX - 2);
    assert_int_equal(str.err, DCTF_ERR_NO_MEMORY);
    dctf_str_fini(&str);
}

static void test_quote_bytes(void **state)
{
    char out[64];

    (void)state;
    assert_string_equal(dctf_str_quote("a b/c", out, sizeof(out)), "\"a b/c\"");
    assert_string_equal(dctf_str_quote("", out, sizeof(out)), "\"\"");
    assert_string_equal(dctf_str_quote("\"\\", out, sizeof(out)), "\"\\\"\\\\\"");
    assert_string_equal(dctf_str_quote("\n\x7f\xc3\xa9", out, sizeof(out)), "\"\\x0a\\x7f\\xc3\\xa9\"");
}

static void test_quote_cuts(void **state)
{
    char out[64];

    (void)state;
    assert_string_equal(dctf_str_quote("12345678", out, 11), "\"12345678\""); /* just fits */
    assert_string_equal(dctf_str_quote("123456789", out, 11), "\"12345…\"");
    assert_string_equal(dctf_str_quote("123\n\n\n\n", out, 11), "\"123…\""); /* no half an escape */
    for (size_t cap = 0; cap < 20; cap++) {
        memset(out, '#', sizeof(out));
        assert_ptr_equal(dctf_str_quote("a\x01long enough text", out, cap), out);
        if (cap)
            assert_true(strnlen(out, cap) < cap);
        assert_int_equal(out[cap], '#');
    }
}

static void test_size_parse_good(void **state)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } cases[] = {
        {"0", 0},
        {"1000", 1000},
        {"64K", 65536},
        {"64k", 65536},
        {"1.5G", 1610612736},
        {"200GiB", 214748364800},
        {"3MB", 3145728},
        {"7B", 7},
        {"0.5T", 549755813888},
        {"1.0000000001K", 1024},
        {"18446744073709551615", UINT64_MAX},
        {"15E", 15ull << 60},
    };
    uint64_t bytes;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(dctf_size_parse(cases[i].text, &bytes), DCTF_OK);
        assert_int_equal(bytes, cases[i].bytes);
    }
}

static void test_size_parse_bad(void **state)
{
    static const char *const cases[] = {"", "G", "-1", "+1", " 1", "1 ", "1 G", "1.G", ".5G", "1.5", "1.5B",
        "1X", "1GG", "1iB", "0x10", "16E", "18446744073709551616", "99999999999999999999999", "1K0", "inf"};
    uint64_t bytes;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        bytes = 77;
        assert_int_equal(dctf_size_parse(cases[i], &bytes), DCTF_ERR_OPTION_VALUE);
        assert_int_equal(bytes, 0);
    }
}

static void test_size_format_rounds(void **state)
{
    char out[16];

    (void)state;
    assert_string_equal(dctf_size_format(0, out, sizeof(out)), "0");
    assert_string_equal(dctf_size_format(1023, out, sizeof(out)), "1023");
    assert_string_equal(dctf_size_format(1024, out, sizeof(out)), "1K");
    assert_string_equal(dctf_size_format(1536, out, sizeof(out)), "1.5K");
    assert_string_equal(dctf_size_format(1048575, out, sizeof(out)), "1M");
    assert_string_equal(dctf_size_format(20ull << 30, out, sizeof(out)), "20G");
    assert_string_equal(dctf_size_format(UINT64_MAX, out, sizeof(out)), "16E");
}

static void test_duration_parse_good(void **state)
{
    static const struct {
        const char *text;
        uint64_t unit_ms, ms;
    } cases[] = {
        {"500ms", 1000, 500},
        {"30s", 1, 30000},
        {"5m", 1, 300000},
        {"2h", 1, 7200000},
        {"7d", 1, 604800000},
        {"250", 1, 250},
        {"60", 1000, 60000},
        {"0", 1000, 0},
        {"inf", 1, UINT64_MAX},
    };
    uint64_t ms;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(dctf_duration_parse(cases[i].text, cases[i].unit_ms, &ms), DCTF_OK);
        assert_int_equal(ms, cases[i].ms);
    }
}

static void test_duration_parse_bad(void **state)
{
    static const char *const cases[] = {"", "s", "-1s", "1.5s", "1S", "1 s", "1sec", "infinite", "INF",
        "18446744073709551615ms", "18446744073709551615", "213503982335d", "99999999999999999999"};
    uint64_t ms;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ms = 77;
        assert_int_equal(dctf_duration_parse(cases[i], 1, &ms), DCTF_ERR_OPTION_VALUE);
        assert_int_equal(ms, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_add_grows),
        cmocka_unit_test(test_add_nothing),
        cmocka_unit_test(test_printf_any_length),
        cmocka_unit_test(test_add_no_memory),
        cmocka_unit_test(test_quote_bytes),
        cmocka_unit_test(test_quote_cuts),
        cmocka_unit_test(test_size_parse_good),
        cmocka_unit_test(test_size_parse_bad),
        cmocka_unit_test(test_size_format_rounds),
        cmocka_unit_test(test_duration_parse_good),
        cmocka_unit_test(test_duration_parse_bad),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
