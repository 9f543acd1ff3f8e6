/* SPDX-License-Identifier: Apache-2.0
 *
 * The directory origin: opening it, which keys it shows, and listing. Reading: test_origin_file_get.c; a
 * directory that hangs: test_origin_file_stuck.c.
 */
#include "origin_file_fixture.h"

#include "base/log.h"
#include "lib/fail_alloc.h"

#include <stdatomic.h>

static enum dctf_err head_only(struct dctf_origin *origin, const char *key)
{
    struct reply *reply;
    enum dctf_err err = head(origin, key, &reply);

    free(reply);
    return err;
}

static bool listed(const struct reply *reply, const char *name)
{
    for (size_t i = 0; i < reply->count; i++)
        if (strcmp(reply->names[i], name) == 0)
            return true;
    return false;
}

/* --- opening --- */

static void test_open_refuses_other_sources(void **state)
{
    static const char *const bad[] = {"s3://bucket", "file://host/dir", "file:/dir", "/dir", "", "fil:///x"};
    struct dctf_origin *origin;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct dctf_origin_config config = {.source = bad[i], .concurrency = 1};

        origin = (struct dctf_origin *)&config;
        assert_int_equal(dctf_origin_open(schemes, &config, &origin), DCTF_ERR_SOURCE_UNSUPPORTED);
        assert_null(origin);
    }
}

static struct dctf_origin *swept;

static enum dctf_err sweep_open(void *ctx)
{
    struct dctf_origin_config config = {.source = ((struct world *)ctx)->source, .concurrency = 1};

    return dctf_origin_open(schemes, &config, &swept);
}

static void sweep_close(void *ctx)
{
    (void)ctx;
    swept->ops->close(swept, 1000);
}

static void test_open_without_memory(void **state)
{
    assert_true(fail_alloc_sweep(sweep_open, sweep_close, *state, (void **)&swept) >= 4);
}

static void test_check_says_what_is_wrong(void **state)
{
    struct world *world = *state;
    struct dctf_origin_config config = {.source = world->source, .concurrency = 1};
    struct dctf_origin *origin;
    char detail[256];

    assert_int_equal(world->origin->ops->check(world->origin, 10000, detail), DCTF_OK);
    assert_string_equal(detail, "");
    snprintf(world->source, sizeof(world->source), "file://%s/root/dir/one", world->top);
    assert_int_equal(dctf_origin_open(schemes, &config, &origin), DCTF_OK);
    assert_int_equal(origin->ops->check(origin, 10000, detail), DCTF_ERR_SOURCE_BAD);
    assert_non_null(strstr(detail, "Not a directory"));
    origin->ops->close(origin, 10000);
    snprintf(world->source, sizeof(world->source), "file://%s/missing", world->top);
    assert_int_equal(dctf_origin_open(schemes, &config, &origin), DCTF_OK);
    assert_int_equal(origin->ops->check(origin, 10000, detail), DCTF_ERR_SOURCE_BAD);
    assert_non_null(strstr(detail, "No such file"));
    /* a source that is not there is no empty directory */
    assert_int_equal(head_only(origin, "x"), DCTF_ERR_ORIGIN_UNREACHABLE);
    origin->ops->close(origin, 10000);
}

/* --- the key rules, with openat2 and without --- */

/* Links and other things that are not plain files. */
static void make_odd_things(const struct world *world)
{
    assert_int_equal(symlink("one", at(world, "root/dir/link")), 0);
    assert_int_equal(symlink(at(world, "root/dir/one"), at(world, "root/absolute")), 0);
    assert_int_equal(symlink("dir", at(world, "root/linkdir")), 0);
    assert_int_equal(symlink("nowhere", at(world, "root/dangling")), 0);
    assert_int_equal(symlink("loop", at(world, "root/loop")), 0);
    assert_int_equal(symlink("../out/secret", at(world, "root/escape")), 0);
    assert_int_equal(symlink("../out", at(world, "root/escapedir")), 0);
    assert_int_equal(mkdir(at(world, "rootx"), 0700), 0); /* begins as the root does */
    write_file(at(world, "rootx/secret"), "secret", 6);
    assert_int_equal(symlink("../rootx/secret", at(world, "root/sibling")), 0);
    assert_int_equal(symlink("/proc/self/exe", at(world, "root/magic")), 0);
    assert_int_equal(mkfifo(at(world, "root/fifo"), 0600), 0);
}

static bool tree_page(struct dctf_origin_list *list, const struct dctf_origin_entry *entries, size_t count)
{
    return on_page(list, entries, count);
}

static enum dctf_err tree_get(struct dctf_file_tree *tree, const char *key, const char *etag, size_t len)
{
    char buf[64] = "";
    struct dctf_origin_get get = {.key = key, .etag = etag, .size = len, .len = len, .buf = buf};
    atomic_bool cancelled = false;
    enum dctf_err err;
    size_t got;

    assert_true(len <= sizeof(buf));
    err = dctf_file_tree_get(tree, &get, &cancelled, &got);
    if (!err)
        assert_memory_equal(buf, "0123456789", len);
    return err;
}

