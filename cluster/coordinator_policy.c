/* SPDX-License-Identifier: Apache-2.0
 *
 * Tables in 64 parts. The leader writes the parts that changed, each with a check that it still leads, and
 * then tells the head; a part's tag is never used twice. A reader compares tags and reads what is new.
 */
#include "cluster/coordinator_internal.h"

#include "base/log.h"
#include "base/version.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Calls per step, so that heartbeats come in between. */
#define PARTS_PER_STEP 4u
#define READ_WITHIN_MS 2000u
/* Parts expire when the cluster is gone for good, and are written anew before. */
#define PART_LIFE_MS "604800000"
#define WRITE_WHOLE_MS (24u * 3600 * 1000)

static const char write_text[] =
    "if redis.call('GET', KEYS[1]) ~= ARGV[1] .. ' ' .. ARGV[2] then return 0 end\n"
    "redis.call('SET', KEYS[3], ARGV[5], 'PX', " PART_LIFE_MS ")\n"
    "redis.call('HSET', KEYS[2], ARGV[3], ARGV[1] .. '.' .. ARGV[4])\n"
    "redis.call('PEXPIRE', KEYS[2], " PART_LIFE_MS ")\n"
    "return 1\n";

static const char commit_text[] =
    "if redis.call('GET', KEYS[1]) ~= ARGV[1] .. ' ' .. ARGV[2] then return 0 end\n"
    "redis.call('HSET', KEYS[2], 'p', ARGV[3], 'pf', ARGV[1])\n"
    "return 1\n";

void dctf_policy_scripts(struct dctf_coordinator *coordinator)
{
    coordinator->write_script.text = write_text;
    coordinator->commit_script.text = commit_text;
}

/* --- writing --- */

static size_t part_range(
    const struct dctf_policy_entry *table, size_t count, unsigned part, size_t *out_first)
{
    size_t first = 0, end;

    while (first < count && dctf_policy_part_of(table[first].feature_id) < part)
        first++;
    for (end = first; end < count && dctf_policy_part_of(table[end].feature_id) == part;)
        end++;
    *out_first = first;
    return end - first;
}

static uint64_t sum_of(const struct dctf_policy_entry *entries, size_t count)
{
    uint64_t sum = count;

    for (size_t i = 0; i < count; i++) {
        uint64_t pair[2] = {entries[i].feature_id, entries[i].class};

        sum = dctf_hash64_seed(pair, sizeof(pair), sum);
    }
    return sum;
}

void dctf_policy_writer_take(
    struct dctf_coordinator *coordinator, struct dctf_policy_entry *table, size_t count)
{
    struct dctf_policy_writer *writer = &coordinator->writer;

    free(writer->table);
    writer->table = table;
    writer->count = count;
    for (unsigned part = 0; part < DCTF_POLICY_PARTS; part++) {
        size_t first, entries = part_range(table, count, part, &first);

        if (sum_of(table + first, entries) != writer->sums[part])
            writer->dirty |= UINT64_C(1) << part;
    }
}

static void lose_lead(struct dctf_coordinator *coordinator)
{
    pthread_mutex_lock(&coordinator->lock);
    coordinator->lead_until_ms = 0;
    pthread_mutex_unlock(&coordinator->lock);
    coordinator->lead_due_ms = 0;
}

/* 1: done; 0: this node does not lead any more. */
enum dctf_err dctf_coordinator_wrote(struct dctf_coordinator *coordinator, struct dctf_redis *redis,
    struct dctf_redis_value *answer, bool *done)
{
    uint64_t number;
    bool known = dctf_redis_value_u64(answer, &number);

    dctf_redis_value_free(answer);
    *done = known && number;
    if (!known) {
        dctf_redis_distrust(redis, "the answer to a write makes no sense");
        return DCTF_ERR_COORDINATOR_ANSWER;
    }
    if (!number)
        lose_lead(coordinator);
    return DCTF_OK;
}

