/* SPDX-License-Identifier: Apache-2.0
 *
 * What one node tells the others: to forget listings, to drop shards, that a version is gone. Each member is
 * sent one request, all at once.
 *
 * A version that is gone is told in two steps, so that a thousand nodes that find it out at once do not send
 * a million requests: finder → who lists the directory → all others, if it was news to that one.
 */
#include "cluster/internal.h"

#include "base/le.h"
#include "base/metric.h"
#include "base/pool.h"
#include "base/thread.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#define BUSY_ROUND_MS 200
#define HINT_MS 2000u
#define HINTS_MAX 8192u /* under way; more are not sent: listings have a time to live as well */

void dctf_told_encode(const uint64_t *numbers, void *buf)
{
    for (unsigned i = 0; i < DCTF_TOLD_NUMBERS; i++)
        dctf_le_put((uint8_t *)buf + 8 * (size_t)i, numbers[i], 8);
}

bool dctf_told_decode(const void *data, size_t len, uint64_t *numbers)
{
    memset(numbers, 0, DCTF_TOLD_NUMBERS * sizeof(*numbers));
    for (unsigned i = 0; len == DCTF_TOLD_BYTES && i < DCTF_TOLD_NUMBERS; i++)
        numbers[i] = dctf_le_get((const uint8_t *)data + 8 * (size_t)i, 8);
    return len == DCTF_TOLD_BYTES;
}

/* --- waiting for all --- */

struct round {
    pthread_mutex_t lock;
    pthread_cond_t answered;
    size_t pending; /* guarded by lock */
};

struct message {
    struct dctf_peer_get get; /* first */
    struct round *round;
    const struct dctf_node *node;
    enum dctf_err err;
    uint64_t numbers[DCTF_TOLD_NUMBERS];
    uint8_t body[DCTF_TOLD_BYTES];
};

static void message_done(struct dctf_peer_get *get, enum dctf_err err, const struct dctf_peer_answer *answer)
{
    struct message *message = (struct message *)get;
    struct round *round = message->round;

    if (!err && !dctf_told_decode(message->body, answer->body_len, message->numbers))
        err = DCTF_ERR_BAD_RESPONSE;
    message->err = err;
    pthread_mutex_lock(&round->lock);
    if (--round->pending == 0)
        pthread_cond_signal(&round->answered);
    pthread_mutex_unlock(&round->lock);
}

/* Send to all that are busy or were not asked yet, and wait for each. */
static void send_round(
    struct dctf_cluster *cluster, struct message *messages, size_t count, uint64_t deadline_ms)
{
    struct round round = {.lock = PTHREAD_MUTEX_INITIALIZER, .pending = 1};

    if (dctf_thread_cond_init(&round.answered))
        return;
    for (size_t i = 0; i < count; i++) {
        struct message *message = &messages[i];
        enum dctf_err err;

        if (message->err != DCTF_ERR_PEER_BUSY)
            continue;
        message->round = &round;
        message->get.deadline_ms = deadline_ms;
        pthread_mutex_lock(&round.lock);
        round.pending++;
        pthread_mutex_unlock(&round.lock);
        err = dctf_peer_get_start(cluster->client, &message->get);
        if (err) {
            message->err = err;
            pthread_mutex_lock(&round.lock);
            round.pending--;
            pthread_mutex_unlock(&round.lock);
        }
    }
    pthread_mutex_lock(&round.lock);
    round.pending--;
    while (round.pending) /* each has its deadline */
        pthread_cond_wait(&round.answered, &round.lock);
    pthread_mutex_unlock(&round.lock);
    pthread_cond_destroy(&round.answered);
    pthread_mutex_destroy(&round.lock);
}

static bool any_is_busy(const struct message *messages, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (messages[i].err == DCTF_ERR_PEER_BUSY)
            return true;
    return false;
}

