/* SPDX-License-Identifier: Apache-2.0 */
#include "base/version.h"

#include "lib/fail_alloc.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static struct dctf_version *version_of(
    uint64_t dataset, const char *key, const char *etag, uint64_t size, enum dctf_feature_by by)
{
    struct dctf_version *version;

    assert_int_equal(dctf_version_new(dataset, key, etag, size, by, &version), DCTF_OK);
    return version;
}

static bool same_id(const struct dctf_version *a, const struct dctf_version *b)
{
    return !memcmp(&a->id, &b->id, sizeof(a->id));
}

static void test_new_copies(void **state)
{
    char key[] = "user_age/day=01.arrow";
    char etag[] = "\"abc\"";
    struct dctf_version *version = version_of(7, key, etag, 123, DCTF_FEATURE_BY_DIRECTORY);

    (void)state;
    memset(key, 'x', sizeof(key) - 1);
    memset(etag, 'x', sizeof(etag) - 1);
    assert_string_equal(version->key, "user_age/day=01.arrow");
    assert_string_equal(version->etag, "\"abc\"");
    assert_string_equal(version->feature, "user_age");
    assert_int_equal(version->size, 123);
    dctf_version_unref(version);
    dctf_version_unref(NULL);
}

static void test_new_features(void **state)
{
    static const struct {
        const char *key;
        enum dctf_feature_by by;
        const char *feature;
    } cases[] = {
        {"a/b/c", DCTF_FEATURE_BY_DIRECTORY, "a/b"},
        {"a/b/c", DCTF_FEATURE_BY_FILE, "a/b/c"},
        {"c", DCTF_FEATURE_BY_DIRECTORY, ""},
        {"c", DCTF_FEATURE_BY_FILE, "c"},
        {"", DCTF_FEATURE_BY_DIRECTORY, ""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dctf_version *version = version_of(1, cases[i].key, "e", 1, cases[i].by);

        assert_string_equal(version->feature, cases[i].feature);
        assert_true(version->feature_id == dctf_hash64_seed(cases[i].feature, strlen(cases[i].feature), 1));
        dctf_version_unref(version);
    }
}

/* Whatever differs makes another version; the key alone decides the key hash. */
static void test_id_tells_apart(void **state)
{
    struct dctf_version *base = version_of(1, "a/b", "e", 5, DCTF_FEATURE_BY_DIRECTORY);
    struct dctf_version *same = version_of(1, "a/b", "e", 5, DCTF_FEATURE_BY_FILE);
    struct dctf_version *others[] = {
        version_of(2, "a/b", "e", 5, DCTF_FEATURE_BY_DIRECTORY),
        version_of(1, "a/c", "e", 5, DCTF_FEATURE_BY_DIRECTORY),
        version_of(1, "a/b", "f", 5, DCTF_FEATURE_BY_DIRECTORY),
        version_of(1, "a/b", "e", 6, DCTF_FEATURE_BY_DIRECTORY),
        version_of(1, "a/be", "", 5, DCTF_FEATURE_BY_DIRECTORY),
    };

    (void)state;
    assert_true(same_id(base, same));
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        assert_false(same_id(base, others[i]));
    assert_true(base->key_hash == others[2]->key_hash);
    assert_true(base->key_hash != others[0]->key_hash);
    assert_true(base->key_hash != others[1]->key_hash);
    assert_true(base->feature_id == others[1]->feature_id); /* the same directory */
    assert_true(base->feature_id != others[0]->feature_id); /* of another dataset */
    dctf_version_unref(base);
    dctf_version_unref(same);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        dctf_version_unref(others[i]);
}

static void test_new_limits(void **state)
{
    char key[DCTF_KEY_MAX + 2];
    char etag[DCTF_ETAG_MAX + 2];
    struct dctf_version *version;

    (void)state;
    memset(key, 'k', sizeof(key));
    memset(etag, 'e', sizeof(etag));
    key[DCTF_KEY_MAX] = '\0';
    etag[DCTF_ETAG_MAX] = '\0';
    version = version_of(1, key, etag, UINT64_MAX, DCTF_FEATURE_BY_FILE);
    assert_int_equal(strlen(version->key), DCTF_KEY_MAX);
    dctf_version_unref(version);
    etag[DCTF_ETAG_MAX] = 'e';
    etag[DCTF_ETAG_MAX + 1] = '\0';
    version = (struct dctf_version *)key;
    assert_int_equal(
        dctf_version_new(1, "k", etag, 1, DCTF_FEATURE_BY_FILE, &version), DCTF_ERR_NAME_TOO_LONG);
    assert_null(version);
    key[DCTF_KEY_MAX] = 'k';
    key[DCTF_KEY_MAX + 1] = '\0';
    assert_int_equal(
        dctf_version_new(1, key, "e", 1, DCTF_FEATURE_BY_FILE, &version), DCTF_ERR_NAME_TOO_LONG);
}

static void *ref_and_unref(void *ctx)
{
    for (int i = 0; i < 10000; i++)
        dctf_version_unref(dctf_version_ref(ctx));
    dctf_version_unref(ctx);
    return NULL;
}

static void test_ref_from_threads(void **state)
{
    struct dctf_version *version = version_of(1, "k", "e", 1, DCTF_FEATURE_BY_FILE);
    pthread_t threads[3];

    (void)state;
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, ref_and_unref, dctf_version_ref(version)), 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    assert_string_equal(version->key, "k"); /* ours is left; sanitizers see a wrong count */
    dctf_version_unref(version);
}

