/* SPDX-License-Identifier: Apache-2.0
 *
 * Features lie in one array, found through an open hash of their indices. An
 * evaluation sorts indices by heat.
 */
#include "cluster/policy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HASH_FIRST 1024u
#define EMPTY UINT32_MAX
#define SIGMAS 6.0
#define NODE_BITS 64u
#define NODES_FORGET 16u /* a second reader counts for so many half-lives ÷ 16 */

const struct dctf_policy_config dctf_policy_defaults = {
    .hot_enter = 0.08,
    .hot_leave = 0.15,
    .mid_enter = 0.36,
    .mid_leave = 0.48,
    .contrast = 1.5,
    .enter_streak = 3,
    .leave_streak = 6,
    .half_life = 30,
    .dwell_ms = 600000,
    .changes_max = 64,
    .features_max = 1u << 20,
    .told_max = 1000,
};

struct feature {
    uint64_t id;
    uint64_t bytes;
    double heat;  /* averaged */
    double fresh; /* reported since the last evaluation */
    uint64_t changed_ms;
    uint64_t node[2];      /* the last two that read it */
    uint32_t node_seen[2]; /* evaluation they did so in, + 1; 0: none */
    uint64_t readers[2];   /* a bit for each node, by its hash: in this half-life, in the one before */
    uint32_t readers_of;   /* which half-life that is */
    uint8_t class;
    uint8_t wanted;  /* by this evaluation's rank */
    uint16_t streak; /* evaluations in a row that wanted another class */
    uint8_t streak_for;
};

struct dctf_policy {
    struct dctf_policy_config config;
    struct feature *features;
    size_t count, cap;
    uint32_t *slots;   /* index + 0; EMPTY */
    size_t slot_count; /* a power of two, more than 2 × count */
    uint32_t evaluation;
    double decay;
};

enum dctf_err dctf_policy_new(const struct dctf_policy_config *config, struct dctf_policy **out)
{
    struct dctf_policy *policy = calloc(1, sizeof(*policy));

    *out = NULL;
    if (!policy)
        return DCTF_ERR_NO_MEMORY;
    policy->config = *config;
    policy->decay = config->half_life ? exp2(-1.0 / config->half_life) : 0;
    policy->slot_count = HASH_FIRST;
    policy->slots = malloc(policy->slot_count * sizeof(*policy->slots));
    if (!policy->slots) {
        free(policy);
        return DCTF_ERR_NO_MEMORY;
    }
    memset(policy->slots, 0xff, policy->slot_count * sizeof(*policy->slots));
    *out = policy;
    return DCTF_OK;
}

void dctf_policy_free(struct dctf_policy *policy)
{
    if (!policy)
        return;
    free(policy->features);
    free(policy->slots);
    free(policy);
}

/* --- the table of features --- */

/* Ids are hashes themselves. */
static size_t slot_of(const struct dctf_policy *policy, uint64_t id)
{
    size_t at = (size_t)(id ^ id >> 32) & (policy->slot_count - 1);

    while (policy->slots[at] != EMPTY && policy->features[policy->slots[at]].id != id)
        at = (at + 1) & (policy->slot_count - 1);
    return at;
}

static void rehash(struct dctf_policy *policy)
{
    memset(policy->slots, 0xff, policy->slot_count * sizeof(*policy->slots));
    for (size_t i = 0; i < policy->count; i++)
        policy->slots[slot_of(policy, policy->features[i].id)] = (uint32_t)i;
}

static enum dctf_err grow(struct dctf_policy *policy)
{
    size_t cap = policy->cap ? policy->cap * 2 : HASH_FIRST / 4;
    struct feature *features = realloc(policy->features, cap * sizeof(*features));
    uint32_t *slots;

    if (!features)
        return DCTF_ERR_NO_MEMORY;
    policy->features = features;
    if (4 * cap > policy->slot_count) {
        slots = realloc(policy->slots, 4 * cap * sizeof(*slots));
        if (!slots)
            return DCTF_ERR_NO_MEMORY;
        policy->slots = slots;
        policy->slot_count = 4 * cap;
        rehash(policy);
    }
    policy->cap = cap;
    return DCTF_OK;
}

/* The cold feature with the least heat; a few are looked at, from a place that moves on. */
static size_t find_victim(const struct dctf_policy *policy, uint64_t id)
{
    size_t best = policy->count, at = (size_t)(id % policy->count);

    for (unsigned i = 0; i < 64; i++, at = (at + 1) % policy->count) {
        const struct feature *feature = &policy->features[at];

        if (feature->class == DCTF_POLICY_COLD &&
            (best == policy->count ||
                feature->heat + feature->fresh < policy->features[best].heat + policy->features[best].fresh))
            best = at;
    }
    return best;
}

