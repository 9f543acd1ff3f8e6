/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/origin_script_rules.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const op_names[DCTF_SCRIPT_OP_COUNT] = {"get", "list", "head", "check"};

struct dctf_script_rule {
    unsigned ops; /* bits */
    char *key;
    double p;
    json_int_t left; /* < 0: no limit */
    struct dctf_script_fate fate;
};

static void rules_free(struct dctf_script_rule *rules, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(rules[i].key);
    free(rules);
}

static enum dctf_err err_by_name(const char *name)
{
    for (size_t i = 0; dctf_err_at(i) != DCTF_OK; i++)
        if (strcmp(dctf_err_name(dctf_err_at(i)), name) == 0)
            return dctf_err_at(i);
    return DCTF_OK;
}

/* False: not understood; `why` (JSON_ERROR_TEXT_LENGTH) says it. */
static bool rule_parse(json_t *json, struct dctf_script_rule *rule, char *why)
{
    const char *op = "*";
    const char *key = "*";
    const char *error = NULL;
    json_int_t delay_ms = 0;
    json_int_t cut_at = -1;
    int stall = 0;
    int hard = 0;
    int wrong_version = 0;
    json_error_t at;

    rule->p = 1;
    rule->left = -1;
    if (json_unpack_ex(json, &at, 0, "{s?s s?s s?F s?I s?I s?b s?b s?s s?I s?b !}", "op", &op, "key", &key,
            "p", &rule->p, "n", &rule->left, "delay_ms", &delay_ms, "stall", &stall, "hard", &hard, "error",
            &error, "short", &cut_at, "wrong_version", &wrong_version) != 0) {
        snprintf(why, JSON_ERROR_TEXT_LENGTH, "%s", at.text);
        return false;
    }
    for (unsigned i = 0; i < DCTF_SCRIPT_OP_COUNT; i++)
        if (strcmp(op, "*") == 0 || strcmp(op, op_names[i]) == 0)
            rule->ops |= 1u << i;
    rule->fate = (struct dctf_script_fate){
        .delay_ms = (uint64_t)delay_ms,
        .stall = stall,
        .hard = hard,
        .err = error           ? err_by_name(error)
               : wrong_version ? DCTF_ERR_VERSION_MISMATCH
                               : DCTF_OK,
        .cut = cut_at >= 0,
        .cut_at = cut_at >= 0 ? (size_t)cut_at : 0,
    };
    rule->key = strdup(key);
    if (rule->key && rule->ops && delay_ms >= 0 && (!error || rule->fate.err))
        return true;
    snprintf(why, JSON_ERROR_TEXT_LENGTH, "bad op, delay or error");
    return false;
}

void dctf_script_rules_fini(struct dctf_script_rules *rules)
{
    rules_free(rules->rules, rules->count);
    free(rules->stats);
}

bool dctf_script_rules_apply(struct dctf_script_rules *rules, json_t *json, char *why)
{
    json_int_t seed = rules->seed;
    json_int_t serial = 0;
    const char *stats = NULL;
    json_t *list = NULL;
    struct dctf_script_rule *fresh;
    json_error_t at;
    size_t count;

    if (json_unpack_ex(json, &at, 0, "{s?I s?I s?s s?o !}", "seed", &seed, "serial", &serial, "stats", &stats,
            "rules", &list) != 0) {
        snprintf(why, JSON_ERROR_TEXT_LENGTH, "%s", at.text);
        return false;
    }
    count = json_array_size(list);
    fresh = calloc(count + 1, sizeof(*fresh));
    if (!fresh)
        return false;
    for (size_t i = 0; i < count; i++) {
        if (!rule_parse(json_array_get(list, i), &fresh[i], why)) {
            rules_free(fresh, count);
            return false;
        }
    }
    rules_free(rules->rules, rules->count);
    rules->rules = fresh;
    rules->count = count;
    if (seed != rules->seed)
        rules->rng.state = (uint64_t)seed;
    rules->seed = seed;
    rules->serial = serial;
    free(rules->stats);
    rules->stats = stats ? strdup(stats) : NULL;
    return true;
}

static bool rule_names(const struct dctf_script_rule *rule, enum dctf_script_op op, const char *key)
{
    return rule->ops & 1u << op && fnmatch(rule->key, key, 0) == 0;
}

struct dctf_script_fate dctf_script_rules_decide(
    struct dctf_script_rules *rules, enum dctf_script_op op, const char *key)
{
    for (size_t i = 0; i < rules->count; i++) {
        struct dctf_script_rule *rule = &rules->rules[i];

        if (rule->left == 0 || !rule_names(rule, op, key))
            continue;
        if (rule->p < 1 && (double)(dctf_rng_next(&rules->rng) >> 11) * 0x1p-53 >= rule->p)
            continue;
        if (rule->left > 0)
            rule->left--;
        return rule->fate;
    }
    return (struct dctf_script_fate){0};
}

bool dctf_script_rules_stall(const struct dctf_script_rules *rules, enum dctf_script_op op, const char *key)
{
    for (size_t i = 0; i < rules->count; i++)
        if (rules->rules[i].fate.stall && rule_names(&rules->rules[i], op, key))
            return true;
    return false;
}
