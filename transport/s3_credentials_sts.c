/* SPDX-License-Identifier: Apache-2.0
 *
 * The security token service: AssumeRole, signed with other keys, and
 * AssumeRoleWithWebIdentity, which a token vouches for.
 * Source: AWS Security Token Service API Reference, version 2011-06-15.
 */
#include "transport/s3_credentials_internal.h"

#include "base/str.h"
#include "transport/digest.h"
#include "transport/http.h"
#include "transport/s3_xml.h"
#include "transport/sigv4.h"
#include "transport/uri.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define FORM_TYPE "application/x-www-form-urlencoded; charset=utf-8"

struct endpoint {
    char region[64];
    char url[600];
    char host[300]; /* with the port when it is not the scheme's */
    char path[300];
};

/* What a partition of AWS appends to "sts.REGION.". */
static const char *domain_of(const char *region)
{
    static const struct {
        const char *prefix;
        const char *domain;
    } domains[] = {
        {"cn-", "amazonaws.com.cn"},
        {"us-iso-", "c2s.ic.gov"},
        {"us-isob-", "sc2s.sgov.gov"},
        {"eusc-", "amazonaws.eu"},
    };

    for (size_t i = 0; i < sizeof(domains) / sizeof(domains[0]); i++)
        if (!strncmp(region, domains[i].prefix, strlen(domains[i].prefix)))
            return domains[i].domain;
    return "amazonaws.com";
}

/* "http[s]://host[:port][/path]" into its parts. */
static bool split_url(const char *url, struct endpoint *out)
{
    bool tls = !strncasecmp(url, "https://", 8);
    const char *host = url + (tls ? 8 : 7);
    size_t host_len;
    size_t path_len;
    const char *port;

    if (!tls && strncasecmp(url, "http://", 7) != 0)
        return false;
    host_len = strcspn(host, "/?#");
    path_len = strlen(host + host_len);
    if (!host_len || memchr(host, '@', host_len) || strpbrk(url, "?# \t\r\n") ||
        path_len >= sizeof(out->path) || host_len >= sizeof(out->host))
        return false;
    snprintf(out->path, sizeof(out->path), "%s", path_len ? host + host_len : "/");
    /* Signed as it is sent: without the scheme's own port. */
    snprintf(out->host, sizeof(out->host), "%.*s", (int)host_len, host);
    port = tls ? ":443" : ":80";
    if (host_len > strlen(port) && !strcmp(out->host + host_len - strlen(port), port))
        out->host[host_len - strlen(port)] = '\0';
    return (size_t)snprintf(out->url, sizeof(out->url), "%s%s%s", tls ? "https://" : "http://", out->host,
               out->path) < sizeof(out->url);
}

static enum dctf_err find_endpoint(struct dctf_cred_walk *walk, struct endpoint *out)
{
    const char *region = dctf_cred_region(walk);
    const char *where = NULL;
    const char *given = dctf_cred_endpoint(walk, "AWS_ENDPOINT_URL_STS", &where);
    char url[256];

    if (!region || !strcmp(region, "aws-global"))
        region = "us-east-1";
    if (strlen(region) >= sizeof(out->region) ||
        strspn(region, "abcdefghijklmnopqrstuvwxyz0123456789-") != strlen(region))
        return dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_FAILED, "STS: %.60s is no region", region);
    snprintf(out->region, sizeof(out->region), "%s", region);
    snprintf(url, sizeof(url), "https://sts.%s.%s/", region, domain_of(region));
    if (!split_url(given ? given : url, out))
        return dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_FAILED, "STS: %s is no address", where ? where : url);
    return DCTF_OK;
}

/* --- request --- */

static void add_field(struct dctf_str *form, const char *name, const char *value)
{
    if (!value)
        return;
    dctf_str_printf(form, "%s%s=", form->len ? "&" : "", name);
    dctf_uri_encode(form, value, strlen(value), false);
}

