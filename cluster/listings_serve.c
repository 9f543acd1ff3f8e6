/* SPDX-License-Identifier: Apache-2.0
 *
 * What peers ask of this node about names.
 *
 * A peer that asks for a listing is held for a moment while it is read from the source, few at a time; then,
 * or when there are many, it is told to come again, as long as the source goes on telling. A page is read
 * from the database anew for each request: nothing is kept between them.
 *
 * What is to be done (a sync, an eviction, a version that is gone) is done on threads of its own.
 */
#include "cluster/internal.h"

#include "base/budget.h"
#include "base/metric.h"
#include "base/pool.h"
#include "cache/store.h"
#include "cluster/listings_page.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HELD_MAX 64u
#define BUSY_RETRY_MS 200u
#define QUEUE_MAX 64u
#define TOLD_THREADS 2u /* emptying a cache takes a while: the rest goes on beside it */

struct order {
    struct dctf_cluster *cluster;
    struct dctf_peer_request *request;
    struct dctf_peer_ask ask;
    struct dctf_timer timer;
    unsigned refs; /* guarded by lock: the listing, and the timer */
    bool answered; /* guarded by lock */
    bool tell_others;
    char node[DCTF_NODE_ID_MAX + 1]; /* who asks */
};

/* A page, until it is out. */
struct page {
    struct dctf_cluster *cluster;
    void *data; /* of the budget */
};

static void unref(struct order *order)
{
    struct dctf_cluster *cluster = order->cluster;
    bool last;

    pthread_mutex_lock(&cluster->lock);
    last = --order->refs == 0;
    pthread_mutex_unlock(&cluster->lock);
    if (!last)
        return;
    free(order);
    dctf_cluster_release(cluster);
}

/* --- a page --- */

static void release_page(void *ctx)
{
    struct page *page = ctx;
    struct dctf_cluster *cluster = page->cluster;

    dctf_budget_buf_put(cluster->config.budget, page->data, DCTF_PEER_PAGE_BYTES);
    free(page);
    dctf_cluster_release(cluster);
}

/* Entries after ask->after. DCTF_ERR_PEER_ABSENT: the generation is gone. */
static enum dctf_err fill_page(struct dctf_cluster *cluster, const struct dctf_peer_ask *ask, void *data,
    struct dctf_listings_page_head *head, size_t *len)
{
    struct dctf_listings_page_writer writer;
    struct dctf_listing_cursor *cursor;
    struct dctf_entry entry;
    enum dctf_err err =
        dctf_listing_open(dctf_store_listings(cluster->config.store), ask->key, head->generation, &cursor);

    if (!err && dctf_listing_generation(cursor) != head->generation)
        err = DCTF_ERR_MISS;
    if (!err && *ask->after)
        err = dctf_listing_seek_name(cursor, ask->after);
    dctf_listings_page_begin(&writer, data, DCTF_PEER_PAGE_BYTES);
    while (!err && !(err = dctf_listing_next(cursor, &entry)) && dctf_listings_page_add(&writer, &entry)) {
    }
    dctf_listing_close(cursor);
    head->last = err == DCTF_ERR_NOT_FOUND;
    *len = dctf_listings_page_end(&writer, head);
    if (err == DCTF_ERR_MISS)
        return DCTF_ERR_PEER_ABSENT;
    return head->last ? DCTF_OK : err;
}

/* Answer with a page of a generation. Reads the database. */
static void reply_page(struct order *order, struct dctf_listings_page_head head)
{
    struct dctf_cluster *cluster = order->cluster;
    struct dctf_peer_origin from = {.from = DCTF_PEER_FROM_CACHE};
    struct page *page = calloc(1, sizeof(*page));
    uint64_t sum;
    size_t len;
    enum dctf_err err = DCTF_ERR_PEER_BUSY;

    if (page)
        page->data = dctf_budget_buf_get(cluster->config.budget, DCTF_PEER_PAGE_BYTES);
    if (page && page->data)
        err = fill_page(cluster, &order->ask, page->data, &head, &len);
    if (!err && !dctf_cluster_hold(cluster))
        err = DCTF_ERR_SHUTTING_DOWN;
    if (!err) {
        page->cluster = cluster;
        sum = dctf_hash64(page->data, len);
        dctf_metric_add(cluster->config.metrics, DCTF_METRIC_LISTINGS_TOLD, head.last);
        dctf_peer_reply_memory(order->request, page->data, len, false, &sum, &from, release_page, page);
        return;
    }
    if (page && page->data)
        dctf_budget_buf_put(cluster->config.budget, page->data, DCTF_PEER_PAGE_BYTES);
    free(page);
    if (err == DCTF_ERR_PEER_ABSENT)
        dctf_peer_reply_have(order->request, false, false);
    else
        dctf_peer_reply_error(order->request, err, BUSY_RETRY_MS, NULL);
}

