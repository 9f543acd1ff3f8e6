/* SPDX-License-Identifier: Apache-2.0
 *
 * Members by a server that answers what the test says: old data, nonsense, nothing.
 */
#include "cluster/coordinator_record.h"
#include "cluster/members.h"
#include "lib/fail_alloc.h"
#include "lib/fake_redis.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define BOUND_MS 10000u

/* The server. A log of `count` entries "1-0" …, each a member "n1" …, is told from where it is asked for. */
static struct {
    pthread_mutex_t lock;
    unsigned count;      /* entries of the log, members in the list */
    unsigned first;      /* the oldest entry that is still there */
    const char *instead; /* of any answer; NULL: none */
    const char *instead_of_full, *instead_of_log;
    const char *record; /* of member n1; NULL: a good one */
    /* Who is left out: its version and fence in the head, 0: nobody is; and what is found then. */
    unsigned version, fence;
    unsigned char excluded[512];
    size_t excluded_len; /* 0: nothing */
    bool hang;
    unsigned gets;
    unsigned calls, beats, fulls, logs;
} is = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void say_text(struct fake_redis_reply *reply, const char *text)
{
    fake_redis_bulk(reply, text, strlen(text));
}

static void say_record(struct fake_redis_reply *reply, unsigned i)
{
    char record[128];

    snprintf(record, sizeof(record), "%u|1|{\"a\":\"n%u:1\",\"z\":\"\",\"r\":\"\",\"h\":\"\",\"w\":5}",
        100 + i, i);
    say_text(reply, i == 1 && is.record ? is.record : record);
}

static void say_name(struct fake_redis_reply *reply, const char *format, unsigned i)
{
    char name[32];

    snprintf(name, sizeof(name), "%s%u%s", *format == 'n' ? "n" : "", i, *format == 'n' ? "" : "-0");
    say_text(reply, name);
}

static void say_full(struct fake_redis_reply *reply)
{
    is.fulls++;
    if (is.instead_of_full) {
        fake_redis_say(reply, "%s", is.instead_of_full);
        return;
    }
    fake_redis_say(reply, "*%u\r\n", 1 + 2 * is.count);
    say_name(reply, "-", is.count);
    for (unsigned i = 1; i <= is.count; i++) {
        say_name(reply, "n", i);
        say_record(reply, i);
    }
}

static void say_log(struct fake_redis_reply *reply, const char *from, unsigned most)
{
    unsigned at = (unsigned)strtoul(from, NULL, 10), end;

    is.logs++;
    if (is.instead_of_log) {
        fake_redis_say(reply, "%s", is.instead_of_log);
        return;
    }
    if (at < is.first)
        at = is.first;
    end = at + most - 1 < is.count ? at + most - 1 : is.count;
    fake_redis_say(reply, "*%u\r\n", at <= end ? end - at + 1 : 0);
    for (; at <= end; at++) {
        fake_redis_say(reply, "*2\r\n");
        say_name(reply, "-", at);
        fake_redis_say(reply, "*6\r\n");
        say_text(reply, "o");
        say_text(reply, "set");
        say_text(reply, "n");
        say_name(reply, "n", at);
        say_text(reply, "r");
        say_record(reply, at);
    }
}

static void say_head(struct fake_redis_reply *reply)
{
    fake_redis_say(reply, "*7\r\n");
    say_name(reply, "-", is.count);
    fake_redis_say(reply, "$-1\r\n$-1\r\n$-1\r\n$-1\r\n");
    for (int i = 0; i < 2; i++) {
        char number[16];

        snprintf(number, sizeof(number), "%u", i ? is.fence : is.version);
        if (is.version)
            say_text(reply, number);
        else
            fake_redis_say(reply, "$-1\r\n");
    }
}

static void say_excluded(struct fake_redis_reply *reply)
{
    is.gets++;
    if (is.excluded_len)
        fake_redis_bulk(reply, is.excluded, is.excluded_len);
    else
        fake_redis_say(reply, "$-1\r\n");
}

static void handle(void *ctx, int argc, char **argv, struct fake_redis_reply *reply)
{
    (void)ctx;
    pthread_mutex_lock(&is.lock);
    is.calls++;
    reply->hang = is.hang;
    if (is.hang || is.instead) {
        if (is.instead)
            fake_redis_say(reply, "%s", is.instead);
    } else if (!strcmp(argv[0], "EVALSHA") && argc > 10) {
        is.beats++;
        fake_redis_say(reply, "*2\r\n$2\r\nok\r\n$2\r\n99\r\n");
    } else if (!strcmp(argv[0], "EVALSHA")) {
        say_full(reply);
    } else if (!strcmp(argv[0], "HMGET")) {
        say_head(reply);
    } else if (!strcmp(argv[0], "GET")) {
        say_excluded(reply);
    } else if (!strcmp(argv[0], "XRANGE")) {
        say_log(reply, argv[2], (unsigned)strtoul(argv[5], NULL, 10));
    } else {
        fake_redis_say(reply, "*0\r\n"); /* what is not about members finds nothing */
    }
    pthread_mutex_unlock(&is.lock);
}

