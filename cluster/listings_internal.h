/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to cluster/: what the files of the shared listings have of each other and of the cluster.
 *
 * Threads and ownership: as cluster/internal.h.
 */
#ifndef DCTF_CLUSTER_LISTINGS_INTERNAL_H
#define DCTF_CLUSTER_LISTINGS_INTERNAL_H

#include "base/list.h"
#include "cluster/listings.h"

struct dctf_peer;
struct dctf_peer_asked;
struct dctf_peer_request;

/* The cluster's part for it; guarded by its lock. */
struct dctf_listings_part {
    bool shared; /* the host is known; it does not change then */
    struct dctf_listing_host host;
    struct dctf_list errands; /* what this node asks peers for */
    size_t held;              /* peers that wait here */
    size_t hints;             /* under way to others */
    struct dctf_pool *pool;   /* what peers have this node do; NULL: not shared. Not guarded */
};

/* Of an answer to what was told: so many numbers, eight bytes each, little-endian. */
#define DCTF_TOLD_NUMBERS 3u
#define DCTF_TOLD_BYTES (8u * DCTF_TOLD_NUMBERS)
void dctf_told_encode(const uint64_t *numbers, void *buf);
bool dctf_told_decode(const void *data, size_t len, uint64_t *numbers);

/* Longest time that a peer is held until what it asks for is here, then it is told to come again. */
#define DCTF_LISTINGS_HOLD_MS 400u

/* End all that is under way. */
void dctf_listings_cancel_all(struct dctf_cluster *cluster);
/* A peer was found dead: what waits for it goes to the source. */
void dctf_listings_leave_peer(struct dctf_cluster *cluster, const struct dctf_peer *peer);
/* Tell all members of a stale version. `but`: an id, who told this node. */
void dctf_listings_tell_all(
    struct dctf_cluster *cluster, const char *key, const char *etag, uint64_t size, const char *but);
/* Who lists a directory: the first in rank that can be asked for it, or with `paused` also one that is left
 * alone because it was of no help. NULL: this node comes before them, or there is none. */
struct dctf_peer *dctf_listings_home_locked(struct dctf_cluster *cluster, const char *dir, bool paused);
/* A request about names (dctf_peer_is_meta()) for this dataset. Takes over one hold on the cluster. */
void dctf_listings_serve(
    struct dctf_cluster *cluster, struct dctf_peer_request *request, const struct dctf_peer_asked *asked);

#endif
