/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests of the peer server: a server whose handler does what the key asked for says, and a client
 * made of plain sockets, so that the test decides about every byte.
 *
 *   now      blocks from memory        framed   the same, told as frames
 *   file     blocks from a file        late     kept until the test answers
 *   here, coming, elsewhere            answers to a `have`
 *   e2001    that error
 *
 * Threads:   handler and release() run on the server's threads; what they leave is guarded by the lock.
 * Ownership: embedded by the test.
 */
#ifndef DCTF_TESTS_PEER_SERVER_FIXTURE_H
#define DCTF_TESTS_PEER_SERVER_FIXTURE_H

#include "base/metric.h"
#include "base/str.h"
#include "base/thread.h"
#include "base/version.h"
#include "transport/peer_auth.h"
#include "transport/peer_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
/* cmocka needs setjmp, stdarg and stddef first */
#include <cmocka.h>

#define FOREVER_MS 30000
#define SECRET "a secret of some length"
#define VIEW 0x1234567890abcdefull
#define SIZE ((size_t)9 * 1024 * 1024 + 12345) /* two extents, the last block not whole */
#define HELD_MAX 64u

struct fixture {
    struct dctf_peer_server *server;
    struct dctf_metrics *metrics;
    int file;
    uint8_t *data; /* the file, mapped */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* guarded by lock */
    unsigned handled, released, replied;
    struct dctf_peer_request *held[HELD_MAX];
    unsigned held_count;
    struct dctf_peer_asked last;
};

static inline void note(struct fixture *fixture, unsigned *counter)
{
    pthread_mutex_lock(&fixture->lock);
    ++*counter;
    pthread_cond_broadcast(&fixture->changed);
    pthread_mutex_unlock(&fixture->lock);
}

static inline void wait_for(struct fixture *fixture, const unsigned *counter, unsigned value)
{
    struct timespec due;

    clock_gettime(CLOCK_MONOTONIC, &due);
    due.tv_sec += FOREVER_MS / 1000;
    pthread_mutex_lock(&fixture->lock);
    while (*counter < value)
        if (pthread_cond_timedwait(&fixture->changed, &fixture->lock, &due))
            break;
    assert_int_equal(*counter, value);
    pthread_mutex_unlock(&fixture->lock);
}

static inline unsigned read_counter(struct fixture *fixture, const unsigned *counter)
{
    unsigned value;

    pthread_mutex_lock(&fixture->lock);
    value = *counter;
    pthread_mutex_unlock(&fixture->lock);
    return value;
}

static inline void release_one(void *ctx)
{
    struct fixture *fixture = ctx;

    note(fixture, &fixture->released);
}

static inline void reply_blocks(struct fixture *fixture, struct dctf_peer_request *request,
    const struct dctf_peer_ask *ask, bool from_file, bool framed)
{
    const struct dctf_peer_origin origin = {.from = DCTF_PEER_FROM_ORIGIN, .waited_us = 77};
    size_t offset = (size_t)ask->first * DCTF_BLOCK_BYTES;
    size_t len = (size_t)dctf_peer_ask_bytes(ask);
    uint64_t sums[DCTF_PEER_BLOCKS_MAX];

    for (uint32_t i = 0; i < ask->count; i++)
        sums[i] = dctf_hash64(
            fixture->data + offset + (size_t)i * DCTF_BLOCK_BYTES, dctf_block_len(ask->size, ask->first + i));
    if (from_file)
        dctf_peer_reply_file(request, fixture->file, offset, len, sums, &origin, release_one, fixture);
    else
        dctf_peer_reply_memory(
            request, fixture->data + offset, len, framed, sums, &origin, release_one, fixture);
}

static inline void hold(struct fixture *fixture, struct dctf_peer_request *request)
{
    pthread_mutex_lock(&fixture->lock);
    assert_true(fixture->held_count < HELD_MAX);
    fixture->held[fixture->held_count++] = request;
    pthread_cond_broadcast(&fixture->changed);
    pthread_mutex_unlock(&fixture->lock);
}

static inline void handle(void *ctx, struct dctf_peer_request *request, const struct dctf_peer_asked *asked)
{
    struct fixture *fixture = ctx;
    const char *key = asked->ask.key;

    pthread_mutex_lock(&fixture->lock);
    fixture->last = *asked;
    pthread_mutex_unlock(&fixture->lock);
    note(fixture, &fixture->handled);
    if (asked->ask.op == DCTF_PEER_HAVE && !strcmp(key, "elsewhere"))
        dctf_peer_reply_spare(request, DCTF_PEER_SPARE_FULL);
    if (asked->ask.op == DCTF_PEER_HAVE)
        dctf_peer_reply_have(request, !strcmp(key, "here"), !strcmp(key, "coming"));
    else if (!strcmp(key, "late"))
        hold(fixture, request);
    else if (key[0] == 'e')
        dctf_peer_reply_error(request, (enum dctf_err)atoi(key + 1), 123, "node-b,node-c");
    else
        reply_blocks(fixture, request, &asked->ask, !strcmp(key, "file"), !strcmp(key, "framed"));
}

