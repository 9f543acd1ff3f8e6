/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads through a cluster that end early: given up by who asked, with the cluster, or with the peer they wait
 * for.
 */
#include "core_fixture.h"
#include "lib/fail_alloc.h"

#define SOON_MS 5000u /* far less than what the read would wait for */

/* --- given up by who asked --- */

static void test_cancel_while_asking(void **state)
{
    struct core *core = core_open("npp", PATIENT);
    struct shard *shard = make_shard(core, SMALL_BYTES, 1, ANY, ANY);
    struct reading *reading;

    (void)state;
    peer_hold(&core->places[1], true);
    reading = read_start(core, 0, shard, 0, shard->size);
    wait_until(peer_asked(&core->places[1]));
    read_cancel(reading);
    assert_int_equal(read_wait(reading, SOON_MS), DCTF_ERR_CANCELLED);
    assert_int_equal(source_counts(core).get, 0);
    core_close(core);
}

#define PAUSE_MS 1000u /* the shortest that a home can ask for is half of its two seconds */

/* How long the end of a read takes that waits for a busy home. */
static uint64_t cancel_pausing(struct core *core, const struct shard *shard)
{
    struct dctf_peer_status before = peer_of(core, 0, 1);
    struct reading *reading = read_start(core, 0, shard, 0, shard->size);
    uint64_t begun_ms;

    wait_until(peer_of(core, 0, 1).requests > before.requests); /* its answer has come */
    begun_ms = dctf_clock_mono_ms(NULL);
    while (!has_ended(reading)) { /* it may be just about to pause */
        read_cancel(reading);
        assert_true(dctf_clock_mono_ms(NULL) - begun_ms < FOREVER_MS);
    }
    assert_int_equal(read_wait(reading, 0), DCTF_ERR_CANCELLED);
    return dctf_clock_mono_ms(NULL) - begun_ms;
}

static void test_cancel_while_pausing(void **state)
{
    struct core *core = core_open("npp", PATIENT);
    struct shard *shard = make_shard(core, SMALL_BYTES, 1, ANY, ANY);
    unsigned tries = 1;

    (void)state;
    peer_busy(&core->places[1], 1000, 2 * PAUSE_MS);
    while (cancel_pausing(core, shard) >= PAUSE_MS) { /* a machine may sleep so long, but not always */
        assert_true(tries < 5);
        tries++;
    }
    assert_int_equal(peer_asked(&core->places[1]), tries);
    core_close(core);
}

static void test_cancel_while_filling(void **state)
{
    struct core *core = core_open("npp", PATIENT);
    struct shard *shard = make_shard(core, SMALL_BYTES, 0, ANY, ANY);
    struct reading *reading;

    (void)state;
    source_hold(&core->source);
    reading = read_start(core, 0, shard, 0, shard->size);
    wait_until(source_held(&core->source));
    read_cancel(reading);
    assert_int_equal(read_wait(reading, SOON_MS), DCTF_ERR_CANCELLED);
    assert_int_equal(source_held(&core->source), 1); /* the flight goes on, for who comes next */
    source_release(&core->source);
    assert_int_equal(read_whole(core, 0, shard), DCTF_OK);
    assert_int_equal(source_counts(core).get, 1);
    core_close(core);
}

struct canceller {
    struct dctf_origin *origin;
    _Atomic(struct dctf_origin_get *) get;
    atomic_bool stop;
};

static void *cancel_always(void *ctx)
{
    struct canceller *canceller = ctx;

    while (!atomic_load(&canceller->stop))
        canceller->origin->ops->cancel_get(canceller->origin, atomic_load(&canceller->get));
    return NULL;
}

/* From another thread, in whatever state it is: it ends once, and soon. */
static void test_cancel_at_any_time(void **state)
{
    struct core *core = core_open("npp", PATIENT);
    struct shard *shards[] = {
        make_shard(core, SMALL_BYTES, 0, ANY, ANY), make_shard(core, 3 * MIB, 1, ANY, ANY)};
    struct canceller canceller = {.origin = dctf_cluster_origin(core->nodes[0].cluster)};
    pthread_t thread;

    (void)state;
    assert_int_equal(dctf_thread_start("cancel", cancel_always, &canceller, &thread), DCTF_OK);
    for (unsigned i = 0; i < 300; i++) {
        struct reading *reading = read_new(core, 0, shards[i % 2], 0, shards[i % 2]->size);
        enum dctf_err err;

        peer_busy(&core->places[1], i % 4 == 1 ? 2 : 0, 2);
        atomic_store(&canceller.get, &reading->get);
        read_go(reading);
        err = read_wait(reading, SOON_MS);
        assert_true(err == DCTF_OK || err == DCTF_ERR_CANCELLED);
    }
    atomic_store(&canceller.stop, true);
    pthread_join(thread, NULL);
    core_close(core);
}

