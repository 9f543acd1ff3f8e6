/* SPDX-License-Identifier: Apache-2.0
 *
 * What nodes agree on, through a real redis-server.
 */
#include "cluster/coordinator.h"
#include "cluster/coordinator_record.h"
#include "cluster/members.h"
#include "cluster/redis.h"
#include "lib/redis_server.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define BOUND_MS 20000u
#define HEARTBEAT_MS 500u

struct node {
    struct dctf_members *members;
    struct dctf_coordinator *coordinator;
    pthread_mutex_t lock;
    /* guarded by lock: what was heard */
    unsigned syncs, reports, ends, tables;
    uint64_t highest, fence, version;
    double passes;
    char reporters[256];
    size_t count;
    struct dctf_policy_entry first, last;
};

static uint64_t now_ms(void)
{
    return dctf_clock_mono_ms(NULL);
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
}

/* Until `what`, which sees the node locked. */
#define await(node, what)                                                                                    \
    for (uint64_t until_ms_ = now_ms() + BOUND_MS;;) {                                                       \
        bool is_;                                                                                            \
        pthread_mutex_lock(&(node)->lock);                                                                   \
        is_ = (what);                                                                                        \
        pthread_mutex_unlock(&(node)->lock);                                                                 \
        if (is_)                                                                                             \
            break;                                                                                           \
        if (now_ms() >= until_ms_)                                                                           \
            fail_msg("never: %s", #what);                                                                    \
        nap();                                                                                               \
    }

static void hear_fence(void *ctx, uint64_t fence)
{
    struct node *node = ctx;

    pthread_mutex_lock(&node->lock);
    assert_true(fence > node->highest);
    node->highest = fence;
    pthread_mutex_unlock(&node->lock);
}

static void hear_policy(
    void *ctx, const struct dctf_policy_entry *table, size_t count, uint64_t fence, uint64_t version)
{
    struct node *node = ctx;

    pthread_mutex_lock(&node->lock);
    for (size_t i = 1; i < count; i++)
        assert_true(table[i - 1].feature_id < table[i].feature_id);
    node->tables++;
    node->count = count;
    node->fence = fence;
    node->version = version;
    if (count) {
        node->first = table[0];
        node->last = table[count - 1];
    }
    pthread_mutex_unlock(&node->lock);
}

static void hear_report(void *ctx, const char *from, const struct dctf_coordinator_heat *heat, size_t count)
{
    struct node *node = ctx;

    pthread_mutex_lock(&node->lock);
    node->reports++;
    if (strlen(node->reporters) + strlen(from) + 2 < sizeof(node->reporters)) {
        strcat(node->reporters, from);
        strcat(node->reporters, " ");
    }
    for (size_t i = 0; i < count; i++)
        node->passes += heat[i].passes;
    pthread_mutex_unlock(&node->lock);
}

static void hear_end(void *ctx)
{
    struct node *node = ctx;

    pthread_mutex_lock(&node->lock);
    node->ends++;
    pthread_mutex_unlock(&node->lock);
}

static void hear_sync(void *ctx)
{
    struct node *node = ctx;

    pthread_mutex_lock(&node->lock);
    node->syncs++;
    pthread_mutex_unlock(&node->lock);
}

static void listen_as(struct node *node, bool lead, uint64_t fence)
{
    struct dctf_coordinator_listener listener = {
        .lead = lead,
        .fence = fence,
        .interval_ms = 100,
        .fence_grew = hear_fence,
        .policy = hear_policy,
        .report = hear_report,
        .reports_end = hear_end,
        .sync = hear_sync,
        .ctx = node,
    };

    node->highest = fence;
    dctf_coordinator_listen(node->coordinator, &listener);
}

static void open_deaf(struct node *node, const char *id)
{
    char url[64], detail[256];
    struct dctf_members_config config = {
        .peers = "",
        .redis = url,
        .cluster = "test",
        .redis_user = "",
        .redis_password = "",
        .ca_file = "",
        .self = {.incarnation = 1},
        .heartbeat_ms = HEARTBEAT_MS,
        .poll_ms = 20,
    };

    snprintf(url, sizeof(url), "redis://127.0.0.1:%u", redis_server_port(redis_server_shared));
    snprintf(config.self.id, sizeof(config.self.id), "%s", id);
    memset(node, 0, sizeof(*node));
    pthread_mutex_init(&node->lock, NULL);
    assert_int_equal(dctf_members_open(&config, detail, &node->members), DCTF_OK);
    node->coordinator = dctf_members_coordinator(node->members);
    assert_non_null(node->coordinator);
}

static void open_as(struct node *node, const char *id, bool lead, uint64_t fence)
{
    open_deaf(node, id);
    listen_as(node, lead, fence);
}

static void close_node(struct node *node)
{
    dctf_coordinator_listen(node->coordinator, NULL);
    dctf_members_close(node->members);
    pthread_mutex_destroy(&node->lock);
}

static void ask(int argc, const char *const *words, struct dctf_redis_value **out)
{
    char url[64], detail[256];
    struct dctf_redis_config config = {.url = url, .user = "", .password = "", .call_ms = BOUND_MS};
    struct dctf_redis *redis;

    snprintf(url, sizeof(url), "redis://127.0.0.1:%u", redis_server_port(redis_server_shared));
    assert_int_equal(dctf_redis_new(&config, detail, &redis), DCTF_OK);
    assert_int_equal(dctf_redis_call(redis, argc, words, NULL, out), DCTF_OK);
    dctf_redis_free(redis);
}

static void flush_all(void)
{
    const char *words[] = {"FLUSHALL"};
    struct dctf_redis_value *value;

    ask(1, words, &value);
    dctf_redis_value_free(value);
}

static uint64_t await_lead(struct node *node)
{
    await(node, dctf_coordinator_fence(node->coordinator));
    return dctf_coordinator_fence(node->coordinator);
}

static void test_lead_is_one(void **state)
{
    struct node one, two;
    uint64_t fence;

    (void)state;
    open_as(&one, "one", true, 0);
    fence = await_lead(&one);
    assert_true(fence > 1600000000000); /* by the server's clock */
    open_as(&two, "two", true, 0);
    for (uint64_t until_ms = now_ms() + 1500; now_ms() < until_ms; nap())
        assert_int_equal(dctf_coordinator_fence(two.coordinator), 0);
    assert_true(dctf_coordinator_fence(one.coordinator) == fence);
    close_node(&one); /* gives it back */
    assert_true(await_lead(&two) > fence);
    close_node(&two);
}

/* No server, no clock of others: the leader ends by itself, before the lease does. */
static void test_lead_ends_by_own_clock(void **state)
{
    struct node one;
    uint64_t fence, from_ms;

    (void)state;
    open_as(&one, "one", true, 0);
    fence = await_lead(&one);
    redis_server_signal(redis_server_shared, SIGSTOP);
    from_ms = now_ms();
    await(&one, !dctf_coordinator_fence(one.coordinator));
    assert_true(now_ms() - from_ms <= 3 * HEARTBEAT_MS + 1000);
    redis_server_signal(redis_server_shared, SIGCONT);
    assert_true(await_lead(&one) >= fence);
    close_node(&one);
}

static void test_fence_grows_over_a_loss(void **state)
{
    struct node one;
    uint64_t fence, far = 4000000000000, until_ms;

    (void)state;
    open_as(&one, "one", true, far);
    fence = await_lead(&one);
    assert_true(fence == far + 1);
    flush_all();
    for (until_ms = now_ms() + BOUND_MS; dctf_coordinator_fence(one.coordinator) <= fence; nap())
        assert_true(now_ms() < until_ms);
    assert_true(dctf_coordinator_fence(one.coordinator) == far + 2);
    close_node(&one);
    flush_all();
}

/* A lease from before it restarted is of no use to a node that knows of a higher fence. */
static void test_own_lease_is_renewed_with_a_higher_fence(void **state)
{
    struct node one;
    uint64_t far = 4000000000000;

    (void)state;
    open_as(&one, "one", true, 0);
    assert_true(await_lead(&one) < far);
    listen_as(&one, true, far);
    await(&one, dctf_coordinator_fence(one.coordinator) == far + 1);
    close_node(&one);
    flush_all();
}

static void test_reports(void **state)
{
    static const struct dctf_coordinator_heat seen[] = {{9, 1.5, 100}, {3, 2, 1 << 30}, {9, 1, 100}};
    struct dctf_coordinator_heat *many = calloc(DCTF_COORDINATOR_HEAT_MAX + 100, sizeof(*many));
    struct node one, two;

    (void)state;
    assert_non_null(many);
    open_as(&one, "one", true, 0);
    open_as(&two, "two", false, 0);
    assert_int_equal(dctf_coordinator_report(two.coordinator, seen, 3), DCTF_OK);
    await_lead(&one);
    await(&one, one.reports == 1 && one.ends >= 3); /* read again and again, told once */
    assert_true(one.passes == 4.5);
    assert_string_equal(one.reporters, "two ");
    for (unsigned i = 0; i < DCTF_COORDINATOR_HEAT_MAX + 100; i++)
        many[i] = (struct dctf_coordinator_heat){i, i < 100 ? 1000 : 2000, 1};
    one.passes = 0;
    assert_int_equal(
        dctf_coordinator_report(one.coordinator, many, DCTF_COORDINATOR_HEAT_MAX + 100), DCTF_OK);
    await(&one, one.reports == 2);
    assert_true(one.passes == 2000.0 * DCTF_COORDINATOR_HEAT_MAX);
    assert_string_equal(one.reporters, "two one ");
    assert_int_equal(two.ends, 0); /* it does not lead */
    close_node(&one);
    close_node(&two);
    free(many);
}

static void test_sync(void **state)
{
    struct node one, two;

    (void)state;
    open_as(&one, "one", false, 0);
    open_as(&two, "two", false, 0);
    for (struct node *node = &one;; node = &two) { /* both know what the counter was */
        await(node, dctf_members_age_ms(node->members) < BOUND_MS);
        if (node == &two)
            break;
    }
    dctf_coordinator_sync(one.coordinator);
    await(&one, one.syncs == 1);
    await(&two, two.syncs == 1);
    dctf_coordinator_sync(two.coordinator);
    await(&one, one.syncs == 2);
    await(&two, two.syncs == 2);
    close_node(&one);
    close_node(&two);
}

static struct dctf_policy_entry *make_table(size_t count)
{
    struct dctf_policy_entry *table = calloc(count + 1, sizeof(*table));

    assert_non_null(table);
    for (size_t i = 0; i < count; i++) /* all over the numbers, in order */
        table[i] = (struct dctf_policy_entry){
            (uint64_t)i * (UINT64_MAX / count) + 5, i % 2 ? DCTF_POLICY_MID : DCTF_POLICY_HOT};
    return table;
}

static void test_policy(void **state)
{
    struct dctf_policy_entry *table = make_table(DCTF_COORDINATOR_POLICY_MAX);
    size_t count = DCTF_COORDINATOR_POLICY_MAX;
    struct node one, two, future;
    uint64_t fence, version;

    (void)state;
    flush_all();
    open_as(&one, "one", true, 0);
    open_as(&two, "two", false, 0);
    open_as(&future, "future", false, 8000000000000);
    fence = await_lead(&one);
    assert_int_equal(dctf_coordinator_publish(one.coordinator, table, count), DCTF_OK);
    await(&two, two.tables);
    assert_int_equal(two.count, count);
    assert_true(two.fence == fence && two.highest == fence);
    assert_true(
        two.last.feature_id == table[count - 1].feature_id && two.last.class == table[count - 1].class);
    version = two.version;
    /* One entry less at each end. */
    assert_int_equal(dctf_coordinator_publish(one.coordinator, table + 1, count - 2), DCTF_OK);
    await(&two, two.version > version && two.count == count - 2);
    assert_true(two.first.feature_id == table[1].feature_id && two.first.class == DCTF_POLICY_MID);
    assert_true(two.fence == fence);
    await(&one, one.version == two.version);
    /* The server forgets all: what holds stays, and is written anew under a higher fence. */
    flush_all();
    await(&two, two.fence > fence);
    assert_int_equal(two.count, count - 2);
    assert_int_equal(dctf_coordinator_publish(one.coordinator, table, 0), DCTF_OK);
    await(&two, two.count == 0);
    assert_int_equal(future.tables, 0); /* it knows of a higher fence */
    close_node(&one);
    close_node(&two);
    close_node(&future);
    free(table);
}

static unsigned tables_of(struct node *node)
{
    unsigned tables;

    pthread_mutex_lock(&node->lock);
    tables = node->tables;
    pthread_mutex_unlock(&node->lock);
    return tables;
}

/* The head of an older table was seen before the node began to listen, its parts are read after. */
static void test_no_older_table_from_before_it_listened(void **state)
{
    struct dctf_policy_entry *table = make_table(3);
    struct node one, late;

    (void)state;
    flush_all();
    open_as(&one, "one", true, 0);
    (void)await_lead(&one);
    assert_int_equal(dctf_coordinator_publish(one.coordinator, table, 3), DCTF_OK);
    await(&one, one.tables);
    for (unsigned i = 0; i < 2; i++) {
        open_deaf(&late, "late");
        for (uint64_t until_ms = now_ms() + 150; now_ms() < until_ms;) /* some polls: the head is known */
            nap();
        listen_as(&late, false, 8000000000000);
        for (uint64_t until_ms = now_ms() + 2500; now_ms() < until_ms; nap())
            assert_int_equal(tables_of(&late), 0);
        close_node(&late);
    }
    close_node(&one);
    free(table);
}

static void test_publish_refuses(void **state)
{
    struct dctf_policy_entry *table = make_table(DCTF_COORDINATOR_POLICY_MAX + 1);
    struct dctf_policy_entry bad[] = {{5, DCTF_POLICY_HOT}, {5, DCTF_POLICY_HOT}};
    struct node one;

    (void)state;
    open_as(&one, "one", false, 0);
    assert_int_equal(dctf_coordinator_publish(one.coordinator, table, DCTF_COORDINATOR_POLICY_MAX + 1),
        DCTF_ERR_OPTION_VALUE);
    assert_int_equal(dctf_coordinator_publish(one.coordinator, bad, 2), DCTF_ERR_OPTION_VALUE);
    bad[1] = (struct dctf_policy_entry){6, DCTF_POLICY_COLD};
    assert_int_equal(dctf_coordinator_publish(one.coordinator, bad, 2), DCTF_ERR_OPTION_VALUE);
    close_node(&one);
    free(table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lead_is_one),
        cmocka_unit_test(test_lead_ends_by_own_clock),
        cmocka_unit_test(test_fence_grows_over_a_loss),
        cmocka_unit_test(test_own_lease_is_renewed_with_a_higher_fence),
        cmocka_unit_test(test_reports),
        cmocka_unit_test(test_sync),
        cmocka_unit_test(test_policy),
        cmocka_unit_test(test_no_older_table_from_before_it_listened),
        cmocka_unit_test(test_publish_refuses),
    };

    if (!redis_server_is_installed())
        return 0;
    return cmocka_run_group_tests(tests, redis_server_setup, redis_server_teardown);
}
