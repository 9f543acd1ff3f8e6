/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/s3_auth.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

bool s3_deny(struct s3_denial *denial, unsigned status, const char *code, const char *format, ...)
{
    va_list args;

    denial->status = status;
    denial->code = code;
    va_start(args, format);
    vsnprintf(denial->message, sizeof(denial->message), format, args);
    va_end(args);
    return false;
}

bool s3_auth_find_key(
    struct s3_request *request, const char *access, struct s3_key *key, struct s3_denial *denial)
{
    const char *token = s3_request_header(request, "x-amz-security-token");

    snprintf(request->access_key, sizeof(request->access_key), "%s", access);
    if (!s3_keys_find(request->server->keys, access, key) || (key->token[0] && !token)) {
        s3_text_element(&denial->more, "AWSAccessKeyId", access);
        return s3_deny(denial, 403, "InvalidAccessKeyId",
            "The AWS access key ID you provided does not exist in our records.");
    }
    if (strcmp(key->token, token ? token : "") != 0)
        return s3_deny(denial, 400, "InvalidToken", "The provided token is malformed or otherwise invalid.");
    if (key->expires_ns && s3_settings_now(request->server->settings) >= key->expires_ns)
        return s3_deny(denial, 400, "ExpiredToken", "The provided token has expired.");
    return true;
}

bool s3_auth_check_skew(
    struct s3_request *request, int64_t sent_ns, const char *text, struct s3_denial *denial)
{
    struct s3_values values;
    int64_t now = s3_settings_now(request->server->settings);
    char server[32];

    s3_settings_get(request->server->settings, &values);
    double off = (double)(now - sent_ns) / 1e9;

    if (off <= values.max_skew && -off <= values.max_skew)
        return true;
    s3_time_z(now, server);
    s3_text_element(&denial->more, "RequestTime", text);
    s3_text_element(&denial->more, "ServerTime", server);
    s3_text_printf(&denial->more, "<MaxAllowedSkewMilliseconds>%.0f</MaxAllowedSkewMilliseconds>",
        values.max_skew * 1000);
    return s3_deny(denial, 403, "RequestTimeTooSkewed",
        "The difference between the request time and the current time is too large.");
}

struct wanted {
    const char *name;
    struct s3_text *out;
    bool found;
};

static enum MHD_Result add_value(void *cls, enum MHD_ValueKind kind, const char *name, const char *value)
{
    struct wanted *wanted = cls;
    bool space = false;

    (void)kind;
    if (strcasecmp(name, wanted->name) != 0)
        return MHD_YES;
    if (wanted->found)
        s3_text_add(wanted->out, ",");
    wanted->found = true;
    size_t begin = wanted->out->len;

    for (; value && *value; value++) {
        if (isspace((unsigned char)*value)) {
            space = wanted->out->len > begin;
            continue;
        }
        if (space)
            s3_text_add(wanted->out, " ");
        space = false;
        s3_text_add_n(wanted->out, value, 1);
    }
    return MHD_YES;
}

bool s3_auth_header_values(struct s3_request *request, const char *name, struct s3_text *out)
{
    struct wanted wanted = {.name = name, .out = out};

    MHD_get_connection_values(request->connection, MHD_HEADER_KIND, add_value, &wanted);
    return wanted.found;
}

struct names {
    char **names;
    size_t count;
};

static enum MHD_Result add_name(void *cls, enum MHD_ValueKind kind, const char *name, const char *value)
{
    struct names *names = cls;
    char *lower = s3_copy(name);

    (void)kind;
    (void)value;
    for (char *p = lower; *p; p++)
        *p = (char)tolower((unsigned char)*p);
    names->names = s3_realloc(names->names, (names->count + 1) * sizeof(char *));
    names->names[names->count++] = lower;
    return MHD_YES;
}

static int compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

size_t s3_auth_header_names(struct s3_request *request, char ***out)
{
    struct names names = {0};
    size_t kept = 0;

    MHD_get_connection_values(request->connection, MHD_HEADER_KIND, add_name, &names);
    if (names.count)
        qsort(names.names, names.count, sizeof(char *), compare);
    for (size_t i = 0; i < names.count; i++) {
        if (kept && !strcmp(names.names[kept - 1], names.names[i]))
            free(names.names[i]);
        else
            names.names[kept++] = names.names[i];
    }
    *out = names.names;
    return kept;
}

bool s3_auth_parse_http_date(const char *text, int64_t *ns)
{
    struct tm tm = {0};
    const char *zone = strptime(text, "%a, %d %b %Y %H:%M:%S ", &tm);

    if (!zone || (strcmp(zone, "GMT") != 0 && strcmp(zone, "+0000") != 0 && strcmp(zone, "UTC") != 0))
        return false;
    *ns = (int64_t)timegm(&tm) * 1000000000;
    return true;
}

bool s3_auth_check(struct s3_request *request, const struct s3_auth_want *want, struct s3_denial *denial)
{
    const char *authorization = s3_request_header(request, "Authorization");
    bool ok = false;

    *denial = (struct s3_denial){0};
    if (!authorization && s3_request_param(request, "X-Amz-Signature"))
        return s3_deny(denial, 501, "NotImplemented", "Signatures in the query are not understood.");
    if (!authorization) {
        request->auth = S3_AUTH_ANONYMOUS;
        return true;
    }
    if (!strncmp(authorization, "AWS4-HMAC-SHA256", 16)) {
        ok = s3_auth_check_v4(request, want, authorization, denial);
        request->auth = ok ? S3_AUTH_V4 : S3_AUTH_NONE;
    } else if (!strncmp(authorization, "AWS ", 4) && !strcmp(want->service, "s3")) {
        ok = s3_auth_check_v2(request, authorization, denial);
        request->auth = ok ? S3_AUTH_V2 : S3_AUTH_NONE;
    } else {
        s3_deny(denial, 400, "InvalidArgument", "Unsupported Authorization Type");
    }
    return ok;
}
