/* SPDX-License-Identifier: Apache-2.0 */
#include "base/str.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

void dctf_str_init(struct dctf_str *str)
{
    *str = (struct dctf_str){0};
}

void dctf_str_fini(struct dctf_str *str)
{
    free(str->data);
    *str = (struct dctf_str){0};
}

void dctf_str_clear(struct dctf_str *str)
{
    str->len = 0;
    str->err = DCTF_OK;
    if (str->data)
        str->data[0] = '\0';
}

/* Make room for `more` bytes and the NUL. */
static bool reserve(struct dctf_str *str, size_t more)
{
    size_t cap = str->cap ? str->cap : 64;
    char *data;

    if (str->err)
        return false;
    if (more >= SIZE_MAX / 2 - str->len) {
        str->err = DCTF_ERR_NO_MEMORY;
        return false;
    }
    if (str->len + more < str->cap)
        return true;
    while (cap <= str->len + more)
        cap *= 2;
    data = realloc(str->data, cap);
    if (!data) {
        str->err = DCTF_ERR_NO_MEMORY;
        return false;
    }
    str->data = data;
    str->cap = cap;
    str->data[str->len] = '\0';
    return true;
}

void dctf_str_add(struct dctf_str *str, const void *data, size_t len)
{
    if (!reserve(str, len))
        return;
    if (len)
        memcpy(str->data + str->len, data, len);
    str->len += len;
    str->data[str->len] = '\0';
}

void dctf_str_puts(struct dctf_str *str, const char *text)
{
    dctf_str_add(str, text, strlen(text));
}

void dctf_str_printf(struct dctf_str *str, const char *format, ...)
{
    va_list args;
    int n;

    if (!reserve(str, 0))
        return;
    va_start(args, format);
    n = vsnprintf(str->data + str->len, str->cap - str->len, format, args);
    va_end(args);
    if (n >= 0 && (size_t)n >= str->cap - str->len) {
        str->data[str->len] = '\0'; /* the cut text is not part of the string */
        if (!reserve(str, (size_t)n))
            return;
        va_start(args, format);
        n = vsnprintf(str->data + str->len, str->cap - str->len, format, args);
        va_end(args);
    }
    if (n < 0) {
        str->data[str->len] = '\0';
        str->err = DCTF_ERR_INTERNAL;
        return;
    }
    str->len += (size_t)n;
}

const char *dctf_str_c(const struct dctf_str *str)
{
    return str->data ? str->data : "";
}

/* The quoted form of one byte; returns its length. */
static size_t quote_byte(unsigned char byte, char out[static 5])
{
    static const char hex[] = "0123456789abcdef";

    if (byte == '"' || byte == '\\') {
        memcpy(out, (char[]){'\\', (char)byte}, 2);
        return 2;
    }
    if (byte >= 0x20 && byte < 0x7f) {
        out[0] = (char)byte;
        return 1;
    }
    memcpy(out, (char[]){'\\', 'x', hex[byte >> 4], hex[byte & 15]}, 4);
    return 4;
}

const char *dctf_str_quote(const char *text, char *out, size_t cap)
{
    static const char cut_mark[] = "…\"";
    const size_t mark_len = sizeof(cut_mark) - 1;
    size_t len = 1;
    size_t fits = 1; /* where the mark still has room after */
    char piece[5];

    if (cap < mark_len + 2) { /* not even an opening quote and the mark */
        if (cap)
            out[0] = '\0';
        return out;
    }
    out[0] = '"';
    for (; *text; text++) {
        size_t n = quote_byte((unsigned char)*text, piece);

        if (len + n + 2 > cap) {
            memcpy(out + fits, cut_mark, mark_len + 1);
            return out;
        }
        memcpy(out + len, piece, n);
        len += n;
        if (len + mark_len + 1 <= cap)
            fits = len;
    }
    memcpy(out + len, "\"", 2);
    return out;
}

