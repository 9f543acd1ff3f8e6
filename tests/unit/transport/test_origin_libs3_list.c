/* SPDX-License-Identifier: Apache-2.0
 *
 * Listings, heads, and looking at the source through libs3, against answers written by hand.
 */
#include "libs3_fixture.h"

/* --- listing --- */

#define OBJECT(key, size)                                                                                    \
    "<Contents><Key>" key "</Key><LastModified>2026-01-31T12:00:00.000Z</LastModified>"                      \
    "<ETag>&quot;e" size "&quot;</ETag><Size>" size "</Size></Contents>"
#define PREFIX(key) "<CommonPrefixes><Prefix>" key "</Prefix></CommonPrefixes>"
#define WITHOUT_ETAG(etag)                                                                                   \
    "<Contents><Key>pre/a</Key><Size>1</Size><ETag>" etag "</ETag>"                                          \
    "<LastModified>2026-01-31T12:00:00.000Z</LastModified></Contents>"
#define PAGE(inside) OK_200 "\r\n" XML_HEAD "<EncodingType>url</EncodingType>" inside XML_TAIL
#define LAST "<IsTruncated>false</IsTruncated>"

static void test_list_pages(void **state)
{
    struct fixture *fixture = *state;
    struct reply *reply = start_list(fixture, "d\xc3\xa9 r");
    char head[8192];

    serve(&fixture->server, LIST "pre%2Fd%C3%A9%20r%2F HTTP/1.1\r\n", head, sizeof(head),
        PAGE("<IsTruncated>true</IsTruncated><NextContinuationToken>to/k=n+</NextContinuationToken>" OBJECT(
            "pre/d%C3%A9%20r/", "0") OBJECT("pre/d%C3%A9%20r/a%26b", "7")
                PREFIX("pre/d%C3%A9%20r/x%26%C3%A9/") PREFIX("pre/d%C3%A9%20r//")));
    assert_null(strstr(head, "#"));
    serve(&fixture->server, LIST "pre%2Fd%C3%A9%20r%2F&continuation-token=to%2Fk%3Dn%2B HTTP/1.1\r\n", NULL,
        0, PAGE(LAST OBJECT("pre/d%C3%A9%20r/z", "9")));
    assert_int_equal(await(reply), DCTF_OK);
    assert_non_null(strstr(reply->names, "[ 0 e0]"));
    assert_non_null(strstr(reply->names, "[a&b 7 e7]"));
    assert_non_null(strstr(reply->names, "[x&\xc3\xa9/ 0 ]"));
    assert_non_null(strstr(reply->names, "[/ 0 ]"));
    assert_non_null(strstr(reply->names, "[z 9 e9]"));
    reply_free(reply);
}

static void test_list_of_nothing(void **state)
{
    struct fixture *fixture = *state;
    struct reply *reply = start_list(fixture, "none");

    serve(&fixture->server, LIST "pre%2Fnone%2F HTTP", NULL, 0, PAGE(LAST));
    ended(reply, DCTF_ERR_NOT_FOUND);
}

/* What no name can hold is left out, and is there all the same. */
static void test_list_of_hidden_keys(void **state)
{
    struct fixture *fixture = *state;
    struct reply *reply = start_list(fixture, "d");

    serve(&fixture->server, LIST "pre%2Fd%2F HTTP", NULL, 0, PAGE(LAST OBJECT("pre/d/a%00b", "1")));
    assert_int_equal(await(reply), DCTF_OK);
    assert_string_equal(reply->names, "");
    reply_free(reply);
}

/* libs3 calls all of these a success, or the end of the list. */
static void test_list_of_half_a_document(void **state)
{
    struct fixture *fixture = *state;
    struct {
        const char *answer;
        enum dctf_err err;
    } cases[] = {
        {OK_200 "\r\n" XML_HEAD LAST OBJECT("pre/a", "1"), DCTF_ERR_BAD_RESPONSE},
        {OK_200 "Content-Length: 500\r\n\r\n" XML_HEAD LAST XML_TAIL, DCTF_ERR_SHORT_BODY},
        {OK_200 "Content-Length: 0\r\n\r\n", DCTF_ERR_BAD_RESPONSE},
        {OK_200 "Transfer-Encoding: chunked\r\n\r\n9\r\n<ListBuck\r\n", DCTF_ERR_BAD_RESPONSE},
        {OK_200 "\r\n<html>hello</html>", DCTF_ERR_BAD_RESPONSE},
        {OK_200 "\r\n<Error><Code>SlowDown</Code></Error>", DCTF_ERR_BAD_RESPONSE},
        {PAGE(LAST OBJECT("elsewhere/a", "1")), DCTF_ERR_BAD_RESPONSE},
        {PAGE(LAST OBJECT("pre/sub/a", "1")), DCTF_ERR_BAD_RESPONSE},
        {PAGE(LAST PREFIX("pre/sub/deep/")), DCTF_ERR_BAD_RESPONSE},
        {PAGE(LAST PREFIX("pre/sub")), DCTF_ERR_BAD_RESPONSE},
        {PAGE(LAST PREFIX("pre/")), DCTF_ERR_BAD_RESPONSE},
        {PAGE(LAST WITHOUT_ETAG("")), DCTF_ERR_BAD_RESPONSE},
        {PAGE(LAST WITHOUT_ETAG("a\nX-Other: 1")), DCTF_ERR_BAD_RESPONSE},
        {"HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n<Error><Code>NoSuchBucket</Code></Error>",
            DCTF_ERR_BUCKET_NOT_FOUND},
        {"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", DCTF_ERR_BAD_RESPONSE},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct reply *reply = start_list(fixture, "");

        serve(&fixture->server, LIST "pre%2F HTTP", NULL, 0, cases[i].answer);
        if (await(reply) != cases[i].err || reply->names[0])
            fail_msg("case %zu: error %d, names %s", i, (int)reply->end.err, reply->names);
        reply_free(reply);
    }
}