/* Requests to all members but this one; none is sent yet. */
static size_t write_messages(
    const struct dctf_view *view, const struct dctf_peer_ask *ask, struct message *messages)
{
    size_t count = 0;

    for (uint32_t i = 0; i < dctf_view_count(view); i++) {
        struct message *message = &messages[count];

        if (i == dctf_view_self(view))
            continue;
        message->node = dctf_view_node(view, i);
        message->err = DCTF_ERR_PEER_BUSY;
        message->get = (struct dctf_peer_get){
            .addr = message->node->addr,
            .ask = *ask,
            .buf = message->body,
            .buf_len = sizeof(message->body),
            .class = DCTF_FETCH_DEMAND,
            .view = dctf_view_hash(view),
            .done = message_done,
        };
        count++;
    }
    return count;
}

enum dctf_err dctf_cluster_tell(struct dctf_cluster *cluster, enum dctf_tell what, const char *path,
    bool force, uint64_t deadline_ms, void (*each)(void *ctx, const struct dctf_told_member *member),
    void *ctx)
{
    static const enum dctf_peer_op ops[] = {
        [DCTF_TELL_SYNC] = DCTF_PEER_SYNC,
        [DCTF_TELL_EVICT] = DCTF_PEER_EVICT,
        [DCTF_TELL_HEAT] = DCTF_PEER_HEAT,
    };
    uint64_t end_ms = dctf_cluster_now_ms(cluster) + deadline_ms, now_ms;
    struct dctf_peer_ask ask = {
        .op = ops[what],
        .dataset = cluster->config.dataset,
        .size = what == DCTF_TELL_SYNC && force,
    };
    struct dctf_view *view = dctf_cluster_view(cluster);
    struct message *messages = calloc(dctf_view_count(view) + 1, sizeof(*messages));
    enum dctf_err err = messages ? DCTF_OK : DCTF_ERR_NO_MEMORY;
    size_t count;

    if (!err && strlen(path) > DCTF_KEY_MAX)
        err = DCTF_ERR_NAME_TOO_LONG;
    if (!err && !dctf_cluster_hold(cluster))
        err = DCTF_ERR_SHUTTING_DOWN;
    if (!err) {
        strcpy(ask.key, path);
        count = write_messages(view, &ask, messages);
        while (any_is_busy(messages, count) && (now_ms = dctf_cluster_now_ms(cluster)) < end_ms) {
            send_round(cluster, messages, count, end_ms - now_ms);
            if (any_is_busy(messages, count))
                poll(NULL, 0, BUSY_ROUND_MS);
        }
        for (size_t i = 0; i < count; i++) {
            struct dctf_told_member member = {.node = messages[i].node, .err = messages[i].err};

            memcpy(member.numbers, messages[i].numbers, sizeof(member.numbers));
            each(ctx, &member);
        }
        dctf_cluster_release(cluster);
    }
    free(messages);
    dctf_view_unref(view);
    return err;
}

/* --- a version that is gone --- */

struct hint {
    struct dctf_peer_get get; /* first */
    struct dctf_cluster *cluster;
    char addr[DCTF_NODE_ADDR_MAX + 1];
};

static void hint_end(struct hint *hint)
{
    struct dctf_cluster *cluster = hint->cluster;

    free(hint);
    pthread_mutex_lock(&cluster->lock);
    cluster->listings.hints--;
    pthread_mutex_unlock(&cluster->lock);
    dctf_cluster_release(cluster);
}

static void hint_done(struct dctf_peer_get *get, enum dctf_err err, const struct dctf_peer_answer *answer)
{
    (void)err; /* 204, or it will find out by itself */
    (void)answer;
    hint_end((struct hint *)get);
}

/* `hop` 1: who is told tells the others. */
static void send_hint(
    struct dctf_cluster *cluster, const char *addr, const struct dctf_peer_ask *ask, unsigned hop)
{
    struct hint *hint = calloc(1, sizeof(*hint));
    bool room;

