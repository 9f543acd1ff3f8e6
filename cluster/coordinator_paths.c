/* SPDX-License-Identifier: Apache-2.0
 *
 * Who does not know the path of a feature puts its id into the set `nw`; who knows it writes the path and
 * takes the id out, so that each is told once, however many nodes know it.
 */
#include "cluster/coordinator_internal.h"

#include "base/version.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCH 16u          /* questions of one step, told or asked */
#define WANTED_LIVES 4u    /* intervals that a question stays in the set */
#define LIFE_MS "86400000" /* of a path that was told */
#define ASK_TIMES 20u      /* intervals; then the question is dropped */

enum dctf_err dctf_coordinator_ask_path(struct dctf_coordinator *coordinator, uint64_t feature_id)
{
    enum dctf_err err = DCTF_OK;
    bool known = false;

    pthread_mutex_lock(&coordinator->lock);
    for (size_t i = 0; i < coordinator->question_count; i++)
        known |= coordinator->questions[i].feature_id == feature_id;
    if (!known && coordinator->question_count == DCTF_COORDINATOR_PATHS_MAX)
        err = DCTF_ERR_NO_MEMORY;
    else if (!known)
        coordinator->questions[coordinator->question_count++] =
            (struct dctf_path_question){.feature_id = feature_id};
    pthread_mutex_unlock(&coordinator->lock);
    return err;
}

static void path_key(
    const struct dctf_coordinator *coordinator, const char *id, char out[DCTF_COORDINATOR_KEY_MAX + 1])
{
    snprintf(out, DCTF_COORDINATOR_KEY_MAX + 1, "%s:n:%s", coordinator->place.tag, id);
}

/* --- telling --- */

static bool path_of(struct dctf_coordinator *coordinator, const char *id, char *path)
{
    struct dctf_coordinator_listener listener;
    uint64_t feature_id;
    char *end;
    bool known;

    feature_id = strtoull(id, &end, 16);
    if (*end || end == id || !dctf_coordinator_call_begin(coordinator, &listener))
        return false;
    known = listener.path_of && listener.path_of(listener.ctx, feature_id, path);
    dctf_coordinator_call_end(coordinator);
    return known;
}

static enum dctf_err tell(struct dctf_coordinator *coordinator, struct dctf_redis *redis, const char *wanted,
    const char *id, const char *path)
{
    char key[DCTF_COORDINATOR_KEY_MAX + 1];
    const char *set[] = {"SET", key, path, "PX", LIFE_MS}, *rem[] = {"SREM", wanted, id};
    struct dctf_redis_value *answer;
    enum dctf_err err;

    path_key(coordinator, id, key);
    err = dctf_redis_call(redis, 5, set, NULL, &answer);
    dctf_redis_value_free(answer);
    if (err)
        return err;
    err = dctf_redis_call(redis, 3, rem, NULL, &answer);
    dctf_redis_value_free(answer);
    return err;
}

/* Look at what is wanted, a few at random. */
static enum dctf_err tell_wanted(struct dctf_coordinator *coordinator, struct dctf_redis *redis)
{
    uint64_t now_ms = dctf_coordinator_now_ms(coordinator),
             interval = dctf_coordinator_interval_ms(coordinator);
    char wanted[DCTF_COORDINATOR_KEY_MAX + 1], path[DCTF_KEY_MAX + 1], count[8];
    const char *words[] = {"SRANDMEMBER", wanted, count};
    struct dctf_redis_value *answer;
    enum dctf_err err;

    if (now_ms < coordinator->tell_due_ms)
        return DCTF_OK;
    dctf_coordinator_key(coordinator, "nw", wanted);
    snprintf(count, sizeof(count), "%u", BATCH);
    err = dctf_redis_call(redis, 3, words, NULL, &answer);
    if (err)
        return err;
    /* Not all nodes at once: the first one tells. */
    coordinator->tell_due_ms = now_ms + interval / 2 + dctf_rng_below(&coordinator->rng, interval);
    for (size_t i = 0; !err && answer->type == DCTF_REDIS_ARRAY && i < answer->count; i++) {
        const struct dctf_redis_value *id = answer->items[i];

        if (id->type == DCTF_REDIS_STRING && path_of(coordinator, id->text, path))
            err = tell(coordinator, redis, wanted, id->text, path);
    }
    dctf_redis_value_free(answer);
    return err;
}

/* --- asking --- */

