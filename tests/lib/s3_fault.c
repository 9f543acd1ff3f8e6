/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/s3_fault.h"

#include "lib/s3_text.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RULES 256

struct rule {
    struct s3_act act;
    uint32_t ops; /* bits of enum s3_op */
    double p;
    uint64_t skip, count; /* count: UINT64_MAX for any number */
    uint64_t matched, fired;
    char *bucket, *prefix; /* NULL: all */
    json_t *json;          /* as it was given */
};

struct s3_faults {
    pthread_mutex_t lock;
    struct rule rules[MAX_RULES]; /* guarded by lock, as all below */
    size_t count;
    unsigned last_id;
    uint64_t dice;
};

static const struct kind {
    const char *name;
    enum s3_fault_kind kind;
    unsigned status;
    const char *code;
} kinds[] = {
    {"latency", S3_FAULT_LATENCY, 0, ""},
    {"slow", S3_FAULT_SLOW, 0, ""},
    {"status", S3_FAULT_STATUS, 503, "SlowDown"},
    {"slowdown", S3_FAULT_STATUS, 503, "SlowDown"},
    {"internal", S3_FAULT_STATUS, 500, "InternalError"},
    {"throttle", S3_FAULT_STATUS, 429, "TooManyRequests"},
    {"denied", S3_FAULT_STATUS, 403, "AccessDenied"},
    {"missing", S3_FAULT_STATUS, 404, "NoSuchKey"},
    {"timeout", S3_FAULT_STATUS, 400, "RequestTimeout"},
    {"expired_token", S3_FAULT_STATUS, 400, "ExpiredToken"},
    {"skewed", S3_FAULT_STATUS, 403, "RequestTimeTooSkewed"},
    {"redirect", S3_FAULT_REDIRECT, 301, "PermanentRedirect"},
    {"wrong_region", S3_FAULT_WRONG_REGION, 400, "AuthorizationHeaderMalformed"},
    {"reset", S3_FAULT_RESET, 0, ""},
    {"cut", S3_FAULT_CUT, 0, ""},
    {"stall", S3_FAULT_STALL, 0, ""},
    {"garbage", S3_FAULT_GARBAGE, 0, ""},
    {"wrong_etag", S3_FAULT_WRONG_ETAG, 0, ""},
    {"wrong_range", S3_FAULT_WRONG_RANGE, 0, ""},
    {"ignore_range", S3_FAULT_IGNORE_RANGE, 0, ""},
    {"overwrite", S3_FAULT_OVERWRITE, 0, ""},
    {"error_200", S3_FAULT_ERROR_200, 0, ""},
    {"truncated_xml", S3_FAULT_TRUNCATED_XML, 0, ""},
    {"invalid_xml", S3_FAULT_INVALID_XML, 0, ""},
    {"empty", S3_FAULT_EMPTY, 0, ""},
};

struct s3_faults *s3_faults_new(void)
{
    struct s3_faults *faults = s3_alloc(sizeof(*faults));

    pthread_mutex_init(&faults->lock, NULL);
    faults->dice = 1;
    return faults;
}

static void rule_fini(struct rule *rule)
{
    free(rule->bucket);
    free(rule->prefix);
    json_decref(rule->json);
}

static void clear_locked(struct s3_faults *faults)
{
    for (size_t i = 0; i < faults->count; i++)
        rule_fini(&faults->rules[i]);
    faults->count = 0;
}

void s3_faults_free(struct s3_faults *faults)
{
    clear_locked(faults);
    pthread_mutex_destroy(&faults->lock);
    free(faults);
}

void s3_faults_seed(struct s3_faults *faults, uint64_t seed)
{
    pthread_mutex_lock(&faults->lock);
    faults->dice = seed;
    pthread_mutex_unlock(&faults->lock);
}

/* In [0, 1): splitmix64. */
static double roll_locked(struct s3_faults *faults)
{
    uint64_t z = (faults->dice += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) / 9007199254740992.0;
}

static bool parse_ops(json_t *value, uint32_t *ops)
{
    if (!value) {
        *ops = UINT32_MAX;
        return true;
    }
    if (json_is_string(value)) {
        enum s3_op op = s3_op_named(json_string_value(value));

        *ops |= 1u << op;
        return op != S3_OPS;
    }
    size_t i;
    json_t *name;

    if (!json_is_array(value))
        return false;
    json_array_foreach(value, i, name)
    {
        if (!json_is_string(name) || !parse_ops(name, ops))
            return false;
    }
    return true;
}

