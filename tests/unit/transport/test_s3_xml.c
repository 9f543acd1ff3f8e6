/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/s3_xml.h"

#include "base/str.h"
#include "lib/fail_alloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define HEAD "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
#define NS " xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\""
#define TIME "<LastModified>2026-01-31T12:00:00.250Z</LastModified>"
#define TIME_NS 1769860800250000000
#define REST TIME "<ETag>&quot;abc&quot;</ETag><Size>7</Size>"
#define WHOLE "<IsTruncated>false</IsTruncated>"
#define PAGE(inner) HEAD "<ListBucketResult" NS ">" inner "</ListBucketResult>"
#define OBJECT(key) "<Contents><Key>" key "</Key>" REST "</Contents>"

static struct dctf_s3_list list;

static void parse(const char *xml)
{
    assert_int_equal(dctf_s3_list_parse(xml, strlen(xml), &list), DCTF_OK);
}

static int fini_list(void **state)
{
    (void)state;
    dctf_s3_list_fini(&list);
    return 0;
}

static void check_object(size_t i, const char *key, uint64_t size, const char *etag)
{
    assert_true(i < list.count);
    assert_string_equal(list.objects[i].key, key);
    assert_false(list.objects[i].is_prefix);
    assert_int_equal(list.objects[i].size, size);
    assert_string_equal(list.objects[i].etag, etag);
    assert_int_equal(list.objects[i].mtime_ns, TIME_NS);
}

static void test_list_whole_page(void **state)
{
    (void)state;
    parse(PAGE(
        "<Name>bucket</Name><Prefix>train/</Prefix><KeyCount>3</KeyCount><MaxKeys>1000</MaxKeys>"
        "<Delimiter>/</Delimiter><IsTruncated>true</IsTruncated>"
        "<NextContinuationToken>1ueGcxLPRx1Tr/XYExHnhbYLgveDs2J/wm36Hy4vbOwM=</NextContinuationToken>\n"
        "  <Contents>\n    <Key>train/a &amp; b</Key>\n    " TIME "\n"
        "    "
        "<ETag>\"d41d8cd98f00b204e9800998ecf8427e-2\"</ETag><ChecksumAlgorithm>CRC32</ChecksumAlgorithm>\n"
        "    <Size>9223372036854775807</Size><StorageClass>STANDARD</StorageClass>\n"
        "    <Owner><ID>x</ID><DisplayName>Key</DisplayName></Owner>\n  </Contents>\n"
        "<Contents>" TIME "<Size>0</Size><ETag>plain</ETag><Key><![CDATA[train/<c>]]></Key></Contents>"
        "<CommonPrefixes><Prefix>train/sub/</Prefix></CommonPrefixes>"));
    assert_int_equal(list.count, 3);
    check_object(0, "train/a & b", INT64_MAX, "d41d8cd98f00b204e9800998ecf8427e-2");
    check_object(1, "train/<c>", 0, "plain");
    assert_string_equal(list.objects[2].key, "train/sub/");
    assert_true(list.objects[2].is_prefix);
    assert_string_equal(list.objects[2].etag, "");
    assert_true(list.truncated);
    assert_string_equal(list.next_token, "1ueGcxLPRx1Tr/XYExHnhbYLgveDs2J/wm36Hy4vbOwM=");
    assert_int_equal(list.unusable, 0);
}

static void test_list_empty_page(void **state)
{
    (void)state;
    parse(PAGE(WHOLE));
    assert_int_equal(list.count, 0);
    assert_false(list.truncated);
    assert_null(list.next_token);
}

static void test_list_namespaces(void **state)
{
    (void)state;
    parse("<ListBucketResult>" WHOLE OBJECT("k") "</ListBucketResult>");
    check_object(0, "k", 7, "abc");
    dctf_s3_list_fini(&list);
    parse("<s:ListBucketResult xmlns:s=\"u\" x='1'><s:IsTruncated y=\"2\">false</s:IsTruncated>"
          "<s:Contents><s:Key>k</s:Key><s:Size>7</s:Size><s:ETag>abc</s:ETag><s:LastModified>"
          "2026-01-31T12:00:00.250Z</s:LastModified></s:Contents></s:ListBucketResult>");
    check_object(0, "k", 7, "abc");
}

/* The token of a page that is not cut means nothing. */
static void test_list_token_without_truncation(void **state)
{
    (void)state;
    parse(PAGE(WHOLE "<NextContinuationToken>t</NextContinuationToken>"));
    assert_null(list.next_token);
}