static uint64_t now_ms(void)
{
    return dctf_clock_mono_ms(NULL);
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

static struct dctf_members *open_at(const struct fake_redis *fake)
{
    char url[64], detail[256];
    struct dctf_members_config config = {
        .peers = "",
        .redis = url,
        .cluster = "test",
        .redis_user = "",
        .redis_password = "",
        .ca_file = "",
        .self = {.id = "self", .addr = "self:1", .weight = 5, .incarnation = 1},
        .heartbeat_ms = 200,
        .poll_ms = 10,
    };
    struct dctf_members *members;

    snprintf(url, sizeof(url), "redis://127.0.0.1:%u", fake_redis_port(fake));
    assert_int_equal(dctf_members_open(&config, detail, &members), DCTF_OK);
    return members;
}

static size_t count_of(struct dctf_members *members)
{
    struct dctf_view *view = dctf_members_view(members);
    size_t count = dctf_view_count(view);

    dctf_view_unref(view);
    return count;
}

static void await_count(struct dctf_members *members, size_t want)
{
    for (uint64_t until_ms = now_ms() + BOUND_MS; count_of(members) != want; nap()) {
        if (now_ms() >= until_ms)
            fail_msg("%zu members, not %zu", count_of(members), want);
    }
}

#define change(what)                                                                                         \
    do {                                                                                                     \
        pthread_mutex_lock(&is.lock);                                                                        \
        what;                                                                                                \
        pthread_mutex_unlock(&is.lock);                                                                      \
    } while (0)

static unsigned count_calls(const unsigned *counter)
{
    unsigned count;

    change(count = *counter);
    return count;
}

/* Until `counter` has grown by `by` from now on. */
static void await_more(const unsigned *counter, unsigned by)
{
    uint64_t until_ms = now_ms() + BOUND_MS;
    unsigned from, now;

    change(from = *counter);
    do {
        assert_true(now_ms() < until_ms);
        nap();
        change(now = *counter);
    } while (now < from + by);
}

static int reset(void **state)
{
    change(is.count = 3; is.first = 1; is.instead = is.instead_of_full = is.instead_of_log = is.record = NULL;
           is.hang = false; is.version = is.fence = is.gets = 0; is.excluded_len = 0;
           is.calls = is.beats = is.fulls = is.logs = 0);
    *state = fake_redis_start(handle, NULL);
    return 0;
}

static int end(void **state)
{
    fake_redis_stop(*state);
    return 0;
}

static void test_follow_the_log(void **state)
{
    struct dctf_members *members = open_at(*state);

    await_count(members, 4);
    change(is.count = 5);
    await_count(members, 6);
    change(is.count = 2000); /* several answers full */
    await_count(members, 2001);
    assert_true(count_calls(&is.logs) >= 4);
    dctf_members_close(members);
}

static void test_log_trimmed_too_far(void **state)
{
    struct dctf_members *members = open_at(*state);

    await_count(members, 4);
    change(is.count = 50; is.first = 20);
    await_count(members, 51);
    assert_true(count_calls(&is.fulls) >= 2);
    dctf_members_close(members);
}

/* A copy took over that lacks the last: whoever it lacks is kept, for they will be back. */
static void test_server_goes_back(void **state)
{
    struct dctf_members *members = open_at(*state);

    await_count(members, 4);
    change(is.count = 1);
    await_more(&is.fulls, 1);
    await_more(&is.calls, 10);
    assert_int_equal(count_of(members), 4);
    change(is.count = 6);
    await_count(members, 7);
    dctf_members_close(members);
}

static void keeps_over(struct fake_redis *fake, const char **what, const char *answer)
{
    struct dctf_members *members = open_at(fake);

    await_count(members, 4);
    change(*what = answer; is.count = 5; is.first = 5);
    await_more(&is.calls, 1);
    fake_redis_cut_all(fake);
    await_more(&is.calls, 1);
    assert_int_equal(count_of(members), 4);
    change(*what = NULL);
    await_count(members, 6);
    assert_true(dctf_members_age_ms(members) < BOUND_MS);
    dctf_members_close(members);
    change(is.count = 3; is.first = 1);
}

static void test_nonsense_keeps_the_view(void **state)
{
    keeps_over(*state, &is.instead, "-LOADING Redis is loading\r\n");
    keeps_over(*state, &is.instead, "*0\r\n");
    keeps_over(*state, &is.instead, "*7\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n");
    keeps_over(*state, &is.instead_of_full, "*0\r\n");
    keeps_over(*state, &is.instead_of_full, "*2\r\n$3\r\n1-0\r\n$2\r\nn1\r\n");
    keeps_over(*state, &is.instead_of_full, "*1\r\n$4\r\nwhat\r\n");
}

static void test_nonsense_in_the_log(void **state)
{
    struct dctf_members *members = open_at(*state);

    await_count(members, 4);
    change(is.instead_of_log = "*1\r\n:1\r\n"; is.count = 5);
    await_count(members, 6); /* by the list */
    assert_true(count_calls(&is.fulls) >= 2);
    dctf_members_close(members);
}

static void test_silence_keeps_the_view(void **state)
{
    struct fake_redis *fake = *state;
    struct dctf_members *members = open_at(fake);
    uint64_t until_ms;

    await_count(members, 4);
    change(is.hang = true);
    for (until_ms = now_ms() + 1000; now_ms() < until_ms; nap())
        assert_int_equal(count_of(members), 4);
    assert_true(dctf_members_age_ms(members) >= 500);
    change(is.hang = false; is.count = 5);
    await_count(members, 6);
    dctf_members_close(members);
}

static void bad_record(struct fake_redis *fake, const char *record)
{
    struct dctf_members *members;

    change(is.record = record; is.count = 3);
    members = open_at(fake);
    await_count(members, 3);
    dctf_members_close(members);
}

static void test_bad_records_are_passed_over(void **state)
{
    bad_record(*state, "");
    bad_record(*state, "1|1|{}");
    bad_record(*state, "1|1|[]");
    bad_record(*state, "{\"a\":\"a:1\",\"z\":\"\",\"r\":\"\",\"h\":\"\",\"w\":5}");
    bad_record(*state, "1|1|{\"a\":\"a:1\",\"z\":\"\",\"r\":\"\",\"h\":\"\",\"w\":-5}");
    bad_record(*state, "1|1|{\"a\":\"a:1\",\"z\":\"\",\"r\":\"\",\"h\":\"\",\"w\":1e300}");
    bad_record(*state, "1|1|{\"a\":\"\",\"z\":\"\",\"r\":\"\",\"h\":\"\",\"w\":5}");
    bad_record(*state, "1|1|{\"a\":\"a:1/..\",\"z\":\"\",\"r\":\"\",\"h\":\"\",\"w\":5}");
    bad_record(*state, "1|1|{\"a\":\"a:1\",\"z\":\"a\\u0000b\",\"r\":\"\",\"h\":\"\",\"w\":5}");
    bad_record(*state, "1|1|{\"a\":\"a:1\",\"z\":\"a\\nb\",\"r\":\"\",\"h\":\"\",\"w\":5}");
    bad_record(*state, "1|1|{\"a\":\"a:1\",\"z\":\"a zone that is longer than what a zone may "
                       "be\",\"r\":\"\",\"h\":\"\",\"w\":5}");
    bad_record(*state, "99999999999999999999|1|{\"a\":\"a:1\",\"z\":\"\",\"r\":\"\",\"h\":\"\",\"w\":5}");
}

static void test_refresh_looks_at_once(void **state)
{
    struct fake_redis *fake = *state;
    struct dctf_members *members = open_at(fake);

    await_count(members, 4);
    for (int i = 0; i < 1000; i++)
        dctf_members_refresh(members);
    await_more(&is.calls, 3);
    dctf_members_close(members);
}

static void test_open_refuses(void **state)
{
    static const struct {
        const char *id, *addr, *cluster, *redis, *why;
    } bad[] = {
        {"self", "self:1", "a}b", "redis://a", "cluster:"},
        {"self", "self:1", "", "redis://a", "cluster:"},
        {"a b", "self:1", "c", "redis://a", "node:"},
        {"", "self:1", "c", "redis://a", "node:"},
        {"self", "0.0.0.0:7100", "c", "redis://a", "advertise"},
        {"self", "[::]:7100", "c", "redis://a", "advertise"},
        {"self", "self", "c", "redis://a", "port is missing"},
        {"self", "self:1", "c", "a:6379", "neither redis:"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct dctf_members_config config = {.peers = "", .redis = bad[i].redis, .cluster = bad[i].cluster};
        struct dctf_members *members = (void *)1;
        char detail[256];

        snprintf(config.self.id, sizeof(config.self.id), "%s", bad[i].id);
        snprintf(config.self.addr, sizeof(config.self.addr), "%s", bad[i].addr);
        assert_int_equal(dctf_members_open(&config, detail, &members), DCTF_ERR_OPTION_VALUE);
        assert_null(members);
        if (!strstr(detail, bad[i].why))
            fail_msg("\"%s\" does not say \"%s\"", detail, bad[i].why);
    }
}

static enum dctf_err make(void *ctx)
{
    struct dctf_members_config config = {.peers = "", .redis = "redis://127.0.0.1:1", .cluster = "test"};
    char detail[256];

    snprintf(config.self.id, sizeof(config.self.id), "self");
    return dctf_members_open(&config, detail, ctx);
}

static void drop(void *ctx)
{
    dctf_members_close(*(struct dctf_members **)ctx);
}

static void test_open_without_memory(void **state)
{
    struct dctf_members *members = NULL;

    (void)state;
    assert_true(fail_alloc_sweep(make, drop, &members, (void **)&members) > 10);
}

/* How many of the members have no weight. */
static size_t excluded_in(struct dctf_members *members)
{
    struct dctf_view *view = dctf_members_view(members);
    size_t count = 0;

    for (uint32_t i = 0; i < dctf_view_count(view); i++)
        count += dctf_view_node(view, i)->excluded;
    dctf_view_unref(view);
    return count;
}

static void await_excluded(struct dctf_members *members, size_t want)
{
    for (uint64_t until_ms = now_ms() + BOUND_MS; excluded_in(members) != want; nap()) {
        if (now_ms() >= until_ms)
            fail_msg("%zu are left out, not %zu", excluded_in(members), want);
    }
}

static int compare_numbers(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;

    return left < right ? -1 : left > right;
}

/* Members n1 … are left out. */
static void write_excluded(unsigned version, unsigned fence, unsigned count)
{
    static unsigned char record[DCTF_COORDINATOR_RECORD_MAX];
    struct dctf_excluded_head head = {.fence = fence, .version = version, .count = count};
    uint64_t nodes[16];
    size_t len;

    for (unsigned i = 0; i < count; i++) {
        char id[16];

        snprintf(id, sizeof(id), "n%u", i + 1);
        nodes[i] = dctf_exclusion_id(id);
    }
    qsort(nodes, count, sizeof(*nodes), compare_numbers);
    len = dctf_excluded_encode(&head, nodes, record);
    assert_true(len <= sizeof(is.excluded));
    change(is.version = version; is.fence = fence; is.excluded_len = len; memcpy(is.excluded, record, len));
}

static void test_who_is_left_out(void **state)
{
    struct dctf_members *members;

    change(is.count = 10);
    members = open_at(*state);
    await_count(members, 11);
    assert_int_equal(excluded_in(members), 0);
    write_excluded(1, 1000, 2);
    await_excluded(members, 2);
    write_excluded(2, 1000, 1);
    await_excluded(members, 1);
    /* An old leader's word, be it a higher version, is not even asked for. */
    change(is.gets = 0);
    write_excluded(9, 999, 4);
    await_more(&is.calls, 20);
    assert_int_equal(count_calls(&is.gets), 0);
    assert_int_equal(excluded_in(members), 1);
    /* A majority is nonsense, and so is what does not fit its sum: the first leaves nobody out, the second
     * all as it was. */
    write_excluded(3, 1001, 6);
    await_excluded(members, 0);
    write_excluded(4, 1001, 3);
    await_excluded(members, 3);
    change(is.gets = 0; is.version = 6; is.excluded[20] ^= 1);
    await_more(&is.calls, 20);
    assert_int_equal(count_calls(&is.gets), 1); /* not over and over */
    assert_int_equal(excluded_in(members), 3);
    /* What has expired, and what is not in the head any more, holds no longer. */
    write_excluded(7, 1001, 3);
    await_excluded(members, 3);
    change(is.version = 8; is.excluded_len = 0);
    await_excluded(members, 0);
    write_excluded(9, 1001, 2);
    await_excluded(members, 2);
    change(is.version = 0);
    await_excluded(members, 0);
    dctf_members_close(members);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_follow_the_log, reset, end),
        cmocka_unit_test_setup_teardown(test_log_trimmed_too_far, reset, end),
        cmocka_unit_test_setup_teardown(test_server_goes_back, reset, end),
        cmocka_unit_test_setup_teardown(test_nonsense_keeps_the_view, reset, end),
        cmocka_unit_test_setup_teardown(test_nonsense_in_the_log, reset, end),
        cmocka_unit_test_setup_teardown(test_silence_keeps_the_view, reset, end),
        cmocka_unit_test_setup_teardown(test_bad_records_are_passed_over, reset, end),
        cmocka_unit_test_setup_teardown(test_refresh_looks_at_once, reset, end),
        cmocka_unit_test_setup_teardown(test_who_is_left_out, reset, end),
        cmocka_unit_test(test_open_refuses),
        cmocka_unit_test(test_open_without_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
