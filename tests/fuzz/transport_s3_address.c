/* SPDX-License-Identifier: Apache-2.0
 *
 * Four lines: source, endpoint, region, key; the first byte picks the style. Whatever is
 * accepted makes a URL of one shape only.
 */
#include "transport/s3_address.h"

#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok)
{
    if (!ok)
        abort();
}

/* Ends the line at *text; the next one. */
static char *cut_line(char *text)
{
    char *end = strchrnul(text, '\n');

    if (!*end)
        return end;
    *end = '\0';
    return end + 1;
}

static void check_address(const struct dctf_s3_address *address, const char *key)
{
    struct dctf_str path;
    struct dctf_str url;

    require(!strcmp(address->scheme, "https") || !strcmp(address->scheme, "http"));
    require(*address->host && !strpbrk(address->host, "/?#@%\\ \t\r\n"));
    require(!address->is_aws || strstr(address->host, "s3."));
    require(*address->region && !strpbrk(address->region, "/?#@%. \r\n"));
    require(!*address->prefix || address->prefix[strlen(address->prefix) - 1] == '/');
    require(!*address->base_path || *address->base_path == '/');
    dctf_str_init(&path);
    dctf_str_init(&url);
    dctf_s3_address_path(address, key, &path);
    dctf_s3_address_url(address, dctf_str_c(&path), "", &url);
    require(*dctf_str_c(&path) == '/');
    for (const char *at = dctf_str_c(&url); *at; at++)
        require(*at > ' ' && *at < 0x7f && *at != '?' && *at != '#' && *at != '@');
    dctf_str_fini(&path);
    dctf_str_fini(&url);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const enum dctf_s3_style styles[] = {
        DCTF_S3_STYLE_AUTO, DCTF_S3_STYLE_PATH, DCTF_S3_STYLE_VIRTUAL};
    struct dctf_s3_address address;
    char detail[256];
    char *text;
    char *endpoint;
    char *region;
    char *key;

    if (!size)
        return 0;
    text = malloc(size);
    require(text != NULL);
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    endpoint = cut_line(text);
    region = cut_line(endpoint);
    key = cut_line(region);
    if (dctf_s3_address_init(&address, text, endpoint, region, styles[data[0] % 3], detail)) {
        require(!address.bucket && !address.host);
        require(*detail && strlen(detail) < sizeof(detail));
    } else {
        check_address(&address, key);
        dctf_s3_address_fini(&address);
    }
    free(text);
    return 0;
}
