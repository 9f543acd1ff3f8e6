/* SPDX-License-Identifier: Apache-2.0
 *
 * One transfer of libcurl: its options, its callbacks, and what its end means.
 *
 * A kept connection that the server closed in the meantime is libcurl's to notice: when
 * it ends before any byte of the response came, libcurl sends the request again (at
 * most five times, for there may be several such connections), so this file does not. The
 * time limits go on counting; a body is sent again from its beginning (rewind_body()).
 */
#include "base/clock.h"
#include "base/log.h"
#include "transport/http_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Larger ones take no less processor time for a byte, only more memory for a transfer. */
#define RECEIVE_BUFFER_BYTES (256L * 1024)
/* Of all heads of a response together; real ones have one or two KiB. */
#define HEAD_MAX_BYTES (256u * 1024)
#define COLLECT_DEFAULT_BYTES (64u * 1024)
/* Find out about dead peers while nothing is in flight. */
#define KEEPALIVE_IDLE_S 30L
#define KEEPALIVE_INTERVAL_S 10L
#define URL_LOG_MAX 256u
/* CURLE_TOO_LARGE since libcurl 8.6, which may be newer than the headers of the build. */
#define CURL_TOO_LARGE 100

/* --- callbacks of libcurl --- */

static curl_socket_t open_socket(void *ctx, curlsocktype purpose, struct curl_sockaddr *address)
{
    struct dctf_http_loop *loop = ctx;
    int bytes = loop->http->receive_buffer_bytes;
    int fd;

    (void)purpose;
    /* libcurl itself leaves its sockets open in programs that this one executes. */
    fd = socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
    if (fd < 0)
        return CURL_SOCKET_BAD;
    /* Only before it connects does it bound the window from the start. Without it there is more in flight,
     * nothing worse. */
    if (bytes)
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
    atomic_fetch_add_explicit(&loop->sockets, 1, memory_order_relaxed);
    return fd;
}

static int close_socket(void *ctx, curl_socket_t fd)
{
    struct dctf_http_loop *loop = ctx;

    atomic_fetch_sub_explicit(&loop->sockets, 1, memory_order_relaxed);
    return close(fd);
}

static void touch(struct dctf_http_transfer *transfer)
{
    transfer->last_ns = dctf_clock_mono_ns(NULL);
}

/* A connection is there and the request goes out now. */
static int on_connected(void *ctx, char *peer_ip, char *local_ip, int peer_port, int local_port)
{
    struct dctf_http_transfer *transfer = ctx;
    uint64_t due;

    (void)peer_ip;
    (void)local_ip;
    (void)peer_port;
    (void)local_port;
    touch(transfer);
    transfer->sent_ns = transfer->last_ns;
    due = dctf_http_transfer_due(transfer);
    if (due < transfer->loop->next_due_ns)
        transfer->loop->next_due_ns = due;
    return CURL_PREREQFUNC_OK;
}

static size_t read_body(char *out, size_t size, size_t count, void *ctx)
{
    struct dctf_http_transfer *transfer = ctx;
    const struct dctf_http_request *request = transfer->request;
    size_t len = request->body_len - transfer->body_sent;

    if (len > size * count)
        len = size * count;
    if (len > 0) {
        memcpy(out, (const char *)request->body + transfer->body_sent, len);
        transfer->body_sent += len;
        touch(transfer);
    }
    return len;
}

static int rewind_body(void *ctx, curl_off_t offset, int origin)
{
    struct dctf_http_transfer *transfer = ctx;

    if (origin != SEEK_SET || offset < 0 || (uint64_t)offset > transfer->request->body_len)
        return CURL_SEEKFUNC_FAIL;
    transfer->body_sent = (size_t)offset;
    return CURL_SEEKFUNC_OK;
}

static bool head_complete(struct dctf_http_transfer *transfer)
{
    struct dctf_http_request *request = transfer->request;
    struct dctf_http_response *response = &transfer->response;
    long status = 0;
    long connects = 0;

    curl_easy_getinfo(transfer->easy, CURLINFO_RESPONSE_CODE, &status);
    if (status < 200)
        return true; /* 100 Continue and its like: the real one follows */
    curl_easy_getinfo(transfer->easy, CURLINFO_NUM_CONNECTS, &connects);
    response->status = (int)status;
    response->reused = connects == 0;
    transfer->head_done = true;
    transfer->to_buf = request->buf && status < 300;
    if (request->on_head)
        transfer->verdict = request->on_head(request, response);
    return !transfer->verdict;
}

