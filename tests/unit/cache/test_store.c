/* SPDX-License-Identifier: Apache-2.0 */
#include "store_fixture.h"

#include "cache/heat.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#define BIG (20 * MIB + 12345) /* three extents, a short last block */

static void test_write_read_file_shard(void **state)
{
    struct fixture *fx = *state;
    struct dctf_shard *shard = get_shard(fx, "a/big", BIG);
    uint32_t missing;

    assert_int_equal(dctf_shard_tier(shard), DCTF_TIER_COLD);
    assert_int_equal(check_read(shard, 0, 1, &missing), DCTF_ERR_MISS);
    assert_true(write_blocks(shard, 31, 3)); /* across an extent's end */
    assert_int_equal(dctf_shard_count_present(shard, 0, 100), 3);
    assert_int_equal(dctf_shard_count_present(shard, 32, 1), 1);
    assert_true(dctf_shard_is_present(shard, 33));
    assert_false(dctf_shard_is_present(shard, 34));
    assert_int_equal(dctf_shard_present_bytes(shard), 3 * DCTF_BLOCK_BYTES);
    assert_int_equal(dctf_shard_tier(shard), DCTF_TIER_WARM);
    assert_int_equal(check_read(shard, 31 * DCTF_BLOCK_BYTES + 7, 2 * DCTF_BLOCK_BYTES, &missing), DCTF_OK);
    assert_int_equal(check_read(shard, 33 * DCTF_BLOCK_BYTES, 2 * DCTF_BLOCK_BYTES, &missing), DCTF_ERR_MISS);
    assert_int_equal(missing, 34);
    assert_int_equal(dctf_shard_pin(shard), -1);
    assert_true(write_all_blocks(shard));
    assert_true(dctf_shard_is_complete(shard));
    assert_int_equal(dctf_shard_present_bytes(shard), BIG);
    assert_int_equal(dctf_shard_tier(shard), DCTF_TIER_HOT);
    assert_int_equal(check_read_all(shard), DCTF_OK);
    assert_int_equal(stats_of(fx).verified_shards, 1);
    assert_int_equal(stats_of(fx).shards, 1);
    dctf_shard_put(shard);
}

static void test_write_read_small_shards(void **state)
{
    static const uint64_t sizes[] = {
        1, 4096, DCTF_BLOCK_BYTES - 1, DCTF_BLOCK_BYTES, DCTF_BLOCK_BYTES + 1, DCTF_SMALL_BYTES};
    struct fixture *fx = *state;
    struct dctf_shard *shard;
    uint32_t missing;
    char key[16];

    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            snprintf(key, sizeof(key), "s/%zu", i);
            shard = get_shard(fx, key, sizes[i]);
            if (!round) {
                assert_int_equal(check_read_all(shard), DCTF_ERR_MISS);
                assert_true(write_all_blocks(shard));
            }
            assert_int_equal(check_read_all(shard), DCTF_OK);
            assert_int_equal(check_read(shard, sizes[i] / 2, sizes[i] - sizes[i] / 2, &missing), DCTF_OK);
            assert_int_equal(dctf_shard_tier(shard), DCTF_TIER_WARM);
            assert_int_equal(dctf_shard_present_bytes(shard), sizes[i]);
            assert_int_equal(dctf_shard_pin(shard), -1);
            dctf_shard_put(shard);
        }
        fixture_reopen(fx);
    }
    assert_int_equal(stats_of(fx).file_bytes, 0);
}

static void test_small_shard_is_kept_whole_only(void **state)
{
    struct fixture *fx = *state;
    struct dctf_shard *shard = get_shard(fx, "s/x", 2 * DCTF_BLOCK_BYTES);

    assert_false(write_blocks(shard, 0, 1));
    assert_false(write_blocks(shard, 1, 1));
    assert_false(dctf_shard_is_present(shard, 0));
    assert_true(write_blocks(shard, 0, 2));
    assert_true(dctf_shard_is_present(shard, 1));
    dctf_shard_put(shard);
}

static void test_empty_shard_is_complete(void **state)
{
    struct fixture *fx = *state;
    struct dctf_shard *shard = get_shard(fx, "s/empty", 0);
    uint32_t missing;
    bool kept;

    assert_true(dctf_shard_is_complete(shard));
    assert_int_equal(dctf_shard_read(shard, 0, 0, NULL, &missing), DCTF_OK);
    assert_int_equal(dctf_shard_write(shard, 0, "", 0, &kept), DCTF_OK);
    assert_true(kept);
    assert_int_equal(dctf_shard_evict(shard), DCTF_OK);
    dctf_shard_put(shard);
}

