/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranges and heads of the S3 origin, byte by byte: what is asked, which answers are let in,
 * what errors mean, and the one more try of each kind.
 */
#include "origin_s3_fixture.h"

#include "lib/fail_alloc.h"

#include <fcntl.h>

static struct fixture fixture;
static struct reply reply;

static int setup(void **state)
{
    (void)state;
    fixture_init(&fixture);
    fixture_open(&fixture);
    reply_init(&reply);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fixture_fini(&fixture);
    reply_fini(&reply);
    return 0;
}

/* Open anew, with one more option. */
static void reopen(const char *name, const char *value)
{
    fixture.origin->ops->close(fixture.origin, FOREVER_MS);
    set_option(&fixture, name, value);
    fixture_open(&fixture);
}

#define RANGE(range) "ETag: \"abc\"\r\nContent-Range: bytes " range "\r\n"

/* --- what is let in --- */

static void test_get_range(void **state)
{
    (void)state;
    assert_int_equal(start_get(&fixture, &reply, 2, 5), DCTF_OK);
    answer_with(&fixture, "206 Partial Content", RANGE("2-6/10"), "hello");
    assert_int_equal(reply_wait(&reply), DCTF_OK);
    assert_int_equal(reply.got, 5);
    assert_memory_equal(reply.buf, "hello", 6);
    assert_true(head_has(&fixture, "GET /bucket/pre/dir/key HTTP/1.1\r\n"));
    assert_true(head_has(&fixture, "\r\nRange: bytes=2-6\r\n"));
    assert_true(head_has(&fixture, "\r\nIf-Match: \"abc\"\r\n"));
    assert_true(head_has(&fixture, "\r\nAccept-Encoding: identity\r\n"));
    assert_true(head_has(&fixture, "\r\nAuthorization: AWS4-HMAC-SHA256 Credential=AKIDKEY/"));
    assert_true(head_has(&fixture, "/us-east-1/s3/aws4_request, SignedHeaders=host;if-match;range;"));
    assert_null(strstr(fixture.head, "SECRET"));
    assert_null(strstr(fixture.head, "request-payer"));
    assert_int_equal(dctf_metric_get(fixture.metrics, DCTF_METRIC_S3_GET), 1);
}

static void test_get_whole_as_200(void **state)
{
    (void)state;
    assert_int_equal(start_get(&fixture, &reply, 0, 10), DCTF_OK);
    answer_with(&fixture, "200 OK", "ETag: \"abc\"\r\n", "0123456789");
    assert_int_equal(reply_wait(&reply), DCTF_OK);
    assert_int_equal(reply.got, 10);
}

static void test_get_without_etag(void **state)
{
    (void)state;
    assert_int_equal(start_get(&fixture, &reply, 0, 2), DCTF_OK);
    answer_with(&fixture, "206 Partial Content", "Content-Range: bytes 0-1/10\r\n", "01");
    assert_int_equal(reply_wait(&reply), DCTF_OK);
}

static void test_get_weak_etag_as_given(void **state)
{
    (void)state;
    assert_int_equal(start_get(&fixture, &reply, 0, 2), DCTF_OK);
    for (int i = 0; i < 2; i++)
        answer_with(
            &fixture, "206 Partial Content", "ETag: W/\"abc\"\r\nContent-Range: bytes 0-1/10\r\n", "01");
    assert_int_equal(reply_wait(&reply), DCTF_ERR_VERSION_MISMATCH);
}

static void refused(const char *status, const char *headers, const char *body)
{
    memset(reply.buf, '.', sizeof(reply.buf));
    reply.end.done = false;
    assert_int_equal(start_get(&fixture, &reply, 2, 5), DCTF_OK);
    answer_with(&fixture, status, headers, body);
    assert_int_equal(reply_wait(&reply), DCTF_ERR_BAD_RESPONSE);
    assert_memory_equal(reply.buf, ".....", 5); /* nothing of it was let in */
}