static size_t on_header(char *line, size_t size, size_t count, void *ctx)
{
    struct dctf_http_transfer *transfer = ctx;
    size_t len = size * count;

    touch(transfer);
    if (transfer->head_done)
        return len; /* trailers */
    if (!transfer->head_bytes && transfer->sent_ns)
        transfer->response.first_byte_ns = transfer->last_ns - transfer->sent_ns;
    transfer->head_bytes += len;
    if (transfer->head_bytes > HEAD_MAX_BYTES) {
        transfer->verdict = DCTF_ERR_BAD_RESPONSE;
        return 0;
    }
    if (line[0] == '\r' || line[0] == '\n')
        return head_complete(transfer) ? len : 0;
    return len;
}

static bool collect(struct dctf_http_transfer *transfer, const char *data, size_t len)
{
    struct dctf_http_response *response = &transfer->response;
    size_t max = transfer->request->collect_max ? transfer->request->collect_max : COLLECT_DEFAULT_BYTES;
    size_t room = max - response->len;

    if (len > room) {
        if (response->status < 300) {
            transfer->verdict = DCTF_ERR_BAD_RESPONSE;
            return false;
        }
        len = room;
    }
    dctf_str_add(&transfer->collected, data, len);
    if (transfer->collected.err) {
        transfer->verdict = transfer->collected.err;
        return false;
    }
    response->len += len;
    return true;
}

static size_t on_body(char *data, size_t size, size_t count, void *ctx)
{
    struct dctf_http_transfer *transfer = ctx;
    struct dctf_http_response *response = &transfer->response;
    size_t len = size * count;

    touch(transfer);
    if (!transfer->to_buf)
        return collect(transfer, data, len) ? len : 0;
    if (len > transfer->request->buf_len - response->len) {
        transfer->verdict = DCTF_ERR_BAD_RESPONSE;
        return 0;
    }
    memcpy((char *)transfer->request->buf + response->len, data, len);
    response->len += len;
    return len;
}

/* --- options --- */

static enum dctf_err add_headers(struct dctf_http_transfer *transfer)
{
    const struct dctf_http_request *request = transfer->request;

    for (size_t i = 0; i <= request->header_count; i++) {
        /* The last one: no 100-continue, which costs a round trip or a second. */
        const char *line = i < request->header_count ? request->headers[i] : "Expect:";
        struct curl_slist *list = curl_slist_append(transfer->headers, line);

        if (!list)
            return DCTF_ERR_NO_MEMORY;
        transfer->headers = list;
    }
    return DCTF_OK;
}

#define SET(option, value)                                                                                   \
    do {                                                                                                     \
        if (!rc)                                                                                             \
            rc = curl_easy_setopt(easy, option, value);                                                      \
    } while (0)

