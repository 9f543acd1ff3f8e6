/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/uri.h"

#include "base/str.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void test_encode(void **state)
{
    static const char text[] = "a/b~-._ \x7f\x00\xff+%Z9";
    struct dctf_str out;

    (void)state;
    dctf_str_init(&out);
    dctf_uri_encode(&out, text, sizeof(text) - 1, true);
    assert_string_equal(dctf_str_c(&out), "a/b~-._%20%7F%00%FF%2B%25Z9");
    dctf_str_clear(&out);
    dctf_uri_encode(&out, "a/b", 3, false);
    assert_string_equal(dctf_str_c(&out), "a%2Fb");
    dctf_str_clear(&out);
    dctf_uri_encode(&out, "", 0, false);
    assert_string_equal(dctf_str_c(&out), "");
    dctf_str_fini(&out);
}

static void test_decode_every_byte(void **state)
{
    (void)state;
    for (unsigned byte = 0; byte < 256; byte++) {
        char plain[2] = {(char)byte, '\0'};
        char again[8];
        struct dctf_str out;

        for (int keep_slash = 0; keep_slash < 2; keep_slash++) {
            dctf_str_init(&out);
            dctf_uri_encode(&out, plain, 1, keep_slash);
            assert_int_equal(dctf_uri_decode(out.data, out.len, keep_slash, again, sizeof(again)), byte != 0);
            if (byte)
                assert_string_equal(again, plain);
            dctf_str_fini(&out);
        }
    }
}

static void test_decode_refuses_other_forms(void **state)
{
    static const char *const texts[] = {
        "%2f", "%41", "%7e", "%", "%4", "%0", "%00", "%GG", "%2G", "a b", "a+b", "a/b", "\xff", "a%2Fb%"};
    char out[16];

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        assert_false(dctf_uri_decode(texts[i], strlen(texts[i]), false, out, sizeof(out)));
    assert_false(dctf_uri_decode("a%2Fb", 5, true, out, sizeof(out)));
}

static void test_decode_bounds(void **state)
{
    char out[4] = "xyz";

    (void)state;
    assert_true(dctf_uri_decode("abc", 3, false, out, sizeof(out)));
    assert_string_equal(out, "abc");
    assert_false(dctf_uri_decode("abcd", 4, false, out, sizeof(out)));
    assert_false(dctf_uri_decode("abc%20", 6, false, out, sizeof(out)));
    assert_false(dctf_uri_decode("", 0, false, out, 0));
    assert_true(dctf_uri_decode("", 0, false, out, 1));
    assert_string_equal(out, "");
    /* What follows `len` is not looked at. */
    assert_false(dctf_uri_decode("%20", 2, false, out, sizeof(out)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode),
        cmocka_unit_test(test_decode_every_byte),
        cmocka_unit_test(test_decode_refuses_other_forms),
        cmocka_unit_test(test_decode_bounds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
