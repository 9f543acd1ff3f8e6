/* SPDX-License-Identifier: Apache-2.0
 *
 * Credentials of STS: web identity and roles of profiles; what it is sent, what is made of every
 * answer, and who stands in for it.
 */
#include "s3_credentials_service_fixture.h"

/* --- web identity --- */

static void enable_web_identity(struct world *world)
{
    set_env(&world->home, "AWS_WEB_IDENTITY_TOKEN_FILE", "%s/jwt", world->home.dir);
    set_env(&world->home, "AWS_ROLE_ARN", "arn:aws:iam::1:role/web");
    write_file(&world->home, "jwt", 0600, "aaa.b+b/b=.ccc\n");
}

static void test_web_identity(void **state)
{
    struct world *world = *state;
    char session[4096];

    enable_web_identity(world);
    expect_keys(world, NULL, "ASIA-arn:aws:iam::1:role/web", "web identity");
    expect_call(world, 0, "POST", "/sts/");
    expect_field(world, 0, "Action", "AssumeRoleWithWebIdentity");
    expect_field(world, 0, "Version", "2011-06-15");
    expect_field(world, 0, "RoleArn", "arn:aws:iam::1:role/web");
    expect_field(world, 0, "WebIdentityToken", "aaa.b+b/b=.ccc");
    expect_header(world, 0, "Authorization", "");
    assert_memory_equal(http_script_field(call_at(world, 0), "RoleSessionName", session), "dctffs-", 7);
    set_env(&world->home, "AWS_ROLE_SESSION_NAME", "my-session");
    expect_keys(world, NULL, "ASIA-arn:aws:iam::1:role/web", "web identity");
    expect_field(world, 1, "RoleSessionName", "my-session");
}

static void test_web_identity_reads_the_token_anew(void **state)
{
    struct world *world = *state;
    struct dctf_s3_credentials *credentials;
    struct dctf_s3_keys *keys;

    enable_web_identity(world);
    credentials = make(world, 0, NULL);
    assert_int_equal(dctf_s3_credentials_get(credentials, WAIT_MS, &keys), DCTF_OK);
    dctf_s3_keys_unref(keys);
    write_file(&world->home, "jwt", 0600, "rotated");
    atomic_fetch_add(&world->now_ms, 3400000);
    dctf_s3_credentials_settle(credentials);
    dctf_s3_credentials_free(credentials);
    expect_field(world, 0, "WebIdentityToken", "aaa.b+b/b=.ccc");
    expect_field(world, 1, "WebIdentityToken", "rotated");
}

static void test_web_identity_failures(void **state)
{
    struct world *world = *state;

    enable_web_identity(world);
    set_reply(world, "/sts/", 403,
        "<ErrorResponse><Error><Type>Sender</Type><Code>InvalidIdentityToken</Code><Message>No OpenIDConnect "
        "provider</Message></Error></ErrorResponse>");
    expect_failure(world, NULL, 0, DCTF_ERR_CREDENTIALS_FAILED,
        "web identity: STS: AssumeRoleWithWebIdentity answered 403 InvalidIdentityToken: No OpenIDConnect "
        "provider");
    set_reply(world, "/sts/", 200, "<x/>");
    expect_failure(world, NULL, 0, DCTF_ERR_CREDENTIALS_FAILED, "STS: its answer holds no credentials");
    set_reply(world, "/sts/", 503, "busy");
    expect_failure(world, NULL, 0, DCTF_ERR_CREDENTIALS_FAILED, "answered 503");
    set_hang(world, "/sts/");
    expect_failure(world, NULL, 50, DCTF_ERR_CREDENTIALS_FAILED, "no answer within 50 ms");
    set_env(&world->home, "AWS_ENDPOINT_URL_STS", "%s", "http://127.0.0.1:1");
    expect_failure(world, NULL, 0, DCTF_ERR_CREDENTIALS_FAILED, "STS 127.0.0.1:1: no connection");
    set_env(&world->home, "AWS_ENDPOINT_URL_STS", "%s", "file:///x");
    expect_failure(world, NULL, 0, DCTF_ERR_CREDENTIALS_FAILED, "is no address");
    set_env(&world->home, "AWS_REGION", "%s", "evil.example.com/");
    expect_failure(world, NULL, 0, DCTF_ERR_CREDENTIALS_FAILED, "is no region");
    set_env(&world->home, "AWS_ROLE_ARN", "%s", "");
    expect_failure(world, NULL, 0, DCTF_ERR_CREDENTIALS_FAILED, "AWS_ROLE_ARN is not");
}

