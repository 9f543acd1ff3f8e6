/* SPDX-License-Identifier: Apache-2.0
 *
 * Members by Redis, which holds nothing that cannot be made again. All keys of a cluster and a dataset are in
 * one slot, {dctf:LAYOUT:CLUSTER:DATASET}:
 *
 *   alive   ZSET    id → end of its lease, ms of the server's clock
 *   nodes   HASH    id → record (members_record.h)
 *   order   HASH    id → "INCARNATION SEQ" of the last heartbeat
 *   mlog    STREAM  who came, changed and went
 *   head    HASH    m: the last id of mlog; f, p, pf, h, x, xf: coordinator_internal.h
 *
 * A heartbeat is one script: it extends the lease, logs what is new, and strikes off up to 16 whose lease is
 * over, so that membership needs no leader. Every poll reads the head; another `m` means to read the log from
 * where it was read to. The entry read last must still be there: if not, the server was emptied, restarted or
 * replaced by a copy that is behind, or the log was trimmed, and the members are read in full.
 *
 * After a connection was made anew the server may have been away for longer than a lease: until all can have
 * found it again, who is not listed is kept.
 */
#include "cluster/members_internal.h"

#include "base/log.h"
#include "base/str.h"
#include "cluster/coordinator_internal.h"
#include "cluster/members_record.h"
#include "cluster/redis.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DETAIL_BYTES 256u
/* Of placement and of what is kept in Redis: nodes of another one do not see each other. */
#define LAYOUT "1"
#define CLUSTER_NAME_MAX 64u
#define LOG_EMPTY "0-0"
#define LOG_BATCH "513" /* the entry read last, and 512 more */
/* Polls and heartbeats that were asked for are at least so far apart. */
#define APART_MS 50u
/* Steps are at least so far apart, whatever fails in them. */
#define STEP_MS 2u
#define BEAT_APART_MS 1000u
/* The members are read in full now and then, whatever the log says. */
#define RESYNC_MS 300000u

static const char beat_text[] =
    "local alive, nodes, order, log, head = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]\n"
    "local id, incarnation, seq = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])\n"
    "local t = redis.call('TIME')\n"
    "local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)\n"
    "local function tell(...)\n"
    "  redis.call('HSET', head, 'm', redis.call('XADD', log, 'MAXLEN', '~', '10000', '*', ...))\n"
    "end\n"
    "local old = redis.call('HGET', order, id)\n"
    "if old then\n"
    "  local i, s = string.match(old, '^(%d+) (%d+)$')\n"
    "  i, s = tonumber(i), tonumber(s)\n"
    "  if i and (incarnation < i or (incarnation == i and seq <= s)) then return {'stale', old} end\n"
    "end\n"
    "if ARGV[7] == 'bye' then\n"
    "  if redis.call('ZREM', alive, id) == 1 then tell('o', 'bye', 'n', id) end\n"
    "  redis.call('HDEL', nodes, id)\n"
    "  redis.call('HDEL', order, id)\n"
    "  return {'bye'}\n"
    "end\n"
    "redis.call('ZADD', alive, string.format('%.0f', now + tonumber(ARGV[5])), id)\n"
    "redis.call('HSET', order, id, ARGV[2] .. ' ' .. ARGV[3])\n"
    "local had = redis.call('HGET', nodes, id)\n"
    "local joined = had and string.match(had, '^(%d+)|')\n"
    "if not joined then\n"
    "  local hint = tonumber(ARGV[6])\n"
    "  joined = string.format('%.0f', (hint > 0 and hint <= now) and hint or now)\n"
    "end\n"
    "local record = joined .. '|' .. ARGV[2] .. '|' .. ARGV[4]\n"
    "if had ~= record then\n"
    "  redis.call('HSET', nodes, id, record)\n"
    "  tell('o', 'set', 'n', id, 'r', record)\n"
    "end\n"
    "local over = redis.call('ZRANGEBYSCORE', alive, '-inf', string.format('%.0f', now), 'LIMIT', 0, 16)\n"
    "for _, dead in ipairs(over) do\n"
    "  redis.call('ZREM', alive, dead)\n"
    "  redis.call('HDEL', nodes, dead)\n"
    "  redis.call('HDEL', order, dead)\n"
    "  tell('o', 'del', 'n', dead)\n"
    "end\n"
    "for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, 604800000) end\n" /* all gone for good */
    "return {'ok', joined}\n";

