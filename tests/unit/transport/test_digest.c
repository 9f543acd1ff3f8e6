/* SPDX-License-Identifier: Apache-2.0
 *
 * Vectors: FIPS 180-2 (SHA-256) and RFC 4231 (HMAC-SHA256), by their numbers.
 */
#include "transport/digest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void test_sha256_hex(void **state)
{
    char out[DCTF_DIGEST_HEX_BYTES];

    (void)state;
    assert_int_equal(dctf_sha256_hex("", 0, out), DCTF_OK);
    assert_string_equal(out, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    assert_int_equal(dctf_sha256_hex("abc", 3, out), DCTF_OK);
    assert_string_equal(out, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

static void check_hmac(
    struct dctf_hmac *hmac, const void *key, size_t key_len, const char *text, const char *expected)
{
    unsigned char mac[DCTF_DIGEST_BYTES];
    char hex[DCTF_DIGEST_HEX_BYTES];

    assert_int_equal(dctf_hmac_run(hmac, key, key_len, text, strlen(text), mac), DCTF_OK);
    dctf_digest_hex(mac, hex);
    assert_string_equal(hex, expected);
}

static void test_hmac_vectors_one_after_the_other(void **state)
{
    unsigned char key[131];
    struct dctf_hmac *hmac;

    (void)state;
    assert_int_equal(dctf_hmac_new(&hmac), DCTF_OK);
    memset(key, 0x0b, 20);
    check_hmac(hmac, key, 20, "Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    check_hmac(hmac, "Jefe", 4, "what do ya want for nothing?",
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, sizeof(key));
    check_hmac(hmac, key, sizeof(key), "Test Using Larger Than Block-Size Key - Hash Key First",
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    /* Not the last key once more. */
    check_hmac(hmac, "", 0, "", "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
    dctf_hmac_free(hmac);
}

static void test_hmac_result_as_next_key(void **state)
{
    unsigned char mac[DCTF_DIGEST_BYTES];
    unsigned char other[DCTF_DIGEST_BYTES];
    struct dctf_hmac *hmac;

    (void)state;
    assert_int_equal(dctf_hmac_new(&hmac), DCTF_OK);
    assert_int_equal(dctf_hmac_run(hmac, "k", 1, "a", 1, mac), DCTF_OK);
    assert_int_equal(dctf_hmac_run(hmac, mac, sizeof(mac), "b", 1, other), DCTF_OK);
    assert_int_equal(dctf_hmac_run(hmac, mac, sizeof(mac), "b", 1, mac), DCTF_OK);
    assert_memory_equal(mac, other, sizeof(mac));
    dctf_hmac_free(hmac);
}

static void test_secrets(void **state)
{
    (void)state;
    assert_true(dctf_secret_equal("abc", "abd", 2));
    assert_false(dctf_secret_equal("abc", "abd", 3));
    dctf_hmac_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sha256_hex),
        cmocka_unit_test(test_hmac_vectors_one_after_the_other),
        cmocka_unit_test(test_hmac_result_as_next_key),
        cmocka_unit_test(test_secrets),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
