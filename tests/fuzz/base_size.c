/* SPDX-License-Identifier: Apache-2.0
 *
 * Sizes, durations and quoting on any text. The first byte is the room for quoting.
 */
#include "base/str.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok)
{
    if (!ok)
        abort();
}

static void check_size(const char *text)
{
    char formatted[16];
    char plain[32];
    uint64_t bytes;
    uint64_t again;

    if (dctf_size_parse(text, &bytes)) {
        require(bytes == 0);
        return;
    }
    snprintf(plain, sizeof(plain), "%" PRIu64, bytes);
    require(!dctf_size_parse(plain, &again) && again == bytes);
    dctf_size_format(bytes, formatted, sizeof(formatted));
    if (!dctf_size_parse(formatted, &again)) { /* within a twentieth; only "16E" is too much */
        uint64_t off = again > bytes ? again - bytes : bytes - again;

        require(off <= bytes / 20);
    } else {
        require(bytes >= 15ull << 60);
    }
}

static void check_duration(const char *text)
{
    char plain[32];
    uint64_t ms;
    uint64_t again;

    if (dctf_duration_parse(text, 1, &ms)) {
        require(ms == 0);
        return;
    }
    if (ms == UINT64_MAX) {
        require(!strcmp(text, "inf"));
        return;
    }
    snprintf(plain, sizeof(plain), "%" PRIu64 "ms", ms);
    require(!dctf_duration_parse(plain, 7, &again) && again == ms);
}

static void check_quote(const char *text, size_t cap)
{
    char *out = malloc(cap + 1);

    require(out != NULL);
    out[cap] = '#';
    require(dctf_str_quote(text, out, cap) == out);
    require(out[cap] == '#');
    require(!cap || memchr(out, '\0', cap));
    for (const char *at = out; cap && *at; at++)
        require((*at >= ' ' && *at != 0x7f) || strchr("\xe2\x80\xa6", *at)); /* … */
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text;

    if (!size)
        return 0;
    text = malloc(size);
    require(text != NULL);
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    check_size(text);
    check_duration(text);
    check_quote(text, data[0]);
    free(text);
    return 0;
}
