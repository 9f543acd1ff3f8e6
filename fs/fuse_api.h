/* SPDX-License-Identifier: Apache-2.0
 *
 * libfuse, asked for at one API version everywhere. Only files of fs/ include it.
 *
 * Threads:   none; an include.
 * Ownership: none.
 */
#ifndef DCTF_FS_FUSE_API_H
#define DCTF_FS_FUSE_API_H

#ifdef FUSE_USE_VERSION
#error "fs/fuse_api.h alone chooses FUSE_USE_VERSION"
#endif
#define FUSE_USE_VERSION 312 /* the loop configuration of 3.12; all later libraries keep it */

#include <fuse3/fuse_lowlevel.h>

#endif
