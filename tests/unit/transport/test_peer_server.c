/* SPDX-License-Identifier: Apache-2.0
 *
 * Answers of the peer server, and their ends: whatever becomes of one, release() is called once.
 */
#include "peer_server_fixture.h"

static void parse_told(const struct answer *answer, size_t blocks, struct dctf_peer_told *told)
{
    assert_int_equal(dctf_peer_told_parse(header_of, answer, blocks, told), DCTF_OK);
}

static void assert_blocks(
    struct fixture *fixture, const struct answer *answer, const struct dctf_peer_ask *of)
{
    struct dctf_peer_told told;

    assert_int_equal(answer->status, 200);
    assert_int_equal(answer->len, dctf_peer_ask_bytes(of));
    assert_non_null(answer->body);
    assert_memory_equal(answer->body, fixture->data + (size_t)of->first * DCTF_BLOCK_BYTES, answer->len);
    parse_told(answer, of->count, &told);
    for (uint32_t i = 0; i < of->count; i++)
        assert_int_equal(told.sums[i], dctf_hash64(answer->body + (size_t)i * DCTF_BLOCK_BYTES,
                                           dctf_block_len(of->size, of->first + i)));
    assert_int_equal(told.from, DCTF_PEER_FROM_ORIGIN);
    assert_int_equal(told.wait_us, 77);
    assert_int_equal(told.view, VIEW);
}

static void test_ping(void **state)
{
    struct asking ping = asking_of(DCTF_PEER_PING, "", 0, 0);
    struct dctf_peer_told told;
    struct fixture fixture;
    struct answer answer;
    int fd;

    (void)state;
    fixture_start(&fixture, NULL);
    fd = connect_to(&fixture);
    for (int i = 0; i < 3; i++) { /* on one connection */
        ask(fd, &ping, &answer);
        assert_int_equal(answer.status, 200);
        assert_int_equal(answer.len, 0);
        parse_told(&answer, 0, &told);
        assert_int_equal(told.view, VIEW);
        assert_true(told.path.rtt_us > 0);
    }
    close(fd);
    dctf_peer_server_stop(fixture.server); /* until then the last one may not be counted */
    fixture.server = NULL;
    assert_int_equal(read_counter(&fixture, &fixture.handled), 0);
    assert_int_equal(dctf_metric_get(fixture.metrics, DCTF_METRIC_PEER_REQUESTS_OK), 3);
    fixture_fini(&fixture);
}

/* All of it, one block, a run inside, up to the end that is not a whole block. */
static void test_reply_blocks(void **state)
{
    static const struct {
        uint32_t first, count;
    } runs[] = {{0, 32}, {0, 1}, {7, 1}, {5, 20}, {31, 1}, {32, 5}, {36, 1}};
    static const char *const keys[] = {"now", "file"};
    struct fixture fixture;
    uint64_t bytes = 0;
    unsigned count = 0;
    int fd;

    (void)state;
    fixture_start(&fixture, NULL);
    fd = connect_to(&fixture);
    for (unsigned k = 0; k < 2; k++)
        for (unsigned i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
            struct asking asking = asking_of(DCTF_PEER_BLOCKS, keys[k], runs[i].first, runs[i].count);
            struct answer answer;

            ask(fd, &asking, &answer);
            assert_blocks(&fixture, &answer, &asking.ask);
            bytes += answer.len;
            answer_fini(&answer);
            wait_for(&fixture, &fixture.released, ++count);
        }
    close(fd);
    dctf_peer_server_stop(fixture.server);
    fixture.server = NULL;
    assert_int_equal(dctf_metric_get(fixture.metrics, DCTF_METRIC_PEER_BYTES_OUT), bytes);
    assert_int_equal(dctf_metric_get(fixture.metrics, DCTF_METRIC_PEER_REQUESTS_OK), count);
    assert_int_equal(dctf_metric_get(fixture.metrics, DCTF_METRIC_PEER_CONNECTIONS), 0);
    assert_int_equal(fixture.released, count);
    fixture_fini(&fixture);
}

