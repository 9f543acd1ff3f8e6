/* SPDX-License-Identifier: Apache-2.0
 *
 * What the peer server does not let through: strangers, junk, heads without end, clients that are too slow.
 */
#include "peer_server_fixture.h"

#include "base/clock.h"

#include <dlfcn.h>
#include <netdb.h>
#include <stdatomic.h>

/* Stands before the C library's: "turns" is this machine's when it is asked for first, and then another's. */
static atomic_uint turns_asked;

int getaddrinfo(const char *restrict name, const char *restrict service,
    const struct addrinfo *restrict hints, struct addrinfo **restrict out)
{
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);

    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    if (name && !strcmp(name, "turns"))
        name = atomic_fetch_add(&turns_asked, 1) ? "192.0.2.1" : "127.0.0.1";
    return real(name, service, hints, out);
}

/* --- who --- */

static int status_of(int fd, const char *head)
{
    struct answer answer;

    send_text(fd, head);
    read_answer(fd, &answer);
    answer_fini(&answer);
    return answer.status;
}

/* Send `head` on a connection of its own: it is refused with `status`, the handler sees nothing of it, the
 * connection is closed, and others are served. */
static void assert_refused(struct fixture *fixture, const char *head, int status)
{
    uint64_t refused = refused_of(fixture);
    struct answer answer;
    int fd = connect_to(fixture);

    send_text(fd, head);
    read_answer(fd, &answer);
    assert_int_equal(answer.status, status);
    if (status == 401) /* a stranger learns nothing */
        assert_string_equal(header_of(&answer, "Dctf-View"), "0000000000000000");
    assert_null(header_of(&answer, "Dctf-Path"));
    answer_fini(&answer);
    assert_true(is_closed(fd));
    close(fd);
    assert_int_equal(refused_of(fixture), refused + 1);
    assert_int_equal(read_counter(fixture, &fixture->handled), 0);
}

static void replace(struct dctf_str *text, const char *what, const char *with)
{
    char *at = strstr(text->data, what);

    assert_non_null(at);
    assert_int_equal(strlen(what), strlen(with));
    memcpy(at, with, strlen(with));
}

static void test_refuse_without_proof(void **state)
{
    struct asking asking = asking_of(DCTF_PEER_BLOCKS, "now", 0, 1);
    struct asking ping = asking_of(DCTF_PEER_PING, "", 0, 0);
    struct fixture fixture;
    struct dctf_str head;

    (void)state;
    fixture_start(&fixture, NULL);
    dctf_str_init(&head);
    asking.secret = ping.secret = NULL;
    write_head(&head, &asking);
    assert_refused(&fixture, head.data, 401);
    dctf_str_clear(&head);
    write_head(&head, &ping);
    assert_refused(&fixture, head.data, 401);
    dctf_str_clear(&head);
    asking.secret = ping.secret = "another secret of some length";
    write_head(&head, &asking);
    assert_refused(&fixture, head.data, 401);
    dctf_str_clear(&head);
    write_head(&head, &ping);
    assert_refused(&fixture, head.data, 401);
    assert_refused(&fixture, "GET /v1/ping HTTP/1.1\r\nHost: peer\r\n\r\n", 401);
    assert_int_equal(dctf_metric_get(fixture.metrics, DCTF_METRIC_PEER_REQUESTS_REFUSED), 5);
    dctf_str_fini(&head);
    assert_alive(&fixture);
    fixture_fini(&fixture);
}

static void test_refuse_changed_request(void **state)
{
    static const struct {
        const char *what, *with;
    } changes[] = {{"count=1", "count=2"}, {"Deadline: 4000", "Deadline: 9000"}, {"Hop: 1", "Hop: 0"},
        {"node-a", "node-b"}, {"Class: demand", "Class: demanD"}, {"Dctf-Hop", "Dctf-Hup"}};
    struct asking asking = asking_of(DCTF_PEER_BLOCKS, "now", 0, 1);
    struct fixture fixture;

    (void)state;
    fixture_start(&fixture, NULL);
    for (unsigned i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        struct dctf_str head;

        dctf_str_init(&head);
        write_head(&head, &asking);
        replace(&head, changes[i].what, changes[i].with);
        assert_refused(&fixture, head.data, 401);
        dctf_str_fini(&head);
    }
    fixture_fini(&fixture);
}

