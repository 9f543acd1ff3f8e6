/* SPDX-License-Identifier: Apache-2.0 */
#include "mount-tools/dctffs_args.h"

#include "base/str.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HELPER "mount.dctffs"
#define DETAIL_BYTES 256

static bool ends_in(const char *text, const char *end)
{
    size_t len = strlen(text);
    size_t end_len = strlen(end);

    return len >= end_len && !strcmp(text + len - end_len, end);
}

static enum dctf_err add_options(struct dctffs_args *args, const char *more)
{
    char *joined;

    if (asprintf(&joined, "%s%s%s", args->options ? args->options : "", args->options ? "," : "", more) < 0)
        return DCTF_ERR_NO_MEMORY;
    free(args->options);
    args->options = joined;
    return DCTF_OK;
}

static void complain_option(char *const *argv, char *detail)
{
    if (optopt && (optopt < 256))
        snprintf(detail, DETAIL_BYTES, "option -%c is unknown or lacks its value", optopt);
    else
        snprintf(detail, DETAIL_BYTES, "option %.100s is unknown or lacks its value", argv[optind - 1]);
}

static enum dctf_err parse_command(struct dctffs_args *args, int argc, char **argv, char *detail)
{
    static const struct option longs[] = {
        {"options", required_argument, NULL, 'o'},
        {"foreground", no_argument, NULL, 'f'},
        {"debug", no_argument, NULL, 'd'},
        {"config", required_argument, NULL, 'c'},
        {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, 'V'},
        {NULL, 0, NULL, 0},
    };
    enum dctf_err err = DCTF_OK;
    int option;

    while (!err && (option = getopt_long(argc, argv, "o:fdc:hV", longs, NULL)) != -1) {
        switch (option) {
        case 'o':
            err = add_options(args, optarg);
            break;
        case 'f':
            args->foreground = true;
            break;
        case 'd':
            args->foreground = args->debug = true;
            break;
        case 'c':
            args->config_file = optarg;
            break;
        case 'h':
            args->help = true;
            break;
        case 'V':
            args->version = true;
            break;
        default:
            complain_option(argv, detail);
            err = DCTF_ERR_USAGE;
        }
    }
    return err;
}

/* mount.TYPE SOURCE MOUNTPOINT [-sfnv] [-N namespace] [-o options] [-t type.subtype], see mount(8) */
static enum dctf_err parse_helper(struct dctffs_args *args, int argc, char **argv, char *detail)
{
    enum dctf_err err = DCTF_OK;
    int option;

    while (!err && (option = getopt(argc, argv, "sfnvN:o:t:hV")) != -1) {
        switch (option) {
        case 's':
            args->sloppy = true;
            break;
        case 'f':
            args->fake = true;
            break;
        case 'n': /* no /etc/mtab: never written */
        case 'v':
        case 't':
            break;
        case 'N':
            snprintf(detail, DETAIL_BYTES, "-N: mounting in another namespace is not supported");
            err = DCTF_ERR_USAGE;
            break;
        case 'o':
            err = add_options(args, optarg);
            break;
        case 'h':
            args->help = true;
            break;
        case 'V':
            args->version = true;
            break;
        default:
            complain_option(argv, detail);
            err = DCTF_ERR_USAGE;
        }
    }
    return err;
}

enum dctf_err dctffs_args_parse(int argc, char **argv, struct dctffs_args *out, char *detail)
{
    enum dctf_err err;

    detail[0] = '\0';
    *out = (struct dctffs_args){.program = "dctffs"};
    if (argc > 0 && ends_in(argv[0], HELPER)) {
        out->program = HELPER;
        out->is_helper = true;
    }
    opterr = 0;
    optind = 0; /* glibc: start over, with argv[] permuted */
    err = out->is_helper ? parse_helper(out, argc, argv, detail) : parse_command(out, argc, argv, detail);
    if (err || out->help || out->version)
        return err;
    if (argc - optind != 2) {
        snprintf(detail, DETAIL_BYTES, "%s",
            argc - optind < 2 ? "SOURCE and MOUNTPOINT are needed" : "more than SOURCE and MOUNTPOINT");
        return DCTF_ERR_USAGE;
    }
    out->source = argv[optind];
    out->mountpoint = argv[optind + 1];
    return DCTF_OK;
}

void dctffs_args_fini(struct dctffs_args *args)
{
    free(args->options);
    *args = (struct dctffs_args){0};
}

/* "/dir/" → "file:///dir"; others as they are. NULL without memory; caller frees. */
static char *source_url(const char *source)
{
    size_t len = strlen(source);
    char *url;

    if (source[0] != '/')
        return strdup(source);
    while (len > 1 && source[len - 1] == '/')
        len--;
    return asprintf(&url, "file://%.*s", (int)len, source) < 0 ? NULL : url;
}

