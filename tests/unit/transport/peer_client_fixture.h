/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests of the client of peers: a request whose end can be waited for, and answers composed by hand. The
 * server is that of http_fixture.h.
 *
 * Threads:   a wait's fields are guarded by its lock until peer_wait() returned.
 * Ownership: embedded by the test.
 */
#ifndef DCTF_TESTS_PEER_CLIENT_FIXTURE_H
#define DCTF_TESTS_PEER_CLIENT_FIXTURE_H

#include "base/str.h"
#include "http_fixture.h"
#include "transport/encoder.h"
#include "transport/peer_client.h"

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))
#define SECRET "a secret of the cluster"
#define TAIL_BYTES 1000u
#define SHARD_BLOCKS 8u
#define SHARD_BYTES ((SHARD_BLOCKS - 1) * (uint64_t)DCTF_BLOCK_BYTES + TAIL_BYTES)

struct peer_ask {
    struct dctf_peer_get get;
    char addr[64];
    char *buf;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned ended;
    enum dctf_err err;
    struct dctf_peer_answer answer;
    struct dctf_peer_client *again; /* start once more from done() with this client; taken */
    enum dctf_err again_err;
};

static inline void peer_done(
    struct dctf_peer_get *get, enum dctf_err err, const struct dctf_peer_answer *answer)
{
    struct peer_ask *ask = get->ctx;
    struct dctf_peer_client *again;

    pthread_mutex_lock(&ask->lock);
    again = ask->again;
    ask->again = NULL;
    pthread_mutex_unlock(&ask->lock);
    if (again)
        ask->again_err = dctf_peer_get_start(again, get);
    pthread_mutex_lock(&ask->lock);
    ask->ended++;
    ask->err = err;
    ask->answer = *answer;
    pthread_cond_broadcast(&ask->changed);
    pthread_mutex_unlock(&ask->lock);
}

static inline void peer_ask_init(struct peer_ask *ask, int port, enum dctf_peer_op op)
{
    memset(ask, 0, sizeof(*ask));
    pthread_mutex_init(&ask->lock, NULL);
    assert_int_equal(dctf_thread_cond_init(&ask->changed), DCTF_OK);
    snprintf(ask->addr, sizeof(ask->addr), "127.0.0.1:%d", port);
    ask->buf = malloc(SHARD_BYTES);
    assert_non_null(ask->buf);
    ask->get = (struct dctf_peer_get){
        .addr = ask->addr,
        .ask = {.op = op,
            .dataset = 1,
            .key = "a b",
            .etag = "\"e\"",
            .size = SHARD_BYTES,
            .first = 6,
            .count = 2},
        .buf = ask->buf,
        .class = DCTF_FETCH_DEMAND,
        .hop = 1,
        .view = 0xabc,
        .deadline_ms = FOREVER_MS,
        .done = peer_done,
        .ctx = ask,
    };
}

static inline void peer_ask_fini(struct peer_ask *ask)
{
    free(ask->buf);
    pthread_cond_destroy(&ask->changed);
    pthread_mutex_destroy(&ask->lock);
}

static inline void peer_start(struct dctf_peer_client *client, struct peer_ask *ask)
{
    assert_int_equal(dctf_peer_get_start(client, &ask->get), DCTF_OK);
}

/* Start, and take the request on a new connection. */
static inline int peer_begin(struct dctf_peer_client *client, struct peer_ask *ask, struct server *server)
{
    peer_start(client, ask);
    return server_take(server);
}

static inline enum dctf_err peer_wait(struct peer_ask *ask, unsigned ends)
{
    struct timespec until = in_ms(FOREVER_MS + 10000);
    int rc = 0;

    pthread_mutex_lock(&ask->lock);
    while (ask->ended < ends && !rc)
        rc = pthread_cond_timedwait(&ask->changed, &ask->lock, &until);
    pthread_mutex_unlock(&ask->lock);
    assert_int_equal(rc, 0);
    assert_int_equal(ask->ended, ends);
    return ask->err;
}

static inline struct dctf_peer_client *peer_client_new(const char *secret, bool accept_lz4)
{
    struct dctf_peer_client_config config = {
        .node = "me", .secret = secret, .accept_lz4 = accept_lz4, .connect_timeout_ms = 10000};
    struct dctf_peer_client *client;

    assert_int_equal(dctf_peer_client_new(&config, &client), DCTF_OK);
    return client;
}

/* --- answers --- */

/* Bytes of the shard from block `first` on; every other run of 64 KiB compresses. */
static inline void shard_bytes(unsigned first, size_t len, char *out)
{
    uint32_t state = 12345;

    for (uint64_t at = 0; at < (uint64_t)first * DCTF_BLOCK_BYTES + len; at++) {
        state = state * 1664525u + 1013904223u;
        if (at >= (uint64_t)first * DCTF_BLOCK_BYTES)
            out[at - (uint64_t)first * DCTF_BLOCK_BYTES] =
                at / 65536 % 2 ? (char)(state >> 24) : (char)(at / 65536);
    }
}

static inline void add_answer_header(void *ctx, const char *name, const char *value)
{
    dctf_str_printf(ctx, "%s: %s\r\n", name, value);
}

/* Checksums of what is asked for. */
static inline void told_blocks(const struct dctf_peer_ask *ask, const char *plain, struct dctf_peer_told *out)
{
    *out = (struct dctf_peer_told){.view = 0xdef,
        .path = {.rtt_us = 100, .min_rtt_us = 50, .rate = 1000},
        .sum_count = ask->count,
        .from = DCTF_PEER_FROM_ORIGIN};
    for (uint32_t i = 0; i < ask->count; i++)
        out->sums[i] =
            dctf_hash64(plain + (size_t)i * DCTF_BLOCK_BYTES, dctf_block_len(ask->size, ask->first + i));
}

static inline void send_answer(
    int fd, int status, const struct dctf_peer_told *told, const void *body, size_t len)
{
    struct dctf_str head;

    dctf_str_init(&head);
    dctf_str_printf(&head, "HTTP/1.1 %d Status\r\n", status);
    if (status != 204)
        dctf_str_printf(&head, "Content-Length: %zu\r\n", len);
    dctf_peer_told_write(told, add_answer_header, &head);
    dctf_str_puts(&head, "\r\n");
    assert_int_equal(head.err, DCTF_OK);
    assert_true(server_try_send(fd, head.data, head.len));
    dctf_str_fini(&head);
    (void)server_try_send(fd, body, len); /* the client may have left */
}

#endif
