/* SPDX-License-Identifier: Apache-2.0
 *
 * A request to the peer server, from its first line until it is completed: who asks, what, and whether there
 * is room for it.
 */
#include "transport/peer_server_internal.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/metric.h"
#include "base/str.h"

#include <arpa/inet.h>
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* After these, whoever was shed may come again. */
#define RETRY_DEMAND_MS 20u
#define RETRY_BACKGROUND_MS 200u

/* --- the head --- */

void *dctf_peer_request_begin(void *cls, const char *uri, struct MHD_Connection *mhd)
{
    struct dctf_peer_server *server = cls;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct dctf_peer_connection *connection = info ? info->socket_context : NULL;
    struct dctf_peer_request *request;
    char *query;
    uint64_t due_ms = dctf_clock_mono_ms(NULL) + server->config.head_timeout_ms;

    if (!connection)
        return NULL;
    if (connection->request)
        dctf_peer_request_end(connection->request, false);
    request = calloc(1, sizeof(*request));
    if (!request)
        return NULL;
    connection->request = request;
    request->server = server;
    request->connection = connection;
    request->mhd = mhd;
    request->fd = -1;
    request->refs = 1;
    dctf_list_init(&request->link);
    if (uri && strlen(uri) <= DCTF_PEER_TARGET_MAX)
        request->target = strdup(uri);
    /* MHD has not parsed the query yet, and finds none: what it notes about one could fill its memory, and
     * 0.9.75 does not survive that. */
    query = uri ? strchr(uri, '?') : NULL;
    if (query)
        query[1] = '\0';
    if (due_ms < atomic_load(&connection->head_due_ms))
        atomic_store(&connection->head_due_ms, due_ms);
    pthread_mutex_lock(&server->lock);
    server->refs++;
    pthread_mutex_unlock(&server->lock);
    return request;
}

struct heads {
    struct dctf_peer_header all[DCTF_PEER_SERVER_HEADERS_MAX];
    size_t count;
    bool too_many;
    bool body;
};

static enum MHD_Result collect(void *cls, enum MHD_ValueKind kind, const char *name, const char *value)
{
    struct heads *heads = cls;

    (void)kind;
    if (!name)
        return MHD_YES;
    if (!value)
        value = "";
    heads->body |= !strcasecmp(name, "Transfer-Encoding") ||
                   (!strcasecmp(name, "Content-Length") && strcmp(value, "0") != 0);
    heads->too_many = heads->count == DCTF_PEER_SERVER_HEADERS_MAX;
    if (heads->too_many)
        return MHD_NO;
    heads->all[heads->count++] = (struct dctf_peer_header){.name = name, .value = value};
    return MHD_YES;
}

/* --- who asks --- */

static const char *find(const struct heads *heads, const char *name)
{
    for (size_t i = 0; i < heads->count; i++)
        if (!strcasecmp(heads->all[i].name, name))
            return heads->all[i].value;
    return NULL;
}

static enum dctf_err verify(struct dctf_peer_request *request, const struct heads *heads)
{
    struct dctf_peer_header bound[DCTF_PEER_SERVER_HEADERS_MAX];
    struct dctf_peer_auth_input input = {.method = MHD_HTTP_METHOD_GET, .target = request->target};
    struct dctf_peer_server *server = request->server;

    if (server->tls.cert && !request->connection->tls_proven) {
        request->connection->tls_proven = dctf_peer_tls_proven(request->mhd);
        if (!request->connection->tls_proven)
            return DCTF_ERR_PEER_AUTH;
    }
    if (!server->verifier)
        return DCTF_OK;
    for (size_t i = 0; i < heads->count; i++)
        if (!strncasecmp(heads->all[i].name, "Dctf-", 5) && strcasecmp(heads->all[i].name, "Dctf-Auth") != 0)
            bound[input.bound_count++] = heads->all[i];
    input.bound = bound;
    input.node = find(heads, "Dctf-Node");
    if (!input.node)
        return DCTF_ERR_PEER_AUTH;
    return dctf_peer_verify(server->verifier, &input, find(heads, "Dctf-Auth"));
}

static enum dctf_err parse(struct dctf_peer_request *request, const struct heads *heads)
{
    struct dctf_peer_asked *asked = &request->asked;
    struct dctf_peer_call call;
    enum dctf_err err = dctf_peer_target_parse(request->target, &asked->ask);