/* --- given up with the peer that they wait for --- */

/* When a request is noted as under way, and what it needs is just about to be allotted: its peer is found
 * dead. */
static bool leave_when_out(void *ctx)
{
    struct dctf_cluster *cluster = ctx;
    struct dctf_peer *peer;
    size_t count;

    wait_until(
        pthread_mutex_trylock(&cluster->lock) == 0); /* not an allocation under the lock: none is so far */
    count = dctf_gets_waiting_locked(cluster, UINT64_MAX, &peer, 1);
    pthread_mutex_unlock(&cluster->lock);
    if (!count)
        return true;
    dctf_gets_leave_peer(cluster, peer);
    return false;
}

static void test_peer_given_up_while_a_request_begins(void **state)
{
    struct core *core = core_open("npp", "hedge=off " PATIENT);
    struct shard *shard = make_shard(core, SMALL_BYTES, 1, 2, ANY);
    struct reading *reading = read_new(core, 0, shard, 0, shard->size);

    (void)state;
    peer_hold(&core->places[1], true);
    fail_alloc_before(leave_when_out, core->nodes[0].cluster);
    read_go(reading);
    assert_int_equal(read_wait(reading, SOON_MS), DCTF_OK); /* of the second */
    assert_int_equal(status_of(core, 0).failovers, 1);
    assert_int_equal(peer_asked(&core->places[2]), 1);
    core_close(core);
}

/* --- given up with the cluster --- */

static void test_close_with_reads_under_way(void **state)
{
    struct core *core = core_open("npp", PATIENT);
    struct shard *asked = make_shard(core, SMALL_BYTES, 1, ANY, ANY);
    struct shard *pausing = make_shard(core, SMALL_BYTES, 2, ANY, ANY);
    struct shard *filled = make_shard(core, SMALL_BYTES, 0, ANY, ANY);
    uint64_t begun_ms;
    struct reading *readings[3];

    (void)state;
    peer_hold(&core->places[1], true);
    peer_busy(&core->places[2], 1000, 2000);
    source_hold(&core->source);
    readings[0] = read_start(core, 0, asked, 0, asked->size);
    readings[1] = read_start(core, 0, pausing, 0, pausing->size);
    readings[2] = read_start(core, 0, filled, 0, filled->size);
    wait_until(peer_asked(&core->places[1]) && peer_asked(&core->places[2]) && source_held(&core->source));
    begun_ms = dctf_clock_mono_ms(NULL);
    cluster_close(&core->nodes[0]);
    assert_true(dctf_clock_mono_ms(NULL) - begun_ms < SOON_MS);
    for (unsigned i = 0; i < 3; i++) {
        enum dctf_err err = read_wait(readings[i], 0);

        assert_true(err == DCTF_ERR_SHUTTING_DOWN || err == DCTF_ERR_CANCELLED);
    }
    core_close(core);
}

static void test_close_with_a_flight_at_a_peer(void **state)
{
    struct core *core = core_open("npp", PATIENT);
    struct shard *shard = make_shard(core, SMALL_BYTES, 0, 1, ANY);
    struct reading *reading;
    uint64_t begun_ms;

    (void)state;
    node_probes_patiently(&core->nodes[0]);
    peer_promise(&core->places[1]);
    reading = read_start(core, 0, shard, 0, shard->size);
    wait_until(peer_asked(&core->places[1]));
    begun_ms = dctf_clock_mono_ms(NULL);
    cluster_close(&core->nodes[0]);
    assert_true(dctf_clock_mono_ms(NULL) - begun_ms < SOON_MS);
    assert_int_not_equal(read_wait(reading, 0), DCTF_OK);
    assert_int_equal(source_counts(core).get, 0);
    core_close(core);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cancel_while_asking),
        cmocka_unit_test(test_cancel_while_pausing),
        cmocka_unit_test(test_cancel_while_filling),
        cmocka_unit_test(test_cancel_at_any_time),
        cmocka_unit_test(test_peer_given_up_while_a_request_begins),
        cmocka_unit_test(test_close_with_reads_under_way),
        cmocka_unit_test(test_close_with_a_flight_at_a_peer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
