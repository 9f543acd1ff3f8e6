/* SPDX-License-Identifier: Apache-2.0
 *
 * The client: which requests it holds, which wait for a connection, and which loop
 * runs the next one.
 */
#include "transport/http.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "transport/http_internal.h"

#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOOPS_DEFAULT 2u
#define CONNECTIONS_DEFAULT 64u
#define CONNECTIONS_MAX 65536u
#define CONNECT_TIMEOUT_DEFAULT_MS 5000u
#define CALL_TOTAL_DEFAULT_MS 30000u
/* A loop without an idle connection is worth so many requests less: a new connection
 * costs round trips, an uneven load only processor time. */
#define CONNECT_COST 4u

uint64_t dctf_http_due(uint64_t now_ns, uint64_t ms)
{
    if (!ms || ms > (DCTF_HTTP_NEVER - now_ns) / 1000000u)
        return DCTF_HTTP_NEVER;
    return now_ns + ms * 1000000u;
}

/* --- what is held, and where it runs --- */

static struct dctf_http_transfer **bucket(struct dctf_http *http, const struct dctf_http_request *request)
{
    uint64_t bits = (uint64_t)(uintptr_t)request;

    /* Fibonacci hashing (Knuth 6.4): the low bits of addresses are all alike. */
    return &http->held[(bits * 0x9e3779b97f4a7c15u) >> 56];
}

static struct dctf_http_transfer **find_locked(
    struct dctf_http *http, const struct dctf_http_request *request)
{
    struct dctf_http_transfer **at = bucket(http, request);

    while (*at && (*at)->request != request)
        at = &(*at)->next_held;
    return at;
}

void dctf_http_wake_locked(struct dctf_http_loop *loop)
{
    if (loop->woken)
        return;
    loop->woken = true;
    curl_multi_wakeup(loop->multi);
}

static struct dctf_http_loop *choose_locked(struct dctf_http *http)
{
    struct dctf_http_loop *best = NULL;
    size_t best_cost = SIZE_MAX;

    for (unsigned i = 0; i < http->loop_count; i++) {
        struct dctf_http_loop *loop = &http->loops[i];
        size_t sockets = atomic_load_explicit(&loop->sockets, memory_order_relaxed);
        size_t cost = loop->running + (sockets > loop->running ? 0 : CONNECT_COST);

        if (cost < best_cost) {
            best = loop;
            best_cost = cost;
        }
    }
    return best;
}

static void assign_locked(struct dctf_http *http, struct dctf_http_transfer *transfer)
{
    struct dctf_http_loop *loop = choose_locked(http);

    transfer->state = DCTF_HTTP_ASSIGNED;
    transfer->loop = loop;
    loop->running++;
    http->running++;
    dctf_list_push_back(&loop->inbox, &transfer->link);
    dctf_http_wake_locked(loop);
}

static void wait_locked(struct dctf_http *http, struct dctf_http_transfer *transfer)
{
    transfer->state = DCTF_HTTP_WAITING;
    dctf_list_push_back(&http->waiting, &transfer->link);
    http->waiting_len++;
    if (transfer->due_ns < http->waiting_due_ns) {
        http->waiting_due_ns = transfer->due_ns;
        dctf_http_wake_locked(&http->loops[0]);
    }
}

/* A transfer that waits shall end: the first loop tells. */
static void end_waiting_locked(struct dctf_http *http, struct dctf_http_transfer *transfer, enum dctf_err why)
{
    dctf_list_remove(&transfer->link);
    http->waiting_len--;
    transfer->state = DCTF_HTTP_ENDED;
    transfer->asked = why;
    transfer->loop = &http->loops[0];
    dctf_list_push_back(&transfer->loop->inbox, &transfer->link);
    dctf_http_wake_locked(transfer->loop);
}

void dctf_http_release(struct dctf_http_transfer *transfer, uint64_t connects)
{
    struct dctf_http *http = transfer->http;
    struct dctf_http_transfer **at;

    pthread_mutex_lock(&http->lock);
    at = find_locked(http, transfer->request);
    assert(*at == transfer);
    *at = transfer->next_held;
    dctf_list_remove(&transfer->asked_link);
    http->connects += connects;
    if (transfer->state != DCTF_HTTP_ENDED) {
        transfer->loop->running--;
        http->running--;
    }
    while (!http->closing && http->running < http->connections) {
        struct dctf_list *node = dctf_list_pop(&http->waiting);

        if (!node)
            break;
        http->waiting_len--;
        assign_locked(http, dctf_list_entry(node, struct dctf_http_transfer, link));
    }
    pthread_mutex_unlock(&http->lock);
}

