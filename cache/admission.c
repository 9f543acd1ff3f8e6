/* SPDX-License-Identifier: Apache-2.0
 *
 * How the rules of the header are kept when shards differ in size, the epoch is
 * not known and every shard may be opened more than once per epoch.
 *
 * Warmth. A victim's worth is its heat times what a miss on it costs (its bytes,
 * and a fixed cost for the requests, as bytes) per byte it occupies. Equal sizes
 * leave plain heat.
 *
 * Epoch. Gaps between two opens of one shard are weighed by their length, so that
 * eight workers opening the same file at once do not look like an epoch of eight
 * accesses. A first open counts as a gap as long as its feature has been showing
 * new shards (that long, at least, it was not read); while true gaps do not outweigh
 * those, the epoch is not known, and nothing is called stale.
 *
 * Stale. A feature untouched for a quarter epoch goes first, unless it is used to
 * longer pauses: it is read as one run per epoch, or has few shards.
 */
#include "cache/admission.h"

#include "cache/admission_duel.h"
#include "cache/admission_table.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MARGIN 1.5
#define HALF_LIFE_EPOCHS 4.0
#define STALE_EPOCHS 0.25
/* A shuffle may bring a shard first in one epoch and last in the next. */
#define PAUSE_EPOCHS_MAX 2.0
/* Round trips of a miss, in bytes: some 10 ms at 100 MB/s. */
#define MISS_FIXED_BYTES (1024.0 * 1024)

/* Opened again within so many accesses, or within so much of what the cache holds,
 * a shard's pages are still in memory: loaders open a file for its schema and again
 * for its data, and that is no proof that following recency would pay. */
#define REPEAT_MAX 8.0
#define REPEAT_SHARE (1.0 / 32)

#define DUEL_ENTRIES_MAX 8192
#define FEATURES_MIN 1024

/* Gaps are sorted into four buckets per doubling. */
#define GAP_PER_DOUBLING 4
#define GAP_BUCKETS (40 * GAP_PER_DOUBLING)
#define GAP_MEMORY_EPOCHS 2.0
#define GAP_RESCALE 1e100
#define EPOCH_REFRESH 16

struct shard_entry {
    struct dctf_recent_head head;
    float heat;  /* at head.last */
    float bytes; /* 0: seeded, never opened in this process */
};

struct feature_entry {
    struct dctf_recent_head head;
    uint64_t new_since, new_last; /* first and latest first-open of the current run of them */
    float longest_gap;            /* between touches, lately */
    float touches;                /* decayed like heat */
};

struct gap_histogram {
    double weight[GAP_BUCKETS];
    double total;
    double seen, guessed; /* of total: true gaps, and lower bounds */
    double unit;          /* weight of one access now; grows, so that older ones fade */
};

struct dctf_admission {
    pthread_mutex_t lock;
    /* all below guarded by lock */
    uint64_t seed;
    uint64_t now;              /* number of the latest access; starts at 1, so that 0 marks an empty place */
    struct dctf_recent shards; /* struct shard_entry */
    struct dctf_recent features; /* struct feature_entry */
    struct gap_histogram gaps;
    double epoch; /* estimate, in accesses */
    bool epoch_known;
    double mean_bytes;     /* of a shard, by opens */
    double capacity_bytes; /* as told last */
    struct dctf_duel duel;
};

