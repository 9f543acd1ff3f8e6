/* SPDX-License-Identifier: Apache-2.0
 *
 * Counters and histograms lie in stripes; a thread always adds to the same one.
 * Gauges are set as well as added to, so there is one cell of each.
 */
#include "base/metric.h"

#include "base/str.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STRIPE_BITS 4u
#define STRIPES (1u << STRIPE_BITS)
#define LINE_BYTES 128 /* two cache lines: the neighbour is fetched along */

enum kind {
    KIND_C,
    KIND_G,
    KIND_H,
};

enum error_slot {
#define X(code, name, errnum, class, text, remedy) ERROR_SLOT_##name,
#include "base/err.def"
#undef X
    ERROR_SLOTS
};

/* Histograms have slots of their own, so that counters do not pay for buckets. */
enum histogram_slot {
#define SLOT_C(id)
#define SLOT_G(id)
#define SLOT_H(id) HISTOGRAM_SLOT_##id,
#define M(kind, id, name, labels, help) SLOT_##kind(id)
#include "base/metric.def"
#undef M
#undef SLOT_H
#undef SLOT_G
#undef SLOT_C
    HISTOGRAM_SLOTS
};

static const struct {
    enum kind kind;
    unsigned histogram;
    const char *name;
    const char *labels;
    const char *help;
} table[] = {
#define SLOT_C(id) 0
#define SLOT_G(id) 0
#define SLOT_H(id) HISTOGRAM_SLOT_##id
#define M(kind, id, name, labels, help) {KIND_##kind, SLOT_##kind(id), name, labels, help},
#include "base/metric.def"
#undef M
#undef SLOT_H
#undef SLOT_G
#undef SLOT_C
};

static const struct {
    uint64_t ns;
    const char *le; /* the same in seconds */
} bounds[] = {
    {10000, "0.00001"},
    {20000, "0.00002"},
    {50000, "0.00005"},
    {100000, "0.0001"},
    {200000, "0.0002"},
    {500000, "0.0005"},
    {1000000, "0.001"},
    {2000000, "0.002"},
    {5000000, "0.005"},
    {10000000, "0.01"},
    {20000000, "0.02"},
    {50000000, "0.05"},
    {100000000, "0.1"},
    {200000000, "0.2"},
    {500000000, "0.5"},
    {1000000000, "1"},
    {2000000000, "2"},
    {5000000000, "5"},
    {10000000000, "10"},
    {20000000000, "20"},
    {60000000000, "60"},
};
#define BOUNDS (sizeof(bounds) / sizeof(bounds[0]))

struct histogram {
    atomic_uint_least64_t buckets[BOUNDS + 1]; /* the last one is open */
    atomic_uint_least64_t sum_ns;
};

struct stripe {
    _Alignas(LINE_BYTES) atomic_int_least64_t counters[DCTF_METRIC_COUNT];
    atomic_int_least64_t errors[ERROR_SLOTS];
    struct histogram histograms[HISTOGRAM_SLOTS];
};

struct dctf_metrics {
    struct stripe stripes[STRIPES];
    atomic_int_least64_t gauges[DCTF_METRIC_COUNT];
};

/* What the stripes of one histogram add up to. */
struct snapshot {
    uint64_t buckets[BOUNDS + 1];
    uint64_t count;
    uint64_t sum_ns;
};

enum dctf_err dctf_metrics_new(struct dctf_metrics **out)
{
    struct dctf_metrics *metrics = aligned_alloc(LINE_BYTES, sizeof(*metrics));

    *out = metrics;
    if (!metrics)
        return DCTF_ERR_NO_MEMORY;
    memset(metrics, 0, sizeof(*metrics));
    return DCTF_OK;
}

void dctf_metrics_free(struct dctf_metrics *metrics)
{
    free(metrics);
}

static struct stripe *own_stripe(struct dctf_metrics *metrics)
{
    /* Thread descriptors are far apart; a multiplicative hash spreads them. */
    uint64_t hash = (uint64_t)pthread_self() * 0x9e3779b97f4a7c15u;

    return &metrics->stripes[hash >> (64 - STRIPE_BITS)];
}

void dctf_metric_add(struct dctf_metrics *metrics, enum dctf_metric metric, int64_t delta)
{
    assert(table[metric].kind != KIND_H);
    if (!metrics)
        return;
    atomic_fetch_add_explicit(
        table[metric].kind == KIND_G ? &metrics->gauges[metric] : &own_stripe(metrics)->counters[metric],
        delta, memory_order_relaxed);
}

