/* SPDX-License-Identifier: Apache-2.0
 *
 * What the subcommands of `dctf` share: finding the mount an argument means, reaching
 * its daemon, options, errors and tables.
 *
 * Nothing here touches a mounted dctffs: paths are resolved against /proc/self/mountinfo,
 * and lexically from the mount point on.
 *
 * Threads:   one thread, but dctf_tool_show_* and dctf_tool_report() may be called by any.
 * Ownership: struct dctf_target is embedded; dctf_target_fini() frees it.
 */
#ifndef DCTF_TOOLS_DCTF_TOOL_H
#define DCTF_TOOLS_DCTF_TOOL_H

#include "base/err.h"
#include "fs/mountpoint.h"
#include "mount-tools/client.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dctf_tool_exit {
    DCTF_TOOL_DONE = 0,
    DCTF_TOOL_FAILED = 1,
    DCTF_TOOL_USAGE = 2,
};

#define DCTF_TOOL_TIMEOUT_MS 5000u

/* Options that every subcommand takes. */
struct dctf_tool_options {
    bool json;
    bool timeout_set;
    uint64_t timeout_ms;
};

/* One subcommand: argv[0] is its name. */
int dctf_cmd_status(int argc, char **argv);
int dctf_cmd_heat(int argc, char **argv);
int dctf_cmd_peers(int argc, char **argv);
int dctf_cmd_warm(int argc, char **argv);
int dctf_cmd_evict(int argc, char **argv);
int dctf_cmd_sync(int argc, char **argv);
int dctf_cmd_doctor(int argc, char **argv);
int dctf_cmd_version(int argc, char **argv);

/* An option of one subcommand, beside the shared --json, --timeout and --help. */
struct dctf_tool_flag {
    const char *name; /* without the dashes; NULL ends the list */
    char letter;      /* 0: none */
    bool *flag;       /* set to true; or */
    uint64_t *number; /* takes a number between min and max; or */
    uint64_t min, max;
    const char **text; /* takes a text, borrowed from argv */
};

/* Parse argv; operands start at *first. DCTF_TOOL_DONE with *first == 0 means that
 * help was printed and there is nothing to do; else DCTF_TOOL_USAGE after a message. */
DCTF_MUST_CHECK
int dctf_tool_parse(int argc, char **argv, const char *help, const struct dctf_tool_flag *flags,
    struct dctf_tool_options *options, int *first);
/* "dctf: error 4005 USAGE: …"; returns DCTF_TOOL_USAGE. */
int dctf_tool_usage(const char *command, const char *format, ...) DCTF_PRINTF(2, 3);

struct dctf_target {
    struct dctf_mount_info mount;
    char *path; /* inside the mount, "" for its root, no slashes at the ends */
};

/* The mount that `arg` lies on; NULL: the only dctffs mount there is. */
DCTF_MUST_CHECK
enum dctf_err dctf_target_find(const char *arg, struct dctf_target *out, struct dctf_client_error *error);
void dctf_target_fini(struct dctf_target *target);

/* Mount points of every dctffs, an array ended by NULL; free with dctf_tool_mounts_free(). */
DCTF_MUST_CHECK
enum dctf_err dctf_tool_mounts(char ***out, size_t *count);
void dctf_tool_mounts_free(char **mounts);

/* Connect to the daemon of a mount point. */
DCTF_MUST_CHECK
enum dctf_err dctf_tool_connect(const char *mountpoint, uint64_t timeout_ms, int stop_fd,
    struct dctf_client **out, struct dctf_client_error *error);
/* Connect, ask one thing, disconnect. `request` is taken, also on failure. */
DCTF_MUST_CHECK
enum dctf_err dctf_tool_ask(const char *mountpoint, uint64_t timeout_ms, json_t *request, json_t **reply,
    struct dctf_client_error *error);

/* With `cluster` the request is for all members; the daemon gets somewhat less time than the tool has.
 * Returns it. */
json_t *dctf_tool_scoped(json_t *request, bool cluster, const struct dctf_tool_options *options);

/* Print a failure: a line on stderr, and with `json` an object on stdout. `subject`
 * (may be NULL) is the path or mount it is about. Returns the exit code. */
int dctf_tool_report(bool json, const struct dctf_client_error *error, const char *subject);
/* Print one object on a line of stdout. `object` is taken. */
int dctf_tool_print_json(json_t *object);

/* Bytes for a terminal: as they are when printable UTF-8, else quoted. Returns text or buf. */
const char *dctf_tool_show_text(const char *text, char *buf, size_t cap);
/* "3d 4h", "2m 5s", "450ms"; buf ≥ 24 bytes. */
const char *dctf_tool_show_duration(uint64_t ms, char *buf, size_t cap);
const char *dctf_tool_show_bytes(uint64_t bytes, char *buf, size_t cap);

#endif