static void test_tell_handler_what_was_asked(void **state)
{
    struct asking asking = asking_of(DCTF_PEER_BLOCKS, "framed", 3, 2);
    struct dctf_peer_told told;
    struct fixture fixture;
    struct answer answer;
    int fd;

    (void)state;
    asking.ask.want_first = 2;
    asking.ask.want_count = 9;
    asking.call.class = DCTF_FETCH_PREFETCH;
    asking.call.hop = 0;
    asking.call.accepts_lz4 = true;
    fixture_start(&fixture, NULL);
    fd = connect_to(&fixture);
    ask(fd, &asking, &answer);
    assert_int_equal(answer.status, 200);
    parse_told(&answer, 2, &told);
    assert_true(told.framed);
    assert_string_equal(fixture.last.node, "node-a");
    assert_int_equal(fixture.last.class, DCTF_FETCH_PREFETCH);
    assert_int_equal(fixture.last.hop, 0);
    assert_int_equal(fixture.last.deadline_ms, 4000);
    assert_int_equal(fixture.last.view, 5);
    assert_true(fixture.last.accepts_lz4);
    assert_int_equal(fixture.last.ask.dataset, 7);
    assert_string_equal(fixture.last.ask.key, "framed");
    assert_string_equal(fixture.last.ask.etag, "\"v1\"");
    assert_int_equal(fixture.last.ask.size, SIZE);
    assert_int_equal(fixture.last.ask.first, 3);
    assert_int_equal(fixture.last.ask.count, 2);
    assert_int_equal(fixture.last.ask.want_first, 2);
    assert_int_equal(fixture.last.ask.want_count, 9);
    answer_fini(&answer);
    close(fd);
    fixture_fini(&fixture);
}

static void test_reply_have(void **state)
{
    static const struct {
        const char *key;
        int status;
        const char *spare;
    } cases[] = {{"here", 200, NULL}, {"coming", 202, NULL}, {"elsewhere", 204, "full"}};
    struct fixture fixture;
    int fd;

    (void)state;
    fixture_start(&fixture, NULL);
    fd = connect_to(&fixture);
    for (unsigned i = 0; i < 3; i++) {
        struct asking asking = asking_of(DCTF_PEER_HAVE, cases[i].key, 0, 4);
        struct answer answer;

        ask(fd, &asking, &answer);
        assert_int_equal(answer.status, cases[i].status);
        assert_int_equal(answer.len, 0);
        assert_null(header_of(&answer, "Dctf-Error"));
        if (cases[i].spare)
            assert_string_equal(header_of(&answer, "Dctf-Spare"), cases[i].spare);
        else
            assert_null(header_of(&answer, "Dctf-Spare"));
    }
    close(fd);
    fixture_fini(&fixture);
}

/* On one connection: errors are no reason to lose it. */
static void test_reply_error(void **state)
{
    static const struct {
        enum dctf_err err;
        int status;
    } cases[] = {{DCTF_ERR_NOT_FOUND, 404}, {DCTF_ERR_VERSION_MISMATCH, 412}, {DCTF_ERR_PEER_BUSY, 503},
        {DCTF_ERR_DEADLINE, 504}, {DCTF_ERR_ORIGIN_IO, 502}, {DCTF_ERR_ORIGIN_THROTTLED, 502},
        {DCTF_ERR_PEER_ABSENT, 204}, {DCTF_ERR_BAD_REQUEST, 409}, {DCTF_ERR_SHUTTING_DOWN, 503},
        {DCTF_ERR_CACHE_IO, 500}, {DCTF_ERR_NO_MEMORY, 500}};
    struct fixture fixture;
    int fd;

    (void)state;
    fixture_start(&fixture, NULL);
    fd = connect_to(&fixture);
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dctf_peer_told told;
        struct asking asking;
        struct answer answer;
        char key[16];

        snprintf(key, sizeof(key), "e%d", cases[i].err);
        asking = asking_of(DCTF_PEER_BLOCKS, key, 0, 1);
        ask(fd, &asking, &answer);
        assert_int_equal(answer.status, cases[i].status);
        assert_int_equal(answer.len, 0);
        parse_told(&answer, 0, &told);
        assert_int_equal(told.err, cases[i].status == 204 ? DCTF_OK : cases[i].err);
        if (cases[i].err == DCTF_ERR_PEER_BUSY) {
            assert_int_equal(told.retry_ms, 123);
            assert_string_equal(told.try, "node-b,node-c");
        }
    }
    close(fd);
    fixture_fini(&fixture);
}