/* While web identity fails the instance's role stands in; renewal goes back to it. */
static void test_stand_in_until_the_first_recovers(void **state)
{
    struct world *world = *state;
    struct dctf_s3_credentials *credentials;
    struct dctf_s3_keys *keys;
    char text[2048];

    enable_imds(world);
    enable_web_identity(world);
    set_reply(world, "/sts/", 503, "");
    credentials = make(world, 0, NULL);
    assert_int_equal(dctf_s3_credentials_get(credentials, WAIT_MS, &keys), DCTF_OK);
    assert_string_equal(keys->source, "IMDS role the-role");
    dctf_s3_keys_unref(keys);
    dctf_s3_credentials_describe(credentials, text, sizeof(text));
    assert_non_null(strstr(text, "web identity: STS: AssumeRoleWithWebIdentity answered 503"));
    set_reply(world, NULL, 0, "");
    atomic_fetch_add(&world->now_ms, 3400000);
    dctf_s3_credentials_settle(credentials);
    assert_int_equal(dctf_s3_credentials_get(credentials, 0, &keys), DCTF_OK);
    assert_string_equal(keys->source, "web identity");
    dctf_s3_keys_unref(keys);
    dctf_s3_credentials_describe(credentials, text, sizeof(text));
    assert_null(strstr(text, "503"));
    dctf_s3_credentials_free(credentials);
}

/* The other way round nobody stands in while a set is valid. */
static void test_no_stand_in_while_valid(void **state)
{
    struct world *world = *state;
    struct dctf_s3_credentials *credentials;
    struct dctf_s3_keys *keys;

    enable_imds(world);
    enable_web_identity(world);
    credentials = make(world, 0, NULL);
    assert_int_equal(dctf_s3_credentials_get(credentials, WAIT_MS, &keys), DCTF_OK);
    assert_string_equal(keys->source, "web identity");
    dctf_s3_keys_unref(keys);
    set_reply(world, "/sts/", 503, "");
    atomic_fetch_add(&world->now_ms, 3400000);
    dctf_s3_credentials_settle(credentials);
    assert_int_equal(dctf_s3_credentials_get(credentials, WAIT_MS, &keys), DCTF_OK);
    assert_string_equal(keys->source, "web identity");
    dctf_s3_keys_unref(keys);
    expect_call(world, 1, "POST", "/sts/");
    assert_int_equal(count_calls(world), 2);
    dctf_s3_credentials_free(credentials);
}

/* --- roles of profiles --- */

static void test_role_chain(void **state)
{
    struct world *world = *state;
    char text[4096];

    write_file(&world->home, ".aws/credentials", 0600,
        "[base]\naws_access_key_id = AKIABASE000000000001\naws_secret_access_key = secret-base\n");
    write_file(&world->home, ".aws/config", 0600,
        "[profile top]\nrole_arn = arn:top\nsource_profile = middle\nexternal_id = ext/1\n"
        "role_session_name = sess\nduration_seconds = 900\n[profile middle]\nrole_arn = arn:middle\n"
        "source_profile = base\n");
    expect_keys(world, "top", "ASIA-arn:top", "profile top (role)");
    assert_int_equal(count_calls(world), 2);
    expect_field(world, 0, "Action", "AssumeRole");
    expect_field(world, 0, "RoleArn", "arn:middle");
    expect_header(world, 0, "X-Amz-Security-Token", "");
    expect_header(world, 0, "X-Amz-Date", "20270115T080000Z");
    http_script_header(call_at(world, 0), "Authorization", text);
    assert_non_null(
        strstr(text, "AWS4-HMAC-SHA256 Credential=AKIABASE000000000001/20270115/eu-west-1/sts/aws4_request"));
    assert_non_null(strstr(text, "SignedHeaders=content-type;host;x-amz-date,"));
    expect_field(world, 1, "RoleArn", "arn:top");
    expect_field(world, 1, "ExternalId", "ext/1");
    expect_field(world, 1, "RoleSessionName", "sess");
    expect_field(world, 1, "DurationSeconds", "900");
    expect_header(world, 1, "X-Amz-Security-Token", "token-arn:middle");
    http_script_header(call_at(world, 1), "Authorization", text);
    assert_non_null(strstr(text, "Credential=ASIA-arn:middle/"));
    assert_non_null(strstr(text, "x-amz-security-token"));
}

