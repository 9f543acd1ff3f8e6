/* SPDX-License-Identifier: Apache-2.0 */
#include "mount-tools/dctf_tool.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>

static const char help[] =
    "Usage: dctf heat [--cluster] [-n N] [--json] [--timeout T] [MOUNT]\n"
    "\n"
    "Features, hottest first: class (hot: top 10 %, mid: next 30 %, cold), heat (opens,\n"
    "decayed), number of opens, time since the last one, bytes in the cache.\n"
    "\n"
    "  -n, --limit N  show at most N features (default 20; 0: all)\n"
    "  -c, --cluster  what all nodes read, as the node that leads judged it last: class, passes\n"
    "                 (bytes read ÷ bytes of the feature, per policy_interval, averaged over the\n"
    "                 half-life), nodes that read it lately; the hottest 1000; needs Redis\n";

static void print_feature(const json_t *feature, uint64_t now_ms)
{
    char bytes[24], age[24], quoted[1200];
    char *name = dctf_client_get_bytes(feature, "feature");
    uint64_t last_ms = (uint64_t)json_integer_value(json_object_get(feature, "last_accessed_ms"));
    const char *class = json_string_value(json_object_get(feature, "class"));

    if (last_ms)
        dctf_tool_show_duration(now_ms > last_ms ? now_ms - last_ms : 0, age, sizeof(age));
    else
        snprintf(age, sizeof(age), "never");
    printf("%-5s %10.2f %8lld  %-9s %9s  %s\n", class ? class : "?",
        json_number_value(json_object_get(feature, "heat")),
        (long long)json_integer_value(json_object_get(feature, "access_count")), age,
        dctf_tool_show_bytes(
            (uint64_t)json_integer_value(json_object_get(feature, "bytes")), bytes, sizeof(bytes)),
        name && *name ? dctf_tool_show_text(name, quoted, sizeof(quoted)) : "(root)");
    free(name);
}

static void print_table(const json_t *reply)
{
    const json_t *features = json_object_get(reply, "features");
    uint64_t now_ms = dctf_clock_wall_ms(NULL);
    size_t i;
    json_t *feature;

    printf("%-5s %10s %8s  %-9s %9s  %s\n", "CLASS", "HEAT", "OPENS", "LAST", "BYTES", "FEATURE");
    json_array_foreach(features, i, feature) print_feature(feature, now_ms);
    if ((size_t)json_integer_value(json_object_get(reply, "total")) > json_array_size(features))
        printf("%zu of %lld features; -n 0 shows all\n", json_array_size(features),
            (long long)json_integer_value(json_object_get(reply, "total")));
}

static void print_cluster_feature(const json_t *feature)
{
    char bytes[24], quoted[1200];
    char *name = dctf_client_get_bytes(feature, "feature");
    const char *class = json_string_value(json_object_get(feature, "class"));
    const char *id = json_string_value(json_object_get(feature, "feature_id"));

    printf("%-5s %10.4f %6lld %9s  ", class ? class : "?",
        json_number_value(json_object_get(feature, "passes")),
        (long long)json_integer_value(json_object_get(feature, "nodes")),
        dctf_tool_show_bytes(
            (uint64_t)json_integer_value(json_object_get(feature, "bytes")), bytes, sizeof(bytes)));
    if (name)
        printf("%s\n", *name ? dctf_tool_show_text(name, quoted, sizeof(quoted)) : "(root)");
    else
        printf("id %s\n", id ? id : "?"); /* the leader does not know its path */
    free(name);
}

/* Why there is nothing to show; NULL: there is. */
static const char *why_none(const json_t *reply)
{
    if (!json_is_true(json_object_get(reply, "coordinated")))
        return "heat of the cluster is gathered by Redis, and this cluster has none (option `redis`); "
               "`dctf heat` on each node shows what was read there";
    if (!json_is_true(json_object_get(reply, "judged")))
        return "no node has judged yet, or the one that did cannot be reached: reports are judged each "
               "`policy_interval`, by a node whose `replicate` is not off";
    return NULL;
}

static int print_cluster(const json_t *reply)
{
    const json_t *features = json_object_get(reply, "features");
    char *leader = dctf_client_get_bytes(reply, "leader");
    char age[24], quoted[300];
    size_t i;
    json_t *feature;

    if (why_none(reply)) {
        fprintf(stderr, "dctf: %s\n", why_none(reply));
        free(leader);
        return DCTF_TOOL_FAILED;
    }
    printf("%-5s %10s %6s %9s  %s\n", "CLASS", "PASSES", "NODES", "BYTES", "FEATURE");
    json_array_foreach(features, i, feature) print_cluster_feature(feature);
    dctf_tool_show_duration((uint64_t)json_integer_value(json_object_get(reply, "age_ms")), age, sizeof(age));
    printf("%zu of %lld features; judged %s ago by %s\n", json_array_size(features),
        (long long)json_integer_value(json_object_get(reply, "total")), age,
        leader ? dctf_tool_show_text(leader, quoted, sizeof(quoted)) : "?");
    free(leader);
    return DCTF_TOOL_DONE;
}

int dctf_cmd_heat(int argc, char **argv)
{
    uint64_t limit = 20;
    bool cluster = false;
    const struct dctf_tool_flag flags[] = {
        {.name = "limit", .letter = 'n', .number = &limit, .max = 1000000000},
        {.name = "cluster", .letter = 'c', .flag = &cluster}, {0}};
    struct dctf_tool_options options;
    struct dctf_client_error error;
    struct dctf_target target;
    json_t *reply = NULL, *request;
    int first, result = dctf_tool_parse(argc, argv, help, flags, &options, &first);

    if (result || !first)
        return result;
    if (argc - first > 1)
        return dctf_tool_usage("heat", "at most one MOUNT");
    request = dctf_tool_scoped(
        json_pack("{s:s, s:I}", "cmd", "heat", "limit", (json_int_t)limit), cluster, &options);
    if (dctf_target_find(argv[first], &target, &error) ||
        dctf_tool_ask(target.mount.path, options.timeout_ms, json_incref(request), &reply, &error)) {
        result = dctf_tool_report(options.json, &error, argv[first]);
    } else if (options.json) {
        bool none = cluster && why_none(reply);

        result = dctf_tool_print_json(reply);
        reply = NULL;
        if (none && !result)
            result = DCTF_TOOL_FAILED;
    } else if (cluster) {
        result = print_cluster(reply);
    } else {
        print_table(reply);
    }
    json_decref(reply);
    json_decref(request);
    dctf_target_fini(&target);
    return result;
}