static void *answer_from_elsewhere(void *ctx)
{
    struct fixture *fixture = ctx;
    struct dctf_peer_request *request = take_held(fixture);
    struct dctf_peer_path path;

    dctf_peer_request_path(request, &path);
    assert_true(path.rtt_us > 0);
    reply_blocks(fixture, request, &fixture->last.ask, true, false);
    note(fixture, &fixture->replied);
    return NULL;
}

static void test_answer_late(void **state)
{
    struct asking asking = asking_of(DCTF_PEER_BLOCKS, "late", 3, 9);
    struct fixture fixture;
    int fd;

    (void)state;
    fixture_start(&fixture, NULL);
    fd = connect_to(&fixture);
    for (int i = 0; i < 20; i++) {
        struct answer answer;
        pthread_t thread;

        assert_int_equal(dctf_thread_start("answer", answer_from_elsewhere, &fixture, &thread), DCTF_OK);
        ask(fd, &asking, &answer);
        assert_blocks(&fixture, &answer, &asking.ask);
        answer_fini(&answer);
        pthread_join(thread, NULL);
    }
    wait_for(&fixture, &fixture.released, 20);
    close(fd);
    fixture_fini(&fixture);
}

/* Many connections at once, each with a request that is answered late. */
static void test_answer_late_crowd(void **state)
{
    struct asking asking = asking_of(DCTF_PEER_BLOCKS, "late", 1, 2);
    struct fixture fixture;
    int fds[HELD_MAX];

    (void)state;
    fixture_start(&fixture, NULL);
    for (unsigned i = 0; i < HELD_MAX; i++) {
        fds[i] = connect_to(&fixture);
        send_asking(fds[i], &asking);
    }
    wait_for(&fixture, &fixture.held_count, HELD_MAX);
    for (unsigned i = 0; i < HELD_MAX; i++)
        reply_blocks(&fixture, fixture.held[i], &asking.ask, i & 1, false);
    for (unsigned i = 0; i < HELD_MAX; i++) {
        struct answer answer;

        read_answer(fds[i], &answer);
        assert_blocks(&fixture, &answer, &asking.ask);
        answer_fini(&answer);
        close(fds[i]);
    }
    wait_for(&fixture, &fixture.released, HELD_MAX);
    fixture_fini(&fixture);
}

static void wait_idle(struct fixture *fixture)
{
    struct dctf_peer_server_stats stats;
    int rounds = FOREVER_MS;

    do { /* MHD tells nobody when it is through with a connection */
        dctf_peer_server_stats(fixture->server, &stats);
        if (stats.running[DCTF_FETCH_DEMAND] == 0 && stats.connections == 0)
            return;
        poll(NULL, 0, 1);
    } while (--rounds);
    fail_msg("connections stay");
}

static void test_client_leaves_while_it_waits(void **state)
{
    struct asking asking = asking_of(DCTF_PEER_BLOCKS, "late", 0, 32);
    struct linger reset = {.l_onoff = 1};
    struct fixture fixture;

    (void)state;
    fixture_start(&fixture, NULL);
    for (int i = 0; i < 2; i++) {
        int fd = connect_to(&fixture);

        send_asking(fd, &asking);
        wait_for(&fixture, &fixture.held_count, 1);
        if (i) /* gone with a reset, not in order */
            assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), 0);
        close(fd);
        reply_blocks(&fixture, take_held(&fixture), &asking.ask, i, false);
        wait_for(&fixture, &fixture.released, (unsigned)i + 1);
    }
    wait_idle(&fixture);
    assert_int_equal(fixture.released, 2);
    assert_alive(&fixture);
    fixture_fini(&fixture);
}

