/* SPDX-License-Identifier: Apache-2.0
 *
 * Services beside the host that hand out keys: the container endpoint (ECS, EKS Pod
 * Identity) and the instance metadata service, version 2.
 * Sources: "Container credential provider" and "IMDS credential provider", AWS SDKs and
 * Tools Reference Guide; "Use IMDSv2", EC2 User Guide.
 */
#include "transport/s3_credentials_internal.h"

#include "base/str.h"
#include "transport/http.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define IMDS_CONNECT_MS 1000u
#define IMDS_TOKEN_TTL "21600"
#define IMDS_ROLES "/latest/meta-data/iam/security-credentials/"
#define IMDS_REGION "/latest/meta-data/placement/region"

/* --- calls --- */

static enum dctf_err open_net(struct dctf_cred_walk *walk, enum dctf_cred_net net)
{
    /* Shorter than the call, so that a host that does not answer is told from a slow service. */
    uint64_t connect_ms = walk->call_timeout_ms - walk->call_timeout_ms / 4;
    const struct dctf_http_config config = {
        .loops = 1,
        .connections = 2,
        .connect_timeout_ms =
            net == DCTF_CRED_NET_LOCAL && connect_ms > IMDS_CONNECT_MS ? IMDS_CONNECT_MS : connect_ms,
        .ca_file = walk->setup->ca_file,
        .ca_dir = walk->setup->ca_dir,
        .no_proxy = net == DCTF_CRED_NET_LOCAL,
    };
    enum dctf_err err;

    if (walk->http[net])
        return DCTF_OK;
    err = dctf_http_new(&config, &walk->http[net]);
    return err ? dctf_cred_why(walk, err, "%s", dctf_err_text(err)) : DCTF_OK;
}

/* Note the call for dctf_cred_setup_stop(); false: it is too late for one. */
static bool begin_call(struct dctf_cred_setup *setup, struct dctf_cred_ongoing *call)
{
    pthread_mutex_lock(&setup->lock);
    dctf_list_push_back(&setup->calls, &call->link);
    pthread_mutex_unlock(&setup->lock);
    return !atomic_load(&setup->stop);
}

static void end_call(struct dctf_cred_setup *setup, struct dctf_cred_ongoing *call)
{
    pthread_mutex_lock(&setup->lock);
    dctf_list_remove(&call->link);
    pthread_mutex_unlock(&setup->lock);
}

enum dctf_err dctf_cred_call(struct dctf_cred_walk *walk, enum dctf_cred_net net,
    struct dctf_http_request *request, int *status, char **body)
{
    struct dctf_cred_ongoing call;
    enum dctf_err err;

    *status = 0;
    *body = NULL;
    err = open_net(walk, net);
    if (err)
        return err;
    request->collect_max = DCTF_CRED_ANSWER_MAX;
    request->total_ms = walk->call_timeout_ms;
    err = DCTF_ERR_SHUTTING_DOWN;
    call = (struct dctf_cred_ongoing){.http = walk->http[net], .request = request};
    if (begin_call(walk->setup, &call))
        err = dctf_http_call(walk->http[net], request, status, body);
    end_call(walk->setup, &call);
    if (!err && !*body)
        err = DCTF_ERR_BAD_RESPONSE;
    if (!err)
        return DCTF_OK;
    dctf_cred_wipe(*body);
    *body = NULL;
    if (atomic_load(&walk->setup->stop))
        return dctf_cred_why(walk, DCTF_ERR_SHUTTING_DOWN, "shutting down");
    if (err == DCTF_ERR_DEADLINE)
        return dctf_cred_why(
            walk, err, "no answer within %llu ms", (unsigned long long)walk->call_timeout_ms);
    return dctf_cred_why(
        walk, err, "%s", err == DCTF_ERR_ORIGIN_UNREACHABLE ? "no connection" : dctf_err_text(err));
}

/* The code of a call as a provider's. */
static enum dctf_err as_failed(enum dctf_err err)
{
    return !err || err == DCTF_ERR_NO_MEMORY || err == DCTF_ERR_SHUTTING_DOWN ? err
                                                                              : DCTF_ERR_CREDENTIALS_FAILED;
}

