/* SPDX-License-Identifier: Apache-2.0
 *
 * Members through a real redis-server: what it forgets, when it stops, and nodes that die.
 */
#include "cluster/members.h"
#include "cluster/redis.h"
#include "lib/redis_server.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define BOUND_MS 15000u
#define HEARTBEAT_MS 400u
#define LEASE_MS (4 * HEARTBEAT_MS)

/* One node in this process, and what its view went through. */
struct node {
    struct dctf_members *members;
    pthread_mutex_t lock;
    size_t fewest; /* members since it was last set; guarded by lock */
    unsigned changes;
};

static uint64_t now_ms(void)
{
    return dctf_clock_mono_ms(NULL);
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
}

static void changed(void *ctx)
{
    struct node *node = ctx;
    struct dctf_view *view = dctf_members_view(node->members);

    pthread_mutex_lock(&node->lock);
    if (dctf_view_count(view) < node->fewest)
        node->fewest = dctf_view_count(view);
    node->changes++;
    pthread_mutex_unlock(&node->lock);
    dctf_view_unref(view);
}

static void watch(struct node *node)
{
    pthread_mutex_lock(&node->lock);
    node->fewest = SIZE_MAX;
    pthread_mutex_unlock(&node->lock);
}

static size_t fewest(struct node *node)
{
    size_t count;

    pthread_mutex_lock(&node->lock);
    count = node->fewest;
    pthread_mutex_unlock(&node->lock);
    return count;
}

static void open_as(struct node *node, const char *id, uint64_t incarnation, const char *cluster)
{
    char url[64], detail[256];
    struct dctf_members_config config = {
        .peers = "",
        .redis = url,
        .cluster = cluster,
        .redis_user = "",
        .redis_password = "",
        .ca_file = "",
        .self = {.weight = 1000, .zone = "z1", .incarnation = incarnation},
        .dataset = 7,
        .heartbeat_ms = HEARTBEAT_MS,
        .poll_ms = 20,
        .changed = changed,
        .ctx = node,
    };

    snprintf(url, sizeof(url), "redis://127.0.0.1:%u", redis_server_port(redis_server_shared));
    snprintf(config.self.id, sizeof(config.self.id), "%s", id);
    snprintf(config.self.addr, sizeof(config.self.addr), "%s.example:7100", id);
    *node = (struct node){.lock = PTHREAD_MUTEX_INITIALIZER, .fewest = SIZE_MAX};
    assert_int_equal(dctf_members_open(&config, detail, &node->members), DCTF_OK);
}

static void describe(struct node *node, char out[512])
{
    struct dctf_view *view = dctf_members_view(node->members);
    size_t len = 0;

    for (uint32_t i = 0; i < dctf_view_count(view); i++)
        len += (size_t)snprintf(out + len, 512 - len, "%s%s%s", i ? " " : "",
            i == dctf_view_self(view) ? "*" : "", dctf_view_node(view, i)->id);
    dctf_view_unref(view);
}

static void await_view(struct node *node, const char *want)
{
    uint64_t until_ms = now_ms() + BOUND_MS;
    char is[512] = "";

    for (;;) {
        describe(node, is);
        if (!strcmp(is, want))
            return;
        if (now_ms() >= until_ms)
            fail_msg("the view is \"%s\", not \"%s\"", is, want);
        nap();
    }
}

/* By the server's clock; 0: it is no member, or not stamped. */
static uint64_t joined_of(struct node *node, const char *id)
{
    struct dctf_view *view = dctf_members_view(node->members);
    uint32_t at = dctf_view_find(view, id);
    uint64_t joined = at == DCTF_NODE_NONE ? 0 : dctf_view_node(view, at)->joined_ms;

    dctf_view_unref(view);
    return joined;
}

static void await_joined(struct node *node, const char *id)
{
    for (uint64_t until_ms = now_ms() + BOUND_MS; !joined_of(node, id); nap())
        assert_true(now_ms() < until_ms);
}

/* It has heard from the server since now. */
static void await_confirmed(struct node *node)
{
    uint64_t from_ms = now_ms();

    while (dctf_members_age_ms(node->members) >= now_ms() - from_ms) {
        assert_true(now_ms() < from_ms + BOUND_MS);
        nap();
    }
}

static void ask(const char *word, const char *key, struct dctf_redis_value **out)
{
    char url[64], detail[256];
    struct dctf_redis_config config = {.url = url, .user = "", .password = "", .call_ms = BOUND_MS};
    const char *words[] = {word, key};
    struct dctf_redis *redis;

    snprintf(url, sizeof(url), "redis://127.0.0.1:%u", redis_server_port(redis_server_shared));
    assert_int_equal(dctf_redis_new(&config, detail, &redis), DCTF_OK);
    assert_int_equal(dctf_redis_call(redis, key ? 2 : 1, words, NULL, out), DCTF_OK);
    dctf_redis_free(redis);
}