static bool parse_text(json_t *object, const char *name, char *out, size_t size)
{
    json_t *value = json_object_get(object, name);

    if (!value)
        return true;
    if (!json_is_string(value) || json_string_length(value) >= size)
        return false;
    strcpy(out, json_string_value(value));
    return true;
}

static bool parse_number(json_t *object, const char *name, double *out)
{
    json_t *value = json_object_get(object, name);

    if (!value)
        return true;
    *out = json_number_value(value);
    return json_is_number(value) && *out >= 0;
}

static bool parse_count(json_t *object, const char *name, uint64_t *out)
{
    json_t *value = json_object_get(object, name);

    if (!value)
        return true;
    *out = (uint64_t)json_integer_value(value);
    return json_is_integer(value) && json_integer_value(value) >= 0;
}

static const char *parse_act(json_t *object, struct s3_act *act)
{
    const char *name = json_string_value(json_object_get(object, "kind"));
    const struct kind *kind = NULL;
    double status, retry_after = -1, after = -1;

    for (size_t i = 0; name && i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (!strcmp(kinds[i].name, name))
            kind = &kinds[i];
    }
    if (!kind)
        return "no such kind of fault";
    act->kind = kind->kind;
    status = kind->status;
    strcpy(act->code, kind->code);
    act->total = json_is_true(json_object_get(object, "total"));
    if (!parse_number(object, "status", &status) || !parse_number(object, "retry_after", &retry_after) ||
        !parse_number(object, "after", &after) || !parse_number(object, "ms", &act->ms) ||
        !parse_number(object, "rate", &act->rate))
        return "status, retry_after, after, ms, rate: numbers, not negative";
    if (!parse_text(object, "code", act->code, sizeof(act->code)) ||
        !parse_text(object, "message", act->message, sizeof(act->message)) ||
        !parse_text(object, "endpoint", act->endpoint, sizeof(act->endpoint)) ||
        !parse_text(object, "region", act->region, sizeof(act->region)) ||
        !parse_text(object, "etag", act->etag, sizeof(act->etag)))
        return "code, message, endpoint, region, etag: strings, not too long";
    bool answers =
        act->kind == S3_FAULT_STATUS || act->kind == S3_FAULT_REDIRECT || act->kind == S3_FAULT_WRONG_REGION;

    if (answers && (status < 200 || status > 599))
        return "status: 200 to 599";
    if (act->kind == S3_FAULT_SLOW && act->rate < 1)
        return "slow: needs a rate";
    act->status = (unsigned)status;
    act->retry_after = (int)retry_after;
    act->after = act->kind == S3_FAULT_CUT && after < 0 ? 0 : (int64_t)after;
    return NULL;
}

/* A word that is misspelt would be a fault that never comes. */
static bool known_fields(json_t *object)
{
    static const char known[] = " kind op bucket prefix p skip count ms rate status code message retry_after "
                                "endpoint region after total etag ";
    const char *name;
    json_t *value;

    json_object_foreach(object, name, value)
    {
        char word[32];

        snprintf(word, sizeof(word), " %.28s ", name);
        if (!strstr(known, word))
            return false;
    }
    return true;
}

static const char *parse_rule(json_t *object, struct rule *rule)
{
    const char *wrong = parse_act(object, &rule->act);
    json_t *bucket = json_object_get(object, "bucket"), *prefix = json_object_get(object, "prefix");

    if (wrong)
        return wrong;
    if (!known_fields(object))
        return "a field that rules do not have";
    rule->p = 1;
    rule->count = UINT64_MAX;
    if (!parse_ops(json_object_get(object, "op"), &rule->ops))
        return "op: a name or a list of names";
    if (!parse_number(object, "p", &rule->p) || !parse_count(object, "skip", &rule->skip) ||
        !parse_count(object, "count", &rule->count))
        return "p: a number; skip, count: whole numbers";
    if ((bucket && !json_is_string(bucket)) || (prefix && !json_is_string(prefix)))
        return "bucket, prefix: strings";
    rule->bucket = bucket ? s3_copy(json_string_value(bucket)) : NULL;
    rule->prefix = prefix ? s3_copy(json_string_value(prefix)) : NULL;
    rule->json = json_deep_copy(object);
    return NULL;
}

