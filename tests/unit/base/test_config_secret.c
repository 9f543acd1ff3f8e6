/* SPDX-License-Identifier: Apache-2.0
 *
 * Secrets: where they may stand, and that they are never shown.
 */
#include "base/config.h"
#include "base/config_table.h"

#include "base/str.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define SECRET "wJalrXUtnFEMI"

static struct dctf_config config;
static struct dctf_config_error error;
static char path[] = "/tmp/dctf-test-secret-XXXXXX";

static int setup(void **state)
{
    int fd;

    (void)state;
    error.text[0] = '\0';
    strcpy(path + strlen(path) - 6, "XXXXXX");
    fd = mkstemp(path);
    if (fd < 0)
        return -1;
    close(fd);
    return dctf_config_init(&config) == DCTF_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    dctf_config_fini(&config);
    unlink(path);
    return 0;
}

static enum dctf_err load_file(const char *text, mode_t mode)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_int_equal(fputs(text, file) >= 0, 1);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, mode), 0);
    error.text[0] = '\0';
    return dctf_config_load_file(&config, path, true, "d", &error);
}

static void check_not_shown(void)
{
    if (strstr(error.text, SECRET) || strstr(error.text, "FEMI"))
        fail_msg("%s", error.text);
}

/* Each secret of the table, in each of these ways. */
static void check_each(void (*check)(const struct dctf_option *option))
{
    size_t count = 0;

    for (size_t i = 0; i < DCTF_OPTION_COUNT; i++) {
        if (dctf_options[i].type != DCTF_OPTION_TYPE_SECRET)
            continue;
        check(&dctf_options[i]);
        count++;
    }
    assert_true(count >= 2);
}

static const char *value_of(const struct dctf_option *option)
{
    return *(char *const *)((const char *)&config + option->offset);
}

static void check_options_refused(const struct dctf_option *option)
{
    char text[128];
    char expected[128];

    snprintf(text, sizeof(text), "zone=z,%s=" SECRET, option->name);
    assert_int_equal(dctf_config_load_options(&config, text, &error), DCTF_ERR_SECRET_EXPOSED);
    snprintf(expected, sizeof(expected), "-o: %s on a command line, which everybody can read", option->name);
    assert_string_equal(error.text, expected);
    assert_string_equal(value_of(option), "");
    snprintf(text, sizeof(text), "%s", option->name);
    assert_int_equal(dctf_config_load_options(&config, text, &error), DCTF_ERR_SECRET_EXPOSED);
    assert_int_equal(dctf_config_load_options(&config, text, NULL), DCTF_ERR_SECRET_EXPOSED);
}

static void test_options_refuse_secrets(void **state)
{
    (void)state;
    assert_int_equal(DCTF_ERR_SECRET_EXPOSED, 4010);
    check_each(check_options_refused);
}

static void check_file_modes(const struct dctf_option *option)
{
    static const mode_t open_modes[] = {0644, 0640, 0604, 0444, 0666};
    char text[128];
    char expected[192];

    snprintf(text, sizeof(text), "[global]\n\n%s = " SECRET "\n", option->name);
    snprintf(expected, sizeof(expected), "%s:3: %s in a file that others can read", path, option->name);
    for (size_t i = 0; i < sizeof(open_modes) / sizeof(open_modes[0]); i++) {
        assert_int_equal(load_file(text, open_modes[i]), DCTF_ERR_SECRET_EXPOSED);
        assert_string_equal(error.text, expected);
        assert_string_equal(value_of(option), "");
    }
    assert_int_equal(load_file(text, 0600), DCTF_OK);
    assert_string_equal(value_of(option), SECRET);
    assert_int_equal(load_file(text, 0400), DCTF_OK);
}

static void test_file_of_its_owner_only(void **state)
{
    (void)state;
    check_each(check_file_modes);
}

/* It is the file that is open to others, whichever section is mounted. */
static void test_file_section_of_another_dataset(void **state)
{
    (void)state;
    assert_int_equal(
        load_file("[dataset d]\nsource=s\n[dataset e]\nsource=t\nsecret_access_key=" SECRET "\n", 0644),
        DCTF_ERR_SECRET_EXPOSED);
    check_not_shown();
    assert_int_equal(load_file("[global]\nsecret_access_key=\nzone=z\n", 0644), DCTF_OK); /* none is none */
    assert_string_equal(config.zone, "z");
    assert_int_equal(load_file("[global]\naccess_key_id=AKIA\n", 0644), DCTF_OK);
}