/* NULL: no memory, or no place for a newcomer that is not hotter than what would go. */
static struct feature *find_or_add(struct dctf_policy *policy, uint64_t id, double passes)
{
    size_t slot = slot_of(policy, id), at;

    if (policy->slots[slot] != EMPTY)
        return &policy->features[policy->slots[slot]];
    if (policy->count >= policy->config.features_max) {
        at = find_victim(policy, id);
        if (at == policy->count || policy->features[at].heat + policy->features[at].fresh > passes)
            return NULL;
        policy->features[at] = (struct feature){.id = id};
        rehash(policy); /* rare: only beyond features_max */
        return &policy->features[at];
    }
    if (policy->count == policy->cap) {
        if (grow(policy))
            return NULL;
        slot = slot_of(policy, id);
    }
    at = policy->count++;
    policy->features[at] = (struct feature){.id = id};
    policy->slots[slot] = (uint32_t)at;
    return &policy->features[at];
}

/* Half-lives since the start. */
static uint32_t period_of(const struct dctf_policy *policy)
{
    return policy->config.half_life ? policy->evaluation / policy->config.half_life : policy->evaluation;
}

static void turn_readers(const struct dctf_policy *policy, struct feature *feature)
{
    uint32_t period = period_of(policy);

    if (feature->readers_of == period)
        return;
    feature->readers[1] = feature->readers_of + 1 == period ? feature->readers[0] : 0;
    feature->readers[0] = 0;
    feature->readers_of = period;
}

/* By linear counting (Whang et al. 1990). */
static unsigned count_readers(const struct dctf_policy *policy, struct feature *feature)
{
    double none;

    turn_readers(policy, feature);
    none = (double)NODE_BITS - __builtin_popcountll(feature->readers[0] | feature->readers[1]);
    return (unsigned)lround(NODE_BITS * log(NODE_BITS / (none > 0 ? none : 0.5)));
}

enum dctf_err dctf_policy_report(
    struct dctf_policy *policy, uint64_t feature_id, uint64_t node, double passes, uint64_t feature_bytes)
{
    struct feature *feature;
    unsigned place;

    if (!(passes > 0) || passes > 1e12)
        return DCTF_OK;
    feature = find_or_add(policy, feature_id, passes);
    if (!feature)
        return policy->count < policy->config.features_max ? DCTF_ERR_NO_MEMORY : DCTF_OK;
    feature->fresh += passes;
    feature->bytes = feature_bytes;
    turn_readers(policy, feature);
    feature->readers[0] |= (uint64_t)1 << node % NODE_BITS;
    place = feature->node_seen[0] && feature->node[0] != node;
    if (place && feature->node_seen[1] && feature->node[1] != node) /* a third: the older of the two goes */
        place = feature->node_seen[0] <= feature->node_seen[1] ? 0 : 1;
    feature->node[place] = node;
    feature->node_seen[place] = policy->evaluation + 1;
    return DCTF_OK;
}

void dctf_policy_set_bounds(
    struct dctf_policy *policy, uint64_t hot_bytes_max, uint64_t mid_bytes_max, uint64_t new_bytes_max)
{
    policy->config.hot_bytes_max = hot_bytes_max;
    policy->config.mid_bytes_max = mid_bytes_max;
    policy->config.new_bytes_max = new_bytes_max;
}

enum dctf_err dctf_policy_seed(
    struct dctf_policy *policy, const struct dctf_policy_entry *table, size_t count, uint64_t now_ms)
{
    for (size_t i = 0; i < count; i++) {
        size_t before = policy->count;
        struct feature *feature = find_or_add(policy, table[i].feature_id, 0);

        if (!feature)
            return policy->count < policy->config.features_max ? DCTF_ERR_NO_MEMORY : DCTF_OK;
        if (policy->count == before)
            continue;
        feature->class = (uint8_t)table[i].class;
        feature->changed_ms = now_ms ? now_ms : 1;
    }
    return DCTF_OK;
}

/* --- judging --- */

struct ranking {
    const struct feature *features;
    uint32_t *order; /* hottest first */
    size_t count;
};

static int compare_heat(const void *a, const void *b, void *context)
{
    const struct feature *features = context;
    const struct feature *left = &features[*(const uint32_t *)a], *right = &features[*(const uint32_t *)b];

    if (left->heat != right->heat)
        return left->heat > right->heat ? -1 : 1;
    return left->id < right->id ? -1 : left->id > right->id;
}

static bool read_by_two(const struct dctf_policy *policy, const struct feature *feature)
{
    uint32_t horizon = policy->config.half_life + NODES_FORGET;

    for (unsigned i = 0; i < 2; i++) {
        if (!feature->node_seen[i] || policy->evaluation - (feature->node_seen[i] - 1) > horizon)
            return false;
    }
    return true;
}

