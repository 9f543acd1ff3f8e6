/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/s3_stats.h"

#include "lib/s3_text.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define KEPT 1000
#define MAX_CODES 64

static const char *const names[S3_OPS] = {
    "list", "get", "head", "put", "delete", "bucket", "sts", "imds", "container", "other"};

struct counted {
    char name[64];
    uint64_t count;
};

struct s3_stats {
    pthread_mutex_t lock;
    /* guarded by lock, as all below */
    uint64_t requests[S3_OPS];
    uint64_t auth[S3_AUTH_KINDS];
    uint64_t status[600];
    struct counted errors[MAX_CODES];
    uint64_t bytes_out, bytes_in, not_canonical, faults;
    uint64_t connections; /* ever, for their numbers */
    uint64_t open, accepted;
    uint64_t in_flight, max_in_flight;
    json_t *kept[KEPT]; /* a ring: answer n at n % KEPT */
    uint64_t answers;
};

const char *s3_op_name(enum s3_op op)
{
    return names[op];
}

enum s3_op s3_op_named(const char *name)
{
    for (int op = 0; op < S3_OPS; op++) {
        if (!strcmp(names[op], name))
            return (enum s3_op)op;
    }
    return S3_OPS;
}

struct s3_stats *s3_stats_new(void)
{
    struct s3_stats *stats = s3_alloc(sizeof(*stats));

    pthread_mutex_init(&stats->lock, NULL);
    return stats;
}

void s3_stats_free(struct s3_stats *stats)
{
    for (size_t i = 0; i < KEPT; i++)
        json_decref(stats->kept[i]);
    pthread_mutex_destroy(&stats->lock);
    free(stats);
}

void s3_stats_reset(struct s3_stats *stats)
{
    pthread_mutex_lock(&stats->lock);
    memset(stats->requests, 0, sizeof(stats->requests));
    memset(stats->auth, 0, sizeof(stats->auth));
    memset(stats->status, 0, sizeof(stats->status));
    memset(stats->errors, 0, sizeof(stats->errors));
    stats->bytes_out = stats->bytes_in = stats->not_canonical = stats->faults = 0;
    stats->accepted = 0;
    stats->max_in_flight = stats->in_flight;
    for (size_t i = 0; i < KEPT; i++) {
        json_decref(stats->kept[i]);
        stats->kept[i] = NULL;
    }
    pthread_mutex_unlock(&stats->lock);
}

uint64_t s3_stats_accept(struct s3_stats *stats)
{
    pthread_mutex_lock(&stats->lock);
    uint64_t number = ++stats->connections;

    stats->open++;
    stats->accepted++;
    pthread_mutex_unlock(&stats->lock);
    return number;
}

void s3_stats_close(struct s3_stats *stats)
{
    pthread_mutex_lock(&stats->lock);
    stats->open--;
    pthread_mutex_unlock(&stats->lock);
}

void s3_stats_forget_connection(struct s3_stats *stats)
{
    pthread_mutex_lock(&stats->lock);
    stats->open--;
    if (stats->accepted)
        stats->accepted--;
    pthread_mutex_unlock(&stats->lock);
}

void s3_stats_begin(struct s3_stats *stats, enum s3_op op)
{
    pthread_mutex_lock(&stats->lock);
    stats->requests[op]++;
    if (++stats->in_flight > stats->max_in_flight)
        stats->max_in_flight = stats->in_flight;
    pthread_mutex_unlock(&stats->lock);
}

static json_t *text_or_null(const char *text)
{
    json_t *string = text ? json_string(text) : NULL;

    return string ? string : json_null();
}

static json_t *record_json(const struct s3_record *record)
{
    json_t *faults = json_array();

    for (size_t i = 0; i < 8 && record->faults[i]; i++)
        json_array_append_new(faults, json_integer(record->faults[i]));
    return json_pack("{s:s,s:o,s:o,s:o,s:o,s:o,s:i,s:I,s:o,s:I,s:o}", "op", names[record->op], "method",
        text_or_null(record->method), "target", text_or_null(record->target), "host",
        text_or_null(record->host), "range", text_or_null(record->range), "if_match",
        text_or_null(record->if_match), "status", (int)record->status, "bytes", (json_int_t)record->bytes_out,
        "access_key", text_or_null(record->access_key), "connection", (json_int_t)record->connection,
        "faults", faults);
}

