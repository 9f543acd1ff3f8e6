/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests of the credential providers that ask services: a container endpoint, IMDS and STS
 * in one server that keeps what it was asked, on a clock that the test moves.
 *
 * Threads:   calls and replies are guarded by the world's lock; the rest is the test's thread's.
 * Ownership: setup() and teardown() make and drop the world.
 */
#ifndef DCTF_TESTS_S3_CREDENTIALS_SERVICE_FIXTURE_H
#define DCTF_TESTS_S3_CREDENTIALS_SERVICE_FIXTURE_H

#include "lib/http_script.h"
#include "s3_credentials_fixture.h"

#include <stdatomic.h>

#define CALLS_MAX 16
#define NOW_MS 1800000000000u
#define EXPIRY "2027-01-15T09:00:00Z" /* an hour from NOW_MS */

struct world {
    struct home home;
    atomic_ullong now_ms;
    struct http_script *script;
    char base[64]; /* http://127.0.0.1:PORT */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct http_script_request calls[CALLS_MAX]; /* guarded by lock, as all below */
    size_t call_count;
    /* What answers a target that begins with `target`, instead of the usual. */
    const char *target;
    struct http_script_reply reply;
};

static inline uint64_t fake_wall_ms(void *ctx)
{
    return atomic_load(&((struct world *)ctx)->now_ms);
}

static inline uint64_t fake_mono_ns(void *ctx)
{
    return atomic_load(&((struct world *)ctx)->now_ms) * 1000000u;
}

/* --- the services --- */

static inline void answer_json(struct http_script_reply *reply, const char *key)
{
    snprintf(reply->body, sizeof(reply->body),
        "{\"Code\":\"Success\",\"AccessKeyId\":\"%s\",\"SecretAccessKey\":\"secret-json\",\"Token\":"
        "\"token-json\",\"Expiration\":\"" EXPIRY "\"}",
        key);
}

static inline void answer_sts(const struct http_script_request *request, struct http_script_reply *reply)
{
    char action[4096];
    char arn[4096];

    http_script_field(request, "Action", action);
    http_script_field(request, "RoleArn", arn);
    snprintf(reply->body, sizeof(reply->body),
        "<%.40sResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><%.40sResult><Credentials>"
        "<AccessKeyId>ASIA-%.100s</AccessKeyId><SecretAccessKey>secret-sts</SecretAccessKey>"
        "<SessionToken>token-%.100s</SessionToken><Expiration>" EXPIRY "</Expiration></Credentials>"
        "</%.40sResult></%.40sResponse>",
        action, action, arn, arn, action, action);
}

static inline void serve(
    void *ctx, const struct http_script_request *request, struct http_script_reply *reply)
{
    static const char roles[] = "/latest/meta-data/iam/security-credentials/";
    struct world *world = ctx;

    pthread_mutex_lock(&world->lock);
    assert_true(world->call_count < CALLS_MAX);
    world->calls[world->call_count++] = *request;
    pthread_cond_broadcast(&world->changed);
    if (world->target && !strncmp(request->target, world->target, strlen(world->target)))
        *reply = world->reply;
    else if (!strcmp(request->target, "/latest/api/token"))
        strcpy(reply->body, "imds-session");
    else if (!strcmp(request->target, roles))
        strcpy(reply->body, "the-role\n");
    else if (!strncmp(request->target, roles, strlen(roles)))
        answer_json(reply, "ASIAIMDS000000000001");
    else if (!strcmp(request->target, "/latest/meta-data/placement/region"))
        strcpy(reply->body, "ap-south-1");
    else if (!strcmp(request->target, "/container"))
        answer_json(reply, "ASIACONTAINER0000001");
    else if (!strcmp(request->target, "/sts/"))
        answer_sts(request, reply);
    else
        reply->status = 404;
    pthread_mutex_unlock(&world->lock);
}

static inline void set_reply(struct world *world, const char *target, int status, const char *body)
{
    pthread_mutex_lock(&world->lock);
    world->target = target;
    memset(&world->reply, 0, sizeof(world->reply));
    world->reply.status = status;
    snprintf(world->reply.body, sizeof(world->reply.body), "%s", body);
    pthread_mutex_unlock(&world->lock);
}

static inline void set_hang(struct world *world, const char *target)
{
    set_reply(world, target, 200, "");
    pthread_mutex_lock(&world->lock);
    world->reply.hang = true;
    pthread_mutex_unlock(&world->lock);
}

