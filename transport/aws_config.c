/* SPDX-License-Identifier: Apache-2.0
 *
 * The text is kept once; names and values point into it, ended in place.
 */
#include "transport/aws_config.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

struct setting {
    const char *profile;
    const char *name; /* NULL: the profile's section itself */
    const char *value;
    bool preferred; /* of [profile default], which outranks [default] */
};

struct dctf_aws_config {
    char *text;
    size_t size; /* of `text`, to wipe */
    bool exposed;
    struct setting *settings;
    size_t count;
    size_t cap;
};

/* Where the parser is. */
struct parser {
    struct dctf_aws_config *config;
    enum dctf_aws_config_kind kind;
    const char *file;
    unsigned line;
    const char *profile; /* of the section; NULL: a section to skip */
    bool preferred;
    bool in_section;
    bool has_indent;
    size_t indent;   /* of the section's first setting */
    char *value;     /* of the last setting, for lines that go on with it; NULL: none */
    bool skip_lines; /* indented lines belong to a sub-section */
    struct dctf_aws_config_error *error;
};

static enum dctf_err fail_line(struct parser *parser, const char *what)
{
    snprintf(parser->error->text, sizeof(parser->error->text), "%s:%u: %s", parser->file, parser->line, what);
    return DCTF_ERR_CONFIG_SYNTAX;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\v' || c == '\f' || c == '\r';
}

static char *skip_blanks(char *text)
{
    while (is_blank(*text))
        text++;
    return text;
}

/* End the text before the blanks at its end; returns it. */
static char *trim_end(char *text)
{
    size_t len = strlen(text);

    while (len > 0 && is_blank(text[len - 1]))
        len--;
    text[len] = '\0';
    return text;
}

/* A comment begins with '#' or ';' after a blank. */
static void cut_comment(char *text)
{
    for (char *at = text; *at; at++) {
        if ((*at == '#' || *at == ';') && at > text && is_blank(at[-1])) {
            *at = '\0';
            return;
        }
    }
}

static enum dctf_err add_setting(struct parser *parser, const char *name, const char *value)
{
    struct dctf_aws_config *config = parser->config;

    if (config->count == config->cap) {
        size_t cap = config->cap ? 2 * config->cap : 32;
        struct setting *bigger = realloc(config->settings, cap * sizeof(*bigger));

        if (!bigger)
            return DCTF_ERR_NO_MEMORY;
        config->settings = bigger;
        config->cap = cap;
    }
    config->settings[config->count++] = (struct setting){parser->profile, name, value, parser->preferred};
    return DCTF_OK;
}

/* "[profile NAME]" → NAME. */
static enum dctf_err parse_section(struct parser *parser, char *line)
{
    char *end = strchr(line, ']');
    char *name = skip_blanks(line + 1);
    char *rest;

    if (!end)
        return fail_line(parser, "the section has no ']'");
    rest = skip_blanks(end + 1);
    if (*rest && *rest != '#' && *rest != ';')
        return fail_line(parser, "text behind the section's ']'");
    *end = '\0';
    trim_end(name);
    if (!*name)
        return fail_line(parser, "the section has no name");
    parser->in_section = true;
    parser->has_indent = false;
    parser->value = NULL;
    parser->preferred = false;
    parser->profile = NULL;
    if (parser->kind == DCTF_AWS_CONFIG_CREDENTIALS) {
        parser->profile = name;
    } else if (!strncmp(name, "profile", 7) && is_blank(name[7])) {
        parser->profile = skip_blanks(name + 7);
        parser->preferred = true;
    } else if (!strcmp(name, "default")) {
        parser->profile = name;
    }
    return parser->profile ? add_setting(parser, NULL, NULL) : DCTF_OK;
}

