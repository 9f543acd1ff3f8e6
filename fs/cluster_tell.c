/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/cluster_tell.h"

#include "cluster/cluster_heat.h"
#include "cluster/view.h"
#include "fs/fs_private.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define DEADLINE_MS 4000
#define DEADLINE_MAX_MS 3600000

struct told {
    enum dctf_tell what;
    json_t *members;
    json_int_t unreached;
};

static void add_member(void *ctx, const struct dctf_told_member *member)
{
    struct told *told = ctx;
    json_t *row = json_object();

    dctf_json_set_name(row, "id", member->node->id);
    dctf_json_set_name(row, "address", member->node->addr);
    json_object_set_new(row, "code", json_integer((json_int_t)member->err));
    if (member->err) {
        told->unreached++;
        json_object_set_new(row, "name", json_string(dctf_err_name(member->err)));
        json_object_set_new(row, "error", json_string(dctf_err_text(member->err)));
        json_object_set_new(row, "remedy", json_string(dctf_err_remedy(member->err)));
    } else if (told->what == DCTF_TELL_SYNC) {
        json_object_set_new(row, "directories", json_integer((json_int_t)member->numbers[0]));
    } else {
        json_object_set_new(row, "shards", json_integer((json_int_t)member->numbers[0]));
        json_object_set_new(row, "bytes", json_integer((json_int_t)member->numbers[1]));
        json_object_set_new(row, "busy", json_integer((json_int_t)member->numbers[2]));
    }
    json_array_append_new(told->members, row);
}

static uint64_t deadline_of(const json_t *request)
{
    json_int_t wait_ms = json_integer_value(json_object_get(request, "timeout_ms"));

    return wait_ms > 0 && wait_ms <= DEADLINE_MAX_MS ? (uint64_t)wait_ms : DEADLINE_MS;
}

/* The scope that is asked for is one there is here. */
static bool scope_ok(const struct dctf_fs *fs, const json_t *request)
{
    const char *scope = json_string_value(json_object_get(request, "scope"));

    return fs->cluster && scope && !strcmp(scope, "cluster");
}

enum dctf_err dctf_control_tell(struct dctf_fs *fs, const json_t *request, enum dctf_tell what,
    const char *path, bool force, json_t *answer)
{
    struct told told = {.what = what};
    enum dctf_err err;

    if (!json_object_get(request, "scope"))
        return DCTF_OK;
    if (!scope_ok(fs, request))
        return DCTF_ERR_REQUEST_BAD;
    told.members = json_array();
    if (json_object_set_new(answer, "members", told.members))
        return DCTF_ERR_NO_MEMORY;
    err = dctf_cluster_tell(fs->cluster, what, path, force, deadline_of(request), add_member, &told);
    json_object_set_new(answer, "unreached", json_integer(told.unreached));
    return err;
}

static const char *class_name(enum dctf_policy_class class)
{
    return class == DCTF_POLICY_HOT ? "hot" : class == DCTF_POLICY_MID ? "mid" : "cold";
}

static void add_feature(void *ctx, const struct dctf_cluster_heat_entry *entry)
{
    char id[17];
    json_t *row;

    snprintf(id, sizeof(id), "%016" PRIx64, entry->heat.feature_id);
    row = json_pack("{s:s, s:f, s:I, s:I, s:s}", "feature_id", id, "passes", entry->heat.passes, "nodes",
        (json_int_t)entry->heat.nodes, "bytes", (json_int_t)entry->heat.bytes, "class",
        class_name(entry->heat.class));
    if (row && entry->known)
        dctf_json_set_name(row, "feature", entry->path);
    json_array_append_new(ctx, row);
}

enum dctf_err dctf_control_cluster_heat(struct dctf_fs *fs, const json_t *request, json_t *answer)
{
    json_int_t limit = json_integer_value(json_object_get(request, "limit"));
    json_t *features = json_array();
    struct dctf_cluster_heat heat;
    enum dctf_err err;

    if (json_object_set_new(answer, "features", features))
        return DCTF_ERR_NO_MEMORY;
    if (!scope_ok(fs, request))
        return DCTF_ERR_REQUEST_BAD;
    err = dctf_cluster_heat(fs->cluster, limit > 0 ? (size_t)limit : SIZE_MAX, deadline_of(request),
        add_feature, features, &heat);
    if (err)
        return err;
    json_object_set_new(answer, "coordinated", json_boolean(heat.coordinated));
    json_object_set_new(answer, "judged", json_boolean(heat.judged));
    json_object_set_new(answer, "total", json_integer((json_int_t)heat.features));
    json_object_set_new(answer, "half_life_ms", json_integer((json_int_t)heat.half_life_ms));
    if (heat.judged) {
        dctf_json_set_name(answer, "leader", heat.node);
        json_object_set_new(answer, "age_ms", json_integer((json_int_t)heat.age_ms));
    }
    return DCTF_OK;
}