static void test_refuse_replay(void **state)
{
    struct asking asking = asking_of(DCTF_PEER_PING, "", 0, 0);
    struct fixture fixture;
    struct dctf_str head;
    int fd;

    (void)state;
    fixture_start(&fixture, NULL);
    dctf_str_init(&head);
    write_head(&head, &asking);
    fd = connect_to(&fixture);
    assert_int_equal(status_of(fd, head.data), 200);
    close(fd);
    fd = connect_to(&fixture);
    assert_int_equal(status_of(fd, head.data), 401);
    assert_true(is_closed(fd));
    close(fd);
    dctf_str_fini(&head);
    fixture_fini(&fixture);
}

static void test_serve_loopback_without_secret(void **state)
{
    struct asking asking = asking_of(DCTF_PEER_BLOCKS, "now", 0, 1);
    struct dctf_peer_server_config config;
    struct fixture fixture;

    (void)state;
    config = config_of(&fixture);
    config.secret = "";
    asking.secret = NULL;
    fixture_start(&fixture, &config);
    assert_int_equal(ask_once(&fixture, &asking), 200);
    fixture_fini(&fixture);
}

static void assert_start(struct fixture *fixture, const char *listen, const char *secret, enum dctf_err want)
{
    struct dctf_peer_server_config config = config_of(fixture);
    struct dctf_peer_server *server;
    char detail[256];
    enum dctf_err err;

    config.listen = listen;
    config.secret = secret;
    err = dctf_peer_server_start(&config, detail, &server);
    if (err != want)
        print_error("%s: %d %s\n", listen, err, detail);
    assert_int_equal(err, want);
    assert_int_equal(!*detail, !want);
    if (want) {
        assert_null(server);
        return;
    }
    assert_true(dctf_peer_server_port(server) > 0);
    dctf_peer_server_stop(server);
}

static void test_start(void **state)
{
    static const char *const off_loopback[] = {
        "0.0.0.0:0", ":0", "[::]:0", "[::ffff:0.0.0.0]:0", "192.0.2.1:0"};
    static const char *const bad[] = {"", "127.0.0.1", "127.0.0.1:", "127.0.0.1:70000", "127.0.0.1:+1",
        "::1:0", "[::1:0", "[::1]0", "127.0.0.1:http", "no host:0", "[]]:0"};
    struct fixture fixture;
    char taken[32];

    (void)state;
    fixture_start(&fixture, NULL);
    for (unsigned i = 0; i < sizeof(off_loopback) / sizeof(off_loopback[0]); i++) {
        assert_start(&fixture, off_loopback[i], NULL, DCTF_ERR_PEER_UNSAFE);
        assert_start(&fixture, off_loopback[i], "", DCTF_ERR_PEER_UNSAFE);
    }
    for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_start(&fixture, bad[i], SECRET, DCTF_ERR_OPTION_VALUE);
    assert_start(&fixture, "0.0.0.0:0", SECRET, DCTF_OK);
    assert_start(&fixture, "127.9.9.9:0", NULL, DCTF_OK);
    snprintf(taken, sizeof(taken), "127.0.0.1:%u", dctf_peer_server_port(fixture.server));
    assert_start(&fixture, taken, NULL, DCTF_ERR_SYSTEM);
    assert_start(&fixture, "192.0.2.1:0", SECRET, DCTF_ERR_SYSTEM); /* not an address of this machine */
    fixture_fini(&fixture);
}

