/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/redis_io.h"

#include "base/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <stdbool.h>
#include <unistd.h>

enum dctf_err dctf_redis_tls_new(const char *ca_file, struct ssl_ctx_st **out)
{
    SSL_CTX *tls = SSL_CTX_new(TLS_client_method());
    int ok;

    *out = NULL;
    if (!tls)
        return DCTF_ERR_NO_MEMORY;
    SSL_CTX_set_verify(tls, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_mode(tls, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    ok = SSL_CTX_set_min_proto_version(tls, TLS1_2_VERSION) &&
         (*ca_file ? SSL_CTX_load_verify_locations(tls, ca_file, NULL)
                   : SSL_CTX_set_default_verify_paths(tls));
    if (!ok) {
        ERR_clear_error();
        SSL_CTX_free(tls);
        return DCTF_ERR_OPTION_VALUE;
    }
    *out = tls;
    return DCTF_OK;
}

void dctf_redis_tls_free(struct ssl_ctx_st *tls)
{
    SSL_CTX_free(tls);
}

static enum dctf_err failed(struct dctf_redis_io *io, const char *what, int status)
{
    io->what = what;
    io->status = status;
    return DCTF_ERR_COORDINATOR_GONE;
}

static enum dctf_err await(struct dctf_redis_io *io, short events, uint64_t due_ms)
{
    struct pollfd fd = {.fd = io->fd, .events = events};

    for (;;) {
        uint64_t now_ms = dctf_clock_mono_ms(NULL);
        int rc;

        if (now_ms >= due_ms)
            return failed(io, "no answer in time", 0);
        rc = poll(&fd, 1, due_ms - now_ms < 60000 ? (int)(due_ms - now_ms) : 60000);
        if (rc > 0)
            return DCTF_OK;
        if (rc < 0 && errno != EINTR)
            return failed(io, "poll", errno);
    }
}

static enum dctf_err connect_socket(
    struct dctf_redis_io *io, const struct sockaddr_storage *address, uint64_t due_ms)
{
    socklen_t len = address->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    socklen_t status_len = sizeof(int);
    int status = 0, on = 1;
    enum dctf_err err;

    io->fd = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (io->fd < 0)
        return failed(io, "socket", errno);
    setsockopt(io->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (connect(io->fd, (const void *)address, len)) {
        if (errno != EINPROGRESS)
            return failed(io, "connect", errno);
        err = await(io, POLLOUT, due_ms);
        if (err)
            return err;
        if (getsockopt(io->fd, SOL_SOCKET, SO_ERROR, &status, &status_len) || status)
            return failed(io, "connect", status ? status : errno);
    }
    return DCTF_OK;
}

/* After an SSL call that returned `rc` ≤ 0: wait for what it wants. */
static enum dctf_err await_tls(struct dctf_redis_io *io, int rc, const char *what, uint64_t due_ms)
{
    int want = SSL_get_error(io->ssl, rc);
    long verified;

    if (want == SSL_ERROR_WANT_READ)
        return await(io, POLLIN, due_ms);
    if (want == SSL_ERROR_WANT_WRITE)
        return await(io, POLLOUT, due_ms);
    verified = SSL_get_verify_result(io->ssl);
    ERR_clear_error();
    if (verified != X509_V_OK)
        return failed(io, X509_verify_cert_error_string(verified), (int)verified);
    return failed(io, what, want == SSL_ERROR_SYSCALL ? errno : 0);
}

static bool set_host(SSL *ssl, const char *host)
{
    struct in6_addr number;

    if (inet_pton(AF_INET, host, &number) == 1 || inet_pton(AF_INET6, host, &number) == 1)
        return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host);
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    return SSL_set_tlsext_host_name(ssl, host) && SSL_set1_host(ssl, host);
}

static enum dctf_err start_tls(
    struct dctf_redis_io *io, struct ssl_ctx_st *tls, const char *host, uint64_t due_ms)
{
    enum dctf_err err = DCTF_OK;
    int rc;

    ERR_clear_error();
    io->ssl = SSL_new(tls);
    if (!io->ssl || !SSL_set_fd(io->ssl, io->fd) || !set_host(io->ssl, host))
        return failed(io, "TLS cannot begin", 0);
    while (!err && (rc = SSL_connect(io->ssl)) != 1)
        err = await_tls(io, rc, "TLS handshake failed", due_ms);
    return err;
}

enum dctf_err dctf_redis_io_open(struct dctf_redis_io *io, const struct sockaddr_storage *address,
    struct ssl_ctx_st *tls, const char *host, uint64_t due_ms)
{
    enum dctf_err err;

    *io = (struct dctf_redis_io){.fd = -1, .what = ""};
    err = connect_socket(io, address, due_ms);
    if (!err && tls)
        err = start_tls(io, tls, host, due_ms);
    if (err)
        dctf_redis_io_close(io);
    return err;
}

void dctf_redis_io_close(struct dctf_redis_io *io)
{
    SSL_free(io->ssl);
    io->ssl = NULL;
    if (io->fd >= 0)
        close(io->fd);
    io->fd = -1;
}

enum dctf_err dctf_redis_io_write(struct dctf_redis_io *io, const void *data, size_t len, uint64_t due_ms)
{
    const char *at = data;
    enum dctf_err err = DCTF_OK;

    while (!err && len) {
        ssize_t done;

        if (io->ssl) {
            ERR_clear_error();
            done = SSL_write(io->ssl, at, len < 1 << 20 ? (int)len : 1 << 20);
            if (done <= 0)
                err = await_tls(io, (int)done, "TLS write", due_ms);
        } else {
            done = send(io->fd, at, len, MSG_NOSIGNAL);
            if (done < 0 && errno == EAGAIN)
                err = await(io, POLLOUT, due_ms);
            else if (done < 0 && errno != EINTR)
                err = failed(io, "send", errno);
        }
        if (done > 0) {
            at += done;
            len -= (size_t)done;
        }
    }
    return err;
}

enum dctf_err dctf_redis_io_read(
    struct dctf_redis_io *io, void *data, size_t cap, uint64_t due_ms, size_t *out_len)
{
    enum dctf_err err = DCTF_OK;

    *out_len = 0;
    while (!err && !*out_len) {
        ssize_t done;

        if (io->ssl) {
            ERR_clear_error();
            done = SSL_read(io->ssl, data, cap < 1 << 20 ? (int)cap : 1 << 20);
            if (done <= 0)
                err = await_tls(io, (int)done, "the server closed the connection", due_ms);
        } else {
            done = recv(io->fd, data, cap, 0);
            if (done == 0)
                err = failed(io, "the server closed the connection", 0);
            else if (done < 0 && errno == EAGAIN)
                err = await(io, POLLIN, due_ms);
            else if (done < 0 && errno != EINTR)
                err = failed(io, "recv", errno);
        }
        if (done > 0)
            *out_len = (size_t)done;
        else if (!err && dctf_clock_mono_ms(NULL) >= due_ms)
            err = failed(io, "no answer in time", 0);
    }
    return err;
}
