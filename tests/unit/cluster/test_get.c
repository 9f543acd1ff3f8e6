/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads through a cluster of nodes in this process: where they go, also when nodes do not get at the source,
 * do not answer or are busy.
 */
#include "core_fixture.h"

/* --- where bytes come from --- */

static void test_read_through_its_home_once(void **state)
{
    struct core *core = core_open("nnn", "");
    struct shard *shard = make_shard(core, 3 * MIB + 4567, 1, ANY, ANY);
    struct reading *first, *second;

    (void)state;
    source_hold(&core->source);
    first = read_start(core, 0, shard, 0, shard->size);
    second = read_start(core, 2, shard, 0, shard->size);
    wait_until(source_held(&core->source));
    source_release(&core->source);
    assert_int_equal(read_wait(first, FOREVER_MS), DCTF_OK);
    assert_int_equal(read_wait(second, FOREVER_MS), DCTF_OK);
    assert_int_equal(source_counts(core).bytes, shard->size);
    assert_int_equal(status_of(core, 1).origin_bytes, shard->size);
    assert_int_equal(status_of(core, 0).origin_bytes, 0);
    assert_int_equal(status_of(core, 2).origin_bytes, 0);
    assert_int_equal(status_of(core, 1).peer_bytes_out, 2 * shard->size); /* it does not compress */
    core_close(core);
}

static void test_read_at_home(void **state)
{
    struct core *core = core_open("nnn", "");
    struct shard *shard = make_shard(core, 3 * MIB, 0, ANY, ANY);

    (void)state;
    assert_int_equal(read_whole(core, 0, shard), DCTF_OK);
    assert_int_equal(read_whole(core, 0, shard), DCTF_OK); /* of the tiers, or on its way there */
    assert_int_equal(source_counts(core).bytes, shard->size);
    assert_int_equal(status_of(core, 0).origin_bytes, shard->size);
    assert_int_equal(status_of(core, 0).peer_bytes_in, 0);
    assert_int_equal(status_of(core, 0).fills_local, 0);
    core_close(core);
}

static void test_read_range_over_two_homes(void **state)
{
    struct core *core = core_open("nnn", "");
    struct shard *shard = make_shard(core, 9 * MIB + 12345, 1, ANY, 2);
    uint64_t offset = 7 * MIB, len = shard->size - offset;

    (void)state;
    assert_int_equal(read_wait(read_start(core, 0, shard, offset, len), FOREVER_MS), DCTF_OK);
    assert_int_equal(status_of(core, 0).origin_bytes, 0);
    assert_int_equal(status_of(core, 1).origin_bytes, MIB);
    assert_int_equal(status_of(core, 2).origin_bytes, len - MIB);
    assert_int_equal(source_counts(core).bytes, len);
    core_close(core);
}

/* What the source says of an object holds for all: nobody else is asked, and the source not again. */
static void test_final_errors_pass_through(void **state)
{
    struct core *core = core_open("nnn", "");
    struct shard *gone = make_shard(core, SMALL_BYTES, 1, ANY, ANY);
    struct shard *changed = make_shard(core, SMALL_BYTES, 1, ANY, ANY);

    (void)state;
    assert_int_equal(dctf_origin_memory_delete(core->memory, gone->key), DCTF_OK);
    assert_int_equal(
        dctf_origin_memory_put(core->memory, changed->key, changed->data, changed->size - 1), DCTF_OK);
    assert_int_equal(read_whole(core, 0, gone), DCTF_ERR_NOT_FOUND);
    assert_int_equal(source_counts(core).get, 1);
    assert_int_equal(read_whole(core, 0, changed), DCTF_ERR_VERSION_MISMATCH);
    assert_int_equal(source_counts(core).get, 2);
    assert_int_equal(status_of(core, 0).failovers, 0);
    assert_int_equal(status_of(core, 0).fills_local, 0);
    core_close(core);
}

/* --- nodes that do not get at the source, though others do --- */

static void test_home_cut_from_the_source(void **state)
{
    struct core *core = core_open("nnn", "origin_retries=0");
    struct shard *shard = make_shard(core, SMALL_BYTES, 1, 2, ANY);

    (void)state;
    atomic_store(&core->nodes[1].way.cut, true);
    assert_int_equal(read_whole(core, 0, shard), DCTF_OK);
    assert_int_equal(status_of(core, 2).origin_bytes, shard->size); /* the second in rank */
    assert_int_equal(source_counts(core).bytes, shard->size);
    assert_int_equal(status_of(core, 0).failovers, 1);
    core_close(core);
}

