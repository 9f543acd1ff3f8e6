/* SPDX-License-Identifier: Apache-2.0
 *
 * The namespace: one listing for all who ask, what happens to it with time, and the key
 * rules against a model on generated keys.
 */
#include "ns_fixture.h"

static void test_resolve_of_many_is_one_listing(void **state)
{
    enum { WAITERS = 20 };
    struct fixture *f = *state;
    static struct waiter waiters[WAITERS];

    put(f, "d/a");
    put(f, "d/b");
    f->gate.closed = true;
    for (int i = 0; i < WAITERS; i++)
        ask(f, "d", &waiters[i]);
    gate_open(&f->gate);
    for (int i = 0; i < WAITERS; i++) {
        assert_int_equal(answered(&waiters[i]), DCTF_OK);
        assert_int_equal(waiters[i].state.entries, 2);
    }
    assert_int_equal(f->gate.lists, 1);
    ask(f, "d", &waiters[0]); /* fresh: no further one */
    assert_int_equal(answered(&waiters[0]), DCTF_OK);
    assert_int_equal(f->gate.lists, 1);
}

static void test_resolve_after_the_ttl_sees_what_changed(void **state)
{
    struct fixture *f = *state;
    struct dctf_listing_state first, second;

    put(f, "d/a");
    assert_int_equal(dctf_ns_resolve_now(f->ns, "d", &first), DCTF_OK);
    put(f, "d/b");
    assert_int_equal(dctf_ns_resolve_now(f->ns, "d", &second), DCTF_OK);
    assert_int_equal(second.generation, first.generation);
    atomic_fetch_add(&wall_now, TTL_MS + 1);
    assert_int_equal(dctf_ns_resolve_now(f->ns, "d", &second), DCTF_OK);
    assert_int_equal(second.entries, 2);
    assert_int_equal(f->gate.lists, 2);
}

static void test_resolve_after_the_clock_was_set_back_lists_again(void **state)
{
    struct fixture *f = *state;
    struct dctf_listing_state first, second;

    put(f, "d/a");
    assert_int_equal(dctf_ns_resolve_now(f->ns, "d", &first), DCTF_OK);
    put(f, "d/b");
    atomic_fetch_sub(&wall_now, 24 * 3600 * 1000);
    assert_int_equal(dctf_ns_resolve_now(f->ns, "d", &second), DCTF_OK);
    assert_int_equal(second.entries, 2);
    assert_int_equal(dctf_ns_resolve_now(f->ns, "d", &second), DCTF_OK);
    assert_int_equal(f->gate.lists, 2); /* and then it is trusted as ever */
}

/* What `dctf sync` dropped while it was listed may lack what the sync was for. */
static void test_drop_of_a_listing_under_way_holds_without_a_ttl(void **state)
{
    struct fixture *f = *state;
    struct dctf_ns_config config = {.fetch = f->fetch,
        .listings = f->listings,
        .timers = f->timers,
        .metrics = f->metrics,
        .clock = &f->clock,
        .ttl_ms = UINT64_MAX,
        .silence_ms = 5000};
    struct dctf_ns *with_ttl = f->ns;
    struct waiter waiter;

    assert_int_equal(dctf_ns_new(&config, &f->ns), DCTF_OK);
    put(f, "d/a");
    f->gate.closed = true;
    ask(f, "d", &waiter);
    assert_int_equal(dctf_listings_drop_all(f->listings), DCTF_OK);
    gate_open(&f->gate);
    assert_int_equal(answered(&waiter), DCTF_OK);
    ask(f, "d", &waiter);
    assert_int_equal(answered(&waiter), DCTF_OK);
    assert_int_equal(f->gate.lists, 2);
    ask(f, "d", &waiter);
    assert_int_equal(answered(&waiter), DCTF_OK);
    assert_int_equal(f->gate.lists, 2);
    dctf_ns_stop(with_ttl);
    dctf_ns_free(with_ttl);
}

static void test_outdate_keeps_newcomers_from_what_is_under_way(void **state)
{
    struct fixture *f = *state;
    struct waiter before, after;

    put(f, "d/a");
    f->gate.closed = true;
    ask(f, "d", &before);
    assert_int_equal(dctf_ns_outdate(f->ns, "e"), DCTF_OK); /* not this one */
    ask(f, "d", &after);
    assert_int_equal(f->gate.lists, 1);
    assert_true(dctf_ns_cancel(f->ns, &after.wait));
    assert_int_equal(dctf_ns_outdate(f->ns, "d"), DCTF_OK);
    ask(f, "d", &after);
    assert_int_equal(f->gate.lists, 2);
    gate_open(&f->gate);
    assert_int_equal(answered(&before), DCTF_OK);
    assert_int_equal(answered(&after), DCTF_OK);
    ask(f, "d", &after); /* the later one is what counts, whichever ended first */
    assert_int_equal(answered(&after), DCTF_OK);
    assert_int_equal(f->gate.lists, 2);
}

