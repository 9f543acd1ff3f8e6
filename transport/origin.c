/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/origin.h"

#include <string.h>

enum dctf_err dctf_origin_open(const struct dctf_origin_scheme *schemes,
    const struct dctf_origin_config *config, struct dctf_origin **out)
{
    const char *end = strstr(config->source, "://");

    *out = NULL;
    if (!end)
        return DCTF_ERR_SOURCE_UNSUPPORTED;
    for (; schemes->scheme; schemes++) {
        size_t len = strlen(schemes->scheme);

        if (len == (size_t)(end - config->source) && memcmp(schemes->scheme, config->source, len) == 0)
            return schemes->open(config, out);
    }
    return DCTF_ERR_SOURCE_UNSUPPORTED;
}