static const char full_text[] =
    "local alive, nodes, head = KEYS[1], KEYS[2], KEYS[3]\n"
    "local t = redis.call('TIME')\n"
    "local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)\n"
    "local out = {redis.call('HGET', head, 'm') or '" LOG_EMPTY "'}\n"
    "local ids = redis.call('ZRANGEBYSCORE', alive, '(' .. string.format('%.0f', now), '+inf')\n"
    "for i = 1, #ids, 500 do\n"
    "  local last = math.min(i + 499, #ids)\n"
    "  local records = redis.call('HMGET', nodes, unpack(ids, i, last))\n"
    "  for k = i, last do\n"
    "    local record = records[k - i + 1]\n"
    "    if record then\n"
    "      out[#out + 1] = ids[k]\n"
    "      out[#out + 1] = record\n"
    "    end\n"
    "  end\n"
    "end\n"
    "return out\n";

enum key { KEY_ALIVE, KEY_NODES, KEY_ORDER, KEY_LOG, KEY_HEAD, KEYS };
static const char *const key_names[KEYS] = {"alive", "nodes", "order", "mlog", "head"};

struct dctf_members_redis {
    struct dctf_redis *redis;
    struct dctf_coordinator *coordinator;
    struct dctf_redis_script beat, full;
    char keys[KEYS][CLUSTER_NAME_MAX + 48];
    char info[DCTF_MEMBER_INFO_MAX + 1];
    struct dctf_member_set set;
    char log_id[DCTF_MEMBER_LOG_ID_MAX + 1]; /* "": read in full next */
    uint64_t generation;                     /* of the connection */
    uint64_t seq;
    uint64_t joined_ms; /* by the server's clock; 0: not registered */
    /* monotonic */
    uint64_t beat_ok_ms, beat_due_ms, beat_soonest_ms;
    uint64_t polled_ms, poll_due_ms, resync_due_ms;
    uint64_t doubt_until_ms;
    uint64_t stepped_ms;
    bool behind; /* the log has more than was read */
    bool told_stale;
};

/* --- start and end --- */

static bool cluster_name_is_valid(const char *name)
{
    size_t len = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");

    return len && !name[len] && len <= CLUSTER_NAME_MAX;
}

static enum dctf_err check_names(const struct dctf_members_config *config, char *detail)
{
    if (!cluster_name_is_valid(config->cluster)) {
        snprintf(detail, DETAIL_BYTES, "cluster: a name has 1 to %u letters, digits, '.', '_' and '-'",
            CLUSTER_NAME_MAX);
        return DCTF_ERR_OPTION_VALUE;
    }
    if (!dctf_member_id_is_valid(config->self.id, strlen(config->self.id))) {
        snprintf(detail, DETAIL_BYTES, "node: a name has 1 to %u printable characters without spaces",
            DCTF_NODE_ID_MAX);
        return DCTF_ERR_OPTION_VALUE;
    }
    return DCTF_OK;
}

/* What peers will be told to ask: a wildcard would send them to themselves. */
static enum dctf_err check_addr(struct dctf_node *self, char *detail)
{
    struct dctf_address address;
    const char *wrong;

    if (!*self->addr)
        return DCTF_OK;
    wrong = dctf_address_parse(self->addr, strlen(self->addr), 0, &address);
    if (!wrong && (!strcmp(address.host, "0.0.0.0") || !strcmp(address.host, "::")))
        wrong = "peers cannot ask a wildcard address; set advertise";
    if (wrong) {
        snprintf(detail, DETAIL_BYTES, "listen or advertise: %s", wrong);
        return DCTF_ERR_OPTION_VALUE;
    }
    memcpy(self->addr, address.text, sizeof(self->addr));
    return DCTF_OK;
}

static enum dctf_err open_redis(struct dctf_members *members, char *detail, struct dctf_members_redis *redis)
{
    const struct dctf_members_config *config = &members->config;
    struct dctf_redis_config connection = {
        .url = config->redis,
        .user = config->redis_user,
        .password = config->redis_password,
        .ca_file = config->ca_file,
        .clock = &members->clock,
    };
    struct dctf_coordinator_place place = {
        .lease_ms = config->heartbeat_ms * 3,
        .exclude_after_ms = config->exclude_after_ms,
        .clock = &members->clock,
    };
    enum dctf_err err = dctf_member_info_encode(&config->self, redis->info);

