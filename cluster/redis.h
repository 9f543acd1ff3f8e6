/* SPDX-License-Identifier: Apache-2.0
 *
 * A connection to Redis or Valkey with a bound on everything: how long a call takes, how
 * long connecting takes, how often that is tried, and how large an answer may be.
 *
 *   DOWN ── call(), and the back-off is over ──→ connect, TLS, AUTH ── ok ──→ UP
 *   UP ── no answer in time, closed, not understood, cannot serve now ──→ DOWN, back-off
 *   UP ── MOVED ──→ the server that is named, once per call
 *
 * The back-off is drawn from 0.2 s to a most that doubles with each failure, up to 5 s. hiredis makes and
 * reads the protocol; sockets and TLS are ours, since its timeouts are for each read and not for the call.
 *
 * Threads:   one thread.
 * Ownership: new() gives an object to free(); a value is freed with dctf_redis_value_free().
 */
#ifndef DCTF_CLUSTER_REDIS_H
#define DCTF_CLUSTER_REDIS_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dctf_clock;
struct dctf_redis;

#define DCTF_REDIS_BACKOFF_MAX_MS 5000u

/* An answer, however it was sent. */
enum dctf_redis_type {
    DCTF_REDIS_NIL,
    DCTF_REDIS_INTEGER,
    DCTF_REDIS_STRING,
    DCTF_REDIS_ARRAY,
    DCTF_REDIS_ERROR
};
struct dctf_redis_value {
    enum dctf_redis_type type;
    int64_t integer;
    char *text; /* STRING, ERROR: `len` bytes and a NUL after them; else "" */
    size_t len;
    struct dctf_redis_value **items; /* ARRAY: `count` values, none NULL */
    size_t count;
};

struct dctf_redis_config {
    const char *url;             /* redis://host[:port] or rediss://host[:port] (TLS) */
    const char *user, *password; /* "" : none */
    const char *ca_file;         /* PEM of who may have signed the server's certificate; "" : the system's */
    uint64_t connect_ms;         /* 0: 500 */
    uint64_t call_ms;            /* 0: 200 */
    const struct dctf_clock *clock; /* borrowed; NULL: the system's */
};

/* Never touches the network. DCTF_ERR_OPTION_VALUE with words in `detail` (≥ 256 bytes), which never has
 * a secret in it. */
DCTF_MUST_CHECK
enum dctf_err dctf_redis_new(const struct dctf_redis_config *config, char *detail, struct dctf_redis **out);
void dctf_redis_free(struct dctf_redis *redis); /* NULL is allowed */

/* One command of `argc` words, each of `len[i]` bytes; `len` NULL: strings. Connects when that is due. *out
 * is never an ERROR: those are returned. DCTF_ERR_COORDINATOR_GONE     no connection, no answer in time, or a
 * back-off has not passed DCTF_ERR_COORDINATOR_REFUSED  it answered with an error DCTF_ERR_COORDINATOR_ANSWER
 * it answered with something that is no answer, or too large */
DCTF_MUST_CHECK
enum dctf_err dctf_redis_call(struct dctf_redis *redis, int argc, const char *const *argv, const size_t *len,
    struct dctf_redis_value **out);

/* A Lua script, by its sum once the server knows it. */
struct dctf_redis_script {
    const char *text;
    char sum[41]; /* begins as ""; SHA-1 in hex */
};
/* `keys` of the argc words are keys. */
DCTF_MUST_CHECK
enum dctf_err dctf_redis_eval(struct dctf_redis *redis, struct dctf_redis_script *script, int keys, int argc,
    const char *const *argv, const size_t *len, struct dctf_redis_value **out);

/* Monotonic milliseconds before which a call fails at once; 0: connected, or never tried. */
uint64_t dctf_redis_retry_ms(const struct dctf_redis *redis);
/* Counts connections made: another number means that what was read before may not be there any more. */
uint64_t dctf_redis_generation(const struct dctf_redis *redis);
/* The answer was well formed but made no sense: as if the connection had failed. */
void dctf_redis_distrust(struct dctf_redis *redis, const char *what);

void dctf_redis_value_free(struct dctf_redis_value *value); /* NULL is allowed */
/* STRING of digits or INTEGER, up to 2^53 - 1; false for others. */
bool dctf_redis_value_u64(const struct dctf_redis_value *value, uint64_t *out);

#endif
