/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/s3_front.h"

#include "lib/s3_handlers.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct s3_front {
    struct s3_server *server;
    struct MHD_Daemon *plain, *tls;
    uint16_t port, tls_port;
    atomic_bool stopping;
};

static void notify_connection(
    void *cls, struct MHD_Connection *connection, void **context, enum MHD_ConnectionNotificationCode code)
{
    struct s3_front *front = cls;
    struct s3_connection *peer = *context;

    (void)connection;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        peer = s3_alloc(sizeof(*peer));
        peer->number = s3_stats_accept(front->server->stats);
        *context = peer;
        return;
    }
    if (!peer->control)
        s3_stats_close(front->server->stats);
    free(peer);
    *context = NULL;
}

static void *begin_request(void *cls, const char *uri, struct MHD_Connection *connection)
{
    struct s3_front *front = cls;
    /* MHD may not know the target of what is no HTTP. */
    struct s3_request *request = s3_request_new(front->server, connection, uri ? uri : "");
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);

    request->peer = info->socket_context;
    request->stopping = &front->stopping;
    return request;
}

/* The headers are there. */
static void start(struct s3_request *request, const char *method)
{
    s3_request_route(request, method);
    request->begun = true;
    if (request->control) {
        if (!request->peer->control)
            s3_stats_forget_connection(request->server->stats);
        request->peer->control = true;
        return;
    }
    s3_stats_begin(request->server->stats, request->op);
    request->wire_before = s3_request_wire_bytes(request);
}

static enum MHD_Result handle(struct s3_request *request)
{
    const char *prefix = request->op == S3_LIST ? s3_request_param(request, "prefix") : request->key;
    enum MHD_Result result;

    if (request->control)
        return s3_handle_control(request);
    if (request->op == S3_LIST && !prefix)
        prefix = "";
    s3_faults_plan(request->server->faults, request->op, request->bucket, prefix, &request->plan);
    if (s3_handle_fault(request, &result))
        return result;
    switch (request->op) {
    case S3_STS:
        return s3_handle_sts(request);
    case S3_IMDS:
        return s3_handle_imds(request);
    case S3_CONTAINER:
        return s3_handle_container(request);
    default:
        return s3_handle_s3(request);
    }
}

static void count_answer(struct s3_request *request)
{
    struct s3_record record = {
        .op = request->op,
        .method = request->method,
        .target = request->target,
        .host = s3_request_header(request, "Host"),
        .range = s3_request_header(request, "Range"),
        .if_match = s3_request_header(request, "If-Match"),
        .access_key = request->access_key[0] ? request->access_key : NULL,
        .error = request->error[0] ? request->error : NULL,
        .status = request->status,
        .bytes_out = request->bytes,
        .bytes_in = request->body_size,
        .connection = request->peer->number,
        .auth = request->auth,
        .not_canonical = request->not_canonical,
    };

    memcpy(record.faults, request->plan.fired, sizeof(record.faults));
    request->answer = s3_stats_answer(request->server->stats, &record);
    request->answered = true;
}

static enum MHD_Result answer(void *cls, struct MHD_Connection *connection, const char *url,
    const char *method, const char *version, const char *data, size_t *data_size, void **context)
{
    struct s3_request *request = *context;

    (void)cls;
    (void)connection;
    (void)url;
    (void)version;
    if (!request->begun) {
        start(request, method);
        return MHD_YES;
    }
    if (*data_size) {
        s3_request_body(request, data, *data_size);
        *data_size = 0;
        return MHD_YES;
    }
    s3_request_body_end(request);
    enum MHD_Result result = handle(request);

    if (!request->control)
        count_answer(request);
    return result;
}

static void completed(
    void *cls, struct MHD_Connection *connection, void **context, enum MHD_RequestTerminationCode code)
{
    struct s3_request *request = *context;

    (void)cls;
    (void)connection;
    if (!request)
        return;
    if (request->begun && !request->control) {
        uint64_t sent = request->bytes;

        if (!request->answered)
            count_answer(request);
        if (code != MHD_REQUEST_TERMINATED_COMPLETED_OK) {
            uint64_t wire = s3_request_wire_bytes(request);

            sent = wire > request->wire_before ? wire - request->wire_before : 0;
        }
        s3_stats_end(request->server->stats, request->answer, request->bytes, sent);
    }
    s3_request_free(request);
    *context = NULL;
}

/* A socket that listens; -1 on failure. *port becomes the real one. */
static int listen_on(struct in_addr where, uint16_t *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(*port), .sin_addr = where};
    socklen_t len = sizeof(address);
    int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, (struct sockaddr *)&address, sizeof(address)) || listen(fd, 1024) ||
        getsockname(fd, (struct sockaddr *)&address, &len)) {
        close(fd);
        return -1;
    }
    *port = ntohs(address.sin_port);
    return fd;
}

static struct MHD_Daemon *start_daemon(
    struct s3_front *front, uint16_t *port, const struct s3_front_config *config, bool tls)
{
    struct MHD_OptionItem certificate[] = {
        {MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)(uintptr_t)config->tls_cert},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)(uintptr_t)config->tls_key},
        {MHD_OPTION_END, 0, NULL},
    };
    struct MHD_OptionItem none[] = {{MHD_OPTION_END, 0, NULL}};
    unsigned flags = MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL |
                     MHD_USE_SUPPRESS_DATE_NO_CLOCK | MHD_USE_ITC | (tls ? MHD_USE_TLS : 0);
    int fd = listen_on(config->address, port);

    if (fd < 0) {
        perror("dctf-s3-server: listen");
        return NULL;
    }
    struct MHD_Daemon *daemon = MHD_start_daemon(flags, *port, NULL, NULL, answer, front,
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_URI_LOG_CALLBACK, begin_request, front,
        MHD_OPTION_NOTIFY_COMPLETED, completed, front, MHD_OPTION_NOTIFY_CONNECTION, notify_connection, front,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)131072, MHD_OPTION_CONNECTION_LIMIT, 4096u,
        MHD_OPTION_CONNECTION_TIMEOUT, config->idle_timeout, MHD_OPTION_THREAD_STACK_SIZE, (size_t)2 << 20,
        MHD_OPTION_ARRAY, tls ? certificate : none, MHD_OPTION_END);

    if (!daemon) {
        fputs("dctf-s3-server: the HTTP daemon does not start\n", stderr);
        close(fd);
    }
    return daemon;
}

struct s3_front *s3_front_start(struct s3_server *server, const struct s3_front_config *config)
{
    struct s3_front *front = s3_alloc(sizeof(*front));

    front->server = server;
    front->port = config->port;
    front->tls_port = config->tls_port;
    front->plain = start_daemon(front, &front->port, config, false);
    if (front->plain && config->tls_cert)
        front->tls = start_daemon(front, &front->tls_port, config, true);
    if (!front->plain || (config->tls_cert && !front->tls)) {
        s3_front_stop(front);
        return NULL;
    }
    return front;
}

uint16_t s3_front_port(const struct s3_front *front)
{
    return front->port;
}

uint16_t s3_front_tls_port(const struct s3_front *front)
{
    return front->tls ? front->tls_port : 0;
}

void s3_front_stop(struct s3_front *front)
{
    atomic_store(&front->stopping, true);
    if (front->plain)
        MHD_stop_daemon(front->plain);
    if (front->tls)
        MHD_stop_daemon(front->tls);
    free(front);
}
