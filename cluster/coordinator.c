/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/coordinator_internal.h"

#include "base/log.h"
#include "base/thread.h"
#include "base/version.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INTERVAL_MS 30000u
/* A report outlives so many intervals. */
#define REPORT_LIVES 6u
/* Reports read with one call. */
#define ASK_BATCH 8u

static const char lead_text[] =
    "local held = redis.call('GET', KEYS[1])\n"
    "local fence, who = string.match(held or '', '^(%d+) (.+)$')\n"
    "if who == ARGV[1] and tonumber(fence) >= tonumber(ARGV[3]) then\n"
    "  redis.call('PEXPIRE', KEYS[1], ARGV[2])\n"
    "  return {1, fence}\n"
    "end\n"
    "if fence and who ~= ARGV[1] then return {0, fence} end\n"
    "local t = redis.call('TIME')\n"
    "local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)\n"
    "local last = tonumber(redis.call('HGET', KEYS[2], 'f') or 0) or 0\n"
    "fence = string.format('%.0f', math.max(now, last + 1, tonumber(ARGV[3]) + 1))\n"
    "redis.call('SET', KEYS[1], fence .. ' ' .. ARGV[1], 'PX', ARGV[2])\n"
    "redis.call('HSET', KEYS[2], 'f', fence)\n"
    "return {1, fence}\n";

static const char resign_text[] =
    "local held = redis.call('GET', KEYS[1]) or ''\n"
    "if string.match(held, '^%d+ (.+)$') == ARGV[1] then redis.call('DEL', KEYS[1]) end\n"
    "return 1\n";

/* By the clock, so that it does not repeat after a loss. */
static const char sync_text[] =
    "local t = redis.call('TIME')\n"
    "local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)\n"
    "local last = tonumber(redis.call('HGET', KEYS[1], 'h') or 0) or 0\n"
    "redis.call('HSET', KEYS[1], 'h', string.format('%.0f', math.max(now, last + 1)))\n"
    "return 1\n";

uint64_t dctf_coordinator_now_ms(const struct dctf_coordinator *coordinator)
{
    return dctf_clock_mono_ms(coordinator->place.clock);
}

void dctf_coordinator_key(
    const struct dctf_coordinator *coordinator, const char *name, char out[DCTF_COORDINATOR_KEY_MAX + 1])
{
    snprintf(out, DCTF_COORDINATOR_KEY_MAX + 1, "%s:%s", coordinator->place.tag, name);
}

/* --- start and end --- */

static void coordinator_free(struct dctf_coordinator *coordinator)
{
    dctf_policy_fini(coordinator);
    dctf_exclusion_fini(coordinator);
    free(coordinator->asking);
    free(coordinator->seen);
    free(coordinator->buf);
    free(coordinator->heat);
    free(coordinator->report);
    free(coordinator->publish);
    free(coordinator);
}

enum dctf_err dctf_coordinator_new(const struct dctf_coordinator_place *place, struct dctf_coordinator **out)
{
    struct dctf_coordinator *coordinator = calloc(1, sizeof(*coordinator));
    enum dctf_err err;

    *out = NULL;
    if (!coordinator)
        return DCTF_ERR_NO_MEMORY;
    coordinator->place = *place;
    coordinator->rng.state = dctf_rng_seed();
    coordinator->lead_script.text = lead_text;
    coordinator->resign_script.text = resign_text;
    coordinator->sync_script.text = sync_text;
    dctf_policy_scripts(coordinator);
    dctf_exclusion_scripts(coordinator);
    snprintf(coordinator->me, sizeof(coordinator->me), "%s:%" PRIu64, place->node, place->incarnation);
    coordinator->buf = malloc(DCTF_COORDINATOR_RECORD_MAX);
    coordinator->heat = calloc(DCTF_COORDINATOR_HEAT_MAX, sizeof(*coordinator->heat));
    err = coordinator->buf && coordinator->heat ? dctf_thread_cond_init(&coordinator->idle)
                                                : DCTF_ERR_NO_MEMORY;
    if (err) {
        coordinator_free(coordinator);
        return err;
    }
    pthread_mutex_init(&coordinator->lock, NULL);
    *out = coordinator;
    return DCTF_OK;
}

