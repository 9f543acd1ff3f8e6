/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests between peers as text. Answers: test_peer_wire_answer.c.
 */
#include "peer_wire_fixture.h"

#define MIB (1024ull * 1024)

/* --- targets --- */

static struct dctf_peer_ask sample_ask(void)
{
    return (struct dctf_peer_ask){
        .op = DCTF_PEER_BLOCKS,
        .dataset = 0x0123456789abcdef,
        .key = "train/shard 7.tar",
        .etag = "\"a/b\"",
        .size = 20 * MIB + 1,
        .first = 33,
        .count = 4,
        .want_first = 32,
        .want_count = 32,
    };
}

static void check_round_trip(const struct dctf_peer_ask *ask)
{
    struct dctf_peer_ask again;

    write_and_parse(ask, NULL, &again);
    assert_int_equal(again.first, ask->first);
    assert_int_equal(again.count, ask->count);
    assert_int_equal(again.want_first, ask->want_first);
    assert_int_equal(again.want_count, ask->want_count);
}

static void test_write_target(void **state)
{
    struct dctf_peer_ask ask = sample_ask();
    struct dctf_str out;

    (void)state;
    dctf_str_init(&out);
    dctf_peer_target_write(&out, &ask);
    assert_string_equal(dctf_str_c(&out), "/v1/blocks/train/shard%207.tar?ds=0123456789abcdef&size=20971521"
                                          "&etag=%22a%2Fb%22&first=33&count=4&want=32-32");
    dctf_str_clear(&out);
    ask.op = DCTF_PEER_HAVE;
    ask.want_count = 0;
    dctf_peer_target_write(&out, &ask);
    assert_string_equal(dctf_str_c(&out), "/v1/have/train/shard%207.tar?ds=0123456789abcdef&size=20971521"
                                          "&etag=%22a%2Fb%22&first=33&count=4");
    dctf_str_clear(&out);
    ask.op = DCTF_PEER_PING;
    dctf_peer_target_write(&out, &ask);
    assert_string_equal(dctf_str_c(&out), "/v1/ping");
    dctf_str_fini(&out);
}

static void test_target_round_trips(void **state)
{
    struct dctf_peer_ask ask = sample_ask();

    (void)state;
    check_round_trip(&ask);
    ask.op = DCTF_PEER_HAVE;
    check_round_trip(&ask);
    ask.want_first = ask.want_count = 0;
    check_round_trip(&ask);
    ask.etag[0] = '\0';
    check_round_trip(&ask);
    /* The last block of the largest shard. */
    ask.size = DCTF_SIZE_MAX;
    ask.first = dctf_blocks_of(DCTF_SIZE_MAX) - 1;
    ask.count = 1;
    check_round_trip(&ask);
    ask = (struct dctf_peer_ask){.op = DCTF_PEER_PING};
    check_round_trip(&ask);
    /* Longest texts, every byte encoded. */
    ask = sample_ask();
    for (size_t i = 0; i < DCTF_KEY_MAX; i++)
        ask.key[i] = i % 200 == 199 ? '/' : (char)(0x80 + i % 100);
    ask.key[DCTF_KEY_MAX] = '\0';
    memset(ask.etag, '"', DCTF_ETAG_MAX);
    ask.etag[DCTF_ETAG_MAX] = '\0';
    check_round_trip(&ask);
    snprintf(ask.key, sizeof(ask.key), "..a/.b/...");
    check_round_trip(&ask);
}

static void check_refused(const char *target)
{
    struct dctf_peer_ask out = {.count = 1};

    if (dctf_peer_target_parse(target, &out) != DCTF_ERR_BAD_REQUEST)
        fail_msg("taken: %s", target);
    assert_int_equal(out.count, 0);
    assert_int_equal(out.key[0], 0);
}

