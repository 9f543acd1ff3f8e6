/* SPDX-License-Identifier: Apache-2.0
 *
 * Early reads: a program that opens one file after the other looks each up first. While the
 * kernel carries the answer to the look-up back, the open here, its answer back and the read here,
 * the bytes of a small shard can be read already. This is the decision when to, the one buffer, and who
 * answers the read.
 *
 *   FREE ──claim──→ READING ──done──→ READY ──take──→ TAKEN ──release──→ FREE, or READY: more will be read
 *                      │  └──done, failed──→ FREE       ↑
 *                      └──take: the read is parked──done┘
 *   READY ──claim──→ READING     what nobody read makes room
 *
 * A look-up is claimed only after DCTF_EARLY_STREAK look-ups in a row were each followed by
 * the open of the same file and no other look-up, so that `find` and `ls -l` read nothing.
 *
 * Threads:   any thread; one short lock, a leaf. Never blocks.
 * Ownership: dctf_early_new() gives an object to pass to dctf_early_free().
 */
#ifndef DCTF_FS_EARLY_H
#define DCTF_FS_EARLY_H

#include "base/err.h"
#include "base/version.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DCTF_EARLY_BYTES (128u * 1024u) /* larger shards are not read early */
#define DCTF_EARLY_STREAK 4u

struct dctf_early;

DCTF_MUST_CHECK
enum dctf_err dctf_early_new(struct dctf_early **out);
void dctf_early_free(struct dctf_early *early);

/* The kernel was told of the file `ino`. True: it is likely to be opened next, and the buffer may
 * be claimed for it. */
bool dctf_early_looked_up(struct dctf_early *early, uint64_t ino);
/* The kernel opens the file `ino`. */
void dctf_early_opened(struct dctf_early *early, uint64_t ino);

/* The buffer, DCTF_EARLY_BYTES long, to be filled with the bytes of `id`; NULL when somebody
 * else has it. To be followed by dctf_early_done(). */
void *dctf_early_claim(struct dctf_early *early, const struct dctf_id *id);
/* The buffer is filled, or (not ok) is not. Returns the read that was parked meanwhile, for
 * the caller to answer, or NULL; with one, and ok, the buffer is the caller's until
 * dctf_early_release(). */
void *dctf_early_done(struct dctf_early *early, bool ok);

/* Whether the bytes of `id` are in the buffer, or about to be. */
bool dctf_early_has(struct dctf_early *early, const struct dctf_id *id);

enum dctf_early_take {
    DCTF_EARLY_NONE,   /* not read early */
    DCTF_EARLY_TAKEN,  /* *bytes holds the shard until dctf_early_release() */
    DCTF_EARLY_PARKED, /* `read` is returned by dctf_early_done() */
};
DCTF_MUST_CHECK
enum dctf_early_take dctf_early_take(
    struct dctf_early *early, const struct dctf_id *id, void *read, const void **bytes);
/* `keep`: the same bytes may be taken again. */
void dctf_early_release(struct dctf_early *early, bool keep);

#endif