void dctf_coordinator_free(struct dctf_coordinator *coordinator)
{
    if (!coordinator)
        return;
    pthread_cond_destroy(&coordinator->idle);
    pthread_mutex_destroy(&coordinator->lock);
    coordinator_free(coordinator);
}

/* --- what other threads ask for --- */

void dctf_coordinator_listen(
    struct dctf_coordinator *coordinator, const struct dctf_coordinator_listener *listener)
{
    pthread_mutex_lock(&coordinator->lock);
    while (coordinator->calling)
        pthread_cond_wait(&coordinator->idle, &coordinator->lock);
    coordinator->listening = listener != NULL;
    coordinator->listener = listener ? *listener : (struct dctf_coordinator_listener){.lead = false};
    if (!coordinator->listener.interval_ms)
        coordinator->listener.interval_ms = INTERVAL_MS;
    if (coordinator->highest < coordinator->listener.fence)
        coordinator->highest = coordinator->listener.fence;
    coordinator->retell = listener != NULL;
    pthread_mutex_unlock(&coordinator->lock);
}

bool dctf_coordinator_call_begin(struct dctf_coordinator *coordinator, struct dctf_coordinator_listener *out)
{
    bool listening;

    pthread_mutex_lock(&coordinator->lock);
    listening = coordinator->calling = coordinator->listening;
    *out = coordinator->listener;
    pthread_mutex_unlock(&coordinator->lock);
    return listening;
}

void dctf_coordinator_call_end(struct dctf_coordinator *coordinator)
{
    pthread_mutex_lock(&coordinator->lock);
    coordinator->calling = false;
    pthread_cond_broadcast(&coordinator->idle);
    pthread_mutex_unlock(&coordinator->lock);
}

uint64_t dctf_coordinator_fence(struct dctf_coordinator *coordinator)
{
    uint64_t now_ms = dctf_coordinator_now_ms(coordinator), fence;

    pthread_mutex_lock(&coordinator->lock);
    fence = now_ms < coordinator->lead_until_ms ? coordinator->fence : 0;
    pthread_mutex_unlock(&coordinator->lock);
    return fence;
}

static int compare_passes(const void *a, const void *b)
{
    double left = ((const struct dctf_coordinator_heat *)a)->passes,
           right = ((const struct dctf_coordinator_heat *)b)->passes;

    return left > right ? -1 : left < right;
}

static int compare_features(const void *a, const void *b)
{
    uint64_t left = ((const struct dctf_coordinator_heat *)a)->feature_id,
             right = ((const struct dctf_coordinator_heat *)b)->feature_id;

    return left < right ? -1 : left > right;
}

enum dctf_err dctf_coordinator_report(
    struct dctf_coordinator *coordinator, const struct dctf_coordinator_heat *heat, size_t count)
{
    struct dctf_coordinator_heat *copy = calloc(count + 1, sizeof(*copy));
    size_t kept = 0;

    if (!copy)
        return DCTF_ERR_NO_MEMORY;
    if (count)
        memcpy(copy, heat, count * sizeof(*heat));
    if (count > DCTF_COORDINATOR_HEAT_MAX) {
        qsort(copy, count, sizeof(*copy), compare_passes);
        count = DCTF_COORDINATOR_HEAT_MAX;
    }
    if (count)
        qsort(copy, count, sizeof(*copy), compare_features);
    for (size_t i = 0; i < count; i++) {
        if (kept && copy[kept - 1].feature_id == copy[i].feature_id)
            copy[kept - 1].passes += copy[i].passes;
        else
            copy[kept++] = copy[i];
    }
    pthread_mutex_lock(&coordinator->lock);
    free(coordinator->report);
    coordinator->report = copy;
    coordinator->report_count = kept;
    pthread_mutex_unlock(&coordinator->lock);
    return DCTF_OK;
}

uint64_t dctf_coordinator_reports_written(struct dctf_coordinator *coordinator)
{
    uint64_t written;

    pthread_mutex_lock(&coordinator->lock);
    written = coordinator->reports_written;
    pthread_mutex_unlock(&coordinator->lock);
    return written;
}

