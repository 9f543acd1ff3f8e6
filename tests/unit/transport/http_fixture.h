/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests of the HTTP client: a server whose every byte the test sends by hand, from its
 * own thread, and a request whose end can be waited for.
 *
 * Threads:   the server belongs to the test's thread; the fetch's fields are guarded by its lock
 *            until fetch_wait() returned.
 * Ownership: embedded by the test.
 */
#ifndef DCTF_TESTS_HTTP_FIXTURE_H
#define DCTF_TESTS_HTTP_FIXTURE_H

#include "base/thread.h"
#include "transport/http.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
/* cmocka needs setjmp, stdarg and stddef first */
#include <cmocka.h>

#define FOREVER_MS 30000

/* --- the server --- */

struct server {
    int fd;
    int port;
    unsigned accepted;
};

static inline void server_init(struct server *server)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(address);

    server->accepted = 0;
    server->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(server->fd >= 0);
    assert_int_equal(bind(server->fd, (struct sockaddr *)&address, len), 0);
    assert_int_equal(listen(server->fd, 128), 0);
    assert_int_equal(getsockname(server->fd, (struct sockaddr *)&address, &len), 0);
    server->port = ntohs(address.sin_port);
}

static inline void server_fini(struct server *server)
{
    close(server->fd);
}

static inline bool readable(int fd, int ms)
{
    struct pollfd pollfd = {.fd = fd, .events = POLLIN};

    return poll(&pollfd, 1, ms) == 1;
}

static inline int server_accept(struct server *server)
{
    int fd;

    assert_true(readable(server->fd, FOREVER_MS));
    fd = accept4(server->fd, NULL, NULL, SOCK_CLOEXEC);
    assert_true(fd >= 0);
    server->accepted++;
    return fd;
}

/* Read up to the blank line that ends a request's head. */
static inline void server_read_head(int fd, char *out, size_t cap)
{
    size_t len = 0;

    out[0] = '\0';
    while (!strstr(out, "\r\n\r\n")) {
        ssize_t got;

        assert_true(len + 1 < cap);
        assert_true(readable(fd, FOREVER_MS));
        got = recv(fd, out + len, 1, 0);
        assert_int_equal(got, 1);
        out[++len] = '\0';
    }
}

static inline void server_skip_head(int fd)
{
    char head[8192];

    server_read_head(fd, head, sizeof(head));
}

/* A new connection, and a request on it. */
static inline int server_take(struct server *server)
{
    int fd = server_accept(server);

    server_skip_head(fd);
    return fd;
}

static inline void server_read(int fd, char *out, size_t len)
{
    while (len > 0) {
        ssize_t got;

        assert_true(readable(fd, FOREVER_MS));
        got = recv(fd, out, len, 0);
        assert_true(got > 0);
        out += got;
        len -= (size_t)got;
    }
}

/* The client may leave before all is sent. */
static inline bool server_try_send(int fd, const void *data, size_t len)
{
    const char *at = data;

    while (len > 0) {
        ssize_t sent = send(fd, at, len, MSG_NOSIGNAL);

        if (sent <= 0)
            return false;
        at += sent;
        len -= (size_t)sent;
    }
    return true;
}

static inline void server_send(int fd, const char *text)
{
    assert_true(server_try_send(fd, text, strlen(text)));
}

static inline void server_reset(int fd)
{
    struct linger linger = {.l_onoff = 1, .l_linger = 0};

    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)), 0);
    close(fd);
}

/* The client closes the connection. */
static inline void server_await_close(int fd)
{
    char byte;

    assert_true(readable(fd, FOREVER_MS));
    assert_true(recv(fd, &byte, 1, 0) <= 0);
    close(fd);
}

/* --- a request --- */

struct fetch {
    struct dctf_http_request request;
    char url[128];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned heads; /* calls of on_head */
    unsigned ended; /* calls of done */
    enum dctf_err head_err;
    /* What on_head and done saw. */
    int head_status;
    char head_etag[64];
    enum dctf_err err;
    int status;
    size_t len;
    char *body;
    char header[256]; /* of the name in wanted_header */
    const char *wanted_header;
    char text[256];
    bool reused;
    uint64_t first_byte_ns;
    uint64_t total_ns;
};