static void test_list_url_decoding(void **state)
{
    (void)state;
    /* The token is not encoded, whatever EncodingType says; its place does not matter. */
    parse(PAGE(OBJECT("a%2Fb+c%2Bd%0A%25%c3%A9")
            OBJECT("nul%00byte") "<CommonPrefixes><Prefix>p+q%2f</Prefix></CommonPrefixes><EncodingType>url</"
                                 "EncodingType>"
                                 "<IsTruncated>true</IsTruncated><NextContinuationToken>a+b%2F</"
                                 "NextContinuationToken>"));
    assert_int_equal(list.count, 2);
    check_object(0, "a/b c+d\n%\xc3\xa9", 7, "abc");
    assert_string_equal(list.objects[1].key, "p q/");
    assert_string_equal(list.next_token, "a+b%2F");
    assert_int_equal(list.unusable, 1);
    dctf_s3_list_fini(&list);
    parse(PAGE("<EncodingType/>" OBJECT("a%2Fb+c%zz") WHOLE));
    check_object(0, "a%2Fb+c%zz", 7, "abc");
}

static void test_list_refuses(void **state)
{
    static const char *const pages[] = {
        "",
        " ",
        "not xml",
        "{\"json\":true}",
        HEAD,
        HEAD "<Error><Code>AccessDenied</Code></Error>",
        "<html><body>Welcome</body></html>",
        HEAD "<ListBucketResult" NS ">" WHOLE OBJECT("k"),
        HEAD "<ListBucketResult" NS ">" WHOLE OBJECT("k") "</ListBucketResul",
        PAGE(WHOLE) "<more/>",
        PAGE(WHOLE) "more",
        PAGE(WHOLE) PAGE(WHOLE),
        PAGE(OBJECT("k")), /* IsTruncated is missing */
        PAGE("<IsTruncated/>"),
        PAGE("<IsTruncated>maybe</IsTruncated>"),
        PAGE("<IsTruncated><b>true</b></IsTruncated>"),
        PAGE(WHOLE WHOLE),
        PAGE("<IsTruncated>true</IsTruncated>"),
        PAGE("<IsTruncated>true</IsTruncated><NextContinuationToken/>"),
        PAGE("<IsTruncated>true</IsTruncated><NextContinuationToken>a</NextContinuationToken>"
             "<NextContinuationToken>b</NextContinuationToken>"),
        PAGE(WHOLE "<Contents/>"),
        PAGE(WHOLE "<Contents>" REST "</Contents>"),
        PAGE(WHOLE "<Contents><Key/>" REST "</Contents>"),
        PAGE(WHOLE "<Contents><Key>a<b/>c</Key>" REST "</Contents>"),
        PAGE(WHOLE "<Contents><Key>a</Key><Key>b</Key>" REST "</Contents>"),
        PAGE(WHOLE "<Contents><Key>a</Key>" TIME "<Size>1</Size></Contents>"),
        PAGE(WHOLE "<Contents><Key>a</Key>" TIME "<Size>1</Size><ETag/></Contents>"),
        PAGE(WHOLE "<Contents><Key>a</Key>" TIME "<Size>1</Size><ETag>\"\"</ETag></Contents>"),
        PAGE(WHOLE "<Contents><Key>a</Key>" TIME "<ETag>e</ETag></Contents>"),
        PAGE(WHOLE "<Contents><Key>a</Key>" TIME "<ETag>e</ETag><Size/></Contents>"),
        PAGE(WHOLE "<Contents><Key>a</Key>" TIME "<ETag>e</ETag><Size>-1</Size></Contents>"),
        PAGE(WHOLE "<Contents><Key>a</Key>" TIME "<ETag>e</ETag><Size>1x</Size></Contents>"),
        PAGE(WHOLE "<Contents><Key>a</Key>" TIME "<ETag>e</ETag><Size>9223372036854775808</Size></Contents>"),
        PAGE(
            WHOLE "<Contents><Key>a</Key>" TIME "<ETag>e</ETag><Size>99999999999999999999</Size></Contents>"),
        PAGE(WHOLE "<Contents><Key>a</Key><ETag>e</ETag><Size>1</Size></Contents>"),
        PAGE(WHOLE "<Contents><Key>a</Key><ETag>e</ETag><Size>1</Size>"
                   "<LastModified>yesterday</LastModified></Contents>"),
        PAGE(WHOLE "<CommonPrefixes/>"),
        PAGE(WHOLE "<CommonPrefixes><Prefix/></CommonPrefixes>"),
        PAGE(WHOLE "<CommonPrefixes><Prefix>a/</Prefix><Prefix>b/</Prefix></CommonPrefixes>"),
        PAGE(WHOLE "<EncodingType>base64</EncodingType>"),
        PAGE(WHOLE "<EncodingType>url</EncodingType>" OBJECT("a%2")),
        PAGE(WHOLE "<EncodingType>url</EncodingType>" OBJECT("a%")),
        PAGE(WHOLE "<EncodingType>url</EncodingType>" OBJECT("a%g0")),
        PAGE(WHOLE OBJECT("a\x01")),
        PAGE(WHOLE OBJECT("a&#1;")),
        PAGE(WHOLE OBJECT("a\xff")),
        PAGE(WHOLE OBJECT("a&nbsp;")),
        PAGE(WHOLE OBJECT("<Key>")),
        "<p:ListBucketResult>" WHOLE "</p:ListBucketResult>",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++) {
        enum dctf_err err = dctf_s3_list_parse(pages[i], strlen(pages[i]), &list);

        if (err != DCTF_ERR_BAD_RESPONSE)
            fail_msg("%d: %s", (int)err, pages[i]);
        assert_null(list.objects);
        assert_null(list.memory);
    }
}