static enum dctf_err write_part(
    struct dctf_coordinator *coordinator, struct dctf_redis *redis, unsigned part, bool *done)
{
    struct dctf_policy_writer *writer = &coordinator->writer;
    char lead[DCTF_COORDINATOR_KEY_MAX + 1], index[DCTF_COORDINATOR_KEY_MAX + 1],
        key[DCTF_COORDINATOR_KEY_MAX + 1];
    char name[8], fence[24], number[8], version[24];
    const char *words[] = {
        lead, index, key, fence, coordinator->me, number, version, (const char *)coordinator->buf};
    struct dctf_part_head head = {.fence = writer->fence, .version = ++writer->version, .part = part};
    struct dctf_redis_value *answer;
    size_t lens[8], first;
    uint64_t sum;
    enum dctf_err err;

    head.count = part_range(writer->table, writer->count, part, &first);
    sum = sum_of(writer->table + first, head.count);
    if (head.count > DCTF_POLICY_PART_MAX) {
        dctf_log(DCTF_LOG_WARN, "coordinator", "op=publish part=%u entries=%zu only %u are told", part,
            head.count, DCTF_POLICY_PART_MAX);
        head.count = DCTF_POLICY_PART_MAX;
    }
    dctf_coordinator_key(coordinator, "lead", lead);
    dctf_coordinator_key(coordinator, "pidx", index);
    snprintf(name, sizeof(name), "p:%u", part);
    dctf_coordinator_key(coordinator, name, key);
    snprintf(fence, sizeof(fence), "%" PRIu64, head.fence);
    snprintf(number, sizeof(number), "%u", part);
    snprintf(version, sizeof(version), "%" PRIu64, head.version);
    for (int i = 0; i < 8; i++)
        lens[i] =
            i == 7 ? dctf_part_encode(&head, writer->table + first, coordinator->buf) : strlen(words[i]);
    err = dctf_redis_eval(redis, &coordinator->write_script, 3, 8, words, lens, &answer);
    if (!err)
        err = dctf_coordinator_wrote(coordinator, redis, answer, done);
    if (!err && *done)
        writer->sums[part] = sum;
    return err;
}

static enum dctf_err commit(struct dctf_coordinator *coordinator, struct dctf_redis *redis)
{
    struct dctf_policy_writer *writer = &coordinator->writer;
    char lead[DCTF_COORDINATOR_KEY_MAX + 1], head[DCTF_COORDINATOR_KEY_MAX + 1], fence[24], version[24];
    const char *words[] = {lead, head, fence, coordinator->me, version};
    struct dctf_redis_value *answer;
    bool done = false;
    enum dctf_err err;

    dctf_coordinator_key(coordinator, "lead", lead);
    dctf_coordinator_key(coordinator, "head", head);
    snprintf(fence, sizeof(fence), "%" PRIu64, writer->fence);
    snprintf(version, sizeof(version), "%" PRIu64, writer->version);
    err = dctf_redis_eval(redis, &coordinator->commit_script, 2, 5, words, NULL, &answer);
    if (!err)
        err = dctf_coordinator_wrote(coordinator, redis, answer, &done);
    if (!err && done) {
        writer->commit = false;
        coordinator->head.policy = writer->version; /* until the next poll says so */
        coordinator->head.policy_fence = writer->fence;
    }
    return err;
}

/* What has to be written whatever the table is: everything, under a new fence, after a loss, and once a day.
 */
static void notice_loss(struct dctf_coordinator *coordinator, uint64_t fence)
{
    struct dctf_policy_writer *writer = &coordinator->writer;
    uint64_t now_ms = dctf_coordinator_now_ms(coordinator);
    bool told = !writer->dirty && !writer->commit && writer->fence;
    bool lost = told && (coordinator->head.policy != writer->version ||
                            coordinator->head.policy_fence != writer->fence);

    if (writer->fence == fence && !lost && now_ms - writer->whole_ms < WRITE_WHOLE_MS)
        return;
    writer->fence = fence;
    writer->dirty = UINT64_MAX;
    writer->whole_ms = now_ms;
    if (writer->version < coordinator->head.policy)
        writer->version = coordinator->head.policy;
}

enum dctf_err dctf_policy_writer_step(
    struct dctf_coordinator *coordinator, struct dctf_redis *redis, uint64_t fence)
{
    struct dctf_policy_writer *writer = &coordinator->writer;
    enum dctf_err err = DCTF_OK;
    bool done = true;

