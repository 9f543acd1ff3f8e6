/* SPDX-License-Identifier: Apache-2.0 */
#include "base/config.h"

#include "lib/fail_alloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct dctf_config config;
static struct dctf_config_error error;

static int setup(void **state)
{
    (void)state;
    error.text[0] = '\0';
    return dctf_config_init(&config) == DCTF_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    dctf_config_fini(&config);
    return 0;
}

static enum dctf_err load(const char *text, const char *source)
{
    return dctf_config_load_text(&config, "test.conf", text, source, &error);
}

static void check_load_fails(const char *text, enum dctf_err expected, const char *message)
{
    error.text[0] = '\0';
    assert_int_equal(load(text, NULL), expected);
    assert_string_equal(error.text, message);
}

static void test_load_text_layers(void **state)
{
    static const char text[] = "# site defaults\n"
                               "[dataset train]\n"
                               "source = file:///data/train\n"
                               "fetch_max = 4M\n"
                               "\n"
                               "[global] ; for all\n"
                               "fetch_max=2M\r\n"
                               "  zone : a\n"
                               "[dataset other]\n"
                               "source = \"file:///data/other\"  # quoted\n"
                               "zone = b\n";

    (void)state;
    assert_int_equal(load(text, "train"), DCTF_OK);
    assert_string_equal(config.source, "file:///data/train");
    assert_string_equal(config.dataset, "train");
    assert_int_equal(config.fetch_max, 4u << 20); /* the dataset wins, though it stands first */
    assert_string_equal(config.zone, "a");
    assert_true(dctf_config_is_set(&config, DCTF_OPTION_INDEX_zone));
}

static void test_load_text_by_source(void **state)
{
    static const char text[] =
        "[dataset a]\nsource=file:///a\nzone=a\n[dataset b]\nsource=file:///b\nzone=b\n"
        "[dataset c]\nsource=file:///a\n";

    (void)state;
    assert_int_equal(load(text, "file:///b"), DCTF_OK);
    assert_string_equal(config.dataset, "b");
    assert_string_equal(config.source, "file:///b");
    assert_string_equal(config.zone, "b");
    assert_int_equal(load(text, "file:///a"), DCTF_ERR_CONFIG_SYNTAX);
    assert_string_equal(
        error.text, "test.conf:7: [dataset a] and [dataset c] have this source: mount by name");
}

static void test_load_text_no_section_of_that_name(void **state)
{
    static const char text[] = "[global]\nzone=g\n[dataset a]\nsource=file:///a\nzone=a\n";

    (void)state;
    assert_int_equal(load(text, "file:///elsewhere"), DCTF_OK);
    assert_null(config.source);
    assert_null(config.dataset);
    assert_string_equal(config.zone, "g");
    assert_int_equal(load(text, NULL), DCTF_OK);
    assert_int_equal(load("", "x"), DCTF_OK);
    assert_int_equal(load("\xef\xbb\xbf[global]\nzone=bom", "x"), DCTF_OK);
    assert_string_equal(config.zone, "bom");
}

static void test_load_text_values(void **state)
{
    static const struct {
        const char *line, *value;
    } cases[] = {
        {"/a/b", "/a/b"},
        {"/a b ", "/a b"},
        {"/a#b", "/a#b"},
        {"/a # comment", "/a"},
        {"/a ; comment", "/a"},
        {"/a;b", "/a;b"},
        {"\"/a ; b\" ; c", "/a ; b"},
        {"; nothing", ""},
        {"/a b;c ;d # e", "/a b;c"},
        {"\" /a # b\" # c", " /a # b"},
        {"'/a\"b'", "/a\"b"},
        {"", ""},
        {"# nothing", ""},
        {"\"\"", ""},
        {"a=b", "a=b"},
        {"a\"b", "a\"b"},
    };
    char text[128];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        snprintf(text, sizeof(text), "[global]\nlog_file = %s\n", cases[i].line);
        if (load(text, NULL))
            fail_msg("%s", error.text);
        assert_string_equal(config.log_file, cases[i].value);
    }
}