    for (int i = 0; i < KEYS; i++)
        snprintf(redis->keys[i], sizeof(redis->keys[i]), "{dctf:" LAYOUT ":%s:%016" PRIx64 "}:%s",
            config->cluster, config->dataset, key_names[i]);
    snprintf(place.tag, sizeof(place.tag), "{dctf:" LAYOUT ":%s:%016" PRIx64 "}", config->cluster,
        config->dataset);
    snprintf(place.node, sizeof(place.node), "%s", config->self.id);
    place.incarnation = config->self.incarnation;
    if (!err)
        err = dctf_redis_new(&connection, detail, &redis->redis);
    if (!err)
        err = dctf_coordinator_new(&place, &redis->coordinator);
    return err;
}

enum dctf_err dctf_members_redis_new(
    struct dctf_members *members, char *detail, struct dctf_members_redis **out)
{
    struct dctf_members_redis *redis;
    enum dctf_err err = check_names(&members->config, detail);

    *out = NULL;
    if (!err)
        err = check_addr(&members->config.self, detail);
    if (err)
        return err;
    redis = calloc(1, sizeof(*redis));
    if (!redis)
        return DCTF_ERR_NO_MEMORY;
    redis->beat.text = beat_text;
    redis->full.text = full_text;
    err = open_redis(members, detail, redis);
    if (err) {
        dctf_members_redis_free(redis);
        return err;
    }
    *out = redis;
    return DCTF_OK;
}

void dctf_members_redis_free(struct dctf_members_redis *redis)
{
    if (!redis)
        return;
    dctf_coordinator_free(redis->coordinator);
    dctf_redis_free(redis->redis);
    dctf_member_set_fini(&redis->set);
    free(redis);
}

struct dctf_coordinator *dctf_members_redis_coordinator(struct dctf_members_redis *redis)
{
    return redis->coordinator;
}

/* --- heartbeat --- */

static void tell_stale(struct dctf_members_redis *redis, const struct dctf_members *members)
{
    if (!redis->told_stale)
        dctf_log(DCTF_LOG_ERROR, "members",
            "op=beat node=%s another process is registered under this name; give each mount its own `node`",
            members->config.self.id);
    redis->told_stale = true;
}

static enum dctf_err understand_beat(
    struct dctf_members *members, const struct dctf_redis_value *answer, uint64_t sent_ms)
{
    struct dctf_members_redis *redis = members->redis;
    uint64_t joined_ms;

    if (answer->type != DCTF_REDIS_ARRAY || !answer->count || answer->items[0]->type != DCTF_REDIS_STRING) {
        dctf_redis_distrust(redis->redis, "a heartbeat's answer makes no sense");
        return DCTF_ERR_COORDINATOR_ANSWER;
    }
    if (!strcmp(answer->items[0]->text, "stale")) {
        tell_stale(redis, members);
        return DCTF_OK;
    }
    if (answer->count == 2 && dctf_redis_value_u64(answer->items[1], &joined_ms)) {
        redis->joined_ms = joined_ms;
        redis->beat_ok_ms = sent_ms;
        redis->told_stale = false;
    }
    return DCTF_OK;
}

static enum dctf_err beat(struct dctf_members *members, const char *mode)
{
    struct dctf_members_redis *redis = members->redis;
    uint64_t now_ms = dctf_members_now_ms(members);
    uint64_t lease_ms = members->config.heartbeat_ms * DCTF_LEASE_BEATS;
    /* A lease that cannot be over yet but is gone was lost with the server's data: the time of joining holds.
     */
    bool lost = redis->joined_ms && now_ms - redis->beat_ok_ms < lease_ms;
    char incarnation[24], seq[24], lease[24], joined[24];
    const char *words[] = {redis->keys[KEY_ALIVE], redis->keys[KEY_NODES], redis->keys[KEY_ORDER],
        redis->keys[KEY_LOG], redis->keys[KEY_HEAD], members->config.self.id, incarnation, seq, redis->info,
        lease, joined, mode};
    struct dctf_redis_value *answer;
    enum dctf_err err;

    snprintf(incarnation, sizeof(incarnation), "%" PRIu64, members->config.self.incarnation);
    snprintf(seq, sizeof(seq), "%" PRIu64, ++redis->seq);
    snprintf(lease, sizeof(lease), "%" PRIu64, lease_ms);
    snprintf(joined, sizeof(joined), "%" PRIu64, lost ? redis->joined_ms : 0);
    err = dctf_redis_eval(
        redis->redis, &redis->beat, 5, sizeof(words) / sizeof(words[0]), words, NULL, &answer);
    if (err)
        return err;
    err = understand_beat(members, answer, now_ms);
    dctf_redis_value_free(answer);
    redis->beat_due_ms = now_ms + dctf_members_jitter(members, members->config.heartbeat_ms);
    redis->beat_soonest_ms = now_ms + BEAT_APART_MS;
    return err;
}

