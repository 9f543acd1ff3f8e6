/* SPDX-License-Identifier: Apache-2.0
 *
 * Plays the ways training jobs read against the real policy, in a cache that is
 * only sizes, and holds the hit ratios against the optimum without look-ahead, or a simpler rule.
 */
#include "base/clock.h"
#include "cache/admission.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SHARDS 2000u
#define CANDIDATES 16u
#define MIB (1024u * 1024u)
#define NOT_HERE UINT32_MAX

/* ---- a cache of sizes ---- */

struct shard {
    uint64_t key_hash, feature_id, bytes;
    uint32_t slot;        /* in resident[] */
    uint64_t last_access; /* for LRU */
};

struct tally {
    uint64_t opens, hits, bytes, hit_bytes, admitted;
};

struct game {
    struct dctf_admission *policy;
    bool lru, hold_alone;
    struct dctf_rng rng;
    uint64_t capacity, used, now;
    struct shard *shards;
    size_t shard_count;
    uint32_t *resident;
    size_t resident_count;
    struct tally tally;
};

static uint64_t mix(uint64_t x)
{
    struct dctf_rng rng = {.state = x};

    return dctf_rng_next(&rng);
}

/* `sizes` cycles over the shards; shards_per_feature 0: one feature for all. */
static void game_init(struct game *game, size_t count, const uint64_t *sizes, size_t size_count, double share,
    size_t shards_per_feature)
{
    struct dctf_admission_config config = {.max_shards_tracked = 1 << 20, .seed = 42};
    uint64_t total = 0;

    *game = (struct game){.rng = {.state = 7}, .shard_count = count};
    game->shards = calloc(count, sizeof(*game->shards));
    game->resident = calloc(count, sizeof(*game->resident));
    assert_non_null(game->shards);
    assert_non_null(game->resident);
    for (size_t i = 0; i < count; i++) {
        game->shards[i] = (struct shard){.key_hash = mix(i),
            .feature_id = mix(~(shards_per_feature ? i / shards_per_feature : 0)),
            .bytes = sizes[i % size_count],
            .slot = NOT_HERE};
        total += game->shards[i].bytes;
    }
    game->capacity = (uint64_t)((double)total * share);
    assert_int_equal(dctf_admission_new(&config, &game->policy), DCTF_OK);
}

static void game_fini(struct game *game)
{
    dctf_admission_free(game->policy);
    free(game->shards);
    free(game->resident);
}

static void evict(struct game *game, uint32_t i)
{
    uint32_t slot = game->shards[i].slot;
    uint32_t last = game->resident[--game->resident_count];

    game->resident[slot] = last;
    game->shards[last].slot = slot;
    game->shards[i].slot = NOT_HERE;
    game->used -= game->shards[i].bytes;
}

static uint32_t oldest(const struct game *game)
{
    uint32_t found = game->resident[0];

    for (size_t i = 1; i < game->resident_count; i++)
        if (game->shards[game->resident[i]].last_access < game->shards[found].last_access)
            found = game->resident[i];
    return found;
}

/* One step of making room; false: the newcomer stays out. */
static bool make_room(struct game *game, const struct shard *shard)
{
    struct dctf_admission_candidate candidates[CANDIDATES];
    uint32_t index[CANDIDATES];
    size_t victim;

    if (game->resident_count == 0)
        return false;
    if (game->lru) {
        evict(game, oldest(game));
        return true;
    }
    for (size_t i = 0; i < CANDIDATES; i++) {
        index[i] = game->resident[dctf_rng_below(&game->rng, game->resident_count)];
        candidates[i] = (struct dctf_admission_candidate){.key_hash = game->shards[index[i]].key_hash,
            .feature_id = game->shards[index[i]].feature_id,
            .bytes = game->shards[index[i]].bytes};
    }
    if (dctf_admission_choose(game->policy, shard->key_hash, shard->feature_id, shard->bytes, candidates,
            CANDIDATES, &victim) == DCTF_BYPASS) {
        assert_int_equal(victim, CANDIDATES);
        return false;
    }
    evict(game, index[victim]);
    return true;
}

