/* SPDX-License-Identifier: Apache-2.0
 *
 * All members are asked whether they have judged, and the one with the highest fence then for what it found.
 */
#include "cluster/cluster_heat.h"

#include "base/config.h"
#include "base/le.h"
#include "base/thread.h"
#include "cluster/controller.h"
#include "cluster/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENTRY_HEAD 31u
/* Nobody leads who has not judged for so many intervals. */
#define OLD_INTERVALS 4u
/* Of the hottest, whose paths the other nodes are asked for each time while they are not known. */
#define PATHS_ASKED 32u
#define UNKNOWN UINT16_MAX /* as path_len */

/* --- reading --- */

enum dctf_err dctf_heat_open(struct dctf_heat_cursor *cursor, const void *data, size_t len)
{
    const uint8_t *bytes = data;

    memset(cursor, 0, sizeof(*cursor));
    if (len < DCTF_HEAT_HEAD)
        return DCTF_ERR_BAD_RESPONSE;
    cursor->fence = dctf_le_get(bytes, 8);
    cursor->age_ms = dctf_le_get(bytes + 8, 8);
    cursor->features = dctf_le_get(bytes + 16, 8);
    cursor->at = bytes + DCTF_HEAT_HEAD;
    cursor->end = bytes + len;
    return DCTF_OK;
}

enum dctf_err dctf_heat_next(struct dctf_heat_cursor *cursor, struct dctf_cluster_heat_entry *entry)
{
    const uint8_t *at = cursor->at;
    size_t left = (size_t)(cursor->end - at), path_len;
    uint64_t passes;

    *entry = (struct dctf_cluster_heat_entry){.path = ""};
    if (!left)
        return DCTF_ERR_NOT_FOUND;
    if (left < ENTRY_HEAD)
        return DCTF_ERR_BAD_RESPONSE;
    passes = dctf_le_get(at + 8, 8);
    path_len = (size_t)dctf_le_get(at + 29, 2);
    entry->known = path_len != UNKNOWN;
    path_len = entry->known ? path_len : 0;
    entry->heat.feature_id = dctf_le_get(at, 8);
    memcpy(&entry->heat.passes, &passes, sizeof(passes));
    entry->heat.bytes = dctf_le_get(at + 16, 8);
    entry->heat.nodes = (unsigned)dctf_le_get(at + 24, 4);
    entry->heat.class = (enum dctf_policy_class)at[28];
    if (at[28] > DCTF_POLICY_HOT || !isfinite(entry->heat.passes) || entry->heat.passes < 0 ||
        path_len > DCTF_KEY_MAX || left - ENTRY_HEAD < path_len || memchr(at + ENTRY_HEAD, '\0', path_len)) {
        *entry = (struct dctf_cluster_heat_entry){.path = ""};
        return DCTF_ERR_BAD_RESPONSE;
    }
    memcpy(cursor->path, at + ENTRY_HEAD, path_len);
    cursor->path[path_len] = '\0';
    entry->path = cursor->path;
    cursor->at += ENTRY_HEAD + path_len;
    return DCTF_OK;
}

/* --- keeping --- */

static size_t encode(const struct dctf_policy_heat *heat, const char *path, uint8_t *to)
{
    size_t path_len = path ? strlen(path) : 0;
    uint64_t passes;

    memcpy(&passes, &heat->passes, sizeof(passes));
    dctf_le_put(to, heat->feature_id, 8);
    dctf_le_put(to + 8, passes, 8);
    dctf_le_put(to + 16, heat->bytes, 8);
    dctf_le_put(to + 24, heat->nodes, 4);
    to[28] = (uint8_t)heat->class;
    dctf_le_put(to + 29, path ? path_len : UNKNOWN, 2);
    if (path)
        memcpy(to + ENTRY_HEAD, path, path_len);
    return ENTRY_HEAD + path_len;
}

