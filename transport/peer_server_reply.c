/* SPDX-License-Identifier: Apache-2.0
 *
 * Answers of the peer server: what handlers call, from any thread, and how an answer becomes a response on
 * its connection's own thread.
 */
#include "transport/peer_server_internal.h"

#include "base/log.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define RETRY_MS 20u

/* --- answering --- */

/* The answer is in the request; from here on it is no longer the handler's. */
static void answered(struct dctf_peer_request *request)
{
    struct dctf_peer_server *server = request->server;
    bool last;

    pthread_mutex_lock(&server->lock);
    assert(!request->answered && request->refs > 0);
    request->answered = true;
    last = --request->refs == 0; /* its connection is gone */
    if (request->suspended) {
        request->suspended = false;
        MHD_resume_connection(request->mhd);
    }
    pthread_mutex_unlock(&server->lock);
    if (last)
        dctf_peer_request_free(request);
}

static void tell_blocks(struct dctf_peer_request *request, bool framed, const uint64_t *sums,
    const struct dctf_peer_origin *origin)
{
    struct dctf_peer_told *told = &request->told;

    told->err = DCTF_OK;
    told->framed = framed;
    told->from = origin->from;
    told->wait_us = origin->waited_us;
    told->sum_count = request->asked.ask.count;
    assert(told->sum_count <= DCTF_PEER_BLOCKS_MAX);
    memcpy(told->sums, sums, told->sum_count * sizeof(*sums));
    request->status = MHD_HTTP_OK;
}

void dctf_peer_reply_memory(struct dctf_peer_request *request, const void *data, size_t len, bool framed,
    const uint64_t *sums, const struct dctf_peer_origin *origin, void (*release)(void *ctx), void *ctx)
{
    tell_blocks(request, framed, sums, origin);
    request->data = data;
    request->len = len;
    request->release = release;
    request->release_ctx = ctx;
    answered(request);
}

void dctf_peer_reply_file(struct dctf_peer_request *request, int fd, uint64_t offset, size_t len,
    const uint64_t *sums, const struct dctf_peer_origin *origin, void (*release)(void *ctx), void *ctx)
{
    tell_blocks(request, false, sums, origin);
    request->fd = fd;
    request->offset = offset;
    request->len = len;
    request->release = release;
    request->release_ctx = ctx;
    answered(request);
}

void dctf_peer_reply_have(struct dctf_peer_request *request, bool here, bool on_its_way)
{
    request->status = here ? MHD_HTTP_OK : on_its_way ? MHD_HTTP_ACCEPTED : MHD_HTTP_NO_CONTENT;
    answered(request);
}

void dctf_peer_reply_spare(struct dctf_peer_request *request, enum dctf_peer_spare spare)
{
    request->told.spare = spare;
}

void dctf_peer_reply_error(
    struct dctf_peer_request *request, enum dctf_err err, uint64_t retry_ms, const char *try)
{
    struct dctf_peer_told *told = &request->told;

    assert(err);
    request->status = dctf_peer_status(err);
    told->err = request->status == MHD_HTTP_NO_CONTENT ? DCTF_OK : err;
    if (err == DCTF_ERR_BAD_REQUEST) /* it was understood, so it is for another dataset */
        request->status = MHD_HTTP_CONFLICT;
    if (err == DCTF_ERR_PEER_BUSY) {
        told->retry_ms = retry_ms < DCTF_PEER_MS_MAX ? retry_ms : DCTF_PEER_MS_MAX;
        if (try && strlen(try) < sizeof(told->try))
            strcpy(told->try, try);
    }
    answered(request);
}

void dctf_peer_request_path(const struct dctf_peer_request *request, struct dctf_peer_path *out)
{
    struct dctf_peer_server *server = request->server;

    *out = (struct dctf_peer_path){0};
    pthread_mutex_lock(&server->lock);
    if (!request->gone)
        dctf_peer_socket_path(request->connection->fd, out);
    pthread_mutex_unlock(&server->lock);
}

/* --- sending --- */

static struct MHD_Response *empty(void)
{
    return MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
}

/* NULL: no memory, or no descriptor. */
static struct MHD_Response *with_body(const struct dctf_peer_request *request)
{
    struct MHD_Response *response;
    int fd;

    if (request->fd < 0)
        return MHD_create_response_from_buffer(
            request->len, (void *)(uintptr_t)request->data, MHD_RESPMEM_PERSISTENT);
    fd = fcntl(request->fd, F_DUPFD_CLOEXEC, 0); /* MHD closes its own */
    if (fd < 0)
        return NULL;
    response = MHD_create_response_from_fd_at_offset64(request->len, fd, request->offset);
    if (!response)
        close(fd);
    return response;
}

static struct MHD_Response *make_response(struct dctf_peer_request *request)
{
    struct MHD_Response *response;

    if (!request->len)
        return empty();
    response = with_body(request);
    if (response)
        return response;
    dctf_log(DCTF_LOG_WARN, "peer", "op=reply err=%d errno=%d", DCTF_ERR_PEER_BUSY, errno);
    request->len = 0;
    request->told.err = DCTF_ERR_PEER_BUSY;
    request->told.retry_ms = RETRY_MS;
    request->told.sum_count = 0;
    request->status = dctf_peer_status(DCTF_ERR_PEER_BUSY);
    return empty();
}

static void add_header(void *ctx, const char *name, const char *value)
{
    /* Without memory for it the answer is one that the asker does not understand. */
    if (MHD_add_response_header(ctx, name, value) != MHD_YES)
        dctf_log(DCTF_LOG_WARN, "peer", "op=reply err=%d header=%s", DCTF_ERR_NO_MEMORY, name);
}

static void pace(struct dctf_peer_request *request)
{
    struct dctf_peer_connection *connection = request->connection;

    if (!request->max_rate && !connection->paced)
        return;
    dctf_peer_socket_pace(connection->fd, request->max_rate);
    connection->paced = request->max_rate != 0;
}

enum MHD_Result dctf_peer_request_send(struct dctf_peer_request *request)
{
    struct dctf_peer_server *server = request->server;
    struct MHD_Response *response = make_response(request);
    enum MHD_Result result;

    if (!response)
        return MHD_NO;
    /* The view and the path are for peers, and nobody is one before it is proven. */
    if (atomic_load(&request->connection->served)) {
        if (server->config.view)
            request->told.view = server->config.view(server->config.ctx);
        dctf_peer_socket_path(request->connection->fd, &request->told.path);
    }
    dctf_peer_told_write(&request->told, add_header, response);
    if (request->close)
        add_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    pace(request);
    result = MHD_queue_response(request->mhd, (unsigned)request->status, response);
    MHD_destroy_response(response);
    return result;
}
