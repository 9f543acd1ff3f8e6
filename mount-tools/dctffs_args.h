/* SPDX-License-Identifier: Apache-2.0
 *
 * The command line of dctffs, and of mount.dctffs as mount(8) calls it.
 *
 * Threads:   one thread, before any other exists.
 * Ownership: an embedded object; dctffs_args_fini() frees what it owns.
 */
#ifndef DCTFFS_ARGS_H
#define DCTFFS_ARGS_H

#include "base/config.h"
#include "base/err.h"

#include <stdbool.h>

struct dctffs_args {
    const char *program; /* "dctffs" or "mount.dctffs"; static */
    bool is_helper;      /* called by mount(8): other options, other exit statuses */
    bool foreground;
    bool debug;
    bool fake;   /* helper: everything but the mount */
    bool sloppy; /* helper: ignore unknown -o options */
    bool help;
    bool version;
    const char *config_file; /* NULL: the default, which may be missing; borrowed from argv */
    char *options;           /* all -o values joined; NULL without any; owned */
    const char *source;      /* borrowed from argv; NULL with help or version */
    const char *mountpoint;
};

/* DCTF_ERR_USAGE with a reason in `detail` (≥ 256 bytes). */
DCTF_MUST_CHECK
enum dctf_err dctffs_args_parse(int argc, char **argv, struct dctffs_args *out, char *detail);
void dctffs_args_fini(struct dctffs_args *args);

/* File, environment and -o into `config` (initialised), in this order; the source as a
 * URL into config->source; relative paths made absolute. */
DCTF_MUST_CHECK
enum dctf_err dctffs_args_load(
    const struct dctffs_args *args, struct dctf_config *config, struct dctf_config_error *error);

/* Usage and the table of options to stdout. */
void dctffs_args_help(const struct dctffs_args *args);

#endif
