/* SPDX-License-Identifier: Apache-2.0
 *
 * Renewal on a clock that the test moves: a container endpoint hands out sets that live as
 * long as the test says, fails, or holds on.
 */
#include "transport/s3_credentials.h"

#include "lib/http_script.h"
#include "transport/s3_credentials_internal.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
/* cmocka needs the four above first */
#include <cmocka.h>

#define WAIT_MS 60000u
#define START_MS 1800000000000u

struct world {
    atomic_ullong now_ms; /* both clocks */
    bool real_clock;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t life_ms;    /* guarded by lock, as all below */
    uint64_t expires_ms; /* 0: life_ms from now; else every set has it */
    bool failing;
    bool holding;
    bool same_key;
    unsigned asked;
    unsigned given;
    struct http_script *script;
    char uri[128];
    char *env[4];
    struct dctf_s3_credentials *credentials;
};

static uint64_t fake_mono_ns(void *ctx)
{
    return atomic_load(&((struct world *)ctx)->now_ms) * 1000000u;
}

static uint64_t fake_wall_ms(void *ctx)
{
    return atomic_load(&((struct world *)ctx)->now_ms);
}

static uint64_t world_now_ms(struct world *world)
{
    return world->real_clock ? dctf_clock_wall_ms(NULL) : atomic_load(&world->now_ms);
}

static void hand_out(void *ctx, const struct http_script_request *request, struct http_script_reply *reply)
{
    struct world *world = ctx;
    uint64_t expires_ms;
    time_t expires_s;
    struct tm tm;
    char when[32];

    assert_string_equal(request->target, "/keys");
    pthread_mutex_lock(&world->lock);
    world->asked++;
    pthread_cond_broadcast(&world->changed);
    while (world->holding)
        pthread_cond_wait(&world->changed, &world->lock);
    if (world->failing) {
        reply->status = 500;
    } else {
        expires_ms = world->expires_ms ? world->expires_ms : world_now_ms(world) + world->life_ms;
        expires_s = (time_t)(expires_ms / 1000);
        strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%S", gmtime_r(&expires_s, &tm));
        if (!world->same_key || !world->given)
            world->given++;
        snprintf(reply->body, sizeof(reply->body),
            "{\"AccessKeyId\":\"ASIA%08u\",\"SecretAccessKey\":\"secret\",\"Token\":\"token\","
            "\"Expiration\":\"%s.%03uZ\"}",
            world->given, when, (unsigned)(expires_ms % 1000));
    }
    pthread_mutex_unlock(&world->lock);
}

static void set_bool(struct world *world, bool *field, bool value)
{
    pthread_mutex_lock(&world->lock);
    *field = value;
    pthread_cond_broadcast(&world->changed);
    pthread_mutex_unlock(&world->lock);
}

static void set_u64(struct world *world, uint64_t *field, uint64_t value)
{
    pthread_mutex_lock(&world->lock);
    *field = value;
    pthread_mutex_unlock(&world->lock);
}

static unsigned count_asked(struct world *world)
{
    unsigned asked;

    pthread_mutex_lock(&world->lock);
    asked = world->asked;
    pthread_mutex_unlock(&world->lock);
    return asked;
}

static void wait_asked(struct world *world, unsigned count)
{
    pthread_mutex_lock(&world->lock);
    while (world->asked < count)
        pthread_cond_wait(&world->changed, &world->lock);
    pthread_mutex_unlock(&world->lock);
}

static struct world *make_world(bool real_clock)
{
    struct world *world = calloc(1, sizeof(*world));
    const struct dctf_clock clock = {fake_mono_ns, fake_wall_ms, world};
    struct dctf_s3_credentials_config config = {
        .clock = real_clock ? NULL : &clock, .call_timeout_ms = 100000};

    assert_non_null(world);
    atomic_init(&world->now_ms, START_MS);
    world->real_clock = real_clock;
    pthread_mutex_init(&world->lock, NULL);
    pthread_cond_init(&world->changed, NULL);
    world->life_ms = 3600000;
    world->script = http_script_start(hand_out, world);
    snprintf(world->uri, sizeof(world->uri), "AWS_CONTAINER_CREDENTIALS_FULL_URI=http://127.0.0.1:%u/keys",
        http_script_port(world->script));
    world->env[0] = world->uri;
    world->env[1] = (char *)(uintptr_t) "HOME=/nonexistent";
    world->env[2] = (char *)(uintptr_t) "AWS_EC2_METADATA_DISABLED=true";
    config.env = world->env;
    assert_int_equal(dctf_s3_credentials_new(&config, &world->credentials), DCTF_OK);
    return world;
}

