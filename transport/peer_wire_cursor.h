/* SPDX-License-Identifier: Apache-2.0
 *
 * What peer_wire*.c share: a text is taken from left to right by a cursor that fails for good at the first
 * thing that is not as the writer would have written it.
 *
 * Threads:   any thread; no state.
 * Ownership: nothing is kept.
 */
#ifndef DCTF_TRANSPORT_PEER_WIRE_CURSOR_H
#define DCTF_TRANSPORT_PEER_WIRE_CURSOR_H

#include "base/version.h"
#include "transport/peer_wire.h"
#include "transport/uri.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define HEX_DIGITS 16u

struct cursor {
    const char *at; /* NULL: failed */
};

static inline void take_word(struct cursor *cursor, const char *word)
{
    size_t len = strlen(word);

    if (cursor->at)
        cursor->at = strncmp(cursor->at, word, len) == 0 ? cursor->at + len : NULL;
}

static inline uint64_t take_decimal(struct cursor *cursor, uint64_t max)
{
    const char *at = cursor->at;
    uint64_t value = 0;

    if (!at)
        return 0;
    cursor->at = NULL;
    if (*at < '0' || *at > '9' || (*at == '0' && at[1] >= '0' && at[1] <= '9'))
        return 0;
    for (; *at >= '0' && *at <= '9'; at++) {
        uint64_t digit = (uint64_t)(*at - '0');

        if (value > (UINT64_MAX - digit) / 10)
            return 0;
        value = value * 10 + digit;
    }
    if (value > max)
        return 0;
    cursor->at = at;
    return value;
}

static inline uint64_t take_hex(struct cursor *cursor)
{
    uint64_t value = 0;

    for (unsigned i = 0; cursor->at && i < HEX_DIGITS; i++) {
        char digit = cursor->at[i];

        if (dctf_hex_value(digit) < 0 || (digit >= 'A' && digit <= 'F'))
            cursor->at = NULL;
        else
            value = value << 4 | (uint64_t)dctf_hex_value(digit);
    }
    if (!cursor->at)
        return 0;
    cursor->at += HEX_DIGITS;
    return value;
}

/* An encoded text up to one of `ends`. */
static inline void take_encoded(
    struct cursor *cursor, const char *ends, bool keep_slash, char *out, size_t cap)
{
    size_t len;

    if (!cursor->at)
        return;
    len = strcspn(cursor->at, ends);
    cursor->at = dctf_uri_decode(cursor->at, len, keep_slash, out, cap) ? cursor->at + len : NULL;
}

static inline bool ended(const struct cursor *cursor)
{
    return cursor->at && !*cursor->at;
}

/* A key that names a file of the tree (docs/keys.md). */
static inline bool key_ok(const char *key)
{
    for (;;) {
        size_t len = strcspn(key, "/");

        if (!len || len > DCTF_NAME_MAX || (len == 1 && key[0] == '.') ||
            (len == 2 && key[0] == '.' && key[1] == '.'))
            return false;
        if (!key[len])
            return true;
        key += len + 1;
    }
}

/* --- peer_wire_meta.c --- */

/* Append the target of one that dctf_peer_is_meta(). */
void dctf_peer_meta_write(struct dctf_str *out, const struct dctf_peer_ask *ask);
/* Whether it begins like one of those; then out->count is 1 when it is one, and 0 with the rest empty when
 * it is malformed. */
bool dctf_peer_meta_parse(const char *target, struct dctf_peer_ask *out);

#endif
