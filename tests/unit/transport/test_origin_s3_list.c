/* SPDX-License-Identifier: Apache-2.0
 *
 * Listings of the S3 origin: the order of pages, what is requested ahead, later pages that
 * fail, and every way to an end.
 */
#include "origin_s3_fixture.h"

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

#define OBJECT(key)                                                                                          \
    "<Contents><Key>" key "</Key><Size>1</Size><ETag>\"e\"</ETag>"                                           \
    "<LastModified>2026-01-31T12:00:00.000Z</LastModified></Contents>"
#define PREFIX(key) "<CommonPrefixes><Prefix>" key "</Prefix></CommonPrefixes>"

#define WITHOUT_ETAG                                                                                         \
    ("<Contents><Key>pre/d/1</Key><Size>1</Size><ETag>\"\"</ETag>"                                           \
     "<LastModified>2026-01-31T12:00:00.000Z</LastModified></Contents>")

/* A page; `next` NULL: the last. */
static void answer_page(const char *objects, const char *next)
{
    char body[8192];

    snprintf(body, sizeof(body),
        "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
        "<IsTruncated>%s</IsTruncated>%s%s%s%s</ListBucketResult>",
        next ? "true" : "false", next ? "<NextContinuationToken>" : "", next ? next : "",
        next ? "</NextContinuationToken>" : "", objects);
    answer_with(&fixture, "200 OK", "", body);
}

static void begin(const char *dir)
{
    reply.end.done = false;
    reply.names[0] = '\0';
    reply.pages = 0;
    assert_int_equal(start_list(&fixture, &reply, dir), DCTF_OK);
}

static void await_pages(unsigned least)
{
    struct timespec until = in_ms(FOREVER_MS);
    int rc = 0;

    pthread_mutex_lock(&reply.end.lock);
    while (reply.pages < least && !rc)
        rc = pthread_cond_timedwait(&reply.end.changed, &reply.end.lock, &until);
    pthread_mutex_unlock(&reply.end.lock);
    assert_int_equal(rc, 0);
}

/* --- whole listings --- */

static void test_list_one_page(void **state)
{
    (void)state;
    begin("a b/c");
    answer_page(
        OBJECT("pre/a b/c/") OBJECT("pre/a b/c/x") PREFIX("pre/a b/c/sub/") PREFIX("pre/a b/c//"), NULL);
    assert_int_equal(reply_wait(&reply), DCTF_OK);
    assert_string_equal(reply.names, ",x,sub/,/,"); /* the marker, and "dir//…", have no name */
    assert_true(head_has(&fixture,
        "GET /bucket/?delimiter=%2F&encoding-type=url&list-type=2&max-keys=1000&prefix=pre%2Fa%20b%2Fc%2F "
        "HTTP/1.1"));
}

static void test_list_root(void **state)
{
    (void)state;
    begin("");
    answer_page("", NULL);
    assert_int_equal(reply_wait(&reply), DCTF_OK); /* an empty mount */
    assert_int_equal(reply.pages, 0);
    assert_true(head_has(&fixture, "&prefix=pre%2F HTTP/1.1"));
}

static void test_list_nothing(void **state)
{
    (void)state;
    begin("no/such");
    answer_page("", NULL);
    assert_int_equal(reply_wait(&reply), DCTF_ERR_NOT_FOUND);
}

static void test_list_pages(void **state)
{
    (void)state;
    begin("d");
    answer_page(OBJECT("pre/d/1") OBJECT("pre/d/2"), "t+1/=");
    answer_page("", "t2"); /* a page without entries is no end */
    assert_true(head_has(&fixture, "/?continuation-token=t%2B1%2F%3D&delimiter=%2F&"));
    answer_page(OBJECT("pre/d/3"), NULL);
    assert_true(head_has(&fixture, "/?continuation-token=t2&delimiter=%2F&"));
    assert_int_equal(reply_wait(&reply), DCTF_OK);
    assert_string_equal(reply.names, "1,2,3,");
    assert_int_equal(dctf_metric_get(fixture.metrics, DCTF_METRIC_S3_LIST), 3);
}

/* --- the page after the one that is handed over --- */

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

static bool on_page_at_gate(
    struct dctf_origin_list *list, const struct dctf_origin_entry *entries, size_t count)
{
    bool more = on_page(list, entries, count);

    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
    return more;
}

static void begin_at_gate(void)
{
    pthread_mutex_lock(&gate);
    reply.list =
        (struct dctf_origin_list){.dir = "d", .page = on_page_at_gate, .done = on_list_done, .ctx = &reply};
    assert_int_equal(fixture.origin->ops->list(fixture.origin, &reply.list), DCTF_OK);
}

static void test_request_one_ahead(void **state)
{
    (void)state;
    begin_at_gate();
    answer_page(OBJECT("pre/d/1"), "t1");
    await_pages(1);
    answer_page(OBJECT("pre/d/2"), "t2");          /* comes while the first is handed over */
    assert_false(readable(fixture.server.fd, 50)); /* and no third before the second's turn */
    pthread_mutex_unlock(&gate);
    answer_page(OBJECT("pre/d/3"), NULL);
    assert_int_equal(reply_wait(&reply), DCTF_OK);
    assert_string_equal(reply.names, "1,2,3,");
}

static void test_cancel_while_a_page_is_handed_over(void **state)
{
    int fd;

    (void)state;
    begin_at_gate();
    answer_page(OBJECT("pre/d/1"), "t1");
    await_pages(1);
    fd = take(&fixture);
    fixture.origin->ops->cancel_list(fixture.origin, &reply.list);
    server_await_close(fd);
    assert_false(reply.end.done);
    pthread_mutex_unlock(&gate);
    assert_int_equal(reply_wait(&reply), DCTF_ERR_CANCELLED);
    assert_no_request(&fixture);
}