enum dctf_err dctf_coordinator_publish(
    struct dctf_coordinator *coordinator, const struct dctf_policy_entry *table, size_t count)
{
    struct dctf_policy_entry *copy;

    if (count > DCTF_COORDINATOR_POLICY_MAX)
        return DCTF_ERR_OPTION_VALUE;
    for (size_t i = 0; i < count; i++) {
        if ((table[i].class != DCTF_POLICY_MID && table[i].class != DCTF_POLICY_HOT) ||
            (i && table[i].feature_id <= table[i - 1].feature_id))
            return DCTF_ERR_OPTION_VALUE;
    }
    copy = calloc(count + 1, sizeof(*copy));
    if (!copy)
        return DCTF_ERR_NO_MEMORY;
    if (count)
        memcpy(copy, table, count * sizeof(*table));
    pthread_mutex_lock(&coordinator->lock);
    free(coordinator->publish);
    coordinator->publish = copy;
    coordinator->publish_count = count;
    pthread_mutex_unlock(&coordinator->lock);
    return DCTF_OK;
}

void dctf_coordinator_sync(struct dctf_coordinator *coordinator)
{
    pthread_mutex_lock(&coordinator->lock);
    coordinator->syncs = true;
    pthread_mutex_unlock(&coordinator->lock);
}

/* --- the head --- */

void dctf_coordinator_head(struct dctf_coordinator *coordinator, const struct dctf_coordinator_head *head)
{
    bool sync = coordinator->head_known && head->hint && head->hint != coordinator->head.hint;
    struct dctf_coordinator_listener listener;
    uint64_t hint = head->hint ? head->hint : coordinator->head.hint; /* a loss is no news */

    coordinator->head = *head;
    coordinator->head.hint = hint;
    coordinator->head_known = true;
    if (sync && dctf_coordinator_call_begin(coordinator, &listener)) {
        if (listener.sync)
            listener.sync(listener.ctx);
        dctf_coordinator_call_end(coordinator);
    }
    dctf_policy_reader_head(coordinator);
}

static enum dctf_err tell_sync(struct dctf_coordinator *coordinator, struct dctf_redis *redis)
{
    char head[DCTF_COORDINATOR_KEY_MAX + 1];
    const char *words[] = {head};
    struct dctf_redis_value *answer;
    enum dctf_err err;
    bool wanted;

    pthread_mutex_lock(&coordinator->lock);
    wanted = coordinator->syncs;
    coordinator->syncs = false;
    pthread_mutex_unlock(&coordinator->lock);
    if (!wanted)
        return DCTF_OK;
    dctf_coordinator_key(coordinator, "head", head);
    err = dctf_redis_eval(redis, &coordinator->sync_script, 1, 1, words, NULL, &answer);
    dctf_redis_value_free(answer);
    if (err)
        dctf_coordinator_sync(coordinator); /* again when it answers */
    return err;
}

/* --- the lease --- */

static enum dctf_err understand_lead(
    struct dctf_coordinator *coordinator, const struct dctf_redis_value *answer, uint64_t sent_ms)
{
    uint64_t lease_ms = coordinator->place.lease_ms, mine, fence, before;

    if (answer->type != DCTF_REDIS_ARRAY || answer->count != 2 ||
        !dctf_redis_value_u64(answer->items[0], &mine) || !dctf_redis_value_u64(answer->items[1], &fence))
        return DCTF_ERR_COORDINATOR_ANSWER;
    pthread_mutex_lock(&coordinator->lock);
    before = coordinator->fence;
    coordinator->fence = mine ? fence : 0;
    coordinator->lead_until_ms = mine ? sent_ms + lease_ms * 2 / 3 : 0;
    pthread_mutex_unlock(&coordinator->lock);
    /* The holder renews at a third of the lease, the others look whether it is free. */
    coordinator->lead_due_ms =
        sent_ms +
        (mine ? lease_ms / 3 : lease_ms * 4 / 5 + dctf_rng_below(&coordinator->rng, lease_ms / 2 + 1));
    if (mine && before != fence)
        dctf_log(DCTF_LOG_INFO, "coordinator", "op=lead fence=%" PRIu64 " this node judges heat", fence);
    else if (!mine && before)
        dctf_log(DCTF_LOG_INFO, "coordinator", "op=lead fence=%" PRIu64 " another node judges heat", fence);
    return DCTF_OK;
}

