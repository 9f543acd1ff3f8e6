/* SPDX-License-Identifier: Apache-2.0 */
#include "mount-tools/dctffs_main.h"
#include "transport/origin.h"

#include <stddef.h>

int main(int argc, char **argv)
{
    static const struct dctf_origin_scheme schemes[] = {
        {"file", dctf_origin_file_open},
        {"s3", dctf_origin_s3_open},
        {NULL, NULL},
    };

    return dctffs_main(argc, argv, schemes);
}
