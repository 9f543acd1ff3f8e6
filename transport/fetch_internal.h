/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to the scheduler: fetch.c decides what runs; fetch_job.c has the states
 * and ends of one transfer; fetch_request.c, which alone knows the operations,
 * turns get, list and head into origin requests and answers into done().
 *
 *   NEW → QUEUED → RUNNING → DONE
 *           ↑  │     │ └──→ BACKOFF → QUEUED
 *           │  └─────┴────────┴──→ ENDING → DONE
 *
 * ENDING means that deadline, cancel or shutdown have decided and done() is
 * about to run. `held` is apart from the state: the origin may keep a request
 * whose transfer is ENDING or DONE. That is what fetch.h calls ABANDONED.
 *
 * Threads:   fields marked so are guarded by the scheduler's lock, which is never
 *            held across origin, done(), page(), release() or cancelling a timer.
 *            Arming a timer under it is fine.
 * Ownership: a job is counted: one reference for the scheduler until done() returned,
 *            one while the origin holds it, one per armed timer. It holds a
 *            reference of the scheduler, which so outlives dctf_fetch_free() for
 *            late answers.
 */
#ifndef DCTF_TRANSPORT_FETCH_INTERNAL_H
#define DCTF_TRANSPORT_FETCH_INTERNAL_H

#include "base/clock.h"
#include "base/timer.h"
#include "transport/fetch.h"

#include <pthread.h>
#include <sys/queue.h>

enum dctf_fetch_state {
    DCTF_FETCH_NEW,
    DCTF_FETCH_QUEUED,
    DCTF_FETCH_RUNNING,
    DCTF_FETCH_BACKOFF,
    DCTF_FETCH_ENDING,
    DCTF_FETCH_DONE,
    DCTF_FETCH_STATE_COUNT
};

enum dctf_fetch_kind {
    DCTF_FETCH_KIND_GET,
    DCTF_FETCH_KIND_LIST,
    DCTF_FETCH_KIND_HEAD,
};

/* Metadata has slots of its own, so that reads and listings cannot starve each other. */
enum dctf_fetch_lane_id { DCTF_FETCH_LANE_READ, DCTF_FETCH_LANE_META, DCTF_FETCH_LANE_COUNT };

struct dctf_fetch_job {
    struct dctf_fetch *fetch;
    enum dctf_fetch_kind kind;
    enum dctf_fetch_lane_id lane;
    uint64_t id;
    uint64_t submitted_ns;
    uint64_t silence_ms; /* lists: the deadline moves with every page */
    unsigned refs;       /* atomic */

    /* guarded by the scheduler's lock */
    enum dctf_fetch_state state;
    enum dctf_fetch_class class;
    enum dctf_err verdict;
    unsigned tries;  /* started so far; stable while held */
    uint64_t due_ms; /* monotonic; UINT64_MAX: no deadline */
    bool held;       /* the origin has the request */
    bool started;    /* the origin's start returned; it can be cancelled */
    bool cancel_sent;
    bool told;                        /* done() returned */
    bool paging;                      /* page() is running: the source is not silent */
    unsigned pins;                    /* page() or a cancel is running: done() must wait */
    bool paged;                       /* a page was delivered: no retry */
    TAILQ_ENTRY(dctf_fetch_job) link; /* the lane's queue when QUEUED, the reap list when ENDING */
    struct dctf_fetch_job *bucket_next;
    struct dctf_fetch_job *cancel_next; /* of dctf_fetch_free() */

    struct dctf_timer deadline;
    struct dctf_timer backoff;
    union {
        struct dctf_fetch_get get;
        struct dctf_fetch_list list;
        struct dctf_fetch_head head;
    } ask;
    union {
        struct dctf_origin_get get;
        struct dctf_origin_list list;
        struct dctf_origin_head head;
    } request;
    char name[]; /* copy of the directory of a list, of the key of a head */
};

TAILQ_HEAD(dctf_fetch_queue, dctf_fetch_job);

struct dctf_fetch_lane {
    struct dctf_fetch_queue queue[DCTF_FETCH_CLASS_COUNT];
    size_t running;
    size_t abandoned;
    size_t limit;            /* running at most */
    size_t background_limit; /* all classes but demand start only below it */
};

#define DCTF_FETCH_BUCKETS 1024u

struct dctf_fetch {
    struct dctf_fetch_config config; /* metrics: guarded by lock, NULL once freed */
    struct dctf_clock clock;
    unsigned refs; /* atomic */