    if (!err)
        err = dctf_peer_call_parse(heads->all, heads->count, &call);
    if (err)
        return err;
    static_assert(sizeof(asked->node) >= sizeof(call.node), "");
    memcpy(asked->node, call.node, sizeof(call.node));
    asked->class = call.class;
    asked->hop = call.hop;
    asked->deadline_ms = call.deadline_ms;
    asked->view = call.view;
    asked->accepts_lz4 = call.accepts_lz4;
    asked->tried = call.tried;
    request->max_rate = call.max_rate;
    return DCTF_OK;
}

static enum dctf_err examine(struct dctf_peer_request *request, const char *method)
{
    struct heads heads = {.count = 0};
    enum dctf_err err;

    MHD_get_connection_values(request->mhd, MHD_HEADER_KIND, collect, &heads);
    if (!request->target || heads.too_many || heads.body || strcmp(method, MHD_HTTP_METHOD_GET) != 0)
        return DCTF_ERR_BAD_REQUEST;
    err = verify(request, &heads);
    return err ? err : parse(request, &heads);
}

/* --- whether there is room --- */

/* Background leaves when demand is near its bound, and of background replication before what a reader will
 * probably ask for. */
static bool has_room_locked(const struct dctf_peer_server *server, enum dctf_fetch_class class)
{
    const size_t *running = server->running;
    size_t demand_max = server->config.demand_max, background_max = server->config.background_max;
    size_t background = running[DCTF_FETCH_PREFETCH] + running[DCTF_FETCH_REPLICATION];

    if (class == DCTF_FETCH_DEMAND)
        return running[DCTF_FETCH_DEMAND] < demand_max;
    if (running[DCTF_FETCH_DEMAND] >= demand_max - demand_max / 4)
        return false;
    if (class == DCTF_FETCH_REPLICATION)
        background_max -= background_max / 4;
    return background < background_max;
}

/* Take a place under way, and a reference for the handler. */
static enum dctf_err admit(struct dctf_peer_request *request)
{
    struct dctf_peer_server *server = request->server;
    enum dctf_fetch_class class = request->asked.class;
    enum dctf_err err = DCTF_OK;

    pthread_mutex_lock(&server->lock);
    if (server->stopping) {
        err = DCTF_ERR_SHUTTING_DOWN;
    } else if (!has_room_locked(server, class)) {
        err = DCTF_ERR_PEER_BUSY;
        server->shed++;
    } else {
        server->running[class]++;
        dctf_list_push_back(&server->requests, &request->link);
        request->counted = true;
        request->refs++;
        request->stage = DCTF_PEER_STAGE_HELD;
    }
    pthread_mutex_unlock(&server->lock);
    return err;
}

/* --- the course of a request --- */

static void log_refusal(const struct dctf_peer_request *request, enum dctf_err err)
{
    char addr[INET6_ADDRSTRLEN] = "", target[120];

    inet_ntop(AF_INET6, &request->connection->addr, addr, sizeof(addr));
    dctf_log(DCTF_LOG_WARN, "peer", "op=refuse err=%d from=%s target=%s", err, addr,
        dctf_str_quote(request->target ? request->target : "", target, sizeof(target)));
}

/* Answer by the server itself. Whoever is refused for what it is, or cannot be understood, loses its
 * connection: only a proven peer keeps one. */
static enum MHD_Result answer_now(struct dctf_peer_request *request, enum dctf_err err)
{
    struct dctf_peer_server *server = request->server;

    request->told.err = err;
    request->status = dctf_peer_status(err);
    if (err == DCTF_ERR_PEER_BUSY)
        request->told.retry_ms =
            request->asked.class == DCTF_FETCH_DEMAND ? RETRY_DEMAND_MS : RETRY_BACKGROUND_MS;
    if (err == DCTF_ERR_PEER_AUTH || err == DCTF_ERR_BAD_REQUEST) {
        request->close = true;
        log_refusal(request, err);
        pthread_mutex_lock(&server->lock);
        server->refused++;
        pthread_mutex_unlock(&server->lock);
    }
    if (err == DCTF_ERR_SHUTTING_DOWN)
        request->close = true;
    return dctf_peer_request_send(request);
}

/* The handler ran: send its answer, or wait for it. */
static enum MHD_Result send_or_wait(struct dctf_peer_request *request)
{
    struct dctf_peer_server *server = request->server;
    bool answered, aborting;

    pthread_mutex_lock(&server->lock);
    answered = request->answered;
    aborting = server->aborting;
    if (!answered && !aborting) {
        request->suspended = true;
        MHD_suspend_connection(request->mhd);
    }
    pthread_mutex_unlock(&server->lock);
    if (answered)
        return dctf_peer_request_send(request);
    return aborting ? MHD_NO : MHD_YES;
}

