/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to coordinator*.c and to the members' thread that runs them.
 *
 *   coordinator.c          the lease, reports, sync, what other threads ask for
 *   coordinator_policy.c   writing and reading tables
 *   coordinator_record.c   bytes
 *   coordinator_paths.c    paths of features, asked and told
 *   coordinator_exclude.c  who is left out of placement
 *
 * All keys begin with the tag of the cluster (members_redis.c):
 *
 *   n:ID     STRING  path of a feature, for a day after it was told
 *   nw       SET     features whose path somebody wants
 *   head     HASH    f: fence of the last leader; p, pf: version and fence of the last whole table;
 *                    h: sync counter; x, xf: version and fence of who is left out, absent when nobody is
 *   lead     STRING  "FENCE NODE:INCARNATION", for the time of a lease
 *   h:NODE   STRING  report, for six intervals
 *   pidx     HASH    part → "FENCE.VERSION" of what is in it
 *   p:PART   STRING  part of the table
 *   u:NODE   STRING  whom the node does not reach, for the time of a lease; absent when there is nobody
 *   x        STRING  who is left out, for six leases
 *
 * The lock guards what other threads hand over; it is a leaf, not held across callbacks or the network.
 */
#ifndef DCTF_CLUSTER_COORDINATOR_INTERNAL_H
#define DCTF_CLUSTER_COORDINATOR_INTERNAL_H

#include "base/clock.h"
#include "cluster/coordinator.h"
#include "cluster/coordinator_record.h"
#include "cluster/members_record.h"
#include "cluster/redis.h"

#include <pthread.h>

#define DCTF_COORDINATOR_TAG_MAX 111u
#define DCTF_COORDINATOR_KEY_MAX (DCTF_COORDINATOR_TAG_MAX + DCTF_NODE_ID_MAX + 16u)

struct dctf_coordinator_place {
    char tag[DCTF_COORDINATOR_TAG_MAX + 1];
    char node[DCTF_NODE_ID_MAX + 1];
    uint64_t incarnation;
    uint64_t lease_ms;
    uint64_t exclude_after_ms;      /* of not being reached */
    const struct dctf_clock *clock; /* borrowed */
};

/* What the head of the cluster says; 0: nothing. */
struct dctf_coordinator_head {
    uint64_t fence, policy, policy_fence, hint, excluded, excluded_fence;
};

struct dctf_policy_part {
    struct dctf_policy_entry *entries;
    size_t count;
    char tag[48]; /* "FENCE.VERSION" of pidx; "" : empty */
};

/* The members' thread's alone: a table that is written or read, a few parts at a time. */
struct dctf_policy_writer {
    struct dctf_policy_entry *table; /* the last one published here; NULL: none yet */
    size_t count;
    uint64_t sums[DCTF_POLICY_PARTS]; /* of what was written */
    uint64_t fence;                   /* what was written was written under; 0: nothing was */
    uint64_t version;
    uint64_t dirty;    /* parts to write, a bit each */
    bool commit;       /* parts were written: tell */
    uint64_t whole_ms; /* when all parts were written last */
};
struct dctf_policy_reader {
    struct dctf_policy_part parts[DCTF_POLICY_PARTS];
    uint64_t fence, version;           /* of the table that was accepted */
    uint64_t next_fence, next_version; /* of the one on its way; 0: none */
    uint64_t due_ms;
    uint64_t wanted; /* parts to read, a bit each */
    char wanted_tags[DCTF_POLICY_PARTS][48];
    bool indexed; /* `wanted` is known */
};

struct dctf_seen_report {
    uint64_t node, incarnation, seq;
};

/* The members' thread's alone. */
struct dctf_exclusion_state {
    uint64_t tell_due_ms, judge_due_ms;
    bool told;                /* whom this node does not reach lies there */
    struct dctf_node *asking; /* members whose reports are being read; NULL: none */
    size_t asking_count, asked;
    struct dctf_unreached_report *reports;
    size_t report_count;
    uint64_t calm_ms;                            /* dctf_exclusion_times */
    uint64_t version, written_fence, written_ms; /* of what this node wrote */
    uint64_t *nodes;                             /* who is left out */
    size_t count;
    bool changed;                      /* not told to the members yet */
    uint64_t fence;                    /* the highest that was read */
    uint64_t seen_version, seen_fence; /* of the head, when it was read */
    uint64_t heard_ms, stepped_ms;
};

struct dctf_path_question {
    uint64_t feature_id;
    uint64_t due_ms;
    unsigned asked; /* times */
};

struct dctf_coordinator {
    struct dctf_coordinator_place place;
    char me[DCTF_NODE_ID_MAX + 24];
    struct dctf_redis_script lead_script, resign_script, sync_script, write_script, commit_script,
        exclude_script;

