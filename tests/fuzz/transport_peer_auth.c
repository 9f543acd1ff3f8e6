/* SPDX-License-Identifier: Apache-2.0
 *
 * Lines: method, target, node, proof, then headers "name:value". A proof that this side did not make is not
 * taken; one that it made is, once.
 */
#include "transport/peer_auth.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define HEADERS_MAX 40
#define SECRET "secret"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok)
{
    if (!ok)
        abort();
}

static uint64_t fixed_time(void *ctx)
{
    (void)ctx;
    return 1700000000000;
}

static char *cut_line(char *text)
{
    char *end = strchrnul(text, '\n');

    if (!*end)
        return end;
    *end = '\0';
    return end + 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct dctf_clock clock = {.mono_ns = fixed_time, .wall_ms = fixed_time};
    struct dctf_peer_header headers[HEADERS_MAX];
    struct dctf_peer_auth_input input = {.bound = headers};
    struct dctf_peer_verifier *verifier;
    char auth[DCTF_PEER_AUTH_BYTES];
    char *text = malloc(size + 1);
    char *proof, *line;
    enum dctf_err err;

    require(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    input.method = text;
    input.target = line = cut_line(text);
    input.node = line = cut_line(line);
    proof = cut_line(line);
    line = cut_line(proof);
    while (*line && input.bound_count < HEADERS_MAX) {
        char *next = cut_line(line);
        char *colon = strchrnul(line, ':');

        headers[input.bound_count].name = line;
        headers[input.bound_count++].value = *colon ? colon + 1 : colon;
        *colon = '\0';
        line = next;
    }
    require(!dctf_peer_verifier_new(SECRET, 4, &clock, &verifier));
    require(dctf_peer_verify(verifier, &input, proof) == DCTF_ERR_PEER_AUTH);
    err = dctf_peer_auth_sign(SECRET, &input, &clock, auth);
    require(!err || err == DCTF_ERR_INTERNAL);
    if (!err) {
        require(strlen(auth) < sizeof(auth));
        require(!dctf_peer_verify(verifier, &input, auth));
        require(dctf_peer_verify(verifier, &input, auth) == DCTF_ERR_PEER_AUTH);
    }
    dctf_peer_verifier_free(verifier);
    free(text);
    return 0;
}
