/* SPDX-License-Identifier: Apache-2.0
 *
 * Read-ahead into the next shards of a directory that is being read in the order of its
 * names: after two opens in a row the next ones are fetched, as many as the pattern
 * has earned (doubling), bounded by a number of shards and by bytes.
 *
 * Threads:   any thread; opened() only takes a short lock, the work runs on a pool.
 * Ownership: dctf_ahead_new() gives an object to pass to dctf_ahead_free() once the
 *            pool has run dry.
 */
#ifndef DCTF_FS_AHEAD_H
#define DCTF_FS_AHEAD_H

#include "base/err.h"
#include "base/version.h"

#include <stdbool.h>
#include <stdint.h>

struct dctf_ahead;
struct dctf_engine;
struct dctf_listings;
struct dctf_pool;

struct dctf_ahead_config {
    struct dctf_engine *engine; /* these are borrowed */
    struct dctf_listings *listings;
    struct dctf_pool *pool;
    uint64_t dataset;
    enum dctf_feature_by feature_by;
    uint32_t shards_max;
    uint64_t bytes_max; /* per batch */
};

DCTF_MUST_CHECK
enum dctf_err dctf_ahead_new(const struct dctf_ahead_config *config, struct dctf_ahead **out);
void dctf_ahead_free(struct dctf_ahead *ahead);

/* A file of `dir` was opened for reading. `complete`: its bytes were all here. */
void dctf_ahead_opened(struct dctf_ahead *ahead, const char *dir, const char *name, bool complete);

#endif
