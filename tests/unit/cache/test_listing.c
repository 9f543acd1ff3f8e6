/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/listing_record.h"
#include "unit/cache/listing_fixture.h"

static void test_state_of_unlisted(void **state)
{
    struct fixture *f = *state;
    struct dctf_listing_cursor *cursor;
    char path[DCTF_KEY_MAX + 2];
    uint64_t size;
    struct dctf_listing_state got = state_of(f, "");

    assert_int_equal(got.generation, 0);
    assert_int_equal(lookup_size(f, "", 0, "x", &size), DCTF_ERR_MISS);
    assert_int_equal(lookup_size(f, "", 77, "x", &size), DCTF_ERR_MISS);
    assert_int_equal(dctf_listing_open(f->listings, "", 77, &cursor), DCTF_ERR_MISS);
    assert_null(cursor);
    assert_int_equal(dctf_listing_patch(f->listings, "", "x", NULL), DCTF_OK);
    assert_int_equal(dctf_listing_drop(f->listings, ""), DCTF_OK);
    dctf_listing_close(NULL);
    memset(path, 'p', sizeof(path));
    path[DCTF_KEY_MAX + 1] = '\0';
    assert_int_equal(dctf_listings_state(f->listings, path, &got), DCTF_ERR_NAME_TOO_LONG);
}

static void test_commit_makes_newest(void **state)
{
    struct fixture *f = *state;
    struct dctf_listing_writer *writer = begin(f, "a");
    struct dctf_listing_state first, second;
    uint64_t size;

    add_file(writer, "one", 1);
    add_dir(writer, "sub");
    assert_int_equal(state_of(f, "a").generation, 0);
    f->now_ms += 500;
    first = commit(writer);
    assert_int_equal(first.entries, 2);
    assert_int_equal(first.fetched_ms, f->now_ms - 500);
    assert_int_equal(state_of(f, "a").generation, first.generation);
    assert_int_equal(state_of(f, "b").generation, 0);
    assert_lookup(f, "a", first.generation, "one", 1);
    assert_int_equal(lookup_size(f, "a", first.generation, "two", &size), DCTF_ERR_NOT_FOUND);
    assert_int_equal(lookup_size(f, "a", first.generation, "", &size), DCTF_ERR_NOT_FOUND);
    assert_int_equal(lookup_size(f, "a", first.generation, "one/x", &size), DCTF_ERR_NOT_FOUND);
    /* Replaced: readable for a while, then answered from the newest. */
    second = list_numbers(f, "a", 3, 10);
    assert_true(second.generation > first.generation);
    assert_lookup(f, "a", first.generation, "one", 1);
    f->now_ms += GRACE_MS;
    sweep(f, NEVER);
    assert_int_equal(stored_entries(f), 3);
    assert_int_equal(lookup_size(f, "a", first.generation, "one", &size), DCTF_ERR_NOT_FOUND);
    assert_lookup(f, "a", first.generation, "000001", 11);
    /* It is there after a restart. */
    close_all(f);
    open_all(f);
    assert_int_equal(state_of(f, "a").generation, second.generation);
    assert_int_equal(state_of(f, "a").entries, 3);
    assert_lookup(f, "a", second.generation, "000002", 12);
}

static void test_commit_empty(void **state)
{
    struct fixture *f = *state;
    struct dctf_listing_state got = commit(begin(f, "empty"));
    struct dctf_listing_cursor *cursor = open_cursor(f, "empty", got.generation);

    assert_true(got.generation > 0);
    assert_int_equal(got.entries, 0);
    assert_end(cursor);
    assert_int_equal(dctf_listing_seek(cursor, 5), DCTF_OK);
    assert_end(cursor);
    dctf_listing_close(cursor);
}

static void test_commit_keeps_the_later_listing(void **state)
{
    struct fixture *f = *state;
    struct dctf_listing_writer *early = begin(f, "a"), *late = begin(f, "a");
    struct dctf_listing_state newest, got;
    uint64_t size;

    add_file(early, "early", 1);
    add_file(late, "late", 2);
    newest = commit(late);
    got = commit(early);
    assert_int_equal(got.generation, newest.generation);
    assert_lookup(f, "a", got.generation, "late", 2);
    assert_int_equal(lookup_size(f, "a", got.generation, "early", &size), DCTF_ERR_NOT_FOUND);
    assert_int_equal(stored_entries(f), 1);
}

static void collect_name(void *ctx, const char *name)
{
    char *names = ctx;

    strcat(names, name);
    strcat(names, " ");
}