const char *s3_faults_add(struct s3_faults *faults, json_t *object, json_t **ids)
{
    json_t *list = json_object_get(object, "rules");
    size_t count = list ? json_array_size(list) : 1, done = 0;
    struct rule *rules = s3_alloc((count + 1) * sizeof(*rules));
    const char *wrong = list && !json_is_array(list) ? "rules: a list" : NULL;

    for (; done < count && !wrong; done++)
        wrong = parse_rule(list ? json_array_get(list, done) : object, &rules[done]);
    *ids = NULL;
    pthread_mutex_lock(&faults->lock);
    bool replace = json_is_true(json_object_get(object, "replace"));

    if (!wrong && (replace ? 0 : faults->count) + count > MAX_RULES)
        wrong = "too many rules";
    if (wrong) {
        pthread_mutex_unlock(&faults->lock);
        for (size_t i = 0; i < done; i++)
            rule_fini(&rules[i]);
        free(rules);
        return wrong;
    }
    if (replace)
        clear_locked(faults);
    *ids = json_array();
    for (size_t i = 0; i < count; i++) {
        rules[i].act.id = ++faults->last_id;
        faults->rules[faults->count++] = rules[i];
        json_array_append_new(*ids, json_integer(rules[i].act.id));
    }
    pthread_mutex_unlock(&faults->lock);
    free(rules);
    return NULL;
}

bool s3_faults_remove(struct s3_faults *faults, unsigned id)
{
    bool found = id == 0;

    pthread_mutex_lock(&faults->lock);
    if (id == 0)
        clear_locked(faults);
    for (size_t i = 0; i < faults->count; i++) {
        if (faults->rules[i].act.id != id)
            continue;
        rule_fini(&faults->rules[i]);
        memmove(&faults->rules[i], &faults->rules[i + 1], (faults->count - i - 1) * sizeof(struct rule));
        faults->count--;
        found = true;
        break;
    }
    pthread_mutex_unlock(&faults->lock);
    return found;
}

bool s3_faults_has(struct s3_faults *faults, unsigned id)
{
    bool found = false;

    pthread_mutex_lock(&faults->lock);
    for (size_t i = 0; i < faults->count && !found; i++)
        found = faults->rules[i].act.id == id;
    pthread_mutex_unlock(&faults->lock);
    return found;
}

json_t *s3_faults_json(struct s3_faults *faults)
{
    json_t *list = json_array();

    pthread_mutex_lock(&faults->lock);
    for (size_t i = 0; i < faults->count; i++) {
        struct rule *rule = &faults->rules[i];
        json_t *one = json_deep_copy(rule->json);

        json_object_set_new(one, "id", json_integer(rule->act.id));
        json_object_set_new(one, "matched", json_integer((json_int_t)rule->matched));
        json_object_set_new(one, "fired", json_integer((json_int_t)rule->fired));
        json_array_append_new(list, one);
    }
    pthread_mutex_unlock(&faults->lock);
    return json_pack("{s:o}", "rules", list);
}

static bool matches(const struct rule *rule, enum s3_op op, const char *bucket, const char *key)
{
    if (!(rule->ops & (1u << op)))
        return false;
    if (rule->bucket && (!bucket || strcmp(rule->bucket, bucket) != 0))
        return false;
    return !rule->prefix || (key && !strncmp(rule->prefix, key, strlen(rule->prefix)));
}

/* Whether a rule that matches acts this time. */
static bool fires_locked(struct s3_faults *faults, struct rule *rule)
{
    if (++rule->matched <= rule->skip || rule->fired >= rule->count)
        return false;
    if (rule->p < 1 && roll_locked(faults) >= rule->p)
        return false;
    rule->fired++;
    return true;
}

void s3_faults_plan(
    struct s3_faults *faults, enum s3_op op, const char *bucket, const char *key, struct s3_plan *out)
{
    size_t fired = 0;

    *out = (struct s3_plan){0};
    pthread_mutex_lock(&faults->lock);
    for (size_t i = 0; i < faults->count; i++) {
        struct rule *rule = &faults->rules[i];
        enum s3_fault_kind kind = rule->act.kind;

        if (!matches(rule, op, bucket, key))
            continue;
        if (kind != S3_FAULT_LATENCY && kind != S3_FAULT_SLOW && out->act.kind)
            continue;
        if (!fires_locked(faults, rule))
            continue;
        if (fired < 7)
            out->fired[fired++] = rule->act.id;
        if (kind == S3_FAULT_LATENCY)
            out->latency_ms += rule->act.ms;
        else if (kind == S3_FAULT_SLOW)
            out->rate = out->rate > 0 && out->rate < rule->act.rate ? out->rate : rule->act.rate;
        else
            out->act = rule->act;
    }
    pthread_mutex_unlock(&faults->lock);
}
