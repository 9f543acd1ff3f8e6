/* SPDX-License-Identifier: Apache-2.0
 *
 * What a home has no room for, kept by the next in rank that has.
 *
 * A home whose tiers refuse what it fetched notes that, piece by piece of an extent, and when it is asked for
 * it again it tells the asker to keep it, if the asker is the first of the next in rank that has room: those
 * before it have said that they are full when the home asked them whether they have it. What a node
 * reads after it was told so is more than a copy. Nothing is sent for it; a node's own reads bring the bytes.
 * The home finds them again, since it asks those ranks before the source, and leaves them there. Who is asked
 * twice for the same thing that it has learns anew that the home keeps nothing of it.
 *
 * All tables are lossy: what is forgotten is learnt anew.
 *
 * Threads:   any thread, without locks.
 * Ownership: embedded; zeroed is empty.
 */
#ifndef DCTF_CLUSTER_SPARE_H
#define DCTF_CLUSTER_SPARE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* First ranks that may hold an extent, its home among them: what finds no place there is about a hundredth
 * where caches hold the dataset just once, and most of what there is with fewer (docs/cluster.md). */
#define DCTF_SPARE_RANKS 4u
#define DCTF_SPARE_EXTENTS 32768u

struct dctf_spare_table {
    atomic_ullong places[DCTF_SPARE_EXTENTS]; /* upper bits of the extent's key, and a bit for each piece */
};

struct dctf_spare {
    struct dctf_spare_table refused; /* of extents that this node is the home of */
    struct dctf_spare_table told;    /* of those: what somebody was told to keep just now */
    struct dctf_spare_table adopted; /* of extents of others */
    struct dctf_spare_table asked;   /* what was asked for once */
    atomic_bool short_of_room;       /* something was refused here: others may hold it */
};

/* A bit for each piece of an extent that has some of blocks [first, first + count), which lie in one. */
unsigned dctf_spare_pieces(uint32_t first, uint32_t count);

/* The tiers did, or did not, keep pieces that this node is the home of. */
void dctf_spare_home_kept(struct dctf_spare *spare, uint64_t extent_key, unsigned pieces, bool kept);
/* Those of an extent that they did not. */
unsigned dctf_spare_home_refused(struct dctf_spare *spare, uint64_t extent_key);
/* Somebody is told to keep them; and whether somebody was since this was asked last: who was told may be
 * about to keep what this node has room for meanwhile. */
void dctf_spare_tell(struct dctf_spare *spare, uint64_t extent_key, unsigned pieces);
bool dctf_spare_was_told(struct dctf_spare *spare, uint64_t extent_key, unsigned pieces);
/* What lies here of the pieces is more than a copy from now on. */
void dctf_spare_adopt(struct dctf_spare *spare, uint64_t extent_key, unsigned pieces);
unsigned dctf_spare_adopted(struct dctf_spare *spare, uint64_t extent_key);
/* The home asked whether they are here, and they are. */
void dctf_spare_asked(struct dctf_spare *spare, uint64_t extent_key, unsigned pieces);

#endif
