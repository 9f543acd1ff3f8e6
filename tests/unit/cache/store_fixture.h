/* SPDX-License-Identifier: Apache-2.0
 *
 * A store in a private directory, and shards whose bytes follow from their key.
 *
 * Threads:   one thread sets up; the byte helpers are pure.
 * Ownership: what is returned is the caller's.
 */
#ifndef DCTF_TESTS_STORE_FIXTURE_H
#define DCTF_TESTS_STORE_FIXTURE_H

#include "base/metric.h"
#include "base/version.h"
#include "cache/layout.h"
#include "cache/store.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB ((uint64_t)1 << 20)
#define DATASET 42u
#ifndef FX_MEMORY
#define FX_MEMORY (16 * MIB)
#endif

struct fixture {
    char dir[64];
    struct dctf_metrics *metrics;
    struct dctf_store *store;
    uint64_t size_bytes;
    bool scrub;
    _Atomic uint64_t now_ms; /* of the store's clock, which its threads read */
};

static inline uint64_t fixture_ns(void *ctx)
{
    return ((struct fixture *)ctx)->now_ms * 1000000;
}

static inline enum dctf_err fixture_open(struct fixture *fx)
{
    struct dctf_clock clock = {.mono_ns = fixture_ns, .ctx = fx};
    struct dctf_store_config config = {
        .dir = fx->dir,
        .size_bytes = fx->size_bytes,
        .reserve_bytes = UINT64_MAX,
        .reserve_inodes_pct = 1,
        .memory_bytes = FX_MEMORY,
        .dataset = DATASET,
        .heat_half_life_ms = 3600000,
        .heat_ttl_ms = 86400000,
        .scrub = fx->scrub,
        .clock = &clock,
        .metrics = fx->metrics,
        .owner = "unit test",
    };

    return dctf_store_open(&config, NULL, &fx->store);
}

static inline void fixture_reopen(struct fixture *fx)
{
    dctf_store_close(fx->store);
    assert_int_equal(fixture_open(fx), DCTF_OK);
}

static inline int fixture_set_up_closed(void **state)
{
    struct fixture *fx = calloc(1, sizeof(*fx));

    if (!fx)
        return -1;
    strcpy(fx->dir, "/tmp/dctf-test-store-XXXXXX");
    fx->size_bytes = 1024 * MIB;
    fx->now_ms = 1000000;
    *state = fx;
    return mkdtemp(fx->dir) && !dctf_metrics_new(&fx->metrics) ? 0 : -1;
}

static inline int fixture_set_up(void **state)
{
    return !fixture_set_up_closed(state) && !fixture_open(*state) ? 0 : -1;
}

static inline int fixture_tear_down(void **state)
{
    struct fixture *fx = *state;
    char command[128];
    int rc;

    dctf_store_close(fx->store);
    dctf_metrics_free(fx->metrics);
    snprintf(command, sizeof(command), "rm -rf '%s'", fx->dir);
    rc = system(command);
    free(fx);
    return rc;
}

static inline struct dctf_version *make_version(const char *key, uint64_t size)
{
    struct dctf_version *version;

    assert_int_equal(
        dctf_version_new(DATASET, key, "v1", size, DCTF_FEATURE_BY_DIRECTORY, &version), DCTF_OK);
    return version;
}

/* The bytes of a shard at an offset. */
static inline void fill_bytes(const struct dctf_version *version, uint64_t offset, size_t len, uint8_t *out)
{
    uint64_t word = 0;

    for (size_t i = 0; i < len; i++) {
        uint64_t at = offset + i;

        if (i == 0 || at % 8 == 0)
            word = (version->key_hash ^ (at / 8)) * 0x9e3779b97f4a7c15u;
        out[i] = (uint8_t)(word >> (at % 8 * 8));
    }
}

static inline struct dctf_shard *get_shard(struct fixture *fx, const char *key, uint64_t size)
{
    struct dctf_version *version = make_version(key, size);
    struct dctf_shard *shard;

    assert_int_equal(dctf_shard_get(fx->store, version, &shard), DCTF_OK);
    dctf_version_unref(version);
    return shard;
}

/* Write blocks [first, first + count). */
static inline bool write_blocks(struct dctf_shard *shard, uint32_t first, uint32_t count)
{
    const struct dctf_version *version = dctf_shard_version(shard);
    uint64_t offset = (uint64_t)first * DCTF_BLOCK_BYTES;
    uint64_t len = (uint64_t)count * DCTF_BLOCK_BYTES;
    uint8_t *data;
    bool kept;

    if (offset + len > version->size)
        len = version->size - offset;
    data = malloc(len ? len : 1);
    assert_non_null(data);
    fill_bytes(version, offset, len, data);
    assert_int_equal(dctf_shard_write(shard, first, data, len, &kept), DCTF_OK);
    free(data);
    return kept;
}

static inline bool write_all_blocks(struct dctf_shard *shard)
{
    uint32_t blocks = dctf_blocks_of(dctf_shard_version(shard)->size);
    bool kept = true;

    for (uint32_t block = 0; kept && block < blocks; block += DCTF_EXTENT_BLOCKS)
        kept = write_blocks(
            shard, block, blocks - block < DCTF_EXTENT_BLOCKS ? blocks - block : DCTF_EXTENT_BLOCKS);
    return kept;
}

/* Read and compare; the error of the read. */
static inline enum dctf_err check_read(
    struct dctf_shard *shard, uint64_t offset, size_t len, uint32_t *missing)
{
    uint8_t *got = malloc(len + 1);
    uint8_t *want = malloc(len + 1);
    enum dctf_err err;

    assert_true(got && want);
    err = dctf_shard_read(shard, offset, len, got, missing);
    if (!err) {
        fill_bytes(dctf_shard_version(shard), offset, len, want);
        assert_memory_equal(got, want, len);
    }
    free(got);
    free(want);
    return err;
}

static inline enum dctf_err check_read_all(struct dctf_shard *shard)
{
    uint32_t missing;

    return check_read(shard, 0, dctf_shard_version(shard)->size, &missing);
}

static inline void shard_path(struct fixture *fx, struct dctf_shard *shard, char *path, size_t cap)
{
    char name[DCTF_LAYOUT_NAME_BYTES];

    dctf_layout_file_name(&dctf_shard_version(shard)->id, name);
    snprintf(path, cap, "%s/shards/%.2s/%s", fx->dir, name, name);
}

/* Bytes on disk below the cache directory. */
static inline uint64_t disk_usage(struct fixture *fx)
{
    char command[128];
    unsigned long long kib = 0;
    FILE *pipe;

    snprintf(command, sizeof(command), "du -sk '%s'", fx->dir);
    pipe = popen(command, "r");
    assert_non_null(pipe);
    assert_int_equal(fscanf(pipe, "%llu", &kib), 1);
    pclose(pipe);
    return (uint64_t)kib * 1024;
}

static inline struct dctf_store_stats stats_of(struct fixture *fx)
{
    struct dctf_store_stats stats;

    dctf_store_stats(fx->store, &stats);
    return stats;
}

#endif
