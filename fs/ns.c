/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of flights, and who waits for them. See fs/ns_private.h.
 */
#include "base/thread.h"
#include "fs/inode.h"
#include "fs/ns_private.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STALE_GRACE_MS 1000u
#define STOP_ROUND_MS 20u

enum dctf_err dctf_ns_new(const struct dctf_ns_config *config, struct dctf_ns **out)
{
    struct dctf_ns *ns = calloc(1, sizeof(*ns));

    *out = NULL;
    if (!ns)
        return DCTF_ERR_NO_MEMORY;
    if (dctf_thread_cond_init(&ns->started)) {
        free(ns);
        return DCTF_ERR_SYSTEM;
    }
    ns->config = *config;
    if (config->clock)
        ns->clock = *config->clock;
    pthread_mutex_init(&ns->lock, NULL);
    dctf_list_init(&ns->flights);
    *out = ns;
    return DCTF_OK;
}

void dctf_ns_free(struct dctf_ns *ns)
{
    if (!ns)
        return;
    assert(dctf_list_empty(&ns->flights));
    pthread_cond_destroy(&ns->started);
    pthread_mutex_destroy(&ns->lock);
    free(ns);
}

bool dctf_ns_is_fresh(struct dctf_ns *ns, const struct dctf_listing_state *state)
{
    return state->generation != 0 && dctf_ns_remaining_ms(ns, state) > 0;
}

uint64_t dctf_ns_remaining_ms(struct dctf_ns *ns, const struct dctf_listing_state *state)
{
    uint64_t now = dctf_clock_wall_ms(&ns->clock);
    uint64_t age = now - state->fetched_ms;

    if (state->fetched_ms == 0) /* dropped while it was under way */
        return 0;
    if (ns->config.ttl_ms == UINT64_MAX)
        return UINT64_MAX;
    if (state->fetched_ms > now) /* the clock was set back: who knows how old it is */
        return 0;
    return age < ns->config.ttl_ms ? ns->config.ttl_ms - age : 0;
}

bool dctf_ns_is_at_most(struct dctf_ns *ns, const struct dctf_listing_state *state, uint64_t age_ms)
{
    uint64_t now = dctf_clock_wall_ms(&ns->clock);

    return state->generation && state->fetched_ms && state->fetched_ms <= now &&
           now - state->fetched_ms <= age_ms;
}

static struct dctf_ns_flight *flight_find_locked(struct dctf_ns *ns, const char *dir)
{
    for (struct dctf_list *node = ns->flights.next; node != &ns->flights; node = node->next) {
        struct dctf_ns_flight *flight = dctf_list_entry(node, struct dctf_ns_flight, node);

        if (!flight->closed && !strcmp(flight->dir, dir))
            return flight;
    }
    return NULL;
}

struct dctf_ns_flight *dctf_ns_direct_find_locked(
    struct dctf_ns *ns, const char *dir, uint64_t max_age_ms, const struct dctf_ns_flight *but)
{
    uint64_t now_ms = dctf_clock_mono_ms(&ns->clock);

    for (struct dctf_list *node = ns->flights.next; node != &ns->flights; node = node->next) {
        struct dctf_ns_flight *flight = dctf_list_entry(node, struct dctf_ns_flight, node);

        if (flight != but && !flight->closed && flight->direct_ms &&
            now_ms - flight->direct_ms <= max_age_ms && !strcmp(flight->dir, dir))
            return flight;
    }
    return NULL;
}

uint64_t dctf_ns_silent_ms(struct dctf_ns *ns, const char *dir)
{
    uint64_t silent_ms = UINT64_MAX;
    struct dctf_ns_flight *flight;

    pthread_mutex_lock(&ns->lock);
    flight = dctf_ns_direct_find_locked(ns, dir, UINT64_MAX, NULL);
    if (flight)
        silent_ms = dctf_clock_mono_ms(&ns->clock) - flight->moved_ms;
    pthread_mutex_unlock(&ns->lock);
    return silent_ms;
}

uint64_t dctf_ns_max_age(struct dctf_ns *ns, const char *dir)
{
    uint64_t now_ms = dctf_clock_mono_ms(&ns->clock), max_ms = ns->config.ttl_ms, synced_ms;

    pthread_mutex_lock(&ns->lock);
    synced_ms = ns->sync_floor_ms;
    for (unsigned i = 0; i < DCTF_NS_SYNCS_MAX; i++) {
        if (synced_ms < ns->syncs[i].at_ms && dctf_path_at_or_below(dir, ns->syncs[i].top))
            synced_ms = ns->syncs[i].at_ms;
    }
    pthread_mutex_unlock(&ns->lock);
    return synced_ms && now_ms - synced_ms < max_ms ? now_ms - synced_ms : max_ms;
}