/* What was given is a URL, a directory, or the name of a section that was found. */
static enum dctf_err settle_source(const struct dctffs_args *args, const char *url,
    struct dctf_config *config, struct dctf_config_error *error)
{
    char *settled;

    if (!config->source && !strstr(url, "://")) {
        snprintf(error->text, sizeof(error->text),
            "%.200s is neither a URL, nor an absolute directory, nor the NAME of a [dataset NAME] section of "
            "%.150s",
            args->source, args->config_file ? args->config_file : DCTF_CONFIG_FILE);
        return DCTF_ERR_SOURCE_BAD;
    }
    settled = source_url(config->source ? config->source : url);
    if (!settled)
        return DCTF_ERR_NO_MEMORY;
    free(config->source);
    config->source = settled;
    return DCTF_OK;
}

/* The daemon's working directory is `/`. */
static enum dctf_err make_absolute(char **path)
{
    char cwd[PATH_MAX];
    char *absolute;

    if (!*path || !**path || **path == '/')
        return DCTF_OK;
    if (!getcwd(cwd, sizeof(cwd)))
        return DCTF_ERR_SYSTEM;
    if (asprintf(&absolute, "%s/%s", cwd, *path) < 0)
        return DCTF_ERR_NO_MEMORY;
    free(*path);
    *path = absolute;
    return DCTF_OK;
}

/* One option at a time, past those that are unknown: mount -s. */
static enum dctf_err load_sloppily(
    struct dctf_config *config, const char *options, struct dctf_config_error *error)
{
    enum dctf_err err = DCTF_OK;

    while (*options && (!err || err == DCTF_ERR_OPTION_UNKNOWN)) {
        const char *end = options;
        char *one;

        while (*end && *end != ',')
            end += *end == '\\' && end[1] ? 2 : 1;
        one = strndup(options, (size_t)(end - options));
        if (!one)
            return DCTF_ERR_NO_MEMORY;
        err = dctf_config_load_options(config, one, error);
        free(one);
        options = *end ? end + 1 : end;
    }
    return err == DCTF_ERR_OPTION_UNKNOWN ? DCTF_OK : err;
}

static enum dctf_err load_options(
    const struct dctffs_args *args, struct dctf_config *config, struct dctf_config_error *error)
{
    enum dctf_err err = DCTF_OK;

    if (args->options)
        err = args->sloppy ? load_sloppily(config, args->options, error)
                           : dctf_config_load_options(config, args->options, error);
    if (!err && args->debug)
        err = dctf_config_set(config, "log_level", "debug", "--debug", error);
    return err;
}

enum dctf_err dctffs_args_load(
    const struct dctffs_args *args, struct dctf_config *config, struct dctf_config_error *error)
{
    const char *file = args->config_file ? args->config_file : DCTF_CONFIG_FILE;
    char *url = source_url(args->source);
    enum dctf_err err = DCTF_ERR_NO_MEMORY;

    error->text[0] = '\0';
    if (url)
        err = dctf_config_load_file(config, file, args->config_file != NULL, url, error);
    if (!err)
        err = dctf_config_load_env(config, environ, error);
    if (!err)
        err = load_options(args, config, error);
    if (!err)
        err = dctf_config_check(config, error);
    if (!err)
        err = settle_source(args, url, config, error);
    if (!err)
        err = make_absolute(&config->cache_dir);
    if (!err && strcmp(config->log_file, "syslog") != 0 && strcmp(config->log_file, "-") != 0)
        err = make_absolute(&config->log_file);
    free(url);
    if (err && !error->text[0])
        snprintf(error->text, sizeof(error->text), "%s", dctf_err_text(err));
    return err;
}

void dctffs_args_help(const struct dctffs_args *args)
{
    struct dctf_str options;

    printf("Usage: %s\n"
           "Mount a dataset of shards read-only, with a cache on local disk.\n\n"
           "  SOURCE      s3://bucket/prefix, file:///directory, an absolute directory, or the\n"
           "              NAME of a [dataset NAME] section of the configuration file\n"
           "  MOUNTPOINT  an existing directory\n\n",
        args->is_helper ? "mount.dctffs SOURCE MOUNTPOINT [-sfnv] [-o OPTION[,OPTION...]]"
                        : "dctffs [OPTION...] SOURCE MOUNTPOINT");
    if (!args->is_helper)
        printf("  -o, --options=OPTION[,OPTION...]  mount options, see below; `\\,` is a comma in a value\n"
               "  -c, --config=FILE                 configuration file (default " DCTF_CONFIG_FILE ")\n"
               "  -f, --foreground                  do not go to the background\n"
               "  -d, --debug                       foreground, log_level=debug\n"
               "  -h, --help                        this text\n"
               "  -V, --version                     the version\n\n");
    printf("Options:\n");
    dctf_str_init(&options);
    dctf_config_help(&options);
    fputs(dctf_str_c(&options), stdout);
    dctf_str_fini(&options);
}