static void test_parse_refuses_other_targets(void **state)
{
    static const char *const targets[] = {"", "/", "/v1", "/v1/", "/v1/ping/", "/v1/ping?", "/v1/Ping",
        "v1/ping", "/v2/ping", "//v1/ping", "/v1/blocks", "/v1/blocks/", "/v1/blocks/k", "/v1/blocks/k?",
        "/metrics",
        /* order, repetition, unknown fields, ends */
        "/v1/blocks/k?size=9&ds=0000000000000001&etag=e&first=0&count=1",
        "/v1/blocks/k?ds=0000000000000001&size=9&etag=e&first=0",
        "/v1/blocks/k?ds=0000000000000001&size=9&etag=e&first=0&first=0&count=1",
        "/v1/blocks/k?ds=0000000000000001&size=9&etag=e&first=0&count=1&x=1",
        "/v1/blocks/k?ds=0000000000000001&size=9&etag=e&first=0&count=1&",
        "/v1/blocks/k?ds=0000000000000001&size=9&etag=e&first=0&count=1&want=0-1&want=0-1",
        "/v1/blocks/k?ds=0000000000000001&size=9&etag=e&first=0&count=1#f",
        "/v1/blocks/k?ds=0000000000000001&size=9&etag=e&first=0&count=1 ",
        "/v1/blocks/k?ds=0000000000000001&&size=9&etag=e&first=0&count=1",
        /* numbers */
        "/v1/blocks/k?ds=000000000000001&size=9&etag=e&first=0&count=1",
        "/v1/blocks/k?ds=00000000000000001&size=9&etag=e&first=0&count=1",
        "/v1/blocks/k?ds=000000000000000A&size=9&etag=e&first=0&count=1",
        "/v1/blocks/k?ds=0x00000000000001&size=9&etag=e&first=0&count=1",
        "/v1/blocks/k?ds=0000000000000001&size=&etag=e&first=0&count=1",
        "/v1/blocks/k?ds=0000000000000001&size=09&etag=e&first=0&count=1",
        "/v1/blocks/k?ds=0000000000000001&size=+9&etag=e&first=0&count=1",
        "/v1/blocks/k?ds=0000000000000001&size=-9&etag=e&first=0&count=1",
        "/v1/blocks/k?ds=0000000000000001&size=9.0&etag=e&first=0&count=1",
        "/v1/blocks/k?ds=0000000000000001&size=18446744073709551617&etag=e&first=0&count=1",
        "/v1/blocks/k?ds=0000000000000001&size=562949953421313&etag=e&first=0&count=1",
        "/v1/blocks/k?ds=0000000000000001&size=9&etag=e&first=4294967296&count=1",
        /* texts */
        "/v1/blocks/?ds=0000000000000001&size=9&etag=e&first=0&count=1",
        "/v1/blocks/a b?ds=0000000000000001&size=9&etag=e&first=0&count=1",
        "/v1/blocks/a%00b?ds=0000000000000001&size=9&etag=e&first=0&count=1",
        "/v1/blocks/a%2fb?ds=0000000000000001&size=9&etag=e&first=0&count=1",
        "/v1/blocks/a%2Fb?ds=0000000000000001&size=9&etag=e&first=0&count=1",
        "/v1/blocks/%61?ds=0000000000000001&size=9&etag=e&first=0&count=1",
        "/v1/blocks/a%?ds=0000000000000001&size=9&etag=e&first=0&count=1",
        "/v1/blocks/k?ds=0000000000000001&size=9&etag=a/b&first=0&count=1",
        "/v1/blocks/k?ds=0000000000000001&size=9&etag=%00&first=0&count=1",
        "/v1/blocks/k?ds=0000000000000001&size=9&etag=a=b&first=0&count=1"};

    (void)state;
    for (size_t i = 0; i < COUNT_OF(targets); i++)
        check_refused(targets[i]);
}

static void test_parse_refuses_keys_of_no_file(void **state)
{
    static const char *const keys[] = {"/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", "a/.."};
    char target[512];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        snprintf(target, sizeof(target), "/v1/blocks/%s?ds=0000000000000001&size=9&etag=e&first=0&count=1",
            keys[i]);
        check_refused(target);
    }
    snprintf(
        target, sizeof(target), "/v1/blocks/%0256d?ds=0000000000000001&size=9&etag=e&first=0&count=1", 0);
    check_refused(target);
}

static void check_ranges(uint64_t size, unsigned first, unsigned count, const char *want, bool expected)
{
    struct dctf_peer_ask ask;
    char target[256];
    enum dctf_err err;

    snprintf(target, sizeof(target), "/v1/have/k?ds=0000000000000001&size=%llu&etag=e&first=%u&count=%u%s",
        (unsigned long long)size, first, count, want);
    err = dctf_peer_target_parse(target, &ask);
    if (err != (expected ? DCTF_OK : DCTF_ERR_BAD_REQUEST))
        fail_msg("err %d: %s", (int)err, target);
}