static void test_refuse_other_ranges(void **state)
{
    (void)state;
    refused("206 Partial Content", RANGE("3-7/10"), "hello");
    refused("206 Partial Content", RANGE("2-7/10"), "hello.");
    refused("206 Partial Content", RANGE("2-6/11"), "hello");
    refused("206 Partial Content", RANGE("2-6/*"), "hello");
    refused("206 Partial Content", RANGE("2-6/10 "), "hell");
    refused("206 Partial Content", RANGE("2-6/100000000000000000010"), "hello");
    refused("206 Partial Content", "ETag: \"abc\"\r\n", "hello");
    refused("206 Partial Content", RANGE("2-6/10"), "hello and more");
    refused("206 Partial Content", RANGE("2-6/10"), "hell");
    refused("200 OK", "ETag: \"abc\"\r\n", "0123456789");
    refused("204 No Content", "ETag: \"abc\"\r\n", "");
}

static void test_get_short_body(void **state)
{
    (void)state;
    assert_int_equal(start_get(&fixture, &reply, 2, 5), DCTF_OK);
    answer(&fixture, "HTTP/1.1 206 Partial Content\r\n" RANGE("2-6/10") "Content-Length: 5\r\n\r\nhe");
    assert_int_equal(reply_wait(&reply), DCTF_ERR_SHORT_BODY);
    reply.end.done = false;
    /* Without a length the end of the connection is the end of the body. */
    assert_int_equal(start_get(&fixture, &reply, 2, 5), DCTF_OK);
    answer(&fixture, "HTTP/1.1 206 Partial Content\r\n" RANGE("2-6/10") "Connection: close\r\n\r\nhel");
    assert_int_equal(reply_wait(&reply), DCTF_ERR_SHORT_BODY);
}

/* An answer for another version than If-Match names may be one that a proxy mixed up: asked once
 * more, then believed. */
static void test_get_other_etag(void **state)
{
    static const char headers[] = "ETag: \"xyz\"\r\nContent-Range: bytes 2-6/10\r\n";

    (void)state;
    assert_int_equal(start_get(&fixture, &reply, 2, 5), DCTF_OK);
    answer_with(&fixture, "206 Partial Content", headers, "other");
    answer_with(&fixture, "206 Partial Content", RANGE("2-6/10"), "hello");
    assert_int_equal(reply_wait(&reply), DCTF_OK);
    assert_memory_equal(reply.buf, "hello", 5);
    reply.end.done = false;
    assert_int_equal(start_get(&fixture, &reply, 2, 5), DCTF_OK);
    answer_with(&fixture, "206 Partial Content", headers, "other");
    answer_with(&fixture, "206 Partial Content", headers, "other");
    assert_int_equal(reply_wait(&reply), DCTF_ERR_VERSION_MISMATCH);
    assert_memory_equal(reply.buf, "hello", 5);
}

/* --- heads --- */

static void test_head(void **state)
{
    (void)state;
    assert_int_equal(start_head(&fixture, &reply), DCTF_OK);
    answer(&fixture, "HTTP/1.1 200 OK\r\nContent-Length: 77\r\nETag: \"abc-2\"\r\n"
                     "Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\nConnection: close\r\n\r\n");
    assert_int_equal(reply_wait(&reply), DCTF_OK);
    assert_true(head_has(&fixture, "HEAD /bucket/pre/dir/key HTTP/1.1\r\n"));
    assert_string_equal(reply.names, "key");
    assert_string_equal(reply.etag, "abc-2");
    assert_int_equal(reply.size, 77);
    assert_true(reply.mtime_ns == 784111777000000000);
}

static void test_head_of_nothing(void **state)
{
    (void)state;
    assert_int_equal(start_head(&fixture, &reply), DCTF_OK);
    answer(&fixture, "HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n");
    assert_int_equal(reply_wait(&reply), DCTF_ERR_NOT_FOUND);
    reply.end.done = false;
    assert_int_equal(start_head(&fixture, &reply), DCTF_OK);
    answer(&fixture, "HTTP/1.1 200 OK\r\nContent-Length: 77\r\nConnection: close\r\n\r\n"); /* no ETag */
    assert_int_equal(reply_wait(&reply), DCTF_ERR_BAD_RESPONSE);
}

