/* SPDX-License-Identifier: Apache-2.0
 *
 * What the HTTP client sends and what it makes of answers, byte by byte.
 */
#include "http_client_fixture.h"

/* --- answers --- */

static void test_get_into_buffer(void **state)
{
    struct fetch fetch;
    char buf[16] = "................";
    char head[2048];
    int fd;

    (void)state;
    fetch_init(&fetch, &server, "/a/../b//%2f?x=1&y=%2F");
    fetch.request.buf = buf;
    fetch.request.buf_len = sizeof(buf);
    fetch.wanted_header = "X-Twice";
    fetch_start(&fetch, http);
    fd = server_accept(&server);
    server_read_head(fd, head, sizeof(head));
    assert_ptr_equal(strstr(head, "GET /a/../b//%2f?x=1&y=%2F HTTP/1.1\r\n"), head);
    assert_non_null(strstr(head, "\r\nHost: 127.0.0.1:"));
    assert_non_null(strstr(head, "\r\nUser-Agent: dctffs/" DCTF_VERSION "\r\n"));
    assert_null(strcasestr(head, "\r\nexpect:"));
    assert_null(strcasestr(head, "\r\naccept-encoding:"));
    server_send(fd, "HTTP/1.1 206 Partial Content\r\nETag: \"e\"\r\nX-Twice: 1\r\nx-twice: 2\r\n"
                    "Content-Length: 5\r\n\r\nhello");
    assert_int_equal(fetch_wait(&fetch), DCTF_OK);
    assert_int_equal(fetch.status, 206);
    assert_int_equal(fetch.len, 5);
    assert_null(fetch.body);
    assert_memory_equal(buf, "hello...........", 16);
    assert_int_equal(fetch.heads, 1);
    assert_int_equal(fetch.head_status, 206);
    assert_string_equal(fetch.head_etag, "\"e\"");
    assert_string_equal(fetch.header, "2");
    assert_string_equal(fetch.text, "");
    assert_false(fetch.reused);
    assert_true(fetch.first_byte_ns > 0 && fetch.first_byte_ns < fetch.total_ns);
    close(fd);
    fetch_fini(&fetch);
}

static void test_get_large(void **state)
{
    size_t len = (8u << 20) + 3;
    char *sent = malloc(len);
    char *buf = calloc(1, len);
    char head[128];
    struct fetch fetch;
    int fd;

    (void)state;
    for (size_t i = 0; i < len; i++)
        sent[i] = (char)(i * 2654435761u >> 24);
    fetch_init(&fetch, &server, "/");
    fetch.request.buf = buf;
    fetch.request.buf_len = len;
    fd = begin(&fetch);
    snprintf(head, sizeof(head), "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n", len);
    server_send(fd, head);
    assert_true(server_try_send(fd, sent, len));
    assert_int_equal(fetch_wait(&fetch), DCTF_OK);
    assert_int_equal(fetch.len, len);
    assert_memory_equal(buf, sent, len);
    close(fd);
    fetch_fini(&fetch);
    free(buf);
    free(sent);
}

static void test_get_collected_in_chunks(void **state)
{
    struct fetch fetch;

    (void)state;
    fetch_init(&fetch, &server, "/");
    fetch.request.on_head = NULL;
    fetch.wanted_header = "X-Trailer";
    assert_int_equal(answered(&fetch, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                                      "3\r\nabc\r\n4;ext=1\r\ndefg\r\n0\r\nX-Trailer: 1\r\n\r\n"),
        DCTF_OK);
    assert_string_equal(fetch.body, "abcdefg");
    assert_int_equal(fetch.len, 7);
    assert_string_equal(fetch.header, "(none)");
    fetch_fini(&fetch);
}

static void test_get_until_close(void **state)
{
    struct fetch fetch;

    (void)state;
    fetch_init(&fetch, &server, "/");
    assert_int_equal(answered(&fetch, "HTTP/1.0 200 OK\r\n\r\nall of it"), DCTF_OK);
    assert_string_equal(fetch.body, "all of it");
    fetch_fini(&fetch);
}

static void test_get_error_body_is_collected(void **state)
{
    struct fetch fetch;
    char buf[4] = "....";

    (void)state;
    fetch_init(&fetch, &server, "/");
    fetch.request.buf = buf;
    fetch.request.buf_len = sizeof(buf);
    fetch.request.collect_max = 6;
    assert_int_equal(
        answered(&fetch, "HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nnot found"), DCTF_OK);
    assert_int_equal(fetch.status, 404);
    assert_string_equal(fetch.body, "not fo");
    assert_int_equal(fetch.len, 6);
    assert_memory_equal(buf, "....", 4);
    fetch_fini(&fetch);
}

static void test_get_redirect_is_an_answer(void **state)
{
    struct fetch fetch;

    (void)state;
    fetch_init(&fetch, &server, "/");
    fetch.wanted_header = "location";
    assert_int_equal(answered(&fetch, "HTTP/1.1 307 Temporary Redirect\r\nLocation: /elsewhere\r\n"
                                      "Content-Length: 0\r\n\r\n"),
        DCTF_OK);
    assert_int_equal(fetch.status, 307);
    assert_string_equal(fetch.header, "/elsewhere");
    assert_string_equal(fetch.body, "");
    fetch_fini(&fetch);
}

