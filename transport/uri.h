/* SPDX-License-Identifier: Apache-2.0
 *
 * Percent-encoding (RFC 3986), in the one form in which this program writes it.
 *
 * Threads:   any thread; no state.
 * Ownership: nothing is kept.
 */
#ifndef DCTF_TRANSPORT_URI_H
#define DCTF_TRANSPORT_URI_H

#include <stdbool.h>
#include <stddef.h>

struct dctf_str;

/* Append `len` bytes percent-encoded: all but A-Z a-z 0-9 - . _ ~, and '/' when `keep_slash`. */
void dctf_uri_encode(struct dctf_str *out, const char *text, size_t len, bool keep_slash);
/* The reverse, of exactly what dctf_uri_encode() writes: false for other forms, a NUL byte, or more than
 * cap - 1 bytes. `out` ends in a NUL. */
bool dctf_uri_decode(const char *text, size_t len, bool keep_slash, char *out, size_t cap);
/* 0 … 15, or -1. */
int dctf_hex_value(char digit);

#endif