static enum dctf_err make_form(struct dctf_cred_walk *walk, const char *action,
    const struct dctf_cred_role *role, const char *token, struct dctf_str *form)
{
    char session[64];

    dctf_str_init(form);
    snprintf(session, sizeof(session), "dctffs-%" PRIu64, dctf_clock_wall_ms(&walk->setup->clock));
    add_field(form, "Action", action);
    add_field(form, "Version", "2011-06-15");
    add_field(form, "RoleArn", role->arn);
    add_field(form, "RoleSessionName", role->session_name ? role->session_name : session);
    add_field(form, "ExternalId", role->external_id);
    add_field(form, "DurationSeconds", role->duration_seconds);
    add_field(form, "WebIdentityToken", token);
    return form->err ? dctf_cred_why(walk, form->err, "out of memory") : DCTF_OK;
}

/* Header lines of a request, signed when `with` is given; wiped with fini. */
struct lines {
    struct dctf_str host, token, authorization, date;
    const char *all[5];
    size_t count;
};

static void lines_fini(struct lines *lines)
{
    dctf_str_fini(&lines->host);
    dctf_str_fini(&lines->date);
    dctf_cred_wipe_str(&lines->token);
    dctf_cred_wipe_str(&lines->authorization);
}

static void add_line(struct lines *lines, struct dctf_str *line, const char *name, const char *value)
{
    dctf_str_printf(line, "%s: %s", name, value);
    lines->all[lines->count++] = dctf_str_c(line);
}

static enum dctf_err sign(struct dctf_cred_walk *walk, const struct endpoint *endpoint,
    const char *payload_hash, const struct dctf_s3_keys *with, struct lines *lines)
{
    const struct dctf_sigv4_header headers[] = {{"host", endpoint->host}, {"content-type", FORM_TYPE}};
    const struct dctf_sigv4_request request = {
        .method = "POST",
        .path = endpoint->path,
        .query = "",
        .headers = headers,
        .header_count = 2,
        .payload_hash = payload_hash,
        .region = endpoint->region,
        .service = "sts",
        .now_s = dctf_clock_wall_ms(&walk->setup->clock) / 1000,
        .access_key_id = with->access_key_id,
        .secret_access_key = with->secret_access_key,
        .session_token = with->session_token,
        .no_content_sha256 = true,
    };
    struct dctf_sigv4_signature signature;
    enum dctf_err err = dctf_sigv4_sign(&request, &signature);

    if (err)
        return err;
    add_line(lines, &lines->date, "X-Amz-Date", signature.date);
    add_line(lines, &lines->authorization, "Authorization", signature.authorization);
    if (*with->session_token)
        add_line(lines, &lines->token, "X-Amz-Security-Token", with->session_token);
    dctf_sigv4_signature_fini(&signature);
    return lines->date.err | lines->authorization.err | lines->token.err ? DCTF_ERR_NO_MEMORY : DCTF_OK;
}

/* --- answer --- */

static enum dctf_err read_keys(
    struct dctf_cred_walk *walk, const char *xml, const char *source, struct dctf_s3_keys **out)
{
    size_t len = strlen(xml);
    char *key = dctf_xml_text(xml, len, "AccessKeyId");
    char *secret = dctf_xml_text(xml, len, "SecretAccessKey");
    char *token = dctf_xml_text(xml, len, "SessionToken");
    char *expiration = dctf_xml_text(xml, len, "Expiration");
    uint64_t expires_ms;
    enum dctf_err err;

    if (!key || !secret || !token || !expiration)
        err = dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_FAILED, "STS: its answer holds no credentials");
    else if (!dctf_cred_time_parse(expiration, &expires_ms))
        err =
            dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_FAILED, "STS: Expiration %.40s is no time", expiration);
    else
        err = dctf_cred_keys_new(walk, key, secret, token, expires_ms, source, out);
    free(key);
    dctf_cred_wipe(secret);
    dctf_cred_wipe(token);
    free(expiration);
    return err;
}

static enum dctf_err refused(struct dctf_cred_walk *walk, const char *action, int status, const char *xml)
{
    size_t len = strlen(xml);
    char *code = dctf_xml_text(xml, len, "Code");
    char *message = dctf_xml_text(xml, len, "Message");
    enum dctf_err err = dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_FAILED, "STS: %s answered %d %.80s%s%.240s",
        action, status, code ? code : "", message ? ": " : "", message ? message : "");

    free(code);
    free(message);
    return err;
}

