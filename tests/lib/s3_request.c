/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/s3_request.h"

#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_BODY (64u * 1024 * 1024)

bool s3_params_parse(const char *text, struct s3_param **params, size_t *count)
{
    char *copy = s3_copy(text), *save = NULL;
    bool ok = true;

    *params = NULL;
    *count = 0;
    for (char *pair = strtok_r(copy, "&", &save); pair; pair = strtok_r(NULL, "&", &save)) {
        char *equals = strchr(pair, '=');
        struct s3_param param = {
            .name = equals ? s3_copy_n(pair, (size_t)(equals - pair)) : s3_copy(pair),
            .value = s3_copy(equals ? equals + 1 : ""),
        };

        ok = s3_uri_decode(param.name, true) && s3_uri_decode(param.value, true) && ok;
        *params = s3_realloc(*params, (*count + 1) * sizeof(param));
        (*params)[(*count)++] = param;
    }
    free(copy);
    return ok;
}

void s3_params_free(struct s3_param *params, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(params[i].name);
        free(params[i].value);
    }
    free(params);
}

/* The path of a target; as a proxy, we are sent http://host/path. */
static const char *path_of(const char *target)
{
    if (strncasecmp(target, "http://", 7) != 0)
        return target;
    target += 7;
    return target + strcspn(target, "/?");
}

struct s3_request *s3_request_new(
    struct s3_server *server, struct MHD_Connection *connection, const char *target)
{
    struct s3_request *request = s3_alloc(sizeof(*request));
    const char *path = path_of(target), *query = strchr(path, '?');

    request->server = server;
    request->connection = connection;
    request->op = S3_OTHER;
    request->put.fd = -1;
    request->target = s3_copy(target);
    request->raw_path = query ? s3_copy_n(path, (size_t)(query - path)) : s3_copy(path);
    request->raw_query = s3_copy(query ? query + 1 : "");
    request->path = s3_copy(request->raw_path);
    request->malformed = !s3_uri_decode(request->path, false);
    if (!s3_params_parse(request->raw_query, &request->params, &request->params_count))
        request->malformed = true;
    s3_random_text(request->id, 16);
    return request;
}

void s3_request_free(struct s3_request *request)
{
    s3_store_put_abort(request->server->store, &request->put);
    s3_params_free(request->params, request->params_count);
    for (size_t i = 0; i < request->headers_count; i++) {
        free(request->headers[i].name);
        free(request->headers[i].value);
    }
    s3_text_fini(&request->body);
    EVP_MD_CTX_free(request->md5);
    EVP_MD_CTX_free(request->sha256);
    free(request->target);
    free(request->raw_path);
    free(request->raw_query);
    free(request->path);
    free(request->bucket);
    free(request->key);
    free(request);
}

const char *s3_request_header(const struct s3_request *request, const char *name)
{
    return MHD_lookup_connection_value(request->connection, MHD_HEADER_KIND, name);
}

const char *s3_request_param(const struct s3_request *request, const char *name)
{
    for (size_t i = 0; i < request->params_count; i++) {
        if (!strcmp(request->params[i].name, name))
            return request->params[i].value;
    }
    return NULL;
}

static bool begins(const char *text, const char *with)
{
    return !strncmp(text, with, strlen(with));
}

/* Bucket of a Host such as bucket.localhost:1234, NULL for path style; to free(). */
static char *virtual_bucket(const struct s3_request *request)
{
    const char *host = s3_request_header(request, "Host");
    size_t len = host ? strcspn(host, ":") : 0;

    for (const char *const *domain = request->server->domains; len && *domain; domain++) {
        size_t tail = strlen(*domain);

        if (len > tail + 1 && host[len - tail - 1] == '.' && !strncasecmp(host + len - tail, *domain, tail))
            return s3_copy_n(host, len - tail - 1);
    }
    return NULL;
}

static void find_bucket_and_key(struct s3_request *request)
{
    const char *path = *request->path == '/' ? request->path + 1 : request->path;

    if (!request->bucket && *path) {
        size_t len = strcspn(path, "/");

        request->bucket = s3_copy_n(path, len);
        path += len + (path[len] == '/');
    }
    if (request->bucket && *path)
        request->key = s3_copy(path);
    request->bucket_known =
        request->bucket && s3_store_bucket(request->server->store, request->bucket, &request->info);
}

static enum s3_op op_of(const struct s3_request *request)
{
    const char *method = request->method;