static void test_partial_last_block_is_not_taken(void **state)
{
    struct fixture *fx = *state;
    struct dctf_shard *shard = get_shard(fx, "a/big", BIG);
    uint8_t *data = calloc(1, 2 * DCTF_BLOCK_BYTES);
    bool kept;

    assert_non_null(data);
    fill_bytes(dctf_shard_version(shard), 0, 2 * DCTF_BLOCK_BYTES, data);
    assert_int_equal(dctf_shard_write(shard, 0, data, 2 * DCTF_BLOCK_BYTES - 1, &kept), DCTF_OK);
    assert_true(kept);
    assert_int_equal(dctf_shard_count_present(shard, 0, 10), 1);
    free(data);
    dctf_shard_put(shard);
}

static void test_reopen_keeps_and_verifies_again(void **state)
{
    struct fixture *fx = *state;
    struct dctf_shard *shard = get_shard(fx, "a/big", BIG);
    uint64_t file_bytes;
    uint32_t bad;

    assert_true(write_all_blocks(shard));
    dctf_shard_put(shard);
    file_bytes = stats_of(fx).file_bytes;
    assert_int_equal(file_bytes, (BIG + 4095) / 4096 * 4096);
    fixture_reopen(fx);
    assert_int_equal(stats_of(fx).file_bytes, file_bytes);
    assert_false(stats_of(fx).counting);
    shard = get_shard(fx, "a/big", BIG);
    assert_true(dctf_shard_is_complete(shard));
    assert_int_equal(dctf_shard_tier(shard), DCTF_TIER_WARM); /* may have rotted meanwhile */
    assert_int_equal(dctf_shard_pin(shard), -1);
    assert_int_equal(check_read_all(shard), DCTF_OK);
    assert_int_equal(dctf_shard_tier(shard), DCTF_TIER_HOT);
    assert_int_equal(dctf_shard_verify(shard, &bad), DCTF_OK);
    assert_int_equal(bad, 0);
    dctf_shard_put(shard);
}

static void test_other_version_is_another_shard(void **state)
{
    struct fixture *fx = *state;
    struct dctf_shard *shard = get_shard(fx, "a/x", 5000);
    struct dctf_version *newer;
    struct dctf_shard *other;

    assert_true(write_all_blocks(shard));
    assert_int_equal(
        dctf_version_new(DATASET, "a/x", "v2", 5000, DCTF_FEATURE_BY_DIRECTORY, &newer), DCTF_OK);
    assert_int_equal(dctf_shard_get(fx->store, newer, &other), DCTF_OK);
    assert_false(dctf_shard_is_complete(other));
    dctf_version_unref(newer);
    dctf_shard_put(other);
    dctf_shard_put(shard);
}

static void test_pin_hands_out_the_file(void **state)
{
    struct fixture *fx = *state;
    struct dctf_shard *shard = get_shard(fx, "a/big", BIG);
    uint8_t got[64], want[64], *block = malloc(DCTF_BLOCK_BYTES);
    uint64_t sums[2];
    int fd;

    assert_non_null(block);
    assert_true(write_all_blocks(shard));
    fd = dctf_shard_pin(shard);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, got, sizeof(got), 8 * MIB + 5), sizeof(got));
    fill_bytes(dctf_shard_version(shard), 8 * MIB + 5, sizeof(want), want);
    assert_memory_equal(got, want, sizeof(got));
    dctf_shard_sums(shard, 31, 2, sums); /* across an extent */
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(
            pread(fd, block, DCTF_BLOCK_BYTES, (off_t)(31 + i) * DCTF_BLOCK_BYTES), DCTF_BLOCK_BYTES);
        assert_true(sums[i] == dctf_hash64(block, DCTF_BLOCK_BYTES));
    }
    assert_int_equal(dctf_shard_evict(shard), DCTF_ERR_CACHE_IN_USE);
    assert_true(dctf_shard_is_complete(shard));
    dctf_shard_unpin(shard);
    assert_int_equal(dctf_shard_evict(shard), DCTF_OK);
    assert_false(dctf_shard_is_present(shard, 0));
    assert_int_equal(stats_of(fx).file_bytes, 0);
    assert_int_equal(stats_of(fx).shards, 0);
    assert_int_equal(stats_of(fx).verified_shards, 0);
    dctf_shard_put(shard);
    free(block);
}

