/* SPDX-License-Identifier: Apache-2.0
 *
 * The services that hand out credentials: STS, IMDS, and the endpoint of containers.
 */
#include "lib/s3_auth.h"
#include "lib/s3_handlers.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define IMDS_TOKEN "dctf-imds-"

/* Credentials for as long as the settings say; expiration is as it is told to clients. */
static void issue(struct s3_request *request, struct s3_key *key, char expiration[32])
{
    struct s3_values values;

    s3_settings_get(request->server->settings, &values);
    int64_t expires = s3_settings_now(request->server->settings) + (int64_t)(values.session_seconds * 1e9);

    s3_keys_issue(request->server->keys, expires, key);
    s3_time_z(expires, expiration);
}

static enum MHD_Result reply_plain(struct s3_request *request, unsigned status, const char *body)
{
    struct s3_text text = {0};

    s3_text_add(&text, body);
    return s3_reply_text(request, status, "text/plain", &text);
}

enum MHD_Result s3_reply_sts_error(
    struct s3_request *request, unsigned status, const char *code, const char *message)
{
    struct s3_text xml = {0};

    snprintf(request->error, sizeof(request->error), "%s", code);
    s3_text_add(&xml,
        "<ErrorResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><Error><Type>Sender</Type>");
    s3_text_element(&xml, "Code", code);
    s3_text_element(&xml, "Message", message);
    s3_text_add(&xml, "</Error>");
    s3_text_element(&xml, "RequestId", request->id);
    s3_text_add(&xml, "</ErrorResponse>\n");
    return s3_reply_text(request, status, "text/xml", &xml);
}

static enum MHD_Result sts_credentials(
    struct s3_request *request, const char *action, const char *role, const char *session)
{
    struct s3_text xml = {0};
    struct s3_key key;
    char expiration[32];

    issue(request, &key, expiration);
    s3_text_printf(&xml,
        "<%sResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><%sResult><AssumedRoleUser><Arn>",
        action, action);
    s3_text_xml(&xml, role);
    s3_text_add(&xml, "/");
    s3_text_xml(&xml, session);
    s3_text_add(&xml, "</Arn><AssumedRoleId>AROADCTF:");
    s3_text_xml(&xml, session);
    s3_text_add(&xml, "</AssumedRoleId></AssumedRoleUser><Credentials>");
    s3_text_element(&xml, "AccessKeyId", key.access);
    s3_text_element(&xml, "SecretAccessKey", key.secret);
    s3_text_element(&xml, "SessionToken", key.token);
    s3_text_element(&xml, "Expiration", expiration);
    s3_text_printf(&xml, "</Credentials></%sResult><ResponseMetadata>", action);
    s3_text_element(&xml, "RequestId", request->id);
    s3_text_printf(&xml, "</ResponseMetadata></%sResponse>\n", action);
    return s3_reply_text(request, 200, "text/xml", &xml);
}

static const char *param_of(const struct s3_param *params, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++) {
        if (!strcmp(params[i].name, name))
            return params[i].value;
    }
    return "";
}

static enum MHD_Result assume(struct s3_request *request, const struct s3_param *params, size_t count)
{
    const char *action = param_of(params, count, "Action"), *role = param_of(params, count, "RoleArn");
    const char *session = param_of(params, count, "RoleSessionName");
    const char *token = param_of(params, count, "WebIdentityToken");
    struct s3_values values;
    struct s3_denial denial;
    bool web = !strcmp(action, "AssumeRoleWithWebIdentity");

    if (!web && strcmp(action, "AssumeRole") != 0)
        return s3_reply_sts_error(request, 400, "InvalidAction", "Could not find operation");
    if (strcmp(param_of(params, count, "Version"), "2011-06-15") != 0)
        return s3_reply_sts_error(
            request, 400, "InvalidAction", "Could not find the operation for this version");
    if (strncmp(role, "arn:", 4) != 0 || strlen(session) < 2)
        return s3_reply_sts_error(request, 400, "ValidationError", "RoleArn and RoleSessionName are needed");
    s3_settings_get(request->server->settings, &values);
    if (web) {
        if (!*token || (values.web_identity_token[0] && strcmp(token, values.web_identity_token) != 0))
            return s3_reply_sts_error(
                request, 400, "InvalidIdentityToken", "The token is not one this server takes");
        return sts_credentials(request, action, role, session);
    }
    if (!s3_auth_check(request, &(struct s3_auth_want){.service = "sts"}, &denial)) {
        s3_text_fini(&denial.more);
        return s3_reply_sts_error(request, denial.status, denial.code, denial.message);
    }
    if (request->auth == S3_AUTH_ANONYMOUS)
        return s3_reply_sts_error(
            request, 403, "MissingAuthenticationToken", "Request is missing Authentication Token");
    return sts_credentials(request, action, role, session);
}

