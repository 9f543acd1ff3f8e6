/* SPDX-License-Identifier: Apache-2.0
 *
 * The origin that reads through libs3, against answers written by hand: statuses, what is refused, and
 * reading. What it does with whole services is tested by tests/e2e/test_s3_conformance.py.
 */
#include "lib/fail_alloc.h"
#include "libs3_fixture.h"

#include <fcntl.h>
#include <libs3.h>
#include <sys/resource.h>

/* --- statuses --- */

struct expected {
    S3Status status;
    enum dctf_err get;
    enum dctf_err list;
};

static const struct expected expected[] = {
    {S3StatusOK, DCTF_OK, DCTF_OK},
    {S3StatusInternalError, DCTF_ERR_ORIGIN_IO, DCTF_ERR_ORIGIN_IO},
    {S3StatusOutOfMemory, DCTF_ERR_NO_MEMORY, DCTF_ERR_NO_MEMORY},
    {S3StatusUriTooLong, DCTF_ERR_S3_CLIENT_UNSAFE, DCTF_ERR_S3_CLIENT_UNSAFE},
    {S3StatusInvalidBucketNameCharacter, DCTF_ERR_S3_CLIENT_UNSAFE, DCTF_ERR_S3_CLIENT_UNSAFE},
    {S3StatusKeyTooLong, DCTF_ERR_NAME_TOO_LONG, DCTF_ERR_NAME_TOO_LONG},
    {S3StatusXmlParseFailure, DCTF_ERR_BAD_RESPONSE, DCTF_ERR_BAD_RESPONSE},
    {S3StatusNameLookupError, DCTF_ERR_ORIGIN_UNREACHABLE, DCTF_ERR_ORIGIN_UNREACHABLE},
    {S3StatusFailedToConnect, DCTF_ERR_ORIGIN_UNREACHABLE, DCTF_ERR_ORIGIN_UNREACHABLE},
    {S3StatusServerFailedVerification, DCTF_ERR_ORIGIN_TLS, DCTF_ERR_ORIGIN_TLS},
    {S3StatusConnectionFailed, DCTF_ERR_ORIGIN_IO, DCTF_ERR_ORIGIN_IO},
    {S3StatusAbortedByCallback, DCTF_ERR_CANCELLED, DCTF_ERR_CANCELLED},
    {S3StatusErrorAccessDenied, DCTF_ERR_ORIGIN_ACCESS, DCTF_ERR_ORIGIN_ACCESS},
    {S3StatusErrorExpiredToken, DCTF_ERR_ORIGIN_AUTH, DCTF_ERR_ORIGIN_AUTH},
    {S3StatusErrorInternalError, DCTF_ERR_ORIGIN_IO, DCTF_ERR_ORIGIN_IO},
    {S3StatusErrorInvalidAccessKeyId, DCTF_ERR_ORIGIN_AUTH, DCTF_ERR_ORIGIN_AUTH},
    {S3StatusErrorInvalidRange, DCTF_ERR_VERSION_MISMATCH, DCTF_ERR_BAD_RESPONSE},
    {S3StatusErrorMalformedXML, DCTF_ERR_BAD_RESPONSE, DCTF_ERR_BAD_RESPONSE},
    {S3StatusErrorNoSuchBucket, DCTF_ERR_BUCKET_NOT_FOUND, DCTF_ERR_BUCKET_NOT_FOUND},
    {S3StatusErrorNoSuchKey, DCTF_ERR_NOT_FOUND, DCTF_ERR_BAD_RESPONSE},
    {S3StatusErrorPermanentRedirect, DCTF_ERR_ORIGIN_REGION, DCTF_ERR_ORIGIN_REGION},
    {S3StatusErrorPreconditionFailed, DCTF_ERR_VERSION_MISMATCH, DCTF_ERR_BAD_RESPONSE},
    {S3StatusErrorRequestTimeTooSkewed, DCTF_ERR_CLOCK_SKEW, DCTF_ERR_CLOCK_SKEW},
    {S3StatusErrorSignatureDoesNotMatch, DCTF_ERR_ORIGIN_AUTH, DCTF_ERR_ORIGIN_AUTH},
    {S3StatusErrorSlowDown, DCTF_ERR_ORIGIN_THROTTLED, DCTF_ERR_ORIGIN_THROTTLED},
    {S3StatusErrorUnknown, DCTF_ERR_ORIGIN_IO, DCTF_ERR_ORIGIN_IO},
    {S3StatusHttpErrorForbidden, DCTF_ERR_ORIGIN_ACCESS, DCTF_ERR_ORIGIN_ACCESS},
    {S3StatusHttpErrorNotFound, DCTF_ERR_NOT_FOUND, DCTF_ERR_BAD_RESPONSE},
    {S3StatusHttpErrorMovedTemporarily, DCTF_ERR_ORIGIN_REGION, DCTF_ERR_ORIGIN_REGION},
    {S3StatusHttpErrorUnknown, DCTF_ERR_ORIGIN_IO, DCTF_ERR_ORIGIN_IO},
};