static void test_add_repeated_names(void **state)
{
    struct fixture *f = *state;
    struct dctf_listing_writer *writer = begin(f, "a");
    char shadowed[256] = "";
    struct dctf_entry entry;
    struct dctf_listing_state got;
    char buf[DCTF_ENTRY_BUF_BYTES], name[16];

    dctf_listing_watch_shadowed(writer, collect_name, shadowed);
    add_file(writer, "twice", 1);
    add_dir(writer, "dir-first");
    add_file(writer, "dir-last", 1);
    add_file(writer, "twice", 2);
    add_file(writer, "dir-first", 3);
    add_dir(writer, "dir-last");
    add_dir(writer, "dir-flushed");
    add_file(writer, "file-flushed", 4);
    add_file(writer, "late-dir", 1);
    for (unsigned i = 0; i < 40000; i++) { /* more than one batch */
        snprintf(name, sizeof(name), "n%u", i);
        add_file(writer, name, i);
    }
    add_file(writer, "dir-flushed", 5);
    add_file(writer, "file-flushed", 6);
    add_file(writer, "twice", 7);
    add_dir(writer, "late-dir");
    got = commit(writer);
    assert_string_equal(shadowed, "dir-first dir-last dir-flushed late-dir ");
    assert_int_equal(got.entries, 40006);
    assert_int_equal(stored_entries(f), 40006);
    assert_lookup(f, "a", got.generation, "twice", 7);
    assert_lookup(f, "a", got.generation, "file-flushed", 6);
    for (unsigned i = 0; i < 4; i++) {
        static const char *const dirs[] = {"dir-first", "dir-last", "dir-flushed", "late-dir"};

        assert_int_equal(
            dctf_listing_lookup(f->listings, "a", got.generation, dirs[i], buf, &entry), DCTF_OK);
        assert_true(entry.is_dir);
        assert_int_equal(entry.size, 0);
        assert_string_equal(entry.etag, "");
    }
}

static void test_add_refuses_bad_names(void **state)
{
    struct fixture *f = *state;
    struct dctf_listing_writer *writer = begin(f, "a");
    char longest[DCTF_NAME_MAX + 2], etag[DCTF_ETAG_MAX + 2];
    struct dctf_entry entry = {.name = "", .etag = ""};

    memset(longest, 0xff, sizeof(longest));
    longest[DCTF_NAME_MAX + 1] = '\0';
    memset(etag, 'e', sizeof(etag));
    etag[DCTF_ETAG_MAX + 1] = '\0';
    assert_int_equal(dctf_listing_add(writer, &entry), DCTF_ERR_NAME_TOO_LONG);
    entry.name = "a/b";
    assert_int_equal(dctf_listing_add(writer, &entry), DCTF_ERR_NAME_TOO_LONG);
    entry.name = longest;
    assert_int_equal(dctf_listing_add(writer, &entry), DCTF_ERR_NAME_TOO_LONG);
    entry = (struct dctf_entry){.name = "x", .etag = etag};
    assert_int_equal(dctf_listing_add(writer, &entry), DCTF_ERR_NAME_TOO_LONG);
    longest[DCTF_NAME_MAX] = '\0';
    etag[DCTF_ETAG_MAX] = '\0';
    entry.name = longest;
    assert_int_equal(dctf_listing_add(writer, &entry), DCTF_OK);
    assert_lookup(f, "a", commit(writer).generation, longest, 0);
}

static void test_abort_leaves_nothing(void **state)
{
    struct fixture *f = *state;
    struct dctf_listing_writer *writer;
    char name[16];

    list_numbers(f, "a", 5, 0);
    writer = begin(f, "a");
    for (unsigned i = 0; i < 40000; i++) {
        snprintf(name, sizeof(name), "n%u", i);
        add_file(writer, name, i);
    }
    assert_true(stored_entries(f) > 5);
    dctf_listing_abort(writer);
    dctf_listing_abort(NULL);
    assert_int_equal(stored_entries(f), 5);
    assert_int_equal(state_of(f, "a").entries, 5);
}