static void flip_byte(const char *path, off_t at)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    uint8_t byte;

    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void test_read_corrupt_block_is_dropped(void **state)
{
    struct fixture *fx = *state;
    struct dctf_shard *shard = get_shard(fx, "a/big", BIG);
    char path[160];
    uint32_t missing;

    assert_true(write_all_blocks(shard));
    shard_path(fx, shard, path, sizeof(path));
    dctf_shard_put(shard);
    fixture_reopen(fx);
    flip_byte(path, 5 * DCTF_BLOCK_BYTES + 99);
    shard = get_shard(fx, "a/big", BIG);
    assert_int_equal(check_read(shard, 0, 10 * DCTF_BLOCK_BYTES, &missing), DCTF_ERR_BLOCK_CORRUPT);
    assert_int_equal(missing, 5);
    assert_false(dctf_shard_is_present(shard, 5));
    assert_true(dctf_shard_is_present(shard, 4));
    assert_int_equal(dctf_metric_get(fx->metrics, DCTF_METRIC_CACHE_BAD_BLOCKS), 1);
    assert_int_equal(dctf_metric_errors(fx->metrics, DCTF_ERR_BLOCK_CORRUPT), 1);
    assert_int_equal(check_read(shard, 0, 10 * DCTF_BLOCK_BYTES, &missing), DCTF_ERR_MISS);
    assert_true(write_blocks(shard, 5, 1));
    assert_int_equal(check_read_all(shard), DCTF_OK);
    dctf_shard_put(shard);
}

static void test_verify_counts_bad_blocks(void **state)
{
    struct fixture *fx = *state;
    struct dctf_shard *shard = get_shard(fx, "a/big", BIG);
    char path[160];
    uint32_t bad;

    assert_true(write_all_blocks(shard));
    shard_path(fx, shard, path, sizeof(path));
    flip_byte(path, 3 * DCTF_BLOCK_BYTES);
    flip_byte(path, BIG - 1);
    assert_int_equal(dctf_shard_verify(shard, &bad), DCTF_OK); /* though verified before */
    assert_int_equal(bad, 2);
    assert_int_equal(dctf_shard_tier(shard), DCTF_TIER_WARM);
    dctf_shard_put(shard);
}

static void test_read_after_file_was_deleted(void **state)
{
    struct fixture *fx = *state;
    struct dctf_shard *shard = get_shard(fx, "a/big", BIG);
    char path[160];

    assert_true(write_all_blocks(shard));
    shard_path(fx, shard, path, sizeof(path));
    dctf_shard_put(shard); /* closes the descriptor */
    assert_int_equal(unlink(path), 0);
    shard = get_shard(fx, "a/big", BIG);
    assert_int_equal(dctf_shard_pin(shard), -1);
    assert_int_equal(check_read_all(shard), DCTF_ERR_MISS);
    assert_int_equal(dctf_shard_present_bytes(shard), 0);
    assert_int_equal(stats_of(fx).file_bytes, 0);
    assert_true(write_all_blocks(shard)); /* kept again */
    assert_int_equal(check_read_all(shard), DCTF_OK);
    assert_true(dctf_shard_pin(shard) >= 0);
    dctf_shard_unpin(shard);
    dctf_shard_put(shard);
}

static void test_read_after_file_was_cut(void **state)
{
    struct fixture *fx = *state;
    struct dctf_shard *shard = get_shard(fx, "a/big", BIG);
    char path[160];
    uint32_t missing;

    assert_true(write_all_blocks(shard));
    shard_path(fx, shard, path, sizeof(path));
    assert_int_equal(truncate(path, 10 * DCTF_BLOCK_BYTES), 0);
    assert_int_equal(check_read(shard, 9 * DCTF_BLOCK_BYTES, 100, &missing), DCTF_OK);
    assert_int_equal(check_read(shard, 12 * DCTF_BLOCK_BYTES, 100, &missing), DCTF_ERR_MISS);
    assert_int_equal(missing, 12);
    assert_false(dctf_shard_is_present(shard, 70));
    dctf_shard_put(shard);
}

static void test_evict_forgets_across_reopen(void **state)
{
    struct fixture *fx = *state;
    struct dctf_shard *big = get_shard(fx, "a/big", BIG);
    struct dctf_shard *small = get_shard(fx, "a/small", 70000);

    assert_true(write_all_blocks(big));
    assert_true(write_all_blocks(small));
    assert_int_equal(dctf_shard_evict(big), DCTF_OK);
    assert_int_equal(dctf_shard_evict(small), DCTF_OK);
    assert_int_equal(check_read_all(small), DCTF_ERR_MISS);
    dctf_shard_put(big);
    dctf_shard_put(small);
    fixture_reopen(fx);
    big = get_shard(fx, "a/big", BIG);
    small = get_shard(fx, "a/small", 70000);
    assert_int_equal(dctf_shard_present_bytes(big) + dctf_shard_present_bytes(small), 0);
    assert_int_equal(stats_of(fx).small_bytes, 0);
    dctf_shard_put(big);
    dctf_shard_put(small);
}

