/* SPDX-License-Identifier: Apache-2.0
 *
 * The chain without a network: options, environment, profiles; what is told when there is
 * nothing. Processes and waiters: test_s3_credentials_process.c.
 */
#include "s3_credentials_chain_fixture.h"

#include "base/log.h"
#include "lib/fail_alloc.h"

/* --- options and environment --- */

static void test_get_options(void **state)
{
    const struct dctf_s3_credentials_config config = {.access_key_id = "AKIAOPTION0000000001",
        .secret_access_key = "secret-of-options",
        .session_token = "tok"};

    set_env(*state, "AWS_ACCESS_KEY_ID", "AKIAENV0000000000001");
    set_env(*state, "AWS_SECRET_ACCESS_KEY", "secret-of-env");
    expect_keys(*state, &config, "AKIAOPTION0000000001", "secret-of-options", "tok", "options");
}

static void test_get_options_never_waits(void **state)
{
    const struct dctf_s3_credentials_config config = {.access_key_id = "AKIA1", .secret_access_key = "s"};
    struct dctf_s3_credentials *credentials = make(*state, &config);
    struct dctf_s3_keys *first;
    struct dctf_s3_keys *second;

    assert_int_equal(dctf_s3_credentials_get(credentials, 0, &first), DCTF_OK);
    assert_int_equal(dctf_s3_credentials_get(credentials, 0, &second), DCTF_OK);
    assert_ptr_equal(first, second);
    assert_true(first->expires_ms == UINT64_MAX);
    dctf_s3_keys_unref(second);
    dctf_s3_credentials_free(credentials);
    /* A snapshot outlives the object. */
    assert_string_equal(first->secret_access_key, "s");
    dctf_s3_keys_unref(first);
}

static void test_get_options_half_ends_the_chain(void **state)
{
    const struct dctf_s3_credentials_config config = {.access_key_id = "AKIA1"};

    set_env(*state, "AWS_ACCESS_KEY_ID", "AKIAENV0000000000001");
    set_env(*state, "AWS_SECRET_ACCESS_KEY", "secret-of-env");
    expect_failure(*state, &config, DCTF_ERR_CREDENTIALS_FAILED, "options: the secret access key is empty");
}

static void test_get_environment(void **state)
{
    set_env(*state, "AWS_ACCESS_KEY_ID", "ASIAENV0000000000001");
    set_env(*state, "AWS_SECRET_ACCESS_KEY", "secret-of-env");
    set_env(*state, "AWS_SESSION_TOKEN", "token-of-env");
    expect_keys(*state, NULL, "ASIAENV0000000000001", "secret-of-env", "token-of-env", "environment");
}

static void test_get_environment_outranks_aws_profile(void **state)
{
    set_env(*state, "AWS_ACCESS_KEY_ID", "AKIAENV0000000000001");
    set_env(*state, "AWS_SECRET_ACCESS_KEY", "secret-of-env");
    set_env(*state, "AWS_PROFILE", "other");
    write_file(
        *state, ".aws/credentials", 0600, "[other]\naws_access_key_id=AKIA2\naws_secret_access_key=s2\n");
    expect_keys(*state, NULL, "AKIAENV0000000000001", "secret-of-env", "", "environment");
}

static void test_get_profile_option_outranks_environment(void **state)
{
    const struct dctf_s3_credentials_config config = {.profile = "other"};

    set_env(*state, "AWS_ACCESS_KEY_ID", "AKIAENV0000000000001");
    set_env(*state, "AWS_SECRET_ACCESS_KEY", "secret-of-env");
    write_file(*state, ".aws/credentials", 0600,
        "[other]\naws_access_key_id=AKIAOTHER00000000001\naws_secret_access_key=secret-2\n");
    expect_keys(*state, &config, "AKIAOTHER00000000001", "secret-2", "", "profile other");
}

static void test_get_environment_half_falls_through(void **state)
{
    set_env(*state, "AWS_ACCESS_KEY_ID", "AKIAENV0000000000001");
    write_file(*state, ".aws/credentials", 0600,
        "[default]\naws_access_key_id=AKIADEFAULT000000001\naws_secret_access_key=secret-d\n");
    expect_keys(*state, NULL, "AKIADEFAULT000000001", "secret-d", "", "profile default");
}

static void test_get_refuses_broken_keys(void **state)
{
    set_env(*state, "AWS_ACCESS_KEY_ID", "AKIAENV0000000000001");
    set_env(*state, "AWS_SECRET_ACCESS_KEY", "secret\r\nX-Evil: 1");
    expect_failure(
        *state, NULL, DCTF_ERR_CREDENTIALS_FAILED, "environment: key, secret or session token holds");
}

/* --- files --- */