static enum dctf_err claim(struct dctf_coordinator *coordinator, struct dctf_redis *redis)
{
    uint64_t now_ms = dctf_coordinator_now_ms(coordinator), seen;
    char lead[DCTF_COORDINATOR_KEY_MAX + 1], head[DCTF_COORDINATOR_KEY_MAX + 1], lease[24], known[24];
    const char *words[] = {lead, head, coordinator->me, lease, known};
    struct dctf_redis_value *answer;
    enum dctf_err err;
    bool wanted;

    pthread_mutex_lock(&coordinator->lock);
    wanted = coordinator->listening && coordinator->listener.lead;
    seen = coordinator->highest > coordinator->fence ? coordinator->highest : coordinator->fence;
    pthread_mutex_unlock(&coordinator->lock);
    if (coordinator->writer.fence > seen)
        seen = coordinator->writer.fence;
    if (!wanted || now_ms < coordinator->lead_due_ms)
        return DCTF_OK;
    dctf_coordinator_key(coordinator, "lead", lead);
    dctf_coordinator_key(coordinator, "head", head);
    snprintf(lease, sizeof(lease), "%" PRIu64, coordinator->place.lease_ms);
    snprintf(known, sizeof(known), "%" PRIu64, seen);
    err = dctf_redis_eval(redis, &coordinator->lead_script, 2, 5, words, NULL, &answer);
    if (err)
        return err;
    err = understand_lead(coordinator, answer, now_ms);
    dctf_redis_value_free(answer);
    if (err)
        dctf_redis_distrust(redis, "the answer to a claim makes no sense");
    return err;
}

void dctf_coordinator_end(struct dctf_coordinator *coordinator, struct dctf_redis *redis)
{
    char lead[DCTF_COORDINATOR_KEY_MAX + 1];
    const char *words[] = {lead, coordinator->me};
    struct dctf_redis_value *answer;

    if (!dctf_coordinator_fence(coordinator) ||
        dctf_coordinator_now_ms(coordinator) < dctf_redis_retry_ms(redis))
        return;
    pthread_mutex_lock(&coordinator->lock);
    coordinator->lead_until_ms = 0;
    pthread_mutex_unlock(&coordinator->lock);
    dctf_coordinator_key(coordinator, "lead", lead);
    if (dctf_redis_eval(redis, &coordinator->resign_script, 1, 2, words, NULL, &answer))
        dctf_log(DCTF_LOG_INFO, "coordinator", "op=resign not heard: the lease will end by itself");
    dctf_redis_value_free(answer);
}

/* --- reports --- */

uint64_t dctf_coordinator_interval_ms(struct dctf_coordinator *coordinator)
{
    uint64_t interval;

    pthread_mutex_lock(&coordinator->lock);
    interval = coordinator->listening ? coordinator->listener.interval_ms : INTERVAL_MS;
    pthread_mutex_unlock(&coordinator->lock);
    return interval;
}

static void report_key(
    const struct dctf_coordinator *coordinator, const char *node, char out[DCTF_COORDINATOR_KEY_MAX + 1])
{
    snprintf(out, DCTF_COORDINATOR_KEY_MAX + 1, "%s:h:%s", coordinator->place.tag, node);
}

static enum dctf_err write_report(struct dctf_coordinator *coordinator, struct dctf_redis *redis)
{
    uint64_t now_ms = dctf_coordinator_now_ms(coordinator),
             interval = dctf_coordinator_interval_ms(coordinator);
    struct dctf_report_head head = {.incarnation = coordinator->place.incarnation};
    struct dctf_coordinator_heat *heat;
    char key[DCTF_COORDINATOR_KEY_MAX + 1], life[24];
    const char *words[] = {"SET", key, (const char *)coordinator->buf, "PX", life};
    size_t lens[5];
    struct dctf_redis_value *answer;
    enum dctf_err err;

