/* SPDX-License-Identifier: Apache-2.0
 *
 * Limits of the HTTP client: time, connecting, memory.
 */
#include "http_client_fixture.h"

#include "lib/fail_alloc.h"

/* For what shall not take long; nothing waits so long unless the machine is stuck. */
#define LATE_NS 20000000000ull

/* --- limits --- */

static void test_end_silence_before_head(void **state)
{
    struct fetch fetch;
    int fd;

    (void)state;
    fetch_init(&fetch, &server, "/");
    fetch.request.silence_ms = 50;
    fd = begin(&fetch);
    assert_int_equal(fetch_wait(&fetch), DCTF_ERR_DEADLINE);
    assert_int_equal(fetch.status, 0);
    assert_true(fetch.total_ns >= 50000000u && fetch.total_ns < LATE_NS);
    server_await_close(fd);
    fetch_fini(&fetch);
}

static void test_end_silence_in_body(void **state)
{
    struct fetch fetch;
    int fd;

    (void)state;
    fetch_init(&fetch, &server, "/");
    fetch.request.silence_ms = 1000;
    fd = begin(&fetch);
    server_send(fd, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345");
    assert_int_equal(fetch_wait(&fetch), DCTF_ERR_DEADLINE);
    assert_int_equal(fetch.status, 200);
    assert_string_equal(fetch.body, "12345");
    assert_true(fetch.total_ns >= 1000000000u && fetch.total_ns < LATE_NS);
    server_await_close(fd);
    fetch_fini(&fetch);
}

/* Slow but never silent for so long: bytes come all the time, for longer than the limit. */
static void test_slow_bytes_are_not_silence(void **state)
{
    struct fetch fetch;
    int fd;

    (void)state;
    fetch_init(&fetch, &server, "/");
    fetch.request.silence_ms = 1000;
    fd = begin(&fetch);
    server_send(fd, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n");
    for (int i = 0; i < 6; i++) {
        poll(NULL, 0, 250);
        server_send(fd, "x");
    }
    assert_int_equal(fetch_wait(&fetch), DCTF_OK);
    assert_string_equal(fetch.body, "xxxxxx");
    assert_true(fetch.total_ns > 1000000000u);
    close(fd);
    fetch_fini(&fetch);
}

static void test_end_total(void **state)
{
    struct fetch fetch;
    int fd;

    (void)state;
    fetch_init(&fetch, &server, "/");
    fetch.request.silence_ms = FOREVER_MS;
    fetch.request.total_ms = 200;
    fd = begin(&fetch);
    /* As fast as can be, without an end. */
    server_send(fd, "HTTP/1.1 500 Internal Server Error\r\n\r\n");
    while (server_try_send(fd, "0123456789abcdef", 16))
        continue;
    close(fd);
    assert_int_equal(fetch_wait(&fetch), DCTF_ERR_DEADLINE);
    assert_int_equal(fetch.status, 500);
    assert_true(fetch.total_ns >= 200000000u && fetch.total_ns < LATE_NS);
    fetch_fini(&fetch);
}

/* --- connecting --- */

static void test_connect_fails(void **state)
{
    /* Refused; a name that no resolver takes, so that none is asked. */
    struct fetch fetch;
    char url[128];

    (void)state;
    fetch_init(&fetch, &server, "/");
    close(server.fd);
    fetch_start(&fetch, http);
    assert_int_equal(fetch_wait(&fetch), DCTF_ERR_ORIGIN_UNREACHABLE);
    assert_string_not_equal(fetch.text, "");
    fetch_fini(&fetch);

    snprintf(url, sizeof(url), "http://%070d.test/", 0);
    fetch_init_url(&fetch, url);
    fetch_start(&fetch, http);
    assert_int_equal(fetch_wait(&fetch), DCTF_ERR_ORIGIN_UNREACHABLE);
    fetch_fini(&fetch);
    server_init(&server);
}

static void test_proxy_from_environment(void **state)
{
    struct dctf_http_config config = {.loops = 1};
    struct server proxy;
    struct fetch fetch;
    char head[1024];
    char expected[64];
    char url[64];
    int fd;

    (void)state;
    server_init(&proxy);
    snprintf(url, sizeof(url), "http://127.0.0.1:%d", proxy.port);
    assert_int_equal(setenv("http_proxy", url, 1), 0);
    /* The fixture's client has no_proxy. */
    fetch_init(&fetch, &server, "/");
    assert_int_equal(answered(&fetch, "HTTP/1.1 204 No Content\r\n\r\n"), DCTF_OK);
    assert_int_equal(fetch.status, 204);
    fetch_fini(&fetch);
    dctf_http_free(http);

    assert_int_equal(dctf_http_new(&config, &http), DCTF_OK);
    fetch_init(&fetch, &server, "/x");
    fetch_start(&fetch, http);
    fd = server_accept(&proxy);
    server_read_head(fd, head, sizeof(head));
    snprintf(expected, sizeof(expected), "GET http://127.0.0.1:%d/x HTTP/1.1\r\n", server.port);
    assert_ptr_equal(strstr(head, expected), head);
    server_send(fd, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nvia");
    assert_int_equal(fetch_wait(&fetch), DCTF_OK);
    assert_string_equal(fetch.body, "via");
    close(fd);
    fetch_fini(&fetch);
    assert_int_equal(unsetenv("http_proxy"), 0);
    server_fini(&proxy);
}

/* --- memory --- */

static enum dctf_err make_client(void *ctx)
{
    struct dctf_http_config config = {.ca_dir = "/nowhere", .ca_file = "/nowhere/file"};

    return dctf_http_new(&config, ctx);
}

static void drop_client(void *ctx)
{
    dctf_http_free(*(struct dctf_http **)ctx);
}

static void test_new_without_memory(void **state)
{
    void *made;

    (void)state;
    /* The client, three strings, a pool for each of two loops. */
    assert_int_equal(fail_alloc_sweep(make_client, drop_client, &made, &made), 6);
}

static void test_start_without_memory(void **state)
{
    struct fetch fetch;

    (void)state;
    fetch_init(&fetch, &server, "/");
    fail_alloc_arm(1);
    assert_int_equal(dctf_http_start(http, &fetch.request), DCTF_ERR_NO_MEMORY);
    assert_true(fail_alloc_disarm());
    assert_int_equal(fetch.ended, 0);
    fetch_fini(&fetch);
}

/* Runs on the loop's thread, so the next allocation to fail is the body's. */
static enum dctf_err no_memory_from_now(
    struct dctf_http_request *request, const struct dctf_http_response *response)
{
    (void)request;
    (void)response;
    fail_alloc_arm(1);
    return DCTF_OK;
}

static void memory_again(
    struct dctf_http_request *request, enum dctf_err err, const struct dctf_http_response *response)
{
    fail_alloc_disarm();
    fetch_on_done(request, err, response);
}

static void test_collect_without_memory(void **state)
{
    struct fetch fetch;

    (void)state;
    fetch_init(&fetch, &server, "/");
    fetch.request.on_head = no_memory_from_now;
    fetch.request.done = memory_again;
    assert_int_equal(answered(&fetch, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx"), DCTF_ERR_NO_MEMORY);
    assert_string_equal(fetch.body, "");
    fetch_fini(&fetch);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_end_silence_before_head),
        TEST(test_end_silence_in_body),
        TEST(test_slow_bytes_are_not_silence),
        TEST(test_end_total),
        TEST(test_connect_fails),
        TEST(test_proxy_from_environment),
        TEST(test_new_without_memory),
        TEST(test_start_without_memory),
        TEST(test_collect_without_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
