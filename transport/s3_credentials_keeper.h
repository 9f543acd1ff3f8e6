/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of s3_credentials.c and s3_credentials_keeper.c: the object, its renewal and its
 * two threads, started when first needed. The *asker* walks the providers, one walk at a
 * time: that is single flight. The *keeper* decides when (renew_at_ms on the wall clock,
 * because expiry is a wall time; retry_at_ms on the monotonic one after a failure) and
 * calls back who asked; it never blocks but on its condition, so that everybody's own
 * bound holds while a service is slow.
 *
 * Threads:   `lock` guards what is marked; nothing is taken under it but the allocator.
 *            No callback, no log line and no provider that waits runs under it.
 * Ownership: dctf_s3_credentials_free() ends the threads.
 */
#ifndef DCTF_TRANSPORT_S3_CREDENTIALS_KEEPER_H
#define DCTF_TRANSPORT_S3_CREDENTIALS_KEEPER_H

#include "base/list.h"
#include "base/log.h"
#include "base/str.h"
#include "transport/s3_credentials_internal.h"

struct waiter {
    struct dctf_list node;
    dctf_s3_keys_ready *ready;
    void *ctx;
    uint64_t asked; /* `walks` when it came */
    uint64_t deadline_ms;
    enum dctf_err err; /* the verdict */
    struct dctf_s3_keys *keys;
};

/* A log line that waits until the lock is free. */
struct note {
    enum dctf_log_level level;
    char text[640]; /* "": none */
};

struct dctf_s3_credentials {
    struct dctf_cred_setup setup;
    pthread_mutex_t lock;
    pthread_cond_t keeper_wake;
    pthread_cond_t asker_wake;
    pthread_cond_t news; /* for get() and settle() */
    bool stopping;       /* guarded by lock, as all below */
    bool asking;         /* the asker walks, or is told to */
    bool has_keeper;
    bool has_asker;
    bool asker_ended;
    bool keeper_idle;              /* waits, with nothing to do now */
    bool wanted;                   /* somebody waits for a set, or wants another one */
    struct dctf_s3_keys *current;  /* NULL: none yet */
    uint64_t life_ms;              /* of current, from when it came */
    uint64_t renew_at_ms;          /* wall; UINT64_MAX: never */
    uint64_t retry_at_ms;          /* monotonic; no walk before */
    unsigned failures;             /* in a row */
    uint64_t walks;                /* ended */
    enum dctf_err last;            /* of the last walk */
    struct dctf_cred_span renewal; /* providers to ask while the set is valid */
    struct dctf_str trail;         /* why the providers before had none */
    char failure[480];             /* of the last renewal; "": it worked */
    bool rejected;                 /* the service does not take the current set */
    struct dctf_rng rng;
    struct dctf_list waiters;
    struct note note;
    pthread_t keeper;
    pthread_t asker;
};

/* Give the lock up, then write the note. */
void dctf_cred_unlock(struct dctf_s3_credentials *credentials);
uint64_t dctf_cred_wall_ms(const struct dctf_s3_credentials *credentials);
uint64_t dctf_cred_mono_ms(const struct dctf_s3_credentials *credentials);

bool dctf_cred_is_valid_locked(const struct dctf_s3_credentials *credentials);
/* A walk should begin. */
bool dctf_cred_is_due_locked(const struct dctf_s3_credentials *credentials);
/* What somebody who came at walk `asked` and waits until `deadline_ms` gets; false: wait on. */
bool dctf_cred_verdict_locked(const struct dctf_s3_credentials *credentials, uint64_t asked,
    uint64_t deadline_ms, enum dctf_err *err, struct dctf_s3_keys **keys);
/* Wake the keeper. */
void dctf_cred_poke_locked(struct dctf_s3_credentials *credentials);
/* Somebody needs a set: have one made when there is none or it is time. */
DCTF_MUST_CHECK
enum dctf_err dctf_cred_need_locked(struct dctf_s3_credentials *credentials);
DCTF_MUST_CHECK
enum dctf_err dctf_cred_start_threads_locked(struct dctf_s3_credentials *credentials);
/* Wait for `cond`, at most so long of real time. */
void dctf_cred_wait_locked(struct dctf_s3_credentials *credentials, pthread_cond_t *cond, uint64_t ms);
/* `stopping` is set: end the threads, answer everybody. */
void dctf_cred_end(struct dctf_s3_credentials *credentials);

#endif
