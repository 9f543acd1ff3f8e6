/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/view.h"

#include "base/version.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Of the hash and what it is taken of: nodes that place otherwise must not take each other for homes. */
#define LAYOUT_VERSION 1u
/* Unequal weights multiply traffic too: no member weighs more than this many medians. */
#define WEIGHT_CAP 4u

struct dctf_view {
    atomic_uint refs;
    uint32_t count;
    uint32_t self;
    uint64_t hash;
    struct dctf_node *nodes; /* by id */
    uint64_t *id_hashes;     /* by index */
    double *weights;         /* by index; in medians, capped */
    uint32_t *by_joined; /* indices of members with a weight, in the order they joined; empty when unknown */
    uint32_t joined_count;
};

static int compare_ids(const void *a, const void *b)
{
    return strcmp(((const struct dctf_node *)a)->id, ((const struct dctf_node *)b)->id);
}

static int compare_numbers(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;

    return left < right ? -1 : left > right;
}

static int compare_joined(const void *a, const void *b, void *context)
{
    const struct dctf_node *nodes = context;
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;

    if (nodes[left].joined_ms != nodes[right].joined_ms)
        return nodes[left].joined_ms < nodes[right].joined_ms ? -1 : 1;
    return left < right ? -1 : left > right;
}

static enum dctf_err view_alloc(size_t count, struct dctf_view **out)
{
    struct dctf_view *view = calloc(1, sizeof(*view));

    *out = NULL;
    if (!view)
        return DCTF_ERR_NO_MEMORY;
    atomic_init(&view->refs, 1);
    view->count = (uint32_t)count;
    view->nodes = calloc(count + 1, sizeof(*view->nodes));
    view->id_hashes = calloc(count + 1, sizeof(*view->id_hashes));
    view->weights = calloc(count + 1, sizeof(*view->weights));
    view->by_joined = calloc(count + 1, sizeof(*view->by_joined));
    if (!view->nodes || !view->id_hashes || !view->weights || !view->by_joined) {
        dctf_view_unref(view);
        return DCTF_ERR_NO_MEMORY;
    }
    *out = view;
    return DCTF_OK;
}

/* Median of the weights of those that have one; 1 when none has. `scratch` holds `count`. */
static uint64_t median_weight(const struct dctf_view *view, uint64_t *scratch)
{
    size_t used = 0;

    for (uint32_t i = 0; i < view->count; i++) {
        if (view->nodes[i].weight)
            scratch[used++] = view->nodes[i].weight;
    }
    if (!used)
        return 1;
    qsort(scratch, used, sizeof(*scratch), compare_numbers);
    return scratch[used / 2];
}

/* A hash of what placement depends on. Zones count: they decide who may be asked. */
static uint64_t hash_of(const struct dctf_view *view)
{
    uint64_t hash = LAYOUT_VERSION;

    for (uint32_t i = 0; i < view->count; i++) {
        const struct dctf_node *node = &view->nodes[i];

        hash = dctf_hash64_seed(node->id, strlen(node->id) + 1, hash);
        hash = dctf_hash64_seed(node->zone, strlen(node->zone) + 1, hash);
        hash = dctf_hash64_seed(&node->weight, sizeof(node->weight), hash);
    }
    return hash;
}

static void order_by_joined(struct dctf_view *view)
{
    for (uint32_t i = 0; i < view->count; i++) {
        if (!view->nodes[i].weight)
            continue;
        if (!view->nodes[i].joined_ms) { /* one that is not known spoils the order */
            view->joined_count = 0;
            return;
        }
        view->by_joined[view->joined_count++] = i;
    }
    if (view->joined_count)
        qsort_r(view->by_joined, view->joined_count, sizeof(*view->by_joined), compare_joined, view->nodes);
}

enum dctf_err dctf_view_build(
    const struct dctf_node *nodes, size_t count, const char *self, struct dctf_view **out)
{
    struct dctf_view *view;
    uint64_t median;
    enum dctf_err err;

    *out = NULL;
    if (count > DCTF_NODES_MAX)
        return DCTF_ERR_OPTION_VALUE;
    err = view_alloc(count, &view);
    if (err)
        return err;
    if (count) {
        memcpy(view->nodes, nodes, count * sizeof(*nodes));
        qsort(view->nodes, count, sizeof(*nodes), compare_ids);
    }
    for (size_t i = 1; i < count; i++) {
        if (!strcmp(view->nodes[i - 1].id, view->nodes[i].id)) {
            dctf_view_unref(view);
            return DCTF_ERR_OPTION_VALUE;
        }
    }
    median = median_weight(view, view->id_hashes); /* filled below */
    for (uint32_t i = 0; i < view->count; i++) {
        double weight = (double)view->nodes[i].weight / (double)median;

        view->id_hashes[i] = dctf_hash64_seed(view->nodes[i].id, strlen(view->nodes[i].id), LAYOUT_VERSION);
        view->weights[i] = weight < WEIGHT_CAP ? weight : WEIGHT_CAP;
    }
    order_by_joined(view);
    view->hash = hash_of(view);
    view->self = dctf_view_find(view, self);
    *out = view;
    return DCTF_OK;
}

