/* SPDX-License-Identifier: Apache-2.0
 *
 * The gate against paths that are simulated: a round trip, jitter, a queue that background
 * fills. Time is an argument, so nothing waits.
 */
#include "base/clock.h"
#include "transport/gate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define BLOCK (256u * 1024u)
#define MINUTE 60000u

static const struct dctf_gate_config config = {
    .constants = {1.25, 0.85, 0.92, 16},
    .block_bytes = BLOCK,
    .window_max_bytes = 64 * BLOCK,
    .floor_us = 1000,
};

static void test_trigger_has_its_constants(void **state)
{
    const struct dctf_gate_constants *defaults = &dctf_gate_defaults;
    const uint64_t window = 100 * 1460;

    (void)state;
    /* base / current = 1.25 × min / current: no below 0.85, that is above 1.47 × min. */
    assert_int_equal(dctf_gate_trigger(defaults, window, 1460, 10000, 14700, 0), DCTF_GATE_HOLD);
    assert_int_equal(dctf_gate_trigger(defaults, window, 1460, 10000, 14710, 0), DCTF_GATE_NO);
    assert_int_equal(dctf_gate_trigger(defaults, window, 1460, 10000, 13580, 0), DCTF_GATE_YES);
    assert_int_equal(dctf_gate_trigger(defaults, window, 1460, 10000, 13600, 0), DCTF_GATE_HOLD);
    /* Slow start: a small window need not be open, but congested is congested. */
    assert_int_equal(dctf_gate_trigger(defaults, 15 * 1460, 1460, 10000, 14000, 0), DCTF_GATE_YES);
    assert_int_equal(dctf_gate_trigger(defaults, 16 * 1460, 1460, 10000, 14000, 0), DCTF_GATE_HOLD);
    assert_int_equal(dctf_gate_trigger(defaults, 15 * 1460, 1460, 10000, 15000, 0), DCTF_GATE_NO);
    /* The floor keeps microseconds of noise from looking like a queue. */
    assert_int_equal(dctf_gate_trigger(defaults, window, 1460, 12, 27, 0), DCTF_GATE_NO);
    assert_int_equal(dctf_gate_trigger(defaults, window, 1460, 12, 27, 1000), DCTF_GATE_YES);
    assert_int_equal(dctf_gate_trigger(defaults, window, 1460, 0, 27, 0), DCTF_GATE_YES);
}

struct path {
    struct dctf_gate gate;
    struct dctf_rng rng;
    uint64_t now_ms;
    uint64_t rtt_us;  /* empty path */
    uint64_t jitter;  /* percent of it */
    uint64_t per_ms;  /* bytes the bottleneck carries in a millisecond; 0: no bottleneck */
    uint64_t foreign; /* bytes of others in its queue */
    unsigned tried, opened;
};

static void path_init(struct path *path, uint64_t rtt_us, uint64_t jitter)
{
    *path = (struct path){.rng = {rtt_us + 1}, .now_ms = 1000000, .rtt_us = rtt_us, .jitter = jitter};
    dctf_gate_init(&path->gate, &config, path->now_ms);
}

/* What a ping would take now. */
static uint64_t measure(struct path *path)
{
    uint64_t rtt = path->rtt_us;

    if (path->jitter)
        rtt += dctf_rng_below(&path->rng, path->rtt_us * path->jitter / 100 + 1);
    if (path->per_ms)
        rtt += (path->gate.in_flight + path->foreign) * 1000 / path->per_ms;
    return rtt;
}

static void idle(struct path *path, unsigned pings, unsigned every_ms)
{
    for (unsigned i = 0; i < pings; i++) {
        dctf_gate_sample(
            &path->gate, measure(path), path->gate.in_flight == 0 && !path->foreign, path->now_ms);
        path->now_ms += every_ms;
    }
}

