/* SPDX-License-Identifier: Apache-2.0
 *
 * The in-memory store behaves as S3 where the reference-model tests rely on it.
 */
#include "lib/origin_memory.h"

#include "lib/origin_sync.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka needs the four above first */
#include <cmocka.h>

static int setup(void **state)
{
    struct dctf_origin_memory *memory;

    if (dctf_origin_memory_new(&memory))
        return -1;
    *state = memory;
    return 0;
}

static int teardown(void **state)
{
    struct dctf_origin *origin = dctf_origin_memory_base(*state);

    origin->ops->close(origin, 1000);
    return 0;
}

static void put(struct dctf_origin_memory *memory, const char *key, const char *text)
{
    assert_int_equal(dctf_origin_memory_put(memory, key, text, strlen(text)), DCTF_OK);
}

/* The listing of `dir` as "name name/ ", in the order told. */
static const char *listed(struct dctf_origin_memory *memory, const char *dir)
{
    static char out[512];
    struct dctf_sync_listing listing = {0};
    enum dctf_err err = dctf_origin_sync_list(dctf_origin_memory_base(memory), dir, &listing);

    out[0] = '\0';
    if (err)
        snprintf(out, sizeof(out), "%s", dctf_err_name(err));
    for (size_t i = 0; i < listing.count; i++) {
        strcat(out, listing.entries[i].name);
        strcat(out, listing.entries[i].is_dir ? "/ " : " ");
    }
    dctf_origin_sync_clear(&listing);
    return out;
}

static void test_list_groups_by_delimiter(void **state)
{
    static const size_t page_sizes[] = {1, 2, 1000};

    put(*state, "a", "1");
    put(*state, "a/b", "1");
    put(*state, "a/c/d", "1");
    put(*state, "a/c/e", "1");
    put(*state, "a-b/c", "1");
    put(*state, "z\xff\n", "1");
    put(*state, "mark/", "");
    put(*state, "odd//x", "1");
    for (size_t i = 0; i < 3; i++) {
        dctf_origin_memory_page_size(*state, page_sizes[i]);
        assert_string_equal(listed(*state, ""), "a a-b/ a/ mark/ odd/ z\xff\n ");
        assert_string_equal(listed(*state, "a"), "b c/ ");
        assert_string_equal(listed(*state, "a/c"), "d e ");
        assert_string_equal(listed(*state, "mark"), " ");
        assert_string_equal(listed(*state, "odd"), "/ ");
        assert_string_equal(listed(*state, "odd/"), "x ");
        assert_string_equal(listed(*state, "a/b"), "NOT_FOUND");
        assert_string_equal(listed(*state, "nothing"), "NOT_FOUND");
    }
}

static void test_list_of_an_empty_root(void **state)
{
    assert_string_equal(listed(*state, ""), "");
    put(*state, "a/b", "1");
    assert_int_equal(dctf_origin_memory_delete(*state, "a/b"), DCTF_OK);
    assert_int_equal(dctf_origin_memory_delete(*state, "a/b"), DCTF_ERR_NOT_FOUND);
    assert_string_equal(listed(*state, ""), "");
    assert_string_equal(listed(*state, "a"), "NOT_FOUND"); /* a prefix goes with its last key */
}

static void test_list_stops(void **state)
{
    struct dctf_sync_listing listing = {.stop_after = 1};

    put(*state, "a", "1");
    put(*state, "b", "1");
    dctf_origin_memory_page_size(*state, 1);
    assert_int_equal(
        dctf_origin_sync_list(dctf_origin_memory_base(*state), "", &listing), DCTF_ERR_CANCELLED);
    assert_int_equal(listing.count, 1);
    dctf_origin_sync_clear(&listing);
}

static void test_get_is_pinned_to_a_version(void **state)
{
    struct dctf_origin *origin = dctf_origin_memory_base(*state);
    struct dctf_origin_memory_counts counts;
    struct dctf_sync_entry entry;
    char etag[DCTF_ETAG_MAX + 1];
    char buf[8] = "";
    size_t got;

    put(*state, "k", "0123456789");
    assert_int_equal(dctf_origin_memory_etag(*state, "k", etag), DCTF_OK);
    assert_int_equal(dctf_origin_sync_head(origin, "k", &entry), DCTF_OK);
    assert_string_equal(entry.etag, etag);
    assert_int_equal(entry.size, 10);
    assert_int_equal(dctf_origin_sync_get(origin, "k", etag, 10, 3, buf, 4, &got), DCTF_OK);
    assert_int_equal(got, 4);
    assert_string_equal(buf, "3456");
    put(*state, "k", "0123456789"); /* the same bytes again are another version */
    assert_int_equal(dctf_origin_sync_get(origin, "k", etag, 10, 3, buf, 4, &got), DCTF_ERR_VERSION_MISMATCH);
    assert_int_equal(dctf_origin_memory_etag(*state, "k", etag), DCTF_OK);
    assert_int_equal(dctf_origin_sync_get(origin, "k", etag, 12, 8, buf, 4, &got), DCTF_ERR_SHORT_BODY);
    assert_int_equal(got, 2);
    assert_int_equal(dctf_origin_memory_delete(*state, "k"), DCTF_OK);
    assert_int_equal(dctf_origin_sync_get(origin, "k", etag, 10, 0, buf, 4, &got), DCTF_ERR_NOT_FOUND);
    assert_int_equal(dctf_origin_sync_head(origin, "k", NULL), DCTF_ERR_NOT_FOUND);
    assert_int_equal(dctf_origin_memory_etag(*state, "k", etag), DCTF_ERR_NOT_FOUND);
    dctf_origin_memory_counts(*state, &counts);
    assert_int_equal(counts.get, 4);
    assert_int_equal(counts.head, 2);
    assert_int_equal(counts.bytes, 6);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_list_groups_by_delimiter),
        TEST(test_list_of_an_empty_root),
        TEST(test_list_stops),
        TEST(test_get_is_pinned_to_a_version),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
