/* SPDX-License-Identifier: Apache-2.0 */
#include "base/timer.h"

#include "lib/fail_alloc.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define NEVER_MS 3600000

struct probe {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    unsigned fired;   /* guarded by lock */
    bool gate_closed; /* guarded by lock; fire waits while set */
    bool inside;      /* guarded by lock */
    uint64_t at_ms;   /* guarded by lock; of the last fire */
    struct dctf_timers *timers;
    struct dctf_timer timer;
    unsigned rearm; /* times fire arms the timer again */
    bool self_cancel;
    bool cancel_result;
};

static void probe_init(struct probe *probe, struct dctf_timers *timers)
{
    *probe = (struct probe){.timers = timers};
    pthread_mutex_init(&probe->lock, NULL);
    pthread_cond_init(&probe->cond, NULL);
}

static void probe_fire(void *ctx)
{
    struct probe *probe = ctx;

    if (probe->rearm) {
        probe->rearm--;
        assert_int_equal(dctf_timer_arm(probe->timers, &probe->timer, 0, probe_fire, probe), DCTF_OK);
    }
    if (probe->self_cancel)
        probe->cancel_result = dctf_timer_cancel(probe->timers, &probe->timer);
    pthread_mutex_lock(&probe->lock);
    probe->inside = true;
    probe->at_ms = dctf_clock_mono_ms(NULL);
    pthread_cond_broadcast(&probe->cond);
    while (probe->gate_closed)
        pthread_cond_wait(&probe->cond, &probe->lock);
    probe->inside = false;
    probe->fired++;
    pthread_cond_broadcast(&probe->cond);
    pthread_mutex_unlock(&probe->lock);
}

static void probe_await(struct probe *probe, unsigned fired)
{
    pthread_mutex_lock(&probe->lock);
    while (probe->fired < fired)
        pthread_cond_wait(&probe->cond, &probe->lock);
    pthread_mutex_unlock(&probe->lock);
}

static void probe_await_inside(struct probe *probe)
{
    pthread_mutex_lock(&probe->lock);
    while (!probe->inside)
        pthread_cond_wait(&probe->cond, &probe->lock);
    pthread_mutex_unlock(&probe->lock);
}

static void probe_gate(struct probe *probe, bool closed)
{
    pthread_mutex_lock(&probe->lock);
    probe->gate_closed = closed;
    pthread_cond_broadcast(&probe->cond);
    pthread_mutex_unlock(&probe->lock);
}

static int setup(void **state)
{
    return dctf_timers_new((struct dctf_timers **)state) == DCTF_OK ? 0 : -1;
}

static int teardown(void **state)
{
    dctf_timers_free(*state);
    return 0;
}

static void test_arm_fires_not_early(void **state)
{
    struct probe probe;
    uint64_t start_ns;

    probe_init(&probe, *state);
    start_ns = dctf_clock_mono_ns(NULL);
    assert_int_equal(dctf_timer_arm(*state, &probe.timer, 20, probe_fire, &probe), DCTF_OK);
    probe_await(&probe, 1);
    assert_true(dctf_clock_mono_ns(NULL) - start_ns >= 20000000);
    assert_false(dctf_timer_cancel(*state, &probe.timer)); /* it has finished */
    assert_int_equal(probe.timer.slot, 0);
}

#define SEQUENCE 60

struct sequence {
    struct probe done;
    unsigned at;
    uint64_t due_ms[SEQUENCE];
    struct dctf_timer timers[SEQUENCE];
};

struct sequence_item {
    struct sequence *sequence;
    unsigned index;
};

static void sequence_fire(void *ctx)
{
    struct sequence_item *item = ctx;
    struct sequence *sequence = item->sequence;

    sequence->due_ms[sequence->at++] = sequence->timers[item->index].due_ms;
    if (sequence->at == SEQUENCE / 2)
        probe_fire(&sequence->done);
}

static void run_sequence(struct dctf_timers *timers, struct dctf_rng *rng)
{
    static struct sequence sequence;
    static struct sequence_item items[SEQUENCE];
    struct probe blocker;

    sequence = (struct sequence){0};
    probe_init(&sequence.done, timers);
    probe_init(&blocker, timers);
    probe_gate(&blocker, true); /* hold the thread until all are armed */
    assert_int_equal(dctf_timer_arm(timers, &blocker.timer, 0, probe_fire, &blocker), DCTF_OK);
    probe_await_inside(&blocker);
    for (unsigned i = 0; i < SEQUENCE; i++) {
        items[i] = (struct sequence_item){&sequence, i};
        assert_int_equal(
            dctf_timer_arm(timers, &sequence.timers[i], dctf_rng_below(rng, 10), sequence_fire, &items[i]),
            DCTF_OK);
    }
    for (unsigned i = 0; i < SEQUENCE; i += 2) /* removal from the middle keeps the heap */
        assert_true(dctf_timer_cancel(timers, &sequence.timers[i]));
    probe_gate(&blocker, false);
    (void)dctf_timer_cancel(timers, &blocker.timer);
    probe_await(&sequence.done, 1);
    for (unsigned i = 1; i < SEQUENCE / 2; i++)
        assert_true(sequence.due_ms[i - 1] <= sequence.due_ms[i]);
    for (unsigned i = 0; i < SEQUENCE; i++) /* the last fire has returned */
        (void)dctf_timer_cancel(timers, &sequence.timers[i]);
}