static void test_resolve_answers_from_the_old_listing_when_the_source_stalls(void **state)
{
    struct fixture *f = *state;
    struct dctf_listing_state first, second;
    struct waiter waiter;

    put(f, "d/a");
    assert_int_equal(dctf_ns_resolve_now(f->ns, "d", &first), DCTF_OK);
    atomic_fetch_add(&wall_now, TTL_MS + 1);
    f->gate.closed = true;
    assert_int_equal(dctf_ns_resolve_now(f->ns, "d", &second), DCTF_OK); /* after the grace */
    assert_int_equal(second.generation, first.generation);
    ask(f, "unknown", &waiter); /* nothing old to answer from: it waits */
    assert_int_equal(waiter.answers, 0);
    assert_true(dctf_ns_cancel(f->ns, &waiter.wait));
    assert_false(dctf_ns_cancel(f->ns, &waiter.wait));
    gate_open(&f->gate);
}

static void test_resolve_of_a_directory_that_went_away(void **state)
{
    struct fixture *f = *state;
    struct dctf_listing_state state_now;

    put(f, "d/a");
    assert_int_equal(dctf_ns_resolve_now(f->ns, "d", &state_now), DCTF_OK);
    assert_int_equal(dctf_origin_memory_delete(f->memory, "d/a"), DCTF_OK);
    atomic_fetch_add(&wall_now, TTL_MS + 1);
    assert_int_equal(dctf_ns_resolve_now(f->ns, "d", &state_now), DCTF_ERR_NOT_FOUND);
}

static void test_stop_answers_who_waits(void **state)
{
    struct fixture *f = *state;
    struct waiter waiter;

    f->gate.closed = true;
    ask(f, "d", &waiter);
    dctf_ns_stop(f->ns);
    assert_int_equal(answered(&waiter), DCTF_ERR_SHUTTING_DOWN);
    memset(&waiter, 0, sizeof(waiter));
    waiter.wait.done = on_answer;
    assert_int_equal(dctf_ns_resolve(f->ns, "d", &waiter.wait), DCTF_ERR_SHUTTING_DOWN);
    gate_open(&f->gate);
}

/* Model of the key rules: what is at `path` when these keys exist?  ------------------- */

enum what { NOTHING, A_FILE, A_DIRECTORY };

static bool component_shown(const char *text, size_t len)
{
    return len > 0 && len <= DCTF_NAME_MAX && !(len == 1 && text[0] == '.') &&
           !(len == 2 && !memcmp(text, "..", 2));
}

/* Every component may be shown, and `.dctf` at the root is not one of them. */
static bool path_shown(const char *path)
{
    const char *at = path;

    if (strlen(path) > DCTF_KEY_MAX)
        return false;
    for (;;) {
        size_t len = strcspn(at, "/");

        if (!component_shown(at, len) || (at == path && len == 5 && !memcmp(at, ".dctf", 5)))
            return false;
        if (!at[len])
            return true;
        at += len + 1;
    }
}

static enum what model_at(char keys[][64], size_t count, const char *path)
{
    enum what what = NOTHING;
    size_t len = strlen(path);

    if (!path_shown(path))
        return NOTHING;
    for (size_t i = 0; i < count; i++) {
        if (!strncmp(keys[i], path, len) && keys[i][len] == '/')
            return A_DIRECTORY; /* a directory wins over a file of the same name */
        if (!strcmp(keys[i], path))
            what = A_FILE;
    }
    return what;
}

static enum what mount_at(struct fixture *f, const char *path)
{
    char buf[DCTF_ENTRY_BUF_BYTES];
    struct dctf_entry entry;
    enum dctf_err err = dctf_ns_stat_now(f->ns, path, buf, &entry);

    if (err == DCTF_ERR_NOT_FOUND || err == DCTF_ERR_NOT_A_DIRECTORY)
        return NOTHING;
    assert_int_equal(err, DCTF_OK);
    return entry.is_dir ? A_DIRECTORY : A_FILE;
}

static void random_key(struct dctf_rng *rng, char *key)
{
    static const char *const parts[] = {
        "a", "b", "a b", "%2F", "+", "\xff\xfe", ".", "..", "", ".dctf", "x\n", "\"", "ü", "*", "a/"};
    size_t components = 1 + dctf_rng_below(rng, 4);

    key[0] = '\0';
    for (size_t i = 0; i < components; i++) {
        if (i)
            strcat(key, "/");
        strcat(key, parts[dctf_rng_below(rng, sizeof(parts) / sizeof(parts[0]))]);
    }
    if (!*key)
        strcpy(key, "plain");
}

