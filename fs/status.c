/* SPDX-License-Identifier: Apache-2.0
 *
 * What the mount tells of itself. One place makes the facts; `.dctf/`, the control socket and
 * `dctf` show the same.
 */
#include "fs/fs_private.h"

#include "base/budget.h"
#include "base/clock.h"
#include "cache/admission.h"
#include "cache/heat.h"
#include "cache/store.h"
#include "transport/fetch.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Hot features may take half of the cache, hot and mid together three quarters. */
#define HOT_SHARE_NUM 1u
#define MID_SHARE_NUM 3u

static json_int_t metric(struct dctf_fs *fs, enum dctf_metric id)
{
    return (json_int_t)dctf_metric_get(fs->metrics, id);
}

/* A path for people: as it is, or with what is not UTF-8 as \\xNN. */
static json_t *shown(const char *path)
{
    char quoted[4 * DCTF_KEY_MAX + 3];
    json_t *text = json_string(path);

    return text ? text : json_string(dctf_str_quote(path, quoted, sizeof(quoted)));
}

static json_t *cache_json(struct dctf_fs *fs, const struct dctf_store_stats *stats)
{
    return json_pack("{s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:b}", "dir", shown(fs->cache_dir),
        "limit_bytes", (json_int_t)stats->limit_bytes, "file_bytes", (json_int_t)stats->file_bytes,
        "index_bytes", (json_int_t)stats->index_bytes, "small_bytes", (json_int_t)stats->small_bytes,
        "shards", (json_int_t)stats->shards, "verified_shards", (json_int_t)stats->verified_shards,
        "counting", stats->counting, "bypassing", stats->bypassing);
}

static json_t *memory_json(struct dctf_fs *fs)
{
    struct dctf_engine_stats engine;
    long pages = 0;
    FILE *statm = fopen("/proc/self/statm", "re");

    if (statm) {
        if (fscanf(statm, "%*s %ld", &pages) != 1)
            pages = 0;
        fclose(statm);
    }
    dctf_engine_stats(fs->engine, &engine);
    return json_pack("{s:I, s:I, s:I, s:I, s:I}", "limit_bytes", (json_int_t)fs->memory_bytes,
        "buffers_limit_bytes", (json_int_t)dctf_budget_limit(fs->budget), "buffers_used_bytes",
        (json_int_t)dctf_budget_used(fs->budget), "chunks", (json_int_t)engine.chunks, "rss_bytes",
        (json_int_t)pages * sysconf(_SC_PAGESIZE));
}

static json_t *reads_json(struct dctf_fs *fs)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I}", "warm_bytes", metric(fs, DCTF_METRIC_READ_BYTES_WARM),
        "origin_bytes", metric(fs, DCTF_METRIC_READ_BYTES_ORIGIN), "memory_bytes",
        metric(fs, DCTF_METRIC_READ_BYTES_MEMORY), "requests", metric(fs, DCTF_METRIC_READS), "waiting",
        metric(fs, DCTF_METRIC_READS_WAITING));
}

static json_t *opens_json(struct dctf_fs *fs)
{
    double hits = (double)metric(fs, DCTF_METRIC_CACHE_SHARD_HITS);
    double misses = (double)metric(fs, DCTF_METRIC_CACHE_SHARD_MISSES);

    return json_pack("{s:I, s:I, s:I, s:f}", "hot", metric(fs, DCTF_METRIC_OPENS_HOT), "warm",
        metric(fs, DCTF_METRIC_OPENS_WARM), "cold", metric(fs, DCTF_METRIC_OPENS_COLD), "shard_hit_rate",
        hits + misses > 0 ? hits / (hits + misses) : 0.0);
}

static json_t *origin_json(struct dctf_fs *fs)
{
    struct dctf_fetch_stats stats;

    dctf_fetch_stats(fs->fetch, &stats);
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:s, s:I}", "list_requests",
        metric(fs, DCTF_METRIC_ORIGIN_LIST), "head_requests", metric(fs, DCTF_METRIC_ORIGIN_HEAD),
        "get_requests", metric(fs, DCTF_METRIC_ORIGIN_GET), "bytes", metric(fs, DCTF_METRIC_ORIGIN_BYTES),
        "retries", metric(fs, DCTF_METRIC_ORIGIN_RETRIES), "running", (json_int_t)stats.running,
        "queued_demand", (json_int_t)stats.queued[DCTF_FETCH_DEMAND], "queued_prefetch",
        (json_int_t)stats.queued[DCTF_FETCH_PREFETCH], "abandoned", (json_int_t)stats.abandoned,
        "last_error_ms", (json_int_t)stats.last_error_ms, "last_error_code", (int)stats.last_error,
        "last_error", stats.last_error ? dctf_err_text(stats.last_error) : "", "last_success_ms",
        (json_int_t)stats.last_success_ms);
}

