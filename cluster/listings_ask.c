/* SPDX-License-Identifier: Apache-2.0
 *
 * Asking the home of a directory for its listing. An errand does one thing after the other: a pause (the
 * timer), a request (the client), a page to the caller (the pool). Whoever ends that step decides on the
 * next, so that only a cancel comes from outside: it breaks off the step it finds.
 */
#include "cluster/internal.h"

#include "base/budget.h"
#include "base/config.h"
#include "base/log.h"
#include "base/metric.h"
#include "base/pool.h"
#include "base/str.h"
#include "cluster/listings_page.h"

#include <stdlib.h>
#include <string.h>

/* Of one request, which the home holds for DCTF_LISTINGS_HOLD_MS at most; and of a page on a slow path. */
#define SILENCE_MS 2000u
#define REQUEST_MS 10000u
/* Pauses before the home is asked again: with a random part, since others ask as well. */
#define PAUSE_MS 100u
#define PAUSE_BUSY_MAX_MS 1000u
/* A home that says "busy" for so long is of no use now. */
#define BUSY_MAX_MS 5000u
/* Nor is one that reads a directory for longer than this. */
#define MOVING_MAX_MS 1800000u
/* After a failure others are asked instead, for so long. */
#define OFF_MS 10000u
#define ENTRIES_MAX 100000000u
/* Clocks of two machines do not tick alike to the millisecond. */
#define SLACK_MS 10u

struct errand {
    struct dctf_list link; /* of the cluster's part; guarded by lock, as is what follows */
    bool cancelled;
    unsigned refs;

    struct dctf_cluster *cluster;
    struct dctf_cluster_list *list;
    struct dctf_peer_get get;
    struct dctf_peer *peer; /* NULL: not chosen yet; guarded by lock */
    char addr[DCTF_NODE_ADDR_MAX + 1];
    struct dctf_timer timer;
    uint64_t begun_ms;              /* monotonic */
    uint64_t asked_ms, answered_ms; /* the latest request; monotonic */
    uint64_t busy_ms;               /* since when it says so; 0: it does not */
    uint64_t age_ms, age_at_ms;     /* of the listing, when it was asked for (monotonic) */
    uint64_t entries, entries_told;
    size_t page_len;
    void *page; /* of the budget */
};

size_t dctf_listings_rank(
    const struct dctf_view *view, uint64_t dataset, const char *dir, uint32_t *out, size_t max)
{
    /* No version has such an ETag. */
    return dctf_view_rank(view, dctf_extent_key(dataset, dir, "/", 0), out, max);
}

/* Not this node but the first that is alive; NULL, without `others`, when this one comes before it. */
static struct dctf_peer *first_locked(struct dctf_cluster *cluster, const char *dir, bool paused, bool others)
{
    uint64_t now_ms = dctf_cluster_now_ms(cluster);
    uint32_t ranks[DCTF_RANKS];
    size_t count = dctf_listings_rank(cluster->view, cluster->config.dataset, dir, ranks, DCTF_RANKS);

    for (size_t i = 0; i < count; i++) {
        struct dctf_peer *peer;

        if (ranks[i] == dctf_view_self(cluster->view)) {
            if (!others)
                return NULL;
            continue;
        }
        peer = dctf_peer_of_locked(cluster, dctf_view_node(cluster->view, ranks[i]));
        if (peer && dctf_peer_usable_locked(peer) && (paused || now_ms >= peer->listings_off_ms))
            return peer;
    }
    return NULL;
}

struct dctf_peer *dctf_listings_home_locked(struct dctf_cluster *cluster, const char *dir, bool paused)
{
    return first_locked(cluster, dir, paused, false);
}

static struct errand *errand_of(struct dctf_list *link)
{
    return dctf_list_entry(link, struct errand, link);
}

static void unref(struct errand *errand)
{
    struct dctf_cluster *cluster = errand->cluster;
    bool last;

    pthread_mutex_lock(&cluster->lock);
    last = --errand->refs == 0;
    pthread_mutex_unlock(&cluster->lock);
    if (!last)
        return;
    if (errand->page)
        dctf_budget_buf_put(cluster->config.budget, errand->page, DCTF_PEER_PAGE_BYTES);
    free(errand);
    dctf_cluster_release(cluster);
}

/* --- the end --- */

