/* SPDX-License-Identifier: Apache-2.0
 *
 * The INI file. inih splits the `key = value` lines; sections, comments and long values are
 * ours, because inih cuts long section names, does not tell line numbers, and is built for short lines.
 * What may hold a secret is wiped before it is freed.
 * A first pass checks every line of every section, a second one applies [global]
 * and the section of the dataset, so that a bad file changes nothing.
 */
#include "base/config.h"

#include "base/config_table.h"
#include "base/str.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_MAX_BYTES (1024u * 1024u)
#define SECTIONS_MAX 1024u
#define DATASET_NAME_MAX 64u
#define SOURCE_KEY "source"
#define LINE_MAX_BYTES 8192u
/* inih ends a value at " ;" even within quotes, so it gets to see this instead. */
#define SEMICOLON '\x01'
/* Distributions build inih for lines of 199 bytes: it gets to see this for a longer value. */
#define LONG_VALUE "\x02"

struct section {
    char *dataset; /* NULL for [global] */
    char *source;  /* of a dataset; NULL until its line was read */
    unsigned line;
};

struct entry {
    size_t section;
    char *key;
    char *value;
};

struct parser {
    const char *name; /* of the file; borrowed */
    const char *next; /* the rest of the text; borrowed */
    unsigned line;
    char *long_value; /* of the line that inih has now; NULL: it has all of it */
    struct section *sections;
    size_t section_count;
    struct entry *entries;
    size_t entry_count;
    bool others_read;           /* the file's mode lets group or others read it */
    struct dctf_config scratch; /* takes every value of the section now read */
    enum dctf_err err;
    unsigned err_line;
    struct dctf_config_error *error;
};

static void where_of(const struct parser *parser, unsigned line, char *out, size_t cap)
{
    snprintf(out, cap, "%.240s:%u", parser->name, line);
}

#define fail(parser, code, ...) fail_at((parser), (parser)->line, (code), __VA_ARGS__)

/* Keep the first error; returns 0 for the handler of inih. */
DCTF_PRINTF(4, 5)
static int fail_at(struct parser *parser, unsigned line, enum dctf_err code, const char *format, ...)
{
    char where[256];
    char text[384];
    va_list args;

    if (parser->err)
        return 0;
    where_of(parser, line, where, sizeof(where));
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    dctf_config_complain(parser->error, where, "%s", text);
    parser->err = code;
    parser->err_line = line;
    return 0;
}

static int fail_memory(struct parser *parser)
{
    return fail(parser, DCTF_ERR_NO_MEMORY, "out of memory");
}

/* `array` with room for one more than `count`, growing at powers of two; NULL
 * when there is no memory, and then `array` is as it was. */
static void *grown(void *array, size_t count, size_t item_bytes)
{
    if (count & (count - 1) || count == 1)
        return array;
    return realloc(array, (count ? 2 * count : 2) * item_bytes);
}

static struct section *current_section(struct parser *parser)
{
    return parser->section_count ? &parser->sections[parser->section_count - 1] : NULL;
}

/* The section that was just read has all it needs. */
static void section_end(struct parser *parser)
{
    const struct section *section = current_section(parser);

    if (section && section->dataset && !section->source)
        fail_at(parser, section->line, DCTF_ERR_CONFIG_SYNTAX, "[dataset %s] has no `source =` line",
            section->dataset);
}

static bool is_same(const char *a, const char *b)
{
    return a && b ? !strcmp(a, b) : a == b;
}

static void section_begin(struct parser *parser, const char *dataset)
{
    struct section section = {.line = parser->line};
    struct section *sections;

    section_end(parser);
    for (size_t i = 0; i < parser->section_count; i++) {
        if (is_same(parser->sections[i].dataset, dataset)) {
            fail(parser, DCTF_ERR_CONFIG_SYNTAX, "this section was already on line %u",
                parser->sections[i].line);
            return;
        }
    }
    if (parser->section_count == SECTIONS_MAX) {
        fail(parser, DCTF_ERR_CONFIG_SYNTAX, "more than %u sections", SECTIONS_MAX);
        return;
    }
    sections = grown(parser->sections, parser->section_count, sizeof(section));
    if (sections)
        parser->sections = sections;
    section.dataset = dataset ? strdup(dataset) : NULL;
    if (!sections || (dataset && !section.dataset)) {
        free(section.dataset);
        fail_memory(parser);
        return;
    }
    parser->sections[parser->section_count++] = section;
    memset(parser->scratch.set_mask, 0, sizeof(parser->scratch.set_mask));
}

