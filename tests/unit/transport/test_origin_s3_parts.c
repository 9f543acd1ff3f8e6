/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of the S3 origin that need no service: errors, numbers and dates in headers, and
 * how long silence is allowed.
 */
#include "origin_s3_fixture.h"

#include "transport/s3_reach.h"

#include <errno.h>

/* --- errors --- */

static void test_map_error_codes(void **state)
{
    (void)state;
    /* The code goes before the status, an unknown code after it. */
    assert_int_equal(dctf_s3_error_map(DCTF_S3_GET, 403, "RequestTimeTooSkewed"), DCTF_ERR_CLOCK_SKEW);
    assert_int_equal(dctf_s3_error_map(DCTF_S3_GET, 503, "Whatever"), DCTF_ERR_ORIGIN_IO);
    assert_int_equal(dctf_s3_error_map(DCTF_S3_GET, 404, "Whatever"), DCTF_ERR_NOT_FOUND);
    assert_int_equal(dctf_s3_error_map(DCTF_S3_LIST, 404, ""), DCTF_ERR_BAD_RESPONSE);
    assert_int_equal(dctf_s3_error_map(DCTF_S3_LIST, 412, ""), DCTF_ERR_BAD_RESPONSE);
    assert_int_equal(dctf_s3_error_map(DCTF_S3_HEAD, 401, ""), DCTF_ERR_ORIGIN_AUTH);
    assert_int_equal(dctf_s3_error_map(DCTF_S3_GET, 501, "NotImplemented"), DCTF_ERR_BAD_RESPONSE);
    assert_int_equal(dctf_s3_error_map(DCTF_S3_GET, 304, ""), DCTF_ERR_BAD_RESPONSE);
}

/* Only what is not there is ENOENT, whatever a service says otherwise. */
static void test_map_only_404_to_enoent(void **state)
{
    static const char *const codes[] = {"", "AccessDenied", "SlowDown", "InternalError", "PermanentRedirect",
        "ExpiredToken", "RequestTimeTooSkewed", "PreconditionFailed", "Unknown"};

    (void)state;
    for (int status = 300; status < 600; status++) {
        for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
            enum dctf_err err = dctf_s3_error_map(DCTF_S3_GET, status, codes[i]);

            assert_int_not_equal(err, DCTF_OK);
            if (status != 404)
                assert_int_not_equal(dctf_err_errno(err), ENOENT);
            assert_int_not_equal(dctf_err_errno(dctf_s3_error_map(DCTF_S3_LIST, status, codes[i])), ENOENT);
        }
    }
}

static void test_find_ailments(void **state)
{
    (void)state;
    assert_int_equal(dctf_s3_error_ailment(400, "ExpiredToken"), DCTF_S3_AILS_CREDENTIALS);
    assert_int_equal(dctf_s3_error_ailment(403, "InvalidAccessKeyId"), DCTF_S3_AILS_CREDENTIALS);
    assert_int_equal(dctf_s3_error_ailment(301, "PermanentRedirect"), DCTF_S3_AILS_REGION);
    assert_int_equal(dctf_s3_error_ailment(403, "RequestTimeTooSkewed"), DCTF_S3_AILS_CLOCK);
    assert_int_equal(dctf_s3_error_ailment(403, "AccessDenied"), 0);
    assert_int_equal(dctf_s3_error_ailment(403, "SignatureDoesNotMatch"), 0);
    assert_int_equal(dctf_s3_error_ailment(301, ""), DCTF_S3_AILS_REGION);
    assert_int_equal(dctf_s3_error_ailment(500, ""), 0);
}

/* --- headers --- */

