/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to the client of peers: peer_client.c sends and ends errands, peer_client_answer.c judges what
 * came.
 *
 * Threads:   an errand belongs to who starts it, then to its loop's thread; `link` is guarded by lock.
 * Ownership: the client owns an errand from start until its done().
 */
#ifndef DCTF_TRANSPORT_PEER_CLIENT_INTERNAL_H
#define DCTF_TRANSPORT_PEER_CLIENT_INTERNAL_H

#include "base/list.h"
#include "base/str.h"
#include "transport/peer_client.h"

#include <pthread.h>

#define DCTF_PEER_CLIENT_BUCKETS 256u
/* Headers of a request: those of a dctf_peer_call, the proof, and two that libcurl shall leave out. */
#define DCTF_PEER_ERRAND_LINES 11u
#define DCTF_PEER_LINE_BYTES 192u
/* Of an answer without blocks; nothing in it is of use. */
#define DCTF_PEER_BODY_MAX 4096u

enum dctf_peer_pool {
    DCTF_PEER_POOL_DEMAND,
    DCTF_PEER_POOL_NARROW, /* background, by the receive window of its connections */
    DCTF_PEER_POOL_BACKGROUND,
    DCTF_PEER_POOL_WIDE,
    DCTF_PEER_POOL_CONTROL,
    DCTF_PEER_POOLS
};

struct dctf_peer_client {
    char node[DCTF_PEER_NODE_MAX + 1];
    char *secret; /* NULL: none */
    bool tls;
    bool accept_lz4;
    struct dctf_metrics *metrics;
    struct dctf_clock clock;
    struct dctf_http *pools[DCTF_PEER_POOLS];
    unsigned window_bytes; /* of the middle one */

    pthread_mutex_t lock; /* above that of the HTTP client, held across no callback */
    /* guarded by lock */
    bool closing;
    struct dctf_list held[DCTF_PEER_CLIENT_BUCKETS]; /* errands, by address of the dctf_peer_get */
};

struct dctf_peer_errand {
    struct dctf_list link; /* of held; guarded by lock */
    struct dctf_peer_client *client;
    struct dctf_peer_get *get;
    struct dctf_http *http;
    struct dctf_http_request request;
    struct dctf_str url;
    size_t bytes; /* plain, of the blocks asked for; 0: none */
    void *frames; /* NULL: the blocks come plain, or none */
    struct dctf_peer_told told;

    unsigned line_count;
    const char *headers[DCTF_PEER_ERRAND_LINES];
    struct dctf_peer_header bound[DCTF_PEER_ERRAND_LINES];
    char lines[DCTF_PEER_ERRAND_LINES][DCTF_PEER_LINE_BYTES];
};

/* --- peer_client_answer.c --- */

/* Called by the HTTP client at the end of the head: what does not fit ends there. */
enum dctf_err dctf_peer_errand_head(
    struct dctf_http_request *request, const struct dctf_http_response *response);
/* What done() is told, given how the transfer ended: decodes and checks the blocks, fills `answer` in. */
enum dctf_err dctf_peer_errand_judge(struct dctf_peer_errand *errand, enum dctf_err err,
    const struct dctf_http_response *response, struct dctf_peer_answer *answer);

#endif
