/* SPDX-License-Identifier: Apache-2.0
 *
 * One request through libs3. Its call without a request context is curl_easy_perform(), which
 * polls: sockets numbered past FD_SETSIZE are fine, which they are not with a context.
 */
#include "transport/origin_libs3_internal.h"

#include "base/log.h"

#include <ctype.h>
#include <libs3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A page of a listing has at most 1,000 keys of 1,024 bytes, percent-encoded. */
#define BODY_MAX (8u << 20)
/* The library has 128 bytes for the header. A longer ETag is compared with the answer's alone. */
#define IF_MATCH_MAX 112

const char *dctf_libs3_version(void)
{
#ifdef S3_DEFAULT_REGION
    return "4.x";
#else
    return "2.0";
#endif
}

bool dctf_libs3_lists(void)
{
#ifdef S3_DEFAULT_REGION
    return false;
#else
    return true;
#endif
}

static pthread_once_t init_once = PTHREAD_ONCE_INIT;
static S3Status init_status;

static void init(void)
{
    /* No host by default: a request without one is our mistake. It stays initialised: a thread that
     * is stuck in it may come back at any time. */
    init_status = S3_initialize("dctffs/" DCTF_VERSION, S3_INIT_ALL, "host.invalid");
}

enum dctf_err dctf_libs3_init(void)
{
    pthread_once(&init_once, init);
    return init_status == S3StatusOK ? DCTF_OK : DCTF_ERR_NO_MEMORY;
}

/* --- how the library makes URLs --- */

static void fill_context(const struct dctf_libs3 *libs3, S3BucketContext *context)
{
    *context = (S3BucketContext){
        .hostName = libs3->host,
        .bucketName = libs3->address.bucket,
        .protocol = S3ProtocolHTTP,
        .uriStyle = libs3->address.path_style ? S3UriStylePath : S3UriStyleVirtualHost,
    };
}

/* The URL that the library makes, up to a query of its own. It signs it too, with keys that are none:
 * 2.0 has room for 20 bytes of an access key there. */
static bool make_url(S3BucketContext *context, const char *key, char *url)
{
    char *query;

    context->accessKeyId = "none";
    context->secretAccessKey = "none";
#ifdef S3_DEFAULT_REGION
    if (S3_generate_authenticated_query_string(url, context, key, 60, NULL, "GET") != S3StatusOK)
        return false;
#else
    if (S3_generate_authenticated_query_string(url, context, key, 60, NULL) != S3StatusOK)
        return false;
#endif
    query = strrchr(url, '?');
    if (query)
        *query = '\0';
    return query != NULL;
}

/* Whether `url` ends with `c` as RFC 3986 has it, or as it is where both mean the same. */
static bool ends_plainly(const char *url, unsigned char c)
{
    size_t len = strlen(url);
    char encoded[4];

    snprintf(encoded, sizeof(encoded), "%%%02X", c);
    if (len > 4 && url[len - 4] == '/' && strcmp(url + len - 3, encoded) == 0)
        return true;
    return len > 2 && url[len - 2] == '/' && url[len - 1] == (char)c &&
           (strchr("-_.~!*'()/", c) || (c < 128 && isalnum(c)));
}

/* The host name that carries a query; see the header. */
static char *host_with_query(const struct dctf_libs3 *libs3, const char *query)
{
    struct dctf_str host;

    dctf_str_init(&host);
    dctf_str_puts(&host, libs3->host);
    if (libs3->address.path_style)
        dctf_str_printf(&host, "/%s", libs3->address.bucket);
    dctf_str_printf(&host, "/?%s#", query);
    if (host.err) {
        dctf_str_fini(&host);
        return NULL;
    }
    return host.data;
}

enum dctf_err dctf_libs3_learn(struct dctf_libs3 *libs3, char *detail)
{
    char url[S3_MAX_AUTHENTICATED_QUERY_STRING_SIZE + 1];
    char *expected = NULL;
    char *host = host_with_query(libs3, "a=b%20c");
    S3BucketContext context;
    enum dctf_err err = DCTF_ERR_NO_MEMORY;

