/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/record.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct dctf_version *make_version(const char *key, uint64_t size)
{
    struct dctf_version *version;

    assert_int_equal(
        dctf_version_new(7, key, "\"etag\"", size, DCTF_FEATURE_BY_DIRECTORY, &version), DCTF_OK);
    return version;
}

static void test_shard_round_trip(void **state)
{
    struct dctf_version *version = make_version("user_age/day=01.arrow", 3u << 20);
    struct dctf_version *again;
    struct dctf_record_shard in, out;
    uint8_t buf[DCTF_RECORD_SHARD_MAX];
    size_t len;

    (void)state;
    dctf_record_shard_of(version, 7, DCTF_RECORD_FILE, 1u << 20, &in);
    len = dctf_record_shard_encode(&version->id, &in, buf);
    assert_int_equal(dctf_record_shard_decode(&version->id, buf, len, &out), DCTF_OK);
    assert_int_equal(out.present_bytes, 1u << 20);
    assert_int_equal(out.kind, DCTF_RECORD_FILE);
    assert_int_equal(out.key_hash, version->key_hash);
    assert_int_equal(out.feature_id, version->feature_id);
    assert_int_equal(dctf_record_shard_version(&version->id, &out, &again), DCTF_OK);
    assert_string_equal(again->key, version->key);
    assert_string_equal(again->etag, version->etag);
    assert_string_equal(again->feature, "user_age");
    assert_int_equal(again->size, version->size);
    dctf_version_unref(again);
    dctf_version_unref(version);
}

static void test_shard_keeps_feature_by_file(void **state)
{
    struct dctf_version *version, *again;
    struct dctf_record_shard in, out;
    uint8_t buf[DCTF_RECORD_SHARD_MAX];
    size_t len;

    (void)state;
    assert_int_equal(dctf_version_new(7, "a/b", "e", 10, DCTF_FEATURE_BY_FILE, &version), DCTF_OK);
    dctf_record_shard_of(version, 7, DCTF_RECORD_SMALL, 10, &in);
    len = dctf_record_shard_encode(&version->id, &in, buf);
    assert_int_equal(dctf_record_shard_decode(&version->id, buf, len, &out), DCTF_OK);
    assert_int_equal(dctf_record_shard_version(&version->id, &out, &again), DCTF_OK);
    assert_string_equal(again->feature, "a/b");
    dctf_version_unref(again);
    dctf_version_unref(version);
}

static void test_shard_of_longest_names_fits(void **state)
{
    char key[DCTF_KEY_MAX + 1], etag[DCTF_ETAG_MAX + 1];
    struct dctf_version *version;
    struct dctf_record_shard in, out;
    uint8_t buf[DCTF_RECORD_SHARD_MAX];

    (void)state;
    memset(key, 'k', DCTF_KEY_MAX);
    key[DCTF_KEY_MAX] = '\0';
    memset(etag, 'e', DCTF_ETAG_MAX);
    etag[DCTF_ETAG_MAX] = '\0';
    assert_int_equal(dctf_version_new(7, key, etag, 0, DCTF_FEATURE_BY_DIRECTORY, &version), DCTF_OK);
    dctf_record_shard_of(version, 7, DCTF_RECORD_SMALL, 0, &in);
    assert_int_equal(dctf_record_shard_encode(&version->id, &in, buf), sizeof(buf));
    assert_int_equal(dctf_record_shard_decode(&version->id, buf, sizeof(buf), &out), DCTF_OK);
    dctf_version_unref(version);
}