/* Letters, digits and ._- : the name becomes part of a path. */
static bool is_dataset_name(const char *name)
{
    size_t len = strlen(name);

    if (!len || len > DATASET_NAME_MAX || *name == '.' || *name == '-')
        return false;
    for (; *name; name++) {
        if (!isalnum((unsigned char)*name) && !strchr("._-", *name))
            return false;
    }
    return true;
}

/* A line that begins with "[". `text` is writable. */
static void read_section(struct parser *parser, char *text)
{
    char *end = strchr(text, ']');
    char *name = text + 1 + strspn(text + 1, " \t");
    char quoted[80];

    if (!end || !strchr("#;", end[1 + strspn(end + 1, " \t\r")])) {
        fail(parser, DCTF_ERR_CONFIG_SYNTAX, "a section is written [global] or [dataset NAME]");
        return;
    }
    while (end > name && isspace((unsigned char)end[-1]))
        end--;
    *end = '\0';
    if (!strcmp(name, "global")) {
        section_begin(parser, NULL);
        return;
    }
    dctf_str_quote(name, quoted, sizeof(quoted));
    if (strncmp(name, "dataset", 7) != 0 || (name[7] && !isspace((unsigned char)name[7]))) {
        fail(parser, DCTF_ERR_CONFIG_SYNTAX, "unknown section %s: there are [global] and [dataset NAME]",
            quoted);
        return;
    }
    name += 7 + strspn(name + 7, " \t");
    if (!is_dataset_name(name)) {
        fail(parser, DCTF_ERR_CONFIG_SYNTAX,
            "bad dataset name in %s: 1 to %u letters, digits, `_`, `.` and `-`, the first a letter, digit or "
            "`_`",
            quoted, DATASET_NAME_MAX);
        return;
    }
    section_begin(parser, name);
}

static void free_secret(char *text)
{
    if (text)
        explicit_bzero(text, strlen(text));
    free(text);
}

/* The value of a line that is too long for inih is kept here, and "key = LONG_VALUE" read instead.
 * False: failed. */
static bool take_long_value(struct parser *parser, char *out, size_t cap, const char *line, size_t *len)
{
    size_t key_len = strcspn(line, "=:\n");

    if (*len > LINE_MAX_BYTES || key_len >= *len || key_len + sizeof("=" LONG_VALUE) >= cap) {
        fail(parser, DCTF_ERR_CONFIG_SYNTAX, "the line is longer than %u bytes, or its key too long",
            LINE_MAX_BYTES);
        return false;
    }
    parser->long_value = strndup(line + key_len + 1, *len - key_len - 1);
    if (!parser->long_value) {
        fail_memory(parser);
        return false;
    }
    memcpy(out, line, key_len);
    memcpy(out + key_len, "=" LONG_VALUE, sizeof("=" LONG_VALUE));
    *len = key_len + sizeof("=" LONG_VALUE) - 1;
    return true;
}

static bool has_control(struct parser *parser, const char *line, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (iscntrl((unsigned char)line[i]) && !isspace((unsigned char)line[i])) {
            fail(parser, DCTF_ERR_CONFIG_SYNTAX, "control character 0x%02x", (unsigned char)line[i]);
            return true;
        }
    }
    return false;
}

/* ini_reader: one line for each call, without its indentation (inih takes an
 * indented line for the rest of the value above). */
static char *read_line(char *out, int cap, void *stream)
{
    struct parser *parser = stream;
    const char *line = parser->next;
    size_t len;

    free_secret(parser->long_value);
    parser->long_value = NULL;
    if (parser->err || !*line) {
        explicit_bzero(out, (size_t)cap);
        return NULL;
    }
    parser->line++;
    len = strcspn(line, "\n");
    parser->next = line + len + (line[len] == '\n');
    while (len && isspace((unsigned char)*line)) {
        line++;
        len--;
    }
    if (!len || *line == '#' || *line == ';')
        len = 0;
    if (has_control(parser, line, len))
        return NULL;
    if (len + 1 < (size_t)cap) { /* newer inih takes a full buffer for the start of a longer line */
        memcpy(out, line, len);
        out[len] = '\0';
    } else if (!take_long_value(parser, out, (size_t)cap, line, &len)) {
        return NULL;
    }
    if (*out == '[') {
        read_section(parser, out);
        *out = '\0';
    }
    for (char *at = out; (at = strchr(at, ';'));)
        *at = SEMICOLON;
    return parser->err ? NULL : out;
}

