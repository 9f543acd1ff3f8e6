/* SPDX-License-Identifier: Apache-2.0
 *
 * A database with listings under a fake clock, for the tests of listings.
 */
#ifndef DCTF_TESTS_LISTING_FIXTURE_H
#define DCTF_TESTS_LISTING_FIXTURE_H

#include "base/clock.h"
#include "cache/kv.h"
#include "cache/listing.h"

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define DATASET 5u
#define NEVER UINT64_MAX
#define GRACE_MS 10001u

struct fixture {
    char dir[64];
    _Atomic uint64_t now_ms; /* both clocks */
    struct dctf_clock clock;
    struct dctf_kv *kv;
    struct dctf_listings *listings;
};

static inline uint64_t fake_ns(void *ctx)
{
    return ((struct fixture *)ctx)->now_ms * 1000000u;
}

static inline uint64_t fake_ms(void *ctx)
{
    return ((struct fixture *)ctx)->now_ms;
}

static inline void open_all(struct fixture *f)
{
    struct dctf_kv_config config = {
        .dir = f->dir, .block_cache_bytes = 4 << 20, .write_buffer_bytes = 4 << 20};

    assert_int_equal(dctf_kv_open(&config, &f->kv), DCTF_OK);
    assert_int_equal(dctf_listings_new(f->kv, DATASET, &f->clock, &f->listings), DCTF_OK);
}

static inline void close_all(struct fixture *f)
{
    dctf_listings_free(f->listings);
    dctf_kv_close(f->kv);
}

static inline int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    if (!f)
        return -1;
    snprintf(f->dir, sizeof(f->dir), "/tmp/dctf-test-listing.XXXXXX");
    if (!mkdtemp(f->dir))
        return -1;
    f->now_ms = 1700000000000;
    f->clock = (struct dctf_clock){.mono_ns = fake_ns, .wall_ms = fake_ms, .ctx = f};
    open_all(f);
    *state = f;
    return 0;
}

static inline int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static inline int teardown(void **state)
{
    struct fixture *f = *state;

    close_all(f);
    nftw(f->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(f);
    return 0;
}

/* ---- helpers ---- */

static inline struct dctf_listing_writer *begin(struct fixture *f, const char *dir)
{
    struct dctf_listing_writer *writer;

    assert_int_equal(dctf_listing_begin(f->listings, dir, &writer), DCTF_OK);
    return writer;
}

static inline void add_file(struct dctf_listing_writer *writer, const char *name, uint64_t size)
{
    struct dctf_entry entry = {.name = name, .size = size, .mtime_ns = -(int64_t)size, .etag = "tag"};

    assert_int_equal(dctf_listing_add(writer, &entry), DCTF_OK);
}

static inline void add_dir(struct dctf_listing_writer *writer, const char *name)
{
    struct dctf_entry entry = {.name = name, .is_dir = true, .etag = ""};

    assert_int_equal(dctf_listing_add(writer, &entry), DCTF_OK);
}

static inline struct dctf_listing_state commit(struct dctf_listing_writer *writer)
{
    struct dctf_listing_state state;

    assert_int_equal(dctf_listing_commit(writer, &state), DCTF_OK);
    return state;
}

/* Files 000000 to `count` - 1, sizes from `base`. */
static inline struct dctf_listing_state list_numbers(
    struct fixture *f, const char *dir, unsigned count, uint64_t base)
{
    struct dctf_listing_writer *writer = begin(f, dir);
    char name[16];

    for (unsigned i = 0; i < count; i++) {
        snprintf(name, sizeof(name), "%06u", i);
        add_file(writer, name, base + i);
    }
    return commit(writer);
}

static inline struct dctf_listing_state state_of(struct fixture *f, const char *dir)
{
    struct dctf_listing_state state;

    assert_int_equal(dctf_listings_state(f->listings, dir, &state), DCTF_OK);
    return state;
}

static inline enum dctf_err lookup_size(
    struct fixture *f, const char *dir, uint64_t generation, const char *name, uint64_t *size)
{
    char buf[DCTF_ENTRY_BUF_BYTES];
    struct dctf_entry entry;
    enum dctf_err err = dctf_listing_lookup(f->listings, dir, generation, name, buf, &entry);

    *size = entry.size;
    if (!err)
        assert_string_equal(entry.name, name);
    return err;
}

static inline void assert_lookup(
    struct fixture *f, const char *dir, uint64_t generation, const char *name, uint64_t size)
{
    uint64_t got;

    assert_int_equal(lookup_size(f, dir, generation, name, &got), DCTF_OK);
    assert_int_equal(got, size);
}

static inline struct dctf_listing_cursor *open_cursor(struct fixture *f, const char *dir, uint64_t generation)
{
    struct dctf_listing_cursor *cursor;

    assert_int_equal(dctf_listing_open(f->listings, dir, generation, &cursor), DCTF_OK);
    return cursor;
}

static inline void assert_next_number(struct dctf_listing_cursor *cursor, unsigned number, uint64_t base)
{
    struct dctf_entry entry;

    assert_int_equal(dctf_listing_offset(cursor), number);
    assert_int_equal(dctf_listing_next(cursor, &entry), DCTF_OK);
    assert_int_equal(atoi(entry.name), number);
    assert_int_equal(entry.size, base + number);
    assert_int_equal(entry.mtime_ns, -(int64_t)(base + number));
    assert_string_equal(entry.etag, "tag");
    assert_false(entry.is_dir);
}

static inline void assert_end(struct dctf_listing_cursor *cursor)
{
    struct dctf_entry entry;

    assert_int_equal(dctf_listing_next(cursor, &entry), DCTF_ERR_NOT_FOUND);
    assert_int_equal(dctf_listing_next(cursor, &entry), DCTF_ERR_NOT_FOUND);
}

static inline size_t stored_entries(struct fixture *f)
{
    struct dctf_kv_iter *iter;
    size_t count = 0;

    assert_int_equal(dctf_kv_iter_new(f->kv, DCTF_KV_LISTING, "e", 1, &iter), DCTF_OK);
    for (; dctf_kv_iter_valid(iter); dctf_kv_iter_next(iter))
        count++;
    assert_int_equal(dctf_kv_iter_err(iter), DCTF_OK);
    dctf_kv_iter_free(iter);
    return count;
}

static inline void sweep(struct fixture *f, uint64_t idle_ms)
{
    assert_int_equal(dctf_listings_sweep(f->listings, idle_ms), DCTF_OK);
}

#endif