static inline uint64_t tell_view(void *ctx)
{
    (void)ctx;
    return VIEW;
}

static inline struct dctf_peer_server_config config_of(struct fixture *fixture)
{
    return (struct dctf_peer_server_config){
        .listen = "127.0.0.1:0",
        .secret = SECRET,
        .threads = 2,
        .metrics = fixture->metrics,
        .handle = handle,
        .view = tell_view,
        .ctx = fixture,
    };
}

static inline void fixture_init(struct fixture *fixture)
{
    *fixture = (struct fixture){0};
    pthread_mutex_init(&fixture->lock, NULL);
    assert_int_equal(dctf_thread_cond_init(&fixture->changed), DCTF_OK);
    assert_int_equal(dctf_metrics_new(&fixture->metrics), DCTF_OK);
    fixture->file = memfd_create("shard", MFD_CLOEXEC);
    assert_true(fixture->file >= 0);
    assert_int_equal(ftruncate(fixture->file, (off_t)SIZE), 0);
    fixture->data = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fixture->file, 0);
    assert_true(fixture->data != MAP_FAILED);
    for (size_t i = 0; i < SIZE; i++)
        fixture->data[i] = (uint8_t)((i * 2654435761u) >> 13);
}

static inline void fixture_start(struct fixture *fixture, const struct dctf_peer_server_config *config)
{
    char detail[256];
    enum dctf_err err;

    fixture_init(fixture);
    if (config) {
        struct dctf_peer_server_config mine = *config;

        mine.ctx = fixture;
        mine.metrics = fixture->metrics;
        err = dctf_peer_server_start(&mine, detail, &fixture->server);
    } else {
        struct dctf_peer_server_config mine = config_of(fixture);

        err = dctf_peer_server_start(&mine, detail, &fixture->server);
    }
    if (err)
        print_error("%s\n", detail);
    assert_int_equal(err, DCTF_OK);
}

static inline void fixture_fini(struct fixture *fixture)
{
    if (fixture->server)
        dctf_peer_server_stop(fixture->server);
    munmap(fixture->data, SIZE);
    close(fixture->file);
    dctf_metrics_free(fixture->metrics);
    pthread_cond_destroy(&fixture->changed);
    pthread_mutex_destroy(&fixture->lock);
}

static inline uint64_t refused_of(struct fixture *fixture)
{
    struct dctf_peer_server_stats stats;

    dctf_peer_server_stats(fixture->server, &stats);
    return stats.refused;
}

/* The only request that is held, taken. */
static inline struct dctf_peer_request *take_held(struct fixture *fixture)
{
    struct dctf_peer_request *request;

    wait_for(fixture, &fixture->held_count, 1);
    pthread_mutex_lock(&fixture->lock);
    request = fixture->held[--fixture->held_count];
    pthread_mutex_unlock(&fixture->lock);
    return request;
}

/* --- the client --- */

static inline bool readable(int fd, int ms)
{
    struct pollfd pollfd = {.fd = fd, .events = POLLIN};

    return poll(&pollfd, 1, ms) == 1;
}