/* Strip quotes and a trailing comment, in place; NULL when a quote is not closed. */
static char *plain_value(char *value)
{
    char *end;

    if (*value == '"' || *value == '\'') {
        end = strchr(value + 1, *value);
        if (!end || !strchr("#;", end[1 + strspn(end + 1, " \t\r")]))
            return NULL;
        *end = '\0';
        return value + 1;
    }
    for (end = value; *end; end++) {
        if (strchr("#;", *end) && (end == value || isspace((unsigned char)end[-1])))
            break;
    }
    while (end > value && isspace((unsigned char)end[-1]))
        end--;
    *end = '\0';
    return value;
}

static int read_source(struct parser *parser, const char *value)
{
    struct section *section = current_section(parser);

    if (!section->dataset)
        return fail(parser, DCTF_ERR_CONFIG_SYNTAX, "`source` belongs into a [dataset NAME] section");
    if (section->source)
        return fail(parser, DCTF_ERR_CONFIG_SYNTAX, "`source` is given twice in this section");
    if (!*value)
        return fail(parser, DCTF_ERR_OPTION_VALUE, "`source` is empty");
    section->source = strdup(value);
    return section->source ? 1 : fail_memory(parser);
}

static int read_entry(struct parser *parser, const char *key, const char *value)
{
    const struct dctf_option *option = dctf_option_find(key);
    struct entry entry = {.section = parser->section_count - 1};
    struct entry *entries;
    char where[256];
    enum dctf_err err;

    if (option && dctf_config_is_set(&parser->scratch, (enum dctf_option_index)(option - dctf_options)))
        return fail(parser, DCTF_ERR_CONFIG_SYNTAX, "%s is given twice in this section", key);
    if (option && option->type == DCTF_OPTION_TYPE_SECRET && *value && parser->others_read)
        return fail(parser, DCTF_ERR_SECRET_EXPOSED, "%s in a file that others can read", key);
    where_of(parser, parser->line, where, sizeof(where));
    err = dctf_config_set(&parser->scratch, key, value, where, parser->error);
    if (err) {
        parser->err = err;
        parser->err_line = parser->line;
        return 0;
    }
    entries = grown(parser->entries, parser->entry_count, sizeof(entry));
    if (entries)
        parser->entries = entries;
    entry.key = strdup(key);
    entry.value = strdup(value);
    if (!entries || !entry.key || !entry.value) {
        free(entry.key);
        free_secret(entry.value);
        return fail_memory(parser);
    }
    parser->entries[parser->entry_count++] = entry;
    return 1;
}

/* ini_handler; the section of inih is not used. */
static int handle(void *user, const char *section, const char *key, const char *raw)
{
    struct parser *parser = user;
    size_t copy_len;
    char *copy;
    char *value;
    int ok;

    (void)section;
    if (!current_section(parser))
        return fail(parser, DCTF_ERR_CONFIG_SYNTAX, "an option outside of a section: put [global] above it");
    copy = strdup(parser->long_value ? parser->long_value + strspn(parser->long_value, " \t\r") : raw);
    if (!copy)
        return fail_memory(parser);
    copy_len = strlen(copy);
    for (char *at = copy; (at = strchr(at, SEMICOLON));)
        *at = ';';
    value = plain_value(copy);
    if (!value)
        ok = fail(parser, DCTF_ERR_CONFIG_SYNTAX, "the quotes are not closed");
    else if (!strcmp(key, SOURCE_KEY))
        ok = read_source(parser, value);
    else
        ok = read_entry(parser, key, value);
    explicit_bzero(copy, copy_len);
    free(copy);
    return ok;
}

static void parse(struct parser *parser)
{
    int rc = ini_parse_stream(read_line, parser, handle, parser);

    if (rc > 0 && (!parser->err || (unsigned)rc < parser->err_line)) {
        parser->err = DCTF_OK; /* the earlier line is the one to mend first */
        fail_at(parser, (unsigned)rc, DCTF_ERR_CONFIG_SYNTAX, "expected `option = value`");
    } else if (rc < 0) {
        fail_memory(parser);
    }
    section_end(parser);
}

/* The section `source` asks for; section_count when there is none. */
static size_t choose(struct parser *parser, const char *source)
{
    size_t found = parser->section_count;

    for (size_t i = 0; source && i < parser->section_count; i++) {
        if (parser->sections[i].dataset && !strcmp(parser->sections[i].dataset, source))
            return i;
    }
    for (size_t i = 0; source && i < parser->section_count; i++) {
        const struct section *section = &parser->sections[i];

        if (!section->source || strcmp(section->source, source) != 0)
            continue;
        if (found < parser->section_count) {
            fail_at(parser, section->line, DCTF_ERR_CONFIG_SYNTAX,
                "[dataset %s] and [dataset %s] have this source: mount by name",
                parser->sections[found].dataset, section->dataset);
            return parser->section_count;
        }
        found = i;
    }
    return found;
}

