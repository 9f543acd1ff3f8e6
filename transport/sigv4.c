/* SPDX-License-Identifier: Apache-2.0
 *
 * The canonical request is built from sorted views of the caller's headers and of
 * the decoded query; the key is derived anew for each request: signing takes about ten
 * microseconds with it, which is nothing beside a request, and leaves no key in memory.
 * The secret and every derived key are wiped.
 */
#include "transport/sigv4.h"

#include "base/str.h"
#include "transport/digest.h"
#include "transport/uri.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define SECRET_PREFIX "AWS4"
#define SHORT_DATE_LEN 8 /* "20130524" of "20130524T000000Z" */

/* Headers the signer adds itself: the caller's, if any, are not signed a second time. */
#define ADDED_MAX 3

struct header {
    char *name; /* lower case; owned */
    const char *value;
    size_t order; /* equal names stay in the caller's order */
};

struct header_set {
    struct header *items; /* sorted by name */
    size_t count;
    char date[32];
};

struct param {
    struct dctf_str name; /* encoded */
    struct dctf_str value;
};

/* Query */

/* Encode what may be encoded already, in other ways than AWS does. */
static void add_reencoded(struct dctf_str *out, const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        char byte = text[i];

        if (byte == '%' && len - i > 2 && dctf_hex_value(text[i + 1]) >= 0 &&
            dctf_hex_value(text[i + 2]) >= 0) {
            byte = (char)(dctf_hex_value(text[i + 1]) << 4 | dctf_hex_value(text[i + 2]));
            i += 2;
        }
        dctf_uri_encode(out, &byte, 1, false);
    }
}

static int compare_params(const void *a, const void *b)
{
    const struct param *left = a;
    const struct param *right = b;
    int order = strcmp(dctf_str_c(&left->name), dctf_str_c(&right->name));

    return order ? order : strcmp(dctf_str_c(&left->value), dctf_str_c(&right->value));
}

static void add_params(struct dctf_str *out, struct param *params, size_t count)
{
    qsort(params, count, sizeof(*params), compare_params);
    for (size_t i = 0; i < count; i++) {
        if (i)
            dctf_str_puts(out, "&");
        dctf_str_puts(out, dctf_str_c(&params[i].name));
        dctf_str_puts(out, "=");
        dctf_str_puts(out, dctf_str_c(&params[i].value));
        if (params[i].name.err || params[i].value.err)
            out->err = DCTF_ERR_NO_MEMORY;
    }
}

static void add_query(struct dctf_str *out, const char *query)
{
    size_t max = 1;
    size_t count = 0;
    struct param *params;

    if (!*query)
        return;
    for (const char *at = query; *at; at++)
        max += *at == '&';
    params = calloc(max, sizeof(*params));
    if (!params) {
        out->err = DCTF_ERR_NO_MEMORY;
        return;
    }
    while (*query) {
        size_t len = strcspn(query, "&");
        size_t name_len = strcspn(query, "=&");

        if (len) { /* nothing between two '&' is no parameter */
            struct param *param = &params[count++];

            add_reencoded(&param->name, query, name_len);
            if (name_len < len)
                add_reencoded(&param->value, query + name_len + 1, len - name_len - 1);
        }
        query += len + (query[len] == '&');
    }
    add_params(out, params, count);
    for (size_t i = 0; i < count; i++) {
        dctf_str_fini(&params[i].name);
        dctf_str_fini(&params[i].value);
    }
    free(params);
}

/* Headers */

static bool is_added(const struct dctf_sigv4_request *request, const char *name)
{
    return !strcasecmp(name, "x-amz-date") || !strcasecmp(name, "x-amz-security-token") ||
           (!request->no_content_sha256 && !strcasecmp(name, "x-amz-content-sha256"));
}

static enum dctf_err set_add(struct header_set *set, const char *name, const char *value)
{
    struct header *header = &set->items[set->count];

    if (!*name || strpbrk(name, "\r\n: ") || strpbrk(value, "\r\n"))
        return DCTF_ERR_INTERNAL;
    header->name = strdup(name);
    if (!header->name)
        return DCTF_ERR_NO_MEMORY;
    for (char *at = header->name; *at; at++) {
        if (*at >= 'A' && *at <= 'Z')
            *at = (char)(*at - 'A' + 'a');
    }
    header->value = value;
    header->order = set->count++;
    return DCTF_OK;
}

static int compare_headers(const void *a, const void *b)
{
    const struct header *left = a;
    const struct header *right = b;
    int order = strcmp(left->name, right->name);

    return order ? order : (left->order > right->order) - (left->order < right->order);
}