static void test_load_text_bad_lines(void **state)
{
    (void)state;
    check_load_fails("[global]\n\ncach_size=1G\n", DCTF_ERR_OPTION_UNKNOWN,
        "test.conf:3: unknown option \"cach_size\" (did you mean cache_size?)");
    check_load_fails("[global]\nmemory = 1M\n", DCTF_ERR_OPTION_VALUE,
        "test.conf:2: bad value \"1M\" for memory: it must be at least 64M");
    check_load_fails("[global]\n\n[dataset x]\nsource=s\nzone=a\nnode=b\nzone=c\n", DCTF_ERR_CONFIG_SYNTAX,
        "test.conf:7: zone is given twice in this section");
    check_load_fails("zone=a\n", DCTF_ERR_CONFIG_SYNTAX,
        "test.conf:1: an option outside of a section: put [global] above it");
    check_load_fails("[global]\nscrub\n", DCTF_ERR_CONFIG_SYNTAX, "test.conf:2: expected `option = value`");
    check_load_fails("[global]\nscrub\nzone=a\nwhat=x\n", DCTF_ERR_CONFIG_SYNTAX,
        "test.conf:2: expected `option = value`"); /* the first of two errors */
    check_load_fails(
        "[global]\nnode = \"a\n", DCTF_ERR_CONFIG_SYNTAX, "test.conf:2: the quotes are not closed");
    check_load_fails(
        "[global]\nnode = \"a\" b\n", DCTF_ERR_CONFIG_SYNTAX, "test.conf:2: the quotes are not closed");
    check_load_fails(
        "[global]\nnode = a\x01 b\n", DCTF_ERR_CONFIG_SYNTAX, "test.conf:2: control character 0x01");
    check_load_fails("[global]\nsource = file:///x\n", DCTF_ERR_CONFIG_SYNTAX,
        "test.conf:2: `source` belongs into a [dataset NAME] section");
    check_load_fails("[dataset x]\nsource=a\nsource=b\n", DCTF_ERR_CONFIG_SYNTAX,
        "test.conf:3: `source` is given twice in this section");
    check_load_fails("[dataset x]\nsource=\n", DCTF_ERR_OPTION_VALUE, "test.conf:2: `source` is empty");
}

static void test_load_text_bad_sections(void **state)
{
    (void)state;
    check_load_fails("[globl]\n", DCTF_ERR_CONFIG_SYNTAX,
        "test.conf:1: unknown section \"globl\": there are [global] and [dataset NAME]");
    check_load_fails("[datasets x]\n", DCTF_ERR_CONFIG_SYNTAX,
        "test.conf:1: unknown section \"datasets x\": there are [global] and [dataset NAME]");
    check_load_fails(
        "[global\n", DCTF_ERR_CONFIG_SYNTAX, "test.conf:1: a section is written [global] or [dataset NAME]");
    check_load_fails("[global] x\n", DCTF_ERR_CONFIG_SYNTAX,
        "test.conf:1: a section is written [global] or [dataset NAME]");
    check_load_fails(
        "[global]\n[global]\n", DCTF_ERR_CONFIG_SYNTAX, "test.conf:2: this section was already on line 1");
    check_load_fails("[dataset a]\nsource=x\n[dataset  a ]\n", DCTF_ERR_CONFIG_SYNTAX,
        "test.conf:3: this section was already on line 1");
    check_load_fails("[dataset a]\nzone=x\n[global]\n", DCTF_ERR_CONFIG_SYNTAX,
        "test.conf:1: [dataset a] has no `source =` line");
    check_load_fails(
        "\n[dataset a]\n", DCTF_ERR_CONFIG_SYNTAX, "test.conf:2: [dataset a] has no `source =` line");
    assert_int_equal(load("[dataset ../x]\n", NULL), DCTF_ERR_CONFIG_SYNTAX);
    assert_non_null(strstr(error.text, "test.conf:1: bad dataset name in \"dataset ../x\": "));
    assert_int_equal(load("[dataset]\n", NULL), DCTF_ERR_CONFIG_SYNTAX);
    assert_int_equal(load("[]\n", NULL), DCTF_ERR_CONFIG_SYNTAX);
}

