/* SPDX-License-Identifier: Apache-2.0
 *
 * Lines of /proc/self/mountinfo: whoever mounts chooses paths and sources in them.
 */
#include "fs/mountpoint.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dctf_mount_info info;
    char *line = malloc(size + 1);

    if (!line)
        return 0;
    memcpy(line, data, size);
    line[size] = '\0';
    if (dctf_mount_parse_line(line, &info) == DCTF_OK) {
        assert(info.path[0] == '/');
        assert(strlen(info.path) <= size && strlen(info.fstype) <= size);
        assert(info.source && info.options);
    } else {
        assert(!info.path && !info.fstype && !info.source && !info.options);
    }
    dctf_mount_info_fini(&info);
    free(line);
    return 0;
}
