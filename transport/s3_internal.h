/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to the S3 origin.
 *
 *   origin_s3.c          the interface, start and end, the list of tasks
 *   origin_s3_place.c    address, region and clock that the service taught us
 *   origin_s3_request.c  one request: credentials, signature, judgement, one more try
 *   origin_s3_error.c    what an answer means: the one table of S3's errors
 *   origin_s3_get.c      ranges and heads of one version
 *   origin_s3_list.c     directories, page by page
 *   origin_s3_call.c     blocking requests: check
 *   origin_s3_examine.c  step by step for `dctf doctor`, with s3_reach.c
 *   s3_silence.c         how long an answer may take
 *
 * A *task* is what a caller started: a get, a head, a listing or a call. It owns the memory
 * of its requests. A *request* is one HTTP exchange of a task, with its one more try:
 *
 *   IDLE → ASKING (credentials) → SENT (client) → IDLE, done()
 *             ↑                     │
 *             └─────────────────────┘  region, clock, credentials or ETag: once each
 *
 * Threads:   fields marked so are guarded by the origin's lock, a leaf that is never held
 *            across a callback, the client, the credentials or a log sink.
 * Ownership: a task is counted: one reference by the list of tasks until its callback ran,
 *            one per request under way, one by whoever cancels it.
 */
#ifndef DCTF_TRANSPORT_S3_INTERNAL_H
#define DCTF_TRANSPORT_S3_INTERNAL_H

#include "base/clock.h"
#include "base/list.h"
#include "base/metric.h"
#include "base/pool.h"
#include "base/str.h"
#include "base/thread.h"
#include "base/timer.h"
#include "transport/http.h"
#include "transport/origin.h"
#include "transport/s3_address.h"
#include "transport/s3_credentials.h"
#include "transport/s3_silence.h"
#include "transport/s3_xml.h"

#include <pthread.h>
#include <stdbool.h>

#define DCTF_S3_DETAIL_BYTES 256
#define DCTF_S3_LINES_MAX 12

struct dctf_s3;

/* An address that is never changed; a region that was learnt makes another. */
struct dctf_s3_place {
    struct dctf_s3_address address;
    unsigned refs; /* atomic */
};

struct dctf_s3_task {
    struct dctf_list link; /* of the origin's tasks; guarded by lock */
    struct dctf_s3 *s3;
    const void *owner;                         /* what cancel names: the caller's request */
    void (*cancel)(struct dctf_s3_task *task); /* end early; runs without the lock */
    void (*free)(struct dctf_s3_task *task);
    unsigned refs;  /* atomic */
    bool cancelled; /* by the end of the origin; guarded by lock */
};

enum dctf_s3_op { DCTF_S3_GET, DCTF_S3_LIST, DCTF_S3_HEAD };

enum dctf_s3_state { DCTF_S3_IDLE, DCTF_S3_ASKING, DCTF_S3_SENT };

struct dctf_s3_request {
    /* Filled in by the task, and kept until done(). */
    struct dctf_s3_task *task;
    enum dctf_s3_op op;
    const char *key;      /* below the mount; "": the bucket */
    const char *query;    /* percent-encoded */
    const char *label;    /* for the log; NULL: the key */
    char range[64];       /* "bytes=0-9"; "": none */
    const char *if_match; /* ETag without quotes; NULL: none */
    void *buf;            /* see dctf_http_request */
    size_t buf_len;
    size_t collect_max;
    uint64_t wait_ms; /* longest wait for credentials */
    bool plain;       /* neither signed nor tried again */
    bool quiet;       /* failures are told otherwise: not logged */
    enum dctf_err (*on_head)(struct dctf_s3_request *request, const struct dctf_http_response *response);
    /* `err` says what the answer means (DCTF_OK: 2xx). `response` is NULL when none came,
     * not even the head of one. */
    void (*done)(
        struct dctf_s3_request *request, enum dctf_err err, const struct dctf_http_response *response);

    /* For done(): words for people, without secrets, "" when it went well. */
    char detail[DCTF_S3_DETAIL_BYTES];
    struct dctf_s3_error error;
    uint64_t retry_after_ms; /* the pause that a refusal asked for; 0: none */

    /* Private. */
    enum dctf_s3_state state; /* guarded by lock, as is cancelled */
    bool cancelled;
    unsigned mended; /* which of the one-more-tries were used up */
    pthread_t starter;
    enum dctf_err *start_err; /* while the start is on its thread */
    uint64_t begun_ms;
    uint64_t sent_ms;
    uint64_t silence_ms;
    struct dctf_s3_place *place; /* signed for */
    struct dctf_s3_keys *keys;   /* signed with; NULL: not signed */
    struct dctf_s3_keys *stale;  /* what the service refused */
    struct dctf_str url;
    struct dctf_str lines; /* header lines, each ended by a NUL */
    const char *line[DCTF_S3_LINES_MAX];
    struct dctf_http_request http;
};

struct dctf_s3 {
    struct dctf_origin base; /* first */
    char *source;            /* as given */
    char *endpoint;
    enum dctf_s3_style style;
    bool anonymous;
    bool requester_pays;
    bool region_given; /* by option, environment or profile */
    uint64_t read_deadline_ms;
    uint64_t list_deadline_ms;
    uint64_t connect_timeout_ms;
    unsigned retries;
    struct dctf_clock clock;
    struct dctf_http *http;
    struct dctf_s3_credentials *credentials; /* NULL: anonymous */
    struct dctf_pool *parsers;
    struct dctf_timers *timers; /* pages that are tried again */
    struct dctf_s3_silence *silence;