static void test_parse_ranges(void **state)
{
    (void)state;
    check_ranges(0, 0, 1, "", false);
    check_ranges(1, 0, 1, "", true);
    check_ranges(1, 1, 1, "", false);
    check_ranges(1, 0, 0, "", false);
    check_ranges(MIB, 0, 4, "", true);
    check_ranges(MIB, 0, 5, "", false);
    check_ranges(MIB, 1, 4, "", false);
    check_ranges(100 * MIB, 0, 32, "", true);
    check_ranges(100 * MIB, 0, 33, "", false);
    check_ranges(100 * MIB, 31, 1, "", true);
    check_ranges(100 * MIB, 31, 2, "", false); /* crosses an extent */
    check_ranges(100 * MIB, 32, 32, "", true);
    check_ranges(DCTF_SIZE_MAX, 4294967295u, 1, "", false);
    check_ranges(DCTF_SIZE_MAX, 2147483647u, 1, "", true);
    check_ranges(DCTF_SIZE_MAX, 2147483647u, 2, "", false);
}

static void test_parse_want(void **state)
{
    (void)state;
    check_ranges(100 * MIB, 33, 2, "&want=33-2", true);
    check_ranges(100 * MIB, 33, 2, "&want=32-32", true);
    check_ranges(100 * MIB, 33, 2, "&want=34-2", false);
    check_ranges(100 * MIB, 33, 2, "&want=32-2", false);
    check_ranges(100 * MIB, 33, 2, "&want=33-32", false); /* crosses an extent */
    check_ranges(100 * MIB, 33, 2, "&want=31-8", false);
    check_ranges(100 * MIB, 33, 2, "&want=33-0", false);
    check_ranges(100 * MIB, 33, 2, "&want=33", false);
    check_ranges(100 * MIB, 33, 2, "&want=33-", false);
    check_ranges(100 * MIB, 33, 2, "&want=33-2-3", false);
    check_ranges(MIB, 0, 2, "&want=0-5", false); /* past the end */
}

static void test_ask_bytes(void **state)
{
    struct dctf_peer_ask ask = sample_ask();

    (void)state;
    assert_int_equal(dctf_peer_ask_bytes(&ask), MIB);
    ask.first = 80;
    ask.count = 1;
    assert_int_equal(dctf_peer_ask_bytes(&ask), 1);
    ask.op = DCTF_PEER_PING;
    assert_int_equal(dctf_peer_ask_bytes(&ask), 0);
}

/* --- headers --- */

static const struct dctf_peer_call sample_call = {
    .node = "node-1.rack:7",
    .view = 0xfedcba9876543210,
    .class = DCTF_FETCH_REPLICATION,
    .hop = 1,
    .deadline_ms = 30000,
    .max_rate = UINT64_MAX,
    .accepts_lz4 = true,
    .tried = true,
};

static void test_call_round_trips(void **state)
{
    struct headers headers = {0};
    struct dctf_peer_call call;

    (void)state;
    dctf_peer_call_write(&sample_call, add_header, &headers);
    assert_string_equal(get_header(&headers, "Dctf-Node"), "node-1.rack:7");
    assert_string_equal(get_header(&headers, "Dctf-View"), "fedcba9876543210");
    assert_string_equal(get_header(&headers, "Dctf-Class"), "replication");
    assert_string_equal(get_header(&headers, "Dctf-Hop"), "1");
    assert_string_equal(get_header(&headers, "Dctf-Deadline"), "30000");
    assert_string_equal(get_header(&headers, "Dctf-Accept"), "lz4");
    assert_string_equal(get_header(&headers, "Dctf-Tried"), "1");
    assert_string_equal(get_header(&headers, "Dctf-Max-Rate"), "18446744073709551615");
    add_header(&headers, "Dctf-Later", "of another release");
    add_header(&headers, "Host", "h");
    headers.items[2].name = "dctf-CLASS";
    assert_int_equal(dctf_peer_call_parse(headers.items, headers.count, &call), DCTF_OK);
    assert_string_equal(call.node, sample_call.node);
    assert_true(call.view == sample_call.view);
    assert_int_equal(call.class, sample_call.class);
    assert_int_equal(call.hop, 1);
    assert_int_equal(call.deadline_ms, 30000);
    assert_true(call.max_rate == UINT64_MAX);
    assert_true(call.accepts_lz4);
}

