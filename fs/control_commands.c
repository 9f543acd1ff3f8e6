/* SPDX-License-Identifier: Apache-2.0
 *
 * The requests of docs/control-protocol.md. Each runs on the thread of its connection and may
 * wait for the source, within the deadlines of the mount.
 */
#include "fs/fs_private.h"

#include "cache/heat.h"
#include "cache/store.h"
#include "cluster/cluster.h"
#include "cluster/listings.h"
#include "fs/cluster_tell.h"
#include "fs/control_text.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIST_MAX 10000
#define EXAMINE_MAX_MS 10000

static json_t *failure(enum dctf_err err)
{
    return json_pack("{s:b, s:i, s:s, s:s, s:s}", "ok", 0, "code", (int)err, "name", dctf_err_name(err),
        "error", dctf_err_text(err), "remedy", dctf_err_remedy(err));
}

static json_t *text_or(const char *text, const char *instead)
{
    json_t *value = text ? json_string(text) : NULL;

    return value ? value : json_string(instead);
}

static enum dctf_err cmd_ping(struct dctf_fs *fs, const json_t *request, json_t *answer)
{
    (void)fs;
    (void)request;
    json_object_set_new(answer, "pid", json_integer(getpid()));
    json_object_set_new(answer, "version", json_string(DCTF_VERSION));
    return DCTF_OK;
}

static enum dctf_err cmd_status(struct dctf_fs *fs, const json_t *request, json_t *answer)
{
    json_t *status = dctf_status_json(fs);

    (void)request;
    return json_object_set_new(answer, "status", status) ? DCTF_ERR_NO_MEMORY : DCTF_OK;
}

static enum dctf_err cmd_heat(struct dctf_fs *fs, const json_t *request, json_t *answer)
{
    json_int_t limit = json_integer_value(json_object_get(request, "limit"));
    size_t total = 0;
    json_t *features;

    if (json_object_get(request, "scope"))
        return dctf_control_cluster_heat(fs, request, answer);
    features = dctf_heat_json(fs, limit > 0 ? (size_t)limit : 0, &total);

    json_object_set_new(answer, "total", json_integer((json_int_t)total));
    return json_object_set_new(answer, "features", features) ? DCTF_ERR_NO_MEMORY : DCTF_OK;
}

static enum dctf_err cmd_peers(struct dctf_fs *fs, const json_t *request, json_t *answer)
{
    json_t *cluster = dctf_cluster_json(fs), *peers = dctf_peers_json(fs);
    int failed = json_object_set_new(answer, "cluster", cluster);

    (void)request;
    failed |= json_object_set_new(answer, "peers", peers);
    return failed ? DCTF_ERR_NO_MEMORY : DCTF_OK;
}

static void examined(void *ctx, const struct dctf_peer_examined *peer)
{
    const struct dctf_node *node = &peer->node;

    json_array_append_new(ctx,
        json_pack("{s:o, s:o, s:b, s:b, s:i, s:s, s:I, s:b, s:b}", "id", text_or(node->id, "(not UTF-8)"),
            "address", text_or(node->addr, "(not UTF-8)"), "self", peer->self, "excluded", node->excluded,
            "code", (int)peer->err, "remedy", peer->err ? dctf_err_remedy(peer->err) : "", "first_byte_us",
            (json_int_t)peer->first_byte_us, "other_view", peer->other_view, "other_dataset",
            peer->other_dataset));
}

/* Every member asked anew, as this daemon reaches it. */
static enum dctf_err cmd_examine_peers(struct dctf_fs *fs, const json_t *request, json_t *answer)
{
    json_int_t wait_ms = json_integer_value(json_object_get(request, "timeout_ms"));
    uint64_t deadline_ms = wait_ms > 0 && wait_ms < EXAMINE_MAX_MS ? (uint64_t)wait_ms : EXAMINE_MAX_MS;
    json_t *peers = json_array();