static void count_error_locked(struct s3_stats *stats, const char *code)
{
    for (size_t i = 0; i < MAX_CODES; i++) {
        struct counted *error = &stats->errors[i];

        if (!error->name[0])
            strncpy(error->name, code, sizeof(error->name) - 1);
        if (!strncmp(error->name, code, sizeof(error->name) - 1)) {
            error->count++;
            return;
        }
    }
}

uint64_t s3_stats_answer(struct s3_stats *stats, const struct s3_record *record)
{
    json_t *kept = record_json(record);

    pthread_mutex_lock(&stats->lock);
    stats->auth[record->auth]++;
    if (record->status < 600)
        stats->status[record->status]++;
    if (record->error)
        count_error_locked(stats, record->error);
    stats->bytes_out += record->bytes_out;
    stats->bytes_in += record->bytes_in;
    stats->not_canonical += record->not_canonical;
    for (size_t i = 0; i < 8 && record->faults[i]; i++)
        stats->faults++;
    uint64_t number = stats->answers++;

    json_decref(stats->kept[number % KEPT]);
    stats->kept[number % KEPT] = kept;
    pthread_mutex_unlock(&stats->lock);
    return number;
}

void s3_stats_end(struct s3_stats *stats, uint64_t number, uint64_t counted, uint64_t sent)
{
    pthread_mutex_lock(&stats->lock);
    stats->in_flight--;
    json_t *kept = stats->kept[number % KEPT];

    /* A reset may have come between, and then there is nothing to correct. */
    if (sent != counted && kept && stats->answers - number <= KEPT) {
        json_object_set_new(kept, "bytes", json_integer((json_int_t)sent));
        stats->bytes_out += sent - counted;
    }
    pthread_mutex_unlock(&stats->lock);
}

static void set_number(json_t *object, const char *name, uint64_t value)
{
    json_object_set_new(object, name, json_integer((json_int_t)value));
}

static json_t *errors_locked(struct s3_stats *stats)
{
    json_t *errors = json_object();

    for (size_t i = 0; i < MAX_CODES && stats->errors[i].name[0]; i++)
        set_number(errors, stats->errors[i].name, stats->errors[i].count);
    return errors;
}

static json_t *status_locked(struct s3_stats *stats)
{
    json_t *status = json_object();
    char name[16];

    for (unsigned i = 0; i < 600; i++) {
        if (!stats->status[i])
            continue;
        snprintf(name, sizeof(name), "%u", i);
        set_number(status, name, stats->status[i]);
    }
    return status;
}

json_t *s3_stats_json(struct s3_stats *stats)
{
    json_t *root = json_object(), *requests = json_object();

    pthread_mutex_lock(&stats->lock);
    for (int op = 0; op < S3_OPS; op++)
        set_number(requests, names[op], stats->requests[op]);
    json_object_set_new(root, "requests", requests);
    json_object_set_new(root, "status", status_locked(stats));
    json_object_set_new(root, "errors", errors_locked(stats));
    set_number(root, "bytes_out", stats->bytes_out);
    set_number(root, "bytes_in", stats->bytes_in);
    json_object_set_new(root, "connections",
        json_pack("{s:I,s:I}", "open", (json_int_t)stats->open, "accepted", (json_int_t)stats->accepted));
    set_number(root, "in_flight", stats->in_flight);
    set_number(root, "max_in_flight", stats->max_in_flight);
    json_object_set_new(root, "auth",
        json_pack("{s:I,s:I,s:I}", "v4", (json_int_t)stats->auth[S3_AUTH_V4], "v2",
            (json_int_t)stats->auth[S3_AUTH_V2], "anonymous", (json_int_t)stats->auth[S3_AUTH_ANONYMOUS]));
    set_number(root, "not_canonical", stats->not_canonical);
    set_number(root, "faults", stats->faults);
    pthread_mutex_unlock(&stats->lock);
    return root;
}

json_t *s3_stats_requests(struct s3_stats *stats, size_t last)
{
    json_t *list = json_array();

    if (last > KEPT)
        last = KEPT;
    pthread_mutex_lock(&stats->lock);
    for (size_t i = KEPT - last; i < KEPT; i++) {
        json_t *kept = stats->kept[(stats->answers + i) % KEPT];

        if (kept)
            json_array_append_new(list, json_copy(kept));
    }
    pthread_mutex_unlock(&stats->lock);
    return list;
}
