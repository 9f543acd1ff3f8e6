/* SPDX-License-Identifier: Apache-2.0
 *
 * What happens when the disk is full, or out of inodes, whatever the cap says.
 */
#include "store_fixture.h"

#include <fcntl.h>
#include <sys/mount.h>

static struct dctf_shard *get_numbered(struct fixture *fx, int i, uint64_t size)
{
    char key[32];

    snprintf(key, sizeof(key), "f/%d", i);
    return get_shard(fx, key, size);
}

/* Open for reading: miss, fetch, keep if wanted. */
static bool read_through(struct fixture *fx, int i, uint64_t size)
{
    struct dctf_shard *shard = get_numbered(fx, i, size);
    bool kept = true;

    dctf_shard_touch(shard);
    if (check_read_all(shard))
        kept = write_all_blocks(shard);
    dctf_shard_put(shard);
    return kept;
}

static bool mount_tmpfs(struct fixture *fx, const char *options)
{
    if (!mount("none", fx->dir, "tmpfs", 0, options))
        return true;
    print_message("skipped: cannot mount a tmpfs\n");
    return false;
}

static int fill_disk(struct fixture *fx)
{
    static const char zeros[65536];
    char path[96];
    int fd;

    snprintf(path, sizeof(path), "%s/filler", fx->dir);
    fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    while (write(fd, zeros, sizeof(zeros)) > 0)
        ;
    while (write(fd, zeros, 512) > 0)
        ;
    return fd;
}

static void test_disk_full_is_no_error_and_passes(void **state)
{
    struct fixture *fx = *state;
    struct dctf_shard *shard, *small;
    bool kept = false;
    int fd;

    if (!mount_tmpfs(fx, "size=96m"))
        return;
    assert_int_equal(fixture_open(fx), DCTF_OK);
    assert_true(read_through(fx, 1, 5 * MIB));
    fd = fill_disk(fx);
    /* The store believes in room until it looks. */
    shard = get_shard(fx, "f/new", 16 * MIB);
    dctf_shard_touch(shard);
    (void)write_all_blocks(shard);
    small = get_shard(fx, "s/new", 1000);
    for (int i = 0; i < 10; i++) {
        dctf_shard_touch(small);
        (void)write_all_blocks(small);
        dctf_store_maintain(fx->store);
    }
    (void)check_read_all(shard); /* whatever it is, it is no crash and no wrong byte */
    assert_int_equal(ftruncate(fd, 0), 0);
    close(fd);
    for (int i = 0; i < 20 && !kept; i++) {
        fx->now_ms += 2000;
        dctf_store_maintain(fx->store);
        dctf_shard_touch(shard);
        kept = write_all_blocks(shard);
    }
    assert_true(kept);
    assert_int_equal(check_read_all(shard), DCTF_OK);
    dctf_shard_touch(small);
    assert_true(write_all_blocks(small));
    assert_int_equal(check_read_all(small), DCTF_OK);
    dctf_shard_put(shard);
    dctf_shard_put(small);
    dctf_store_close(fx->store);
    fx->store = NULL;
    assert_int_equal(umount(fx->dir), 0);
}

static void test_disk_fills_from_outside(void **state)
{
    struct fixture *fx = *state;
    char path[96];
    int fd;

    if (!mount_tmpfs(fx, "size=128m"))
        return;
    assert_int_equal(fixture_open(fx), DCTF_OK);
    for (int i = 0; i < 16; i++)
        (void)read_through(fx, i, 5 * MIB);
    assert_true(stats_of(fx).file_bytes >= 60 * MIB);
    snprintf(path, sizeof(path), "%s/filler", fx->dir);
    fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(posix_fallocate(fd, 0, (off_t)(30 * MIB)), 0);
    dctf_store_maintain(fx->store);
    dctf_store_maintain(fx->store);
    {
        struct dctf_layout_space space;
        struct dctf_layout layout = {.dir_fd = open(fx->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC)};

        assert_int_equal(dctf_layout_space(&layout, &space), DCTF_OK);
        close(layout.dir_fd);
        assert_true(space.free_bytes >= 128 * MIB / 20); /* the reserve is free again */
    }
    assert_true(stats_of(fx).file_bytes > 30 * MIB);
    close(fd);
    dctf_store_close(fx->store);
    fx->store = NULL;
    assert_int_equal(umount(fx->dir), 0);
}

static void test_open_on_full_disk(void **state)
{
    struct fixture *fx = *state;
    int fd;

    if (!mount_tmpfs(fx, "size=96m"))
        return;
    assert_int_equal(fixture_open(fx), DCTF_OK);
    for (int i = 0; i < 10; i++)
        (void)read_through(fx, i, 5 * MIB);
    dctf_store_close(fx->store);
    fd = fill_disk(fx);
    assert_int_equal(fixture_open(fx), DCTF_OK);
    for (int i = 0; i < 10; i++)
        (void)read_through(fx, i, 5 * MIB);
    close(fd);
    dctf_store_close(fx->store);
    fx->store = NULL;
    assert_int_equal(umount(fx->dir), 0);
}

static void test_inodes_run_out(void **state)
{
    struct fixture *fx = *state;

    if (!mount_tmpfs(fx, "size=256m,nr_inodes=400"))
        return;
    assert_int_equal(fixture_open(fx), DCTF_OK);
    for (int i = 0; i < 600; i++) {
        struct dctf_shard *shard = get_numbered(fx, i, 2 * MIB);

        dctf_shard_touch(shard);
        (void)write_blocks(shard, 0, 1);
        dctf_shard_put(shard);
        if (i % 100 == 0)
            dctf_store_maintain(fx->store);
    }
    /* Either a file could not be made, or the round saw it coming and evicted. */
    assert_true(dctf_metric_get(fx->metrics, DCTF_METRIC_CACHE_NO_SPACE) +
                    dctf_metric_get(fx->metrics, DCTF_METRIC_CACHE_EVICTED) >
                0);
    assert_true(stats_of(fx).shards > 50);
    assert_true(stats_of(fx).shards < 400);
    dctf_store_close(fx->store);
    fx->store = NULL;
    assert_int_equal(umount(fx->dir), 0);
}

#define CLOSED(test) cmocka_unit_test_setup_teardown(test, fixture_set_up_closed, fixture_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CLOSED(test_disk_full_is_no_error_and_passes),
        CLOSED(test_disk_fills_from_outside),
        CLOSED(test_open_on_full_disk),
        CLOSED(test_inodes_run_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
