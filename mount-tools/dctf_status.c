/* SPDX-License-Identifier: Apache-2.0 */
#include "mount-tools/dctf_tool.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "Usage: dctf status [--json] [--timeout T] [MOUNT]…\n"
    "\n"
    "Source, up-time, bytes in the cache and their cap, passthrough, memory, health of the source,\n"
    "where reads were served from, hit rate. Without MOUNT: of every mount.\n";

/* Values of one part of the status; missing ones, of another release, are 0 or "". */
static uint64_t number(const json_t *part, const char *field)
{
    json_int_t value = json_integer_value(json_object_get(part, field));

    return value > 0 ? (uint64_t)value : 0;
}

static const char *text(const json_t *part, const char *field)
{
    const char *value = json_string_value(json_object_get(part, field));

    return value ? value : "";
}

static bool is_true(const json_t *part, const char *field)
{
    return json_is_true(json_object_get(part, field));
}

static void row(const char *name)
{
    printf("  %-12s ", name);
}

static void print_daemon(const json_t *status)
{
    char up[24], quoted[600];

    printf("%s  from %s\n", dctf_tool_show_text(text(status, "mountpoint"), quoted, sizeof(quoted)),
        text(status, "source"));
    row("daemon");
    printf("dctffs %s, pid %llu, up %s, node %s", text(status, "version"),
        (unsigned long long)number(status, "pid"),
        dctf_tool_show_duration(number(status, "uptime_s") * 1000, up, sizeof(up)), text(status, "node"));
    if (*text(status, "zone"))
        printf(", zone %s", text(status, "zone"));
    putchar('\n');
}

static void print_cache(const json_t *status)
{
    const json_t *cache = json_object_get(status, "cache");
    const json_t *admission = json_object_get(status, "admission");
    const json_t *passthrough = json_object_get(status, "passthrough");
    uint64_t files = number(cache, "file_bytes"), index = number(cache, "index_bytes");
    char a[24], b[24], c[24], d[24];

    row("cache");
    printf("%s of %s on disk (files %s, index %s) in %s\n", dctf_tool_show_bytes(files + index, a, sizeof(a)),
        dctf_tool_show_bytes(number(cache, "limit_bytes"), b, sizeof(b)),
        dctf_tool_show_bytes(files, c, sizeof(c)), dctf_tool_show_bytes(index, d, sizeof(d)),
        text(cache, "dir"));
    row("shards");
    printf("%llu here, %llu verified since the mount began%s\n", (unsigned long long)number(cache, "shards"),
        (unsigned long long)number(cache, "verified_shards"),
        is_true(cache, "counting") ? " (still counting)" : "");
    if (is_true(cache, "bypassing")) {
        row("");
        puts("NOTHING IS KEPT at present: no space, or a broken disk; see `dctf doctor`");
    }
    row("admission");
    printf("rule %s, %llu admitted, %llu not kept\n", text(admission, "rule"),
        (unsigned long long)number(admission, "admitted"), (unsigned long long)number(admission, "bypassed"));
    row("passthrough");
    printf("%s\n", text(passthrough, "reason"));
}

static void print_memory(const json_t *status)
{
    const json_t *memory = json_object_get(status, "memory");
    char a[24], b[24], c[24], d[24];

    row("memory");
    printf("process %s; transfer buffers %s of %s; budget %s; read-ahead of the kernel %llu KiB\n",
        dctf_tool_show_bytes(number(memory, "rss_bytes"), a, sizeof(a)),
        dctf_tool_show_bytes(number(memory, "buffers_used_bytes"), b, sizeof(b)),
        dctf_tool_show_bytes(number(memory, "buffers_limit_bytes"), c, sizeof(c)),
        dctf_tool_show_bytes(number(memory, "limit_bytes"), d, sizeof(d)),
        (unsigned long long)number(status, "read_ahead_kb"));
}

