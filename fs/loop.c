/* SPDX-License-Identifier: Apache-2.0
 *
 * A thread is RECEIVING, HANDLING or PARKED. Lock: loop->lock guards everything that is
 * not constant; it is held neither in receive() nor in process().
 *
 *   PARKED → RECEIVING   woken by a thread that took a request while nobody else received
 *   RECEIVING → HANDLING → RECEIVING, or PARKED when enough threads receive already
 *
 * A thread that is woken or started counts as receiving from then on, so that two requests in a
 * row do not wake two.
 */
#include "fs/loop.h"

#include "base/log.h"
#include "base/thread.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#define RECEIVERS_MIN 2u
/* After so many requests: how often was nobody left to take the next one, and how often would it
 * have been so with one receiver less? */
#define WINDOW 256u
#define UNCOVERED_MANY (WINDOW / 8)
#define UNCOVERED_FEW (WINDOW / 32)
/* A signal that comes just before the system call it is meant for is lost: it is sent again. */
#define WAKE_AGAIN_MS 20

struct worker {
    struct dctf_loop *loop;
    struct worker *below; /* in the stack of those parked; guarded by lock */
    pthread_t thread;
    pthread_cond_t wake;
    bool parked; /* guarded by lock */
    bool inside; /* RECEIVING, not just about to; guarded by lock */
};

struct dctf_loop {
    struct dctf_loop_config config;
    unsigned receivers_max;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* ending, or a thread ended */
    struct worker *parked;  /* guarded by lock, as all below; the latest on top */
    unsigned started;
    unsigned running;
    unsigned receiving;
    unsigned wanted;
    unsigned taken, uncovered, nearly; /* in this window */
    bool ending;
    int error;
    struct worker workers[];
};

enum dctf_err dctf_loop_new(const struct dctf_loop_config *config, struct dctf_loop **out)
{
    struct dctf_loop *loop = calloc(1, sizeof(*loop) + config->threads_max * sizeof(loop->workers[0]));

    assert(config->threads_max > 0 && config->receivers_max > 0);
    *out = NULL;
    if (!loop)
        return DCTF_ERR_NO_MEMORY;
    loop->config = *config;
    loop->receivers_max =
        config->receivers_max < config->threads_max ? config->receivers_max : config->threads_max;
    loop->wanted = loop->receivers_max < RECEIVERS_MIN ? loop->receivers_max : RECEIVERS_MIN;
    if (dctf_thread_cond_init(&loop->changed)) {
        free(loop);
        return DCTF_ERR_SYSTEM;
    }
    pthread_mutex_init(&loop->lock, NULL);
    for (unsigned i = 0; i < config->threads_max; i++) {
        loop->workers[i].loop = loop;
        pthread_cond_init(&loop->workers[i].wake, NULL);
    }
    *out = loop;
    return DCTF_OK;
}

void dctf_loop_free(struct dctf_loop *loop)
{
    if (!loop)
        return;
    assert(loop->running == 0);
    for (unsigned i = 0; i < loop->config.threads_max; i++)
        pthread_cond_destroy(&loop->workers[i].wake);
    pthread_cond_destroy(&loop->changed);
    pthread_mutex_destroy(&loop->lock);
    free(loop);
}

static void end_locked(struct dctf_loop *loop, int error)
{
    if (!loop->ending)
        loop->error = error;
    loop->ending = true;
    pthread_cond_broadcast(&loop->changed);
    for (struct worker *worker = loop->parked; worker; worker = worker->below)
        pthread_cond_signal(&worker->wake);
}

void dctf_loop_stop(struct dctf_loop *loop)
{
    pthread_mutex_lock(&loop->lock);
    end_locked(loop, 0);
    pthread_mutex_unlock(&loop->lock);
}

static void *work(void *arg);

static enum dctf_err start_locked(struct dctf_loop *loop)
{
    struct worker *worker = &loop->workers[loop->started];
    enum dctf_err err = dctf_thread_start("dctf-session", work, worker, &worker->thread);

    if (err)
        return err;
    loop->started++;
    loop->running++;
    loop->receiving++;
    return DCTF_OK;
}

/* Have somebody receive: *wake is to be signalled once the lock is free, or NULL. When all threads
 * have work, the first to be done will. */
static enum dctf_err cover_locked(struct dctf_loop *loop, pthread_cond_t **wake)
{
    struct worker *worker = loop->parked;