static void reply_first(struct order *order, const struct dctf_listing_state *state)
{
    uint64_t now_ms = dctf_clock_wall_ms(&order->cluster->clock);
    struct dctf_listings_page_head head = {
        .generation = state->generation,
        .age_ms = now_ms > state->fetched_ms ? now_ms - state->fetched_ms : 0,
        .entries = state->entries,
    };

    reply_page(order, head);
}

/* --- the listing --- */

/* Whether the order was not answered before; it is now. */
static bool claim(struct order *order)
{
    bool mine;

    pthread_mutex_lock(&order->cluster->lock);
    mine = !order->answered;
    order->answered = true;
    pthread_mutex_unlock(&order->cluster->lock);
    return mine;
}

static void listed(void *ctx, enum dctf_err err, const struct dctf_listing_state *state)
{
    struct order *order = ctx;
    struct dctf_cluster *cluster = order->cluster;

    if (dctf_timer_cancel(cluster->config.timers, &order->timer))
        unref(order);
    pthread_mutex_lock(&cluster->lock);
    cluster->listings.held--;
    pthread_mutex_unlock(&cluster->lock);
    if (claim(order)) {
        if (err)
            dctf_peer_reply_error(order->request, err, BUSY_RETRY_MS, NULL);
        else
            reply_first(order, state);
    }
    unref(order);
}

static enum dctf_listing_course course_of(const struct order *order)
{
    const struct dctf_listing_host *host = &order->cluster->listings.host;

    return host->course(host->ctx, order->ask.key);
}

/* A source that has fallen silent here may answer another node. What is idle has ended a moment ago. */
static void come_again(struct order *order)
{
    if (course_of(order) == DCTF_LISTING_SILENT)
        dctf_peer_reply_error(order->request, DCTF_ERR_DEADLINE, 0, NULL);
    else
        dctf_peer_reply_have(order->request, false, true);
}

static void held_enough(void *ctx)
{
    struct order *order = ctx;

    if (claim(order))
        come_again(order);
    unref(order);
}

/* Wait for the listing, which is begun if need be. */
static void hold(struct order *order, uint64_t deadline_ms)
{
    struct dctf_cluster *cluster = order->cluster;
    const struct dctf_listing_host *host = &cluster->listings.host;
    uint64_t hold_ms = deadline_ms / 2 < DCTF_LISTINGS_HOLD_MS ? deadline_ms / 2 : DCTF_LISTINGS_HOLD_MS;
    enum dctf_err err;

    pthread_mutex_lock(&cluster->lock);
    order->refs += 2; /* of the timer, and of this function */
    pthread_mutex_unlock(&cluster->lock);
    if (dctf_timer_arm(cluster->config.timers, &order->timer, hold_ms, held_enough, order))
        unref(order); /* the asker has a deadline of its own */
    err = host->resolve(host->ctx, order->ask.key, order->ask.size, listed, order);
    if (err)
        listed(order, err, NULL);
    unref(order);
}

static void serve_list(struct order *order, uint64_t deadline_ms)
{
    struct dctf_cluster *cluster = order->cluster;
    uint64_t now_ms = dctf_clock_wall_ms(&cluster->clock);
    struct dctf_listing_state state;
    bool room;
    enum dctf_err err;

    if (order->ask.generation) {
        reply_page(order, (struct dctf_listings_page_head){.generation = order->ask.generation});
        unref(order);
        return;
    }
    err = dctf_listings_state(dctf_store_listings(cluster->config.store), order->ask.key, &state);
    if (err || (state.generation && state.fetched_ms && state.fetched_ms <= now_ms &&
                   now_ms - state.fetched_ms <= order->ask.size)) {
        if (err)
            dctf_peer_reply_error(order->request, err, 0, NULL);
        else
            reply_first(order, &state);
        unref(order);
        return;
    }
    pthread_mutex_lock(&cluster->lock);
    room = cluster->listings.held < HELD_MAX;
    cluster->listings.held += room;
    pthread_mutex_unlock(&cluster->lock);
    if (room) {
        hold(order, deadline_ms);
        return;
    }
    if (course_of(order) == DCTF_LISTING_IDLE) /* nobody has begun it */
        dctf_peer_reply_error(order->request, DCTF_ERR_PEER_BUSY, BUSY_RETRY_MS, NULL);
    else
        come_again(order);
    unref(order);
}

