/* SPDX-License-Identifier: Apache-2.0
 *
 * A store in which some extents are this node's share and the rest are copies.
 */
#include "cache/state.h"
#include "store_fixture.h"

#include <stdatomic.h>

#define EXTENT_BYTES ((uint64_t)DCTF_EXTENT_BLOCKS * DCTF_BLOCK_BYTES)
#define ROUNDS_MS 120000u /* for what RocksDB does in the background, however busy the machine */

/* Keys in "mine/" are the share, in "spare/" spare; of "both/" the even extents are the share, and of
 * "pieces/" every other MiB. */
static enum dctf_claim by_directory(
    void *ctx, const struct dctf_version *version, uint32_t first, uint32_t count)
{
    atomic_uint *asked = ctx;

    (void)count;
    atomic_fetch_add(asked, 1);
    if (!strncmp(version->key, "mine/", 5))
        return DCTF_CLAIM_SHARE;
    if (!strncmp(version->key, "spare/", 6))
        return DCTF_CLAIM_SPARE;
    if (!strncmp(version->key, "pieces/", 7))
        return first / DCTF_SHARE_STEP % 2 == 0 ? DCTF_CLAIM_SHARE : DCTF_CLAIM_COPY;
    return !strncmp(version->key, "both/", 5) && first / DCTF_EXTENT_BLOCKS % 2 == 0 ? DCTF_CLAIM_SHARE
                                                                                     : DCTF_CLAIM_COPY;
}

static enum dctf_claim all_copies(
    void *ctx, const struct dctf_version *version, uint32_t first, uint32_t count)
{
    (void)ctx;
    (void)version;
    (void)first;
    (void)count;
    return DCTF_CLAIM_COPY;
}

static atomic_uint asked;

static void open_with(struct fixture *fx, uint64_t size_bytes)
{
    fx->size_bytes = size_bytes;
    fixture_reopen(fx);
    dctf_store_set_share(fx->store, by_directory, &asked);
}

static struct dctf_shard *get_numbered(struct fixture *fx, const char *dir, int i, uint64_t size)
{
    char key[48];

    snprintf(key, sizeof(key), "%s/%d", dir, i);
    return get_shard(fx, key, size);
}

/* Open `times` times, and write what is missing; whether all of it was kept. */
static bool offer(struct fixture *fx, const char *dir, int i, uint64_t size, int times)
{
    struct dctf_shard *shard = get_numbered(fx, dir, i, size);
    bool kept;

    for (int k = 0; k < times; k++)
        dctf_shard_touch(shard);
    kept = write_all_blocks(shard);
    dctf_shard_put(shard);
    return kept;
}

/* How many of the first `count` are here wholly. */
static unsigned count_complete(struct fixture *fx, const char *dir, int count, uint64_t size)
{
    unsigned complete = 0;

    for (int i = 0; i < count; i++) {
        struct dctf_shard *shard = get_numbered(fx, dir, i, size);

        complete += dctf_shard_is_complete(shard);
        dctf_shard_put(shard);
    }
    return complete;
}

static void test_keep_copies_while_there_is_room(void **state)
{
    struct fixture *fx = *state;

    open_with(fx, 64 * MIB);
    for (int i = 0; i < 5; i++)
        assert_true(offer(fx, "copy", i, 5 * MIB, 1));
}

/* Hot as they may be. */
static void test_share_evicts_copies(void **state)
{
    struct fixture *fx = *state;

    open_with(fx, 64 * MIB);
    for (int i = 0; i < 16; i++)
        (void)offer(fx, "copy", i, 5 * MIB, 6);
    for (int i = 0; i < 9; i++)
        assert_true(offer(fx, "mine", i, 5 * MIB, 1));
    assert_int_equal(count_complete(fx, "mine", 9, 5 * MIB), 9);
    assert_true(disk_usage(fx) <= 64 * MIB);
}

