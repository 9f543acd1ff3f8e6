/* SPDX-License-Identifier: Apache-2.0
 *
 * Placement: balance, minimal movement, order, and vectors that every node must agree on.
 */
#include "cluster/view.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define EXTENTS 20000u

static struct dctf_node *make_nodes(size_t count)
{
    struct dctf_node *nodes = calloc(count, sizeof(*nodes));

    assert_non_null(nodes);
    for (size_t i = 0; i < count; i++) {
        snprintf(nodes[i].id, sizeof(nodes[i].id), "node-%zu", i);
        snprintf(nodes[i].addr, sizeof(nodes[i].addr), "10.0.0.%zu:7100", i);
        nodes[i].weight = 1u << 30;
        nodes[i].joined_ms = 1000 + i;
    }
    return nodes;
}

static struct dctf_view *build(const struct dctf_node *nodes, size_t count)
{
    struct dctf_view *view;

    assert_int_equal(dctf_view_build(nodes, count, "node-0", &view), DCTF_OK);
    return view;
}

static const char *home(const struct dctf_view *view, uint64_t extent)
{
    uint32_t at;

    assert_int_equal(dctf_view_rank(view, dctf_extent_key(7, "some/key", "etag", extent), &at, 1), 1);
    return dctf_view_node(view, at)->id;
}

static void test_build_sorts_and_finds(void **state)
{
    struct dctf_node *nodes = make_nodes(12);
    struct dctf_view *view;

    (void)state;
    assert_int_equal(dctf_view_build(nodes, 12, "node-7", &view), DCTF_OK);
    assert_int_equal(dctf_view_count(view), 12);
    assert_string_equal(dctf_view_node(view, dctf_view_self(view))->id, "node-7");
    for (uint32_t i = 1; i < 12; i++)
        assert_true(strcmp(dctf_view_node(view, i - 1)->id, dctf_view_node(view, i)->id) < 0);
    assert_int_equal(dctf_view_find(view, "nobody"), DCTF_NODE_NONE);
    dctf_view_unref(dctf_view_ref(view));
    dctf_view_unref(view);
    strcpy(nodes[3].id, nodes[4].id);
    assert_int_equal(dctf_view_build(nodes, 12, "", &view), DCTF_ERR_OPTION_VALUE);
    assert_null(view);
    assert_int_equal(dctf_view_build(nodes, DCTF_NODES_MAX + 1, "", &view), DCTF_ERR_OPTION_VALUE);
    free(nodes);
}

static void test_rank_of_nobody(void **state)
{
    struct dctf_node node = {.id = "reader"};
    struct dctf_view *view;
    uint32_t out[2];

    (void)state;
    assert_int_equal(dctf_view_build(NULL, 0, "", &view), DCTF_OK);
    assert_int_equal(dctf_view_self(view), DCTF_NODE_NONE);
    assert_int_equal(dctf_view_rank(view, 1, out, 2), 0);
    assert_int_equal(dctf_view_past_homes(view, 1, out, 2), 0);
    dctf_view_unref(view);
    assert_int_equal(dctf_view_build(&node, 1, "reader", &view), DCTF_OK);
    assert_int_equal(dctf_view_rank(view, 1, out, 2), 0);
    dctf_view_unref(view);
}

/* Every node has about its share: the standard deviation of a share is sqrt(mean). */
static void test_rank_balances(void **state)
{
    static const size_t sizes[] = {3, 8, 64};

    (void)state;
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        struct dctf_node *nodes = make_nodes(sizes[s]);
        struct dctf_view *view = build(nodes, sizes[s]);
        unsigned *counts = calloc(sizes[s], sizeof(*counts));
        double mean = (double)EXTENTS / (double)sizes[s];

        assert_non_null(counts);
        for (uint64_t x = 0; x < EXTENTS; x++)
            counts[dctf_view_find(view, home(view, x))]++;
        for (size_t i = 0; i < sizes[s]; i++) {
            assert_true(counts[i] > mean * 0.75);
            assert_true(counts[i] < mean * 1.25);
        }
        free(counts);
        dctf_view_unref(view);
        free(nodes);
    }
}

