/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/s3_address.h"

#include "base/str.h"
#include "lib/fail_alloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define AUTO DCTF_S3_STYLE_AUTO
#define PATH DCTF_S3_STYLE_PATH
#define VIRTUAL DCTF_S3_STYLE_VIRTUAL

#define SOME_64 SOME_63 "4"
#define SOME_63 "a23456789-123456789-123456789-123456789-123456789-123456789-123"

static void check_url(const char *source, const char *endpoint, const char *region, enum dctf_s3_style style,
    const char *key, const char *expected)
{
    struct dctf_s3_address address;
    struct dctf_str path;
    struct dctf_str url;
    char detail[256];

    if (dctf_s3_address_init(&address, source, endpoint, region, style, detail))
        fail_msg("%s at %s: %s", source, endpoint ? endpoint : "AWS", detail);
    assert_string_equal(detail, "");
    dctf_str_init(&path);
    dctf_str_init(&url);
    dctf_s3_address_path(&address, key, &path);
    dctf_s3_address_url(&address, dctf_str_c(&path), NULL, &url);
    assert_string_equal(dctf_str_c(&url), expected);
    dctf_str_fini(&path);
    dctf_str_fini(&url);
    dctf_s3_address_fini(&address);
}

static void check_refused(const char *source, const char *endpoint, const char *region,
    enum dctf_s3_style style, enum dctf_err expected, const char *words)
{
    struct dctf_s3_address address;
    char detail[256] = "";
    enum dctf_err err = dctf_s3_address_init(&address, source, endpoint, region, style, detail);

    if (err != expected || !strstr(detail, words))
        fail_msg("%s at %s: %d %s, expected %d %s", source, endpoint ? endpoint : "AWS", (int)err, detail,
            (int)expected, words);
    assert_null(address.bucket);
    assert_null(address.host);
    assert_int_equal(dctf_s3_address_init(&address, source, endpoint, region, style, NULL), expected);
}

