/* SPDX-License-Identifier: Apache-2.0
 *
 * The course of a flight, see fs/ns_private.h.
 */
#include "fs/ns_private.h"

#include "base/log.h"
#include "base/metric.h"
#include "base/str.h"
#include "cluster/cluster.h"
#include "transport/fetch.h"

#include <stdlib.h>
#include <string.h>

/* --- entries --- */

const char *dctf_ns_hidden(const char *dir, const char *name)
{
    size_t len = strlen(name);
    size_t dir_len = strlen(dir);

    if (len == 0)
        return "empty component (`//` in the key)";
    if (!strcmp(name, ".") || !strcmp(name, ".."))
        return "component `.` or `..`";
    if (memchr(name, '/', len))
        return "slash inside a component";
    if (len > DCTF_NAME_MAX)
        return "component longer than 255 bytes";
    if (dir_len + (dir_len ? 1 : 0) + len > DCTF_KEY_MAX)
        return "key longer than 1024 bytes";
    if (dir_len == 0 && !strcmp(name, ".dctf"))
        return "the name `.dctf` at the root is the mount's own";
    return NULL;
}

static void report_hidden(struct dctf_ns_flight *flight, const char *entry, const char *why)
{
    char dir[256], name[256];

    dctf_metric_add(flight->ns->config.metrics, DCTF_METRIC_HIDDEN_KEYS, 1);
    if (flight->hidden++ == 0)
        dctf_log(DCTF_LOG_WARN, "namespace", "hidden key dir=%s name=%s why=\"%s\" (docs/keys.md)",
            dctf_str_quote(flight->dir, dir, sizeof(dir)), dctf_str_quote(entry, name, sizeof(name)), why);
}

static void flight_shadowed(void *ctx, const char *name)
{
    report_hidden(ctx, name, "a directory has the same name");
}

/* One entry, if the key rules let it be seen. */
static void flight_add(struct dctf_ns_flight *flight, const struct dctf_entry *entry)
{
    const char *why = dctf_ns_hidden(flight->dir, entry->name);

    if (!why && !entry->is_dir && strlen(entry->etag) > DCTF_ETAG_MAX)
        why = "version tag longer than 128 bytes";
    if (!why && entry->size > DCTF_SIZE_MAX)
        why = "larger than 512 TiB";
    if (why)
        report_hidden(flight, entry->name, why);
    else
        flight->err = dctf_listing_add(flight->writer, entry);
}

/* The empty object "dir/" with which object stores' tools stand for a directory. */
static bool is_marker(const struct dctf_origin_entry *entry)
{
    return !*entry->name && !entry->is_dir && entry->size == 0;
}

static bool flight_page(void *ctx, const struct dctf_origin_entry *entries, size_t count)
{
    struct dctf_ns_flight *flight = ctx;

    pthread_mutex_lock(&flight->ns->lock);
    flight->moved_ms = dctf_clock_mono_ms(&flight->ns->clock);
    pthread_mutex_unlock(&flight->ns->lock);
    for (size_t i = 0; i < count && !flight->err; i++) {
        struct dctf_entry entry = {
            .name = entries[i].name,
            .is_dir = entries[i].is_dir,
            .size = entries[i].is_dir ? 0 : entries[i].size,
            .mtime_ns = entries[i].mtime_ns,
            .etag = entries[i].is_dir ? "" : entries[i].etag,
        };

        if (!is_marker(&entries[i]))
            flight_add(flight, &entry);
    }
    return !flight->err;
}

/* Call every waiter back. */
static void flight_answer(
    struct dctf_ns_flight *flight, enum dctf_err err, const struct dctf_listing_state *state)
{
    struct dctf_ns *ns = flight->ns;

    for (;;) {
        struct dctf_list *node;
        struct dctf_ns_wait *wait;

        pthread_mutex_lock(&ns->lock);
        node = dctf_list_pop(&flight->waiters);
        if (node)
            dctf_list_entry(node, struct dctf_ns_wait, node)->flight = NULL;
        pthread_mutex_unlock(&ns->lock);
        if (!node)
            return;
        wait = dctf_list_entry(node, struct dctf_ns_wait, node);
        dctf_timer_cancel(ns->config.timers, &wait->grace);
        if (err && wait->stale.generation && err != DCTF_ERR_NOT_FOUND)
            wait->done(wait, DCTF_OK, &wait->stale);
        else
            wait->done(wait, err, state);
    }
}

static void flight_end(
    struct dctf_ns_flight *flight, enum dctf_err err, const struct dctf_listing_state *state)
{
    pthread_mutex_lock(&flight->ns->lock);
    dctf_list_remove(&flight->node);
    pthread_mutex_unlock(&flight->ns->lock);
    flight_answer(flight, err, state);
    free(flight);
}

static bool ask_others(struct dctf_ns_flight *flight, enum dctf_err err);

