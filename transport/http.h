/* SPDX-License-Identifier: Apache-2.0
 *
 * Asynchronous HTTP/1.1 client: libcurl's multi interface on a few event-loop
 * threads, connections kept alive, every wait bounded. Only transport/http*.c see
 * libcurl. Knows nothing of S3.
 *
 * Threads:   any thread may start and cancel. on_head() and done() run on a loop's
 *            thread with no lock held, done() exactly once per started request,
 *            never inside dctf_http_start(); they must not block for long: the
 *            other transfers of that loop wait. They may start requests.
 * Ownership: a request is embedded in its caller, which keeps it and everything it
 *            points to alive until done() ran. The response is valid during the call. On a
 *            connection a request takes about 270 KiB (libcurl's buffer), in no budget.
 *
 * Plain text of headers and bodies is never logged; the url is logged without its
 * query. Redirects are not followed (a signature would be wrong): 3xx is a response
 * like another.
 */
#ifndef DCTF_TRANSPORT_HTTP_H
#define DCTF_TRANSPORT_HTTP_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dctf_http;

struct dctf_http_config {
    unsigned loops;                /* event-loop threads; 0: 2 */
    unsigned connections;          /* in use at once, over all loops; more requests wait for one; 0: 64 */
    unsigned idle_connections;     /* kept without a request, over all loops; more after a burst; 0: as
                                      `connections` */
    uint64_t connect_timeout_ms;   /* DNS, TCP and TLS together; 0: 5000 */
    const char *ca_file;           /* PEM; copied; when this and ca_dir are NULL or "": the system's */
    const char *ca_dir;            /* hashed directory; copied */
    const char *cert_file;         /* PEM, with key_file: what this client proves itself with; copied; NULL or
                                      "": nothing */
    const char *key_file;          /* copied */
    unsigned receive_buffer_bytes; /* of a socket (SO_RCVBUF), set before it connects: bounds the window that
                                      the other side fills; 0: the kernel's choice */
    bool no_proxy;                 /* ignore http_proxy, https_proxy (link-local services) */
    const char *user_agent;        /* copied; NULL: "dctffs/VERSION" */
};

DCTF_MUST_CHECK
enum dctf_err dctf_http_new(const struct dctf_http_config *config, struct dctf_http **out);
/* End what is held with DCTF_ERR_SHUTTING_DOWN, wait until done() ran for each (bounded: a
 * resolver that holds on is left behind), stop the threads. Callbacks may still start
 * (and are refused) and cancel. Not from within a callback; NULL is allowed. */
void dctf_http_free(struct dctf_http *http);

struct dctf_http_response {
    int status; /* 200, 206, 404 …; 0 when no status line came */
    /* Bytes of the body that were delivered to the sink. */
    size_t len;
    /* Collected body (see `collect_max`), NUL-terminated, "" when there is none; NULL
     * when it went to `buf`, and in on_head(). */
    const char *body;
    uint64_t first_byte_ns; /* from sending on a connected socket to the head's first line; 0: none came */
    uint64_t total_ns;      /* from dctf_http_start() to done() */
    bool reused;            /* the connection was kept from an earlier request */
    const void *impl;       /* for dctf_http_header() */
};

/* Value of a response header, case-insensitive; NULL when absent. The last one when
 * repeated. Valid as long as the response. */
const char *dctf_http_header(const struct dctf_http_response *response, const char *name);

struct dctf_http_request {
    const char *method; /* "GET", "HEAD", "PUT", "POST" */
    const char *url;    /* sent as it is: already encoded, dot segments kept */
    /* "Name: value" each; `Host` is sent by the client unless given here. "Name:" without a
     * value takes away what the client would send (Accept, User-Agent, and Content-Type
     * of a POST). */
    const char *const *headers;
    size_t header_count;
    const void *body; /* of PUT and POST; NULL: none */
    size_t body_len;

    /* Sink. A 2xx body goes to `buf` when that is set: at most buf_len bytes; one byte
     * more ends the transfer with DCTF_ERR_BAD_RESPONSE. Every other body is collected
     * in memory: up to collect_max bytes (0: 64 KiB), more likewise; of a status outside
     * 2xx the rest past the bound is dropped instead. */
    void *buf;
    size_t buf_len;
    size_t collect_max;

    /* Limits; 0: none. */
    uint64_t silence_ms; /* between two bytes, in or out, once connected; first byte included */
    uint64_t total_ms;   /* the whole request, waiting for a connection included */

    /* The head is complete (a final one, not 100). May refuse the body: an error ends the
     * transfer with that code. May point `buf` and `buf_len` elsewhere, if `buf` was set. NULL: accept. */
    enum dctf_err (*on_head)(struct dctf_http_request *request, const struct dctf_http_response *response);
    /* err DCTF_OK: a whole response came, whatever its status: see response->status.
     * Else CANCELLED, SHUTTING_DOWN, DEADLINE (silence or total), SHORT_BODY (connection
     * ended inside the body), ORIGIN_UNREACHABLE (resolve, connect), ORIGIN_TLS
     * (handshake refused, certificate), BAD_RESPONSE (not HTTP, too long), ORIGIN_IO (reset and the rest),
     * NO_MEMORY, or what on_head() said. `response` is never NULL; its fields are as far
     * as it came. dctf_http_error_text() says more. */
    void (*done)(
        struct dctf_http_request *request, enum dctf_err err, const struct dctf_http_response *response);
    void *ctx;
    bool quiet; /* a failure is logged at DEBUG: the caller tells it, or it is nothing unusual */
};

/* On failure done() never runs: DCTF_ERR_NO_MEMORY, _SHUTTING_DOWN, _INTERNAL (method, URL or
 * header that cannot be sent; the URL is http or https, printable ASCII). A request whose kept
 * connection turns out to be closed is sent again on another one, body included, if no byte
 * of a response had come. */
DCTF_MUST_CHECK
enum dctf_err dctf_http_start(struct dctf_http *http, struct dctf_http_request *request);
/* Ask for an early end; done() still runs (CANCELLED, or the result if that came first).
 * A request the client does not hold is ignored, by address. */
void dctf_http_cancel(struct dctf_http *http, struct dctf_http_request *request);

/* libcurl's words for why a request failed, "" when there are none; during done(). */
const char *dctf_http_error_text(const struct dctf_http_response *response);

/* Blocking convenience for credential services and checks: start and wait. The body is
 * collected; *body (may be NULL) is malloc'd for the caller, NULL on failure. `request->done`,
 * `buf` and `ctx` are set by the call, and total_ms when it is 0: 30 s. Not from a loop's
 * thread. */
DCTF_MUST_CHECK
enum dctf_err dctf_http_call(
    struct dctf_http *http, struct dctf_http_request *request, int *status, char **body);

/* For tests: what the client has under way. */
struct dctf_http_stats {
    size_t running;    /* on a connection, or on the way to one */
    size_t waiting;    /* for a connection */
    uint64_t connects; /* connections made since the start */
};
void dctf_http_stats(struct dctf_http *http, struct dctf_http_stats *out);

#endif
