/* SPDX-License-Identifier: Apache-2.0
 *
 * Who the members are, from one of: a list in the configuration, a DNS name, or Redis. The
 * last view known stays in force when its origin is away.
 *
 *   list    complete at once. Ids are the addresses, in one spelling; weights are equal. This node is the
 *           one whose address is self.addr; one that is not in the list reads only.
 *   DNS     looked up every heartbeat_ms. Ids are addresses as "10.0.0.1:7100"; weights are equal. A
 *           name that has IPv4 addresses is taken by those alone: a node with two addresses would be two
 *           members with one cache. This node is the one at self.addr, else the one with an address of
 *           its interfaces.
 *   Redis   a lease of four heartbeats, renewed by this node; told to the others within a poll.
 *           `self` is told as it is, so that ids, weights, zones and times of joining are known of all.
 *           Nodes with another `cluster` or `dataset` are not seen. Two processes with one id: the one
 *           with the higher incarnation is it.
 *
 * Members that vanish together are kept for a while (members_guard.h). Those that the others do not reach
 * are in the view, but have no weight there (exclusion.h; with Redis alone).
 *
 * Threads:   any thread. changed() runs on the members' own thread.
 * Ownership: open() gives an object to close().
 */
#ifndef DCTF_CLUSTER_MEMBERS_H
#define DCTF_CLUSTER_MEMBERS_H

#include "base/clock.h"
#include "base/err.h"
#include "cluster/view.h"

#include <stdbool.h>
#include <stdint.h>

struct dctf_members;

struct dctf_members_config {
    const char *peers;   /* "a:7100,b:7100" or "dns:NAME:PORT"; "" : none */
    const char *redis;   /* "redis://host:port", "rediss://…"; "" : none; excludes peers */
    const char *cluster; /* name, so that several share one Redis: letters, digits, '.', '_', '-' */
    const char *redis_user, *redis_password; /* "" : none */
    const char *ca_file;
    struct dctf_node self; /* as announced */
    uint64_t dataset;
    uint64_t heartbeat_ms;     /* 5000 */
    uint64_t poll_ms;          /* 250 */
    uint64_t exclude_after_ms; /* a member that others do not reach for so long is left out; 60000 */
    const struct dctf_clock *clock;
    void (*changed)(void *ctx); /* the view is another one; may be NULL */
    void *ctx;
};

/* Static lists are complete at once; the others begin with this node alone. DCTF_ERR_OPTION_VALUE for
 * what cannot be parsed or used, with words in `detail` (≥ 256 bytes). Never waits for the network.
 * *out is set before changed() is called for the first time. The configuration is copied. */
DCTF_MUST_CHECK
enum dctf_err dctf_members_open(
    const struct dctf_members_config *config, char *detail, struct dctf_members **out);
/* Says good-bye. Waits for the calls to Redis under way, each of which is bounded: a second or two at worst.
 * NULL is allowed. */
void dctf_members_close(struct dctf_members *members);

/* The view now, counted. */
struct dctf_view *dctf_members_view(struct dctf_members *members);
/* Milliseconds for which placement has not changed (UINT64_MAX for a list, which never does), and since the
 * view was last confirmed by where it comes from (0 for a list; UINT64_MAX: never). */
uint64_t dctf_members_stable_ms(struct dctf_members *members);
uint64_t dctf_members_age_ms(struct dctf_members *members);
/* A peer told a view hash that is not ours: look again soon. */
void dctf_members_refresh(struct dctf_members *members);

#endif