static void test_shard_refuses_every_bit_flip_and_cut(void **state)
{
    struct dctf_version *version = make_version("a/b", 3u << 20);
    struct dctf_record_shard in, out;
    uint8_t buf[DCTF_RECORD_SHARD_MAX];
    size_t len;

    (void)state;
    dctf_record_shard_of(version, 7, DCTF_RECORD_FILE, 1u << 20, &in);
    len = dctf_record_shard_encode(&version->id, &in, buf);
    for (size_t bit = 0; bit < len * 8; bit++) {
        buf[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(dctf_record_shard_decode(&version->id, buf, len, &out), DCTF_ERR_CACHE_CORRUPT);
        buf[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (size_t cut = 0; cut < len; cut++)
        assert_int_equal(dctf_record_shard_decode(&version->id, buf, cut, &out), DCTF_ERR_CACHE_CORRUPT);
    version->id.bytes[3] ^= 1; /* under another key */
    assert_int_equal(dctf_record_shard_decode(&version->id, buf, len, &out), DCTF_ERR_CACHE_CORRUPT);
    dctf_version_unref(version);
}

/* A record that is well-formed but lies: its sum is right, its content is not. */
static void test_shard_refuses_lies(void **state)
{
    struct dctf_version *version = make_version("a/b", 3u << 20);
    struct dctf_version *again;
    struct dctf_record_shard in, out;
    uint8_t buf[DCTF_RECORD_SHARD_MAX];
    size_t len;

    (void)state;
    dctf_record_shard_of(version, 7, DCTF_RECORD_FILE, 4u << 20, &in); /* more than its size */
    len = dctf_record_shard_encode(&version->id, &in, buf);
    assert_int_equal(dctf_record_shard_decode(&version->id, buf, len, &out), DCTF_ERR_CACHE_CORRUPT);
    dctf_record_shard_of(version, 7, DCTF_RECORD_SMALL, 3u << 20, &in); /* too big to be small */
    len = dctf_record_shard_encode(&version->id, &in, buf);
    assert_int_equal(dctf_record_shard_decode(&version->id, buf, len, &out), DCTF_ERR_CACHE_CORRUPT);
    dctf_record_shard_of(version, 7, DCTF_RECORD_FILE, 0, &in);
    in.size = UINT64_MAX;
    len = dctf_record_shard_encode(&version->id, &in, buf);
    assert_int_equal(dctf_record_shard_decode(&version->id, buf, len, &out), DCTF_ERR_CACHE_CORRUPT);
    dctf_record_shard_of(version, 7, DCTF_RECORD_FILE, 0, &in);
    in.key = "a\0b";
    len = dctf_record_shard_encode(&version->id, &in, buf);
    assert_int_equal(dctf_record_shard_decode(&version->id, buf, len, &out), DCTF_ERR_CACHE_CORRUPT);
    in.key = "a/c"; /* another object's key */
    len = dctf_record_shard_encode(&version->id, &in, buf);
    assert_int_equal(dctf_record_shard_decode(&version->id, buf, len, &out), DCTF_OK);
    assert_int_equal(dctf_record_shard_version(&version->id, &out, &again), DCTF_ERR_CACHE_CORRUPT);
    assert_null(again);
    dctf_version_unref(version);
}

static void test_extent_round_trip(void **state)
{
    struct dctf_id id = {{1, 2, 3}}, id_out;
    struct dctf_record_extent in = {.present = 0x80000005u}, out;
    uint8_t key[DCTF_RECORD_EXTENT_KEY];
    uint8_t buf[DCTF_RECORD_EXTENT_MAX];
    uint32_t extent;
    size_t len;

    (void)state;
    for (unsigned i = 0; i < DCTF_EXTENT_BLOCKS; i++)
        in.hash[i] = i + 1;
    dctf_record_extent_key(&id, 0x01020304, key);
    assert_memory_equal(key + 16, "\1\2\3\4", 4);
    assert_true(dctf_record_extent_key_decode(key, sizeof(key), &id_out, &extent));
    assert_memory_equal(&id, &id_out, sizeof(id));
    assert_int_equal(extent, 0x01020304);
    assert_false(dctf_record_extent_key_decode(key, 19, &id_out, &extent));
    len = dctf_record_extent_encode(key, &in, buf);
    assert_int_equal(len, 16 + 3 * 8);
    assert_int_equal(dctf_record_extent_decode(key, buf, len, &out), DCTF_OK);
    assert_int_equal(out.present, in.present);
    assert_int_equal(out.hash[0], 1);
    assert_int_equal(out.hash[1], 0);
    assert_int_equal(out.hash[2], 3);
    assert_int_equal(out.hash[31], 32);
    for (size_t bit = 0; bit < len * 8; bit++) {
        buf[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(dctf_record_extent_decode(key, buf, len, &out), DCTF_ERR_CACHE_CORRUPT);
        buf[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    in.present = UINT32_MAX;
    assert_int_equal(dctf_record_extent_encode(key, &in, buf), sizeof(buf));
}

static void test_small_round_trip(void **state)
{
    struct dctf_id id = {{9}};
    uint64_t hash[DCTF_RECORD_SMALL_BLOCKS] = {11, 12, 13, 14};
    uint64_t sizes[] = {0, 1, DCTF_BLOCK_BYTES, DCTF_BLOCK_BYTES + 1, DCTF_RECORD_SMALL_BYTES};
    uint8_t *buf = calloc(1, DCTF_RECORD_SMALL_HEADER_MAX + DCTF_RECORD_SMALL_BYTES);
    struct dctf_record_small out;

    (void)state;
    assert_non_null(buf);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        size_t header = dctf_record_small_encode(&id, sizes[i], hash, buf);

        assert_int_equal(header, dctf_record_small_header_bytes(sizes[i]));
        assert_true(header <= DCTF_RECORD_SMALL_HEADER_MAX);
        assert_int_equal(dctf_record_small_decode(&id, sizes[i], buf, header + sizes[i], &out), DCTF_OK);
        assert_int_equal(out.blocks, dctf_blocks_of(sizes[i]));
        assert_ptr_equal(out.bytes, buf + header);
        for (uint32_t b = 0; b < out.blocks; b++)
            assert_int_equal(out.hash[b], hash[b]);
        assert_int_equal(dctf_record_small_decode(&id, sizes[i] + 1, buf, header + sizes[i], &out),
            DCTF_ERR_CACHE_CORRUPT);
        for (size_t bit = 0; bit < header * 8; bit++) {
            buf[bit / 8] ^= (uint8_t)(1u << bit % 8);
            assert_int_equal(dctf_record_small_decode(&id, sizes[i], buf, header + sizes[i], &out),
                DCTF_ERR_CACHE_CORRUPT);
            buf[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
    }
    free(buf);
}

static void test_meta_round_trip(void **state)
{
    struct dctf_record_meta in = {.clean = true, .file_bytes = 1, .small_bytes = 2, .shards = 3}, out;
    uint8_t buf[DCTF_RECORD_META_BYTES];

    (void)state;
    dctf_record_meta_encode(&in, buf);
    assert_int_equal(dctf_record_meta_decode(buf, sizeof(buf), &out), DCTF_OK);
    assert_true(out.clean);
    assert_int_equal(out.file_bytes, 1);
    assert_int_equal(out.small_bytes, 2);
    assert_int_equal(out.shards, 3);
    buf[8] ^= 1;
    assert_int_equal(dctf_record_meta_decode(buf, sizeof(buf), &out), DCTF_ERR_CACHE_CORRUPT);
    assert_int_equal(dctf_record_meta_decode(buf, 0, &out), DCTF_ERR_CACHE_CORRUPT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shard_round_trip),
        cmocka_unit_test(test_shard_keeps_feature_by_file),
        cmocka_unit_test(test_shard_of_longest_names_fits),
        cmocka_unit_test(test_shard_refuses_every_bit_flip_and_cut),
        cmocka_unit_test(test_shard_refuses_lies),
        cmocka_unit_test(test_extent_round_trip),
        cmocka_unit_test(test_small_round_trip),
        cmocka_unit_test(test_meta_round_trip),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
