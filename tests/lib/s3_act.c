/* SPDX-License-Identifier: Apache-2.0
 *
 * Faults that come before an answer, or in its place. Those within a body are in s3_reply.c, those that
 * change what is answered where the answer is made.
 */
#include "lib/s3_handlers.h"

#include <string.h>
#include <sys/socket.h>

static const char *message_of(const struct s3_act *act)
{
    static const struct {
        const char *code, *message;
    } messages[] = {
        {"SlowDown", "Please reduce your request rate."},
        {"InternalError", "We encountered an internal error. Please try again."},
        {"AccessDenied", "Access Denied"},
        {"NoSuchKey", "The specified key does not exist."},
        {"ExpiredToken", "The provided token has expired."},
        {"RequestTimeout", "Your socket connection to the server was not read from or written to within the "
                           "timeout period."},
        {"RequestTimeTooSkewed",
            "The difference between the request time and the current time is too large."},
    };

    for (size_t i = 0; !act->message[0] && i < sizeof(messages) / sizeof(messages[0]); i++) {
        if (!strcmp(messages[i].code, act->code))
            return messages[i].message;
    }
    return act->message;
}

static enum MHD_Result reply_status(struct s3_request *request, const struct s3_act *act)
{
    struct s3_text more = {0};
    char text[32];

    if (act->retry_after >= 0) {
        snprintf(text, sizeof(text), "%d", act->retry_after);
        s3_reply_header(request, "Retry-After", text);
    }
    if (request->op == S3_STS)
        return s3_reply_sts_error(request, act->status, act->code, message_of(act));
    if (!strcmp(act->code, "RequestTimeTooSkewed")) {
        s3_time_z(s3_settings_now(request->server->settings), text);
        s3_text_element(&more, "ServerTime", text);
        s3_text_add(&more, "<MaxAllowedSkewMilliseconds>900000</MaxAllowedSkewMilliseconds>");
    }
    enum MHD_Result result = s3_reply_error(request, act->status, act->code, message_of(act), more.data);

    s3_text_fini(&more);
    return result;
}

static enum MHD_Result reply_redirect(struct s3_request *request, const struct s3_act *act)
{
    struct s3_text more = {0}, url = {0};
    bool temporary = act->status == 307;

    if (act->region[0])
        s3_reply_header(request, "x-amz-bucket-region", act->region);
    if (act->endpoint[0]) {
        s3_text_element(&more, "Endpoint", act->endpoint);
        s3_text_printf(&url, "http://%s%s", act->endpoint, request->target);
        if (temporary)
            s3_reply_header(request, "Location", url.data);
    }
    if (request->bucket)
        s3_text_element(&more, "Bucket", request->bucket);
    enum MHD_Result result = s3_reply_error(request, act->status, temporary ? "TemporaryRedirect" : act->code,
        "Please send requests for this bucket to the specified endpoint.", more.data);

    s3_text_fini(&more);
    s3_text_fini(&url);
    return result;
}

static enum MHD_Result reply_wrong_region(struct s3_request *request, const struct s3_act *act)
{
    struct s3_text more = {0};

    s3_reply_header(request, "x-amz-bucket-region", act->region);
    s3_text_element(&more, "Region", act->region);
    enum MHD_Result result = s3_reply_error(request, act->status, act->code,
        "The authorization header is malformed; the region is wrong", more.data);

    s3_text_fini(&more);
    return result;
}

static enum MHD_Result send_garbage(struct s3_request *request)
{
    unsigned char bytes[512];

    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (unsigned char)(i * 167 + 13);
    (void)!send(s3_request_socket(request), bytes, sizeof(bytes), MSG_NOSIGNAL | MSG_DONTWAIT);
    return MHD_NO;
}

bool s3_handle_fault(struct s3_request *request, enum MHD_Result *result)
{
    const struct s3_act *act = &request->plan.act;

    *result = MHD_NO;
    if (request->plan.latency_ms > 0 && !s3_request_nap(request, request->plan.latency_ms, 0))
        return true;
    switch (act->kind) {
    case S3_FAULT_STATUS:
        *result = reply_status(request, act);
        return true;
    case S3_FAULT_REDIRECT:
        *result = reply_redirect(request, act);
        return true;
    case S3_FAULT_WRONG_REGION:
        *result = reply_wrong_region(request, act);
        return true;
    case S3_FAULT_RESET:
        if (act->after < 0)
            s3_request_reset(request);
        return act->after < 0;
    case S3_FAULT_STALL:
        return act->after < 0 && !s3_request_nap(request, act->ms, act->id);
    case S3_FAULT_GARBAGE:
        *result = send_garbage(request);
        return true;
    case S3_FAULT_EMPTY:
        *result = s3_reply_empty(request, 200);
        return true;
    default:
        return false;
    }
}
