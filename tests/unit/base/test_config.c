/* SPDX-License-Identifier: Apache-2.0 */
#include "base/config.h"

#include "base/config_table.h"
#include "base/str.h"
#include "lib/fail_alloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
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

static void check_set_fails(const char *name, const char *value, const char *message)
{
    error.text[0] = '\0';
    assert_int_not_equal(dctf_config_set(&config, name, value, "here", &error), DCTF_OK);
    assert_string_equal(error.text, message);
}

static void check_set(const char *name, const char *value)
{
    if (dctf_config_set(&config, name, value, "here", &error))
        fail_msg("%s", error.text);
}

static void test_init_defaults(void **state)
{
    (void)state;
    assert_string_equal(config.cache_dir, "");
    assert_int_equal(config.cache_size, 20ull << 30);
    assert_int_equal(config.cache_reserve, UINT64_MAX);
    assert_int_equal(config.memory, 0);
    assert_int_equal(config.fetch_max, 8u << 20);
    assert_int_equal(config.read_deadline_ms, 30000);
    assert_int_equal(config.metadata_ttl, 60000);
    assert_int_equal(config.negative_ttl_ms, 1000);
    assert_int_equal(config.heat_half_life, 6 * 3600000);
    assert_int_equal(config.heat_ttl, 7 * 86400000ull);
    assert_int_equal(config.origin_concurrency, 16);
    assert_int_equal(config.passthrough, 0);
    assert_int_equal(config.log_level, 0);
    assert_true(config.scrub);
    assert_false(config.allow_other);
    assert_int_equal(config.uid, geteuid());
    assert_int_equal(config.gid, getegid());
    assert_int_equal(config.umask, 022);
    assert_null(config.source);
    assert_null(config.dataset);
    for (int i = 0; i < DCTF_OPTION_COUNT; i++)
        assert_false(dctf_config_is_set(&config, (enum dctf_option_index)i));
    assert_int_equal(dctf_config_check(&config, &error), DCTF_OK);
}

static void test_set_every_type(void **state)
{
    (void)state;
    check_set("cache_dir", "/a b");
    check_set("cache_size", "1.5G");
    check_set("read_deadline_ms", "250");
    check_set("metadata_ttl", "250"); /* no _ms: seconds */
    check_set("heat_ttl", "inf");
    check_set("origin_retries", "0");
    check_set("scrub", "off");
    check_set("allow_other", NULL);
    check_set("umask", "077");
    check_set("feature", "file");
    assert_string_equal(config.cache_dir, "/a b");
    assert_int_equal(config.cache_size, 1610612736);
    assert_int_equal(config.read_deadline_ms, 250);
    assert_int_equal(config.metadata_ttl, 250000);
    assert_int_equal(config.heat_ttl, UINT64_MAX);
    assert_int_equal(config.origin_retries, 0);
    assert_false(config.scrub);
    assert_true(config.allow_other);
    assert_int_equal(config.umask, 077);
    assert_int_equal(config.feature, 1);
    assert_true(dctf_config_is_set(&config, DCTF_OPTION_INDEX_umask));
    assert_false(dctf_config_is_set(&config, DCTF_OPTION_INDEX_uid));
}

static void test_set_auto(void **state)
{
    (void)state;
    check_set("cache_reserve", "0");
    assert_int_equal(config.cache_reserve, 0);
    check_set("cache_reserve", "auto");
    assert_int_equal(config.cache_reserve, UINT64_MAX);
    check_set("memory", "auto");
    assert_int_equal(config.memory, 0);
    check_set_fails("cache_size", "auto",
        "here: bad value \"auto\" for cache_size: it must be a size such as 512M or 20G");
}

static void test_set_bad_values(void **state)
{
    (void)state;
    check_set_fails(
        "cache_size", "20X", "here: bad value \"20X\" for cache_size: it must be a size such as 512M or 20G");
    check_set_fails("metadata_ttl", "soon",
        "here: bad value \"soon\" for metadata_ttl: it must be a duration such as 500ms, 30s, 5m, 6h, 7d or "
        "inf");
    check_set_fails(
        "origin_retries", "-1", "here: bad value \"-1\" for origin_retries: it must be a whole number");
    check_set_fails(
        "origin_retries", "", "here: bad value \"\" for origin_retries: it must be a whole number");
    check_set_fails("uid", "18446744073709551616",
        "here: bad value \"18446744073709551616\" for uid: it must be a whole number");
    check_set_fails("scrub", "maybe", "here: bad value \"maybe\" for scrub: it must be on or off");
    check_set_fails("umask", "8", "here: bad value \"8\" for umask: it must be an octal number such as 022");
    check_set_fails("passthrough", "au", "here: bad value \"au\" for passthrough: it must be auto|off");
    check_set_fails("passthrough", "", "here: bad value \"\" for passthrough: it must be auto|off");
    check_set_fails(
        "passthrough", "auto|off", "here: bad value \"auto|off\" for passthrough: it must be auto|off");
    check_set_fails(
        "node", "a\nb", "here: bad value \"a\\x0ab\" for node: it must be text without control characters");
    check_set_fails("node", NULL, "here: node needs a value: text without control characters");
    assert_string_equal(config.node, "");
}