static void test_client_leaves_in_the_middle(void **state)
{
    static const char *const keys[] = {"now", "file"};
    struct fixture fixture;

    (void)state;
    fixture_start(&fixture, NULL);
    for (unsigned i = 0; i < 2; i++) {
        struct asking asking = asking_of(DCTF_PEER_BLOCKS, keys[i], 0, 32);
        int fd = connect_from(&fixture, "127.0.0.1", 65536);
        char some[1000];

        send_asking(fd, &asking);
        assert_true(read_some(fd, some, sizeof(some)) > 0);
        close(fd);
        wait_for(&fixture, &fixture.released, i + 1);
    }
    wait_idle(&fixture);
    assert_int_equal(dctf_metric_get(fixture.metrics, DCTF_METRIC_PEER_REQUESTS_DROPPED), 2);
    fixture_fini(&fixture);
}

/* Two requests in one packet are answered in order. */
static void test_pipelined(void **state)
{
    struct asking first = asking_of(DCTF_PEER_BLOCKS, "late", 2, 1);
    struct asking second = asking_of(DCTF_PEER_BLOCKS, "now", 4, 1);
    struct fixture fixture;
    struct dctf_str heads;
    struct answer answer;
    int fd;

    (void)state;
    fixture_start(&fixture, NULL);
    fd = connect_to(&fixture);
    dctf_str_init(&heads);
    write_head(&heads, &first);
    write_head(&heads, &second);
    assert_true(send_bytes(fd, heads.data, heads.len));
    reply_blocks(&fixture, take_held(&fixture), &first.ask, false, false);
    read_answer(fd, &answer);
    assert_blocks(&fixture, &answer, &first.ask);
    answer_fini(&answer);
    read_answer(fd, &answer);
    assert_blocks(&fixture, &answer, &second.ask);
    answer_fini(&answer);
    dctf_str_fini(&heads);
    close(fd);
    fixture_fini(&fixture);
}

