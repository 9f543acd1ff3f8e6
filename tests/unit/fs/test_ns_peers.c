/* SPDX-License-Identifier: Apache-2.0
 *
 * The namespace: what it lists for other nodes.
 */
#include "ns_fixture.h"

static void ask_for_peer(struct fixture *f, const char *dir, uint64_t max_age_ms, struct waiter *waiter)
{
    waiter_init(waiter);
    assert_int_equal(dctf_ns_resolve_for_peer(f->ns, dir, max_age_ms, &waiter->wait), DCTF_OK);
}

static unsigned lists_of(struct fixture *f)
{
    unsigned lists;

    pthread_mutex_lock(&f->gate.lock);
    lists = f->gate.lists;
    pthread_mutex_unlock(&f->gate.lock);
    return lists;
}

/* Whoever asks, it is one listing, in either order. */
static void test_peers_and_readers_share_a_flight(void **state)
{
    struct fixture *f = *state;
    struct waiter here, there[3];

    put(f, "d/a");
    put(f, "e/a");
    f->gate.closed = true;
    ask(f, "d", &here);
    for (unsigned i = 0; i < 3; i++)
        ask_for_peer(f, "d", 60000, &there[i]);
    gate_open(&f->gate);
    assert_int_equal(answered(&here), DCTF_OK);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(answered(&there[i]), DCTF_OK);
    assert_int_equal(lists_of(f), 1);
    pthread_mutex_lock(&f->gate.lock);
    f->gate.closed = true;
    pthread_mutex_unlock(&f->gate.lock);
    ask_for_peer(f, "e", 60000, &there[0]);
    ask(f, "e", &here);
    gate_open(&f->gate);
    assert_int_equal(answered(&here), DCTF_OK);
    assert_int_equal(answered(&there[0]), DCTF_OK);
    assert_int_equal(lists_of(f), 2);
}

/* What was begun before a peer's last sync is not for it. */
static void test_flight_that_is_too_old_for_a_peer(void **state)
{
    struct fixture *f = *state;
    struct waiter old, young, same;

    put(f, "d/a");
    f->gate.closed = true;
    ask_for_peer(f, "d", 60000, &old);
    atomic_fetch_add(&mono_ahead, 5000);
    ask_for_peer(f, "d", 1000, &young);
    ask_for_peer(f, "d", 4000, &same);
    gate_open(&f->gate);
    assert_int_equal(answered(&old), DCTF_OK);
    assert_int_equal(answered(&young), DCTF_OK);
    assert_int_equal(answered(&same), DCTF_OK);
    assert_int_equal(lists_of(f), 2);
    assert_int_equal(young.state.generation, same.state.generation);
}

static void test_kept_listing_by_its_age(void **state)
{
    struct fixture *f = *state;
    struct waiter waiter;

    put(f, "d/a");
    ask_for_peer(f, "d", 0, &waiter);
    assert_int_equal(answered(&waiter), DCTF_OK);
    assert_int_equal(waiter.state.entries, 1);
    atomic_fetch_add(&wall_now, 10000);
    ask_for_peer(f, "d", 10000, &waiter);
    assert_int_equal(answered(&waiter), DCTF_OK);
    assert_int_equal(lists_of(f), 1);
    ask_for_peer(f, "d", 9999, &waiter); /* too old for this one, though not for readers here */
    assert_int_equal(answered(&waiter), DCTF_OK);
    assert_int_equal(lists_of(f), 2);
    /* And one too old here that a peer still takes. */
    atomic_fetch_add(&wall_now, TTL_MS + 1000);
    ask_for_peer(f, "d", UINT64_MAX, &waiter);
    assert_int_equal(answered(&waiter), DCTF_OK);
    assert_int_equal(lists_of(f), 2);
}

static void test_tell_how_long_the_source_is_silent(void **state)
{
    struct fixture *f = *state;
    struct waiter waiter;

    put(f, "d/a");
    assert_true(dctf_ns_silent_ms(f->ns, "d") == UINT64_MAX);
    f->gate.closed = true;
    ask_for_peer(f, "d", 60000, &waiter);
    assert_true(dctf_ns_silent_ms(f->ns, "d") < 4000);
    assert_true(dctf_ns_silent_ms(f->ns, "e") == UINT64_MAX);
    atomic_fetch_add(&mono_ahead, 4000);
    assert_true(dctf_ns_silent_ms(f->ns, "d") >= 4000);
    gate_open(&f->gate);
    assert_int_equal(answered(&waiter), DCTF_OK);
    assert_true(dctf_ns_silent_ms(f->ns, "d") == UINT64_MAX);
}

/* A peer is told what the source says, not what was known before. */
static void test_errors_are_not_hidden_by_an_old_listing(void **state)
{
    struct fixture *f = *state;
    struct waiter waiter;

    put(f, "d/a");
    ask(f, "d", &waiter);
    assert_int_equal(answered(&waiter), DCTF_OK);
    atomic_fetch_add(&wall_now, 5000);
    assert_int_equal(dctf_origin_memory_delete(f->memory, "d/a"), DCTF_OK);
    ask_for_peer(f, "d", 1000, &waiter);
    assert_int_equal(answered(&waiter), DCTF_ERR_NOT_FOUND);
}

static void test_stop_refuses_peers(void **state)
{
    struct fixture *f = *state;
    struct waiter waiting;
    struct dctf_ns_wait refused = {.done = on_answer};

    put(f, "d/a");
    f->gate.closed = true;
    ask_for_peer(f, "d", 60000, &waiting);
    dctf_ns_stop(f->ns);
    assert_int_equal(answered(&waiting), DCTF_ERR_SHUTTING_DOWN);
    assert_int_equal(dctf_ns_resolve_for_peer(f->ns, "e", 60000, &refused), DCTF_ERR_SHUTTING_DOWN);
    gate_open(&f->gate);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_peers_and_readers_share_a_flight, setup, teardown),
        cmocka_unit_test_setup_teardown(test_flight_that_is_too_old_for_a_peer, setup, teardown),
        cmocka_unit_test_setup_teardown(test_kept_listing_by_its_age, setup, teardown),
        cmocka_unit_test_setup_teardown(test_tell_how_long_the_source_is_silent, setup, teardown),
        cmocka_unit_test_setup_teardown(test_errors_are_not_hidden_by_an_old_listing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stop_refuses_peers, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
