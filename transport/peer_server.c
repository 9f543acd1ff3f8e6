/* SPDX-License-Identifier: Apache-2.0
 *
 * Start and end of the peer server, its connections, and the watch over heads that are long in coming. What
 * becomes of a request is in peer_server_request.c and peer_server_reply.c.
 */
#include "transport/peer_server_internal.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/metric.h"
#include "base/str.h"
#include "base/thread.h"

#include <assert.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define DETAIL_BYTES 256u
/* Nonces are kept for four minutes: this is enough for 8,700 requests a second. */
#define NONCES_MAX (1u << 21)
#define THREADS_MAX 4u
#define STACK_BYTES ((size_t)512 * 1024)
#define TICK_MIN_MS 10u
#define TICK_MAX_MS 250u

/* --- connections --- */

static struct in6_addr address_of(struct MHD_Connection *mhd)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr *addr = info ? info->client_addr : NULL;
    struct in6_addr out = {0};

    if (addr && addr->sa_family == AF_INET6) {
        out = ((const struct sockaddr_in6 *)(const void *)addr)->sin6_addr;
    } else if (addr && addr->sa_family == AF_INET) { /* as a mapped one */
        out.s6_addr[10] = out.s6_addr[11] = 0xff;
        memcpy(&out.s6_addr[12], &((const struct sockaddr_in *)(const void *)addr)->sin_addr, 4);
    }
    return out;
}

static size_t count_of_locked(const struct dctf_peer_server *server, const struct in6_addr *addr)
{
    size_t count = 0;

    for (struct dctf_list *at = server->connections.next; at != &server->connections; at = at->next)
        count += !memcmp(&dctf_list_entry(at, struct dctf_peer_connection, link)->addr, addr, sizeof(*addr));
    return count;
}

static void *connection_new(struct dctf_peer_server *server, struct MHD_Connection *mhd)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct dctf_peer_connection *connection = calloc(1, sizeof(*connection));
    unsigned max = server->config.connections / 4 ? server->config.connections / 4 : 1;
    bool refused, stopping;

    if (!connection || !info) {
        if (info)
            shutdown(info->connect_fd, SHUT_RDWR);
        free(connection);
        return NULL;
    }
    dctf_list_init(&connection->link);
    connection->fd = info->connect_fd;
    connection->addr = address_of(mhd);
    atomic_init(&connection->head_due_ms, dctf_clock_mono_ms(NULL) + server->config.head_timeout_ms);
    atomic_init(&connection->served, false);
    if (server->tls.cert)
        dctf_peer_tls_demand(mhd);
    pthread_mutex_lock(&server->lock);
    stopping = server->stopping;
    refused = !stopping && count_of_locked(server, &connection->addr) >= max;
    server->refused += refused;
    if (stopping || refused)
        shutdown(connection->fd, SHUT_RDWR); /* MHD notices, and closes it */
    dctf_list_push_back(&server->connections, &connection->link);
    server->connection_count++;
    pthread_cond_signal(&server->watch_wake);
    pthread_mutex_unlock(&server->lock);
    dctf_metric_add(server->config.metrics, DCTF_METRIC_PEER_CONNECTIONS, 1);
    if (refused) {
        dctf_metric_add(server->config.metrics, DCTF_METRIC_PEER_CONNECTIONS_REFUSED, 1);
        dctf_log(DCTF_LOG_WARN, "peer", "op=accept err=%d reason=\"too many connections of one address\"",
            DCTF_ERR_PEER_BUSY);
    }
    return connection;
}

static void notify_connection(
    void *cls, struct MHD_Connection *mhd, void **context, enum MHD_ConnectionNotificationCode code)
{
    struct dctf_peer_server *server = cls;
    struct dctf_peer_connection *connection = *context;

    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        *context = connection_new(server, mhd);
        return;
    }
    if (!connection)
        return;
    if (connection->request)
        dctf_peer_request_end(connection->request, false);
    pthread_mutex_lock(&server->lock);
    dctf_list_remove(&connection->link); /* MHD closes its socket after this */
    server->connection_count--;
    pthread_mutex_unlock(&server->lock);
    dctf_metric_add(server->config.metrics, DCTF_METRIC_PEER_CONNECTIONS, -1);
    free(connection);
    *context = NULL;
}

