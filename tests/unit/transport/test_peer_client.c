/* SPDX-License-Identifier: Apache-2.0
 *
 * What the client of peers sends and takes. Its connections, limits and ends: test_peer_client_life.c.
 */
#include "peer_client_fixture.h"

#include "transport/peer_auth.h"

#include <strings.h>

/* One request, one answer; the connection is closed after it. */
struct exchange {
    struct server server;
    struct dctf_peer_client *client;
    struct peer_ask ask;
    int fd;
    char head[8192];
    char *plain; /* blocks asked for */
    size_t len;
};

static void exchange_start(struct exchange *x, enum dctf_peer_op op)
{
    server_init(&x->server);
    x->client = peer_client_new(SECRET, true);
    peer_ask_init(&x->ask, x->server.port, op);
    x->len = (size_t)dctf_peer_ask_bytes(&x->ask.get.ask);
    x->plain = malloc(x->len + 1);
    assert_non_null(x->plain);
    shard_bytes(x->ask.get.ask.first, x->len, x->plain);
}

static void exchange_ask(struct exchange *x)
{
    peer_start(x->client, &x->ask);
    x->fd = server_accept(&x->server);
    server_read_head(x->fd, x->head, sizeof(x->head));
}

static enum dctf_err exchange_end(struct exchange *x)
{
    enum dctf_err err;

    shutdown(x->fd, SHUT_WR);
    err = peer_wait(&x->ask, 1);
    close(x->fd);
    dctf_peer_client_free(x->client);
    server_fini(&x->server);
    free(x->plain);
    return err;
}

/* The reply `text` as it stands. */
static enum dctf_err answer_with(struct exchange *x, enum dctf_peer_op op, const char *text)
{
    exchange_start(x, op);
    exchange_ask(x);
    server_send(x->fd, text);
    return exchange_end(x);
}

/* --- requests --- */

/* Cut a head into headers. */
static size_t cut_head(char *head, struct dctf_peer_header *out, size_t max)
{
    size_t count = 0;
    char *line = strstr(head, "\r\n") + 2;

    while (*line != '\r') {
        char *end = strstr(line, "\r\n");
        char *colon = strchr(line, ':');

        assert_true(end && colon && count < max);
        *end = *colon = '\0';
        out[count++] = (struct dctf_peer_header){line, colon + 1 + strspn(colon + 1, " ")};
        line = end + 2;
    }
    return count;
}

static const char *value_of(const struct dctf_peer_header *headers, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++) {
        if (!strcasecmp(headers[i].name, name))
            return headers[i].value;
    }
    return NULL;
}

static void test_request_says_all_and_is_proved(void **state)
{
    static const char target[] =
        "/v1/blocks/a%20b?ds=0000000000000001&size=1836008&etag=%22e%22&first=6&count=2";
    struct dctf_peer_header headers[24];
    struct dctf_peer_verifier *verifier;
    struct dctf_peer_call call;
    struct dctf_peer_ask parsed;
    struct exchange x;
    size_t count;

    (void)state;
    exchange_start(&x, DCTF_PEER_BLOCKS);
    x.ask.get.class = DCTF_FETCH_PREFETCH;
    x.ask.get.max_rate = 77;
    exchange_ask(&x);
    assert_memory_equal(x.head, "GET ", 4);
    assert_memory_equal(x.head + 4, target, strlen(target));
    assert_memory_equal(x.head + 4 + strlen(target), " HTTP/1.1\r\n", 11);
    assert_int_equal(dctf_peer_target_parse(target, &parsed), DCTF_OK);
    count = cut_head(x.head, headers, COUNT_OF(headers));
    assert_null(value_of(headers, count, "User-Agent"));
    assert_null(value_of(headers, count, "Accept"));
    assert_int_equal(dctf_peer_call_parse(headers, count, &call), DCTF_OK);
    assert_string_equal(call.node, "me");
    assert_int_equal(call.view, 0xabc);
    assert_int_equal(call.class, DCTF_FETCH_PREFETCH);
    assert_int_equal(call.hop, 1);
    assert_int_equal(call.deadline_ms, FOREVER_MS);
    assert_int_equal(call.max_rate, 77);
    assert_true(call.accepts_lz4);
    assert_int_equal(dctf_peer_verifier_new(SECRET, 4, NULL, &verifier), DCTF_OK);
    assert_int_equal(
        dctf_peer_verify(verifier,
            &(struct dctf_peer_auth_input){
                .method = "GET", .target = target, .node = "me", .bound = headers, .bound_count = count},
            value_of(headers, count, "Dctf-Auth")),
        DCTF_OK);
    dctf_peer_verifier_free(verifier);
    server_send(x.fd, "HTTP/1.1 204 None\r\n\r\n");
    assert_int_equal(exchange_end(&x), DCTF_ERR_PEER_ABSENT);
    peer_ask_fini(&x.ask);
}