static void test_cursor_survives_replacement(void **state)
{
    struct fixture *f = *state;
    struct dctf_listing_state first = list_numbers(f, "a", 3000, 0), second;
    struct dctf_listing_cursor *old = open_cursor(f, "a", first.generation), *fresh;

    for (unsigned i = 0; i < 100; i++)
        assert_next_number(old, i, 0);
    second = list_numbers(f, "a", 2000, 1000000);
    f->now_ms += GRACE_MS;
    sweep(f, NEVER);
    fresh = open_cursor(f, "a", second.generation);
    for (unsigned i = 100; i < 3000; i++)
        assert_next_number(old, i, 0);
    assert_end(old);
    assert_int_equal(dctf_listing_seek(old, 2500), DCTF_OK);
    assert_next_number(old, 2500, 0);
    for (unsigned i = 0; i < 2000; i++)
        assert_next_number(fresh, i, 1000000);
    assert_end(fresh);
    assert_int_equal(stored_entries(f), 5000);
    dctf_listing_close(old); /* the last to read it */
    assert_int_equal(stored_entries(f), 2000);
    dctf_listing_close(fresh);
    /* One that asks for what is gone gets the newest. */
    fresh = open_cursor(f, "a", first.generation);
    assert_next_number(fresh, 0, 1000000);
    dctf_listing_close(fresh);
}

static void test_seek_anywhere(void **state)
{
    struct fixture *f = *state;
    struct dctf_listing_state got = list_numbers(f, "a", 5000, 7);
    struct dctf_listing_cursor *cursor = open_cursor(f, "a", got.generation);
    struct dctf_rng rng = {.state = 1};
    struct dctf_entry entry;

    for (unsigned i = 0; i < 400; i++) {
        uint64_t at = dctf_rng_below(&rng, 5200);

        assert_int_equal(dctf_listing_seek(cursor, at), DCTF_OK);
        if (at >= 5000) {
            assert_end(cursor);
            assert_int_equal(dctf_listing_offset(cursor), 5000);
            continue;
        }
        for (uint64_t end = at + dctf_rng_below(&rng, 300); at < end && at < 5000; at++)
            assert_next_number(cursor, (unsigned)at, 7);
    }
    assert_int_equal(dctf_listing_seek_name(cursor, "002000x"), DCTF_OK);
    assert_int_equal(dctf_listing_offset(cursor), UINT64_MAX);
    assert_int_equal(dctf_listing_next(cursor, &entry), DCTF_OK);
    assert_string_equal(entry.name, "002001");
    assert_int_equal(dctf_listing_seek_name(cursor, entry.name), DCTF_OK);
    assert_int_equal(dctf_listing_next(cursor, &entry), DCTF_OK);
    assert_string_equal(entry.name, "002002");
    assert_int_equal(dctf_listing_seek_name(cursor, ""), DCTF_OK);
    assert_int_equal(dctf_listing_next(cursor, &entry), DCTF_OK);
    assert_string_equal(entry.name, "000000");
    assert_int_equal(dctf_listing_seek(cursor, 4321), DCTF_OK);
    assert_next_number(cursor, 4321, 7);
    dctf_listing_close(cursor);
}

static void test_patch_in_place(void **state)
{
    struct fixture *f = *state;
    struct dctf_listing_state got = list_numbers(f, "a", 3, 0);
    struct dctf_entry entry = {.name = "000001", .size = 99, .etag = "better"};
    struct dctf_listing_cursor *cursor;
    uint64_t size;

    assert_int_equal(dctf_listing_patch(f->listings, "a", entry.name, &entry), DCTF_OK);
    assert_lookup(f, "a", got.generation, "000001", 99);
    assert_int_equal(dctf_listing_patch(f->listings, "a", "000002", NULL), DCTF_OK);
    assert_int_equal(lookup_size(f, "a", got.generation, "000002", &size), DCTF_ERR_NOT_FOUND);
    assert_int_equal(dctf_listing_patch(f->listings, "a", "a/b", NULL), DCTF_ERR_NAME_TOO_LONG);
    cursor = open_cursor(f, "a", got.generation);
    assert_int_equal(dctf_listing_next(cursor, &entry), DCTF_OK);
    assert_int_equal(dctf_listing_next(cursor, &entry), DCTF_OK);
    assert_string_equal(entry.etag, "better");
    assert_end(cursor);
    dctf_listing_close(cursor);
}