static void test_arm_fires_in_order(void **state)
{
    struct dctf_rng rng = {42};

    for (int round = 0; round < 40; round++)
        run_sequence(*state, &rng);
}

static void test_arm_earlier_wakes_thread(void **state)
{
    struct probe late;
    struct probe soon;

    probe_init(&late, *state);
    probe_init(&soon, *state);
    assert_int_equal(dctf_timer_arm(*state, &late.timer, NEVER_MS, probe_fire, &late), DCTF_OK);
    assert_int_equal(dctf_timer_arm(*state, &soon.timer, 1, probe_fire, &soon), DCTF_OK);
    probe_await(&soon, 1);
    (void)dctf_timer_cancel(*state, &soon.timer); /* its fire has returned */
    assert_true(dctf_timer_cancel(*state, &late.timer));
    assert_int_equal(late.fired, 0);
}

static void test_arm_for_ever(void **state)
{
    struct probe probe;

    probe_init(&probe, *state);
    assert_int_equal(dctf_timer_arm(*state, &probe.timer, UINT64_MAX, probe_fire, &probe), DCTF_OK);
    assert_true(dctf_timer_cancel(*state, &probe.timer));
}

static void test_cancel_not_armed(void **state)
{
    struct dctf_timer timer = {0};

    assert_false(dctf_timer_cancel(*state, &timer));
}

static void test_cancel_then_arm_again(void **state)
{
    struct probe probe;

    probe_init(&probe, *state);
    assert_int_equal(dctf_timer_arm(*state, &probe.timer, NEVER_MS, probe_fire, &probe), DCTF_OK);
    assert_true(dctf_timer_cancel(*state, &probe.timer));
    assert_false(dctf_timer_cancel(*state, &probe.timer));
    assert_int_equal(dctf_timer_arm(*state, &probe.timer, 0, probe_fire, &probe), DCTF_OK);
    probe_await(&probe, 1);
    (void)dctf_timer_cancel(*state, &probe.timer);
    assert_int_equal(probe.fired, 1);
}

struct canceller {
    struct probe *probe;
    atomic_bool returned;
    bool result;
    unsigned fired_then;
};

static void *cancel_in_thread(void *ctx)
{
    struct canceller *canceller = ctx;

    canceller->result = dctf_timer_cancel(canceller->probe->timers, &canceller->probe->timer);
    canceller->fired_then = canceller->probe->fired; /* no lock: fire has finished */
    atomic_store(&canceller->returned, true);
    return NULL;
}

static void test_cancel_waits_for_running_fire(void **state)
{
    struct probe probe;
    struct canceller canceller = {.probe = &probe};
    pthread_t thread;

    probe_init(&probe, *state);
    probe_gate(&probe, true);
    assert_int_equal(dctf_timer_arm(*state, &probe.timer, 0, probe_fire, &probe), DCTF_OK);
    probe_await_inside(&probe);
    assert_int_equal(pthread_create(&thread, NULL, cancel_in_thread, &canceller), 0);
    for (int i = 0; i < 1000; i++) {
        assert_false(atomic_load(&canceller.returned));
        sched_yield();
    }
    probe_gate(&probe, false);
    pthread_join(thread, NULL);
    assert_false(canceller.result);
    assert_int_equal(canceller.fired_then, 1);
}

static void test_cancel_of_rearming_fire(void **state)
{
    struct probe probe;
    struct canceller canceller = {.probe = &probe};
    pthread_t thread;

    probe_init(&probe, *state);
    probe.rearm = 1;
    probe_gate(&probe, true);
    assert_int_equal(dctf_timer_arm(*state, &probe.timer, 0, probe_fire, &probe), DCTF_OK);
    probe_await_inside(&probe); /* armed again, and still running */
    assert_int_equal(pthread_create(&thread, NULL, cancel_in_thread, &canceller), 0);
    for (int i = 0; i < 1000; i++) {
        assert_false(atomic_load(&canceller.returned));
        sched_yield();
    }
    probe_gate(&probe, false);
    pthread_join(thread, NULL);
    /* The canceller may only come after the second fire began on a slow machine. */
    assert_int_equal(canceller.fired_then, canceller.result ? 1 : 2);
    assert_int_equal(probe.timer.slot, 0);
}