static enum MHD_Result serve(struct dctf_peer_request *request, const char *method)
{
    struct dctf_peer_server *server = request->server;
    enum dctf_err err = examine(request, method);

    if (!err)
        atomic_store(&request->connection->served, true);
    if (err || request->asked.ask.op == DCTF_PEER_PING)
        return answer_now(request, err);
    err = admit(request);
    if (err)
        return answer_now(request, err);
    server->config.handle(server->config.ctx, request, &request->asked);
    return send_or_wait(request);
}

enum MHD_Result dctf_peer_request_access(void *cls, struct MHD_Connection *mhd, const char *url,
    const char *method, const char *version, const char *data, size_t *size, void **context)
{
    struct dctf_peer_request *request = *context;
    struct heads heads = {.count = 0};

    (void)cls;
    (void)url;
    (void)version;
    (void)data;
    if (!request)
        return MHD_NO;
    switch (request->stage) {
    case DCTF_PEER_STAGE_HEAD:
        atomic_store(&request->connection->head_due_ms, 0);
        request->stage = DCTF_PEER_STAGE_WHOLE;
        /* An answer before the body makes MHD close the connection instead of reading it. */
        MHD_get_connection_values(mhd, MHD_HEADER_KIND, collect, &heads);
        return heads.body || heads.too_many ? answer_now(request, DCTF_ERR_BAD_REQUEST) : MHD_YES;
    case DCTF_PEER_STAGE_WHOLE:
        return *size ? MHD_NO : serve(request, method);
    default: /* resumed: answered, or the server ends */
        return send_or_wait(request);
    }
}

/* --- the end --- */

static enum dctf_metric result_of(const struct dctf_peer_request *request, bool whole)
{
    if (!whole)
        return DCTF_METRIC_PEER_REQUESTS_DROPPED;
    if (request->status == MHD_HTTP_NO_CONTENT)
        return DCTF_METRIC_PEER_REQUESTS_ABSENT;
    switch (request->told.err) {
    case DCTF_OK:
        return DCTF_METRIC_PEER_REQUESTS_OK;
    case DCTF_ERR_PEER_BUSY:
    case DCTF_ERR_SHUTTING_DOWN:
        return DCTF_METRIC_PEER_REQUESTS_BUSY;
    case DCTF_ERR_PEER_AUTH:
    case DCTF_ERR_BAD_REQUEST:
        return DCTF_METRIC_PEER_REQUESTS_REFUSED;
    default:
        return DCTF_METRIC_PEER_REQUESTS_FAILED;
    }
}

void dctf_peer_request_end(struct dctf_peer_request *request, bool whole)
{
    struct dctf_peer_server *server = request->server;
    size_t bytes = whole && !dctf_peer_is_meta(request->asked.ask.op) ? request->len : 0; /* of shards */
    bool last;

    request->connection->request = NULL;
    atomic_store(&request->connection->head_due_ms, dctf_clock_mono_ms(NULL) + DCTF_PEER_SERVER_IDLE_MS);
    dctf_metric_add(server->config.metrics, result_of(request, whole), 1);
    if (bytes)
        dctf_metric_add(server->config.metrics, DCTF_METRIC_PEER_BYTES_OUT, (int64_t)bytes);
    pthread_mutex_lock(&server->lock);
    if (request->counted) {
        server->running[request->asked.class]--;
        dctf_list_remove(&request->link);
        if (dctf_list_empty(&server->requests))
            pthread_cond_broadcast(&server->done);
    }
    server->bytes_out += bytes;
    request->gone = true;
    request->suspended = false;
    assert(request->refs > 0);
    last = --request->refs == 0;
    pthread_mutex_unlock(&server->lock);
    if (last)
        dctf_peer_request_free(request);
}

void dctf_peer_request_completed(
    void *cls, struct MHD_Connection *mhd, void **context, enum MHD_RequestTerminationCode code)
{
    struct dctf_peer_request *request = *context;

    (void)cls;
    (void)mhd;
    *context = NULL;
    if (request)
        dctf_peer_request_end(request, code == MHD_REQUEST_TERMINATED_COMPLETED_OK);
}

void dctf_peer_request_free(struct dctf_peer_request *request)
{
    struct dctf_peer_server *server = request->server;

    if (request->release)
        request->release(request->release_ctx);
    free(request->target);
    free(request);
    dctf_peer_server_unref(server);
}