/* --- members --- */

static void heard(struct dctf_members *members)
{
    struct dctf_members_redis *redis = members->redis;
    const char *self = members->config.self.id;
    struct dctf_node own = members->config.self;
    uint64_t now_ms = dctf_members_now_ms(members);

    if (!dctf_member_set_find(&redis->set, self)) {
        /* Struck off, or not on it yet: soon again. Until then the others' view has no self, but ours has. */
        own.joined_ms = redis->joined_ms;
        if (dctf_member_set_put(&redis->set, &own))
            dctf_log(DCTF_LOG_ERROR, "members", "op=view err=%d no room for this node", DCTF_ERR_NO_MEMORY);
        if (redis->beat_due_ms > redis->beat_soonest_ms)
            redis->beat_due_ms = redis->beat_soonest_ms;
    }
    dctf_members_heard(members, redis->set.nodes, redis->set.count, self, now_ms < redis->doubt_until_ms);
}

static void tell_bad(size_t bad)
{
    if (bad)
        dctf_log(DCTF_LOG_WARN, "members", "op=read err=%d records=%zu make no sense and are passed over",
            DCTF_ERR_COORDINATOR_ANSWER, bad);
}

static enum dctf_err read_full(struct dctf_members *members)
{
    struct dctf_members_redis *redis = members->redis;
    const char *words[] = {redis->keys[KEY_ALIVE], redis->keys[KEY_NODES], redis->keys[KEY_HEAD]};
    struct dctf_member_set set = {.count = 0};
    struct dctf_redis_value *answer;
    size_t bad;
    enum dctf_err err = dctf_redis_eval(redis->redis, &redis->full, 3, 3, words, NULL, &answer);

    if (err)
        return err;
    err = dctf_members_read_full(answer, &set, redis->log_id, &bad);
    dctf_redis_value_free(answer);
    if (err) {
        dctf_redis_distrust(redis->redis, "the list of members makes no sense");
        return err;
    }
    tell_bad(bad);
    dctf_member_set_fini(&redis->set);
    redis->set = set;
    redis->behind = false;
    redis->resync_due_ms = dctf_members_now_ms(members) + dctf_members_jitter(members, RESYNC_MS);
    heard(members);
    return DCTF_OK;
}

static void say_left(void *ctx, const char *id)
{
    dctf_members_left(ctx, id);
}

static enum dctf_err read_log(struct dctf_members *members)
{
    struct dctf_members_redis *redis = members->redis;
    const char *words[] = {"XRANGE", redis->keys[KEY_LOG], redis->log_id, "+", "COUNT", LOG_BATCH};
    struct dctf_redis_value *answer;
    bool lost;
    size_t bad;
    enum dctf_err err = dctf_redis_call(redis->redis, 6, words, NULL, &answer);

    if (err)
        return err;
    err = dctf_members_read_log(answer, &redis->set, redis->log_id, say_left, members, &lost, &bad);
    redis->behind = answer->type == DCTF_REDIS_ARRAY && answer->count >= strtoul(LOG_BATCH, NULL, 10);
    dctf_redis_value_free(answer);
    if (err) {
        redis->log_id[0] = '\0';
        dctf_redis_distrust(redis->redis, "the log of members makes no sense");
        return err;
    }
    if (lost) {
        redis->doubt_until_ms = dctf_members_now_ms(members) + dctf_members_return_ms(members);
        redis->log_id[0] = '\0';
        dctf_log(DCTF_LOG_INFO, "members", "op=read the log of members was lost: reading all");
        return read_full(members);
    }
    tell_bad(bad);
    heard(members);
    return DCTF_OK;
}

/* --- the head --- */

static bool understand_head(const struct dctf_redis_value *answer, struct dctf_coordinator_head *out)
{
    uint64_t *numbers[] = {
        &out->fence, &out->policy, &out->policy_fence, &out->hint, &out->excluded, &out->excluded_fence};

    *out = (struct dctf_coordinator_head){.hint = 0};
    if (answer->type != DCTF_REDIS_ARRAY || answer->count != 7)
        return false;
    for (int i = 1; i < 7; i++) {
        if (answer->items[i]->type != DCTF_REDIS_NIL &&
            !dctf_redis_value_u64(answer->items[i], numbers[i - 1]))
            return false;
    }
    return answer->items[0]->type == DCTF_REDIS_NIL || answer->items[0]->type == DCTF_REDIS_STRING;
}