static bool open_shard(struct game *game, uint32_t i)
{
    struct shard *shard = &game->shards[i];
    bool hit = shard->slot != NOT_HERE;

    game->now++;
    shard->last_access = game->now;
    if (!game->lru)
        dctf_admission_access(game->policy, shard->key_hash, shard->feature_id, shard->bytes,
            game->hold_alone ? 0 : game->capacity); /* no capacity, no duel */
    game->tally.opens++;
    game->tally.bytes += shard->bytes;
    if (hit) {
        game->tally.hits++;
        game->tally.hit_bytes += shard->bytes;
        return true;
    }
    if (shard->bytes > game->capacity)
        return false;
    while (game->used + shard->bytes > game->capacity)
        if (!make_room(game, shard))
            return false;
    shard->slot = (uint32_t)game->resident_count;
    game->resident[game->resident_count++] = i;
    game->used += shard->bytes;
    game->tally.admitted++;
    return false;
}

static double hit_ratio(const struct tally *tally)
{
    return (double)tally->hits / (double)tally->opens;
}

static double byte_ratio(const struct tally *tally)
{
    return (double)tally->hit_bytes / (double)tally->bytes;
}

static struct tally take_tally(struct game *game)
{
    struct tally tally = game->tally;

    game->tally = (struct tally){0};
    return tally;
}

/* ---- ways to read ---- */

static uint32_t *order_of(size_t count)
{
    uint32_t *order = calloc(count, sizeof(*order));

    assert_non_null(order);
    for (size_t i = 0; i < count; i++)
        order[i] = (uint32_t)i;
    return order;
}

static void shuffle(struct dctf_rng *rng, uint32_t *order, size_t count)
{
    for (size_t i = count; i > 1; i--) {
        size_t j = dctf_rng_below(rng, i);
        uint32_t swap = order[i - 1];

        order[i - 1] = order[j];
        order[j] = swap;
    }
}

struct epoch_options {
    uint32_t base, count; /* shards read: [base, base + count) */
    bool in_order;
    unsigned opens;     /* of each shard, close together; 0: one */
    double side_chance; /* of one more read, from the `side_count` shards at `side_base` */
    uint32_t side_base, side_count;
    uint32_t stop_at; /* reads after which the job dies; 0: never */
};

/* Several workers at different places in the same order open each shard. */
static void play_epoch(struct game *game, struct dctf_rng *rng, const struct epoch_options *options)
{
    uint32_t *order = order_of(options->count);
    unsigned opens = options->opens ? options->opens : 1;
    uint32_t stop = options->stop_at ? options->stop_at : options->count;

    if (!options->in_order)
        shuffle(rng, order, options->count);
    for (uint32_t at = 0; at < stop + (opens - 1) * 3; at++) {
        for (unsigned worker = 0; worker < opens; worker++)
            if (at >= worker * 3 && at - worker * 3 < stop)
                open_shard(game, options->base + order[at - worker * 3]);
        if (options->side_count && (double)dctf_rng_below(rng, 1000) < options->side_chance * 1000)
            open_shard(game, options->side_base + (uint32_t)dctf_rng_below(rng, options->side_count));
    }
    free(order);
}

/* Hit ratio from the second epoch on. */
static struct tally play_epochs(struct game *game, unsigned epochs, const struct epoch_options *options)
{
    struct dctf_rng rng = {.state = 1};

    for (unsigned epoch = 0; epoch < epochs; epoch++) {
        play_epoch(game, &rng, options);
        if (epoch == 0)
            take_tally(game);
    }
    return take_tally(game);
}

/* Independent draws with popularity 1 / rank^0.9. */
static void play_zipf(struct game *game, uint64_t ranking_seed, uint64_t draw_seed, size_t reads)
{
    struct dctf_rng rank_rng = {.state = ranking_seed}, draw_rng = {.state = ~draw_seed};
    uint32_t *ranking = order_of(game->shard_count);
    double *cumulated = calloc(game->shard_count, sizeof(*cumulated));
    double sum = 0;

    assert_non_null(cumulated);
    shuffle(&rank_rng, ranking, game->shard_count);
    for (size_t i = 0; i < game->shard_count; i++)
        cumulated[i] = sum += 1 / pow((double)i + 1, 0.9);
    while (reads-- > 0) {
        double at = (double)(dctf_rng_next(&draw_rng) >> 11) * 0x1p-53 * sum;
        size_t low = 0, high = game->shard_count - 1;

        while (low < high) {
            size_t middle = (low + high) / 2;

            if (cumulated[middle] < at)
                low = middle + 1;
            else
                high = middle;
        }
        open_shard(game, ranking[low]);
    }
    free(cumulated);
    free(ranking);
}

