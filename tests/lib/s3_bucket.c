/* SPDX-License-Identifier: Apache-2.0
 *
 * The S3 part: who may do what, and what is asked of buckets.
 */
#include "lib/s3_auth.h"
#include "lib/s3_handlers.h"

#include <stdlib.h>
#include <string.h>

static enum MHD_Result reply_denial(struct s3_request *request, struct s3_denial *denial)
{
    enum MHD_Result result =
        s3_reply_error(request, denial->status, denial->code, denial->message, denial->more.data);

    s3_text_fini(&denial->more);
    return result;
}

static enum MHD_Result reply_denied(struct s3_request *request)
{
    return s3_reply_error(request, 403, "AccessDenied", "Access Denied", NULL);
}

static enum MHD_Result list_buckets(struct s3_request *request)
{
    struct s3_bucket_info *buckets;
    size_t count = s3_store_buckets(request->server->store, &buckets);
    struct s3_text xml = {0};
    char date[32];

    s3_text_add(&xml, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
                      "<ListAllMyBucketsResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
                      "<Owner><ID>dctf</ID><DisplayName>dctf</DisplayName></Owner><Buckets>");
    for (size_t i = 0; i < count; i++) {
        s3_time_iso(buckets[i].created_ns, date);
        s3_text_add(&xml, "<Bucket>");
        s3_text_element(&xml, "Name", buckets[i].name);
        s3_text_element(&xml, "CreationDate", date);
        s3_text_add(&xml, "</Bucket>");
    }
    s3_text_add(&xml, "</Buckets></ListAllMyBucketsResult>");
    free(buckets);
    return s3_reply_xml(request, 200, &xml);
}

static enum MHD_Result location(struct s3_request *request)
{
    struct s3_text xml = {0};
    const char *region = request->info.region;

    s3_text_add(&xml, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
                      "<LocationConstraint xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
    s3_text_xml(&xml, strcmp(region, "us-east-1") ? region : "");
    s3_text_add(&xml, "</LocationConstraint>");
    return s3_reply_xml(request, 200, &xml);
}

/* Parameters that would ask for something else. */
static bool asks_for_more(const struct s3_request *request)
{
    static const char *const others[] = {"acl", "attributes", "cors", "delete", "encryption", "lifecycle",
        "logging", "notification", "policy", "requestPayment", "restore", "select", "tagging", "torrent",
        "uploadId", "uploads", "versioning", "versions", "website"};

    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        if (s3_request_param(request, others[i]))
            return true;
    }
    return false;
}

static enum MHD_Result dispatch(struct s3_request *request)
{
    if (asks_for_more(request) || s3_request_header(request, "x-amz-copy-source"))
        return s3_reply_error(request, 501, "NotImplemented", "This server does not know how", NULL);
    switch (request->op) {
    case S3_LIST:
        return s3_handle_list(request);
    case S3_GET:
    case S3_HEAD:
        return s3_handle_get(request);
    case S3_PUT:
        return s3_handle_put(request);
    case S3_DELETE:
        return s3_handle_delete(request);
    case S3_BUCKET:
        if (!request->bucket)
            return list_buckets(request);
        return strcmp(request->method, "HEAD") ? location(request) : s3_reply_empty(request, 200);
    default:
        return s3_reply_error(request, 405, "MethodNotAllowed",
            "The specified method is not allowed against this resource.", NULL);
    }
}

static enum MHD_Result reply_moved(struct s3_request *request)
{
    struct s3_text more = {0};

    s3_text_element(&more, "Endpoint", request->info.redirect);
    s3_text_element(&more, "Bucket", request->bucket);
    enum MHD_Result result = s3_reply_error(request, 301, "PermanentRedirect",
        "The bucket you are attempting to access must be addressed using the specified endpoint. Please send "
        "all "
        "future requests to this endpoint.",
        more.data);

    s3_text_fini(&more);
    return result;
}

static bool is_elsewhere(struct s3_request *request)
{
    const char *host = s3_request_header(request, "Host"), *redirect = request->info.redirect;
    size_t bucket = strlen(request->bucket);

    if (!*redirect || !host || !strcmp(host, redirect))
        return false;
    return !request->virtual_host || strlen(host) <= bucket || strcmp(host + bucket + 1, redirect) != 0;
}

/* What a bucket lets be done; the signature, if any, was good. */
static bool may(struct s3_request *request)
{
    const char *payer = s3_request_header(request, "x-amz-request-payer");
    bool reads =
        request->op == S3_LIST || request->op == S3_GET || request->op == S3_HEAD || request->op == S3_BUCKET;

    if (request->auth == S3_AUTH_ANONYMOUS && (!request->bucket || !request->info.is_public || !reads))
        return false;
    if (!request->bucket || !request->info.requester_pays)
        return true;
    return request->auth != S3_AUTH_ANONYMOUS && payer && !strcmp(payer, "requester");
}

enum MHD_Result s3_handle_s3(struct s3_request *request)
{
    bool is_location = request->op == S3_BUCKET && s3_request_param(request, "location");
    struct s3_auth_want want = {
        .service = "s3",
        .region = request->bucket_known ? request->info.region : NULL,
        .other_region = is_location ? "us-east-1" : NULL,
    };
    struct s3_denial denial;

    if (request->malformed)
        return s3_reply_error(request, 400, "InvalidURI", "Couldn't parse the specified URI.", NULL);
    if (request->bucket_known && !request->key)
        s3_reply_header(request, "x-amz-bucket-region", request->info.region);
    if (request->bucket_known && is_elsewhere(request)) {
        if (request->key)
            s3_reply_header(request, "x-amz-bucket-region", request->info.region);
        return reply_moved(request);
    }
    if (!s3_auth_check(request, &want, &denial)) {
        if (request->bucket_known && request->key && !strcmp(denial.code, "AuthorizationHeaderMalformed"))
            s3_reply_header(request, "x-amz-bucket-region", request->info.region);
        return reply_denial(request, &denial);
    }
    if (request->bucket && !request->bucket_known)
        return s3_reply_error(request, 404, "NoSuchBucket", "The specified bucket does not exist", NULL);
    if (!may(request))
        return reply_denied(request);
    if (request->bucket && request->info.requester_pays)
        s3_reply_header(request, "x-amz-request-charged", "requester");
    return dispatch(request);
}
