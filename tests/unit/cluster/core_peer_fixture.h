/* SPDX-License-Identifier: Apache-2.0
 *
 * For core_fixture.h: shards, places in a list of members, and peers whose answers the test decides. Such a
 * peer stands behind a relay, which can be frozen: then it accepts and never answers, not even pings.
 *
 * Threads:   the test's thread but where a callback is marked.
 * Ownership: embedded by the cluster.
 */
#ifndef DCTF_TESTS_CORE_PEER_FIXTURE_H
#define DCTF_TESTS_CORE_PEER_FIXTURE_H

#include "base/thread.h"
#include "base/version.h"
#include "transport/peer_server.h"

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
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define DATASET 42u
#define SECRET "a secret of some length"
#define FOREVER_MS 30000u
#define SHARDS_MAX 8u
#define RELAY_FDS 64u
#define ASKED_MAX 16u

static inline struct timespec in_ms(uint64_t ms)
{
    struct timespec due;

    clock_gettime(CLOCK_MONOTONIC, &due);
    due.tv_sec += (time_t)(ms / 1000);
    due.tv_nsec += (long)(ms % 1000 * 1000000);
    due.tv_sec += due.tv_nsec / 1000000000;
    due.tv_nsec %= 1000000000;
    return due;
}

/* For what nothing tells of: look until it is so. */
#define wait_until(condition)                                                                                \
    do {                                                                                                     \
        uint64_t wait_until_ms = dctf_clock_mono_ms(NULL) + FOREVER_MS;                                      \
                                                                                                             \
        while (!(condition)) {                                                                               \
            assert_true(dctf_clock_mono_ms(NULL) < wait_until_ms);                                           \
            (void)poll(NULL, 0, 1);                                                                          \
        }                                                                                                    \
    } while (0)

/* --- shards --- */

struct shard {
    char key[64];
    char etag[DCTF_ETAG_MAX + 1];
    uint64_t size;
    uint8_t *data;
};

struct shards {
    struct shard all[SHARDS_MAX];
    unsigned count;
};

static inline struct shard *shards_add(struct shards *shards, uint64_t size)
{
    struct shard *shard = &shards->all[shards->count];
    uint64_t state = ++shards->count;

    assert_true(shards->count <= SHARDS_MAX);
    shard->size = size;
    shard->data = malloc(size);
    assert_non_null(shard->data);
    for (uint64_t i = 0; i < size; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        shard->data[i] = (uint8_t)(state >> 56);
    }
    return shard;
}

static inline void shards_clear(struct shards *shards)
{
    for (unsigned i = 0; i < shards->count; i++)
        free(shards->all[i].data);
}

/* --- places and relays --- */

struct asked_one {
    struct dctf_peer_request *request;
    struct dctf_peer_ask ask;
};

struct place {
    char addr[32];
    int fd; /* bound, so that nobody else takes the port; whoever stands here listens beside it */
    /* of a peer that answers as the test says */
    struct dctf_peer_server *server; /* NULL: none */
    const struct shards *shards;
    pthread_mutex_t lock;
    /* guarded by lock */
    bool hold;
    bool has;      /* says that it has what it is asked about */
    bool full;     /* says that it has no room */
    bool tells;    /* tells whoever comes for blocks to keep them */
    unsigned busy; /* so many are told to come again */
    uint64_t retry_ms;
    const char *names; /* with that; NULL: none */
    unsigned asked;    /* for blocks */
    unsigned probed;   /* of that, only for what is there */
    unsigned tried;    /* or by who tried those that were named */
    struct asked_one held[ASKED_MAX];
    unsigned held_count;
    /* of its relay */
    pthread_t relay;
    int wake;
    atomic_bool frozen, stopping;
    struct pollfd fds[RELAY_FDS]; /* wake, listener, then pairs; the relay's own */
    nfds_t fd_count;
};

