/* SPDX-License-Identifier: Apache-2.0
 *
 * Answers between peers as text, and what their status means. Requests: test_peer_wire.c.
 */
#include "peer_wire_fixture.h"

static void test_sums(void **state)
{
    static const uint64_t sums[] = {0, UINT64_MAX, 0x1234};
    uint64_t again[3];
    struct dctf_str out;

    (void)state;
    dctf_str_init(&out);
    dctf_peer_sums_write(&out, sums, 3);
    assert_string_equal(dctf_str_c(&out), "0000000000000000ffffffffffffffff0000000000001234");
    assert_true(dctf_peer_sums_parse(out.data, again, 3));
    assert_memory_equal(again, sums, sizeof(sums));
    assert_false(dctf_peer_sums_parse(out.data, again, 2));
    out.data[47] = 'g';
    assert_false(dctf_peer_sums_parse(out.data, again, 3));
    out.data[47] = 'F';
    assert_false(dctf_peer_sums_parse(out.data, again, 3));
    out.data[47] = '\0';
    assert_false(dctf_peer_sums_parse(out.data, again, 3));
    assert_false(dctf_peer_sums_parse("", again, 1));
    dctf_str_fini(&out);
}

static void test_path(void **state)
{
    static const char *const bad[] = {"", "rtt=1", "rtt=1,min=2", "rtt=1,min=2,rate=", "rtt=1,min=2,rate=3,",
        "min=2,rtt=1,rate=3", "rtt=1, min=2, rate=3", "rtt=-1,min=2,rate=3",
        "rtt=1,min=2,rate=18446744073709551616"};
    struct dctf_peer_path path = {12, 0, UINT64_MAX};
    struct dctf_str out;

    (void)state;
    dctf_str_init(&out);
    dctf_peer_path_write(&out, &path);
    assert_string_equal(dctf_str_c(&out), "rtt=12,min=0,rate=18446744073709551615");
    memset(&path, 0xff, sizeof(path));
    assert_true(dctf_peer_path_parse(out.data, &path));
    assert_int_equal(path.rtt_us, 12);
    assert_int_equal(path.min_rtt_us, 0);
    assert_true(path.rate == UINT64_MAX);
    dctf_str_fini(&out);
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        assert_false(dctf_peer_path_parse(bad[i], &path));
        assert_int_equal(path.rtt_us, 0);
    }
}

static struct dctf_peer_told sample_told(void)
{
    return (struct dctf_peer_told){
        .view = 7,
        .wait_us = 1500,
        .path = {100, 50, 1000000},
        .sum_count = 2,
        .sums = {1, 2},
        .framed = true,
        .from = DCTF_PEER_FROM_ORIGIN,
        .spare = DCTF_PEER_SPARE_KEEP,
    };
}

/* What was parsed is written again as it was. */
static void check_told_again(const struct headers *headers, const struct dctf_peer_told *again)
{
    struct headers second = {0};

    dctf_peer_told_write(again, add_header, &second);
    assert_int_equal(second.count, headers->count);
    for (size_t i = 0; i < second.count; i++) {
        assert_string_equal(second.items[i].name, headers->items[i].name);
        assert_string_equal(second.items[i].value, headers->items[i].value);
    }
}

static void test_told_blocks_round_trip(void **state)
{
    struct dctf_peer_told told = sample_told();
    struct headers headers = {0};
    struct dctf_peer_told again;

    (void)state;
    dctf_peer_told_write(&told, add_header, &headers);
    assert_string_equal(get_header(&headers, "Dctf-Encoding"), "lz4");
    assert_string_equal(get_header(&headers, "Dctf-From"), "origin");
    assert_string_equal(get_header(&headers, "Dctf-Wait"), "1500");
    assert_string_equal(get_header(&headers, "Dctf-Spare"), "keep");
    assert_null(get_header(&headers, "Dctf-Error"));
    assert_null(get_header(&headers, "Dctf-Retry"));
    assert_int_equal(dctf_peer_told_parse(get_header, &headers, 2, &again), DCTF_OK);
    check_told_again(&headers, &again);
    assert_true(again.framed);
    assert_int_equal(again.from, DCTF_PEER_FROM_ORIGIN);
    assert_int_equal(again.sums[1], 2);
    assert_int_equal(again.spare, DCTF_PEER_SPARE_KEEP);
    assert_int_equal(dctf_peer_told_parse(get_header, &headers, 1, &again), DCTF_ERR_BAD_RESPONSE);
    assert_int_equal(dctf_peer_told_parse(get_header, &headers, 3, &again), DCTF_ERR_BAD_RESPONSE);
    assert_int_equal(
        dctf_peer_told_parse(get_header, &headers, DCTF_PEER_BLOCKS_MAX + 1, &again), DCTF_ERR_BAD_RESPONSE);
}