/* Above a reference by the contrast, and by more than chance: reads are counted, so the sum behind an
 * average of h is h / (1 - decay) with a standard deviation of its root (Poisson). */
static bool stands_out(const struct dctf_policy *policy, double heat, double reference)
{
    return heat >= policy->config.contrast * reference &&
           heat - reference >= SIGMAS * sqrt(reference * (1 - policy->decay));
}

/* The class that rank and contrast give, with the band of the class it has. */
static enum dctf_policy_class rank_class(const struct dctf_policy *policy, const struct feature *feature,
    double rank, const struct dctf_policy_result *result)
{
    const struct dctf_policy_config *config = &policy->config;
    bool is_hot = feature->class == DCTF_POLICY_HOT, is_mid = feature->class == DCTF_POLICY_MID;

    if (!read_by_two(policy, feature))
        return DCTF_POLICY_COLD;
    if (rank < (is_hot ? config->hot_leave : config->hot_enter) &&
        (is_hot || stands_out(policy, feature->heat, result->mean)))
        return DCTF_POLICY_HOT;
    if (rank < (is_hot || is_mid ? config->mid_leave : config->mid_enter) &&
        (is_mid || stands_out(policy, feature->heat, result->median)))
        return DCTF_POLICY_MID;
    return DCTF_POLICY_COLD;
}

/* What rank wants, as far as the bytes go; of two alike the hotter one gets them. */
static void mark_wanted(
    struct dctf_policy *policy, const struct ranking *ranking, struct dctf_policy_result *result)
{
    uint64_t hot = 0, mid = 0;

    for (size_t i = 0; i < ranking->count; i++) {
        struct feature *feature = &policy->features[ranking->order[i]];
        enum dctf_policy_class class =
            rank_class(policy, feature, (double)i / (double)ranking->count, result);

        if (class == DCTF_POLICY_HOT && policy->config.hot_bytes_max &&
            hot + feature->bytes > policy->config.hot_bytes_max)
            class = DCTF_POLICY_MID;
        if (class == DCTF_POLICY_MID && policy->config.mid_bytes_max &&
            mid + feature->bytes > policy->config.mid_bytes_max)
            class = DCTF_POLICY_COLD;
        hot += class == DCTF_POLICY_HOT ? feature->bytes : 0;
        mid += class == DCTF_POLICY_MID ? feature->bytes : 0;
        feature->wanted = (uint8_t) class;
    }
}

/* Whether the streak and the dwell allow the change that is wanted. */
static bool is_due(const struct dctf_policy *policy, struct feature *feature, uint64_t now_ms)
{
    bool up = feature->wanted > feature->class;

    if (feature->wanted == feature->class) {
        feature->streak = 0;
        return false;
    }
    if (feature->streak_for != feature->wanted) {
        /* From cold, wanting hot after mid is no new beginning: both are up. */
        if (!(up && feature->streak && feature->streak_for > feature->class))
            feature->streak = 0;
        feature->streak_for = feature->wanted;
    }
    if (feature->streak < UINT16_MAX)
        feature->streak++;
    return feature->streak >= (up ? policy->config.enter_streak : policy->config.leave_streak) &&
           (!feature->changed_ms || now_ms - feature->changed_ms >= policy->config.dwell_ms);
}

static void count_bytes(
    const struct feature *feature, unsigned class, int sign, struct dctf_policy_result *result)
{
    uint64_t *bytes = class == DCTF_POLICY_HOT ? &result->hot_bytes : &result->mid_bytes;

    if (class != DCTF_POLICY_COLD)
        *bytes = sign > 0 ? *bytes + feature->bytes : *bytes - feature->bytes;
}

/* What is to leave stays until its streak is over, and its bytes with it. */
static bool fits(
    const struct dctf_policy *policy, const struct feature *feature, const struct dctf_policy_result *result)
{
    if (feature->wanted == DCTF_POLICY_COLD)
        return true;
    if (feature->wanted == DCTF_POLICY_HOT)
        return !policy->config.hot_bytes_max ||
               result->hot_bytes + feature->bytes <= policy->config.hot_bytes_max;
    return !policy->config.mid_bytes_max ||
           result->mid_bytes + feature->bytes <= policy->config.mid_bytes_max;
}

static void apply_changes(struct dctf_policy *policy, const struct ranking *ranking, uint64_t now_ms,
    struct dctf_policy_result *result)
{
    uint64_t fresh_bytes = 0;