/* Ids lie on disk and on the wire: they must never change. XXH3's own test values. */
static void test_hash_is_xxh3(void **state)
{
    static const uint8_t empty128[16] = {
        0x99, 0xaa, 0x06, 0xd3, 0x01, 0x47, 0x98, 0xd8, 0x60, 0x01, 0xc3, 0x24, 0x46, 0x8d, 0x49, 0x7f};
    struct dctf_id id = dctf_hash128("", 0);

    (void)state;
    assert_true(dctf_hash64("", 0) == 0x2d06800538d394c2u);
    assert_true(dctf_hash64(NULL, 0) == 0x2d06800538d394c2u);
    assert_true(dctf_hash64_seed("", 0, 0) == dctf_hash64("", 0));
    assert_true(dctf_hash64_seed("a", 1, 1) != dctf_hash64("a", 1));
    assert_memory_equal(id.bytes, empty128, 16);
}

static void test_blocks(void **state)
{
    (void)state;
    assert_int_equal(dctf_blocks_of(0), 0);
    assert_int_equal(dctf_blocks_of(1), 1);
    assert_int_equal(dctf_blocks_of(DCTF_BLOCK_BYTES), 1);
    assert_int_equal(dctf_blocks_of(DCTF_BLOCK_BYTES + 1), 2);
    assert_int_equal(dctf_blocks_of(1ull << 49), 1u << 31);
    assert_int_equal(dctf_block_len(1, 0), 1);
    assert_int_equal(dctf_block_len(DCTF_BLOCK_BYTES, 0), DCTF_BLOCK_BYTES);
    assert_int_equal(dctf_block_len(DCTF_BLOCK_BYTES + 7, 0), DCTF_BLOCK_BYTES);
    assert_int_equal(dctf_block_len(DCTF_BLOCK_BYTES + 7, 1), 7);
    assert_int_equal(dctf_block_len(2 * DCTF_BLOCK_BYTES, 1), DCTF_BLOCK_BYTES);
}

static struct dctf_version *swept;

static enum dctf_err sweep_make(void *ctx)
{
    (void)ctx;
    return dctf_version_new(1, "a/b", "e", 1, DCTF_FEATURE_BY_FILE, &swept);
}

static void sweep_drop(void *ctx)
{
    (void)ctx;
    dctf_version_unref(swept);
}

static void test_new_no_memory(void **state)
{
    (void)state;
    assert_int_equal(fail_alloc_sweep(sweep_make, sweep_drop, NULL, (void **)&swept), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_new_copies),
        cmocka_unit_test(test_new_features),
        cmocka_unit_test(test_id_tells_apart),
        cmocka_unit_test(test_new_limits),
        cmocka_unit_test(test_ref_from_threads),
        cmocka_unit_test(test_hash_is_xxh3),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_new_no_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