    if (now_ms < coordinator->report_due_ms)
        return DCTF_OK;
    pthread_mutex_lock(&coordinator->lock);
    heat = coordinator->report;
    head.count = coordinator->report_count;
    coordinator->report = NULL;
    pthread_mutex_unlock(&coordinator->lock);
    if (!heat)
        return DCTF_OK;
    head.seq = ++coordinator->report_seq;
    report_key(coordinator, coordinator->place.node, key);
    snprintf(life, sizeof(life), "%" PRIu64, REPORT_LIVES * interval);
    for (int i = 0; i < 5; i++)
        lens[i] = i == 2 ? dctf_report_encode(&head, heat, coordinator->buf) : strlen(words[i]);
    free(heat);
    err = dctf_redis_call(redis, 5, words, lens, &answer);
    dctf_redis_value_free(answer);
    if (err)
        return err;
    coordinator->report_due_ms = now_ms + interval;
    pthread_mutex_lock(&coordinator->lock);
    coordinator->reports_written++;
    pthread_mutex_unlock(&coordinator->lock);
    return DCTF_OK;
}

/* Was it not read before? Remembers it. */
static bool is_new(
    struct dctf_coordinator *coordinator, const char *node, const struct dctf_report_head *head)
{
    uint64_t hash = dctf_hash64(node, strlen(node));
    struct dctf_seen_report *grown;

    for (size_t i = 0; i < coordinator->seen_count; i++) {
        struct dctf_seen_report *seen = &coordinator->seen[i];

        if (seen->node != hash)
            continue;
        if (head->incarnation < seen->incarnation ||
            (head->incarnation == seen->incarnation && head->seq <= seen->seq))
            return false;
        seen->incarnation = head->incarnation;
        seen->seq = head->seq;
        return true;
    }
    if (coordinator->seen_count == DCTF_NODES_MAX) /* many have come and gone: begin anew */
        coordinator->seen_count = 0;
    grown = realloc(coordinator->seen, (coordinator->seen_count + 1) * sizeof(*grown));
    if (!grown)
        return false;
    coordinator->seen = grown;
    grown[coordinator->seen_count++] = (struct dctf_seen_report){hash, head->incarnation, head->seq};
    return true;
}

static void hear_report(
    struct dctf_coordinator *coordinator, const char *node, const struct dctf_redis_value *value)
{
    struct dctf_coordinator_listener listener;
    struct dctf_report_head head;

    if (value->type != DCTF_REDIS_STRING)
        return;
    if (!dctf_report_decode(value->text, value->len, &head, coordinator->heat)) {
        dctf_log(DCTF_LOG_WARN, "coordinator", "op=report node=%s err=%d makes no sense and is passed over",
            node, DCTF_ERR_COORDINATOR_ANSWER);
        return;
    }
    if (!is_new(coordinator, node, &head) || !dctf_coordinator_call_begin(coordinator, &listener))
        return;
    if (listener.report)
        listener.report(listener.ctx, node, coordinator->heat, head.count);
    dctf_coordinator_call_end(coordinator);
}

static void end_collecting(struct dctf_coordinator *coordinator, bool complete)
{
    struct dctf_coordinator_listener listener;

    free(coordinator->asking);
    coordinator->asking = NULL;
    if (!complete || !dctf_coordinator_call_begin(coordinator, &listener))
        return;
    if (listener.reports_end)
        listener.reports_end(listener.ctx);
    dctf_coordinator_call_end(coordinator);
}

static void begin_collecting(struct dctf_coordinator *coordinator, const struct dctf_member_set *members)
{
    coordinator->asking = calloc(members->count + 1, sizeof(*coordinator->asking));
    if (!coordinator->asking)
        return;
    for (size_t i = 0; i < members->count; i++)
        memcpy(coordinator->asking[i], members->nodes[i].id, sizeof(coordinator->asking[i]));
    coordinator->asking_count = members->count;
    coordinator->asked = 0;
}