static inline void copy_text(char *out, size_t cap, const char *text)
{
    snprintf(out, cap, "%s", text ? text : "(none)");
}

static inline enum dctf_err fetch_on_head(
    struct dctf_http_request *request, const struct dctf_http_response *response)
{
    struct fetch *fetch = request->ctx;
    enum dctf_err err;

    pthread_mutex_lock(&fetch->lock);
    fetch->heads++;
    fetch->head_status = response->status;
    copy_text(fetch->head_etag, sizeof(fetch->head_etag), dctf_http_header(response, "etag"));
    err = fetch->head_err;
    pthread_cond_broadcast(&fetch->changed);
    pthread_mutex_unlock(&fetch->lock);
    return err;
}

static inline void fetch_on_done(
    struct dctf_http_request *request, enum dctf_err err, const struct dctf_http_response *response)
{
    struct fetch *fetch = request->ctx;

    pthread_mutex_lock(&fetch->lock);
    fetch->ended++;
    fetch->err = err;
    fetch->status = response->status;
    fetch->len = response->len;
    free(fetch->body);
    fetch->body = response->body ? strdup(response->body) : NULL;
    if (fetch->wanted_header)
        copy_text(fetch->header, sizeof(fetch->header), dctf_http_header(response, fetch->wanted_header));
    copy_text(fetch->text, sizeof(fetch->text), dctf_http_error_text(response));
    fetch->reused = response->reused;
    fetch->first_byte_ns = response->first_byte_ns;
    fetch->total_ns = response->total_ns;
    pthread_cond_broadcast(&fetch->changed);
    pthread_mutex_unlock(&fetch->lock);
}

static inline void fetch_init_url(struct fetch *fetch, const char *url)
{
    memset(fetch, 0, sizeof(*fetch));
    snprintf(fetch->url, sizeof(fetch->url), "%s", url);
    pthread_mutex_init(&fetch->lock, NULL);
    assert_int_equal(dctf_thread_cond_init(&fetch->changed), DCTF_OK);
    fetch->request = (struct dctf_http_request){
        .method = "GET",
        .url = fetch->url,
        .on_head = fetch_on_head,
        .done = fetch_on_done,
        .ctx = fetch,
    };
}

static inline void fetch_init(struct fetch *fetch, const struct server *server, const char *path)
{
    char url[128];

    snprintf(url, sizeof(url), "http://127.0.0.1:%d%s", server->port, path);
    fetch_init_url(fetch, url);
}

static inline void fetch_fini(struct fetch *fetch)
{
    free(fetch->body);
    pthread_cond_destroy(&fetch->changed);
    pthread_mutex_destroy(&fetch->lock);
}

static inline void fetch_start(struct fetch *fetch, struct dctf_http *http)
{
    assert_int_equal(dctf_http_start(http, &fetch->request), DCTF_OK);
}

static inline struct timespec in_ms(int ms)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    ts.tv_sec += ms / 1000;
    ts.tv_nsec += (ms % 1000) * 1000000L;
    if (ts.tv_nsec >= 1000000000L) {
        ts.tv_nsec -= 1000000000L;
        ts.tv_sec++;
    }
    return ts;
}

/* Until `*count` is `least`; the fetch's lock guards it. */
static inline void fetch_await(struct fetch *fetch, const unsigned *count, unsigned least)
{
    struct timespec until = in_ms(FOREVER_MS);
    int rc = 0;

    pthread_mutex_lock(&fetch->lock);
    while (*count < least && !rc)
        rc = pthread_cond_timedwait(&fetch->changed, &fetch->lock, &until);
    pthread_mutex_unlock(&fetch->lock);
    assert_int_equal(rc, 0);
}

static inline enum dctf_err fetch_wait(struct fetch *fetch)
{
    fetch_await(fetch, &fetch->ended, 1);
    assert_int_equal(fetch->ended, 1);
    return fetch->err;
}

#endif