static bool count_resident(void *ctx, const struct dctf_version *version, uint64_t present_bytes)
{
    uint64_t *sum = ctx;

    assert_non_null(version->key);
    sum[0]++;
    sum[1] += present_bytes;
    return sum[0] < sum[2];
}

static void test_each_visits_residents(void **state)
{
    struct fixture *fx = *state;
    uint64_t sum[3] = {0, 0, UINT64_MAX};
    char key[32];

    for (int i = 0; i < 600; i++) {
        struct dctf_shard *shard;

        snprintf(key, sizeof(key), "f%d/s%d", i % 3, i);
        shard = get_shard(fx, key, 100);
        assert_true(write_all_blocks(shard));
        dctf_shard_put(shard);
    }
    assert_int_equal(dctf_store_each(fx->store, count_resident, sum), DCTF_OK);
    assert_int_equal(sum[0], 600);
    assert_int_equal(sum[1], 60000);
    sum[0] = 0;
    sum[2] = 5;
    assert_int_equal(dctf_store_each(fx->store, count_resident, sum), DCTF_OK);
    assert_int_equal(sum[0], 5);
}

static void test_touch_counts_heat(void **state)
{
    struct fixture *fx = *state;
    struct dctf_shard *shard = get_shard(fx, "user_age/x", 100);
    struct dctf_heat_value value;

    dctf_shard_touch(shard);
    dctf_shard_touch(shard);
    assert_int_equal(dctf_metric_get(fx->metrics, DCTF_METRIC_HEAT_RECORDED), 2);
    dctf_heat_of_shard(dctf_store_heat(fx->store), dctf_shard_version(shard)->key_hash, &value);
    assert_int_equal(value.access_count, 2);
    dctf_shard_put(shard);
    fixture_reopen(fx);
    shard = get_shard(fx, "user_age/x", 100);
    dctf_heat_of_shard(dctf_store_heat(fx->store), dctf_shard_version(shard)->key_hash, &value);
    assert_int_equal(value.access_count, 2);
    dctf_shard_put(shard);
}

static void test_open_twice_is_refused(void **state)
{
    struct fixture *fx = *state;
    struct fixture second = *fx;

    assert_int_equal(fixture_open(&second), DCTF_ERR_CACHE_IN_USE);
    assert_null(second.store);
}

static void test_open_damaged_database(void **state)
{
    struct fixture *fx = *state;
    char path[128];
    FILE *file;

    dctf_store_close(fx->store);
    snprintf(path, sizeof(path), "%s/db/CURRENT", fx->dir);
    file = fopen(path, "w");
    assert_non_null(file);
    fputs("junk\n", file);
    fclose(file);
    assert_int_equal(fixture_open(fx), DCTF_ERR_CACHE_CORRUPT);
    assert_null(fx->store);
}

static void note_crashed_openings(struct fixture *fx, const char *count)
{
    char path[128];
    FILE *file;

    snprintf(path, sizeof(path), "%s/OPENING", fx->dir);
    file = fopen(path, "w");
    assert_non_null(file);
    fputs(count, file);
    fclose(file);
}

static void test_open_after_crashes_while_opening(void **state)
{
    struct fixture *fx = *state;

    dctf_store_close(fx->store);
    note_crashed_openings(fx, "2\n"); /* may have been kills */
    assert_int_equal(fixture_open(fx), DCTF_OK);
    fixture_reopen(fx); /* one that went well forgets them */
    dctf_store_close(fx->store);
    note_crashed_openings(fx, "3\n");
    assert_int_equal(fixture_open(fx), DCTF_ERR_CACHE_CORRUPT);
    assert_null(fx->store);
}

static void test_scrub_verifies_while_idle(void **state)
{
    struct fixture *fx = *state;
    struct dctf_shard *shard = get_shard(fx, "a/big", BIG);

    assert_true(write_all_blocks(shard));
    dctf_shard_put(shard);
    fx->scrub = true;
    fixture_reopen(fx);
    dctf_store_maintain(fx->store);
    fx->now_ms += 3000;
    for (int i = 0; i < 4; i++)
        dctf_store_maintain(fx->store);
    assert_int_equal(stats_of(fx).verified_shards, 1);
    assert_true(dctf_metric_get(fx->metrics, DCTF_METRIC_CACHE_SCRUBBED_BYTES) >= (int64_t)BIG);
    shard = get_shard(fx, "a/big", BIG);
    assert_int_equal(dctf_shard_tier(shard), DCTF_TIER_HOT);
    dctf_shard_put(shard);
}