static uint64_t spread(const struct dctf_admission *a, uint64_t key)
{
    uint64_t z = key + a->seed;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static struct shard_entry *find_shard(struct dctf_admission *a, uint64_t key_hash)
{
    return dctf_recent_find(&a->shards, key_hash, spread(a, key_hash));
}

/* ---- epoch ---- */

static double hold_half_life(const struct dctf_admission *a)
{
    return HALF_LIFE_EPOCHS * a->epoch;
}

/* Shards the cache holds. */
static double held_shards(const struct dctf_admission *a)
{
    double shards = a->mean_bytes > 0 ? a->capacity_bytes / a->mean_bytes : 1;

    return shards < 1 ? 1 : shards;
}

/* A pause longer than this is no shuffle's doing. Not less than the cache holds: the
 * first accesses after a start are no measure of an epoch. */
static double absence(const struct dctf_admission *a)
{
    double pause = PAUSE_EPOCHS_MAX * a->epoch, held = held_shards(a);

    return pause > held ? pause : held;
}

static size_t gap_bucket(double gap)
{
    double at = log2(gap) * GAP_PER_DOUBLING;

    return at <= 0 ? 0 : at >= GAP_BUCKETS - 1 ? GAP_BUCKETS - 1 : (size_t)at;
}

static double gap_median(const struct gap_histogram *gaps)
{
    double rest = gaps->total / 2;
    size_t i = 0;

    while (i + 1 < GAP_BUCKETS && rest > gaps->weight[i])
        rest -= gaps->weight[i++];
    return exp2(((double)i + (gaps->weight[i] > 0 ? rest / gaps->weight[i] : 0)) / GAP_PER_DOUBLING);
}

static void rescale_gaps(struct gap_histogram *gaps)
{
    for (size_t i = 0; i < GAP_BUCKETS; i++)
        gaps->weight[i] /= gaps->unit;
    gaps->total /= gaps->unit;
    gaps->seen /= gaps->unit;
    gaps->guessed /= gaps->unit;
    gaps->unit = 1;
}

static void note_gap(struct dctf_admission *a, double gap, bool seen)
{
    struct gap_histogram *gaps = &a->gaps;
    double weight;

    /* A dataset that comes back after weeks redefines the epoch step by step. */
    if (a->epoch_known && gap > absence(a))
        gap = absence(a);
    weight = gap * gaps->unit;
    gaps->weight[gap_bucket(gap)] += weight;
    gaps->total += weight;
    *(seen ? &gaps->seen : &gaps->guessed) += weight;
}

static void estimate_epoch(struct dctf_admission *a)
{
    struct gap_histogram *gaps = &a->gaps;

    if (gaps->total > 0)
        a->epoch = gap_median(gaps);
    /* By far, to begin with: in the second epoch the short gaps close first. */
    a->epoch_known = gaps->seen > gaps->guessed * (a->epoch_known ? 1 : 4);
    if (!a->epoch_known && a->epoch < (double)a->now)
        a->epoch = (double)a->now;
    if (a->epoch < 1)
        a->epoch = 1;
}

static void age_gaps(struct dctf_admission *a)
{
    /* Doubles once in GAP_MEMORY_EPOCHS epochs. */
    a->gaps.unit *= 1 + M_LN2 / (GAP_MEMORY_EPOCHS * a->epoch + 64);
    if (a->gaps.unit > GAP_RESCALE)
        rescale_gaps(&a->gaps);
}

/* ---- warmth ---- */

/* A shard not tracked was opened before this process began, or is forgotten: once,
 * at access 0, says the least about it that keeps a restart from churning. */
static double heat_at(const struct dctf_admission *a, const struct shard_entry *shard, double half_life)
{
    double heat = shard ? shard->heat : 1;
    uint64_t last = shard ? shard->head.last : 0;

    return heat * exp2(-(double)(a->now - last) / half_life);
}

/* Accesses since the candidate's feature was touched if that makes it stale, else 0. */
static double stale_for(struct dctf_admission *a, uint64_t feature_id, const struct shard_entry *shard)
{
    struct feature_entry *feature;
    double idle, limit, pause;

    if (!a->epoch_known)
        return 0;
    feature = dctf_recent_find(&a->features, feature_id, spread(a, feature_id));
    if (!feature) {
        /* Not touched since the start, or forgotten: only the shard itself can tell. */
        idle = (double)(a->now - (shard ? shard->head.last : 0));
        return idle > absence(a) ? idle : 0;
    }
    if (shard && (double)(a->now - shard->head.last) > absence(a))
        return (double)(a->now - shard->head.last);
    idle = (double)(a->now - feature->head.last);
    /* touches / (half-life / ln 2) are its touches per epoch. */
    pause = PAUSE_EPOCHS_MAX * (HALF_LIFE_EPOCHS / M_LN2) / feature->touches;
    limit = (STALE_EPOCHS + (pause < PAUSE_EPOCHS_MAX ? pause : PAUSE_EPOCHS_MAX)) * a->epoch;
    if (limit < feature->longest_gap * 1.25)
        limit = feature->longest_gap * 1.25;
    return idle > limit ? idle : 0;
}

static double per_byte(double heat, double bytes)
{
    return bytes < 1 ? heat : heat * (bytes + MISS_FIXED_BYTES) / bytes;
}

static double size_of(const struct shard_entry *shard, uint64_t bytes)
{
    return shard && shard->bytes > 0 ? shard->bytes : (double)bytes;
}

/* Below 0 when stale, the longer the lower. */
static double warmth(
    struct dctf_admission *a, const struct dctf_admission_candidate *candidate, double half_life)
{
    struct shard_entry *shard = find_shard(a, candidate->key_hash);
    double stale = stale_for(a, candidate->feature_id, shard);

    if (stale > 0)
        return -stale;
    return per_byte(heat_at(a, shard, half_life), size_of(shard, candidate->bytes));
}

static size_t choose_locked(struct dctf_admission *a, const struct dctf_admission_candidate *newcomer,
    const struct dctf_admission_candidate *candidates, size_t count, bool recency)
{
    double half_life = recency ? held_shards(a) : hold_half_life(a);
    double coldest = 0;
    size_t victim = count;
    struct shard_entry *shard;

    for (size_t i = 0; i < count; i++) {
        double score;

        if (newcomer && candidates[i].key_hash == newcomer->key_hash)
            continue;
        score = warmth(a, &candidates[i], half_life);
        if (victim == count || score < coldest) {
            coldest = score;
            victim = i;
        }
    }
    if (victim == count || !newcomer || recency || coldest < 0)
        return victim;
    shard = find_shard(a, newcomer->key_hash);
    if (per_byte(heat_at(a, shard, half_life), size_of(shard, newcomer->bytes)) > coldest * (1 + MARGIN))
        return victim;
    return count;
}

static size_t hold_rule(void *ctx, const struct dctf_admission_candidate *newcomer,
    const struct dctf_admission_candidate *candidates, size_t count)
{
    return choose_locked(ctx, newcomer, candidates, count, false);
}

/* ---- accesses ---- */

static struct feature_entry *touch_feature(struct dctf_admission *a, uint64_t feature_id)
{
    struct feature_entry *feature = dctf_recent_claim(&a->features, feature_id, spread(a, feature_id));
    double gap = feature->head.last ? (double)(a->now - feature->head.last) : 0;

    if (!feature->head.last || (a->epoch_known && gap > absence(a))) {
        /* Its pauses of an earlier life say nothing about this one. */
        feature->longest_gap = 0;
        feature->touches = 0;
    } else {
        double fade = gap / (2 * HALF_LIFE_EPOCHS * a->epoch);
        double longest = feature->longest_gap * (fade < 0.5 ? 1 - fade : 0.5);

        feature->longest_gap = (float)(gap > longest ? gap : longest);
        feature->touches *= (float)exp2(-gap / hold_half_life(a));
    }
    feature->touches++;
    feature->head.last = a->now;
    return feature;
}

/* How long the feature has been showing shards never opened before: each was not
 * opened for that long at least. */
static double new_for(const struct dctf_admission *a, struct feature_entry *feature)
{
    bool over = a->epoch_known && (double)(a->now - feature->new_last) > STALE_EPOCHS * a->epoch;

    if (!feature->new_last || over)
        feature->new_since = a->now;
    feature->new_last = a->now;
    return (double)(a->now - feature->new_since);
}

/* Counts one open; false when it repeats one so recent that it is no reuse. */
static bool touch_shard(
    struct dctf_admission *a, uint64_t key_hash, struct feature_entry *feature, uint64_t bytes)
{
    struct shard_entry *shard = dctf_recent_claim(&a->shards, key_hash, spread(a, key_hash));
    bool opened = shard->head.last != 0 && shard->bytes > 0;
    double gap = opened ? (double)(a->now - shard->head.last) : new_for(a, feature);
    bool repeats = opened && (gap <= REPEAT_MAX || gap <= held_shards(a) * REPEAT_SHARE);

    if (gap > 0 && !repeats)
        note_gap(a, gap, opened);
    shard->heat = (float)((shard->head.last ? heat_at(a, shard, hold_half_life(a)) : 0) + 1);
    shard->bytes = bytes ? (float)bytes : 1;
    shard->head.last = a->now;
    return !repeats;
}

static void play_duel(
    struct dctf_admission *a, uint64_t key_hash, uint64_t feature_id, uint64_t bytes, uint64_t capacity_bytes)
{
    struct dctf_admission_candidate shard = {
        .key_hash = key_hash, .feature_id = feature_id, .bytes = bytes ? bytes : 1};
    double worth = ((double)shard.bytes + MISS_FIXED_BYTES) / (a->mean_bytes + MISS_FIXED_BYTES);

    /* Another mixture than the tables', so that the sample is not a set of buckets. */
    dctf_duel_access(&a->duel, &shard, spread(a, ~key_hash), worth, capacity_bytes,
        a->mean_bytes < 1 ? 1 : (uint64_t)a->mean_bytes);
}

void dctf_admission_access(struct dctf_admission *admission, uint64_t key_hash, uint64_t feature_id,
    uint64_t bytes, uint64_t capacity_bytes)
{
    struct dctf_admission *a = admission;
    double window;
    bool fresh;

    pthread_mutex_lock(&a->lock);
    a->now++;
    window = a->now < 1024 ? (double)a->now : 1024;
    a->mean_bytes += ((double)bytes - a->mean_bytes) / window;
    a->capacity_bytes = (double)capacity_bytes;
    age_gaps(a);
    fresh = touch_shard(a, key_hash, touch_feature(a, feature_id), bytes);
    if (a->now % EPOCH_REFRESH == 0 || a->now < 4 * EPOCH_REFRESH)
        estimate_epoch(a);
    if (fresh && capacity_bytes > 0)
        play_duel(a, key_hash, feature_id, bytes, capacity_bytes);
    pthread_mutex_unlock(&a->lock);
}

enum dctf_admission_verdict dctf_admission_choose(struct dctf_admission *admission, uint64_t key_hash,
    uint64_t feature_id, uint64_t bytes, const struct dctf_admission_candidate *candidates, size_t count,
    size_t *victim)
{
    struct dctf_admission_candidate newcomer = {
        .key_hash = key_hash, .feature_id = feature_id, .bytes = bytes};

    pthread_mutex_lock(&admission->lock);
    *victim = choose_locked(admission, &newcomer, candidates, count, admission->duel.recency);
    pthread_mutex_unlock(&admission->lock);
    return *victim < count ? DCTF_ADMIT : DCTF_BYPASS;
}

size_t dctf_admission_coldest(
    struct dctf_admission *admission, const struct dctf_admission_candidate *candidates, size_t count)
{
    size_t victim;

    pthread_mutex_lock(&admission->lock);
    victim = choose_locked(admission, NULL, candidates, count, admission->duel.recency);
    pthread_mutex_unlock(&admission->lock);
    return victim;
}

void dctf_admission_seed(
    struct dctf_admission *admission, uint64_t key_hash, uint64_t feature_id, double heat)
{
    struct shard_entry *shard;

    /* A seed says nothing of when the feature was touched in this process's accesses. */
    (void)feature_id;
    pthread_mutex_lock(&admission->lock);
    shard = dctf_recent_claim(&admission->shards, key_hash, spread(admission, key_hash));
    if (!shard->head.last) {
        shard->heat = (float)heat;
        shard->head.last = admission->now;
    }
    pthread_mutex_unlock(&admission->lock);
}

void dctf_admission_stats(struct dctf_admission *admission, struct dctf_admission_stats *out)
{
    struct dctf_admission *a = admission;

    pthread_mutex_lock(&a->lock);
    *out = (struct dctf_admission_stats){
        .now = a->now - 1,
        .epoch_accesses = a->epoch_known ? (uint64_t)a->epoch : 0,
        .recency = a->duel.recency,
        .hold_hits = a->duel.hold_hits,
        .follow_hits = a->duel.follow_hits,
        .shards_tracked = a->shards.used,
    };
    pthread_mutex_unlock(&a->lock);
}

/* ---- life ---- */

enum dctf_err dctf_admission_new(const struct dctf_admission_config *config, struct dctf_admission **out)
{
    size_t max = config->max_shards_tracked;
    size_t features = max / 4 < FEATURES_MIN ? FEATURES_MIN : max / 4;
    struct dctf_admission *a;
    enum dctf_err err;

    *out = NULL;
    assert(max > 0);
    a = calloc(1, sizeof(*a));
    if (!a)
        return DCTF_ERR_NO_MEMORY;
    pthread_mutex_init(&a->lock, NULL);
    a->seed = config->seed;
    a->now = 1;
    a->epoch = 1;
    a->gaps.unit = 1;
    err = dctf_recent_init(&a->shards, sizeof(struct shard_entry), max);
    if (!err)
        err = dctf_recent_init(&a->features, sizeof(struct feature_entry), features);
    if (!err)
        err = dctf_duel_init(
            &a->duel, max < DUEL_ENTRIES_MAX ? max + 1 : DUEL_ENTRIES_MAX, config->seed, hold_rule, a);
    if (err) {
        dctf_admission_free(a);
        return err;
    }
    *out = a;
    return DCTF_OK;
}

void dctf_admission_free(struct dctf_admission *admission)
{
    if (!admission)
        return;
    dctf_duel_fini(&admission->duel);
    dctf_recent_fini(&admission->features);
    dctf_recent_fini(&admission->shards);
    pthread_mutex_destroy(&admission->lock);
    free(admission);
}