static void test_request_without_secret(void **state)
{
    struct server server;
    struct dctf_peer_client *client = peer_client_new("", false);
    struct peer_ask ask;
    char head[8192];
    int fd;

    (void)state;
    server_init(&server);
    peer_ask_init(&ask, server.port, DCTF_PEER_BLOCKS);
    peer_start(client, &ask);
    fd = server_accept(&server);
    server_read_head(fd, head, sizeof(head));
    assert_null(strstr(head, "Dctf-Auth"));
    assert_null(strstr(head, "Dctf-Accept"));
    server_send(fd, "HTTP/1.1 204 None\r\n\r\n");
    assert_int_equal(peer_wait(&ask, 1), DCTF_ERR_PEER_ABSENT);
    close(fd);
    dctf_peer_client_free(client);
    server_fini(&server);
    peer_ask_fini(&ask);
}

/* --- blocks --- */

static void test_blocks_plain(void **state)
{
    struct dctf_peer_told told;
    struct exchange x;

    (void)state;
    exchange_start(&x, DCTF_PEER_BLOCKS);
    exchange_ask(&x);
    told_blocks(&x.ask.get.ask, x.plain, &told);
    assert_int_equal(x.len, DCTF_BLOCK_BYTES + TAIL_BYTES);
    send_answer(x.fd, 200, &told, x.plain, x.len);
    assert_int_equal(peer_wait(&x.ask, 1), DCTF_OK);
    assert_memory_equal(x.ask.buf, x.plain, x.len);
    assert_int_equal(x.ask.answer.wire_bytes, x.len);
    assert_int_equal(x.ask.answer.path.rtt_us, 100);
    assert_int_equal(x.ask.answer.path.min_rtt_us, 50);
    assert_int_equal(x.ask.answer.path.rate, 1000);
    assert_int_equal(x.ask.answer.view, 0xdef);
    assert_int_equal(x.ask.answer.decode_ns, 0);
    assert_true(x.ask.answer.from_origin);
    assert_false(x.ask.answer.on_its_way);
    assert_true(x.ask.answer.first_byte_us > 0);
    assert_true(x.ask.answer.total_us >= x.ask.answer.first_byte_us);
    (void)exchange_end(&x);
    peer_ask_fini(&x.ask);
}

static void test_first_byte_is_net_of_the_wait(void **state)
{
    struct dctf_peer_told told;
    struct exchange x;

    (void)state;
    exchange_start(&x, DCTF_PEER_BLOCKS);
    exchange_ask(&x);
    told_blocks(&x.ask.get.ask, x.plain, &told);
    told.wait_us = UINT64_MAX;
    told.from = DCTF_PEER_FROM_CACHE;
    send_answer(x.fd, 200, &told, x.plain, x.len);
    assert_int_equal(exchange_end(&x), DCTF_OK);
    assert_int_equal(x.ask.answer.first_byte_us, 1);
    assert_false(x.ask.answer.from_origin);
    peer_ask_fini(&x.ask);
}

/* Frames of the blocks asked for; returns their length. */
static size_t make_frames(const struct exchange *x, char *out)
{
    size_t done = 0;

    for (size_t at = 0; at < x->len; at += DCTF_BLOCK_BYTES) {
        int level = DCTF_ENCODE_FAST;
        size_t len = x->len - at < DCTF_BLOCK_BYTES ? x->len - at : DCTF_BLOCK_BYTES;

        done += dctf_frame_encode(x->plain + at, len, &level, out + done);
    }
    return done;
}

