/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/digest.h"

#include "base/log.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <string.h>

/* Never defined: a dctf_hmac is OpenSSL's context by another name. */
static EVP_MAC_CTX *context_of(struct dctf_hmac *hmac)
{
    return (EVP_MAC_CTX *)hmac;
}

/* OpenSSL's reason as one of our codes. */
static enum dctf_err map_openssl(const char *call)
{
    unsigned long code = ERR_peek_last_error();
    enum dctf_err err = ERR_GET_REASON(code) == ERR_R_MALLOC_FAILURE ? DCTF_ERR_NO_MEMORY : DCTF_ERR_INTERNAL;
    char text[256];

    ERR_error_string_n(code, text, sizeof(text));
    dctf_log(DCTF_LOG_ERROR, "digest", "%s failed: %s err=%d", call, text, (int)err);
    ERR_clear_error();
    return err;
}

void dctf_digest_hex(const unsigned char digest[DCTF_DIGEST_BYTES], char out[DCTF_DIGEST_HEX_BYTES])
{
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < DCTF_DIGEST_BYTES; i++) {
        out[2 * i] = digits[digest[i] >> 4];
        out[2 * i + 1] = digits[digest[i] & 15];
    }
    out[2 * DCTF_DIGEST_BYTES] = '\0';
}

enum dctf_err dctf_sha256_hex(const void *data, size_t len, char out[DCTF_DIGEST_HEX_BYTES])
{
    unsigned char digest[DCTF_DIGEST_BYTES];

    out[0] = '\0';
    if (!EVP_Digest(data, len, digest, NULL, EVP_sha256(), NULL))
        return map_openssl("EVP_Digest");
    dctf_digest_hex(digest, out);
    return DCTF_OK;
}

enum dctf_err dctf_hmac_new(struct dctf_hmac **out)
{
    OSSL_PARAM params[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, "SHA256", 0),
        OSSL_PARAM_construct_end(),
    };
    EVP_MAC *mac = EVP_MAC_fetch(NULL, "HMAC", NULL);
    EVP_MAC_CTX *ctx = mac ? EVP_MAC_CTX_new(mac) : NULL;

    EVP_MAC_free(mac); /* the context has its own reference */
    if (ctx && !EVP_MAC_CTX_set_params(ctx, params)) {
        EVP_MAC_CTX_free(ctx);
        ctx = NULL;
    }
    *out = (struct dctf_hmac *)ctx;
    return ctx ? DCTF_OK : map_openssl("HMAC");
}

void dctf_hmac_free(struct dctf_hmac *hmac)
{
    EVP_MAC_CTX_free(context_of(hmac));
}

enum dctf_err dctf_hmac_run(struct dctf_hmac *hmac, const void *key, size_t key_len, const void *data,
    size_t len, unsigned char out[DCTF_DIGEST_BYTES])
{
    static const unsigned char none[1];
    EVP_MAC_CTX *ctx = context_of(hmac);
    size_t out_len;

    /* Without a key pointer OpenSSL would go on with the last key. */
    if (!EVP_MAC_init(ctx, key_len ? key : none, key_len, NULL) || !EVP_MAC_update(ctx, data, len) ||
        !EVP_MAC_final(ctx, out, &out_len, DCTF_DIGEST_BYTES) || out_len != DCTF_DIGEST_BYTES)
        return map_openssl("HMAC");
    return DCTF_OK;
}

bool dctf_secret_equal(const void *a, const void *b, size_t len)
{
    return CRYPTO_memcmp(a, b, len) == 0;
}