/* An indented line behind a setting: a sub-section's, or more of its value. */
static void continue_value(struct parser *parser, char *text)
{
    size_t len;
    size_t more;

    if (parser->skip_lines || !parser->value)
        return;
    cut_comment(text);
    trim_end(text);
    len = strlen(parser->value);
    more = strlen(text);
    /* The lines lie behind one another, so there is room for it. */
    parser->value[len] = '\n';
    memmove(parser->value + len + 1, text, more + 1);
}

static enum dctf_err parse_setting(struct parser *parser, char *text)
{
    char *equals = strchr(text, '=');
    char *value;

    if (!equals)
        return fail_line(parser, "neither a [section] nor a setting (name = value)");
    if (equals == text)
        return fail_line(parser, "the setting has no name");
    if (!parser->in_section)
        return fail_line(parser, "a setting before the first [section]");
    *equals = '\0';
    trim_end(text);
    for (char *at = text; *at; at++)
        *at = (char)tolower((unsigned char)*at);
    value = equals + 1;
    cut_comment(value);
    value = trim_end(skip_blanks(value));
    parser->value = value;
    parser->skip_lines = !*value;
    return parser->profile ? add_setting(parser, text, value) : DCTF_OK;
}

static enum dctf_err parse_line(struct parser *parser, char *line)
{
    char *text = skip_blanks(line);
    size_t indent = (size_t)(text - line);

    if (!*text || *text == '#' || *text == ';')
        return DCTF_OK;
    if (*text == '[' && !indent)
        return parse_section(parser, text);
    if (parser->has_indent && indent > parser->indent) {
        continue_value(parser, text);
        return DCTF_OK;
    }
    parser->has_indent = true;
    parser->indent = indent;
    return parse_setting(parser, text);
}

static enum dctf_err parse_text(struct parser *parser)
{
    struct dctf_aws_config *config = parser->config;
    char *at = config->text;
    char *end = config->text + config->size - 1;
    enum dctf_err err = DCTF_OK;

    if (!strncmp(at, "\xef\xbb\xbf", 3))
        at += 3;
    while (!err && at < end) {
        char *newline = memchr(at, '\n', (size_t)(end - at));
        char *line_end = newline ? newline : end;

        parser->line++;
        *line_end = '\0';
        if (memchr(at, '\0', (size_t)(line_end - at)))
            err = fail_line(parser, "a byte 0");
        else
            err = parse_line(parser, at);
        at = line_end + 1;
    }
    return err;
}

/* Takes `config->text`, `size` bytes with the NUL. */
static enum dctf_err parse_owned(const char *name, struct dctf_aws_config *config,
    enum dctf_aws_config_kind kind, struct dctf_aws_config_error *error)
{
    struct parser parser = {.config = config, .kind = kind, .file = name, .error = error};

    return parse_text(&parser);
}

static enum dctf_err fail_file(
    struct dctf_aws_config_error *error, const char *path, enum dctf_err err, const char *what)
{
    snprintf(error->text, sizeof(error->text), "%s: %s", path, what);
    return err;
}

/* Read what is left of `fd` into config->text. */
static enum dctf_err read_all(
    int fd, const char *path, struct dctf_aws_config *config, struct dctf_aws_config_error *error)
{
    size_t len = 0;

    /* One byte more than may be, to tell that there is more; and the NUL. */
    config->size = DCTF_AWS_CONFIG_MAX_BYTES + 2;
    config->text = calloc(1, config->size);
    if (!config->text)
        return fail_file(error, path, DCTF_ERR_NO_MEMORY, "out of memory");
    while (len <= DCTF_AWS_CONFIG_MAX_BYTES) {
        ssize_t n = read(fd, config->text + len, DCTF_AWS_CONFIG_MAX_BYTES + 1 - len);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail_file(error, path, DCTF_ERR_CONFIG_UNREADABLE, strerrordesc_np(errno));
        if (n == 0)
            break;
        len += (size_t)n;
    }
    if (len > DCTF_AWS_CONFIG_MAX_BYTES)
        return fail_file(error, path, DCTF_ERR_CONFIG_UNREADABLE, "larger than 1 MiB");
    config->size = len + 1;
    return DCTF_OK;
}