struct dctf_view *dctf_view_ref(struct dctf_view *view)
{
    atomic_fetch_add_explicit(&view->refs, 1, memory_order_relaxed);
    return view;
}

void dctf_view_unref(struct dctf_view *view)
{
    if (!view || atomic_fetch_sub_explicit(&view->refs, 1, memory_order_acq_rel) > 1)
        return;
    free(view->nodes);
    free(view->id_hashes);
    free(view->weights);
    free(view->by_joined);
    free(view);
}

enum dctf_err dctf_view_within_zone(struct dctf_view *view, struct dctf_view **out)
{
    const struct dctf_node *own = view->self == DCTF_NODE_NONE ? NULL : &view->nodes[view->self];
    enum dctf_err err;

    *out = NULL;
    if (!own || !*own->zone) {
        *out = dctf_view_ref(view);
        return DCTF_OK;
    }
    err = dctf_view_build(view->nodes, view->count, own->id, out);
    for (uint32_t i = 0; !err && i < view->count; i++) {
        if (strcmp(view->nodes[i].zone, own->zone) != 0)
            (*out)->weights[i] = 0;
    }
    return err;
}

size_t dctf_view_count(const struct dctf_view *view)
{
    return view->count;
}

const struct dctf_node *dctf_view_node(const struct dctf_view *view, uint32_t i)
{
    return &view->nodes[i];
}

uint32_t dctf_view_self(const struct dctf_view *view)
{
    return view->self;
}

uint32_t dctf_view_find(const struct dctf_view *view, const char *id)
{
    uint32_t low = 0, high = view->count;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = strcmp(view->nodes[middle].id, id);

        if (order == 0)
            return middle;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return DCTF_NODE_NONE;
}

uint64_t dctf_view_hash(const struct dctf_view *view)
{
    return view->hash;
}

uint64_t dctf_extent_key(uint64_t dataset, const char *key, const char *etag, uint64_t extent)
{
    uint64_t hash = dctf_hash64_seed(key, strlen(key) + 1, dataset ^ LAYOUT_VERSION);

    hash = dctf_hash64_seed(etag, strlen(etag) + 1, hash);
    return dctf_hash64_seed(&extent, sizeof(extent), hash);
}

/* Finaliser of splitmix64 (Steele et al. 2014): every bit of the input changes half of the output. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* −w/ln u with u uniform in (0, 1); 0 for a member without a weight. */
static double score(const struct dctf_view *view, uint32_t i, uint64_t extent_key)
{
    double u = ((double)(mix(extent_key ^ view->id_hashes[i]) >> 11) + 0.5) * 0x1p-53;

    return view->weights[i] > 0 ? -view->weights[i] / log(u) : 0;
}

size_t dctf_view_rank(const struct dctf_view *view, uint64_t extent_key, uint32_t *out, size_t max)
{
    double best[16];
    size_t count = 0;

    if (max > sizeof(best) / sizeof(best[0]))
        max = sizeof(best) / sizeof(best[0]);
    for (uint32_t i = 0; i < view->count && max; i++) {
        double value = score(view, i, extent_key);
        size_t at = count;

        if (value <= 0 || (count == max && value <= best[max - 1]))
            continue;
        if (count == max)
            at = max - 1;
        else
            count++;
        while (at > 0 && best[at - 1] < value) {
            best[at] = best[at - 1];
            out[at] = out[at - 1];
            at--;
        }
        best[at] = value;
        out[at] = i;
    }
    return count;
}

size_t dctf_view_place(const uint32_t *ranks, size_t count, uint32_t node)
{
    size_t place = 0;

    while (place < count && ranks[place] != node)
        place++;
    return place;
}

static bool same_label(const char *a, const char *b)
{
    return *a && !strcmp(a, b);
}

/* Of two addresses "host:port". */
static bool same_host(const char *a, const char *b)
{
    const char *a_end = strrchr(a, ':'), *b_end = strrchr(b, ':');

    return a_end && b_end && a_end - a == b_end - b && !strncmp(a, b, (size_t)(a_end - a));
}