static void flush_all(void)
{
    struct dctf_redis_value *value;

    ask("FLUSHALL", NULL, &value);
    dctf_redis_value_free(value);
}

static void two_nodes(struct node *one, struct node *two)
{
    open_as(one, "one", 1, "test");
    await_joined(one, "one");
    open_as(two, "two", 1, "test");
    await_view(one, "*one two");
    await_view(two, "one *two");
    await_joined(one, "two");
    await_joined(two, "one");
}

static void close_two(struct node *one, struct node *two)
{
    dctf_members_close(one->members);
    dctf_members_close(two->members);
}

static void test_join_and_leave(void **state)
{
    struct node one, two, other;
    struct dctf_view *views[2];

    (void)state;
    two_nodes(&one, &two);
    open_as(&other, "other", 1, "another-cluster");
    await_joined(&other, "other");
    await_view(&other, "*other");
    views[0] = dctf_members_view(one.members);
    views[1] = dctf_members_view(two.members);
    assert_true(dctf_view_hash(views[0]) == dctf_view_hash(views[1]));
    assert_string_equal(dctf_view_node(views[0], 1)->addr, "two.example:7100");
    assert_string_equal(dctf_view_node(views[0], 1)->zone, "z1");
    assert_true(dctf_view_node(views[0], 1)->weight == 1000);
    dctf_view_unref(views[0]);
    dctf_view_unref(views[1]);
    assert_true(joined_of(&one, "one") <= joined_of(&one, "two"));
    assert_true(joined_of(&one, "two") == joined_of(&two, "two"));
    dctf_members_close(two.members);
    await_view(&one, "*one"); /* it said so: no lease has to end */
    dctf_members_close(one.members);
    dctf_members_close(other.members);
}

/* --- a node in a process of its own --- */

static pid_t spawn_node(const char *id, const char *incarnation)
{
    char port[8];
    char *argv[] = {"node", (char *)id, (char *)incarnation, port, NULL};
    pid_t pid;

    snprintf(port, sizeof(port), "%u", redis_server_port(redis_server_shared));
    assert_int_equal(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ), 0);
    return pid;
}

