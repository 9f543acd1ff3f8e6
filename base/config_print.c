/* SPDX-License-Identifier: Apache-2.0
 *
 * The configuration as text. What dctf_config_write() gives can be read again as
 * a [global] section and means the same.
 */
#include "base/config.h"

#include "base/config_table.h"
#include "base/str.h"

#include <assert.h>
#include <ctype.h>
#include <inttypes.h>
#include <string.h>

#define HELP_COLUMN 34
#define HELP_WIDTH 100

/* The largest unit that leaves no rest, so that nothing is rounded. */
static void write_size(struct dctf_str *out, uint64_t bytes)
{
    static const char letters[] = {'\0', 'K', 'M', 'G', 'T', 'P', 'E'};
    size_t unit = 0;

    while (bytes && bytes % 1024 == 0 && unit + 1 < sizeof(letters)) {
        bytes /= 1024;
        unit++;
    }
    dctf_str_printf(out, "%" PRIu64, bytes);
    dctf_str_add(out, &letters[unit], unit ? 1 : 0);
}

static void write_ms(struct dctf_str *out, uint64_t ms)
{
    static const struct {
        uint64_t ms;
        const char *name;
    } units[] = {{86400000, "d"}, {3600000, "h"}, {60000, "m"}, {1000, "s"}, {1, "ms"}};
    size_t i = 0;

    if (ms == UINT64_MAX) {
        dctf_str_puts(out, "inf");
        return;
    }
    if (!ms)
        i = 3;
    while (ms % units[i].ms)
        i++;
    dctf_str_printf(out, "%" PRIu64 "%s", ms / units[i].ms, units[i].name);
}

static void write_word(struct dctf_str *out, const char *words, unsigned index)
{
    for (; index; index--)
        words += strcspn(words, "|") + 1;
    dctf_str_add(out, words, strcspn(words, "|"));
}

/* Quoted where the bare text would be read as something else. */
static void write_text(struct dctf_str *out, const char *text)
{
    size_t len = strlen(text);
    char mark = strchr(text, '"') ? '\'' : '"';
    bool quote = len && (strchr("\"'", text[0]) || strpbrk(text, "#;") || isspace((unsigned char)text[0]) ||
                            isspace((unsigned char)text[len - 1]));

    if (quote)
        dctf_str_printf(out, "%c%s%c", mark, text, mark);
    else
        dctf_str_puts(out, text);
}

static bool is_auto(const struct dctf_option *option, uint64_t bytes)
{
    size_t index = (size_t)(option - dctf_options);

    return dctf_option_has_auto(option) &&
           bytes == (index == DCTF_OPTION_INDEX_cache_reserve ? UINT64_MAX : 0);
}

static void write_value(
    struct dctf_str *out, const struct dctf_config *config, const struct dctf_option *option)
{
    const void *field = (const char *)config + option->offset;

    switch (option->type) {
    case DCTF_OPTION_TYPE_STR:
        write_text(out, *(char *const *)field);
        break;
    case DCTF_OPTION_TYPE_SECRET: /* told by dctf_config_write() */
        break;
    case DCTF_OPTION_TYPE_SIZE:
        if (is_auto(option, *(const uint64_t *)field))
            dctf_str_puts(out, "auto");
        else
            write_size(out, *(const uint64_t *)field);
        break;
    case DCTF_OPTION_TYPE_MS:
        write_ms(out, *(const uint64_t *)field);
        break;
    case DCTF_OPTION_TYPE_UINT:
        dctf_str_printf(out, "%" PRIu64, *(const uint64_t *)field);
        break;
    case DCTF_OPTION_TYPE_BOOL:
        dctf_str_puts(out, *(const bool *)field ? "on" : "off");
        break;
    case DCTF_OPTION_TYPE_MODE:
        dctf_str_printf(out, "0%" PRIo64, *(const uint64_t *)field);
        break;
    case DCTF_OPTION_TYPE_WORD:
        write_word(out, option->def, *(const unsigned *)field);
        break;
    }
}