static void grace_over(void *ctx)
{
    struct dctf_ns_wait *wait = ctx;

    if (dctf_ns_cancel(wait->ns, wait))
        wait->done(wait, DCTF_OK, &wait->stale);
}

/* Hang `wait` on the flight of its directory. True: answered from the old listing
 * instead, since that flight has been slow for longer than the grace. */
static bool join_locked(struct dctf_ns *ns, struct dctf_ns_flight *flight, struct dctf_ns_wait *wait)
{
    if (wait->stale.generation && dctf_clock_mono_ms(&ns->clock) - flight->started_ms > STALE_GRACE_MS)
        return true;
    wait->flight = flight;
    dctf_list_push_back(&flight->waiters, &wait->node);
    return false;
}

/* Find or make the flight, hang `wait` on it, start it when it is new. `for_peer`: a direct one, begun at
 * most `max_age_ms` ago. */
static enum dctf_err join_or_start(
    struct dctf_ns *ns, const char *dir, bool for_peer, uint64_t max_age_ms, struct dctf_ns_wait *wait)
{
    struct dctf_ns_flight *mine, *flight;
    bool use_stale;
    enum dctf_err err = dctf_ns_flight_new(ns, dir, &mine);

    if (err)
        return err;
    mine->for_peer = wait->for_peer = for_peer;
    /* Armed before the wait can be answered, so that whoever answers can disarm it. */
    if (wait->stale.generation)
        err = dctf_timer_arm(ns->config.timers, &wait->grace, STALE_GRACE_MS, grace_over, wait);
    if (err)
        goto discard;
    pthread_mutex_lock(&ns->lock);
    if (ns->stopped) {
        pthread_mutex_unlock(&ns->lock);
        dctf_timer_cancel(ns->config.timers, &wait->grace);
        err = DCTF_ERR_SHUTTING_DOWN;
        goto discard;
    }
    flight = for_peer ? dctf_ns_direct_find_locked(ns, dir, max_age_ms, NULL) : flight_find_locked(ns, dir);
    if (!flight) {
        flight = mine;
        if (for_peer)
            mine->direct_ms = mine->moved_ms = dctf_clock_mono_ms(&ns->clock);
        dctf_list_push_back(&ns->flights, &mine->node);
    }
    use_stale = join_locked(ns, flight, wait);
    pthread_mutex_unlock(&ns->lock);
    if (flight == mine) {
        dctf_ns_flight_start(mine, max_age_ms); /* calls the waiter, now or later */
        return DCTF_OK;
    }
    if (use_stale) {
        dctf_timer_cancel(ns->config.timers, &wait->grace);
        wait->done(wait, DCTF_OK, &wait->stale);
    }
    err = DCTF_OK;
discard:
    dctf_ns_flight_free(mine);
    return err;
}

static void wait_init(struct dctf_ns *ns, struct dctf_ns_wait *wait)
{
    wait->ns = ns;
    wait->flight = NULL;
    wait->stale = (struct dctf_listing_state){0};
    memset(&wait->grace, 0, sizeof(wait->grace));
    dctf_list_init(&wait->node);
}

enum dctf_err dctf_ns_resolve(struct dctf_ns *ns, const char *dir, struct dctf_ns_wait *wait)
{
    struct dctf_listing_state state;
    enum dctf_err err = dctf_listings_state(ns->config.listings, dir, &state);

    if (err)
        return err;
    wait_init(ns, wait);
    wait->stale = state;
    if (dctf_ns_is_fresh(ns, &state)) {
        wait->done(wait, DCTF_OK, &state);
        return DCTF_OK;
    }
    return join_or_start(ns, dir, false, 0, wait);
}

enum dctf_err dctf_ns_resolve_for_peer(
    struct dctf_ns *ns, const char *dir, uint64_t max_age_ms, struct dctf_ns_wait *wait)
{
    wait_init(ns, wait);
    return join_or_start(ns, dir, true, max_age_ms, wait);
}

