/* SPDX-License-Identifier: Apache-2.0
 *
 * ListObjects, version 1 and 2.
 */
#include "lib/s3_handlers.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TOKEN "t1."

struct listing {
    struct s3_text xml;
    struct s3_text prefixes; /* come behind the keys */
    bool encoded;
    bool percent; /* space becomes %20, not '+' */
    size_t entries;
};

/* A key as the client wants it: in XML, or encoded as in a URL. */
static void add_name(struct listing *listing, struct s3_text *out, const char *element, const char *name)
{
    struct s3_text plus = {0};

    if (!listing->encoded) {
        s3_text_element(out, element, name);
        return;
    }
    s3_text_printf(out, "<%s>", element);
    if (listing->percent) {
        s3_text_uri(out, name, "/");
    } else {
        s3_text_uri(&plus, name, "/* ");
        for (char *p = plus.data; p && *p; p++)
            *p = *p == ' ' ? '+' : *p;
        s3_text_add(out, plus.data ? plus.data : "");
        s3_text_fini(&plus);
    }
    s3_text_printf(out, "</%s>", element);
}

static void add_entry(void *arg, const char *name, const struct s3_object_info *info)
{
    struct listing *listing = arg;
    char date[32];

    listing->entries++;
    if (!info) {
        s3_text_add(&listing->prefixes, "<CommonPrefixes>");
        add_name(listing, &listing->prefixes, "Prefix", name);
        s3_text_add(&listing->prefixes, "</CommonPrefixes>");
        return;
    }
    s3_time_iso(info->mtime_ns, date);
    s3_text_add(&listing->xml, "<Contents>");
    add_name(listing, &listing->xml, "Key", name);
    s3_text_printf(&listing->xml,
        "<LastModified>%s</LastModified><ETag>&quot;%s&quot;</ETag><Size>%llu</Size>"
        "<StorageClass>STANDARD</StorageClass></Contents>",
        date, info->etag, (unsigned long long)info->size);
}

/* 0 to 1,000; false when it is no such number. */
static bool parse_max(const char *text, size_t *max)
{
    char *end;

    *max = 1000;
    if (!text || !*text)
        return true;
    errno = 0;
    long value = strtol(text, &end, 10);

    if (*end || errno || value < 0)
        return false;
    if (value < 1000)
        *max = (size_t)value;
    return true;
}

/* The name that a token stands for, to free(); NULL when it is none of ours. */
static char *parse_token(const char *token)
{
    size_t len = strlen(token);

    if (len < strlen(TOKEN) + 2 || strncmp(token, TOKEN, strlen(TOKEN)) != 0 || (len - strlen(TOKEN)) % 2)
        return NULL;
    size_t size = (len - strlen(TOKEN)) / 2;
    char *name = s3_alloc(size + 1);

    if (s3_unhex(token + strlen(TOKEN), name, size))
        return name;
    free(name);
    return NULL;
}

static const char *param_or(struct s3_request *request, const char *name, const char *otherwise)
{
    const char *value = s3_request_param(request, name);

    return value ? value : otherwise;
}

/* What a listing says of itself, before its entries are known; version 2 and 1. */
static void add_question(struct s3_request *request, struct listing *listing,
    const struct s3_page_query *query, bool v2, struct s3_text *out)
{
    s3_text_add(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
                     "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
    s3_text_element(out, "Name", request->bucket);
    add_name(listing, out, "Prefix", query->prefix);
    if (v2 && s3_request_param(request, "start-after"))
        add_name(listing, out, "StartAfter", s3_request_param(request, "start-after"));
    if (v2 && s3_request_param(request, "continuation-token"))
        s3_text_element(out, "ContinuationToken", s3_request_param(request, "continuation-token"));
    if (!v2)
        add_name(listing, out, "Marker", query->after);
    s3_text_printf(out, "<MaxKeys>%zu</MaxKeys>", query->max);
    if (*query->delimiter)
        add_name(listing, out, "Delimiter", query->delimiter);
    if (listing->encoded)
        s3_text_add(out, "<EncodingType>url</EncodingType>");
}

static void add_page(struct s3_request *request, struct listing *listing, const struct s3_page_query *query,
    bool v2, struct s3_text *out)
{
    bool truncated;
    char *last;

    add_question(request, listing, query, v2, out);
    s3_store_page(request->server->store, request->bucket, query, add_entry, listing, &truncated, &last);
    s3_text_printf(out, "<IsTruncated>%s</IsTruncated>", truncated ? "true" : "false");
    if (v2)
        s3_text_printf(out, "<KeyCount>%zu</KeyCount>", listing->entries);
    if (truncated && v2) {
        s3_text_add(out, "<NextContinuationToken>" TOKEN);
        s3_text_hex(out, last, strlen(last));
        s3_text_add(out, "</NextContinuationToken>");
    } else if (truncated && *query->delimiter) {
        add_name(listing, out, "NextMarker", last);
    }
    free(last);
    s3_text_add_n(out, listing->xml.data ? listing->xml.data : "", listing->xml.len);
    s3_text_add_n(out, listing->prefixes.data ? listing->prefixes.data : "", listing->prefixes.len);
    s3_text_add(out, "</ListBucketResult>");
}

static enum MHD_Result reply_page(struct s3_request *request, struct s3_text *xml)
{
    switch (request->plan.act.kind) {
    case S3_FAULT_ERROR_200:
        s3_text_fini(xml);
        return s3_reply_error(
            request, 200, "InternalError", "We encountered an internal error. Please try again.", NULL);
    case S3_FAULT_TRUNCATED_XML:
        xml->len /= 2;
        return s3_reply_xml(request, 200, xml);
    case S3_FAULT_INVALID_XML:
        for (size_t i = xml->len / 2; i + 1 < xml->len; i += 7)
            xml->data[i] = '<';
        return s3_reply_xml(request, 200, xml);
    default:
        return s3_reply_xml(request, 200, xml);
    }
}

enum MHD_Result s3_handle_list(struct s3_request *request)
{
    bool v2 = !strcmp(param_or(request, "list-type", ""), "2");
    const char *token = v2 ? s3_request_param(request, "continuation-token") : NULL;
    const char *encoding = s3_request_param(request, "encoding-type");
    char *after = token ? parse_token(token) : NULL;
    struct s3_page_query query = {
        .prefix = param_or(request, "prefix", ""),
        .delimiter = param_or(request, "delimiter", ""),
        .after = after ? after : param_or(request, v2 ? "start-after" : "marker", ""),
    };
    struct listing listing = {.encoded = encoding != NULL};
    struct s3_text xml = {0};
    struct s3_values values;

    if (token && !after)
        return s3_reply_error(
            request, 400, "InvalidArgument", "The continuation token provided is incorrect", NULL);
    if (!parse_max(s3_request_param(request, "max-keys"), &query.max)) {
        free(after);
        return s3_reply_error(request, 400, "InvalidArgument",
            "Provided max-keys not an integer or within integer range", NULL);
    }
    if (encoding && strcmp(encoding, "url") != 0) {
        free(after);
        return s3_reply_error(
            request, 400, "InvalidArgument", "Invalid Encoding Method specified in Request", NULL);
    }
    s3_settings_get(request->server->settings, &values);
    listing.percent = !strcmp(values.list_space, "percent");
    add_page(request, &listing, &query, v2, &xml);
    free(after);
    s3_text_fini(&listing.xml);
    s3_text_fini(&listing.prefixes);
    return reply_page(request, &xml);
}