/* --- what is to be done --- */

static void run_told(struct order *order)
{
    const struct dctf_listing_host *host = &order->cluster->listings.host;
    struct dctf_peer_origin from = {.from = DCTF_PEER_FROM_CACHE};
    uint64_t numbers[DCTF_TOLD_NUMBERS] = {0}, sum;
    uint8_t *body = malloc(DCTF_TOLD_BYTES);
    enum dctf_err err = DCTF_ERR_NO_MEMORY;

    if (body && order->ask.op == DCTF_PEER_SYNC)
        err = host->sync(host->ctx, order->ask.key, order->ask.size != 0, &numbers[0]);
    else if (body)
        err = host->evict(host->ctx, order->ask.key, &numbers[0], &numbers[1], &numbers[2]);
    if (err) {
        dctf_peer_reply_error(order->request, err, BUSY_RETRY_MS, NULL);
        free(body);
        return;
    }
    dctf_told_encode(numbers, body);
    sum = dctf_hash64(body, DCTF_TOLD_BYTES);
    dctf_peer_reply_memory(order->request, body, DCTF_TOLD_BYTES, false, &sum, &from, free, body);
}

/* On the thread for it. */
static void run_order(void *ctx)
{
    struct order *order = ctx;
    struct dctf_cluster *cluster = order->cluster;
    const struct dctf_listing_host *host = &cluster->listings.host;
    const struct dctf_peer_ask *ask = &order->ask;

    if (ask->op != DCTF_PEER_STALE) {
        run_told(order);
    } else if (host->stale(host->ctx, ask->key, ask->etag, ask->size)) {
        dctf_metric_add(cluster->config.metrics, DCTF_METRIC_HINTS_NEWS, 1);
        if (order->tell_others)
            dctf_listings_tell_all(cluster, ask->key, ask->etag, ask->size, order->node);
    }
    unref(order);
}

static void queue(struct order *order)
{
    struct dctf_peer_request *request = order->request;
    bool told = order->ask.op == DCTF_PEER_STALE;
    enum dctf_err err;

    err = dctf_pool_submit(order->cluster->listings.pool, run_order, order);
    if (told) /* whatever comes of it */
        dctf_peer_reply_have(request, false, false);
    else if (err)
        dctf_peer_reply_error(request, DCTF_ERR_PEER_BUSY, BUSY_RETRY_MS, NULL);
    if (err)
        unref(order);
}

/* --- requests --- */

void dctf_listings_serve(
    struct dctf_cluster *cluster, struct dctf_peer_request *request, const struct dctf_peer_asked *asked)
{
    struct order *order = calloc(1, sizeof(*order));
    bool shared;

    pthread_mutex_lock(&cluster->lock);
    shared = cluster->listings.shared;
    pthread_mutex_unlock(&cluster->lock);
    if (!order || !shared) {
        dctf_peer_reply_error(request, DCTF_ERR_PEER_BUSY, BUSY_RETRY_MS, NULL);
        free(order);
        dctf_cluster_release(cluster);
        return;
    }
    order->cluster = cluster;
    order->request = request;
    order->ask = asked->ask;
    order->tell_others = asked->hop != 0;
    snprintf(order->node, sizeof(order->node), "%s", asked->node);
    order->refs = 1;
    if (order->ask.op == DCTF_PEER_LIST) {
        serve_list(order, asked->deadline_ms);
    } else if (order->ask.op == DCTF_PEER_HEAT) {
        dctf_heat_serve(cluster, request, order->ask.size);
        unref(order);
    } else {
        queue(order);
    }
}

enum dctf_err dctf_cluster_share_listings(struct dctf_cluster *cluster, const struct dctf_listing_host *host)
{
    enum dctf_err err = dctf_pool_new(
        &(struct dctf_pool_config){"dctf-told", TOLD_THREADS, QUEUE_MAX}, &cluster->listings.pool);

    if (err)
        return err;
    pthread_mutex_lock(&cluster->lock);
    cluster->listings.host = *host;
    cluster->listings.shared = true;
    pthread_mutex_unlock(&cluster->lock);
    return DCTF_OK;
}