/* As many as a page takes. On the controller's own way: it is there. */
void dctf_heat_judged(
    void *ctx, struct dctf_controller *controller, uint64_t fence, const struct dctf_policy_result *result)
{
    struct dctf_cluster *cluster = ctx;
    struct dctf_heat_kept kept = {.fence = fence, .features = result->features};
    size_t cap = DCTF_PEER_PAGE_BYTES - DCTF_HEAT_HEAD;
    uint8_t *old;

    kept.entries = malloc(cap);
    if (!kept.entries)
        return; /* what was found before stays, and its age tells */
    for (size_t i = 0; i < result->hottest_count; i++) {
        char path[DCTF_KEY_MAX + 1];
        /* Others may have read what this node has not. */
        bool known = dctf_controller_path(controller, result->hottest[i].feature_id, i < PATHS_ASKED, path);

        if (cap - kept.len < ENTRY_HEAD + DCTF_KEY_MAX)
            break;
        kept.len += encode(&result->hottest[i], known ? path : NULL, kept.entries + kept.len);
    }
    kept.judged_ms = dctf_cluster_now_ms(cluster);
    pthread_mutex_lock(&cluster->lock);
    old = cluster->heat.entries;
    cluster->heat = kept;
    pthread_mutex_unlock(&cluster->lock);
    free(old);
}

/* What is kept, with a head before it; caller frees. NULL: nothing, or no memory. Entries after the first
 * `max` are left out. */
static uint8_t *copy_kept(struct dctf_cluster *cluster, uint64_t max, size_t *len)
{
    uint64_t old_ms = OLD_INTERVALS * cluster->config.options->policy_interval, age_ms;
    struct dctf_cluster_heat_entry entry;
    struct dctf_heat_cursor cursor;
    uint8_t *out = NULL;

    pthread_mutex_lock(&cluster->lock);
    age_ms = dctf_cluster_now_ms(cluster) - cluster->heat.judged_ms;
    if (cluster->heat.entries && age_ms <= old_ms)
        out = malloc(DCTF_HEAT_HEAD + cluster->heat.len);
    if (out) {
        dctf_le_put(out, cluster->heat.fence, 8);
        dctf_le_put(out + 8, age_ms, 8);
        dctf_le_put(out + 16, cluster->heat.features, 8);
        memcpy(out + DCTF_HEAT_HEAD, cluster->heat.entries, cluster->heat.len);
        *len = DCTF_HEAT_HEAD + cluster->heat.len;
    }
    pthread_mutex_unlock(&cluster->lock);
    if (!out || dctf_heat_open(&cursor, out, *len))
        return out;
    while (max && !dctf_heat_next(&cursor, &entry))
        max--;
    *len = (size_t)(cursor.at - out);
    return out;
}

void dctf_heat_serve(struct dctf_cluster *cluster, struct dctf_peer_request *request, uint64_t max)
{
    struct dctf_peer_origin from = {.from = DCTF_PEER_FROM_CACHE};
    size_t len = 0;
    uint8_t *body = copy_kept(cluster, max, &len);
    uint64_t sum;

    if (!body) {
        dctf_peer_reply_have(request, false, false);
        return;
    }
    sum = dctf_hash64(body, len);
    dctf_peer_reply_memory(request, body, len, false, &sum, &from, free, body);
}

/* --- asking --- */

struct fetch {
    struct dctf_peer_get get; /* first */
    pthread_mutex_t lock;
    pthread_cond_t over;
    bool ended; /* guarded by lock, as what follows */
    enum dctf_err err;
    size_t len;
};

static void fetch_done(struct dctf_peer_get *get, enum dctf_err err, const struct dctf_peer_answer *answer)
{
    struct fetch *fetch = (struct fetch *)get;

    pthread_mutex_lock(&fetch->lock);
    fetch->err = err;
    fetch->len = answer->body_len;
    fetch->ended = true;
    pthread_cond_signal(&fetch->over);
    pthread_mutex_unlock(&fetch->lock);
}

