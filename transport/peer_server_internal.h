/* SPDX-License-Identifier: Apache-2.0
 *
 * The insides of the peer server, shared by its files. They are the only ones that see the HTTP server
 * library (libmicrohttpd, "MHD" below), and peer_server_tls.c the only one that sees its TLS library.
 *
 *   HEAD → WHOLE → answered by the server itself: refused, ping, shed
 *             └──→ HELD by the handler ─┬→ answered while the handler ran: sent at once
 *                                       └→ connection suspended → answered → resumed → sent
 *
 * A request has one reference of the library, until it tells that the request is completed, and one of the
 * handler, until the answer. With the last of them it is freed and release() of the answer called, so that
 * an answer later than the server's end finds its request, and touches nothing else.
 *
 * Threads:   MHD's few threads run everything but the watch and late answers. A connection belongs to
 *            one of them; MHD_suspend_connection() and MHD_resume_connection() are called with the
 *            lock held, so that they meet in order. MHD calls nothing of ours with its own locks held.
 * Ownership: as said at the fields.
 */
#ifndef DCTF_TRANSPORT_PEER_SERVER_INTERNAL_H
#define DCTF_TRANSPORT_PEER_SERVER_INTERNAL_H

#include "base/list.h"
#include "transport/peer_auth.h"
#include "transport/peer_server.h"

#include <microhttpd.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

/* Of a request: its head and what MHD notes about it. Longest target of ours: DCTF_PEER_TARGET_MAX. */
#define DCTF_PEER_SERVER_HEAD_BYTES 16384u
/* How long a proven peer may keep a connection that it asks nothing on. */
#define DCTF_PEER_SERVER_IDLE_MS 60000u
/* Headers of one request; a peer sends about ten. */
#define DCTF_PEER_SERVER_HEADERS_MAX 32u

/* --- TLS --- */

struct dctf_peer_tls {
    char *cert, *key, *ca; /* PEM; NULL: no TLS */
};

DCTF_MUST_CHECK
enum dctf_err dctf_peer_tls_load(
    struct dctf_peer_tls *tls, const struct dctf_peer_server_config *config, char *detail);
void dctf_peer_tls_fini(struct dctf_peer_tls *tls);
/* A connection began: its handshake ends well only with a certificate that the CA signed. */
void dctf_peer_tls_demand(struct MHD_Connection *mhd);
/* Whether it did. */
bool dctf_peer_tls_proven(struct MHD_Connection *mhd);

/* --- sockets --- */

/* A socket that listens at `listen`; with `loopback_only` none that others than this machine can reach:
 * DCTF_ERR_PEER_UNSAFE. `detail` ≥ 256. */
DCTF_MUST_CHECK
enum dctf_err dctf_peer_socket_listen(const char *listen, bool loopback_only, uint64_t reply_timeout_ms,
    int *fd, unsigned *port, bool *ipv6, char *detail);
/* Whether `fd` is still the socket that listens at `port`. */
bool dctf_peer_socket_listens(int fd, unsigned port);
void dctf_peer_socket_path(int fd, struct dctf_peer_path *out);
/* Bytes/s to pace to, at least 64 KiB; 0: as fast as it goes. */
void dctf_peer_socket_pace(int fd, uint64_t rate);

/* --- the server --- */

struct dctf_peer_server {
    struct dctf_peer_server_config config; /* what is 0 was given its default; no strings */
    struct dctf_peer_tls tls;
    struct dctf_peer_verifier *verifier; /* NULL: no secret */
    struct MHD_Daemon *daemon;
    int listener; /* -1: MHD's, or none */
    unsigned port;
    pthread_t watch;

    pthread_mutex_t lock;
    pthread_cond_t watch_wake; /* connections came, or the end */
    pthread_cond_t done;       /* a request left `requests` */
    /* guarded by lock */
    bool stopping; /* takes no more requests */
    bool aborting; /* those that are not answered yet will not be */
    bool watch_ends;
    size_t refs; /* the owner, and each request */
    struct dctf_list connections;
    size_t connection_count;
    struct dctf_list requests; /* under way: handed to the handler, not completed */
    size_t running[DCTF_FETCH_CLASS_COUNT];
    uint64_t refused, shed, bytes_out;
};

struct dctf_peer_connection {
    struct dctf_list link; /* guarded by the server's lock */
    int fd;                /* MHD's; valid while linked */
    struct in6_addr addr;
    _Atomic uint64_t head_due_ms; /* a whole head has to be there by then; 0: none is awaited */
    atomic_bool served;           /* a proven peer: its next head may be long in coming */
    /* of the connection's thread */
    struct dctf_peer_request *request; /* begun and not completed; NULL: none */
    bool paced;
    bool tls_proven;
};

enum dctf_peer_stage { DCTF_PEER_STAGE_HEAD, DCTF_PEER_STAGE_WHOLE, DCTF_PEER_STAGE_HELD };

struct dctf_peer_request {
    struct dctf_peer_server *server;
    struct dctf_peer_connection *connection;
    struct MHD_Connection *mhd;
    enum dctf_peer_stage stage; /* of the connection's thread */
    char *target;               /* as on the request line; NULL: too long, or none */
    struct dctf_peer_asked asked;
    uint64_t max_rate;

    /* The answer: whoever answers writes it before `answered` is set. */
    struct dctf_peer_told told;
    int status;
    bool close; /* the connection with it */
    const void *data;
    int fd; /* -1: from memory */
    uint64_t offset;
    size_t len;
    void (*release)(void *ctx);
    void *release_ctx;

    /* guarded by the server's lock */
    struct dctf_list link;
    unsigned refs;
    bool answered;
    bool suspended;
    bool gone; /* MHD is through with it: neither connection nor mhd is valid */
    bool counted;
};

/* MHD's callbacks, in the order of a request's life. */
void *dctf_peer_request_begin(void *cls, const char *uri, struct MHD_Connection *mhd);
enum MHD_Result dctf_peer_request_access(void *cls, struct MHD_Connection *mhd, const char *url,
    const char *method, const char *version, const char *data, size_t *size, void **context);
void dctf_peer_request_completed(
    void *cls, struct MHD_Connection *mhd, void **context, enum MHD_RequestTerminationCode code);
/* The same by our own doing: after some errors in a head MHD 0.9.75 closes without telling. */
void dctf_peer_request_end(struct dctf_peer_request *request, bool whole);

/* Send the answer that is in the request. On the connection's thread; MHD_NO closes the connection. */
DCTF_MUST_CHECK
enum MHD_Result dctf_peer_request_send(struct dctf_peer_request *request);
/* Drop what the request refers to, and the request. No reference is left. */
void dctf_peer_request_free(struct dctf_peer_request *request);
/* Drop one reference of the server. */
void dctf_peer_server_unref(struct dctf_peer_server *server);

#endif
