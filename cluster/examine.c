/* SPDX-License-Identifier: Apache-2.0
 *
 * Each member is asked two things at once with all others: a ping, and whether it has a shard that no
 * source has. The second tells whether it serves the same dataset; "no" is the good answer.
 */
#include "cluster/internal.h"

#include "base/thread.h"

#include <stdlib.h>
#include <string.h>

/* No file can have an ETag like this, so nobody has it. */
#define NOTHING_ETAG "dctf-examine"

struct examination;

struct question {
    struct dctf_peer_get get; /* first */
    struct examination *examination;
    struct dctf_peer_examined *about;
};

struct examination {
    pthread_mutex_t lock;
    pthread_cond_t answered;
    size_t pending; /* guarded by lock */
};

static void answered(struct question *question)
{
    struct examination *examination = question->examination;

    pthread_mutex_lock(&examination->lock);
    if (--examination->pending == 0)
        pthread_cond_signal(&examination->answered);
    pthread_mutex_unlock(&examination->lock);
}

static void ping_done(struct dctf_peer_get *get, enum dctf_err err, const struct dctf_peer_answer *answer)
{
    struct question *question = (struct question *)get;
    struct dctf_peer_examined *about = question->about;

    about->err = err;
    if (answer) {
        about->first_byte_us = answer->first_byte_us;
        about->view = answer->view;
    }
    answered(question);
}

static void have_done(struct dctf_peer_get *get, enum dctf_err err, const struct dctf_peer_answer *answer)
{
    struct question *question = (struct question *)get;

    (void)answer;
    question->about->other_dataset = err == DCTF_ERR_BAD_REQUEST;
    answered(question);
}

static void ask(
    struct dctf_cluster *cluster, struct question *question, enum dctf_peer_op op, uint64_t deadline_ms)
{
    struct examination *examination = question->examination;
    enum dctf_err err;

    question->get = (struct dctf_peer_get){
        .addr = question->about->node.addr,
        .ask = {.op = op, .dataset = cluster->config.dataset, .size = 1, .count = 1},
        .deadline_ms = deadline_ms,
        .done = op == DCTF_PEER_PING ? ping_done : have_done,
    };
    strcpy(question->get.ask.key, "x");
    strcpy(question->get.ask.etag, NOTHING_ETAG);
    pthread_mutex_lock(&examination->lock);
    examination->pending++;
    pthread_mutex_unlock(&examination->lock);
    err = dctf_peer_get_start(cluster->client, &question->get);
    if (err)
        question->get.done(&question->get, err, NULL);
}

static void ask_all(struct dctf_cluster *cluster, struct dctf_peer_examined *found, size_t count,
    struct question *questions, uint64_t deadline_ms)
{
    struct examination examination = {.lock = PTHREAD_MUTEX_INITIALIZER, .pending = 1};

    if (dctf_thread_cond_init(&examination.answered))
        return;
    for (size_t i = 0; i < count; i++) {
        if (found[i].self)
            continue;
        for (unsigned k = 0; k < 2; k++) {
            struct question *question = &questions[2 * i + k];

            question->examination = &examination;
            question->about = &found[i];
            ask(cluster, question, k ? DCTF_PEER_HAVE : DCTF_PEER_PING, deadline_ms);
        }
    }
    pthread_mutex_lock(&examination.lock);
    examination.pending--;
    while (examination.pending) /* each has its deadline */
        pthread_cond_wait(&examination.answered, &examination.lock);
    pthread_mutex_unlock(&examination.lock);
    pthread_cond_destroy(&examination.answered);
    pthread_mutex_destroy(&examination.lock);
}

enum dctf_err dctf_cluster_examine(struct dctf_cluster *cluster, uint64_t deadline_ms,
    void (*each)(void *ctx, const struct dctf_peer_examined *peer), void *ctx)
{
    struct dctf_view *view = dctf_cluster_view(cluster);
    size_t count = dctf_view_count(view);
    struct dctf_peer_examined *found = calloc(count + 1, sizeof(*found));
    struct question *questions = calloc(2 * count + 1, sizeof(*questions));
    enum dctf_err err = found && questions ? DCTF_OK : DCTF_ERR_NO_MEMORY;

    if (!err && !dctf_cluster_hold(cluster))
        err = DCTF_ERR_SHUTTING_DOWN;
    for (uint32_t i = 0; !err && i < count; i++) {
        found[i].node = *dctf_view_node(view, i);
        found[i].self = i == dctf_view_self(view);
        found[i].err = found[i].self ? DCTF_OK : DCTF_ERR_NO_MEMORY;
    }
    if (!err) {
        ask_all(cluster, found, count, questions, deadline_ms);
        for (size_t i = 0; i < count; i++) {
            found[i].other_view = !found[i].self && !found[i].err && found[i].view != dctf_view_hash(view);
            each(ctx, &found[i]);
        }
        dctf_cluster_release(cluster);
    }
    free(questions);
    free(found);
    dctf_view_unref(view);
    return err;
}
