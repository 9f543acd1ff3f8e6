/* SPDX-License-Identifier: Apache-2.0 */
#include "base/metric.h"

#include "base/str.h"
#include "lib/fail_alloc.h"

#include <ctype.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MS 1000000u

static int setup(void **state)
{
    return dctf_metrics_new((struct dctf_metrics **)state) == DCTF_OK ? 0 : -1;
}

static int teardown(void **state)
{
    dctf_metrics_free(*state);
    return 0;
}

static void test_add_sums(void **state)
{
    dctf_metric_add(*state, DCTF_METRIC_READS, 2);
    dctf_metric_add(*state, DCTF_METRIC_READS, 3);
    assert_int_equal(dctf_metric_get(*state, DCTF_METRIC_READS), 5);
    assert_int_equal(dctf_metric_get(*state, DCTF_METRIC_READS_PARKED), 0);
}

static void test_gauge_sets_and_adds(void **state)
{
    dctf_metric_set(*state, DCTF_METRIC_HANDLES, 10);
    dctf_metric_add(*state, DCTF_METRIC_HANDLES, -4);
    assert_int_equal(dctf_metric_get(*state, DCTF_METRIC_HANDLES), 6);
    dctf_metric_set(*state, DCTF_METRIC_HANDLES, 1);
    assert_int_equal(dctf_metric_get(*state, DCTF_METRIC_HANDLES), 1);
}

static void test_null_counts_nothing(void **state)
{
    struct dctf_str out;

    (void)state;
    dctf_metric_add(NULL, DCTF_METRIC_READS, 1);
    dctf_metric_set(NULL, DCTF_METRIC_HANDLES, 1);
    dctf_metric_observe_ns(NULL, DCTF_METRIC_TRANSFER_FEATURE, 1);
    dctf_metric_error(NULL, DCTF_ERR_MISS);
    assert_int_equal(dctf_metric_get(NULL, DCTF_METRIC_READS), 0);
    assert_int_equal(dctf_metric_errors(NULL, DCTF_ERR_MISS), 0);
    assert_int_equal(dctf_metric_quantile_ns(NULL, DCTF_METRIC_TRANSFER_FEATURE, 0.5), 0);
    dctf_str_init(&out);
    assert_int_equal(dctf_metrics_write(NULL, NULL, &out), DCTF_OK);
    assert_non_null(strstr(dctf_str_c(&out), "dctf_reads_total 0\n"));
    dctf_str_fini(&out);
    dctf_metrics_free(NULL);
}

static void test_errors_by_code(void **state)
{
    dctf_metric_error(*state, DCTF_ERR_VERSION_MISMATCH);
    dctf_metric_error(*state, DCTF_ERR_VERSION_MISMATCH);
    dctf_metric_error(*state, DCTF_OK);
    dctf_metric_error(*state, (enum dctf_err)1234);
    assert_int_equal(dctf_metric_errors(*state, DCTF_ERR_VERSION_MISMATCH), 2);
    assert_int_equal(dctf_metric_errors(*state, DCTF_ERR_INTERNAL), 1);
    assert_int_equal(dctf_metric_errors(*state, DCTF_OK), 0);
    assert_int_equal(dctf_metric_errors(*state, DCTF_ERR_MISS), 0);
}

static void test_quantile_bounds(void **state)
{
    assert_int_equal(dctf_metric_quantile_ns(*state, DCTF_METRIC_TRANSFER_FEATURE, 0.99), 0);
    for (int i = 0; i < 98; i++)
        dctf_metric_observe_ns(*state, DCTF_METRIC_TRANSFER_FEATURE, 1 * MS);
    dctf_metric_observe_ns(*state, DCTF_METRIC_TRANSFER_FEATURE, 1 * MS + 1);
    dctf_metric_observe_ns(*state, DCTF_METRIC_TRANSFER_FEATURE, UINT64_MAX / 4);
    assert_int_equal(dctf_metric_get(*state, DCTF_METRIC_TRANSFER_FEATURE), 100);
    assert_int_equal(dctf_metric_get(*state, DCTF_METRIC_TRANSFER_LISTING), 0);
    assert_int_equal(dctf_metric_quantile_ns(*state, DCTF_METRIC_TRANSFER_FEATURE, 0.5), 1 * MS);
    assert_int_equal(dctf_metric_quantile_ns(*state, DCTF_METRIC_TRANSFER_FEATURE, 0.99), 2 * MS);
    assert_int_equal(dctf_metric_quantile_ns(*state, DCTF_METRIC_TRANSFER_FEATURE, 0.999), 60000ull * MS);
}