static void test_map_statuses(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        assert_int_equal(dctf_libs3_status((int)expected[i].status, false), expected[i].get);
        assert_int_equal(dctf_libs3_status((int)expected[i].status, true), expected[i].list);
    }
}

/* Only what says so is "not there", and only success is success. */
static void test_map_every_status(void **state)
{
    (void)state;
    for (int status = S3StatusOK; status <= S3StatusHttpErrorUnknown + 1; status++) {
        enum dctf_err get = dctf_libs3_status(status, false);
        enum dctf_err list = dctf_libs3_status(status, true);
        bool missing = status == S3StatusErrorNoSuchKey || status == S3StatusHttpErrorNotFound;

        assert_string_not_equal(dctf_err_name(get), "UNKNOWN");
        assert_string_not_equal(dctf_err_name(list), "UNKNOWN");
        assert_int_equal(get == DCTF_OK, status == S3StatusOK);
        assert_int_equal(list == DCTF_OK, status == S3StatusOK);
        assert_int_equal(get == DCTF_ERR_NOT_FOUND, missing);
        assert_int_equal(get == DCTF_ERR_BUCKET_NOT_FOUND, status == S3StatusErrorNoSuchBucket);
        assert_int_not_equal(list, DCTF_ERR_NOT_FOUND);
    }
}

/* --- opening --- */

static void test_open_refuses_what_is_unsafe(void **state)
{
    static const char *const cases[][2] = {
        {"anonymous", "on"},
        {"requester_pays", "on"},
        {"session_token", "token"},
        {"endpoint", "https://store.example"},
        {"endpoint", "http://store.example/base"},
        {"endpoint", ""},
    };
    struct fixture *fixture;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        void *made;

        setup(&made);
        fixture = made;
        set_option(fixture, cases[i][0], cases[i][1]);
        assert_int_equal(open_origin(fixture), DCTF_ERR_S3_CLIENT_UNSAFE);
        assert_null(fixture->origin);
        assert_non_null(strstr(fixture->detail, "libs3"));
        teardown(&made);
    }
}

static enum dctf_err make(void *ctx)
{
    return open_origin(ctx);
}

static void drop(void *ctx)
{
    struct fixture *fixture = ctx;

    fixture->origin->ops->close(fixture->origin, FOREVER_MS);
    fixture->origin = NULL;
}

static void test_open_out_of_memory(void **state)
{
    struct fixture *fixture = *state;

    assert_true(fail_alloc_sweep(make, drop, fixture, (void **)&fixture->origin) > 5);
}

static void test_learn_plain_bytes(void **state)
{
    char host[] = "127.0.0.1:80";
    char bucket[] = "bucket";
    struct dctf_libs3 libs3 = {.address = {.bucket = bucket, .path_style = true}, .host = host};
    char detail[DCTF_LIBS3_DETAIL_BYTES];

    (void)state;
    assert_int_equal(dctf_libs3_init(), DCTF_OK);
    assert_int_equal(dctf_libs3_learn(&libs3, detail), DCTF_OK);
    for (int c = 1; c < 256; c++)
        assert_int_equal(libs3.plain[c], c != ' ');
}

/* --- reading --- */