static void drop_question_locked(struct dctf_coordinator *coordinator, uint64_t feature_id)
{
    for (size_t i = 0; i < coordinator->question_count; i++) {
        if (coordinator->questions[i].feature_id == feature_id) {
            coordinator->questions[i] = coordinator->questions[--coordinator->question_count];
            return;
        }
    }
}

/* Questions that are due, at most BATCH. */
static size_t take_due(struct dctf_coordinator *coordinator, uint64_t *ids)
{
    uint64_t now_ms = dctf_coordinator_now_ms(coordinator),
             interval = dctf_coordinator_interval_ms(coordinator);
    size_t count = 0;

    pthread_mutex_lock(&coordinator->lock);
    for (size_t i = 0; i < coordinator->question_count && count < BATCH; i++) {
        struct dctf_path_question *question = &coordinator->questions[i];

        if (now_ms < question->due_ms)
            continue;
        question->due_ms = now_ms + interval / 2;
        question->asked++;
        ids[count++] = question->feature_id;
    }
    for (size_t i = coordinator->question_count; i-- > 0;) {
        if (coordinator->questions[i].asked > ASK_TIMES)
            coordinator->questions[i] = coordinator->questions[--coordinator->question_count];
    }
    pthread_mutex_unlock(&coordinator->lock);
    return count;
}

static void hear(
    struct dctf_coordinator *coordinator, uint64_t feature_id, const struct dctf_redis_value *path)
{
    struct dctf_coordinator_listener listener;

    pthread_mutex_lock(&coordinator->lock);
    drop_question_locked(coordinator, feature_id);
    pthread_mutex_unlock(&coordinator->lock);
    if (path->len > DCTF_KEY_MAX || strlen(path->text) != path->len ||
        !dctf_coordinator_call_begin(coordinator, &listener))
        return;
    if (listener.path)
        listener.path(listener.ctx, feature_id, path->text);
    dctf_coordinator_call_end(coordinator);
}

/* Put into the set what nobody has told yet. */
static enum dctf_err want(
    struct dctf_coordinator *coordinator, struct dctf_redis *redis, char (*ids)[17], size_t count)
{
    char wanted[DCTF_COORDINATOR_KEY_MAX + 1], life[24];
    const char *words[BATCH + 2] = {"SADD", wanted}, *expire[] = {"PEXPIRE", wanted, life};
    struct dctf_redis_value *answer;
    enum dctf_err err;

    if (!count)
        return DCTF_OK;
    dctf_coordinator_key(coordinator, "nw", wanted);
    for (size_t i = 0; i < count; i++)
        words[i + 2] = ids[i];
    err = dctf_redis_call(redis, (int)count + 2, words, NULL, &answer);
    dctf_redis_value_free(answer);
    if (err)
        return err;
    snprintf(life, sizeof(life), "%" PRIu64, WANTED_LIVES * dctf_coordinator_interval_ms(coordinator));
    err = dctf_redis_call(redis, 3, expire, NULL, &answer);
    dctf_redis_value_free(answer);
    return err;
}

static enum dctf_err ask(struct dctf_coordinator *coordinator, struct dctf_redis *redis)
{
    char keys[BATCH][DCTF_COORDINATOR_KEY_MAX + 1], texts[BATCH][17];
    const char *words[BATCH + 1] = {"MGET"};
    struct dctf_redis_value *answer;
    uint64_t ids[BATCH];
    size_t count = take_due(coordinator, ids), unknown = 0;
    enum dctf_err err;

    if (!count)
        return DCTF_OK;
    for (size_t i = 0; i < count; i++) {
        char text[17];

        snprintf(text, sizeof(text), "%016" PRIx64, ids[i]);
        path_key(coordinator, text, keys[i]);
        words[i + 1] = keys[i];
    }
    err = dctf_redis_call(redis, (int)count + 1, words, NULL, &answer);
    if (err)
        return err;
    for (size_t i = 0; answer->type == DCTF_REDIS_ARRAY && i < answer->count && i < count; i++) {
        if (answer->items[i]->type == DCTF_REDIS_STRING)
            hear(coordinator, ids[i], answer->items[i]);
        else
            snprintf(texts[unknown++], sizeof(texts[0]), "%016" PRIx64, ids[i]);
    }
    dctf_redis_value_free(answer);
    return want(coordinator, redis, texts, unknown);
}

enum dctf_err dctf_coordinator_paths_step(struct dctf_coordinator *coordinator, struct dctf_redis *redis)
{
    enum dctf_err err = tell_wanted(coordinator, redis);

    return err ? err : ask(coordinator, redis);
}
