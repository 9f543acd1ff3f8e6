/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as the answer of a credential service and of a credential_process. A set is
 * whole and fit for a header; a failure says one line.
 */
#include "transport/s3_credentials_internal.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok)
{
    if (!ok)
        abort();
}

static void require_token(const char *text)
{
    for (; *text; text++)
        require(*text > ' ' && *text <= '~');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const enum dctf_cred_json kinds[] = {DCTF_CRED_JSON_PROCESS, DCTF_CRED_JSON_SERVICE};

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        const struct dctf_s3_credentials_config config = {0};
        struct dctf_cred_setup setup;
        struct dctf_cred_walk walk;
        struct dctf_s3_keys *keys;

        require(!dctf_cred_setup_init(&setup, &config));
        dctf_cred_walk_init(&walk, &setup);
        if (dctf_cred_json_parse(&walk, (const char *)data, size, kinds[i], "fuzz", &keys)) {
            require(!keys);
            require(*walk.why && !strpbrk(walk.why, "\r\n\x1b"));
        } else {
            require(*keys->access_key_id && *keys->secret_access_key);
            require_token(keys->access_key_id);
            require_token(keys->secret_access_key);
            require_token(keys->session_token);
            dctf_s3_keys_unref(keys);
        }
        dctf_cred_walk_fini(&walk);
        dctf_cred_setup_fini(&setup);
    }
    return 0;
}