/* Cut anywhere, a page is refused. */
static void test_list_cut_anywhere(void **state)
{
    static const char page[] =
        PAGE(WHOLE OBJECT("a/b") "<CommonPrefixes><Prefix>c/</Prefix></CommonPrefixes>");

    (void)state;
    for (size_t len = 0; len < sizeof(page) - 1; len++)
        assert_int_equal(dctf_s3_list_parse(page, len, &list), DCTF_ERR_BAD_RESPONSE);
    assert_int_equal(dctf_s3_list_parse(page, sizeof(page) - 1, &list), DCTF_OK);
}

/* No entity is expanded and nothing is opened, known file or not. */
static void test_list_no_entities(void **state)
{
    static const char *const pages[] = {
        "<!DOCTYPE ListBucketResult [<!ENTITY k \"key\">]><ListBucketResult>" WHOLE OBJECT(
            "&k;") "</ListBucketResult>",
        "<!DOCTYPE l [<!ENTITY k SYSTEM \"file:///etc/passwd\">]><ListBucketResult>" WHOLE OBJECT(
            "&k;") "</ListBucketResult>",
        "<!DOCTYPE l [<!ENTITY a \"aaaaaaaaaa\"><!ENTITY b \"&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;\">"
        "<!ENTITY c \"&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;\">]><ListBucketResult>" WHOLE OBJECT(
            "&c;") "</ListBucketResult>",
        "<!DOCTYPE ListBucketResult SYSTEM \"http://127.0.0.1:1/x.dtd\"><ListBucketResult>" WHOLE
        "</ListBucketResult>",
        "<!DOCTYPE ListBucketResult><ListBucketResult>" WHOLE "</ListBucketResult>",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++)
        assert_int_equal(dctf_s3_list_parse(pages[i], strlen(pages[i]), &list), DCTF_ERR_BAD_RESPONSE);
}

static void make_deep(struct dctf_str *out, unsigned levels)
{
    dctf_str_puts(out, "<ListBucketResult>");
    for (unsigned i = 0; i < levels; i++)
        dctf_str_puts(out, "<a>");
    for (unsigned i = 0; i < levels; i++)
        dctf_str_puts(out, "</a>");
    dctf_str_puts(out, WHOLE "</ListBucketResult>");
}

static void test_list_bounded_depth(void **state)
{
    struct dctf_str out;

    (void)state;
    dctf_str_init(&out);
    make_deep(&out, 100);
    parse(out.data);
    dctf_s3_list_fini(&list);
    dctf_str_clear(&out);
    make_deep(&out, 100000);
    assert_int_equal(dctf_s3_list_parse(out.data, out.len, &list), DCTF_ERR_BAD_RESPONSE);
    dctf_str_fini(&out);
}

/* What libxml2 finds wrong is not printed. */
static void test_list_silent(void **state)
{
    int saved = dup(STDERR_FILENO);
    FILE *file = tmpfile();
    long printed;

    (void)state;
    assert_non_null(file);
    fflush(stderr);
    dup2(fileno(file), STDERR_FILENO);
    assert_int_equal(dctf_s3_list_parse("<a><b></a>&x;", 13, &list), DCTF_ERR_BAD_RESPONSE);
    assert_null(dctf_xml_text("<a xmlns='::'", 13, "a"));
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    printed = lseek(fileno(file), 0, SEEK_END);
    fclose(file);
    assert_int_equal(printed, 0);
}