static void test_rank_follows_weights(void **state)
{
    struct dctf_node *nodes = make_nodes(5);
    struct dctf_view *view;
    unsigned counts[5] = {0};

    (void)state;
    nodes[1].weight *= 2;
    nodes[2].weight *= 100; /* capped at four medians */
    nodes[3].weight = 0;
    view = build(nodes, 5);
    for (uint64_t x = 0; x < EXTENTS; x++)
        counts[home(view, x)[5] - '0']++;
    /* Weights 1, 2, 4 × the median of 2 (1, 1, 2, 100: the third), 0, 1. */
    assert_int_equal(counts[3], 0);
    assert_in_range(counts[0], EXTENTS / 12 * 9 / 10, EXTENTS / 12 * 11 / 10);
    assert_in_range(counts[1], EXTENTS / 6 * 9 / 10, EXTENTS / 6 * 11 / 10);
    assert_in_range(counts[2], EXTENTS / 3 * 2 * 9 / 10, EXTENTS / 3 * 2 * 11 / 10);
    dctf_view_unref(view);
    free(nodes);
}

/* Who leaves gives away its own and nothing else moves; who joins takes from all. */
static void test_remove_moves_only_its_own(void **state)
{
    struct dctf_node *nodes = make_nodes(16);
    struct dctf_view *all = build(nodes, 16), *fewer = build(nodes, 15);
    unsigned moved = 0;

    (void)state;
    for (uint64_t x = 0; x < EXTENTS; x++) {
        const char *before = home(all, x), *after = home(fewer, x);

        if (!strcmp(before, "node-15"))
            moved++;
        else
            assert_string_equal(before, after);
    }
    assert_true(moved < EXTENTS * 12 / 10 / 16);
    assert_true(moved > EXTENTS * 8 / 10 / 16);
    assert_true(dctf_view_hash(all) != dctf_view_hash(fewer));
    dctf_view_unref(all);
    dctf_view_unref(fewer);
    free(nodes);
}

static void test_address_moves_nothing(void **state)
{
    struct dctf_node *nodes = make_nodes(6);
    struct dctf_view *before = build(nodes, 6), *after;

    (void)state;
    strcpy(nodes[2].addr, "192.0.2.1:1");
    nodes[2].incarnation = 9;
    after = build(nodes, 6);
    assert_true(dctf_view_hash(before) == dctf_view_hash(after));
    for (uint64_t x = 0; x < 1000; x++)
        assert_string_equal(home(before, x), home(after, x));
    dctf_view_unref(before);
    dctf_view_unref(after);
    free(nodes);
}

static void test_rank_is_ordered_and_cuts_alike(void **state)
{
    struct dctf_node *nodes = make_nodes(20);
    struct dctf_view *view = build(nodes, 20);
    uint32_t three[3], ten[10];

    (void)state;
    for (uint64_t x = 0; x < 1000; x++) {
        uint64_t key = dctf_extent_key(1, "k", "e", x);

        assert_int_equal(dctf_view_rank(view, key, three, 3), 3);
        assert_int_equal(dctf_view_rank(view, key, ten, 10), 10);
        assert_memory_equal(three, ten, sizeof(three));
    }
    dctf_view_unref(view);
    free(nodes);
}

static void test_replicas_spread(void **state)
{
    struct dctf_node *nodes = make_nodes(12);
    struct dctf_view *view;

    (void)state;
    for (size_t i = 0; i < 12; i++) { /* two nodes a host, four a rack */
        snprintf(nodes[i].host, sizeof(nodes[i].host), "host-%zu", i / 2);
        snprintf(nodes[i].rack, sizeof(nodes[i].rack), "rack-%zu", i / 4);
    }
    view = build(nodes, 12);
    for (uint64_t x = 0; x < 1000; x++) {
        uint64_t key = dctf_extent_key(1, "k", "e", x);
        uint32_t out[12], first;

        assert_int_equal(dctf_view_rank(view, key, &first, 1), 1);
        assert_int_equal(dctf_view_replicas(view, key, out, 3), 3);
        assert_int_equal(out[0], first);
        for (size_t a = 0; a < 3; a++) {
            for (size_t b = 0; b < a; b++)
                assert_string_not_equal(
                    dctf_view_node(view, out[a])->rack, dctf_view_node(view, out[b])->rack);
        }
        /* More copies than racks and hosts: all nodes, each once. */
        assert_int_equal(dctf_view_replicas(view, key, out, 12), 12);
        for (size_t a = 0; a < 12; a++) {
            for (size_t b = 0; b < a; b++)
                assert_true(out[a] != out[b]);
        }
    }
    dctf_view_unref(view);
    free(nodes);
}