static enum dctf_err open_file(
    const char *path, int *out_fd, bool *exposed, struct dctf_aws_config_error *error)
{
    struct stat st;
    /* Not to wait for the other end of a pipe. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

    if (fd < 0) {
        bool absent = errno == ENOENT || errno == ENOTDIR;

        return fail_file(error, path, absent ? DCTF_ERR_NOT_FOUND : DCTF_ERR_CONFIG_UNREADABLE,
            absent ? "not found" : strerrordesc_np(errno));
    }
    if (fstat(fd, &st) || (!S_ISREG(st.st_mode) && !S_ISCHR(st.st_mode))) {
        close(fd);
        return fail_file(error, path, DCTF_ERR_CONFIG_UNREADABLE, "not a file");
    }
    *exposed = S_ISREG(st.st_mode) && (st.st_mode & (S_IRGRP | S_IROTH));
    *out_fd = fd;
    return DCTF_OK;
}

enum dctf_err dctf_aws_config_load(const char *path, enum dctf_aws_config_kind kind,
    struct dctf_aws_config **out, struct dctf_aws_config_error *error)
{
    struct dctf_aws_config *config;
    enum dctf_err err;
    bool exposed;
    int fd;

    *out = NULL;
    err = open_file(path, &fd, &exposed, error);
    if (err)
        return err;
    config = calloc(1, sizeof(*config));
    if (!config) {
        close(fd);
        return fail_file(error, path, DCTF_ERR_NO_MEMORY, "out of memory");
    }
    config->exposed = exposed;
    err = read_all(fd, path, config, error);
    close(fd);
    if (!err)
        err = parse_owned(path, config, kind, error);
    if (err) {
        dctf_aws_config_free(config);
        return err;
    }
    *out = config;
    return DCTF_OK;
}

enum dctf_err dctf_aws_config_parse(const char *name, const char *text, size_t len,
    enum dctf_aws_config_kind kind, struct dctf_aws_config **out, struct dctf_aws_config_error *error)
{
    struct dctf_aws_config *config;
    enum dctf_err err;

    *out = NULL;
    if (len > DCTF_AWS_CONFIG_MAX_BYTES)
        return fail_file(error, name, DCTF_ERR_CONFIG_UNREADABLE, "larger than 1 MiB");
    config = calloc(1, sizeof(*config));
    if (!config)
        return fail_file(error, name, DCTF_ERR_NO_MEMORY, "out of memory");
    config->size = len + 1;
    config->text = malloc(config->size);
    if (!config->text) {
        dctf_aws_config_free(config);
        return fail_file(error, name, DCTF_ERR_NO_MEMORY, "out of memory");
    }
    memcpy(config->text, text, len);
    config->text[len] = '\0';
    err = parse_owned(name, config, kind, error);
    if (err) {
        dctf_aws_config_free(config);
        return err;
    }
    *out = config;
    return DCTF_OK;
}

void dctf_aws_config_free(struct dctf_aws_config *config)
{
    if (!config)
        return;
    if (config->text)
        explicit_bzero(config->text, config->size);
    free(config->text);
    free(config->settings);
    free(config);
}

bool dctf_aws_config_has(const struct dctf_aws_config *config, const char *profile)
{
    for (size_t i = 0; config && i < config->count; i++)
        if (!strcmp(config->settings[i].profile, profile))
            return true;
    return false;
}

const char *dctf_aws_config_get(const struct dctf_aws_config *config, const char *profile, const char *name)
{
    const struct setting *found = NULL;

    for (size_t i = 0; config && i < config->count; i++) {
        const struct setting *setting = &config->settings[i];

        if (setting->name && !strcmp(setting->name, name) && !strcmp(setting->profile, profile) &&
            (!found || setting->preferred >= found->preferred))
            found = setting;
    }
    return found ? found->value : NULL;
}

bool dctf_aws_config_exposed(const struct dctf_aws_config *config)
{
    return config && config->exposed;
}
