/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/redis.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "cluster/address.h"
#include "cluster/redis_io.h"
#include "cluster/redis_reply.h"
#include "cluster/resolve.h"

#include <hiredis.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DETAIL_BYTES 256u
#define PORT 6379u
#define CONNECT_MS 500u
#define CALL_MS 200u
#define BACKOFF_MIN_MS 200u
#define WORDS_MAX 16
#define READ_BYTES 16384u

struct dctf_redis {
    struct dctf_clock clock;
    struct dctf_address server; /* as configured */
    struct dctf_address moved;  /* as MOVED told; text "" : nowhere */
    struct dctf_resolver *resolver;
    struct dctf_resolved resolved; /* the last good answer; for `resolved_host` */
    char resolved_host[DCTF_ADDRESS_MAX + 1];
    struct ssl_ctx_st *tls; /* NULL: plain */
    char *user, *password;
    uint64_t connect_ms, call_ms;
    struct dctf_rng rng;

    struct dctf_redis_io io;
    struct dctf_redis_reader *reader; /* NULL: no connection */
    uint64_t generation;
    uint64_t retry_ms;
    unsigned failures; /* since the last success */
    bool told;         /* that it does not work */
};

static uint64_t now_ms(const struct dctf_redis *redis)
{
    return dctf_clock_mono_ms(&redis->clock);
}

/* --- start and end --- */

static enum dctf_err parse_url(const char *url, char *detail, struct dctf_address *server, bool *tls)
{
    const char *host = NULL, *wrong;
    size_t len;

    *tls = !strncmp(url, "rediss://", 9);
    if (*tls)
        host = url + 9;
    else if (!strncmp(url, "redis://", 8))
        host = url + 8;
    len = host ? strcspn(host, "/") : 0;
    if (!host)
        wrong = "is neither redis://host:port nor rediss://host:port";
    else if (strchr(host, '@'))
        wrong = "has a user or a password in it: these belong to redis_user and redis_password";
    else if (host[len] && host[len + 1])
        wrong = "has something after the port";
    else
        wrong = dctf_address_parse(host, len, PORT, server);
    if (!wrong)
        return DCTF_OK;
    snprintf(detail, DETAIL_BYTES, "redis: %s%s", wrong, host ? "" : "; see dctffs(8)");
    return DCTF_ERR_OPTION_VALUE;
}

static enum dctf_err prepare(struct dctf_redis *redis, const struct dctf_redis_config *config, char *detail)
{
    bool tls;
    enum dctf_err err = parse_url(config->url, detail, &redis->server, &tls);

    if (err)
        return err;
    redis->user = strdup(config->user ? config->user : "");
    redis->password = strdup(config->password ? config->password : "");
    if (!redis->user || !redis->password)
        return DCTF_ERR_NO_MEMORY;
    if (!tls)
        return DCTF_OK;
    err = dctf_redis_tls_new(config->ca_file ? config->ca_file : "", &redis->tls);
    if (err == DCTF_ERR_OPTION_VALUE)
        snprintf(detail, DETAIL_BYTES, "redis: ca_file cannot be used");
    return err;
}

enum dctf_err dctf_redis_new(const struct dctf_redis_config *config, char *detail, struct dctf_redis **out)
{
    struct dctf_redis *redis = calloc(1, sizeof(*redis));
    enum dctf_err err;

    *out = NULL;
    *detail = '\0';
    if (!redis)
        return DCTF_ERR_NO_MEMORY;
    if (config->clock)
        redis->clock = *config->clock;
    redis->io.fd = -1;
    redis->rng.state = dctf_rng_seed();
    redis->connect_ms = config->connect_ms ? config->connect_ms : CONNECT_MS;
    redis->call_ms = config->call_ms ? config->call_ms : CALL_MS;
    err = prepare(redis, config, detail);
    if (err) {
        dctf_redis_free(redis);
        return err;
    }
    *out = redis;
    return DCTF_OK;
}

static void disconnect(struct dctf_redis *redis)
{
    dctf_redis_io_close(&redis->io);
    dctf_redis_reader_free(redis->reader);
    redis->reader = NULL;
}

