/* SPDX-License-Identifier: Apache-2.0
 *
 * Connections of the client of peers, its limits, and how requests end early. What it sends and takes:
 * test_peer_client.c.
 */
#include "peer_client_fixture.h"

#include <linux/tcp.h>

#define PONG "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
#define ABSENT "HTTP/1.1 204 None\r\n\r\n"

struct world {
    struct server server;
    struct dctf_peer_client *client;
    struct peer_ask ask;
};

static void world_init(struct world *world, enum dctf_peer_op op)
{
    server_init(&world->server);
    world->client = peer_client_new(SECRET, true);
    peer_ask_init(&world->ask, world->server.port, op);
}

static void world_fini(struct world *world)
{
    dctf_peer_client_free(world->client);
    server_fini(&world->server);
    peer_ask_fini(&world->ask);
}

static int begin(struct world *world)
{
    return peer_begin(world->client, &world->ask, &world->server);
}

/* Another request on a kept connection. */
static void answer_next(int fd, const char *text)
{
    server_skip_head(fd);
    server_send(fd, text);
}

/* --- no answer --- */

static void test_refused_is_gone(void **state)
{
    struct world world;
    struct server closed;

    (void)state;
    world_init(&world, DCTF_PEER_BLOCKS);
    server_init(&closed);
    server_fini(&closed);
    snprintf(world.ask.addr, sizeof(world.ask.addr), "127.0.0.1:%d", closed.port);
    peer_start(world.client, &world.ask);
    assert_int_equal(peer_wait(&world.ask, 1), DCTF_ERR_PEER_GONE);
    assert_int_equal(world.ask.answer.first_byte_us, 0);
    world_fini(&world);
}

static void test_reset_is_gone(void **state)
{
    struct world world;
    int fd;

    (void)state;
    world_init(&world, DCTF_PEER_BLOCKS);
    fd = begin(&world);
    server_reset(fd);
    assert_int_equal(peer_wait(&world.ask, 1), DCTF_ERR_PEER_GONE);
    assert_int_equal(world.server.accepted, 1);
    assert_false(readable(world.server.fd, 0)); /* a connection of its own is not tried twice */
    world_fini(&world);
}

static void test_cut_inside_the_body_is_gone(void **state)
{
    static const char head[] =
        "HTTP/1.1 200 OK\r\nContent-Length: 263144\r\nDctf-Sums: "
        "00000000000000000000000000000000\r\nDctf-Encoding: plain\r\nDctf-From: cache\r\n"
        "\r\nbytes";

    (void)state;
    for (int reset = 0; reset < 2; reset++) {
        struct world world;
        int fd;

        world_init(&world, DCTF_PEER_BLOCKS);
        fd = begin(&world);
        server_send(fd, head);
        if (reset)
            server_reset(fd);
        else
            close(fd);
        assert_int_equal(peer_wait(&world.ask, 1), DCTF_ERR_PEER_GONE);
        world_fini(&world);
    }
}

static void test_silence_is_gone(void **state)
{
    struct world world;

    (void)state;
    world_init(&world, DCTF_PEER_BLOCKS);
    world.ask.get.silence_ms = 50;
    peer_start(world.client, &world.ask); /* connects to the backlog, where nobody answers */
    assert_int_equal(peer_wait(&world.ask, 1), DCTF_ERR_PEER_GONE);
    world_fini(&world);
}

static void test_deadline(void **state)
{
    struct world world;

    (void)state;
    world_init(&world, DCTF_PEER_BLOCKS);
    world.ask.get.deadline_ms = 50;
    peer_start(world.client, &world.ask);
    assert_int_equal(peer_wait(&world.ask, 1), DCTF_ERR_DEADLINE);
    world_fini(&world);
}

/* --- connections --- */

static void test_connection_is_kept(void **state)
{
    struct world world;
    int fd;

    (void)state;
    world_init(&world, DCTF_PEER_PING);
    peer_start(world.client, &world.ask);
    fd = server_accept(&world.server);
    for (unsigned i = 1; i <= 3; i++) {
        if (i > 1)
            peer_start(world.client, &world.ask);
        answer_next(fd, PONG);
        assert_int_equal(peer_wait(&world.ask, i), DCTF_OK);
    }
    assert_int_equal(world.server.accepted, 1);
    assert_false(readable(world.server.fd, 0));
    close(fd);
    world_fini(&world);
}

/* The peer closed a kept connection: nothing is known about the peer from that. */
static void test_kept_connection_that_breaks_is_tried_again(void **state)
{
    struct world world;
    int fd;

    (void)state;
    world_init(&world, DCTF_PEER_PING);
    fd = begin(&world);
    server_send(fd, PONG);
    assert_int_equal(peer_wait(&world.ask, 1), DCTF_OK);
    peer_start(world.client, &world.ask);
    server_skip_head(fd);
    server_reset(fd); /* after the request, before any byte of an answer */
    fd = server_take(&world.server);
    server_send(fd, PONG);
    assert_int_equal(peer_wait(&world.ask, 2), DCTF_OK);
    close(fd);
    world_fini(&world);
}