void dctf_metric_set(struct dctf_metrics *metrics, enum dctf_metric metric, int64_t value)
{
    assert(table[metric].kind == KIND_G);
    if (metrics)
        atomic_store_explicit(&metrics->gauges[metric], value, memory_order_relaxed);
}

void dctf_metric_observe_ns(struct dctf_metrics *metrics, enum dctf_metric metric, uint64_t ns)
{
    struct histogram *histogram;
    size_t i = 0;

    assert(table[metric].kind == KIND_H);
    if (!metrics)
        return;
    histogram = &own_stripe(metrics)->histograms[table[metric].histogram];
    while (i < BOUNDS && ns > bounds[i].ns)
        i++;
    atomic_fetch_add_explicit(&histogram->buckets[i], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&histogram->sum_ns, ns, memory_order_relaxed);
}

/* A code that is not in the table is our own bug and counted as one. */
static enum error_slot slot_of(enum dctf_err err)
{
    switch (err) {
    case DCTF_OK:
        break;
#define X(code, name, errnum, class, text, remedy)                                                           \
    case DCTF_ERR_##name:                                                                                    \
        return ERROR_SLOT_##name;
#include "base/err.def"
#undef X
    }
    return ERROR_SLOT_INTERNAL;
}

void dctf_metric_error(struct dctf_metrics *metrics, enum dctf_err err)
{
    if (metrics && err != DCTF_OK)
        atomic_fetch_add_explicit(&own_stripe(metrics)->errors[slot_of(err)], 1, memory_order_relaxed);
}

static void snapshot_take(struct dctf_metrics *metrics, enum dctf_metric metric, struct snapshot *out)
{
    *out = (struct snapshot){0};
    for (unsigned s = 0; metrics && s < STRIPES; s++) {
        struct histogram *histogram = &metrics->stripes[s].histograms[table[metric].histogram];

        for (size_t i = 0; i <= BOUNDS; i++)
            out->buckets[i] += atomic_load_explicit(&histogram->buckets[i], memory_order_relaxed);
        out->sum_ns += atomic_load_explicit(&histogram->sum_ns, memory_order_relaxed);
    }
    for (size_t i = 0; i <= BOUNDS; i++)
        out->count += out->buckets[i];
}

int64_t dctf_metric_get(struct dctf_metrics *metrics, enum dctf_metric metric)
{
    struct snapshot snapshot;
    int64_t sum = 0;

    if (!metrics)
        return 0;
    switch (table[metric].kind) {
    case KIND_H:
        snapshot_take(metrics, metric, &snapshot);
        return (int64_t)snapshot.count;
    case KIND_G:
        return atomic_load_explicit(&metrics->gauges[metric], memory_order_relaxed);
    case KIND_C:
        break;
    }
    for (unsigned s = 0; s < STRIPES; s++)
        sum += atomic_load_explicit(&metrics->stripes[s].counters[metric], memory_order_relaxed);
    return sum;
}

int64_t dctf_metric_errors(struct dctf_metrics *metrics, enum dctf_err err)
{
    int64_t sum = 0;

    if (err == DCTF_OK)
        return 0;
    for (unsigned s = 0; metrics && s < STRIPES; s++)
        sum += atomic_load_explicit(&metrics->stripes[s].errors[slot_of(err)], memory_order_relaxed);
    return sum;
}

uint64_t dctf_metric_quantile_ns(struct dctf_metrics *metrics, enum dctf_metric metric, double q)
{
    struct snapshot snapshot;
    uint64_t below = 0;

    assert(table[metric].kind == KIND_H);
    snapshot_take(metrics, metric, &snapshot);
    if (!snapshot.count)
        return 0;
    for (size_t i = 0; i < BOUNDS; i++) {
        below += snapshot.buckets[i];
        if ((double)below >= q * (double)snapshot.count)
            return bounds[i].ns;
    }
    return bounds[BOUNDS - 1].ns;
}

