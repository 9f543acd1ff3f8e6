/* SPDX-License-Identifier: Apache-2.0
 *
 * Who is left out of placement because the others do not reach it (exclusion.h judges). Every node that does
 * not reach somebody writes whom, with each heartbeat; the leader reads what all wrote, and writes who is
 * left out, under its fence and again now and then. That is what the nodes go by for as long as it is written
 * again: when nobody leads any more, nobody is left out.
 */
#include "cluster/coordinator_internal.h"

#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reports read with one call. */
#define ASK_BATCH 16u
/* Leases: between two judgements, between two writings of the same, until it counts no more. */
#define JUDGE_LEASES(lease_ms) ((lease_ms)*2 / 3)
#define RENEW_LEASES(lease_ms) ((lease_ms)*2)
#define LAPSE_LEASES(lease_ms) ((lease_ms)*6)

static const char write_text[] =
    "if redis.call('GET', KEYS[1]) ~= ARGV[1] .. ' ' .. ARGV[2] then return 0 end\n"
    "if ARGV[3] == '0' then\n"
    "  redis.call('DEL', KEYS[3])\n"
    "  redis.call('HDEL', KEYS[2], 'x', 'xf')\n"
    "else\n"
    "  redis.call('SET', KEYS[3], ARGV[5], 'PX', ARGV[6])\n"
    "  redis.call('HSET', KEYS[2], 'x', ARGV[4], 'xf', ARGV[1])\n"
    "end\n"
    "return 1\n";

void dctf_exclusion_scripts(struct dctf_coordinator *coordinator)
{
    coordinator->exclude_script.text = write_text;
}

/* --- what other threads say --- */

static int compare_unreached(const void *a, const void *b)
{
    uint64_t left = ((const struct dctf_unreached *)a)->node,
             right = ((const struct dctf_unreached *)b)->node;

    return left < right ? -1 : left > right;
}

enum dctf_err dctf_coordinator_unreached(
    struct dctf_coordinator *coordinator, const struct dctf_unreached *entries, size_t count)
{
    struct dctf_unreached *copy = count ? calloc(count, sizeof(*copy)) : NULL;
    size_t kept = 0;

    if (count && !copy)
        return DCTF_ERR_NO_MEMORY;
    if (count) {
        memcpy(copy, entries, count * sizeof(*copy));
        qsort(copy, count, sizeof(*copy), compare_unreached);
    }
    for (size_t i = 0; i < count && kept < DCTF_UNREACHED_MAX; i++) {
        if (!kept || copy[kept - 1].node != copy[i].node)
            copy[kept++] = copy[i];
    }
    pthread_mutex_lock(&coordinator->lock);
    free(coordinator->unreached);
    coordinator->unreached = copy;
    coordinator->unreached_count = kept;
    pthread_mutex_unlock(&coordinator->lock);
    return DCTF_OK;
}

/* --- telling whom this node does not reach --- */

static void unreached_key(
    const struct dctf_coordinator *coordinator, const char *node, char out[DCTF_COORDINATOR_KEY_MAX + 1])
{
    snprintf(out, DCTF_COORDINATOR_KEY_MAX + 1, "%s:u:%s", coordinator->place.tag, node);
}

static enum dctf_err tell(struct dctf_coordinator *coordinator, struct dctf_redis *redis)
{
    struct dctf_exclusion_state *state = &coordinator->exclusion;
    uint64_t now_ms = dctf_coordinator_now_ms(coordinator), lease_ms = coordinator->place.lease_ms;
    char key[DCTF_COORDINATOR_KEY_MAX + 1], life[24];
    const char *set[] = {"SET", key, (const char *)coordinator->buf, "PX", life}, *del[] = {"DEL", key};
    struct dctf_redis_value *answer;
    size_t lens[5] = {3, 0, 0, 2, 0}, count;
    enum dctf_err err;

