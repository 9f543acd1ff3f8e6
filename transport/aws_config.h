/* SPDX-License-Identifier: Apache-2.0
 *
 * Reader of AWS's shared files, ~/.aws/config and ~/.aws/credentials.
 *
 * The format ("Using shared config and credentials files", AWS SDKs and Tools Reference
 * Guide) is INI with differences: sections are `[profile NAME]` or `[default]` in config,
 * `[NAME]` in credentials, and others (`[sso-session …]`, `[services …]`) are skipped; `#`
 * or `;` begins a comment at the start of a line, and after a space behind a section or a
 * value; a line indented further than its section's first setting goes on with the value
 * before it, or, when that is empty, holds a setting of a sub-section, which is skipped.
 * Names of settings are read in any case. The last of two equal settings counts.
 *
 * Threads:   a file that was read is immutable: any thread.
 * Ownership: load() and parse() give a file to free(), which wipes it: it holds secrets.
 */
#ifndef DCTF_TRANSPORT_AWS_CONFIG_H
#define DCTF_TRANSPORT_AWS_CONFIG_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

#define DCTF_AWS_CONFIG_MAX_BYTES (1024u * 1024u)

struct dctf_aws_config;

enum dctf_aws_config_kind {
    DCTF_AWS_CONFIG_CONFIG,
    DCTF_AWS_CONFIG_CREDENTIALS,
};

/* One line for people: file, line, what is wrong; nothing of the file's text. */
struct dctf_aws_config_error {
    char text[320];
};

/* Read `path`. DCTF_ERR_NOT_FOUND when there is no such file; _CONFIG_UNREADABLE (no
 * permission, a directory, too large); _CONFIG_SYNTAX; _NO_MEMORY. */
DCTF_MUST_CHECK
enum dctf_err dctf_aws_config_load(const char *path, enum dctf_aws_config_kind kind,
    struct dctf_aws_config **out, struct dctf_aws_config_error *error);
/* The same of a text; `name` stands for the path in errors. */
DCTF_MUST_CHECK
enum dctf_err dctf_aws_config_parse(const char *name, const char *text, size_t len,
    enum dctf_aws_config_kind kind, struct dctf_aws_config **out, struct dctf_aws_config_error *error);
void dctf_aws_config_free(struct dctf_aws_config *config);

/* Whether there is such a profile. `config` may be NULL: an absent file. */
bool dctf_aws_config_has(const struct dctf_aws_config *config, const char *profile);
/* Value of a setting of a profile, NULL when absent; borrowed. `config` may be NULL. */
const char *dctf_aws_config_get(const struct dctf_aws_config *config, const char *profile, const char *name);
/* Group or others may read the file it was loaded from. */
bool dctf_aws_config_exposed(const struct dctf_aws_config *config);

#endif
