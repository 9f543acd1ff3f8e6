/* SPDX-License-Identifier: Apache-2.0
 *
 * Signature Version 4.
 */
#include "lib/s3_auth.h"

#include <openssl/hmac.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define ALGORITHM "AWS4-HMAC-SHA256"

/* What the Authorization header says. */
struct said {
    char *copy; /* the others point into it */
    const char *access, *date, *region, *service, *terminator;
    const char *signed_headers, *signature;
};

static bool split_scope(char *credential, struct said *said)
{
    const char **parts[] = {&said->terminator, &said->service, &said->region, &said->date};

    for (size_t i = 0; i < 4; i++) {
        char *slash = strrchr(credential, '/');

        if (!slash)
            return false;
        *slash = '\0';
        *parts[i] = slash + 1;
    }
    said->access = credential;
    return *said->access != '\0';
}

static bool parse(const char *authorization, struct said *said)
{
    char *save = NULL, *credential = NULL;

    said->copy = s3_copy(authorization + strlen(ALGORITHM));
    for (char *part = strtok_r(said->copy, ", ", &save); part; part = strtok_r(NULL, ", ", &save)) {
        if (!strncmp(part, "Credential=", 11))
            credential = part + 11;
        else if (!strncmp(part, "SignedHeaders=", 14))
            said->signed_headers = part + 14;
        else if (!strncmp(part, "Signature=", 10))
            said->signature = part + 10;
        else
            return false;
    }
    return credential && said->signed_headers && said->signature && split_scope(credential, said);
}

static int compare_params(const void *a, const void *b)
{
    const struct s3_param *left = a, *right = b;
    int order = strcmp(left->name, right->name);

    return order ? order : strcmp(left->value, right->value);
}

/* name=value&…, sorted; takes the list's strings and sorts it. */
static void join_params(struct s3_param *params, size_t count, struct s3_text *out)
{
    if (count)
        qsort(params, count, sizeof(*params), compare_params);
    for (size_t i = 0; i < count; i++) {
        s3_text_printf(out, "%s%s=%s", i ? "&" : "", params[i].name, params[i].value);
        free(params[i].name);
        free(params[i].value);
    }
    free(params);
}

static char *encoded(const char *text)
{
    struct s3_text out = {0};

    s3_text_add(&out, "");
    s3_text_uri(&out, text, "");
    return out.data;
}

static void canonical_query(struct s3_request *request, struct s3_text *out)
{
    struct s3_param *params = s3_alloc((request->params_count + 1) * sizeof(*params));

    for (size_t i = 0; i < request->params_count; i++) {
        params[i].name = encoded(request->params[i].name);
        params[i].value = encoded(request->params[i].value);
    }
    s3_text_add(out, "");
    join_params(params, request->params_count, out);
}

/* Whether path and query came encoded as they are signed; in what order does not matter. */
static bool came_canonical(struct s3_request *request, const char *path, const char *query)
{
    struct s3_param *params = s3_alloc((request->params_count + 1) * sizeof(*params));
    char *copy = s3_copy(request->raw_query), *save = NULL;
    struct s3_text sent = {0};
    size_t count = 0;

    for (char *pair = strtok_r(copy, "&", &save); pair && count < request->params_count;
         pair = strtok_r(NULL, "&", &save)) {
        size_t len = strcspn(pair, "=");

        params[count++] =
            (struct s3_param){s3_copy_n(pair, len), s3_copy(pair[len] ? pair + len + 1 : pair + len)};
    }
    free(copy);
    s3_text_add(&sent, "");
    join_params(params, count, &sent);
    bool same = !strcmp(sent.data, query) && !strcmp(path, request->raw_path);

    s3_text_fini(&sent);
    return same;
}

static bool listed(const char *list, const char *name)
{
    size_t len = strlen(name);

    for (const char *at = list; at; at = strchr(at, ';')) {
        at += *at == ';';
        if (!strncmp(at, name, len) && (at[len] == ';' || !at[len]))
            return true;
    }
    return false;
}

