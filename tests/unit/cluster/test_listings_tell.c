/* SPDX-License-Identifier: Apache-2.0
 *
 * What one node tells the others: to forget listings, to drop shards, that a version is gone.
 */
#include "listings_fixture.h"

struct told {
    unsigned count, failed;
    uint64_t numbers[3];
};

static void each_told(void *ctx, const struct dctf_told_member *member)
{
    struct told *told = ctx;

    told->count++;
    told->failed += member->err != DCTF_OK;
    if (!member->err)
        memcpy(told->numbers, member->numbers, sizeof(told->numbers));
}

static void test_tell_all(void **state)
{
    struct core *core = open_all("nnn", 5);
    struct told told = {0};

    (void)state;
    assert_int_equal(
        dctf_cluster_tell(core->nodes[0].cluster, DCTF_TELL_SYNC, "a/b", true, FOREVER_MS, each_told, &told),
        DCTF_OK);
    assert_true(told.count == 2 && !told.failed && told.numbers[0] == 3 && !told.numbers[1]);
    assert_int_equal(hosts[0].synced, 0);
    assert_int_equal(hosts[1].synced + hosts[2].synced, 2);
    told = (struct told){0};
    assert_int_equal(
        dctf_cluster_tell(core->nodes[0].cluster, DCTF_TELL_EVICT, "", false, FOREVER_MS, each_told, &told),
        DCTF_OK);
    assert_true(told.count == 2 && told.failed == 1); /* of node 2 */
    assert_true(told.numbers[0] == 1 && told.numbers[1] == 1ull << 40 && told.numbers[2] == 2);
    close_all(core);
}

static void test_tell_who_does_not_answer(void **state)
{
    struct core *core = open_all("nsn", 5);
    struct told told = {0};

    (void)state;
    assert_int_equal(
        dctf_cluster_tell(core->nodes[0].cluster, DCTF_TELL_SYNC, "a/b", true, 500, each_told, &told),
        DCTF_OK);
    assert_true(told.count == 2 && told.failed >= 1);
    assert_int_equal(hosts[2].synced, 1);
    close_all(core);
}

/* Finder → who lists the directory → all others, once. */
static void test_tell_of_a_version_that_is_gone(void **state)
{
    struct core *core = open_all("nnn", 5);
    struct dctf_version *version;
    char dir[32], key[40];

    (void)state;
    name_dir(core, 1, ANY, dir);
    snprintf(key, sizeof(key), "%s/x", dir);
    assert_int_equal(dctf_version_new(DATASET, key, "etag", 9, DCTF_FEATURE_BY_DIRECTORY, &version), DCTF_OK);
    dctf_cluster_version_gone(core->nodes[0].cluster, version);
    wait_until(count_of(&hosts[2], &hosts[2].stale) == 1);
    assert_int_equal(count_of(&hosts[0], &hosts[0].stale), 1);
    assert_int_equal(count_of(&hosts[1], &hosts[1].stale), 1);
    /* No news to who lists it: it ends there; nor to the finder itself: nobody is told. */
    set_host(0, knows, true);
    dctf_cluster_version_gone(core->nodes[0].cluster, version);
    wait_until(count_of(&hosts[1], &hosts[1].stale) == 2);
    dctf_cluster_version_gone(core->nodes[0].cluster, version);
    wait_until(count_of(&hosts[0], &hosts[0].stale) == 3);
    cluster_close(&core->nodes[0]);
    cluster_close(&core->nodes[1]);
    assert_int_equal(hosts[1].stale, 2);
    assert_int_equal(hosts[2].stale, 1);
    dctf_version_unref(version);
    close_all(core);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tell_all),
        cmocka_unit_test(test_tell_who_does_not_answer),
        cmocka_unit_test(test_tell_of_a_version_that_is_gone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