static void test_read_at_home_cut_from_the_source(void **state)
{
    struct core *core = core_open("nnn", "origin_retries=0");
    struct shard *shard = make_shard(core, SMALL_BYTES, 0, 1, ANY);

    (void)state;
    atomic_store(&core->nodes[0].way.cut, true);
    assert_int_equal(read_whole(core, 0, shard), DCTF_OK);
    assert_int_equal(status_of(core, 1).origin_bytes, shard->size);
    /* Nobody gets there: as without a cluster, after each was asked once. */
    atomic_store(&core->nodes[1].way.cut, true);
    atomic_store(&core->nodes[2].way.cut, true);
    shard = make_shard(core, SMALL_BYTES, 0, 1, ANY);
    assert_int_equal(read_whole(core, 0, shard), DCTF_ERR_ORIGIN_UNREACHABLE);
    shard = make_shard(core, SMALL_BYTES, 1, 0, ANY);
    assert_int_equal(read_whole(core, 0, shard), DCTF_ERR_ORIGIN_UNREACHABLE);
    core_close(core);
}

/* Once it is known others are asked first, by whoever asks; the source only when they are of no help. */
static void test_node_cut_from_the_source_knows(void **state)
{
    struct core *core = core_open("nnn", "origin_retries=3");
    atomic_uint *tries = &core->nodes[0].way.tries;
    struct shard *shard = make_shard(core, SMALL_BYTES, 0, 1, ANY);

    (void)state;
    atomic_store(&core->nodes[0].way.cut, true);
    assert_int_equal(read_whole(core, 0, shard), DCTF_OK);
    assert_int_equal(atomic_load(tries), 1); /* others are the next try */
    pthread_mutex_lock(&core->nodes[0].cluster->lock);
    core->nodes[0].cluster->source.until_ms += FOREVER_MS;
    pthread_mutex_unlock(&core->nodes[0].cluster->lock);
    assert_int_equal(read_whole(core, 0, make_shard(core, SMALL_BYTES, 0, 1, ANY)), DCTF_OK);
    assert_int_equal(read_whole(core, 2, make_shard(core, SMALL_BYTES, 0, 1, ANY)), DCTF_OK);
    assert_int_equal(atomic_load(tries), 1);
    atomic_store(&core->nodes[1].way.cut, true);
    atomic_store(&core->nodes[2].way.cut, true);
    shard = make_shard(core, SMALL_BYTES, 0, 1, ANY);
    assert_int_equal(read_whole(core, 0, shard), DCTF_ERR_ORIGIN_UNREACHABLE);
    assert_true(atomic_load(tries) > 1);
    atomic_store(&core->nodes[0].way.cut, false); /* it alone gets there again */
    assert_int_equal(read_whole(core, 0, shard), DCTF_OK);
    assert_int_equal(core->nodes[0].cluster->source.state, DCTF_BREAKER_CLOSED);
    core_close(core);
}

/* --- peers that do not answer --- */

/* Reads at this node's own home earn what a hedge costs. */
static void earn_hedges(struct core *core, unsigned reads)
{
    struct shard *own = make_shard(core, SMALL_BYTES, 0, ANY, ANY);

    for (unsigned i = 0; i < reads; i++)
        assert_int_equal(read_whole(core, 0, own), DCTF_OK);
}

static void test_peer_that_never_answered_is_left(void **state)
{
    struct core *core = core_open("nsn", "topology_timeout_ms=300ms " PATIENT);
    struct shard *shard = make_shard(core, SMALL_BYTES, 1, 2, ANY);
    uint64_t begun_ms = dctf_clock_mono_ms(NULL);

    (void)state;
    /* Until one waited for it: when its ping has just failed, it is not asked. */
    while (!status_of(core, 0).failovers) {
        assert_int_equal(read_whole(core, 0, shard), DCTF_OK);
        assert_true(dctf_clock_mono_ms(NULL) - begun_ms < FOREVER_MS);
    }
    assert_int_equal(source_counts(core).bytes, shard->size);
    core_close(core);
}

/* The read waits for a peer that was well, until two pings have failed. */
static void test_peer_that_fell_silent_is_left(void **state)
{
    struct core *core = core_open("npn", "hedge=off " PATIENT);
    struct shard *shard = make_shard(core, SMALL_BYTES, 1, 2, ANY);
    struct dctf_peer_status peer;

    (void)state;
    relay_freeze(&core->places[1], true);
    assert_int_equal(read_whole(core, 0, shard), DCTF_OK);
    assert_int_equal(status_of(core, 0).failovers, 1);
    assert_int_equal(status_of(core, 0).hedges, 0);
    assert_int_equal(status_of(core, 2).origin_bytes, shard->size);
    peer = peer_of(core, 0, 1);
    assert_int_not_equal(peer.breaker, DCTF_BREAKER_CLOSED);
    assert_int_equal(read_whole(core, 0, shard), DCTF_OK); /* it is not asked again */
    assert_int_equal(peer_of(core, 0, 1).requests, peer.requests);
    relay_freeze(&core->places[1], false);
    wait_until(peer_of(core, 0, 1).breaker == DCTF_BREAKER_CLOSED);
    core_close(core);
}