/* --- errors --- */

static enum dctf_err error_of(const char *status, const char *code)
{
    reply.end.done = false;
    assert_int_equal(start_get(&fixture, &reply, 2, 5), DCTF_OK);
    answer_error(&fixture, status, "", code);
    return reply_wait(&reply);
}

static uint64_t pause_of(const char *status, const char *headers)
{
    reply.end.done = false;
    assert_int_equal(start_get(&fixture, &reply, 2, 5), DCTF_OK);
    answer_error(&fixture, status, headers, "");
    assert_int_not_equal(reply_wait(&reply), DCTF_OK);
    return reply.get.retry_after_ms;
}

static void test_tell_the_pause_that_is_asked_for(void **state)
{
    static const char date[] = "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n"
                               "Retry-After: Sun, 06 Nov 1994 08:50:07 GMT\r\n";
    static const char past[] = "Retry-After: Sun, 06 Nov 1994 08:50:07 GMT\r\n";

    (void)state;
    assert_int_equal(pause_of("503 Slow Down", "Retry-After: 7\r\n"), 7000);
    assert_int_equal(pause_of("429 Too Many Requests", "retry-after: 120\r\n"), 120000);
    assert_int_equal(pause_of("503 Slow Down", date), 30000);
    assert_int_equal(pause_of("503 Slow Down", past), 0);
    assert_int_equal(pause_of("503 Slow Down", "Retry-After: soon\r\n"), 0);
    assert_int_equal(pause_of("503 Slow Down", "Retry-After: -1\r\n"), 0);
    assert_int_equal(pause_of("503 Slow Down", "Retry-After: 99999999999999999999\r\n"), 86400000);
    assert_int_equal(pause_of("503 Slow Down", ""), 0);
    assert_int_equal(pause_of("500 Internal", "Retry-After: 7\r\n"), 0);
}

static void test_map_errors(void **state)
{
    (void)state;
    assert_int_equal(error_of("404 Not Found", "NoSuchKey"), DCTF_ERR_NOT_FOUND);
    assert_int_equal(error_of("404 Not Found", "NoSuchBucket"), DCTF_ERR_BUCKET_NOT_FOUND);
    assert_int_equal(error_of("412 Precondition Failed", "PreconditionFailed"), DCTF_ERR_VERSION_MISMATCH);
    assert_int_equal(error_of("416 Range", "InvalidRange"), DCTF_ERR_VERSION_MISMATCH);
    assert_int_equal(error_of("403 Forbidden", "AccessDenied"), DCTF_ERR_ORIGIN_ACCESS);
    assert_int_equal(error_of("403 Forbidden", "SignatureDoesNotMatch"), DCTF_ERR_ORIGIN_AUTH);
    assert_int_equal(error_of("503 Slow Down", "SlowDown"), DCTF_ERR_ORIGIN_THROTTLED);
    assert_int_equal(error_of("429 Too Many Requests", ""), DCTF_ERR_ORIGIN_THROTTLED);
    assert_int_equal(error_of("500 Internal", "InternalError"), DCTF_ERR_ORIGIN_IO);
    assert_int_equal(error_of("502 Bad Gateway", ""), DCTF_ERR_ORIGIN_IO);
    assert_int_equal(error_of("400 Bad Request", "RequestTimeout"), DCTF_ERR_ORIGIN_IO);
    assert_int_equal(error_of("409 Conflict", "OperationAborted"), DCTF_ERR_ORIGIN_IO);
    assert_int_equal(error_of("418 I'm a teapot", "Teapot"), DCTF_ERR_BAD_RESPONSE);
    assert_int_equal(reply.got, 0); /* an error's body is no object's bytes */
}