    fill_context(libs3, &context);
    if (!host)
        return err;
    for (unsigned c = 1; c < 256; c++) {
        char key[2] = {(char)c, '\0'};

        libs3->plain[c] = make_url(&context, key, url) && ends_plainly(url, (unsigned char)c);
    }
    context.hostName = host;
    if (asprintf(&expected, "http://%s%s%s/%s%s", libs3->address.path_style ? "" : libs3->address.bucket,
            libs3->address.path_style ? "" : ".", host,
            libs3->address.path_style ? libs3->address.bucket : "",
            libs3->address.path_style ? "/" : "") < 0) {
        expected = NULL;
        goto out;
    }
    err = DCTF_OK;
    if (!libs3->plain['a'] || !make_url(&context, "", url) || strcmp(url, expected) != 0) {
        snprintf(detail, DCTF_LIBS3_DETAIL_BYTES, "this build of libs3 makes other URLs than expected");
        err = DCTF_ERR_S3_CLIENT_UNSAFE;
    }
out:
    free(expected);
    free(host);
    return err;
}

/* --- one request --- */

struct transfer {
    struct dctf_libs3_call *call;
    S3Status status;
    enum dctf_err err; /* what we found wrong; the library then only knows that it was aborted */
    bool etag_seen;
    uint64_t announced; /* Content-Length; 0: none seen */
};

static bool is_cancelled(const struct dctf_libs3_call *call)
{
    return call->cancelled && atomic_load_explicit(call->cancelled, memory_order_relaxed);
}

static S3Status refuse(struct transfer *transfer, enum dctf_err err, const char *why)
{
    transfer->err = err;
    snprintf(transfer->call->detail, sizeof(transfer->call->detail), "%s", why);
    return S3StatusAbortedByCallback;
}

/* Whether a header's ETag, in quotes or not, is `etag`. */
static bool etag_equals(const char *header, const char *etag)
{
    size_t len = strlen(header);

    if (len >= 2 && header[0] == '"' && header[len - 1] == '"') {
        header++;
        len -= 2;
    }
    return len == strlen(etag) && memcmp(header, etag, len) == 0;
}

static S3Status on_properties(const S3ResponseProperties *properties, void *ctx)
{
    struct transfer *transfer = ctx;
    struct dctf_libs3_call *call = transfer->call;

    transfer->announced = properties->contentLength;
    transfer->etag_seen = properties->eTag && properties->eTag[0];
    if (is_cancelled(call))
        return refuse(transfer, DCTF_ERR_CANCELLED, "cancelled");
    if (call->etag && transfer->etag_seen && !etag_equals(properties->eTag, call->etag))
        return refuse(transfer, DCTF_ERR_VERSION_MISMATCH, "the answer is of another version");
    if (call->len > 0 && transfer->announced > 0 && transfer->announced != call->len)
        return refuse(transfer, DCTF_ERR_BAD_RESPONSE, "the answer has another length than the range");
    return S3StatusOK;
}

static S3Status on_data(int size, const char *data, void *ctx)
{
    struct transfer *transfer = ctx;
    struct dctf_libs3_call *call = transfer->call;
    size_t len = (size_t)size;

    if (is_cancelled(call))
        return refuse(transfer, DCTF_ERR_CANCELLED, "cancelled");
    if (call->len == 0) {
        if (len > BODY_MAX - call->got)
            return refuse(transfer, DCTF_ERR_BAD_RESPONSE, "the listing is too long");
        dctf_str_add(call->body, data, len);
        if (call->body->err)
            return refuse(transfer, call->body->err, "out of memory");
    } else {
        if (len > call->len - call->got)
            return refuse(transfer, DCTF_ERR_BAD_RESPONSE, "more bytes than the range");
        memcpy((char *)call->buf + call->got, data, len);
    }
    call->got += len;
    return S3StatusOK;
}

static void on_complete(S3Status status, const S3ErrorDetails *error, void *ctx)
{
    struct transfer *transfer = ctx;
    struct dctf_libs3_call *call = transfer->call;
    const char *words = error && error->message ? error->message : "";
    char quoted[160];

    transfer->status = status;
    if (status == S3StatusOK || transfer->err)
        return;
    snprintf(call->detail, sizeof(call->detail), "%s%s%s", S3_get_status_name(status), *words ? " " : "",
        *words ? dctf_str_quote(words, quoted, sizeof(quoted)) : "");
}

static enum dctf_err verdict(struct transfer *transfer)
{
    struct dctf_libs3_call *call = transfer->call;
    enum dctf_err err = transfer->err;
    uint64_t due = call->len > 0 ? call->len : transfer->announced;

    if (!err)
        err = dctf_libs3_status((int)transfer->status, call->len == 0);
    if (!err && due > 0 && call->got != due) {
        snprintf(call->detail, sizeof(call->detail), "%zu of %llu bytes", call->got, (unsigned long long)due);
        err = DCTF_ERR_SHORT_BODY;
    }
    return err;
}