    if (!request->key) {
        if (!request->bucket || !strcmp(method, "HEAD") || s3_request_param(request, "location"))
            return !strcmp(method, "GET") || !strcmp(method, "HEAD") ? S3_BUCKET : S3_OTHER;
        return strcmp(method, "GET") ? S3_OTHER : S3_LIST;
    }
    return !strcmp(method, "GET")      ? S3_GET
           : !strcmp(method, "HEAD")   ? S3_HEAD
           : !strcmp(method, "PUT")    ? S3_PUT
           : !strcmp(method, "DELETE") ? S3_DELETE
                                       : S3_OTHER;
}

void s3_request_route(struct s3_request *request, const char *method)
{
    const char *path = request->path;

    request->method = method;
    request->bucket = virtual_bucket(request);
    request->virtual_host = request->bucket != NULL;
    if (!request->virtual_host && begins(path, "/-/")) {
        request->control = true;
        request->sink = begins(path, "/-/objects/") ? S3_SINK_OBJECT : S3_SINK_MEMORY;
        return;
    }
    request->sink = S3_SINK_MEMORY;
    if (request->virtual_host) {
        find_bucket_and_key(request);
        request->op = op_of(request);
    } else if (begins(path, "/latest/")) {
        request->op = S3_IMDS;
    } else if (!strcmp(path, "/v1/credentials") || begins(path, "/v2/credentials")) {
        request->op = S3_CONTAINER;
    } else if (!strcmp(path, "/") && (!strcmp(method, "POST") || s3_request_param(request, "Action"))) {
        request->op = S3_STS;
    } else {
        find_bucket_and_key(request);
        request->op = op_of(request);
    }
    if (request->bucket || request->op == S3_BUCKET || request->op == S3_OTHER)
        request->sink = request->op == S3_PUT ? S3_SINK_OBJECT : S3_SINK_NONE;
}

void s3_request_body(struct s3_request *request, const char *data, size_t size)
{
    if (!request->md5) {
        request->md5 = EVP_MD_CTX_new();
        request->sha256 = EVP_MD_CTX_new();
        if (!request->md5 || !request->sha256 || !EVP_DigestInit_ex(request->md5, EVP_md5(), NULL) ||
            !EVP_DigestInit_ex(request->sha256, EVP_sha256(), NULL))
            abort();
        if (request->sink == S3_SINK_OBJECT && !s3_store_put_begin(request->server->store, &request->put))
            request->body_bad = true;
    }
    EVP_DigestUpdate(request->md5, data, size);
    EVP_DigestUpdate(request->sha256, data, size);
    request->body_size += size;
    if (request->body_bad || request->sink == S3_SINK_NONE)
        return;
    if (request->sink == S3_SINK_OBJECT)
        request->body_bad = !s3_store_put_write(&request->put, data, size);
    else if (request->body.len + size > MAX_BODY)
        request->body_bad = true;
    else
        s3_text_add_n(&request->body, data, size);
}

void s3_request_body_end(struct s3_request *request)
{
    s3_request_body(request, "", 0); /* an empty body is hashed too */
    EVP_DigestFinal_ex(request->md5, request->body_md5, NULL);
    EVP_DigestFinal_ex(request->sha256, request->body_sha256, NULL);
}

int s3_request_socket(const struct s3_request *request)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(request->connection, MHD_CONNECTION_INFO_CONNECTION_FD);

    return info ? info->connect_fd : -1;
}

static int64_t monotonic_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

bool s3_request_nap(struct s3_request *request, double ms, unsigned rule)
{
    int64_t end = monotonic_ms() + (int64_t)ms, now;
    struct pollfd gone = {.fd = s3_request_socket(request), .events = POLLRDHUP};

    while (now = monotonic_ms(), ms <= 0 || now < end) {
        if (atomic_load(request->stopping))
            return false;
        if (rule && !s3_faults_has(request->server->faults, rule))
            return true;
        int slice = ms > 0 && end - now < 20 ? (int)(end - now) : 20;

        if (poll(&gone, 1, slice) > 0)
            return false;
    }
    return true;
}

/* The last reference to a socket that lingers for 0 seconds goes with an RST; MHD is left with a descriptor
 * that it can shut down and close. */
void s3_request_reset(struct s3_request *request)
{
    int fd = s3_request_socket(request), other = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct linger now = {.l_onoff = 1, .l_linger = 0};

    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    if (other >= 0) {
        dup3(other, fd, O_CLOEXEC);
        close(other);
    }
}

uint64_t s3_request_wire_bytes(const struct s3_request *request)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof(info);

    if (getsockopt(s3_request_socket(request), IPPROTO_TCP, TCP_INFO, &info, &len))
        return 0;
    return info.tcpi_bytes_sent;
}