    pthread_mutex_t lock;
    pthread_cond_t idle;
    /* guarded by lock */
    struct dctf_rng rng;
    uint64_t retry_tokens; /* hundredths of a retry */
    struct dctf_fetch_lane lanes[DCTF_FETCH_LANE_COUNT];
    struct dctf_fetch_job *buckets[DCTF_FETCH_BUCKETS];
    struct dctf_fetch_queue reap; /* done() or release() is due on the timer's thread */
    uint64_t next_id;
    size_t waiting[DCTF_FETCH_CLASS_COUNT]; /* QUEUED or BACKOFF */
    size_t active;                          /* submitted, done() not yet returned */
    size_t held;                            /* requests the origin has */
    bool pumping;
    bool closing;
    bool reaper_armed;
    uint64_t last_error_ms;
    enum dctf_err last_error;
    uint64_t last_success_ms;

    struct dctf_timer reaper;
};

/* fetch_job.c. Functions in _locked need the scheduler's lock, the others must not have it. */

void dctf_fetch_unref(struct dctf_fetch *fetch);
void dctf_fetch_job_ref(struct dctf_fetch_job *job);
void dctf_fetch_job_unref(struct dctf_fetch_job *job);
struct dctf_fetch_job **dctf_fetch_bucket_locked(struct dctf_fetch *fetch, uint64_t id);
struct dctf_fetch_job *dctf_fetch_find_locked(struct dctf_fetch *fetch, uint64_t id);
/* Change the state, and the counts that follow from it. Leaving QUEUED unlinks;
 * entering it leaves linking to the caller. */
void dctf_fetch_job_move_locked(struct dctf_fetch_job *job, enum dctf_fetch_state to);
/* Decide the end of a job that has none yet. False: it had. Pins the job, so that
 * done() waits for what the caller does next, up to dctf_fetch_job_unpin_locked(). */
bool dctf_fetch_job_end_locked(struct dctf_fetch_job *job, enum dctf_err verdict);
void dctf_fetch_job_unpin_locked(struct dctf_fetch_job *job);
/* Cancel at the origin what it holds. */
void dctf_fetch_job_cancel(struct dctf_fetch_job *job);
/* The verdict stands: count it. */
void dctf_fetch_job_account_locked(struct dctf_fetch_job *job);
void dctf_fetch_job_log(const struct dctf_fetch_job *job, enum dctf_err err);
/* The job is DONE: run done(). Drops the scheduler's reference. */
void dctf_fetch_job_tell(struct dctf_fetch_job *job, bool buf_free, const struct dctf_origin_entry *entry);
/* Run what is due on the reap list, here or on the timer's thread. */
void dctf_fetch_reap(struct dctf_fetch *fetch);
void dctf_fetch_kick_locked(struct dctf_fetch *fetch);

/* fetch.c, for fetch_request.c */

/* A zeroed job of `kind` with room for `name` (NULL: none), not yet known to the scheduler. */
DCTF_MUST_CHECK
enum dctf_err dctf_fetch_job_new(
    struct dctf_fetch *fetch, enum dctf_fetch_kind kind, const char *name, struct dctf_fetch_job **out);
/* Queue it; takes ownership, frees it on failure. */
DCTF_MUST_CHECK
enum dctf_err dctf_fetch_job_submit(struct dctf_fetch_job *job, uint64_t deadline_ms, uint64_t *job_id);
/* The origin's answer; ends its hold. `entry` only for a head that went well. */
void dctf_fetch_job_answered(
    struct dctf_fetch_job *job, enum dctf_err err, size_t bytes, const struct dctf_origin_entry *entry);
/* Around page(): false when the listing has ended meanwhile and must stop. */
bool dctf_fetch_job_page_begin(struct dctf_fetch_job *job);
bool dctf_fetch_job_page_end(struct dctf_fetch_job *job);

/* fetch_request.c, for fetch.c */

DCTF_MUST_CHECK
enum dctf_err dctf_fetch_request_start(struct dctf_fetch_job *job);
/* The pause that the source asked for with its last answer; 0: none. */
uint64_t dctf_fetch_request_pause_ms(struct dctf_fetch_job *job);
void dctf_fetch_request_cancel(struct dctf_fetch_job *job);
void dctf_fetch_request_done(
    struct dctf_fetch_job *job, bool buf_free, const struct dctf_origin_entry *entry);
void dctf_fetch_request_release(struct dctf_fetch_job *job);
/* What is asked for, for the log: "get", and the key. Valid until done(), or release(). */
const char *dctf_fetch_request_verb(const struct dctf_fetch_job *job);
const char *dctf_fetch_request_key(const struct dctf_fetch_job *job);

#endif