/* Background as fast as the gate lets it, for `ms`; every block is delivered after what the path takes. */
static void background(struct path *path, unsigned ms)
{
    uint64_t end = path->now_ms + ms;

    while (path->now_ms < end) {
        unsigned started = 0;

        while (started < 64 && dctf_gate_try(&path->gate, BLOCK, false, path->now_ms))
            started++;
        path->tried++;
        path->opened += started > 0;
        dctf_gate_sample(&path->gate, measure(path), false, path->now_ms);
        path->now_ms +=
            path->per_ms ? started * BLOCK / path->per_ms + path->rtt_us / 1000 + 1 : path->rtt_us / 1000 + 1;
        for (unsigned i = 0; i < started; i++)
            dctf_gate_done(&path->gate, BLOCK, BLOCK, path->now_ms);
        if (!started)
            path->now_ms += dctf_gate_retry_ms(&path->gate, path->now_ms);
    }
}

static void test_idle_path_is_open(void **state)
{
    static const uint64_t rtts[] = {10, 100, 1000, 10000, 100000, 200000};

    (void)state;
    for (size_t i = 0; i < sizeof(rtts) / sizeof(rtts[0]); i++) {
        struct path path;

        path_init(&path, rtts[i], 20);
        idle(&path, 20, 1000);
        background(&path, 30000);
        assert_true(path.tried > 100);
        assert_true(path.opened * 100 >= path.tried * 99);
        /* It grew to the cap, and stays there. */
        assert_int_equal(path.gate.window, config.window_max_bytes);
    }
}

static void test_own_queue_is_kept_short(void **state)
{
    struct path path;
    uint64_t queue_us;

    (void)state;
    path_init(&path, 100, 20);
    idle(&path, 20, 1000);
    path.per_ms = 118000; /* a link of 1 Gbit/s */
    background(&path, 20000);
    queue_us = path.gate.window * 1000 / path.per_ms;
    assert_true(path.gate.window < config.window_max_bytes / 4);
    assert_true(queue_us < 10000); /* 2.2 ms a block */
    assert_true(path.opened > 0);
}

static void test_queue_of_others_closes_it(void **state)
{
    struct path path;

    (void)state;
    path_init(&path, 100, 20);
    idle(&path, 20, 1000);
    path.per_ms = 118000;
    background(&path, 2000);
    path.foreign = 2000000; /* 17 ms */
    background(&path, 5000);
    assert_int_equal(path.gate.window, BLOCK);
    assert_int_equal(path.gate.verdict, DCTF_GATE_NO);
    assert_int_equal(path.gate.why, DCTF_GATE_WHY_RTT);
    /* Yet something goes on, and it recovers. */
    path.opened = 0;
    background(&path, 5000);
    assert_true(path.opened > 0);
    path.foreign = 0;
    path.per_ms = 0;
    background(&path, 5000);
    assert_int_equal(path.gate.window, config.window_max_bytes);
}

/* A node that joins while a queue stands takes it for the path, until it is gone. */
static void test_latecomer_learns_the_true_minimum(void **state)
{
    struct path path;

    (void)state;
    path_init(&path, 50, 20);
    path.per_ms = 118000;
    path.foreign = 1000000; /* 8 ms */
    idle(&path, 5, 100);
    background(&path, 2000);
    assert_true(dctf_gate_min_rtt_us(&path.gate, path.now_ms) > 5000);
    path.foreign = 0;
    idle(&path, 4, 1000);
    assert_true(dctf_gate_min_rtt_us(&path.gate, path.now_ms) < 100);
}

/* A longer way is taken for a queue at first, and for the way within ten minutes. */
static void test_route_change_recovers(void **state)
{
    struct path path;

    (void)state;
    path_init(&path, 1000, 10);
    idle(&path, 20, 1000);
    background(&path, 5000);
    assert_int_equal(path.gate.verdict, DCTF_GATE_YES);
    path.rtt_us = 10000;
    background(&path, 5000);
    assert_int_equal(path.gate.verdict, DCTF_GATE_NO);
    for (unsigned minute = 0; minute < 11; minute++) {
        background(&path, 5000);
        idle(&path, 10, (MINUTE - 5000) / 10);
    }
    background(&path, 5000);
    assert_int_equal(path.gate.verdict, DCTF_GATE_YES);
}