static void test_get_nothing_says_why(void **state)
{
    struct home *home = *state;
    struct dctf_s3_keys *keys;
    char expected[512];
    char text[2048];

    assert_int_equal(get_once(home, NULL, &keys, text), DCTF_ERR_CREDENTIALS_NONE);
    snprintf(expected, sizeof(expected),
        "options: none; environment: AWS_ACCESS_KEY_ID not set; profile default: %s/.aws/credentials: not "
        "found; web identity: AWS_WEB_IDENTITY_TOKEN_FILE not set; container: "
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI and _FULL_URI not set; IMDS: AWS_EC2_METADATA_DISABLED is "
        "true",
        home->dir);
    assert_string_equal(text, expected);
}

static void test_get_nothing_with_wait_0(void **state)
{
    struct dctf_s3_credentials *credentials = make(*state, NULL);
    struct dctf_s3_keys *keys;

    /* The first begins to ask, the later are told. */
    assert_int_equal(dctf_s3_credentials_get(credentials, 0, &keys), DCTF_ERR_DEADLINE);
    dctf_s3_credentials_settle(credentials);
    assert_int_equal(dctf_s3_credentials_get(credentials, 0, &keys), DCTF_ERR_CREDENTIALS_NONE);
    dctf_s3_credentials_free(credentials);
}

static void test_get_profile_of_config_file(void **state)
{
    const struct dctf_s3_credentials_config config = {.profile = "dev"};

    write_file(*state, ".aws/config", 0644,
        "[default]\nregion = eu-west-1\n[profile dev]\naws_access_key_id = AKIADEV0000000000001\n"
        "aws_secret_access_key = secret-dev\naws_session_token = token-dev\n");
    expect_keys(*state, &config, "AKIADEV0000000000001", "secret-dev", "token-dev", "profile dev");
}

static void test_get_credentials_file_outranks_config(void **state)
{
    write_file(*state, ".aws/config", 0600,
        "[default]\naws_access_key_id = AKIACONFIG0000000001\naws_secret_access_key = secret-config\n");
    write_file(*state, ".aws/credentials", 0600,
        "[default]\naws_access_key_id = AKIACREDS00000000001\naws_secret_access_key = secret-creds\n");
    expect_keys(*state, NULL, "AKIACREDS00000000001", "secret-creds", "", "profile default");
}

static void test_get_files_by_option_and_variable(void **state)
{
    struct home *home = *state;
    char path[256];
    const struct dctf_s3_credentials_config config = {.credentials_file = path_in(home, "elsewhere", path)};
    const struct dctf_s3_credentials_config tilde = {.credentials_file = "~/elsewhere"};
    char variable[256];

    write_file(home, "elsewhere", 0600,
        "[default]\naws_access_key_id = AKIAELSE000000000001\naws_secret_access_key = secret-else\n");
    expect_keys(home, &config, "AKIAELSE000000000001", "secret-else", "", "profile default");
    expect_keys(home, &tilde, "AKIAELSE000000000001", "secret-else", "", "profile default");
    set_env(home, "AWS_SHARED_CREDENTIALS_FILE", "%s", path_in(home, "elsewhere", variable));
    expect_keys(home, NULL, "AKIAELSE000000000001", "secret-else", "", "profile default");
}

static void test_get_file_of_option_must_exist(void **state)
{
    const struct dctf_s3_credentials_config config = {.credentials_file = "/nonexistent/credentials"};

    expect_failure(*state, &config, DCTF_ERR_CREDENTIALS_FAILED, "/nonexistent/credentials: not found");
}

static void test_get_broken_file_is_named(void **state)
{
    write_file(*state, ".aws/credentials", 0600, "[default]\naws_access_key_id = A\nsecret-without-name\n");
    expect_failure(*state, NULL, DCTF_ERR_CREDENTIALS_FAILED, "/.aws/credentials:3: neither");
}

static void test_get_explicit_profile_ends_the_chain(void **state)
{
    const struct dctf_s3_credentials_config config = {.profile = "missing"};

    set_env(*state, "AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:1/");
    expect_failure(
        *state, &config, DCTF_ERR_CREDENTIALS_FAILED, "profile missing: there is no profile missing");
}

static void test_get_half_profile(void **state)
{
    write_file(*state, ".aws/credentials", 0600, "[default]\naws_access_key_id = AKIA1\n");
    expect_failure(*state, NULL, DCTF_ERR_CREDENTIALS_FAILED,
        "profile default has aws_access_key_id but no aws_secret_access_key");
}