/* What another member found; caller frees, also after a failure. `deadline_ms` > 0. */
static enum dctf_err fetch_from(struct dctf_cluster *cluster, const struct dctf_node *node, size_t max,
    uint64_t deadline_ms, uint8_t **body, size_t *len)
{
    struct fetch fetch = {.lock = PTHREAD_MUTEX_INITIALIZER};
    enum dctf_err err;

    *body = malloc(DCTF_PEER_PAGE_BYTES);
    if (!*body || dctf_thread_cond_init(&fetch.over))
        return DCTF_ERR_NO_MEMORY;
    fetch.get = (struct dctf_peer_get){
        .addr = node->addr,
        .ask = {.op = DCTF_PEER_HEAT,
            .dataset = cluster->config.dataset,
            .size = max < UINT32_MAX ? max : UINT32_MAX},
        .buf = *body,
        .buf_len = DCTF_PEER_PAGE_BYTES,
        .class = DCTF_FETCH_DEMAND,
        .deadline_ms = deadline_ms,
        .done = fetch_done,
    };
    err = dctf_peer_get_start(cluster->client, &fetch.get);
    if (!err) {
        pthread_mutex_lock(&fetch.lock);
        while (!fetch.ended) /* it has its deadline */
            pthread_cond_wait(&fetch.over, &fetch.lock);
        err = fetch.err;
        *len = fetch.len;
        pthread_mutex_unlock(&fetch.lock);
    }
    pthread_cond_destroy(&fetch.over);
    pthread_mutex_destroy(&fetch.lock);
    return err;
}

struct search {
    struct dctf_node best;
    uint64_t fence;
    bool found;
};

static void look(void *ctx, const struct dctf_told_member *member)
{
    struct search *search = ctx;

    if (member->err || member->numbers[0] <= search->fence)
        return;
    search->best = *member->node;
    search->fence = member->numbers[0];
    search->found = true;
}

/* With its path, if this node knows it. */
static void tell_one(struct dctf_cluster *cluster, struct dctf_cluster_heat_entry *entry,
    void (*each)(void *ctx, const struct dctf_cluster_heat_entry *entry), void *ctx)
{
    char path[DCTF_KEY_MAX + 1];

    if (!entry->known && dctf_controller_path(cluster->controller, entry->heat.feature_id, false, path)) {
        entry->known = true;
        entry->path = path;
    }
    each(ctx, entry);
}

static enum dctf_err tell(struct dctf_cluster *cluster, const uint8_t *body, size_t len, size_t max,
    void (*each)(void *ctx, const struct dctf_cluster_heat_entry *entry), void *ctx,
    struct dctf_cluster_heat *out)
{
    struct dctf_cluster_heat_entry entry;
    struct dctf_heat_cursor cursor;
    enum dctf_err err = dctf_heat_open(&cursor, body, len);

    if (err)
        return err;
    out->judged = true;
    out->age_ms = cursor.age_ms;
    out->features = cursor.features;
    while (max-- && !(err = dctf_heat_next(&cursor, &entry)))
        tell_one(cluster, &entry, each, ctx);
    return err == DCTF_ERR_NOT_FOUND ? DCTF_OK : err;
}

enum dctf_err dctf_cluster_heat(struct dctf_cluster *cluster, size_t max, uint64_t deadline_ms,
    void (*each)(void *ctx, const struct dctf_cluster_heat_entry *entry), void *ctx,
    struct dctf_cluster_heat *out)
{
    uint64_t end_ms = dctf_cluster_now_ms(cluster) + deadline_ms, now_ms;
    struct search search = {.found = false};
    size_t len = 0;
    uint8_t *body;
    enum dctf_err err;

    *out = (struct dctf_cluster_heat){.coordinated = cluster->controller != NULL};
    out->half_life_ms = dctf_policy_defaults.half_life * cluster->config.options->policy_interval;
    if (!out->coordinated)
        return DCTF_OK;
    body = copy_kept(cluster, max, &len);
    snprintf(out->node, sizeof(out->node), "%s", cluster->id);
    search.fence = body ? dctf_le_get(body, 8) : 0;
    err = dctf_cluster_tell(cluster, DCTF_TELL_HEAT, "", false, deadline_ms / 2, look, &search);
    now_ms = dctf_cluster_now_ms(cluster);
    if (!err && search.found) {
        free(body);
        body = NULL;
        snprintf(out->node, sizeof(out->node), "%s", search.best.id);
        err = dctf_cluster_hold(cluster) ? DCTF_OK : DCTF_ERR_SHUTTING_DOWN;
        if (!err) {
            err = fetch_from(cluster, &search.best, max, end_ms > now_ms ? end_ms - now_ms : 1, &body, &len);
            dctf_cluster_release(cluster);
        }
    }
    if (!err && body)
        err = tell(cluster, body, len, max, each, ctx, out);
    free(body);
    return err;
}