static int setup(void **state)
{
    *state = make_world(false);
    return 0;
}

static int setup_real(void **state)
{
    *state = make_world(true);
    return 0;
}

static int teardown(void **state)
{
    struct world *world = *state;

    set_bool(world, &world->holding, false);
    dctf_s3_credentials_free(world->credentials);
    http_script_stop(world->script);
    pthread_cond_destroy(&world->changed);
    pthread_mutex_destroy(&world->lock);
    free(world);
    return 0;
}

/* Let time pass, and what it makes due happen. */
static void pass_s(struct world *world, uint64_t seconds)
{
    atomic_fetch_add(&world->now_ms, seconds * 1000);
    dctf_s3_credentials_settle(world->credentials);
}

/* The key in use; it must be valid. */
static void get_valid(struct world *world, uint64_t wait_ms, char key[32])
{
    struct dctf_s3_keys *keys;

    assert_int_equal(dctf_s3_credentials_get(world->credentials, wait_ms, &keys), DCTF_OK);
    assert_true(keys->expires_ms > world_now_ms(world));
    assert_string_equal(keys->source, "container");
    snprintf(key, 32, "%s", keys->access_key_id);
    dctf_s3_keys_unref(keys);
}

static enum dctf_err get_err(struct world *world, uint64_t wait_ms)
{
    struct dctf_s3_keys *keys;
    enum dctf_err err = dctf_s3_credentials_get(world->credentials, wait_ms, &keys);

    dctf_s3_keys_unref(keys);
    return err;
}

static void test_sessions_of_60_s_over_ten_minutes(void **state)
{
    struct world *world = *state;
    char key[32];

    set_u64(world, &world->life_ms, 60000);
    get_valid(world, WAIT_MS, key);
    for (unsigned second = 0; second < 600; second++) {
        pass_s(world, 1);
        /* Nobody waits. */
        get_valid(world, 0, key);
    }
    /* At half of the life each. */
    assert_in_range(count_asked(world), 20, 22);
}

static void test_renewal_five_minutes_ahead(void **state)
{
    struct world *world = *state;
    char key[32];
    char text[256];

    get_valid(world, WAIT_MS, key);
    dctf_s3_credentials_describe(world->credentials, text, sizeof(text));
    assert_non_null(strstr(text, "container, key ASIA…0001, expires in 60 min; before it: options: none; "));
    pass_s(world, 3299);
    assert_int_equal(count_asked(world), 1);
    pass_s(world, 1);
    assert_int_equal(count_asked(world), 2);
    get_valid(world, 0, key);
    assert_string_equal(key, "ASIA00000002");
}

static void test_failed_renewals_are_survived(void **state)
{
    struct world *world = *state;
    char key[32];
    char text[1024];

    get_valid(world, WAIT_MS, key);
    set_bool(world, &world->failing, true);
    pass_s(world, 3300);
    for (unsigned second = 0; second < 240; second++) {
        get_valid(world, WAIT_MS, key);
        assert_string_equal(key, "ASIA00000001");
        pass_s(world, 1);
    }
    /* Backoff from a second to a minute. */
    assert_in_range(count_asked(world), 5, 16);
    dctf_s3_credentials_describe(world->credentials, text, sizeof(text));
    assert_non_null(strstr(text, "renewal failed: container: the endpoint answered 500"));
    set_bool(world, &world->failing, false);
    for (unsigned second = 0; second < 59; second++) {
        pass_s(world, 1);
        get_valid(world, WAIT_MS, key);
    }
    /* Pauses are a minute at most. */
    assert_string_equal(key, "ASIA00000002");
    dctf_s3_credentials_describe(world->credentials, text, sizeof(text));
    assert_null(strstr(text, "failed"));
}

static void test_expired_set_is_not_handed_out(void **state)
{
    struct world *world = *state;
    char key[32];
    char text[1024];

    get_valid(world, WAIT_MS, key);
    set_bool(world, &world->failing, true);
    pass_s(world, 3600);
    assert_int_equal(get_err(world, 0), DCTF_ERR_CREDENTIALS_FAILED);
    dctf_s3_credentials_describe(world->credentials, text, sizeof(text));
    assert_non_null(strstr(text, "expired; renewal failed"));
    set_bool(world, &world->failing, false);
    pass_s(world, 61);
    get_valid(world, 0, key);
    assert_string_equal(key, "ASIA00000002");
}