static void test_pools_do_not_wait_for_each_other(void **state)
{
    struct dctf_peer_client_config config = {
        .node = "me", .connect_timeout_ms = 10000, .demand_connections = 1, .background_connections = 1};
    struct peer_ask demand, queued, background, ping;
    struct dctf_peer_client *client;
    struct server server;
    int demand_fd, background_fd, ping_fd;

    (void)state;
    server_init(&server);
    assert_int_equal(dctf_peer_client_new(&config, &client), DCTF_OK);
    peer_ask_init(&demand, server.port, DCTF_PEER_BLOCKS);
    peer_ask_init(&queued, server.port, DCTF_PEER_BLOCKS);
    peer_ask_init(&background, server.port, DCTF_PEER_BLOCKS);
    peer_ask_init(&ping, server.port, DCTF_PEER_PING);
    background.get.class = DCTF_FETCH_REPLICATION;
    demand_fd = peer_begin(client, &demand, &server);
    peer_start(client, &queued); /* stands behind it */
    background_fd = peer_begin(client, &background, &server);
    ping_fd = peer_begin(client, &ping, &server);
    server_send(ping_fd, PONG);
    assert_int_equal(peer_wait(&ping, 1), DCTF_OK);
    assert_false(readable(server.fd, 0));
    server_send(demand_fd, ABSENT);
    assert_int_equal(peer_wait(&demand, 1), DCTF_ERR_PEER_ABSENT);
    answer_next(demand_fd, ABSENT);
    assert_int_equal(peer_wait(&queued, 1), DCTF_ERR_PEER_ABSENT);
    server_send(background_fd, ABSENT);
    assert_int_equal(peer_wait(&background, 1), DCTF_ERR_PEER_ABSENT);
    close(demand_fd);
    close(background_fd);
    close(ping_fd);
    dctf_peer_client_free(client);
    server_fini(&server);
    peer_ask_fini(&demand);
    peer_ask_fini(&queued);
    peer_ask_fini(&background);
    peer_ask_fini(&ping);
}

/* Window that a client offers when it has connected for a request of this class that wants so much. */
static unsigned window_offered(enum dctf_fetch_class class, uint64_t wanted)
{
    struct dctf_peer_client_config config = {
        .node = "me", .connect_timeout_ms = 10000, .background_window_bytes = 8 * 1024};
    struct dctf_peer_client *client;
    struct tcp_info info = {0};
    socklen_t len = sizeof(info);
    struct server server;
    struct peer_ask ask;
    int fd;

    server_init(&server);
    assert_int_equal(dctf_peer_client_new(&config, &client), DCTF_OK);
    peer_ask_init(&ask, server.port, DCTF_PEER_BLOCKS);
    ask.get.class = class;
    ask.get.window_bytes = wanted;
    fd = peer_begin(client, &ask, &server);
    assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len), 0);
    server_send(fd, ABSENT);
    assert_int_equal(peer_wait(&ask, 1), DCTF_ERR_PEER_ABSENT);
    close(fd);
    dctf_peer_client_free(client);
    server_fini(&server);
    peer_ask_fini(&ask);
    return len == sizeof(info) ? info.tcpi_snd_wnd : 0;
}

static void test_background_offers_a_small_window(void **state)
{
    unsigned demand = window_offered(DCTF_FETCH_DEMAND, 0);
    unsigned background = window_offered(DCTF_FETCH_PREFETCH, 0);
    unsigned wide = window_offered(DCTF_FETCH_REPLICATION, 256 * 1024);

    (void)state;
    if (!demand)
        skip();                                /* the kernel does not tell */
    assert_in_range(background, 1, 16 * 1024); /* it doubles what is asked for */
    assert_true(demand > 16 * 1024);
    assert_true(wide > 2 * background);
}

static void test_proxies_of_the_environment_are_ignored(void **state)
{
    struct world world;
    int fd;

    (void)state;
    assert_int_equal(setenv("http_proxy", "http://127.0.0.1:1/", 1), 0);
    assert_int_equal(setenv("all_proxy", "http://127.0.0.1:1/", 1), 0);
    world_init(&world, DCTF_PEER_PING);
    fd = begin(&world);
    server_send(fd, PONG);
    assert_int_equal(peer_wait(&world.ask, 1), DCTF_OK);
    close(fd);
    world_fini(&world);
    unsetenv("http_proxy");
    unsetenv("all_proxy");
}

/* --- early ends --- */

static void test_cancel(void **state)
{
    struct world world;
    struct dctf_peer_get unknown = {0};
    int fd;

    (void)state;
    world_init(&world, DCTF_PEER_BLOCKS);
    dctf_peer_get_cancel(world.client, &unknown);
    dctf_peer_get_cancel(world.client, &world.ask.get); /* before its start */
    fd = begin(&world);
    dctf_peer_get_cancel(world.client, &world.ask.get);
    dctf_peer_get_cancel(world.client, &world.ask.get);
    assert_int_equal(peer_wait(&world.ask, 1), DCTF_ERR_CANCELLED);
    server_await_close(fd);
    dctf_peer_get_cancel(world.client, &world.ask.get); /* after its end */
    world_fini(&world);
}