static void test_blocks_framed(void **state)
{
    struct dctf_peer_told told;
    struct exchange x;
    char *frames = malloc(2 * DCTF_FRAME_MAX);
    size_t len;

    (void)state;
    exchange_start(&x, DCTF_PEER_BLOCKS);
    exchange_ask(&x);
    told_blocks(&x.ask.get.ask, x.plain, &told);
    told.framed = true;
    len = make_frames(&x, frames);
    assert_true(len < x.len);
    send_answer(x.fd, 200, &told, frames, len);
    assert_int_equal(peer_wait(&x.ask, 1), DCTF_OK);
    assert_memory_equal(x.ask.buf, x.plain, x.len);
    assert_int_equal(x.ask.answer.wire_bytes, len);
    assert_true(x.ask.answer.decode_ns > 0);
    (void)exchange_end(&x);
    peer_ask_fini(&x.ask);
    free(frames);
}

static enum dctf_err send_frames(const char *frames, size_t len, struct exchange *x)
{
    struct dctf_peer_told told;
    enum dctf_err err;

    exchange_start(x, DCTF_PEER_BLOCKS);
    exchange_ask(x);
    told_blocks(&x->ask.get.ask, x->plain, &told);
    told.framed = true;
    send_answer(x->fd, 200, &told, frames, len);
    err = exchange_end(x);
    peer_ask_fini(&x->ask);
    return err;
}

static void test_frames_that_are_none(void **state)
{
    struct exchange x;
    char *frames = malloc(3 * DCTF_FRAME_MAX), *bad = calloc(3, DCTF_FRAME_MAX);
    size_t len;

    (void)state;
    exchange_start(&x, DCTF_PEER_BLOCKS);
    len = make_frames(&x, frames);
    dctf_peer_client_free(x.client);
    server_fini(&x.server);
    free(x.plain);
    peer_ask_fini(&x.ask);
    assert_int_equal(send_frames(frames, 0, &x), DCTF_ERR_BAD_RESPONSE);
    assert_int_equal(send_frames(frames, 3, &x), DCTF_ERR_BAD_RESPONSE);
    assert_int_equal(send_frames(frames, len - 1, &x), DCTF_ERR_BAD_RESPONSE);
    memset(frames + len, 0, 8);
    assert_int_equal(send_frames(frames, len + 1, &x), DCTF_ERR_BAD_RESPONSE);
    assert_int_equal(send_frames(bad, 5000, &x), DCTF_ERR_BAD_RESPONSE); /* heads of length zero */
    memset(bad, 0xff, 5000);
    assert_int_equal(send_frames(bad, 5000, &x), DCTF_ERR_BAD_RESPONSE);
    /* More than frames of these blocks can be. */
    assert_int_equal(send_frames(frames, 3 * DCTF_FRAME_MAX, &x), DCTF_ERR_BAD_RESPONSE);
    free(frames);
    free(bad);
}

static void test_checksum_of_each_block(void **state)
{
    char *frames = malloc(2 * DCTF_FRAME_MAX);

    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        struct dctf_peer_told told;
        struct exchange x;
        bool framed = i >= 2;

        exchange_start(&x, DCTF_PEER_BLOCKS);
        exchange_ask(&x);
        told_blocks(&x.ask.get.ask, x.plain, &told);
        told.framed = framed;
        x.plain[i % 2 ? x.len - 1 : 0] ^= 1;
        if (framed)
            send_answer(x.fd, 200, &told, frames, make_frames(&x, frames));
        else
            send_answer(x.fd, 200, &told, x.plain, x.len);
        assert_int_equal(exchange_end(&x), DCTF_ERR_TRANSFER_CHECKSUM);
        peer_ask_fini(&x.ask);
    }
    free(frames);
}

static void test_blocks_of_another_length(void **state)
{
    (void)state;
    for (int more = -1; more <= 1; more += 2) {
        struct dctf_peer_told told;
        struct exchange x;

        exchange_start(&x, DCTF_PEER_BLOCKS);
        exchange_ask(&x);
        told_blocks(&x.ask.get.ask, x.plain, &told);
        x.plain[x.len] = 0;
        send_answer(x.fd, 200, &told, x.plain, x.len + (size_t)more);
        assert_int_equal(exchange_end(&x), DCTF_ERR_BAD_RESPONSE);
        peer_ask_fini(&x.ask);
    }
}

