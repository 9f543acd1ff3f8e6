/* SPDX-License-Identifier: Apache-2.0
 *
 * Directory listings in the database. A listing is a *generation*: written once
 * from beginning to end, immutable once committed, so that offsets stay stable
 * for a reader while the directory changes. Lookups are answered from it.
 *
 * Threads:   any thread; touches the local disk, so hold no lock.
 * Ownership: as told per function. Strings handed out in struct dctf_entry are
 *            valid until the next call on the same cursor, or as told.
 *
 * A generation that was replaced or dropped stays readable while a cursor has it
 * open, and for ten seconds: what dctf_listings_state() told can be used without
 * holding anything. Keys and records are in cache/listing_record.h.
 */
#ifndef DCTF_CACHE_LISTING_H
#define DCTF_CACHE_LISTING_H

#include "base/clock.h"
#include "base/err.h"
#include "base/version.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dctf_kv;
struct dctf_listings;
struct dctf_listing_writer;
struct dctf_listing_cursor;

struct dctf_entry {
    const char *name; /* one component, NUL-terminated */
    bool is_dir;
    uint64_t size;    /* bytes; 0 for a directory */
    int64_t mtime_ns; /* wall clock; 0 when unknown */
    const char *etag; /* "" for a directory */
};

/* What is known of one directory. */
struct dctf_listing_state {
    uint64_t generation; /* 0: never listed */
    uint64_t fetched_ms; /* wall clock, when the listing began; 0: dropped meanwhile, old already */
    uint64_t entries;    /* when it was committed: patches are not counted */
};

DCTF_MUST_CHECK
enum dctf_err dctf_listings_new(
    struct dctf_kv *kv, uint64_t dataset, const struct dctf_clock *clock, struct dctf_listings **out);
void dctf_listings_free(struct dctf_listings *listings);

/* The newest committed generation of `dir` ("" is the root; no slashes at the
 * ends). generation 0 when there is none. */
DCTF_MUST_CHECK
enum dctf_err dctf_listings_state(
    struct dctf_listings *listings, const char *dir, struct dctf_listing_state *out);

/* Write a new generation. Entries may come in any order; a later entry of the
 * same name replaces an earlier one, but a directory wins over a file. */
DCTF_MUST_CHECK
enum dctf_err dctf_listing_begin(
    struct dctf_listings *listings, const char *dir, struct dctf_listing_writer **out);
/* Call shadowed() for each file that a directory of its name hides (object stores allow
 * `a` beside `a/b`), from within add() and commit(). */
void dctf_listing_watch_shadowed(
    struct dctf_listing_writer *writer, void (*shadowed)(void *ctx, const char *name), void *ctx);
DCTF_MUST_CHECK
enum dctf_err dctf_listing_add(struct dctf_listing_writer *writer, const struct dctf_entry *entry);
/* What is written was read from the source so long ago, by another node: it is as old. */
void dctf_listing_set_age(struct dctf_listing_writer *writer, uint64_t age_ms);
/* Make it the newest, unless one that began later is already there: *out is the
 * newest. The generation it replaces is deleted when nobody can be reading it.
 * Frees the writer in either case. */
DCTF_MUST_CHECK
enum dctf_err dctf_listing_commit(struct dctf_listing_writer *writer, struct dctf_listing_state *out);
/* Throw the written entries away. Frees the writer. */
void dctf_listing_abort(struct dctf_listing_writer *writer);

/* One entry of a generation, or of the newest one when that is gone.
 * DCTF_ERR_NOT_FOUND when it has no such name, DCTF_ERR_MISS when the directory has
 * no listing any more: list again. The strings of *out point into `buf`
 * (≥ DCTF_ENTRY_BUF_BYTES). */
#define DCTF_ENTRY_BUF_BYTES (DCTF_NAME_MAX + DCTF_ETAG_MAX + 2)
DCTF_MUST_CHECK
enum dctf_err dctf_listing_lookup(struct dctf_listings *listings, const char *dir, uint64_t generation,
    const char *name, char *buf, struct dctf_entry *out);
/* Change one entry of the newest generation in place (a HEAD told better): `entry`
 * NULL removes `name`. Readers of the generation see it. Without a listing there is
 * nothing to change: DCTF_OK. */
DCTF_MUST_CHECK
enum dctf_err dctf_listing_patch(
    struct dctf_listings *listings, const char *dir, const char *name, const struct dctf_entry *entry);
/* Forget the newest generation: the next reader lists again. */
DCTF_MUST_CHECK
enum dctf_err dctf_listing_drop(struct dctf_listings *listings, const char *dir);
/* Forget every directory (dctf sync). */
DCTF_MUST_CHECK
enum dctf_err dctf_listings_drop_all(struct dctf_listings *listings);

/* Walk one generation (or the newest one when that is gone; DCTF_ERR_MISS when the
 * directory has no listing any more) in byte order of the names. It stays until the
 * cursor is closed. A cursor is used by one thread at a time. Offsets count from 0.
 * Any offset the cursor has passed can be sought to in one step of a sparse index in
 * memory; a later one walks there. */
DCTF_MUST_CHECK
enum dctf_err dctf_listing_open(
    struct dctf_listings *listings, const char *dir, uint64_t generation, struct dctf_listing_cursor **out);
void dctf_listing_close(struct dctf_listing_cursor *cursor);
/* The generation it walks. */
uint64_t dctf_listing_generation(const struct dctf_listing_cursor *cursor);
/* DCTF_ERR_NOT_FOUND at the end. */
DCTF_MUST_CHECK
enum dctf_err dctf_listing_next(struct dctf_listing_cursor *cursor, struct dctf_entry *out);
DCTF_MUST_CHECK
enum dctf_err dctf_listing_seek(struct dctf_listing_cursor *cursor, uint64_t offset);
/* Of the next entry. After a seek past the end it is the number of entries. */
uint64_t dctf_listing_offset(const struct dctf_listing_cursor *cursor);
/* Continue after `name` (it need not exist). The offset is then unknown: UINT64_MAX. */
DCTF_MUST_CHECK
enum dctf_err dctf_listing_seek_name(struct dctf_listing_cursor *cursor, const char *name);

/* Delete generations that a crash left behind, and listings of directories not
 * asked for in `idle_ms`. For the maintenance thread; bounded work per call. */
DCTF_MUST_CHECK
enum dctf_err dctf_listings_sweep(struct dctf_listings *listings, uint64_t idle_ms);

#endif
