/* SPDX-License-Identifier: Apache-2.0
 *
 * Growable byte strings, quoting and sizes with units.
 *
 * Threads:   caller locks.
 * Ownership: a dctf_str is embedded; dctf_str_fini() frees its bytes.
 */
#ifndef DCTF_BASE_STR_H
#define DCTF_BASE_STR_H

#include "base/err.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

struct dctf_str {
    char *data; /* NUL-terminated once anything was appended; NULL before */
    size_t len; /* without the NUL */
    size_t cap;
    enum dctf_err err; /* sticky: the first failed append */
};

void dctf_str_init(struct dctf_str *str);
void dctf_str_fini(struct dctf_str *str);
void dctf_str_clear(struct dctf_str *str);
/* Appends fail softly: after the first failure nothing more is appended and
 * str->err says why; check it once at the end. */
void dctf_str_add(struct dctf_str *str, const void *data, size_t len);
void dctf_str_puts(struct dctf_str *str, const char *text);
void dctf_str_printf(struct dctf_str *str, const char *format, ...) DCTF_PRINTF(2, 3);
/* The bytes as a C string, "" when empty. Borrowed. */
const char *dctf_str_c(const struct dctf_str *str);

/* `text` for a log line or a table: printable UTF-8-agnostic ASCII as it is, the
 * rest as \xNN, in double quotes. Writes at most `cap` bytes with the NUL and
 * returns `out`; too long a text ends in "…\"" cut at the bound. */
const char *dctf_str_quote(const char *text, char *out, size_t cap);

/* "64K", "1.5G", "200GiB", "1000" → bytes (binary multiples). */
DCTF_MUST_CHECK
enum dctf_err dctf_size_parse(const char *text, uint64_t *out);
/* 1536 → "1.5K"; out ≥ 16 bytes; returns out. */
const char *dctf_size_format(uint64_t bytes, char *out, size_t cap);
/* "500ms", "30s", "5m", "2h", "7d" or a bare number of `unit_ms`, or "inf" (UINT64_MAX). */
DCTF_MUST_CHECK
enum dctf_err dctf_duration_parse(const char *text, uint64_t unit_ms, uint64_t *out_ms);

#endif