void dctf_redis_free(struct dctf_redis *redis)
{
    if (!redis)
        return;
    disconnect(redis);
    dctf_resolver_free(redis->resolver);
    dctf_resolved_fini(&redis->resolved);
    dctf_redis_tls_free(redis->tls);
    if (redis->password)
        explicit_bzero(redis->password, strlen(redis->password));
    free(redis->password);
    free(redis->user);
    free(redis);
}

/* --- failures --- */

/* `what` is quoted and cut; `status` is for the log line. */
static enum dctf_err fail(struct dctf_redis *redis, enum dctf_err err, const char *what, int status)
{
    uint64_t most = (uint64_t)BACKOFF_MIN_MS << (redis->failures < 5 ? redis->failures + 1 : 5);
    char quoted[200];

    disconnect(redis);
    redis->moved.text[0] = '\0';
    if (most > DCTF_REDIS_BACKOFF_MAX_MS)
        most = DCTF_REDIS_BACKOFF_MAX_MS;
    redis->failures++;
    redis->retry_ms = now_ms(redis) + BACKOFF_MIN_MS + dctf_rng_below(&redis->rng, most - BACKOFF_MIN_MS + 1);
    dctf_log(redis->told ? DCTF_LOG_DEBUG : DCTF_LOG_WARN, "redis",
        "op=call server=%s err=%d status=%d what=%s", redis->server.text, err, status,
        dctf_str_quote(what, quoted, sizeof(quoted)));
    redis->told = true;
    return err;
}

static void worked(struct dctf_redis *redis)
{
    if (redis->told)
        dctf_log(DCTF_LOG_INFO, "redis", "op=call server=%s works again", redis->server.text);
    redis->told = false;
    redis->failures = 0;
    redis->retry_ms = 0;
}

void dctf_redis_distrust(struct dctf_redis *redis, const char *what)
{
    fail(redis, DCTF_ERR_COORDINATOR_ANSWER, what, 0);
}

uint64_t dctf_redis_retry_ms(const struct dctf_redis *redis)
{
    return redis->retry_ms;
}

uint64_t dctf_redis_generation(const struct dctf_redis *redis)
{
    return redis->generation;
}

/* --- one command, sent and answered --- */

static enum dctf_err exchange(struct dctf_redis *redis, int argc, const char *const *argv, const size_t *len,
    uint64_t due_ms, struct dctf_redis_value **out)
{
    const char *words[WORDS_MAX];
    char buf[READ_BYTES], *command = NULL;
    size_t got;
    int bytes;
    enum dctf_err err;

    *out = NULL;
    if (argc < 1 || argc > WORDS_MAX)
        return DCTF_ERR_INTERNAL;
    memcpy(words, argv, (size_t)argc * sizeof(words[0]));
    bytes = (int)redisFormatCommandArgv(&command, argc, words, len);
    if (bytes < 0)
        return DCTF_ERR_NO_MEMORY;
    err = dctf_redis_io_write(&redis->io, command, (size_t)bytes, due_ms);
    explicit_bzero(command, (size_t)bytes); /* AUTH */
    redisFreeCommand(command);
    while (!err && !*out) {
        err = dctf_redis_io_read(&redis->io, buf, sizeof(buf), due_ms, &got);
        if (!err)
            err = dctf_redis_reader_feed(redis->reader, buf, got);
        if (!err)
            err = dctf_redis_reader_next(redis->reader, out);
    }
    if (!err && dctf_redis_reader_pending(redis->reader)) { /* whose answer would it be? */
        dctf_redis_value_free(*out);
        *out = NULL;
        err = DCTF_ERR_COORDINATOR_ANSWER;
    }
    if (err == DCTF_ERR_COORDINATOR_GONE)
        return fail(redis, err, redis->io.what, redis->io.status);
    return err ? fail(redis, err, "an answer that cannot be read", 0) : DCTF_OK;
}

/* --- connecting --- */

static const struct dctf_address *target(const struct dctf_redis *redis)
{
    return *redis->moved.text ? &redis->moved : &redis->server;
}

