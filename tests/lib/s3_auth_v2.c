/* SPDX-License-Identifier: Apache-2.0
 *
 * Signature Version 2, for clients of stores that still take it.
 */
#include "lib/s3_auth.h"

#include <openssl/hmac.h>
#include <stdlib.h>
#include <string.h>

/* Parameters that name what is asked for, sorted: these are signed, all others are not. */
static const char *const sub_resources[] = {"acl", "cors", "delete", "encryption", "lifecycle", "location",
    "logging", "notification", "partNumber", "policy", "requestPayment", "response-cache-control",
    "response-content-disposition", "response-content-encoding", "response-content-language",
    "response-content-type", "response-expires", "restore", "tagging", "torrent", "uploadId", "uploads",
    "versionId", "versioning", "versions", "website"};

static void add_header_line(struct s3_request *request, const char *name, struct s3_text *out)
{
    s3_auth_header_values(request, name, out);
    s3_text_add(out, "\n");
}

static void add_amz_headers(struct s3_request *request, struct s3_text *out)
{
    char **names;
    size_t count = s3_auth_header_names(request, &names);

    for (size_t i = 0; i < count; i++) {
        if (!strncmp(names[i], "x-amz-", 6)) {
            s3_text_printf(out, "%s:", names[i]);
            add_header_line(request, names[i], out);
        }
        free(names[i]);
    }
    free(names);
}

/* The bucket of a virtual host, the path as it was sent, the sub-resources. */
static void add_resource(struct s3_request *request, struct s3_text *out)
{
    char sep = '?';

    if (request->virtual_host)
        s3_text_printf(out, "/%s", request->bucket);
    s3_text_add(out, request->raw_path);
    for (size_t i = 0; i < sizeof(sub_resources) / sizeof(sub_resources[0]); i++) {
        const char *value = s3_request_param(request, sub_resources[i]);

        if (!value)
            continue;
        s3_text_printf(out, "%c%s", sep, sub_resources[i]);
        if (*value)
            s3_text_printf(out, "=%s", value);
        sep = '&';
    }
}

static void string_to_sign(struct s3_request *request, struct s3_text *out)
{
    s3_text_printf(out, "%s\n", request->method);
    add_header_line(request, "Content-MD5", out);
    add_header_line(request, "Content-Type", out);
    if (s3_request_header(request, "x-amz-date"))
        s3_text_add(out, "\n");
    else
        add_header_line(request, "Date", out);
    add_amz_headers(request, out);
    add_resource(request, out);
}

static bool check_signature(
    struct s3_request *request, const char *secret, const char *signature, struct s3_denial *denial)
{
    struct s3_text text = {0};
    unsigned char digest[EVP_MAX_MD_SIZE], expected[64];
    unsigned len = 0;

    string_to_sign(request, &text);
    if (!HMAC(EVP_sha1(), secret, (int)strlen(secret), (unsigned char *)text.data, text.len, digest, &len))
        abort();
    EVP_EncodeBlock(expected, digest, (int)len);
    bool ok = !strcmp((char *)expected, signature);

    if (!ok) {
        s3_text_element(&denial->more, "StringToSign", text.data);
        s3_deny(denial, 403, "SignatureDoesNotMatch",
            "The request signature we calculated does not match the signature you provided.");
    }
    s3_text_fini(&text);
    return ok;
}

bool s3_auth_check_v2(struct s3_request *request, const char *authorization, struct s3_denial *denial)
{
    char *access = s3_copy(authorization + strlen("AWS "));
    char *colon = strrchr(access, ':');
    const char *date = s3_request_header(request, "x-amz-date");
    struct s3_key key;
    int64_t sent;
    bool ok;

    date = date ? date : s3_request_header(request, "Date");
    if (colon)
        *colon = '\0';
    if (!colon)
        ok = s3_deny(denial, 400, "InvalidArgument", "AWS authorization header is invalid.");
    else if (!date || !s3_auth_parse_http_date(date, &sent))
        ok = s3_deny(
            denial, 403, "AccessDenied", "AWS authentication requires a valid Date or x-amz-date header");
    else
        ok = s3_auth_find_key(request, access, &key, denial) &&
             s3_auth_check_skew(request, sent, date, denial) &&
             check_signature(request, key.secret, colon + 1, denial);
    free(access);
    return ok;
}
