/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "cache/admission.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define MIB (1024u * 1024u)

static uint64_t mix(uint64_t x)
{
    struct dctf_rng rng = {.state = x};

    return dctf_rng_next(&rng);
}

static void test_access_bounds_memory(void **state)
{
    struct dctf_admission_config config = {.max_shards_tracked = 1000, .seed = 1};
    struct dctf_admission *policy;
    struct dctf_admission_stats stats;

    (void)state;
    assert_int_equal(dctf_admission_new(&config, &policy), DCTF_OK);
    for (uint64_t i = 0; i < 200000; i++)
        dctf_admission_access(policy, mix(i), mix(~i), i % 5 * MIB, 100000ull * MIB);
    dctf_admission_stats(policy, &stats);
    assert_in_range(stats.shards_tracked, 900, 1600);
    assert_int_equal(stats.now, 200000);
    dctf_admission_free(policy);
    dctf_admission_free(NULL);
}

static struct dctf_admission *small_policy(void)
{
    struct dctf_admission_config config = {.max_shards_tracked = 100, .seed = 1};
    struct dctf_admission *policy;

    assert_int_equal(dctf_admission_new(&config, &policy), DCTF_OK);
    return policy;
}

static void test_choose_edges(void **state)
{
    struct dctf_admission *policy = small_policy();
    struct dctf_admission_candidate self = {.key_hash = 5, .feature_id = 1, .bytes = MIB};
    struct dctf_admission_candidate pair[2] = {self, {.key_hash = 6, .feature_id = 1, .bytes = MIB}};
    size_t victim = 99;

    (void)state;
    /* Nobody gives way to itself. */
    for (unsigned i = 0; i < 20; i++)
        dctf_admission_access(policy, 5, 1, MIB, 0);
    assert_int_equal(dctf_admission_choose(policy, 5, 1, MIB, &self, 1, &victim), DCTF_BYPASS);
    assert_int_equal(victim, 1);
    assert_int_equal(dctf_admission_choose(policy, 5, 1, MIB, pair, 2, &victim), DCTF_ADMIT);
    assert_int_equal(victim, 1);
    assert_int_equal(dctf_admission_choose(policy, 5, 1, MIB, NULL, 0, &victim), DCTF_BYPASS);
    assert_int_equal(victim, 0);
    assert_int_equal(dctf_admission_coldest(policy, pair, 2), 1);
    assert_int_equal(dctf_admission_coldest(policy, pair, 1), 0);
    dctf_admission_free(policy);
}

static void test_choose_per_byte(void **state)
{
    struct dctf_admission *policy = small_policy();
    struct dctf_admission_candidate tiny = {.key_hash = 1, .feature_id = 1, .bytes = 64 * 1024};
    struct dctf_admission_candidate large = {.key_hash = 2, .feature_id = 1, .bytes = 1024ull * MIB};
    size_t victim;

    (void)state;
    dctf_admission_access(policy, tiny.key_hash, 1, tiny.bytes, 0);
    dctf_admission_access(policy, large.key_hash, 1, large.bytes, 0);
    /* Equally hot: the small one's bytes save more round trips. */
    assert_int_equal(dctf_admission_choose(policy, 1, 1, tiny.bytes, &large, 1, &victim), DCTF_ADMIT);
    assert_int_equal(dctf_admission_choose(policy, 2, 1, large.bytes, &tiny, 1, &victim), DCTF_BYPASS);
    /* A fragment is as warm as the shard it is of. */
    large.bytes = 64 * 1024;
    assert_int_equal(dctf_admission_choose(policy, 1, 1, tiny.bytes, &large, 1, &victim), DCTF_ADMIT);
    dctf_admission_free(policy);
}

static void test_seed_keeps_what_is_tracked(void **state)
{
    struct dctf_admission *policy = small_policy();
    struct dctf_admission_candidate candidates[2] = {
        {.key_hash = 1, .feature_id = 1, .bytes = MIB}, {.key_hash = 2, .feature_id = 1, .bytes = MIB}};

    (void)state;
    dctf_admission_seed(policy, 1, 1, 10);
    assert_int_equal(dctf_admission_coldest(policy, candidates, 2), 1);
    for (unsigned i = 0; i < 3; i++)
        dctf_admission_access(policy, 2, 1, MIB, 0);
    dctf_admission_seed(policy, 1, 1, 0); /* tracked: no effect */
    assert_int_equal(dctf_admission_coldest(policy, candidates, 2), 1);
    dctf_admission_seed(policy, 2, 1, 1000);
    assert_int_equal(dctf_admission_coldest(policy, candidates, 2), 1);
    dctf_admission_free(policy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_access_bounds_memory),
        cmocka_unit_test(test_choose_edges),
        cmocka_unit_test(test_choose_per_byte),
        cmocka_unit_test(test_seed_keeps_what_is_tracked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