static void test_list_that_never_ends(void **state)
{
    struct fixture *fixture = *state;
    struct reply *reply = start_list(fixture, "");
    const char *page =
        PAGE("<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>" OBJECT(
            "pre/a", "1"));

    serve(&fixture->server, LIST "pre%2F HTTP", NULL, 0, page);
    serve(&fixture->server, LIST "pre%2F&continuation-token=t HTTP", NULL, 0, page);
    ended(reply, DCTF_ERR_BAD_RESPONSE);
}

static void test_head_is_a_listing_of_one(void **state)
{
    struct fixture *fixture = *state;
    const char *answers[] = {
        PAGE(LAST OBJECT("pre/d/a%20b", "7")), PAGE(LAST OBJECT("pre/d/a%20bc", "7")), PAGE(LAST)};

    for (size_t i = 0; i < 3; i++) {
        struct reply *reply = reply_new();

        reply->head.key = "d/a b";
        reply->head.done = on_head;
        assert_int_equal(fixture->origin->ops->head(fixture->origin, &reply->head), DCTF_OK);
        serve(&fixture->server,
            "GET /bucket/?list-type=2&encoding-type=url&max-keys=1&prefix=pre%2Fd%2Fa%20b HTTP", NULL, 0,
            answers[i]);
        assert_int_equal(await(reply), i == 0 ? DCTF_OK : DCTF_ERR_NOT_FOUND);
        assert_string_equal(reply->names, i == 0 ? "a b 7 e7" : "");
        reply_free(reply);
    }
}

/* --- doctor --- */

struct steps {
    struct dctf_origin *origin;
    char text[1024];
};

static void on_step(void *ctx, const struct dctf_origin_step *step)
{
    struct steps *steps = ctx;
    size_t len = strlen(steps->text);

    snprintf(steps->text + len, sizeof(steps->text) - len, "%s:%s ", step->name,
        step->skipped ? "skipped" : dctf_err_name(step->err));
}

static void *examine(void *ctx)
{
    struct steps *steps = ctx;

    steps->origin->ops->examine(steps->origin, FOREVER_MS, on_step, steps);
    return NULL;
}

static void test_examine_step_by_step(void **state)
{
    struct fixture *fixture = *state;
    struct steps steps = {.origin = fixture->origin};
    pthread_t thread;

    assert_int_equal(dctf_thread_start("examine", examine, &steps, &thread), DCTF_OK);
    serve(&fixture->server, "GET /bucket/?list-type=2&encoding-type=url&max-keys=100&prefix=pre%2F HTTP",
        NULL, 0, PAGE(LAST OBJECT("pre/a%20b", "5") OBJECT("pre/zero", "0") OBJECT("pre/c", "3")));
    serve(&fixture->server, "GET /bucket/pre/c HTTP", NULL, 0,
        OK_206 "ETag: \"e3\"\r\nContent-Length: 3\r\n\r\n123");
    serve(&fixture->server, "GET /bucket/pre/c HTTP", NULL, 0,
        OK_206 "ETag: \"e3\"\r\nContent-Length: 2\r\n\r\n12");
    pthread_join(thread, NULL);
    assert_string_equal(steps.text, "credentials:OK list:OK get:OK range:BAD_RESPONSE ");
}

static void test_examine_ends_at_what_fails(void **state)
{
    struct fixture *fixture = *state;
    struct steps steps = {.origin = fixture->origin};
    pthread_t thread;

    assert_int_equal(dctf_thread_start("examine", examine, &steps, &thread), DCTF_OK);
    serve(&fixture->server, "GET /bucket/?list-type=2", NULL, 0,
        "HTTP/1.1 403 Forbidden\r\nConnection: "
        "close\r\n\r\n<Error><Code>SignatureDoesNotMatch</Code></Error>");
    pthread_join(thread, NULL);
    assert_string_equal(steps.text, "credentials:OK list:ORIGIN_AUTH get:skipped range:skipped ");
}

static void test_check_is_bounded(void **state)
{
    struct fixture *fixture = *state;
    char detail[256];

    /* Nobody accepts. */
    assert_int_equal(fixture->origin->ops->check(fixture->origin, 50, detail), DCTF_ERR_DEADLINE);
    assert_non_null(strstr(detail, "50 ms"));
    /* Let the thread come back, if it had begun at all on a busy machine. */
    if (readable(fixture->server.fd, 1000))
        close(server_accept(&fixture->server));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        OPEN(test_list_pages),
        OPEN(test_list_of_nothing),
        OPEN(test_list_of_hidden_keys),
        OPEN(test_list_of_half_a_document),
        OPEN(test_list_that_never_ends),
        OPEN(test_head_is_a_listing_of_one),
        OPEN(test_examine_step_by_step),
        OPEN(test_examine_ends_at_what_fails),
        OPEN(test_check_is_bounded),
    };

    dctf_log_set_level(DCTF_LOG_ERROR);
    if (!dctf_libs3_lists()) /* no origin can be opened */
        return 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
