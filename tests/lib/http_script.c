/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/http_script.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cmocka.h>

#define THREADS 4

struct http_script {
    http_script_handle *handle;
    void *ctx;
    int listener;
    int stop; /* eventfd, readable from the stop on */
    uint16_t port;
    pthread_t threads[THREADS];
};

/* Wait for `fd`; false when the server stops. */
static bool wait_for(struct http_script *script, int fd)
{
    struct pollfd fds[2] = {{.fd = fd, .events = POLLIN}, {.fd = script->stop, .events = POLLIN}};

    while (poll(fds, 2, -1) < 0)
        continue;
    return !fds[1].revents;
}

/* Read a whole request. */
static bool read_request(struct http_script *script, int fd, struct http_script_request *request)
{
    char all[sizeof(request->head) + sizeof(request->body)];
    char number[4096];
    size_t len = 0;
    size_t head_len;
    size_t body_len;
    char *end;

    do {
        ssize_t n;

        if (len == sizeof(all) - 1 || !wait_for(script, fd))
            return false;
        n = recv(fd, all + len, sizeof(all) - 1 - len, 0);
        if (n <= 0)
            return false;
        len += (size_t)n;
        all[len] = '\0';
        end = strstr(all, "\r\n\r\n");
    } while (!end);
    head_len = (size_t)(end + 4 - all);
    if (sscanf(all, "%15s %1023s", request->method, request->target) != 2)
        return false;
    snprintf(request->head, sizeof(request->head), "%.*s", (int)head_len, all);
    body_len = strtoul(http_script_header(request, "Content-Length", number), NULL, 10);
    if (body_len >= sizeof(request->body))
        return false;
    while (len < head_len + body_len) {
        ssize_t n;

        if (!wait_for(script, fd))
            return false;
        n = recv(fd, all + len, head_len + body_len - len, 0);
        if (n <= 0)
            return false;
        len += (size_t)n;
    }
    memcpy(request->body, all + head_len, body_len);
    request->body[body_len] = '\0';
    return true;
}

static void serve(struct http_script *script, int fd)
{
    struct http_script_request *request = calloc(1, sizeof(*request));
    struct http_script_reply *reply = calloc(1, sizeof(*reply));
    char byte;

    if (request && reply && read_request(script, fd, request)) {
        script->handle(script->ctx, request, reply);
        if (reply->hang)
            while (wait_for(script, fd) && recv(fd, &byte, 1, 0) > 0)
                continue;
        else if (!reply->cut)
            dprintf(fd, "HTTP/1.1 %d Status\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n%s",
                reply->status ? reply->status : 200, strlen(reply->body), reply->body);
    }
    free(request);
    free(reply);
    close(fd);
}

static void *run(void *ctx)
{
    struct http_script *script = ctx;

    while (wait_for(script, script->listener)) {
        int fd = accept4(script->listener, NULL, NULL, SOCK_CLOEXEC);

        if (fd >= 0)
            serve(script, fd);
    }
    return NULL;
}

struct http_script *http_script_start(http_script_handle *handle, void *ctx)
{
    struct http_script *script = calloc(1, sizeof(*script));
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(address);

    assert_non_null(script);
    script->handle = handle;
    script->ctx = ctx;
    script->stop = eventfd(0, EFD_CLOEXEC);
    /* Not blocking: several threads wait for the same connection. */
    script->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_true(script->stop >= 0 && script->listener >= 0);
    assert_int_equal(bind(script->listener, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(script->listener, 64), 0);
    assert_int_equal(getsockname(script->listener, (struct sockaddr *)&address, &len), 0);
    script->port = ntohs(address.sin_port);
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&script->threads[i], NULL, run, script), 0);
    return script;
}

void http_script_stop(struct http_script *script)
{
    uint64_t one = 1;

    assert_int_equal(write(script->stop, &one, sizeof(one)), sizeof(one));
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(script->threads[i], NULL);
    close(script->listener);
    close(script->stop);
    free(script);
}

uint16_t http_script_port(const struct http_script *script)
{
    return script->port;
}

const char *http_script_header(const struct http_script_request *request, const char *name, char out[4096])
{
    size_t len = strlen(name);

    out[0] = '\0';
    for (const char *line = strstr(request->head, "\r\n"); line; line = strstr(line, "\r\n")) {
        line += 2;
        if (!strncasecmp(line, name, len) && line[len] == ':') {
            line += len + 1;
            line += strspn(line, " ");
            snprintf(out, 4096, "%.*s", (int)strcspn(line, "\r\n"), line);
            break;
        }
    }
    return out;
}

const char *http_script_field(const struct http_script_request *request, const char *name, char out[4096])
{
    size_t len = strlen(name);
    size_t n = 0;
    const char *at = request->body;

    out[0] = '\0';
    while (strncmp(at, name, len) != 0 || at[len] != '=') {
        at = strchr(at, '&');
        if (!at++)
            return out;
    }
    for (at += len + 1; *at && *at != '&' && n < 4095; at++) {
        unsigned code;

        if (*at == '%' && sscanf(at + 1, "%2x", &code) == 1) {
            out[n++] = (char)code;
            at += 2;
        } else {
            out[n++] = *at == '+' ? ' ' : *at;
        }
    }
    out[n] = '\0';
    return out;
}