static enum dctf_err apply_section(struct parser *parser, size_t index, struct dctf_config *config)
{
    enum dctf_err err = DCTF_OK;

    for (size_t i = 0; i < parser->entry_count && !err; i++) {
        const struct entry *entry = &parser->entries[i];

        if (entry->section == index)
            err = dctf_config_set(config, entry->key, entry->value, parser->name, parser->error);
    }
    return err;
}

static enum dctf_err apply(struct parser *parser, const char *source, struct dctf_config *config)
{
    size_t chosen = choose(parser, source);
    enum dctf_err err = parser->err;
    struct section *section;

    for (size_t i = 0; i < parser->section_count && !err; i++) {
        if (!parser->sections[i].dataset)
            err = apply_section(parser, i, config);
    }
    if (err || chosen == parser->section_count)
        return err;
    err = apply_section(parser, chosen, config);
    if (err)
        return err;
    section = &parser->sections[chosen];
    free(config->source);
    free(config->dataset);
    config->source = section->source; /* moved */
    config->dataset = section->dataset;
    section->source = NULL;
    section->dataset = NULL;
    return DCTF_OK;
}

static void parser_fini(struct parser *parser)
{
    for (size_t i = 0; i < parser->entry_count; i++) {
        free(parser->entries[i].key);
        free_secret(parser->entries[i].value);
    }
    for (size_t i = 0; i < parser->section_count; i++) {
        free(parser->sections[i].dataset);
        free(parser->sections[i].source);
    }
    free_secret(parser->long_value);
    free(parser->entries);
    free(parser->sections);
    dctf_config_fini(&parser->scratch);
}

static enum dctf_err load_text(struct dctf_config *config, const char *name, const char *text,
    const char *source, bool others_read, struct dctf_config_error *error)
{
    struct parser parser = {.name = name, .next = text, .others_read = others_read, .error = error};
    enum dctf_err err = dctf_config_init(&parser.scratch);

    if (err) {
        dctf_config_complain(error, name, "out of memory");
        return err;
    }
    if (!strncmp(parser.next, "\xef\xbb\xbf", 3)) /* the byte order mark some editors write */
        parser.next += 3;
    parse(&parser);
    err = parser.err ? parser.err : apply(&parser, source, config);
    parser_fini(&parser);
    return err;
}

enum dctf_err dctf_config_load_text(struct dctf_config *config, const char *name, const char *text,
    const char *source, struct dctf_config_error *error)
{
    return load_text(config, name, text, source, false, error);
}

/* The whole file, NUL-terminated; the caller frees it. */
static enum dctf_err read_file(int fd, const char *path, char **out, struct dctf_config_error *error)
{
    char *text = malloc(FILE_MAX_BYTES + 1);
    enum dctf_err err = DCTF_ERR_CONFIG_UNREADABLE;
    size_t len = 0;
    ssize_t n;

    *out = NULL;
    if (!text) {
        dctf_config_complain(error, path, "out of memory");
        return DCTF_ERR_NO_MEMORY;
    }
    while (len <= FILE_MAX_BYTES) {
        n = read(fd, text + len, FILE_MAX_BYTES + 1 - len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        len += (size_t)n;
    }
    if (len > FILE_MAX_BYTES) {
        dctf_config_complain(error, path, "the file is larger than 1 MiB");
    } else if (n < 0) {
        dctf_config_complain(error, path, "%s", strerror(errno));
    } else if (memchr(text, '\0', len)) {
        dctf_config_complain(error, path, "the file is not text");
        err = DCTF_ERR_CONFIG_SYNTAX;
    } else {
        text[len] = '\0';
        *out = text;
        return DCTF_OK;
    }
    explicit_bzero(text, len);
    free(text);
    return err;
}

enum dctf_err dctf_config_load_file(struct dctf_config *config, const char *path, bool required,
    const char *source, struct dctf_config_error *error)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    bool others_read;
    enum dctf_err err;
    struct stat st;
    char *text;

    if (fd < 0) {
        if (errno == ENOENT && !required)
            return DCTF_OK;
        dctf_config_complain(error, path, "%s", strerror(errno));
        return DCTF_ERR_CONFIG_UNREADABLE;
    }
    err = read_file(fd, path, &text, error);
    others_read = fstat(fd, &st) || st.st_mode & (S_IRGRP | S_IROTH);
    close(fd);
    if (err)
        return err;
    err = load_text(config, path, text, source, others_read, error);
    free_secret(text);
    return err;
}