    if (!writer->table)
        return DCTF_OK;
    notice_loss(coordinator, fence);
    for (unsigned i = 0; !err && done && writer->dirty && i < PARTS_PER_STEP; i++) {
        unsigned part = (unsigned)__builtin_ctzll(writer->dirty);

        writer->commit = true;
        err = write_part(coordinator, redis, part, &done);
        if (!err && done)
            writer->dirty &= ~(UINT64_C(1) << part);
    }
    if (!err && done && !writer->dirty && writer->commit)
        err = commit(coordinator, redis);
    return err;
}

/* --- reading --- */

void dctf_policy_reader_head(struct dctf_coordinator *coordinator)
{
    struct dctf_policy_reader *reader = &coordinator->reader;
    uint64_t fence = coordinator->head.policy_fence, version = coordinator->head.policy, highest;

    pthread_mutex_lock(&coordinator->lock);
    highest = coordinator->highest;
    pthread_mutex_unlock(&coordinator->lock);
    if (!fence || fence < highest || fence < reader->fence ||
        (fence == reader->fence && version <= reader->version))
        return; /* nothing there, nothing new, or from before */
    if (fence == reader->next_fence && version == reader->next_version)
        return;
    if (!reader->next_fence)
        reader->due_ms =
            dctf_coordinator_now_ms(coordinator) + dctf_rng_below(&coordinator->rng, READ_WITHIN_MS + 1);
    reader->next_fence = fence;
    reader->next_version = version;
    reader->indexed = false;
}

bool dctf_coordinator_table_known(const struct dctf_coordinator *coordinator)
{
    return coordinator->head_known && !coordinator->reader.next_fence;
}

static void note_tag(struct dctf_policy_reader *reader, const struct dctf_redis_value *number,
    const struct dctf_redis_value *tag)
{
    uint64_t part;

    if (!dctf_redis_value_u64(number, &part) || part >= DCTF_POLICY_PARTS || tag->type != DCTF_REDIS_STRING ||
        !tag->len || tag->len >= sizeof(reader->wanted_tags[0]))
        return;
    memcpy(reader->wanted_tags[part], tag->text, tag->len + 1);
}

static enum dctf_err read_index(struct dctf_coordinator *coordinator, struct dctf_redis *redis)
{
    struct dctf_policy_reader *reader = &coordinator->reader;
    char key[DCTF_COORDINATOR_KEY_MAX + 1];
    const char *words[] = {"HGETALL", key};
    struct dctf_redis_value *answer;
    enum dctf_err err;

    dctf_coordinator_key(coordinator, "pidx", key);
    err = dctf_redis_call(redis, 2, words, NULL, &answer);
    if (err)
        return err;
    memset(reader->wanted_tags, 0, sizeof(reader->wanted_tags));
    for (size_t i = 0; answer->type == DCTF_REDIS_ARRAY && i + 1 < answer->count; i += 2)
        note_tag(reader, answer->items[i], answer->items[i + 1]);
    dctf_redis_value_free(answer);
    reader->wanted = 0;
    for (unsigned part = 0; part < DCTF_POLICY_PARTS; part++) {
        if (!*reader->wanted_tags[part])
            reader->parts[part].count = 0;
        else if (strcmp(reader->parts[part].tag, reader->wanted_tags[part]) != 0)
            reader->wanted |= UINT64_C(1) << part;
    }
    reader->indexed = true;
    return DCTF_OK;
}

static enum dctf_err keep_part(struct dctf_policy_reader *reader, unsigned part, const void *data, size_t len)
{
    struct dctf_policy_entry *entries = calloc(DCTF_POLICY_PART_MAX, sizeof(*entries)), *fit;
    struct dctf_part_head head;

    if (!entries)
        return DCTF_ERR_NO_MEMORY;
    if (!dctf_part_decode(data, len, &head, entries) || head.part != part || head.fence < reader->fence) {
        free(entries);
        return DCTF_ERR_COORDINATOR_ANSWER;
    }
    fit = realloc(entries, (head.count + 1) * sizeof(*fit));
    free(reader->parts[part].entries);
    reader->parts[part].entries = fit ? fit : entries;
    reader->parts[part].count = head.count;
    return DCTF_OK;
}

static enum dctf_err read_part(struct dctf_coordinator *coordinator, struct dctf_redis *redis, unsigned part)
{
    struct dctf_policy_reader *reader = &coordinator->reader;
    char key[DCTF_COORDINATOR_KEY_MAX + 1], name[8];
    const char *words[] = {"GET", key};
    struct dctf_redis_value *answer;
    enum dctf_err err;

