/* SPDX-License-Identifier: Apache-2.0
 *
 * The misbehaving origin misbehaves as told, alone and behind the scheduler.
 */
#include "lib/origin_script.h"

#include "base/log.h"
#include "base/metric.h"
#include "base/timer.h"
#include "lib/origin_sync.h"
#include "transport/fetch.h"

#include <jansson.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
/* cmocka needs some of the above first */
#include <cmocka.h>

struct world {
    char top[64];
    char source[256];
    char etag[DCTF_ETAG_MAX + 1]; /* of "dir/one" */
    struct dctf_origin *origin;
    struct dctf_timers *timers;
    struct dctf_metrics *metrics;
    struct dctf_fetch *fetch;
};

static const struct dctf_origin_scheme schemes[] = {{"script", dctf_origin_script_open}, {NULL, NULL}};

static void write_file(const struct world *world, const char *name, const char *text)
{
    char path[128];
    FILE *file;

    snprintf(path, sizeof(path), "%s/%s", world->top, name);
    file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void control(const struct world *world, const char *json)
{
    char from[128];
    char to[128];

    write_file(world, "control.part", json);
    snprintf(from, sizeof(from), "%s/control.part", world->top);
    snprintf(to, sizeof(to), "%s/control.json", world->top);
    assert_int_equal(rename(from, to), 0);
}

static int setup(void **state)
{
    struct world *world = calloc(1, sizeof(*world));
    struct dctf_origin_config config = {.source = world->source, .concurrency = 2};
    struct dctf_fetch_config fetch = {.concurrency = 2, .retries = 3, .backoff_ms = 1, .seed = 1};
    struct dctf_sync_entry entry;
    char dir[128];

    strcpy(world->top, "/tmp/dctf-origin-script-XXXXXX");
    if (!mkdtemp(world->top))
        return -1;
    snprintf(dir, sizeof(dir), "%s/root", world->top);
    mkdir(dir, 0700);
    strcat(dir, "/dir");
    mkdir(dir, 0700);
    write_file(world, "root/dir/one", "0123456789");
    write_file(world, "root/dir/two", "abc");
    snprintf(world->source, sizeof(world->source), "script://%s/control.json?file://%s/root", world->top,
        world->top);
    if (dctf_origin_open(schemes, &config, &world->origin) || dctf_timers_new(&world->timers) ||
        dctf_metrics_new(&world->metrics))
        return -1;
    fetch.origin = world->origin;
    fetch.timers = world->timers;
    fetch.metrics = world->metrics;
    if (dctf_fetch_new(&fetch, &world->fetch) || dctf_origin_sync_head(world->origin, "dir/one", &entry))
        return -1;
    strcpy(world->etag, entry.etag);
    *state = world;
    return 0;
}

static int teardown(void **state)
{
    struct world *world = *state;
    char command[128];

    dctf_fetch_free(world->fetch);
    if (world->origin)
        world->origin->ops->close(world->origin, 1000);
    dctf_metrics_free(world->metrics);
    dctf_timers_free(world->timers);
    snprintf(command, sizeof(command), "rm -rf '%s'", world->top);
    if (system(command) != 0)
        return -1;
    free(world);
    return 0;
}

static enum dctf_err get(struct world *world, size_t *got)
{
    char buf[10];
    enum dctf_err err =
        dctf_origin_sync_get(world->origin, "dir/one", world->etag, 10, 0, buf, sizeof(buf), got);

    if (*got > 0)
        assert_memory_equal(buf, "0123456789", *got);
    return err;
}

/* The statistics once they carry `serial`. */
static json_t *stats(const struct world *world, json_int_t serial)
{
    static const struct timespec tick = {.tv_nsec = 2000000};
    char path[128];
    json_t *json;

    snprintf(path, sizeof(path), "%s/stats.json", world->top);
    for (;;) { /* the program's time limit ends this */
        json = json_load_file(path, 0, NULL);
        if (json && json_integer_value(json_object_get(json, "serial")) == serial)
            return json;
        json_decref(json);
        nanosleep(&tick, NULL);
    }
}

static void ask_stats(const struct world *world, json_int_t serial, const char *rules)
{
    char text[512];

    snprintf(text, sizeof(text), "{\"serial\": %lld, \"stats\": \"%s/stats.json\", \"rules\": [%s]}",
        (long long)serial, world->top, rules);
    control(world, text);
}

static void test_open_needs_both_parts(void **state)
{
    static const char *const bad[] = {"script:///x", "script://x?file:///y", "script:///x?s3://y"};
    struct dctf_origin *origin;

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct dctf_origin_config config = {.source = bad[i], .concurrency = 1};

        assert_int_equal(dctf_origin_open(schemes, &config, &origin), DCTF_ERR_SOURCE_UNSUPPORTED);
    }
}

