/* SPDX-License-Identifier: Apache-2.0
 *
 * Nodes beside the home of an extent that readers are sent to or ask by themselves, and homes asked side by
 * side.
 */
#include "core_ask_fixture.h"
#include "core_fixture.h"

#include "cluster/get_internal.h"

/* --- who else may have it --- */

static void set_sending(struct core *core, unsigned count)
{
    struct dctf_cluster *cluster = core->nodes[0].cluster;

    pthread_mutex_lock(&cluster->lock);
    cluster->sending = count;
    pthread_mutex_unlock(&cluster->lock);
}

static unsigned sending(struct core *core)
{
    struct dctf_cluster *cluster = core->nodes[0].cluster;
    unsigned count;

    pthread_mutex_lock(&cluster->lock);
    count = cluster->sending;
    pthread_mutex_unlock(&cluster->lock);
    return count;
}

/* A home with much to send names who fetched the same lately; once, and not to whom it names. */
static void test_home_names_others(void **state)
{
    struct core *core = core_open("npp", "");
    struct shard *shard = make_shard(core, SMALL_BYTES, 0, ANY, ANY);

    (void)state;
    (void)read_as(core, 1, shard);
    wait_until(sending(core) == 0);
    (void)read_as(core, 2, shard); /* it has little to send */
    wait_until(sending(core) == 0);
    set_sending(core, 1000);
    assert_string_equal(
        ask_as(core, 2, shard, DCTF_PEER_BLOCKS, false, DCTF_ERR_PEER_BUSY).names, core->places[1].addr);
    assert_string_equal(
        ask_as(core, 1, shard, DCTF_PEER_BLOCKS, false, DCTF_ERR_PEER_BUSY).names, core->places[2].addr);
    (void)ask_as(core, 1, shard, DCTF_PEER_BLOCKS, true, DCTF_OK);
    set_sending(core, 0);
    core_close(core);
}

static struct core *open_with_busy_home(struct shard **shard)
{
    struct core *core = core_open("npp", "hedge=off " PATIENT);

    *shard = make_shard(core, SMALL_BYTES, 1, ANY, ANY);
    core->places[1].names = core->places[2].addr;
    peer_busy(&core->places[1], 1, 60000); /* longer than anybody waits */
    return core;
}

static void test_reader_asks_those_named(void **state)
{
    struct shard *shard;
    struct core *core = open_with_busy_home(&shard);

    (void)state;
    peer_promise(&core->places[2]);
    peer_hold(&core->places[2], false);
    assert_int_equal(read_whole(core, 0, shard), DCTF_OK);
    assert_int_equal(peer_asked(&core->places[1]), 1);
    assert_int_equal(core->places[2].probed, 1);
    core_close(core);
}

static void test_reader_returns_to_the_home(void **state)
{
    struct shard *shard;
    struct core *core = open_with_busy_home(&shard);

    (void)state;
    assert_int_equal(read_whole(core, 0, shard), DCTF_OK);
    assert_int_equal(peer_asked(&core->places[1]), 2);
    assert_int_equal(core->places[1].tried, 1);
    assert_int_equal(core->places[2].probed, 1);
    core_close(core);
}

static void test_reader_leaves_one_named_that_is_silent(void **state)
{
    struct shard *shard;
    struct core *core = open_with_busy_home(&shard);

    (void)state;
    relay_freeze(&core->places[2], true);
    assert_int_equal(read_whole(core, 0, shard), DCTF_OK);
    assert_int_equal(peer_asked(&core->places[1]), 2);
    relay_freeze(&core->places[2], false);
    core_close(core);
}

/* --- the nearest of those that may have it --- */

/* Node 0 and the others, in these zones. */
static void set_zones(struct core *core, const char *const zones[NODES])
{
    struct dctf_cluster *cluster = core->nodes[0].cluster;
    struct dctf_view *old = dctf_cluster_view(cluster), *view;
    struct dctf_node nodes[NODES];

    for (uint32_t i = 0; i < NODES; i++) {
        nodes[i] = *dctf_view_node(old, i);
        for (unsigned place = 0; place < NODES; place++) {
            if (!strcmp(nodes[i].id, core->places[place].addr))
                strcpy(nodes[i].zone, zones[place]);
        }
    }
    assert_int_equal(dctf_view_build(nodes, NODES, core->places[0].addr, &view), DCTF_OK);
    pthread_mutex_lock(&cluster->lock);
    dctf_view_unref(cluster->view);
    cluster->view = view;
    pthread_mutex_unlock(&cluster->lock);
    dctf_view_unref(old);
}