static void test_list_many_entries(void **state)
{
    struct dctf_str out;
    char key[32];

    (void)state;
    dctf_str_init(&out);
    dctf_str_puts(&out, "<ListBucketResult>" WHOLE "<EncodingType>url</EncodingType>");
    for (unsigned i = 0; i < 1000; i++)
        dctf_str_printf(&out, "<Contents><Key>d%%2F%u</Key>" REST "</Contents>", i);
    dctf_str_puts(&out, "</ListBucketResult>");
    parse(out.data);
    assert_int_equal(list.count, 1000);
    for (unsigned i = 0; i < 1000; i++) {
        snprintf(key, sizeof(key), "d/%u", i);
        check_object(i, key, 7, "abc");
    }
    dctf_str_fini(&out);
}

static enum dctf_err make_list(void *ctx)
{
    return dctf_s3_list_parse(ctx, strlen(ctx), &list);
}

static void drop_list(void *ctx)
{
    (void)ctx;
    dctf_s3_list_fini(&list);
}

static void test_list_no_memory(void **state)
{
    char page[] = PAGE(WHOLE OBJECT("a") OBJECT("b"));

    (void)state;
    assert_true(fail_alloc_sweep(make_list, drop_list, page, NULL) >= 4);
    assert_null(list.memory);
}

static void test_error_s3(void **state)
{
    static const char xml[] =
        HEAD "<Error><Code>AuthorizationHeaderMalformed</Code><Message>the region 'us-east-1' is wrong;\n"
             "expecting 'eu-west-1'</Message><Region>eu-west-1</Region><Endpoint>b.s3.example.com</Endpoint>"
             "<ServerTime>2026-01-31T12:00:00Z</ServerTime><RequestId>4442587FB7D0A2F9</RequestId>"
             "<HostId>x</HostId><Nested><Code>Other</Code></Nested></Error>";
    struct dctf_s3_error error;

    (void)state;
    dctf_s3_error_parse(xml, sizeof(xml) - 1, &error);
    assert_string_equal(error.code, "AuthorizationHeaderMalformed");
    assert_string_equal(error.message, "the region 'us-east-1' is wrong; expecting 'eu-west-1'");
    assert_string_equal(error.region, "eu-west-1");
    assert_string_equal(error.endpoint, "b.s3.example.com");
    assert_string_equal(error.server_time, "2026-01-31T12:00:00Z");
    assert_string_equal(error.request_id, "4442587FB7D0A2F9");
}

static void test_error_sts(void **state)
{
    static const char xml[] =
        "<ErrorResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><Error><Type>Sender</Type>"
        "<Code>ExpiredTokenException</Code><Message>Token expired</Message></Error>"
        "<RequestId>0102</RequestId></ErrorResponse>";
    struct dctf_s3_error error;

    (void)state;
    dctf_s3_error_parse(xml, sizeof(xml) - 1, &error);
    assert_string_equal(error.code, "ExpiredTokenException");
    assert_string_equal(error.message, "Token expired");
    assert_string_equal(error.request_id, "0102");
}

static void test_error_other_bodies(void **state)
{
    static const char *const bodies[] = {"", "Service Unavailable",
        "<html><Error><Code>x</Code></Error></html>", "<ListBucketResult><Code>x</Code></ListBucketResult>",
        "<Error/>", "<!DOCTYPE Error><Error><Code>x</Code></Error>", "<Code>x</Code>",
        "<ErrorResponse><Code>x</Code></ErrorResponse>"};
    static const struct dctf_s3_error nothing;
    struct dctf_s3_error error;

    (void)state;
    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        memset(&error, 1, sizeof(error));
        dctf_s3_error_parse(bodies[i], strlen(bodies[i]), &error);
        assert_memory_equal(&error, &nothing, sizeof(error));
    }
}

static void test_error_cut_and_long(void **state)
{
    static const char cut[] = "<Error><Code>SlowDown</Code><Message>Please red";
    struct dctf_s3_error error;
    char xml[600];

    (void)state;
    dctf_s3_error_parse(cut, sizeof(cut) - 1, &error);
    assert_string_equal(error.code, "SlowDown");
    assert_string_equal(error.message, "");
    /* 127 whole characters of two bytes fit in 255. */
    snprintf(xml, sizeof(xml), "<Error><Message>");
    for (int i = 0; i < 200; i++)
        strcat(xml, "\xc3\xa9");
    strcat(xml, "</Message></Error>");
    dctf_s3_error_parse(xml, strlen(xml), &error);
    assert_int_equal(strlen(error.message), 254);
    assert_string_equal(error.message + 252, "\xc3\xa9");
}