static void test_rules_decide(void **state)
{
    struct world *world = *state;
    size_t got;

    assert_int_equal(get(world, &got), DCTF_OK);
    control(world,
        "{\"rules\": [{\"op\": \"get\", \"key\": \"dir/*\", \"error\": \"ORIGIN_THROTTLED\", \"n\": 1},"
        "{\"op\": \"get\", \"short\": 4, \"n\": 1}, {\"op\": \"get\", \"short\": 0, \"n\": 1},"
        "{\"op\": \"get\", \"wrong_version\": true, \"n\": 1},"
        "{\"op\": \"get\", \"delay_ms\": 5}, {\"op\": \"head\", \"error\": \"ORIGIN_ACCESS\"}]}");
    assert_int_equal(get(world, &got), DCTF_ERR_ORIGIN_THROTTLED);
    assert_int_equal(get(world, &got), DCTF_ERR_SHORT_BODY);
    assert_int_equal(got, 4);
    assert_int_equal(get(world, &got), DCTF_ERR_SHORT_BODY);
    assert_int_equal(got, 0);
    assert_int_equal(get(world, &got), DCTF_ERR_VERSION_MISMATCH);
    assert_int_equal(get(world, &got), DCTF_OK);
    assert_int_equal(dctf_origin_sync_head(world->origin, "dir/one", NULL), DCTF_ERR_ORIGIN_ACCESS);
    control(world, "{}");
    assert_int_equal(dctf_origin_sync_head(world->origin, "dir/one", NULL), DCTF_OK);
}

static void test_rules_not_understood_change_nothing(void **state)
{
    static const char *const bad[] = {"{", "{\"rules\": [{\"op\": \"got\"}]}",
        "{\"rules\": [{\"error\": \"X\"}]}", "{\"rules\": [{\"stal\": true}]}", "{\"rule\": []}"};
    struct world *world = *state;
    size_t got;

    control(world, "{\"rules\": [{\"op\": \"get\", \"error\": \"ORIGIN_IO\"}]}");
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(get(world, &got), DCTF_ERR_ORIGIN_IO);
        control(world, bad[i]);
    }
    assert_int_equal(get(world, &got), DCTF_ERR_ORIGIN_IO);
}

static void test_dice_repeat(void **state)
{
    struct world *world = *state;
    unsigned failed[2] = {0};
    size_t got;

    for (unsigned round = 0; round < 2; round++) {
        control(world, "{\"seed\": 0}");
        assert_int_equal(get(world, &got), DCTF_OK);
        control(world, "{\"seed\": 5, \"rules\": [{\"op\": \"get\", \"error\": \"ORIGIN_IO\", \"p\": 0.5}]}");
        for (unsigned i = 0; i < 100; i++)
            failed[round] += get(world, &got) == DCTF_ERR_ORIGIN_IO;
    }
    assert_in_range(failed[0], 30, 70);
    assert_int_equal(failed[0], failed[1]);
}