/* Whether the home failed in a way that the next question would meet as well. */
static bool is_its_fault(enum dctf_err err)
{
    return err != DCTF_ERR_CANCELLED && err != DCTF_ERR_SHUTTING_DOWN && err != DCTF_ERR_PEER_ABSENT &&
           err != DCTF_ERR_NO_MEMORY && err != DCTF_ERR_NOT_FOUND;
}

static void leave(struct errand *errand)
{
    pthread_mutex_lock(&errand->cluster->lock);
    dctf_list_remove(&errand->link);
    pthread_mutex_unlock(&errand->cluster->lock);
}

static void end(struct errand *errand, enum dctf_err err)
{
    struct dctf_cluster *cluster = errand->cluster;
    struct dctf_cluster_list *list = errand->list;
    struct dctf_peer *peer = errand->peer;
    uint64_t now_ms = dctf_cluster_now_ms(cluster);

    leave(errand);
    if (err && peer && is_its_fault(err)) {
        char dir[256];

        pthread_mutex_lock(&cluster->lock);
        peer->failures++;
        peer->listings_off_ms = now_ms + OFF_MS;
        pthread_mutex_unlock(&cluster->lock);
        dctf_log(DCTF_LOG_INFO, "cluster", "op=list dir=%s addr=%s err=%d %s: the source is asked",
            dctf_str_quote(list->dir, dir, sizeof(dir)), errand->addr, (int)err, dctf_err_name(err));
        if (err == DCTF_ERR_PEER_GONE || err == DCTF_ERR_DEADLINE)
            dctf_peer_suspect(cluster, peer);
    }
    list->done(list, err, errand->age_ms + (now_ms - errand->age_at_ms));
    unref(errand);
}

/* --- one step after the other --- */

static void ask_or_end(struct errand *errand);

static void pause_over(void *ctx)
{
    ask_or_end(ctx);
}

static enum dctf_err pause_for(struct errand *errand, uint64_t ms)
{
    struct dctf_cluster *cluster = errand->cluster;
    bool cancelled;

    pthread_mutex_lock(&cluster->lock);
    cancelled = errand->cancelled || cluster->closing;
    ms += dctf_rng_next(&cluster->rng) % (PAUSE_MS + 1);
    pthread_mutex_unlock(&cluster->lock);
    return cancelled ? DCTF_ERR_CANCELLED
                     : dctf_timer_arm(cluster->config.timers, &errand->timer, ms, pause_over, errand);
}

static void pause_or_end(struct errand *errand, uint64_t ms)
{
    enum dctf_err err = pause_for(errand, ms);

    if (err)
        end(errand, err);
}

static void answered(struct dctf_peer_get *get, enum dctf_err err, const struct dctf_peer_answer *answer);

static enum dctf_err ask(struct errand *errand)
{
    struct dctf_cluster *cluster = errand->cluster;
    struct dctf_peer_get *get = &errand->get;
    const struct dctf_cluster_list *list = errand->list;
    uint64_t now_ms = dctf_cluster_now_ms(cluster);
    uint64_t spent_ms = now_ms - errand->begun_ms;
    enum dctf_err err = DCTF_OK;

    if (list->deadline_ms && spent_ms >= list->deadline_ms)
        return DCTF_ERR_DEADLINE;
    if (list->deadline_ms && list->deadline_ms - spent_ms < get->deadline_ms)
        get->deadline_ms = list->deadline_ms - spent_ms;
    errand->asked_ms = now_ms;
    pthread_mutex_lock(&cluster->lock);
    if (errand->cancelled || cluster->closing)
        err = DCTF_ERR_CANCELLED;
    if (!err && !errand->peer) {
        errand->peer = first_locked(
            cluster, list->dir, false, list->others || cluster->source.state != DCTF_BREAKER_CLOSED);
        if (errand->peer)
            memcpy(errand->addr, errand->peer->addr, sizeof(errand->addr));
        else
            err = DCTF_ERR_PEER_ABSENT;
    }
    if (!err)
        errand->peer->requests++;
    get->view = dctf_view_hash(cluster->view);
    pthread_mutex_unlock(&cluster->lock);
    if (err)
        return err;
    get->ask.size = list->max_age_ms;
    if (get->ask.size <= UINT64_MAX - spent_ms)
        get->ask.size += spent_ms;
    return dctf_peer_get_start(cluster->client, get);
}