    /* the members' thread's */
    struct dctf_rng rng;
    struct dctf_coordinator_head head;
    bool head_known;
    uint64_t lead_due_ms, report_due_ms, collect_due_ms;
    uint64_t tell_due_ms; /* to look at what others ask */
    uint64_t report_seq;
    struct dctf_policy_writer writer;
    struct dctf_policy_reader reader;
    struct dctf_exclusion_state exclusion;
    char (*asking)[DCTF_NODE_ID_MAX + 1]; /* nodes whose reports are being read; NULL: none */
    size_t asking_count, asked;
    struct dctf_seen_report *seen; /* by node */
    size_t seen_count;
    unsigned char *buf;                 /* DCTF_COORDINATOR_RECORD_MAX */
    struct dctf_coordinator_heat *heat; /* DCTF_COORDINATOR_HEAT_MAX */

    pthread_mutex_t lock;
    pthread_cond_t idle;
    /* guarded by lock */
    struct dctf_coordinator_listener listener;
    bool listening, calling;
    uint64_t fence;                       /* of this node as leader */
    uint64_t lead_until_ms;               /* by our own clock */
    uint64_t highest;                     /* fence accepted */
    struct dctf_coordinator_heat *report; /* to be written; NULL: none */
    size_t report_count;
    struct dctf_policy_entry *publish; /* to be written; NULL: none */
    size_t publish_count;
    bool syncs;  /* to be told */
    bool retell; /* a table that was accepted before anybody listened */
    uint64_t reports_written;
    struct dctf_unreached *unreached;
    size_t unreached_count;
    struct dctf_path_question questions[DCTF_COORDINATOR_PATHS_MAX];
    size_t question_count;
};

/* --- for members_redis.c --- */

DCTF_MUST_CHECK
enum dctf_err dctf_coordinator_new(const struct dctf_coordinator_place *place, struct dctf_coordinator **out);
void dctf_coordinator_free(struct dctf_coordinator *coordinator); /* NULL is allowed */
/* The head was read. */
void dctf_coordinator_head(struct dctf_coordinator *coordinator, const struct dctf_coordinator_head *head);
/* Do what is due, a few calls at most. */
void dctf_coordinator_step(
    struct dctf_coordinator *coordinator, struct dctf_redis *redis, const struct dctf_member_set *members);
uint64_t dctf_coordinator_due_ms(struct dctf_coordinator *coordinator);
/* Who is left out, in ascending order, until the next step; whether the members do not go by it yet. */
bool dctf_coordinator_excluded(
    const struct dctf_coordinator *coordinator, const uint64_t **nodes, size_t *count);
/* They do now. */
void dctf_coordinator_excluded_taken(struct dctf_coordinator *coordinator);
/* Give the lease back. */
void dctf_coordinator_end(struct dctf_coordinator *coordinator, struct dctf_redis *redis);

/* --- within --- */

uint64_t dctf_coordinator_now_ms(const struct dctf_coordinator *coordinator);
void dctf_coordinator_key(
    const struct dctf_coordinator *coordinator, const char *name, char out[DCTF_COORDINATOR_KEY_MAX + 1]);
/* Between these no listener is replaced; false: nobody listens, and there is no end(). */
bool dctf_coordinator_call_begin(struct dctf_coordinator *coordinator, struct dctf_coordinator_listener *out);
void dctf_coordinator_call_end(struct dctf_coordinator *coordinator);

/* coordinator_policy.c; step: DCTF_OK also when nothing was due. */
void dctf_policy_scripts(struct dctf_coordinator *coordinator);
void dctf_policy_writer_take(
    struct dctf_coordinator *coordinator, struct dctf_policy_entry *table, size_t count);
enum dctf_err dctf_policy_writer_step(
    struct dctf_coordinator *coordinator, struct dctf_redis *redis, uint64_t fence);
void dctf_policy_reader_head(struct dctf_coordinator *coordinator);
void dctf_policy_reader_retell(struct dctf_coordinator *coordinator);
enum dctf_err dctf_policy_reader_step(struct dctf_coordinator *coordinator, struct dctf_redis *redis);
void dctf_policy_fini(struct dctf_coordinator *coordinator);

/* What a script says that writes as the leader; *done is false when this node leads no more. Frees it. */
enum dctf_err dctf_coordinator_wrote(struct dctf_coordinator *coordinator, struct dctf_redis *redis,
    struct dctf_redis_value *answer, bool *done);

/* coordinator_exclude.c */
void dctf_exclusion_scripts(struct dctf_coordinator *coordinator);
enum dctf_err dctf_exclusion_step(
    struct dctf_coordinator *coordinator, struct dctf_redis *redis, const struct dctf_member_set *members);
bool dctf_exclusion_is_busy(const struct dctf_coordinator *coordinator);
void dctf_exclusion_fini(struct dctf_coordinator *coordinator);

/* coordinator_paths.c; DCTF_OK also when nothing was due. */
enum dctf_err dctf_coordinator_paths_step(struct dctf_coordinator *coordinator, struct dctf_redis *redis);
uint64_t dctf_coordinator_interval_ms(struct dctf_coordinator *coordinator);

#endif