static void test_load_text_long_lines(void **state)
{
    static const int lengths[] = {
        150, 180, 181, 182, 183, 184, 185, 186, 187, 188, 189, 190, 500, 2000, 8100};
    char text[20000];

    (void)state;
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) { /* around what inih takes at once */
        snprintf(text, sizeof(text), "[global]\nlog_file = /%0*d\nnode=n\n", lengths[i], 1);
        assert_int_equal(load(text, NULL), DCTF_OK);
        assert_int_equal(strlen(config.log_file), lengths[i] + 1);
        assert_int_equal(config.node[0], 'n'); /* the line after it is whole */
    }
    snprintf(text, sizeof(text), "[global]\r\nlog_file :\t'/a;b #%0500d'  ; said ; so\r\nzone=z\r\n", 1);
    assert_int_equal(load(text, NULL), DCTF_OK);
    assert_int_equal(strlen(config.log_file), 506);
    assert_memory_equal(config.log_file, "/a;b #000", 9);
    assert_string_equal(config.zone, "z");
    snprintf(text, sizeof(text), "[global]\nlog_file = /%0500d ; /x\n", 1);
    assert_int_equal(load(text, NULL), DCTF_OK);
    assert_int_equal(strlen(config.log_file), 501);
    snprintf(text, sizeof(text), "[global]\n\nlog_file = /%09000d\n", 1);
    assert_int_equal(load(text, NULL), DCTF_ERR_CONFIG_SYNTAX);
    assert_non_null(strstr(error.text, "test.conf:3: the line is longer than "));
    snprintf(text, sizeof(text), "[global]\n\n%0500d = x\n", 1);
    assert_int_equal(load(text, NULL), DCTF_ERR_CONFIG_SYNTAX);
    assert_non_null(strstr(error.text, "test.conf:3: the line is longer than "));
    snprintf(text, sizeof(text), "[global]\n\n%0500d\n", 1);
    assert_int_equal(load(text, NULL), DCTF_ERR_CONFIG_SYNTAX);
    snprintf(text, sizeof(text), "[global]\nno_such = %0500d\n", 1);
    assert_int_equal(load(text, NULL), DCTF_ERR_OPTION_UNKNOWN);
    assert_non_null(strstr(error.text, "test.conf:2: "));
    snprintf(text, sizeof(text), "# %0500d\n[global]\nnode=n\n", 1);
    assert_int_equal(load(text, NULL), DCTF_OK);
    assert_string_equal(config.node, "n");
}

static void test_load_text_bad_changes_nothing(void **state)
{
    (void)state;
    assert_int_equal(
        load("[global]\nzone=a\n[dataset d]\nsource=s\nnode=n\nmemory=1\n", "d"), DCTF_ERR_OPTION_VALUE);
    assert_string_equal(config.zone, "");
    assert_string_equal(config.node, "");
    assert_null(config.source);
}

static void test_load_file_missing(void **state)
{
    (void)state;
    assert_int_equal(dctf_config_load_file(&config, "/nonexistent/x.conf", false, NULL, &error), DCTF_OK);
    assert_int_equal(dctf_config_load_file(&config, "/nonexistent/x.conf", true, NULL, &error),
        DCTF_ERR_CONFIG_UNREADABLE);
    assert_string_equal(error.text, "/nonexistent/x.conf: No such file or directory");
    assert_int_equal(dctf_config_load_file(&config, "/", false, NULL, &error), DCTF_ERR_CONFIG_UNREADABLE);
    assert_string_equal(error.text, "/: Is a directory");
}

static void write_file(const char *path, const void *bytes, size_t len)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, len, file), len);
    assert_int_equal(fclose(file), 0);
}

static void test_load_file_reads(void **state)
{
    char path[] = "/tmp/dctf-test-config-XXXXXX";
    int fd = mkstemp(path);
    size_t big = 1024 * 1024 + 1;
    char *text = malloc(big);
    char expected[64];

    (void)state;
    assert_true(fd >= 0);
    close(fd);
    assert_non_null(text);
    write_file(path, "[global]\nzone=f", 15);
    assert_int_equal(dctf_config_load_file(&config, path, true, NULL, &error), DCTF_OK);
    assert_string_equal(config.zone, "f");
    write_file(path, "[global]\nzone=\0x\n", 17);
    assert_int_equal(dctf_config_load_file(&config, path, true, NULL, &error), DCTF_ERR_CONFIG_SYNTAX);
    memset(text, '\n', big);
    write_file(path, text, big - 1);
    assert_int_equal(dctf_config_load_file(&config, path, true, NULL, &error), DCTF_OK);
    write_file(path, text, big);
    assert_int_equal(dctf_config_load_file(&config, path, true, NULL, &error), DCTF_ERR_CONFIG_UNREADABLE);
    snprintf(expected, sizeof(expected), "%s: the file is larger than 1 MiB", path);
    assert_string_equal(error.text, expected);
    free(text);
    unlink(path);
}

static void test_load_env_names(void **state)
{
    char *env[] = {"PATH=/bin", "DCTF_ZONE=z", "DCTF_CACHE_SIZE=2G", "DCTF_NOT_AN_OPTION=1", "DCTF_node=n",
        "DCTF_NODE=", "DCTF_", "DCTF_=x", "DCTF_MEMORY", "XDCTF_NODE=n", NULL};

    (void)state;
    assert_int_equal(dctf_config_load_env(&config, env, &error), DCTF_OK);
    assert_string_equal(config.zone, "z");
    assert_int_equal(config.cache_size, 2ull << 30);
    assert_string_equal(config.node, "");
    assert_false(dctf_config_is_set(&config, DCTF_OPTION_INDEX_node));
}