static void test_copy_never_evicts_the_share(void **state)
{
    struct fixture *fx = *state;
    unsigned kept = 0;

    open_with(fx, 64 * MIB);
    for (int i = 0; i < 16; i++)
        kept += offer(fx, "mine", i, 5 * MIB, 1);
    assert_true(kept >= 9);
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < 4; i++)
            assert_false(offer(fx, "copy", i, 5 * MIB, 5));
    }
    assert_int_equal(count_complete(fx, "mine", 16, 5 * MIB), kept);
}

static void test_hotter_copy_evicts_a_colder_one(void **state)
{
    struct fixture *fx = *state;
    bool kept = false;

    open_with(fx, 64 * MIB);
    for (int i = 0; i < 16; i++)
        (void)offer(fx, "copy", i, 5 * MIB, 1);
    for (int i = 0; i < 50 && !kept; i++)
        kept = offer(fx, "hot", 0, 5 * MIB, 1);
    assert_true(kept);
}

/* A full share is held by the rule of one node: a hotter one gets in, one as cold does not. */
static void test_share_against_share_is_admissions(void **state)
{
    struct fixture *fx = *state;
    bool kept = false;

    open_with(fx, 64 * MIB);
    for (int i = 0; i < 16; i++)
        (void)offer(fx, "mine", i, 5 * MIB, 2);
    assert_false(offer(fx, "mine", 100, 5 * MIB, 1));
    for (int i = 0; i < 50 && !kept; i++)
        kept = offer(fx, "mine", 101, 5 * MIB, 1);
    assert_true(kept);
}

static void test_only_copies_of_a_mixed_file_are_punched(void **state)
{
    struct fixture *fx = *state;
    struct dctf_shard *mixed;

    open_with(fx, 96 * MIB);
    mixed = get_shard(fx, "both/0", 64 * MIB);
    assert_true(write_all_blocks(mixed));
    for (int i = 0; i < 8; i++)
        (void)offer(fx, "mine", i, 5 * MIB, 1);
    for (uint32_t extent = 0; extent < 8; extent += 2)
        assert_int_equal(dctf_shard_count_present(mixed, extent * DCTF_EXTENT_BLOCKS, DCTF_EXTENT_BLOCKS),
            DCTF_EXTENT_BLOCKS);
    assert_true(dctf_shard_present_bytes(mixed) < 64 * MIB);
    assert_true(dctf_shard_present_bytes(mixed) % EXTENT_BYTES == 0); /* whole extents go */
    assert_int_equal(count_complete(fx, "mine", 8, 5 * MIB), 8);
    dctf_shard_put(mixed);
}

/* That its copies are not kept says nothing of the extents that are ours. */
static void test_verdicts_do_not_leak(void **state)
{
    struct fixture *fx = *state;
    struct dctf_shard *mixed;
    int i = 0;

    open_with(fx, 64 * MIB);
    while (i < 7 && offer(fx, "mine", i, 5 * MIB, 1)) /* room is left, for copies */
        i++;
    for (int k = 0; k < 16; k++)
        (void)offer(fx, "copy", k, 5 * MIB, 3);
    mixed = get_shard(fx, "both/0", 16 * MIB);
    dctf_shard_touch(mixed);
    assert_false(write_blocks(mixed, DCTF_EXTENT_BLOCKS, DCTF_EXTENT_BLOCKS)); /* as cold as none */
    assert_true(write_blocks(mixed, 0, DCTF_EXTENT_BLOCKS));
    assert_false(write_blocks(mixed, DCTF_EXTENT_BLOCKS, DCTF_EXTENT_BLOCKS));
    dctf_shard_put(mixed);
}

/* Where a run of blocks that have one claim ends. */
static uint32_t run_end(struct dctf_shard *shard, uint32_t first, enum dctf_claim expected)
{
    uint32_t end;

    assert_int_equal(dctf_share_claim(shard, first, DCTF_EXTENT_BLOCKS, &end), expected);
    return end;
}

