/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to the HTTP client: http.c has its calls and decides which loop runs a
 * request; http_loop.c is a loop's thread: time limits and ends; http_transfer.c
 * sets one libcurl transfer up, takes its bytes and turns its errors into ours.
 *
 *   WAITING → ASSIGNED → RUNNING → (done() runs) gone
 *      └─────────┴→ ENDED → (done() runs) gone
 *
 * WAITING for a connection, in the client's queue; ASSIGNED to a loop that has not taken
 * it over yet; RUNNING in the loop's multi handle; ENDED before it ran.
 *
 * Threads:   fields marked so are guarded by the client's lock, a leaf that is held across
 *            no callback and no call of libcurl but curl_multi_wakeup(), which writes to a
 *            pipe. All else of a transfer and of a loop belongs to the loop's thread
 *            from ASSIGNED on.
 * Ownership: the client owns a transfer from dctf_http_start() until done() returned.
 */
#ifndef DCTF_TRANSPORT_HTTP_INTERNAL_H
#define DCTF_TRANSPORT_HTTP_INTERNAL_H

#include "base/list.h"
#include "base/str.h"
#include "transport/http.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdatomic.h>

#if LIBCURL_VERSION_NUM < 0x075800
#error "libcurl 7.88 or later is needed"
#endif

#define DCTF_HTTP_BUCKETS 256u
#define DCTF_HTTP_LOOPS_MAX 64u
#define DCTF_HTTP_NEVER UINT64_MAX

enum dctf_http_state {
    DCTF_HTTP_WAITING,
    DCTF_HTTP_ASSIGNED,
    DCTF_HTTP_RUNNING,
    DCTF_HTTP_ENDED,
};

struct dctf_http_loop;

struct dctf_http_transfer {
    struct dctf_http *http;
    struct dctf_http_request *request; /* borrowed from the caller until done() */
    uint64_t started_ns;
    uint64_t due_ns; /* of total_ms */

    struct dctf_http_transfer *next_held; /* in its bucket; guarded by lock */
    enum dctf_http_state state;           /* guarded by lock */
    enum dctf_err asked;                  /* why it shall end early; guarded by lock */
    struct dctf_list asked_link;          /* loop->asked; guarded by lock */
    struct dctf_http_loop *loop;          /* set under lock on the way to ASSIGNED */
    struct dctf_list link;                /* waiting and inbox: guarded by lock; active: the loop's */

    CURL *easy;                 /* while RUNNING */
    struct curl_slist *headers; /* sent */
    size_t body_sent;
    uint64_t sent_ns; /* the request goes out on a connection; 0: not yet */
    uint64_t last_ns; /* the last byte in or out since then */
    size_t head_bytes;
    bool head_done;
    bool to_buf;           /* the body goes to the request's buf */
    enum dctf_err verdict; /* given by a callback or a time limit; goes before curl's word */
    struct dctf_str collected;
    struct dctf_http_response response;
    char text[CURL_ERROR_SIZE];
};

struct dctf_http_loop {
    struct dctf_http *http;
    CURLM *multi;
    pthread_t thread;
    bool started;

    struct dctf_list inbox; /* ASSIGNED and ENDED; guarded by lock */
    struct dctf_list asked; /* RUNNING that shall end; guarded by lock */
    bool woken;             /* since it last looked; guarded by lock */
    size_t running;         /* ASSIGNED and RUNNING; guarded by lock */

    atomic_size_t sockets; /* open: what exceeds `running` is idle */

    struct dctf_list active; /* RUNNING */
    uint64_t next_due_ns;    /* no limit of an active transfer passes before it */
    size_t connections_max;  /* what libcurl was told last */
    CURL **easies;           /* pool of handles, room for every connection */
    size_t easies_len;
};

struct dctf_http {
    unsigned connections;
    unsigned idle_per_loop;
    long connect_timeout_ms;
    bool no_proxy;
    char *ca_file; /* NULL: none, as ca_dir */
    char *ca_dir;
    char *cert_file; /* NULL: none */
    char *key_file;
    int receive_buffer_bytes; /* 0: the kernel's choice */
    char *user_agent;
    CURLSH *share;
    pthread_mutex_t share_locks[CURL_LOCK_DATA_LAST];

    pthread_mutex_t lock;
    struct dctf_http_transfer *held[DCTF_HTTP_BUCKETS]; /* by address of the request; guarded by lock */
    struct dctf_list waiting;                           /* guarded by lock */
    size_t waiting_len;                                 /* guarded by lock */
    uint64_t waiting_due_ns; /* no limit of a waiting one passes before it; guarded by lock */
    size_t running;          /* over all loops; guarded by lock */
    uint64_t connects;       /* guarded by lock */
    bool closing;            /* guarded by lock */

    unsigned loop_count;
    struct dctf_http_loop loops[];
};

/* `ms` after `now`, saturating; 0: never. */
uint64_t dctf_http_due(uint64_t now_ns, uint64_t ms);

/* --- http.c --- */

/* The loop shall look at its lists. */
void dctf_http_wake_locked(struct dctf_http_loop *loop);
/* Nobody finds the transfer any more, its connection is free, the next one that waits
 * gets it. `connects` were made for it. */
void dctf_http_release(struct dctf_http_transfer *transfer, uint64_t connects);

/* --- http_loop.c --- */

/* A loop's thread; ends when the client is closing and nothing is left. */
void *dctf_http_loop_run(void *loop);

/* --- http_transfer.c --- */

/* Set transfer->easy up for its request. DCTF_ERR_NO_MEMORY, DCTF_ERR_INTERNAL. */
DCTF_MUST_CHECK
enum dctf_err dctf_http_transfer_setup(struct dctf_http_transfer *transfer);
/* When it shall end although nothing happened. */
uint64_t dctf_http_transfer_due(const struct dctf_http_transfer *transfer);
/* Fill the response in and say how it ended; logs failures. */
enum dctf_err dctf_http_transfer_result(struct dctf_http_transfer *transfer, CURLcode code);
/* Free it; the easy handle is the caller's again. */
void dctf_http_transfer_free(struct dctf_http_transfer *transfer);

#endif
