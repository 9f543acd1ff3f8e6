/* SPDX-License-Identifier: Apache-2.0
 *
 * Nodes beside an extent's home that are asked for what they have of it, and who is asked first: the way that
 * costs least.
 */
#include "cluster/get_internal.h"

#include <string.h>

#define NEAR_RANKS 16u /* that may have a copy of what is hot */

bool dctf_sub_was_asked_locked(const struct dctf_sub *sub, const struct dctf_peer *peer)
{
    for (unsigned i = 0; i < DCTF_SUB_SLOTS; i++) {
        if (sub->slots[i].peer == peer)
            return true;
    }
    return false;
}

/* Among the nearest; `costs` are of those noted so far. */
static void note_locked(struct dctf_sub *sub, uint64_t costs[DCTF_SUB_TRIES], uint32_t node)
{
    struct dctf_cluster *cluster = sub->task->cluster;
    struct dctf_peer *peer = dctf_peer_of_locked(cluster, dctf_view_node(cluster->view, node));
    uint64_t cost = dctf_peer_cost_locked(cluster, cluster->view, node);

    for (unsigned i = 0; peer && i < DCTF_SUB_TRIES; i++) {
        struct dctf_peer *farther = sub->tries[i];
        uint64_t farther_cost = costs[i];

        if (farther && farther_cost <= cost)
            continue;
        sub->tries[i] = peer;
        costs[i] = cost;
        peer = farther;
        cost = farther_cost;
    }
}

void dctf_sub_take_names_locked(struct dctf_sub *sub, const char *names)
{
    const struct dctf_view *view = sub->task->cluster->view;
    char copy[DCTF_PEER_TRY_BYTES], *rest = copy, *id;
    uint64_t costs[DCTF_SUB_TRIES] = {0};

    memcpy(copy, names, sizeof(copy));
    memset(sub->tries, 0, sizeof(sub->tries));
    sub->tried = true;
    while ((id = strsep(&rest, ","))) {
        uint32_t node = dctf_view_find(view, id);

        if (node != DCTF_NODE_NONE && node != dctf_view_self(view))
            note_locked(sub, costs, node);
    }
}

void dctf_sub_take_copy_locked(struct dctf_sub *sub)
{
    struct dctf_cluster *cluster = sub->task->cluster;
    const struct dctf_view *view = cluster->view;
    uint32_t nodes[NEAR_RANKS];
    uint64_t least = UINT64_MAX;
    size_t count;

    if (sub->looked || sub->task->copied == DCTF_POLICY_COLD)
        return;
    sub->looked = true;
    count = sub->task->copied == DCTF_POLICY_HOT
                ? dctf_view_rank(view, sub->extent_key, nodes, NEAR_RANKS)
                : dctf_view_replicas(view, sub->extent_key, nodes, DCTF_MID_REPLICAS);
    if (!count || dctf_view_near(view, nodes[0]) != DCTF_NEAR_OTHER_ZONE)
        return;
    for (size_t i = 1; i < count; i++) {
        struct dctf_peer *peer = dctf_peer_of_locked(cluster, dctf_view_node(view, nodes[i]));
        uint64_t cost = dctf_peer_cost_locked(cluster, view, nodes[i]);

        if (nodes[i] == dctf_view_self(view) || !peer || !dctf_peer_usable_locked(peer) || cost >= least ||
            dctf_view_near(view, nodes[i]) > DCTF_NEAR_ZONE)
            continue;
        least = cost;
        sub->tries[0] = peer;
    }
}

bool dctf_sub_has_named_locked(const struct dctf_sub *sub)
{
    for (unsigned i = 0; i < DCTF_SUB_TRIES; i++) {
        if (sub->tries[i])
            return true;
    }
    return false;
}

struct dctf_peer *dctf_sub_named_locked(struct dctf_sub *sub)
{
    for (unsigned i = 0; i < DCTF_SUB_TRIES; i++) {
        struct dctf_peer *peer = sub->tries[i];

        sub->tries[i] = NULL;
        if (peer && dctf_peer_usable_locked(peer) && !dctf_sub_was_asked_locked(sub, peer))
            return peer;
    }
    return NULL;
}