static void test_get_asks_for_range_and_version(void **state)
{
    struct fixture *fixture = *state;
    struct reply *reply = start_get(fixture, "d\xc3\xa9/a+b&c%20!*'()~", 5, 5);
    char head[8192];

    serve(&fixture->server, "GET /bucket/pre/d%C3%A9/a%2Bb%26c%2520!*'()~ HTTP/1.1\r\n", head, sizeof(head),
        OK_206 "ETag: \"abc\"\r\nContent-Length: 5\r\n\r\n12345");
    assert_int_equal(await(reply), DCTF_OK);
    assert_int_equal(reply->got, 5);
    assert_memory_equal(reply->buf, "12345", 5);
    reply_free(reply);
    assert_non_null(strstr(head, "\r\nRange: bytes=5-9\r\n"));
    assert_non_null(strstr(head, "\r\nIf-Match: \"abc\"\r\n"));
    assert_non_null(strstr(head, "\r\nAuthorization: AWS KEY:"));
    assert_null(strstr(head, "SECRET"));
}

/* The library would make a plus of the space. Plain keys stay with it, before and after. */
static void test_get_hands_spaces_to_the_default_client(void **state)
{
    static const char ok[] = OK_206 "ETag: \"abc\"\r\nContent-Range: bytes 5-9/1000\r\n"
                                    "Content-Length: 5\r\n\r\n12345";
    static const char *const keys[][3] = {
        {"d/a+b", "GET /bucket/pre/d/a%2Bb HTTP/1.1\r\n", "\r\nAuthorization: AWS KEY:"},
        {"d/a b+c%20", "GET /bucket/pre/d/a%20b%2Bc%2520 HTTP/1.1\r\n",
            "\r\nAuthorization: AWS4-HMAC-SHA256 Credential=KEY/"},
        {" d/a", "GET /bucket/pre/%20d/a HTTP/1.1\r\n",
            "\r\nAuthorization: AWS4-HMAC-SHA256 Credential=KEY/"},
        {"d/a", "GET /bucket/pre/d/a HTTP/1.1\r\n", "\r\nAuthorization: AWS KEY:"},
    };
    struct fixture *fixture = *state;
    char head[8192];

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        struct reply *reply = start_get(fixture, keys[i][0], 5, 5);

        serve(&fixture->server, keys[i][1], head, sizeof(head), ok);
        assert_int_equal(await(reply), DCTF_OK);
        assert_memory_equal(reply->buf, "12345", 5);
        reply_free(reply);
        assert_non_null(strstr(head, keys[i][2]));
        assert_non_null(strstr(head, "\"abc\""));
    }
}

static void test_cancel_what_was_handed_over(void **state)
{
    struct fixture *fixture = *state;
    struct reply *reply = start_get(fixture, "a b", 5, 5);
    int fd = server_accept(&fixture->server);

    server_skip_head(fd);
    fixture->origin->ops->cancel_get(fixture->origin, &reply->get);
    ended(reply, DCTF_ERR_CANCELLED);
    close(fd);
    reply = start_get(fixture, "a b", 5, 5);
    fixture->origin->ops->close(fixture->origin, FOREVER_MS);
    fixture->origin = NULL;
    ended(reply, DCTF_ERR_CANCELLED);
}

static void test_get_refuses_keys(void **state)
{
    struct fixture *fixture = *state;
    char key[1100];

    ended(start_get(fixture, "a/../b", 0, 1), DCTF_ERR_S3_CLIENT_UNSAFE);
    ended(start_get(fixture, "a/.", 0, 1), DCTF_ERR_S3_CLIENT_UNSAFE);
    memset(key, 'k', sizeof(key));
    key[1021] = '\0'; /* and "pre/" before it */
    ended(start_get(fixture, key, 0, 1), DCTF_ERR_NAME_TOO_LONG);
    assert_false(readable(fixture->server.fd, 0));
    key[1020] = '\0';
    struct reply *reply = start_get(fixture, key, 0, 1);
    serve(&fixture->server, "GET /bucket/pre/kkk", NULL, 0,
        OK_206 "ETag: \"abc\"\r\nContent-Length: 1\r\n\r\n1");
    ended(reply, DCTF_OK);
}

/* A 1,024-byte key all of whose bytes are encoded is the longest URL there is. */
static void test_get_longest_key(void **state)
{
    struct fixture *fixture = *state;
    struct reply *reply;
    char key[1021];

    for (size_t i = 0; i < 1020; i += 2)
        memcpy(key + i, "\xc3\xa9", 2);
    key[1020] = '\0';
    reply = start_get(fixture, key, 0, 1);
    serve(&fixture->server, "GET /bucket/pre/%C3%A9%C3%A9", NULL, 0,
        OK_206 "ETag: \"abc\"\r\nContent-Length: 1\r\n\r\n1");
    ended(reply, DCTF_OK);
}