/* --- start and cancel --- */

static bool printable(const char *text)
{
    for (; *text; text++)
        if (*text <= ' ' || *text > '~')
            return false;
    return true;
}

static bool request_ok(const struct dctf_http_request *request)
{
    static const char *const methods[] = {"GET", "HEAD", "PUT", "POST"};
    const char *host = NULL;
    bool known = false;

    if (!request->done || !request->method || !request->url)
        return false;
    for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++)
        known = known || !strcmp(request->method, methods[i]);
    if (!strncmp(request->url, "http://", 7))
        host = request->url + 7;
    else if (!strncmp(request->url, "https://", 8))
        host = request->url + 8;
    if (!known || !host || !*host || strchr("/?#:@", *host) || !printable(request->url))
        return false;
    for (size_t i = 0; i < request->header_count; i++) {
        const char *colon = strchr(request->headers[i], ':');

        /* A line break would begin another header, or the body. */
        if (!colon || colon == request->headers[i] || strpbrk(request->headers[i], "\r\n"))
            return false;
    }
    return true;
}

enum dctf_err dctf_http_start(struct dctf_http *http, struct dctf_http_request *request)
{
    struct dctf_http_transfer *transfer;
    struct dctf_http_transfer **at;

    if (!request_ok(request))
        return DCTF_ERR_INTERNAL;
    transfer = calloc(1, sizeof(*transfer));
    if (!transfer)
        return DCTF_ERR_NO_MEMORY;
    transfer->http = http;
    transfer->request = request;
    transfer->started_ns = dctf_clock_mono_ns(NULL);
    transfer->due_ns = dctf_http_due(transfer->started_ns, request->total_ms);
    transfer->response.impl = transfer;
    dctf_list_init(&transfer->link);
    dctf_list_init(&transfer->asked_link);
    dctf_str_init(&transfer->collected);

    pthread_mutex_lock(&http->lock);
    if (http->closing) {
        pthread_mutex_unlock(&http->lock);
        free(transfer);
        return DCTF_ERR_SHUTTING_DOWN;
    }
    at = find_locked(http, request);
    assert(!*at); /* the caller started it twice */
    *at = transfer;
    if (http->running < http->connections && dctf_list_empty(&http->waiting))
        assign_locked(http, transfer);
    else
        wait_locked(http, transfer);
    pthread_mutex_unlock(&http->lock);
    return DCTF_OK;
}

void dctf_http_cancel(struct dctf_http *http, struct dctf_http_request *request)
{
    struct dctf_http_transfer *transfer;

    pthread_mutex_lock(&http->lock);
    transfer = *find_locked(http, request);
    if (transfer && !transfer->asked) {
        if (transfer->state == DCTF_HTTP_WAITING) {
            end_waiting_locked(http, transfer, DCTF_ERR_CANCELLED);
        } else {
            transfer->asked = DCTF_ERR_CANCELLED;
            if (transfer->state == DCTF_HTTP_RUNNING)
                dctf_list_push_back(&transfer->loop->asked, &transfer->asked_link);
            dctf_http_wake_locked(transfer->loop);
        }
    }
    pthread_mutex_unlock(&http->lock);
}

/* --- blocking call --- */

struct call {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool ended; /* this and the rest guarded by lock */
    enum dctf_err err;
    int status;
    bool want_body;
    char *body;
};

static void call_done(
    struct dctf_http_request *request, enum dctf_err err, const struct dctf_http_response *response)
{
    struct call *call = request->ctx;
    char *body = NULL;

    if (!err && call->want_body) {
        body = malloc(response->len + 1);
        if (body)
            memcpy(body, response->body, response->len + 1);
        else
            err = DCTF_ERR_NO_MEMORY;
    }
    pthread_mutex_lock(&call->lock);
    call->err = err;
    call->status = response->status;
    call->body = body;
    call->ended = true;
    /* Under the lock: the waiter destroys it as soon as it has it. */
    pthread_cond_signal(&call->changed);
    pthread_mutex_unlock(&call->lock);
}

enum dctf_err dctf_http_call(
    struct dctf_http *http, struct dctf_http_request *request, int *status, char **body)
{
    struct call call = {.lock = PTHREAD_MUTEX_INITIALIZER, .want_body = body};
    enum dctf_err err;