static void test_get_refuses_sso_and_mfa(void **state)
{
    write_file(*state, ".aws/config", 0600,
        "[profile sso]\nsso_session = corp\nsso_account_id = 1\n[profile mfa]\nrole_arn = arn:r\n"
        "source_profile = mfa\nmfa_serial = arn:aws:iam::1:mfa/x\n");
    expect_failure(*state, &(struct dctf_s3_credentials_config){.profile = "sso"},
        DCTF_ERR_CREDENTIALS_FAILED, "use credential_process");
    expect_failure(*state, &(struct dctf_s3_credentials_config){.profile = "mfa"},
        DCTF_ERR_CREDENTIALS_FAILED, "mfa_serial");
}

static void test_get_refuses_role_loops(void **state)
{
    write_file(*state, ".aws/config", 0600,
        "[profile a]\nrole_arn = arn:a\nsource_profile = b\n[profile b]\nrole_arn = arn:b\nsource_profile = "
        "a\n"
        "[profile lost]\nrole_arn = arn:l\n[profile both]\nrole_arn = arn:x\nsource_profile = a\n"
        "credential_source = Environment\n[profile odd]\nrole_arn = arn:o\ncredential_source = Moon\n"
        "[profile self]\nrole_arn = arn:s\nsource_profile = self\n");
    expect_failure(
        *state, &(struct dctf_s3_credentials_config){.profile = "a"}, DCTF_ERR_CREDENTIALS_FAILED, "a loop");
    expect_failure(*state, &(struct dctf_s3_credentials_config){.profile = "lost"},
        DCTF_ERR_CREDENTIALS_FAILED, "role_arn but no source_profile");
    expect_failure(*state, &(struct dctf_s3_credentials_config){.profile = "both"},
        DCTF_ERR_CREDENTIALS_FAILED, "both source_profile and credential_source");
    expect_failure(*state, &(struct dctf_s3_credentials_config){.profile = "odd"},
        DCTF_ERR_CREDENTIALS_FAILED, "credential_source Moon is none of");
    expect_failure(*state, &(struct dctf_s3_credentials_config){.profile = "self"},
        DCTF_ERR_CREDENTIALS_FAILED, "no keys in profile self");
}

static void test_get_refuses_deep_roles(void **state)
{
    char text[2048] = "";

    for (unsigned i = 0; i < 12; i++)
        sprintf(text + strlen(text), "[profile p%u]\nrole_arn = arn:%u\nsource_profile = p%u\n", i, i, i + 1);
    write_file(*state, ".aws/config", 0600, text);
    expect_failure(*state, &(struct dctf_s3_credentials_config){.profile = "p0"}, DCTF_ERR_CREDENTIALS_FAILED,
        "over more than 8 profiles");
}

static void test_get_warns_of_exposed_file(void **state)
{
    struct home *home = *state;
    char log[256];
    struct dctf_log_config config = {.level = DCTF_LOG_WARN, .file = path_in(home, "log", log)};
    char text[4096] = "";
    FILE *file;

    write_file(home, ".aws/credentials", 0640,
        "[default]\naws_access_key_id = AKIAOPEN000000000001\naws_secret_access_key = secret-open\n");
    assert_int_equal(dctf_log_setup(&config), DCTF_OK);
    expect_keys(home, NULL, "AKIAOPEN000000000001", "secret-open", "", "profile default");
    config.file = NULL;
    assert_int_equal(dctf_log_setup(&config), DCTF_OK);
    file = fopen(log, "r");
    assert_non_null(file);
    assert_true(fread(text, 1, sizeof(text) - 1, file) > 0);
    fclose(file);
    assert_non_null(strstr(text, "err=4010"));
    assert_non_null(strstr(text, "chmod 600"));
    assert_null(strstr(text, "secret-open"));
}

/* --- region, masks, times --- */

static void test_region_order(void **state)
{
    struct home *home = *state;
    struct dctf_s3_credentials *credentials = make(home, NULL);
    char region[64];

    dctf_s3_credentials_region(credentials, true, 1000, region);
    assert_string_equal(region, "");
    write_file(home, ".aws/config", 0600, "[default]\nregion = eu-west-1\n");
    dctf_s3_credentials_region(credentials, false, 0, region);
    assert_string_equal(region, "eu-west-1");
    set_env(home, "AWS_DEFAULT_REGION", "eu-west-2");
    dctf_s3_credentials_region(credentials, false, 0, region);
    assert_string_equal(region, "eu-west-2");
    set_env(home, "AWS_REGION", "eu-west-3");
    dctf_s3_credentials_region(credentials, false, 0, region);
    assert_string_equal(region, "eu-west-3");
    dctf_s3_credentials_free(credentials);
}

