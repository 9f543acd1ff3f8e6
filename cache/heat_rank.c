/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of features, hottest first, and their classes.
 */
#include "base/log.h"
#include "cache/heat.h"
#include "cache/heat_private.h"
#include "cache/heat_record.h"
#include "cache/kv.h"

#include <stdlib.h>
#include <string.h>

#define HOT_PERCENT 10u
#define HOT_AND_MID_PERCENT 40u

struct rank_list {
    struct dctf_heat_rank *ranks;
    size_t count, cap;
};

static enum dctf_err append(struct rank_list *list, uint64_t feature_id, const struct dctf_heat_value *value)
{
    struct dctf_heat_rank *grown;
    size_t cap;

    if (list->count == list->cap) {
        cap = list->cap ? 2 * list->cap : 64;
        grown = reallocarray(list->ranks, cap, sizeof(*grown));
        if (!grown)
            return DCTF_ERR_NO_MEMORY;
        list->ranks = grown;
        list->cap = cap;
    }
    list->ranks[list->count++] = (struct dctf_heat_rank){.feature_id = feature_id, .value = *value};
    return DCTF_OK;
}

static enum dctf_err open_prefix(const struct dctf_heat *heat, char kind, struct dctf_kv_iter **out)
{
    uint8_t key[DCTF_HEAT_KEY_BYTES];

    dctf_heat_key(kind, dctf_heat_config_of(heat)->dataset, 0, key);
    return dctf_kv_iter_new(dctf_heat_kv_of(heat), DCTF_KV_HEAT, key, DCTF_HEAT_PREFIX_BYTES, out);
}

static enum dctf_err collect(const struct dctf_heat *heat, uint64_t now, struct rank_list *list)
{
    struct dctf_kv_iter *iter;
    enum dctf_err err = open_prefix(heat, 'f', &iter);

    for (; !err && dctf_kv_iter_valid(iter); dctf_kv_iter_next(iter)) {
        struct dctf_heat_count count;
        struct dctf_heat_value value;
        size_t key_len, len;
        const char *key = dctf_kv_iter_key(iter, &key_len);
        const char *data = dctf_kv_iter_value(iter, &len);

        if (key_len != DCTF_HEAT_KEY_BYTES || !dctf_heat_count_decode(data, len, &count))
            continue;
        dctf_heat_value_of(dctf_heat_config_of(heat), &count, now, &value);
        if (value.access_count)
            err = append(list, dctf_heat_key_id(key), &value);
    }
    if (!err)
        err = dctf_kv_iter_err(iter);
    dctf_kv_iter_free(iter);
    return err;
}

static enum dctf_err set_name(struct dctf_heat_rank *rank, const char *name, size_t len)
{
    rank->feature = malloc(len + 1);
    if (!rank->feature)
        return DCTF_ERR_NO_MEMORY;
    memcpy(rank->feature, name, len);
    rank->feature[len] = '\0';
    return DCTF_OK;
}

/* Names and records lie in the same order of ids. */
static enum dctf_err add_names(const struct dctf_heat *heat, struct rank_list *list)
{
    struct dctf_kv_iter *iter;
    enum dctf_err err = open_prefix(heat, 'n', &iter);
    size_t i = 0;

    while (!err && i < list->count && dctf_kv_iter_valid(iter)) {
        size_t key_len, len;
        const char *key = dctf_kv_iter_key(iter, &key_len);
        const char *data = dctf_kv_iter_value(iter, &len);
        uint64_t id = key_len == DCTF_HEAT_KEY_BYTES ? dctf_heat_key_id(key) : 0;

        if (list->ranks[i].feature_id < id) {
            i++;
            continue;
        }
        if (list->ranks[i].feature_id == id && len >= DCTF_HEAT_STAMP_BYTES)
            err = set_name(&list->ranks[i++], data + DCTF_HEAT_STAMP_BYTES, len - DCTF_HEAT_STAMP_BYTES);
        dctf_kv_iter_next(iter);
    }
    if (!err)
        err = dctf_kv_iter_err(iter);
    dctf_kv_iter_free(iter);
    for (i = 0; !err && i < list->count; i++)
        if (!list->ranks[i].feature)
            err = set_name(&list->ranks[i], "?", 1);
    return err;
}

static int by_heat(const void *left, const void *right)
{
    const struct dctf_heat_rank *a = left, *b = right;

    if (a->value.heat != b->value.heat)
        return a->value.heat > b->value.heat ? -1 : 1;
    return a->feature_id < b->feature_id ? -1 : a->feature_id > b->feature_id;
}

static bool fits(uint64_t *used, uint64_t bytes, uint64_t max)
{
    if (max && (bytes > max || *used > max - bytes))
        return false;
    *used += bytes;
    return true;
}

static void classify(struct dctf_heat_rank *ranks, size_t count, uint64_t hot_max, uint64_t mid_max)
{
    size_t hot_end = count * HOT_PERCENT / 100, mid_end = count * HOT_AND_MID_PERCENT / 100;
    uint64_t hot_bytes = 0, both_bytes = 0;

    if (hot_end == 0)
        hot_end = 1;
    for (size_t i = 0; i < count; i++) {
        uint64_t bytes = ranks[i].bytes;
        uint64_t hot_after = hot_bytes;

        /* A hot feature takes its share of both bounds, or of neither. */
        ranks[i].class = DCTF_HEAT_COLD;
        if (i < hot_end && fits(&hot_after, bytes, hot_max) && fits(&both_bytes, bytes, mid_max)) {
            hot_bytes = hot_after;
            ranks[i].class = DCTF_HEAT_HOT;
        } else if ((i < hot_end || i < mid_end) && fits(&both_bytes, bytes, mid_max)) {
            ranks[i].class = DCTF_HEAT_MID;
        }
    }
}

enum dctf_err dctf_heat_ranks(struct dctf_heat *heat,
    uint64_t (*bytes_of)(void *ctx, uint64_t feature_id, const char *feature), void *ctx,
    uint64_t hot_bytes_max, uint64_t mid_bytes_max, struct dctf_heat_rank **out, size_t *count)
{
    struct rank_list list = {0};
    enum dctf_err err = dctf_heat_flush(heat);

    *out = NULL;
    *count = 0;
    if (err)
        dctf_log(DCTF_LOG_WARN, "heat", "err=%d ranks lack the latest accesses", (int)err);
    err = collect(heat, dctf_clock_wall_ms(dctf_heat_config_of(heat)->clock), &list);
    if (!err)
        err = add_names(heat, &list);
    if (err) {
        dctf_heat_ranks_free(list.ranks, list.count);
        return err;
    }
    for (size_t i = 0; bytes_of && i < list.count; i++)
        list.ranks[i].bytes = bytes_of(ctx, list.ranks[i].feature_id, list.ranks[i].feature);
    if (list.count > 0)
        qsort(list.ranks, list.count, sizeof(*list.ranks), by_heat);
    classify(list.ranks, list.count, hot_bytes_max, mid_bytes_max);
    *out = list.ranks;
    *count = list.count;
    return DCTF_OK;
}

void dctf_heat_ranks_free(struct dctf_heat_rank *ranks, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(ranks[i].feature);
    free(ranks);
}

const char *dctf_heat_class_name(enum dctf_heat_class class)
{
    switch (class) {
    case DCTF_HEAT_HOT:
        return "hot";
    case DCTF_HEAT_MID:
        return "mid";
    case DCTF_HEAT_COLD:
        return "cold";
    }
    return "unknown";
}
