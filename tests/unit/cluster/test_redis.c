/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "base/log.h"
#include "cluster/redis.h"
#include "cluster/redis_reply.h"
#include "lib/fake_redis.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define CALL_MS 100u
#define BOUND_MS 5000u /* more than any call may take, on a machine that is busy */

/* What the server says to anything but AUTH; a NULL ends it, and the last is repeated. */
struct script {
    pthread_mutex_t lock;
    const char *answers[8];
    unsigned at, calls, auths;
    char command[8][512]; /* joined by spaces */
    const char *auth;     /* what it says to AUTH */
    bool hang, cut;
};

static void handle(void *ctx, int argc, char **argv, struct fake_redis_reply *reply)
{
    struct script *script = ctx;
    size_t len = 0;

    pthread_mutex_lock(&script->lock);
    for (int i = 0; i < argc && script->calls < 8; i++)
        len += (size_t)snprintf(
            script->command[script->calls] + len, 512 - len, "%s%.40s", i ? " " : "", argv[i]);
    script->calls++;
    if (!strcmp(argv[0], "AUTH")) {
        script->auths++;
        fake_redis_say(reply, "%s", script->auth ? script->auth : "+OK\r\n");
    } else {
        reply->hang = script->hang;
        reply->cut = script->cut;
        fake_redis_say(reply, "%s", script->answers[script->at]);
        if (script->at < 7 && script->answers[script->at + 1])
            script->at++;
    }
    pthread_mutex_unlock(&script->lock);
}

static unsigned calls_of(struct script *script)
{
    unsigned calls;

    pthread_mutex_lock(&script->lock);
    calls = script->calls;
    pthread_mutex_unlock(&script->lock);
    return calls;
}

static struct dctf_redis *connect_to(const struct fake_redis *fake, const char *user, const char *password)
{
    char url[64], detail[256];
    struct dctf_redis_config config = {.url = url, .user = user, .password = password, .call_ms = CALL_MS};
    struct dctf_redis *redis;

    snprintf(url, sizeof(url), "redis://127.0.0.1:%u", fake_redis_port(fake));
    assert_int_equal(dctf_redis_new(&config, detail, &redis), DCTF_OK);
    return redis;
}

static enum dctf_err get(struct dctf_redis *redis, struct dctf_redis_value **out)
{
    const char *words[] = {"GET", "key"};

    return dctf_redis_call(redis, 2, words, NULL, out);
}

/* One answer, and what a call makes of it. */
static void must_fail(const char *answer, enum dctf_err want)
{
    struct script script = {.lock = PTHREAD_MUTEX_INITIALIZER, .answers = {answer}};
    struct fake_redis *fake = fake_redis_start(handle, &script);
    struct dctf_redis *redis = connect_to(fake, "", "");
    struct dctf_redis_value *value;
    uint64_t began_ms = dctf_clock_mono_ms(NULL);

    assert_int_equal(get(redis, &value), want);
    assert_null(value);
    assert_true(dctf_clock_mono_ms(NULL) - began_ms < BOUND_MS);
    /* It is not asked again at once. */
    assert_true(dctf_redis_retry_ms(redis) > began_ms);
    assert_true(dctf_redis_retry_ms(redis) <= dctf_clock_mono_ms(NULL) + 400);
    assert_int_equal(get(redis, &value), DCTF_ERR_COORDINATOR_GONE);
    assert_int_equal(calls_of(&script), 1);
    dctf_redis_free(redis);
    fake_redis_stop(fake);
}

static void test_call_answers(void **state)
{
    struct script script = {.lock = PTHREAD_MUTEX_INITIALIZER,
        .answers = {
            "$5\r\nhello\r\n", ":42\r\n", "$-1\r\n", "+OK\r\n", "*3\r\n$1\r\na\r\n*1\r\n:7\r\n*0\r\n"}};
    struct fake_redis *fake = fake_redis_start(handle, &script);
    struct dctf_redis *redis = connect_to(fake, "", "");
    struct dctf_redis_value *value;
    uint64_t number;

    (void)state;
    assert_int_equal(dctf_redis_generation(redis), 0);
    assert_int_equal(get(redis, &value), DCTF_OK);
    assert_int_equal(value->type, DCTF_REDIS_STRING);
    assert_string_equal(value->text, "hello");
    assert_false(dctf_redis_value_u64(value, &number));
    dctf_redis_value_free(value);
    assert_int_equal(get(redis, &value), DCTF_OK);
    assert_true(dctf_redis_value_u64(value, &number) && number == 42);
    dctf_redis_value_free(value);
    assert_int_equal(get(redis, &value), DCTF_OK);
    assert_int_equal(value->type, DCTF_REDIS_NIL);
    dctf_redis_value_free(value);
    assert_int_equal(get(redis, &value), DCTF_OK);
    dctf_redis_value_free(value);
    assert_int_equal(get(redis, &value), DCTF_OK);
    assert_int_equal(value->count, 3);
    assert_int_equal(value->items[1]->items[0]->integer, 7);
    assert_int_equal(value->items[2]->count, 0);
    dctf_redis_value_free(value);
    assert_string_equal(script.command[0], "GET key");
    assert_int_equal(dctf_redis_generation(redis), 1);
    assert_int_equal(dctf_redis_retry_ms(redis), 0);
    dctf_redis_free(redis);
    fake_redis_stop(fake);
}

