/* SPDX-License-Identifier: Apache-2.0
 *
 * Who is left out, judged by what all say; and the records that carry it.
 */
#include "base/clock.h"
#include "cluster/coordinator_record.h"
#include "cluster/exclusion.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define AFTER_MS 60000u
#define MOST 40u

/* Members "n0", "n1" …; misses[a][b]: for so long a has not reached b. */
struct world {
    size_t count;
    struct dctf_node nodes[MOST];
    uint64_t misses[MOST][MOST];
    bool out[MOST]; /* the judgement */
    size_t out_count;
    struct dctf_exclusion_times times;
};

static void make(struct world *world, size_t count)
{
    memset(world, 0, sizeof(*world));
    world->times.after_ms = AFTER_MS;
    world->count = count;
    for (size_t i = 0; i < count; i++) {
        snprintf(world->nodes[i].id, sizeof(world->nodes[i].id), "n%zu", i);
        world->nodes[i].weight = 100;
    }
}

static void cut(struct world *world, size_t a, size_t b)
{
    world->misses[a][b] = world->misses[b][a] = AFTER_MS;
}

/* One that reaches nobody, and that nobody reaches. */
static void cut_off(struct world *world, size_t node)
{
    for (size_t i = 0; i < world->count; i++) {
        if (i != node)
            cut(world, node, i);
    }
}

static void judge(struct world *world)
{
    struct dctf_unreached_report reports[MOST];
    struct dctf_unreached entries[MOST][MOST];
    uint64_t *out;

    for (size_t a = 0; a < world->count; a++) {
        reports[a] = (struct dctf_unreached_report){
            .node = dctf_exclusion_id(world->nodes[a].id), .entries = entries[a]};
        for (size_t b = 0; b < world->count; b++) {
            if (world->misses[a][b])
                entries[a][reports[a].count++] =
                    (struct dctf_unreached){dctf_exclusion_id(world->nodes[b].id), world->misses[a][b]};
        }
    }
    assert_int_equal(dctf_exclusion_judge(world->nodes, world->count, reports, world->count, &world->times,
                         &out, &world->out_count),
        DCTF_OK);
    for (size_t i = 0; i < world->count; i++)
        world->out[i] = dctf_exclusion_has(out, world->out_count, dctf_exclusion_id(world->nodes[i].id));
    free(out);
}

static void test_leave_out_who_is_cut_off(void **state)
{
    struct world world;

    (void)state;
    for (size_t count = 3; count <= MOST; count++) {
        make(&world, count);
        cut_off(&world, count - 1);
        judge(&world);
        assert_int_equal(world.out_count, 1);
        assert_true(world.out[count - 1]);
    }
}

static void test_leave_out_not_before_time(void **state)
{
    struct world world;

    (void)state;
    make(&world, 5);
    cut_off(&world, 2);
    world.misses[0][2] = world.misses[1][2] = AFTER_MS - 1; /* 2 of 4 are not more than half */
    judge(&world);
    assert_int_equal(world.out_count, 0);
    world.misses[1][2] = AFTER_MS;
    judge(&world);
    assert_int_equal(world.out_count, 1);
}

/* A pair of two has one voice each; and one that complains of everybody is the one that is cut off. */
static void test_act_on_no_single_word(void **state)
{
    struct world world;

    (void)state;
    make(&world, 2);
    cut(&world, 0, 1);
    judge(&world);
    assert_int_equal(world.out_count, 0);
    make(&world, 5);
    for (size_t i = 1; i < 5; i++)
        world.misses[0][i] = AFTER_MS; /* they reach it */
    judge(&world);
    assert_int_equal(world.out_count, 0);
}

/* Who is left out has no say: with its word a second one would go that only one other misses. */
static void test_do_not_hear_who_is_left_out(void **state)
{
    struct world world;

    (void)state;
    make(&world, 4);
    cut_off(&world, 0);
    world.misses[1][2] = AFTER_MS;
    judge(&world);
    assert_int_equal(world.out_count, 1);
    assert_true(world.out[0]);
}

