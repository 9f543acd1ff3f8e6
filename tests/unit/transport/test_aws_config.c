/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/aws_config.h"

#include "lib/fail_alloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
/* cmocka needs the three above first */
#include <cmocka.h>

static struct dctf_aws_config *parse(const char *text, enum dctf_aws_config_kind kind)
{
    struct dctf_aws_config *config;
    struct dctf_aws_config_error error = {""};

    if (dctf_aws_config_parse("test", text, strlen(text), kind, &config, &error))
        fail_msg("%s", error.text);
    return config;
}

static void expect(
    const struct dctf_aws_config *config, const char *profile, const char *name, const char *value)
{
    const char *got = dctf_aws_config_get(config, profile, name);

    if (value)
        assert_string_equal(got, value);
    else
        assert_null(got);
}

static void test_parse_credentials(void **state)
{
    struct dctf_aws_config *config = parse("# comment\n; another\n\n"
                                           "[default]\n"
                                           "aws_access_key_id=AKIA1\n"
                                           "AWS_Secret_Access_Key =  wJalr/XUtn+FEMI=  \n"
                                           "[other] ; text\r\n"
                                           "aws_access_key_id = AKIA2 # of other\r\n"
                                           "odd=a#b;c\n"
                                           "empty=\n"
                                           "[ spaced name ]\n"
                                           "x = 1\n"
                                           "[default]\n"
                                           "aws_access_key_id = AKIA3",
        DCTF_AWS_CONFIG_CREDENTIALS);

    (void)state;
    expect(config, "default", "aws_access_key_id", "AKIA3");
    expect(config, "default", "aws_secret_access_key", "wJalr/XUtn+FEMI=");
    expect(config, "other", "aws_access_key_id", "AKIA2");
    expect(config, "other", "odd", "a#b;c");
    expect(config, "other", "empty", "");
    expect(config, "other", "aws_secret_access_key", NULL);
    expect(config, "spaced name", "x", "1");
    expect(config, "missing", "x", NULL);
    assert_true(dctf_aws_config_has(config, "other"));
    assert_false(dctf_aws_config_has(config, "missing"));
    dctf_aws_config_free(config);
}

static void test_parse_config_profiles(void **state)
{
    struct dctf_aws_config *config = parse("\xef\xbb\xbf[default]\nregion = plain\n"
                                           "[profile default]\nregion = preferred\n"
                                           "[default]\nregion = plain-again\noutput = json\n"
                                           "[profile\tdev]\nregion = eu-west-1\n"
                                           "[dev2]\nregion = ignored\n"
                                           "[sso-session corp]\nsso_region = x\n"
                                           "[services s]\ns3 =\n  endpoint_url = http://y\n",
        DCTF_AWS_CONFIG_CONFIG);

    (void)state;
    expect(config, "default", "region", "preferred");
    expect(config, "default", "output", "json");
    expect(config, "dev", "region", "eu-west-1");
    assert_false(dctf_aws_config_has(config, "dev2"));
    assert_false(dctf_aws_config_has(config, "corp"));
    assert_false(dctf_aws_config_has(config, "sso-session corp"));
    dctf_aws_config_free(config);
}

static void test_parse_indented_lines(void **state)
{
    struct dctf_aws_config *config = parse("[default]\n"
                                           "s3 =\n"
                                           "  max_concurrent_requests = 20\n"
                                           "  role_arn = not-this\n"
                                           "\n"
                                           "region = eu-west-1\n"
                                           "long = one\n"
                                           "   two # comment\n"
                                           "# comment\n"
                                           "\tthree\n"
                                           "last = x\n"
                                           "[profile all]\n"
                                           "    region = indented\n"
                                           "    output = json\n",
        DCTF_AWS_CONFIG_CONFIG);

    (void)state;
    expect(config, "default", "s3", "");
    expect(config, "default", "max_concurrent_requests", NULL);
    expect(config, "default", "role_arn", NULL);
    expect(config, "default", "region", "eu-west-1");
    expect(config, "default", "long", "one\ntwo\nthree");
    expect(config, "default", "last", "x");
    expect(config, "all", "region", "indented");
    expect(config, "all", "output", "json");
    dctf_aws_config_free(config);
}

static void test_parse_long_token(void **state)
{
    char token[4001];
    char text[4096];
    struct dctf_aws_config *config;

    (void)state;
    memset(token, 'T', sizeof(token) - 1);
    token[sizeof(token) - 1] = '\0';
    snprintf(text, sizeof(text), "[default]\naws_session_token = %s\nregion = r\n", token);
    config = parse(text, DCTF_AWS_CONFIG_CREDENTIALS);
    expect(config, "default", "aws_session_token", token);
    expect(config, "default", "region", "r");
    dctf_aws_config_free(config);
}