/* A rack with few of the members is found also when none of the best has its place there. */
static void test_replicas_find_the_small_rack(void **state)
{
    enum { COUNT = 200, SMALL = 4 };
    struct dctf_node *nodes = make_nodes(COUNT);
    struct dctf_view *view;

    (void)state;
    for (size_t i = 0; i < COUNT; i++) {
        snprintf(nodes[i].host, sizeof(nodes[i].host), "host-%zu", i);
        snprintf(nodes[i].rack, sizeof(nodes[i].rack), "rack-%d", i < SMALL ? 0 : (int)(1 + i % 2));
    }
    view = build(nodes, COUNT);
    for (uint64_t x = 0; x < 300; x++) {
        uint64_t key = dctf_extent_key(1, "k", "e", x);
        uint32_t out[3], ranked[16], best = DCTF_NODE_NONE;
        unsigned racks = 0;

        assert_int_equal(dctf_view_replicas(view, key, out, 3), 3);
        for (size_t i = 0; i < 3; i++)
            racks |= 1u << (dctf_view_node(view, out[i])->rack[5] - '0');
        assert_int_equal(racks, 7);
        /* By score as long as the rack is among the best. */
        assert_int_equal(dctf_view_rank(view, key, ranked, 16), 16);
        assert_int_equal(out[0], ranked[0]);
        for (size_t i = 1; i < 16 && best == DCTF_NODE_NONE; i++) {
            if (strcmp(dctf_view_node(view, ranked[i])->rack, dctf_view_node(view, ranked[0])->rack) != 0)
                best = ranked[i];
        }
        if (best != DCTF_NODE_NONE)
            assert_int_equal(out[1], best);
    }
    dctf_view_unref(view);
    free(nodes);
}

/* Replays the growth: the home of each size is the present one or in the chain, in order. */
static void test_past_homes_replay_the_growth(void **state)
{
    struct dctf_node *nodes = make_nodes(40);
    struct dctf_view *full = build(nodes, 40);
    size_t longest = 0;

    (void)state;
    for (uint64_t x = 0; x < 300; x++) {
        uint64_t key = dctf_extent_key(7, "some/key", "etag", x);
        uint32_t chain[64];
        size_t count = dctf_view_past_homes(full, key, chain, 64), expected = 0;
        const char *last = home(full, x);

        for (size_t members = 39; members > 0; members--) {
            struct dctf_view *then = build(nodes, members);
            const char *at = home(then, x);

            if (strcmp(at, last) != 0) {
                assert_true(expected < count);
                assert_string_equal(dctf_view_node(full, chain[expected])->id, at);
                last = dctf_view_node(full, chain[expected++])->id;
            }
            dctf_view_unref(then);
        }
        assert_int_equal(expected, count);
        if (count > longest)
            longest = count;
    }
    assert_in_range(longest, 5, 14); /* ln 40 = 3.7 on the average */
    nodes[5].joined_ms = 0;
    dctf_view_unref(full);
    full = build(nodes, 40);
    assert_int_equal(dctf_view_past_homes(full, 1, &(uint32_t){0}, 1), 0);
    dctf_view_unref(full);
    free(nodes);
}