static void flight_done(void *ctx, enum dctf_err err)
{
    struct dctf_ns_flight *flight = ctx;
    struct dctf_ns *ns = flight->ns;
    struct dctf_listing_state state = {0};

    if (flight->err)
        err = flight->err;
    if (ask_others(flight, err))
        return;
    if (err)
        dctf_listing_abort(flight->writer);
    else
        err = dctf_listing_commit(flight->writer, &state);
    if (err == DCTF_ERR_NOT_FOUND) /* the directory is gone: so is what we knew of it */
        err = dctf_listing_drop(ns->config.listings, flight->dir) ?: DCTF_ERR_NOT_FOUND;
    if (err && err != DCTF_ERR_NOT_FOUND) {
        char dir[256];

        dctf_metric_error(ns->config.metrics, err);
        dctf_log(DCTF_LOG_WARN, "namespace", "listing failed err=%d dir=%s why=\"%s\"", err,
            dctf_str_quote(flight->dir, dir, sizeof(dir)), dctf_err_text(err));
    }
    flight_end(flight, err, &state);
}

/* --- start --- */

enum dctf_err dctf_ns_flight_new(struct dctf_ns *ns, const char *dir, struct dctf_ns_flight **out)
{
    struct dctf_ns_flight *flight = calloc(1, sizeof(*flight) + strlen(dir) + 1);
    enum dctf_err err;

    *out = NULL;
    if (!flight)
        return DCTF_ERR_NO_MEMORY;
    strcpy(flight->dir, dir);
    err = dctf_listing_begin(ns->config.listings, dir, &flight->writer);
    if (err) {
        free(flight);
        return err;
    }
    flight->ns = ns;
    dctf_listing_watch_shadowed(flight->writer, flight_shadowed, flight);
    flight->started_ms = dctf_clock_mono_ms(&ns->clock);
    dctf_list_init(&flight->waiters);
    dctf_list_init(&flight->node);
    *out = flight;
    return DCTF_OK;
}

void dctf_ns_flight_free(struct dctf_ns_flight *flight)
{
    dctf_listing_abort(flight->writer);
    free(flight);
}

/* Give the waiters of a flight to another that reads the same from the source. False: there is none. */
static bool merge(struct dctf_ns *ns, struct dctf_ns_flight *flight, uint64_t max_age_ms)
{
    struct dctf_list *node;
    struct dctf_ns_flight *other;

    pthread_mutex_lock(&ns->lock);
    other = dctf_ns_direct_find_locked(ns, flight->dir, max_age_ms, flight);
    if (other) {
        while ((node = dctf_list_pop(&flight->waiters))) {
            dctf_list_entry(node, struct dctf_ns_wait, node)->flight = other;
            dctf_list_push_back(&other->waiters, node);
        }
        dctf_list_remove(&flight->node);
    } else {
        flight->direct_ms = flight->moved_ms = dctf_clock_mono_ms(&ns->clock);
    }
    pthread_mutex_unlock(&ns->lock);
    if (!other)
        return false;
    dctf_ns_flight_free(flight);
    return true;
}

/* Ask the source, unless another flight does or did since. On failure the caller ends the flight. */
static enum dctf_err ask_source(struct dctf_ns *ns, struct dctf_ns_flight *flight, uint64_t max_age_ms)
{
    struct dctf_listing_state state;
    struct dctf_fetch_list list = {
        .dir = flight->dir,
        .silence_ms = ns->config.silence_ms,
        .page = flight_page,
        .done = flight_done,
        .ctx = flight,
    };
    enum dctf_err err;

    if (merge(ns, flight, max_age_ms))
        return DCTF_OK;
    err = dctf_listings_state(ns->config.listings, flight->dir, &state);
    if (err)
        return err;
    if (flight->for_peer ? dctf_ns_is_at_most(ns, &state, max_age_ms) : dctf_ns_is_fresh(ns, &state)) {
        dctf_listing_abort(flight->writer);
        flight_end(flight, DCTF_OK, &state);
        return DCTF_OK;
    }
    return dctf_fetch_list_submit(ns->config.fetch, &list);
}

/* The flight has asked the source, or ended. */
static void end_start(struct dctf_ns *ns)
{
    pthread_mutex_lock(&ns->lock);
    if (--ns->starting == 0)
        pthread_cond_broadcast(&ns->started);
    pthread_mutex_unlock(&ns->lock);
}

static enum dctf_err shared_add(struct dctf_cluster_list *list, const struct dctf_entry *entry)
{
    struct dctf_ns_flight *flight = list->ctx;

    flight_add(flight, entry);
    return flight->err;
}

/* What was written is thrown away. */
static enum dctf_err write_anew(struct dctf_ns_flight *flight)
{
    enum dctf_err err;

    dctf_listing_abort(flight->writer);
    flight->err = DCTF_OK;
    flight->hidden = 0;
    err = dctf_listing_begin(flight->ns->config.listings, flight->dir, &flight->writer);
    if (!err)
        dctf_listing_watch_shadowed(flight->writer, flight_shadowed, flight);
    return err;
}