static void test_start_again_from_done(void **state)
{
    struct world world;
    int fd;

    (void)state;
    world_init(&world, DCTF_PEER_PING);
    world.ask.again = world.client;
    fd = begin(&world);
    server_send(fd, PONG);
    answer_next(fd, PONG);
    assert_int_equal(peer_wait(&world.ask, 2), DCTF_OK);
    assert_int_equal(world.ask.again_err, DCTF_OK);
    close(fd);
    world_fini(&world);
}

/* Requests on every pool; what starts from their ends is refused, whichever pool was ended first. */
static void test_free_ends_what_is_under_way(void **state)
{
    struct peer_ask asks[3];
    struct world world;
    int fds[3];

    (void)state;
    world_init(&world, DCTF_PEER_PING);
    for (unsigned i = 0; i < 3; i++) {
        peer_ask_init(&asks[i], world.server.port, i ? DCTF_PEER_BLOCKS : DCTF_PEER_PING);
        asks[i].get.class = i == 1 ? DCTF_FETCH_PREFETCH : DCTF_FETCH_DEMAND;
        asks[i].again = world.client;
        peer_start(world.client, &asks[i]);
        fds[i] = server_accept(&world.server);
    }
    dctf_peer_client_free(world.client);
    world.client = NULL;
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(asks[i].ended, 1);
        assert_int_equal(asks[i].err, DCTF_ERR_SHUTTING_DOWN);
        assert_int_equal(asks[i].again_err, DCTF_ERR_SHUTTING_DOWN);
        close(fds[i]);
        peer_ask_fini(&asks[i]);
    }
    world_fini(&world);
}

/* --- arguments --- */

static void test_addresses_that_are_none(void **state)
{
    static const char *const addrs[] = {"", ":1", "host", "host:", "host:x", "host:123456", "user@host:1",
        "host/path:1", "host?:1", "host#:1", "ho st:1", "host:1/", "host:1\r\nX: y", "h\xc3\xb6st:1"};
    struct world world;

    (void)state;
    world_init(&world, DCTF_PEER_PING);
    for (size_t i = 0; i < COUNT_OF(addrs); i++) {
        world.ask.get.addr = addrs[i];
        assert_int_equal(dctf_peer_get_start(world.client, &world.ask.get), DCTF_ERR_PEER_GONE);
    }
    assert_int_equal(world.ask.ended, 0);
    world_fini(&world);
}

static void test_requests_that_are_none(void **state)
{
    struct world world;

    (void)state;
    world_init(&world, DCTF_PEER_BLOCKS);
    world.ask.get.deadline_ms = 0;
    assert_int_equal(dctf_peer_get_start(world.client, &world.ask.get), DCTF_ERR_INTERNAL);
    world.ask.get.deadline_ms = 1;
    world.ask.get.ask.count = 0;
    assert_int_equal(dctf_peer_get_start(world.client, &world.ask.get), DCTF_ERR_INTERNAL);
    world.ask.get.ask.count = DCTF_PEER_BLOCKS_MAX + 1;
    assert_int_equal(dctf_peer_get_start(world.client, &world.ask.get), DCTF_ERR_INTERNAL);
    world.ask.get.ask.count = 1;
    world.ask.get.buf = NULL;
    assert_int_equal(dctf_peer_get_start(world.client, &world.ask.get), DCTF_ERR_INTERNAL);
    world_fini(&world);
}

static void test_new_refuses(void **state)
{
    struct dctf_peer_client_config config = {.node = "not an id"};
    struct dctf_peer_client *client = (void *)&client;

    (void)state;
    assert_int_equal(dctf_peer_client_new(&config, &client), DCTF_ERR_INTERNAL);
    assert_null(client);
    config.node = NULL;
    assert_int_equal(dctf_peer_client_new(&config, &client), DCTF_ERR_INTERNAL);
    dctf_peer_client_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused_is_gone),
        cmocka_unit_test(test_reset_is_gone),
        cmocka_unit_test(test_cut_inside_the_body_is_gone),
        cmocka_unit_test(test_silence_is_gone),
        cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_connection_is_kept),
        cmocka_unit_test(test_kept_connection_that_breaks_is_tried_again),
        cmocka_unit_test(test_pools_do_not_wait_for_each_other),
        cmocka_unit_test(test_background_offers_a_small_window),
        cmocka_unit_test(test_proxies_of_the_environment_are_ignored),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_start_again_from_done),
        cmocka_unit_test(test_free_ends_what_is_under_way),
        cmocka_unit_test(test_addresses_that_are_none),
        cmocka_unit_test(test_requests_that_are_none),
        cmocka_unit_test(test_new_refuses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