/* The same for a node that fetches for itself what another says it has. */
static void test_flight_leaves_peer_that_fell_silent(void **state)
{
    struct core *core = core_open("npp", PATIENT);
    struct shard *shard = make_shard(core, SMALL_BYTES, 0, 1, ANY);
    struct reading *reading;

    (void)state;
    node_probes_patiently(&core->nodes[0]);
    peer_promise(&core->places[1]);
    reading = read_start(core, 0, shard, 0, shard->size);
    wait_until(peer_asked(&core->places[1]));
    assert_int_equal(source_counts(core).get, 0);
    relay_freeze(&core->places[1], true);
    assert_int_equal(read_wait(reading, FOREVER_MS), DCTF_OK);
    assert_int_equal(source_counts(core).bytes, shard->size);
    core_close(core);
}

/* Who has the bytes is asked in vain once, not by every flight until pings have told. */
static void test_flights_lose_time_with_silent_peer_once(void **state)
{
    struct core *core = core_open("npn", "topology_timeout_ms=60s " PATIENT);
    struct shard *first = make_shard(core, SMALL_BYTES, 0, 1, ANY);
    struct shard *second = make_shard(core, SMALL_BYTES, 0, 1, ANY);
    uint64_t asked;

    (void)state;
    wait_until(peer_of(core, 0, 1).rtt_us); /* it was well */
    relay_freeze(&core->places[1], true);
    assert_int_equal(read_whole(core, 0, first), DCTF_OK);
    asked = peer_of(core, 0, 1).requests;
    assert_int_equal(read_whole(core, 0, second), DCTF_OK);
    assert_int_equal(peer_of(core, 0, 1).requests, asked);
    assert_int_equal(peer_of(core, 0, 1).breaker, DCTF_BREAKER_CLOSED);
    relay_freeze(&core->places[1], false);
    core_close(core);
}

static void test_slow_peer_is_hedged(void **state)
{
    struct core *core = core_open("npn", "");
    struct shard *shard = make_shard(core, SMALL_BYTES, 1, 2, ANY);

    (void)state;
    earn_hedges(core, 25);
    peer_hold(&core->places[1], true);
    assert_int_equal(read_whole(core, 0, shard), DCTF_OK);
    assert_int_equal(peer_asked(&core->places[1]), 1);
    assert_int_equal(status_of(core, 0).hedges, 1);
    assert_int_equal(status_of(core, 0).hedges_won, 1);
    assert_int_equal(status_of(core, 0).failovers, 0);
    assert_int_equal(peer_of(core, 0, 1).breaker, DCTF_BREAKER_CLOSED); /* it answers pings */
    core_close(core);
}

/* What node 0 knows of place 1; with node 0's lock. */
static struct dctf_peer *first_peer_locked(struct core *core)
{
    struct dctf_cluster *cluster = core->nodes[0].cluster;
    struct dctf_peer *peer = dctf_peer_of_locked(
        cluster, dctf_view_node(cluster->view, dctf_view_find(cluster->view, core->places[1].addr)));

    assert_non_null(peer);
    return peer;
}

static bool is_doubted(struct core *core)
{
    struct dctf_cluster *cluster = core->nodes[0].cluster;
    bool doubted;

    pthread_mutex_lock(&cluster->lock);
    doubted = dctf_peer_doubted_locked(cluster, first_peer_locked(core));
    pthread_mutex_unlock(&cluster->lock);
    return doubted;
}

/* The usual time of its answers is far longer than the time in which pings find it dead: what is hedged
 * is hedged because a ping is out for too long. */
static void test_doubted_peer_is_hedged_soon(void **state)
{
    struct core *core = core_open("npn", PATIENT);
    struct shard *shard = make_shard(core, SMALL_BYTES, 1, 2, ANY);
    uint64_t until_ms = dctf_clock_mono_ms(NULL) + FOREVER_MS;

    (void)state;
    earn_hedges(core, 25);
    pthread_mutex_lock(&core->nodes[0].cluster->lock);
    for (unsigned i = 0; i < 1000; i++)
        dctf_quantile_add(&first_peer_locked(core)->first_byte, 20ull * 1000000000);
    pthread_mutex_unlock(&core->nodes[0].cluster->lock);
    /* It is doubted for less than half a second, which a test may miss. */
    while (!status_of(core, 0).hedges) {
        assert_true(dctf_clock_mono_ms(NULL) < until_ms);
        relay_freeze(&core->places[1], false);
        wait_until(peer_of(core, 0, 1).rtt_us && peer_of(core, 0, 1).breaker == DCTF_BREAKER_CLOSED);
        relay_freeze(&core->places[1], true);
        wait_until(is_doubted(core) || peer_of(core, 0, 1).breaker != DCTF_BREAKER_CLOSED);
        assert_int_equal(read_whole(core, 0, shard), DCTF_OK);
    }
    relay_freeze(&core->places[1], false);
    core_close(core);
}

