/* SPDX-License-Identifier: Apache-2.0
 *
 * Targets about names: written and read back the same, and nothing else is taken.
 */
#include "peer_wire_fixture.h"

static void check_round_trip(const struct dctf_peer_ask *ask, const char *text)
{
    struct dctf_peer_ask again;

    write_and_parse(ask, text, &again);
    assert_int_equal(again.generation, ask->generation);
    assert_string_equal(again.after, ask->after);
    assert_int_equal(again.count, 1); /* one sum */
    assert_int_equal(dctf_peer_ask_bytes(&again), 0);
}

static void test_write_and_parse(void **state)
{
    struct dctf_peer_ask ask = {.op = DCTF_PEER_LIST, .dataset = 0x12, .key = "a/b c", .size = 5000};

    (void)state;
    check_round_trip(&ask, "/v1/list/a/b%20c?ds=0000000000000012&n=5000");
    ask.generation = 77;
    strcpy(ask.after, "x&y");
    check_round_trip(&ask, "/v1/list/a/b%20c?ds=0000000000000012&n=5000&gen=77&after=x%26y");
    ask.key[0] = '\0';
    check_round_trip(&ask, "/v1/list/?ds=0000000000000012&n=5000&gen=77&after=x%26y");
    ask = (struct dctf_peer_ask){.op = DCTF_PEER_SYNC, .dataset = 1, .key = "a", .size = 1};
    check_round_trip(&ask, "/v1/sync/a?ds=0000000000000001&n=1");
    ask = (struct dctf_peer_ask){.op = DCTF_PEER_EVICT, .dataset = 1};
    check_round_trip(&ask, "/v1/evict/?ds=0000000000000001&n=0");
    ask =
        (struct dctf_peer_ask){.op = DCTF_PEER_STALE, .dataset = 1, .key = "a/x", .size = 9, .etag = "\"e\""};
    check_round_trip(&ask, "/v1/stale/a/x?ds=0000000000000001&n=9&etag=%22e%22");
    ask = (struct dctf_peer_ask){.op = DCTF_PEER_HEAT, .dataset = 1, .size = 20};
    check_round_trip(&ask, "/v1/heat/?ds=0000000000000001&n=20");
}

static void test_round_trip_of_the_longest(void **state)
{
    struct dctf_peer_ask ask = {.op = DCTF_PEER_LIST, .dataset = UINT64_MAX, .size = UINT64_MAX};

    (void)state;
    for (size_t i = 0; i < DCTF_KEY_MAX; i++)
        ask.key[i] = i % 200 == 199 ? '/' : (char)(0x80 + i % 100);
    memset(ask.after, '"', DCTF_NAME_MAX);
    ask.generation = UINT64_MAX;
    check_round_trip(&ask, NULL);
}

static void test_refuse_others(void **state)
{
#define DS "?ds=0123456789abcdef"
    static const char *const targets[] = {"/v1/list", "/v1/list/", "/v1/list/a", "/v1/list/a" DS,
        "/v1/list/a" DS "&n=", "/v1/list/a" DS "&n=01", "/v1/list/a" DS "&n=1&gen=0&after=x",
        "/v1/list/a" DS "&n=1&gen=1",
        "/v1/list/a" DS "&n=1&gen=1&after=", "/v1/list/a" DS "&n=1&gen=1&after=a%2Fb",
        "/v1/list/a" DS "&n=1&gen=1&after=a&more", "/v1/list/a" DS "&n=1&etag=x", "/v1/list//a" DS "&n=1",
        "/v1/list/a/" DS "&n=1", "/v1/list/a/../b" DS "&n=1", "/v1/list/%61" DS "&n=1",
        "/v1/list/a%00" DS "&n=1", "/v1/sync/a" DS "&n=2", "/v1/evict/a" DS "&n=1", "/v1/evict/a" DS,
        "/v1/stale/" DS "&n=1&etag=x", "/v1/stale/a" DS "&n=1", "/v1/heat/a" DS "&n=1",
        "/v1/heat/" DS "&n=4294967296", "/v1/evict/a?ds=0123456789ABCDEF&n=0", "/v1/lists/a" DS "&n=1"};
    struct dctf_peer_ask out;

    (void)state;
    for (size_t i = 0; i < sizeof(targets) / sizeof(targets[0]); i++) {
        out.count = 1;
        if (dctf_peer_target_parse(targets[i], &out) != DCTF_ERR_BAD_REQUEST)
            fail_msg("taken: %s", targets[i]);
        assert_int_equal(out.count, 0);
        assert_int_equal(out.key[0], 0);
    }
#undef DS
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_write_and_parse),
        cmocka_unit_test(test_round_trip_of_the_longest),
        cmocka_unit_test(test_refuse_others),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
