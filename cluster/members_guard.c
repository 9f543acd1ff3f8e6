/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/members_guard.h"

#include <stdlib.h>
#include <string.h>

#define FEW 2u            /* may always go */
#define SHARE_PERCENT 20u /* of all may go */

struct dctf_guard_missing {
    struct dctf_node node;
    uint64_t gone_ms;
};

void dctf_guard_init(struct dctf_guard *guard, uint64_t window_ms, uint64_t hold_ms, uint64_t lost_ms)
{
    *guard = (struct dctf_guard){.window_ms = window_ms, .hold_ms = hold_ms, .lost_ms = lost_ms};
}

void dctf_guard_fini(struct dctf_guard *guard)
{
    free(guard->missing);
    guard->missing = NULL;
    guard->count = 0;
}

static int compare_nodes(const void *a, const void *b)
{
    return strcmp(((const struct dctf_node *)a)->id, ((const struct dctf_node *)b)->id);
}

static int compare_missing(const void *a, const void *b)
{
    const struct dctf_guard_missing *left = a, *right = b;

    return strcmp(left->node.id, right->node.id);
}

static bool has(const struct dctf_node *nodes, size_t count, const char *id)
{
    struct dctf_node key;

    memcpy(key.id, id, sizeof(key.id));
    return count && bsearch(&key, nodes, count, sizeof(*nodes), compare_nodes);
}

static bool hold_is_over(const struct dctf_guard *guard, uint64_t now_ms)
{
    return guard->held_until_ms && now_ms >= guard->held_until_ms;
}

/* Those missing before that are still so and not yet forgotten, and those that were named last time and are
 * no more; into `made`, which has room for both. */
static size_t collect(const struct dctf_guard *guard, uint64_t now_ms, const struct dctf_node *before,
    size_t before_count, const struct dctf_node *now, size_t now_count, struct dctf_guard_missing *made)
{
    uint64_t keep_ms = guard->held_until_ms ? UINT64_MAX : guard->window_ms;
    size_t known_before = hold_is_over(guard, now_ms) ? 0 : guard->count;
    size_t count = 0, old;

    for (size_t i = 0; i < known_before; i++) {
        const struct dctf_guard_missing *one = &guard->missing[i];

        if (now_ms - one->gone_ms < keep_ms && !has(now, now_count, one->node.id))
            made[count++] = *one;
    }
    old = count;
    for (size_t i = 0; i < before_count; i++) {
        bool known = false;

        if (has(now, now_count, before[i].id))
            continue;
        for (size_t k = 0; k < old && !known; k++)
            known = !strcmp(made[k].node.id, before[i].id);
        if (!known)
            made[count++] = (struct dctf_guard_missing){before[i], now_ms};
    }
    if (count)
        qsort(made, count, sizeof(*made), compare_missing);
    return count;
}

static size_t merge(const struct dctf_node *now, size_t now_count, const struct dctf_guard_missing *held,
    size_t held_count, struct dctf_node *out)
{
    size_t count = 0;

    for (size_t i = 0, k = 0; i < now_count || k < held_count;) {
        if (k == held_count || (i < now_count && strcmp(now[i].id, held[k].node.id) < 0))
            out[count++] = now[i++];
        else
            out[count++] = held[k++].node;
    }
    return count < DCTF_NODES_MAX ? count : DCTF_NODES_MAX;
}

enum dctf_err dctf_guard_apply(struct dctf_guard *guard, uint64_t now_ms, const struct dctf_node *before,
    size_t before_count, const struct dctf_node *now, size_t now_count, bool lost, struct dctf_node **out,
    size_t *out_count)
{
    struct dctf_guard_missing *made = calloc(guard->count + before_count + 1, sizeof(*made));
    size_t count, limit;

    *out = NULL;
    *out_count = 0;
    if (!made)
        return DCTF_ERR_NO_MEMORY;
    count = collect(guard, now_ms, before, before_count, now, now_count, made);
    *out = calloc(now_count + count + 1, sizeof(**out));
    if (!*out) {
        free(made);
        return DCTF_ERR_NO_MEMORY;
    }
    if (hold_is_over(guard, now_ms))
        guard->held_until_ms = 0;
    limit = (now_count + count) * SHARE_PERCENT / 100;
    if (limit < FEW)
        limit = FEW;
    if (!guard->held_until_ms && count > limit)
        guard->held_until_ms = now_ms + guard->hold_ms;
    else if (!guard->held_until_ms && count && lost)
        guard->held_until_ms = now_ms + guard->lost_ms;
    free(guard->missing);
    guard->missing = made;
    guard->count = count;
    if (!count)
        guard->held_until_ms = 0;
    *out_count = merge(now, now_count, made, guard->held_until_ms ? count : 0, *out);
    return DCTF_OK;
}

void dctf_guard_left(struct dctf_guard *guard, const char *id)
{
    for (size_t i = 0; i < guard->count; i++) {
        if (strcmp(guard->missing[i].node.id, id) != 0)
            continue;
        memmove(&guard->missing[i], &guard->missing[i + 1], (guard->count - i - 1) * sizeof(*guard->missing));
        guard->count--;
        return;
    }
}

uint64_t dctf_guard_due_ms(const struct dctf_guard *guard)
{
    return guard->held_until_ms ? guard->held_until_ms : UINT64_MAX;
}
