/* SPDX-License-Identifier: Apache-2.0
 *
 * What a home has no room for: who is told to keep it, and who finds it again (cluster/spare.h).
 */
#include "core_ask_fixture.h"
#include "core_fixture.h"

static struct dctf_spare *spare_of(struct core *core)
{
    return &core->nodes[0].cluster->spare;
}

static uint32_t blocks_here(struct core *core, unsigned i, const struct shard *shard)
{
    struct dctf_version *version;
    struct dctf_shard *here;
    uint32_t count;

    assert_int_equal(
        dctf_version_new(DATASET, shard->key, shard->etag, shard->size, DCTF_FEATURE_BY_DIRECTORY, &version),
        DCTF_OK);
    assert_int_equal(dctf_shard_get(core->nodes[i].store, version, &here), DCTF_OK);
    count = dctf_shard_count_present(here, 0, dctf_blocks_of(shard->size));
    dctf_shard_put(here);
    dctf_version_unref(version);
    return count;
}

/* A home that once had no room tells the next in rank to keep it; or the one after it, once the next has said
 * that it is full. It leaves it to who was told. */
static void test_home_without_room_tells_the_next(void **state)
{
    struct core *core = core_open("npp", "");
    struct shard *shard = make_shard(core, SMALL_BYTES, 0, 1, ANY);

    (void)state;
    dctf_spare_home_kept(spare_of(core), extent_key(shard, 0), 1, false);
    assert_int_equal(read_as(core, 1, shard), DCTF_PEER_SPARE_KEEP);
    assert_int_equal(read_as(core, 1, shard), DCTF_PEER_SPARE_KEEP);
    wait_until(status_of(core, 0).flights == 0);
    assert_int_equal(blocks_here(core, 0, shard), 0);
    assert_int_equal(source_counts(core).bytes, 2 * shard->size);
    peer_full(&core->places[1], true);
    assert_int_equal(read_as(core, 1, shard), DCTF_PEER_SPARE_KEEP); /* if it can */
    wait_until(status_of(core, 0).flights == 0);
    assert_int_equal(read_as(core, 2, shard), DCTF_PEER_SPARE_KEEP);
    core_close(core);
}

static void test_home_with_room_keeps_it(void **state)
{
    struct core *core = core_open("npp", "");
    struct shard *shard = make_shard(core, SMALL_BYTES, 0, 1, ANY);

    (void)state;
    dctf_spare_home_kept(spare_of(core), extent_key(shard, 0), 1, false);
    assert_int_equal(read_as(core, 2, shard), DCTF_PEER_SPARE_NOTHING);
    wait_until(blocks_here(core, 0, shard));
    wait_until(!dctf_spare_home_refused(spare_of(core), extent_key(shard, 0)));
    assert_int_equal(read_as(core, 1, shard), DCTF_PEER_SPARE_NOTHING);
    assert_int_equal(source_counts(core).bytes, shard->size);
    core_close(core);
}

/* What lies at another because this node had no room is asked for there, each time, and left there. */
static void test_home_leaves_what_another_keeps(void **state)
{
    struct core *core = core_open("npp", "");
    struct shard *shard = make_shard(core, SMALL_BYTES, 0, 1, ANY);

    (void)state;
    dctf_spare_home_kept(spare_of(core), extent_key(shard, 0), 1, false);
    peer_promise(&core->places[1]);
    peer_hold(&core->places[1], false);
    for (unsigned i = 1; i <= 2; i++) {
        assert_int_equal(read_as(core, 2, shard), DCTF_PEER_SPARE_NOTHING);
        wait_until(status_of(core, 0).flights == 0);
        assert_int_equal(peer_asked(&core->places[1]), i);
    }
    assert_int_equal(blocks_here(core, 0, shard), 0);
    assert_int_equal(source_counts(core).bytes, 0);
    core_close(core);
}

static void test_reader_adopts_what_it_was_told_to_keep(void **state)
{
    struct core *core = core_open("npp", "");
    struct shard *shard = make_shard(core, SMALL_BYTES, 1, 0, ANY);

    (void)state;
    assert_int_equal(read_whole(core, 0, shard), DCTF_OK);
    assert_int_equal(dctf_spare_adopted(spare_of(core), extent_key(shard, 0)), 0);
    peer_tell_to_keep(&core->places[1], true);
    assert_int_equal(read_whole(core, 0, shard), DCTF_OK);
    assert_int_equal(dctf_spare_adopted(spare_of(core), extent_key(shard, 0)), 1);
    core_close(core);
}

/* The home that asks twice has no room for it; anybody else may ask for other reasons. */
static void test_adopts_what_the_home_asks_for_twice(void **state)
{
    struct core *core = core_open("npp", "");
    struct shard *shard = make_shard(core, SMALL_BYTES, 1, 0, ANY);

    (void)state;
    for (unsigned i = 0; i < 3; i++) /* it is not here */
        ask_as(core, 1, shard, DCTF_PEER_HAVE, false, DCTF_ERR_PEER_ABSENT);
    assert_int_equal(dctf_spare_adopted(spare_of(core), extent_key(shard, 0)), 0);
    read_as(core, 2, shard);
    wait_until(blocks_here(core, 0, shard));
    for (unsigned i = 0; i < 3; i++)
        ask_as(core, 2, shard, DCTF_PEER_HAVE, false, DCTF_OK);
    ask_as(core, 1, shard, DCTF_PEER_HAVE, false, DCTF_OK);
    assert_int_equal(dctf_spare_adopted(spare_of(core), extent_key(shard, 0)), 0);
    ask_as(core, 1, shard, DCTF_PEER_HAVE, false, DCTF_OK);
    assert_int_equal(dctf_spare_adopted(spare_of(core), extent_key(shard, 0)), 1);
    core_close(core);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_home_without_room_tells_the_next),
        cmocka_unit_test(test_home_with_room_keeps_it),
        cmocka_unit_test(test_home_leaves_what_another_keeps),
        cmocka_unit_test(test_reader_adopts_what_it_was_told_to_keep),
        cmocka_unit_test(test_adopts_what_the_home_asks_for_twice),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