static void test_load_env_bad_value(void **state)
{
    char *env[] = {"DCTF_MEMORY=1K", NULL};

    (void)state;
    assert_int_equal(dctf_config_load_env(&config, env, &error), DCTF_ERR_OPTION_VALUE);
    assert_string_equal(
        error.text, "DCTF_MEMORY in the environment: bad value \"1K\" for memory: it must be at least 64M");
}

static void test_load_options_ours(void **state)
{
    (void)state;
    assert_int_equal(dctf_config_load_options(
                         &config, "cache_size=1G,allow_other,,zone=a\\,b\\c,node=x=y,node=z,", &error),
        DCTF_OK);
    assert_int_equal(config.cache_size, 1ull << 30);
    assert_true(config.allow_other);
    assert_string_equal(config.zone, "a,b\\c");
    assert_string_equal(config.node, "z"); /* the last one wins */
    assert_int_equal(dctf_config_load_options(&config, "", &error), DCTF_OK);
}

static void test_load_options_customary(void **state)
{
    (void)state;
    assert_int_equal(
        dctf_config_load_options(&config,
            "ro,rw,defaults,_netdev,nofail,auto,noauto,user,nouser,users,owner,group,exec,noexec,"
            "suid,nosuid,dev,nodev,sync,async,atime,noatime,relatime,norelatime,strictatime,"
            "nostrictatime,diratime,nodiratime,lazytime,nolazytime,x-systemd.automount,"
            "x-systemd.device-timeout=30s,comment=hi,fsname=f,subtype=s,default_permissions,nonempty",
            &error),
        DCTF_OK);
    for (int i = 0; i < DCTF_OPTION_COUNT; i++)
        assert_false(dctf_config_is_set(&config, (enum dctf_option_index)i));
}

static void test_load_options_bad(void **state)
{
    (void)state;
    assert_int_equal(dctf_config_load_options(&config, "ro,cache_sise=1G", &error), DCTF_ERR_OPTION_UNKNOWN);
    assert_string_equal(error.text, "-o: unknown option \"cache_sise\" (did you mean cache_size?)");
    assert_int_equal(dctf_config_load_options(&config, "memory", &error), DCTF_ERR_OPTION_VALUE);
    assert_string_equal(error.text, "-o: memory needs a value: a size such as 512M or 20G, or auto");
    assert_int_equal(dctf_config_load_options(&config, "=x", &error), DCTF_ERR_OPTION_UNKNOWN);
}

static void test_precedence(void **state)
{
    char *env[] = {"DCTF_ZONE=env", "DCTF_FETCH_MAX=2M", NULL};

    (void)state;
    assert_int_equal(load("[global]\nzone=file\nnode=file\nfetch_max=1M\n", NULL), DCTF_OK);
    assert_int_equal(dctf_config_load_env(&config, env, &error), DCTF_OK);
    assert_int_equal(dctf_config_load_options(&config, "zone=option", &error), DCTF_OK);
    assert_string_equal(config.node, "file");
    assert_int_equal(config.fetch_max, 2u << 20);
    assert_string_equal(config.zone, "option");
}

static void drop_config(void *ctx)
{
    (void)ctx;
    dctf_config_fini(&config);
}

static enum dctf_err make_loaded(void *ctx)
{
    char *env[] = {"DCTF_ZONE=env", NULL};
    enum dctf_err err;

    (void)ctx;
    err = dctf_config_init(&config);
    if (!err)
        err = load("[global]\nnode=a\nzone=b\nscrub=off\n[dataset d]\nsource=s\nnode=c\n", "d");
    if (!err)
        err = dctf_config_load_env(&config, env, &error);
    if (!err)
        err = dctf_config_load_options(&config, "zone=c,log_file=x", &error);
    if (err)
        dctf_config_fini(&config);
    return err;
}

static void test_load_no_memory(void **state)
{
    (void)state;
    assert_true(fail_alloc_sweep(make_loaded, drop_config, NULL, NULL) >= 20);
}

#define config_test(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        config_test(test_load_text_layers),
        config_test(test_load_text_by_source),
        config_test(test_load_text_no_section_of_that_name),
        config_test(test_load_text_values),
        config_test(test_load_text_bad_lines),
        config_test(test_load_text_bad_sections),
        config_test(test_load_text_long_lines),
        config_test(test_load_text_bad_changes_nothing),
        config_test(test_load_file_missing),
        config_test(test_load_file_reads),
        config_test(test_load_env_names),
        config_test(test_load_env_bad_value),
        config_test(test_load_options_ours),
        config_test(test_load_options_customary),
        config_test(test_load_options_bad),
        config_test(test_precedence),
        cmocka_unit_test(test_load_no_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