bool dctf_ns_cancel(struct dctf_ns *ns, struct dctf_ns_wait *wait)
{
    bool waiting;

    pthread_mutex_lock(&ns->lock);
    waiting = wait->flight != NULL;
    if (waiting) {
        dctf_list_remove(&wait->node);
        wait->flight = NULL;
    }
    pthread_mutex_unlock(&ns->lock);
    if (waiting)
        dctf_timer_cancel(ns->config.timers, &wait->grace);
    return waiting;
}

/* One wait taken off its flight; NULL when nobody waits. */
static struct dctf_ns_wait *take_any(struct dctf_ns *ns)
{
    struct dctf_ns_wait *wait = NULL;

    pthread_mutex_lock(&ns->lock);
    for (struct dctf_list *node = ns->flights.next; node != &ns->flights && !wait; node = node->next) {
        struct dctf_list *first = dctf_list_pop(&dctf_list_entry(node, struct dctf_ns_flight, node)->waiters);

        if (first) {
            wait = dctf_list_entry(first, struct dctf_ns_wait, node);
            wait->flight = NULL;
        }
    }
    pthread_mutex_unlock(&ns->lock);
    return wait;
}

/* Wait until no flight has still to ask the source; each round breaks off what peers are asked for. */
static void end_starts(struct dctf_ns *ns)
{
    pthread_mutex_lock(&ns->lock);
    while (ns->starting) {
        struct dctf_cluster_list *shared = NULL;
        struct timespec due;

        for (struct dctf_list *node = ns->flights.next; node != &ns->flights; node = node->next) {
            struct dctf_ns_flight *flight = dctf_list_entry(node, struct dctf_ns_flight, node);

            if (flight->sharing)
                shared = &flight->shared;
        }
        pthread_mutex_unlock(&ns->lock);
        if (shared) /* it may be gone by now: then the cluster does not know it */
            dctf_cluster_list_cancel(ns->config.cluster, shared);
        clock_gettime(CLOCK_MONOTONIC, &due);
        due.tv_nsec += STOP_ROUND_MS * 1000000;
        due.tv_sec += due.tv_nsec / 1000000000;
        due.tv_nsec %= 1000000000;
        pthread_mutex_lock(&ns->lock);
        if (ns->starting)
            pthread_cond_timedwait(&ns->started, &ns->lock, &due);
    }
    pthread_mutex_unlock(&ns->lock);
}

void dctf_ns_stop(struct dctf_ns *ns)
{
    struct dctf_ns_wait *wait;

    pthread_mutex_lock(&ns->lock);
    ns->stopped = true;
    pthread_mutex_unlock(&ns->lock);
    while ((wait = take_any(ns))) {
        dctf_timer_cancel(ns->config.timers, &wait->grace);
        wait->done(wait, DCTF_ERR_SHUTTING_DOWN, NULL);
    }
    end_starts(ns);
}

/* Close one flight at or below `top` to newcomers; its directory goes to `dir`. False: there is
 * none left. */
static bool close_any(struct dctf_ns *ns, const char *top, char *dir)
{
    bool found = false;

    pthread_mutex_lock(&ns->lock);
    for (struct dctf_list *node = ns->flights.next; node != &ns->flights && !found; node = node->next) {
        struct dctf_ns_flight *flight = dctf_list_entry(node, struct dctf_ns_flight, node);

        found = !flight->closed && dctf_path_at_or_below(flight->dir, top);
        if (found) {
            flight->closed = true;
            strcpy(dir, flight->dir);
        }
    }
    pthread_mutex_unlock(&ns->lock);
    return found;
}

static void note_sync(struct dctf_ns *ns, const char *top)
{
    struct dctf_ns_sync *sync;

    pthread_mutex_lock(&ns->lock);
    sync = &ns->syncs[ns->sync_next++ % DCTF_NS_SYNCS_MAX];
    if (ns->sync_floor_ms < sync->at_ms)
        ns->sync_floor_ms = sync->at_ms;
    sync->at_ms = dctf_clock_mono_ms(&ns->clock);
    snprintf(sync->top, sizeof(sync->top), "%s", top);
    pthread_mutex_unlock(&ns->lock);
}

enum dctf_err dctf_ns_outdate(struct dctf_ns *ns, const char *top)
{
    char dir[DCTF_KEY_MAX + 1];
    enum dctf_err err = DCTF_OK;

    note_sync(ns, top);

    /* Dropped as well, so that what the flight commits, or just has, is old from the start. */
    while (!err && close_any(ns, top, dir))
        err = dctf_listing_drop(ns->config.listings, dir);
    return err;
}