static void test_parse_content_range(void **state)
{
    static const char *const bad[] = {"", "bytes", "bytes 0-9", "bytes 0-9/", "bytes 0-9/*", "bytes */10",
        "bytes -9/10", "bytes 0-9/10x", "bytes 0-9/ 10", "bytes=0-9/10", "BYTES 0-9/10", "bytes +0-9/10",
        "bytes 0-9/18446744073709551616", "bytes 99999999999999999999-1/2"};
    uint64_t first, last, total;

    (void)state;
    assert_true(dctf_s3_content_range_parse("bytes 0-9/10", &first, &last, &total));
    assert_true(first == 0 && last == 9 && total == 10);
    assert_true(dctf_s3_content_range_parse("bytes 5-5497558138879/5497558138880", &first, &last, &total));
    assert_true(first == 5 && last == 5497558138879 && total == 5497558138880);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_false(dctf_s3_content_range_parse(bad[i], &first, &last, &total));
}

static void test_parse_date(void **state)
{
    static const char *const bad[] = {"", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994",
        "Sun, 06 Nox 1994 08:49:37 GMT", "Sun, 06 anF 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:37 CET"};
    int64_t seconds;

    (void)state;
    assert_true(dctf_s3_date_parse("Sun, 06 Nov 1994 08:49:37 GMT", &seconds));
    assert_true(seconds == 784111777);
    assert_true(dctf_s3_date_parse("Thu, 01 Jan 1970 00:00:00 GMT", &seconds));
    assert_true(seconds == 0);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_false(dctf_s3_date_parse(bad[i], &seconds));
}

static void test_build_list_query(void **state)
{
    struct dctf_str query;

    (void)state;
    dctf_str_init(&query);
    dctf_s3_list_query(&query, "a/b c+%/", true, 1000, NULL);
    assert_string_equal(
        query.data, "delimiter=%2F&encoding-type=url&list-type=2&max-keys=1000&prefix=a%2Fb%20c%2B%25%2F");
    dctf_s3_list_query(&query, "", false, 1, "a=/+");
    assert_string_equal(
        query.data, "continuation-token=a%3D%2F%2B&encoding-type=url&list-type=2&max-keys=1&prefix=");
    dctf_str_fini(&query);
}

/* --- silence --- */

#define MS(ms) ((uint64_t)(ms)*1000000)

static struct dctf_s3_silence *silence;

static int make_silence(void **state)
{
    (void)state;
    assert_int_equal(dctf_s3_silence_new(2000, 15000, 30000, &silence), DCTF_OK);
    return 0;
}

static int drop_silence(void **state)
{
    (void)state;
    dctf_s3_silence_free(silence);
    return 0;
}

static uint64_t allowed(void)
{
    return dctf_s3_silence_ms(silence, DCTF_S3_SILENCE_READ);
}

static void answers(unsigned count, uint64_t ms)
{
    while (count-- > 0)
        dctf_s3_silence_answered(silence, DCTF_S3_SILENCE_READ, MS(ms));
}

static void test_silence_follows_the_answers(void **state)
{
    (void)state;
    assert_int_equal(allowed(), 15000); /* nothing is known yet */
    answers(31, 10);
    assert_int_equal(allowed(), 15000);
    answers(1, 10);
    assert_int_equal(allowed(), 2000); /* four times 10 ms is less than the least */
    answers(4000, 1000);
    assert_true(allowed() >= 4000 && allowed() <= 5000); /* quarter octaves: at most a quarter off */
    answers(4000, 10000);
    assert_int_equal(allowed(), 15000);
    answers(12000, 10); /* what was long ago fades */
    assert_int_equal(allowed(), 2000);
    assert_int_equal(dctf_s3_silence_ms(silence, DCTF_S3_SILENCE_META), 15000); /* each kind by itself */
}

static void test_silence_by_the_percentile(void **state)
{
    (void)state;
    answers(995, 10);
    answers(5, 3000); /* one in two hundred is slow: that one is worth a new try */
    assert_int_equal(allowed(), 2000);
    answers(20, 3000);
    assert_true(allowed() >= 12000);
}