/* What is found to be safe is what it listens at, whatever the resolver says a moment later. */
static void test_start_resolves_once(void **state)
{
    struct fixture fixture;

    (void)state;
    fixture_start(&fixture, NULL);
    assert_start(&fixture, "turns:0", NULL, DCTF_OK);
    fixture_fini(&fixture);
}

/* --- junk --- */

static void test_refuse_what_is_no_request_of_ours(void **state)
{
    static const struct {
        const char *what, *with;
    } changes[] = {{"GET /v1/blocks", "PUT /v1/blocks"}, {"GET /v1/blocks", "HEAD v1/blocks"}};
    static const char *const heads[] = {
        "POST /v1/ping HTTP/1.1\r\nHost: peer\r\n\r\n",
        "GET /v1/ping HTTP/1.1\r\nHost: peer\r\nContent-Length: 5\r\n\r\nhello",
        "GET /v1/ping HTTP/1.1\r\nHost: peer\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\nhello",
        "GET /v1/ping HTTP/1.1\r\nHost: peer\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "GET /v1/ping HTTP/1.1\r\nHost: peer\r\nContent-Length: 100000000000\r\nExpect: 100-continue\r\n\r\n",
    };
    struct asking asking = asking_of(DCTF_PEER_BLOCKS, "now", 0, 1);
    struct fixture fixture;

    (void)state;
    fixture_start(&fixture, NULL);
    for (unsigned i = 0; i < sizeof(heads) / sizeof(heads[0]); i++)
        assert_refused(&fixture, heads[i], 400);
    for (unsigned i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        struct dctf_str head;

        dctf_str_init(&head);
        write_head(&head, &asking);
        replace(&head, changes[i].what, changes[i].with);
        assert_refused(&fixture, head.data, 400);
        dctf_str_fini(&head);
    }
    assert_alive(&fixture);
    fixture_fini(&fixture);
}

/* A peer with a proof that asks for what does not exist: for one thing more blocks than one may ask for. */
static void test_refuse_bad_target(void **state)
{
    struct asking asking = asking_of(DCTF_PEER_BLOCKS, "now", 0, 33);
    struct fixture fixture;

    (void)state;
    fixture_start(&fixture, NULL);
    assert_int_equal(ask_once(&fixture, &asking), 400);
    asking.ask.first = 37;
    asking.ask.count = 1;
    assert_int_equal(ask_once(&fixture, &asking), 400);
    assert_int_equal(read_counter(&fixture, &fixture.handled), 0);
    fixture_fini(&fixture);
}

/* Whatever the server answers to it, it outlives it, and passes none of it on. */
static void assert_survived(struct fixture *fixture, const char *bytes, size_t len)
{
    struct answer answer;
    int fd = connect_to(fixture);

    send_bytes(fd, bytes, len);
    shutdown(fd, SHUT_WR);
    read_answer(fd, &answer);
    if (answer.status != 0)
        assert_in_range(answer.status, 400, 505);
    answer_fini(&answer);
    close(fd);
    assert_int_equal(read_counter(fixture, &fixture->handled), 0);
    assert_alive(fixture);
}

static void test_survive_junk(void **state)
{
    static const char *const junk[] = {"\r\n\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n",
        "GET  HTTP/1.1\r\n\r\n", "GET /v1/ping\r\n\r\n", "GET /v1/ping HTTP/1.1\r\n\r\n", " \r\n",
        "GET /v1/ping HTTP/1.1\r\nno colon\r\n\r\n", "GET /v1/ping HTTP/1.1\r\n: nothing\r\n\r\n",
        "GET /v1/ping HTTP/1.1\r\n folded\r\n\r\n", "GET /v1/ping HTTP/1.1\r\nHost: a\r\n b\r\n\tc\r\n\r\n",
        "GET ? HTTP/1.1\r\nHost: a\r\n\r\n", "GET /v1/ping?& HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET %00%ff HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /v1/ping HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        "GET /v1/ping HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        "GET /v1/ping HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"};
    struct dctf_rng rng = {.state = 4711};
    struct fixture fixture;

    (void)state;
    fixture_start(&fixture, NULL);
    for (unsigned i = 0; i < sizeof(junk) / sizeof(junk[0]); i++)
        assert_survived(&fixture, junk[i], strlen(junk[i]));
    for (unsigned i = 0; i < 50; i++) {
        char bytes[3000];
        size_t len = (size_t)dctf_rng_below(&rng, sizeof(bytes)) + 1;

        for (size_t k = 0; k < len; k++)
            bytes[k] = (char)dctf_rng_below(&rng, 256);
        assert_survived(&fixture, bytes, len);
    }
    fixture_fini(&fixture);
}