static void test_get_counts_bytes(void **state)
{
    struct fixture *fixture = *state;
    struct {
        const char *answer;
        enum dctf_err err;
    } cases[] = {
        {OK_206 "ETag: \"abc\"\r\nContent-Length: 5\r\n\r\n123", DCTF_ERR_SHORT_BODY},
        {OK_206 "ETag: \"abc\"\r\nContent-Length: 5\r\n\r\n", DCTF_ERR_SHORT_BODY},
        {OK_206 "ETag: \"abc\"\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n123\r\n", DCTF_ERR_SHORT_BODY},
        {OK_206 "ETag: \"abc\"\r\n\r\n123", DCTF_ERR_SHORT_BODY},
        {OK_206 "ETag: \"abc\"\r\n\r\n123456", DCTF_ERR_BAD_RESPONSE},
        {OK_200 "ETag: \"abc\"\r\nContent-Length: 1000\r\n\r\n12345", DCTF_ERR_BAD_RESPONSE},
        {OK_206 "ETag: \"xyz\"\r\nContent-Length: 5\r\n\r\n12345", DCTF_ERR_VERSION_MISMATCH},
        {OK_206 "ETag: \"abc\"\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n0\r\n\r\n", DCTF_OK},
        {"HTTP/1.1 412 Precondition Failed\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
            DCTF_ERR_VERSION_MISMATCH},
        {"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", DCTF_ERR_NOT_FOUND},
        {"HTTP/1.1 503 Slow Down\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
            DCTF_ERR_ORIGIN_THROTTLED},
        {"HTTP/1.1 504 Gateway Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
            DCTF_ERR_ORIGIN_IO},
        {"HTTP/1.1 403 Forbidden\r\nConnection: close\r\n\r\n<Error><Code>AccessDenied</Code></Error>",
            DCTF_ERR_ORIGIN_ACCESS},
        {"", DCTF_ERR_ORIGIN_IO},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct reply *reply = start_get(fixture, "k", 5, 5);

        serve(&fixture->server, "GET /bucket/pre/k HTTP", NULL, 0, cases[i].answer);
        if (await(reply) != cases[i].err)
            fail_msg("case %zu: error %d", i, (int)reply->end.err);
        reply_free(reply);
    }
}

/* A proxy that writes header names in lower case hides the ETag: If-Match must do, and it is tried
 * once whether the store looks at it. */