static void test_list_is_cut(void **state)
{
    struct world *world = *state;
    struct dctf_sync_listing listing = {0};

    control(world, "{\"rules\": [{\"op\": \"list\", \"key\": \"dir\", \"short\": 1}]}");
    assert_int_equal(dctf_origin_sync_list(world->origin, "dir", &listing), DCTF_ERR_SHORT_BODY);
    assert_int_equal(listing.count, 1);
    dctf_origin_sync_clear(&listing);
    assert_int_equal(dctf_origin_sync_list(world->origin, "", &listing), DCTF_OK);
    dctf_origin_sync_clear(&listing);
}

static void test_stats_count(void **state)
{
    struct world *world = *state;
    const json_t *key;
    json_t *json;
    size_t got;

    assert_int_equal(get(world, &got), DCTF_OK);
    assert_int_equal(get(world, &got), DCTF_OK);
    assert_int_equal(dctf_origin_sync_head(world->origin, "\xff", NULL), DCTF_ERR_NOT_FOUND);
    assert_int_equal(
        dctf_origin_sync_get(world->origin, "\xff", "e", 1, 0, &got, 1, &got), DCTF_ERR_NOT_FOUND);
    ask_stats(world, 7, "");
    json = stats(world, 7);
    assert_int_equal(json_integer_value(json_object_get(json, "get")), 3);
    assert_int_equal(json_integer_value(json_object_get(json, "head")), 2);
    assert_int_equal(json_integer_value(json_object_get(json, "list")), 0);
    assert_int_equal(json_integer_value(json_object_get(json, "bytes")), 20);
    assert_int_equal(json_integer_value(json_object_get(json, "pending")), 0);
    key = json_object_get(json_object_get(json, "keys"), "dir/one");
    assert_int_equal(json_integer_value(json_object_get(key, "gets")), 2);
    assert_int_equal(json_integer_value(json_object_get(key, "bytes")), 20);
    assert_int_equal(
        json_integer_value(json_array_get(json_array_get(json_object_get(key, "ranges"), 1), 1)), 10);
    assert_non_null(json_object_get(json_object_get(json, "keys"), "\"\\xff\""));
    json_decref(json);
}

/* --- behind the scheduler --- */

struct call {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done;
    bool released;
    bool buf_free;
    enum dctf_err err;
    char buf[10];
};

#define CALL_INIT                                                                                            \
    {                                                                                                        \
        .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER                               \
    }

static void on_get(void *ctx, enum dctf_err err, bool buf_free)
{
    struct call *call = ctx;

    pthread_mutex_lock(&call->lock);
    call->done = true;
    call->err = err;
    call->buf_free = buf_free;
    pthread_cond_signal(&call->changed);
    pthread_mutex_unlock(&call->lock);
}

static void on_release(void *ctx)
{
    struct call *call = ctx;

    pthread_mutex_lock(&call->lock);
    call->released = true;
    pthread_cond_signal(&call->changed);
    pthread_mutex_unlock(&call->lock);
}

static void await(struct call *call, const bool *flag)
{
    pthread_mutex_lock(&call->lock);
    while (!*flag)
        pthread_cond_wait(&call->changed, &call->lock);
    pthread_mutex_unlock(&call->lock);
}

static bool is_set(struct call *call, const bool *flag)
{
    bool set;

    pthread_mutex_lock(&call->lock);
    set = *flag;
    pthread_mutex_unlock(&call->lock);
    return set;
}

static void fetch(struct world *world, struct call *call, uint64_t deadline_ms)
{
    struct dctf_fetch_get ask = {.key = "dir/one",
        .etag = world->etag,
        .size = 10,
        .len = 10,
        .buf = call->buf,
        .class = DCTF_FETCH_DEMAND,
        .deadline_ms = deadline_ms,
        .done = on_get,
        .release = on_release,
        .ctx = call};

    assert_int_equal(dctf_fetch_get_submit(world->fetch, &ask, NULL), DCTF_OK);
}