static void test_drop_one(void **state)
{
    struct fixture *f = *state;
    struct dctf_listing_state got = list_numbers(f, "a", 3, 0);
    struct dctf_listing_writer *writer = begin(f, "a");
    uint64_t size;

    list_numbers(f, "b", 2, 0);
    assert_int_equal(dctf_listing_drop(f->listings, "a"), DCTF_OK);
    assert_int_equal(state_of(f, "a").generation, 0);
    assert_int_equal(state_of(f, "b").entries, 2);
    /* Who asked just before reads on, names that are not there included. */
    assert_lookup(f, "a", got.generation, "000001", 1);
    assert_int_equal(lookup_size(f, "a", got.generation, "nope", &size), DCTF_ERR_NOT_FOUND);
    f->now_ms += GRACE_MS;
    sweep(f, NEVER);
    assert_int_equal(stored_entries(f), 2);
    assert_int_equal(lookup_size(f, "a", got.generation, "000001", &size), DCTF_ERR_MISS);
    /* What was being listed meanwhile is old as soon as it is there. */
    got = commit(writer);
    assert_true(got.generation > 0);
    assert_int_equal(got.fetched_ms, 0);
}

static void test_drop_all(void **state)
{
    struct fixture *f = *state;
    struct dctf_listing_state got = list_numbers(f, "a", 3, 0);
    struct dctf_listing_cursor *cursor = open_cursor(f, "a", got.generation);
    uint64_t size;

    list_numbers(f, "b", 2, 0);
    assert_int_equal(dctf_listings_drop_all(f->listings), DCTF_OK);
    assert_int_equal(state_of(f, "a").generation, 0);
    assert_int_equal(state_of(f, "b").generation, 0);
    sweep(f, NEVER);
    assert_lookup(f, "a", got.generation, "000001", 1);
    assert_int_equal(lookup_size(f, "a", got.generation, "nope", &size), DCTF_ERR_NOT_FOUND);
    f->now_ms += GRACE_MS;
    sweep(f, NEVER);
    assert_int_equal(stored_entries(f), 3); /* open still */
    for (unsigned i = 0; i < 3; i++)
        assert_next_number(cursor, i, 0);
    assert_end(cursor);
    dctf_listing_close(cursor);
    sweep(f, NEVER);
    assert_int_equal(stored_entries(f), 0);
    got = list_numbers(f, "a", 4, 0);
    assert_int_equal(state_of(f, "a").generation, got.generation);
    close_all(f);
    open_all(f);
    assert_int_equal(state_of(f, "a").entries, 4);
    assert_int_equal(state_of(f, "b").generation, 0);
}

/* As if a crash had left a generation half written: entries without a record. */
static void leave_behind(struct fixture *f, const char *dir, uint64_t generation, unsigned count)
{
    char input[8 + 64] = {DATASET};
    uint8_t key[DCTF_LISTING_ENTRY_KEY_MAX], record[DCTF_LISTING_ENTRY_MAX];
    struct dctf_entry entry = {.name = "", .etag = ""};
    struct dctf_kv_batch *batch;
    struct dctf_id id;

    memcpy(input + 8, dir, strlen(dir));
    id = dctf_hash128(input, 8 + strlen(dir));
    assert_int_equal(dctf_kv_batch_new(&batch), DCTF_OK);
    for (unsigned i = 0; i < count; i++) {
        char name[16];

        snprintf(name, sizeof(name), "left%u", i);
        dctf_kv_batch_put(batch, f->kv, DCTF_KV_LISTING, key,
            dctf_listing_entry_key(&id, generation, name, strlen(name), key), record,
            dctf_listing_entry_encode(&entry, record));
    }
    assert_int_equal(dctf_kv_write(f->kv, batch, DCTF_KV_LOGGED), DCTF_OK);
    dctf_kv_batch_free(batch);
}

static void test_sweep_after_crash(void **state)
{
    struct fixture *f = *state;
    struct dctf_listing_state got = list_numbers(f, "a", 3, 0);
    struct dctf_listing_writer *writer = begin(f, "being written");
    char name[16];

    for (unsigned i = 0; i < 40000; i++) {
        snprintf(name, sizeof(name), "n%u", i);
        add_file(writer, name, i);
    }
    leave_behind(f, "a", got.generation - 1, 1000);
    leave_behind(f, "a", got.generation + 1000000, 10);
    leave_behind(f, "never listed", 42, 300);
    sweep(f, NEVER);
    assert_int_equal(state_of(f, "a").generation, got.generation);
    assert_int_equal(commit(writer).entries, 40000);
    assert_int_equal(stored_entries(f), 40003);
}

static void test_sweep_is_bounded(void **state)
{
    struct fixture *f = *state;
    unsigned sweeps = 0;

    for (unsigned i = 0; i < 600; i++)
        leave_behind(f, "lost", 1 + i, 1);
    leave_behind(f, "lost", UINT64_MAX, 1); /* no generation: not ours to judge, and no trap */
    list_numbers(f, "a", 3, 0);
    do
        sweep(f, NEVER);
    while (stored_entries(f) > 4 && ++sweeps < 10);
    assert_in_range(sweeps, 2, 6);
    assert_int_equal(state_of(f, "a").entries, 3);
}

