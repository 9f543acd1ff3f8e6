/* SPDX-License-Identifier: Apache-2.0
 *
 * Counters, gauges and latency histograms, declared in metric.def.
 *
 * Threads:   any thread. Counters are kept in per-thread stripes and summed on
 *            read, so that adding costs one uncontended atomic.
 * Ownership: dctf_metrics_new() gives a set to pass to dctf_metrics_free().
 */
#ifndef DCTF_BASE_METRIC_H
#define DCTF_BASE_METRIC_H

#include "base/err.h"

#include <stdint.h>

enum dctf_metric {
#define M(kind, id, name, labels, help) DCTF_METRIC_##id,
#include "base/metric.def"
#undef M
    DCTF_METRIC_COUNT
};

struct dctf_metrics;
struct dctf_str;

DCTF_MUST_CHECK
enum dctf_err dctf_metrics_new(struct dctf_metrics **out);
void dctf_metrics_free(struct dctf_metrics *metrics);

/* `metrics` may be NULL in all of these: nothing is counted. */
void dctf_metric_add(struct dctf_metrics *metrics, enum dctf_metric metric, int64_t delta);      /* C and G */
void dctf_metric_set(struct dctf_metrics *metrics, enum dctf_metric metric, int64_t value);      /* G only */
void dctf_metric_observe_ns(struct dctf_metrics *metrics, enum dctf_metric metric, uint64_t ns); /* H only */
/* Count one error of this code (dctf_errors_total{code}). */
void dctf_metric_error(struct dctf_metrics *metrics, enum dctf_err err);

/* Sum now; for a histogram the number of observations. */
int64_t dctf_metric_get(struct dctf_metrics *metrics, enum dctf_metric metric);
int64_t dctf_metric_errors(struct dctf_metrics *metrics, enum dctf_err err);
/* Quantile of a histogram in nanoseconds (upper bound of its bucket, at most 60 s), 0 when
 * empty. 0 < q < 1. */
uint64_t dctf_metric_quantile_ns(struct dctf_metrics *metrics, enum dctf_metric metric, double q);

/* Append the Prometheus text exposition (format 0.0.4), including
 * dctf_errors_total{code}, dctf_shard_hit_rate{node} and process memory. `node` may be NULL. */
DCTF_MUST_CHECK
enum dctf_err dctf_metrics_write(struct dctf_metrics *metrics, const char *node, struct dctf_str *out);

#endif