static void test_init_aws_hosts(void **state)
{
    static const struct {
        const char *source, *region;
        enum dctf_s3_style style;
        const char *url;
    } cases[] = {
        {"s3://bucket", "eu-west-1", AUTO, "https://bucket.s3.eu-west-1.amazonaws.com/k"},
        {"s3://bucket", "", AUTO, "https://bucket.s3.us-east-1.amazonaws.com/k"},
        {"s3://bucket", NULL, AUTO, "https://bucket.s3.us-east-1.amazonaws.com/k"},
        {"s3://bucket", "us-gov-west-1", AUTO, "https://bucket.s3.us-gov-west-1.amazonaws.com/k"},
        {"s3://bucket", "cn-north-1", AUTO, "https://bucket.s3.cn-north-1.amazonaws.com.cn/k"},
        {"s3://bucket", "eusc-de-east-1", AUTO, "https://bucket.s3.eusc-de-east-1.amazonaws.eu/k"},
        {"s3://bucket", "us-iso-east-1", AUTO, "https://bucket.s3.us-iso-east-1.c2s.ic.gov/k"},
        {"s3://bucket", "us-isob-east-1", AUTO, "https://bucket.s3.us-isob-east-1.sc2s.sgov.gov/k"},
        {"s3://bucket", "eu-west-1", PATH, "https://s3.eu-west-1.amazonaws.com/bucket/k"},
        {"s3://dotted.bucket", "eu-west-1", AUTO, "https://s3.eu-west-1.amazonaws.com/dotted.bucket/k"},
        {"s3://dotted.bucket", "eu-west-1", VIRTUAL, "https://dotted.bucket.s3.eu-west-1.amazonaws.com/k"},
        {"s3://0-9", "eu-west-1", AUTO, "https://0-9.s3.eu-west-1.amazonaws.com/k"},
        {"s3://" SOME_63, "eu-west-1", AUTO, "https://" SOME_63 ".s3.eu-west-1.amazonaws.com/k"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        check_url(cases[i].source, NULL, cases[i].region, cases[i].style, "k", cases[i].url);
}

static void test_init_endpoints(void **state)
{
    static const struct {
        const char *source, *endpoint;
        enum dctf_s3_style style;
        const char *url;
    } cases[] = {
        {"s3://bucket", "https://s3.example.com", AUTO, "https://bucket.s3.example.com/k"},
        {"s3://bucket", "s3.example.com", AUTO, "https://bucket.s3.example.com/k"},
        {"s3://bucket", "HTTP://S3.Example.com/", AUTO, "http://bucket.s3.example.com/k"},
        {"s3://bucket", "https://s3.example.com", PATH, "https://s3.example.com/bucket/k"},
        /* The scheme's own port is not sent in Host either. */
        {"s3://bucket", "https://s3.example.com:443", AUTO, "https://bucket.s3.example.com/k"},
        {"s3://bucket", "http://s3.example.com:80", AUTO, "http://bucket.s3.example.com/k"},
        {"s3://bucket", "https://s3.example.com:80", AUTO, "https://s3.example.com:80/bucket/k"},
        {"s3://bucket", "https://s3.example.com:8443", VIRTUAL, "https://bucket.s3.example.com:8443/k"},
        {"s3://bucket", "http://127.0.0.1:9000", AUTO, "http://127.0.0.1:9000/bucket/k"},
        {"s3://bucket", "http://127.0.0.1:80", AUTO, "http://127.0.0.1/bucket/k"},
        {"s3://bucket", "127.0.0.1:9000", AUTO, "https://127.0.0.1:9000/bucket/k"},
        {"s3://bucket", "http://[::1]:9000", AUTO, "http://[::1]:9000/bucket/k"},
        {"s3://bucket", "http://[2001:DB8::1]", AUTO, "http://[2001:db8::1]/bucket/k"},
        {"s3://bucket", "http://localhost", AUTO, "http://localhost/bucket/k"},
        {"s3://bucket", "http://s3.localhost", AUTO, "http://s3.localhost/bucket/k"},
        {"s3://bucket", "http://s3.localhost", VIRTUAL, "http://bucket.s3.localhost/k"},
        {"s3://bucket", "http://minio", AUTO, "http://bucket.minio/k"},
        {"s3://bucket", "https://h.example/a%20b/c/", AUTO, "https://h.example/a%20b/c/bucket/k"},
        {"s3://bucket", "https://h.example/api", VIRTUAL, "https://bucket.h.example/api/k"},
        {"s3://dotted.bucket", "https://s3.example.com", AUTO, "https://s3.example.com/dotted.bucket/k"},
        {"s3://Capitals", "https://s3.example.com", AUTO, "https://s3.example.com/Capitals/k"},
        {"s3://under_score", "https://s3.example.com", AUTO, "https://s3.example.com/under_score/k"},
        {"s3://team-s3alias", "https://s3.example.com", AUTO, "https://team-s3alias.s3.example.com/k"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        check_url(cases[i].source, cases[i].endpoint, "r-1", cases[i].style, "k", cases[i].url);
}

static void test_init_fields(void **state)
{
    struct dctf_s3_address address;

    (void)state;
    assert_int_equal(
        dctf_s3_address_init(&address, "s3://B_1/a b/c", "http://[::1]:9000/x/", "Region_1", AUTO, NULL),
        DCTF_OK);
    assert_string_equal(address.bucket, "B_1");
    assert_string_equal(address.prefix, "a b/c/");
    assert_string_equal(address.scheme, "http");
    assert_string_equal(address.host, "[::1]:9000");
    assert_string_equal(address.region, "Region_1");
    assert_string_equal(address.base_path, "/x");
    assert_true(address.path_style);
    assert_false(address.is_aws);
    dctf_s3_address_fini(&address);
    assert_int_equal(dctf_s3_address_init(&address, "s3://bucket", "", "", AUTO, NULL), DCTF_OK);
    assert_string_equal(address.prefix, "");
    assert_string_equal(address.region, "us-east-1");
    assert_string_equal(address.base_path, "");
    assert_false(address.path_style);
    assert_true(address.is_aws);
    dctf_s3_address_fini(&address);
}

static void test_path_prefix_and_encoding(void **state)
{
    static const struct {
        const char *source, *key, *url;
    } cases[] = {
        {"s3://bucket", "", "https://bucket.h.example/"},
        {"s3://bucket/", "", "https://bucket.h.example/"},
        {"s3://bucket/p", "", "https://bucket.h.example/"},
        {"s3://bucket/p", "k", "https://bucket.h.example/p/k"},
        {"s3://bucket/p/", "k", "https://bucket.h.example/p/k"},
        {"s3://bucket/p/q", "a/b/", "https://bucket.h.example/p/q/a/b/"},
        {"s3://bucket/p q?#%41", "k", "https://bucket.h.example/p%20q%3F%23%2541/k"},
        {"s3://bucket/...", "k", "https://bucket.h.example/.../k"},
        {"s3://bucket/.p", "a//b/../.", "https://bucket.h.example/.p/a//b/../."},
        {"s3://bucket", "\xc3\xbc+&=\n'()*!~", "https://bucket.h.example/%C3%BC%2B%26%3D%0A%27%28%29%2A%21~"},
        {"s3://b.ucket", "", "https://h.example/b.ucket/"},
        {"s3://b.ucket/p", "k", "https://h.example/b.ucket/p/k"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        check_url(cases[i].source, "h.example", "r", AUTO, cases[i].key, cases[i].url);
}

static void test_url_query(void **state)
{
    struct dctf_s3_address address;
    struct dctf_str url;

    (void)state;
    assert_int_equal(dctf_s3_address_init(&address, "s3://bucket", NULL, "r", AUTO, NULL), DCTF_OK);
    dctf_str_init(&url);
    dctf_s3_address_url(&address, "/", "list-type=2", &url);
    assert_string_equal(dctf_str_c(&url), "https://bucket.s3.r.amazonaws.com/?list-type=2");
    dctf_str_clear(&url);
    dctf_s3_address_url(&address, "/", "", &url);
    assert_string_equal(dctf_str_c(&url), "https://bucket.s3.r.amazonaws.com/");
    dctf_str_fini(&url);
    dctf_s3_address_fini(&address);
}

static void test_refuse_bucket_aws(void **state)
{
    static const struct {
        const char *source, *words;
    } cases[] = {
        {"s3://", "name is missing"},
        {"s3:///p", "name is missing"},
        {"s3://ab", "3 to 63"},
        {"s3://" SOME_64, "3 to 63"},
        {"s3://Capitals", "lower-case"},
        {"s3://under_score", "lower-case"},
        {"s3://a..b", "lower-case"},
        {"s3://-ab", "both ends"},
        {"s3://ab.", "both ends"},
        {"s3://192.168.5.4", "lower-case"},
        {"s3://buck\xc3\xa9t", "lower-case"},
        {"s3://buck et", "lower-case"},
        {"s3://buck%65t", "lower-case"},
        {"s3://bucket:80", "lower-case"},
        {"s3://bucket?x=y", "lower-case"},
        {"s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/ap", "ARNs and access points are not supported"},
        {"s3://mine-a1b2c3-s3alias", "access points are not supported"},
        {"s3://mine-a1b2c3--ol-s3", "access points are not supported"},
        {"s3://mfzwi23gnjvgw.mrap", "access points are not supported"},
        {"s3://mine--use1-az4--x-s3", "directory buckets (S3 Express) are not supported"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        check_refused(cases[i].source, NULL, "eu-west-1", AUTO, DCTF_ERR_SOURCE_BAD, cases[i].words);
}

static void test_refuse_bucket_endpoint(void **state)
{
    static const char *const sources[] = {
        "s3://ab", "s3://_ab", "s3://.ab", "s3://a b", "s3://a:b", "s3://a%b"};
    char source[300];

    (void)state;
    for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++)
        check_refused(sources[i], "h.example", "r", AUTO, DCTF_ERR_SOURCE_BAD, "3 to 255");
    snprintf(source, sizeof(source), "s3://%0256d", 1);
    check_refused(source, "h.example", "r", AUTO, DCTF_ERR_SOURCE_BAD, "3 to 255");
    snprintf(source, sizeof(source), "s3://%0255d", 1);
    check_refused(source, "h.example", "r", VIRTUAL, DCTF_ERR_SOURCE_BAD, "use path_style");
    check_refused("s3://Capitals", "h.example", "r", VIRTUAL, DCTF_ERR_SOURCE_BAD, "use path_style");
    check_refused("s3://arn:aws:s3", "h.example", "r", AUTO, DCTF_ERR_SOURCE_BAD, "ARNs");
}

static void test_refuse_source(void **state)
{
    static const char *const sources[] = {
        "", "bucket", "s3:/bucket", "S3://bucket", "https://bucket", "file:///bucket"};
    static const char *const prefixes[] = {
        "/", "p//", "p//q", "/p", ".", "..", "p/.", "./p", "p/../q", "p/./"};
    char source[1200];

    (void)state;
    for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++)
        check_refused(sources[i], NULL, NULL, AUTO, DCTF_ERR_SOURCE_BAD, "must be s3://bucket[/prefix]");
    for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++) {
        snprintf(source, sizeof(source), "s3://bucket/%s", prefixes[i]);
        check_refused(source, NULL, NULL, AUTO, DCTF_ERR_SOURCE_BAD, "in the prefix");
    }
    snprintf(source, sizeof(source), "s3://bucket/%01024d", 1);
    check_refused(source, NULL, NULL, AUTO, DCTF_ERR_SOURCE_BAD, "longer than 1023 bytes");
}

/* What might be a key or a password is not repeated. */
static void test_refuse_user_info(void **state)
{
    static const char *const endpoints[] = {"https://AKIA:SECRET@h.example", "SECRET@h.example",
        "http://AKIA:SECRET@h.example:80/x", "https://AKIA:SEC/RET@h.example",
        "https://h.example/?key=SECRET", "https://h.example:SECRET", "https://h.example/SECRET@",
        "SECRET://h.example"};
    struct dctf_s3_address address;
    char detail[256];

    (void)state;
    for (size_t i = 0; i < sizeof(endpoints) / sizeof(endpoints[0]); i++) {
        assert_int_equal(dctf_s3_address_init(&address, "s3://bucket", endpoints[i], "r", AUTO, detail),
            DCTF_ERR_OPTION_VALUE);
        assert_null(strstr(detail, "SEC"));
        assert_null(strstr(detail, "AKIA"));
    }
    check_refused("s3://bucket", endpoints[0], "r", AUTO, DCTF_ERR_OPTION_VALUE, "passwords do not belong");
    assert_int_equal(dctf_s3_address_init(&address, "s3://AKIA:SECRET@bucket", NULL, "r", AUTO, detail),
        DCTF_ERR_SOURCE_BAD);
    assert_string_equal(
        detail, "source: keys, user names and passwords do not belong into a URL; see docs/s3.md");
}

static void test_refuse_endpoint(void **state)
{
    static const struct {
        const char *endpoint, *words;
    } cases[] = {
        {"https://", "not a host name or address"},
        {"https:///path", "not a host name or address"},
        {"ftp://h.example", "https:// or http://"},
        {"https://h..example", "not a host name"},
        {"https://.h", "not a host name"},
        {"https://h.example.", "not a host name"},
        {"https://h example", "not a host name"},
        {"https://h%2eexample", "not a host name"},
        {"https://h\xc3\xa9.example", "not a host name"},
        {"https://h.example\\x", "not a host name"},
        {"https://127.1", "not a host name"},
        {"https://256.1.1.1", "not a host name"},
        {"https://2130706433", "not a host name"},
        {"https://::1", "not a host name"},
        {"https://[::1", "not a host name"},
        {"https://[::g]", "not a host name"},
        {"https://[fe80::1%25eth0]", "not a host name"},
        {"https://[127.0.0.1]", "not a host name"},
        {"https://[::1]x", "port must be"},
        {"https://h.example:", "port must be"},
        {"https://h.example:0", "port must be"},
        {"https://h.example:65536", "port must be"},
        {"https://h.example:000443", "port must be"},
        {"https://h.example:80x", "port must be"},
        {"https://h.example?x", "query or a fragment"},
        {"https://h.example/p?x=y", "query or a fragment"},
        {"https://h.example/#x", "query or a fragment"},
        {"https://h.example/a//b", "its path may hold"},
        {"https://h.example/a/../b", "its path may hold"},
        {"https://h.example/.", "its path may hold"},
        {"https://h.example/a b", "its path may hold"},
        {"https://h.example/a%2", "its path may hold"},
        {"https://h.example/a%zz", "its path may hold"},
        {"https://h.example/a+b", "its path may hold"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        check_refused("s3://bucket", cases[i].endpoint, "r", AUTO, DCTF_ERR_OPTION_VALUE, cases[i].words);
    check_refused("s3://bucket", "http://10.0.0.1", "r", VIRTUAL, DCTF_ERR_OPTION_VALUE, "use path_style");
    check_refused("s3://bucket", "http://[::1]", "r", VIRTUAL, DCTF_ERR_OPTION_VALUE, "use path_style");
}

/* The region comes from servers too, and becomes part of a host name. */
static void test_refuse_region(void **state)
{
    static const char too_long[] = SOME_64;
    static const char *const regions[] = {"evil.example/", "a.b", "a b", "-a", "a@b", "a\n", too_long};

    (void)state;
    for (size_t i = 0; i < sizeof(regions) / sizeof(regions[0]); i++) {
        check_refused("s3://bucket", NULL, regions[i], AUTO, DCTF_ERR_OPTION_VALUE, "not a region's name");
        check_refused("s3://bucket", "h.example", regions[i], AUTO, DCTF_ERR_OPTION_VALUE, "not a region");
    }
    check_refused("s3://bucket", NULL, "Region_1", AUTO, DCTF_ERR_OPTION_VALUE, "not a region's name");
}

static struct dctf_s3_address made;

static enum dctf_err make_address(void *ctx)
{
    return dctf_s3_address_init(&made, "s3://bucket/p", ctx, "r", AUTO, NULL);
}

static void drop_address(void *ctx)
{
    (void)ctx;
    dctf_s3_address_fini(&made);
}

static void test_init_no_memory(void **state)
{
    (void)state;
    assert_true(fail_alloc_sweep(make_address, drop_address, NULL, NULL) >= 6);
    assert_true(fail_alloc_sweep(make_address, drop_address, "http://[::1]:9000/base", NULL) >= 7);
    assert_null(made.bucket);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_init_aws_hosts),
        cmocka_unit_test(test_init_endpoints),
        cmocka_unit_test(test_init_fields),
        cmocka_unit_test(test_path_prefix_and_encoding),
        cmocka_unit_test(test_url_query),
        cmocka_unit_test(test_refuse_bucket_aws),
        cmocka_unit_test(test_refuse_bucket_endpoint),
        cmocka_unit_test(test_refuse_source),
        cmocka_unit_test(test_refuse_user_info),
        cmocka_unit_test(test_refuse_endpoint),
        cmocka_unit_test(test_refuse_region),
        cmocka_unit_test(test_init_no_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