static void test_pace(void **state)
{
    struct asking asking = asking_of(DCTF_PEER_BLOCKS, "file", 0, 16);
    struct timespec begin, end;
    struct fixture fixture;
    struct answer answer;
    double seconds;
    int fd;

    (void)state;
    asking.call.max_rate = 8u << 20; /* 4 MiB take half a second */
    fixture_start(&fixture, NULL);
    fd = connect_to(&fixture);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    ask(fd, &asking, &answer);
    clock_gettime(CLOCK_MONOTONIC, &end);
    assert_blocks(&fixture, &answer, &asking.ask);
    answer_fini(&answer);
    seconds = (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9;
    assert_true(seconds > 0.3);
    asking.call.max_rate = 0;
    ask(fd, &asking, &answer);
    assert_blocks(&fixture, &answer, &asking.ask);
    answer_fini(&answer);
    close(fd);
    fixture_fini(&fixture);
}

/* --- the end --- */

static void *stop(void *ctx)
{
    struct fixture *fixture = ctx;

    dctf_peer_server_stop(fixture->server);
    note(fixture, &fixture->replied);
    return NULL;
}

static void test_stop_waits_for_answers(void **state)
{
    struct asking asking = asking_of(DCTF_PEER_BLOCKS, "late", 0, 32);
    struct dctf_peer_request *request;
    struct fixture fixture;
    struct answer answer;
    pthread_t thread;
    int fd, kept;

    (void)state;
    fixture_start(&fixture, NULL);
    kept = connect_to(&fixture);
    fd = connect_to(&fixture);
    send_asking(fd, &asking);
    request = take_held(&fixture);
    assert_int_equal(dctf_thread_start("stop", stop, &fixture, &thread), DCTF_OK);
    do { /* until the server is being stopped, requests on a connection that is kept are taken */
        struct asking ping = asking_of(DCTF_PEER_BLOCKS, "e2024", 0, 1);

        ask(kept, &ping, &answer);
    } while (answer.status == 204);
    assert_int_equal(answer.status, 503);
    assert_string_equal(header_of(&answer, "Dctf-Error"), "2008");
    assert_true(is_closed(kept));
    close(kept);
    kept = connect_to(&fixture); /* a new one is turned away */
    assert_true(is_closed(kept));
    close(kept);
    assert_int_equal(read_counter(&fixture, &fixture.replied), 0); /* it waits */
    reply_blocks(&fixture, request, &asking.ask, true, false);
    read_answer(fd, &answer);
    assert_blocks(&fixture, &answer, &asking.ask);
    answer_fini(&answer);
    pthread_join(thread, NULL);
    fixture.server = NULL;
    assert_int_equal(fixture.released, 1);
    close(fd);
    fixture_fini(&fixture);
}

/* Handlers that do not answer in time are not waited for; their answers may still come. */
static void test_stop_is_bounded(void **state)
{
    struct asking asking = asking_of(DCTF_PEER_BLOCKS, "late", 0, 4);
    struct dctf_peer_server_config config;
    struct dctf_peer_path path;
    struct fixture fixture;
    struct answer answer;
    int fds[3];

    (void)state;
    config = config_of(&fixture);
    config.reply_timeout_ms = 100;
    fixture_start(&fixture, &config);
    for (unsigned i = 0; i < 3; i++) {
        fds[i] = connect_to(&fixture);
        send_asking(fds[i], &asking);
    }
    wait_for(&fixture, &fixture.held_count, 3);
    dctf_peer_server_stop(fixture.server);
    fixture.server = NULL;
    assert_int_equal(fixture.released, 0);
    for (unsigned i = 0; i < 3; i++) {
        read_answer(fds[i], &answer);
        assert_int_equal(answer.status, 0);
        close(fds[i]);
    }
    dctf_peer_request_path(fixture.held[0], &path);
    assert_int_equal(path.rtt_us, 0);
    reply_blocks(&fixture, fixture.held[0], &asking.ask, false, false);
    reply_blocks(&fixture, fixture.held[1], &asking.ask, true, false);
    assert_int_equal(fixture.released, 2);
    dctf_peer_reply_error(fixture.held[2], DCTF_ERR_PEER_BUSY, 1, NULL);
    fixture_fini(&fixture);
}

static void *answer_all(void *ctx)
{
    struct fixture *fixture = ctx;

    for (unsigned i = 0; i < 32; i++)
        reply_blocks(fixture, fixture->held[i], &fixture->last.ask, i & 1, false);
    return NULL;
}

/* Answers come while the server gives up on them. */
static void test_stop_races_with_answers(void **state)
{
    struct asking asking = asking_of(DCTF_PEER_BLOCKS, "late", 0, 1);
    struct dctf_peer_server_config config;

    (void)state;
    for (unsigned round = 0; round < 10; round++) {
        struct fixture fixture;
        pthread_t thread;
        int fds[32];

        config = config_of(&fixture);
        config.reply_timeout_ms = 1 + round % 3;
        fixture_start(&fixture, &config);
        for (unsigned i = 0; i < 32; i++) {
            fds[i] = connect_to(&fixture);
            send_asking(fds[i], &asking);
        }
        wait_for(&fixture, &fixture.held_count, 32);
        assert_int_equal(dctf_thread_start("answer", answer_all, &fixture, &thread), DCTF_OK);
        dctf_peer_server_stop(fixture.server);
        fixture.server = NULL;
        pthread_join(thread, NULL);
        wait_for(&fixture, &fixture.released, 32);
        for (unsigned i = 0; i < 32; i++)
            close(fds[i]);
        fixture_fini(&fixture);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ping),
        cmocka_unit_test(test_reply_blocks),
        cmocka_unit_test(test_tell_handler_what_was_asked),
        cmocka_unit_test(test_reply_have),
        cmocka_unit_test(test_reply_error),
        cmocka_unit_test(test_answer_late),
        cmocka_unit_test(test_answer_late_crowd),
        cmocka_unit_test(test_client_leaves_while_it_waits),
        cmocka_unit_test(test_client_leaves_in_the_middle),
        cmocka_unit_test(test_pipelined),
        cmocka_unit_test(test_pace),
        cmocka_unit_test(test_stop_waits_for_answers),
        cmocka_unit_test(test_stop_is_bounded),
        cmocka_unit_test(test_stop_races_with_answers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
