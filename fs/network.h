/* SPDX-License-Identifier: Apache-2.0
 *
 * How much of its link this node uses for its peers, by zone: dctf_network_utilization{az}. The busier
 * direction of the last seconds over the speed that the system knows of the interface towards the
 * zone. Where that is not known, as of loopback and most virtual machines, nothing is told.
 *
 * Threads:   any thread.
 * Ownership: dctf_network_new() gives an object to pass to dctf_network_free().
 */
#ifndef DCTF_FS_NETWORK_H
#define DCTF_FS_NETWORK_H

#include "base/clock.h"
#include "base/err.h"
#include "cluster/view.h"

#include <stddef.h>
#include <stdint.h>

struct dctf_str;

/* Zones told apart; what is beyond is left out. */
#define DCTF_NETWORK_ZONES 16u

/* Bytes to and from all members of each zone since the mount began. Zeroed by the caller. */
struct dctf_network_look {
    size_t count;
    struct dctf_network_zone {
        char name[DCTF_NODE_LABEL_MAX + 1];
        char addr[DCTF_NODE_ADDR_MAX + 1]; /* of one of its members, "host:port" */
        uint64_t in, out;
    } zones[DCTF_NETWORK_ZONES];
};
/* Add one member. */
void dctf_network_note(
    struct dctf_network_look *look, const char *zone, const char *addr, uint64_t in, uint64_t out);

struct dctf_network;

/* `sys` is where interfaces are described, NULL: /sys/class/net; borrowed, as the clock (NULL: the system's).
 */
DCTF_MUST_CHECK
enum dctf_err dctf_network_new(const char *sys, const struct dctf_clock *clock, struct dctf_network **out);
void dctf_network_free(struct dctf_network *network); /* NULL is allowed */
/* Append the samples, at most a few seconds after new() none. */
void dctf_network_write(
    struct dctf_network *network, const struct dctf_network_look *look, struct dctf_str *out);

#endif