    snprintf(name, sizeof(name), "p:%u", part);
    dctf_coordinator_key(coordinator, name, key);
    err = dctf_redis_call(redis, 2, words, NULL, &answer);
    if (err)
        return err;
    err = answer->type == DCTF_REDIS_STRING ? keep_part(reader, part, answer->text, answer->len)
                                            : DCTF_ERR_COORDINATOR_ANSWER;
    dctf_redis_value_free(answer);
    reader->wanted &= ~(UINT64_C(1) << part);
    if (err) { /* what it was stays; the next table tries again */
        reader->parts[part].tag[0] = '\0';
        dctf_log(DCTF_LOG_WARN, "coordinator", "op=policy part=%u err=%d passed over", part, err);
        return DCTF_OK;
    }
    memcpy(reader->parts[part].tag, reader->wanted_tags[part], sizeof(reader->parts[part].tag));
    return DCTF_OK;
}

static void tell_table(struct dctf_coordinator *coordinator, bool grew)
{
    struct dctf_policy_reader *reader = &coordinator->reader;
    struct dctf_coordinator_listener listener;
    struct dctf_policy_entry *table;
    size_t count = 0;

    for (unsigned part = 0; part < DCTF_POLICY_PARTS; part++)
        count += reader->parts[part].count;
    table = calloc(count + 1, sizeof(*table));
    if (!table) {
        dctf_log(DCTF_LOG_ERROR, "coordinator", "op=policy err=%d the old table stays", DCTF_ERR_NO_MEMORY);
        return;
    }
    count = 0;
    for (unsigned part = 0; part < DCTF_POLICY_PARTS; part++) {
        const struct dctf_policy_part *from = &reader->parts[part];

        if (from->count)
            memcpy(table + count, from->entries, from->count * sizeof(*table));
        count += from->count;
    }
    if (dctf_coordinator_call_begin(coordinator, &listener)) {
        /* What was read before it listened may be older than what it knows. */
        bool news = reader->fence >= listener.fence;

        if (news && grew && listener.fence_grew)
            listener.fence_grew(listener.ctx, reader->fence);
        if (news && listener.policy)
            listener.policy(listener.ctx, table, count, reader->fence, reader->version);
        dctf_coordinator_call_end(coordinator);
    }
    free(table);
}

/* Who listens anew has heard nothing yet. */
void dctf_policy_reader_retell(struct dctf_coordinator *coordinator)
{
    struct dctf_policy_reader *reader = &coordinator->reader;
    uint64_t known;
    bool due;

    pthread_mutex_lock(&coordinator->lock);
    due = coordinator->retell;
    coordinator->retell = false;
    known = coordinator->listener.fence;
    pthread_mutex_unlock(&coordinator->lock);
    if (due && reader->fence)
        tell_table(coordinator, reader->fence > known);
}

static void accept_table(struct dctf_coordinator *coordinator)
{
    struct dctf_policy_reader *reader = &coordinator->reader;
    bool grew;

    reader->fence = reader->next_fence;
    reader->version = reader->next_version;
    reader->next_fence = 0;
    pthread_mutex_lock(&coordinator->lock);
    grew = reader->fence > coordinator->highest;
    if (grew)
        coordinator->highest = reader->fence;
    pthread_mutex_unlock(&coordinator->lock);
    tell_table(coordinator, grew);
}

enum dctf_err dctf_policy_reader_step(struct dctf_coordinator *coordinator, struct dctf_redis *redis)
{
    struct dctf_policy_reader *reader = &coordinator->reader;
    enum dctf_err err = DCTF_OK;

    if (!reader->next_fence || dctf_coordinator_now_ms(coordinator) < reader->due_ms)
        return DCTF_OK;
    if (!reader->indexed)
        err = read_index(coordinator, redis);
    for (unsigned i = 0; !err && reader->wanted && i < PARTS_PER_STEP; i++)
        err = read_part(coordinator, redis, (unsigned)__builtin_ctzll(reader->wanted));
    if (!err && !reader->wanted)
        accept_table(coordinator);
    return err;
}

void dctf_policy_fini(struct dctf_coordinator *coordinator)
{
    free(coordinator->writer.table);
    for (unsigned part = 0; part < DCTF_POLICY_PARTS; part++)
        free(coordinator->reader.parts[part].entries);
}