static void ask_or_end(struct errand *errand)
{
    enum dctf_err err = ask(errand);

    if (err)
        end(errand, err);
}

/* All entries of the page to the caller. */
static enum dctf_err add_all(struct errand *errand, struct dctf_listings_page *page)
{
    struct dctf_entry entry;
    enum dctf_err err;

    while (!(err = dctf_listings_page_next(page, &entry))) {
        if (++errand->entries > errand->entries_told)
            return DCTF_ERR_BAD_RESPONSE;
        err = errand->list->add(errand->list, &entry);
        if (err)
            return err;
    }
    return err == DCTF_ERR_NOT_FOUND ? DCTF_OK : err;
}

static enum dctf_err take(struct errand *errand, bool *last)
{
    struct dctf_peer_ask *ask = &errand->get.ask;
    struct dctf_listings_page page;
    enum dctf_err err = dctf_listings_page_open(&page, errand->page, errand->page_len, ask->after);

    *last = false;
    if (err)
        return err;
    if (!ask->generation) {
        /* Changed in place since, it may have a few more. */
        errand->entries_told = page.head.entries < ENTRIES_MAX ? page.head.entries + ENTRIES_MAX / 100 : 0;
        errand->age_ms = page.head.age_ms;
        errand->age_at_ms = errand->asked_ms;
        /* Older than was asked for: it may have been begun after that, and taken its time. */
        if (page.head.age_ms > ask->size &&
            page.head.age_ms - ask->size > errand->answered_ms - errand->asked_ms + SLACK_MS)
            return DCTF_ERR_BAD_RESPONSE;
        ask->generation = page.head.generation;
    } else if (ask->generation != page.head.generation) {
        return DCTF_ERR_BAD_RESPONSE;
    }
    err = add_all(errand, &page);
    *last = page.head.last;
    memcpy(ask->after, page.name, sizeof(ask->after));
    return err;
}

/* On the pool: the caller writes to the database. */
static void take_page(void *ctx)
{
    struct errand *errand = ctx;
    bool last;
    enum dctf_err err = take(errand, &last);

    if (err || last)
        end(errand, err);
    else
        ask_or_end(errand);
}

static void stay_busy(struct errand *errand, uint64_t retry_ms)
{
    uint64_t now_ms = dctf_cluster_now_ms(errand->cluster);

    if (!errand->busy_ms)
        errand->busy_ms = now_ms;
    if (now_ms - errand->busy_ms > BUSY_MAX_MS)
        end(errand, DCTF_ERR_PEER_BUSY);
    else
        pause_or_end(errand, retry_ms < PAUSE_BUSY_MAX_MS ? retry_ms : PAUSE_BUSY_MAX_MS);
}

/* On a thread that must not wait. */
static void answered(struct dctf_peer_get *get, enum dctf_err err, const struct dctf_peer_answer *answer)
{
    struct errand *errand = get->ctx;
    struct dctf_cluster *cluster = errand->cluster;
    uint64_t now_ms = dctf_cluster_now_ms(cluster);
    bool cancelled;

    pthread_mutex_lock(&cluster->lock);
    cancelled = errand->cancelled;
    pthread_mutex_unlock(&cluster->lock);
    if (err == DCTF_ERR_CANCELLED && !cancelled)
        err = DCTF_ERR_PEER_GONE; /* it was found dead */
    if (err == DCTF_ERR_PEER_BUSY) {
        stay_busy(errand, answer->retry_ms);
        return;
    }
    errand->busy_ms = 0;
    if (!err && answer->on_its_way) {
        if (now_ms - errand->begun_ms > MOVING_MAX_MS || get->ask.generation)
            end(errand, DCTF_ERR_DEADLINE);
        else if (now_ms - errand->asked_ms < DCTF_LISTINGS_HOLD_MS / 2) /* there was no room to wait there */
            pause_or_end(errand, PAUSE_MS);
        else
            ask_or_end(errand);
        return;
    }
    if (!err) {
        errand->page_len = answer->body_len;
        errand->answered_ms = now_ms;
        err = dctf_pool_submit(cluster->config.pool, take_page, errand);
    }
    if (err)
        end(errand, err);
}

/* --- start and cancel --- */

static enum dctf_err errand_new(
    struct dctf_cluster *cluster, struct dctf_cluster_list *list, struct errand **out)
{
    struct errand *errand = calloc(1, sizeof(*errand));

