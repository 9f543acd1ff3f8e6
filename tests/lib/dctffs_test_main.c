/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemon as it is, with one more kind of source: script:// (lib/origin_script.h), which
 * stalls and fails as it is told. For the end-to-end tests.
 */
#include "lib/origin_script.h"
#include "mount-tools/dctffs_main.h"
#include "transport/origin.h"

#include <stddef.h>

int main(int argc, char **argv)
{
    static const struct dctf_origin_scheme schemes[] = {
        {"file", dctf_origin_file_open},
        {"s3", dctf_origin_s3_open},
        {"script", dctf_origin_script_open},
        {NULL, NULL},
    };

    return dctffs_main(argc, argv, schemes);
}