/* What is written at once need not be one thing. */
static void test_a_write_is_cut_by_claim(void **state)
{
    struct fixture *fx = *state;
    struct dctf_shard *mine, *mixed;

    open_with(fx, 64 * MIB);
    mine = get_shard(fx, "mine/0", 8 * MIB);
    mixed = get_shard(fx, "pieces/0", 8 * MIB);
    assert_int_equal(run_end(mine, 0, DCTF_CLAIM_SHARE), DCTF_EXTENT_BLOCKS);
    assert_int_equal(run_end(mixed, 0, DCTF_CLAIM_SHARE), DCTF_SHARE_STEP);
    assert_int_equal(run_end(mixed, 1, DCTF_CLAIM_SHARE), DCTF_SHARE_STEP);
    assert_int_equal(run_end(mixed, DCTF_SHARE_STEP, DCTF_CLAIM_COPY), 2 * DCTF_SHARE_STEP);
    assert_int_equal(run_end(mixed, DCTF_EXTENT_BLOCKS - 1, DCTF_CLAIM_COPY), DCTF_EXTENT_BLOCKS);
    dctf_store_set_share(fx->store, NULL, NULL);
    assert_int_equal(run_end(mixed, 0, DCTF_CLAIM_SHARE), DCTF_EXTENT_BLOCKS);
    dctf_shard_put(mine);
    dctf_shard_put(mixed);
}

static void test_spare_is_between_the_two(void **state)
{
    struct fixture *fx = *state;
    unsigned kept = 0;

    open_with(fx, 64 * MIB);
    for (int i = 0; i < 16; i++)
        (void)offer(fx, "copy", i, 5 * MIB, 6);
    for (int i = 0; i < 16; i++) /* in the place of copies, not of each other */
        kept += offer(fx, "spare", i, 5 * MIB, 1);
    assert_true(kept >= 9);
    assert_int_equal(count_complete(fx, "spare", 16, 5 * MIB), kept);
    for (int i = 0; i < 9; i++)
        assert_true(offer(fx, "mine", i, 5 * MIB, 1));
    assert_false(offer(fx, "spare", 100, 5 * MIB, 9));
    assert_true(dctf_store_spare_is_full(fx->store));
    assert_int_equal(count_complete(fx, "mine", 9, 5 * MIB), 9);
}

/* A run of blocks that has no room as a whole: what fits is kept, if nobody else may have room for it. */
static void test_last_room_takes_pieces_of_the_share(void **state)
{
    struct fixture *fx = *state;
    struct dctf_shard *mine, *copy;

    open_with(fx, 20 * MIB);
    assert_true(offer(fx, "mine", 0, 12 * MIB, 1));
    assert_false(dctf_store_spare_is_full(fx->store));
    copy = get_numbered(fx, "copy", 1, 8 * MIB);
    assert_false(write_all_blocks(copy));
    assert_int_equal(dctf_shard_count_present(copy, 0, DCTF_EXTENT_BLOCKS), 0);
    mine = get_numbered(fx, "mine", 1, 8 * MIB);
    assert_false(write_all_blocks(mine));
    assert_in_range(dctf_shard_count_present(mine, 0, DCTF_EXTENT_BLOCKS), 1, DCTF_EXTENT_BLOCKS - 1);
    dctf_shard_put(copy);
    dctf_shard_put(mine);
}

/* Small shards give their bytes back later: in a few rounds the share is here all the same. */
static void test_share_of_small_shards_gets_in(void **state)
{
    struct fixture *fx = *state;
    unsigned here = 0;

    open_with(fx, 32 * MIB);
    for (int i = 0; i < 400; i++)
        (void)offer(fx, "copy", i, 256 * 1024, 3);
    for (uint64_t until_ms = dctf_clock_mono_ms(NULL) + ROUNDS_MS;
         here < 90 && dctf_clock_mono_ms(NULL) < until_ms;) {
        for (int i = 0; i < 90; i++)
            (void)offer(fx, "mine", i, 256 * 1024, 1);
        fx->now_ms += 3600000; /* collections are paced, the longer the less they give back */
        dctf_store_maintain(fx->store);
        here = count_complete(fx, "mine", 90, 256 * 1024);
    }
    assert_int_equal(here, 90);
    assert_true(disk_usage(fx) <= 32 * MIB);
}