static void test_frames_not_asked_for(void **state)
{
    struct dctf_peer_told told;
    struct exchange x;

    (void)state;
    exchange_start(&x, DCTF_PEER_BLOCKS);
    dctf_peer_client_free(x.client);
    x.client = peer_client_new(SECRET, false);
    exchange_ask(&x);
    told_blocks(&x.ask.get.ask, x.plain, &told);
    told.framed = true;
    send_answer(x.fd, 200, &told, x.plain, x.len);
    assert_int_equal(exchange_end(&x), DCTF_ERR_BAD_RESPONSE);
    peer_ask_fini(&x.ask);
}

/* --- heads and statuses --- */

#define SUM "0123456789abcdef"

static void test_heads_that_do_not_fit(void **state)
{
    static const char *const heads[] = {
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nDctf-Sums: " SUM "\r\nDctf-Encoding: plain\r\nDctf-From: "
        "cache\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nDctf-Sums: " SUM SUM "\r\nDctf-Encoding: zstd\r\nDctf-From: "
        "cache\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nDctf-Sums: " SUM SUM "\r\nDctf-Encoding: plain\r\n\r\n",
        "HTTP/1.1 206 Partial\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 301 Moved\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 412 Changed\r\nContent-Length: 0\r\nDctf-Error: 1001\r\n\r\n",
        "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nDctf-Error: 2022\r\nDctf-Try: a b\r\n\r\n",
        "SSH-2.0-OpenSSH_9.2p1\r\n",
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(heads); i++) {
        struct exchange x;
        enum dctf_err err = answer_with(&x, DCTF_PEER_BLOCKS, heads[i]);

        if (err != DCTF_ERR_BAD_RESPONSE)
            fail_msg("err %d: %s", (int)err, heads[i]);
        peer_ask_fini(&x.ask);
    }
}

static void test_errors_as_the_peer_told(void **state)
{
    static const struct {
        enum dctf_err told, expected;
    } rows[] = {
        {DCTF_ERR_BAD_REQUEST, DCTF_ERR_BAD_REQUEST},
        {DCTF_ERR_PEER_AUTH, DCTF_ERR_PEER_AUTH},
        {DCTF_ERR_NOT_FOUND, DCTF_ERR_NOT_FOUND},
        {DCTF_ERR_VERSION_MISMATCH, DCTF_ERR_VERSION_MISMATCH},
        {DCTF_ERR_ORIGIN_THROTTLED, DCTF_ERR_ORIGIN_THROTTLED},
        {DCTF_ERR_ORIGIN_ACCESS, DCTF_ERR_ORIGIN_ACCESS},
        {DCTF_ERR_CREDENTIALS_NONE, DCTF_ERR_CREDENTIALS_NONE},
        {DCTF_ERR_SHORT_BODY, DCTF_ERR_ORIGIN_IO},
        {DCTF_ERR_DEADLINE, DCTF_ERR_DEADLINE},
        {DCTF_ERR_SHUTTING_DOWN, DCTF_ERR_PEER_GONE},
        {DCTF_ERR_CACHE_IO, DCTF_ERR_PEER_GONE},
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct dctf_peer_told told = {.err = rows[i].told, .view = 5};
        struct exchange x;

        exchange_start(&x, DCTF_PEER_BLOCKS);
        exchange_ask(&x);
        send_answer(x.fd, dctf_peer_status(told.err), &told, "words", 5);
        assert_int_equal(exchange_end(&x), rows[i].expected);
        assert_int_equal(x.ask.answer.view, 5);
        assert_string_equal(x.ask.answer.try, "");
        peer_ask_fini(&x.ask);
    }
}