/* Who is asked before the home of an extent; "": nobody. */
static const char *asked_first(struct core *core, const struct shard *shard, enum dctf_policy_class copied)
{
    struct dctf_get_task task = {.cluster = core->nodes[0].cluster, .copied = copied};
    struct dctf_sub sub = {.task = &task, .extent_key = extent_key(shard, 0)};
    struct dctf_peer *first;

    pthread_mutex_lock(&task.cluster->lock);
    dctf_sub_take_copy_locked(&sub);
    first = dctf_sub_named_locked(&sub);
    assert_null(dctf_sub_named_locked(&sub)); /* one at most */
    dctf_sub_take_copy_locked(&sub);
    assert_null(dctf_sub_named_locked(&sub)); /* once */
    pthread_mutex_unlock(&task.cluster->lock);
    return first ? first->id : "";
}

static void test_copy_in_this_zone_comes_first(void **state)
{
    static const char *const home_elsewhere[] = {"a", "b", "a"}, *const all_here[] = {"a", "a", "a"},
                             *const all_elsewhere[] = {"a", "b", "b"};
    struct core *core = core_open("npp", "");
    struct shard *shard = make_shard(core, SMALL_BYTES, 1, ANY, ANY);

    (void)state;
    set_zones(core, home_elsewhere);
    assert_string_equal(asked_first(core, shard, DCTF_POLICY_HOT), core->places[2].addr);
    assert_string_equal(asked_first(core, shard, DCTF_POLICY_MID), core->places[2].addr);
    assert_string_equal(asked_first(core, shard, DCTF_POLICY_COLD), "");
    set_zones(core, all_here);
    assert_string_equal(asked_first(core, shard, DCTF_POLICY_HOT), "");
    set_zones(core, all_elsewhere);
    assert_string_equal(asked_first(core, shard, DCTF_POLICY_HOT), "");
    core_close(core);
}

/* Of those that a busy home names, with this node and one that is no member among them. */
static void assert_named(struct core *core, const char *first, const char *second)
{
    struct dctf_get_task task = {.cluster = core->nodes[0].cluster};
    struct dctf_sub sub = {.task = &task};
    char names[DCTF_PEER_TRY_BYTES];

    snprintf(names, sizeof(names), "nobody,%s,%s,%s", core->places[1].addr, core->places[0].addr,
        core->places[2].addr);
    pthread_mutex_lock(&task.cluster->lock);
    dctf_sub_take_names_locked(&sub, names);
    assert_true(dctf_sub_has_named_locked(&sub));
    assert_string_equal(dctf_sub_named_locked(&sub)->id, first);
    assert_true(dctf_sub_has_named_locked(&sub));
    assert_string_equal(dctf_sub_named_locked(&sub)->id, second);
    assert_false(dctf_sub_has_named_locked(&sub));
    assert_null(dctf_sub_named_locked(&sub));
    pthread_mutex_unlock(&task.cluster->lock);
}

static void test_nearest_of_those_named_comes_first(void **state)
{
    static const char *const first_near[] = {"a", "a", "b"}, *const second_near[] = {"a", "b", "a"};
    struct core *core = core_open("npp", "");

    (void)state;
    set_zones(core, first_near);
    assert_named(core, core->places[1].addr, core->places[2].addr);
    set_zones(core, second_near);
    assert_named(core, core->places[2].addr, core->places[1].addr);
    core_close(core);
}

/* --- several homes --- */

/* A reader of one large shard has the homes of several extents at work at once. */
static void test_large_shard_draws_on_several_homes(void **state)
{
    struct core *core = core_open("npp", PATIENT);
    struct shard *shard = make_shard(core, 16 * MIB, 1, ANY, 2);
    struct reading *first, *second;

    (void)state;
    peer_hold(&core->places[1], true);
    peer_hold(&core->places[2], true);
    first = read_start(core, 0, shard, 0, 8 * MIB); /* as read-ahead asks for: extent by extent */
    second = read_start(core, 0, shard, 8 * MIB, 8 * MIB);
    wait_until(peer_asked(&core->places[1]) >= 4 && peer_asked(&core->places[2]) >= 4);
    peer_hold(&core->places[1], false);
    peer_hold(&core->places[2], false);
    peer_answer(&core->places[1], DCTF_OK);
    peer_answer(&core->places[2], DCTF_OK);
    assert_int_equal(read_wait(first, FOREVER_MS), DCTF_OK);
    assert_int_equal(read_wait(second, FOREVER_MS), DCTF_OK);
    core_close(core);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_home_names_others),
        cmocka_unit_test(test_reader_asks_those_named),
        cmocka_unit_test(test_reader_returns_to_the_home),
        cmocka_unit_test(test_reader_leaves_one_named_that_is_silent),
        cmocka_unit_test(test_copy_in_this_zone_comes_first),
        cmocka_unit_test(test_nearest_of_those_named_comes_first),
        cmocka_unit_test(test_large_shard_draws_on_several_homes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
