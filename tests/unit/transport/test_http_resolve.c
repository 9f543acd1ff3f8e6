/* SPDX-License-Identifier: Apache-2.0
 *
 * The HTTP client while the resolver hangs: nothing waits for it.
 *
 * getaddrinfo() here stands before the C library's: libcurl, a shared library, calls
 * the program's.
 */
#include "http_fixture.h"

#include <netdb.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool released;    /* guarded by lock, as all of these */
static unsigned entered; /* resolvers that ever hung */
static unsigned hanging;

int getaddrinfo(const char *restrict name, const char *restrict service,
    const struct addrinfo *restrict hints, struct addrinfo **restrict out)
{
    (void)name;
    (void)service;
    (void)hints;
    *out = NULL;
    pthread_mutex_lock(&lock);
    entered++;
    hanging++;
    pthread_cond_broadcast(&changed);
    while (!released)
        pthread_cond_wait(&changed, &lock);
    hanging--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return EAI_AGAIN;
}

static void await_hanging(unsigned count)
{
    pthread_mutex_lock(&lock);
    while (hanging != count)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

static void release(void)
{
    pthread_mutex_lock(&lock);
    released = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    await_hanging(0);
}

static void test_resolver_hangs(void **state)
{
    struct dctf_http_config config = {.loops = 1, .no_proxy = true};
    struct dctf_http *http;
    struct server server;
    struct fetch stuck[3];
    struct fetch other;
    int fd;

    (void)state;
    server_init(&server);
    assert_int_equal(dctf_http_new(&config, &http), DCTF_OK);
    for (size_t i = 0; i < 3; i++) {
        char url[32];

        snprintf(url, sizeof(url), "http://stuck-%zu.test/", i);
        fetch_init_url(&stuck[i], url);
    }
    fetch_start(&stuck[0], http);
    fetch_start(&stuck[1], http);
    await_hanging(2);
    dctf_http_cancel(http, &stuck[0].request);
    assert_int_equal(fetch_wait(&stuck[0]), DCTF_ERR_CANCELLED);

    /* The loop goes on with others. */
    fetch_init(&other, &server, "/");
    fetch_start(&other, http);
    fd = server_take(&server);
    server_send(fd, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    assert_int_equal(fetch_wait(&other), DCTF_OK);
    close(fd);
    fetch_fini(&other);

    /* So does the end of the client. */
    fetch_start(&stuck[2], http);
    await_hanging(3);
    dctf_http_free(http);
    assert_int_equal(stuck[1].err, DCTF_ERR_SHUTTING_DOWN);
    assert_int_equal(stuck[2].err, DCTF_ERR_SHUTTING_DOWN);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(stuck[i].ended, 1);
        fetch_fini(&stuck[i]);
    }
    server_fini(&server);
    assert_int_equal(entered, 3);
    release();
}

static void test_limits_cover_resolver(void **state)
{
    struct dctf_http_config config = {.loops = 1, .no_proxy = true};

    (void)state;
    released = false;
    for (int connect = 0; connect < 2; connect++) {
        struct dctf_http *http;
        struct fetch fetch;

        config.connect_timeout_ms = connect ? 50 : FOREVER_MS;
        assert_int_equal(dctf_http_new(&config, &http), DCTF_OK);
        fetch_init_url(&fetch, "http://stuck.test/");
        fetch.request.total_ms = connect ? 0 : 50;
        fetch_start(&fetch, http);
        assert_int_equal(fetch_wait(&fetch), connect ? DCTF_ERR_ORIGIN_UNREACHABLE : DCTF_ERR_DEADLINE);
        fetch_fini(&fetch);
        dctf_http_free(http);
    }
    release();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resolver_hangs),
        cmocka_unit_test(test_limits_cover_resolver),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
