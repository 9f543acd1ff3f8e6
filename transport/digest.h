/* SPDX-License-Identifier: Apache-2.0
 *
 * SHA-256 and HMAC-SHA256, and comparing secrets: what this folder has of OpenSSL.
 *
 * Threads:   any thread; a dctf_hmac is its caller's.
 * Ownership: dctf_hmac_new() gives an object to free, which wipes the key.
 */
#ifndef DCTF_TRANSPORT_DIGEST_H
#define DCTF_TRANSPORT_DIGEST_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

#define DCTF_DIGEST_BYTES 32u
#define DCTF_DIGEST_HEX_BYTES 65u /* with the NUL */

/* Lower case, and a NUL. */
void dctf_digest_hex(const unsigned char digest[DCTF_DIGEST_BYTES], char out[DCTF_DIGEST_HEX_BYTES]);
/* SHA-256 as 64 hex digits and a NUL. DCTF_ERR_NO_MEMORY, _INTERNAL; then `out` is "". */
DCTF_MUST_CHECK
enum dctf_err dctf_sha256_hex(const void *data, size_t len, char out[DCTF_DIGEST_HEX_BYTES]);

/* For several computations one after the other, each with a key of its own. */
struct dctf_hmac;

DCTF_MUST_CHECK
enum dctf_err dctf_hmac_new(struct dctf_hmac **out);
void dctf_hmac_free(struct dctf_hmac *hmac); /* NULL is allowed */
/* `out` may be the key. An empty key is allowed. DCTF_ERR_NO_MEMORY, _INTERNAL. */
DCTF_MUST_CHECK
enum dctf_err dctf_hmac_run(struct dctf_hmac *hmac, const void *key, size_t key_len, const void *data,
    size_t len, unsigned char out[DCTF_DIGEST_BYTES]);

/* In a time that does not depend on where they differ. */
bool dctf_secret_equal(const void *a, const void *b, size_t len);

#endif
