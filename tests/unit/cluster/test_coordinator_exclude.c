/* SPDX-License-Identifier: Apache-2.0
 *
 * Members that most others do not reach, through a real redis-server.
 */
#include "cluster/coordinator.h"
#include "cluster/coordinator_record.h"
#include "cluster/members.h"
#include "cluster/redis.h"
#include "lib/redis_server.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define BOUND_MS 20000u
#define HEARTBEAT_MS 200u
#define AFTER_MS 60000u
#define NODES 5u

struct node {
    struct dctf_members *members;
    struct dctf_coordinator *coordinator;
};

static uint64_t now_ms(void)
{
    return dctf_clock_mono_ms(NULL);
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
}

#define await(what)                                                                                          \
    for (uint64_t until_ms_ = now_ms() + BOUND_MS; !(what); nap()) {                                         \
        if (now_ms() >= until_ms_)                                                                           \
            fail_msg("never: %s", #what);                                                                    \
    }

static void open_as(struct node *node, unsigned number, bool lead)
{
    char url[64], detail[256];
    struct dctf_members_config config = {
        .peers = "",
        .redis = url,
        .cluster = "test",
        .redis_user = "",
        .redis_password = "",
        .ca_file = "",
        .self = {.weight = 1000, .incarnation = 1},
        .heartbeat_ms = HEARTBEAT_MS,
        .poll_ms = 20,
        .exclude_after_ms = AFTER_MS,
    };
    struct dctf_coordinator_listener listener = {.lead = lead, .interval_ms = 100};

    snprintf(url, sizeof(url), "redis://127.0.0.1:%u", redis_server_port(redis_server_shared));
    snprintf(config.self.id, sizeof(config.self.id), "n%u", number);
    snprintf(config.self.addr, sizeof(config.self.addr), "n%u:7100", number);
    assert_int_equal(dctf_members_open(&config, detail, &node->members), DCTF_OK);
    node->coordinator = dctf_members_coordinator(node->members);
    dctf_coordinator_listen(node->coordinator, &listener);
}

static void close_node(struct node *node)
{
    if (!node->members)
        return;
    dctf_coordinator_listen(node->coordinator, NULL);
    dctf_members_close(node->members);
    node->members = NULL;
}

/* Bit i: n<i> has no weight in the node's view, or is not there. */
static unsigned without(const struct node *node)
{
    struct dctf_view *view = dctf_members_view(node->members);
    unsigned bits = 0;

    for (unsigned i = 0; i < NODES; i++) {
        char id[8];
        uint32_t at;

        snprintf(id, sizeof(id), "n%u", i);
        at = dctf_view_find(view, id);
        if (at == DCTF_NODE_NONE || !dctf_view_node(view, at)->weight)
            bits |= 1u << i;
        if (at != DCTF_NODE_NONE)
            assert_int_equal(dctf_view_node(view, at)->excluded, !dctf_view_node(view, at)->weight);
    }
    dctf_view_unref(view);
    return bits;
}

static bool all_without(const struct node *nodes, unsigned bits)
{
    for (unsigned i = 0; i < NODES; i++) {
        if (nodes[i].members && without(&nodes[i]) != bits)
            return false;
    }
    return true;
}

static void open_all(struct node *nodes, unsigned leaders)
{
    for (unsigned i = 0; i < NODES; i++)
        open_as(&nodes[i], i, leaders >> i & 1);
    await(all_without(nodes, 0));
}

/* A node says that it has not reached another for so long; 0: it reaches everybody. */
static void say(const struct node *node, unsigned of, uint64_t ms)
{
    char id[8];
    struct dctf_unreached entry;

    snprintf(id, sizeof(id), "n%u", of);
    entry = (struct dctf_unreached){dctf_exclusion_id(id), ms};
    assert_int_equal(dctf_coordinator_unreached(node->coordinator, &entry, ms != 0), DCTF_OK);
}

static void flush_all(void)
{
    char url[64], detail[256];
    struct dctf_redis_config config = {.url = url, .user = "", .password = "", .call_ms = BOUND_MS};
    const char *words[] = {"FLUSHALL"};
    struct dctf_redis_value *value;
    struct dctf_redis *redis;

    snprintf(url, sizeof(url), "redis://127.0.0.1:%u", redis_server_port(redis_server_shared));
    assert_int_equal(dctf_redis_new(&config, detail, &redis), DCTF_OK);
    assert_int_equal(dctf_redis_call(redis, 1, words, NULL, &value), DCTF_OK);
    dctf_redis_value_free(value);
    dctf_redis_free(redis);
}

/* Several judgements. */
static void wait_some(void)
{
    for (uint64_t until_ms = now_ms() + 8 * HEARTBEAT_MS; now_ms() < until_ms;)
        nap();
}

static void test_leave_out_and_take_back(void **state)
{
    struct node nodes[NODES];
    uint64_t fence;

    (void)state;
    open_all(nodes, 3);
    say(&nodes[0], 4, AFTER_MS);
    say(&nodes[1], 4, AFTER_MS);
    say(&nodes[2], 4, AFTER_MS - 1);
    wait_some(); /* two of four others */
    assert_true(all_without(nodes, 0));
    say(&nodes[2], 4, AFTER_MS);
    await(all_without(nodes, 1u << 4));
    /* It stays so under another leader, which may be the one that is written of. */
    fence = dctf_coordinator_fence(nodes[0].coordinator) + dctf_coordinator_fence(nodes[1].coordinator);
    assert_true(fence > 0);
    close_node(&nodes[dctf_coordinator_fence(nodes[0].coordinator) ? 0 : 1]);
    await((nodes[0].members ? dctf_coordinator_fence(nodes[0].coordinator) : 0) +
              (nodes[1].members ? dctf_coordinator_fence(nodes[1].coordinator) : 0) >
          fence);
    await(all_without(nodes, (1u << 4) | (nodes[0].members ? 0 : 1) | (nodes[1].members ? 0 : 2)));
    for (unsigned i = 0; i < 3; i++) {
        if (nodes[i].members)
            say(&nodes[i], 4, 0);
    }
    await(all_without(nodes, (nodes[0].members ? 0u : 1u) | (nodes[1].members ? 0u : 2u)));
    for (unsigned i = 0; i < NODES; i++)
        close_node(&nodes[i]);
    flush_all();
}

/* Nobody leads any more: nobody is left out for ever. */
static void test_lapse_without_a_leader(void **state)
{
    struct node nodes[NODES];

    (void)state;
    open_all(nodes, 1);
    for (unsigned i = 0; i < 4; i++)
        say(&nodes[i], 4, AFTER_MS);
    await(all_without(nodes, 1u << 4));
    wait_some(); /* it is written again and again */
    wait_some();
    wait_some();
    assert_true(all_without(nodes, 1u << 4));
    close_node(&nodes[0]);
    await(all_without(nodes, 1));
    for (unsigned i = 0; i < NODES; i++)
        close_node(&nodes[i]);
    flush_all();
}

/* While the server is away all stays as it is, also past the time after which it would lapse. */
static void test_keep_without_the_server(void **state)
{
    struct node nodes[NODES];

    (void)state;
    open_all(nodes, 31);
    for (unsigned i = 0; i < 4; i++)
        say(&nodes[i], 4, AFTER_MS);
    await(all_without(nodes, 1u << 4));
    redis_server_signal(redis_server_shared, SIGSTOP);
    for (unsigned i = 0; i < 4; i++)
        wait_some();
    assert_true(all_without(nodes, 1u << 4));
    redis_server_signal(redis_server_shared, SIGCONT);
    await(all_without(nodes, 1u << 4));
    /* It forgot: nobody is left out until somebody leads again and says so. */
    flush_all();
    await(all_without(nodes, 1u << 4));
    for (unsigned i = 0; i < NODES; i++)
        close_node(&nodes[i]);
    flush_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_leave_out_and_take_back),
        cmocka_unit_test(test_lapse_without_a_leader),
        cmocka_unit_test(test_keep_without_the_server),
    };

    if (!redis_server_is_installed())
        return 0;
    return cmocka_run_group_tests(tests, redis_server_setup, redis_server_teardown);
}