static void test_call_refused(void **state)
{
    (void)state;
    must_fail("-LOADING Redis is loading the dataset in memory\r\n", DCTF_ERR_COORDINATOR_REFUSED);
    must_fail("-NOAUTH Authentication required.\r\n", DCTF_ERR_COORDINATOR_REFUSED);
    must_fail("-READONLY You can't write against a read only replica.\r\n", DCTF_ERR_COORDINATOR_REFUSED);
    must_fail("-MOVED nonsense\r\n", DCTF_ERR_COORDINATOR_REFUSED);
    must_fail("-MOVED 1 bad host:1\r\n", DCTF_ERR_COORDINATOR_REFUSED);
}

static void test_call_not_understood(void **state)
{
    (void)state;
    must_fail("HTTP/1.1 400 Bad Request\r\n\r\n", DCTF_ERR_COORDINATOR_ANSWER);
    must_fail("*2147483647\r\n", DCTF_ERR_COORDINATOR_ANSWER);
    must_fail(":1\r\n:2\r\n", DCTF_ERR_COORDINATOR_ANSWER);
    must_fail("*-2\r\n", DCTF_ERR_COORDINATOR_ANSWER);
    must_fail("*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
        DCTF_ERR_COORDINATOR_ANSWER);
    must_fail("*2\r\n$1\r\na\r\n*9999999999999999999\r\n", DCTF_ERR_COORDINATOR_ANSWER);
}

static void test_call_incomplete(void **state)
{
    (void)state;
    must_fail("", DCTF_ERR_COORDINATOR_GONE);
    must_fail("$5\r\nhel", DCTF_ERR_COORDINATOR_GONE);
    must_fail("*2\r\n:1\r\n", DCTF_ERR_COORDINATOR_GONE);
    must_fail("$99999999999\r\nabc", DCTF_ERR_COORDINATOR_GONE);
}

static void test_call_cut(void **state)
{
    struct script script = {.lock = PTHREAD_MUTEX_INITIALIZER, .answers = {"$5\r\nhel"}, .cut = true};
    struct fake_redis *fake = fake_redis_start(handle, &script);
    struct dctf_redis *redis = connect_to(fake, "", "");
    struct dctf_redis_value *value;

    (void)state;
    assert_int_equal(get(redis, &value), DCTF_ERR_COORDINATOR_GONE);
    dctf_redis_free(redis);
    fake_redis_stop(fake);
}