    *wake = NULL;
    if (worker) {
        loop->parked = worker->below;
        worker->parked = false;
        loop->receiving++;
        *wake = &worker->wake;
        return DCTF_OK;
    }
    return loop->started < loop->config.threads_max ? start_locked(loop) : DCTF_OK;
}

static void note_taken_locked(struct dctf_loop *loop)
{
    loop->taken++;
    if (loop->receiving == 0)
        loop->uncovered++;
    if (loop->receiving <= 1)
        loop->nearly++;
    if (loop->taken < WINDOW)
        return;
    if (loop->uncovered >= UNCOVERED_MANY && loop->wanted < loop->receivers_max)
        loop->wanted++;
    else if (loop->nearly <= UNCOVERED_FEW && loop->wanted > RECEIVERS_MIN)
        loop->wanted--;
    loop->taken = loop->uncovered = loop->nearly = 0;
}

/* Sleep until somebody wants this thread to receive; false when the loop ends. */
static bool park_locked(struct worker *worker)
{
    struct dctf_loop *loop = worker->loop;

    worker->parked = true;
    worker->below = loop->parked;
    loop->parked = worker;
    while (worker->parked && !loop->ending)
        pthread_cond_wait(&worker->wake, &loop->lock);
    return !loop->ending;
}

/* Take one request, counted as receiving; true when `buf` holds one. */
static bool take_locked(struct worker *worker, struct fuse_buf *buf)
{
    struct dctf_loop *loop = worker->loop;
    int got;

    worker->inside = true;
    pthread_mutex_unlock(&loop->lock);
    got = loop->config.receive(loop->config.ctx, buf);
    pthread_mutex_lock(&loop->lock);
    worker->inside = false;
    loop->receiving--;
    if (got > 0)
        note_taken_locked(loop);
    else if (got != -EINTR && got != -EAGAIN)
        end_locked(loop, got);
    return got > 0;
}

/* With a request in `buf`: see to the next one, then handle this. */
static void handle_locked(struct dctf_loop *loop, const struct fuse_buf *buf)
{
    enum dctf_err err = DCTF_OK;
    pthread_cond_t *wake = NULL;

    if (loop->receiving == 0 && !loop->ending)
        err = cover_locked(loop, &wake);
    pthread_mutex_unlock(&loop->lock);
    if (wake)
        pthread_cond_signal(wake);
    if (err)
        dctf_log(DCTF_LOG_WARN, "fs", "err=%d no further thread for the session", (int)err);
    loop->config.process(loop->config.ctx, buf);
    pthread_mutex_lock(&loop->lock);
}

static void allow_signal(int number)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, number);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

static void *work(void *arg)
{
    struct worker *worker = arg;
    struct dctf_loop *loop = worker->loop;
    struct fuse_buf buf = {0};

    allow_signal(loop->config.wake_signal);
    pthread_mutex_lock(&loop->lock);
    while (!loop->ending) {
        if (take_locked(worker, &buf))
            handle_locked(loop, &buf); /* also when the loop ends: it was taken */
        if (loop->receiving < loop->wanted)
            loop->receiving++;
        else if (!park_locked(worker))
            break;
    }
    loop->running--;
    pthread_cond_broadcast(&loop->changed);
    pthread_mutex_unlock(&loop->lock);
    free(buf.mem);
    return NULL;
}

static void wait_changed_locked(struct dctf_loop *loop, long ms)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += ms * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&loop->changed, &loop->lock, &until);
}

int dctf_loop_run(struct dctf_loop *loop)
{
    pthread_mutex_lock(&loop->lock);
    assert(loop->started == 0);
    if (!loop->ending && start_locked(loop))
        end_locked(loop, -EAGAIN);
    while (!loop->ending)
        pthread_cond_wait(&loop->changed, &loop->lock);
    while (loop->running) {
        for (unsigned i = 0; i < loop->started; i++) {
            if (loop->workers[i].inside)
                pthread_kill(loop->workers[i].thread, loop->config.wake_signal);
        }
        wait_changed_locked(loop, WAKE_AGAIN_MS);
    }
    pthread_mutex_unlock(&loop->lock);
    for (unsigned i = 0; i < loop->started; i++)
        pthread_join(loop->workers[i].thread, NULL);
    return loop->error;
}

void dctf_loop_stats(struct dctf_loop *loop, struct dctf_loop_stats *out)
{
    pthread_mutex_lock(&loop->lock);
    *out = (struct dctf_loop_stats){
        .threads = loop->started, .receiving = loop->receiving, .wanted = loop->wanted};
    pthread_mutex_unlock(&loop->lock);
}
