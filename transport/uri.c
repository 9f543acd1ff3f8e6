/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/uri.h"

#include "base/str.h"

static bool is_plain(unsigned char byte, bool keep_slash)
{
    return (byte >= 'A' && byte <= 'Z') || (byte >= 'a' && byte <= 'z') || (byte >= '0' && byte <= '9') ||
           byte == '-' || byte == '.' || byte == '_' || byte == '~' || (keep_slash && byte == '/');
}

int dctf_hex_value(char digit)
{
    if (digit >= '0' && digit <= '9')
        return digit - '0';
    if (digit >= 'a' && digit <= 'f')
        return digit - 'a' + 10;
    if (digit >= 'A' && digit <= 'F')
        return digit - 'A' + 10;
    return -1;
}

void dctf_uri_encode(struct dctf_str *out, const char *text, size_t len, bool keep_slash)
{
    static const char digits[] = "0123456789ABCDEF";
    size_t plain = 0; /* where the run of bytes that stay began */

    for (size_t i = 0; i < len; i++) {
        unsigned char byte = (unsigned char)text[i];

        if (is_plain(byte, keep_slash))
            continue;
        dctf_str_add(out, text + plain, i - plain);
        dctf_str_add(out, (char[]){'%', digits[byte >> 4], digits[byte & 15]}, 3);
        plain = i + 1;
    }
    dctf_str_add(out, text + plain, len - plain);
}

/* The byte that "%XX" at `text` stands for, if encode() writes it so; 0 otherwise. */
static unsigned char decode_one(const char *text, size_t len, bool keep_slash)
{
    unsigned char byte;

    if (len < 3 || dctf_hex_value(text[1]) < 0 || dctf_hex_value(text[2]) < 0)
        return 0;
    if (text[1] >= 'a' || text[2] >= 'a')
        return 0;
    byte = (unsigned char)(dctf_hex_value(text[1]) << 4 | dctf_hex_value(text[2]));
    return is_plain(byte, keep_slash) ? 0 : byte;
}

bool dctf_uri_decode(const char *text, size_t len, bool keep_slash, char *out, size_t cap)
{
    size_t out_len = 0;

    for (size_t i = 0; i < len; i++) {
        unsigned char byte = (unsigned char)text[i];

        if (byte == '%') {
            byte = decode_one(text + i, len - i, keep_slash);
            i += 2;
        } else if (!is_plain(byte, keep_slash)) {
            byte = 0;
        }
        if (!byte || out_len + 1 >= cap)
            return false;
        out[out_len++] = (char)byte;
    }
    if (!cap)
        return false;
    out[out_len] = '\0';
    return true;
}
