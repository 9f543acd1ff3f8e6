/* SPDX-License-Identifier: Apache-2.0
 *
 * What is reported, judged and handed on: the parts alone, and whole controllers through a real redis-server.
 */
#include "cache/listing.h"
#include "cache/store.h"
#include "cluster/controller.h"
#include "cluster/coordinator.h"
#include "cluster/members.h"
#include "cluster/passes.h"
#include "lib/redis_server.h"

#include "base/clock.h"

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define BOUND_MS 30000u
#define INTERVAL_MS 60u
#define DATASET 42u
#define MIB (1ull << 20)
#define FEATURES 12u
#define NOBODY 99u

static uint64_t now_ms(void)
{
    return dctf_clock_mono_ms(NULL);
}

/* --- passes --- */

static void test_claim_gives_the_same_entry(void **state)
{
    struct dctf_passes *passes;

    (void)state;
    assert_int_equal(dctf_passes_new(5000, &passes), DCTF_OK);
    for (uint64_t id = 1; id <= 3000; id++)
        dctf_passes_claim(passes, id * 0x9e3779b97f4a7c15u, "a/b")->bytes = id;
    assert_int_equal(dctf_passes_count(passes), 3000);
    for (uint64_t id = 1; id <= 3000; id++) {
        struct dctf_passes_entry *entry = dctf_passes_find(passes, id * 0x9e3779b97f4a7c15u);

        assert_non_null(entry);
        assert_int_equal(entry->bytes, id);
        assert_ptr_equal(dctf_passes_claim(passes, entry->feature_id, "other"), entry);
        assert_string_equal(entry->path, "a/b");
    }
    assert_null(dctf_passes_find(passes, 7));
    dctf_passes_free(passes);
}

static void test_forget_what_was_read_least(void **state)
{
    struct dctf_passes *passes;

    (void)state;
    assert_int_equal(dctf_passes_new(100, &passes), DCTF_OK);
    for (uint64_t id = 1; id <= 100; id++)
        dctf_passes_claim(passes, id, "x")->bytes = id;
    assert_non_null(dctf_passes_claim(passes, 1000, "new"));
    assert_int_equal(dctf_passes_count(passes), 51);
    assert_null(dctf_passes_find(passes, 50));
    assert_int_equal(dctf_passes_find(passes, 51)->bytes, 51);
    assert_string_equal(dctf_passes_find(passes, 1000)->path, "new");
    dctf_passes_free(passes);
}

/* --- bounds and seeds --- */

static void test_bounds_follow_the_smallest_cache(void **state)
{
    struct dctf_node nodes[3] = {
        {.id = "a", .weight = 1000 * MIB}, {.id = "b", .weight = 100 * MIB}, {.id = "c", .weight = 0}};
    struct dctf_controller_bounds bounds;
    struct dctf_view *view;

    (void)state;
    assert_int_equal(dctf_view_build(nodes, 3, "a", &view), DCTF_OK);
    dctf_controller_bounds(view, 30, &bounds);
    assert_in_range(bounds.hot_bytes, 30 * MIB - MIB, 30 * MIB + 1); /* not of the one that does not serve */
    assert_in_range(bounds.mid_bytes, 20 * MIB - MIB, 20 * MIB + 1);
    assert_in_range(bounds.new_bytes, 5 * MIB, 6 * MIB);
    dctf_controller_bounds(view, 0, &bounds);
    assert_int_equal(bounds.hot_bytes, 1); /* nothing fits, and it is a bound */
    dctf_view_unref(view);
    assert_int_equal(dctf_view_build(&nodes[2], 1, "c", &view), DCTF_OK);
    dctf_controller_bounds(view, 30, &bounds);
    assert_int_equal(bounds.hot_bytes, 0);
    dctf_view_unref(view);
}

static void test_seeded_features_stay_for_the_dwell(void **state)
{
    static const struct dctf_policy_entry table[] = {{10, DCTF_POLICY_HOT}, {20, DCTF_POLICY_MID}};
    struct dctf_policy_config config = dctf_policy_defaults;
    struct dctf_policy_result result;
    struct dctf_policy *policy;
    uint64_t now = 1000000;

    (void)state;
    config.dwell_ms = 600000;
    assert_int_equal(dctf_policy_new(&config, &policy), DCTF_OK);
    assert_int_equal(dctf_policy_seed(policy, table, 2, now), DCTF_OK);
    for (unsigned i = 0; i < 19; i++) { /* nobody reads anything */
        now += 30000;
        assert_int_equal(dctf_policy_evaluate(policy, now, &result), DCTF_OK);
        assert_int_equal(result.count, 2);
        assert_int_equal(dctf_policy_class_of(result.table, result.count, 10), DCTF_POLICY_HOT);
        assert_int_equal(dctf_policy_class_of(result.table, result.count, 20), DCTF_POLICY_MID);
        dctf_policy_result_fini(&result);
    }
    now += 60000;
    assert_int_equal(dctf_policy_evaluate(policy, now, &result), DCTF_OK);
    assert_int_equal(result.count, 0);
    dctf_policy_result_fini(&result);
    dctf_policy_free(policy);
}