static void *hammer(void *ctx)
{
    for (int i = 0; i < 10000; i++) {
        dctf_metric_add(ctx, DCTF_METRIC_READS, 1);
        dctf_metric_observe_ns(ctx, DCTF_METRIC_TRANSFER_LISTING, (uint64_t)i * 1000);
        dctf_metric_error(ctx, DCTF_ERR_MISS);
        dctf_metric_add(ctx, DCTF_METRIC_HANDLES, i % 2 ? -1 : 1);
    }
    return NULL;
}

static void test_add_from_threads(void **state)
{
    pthread_t threads[4];

    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, hammer, *state), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(dctf_metric_get(*state, DCTF_METRIC_READS), 40000);
    assert_int_equal(dctf_metric_get(*state, DCTF_METRIC_TRANSFER_LISTING), 40000);
    assert_int_equal(dctf_metric_errors(*state, DCTF_ERR_MISS), 40000);
    assert_int_equal(dctf_metric_get(*state, DCTF_METRIC_HANDLES), 0);
}

static bool valid_name(const char *name, size_t len)
{
    if (!len || isdigit((unsigned char)*name))
        return false;
    for (size_t i = 0; i < len; i++) {
        if (!isalnum((unsigned char)name[i]) && name[i] != '_' && name[i] != ':')
            return false;
    }
    return true;
}

/* The rules promtool checks: one HELP and one TYPE before the samples of a
 * family, families not interleaved, counters end in _total, no sample twice. */
struct exposition {
    char family[128];
    char type[16];
    bool typed;
    const char *text;
};

static void check_comment(struct exposition *expo, const char *line, size_t len)
{
    char name[128];
    char needle[160];
    int used = 0;

    if (!strncmp(line, "# HELP ", 7)) {
        assert_int_equal(sscanf(line + 7, "%127s", name), 1);
        assert_true(len > 7 + strlen(name) + 1);
        snprintf(needle, sizeof(needle), "# HELP %s ", name);
        assert_ptr_equal(strstr(expo->text, needle), line);
        assert_null(strstr(line + 1, needle)); /* once in the whole text */
        strcpy(expo->family, name);
        expo->typed = false;
        return;
    }
    assert_int_equal(sscanf(line, "# TYPE %127s %15s%n", name, expo->type, &used), 2);
    assert_int_equal(used, len);
    assert_string_equal(name, expo->family);
    assert_false(expo->typed);
    expo->typed = true;
    if (!strcmp(expo->type, "counter"))
        assert_string_equal(name + strlen(name) - 6, "_total");
}

static void check_sample(struct exposition *expo, const char *line, size_t len)
{
    size_t name_len = strcspn(line, "{ ");
    size_t family_len = strlen(expo->family);
    const char *value = line + len;
    char series[512];
    char *end;

    assert_true(expo->typed);
    assert_true(valid_name(line, name_len));
    assert_true(name_len >= family_len && !strncmp(line, expo->family, family_len));
    if (name_len > family_len) {
        assert_string_equal(expo->type, "histogram");
        assert_true(!strncmp(line + family_len, "_bucket", name_len - family_len) ||
                    !strncmp(line + family_len, "_sum", name_len - family_len) ||
                    !strncmp(line + family_len, "_count", name_len - family_len));
    }
    while (value[-1] != ' ')
        value--;
    (void)strtod(value, &end);
    assert_true(end > value);
    assert_ptr_equal(end, line + len);
    snprintf(series, sizeof(series), "\n%.*s", (int)(value - line), line);
    assert_null(strstr(line, series)); /* not a second time */
}

static void check_exposition(const char *text)
{
    struct exposition expo = {.text = text};
    const char *line = text;

    while (*line) {
        const char *end = strchr(line, '\n');

        assert_non_null(end);
        if (*line == '#')
            check_comment(&expo, line, (size_t)(end - line));
        else
            check_sample(&expo, line, (size_t)(end - line));
        line = end + 1;
    }
}

static void test_write_follows_rules(void **state)
{
    struct dctf_str out;

    dctf_str_init(&out);
    dctf_metric_error(*state, DCTF_ERR_VERSION_MISMATCH);
    dctf_metric_error(*state, DCTF_ERR_DEADLINE);
    dctf_metric_observe_ns(*state, DCTF_METRIC_TRANSFER_FEATURE, 1);
    assert_int_equal(dctf_metrics_write(*state, "worker-03", &out), DCTF_OK);
    check_exposition(dctf_str_c(&out));
    dctf_str_fini(&out);
}