static enum dctf_err resolve(struct dctf_redis *redis, const char *host)
{
    struct dctf_resolved resolved;
    enum dctf_err err = DCTF_OK;

    if (strcmp(redis->resolved_host, host) != 0) {
        dctf_resolver_free(redis->resolver);
        redis->resolver = NULL;
        dctf_resolved_fini(&redis->resolved);
        snprintf(redis->resolved_host, sizeof(redis->resolved_host), "%s", host);
    }
    if (!redis->resolver)
        err = dctf_resolver_new(host, &redis->resolver);
    if (!err)
        err = dctf_resolver_ask(redis->resolver);
    if (!err && !dctf_resolver_take(redis->resolver, redis->connect_ms, &resolved)) {
        if (!resolved.status && resolved.count) {
            dctf_resolved_fini(&redis->resolved);
            redis->resolved = resolved;
        } else {
            dctf_resolved_fini(&resolved);
        }
    }
    /* What it was before serves when the resolver does not. */
    return redis->resolved.count ? DCTF_OK : DCTF_ERR_COORDINATOR_GONE;
}

static void set_port(struct sockaddr_storage *address, uint16_t port)
{
    if (address->ss_family == AF_INET6)
        ((struct sockaddr_in6 *)(void *)address)->sin6_port = htons(port);
    else
        ((struct sockaddr_in *)(void *)address)->sin_port = htons(port);
}

/* Each address has its share of the time. */
static enum dctf_err open_any(struct dctf_redis *redis, const struct dctf_address *to)
{
    uint64_t end_ms = dctf_clock_mono_ms(NULL) + redis->connect_ms;
    enum dctf_err err = DCTF_ERR_COORDINATOR_GONE;

    for (size_t i = 0; err && i < redis->resolved.count; i++) {
        uint64_t at_ms = dctf_clock_mono_ms(NULL);
        struct sockaddr_storage address = redis->resolved.addresses[i];

        if (at_ms >= end_ms)
            break;
        set_port(&address, to->port);
        err = dctf_redis_io_open(&redis->io, &address, redis->tls, to->host,
            at_ms + (end_ms - at_ms) / (redis->resolved.count - i));
    }
    return err;
}

/* The server's words about AUTH may repeat the password: only the first of them, its code, is told. */
static enum dctf_err authenticate(struct dctf_redis *redis)
{
    const char *words[] = {"AUTH", redis->user, redis->password};
    bool user = *redis->user;
    struct dctf_redis_value *answer;
    char code[32];
    enum dctf_err err;

    if (!*redis->password)
        return DCTF_OK;
    if (!user)
        words[1] = redis->password;
    err = exchange(redis, user ? 3 : 2, words, NULL, dctf_clock_mono_ms(NULL) + redis->call_ms, &answer);
    if (err)
        return err;
    if (answer->type == DCTF_REDIS_ERROR) {
        snprintf(code, sizeof(code), "AUTH: %.*s", (int)strcspn(answer->text, " "), answer->text);
        err = fail(redis, DCTF_ERR_COORDINATOR_REFUSED, code, 0);
    }
    dctf_redis_value_free(answer);
    return err;
}

static enum dctf_err connect_now(struct dctf_redis *redis)
{
    struct dctf_address to = *target(redis);
    enum dctf_err err;

    redis->io.what = "the name has no address";
    redis->io.status = 0;
    err = resolve(redis, to.host);
    if (!err)
        err = open_any(redis, &to);
    if (err)
        return fail(redis, DCTF_ERR_COORDINATOR_GONE, redis->io.what, redis->io.status);
    err = dctf_redis_reader_new(&redis->reader);
    if (err)
        return fail(redis, err, "no memory", 0);
    redis->generation++;
    return authenticate(redis);
}

/* --- calls --- */