/* Not a word may be the fault of this node's way; half an answer is the source's. */
static void test_map_silence(void **state)
{
    static const char half[] =
        "HTTP/1.1 206 Partial Content\r\n" RANGE("2-6/10") "Content-Length: 5\r\n\r\nhe";
    int fd;

    (void)state;
    set_option(&fixture, "stall_timeout_min_ms", "50ms");
    reopen("stall_timeout_max_ms", "150ms");
    assert_int_equal(start_get(&fixture, &reply, 2, 5), DCTF_OK);
    fd = take(&fixture);
    /* Its class lets the scheduler try again. */
    assert_int_equal(reply_wait(&reply), DCTF_ERR_ORIGIN_UNREACHABLE);
    assert_int_equal(dctf_metric_get(fixture.metrics, DCTF_METRIC_S3_STALLS), 1);
    close(fd);
    reply.end.done = false;
    assert_int_equal(start_get(&fixture, &reply, 2, 5), DCTF_OK);
    fd = take(&fixture);
    assert_int_equal(write(fd, half, sizeof(half) - 1), sizeof(half) - 1);
    assert_int_equal(reply_wait(&reply), DCTF_ERR_ORIGIN_IO);
    assert_int_equal(dctf_metric_get(fixture.metrics, DCTF_METRIC_S3_STALLS), 2);
    close(fd);
}

/* --- one more try --- */

static void test_learn_region(void **state)
{
    (void)state;
    assert_int_equal(start_get(&fixture, &reply, 2, 5), DCTF_OK);
    answer_error(
        &fixture, "301 Moved Permanently", "x-amz-bucket-region: eu-west-3\r\n", "PermanentRedirect");
    answer_with(&fixture, "206 Partial Content", RANGE("2-6/10"), "hello");
    assert_int_equal(reply_wait(&reply), DCTF_OK);
    assert_true(head_has(&fixture, "/eu-west-3/s3/aws4_request"));
    reply.end.done = false; /* and all later ones */
    assert_int_equal(start_get(&fixture, &reply, 2, 5), DCTF_OK);
    answer_with(&fixture, "206 Partial Content", RANGE("2-6/10"), "hello");
    assert_int_equal(reply_wait(&reply), DCTF_OK);
    assert_true(head_has(&fixture, "/eu-west-3/s3/aws4_request"));
}

static void test_learn_region_once(void **state)
{
    (void)state;
    assert_int_equal(start_get(&fixture, &reply, 2, 5), DCTF_OK);
    answer_error(
        &fixture, "400 Bad Request", "x-amz-bucket-region: eu-west-3\r\n", "AuthorizationHeaderMalformed");
    answer_error(
        &fixture, "307 Temporary Redirect", "x-amz-bucket-region: ap-south-1\r\n", "TemporaryRedirect");
    assert_int_equal(reply_wait(&reply), DCTF_ERR_ORIGIN_REGION);
    assert_no_request(&fixture);
}

/* What becomes part of a host name must be the name of a region. */
static void test_refuse_odd_regions(void **state)
{
    static const char *const odd[] = {"evil.example/", "a b", "-x", "x-", "EU", "a.b", "", "us-east-1"};

    (void)state;
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
        char header[128];

        reply.end.done = false;
        snprintf(header, sizeof(header), "x-amz-bucket-region: %s\r\n", odd[i]);
        assert_int_equal(start_get(&fixture, &reply, 2, 5), DCTF_OK);
        answer_error(&fixture, "301 Moved Permanently", header, "PermanentRedirect");
        assert_int_equal(reply_wait(&reply), DCTF_ERR_ORIGIN_REGION);
    }
}

static void test_follow_the_clock(void **state)
{
    (void)state;
    assert_int_equal(start_get(&fixture, &reply, 2, 5), DCTF_OK);
    answer_error(
        &fixture, "403 Forbidden", "Date: Fri, 31 Dec 2100 12:00:00 GMT\r\n", "RequestTimeTooSkewed");
    answer_with(&fixture, "206 Partial Content", RANGE("2-6/10"), "hello");
    assert_int_equal(reply_wait(&reply), DCTF_OK);
    assert_true(head_has(&fixture, "x-amz-date: 21001231T1200"));
    reply.end.done = false; /* the offset stays; a clock that is refused all the same is told */
    assert_int_equal(start_get(&fixture, &reply, 2, 5), DCTF_OK);
    answer_error(
        &fixture, "403 Forbidden", "Date: Fri, 31 Dec 2100 12:00:00 GMT\r\n", "RequestTimeTooSkewed");
    assert_int_equal(reply_wait(&reply), DCTF_ERR_CLOCK_SKEW);
    assert_true(head_has(&fixture, "x-amz-date: 21001231T1200"));
}