/* A feature larger than what may enter at once enters alone. */
static void test_large_features_can_enter(void **state)
{
    struct dctf_policy_config config = dctf_policy_defaults;
    struct dctf_policy_result result = {0};
    struct dctf_policy *policy;
    unsigned entered = 0;

    (void)state;
    config.mid_enter = 1;
    assert_int_equal(dctf_policy_new(&config, &policy), DCTF_OK);
    dctf_policy_set_bounds(policy, 1000 * MIB, 1000 * MIB, MIB);
    for (unsigned round = 0; round < 40; round++) {
        for (uint64_t id = 1; id <= 30; id++) {
            double passes = id <= 2 ? 100 : 0.01;

            assert_int_equal(dctf_policy_report(policy, id, 1, passes, 100 * MIB), DCTF_OK);
            assert_int_equal(dctf_policy_report(policy, id, 2, passes, 100 * MIB), DCTF_OK);
        }
        assert_int_equal(dctf_policy_evaluate(policy, 1000 * (round + 1), &result), DCTF_OK);
        assert_true(result.change_count <= 1);
        entered += (unsigned)result.change_count;
        dctf_policy_result_fini(&result);
    }
    assert_true(entered >= 2);
    dctf_policy_free(policy);
}

static void test_cap_keeps_hot_first(void **state)
{
    struct dctf_policy_entry table[6];

    (void)state;
    for (unsigned i = 0; i < 6; i++)
        table[i] = (struct dctf_policy_entry){i + 1, i % 2 ? DCTF_POLICY_HOT : DCTF_POLICY_MID};
    assert_int_equal(dctf_controller_cap(table, 6, 6), 6);
    assert_int_equal(dctf_controller_cap(table, 6, 4), 4); /* 1 mid, 2 hot, 4 hot, 6 hot */
    assert_int_equal(table[0].feature_id, 1);
    assert_int_equal(table[1].feature_id, 2);
    assert_int_equal(table[3].feature_id, 6);
    assert_int_equal(dctf_controller_cap(table, 4, 2), 2);
    assert_int_equal(table[0].feature_id, 2);
    assert_int_equal(table[1].feature_id, 4);
}

/* --- whole controllers --- */

struct node {
    char dir[64];
    char id[16];
    struct dctf_store *store;
    struct dctf_members *members;
    struct dctf_controller *controller;
    atomic_uint changes;
    uint64_t incarnation;
};

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *at)
{
    (void)st;
    (void)flag;
    (void)at;
    return remove(path);
}

static struct dctf_view *view_of(void *ctx)
{
    return dctf_members_view(((struct node *)ctx)->members);
}

static void changed(void *ctx)
{
    atomic_fetch_add(&((struct node *)ctx)->changes, 1);
}

static void open_store(struct node *node)
{
    char detail[256];
    struct dctf_store_config store = {
        .dir = node->dir,
        .size_bytes = 256 * MIB,
        .reserve_bytes = 0,
        .memory_bytes = 16 * MIB,
        .dataset = DATASET,
        .heat_half_life_ms = 3600000,
        .heat_ttl_ms = 86400000,
        .owner = "a test",
    };

    assert_int_equal(dctf_store_open(&store, detail, &node->store), DCTF_OK);
}

static void start_controller(struct node *node)
{
    struct dctf_controller_config config = {
        .coordinator = dctf_members_coordinator(node->members),
        .store = node->store,
        .dataset = DATASET,
        .lead = true,
        .interval_ms = INTERVAL_MS,
        .share_pct = 30,
        .view = view_of,
        .changed = changed,
        .ctx = node,
    };

    assert_int_equal(dctf_controller_start(&config, &node->controller), DCTF_OK);
}

static void open_node(struct node *node)
{
    char url[64], detail[256];
    struct dctf_members_config members = {
        .peers = "",
        .redis = url,
        .cluster = "test",
        .redis_user = "",
        .redis_password = "",
        .ca_file = "",
        .self = {.addr = "127.0.0.1:7100", .incarnation = ++node->incarnation, .weight = 1000 * MIB},
        .heartbeat_ms = 250,
        .poll_ms = 20,
    };

    snprintf(url, sizeof(url), "redis://127.0.0.1:%u", redis_server_port(redis_server_shared));
    strcpy(members.self.id, node->id);
    open_store(node);
    assert_int_equal(dctf_members_open(&members, detail, &node->members), DCTF_OK);
    start_controller(node);
}

