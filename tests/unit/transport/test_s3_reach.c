/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/s3_reach.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static const char *const variables[] = {"http_proxy", "https_proxy", "HTTPS_PROXY", "HTTP_PROXY", "all_proxy",
    "ALL_PROXY", "no_proxy", "NO_PROXY"};

static int clear(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++)
        unsetenv(variables[i]);
    return 0;
}

static void test_proxy_of_the_scheme(void **state)
{
    (void)state;
    assert_null(dctf_reach_proxy("http", "store.example"));
    setenv("HTTP_PROXY", "http://cgi:1", 1);
    assert_null(dctf_reach_proxy("http", "store.example"));
    setenv("ALL_PROXY", "http://upper:1", 1);
    assert_string_equal(dctf_reach_proxy("http", "store.example"), "http://upper:1");
    setenv("all_proxy", "http://all:1", 1);
    assert_string_equal(dctf_reach_proxy("https", "store.example"), "http://all:1");
    setenv("HTTPS_PROXY", "http://tls:1", 1);
    assert_string_equal(dctf_reach_proxy("https", "store.example"), "http://tls:1");
    assert_string_equal(dctf_reach_proxy("http", "store.example"), "http://all:1");
    setenv("https_proxy", "http://lower:1", 1);
    assert_string_equal(dctf_reach_proxy("https", "store.example"), "http://lower:1");
    setenv("http_proxy", "", 1); /* empty is none */
    assert_string_equal(dctf_reach_proxy("http", "store.example"), "http://all:1");
}

static void test_no_proxy(void **state)
{
    static const struct {
        const char *list, *host;
        bool direct;
    } cases[] = {
        {"*", "store.example", true},
        {"store.example", "store.example", true},
        {"store.example", "STORE.example:9000", true},
        {"example", "store.example", true},
        {".example", "store.example:80", true},
        {"example.", "store.example", true},
        {"ore.example", "store.example", false},
        {"other.example, store.example", "store.example", true},
        {"other.example store.example", "store.example", true},
        {"other.example", "store.example", false},
        {"store.example.org", "store.example", false},
        {", ,", "store.example", false},
        {"127.0.0.1", "127.0.0.1:9000", true},
        {"127.0.0.2", "127.0.0.1:9000", false},
        {"127.0.0.0/8", "127.1.2.3", true},
        {"10.0.0.0/9", "10.127.0.1", true},
        {"10.0.0.0/9", "10.128.0.1", false},
        {"10.0.0.0/33", "10.0.0.0", false},
        {"0.1", "127.0.0.1", false},
        {"::1", "[::1]:9000", true},
        {"fd00::/8", "[fdab::1]", true},
        {"fd00::/8", "[fe80::1]", false},
    };

    (void)state;
    setenv("all_proxy", "http://proxy:1", 1);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        setenv("NO_PROXY", cases[i].list, 1);
        if ((dctf_reach_proxy("http", cases[i].host) == NULL) != cases[i].direct)
            fail_msg("no_proxy=%s, host %s", cases[i].list, cases[i].host);
    }
    setenv("no_proxy", "nothing.example", 1); /* before the other */
    setenv("NO_PROXY", "*", 1);
    assert_non_null(dctf_reach_proxy("http", "store.example"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_proxy_of_the_scheme, clear),
        cmocka_unit_test_setup(test_no_proxy, clear),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