static enum dctf_err get(struct dctf_cred_walk *walk, enum dctf_cred_net net, const char *url,
    const char *header, int *status, char **body)
{
    const char *const headers[] = {header};
    struct dctf_http_request request = {
        .method = "GET", .url = url, .headers = headers, .header_count = header ? 1 : 0};

    return dctf_cred_call(walk, net, &request, status, body);
}

/* --- container --- */

static bool is_plain_host_allowed(const char *host)
{
    static const char *const allowed[] = {"localhost", "169.254.170.2", "169.254.170.23"};
    struct in_addr v4;
    struct in6_addr v6;
    struct in6_addr eks;

    for (size_t i = 0; i < sizeof(allowed) / sizeof(allowed[0]); i++)
        if (!strcasecmp(host, allowed[i]))
            return true;
    if (inet_pton(AF_INET, host, &v4) == 1)
        return ntohl(v4.s_addr) >> 24 == 127;
    return inet_pton(AF_INET6, host, &v6) == 1 && inet_pton(AF_INET6, "fd00:ec2::23", &eks) == 1 &&
           (IN6_IS_ADDR_LOOPBACK(&v6) || !memcmp(&v6, &eks, sizeof(v6)));
}

/* The token must not go in clear to anybody but services beside the host. */
static enum dctf_err check_full_uri(struct dctf_cred_walk *walk, const char *uri, enum dctf_cred_net *net)
{
    char host[64] = "";
    const char *at;
    size_t len;

    *net = DCTF_CRED_NET_WIDE;
    if (!strncasecmp(uri, "https://", 8))
        return DCTF_OK;
    *net = DCTF_CRED_NET_LOCAL;
    if (strncasecmp(uri, "http://", 7) != 0)
        return dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_FAILED,
            "AWS_CONTAINER_CREDENTIALS_FULL_URI is neither http:// nor https://");
    at = uri + 7;
    len = strcspn(at, "/?#");
    if (!memchr(at, '@', len)) {
        if (*at == '[')
            len = strcspn(++at, "]/?#");
        else
            len = strcspn(at, ":/?#");
        if (len < sizeof(host))
            snprintf(host, sizeof(host), "%.*s", (int)len, at);
    }
    if (is_plain_host_allowed(host))
        return DCTF_OK;
    return dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_FAILED,
        "AWS_CONTAINER_CREDENTIALS_FULL_URI: http is for loopback, 169.254.170.2, 169.254.170.23 and "
        "[fd00:ec2::23] only");
}

/* "Authorization: TOKEN" or NULL; wiped by the caller. Read anew each time. */
static enum dctf_err container_authorization(struct dctf_cred_walk *walk, char **out)
{
    const char *file = dctf_cred_env(walk->setup, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
    const char *plain = dctf_cred_env(walk->setup, "AWS_CONTAINER_AUTHORIZATION_TOKEN");
    char *token = NULL;
    enum dctf_err err = DCTF_OK;

    *out = NULL;
    if (!file && !plain)
        return DCTF_OK;
    if (file)
        err = dctf_cred_read_token(walk, file, &token);
    if (err)
        return err;
    if (strpbrk(token ? token : plain, "\r\n"))
        err = dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_FAILED, "the authorization token holds a line break");
    else if (asprintf(out, "Authorization: %s", token ? token : plain) < 0) {
        *out = NULL;
        err = dctf_cred_why(walk, DCTF_ERR_NO_MEMORY, "out of memory");
    }
    dctf_cred_wipe(token);
    return err;
}