static void test_first_failure_is_told_then_tried_again(void **state)
{
    struct world *world = *state;
    char key[32];
    unsigned asked;

    set_bool(world, &world->failing, true);
    assert_int_equal(get_err(world, WAIT_MS), DCTF_ERR_CREDENTIALS_FAILED);
    asked = count_asked(world);
    /* In the pause nobody is asked. */
    for (unsigned i = 0; i < 100; i++)
        assert_int_equal(get_err(world, 0), DCTF_ERR_CREDENTIALS_FAILED);
    assert_int_equal(count_asked(world), asked);
    set_bool(world, &world->failing, false);
    pass_s(world, 1);
    get_valid(world, WAIT_MS, key);
}

/* As IMDS does: the same set until shortly before its end. */
static void test_same_set_again_is_no_tight_loop(void **state)
{
    struct world *world = *state;
    char key[32];

    set_u64(world, &world->expires_ms, START_MS + 3600000);
    set_bool(world, &world->same_key, true);
    get_valid(world, WAIT_MS, key);
    pass_s(world, 3300);
    assert_int_equal(count_asked(world), 2);
    for (unsigned second = 0; second < 270; second++) {
        pass_s(world, 1);
        get_valid(world, 0, key);
        assert_string_equal(key, "ASIA00000001");
    }
    assert_in_range(count_asked(world), 4, 20);
    set_bool(world, &world->same_key, false);
    set_u64(world, &world->expires_ms, START_MS + 7200000);
    for (unsigned second = 0; second < 25; second++) {
        pass_s(world, 1);
        get_valid(world, 0, key);
    }
    assert_string_equal(key, "ASIA00000002");
}

struct getter {
    struct world *world;
    uint64_t wait_ms;
    enum dctf_err err;
    char key[32];
    pthread_t thread;
};

static void *run_getter(void *ctx)
{
    struct getter *getter = ctx;
    struct dctf_s3_keys *keys;

    getter->err = dctf_s3_credentials_get(getter->world->credentials, getter->wait_ms, &keys);
    if (keys)
        snprintf(getter->key, sizeof(getter->key), "%s", keys->access_key_id);
    dctf_s3_keys_unref(keys);
    return NULL;
}

static void start_getters(struct world *world, struct getter *getters, unsigned count, uint64_t wait_ms)
{
    for (unsigned i = 0; i < count; i++) {
        getters[i] = (struct getter){.world = world, .wait_ms = wait_ms};
        assert_int_equal(pthread_create(&getters[i].thread, NULL, run_getter, &getters[i]), 0);
    }
}

static void join_getters(struct getter *getters, unsigned count, enum dctf_err err, const char *key)
{
    for (unsigned i = 0; i < count; i++) {
        assert_int_equal(pthread_join(getters[i].thread, NULL), 0);
        assert_int_equal(getters[i].err, err);
        assert_string_equal(getters[i].key, key);
    }
}

static void test_first_set_is_single_flight(void **state)
{
    struct world *world = *state;
    struct getter getters[16];

    set_bool(world, &world->holding, true);
    start_getters(world, getters, 16, WAIT_MS);
    wait_asked(world, 1);
    set_bool(world, &world->holding, false);
    join_getters(getters, 16, DCTF_OK, "ASIA00000001");
    assert_int_equal(count_asked(world), 1);
}

/* Two seconds before the end, with the next set on its way: who can wait gets that. */
static void test_last_moments_wait_for_the_next(void **state)
{
    struct world *world = *state;
    struct getter getter;
    char key[32];

    get_valid(world, WAIT_MS, key);
    set_bool(world, &world->holding, true);
    atomic_fetch_add(&world->now_ms, 3598000);
    get_valid(world, 0, key); /* still valid for who cannot */
    assert_string_equal(key, "ASIA00000001");
    wait_asked(world, 2);
    start_getters(world, &getter, 1, WAIT_MS);
    set_bool(world, &world->holding, false);
    join_getters(&getter, 1, DCTF_OK, "ASIA00000002");
}

/* A clock that jumps past the expiry, as after a suspend: nobody gets the old set. */
static void test_clock_jump_past_the_expiry(void **state)
{
    struct world *world = *state;
    char key[32];

    get_valid(world, WAIT_MS, key);
    atomic_fetch_add(&world->now_ms, 8 * 3600000u);
    assert_int_equal(get_err(world, 0), DCTF_ERR_DEADLINE);
    get_valid(world, WAIT_MS, key);
    assert_string_equal(key, "ASIA00000002");
}

