/* SPDX-License-Identifier: Apache-2.0
 *
 * Bringing an extent to its home from another node.
 */
#include "core_fixture.h"

struct warming {
    struct dctf_cluster *cluster;
    struct dctf_version *version;
    atomic_bool stop;
    pthread_t thread;
    struct dctf_cluster_warmed warmed;
    enum dctf_err err;
    atomic_bool over;
};

static bool is_stopped(void *ctx)
{
    return atomic_load(&((struct warming *)ctx)->stop);
}

static void *warm_run(void *ctx)
{
    struct warming *warming = ctx;

    warming->err =
        dctf_cluster_warm(warming->cluster, warming->version, 0, is_stopped, warming, &warming->warmed);
    atomic_store(&warming->over, true);
    return NULL;
}

static void warm_start(struct core *core, unsigned i, const struct shard *shard, struct warming *warming)
{
    *warming = (struct warming){.cluster = core->nodes[i].cluster};
    assert_int_equal(dctf_version_new(DATASET, shard->key, shard->etag, shard->size,
                         DCTF_FEATURE_BY_DIRECTORY, &warming->version),
        DCTF_OK);
    assert_int_equal(dctf_thread_start("warm", warm_run, warming, &warming->thread), DCTF_OK);
}

static enum dctf_err warm_wait(struct warming *warming)
{
    pthread_join(warming->thread, NULL);
    return warming->err;
}

/* Bytes of a shard's first extent that lie in a node's tiers. */
static uint64_t held_at(struct core *core, unsigned i, const struct warming *warming)
{
    struct dctf_shard *shard;
    uint64_t bytes;

    assert_int_equal(dctf_shard_get(core->nodes[i].store, warming->version, &shard), DCTF_OK);
    bytes = dctf_shard_present_bytes(shard);
    dctf_shard_put(shard);
    return bytes;
}

/* Requests that a node has answered; pings are few of them. */
static int64_t requests_at(struct core *core, unsigned i)
{
    return dctf_metric_get(core->nodes[i].metrics, DCTF_METRIC_PEER_REQUESTS_OK);
}

static void test_home_fetches_and_keeps(void **state)
{
    struct core *core = core_open("nnn", "");
    struct shard *shard = make_shard(core, 3 * MIB + 4567, 1, ANY, ANY);
    struct warming warming;

    (void)state;
    warm_start(core, 0, shard, &warming);
    assert_int_equal(warm_wait(&warming), DCTF_OK);
    assert_true(warming.warmed.fetched && warming.warmed.kept && !warming.warmed.own);
    assert_int_equal(held_at(core, 1, &warming), shard->size);
    assert_int_equal(held_at(core, 0, &warming), 0);
    assert_int_equal(source_counts(core).bytes, shard->size);
    dctf_version_unref(warming.version);
    core_close(core);
}

/* What somebody else has the home fetch is not there before it has been written. */
static void test_wait_for_what_is_on_its_way(void **state)
{
    struct core *core = core_open("nnn", "");
    struct shard *shard = make_shard(core, 3 * MIB, 1, ANY, ANY);
    struct reading *reading;
    struct warming warming;
    int64_t asked;

    (void)state;
    source_hold(&core->source);
    reading = read_start(core, 1, shard, 0, shard->size);
    wait_until(source_held(&core->source));
    asked = requests_at(core, 1);
    warm_start(core, 0, shard, &warming);
    wait_until(atomic_load(&warming.over) || requests_at(core, 1) > asked + 10);
    assert_false(atomic_load(&warming.over));
    source_release(&core->source);
    assert_int_equal(read_wait(reading, FOREVER_MS), DCTF_OK);
    assert_int_equal(warm_wait(&warming), DCTF_OK);
    assert_true(warming.warmed.kept && !warming.warmed.fetched);
    assert_int_equal(held_at(core, 1, &warming), shard->size);
    assert_int_equal(source_counts(core).bytes, shard->size);
    dctf_version_unref(warming.version);
    core_close(core);
}

static void test_stop_waiting(void **state)
{
    struct core *core = core_open("nnn", "");
    struct shard *shard = make_shard(core, MIB, 1, ANY, ANY);
    struct reading *reading;
    struct warming warming;

    (void)state;
    source_hold(&core->source);
    reading = read_start(core, 1, shard, 0, shard->size);
    wait_until(source_held(&core->source));
    warm_start(core, 0, shard, &warming);
    atomic_store(&warming.stop, true);
    assert_int_equal(warm_wait(&warming), DCTF_ERR_CANCELLED);
    source_release(&core->source);
    assert_int_equal(read_wait(reading, FOREVER_MS), DCTF_OK);
    dctf_version_unref(warming.version);
    core_close(core);
}

static void test_home_that_is_gone(void **state)
{
    struct core *core = core_open("nsn", "");
    struct shard *shard = make_shard(core, MIB, 1, ANY, ANY);
    struct warming warming;

    (void)state;
    warm_start(core, 0, shard, &warming);
    assert_int_not_equal(warm_wait(&warming), DCTF_OK);
    assert_int_equal(source_counts(core).get, 0);
    dctf_version_unref(warming.version);
    core_close(core);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_home_fetches_and_keeps),
        cmocka_unit_test(test_wait_for_what_is_on_its_way),
        cmocka_unit_test(test_stop_waiting),
        cmocka_unit_test(test_home_that_is_gone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