enum dctf_err dctf_cred_ask_container(struct dctf_cred_walk *walk, struct dctf_s3_keys **out)
{
    const char *relative = dctf_cred_env(walk->setup, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
    const char *full = dctf_cred_env(walk->setup, "AWS_CONTAINER_CREDENTIALS_FULL_URI");
    enum dctf_cred_net net = DCTF_CRED_NET_LOCAL;
    char *authorization = NULL;
    char *body = NULL;
    char url[2048];
    int status = 0;
    enum dctf_err err;

    *out = NULL;
    if (!relative && !full)
        return dctf_cred_why(
            walk, DCTF_ERR_CREDENTIALS_NONE, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI and _FULL_URI not set");
    if ((size_t)snprintf(url, sizeof(url), "%s%s", relative ? "http://169.254.170.2" : "",
            relative ? relative : full) >= sizeof(url) ||
        (relative && *relative != '/'))
        return dctf_cred_why(
            walk, DCTF_ERR_CREDENTIALS_FAILED, "the container credentials URI is not usable");
    err = relative ? DCTF_OK : check_full_uri(walk, full, &net);
    if (!err)
        err = container_authorization(walk, &authorization);
    if (err)
        return err;
    err = get(walk, net, url, authorization, &status, &body);
    dctf_cred_wipe(authorization);
    if (err)
        return as_failed(err);
    if (status == 200)
        err = dctf_cred_json_parse(walk, body, strlen(body), DCTF_CRED_JSON_SERVICE, "container", out);
    else
        err = dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_FAILED, "the endpoint answered %d", status);
    dctf_cred_wipe(body);
    return err;
}

/* --- IMDS --- */

struct imds {
    char base[512]; /* "http://169.254.169.254" */
    char *token;    /* header line */
};

static void imds_fini(struct imds *imds)
{
    dctf_cred_wipe(imds->token);
}

static enum dctf_err imds_endpoint(struct dctf_cred_walk *walk, struct imds *imds)
{
    const char *given = dctf_cred_env(walk->setup, "AWS_EC2_METADATA_SERVICE_ENDPOINT");
    const char *mode = dctf_cred_env(walk->setup, "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE");
    size_t len;

    if (!given)
        given = mode && !strcasecmp(mode, "IPv6") ? "http://[fd00:ec2::254]" : "http://169.254.169.254";
    len = strlen(given);
    while (len > 0 && given[len - 1] == '/')
        len--;
    if (!len || len >= sizeof(imds->base) || strncasecmp(given, "http", 4) != 0)
        return dctf_cred_why(
            walk, DCTF_ERR_CREDENTIALS_FAILED, "AWS_EC2_METADATA_SERVICE_ENDPOINT is no http:// address");
    snprintf(imds->base, sizeof(imds->base), "%.*s", (int)len, given);
    return DCTF_OK;
}

/* The PUT that begins a session. Nobody there: CREDENTIALS_NONE. */
static enum dctf_err imds_open(struct dctf_cred_walk *walk, struct imds *imds)
{
    static const char *const headers[] = {"X-aws-ec2-metadata-token-ttl-seconds: " IMDS_TOKEN_TTL};
    char url[600];
    struct dctf_http_request request = {
        .method = "PUT", .url = url, .headers = headers, .header_count = 1, .quiet = true};
    char *body = NULL;
    int status = 0;
    enum dctf_err err;

    imds->token = NULL;
    err = imds_endpoint(walk, imds);
    if (err)
        return err;
    snprintf(url, sizeof(url), "%s/latest/api/token", imds->base);
    err = dctf_cred_call(walk, DCTF_CRED_NET_LOCAL, &request, &status, &body);
    if (err == DCTF_ERR_ORIGIN_UNREACHABLE)
        return dctf_cred_why(
            walk, DCTF_ERR_CREDENTIALS_NONE, "no answer within %u s", IMDS_CONNECT_MS / 1000);
    if (err == DCTF_ERR_DEADLINE)
        return dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_FAILED,
            "it takes connections but the token does not arrive: in a container the instance's hop limit "
            "must "
            "be 2 or more (http-put-response-hop-limit)");
    if (err)
        return as_failed(err);
    if (status == 403 || status == 404 || status == 405)
        err = dctf_cred_why(
            walk, DCTF_ERR_CREDENTIALS_NONE, "token: it answered %d, so it is switched off", status);
    else if (status != 200 || !*body || strpbrk(body, "\r\n"))
        err = dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_FAILED, "token: it answered %d", status);
    else if (asprintf(&imds->token, "X-aws-ec2-metadata-token: %s", body) < 0) {
        imds->token = NULL;
        err = dctf_cred_why(walk, DCTF_ERR_NO_MEMORY, "out of memory");
    }
    dctf_cred_wipe(body);
    return err;
}

