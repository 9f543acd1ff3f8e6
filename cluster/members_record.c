/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/members_record.h"

#include "cluster/address.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUMBER_MAX (UINT64_C(1) << 53) /* what a script's numbers keep */
#define WEIGHT_MAX (INT64_C(1) << 60)

/* --- the set --- */

void dctf_member_set_fini(struct dctf_member_set *set)
{
    free(set->nodes);
    *set = (struct dctf_member_set){.count = 0};
}

/* Where it is, or where it belongs. */
static size_t place_of(const struct dctf_member_set *set, const char *id)
{
    size_t low = 0, high = set->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (strcmp(set->nodes[middle].id, id) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const struct dctf_node *dctf_member_set_find(const struct dctf_member_set *set, const char *id)
{
    size_t at = place_of(set, id);

    return at < set->count && !strcmp(set->nodes[at].id, id) ? &set->nodes[at] : NULL;
}

enum dctf_err dctf_member_set_put(struct dctf_member_set *set, const struct dctf_node *node)
{
    size_t at = place_of(set, node->id);

    if (at < set->count && !strcmp(set->nodes[at].id, node->id)) {
        set->nodes[at] = *node;
        return DCTF_OK;
    }
    if (set->count == DCTF_NODES_MAX)
        return DCTF_ERR_OPTION_VALUE;
    if (set->count == set->cap) {
        size_t cap = set->cap ? 2 * set->cap : 16;
        struct dctf_node *grown = realloc(set->nodes, cap * sizeof(*grown));

        if (!grown)
            return DCTF_ERR_NO_MEMORY;
        set->nodes = grown;
        set->cap = cap;
    }
    memmove(&set->nodes[at + 1], &set->nodes[at], (set->count - at) * sizeof(*set->nodes));
    set->nodes[at] = *node;
    set->count++;
    return DCTF_OK;
}

void dctf_member_set_drop(struct dctf_member_set *set, const char *id)
{
    size_t at = place_of(set, id);

    if (at == set->count || strcmp(set->nodes[at].id, id) != 0)
        return;
    memmove(&set->nodes[at], &set->nodes[at + 1], (set->count - at - 1) * sizeof(*set->nodes));
    set->count--;
}

/* --- records --- */

bool dctf_member_id_is_valid(const char *id, size_t len)
{
    if (!len || len > DCTF_NODE_ID_MAX)
        return false;
    for (size_t i = 0; i < len; i++) {
        if (id[i] <= ' ' || id[i] > '~')
            return false;
    }
    return true;
}

static void clean_label(const char *label, char out[DCTF_NODE_LABEL_MAX + 1])
{
    snprintf(out, DCTF_NODE_LABEL_MAX + 1, "%s", label);
    for (char *at = out; *at; at++) {
        if (*at < ' ' || *at > '~')
            *at = '_';
    }
}

enum dctf_err dctf_member_info_encode(const struct dctf_node *node, char out[DCTF_MEMBER_INFO_MAX + 1])
{
    char zone[DCTF_NODE_LABEL_MAX + 1], rack[DCTF_NODE_LABEL_MAX + 1], host[DCTF_NODE_LABEL_MAX + 1];
    json_t *json;
    size_t len;

    *out = '\0';
    clean_label(node->zone, zone);
    clean_label(node->rack, rack);
    clean_label(node->host, host);
    if (node->weight > (uint64_t)WEIGHT_MAX)
        return DCTF_ERR_INTERNAL;
    json = json_pack("{s:s, s:s, s:s, s:s, s:I}", "a", node->addr, "z", zone, "r", rack, "h", host, "w",
        (json_int_t)node->weight);
    if (!json)
        return DCTF_ERR_NO_MEMORY;
    len = json_dumpb(json, out, DCTF_MEMBER_INFO_MAX, JSON_COMPACT);
    json_decref(json);
    if (!len || len > DCTF_MEMBER_INFO_MAX) {
        *out = '\0';
        return DCTF_ERR_INTERNAL;
    }
    out[len] = '\0';
    return DCTF_OK;
}

/* Digits up to a '|', which is passed over. */
static bool take_number(const char **at, const char *end, uint64_t *out)
{
    const char *begin = *at;

    *out = 0;
    while (*at < end && **at >= '0' && **at <= '9' && *out < NUMBER_MAX)
        *out = *out * 10 + (uint64_t)(*(*at)++ - '0');
    if (*at == begin || *at == end || **at != '|' || *out >= NUMBER_MAX)
        return false;
    (*at)++;
    return true;
}

static bool take_text(const json_t *json, const char *name, char *out, size_t cap)
{
    const json_t *value = json_object_get(json, name);
    const char *text = json_string_value(value);
    size_t len = json_string_length(value);

    if (!text || len >= cap || memchr(text, '\0', len))
        return false;
    for (size_t i = 0; i < len; i++) {
        if (text[i] < ' ' || text[i] > '~')
            return false;
    }
    memcpy(out, text, len + 1);
    return true;
}

static bool take_info(const json_t *json, struct dctf_node *out)
{
    const json_t *weight = json_object_get(json, "w");
    struct dctf_address address = {.text = ""};
    char addr[DCTF_NODE_ADDR_MAX + 1];

    if (!take_text(json, "a", addr, sizeof(addr)) || !take_text(json, "z", out->zone, sizeof(out->zone)) ||
        !take_text(json, "r", out->rack, sizeof(out->rack)) ||
        !take_text(json, "h", out->host, sizeof(out->host)) || !json_is_integer(weight) ||
        json_integer_value(weight) < 0 || json_integer_value(weight) > WEIGHT_MAX)
        return false;
    out->weight = (uint64_t)json_integer_value(weight);
    if (*addr && dctf_address_parse(addr, strlen(addr), 0, &address))
        return false;
    if (!*addr && out->weight) /* nobody could ask it */
        return false;
    memcpy(out->addr, address.text, sizeof(out->addr));
    return true;
}

bool dctf_member_record_decode(
    const char *id, size_t id_len, const char *record, size_t len, struct dctf_node *out)
{
    const char *at = record, *end = record + len;
    struct dctf_node node = {.weight = 0};
    json_t *json;
    bool ok;

    *out = node;
    if (!dctf_member_id_is_valid(id, id_len) || len > DCTF_MEMBER_RECORD_MAX)
        return false;
    memcpy(node.id, id, id_len);
    if (!take_number(&at, end, &node.joined_ms) || !take_number(&at, end, &node.incarnation))
        return false;
    json = json_loadb(at, (size_t)(end - at), JSON_REJECT_DUPLICATES, NULL);
    ok = json && take_info(json, &node);
    json_decref(json);
    if (ok)
        *out = node;
    return ok;
}

/* --- answers --- */

static bool is_text(const struct dctf_redis_value *value)
{
    return value->type == DCTF_REDIS_STRING;
}

static bool is_log_id(const struct dctf_redis_value *value)
{
    size_t digits;

    if (!is_text(value) || value->len > DCTF_MEMBER_LOG_ID_MAX || strlen(value->text) != value->len)
        return false;
    digits = strspn(value->text, "0123456789");
    return digits && value->text[digits] == '-' && value->text[digits + 1] &&
           strspn(value->text + digits + 1, "0123456789") == value->len - digits - 1;
}

static enum dctf_err put_record(struct dctf_member_set *set, const struct dctf_redis_value *id,
    const struct dctf_redis_value *record, size_t *bad)
{
    struct dctf_node node;

    if (dctf_member_record_decode(id->text, id->len, record->text, record->len, &node))
        return dctf_member_set_put(set, &node);
    ++*bad;
    return DCTF_OK;
}

enum dctf_err dctf_members_read_full(const struct dctf_redis_value *answer, struct dctf_member_set *set,
    char log_id[DCTF_MEMBER_LOG_ID_MAX + 1], size_t *bad)
{
    enum dctf_err err = DCTF_OK;

    *bad = 0;
    if (answer->type != DCTF_REDIS_ARRAY || answer->count % 2 != 1 || !is_log_id(answer->items[0]))
        return DCTF_ERR_COORDINATOR_ANSWER;
    for (size_t i = 1; i < answer->count; i++) {
        if (!is_text(answer->items[i]))
            return DCTF_ERR_COORDINATOR_ANSWER;
    }
    for (size_t i = 1; !err && i < answer->count; i += 2)
        err = put_record(set, answer->items[i], answer->items[i + 1], bad);
    if (err) {
        dctf_member_set_fini(set);
        return err;
    }
    memcpy(log_id, answer->items[0]->text, answer->items[0]->len + 1);
    return DCTF_OK;
}

static const struct dctf_redis_value *field(const struct dctf_redis_value *fields, const char *name)
{
    for (size_t i = 0; i + 1 < fields->count; i += 2) {
        if (is_text(fields->items[i]) && is_text(fields->items[i + 1]) &&
            !strcmp(fields->items[i]->text, name))
            return fields->items[i + 1];
    }
    return NULL;
}

static bool is_entry(const struct dctf_redis_value *entry)
{
    return entry->type == DCTF_REDIS_ARRAY && entry->count == 2 && is_log_id(entry->items[0]) &&
           entry->items[1]->type == DCTF_REDIS_ARRAY;
}

static enum dctf_err apply(const struct dctf_redis_value *fields, struct dctf_member_set *set,
    void (*left)(void *ctx, const char *id), void *ctx, size_t *bad)
{
    const struct dctf_redis_value *op = field(fields, "o"), *id = field(fields, "n"),
                                  *record = field(fields, "r");

    if (!op || !id || !dctf_member_id_is_valid(id->text, id->len)) {
        ++*bad;
        return DCTF_OK;
    }
    if (!strcmp(op->text, "set") && record)
        return put_record(set, id, record, bad);
    if (!strcmp(op->text, "bye"))
        left(ctx, id->text);
    else if (strcmp(op->text, "del") != 0) {
        ++*bad;
        return DCTF_OK;
    }
    dctf_member_set_drop(set, id->text);
    return DCTF_OK;
}

enum dctf_err dctf_members_read_log(const struct dctf_redis_value *answer, struct dctf_member_set *set,
    char log_id[DCTF_MEMBER_LOG_ID_MAX + 1], void (*left)(void *ctx, const char *id), void *ctx, bool *lost,
    size_t *bad)
{
    enum dctf_err err = DCTF_OK;

    *bad = 0;
    *lost = false;
    if (answer->type != DCTF_REDIS_ARRAY)
        return DCTF_ERR_COORDINATOR_ANSWER;
    for (size_t i = 0; i < answer->count; i++) {
        if (!is_entry(answer->items[i]))
            return DCTF_ERR_COORDINATOR_ANSWER;
    }
    if (!answer->count || strcmp(answer->items[0]->items[0]->text, log_id) != 0) {
        *lost = true;
        return DCTF_OK;
    }
    for (size_t i = 1; !err && i < answer->count; i++) {
        err = apply(answer->items[i]->items[1], set, left, ctx, bad);
        if (!err)
            memcpy(log_id, answer->items[i]->items[0]->text, answer->items[i]->items[0]->len + 1);
    }
    return err;
}