/* Credentials that cannot be had anew are not sent again. */
static void test_refused_credentials(void **state)
{
    (void)state;
    assert_int_equal(start_get(&fixture, &reply, 2, 5), DCTF_OK);
    answer_error(&fixture, "400 Bad Request", "", "ExpiredToken");
    assert_int_equal(reply_wait(&reply), DCTF_ERR_ORIGIN_AUTH);
    assert_no_request(&fixture);
}

static void test_get_anonymously(void **state)
{
    (void)state;
    reopen("anonymous", "on");
    assert_int_equal(start_get(&fixture, &reply, 2, 5), DCTF_OK);
    answer_with(&fixture, "206 Partial Content", RANGE("2-6/10"), "hello");
    assert_int_equal(reply_wait(&reply), DCTF_OK);
    assert_null(strcasestr(fixture.head, "\r\nauthorization:"));
    assert_null(strcasestr(fixture.head, "\r\nx-amz-"));
}

static void test_get_as_payer(void **state)
{
    (void)state;
    reopen("requester_pays", "on");
    assert_int_equal(start_get(&fixture, &reply, 2, 5), DCTF_OK);
    answer_with(&fixture, "206 Partial Content", RANGE("2-6/10"), "hello");
    assert_int_equal(reply_wait(&reply), DCTF_OK);
    assert_true(head_has(&fixture, "\r\nx-amz-request-payer: requester\r\n"));
    assert_true(head_has(&fixture, ";x-amz-request-payer,"));
}

/* --- credentials that take their time --- */

static char script_dir[64];