static inline void place_take(struct place *place)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(addr);
    int on = 1;

    place->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(place->fd >= 0);
    assert_int_equal(setsockopt(place->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
    assert_int_equal(bind(place->fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
    assert_int_equal(getsockname(place->fd, (struct sockaddr *)&addr, &len), 0);
    snprintf(place->addr, sizeof(place->addr), "127.0.0.1:%u", ntohs(addr.sin_port));
}

static inline void relay_accept(struct place *place)
{
    struct sockaddr_in addr = {.sin_family = AF_INET,
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
        .sin_port = htons((uint16_t)dctf_peer_server_port(place->server))};
    int in = accept4(place->fd, NULL, NULL, SOCK_CLOEXEC);
    int out = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (in < 0 || out < 0 || connect(out, (struct sockaddr *)&addr, sizeof(addr))) {
        close(in);
        close(out);
        return;
    }
    place->fds[place->fd_count++] = (struct pollfd){.fd = in, .events = POLLIN};
    place->fds[place->fd_count++] = (struct pollfd){.fd = out, .events = POLLIN};
}

/* Pass on what came at fds[i]; false: one of the two has gone. */
static inline bool relay_pass(struct place *place, nfds_t i)
{
    char bytes[16384];
    ssize_t got = recv(place->fds[i].fd, bytes, sizeof(bytes), 0);

    for (ssize_t sent = 0; sent < got;) {
        ssize_t n = send(place->fds[i ^ 1].fd, bytes + sent, (size_t)(got - sent), MSG_NOSIGNAL);

        if (n < 0)
            return false;
        sent += n;
    }
    return got > 0;
}

/* The relay's thread. */
static inline void *relay_run(void *ctx)
{
    struct place *place = ctx;
    uint64_t ignored;

    place->fds[0] = (struct pollfd){.fd = place->wake, .events = POLLIN};
    place->fds[1] = (struct pollfd){.fd = place->fd, .events = POLLIN};
    place->fd_count = 2;
    while (!atomic_load(&place->stopping)) {
        nfds_t count = atomic_load(&place->frozen) ? 1 : place->fd_count;

        if (poll(place->fds, count, -1) < 0)
            continue;
        if (place->fds[0].revents && read(place->wake, &ignored, sizeof(ignored)) < 0)
            break;
        if (atomic_load(&place->frozen))
            continue;
        for (nfds_t i = 2; i < count; i++) {
            if (!place->fds[i].revents || relay_pass(place, i))
                continue;
            close(place->fds[i & ~(nfds_t)1].fd);
            close(place->fds[i | 1].fd);
            place->fd_count -= 2;
            place->fds[i & ~(nfds_t)1] = place->fds[place->fd_count];
            place->fds[i | 1] = place->fds[place->fd_count + 1];
            break; /* places have changed: look anew */
        }
        if (count > 1 && place->fds[1].revents && place->fd_count + 2 <= RELAY_FDS)
            relay_accept(place);
    }
    for (nfds_t i = 2; i < place->fd_count; i++)
        close(place->fds[i].fd);
    return NULL;
}

static inline void relay_wake(struct place *place)
{
    uint64_t one = 1;

    assert_int_equal(write(place->wake, &one, sizeof(one)), sizeof(one));
}

static inline void relay_freeze(struct place *place, bool frozen)
{
    atomic_store(&place->frozen, frozen);
    relay_wake(place);
}

/* --- peers that answer as the test says --- */

static inline void answer_blocks(
    struct place *place, struct dctf_peer_request *request, const struct dctf_peer_ask *ask)
{
    const struct dctf_peer_origin origin = {.from = DCTF_PEER_FROM_CACHE};
    uint64_t sums[DCTF_PEER_BLOCKS_MAX];
    const struct shard *shard = NULL;
    const uint8_t *data;

    for (unsigned i = 0; i < place->shards->count; i++) {
        if (!strcmp(place->shards->all[i].key, ask->key))
            shard = &place->shards->all[i];
    }
    if (!shard) {
        dctf_peer_reply_error(request, DCTF_ERR_NOT_FOUND, 0, NULL);
        return;
    }
    data = shard->data + (size_t)ask->first * DCTF_BLOCK_BYTES;
    for (uint32_t i = 0; i < ask->count; i++)
        sums[i] = dctf_hash64(data + (size_t)i * DCTF_BLOCK_BYTES, dctf_block_len(ask->size, ask->first + i));
    dctf_peer_reply_memory(request, data, (size_t)dctf_peer_ask_bytes(ask), false, sums, &origin, NULL, NULL);
}

/* On the server's threads. */
static inline void peer_handle(
    void *ctx, struct dctf_peer_request *request, const struct dctf_peer_asked *asked)
{
    struct place *place = ctx;
    bool hold = false, busy = false, has, full, tells;
    const char *names;
    uint64_t retry_ms;

    pthread_mutex_lock(&place->lock);
    has = place->has;
    full = place->full;
    tells = place->tells;
    pthread_mutex_unlock(&place->lock);
    if (asked->ask.op == DCTF_PEER_HAVE) {
        if (full)
            dctf_peer_reply_spare(request, DCTF_PEER_SPARE_FULL);
        dctf_peer_reply_have(request, has, false);
        return;
    }
    if (tells)
        dctf_peer_reply_spare(request, DCTF_PEER_SPARE_KEEP);
    pthread_mutex_lock(&place->lock);
    place->asked++;
    place->probed += asked->hop == 0;
    place->tried += asked->tried;
    retry_ms = place->retry_ms;
    names = place->names;
    if (place->hold && place->held_count < ASKED_MAX) {
        hold = true;
        place->held[place->held_count++] = (struct asked_one){request, asked->ask};
    } else if (place->busy) {
        busy = true;
        place->busy--;
    }
    pthread_mutex_unlock(&place->lock);
    if (busy)
        dctf_peer_reply_error(request, DCTF_ERR_PEER_BUSY, retry_ms, names);
    else if (!hold && asked->hop == 0 && !has)
        dctf_peer_reply_error(request, DCTF_ERR_PEER_ABSENT, 0, NULL);
    else if (!hold)
        answer_blocks(place, request, &asked->ask);
}

static inline void peer_open(struct place *place, const struct shards *shards)
{
    struct dctf_peer_server_config config = {
        .listen = "127.0.0.1:0", .secret = SECRET, .threads = 1, .handle = peer_handle, .ctx = place};
    char detail[256];

    place->shards = shards;
    pthread_mutex_init(&place->lock, NULL);
    assert_int_equal(dctf_peer_server_start(&config, detail, &place->server), DCTF_OK);
    assert_int_equal(listen(place->fd, 64), 0);
    place->wake = eventfd(0, EFD_CLOEXEC);
    assert_true(place->wake >= 0);
    assert_int_equal(dctf_thread_start("relay", relay_run, place, &place->relay), DCTF_OK);
}

static inline void peer_hold(struct place *place, bool hold)
{
    pthread_mutex_lock(&place->lock);
    place->hold = hold;
    pthread_mutex_unlock(&place->lock);
}

static inline void peer_full(struct place *place, bool full)
{
    pthread_mutex_lock(&place->lock);
    place->full = full;
    pthread_mutex_unlock(&place->lock);
}

static inline void peer_tell_to_keep(struct place *place, bool tells)
{
    pthread_mutex_lock(&place->lock);
    place->tells = tells;
    pthread_mutex_unlock(&place->lock);
}

/* Say that it has everything, and hold who comes for it. */
static inline void peer_promise(struct place *place)
{
    pthread_mutex_lock(&place->lock);
    place->has = true;
    place->hold = true;
    pthread_mutex_unlock(&place->lock);
}

/* The next `count` are told to come again in so many milliseconds. */
static inline void peer_busy(struct place *place, unsigned count, uint64_t retry_ms)
{
    pthread_mutex_lock(&place->lock);
    place->busy = count;
    place->retry_ms = retry_ms;
    pthread_mutex_unlock(&place->lock);
}

static inline unsigned peer_asked(struct place *place)
{
    unsigned asked;

    pthread_mutex_lock(&place->lock);
    asked = place->asked;
    pthread_mutex_unlock(&place->lock);
    return asked;
}

/* Answer all that is held: with blocks, or with an error. */
static inline void peer_answer(struct place *place, enum dctf_err err)
{
    struct asked_one held[ASKED_MAX];
    unsigned count;

    pthread_mutex_lock(&place->lock);
    count = place->held_count;
    memcpy(held, place->held, sizeof(held));
    place->held_count = 0;
    pthread_mutex_unlock(&place->lock);
    for (unsigned i = 0; i < count; i++) {
        if (err)
            dctf_peer_reply_error(held[i].request, err, 10, NULL);
        else
            answer_blocks(place, held[i].request, &held[i].ask);
    }
}

static inline void place_leave(struct place *place)
{
    if (place->server) {
        peer_hold(place, false);
        peer_answer(place, DCTF_ERR_SHUTTING_DOWN);
        atomic_store(&place->stopping, true);
        relay_wake(place);
        pthread_join(place->relay, NULL);
        dctf_peer_server_stop(place->server);
        close(place->wake);
        pthread_mutex_destroy(&place->lock);
    }
    close(place->fd);
}

#endif
