/* SPDX-License-Identifier: Apache-2.0 */
#include "mount-tools/dctf_tool.h"

#include "base/str.h"
#include "fs/runtime.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FLAGS_MAX 8
/* Values of getopt for long options without a letter. */
#define OPTION_TIMEOUT 256
#define OPTION_FLAG 512

int dctf_tool_usage(const char *command, const char *format, ...)
{
    va_list args;

    fprintf(stderr, "dctf: error %d %s: ", DCTF_ERR_USAGE, dctf_err_name(DCTF_ERR_USAGE));
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    if (command)
        fprintf(stderr, "; remedy: see `dctf %s --help`\n", command);
    else
        fprintf(stderr, "; remedy: see `dctf --help`\n");
    return DCTF_TOOL_USAGE;
}

static int take_number(const char *command, const struct dctf_tool_flag *flag, const char *text)
{
    char *end;
    unsigned long long value;

    errno = 0;
    value = strtoull(text, &end, 10);
    if (errno || end == text || *end || !isdigit((unsigned char)*text) || value < flag->min ||
        value > flag->max)
        return dctf_tool_usage(command, "--%s takes a number from %llu to %llu, not \"%s\"", flag->name,
            (unsigned long long)flag->min, (unsigned long long)flag->max, text);
    *flag->number = value;
    return DCTF_TOOL_DONE;
}

static int take_timeout(const char *command, const char *text, struct dctf_tool_options *options)
{
    if (dctf_duration_parse(text, 1000, &options->timeout_ms) || !options->timeout_ms)
        return dctf_tool_usage(command, "--timeout takes a duration such as 500ms or 30s, not \"%s\"", text);
    /* Far enough for "inf", and safe to add to a clock. */
    if (options->timeout_ms > 365ull * 24 * 3600 * 1000)
        options->timeout_ms = 365ull * 24 * 3600 * 1000;
    options->timeout_set = true;
    return DCTF_TOOL_DONE;
}

static int apply_flag(const char *command, const struct dctf_tool_flag *flag)
{
    if (flag->number)
        return take_number(command, flag, optarg);
    if (flag->text)
        *flag->text = optarg;
    else
        *flag->flag = true;
    return DCTF_TOOL_DONE;
}

/* The flag of a getopt answer, NULL for none. */
static const struct dctf_tool_flag *flag_of(const struct dctf_tool_flag *flags, int answer)
{
    for (int i = 0; flags && flags[i].name; i++) {
        if (answer == OPTION_FLAG + i || (flags[i].letter && answer == flags[i].letter))
            return &flags[i];
    }
    return NULL;
}

int dctf_tool_parse(int argc, char **argv, const char *help, const struct dctf_tool_flag *flags,
    struct dctf_tool_options *options, int *first)
{
    struct option longs[FLAGS_MAX + 4] = {{"help", no_argument, NULL, 'h'}, {"json", no_argument, NULL, 'j'},
        {"timeout", required_argument, NULL, OPTION_TIMEOUT}};
    char shorts[2 * FLAGS_MAX + 8] = "hj";
    int answer, result = DCTF_TOOL_DONE;

    *first = 0;
    memset(options, 0, sizeof(*options));
    options->timeout_ms = DCTF_TOOL_TIMEOUT_MS;
    for (int i = 0; flags && flags[i].name && i < FLAGS_MAX; i++) {
        bool takes = flags[i].number || flags[i].text;
        char letter[3] = {flags[i].letter, takes ? ':' : '\0', '\0'};

        longs[3 + i] =
            (struct option){flags[i].name, takes ? required_argument : no_argument, NULL, OPTION_FLAG + i};
        strcat(shorts, letter);
    }
    optind = 1;
    opterr = 0;
    while (!result && (answer = getopt_long(argc, argv, shorts, longs, NULL)) != -1) {
        const struct dctf_tool_flag *flag = flag_of(flags, answer);

        if (answer == 'h') {
            fputs(help, stdout);
            return DCTF_TOOL_DONE;
        }
        if (answer == 'j')
            options->json = true;
        else if (answer == OPTION_TIMEOUT)
            result = take_timeout(argv[0], optarg, options);
        else if (flag)
            result = apply_flag(argv[0], flag);
        else
            result = dctf_tool_usage(argv[0], "bad option \"%s\"", argv[optind - 1]);
    }
    *first = optind;
    return result;
}