static void test_no_hedge_without_budget(void **state)
{
    struct core *core = core_open("npn", "");
    struct shard *shard = make_shard(core, SMALL_BYTES, 1, 2, ANY);
    struct reading *reading;
    uint64_t asked_ms;

    (void)state;
    peer_hold(&core->places[1], true);
    reading = read_start(core, 0, shard, 0, shard->size);
    wait_until(peer_asked(&core->places[1]));
    asked_ms = dctf_clock_mono_ms(NULL);
    wait_until(dctf_clock_mono_ms(NULL) - asked_ms > 200);
    peer_answer(&core->places[1], DCTF_OK);
    assert_int_equal(read_wait(reading, FOREVER_MS), DCTF_OK);
    assert_int_equal(status_of(core, 0).hedges, 0);
    core_close(core);
}

/* --- peers that are busy --- */

static void test_busy_home_is_asked_again(void **state)
{
    struct core *core = core_open("npp", "");
    struct shard *shard = make_shard(core, SMALL_BYTES, 1, 2, ANY);

    (void)state;
    peer_busy(&core->places[1], 2, 10);
    assert_int_equal(read_whole(core, 0, shard), DCTF_OK);
    assert_int_equal(peer_asked(&core->places[1]), 3);
    assert_int_equal(peer_asked(&core->places[2]), 0);
    assert_int_equal(source_counts(core).bytes, 0);
    core_close(core);
}

static unsigned running_hedges(struct core *core)
{
    struct dctf_cluster *cluster = core->nodes[0].cluster;
    unsigned running;

    pthread_mutex_lock(&cluster->lock);
    running = cluster->hedge.running;
    pthread_mutex_unlock(&cluster->lock);
    return running;
}

/* Both are busy after the second was asked as well: again from the beginning, with a hedge of its own. */
static void test_busy_after_hedge_begins_anew(void **state)
{
    struct core *core = core_open("npp", "");
    struct shard *shard = make_shard(core, SMALL_BYTES, 1, 2, ANY);
    struct place *home = &core->places[1], *second = &core->places[2];
    struct reading *reading;

    (void)state;
    earn_hedges(core, 50);
    peer_hold(home, true);
    peer_hold(second, true);
    reading = read_start(core, 0, shard, 0, shard->size);
    wait_until(peer_asked(home) == 1 && peer_asked(second) == 1);
    peer_answer(home, DCTF_ERR_PEER_BUSY);
    peer_answer(second, DCTF_ERR_PEER_BUSY);
    wait_until(peer_asked(home) == 2 && peer_asked(second) == 2);
    peer_answer(second, DCTF_OK);
    assert_int_equal(read_wait(reading, FOREVER_MS), DCTF_OK);
    assert_int_equal(status_of(core, 0).hedges, 2);
    assert_int_equal(status_of(core, 0).hedges_won, 1);
    assert_int_equal(running_hedges(core), 0);
    core_close(core); /* looks whether all buffers are back */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read_through_its_home_once),
        cmocka_unit_test(test_read_at_home),
        cmocka_unit_test(test_read_range_over_two_homes),
        cmocka_unit_test(test_final_errors_pass_through),
        cmocka_unit_test(test_home_cut_from_the_source),
        cmocka_unit_test(test_read_at_home_cut_from_the_source),
        cmocka_unit_test(test_node_cut_from_the_source_knows),
        cmocka_unit_test(test_peer_that_never_answered_is_left),
        cmocka_unit_test(test_peer_that_fell_silent_is_left),
        cmocka_unit_test(test_flight_leaves_peer_that_fell_silent),
        cmocka_unit_test(test_flights_lose_time_with_silent_peer_once),
        cmocka_unit_test(test_slow_peer_is_hedged),
        cmocka_unit_test(test_doubted_peer_is_hedged_soon),
        cmocka_unit_test(test_no_hedge_without_budget),
        cmocka_unit_test(test_busy_home_is_asked_again),
        cmocka_unit_test(test_busy_after_hedge_begins_anew),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