static json_t *admission_json(struct dctf_fs *fs)
{
    struct dctf_admission_stats stats;

    dctf_admission_stats(dctf_store_admission(fs->store), &stats);
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I}", "rule", stats.recency ? "recency" : "hold", "accesses",
        (json_int_t)stats.now, "epoch_accesses", (json_int_t)stats.epoch_accesses, "shards_tracked",
        (json_int_t)stats.shards_tracked, "admitted", metric(fs, DCTF_METRIC_CACHE_ADMITTED), "bypassed",
        metric(fs, DCTF_METRIC_CACHE_BYPASSED));
}

static json_t *errors_json(struct dctf_fs *fs)
{
    json_t *errors = json_object();
    enum dctf_err err;

    for (size_t i = 0; (err = dctf_err_at(i)) != DCTF_OK; i++) {
        int64_t count = dctf_metric_errors(fs->metrics, err);
        char code[16];

        if (count == 0)
            continue;
        snprintf(code, sizeof(code), "%d", (int)err);
        json_object_set_new(errors, code, json_integer((json_int_t)count));
    }
    return errors;
}

json_t *dctf_status_json(struct dctf_fs *fs)
{
    struct dctf_store_stats stats;
    uint64_t now = dctf_clock_wall_ms(NULL);

    dctf_store_stats(fs->store, &stats);
    return json_pack("{s:s, s:s, s:s, s:i, s:o, s:o, s:I, s:I, s:o, s:o, s:{s:b, s:s}, s:i, s:o, s:o, s:o, "
                     "s:o, s:{s:I, s:I}, s:I, s:o, s:o}",
        "version", DCTF_VERSION, "node", fs->node, "zone", fs->config->zone ? fs->config->zone : "", "pid",
        (int)getpid(), "source", shown(fs->source), "mountpoint", shown(fs->mountpoint), "started_ms",
        (json_int_t)fs->started_ms, "uptime_s",
        (json_int_t)((now > fs->started_ms ? now - fs->started_ms : 0) / 1000), "cache",
        cache_json(fs, &stats), "memory", memory_json(fs), "passthrough", "active",
        dctf_passthrough_active(fs->passthrough), "reason", dctf_passthrough_reason(fs->passthrough),
        "read_ahead_kb", (int)fs->read_ahead_kb, "reads", reads_json(fs), "opens", opens_json(fs), "origin",
        origin_json(fs), "admission", admission_json(fs), "fs", "inodes",
        (json_int_t)dctf_inodes_count(fs->inodes), "handles", metric(fs, DCTF_METRIC_HANDLES), "hidden_keys",
        metric(fs, DCTF_METRIC_HIDDEN_KEYS), "errors", errors_json(fs), "cluster", dctf_cluster_json(fs));
}

/* Resident bytes by feature, for the ranks' bounds ------------------------------------ */

struct feature_bytes {
    uint64_t *ids; /* open addressing; 0 is free */
    uint64_t *bytes;
    size_t count, slots; /* slots: a power of two */
};

static size_t feature_slot(const struct feature_bytes *table, uint64_t id)
{
    size_t slot = (size_t)id & (table->slots - 1);

    while (table->ids[slot] && table->ids[slot] != id)
        slot = (slot + 1) & (table->slots - 1);
    return slot;
}

static bool feature_grow(struct feature_bytes *table)
{
    struct feature_bytes bigger = {.slots = table->slots ? table->slots * 2 : 1024, .count = table->count};

    bigger.ids = calloc(bigger.slots, sizeof(uint64_t));
    bigger.bytes = calloc(bigger.slots, sizeof(uint64_t));
    if (!bigger.ids || !bigger.bytes) {
        free(bigger.ids);
        free(bigger.bytes);
        return false;
    }
    for (size_t i = 0; i < table->slots; i++) {
        if (table->ids[i]) {
            size_t slot = feature_slot(&bigger, table->ids[i]);

            bigger.ids[slot] = table->ids[i];
            bigger.bytes[slot] = table->bytes[i];
        }
    }
    free(table->ids);
    free(table->bytes);
    *table = bigger;
    return true;
}

static bool feature_visit(void *ctx, const struct dctf_version *version, uint64_t present_bytes)
{
    struct feature_bytes *table = ctx;
    uint64_t id = version->feature_id ? version->feature_id : 1;
    size_t slot;

    if (table->count * 2 >= table->slots && !feature_grow(table))
        return false;
    slot = feature_slot(table, id);
    if (!table->ids[slot]) {
        table->ids[slot] = id;
        table->count++;
    }
    table->bytes[slot] += present_bytes;
    return true;
}

static uint64_t feature_bytes_of(void *ctx, uint64_t feature_id, const char *feature)
{
    const struct feature_bytes *table = ctx;

    (void)feature;
    return table->slots ? table->bytes[feature_slot(table, feature_id ? feature_id : 1)] : 0;
}