static void test_set_bounds(void **state)
{
    static const struct {
        const char *name, *good_low, *good_high, *bad_low, *bad_high;
    } cases[] = {
        {"fetch_max", "256K", "32M", "128K", "64M"},
        {"fetch_max", "8M", "16M", "3M", "257K"},
        {"origin_concurrency", "1", "256", "0", "257"},
        {"origin_retries", "0", "10", NULL, "11"},
        {"negative_ttl_ms", "0", "1000", NULL, "1001"},
        {"negative_ttl_ms", "1s", "1s", NULL, "inf"},
        {"memory", "64M", "1T", "63M", NULL},
        {"memory", "auto", "auto", "0", NULL},
        {"cache_size", "1M", "1P", "1023K", NULL},
        {"cache_reserve_inodes_pct", "0", "50", NULL, "51"},
        {"heat_half_life", "1m", "inf", "59s", NULL},
        {"umask", "0", "0777", NULL, "1000"},
        {"read_deadline_ms", "1", "1d", "0", "inf"},
        {"list_deadline_ms", "1ms", "1d", "0", "2d"},
        {"mount_timeout", "1s", "1d", "0", "inf"},
        {"unmount_timeout", "0", "1d", NULL, "inf"},
        {"uid", "0", "4294967294", NULL, "4294967295"},
        {"gid", "0", "4294967294", NULL, "4294967295"},
        {"read_ahead_kb", "0", "1048576", NULL, "1048577"},
        {"readahead_shards", "0", "4294967295", NULL, "4294967296"},
        {"origin_retry_budget", "0", "100", NULL, "101"},
        {"connect_timeout_ms", "1", "1d", "0", "inf"},
        {"stall_timeout_min_ms", "1", "1d", "0", "inf"},
        {"stall_timeout_max_ms", "1", "1d", "0", "2d"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *bad[] = {cases[i].bad_low, cases[i].bad_high};

        check_set(cases[i].name, cases[i].good_low);
        check_set(cases[i].name, cases[i].good_high);
        for (int k = 0; k < 2; k++) {
            if (!bad[k])
                continue;
            error.text[0] = '\0';
            assert_int_equal(
                dctf_config_set(&config, cases[i].name, bad[k], "here", &error), DCTF_ERR_OPTION_VALUE);
            assert_non_null(strstr(error.text, "here: bad value "));
            assert_non_null(strstr(error.text, cases[i].name));
        }
    }
    check_set_fails(
        "fetch_max", "3M", "here: bad value \"3M\" for fetch_max: it must be a power of two, 256K to 32M");
}

static void test_set_unknown_guesses(void **state)
{
    (void)state;
    check_set_fails("cach_size", "1G", "here: unknown option \"cach_size\" (did you mean cache_size?)");
    check_set_fails("cache-size", "1G", "here: unknown option \"cache-size\" (did you mean cache_size?)");
    check_set_fails("noed", "x", "here: unknown option \"noed\" (did you mean node?)");
    check_set_fails("bandwidth", "x", "here: unknown option \"bandwidth\"");
    check_set_fails("", "x", "here: unknown option \"\"");
    check_set_fails("x\n", "x", "here: unknown option \"x\\x0a\"");
    assert_int_equal(dctf_config_set(&config, "nope", "x", "here", NULL), DCTF_ERR_OPTION_UNKNOWN);
}

static void test_check_more_than_one(void **state)
{
    (void)state;
    check_set("memory", "64M");
    assert_int_equal(dctf_config_check(&config, &error), DCTF_OK);
    check_set("readahead", "65M");
    assert_int_equal(dctf_config_check(&config, &error), DCTF_ERR_OPTION_VALUE);
    assert_string_equal(error.text, "options: readahead (65M) must not be larger than memory (64M)");
}

static void test_check_stall_bounds(void **state)
{
    (void)state;
    check_set("stall_timeout_min_ms", "15s");
    assert_int_equal(dctf_config_check(&config, &error), DCTF_OK);
    check_set("stall_timeout_min_ms", "15001");
    assert_int_equal(dctf_config_check(&config, &error), DCTF_ERR_OPTION_VALUE);
    assert_string_equal(
        error.text, "options: stall_timeout_min_ms must not be larger than stall_timeout_max_ms");
    check_set("stall_timeout_max_ms", "16s");
    assert_int_equal(dctf_config_check(&config, &error), DCTF_OK);
}

/* What is written reads back as the same configuration. */
static void test_write_reads_back(void **state)
{
    struct dctf_config copy;
    struct dctf_str first;
    struct dctf_str second;

    (void)state;
    check_set("cache_dir", " /odd # path ;");
    check_set("log_file", "/a \" # b");
    check_set("zone", "'");
    check_set("cache_size", "1000001024");
    check_set("cache_reserve", "0");
    check_set("memory", "100M");
    check_set("metadata_ttl", "90s");
    check_set("heat_ttl", "inf");
    check_set("unmount_timeout", "0");
    check_set("negative_ttl_ms", "999");
    check_set("umask", "0");
    check_set("log_level", "debug");
    check_set("scrub", "no");
    dctf_str_init(&first);
    dctf_str_init(&second);
    dctf_str_puts(&first, "[global]\n");
    dctf_config_write(&config, &first);
    assert_int_equal(first.err, DCTF_OK);
    assert_int_equal(dctf_config_init(&copy), DCTF_OK);
    if (dctf_config_load_text(&copy, "written", dctf_str_c(&first), NULL, &error))
        fail_msg("%s", error.text);
    dctf_str_puts(&second, "[global]\n");
    dctf_config_write(&copy, &second);
    assert_string_equal(dctf_str_c(&first), dctf_str_c(&second));
    assert_string_equal(copy.cache_dir, " /odd # path ;");
    assert_string_equal(copy.log_file, "/a \" # b");
    assert_string_equal(copy.zone, "'");
    assert_int_equal(copy.cache_size, 1000001024);
    assert_int_equal(copy.heat_ttl, UINT64_MAX);
    assert_non_null(strstr(first.data, "\nmetadata_ttl = 90s\n"));
    assert_non_null(strstr(first.data, "\nunmount_timeout = 0s\n"));
    assert_non_null(strstr(first.data, "\nnegative_ttl_ms = 999ms\n"));
    assert_non_null(strstr(first.data, "\nheat_ttl = inf\n"));
    dctf_config_fini(&copy);
    dctf_str_fini(&first);
    dctf_str_fini(&second);
}

static void check_written(const char *text, const char *name, bool is_secret)
{
    char line[128];

    snprintf(line, sizeof(line), is_secret ? "\n# %s is not set\n" : "\n%s = ", name);
    if (!strstr(text, line))
        fail_msg("%s is not written", name);
}

static void test_write_every_option(void **state)
{
    struct dctf_str out;

    (void)state;
    dctf_str_init(&out);
    dctf_str_puts(&out, "\n");
    dctf_config_write(&config, &out);
#define O(type, field, name, def, group, help)                                                               \
    check_written(out.data, name, DCTF_OPTION_TYPE_##type == DCTF_OPTION_TYPE_SECRET);
#include "base/option.def"
#undef O
    assert_non_null(strstr(out.data, "\ncache_size = 20G\n"));
    assert_non_null(strstr(out.data, "\ncache_reserve = auto\n"));
    assert_non_null(strstr(out.data, "\nmemory = auto\n"));
    assert_non_null(strstr(out.data, "\npassthrough = auto\n"));
    assert_non_null(strstr(out.data, "\nheat_half_life = 6h\n"));
    assert_non_null(strstr(out.data, "\numask = 022\n"));
    dctf_str_fini(&out);
}

static void test_help_every_option(void **state)
{
    struct dctf_str out;

    (void)state;
    dctf_str_init(&out);
    dctf_config_help(&out);
    assert_int_equal(out.err, DCTF_OK);
#define O(type, field, name, def, group, help) assert_non_null(strstr(out.data, "\n  " name "="));
#include "base/option.def"
#undef O
    assert_int_equal(strncmp(out.data, "Cache:\n  cache_dir=TEXT ", 24), 0);
    assert_non_null(strstr(out.data, "\n\nMount:\n"));
    assert_non_null(strstr(out.data, "\n  feature=directory|file "));
    assert_non_null(strstr(out.data, "(default 20G)"));
    for (const char *line = out.data; *line; line += strcspn(line, "\n") + 1)
        assert_true(strcspn(line, "\n") <= 100);
    dctf_str_fini(&out);
}

static void drop_config(void *ctx)
{
    (void)ctx;
    dctf_config_fini(&config);
}

static enum dctf_err make_config(void *ctx)
{
    (void)ctx;
    return dctf_config_init(&config);
}

static void test_init_no_memory(void **state)
{
    (void)state;
    assert_true(fail_alloc_sweep(make_config, drop_config, NULL, NULL) >= 4);
    assert_null(config.cache_dir);
}

#define config_test(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        config_test(test_init_defaults),
        config_test(test_set_every_type),
        config_test(test_set_auto),
        config_test(test_set_bad_values),
        config_test(test_set_bounds),
        config_test(test_set_unknown_guesses),
        config_test(test_check_more_than_one),
        config_test(test_check_stall_bounds),
        config_test(test_write_reads_back),
        config_test(test_write_every_option),
        config_test(test_help_every_option),
        cmocka_unit_test(test_init_no_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