static void check_text(const char *xml, const char *element, const char *expected)
{
    char *text = dctf_xml_text(xml, strlen(xml), element);

    if (expected) {
        assert_non_null(text);
        assert_string_equal(text, expected);
    } else {
        assert_null(text);
    }
    free(text);
}

static void test_xml_text(void **state)
{
    static const char sts[] =
        "<AssumeRoleResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><AssumeRoleResult>"
        "<Credentials><AccessKeyId>ASIA1</AccessKeyId><SecretAccessKey>a/b+c=</SecretAccessKey>"
        "<SessionToken>x&amp;y</SessionToken><Empty/></Credentials></AssumeRoleResult>"
        "<SessionToken>second</SessionToken></AssumeRoleResponse>";

    (void)state;
    check_text(sts, "SecretAccessKey", "a/b+c=");
    check_text(sts, "SessionToken", "x&y");
    check_text(sts, "Empty", "");
    check_text(sts, "Credentials", NULL);
    check_text(sts, "Expiration", NULL);
    check_text("", "a", NULL);
    check_text("<a><b>text</b>", "b", NULL);
    check_text("text", "text", NULL);
    check_text("<n:a xmlns:n='u'>text</n:a>", "a", "text");
}

static void check_time(const char *text, int64_t expected)
{
    int64_t ns = -1;

    if (!dctf_iso8601_parse(text, &ns) || ns != expected)
        fail_msg("%s: %lld", text, (long long)ns);
}

static void test_iso8601_times(void **state)
{
    (void)state;
    check_time("1970-01-01T00:00:00Z", 0);
    check_time("2026-01-31T12:00:00.250Z", TIME_NS);
    check_time("2026-01-31T12:00:00.2500000009Z", TIME_NS);
    check_time("2009-10-12T17:50:30.000000001Z", 1255369830000000001);
    check_time("2024-02-29T23:59:59Z", 1709251199000000000);
    check_time("1969-12-31T23:59:59.5Z", -500000000);
    check_time("2261-12-31T23:59:59Z", 9214646399000000000);
}

static void test_iso8601_refuses(void **state)
{
    static const char *const texts[] = {"", "Z", "2026-01-31", "2026-01-31T12:00:00", "2026-01-31T12:00:00.Z",
        "2026-01-31T12:00:00+00:00", "2026-01-31 12:00:00Z", "2026-1-31T12:00:00Z", "2026-13-01T12:00:00Z",
        "2026-00-01T12:00:00Z", "2026-02-29T12:00:00Z", "2026-01-32T12:00:00Z", "2026-01-00T12:00:00Z",
        "2026-01-31T24:00:00Z", "2026-01-31T12:60:00Z", "2026-01-31T12:00:60Z", "2026-01-31T12:00:00Zx",
        "2300-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "+026-01-31T12:00:00Z",
        "Sat, 31 Jan 2026 12:00:00 GMT"};
    int64_t ns;

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        ns = 1;
        if (dctf_iso8601_parse(texts[i], &ns))
            fail_msg("%s", texts[i]);
        assert_int_equal(ns, 0);
    }
}

#define list_test(f) cmocka_unit_test_teardown(f, fini_list)

int main(void)
{
    const struct CMUnitTest tests[] = {
        list_test(test_list_whole_page),
        list_test(test_list_empty_page),
        list_test(test_list_namespaces),
        list_test(test_list_token_without_truncation),
        list_test(test_list_url_decoding),
        list_test(test_list_refuses),
        list_test(test_list_cut_anywhere),
        list_test(test_list_no_entities),
        list_test(test_list_bounded_depth),
        list_test(test_list_silent),
        list_test(test_list_many_entries),
        list_test(test_list_no_memory),
        cmocka_unit_test(test_error_s3),
        cmocka_unit_test(test_error_sts),
        cmocka_unit_test(test_error_other_bodies),
        cmocka_unit_test(test_error_cut_and_long),
        cmocka_unit_test(test_xml_text),
        cmocka_unit_test(test_iso8601_times),
        cmocka_unit_test(test_iso8601_refuses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