static void print_origin(const json_t *status)
{
    const json_t *origin = json_object_get(status, "origin");
    uint64_t now_ms = dctf_clock_wall_ms(NULL);
    uint64_t good_ms = number(origin, "last_success_ms"), bad_ms = number(origin, "last_error_ms");
    uint64_t last_ms = good_ms > bad_ms ? good_ms : bad_ms;
    unsigned long long waiting = number(origin, "queued_demand") + number(origin, "queued_prefetch");
    char age[24] = "", bytes[24];

    if (last_ms)
        dctf_tool_show_duration(now_ms > last_ms ? now_ms - last_ms : 0, age, sizeof(age));
    row("source");
    if (!last_ms)
        puts("not asked yet");
    else if (bad_ms && bad_ms >= good_ms)
        printf("FAILING: %llu %s, %s ago\n", (unsigned long long)number(origin, "last_error_code"),
            text(origin, "last_error"), age);
    else
        printf("answered %s ago\n", age);
    row("");
    printf(
        "%s in %llu reads, %llu listings, %llu look-ups; %llu tried again; now %llu running, %llu waiting, "
        "%llu given up\n",
        dctf_tool_show_bytes(number(origin, "bytes"), bytes, sizeof(bytes)),
        (unsigned long long)number(origin, "get_requests"),
        (unsigned long long)number(origin, "list_requests"),
        (unsigned long long)number(origin, "head_requests"), (unsigned long long)number(origin, "retries"),
        (unsigned long long)number(origin, "running"), waiting,
        (unsigned long long)number(origin, "abandoned"));
}

static void print_reads(const json_t *status)
{
    const json_t *reads = json_object_get(status, "reads");
    const json_t *opens = json_object_get(status, "opens");
    char a[24], b[24], c[24];

    row("opens");
    printf("hot %llu (passthrough), warm %llu, cold %llu; %.1f %% found all bytes here\n",
        (unsigned long long)number(opens, "hot"), (unsigned long long)number(opens, "warm"),
        (unsigned long long)number(opens, "cold"),
        100 * json_number_value(json_object_get(opens, "shard_hit_rate")));
    row("reads");
    printf("by the daemon: cache %s, memory %s, just fetched %s; %llu waiting\n",
        dctf_tool_show_bytes(number(reads, "warm_bytes"), a, sizeof(a)),
        dctf_tool_show_bytes(number(reads, "memory_bytes"), b, sizeof(b)),
        dctf_tool_show_bytes(number(reads, "origin_bytes"), c, sizeof(c)),
        (unsigned long long)number(reads, "waiting"));
}

static void print_cluster(const json_t *status)
{
    const json_t *cluster = json_object_get(status, "cluster");
    const json_t *age = json_object_get(cluster, "view_age_ms");
    char a[24], b[24], c[24], confirmed[48] = "never confirmed";

    if (!json_is_object(cluster))
        return;
    if (json_is_integer(age))
        snprintf(confirmed, sizeof(confirmed), "confirmed %s ago",
            dctf_tool_show_duration(number(cluster, "view_age_ms"), a, sizeof(a)));
    row("cluster");
    printf("%llu members (view %s, %s)%s; ", (unsigned long long)number(cluster, "members"),
        text(cluster, "view_hash"), confirmed, is_true(cluster, "settled") ? "" : ", not settled yet");
    if (number(cluster, "port"))
        printf("serves on port %llu\n", (unsigned long long)number(cluster, "port"));
    else
        puts("serves nobody");
    row("");
    printf("got %s from peers, sent %s to them, fetched %s from the source; %llu on their way\n",
        dctf_tool_show_bytes(number(cluster, "peer_bytes_in"), a, sizeof(a)),
        dctf_tool_show_bytes(number(cluster, "peer_bytes_out"), b, sizeof(b)),
        dctf_tool_show_bytes(number(cluster, "origin_bytes"), c, sizeof(c)),
        (unsigned long long)number(cluster, "flights"));
    row("");
    printf("%llu second requests (%llu won); %llu went to another home, %llu to no home; %llu other homes "
           "asked (%llu had it)\n",
        (unsigned long long)number(cluster, "hedges"), (unsigned long long)number(cluster, "hedges_won"),
        (unsigned long long)number(cluster, "failovers"), (unsigned long long)number(cluster, "fills_local"),
        (unsigned long long)number(cluster, "probes"), (unsigned long long)number(cluster, "probe_hits"));
}