    if (now_ms < state->tell_due_ms)
        return DCTF_OK;
    pthread_mutex_lock(&coordinator->lock);
    count = coordinator->unreached_count;
    lens[2] = dctf_unreached_encode(coordinator->unreached, count, coordinator->buf);
    pthread_mutex_unlock(&coordinator->lock);
    if (!count && !state->told)
        return DCTF_OK;
    unreached_key(coordinator, coordinator->place.node, key);
    snprintf(life, sizeof(life), "%" PRIu64, lease_ms);
    lens[1] = strlen(key);
    lens[4] = strlen(life);
    err =
        count ? dctf_redis_call(redis, 5, set, lens, &answer) : dctf_redis_call(redis, 2, del, NULL, &answer);
    dctf_redis_value_free(answer);
    if (err)
        return err;
    state->told = count != 0;
    state->tell_due_ms = now_ms + lease_ms / 3;
    return DCTF_OK;
}

/* --- judging --- */

static void drop_reports(struct dctf_exclusion_state *state)
{
    for (size_t i = 0; i < state->report_count; i++)
        free(state->reports[i].entries);
    free(state->reports);
    free(state->asking);
    state->reports = NULL;
    state->report_count = 0;
    state->asking = NULL;
}

static enum dctf_err begin_asking(struct dctf_exclusion_state *state, const struct dctf_member_set *members)
{
    state->asking = calloc(members->count + 1, sizeof(*state->asking));
    state->reports = calloc(members->count + 1, sizeof(*state->reports));
    if (!state->asking || !state->reports) {
        drop_reports(state);
        return DCTF_ERR_NO_MEMORY;
    }
    if (members->count)
        memcpy(state->asking, members->nodes, members->count * sizeof(*state->asking));
    state->asking_count = members->count;
    state->asked = 0;
    return DCTF_OK;
}

static void hear(struct dctf_exclusion_state *state, const char *node, const struct dctf_redis_value *value)
{
    struct dctf_unreached entries[DCTF_UNREACHED_MAX], *copy;
    size_t count;

    if (value->type != DCTF_REDIS_STRING)
        return;
    if (!dctf_unreached_decode(value->text, value->len, entries, &count)) {
        dctf_log(DCTF_LOG_WARN, "coordinator",
            "op=unreached node=%s err=%d makes no sense and is passed over", node,
            DCTF_ERR_COORDINATOR_ANSWER);
        return;
    }
    copy = calloc(count + 1, sizeof(*copy));
    if (!copy)
        return; /* one voice less */
    memcpy(copy, entries, count * sizeof(*copy));
    state->reports[state->report_count++] =
        (struct dctf_unreached_report){dctf_exclusion_id(node), copy, count};
}

/* One batch. */
static enum dctf_err ask(struct dctf_coordinator *coordinator, struct dctf_redis *redis)
{
    struct dctf_exclusion_state *state = &coordinator->exclusion;
    size_t left = state->asking_count - state->asked, count = left < ASK_BATCH ? left : ASK_BATCH;
    char keys[ASK_BATCH][DCTF_COORDINATOR_KEY_MAX + 1];
    const char *words[ASK_BATCH + 1] = {"MGET"};
    struct dctf_redis_value *answer;
    enum dctf_err err;

    for (size_t i = 0; i < count; i++) {
        unreached_key(coordinator, state->asking[state->asked + i].id, keys[i]);
        words[i + 1] = keys[i];
    }
    err = dctf_redis_call(redis, (int)count + 1, words, NULL, &answer);
    if (err)
        return err;
    for (size_t i = 0; answer->type == DCTF_REDIS_ARRAY && i < answer->count && i < count; i++)
        hear(state, state->asking[state->asked + i].id, answer->items[i]);
    dctf_redis_value_free(answer);
    state->asked += count;
    return DCTF_OK;
}

static enum dctf_err write_excluded(
    struct dctf_coordinator *coordinator, struct dctf_redis *redis, const uint64_t *nodes, size_t count)
{
    struct dctf_exclusion_state *state = &coordinator->exclusion;
    struct dctf_excluded_head head = {
        .fence = dctf_coordinator_fence(coordinator), .version = state->version + 1, .count = count};
    char lead[DCTF_COORDINATOR_KEY_MAX + 1], at[DCTF_COORDINATOR_KEY_MAX + 1],
        key[DCTF_COORDINATOR_KEY_MAX + 1];
    char fence[24], number[24], version[24], life[24];
    const char *words[] = {
        lead, at, key, fence, coordinator->me, number, version, (const char *)coordinator->buf, life};
    struct dctf_redis_value *answer;
    size_t lens[9];
    bool done;
    enum dctf_err err;