/* host and all x-amz-* headers are signed. */
static bool check_all_signed(struct s3_request *request, const struct said *said, struct s3_denial *denial)
{
    char **names;
    size_t count = s3_auth_header_names(request, &names);
    bool ok = true;

    for (size_t i = 0; i < count; i++) {
        bool must = !strcmp(names[i], "host") || !strncmp(names[i], "x-amz-", 6);

        if (ok && must && !listed(said->signed_headers, names[i])) {
            s3_text_element(&denial->more, "HeadersNotSigned", names[i]);
            ok = s3_deny(denial, 403, "AccessDenied",
                "There were headers present in the request which were not signed");
        }
        free(names[i]);
    }
    free(names);
    return ok;
}

/* The signed headers' lines; they come sorted, in lower case, and are there. */
static bool canonical_headers(
    struct s3_request *request, const struct said *said, struct s3_text *out, struct s3_denial *denial)
{
    char *copy = s3_copy(said->signed_headers), *save = NULL;
    const char *last = "";
    bool ok = true;

    for (char *name = strtok_r(copy, ";", &save); name && ok; name = strtok_r(NULL, ";", &save)) {
        bool lower = true;

        for (const char *p = name; *p; p++)
            lower = lower && !(*p >= 'A' && *p <= 'Z');
        s3_text_printf(out, "%s:", name);
        if (!lower || strcmp(last, name) >= 0)
            ok = s3_deny(denial, 400, "AuthorizationHeaderMalformed",
                "SignedHeaders are to be in lower case, sorted, and each once");
        else if (!s3_auth_header_values(request, name, out))
            ok = s3_deny(
                denial, 403, "SignatureDoesNotMatch", "The signed header %.100s is not in the request", name);
        s3_text_add(out, "\n");
        last = name;
    }
    free(copy);
    return ok;
}

/* The hash that is signed, and whether it is the body's. */
static bool payload_hash(struct s3_request *request, const struct s3_auth_want *want, struct s3_text *out,
    struct s3_denial *denial)
{
    const char *sent = s3_request_header(request, "x-amz-content-sha256");
    struct s3_text body = {0};
    bool ok = true;

    s3_text_hex(&body, request->body_sha256, 32);
    if (!sent && !strcmp(want->service, "s3"))
        ok = s3_deny(
            denial, 400, "InvalidRequest", "Missing required header for this request: x-amz-content-sha256");
    else if (sent && !strncmp(sent, "STREAMING-", 10))
        ok = s3_deny(denial, 501, "NotImplemented", "Streamed signatures are not understood.");
    else if (sent && strcmp(sent, "UNSIGNED-PAYLOAD") != 0 && strcmp(sent, body.data) != 0)
        ok = s3_deny(denial, 400, "XAmzContentSHA256Mismatch",
            "The provided 'x-amz-content-sha256' header does not match what was computed.");
    s3_text_add(out, sent ? sent : body.data);
    s3_text_fini(&body);
    return ok;
}

static bool canonical_request(struct s3_request *request, const struct s3_auth_want *want,
    const struct said *said, struct s3_text *out, struct s3_denial *denial)
{
    struct s3_text path = {0}, query = {0}, payload = {0};

    s3_text_uri(&path, request->path, "/");
    canonical_query(request, &query);
    request->not_canonical = !came_canonical(request, path.data ? path.data : "", query.data);
    s3_text_printf(out, "%s\n%s\n%s\n", request->method, path.len ? path.data : "/", query.data);
    s3_text_fini(&path);
    s3_text_fini(&query);
    bool ok = payload_hash(request, want, &payload, denial) && canonical_headers(request, said, out, denial);

    s3_text_printf(out, "\n%s\n%s", said->signed_headers, payload.data);
    s3_text_fini(&payload);
    return ok;
}

static void hmac(const void *key, size_t key_len, const char *text, unsigned char out[32])
{
    unsigned len = 32;

    if (!HMAC(EVP_sha256(), key, (int)key_len, (const unsigned char *)text, strlen(text), out, &len))
        abort();
}

static void sign(const char *secret, const struct said *said, const char *text, struct s3_text *hex)
{
    struct s3_text first = {0};
    unsigned char a[32], b[32];

    s3_text_printf(&first, "AWS4%s", secret);
    hmac(first.data, first.len, said->date, a);
    hmac(a, 32, said->region, b);
    hmac(b, 32, said->service, a);
    hmac(a, 32, said->terminator, b);
    hmac(b, 32, text, a);
    s3_text_hex(hex, a, 32);
    s3_text_fini(&first);
}