/* Shift of a unit such as "", "K", "KB", "KiB" or "B"; -1 for another text. */
static int size_shift(const char *unit)
{
    static const char letters[] = "KMGTPE";
    const char *at;
    int shift = 0;

    if (*unit && (at = strchr(letters, toupper((unsigned char)*unit)))) {
        shift = 10 * (int)(at - letters + 1);
        unit++;
        if (!strcasecmp(unit, "iB"))
            return shift;
    }
    return !*unit || !strcasecmp(unit, "B") ? shift : -1;
}

enum dctf_err dctf_size_parse(const char *text, uint64_t *out)
{
    const uint64_t scale_max = 1000000000; /* nine decimal places are plenty */
    uint64_t whole = 0;
    uint64_t fraction = 0;
    uint64_t scale = 1;
    __uint128_t bytes;
    int shift;

    *out = 0;
    if (!isdigit((unsigned char)*text))
        return DCTF_ERR_OPTION_VALUE;
    for (; isdigit((unsigned char)*text); text++) {
        if (__builtin_mul_overflow(whole, 10u, &whole) ||
            __builtin_add_overflow(whole, (uint64_t)(*text - '0'), &whole))
            return DCTF_ERR_OPTION_VALUE;
    }
    if (*text == '.') {
        if (!isdigit((unsigned char)*++text))
            return DCTF_ERR_OPTION_VALUE;
        for (; isdigit((unsigned char)*text); text++) {
            if (scale < scale_max) {
                fraction = fraction * 10 + (uint64_t)(*text - '0');
                scale *= 10;
            }
        }
    }
    shift = size_shift(text);
    if (shift < 0 || (scale > 1 && !shift)) /* half a byte is a typing error */
        return DCTF_ERR_OPTION_VALUE;
    bytes = ((__uint128_t)whole << shift) + (((__uint128_t)fraction << shift) / scale);
    if (bytes > UINT64_MAX)
        return DCTF_ERR_OPTION_VALUE;
    *out = (uint64_t)bytes;
    return DCTF_OK;
}

const char *dctf_size_format(uint64_t bytes, char *out, size_t cap)
{
    static const char letters[] = "KMGTPE";
    size_t unit = 0;
    uint64_t tenths;

    if (bytes < 1024) {
        snprintf(out, cap, "%llu", (unsigned long long)bytes);
        return out;
    }
    for (;; unit++) {
        unsigned shift = 10 * ((unsigned)unit + 1);

        tenths = (uint64_t)((((__uint128_t)bytes * 10) + ((__uint128_t)1 << (shift - 1))) >> shift);
        if (tenths < 10240 || !letters[unit + 1])
            break;
    }
    if (tenths % 10)
        snprintf(
            out, cap, "%llu.%u%c", (unsigned long long)(tenths / 10), (unsigned)(tenths % 10), letters[unit]);
    else
        snprintf(out, cap, "%llu%c", (unsigned long long)(tenths / 10), letters[unit]);
    return out;
}

enum dctf_err dctf_duration_parse(const char *text, uint64_t unit_ms, uint64_t *out_ms)
{
    static const struct {
        const char *name;
        uint64_t ms;
    } units[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}, {"d", 86400000}};
    uint64_t value = 0;

    *out_ms = 0;
    if (!strcmp(text, "inf")) {
        *out_ms = UINT64_MAX;
        return DCTF_OK;
    }
    if (!isdigit((unsigned char)*text))
        return DCTF_ERR_OPTION_VALUE;
    for (; isdigit((unsigned char)*text); text++) {
        if (__builtin_mul_overflow(value, 10u, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*text - '0'), &value))
            return DCTF_ERR_OPTION_VALUE;
    }
    if (*text) {
        size_t i = 0;

        while (i < sizeof(units) / sizeof(units[0]) && strcmp(text, units[i].name) != 0)
            i++;
        if (i == sizeof(units) / sizeof(units[0]))
            return DCTF_ERR_OPTION_VALUE;
        unit_ms = units[i].ms;
    }
    if (__builtin_mul_overflow(value, unit_ms, &value) || value == UINT64_MAX)
        return DCTF_ERR_OPTION_VALUE;
    *out_ms = value;
    return DCTF_OK;
}