static void set_fini(struct header_set *set)
{
    for (size_t i = 0; i < set->count; i++)
        free(set->items[i].name);
    free(set->items);
    *set = (struct header_set){0};
}

static enum dctf_err format_date(uint64_t now_s, char out[static 32])
{
    time_t when = (time_t)now_s;
    struct tm tm;

    if (!gmtime_r(&when, &tm) || tm.tm_year < 70 || tm.tm_year > 9999 - 1900)
        return DCTF_ERR_INTERNAL; /* a clock with five digits of years */
    return strftime(out, 32, "%Y%m%dT%H%M%SZ", &tm) ? DCTF_OK : DCTF_ERR_INTERNAL;
}

static enum dctf_err set_fill(struct header_set *set, const struct dctf_sigv4_request *request)
{
    bool has_host = false;
    enum dctf_err err = format_date(request->now_s, set->date);

    for (size_t i = 0; !err && i < request->header_count; i++) {
        const struct dctf_sigv4_header *header = &request->headers[i];

        has_host = has_host || !strcasecmp(header->name, "host");
        if (!is_added(request, header->name))
            err = set_add(set, header->name, header->value);
    }
    if (!err && !has_host)
        err = DCTF_ERR_INTERNAL;
    if (!err)
        err = set_add(set, "x-amz-date", set->date);
    if (!err && !request->no_content_sha256)
        err = set_add(set, "x-amz-content-sha256", request->payload_hash);
    if (!err && request->session_token && *request->session_token)
        err = set_add(set, "x-amz-security-token", request->session_token);
    return err;
}

/* `set` holds pointers into itself and the request: it stays where it is. */
static enum dctf_err set_init(struct header_set *set, const struct dctf_sigv4_request *request)
{
    enum dctf_err err;

    *set = (struct header_set){.items = calloc(request->header_count + ADDED_MAX, sizeof(*set->items))};
    if (!set->items)
        return DCTF_ERR_NO_MEMORY;
    err = set_fill(set, request);
    if (err) {
        set_fini(set);
        return err;
    }
    qsort(set->items, set->count, sizeof(*set->items), compare_headers);
    return DCTF_OK;
}

static bool is_blank(char byte)
{
    return byte == ' ' || byte == '\t';
}

/* Without blanks at the ends, and one space for each run of them within. */
static void add_trimmed(struct dctf_str *out, const char *value)
{
    bool first = true;

    for (;;) {
        size_t len;

        while (is_blank(*value))
            value++;
        if (!*value)
            return;
        len = strcspn(value, " \t");
        if (!first)
            dctf_str_puts(out, " ");
        dctf_str_add(out, value, len);
        value += len;
        first = false;
    }
}

static void add_headers(struct dctf_str *out, const struct header_set *set)
{
    for (size_t i = 0; i < set->count; i++) {
        bool again = i && !strcmp(set->items[i - 1].name, set->items[i].name);

        if (!again) {
            dctf_str_puts(out, set->items[i].name);
            dctf_str_puts(out, ":");
        }
        add_trimmed(out, set->items[i].value);
        again = i + 1 < set->count && !strcmp(set->items[i].name, set->items[i + 1].name);
        dctf_str_puts(out, again ? "," : "\n");
    }
}

static void add_signed_names(struct dctf_str *out, const struct header_set *set)
{
    for (size_t i = 0; i < set->count; i++) {
        if (i && !strcmp(set->items[i - 1].name, set->items[i].name))
            continue;
        if (i)
            dctf_str_puts(out, ";");
        dctf_str_puts(out, set->items[i].name);
    }
}

/* Request, string to sign, signature */

static void add_canonical(
    struct dctf_str *out, const struct dctf_sigv4_request *request, const struct header_set *set)
{
    const char *path = *request->path ? request->path : "/";

    dctf_str_puts(out, request->method);
    dctf_str_puts(out, "\n");
    if (!strcmp(request->service, "s3"))
        dctf_str_puts(out, path);
    else
        dctf_uri_encode(out, path, strlen(path), true);
    dctf_str_puts(out, "\n");
    add_query(out, request->query);
    dctf_str_puts(out, "\n");
    add_headers(out, set);
    dctf_str_puts(out, "\n");
    add_signed_names(out, set);
    dctf_str_puts(out, "\n");
    dctf_str_puts(out, request->payload_hash);
}

enum dctf_err dctf_sigv4_canonical_request(const struct dctf_sigv4_request *request, struct dctf_str *out)
{
    struct header_set set;
    enum dctf_err err = set_init(&set, request);

    if (err)
        return err;
    add_canonical(out, request, &set);
    set_fini(&set);
    return out->err;
}

