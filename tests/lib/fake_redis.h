/* SPDX-License-Identifier: Apache-2.0
 *
 * A server on 127.0.0.1 that reads commands as Redis does and answers whatever the test says.
 *
 * Threads:   the handler runs on the server's one thread.
 * Ownership: fake_redis_start() gives a server to fake_redis_stop().
 */
#ifndef DCTF_TESTS_FAKE_REDIS_H
#define DCTF_TESTS_FAKE_REDIS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fake_redis;

#define FAKE_REDIS_WORDS_MAX 32

struct fake_redis_reply {
    char *text; /* FAKE_REDIS_REPLY_MAX bytes, to be written by the handler: the bytes of the answer */
    size_t len;
    bool hang; /* nothing more is read from the connection, which stays */
    bool cut;  /* the connection is closed after the bytes */
};
#define FAKE_REDIS_REPLY_MAX (1u << 20)

/* A command of `argc` words, each NUL-terminated. */
typedef void fake_redis_handle(void *ctx, int argc, char **argv, struct fake_redis_reply *reply);

struct fake_redis *fake_redis_start(fake_redis_handle *handle, void *ctx);
void fake_redis_stop(struct fake_redis *fake);
uint16_t fake_redis_port(const struct fake_redis *fake);
/* Close every connection; new ones are taken. */
void fake_redis_cut_all(struct fake_redis *fake);
/* Append to the answer. */
void fake_redis_say(struct fake_redis_reply *reply, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* A bulk string. */
void fake_redis_bulk(struct fake_redis_reply *reply, const void *data, size_t len);

#endif
