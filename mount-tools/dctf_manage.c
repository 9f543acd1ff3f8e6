/* SPDX-License-Identifier: Apache-2.0
 *
 * evict, sync and version: one question per argument.
 */
#include "mount-tools/dctf_tool.h"

#include <stdio.h>
#include <stdlib.h>

static const char evict_help[] =
    "Usage: dctf evict [--cluster] [--json] [--timeout T] PATH…\n"
    "\n"
    "Drop the cached bytes of every shard at or below PATH; the mount point itself means all.\n"
    "Shards that the kernel reads right now (passthrough) are kept and counted as busy.\n"
    "Nothing in the source is touched.\n"
    "\n"
    "  -c, --cluster  on all members of the cluster; exit status 1 when one was not reached\n";

static const char sync_help[] =
    "Usage: dctf sync [--force] [--cluster] [--json] [--timeout T] [MOUNT|PATH]…\n"
    "\n"
    "Forget the directory listings at or below PATH, so that the next look reads the source again.\n"
    "\n"
    "  -f, --force    also drop the names and attributes that the kernel remembers\n"
    "  -c, --cluster  on all members of the cluster; exit status 1 when one was not reached\n";

static const char version_help[] = "Usage: dctf version [--json] [--timeout T] [MOUNT]…\n"
                                   "\n"
                                   "Release of this tool, and of the daemon of each MOUNT.\n";

static long long number(const json_t *reply, const char *field)
{
    return (long long)json_integer_value(json_object_get(reply, field));
}

/* What the other members did, a line each; those that could not be reached on stderr. */
static void print_members(const json_t *reply, const char *unit)
{
    const json_t *members = json_object_get(reply, "members");
    size_t i;
    json_t *member;

    json_array_foreach(members, i, member)
    {
        char *id = dctf_client_get_bytes(member, "id"), bytes[24], quoted[300];
        const char *name = id ? dctf_tool_show_text(id, quoted, sizeof(quoted)) : "?";
        const char *why = json_string_value(json_object_get(member, "error"));

        if (number(member, "code")) {
            fflush(stdout);
            fprintf(stderr, "dctf: %s: err=%lld %s\n", name, number(member, "code"), why ? why : "");
        } else {
            printf("  %s: %lld %s", name,
                number(member, json_object_get(member, "shards") ? "shards" : "directories"), unit);
            if (json_object_get(member, "bytes"))
                printf(", %s", dctf_tool_show_bytes((uint64_t)number(member, "bytes"), bytes, sizeof(bytes)));
            if (number(member, "busy"))
                printf("; %lld in use and kept", number(member, "busy"));
            putchar('\n');
        }
        free(id);
    }
}

static void print_evicted(const char *arg, const json_t *reply)
{
    char bytes[24];

    printf("%s: %lld shards evicted, %s", arg, number(reply, "shards"),
        dctf_tool_show_bytes((uint64_t)number(reply, "bytes"), bytes, sizeof(bytes)));
    if (number(reply, "busy"))
        printf("; %lld in use and kept", number(reply, "busy"));
    putchar('\n');
    print_members(reply, "shards");
}

static void print_synced(const char *arg, const json_t *reply)
{
    printf("%s: %lld directory listings forgotten\n", arg, number(reply, "directories"));
    print_members(reply, "directory listings");
}

static void print_version(const char *arg, const json_t *reply)
{
    const char *version = json_string_value(json_object_get(reply, "version"));

    printf("%s: dctffs %s, pid %lld\n", arg, version ? version : "?", number(reply, "pid"));
}

/* Ask the daemon of `arg` about its path and print the answer. `request` is taken. */
static int ask_one(const char *arg, bool with_path, json_t *request, const struct dctf_tool_options *options,
    void (*print)(const char *arg, const json_t *reply))
{
    struct dctf_client_error error;
    struct dctf_target target;
    json_t *reply = NULL;
    char quoted[1200];
    int result = DCTF_TOOL_DONE;
    enum dctf_err err = dctf_target_find(arg, &target, &error);

    if (!err && with_path && dctf_client_set_bytes(request, "path", target.path))
        err = dctf_client_error_set(&error, DCTF_ERR_NO_MEMORY, NULL);
    if (!err)
        err = dctf_tool_ask(target.mount.path, options->timeout_ms, json_incref(request), &reply, &error);
    if (err)
        result = dctf_tool_report(options->json, &error, arg);
    else if (options->json)
        result = dctf_tool_print_json(json_incref(reply));
    else
        print(dctf_tool_show_text(arg ? arg : target.mount.path, quoted, sizeof(quoted)), reply);
    if (!err && !result && number(reply, "unreached"))
        result = DCTF_TOOL_FAILED;
    json_decref(reply);
    json_decref(request);
    dctf_target_fini(&target);
    return result;
}

static int worse(int a, int b)
{
    return a > b ? a : b;
}

int dctf_cmd_evict(int argc, char **argv)
{
    bool cluster = false;
    const struct dctf_tool_flag flags[] = {{.name = "cluster", .letter = 'c', .flag = &cluster}, {0}};
    struct dctf_tool_options options;
    int first, result = dctf_tool_parse(argc, argv, evict_help, flags, &options, &first);

    if (result || !first)
        return result;
    /* Emptying a whole cache is asked for by name only. */
    if (first == argc)
        return dctf_tool_usage("evict", "name the PATH to evict; the mount point means all of it");
    /* Unlinking many files takes a while. */
    if (!options.timeout_set)
        options.timeout_ms = 60000;
    for (int i = first; i < argc; i++)
        result = worse(result,
            ask_one(argv[i], true, dctf_tool_scoped(json_pack("{s:s}", "cmd", "evict"), cluster, &options),
                &options, print_evicted));
    return result;
}

int dctf_cmd_sync(int argc, char **argv)
{
    bool force = false, cluster = false;
    const struct dctf_tool_flag flags[] = {{.name = "force", .letter = 'f', .flag = &force},
        {.name = "cluster", .letter = 'c', .flag = &cluster}, {0}};
    struct dctf_tool_options options;
    int first, result = dctf_tool_parse(argc, argv, sync_help, flags, &options, &first);

    if (result || !first)
        return result;
    for (int i = first; i < argc || i == first; i++)
        result =
            worse(result, ask_one(i < argc ? argv[i] : NULL, true,
                              dctf_tool_scoped(json_pack("{s:s, s:b}", "cmd", "sync", "force", (int)force),
                                  cluster, &options),
                              &options, print_synced));
    return result;
}

int dctf_cmd_version(int argc, char **argv)
{
    struct dctf_tool_options options;
    int first, result = dctf_tool_parse(argc, argv, version_help, NULL, &options, &first);

    if (result || !first)
        return result;
    if (options.json)
        result = dctf_tool_print_json(json_pack("{s:s}", "dctf", DCTF_VERSION));
    else
        printf("dctf %s\n", DCTF_VERSION);
    for (int i = first; i < argc; i++)
        result = worse(
            result, ask_one(argv[i], false, json_pack("{s:s}", "cmd", "ping"), &options, print_version));
    return result;
}