    if (json_object_set_new(answer, "peers", peers))
        return DCTF_ERR_NO_MEMORY;
    return fs->cluster ? dctf_cluster_examine(fs->cluster, deadline_ms, examined, peers) : DCTF_OK;
}

static enum dctf_err cmd_text(
    enum dctf_err (*make)(struct dctf_fs *, struct dctf_str *), struct dctf_fs *fs, json_t *answer)
{
    struct dctf_str text;
    enum dctf_err err;

    dctf_str_init(&text);
    err = make(fs, &text);
    if (!err)
        json_object_set_new(answer, "text", json_string(dctf_str_c(&text)));
    dctf_str_fini(&text);
    return err;
}

static enum dctf_err cmd_metrics(struct dctf_fs *fs, const json_t *request, json_t *answer)
{
    (void)request;
    return cmd_text(dctf_metrics_text, fs, answer);
}

static enum dctf_err make_config(struct dctf_fs *fs, struct dctf_str *out)
{
    dctf_config_write(fs->config, out);
    return out->err;
}

static enum dctf_err cmd_config(struct dctf_fs *fs, const json_t *request, json_t *answer)
{
    (void)request;
    return cmd_text(make_config, fs, answer);
}

static enum dctf_err cmd_list(struct dctf_fs *fs, const json_t *request, json_t *answer)
{
    struct dctf_listings *listings = dctf_store_listings(fs->store);
    char path[DCTF_KEY_MAX + 1], after[DCTF_KEY_MAX + 1];
    json_int_t limit = json_integer_value(json_object_get(request, "limit"));
    struct dctf_listing_state state;
    struct dctf_listing_cursor *cursor;
    struct dctf_entry entry;
    json_t *entries = json_array();
    enum dctf_err err = dctf_control_text(request, "path", path);

    json_object_set_new(answer, "entries", entries);
    if (!err)
        err = dctf_control_text(request, "after", after);
    if (!err)
        err = dctf_ns_resolve_now(fs->ns, path, &state);
    if (!err)
        err = dctf_listing_open(listings, path, state.generation, &cursor);
    if (err)
        return err;
    if (limit <= 0 || limit > LIST_MAX)
        limit = LIST_MAX;
    if (*after)
        err = dctf_listing_seek_name(cursor, after);
    while (!err && limit-- > 0 && !(err = dctf_listing_next(cursor, &entry))) {
        json_t *row = json_pack("{s:b, s:I}", "dir", entry.is_dir, "size", (json_int_t)entry.size);

        dctf_json_set_name(row, "name", entry.name);
        json_array_append_new(entries, row);
    }
    dctf_listing_close(cursor);
    json_object_set_new(answer, "more", json_boolean(err != DCTF_ERR_NOT_FOUND));
    return err == DCTF_ERR_NOT_FOUND ? DCTF_OK : err;
}

/* The source behind a path that names a file; *source NULL and no error for a directory. */
static enum dctf_err get_source(
    struct dctf_fs *fs, const json_t *request, struct dctf_source **source, struct dctf_version **version)
{
    char path[DCTF_KEY_MAX + 1], buf[DCTF_ENTRY_BUF_BYTES];
    struct dctf_entry entry;
    enum dctf_err err = dctf_control_text(request, "path", path);

    *source = NULL;
    *version = NULL;
    if (!err)
        err = dctf_ns_stat_now(fs->ns, path, buf, &entry);
    if (err || entry.is_dir)
        return err;
    err = dctf_version_new(fs->dataset, path, entry.etag, entry.size, fs->feature_by, version);
    if (!err)
        err = dctf_engine_get(fs->engine, *version, source);
    return err;
}

static enum dctf_err cmd_stat(struct dctf_fs *fs, const json_t *request, json_t *answer)
{
    struct dctf_source *source;
    struct dctf_version *version;
    struct dctf_heat_value heat;
    enum dctf_err err = get_source(fs, request, &source, &version);