static void check_key_rules(const struct world *world, bool walk)
{
    static const char *const hidden[] = {"linkdir", "linkdir/one", "dangling", "loop", "escape", "escapedir",
        "escapedir/secret", "sibling", "magic", "fifo", "nothing", "dir/one/below", "../out/secret",
        "dir/../dir/one", "./dir/one", "dir//one", "/dir/one", "dir/", ""};
    static const char *const files[] = {"dir/one", "dir/link", "absolute"};
    struct reply *reply = reply_new();
    struct dctf_origin_list list = {.dir = "", .page = tree_page, .ctx = reply};
    struct dctf_origin_entry entry;
    char etag[DCTF_FILE_ETAG_BYTES];
    atomic_bool cancelled = false;
    struct dctf_file_tree *tree;

    assert_int_equal(dctf_file_tree_new(at(world, "root"), walk, &tree), DCTF_OK);
    assert_int_equal(dctf_file_tree_list(tree, &list, &cancelled), DCTF_OK);
    assert_int_equal(reply->count, 3);
    assert_true(listed(reply, "dir/") && listed(reply, "empty") && listed(reply, "absolute"));
    reply->count = 0;
    list.dir = "dir";
    assert_int_equal(dctf_file_tree_list(tree, &list, &cancelled), DCTF_OK);
    assert_int_equal(reply->count, 2);
    assert_true(listed(reply, "one") && listed(reply, "link"));
    assert_int_equal(reply->sizes[0], 10);
    assert_int_equal(reply->sizes[1], 10);
    for (size_t i = 0; i < sizeof(hidden) / sizeof(hidden[0]); i++) {
        if (hidden[i][0] != '\0') /* as a directory, "" is the root */
            assert_int_equal(
                dctf_file_tree_list(tree, &(struct dctf_origin_list){.dir = hidden[i]}, &cancelled),
                DCTF_ERR_NOT_FOUND);
        assert_int_equal(tree_get(tree, hidden[i], "x", 1), DCTF_ERR_NOT_FOUND);
        if (hidden[i][0] != '\0')
            assert_int_equal(dctf_file_tree_head(tree, hidden[i], &entry, etag), DCTF_ERR_NOT_FOUND);
    }
    assert_int_equal(dctf_file_tree_list(tree, &(struct dctf_origin_list){.dir = "dir/one"}, &cancelled),
        DCTF_ERR_NOT_FOUND);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(dctf_file_tree_head(tree, files[i], &entry, etag), DCTF_OK);
        assert_false(entry.is_dir);
        assert_int_equal(entry.size, 10);
        assert_int_equal(tree_get(tree, files[i], etag, 10), DCTF_OK);
    }
    assert_int_equal(dctf_file_tree_head(tree, "dir", &entry, etag), DCTF_OK);
    assert_true(entry.is_dir);
    assert_string_equal(entry.name, "dir");
    dctf_file_tree_free(tree);
    free(reply);
}

static void test_keys_follow_the_rules(void **state)
{
    make_odd_things(*state);
    check_key_rules(*state, false);
}

static void test_keys_follow_the_rules_without_openat2(void **state)
{
    make_odd_things(*state);
    check_key_rules(*state, true);
}

static void test_keys_may_be_any_bytes(void **state)
{
    struct world *world = *state;
    char path[600];
    char key[300];

    memset(key, 'n', 255);
    key[255] = '\0';
    snprintf(path, sizeof(path), "%s/%s", at(world, "root"), key);
    write_file(path, "long", 4);
    assert_reads(world->origin, key, "long");
    memset(key, 'n', 256);
    key[256] = '\0';
    assert_int_equal(head_only(world->origin, key), DCTF_ERR_NAME_TOO_LONG);
    snprintf(path, sizeof(path), "%s/\xff\n\"%%s", at(world, "root"));
    write_file(path, "odd", 3);
    assert_reads(world->origin, "\xff\n\"%s", "odd");
}

/* --- list --- */

static void test_list_delivers_pages(void **state)
{
    struct world *world = *state;
    bool *seen = calloc(3500, sizeof(*seen));
    struct reply *reply;

    for (unsigned i = 0; i < 3500; i++) {
        char path[256];

        snprintf(path, sizeof(path), "%s/%u", at(world, "root/dir"), i);
        write_file(path, "", 0);
    }
    reply = start_list(world->origin, "dir", false);
    assert_int_equal(reply_wait(reply), DCTF_OK);
    assert_int_equal(reply->count, 3501);
    assert_int_equal(reply->pages, 4);
    for (size_t i = 0; i < reply->count; i++) {
        if (strcmp(reply->names[i], "one") == 0)
            continue;
        assert_false(seen[atoi(reply->names[i])]);
        seen[atoi(reply->names[i])] = true;
    }
    free(reply);
    free(seen);
}

static void test_list_stops(void **state)
{
    struct world *world = *state;
    struct reply *reply = reply_new();

    for (unsigned i = 0; i < 1500; i++) {
        char path[256];

        snprintf(path, sizeof(path), "%s/%u", at(world, "root/dir"), i);
        write_file(path, "", 0);
    }
    reply->stop = true;
    reply->list = (struct dctf_origin_list){.dir = "dir", .page = on_page, .done = on_list, .ctx = reply};
    assert_int_equal(world->origin->ops->list(world->origin, &reply->list), DCTF_OK);
    assert_int_equal(reply_wait(reply), DCTF_ERR_CANCELLED);
    assert_int_equal(reply->pages, 1);
    reply->stop = false;
    reply->done = 0;
    reply->cancel_on = world->origin; /* cancelled by another hand instead */
    assert_int_equal(world->origin->ops->list(world->origin, &reply->list), DCTF_OK);
    assert_int_equal(reply_wait(reply), DCTF_ERR_CANCELLED);
    assert_int_equal(reply->pages, 2);
    free(reply);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_refuses_other_sources),
        TEST(test_open_without_memory),
        TEST(test_check_says_what_is_wrong),
        TEST(test_keys_follow_the_rules),
        TEST(test_keys_follow_the_rules_without_openat2),
        TEST(test_keys_may_be_any_bytes),
        TEST(test_list_delivers_pages),
        TEST(test_list_stops),
    };

    dctf_log_set_level(DCTF_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