    for (size_t i = 0; i < policy->count; i++)
        count_bytes(&policy->features[i], policy->features[i].class, 1, result);
    for (size_t i = 0; i < ranking->count; i++) {
        struct feature *feature = &policy->features[ranking->order[i]];
        bool up = feature->wanted > feature->class;

        if (!is_due(policy, feature, now_ms) || result->change_count == policy->config.changes_max)
            continue;
        if (!fits(policy, feature, result)) {
            if (up)
                continue;
            feature->wanted = DCTF_POLICY_COLD;
        }
        if (up && policy->config.new_bytes_max && fresh_bytes &&
            fresh_bytes + feature->bytes > policy->config.new_bytes_max)
            continue;
        fresh_bytes += up ? feature->bytes : 0;
        count_bytes(feature, feature->class, -1, result);
        count_bytes(feature, feature->wanted, 1, result);
        result->changes[result->change_count++] =
            (struct dctf_policy_change){feature->id, feature->class, feature->wanted};
        feature->class = feature->wanted;
        feature->changed_ms = now_ms;
        feature->streak = 0;
    }
}

static int compare_entries(const void *a, const void *b)
{
    uint64_t left = ((const struct dctf_policy_entry *)a)->feature_id;
    uint64_t right = ((const struct dctf_policy_entry *)b)->feature_id;

    return left < right ? -1 : left > right;
}

static void fill_table(const struct dctf_policy *policy, struct dctf_policy_result *result)
{
    for (size_t i = 0; i < policy->count; i++) {
        const struct feature *feature = &policy->features[i];

        if (feature->class != DCTF_POLICY_COLD)
            result->table[result->count++] = (struct dctf_policy_entry){feature->id, feature->class};
    }
    qsort(result->table, result->count, sizeof(*result->table), compare_entries);
}

/* Average in what was reported, and rank. */
static void rank(struct dctf_policy *policy, struct ranking *ranking, struct dctf_policy_result *result)
{
    double sum = 0;

    for (size_t i = 0; i < policy->count; i++) {
        struct feature *feature = &policy->features[i];

        feature->heat = feature->heat * policy->decay + feature->fresh * (1 - policy->decay);
        feature->fresh = 0;
        sum += feature->heat;
        ranking->order[i] = (uint32_t)i;
    }
    ranking->count = policy->count;
    if (!ranking->count)
        return;
    qsort_r(ranking->order, ranking->count, sizeof(*ranking->order), compare_heat, policy->features);
    result->mean = sum / (double)ranking->count;
    result->median = policy->features[ranking->order[ranking->count / 2]].heat;
}

static void tell_hottest(
    struct dctf_policy *policy, const struct ranking *ranking, struct dctf_policy_result *result)
{
    result->features = policy->count;
    for (size_t i = 0; i < ranking->count && i < policy->config.told_max; i++) {
        struct feature *feature = &policy->features[ranking->order[i]];

        result->hottest[result->hottest_count++] = (struct dctf_policy_heat){
            .feature_id = feature->id,
            .class = (enum dctf_policy_class)feature->class,
            .passes = feature->heat,
            .nodes = count_readers(policy, feature),
            .bytes = feature->bytes,
        };
    }
}

enum dctf_err dctf_policy_evaluate(
    struct dctf_policy *policy, uint64_t now_ms, struct dctf_policy_result *out)
{
    struct ranking ranking = {.order = malloc((policy->count + 1) * sizeof(*ranking.order))};

    *out = (struct dctf_policy_result){0};
    out->table = malloc((policy->count + 1) * sizeof(*out->table));
    out->changes = malloc((policy->config.changes_max + 1) * sizeof(*out->changes));
    out->hottest = malloc((policy->config.told_max + 1) * sizeof(*out->hottest));
    if (!ranking.order || !out->table || !out->changes || !out->hottest) {
        free(ranking.order);
        dctf_policy_result_fini(out);
        return DCTF_ERR_NO_MEMORY;
    }
    rank(policy, &ranking, out);
    policy->evaluation++;
    mark_wanted(policy, &ranking, out);
    apply_changes(policy, &ranking, now_ms, out);
    fill_table(policy, out);
    tell_hottest(policy, &ranking, out);
    free(ranking.order);
    return DCTF_OK;
}

void dctf_policy_result_fini(struct dctf_policy_result *result)
{
    free(result->table);
    free(result->changes);
    free(result->hottest);
    *result = (struct dctf_policy_result){0};
}

enum dctf_policy_class dctf_policy_class_of(
    const struct dctf_policy_entry *table, size_t count, uint64_t feature_id)
{
    struct dctf_policy_entry key = {.feature_id = feature_id};
    const struct dctf_policy_entry *found =
        count ? bsearch(&key, table, count, sizeof(*table), compare_entries) : NULL;

    return found ? found->class : DCTF_POLICY_COLD;
}
