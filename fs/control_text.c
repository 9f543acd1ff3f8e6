/* SPDX-License-Identifier: Apache-2.0
 *
 * Paths and names in control requests, which may be any bytes (fuzzed).
 */
#include "fs/control_text.h"

#include "base/version.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

static int hex_digit(char c)
{
    return isdigit((unsigned char)c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

enum dctf_err dctf_control_text(const json_t *request, const char *field, char *out)
{
    char hex_field[32];
    const char *text = json_string_value(json_object_get(request, field));
    const char *hex;
    size_t len;

    snprintf(hex_field, sizeof(hex_field), "%s_hex", field);
    hex = json_string_value(json_object_get(request, hex_field));
    *out = '\0';
    if (hex) {
        len = strlen(hex) / 2;
        if (strlen(hex) % 2)
            return DCTF_ERR_REQUEST_BAD;
        if (len > DCTF_KEY_MAX)
            return DCTF_ERR_NAME_TOO_LONG;
        for (size_t i = 0; i < len; i++) {
            int high = hex_digit(hex[2 * i]), low = hex_digit(hex[2 * i + 1]);

            if (high < 0 || low < 0 || high + low == 0)
                return DCTF_ERR_REQUEST_BAD;
            out[i] = (char)(high * 16 + low);
        }
        out[len] = '\0';
        return DCTF_OK;
    }
    if (!text)
        return DCTF_OK;
    while (*text == '/')
        text++;
    len = strlen(text);
    while (len && text[len - 1] == '/')
        len--;
    if (len > DCTF_KEY_MAX)
        return DCTF_ERR_NAME_TOO_LONG;
    memcpy(out, text, len);
    out[len] = '\0';
    return DCTF_OK;
}
