/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/s3_text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char unreserved[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";

void *s3_realloc(void *old, size_t size)
{
    void *p = realloc(old, size ? size : 1);

    if (!p) {
        fputs("dctf-s3-server: out of memory\n", stderr);
        exit(1);
    }
    return p;
}

void *s3_alloc(size_t size)
{
    void *p = s3_realloc(NULL, size);

    memset(p, 0, size);
    return p;
}

char *s3_copy_n(const char *text, size_t len)
{
    char *copy = s3_alloc(len + 1);

    memcpy(copy, text, len);
    return copy;
}

char *s3_copy(const char *text)
{
    return s3_copy_n(text, strlen(text));
}

void s3_text_fini(struct s3_text *text)
{
    free(text->data);
    *text = (struct s3_text){0};
}

static void reserve(struct s3_text *text, size_t more)
{
    if (text->len + more < text->cap)
        return;
    size_t cap = text->cap ? text->cap : 256;

    while (cap <= text->len + more)
        cap *= 2;
    text->data = s3_realloc(text->data, cap);
    text->cap = cap;
}

void s3_text_add_n(struct s3_text *text, const void *data, size_t len)
{
    reserve(text, len);
    if (len)
        memcpy(text->data + text->len, data, len);
    text->len += len;
    text->data[text->len] = '\0';
}

void s3_text_add(struct s3_text *text, const char *string)
{
    s3_text_add_n(text, string, strlen(string));
}

void s3_text_printf(struct s3_text *text, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    int len = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (len <= 0)
        return;
    reserve(text, (size_t)len);
    va_start(args, format);
    vsnprintf(text->data + text->len, (size_t)len + 1, format, args);
    va_end(args);
    text->len += (size_t)len;
}

void s3_text_xml(struct s3_text *text, const char *string)
{
    for (const char *p = string; *p; p++) {
        switch (*p) {
        case '&':
            s3_text_add(text, "&amp;");
            break;
        case '<':
            s3_text_add(text, "&lt;");
            break;
        case '>':
            s3_text_add(text, "&gt;");
            break;
        case '"':
            s3_text_add(text, "&quot;");
            break;
        default:
            if ((unsigned char)*p < ' ')
                s3_text_printf(text, "&#x%x;", (unsigned)*p);
            else
                s3_text_add_n(text, p, 1);
        }
    }
}

void s3_text_element(struct s3_text *text, const char *name, const char *value)
{
    s3_text_printf(text, "<%s>", name);
    s3_text_xml(text, value);
    s3_text_printf(text, "</%s>", name);
}

void s3_text_uri(struct s3_text *text, const char *string, const char *keep)
{
    for (const char *p = string; *p; p++) {
        if (strchr(unreserved, *p) || strchr(keep, *p))
            s3_text_add_n(text, p, 1);
        else
            s3_text_printf(text, "%%%02X", (unsigned)(unsigned char)*p);
    }
}

void s3_text_hex(struct s3_text *text, const void *data, size_t len)
{
    static const char digits[] = "0123456789abcdef";
    const unsigned char *bytes = data;

    for (size_t i = 0; i < len; i++) {
        char pair[2] = {digits[bytes[i] >> 4], digits[bytes[i] & 15]};

        s3_text_add_n(text, pair, 2);
    }
}

static int digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

bool s3_uri_decode(char *string, bool plus)
{
    char *to = string;

    for (const char *from = string; *from; from++) {
        if (*from == '%') {
            int high = digit(from[1]), low = high < 0 ? -1 : digit(from[2]);

            if (low < 0 || high + low == 0)
                return false;
            *to++ = (char)(high * 16 + low);
            from += 2;
        } else {
            *to++ = plus && *from == '+' ? ' ' : *from;
        }
    }
    *to = '\0';
    return true;
}

bool s3_unhex(const char *hex, void *out, size_t size)
{
    unsigned char *bytes = out;

    if (strlen(hex) != 2 * size)
        return false;
    for (size_t i = 0; i < size; i++) {
        int high = digit(hex[2 * i]), low = digit(hex[2 * i + 1]);

        if (high < 0 || low < 0)
            return false;
        bytes[i] = (unsigned char)(high * 16 + low);
    }
    return true;
}

/* Length of the sequence at p, 0 when it is none: RFC 3629. */
static size_t utf8_length(const unsigned char *p)
{
    if (p[0] < 0x80)
        return 1;
    size_t len = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;

    if (p[0] < 0xc2 || p[0] > 0xf4)
        return 0;
    for (size_t i = 1; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    }
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) || (p[0] == 0xf0 && p[1] < 0x90) ||
        (p[0] == 0xf4 && p[1] > 0x8f))
        return 0;
    return len;
}

bool s3_is_utf8(const char *string)
{
    const unsigned char *p = (const unsigned char *)string;

    while (*p) {
        size_t len = utf8_length(p);

        if (!len)
            return false;
        p += len;
    }
    return true;
}

static void broken_down(int64_t ns, struct tm *tm)
{
    time_t seconds = (time_t)(ns / 1000000000 - (ns % 1000000000 < 0));

    gmtime_r(&seconds, tm);
}

void s3_time_http(int64_t ns, char *out)
{
    struct tm tm;

    broken_down(ns, &tm);
    strftime(out, 32, "%a, %d %b %Y %H:%M:%S GMT", &tm);
}

void s3_time_iso(int64_t ns, char *out)
{
    struct tm tm;

    broken_down(ns, &tm);
    strftime(out, 32, "%Y-%m-%dT%H:%M:%S.000Z", &tm);
}

void s3_time_z(int64_t ns, char *out)
{
    struct tm tm;

    broken_down(ns, &tm);
    strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &tm);
}