static void test_told_busy_round_trip(void **state)
{
    struct dctf_peer_told told = {.err = DCTF_ERR_PEER_BUSY, .view = 7, .retry_ms = 20, .try = "a,b:1,c.d,e"};
    struct headers headers = {0};
    struct dctf_peer_told again;

    (void)state;
    dctf_peer_told_write(&told, add_header, &headers);
    assert_string_equal(get_header(&headers, "Dctf-Error"), "2022");
    assert_int_equal(dctf_peer_told_parse(get_header, &headers, 0, &again), DCTF_OK);
    check_told_again(&headers, &again);
    assert_string_equal(again.try, "a,b:1,c.d,e");
    /* What could not be read is not written. */
    headers.count = 0;
    told.retry_ms = UINT64_MAX;
    strcpy(told.try, "a,b,c,d,e");
    dctf_peer_told_write(&told, add_header, &headers);
    assert_null(get_header(&headers, "Dctf-Try"));
    assert_int_equal(dctf_peer_told_parse(get_header, &headers, 0, &again), DCTF_OK);
    assert_int_equal(again.retry_ms, DCTF_PEER_MS_MAX);
}

static void test_told_absent_is_no_error(void **state)
{
    struct dctf_peer_told told = {.err = DCTF_ERR_PEER_ABSENT, .view = 7};
    struct headers headers = {0};

    (void)state;
    dctf_peer_told_write(&told, add_header, &headers);
    assert_int_equal(headers.count, 1);
    assert_string_equal(headers.items[0].name, "Dctf-View");
}

static void test_told_refuses(void **state)
{
    static const struct dctf_peer_header bad[] = {{"Dctf-Sums", ""}, {"Dctf-Sums", "0000000000000001"},
        {"Dctf-Encoding", "zstd"}, {"Dctf-Encoding", ""}, {"Dctf-From", "disk"}, {"Dctf-Wait", "1ms"},
        {"Dctf-Wait", "18446744073709551616"}, {"Dctf-View", "7"}, {"Dctf-Path", "rtt=1"},
        {"Dctf-Error", "0"}, {"Dctf-Error", "10000"}, {"Dctf-Error", "PEER_BUSY"}, {"Dctf-Retry", "86400001"},
        {"Dctf-Retry", "-1"}, {"Dctf-Spare", ""}, {"Dctf-Spare", "Keep"}, {"Dctf-Try", ""}, {"Dctf-Try", ","},
        {"Dctf-Try", "a,"}, {"Dctf-Try", "a,,b"}, {"Dctf-Try", "a,b,c,d,e"}, {"Dctf-Try", "a b"},
        {"Dctf-Try", "0123456789012345678901234567890123456789012345678901234567890123"}};

    (void)state;
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct dctf_peer_told told = sample_told();
        struct headers headers = {0};

        dctf_peer_told_write(&told, add_header, &headers);
        set_header(&headers, bad[i].name, bad[i].value);
        if (dctf_peer_told_parse(get_header, &headers, 2, &told) != DCTF_ERR_BAD_RESPONSE)
            fail_msg("taken: %s: %s", bad[i].name, bad[i].value);
        assert_int_equal(told.sum_count, 0);
    }
}

static void test_told_needs_all_of_blocks(void **state)
{
    static const char *const names[] = {"Dctf-Sums", "Dctf-Encoding", "Dctf-From"};

    (void)state;
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        struct dctf_peer_told told = sample_told();
        struct headers headers = {0};

        dctf_peer_told_write(&told, add_header, &headers);
        for (size_t k = 0; k < headers.count; k++) {
            if (!strcmp(headers.items[k].name, names[i]))
                headers.items[k].name = "Other";
        }
        assert_int_equal(dctf_peer_told_parse(get_header, &headers, 2, &told), DCTF_ERR_BAD_RESPONSE);
        assert_int_equal(dctf_peer_told_parse(get_header, &headers, 0, &told), DCTF_OK);
    }
}

