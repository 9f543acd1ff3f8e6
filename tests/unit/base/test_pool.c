/* SPDX-License-Identifier: Apache-2.0 */
#include "base/pool.h"

#include "lib/fail_alloc.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <cmocka.h>

/* Holds jobs until it is opened. */
struct latch {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    unsigned waiting;
    bool open;
};

#define LATCH_INIT                                                                                           \
    {                                                                                                        \
        PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, false                                        \
    }

static void latch_pass(void *ctx)
{
    struct latch *latch = ctx;

    pthread_mutex_lock(&latch->lock);
    latch->waiting++;
    pthread_cond_broadcast(&latch->cond);
    while (!latch->open)
        pthread_cond_wait(&latch->cond, &latch->lock);
    pthread_mutex_unlock(&latch->lock);
}

static void latch_await(struct latch *latch, unsigned waiting)
{
    pthread_mutex_lock(&latch->lock);
    while (latch->waiting < waiting)
        pthread_cond_wait(&latch->cond, &latch->lock);
    pthread_mutex_unlock(&latch->lock);
}

static void latch_open(struct latch *latch)
{
    pthread_mutex_lock(&latch->lock);
    latch->open = true;
    pthread_cond_broadcast(&latch->cond);
    pthread_mutex_unlock(&latch->lock);
}

struct order {
    unsigned at;
    unsigned seen[64];
};

struct order_job {
    struct order *order;
    unsigned number;
};

static void note_order(void *ctx)
{
    struct order_job *job = ctx;

    job->order->seen[job->order->at++] = job->number; /* one thread runs them */
}

static void count(void *ctx)
{
    atomic_fetch_add((atomic_uint *)ctx, 1);
}

static struct dctf_pool *pool_of(unsigned threads, size_t queue_max)
{
    struct dctf_pool_config config = {.name = "test-pool", .threads = threads, .queue_max = queue_max};
    struct dctf_pool *pool;

    assert_int_equal(dctf_pool_new(&config, &pool), DCTF_OK);
    return pool;
}

static void test_submit_keeps_order(void **state)
{
    struct dctf_pool *pool = pool_of(1, 5);
    struct latch latch = LATCH_INIT;
    struct order order = {0};
    struct order_job jobs[64];

    (void)state;
    for (unsigned i = 0; i < 64; i++)
        jobs[i] = (struct order_job){&order, i};
    assert_int_equal(dctf_pool_submit(pool, latch_pass, &latch), DCTF_OK);
    latch_await(&latch, 1);
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(dctf_pool_submit(pool, note_order, &jobs[i]), DCTF_OK);
    latch_open(&latch);
    for (unsigned i = 5; i < 64;) { /* many times round the ring */
        if (dctf_pool_submit(pool, note_order, &jobs[i]) == DCTF_OK)
            i++;
    }
    dctf_pool_free(pool);
    assert_int_equal(order.at, 64);
    for (unsigned i = 0; i < 64; i++)
        assert_int_equal(order.seen[i], i);
}

static void test_submit_full_refuses(void **state)
{
    struct dctf_pool *pool = pool_of(1, 2);
    struct latch latch = LATCH_INIT;
    atomic_uint ran = 0;

    (void)state;
    assert_int_equal(dctf_pool_submit(pool, latch_pass, &latch), DCTF_OK);
    latch_await(&latch, 1);
    assert_int_equal(dctf_pool_submit(pool, count, &ran), DCTF_OK);
    assert_int_equal(dctf_pool_submit(pool, count, &ran), DCTF_OK);
    assert_int_equal(dctf_pool_load(pool), 3);
    assert_int_equal(dctf_pool_submit(pool, count, &ran), DCTF_ERR_NO_MEMORY);
    latch_open(&latch);
    dctf_pool_free(pool);
    assert_int_equal(atomic_load(&ran), 2);
}

static void test_submit_runs_in_parallel(void **state)
{
    struct dctf_pool *pool = pool_of(4, 8);
    struct latch latch = LATCH_INIT;

    (void)state;
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(dctf_pool_submit(pool, latch_pass, &latch), DCTF_OK);
    latch_await(&latch, 4); /* hangs (and times out) when a thread is missing */
    latch_open(&latch);
    dctf_pool_free(pool);
}

static void test_free_runs_waiting_jobs(void **state)
{
    struct dctf_pool *pool = pool_of(2, 1000);
    atomic_uint ran = 0;

    (void)state;
    for (unsigned i = 0; i < 1000; i++) {
        while (dctf_pool_submit(pool, count, &ran) != DCTF_OK)
            ;
    }
    dctf_pool_free(pool);
    assert_int_equal(atomic_load(&ran), 1000);
    dctf_pool_free(NULL);
}

struct resubmit {
    struct dctf_pool *pool;
    struct latch latch;
    enum dctf_err err;
};

static void resubmit_itself(void *ctx)
{
    struct resubmit *resubmit = ctx;

    latch_pass(&resubmit->latch);
    resubmit->err = dctf_pool_submit(resubmit->pool, resubmit_itself, resubmit);
}

static void test_submit_while_stopping_refuses(void **state)
{
    struct resubmit resubmit = {.pool = pool_of(1, 4), .latch = LATCH_INIT};

    (void)state;
    assert_int_equal(dctf_pool_submit(resubmit.pool, resubmit_itself, &resubmit), DCTF_OK);
    latch_open(&resubmit.latch);
    dctf_pool_free(resubmit.pool); /* would never end if it still took jobs */
    assert_int_equal(resubmit.err, DCTF_ERR_NO_MEMORY);
}

static struct dctf_pool *swept;

static enum dctf_err sweep_make(void *ctx)
{
    struct dctf_pool_config config = {.name = "a name that is too long", .threads = 2, .queue_max = 4};

    (void)ctx;
    return dctf_pool_new(&config, &swept);
}

static void sweep_drop(void *ctx)
{
    (void)ctx;
    dctf_pool_free(swept);
}

static void test_new_no_memory(void **state)
{
    (void)state;
    assert_true(fail_alloc_sweep(sweep_make, sweep_drop, NULL, (void **)&swept) >= 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_submit_keeps_order),
        cmocka_unit_test(test_submit_full_refuses),
        cmocka_unit_test(test_submit_runs_in_parallel),
        cmocka_unit_test(test_free_runs_waiting_jobs),
        cmocka_unit_test(test_submit_while_stopping_refuses),
        cmocka_unit_test(test_new_no_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