enum dctf_near dctf_view_near(const struct dctf_view *view, uint32_t node)
{
    const struct dctf_node *other = &view->nodes[node], *own;

    if (view->self == DCTF_NODE_NONE)
        return DCTF_NEAR_UNKNOWN;
    own = &view->nodes[view->self];
    if (*own->zone && *other->zone && strcmp(own->zone, other->zone) != 0)
        return DCTF_NEAR_OTHER_ZONE; /* whatever their hosts are called */
    if (same_label(own->host, other->host) || same_host(own->addr, other->addr))
        return DCTF_NEAR_HOST;
    if (same_label(own->rack, other->rack))
        return DCTF_NEAR_RACK;
    return *own->zone && *other->zone ? DCTF_NEAR_ZONE : DCTF_NEAR_UNKNOWN;
}

/* How much a candidate shares with those chosen: 2 a host, 1 a rack, 0 nothing known. */
static unsigned closeness(
    const struct dctf_view *view, uint32_t candidate, const uint32_t *chosen, size_t count)
{
    const struct dctf_node *node = &view->nodes[candidate];
    unsigned most = 0;

    for (size_t i = 0; i < count; i++) {
        const struct dctf_node *other = &view->nodes[chosen[i]];

        if (same_label(node->host, other->host))
            return 2;
        if (same_label(node->rack, other->rack) && !strcmp(node->zone, other->zone))
            most = 1;
    }
    return most;
}

/* The best of `ranked` that is not chosen; DCTF_NODE_NONE: none is left. *closeness is what it shares. */
static uint32_t pick_ranked(const struct dctf_view *view, const uint32_t *ranked, size_t ranks,
    const uint32_t *chosen, size_t count, unsigned *closeness_out)
{
    uint32_t pick = DCTF_NODE_NONE;

    *closeness_out = 3;
    for (size_t i = 0; i < ranks; i++) {
        unsigned close;

        if (dctf_view_place(chosen, count, ranked[i]) < count)
            continue;
        close = closeness(view, ranked[i], chosen, count);
        if (close < *closeness_out) {
            *closeness_out = close;
            pick = ranked[i];
        }
    }
    return pick;
}

/* The best of all members that shares less than `limit`; DCTF_NODE_NONE when none does. */
static uint32_t pick_apart(
    const struct dctf_view *view, uint64_t extent_key, const uint32_t *chosen, size_t count, unsigned limit)
{
    uint32_t pick = DCTF_NODE_NONE;
    double best = 0;

    for (uint32_t i = 0; i < view->count; i++) {
        double value = score(view, i, extent_key);
        unsigned close;

        if (value <= 0 || dctf_view_place(chosen, count, i) < count)
            continue;
        close = closeness(view, i, chosen, count);
        if (close > limit || (close == limit && (pick == DCTF_NODE_NONE || value <= best)))
            continue;
        limit = close;
        best = value;
        pick = i;
    }
    return pick;
}

size_t dctf_view_replicas(const struct dctf_view *view, uint64_t extent_key, uint32_t *out, size_t copies)
{
    uint32_t ranked[16];
    size_t ranks = dctf_view_rank(view, extent_key, ranked, sizeof(ranked) / sizeof(ranked[0]));
    size_t count = 0;

    while (count < copies && count < ranks) {
        unsigned close;
        uint32_t pick = pick_ranked(view, ranked, ranks, out, count, &close);

        if (close &&
            ranks == sizeof(ranked) / sizeof(ranked[0])) { /* few racks: chance may have left one out */
            uint32_t apart = pick_apart(view, extent_key, out, count, close);

            pick = apart != DCTF_NODE_NONE ? apart : pick;
        }
        out[count++] = pick;
    }
    return count;
}

size_t dctf_view_past_homes(const struct dctf_view *view, uint64_t extent_key, uint32_t *out, size_t max)
{
    uint32_t homes[64];
    size_t count = 0, used = 0;
    double best = 0;

    for (uint32_t i = 0; i < view->joined_count; i++) {
        double value = score(view, view->by_joined[i], extent_key);

        if (value <= best)
            continue;
        best = value;
        if (count == sizeof(homes) / sizeof(homes[0])) /* about ln N are to be expected: the oldest goes */
            memmove(homes, homes + 1, (--count) * sizeof(homes[0]));
        homes[count++] = view->by_joined[i];
    }
    for (size_t i = count; i-- > 0 && used < max;) {
        if (i + 1 < count) /* the last is the present home */
            out[used++] = homes[i];
    }
    return used;
}