    *out = NULL;
    if (!errand || !(errand->page = dctf_budget_buf_get(cluster->config.budget, DCTF_PEER_PAGE_BYTES))) {
        free(errand);
        return DCTF_ERR_NO_MEMORY;
    }
    errand->cluster = cluster;
    errand->list = list;
    errand->refs = 1;
    errand->begun_ms = dctf_cluster_now_ms(cluster);
    errand->get = (struct dctf_peer_get){
        .addr = errand->addr,
        .ask = {.op = DCTF_PEER_LIST, .dataset = cluster->config.dataset},
        .buf = errand->page,
        .buf_len = DCTF_PEER_PAGE_BYTES,
        .class = DCTF_FETCH_DEMAND,
        .deadline_ms = REQUEST_MS,
        .silence_ms = SILENCE_MS,
        .done = answered,
        .ctx = errand,
    };
    strcpy(errand->get.ask.key, list->dir);
    *out = errand;
    return DCTF_OK;
}

enum dctf_err dctf_cluster_list(struct dctf_cluster *cluster, struct dctf_cluster_list *list)
{
    uint64_t settle_ms;
    struct errand *errand;
    enum dctf_err err;

    if (strlen(list->dir) > DCTF_KEY_MAX)
        return DCTF_ERR_PEER_ABSENT;
    if (!dctf_cluster_hold(cluster))
        return DCTF_ERR_SHUTTING_DOWN;
    err = errand_new(cluster, list, &errand);
    if (err) {
        dctf_cluster_release(cluster);
        return err;
    }
    pthread_mutex_lock(&cluster->lock);
    dctf_list_push_back(&cluster->listings.errands, &errand->link);
    pthread_mutex_unlock(&cluster->lock);
    /* At the start members have not found each other yet. */
    settle_ms = dctf_cluster_settle_ms(cluster);
    err = settle_ms ? pause_for(errand, settle_ms) : ask(errand);
    if (err) {
        leave(errand);
        unref(errand);
    }
    return err;
}

/* Break off what it finds an errand at. The caller has a reference, which goes. */
static void cancel(struct errand *errand)
{
    struct dctf_cluster *cluster = errand->cluster;

    if (dctf_timer_cancel(cluster->config.timers, &errand->timer))
        end(errand, DCTF_ERR_CANCELLED);
    else
        dctf_peer_get_cancel(cluster->client, &errand->get);
    unref(errand);
}

void dctf_cluster_list_cancel(struct dctf_cluster *cluster, struct dctf_cluster_list *list)
{
    struct errand *found = NULL;

    pthread_mutex_lock(&cluster->lock);
    for (struct dctf_list *at = cluster->listings.errands.next; at != &cluster->listings.errands;
         at = at->next)
        if (errand_of(at)->list == list)
            found = errand_of(at);
    if (found) {
        found->cancelled = true;
        found->refs++;
    }
    pthread_mutex_unlock(&cluster->lock);
    if (found)
        cancel(found);
}

void dctf_listings_cancel_all(struct dctf_cluster *cluster)
{
    for (;;) {
        struct errand *found = NULL;

        pthread_mutex_lock(&cluster->lock);
        for (struct dctf_list *at = cluster->listings.errands.next; at != &cluster->listings.errands;
             at = at->next)
            if (!errand_of(at)->cancelled)
                found = errand_of(at);
        if (found) {
            found->cancelled = true;
            found->refs++;
        }
        pthread_mutex_unlock(&cluster->lock);
        if (!found)
            return;
        cancel(found);
    }
}

void dctf_listings_leave_peer(struct dctf_cluster *cluster, const struct dctf_peer *peer)
{
    struct errand *waiting[16];
    size_t count = 0;

    pthread_mutex_lock(&cluster->lock);
    for (struct dctf_list *at = cluster->listings.errands.next; at != &cluster->listings.errands;
         at = at->next) {
        if (errand_of(at)->peer != peer || count == sizeof(waiting) / sizeof(waiting[0]))
            continue; /* the rest has its deadline */
        errand_of(at)->refs++;
        waiting[count++] = errand_of(at);
    }
    pthread_mutex_unlock(&cluster->lock);
    while (count) {
        dctf_peer_get_cancel(cluster->client, &waiting[--count]->get);
        unref(waiting[count]);
    }
}