static void test_stop_paging(void **state)
{
    (void)state;
    reply.stop_paging = true;
    begin("d");
    answer_page(OBJECT("pre/d/1"), "t1");
    /* The next page was asked for, and is given up. */
    assert_int_equal(reply_wait(&reply), DCTF_ERR_CANCELLED);
    assert_int_equal(reply.pages, 1);
}

/* --- what fails --- */

static void test_fail_on_the_first_page(void **state)
{
    (void)state;
    begin("d");
    answer_error(&fixture, "503 Slow Down", "", "SlowDown");
    assert_int_equal(reply_wait(&reply), DCTF_ERR_ORIGIN_THROTTLED); /* the scheduler tries again */
    assert_no_request(&fixture);
    begin("d");
    answer_error(&fixture, "404 Not Found", "", "NoSuchBucket");
    assert_int_equal(reply_wait(&reply), DCTF_ERR_BUCKET_NOT_FOUND);
    begin("d");
    answer_error(&fixture, "404 Not Found", "", "NoSuchKey"); /* no S3 says that of a list */
    assert_int_equal(reply_wait(&reply), DCTF_ERR_BAD_RESPONSE);
    begin("d");
    answer_with(&fixture, "200 OK", "", "<Error><Code>InternalError</Code></Error>");
    assert_int_equal(reply_wait(&reply), DCTF_ERR_ORIGIN_IO);
    begin("d");
    answer_with(&fixture, "200 OK", "", "");
    assert_int_equal(reply_wait(&reply), DCTF_ERR_BAD_RESPONSE);
}

static void test_try_a_later_page_again(void **state)
{
    (void)state;
    begin("d");
    answer_page(OBJECT("pre/d/1"), "t1");
    answer_error(&fixture, "503 Slow Down", "", "SlowDown");
    answer(&fixture, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n<half");
    answer_with(&fixture, "200 OK", "", "<ListBucketResult><IsTruncated>");
    assert_true(head_has(&fixture, "continuation-token=t1&"));
    answer_page(OBJECT("pre/d/2"), NULL);
    assert_true(head_has(&fixture, "continuation-token=t1&"));
    assert_int_equal(reply_wait(&reply), DCTF_OK);
    assert_string_equal(reply.names, "1,2,");
    assert_int_equal(dctf_metric_get(fixture.metrics, DCTF_METRIC_ORIGIN_RETRIES), 3);
}

static void test_fail_on_a_later_page(void **state)
{
    (void)state;
    begin("d");
    answer_page(OBJECT("pre/d/1"), "t1");
    answer_error(&fixture, "403 Forbidden", "", "AccessDenied");
    assert_int_equal(reply_wait(&reply), DCTF_ERR_ORIGIN_ACCESS);
    assert_no_request(&fixture);
}

static void test_refuse_what_was_not_asked_for(void **state)
{
    static const char *const odd[] = {OBJECT("other/d/1"), OBJECT("pre/d"), OBJECT("pre/d/sub/1"),
        PREFIX("pre/d/"), PREFIX("pre/d/a/b/"), PREFIX("pre/d/a"), WITHOUT_ETAG};

    (void)state;
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
        begin("d");
        answer_page(odd[i], NULL);
        assert_int_equal(reply_wait(&reply), DCTF_ERR_BAD_RESPONSE);
        assert_int_equal(reply.pages, 0);
    }
}

/* A token that leads back to its own page would never end. */
static void test_refuse_circle(void **state)
{
    (void)state;
    begin("d");
    answer_page(OBJECT("pre/d/1"), "t1");
    for (unsigned i = 0; i < 8; i++)
        answer_page(OBJECT("pre/d/2"), "t1");
    assert_int_equal(reply_wait(&reply), DCTF_ERR_BAD_RESPONSE);
    assert_string_equal(reply.names, "1,");
}

static void test_cancel_before_the_first_page(void **state)
{
    int fd;

    (void)state;
    begin("d");
    fd = take(&fixture);
    fixture.origin->ops->cancel_list(fixture.origin, &reply.list);
    assert_int_equal(reply_wait(&reply), DCTF_ERR_CANCELLED);
    close(fd);
}

static void test_close_while_backing_off(void **state)
{
    (void)state;
    begin("d");
    answer_page(OBJECT("pre/d/1"), "t1");
    for (unsigned i = 0; i < 4; i++) /* the pause grows; one more is due at some time */
        answer_error(&fixture, "503 Slow Down", "", "SlowDown");
    fixture.origin->ops->close(fixture.origin, FOREVER_MS);
    fixture.origin = NULL;
    assert_true(reply.end.done);
    /* Between two tries, or just when the last answer came. */
    assert_true(reply.end.err == DCTF_ERR_CANCELLED || reply.end.err == DCTF_ERR_ORIGIN_THROTTLED);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_list_one_page),
        TEST(test_list_root),
        TEST(test_list_nothing),
        TEST(test_list_pages),
        TEST(test_request_one_ahead),
        TEST(test_cancel_while_a_page_is_handed_over),
        TEST(test_stop_paging),
        TEST(test_fail_on_the_first_page),
        TEST(test_try_a_later_page_again),
        TEST(test_fail_on_a_later_page),
        TEST(test_refuse_what_was_not_asked_for),
        TEST(test_refuse_circle),
        TEST(test_cancel_before_the_first_page),
        TEST(test_close_while_backing_off),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