static void test_get_without_etag_tries_if_match(void **state)
{
    struct fixture *fixture = *state;
    char head[8192];

    for (unsigned i = 0; i < 2; i++) {
        struct reply *reply = start_get(fixture, "k", 5, 5);

        serve(&fixture->server, "GET /bucket/pre/k HTTP", NULL, 0,
            OK_206 "etag: \"abc\"\r\ncontent-length: 5\r\n\r\n12345");
        if (i == 0) {
            serve(&fixture->server, "GET /bucket/pre/k HTTP", head, sizeof(head),
                "HTTP/1.1 412 Precondition Failed\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
            assert_non_null(strstr(head, "If-Match: \"no-such-version\""));
        }
        ended(reply, DCTF_OK);
    }
    assert_false(readable(fixture->server.fd, 0));
}

static void test_get_without_any_version_is_refused(void **state)
{
    struct fixture *fixture = *state;

    for (unsigned i = 0; i < 2; i++) {
        struct reply *reply = start_get(fixture, "k", 5, 5);

        serve(&fixture->server, "GET /bucket/pre/k HTTP", NULL, 0,
            OK_206 "etag: \"abc\"\r\ncontent-length: 5\r\n\r\n12345");
        serve(&fixture->server, "GET /bucket/pre/k HTTP", NULL, 0,
            OK_206 "etag: \"abc\"\r\ncontent-length: 1\r\n\r\n1");
        ended(reply, DCTF_ERR_S3_CLIENT_UNSAFE);
    }
}

/* More than the sockets hold was sent, so the origin is in the midst of the body. */
static void test_cancel_ends_at_the_next_bytes(void **state)
{
    const size_t sent = 24u << 20;
    const size_t len = 32u << 20;
    struct fixture *fixture = *state;
    struct reply *reply = reply_new();
    char *bytes = calloc(2, len);
    int fd;

    assert_non_null(bytes);
    reply->get = (struct dctf_origin_get){
        .key = "k", .etag = "abc", .size = len, .len = len, .buf = bytes, .done = on_get, .ctx = reply};
    assert_int_equal(fixture->origin->ops->get(fixture->origin, &reply->get), DCTF_OK);
    fd = server_accept(&fixture->server);
    server_skip_head(fd);
    server_send(fd, OK_206 "ETag: \"abc\"\r\nContent-Length: 33554432\r\n\r\n");
    assert_true(server_try_send(fd, bytes + len, sent));
    fixture->origin->ops->cancel_get(fixture->origin, &reply->get);
    server_try_send(fd, bytes + len, len - sent);
    ended(reply, DCTF_ERR_CANCELLED);
    close(fd);
    free(bytes);
}

/* The library's own select() loop could not do this. */
static void test_get_with_sockets_past_fd_setsize(void **state)
{
    struct fixture *fixture = *state;
    struct rlimit limit;
    struct reply *reply;
    int fds[1200];
    int highest = 0;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max < 4096 ? limit.rlim_max : 4096;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_cur < 1300)
        skip();
    for (size_t i = 0; i < 1200; i++) {
        fds[i] = fcntl(fixture->server.fd, F_DUPFD_CLOEXEC, 0);
        assert_true(fds[i] >= 0);
        highest = fds[i];
    }
    assert_true(highest > FD_SETSIZE);
    reply = start_get(fixture, "k", 5, 5);
    serve(&fixture->server, "GET /bucket/pre/k HTTP", NULL, 0,
        OK_206 "ETag: \"abc\"\r\nContent-Length: 5\r\n\r\n12345");
    assert_int_equal(await(reply), DCTF_OK);
    assert_memory_equal(reply->buf, "12345", 5);
    reply_free(reply);
    for (size_t i = 0; i < 1200; i++)
        close(fds[i]);
}

/* libs3 lets curl follow redirects; the signature stays with the server that it was made for. */
static void test_redirect_carries_no_signature(void **state)
{
    struct fixture *fixture = *state;
    struct server other;
    struct reply *reply = start_get(fixture, "k", 5, 5);
    char answer[256];
    char head[8192];

    server_init(&other);
    snprintf(answer, sizeof(answer),
        "HTTP/1.1 307 Temporary Redirect\r\nConnection: close\r\nLocation: "
        "http://127.0.0.1:%d/bucket/pre/k\r\n"
        "Content-Length: 0\r\n\r\n",
        other.port);
    serve(&fixture->server, "GET /bucket/pre/k HTTP", NULL, 0, answer);
    serve(&other, "GET /bucket/pre/k HTTP", head, sizeof(head),
        "HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
    ended(reply, DCTF_ERR_ORIGIN_ACCESS);
    assert_null(strstr(head, "Authorization"));
    server_fini(&other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_map_statuses),
        cmocka_unit_test(test_map_every_status),
        cmocka_unit_test(test_open_refuses_what_is_unsafe),
        cmocka_unit_test_setup_teardown(test_open_out_of_memory, setup, teardown),
        cmocka_unit_test(test_learn_plain_bytes),
        OPEN(test_get_asks_for_range_and_version),
        OPEN(test_get_hands_spaces_to_the_default_client),
        OPEN(test_cancel_what_was_handed_over),
        OPEN(test_get_refuses_keys),
        OPEN(test_get_longest_key),
        OPEN(test_get_counts_bytes),
        OPEN(test_get_without_etag_tries_if_match),
        OPEN(test_get_without_any_version_is_refused),
        OPEN(test_cancel_ends_at_the_next_bytes),
        OPEN(test_get_with_sockets_past_fd_setsize),
        OPEN(test_redirect_carries_no_signature),
    };

    dctf_log_set_level(DCTF_LOG_ERROR);
    if (!dctf_libs3_lists()) { /* no origin can be opened */
        const struct CMUnitTest some[] = {
            cmocka_unit_test(test_map_statuses),
            cmocka_unit_test(test_map_every_status),
            cmocka_unit_test(test_open_refuses_what_is_unsafe),
        };

        return cmocka_run_group_tests_name("refusals", some, NULL, NULL);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
