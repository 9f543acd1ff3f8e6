/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as a shared file of either kind. A failure says one line with the file's name
 * and nothing of its text; what is found is text without line breaks of its own making.
 */
#include "transport/aws_config.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok)
{
    if (!ok)
        abort();
}

static void parse(const char *text, size_t len, enum dctf_aws_config_kind kind)
{
    static const char *const names[] = {"aws_access_key_id", "aws_session_token", "role_arn", "s3", "x"};
    static const char *const profiles[] = {"default", "a", "b c"};
    struct dctf_aws_config *config;
    struct dctf_aws_config_error error = {""};

    if (dctf_aws_config_parse("fuzz", text, len, kind, &config, &error)) {
        require(!config);
        require(!strncmp(error.text, "fuzz:", 5) && !strpbrk(error.text, "\r\n"));
        return;
    }
    for (size_t p = 0; p < sizeof(profiles) / sizeof(profiles[0]); p++) {
        for (size_t n = 0; n < sizeof(names) / sizeof(names[0]); n++) {
            const char *value = dctf_aws_config_get(config, profiles[p], names[n]);

            if (!value)
                continue;
            require(dctf_aws_config_has(config, profiles[p]));
            require(strlen(value) < len);
            require(!strchr(" \t\r\n", *value) || !*value);
        }
    }
    dctf_aws_config_free(config);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    parse((const char *)data, size, DCTF_AWS_CONFIG_CONFIG);
    parse((const char *)data, size, DCTF_AWS_CONFIG_CREDENTIALS);
    return 0;
}