    if (head.version <= coordinator->head.excluded)
        head.version = coordinator->head.excluded + 1;
    dctf_coordinator_key(coordinator, "lead", lead);
    dctf_coordinator_key(coordinator, "head", at);
    dctf_coordinator_key(coordinator, "x", key);
    snprintf(fence, sizeof(fence), "%" PRIu64, head.fence);
    snprintf(number, sizeof(number), "%zu", count);
    snprintf(version, sizeof(version), "%" PRIu64, head.version);
    snprintf(life, sizeof(life), "%" PRIu64, LAPSE_LEASES(coordinator->place.lease_ms));
    for (int i = 0; i < 9; i++)
        lens[i] = i == 7 ? dctf_excluded_encode(&head, nodes, coordinator->buf) : strlen(words[i]);
    err = dctf_redis_eval(redis, &coordinator->exclude_script, 3, 9, words, lens, &answer);
    if (!err)
        err = dctf_coordinator_wrote(coordinator, redis, answer, &done);
    if (!err && done) {
        state->version = head.version;
        state->written_fence = head.fence;
        state->written_ms = dctf_coordinator_now_ms(coordinator);
    }
    return err;
}

/* What was judged is what all go by already, and was written by this node not long ago. */
static bool is_written(struct dctf_coordinator *coordinator, const uint64_t *nodes, size_t count)
{
    const struct dctf_exclusion_state *state = &coordinator->exclusion;
    uint64_t fence = dctf_coordinator_fence(coordinator), now_ms = dctf_coordinator_now_ms(coordinator);

    if (count != state->count || (count && memcmp(nodes, state->nodes, count * sizeof(*nodes)) != 0))
        return false;
    if (!count)
        return !coordinator->head.excluded;
    return state->written_fence == fence && coordinator->head.excluded_fence == fence &&
           now_ms - state->written_ms < RENEW_LEASES(coordinator->place.lease_ms);
}

static enum dctf_err judge(struct dctf_coordinator *coordinator, struct dctf_redis *redis)
{
    struct dctf_exclusion_state *state = &coordinator->exclusion;
    struct dctf_exclusion_times times = {.now_ms = dctf_coordinator_now_ms(coordinator),
        .after_ms = coordinator->place.exclude_after_ms,
        .calm_ms = state->calm_ms};
    uint64_t *nodes;
    size_t count;
    enum dctf_err err = dctf_exclusion_judge(
        state->asking, state->asking_count, state->reports, state->report_count, &times, &nodes, &count);

    state->calm_ms = times.calm_ms;
    if (err)
        return err;
    if (!is_written(coordinator, nodes, count))
        err = write_excluded(coordinator, redis, nodes, count);
    free(nodes);
    return err;
}

static enum dctf_err judge_when_due(
    struct dctf_coordinator *coordinator, struct dctf_redis *redis, const struct dctf_member_set *members)
{
    struct dctf_exclusion_state *state = &coordinator->exclusion;
    uint64_t now_ms = dctf_coordinator_now_ms(coordinator);
    enum dctf_err err = DCTF_OK;

    if (!state->asking && members->count && now_ms >= state->judge_due_ms) {
        state->judge_due_ms = now_ms + JUDGE_LEASES(coordinator->place.lease_ms);
        err = begin_asking(state, members);
    }
    if (!err && state->asking)
        err = ask(coordinator, redis);
    if (!err && state->asking && state->asked == state->asking_count) {
        err = judge(coordinator, redis);
        drop_reports(state);
    }
    return err;
}

/* --- reading who is left out --- */

static void accept(struct dctf_coordinator *coordinator, const uint64_t *nodes, size_t count)
{
    struct dctf_exclusion_state *state = &coordinator->exclusion;
    uint64_t *copy;

    state->heard_ms = dctf_coordinator_now_ms(coordinator);
    if (count == state->count && (!count || !memcmp(nodes, state->nodes, count * sizeof(*nodes))))
        return;
    copy = calloc(count + 1, sizeof(*copy));
    if (!copy) {
        dctf_log(DCTF_LOG_ERROR, "coordinator", "op=excluded err=%d it stays as it was", DCTF_ERR_NO_MEMORY);
        return;
    }
    if (count)
        memcpy(copy, nodes, count * sizeof(*copy));
    free(state->nodes);
    state->nodes = copy;
    state->count = count;
    state->changed = true;
}