enum rule { RULE_OURS, RULE_LRU, RULE_HOLD_ALONE };

/* Five times four "epochs" of draws after one to warm up; with `drift` each has a ranking of its own. */
static struct tally zipf_game(double share, enum rule rule, bool drift)
{
    uint64_t size = MIB;
    struct game game;
    struct tally tally;

    game_init(&game, SHARDS, &size, 1, share, 0);
    game.lru = rule == RULE_LRU;
    game.hold_alone = rule == RULE_HOLD_ALONE;
    for (unsigned turn = 0; turn < 6; turn++) {
        play_zipf(&game, drift ? turn : 0, turn, 4 * SHARDS);
        if (turn == 0)
            take_tally(&game);
    }
    tally = take_tally(&game);
    game_fini(&game);
    return tally;
}

/* ---- tests ---- */

static struct tally epochs_game(double share, size_t count, size_t per_feature, struct epoch_options options)
{
    uint64_t size = 64 * MIB;
    struct game game;
    struct tally tally;

    game_init(&game, count, &size, 1, share, per_feature);
    if (!options.count)
        options.count = (uint32_t)count;
    tally = play_epochs(&game, 10, &options);
    game_fini(&game);
    return tally;
}

static const double shares[] = {0.10, 0.25, 0.50, 0.75};

static void check_epochs(
    const char *what, size_t count, size_t per_feature, struct epoch_options options, double least)
{
    double got[4];

    for (size_t i = 0; i < 4; i++) {
        struct tally tally = epochs_game(shares[i], count, per_feature, options);

        got[i] = hit_ratio(&tally);
    }
    printf("%-28s %.3f %.3f %.3f %.3f\n", what, got[0], got[1], got[2], got[3]);
    for (size_t i = 0; i < 4; i++)
        assert_true(got[i] >= least * shares[i]);
}

static void test_choose_shuffled_epochs(void **state)
{
    (void)state;
    check_epochs("epochs .10 .25 .50 .75", SHARDS, 0, (struct epoch_options){0}, 0.95);
    check_epochs("epochs, 30 per feature", SHARDS, 30, (struct epoch_options){0}, 0.95);
    check_epochs("epochs, a feature a shard", SHARDS, 1, (struct epoch_options){0}, 0.90);
    check_epochs("epochs, 30000 shards", 30000, 0, (struct epoch_options){0}, 0.95);
}

static void test_choose_scans_in_order(void **state)
{
    (void)state;
    check_epochs("scans", SHARDS, 0, (struct epoch_options){.in_order = true}, 0.95);
    check_epochs("scans, 30 per feature", SHARDS, 30, (struct epoch_options){.in_order = true}, 0.95);
}

static void test_choose_repeated_opens(void **state)
{
    struct tally tally;

    (void)state;
    check_epochs("epochs, opened 2 times", SHARDS, 0, (struct epoch_options){.opens = 2}, 0.95);
    check_epochs("epochs, opened 8 times", SHARDS, 30, (struct epoch_options){.opens = 8}, 0.95);
    /* Workers that run hundreds of accesses apart: only no collapse is asked for. */
    tally = epochs_game(0.5, 500, 0, (struct epoch_options){.opens = 40});
    printf("%-28s %.3f\n", "epochs .50, opened 40 times", hit_ratio(&tally));
    assert_true(hit_ratio(&tally) >= 0.95 * 0.5);
}

static void test_choose_zipf_and_drift(void **state)
{
    static const double zipf_shares[] = {0.01, 0.05, 0.20};

    (void)state;
    for (unsigned drift = 0; drift < 2; drift++)
        for (size_t i = 0; i < 3; i++) {
            struct tally ours = zipf_game(zipf_shares[i], RULE_OURS, drift);
            struct tally lru = zipf_game(zipf_shares[i], RULE_LRU, drift);
            struct tally hold = zipf_game(zipf_shares[i], RULE_HOLD_ALONE, drift);

            printf("%s .%02.0f                     %.3f (LRU %.3f, hold alone %.3f)\n",
                drift ? "drift" : "zipf ", zipf_shares[i] * 100, hit_ratio(&ours), hit_ratio(&lru),
                hit_ratio(&hold));
            assert_true(hit_ratio(&ours) >= hit_ratio(&lru) - (drift ? 0.01 : 0));
            if (drift)
                assert_true(hit_ratio(&ours) >= hit_ratio(&hold) + 0.04);
            else
                assert_true(hit_ratio(&ours) >= hit_ratio(&hold) - 0.02);
        }
}

