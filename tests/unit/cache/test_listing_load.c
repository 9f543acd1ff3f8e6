/* SPDX-License-Identifier: Apache-2.0
 *
 * Listings in numbers: many directories, large ones, random ones against a model,
 * and readers among writers.
 */
#include "base/thread.h"
#include "unit/cache/listing_fixture.h"

/* More directories than memory keeps. */
static void test_state_of_many(void **state)
{
    struct fixture *f = *state;
    char dir[16];
    uint64_t size;

    for (unsigned i = 0; i < 5000; i++) {
        snprintf(dir, sizeof(dir), "d%u", i);
        list_numbers(f, dir, 1, i);
    }
    for (unsigned i = 0; i < 5000; i++) {
        struct dctf_listing_state got;

        snprintf(dir, sizeof(dir), "d%u", i);
        got = state_of(f, dir);
        assert_lookup(f, dir, got.generation, "000000", i);
        assert_int_equal(lookup_size(f, dir, got.generation, "nope", &size), DCTF_ERR_NOT_FOUND);
    }
    /* Held by nothing and forgotten by memory: still the current one. */
    assert_int_equal(lookup_size(f, "d0", state_of(f, "d0").generation, "nope", &size), DCTF_ERR_NOT_FOUND);
}

static void test_large_directory(void **state)
{
    struct fixture *f = *state;
    const unsigned count = 200000;
    struct dctf_listing_writer *writer = begin(f, "large");
    struct dctf_listing_cursor *cursor;
    struct dctf_listing_state got;
    uint64_t start = dctf_clock_mono_ms(NULL);
    char name[16];

    for (unsigned i = 0; i < count; i++) { /* in no order */
        snprintf(name, sizeof(name), "%06u", (unsigned)((uint64_t)i * 7919 % count));
        add_file(writer, name, (uint64_t)i * 7919 % count);
    }
    got = commit(writer);
    assert_int_equal(got.entries, count);
    printf("wrote %u entries in %llu ms\n", count, (unsigned long long)(dctf_clock_mono_ms(NULL) - start));
    start = dctf_clock_mono_ms(NULL);
    cursor = open_cursor(f, "large", got.generation);
    for (unsigned i = 0; i < count; i++)
        assert_next_number(cursor, i, 0);
    assert_end(cursor);
    printf("read them in %llu ms\n", (unsigned long long)(dctf_clock_mono_ms(NULL) - start));
    for (unsigned i = 0; i < 100; i++) {
        unsigned at = (i * 7919 * 31) % count;

        assert_int_equal(dctf_listing_seek(cursor, at), DCTF_OK);
        assert_next_number(cursor, at, 0);
    }
    dctf_listing_close(cursor);
}

/* ---- against a model ---- */

#define MODEL_MAX 400u

struct model_entry {
    char name[DCTF_NAME_MAX + 1];
    bool is_dir;
    uint64_t size;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct model_entry *)a)->name, ((const struct model_entry *)b)->name);
}

/* Any bytes but NUL and '/'; few letters make repeats and prefixes likely. */
static void random_name(struct dctf_rng *rng, char *name)
{
    static const char few[] = {'a', 'b', '\xff', '\x01', '.', '\n'};
    bool wild = dctf_rng_below(rng, 4) == 0;
    size_t len = 1 + dctf_rng_below(rng, wild ? DCTF_NAME_MAX : 4);

    for (size_t i = 0; i < len; i++) {
        name[i] = wild ? (char)(1 + dctf_rng_below(rng, 255)) : few[dctf_rng_below(rng, sizeof(few))];
        if (name[i] == '/')
            name[i] = '0';
    }
    name[len] = '\0';
}

static size_t model_add(struct model_entry *model, size_t count, const struct model_entry *entry)
{
    for (size_t i = 0; i < count; i++)
        if (!strcmp(model[i].name, entry->name)) {
            if (entry->is_dir || !model[i].is_dir)
                model[i] = *entry;
            return count;
        }
    model[count] = *entry;
    return count + 1;
}

static void assert_entry(struct dctf_listing_cursor *cursor, const struct model_entry *expected)
{
    struct dctf_entry entry;

    assert_int_equal(dctf_listing_next(cursor, &entry), DCTF_OK);
    assert_string_equal(entry.name, expected->name);
    assert_int_equal(entry.is_dir, expected->is_dir);
    assert_int_equal(entry.size, expected->is_dir ? 0 : expected->size);
}

