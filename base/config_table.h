/* SPDX-License-Identifier: Apache-2.0
 *
 * The option table as data, shared by the parts of the configuration.
 *
 * Threads:   any thread; constant.
 * Ownership: everything here is static.
 */
#ifndef DCTF_BASE_CONFIG_TABLE_H
#define DCTF_BASE_CONFIG_TABLE_H

#include "base/config.h"

enum dctf_option_type {
    DCTF_OPTION_TYPE_STR,
    DCTF_OPTION_TYPE_SIZE,
    DCTF_OPTION_TYPE_MS,
    DCTF_OPTION_TYPE_UINT,
    DCTF_OPTION_TYPE_BOOL,
    DCTF_OPTION_TYPE_MODE,
    DCTF_OPTION_TYPE_WORD,
    DCTF_OPTION_TYPE_SECRET, /* a STR that is never shown */
};

struct dctf_option {
    enum dctf_option_type type;
    const char *name;
    const char *def;   /* default as text; of a WORD all words, the default first */
    const char *group; /* "CACHE" */
    const char *help;
    size_t offset; /* of the field in struct dctf_config */
};

extern const struct dctf_option dctf_options[DCTF_OPTION_COUNT];

/* The option of that name, NULL when there is none. */
const struct dctf_option *dctf_option_find(const char *name);
/* The option whose name looks most like it, NULL when none comes close. */
const struct dctf_option *dctf_option_guess(const char *name);
/* Whether the field is a `char *`. */
bool dctf_option_is_text(const struct dctf_option *option);
/* Whether "auto" is a value of this option. */
bool dctf_option_has_auto(const struct dctf_option *option);

/* Say what went wrong: "<where>: <what>". `error` may be NULL. */
void dctf_config_complain(struct dctf_config_error *error, const char *where, const char *format, ...)
    DCTF_PRINTF(3, 4);
/* Complain about a name that is no option. */
enum dctf_err dctf_config_complain_unknown(
    struct dctf_config_error *error, const char *where, const char *name);

#endif