/* --- the watch --- */

static void check_locked(struct dctf_peer_server *server, uint64_t now_ms)
{
    for (struct dctf_list *at = server->connections.next; at != &server->connections; at = at->next) {
        struct dctf_peer_connection *connection = dctf_list_entry(at, struct dctf_peer_connection, link);
        uint64_t due_ms = atomic_load(&connection->head_due_ms);

        /* The head may have come in between: then its request is cut off, as it would have been had the watch
         * looked a moment earlier. */
        if (!due_ms || now_ms < due_ms ||
            !atomic_compare_exchange_strong(&connection->head_due_ms, &due_ms, 0))
            continue;
        shutdown(connection->fd, SHUT_RDWR);
        if (!atomic_load(&connection->served)) {
            server->refused++;
            dctf_metric_add(server->config.metrics, DCTF_METRIC_PEER_CONNECTIONS_REFUSED, 1);
        }
    }
}

static void *watch_main(void *ctx)
{
    struct dctf_peer_server *server = ctx;
    uint64_t tick_ms = server->config.head_timeout_ms / 4;

    tick_ms = tick_ms < TICK_MIN_MS ? TICK_MIN_MS : tick_ms > TICK_MAX_MS ? TICK_MAX_MS : tick_ms;
    pthread_mutex_lock(&server->lock);
    while (!server->watch_ends) {
        struct timespec due;

        if (server->connection_count == 0) {
            pthread_cond_wait(&server->watch_wake, &server->lock);
            continue;
        }
        clock_gettime(CLOCK_MONOTONIC, &due);
        due.tv_nsec += (long)tick_ms * 1000000;
        due.tv_sec += due.tv_nsec / 1000000000;
        due.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&server->watch_wake, &server->lock, &due);
        check_locked(server, dctf_clock_mono_ms(NULL));
    }
    pthread_mutex_unlock(&server->lock);
    return NULL;
}

/* --- start --- */

/* What MHD has to say is about its clients, and told of none by name. */
static void log_mhd(void *cls, const char *format, va_list args)
{
    char text[512], quoted[600];

    (void)cls;
    if (dctf_log_level() < DCTF_LOG_DEBUG)
        return;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    vsnprintf(text, sizeof(text), format, args);
#pragma GCC diagnostic pop
    text[strcspn(text, "\r\n")] = '\0';
    dctf_log(DCTF_LOG_DEBUG, "peer", "op=http text=%s", dctf_str_quote(text, quoted, sizeof(quoted)));
}

static enum dctf_err start_daemon(struct dctf_peer_server *server, bool ipv6, char *detail)
{
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC |
                     MHD_USE_ERROR_LOG | MHD_USE_SUPPRESS_DATE_NO_CLOCK | (ipv6 ? MHD_USE_IPv6 : 0) |
                     (server->tls.cert ? MHD_USE_TLS : 0);
    struct MHD_OptionItem none[] = {{MHD_OPTION_END, 0, NULL}};
    struct MHD_OptionItem pool[] = {
        {MHD_OPTION_THREAD_POOL_SIZE, (intptr_t)server->config.threads, NULL}, {MHD_OPTION_END, 0, NULL}};
    struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_MEM_CERT, 0, server->tls.cert},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, server->tls.key},
        {MHD_OPTION_HTTPS_MEM_TRUST, 0, server->tls.ca},
        {MHD_OPTION_END, 0, NULL},
    };
    sigset_t all, old;

    sigfillset(&all); /* MHD's threads take no signals */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    server->daemon = MHD_start_daemon(flags, 0, NULL, NULL, dctf_peer_request_access, server,
        MHD_OPTION_EXTERNAL_LOGGER, log_mhd, NULL, MHD_OPTION_LISTEN_SOCKET, server->listener,
        MHD_OPTION_URI_LOG_CALLBACK, dctf_peer_request_begin, server, MHD_OPTION_NOTIFY_COMPLETED,
        dctf_peer_request_completed, server, MHD_OPTION_NOTIFY_CONNECTION, notify_connection, server,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)DCTF_PEER_SERVER_HEAD_BYTES, MHD_OPTION_CONNECTION_LIMIT,
        server->config.connections, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_THREAD_STACK_SIZE,
        STACK_BYTES, MHD_OPTION_ARRAY, server->config.threads > 1 ? pool : none, MHD_OPTION_ARRAY,
        server->tls.cert ? tls : none, MHD_OPTION_END);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (server->daemon) {
        server->listener = -1; /* MHD's */
        return DCTF_OK;
    }
    /* It may have been closed or not, depending on what failed. */
    if (!dctf_peer_socket_listens(server->listener, server->port))
        server->listener = -1;
    snprintf(detail, DETAIL_BYTES, "the HTTP server for peers does not start");
    return DCTF_ERR_SYSTEM;
}