static inline void forget_calls(struct world *world)
{
    pthread_mutex_lock(&world->lock);
    world->call_count = 0;
    pthread_mutex_unlock(&world->lock);
}

static inline size_t count_calls(struct world *world)
{
    size_t count;

    pthread_mutex_lock(&world->lock);
    count = world->call_count;
    pthread_mutex_unlock(&world->lock);
    return count;
}

/* A call as it came; calls that came stay as they are. */
static inline const struct http_script_request *call_at(struct world *world, size_t i)
{
    assert_true(i < count_calls(world));
    return &world->calls[i];
}

static inline void expect_call(struct world *world, size_t i, const char *method, const char *target)
{
    assert_string_equal(call_at(world, i)->method, method);
    assert_string_equal(call_at(world, i)->target, target);
}

static inline void expect_header(struct world *world, size_t i, const char *name, const char *value)
{
    char got[4096];

    assert_string_equal(http_script_header(call_at(world, i), name, got), value);
}

static inline void expect_field(struct world *world, size_t i, const char *name, const char *value)
{
    char got[4096];

    assert_string_equal(http_script_field(call_at(world, i), name, got), value);
}

static inline int setup(void **state)
{
    struct world *world = calloc(1, sizeof(*world));

    assert_non_null(world);
    home_init(&world->home);
    pthread_mutex_init(&world->lock, NULL);
    pthread_cond_init(&world->changed, NULL);
    atomic_init(&world->now_ms, NOW_MS);
    world->script = http_script_start(serve, world);
    snprintf(world->base, sizeof(world->base), "http://127.0.0.1:%u", http_script_port(world->script));
    set_env(&world->home, "AWS_ENDPOINT_URL_STS", "%s/sts/", world->base);
    set_env(&world->home, "AWS_REGION", "eu-west-1");
    *state = world;
    return 0;
}

static inline int teardown(void **state)
{
    struct world *world = *state;

    http_script_stop(world->script);
    home_fini(&world->home);
    pthread_cond_destroy(&world->changed);
    pthread_mutex_destroy(&world->lock);
    free(world);
    return 0;
}

static inline struct dctf_s3_credentials *make(
    struct world *world, uint64_t call_timeout_ms, const char *profile)
{
    const struct dctf_clock clock = {fake_mono_ns, fake_wall_ms, world};
    const struct dctf_s3_credentials_config config = {
        .env = world->home.env, .clock = &clock, .call_timeout_ms = call_timeout_ms, .profile = profile};
    struct dctf_s3_credentials *credentials;

    assert_int_equal(dctf_s3_credentials_new(&config, &credentials), DCTF_OK);
    return credentials;
}

static inline void expect_keys(struct world *world, const char *profile, const char *key, const char *source)
{
    struct dctf_s3_credentials *credentials = make(world, 0, profile);
    struct dctf_s3_keys *keys;
    enum dctf_err err = dctf_s3_credentials_get(credentials, WAIT_MS, &keys);
    char text[2048];

    dctf_s3_credentials_describe(credentials, text, sizeof(text));
    if (err)
        print_error("%s\n", text);
    assert_int_equal(err, DCTF_OK);
    assert_string_equal(keys->access_key_id, key);
    assert_string_equal(keys->source, source);
    assert_true(keys->expires_ms == NOW_MS + 3600000);
    assert_null(strstr(text, "secret-"));
    dctf_s3_keys_unref(keys);
    dctf_s3_credentials_free(credentials);
}

static inline void expect_failure(
    struct world *world, const char *profile, uint64_t timeout_ms, enum dctf_err expected, const char *words)
{
    struct dctf_s3_credentials *credentials = make(world, timeout_ms, profile);
    struct dctf_s3_keys *keys;
    enum dctf_err err = dctf_s3_credentials_get(credentials, WAIT_MS, &keys);
    char text[2048];

    dctf_s3_credentials_describe(credentials, text, sizeof(text));
    if (err != expected || !strstr(text, words))
        print_error("%s\n", text);
    assert_int_equal(err, expected);
    assert_non_null(strstr(text, words));
    dctf_s3_credentials_free(credentials);
}

static inline void enable_imds(struct world *world)
{
    set_env(&world->home, "AWS_EC2_METADATA_DISABLED", "false");
    set_env(&world->home, "AWS_EC2_METADATA_SERVICE_ENDPOINT", "%s/", world->base);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

#endif
