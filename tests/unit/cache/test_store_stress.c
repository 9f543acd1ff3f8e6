/* SPDX-License-Identifier: Apache-2.0
 *
 * Readers, writers, evictors and maintenance at once, over more shards than fit: no
 * byte is ever wrong, the cap holds, and the figures add up afterwards.
 */
#include "store_fixture.h"

#include <pthread.h>
#include <stdatomic.h>

#define SHARDS 48
#define THREADS 4
#define ROUNDS 250

struct worker {
    struct fixture *fx;
    struct dctf_rng rng;
    pthread_barrier_t *barrier;
    uint64_t reads, hits;
};

static uint64_t size_of(unsigned i)
{
    return i % 3 ? 40000 + i * 977u : 1 * MIB + 100 + (uint64_t)i * 61001;
}

/* Compare without cmocka: it is not for threads. */
static void read_and_check(struct worker *worker, struct dctf_shard *shard, uint8_t *got, uint8_t *want)
{
    const struct dctf_version *version = dctf_shard_version(shard);
    uint64_t offset = dctf_rng_below(&worker->rng, version->size);
    size_t len = (size_t)dctf_rng_below(&worker->rng, version->size - offset) + 1;
    uint32_t missing;

    worker->reads++;
    if (dctf_shard_read(shard, offset, len, got, &missing))
        return;
    worker->hits++;
    fill_bytes(version, offset, len, want);
    if (memcmp(got, want, len) != 0) {
        fprintf(stderr, "wrong bytes in %s at %llu\n", version->key, (unsigned long long)offset);
        abort();
    }
}

static void write_some(struct worker *worker, struct dctf_shard *shard, uint8_t *buf)
{
    const struct dctf_version *version = dctf_shard_version(shard);
    uint32_t blocks = dctf_blocks_of(version->size);
    uint32_t first = version->size <= DCTF_SMALL_BYTES ? 0 : (uint32_t)dctf_rng_below(&worker->rng, blocks);
    uint64_t offset = (uint64_t)first * DCTF_BLOCK_BYTES;
    size_t len = (size_t)(version->size - offset);
    bool kept;

    fill_bytes(version, offset, len, buf);
    if (dctf_shard_write(shard, first, buf, len, &kept))
        abort();
}

static void *work(void *ctx)
{
    struct worker *worker = ctx;
    uint8_t *got = malloc(5 * MIB);
    uint8_t *want = malloc(5 * MIB);
    char key[32];

    if (!got || !want)
        abort();
    pthread_barrier_wait(worker->barrier);
    for (int round = 0; round < ROUNDS; round++) {
        unsigned i = (unsigned)dctf_rng_below(&worker->rng, SHARDS);
        struct dctf_version *version;
        struct dctf_shard *shard;
        uint32_t bad;

        snprintf(key, sizeof(key), "f%u/s%u", i % 4, i);
        if (dctf_version_new(DATASET, key, "v", size_of(i), DCTF_FEATURE_BY_DIRECTORY, &version) ||
            dctf_shard_get(worker->fx->store, version, &shard))
            abort();
        dctf_version_unref(version);
        dctf_shard_touch(shard);
        switch (dctf_rng_below(&worker->rng, 12)) {
        case 0:
            (void)dctf_shard_wants(shard);
            if (dctf_shard_evict(shard) == DCTF_ERR_NO_MEMORY)
                abort();
            break;
        case 1:
            if (dctf_shard_verify(shard, &bad) || bad)
                abort();
            break;
        case 2: {
            int fd = dctf_shard_pin(shard);

            if (fd >= 0) {
                /* What the kernel would read must be right until unpinned. */
                size_t len = (size_t)size_of(i);

                for (int k = 0; k < 3; k++) {
                    fill_bytes(dctf_shard_version(shard), 0, len, want);
                    if (pread(fd, got, len, 0) != (ssize_t)len || memcmp(got, want, len) != 0)
                        abort();
                }
                dctf_shard_unpin(shard);
            }
            break;
        }
        case 3:
            if (worker->rng.state % 4 == 0)
                dctf_store_maintain(worker->fx->store);
            break;
        case 4:
        case 5:
        case 6:
        case 7:
            write_some(worker, shard, want);
            break;
        default:
            read_and_check(worker, shard, got, want);
        }
        dctf_shard_put(shard);
    }
    free(got);
    free(want);
    return NULL;
}

static bool sum_resident(void *ctx, const struct dctf_version *version, uint64_t present_bytes)
{
    uint64_t *sum = ctx;

    sum[version->size <= DCTF_SMALL_BYTES ? 1 : 0] +=
        version->size <= DCTF_SMALL_BYTES ? present_bytes : (present_bytes + 4095) / 4096 * 4096;
    sum[2]++;
    return true;
}

static void test_everything_at_once(void **state)
{
    struct fixture *fx = *state;
    struct worker workers[THREADS];
    pthread_t threads[THREADS];
    pthread_barrier_t barrier;
    uint64_t sum[3] = {0};
    uint64_t hits = 0;

    fx->size_bytes = 24 * MIB;
    fx->scrub = true;
    fixture_reopen(fx);
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.fx = fx, .rng = {.state = i + 1}, .barrier = &barrier};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        hits += workers[i].hits;
    }
    pthread_barrier_destroy(&barrier);
    assert_true(hits > 0);
    assert_int_equal(dctf_metric_get(fx->metrics, DCTF_METRIC_CACHE_BAD_BLOCKS), 0);
    dctf_store_maintain(fx->store);
    assert_true(disk_usage(fx) <= 24 * MIB);
    assert_int_equal(dctf_store_each(fx->store, sum_resident, sum), DCTF_OK);
    assert_int_equal(stats_of(fx).file_bytes, sum[0]);
    assert_true(stats_of(fx).small_bytes >= sum[1]); /* headers */
    assert_true(stats_of(fx).small_bytes <= sum[1] + 64 * SHARDS);
    assert_int_equal(stats_of(fx).shards, sum[2]);
    fixture_reopen(fx);
    assert_int_equal(stats_of(fx).file_bytes, sum[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_everything_at_once, fixture_set_up, fixture_tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