static enum dctf_err ranks_get(struct dctf_fs *fs, struct dctf_heat_rank **ranks, size_t *count)
{
    struct feature_bytes table = {0};
    struct dctf_store_stats stats;
    enum dctf_err err = dctf_store_each(fs->store, feature_visit, &table);

    *ranks = NULL;
    *count = 0;
    dctf_store_stats(fs->store, &stats);
    if (!err)
        err = dctf_heat_ranks(dctf_store_heat(fs->store), feature_bytes_of, &table,
            stats.limit_bytes / 2 * HOT_SHARE_NUM, stats.limit_bytes / 4 * MID_SHARE_NUM, ranks, count);
    free(table.ids);
    free(table.bytes);
    return err;
}

void dctf_json_set_name(json_t *object, const char *field, const char *name)
{
    json_t *text = json_string(name);
    char hex_field[64];
    struct dctf_str hex;

    if (text) {
        json_object_set_new(object, field, text);
        return;
    }
    dctf_str_init(&hex);
    for (const char *c = name; *c; c++)
        dctf_str_printf(&hex, "%02x", (unsigned char)*c);
    snprintf(hex_field, sizeof(hex_field), "%s_hex", field);
    json_object_set_new(object, hex_field, json_string(dctf_str_c(&hex)));
    dctf_str_fini(&hex);
}

json_t *dctf_heat_json(struct dctf_fs *fs, size_t limit, size_t *total)
{
    struct dctf_heat_rank *ranks;
    json_t *features;

    if (ranks_get(fs, &ranks, total))
        return NULL;
    features = json_array();
    for (size_t i = 0; features && i < *total && (limit == 0 || i < limit); i++) {
        const struct dctf_heat_rank *rank = &ranks[i];
        char id[17];
        json_t *row;

        snprintf(id, sizeof(id), "%016" PRIx64, rank->feature_id);
        row = json_pack("{s:s, s:f, s:I, s:I, s:s, s:I}", "feature_id", id, "heat", rank->value.heat,
            "access_count", (json_int_t)rank->value.access_count, "last_accessed_ms",
            (json_int_t)rank->value.last_accessed_ms, "class", dctf_heat_class_name(rank->class), "bytes",
            (json_int_t)rank->bytes);
        if (row)
            dctf_json_set_name(row, "feature", rank->feature);
        json_array_append_new(features, row);
    }
    dctf_heat_ranks_free(ranks, *total);
    return features;
}

enum dctf_err dctf_heat_tsv(struct dctf_fs *fs, struct dctf_str *out)
{
    struct dctf_heat_rank *ranks;
    size_t count;
    enum dctf_err err = ranks_get(fs, &ranks, &count);

    if (err)
        return err;
    dctf_str_puts(out, "feature_id\taccess_count\tlast_accessed_ms\theat\tclass\tbytes\tfeature\n");
    for (size_t i = 0; i < count; i++) {
        char quoted[4 * DCTF_KEY_MAX + 3];

        dctf_str_printf(out, "%016" PRIx64 "\t%" PRIu64 "\t%" PRIu64 "\t%.3f\t%s\t%" PRIu64 "\t%s\n",
            ranks[i].feature_id, ranks[i].value.access_count, ranks[i].value.last_accessed_ms,
            ranks[i].value.heat, dctf_heat_class_name(ranks[i].class), ranks[i].bytes,
            dctf_str_quote(ranks[i].feature, quoted, sizeof(quoted)));
    }
    dctf_heat_ranks_free(ranks, count);
    return out->err;
}

enum dctf_err dctf_metrics_text(struct dctf_fs *fs, struct dctf_str *out)
{
    struct dctf_store_stats stats;
    enum dctf_err err;

    dctf_store_stats(fs->store, &stats);
    dctf_metric_set(fs->metrics, DCTF_METRIC_CACHE_BYTES_FILES, (int64_t)stats.file_bytes);
    dctf_metric_set(fs->metrics, DCTF_METRIC_CACHE_BYTES_INDEX, (int64_t)stats.index_bytes);
    dctf_metric_set(fs->metrics, DCTF_METRIC_CACHE_LIMIT_BYTES, (int64_t)stats.limit_bytes);
    dctf_metric_set(fs->metrics, DCTF_METRIC_MEMORY_USED, (int64_t)dctf_budget_used(fs->budget));
    dctf_metric_set(fs->metrics, DCTF_METRIC_MEMORY_LIMIT, (int64_t)dctf_budget_limit(fs->budget));
    dctf_cluster_gauges(fs);
    err = dctf_metrics_write(fs->metrics, fs->node, out);
    dctf_cluster_utilization(fs, out);
    return err ? err : out->err;
}