static void test_choose_mix_of_jobs(void **state)
{
    struct epoch_options options = {
        .count = SHARDS, .side_base = SHARDS, .side_count = SHARDS / 20, .side_chance = 0.3};
    uint64_t size = MIB;
    struct game game;
    struct tally tally;

    (void)state;
    game_init(&game, SHARDS + SHARDS / 20, &size, 1, 0.25 / 1.05, 0);
    tally = play_epochs(&game, 8, &options);
    printf("%-28s %.3f (optimum .385)\n", "mix .25", hit_ratio(&tally));
    assert_true(hit_ratio(&tally) >= 0.37);
    game_fini(&game);
}

/* Five epochs of one dataset, then another: from its second epoch on the new one has the cache. */
static void switch_game(const char *what, size_t per_feature, unsigned epoch_of_takeover)
{
    uint64_t size = MIB;
    struct dctf_rng rng = {.state = 5};
    struct game game;

    game_init(&game, 2 * SHARDS, &size, 1, 0.25, per_feature);
    printf("%-28s", what);
    for (unsigned epoch = 0; epoch < 10; epoch++) {
        struct epoch_options options = {.base = epoch < 5 ? 0 : SHARDS, .count = SHARDS};
        struct tally tally;

        play_epoch(&game, &rng, &options);
        tally = take_tally(&game);
        printf(" %.2f", hit_ratio(&tally));
        if (epoch >= 5 + epoch_of_takeover)
            assert_true(hit_ratio(&tally) >= 0.95 * 0.5);
    }
    printf("\n");
    game_fini(&game);
}

static void test_choose_new_dataset(void **state)
{
    (void)state;
    switch_game("new dataset .50", SHARDS, 1);
    switch_game("  50 shards per feature", 50, 1);
    switch_game("  in the same feature", 0, 3);
    switch_game("  a feature a shard", 1, 3);
}

static void sizes_game(const char *what, size_t count, const uint64_t *sizes, size_t size_count,
    uint64_t largest, unsigned from_epoch)
{
    printf("%-28s", what);
    for (size_t i = 0; i < 4; i++) {
        struct dctf_rng rng = {.state = 9};
        struct epoch_options options = {.count = (uint32_t)count};
        struct game game;
        struct tally tally;
        double reachable;

        game_init(&game, count, sizes, size_count, shares[i], 0);
        for (unsigned epoch = 0; epoch < 10; epoch++) {
            if (epoch == from_epoch)
                take_tally(&game);
            play_epoch(&game, &rng, &options);
        }
        tally = take_tally(&game);
        printf(" %.3f", byte_ratio(&tally));
        /* This game keeps whole shards only: a gap smaller than the largest may stay. */
        reachable = shares[i] * (1 - (double)largest / (double)game.capacity);
        assert_true(byte_ratio(&tally) >= 0.95 * reachable);
        game_fini(&game);
    }
    printf("\n");
}

static void test_choose_mixed_sizes(void **state)
{
    static const uint64_t one_to_eight[] = {64 * MIB, 512ull * MIB};
    static const uint64_t spread[] = {MIB, 3 * MIB, 9 * MIB, 27 * MIB, 81 * MIB, 243 * MIB};
    static uint64_t tiny_and_huge[200];

    (void)state;
    for (size_t i = 0; i < 200; i++)
        tiny_and_huge[i] = i == 7 ? 4096ull * MIB : 100 * 1024;
    sizes_game("bytes, sizes 1:8", SHARDS, one_to_eight, 2, 512ull * MIB, 1);
    sizes_game("bytes, sizes 1 to 243", SHARDS, spread, 6, 243 * MIB, 2);
    sizes_game("bytes, 7960 tiny, 40 huge", 8000, tiny_and_huge, 200, 4096ull * MIB, 2);
}

