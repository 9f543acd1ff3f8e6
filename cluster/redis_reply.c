/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/redis_reply.h"

#include <hiredis.h>
#include <stdlib.h>
#include <string.h>

#if HIREDIS_MAJOR < 1
typedef int element_count;
#else
typedef size_t element_count;
#endif

struct dctf_redis_reader {
    redisReader *reader;
    size_t fed;    /* bytes since the last whole answer */
    size_t values; /* of the answer under way */
};

void dctf_redis_value_free(struct dctf_redis_value *value)
{
    if (!value)
        return;
    for (size_t i = 0; i < value->count; i++)
        dctf_redis_value_free(value->items[i]);
    free(value->items);
    free(value->text);
    free(value);
}

bool dctf_redis_value_u64(const struct dctf_redis_value *value, uint64_t *out)
{
    uint64_t number = 0;

    *out = 0;
    if (value->type == DCTF_REDIS_INTEGER) {
        if (value->integer < 0 || value->integer >= INT64_C(1) << 53)
            return false;
        *out = (uint64_t)value->integer;
        return true;
    }
    if (value->type != DCTF_REDIS_STRING || !value->len || value->len > 16)
        return false;
    for (size_t i = 0; i < value->len; i++) {
        if (value->text[i] < '0' || value->text[i] > '9')
            return false;
        number = number * 10 + (uint64_t)(value->text[i] - '0');
    }
    if (number >= UINT64_C(1) << 53) /* a script's numbers end there */
        return false;
    *out = number;
    return true;
}

/* --- what hiredis calls: NULL ends the answer as a failure --- */

static struct dctf_redis_value *make(const redisReadTask *task, enum dctf_redis_type type)
{
    struct dctf_redis_reader *reader = task->privdata;
    struct dctf_redis_value *value;

    if (reader->values >= DCTF_REDIS_VALUES_MAX)
        return NULL;
    value = calloc(1, sizeof(*value));
    if (!value)
        return NULL;
    value->type = type;
    reader->values++;
    return value;
}

/* Takes `value` in any case. */
static void *place(const redisReadTask *task, struct dctf_redis_value *value)
{
    if (value && task->parent) {
        struct dctf_redis_value *parent = task->parent->obj;

        parent->items[task->idx] = value;
        parent->count = (size_t)task->idx + 1;
    }
    return value;
}

static void *make_string(const redisReadTask *task, char *text, size_t len)
{
    bool plain = task->type == REDIS_REPLY_STRING || task->type == REDIS_REPLY_STATUS;
    struct dctf_redis_value *value;

    if (!plain && task->type != REDIS_REPLY_ERROR)
        return NULL;
    value = make(task, plain ? DCTF_REDIS_STRING : DCTF_REDIS_ERROR);
    if (!value)
        return NULL;
    value->text = malloc(len + 1);
    if (!value->text) {
        free(value);
        return NULL;
    }
    memcpy(value->text, text, len);
    value->text[len] = '\0';
    value->len = len;
    return place(task, value);
}

/* Releases of hiredis since 1.0 bound it no more, and what is nested is freed by recursion. */
static bool is_too_deep(const redisReadTask *task)
{
    unsigned depth = 0;

    while ((task = task->parent))
        depth++;
    return depth > DCTF_REDIS_DEPTH_MAX;
}

static void *make_array(const redisReadTask *task, element_count wanted)
{
    struct dctf_redis_reader *reader = task->privdata;
    size_t count = (size_t)wanted;
    struct dctf_redis_value *value;

    if (task->type != REDIS_REPLY_ARRAY || is_too_deep(task) ||
        count > DCTF_REDIS_VALUES_MAX - reader->values)
        return NULL;
    value = make(task, DCTF_REDIS_ARRAY);
    if (!value)
        return NULL;
    value->items = calloc(count + 1, sizeof(struct dctf_redis_value *));
    if (!value->items) {
        free(value);
        return NULL;
    }
    return place(task, value);
}

static void *make_integer(const redisReadTask *task, long long integer)
{
    struct dctf_redis_value *value = make(task, DCTF_REDIS_INTEGER);

    if (value)
        value->integer = integer;
    return place(task, value);
}

static void *make_nil(const redisReadTask *task)
{
    return place(task, make(task, DCTF_REDIS_NIL));
}

#if HIREDIS_MAJOR >= 1
/* Types of a protocol that was not asked for. */
static void *refuse_double(const redisReadTask *task, double number, char *text, size_t len)
{
    (void)task;
    (void)number;
    (void)text;
    (void)len;
    return NULL;
}

static void *refuse_bool(const redisReadTask *task, int number)
{
    (void)task;
    (void)number;
    return NULL;
}
#endif

static void drop(void *value)
{
    dctf_redis_value_free(value);
}

static redisReplyObjectFunctions functions = {
    .createString = make_string,
    .createArray = make_array,
    .createInteger = make_integer,
    .createNil = make_nil,
#if HIREDIS_MAJOR >= 1
    .createDouble = refuse_double,
    .createBool = refuse_bool,
#endif
    .freeObject = drop,
};

/* --- the reader --- */

enum dctf_err dctf_redis_reader_new(struct dctf_redis_reader **out)
{
    struct dctf_redis_reader *reader = calloc(1, sizeof(*reader));

    *out = NULL;
    if (!reader)
        return DCTF_ERR_NO_MEMORY;
    reader->reader = redisReaderCreateWithFunctions(&functions);
    if (!reader->reader) {
        free(reader);
        return DCTF_ERR_NO_MEMORY;
    }
    reader->reader->privdata = reader;
    *out = reader;
    return DCTF_OK;
}

void dctf_redis_reader_free(struct dctf_redis_reader *reader)
{
    if (!reader)
        return;
    redisReaderFree(reader->reader);
    free(reader);
}

enum dctf_err dctf_redis_reader_feed(struct dctf_redis_reader *reader, const void *data, size_t len)
{
    if (len > DCTF_REDIS_BYTES_MAX - reader->fed)
        return DCTF_ERR_COORDINATOR_ANSWER;
    reader->fed += len;
    return redisReaderFeed(reader->reader, data, len) == REDIS_OK ? DCTF_OK : DCTF_ERR_NO_MEMORY;
}

enum dctf_err dctf_redis_reader_next(struct dctf_redis_reader *reader, struct dctf_redis_value **out)
{
    void *value = NULL;

    *out = NULL;
    if (redisReaderGetReply(reader->reader, &value) != REDIS_OK)
        return DCTF_ERR_COORDINATOR_ANSWER;
    if (!value)
        return DCTF_OK;
    *out = value;
    reader->fed = reader->reader->len - reader->reader->pos;
    reader->values = 0;
    return DCTF_OK;
}

size_t dctf_redis_reader_pending(const struct dctf_redis_reader *reader)
{
    return reader->reader->len - reader->reader->pos;
}
