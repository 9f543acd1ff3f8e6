/* SPDX-License-Identifier: Apache-2.0
 *
 * What the mount tells of its cluster: the part of the status, the members, the homes of a shard.
 */
#include "fs/fs_private.h"

#include "cluster/cluster.h"
#include "cluster/health.h"
#include "fs/network.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define HOMES_MAX 2u /* told of each extent: the home, and who is asked when it is away */
#define CUT " ..."   /* ends a list of homes that is too long */

static const char *breaker_name(unsigned state)
{
    switch ((enum dctf_breaker_state)state) {
    case DCTF_BREAKER_CLOSED:
        return "closed";
    case DCTF_BREAKER_OPEN:
        return "open";
    case DCTF_BREAKER_PROBING:
        return "probing";
    }
    return "unknown";
}

struct members {
    json_t *rows; /* NULL: only count */
    size_t count, excluded;
};

/* Labels of members come from other nodes: what is not UTF-8 is shown quoted. */
static json_t *label(const char *text)
{
    char quoted[4 * DCTF_NODE_ADDR_MAX + 3];
    json_t *value = json_string(text);

    return value ? value : json_string(dctf_str_quote(text, quoted, sizeof(quoted)));
}

static bool add_member(void *ctx, const struct dctf_peer_status *peer)
{
    struct members *members = ctx;
    const struct dctf_node *node = &peer->node;
    json_t *row;

    members->count++;
    members->excluded += node->excluded;
    if (!members->rows)
        return true;
    row = json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:b, s:b, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
        "s:b}",
        "id", label(node->id), "address", label(node->addr), "zone", label(node->zone), "rack",
        label(node->rack), "host", label(node->host), "weight", (json_int_t)node->weight, "joined_ms",
        (json_int_t)node->joined_ms, "self", peer->self, "excluded", node->excluded, "breaker",
        breaker_name(peer->breaker), "p50_us", (json_int_t)peer->p50_us, "p99_us", (json_int_t)peer->p99_us,
        "rtt_us", (json_int_t)peer->rtt_us, "min_rtt_us", (json_int_t)peer->min_rtt_us, "bytes_in",
        (json_int_t)peer->bytes_in, "bytes_out", (json_int_t)peer->bytes_out, "requests",
        (json_int_t)peer->requests, "failures", (json_int_t)peer->failures, "gate_window_kib",
        (json_int_t)peer->gate_window_kib, "gate_open", peer->gate_open);
    return json_array_append_new(members->rows, row) == 0;
}

static struct members count_members(struct dctf_fs *fs)
{
    struct members members = {0};

    if (fs->cluster)
        dctf_cluster_each_peer(fs->cluster, add_member, &members);
    return members;
}

json_t *dctf_peers_json(struct dctf_fs *fs)
{
    struct members members = {.rows = json_array()};

    if (fs->cluster && members.rows)
        dctf_cluster_each_peer(fs->cluster, add_member, &members);
    if (members.rows && json_array_size(members.rows) != members.count) {
        json_decref(members.rows);
        return NULL;
    }
    return members.rows;
}

json_t *dctf_cluster_json(struct dctf_fs *fs)
{
    struct dctf_cluster_status status;
    char hash[17];
    json_t *part;

    if (!fs->cluster)
        return json_null();
    dctf_cluster_status(fs->cluster, &status);
    snprintf(hash, sizeof(hash), "%016" PRIx64, status.view_hash);
    part = json_pack("{s:s, s:I, s:b, s:I, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "view_hash",
        hash, "members", (json_int_t)count_members(fs).count, "settled", status.settled, "flights",
        (json_int_t)status.flights, "port", (int)status.port, "origin_bytes", (json_int_t)status.origin_bytes,
        "peer_bytes_in", (json_int_t)status.peer_bytes_in, "peer_bytes_out",
        (json_int_t)status.peer_bytes_out, "hedges", (json_int_t)status.hedges, "hedges_won",
        (json_int_t)status.hedges_won, "failovers", (json_int_t)status.failovers, "fills_local",
        (json_int_t)status.fills_local, "probes", (json_int_t)status.probes, "probe_hits",
        (json_int_t)status.probe_hits);
    json_object_set_new(part, "copies", dctf_copies_json(fs));
    json_object_set_new(part, "view_age_ms",
        status.view_age_ms == UINT64_MAX ? json_null() : json_integer((json_int_t)status.view_age_ms));
    return part;
}

json_t *dctf_copies_json(struct dctf_fs *fs)
{
    struct dctf_copies_status status;

    if (!fs->cluster)
        return json_null();
    dctf_cluster_copies_status(fs->cluster, &status);
    return json_pack("{s:s, s:b, s:b, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "mode",
        !status.copies  ? "off"
        : status.shadow ? "shadow"
                        : "on",
        "judged", status.judged, "leads", status.leads, "degraded", status.degraded, "fence",
        (json_int_t)status.fence, "version", (json_int_t)status.version, "table_age_ms",
        (json_int_t)status.table_age_ms, "hot", (json_int_t)status.hot, "mid", (json_int_t)status.mid,
        "copied_bytes", (json_int_t)status.copied_bytes, "shadow_bytes", (json_int_t)status.shadow_bytes,
        "held_bytes", (json_int_t)status.held_bytes, "share_bytes", (json_int_t)status.share_bytes, "missing",
        (json_int_t)status.missing);
}