/* A change of these is a change of the protocol: raise LAYOUT_VERSION. */
static void test_vectors(void **state)
{
    struct dctf_node *nodes = make_nodes(5);
    struct dctf_view *view = build(nodes, 5);
    char order[64] = "";
    uint32_t out[5];

    (void)state;
    for (uint64_t x = 0; x < 3; x++) {
        assert_int_equal(dctf_view_rank(view, dctf_extent_key(42, "a/b", "e1", x), out, 5), 5);
        for (size_t i = 0; i < 5; i++)
            strcat(order, dctf_view_node(view, out[i])->id + 5);
        strcat(order, " ");
    }
    assert_string_equal(order, "01234 23140 43102 ");
    dctf_view_unref(view);
    free(nodes);
}

/* --- near and far --- */

static struct dctf_view *view_of_zones(const char *own_zone)
{
    static const struct dctf_node others[] = {
        {.id = "b", .addr = "10.0.0.2:1", .zone = "z1", .rack = "r1", .weight = 1},
        {.id = "c", .addr = "10.0.0.3:1", .zone = "z1", .rack = "r2", .weight = 1},
        {.id = "d", .addr = "10.0.0.4:1", .zone = "z2", .rack = "r1", .weight = 1},
        {.id = "e", .addr = "10.0.0.1:2", .weight = 1},
        {.id = "f", .addr = "10.0.0.5:1", .weight = 1},
    };
    struct dctf_node nodes[6] = {{.id = "a", .addr = "10.0.0.1:1", .rack = "r1", .weight = 1}};
    struct dctf_view *view;

    strcpy(nodes[0].zone, own_zone);
    memcpy(nodes + 1, others, sizeof(others));
    assert_int_equal(dctf_view_build(nodes, 6, "a", &view), DCTF_OK);
    return view;
}

static void test_near(void **state)
{
    static const enum dctf_near expected[] = {DCTF_NEAR_HOST, DCTF_NEAR_RACK, DCTF_NEAR_ZONE,
        DCTF_NEAR_OTHER_ZONE, DCTF_NEAR_HOST, DCTF_NEAR_UNKNOWN};
    struct dctf_view *view = view_of_zones("z1");

    (void)state;
    for (uint32_t i = 0; i < 6; i++)
        assert_int_equal(dctf_view_near(view, i), expected[i]);
    dctf_view_unref(view);
    view = view_of_zones("");
    assert_int_equal(dctf_view_near(view, 2), DCTF_NEAR_UNKNOWN);
    assert_int_equal(dctf_view_near(view, 3), DCTF_NEAR_RACK);
    dctf_view_unref(view);
}

static void test_within_zone(void **state)
{
    struct dctf_view *view = view_of_zones("z1"), *own;
    unsigned homes[6] = {0};
    uint32_t ranks[6];

    (void)state;
    assert_int_equal(dctf_view_within_zone(view, &own), DCTF_OK);
    assert_true(dctf_view_hash(own) == dctf_view_hash(view));
    assert_int_equal(dctf_view_count(own), 6);
    for (uint64_t extent = 0; extent < 300; extent++) {
        uint64_t key = dctf_extent_key(1, "k", "e", extent);

        assert_int_equal(dctf_view_rank(own, key, ranks, 6), 3);
        homes[ranks[0]]++;
    }
    for (uint32_t i = 0; i < 6; i++)
        assert_true(i < 3 ? homes[i] > 50 : homes[i] == 0);
    dctf_view_unref(own);
    dctf_view_unref(view);
    view = view_of_zones("");
    assert_int_equal(dctf_view_within_zone(view, &own), DCTF_OK);
    assert_ptr_equal(own, view);
    dctf_view_unref(own);
    dctf_view_unref(view);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_build_sorts_and_finds),
        cmocka_unit_test(test_rank_of_nobody),
        cmocka_unit_test(test_rank_balances),
        cmocka_unit_test(test_rank_follows_weights),
        cmocka_unit_test(test_remove_moves_only_its_own),
        cmocka_unit_test(test_address_moves_nothing),
        cmocka_unit_test(test_rank_is_ordered_and_cuts_alike),
        cmocka_unit_test(test_replicas_spread),
        cmocka_unit_test(test_replicas_find_the_small_rack),
        cmocka_unit_test(test_past_homes_replay_the_growth),
        cmocka_unit_test(test_near),
        cmocka_unit_test(test_within_zone),
        cmocka_unit_test(test_vectors),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
