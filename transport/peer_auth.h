/* SPDX-License-Identifier: Apache-2.0
 *
 * Who may ask a peer for bytes: a shared secret proves each request, without being sent.
 *
 *   Dctf-Auth: TIME NONCE MAC      one blank between; lower-case hex
 *   MAC = HMAC-SHA256(secret, "dctf1" LF method LF target LF node LF TIME LF NONCE LF bound headers)
 *
 * TIME is the sender's wall clock in milliseconds, taken when within two minutes of the
 * receiver's; NONCE is 128 random bits, taken once: a replay cache keeps those of the last four
 * minutes. "Bound headers" are all Dctf-* headers but Dctf-Auth, in the order of their names, each as its
 * name in lower case, ':', its value, LF: so a class or a deadline cannot be changed on the way. Answers are
 * not proved: the checksums that bytes carry find damage, not malice; use TLS where the network is not
 * trusted.
 *
 * Threads:   sign is pure; a verifier serves any thread.
 * Ownership: dctf_peer_verifier_new() gives an object to free.
 */
#ifndef DCTF_TRANSPORT_PEER_AUTH_H
#define DCTF_TRANSPORT_PEER_AUTH_H

#include "base/clock.h"
#include "base/err.h"
#include "transport/peer_wire.h"

#include <stddef.h>

#define DCTF_PEER_AUTH_BYTES 160u /* of a header value, with its NUL */

struct dctf_peer_auth_input {
    const char *method; /* "GET" */
    const char *target; /* path and query as on the request line */
    const char *node;   /* id of the sender: the value of Dctf-Node */
    /* Any order; names are compared without case; those that are not bound may be among them. One that is
     * there twice proves nothing. */
    const struct dctf_peer_header *bound;
    size_t bound_count;
};

/* Value of Dctf-Auth for a request sent now. `secret` is not empty. DCTF_ERR_NO_MEMORY, _SYSTEM (no random
 * numbers), _INTERNAL (a text with a line break, a header twice or too many of them). */
DCTF_MUST_CHECK
enum dctf_err dctf_peer_auth_sign(const char *secret, const struct dctf_peer_auth_input *input,
    const struct dctf_clock *clock, char out[DCTF_PEER_AUTH_BYTES]);

struct dctf_peer_verifier;
/* `secret` is copied, and not empty. `nonces_max` bounds the replay cache, 20 to 24 bytes each, of which the
 * kernel gives those that were used: for four minutes of requests that prove themselves, 2^20 are 4,300 a
 * second. When it is full of fresh ones, requests are refused (DCTF_ERR_PEER_BUSY) rather than replays
 * taken. DCTF_ERR_NO_MEMORY, _INTERNAL (arguments). */
DCTF_MUST_CHECK
enum dctf_err dctf_peer_verifier_new(
    const char *secret, size_t nonces_max, const struct dctf_clock *clock, struct dctf_peer_verifier **out);
void dctf_peer_verifier_free(struct dctf_peer_verifier *verifier);
/* `auth` may be NULL. DCTF_ERR_PEER_AUTH: absent, malformed, wrong, too old or seen before (which of them is
 * logged, not told); DCTF_ERR_PEER_BUSY; DCTF_ERR_NO_MEMORY, _INTERNAL: not verified. Compares in constant
 * time. */
DCTF_MUST_CHECK
enum dctf_err dctf_peer_verify(
    struct dctf_peer_verifier *verifier, const struct dctf_peer_auth_input *input, const char *auth);

#endif