static bool add_feature(void *ctx, const struct dctf_feature_policy *feature)
{
    struct dctf_str *out = ctx;
    char quoted[4 * DCTF_KEY_MAX + 3] = "";

    if (feature->path)
        dctf_str_quote(feature->path, quoted, sizeof(quoted));
    dctf_str_printf(out, "%016" PRIx64 "\t%s\t%zu\t%s\n", feature->feature_id, feature->hot ? "hot" : "mid",
        feature->replicas, quoted);
    return out->err == DCTF_OK;
}

enum dctf_err dctf_policy_tsv(struct dctf_fs *fs, struct dctf_str *out)
{
    dctf_str_puts(out, "feature_id\tclass\treplicas\tfeature\n");
    if (fs->cluster)
        dctf_cluster_each_feature(fs->cluster, add_feature, out);
    return out->err;
}

static const char *state_of(const struct dctf_peer_status *peer)
{
    if (peer->node.excluded)
        return "excluded";
    return peer->self ? "self" : breaker_name(peer->breaker);
}

/* Labels in a table: as they are, quoted when a byte of them would not show. */
static const char *plain(const char *text, char *buf, size_t cap)
{
    dctf_str_quote(text, buf, cap);
    return strlen(buf) == strlen(text) + 2 ? text : buf;
}

static bool add_line(void *ctx, const struct dctf_peer_status *peer)
{
    struct dctf_str *out = ctx;
    const struct dctf_node *node = &peer->node;
    const char *labels[] = {node->id, node->addr, node->zone, node->rack, node->host};

    for (size_t i = 0; i < sizeof(labels) / sizeof(labels[0]); i++) {
        char quoted[4 * DCTF_NODE_ADDR_MAX + 3];

        dctf_str_printf(out, "%s\t", plain(labels[i], quoted, sizeof(quoted)));
    }
    dctf_str_printf(out, "%" PRIu64 "\t%s\t", node->weight, state_of(peer));
    dctf_str_printf(out, "%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t", peer->rtt_us,
        peer->min_rtt_us, peer->p50_us, peer->p99_us);
    dctf_str_printf(out, "%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t", peer->bytes_in,
        peer->bytes_out, peer->requests, peer->failures);
    dctf_str_printf(out, "%u\t%s\n", peer->gate_window_kib,
        peer->self        ? "-"
        : peer->gate_open ? "open"
                          : "shut");
    return out->err == DCTF_OK;
}

enum dctf_err dctf_peers_tsv(struct dctf_fs *fs, struct dctf_str *out)
{
    dctf_str_puts(out, "id\taddress\tzone\track\thost\tweight\tstate\trtt_us\tmin_rtt_us\tp50_us\tp99_us\t"
                       "bytes_in\tbytes_out\trequests\tfailures\tgate_window_kib\tgate\n");
    if (fs->cluster)
        dctf_cluster_each_peer(fs->cluster, add_line, out);
    return out->err;
}

static bool note_peer(void *ctx, const struct dctf_peer_status *peer)
{
    if (!peer->self)
        dctf_network_note(ctx, peer->node.zone, peer->node.addr, peer->bytes_in, peer->bytes_out);
    return true;
}

void dctf_cluster_utilization(struct dctf_fs *fs, struct dctf_str *out)
{
    struct dctf_network_look look = {0};

    if (!fs->cluster)
        return;
    dctf_cluster_each_peer(fs->cluster, note_peer, &look);
    dctf_network_write(fs->network, &look, out);
}

void dctf_cluster_gauges(struct dctf_fs *fs)
{
    struct dctf_cluster_status status;
    struct members members;

    if (!fs->cluster)
        return;
    dctf_cluster_status(fs->cluster, &status);
    members = count_members(fs);
    dctf_metric_set(fs->metrics, DCTF_METRIC_CLUSTER_MEMBERS, (int64_t)members.count);
    dctf_metric_set(fs->metrics, DCTF_METRIC_CLUSTER_EXCLUDED, (int64_t)members.excluded);
    dctf_metric_set(fs->metrics, DCTF_METRIC_CLUSTER_FLIGHTS, (int64_t)status.flights);
}

static bool put(char *out, size_t cap, size_t *len, const char *text)
{
    size_t bytes = strlen(text);

    if (*len + bytes + sizeof(CUT) > cap)
        return false;
    memcpy(out + *len, text, bytes + 1);
    *len += bytes;
    return true;
}

int dctf_homes_text(struct dctf_fs *fs, const struct dctf_version *version, char *out, size_t cap)
{
    uint64_t extents = (version->size + DCTF_EXTENT_BYTES - 1) / DCTF_EXTENT_BYTES;
    size_t len = 0;

    if (!fs->cluster)
        return -1;
    *out = '\0';
    for (uint64_t extent = 0; extent < extents || extent == 0; extent++) {
        struct dctf_node nodes[HOMES_MAX];
        char text[HOMES_MAX * (DCTF_NODE_ID_MAX + 1) + 32] = "";
        size_t used = 0, count;

        count = dctf_cluster_homes(
            fs->cluster, version, (uint32_t)(extent * DCTF_EXTENT_BLOCKS), nodes, HOMES_MAX);
        if (extents > 1)
            used = (size_t)snprintf(text, sizeof(text), "%s%" PRIu64 ":", extent ? " " : "", extent);
        for (size_t i = 0; i < count; i++)
            used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s", i ? "," : "", nodes[i].id);
        if (!put(out, cap, &len, text)) {
            memcpy(out + len, CUT, sizeof(CUT));
            return (int)(len + strlen(CUT));
        }
    }
    return (int)len;
}