static void check_environment(const struct dctf_option *option)
{
    char variable[128];
    char *env[] = {variable, NULL};
    size_t len;

    snprintf(variable, sizeof(variable), "DCTF_%s", option->name);
    for (len = 0; variable[len]; len++) {
        if (variable[len] >= 'a' && variable[len] <= 'z')
            variable[len] = (char)(variable[len] - 'a' + 'A');
    }
    snprintf(variable + len, sizeof(variable) - len, "=" SECRET);
    assert_int_equal(dctf_config_load_env(&config, env, &error), DCTF_OK);
    assert_string_equal(value_of(option), SECRET);
}

static void test_environment_may_hold_secrets(void **state)
{
    (void)state;
    check_each(check_environment);
}

static void test_write_shows_no_secret(void **state)
{
    struct dctf_str out;

    (void)state;
    assert_int_equal(dctf_config_set(&config, "secret_access_key", SECRET, "here", &error), DCTF_OK);
    dctf_str_init(&out);
    dctf_str_puts(&out, "\n");
    dctf_config_write(&config, &out);
    assert_int_equal(out.err, DCTF_OK);
    assert_non_null(strstr(out.data, "\n# secret_access_key is set\n"));
    assert_non_null(strstr(out.data, "\n# session_token is not set\n"));
    assert_null(strstr(out.data, SECRET));
    dctf_str_clear(&out);
    dctf_config_help(&out);
    assert_null(strstr(out.data, SECRET));
    dctf_str_fini(&out);
}

/* Whatever is wrong with the line that holds it. */
static void test_errors_show_no_secret(void **state)
{
    static const char *const files[] = {
        "secret_access_key=" SECRET "\n",
        "[global]\nsecret_access_key=\"" SECRET "\n",
        "[global]\nsecret_access_key=\"" SECRET "\" x\n",
        "[global]\nsecret_access_key " SECRET "\n",
        "[global]\nsecret_access_key=" SECRET "\nsecret_access_key=" SECRET "\n",
        "[global]\nsecret_acces_key=" SECRET "\n",
        "[global]\nsecret_access_key=a\x01" SECRET "\n",
        "[global]\nsecret_access_key=a\x7f" SECRET "\n",
        "[global]\nsecret_access_key=" SECRET "\nmemory=1\n",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        if (load_file(files[i], 0600) == DCTF_OK)
            fail_msg("accepted: %s", files[i]);
        assert_true(*error.text);
        check_not_shown();
    }
    assert_int_equal(
        dctf_config_set(&config, "session_token", SECRET "\n", "here", &error), DCTF_ERR_OPTION_VALUE);
    assert_string_equal(error.text,
        "here: bad value (not shown) for session_token: it must be text without control characters");
    assert_int_equal(
        dctf_config_load_options(&config, "session-token=" SECRET, &error), DCTF_ERR_OPTION_UNKNOWN);
    assert_non_null(strstr(error.text, "did you mean session_token?"));
    check_not_shown();
}

static void check_fails(const char *message)
{
    error.text[0] = '\0';
    assert_int_equal(dctf_config_check(&config, &error), DCTF_ERR_OPTION_VALUE);
    assert_string_equal(error.text, message);
}

static void set(const char *name, const char *value)
{
    assert_int_equal(dctf_config_set(&config, name, value, "here", &error), DCTF_OK);
}

static void test_check_keys_come_in_pairs(void **state)
{
    static const char message[] =
        "options: access_key_id and secret_access_key are given together or not at all";

    (void)state;
    set("access_key_id", "AKIA");
    check_fails(message);
    set("secret_access_key", SECRET);
    assert_int_equal(dctf_config_check(&config, &error), DCTF_OK);
    set("access_key_id", "");
    check_fails(message);
}

static void test_check_anonymous_without_key(void **state)
{
    (void)state;
    set("anonymous", "on");
    assert_int_equal(dctf_config_check(&config, &error), DCTF_OK);
    set("access_key_id", "AKIA");
    set("secret_access_key", SECRET);
    check_fails("options: anonymous excludes access_key_id");
    set("anonymous", "off");
    assert_int_equal(dctf_config_check(&config, &error), DCTF_OK);
}

#define secret_test(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        secret_test(test_options_refuse_secrets),
        secret_test(test_file_of_its_owner_only),
        secret_test(test_file_section_of_another_dataset),
        secret_test(test_environment_may_hold_secrets),
        secret_test(test_write_shows_no_secret),
        secret_test(test_errors_show_no_secret),
        secret_test(test_check_keys_come_in_pairs),
        secret_test(test_check_anonymous_without_key),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
