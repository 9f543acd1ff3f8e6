/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to members*.c.
 *
 *   members.c          start and end, the view, the thread
 *   members_list.c     a list in the configuration
 *   members_dns.c      the addresses of a name
 *   members_redis.c    registration in Redis and the log of changes there
 *   members_guard.c    what to believe when many vanish
 *   members_record.c   what a member says of itself in Redis
 *
 * The lock guards the view and what wakes the thread; it is a leaf, not held across changed(), the network
 * or a log sink.
 */
#ifndef DCTF_CLUSTER_MEMBERS_INTERNAL_H
#define DCTF_CLUSTER_MEMBERS_INTERNAL_H

#include "cluster/address.h"
#include "cluster/members.h"
#include "cluster/members_guard.h"

#include <pthread.h>

struct dctf_coordinator;
struct dctf_members_dns;
struct dctf_members_redis;

/* A lease is this many heartbeats. */
#define DCTF_LEASE_BEATS 4u

struct dctf_members {
    struct dctf_members_config config; /* its strings are owned; see text */
    struct dctf_clock clock;
    char *text[6];
    struct dctf_rng rng;          /* the thread's */
    struct dctf_guard guard;      /* the thread's */
    struct dctf_node *listed;     /* the thread's: what the last look named, by id */
    size_t listed_count;          /* the thread's */
    struct dctf_members_dns *dns; /* one of these two, or neither: a list */
    struct dctf_members_redis *redis;
    pthread_t thread;
    bool started;

    pthread_mutex_t lock;
    pthread_cond_t wake;
    /* guarded by lock */
    struct dctf_view *view;
    uint64_t changed_ms, confirmed_ms; /* monotonic */
    bool confirmed;
    bool refresh;
    bool closing;
};

/* Within it all members have found the server again: a lease, and the longest they wait between two tries. */
uint64_t dctf_members_return_ms(const struct dctf_members *members);

uint64_t dctf_members_now_ms(const struct dctf_members *members);
/* Sleep until `until_ms`, or until somebody wants something; true: it is time to end. `*refresh` is whether
 * another look was asked for, and clears the wish. */
bool dctf_members_sleep(struct dctf_members *members, uint64_t until_ms, bool *refresh);
bool dctf_members_closing(struct dctf_members *members);
/* `interval_ms` ± 20 %. */
uint64_t dctf_members_jitter(struct dctf_members *members, uint64_t interval_ms);

/* A look at the place where members are listed succeeded: it names these, in the order of their ids. `self`
 * is this node's id among them, "" when it is none of them. `lost`: the place lost what it had. */
void dctf_members_heard(
    struct dctf_members *members, const struct dctf_node *nodes, size_t count, const char *self, bool lost);
/* It said good-bye: not missed in the next dctf_members_heard(). */
void dctf_members_left(struct dctf_members *members, const char *id);
/* The guard may have somebody to let go. */
void dctf_members_review(struct dctf_members *members, const char *self);
/* Others may be left out of placement now. */
void dctf_members_exclude(struct dctf_members *members);
/* As heard, nothing new. */
void dctf_members_confirm(struct dctf_members *members);

/* What all nodes make of an address of a list or a name: nothing in it depends on who looks. */
void dctf_members_plain_node(const struct dctf_address *address, struct dctf_node *out);

/* --- members_list.c --- */

DCTF_MUST_CHECK
enum dctf_err dctf_members_list_parse(
    const char *text, char *detail, struct dctf_node **out, size_t *out_count);

/* --- members_dns.c --- */

/* `text` is "NAME:PORT". */
DCTF_MUST_CHECK
enum dctf_err dctf_members_dns_new(
    struct dctf_members *members, const char *text, char *detail, struct dctf_members_dns **out);
void dctf_members_dns_run(struct dctf_members *members);
void dctf_members_dns_free(struct dctf_members_dns *dns);

/* --- members_redis.c --- */

DCTF_MUST_CHECK
enum dctf_err dctf_members_redis_new(
    struct dctf_members *members, char *detail, struct dctf_members_redis **out);
void dctf_members_redis_run(struct dctf_members *members);
void dctf_members_redis_free(struct dctf_members_redis *redis);
struct dctf_coordinator *dctf_members_redis_coordinator(struct dctf_members_redis *redis);

#endif