void dctf_config_write(const struct dctf_config *config, struct dctf_str *out)
{
    for (size_t i = 0; i < DCTF_OPTION_COUNT; i++) {
        if (dctf_options[i].type == DCTF_OPTION_TYPE_SECRET) {
            const char *text = *(char *const *)((const char *)config + dctf_options[i].offset);

            dctf_str_printf(out, "# %s is %s\n", dctf_options[i].name, *text ? "set" : "not set");
            continue;
        }
        dctf_str_printf(out, "%s = ", dctf_options[i].name);
        write_value(out, config, &dctf_options[i]);
        dctf_str_puts(out, "\n");
    }
}

void dctf_config_write_option(
    const struct dctf_config *config, enum dctf_option_index index, struct dctf_str *list)
{
    const struct dctf_option *option = &dctf_options[index];
    struct dctf_str value;

    assert(option->type != DCTF_OPTION_TYPE_SECRET);
    dctf_str_init(&value);
    if (option->type == DCTF_OPTION_TYPE_STR) /* as it is: quotes are for files */
        dctf_str_puts(&value, *(char *const *)((const char *)config + option->offset));
    else
        write_value(&value, config, option);
    dctf_str_printf(list, "%s%s=", list->len ? "," : "", option->name);
    for (const char *c = dctf_str_c(&value); *c; c++) {
        if (*c == ',' || *c == '\\')
            dctf_str_puts(list, "\\");
        dctf_str_add(list, c, 1);
    }
    if (value.err)
        list->err = value.err;
    dctf_str_fini(&value);
}

static const char *placeholder(const struct dctf_option *option)
{
    switch (option->type) {
    case DCTF_OPTION_TYPE_STR:
    case DCTF_OPTION_TYPE_SECRET:
        return "TEXT";
    case DCTF_OPTION_TYPE_SIZE:
        return "SIZE";
    case DCTF_OPTION_TYPE_MS:
        return "TIME";
    case DCTF_OPTION_TYPE_UINT:
        return "N";
    case DCTF_OPTION_TYPE_BOOL:
        return "on|off";
    case DCTF_OPTION_TYPE_MODE:
        return "OCTAL";
    case DCTF_OPTION_TYPE_WORD:
        return option->def;
    }
    return "";
}

/* Append `text` word by word, in a column of its own. */
static void write_wrapped(struct dctf_str *out, const char *text)
{
    size_t column = HELP_COLUMN;

    while (*text) {
        size_t len = strcspn(text, " ");

        if (column > HELP_COLUMN && column + 1 + len > HELP_WIDTH) {
            dctf_str_printf(out, "\n%*s", HELP_COLUMN, "");
            column = HELP_COLUMN;
        } else if (column > HELP_COLUMN) {
            dctf_str_puts(out, " ");
            column++;
        }
        dctf_str_add(out, text, len);
        column += len;
        text += len;
        text += strspn(text, " ");
    }
    dctf_str_puts(out, "\n");
}

static void write_option_help(struct dctf_str *out, const struct dctf_option *option)
{
    struct dctf_str text;
    size_t len = strlen(option->name) + strlen(placeholder(option)) + 3;

    dctf_str_printf(out, "  %s=%s", option->name, placeholder(option));
    if (len + 2 > HELP_COLUMN)
        dctf_str_printf(out, "\n%*s", HELP_COLUMN, "");
    else
        dctf_str_printf(out, "%*s", (int)(HELP_COLUMN - len), "");
    dctf_str_init(&text);
    dctf_str_puts(&text, option->help);
    if (*option->def && !strstr(option->help, "default ")) { /* else the help has said it */
        dctf_str_puts(&text, " (default ");
        dctf_str_add(&text, option->def, strcspn(option->def, "|"));
        dctf_str_puts(&text, ")");
    }
    write_wrapped(out, dctf_str_c(&text));
    if (text.err && !out->err)
        out->err = text.err;
    dctf_str_fini(&text);
}

void dctf_config_help(struct dctf_str *out)
{
    const char *group = "";

    for (size_t i = 0; i < DCTF_OPTION_COUNT; i++) {
        if (strcmp(group, dctf_options[i].group) != 0) {
            dctf_str_puts(out, *group ? "\n" : "");
            group = dctf_options[i].group;
            dctf_str_add(out, group, 1);
            for (const char *letter = group + 1; *letter; letter++)
                dctf_str_add(out, (char[]){(char)tolower((unsigned char)*letter)}, 1);
            dctf_str_puts(out, ":\n");
        }
        write_option_help(out, &dctf_options[i]);
    }
}
