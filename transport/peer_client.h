/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests to peers: signed, checked against their checksums, and measured. One client for all
 * peers, on transport/http.h, with pools of connections: many for the blocks that readers wait for; a few,
 * with a receive window that is bounded, for all other blocks (three pools, for three windows); and one for
 * pings, `have` and what is short, whose answers are measured and must not stand behind blocks. Pages of
 * listings go where blocks of their class go.
 *
 * Everything that comes is checked: an answer has to fit what was asked for before its body is taken.
 *
 * Threads:   any thread starts and cancels; done() runs on a loop's thread, exactly once,
 *            never inside start, with no lock held. It may start, also the same request again.
 * Ownership: a request is embedded in its caller until done().
 */
#ifndef DCTF_TRANSPORT_PEER_CLIENT_H
#define DCTF_TRANSPORT_PEER_CLIENT_H

#include "base/err.h"
#include "transport/fetch.h"
#include "transport/http.h"
#include "transport/peer_wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Receive windows of background connections, but for the one that is configured. */
#define DCTF_PEER_WINDOW_NARROW (64u * 1024)
#define DCTF_PEER_WINDOW_WIDE (2u * 1024 * 1024)

struct dctf_peer_client;

struct dctf_peer_client_config {
    const char *node;                           /* own id */
    const char *secret;                         /* NULL or "": none */
    const char *cert_file, *key_file, *ca_file; /* mutual TLS; NULL or "": plain HTTP */
    uint64_t connect_timeout_ms;                /* 0: 500 */
    unsigned demand_connections;                /* at once, to all peers; 0: 256 */
    unsigned background_connections;            /* likewise; 0: 16 */
    unsigned background_window_bytes;           /* receive buffer of each; 0: 256 KiB */
    bool accept_lz4;
    struct dctf_metrics *metrics;   /* borrowed; may be NULL */
    const struct dctf_clock *clock; /* borrowed; NULL: the system's */
};

/* The config is copied. DCTF_ERR_NO_MEMORY, _SYSTEM, _INTERNAL (an id that is none). */
DCTF_MUST_CHECK
enum dctf_err dctf_peer_client_new(
    const struct dctf_peer_client_config *config, struct dctf_peer_client **out);
/* End what is under way with DCTF_ERR_SHUTTING_DOWN and wait for its done(). Callbacks may still start, which
 * is refused. Not from within a callback; NULL is allowed. */
void dctf_peer_client_free(struct dctf_peer_client *client);

struct dctf_peer_answer {
    uint64_t first_byte_us; /* from the request on a connection, less what the server waited; 0: none came */
    uint64_t total_us;      /* from the start, with the wait for a connection */
    size_t wire_bytes;      /* of the body */
    uint64_t decode_ns;     /* spent on frames; 0: plain */
    struct dctf_peer_path path;    /* as the server's socket saw it */
    uint64_t view;                 /* hash of the peer's view; 0: not told */
    uint64_t retry_ms;             /* with PEER_BUSY */
    char try[DCTF_PEER_TRY_BYTES]; /* with PEER_BUSY: ids, comma separated; "" none */
    enum dctf_peer_spare spare;
    bool on_its_way;  /* of a `have` or a listing: is being fetched from the source */
    size_t body_len;  /* of an answer about names */
    bool from_origin; /* the peer had to fetch it */
};

struct dctf_peer_get {
    const char *addr; /* "host:port"; borrowed, as all pointers */
    struct dctf_peer_ask ask;
    void *buf;      /* for blocks: ≥ dctf_peer_ask_bytes(); its contents are undefined after a failure */
    size_t buf_len; /* of a request about names: what `buf` can take of the body, which is checked as well */
    enum dctf_fetch_class class;
    unsigned hop;
    bool tried; /* those that the peer named in its last answer were asked */
    uint64_t view;
    uint64_t deadline_ms; /* from now */
    uint64_t silence_ms;  /* longest time without a byte; 0: as the deadline */
    uint64_t max_rate;    /* bytes/s the server should pace to; 0: none */
    /* Not for demand: what may be under way to here at once, about; 0: background_window_bytes. Taken before
     * the connection is made, and so rounded up to _NARROW, background_window_bytes or _WIDE. */
    uint64_t window_bytes;
    /* DCTF_OK: `buf` holds the blocks, checked (or `have` was answered yes). PEER_ABSENT; PEER_BUSY;
     * PEER_GONE (no connection, reset, silence, going away, or it failed itself); PEER_AUTH (of the secret,
     * or no trusted TLS connection); DEADLINE (ours, or the peer's for us); TRANSFER_CHECKSUM (the block is
     * named in the log); VERSION_MISMATCH; NOT_FOUND; BAD_REQUEST (another release, or another dataset);
     * BAD_RESPONSE; CANCELLED; SHUTTING_DOWN; NO_MEMORY, INTERNAL (here); or the source's error as the peer
     * told it. */
    void (*done)(struct dctf_peer_get *get, enum dctf_err err, const struct dctf_peer_answer *answer);
    void *ctx;
};

/* On failure done() never runs: DCTF_ERR_PEER_GONE (no address), _NO_MEMORY, _SHUTTING_DOWN, _INTERNAL,
 * _SYSTEM. */
DCTF_MUST_CHECK
enum dctf_err dctf_peer_get_start(struct dctf_peer_client *client, struct dctf_peer_get *get);
/* Ask for an early end; done() still runs (CANCELLED, or the result if that came first). A request the
 * client does not hold is ignored, by address. */
void dctf_peer_get_cancel(struct dctf_peer_client *client, struct dctf_peer_get *get);

#endif