static enum dctf_err call(struct dctf_cred_walk *walk, const struct endpoint *endpoint, const char *action,
    const struct dctf_str *form, const struct lines *lines, const char *source, struct dctf_s3_keys **out)
{
    struct dctf_http_request request = {
        .method = "POST",
        .url = endpoint->url,
        .headers = lines->all,
        .header_count = lines->count,
        .body = form->data,
        .body_len = form->len,
    };
    char *body = NULL;
    int status = 0;
    enum dctf_err err = dctf_cred_call(walk, DCTF_CRED_NET_WIDE, &request, &status, &body);

    if (err == DCTF_ERR_NO_MEMORY || err == DCTF_ERR_SHUTTING_DOWN)
        return err;
    if (err)
        return dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_FAILED, "STS %s: %s", endpoint->host, walk->why);
    err = status == 200 ? read_keys(walk, body, source, out) : refused(walk, action, status, body);
    dctf_cred_wipe(body);
    return err;
}

static enum dctf_err assume(struct dctf_cred_walk *walk, const char *action,
    const struct dctf_cred_role *role, const char *token, const struct dctf_s3_keys *with, const char *source,
    struct dctf_s3_keys **out)
{
    struct endpoint endpoint;
    struct lines lines = {0};
    struct dctf_str form;
    char hash[65];
    enum dctf_err err;

    *out = NULL;
    err = find_endpoint(walk, &endpoint);
    if (err)
        return err;
    err = make_form(walk, action, role, token, &form);
    add_line(&lines, &lines.host, "Host", endpoint.host);
    lines.all[lines.count++] = "Content-Type: " FORM_TYPE;
    if (!err && with) {
        err = dctf_sha256_hex(form.data, form.len, hash);
        if (!err)
            err = sign(walk, &endpoint, hash, with, &lines);
        if (err)
            dctf_cred_explain(walk, "STS: %s", dctf_err_text(err));
    }
    if (!err && lines.host.err)
        err = dctf_cred_why(walk, lines.host.err, "out of memory");
    if (!err)
        err = call(walk, &endpoint, action, &form, &lines, source, out);
    lines_fini(&lines);
    dctf_cred_wipe_str(&form);
    return err;
}

enum dctf_err dctf_cred_assume_role(struct dctf_cred_walk *walk, const struct dctf_cred_role *role,
    const struct dctf_s3_keys *with, const char *source, struct dctf_s3_keys **out)
{
    return assume(walk, "AssumeRole", role, NULL, with, source, out);
}

enum dctf_err dctf_cred_assume_web_identity(struct dctf_cred_walk *walk, const struct dctf_cred_role *role,
    const char *token_file, const char *source, struct dctf_s3_keys **out)
{
    char *token = NULL;
    enum dctf_err err;

    *out = NULL;
    err = dctf_cred_read_token(walk, token_file, &token);
    if (!err)
        err = assume(walk, "AssumeRoleWithWebIdentity", role, token, NULL, source, out);
    dctf_cred_wipe(token);
    return err;
}

enum dctf_err dctf_cred_ask_web_identity(struct dctf_cred_walk *walk, struct dctf_s3_keys **out)
{
    const struct dctf_cred_role role = {
        .arn = dctf_cred_env(walk->setup, "AWS_ROLE_ARN"),
        .session_name = dctf_cred_env(walk->setup, "AWS_ROLE_SESSION_NAME"),
    };
    const char *token_file = dctf_cred_env(walk->setup, "AWS_WEB_IDENTITY_TOKEN_FILE");

    *out = NULL;
    if (!token_file)
        return dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_NONE, "AWS_WEB_IDENTITY_TOKEN_FILE not set");
    if (!role.arn)
        return dctf_cred_why(
            walk, DCTF_ERR_CREDENTIALS_FAILED, "AWS_WEB_IDENTITY_TOKEN_FILE is set, AWS_ROLE_ARN is not");
    return dctf_cred_assume_web_identity(walk, &role, token_file, "web identity", out);
}