/* When the request says it was signed: x-amz-date or, in its absence, Date. */
static bool sent_at(struct s3_request *request, char stamp[17], int64_t *ns)
{
    const char *amz = s3_request_header(request, "x-amz-date"), *date = s3_request_header(request, "Date");
    struct tm tm = {0};
    time_t seconds;

    if (amz) {
        const char *end = strptime(amz, "%Y%m%dT%H%M%SZ", &tm);

        if (!end || *end || strlen(amz) != 16)
            return false;
        *ns = (int64_t)timegm(&tm) * 1000000000;
    } else if (!date || !s3_auth_parse_http_date(date, ns)) {
        return false;
    }
    seconds = (time_t)(*ns / 1000000000);
    gmtime_r(&seconds, &tm);
    strftime(stamp, 17, "%Y%m%dT%H%M%SZ", &tm);
    return true;
}

static bool check_scope(
    const struct s3_auth_want *want, const struct said *said, const char *stamp, struct s3_denial *denial)
{
    const char *code = "AuthorizationHeaderMalformed";

    if (strcmp(said->terminator, "aws4_request") != 0)
        return s3_deny(denial, 400, code, "The authorization header is malformed; incorrect terminal.");
    if (strcmp(said->service, want->service) != 0)
        return s3_deny(denial, 400, code,
            "The authorization header is malformed; incorrect service \"%.40s\".", said->service);
    if (strlen(said->date) != 8 || strncmp(said->date, stamp, 8) != 0)
        return s3_deny(denial, 403, "SignatureDoesNotMatch",
            "The scope's date %.20s is not that of the request", said->date);
    if (!want->region || !strcmp(said->region, want->region) ||
        (want->other_region && !strcmp(said->region, want->other_region)))
        return true;
    s3_text_element(&denial->more, "Region", want->region);
    return s3_deny(denial, 400, code,
        "The authorization header is malformed; the region '%.60s' is wrong; expecting '%.60s'", said->region,
        want->region);
}

static bool check_signature(struct s3_request *request, const struct s3_auth_want *want,
    const struct said *said, const char *stamp, const char *secret, struct s3_denial *denial)
{
    struct s3_text canonical = {0}, text = {0}, expected = {0};
    unsigned char digest[EVP_MAX_MD_SIZE];
    bool ok = canonical_request(request, want, said, &canonical, denial);

    if (ok) {
        EVP_Digest(canonical.data, canonical.len, digest, NULL, EVP_sha256(), NULL);
        s3_text_printf(&text, ALGORITHM "\n%s\n%s/%s/%s/%s\n", stamp, said->date, said->region, said->service,
            said->terminator);
        s3_text_hex(&text, digest, 32);
        sign(secret, said, text.data, &expected);
        if (strcmp(expected.data, said->signature) != 0) {
            s3_text_element(&denial->more, "StringToSign", text.data);
            s3_text_element(&denial->more, "CanonicalRequest", canonical.data);
            ok = s3_deny(denial, 403, "SignatureDoesNotMatch",
                "The request signature we calculated does not match the signature you provided.");
        }
    }
    s3_text_fini(&canonical);
    s3_text_fini(&text);
    s3_text_fini(&expected);
    return ok;
}

bool s3_auth_check_v4(struct s3_request *request, const struct s3_auth_want *want, const char *authorization,
    struct s3_denial *denial)
{
    struct said said = {0};
    char stamp[17];
    struct s3_key key;
    int64_t sent;
    bool ok;

    if (!parse(authorization, &said))
        ok = s3_deny(denial, 400, "AuthorizationHeaderMalformed", "The authorization header is malformed.");
    else if (!sent_at(request, stamp, &sent))
        ok = s3_deny(
            denial, 403, "AccessDenied", "AWS authentication requires a valid Date or x-amz-date header");
    else
        ok = check_scope(want, &said, stamp, denial) &&
             s3_auth_find_key(request, said.access, &key, denial) &&
             s3_auth_check_skew(request, sent, stamp, denial) && check_all_signed(request, &said, denial) &&
             check_signature(request, want, &said, stamp, key.secret, denial);
    free(said.copy);
    return ok;
}
