/* SPDX-License-Identifier: Apache-2.0
 *
 * The HTTP/1.1 server of a node, for its peers: accepts, checks who asks, bounds
 * everything, and hands requests to a handler. The only files (peer_server*.c) that see the HTTP
 * server library. Bytes that lie in a file go out by sendfile.
 *
 * Off loopback it refuses to start without a secret or mutual TLS; with both, both are asked for. Bounded:
 * connections in all and per address, size of a head (16 KiB), time to send one, requests under way by
 * class (background is shed first, with 503), time without a byte taken. Requests have no bodies. Who is
 * refused (no proof, or not understood) loses its connection, who is proven keeps it for a minute
 * of silence.
 *
 * Threads:   the handler runs on the server's threads and must not wait for the network: it answers
 *            now, or keeps the request and answers later from any thread. Exactly one answer each.
 * Ownership: a request belongs to the handler from its call until the answer.
 */
#ifndef DCTF_TRANSPORT_PEER_SERVER_H
#define DCTF_TRANSPORT_PEER_SERVER_H

#include "base/err.h"
#include "transport/fetch.h"
#include "transport/peer_wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dctf_peer_server;
struct dctf_peer_request; /* opaque */

struct dctf_peer_asked {
    struct dctf_peer_ask ask;
    char node[64]; /* who asks */
    enum dctf_fetch_class class;
    unsigned hop;         /* 0 probe, 1 reader to home */
    uint64_t deadline_ms; /* from now */
    uint64_t view;        /* of the asker */
    bool accepts_lz4;
    bool tried; /* it asked those that this node named */
};

struct dctf_peer_server_config {
    const char *listen;                         /* "host:port", "[::1]:0"; port 0: any */
    const char *secret;                         /* NULL or "": none */
    const char *cert_file, *key_file, *ca_file; /* PEM; all three: mutual TLS; NULL: none */
    unsigned threads;                           /* 0: min(4, cores) */
    unsigned connections;                       /* in all; 0: 1024; a quarter of it per address */
    unsigned demand_max, background_max;        /* requests under way; 0: 256 and 32 */
    uint64_t head_timeout_ms;                   /* 0: 5000 */
    uint64_t reply_timeout_ms;                  /* longest time without a byte taken; 0: 15000 */
    struct dctf_metrics *metrics;               /* borrowed; may be NULL */
    /* Answer, now or later. `asked` is valid until then. */
    void (*handle)(void *ctx, struct dctf_peer_request *request, const struct dctf_peer_asked *asked);
    /* View hash for the header of every answer to a peer; may be NULL. */
    uint64_t (*view)(void *ctx);
    void *ctx;
};

/* DCTF_ERR_PEER_UNSAFE, _OPTION_VALUE (listen), _SYSTEM (address in use …); `detail` ≥ 256 bytes. */
DCTF_MUST_CHECK
enum dctf_err dctf_peer_server_start(
    const struct dctf_peer_server_config *config, char *detail, struct dctf_peer_server **out);
/* Refuse new connections and requests, wait for those under way (bounded by reply_timeout), stop. The server
 * is gone then, but requests that are not answered yet still take their answer: nobody gets it, release() is
 * called. Not from within a callback. */
void dctf_peer_server_stop(struct dctf_peer_server *server);
unsigned dctf_peer_server_port(const struct dctf_peer_server *server);

/* How the answer came to be, for its headers. */
struct dctf_peer_origin {
    enum dctf_peer_from from;
    uint64_t waited_us;
};

/* Answers, from any thread, the handler's included. `sums` has one XXH3 per block asked for, and is
 * copied. release() may be NULL; it is called exactly once whatever becomes of the answer, on any thread,
 * also before the call returns, with no lock held; it must not block. */

/* From memory: `len` bytes, the blocks themselves or, `framed`, their frames (transport/encoder.h).
 * release(ctx) is called once the bytes are no longer needed. */
void dctf_peer_reply_memory(struct dctf_peer_request *request, const void *data, size_t len, bool framed,
    const uint64_t *sums, const struct dctf_peer_origin *origin, void (*release)(void *ctx), void *ctx);
/* From a file, plain, by sendfile (or read, with TLS). `fd` is borrowed until release(). */
void dctf_peer_reply_file(struct dctf_peer_request *request, int fd, uint64_t offset, size_t len,
    const uint64_t *sums, const struct dctf_peer_origin *origin, void (*release)(void *ctx), void *ctx);
/* 200/202 to a `have`, 204 absent. */
void dctf_peer_reply_have(struct dctf_peer_request *request, bool here, bool on_its_way);
/* What goes with the answer about room (peer_wire.h). Before the answer. */
void dctf_peer_reply_spare(struct dctf_peer_request *request, enum dctf_peer_spare spare);
/* Any other: the status follows from the code (see peer_wire.h); BAD_REQUEST says that the dataset or the
 * layout is another. `retry_ms` and `try` (ids, comma separated, or NULL) go with PEER_BUSY. */
void dctf_peer_reply_error(
    struct dctf_peer_request *request, enum dctf_err err, uint64_t retry_ms, const char *try);

/* What the kernel knows of the way to who asks (TCP_INFO); zeros when it tells nothing. Before the answer. */
void dctf_peer_request_path(const struct dctf_peer_request *request, struct dctf_peer_path *out);

struct dctf_peer_server_stats {
    size_t connections;
    size_t running[DCTF_FETCH_CLASS_COUNT]; /* handed to the handler, their answers not sent yet */
    uint64_t refused;                       /* requests and connections */
    uint64_t shed;
    uint64_t bytes_out; /* of shards, in answers that were sent whole */
};
void dctf_peer_server_stats(struct dctf_peer_server *server, struct dctf_peer_server_stats *out);

#endif