static unsigned or_default(unsigned value, unsigned otherwise)
{
    return value ? value : otherwise;
}

static void set_defaults(struct dctf_peer_server_config *config)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);

    config->threads = or_default(config->threads, cores < 1                   ? 1
                                                  : cores > (long)THREADS_MAX ? THREADS_MAX
                                                                              : (unsigned)cores);
    config->connections = or_default(config->connections, 1024);
    if (config->threads > config->connections)
        config->threads = config->connections;
    config->demand_max = or_default(config->demand_max, 256);
    config->background_max = or_default(config->background_max, 32);
    if (!config->head_timeout_ms)
        config->head_timeout_ms = 5000;
    if (!config->reply_timeout_ms)
        config->reply_timeout_ms = 15000;
}

static void server_free(struct dctf_peer_server *server)
{
    pthread_cond_destroy(&server->done);
    pthread_cond_destroy(&server->watch_wake);
    pthread_mutex_destroy(&server->lock);
    free(server);
}

/* What a late answer needs nothing of. */
static void let_go(struct dctf_peer_server *server)
{
    if (server->listener >= 0)
        close(server->listener);
    server->listener = -1;
    if (server->verifier)
        dctf_peer_verifier_free(server->verifier);
    server->verifier = NULL;
    dctf_peer_tls_fini(&server->tls);
}

static void stop_watch(struct dctf_peer_server *server)
{
    pthread_mutex_lock(&server->lock);
    server->watch_ends = true;
    pthread_cond_signal(&server->watch_wake);
    pthread_mutex_unlock(&server->lock);
    pthread_join(server->watch, NULL);
}

static enum dctf_err start(
    struct dctf_peer_server *server, const struct dctf_peer_server_config *config, char *detail)
{
    bool secret = config->secret && *config->secret;
    bool ipv6;
    enum dctf_err err = dctf_peer_tls_load(&server->tls, config, detail);

    if (!err && secret)
        err = dctf_peer_verifier_new(config->secret, NONCES_MAX, NULL, &server->verifier);
    if (!err)
        err = dctf_peer_socket_listen(config->listen, !secret && !server->tls.cert,
            server->config.reply_timeout_ms, &server->listener, &server->port, &ipv6, detail);
    if (!err)
        err = dctf_thread_start("dctf-peer-watch", watch_main, server, &server->watch);
    if (err)
        return err;
    err = start_daemon(server, ipv6, detail);
    if (err)
        stop_watch(server);
    return err;
}

static enum dctf_err server_new(const struct dctf_peer_server_config *config, struct dctf_peer_server **out)
{
    struct dctf_peer_server *server = calloc(1, sizeof(*server));