static void test_busy_says_when_and_where(void **state)
{
    struct dctf_peer_told told = {.err = DCTF_ERR_PEER_BUSY, .retry_ms = 25, .try = "n2,n3"};
    struct exchange x;

    (void)state;
    exchange_start(&x, DCTF_PEER_BLOCKS);
    exchange_ask(&x);
    send_answer(x.fd, 503, &told, "", 0);
    assert_int_equal(exchange_end(&x), DCTF_ERR_PEER_BUSY);
    assert_int_equal(x.ask.answer.retry_ms, 25);
    assert_string_equal(x.ask.answer.try, "n2,n3");
    peer_ask_fini(&x.ask);
}

static void test_something_else_answers(void **state)
{
    struct exchange x;

    (void)state;
    assert_int_equal(answer_with(&x, DCTF_PEER_BLOCKS, "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"),
        DCTF_ERR_PEER_GONE);
    peer_ask_fini(&x.ask);
    assert_int_equal(answer_with(&x, DCTF_PEER_PING, "HTTP/1.1 404 None\r\nContent-Length: 4\r\n\r\nhtml"),
        DCTF_ERR_BAD_RESPONSE);
    peer_ask_fini(&x.ask);
}

/* --- have and ping --- */

static void test_have(void **state)
{
    static const struct {
        const char *reply;
        enum dctf_err err;
        bool on_its_way;
    } rows[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", DCTF_OK, false},
        {"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n", DCTF_OK, true},
        {"HTTP/1.1 204 None\r\n\r\n", DCTF_ERR_PEER_ABSENT, false},
        {"HTTP/1.1 206 Partial\r\nContent-Length: 0\r\n\r\n", DCTF_ERR_BAD_RESPONSE, false},
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct exchange x;

        assert_int_equal(answer_with(&x, DCTF_PEER_HAVE, rows[i].reply), rows[i].err);
        assert_memory_equal(x.head, "GET /v1/have/a%20b?", 19);
        assert_null(strstr(x.head, "Dctf-Accept"));
        assert_int_equal(x.ask.answer.on_its_way, rows[i].on_its_way);
        peer_ask_fini(&x.ask);
    }
}

static void test_ping(void **state)
{
    static const char *const wrong[] = {
        "HTTP/1.1 204 None\r\n\r\n", "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"};
    struct exchange x;

    (void)state;
    assert_int_equal(answer_with(&x, DCTF_PEER_PING,
                         "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nDctf-View: 00000000000000ff\r\n\r\n"),
        DCTF_OK);
    assert_memory_equal(x.head, "GET /v1/ping HTTP/1.1\r\n", 23);
    assert_int_equal(x.ask.answer.view, 0xff);
    assert_true(x.ask.answer.first_byte_us > 0);
    peer_ask_fini(&x.ask);
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        assert_int_equal(answer_with(&x, DCTF_PEER_PING, wrong[i]), DCTF_ERR_BAD_RESPONSE);
        peer_ask_fini(&x.ask);
    }
}

static void test_body_of_a_ping_is_bounded(void **state)
{
    char *body = calloc(1, 100000);
    struct dctf_peer_told told = {0};
    struct exchange x;

    (void)state;
    exchange_start(&x, DCTF_PEER_PING);
    exchange_ask(&x);
    send_answer(x.fd, 200, &told, body, 100000);
    assert_int_equal(exchange_end(&x), DCTF_ERR_BAD_RESPONSE);
    peer_ask_fini(&x.ask);
    free(body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_request_says_all_and_is_proved),
        cmocka_unit_test(test_request_without_secret),
        cmocka_unit_test(test_blocks_plain),
        cmocka_unit_test(test_first_byte_is_net_of_the_wait),
        cmocka_unit_test(test_blocks_framed),
        cmocka_unit_test(test_frames_that_are_none),
        cmocka_unit_test(test_checksum_of_each_block),
        cmocka_unit_test(test_blocks_of_another_length),
        cmocka_unit_test(test_frames_not_asked_for),
        cmocka_unit_test(test_heads_that_do_not_fit),
        cmocka_unit_test(test_errors_as_the_peer_told),
        cmocka_unit_test(test_busy_says_when_and_where),
        cmocka_unit_test(test_something_else_answers),
        cmocka_unit_test(test_have),
        cmocka_unit_test(test_ping),
        cmocka_unit_test(test_body_of_a_ping_is_bounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
