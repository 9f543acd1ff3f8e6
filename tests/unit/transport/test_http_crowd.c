/* SPDX-License-Identifier: Apache-2.0
 *
 * The HTTP client under many threads that start, cancel and run out of time, against a
 * server that breaks off and falls silent.
 */
#include "http_client_fixture.h"

#include "base/clock.h"

#include <fcntl.h>
#include <stdatomic.h>

#define CROWD_CLIENTS 4
#define CROWD_BATCH 16
#define CROWD_ROUNDS 40
#define CROWD_SOCKETS 64

static atomic_bool crowd_over;

/* Answers what looks like a head with a body, and now and then breaks the connection,
 * in the middle or instead of the answer. */
static bool crowd_answer(int fd, struct dctf_rng *rng)
{
    static const char answer[] = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789";
    char head[2048];
    ssize_t got = recv(fd, head, sizeof(head) - 1, 0);
    uint64_t dice = dctf_rng_below(rng, 16);

    if (got <= 0)
        return false;
    head[got] = '\0';
    if (!strstr(head, "\r\n\r\n") || dice == 0)
        return false;
    if (dice == 1) {
        server_try_send(fd, answer, sizeof(answer) - 5);
        return false;
    }
    if (dice == 2)
        return true; /* never answered */
    return server_try_send(fd, answer, sizeof(answer) - 1);
}

static void *crowd_server(void *arg)
{
    struct pollfd fds[1 + CROWD_SOCKETS] = {{.fd = server.fd, .events = POLLIN}};
    struct dctf_rng rng = {7};
    size_t count = 1;

    (void)arg;
    while (!atomic_load(&crowd_over)) {
        poll(fds, count, 10);
        if (fds[0].revents && count < 1 + CROWD_SOCKETS) {
            int fd = accept4(server.fd, NULL, NULL, SOCK_CLOEXEC);

            if (fd >= 0)
                fds[count++] = (struct pollfd){.fd = fd, .events = POLLIN};
        }
        for (size_t i = 1; i < count; i++) {
            if (fds[i].revents && !crowd_answer(fds[i].fd, &rng)) {
                close(fds[i].fd);
                fds[i--] = fds[--count];
            }
        }
    }
    while (count > 1)
        close(fds[--count].fd);
    return NULL;
}

static void *crowd_client(void *arg)
{
    struct dctf_rng rng = {(uint64_t)(uintptr_t)arg};

    for (int round = 0; round < CROWD_ROUNDS; round++) {
        struct fetch fetches[CROWD_BATCH];

        for (size_t i = 0; i < CROWD_BATCH; i++) {
            fetch_init(&fetches[i], &server, "/");
            fetches[i].request.total_ms = 1 + dctf_rng_below(&rng, 100);
            fetch_start(&fetches[i], http);
        }
        for (size_t i = 0; i < CROWD_BATCH / 4; i++)
            dctf_http_cancel(http, &fetches[dctf_rng_below(&rng, CROWD_BATCH)].request);
        for (size_t i = 0; i < CROWD_BATCH; i++) {
            enum dctf_err err = fetch_wait(&fetches[i]);

            assert_true(err == DCTF_OK || err == DCTF_ERR_CANCELLED || err == DCTF_ERR_DEADLINE ||
                        err == DCTF_ERR_ORIGIN_IO || err == DCTF_ERR_SHORT_BODY);
            if (!err)
                assert_string_equal(fetches[i].body, "0123456789");
        }
        for (size_t i = 0; i < CROWD_BATCH; i++)
            fetch_fini(&fetches[i]);
    }
    return NULL;
}

static void test_crowd(void **state)
{
    pthread_t threads[CROWD_CLIENTS];
    pthread_t serving;
    struct dctf_http_stats stats;

    client_init(
        &(struct dctf_http_config){.loops = 3, .connections = 24, .idle_connections = 12, .no_proxy = true});
    atomic_store(&crowd_over, false);
    assert_int_equal(fcntl(server.fd, F_SETFL, O_NONBLOCK), 0);
    assert_int_equal(dctf_thread_start("server", crowd_server, NULL, &serving), DCTF_OK);
    for (size_t i = 0; i < CROWD_CLIENTS; i++)
        assert_int_equal(
            dctf_thread_start("client", crowd_client, (void *)(uintptr_t)(i + 1), &threads[i]), DCTF_OK);
    for (size_t i = 0; i < CROWD_CLIENTS; i++)
        pthread_join(threads[i], NULL);
    atomic_store(&crowd_over, true);
    pthread_join(serving, NULL);
    dctf_http_stats(http, &stats);
    assert_int_equal(stats.running, 0);
    assert_int_equal(stats.waiting, 0);
    assert_true(stats.connects > 0);
    teardown(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crowd),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