static void test_get_interim_answers(void **state)
{
    struct fetch fetch;

    (void)state;
    fetch_init(&fetch, &server, "/");
    fetch.wanted_header = "etag";
    assert_int_equal(
        answered(&fetch, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nETag: no\r\n\r\n"
                         "HTTP/1.1 200 OK\r\nETag: yes\r\nContent-Length: 1\r\n\r\nx"),
        DCTF_OK);
    assert_int_equal(fetch.heads, 1);
    assert_int_equal(fetch.head_status, 200);
    assert_string_equal(fetch.header, "yes");
    assert_string_equal(fetch.body, "x");
    fetch_fini(&fetch);
}

static void test_get_too_long(void **state)
{
    struct fetch fetch;
    char buf[4];

    (void)state;
    fetch_init(&fetch, &server, "/");
    fetch.request.buf = buf;
    fetch.request.buf_len = sizeof(buf);
    assert_int_equal(
        answered(&fetch, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n12345"), DCTF_ERR_BAD_RESPONSE);
    assert_int_equal(fetch.status, 200);
    fetch_fini(&fetch);

    fetch_init(&fetch, &server, "/");
    fetch.request.collect_max = 4;
    assert_int_equal(
        answered(&fetch, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n12345"), DCTF_ERR_BAD_RESPONSE);
    fetch_fini(&fetch);
}

static void test_get_cut_body(void **state)
{
    static const char *const answers[] = {
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n5\r\n",
        "HTTP/1.1 404 Not Found\r\nContent-Length: 10\r\n\r\n12345",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
        struct fetch fetch;

        fetch_init(&fetch, &server, "/");
        assert_int_equal(answered(&fetch, answers[i]), DCTF_ERR_SHORT_BODY);
        assert_int_equal(fetch.len, 5);
        assert_string_not_equal(fetch.text, "");
        fetch_fini(&fetch);
    }
}

static void test_get_reset(void **state)
{
    struct fetch fetch;
    int fd;

    (void)state;
    fetch_init(&fetch, &server, "/");
    fd = begin(&fetch);
    server_send(fd, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345");
    fetch_await(&fetch, &fetch.heads, 1);
    server_reset(fd);
    assert_int_equal(fetch_wait(&fetch), DCTF_ERR_ORIGIN_IO);
    fetch_fini(&fetch);

    fetch_init(&fetch, &server, "/");
    server_reset(begin(&fetch));
    assert_int_equal(fetch_wait(&fetch), DCTF_ERR_ORIGIN_IO);
    assert_int_equal(fetch.status, 0);
    assert_int_equal(fetch.first_byte_ns, 0);
    fetch_fini(&fetch);
    assert_int_equal(server.accepted, 2);
}

static void test_get_closed_without_answer(void **state)
{
    struct fetch fetch;

    (void)state;
    fetch_init(&fetch, &server, "/");
    assert_int_equal(answered(&fetch, ""), DCTF_ERR_ORIGIN_IO);
    /* A connection of its own: not tried again. */
    assert_int_equal(server.accepted, 1);
    assert_int_equal(fetch.status, 0);
    assert_string_equal(fetch.body, "");
    fetch_fini(&fetch);
}

static void test_get_garbage(void **state)
{
    struct fetch fetch;

    (void)state;
    fetch_init(&fetch, &server, "/");
    assert_int_equal(answered(&fetch, "\x16\x03\x01garbage\nmore\n\n"), DCTF_ERR_BAD_RESPONSE);
    assert_int_equal(fetch.heads, 0);
    fetch_fini(&fetch);
}

/* Many headers, and one that is very long. */
static void test_get_huge_head(void **state)
{
    char line[1024 + 1];

    (void)state;
    memset(line, 'x', 1024);
    line[1024] = '\0';
    for (int once = 0; once < 2; once++) {
        struct fetch fetch;
        int fd;

        fetch_init(&fetch, &server, "/");
        fd = begin(&fetch);
        server_send(fd, "HTTP/1.1 200 OK\r\nX-First: ");
        for (int i = 0; i < 1024; i++) {
            bool sent = server_try_send(fd, line, 1024);

            if (!sent || (!once && !server_try_send(fd, "\r\nX-More: ", 10)))
                break;
        }
        server_try_send(fd, "\r\n\r\n", 4);
        assert_int_equal(fetch_wait(&fetch), DCTF_ERR_BAD_RESPONSE);
        assert_int_equal(fetch.heads, 0);
        close(fd);
        fetch_fini(&fetch);
    }
}

static void test_head_refused(void **state)
{
    struct fetch fetch;
    int fd;

    (void)state;
    fetch_init(&fetch, &server, "/");
    fetch.head_err = DCTF_ERR_VERSION_MISMATCH;
    fetch.wanted_header = "ETag";
    fd = begin(&fetch);
    server_send(fd, "HTTP/1.1 200 OK\r\nETag: \"other\"\r\nContent-Length: 1000000\r\n\r\nxyz");
    assert_int_equal(fetch_wait(&fetch), DCTF_ERR_VERSION_MISMATCH);
    assert_int_equal(fetch.status, 200);
    assert_string_equal(fetch.header, "\"other\"");
    assert_int_equal(fetch.len, 0);
    server_await_close(fd);
    fetch_fini(&fetch);
}

/* --- other methods --- */

static void test_head(void **state)
{
    struct fetch fetch;
    char head[1024];
    int fd;

    (void)state;
    fetch_init(&fetch, &server, "/");
    fetch.request.method = "HEAD";
    fetch.wanted_header = "Content-Length";
    fetch_start(&fetch, http);
    fd = server_accept(&server);
    server_read_head(fd, head, sizeof(head));
    assert_ptr_equal(strstr(head, "HEAD / HTTP/1.1\r\n"), head);
    server_send(fd, "HTTP/1.1 200 OK\r\nContent-Length: 1234567890123\r\n\r\n");
    assert_int_equal(fetch_wait(&fetch), DCTF_OK);
    assert_string_equal(fetch.header, "1234567890123");
    assert_string_equal(fetch.body, "");
    close(fd);
    fetch_fini(&fetch);
}

static void test_put_and_post(void **state)
{
    static const char *const headers[] = {"Content-Type: text/plain", "Accept:", "Host: other.test"};
    static const char *const methods[] = {"PUT", "POST"};
    /* libcurl would ask before it sends as much as the last one. */
    static const size_t lens[] = {0, 1, 100000, 2u << 20};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        for (size_t j = 0; j < sizeof(lens) / sizeof(lens[0]); j++) {
            size_t len = lens[j];
            char *body = malloc(len + 1);
            char *got = malloc(len + 1);
            char head[1024];
            char expected[64];
            struct fetch fetch;
            int fd;

            for (size_t at = 0; at < len; at++)
                body[at] = (char)(at * 31 >> 4);
            fetch_init(&fetch, &server, "/");
            fetch.request.method = methods[i];
            fetch.request.headers = headers;
            fetch.request.header_count = 3;
            fetch.request.body = len > 0 ? body : NULL;
            fetch.request.body_len = len;
            fetch_start(&fetch, http);
            fd = server_accept(&server);
            server_read_head(fd, head, sizeof(head));
            assert_memory_equal(head, methods[i], strlen(methods[i]));
            snprintf(expected, sizeof(expected), "\r\nContent-Length: %zu\r\n", len);
            assert_non_null(strstr(head, expected));
            assert_non_null(strstr(head, "\r\nContent-Type: text/plain\r\n"));
            assert_non_null(strstr(head, "\r\nHost: other.test\r\n"));
            assert_null(strstr(head, "\r\nAccept:"));
            assert_null(strstr(head, "\r\nExpect:"));
            server_read(fd, got, len);
            assert_memory_equal(got, body, len);
            server_send(fd, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\ntoken");
            assert_int_equal(fetch_wait(&fetch), DCTF_OK);
            assert_string_equal(fetch.body, "token");
            close(fd);
            fetch_fini(&fetch);
            free(got);
            free(body);
        }
    }
}

static void test_start_refuses(void **state)
{
    static const char *const urls[] = {"", "ftp://127.0.0.1/", "file:///etc/passwd", "http://", "http:///x",
        "http://127.0.0.1/a b", "http://127.0.0.1/a\nb", "http://127.0.0.1/\xc3\xa4"};
    static const char *const headers[] = {"", "no colon", ": no name", "X: 1\r\nY: 2", "X: 1\n"};
    struct fetch fetch;

    (void)state;
    for (size_t i = 0; i < sizeof(urls) / sizeof(urls[0]); i++) {
        fetch_init_url(&fetch, urls[i]);
        assert_int_equal(dctf_http_start(http, &fetch.request), DCTF_ERR_INTERNAL);
        fetch_fini(&fetch);
    }
    for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++) {
        fetch_init(&fetch, &server, "/");
        fetch.request.headers = &headers[i];
        fetch.request.header_count = 1;
        assert_int_equal(dctf_http_start(http, &fetch.request), DCTF_ERR_INTERNAL);
        fetch_fini(&fetch);
    }
    fetch_init(&fetch, &server, "/");
    fetch.request.method = "BREW";
    assert_int_equal(dctf_http_start(http, &fetch.request), DCTF_ERR_INTERNAL);
    assert_int_equal(fetch.ended, 0);
    fetch_fini(&fetch);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_get_into_buffer),
        TEST(test_get_large),
        TEST(test_get_collected_in_chunks),
        TEST(test_get_until_close),
        TEST(test_get_error_body_is_collected),
        TEST(test_get_redirect_is_an_answer),
        TEST(test_get_interim_answers),
        TEST(test_get_too_long),
        TEST(test_get_cut_body),
        TEST(test_get_reset),
        TEST(test_get_closed_without_answer),
        TEST(test_get_garbage),
        TEST(test_get_huge_head),
        TEST(test_head_refused),
        TEST(test_head),
        TEST(test_put_and_post),
        TEST(test_start_refuses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