static enum dctf_err poll_head(struct dctf_members *members)
{
    struct dctf_members_redis *redis = members->redis;
    const char *words[] = {"HMGET", redis->keys[KEY_HEAD], "m", "f", "p", "pf", "h", "x", "xf"};
    uint64_t now_ms = dctf_members_now_ms(members);
    struct dctf_coordinator_head head;
    struct dctf_redis_value *answer;
    const char *log_id;
    bool same;
    enum dctf_err err = dctf_redis_call(redis->redis, 9, words, NULL, &answer);

    if (err)
        return err;
    if (!understand_head(answer, &head)) {
        dctf_redis_value_free(answer);
        dctf_redis_distrust(redis->redis, "the head makes no sense");
        return DCTF_ERR_COORDINATOR_ANSWER;
    }
    log_id = answer->items[0]->type == DCTF_REDIS_STRING ? answer->items[0]->text : LOG_EMPTY;
    same = !strcmp(log_id, redis->log_id);
    dctf_redis_value_free(answer);
    dctf_coordinator_head(redis->coordinator, &head);
    redis->polled_ms = now_ms;
    redis->poll_due_ms = now_ms + dctf_members_jitter(members, members->config.poll_ms);
    if (!*redis->log_id || now_ms >= redis->resync_due_ms || (!same && !strcmp(redis->log_id, LOG_EMPTY)))
        err = read_full(members);
    else if (!same || redis->behind)
        err = read_log(members);
    else
        dctf_members_confirm(members);
    if (redis->behind)
        redis->poll_due_ms = now_ms;
    return err;
}

/* --- the thread --- */

/* The server may be another one, or have been away. */
static void met_anew(struct dctf_members *members, bool beaten)
{
    struct dctf_members_redis *redis = members->redis;
    uint64_t now_ms = dctf_members_now_ms(members);

    if (redis->generation)
        redis->doubt_until_ms = now_ms + dctf_members_return_ms(members);
    redis->generation = dctf_redis_generation(redis->redis);
    redis->log_id[0] = '\0';
    redis->poll_due_ms = now_ms;
    if (!beaten)
        redis->beat_due_ms = now_ms;
}

static void step(struct dctf_members *members)
{
    struct dctf_members_redis *redis = members->redis;
    uint64_t now_ms = dctf_members_now_ms(members);
    bool beaten = now_ms >= redis->beat_due_ms;
    enum dctf_err err = DCTF_OK;

    redis->stepped_ms = now_ms;
    if (now_ms < dctf_redis_retry_ms(redis->redis))
        return;
    if (beaten)
        err = beat(members, "beat");
    if (redis->generation != dctf_redis_generation(redis->redis))
        met_anew(members, beaten && !err);
    if (!err && now_ms >= redis->poll_due_ms)
        err = poll_head(members);
    if (err)
        return;
    dctf_coordinator_step(redis->coordinator, redis->redis, &redis->set);
    dctf_members_exclude(members);
}

static uint64_t next_due_ms(const struct dctf_members *members)
{
    const struct dctf_members_redis *redis = members->redis;
    uint64_t due_ms = redis->beat_due_ms, guard_ms = dctf_guard_due_ms(&members->guard);
    uint64_t retry_ms = dctf_redis_retry_ms(redis->redis);
    uint64_t coordinator_ms = dctf_coordinator_due_ms(redis->coordinator);

    if (redis->poll_due_ms < due_ms)
        due_ms = redis->poll_due_ms;
    if (coordinator_ms < due_ms)
        due_ms = coordinator_ms;
    if (due_ms < retry_ms)
        due_ms = retry_ms;
    if (due_ms < redis->stepped_ms + STEP_MS)
        due_ms = redis->stepped_ms + STEP_MS;
    return guard_ms < due_ms ? guard_ms : due_ms;
}

void dctf_members_redis_run(struct dctf_members *members)
{
    struct dctf_members_redis *redis = members->redis;
    bool closing = false;

    while (!closing) {
        bool refresh;

        step(members);
        dctf_members_review(members, members->config.self.id);
        closing = dctf_members_sleep(members, next_due_ms(members), &refresh);
        if (refresh && redis->poll_due_ms > redis->polled_ms + APART_MS)
            redis->poll_due_ms = redis->polled_ms + APART_MS;
    }
    dctf_coordinator_end(redis->coordinator, redis->redis);
    if (redis->joined_ms && dctf_members_now_ms(members) >= dctf_redis_retry_ms(redis->redis) &&
        beat(members, "bye"))
        dctf_log(DCTF_LOG_INFO, "members", "op=bye not heard: the lease will end by itself");
}