static void test_fetch_survives_throttling(void **state)
{
    struct world *world = *state;
    struct call call = CALL_INIT;

    control(world, "{\"rules\": [{\"op\": \"get\", \"error\": \"ORIGIN_THROTTLED\", \"n\": 3}]}");
    fetch(world, &call, 60000);
    await(&call, &call.done);
    assert_int_equal(call.err, DCTF_OK);
    assert_memory_equal(call.buf, "0123456789", 10);
    assert_int_equal(dctf_metric_get(world->metrics, DCTF_METRIC_ORIGIN_RETRIES), 3);
}

static void test_fetch_leaves_a_stall(void **state)
{
    struct world *world = *state;
    struct call call = CALL_INIT;

    control(world, "{\"rules\": [{\"op\": \"get\", \"stall\": true}]}");
    fetch(world, &call, 100);
    await(&call, &call.done);
    assert_int_equal(call.err, DCTF_ERR_DEADLINE);
    assert_true(call.buf_free); /* this one can be cancelled */
}

static void test_fetch_leaves_a_hard_stall(void **state)
{
    struct world *world = *state;
    struct call call = CALL_INIT;
    json_t *json;

    ask_stats(world, 1, "{\"op\": \"get\", \"stall\": true, \"hard\": true}");
    fetch(world, &call, 100);
    await(&call, &call.done);
    assert_int_equal(call.err, DCTF_ERR_DEADLINE);
    assert_false(call.buf_free);
    ask_stats(world, 2, "{\"op\": \"get\", \"stall\": true, \"hard\": true}");
    json = stats(world, 2);
    assert_int_equal(json_integer_value(json_object_get(json, "stalled")), 1);
    json_decref(json);
    assert_false(is_set(&call, &call.released));
    control(world, "{}"); /* the rule goes */
    await(&call, &call.released);
}

static void test_fetch_ends_in_a_hard_stall(void **state)
{
    struct world *world = *state;
    struct call call = CALL_INIT;

    control(world, "{\"rules\": [{\"op\": \"get\", \"stall\": true, \"hard\": true}]}");
    fetch(world, &call, 60000);
    dctf_fetch_free(world->fetch);
    world->fetch = NULL;
    assert_true(is_set(&call, &call.done));
    assert_int_equal(call.err, DCTF_ERR_SHUTTING_DOWN);
    world->origin->ops->close(world->origin, 1000);
    world->origin = NULL;
    assert_int_equal(call.buf_free, false);
    assert_true(is_set(&call, &call.released));
}

static void test_check_stalls(void **state)
{
    struct world *world = *state;
    char detail[256];

    assert_int_equal(world->origin->ops->check(world->origin, 10000, detail), DCTF_OK);
    control(world, "{\"rules\": [{\"op\": \"check\", \"stall\": true, \"n\": 1},"
                   "{\"op\": \"check\", \"error\": \"ORIGIN_UNREACHABLE\"}]}");
    assert_int_equal(world->origin->ops->check(world->origin, 20, detail), DCTF_ERR_DEADLINE);
    assert_int_equal(world->origin->ops->check(world->origin, 10000, detail), DCTF_ERR_ORIGIN_UNREACHABLE);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_needs_both_parts),
        TEST(test_rules_decide),
        TEST(test_rules_not_understood_change_nothing),
        TEST(test_dice_repeat),
        TEST(test_list_is_cut),
        TEST(test_stats_count),
        TEST(test_fetch_survives_throttling),
        TEST(test_fetch_leaves_a_stall),
        TEST(test_fetch_leaves_a_hard_stall),
        TEST(test_fetch_ends_in_a_hard_stall),
        TEST(test_check_stalls),
    };

    if (dctf_log_setup(&(struct dctf_log_config){DCTF_LOG_ERROR, "/dev/null"}))
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