/* All paths the mount shows below `dir`, each checked against the model. */
static size_t check_tree(struct fixture *f, char keys[][64], size_t count, const char *dir)
{
    struct dctf_listing_state state;
    struct dctf_listing_cursor *cursor;
    struct dctf_entry entry;
    char path[DCTF_KEY_MAX + 1];
    size_t files = 0;

    assert_int_equal(dctf_ns_resolve_now(f->ns, dir, &state), DCTF_OK);
    assert_int_equal(dctf_listing_open(f->listings, dir, state.generation, &cursor), DCTF_OK);
    while (!dctf_listing_next(cursor, &entry)) {
        bool is_dir = entry.is_dir;

        assert_int_equal(dctf_path_join(dir, entry.name, path), DCTF_OK);
        assert_int_equal(model_at(keys, count, path), is_dir ? A_DIRECTORY : A_FILE);
        files += is_dir ? check_tree(f, keys, count, path) : 1;
    }
    dctf_listing_close(cursor);
    return files;
}

static void test_names_follow_the_key_rules(void **state)
{
    enum { ROUNDS = 30, KEYS = 40 };
    struct dctf_rng rng = {2026};

    for (int round = 0; round < ROUNDS; round++) {
        struct fixture *f;
        char keys[KEYS][64];
        size_t shown = 0;

        if (round)
            setup(state);
        f = *state;
        for (size_t i = 0; i < KEYS; i++) {
            random_key(&rng, keys[i]);
            put(f, keys[i]);
        }
        for (size_t i = 0; i < KEYS; i++) {
            bool seen = false;

            assert_int_equal(mount_at(f, keys[i]), model_at(keys, KEYS, keys[i]));
            for (size_t j = 0; j < i; j++)
                seen |= !strcmp(keys[i], keys[j]);
            shown += !seen && model_at(keys, KEYS, keys[i]) == A_FILE;
        }
        assert_int_equal(check_tree(f, keys, KEYS, ""), shown);
        if (round < ROUNDS - 1)
            teardown(state);
    }
}

static void test_hidden_names_say_why(void **state)
{
    char longer[DCTF_NAME_MAX + 2];
    char dir[DCTF_KEY_MAX];

    (void)state;
    memset(longer, 'x', sizeof(longer));
    longer[sizeof(longer) - 1] = '\0';
    memset(dir, 'd', sizeof(dir));
    dir[sizeof(dir) - 1] = '\0';
    assert_non_null(dctf_ns_hidden("", ""));
    assert_non_null(dctf_ns_hidden("", "."));
    assert_non_null(dctf_ns_hidden("a", ".."));
    assert_non_null(dctf_ns_hidden("", "a/b"));
    assert_non_null(dctf_ns_hidden("", longer));
    assert_non_null(dctf_ns_hidden("", ".dctf"));
    assert_non_null(dctf_ns_hidden(dir, "xy"));
    assert_null(dctf_ns_hidden("sub", ".dctf"));
    assert_null(dctf_ns_hidden("", "..."));
    assert_null(dctf_ns_hidden("", longer + 1));
}

static void test_what_cannot_be_shown_is_hidden_and_told(void **state)
{
    struct fixture *f = *state;
    struct waiter waiter;
    struct dctf_entry entry;
    char buf[DCTF_ENTRY_BUF_BYTES];

    f->gate.odd = true;
    ask(f, "", &waiter);
    assert_int_equal(answered(&waiter), DCTF_OK);
    assert_int_equal(
        dctf_listing_lookup(f->listings, "", waiter.state.generation, "fits", buf, &entry), DCTF_OK);
    assert_int_equal(entry.size, DCTF_SIZE_MAX);
    assert_int_equal(dctf_listing_lookup(f->listings, "", waiter.state.generation, "over", buf, &entry),
        DCTF_ERR_NOT_FOUND);
    assert_int_equal(dctf_listing_lookup(f->listings, "", waiter.state.generation, "huge", buf, &entry),
        DCTF_ERR_NOT_FOUND);
    assert_int_equal(
        dctf_listing_lookup(f->listings, "", waiter.state.generation, "both", buf, &entry), DCTF_OK);
    assert_true(entry.is_dir);
    /* over, huge, the object "/", the file both; not the marker */
    assert_int_equal(dctf_metric_get(f->metrics, DCTF_METRIC_HIDDEN_KEYS), 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_resolve_of_many_is_one_listing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_resolve_after_the_ttl_sees_what_changed, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_resolve_after_the_clock_was_set_back_lists_again, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_drop_of_a_listing_under_way_holds_without_a_ttl, setup, teardown),
        cmocka_unit_test_setup_teardown(test_outdate_keeps_newcomers_from_what_is_under_way, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_resolve_answers_from_the_old_listing_when_the_source_stalls, setup, teardown),
        cmocka_unit_test_setup_teardown(test_resolve_of_a_directory_that_went_away, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stop_answers_who_waits, setup, teardown),
        cmocka_unit_test_setup_teardown(test_names_follow_the_key_rules, setup, teardown),
        cmocka_unit_test(test_hidden_names_say_why),
        cmocka_unit_test_setup_teardown(test_what_cannot_be_shown_is_hidden_and_told, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
