/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of requests and connections of the HTTP client: kept connections, waiting,
 * cancelling, callbacks that start and cancel, freeing.
 */
#include "http_client_fixture.h"

#define OK_X "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx"

static void make(unsigned loops, unsigned connections, unsigned idle)
{
    client_init(&(struct dctf_http_config){
        .loops = loops, .connections = connections, .idle_connections = idle, .no_proxy = true});
}

static struct dctf_http_stats stats(void)
{
    struct dctf_http_stats now;

    dctf_http_stats(http, &now);
    return now;
}

static void init_all(struct fetch *fetches, size_t count)
{
    for (size_t i = 0; i < count; i++)
        fetch_init(&fetches[i], &server, "/");
}

static void fini_all(struct fetch *fetches, size_t count)
{
    for (size_t i = 0; i < count; i++)
        fetch_fini(&fetches[i]);
}

/* --- kept connections --- */

static void test_reuse_connection(void **state)
{
    struct fetch fetches[4];
    int fd = -1;

    (void)state;
    /* One after another: the connection is found, whichever loop has it. */
    make(2, 8, 8);
    init_all(fetches, 4);
    for (size_t i = 0; i < 4; i++) {
        fetch_start(&fetches[i], http);
        if (i == 0)
            fd = server_accept(&server);
        server_skip_head(fd);
        server_send(fd, OK_X);
        assert_int_equal(fetch_wait(&fetches[i]), DCTF_OK);
        assert_int_equal(fetches[i].reused, i > 0);
    }
    assert_int_equal(stats().connects, 1);
    assert_int_equal(stats().running, 0);
    close(fd);
    fini_all(fetches, 4);
}