static void nap_until(uint64_t due_ms)
{
    while (dctf_clock_mono_ms(NULL) < due_ms)
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

static void test_call_after_back_off(void **state)
{
    struct script script = {.lock = PTHREAD_MUTEX_INITIALIZER, .answers = {"-LOADING wait\r\n", ":1\r\n"}};
    struct fake_redis *fake = fake_redis_start(handle, &script);
    struct dctf_redis *redis = connect_to(fake, "", "");
    struct dctf_redis_value *value;

    (void)state;
    assert_int_equal(get(redis, &value), DCTF_ERR_COORDINATOR_REFUSED);
    nap_until(dctf_redis_retry_ms(redis));
    assert_int_equal(get(redis, &value), DCTF_OK);
    dctf_redis_value_free(value);
    assert_int_equal(dctf_redis_retry_ms(redis), 0);
    assert_int_equal(dctf_redis_generation(redis), 2);
    dctf_redis_free(redis);
    fake_redis_stop(fake);
}

static void test_call_moved(void **state)
{
    struct script there = {.lock = PTHREAD_MUTEX_INITIALIZER, .answers = {":1\r\n"}};
    struct fake_redis *to = fake_redis_start(handle, &there);
    char moved[64];
    struct script here = {.lock = PTHREAD_MUTEX_INITIALIZER, .answers = {moved}};
    struct fake_redis *from = fake_redis_start(handle, &here);
    struct dctf_redis *redis = connect_to(from, "", "secret");
    struct dctf_redis_value *value;

    (void)state;
    snprintf(moved, sizeof(moved), "-MOVED 3999 127.0.0.1:%u\r\n", fake_redis_port(to));
    for (int i = 0; i < 2; i++) { /* the second goes there at once */
        assert_int_equal(get(redis, &value), DCTF_OK);
        dctf_redis_value_free(value);
    }
    assert_int_equal(calls_of(&here), 2); /* AUTH, GET */
    assert_int_equal(calls_of(&there), 3);
    assert_int_equal(there.auths, 1);
    dctf_redis_free(redis);
    fake_redis_stop(from);
    fake_redis_stop(to);
}

/* Two servers that send each other what they are asked. */
static void test_call_moved_in_a_circle(void **state)
{
    char moved[64];
    struct script script = {.lock = PTHREAD_MUTEX_INITIALIZER, .answers = {moved}};
    struct fake_redis *fake = fake_redis_start(handle, &script);
    struct dctf_redis *redis = connect_to(fake, "", "");
    struct dctf_redis_value *value;

    (void)state;
    snprintf(moved, sizeof(moved), "-MOVED 3999 :%u\r\n", fake_redis_port(fake));
    assert_int_equal(get(redis, &value), DCTF_ERR_COORDINATOR_REFUSED);
    assert_int_equal(calls_of(&script), 2);
    dctf_redis_free(redis);
    fake_redis_stop(fake);
}

static void test_eval_sends_the_script_once(void **state)
{
    struct script script = {.lock = PTHREAD_MUTEX_INITIALIZER,
        .answers = {"-NOSCRIPT No matching script.\r\n", ":1\r\n", ":2\r\n"}};
    struct fake_redis *fake = fake_redis_start(handle, &script);
    struct dctf_redis *redis = connect_to(fake, "", "");
    struct dctf_redis_script lua = {.text = "return 1"};
    const char *words[] = {"key", "arg"};
    struct dctf_redis_value *value;

    (void)state;
    for (int i = 1; i <= 2; i++) {
        assert_int_equal(dctf_redis_eval(redis, &lua, 1, 2, words, NULL, &value), DCTF_OK);
        assert_int_equal(value->integer, i);
        dctf_redis_value_free(value);
    }
    assert_string_equal(script.command[0], "EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db 1 key arg");
    assert_string_equal(script.command[1], "EVAL return 1 1 key arg");
    assert_string_equal(script.command[2], script.command[0]);
    dctf_redis_free(redis);
    fake_redis_stop(fake);
}

static void test_eval_never_known(void **state)
{
    struct script script = {.lock = PTHREAD_MUTEX_INITIALIZER, .answers = {"-NOSCRIPT No.\r\n"}};
    struct fake_redis *fake = fake_redis_start(handle, &script);
    struct dctf_redis *redis = connect_to(fake, "", "");
    struct dctf_redis_script lua = {.text = "return 1"};
    struct dctf_redis_value *value;

    (void)state;
    assert_int_equal(dctf_redis_eval(redis, &lua, 0, 0, NULL, NULL, &value), DCTF_ERR_COORDINATOR_REFUSED);
    assert_int_equal(calls_of(&script), 2);
    assert_true(dctf_redis_retry_ms(redis) > 0);
    dctf_redis_free(redis);
    fake_redis_stop(fake);
}

/* A server that repeats what it was sent must not bring the password into the log. */
static void test_auth_keeps_the_secret(void **state)
{
    struct script script = {.lock = PTHREAD_MUTEX_INITIALIZER,
        .answers = {":1\r\n"},
        .auth = "-ERR unknown command 'AUTH', with args beginning with: 'ann' 'tiger-lily'\r\n"};
    struct fake_redis *fake = fake_redis_start(handle, &script);
    struct dctf_redis *redis = connect_to(fake, "ann", "tiger-lily");
    char path[] = "/tmp/dctf-test-redis-XXXXXX", text[8192] = "";
    struct dctf_log_config config = {.level = DCTF_LOG_DEBUG, .file = path};
    struct dctf_redis_value *value;
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(dctf_log_setup(&config), DCTF_OK);
    assert_int_equal(get(redis, &value), DCTF_ERR_COORDINATOR_REFUSED);
    assert_int_equal(dctf_log_setup(&(struct dctf_log_config){.level = DCTF_LOG_WARN}), DCTF_OK);
    assert_true(read(fd, text, sizeof(text) - 1) > 0);
    close(fd);
    unlink(path);
    assert_non_null(strstr(text, "AUTH: ERR"));
    assert_non_null(strstr(text, "err=1009"));
    assert_null(strstr(text, "tiger"));
    assert_string_equal(script.command[0], "AUTH ann tiger-lily");
    dctf_redis_free(redis);
    fake_redis_stop(fake);
}

static void test_connect_refused(void **state)
{
    struct script script = {.lock = PTHREAD_MUTEX_INITIALIZER, .answers = {":1\r\n"}};
    struct fake_redis *fake = fake_redis_start(handle, &script);
    struct dctf_redis *redis = connect_to(fake, "", "");
    struct dctf_redis_value *value;
    uint64_t before_ms = 0;

    (void)state;
    fake_redis_stop(fake);
    for (int i = 0; i < 3; i++) {
        nap_until(dctf_redis_retry_ms(redis));
        before_ms = dctf_clock_mono_ms(NULL);
        assert_int_equal(get(redis, &value), DCTF_ERR_COORDINATOR_GONE);
        assert_true(dctf_redis_retry_ms(redis) >= before_ms + 200);
    }
    assert_true(dctf_redis_retry_ms(redis) <= dctf_clock_mono_ms(NULL) + 1600);
    dctf_redis_free(redis);
}

static void refuse_url(const char *url, const char *ca_file, const char *why)
{
    struct dctf_redis_config config = {.url = url, .user = "", .password = "", .ca_file = ca_file};
    struct dctf_redis *redis = (void *)1;
    char detail[256];

    assert_int_equal(dctf_redis_new(&config, detail, &redis), DCTF_ERR_OPTION_VALUE);
    assert_null(redis);
    assert_non_null(strstr(detail, why));
    assert_null(strstr(detail, "hunter2"));
}

static void test_new_refuses(void **state)
{
    (void)state;
    refuse_url("", "", "neither");
    refuse_url("http://a:1", "", "neither");
    refuse_url("redis://", "", "host is missing");
    refuse_url("redis://:hunter2@a:1", "", "redis_password");
    refuse_url("redis://a:1/hunter2", "", "after the port");
    refuse_url("redis://a:x", "", "port");
    refuse_url("rediss://a:1", "/nonexistent/ca.pem", "ca_file");
}

static void test_reader_bounds(void **state)
{
    struct dctf_redis_reader *reader;
    struct dctf_redis_value *value;
    char *block = calloc(1, 1 << 20);
    enum dctf_err err = DCTF_OK;
    unsigned fed = 0;

    (void)state;
    assert_non_null(block);
    assert_int_equal(dctf_redis_reader_new(&reader), DCTF_OK);
    assert_int_equal(dctf_redis_reader_feed(reader, "$99999999\r\n", 11), DCTF_OK);
    while (!err && ++fed < 64) {
        err = dctf_redis_reader_feed(reader, block, 1 << 20);
        if (!err)
            assert_int_equal(dctf_redis_reader_next(reader, &value), DCTF_OK);
    }
    assert_int_equal(err, DCTF_ERR_COORDINATOR_ANSWER);
    assert_true(fed <= 16);
    dctf_redis_reader_free(reader);
    free(block);
    /* Many values in many arrays. */
    assert_int_equal(dctf_redis_reader_new(&reader), DCTF_OK);
    assert_int_equal(dctf_redis_reader_feed(reader, "*3\r\n*100000\r\n", 13), DCTF_OK);
    for (int i = 0; i < 100000; i++)
        assert_int_equal(dctf_redis_reader_feed(reader, ":1\r\n", 4), DCTF_OK);
    assert_int_equal(dctf_redis_reader_next(reader, &value), DCTF_OK);
    assert_int_equal(dctf_redis_reader_feed(reader, "*100000\r\n", 9), DCTF_OK);
    assert_int_equal(dctf_redis_reader_next(reader, &value), DCTF_ERR_COORDINATOR_ANSWER);
    dctf_redis_reader_free(reader);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_call_answers),
        cmocka_unit_test(test_call_refused),
        cmocka_unit_test(test_call_not_understood),
        cmocka_unit_test(test_call_incomplete),
        cmocka_unit_test(test_call_cut),
        cmocka_unit_test(test_call_after_back_off),
        cmocka_unit_test(test_call_moved),
        cmocka_unit_test(test_call_moved_in_a_circle),
        cmocka_unit_test(test_eval_sends_the_script_once),
        cmocka_unit_test(test_eval_never_known),
        cmocka_unit_test(test_auth_keeps_the_secret),
        cmocka_unit_test(test_connect_refused),
        cmocka_unit_test(test_new_refuses),
        cmocka_unit_test(test_reader_bounds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