    if (status)
        *status = 0;
    if (body)
        *body = NULL;
    err = dctf_thread_cond_init(&call.changed);
    if (err)
        return err;
    request->done = call_done;
    request->ctx = &call;
    request->buf = NULL;
    request->buf_len = 0;
    if (!request->total_ms)
        request->total_ms = CALL_TOTAL_DEFAULT_MS;
    err = dctf_http_start(http, request);
    if (!err) {
        pthread_mutex_lock(&call.lock);
        while (!call.ended)
            pthread_cond_wait(&call.changed, &call.lock);
        pthread_mutex_unlock(&call.lock);
        err = call.err;
        if (status)
            *status = call.status;
        if (body)
            *body = call.body;
    }
    pthread_cond_destroy(&call.changed);
    pthread_mutex_destroy(&call.lock);
    return err;
}

void dctf_http_stats(struct dctf_http *http, struct dctf_http_stats *out)
{
    pthread_mutex_lock(&http->lock);
    out->running = http->running;
    out->waiting = http->waiting_len;
    out->connects = http->connects;
    pthread_mutex_unlock(&http->lock);
}

/* --- making and freeing --- */

static CURLcode global_rc;

static void global_init(void)
{
    global_rc = curl_global_init(CURL_GLOBAL_DEFAULT);
}

static void share_lock(CURL *easy, curl_lock_data data, curl_lock_access access, void *ctx)
{
    struct dctf_http *http = ctx;

    (void)easy;
    (void)access;
    pthread_mutex_lock(&http->share_locks[data]);
}

static void share_unlock(CURL *easy, curl_lock_data data, void *ctx)
{
    struct dctf_http *http = ctx;

    (void)easy;
    pthread_mutex_unlock(&http->share_locks[data]);
}

/* Names and TLS sessions are shared by the loops; connections are not (libcurl's own
 * documentation calls that unsafe between threads). */
static bool share_init(struct dctf_http *http)
{
    http->share = curl_share_init();
    return http->share && !curl_share_setopt(http->share, CURLSHOPT_LOCKFUNC, share_lock) &&
           !curl_share_setopt(http->share, CURLSHOPT_UNLOCKFUNC, share_unlock) &&
           !curl_share_setopt(http->share, CURLSHOPT_USERDATA, http) &&
           !curl_share_setopt(http->share, CURLSHOPT_SHARE, CURL_LOCK_DATA_DNS) &&
           !curl_share_setopt(http->share, CURLSHOPT_SHARE, CURL_LOCK_DATA_SSL_SESSION);
}

/* An authority that is named replaces the system's. The system's is read from its one
 * file if it has one: with a directory libcurl reads everything again for every
 * connection instead of once. */
static bool authorities_init(struct dctf_http *http, const struct dctf_http_config *config)
{
    const char *file = config->ca_file && *config->ca_file ? config->ca_file : NULL;
    const char *dir = config->ca_dir && *config->ca_dir ? config->ca_dir : NULL;

    if (!file && !dir) {
        const curl_version_info_data *info = curl_version_info(CURLVERSION_NOW);

        file = info->cainfo && !access(info->cainfo, R_OK) ? info->cainfo : NULL;
        if (!file)
            dir = info->capath;
    }
    if (file && !(http->ca_file = strdup(file)))
        return false;
    return !dir || (http->ca_dir = strdup(dir));
}

static bool certificate_init(struct dctf_http *http, const struct dctf_http_config *config)
{
    if (!config->cert_file || !*config->cert_file || !config->key_file)
        return true;
    http->cert_file = strdup(config->cert_file);
    http->key_file = strdup(config->key_file);
    return http->cert_file && http->key_file;
}

static bool loop_init(struct dctf_http *http, struct dctf_http_loop *loop)
{
    loop->easies = calloc(http->connections, sizeof(*loop->easies));
    loop->multi = loop->easies ? curl_multi_init() : NULL;
    return loop->multi && !curl_multi_setopt(loop->multi, CURLMOPT_PIPELINING, CURLPIPE_NOTHING);
}

static void destroy(struct dctf_http *http)
{
    for (unsigned i = 0; i < http->loop_count; i++) {
        struct dctf_http_loop *loop = &http->loops[i];

        while (loop->easies_len > 0)
            curl_easy_cleanup(loop->easies[--loop->easies_len]);
        free(loop->easies);
        if (loop->multi)
            curl_multi_cleanup(loop->multi);
    }
    if (http->share)
        curl_share_cleanup(http->share);
    for (size_t i = 0; i < CURL_LOCK_DATA_LAST; i++)
        pthread_mutex_destroy(&http->share_locks[i]);
    pthread_mutex_destroy(&http->lock);
    free(http->user_agent);
    free(http->ca_file);
    free(http->ca_dir);
    free(http->cert_file);
    free(http->key_file);
    free(http);
}