/* Pings once a second are few: they tell within five seconds that a queue of others is gone. */
static void test_gone_queue_is_noticed_by_few_pings(void **state)
{
    static const uint64_t round_trips[] = {10, 100, 1000, 10000, 100000, 200000};

    (void)state;
    for (unsigned i = 0; i < sizeof(round_trips) / sizeof(round_trips[0]); i++) {
        struct path path;

        path_init(&path, round_trips[i], 20);
        idle(&path, 20, 1000);
        path.per_ms = 1250000;
        path.foreign = path.per_ms * (20 + 2 * round_trips[i] / 1000);
        idle(&path, 10, 1000);
        dctf_gate_done(&path.gate, 0, 0, path.now_ms);
        assert_int_equal(path.gate.verdict, DCTF_GATE_NO);
        path.foreign = 0;
        idle(&path, 5, 1000);
        dctf_gate_done(&path.gate, 0, 0, path.now_ms);
        assert_int_equal(path.gate.verdict, DCTF_GATE_YES);
    }
}

/* With background all the time no sample is clean: the path is emptied to get one. */
static void test_slowdown_gets_a_clean_sample(void **state)
{
    struct path path;
    uint64_t slow = 0;

    (void)state;
    path_init(&path, 1000, 0);
    idle(&path, 10, 1000);
    for (unsigned i = 0; i < 30 * 60 * 10; i++) { /* half an hour, a step each 100 ms */
        bool going = dctf_gate_try(&path.gate, BLOCK, false, path.now_ms);

        slow += !going;
        path.now_ms += 100;
        if (going)
            dctf_gate_done(&path.gate, BLOCK, BLOCK, path.now_ms);
        dctf_gate_sample(&path.gate, 1000, !going, path.now_ms);
    }
    assert_in_range(path.gate.slowdowns, 1, 4);
    assert_true(slow * 10 < 30 * 60 * 10);
}

static void test_demand_and_pressure_stop_it(void **state)
{
    struct path path;

    (void)state;
    path_init(&path, 100, 0);
    assert_true(dctf_gate_try(&path.gate, BLOCK, false, path.now_ms));
    dctf_gate_done(&path.gate, BLOCK, BLOCK, path.now_ms);
    assert_false(dctf_gate_try(&path.gate, BLOCK, true, path.now_ms));
    dctf_gate_demand_begin(&path.gate);
    dctf_gate_demand_begin(&path.gate);
    assert_false(dctf_gate_try(&path.gate, BLOCK, false, path.now_ms));
    dctf_gate_demand_end(&path.gate, 200, path.now_ms);
    assert_false(dctf_gate_try(&path.gate, BLOCK, false, path.now_ms));
    dctf_gate_demand_end(&path.gate, 0, path.now_ms);
    assert_true(dctf_gate_try(&path.gate, BLOCK, false, path.now_ms));
    /* A second one is beyond the window. */
    path.gate.window = BLOCK;
    assert_false(dctf_gate_try(&path.gate, BLOCK, false, path.now_ms));
}

static void test_demand_that_suffers_says_no(void **state)
{
    struct path path;

    (void)state;
    path_init(&path, 100, 0);
    idle(&path, 10, 1000);
    for (unsigned i = 0; i < 20; i++) { /* as it is without background: 3 ms */
        dctf_gate_demand_begin(&path.gate);
        dctf_gate_demand_end(&path.gate, 3000, path.now_ms);
    }
    background(&path, 1000);
    assert_int_equal(path.gate.verdict, DCTF_GATE_YES);
    assert_true(dctf_gate_try(&path.gate, BLOCK, false, path.now_ms));
    for (unsigned i = 0; i < 20; i++) { /* with it: 9 ms, and round trips tell nothing */
        dctf_gate_demand_begin(&path.gate);
        dctf_gate_demand_end(&path.gate, 9000, path.now_ms);
    }
    dctf_gate_done(&path.gate, BLOCK, BLOCK, path.now_ms);
    assert_int_equal(path.gate.verdict, DCTF_GATE_NO);
    assert_int_equal(path.gate.why, DCTF_GATE_WHY_WAIT);
}