static void write_family(struct dctf_str *out, const char *name, const char *type, const char *help)
{
    dctf_str_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void write_value(struct dctf_str *out, enum dctf_metric metric, int64_t value)
{
    const char *labels = table[metric].labels;

    if (*labels)
        dctf_str_printf(out, "%s{%s} %" PRId64 "\n", table[metric].name, labels, value);
    else
        dctf_str_printf(out, "%s %" PRId64 "\n", table[metric].name, value);
}

static void write_histogram(struct dctf_metrics *metrics, enum dctf_metric metric, struct dctf_str *out)
{
    const char *name = table[metric].name;
    const char *labels = table[metric].labels;
    const char *comma = *labels ? "," : "";
    const char *open = *labels ? "{" : "";
    const char *close = *labels ? "}" : "";
    struct snapshot snapshot;
    uint64_t below = 0;

    snapshot_take(metrics, metric, &snapshot);
    for (size_t i = 0; i <= BOUNDS; i++) {
        below += snapshot.buckets[i];
        dctf_str_printf(out, "%s_bucket{%s%sle=\"%s\"} %" PRIu64 "\n", name, labels, comma,
            i < BOUNDS ? bounds[i].le : "+Inf", below);
    }
    dctf_str_printf(out, "%s_sum%s%s%s %" PRIu64 ".%09" PRIu64 "\n", name, open, labels, close,
        snapshot.sum_ns / 1000000000, snapshot.sum_ns % 1000000000);
    dctf_str_printf(out, "%s_count%s%s%s %" PRIu64 "\n", name, open, labels, close, snapshot.count);
}

static void write_table(struct dctf_metrics *metrics, struct dctf_str *out)
{
    static const char *const types[] = {"counter", "gauge", "histogram"};
    const char *family = "";

    for (unsigned i = 0; i < DCTF_METRIC_COUNT; i++) {
        if (strcmp(family, table[i].name) != 0) {
            family = table[i].name;
            write_family(out, family, types[table[i].kind], table[i].help);
        }
        if (table[i].kind == KIND_H)
            write_histogram(metrics, (enum dctf_metric)i, out);
        else
            write_value(out, (enum dctf_metric)i, dctf_metric_get(metrics, (enum dctf_metric)i));
    }
}

static void write_errors(struct dctf_metrics *metrics, struct dctf_str *out)
{
    enum dctf_err err;

    write_family(out, "dctf_errors_total", "counter", "Errors by code (docs/errors.md)");
    for (size_t i = 0; (err = dctf_err_at(i)) != DCTF_OK; i++) {
        int64_t count = dctf_metric_errors(metrics, err);

        if (count)
            dctf_str_printf(out, "dctf_errors_total{code=\"%d\"} %" PRId64 "\n", (int)err, count);
    }
}

static void write_label_value(struct dctf_str *out, const char *value)
{
    for (; *value; value++) {
        if (*value == '\n')
            dctf_str_puts(out, "\\n");
        else if (*value == '"' || *value == '\\')
            dctf_str_add(out, (char[]){'\\', *value}, 2);
        else
            dctf_str_add(out, value, 1);
    }
}

static void write_hit_rate(struct dctf_metrics *metrics, const char *node, struct dctf_str *out)
{
    int64_t hits = dctf_metric_get(metrics, DCTF_METRIC_CACHE_SHARD_HITS);
    int64_t opens = hits + dctf_metric_get(metrics, DCTF_METRIC_CACHE_SHARD_MISSES);

    write_family(out, "dctf_shard_hit_rate", "gauge",
        "Share of opens whose bytes were all on this node, since the mount began");
    dctf_str_puts(out, "dctf_shard_hit_rate{node=\"");
    write_label_value(out, node ? node : "");
    if (opens) /* before the first open there is no rate, and 0 would raise an alarm */
        dctf_str_printf(out, "\"} %.6f\n", (double)hits / (double)opens);
    else
        dctf_str_puts(out, "\"} NaN\n");
}

static void write_process(struct dctf_str *out)
{
    uint64_t pages;
    FILE *file = fopen("/proc/self/statm", "re");

    if (!file)
        return;
    if (fscanf(file, "%*s %" SCNu64, &pages) == 1) {
        write_family(out, "process_resident_memory_bytes", "gauge", "Resident memory of the daemon");
        dctf_str_printf(
            out, "process_resident_memory_bytes %" PRIu64 "\n", pages * (uint64_t)sysconf(_SC_PAGESIZE));
    }
    fclose(file);
}

enum dctf_err dctf_metrics_write(struct dctf_metrics *metrics, const char *node, struct dctf_str *out)
{
    write_table(metrics, out);
    write_errors(metrics, out);
    write_hit_rate(metrics, node, out);
    write_process(out);
    return out->err;
}