static void test_role_of_a_profile_with_keys(void **state)
{
    struct world *world = *state;

    write_file(&world->home, ".aws/config", 0600,
        "[profile self]\nrole_arn = arn:self\nsource_profile = self\naws_access_key_id = "
        "AKIASELF000000000001\n"
        "aws_secret_access_key = s\n[profile other]\nrole_arn = arn:other\nsource_profile = self\n");
    expect_keys(world, "self", "ASIA-arn:self", "profile self (role)");
    assert_int_equal(count_calls(world), 1);
    /* Behind another's role its keys are meant. */
    expect_keys(world, "other", "ASIA-arn:other", "profile other (role)");
    assert_int_equal(count_calls(world), 2);
}

static void test_role_by_credential_source(void **state)
{
    struct world *world = *state;

    write_file(&world->home, ".aws/config", 0600,
        "[profile env]\nrole_arn = arn:env\ncredential_source = Environment\n"
        "[profile ec2]\nrole_arn = arn:ec2\ncredential_source = Ec2InstanceMetadata\n"
        "[profile ecs]\nrole_arn = arn:ecs\ncredential_source = EcsContainer\n");
    expect_failure(world, "env", 0, DCTF_ERR_CREDENTIALS_FAILED,
        "credential_source Environment: AWS_ACCESS_KEY_ID not set");
    set_env(&world->home, "AWS_ACCESS_KEY_ID", "AKIAENV0000000000001");
    set_env(&world->home, "AWS_SECRET_ACCESS_KEY", "secret-env");
    set_env(&world->home, "AWS_CONTAINER_CREDENTIALS_FULL_URI", "%s/container", world->base);
    enable_imds(world);
    expect_keys(world, "env", "ASIA-arn:env", "profile env (role)");
    expect_keys(world, "ec2", "ASIA-arn:ec2", "profile ec2 (role)");
    expect_keys(world, "ecs", "ASIA-arn:ecs", "profile ecs (role)");
    expect_header(world, count_calls(world) - 1, "X-Amz-Security-Token", "token-json");
}

static void test_role_by_web_identity(void **state)
{
    struct world *world = *state;
    char text[512];

    write_file(&world->home, "jwt", 0600, "profile-token");
    snprintf(text, sizeof(text), "[profile web]\nrole_arn = arn:web\nweb_identity_token_file = %s/jwt\n",
        world->home.dir);
    write_file(&world->home, ".aws/config", 0600, text);
    expect_keys(world, "web", "ASIA-arn:web", "profile web (role)");
    expect_field(world, 0, "WebIdentityToken", "profile-token");
}

/* An explicit profile that fails ends the chain, whatever others have. */
static void test_role_failure_ends_the_chain(void **state)
{
    struct world *world = *state;

    enable_imds(world);
    write_file(&world->home, ".aws/config", 0600,
        "[profile r]\nrole_arn = arn:r\nsource_profile = r\naws_access_key_id = AKIA1\naws_secret_access_key "
        "= s\n");
    set_reply(world, "/sts/", 403, "<Error><Code>AccessDenied</Code><Message>no</Message></Error>");
    expect_failure(
        world, "r", 0, DCTF_ERR_CREDENTIALS_FAILED, "profile r: STS: AssumeRole answered 403 AccessDenied");
    assert_int_equal(count_calls(world), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_web_identity),
        TEST(test_web_identity_reads_the_token_anew),
        TEST(test_web_identity_failures),
        TEST(test_stand_in_until_the_first_recovers),
        TEST(test_no_stand_in_while_valid),
        TEST(test_role_chain),
        TEST(test_role_of_a_profile_with_keys),
        TEST(test_role_by_credential_source),
        TEST(test_role_by_web_identity),
        TEST(test_role_failure_ends_the_chain),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