/* The job dies halfway through every third epoch and begins that one again. */
static void test_choose_job_restarts(void **state)
{
    uint64_t size = MIB;
    struct game game;
    struct tally tally;

    (void)state;
    game_init(&game, SHARDS, &size, 1, 0.5, 40);
    for (unsigned epoch = 0; epoch < 12; epoch++) {
        struct dctf_rng rng = {.state = epoch};
        struct epoch_options half = {.count = SHARDS, .stop_at = SHARDS / 2}, full = {.count = SHARDS};

        if (epoch % 3 == 2) {
            play_epoch(&game, &rng, &half);
            rng.state = epoch; /* the same order again */
        }
        if (epoch == 1)
            take_tally(&game);
        play_epoch(&game, &rng, &full);
    }
    tally = take_tally(&game);
    printf("%-28s %.3f\n", "epochs .50, job restarts", hit_ratio(&tally));
    assert_true(hit_ratio(&tally) >= 0.95 * 0.5);
    game_fini(&game);
}

/* A new process finds a full cache: nothing is known, and it must not churn. */
static void process_restart_game(bool seeded, size_t per_feature)
{
    struct dctf_admission_config config = {.max_shards_tracked = 1 << 20, .seed = 43};
    struct epoch_options options = {.count = SHARDS};
    struct dctf_rng rng = {.state = 21};
    uint64_t size = MIB;
    struct game game;
    struct tally tally;

    game_init(&game, SHARDS, &size, 1, 0.5, per_feature);
    for (unsigned epoch = 0; epoch < 4; epoch++)
        play_epoch(&game, &rng, &options);
    dctf_admission_free(game.policy);
    assert_int_equal(dctf_admission_new(&config, &game.policy), DCTF_OK);
    for (uint32_t i = 0; seeded && i < SHARDS; i++)
        dctf_admission_seed(game.policy, game.shards[i].key_hash, game.shards[i].feature_id, 4);
    take_tally(&game);
    play_epoch(&game, &rng, &options);
    tally = take_tally(&game);
    assert_true(hit_ratio(&tally) >= 0.95 * 0.5);
    play_epoch(&game, &rng, &options);
    tally = take_tally(&game);
    assert_true(hit_ratio(&tally) >= 0.95 * 0.5);
    game_fini(&game);
}

static void test_choose_after_process_restart(void **state)
{
    (void)state;
    process_restart_game(false, 0);
    process_restart_game(true, 0);
    process_restart_game(false, 30);
    process_restart_game(true, 30);
}

/* While the cache fills in the first epoch every heat is about one. */
static void test_choose_first_epoch_bypasses(void **state)
{
    uint64_t size = MIB;
    struct dctf_rng rng = {.state = 2};
    struct epoch_options options = {.count = SHARDS};
    struct dctf_admission_stats stats;
    struct game game;

    (void)state;
    game_init(&game, SHARDS, &size, 1, 0.3, 25);
    play_epoch(&game, &rng, &options);
    assert_int_equal(game.tally.admitted, SHARDS * 3 / 10);
    dctf_admission_stats(game.policy, &stats);
    assert_int_equal(stats.epoch_accesses, 0);
    assert_int_equal(stats.now, SHARDS);
    for (unsigned epoch = 1; epoch < 5; epoch++)
        play_epoch(&game, &rng, &options);
    dctf_admission_stats(game.policy, &stats);
    assert_in_range(stats.epoch_accesses, SHARDS * 8 / 10, SHARDS * 14 / 10);
    assert_int_equal(game.tally.admitted, SHARDS * 3 / 10);
    game_fini(&game);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choose_shuffled_epochs),
        cmocka_unit_test(test_choose_scans_in_order),
        cmocka_unit_test(test_choose_repeated_opens),
        cmocka_unit_test(test_choose_zipf_and_drift),
        cmocka_unit_test(test_choose_mix_of_jobs),
        cmocka_unit_test(test_choose_new_dataset),
        cmocka_unit_test(test_choose_mixed_sizes),
        cmocka_unit_test(test_choose_job_restarts),
        cmocka_unit_test(test_choose_after_process_restart),
        cmocka_unit_test(test_choose_first_epoch_bypasses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