static void go_direct(struct dctf_ns_flight *flight)
{
    struct dctf_ns *ns = flight->ns;
    enum dctf_err err = write_anew(flight);

    if (!err)
        err = ask_source(ns, flight, dctf_ns_max_age(ns, flight->dir));
    if (err)
        flight_done(flight, err);
}

static void shared_done(struct dctf_cluster_list *list, enum dctf_err err, uint64_t age_ms)
{
    struct dctf_ns_flight *flight = list->ctx;
    struct dctf_ns *ns = flight->ns;
    bool stopped;

    pthread_mutex_lock(&ns->lock);
    flight->sharing = false;
    stopped = ns->stopped;
    pthread_mutex_unlock(&ns->lock);
    if (!err) {
        dctf_metric_add(ns->config.metrics, DCTF_METRIC_LISTINGS_HOME, 1);
        dctf_listing_set_age(flight->writer, age_ms);
        flight_done(flight, DCTF_OK);
    } else if (stopped) {
        flight_done(flight, DCTF_ERR_SHUTTING_DOWN);
    } else if (flight->source_err) {
        flight_done(flight, flight->source_err);
    } else {
        dctf_metric_add(ns->config.metrics,
            err == DCTF_ERR_PEER_ABSENT ? DCTF_METRIC_LISTINGS_SOURCE : DCTF_METRIC_LISTINGS_INSTEAD, 1);
        go_direct(flight);
    }
    end_start(ns);
}

/* Answer those who wait for peers. */
static void answer_peers(struct dctf_ns_flight *flight, enum dctf_err err)
{
    struct dctf_ns *ns = flight->ns;
    struct dctf_ns_wait *found;

    do {
        found = NULL;
        pthread_mutex_lock(&ns->lock);
        for (struct dctf_list *node = flight->waiters.next; node != &flight->waiters && !found;
             node = node->next) {
            struct dctf_ns_wait *wait = dctf_list_entry(node, struct dctf_ns_wait, node);

            found = wait->for_peer ? wait : NULL;
        }
        if (found) {
            dctf_list_remove(&found->node);
            found->flight = NULL;
        }
        pthread_mutex_unlock(&ns->lock);
        if (found)
            found->done(found, err, NULL);
    } while (found);
}

/* The source failed this node, but maybe not all: another has the listing, or gets at the source. Within the
 * time that a source may be silent. False: the flight ends. */
static bool ask_others(struct dctf_ns_flight *flight, enum dctf_err err)
{
    struct dctf_ns *ns = flight->ns;
    uint64_t silent_ms;
    bool go;

    if (!ns->config.cluster || !ns->config.ttl_ms || flight->source_err || !dctf_cluster_is_of_one_node(err))
        return false;
    pthread_mutex_lock(&ns->lock);
    flight->direct_ms = 0; /* no peer joins from here on */
    pthread_mutex_unlock(&ns->lock);
    answer_peers(flight, err);
    pthread_mutex_lock(&ns->lock);
    silent_ms = dctf_clock_mono_ms(&ns->clock) - flight->moved_ms;
    go = !ns->stopped && silent_ms < ns->config.silence_ms && !dctf_list_empty(&flight->waiters);
    ns->starting += go;
    flight->sharing = go;
    pthread_mutex_unlock(&ns->lock);
    if (!go)
        return false;
    flight->source_err = err;
    flight->shared = (struct dctf_cluster_list){
        .dir = flight->dir,
        .max_age_ms = dctf_ns_max_age(ns, flight->dir),
        .others = true,
        .deadline_ms = ns->config.silence_ms - silent_ms,
        .add = shared_add,
        .done = shared_done,
        .ctx = flight,
    };
    err = write_anew(flight);
    if (!err)
        err = dctf_cluster_list(ns->config.cluster, &flight->shared);
    if (err)
        shared_done(&flight->shared, err, 0);
    return true;
}

void dctf_ns_flight_start(struct dctf_ns_flight *flight, uint64_t max_age_ms)
{
    struct dctf_ns *ns = flight->ns;
    bool share = ns->config.cluster && ns->config.ttl_ms && !flight->for_peer, stopped;
    enum dctf_err err;

    if (!flight->for_peer)
        max_age_ms = dctf_ns_max_age(ns, flight->dir);
    flight->shared = (struct dctf_cluster_list){
        .dir = flight->dir,
        .max_age_ms = max_age_ms,
        .add = shared_add,
        .done = shared_done,
        .ctx = flight,
    };
    pthread_mutex_lock(&ns->lock);
    stopped = ns->stopped;
    ns->starting += !stopped;
    flight->sharing = share && !stopped;
    pthread_mutex_unlock(&ns->lock);
    if (stopped) {
        flight_done(flight, DCTF_ERR_SHUTTING_DOWN);
        return;
    }
    if (share) {
        err = dctf_cluster_list(ns->config.cluster, &flight->shared);
        if (err)
            shared_done(&flight->shared, err, 0);
        return;
    }
    err = ask_source(ns, flight, max_age_ms);
    if (err)
        flight_done(flight, err);
    end_start(ns);
}
