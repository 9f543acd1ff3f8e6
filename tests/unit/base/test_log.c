/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include "lib/fail_alloc.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char path[64];
static char text[1 << 20];

static int setup(void **state)
{
    struct dctf_log_config config = {.level = DCTF_LOG_INFO, .file = path};
    int fd;

    (void)state;
    strcpy(path, "/tmp/dctf-test-log-XXXXXX");
    fd = mkstemp(path);
    if (fd < 0)
        return -1;
    close(fd);
    return dctf_log_setup(&config) == DCTF_OK ? 0 : -1;
}

static int teardown(void **state)
{
    struct dctf_log_config config = {.level = DCTF_LOG_INFO};

    (void)state;
    unlink(path);
    return dctf_log_setup(&config) == DCTF_OK ? 0 : -1;
}

static const char *read_log(void)
{
    FILE *file = fopen(path, "r");
    size_t len;

    assert_non_null(file);
    len = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    text[len] = '\0';
    return text;
}

static unsigned count_lines(const char *log)
{
    unsigned lines = 0;

    for (; (log = strchr(log, '\n')); log++)
        lines++;
    return lines;
}

static void test_write_format(void **state)
{
    const char *line;
    int year, month, day, hour, minute, second, ms, used = 0;

    (void)state;
    dctf_log(DCTF_LOG_WARN, "cache", "err=%d key=%s", 3007, "\"a\"");
    line = read_log();
    assert_int_equal(sscanf(line, "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ%n", &year, &month, &day, &hour, &minute,
                         &second, &ms, &used),
        7);
    assert_int_equal(used, 24);
    assert_string_equal(line + used, " WARN cache err=3007 key=\"a\"\n");
}

static void test_level_filters(void **state)
{
    (void)state;
    dctf_log(DCTF_LOG_DEBUG, "x", "no");
    assert_string_equal(read_log(), "");
    dctf_log_set_level(DCTF_LOG_DEBUG);
    assert_int_equal(dctf_log_level(), DCTF_LOG_DEBUG);
    dctf_log(DCTF_LOG_DEBUG, "x", "yes");
    assert_int_equal(count_lines(read_log()), 1);
    dctf_log_set_level(DCTF_LOG_ERROR);
    dctf_log(DCTF_LOG_WARN, "x", "no");
    dctf_log(DCTF_LOG_ERROR, "x", "yes");
    assert_int_equal(count_lines(read_log()), 2);
}

static int evaluated;

static int evaluate(void)
{
    return ++evaluated;
}

static void test_arguments_are_free_when_off(void **state)
{
    (void)state;
    dctf_log(DCTF_LOG_DEBUG, "x", "%d", evaluate());
    assert_int_equal(evaluated, 0);
    dctf_log(DCTF_LOG_INFO, "x", "%d", evaluate());
    assert_int_equal(evaluated, 1);
}

static void test_level_parse(void **state)
{
    enum dctf_log_level level;

    (void)state;
    assert_int_equal(dctf_log_level_parse("debug", &level), DCTF_OK);
    assert_int_equal(level, DCTF_LOG_DEBUG);
    assert_int_equal(dctf_log_level_parse("ERROR", &level), DCTF_OK);
    assert_int_equal(level, DCTF_LOG_ERROR);
    assert_int_equal(dctf_log_level_parse("loud", &level), DCTF_ERR_OPTION_VALUE);
    assert_int_equal(level, DCTF_LOG_INFO);
}

static void test_write_keeps_errno(void **state)
{
    struct dctf_log_config full = {.level = DCTF_LOG_INFO, .file = "/dev/full"};

    (void)state;
    assert_int_equal(dctf_log_setup(&full), DCTF_OK); /* every write fails */
    errno = ESTALE;
    dctf_log(DCTF_LOG_ERROR, "x", "%s", strerror(errno));
    assert_int_equal(errno, ESTALE);
}