static void add_scope(struct dctf_str *out, const struct dctf_sigv4_request *request, const char *date)
{
    dctf_str_printf(out, "%.*s/%s/%s/aws4_request", SHORT_DATE_LEN, date, request->region, request->service);
}

enum dctf_err dctf_sigv4_string_to_sign(
    const struct dctf_sigv4_request *request, const char *canonical_request, struct dctf_str *out)
{
    char date[32];
    char hash[DCTF_DIGEST_HEX_BYTES];
    enum dctf_err err = format_date(request->now_s, date);

    if (!err)
        err = dctf_sha256_hex(canonical_request, strlen(canonical_request), hash);
    if (err)
        return err;
    dctf_str_printf(out, "AWS4-HMAC-SHA256\n%s\n", date);
    add_scope(out, request, date);
    dctf_str_printf(out, "\n%s", hash);
    return out->err;
}

/* date → region → service → "aws4_request" → text, each keyed with the one before. */
static enum dctf_err chain(struct dctf_hmac *hmac, const struct dctf_sigv4_request *request,
    const char *secret, const char *date, const struct dctf_str *text,
    unsigned char out[static DCTF_DIGEST_BYTES])
{
    static const char last[] = "aws4_request";
    const struct {
        const void *data;
        size_t len;
    } steps[] = {
        {request->region, strlen(request->region)},
        {request->service, strlen(request->service)},
        {last, sizeof(last) - 1},
        {dctf_str_c(text), text->len},
    };
    enum dctf_err err = dctf_hmac_run(hmac, secret, strlen(secret), date, SHORT_DATE_LEN, out);

    for (size_t i = 0; !err && i < sizeof(steps) / sizeof(steps[0]); i++)
        err = dctf_hmac_run(hmac, out, DCTF_DIGEST_BYTES, steps[i].data, steps[i].len, out);
    return err;
}

static enum dctf_err sign_text(
    const struct dctf_sigv4_request *request, const char *date, const struct dctf_str *text, char *out)
{
    size_t size = strlen(SECRET_PREFIX) + strlen(request->secret_access_key) + 1;
    char *secret = malloc(size);
    unsigned char signature[DCTF_DIGEST_BYTES];
    struct dctf_hmac *hmac;
    enum dctf_err err;

    if (!secret)
        return DCTF_ERR_NO_MEMORY;
    snprintf(secret, size, SECRET_PREFIX "%s", request->secret_access_key);
    err = dctf_hmac_new(&hmac);
    if (!err)
        err = chain(hmac, request, secret, date, text, signature);
    if (!err)
        dctf_digest_hex(signature, out);
    dctf_hmac_free(hmac);
    explicit_bzero(signature, sizeof(signature));
    explicit_bzero(secret, size);
    free(secret);
    return err;
}

static enum dctf_err authorize(
    const struct dctf_sigv4_request *request, const struct header_set *set, const char *signature, char **out)
{
    struct dctf_str text;

    dctf_str_init(&text);
    dctf_str_printf(&text, "AWS4-HMAC-SHA256 Credential=%s/", request->access_key_id);
    add_scope(&text, request, set->date);
    dctf_str_puts(&text, ", SignedHeaders=");
    add_signed_names(&text, set);
    dctf_str_printf(&text, ", Signature=%s", signature);
    if (text.err) {
        enum dctf_err err = text.err;

        dctf_str_fini(&text);
        return err;
    }
    *out = text.data; /* taken over */
    return DCTF_OK;
}

enum dctf_err dctf_sigv4_sign(const struct dctf_sigv4_request *request, struct dctf_sigv4_signature *out)
{
    struct header_set set;
    struct dctf_str canonical;
    struct dctf_str text;
    char signature[DCTF_DIGEST_HEX_BYTES];
    enum dctf_err err;

    *out = (struct dctf_sigv4_signature){0};
    dctf_str_init(&canonical);
    dctf_str_init(&text);
    err = set_init(&set, request);
    if (err)
        return err;
    add_canonical(&canonical, request, &set);
    err = canonical.err;
    if (!err)
        err = dctf_sigv4_string_to_sign(request, dctf_str_c(&canonical), &text);
    if (!err)
        err = sign_text(request, set.date, &text, signature);
    if (!err)
        err = authorize(request, &set, signature, &out->authorization);
    if (!err)
        memcpy(out->date, set.date, sizeof(out->date));
    dctf_str_fini(&canonical);
    dctf_str_fini(&text);
    set_fini(&set);
    return err;
}

void dctf_sigv4_signature_fini(struct dctf_sigv4_signature *signature)
{
    free(signature->authorization);
    *signature = (struct dctf_sigv4_signature){0};
}
