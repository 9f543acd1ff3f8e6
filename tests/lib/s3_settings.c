/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/s3_settings.h"

#include "lib/s3_text.h"

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct s3_settings {
    pthread_mutex_t lock;
    struct s3_values values; /* guarded by lock */
};

enum kind { NUMBER, SEED, FLAG, STRING };

static const struct field {
    const char *name;
    enum kind kind;
    size_t offset;
    size_t size;
} fields[] = {
#define FIELD(name, kind)                                                                                    \
    {                                                                                                        \
#name, kind, offsetof(struct s3_values, name), sizeof(((struct s3_values *)0)->name)                 \
    }
    FIELD(clock_offset, NUMBER),
    FIELD(max_skew, NUMBER),
    FIELD(session_seconds, NUMBER),
    FIELD(seed, SEED),
    FIELD(imds_v1, FLAG),
    FIELD(imds_role, STRING),
    FIELD(imds_region, STRING),
    FIELD(container_token, STRING),
    FIELD(web_identity_token, STRING),
    FIELD(list_space, STRING),
#undef FIELD
};
#define FIELDS (sizeof(fields) / sizeof(fields[0]))

struct s3_settings *s3_settings_new(void)
{
    struct s3_settings *settings = s3_alloc(sizeof(*settings));

    pthread_mutex_init(&settings->lock, NULL);
    settings->values = (struct s3_values){
        .max_skew = 900,
        .session_seconds = 3600,
        .seed = 1,
        .imds_role = "dctf-role",
        .imds_region = "us-east-1",
        .list_space = "plus",
    };
    return settings;
}

void s3_settings_free(struct s3_settings *settings)
{
    pthread_mutex_destroy(&settings->lock);
    free(settings);
}

void s3_settings_get(struct s3_settings *settings, struct s3_values *out)
{
    pthread_mutex_lock(&settings->lock);
    *out = settings->values;
    pthread_mutex_unlock(&settings->lock);
}

static const struct field *field_named(const char *name)
{
    for (size_t i = 0; i < FIELDS; i++) {
        if (!strcmp(fields[i].name, name))
            return &fields[i];
    }
    return NULL;
}

static bool set_field(struct s3_values *values, const struct field *field, json_t *value)
{
    char *at = (char *)values + field->offset;

    switch (field->kind) {
    case NUMBER:
        if (!json_is_number(value))
            return false;
        *(double *)(void *)at = json_number_value(value);
        return true;
    case SEED:
        if (!json_is_integer(value))
            return false;
        *(uint64_t *)(void *)at = (uint64_t)json_integer_value(value);
        return true;
    case FLAG:
        if (!json_is_boolean(value))
            return false;
        *(bool *)at = json_is_true(value);
        return true;
    case STRING:
        if (!json_is_string(value) || json_string_length(value) >= field->size)
            return false;
        strcpy(at, json_string_value(value));
        return true;
    }
    return false;
}

const char *s3_settings_set(struct s3_settings *settings, json_t *object)
{
    struct s3_values values;
    const char *name;
    json_t *value;

    pthread_mutex_lock(&settings->lock);
    values = settings->values;
    pthread_mutex_unlock(&settings->lock);
    json_object_foreach(object, name, value)
    {
        const struct field *field = field_named(name);

        if (!field)
            return "no such setting";
        if (!set_field(&values, field, value))
            return "a setting of the wrong type, or too long";
    }
    if (strcmp(values.list_space, "plus") != 0 && strcmp(values.list_space, "percent") != 0)
        return "list_space is plus or percent";
    pthread_mutex_lock(&settings->lock);
    settings->values = values;
    pthread_mutex_unlock(&settings->lock);
    return NULL;
}

json_t *s3_settings_json(struct s3_settings *settings)
{
    struct s3_values v;

    s3_settings_get(settings, &v);
    return json_pack("{s:f,s:f,s:f,s:I,s:b,s:s,s:s,s:s,s:s,s:s}", "clock_offset", v.clock_offset, "max_skew",
        v.max_skew, "session_seconds", v.session_seconds, "seed", (json_int_t)v.seed, "imds_v1", v.imds_v1,
        "imds_role", v.imds_role, "imds_region", v.imds_region, "container_token", v.container_token,
        "web_identity_token", v.web_identity_token, "list_space", v.list_space);
}

int64_t s3_settings_now(struct s3_settings *settings)
{
    struct timespec now;
    double offset;

    pthread_mutex_lock(&settings->lock);
    offset = settings->values.clock_offset;
    pthread_mutex_unlock(&settings->lock);
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec + (int64_t)(offset * 1e9);
}
