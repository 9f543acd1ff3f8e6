/* SPDX-License-Identifier: Apache-2.0
 *
 * Credentials of the container endpoint: what it is sent, and what is made of every answer.
 */
#include "s3_credentials_service_fixture.h"

static void test_container_full_uri(void **state)
{
    struct world *world = *state;

    set_env(&world->home, "AWS_CONTAINER_CREDENTIALS_FULL_URI", "%s/container", world->base);
    expect_keys(world, NULL, "ASIACONTAINER0000001", "container");
    expect_call(world, 0, "GET", "/container");
    expect_header(world, 0, "Authorization", "");
    set_env(&world->home, "AWS_CONTAINER_AUTHORIZATION_TOKEN", "plain-token");
    expect_keys(world, NULL, "ASIACONTAINER0000001", "container");
    expect_header(world, 1, "Authorization", "plain-token");
}

static void test_container_token_file_is_read_each_time(void **state)
{
    struct world *world = *state;
    struct dctf_s3_credentials *credentials;
    struct dctf_s3_keys *keys;

    set_env(&world->home, "AWS_CONTAINER_CREDENTIALS_FULL_URI", "%s/container", world->base);
    set_env(&world->home, "AWS_CONTAINER_AUTHORIZATION_TOKEN", "not-this");
    set_env(&world->home, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "%s/token", world->home.dir);
    write_file(&world->home, "token", 0600, "first\n");
    credentials = make(world, 0, NULL);
    assert_int_equal(dctf_s3_credentials_get(credentials, WAIT_MS, &keys), DCTF_OK);
    write_file(&world->home, "token", 0600, "second");
    dctf_s3_credentials_renew(credentials, keys);
    dctf_s3_keys_unref(keys);
    dctf_s3_credentials_settle(credentials);
    dctf_s3_credentials_free(credentials);
    expect_header(world, 0, "Authorization", "first");
    expect_header(world, 1, "Authorization", "second");
}

static void test_container_token_file_without_token(void **state)
{
    struct world *world = *state;

    set_env(&world->home, "AWS_CONTAINER_CREDENTIALS_FULL_URI", "%s/container", world->base);
    set_env(&world->home, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "%s/token", world->home.dir);
    expect_failure(world, NULL, 0, DCTF_ERR_CREDENTIALS_FAILED, "/token: No such file or directory");
    write_file(&world->home, "token", 0600, " \n");
    expect_failure(world, NULL, 0, DCTF_ERR_CREDENTIALS_FAILED, "/token holds no token");
    write_file(&world->home, "token", 0600, "a\nb");
    expect_failure(world, NULL, 0, DCTF_ERR_CREDENTIALS_FAILED, "line break");
    assert_int_equal(count_calls(world), 0);
}

static void test_container_refuses_plain_http_elsewhere(void **state)
{
    static const char *const refused[] = {"http://192.0.2.1/x", "http://127.0.0.1.example.com/x",
        "http://127.0.0.1@192.0.2.1/x", "http://169.254.170.22/x", "http://[fd00:ec2::24]/x", "http:///x",
        "ftp://127.0.0.1/x", "http://1270.0.0.1/"};
    struct world *world = *state;

    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        set_env(&world->home, "AWS_CONTAINER_CREDENTIALS_FULL_URI", "%s", refused[i]);
        expect_failure(
            world, NULL, 100, DCTF_ERR_CREDENTIALS_FAILED, "container: AWS_CONTAINER_CREDENTIALS_FULL_URI");
    }
}

static void test_container_failures(void **state)
{
    static const struct {
        int status;
        const char *body;
        const char *words;
    } cases[] = {
        {500, "", "container: the endpoint answered 500"},
        {200, "", "container: its answer is no JSON object"},
        {200, "{}", "no AccessKeyId and SecretAccessKey"},
        {200, "{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"s\",\"Expiration\":\"x\"}", "is no time"},
        {200, "{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"s\",\"Expiration\":\"2001-01-01T00:00:00Z\"}",
            "had expired when it came"},
    };
    struct world *world = *state;

    set_env(&world->home, "AWS_CONTAINER_CREDENTIALS_FULL_URI", "%s/container", world->base);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        set_reply(world, "/container", cases[i].status, cases[i].body);
        expect_failure(world, NULL, 0, DCTF_ERR_CREDENTIALS_FAILED, cases[i].words);
    }
    set_hang(world, "/container");
    expect_failure(world, NULL, 50, DCTF_ERR_CREDENTIALS_FAILED, "container: no answer within 50 ms");
    set_env(&world->home, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "no-slash");
    expect_failure(world, NULL, 0, DCTF_ERR_CREDENTIALS_FAILED, "URI is not usable");
}

static void test_free_ends_a_call(void **state)
{
    struct world *world = *state;
    struct dctf_s3_credentials *credentials;
    struct dctf_s3_keys *keys;

    set_env(&world->home, "AWS_CONTAINER_CREDENTIALS_FULL_URI", "%s/container", world->base);
    set_hang(world, "/container");
    credentials = make(world, 600000, NULL);
    assert_int_equal(dctf_s3_credentials_get(credentials, 0, &keys), DCTF_ERR_DEADLINE);
    pthread_mutex_lock(&world->lock);
    while (!world->call_count)
        pthread_cond_wait(&world->changed, &world->lock);
    pthread_mutex_unlock(&world->lock);
    /* The test's time limit is far below the call's. */
    dctf_s3_credentials_free(credentials);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_container_full_uri),
        TEST(test_container_token_file_is_read_each_time),
        TEST(test_container_token_file_without_token),
        TEST(test_container_refuses_plain_http_elsewhere),
        TEST(test_container_failures),
        TEST(test_free_ends_a_call),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