/* Many small things in one head: the library makes notes about each, out of the connection's bounded memory,
 * and must live when it is used up. */
static void test_survive_many_parts(void **state)
{
    static const struct {
        const char *begin, *part, *end;
    } cases[] = {
        {"GET /v1/ping?", "a&", " HTTP/1.1\r\nHost: peer\r\n\r\n"},
        {"GET /v1/ping?", "a=b&", " HTTP/1.1\r\nHost: peer\r\n\r\n"},
        {"GET /v1/ping HTTP/1.1\r\nHost: peer\r\n", "a:b\r\n", "\r\n"},
        {"GET /v1/ping HTTP/1.1\r\nHost: peer\r\nCookie: ", "a;", "\r\n\r\n"},
        {"GET /v1/ping HTTP/1.1\r\nHost: peer\r\nCookie: ", "a=b,", "\r\n\r\n"},
        {"GET /v1/ping HTTP/1.1\r\nHost: peer\r\nA: b\r\n", " c\r\n", "\r\n"},
        {"GET /v1/", "%41", " HTTP/1.1\r\nHost: peer\r\n\r\n"},
        {"", "\r\n", "GET /v1/ping HTTP/1.1\r\nHost: peer\r\n\r\n"},
        {"GET", " ", "/v1/ping HTTP/1.1\r\nHost: peer\r\n\r\n"},
    };
    struct fixture fixture;

    (void)state;
    fixture_start(&fixture, NULL);
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (unsigned count = 16; count < 20000; count += 1 + count / 8) {
            struct dctf_str head;

            dctf_str_init(&head);
            dctf_str_puts(&head, cases[i].begin);
            for (unsigned k = 0; k < count; k++)
                dctf_str_puts(&head, cases[i].part);
            dctf_str_puts(&head, cases[i].end);
            assert_int_equal(head.err, DCTF_OK);
            assert_survived(&fixture, head.data, head.len);
            dctf_str_fini(&head);
        }
    fixture_fini(&fixture);
}

/* A head without end is cut off long before it is over. */
static void test_cut_off_huge_head(void **state)
{
    static const char *const begins[] = {"GET /", "GET /v1/ping?",
        "GET /v1/ping HTTP/1.1\r\nA: ", "GET /v1/ping HTTP/1.1\r\nHost: peer\r\nCookie: "};
    static char part[65536];
    struct fixture fixture;

    (void)state;
    memset(part, 'x', sizeof(part));
    fixture_start(&fixture, NULL);
    for (unsigned i = 0; i < sizeof(begins) / sizeof(begins[0]); i++) {
        int fd = connect_to(&fixture);
        size_t sent = 0;

        assert_true(send_text(fd, begins[i]));
        while (sent < (size_t)1 << 30 && send_bytes(fd, part, sizeof(part)))
            sent += sizeof(part);
        assert_true(sent < (size_t)16 << 20); /* what the kernel's buffers take */
        close(fd);
        assert_alive(&fixture);
    }
    fixture_fini(&fixture);
}

/* --- too slow --- */