enum dctf_err dctf_tool_connect(const char *mountpoint, uint64_t timeout_ms, int stop_fd,
    struct dctf_client **out, struct dctf_client_error *error)
{
    struct dctf_client_config config = {.timeout_ms = timeout_ms, .stop_fd = stop_fd};
    struct dctf_runtime runtime;
    enum dctf_err err;

    *out = NULL;
    err = dctf_runtime_read(mountpoint, &runtime);
    if (err)
        return dctf_client_error_set(
            error, err, "no record of its daemon here; ask as the user that mounted it");
    config.socket = runtime.socket;
    err = dctf_client_open(&config, out, error);
    /* Mounted, or we would not be here: a socket nobody listens on means a dead daemon. */
    if (err == DCTF_ERR_NOT_MOUNTED)
        err = dctf_client_error_set(error, DCTF_ERR_DAEMON_UNRESPONSIVE, "nothing listens on its socket");
    dctf_runtime_fini(&runtime);
    return err;
}

enum dctf_err dctf_tool_ask(const char *mountpoint, uint64_t timeout_ms, json_t *request, json_t **reply,
    struct dctf_client_error *error)
{
    struct dctf_client *client;
    enum dctf_err err;

    *reply = NULL;
    if (!request)
        return dctf_client_error_set(error, DCTF_ERR_NO_MEMORY, NULL);
    err = dctf_tool_connect(mountpoint, timeout_ms, -1, &client, error);
    if (!err)
        err = dctf_client_call(client, request, 0, reply, error);
    dctf_client_close(client);
    json_decref(request);
    return err;
}

json_t *dctf_tool_scoped(json_t *request, bool cluster, const struct dctf_tool_options *options)
{
    if (cluster) {
        json_object_set_new(request, "scope", json_string("cluster"));
        json_object_set_new(
            request, "timeout_ms", json_integer((json_int_t)(options->timeout_ms - options->timeout_ms / 5)));
    }
    return request;
}

int dctf_tool_report(bool json, const struct dctf_client_error *error, const char *subject)
{
    char quoted[600];

    if (subject)
        subject = dctf_tool_show_text(subject, quoted, sizeof(quoted));
    fprintf(stderr, "dctf: error %d %s: %s%s%s; remedy: %s\n", error->code, error->name,
        subject ? subject : "", subject ? ": " : "", error->text, error->remedy);
    if (json) {
        json_t *object = json_pack("{s:b, s:i, s:s, s:s, s:s}", "ok", 0, "code", error->code, "name",
            error->name, "error", error->text, "remedy", error->remedy);

        if (object && subject)
            json_object_set_new(object, "subject", json_string_nocheck(subject));
        dctf_tool_print_json(object);
    }
    return error->code == DCTF_ERR_USAGE ? DCTF_TOOL_USAGE : DCTF_TOOL_FAILED;
}

int dctf_tool_print_json(json_t *object)
{
    char *line = object ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(12)) : NULL;
    int result = line && puts(line) >= 0 ? DCTF_TOOL_DONE : DCTF_TOOL_FAILED;

    free(line);
    json_decref(object);
    return result;
}

const char *dctf_tool_show_text(const char *text, char *buf, size_t cap)
{
    json_t *utf8 = json_string(text);
    bool plain = utf8 != NULL;

    json_decref(utf8);
    for (const char *c = text; *c && plain; c++)
        plain = (unsigned char)*c >= 0x20 && *c != 0x7f;
    return plain ? text : dctf_str_quote(text, buf, cap);
}

const char *dctf_tool_show_duration(uint64_t ms, char *buf, size_t cap)
{
    uint64_t s = ms / 1000;

    if (s == 0 && ms)
        snprintf(buf, cap, "%llums", (unsigned long long)ms);
    else if (s < 60)
        snprintf(buf, cap, "%llus", (unsigned long long)s);
    else if (s < 3600)
        snprintf(buf, cap, "%llum %llus", (unsigned long long)(s / 60), (unsigned long long)(s % 60));
    else if (s < 86400)
        snprintf(buf, cap, "%lluh %llum", (unsigned long long)(s / 3600), (unsigned long long)(s / 60 % 60));
    else
        snprintf(
            buf, cap, "%llud %lluh", (unsigned long long)(s / 86400), (unsigned long long)(s / 3600 % 24));
    return buf;
}

const char *dctf_tool_show_bytes(uint64_t bytes, char *buf, size_t cap)
{
    return dctf_size_format(bytes, buf, cap);
}