static void test_requests_are_short_beside_readers(void **state)
{
    struct path path;

    (void)state;
    path_init(&path, 100, 0);
    idle(&path, 10, 1000);
    background(&path, 5000);
    assert_int_equal(dctf_gate_request_bytes(&path.gate, path.now_ms), config.window_max_bytes);
    dctf_gate_demand_begin(&path.gate);
    assert_int_equal(dctf_gate_request_bytes(&path.gate, path.now_ms), BLOCK);
    /* Whoever waits for its end looks again soon. */
    assert_int_equal(dctf_gate_retry_ms(&path.gate, path.now_ms), 1);
    dctf_gate_demand_end(&path.gate, 300, path.now_ms);
    assert_int_equal(dctf_gate_request_bytes(&path.gate, path.now_ms + 500), BLOCK);
    assert_int_equal(dctf_gate_request_bytes(&path.gate, path.now_ms + 1000), config.window_max_bytes);
}

/* Without anything that asks the gate: pings alone. */
static void test_look_tells_what_has_changed_since(void **state)
{
    struct path path;

    (void)state;
    path_init(&path, 100, 20);
    idle(&path, 20, 1000);
    assert_int_equal(dctf_gate_look(&path.gate, path.now_ms), DCTF_GATE_YES);
    path.per_ms = 118000;
    path.foreign = 2000000;
    idle(&path, 10, 1000);
    assert_int_equal(dctf_gate_look(&path.gate, path.now_ms), DCTF_GATE_NO);
    path.foreign = 0;
    idle(&path, 10, 1000);
    assert_int_equal(dctf_gate_look(&path.gate, path.now_ms), DCTF_GATE_YES);
}

static void test_window_stays_in_bounds_whatever_comes(void **state)
{
    struct path path;

    (void)state;
    path_init(&path, 100, 0);
    for (unsigned i = 0; i < 200000; i++) {
        uint64_t dice = dctf_rng_next(&path.rng);

        path.now_ms += dice % 50;
        switch (dice >> 32 & 3) {
        case 0:
            dctf_gate_sample(&path.gate, dice >> 40, dice & 1, path.now_ms);
            break;
        case 1:
            if (dctf_gate_try(&path.gate, dice >> 44, dice & 1, path.now_ms) && dice & 2)
                dctf_gate_done(&path.gate, dice >> 44, dice & 4 ? dice >> 44 : 0, path.now_ms);
            break;
        case 2:
            dctf_gate_demand_begin(&path.gate);
            dctf_gate_demand_end(&path.gate, dice >> 50, path.now_ms);
            break;
        default:
            dctf_gate_done(&path.gate, dice >> 44, dice >> 44, path.now_ms);
            break;
        }
        assert_in_range(path.gate.window, BLOCK, config.window_max_bytes);
        assert_in_range(dctf_gate_retry_ms(&path.gate, path.now_ms), 1, 5000);
    }
    /* When all is back and quiet, one may go within the longest pause. */
    path.now_ms += 5000;
    path.gate.in_flight = 0;
    assert_true(dctf_gate_try(&path.gate, BLOCK, false, path.now_ms) ||
                dctf_gate_try(&path.gate, BLOCK, false, path.now_ms + 5000));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trigger_has_its_constants),
        cmocka_unit_test(test_idle_path_is_open),
        cmocka_unit_test(test_own_queue_is_kept_short),
        cmocka_unit_test(test_queue_of_others_closes_it),
        cmocka_unit_test(test_latecomer_learns_the_true_minimum),
        cmocka_unit_test(test_route_change_recovers),
        cmocka_unit_test(test_gone_queue_is_noticed_by_few_pings),
        cmocka_unit_test(test_slowdown_gets_a_clean_sample),
        cmocka_unit_test(test_demand_and_pressure_stop_it),
        cmocka_unit_test(test_demand_that_suffers_says_no),
        cmocka_unit_test(test_requests_are_short_beside_readers),
        cmocka_unit_test(test_look_tells_what_has_changed_since),
        cmocka_unit_test(test_window_stays_in_bounds_whatever_comes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