static void test_write_every_metric(void **state)
{
    struct dctf_str out;

    dctf_str_init(&out);
    assert_int_equal(dctf_metrics_write(*state, "n", &out), DCTF_OK);
#define M(kind, id, name, labels, help)                                                                      \
    assert_non_null(strstr(dctf_str_c(&out), "# TYPE " name " "));                                           \
    assert_non_null(strstr(dctf_str_c(&out), labels));
#include "base/metric.def"
#undef M
    dctf_str_fini(&out);
}

static void test_write_values(void **state)
{
    struct dctf_str out;
    const char *text;

    dctf_metric_add(*state, DCTF_METRIC_OPENS_HOT, 7);
    dctf_metric_add(*state, DCTF_METRIC_CACHE_SHARD_HITS, 3);
    dctf_metric_add(*state, DCTF_METRIC_CACHE_SHARD_MISSES, 1);
    dctf_metric_error(*state, DCTF_ERR_VERSION_MISMATCH);
    dctf_metric_observe_ns(*state, DCTF_METRIC_TRANSFER_FEATURE, 10 * MS);
    dctf_metric_observe_ns(*state, DCTF_METRIC_TRANSFER_FEATURE, 90000ull * MS);
    dctf_str_init(&out);
    assert_int_equal(dctf_metrics_write(*state, "a\"b\\c\nd", &out), DCTF_OK);
    text = dctf_str_c(&out);
    assert_non_null(strstr(text, "\ndctf_opens_total{tier=\"hot\"} 7\n"));
    assert_non_null(strstr(text, "\ndctf_errors_total{code=\"1003\"} 1\n"));
    assert_null(strstr(text, "code=\"2011\"")); /* not seen */
    assert_non_null(strstr(text, "\ndctf_shard_hit_rate{node=\"a\\\"b\\\\c\\nd\"} 0.750000\n"));
    assert_non_null(strstr(text, "_bucket{type=\"feature\",le=\"0.005\"} 0\n"));
    assert_non_null(strstr(text, "_bucket{type=\"feature\",le=\"0.01\"} 1\n"));
    assert_non_null(strstr(text, "_bucket{type=\"feature\",le=\"60\"} 1\n"));
    assert_non_null(strstr(text, "_bucket{type=\"feature\",le=\"+Inf\"} 2\n"));
    assert_non_null(strstr(text, "_sum{type=\"feature\"} 90.010000000\n"));
    assert_non_null(strstr(text, "_count{type=\"feature\"} 2\n"));
    assert_non_null(strstr(text, "\nprocess_resident_memory_bytes "));
    dctf_str_fini(&out);
}

static void test_write_no_opens_no_rate(void **state)
{
    struct dctf_str out;

    dctf_str_init(&out);
    assert_int_equal(dctf_metrics_write(*state, NULL, &out), DCTF_OK);
    assert_non_null(strstr(dctf_str_c(&out), "\ndctf_shard_hit_rate{node=\"\"} NaN\n"));
    dctf_str_fini(&out);
}

static void test_write_no_memory(void **state)
{
    struct dctf_str out;
    enum dctf_err err;

    dctf_str_init(&out);
    fail_alloc_arm(3);
    err = dctf_metrics_write(*state, "n", &out);
    assert_true(fail_alloc_disarm());
    assert_int_equal(err, DCTF_ERR_NO_MEMORY);
    dctf_str_fini(&out);
    assert_int_equal(fail_alloc_live(), 0);
}

static struct dctf_metrics *swept;

static enum dctf_err sweep_make(void *ctx)
{
    (void)ctx;
    return dctf_metrics_new(&swept);
}

static void sweep_drop(void *ctx)
{
    (void)ctx;
    dctf_metrics_free(swept);
}

static void test_new_no_memory(void **state)
{
    (void)state;
    assert_int_equal(fail_alloc_sweep(sweep_make, sweep_drop, NULL, (void **)&swept), 1);
}

#define metric_test(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        metric_test(test_add_sums),
        metric_test(test_gauge_sets_and_adds),
        cmocka_unit_test(test_null_counts_nothing),
        metric_test(test_errors_by_code),
        metric_test(test_quantile_bounds),
        metric_test(test_add_from_threads),
        metric_test(test_write_follows_rules),
        metric_test(test_write_every_metric),
        metric_test(test_write_values),
        metric_test(test_write_no_opens_no_rate),
        metric_test(test_write_no_memory),
        cmocka_unit_test(test_new_no_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