static void play_model(struct fixture *f, struct dctf_rng *rng)
{
    struct model_entry *model = calloc(MODEL_MAX, sizeof(*model)), entry;
    struct dctf_listing_writer *writer = begin(f, "model");
    size_t count = 0, adds = dctf_rng_below(rng, MODEL_MAX);
    struct dctf_listing_cursor *cursor;
    struct dctf_listing_state got;

    assert_non_null(model);
    for (size_t i = 0; i < adds; i++) {
        random_name(rng, entry.name);
        entry.is_dir = dctf_rng_below(rng, 4) == 0;
        entry.size = i;
        count = model_add(model, count, &entry);
        if (entry.is_dir)
            add_dir(writer, entry.name);
        else
            add_file(writer, entry.name, i);
    }
    got = commit(writer);
    assert_int_equal(got.entries, count);
    qsort(model, count, sizeof(*model), by_name);
    cursor = open_cursor(f, "model", got.generation);
    for (size_t i = 0; i < count; i++) {
        assert_entry(cursor, &model[i]);
        assert_lookup(f, "model", got.generation, model[i].name, model[i].is_dir ? 0 : model[i].size);
    }
    assert_end(cursor);
    for (unsigned i = 0; i < 20 && count > 0; i++) {
        size_t at = dctf_rng_below(rng, count), after;

        assert_int_equal(dctf_listing_seek(cursor, at), DCTF_OK);
        assert_entry(cursor, &model[at]);
        random_name(rng, entry.name);
        for (after = 0; after < count && strcmp(model[after].name, entry.name) <= 0;)
            after++;
        assert_int_equal(dctf_listing_seek_name(cursor, entry.name), DCTF_OK);
        if (after < count)
            assert_entry(cursor, &model[after]);
        else
            assert_end(cursor);
    }
    dctf_listing_close(cursor);
    free(model);
}

static void test_listing_against_model(void **state)
{
    struct fixture *f = *state;
    struct dctf_rng rng = {.state = 2026};

    for (unsigned i = 0; i < 60; i++)
        play_model(f, &rng);
}

/* ---- all at once ---- */

struct racer {
    struct fixture *f;
    unsigned role;
    unsigned rounds;
};

/* Every generation of "r" is numbers with one base: a reader must never see a part. */
static void read_round(struct fixture *f)
{
    struct dctf_listing_state state = state_of(f, "r");
    struct dctf_listing_cursor *cursor;
    struct dctf_entry entry;
    uint64_t base = 0, size;
    unsigned seen = 0;
    enum dctf_err err;

    if (state.generation == 0 || dctf_listing_open(f->listings, "r", state.generation, &cursor))
        return;
    while (!(err = dctf_listing_next(cursor, &entry))) {
        if (seen == 0)
            base = entry.size;
        assert_int_equal(entry.size, base + seen);
        seen++;
    }
    assert_int_equal(err, DCTF_ERR_NOT_FOUND);
    assert_int_equal(seen, 300);
    dctf_listing_close(cursor);
    assert_int_equal(lookup_size(f, "r", state.generation, "000299", &size), DCTF_OK);
    assert_int_equal(lookup_size(f, "r", state.generation, "nope", &size), DCTF_ERR_NOT_FOUND);
}

static void *race(void *arg)
{
    struct racer *racer = arg;
    struct fixture *f = racer->f;

    for (unsigned i = 0; i < racer->rounds; i++) {
        if (racer->role == 0)
            list_numbers(f, "r", 300, i * 1000);
        else if (racer->role == 1)
            read_round(f);
        else if (i % 8 == 0)
            assert_int_equal(dctf_listing_drop(f->listings, "r"), DCTF_OK);
        else if (i % 8 == 4)
            assert_int_equal(dctf_listings_drop_all(f->listings), DCTF_OK);
        else
            sweep(f, NEVER);
        if (racer->role == 2)
            f->now_ms += 50;
    }
    return NULL;
}

static void test_readers_and_writers_race(void **state)
{
    struct fixture *f = *state;
    struct racer racers[5] = {{f, 0, 60}, {f, 0, 60}, {f, 1, 120}, {f, 1, 120}, {f, 2, 120}};
    pthread_t threads[5];
    struct dctf_listing_state got;

    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(dctf_thread_start("racer", race, &racers[i], &threads[i]), DCTF_OK);
    for (unsigned i = 0; i < 5; i++)
        pthread_join(threads[i], NULL);
    got = list_numbers(f, "r", 300, 0);
    f->now_ms += GRACE_MS;
    for (unsigned i = 0; i < 3; i++)
        sweep(f, NEVER);
    assert_int_equal(stored_entries(f), 300);
    assert_int_equal(state_of(f, "r").generation, got.generation);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_state_of_many, setup, teardown),
        cmocka_unit_test_setup_teardown(test_large_directory, setup, teardown),
        cmocka_unit_test_setup_teardown(test_listing_against_model, setup, teardown),
        cmocka_unit_test_setup_teardown(test_readers_and_writers_race, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