/* A child fills the cache and dies; nothing it wrote may be believed unverified, and
 * the figures come right by themselves. Runs first: no threads exist yet. */
static void test_kill_then_recount(void **state)
{
    struct fixture *fx = *state;
    struct dctf_shard *shard;
    uint32_t missing;
    char path[160], orphan[200];
    int status, fd;
    pid_t child;

    child = fork();
    if (child == 0) {
        if (fixture_open(fx))
            _exit(1);
        shard = get_shard(fx, "a/big", BIG);
        (void)write_all_blocks(shard);
        shard = get_shard(fx, "a/small", 70000);
        (void)write_all_blocks(shard);
        kill(getpid(), SIGKILL);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    snprintf(path, sizeof(path), "%s/shards/00", fx->dir);
    (void)mkdir(path, 0700);
    snprintf(orphan, sizeof(orphan), "%s/00aa00aa00aa00aa00aa00aa00aa00aa", path);
    fd = open(orphan, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
    sleep(1); /* an orphan is told by being older than the process */
    assert_int_equal(fixture_open(fx), DCTF_OK);
    for (int i = 0; i < 40; i++)
        dctf_store_maintain(fx->store);
    assert_false(stats_of(fx).counting);
    assert_int_equal(stats_of(fx).file_bytes, (BIG + 4095) / 4096 * 4096);
    assert_int_equal(stats_of(fx).shards, 2);
    assert_int_equal(access(orphan, F_OK), -1);
    shard = get_shard(fx, "a/big", BIG);
    assert_int_equal(dctf_shard_tier(shard), DCTF_TIER_WARM);
    assert_int_equal(check_read_all(shard), DCTF_OK);
    dctf_shard_put(shard);
    shard = get_shard(fx, "a/small", 70000); /* its bytes were never flushed */
    assert_int_equal(check_read(shard, 0, 100, &missing), DCTF_ERR_MISS);
    assert_int_equal(stats_of(fx).small_bytes, 0);
    assert_int_equal(stats_of(fx).shards, 1);
    assert_true(write_all_blocks(shard));
    assert_int_equal(check_read_all(shard), DCTF_OK);
    dctf_shard_put(shard);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_kill_then_recount, fixture_set_up_closed, fixture_tear_down),
        cmocka_unit_test_setup_teardown(test_write_read_file_shard, fixture_set_up, fixture_tear_down),
        cmocka_unit_test_setup_teardown(test_write_read_small_shards, fixture_set_up, fixture_tear_down),
        cmocka_unit_test_setup_teardown(
            test_small_shard_is_kept_whole_only, fixture_set_up, fixture_tear_down),
        cmocka_unit_test_setup_teardown(test_empty_shard_is_complete, fixture_set_up, fixture_tear_down),
        cmocka_unit_test_setup_teardown(
            test_partial_last_block_is_not_taken, fixture_set_up, fixture_tear_down),
        cmocka_unit_test_setup_teardown(
            test_reopen_keeps_and_verifies_again, fixture_set_up, fixture_tear_down),
        cmocka_unit_test_setup_teardown(
            test_other_version_is_another_shard, fixture_set_up, fixture_tear_down),
        cmocka_unit_test_setup_teardown(test_pin_hands_out_the_file, fixture_set_up, fixture_tear_down),
        cmocka_unit_test_setup_teardown(
            test_read_corrupt_block_is_dropped, fixture_set_up, fixture_tear_down),
        cmocka_unit_test_setup_teardown(test_verify_counts_bad_blocks, fixture_set_up, fixture_tear_down),
        cmocka_unit_test_setup_teardown(test_read_after_file_was_deleted, fixture_set_up, fixture_tear_down),
        cmocka_unit_test_setup_teardown(test_read_after_file_was_cut, fixture_set_up, fixture_tear_down),
        cmocka_unit_test_setup_teardown(test_evict_forgets_across_reopen, fixture_set_up, fixture_tear_down),
        cmocka_unit_test_setup_teardown(test_each_visits_residents, fixture_set_up, fixture_tear_down),
        cmocka_unit_test_setup_teardown(test_touch_counts_heat, fixture_set_up, fixture_tear_down),
        cmocka_unit_test_setup_teardown(test_open_twice_is_refused, fixture_set_up, fixture_tear_down),
        cmocka_unit_test_setup_teardown(test_open_damaged_database, fixture_set_up, fixture_tear_down),
        cmocka_unit_test_setup_teardown(
            test_open_after_crashes_while_opening, fixture_set_up, fixture_tear_down),
        cmocka_unit_test_setup_teardown(test_scrub_verifies_while_idle, fixture_set_up, fixture_tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