static void test_told_unknown_code(void **state)
{
    struct headers headers = {0};
    struct dctf_peer_told told;

    (void)state;
    add_header(&headers, "Dctf-Error", "2099");
    assert_int_equal(dctf_peer_told_parse(get_header, &headers, 0, &told), DCTF_OK);
    assert_int_equal(told.err, DCTF_ERR_INTERNAL);
}

/* --- status and error --- */

static void test_status_of_every_code_comes_back(void **state)
{
    enum dctf_err err;

    (void)state;
    for (size_t i = 0; (err = dctf_err_at(i)); i++) {
        int status = dctf_peer_status(err);
        enum dctf_err back;

        if (err == DCTF_ERR_PEER_ABSENT) {
            assert_int_equal(status, 204);
            continue;
        }
        assert_true(status >= 400 && status < 600);
        back = dctf_peer_status_err(status, err);
        if (status == 500 || err == DCTF_ERR_SHUTTING_DOWN)
            assert_int_equal(back, DCTF_ERR_PEER_GONE);
        else if (err == DCTF_ERR_SHORT_BODY || err == DCTF_ERR_BAD_RESPONSE)
            assert_int_equal(back, DCTF_ERR_ORIGIN_IO);
        else
            assert_int_equal(back, err);
    }
    assert_int_equal(dctf_peer_status(DCTF_OK), 200);
}

static void test_status_table(void **state)
{
    static const struct {
        enum dctf_err err;
        int status;
    } rows[] = {{DCTF_ERR_BAD_REQUEST, 400}, {DCTF_ERR_PEER_AUTH, 401}, {DCTF_ERR_NOT_FOUND, 404},
        {DCTF_ERR_VERSION_MISMATCH, 412}, {DCTF_ERR_INTERNAL, 500}, {DCTF_ERR_CACHE_IO, 500},
        {DCTF_ERR_ORIGIN_THROTTLED, 502}, {DCTF_ERR_CREDENTIALS_FAILED, 502}, {DCTF_ERR_PEER_BUSY, 503},
        {DCTF_ERR_SHUTTING_DOWN, 503}, {DCTF_ERR_DEADLINE, 504}};

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        assert_int_equal(dctf_peer_status(rows[i].err), rows[i].status);
    assert_int_equal(dctf_peer_status_err(409, DCTF_ERR_BAD_REQUEST), DCTF_ERR_BAD_REQUEST);
}

/* Something that is no peer must not be able to say that an object does not exist. */
static void test_status_without_its_code(void **state)
{
    static const int gone[] = {500, 501, 502, 503, 504, 599};
    static const int bad[] = {301, 400, 401, 403, 404, 409, 412, 418};
    static const enum dctf_err told[] = {DCTF_OK, DCTF_ERR_MISS};

    (void)state;
    for (size_t k = 0; k < COUNT_OF(told); k++) {
        for (size_t i = 0; i < COUNT_OF(gone); i++)
            assert_int_equal(dctf_peer_status_err(gone[i], told[k]), DCTF_ERR_PEER_GONE);
        for (size_t i = 0; i < COUNT_OF(bad); i++)
            assert_int_equal(dctf_peer_status_err(bad[i], told[k]), DCTF_ERR_BAD_RESPONSE);
    }
    assert_int_equal(dctf_peer_status_err(502, DCTF_ERR_NOT_FOUND), DCTF_ERR_PEER_GONE);
    assert_int_equal(dctf_peer_status_err(404, DCTF_ERR_ORIGIN_IO), DCTF_ERR_BAD_RESPONSE);
    assert_int_equal(dctf_peer_status_err(300, DCTF_ERR_PEER_ABSENT), DCTF_ERR_BAD_RESPONSE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_path),
        cmocka_unit_test(test_told_blocks_round_trip),
        cmocka_unit_test(test_told_busy_round_trip),
        cmocka_unit_test(test_told_absent_is_no_error),
        cmocka_unit_test(test_told_refuses),
        cmocka_unit_test(test_told_needs_all_of_blocks),
        cmocka_unit_test(test_told_unknown_code),
        cmocka_unit_test(test_status_of_every_code_comes_back),
        cmocka_unit_test(test_status_table),
        cmocka_unit_test(test_status_without_its_code),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