static void close_node(struct node *node)
{
    dctf_controller_stop(node->controller);
    dctf_members_close(node->members);
    dctf_store_close(node->store);
}

static void make_node(struct node *node, const char *id)
{
    *node = (struct node){.dir = "/tmp/dctf-controller-XXXXXX"};
    assert_non_null(mkdtemp(node->dir));
    strcpy(node->id, id);
    open_node(node);
}

static void end_node(struct node *node)
{
    close_node(node);
    assert_int_equal(nftw(node->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

static struct dctf_version *shard_of(unsigned feature)
{
    struct dctf_version *version;
    char key[32];

    snprintf(key, sizeof(key), "f%u/a", feature);
    assert_int_equal(dctf_version_new(DATASET, key, "v1", MIB, DCTF_FEATURE_BY_DIRECTORY, &version), DCTF_OK);
    return version;
}

/* Each directory holds one shard of a MiB. */
static void list_all(struct node *node)
{
    for (unsigned i = 0; i < FEATURES; i++) {
        struct dctf_entry entry = {.name = "a", .size = MIB, .etag = "v1"};
        struct dctf_listing_writer *writer;
        struct dctf_listing_state state;
        char dir[16];

        snprintf(dir, sizeof(dir), "f%u", i);
        assert_int_equal(dctf_listing_begin(dctf_store_listings(node->store), dir, &writer), DCTF_OK);
        assert_int_equal(dctf_listing_add(writer, &entry), DCTF_OK);
        assert_int_equal(dctf_listing_commit(writer, &state), DCTF_OK);
    }
}

/* One feature is read a lot, the others hardly. */
static void read_some(struct node *node)
{
    for (unsigned i = 0; i < FEATURES; i++) {
        struct dctf_version *version = shard_of(i);

        dctf_controller_read(node->controller, version, i ? MIB / 8 : 16 * MIB);
        dctf_version_unref(version);
    }
}

static enum dctf_policy_class class_at(struct node *node, unsigned feature, uint64_t *fence)
{
    struct dctf_policy_table *table = dctf_controller_table(node->controller);
    struct dctf_version *version = shard_of(feature);
    enum dctf_policy_class class = DCTF_POLICY_COLD;

    *fence = 0;
    if (table) {
        class = dctf_policy_class_of(table->entries, table->count, version->feature_id);
        *fence = table->fence;
    }
    dctf_controller_table_put(node->controller, table);
    dctf_version_unref(version);
    return class;
}

/* Until a node has the one as hot, under a fence above `above`; all but one of the readers read on. */
static uint64_t await_hot(
    struct node *readers, unsigned without, size_t count, struct node *node, uint64_t above)
{
    uint64_t until = now_ms() + BOUND_MS, fence;

    while (class_at(node, 0, &fence) != DCTF_POLICY_HOT || fence <= above) {
        if (now_ms() > until)
            fail_msg("never hot at %s above %llu", node->id, (unsigned long long)above);
        for (size_t i = 0; i < count; i++) {
            if (i != without)
                read_some(&readers[i]);
        }
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    return fence;
}

static void test_judge_what_two_nodes_read(void **state)
{
    struct node nodes[3];
    char path[DCTF_KEY_MAX + 1];
    struct dctf_version *version = shard_of(0);
    uint64_t fence;

    (void)state;
    make_node(&nodes[0], "a");
    make_node(&nodes[1], "b");
    make_node(&nodes[2], "c"); /* reads nothing */
    list_all(&nodes[0]);
    list_all(&nodes[1]);
    await_hot(nodes, NOBODY, 2, &nodes[2], 0);
    for (unsigned i = 1; i < FEATURES; i++)
        assert_int_equal(class_at(&nodes[2], i, &fence), DCTF_POLICY_COLD);
    /* Its path is not known there, until somebody told. */
    for (uint64_t until = now_ms() + BOUND_MS;
         !dctf_controller_path(nodes[2].controller, version->feature_id, true, path);) {
        assert_true(now_ms() < until);
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    assert_string_equal(path, "f0");
    assert_true(atomic_load(&nodes[2].changes) >= 2);
    /* Who begins to listen is told what is known already. */
    dctf_controller_stop(nodes[2].controller);
    start_controller(&nodes[2]);
    await_hot(NULL, NOBODY, 0, &nodes[2], 0);
    dctf_version_unref(version);
    for (unsigned i = 0; i < 3; i++)
        end_node(&nodes[i]);
}

/* Its successor goes on from its table, and so does everybody after the server lost everything. */
static void test_lose_the_leader_and_the_server(void **state)
{
    struct node nodes[3];
    uint64_t fence, later;
    unsigned leader = 3;

    (void)state;
    make_node(&nodes[0], "a");
    make_node(&nodes[1], "b");
    make_node(&nodes[2], "c");
    list_all(&nodes[0]);
    list_all(&nodes[1]);
    list_all(&nodes[2]);
    await_hot(nodes, NOBODY, 3, &nodes[2], 0);
    fence = await_hot(nodes, NOBODY, 3, &nodes[0], 0);
    for (unsigned i = 0; i < 3; i++)
        leader = dctf_controller_leads(nodes[i].controller) ? i : leader;
    assert_true(leader < 3);
    close_node(&nodes[leader]);
    later = await_hot(nodes, leader, 3, &nodes[(leader + 1) % 3], fence);
    assert_true(later > fence);
    redis_server_kill(redis_server_shared);
    redis_server_restart(redis_server_shared);
    fence = await_hot(nodes, leader, 3, &nodes[(leader + 1) % 3], later);
    assert_true(fence > later);
    open_node(&nodes[leader]);
    await_hot(nodes, NOBODY, 3, &nodes[leader], later);
    for (unsigned i = 0; i < 3; i++)
        end_node(&nodes[i]);
}

/* A node that knew a higher fence takes no older table, also after a restart. */
static void test_keep_the_fence(void **state)
{
    struct node nodes[2];
    uint64_t fence, kept = 0;

    (void)state;
    make_node(&nodes[0], "a");
    make_node(&nodes[1], "b");
    list_all(&nodes[0]);
    list_all(&nodes[1]);
    fence = await_hot(nodes, NOBODY, 2, &nodes[1], 0);
    close_node(&nodes[1]);
    open_store(&nodes[1]);
    assert_true(dctf_store_number_get(nodes[1].store, "policy fence", &kept));
    assert_true(kept >= fence);
    assert_int_equal(dctf_store_number_put(nodes[1].store, "policy fence", kept + 1000000), DCTF_OK);
    dctf_store_close(nodes[1].store);
    open_node(&nodes[1]);
    for (uint64_t until = now_ms() + 1000; now_ms() < until;) {
        struct dctf_policy_table *table = dctf_controller_table(nodes[1].controller);

        if (table) /* only one of its own, under a fence that is higher still */
            assert_true(table->fence > kept + 1000000);
        dctf_controller_table_put(nodes[1].controller, table);
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    end_node(&nodes[0]);
    end_node(&nodes[1]);
}

static void test_report_is_kept_while_the_server_is_away(void **state)
{
    struct node node;
    struct dctf_coordinator *coordinator;
    uint64_t before;

    (void)state;
    make_node(&node, "a");
    coordinator = dctf_members_coordinator(node.members);
    list_all(&node);
    read_some(&node);
    for (uint64_t until = now_ms() + BOUND_MS; !dctf_coordinator_reports_written(coordinator);) {
        assert_true(now_ms() < until);
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    redis_server_kill(redis_server_shared);
    read_some(&node);
    nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
    before = dctf_coordinator_reports_written(coordinator);
    redis_server_restart(redis_server_shared);
    for (uint64_t until = now_ms() + BOUND_MS; dctf_coordinator_reports_written(coordinator) == before;) {
        assert_true(now_ms() < until);
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    end_node(&node);
}

int main(void)
{
    const struct CMUnitTest pure[] = {
        cmocka_unit_test(test_claim_gives_the_same_entry),
        cmocka_unit_test(test_forget_what_was_read_least),
        cmocka_unit_test(test_bounds_follow_the_smallest_cache),
        cmocka_unit_test(test_seeded_features_stay_for_the_dwell),
        cmocka_unit_test(test_large_features_can_enter),
        cmocka_unit_test(test_cap_keeps_hot_first),
    };
    const struct CMUnitTest whole[] = {
        cmocka_unit_test_setup_teardown(
            test_judge_what_two_nodes_read, redis_server_setup, redis_server_teardown),
        cmocka_unit_test_setup_teardown(
            test_lose_the_leader_and_the_server, redis_server_setup, redis_server_teardown),
        cmocka_unit_test_setup_teardown(test_keep_the_fence, redis_server_setup, redis_server_teardown),
        cmocka_unit_test_setup_teardown(
            test_report_is_kept_while_the_server_is_away, redis_server_setup, redis_server_teardown),
    };
    int failed = cmocka_run_group_tests(pure, NULL, NULL);

    if (redis_server_is_installed())
        failed += cmocka_run_group_tests(whole, NULL, NULL);
    return failed;
}