/* "MOVED 3999 127.0.0.1:6381"; without a host it is the one that told. */
static bool follow(struct dctf_redis *redis, const char *text)
{
    const char *place = strncmp(text, "MOVED ", 6) ? NULL : strchr(text + 6, ' ');
    struct dctf_address to;
    char with_host[2 * DCTF_ADDRESS_MAX];
    const char *colon;

    if (!place)
        return false;
    place++;
    if (*place == ':') {
        snprintf(with_host, sizeof(with_host), strchr(target(redis)->host, ':') ? "[%s]%s" : "%s%s",
            target(redis)->host, place);
        place = with_host;
    } else if ((colon = strrchr(place, ':')) && memchr(place, ':', (size_t)(colon - place)) &&
               *place != '[') {
        snprintf(with_host, sizeof(with_host), "[%.*s]%s", (int)(colon - place), place, colon);
        place = with_host;
    }
    if (dctf_address_parse(place, strlen(place), 0, &to))
        return false;
    dctf_log(DCTF_LOG_INFO, "redis", "op=moved server=%s to=%s", redis->server.text, to.text);
    disconnect(redis);
    redis->moved = to;
    return true;
}

enum dctf_err dctf_redis_call(struct dctf_redis *redis, int argc, const char *const *argv, const size_t *len,
    struct dctf_redis_value **out)
{
    *out = NULL;
    for (bool moved = false;;) {
        struct dctf_redis_value *answer;
        enum dctf_err err = DCTF_OK;

        if (!redis->reader) {
            if (now_ms(redis) < redis->retry_ms)
                return DCTF_ERR_COORDINATOR_GONE;
            err = connect_now(redis);
        }
        if (!err)
            err = exchange(redis, argc, argv, len, dctf_clock_mono_ms(NULL) + redis->call_ms, &answer);
        if (err)
            return err;
        if (answer->type != DCTF_REDIS_ERROR) {
            worked(redis);
            *out = answer;
            return DCTF_OK;
        }
        if (!moved && follow(redis, answer->text))
            moved = true;
        else if (!strncmp(answer->text, "NOSCRIPT", 8))
            err = DCTF_ERR_COORDINATOR_REFUSED; /* dctf_redis_eval() knows what to do */
        else
            err = fail(redis, DCTF_ERR_COORDINATOR_REFUSED, answer->text, 0);
        dctf_redis_value_free(answer);
        if (err)
            return err;
    }
}

static enum dctf_err sum_script(struct dctf_redis_script *script)
{
    unsigned char sum[EVP_MAX_MD_SIZE];
    unsigned len = 0;

    if (!EVP_Digest(script->text, strlen(script->text), sum, &len, EVP_sha1(), NULL) || len != 20)
        return DCTF_ERR_SYSTEM;
    for (unsigned i = 0; i < len; i++)
        snprintf(script->sum + 2 * i, 3, "%02x", sum[i]);
    return DCTF_OK;
}

enum dctf_err dctf_redis_eval(struct dctf_redis *redis, struct dctf_redis_script *script, int keys, int argc,
    const char *const *argv, const size_t *len, struct dctf_redis_value **out)
{
    const char *words[WORDS_MAX];
    size_t lens[WORDS_MAX];
    char key_count[16];
    enum dctf_err err = *script->sum ? DCTF_OK : sum_script(script);

    *out = NULL;
    if (err)
        return err;
    if (argc < 0 || argc > WORDS_MAX - 3)
        return DCTF_ERR_INTERNAL;
    snprintf(key_count, sizeof(key_count), "%d", keys);
    words[0] = "EVALSHA";
    words[1] = script->sum;
    words[2] = key_count;
    for (int i = 0; i < argc; i++)
        words[3 + i] = argv[i];
    for (int i = 0; i < 3 + argc; i++)
        lens[i] = i >= 3 && len ? len[i - 3] : strlen(words[i]);
    err = dctf_redis_call(redis, 3 + argc, words, lens, out);
    /* Refused but still connected: the server does not have it. */
    if (err != DCTF_ERR_COORDINATOR_REFUSED || !redis->reader)
        return err;
    words[0] = "EVAL";
    words[1] = script->text;
    lens[0] = strlen(words[0]);
    lens[1] = strlen(words[1]);
    err = dctf_redis_call(redis, 3 + argc, words, lens, out);
    if (err == DCTF_ERR_COORDINATOR_REFUSED && redis->reader)
        dctf_redis_distrust(redis, "a script that was sent is not known");
    return err;
}
