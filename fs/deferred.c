/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/deferred.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

struct dctf_deferred {
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct dctf_list jobs; /* guarded by lock */
    bool ending;           /* guarded by lock */
    pthread_t thread;
};

static void *deferred_thread(void *arg)
{
    struct dctf_deferred *deferred = arg;

    pthread_setname_np(pthread_self(), "dctf-deferred");
    pthread_mutex_lock(&deferred->lock);
    for (;;) {
        struct dctf_list *node = dctf_list_pop(&deferred->jobs);

        if (node) {
            struct dctf_deferred_job *job = dctf_list_entry(node, struct dctf_deferred_job, node);

            pthread_mutex_unlock(&deferred->lock);
            job->run(job->ctx);
            pthread_mutex_lock(&deferred->lock);
        } else if (deferred->ending) {
            break;
        } else {
            pthread_cond_wait(&deferred->work, &deferred->lock);
        }
    }
    pthread_mutex_unlock(&deferred->lock);
    return NULL;
}

enum dctf_err dctf_deferred_new(struct dctf_deferred **out)
{
    struct dctf_deferred *deferred = calloc(1, sizeof(*deferred));

    *out = NULL;
    if (!deferred)
        return DCTF_ERR_NO_MEMORY;
    pthread_mutex_init(&deferred->lock, NULL);
    pthread_cond_init(&deferred->work, NULL);
    dctf_list_init(&deferred->jobs);
    if (pthread_create(&deferred->thread, NULL, deferred_thread, deferred)) {
        pthread_cond_destroy(&deferred->work);
        pthread_mutex_destroy(&deferred->lock);
        free(deferred);
        return DCTF_ERR_NO_MEMORY;
    }
    *out = deferred;
    return DCTF_OK;
}

void dctf_deferred_free(struct dctf_deferred *deferred)
{
    if (!deferred)
        return;
    pthread_mutex_lock(&deferred->lock);
    deferred->ending = true;
    pthread_cond_signal(&deferred->work);
    pthread_mutex_unlock(&deferred->lock);
    pthread_join(deferred->thread, NULL);
    pthread_cond_destroy(&deferred->work);
    pthread_mutex_destroy(&deferred->lock);
    free(deferred);
}

void dctf_deferred_submit(
    struct dctf_deferred *deferred, struct dctf_deferred_job *job, void (*run)(void *), void *ctx)
{
    job->run = run;
    job->ctx = ctx;
    dctf_list_init(&job->node);
    pthread_mutex_lock(&deferred->lock);
    dctf_list_push_back(&deferred->jobs, &job->node);
    pthread_cond_signal(&deferred->work);
    pthread_mutex_unlock(&deferred->lock);
}
