/* SPDX-License-Identifier: Apache-2.0
 *
 * What the peer server does when there is too much of it: connections, and requests under way.
 */
#include "peer_server_fixture.h"

static void test_bound_connections_of_one_address(void **state)
{
    struct asking ping = asking_of(DCTF_PEER_PING, "", 0, 0);
    struct dctf_peer_server_config config;
    struct fixture fixture;
    struct answer answer;
    int fds[4], other;

    (void)state;
    config = config_of(&fixture);
    config.connections = 16;
    fixture_start(&fixture, &config);
    for (unsigned i = 0; i < 4; i++) {
        fds[i] = connect_to(&fixture);
        ask(fds[i], &ping, &answer);
        assert_int_equal(answer.status, 200);
    }
    other = connect_to(&fixture);
    assert_true(is_closed(other));
    close(other);
    assert_int_equal(refused_of(&fixture), 1);
    other = connect_from(&fixture, "127.0.0.2", 0); /* another address has a share of its own */
    ask(other, &ping, &answer);
    assert_int_equal(answer.status, 200);
    close(other);
    for (unsigned i = 0; i < 4; i++) {
        ask(fds[i], &ping, &answer);
        assert_int_equal(answer.status, 200);
        close(fds[i]);
    }
    fixture_fini(&fixture);
}

/* Beyond the bound in all, a connection waits until one ends. */
static void test_bound_connections_in_all(void **state)
{
    struct asking ping = asking_of(DCTF_PEER_PING, "", 0, 0);
    struct dctf_peer_server_config config;
    struct dctf_peer_server_stats stats;
    struct fixture fixture;
    struct answer answer;
    char source[16];
    int fds[9];

    (void)state;
    config = config_of(&fixture);
    config.connections = 8;
    fixture_start(&fixture, &config);
    for (unsigned i = 0; i < 9; i++) {
        snprintf(source, sizeof(source), "127.0.0.%u", 10 + i);
        fds[i] = connect_from(&fixture, source, 0);
        send_asking(fds[i], &ping);
        if (i == 8)
            break;
        read_answer(fds[i], &answer);
        assert_int_equal(answer.status, 200);
    }
    dctf_peer_server_stats(fixture.server, &stats);
    assert_int_equal(stats.connections, 8);
    assert_false(readable(fds[8], 50));
    for (unsigned i = 0; i < 8; i++)
        close(fds[i]);
    read_answer(fds[8], &answer);
    assert_int_equal(answer.status, 200);
    close(fds[8]);
    fixture_fini(&fixture);
}

static void ask_class(struct fixture *fixture, int *fds, unsigned count, enum dctf_fetch_class class)
{
    struct asking asking = asking_of(DCTF_PEER_BLOCKS, "late", 0, 1);
    unsigned before = read_counter(fixture, &fixture->held_count);

    asking.call.class = class;
    for (unsigned i = 0; i < count; i++) {
        fds[i] = connect_to(fixture);
        send_asking(fds[i], &asking);
    }
    wait_for(fixture, &fixture->held_count, before + count);
}

/* On a connection that survives it: the same request is taken once there is room. */
static void assert_shed(struct fixture *fixture, enum dctf_fetch_class class)
{
    struct asking asking = asking_of(DCTF_PEER_BLOCKS, "now", 0, 1);
    struct asking ping = asking_of(DCTF_PEER_PING, "", 0, 0);
    struct dctf_peer_told told;
    struct answer answer;
    int fd = connect_to(fixture);

    asking.call.class = class;
    ask(fd, &asking, &answer);
    assert_int_equal(answer.status, 503);
    assert_int_equal(dctf_peer_told_parse(header_of, &answer, 0, &told), DCTF_OK);
    assert_int_equal(told.err, DCTF_ERR_PEER_BUSY);
    assert_true(told.retry_ms > 0);
    ask(fd, &ping, &answer); /* which needs no room */
    assert_int_equal(answer.status, 200);
    close(fd);
}

static void assert_taken(struct fixture *fixture, enum dctf_fetch_class class)
{
    struct asking asking = asking_of(DCTF_PEER_BLOCKS, "now", 0, 1);
    unsigned released = read_counter(fixture, &fixture->released);

    asking.call.class = class;
    assert_int_equal(ask_once(fixture, &asking), 200);
    wait_for(fixture, &fixture->released, released + 1);
}

static void answer_held(struct fixture *fixture)
{
    struct asking asking = asking_of(DCTF_PEER_BLOCKS, "late", 0, 1);
    unsigned count = fixture->held_count, released = read_counter(fixture, &fixture->released);

    for (unsigned i = 0; i < count; i++)
        reply_blocks(fixture, fixture->held[i], &asking.ask, true, false);
    fixture->held_count = 0;
    wait_for(fixture, &fixture->released, released + count);
}

static void test_shed(void **state)
{
    struct dctf_peer_server_config config;
    struct dctf_peer_server_stats stats;
    struct fixture fixture;
    int fds[8];

    (void)state;
    config = config_of(&fixture);
    config.demand_max = 4;
    config.background_max = 4;
    fixture_start(&fixture, &config);
    /* demand near its bound: background goes first */
    ask_class(&fixture, fds, 3, DCTF_FETCH_DEMAND);
    assert_shed(&fixture, DCTF_FETCH_PREFETCH);
    assert_shed(&fixture, DCTF_FETCH_REPLICATION);
    assert_taken(&fixture, DCTF_FETCH_DEMAND);
    ask_class(&fixture, fds + 3, 1, DCTF_FETCH_DEMAND);
    assert_shed(&fixture, DCTF_FETCH_DEMAND);
    dctf_peer_server_stats(fixture.server, &stats);
    assert_int_equal(stats.running[DCTF_FETCH_DEMAND], 4);
    assert_int_equal(stats.shed, 3);
    answer_held(&fixture);
    for (unsigned i = 0; i < 4; i++)
        close(fds[i]);
    assert_taken(&fixture, DCTF_FETCH_REPLICATION);
    /* background at its bound: replication goes before prefetch, demand is not touched */
    ask_class(&fixture, fds, 3, DCTF_FETCH_REPLICATION);
    assert_shed(&fixture, DCTF_FETCH_REPLICATION);
    ask_class(&fixture, fds + 3, 1, DCTF_FETCH_PREFETCH);
    assert_shed(&fixture, DCTF_FETCH_PREFETCH);
    assert_taken(&fixture, DCTF_FETCH_DEMAND);
    assert_int_equal(dctf_metric_get(fixture.metrics, DCTF_METRIC_PEER_REQUESTS_BUSY), 5);
    answer_held(&fixture);
    for (unsigned i = 0; i < 4; i++)
        close(fds[i]);
    assert_taken(&fixture, DCTF_FETCH_PREFETCH);
    fixture_fini(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bound_connections_of_one_address),
        cmocka_unit_test(test_bound_connections_in_all),
        cmocka_unit_test(test_shed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