    *out = NULL;
    if (!server)
        return DCTF_ERR_NO_MEMORY;
    server->config = *config;
    set_defaults(&server->config);
    server->config.listen = server->config.secret = NULL;
    server->config.cert_file = server->config.key_file = server->config.ca_file = NULL;
    server->listener = -1;
    server->refs = 1;
    dctf_list_init(&server->connections);
    dctf_list_init(&server->requests);
    if (dctf_thread_cond_init(&server->watch_wake)) {
        free(server);
        return DCTF_ERR_SYSTEM;
    }
    if (dctf_thread_cond_init(&server->done)) {
        pthread_cond_destroy(&server->watch_wake);
        free(server);
        return DCTF_ERR_SYSTEM;
    }
    pthread_mutex_init(&server->lock, NULL);
    *out = server;
    return DCTF_OK;
}

enum dctf_err dctf_peer_server_start(
    const struct dctf_peer_server_config *config, char *detail, struct dctf_peer_server **out)
{
    struct dctf_peer_server *server;
    enum dctf_err err;

    *out = NULL;
    *detail = '\0';
    err = server_new(config, &server);
    if (err)
        return err;
    err = start(server, config, detail);
    if (err) {
        let_go(server);
        server_free(server);
        return err;
    }
    dctf_log(DCTF_LOG_INFO, "peer", "op=listen port=%u secret=%d tls=%d threads=%u", server->port,
        server->verifier != NULL, server->tls.cert != NULL, server->config.threads);
    *out = server;
    return DCTF_OK;
}

/* --- stop --- */

/* Requests that are not answered yet lose their connection: MHD may not stop while one is suspended. */
static void abort_locked(struct dctf_peer_server *server)
{
    server->aborting = true;
    for (struct dctf_list *at = server->requests.next; at != &server->requests; at = at->next) {
        struct dctf_peer_request *request = dctf_list_entry(at, struct dctf_peer_request, link);

        if (request->suspended) {
            request->suspended = false;
            MHD_resume_connection(request->mhd);
        }
    }
}

static void drain(struct dctf_peer_server *server)
{
    struct timespec due;

    clock_gettime(CLOCK_MONOTONIC, &due);
    due.tv_sec += (time_t)(server->config.reply_timeout_ms / 1000);
    due.tv_nsec += (long)(server->config.reply_timeout_ms % 1000) * 1000000;
    due.tv_sec += due.tv_nsec / 1000000000;
    due.tv_nsec %= 1000000000;
    pthread_mutex_lock(&server->lock);
    while (!dctf_list_empty(&server->requests))
        if (pthread_cond_timedwait(&server->done, &server->lock, &due))
            break;
    abort_locked(server);
    pthread_mutex_unlock(&server->lock);
}

/* The address stays open until MHD stops, and who comes is turned away: MHD_quiesce_daemon() of 0.9.75 ends
 * the process when a thread of its pool wakes up in the same moment. */
void dctf_peer_server_stop(struct dctf_peer_server *server)
{
    pthread_mutex_lock(&server->lock);
    server->stopping = true;
    pthread_mutex_unlock(&server->lock);
    drain(server);
    stop_watch(server);
    MHD_stop_daemon(server->daemon);
    let_go(server);
    dctf_peer_server_unref(server);
}

void dctf_peer_server_unref(struct dctf_peer_server *server)
{
    bool last;

    pthread_mutex_lock(&server->lock);
    assert(server->refs > 0);
    last = --server->refs == 0;
    pthread_mutex_unlock(&server->lock);
    if (last)
        server_free(server);
}

unsigned dctf_peer_server_port(const struct dctf_peer_server *server)
{
    return server->port;
}

void dctf_peer_server_stats(struct dctf_peer_server *server, struct dctf_peer_server_stats *out)
{
    pthread_mutex_lock(&server->lock);
    *out = (struct dctf_peer_server_stats){
        .connections = server->connection_count,
        .refused = server->refused,
        .shed = server->shed,
        .bytes_out = server->bytes_out,
    };
    memcpy(out->running, server->running, sizeof(out->running));
    pthread_mutex_unlock(&server->lock);
}