static void settings_init(struct dctf_http *http, const struct dctf_http_config *config)
{
    uint64_t connect_ms =
        config->connect_timeout_ms ? config->connect_timeout_ms : CONNECT_TIMEOUT_DEFAULT_MS;
    unsigned idle;

    http->connections = config->connections ? config->connections : CONNECTIONS_DEFAULT;
    if (http->connections > CONNECTIONS_MAX)
        http->connections = CONNECTIONS_MAX;
    idle = config->idle_connections ? config->idle_connections : http->connections;
    if (idle > CONNECTIONS_MAX)
        idle = CONNECTIONS_MAX;
    http->idle_per_loop = (idle + http->loop_count - 1) / http->loop_count;
    http->connect_timeout_ms = connect_ms < INT_MAX ? (long)connect_ms : INT_MAX;
    http->no_proxy = config->no_proxy;
    http->receive_buffer_bytes =
        config->receive_buffer_bytes < INT_MAX ? (int)config->receive_buffer_bytes : INT_MAX;
}

static enum dctf_err threads_start(struct dctf_http *http)
{
    for (unsigned i = 0; i < http->loop_count; i++) {
        struct dctf_http_loop *loop = &http->loops[i];
        char name[16];
        enum dctf_err err;

        snprintf(name, sizeof(name), "http-%u", i);
        err = dctf_thread_start(name, dctf_http_loop_run, loop, &loop->thread);
        if (err)
            return err;
        loop->started = true;
    }
    return DCTF_OK;
}

enum dctf_err dctf_http_new(const struct dctf_http_config *config, struct dctf_http **out)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    unsigned loops = config->loops ? config->loops : LOOPS_DEFAULT;
    struct dctf_http *http;
    enum dctf_err err;
    bool ok;

    *out = NULL;
    pthread_once(&once, global_init);
    if (global_rc) {
        dctf_log(
            DCTF_LOG_ERROR, "http", "err=%d curl=%d libcurl cannot be used", DCTF_ERR_INTERNAL, global_rc);
        return DCTF_ERR_INTERNAL;
    }
    if (loops > DCTF_HTTP_LOOPS_MAX)
        loops = DCTF_HTTP_LOOPS_MAX;
    http = calloc(1, sizeof(*http) + loops * sizeof(http->loops[0]));
    if (!http)
        return DCTF_ERR_NO_MEMORY;
    http->loop_count = loops;
    settings_init(http, config);
    http->waiting_due_ns = DCTF_HTTP_NEVER;
    dctf_list_init(&http->waiting);
    pthread_mutex_init(&http->lock, NULL);
    for (size_t i = 0; i < CURL_LOCK_DATA_LAST; i++)
        pthread_mutex_init(&http->share_locks[i], NULL);
    http->user_agent = strdup(config->user_agent ? config->user_agent : "dctffs/" DCTF_VERSION);
    ok = http->user_agent && authorities_init(http, config) && certificate_init(http, config) &&
         share_init(http);
    for (unsigned i = 0; i < loops; i++) {
        struct dctf_http_loop *loop = &http->loops[i];

        loop->http = http;
        loop->next_due_ns = DCTF_HTTP_NEVER;
        dctf_list_init(&loop->inbox);
        dctf_list_init(&loop->asked);
        dctf_list_init(&loop->active);
        atomic_init(&loop->sockets, 0);
        ok = ok && loop_init(http, loop);
    }
    if (!ok) {
        destroy(http);
        return DCTF_ERR_NO_MEMORY;
    }
    err = threads_start(http);
    if (err) {
        dctf_http_free(http);
        return err;
    }
    *out = http;
    return DCTF_OK;
}

void dctf_http_free(struct dctf_http *http)
{
    if (!http)
        return;
    pthread_mutex_lock(&http->lock);
    http->closing = true;
    while (!dctf_list_empty(&http->waiting))
        end_waiting_locked(http, dctf_list_entry(http->waiting.next, struct dctf_http_transfer, link),
            DCTF_ERR_SHUTTING_DOWN);
    for (unsigned i = 0; i < http->loop_count; i++)
        dctf_http_wake_locked(&http->loops[i]);
    pthread_mutex_unlock(&http->lock);
    for (unsigned i = 0; i < http->loop_count; i++)
        if (http->loops[i].started)
            pthread_join(http->loops[i].thread, NULL);
    destroy(http);
}
