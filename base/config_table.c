/* SPDX-License-Identifier: Apache-2.0 */
#include "base/config_table.h"

#include "base/str.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const struct dctf_option dctf_options[DCTF_OPTION_COUNT] = {
#define O(type, field, name, def, group, help)                                                               \
    {DCTF_OPTION_TYPE_##type, name, def, #group, help, offsetof(struct dctf_config, field)},
#include "base/option.def"
#undef O
};

const struct dctf_option *dctf_option_find(const char *name)
{
    for (size_t i = 0; i < DCTF_OPTION_COUNT; i++) {
        if (!strcmp(dctf_options[i].name, name))
            return &dctf_options[i];
    }
    return NULL;
}

#define GUESS_MAX 40

static unsigned min_of(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* Edits (insert, delete, replace, swap of neighbours) that turn `a` into `b`;
 * both at most GUESS_MAX bytes. */
static unsigned edit_distance(const char *a, size_t a_len, const char *b, size_t b_len)
{
    unsigned rows[3][GUESS_MAX + 1];

    for (unsigned j = 0; j <= b_len; j++)
        rows[0][j] = j;
    for (unsigned i = 1; i <= a_len; i++) {
        unsigned *row = rows[i % 3];
        unsigned *above = rows[(i + 2) % 3];
        unsigned *above2 = rows[(i + 1) % 3];

        row[0] = i;
        for (unsigned j = 1; j <= b_len; j++) {
            row[j] = min_of(min_of(row[j - 1], above[j]) + 1, above[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = min_of(row[j], above2[j - 2] + 1);
        }
    }
    return rows[a_len % 3][b_len];
}

const struct dctf_option *dctf_option_guess(const char *name)
{
    const struct dctf_option *best = NULL;
    size_t len = strlen(name);
    unsigned best_edits;

    if (len > GUESS_MAX)
        return NULL;
    best_edits = (unsigned)len / 3 + 1; /* this many are too many */
    for (size_t i = 0; i < DCTF_OPTION_COUNT; i++) {
        size_t option_len = strlen(dctf_options[i].name);
        unsigned edits;

        if (option_len > GUESS_MAX)
            continue;
        edits = edit_distance(name, len, dctf_options[i].name, option_len);
        if (edits < best_edits) {
            best_edits = edits;
            best = &dctf_options[i];
        }
    }
    return best;
}

bool dctf_option_is_text(const struct dctf_option *option)
{
    return option->type == DCTF_OPTION_TYPE_STR || option->type == DCTF_OPTION_TYPE_SECRET;
}

bool dctf_option_has_auto(const struct dctf_option *option)
{
    return option->type == DCTF_OPTION_TYPE_SIZE && !strcmp(option->def, "auto");
}

void dctf_config_complain(struct dctf_config_error *error, const char *where, const char *format, ...)
{
    va_list args;
    int n;

    if (!error)
        return;
    n = snprintf(error->text, sizeof(error->text), "%.255s: ", where);
    va_start(args, format);
    vsnprintf(error->text + n, sizeof(error->text) - (size_t)n, format, args);
    va_end(args);
}

enum dctf_err dctf_config_complain_unknown(
    struct dctf_config_error *error, const char *where, const char *name)
{
    const struct dctf_option *guess = dctf_option_guess(name);
    char quoted[80];

    dctf_str_quote(name, quoted, sizeof(quoted));
    if (guess)
        dctf_config_complain(error, where, "unknown option %s (did you mean %s?)", quoted, guess->name);
    else
        dctf_config_complain(error, where, "unknown option %s", quoted);
    return DCTF_ERR_OPTION_UNKNOWN;
}
