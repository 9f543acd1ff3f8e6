/* SPDX-License-Identifier: Apache-2.0
 *
 * Configuration: built-in defaults, then the [global] section of the file, then
 * its [dataset NAME] section, then DCTF_<NAME> environment variables, then
 * `-o key=value,…`. Later wins.
 *
 * Threads:   caller locks; read-only once loaded.
 * Ownership: dctf_config_init() gives an embedded object to dctf_config_fini().
 */
#ifndef DCTF_BASE_CONFIG_H
#define DCTF_BASE_CONFIG_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DCTF_CONFIG_FILE "/etc/dctf/dctf.conf"

struct dctf_str;

/* C types of the option types. */
#define DCTF_OPTION_STR char *
#define DCTF_OPTION_SECRET char *
#define DCTF_OPTION_SIZE uint64_t
#define DCTF_OPTION_MS uint64_t
#define DCTF_OPTION_UINT uint64_t
#define DCTF_OPTION_BOOL bool
#define DCTF_OPTION_MODE uint64_t
#define DCTF_OPTION_WORD unsigned

/* NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): the table's order is the docs' */
struct dctf_config {
    char *source;  /* from the [dataset] section's `source`, or the command line; owned */
    char *dataset; /* name of the [dataset] section, NULL without one; owned */
#define O(type, field, name, def, group, help) DCTF_OPTION_##type field;
#include "base/option.def"
#undef O
    uint64_t set_mask[4]; /* bit i: option i (table order) was set by the user */
};

enum dctf_option_index {
#define O(type, field, name, def, group, help) DCTF_OPTION_INDEX_##field,
#include "base/option.def"
#undef O
    DCTF_OPTION_COUNT
};

/* What went wrong, for one clear line: "<where>: <what> (did you mean …?)". */
struct dctf_config_error {
    char text[512];
};

/* All defaults. */
DCTF_MUST_CHECK
enum dctf_err dctf_config_init(struct dctf_config *config);
void dctf_config_fini(struct dctf_config *config);

/* Read an INI file; one that holds a SECRET must be readable by its owner alone, else
 * DCTF_ERR_SECRET_EXPOSED. `source` picks the [dataset NAME] section: by its name, or
 * by a `source =` line equal to it; with a name, config->source becomes that
 * section's source. A missing file is DCTF_ERR_CONFIG_UNREADABLE when
 * `required`, else nothing. Unknown keys and bad values anywhere in the file
 * are errors that name file and line; then nothing was changed. config->source
 * and ->dataset stay as they are when no section is picked (`source` may be
 * NULL). A line holds at most 8 KiB; `#` and `;` begin a comment at the start of a
 * line and after a space; "…" or '…' keep spaces and comment signs. */
DCTF_MUST_CHECK
enum dctf_err dctf_config_load_file(struct dctf_config *config, const char *path, bool required,
    const char *source, struct dctf_config_error *error);
/* The same on text in memory (`name` is used in messages). */
DCTF_MUST_CHECK
enum dctf_err dctf_config_load_text(struct dctf_config *config, const char *name, const char *text,
    const char *source, struct dctf_config_error *error);
/* DCTF_CACHE_DIR and so on; `environ`-like, borrowed. Variables that start with
 * DCTF_ and name no option, or are empty, are ignored. */
DCTF_MUST_CHECK
enum dctf_err dctf_config_load_env(
    struct dctf_config *config, char *const *env, struct dctf_config_error *error);
/* `-o` text: comma separated, `\,` is a comma in a value. Mount options that are
 * not ours but customary (ro, rw, defaults, _netdev, nofail, auto, noauto, user,
 * nouser, users, owner, group, exec/noexec, suid/nosuid, dev/nodev, sync/async,
 * the atime family, x-*, comment=, fsname=, subtype=, default_permissions, nonempty)
 * are accepted and have no effect here; nosuid and nodev always hold. A SECRET is
 * refused (DCTF_ERR_SECRET_EXPOSED): everybody can read a command line. */
DCTF_MUST_CHECK
enum dctf_err dctf_config_load_options(
    struct dctf_config *config, const char *options, struct dctf_config_error *error);
/* One option, as text; a BOOL without a value (NULL) is on. `where` is used in
 * messages; `error` may be NULL here and everywhere. */
DCTF_MUST_CHECK
enum dctf_err dctf_config_set(struct dctf_config *config, const char *name, const char *value,
    const char *where, struct dctf_config_error *error);
/* Bounds that involve more than one option. */
DCTF_MUST_CHECK
enum dctf_err dctf_config_check(const struct dctf_config *config, struct dctf_config_error *error);

bool dctf_config_is_set(const struct dctf_config *config, enum dctf_option_index option);
/* "name = value" lines with every option's effective value; of a SECRET a comment that
 * tells whether it is set. */
void dctf_config_write(const struct dctf_config *config, struct dctf_str *out);
/* Append an option with its effective value to a list for dctf_config_load_options(). Not for a SECRET. */
void dctf_config_write_option(
    const struct dctf_config *config, enum dctf_option_index index, struct dctf_str *list);
/* The options as a table for --help, grouped. */
void dctf_config_help(struct dctf_str *out);

#endif