static enum dctf_err perform(
    S3BucketContext *context, const char *if_match, struct dctf_libs3_call *call, bool *etag_seen)
{
    struct transfer transfer = {.call = call};
    S3GetObjectHandler handler = {
        .responseHandler = {.propertiesCallback = on_properties, .completeCallback = on_complete},
        .getObjectDataCallback = on_data,
    };
    S3GetConditions conditions = {.ifModifiedSince = -1, .ifNotModifiedSince = -1, .ifMatchETag = if_match};
    enum dctf_err err;

    call->got = 0;
    call->detail[0] = '\0';
#ifdef S3_DEFAULT_REGION
    S3_get_object(context, call->key, &conditions, call->offset, call->len, NULL, 0, &handler, &transfer);
#else
    S3_get_object(context, call->key, &conditions, call->offset, call->len, NULL, &handler, &transfer);
#endif
    err = verdict(&transfer);
    *etag_seen = transfer.etag_seen;
    return err;
}

/* The answer named no version that we can see: If-Match has to be enough. Ask for a version that
 * there cannot be; who honours the header refuses. */
static enum dctf_err try_if_match(
    struct dctf_libs3 *libs3, S3BucketContext *context, struct dctf_libs3_call *call)
{
    char byte;
    struct dctf_libs3_call trial = {
        .key = call->key, .etag = "no-such-version", .len = 1, .buf = &byte, .cancelled = call->cancelled};
    bool seen;
    enum dctf_err err;

    if (strlen(call->etag) > IF_MATCH_MAX) {
        snprintf(
            call->detail, sizeof(call->detail), "answers show no ETag, and this one is too long to ask for");
        return DCTF_ERR_S3_CLIENT_UNSAFE;
    }
    if (atomic_load(&libs3->if_match_ok))
        return DCTF_OK;
    err = perform(context, "\"no-such-version\"", &trial, &seen);
    if (err == DCTF_ERR_VERSION_MISMATCH) {
        dctf_log(DCTF_LOG_INFO, "s3", "client=libs3 answers show no ETag; If-Match is honoured");
        atomic_store(&libs3->if_match_ok, true);
        return DCTF_OK;
    }
    if (err)
        return err;
    snprintf(call->detail, sizeof(call->detail), "answers show no ETag, and If-Match is not honoured");
    return DCTF_ERR_S3_CLIENT_UNSAFE;
}

static enum dctf_err get_signed(
    struct dctf_libs3 *libs3, struct dctf_libs3_call *call, const struct dctf_s3_keys *keys)
{
    S3BucketContext context;
    char *host = NULL;
    char *if_match = NULL;
    bool etag_seen;
    enum dctf_err err = DCTF_ERR_NO_MEMORY;

    fill_context(libs3, &context);
    context.accessKeyId = keys->access_key_id;
    context.secretAccessKey = keys->secret_access_key;
    if (call->query) {
        host = host_with_query(libs3, call->query);
        if (!host)
            goto out;
        context.hostName = host;
    }
    if (call->etag && strlen(call->etag) <= IF_MATCH_MAX && asprintf(&if_match, "\"%s\"", call->etag) < 0) {
        if_match = NULL;
        goto out;
    }
    err = perform(&context, if_match, call, &etag_seen);
    /* 2.0 makes the date in memory that all threads share: at the turn of a day it may be wrong once. */
    if (err == DCTF_ERR_CLOCK_SKEW)
        err = perform(&context, if_match, call, &etag_seen);
    if (!err && call->etag && !etag_seen)
        err = try_if_match(libs3, &context, call);
out:
    free(if_match);
    free(host);
    return err;
}

enum dctf_err dctf_libs3_get(struct dctf_libs3 *libs3, struct dctf_libs3_call *call)
{
    struct dctf_s3_keys *keys = NULL;
    char quoted[200];
    enum dctf_err err = dctf_libs3_keys(libs3, &keys, call->detail);

    if (!err) {
        err = get_signed(libs3, call, keys);
        dctf_s3_keys_unref(keys);
    }
    if (err && err != DCTF_ERR_CANCELLED)
        dctf_log(DCTF_LOG_DEBUG, "s3", "client=libs3 %s=%s err=%d %s", call->query ? "query" : "key",
            dctf_str_quote(call->query ? call->query : call->key, quoted, sizeof(quoted)), (int)err,
            call->detail);
    return err;
}