static CURLcode set_client(CURL *easy, struct dctf_http *http)
{
    CURLcode rc = CURLE_OK;

    SET(CURLOPT_SHARE, http->share);
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_QUICK_EXIT, 1L); /* a resolver that is stuck is left behind, not waited for */
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    SET(CURLOPT_PATH_AS_IS, 1L);
    SET(CURLOPT_FOLLOWLOCATION, 0L);
    SET(CURLOPT_NETRC, (long)CURL_NETRC_IGNORED);
    SET(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    SET(CURLOPT_BUFFERSIZE, RECEIVE_BUFFER_BYTES);
    SET(CURLOPT_NOPROGRESS, 1L);
    SET(CURLOPT_TCP_NODELAY, 1L);
    SET(CURLOPT_TCP_KEEPALIVE, 1L);
    SET(CURLOPT_TCP_KEEPIDLE, KEEPALIVE_IDLE_S);
    SET(CURLOPT_TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S);
    SET(CURLOPT_CONNECTTIMEOUT_MS, http->connect_timeout_ms);
    SET(CURLOPT_USERAGENT, http->user_agent);
    SET(CURLOPT_SSL_VERIFYPEER, 1L);
    SET(CURLOPT_SSL_VERIFYHOST, 2L);
    SET(CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    SET(CURLOPT_CAINFO, http->ca_file);
    SET(CURLOPT_CAPATH, http->ca_dir);
    SET(CURLOPT_SSLCERT, http->cert_file);
    SET(CURLOPT_SSLKEY, http->key_file);
    if (http->no_proxy) {
        SET(CURLOPT_PROXY, "");
        SET(CURLOPT_NOPROXY, "*");
    }
    return rc;
}

static CURLcode set_callbacks(CURL *easy, struct dctf_http_transfer *transfer)
{
    CURLcode rc = CURLE_OK;

    SET(CURLOPT_PRIVATE, transfer);
    SET(CURLOPT_ERRORBUFFER, transfer->text);
    SET(CURLOPT_OPENSOCKETFUNCTION, open_socket);
    SET(CURLOPT_OPENSOCKETDATA, transfer->loop);
    SET(CURLOPT_CLOSESOCKETFUNCTION, close_socket);
    SET(CURLOPT_CLOSESOCKETDATA, transfer->loop);
    SET(CURLOPT_PREREQFUNCTION, on_connected);
    SET(CURLOPT_PREREQDATA, transfer);
    SET(CURLOPT_HEADERFUNCTION, on_header);
    SET(CURLOPT_HEADERDATA, transfer);
    SET(CURLOPT_WRITEFUNCTION, on_body);
    SET(CURLOPT_WRITEDATA, transfer);
    return rc;
}

static CURLcode set_request(CURL *easy, struct dctf_http_transfer *transfer)
{
    const struct dctf_http_request *request = transfer->request;
    bool put = !strcmp(request->method, "PUT");
    CURLcode rc = CURLE_OK;

    SET(CURLOPT_URL, request->url);
    SET(CURLOPT_HTTPHEADER, transfer->headers);
    if (!strcmp(request->method, "HEAD"))
        SET(CURLOPT_NOBODY, 1L);
    if (!put && strcmp(request->method, "POST") != 0)
        return rc;
    SET(CURLOPT_READFUNCTION, read_body);
    SET(CURLOPT_READDATA, transfer);
    SET(CURLOPT_SEEKFUNCTION, rewind_body);
    SET(CURLOPT_SEEKDATA, transfer);
    if (put) {
        SET(CURLOPT_UPLOAD, 1L);
        SET(CURLOPT_INFILESIZE_LARGE, (curl_off_t)request->body_len);
    } else {
        SET(CURLOPT_POST, 1L);
        SET(CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)request->body_len);
    }
    return rc;
}

enum dctf_err dctf_http_transfer_setup(struct dctf_http_transfer *transfer)
{
    CURL *easy = transfer->easy;
    enum dctf_err err;
    CURLcode rc;

    if (!easy)
        return DCTF_ERR_NO_MEMORY;
    err = add_headers(transfer);
    if (err)
        return err;
    rc = set_client(easy, transfer->http);
    if (!rc)
        rc = set_callbacks(easy, transfer);
    if (!rc)
        rc = set_request(easy, transfer);
    if (!rc)
        return DCTF_OK;
    return rc == CURLE_OUT_OF_MEMORY ? DCTF_ERR_NO_MEMORY : DCTF_ERR_INTERNAL;
}

uint64_t dctf_http_transfer_due(const struct dctf_http_transfer *transfer)
{
    uint64_t due = DCTF_HTTP_NEVER;

    if (transfer->sent_ns)
        due = dctf_http_due(transfer->last_ns, transfer->request->silence_ms);
    return due < transfer->due_ns ? due : transfer->due_ns;
}

/* --- the end --- */

/* The connection broke during the handshake: nothing is wrong with the certificates. Only
 * libcurl's words tell that from a handshake that was refused. */
static bool handshake_broken(const char *text)
{
    static const char *const words[] = {"Recv failure", "Send failure", "SSL_connect:", "unexpected eof"};

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strstr(text, words[i]))
            return true;
    return false;
}

/* The server refused this client's certificate. In TLS 1.3 that comes after the handshake, as an alert
 * instead of an answer, and again only the words tell. */
static bool refused_by_alert(const char *text)
{
    return strstr(text, "SSL routines") && strstr(text, " alert ");
}