static void test_call_defaults(void **state)
{
    struct dctf_peer_call call = {.node = "n", .class = DCTF_FETCH_DEMAND};
    struct headers headers = {0};

    (void)state;
    dctf_peer_call_write(&call, add_header, &headers);
    assert_int_equal(headers.count, 5);
    assert_int_equal(dctf_peer_call_parse(headers.items, headers.count, &call), DCTF_OK);
    assert_int_equal(call.deadline_ms, 1);
    assert_false(call.accepts_lz4);
    assert_int_equal(call.max_rate, 0);
    call.deadline_ms = UINT64_MAX;
    headers.count = 0;
    dctf_peer_call_write(&call, add_header, &headers);
    assert_int_equal(dctf_peer_call_parse(headers.items, headers.count, &call), DCTF_OK);
    assert_int_equal(call.deadline_ms, DCTF_PEER_MS_MAX);
}

static void test_call_refuses(void **state)
{
    static const struct dctf_peer_header bad[] = {{"Dctf-Node", ""}, {"Dctf-Node", "a b"},
        {"Dctf-Node", "a,b"}, {"Dctf-Node", "\xc3\xa4"},
        {"Dctf-Node", "0123456789012345678901234567890123456789012345678901234567890123"}, {"Dctf-View", "1"},
        {"Dctf-View", "FEDCBA9876543210"}, {"Dctf-View", "fedcba98765432100"}, {"Dctf-Class", "Demand"},
        {"Dctf-Class", ""}, {"Dctf-Class", "demand "}, {"Dctf-Hop", "2"}, {"Dctf-Hop", "01"},
        {"Dctf-Hop", ""}, {"Dctf-Deadline", "0"}, {"Dctf-Deadline", "86400001"}, {"Dctf-Deadline", "1s"},
        {"Dctf-Accept", "gzip"}, {"Dctf-Accept", ""}, {"Dctf-Tried", "0"}, {"Dctf-Max-Rate", "0"},
        {"Dctf-Max-Rate", "18446744073709551616"}};
    struct dctf_peer_call call;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct headers headers = {0};

        dctf_peer_call_write(&sample_call, add_header, &headers);
        set_header(&headers, bad[i].name, bad[i].value);
        if (dctf_peer_call_parse(headers.items, headers.count, &call) != DCTF_ERR_BAD_REQUEST)
            fail_msg("taken: %s: %s", bad[i].name, bad[i].value);
        assert_int_equal(call.node[0], 0);
    }
}

static void test_call_refuses_missing_and_repeated(void **state)
{
    struct dctf_peer_call call;

    (void)state;
    for (size_t i = 0; i < 8; i++) {
        struct headers headers = {0};
        bool optional;

        dctf_peer_call_write(&sample_call, add_header, &headers);
        assert_int_equal(headers.count, 8);
        add_header(&headers, headers.items[i].name, headers.items[i].value);
        assert_int_equal(dctf_peer_call_parse(headers.items, headers.count, &call), DCTF_ERR_BAD_REQUEST);
        headers.count--;
        optional = !strcmp(headers.items[i].name, "Dctf-Accept") ||
                   !strcmp(headers.items[i].name, "Dctf-Tried") ||
                   !strcmp(headers.items[i].name, "Dctf-Max-Rate");
        headers.items[i] = headers.items[--headers.count];
        assert_int_equal(dctf_peer_call_parse(headers.items, headers.count, &call),
            optional ? DCTF_OK : DCTF_ERR_BAD_REQUEST);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_write_target),
        cmocka_unit_test(test_target_round_trips),
        cmocka_unit_test(test_parse_refuses_other_targets),
        cmocka_unit_test(test_parse_refuses_keys_of_no_file),
        cmocka_unit_test(test_parse_ranges),
        cmocka_unit_test(test_parse_want),
        cmocka_unit_test(test_ask_bytes),
        cmocka_unit_test(test_call_round_trips),
        cmocka_unit_test(test_call_defaults),
        cmocka_unit_test(test_call_refuses),
        cmocka_unit_test(test_call_refuses_missing_and_repeated),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