static void test_silence_backs_off(void **state)
{
    uint64_t before;

    (void)state;
    answers(100, 10);
    before = allowed();
    for (int i = 0; i < 16; i++) /* a crowd with one cause counts once */
        dctf_s3_silence_stalled(silence, DCTF_S3_SILENCE_READ, before);
    assert_int_equal(allowed(), 4000);
    dctf_s3_silence_stalled(silence, DCTF_S3_SILENCE_READ, 4000);
    assert_int_equal(allowed(), 8000);
    dctf_s3_silence_stalled(silence, DCTF_S3_SILENCE_READ, 8000);
    assert_int_equal(allowed(), 15000);
    answers(1, 5000); /* slow: the longer time is needed */
    assert_int_equal(allowed(), 15000);
    answers(1, 10); /* quick again */
    assert_int_equal(allowed(), 2000);
}

/* A list that takes longer than a read ever may gets through the next time. */
static void test_silence_of_slow_lists(void **state)
{
    (void)state;
    dctf_s3_silence_stalled(silence, DCTF_S3_SILENCE_META, 15000);
    assert_int_equal(dctf_s3_silence_ms(silence, DCTF_S3_SILENCE_META), 30000);
    dctf_s3_silence_stalled(silence, DCTF_S3_SILENCE_META, 30000);
    assert_int_equal(dctf_s3_silence_ms(silence, DCTF_S3_SILENCE_META), 30000);
    dctf_s3_silence_stalled(silence, DCTF_S3_SILENCE_READ, 15000);
    assert_int_equal(allowed(), 15000);
}

static void test_silence_extremes(void **state)
{
    struct dctf_s3_silence *odd;

    (void)state;
    for (int i = 0; i < 40; i++) {
        dctf_s3_silence_answered(silence, DCTF_S3_SILENCE_READ, 0);
        dctf_s3_silence_answered(silence, DCTF_S3_SILENCE_READ, UINT64_MAX);
    }
    assert_int_equal(allowed(), 15000);
    assert_int_equal(dctf_s3_silence_new(5000, 1000, 0, &odd), DCTF_OK); /* the least goes before */
    assert_int_equal(dctf_s3_silence_ms(odd, DCTF_S3_SILENCE_READ), 5000);
    dctf_s3_silence_free(odd);
}

/* --- reaching a host --- */

static void test_reach_a_host(void **state)
{
    struct dctf_reach_addresses *addresses;
    struct server server;
    char host[64], detail[256];

    (void)state;
    server_init(&server);
    snprintf(host, sizeof(host), "127.0.0.1:%d", server.port);
    assert_int_equal(dctf_reach_resolve(host, "http", FOREVER_MS, &addresses, detail), DCTF_OK);
    assert_string_equal(detail, host);
    assert_int_equal(dctf_reach_connect(addresses, FOREVER_MS, detail), DCTF_OK);
    assert_string_equal(detail, host);
    server_fini(&server);
    assert_int_equal(dctf_reach_connect(addresses, FOREVER_MS, detail), DCTF_ERR_ORIGIN_UNREACHABLE);
    assert_non_null(strstr(detail, "refused"));
    dctf_reach_addresses_free(addresses);
    assert_int_equal(dctf_reach_resolve("[::1]", "https", FOREVER_MS, &addresses, detail), DCTF_OK);
    assert_string_equal(detail, "[::1]:443");
    dctf_reach_addresses_free(addresses);
    assert_int_equal(
        dctf_reach_resolve("[::1", "https", FOREVER_MS, &addresses, detail), DCTF_ERR_OPTION_VALUE);
    assert_null(addresses);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_map_error_codes),
        cmocka_unit_test(test_map_only_404_to_enoent),
        cmocka_unit_test(test_find_ailments),
        cmocka_unit_test(test_parse_content_range),
        cmocka_unit_test(test_parse_date),
        cmocka_unit_test(test_build_list_query),
        cmocka_unit_test_setup_teardown(test_silence_follows_the_answers, make_silence, drop_silence),
        cmocka_unit_test_setup_teardown(test_silence_by_the_percentile, make_silence, drop_silence),
        cmocka_unit_test_setup_teardown(test_silence_backs_off, make_silence, drop_silence),
        cmocka_unit_test_setup_teardown(test_silence_of_slow_lists, make_silence, drop_silence),
        cmocka_unit_test_setup_teardown(test_silence_extremes, make_silence, drop_silence),
        cmocka_unit_test(test_reach_a_host),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