static void test_describe_masks_the_key(void **state)
{
    const struct dctf_s3_credentials_config config = {
        .access_key_id = "AKIAIOSFODNN7EXAMPLE", .secret_access_key = "wJalrXUtnFEMI"};
    struct dctf_s3_credentials *credentials = make(*state, &config);
    struct dctf_s3_keys *keys;
    char text[256];
    char tiny[8];

    dctf_s3_credentials_describe(credentials, text, sizeof(text));
    assert_string_equal(text, "not asked for yet");
    assert_int_equal(dctf_s3_credentials_get(credentials, 0, &keys), DCTF_OK);
    dctf_s3_credentials_describe(credentials, text, sizeof(text));
    assert_string_equal(text, "options, key AKIA…MPLE, does not expire");
    dctf_s3_credentials_describe(credentials, tiny, sizeof(tiny));
    assert_int_equal(strlen(tiny), sizeof(tiny) - 1);
    dctf_s3_keys_unref(keys);
    dctf_s3_credentials_free(credentials);
}

static void test_time_parse(void **state)
{
    static const struct {
        const char *text;
        uint64_t ms;
    } good[] = {
        {"1970-01-02T00:00:00Z", 86400000},
        {"2026-01-31T12:00:00Z", 1769860800000},
        {"2026-01-31T12:00:00.5Z", 1769860800500},
        {"2026-01-31T12:00:00+00:00", 1769860800000},
        {"2026-01-31T12:00:00+01:00", 1769857200000},
        {"2026-01-31T12:00:00-0130", 1769866200000},
    };
    static const char *const bad[] = {"", "soon", "2026-01-31T12:00:00+25:00", "2026-01-31T12:00:00+1",
        "2026-01-31", "2026-01-31T12:00:00+01:00x", "1960-01-01T00:00:00Z"};
    uint64_t ms;

    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_true(dctf_cred_time_parse(good[i].text, &ms));
        assert_int_equal(ms, good[i].ms);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_false(dctf_cred_time_parse(bad[i], &ms));
}

/* --- allocation failures --- */

static enum dctf_err make_new(void *ctx)
{
    const struct dctf_s3_credentials_config config = {
        .access_key_id = "AKIA1", .secret_access_key = "s", .profile = "p", .region = "r"};

    return dctf_s3_credentials_new(&config, ctx);
}

static void drop_new(void *ctx)
{
    dctf_s3_credentials_free(*(struct dctf_s3_credentials **)ctx);
}

static void test_new_without_memory(void **state)
{
    struct dctf_s3_credentials *credentials = NULL;

    (void)state;
    assert_true(fail_alloc_sweep(make_new, drop_new, &credentials, (void **)&credentials) >= 9);
}

/* A profile's walk on this thread. */
struct walk_test {
    struct home *home;
    struct dctf_s3_keys *keys;
};

static enum dctf_err make_walk(void *ctx)
{
    struct walk_test *test = ctx;
    const struct dctf_s3_credentials_config config = {.env = test->home->env, .profile = "default"};
    struct dctf_cred_setup cred_setup;
    struct dctf_cred_walk walk;
    enum dctf_err err = dctf_cred_setup_init(&cred_setup, &config);

    test->keys = NULL;
    if (err)
        return err;
    dctf_cred_walk_init(&walk, &cred_setup);
    err = dctf_cred_ask_profile(&walk, &test->keys);
    dctf_cred_walk_fini(&walk);
    dctf_cred_setup_fini(&cred_setup);
    return err;
}

static void drop_walk(void *ctx)
{
    dctf_s3_keys_unref(((struct walk_test *)ctx)->keys);
}

static void test_profile_without_memory(void **state)
{
    struct walk_test test = {.home = *state};

    write_file(*state, ".aws/credentials", 0600, "[default]\naws_access_key_id=A\naws_secret_access_key=s\n");
    assert_true(fail_alloc_sweep(make_walk, drop_walk, &test, (void **)&test.keys) >= 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_get_options),
        TEST(test_get_options_never_waits),
        TEST(test_get_options_half_ends_the_chain),
        TEST(test_get_environment),
        TEST(test_get_environment_outranks_aws_profile),
        TEST(test_get_profile_option_outranks_environment),
        TEST(test_get_environment_half_falls_through),
        TEST(test_get_refuses_broken_keys),
        TEST(test_get_nothing_says_why),
        TEST(test_get_nothing_with_wait_0),
        TEST(test_get_profile_of_config_file),
        TEST(test_get_credentials_file_outranks_config),
        TEST(test_get_files_by_option_and_variable),
        TEST(test_get_file_of_option_must_exist),
        TEST(test_get_broken_file_is_named),
        TEST(test_get_explicit_profile_ends_the_chain),
        TEST(test_get_half_profile),
        TEST(test_get_refuses_sso_and_mfa),
        TEST(test_get_refuses_role_loops),
        TEST(test_get_refuses_deep_roles),
        TEST(test_get_warns_of_exposed_file),
        TEST(test_region_order),
        TEST(test_describe_masks_the_key),
        TEST(test_time_parse),
        TEST(test_new_without_memory),
        TEST(test_profile_without_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