static void kill_node(pid_t pid)
{
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static int run_node(char **argv)
{
    char url[64], detail[256];
    struct dctf_members_config config = {
        .peers = "",
        .redis = url,
        .cluster = "test",
        .redis_user = "",
        .redis_password = "",
        .ca_file = "",
        .self = {.weight = 1000, .zone = "z1"},
        .dataset = 7,
        .heartbeat_ms = HEARTBEAT_MS,
        .poll_ms = 50,
    };
    struct dctf_members *members;

    snprintf(url, sizeof(url), "redis://127.0.0.1:%s", argv[3]);
    snprintf(config.self.id, sizeof(config.self.id), "%s", argv[1]);
    snprintf(config.self.addr, sizeof(config.self.addr), "%s.example:7100", argv[1]);
    config.self.incarnation = strtoull(argv[2], NULL, 10);
    alarm(60);
    if (dctf_members_open(&config, detail, &members))
        return 1;
    for (;;)
        pause();
}

static void test_lease_ends(void **state)
{
    struct node one;
    uint64_t killed_ms;
    pid_t pid;

    (void)state;
    open_as(&one, "one", 1, "test");
    pid = spawn_node("two", "1");
    await_view(&one, "*one two");
    killed_ms = now_ms();
    kill_node(pid);
    await_view(&one, "*one");
    assert_true(now_ms() - killed_ms >= LEASE_MS / 4);
    dctf_members_close(one.members);
}

static void test_killed_and_back_within_the_lease(void **state)
{
    struct node one;
    uint64_t joined, until_ms;
    pid_t pid;

    (void)state;
    open_as(&one, "one", 1, "test");
    pid = spawn_node("two", "1");
    await_view(&one, "*one two");
    joined = joined_of(&one, "two");
    watch(&one);
    kill_node(pid);
    pid = spawn_node("two", "2");
    for (until_ms = now_ms() + BOUND_MS;; nap()) {
        struct dctf_view *view = dctf_members_view(one.members);
        uint32_t at = dctf_view_find(view, "two");
        uint64_t incarnation = at == DCTF_NODE_NONE ? 0 : dctf_view_node(view, at)->incarnation;

        dctf_view_unref(view);
        if (incarnation == 2)
            break;
        assert_true(now_ms() < until_ms);
    }
    if (fewest(&one) == 2) /* in time, that is */
        assert_true(joined_of(&one, "two") == joined);
    kill_node(pid);
    await_view(&one, "*one");
    dctf_members_close(one.members);
}

/* Two that call themselves the same: the one that began later is it. */
static void test_same_name_twice(void **state)
{
    struct node one, first, second;
    struct dctf_view *view;

    (void)state;
    open_as(&one, "one", 1, "test");
    open_as(&second, "two", 20, "test");
    await_view(&one, "*one two");
    open_as(&first, "two", 10, "test");
    await_view(&first, "one *two");
    await_confirmed(&one);
    view = dctf_members_view(one.members);
    assert_true(dctf_view_node(view, 1)->incarnation == 20);
    dctf_view_unref(view);
    dctf_members_close(first.members); /* its good-bye does not count either */
    await_confirmed(&one);
    await_view(&one, "*one two");
    dctf_members_close(second.members);
    await_view(&one, "*one");
    dctf_members_close(one.members);
}

/* --- a server that forgets, stops, dies --- */

static void must_have_kept(struct node *one, struct node *two)
{
    await_confirmed(one);
    await_confirmed(two);
    await_view(one, "*one two");
    await_view(two, "one *two");
    assert_true(fewest(one) >= 2);
    assert_true(fewest(two) >= 2);
}

/* Both are in the server's list, however they look at it. */
static void await_registered(size_t want)
{
    struct dctf_redis_value *value;
    uint64_t until_ms = now_ms() + BOUND_MS;

    for (;; nap()) {
        int64_t count;

        ask("HLEN", "{dctf:1:test:0000000000000007}:nodes", &value);
        count = value->integer;
        dctf_redis_value_free(value);
        if (count == (int64_t)want)
            return;
        assert_true(now_ms() < until_ms);
    }
}

static void test_flushed(void **state)
{
    struct node one, two, three;
    uint64_t joined[2];

    (void)state;
    two_nodes(&one, &two);
    joined[0] = joined_of(&one, "one");
    joined[1] = joined_of(&one, "two");
    watch(&one);
    watch(&two);
    flush_all();
    await_registered(2);
    must_have_kept(&one, &two);
    assert_true(joined_of(&two, "one") == joined[0]); /* the order of joining is what it was */
    assert_true(joined_of(&one, "two") == joined[1]);
    open_as(&three, "three", 1, "test");
    await_view(&one, "*one three two");
    await_view(&two, "one three *two");
    dctf_members_close(three.members);
    close_two(&one, &two);
}

static void test_server_stops_longer_than_a_lease(void **state)
{
    struct node one, two;
    uint64_t until_ms;

    (void)state;
    two_nodes(&one, &two);
    watch(&one);
    watch(&two);
    redis_server_signal(redis_server_shared, SIGSTOP);
    for (until_ms = now_ms() + 3000; now_ms() < until_ms; nap()) {
        struct dctf_view *view = dctf_members_view(one.members); /* never waits */

        assert_int_equal(dctf_view_count(view), 2);
        dctf_view_unref(view);
    }
    assert_true(dctf_members_age_ms(one.members) > 1000);
    redis_server_signal(redis_server_shared, SIGCONT);
    await_registered(2);
    must_have_kept(&one, &two);
    close_two(&one, &two);
}

static void test_server_killed(void **state)
{
    struct node one, two;

    (void)state;
    two_nodes(&one, &two);
    watch(&one);
    watch(&two);
    redis_server_restart(redis_server_shared);
    await_registered(2);
    must_have_kept(&one, &two);
    close_two(&one, &two);
}

static void test_close_without_a_server(void **state)
{
    struct node one;
    uint64_t began_ms;

    (void)state;
    redis_server_signal(redis_server_shared, SIGSTOP);
    open_as(&one, "one", 1, "test");
    await_view(&one, "*one");
    assert_true(dctf_members_age_ms(one.members) == UINT64_MAX);
    began_ms = now_ms();
    dctf_members_close(one.members);
    assert_true(now_ms() - began_ms < 5000);
    redis_server_signal(redis_server_shared, SIGCONT);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_join_and_leave),
        cmocka_unit_test(test_lease_ends),
        cmocka_unit_test(test_killed_and_back_within_the_lease),
        cmocka_unit_test(test_same_name_twice),
        cmocka_unit_test(test_flushed),
        cmocka_unit_test(test_server_stops_longer_than_a_lease),
        cmocka_unit_test(test_server_killed),
        cmocka_unit_test(test_close_without_a_server),
    };

    if (argc == 4)
        return run_node(argv);
    if (!redis_server_is_installed())
        return 0;
    return cmocka_run_group_tests(tests, redis_server_setup, redis_server_teardown);
}
