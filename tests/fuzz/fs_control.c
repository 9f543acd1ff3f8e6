/* SPDX-License-Identifier: Apache-2.0
 *
 * Control requests: one line of JSON whose paths may be text or hex digits.
 */
#include "base/version.h"
#include "fs/control_text.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *request = json_loadb((const char *)data, size, 0, NULL);
    char text[DCTF_KEY_MAX + 1];

    memset(text, 'x', sizeof(text));
    if (dctf_control_text(request, "path", text) == DCTF_OK) {
        size_t len = strlen(text);

        assert(len <= DCTF_KEY_MAX);
        assert(!json_object_get(request, "path") || json_object_get(request, "path_hex") ||
               (text[0] != '/' && (len == 0 || text[len - 1] != '/')));
    }
    json_decref(request);
    return 0;
}