enum MHD_Result s3_handle_sts(struct s3_request *request)
{
    struct s3_param *params;
    size_t count;
    enum MHD_Result result;

    if (strcmp(request->method, "POST") != 0)
        return assume(request, request->params, request->params_count);
    if (s3_params_parse(request->body.data ? request->body.data : "", &params, &count))
        result = assume(request, params, count);
    else
        result = s3_reply_sts_error(request, 400, "MalformedQueryString", "The body is no form");
    s3_params_free(params, count);
    return result;
}

static enum MHD_Result imds_token(struct s3_request *request)
{
    const char *ttl = s3_request_header(request, "x-aws-ec2-metadata-token-ttl-seconds");
    char *end = NULL;
    long seconds = ttl ? strtol(ttl, &end, 10) : 0;
    struct s3_text token = {0};

    if (strcmp(request->method, "PUT") != 0)
        return reply_plain(request, 405, "PUT is needed");
    if (s3_request_header(request, "X-Forwarded-For"))
        return reply_plain(request, 403, "forwarded");
    if (!ttl || *end || seconds < 1 || seconds > 21600)
        return reply_plain(request, 400, "X-aws-ec2-metadata-token-ttl-seconds is to be 1 to 21600");
    s3_reply_header(request, "X-aws-ec2-metadata-token-ttl-seconds", ttl);
    /* The token tells until when it is good. */
    int64_t until = s3_settings_now(request->server->settings) + seconds * INT64_C(1000000000);

    s3_text_printf(&token, IMDS_TOKEN "%" PRIx64, (uint64_t)until);
    return s3_reply_text(request, 200, "text/plain", &token);
}

static bool imds_allowed(struct s3_request *request, const struct s3_values *values)
{
    const char *token = s3_request_header(request, "x-aws-ec2-metadata-token");

    if (!token)
        return values->imds_v1;
    if (strncmp(token, IMDS_TOKEN, strlen(IMDS_TOKEN)) != 0)
        return false;
    return (int64_t)strtoull(token + strlen(IMDS_TOKEN), NULL, 16) >
           s3_settings_now(request->server->settings);
}

static enum MHD_Result imds_credentials(struct s3_request *request)
{
    char expiration[32], now[32];
    struct s3_key key;

    issue(request, &key, expiration);
    s3_time_z(s3_settings_now(request->server->settings), now);
    return s3_reply_json(request, 200,
        json_pack("{s:s,s:s,s:s,s:s,s:s,s:s,s:s}", "Code", "Success", "LastUpdated", now, "Type", "AWS-HMAC",
            "AccessKeyId", key.access, "SecretAccessKey", key.secret, "Token", key.token, "Expiration",
            expiration));
}

enum MHD_Result s3_handle_imds(struct s3_request *request)
{
    static const char security[] = "/latest/meta-data/iam/security-credentials";
    const char *path = request->path;
    struct s3_values values;
    char zone[80];

    if (!strcmp(path, "/latest/api/token"))
        return imds_token(request);
    s3_settings_get(request->server->settings, &values);
    if (!imds_allowed(request, &values))
        return reply_plain(request, 401, "Unauthorized");
    if (!strcmp(path, "/latest/meta-data/placement/region"))
        return reply_plain(request, 200, values.imds_region);
    snprintf(zone, sizeof(zone), "%sa", values.imds_region);
    if (!strcmp(path, "/latest/meta-data/placement/availability-zone"))
        return reply_plain(request, 200, zone);
    if (!strcmp(path, "/latest/dynamic/instance-identity/document"))
        return s3_reply_json(request, 200,
            json_pack("{s:s,s:s,s:s}", "region", values.imds_region, "availabilityZone", zone, "instanceId",
                "i-0123456789abcdef0"));
    if (values.imds_role[0] && !strncmp(path, security, sizeof(security) - 1)) {
        path += sizeof(security) - 1;
        if (!*path || !strcmp(path, "/"))
            return reply_plain(request, 200, values.imds_role);
        if (!strcmp(path + 1, values.imds_role))
            return imds_credentials(request);
    }
    return reply_plain(request, 404, "Not Found");
}

enum MHD_Result s3_handle_container(struct s3_request *request)
{
    const char *authorization = s3_request_header(request, "Authorization");
    struct s3_values values;
    struct s3_key key;
    char expiration[32];

    s3_settings_get(request->server->settings, &values);
    if (values.container_token[0] && (!authorization || strcmp(authorization, values.container_token) != 0))
        return s3_reply_json(request, 401,
            json_pack(
                "{s:s,s:s}", "code", "AccessDeniedException", "message", "the token is not the right one"));
    issue(request, &key, expiration);
    return s3_reply_json(request, 200,
        json_pack("{s:s,s:s,s:s,s:s,s:s}", "RoleArn", "arn:aws:iam::123456789012:role/dctf-role",
            "AccessKeyId", key.access, "SecretAccessKey", key.secret, "Token", key.token, "Expiration",
            expiration));
}
