/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/fake_redis.h"

#include <arpa/inet.h>
#include <assert.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define CLIENTS_MAX 8
#define INPUT_MAX (256u * 1024u)

struct client {
    int fd; /* -1: none */
    bool hung;
    size_t len;
    char input[INPUT_MAX + 1];
};

struct fake_redis {
    fake_redis_handle *handle;
    void *ctx;
    int listener, wake;
    uint16_t port;
    pthread_t thread;
    pthread_mutex_t lock;
    bool stop, cut; /* guarded by lock */
    struct client clients[CLIENTS_MAX];
    char reply[FAKE_REDIS_REPLY_MAX];
};

static void drop(struct client *client)
{
    if (client->fd >= 0)
        close(client->fd);
    client->fd = -1;
    client->len = 0;
    client->hung = false;
}

/* A number between a mark and "\r\n"; where it goes on, NULL when it is not all there. */
static char *take_number(char *at, char mark, long *out)
{
    char *end;

    if (*at != mark)
        return NULL;
    *out = strtol(at + 1, &end, 10);
    return end[0] == '\r' && end[1] == '\n' ? end + 2 : NULL;
}

/* The bytes of one whole command, 0 when it is not all there. Ends its words with NULs. */
static size_t take_command(struct client *client, int *argc, char **argv)
{
    char *at = client->input, *end = client->input + client->len;
    long count, len[FAKE_REDIS_WORDS_MAX];

    *end = '\0';
    at = take_number(at, '*', &count);
    if (!at || count < 1 || count > FAKE_REDIS_WORDS_MAX)
        return 0;
    for (*argc = 0; *argc < count; ++*argc) {
        at = take_number(at, '$', &len[*argc]);
        if (!at || len[*argc] < 0 || len[*argc] > end - at - 2)
            return 0;
        argv[*argc] = at;
        at += len[*argc] + 2;
    }
    for (int i = 0; i < *argc; i++)
        argv[i][len[i]] = '\0';
    return (size_t)(at - client->input);
}

static void send_all(int fd, const char *data, size_t len)
{
    while (len) {
        ssize_t done = send(fd, data, len, MSG_NOSIGNAL);

        if (done <= 0)
            return;
        data += done;
        len -= (size_t)done;
    }
}

static void serve(struct fake_redis *fake, struct client *client)
{
    char *argv[FAKE_REDIS_WORDS_MAX];
    size_t used;
    int argc;

    while (client->fd >= 0 && !client->hung && (used = take_command(client, &argc, argv))) {
        struct fake_redis_reply reply = {.text = fake->reply};

        fake->handle(fake->ctx, argc, argv, &reply);
        memmove(client->input, client->input + used, client->len - used);
        client->len -= used;
        send_all(client->fd, reply.text, reply.len);
        client->hung = reply.hang;
        if (reply.cut)
            drop(client);
    }
}

static void receive(struct fake_redis *fake, struct client *client)
{
    ssize_t got = recv(client->fd, client->input + client->len, INPUT_MAX - client->len, 0);

    if (got <= 0) {
        drop(client);
        return;
    }
    client->len += (size_t)got;
    serve(fake, client);
}

static void take_client(struct fake_redis *fake)
{
    int fd = accept4(fake->listener, NULL, NULL, SOCK_CLOEXEC);

    for (int i = 0; fd >= 0 && i < CLIENTS_MAX; i++) {
        if (fake->clients[i].fd < 0) {
            fake->clients[i].fd = fd;
            return;
        }
    }
    if (fd >= 0)
        close(fd);
}

static bool obey(struct fake_redis *fake)
{
    uint64_t woken;
    bool stop, cut;

    pthread_mutex_lock(&fake->lock);
    stop = fake->stop;
    cut = fake->cut;
    fake->cut = false;
    pthread_mutex_unlock(&fake->lock);
    if (read(fake->wake, &woken, sizeof(woken)) < 0)
        woken = 0;
    for (int i = 0; cut && i < CLIENTS_MAX; i++)
        drop(&fake->clients[i]);
    return !stop;
}

static void *run(void *ctx)
{
    struct fake_redis *fake = ctx;
    struct pollfd fds[CLIENTS_MAX + 2];

    for (;;) {
        fds[0] = (struct pollfd){.fd = fake->listener, .events = POLLIN};
        fds[1] = (struct pollfd){.fd = fake->wake, .events = POLLIN};
        for (int i = 0; i < CLIENTS_MAX; i++) { /* of one that hangs nothing is read */
            fds[2 + i].fd = fake->clients[i].hung ? -1 : fake->clients[i].fd;
            fds[2 + i].events = POLLIN;
            fds[2 + i].revents = 0;
        }
        if (poll(fds, CLIENTS_MAX + 2, -1) < 0)
            continue;
        if (fds[1].revents && !obey(fake))
            break;
        for (int i = 0; i < CLIENTS_MAX; i++) {
            if (fds[2 + i].revents && fake->clients[i].fd == fds[2 + i].fd)
                receive(fake, &fake->clients[i]);
        }
        if (fds[0].revents)
            take_client(fake);
    }
    for (int i = 0; i < CLIENTS_MAX; i++)
        drop(&fake->clients[i]);
    return NULL;
}

static void order(struct fake_redis *fake, bool *what)
{
    uint64_t one = 1;

    pthread_mutex_lock(&fake->lock);
    *what = true;
    pthread_mutex_unlock(&fake->lock);
    if (write(fake->wake, &one, sizeof(one)) < 0)
        abort();
}

struct fake_redis *fake_redis_start(fake_redis_handle *handle, void *ctx)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof(address);
    struct fake_redis *fake = calloc(1, sizeof(*fake));

    if (!fake)
        abort();
    fake->handle = handle;
    fake->ctx = ctx;
    for (int i = 0; i < CLIENTS_MAX; i++)
        fake->clients[i].fd = -1;
    fake->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    fake->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    pthread_mutex_init(&fake->lock, NULL);
    if (fake->wake < 0 || fake->listener < 0 || bind(fake->listener, (void *)&address, len) ||
        listen(fake->listener, 16) || getsockname(fake->listener, (void *)&address, &len) ||
        pthread_create(&fake->thread, NULL, run, fake))
        abort();
    fake->port = ntohs(address.sin_port);
    return fake;
}

void fake_redis_stop(struct fake_redis *fake)
{
    order(fake, &fake->stop);
    pthread_join(fake->thread, NULL);
    close(fake->listener);
    close(fake->wake);
    pthread_mutex_destroy(&fake->lock);
    free(fake);
}

void fake_redis_cut_all(struct fake_redis *fake)
{
    order(fake, &fake->cut);
}

uint16_t fake_redis_port(const struct fake_redis *fake)
{
    return fake->port;
}

void fake_redis_say(struct fake_redis_reply *reply, const char *format, ...)
{
    va_list args;
    int len;

    va_start(args, format);
    len = vsnprintf(reply->text + reply->len, FAKE_REDIS_REPLY_MAX - reply->len, format, args);
    va_end(args);
    assert(len >= 0 && (size_t)len < FAKE_REDIS_REPLY_MAX - reply->len);
    reply->len += (size_t)len;
}

void fake_redis_bulk(struct fake_redis_reply *reply, const void *data, size_t len)
{
    fake_redis_say(reply, "$%zu\r\n", len);
    assert(len + 2 < FAKE_REDIS_REPLY_MAX - reply->len);
    memcpy(reply->text + reply->len, data, len);
    memcpy(reply->text + reply->len + len, "\r\n", 2);
    reply->len += len + 2;
}