static void test_parse_names_the_line(void **state)
{
    static const struct {
        const char *text;
        const char *error;
    } cases[] = {
        {"[default\n", "creds:1: the section has no ']'"},
        {"\n\n[]\n", "creds:3: the section has no name"},
        {"[a] b\n", "creds:1: text behind the section's ']'"},
        {"key = value\n", "creds:1: a setting before the first [section]"},
        {"[a]\nwJalrXUtnFEMI\n", "creds:2: neither a [section] nor a setting (name = value)"},
        {"[a]\n= value\n", "creds:2: the setting has no name"},
    };
    static const char zero[] = "[a]\nx = 1\0 2\n";
    struct dctf_aws_config *config;
    struct dctf_aws_config_error error;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(dctf_aws_config_parse("creds", cases[i].text, strlen(cases[i].text),
                             DCTF_AWS_CONFIG_CREDENTIALS, &config, &error),
            DCTF_ERR_CONFIG_SYNTAX);
        assert_null(config);
        assert_string_equal(error.text, cases[i].error);
    }
    assert_int_equal(
        dctf_aws_config_parse("creds", zero, sizeof(zero) - 1, DCTF_AWS_CONFIG_CREDENTIALS, &config, &error),
        DCTF_ERR_CONFIG_SYNTAX);
    assert_string_equal(error.text, "creds:2: a byte 0");
}

static void write_text(const char *path, const char *text, size_t len, mode_t mode)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, len, file), len);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, mode), 0);
}

static void test_load_file(void **state)
{
    static const char text[] = "[default]\nregion = r\n";
    char dir[] = "/tmp/dctf-aws-XXXXXX";
    char path[64];
    struct dctf_aws_config *config;
    struct dctf_aws_config_error error;
    char *large = calloc(1, DCTF_AWS_CONFIG_MAX_BYTES + 1);

    (void)state;
    assert_non_null(large);
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/config", dir);
    assert_int_equal(dctf_aws_config_load(path, DCTF_AWS_CONFIG_CONFIG, &config, &error), DCTF_ERR_NOT_FOUND);
    write_text(path, text, strlen(text), 0600);
    assert_int_equal(dctf_aws_config_load(path, DCTF_AWS_CONFIG_CONFIG, &config, &error), DCTF_OK);
    expect(config, "default", "region", "r");
    assert_false(dctf_aws_config_exposed(config));
    dctf_aws_config_free(config);

    assert_int_equal(chmod(path, 0644), 0);
    assert_int_equal(dctf_aws_config_load(path, DCTF_AWS_CONFIG_CONFIG, &config, &error), DCTF_OK);
    assert_true(dctf_aws_config_exposed(config));
    dctf_aws_config_free(config);

    memset(large, '\n', DCTF_AWS_CONFIG_MAX_BYTES + 1);
    write_text(path, large, DCTF_AWS_CONFIG_MAX_BYTES, 0600);
    assert_int_equal(dctf_aws_config_load(path, DCTF_AWS_CONFIG_CONFIG, &config, &error), DCTF_OK);
    dctf_aws_config_free(config);
    write_text(path, large, DCTF_AWS_CONFIG_MAX_BYTES + 1, 0600);
    assert_int_equal(
        dctf_aws_config_load(path, DCTF_AWS_CONFIG_CONFIG, &config, &error), DCTF_ERR_CONFIG_UNREADABLE);
    assert_non_null(strstr(error.text, "larger than 1 MiB"));
    assert_int_equal(unlink(path), 0);

    assert_int_equal(
        dctf_aws_config_load(dir, DCTF_AWS_CONFIG_CONFIG, &config, &error), DCTF_ERR_CONFIG_UNREADABLE);
    /* A pipe does not hold the reader up. */
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(
        dctf_aws_config_load(path, DCTF_AWS_CONFIG_CONFIG, &config, &error), DCTF_ERR_CONFIG_UNREADABLE);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
    assert_int_equal(dctf_aws_config_load("/dev/null", DCTF_AWS_CONFIG_CONFIG, &config, &error), DCTF_OK);
    assert_false(dctf_aws_config_exposed(config));
    dctf_aws_config_free(config);
    free(large);
}

static void test_get_of_no_file(void **state)
{
    (void)state;
    assert_null(dctf_aws_config_get(NULL, "default", "region"));
    assert_false(dctf_aws_config_has(NULL, "default"));
    assert_false(dctf_aws_config_exposed(NULL));
    dctf_aws_config_free(NULL);
}

/* --- allocation failures --- */

static enum dctf_err make(void *ctx)
{
    static const char text[] =
        "[a]\na=1\nb=2\nc=3\nd=4\ne=5\nf=6\ng=7\nh=8\ni=9\nj=10\nk=11\nl=12\nm=13\nn=14\n"
        "o=1\np=1\nq=1\nr=1\ns=1\nt=1\nu=1\nv=1\nw=1\nx=1\ny=1\nz=1\naa=1\nab=1\nac=1\n"
        "ad=1\nae=1\naf=1\nag=1\n";
    struct dctf_aws_config_error error;

    return dctf_aws_config_parse("t", text, strlen(text), DCTF_AWS_CONFIG_CREDENTIALS, ctx, &error);
}

static void drop(void *ctx)
{
    dctf_aws_config_free(*(struct dctf_aws_config **)ctx);
}

static void test_parse_without_memory(void **state)
{
    struct dctf_aws_config *config = NULL;

    (void)state;
    assert_int_equal(fail_alloc_sweep(make, drop, &config, (void **)&config), 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse_credentials),
        cmocka_unit_test(test_parse_config_profiles),
        cmocka_unit_test(test_parse_indented_lines),
        cmocka_unit_test(test_parse_long_token),
        cmocka_unit_test(test_parse_names_the_line),
        cmocka_unit_test(test_load_file),
        cmocka_unit_test(test_get_of_no_file),
        cmocka_unit_test(test_parse_without_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