static void test_leave_out_a_minority_alone(void **state)
{
    struct world world;

    (void)state;
    for (size_t count = 3; count <= 12; count++) {
        for (size_t side = 1; side < count; side++) { /* those on this side do not reach those on the other */
            make(&world, count);
            for (size_t a = 0; a < side; a++) {
                for (size_t b = side; b < count; b++)
                    cut(&world, a, b);
            }
            judge(&world);
            for (size_t i = 0; i < count; i++) {
                bool smaller = i < side ? 2 * side < count : 2 * (count - side) < count;

                assert_int_equal(world.out[i], smaller);
            }
        }
    }
}

/* Those that are missed later will be as many. */
static void test_count_who_was_missed_later(void **state)
{
    struct world world;

    (void)state;
    make(&world, 6);
    for (size_t i = 0; i < 3; i++)
        cut_off(&world, i);
    for (size_t from = 0; from < 6; from++) {
        for (size_t i = 1; i < 3; i++) {
            if (world.misses[from][i])
                world.misses[from][i] = 1;
        }
    }
    judge(&world);
    assert_int_equal(world.out_count, 0);
    for (size_t from = 0; from < 6; from++) /* one of them is back */
        world.misses[from][2] = world.misses[2][from] = 0;
    world.times.now_ms = AFTER_MS - 1;
    judge(&world);
    assert_int_equal(world.out_count, 0); /* the others may be back as well in a moment */
    world.times.now_ms = AFTER_MS;
    judge(&world);
    assert_int_equal(world.out_count, 1);
    assert_true(world.out[0]);
}

static void test_leave_readers_in(void **state)
{
    struct world world;

    (void)state;
    make(&world, 6);
    world.nodes[3].weight = 0; /* nobody's home */
    cut_off(&world, 3);
    judge(&world);
    assert_int_equal(world.out_count, 0);
    /* Two of three that serve are more than a minority, whoever else there is. */
    make(&world, 12);
    for (size_t i = 3; i < 12; i++)
        world.nodes[i].weight = 0;
    cut_off(&world, 0);
    judge(&world);
    assert_int_equal(world.out_count, 1);
    cut_off(&world, 1);
    judge(&world);
    assert_int_equal(world.out_count, 0);
}

/* Whatever they say. */
static void test_hold_in_any_world(void **state)
{
    struct dctf_rng rng = {.state = 7};
    unsigned some = 0;

    (void)state;
    for (unsigned turn = 0; turn < 20000; turn++) {
        struct world world;
        size_t serving = 0;
        uint64_t dense = dctf_rng_below(&rng, 100);

        make(&world, 1 + dctf_rng_below(&rng, 12));
        for (size_t a = 0; a < world.count; a++) {
            world.nodes[a].weight = dctf_rng_below(&rng, 5);
            serving += world.nodes[a].weight != 0;
            for (size_t b = 0; b < world.count; b++)
                world.misses[a][b] =
                    a != b && dctf_rng_below(&rng, 100) < dense ? dctf_rng_below(&rng, 2 * AFTER_MS) : 0;
        }
        judge(&world);
        some += world.out_count != 0;
        assert_true(!world.out_count || 2 * world.out_count < serving);
        for (size_t b = 0; b < world.count; b++) {
            size_t voices = 0, others = 0;

            for (size_t a = 0; a < world.count; a++) {
                others += a != b;
                voices += world.misses[a][b] >= AFTER_MS;
            }
            if (world.out[b]) {
                assert_true(voices >= 2);
                assert_true(2 * voices + 2 * world.out_count > others);
            }
        }
    }
    assert_true(some > 100);
}

