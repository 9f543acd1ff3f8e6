/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests of the credential chain without a network: one chain of a home, asked once.
 *
 * Threads:   the test's.
 * Ownership: setup() and teardown() make and drop the home.
 */
#ifndef DCTF_TESTS_S3_CREDENTIALS_CHAIN_FIXTURE_H
#define DCTF_TESTS_S3_CREDENTIALS_CHAIN_FIXTURE_H

#include "s3_credentials_fixture.h"

static inline int setup(void **state)
{
    struct home *home = malloc(sizeof(*home));

    assert_non_null(home);
    home_init(home);
    set_env(home, "PATH", "/usr/bin:/bin");
    *state = home;
    return 0;
}

static inline int teardown(void **state)
{
    home_fini(*state);
    free(*state);
    return 0;
}

static inline struct dctf_s3_credentials *make(
    struct home *home, const struct dctf_s3_credentials_config *given)
{
    struct dctf_s3_credentials_config config = given ? *given : (struct dctf_s3_credentials_config){0};
    struct dctf_s3_credentials *credentials;

    config.env = home->env;
    assert_int_equal(dctf_s3_credentials_new(&config, &credentials), DCTF_OK);
    return credentials;
}

/* Ask once; what describe() says goes to `text`. */
static inline enum dctf_err get_once(struct home *home, const struct dctf_s3_credentials_config *config,
    struct dctf_s3_keys **keys, char text[2048])
{
    struct dctf_s3_credentials *credentials = make(home, config);
    enum dctf_err err = dctf_s3_credentials_get(credentials, WAIT_MS, keys);

    dctf_s3_credentials_describe(credentials, text, 2048);
    dctf_s3_credentials_free(credentials);
    return err;
}

static inline void expect_keys(struct home *home, const struct dctf_s3_credentials_config *config,
    const char *key, const char *secret, const char *token, const char *source)
{
    struct dctf_s3_keys *keys;
    char text[2048];
    enum dctf_err err = get_once(home, config, &keys, text);

    if (err)
        print_error("%s\n", text);
    assert_int_equal(err, DCTF_OK);
    assert_string_equal(keys->access_key_id, key);
    assert_string_equal(keys->secret_access_key, secret);
    assert_string_equal(keys->session_token, token);
    assert_string_equal(keys->source, source);
    assert_null(strstr(text, secret));
    assert_non_null(strstr(text, source));
    dctf_s3_keys_unref(keys);
}

static inline void expect_failure(struct home *home, const struct dctf_s3_credentials_config *config,
    enum dctf_err expected, const char *words)
{
    struct dctf_s3_keys *keys;
    char text[2048];
    enum dctf_err err = get_once(home, config, &keys, text);

    if (err != expected || !strstr(text, words))
        print_error("%s\n", text);
    assert_int_equal(err, expected);
    assert_null(keys);
    assert_non_null(strstr(text, words));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

#endif