static inline int connect_from(struct fixture *fixture, const char *source, int rcvbuf)
{
    struct sockaddr_in addr = {.sin_family = AF_INET};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    if (rcvbuf)
        assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &rcvbuf, sizeof(rcvbuf)), 0);
    assert_int_equal(inet_pton(AF_INET, source, &addr.sin_addr), 1);
    assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    addr.sin_port = htons((uint16_t)dctf_peer_server_port(fixture->server));
    assert_int_equal(connect(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
    return fd;
}

static inline int connect_to(struct fixture *fixture)
{
    return connect_from(fixture, "127.0.0.1", 0);
}

/* False when the server has closed. */
static inline bool send_bytes(int fd, const void *data, size_t len)
{
    const char *at = data;

    while (len > 0) {
        ssize_t sent = send(fd, at, len, MSG_NOSIGNAL);

        if (sent < 0)
            return false;
        at += sent;
        len -= (size_t)sent;
    }
    return true;
}

static inline bool send_text(int fd, const char *text)
{
    return send_bytes(fd, text, strlen(text));
}

/* A request's head, before it is signed and written. */
struct asking {
    struct dctf_peer_ask ask;
    struct dctf_peer_call call;
    const char *secret; /* NULL: no proof */
};

static inline struct asking asking_of(enum dctf_peer_op op, const char *key, uint32_t first, uint32_t count)
{
    struct asking asking = {
        .ask = {.op = op, .dataset = 7, .etag = "\"v1\"", .size = SIZE, .first = first, .count = count},
        .call = {.node = "node-a", .view = 5, .class = DCTF_FETCH_DEMAND, .hop = 1, .deadline_ms = 4000},
        .secret = SECRET,
    };

    snprintf(asking.ask.key, sizeof(asking.ask.key), "%s", key);
    return asking;
}

struct collected {
    struct dctf_peer_header headers[16];
    size_t count;
};

static inline void collect_header(void *ctx, const char *name, const char *value)
{
    struct collected *collected = ctx;

    assert_true(collected->count < 16);
    collected->headers[collected->count++] =
        (struct dctf_peer_header){.name = strdup(name), .value = strdup(value)};
}

/* Append the whole head to `out`. */
static inline void write_head(struct dctf_str *out, const struct asking *asking)
{
    struct collected collected = {.count = 0};
    struct dctf_peer_auth_input input = {.method = "GET", .node = asking->call.node};
    char auth[DCTF_PEER_AUTH_BYTES];
    struct dctf_str target;

    dctf_str_init(&target);
    dctf_peer_target_write(&target, &asking->ask);
    dctf_peer_call_write(&asking->call, collect_header, &collected);
    input.target = dctf_str_c(&target);
    input.bound = collected.headers;
    input.bound_count = collected.count;
    dctf_str_printf(out, "GET %s HTTP/1.1\r\nHost: peer\r\n", input.target);
    for (size_t i = 0; i < collected.count; i++)
        dctf_str_printf(out, "%s: %s\r\n", collected.headers[i].name, collected.headers[i].value);
    if (asking->secret) {
        assert_int_equal(dctf_peer_auth_sign(asking->secret, &input, NULL, auth), DCTF_OK);
        dctf_str_printf(out, "Dctf-Auth: %s\r\n", auth);
    }
    dctf_str_puts(out, "\r\n");
    for (size_t i = 0; i < collected.count; i++) {
        free((char *)(uintptr_t)collected.headers[i].name);
        free((char *)(uintptr_t)collected.headers[i].value);
    }
    dctf_str_fini(&target);
}

static inline void send_asking(int fd, const struct asking *asking)
{
    struct dctf_str head;

    dctf_str_init(&head);
    write_head(&head, asking);
    assert_int_equal(head.err, DCTF_OK);
    assert_true(send_bytes(fd, head.data, head.len));
    dctf_str_fini(&head);
}

struct answer {
    int status; /* 0: the connection ended before one came */
    char head[8192];
    size_t len;
    uint8_t *body; /* `len` bytes; NULL: none, or cut off */
};

static inline ssize_t read_some(int fd, void *out, size_t len)
{
    assert_true(readable(fd, FOREVER_MS));
    return recv(fd, out, len, 0);
}

static inline const char *header_of(const void *ctx, const char *name)
{
    static __thread char value[4][2048];
    static __thread unsigned turn;
    const struct answer *answer = ctx;
    size_t name_len = strlen(name);

    for (const char *at = strstr(answer->head, "\r\n"); at; at = strstr(at + 2, "\r\n")) {
        const char *line = at + 2;

        if (!strncasecmp(line, name, name_len) && line[name_len] == ':') {
            const char *begin = line + name_len + 1 + strspn(line + name_len + 1, " ");

            turn = (turn + 1) % 4;
            snprintf(value[turn], sizeof(value[turn]), "%.*s", (int)strcspn(begin, "\r"), begin);
            return value[turn];
        }
    }
    return NULL;
}

/* The head of an answer; the body is read by the caller. */
static inline void read_head(int fd, struct answer *answer)
{
    size_t len = 0;
    const char *length;

    *answer = (struct answer){0};
    while (!strstr(answer->head, "\r\n\r\n")) {
        assert_true(len + 1 < sizeof(answer->head));
        if (read_some(fd, answer->head + len, 1) != 1)
            return;
        answer->head[++len] = '\0';
    }
    assert_int_equal(sscanf(answer->head, "HTTP/1.1 %d", &answer->status), 1);
    length = header_of(answer, "Content-Length");
    answer->len = length ? (size_t)strtoull(length, NULL, 10) : 0;
}

static inline void read_answer(int fd, struct answer *answer)
{
    size_t got = 0;

    read_head(fd, answer);
    if (!answer->len)
        return;
    answer->body = malloc(answer->len);
    assert_non_null(answer->body);
    while (got < answer->len) {
        ssize_t n = read_some(fd, answer->body + got, answer->len - got);

        if (n <= 0) {
            free(answer->body);
            answer->body = NULL;
            return;
        }
        got += (size_t)n;
    }
}

static inline void answer_fini(struct answer *answer)
{
    free(answer->body);
    answer->body = NULL;
}

static inline void ask(int fd, const struct asking *asking, struct answer *answer)
{
    send_asking(fd, asking);
    read_answer(fd, answer);
}

/* Whether the server closes the connection, having sent nothing more. */
static inline bool is_closed(int fd)
{
    char byte;

    return read_some(fd, &byte, 1) <= 0;
}

/* One request on a connection of its own: its status. */
static inline int ask_once(struct fixture *fixture, const struct asking *asking)
{
    struct answer answer;
    int fd = connect_to(fixture);

    ask(fd, asking, &answer);
    answer_fini(&answer);
    close(fd);
    return answer.status;
}

static inline void assert_alive(struct fixture *fixture)
{
    struct asking ping = asking_of(DCTF_PEER_PING, "", 0, 0);

    assert_int_equal(ask_once(fixture, &ping), 200);
}

#endif
