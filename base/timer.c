/* SPDX-License-Identifier: Apache-2.0
 *
 * A binary heap of armed timers, earliest first; timer->slot is its place, so
 * that cancelling is O(log n) too. After fire() was called the timer may be gone:
 * the thread only compares its address from then on.
 */
#include "base/timer.h"

#include "base/thread.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

struct dctf_timers {
    pthread_mutex_t lock;
    pthread_cond_t wake;             /* something is due before sleeping_until_ms, or stop */
    pthread_cond_t done;             /* a fire() returned */
    bool stopping;                   /* guarded by lock */
    struct dctf_timer **heap;        /* guarded by lock */
    size_t len;                      /* guarded by lock */
    size_t cap;                      /* guarded by lock */
    uint64_t sleeping_until_ms;      /* guarded by lock; 0: the thread is awake */
    const struct dctf_timer *firing; /* guarded by lock; only its address is meaningful */
    pthread_t thread;
};

static void place_locked(struct dctf_timers *timers, size_t i, struct dctf_timer *timer)
{
    timers->heap[i] = timer;
    timer->slot = i + 1;
}

static void sift_up_locked(struct dctf_timers *timers, size_t i)
{
    struct dctf_timer *timer = timers->heap[i];

    while (i > 0 && timer->due_ms < timers->heap[(i - 1) / 2]->due_ms) {
        place_locked(timers, i, timers->heap[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    place_locked(timers, i, timer);
}

static void sift_down_locked(struct dctf_timers *timers, size_t i)
{
    struct dctf_timer *timer = timers->heap[i];

    for (;;) {
        size_t child = 2 * i + 1;

        if (child >= timers->len)
            break;
        if (child + 1 < timers->len && timers->heap[child + 1]->due_ms < timers->heap[child]->due_ms)
            child++;
        if (timers->heap[child]->due_ms >= timer->due_ms)
            break;
        place_locked(timers, i, timers->heap[child]);
        i = child;
    }
    place_locked(timers, i, timer);
}

static void remove_locked(struct dctf_timers *timers, struct dctf_timer *timer)
{
    size_t i = timer->slot - 1;
    struct dctf_timer *last = timers->heap[timers->len - 1];

    assert(timers->heap[i] == timer);
    timers->len--;
    timer->slot = 0;
    if (last == timer)
        return;
    place_locked(timers, i, last);
    sift_up_locked(timers, i);
    sift_down_locked(timers, last->slot - 1);
}

static void wait_until_locked(struct dctf_timers *timers, uint64_t due_ms)
{
    struct timespec ts = {(time_t)(due_ms / 1000), (long)(due_ms % 1000) * 1000000};

    timers->sleeping_until_ms = due_ms;
    if (due_ms == UINT64_MAX)
        pthread_cond_wait(&timers->wake, &timers->lock);
    else
        pthread_cond_timedwait(&timers->wake, &timers->lock, &ts);
    timers->sleeping_until_ms = 0;
}

static void *run(void *ctx)
{
    struct dctf_timers *timers = ctx;

    pthread_mutex_lock(&timers->lock);
    while (!timers->stopping) {
        struct dctf_timer *next = timers->len ? timers->heap[0] : NULL;
        void (*fire)(void *ctx);
        void *fire_ctx;

        if (!next) {
            wait_until_locked(timers, UINT64_MAX);
            continue;
        }
        if (dctf_clock_mono_ms(NULL) < next->due_ms) {
            wait_until_locked(timers, next->due_ms);
            continue;
        }
        remove_locked(timers, next);
        fire = next->fire;
        fire_ctx = next->ctx;
        timers->firing = next;
        pthread_mutex_unlock(&timers->lock);
        fire(fire_ctx);
        pthread_mutex_lock(&timers->lock);
        timers->firing = NULL;
        pthread_cond_broadcast(&timers->done);
    }
    pthread_mutex_unlock(&timers->lock);
    return NULL;
}

enum dctf_err dctf_timers_new(struct dctf_timers **out)
{
    struct dctf_timers *timers;
    enum dctf_err err;

    *out = NULL;
    timers = calloc(1, sizeof(*timers));
    if (!timers)
        return DCTF_ERR_NO_MEMORY;
    err = dctf_thread_cond_init(&timers->wake);
    if (err) {
        free(timers);
        return err;
    }
    pthread_mutex_init(&timers->lock, NULL);
    pthread_cond_init(&timers->done, NULL);
    err = dctf_thread_start("dctf-timer", run, timers, &timers->thread);
    if (err) {
        pthread_cond_destroy(&timers->done);
        pthread_cond_destroy(&timers->wake);
        pthread_mutex_destroy(&timers->lock);
        free(timers);
        return err;
    }
    *out = timers;
    return DCTF_OK;
}

void dctf_timers_free(struct dctf_timers *timers)
{
    if (!timers)
        return;
    pthread_mutex_lock(&timers->lock);
    timers->stopping = true;
    pthread_cond_signal(&timers->wake);
    pthread_mutex_unlock(&timers->lock);
    pthread_join(timers->thread, NULL);
    pthread_cond_destroy(&timers->done);
    pthread_cond_destroy(&timers->wake);
    pthread_mutex_destroy(&timers->lock);
    free(timers->heap);
    free(timers);
}

static enum dctf_err grow_locked(struct dctf_timers *timers)
{
    size_t cap = timers->cap ? 2 * timers->cap : 64;
    struct dctf_timer **heap;

    if (timers->len < timers->cap)
        return DCTF_OK;
    heap = realloc(timers->heap, cap * sizeof(heap[0]));
    if (!heap)
        return DCTF_ERR_NO_MEMORY;
    timers->heap = heap;
    timers->cap = cap;
    return DCTF_OK;
}

enum dctf_err dctf_timer_arm(struct dctf_timers *timers, struct dctf_timer *timer, uint64_t delay_ms,
    void (*fire)(void *ctx), void *ctx)
{
    /* Rounded up: a deadline may be late, never early. */
    uint64_t now_ms = (dctf_clock_mono_ns(NULL) + 999999) / 1000000;
    enum dctf_err err;

    pthread_mutex_lock(&timers->lock);
    assert(timer->slot == 0);
    err = grow_locked(timers);
    if (!err) {
        /* Far enough for "never", and still a valid time_t. */
        timer->due_ms = now_ms + (delay_ms < INT64_MAX / 2 ? delay_ms : INT64_MAX / 2);
        timer->fire = fire;
        timer->ctx = ctx;
        timers->heap[timers->len++] = timer;
        sift_up_locked(timers, timers->len - 1);
        /* A thread that sleeps for a timer that was cancelled since wakes up for nothing once, which is
         * cheaper than to wake it for every deadline: those are armed in the order in which they are due. */
        if (timer->due_ms < timers->sleeping_until_ms) {
            timers->sleeping_until_ms = timer->due_ms; /* it is on its way: once is enough */
            pthread_cond_signal(&timers->wake);
        }
    }
    pthread_mutex_unlock(&timers->lock);
    return err;
}

bool dctf_timer_cancel(struct dctf_timers *timers, struct dctf_timer *timer)
{
    bool disarmed = false;
    bool running;

    pthread_mutex_lock(&timers->lock);
    do { /* a fire that runs may arm its timer again: look once more after it */
        if (timer->slot) {
            remove_locked(timers, timer);
            disarmed = true;
        }
        running = timers->firing == timer && !pthread_equal(pthread_self(), timers->thread);
        if (running)
            pthread_cond_wait(&timers->done, &timers->lock);
    } while (running);
    pthread_mutex_unlock(&timers->lock);
    return disarmed;
}