static void test_sweep_drops_the_idle(void **state)
{
    struct fixture *f = *state;
    const uint64_t day = 86400000;

    for (unsigned i = 0; i < 300; i++) {
        char dir[16];

        snprintf(dir, sizeof(dir), "d%u", i);
        list_numbers(f, dir, 1, 0);
    }
    list_numbers(f, "used", 3, 0);
    commit(begin(f, "empty"));
    f->now_ms += 6 * day;
    assert_int_equal(state_of(f, "used").entries, 3);
    close_all(f); /* what was asked for when is remembered */
    open_all(f);
    f->now_ms += 2 * day;
    for (unsigned i = 0; i < 3; i++)
        sweep(f, 7 * day);
    f->now_ms += GRACE_MS;
    for (unsigned i = 0; i < 6; i++)
        sweep(f, 7 * day);
    assert_int_equal(stored_entries(f), 3);
    assert_int_equal(state_of(f, "empty").generation, 0);
    assert_int_equal(state_of(f, "d7").generation, 0);
    assert_int_equal(state_of(f, "used").entries, 3);
    f->now_ms -= 20 * day; /* a clock that steps back makes nothing idle */
    sweep(f, 7 * day);
    assert_int_equal(state_of(f, "used").entries, 3);
}

static void test_generation_grows_over_restarts(void **state)
{
    struct fixture *f = *state;
    uint64_t last = 0;

    for (unsigned i = 0; i < 5; i++) {
        struct dctf_listing_state got = list_numbers(f, "a", 1, 0);

        assert_true(got.generation > last);
        last = got.generation;
        close_all(f);
        f->now_ms -= 3600000; /* and the clock steps back */
        open_all(f);
        assert_int_equal(state_of(f, "a").generation, last);
    }
}

static void test_damaged_records_are_none(void **state)
{
    struct fixture *f = *state;
    struct dctf_listing_state got = list_numbers(f, "a", 1, 0);
    struct dctf_kv_batch *batch;
    struct dctf_kv_iter *iter;
    size_t len;

    assert_int_equal(dctf_kv_batch_new(&batch), DCTF_OK);
    assert_int_equal(dctf_kv_iter_new(f->kv, DCTF_KV_LISTING, "d", 1, &iter), DCTF_OK);
    assert_true(dctf_kv_iter_valid(iter));
    dctf_kv_batch_put(
        batch, f->kv, DCTF_KV_LISTING, dctf_kv_iter_key(iter, &len), DCTF_LISTING_DIR_KEY, "junk", 4);
    dctf_kv_batch_put(batch, f->kv, DCTF_KV_LISTING, "g", 1, "junk", 4);
    dctf_kv_iter_free(iter);
    assert_int_equal(dctf_kv_write(f->kv, batch, DCTF_KV_LOGGED), DCTF_OK);
    dctf_kv_batch_free(batch);
    close_all(f);
    open_all(f);
    assert_int_equal(state_of(f, "a").generation, 0);
    f->now_ms++;
    assert_true(list_numbers(f, "a", 1, 0).generation > got.generation);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_state_of_unlisted, setup, teardown),
        cmocka_unit_test_setup_teardown(test_commit_makes_newest, setup, teardown),
        cmocka_unit_test_setup_teardown(test_commit_empty, setup, teardown),
        cmocka_unit_test_setup_teardown(test_commit_keeps_the_later_listing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_add_repeated_names, setup, teardown),
        cmocka_unit_test_setup_teardown(test_add_refuses_bad_names, setup, teardown),
        cmocka_unit_test_setup_teardown(test_abort_leaves_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cursor_survives_replacement, setup, teardown),
        cmocka_unit_test_setup_teardown(test_seek_anywhere, setup, teardown),
        cmocka_unit_test_setup_teardown(test_patch_in_place, setup, teardown),
        cmocka_unit_test_setup_teardown(test_drop_one, setup, teardown),
        cmocka_unit_test_setup_teardown(test_drop_all, setup, teardown),
        cmocka_unit_test_setup_teardown(test_sweep_after_crash, setup, teardown),
        cmocka_unit_test_setup_teardown(test_sweep_is_bounded, setup, teardown),
        cmocka_unit_test_setup_teardown(test_sweep_drops_the_idle, setup, teardown),
        cmocka_unit_test_setup_teardown(test_generation_grows_over_restarts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_damaged_records_are_none, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