/* DCTF_OK with a body, or CREDENTIALS_NONE for 404. */
static enum dctf_err imds_get(struct dctf_cred_walk *walk, const struct imds *imds, const char *path,
    const char *name, const char *what, char **body)
{
    struct dctf_str url;
    int status = 0;
    enum dctf_err err;

    *body = NULL;
    dctf_str_init(&url);
    dctf_str_printf(&url, "%s%s%s", imds->base, path, name);
    if (url.err) {
        dctf_cred_explain(walk, "out of memory");
        err = DCTF_ERR_NO_MEMORY;
    } else {
        err = as_failed(get(walk, DCTF_CRED_NET_LOCAL, dctf_str_c(&url), imds->token, &status, body));
    }
    dctf_str_fini(&url);
    if (err || status == 200)
        return err;
    dctf_cred_wipe(*body);
    *body = NULL;
    err = status == 404 ? DCTF_ERR_CREDENTIALS_NONE : DCTF_ERR_CREDENTIALS_FAILED;
    if (status == 404)
        dctf_cred_explain(walk, "%s: there is none", what);
    else
        dctf_cred_explain(walk, "%s: it answered %d", what, status);
    return err;
}

/* The first line of the list of roles, if it can be one's name. */
static bool is_role_name(char *text)
{
    text[strcspn(text, "\r\n")] = '\0';
    return *text && strlen(text) <= 64 &&
           strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+=,.@_-") ==
               strlen(text);
}

static enum dctf_err imds_keys(
    struct dctf_cred_walk *walk, const struct imds *imds, struct dctf_s3_keys **out)
{
    char source[64];
    char *role = NULL;
    char *body = NULL;
    enum dctf_err err = imds_get(walk, imds, IMDS_ROLES, "", "role of the instance", &role);

    if (!err && !is_role_name(role))
        err = dctf_cred_why(walk, *role ? DCTF_ERR_CREDENTIALS_FAILED : DCTF_ERR_CREDENTIALS_NONE,
            "role of the instance: %s", *role ? "the answer is no name" : "there is none");
    if (!err)
        err = imds_get(walk, imds, IMDS_ROLES, role, "keys of the role", &body);
    if (!err) {
        snprintf(source, sizeof(source), "IMDS role %.48s", role);
        err = dctf_cred_json_parse(walk, body, strlen(body), DCTF_CRED_JSON_SERVICE, source, out);
    }
    dctf_cred_wipe(body);
    dctf_cred_wipe(role);
    return err;
}

enum dctf_err dctf_cred_ask_imds(struct dctf_cred_walk *walk, struct dctf_s3_keys **out)
{
    struct imds imds;
    enum dctf_err err;

    *out = NULL;
    if (dctf_cred_env_true(walk->setup, "AWS_EC2_METADATA_DISABLED"))
        return dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_NONE, "AWS_EC2_METADATA_DISABLED is true");
    err = imds_open(walk, &imds);
    if (!err)
        err = imds_keys(walk, &imds, out);
    imds_fini(&imds);
    return err;
}

enum dctf_err dctf_cred_imds_region(struct dctf_cred_walk *walk, char out[64])
{
    struct imds imds;
    char *body = NULL;
    enum dctf_err err;

    out[0] = '\0';
    if (dctf_cred_env_true(walk->setup, "AWS_EC2_METADATA_DISABLED"))
        return dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_NONE, "AWS_EC2_METADATA_DISABLED is true");
    err = imds_open(walk, &imds);
    if (!err)
        err = imds_get(walk, &imds, IMDS_REGION, "", "region", &body);
    if (!err && !is_role_name(body))
        err = dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_FAILED, "region: the answer is no name");
    if (!err)
        snprintf(out, 64, "%.63s", body);
    dctf_cred_wipe(body);
    imds_fini(&imds);
    return err;
}