static void write_text(const char *name, const char *text, char path[128])
{
    int fd;

    snprintf(path, 128, "%s/%s", script_dir, name);
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

/* Credentials come from this shell script alone; NULL: there are none. */
static void open_with_script(const char *script)
{
    char config[256] = "[default]\n", path[128];

    snprintf(script_dir, sizeof(script_dir), "/tmp/dctf-test-XXXXXX");
    assert_non_null(mkdtemp(script_dir));
    write_text("run", script ? script : "", path);
    if (script)
        snprintf(config, sizeof(config), "[default]\ncredential_process = /bin/sh %s\n", path);
    write_text("config", config, path);
    set_option(&fixture, "access_key_id", "");
    set_option(&fixture, "secret_access_key", "");
    set_option(&fixture, "aws_credentials_file", "/dev/null");
    reopen("aws_config_file", path);
}

static void remove_script(void)
{
    char path[128];

    snprintf(path, sizeof(path), "%s/run", script_dir);
    unlink(path);
    snprintf(path, sizeof(path), "%s/config", script_dir);
    unlink(path);
    snprintf(path, sizeof(path), "%s/run.count", script_dir);
    unlink(path); /* of a script that counts */
    rmdir(script_dir);
}

static void test_wait_for_credentials(void **state)
{
    (void)state;
    open_with_script("sleep 0.1\n"
                     "echo '{\"Version\": 1, \"AccessKeyId\": \"AKIDLATE\", \"SecretAccessKey\": \"x\"}'\n");
    assert_int_equal(start_get(&fixture, &reply, 2, 5), DCTF_OK);
    answer_with(&fixture, "206 Partial Content", RANGE("2-6/10"), "hello");
    assert_int_equal(reply_wait(&reply), DCTF_OK);
    assert_true(head_has(&fixture, "Credential=AKIDLATE/"));
    remove_script();
}

/* An expired set is renewed, and the request sent once more, with the new one. */
static void test_renew_credentials(void **state)
{
    (void)state;
    open_with_script("n=$(cat $0.count 2>/dev/null || echo 1)\n"
                     "echo $((n + 1)) > $0.count\n"
                     "echo \"{\\\"Version\\\": 1, \\\"AccessKeyId\\\": \\\"AKID$n\\\", "
                     "\\\"SecretAccessKey\\\": \\\"x\\\"}\"\n");
    assert_int_equal(start_get(&fixture, &reply, 2, 5), DCTF_OK);
    answer_error(&fixture, "400 Bad Request", "", "ExpiredToken");
    assert_true(head_has(&fixture, "Credential=AKID1/"));
    answer_with(&fixture, "206 Partial Content", RANGE("2-6/10"), "hello");
    assert_true(head_has(&fixture, "Credential=AKID2/"));
    assert_int_equal(reply_wait(&reply), DCTF_OK);
    reply.end.done = false; /* once only */
    assert_int_equal(start_get(&fixture, &reply, 2, 5), DCTF_OK);
    answer_error(&fixture, "400 Bad Request", "", "ExpiredToken");
    assert_true(head_has(&fixture, "Credential=AKID2/"));
    answer_error(&fixture, "400 Bad Request", "", "ExpiredToken");
    assert_int_equal(reply_wait(&reply), DCTF_ERR_ORIGIN_AUTH);
    assert_no_request(&fixture);
    remove_script();
}

static void test_cancel_while_asking(void **state)
{
    (void)state;
    open_with_script("exec sleep 60\n");
    assert_int_equal(start_get(&fixture, &reply, 2, 5), DCTF_OK);
    fixture.origin->ops->cancel_get(fixture.origin, &reply.get);
    assert_true(reply.end.done); /* nobody waits for the command */
    assert_int_equal(reply.end.err, DCTF_ERR_CANCELLED);
    remove_script();
}

static void test_close_while_asking(void **state)
{
    (void)state;
    open_with_script("exec sleep 60\n");
    assert_int_equal(start_get(&fixture, &reply, 2, 5), DCTF_OK);
    fixture.origin->ops->close(fixture.origin, 500);
    fixture.origin = NULL;
    assert_true(reply.end.done);
    assert_int_equal(reply.end.err, DCTF_ERR_CANCELLED);
    remove_script();
}

/* Whether the start says so or the callback, once. */
static void test_no_credentials(void **state)
{
    enum dctf_err err;

    (void)state;
    open_with_script(NULL);
    for (int i = 0; i < 2; i++) {
        reply.end.done = false;
        err = start_get(&fixture, &reply, 2, 5);
        if (!err)
            err = reply_wait(&reply);
        assert_int_equal(err, DCTF_ERR_CREDENTIALS_NONE);
        await_idle(&fixture);
    }
    assert_no_request(&fixture);
    remove_script();
}

/* --- ends --- */

static void test_cancel_under_way(void **state)
{
    struct dctf_origin_get stranger = {.key = "x"};
    int fd;

    (void)state;
    assert_int_equal(start_get(&fixture, &reply, 2, 5), DCTF_OK);
    fd = take(&fixture);
    fixture.origin->ops->cancel_get(fixture.origin, &stranger); /* not held: ignored */
    assert_false(reply.end.done);
    fixture.origin->ops->cancel_get(fixture.origin, &reply.get);
    assert_int_equal(reply_wait(&reply), DCTF_ERR_CANCELLED);
    fixture.origin->ops->cancel_get(fixture.origin, &reply.get); /* over: ignored */
    server_await_close(fd);
}

static void test_close_under_way(void **state)
{
    int fd;

    (void)state;
    assert_int_equal(start_get(&fixture, &reply, 2, 5), DCTF_OK);
    fd = take(&fixture);
    fixture.origin->ops->close(fixture.origin, FOREVER_MS);
    fixture.origin = NULL;
    assert_true(reply.end.done);
    assert_int_equal(reply.end.err, DCTF_ERR_CANCELLED);
    close(fd);
}

static void test_check(void **state)
{
    char detail[256];

    (void)state;
    /* The first request of the test's thread only: it blocks until the deadline. */
    assert_int_equal(fixture.origin->ops->check(fixture.origin, 50, detail), DCTF_ERR_DEADLINE);
    assert_non_null(strstr(detail, "s3://bucket/pre: no answer within 50 ms"));
}

/* --- little memory --- */

static enum dctf_err make_get(void *ctx)
{
    (void)ctx;
    reply.end.done = false;
    return start_get(&fixture, &reply, 2, 5);
}

static void drop_get(void *ctx)
{
    (void)ctx;
    answer_with(&fixture, "206 Partial Content", RANGE("2-6/10"), "hello");
    assert_int_equal(reply_wait(&reply), DCTF_OK);
    /* The client frees what it has after the callback. */
    for (int ms = 0; ms < FOREVER_MS && fail_alloc_live() > 0; ms++)
        poll(NULL, 0, 1);
}

static void test_start_without_memory(void **state)
{
    (void)state;
    make_get(NULL); /* what is made once: credentials */
    drop_get(NULL);
    assert_true(fail_alloc_sweep(make_get, drop_get, NULL, NULL) > 5);
}

static enum dctf_err make_origin(void *ctx)
{
    struct dctf_origin_config config = {
        .source = fixture.source, .concurrency = 4, .options = &fixture.options, .detail = fixture.detail};

    return dctf_origin_s3_open(&config, ctx);
}

static void drop_origin(void *ctx)
{
    struct dctf_origin **origin = ctx;

    (*origin)->ops->close(*origin, FOREVER_MS);
}

static void test_open_without_memory(void **state)
{
    struct dctf_origin *origin;

    (void)state;
    assert_true(fail_alloc_sweep(make_origin, drop_origin, &origin, (void **)&origin) > 10);
}

static void test_open_refuses(void **state)
{
    struct dctf_origin *origin;

    (void)state;
    snprintf(fixture.source, sizeof(fixture.source), "s3://UPPER/../x");
    assert_int_equal(make_origin(&origin), DCTF_ERR_SOURCE_BAD);
    assert_null(origin);
    assert_true(fixture.detail[0] != '\0');
    snprintf(fixture.source, sizeof(fixture.source), "s3://bucket");
    set_option(&fixture, "region", "evil.example/");
    assert_int_equal(make_origin(&origin), DCTF_ERR_OPTION_VALUE);
    assert_non_null(strstr(fixture.detail, "region"));
    set_option(&fixture, "region", "");
    set_option(&fixture, "endpoint", "ftp://x");
    assert_int_equal(make_origin(&origin), DCTF_ERR_OPTION_VALUE);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_get_range),
        TEST(test_get_whole_as_200),
        TEST(test_get_without_etag),
        TEST(test_get_weak_etag_as_given),
        TEST(test_refuse_other_ranges),
        TEST(test_get_short_body),
        TEST(test_get_other_etag),
        TEST(test_head),
        TEST(test_head_of_nothing),
        TEST(test_tell_the_pause_that_is_asked_for),
        TEST(test_map_errors),
        TEST(test_map_silence),
        TEST(test_learn_region),
        TEST(test_learn_region_once),
        TEST(test_refuse_odd_regions),
        TEST(test_follow_the_clock),
        TEST(test_refused_credentials),
        TEST(test_get_anonymously),
        TEST(test_get_as_payer),
        TEST(test_wait_for_credentials),
        TEST(test_renew_credentials),
        TEST(test_cancel_while_asking),
        TEST(test_close_while_asking),
        TEST(test_no_credentials),
        TEST(test_cancel_under_way),
        TEST(test_close_under_way),
        TEST(test_check),
        TEST(test_start_without_memory),
        TEST(test_open_without_memory),
        TEST(test_open_refuses),
    };

    /* Nothing of the machine's own settings. */
    for (char **at = environ; *at;) {
        char name[256];

        snprintf(name, sizeof(name), "%.*s", (int)strcspn(*at, "="), *at);
        if (strncmp(name, "AWS_", 4) == 0)
            unsetenv(name);
        else
            at++;
    }
    setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