    pthread_mutex_t lock;
    pthread_cond_t idle;
    /* guarded by lock */
    struct dctf_list tasks;
    size_t alive;   /* tasks that somebody holds */
    size_t orphans; /* of them, those that are over but for credentials that were asked for */
    struct dctf_s3_place *place;
    int64_t clock_offset_ms; /* the service's clock less ours, when it refused ours */
    struct dctf_rng rng;
    struct dctf_metrics *metrics; /* NULL once closed: late answers may come after it is gone */
    bool closing;
};

/* origin_s3.c */

/* Put a task on the list, with one reference that is the list's. On failure it is not
 * taken: DCTF_ERR_SHUTTING_DOWN. */
DCTF_MUST_CHECK
enum dctf_err dctf_s3_task_begin(struct dctf_s3_task *task);
/* Off the list, so that cancel does not find it: before its callback. */
void dctf_s3_task_end(struct dctf_s3_task *task);
/* Counted. The list's reference is dropped after the callback, by whoever ended the task. */
void dctf_s3_task_ref(struct dctf_s3_task *task);
void dctf_s3_task_unref(struct dctf_s3_task *task);
void dctf_s3_count(struct dctf_s3 *s3, enum dctf_metric metric, int64_t delta);
void dctf_s3_gauge(struct dctf_s3 *s3, enum dctf_metric metric, int64_t value);

/* origin_s3_place.c */

DCTF_MUST_CHECK
enum dctf_err dctf_s3_place_new(
    const struct dctf_s3 *s3, const char *region, char *detail, struct dctf_s3_place **out);
void dctf_s3_place_unref(struct dctf_s3_place *place);
/* The place of now, counted. */
struct dctf_s3_place *dctf_s3_place_get(struct dctf_s3 *s3);
/* The service named `region` to a request that was signed for `place`: all requests from
 * now on are for it. True when there is another place than `place` now. */
bool dctf_s3_place_learn(struct dctf_s3 *s3, const struct dctf_s3_place *place, const char *region);
/* What a header or an element names; only such a word may become part of a host name. */
bool dctf_s3_is_region(const char *text);
/* Milliseconds since the epoch by the service's clock. */
uint64_t dctf_s3_now_ms(struct dctf_s3 *s3);
/* The service refused our clock: take over its own, as told by the answer. False when it
 * tells none, or the one that is used already. */
bool dctf_s3_clock_learn(struct dctf_s3 *s3, const char *date, const char *server_time);
/* "Sun, 06 Nov 1994 08:49:37 GMT" → seconds since the epoch. */
bool dctf_s3_date_parse(const char *text, int64_t *out_s);

/* origin_s3_request.c */

/* Send it; see dctf_origin for the rules of start. done() is the last that happens. */
DCTF_MUST_CHECK
enum dctf_err dctf_s3_request_start(struct dctf_s3_request *request);
/* Ask for an early end. The caller holds a reference of the task. */
void dctf_s3_request_cancel(struct dctf_s3_request *request);
void dctf_s3_request_init(struct dctf_s3_request *request, struct dctf_s3_task *task, enum dctf_s3_op op);
void dctf_s3_request_fini(struct dctf_s3_request *request);

/* origin_s3_error.c */

/* What an answer outside 2xx, or an error document in one, means for `op`. */
enum dctf_err dctf_s3_error_map(enum dctf_s3_op op, int status, const char *code);
enum dctf_s3_ailment {
    DCTF_S3_AILS_REGION = 1,
    DCTF_S3_AILS_CLOCK = 2,
    DCTF_S3_AILS_CREDENTIALS = 4,
    DCTF_S3_AILS_ETAG = 8, /* not of the table: an answer for another version than If-Match names */
};
/* Which of the one-more-tries may mend it; 0: none. */
unsigned dctf_s3_error_ailment(int status, const char *code);

/* origin_s3_get.c, origin_s3_list.c, origin_s3_call.c, origin_s3_examine.c: see struct dctf_origin_ops */

enum dctf_err dctf_s3_get(struct dctf_origin *origin, struct dctf_origin_get *get);
enum dctf_err dctf_s3_head(struct dctf_origin *origin, struct dctf_origin_head *head);
enum dctf_err dctf_s3_list(struct dctf_origin *origin, struct dctf_origin_list *list);
enum dctf_err dctf_s3_check(struct dctf_origin *origin, uint64_t deadline_ms, char *detail);
void dctf_s3_examine(struct dctf_origin *origin, uint64_t deadline_ms,
    void (*step)(void *ctx, const struct dctf_origin_step *step), void *ctx);

/* "bytes 0-9/100" → three numbers; false when it is anything else. */
bool dctf_s3_content_range_parse(const char *text, uint64_t *first, uint64_t *last, uint64_t *total);

/* A blocking request, for check and examine. */
struct dctf_s3_call {
    enum dctf_s3_op op;
    const char *key;
    const char *query;
    const char *if_match;
    uint64_t first, len; /* range of a get; len 0: none */
    bool plain;
    bool quiet;
    uint64_t due_ms; /* monotonic */
};
struct dctf_s3_answer {
    int status; /* 0: none came */
    char *body; /* NULL: none; owned */
    size_t len; /* of the body */
    uint64_t total_ns;
    char detail[DCTF_S3_DETAIL_BYTES];
    struct dctf_s3_error error;
    char date[40], region[64], content_range[96], etag[160], server[96]; /* headers, "" when absent */
};
enum dctf_err dctf_s3_call(struct dctf_s3 *s3, const struct dctf_s3_call *call, struct dctf_s3_answer *out);
void dctf_s3_answer_fini(struct dctf_s3_answer *answer);
/* Query of ListObjectsV2; `prefix` is a whole key prefix. */
void dctf_s3_list_query(
    struct dctf_str *out, const char *prefix, bool delimiter, unsigned max_keys, const char *token);

#endif
