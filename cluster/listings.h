/* SPDX-License-Identifier: Apache-2.0
 *
 * Listings that nodes share, so that a directory is listed about once however many nodes look at it.
 *
 *   a node misses a listing → its home (rendezvous hashing of the directory's name; of the four best ranks
 *     the first that is alive) is asked for it, page by page (cluster/listings_page.h)
 *     this node is the home, or nobody is → the source; when it is only this node that does not get at it →
 *     the next in rank
 *     "it is being read" → asked again, for as long as the source tells the home more of it
 *     gone, slow, busy for long, of another opinion, malformed → the source; not asked for ten seconds
 *   a peer asks → what is here, if the source began to tell it recently enough for the asker; else it is
 *     listed here, once for all who ask, *from the source*: a node asked by a peer asks no other peer
 *
 * The asker says how old it may be: less than its metadata_ttl, and begun after its last sync. The home says
 * how old it is, so that times to live do not add up.
 *
 * Threads:   any thread. No lock is held across callbacks.
 * Ownership: as told.
 */
#ifndef DCTF_CLUSTER_LISTINGS_H
#define DCTF_CLUSTER_LISTINGS_H

#include "base/err.h"
#include "base/version.h"
#include "cache/listing.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dctf_cluster;
struct dctf_node;
struct dctf_view;

/* --- asking --- */

struct dctf_cluster_list {
    const char *dir;      /* borrowed until done() */
    uint64_t max_age_ms;  /* since the source was asked, when this begins; UINT64_MAX: as old as it likes */
    bool others;          /* the source failed this node: ask another also when this one is the home */
    uint64_t deadline_ms; /* from now; 0: none, but for a home that is of no help */
    /* In byte order of the names, on a thread that may touch the disk. An error ends it with that. */
    enum dctf_err (*add)(struct dctf_cluster_list *list, const struct dctf_entry *entry);
    /* DCTF_OK: all of it was added; it began so long ago. Else what was added is worth nothing, and the
     * source is to be asked: PEER_ABSENT (this node is the home, or nobody can be asked), CANCELLED,
     * SHUTTING_DOWN, or what failed. On a thread that may touch the disk, or that of cancel(). */
    void (*done)(struct dctf_cluster_list *list, enum dctf_err err, uint64_t age_ms);
    void *ctx;
};

/* On failure done() never runs: DCTF_ERR_PEER_ABSENT as above, _NO_MEMORY, _SHUTTING_DOWN. */
DCTF_MUST_CHECK
enum dctf_err dctf_cluster_list(struct dctf_cluster *cluster, struct dctf_cluster_list *list);
/* Ask for an early end; done() runs, now or soon. One that is not under way is ignored, by address. */
void dctf_cluster_list_cancel(struct dctf_cluster *cluster, struct dctf_cluster_list *list);

/* --- answering --- */

enum dctf_listing_course {
    DCTF_LISTING_IDLE,   /* it is not being listed, or not any more */
    DCTF_LISTING_MOVING, /* the source told more of it lately */
    DCTF_LISTING_SILENT, /* it did not */
};

/* What the mount does for peers. Called until the cluster's origin was closed. */
struct dctf_listing_host {
    void *ctx;
    /* List a directory that may not be older than so many ms, from the source. done() runs exactly once,
     * maybe before it returns; never when it fails. */
    enum dctf_err (*resolve)(void *ctx, const char *dir, uint64_t max_age_ms,
        void (*done)(void *done_ctx, enum dctf_err err, const struct dctf_listing_state *state),
        void *done_ctx);
    /* How listing a directory from the source goes. Never waits. */
    enum dctf_listing_course (*course)(void *ctx, const char *dir);

    /* On threads of their own. Forget listings at or below `path`, with `force` names in the kernel too. */
    enum dctf_err (*sync)(void *ctx, const char *path, bool force, uint64_t *directories);
    /* Drop the bytes of all shards at or below. */
    enum dctf_err (*evict)(void *ctx, const char *path, uint64_t *shards, uint64_t *bytes, uint64_t *busy);
    /* The source does not have this version any more. True: that is news, and the listing that named it is
     * forgotten. */
    bool (*stale)(void *ctx, const char *key, const char *etag, uint64_t size);
};
/* Answer peers that ask for listings, and what they tell. Once. DCTF_ERR_NO_MEMORY, _SYSTEM. */
DCTF_MUST_CHECK
enum dctf_err dctf_cluster_share_listings(struct dctf_cluster *cluster, const struct dctf_listing_host *host);

/* --- telling --- */

enum dctf_tell { DCTF_TELL_SYNC, DCTF_TELL_EVICT, DCTF_TELL_HEAT }; /* the last: for cluster_heat.c */
struct dctf_told_member {
    const struct dctf_node *node;
    enum dctf_err
        err; /* PEER_GONE, _AUTH, _BUSY, DEADLINE …: it may not have done it; or what failed there */
    uint64_t numbers[3]; /* directories; shards, bytes, busy; fence, age_ms, features */
};
/* Have all other members do it, waiting here up to `deadline_ms`, which they share; `each` is called for each
 * when all are through. `force`: of a sync. DCTF_ERR_NO_MEMORY, _SHUTTING_DOWN: nobody was told. */
DCTF_MUST_CHECK
enum dctf_err dctf_cluster_tell(struct dctf_cluster *cluster, enum dctf_tell what, const char *path,
    bool force, uint64_t deadline_ms, void (*each)(void *ctx, const struct dctf_told_member *member),
    void *ctx);

/* A read found that the source has a version no more: the host's stale() is called, later; if that is news,
 * the node that lists the directory is told, and tells the others if it did not know either. Never waits;
 * best effort, and bounded in number. False: not taken. */
bool dctf_cluster_version_gone(struct dctf_cluster *cluster, struct dctf_version *version);

/* Members that should list a directory, best first. */
size_t dctf_listings_rank(
    const struct dctf_view *view, uint64_t dataset, const char *dir, uint32_t *out, size_t max);

#endif