static void test_renew_gets_another_one(void **state)
{
    struct world *world = *state;
    struct dctf_s3_keys *stale;
    char key[32];

    assert_int_equal(dctf_s3_credentials_get(world->credentials, WAIT_MS, &stale), DCTF_OK);
    for (unsigned i = 0; i < 50; i++)
        dctf_s3_credentials_renew(world->credentials, stale);
    /* Who asks now wants another one than that. */
    get_valid(world, WAIT_MS, key);
    assert_string_equal(key, "ASIA00000002");
    dctf_s3_credentials_renew(world->credentials, stale);
    dctf_s3_credentials_settle(world->credentials);
    assert_int_equal(count_asked(world), 2);
    dctf_s3_keys_unref(stale);
}

/* The service has no other set: it is asked once a second at most, and nobody waits for ever. */
static void test_renew_of_the_same_set_is_paced(void **state)
{
    struct world *world = *state;
    struct dctf_s3_keys *keys;
    char key[32];

    set_u64(world, &world->expires_ms, START_MS + 3600000);
    set_bool(world, &world->same_key, true);
    for (unsigned i = 0; i < 100; i++) {
        assert_int_equal(dctf_s3_credentials_get(world->credentials, WAIT_MS, &keys), DCTF_OK);
        dctf_s3_credentials_renew(world->credentials, keys);
        dctf_s3_keys_unref(keys);
    }
    assert_int_equal(count_asked(world), 2);
    pass_s(world, 1);
    get_valid(world, 0, key);
    assert_int_equal(count_asked(world), 3);
}

/* Who waits is told when its time is up, and the end does not wait for the service. */
static void test_free_while_a_service_holds_on(void **state)
{
    struct world *world = *state;
    struct getter getter;

    set_bool(world, &world->holding, true);
    start_getters(world, &getter, 1, WAIT_MS);
    wait_asked(world, 1);
    atomic_fetch_add(&world->now_ms, WAIT_MS + 1000);
    join_getters(&getter, 1, DCTF_ERR_DEADLINE, "");
    dctf_s3_credentials_free(world->credentials);
    world->credentials = NULL;
}

/* --- with threads and the real clock --- */

struct reader {
    struct world *world;
    unsigned gets;
    atomic_uint *answers;
    pthread_t thread;
};

static void count_answer(void *ctx, enum dctf_err err, struct dctf_s3_keys *keys)
{
    assert_int_equal(err, DCTF_OK);
    dctf_s3_keys_unref(keys);
    atomic_fetch_add((atomic_uint *)ctx, 1);
}

static void *read_often(void *ctx)
{
    struct reader *reader = ctx;

    for (unsigned i = 0; i < reader->gets; i++) {
        struct dctf_s3_keys *keys;

        assert_int_equal(dctf_s3_credentials_get(reader->world->credentials, WAIT_MS, &keys), DCTF_OK);
        dctf_s3_credentials_ask(reader->world->credentials, WAIT_MS, count_answer, reader->answers);
        if (i % 100 == 0)
            dctf_s3_credentials_renew(reader->world->credentials, keys);
        dctf_s3_keys_unref(keys);
    }
    return NULL;
}

static void test_many_readers_of_short_sessions(void **state)
{
    struct world *world = *state;
    struct reader readers[4];
    atomic_uint answers = 0;

    set_u64(world, &world->life_ms, 300);
    for (unsigned i = 0; i < 4; i++) {
        readers[i] = (struct reader){.world = world, .gets = 2000, .answers = &answers};
        assert_int_equal(pthread_create(&readers[i].thread, NULL, read_often, &readers[i]), 0);
    }
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(pthread_join(readers[i].thread, NULL), 0);
    while (atomic_load(&answers) < 4 * 2000)
        sched_yield();
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_sessions_of_60_s_over_ten_minutes),
        TEST(test_renewal_five_minutes_ahead),
        TEST(test_failed_renewals_are_survived),
        TEST(test_expired_set_is_not_handed_out),
        TEST(test_first_failure_is_told_then_tried_again),
        TEST(test_same_set_again_is_no_tight_loop),
        TEST(test_first_set_is_single_flight),
        TEST(test_last_moments_wait_for_the_next),
        TEST(test_clock_jump_past_the_expiry),
        TEST(test_renew_gets_another_one),
        TEST(test_renew_of_the_same_set_is_paced),
        TEST(test_free_while_a_service_holds_on),
        cmocka_unit_test_setup_teardown(test_many_readers_of_short_sessions, setup_real, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