/* Bytes trickle so that the connection is never idle: it is cut off all the same. */
static void trickle(struct fixture *fixture, const char *text)
{
    uint64_t begun_ms = dctf_clock_mono_ms(NULL), took_ms;
    int fd = connect_to(fixture);
    size_t at = 0;

    while (!readable(fd, 10)) {
        assert_true(dctf_clock_mono_ms(NULL) - begun_ms < FOREVER_MS);
        send_bytes(fd, text[at] ? &text[at++] : "x", 1);
    }
    assert_true(is_closed(fd));
    close(fd);
    took_ms = dctf_clock_mono_ms(NULL) - begun_ms;
    assert_true(took_ms >= 100);
}

static void test_cut_off_slow_head(void **state)
{
    struct dctf_peer_server_config config;
    struct fixture fixture;
    int silent;

    (void)state;
    config = config_of(&fixture);
    config.head_timeout_ms = 100;
    fixture_start(&fixture, &config);
    silent = connect_to(&fixture);
    trickle(&fixture, "GET /v1/");
    trickle(&fixture, "GET /v1/ping HTTP/1.1\r\nHost: peer\r\nA: ");
    assert_true(is_closed(silent));
    close(silent);
    assert_int_equal(refused_of(&fixture), 3);
    assert_int_equal(dctf_metric_get(fixture.metrics, DCTF_METRIC_PEER_CONNECTIONS_REFUSED), 3);
    assert_alive(&fixture);
    fixture_fini(&fixture);
}

/* Who is proven may be silent for longer than a head may take, but not in the middle of a head. */
static void test_keep_the_proven(void **state)
{
    struct asking ping = asking_of(DCTF_PEER_PING, "", 0, 0);
    struct dctf_peer_server_config config;
    struct fixture fixture;
    struct answer answer;
    int fd, other;

    (void)state;
    config = config_of(&fixture);
    config.head_timeout_ms = 100;
    fixture_start(&fixture, &config);
    fd = connect_to(&fixture);
    ask(fd, &ping, &answer);
    assert_int_equal(answer.status, 200);
    other = connect_to(&fixture);
    assert_true(is_closed(other)); /* by then as much time has passed on the first one */
    close(other);
    ask(fd, &ping, &answer);
    assert_int_equal(answer.status, 200);
    assert_true(send_text(fd, "GET /v1/ping HTTP/1.1\r\nHost: peer\r\nA"));
    assert_true(is_closed(fd));
    close(fd);
    fixture_fini(&fixture);
}

/* A client that takes nothing of its answer is dropped. */
static void test_drop_who_does_not_read(void **state)
{
    static const char *const keys[] = {"file", "now"};
    struct dctf_peer_server_config config;
    struct fixture fixture;

    (void)state;
    config = config_of(&fixture);
    config.reply_timeout_ms = 300;
    fixture_start(&fixture, &config);
    for (unsigned i = 0; i < 2; i++) {
        struct asking asking = asking_of(DCTF_PEER_BLOCKS, keys[i], 0, 32);
        int fd = connect_from(&fixture, "127.0.0.1", 32768);

        send_asking(fd, &asking);
        wait_for(&fixture, &fixture.released, i + 1);
        close(fd);
    }
    assert_int_equal(dctf_metric_get(fixture.metrics, DCTF_METRIC_PEER_REQUESTS_DROPPED), 2);
    assert_alive(&fixture);
    fixture_fini(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refuse_without_proof),
        cmocka_unit_test(test_refuse_changed_request),
        cmocka_unit_test(test_refuse_replay),
        cmocka_unit_test(test_serve_loopback_without_secret),
        cmocka_unit_test(test_start),
        cmocka_unit_test(test_start_resolves_once),
        cmocka_unit_test(test_refuse_what_is_no_request_of_ours),
        cmocka_unit_test(test_refuse_bad_target),
        cmocka_unit_test(test_survive_junk),
        cmocka_unit_test(test_survive_many_parts),
        cmocka_unit_test(test_cut_off_huge_head),
        cmocka_unit_test(test_cut_off_slow_head),
        cmocka_unit_test(test_keep_the_proven),
        cmocka_unit_test(test_drop_who_does_not_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