static void test_burst_is_limited(void **state)
{
    struct dctf_log_site site = {0};
    unsigned passed = 0;

    (void)state;
    /* A second may end in between: then the next one has a burst of its own. */
    for (unsigned i = 0; i < 1000; i++)
        dctf_log_write(&site, DCTF_LOG_INFO, "x", "line %u", i);
    passed = count_lines(read_log());
    assert_in_range(passed, DCTF_LOG_BURST, 10 * DCTF_LOG_BURST);
    assert_true(site.dropped > 0);
    site.dropped = 980;
    site.window_s = 0; /* a later second */
    dctf_log_write(&site, DCTF_LOG_INFO, "x", "last");
    assert_non_null(strstr(read_log(), "INFO x last dropped_lines=980\n"));
    assert_int_equal(site.dropped, 0);
}

static void test_sites_are_limited_apart(void **state)
{
    struct dctf_log_site noisy = {0};

    (void)state;
    for (unsigned i = 0; i < 100; i++)
        dctf_log_write(&noisy, DCTF_LOG_INFO, "x", "noise");
    dctf_log(DCTF_LOG_INFO, "x", "quiet");
    assert_non_null(strstr(read_log(), "quiet\n"));
}

static void test_long_line_is_cut(void **state)
{
    static char message[8192];
    struct dctf_log_site site = {.dropped = UINT32_MAX};
    const char *log;

    (void)state;
    memset(message, 'm', sizeof(message) - 1);
    dctf_log_write(&site, DCTF_LOG_INFO, "x", "%s", message);
    log = read_log();
    assert_int_equal(count_lines(log), 1);
    assert_true(strlen(log) <= 2048);
    assert_true(strlen(log) > 1900);
    assert_non_null(strstr(log, "m dropped_lines=4294967295\n"));
}

static void test_reopen_follows_rotation(void **state)
{
    char rotated[80];

    (void)state;
    dctf_log(DCTF_LOG_INFO, "x", "first");
    snprintf(rotated, sizeof(rotated), "%s.1", path);
    assert_int_equal(rename(path, rotated), 0);
    dctf_log(DCTF_LOG_INFO, "x", "second"); /* still into the renamed file */
    dctf_log_reopen();
    dctf_log(DCTF_LOG_INFO, "x", "third");
    assert_int_equal(count_lines(read_log()), 1);
    assert_non_null(strstr(text, "third\n"));
    assert_int_equal(rename(rotated, path), 0);
    assert_int_equal(count_lines(read_log()), 2);
}

static void test_setup_failure_keeps_sink(void **state)
{
    struct dctf_log_config config = {.level = DCTF_LOG_DEBUG, .file = "/nonexistent/dir/log"};
    enum dctf_err err;

    (void)state;
    assert_int_equal(dctf_log_setup(&config), DCTF_ERR_SYSTEM);
    config.file = path;
    fail_alloc_arm(1);
    err = dctf_log_setup(&config);
    assert_true(fail_alloc_disarm());
    assert_int_equal(err, DCTF_ERR_NO_MEMORY);
    assert_int_equal(dctf_log_level(), DCTF_LOG_INFO);
    dctf_log(DCTF_LOG_INFO, "x", "still here");
    assert_non_null(strstr(read_log(), "still here\n"));
}

static void *write_lines(void *ctx)
{
    for (unsigned i = 0; i < 200; i++) {
        struct dctf_log_site site = {0};

        dctf_log_write(&site, DCTF_LOG_INFO, "thread", "who=%s i=%u end", (const char *)ctx, i);
    }
    return NULL;
}

static void test_lines_stay_whole(void **state)
{
    static char *const names[] = {"aaaa", "bbbb", "cccc"};
    pthread_t threads[3];
    unsigned lines = 0;

    (void)state;
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, write_lines, names[i]), 0);
    dctf_log_reopen();
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    read_log();
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"), lines++) {
        char who[8];
        unsigned i;
        int used = 0;

        assert_int_equal(sscanf(line + 24, " INFO thread who=%7s i=%u end%n", who, &i, &used), 2);
        assert_int_equal(line[24 + used], '\0');
    }
    assert_int_equal(lines, 600);
}

#define log_test(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        log_test(test_write_format),
        log_test(test_level_filters),
        log_test(test_arguments_are_free_when_off),
        log_test(test_level_parse),
        log_test(test_write_keeps_errno),
        log_test(test_burst_is_limited),
        log_test(test_sites_are_limited_apart),
        log_test(test_long_line_is_cut),
        log_test(test_reopen_follows_rotation),
        log_test(test_setup_failure_keeps_sink),
        log_test(test_lines_stay_whole),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
