/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemon as a function, so that a test program can add sources of its own.
 *
 * Threads:   called once, by the main thread, before any other thread exists.
 * Ownership: `schemes` is borrowed until it returns.
 */
#ifndef DCTFFS_MAIN_H
#define DCTFFS_MAIN_H

struct dctf_origin_scheme;

/* Returns the exit status: 0 after a mount came and went; 1 on failure; as mount.dctffs 1
 * for a bad command line and 32 for a failed mount, as mount(8) has it. Failures are
 * one line on stderr. In the background the caller's process ends within. */
int dctffs_main(int argc, char **argv, const struct dctf_origin_scheme *schemes);

#endif
