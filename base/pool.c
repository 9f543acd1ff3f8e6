/* SPDX-License-Identifier: Apache-2.0 */
#include "base/pool.h"

#include "base/thread.h"

#include <assert.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

struct job {
    void (*run)(void *ctx);
    void *ctx;
};

struct dctf_pool {
    pthread_mutex_t lock;
    pthread_cond_t work;
    bool stopping;  /* guarded by lock */
    size_t head;    /* guarded by lock; the oldest job */
    size_t queued;  /* guarded by lock */
    size_t running; /* guarded by lock */
    size_t queue_max;
    struct job *ring; /* guarded by lock; queue_max places */
    unsigned threads;
    pthread_t ids[];
};

static void *work(void *ctx)
{
    struct dctf_pool *pool = ctx;

    pthread_mutex_lock(&pool->lock);
    for (;;) {
        struct job job;

        while (!pool->queued && !pool->stopping)
            pthread_cond_wait(&pool->work, &pool->lock);
        if (!pool->queued)
            break;
        job = pool->ring[pool->head];
        pool->head = (pool->head + 1) % pool->queue_max;
        pool->queued--;
        pool->running++;
        pthread_mutex_unlock(&pool->lock);
        job.run(job.ctx);
        pthread_mutex_lock(&pool->lock);
        pool->running--;
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

enum dctf_err dctf_pool_new(const struct dctf_pool_config *config, struct dctf_pool **out)
{
    struct dctf_pool *pool;
    enum dctf_err err;

    assert(config->threads > 0 && config->queue_max > 0);
    *out = NULL;
    pool = calloc(1, sizeof(*pool) + config->threads * sizeof(pool->ids[0]));
    if (!pool)
        return DCTF_ERR_NO_MEMORY;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pool->queue_max = config->queue_max;
    pool->ring = calloc(pool->queue_max, sizeof(pool->ring[0]));
    err = pool->ring ? DCTF_OK : DCTF_ERR_NO_MEMORY;
    while (!err && pool->threads < config->threads) {
        err = dctf_thread_start(config->name, work, pool, &pool->ids[pool->threads]);
        if (!err)
            pool->threads++;
    }
    if (err) {
        dctf_pool_free(pool);
        return err;
    }
    *out = pool;
    return DCTF_OK;
}

void dctf_pool_free(struct dctf_pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->stopping = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (unsigned i = 0; i < pool->threads; i++)
        pthread_join(pool->ids[i], NULL);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool->ring);
    free(pool);
}

enum dctf_err dctf_pool_submit(struct dctf_pool *pool, void (*run)(void *ctx), void *ctx)
{
    enum dctf_err err = DCTF_ERR_NO_MEMORY;

    pthread_mutex_lock(&pool->lock);
    if (!pool->stopping && pool->queued < pool->queue_max) {
        pool->ring[(pool->head + pool->queued) % pool->queue_max] = (struct job){run, ctx};
        pool->queued++;
        pthread_cond_signal(&pool->work);
        err = DCTF_OK;
    }
    pthread_mutex_unlock(&pool->lock);
    return err;
}

size_t dctf_pool_load(struct dctf_pool *pool)
{
    size_t load;

    pthread_mutex_lock(&pool->lock);
    load = pool->queued + pool->running;
    pthread_mutex_unlock(&pool->lock);
    return load;
}