static void print_copies(const json_t *status)
{
    const json_t *copies = json_object_get(json_object_get(status, "cluster"), "copies");
    const char *mode = text(copies, "mode");
    char a[24], b[24], c[24];

    if (!*mode || !strcmp(mode, "off"))
        return;
    row("copies");
    printf("%s: %llu hot features, %llu mid; %s of at most %s here; %s %s%s%s\n",
        !strcmp(mode, "on") ? "made" : "only counted", (unsigned long long)number(copies, "hot"),
        (unsigned long long)number(copies, "mid"),
        dctf_tool_show_bytes(number(copies, "held_bytes"), a, sizeof(a)),
        dctf_tool_show_bytes(number(copies, "share_bytes"), b, sizeof(b)),
        dctf_tool_show_bytes(
            number(copies, !strcmp(mode, "on") ? "copied_bytes" : "shadow_bytes"), c, sizeof(c)),
        !strcmp(mode, "on") ? "copied" : "would have been copied",
        is_true(copies, "leads") ? "; this node judges" : "",
        is_true(copies, "degraded") ? "; held back: readers' transfers are slow" : "");
}

static void print_errors(const json_t *status)
{
    json_t *errors = json_object_get(status, "errors"), *count;
    const char *code;

    if (number(status, "hidden_keys")) {
        row("hidden");
        printf("%llu keys that cannot be shown as files (docs/keys.md)\n",
            (unsigned long long)number(status, "hidden_keys"));
    }
    if (json_object_size(errors) == 0)
        return;
    row("errors");
    json_object_foreach(errors, code, count) printf("%s %s: %lld  ", code,
        dctf_err_name((enum dctf_err)atoi(code)), (long long)json_integer_value(count));
    putchar('\n');
}

static void print_status(const json_t *status)
{
    print_daemon(status);
    print_cache(status);
    print_origin(status);
    print_reads(status);
    print_cluster(status);
    print_copies(status);
    print_memory(status);
    print_errors(status);
}

static int show(const char *arg, const struct dctf_tool_options *options, bool more)
{
    struct dctf_client_error error;
    struct dctf_target target;
    json_t *reply = NULL;
    int result = DCTF_TOOL_DONE;

    if (dctf_target_find(arg, &target, &error) || dctf_tool_ask(target.mount.path, options->timeout_ms,
                                                      json_pack("{s:s}", "cmd", "status"), &reply, &error)) {
        result = dctf_tool_report(options->json, &error, arg);
    } else if (options->json) {
        result = dctf_tool_print_json(json_incref(json_object_get(reply, "status")));
    } else {
        print_status(json_object_get(reply, "status"));
        if (more)
            putchar('\n');
    }
    json_decref(reply);
    dctf_target_fini(&target);
    return result;
}

int dctf_cmd_status(int argc, char **argv)
{
    struct dctf_tool_options options;
    char **mounts = NULL;
    size_t count = 0;
    int first, result = dctf_tool_parse(argc, argv, help, NULL, &options, &first);

    if (result || !first)
        return result;
    for (int i = first; i < argc; i++)
        result |= show(argv[i], &options, i + 1 < argc);
    if (first == argc && (dctf_tool_mounts(&mounts, &count) || count == 0))
        result = show(NULL, &options, false); /* says that there is none */
    for (size_t i = 0; i < count; i++)
        result |= show(mounts[i], &options, i + 1 < count);
    dctf_tool_mounts_free(mounts);
    return result;
}