/* A loop with a kept connection is preferred to one without. */
static void test_reuse_connection_of_any_loop(void **state)
{
    struct fetch fetches[3];
    int fds[2];

    (void)state;
    make(2, 8, 8);
    init_all(fetches, 3);
    for (size_t i = 0; i < 2; i++) {
        fetch_start(&fetches[i], http);
        fds[i] = server_accept(&server);
        server_skip_head(fds[i]);
    }
    server_send(fds[0], "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    server_send(fds[1], OK_X);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(fetch_wait(&fetches[i]), DCTF_OK);
    fetch_start(&fetches[2], http);
    server_skip_head(fds[1]);
    server_send(fds[1], OK_X);
    assert_int_equal(fetch_wait(&fetches[2]), DCTF_OK);
    assert_true(fetches[2].reused);
    assert_int_equal(stats().connects, 2);
    close(fds[0]);
    close(fds[1]);
    fini_all(fetches, 3);
}

/* The server closes a kept connection at the moment the next request comes. */
static void test_retry_on_fresh_connection(void **state)
{
    static const char *const methods[] = {"GET", "PUT", "POST"};

    (void)state;
    make(1, 4, 4);
    for (size_t i = 0; i < 3; i++) {
        for (int reset = 0; reset < 2; reset++) {
            struct fetch fetches[2];
            char got[4];
            int fd;

            init_all(fetches, 2);
            fd = begin(&fetches[0]);
            server_send(fd, OK_X);
            assert_int_equal(fetch_wait(&fetches[0]), DCTF_OK);

            fetches[1].request.method = methods[i];
            if (i > 0) {
                fetches[1].request.body = "body";
                fetches[1].request.body_len = 4;
            }
            fetch_start(&fetches[1], http);
            server_skip_head(fd);
            if (i > 0)
                server_read(fd, got, 4);
            if (reset)
                server_reset(fd);
            else
                close(fd);
            fd = server_take(&server);
            if (i > 0) {
                server_read(fd, got, 4);
                assert_memory_equal(got, "body", 4);
            }
            server_send(fd, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
            assert_int_equal(fetch_wait(&fetches[1]), DCTF_OK);
            assert_string_equal(fetches[1].body, "ok");
            assert_int_equal(fetches[1].heads, 1);
            assert_false(fetches[1].reused);
            close(fd);
            fini_all(fetches, 2);
        }
    }
}

/* A kept connection that breaks after the response began is the caller's to retry. */
static void test_no_retry_after_first_byte(void **state)
{
    struct fetch fetches[2];
    int fd;

    (void)state;
    make(1, 4, 4);
    init_all(fetches, 2);
    fd = begin(&fetches[0]);
    server_send(fd, OK_X);
    assert_int_equal(fetch_wait(&fetches[0]), DCTF_OK);
    fetch_start(&fetches[1], http);
    server_skip_head(fd);
    server_send(fd, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n");
    fetch_await(&fetches[1], &fetches[1].heads, 1);
    close(fd);
    assert_int_equal(fetch_wait(&fetches[1]), DCTF_ERR_SHORT_BODY);
    assert_true(fetches[1].reused);
    assert_false(readable(server.fd, 0));
    fini_all(fetches, 2);
}

/* Events of kept connections: a request is answered, what was closed is closed and counted.
 * True: there was a request. */
static bool serve_kept(struct pollfd *fds, size_t count, size_t *closed)
{
    bool answered = false;

    assert_true(poll(fds, count, FOREVER_MS) > 0);
    for (size_t i = 0; i < count; i++) {
        char byte;

        if (fds[i].fd < 0 || !fds[i].revents)
            continue;
        if (recv(fds[i].fd, &byte, 1, MSG_PEEK) > 0) {
            server_skip_head(fds[i].fd);
            server_send(fds[i].fd, OK_X);
            answered = true;
        } else {
            close(fds[i].fd);
            fds[i].fd = -1;
            (*closed)++;
        }
    }
    return answered;
}

static void test_idle_connections_are_bounded(void **state)
{
    struct fetch fetches[4];
    struct fetch more;
    struct pollfd fds[4];
    size_t closed = 0;

    (void)state;
    make(1, 4, 1);
    init_all(fetches, 4);
    for (size_t i = 0; i < 4; i++)
        fetch_start(&fetches[i], http);
    for (size_t i = 0; i < 4; i++) {
        fds[i] = (struct pollfd){.fd = server_accept(&server), .events = POLLIN};
        server_skip_head(fds[i].fd);
    }
    for (size_t i = 0; i < 4; i++)
        server_send(fds[i].fd, OK_X);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(fetch_wait(&fetches[i]), DCTF_OK);
    fini_all(fetches, 4);
    /* The more of a burst are given up while other requests end. */
    for (size_t i = 0; i < 5; i++) {
        fetch_init(&more, &server, "/");
        fetch_start(&more, http);
        while (!serve_kept(fds, 4, &closed))
            continue;
        assert_int_equal(fetch_wait(&more), DCTF_OK);
        assert_true(more.reused);
        fetch_fini(&more);
    }
    while (closed < 3)
        serve_kept(fds, 4, &closed);
    assert_int_equal(server.accepted, 4);
    for (size_t i = 0; i < 4; i++)
        if (fds[i].fd >= 0)
            close(fds[i].fd);
}

/* --- several at once --- */

static void test_answer_in_reverse(void **state)
{
    struct fetch fetches[8];
    int fds[8];
    char body[64];

    (void)state;
    make(2, 8, 8);
    for (size_t i = 0; i < 8; i++) {
        char path[8];

        snprintf(path, sizeof(path), "/%zu", i);
        fetch_init(&fetches[i], &server, path);
        fetch_start(&fetches[i], http);
    }
    for (size_t i = 0; i < 8; i++) {
        char head[1024];
        int fd = server_accept(&server);

        server_read_head(fd, head, sizeof(head));
        fds[head[5] - '0'] = fd;
    }
    assert_int_equal(stats().running, 8);
    for (size_t i = 8; i-- > 0;) {
        snprintf(body, sizeof(body), "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%zu", i);
        server_send(fds[i], body);
        assert_int_equal(fetch_wait(&fetches[i]), DCTF_OK);
        assert_int_equal(fetches[i].body[0] - '0', i);
        close(fds[i]);
    }
    fini_all(fetches, 8);
}

static void test_wait_for_connection(void **state)
{
    struct fetch fetches[5];
    int fd;

    (void)state;
    make(2, 1, 1);
    init_all(fetches, 5);
    fetches[2].request.total_ms = 50;
    for (size_t i = 0; i < 5; i++)
        fetch_start(&fetches[i], http);
    fd = server_take(&server);
    /* Those that wait can be cancelled and run out of time while nothing else happens. */
    dctf_http_cancel(http, &fetches[1].request);
    assert_int_equal(fetch_wait(&fetches[1]), DCTF_ERR_CANCELLED);
    assert_int_equal(fetch_wait(&fetches[2]), DCTF_ERR_DEADLINE);
    assert_true(fetches[2].total_ns >= 50000000u);
    assert_int_equal(stats().running, 1);
    assert_int_equal(stats().waiting, 2);
    assert_int_equal(fetches[0].ended, 0);
    server_send(fd, OK_X);
    assert_int_equal(fetch_wait(&fetches[0]), DCTF_OK);
    for (size_t i = 3; i < 5; i++) {
        server_skip_head(fd);
        server_send(fd, OK_X);
        assert_int_equal(fetch_wait(&fetches[i]), DCTF_OK);
    }
    assert_int_equal(stats().running, 0);
    assert_int_equal(stats().waiting, 0);
    assert_int_equal(server.accepted, 1);
    close(fd);
    fini_all(fetches, 5);
}

/* --- cancel --- */

static void test_cancel_running(void **state)
{
    struct fetch fetch;
    int fd;

    (void)state;
    make(1, 4, 4);
    for (int in_body = 0; in_body < 2; in_body++) {
        fetch_init(&fetch, &server, "/");
        fd = begin(&fetch);
        if (in_body) {
            server_send(fd, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n");
            fetch_await(&fetch, &fetch.heads, 1);
        }
        dctf_http_cancel(http, &fetch.request);
        dctf_http_cancel(http, &fetch.request);
        assert_int_equal(fetch_wait(&fetch), DCTF_ERR_CANCELLED);
        assert_int_equal(fetch.status, in_body ? 200 : 0);
        server_await_close(fd);
        fetch_fini(&fetch);
    }
    assert_int_equal(stats().running, 0);
}

static void test_cancel_at_once(void **state)
{
    struct fetch fetch;

    (void)state;
    make(1, 4, 4);
    for (int i = 0; i < 200; i++) {
        fetch_init(&fetch, &server, "/");
        fetch_start(&fetch, http);
        dctf_http_cancel(http, &fetch.request);
        assert_int_equal(fetch_wait(&fetch), DCTF_ERR_CANCELLED);
        fetch_fini(&fetch);
    }
}

static void test_cancel_unknown(void **state)
{
    struct fetch fetch;
    int fd;

    (void)state;
    make(1, 4, 4);
    fetch_init(&fetch, &server, "/");
    dctf_http_cancel(http, &fetch.request);
    /* Never dereferenced: no request is there. */
    dctf_http_cancel(http, (struct dctf_http_request *)(uintptr_t)16);
    fd = begin(&fetch);
    server_send(fd, OK_X);
    assert_int_equal(fetch_wait(&fetch), DCTF_OK);
    dctf_http_cancel(http, &fetch.request);
    assert_int_equal(fetch.ended, 1);
    close(fd);
    fetch_fini(&fetch);
}

static struct fetch *to_cancel;

static void cancel_other(
    struct dctf_http_request *request, enum dctf_err err, const struct dctf_http_response *response)
{
    dctf_http_cancel(http, &to_cancel->request);
    dctf_http_cancel(http, request); /* itself: not held any more */
    fetch_on_done(request, err, response);
}

static enum dctf_err cancel_itself(
    struct dctf_http_request *request, const struct dctf_http_response *response)
{
    dctf_http_cancel(http, request);
    return fetch_on_head(request, response);
}

static void test_cancel_in_callbacks(void **state)
{
    struct fetch fetches[3];
    int fds[3];

    (void)state;
    make(1, 4, 4);
    init_all(fetches, 3);
    fetches[0].request.done = cancel_other;
    to_cancel = &fetches[1];
    fetches[2].request.on_head = cancel_itself;
    for (size_t i = 0; i < 3; i++) {
        fetch_start(&fetches[i], http);
        fds[i] = server_accept(&server);
        server_skip_head(fds[i]);
    }
    server_send(fds[0], OK_X);
    assert_int_equal(fetch_wait(&fetches[0]), DCTF_OK);
    assert_int_equal(fetch_wait(&fetches[1]), DCTF_ERR_CANCELLED);
    server_send(fds[2], "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nx");
    assert_int_equal(fetch_wait(&fetches[2]), DCTF_ERR_CANCELLED);
    for (size_t i = 0; i < 3; i++)
        close(fds[i]);
    fini_all(fetches, 3);
}

/* --- start in callbacks --- */

static unsigned rounds;

static void start_again(
    struct dctf_http_request *request, enum dctf_err err, const struct dctf_http_response *response)
{
    if (!err && --rounds > 0)
        err = dctf_http_start(http, request); /* the same one: it is not held any more */
    else
        rounds = 0;
    if (err || rounds == 0)
        fetch_on_done(request, err, response);
}

static void test_start_in_done(void **state)
{
    struct fetch fetch;
    int fd;

    (void)state;
    make(1, 1, 1);
    fetch_init(&fetch, &server, "/");
    fetch.request.done = start_again;
    rounds = 20;
    fetch_start(&fetch, http);
    fd = server_accept(&server);
    for (int i = 0; i < 20; i++) {
        server_skip_head(fd);
        server_send(fd, OK_X);
    }
    assert_int_equal(fetch_wait(&fetch), DCTF_OK);
    assert_int_equal(fetch.heads, 20);
    assert_int_equal(server.accepted, 1);
    close(fd);
    fetch_fini(&fetch);
}

/* --- free --- */

static enum dctf_err start_while_closing;

static void try_start(
    struct dctf_http_request *request, enum dctf_err err, const struct dctf_http_response *response)
{
    start_while_closing = dctf_http_start(http, request);
    fetch_on_done(request, err, response);
}

static void test_free_ends_all(void **state)
{
    struct fetch fetches[6];
    int fds[3];

    (void)state;
    make(2, 3, 3);
    init_all(fetches, 6);
    fetches[0].request.done = try_start;
    for (size_t i = 0; i < 6; i++)
        fetch_start(&fetches[i], http);
    for (size_t i = 0; i < 3; i++)
        fds[i] = server_accept(&server);
    dctf_http_free(http);
    http = NULL;
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(fetches[i].ended, 1);
        assert_int_equal(fetches[i].err, DCTF_ERR_SHUTTING_DOWN);
    }
    assert_int_equal(start_while_closing, DCTF_ERR_SHUTTING_DOWN);
    for (size_t i = 0; i < 3; i++)
        close(fds[i]);
    fini_all(fetches, 6);
}

/* --- blocking call --- */

struct caller {
    struct dctf_http_request request;
    enum dctf_err err;
    int status;
    char *body;
};

static void *call_main(void *arg)
{
    struct caller *caller = arg;

    caller->err = dctf_http_call(http, &caller->request, &caller->status, &caller->body);
    return NULL;
}

static void test_call(void **state)
{
    struct caller caller = {.request = {.method = "PUT", .body = "q", .body_len = 1, .silence_ms = 200}};
    char url[64];

    (void)state;
    make(1, 4, 4);
    snprintf(url, sizeof(url), "http://127.0.0.1:%d/", server.port);
    caller.request.url = url;
    for (int answer = 0; answer < 2; answer++) {
        pthread_t thread;
        int fd;

        caller.request.silence_ms = answer ? FOREVER_MS : 50;
        assert_int_equal(dctf_thread_start("call", call_main, &caller, &thread), DCTF_OK);
        fd = server_take(&server);
        if (answer)
            server_send(fd, "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno");
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_int_equal(caller.err, answer ? DCTF_OK : DCTF_ERR_DEADLINE);
        assert_int_equal(caller.status, answer ? 403 : 0);
        if (answer)
            assert_string_equal(caller.body, "no");
        else
            assert_null(caller.body);
        free(caller.body);
        close(fd);
    }
    assert_int_equal(dctf_http_call(http, &(struct dctf_http_request){.method = "GET", .url = "x:"},
                         &caller.status, &caller.body),
        DCTF_ERR_INTERNAL);
    assert_null(caller.body);
}

#define TEST(name) cmocka_unit_test_teardown(name, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_reuse_connection),
        TEST(test_reuse_connection_of_any_loop),
        TEST(test_retry_on_fresh_connection),
        TEST(test_no_retry_after_first_byte),
        TEST(test_idle_connections_are_bounded),
        TEST(test_answer_in_reverse),
        TEST(test_wait_for_connection),
        TEST(test_cancel_running),
        TEST(test_cancel_at_once),
        TEST(test_cancel_unknown),
        TEST(test_cancel_in_callbacks),
        TEST(test_start_in_done),
        TEST(test_free_ends_all),
        TEST(test_call),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