static void test_cancel_from_fire(void **state)
{
    struct probe probe;

    probe_init(&probe, *state);
    probe.self_cancel = true;
    assert_int_equal(dctf_timer_arm(*state, &probe.timer, 0, probe_fire, &probe), DCTF_OK);
    probe_await(&probe, 1); /* would hang if it waited for itself */
    (void)dctf_timer_cancel(*state, &probe.timer);
    assert_false(probe.cancel_result);
    probe.rearm = 1;
    assert_int_equal(dctf_timer_arm(*state, &probe.timer, 0, probe_fire, &probe), DCTF_OK);
    probe_await(&probe, 2);
    (void)dctf_timer_cancel(*state, &probe.timer);
    assert_true(probe.cancel_result);
    assert_int_equal(probe.fired, 2);
}

static void fire_and_free(void *ctx)
{
    struct probe *probe = *(struct probe **)((char *)ctx + sizeof(struct dctf_timer));

    free(ctx); /* the owner goes away in its own fire */
    probe_fire(probe);
}

static void test_fire_may_free_its_owner(void **state)
{
    struct owner {
        struct dctf_timer timer;
        struct probe *probe;
    } *owner = calloc(1, sizeof(*owner));
    static struct probe probe; /* outlives a fire that still returns */

    assert_non_null(owner);
    probe_init(&probe, *state);
    owner->probe = &probe;
    assert_int_equal(dctf_timer_arm(*state, &owner->timer, 0, fire_and_free, owner), DCTF_OK);
    probe_await(&probe, 1);
}

static void test_free_with_armed_timers(void **state)
{
    struct dctf_timers *timers;
    struct probe probe;

    (void)state;
    assert_int_equal(dctf_timers_new(&timers), DCTF_OK);
    probe_init(&probe, timers);
    assert_int_equal(dctf_timer_arm(timers, &probe.timer, NEVER_MS, probe_fire, &probe), DCTF_OK);
    dctf_timers_free(timers);
    assert_int_equal(probe.fired, 0);
    dctf_timers_free(NULL);
}

/* Two threads arm and cancel while timers fire: run it under TSan. */
static void *arm_and_cancel(void *ctx)
{
    struct probe probe;
    struct dctf_rng rng = {(uintptr_t)&probe};

    probe_init(&probe, ctx);
    for (unsigned i = 0; i < 500; i++) {
        assert_int_equal(
            dctf_timer_arm(ctx, &probe.timer, dctf_rng_below(&rng, 2), probe_fire, &probe), DCTF_OK);
        if (dctf_rng_below(&rng, 4) == 0)
            sched_yield();
        (void)dctf_timer_cancel(ctx, &probe.timer);
    }
    return NULL;
}

static void test_cancel_races_fire(void **state)
{
    pthread_t threads[2];

    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, arm_and_cancel, *state), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
}

static void test_arm_no_memory(void **state)
{
    struct dctf_timer timer = {0};
    enum dctf_err err;

    fail_alloc_arm(1);
    err = dctf_timer_arm(*state, &timer, NEVER_MS, probe_fire, NULL);
    assert_true(fail_alloc_disarm());
    assert_int_equal(err, DCTF_ERR_NO_MEMORY);
    assert_int_equal(timer.slot, 0);
    assert_false(dctf_timer_cancel(*state, &timer));
}

static struct dctf_timers *swept;

static enum dctf_err sweep_make(void *ctx)
{
    (void)ctx;
    return dctf_timers_new(&swept);
}

static void sweep_drop(void *ctx)
{
    (void)ctx;
    dctf_timers_free(swept);
}

static void test_new_no_memory(void **state)
{
    (void)state;
    assert_true(fail_alloc_sweep(sweep_make, sweep_drop, NULL, (void **)&swept) >= 1);
}

#define timer_test(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        timer_test(test_arm_fires_not_early),
        timer_test(test_arm_fires_in_order),
        timer_test(test_arm_earlier_wakes_thread),
        timer_test(test_arm_for_ever),
        timer_test(test_cancel_not_armed),
        timer_test(test_cancel_then_arm_again),
        timer_test(test_cancel_waits_for_running_fire),
        timer_test(test_cancel_of_rearming_fire),
        timer_test(test_cancel_from_fire),
        timer_test(test_fire_may_free_its_owner),
        timer_test(test_cancel_races_fire),
        timer_test(test_arm_no_memory),
        cmocka_unit_test(test_free_with_armed_timers),
        cmocka_unit_test(test_new_no_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