/* Readers' copies of small shards leave room while the share grows, and take it when it does not. */
static void test_small_copies_wait_for_the_share(void **state)
{
    struct fixture *fx = *state;
    unsigned first = 0;

    open_with(fx, 64 * MIB);
    for (int i = 0; i < 100; i++) {
        assert_true(offer(fx, "mine", i, 200 * 1024, 1));
        first += offer(fx, "copy", i, 200 * 1024, 1);
    }
    assert_true(first > 10);
    assert_true(first < 80); /* a quarter of the cap holds about forty pairs */
    for (int round = 0; round < 8; round++) {
        for (int i = 0; i < 100; i++)
            (void)offer(fx, "copy", i, 200 * 1024, 1);
    }
    assert_int_equal(count_complete(fx, "copy", 100, 200 * 1024), 100);
}

static void test_expected_copies_do_not_wait(void **state)
{
    struct fixture *fx = *state;

    open_with(fx, 64 * MIB);
    for (int i = 0; i < 200; i++)
        assert_true(offer(fx, "mine", i, 200 * 1024, 1));
    assert_false(offer(fx, "copy", 0, 200 * 1024, 1));
    for (int i = 1; i < 20; i++) {
        struct dctf_shard *shard = get_numbered(fx, "copy", i, 200 * 1024);

        dctf_shard_expect(shard, 10);
        assert_true(dctf_shard_wants(shard));
        assert_true(write_all_blocks(shard));
        dctf_shard_put(shard);
    }
}

/* The members change: nothing moves, and what is a copy now goes first from then on. */
static void test_eviction_follows_a_change(void **state)
{
    struct fixture *fx = *state;
    uint64_t before;

    open_with(fx, 64 * MIB);
    dctf_store_set_share(fx->store, all_copies, NULL);
    for (int i = 0; i < 16; i++)
        (void)offer(fx, "mine", i, 5 * MIB, 4);
    before = stats_of(fx).file_bytes;
    dctf_store_set_share(fx->store, by_directory, &asked);
    dctf_store_maintain(fx->store);
    assert_int_equal(stats_of(fx).file_bytes, before);
    assert_false(offer(fx, "copy", 0, 5 * MIB, 20));
    dctf_store_set_share(fx->store, all_copies, NULL);
    assert_true(offer(fx, "copy", 1, 5 * MIB, 20));
}

static void test_few_questions_per_decision(void **state)
{
    struct fixture *fx = *state;
    struct dctf_shard *large;
    unsigned before;

    open_with(fx, 512 * MIB);
    large = get_shard(fx, "mine/large", 480 * MIB);
    (void)write_all_blocks(large);
    before = atomic_load(&asked);
    assert_false(offer(fx, "copy", 0, 64 * MIB, 1));
    /* For each sample one resident, at most four of its sixty extents; and what is offered. */
    assert_true(atomic_load(&asked) - before <= 64);
    dctf_shard_put(large);
}

#define OPEN(test) cmocka_unit_test_setup_teardown(test, fixture_set_up, fixture_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        OPEN(test_keep_copies_while_there_is_room),
        OPEN(test_share_evicts_copies),
        OPEN(test_copy_never_evicts_the_share),
        OPEN(test_hotter_copy_evicts_a_colder_one),
        OPEN(test_share_against_share_is_admissions),
        OPEN(test_only_copies_of_a_mixed_file_are_punched),
        OPEN(test_verdicts_do_not_leak),
        OPEN(test_a_write_is_cut_by_claim),
        OPEN(test_spare_is_between_the_two),
        OPEN(test_last_room_takes_pieces_of_the_share),
        OPEN(test_share_of_small_shards_gets_in),
        OPEN(test_small_copies_wait_for_the_share),
        OPEN(test_expected_copies_do_not_wait),
        OPEN(test_eviction_follows_a_change),
        OPEN(test_few_questions_per_decision),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