static enum dctf_err err_from_curl(const struct dctf_http_transfer *transfer, CURLcode code)
{
    if ((int)code == CURL_TOO_LARGE)
        return DCTF_ERR_BAD_RESPONSE;
    switch (code) {
    case CURLE_OK:
        return DCTF_OK;
    case CURLE_URL_MALFORMAT:
    case CURLE_FAILED_INIT:
    case CURLE_NOT_BUILT_IN:
    case CURLE_BAD_FUNCTION_ARGUMENT:
        return DCTF_ERR_INTERNAL;
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_PROXY:
    case CURLE_INTERFACE_FAILED:
        return DCTF_ERR_ORIGIN_UNREACHABLE;
    case CURLE_OPERATION_TIMEDOUT: /* libcurl's own limit is that of connecting */
        return transfer->sent_ns ? DCTF_ERR_DEADLINE : DCTF_ERR_ORIGIN_UNREACHABLE;
    case CURLE_SSL_CONNECT_ERROR:
        return handshake_broken(transfer->text) ? DCTF_ERR_ORIGIN_UNREACHABLE : DCTF_ERR_ORIGIN_TLS;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CIPHER:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CRL_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_SSL_PINNEDPUBKEYNOTMATCH:
    case CURLE_SSL_INVALIDCERTSTATUS:
    case CURLE_SSL_ENGINE_NOTFOUND:
    case CURLE_SSL_ENGINE_SETFAILED:
    case CURLE_SSL_ENGINE_INITFAILED:
    case CURLE_USE_SSL_FAILED:
        return DCTF_ERR_ORIGIN_TLS;
    case CURLE_PARTIAL_FILE:
        return DCTF_ERR_SHORT_BODY;
    case CURLE_UNSUPPORTED_PROTOCOL: /* also said of an answer that is no HTTP/1 */
        return transfer->sent_ns ? DCTF_ERR_BAD_RESPONSE : DCTF_ERR_INTERNAL;
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
    case CURLE_BAD_CONTENT_ENCODING:
    case CURLE_FILESIZE_EXCEEDED:
        return DCTF_ERR_BAD_RESPONSE;
    case CURLE_OUT_OF_MEMORY: /* also said of a header line longer than libcurl takes */
        return transfer->head_bytes && !transfer->head_done ? DCTF_ERR_BAD_RESPONSE : DCTF_ERR_NO_MEMORY;
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
        if (refused_by_alert(transfer->text))
            return DCTF_ERR_ORIGIN_TLS;
        /* fall through */
    case CURLE_GOT_NOTHING:
    default:
        return transfer->sent_ns ? DCTF_ERR_ORIGIN_IO : DCTF_ERR_ORIGIN_UNREACHABLE;
    }
}

static void log_failure(const struct dctf_http_transfer *transfer, enum dctf_err err, CURLcode code)
{
    bool wanted = err == DCTF_ERR_CANCELLED || err == DCTF_ERR_SHUTTING_DOWN || transfer->request->quiet;
    size_t url_len = strcspn(transfer->request->url, "?#");
    const char *text = transfer->text;

    if (!*text)
        text = transfer->verdict ? dctf_err_text(err) : curl_easy_strerror(code);
    dctf_log(wanted ? DCTF_LOG_DEBUG : DCTF_LOG_WARN, "http",
        "method=%s url=%.*s status=%d bytes=%zu ms=%llu err=%d curl=%d %s", transfer->request->method,
        (int)(url_len < URL_LOG_MAX ? url_len : URL_LOG_MAX), transfer->request->url,
        transfer->response.status, transfer->response.len,
        (unsigned long long)(transfer->response.total_ns / 1000000u), err, (int)code, text);
}

enum dctf_err dctf_http_transfer_result(struct dctf_http_transfer *transfer, CURLcode code)
{
    struct dctf_http_response *response = &transfer->response;
    enum dctf_err err = transfer->verdict ? transfer->verdict : err_from_curl(transfer, code);
    long status = 0;

    if (transfer->verdict) /* what libcurl says of it is only that it was told to stop */
        transfer->text[0] = '\0';
    if (transfer->easy && !transfer->head_done) {
        curl_easy_getinfo(transfer->easy, CURLINFO_RESPONSE_CODE, &status);
        response->status = status < 200 ? 0 : (int)status;
    }
    response->body = transfer->to_buf ? NULL : dctf_str_c(&transfer->collected);
    response->total_ns = dctf_clock_mono_ns(NULL) - transfer->started_ns;
    if (err)
        log_failure(transfer, err, code);
    return err;
}

void dctf_http_transfer_free(struct dctf_http_transfer *transfer)
{
    dctf_str_fini(&transfer->collected);
    curl_slist_free_all(transfer->headers);
    free(transfer);
}

const char *dctf_http_header(const struct dctf_http_response *response, const char *name)
{
    const struct dctf_http_transfer *transfer = response->impl;
    struct curl_header *header;

    if (!transfer->easy || !transfer->head_bytes)
        return NULL;
    if (curl_easy_header(transfer->easy, name, 0, CURLH_HEADER, -1, &header))
        return NULL;
    if (header->amount > 1 &&
        curl_easy_header(transfer->easy, name, header->amount - 1, CURLH_HEADER, -1, &header))
        return NULL;
    return header->value;
}

const char *dctf_http_error_text(const struct dctf_http_response *response)
{
    const struct dctf_http_transfer *transfer = response->impl;

    return transfer->text;
}