/* One batch. */
static enum dctf_err collect(struct dctf_coordinator *coordinator, struct dctf_redis *redis)
{
    char(*nodes)[DCTF_NODE_ID_MAX + 1] = coordinator->asking + coordinator->asked;
    size_t left = coordinator->asking_count - coordinator->asked, count = left < ASK_BATCH ? left : ASK_BATCH;
    char keys[ASK_BATCH][DCTF_COORDINATOR_KEY_MAX + 1];
    const char *words[ASK_BATCH + 1] = {"MGET"};
    struct dctf_redis_value *answer;
    enum dctf_err err;

    for (size_t i = 0; i < count; i++) {
        report_key(coordinator, nodes[i], keys[i]);
        words[i + 1] = keys[i];
    }
    err = dctf_redis_call(redis, (int)count + 1, words, NULL, &answer);
    if (err)
        return err;
    for (size_t i = 0; answer->type == DCTF_REDIS_ARRAY && i < answer->count && i < count; i++)
        hear_report(coordinator, nodes[i], answer->items[i]);
    dctf_redis_value_free(answer);
    coordinator->asked += count;
    if (coordinator->asked == coordinator->asking_count)
        end_collecting(coordinator, true);
    return DCTF_OK;
}

static enum dctf_err collect_when_due(
    struct dctf_coordinator *coordinator, struct dctf_redis *redis, const struct dctf_member_set *members)
{
    uint64_t now_ms = dctf_coordinator_now_ms(coordinator);

    if (!coordinator->asking && members->count && now_ms >= coordinator->collect_due_ms) {
        /* A report lies there for an interval: looking twice as often none is missed. */
        coordinator->collect_due_ms = now_ms + dctf_coordinator_interval_ms(coordinator) / 2;
        begin_collecting(coordinator, members);
    }
    return coordinator->asking ? collect(coordinator, redis) : DCTF_OK;
}

/* --- a step --- */

static void take_published(struct dctf_coordinator *coordinator)
{
    struct dctf_policy_entry *table;
    size_t count;

    pthread_mutex_lock(&coordinator->lock);
    table = coordinator->publish;
    count = coordinator->publish_count;
    coordinator->publish = NULL;
    pthread_mutex_unlock(&coordinator->lock);
    if (table)
        dctf_policy_writer_take(coordinator, table, count);
}

void dctf_coordinator_step(
    struct dctf_coordinator *coordinator, struct dctf_redis *redis, const struct dctf_member_set *members)
{
    enum dctf_err err = tell_sync(coordinator, redis);
    uint64_t fence;

    dctf_policy_reader_retell(coordinator); /* before anything is judged */
    if (!err)
        err = claim(coordinator, redis);
    if (!err)
        err = write_report(coordinator, redis);
    fence = dctf_coordinator_fence(coordinator);
    take_published(coordinator);
    if (!err && fence)
        err = collect_when_due(coordinator, redis, members);
    else if (!fence)
        end_collecting(coordinator, false);
    if (!err && fence)
        err = dctf_policy_writer_step(coordinator, redis, fence);
    if (!err)
        err = dctf_policy_reader_step(coordinator, redis);
    if (!err)
        err = dctf_exclusion_step(coordinator, redis, members);
    if (!err)
        err = dctf_coordinator_paths_step(coordinator, redis);
    if (err)
        dctf_log(DCTF_LOG_DEBUG, "coordinator", "op=step err=%d later", err);
}

uint64_t dctf_coordinator_due_ms(struct dctf_coordinator *coordinator)
{
    const struct dctf_policy_writer *writer = &coordinator->writer;
    const struct dctf_policy_reader *reader = &coordinator->reader;
    uint64_t fence = dctf_coordinator_fence(coordinator);
    bool writing = (writer->dirty || writer->commit) && fence && writer->fence == fence;

    if (coordinator->asking || writing || dctf_exclusion_is_busy(coordinator))
        return dctf_coordinator_now_ms(coordinator);
    return reader->next_fence ? reader->due_ms : UINT64_MAX; /* all else comes with the polls */
}