static void understand(struct dctf_coordinator *coordinator, const struct dctf_redis_value *answer)
{
    struct dctf_exclusion_state *state = &coordinator->exclusion;
    uint64_t nodes[DCTF_EXCLUDED_MAX];
    struct dctf_excluded_head head;

    if (answer->type == DCTF_REDIS_NIL) { /* nobody has written it for long */
        accept(coordinator, NULL, 0);
        return;
    }
    if (answer->type != DCTF_REDIS_STRING || !dctf_excluded_decode(answer->text, answer->len, &head, nodes)) {
        dctf_log(DCTF_LOG_WARN, "coordinator", "op=excluded err=%d makes no sense and is passed over",
            DCTF_ERR_COORDINATOR_ANSWER);
        return;
    }
    if (head.fence < state->fence)
        return;
    state->fence = head.fence;
    accept(coordinator, nodes, head.count);
}

static enum dctf_err read_excluded(struct dctf_coordinator *coordinator, struct dctf_redis *redis)
{
    struct dctf_exclusion_state *state = &coordinator->exclusion;
    uint64_t version = coordinator->head.excluded, fence = coordinator->head.excluded_fence;
    char key[DCTF_COORDINATOR_KEY_MAX + 1];
    const char *words[] = {"GET", key};
    struct dctf_redis_value *answer;
    enum dctf_err err;

    if (!coordinator->head_known || (version == state->seen_version && fence == state->seen_fence))
        return DCTF_OK;
    if (!version) { /* nobody is, or the server lost it */
        accept(coordinator, NULL, 0);
    } else if (fence >= state->fence) {
        dctf_coordinator_key(coordinator, "x", key);
        err = dctf_redis_call(redis, 2, words, NULL, &answer);
        if (err)
            return err;
        understand(coordinator, answer);
        dctf_redis_value_free(answer);
    }
    state->seen_version = version;
    state->seen_fence = fence;
    return DCTF_OK;
}

/* Time without the server does not count: nothing is known of the leader then. */
static void note_absence(struct dctf_coordinator *coordinator)
{
    struct dctf_exclusion_state *state = &coordinator->exclusion;
    uint64_t now_ms = dctf_coordinator_now_ms(coordinator);

    if (now_ms - state->stepped_ms > coordinator->place.lease_ms)
        state->heard_ms += now_ms - state->stepped_ms;
    state->stepped_ms = now_ms;
}

static void lapse(struct dctf_coordinator *coordinator)
{
    const struct dctf_exclusion_state *state = &coordinator->exclusion;
    uint64_t now_ms = dctf_coordinator_now_ms(coordinator);

    if (!state->count || now_ms - state->heard_ms < LAPSE_LEASES(coordinator->place.lease_ms))
        return;
    dctf_log(DCTF_LOG_INFO, "coordinator", "op=excluded nobody writes it any more: all are placed again");
    accept(coordinator, NULL, 0);
}

/* --- for the others --- */

enum dctf_err dctf_exclusion_step(
    struct dctf_coordinator *coordinator, struct dctf_redis *redis, const struct dctf_member_set *members)
{
    enum dctf_err err;

    note_absence(coordinator);
    err = tell(coordinator, redis);
    if (!err && dctf_coordinator_fence(coordinator))
        err = judge_when_due(coordinator, redis, members);
    else
        drop_reports(&coordinator->exclusion);
    if (!err)
        err = read_excluded(coordinator, redis);
    if (!err)
        lapse(coordinator);
    return err;
}

bool dctf_exclusion_is_busy(const struct dctf_coordinator *coordinator)
{
    return coordinator->exclusion.asking != NULL;
}

bool dctf_coordinator_excluded(
    const struct dctf_coordinator *coordinator, const uint64_t **nodes, size_t *count)
{
    *nodes = coordinator->exclusion.nodes;
    *count = coordinator->exclusion.count;
    return coordinator->exclusion.changed;
}

void dctf_coordinator_excluded_taken(struct dctf_coordinator *coordinator)
{
    coordinator->exclusion.changed = false;
}

void dctf_exclusion_fini(struct dctf_coordinator *coordinator)
{
    drop_reports(&coordinator->exclusion);
    free(coordinator->exclusion.nodes);
    free(coordinator->unreached);
}