    json_object_set_new(answer, "dir", json_boolean(!err && !source));
    if (!err && source) {
        struct dctf_shard *shard = dctf_source_shard(source);

        dctf_heat_of_shard(dctf_store_heat(fs->store), version->key_hash, &heat);
        json_object_set_new(answer, "size", json_integer((json_int_t)version->size));
        json_object_set_new(answer, "etag", json_string(version->etag));
        json_object_set_new(
            answer, "present_bytes", json_integer((json_int_t)dctf_shard_present_bytes(shard)));
        json_object_set_new(answer, "tier", json_string(dctf_tier_name(dctf_shard_tier(shard))));
        json_object_set_new(answer, "heat", json_real(heat.heat));
        dctf_json_set_name(answer, "feature", version->feature);
    }
    dctf_engine_put(fs->engine, source);
    dctf_version_unref(version);
    return err;
}

static enum dctf_err warm_share(struct dctf_fs *fs, struct dctf_version *version, struct dctf_source *source,
    const char *scope, json_t *answer)
{
    bool all = !strcmp(scope, "cluster");
    struct dctf_cluster_share share;
    enum dctf_err err;

    if ((!all && strcmp(scope, "share") != 0) || !fs->cluster)
        return DCTF_ERR_REQUEST_BAD;
    err = dctf_cluster_share_warm(fs, version, source, all, &share);
    if (!err) {
        json_object_set_new(answer, "size", json_integer((json_int_t)version->size));
        json_object_set_new(answer, "share_bytes", json_integer((json_int_t)share.bytes));
        json_object_set_new(answer, "fetched_bytes", json_integer((json_int_t)share.fetched_bytes));
        json_object_set_new(answer, "not_kept_bytes", json_integer((json_int_t)share.unkept_bytes));
        json_object_set_new(answer, "away_bytes", json_integer((json_int_t)share.away_bytes));
        if (share.away)
            json_object_set_new(answer, "away_code", json_integer((json_int_t)share.away));
    }
    return err;
}

static enum dctf_err cmd_warm(struct dctf_fs *fs, const json_t *request, json_t *answer)
{
    struct dctf_source *source;
    struct dctf_version *version;
    struct dctf_warm_result result = {0};
    const char *scope = json_string_value(json_object_get(request, "scope"));
    uint32_t bad = 0;
    enum dctf_err err = get_source(fs, request, &source, &version);

    if (!err && !source)
        err = DCTF_ERR_IS_A_DIRECTORY;
    if (!err && json_is_true(json_object_get(request, "verify")))
        err = dctf_shard_verify(dctf_source_shard(source), &bad);
    if (!err && scope)
        err = warm_share(fs, version, source, scope, answer);
    else if (!err)
        err = dctf_engine_warm(fs->engine, source, &result);
    if (!err && !scope) {
        json_object_set_new(answer, "size", json_integer((json_int_t)version->size));
        json_object_set_new(answer, "present_bytes",
            json_integer((json_int_t)dctf_shard_present_bytes(dctf_source_shard(source))));
        json_object_set_new(answer, "fetched_bytes", json_integer((json_int_t)result.fetched_bytes));
        json_object_set_new(answer, "kept", json_boolean(result.kept));
    }
    if (!err)
        json_object_set_new(answer, "bad_blocks", json_integer(bad));
    dctf_engine_put(fs->engine, source);
    dctf_version_unref(version);
    return err;
}

static enum dctf_err cmd_evict(struct dctf_fs *fs, const json_t *request, json_t *answer)
{
    char path[DCTF_KEY_MAX + 1];
    struct dctf_evicted evicted;
    enum dctf_err err = dctf_control_text(request, "path", path);