static void test_apply(void **state)
{
    struct world world;
    uint64_t ids[3];

    (void)state;
    make(&world, 5);
    ids[0] = dctf_exclusion_id("n1");
    dctf_exclusion_apply(world.nodes, 5, ids, 1);
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(world.nodes[i].excluded, i == 1);
        assert_int_equal(world.nodes[i].weight, i == 1 ? 0 : 100);
    }
    /* Half, or more, is nonsense whoever says so. */
    make(&world, 2);
    dctf_exclusion_apply(world.nodes, 2, ids, 1);
    assert_true(!world.nodes[1].excluded && world.nodes[1].weight == 100);
    dctf_exclusion_apply(world.nodes, 2, NULL, 0);
    assert_false(world.nodes[0].excluded);
}

static void test_record_unreached(void **state)
{
    static unsigned char record[DCTF_COORDINATOR_RECORD_MAX];
    static struct dctf_unreached entries[DCTF_UNREACHED_MAX], again[DCTF_UNREACHED_MAX];
    size_t len, count;

    (void)state;
    for (size_t i = 0; i < DCTF_UNREACHED_MAX; i++)
        entries[i] = (struct dctf_unreached){i * i + 3, i};
    entries[7].ms = UINT64_MAX;
    len = dctf_unreached_encode(entries, DCTF_UNREACHED_MAX, record);
    assert_true(dctf_unreached_decode(record, len, again, &count));
    assert_int_equal(count, DCTF_UNREACHED_MAX);
    assert_true(again[7].ms == UINT32_MAX && again[511].node == entries[511].node && again[511].ms == 511);
    for (size_t i = 0; i < len; i++) {
        record[i] ^= 1;
        assert_false(dctf_unreached_decode(record, len, again, &count));
        record[i] ^= 1;
    }
    assert_false(dctf_unreached_decode(record, len - 1, again, &count));
    entries[1].node = entries[0].node;
    len = dctf_unreached_encode(entries, 2, record);
    assert_false(dctf_unreached_decode(record, len, again, &count)); /* not in order */
    len = dctf_unreached_encode(entries, 0, record);
    assert_true(dctf_unreached_decode(record, len, again, &count) && !count);
}

static void test_record_excluded(void **state)
{
    static unsigned char record[DCTF_COORDINATOR_RECORD_MAX];
    static uint64_t nodes[DCTF_EXCLUDED_MAX], again[DCTF_EXCLUDED_MAX];
    struct dctf_excluded_head head = {.fence = 1700000000000, .version = 3, .count = DCTF_EXCLUDED_MAX}, got;
    size_t len;

    (void)state;
    for (size_t i = 0; i < DCTF_EXCLUDED_MAX; i++)
        nodes[i] = i * 5;
    len = dctf_excluded_encode(&head, nodes, record);
    assert_true(dctf_excluded_decode(record, len, &got, again));
    assert_memory_equal(&got, &head, sizeof(head));
    assert_memory_equal(again, nodes, sizeof(nodes));
    for (size_t i = 0; i < len; i += 7) {
        record[i] ^= 128;
        assert_false(dctf_excluded_decode(record, len, &got, again));
        record[i] ^= 128;
    }
    head.fence = DCTF_FENCE_MAX + 1;
    len = dctf_excluded_encode(&head, nodes, record);
    assert_false(dctf_excluded_decode(record, len, &got, again));
    nodes[9] = 0;
    head.fence = 1;
    len = dctf_excluded_encode(&head, nodes, record);
    assert_false(dctf_excluded_decode(record, len, &got, again));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_leave_out_who_is_cut_off),
        cmocka_unit_test(test_leave_out_not_before_time),
        cmocka_unit_test(test_act_on_no_single_word),
        cmocka_unit_test(test_do_not_hear_who_is_left_out),
        cmocka_unit_test(test_leave_out_a_minority_alone),
        cmocka_unit_test(test_count_who_was_missed_later),
        cmocka_unit_test(test_leave_readers_in),
        cmocka_unit_test(test_hold_in_any_world),
        cmocka_unit_test(test_apply),
        cmocka_unit_test(test_record_unreached),
        cmocka_unit_test(test_record_excluded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
