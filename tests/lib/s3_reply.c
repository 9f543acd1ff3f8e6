/* SPDX-License-Identifier: Apache-2.0
 *
 * Answers. Files go out by sendfile(2), unless TLS or a fault that acts within the body wants to see the
 * bytes.
 */
#include "lib/s3_request.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK (256u * 1024)

/* A body that is handed to MHD piece by piece. */
struct stream {
    struct s3_request *request;
    int fd;              /* -1: text */
    struct s3_text text; /* owned */
    uint64_t offset;     /* where the body begins */
    uint64_t length;
    bool acted; /* the fault has happened */
};

void s3_reply_header(struct s3_request *request, const char *name, const char *value)
{
    if (request->headers_count == sizeof(request->headers) / sizeof(request->headers[0]))
        abort();
    request->headers[request->headers_count++] = (struct s3_param){s3_copy(name), s3_copy(value)};
}

static void stream_free(void *cls)
{
    struct stream *stream = cls;

    if (stream->fd >= 0)
        close(stream->fd);
    s3_text_fini(&stream->text);
    free(stream);
}

/* Whether the fault of this plan acts within the body. */
static bool acts_in_body(const struct s3_plan *plan)
{
    return plan->act.after >= 0 && (plan->act.kind == S3_FAULT_RESET || plan->act.kind == S3_FAULT_CUT ||
                                       plan->act.kind == S3_FAULT_STALL);
}

/* False when the body ends here. */
static bool act(struct stream *stream)
{
    struct s3_request *request = stream->request;
    const struct s3_act *what = &request->plan.act;

    stream->acted = true;
    if (what->kind == S3_FAULT_STALL)
        return s3_request_nap(request, what->ms, what->id);
    if (what->kind == S3_FAULT_RESET) {
        /* What was sent is to arrive: RST overtakes it. */
        s3_request_nap(request, 20, 0);
        s3_request_reset(request);
    }
    return false;
}

static ssize_t stream_read(void *cls, uint64_t pos, char *buffer, size_t max)
{
    struct stream *stream = cls;
    struct s3_request *request = stream->request;
    const struct s3_plan *plan = &request->plan;
    uint64_t left = stream->length - pos, until;

    if (acts_in_body(plan) && !stream->acted) {
        if (pos >= (uint64_t)plan->act.after && !act(stream))
            return MHD_CONTENT_READER_END_WITH_ERROR;
        until = stream->acted ? left : (uint64_t)plan->act.after - pos;
        left = until < left ? until : left;
    }
    size_t size = left < max ? (size_t)left : max;

    if (plan->rate > 0) {
        /* Ten pieces a second, or bytes one by one where that is too many. */
        size_t piece = plan->rate >= 10 ? (size_t)(plan->rate / 10) : 1;

        size = piece < size ? piece : size;
        if (pos && !s3_request_nap(request, 1000.0 * (double)size / plan->rate, 0))
            return MHD_CONTENT_READER_END_WITH_ERROR;
    }
    if (stream->fd < 0) {
        memcpy(buffer, stream->text.data + pos, size);
        return (ssize_t)size;
    }
    ssize_t got = pread(stream->fd, buffer, size, (off_t)(stream->offset + pos));

    return got > 0 ? got : MHD_CONTENT_READER_END_WITH_ERROR;
}

static struct MHD_Response *stream_response(
    struct s3_request *request, int fd, struct s3_text *text, uint64_t offset, uint64_t length)
{
    struct stream *stream = s3_alloc(sizeof(*stream));

    *stream = (struct stream){.request = request, .fd = fd, .offset = offset, .length = length};
    if (text) {
        stream->text = *text;
        *text = (struct s3_text){0};
    }
    struct MHD_Response *response =
        MHD_create_response_from_callback(length, BLOCK, stream_read, stream, stream_free);

    if (!response)
        stream_free(stream);
    return response;
}

static enum MHD_Result send_response(
    struct s3_request *request, unsigned status, uint64_t length, struct MHD_Response *response)
{
    char date[32];
    enum MHD_Result result = MHD_YES;

    if (!response)
        return MHD_NO;
    s3_time_http(s3_settings_now(request->server->settings), date);
    result = MHD_add_response_header(response, "Date", date) &&
             MHD_add_response_header(response, "Server", "dctf-s3-server");
    for (size_t i = 0; i < request->headers_count && result; i++)
        result = MHD_add_response_header(response, request->headers[i].name, request->headers[i].value);
    if (!request->control && result)
        result = MHD_add_response_header(response, "x-amz-request-id", request->id);
    if (result) {
        request->status = status;
        request->bytes = strcmp(request->method, "HEAD") ? length : 0;
        result = MHD_queue_response(request->connection, status, response);
    }
    MHD_destroy_response(response);
    return result;
}

enum MHD_Result s3_reply_text(
    struct s3_request *request, unsigned status, const char *type, struct s3_text *text)
{
    uint64_t length = text->len;
    struct MHD_Response *response;

    if (type)
        s3_reply_header(request, "Content-Type", type);
    if (length && (acts_in_body(&request->plan) || request->plan.rate > 0)) {
        response = stream_response(request, -1, text, 0, length);
    } else {
        response = MHD_create_response_from_buffer(
            length, length ? text->data : NULL, length ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT);
        if (response && length)
            *text = (struct s3_text){0};
        s3_text_fini(text);
    }
    return send_response(request, status, length, response);
}

enum MHD_Result s3_reply_empty(struct s3_request *request, unsigned status)
{
    struct s3_text none = {0};

    return s3_reply_text(request, status, NULL, &none);
}

enum MHD_Result s3_reply_xml(struct s3_request *request, unsigned status, struct s3_text *text)
{
    return s3_reply_text(request, status, "application/xml", text);
}

enum MHD_Result s3_reply_json(struct s3_request *request, unsigned status, json_t *json)
{
    struct s3_text text = {.data = json_dumps(json, JSON_COMPACT)};

    json_decref(json);
    text.len = text.data ? strlen(text.data) : 0;
    return s3_reply_text(request, status, "application/json", &text);
}

enum MHD_Result s3_reply_file(
    struct s3_request *request, unsigned status, int fd, uint64_t offset, uint64_t length)
{
    const union MHD_ConnectionInfo *tls =
        MHD_get_connection_info(request->connection, MHD_CONNECTION_INFO_GNUTLS_SESSION);
    bool watched = acts_in_body(&request->plan) || request->plan.rate > 0 || (tls && tls->tls_session);
    struct MHD_Response *response = watched || !length
                                        ? stream_response(request, fd, NULL, offset, length)
                                        : MHD_create_response_from_fd_at_offset64(length, fd, offset);

    if (!response && !watched)
        close(fd);
    return send_response(request, status, length, response);
}

enum MHD_Result s3_reply_error(
    struct s3_request *request, unsigned status, const char *code, const char *message, const char *more)
{
    struct s3_text text = {0};

    snprintf(request->error, sizeof(request->error), "%s", code);
    s3_text_add(&text, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error>");
    s3_text_element(&text, "Code", code);
    s3_text_element(&text, "Message", message);
    if (more)
        s3_text_add(&text, more);
    s3_text_element(&text, "Resource", request->path);
    s3_text_element(&text, "RequestId", request->id);
    s3_text_element(&text, "HostId", "dctf-s3-server");
    s3_text_add(&text, "</Error>");
    return s3_reply_xml(request, status, &text);
}
