/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests of origins that speak S3: an origin of a server whose every byte the test sends by hand, and the
 * end of a request, which can be waited for.
 *
 * Threads:   the fixture belongs to the test's thread; an ending's fields are guarded by its lock until
 *            ending_wait() returned.
 * Ownership: embedded by the test.
 */
#ifndef DCTF_TESTS_ORIGIN_FIXTURE_H
#define DCTF_TESTS_ORIGIN_FIXTURE_H

#include "base/config.h"
#include "base/metric.h"
#include "http_fixture.h"
#include "transport/origin.h"

struct fixture {
    struct server server;
    struct dctf_config options;
    struct dctf_metrics *metrics;
    struct dctf_origin *origin;
    char source[64];
    char detail[256];
    char head[8192]; /* of the last request */
};

static inline void set_option(struct fixture *fixture, const char *name, const char *value)
{
    struct dctf_config_error error;

    assert_int_equal(dctf_config_set(&fixture->options, name, value, "test", &error), DCTF_OK);
}

static inline void fixture_init_with(struct fixture *fixture, const char *access_key_id)
{
    char endpoint[64];

    memset(fixture, 0, sizeof(*fixture));
    server_init(&fixture->server);
    assert_int_equal(dctf_config_init(&fixture->options), DCTF_OK);
    assert_int_equal(dctf_metrics_new(&fixture->metrics), DCTF_OK);
    snprintf(endpoint, sizeof(endpoint), "http://127.0.0.1:%d", fixture->server.port);
    snprintf(fixture->source, sizeof(fixture->source), "s3://bucket/pre");
    set_option(fixture, "endpoint", endpoint);
    set_option(fixture, "access_key_id", access_key_id);
    set_option(fixture, "secret_access_key", "SECRET");
}

static inline enum dctf_err fixture_open_with(struct fixture *fixture,
    enum dctf_err (*open)(const struct dctf_origin_config *config, struct dctf_origin **out))
{
    struct dctf_origin_config config = {
        .source = fixture->source,
        .concurrency = 4,
        .options = &fixture->options,
        .metrics = fixture->metrics,
        .detail = fixture->detail,
    };

    return open(&config, &fixture->origin);
}

static inline void fixture_fini(struct fixture *fixture)
{
    if (fixture->origin)
        fixture->origin->ops->close(fixture->origin, FOREVER_MS);
    dctf_metrics_free(fixture->metrics);
    dctf_config_fini(&fixture->options);
    server_fini(&fixture->server);
}

/* --- the end of a request --- */

struct ending {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done;
    enum dctf_err err;
};

static inline void ending_init(struct ending *ending)
{
    memset(ending, 0, sizeof(*ending));
    pthread_mutex_init(&ending->lock, NULL);
    assert_int_equal(dctf_thread_cond_init(&ending->changed), DCTF_OK);
}

static inline void ending_fini(struct ending *ending)
{
    pthread_cond_destroy(&ending->changed);
    pthread_mutex_destroy(&ending->lock);
}

static inline void ending_set(struct ending *ending, enum dctf_err err)
{
    pthread_mutex_lock(&ending->lock);
    assert_false(ending->done);
    ending->err = err;
    ending->done = true;
    pthread_cond_broadcast(&ending->changed);
    pthread_mutex_unlock(&ending->lock);
}

static inline enum dctf_err ending_wait(struct ending *ending)
{
    struct timespec until = in_ms(FOREVER_MS);
    int rc = 0;

    pthread_mutex_lock(&ending->lock);
    while (!ending->done && !rc)
        rc = pthread_cond_timedwait(&ending->changed, &ending->lock, &until);
    pthread_mutex_unlock(&ending->lock);
    assert_int_equal(rc, 0);
    return ending->err;
}

#endif
