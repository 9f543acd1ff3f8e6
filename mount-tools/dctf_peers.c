/* SPDX-License-Identifier: Apache-2.0 */
#include "mount-tools/dctf_tool.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char help[] =
    "Usage: dctf peers [--json] [--timeout T] [MOUNT]\n"
    "\n"
    "Members of the cluster as the daemon of MOUNT sees them.\n"
    "\n"
    "  STATE    self; closed: it is asked; open: it does not answer, its extents are read elsewhere;\n"
    "           probing: it is looked at whether it is back\n"
    "  RTT      of the path to it, now and least\n"
    "  FIRST    time to the first byte of what readers waited for: half, and 99 of 100, were faster\n"
    "  IN, OUT  bytes got from it, sent to it\n"
    "  ASKED    requests sent to it; FAILED: of these and of pings\n"
    "  GATE     whether copies in the background may use the path now, and how much at once\n";

/* Widest text of each column, so that the table stands in lines. */
struct widths {
    int id, address, zone;
};

static const char *text(const json_t *row, const char *field)
{
    const char *value = json_string_value(json_object_get(row, field));

    return value && *value ? value : "-";
}

static uint64_t number(const json_t *row, const char *field)
{
    json_int_t value = json_integer_value(json_object_get(row, field));

    return value > 0 ? (uint64_t)value : 0;
}

static const char *shown(const json_t *row, const char *field, char *buf, size_t cap)
{
    return dctf_tool_show_text(text(row, field), buf, cap);
}

static void widen(int *width, const json_t *row, const char *field)
{
    char buf[600];
    int len = (int)strlen(shown(row, field, buf, sizeof(buf)));

    if (len > *width)
        *width = len;
}

/* "120us", "1.5ms", "2.3s"; "-" when it is not known. */
static const char *show_us(uint64_t us, char *buf, size_t cap)
{
    if (us == 0)
        snprintf(buf, cap, "-");
    else if (us < 1000)
        snprintf(buf, cap, "%" PRIu64 "us", us);
    else if (us < 1000000)
        snprintf(buf, cap, "%.1fms", (double)us / 1e3);
    else
        snprintf(buf, cap, "%.1fs", (double)us / 1e6);
    return buf;
}

static void show_pair(uint64_t a_us, uint64_t b_us, char *buf, size_t cap)
{
    char a[24], b[24];

    snprintf(buf, cap, "%s/%s", show_us(a_us, a, sizeof(a)), show_us(b_us, b, sizeof(b)));
}

static void print_peer(const json_t *peer, const struct widths *widths)
{
    char id[600], address[600], zone[200], rtt[52], first[52], in[24], out[24], asked[24], failed[24],
        gate[32];
    bool self = json_is_true(json_object_get(peer, "self"));
    const char *state = self ? "self" : text(peer, "breaker");

    if (json_is_true(json_object_get(peer, "excluded")))
        state = "excluded";

    show_pair(number(peer, "rtt_us"), number(peer, "min_rtt_us"), rtt, sizeof(rtt));
    show_pair(number(peer, "p50_us"), number(peer, "p99_us"), first, sizeof(first));
    snprintf(asked, sizeof(asked), "%" PRIu64, number(peer, "requests"));
    snprintf(failed, sizeof(failed), "%" PRIu64, number(peer, "failures"));
    snprintf(gate, sizeof(gate), "%s %" PRIu64 "K",
        json_is_true(json_object_get(peer, "gate_open")) ? "open" : "shut", number(peer, "gate_window_kib"));
    printf("%-8s  %-*s  %-*s  %-*s  %15s  %15s  %9s  %9s  %8s  %6s  %s\n", state, widths->id,
        shown(peer, "id", id, sizeof(id)), widths->address, shown(peer, "address", address, sizeof(address)),
        widths->zone, shown(peer, "zone", zone, sizeof(zone)), self ? "-" : rtt, self ? "-" : first,
        self ? "-" : dctf_tool_show_bytes(number(peer, "bytes_in"), in, sizeof(in)),
        self ? "-" : dctf_tool_show_bytes(number(peer, "bytes_out"), out, sizeof(out)), self ? "-" : asked,
        self ? "-" : failed, self ? "-" : gate);
}

static void print_table(const json_t *reply)
{
    const json_t *peers = json_object_get(reply, "peers");
    struct widths widths = {2, 7, 4};
    size_t i;
    json_t *peer;

    if (!json_is_object(json_object_get(reply, "cluster"))) {
        puts("no cluster: neither listen nor peers nor redis is set");
        return;
    }
    json_array_foreach(peers, i, peer)
    {
        widen(&widths.id, peer, "id");
        widen(&widths.address, peer, "address");
        widen(&widths.zone, peer, "zone");
    }
    printf("%-8s  %-*s  %-*s  %-*s  %15s  %15s  %9s  %9s  %8s  %6s  %s\n", "STATE", widths.id, "ID",
        widths.address, "ADDRESS", widths.zone, "ZONE", "RTT now/min", "FIRST p50/p99", "IN", "OUT", "ASKED",
        "FAILED", "GATE");
    json_array_foreach(peers, i, peer) print_peer(peer, &widths);
}

int dctf_cmd_peers(int argc, char **argv)
{
    struct dctf_tool_options options;
    struct dctf_client_error error;
    struct dctf_target target;
    json_t *reply = NULL;
    int first, result = dctf_tool_parse(argc, argv, help, NULL, &options, &first);

    if (result || !first)
        return result;
    if (argc - first > 1)
        return dctf_tool_usage("peers", "at most one MOUNT");
    if (dctf_target_find(argv[first], &target, &error) ||
        dctf_tool_ask(
            target.mount.path, options.timeout_ms, json_pack("{s:s}", "cmd", "peers"), &reply, &error)) {
        result = dctf_tool_report(options.json, &error, argv[first]);
    } else if (options.json) {
        result = dctf_tool_print_json(reply);
        reply = NULL;
    } else {
        print_table(reply);
    }
    json_decref(reply);
    dctf_target_fini(&target);
    return result;
}