    if (!hint || !dctf_cluster_hold(cluster)) {
        free(hint);
        return;
    }
    hint->cluster = cluster;
    strcpy(hint->addr, addr);
    hint->get = (struct dctf_peer_get){
        .addr = hint->addr,
        .ask = *ask,
        .class = DCTF_FETCH_DEMAND,
        .hop = hop,
        .deadline_ms = HINT_MS,
        .done = hint_done,
    };
    pthread_mutex_lock(&cluster->lock);
    hint->get.view = dctf_view_hash(cluster->view);
    room = ++cluster->listings.hints <= HINTS_MAX;
    pthread_mutex_unlock(&cluster->lock);
    if (!room || dctf_peer_get_start(cluster->client, &hint->get))
        hint_end(hint);
    else
        dctf_metric_add(cluster->config.metrics, DCTF_METRIC_HINTS_SENT, 1);
}

static struct dctf_peer_ask stale_ask(
    const struct dctf_cluster *cluster, const char *key, const char *etag, uint64_t size)
{
    struct dctf_peer_ask ask = {.op = DCTF_PEER_STALE, .dataset = cluster->config.dataset, .size = size};

    strcpy(ask.key, key);
    strcpy(ask.etag, etag);
    return ask;
}

void dctf_listings_tell_all(
    struct dctf_cluster *cluster, const char *key, const char *etag, uint64_t size, const char *but)
{
    struct dctf_peer_ask ask = stale_ask(cluster, key, etag, size);
    struct dctf_view *view = dctf_cluster_view(cluster);

    for (uint32_t i = 0; i < dctf_view_count(view); i++) {
        const struct dctf_node *node = dctf_view_node(view, i);

        if (i != dctf_view_self(view) && strcmp(node->id, but) != 0)
            send_hint(cluster, node->addr, &ask, 0);
    }
    dctf_view_unref(view);
}

/* To who lists the directory, or without one to all. */
static void tell_stale(struct dctf_cluster *cluster, const struct dctf_version *version)
{
    struct dctf_peer_ask ask = stale_ask(cluster, version->key, version->etag, version->size);
    char dir[DCTF_KEY_MAX + 1], addr[DCTF_NODE_ADDR_MAX + 1] = "";
    const struct dctf_peer *home;
    char *slash;

    strcpy(dir, version->key);
    slash = strrchr(dir, '/');
    *(slash ? slash : dir) = '\0';
    pthread_mutex_lock(&cluster->lock);
    home = dctf_listings_home_locked(cluster, dir, true); /* others ask it, whatever this node met there */
    if (home)
        strcpy(addr, home->addr);
    pthread_mutex_unlock(&cluster->lock);
    if (*addr)
        send_hint(cluster, addr, &ask, 1);
    else
        dctf_listings_tell_all(cluster, version->key, version->etag, version->size, "");
}

struct gone {
    struct dctf_cluster *cluster;
    struct dctf_version *version;
};

static void forget_and_tell(void *ctx)
{
    struct gone *gone = ctx;
    struct dctf_cluster *cluster = gone->cluster;
    const struct dctf_listing_host *host = &cluster->listings.host;

    if (host->stale(host->ctx, gone->version->key, gone->version->etag, gone->version->size))
        tell_stale(cluster, gone->version);
    dctf_version_unref(gone->version);
    free(gone);
    dctf_cluster_release(cluster);
}

bool dctf_cluster_version_gone(struct dctf_cluster *cluster, struct dctf_version *version)
{
    struct gone *gone = malloc(sizeof(*gone));
    bool shared;

    pthread_mutex_lock(&cluster->lock);
    shared = cluster->listings.shared;
    pthread_mutex_unlock(&cluster->lock);
    if (!gone || !shared || !dctf_cluster_hold(cluster)) {
        free(gone);
        return false;
    }
    *gone = (struct gone){.cluster = cluster, .version = dctf_version_ref(version)};
    if (!dctf_pool_submit(cluster->listings.pool, forget_and_tell, gone))
        return true;
    dctf_version_unref(gone->version);
    free(gone);
    dctf_cluster_release(cluster);
    return false;
}