    if (!err)
        err = dctf_control_tell(fs, request, DCTF_TELL_EVICT, path, false, answer);
    if (!err)
        err = dctf_evict(fs, path, &evicted);
    if (!err) {
        json_object_set_new(answer, "shards", json_integer((json_int_t)evicted.shards));
        json_object_set_new(answer, "bytes", json_integer((json_int_t)evicted.bytes));
        json_object_set_new(answer, "busy", json_integer((json_int_t)evicted.busy));
    }
    return err;
}

static enum dctf_err cmd_sync(struct dctf_fs *fs, const json_t *request, json_t *answer)
{
    char path[DCTF_KEY_MAX + 1];
    bool force = json_is_true(json_object_get(request, "force"));
    uint64_t directories = 0;
    enum dctf_err err = dctf_control_text(request, "path", path);

    if (!err)
        err = dctf_control_tell(fs, request, DCTF_TELL_SYNC, path, force, answer);
    if (!err)
        err = dctf_dir_sync(fs, path, force, &directories);
    json_object_set_new(answer, "directories", json_integer((json_int_t)directories));
    return err;
}

static void examine_step(void *ctx, const struct dctf_origin_step *step)
{
    const char *remedy = step->remedy ? step->remedy : dctf_err_remedy(step->err);
    json_t *row = json_pack("{s:s, s:i, s:b, s:o}", "name", step->name, "code", (int)step->err, "skipped",
        step->skipped, "text", text_or(step->text, "(no text)"));

    if (step->err && !step->skipped)
        json_object_set_new(row, "remedy", text_or(remedy, ""));
    json_array_append_new(ctx, row);
}

/* The origin as the daemon sees it: with its credentials, its environment, its network. */
static enum dctf_err cmd_examine(struct dctf_fs *fs, const json_t *request, json_t *answer)
{
    json_int_t wait_ms = json_integer_value(json_object_get(request, "timeout_ms"));
    uint64_t deadline_ms = wait_ms > 0 && wait_ms < EXAMINE_MAX_MS ? (uint64_t)wait_ms : EXAMINE_MAX_MS;
    json_t *steps = json_array();
    char detail[256] = "";

    if (json_object_set_new(answer, "steps", steps))
        return DCTF_ERR_NO_MEMORY;
    if (fs->origin->ops->examine) {
        fs->origin->ops->examine(fs->origin, deadline_ms, examine_step, steps);
    } else {
        struct dctf_origin_step step = {.name = "list", .text = detail};

        step.err = fs->origin->ops->check(fs->origin, deadline_ms, detail);
        if (!*detail)
            step.text = step.err ? dctf_err_text(step.err) : "the source can be listed";
        examine_step(steps, &step);
    }
    return DCTF_OK;
}

static const struct {
    const char *name;
    enum dctf_err (*run)(struct dctf_fs *fs, const json_t *request, json_t *answer);
} commands[] = {
    {"ping", cmd_ping},
    {"status", cmd_status},
    {"heat", cmd_heat},
    {"peers", cmd_peers},
    {"metrics", cmd_metrics},
    {"config", cmd_config},
    {"list", cmd_list},
    {"stat", cmd_stat},
    {"warm", cmd_warm},
    {"evict", cmd_evict},
    {"sync", cmd_sync},
    {"examine", cmd_examine},
    {"examine-peers", cmd_examine_peers},
};

json_t *dctf_control_answer(struct dctf_fs *fs, const json_t *request)
{
    const char *name = json_string_value(json_object_get(request, "cmd"));
    json_t *answer;
    enum dctf_err err = DCTF_ERR_REQUEST_BAD;

    for (size_t i = 0; name && i < sizeof(commands) / sizeof(commands[0]); i++) {
        if (strcmp(name, commands[i].name) != 0)
            continue;
        answer = json_pack("{s:b}", "ok", 1);
        if (!answer)
            return NULL;
        err = commands[i].run(fs, request, answer);
        if (!err)
            return answer;
        json_decref(answer);
    }
    return failure(err);
}
