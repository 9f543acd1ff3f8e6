/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/kv_private.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64];

static int set_up(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/dctf-test-kv-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int tear_down(void **state)
{
    char command[128];

    (void)state;
    snprintf(command, sizeof(command), "rm -rf '%s'", dir);
    return system(command);
}

/* Heat stand-in: records are two counters, added. */
static void add_counters(void *ctx, void *state, const void *operand)
{
    uint64_t sum[2], one[2];

    (void)ctx;
    memcpy(sum, state, sizeof(sum));
    memcpy(one, operand, sizeof(one));
    sum[0] += one[0];
    sum[1] += one[1];
    memcpy(state, sum, sizeof(sum));
}

static bool is_zero(void *ctx, const char *key, size_t key_len, const char *value, size_t len)
{
    uint64_t sum[2];

    (void)ctx;
    (void)key;
    (void)key_len;
    if (len != sizeof(sum))
        return true;
    memcpy(sum, value, sizeof(sum));
    return sum[0] == 0;
}

static enum dctf_err open_kv(struct dctf_kv **out)
{
    struct dctf_kv_config config = {
        .dir = dir,
        .block_cache_bytes = 4 << 20,
        .write_buffer_bytes = 4 << 20,
        .blob_file_bytes = 512 << 10,
        .merge_record_bytes = 16,
        .merge = add_counters,
        .expired = is_zero,
    };

    return dctf_kv_open(&config, out);
}

static void put(struct dctf_kv *kv, enum dctf_kv_cf cf, const char *key, const void *value, size_t len,
    enum dctf_kv_durability durability)
{
    struct dctf_kv_batch *batch;

    assert_int_equal(dctf_kv_batch_new(&batch), DCTF_OK);
    dctf_kv_batch_put(batch, kv, cf, key, strlen(key), value, len);
    assert_int_equal(dctf_kv_write(kv, batch, durability), DCTF_OK);
    dctf_kv_batch_free(batch);
}

static void expect(struct dctf_kv *kv, enum dctf_kv_cf cf, const char *key, const char *want)
{
    struct dctf_kv_value value;
    enum dctf_err err = dctf_kv_get(kv, cf, key, strlen(key), &value);

    if (!want) {
        assert_int_equal(err, DCTF_ERR_MISS);
        assert_null(value.data);
        assert_int_equal(value.len, 0);
        return;
    }
    assert_int_equal(err, DCTF_OK);
    assert_int_equal(value.len, strlen(want));
    assert_memory_equal(value.data, want, value.len);
    dctf_kv_value_put(&value);
}

static uint64_t disk_bytes_at_most(struct dctf_kv *kv)
{
    struct dctf_kv_usage usage;

    dctf_kv_usage(kv, &usage);
    return usage.disk_bytes;
}

/* What the files of the database take: allocated, or by their contents. */
static uint64_t files_bytes(bool allocated)
{
    DIR *stream = opendir(dir);
    struct dirent *entry;
    uint64_t sum = 0;
    struct stat st;

    assert_non_null(stream);
    while ((entry = readdir(stream))) {
        if (!fstatat(dirfd(stream), entry->d_name, &st, 0) && S_ISREG(st.st_mode))
            sum += (uint64_t)(allocated ? st.st_blocks * 512 : (st.st_size + 4095) / 4096 * 4096);
    }
    closedir(stream);
    return sum;
}

static void test_get_after_put(void **state)
{
    struct dctf_kv *kv;

    (void)state;
    assert_int_equal(open_kv(&kv), DCTF_OK);
    expect(kv, DCTF_KV_SHARD, "a", NULL);
    put(kv, DCTF_KV_SHARD, "a", "one", 3, DCTF_KV_LOGGED);
    put(kv, DCTF_KV_EXTENT, "a", "two", 3, DCTF_KV_LOGGED);
    expect(kv, DCTF_KV_SHARD, "a", "one");
    expect(kv, DCTF_KV_EXTENT, "a", "two");
    dctf_kv_close(kv);
    assert_int_equal(open_kv(&kv), DCTF_OK);
    expect(kv, DCTF_KV_SHARD, "a", "one");
    dctf_kv_close(kv);
}

static void test_write_batch_is_whole(void **state)
{
    struct dctf_kv *kv;
    struct dctf_kv_batch *batch;

    (void)state;
    assert_int_equal(open_kv(&kv), DCTF_OK);
    put(kv, DCTF_KV_META, "x1", "1", 1, DCTF_KV_LOGGED);
    put(kv, DCTF_KV_META, "x2", "2", 1, DCTF_KV_LOGGED);
    put(kv, DCTF_KV_META, "y", "3", 1, DCTF_KV_LOGGED);
    assert_int_equal(dctf_kv_batch_new(&batch), DCTF_OK);
    dctf_kv_batch_put(batch, kv, DCTF_KV_META, "z", 1, "4", 1);
    dctf_kv_batch_clear(batch);
    dctf_kv_batch_delete_range(batch, kv, DCTF_KV_META, "x", 1, "x\xff", 2);
    dctf_kv_batch_delete(batch, kv, DCTF_KV_META, "y", 1);
    expect(kv, DCTF_KV_META, "y", "3");
    assert_int_equal(dctf_kv_write(kv, batch, DCTF_KV_LOGGED), DCTF_OK);
    expect(kv, DCTF_KV_META, "x1", NULL);
    expect(kv, DCTF_KV_META, "x2", NULL);
    expect(kv, DCTF_KV_META, "y", NULL);
    expect(kv, DCTF_KV_META, "z", NULL);
    dctf_kv_batch_free(batch);
    dctf_kv_close(kv);
}

static void test_merge_folds_across_reopen(void **state)
{
    uint64_t one[2] = {1, 10};
    uint64_t sum[2];
    struct dctf_kv *kv;
    struct dctf_kv_batch *batch;
    struct dctf_kv_value value;

    (void)state;
    for (int round = 1; round <= 2; round++) {
        assert_int_equal(open_kv(&kv), DCTF_OK);
        assert_int_equal(dctf_kv_batch_new(&batch), DCTF_OK);
        for (int i = 0; i < 100; i++)
            dctf_kv_batch_merge(batch, kv, DCTF_KV_HEAT, "k", 1, one, sizeof(one));
        assert_int_equal(dctf_kv_write(kv, batch, DCTF_KV_LOGGED), DCTF_OK);
        dctf_kv_batch_free(batch);
        assert_int_equal(dctf_kv_get(kv, DCTF_KV_HEAT, "k", 1, &value), DCTF_OK);
        assert_int_equal(value.len, sizeof(sum));
        memcpy(sum, value.data, sizeof(sum));
        assert_int_equal(sum[0], 100 * round);
        assert_int_equal(sum[1], 1000 * round);
        dctf_kv_value_put(&value);
        dctf_kv_close(kv);
    }
}

static void test_compact_drops_expired(void **state)
{
    uint64_t gone[2] = {0, 1}, stays[2] = {5, 1};
    struct dctf_kv *kv;
    struct dctf_kv_value value;

    (void)state;
    assert_int_equal(open_kv(&kv), DCTF_OK);
    put(kv, DCTF_KV_HEAT, "gone", gone, sizeof(gone), DCTF_KV_LOGGED);
    put(kv, DCTF_KV_HEAT, "stays", stays, sizeof(stays), DCTF_KV_LOGGED);
    dctf_kv_flush(kv, DCTF_KV_HEAT);
    dctf_kv_compact_inside(kv, DCTF_KV_HEAT);
    expect(kv, DCTF_KV_HEAT, "gone", NULL);
    assert_int_equal(dctf_kv_get(kv, DCTF_KV_HEAT, "stays", 5, &value), DCTF_OK);
    dctf_kv_value_put(&value);
    dctf_kv_close(kv);
}

static void test_iterate_prefix(void **state)
{
    struct dctf_kv *kv;
    struct dctf_kv_iter *iter;
    const char *key;
    size_t len;
    char seen[64] = "";

    (void)state;
    assert_int_equal(open_kv(&kv), DCTF_OK);
    for (const char *const *k = (const char *[]){"a", "b", "b1", "b2", "b\xff", "c", NULL}; *k; k++)
        put(kv, DCTF_KV_LISTING, *k, "v", 1, DCTF_KV_LOGGED);
    assert_int_equal(dctf_kv_iter_new(kv, DCTF_KV_LISTING, "b", 1, &iter), DCTF_OK);
    put(kv, DCTF_KV_LISTING, "b3", "late", 4, DCTF_KV_LOGGED); /* not in the snapshot */
    for (dctf_kv_iter_seek(iter, "a", 1); dctf_kv_iter_valid(iter); dctf_kv_iter_next(iter)) {
        key = dctf_kv_iter_key(iter, &len);
        strncat(seen, key, len);
        strcat(seen, ",");
        assert_memory_equal(dctf_kv_iter_value(iter, &len), "v", 1);
    }
    assert_string_equal(seen, "b,b1,b2,b\xff,");
    dctf_kv_iter_seek(iter, "b2", 2);
    assert_true(dctf_kv_iter_valid(iter));
    dctf_kv_iter_seek(iter, "c", 1);
    assert_false(dctf_kv_iter_valid(iter));
    dctf_kv_iter_free(iter);
    assert_int_equal(dctf_kv_iter_new(kv, DCTF_KV_LISTING, NULL, 0, &iter), DCTF_OK);
    key = dctf_kv_iter_key(iter, &len);
    assert_memory_equal(key, "a", len);
    dctf_kv_iter_free(iter);
    dctf_kv_close(kv);
}

static void test_write_logged_survives_kill(void **state)
{
    struct dctf_kv *kv;
    int status;
    pid_t child = fork();

    (void)state;
    if (child == 0) {
        if (open_kv(&kv))
            _exit(1);
        put(kv, DCTF_KV_SHARD, "logged", "l", 1, DCTF_KV_LOGGED);
        put(kv, DCTF_KV_SMALL, "unlogged", "u", 1, DCTF_KV_UNLOGGED);
        kill(getpid(), SIGKILL);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(open_kv(&kv), DCTF_OK);
    expect(kv, DCTF_KV_SHARD, "logged", "l");
    expect(kv, DCTF_KV_SMALL, "unlogged", NULL);
    put(kv, DCTF_KV_SMALL, "unlogged", "u", 1, DCTF_KV_UNLOGGED);
    dctf_kv_close(kv);
    assert_int_equal(open_kv(&kv), DCTF_OK);
    expect(kv, DCTF_KV_SMALL, "unlogged", "u"); /* a clean close keeps it */
    dctf_kv_close(kv);
}

static void test_compact_returns_blob_space(void **state)
{
    struct dctf_kv *kv;
    struct dctf_kv_batch *batch;
    char *value = calloc(1, 1 << 18);
    char key[16];
    uint64_t full;

    (void)state;
    assert_non_null(value);
    assert_int_equal(open_kv(&kv), DCTF_OK);
    for (int i = 0; i < 128; i++) {
        snprintf(key, sizeof(key), "%04d", i);
        put(kv, DCTF_KV_SMALL, key, value, 1 << 18, DCTF_KV_UNLOGGED);
    }
    full = disk_bytes_at_most(kv);
    assert_true(full >= 128u << 18);
    assert_true(dctf_kv_memory_bytes(kv) > 0);
    assert_int_equal(dctf_kv_batch_new(&batch), DCTF_OK);
    for (int i = 0; i < 128; i++) {
        snprintf(key, sizeof(key), "%04d", i);
        if (i % 8)
            dctf_kv_batch_delete(batch, kv, DCTF_KV_SMALL, key, 4);
    }
    assert_int_equal(dctf_kv_write(kv, batch, DCTF_KV_UNLOGGED), DCTF_OK);
    dctf_kv_batch_free(batch);
    for (int i = 0; i < 64 && disk_bytes_at_most(kv) > full / 2; i++)
        dctf_kv_collect(kv, 1 << 20);
    assert_true(disk_bytes_at_most(kv) < full / 2);
    dctf_kv_close(kv);
    free(value);
}

/* A log, a table or a blob file that takes its final size at once would take it from others. */
static void test_files_take_what_is_in_them(void **state)
{
    struct dctf_kv *kv;
    char *value = calloc(1, 100000);
    char key[16];

    (void)state;
    assert_non_null(value);
    assert_int_equal(open_kv(&kv), DCTF_OK);
    for (int i = 0; i < 16; i++) {
        snprintf(key, sizeof(key), "%04d", i);
        put(kv, DCTF_KV_SMALL, key, value, 100000, DCTF_KV_UNLOGGED);
        put(kv, DCTF_KV_SHARD, key, "record", 6, DCTF_KV_LOGGED);
        dctf_kv_flush(kv, DCTF_KV_SMALL); /* begins a log */
        assert_true(files_bytes(true) <= files_bytes(false) + 64 * 1024);
    }
    dctf_kv_close(kv);
    free(value);
}

static void test_usage_is_never_behind(void **state)
{
    struct dctf_kv *kv;
    char *value = calloc(1, 200000);
    char key[16];

    (void)state;
    assert_non_null(value);
    assert_int_equal(open_kv(&kv), DCTF_OK);
    for (int i = 0; i < 400; i++) { /* many times the write buffer; nothing measures meanwhile */
        uint64_t most;

        snprintf(key, sizeof(key), "%04d", i);
        put(kv, DCTF_KV_SMALL, key, value, 200000, DCTF_KV_UNLOGGED);
        put(kv, DCTF_KV_SHARD, key, value, 300, DCTF_KV_LOGGED);
        most = disk_bytes_at_most(kv);
        assert_true(files_bytes(true) <= most);
        if (i % 100 == 99) {
            dctf_kv_flush(kv, DCTF_KV_SMALL); /* measures; nothing stands there twice */
            assert_true(disk_bytes_at_most(kv) <= most);
            assert_true(files_bytes(true) <= disk_bytes_at_most(kv));
        }
    }
    dctf_kv_close(kv);
    free(value);
}

/* Garbage is given back with room for one file, and when there are few of them. */
static void test_collect_in_little_room(void **state)
{
    struct dctf_kv *kv;
    struct dctf_kv_batch *batch;
    char *value = calloc(1, 1 << 18);
    struct dctf_kv_usage usage;
    char key[16];
    uint64_t full;

    (void)state;
    assert_non_null(value);
    assert_int_equal(open_kv(&kv), DCTF_OK);
    for (int i = 0; i < 8; i++) {
        snprintf(key, sizeof(key), "%04d", i);
        put(kv, DCTF_KV_SMALL, key, value, 1 << 18, DCTF_KV_UNLOGGED);
    }
    dctf_kv_flush(kv, DCTF_KV_SMALL);
    full = disk_bytes_at_most(kv);
    dctf_kv_usage(kv, &usage);
    assert_true(usage.blob_file_max >= 512 << 10);
    assert_true(usage.blob_file_max < 1 << 20);
    assert_int_equal(dctf_kv_batch_new(&batch), DCTF_OK);
    for (int i = 1; i < 8; i += 2) {
        snprintf(key, sizeof(key), "%04d", i);
        dctf_kv_batch_delete(batch, kv, DCTF_KV_SMALL, key, 4);
    }
    assert_int_equal(dctf_kv_write(kv, batch, DCTF_KV_UNLOGGED), DCTF_OK);
    dctf_kv_batch_free(batch);
    for (int i = 0; i < 4; i++)
        dctf_kv_collect(kv, 0);
    assert_true(disk_bytes_at_most(kv) < full * 5 / 8);
    dctf_kv_close(kv);
    free(value);
}

static void test_recover_waits_for_values(void **state)
{
    struct dctf_kv *kv;
    struct dctf_kv_value value;

    (void)state;
    assert_int_equal(open_kv(&kv), DCTF_OK);
    put(kv, DCTF_KV_META, "k", "v", 1, DCTF_KV_LOGGED);
    assert_int_equal(dctf_kv_get(kv, DCTF_KV_META, "k", 1, &value), DCTF_OK);
    assert_int_equal(dctf_kv_recover(kv), DCTF_OK); /* healthy: nothing to reopen, nothing to wait for */
    dctf_kv_value_put(&value);
    dctf_kv_value_put(&value); /* an empty value may be put again */
    dctf_kv_close(kv);
}

static void test_recover_after_disk_full(void **state)
{
    struct dctf_kv *kv;
    struct dctf_kv_batch *batch;
    char filler[96];
    char *value = calloc(1, 1 << 20);
    enum dctf_err err = DCTF_OK;
    int fd;

    (void)state;
    assert_non_null(value);
    if (mount("none", dir, "tmpfs", 0, "size=24m")) {
        print_message("skipped: cannot mount a tmpfs\n");
        free(value);
        return;
    }
    assert_int_equal(open_kv(&kv), DCTF_OK);
    put(kv, DCTF_KV_META, "before", "b", 1, DCTF_KV_LOGGED);
    snprintf(filler, sizeof(filler), "%s/filler", dir);
    fd = open(filler, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    while (write(fd, value, 4096) == 4096)
        ;
    assert_int_equal(dctf_kv_batch_new(&batch), DCTF_OK);
    for (int i = 0; i < 64 && !err; i++) {
        dctf_kv_batch_clear(batch);
        dctf_kv_batch_put(batch, kv, DCTF_KV_META, &i, sizeof(i), value, 1 << 20);
        err = dctf_kv_write(kv, batch, DCTF_KV_LOGGED);
    }
    assert_int_equal(err, DCTF_ERR_CACHE_NO_SPACE);
    expect(kv, DCTF_KV_META, "before", "b"); /* reads go on */
    assert_int_equal(ftruncate(fd, 0), 0);
    close(fd);
    assert_int_equal(dctf_kv_recover(kv), DCTF_OK);
    put(kv, DCTF_KV_META, "after", "a", 1, DCTF_KV_LOGGED);
    expect(kv, DCTF_KV_META, "before", "b");
    expect(kv, DCTF_KV_META, "after", "a");
    dctf_kv_batch_free(batch);
    dctf_kv_close(kv);
    assert_int_equal(umount(dir), 0);
    free(value);
}

/* Flip bits where the only table in the directory begins: in its first data block. */
static void damage_table(void)
{
    char path[400];
    struct dirent *entry;
    DIR *files = opendir(dir);
    unsigned tables = 0;

    assert_non_null(files);
    while ((entry = readdir(files))) {
        int fd;

        if (!strstr(entry->d_name, ".sst"))
            continue;
        snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
        fd = open(path, O_WRONLY | O_CLOEXEC);
        assert_true(fd >= 0);
        assert_int_equal(pwrite(fd, "\xff\xff\xff\xff", 4, 0), 4);
        close(fd);
        tables++;
    }
    closedir(files);
    assert_int_equal(tables, 1);
}

/* Without checksums, RocksDB believes what it finds in a block, lengths too. */
static void test_touch_finds_a_damaged_block(void **state)
{
    size_t len = 100000;
    char *bytes = calloc(1, len);
    struct dctf_kv_value value;
    struct dctf_kv *kv;

    (void)state;
    assert_non_null(bytes);
    assert_int_equal(open_kv(&kv), DCTF_OK);
    put(kv, DCTF_KV_SMALL, "key", bytes, len, DCTF_KV_UNLOGGED);
    assert_int_equal(dctf_kv_touch(kv, DCTF_KV_SMALL, "key", 3), DCTF_OK);
    dctf_kv_close(kv);
    assert_int_equal(open_kv(&kv), DCTF_OK);
    assert_int_equal(dctf_kv_touch(kv, DCTF_KV_SMALL, "none", 4), DCTF_OK);
    assert_int_equal(dctf_kv_touch(kv, DCTF_KV_SMALL, "key", 3), DCTF_OK);
    assert_int_equal(dctf_kv_get(kv, DCTF_KV_SMALL, "key", 3, &value), DCTF_OK);
    assert_int_equal(value.len, len);
    dctf_kv_value_put(&value);
    dctf_kv_close(kv);
    damage_table();
    assert_int_equal(open_kv(&kv), DCTF_OK);
    assert_int_equal(dctf_kv_touch(kv, DCTF_KV_SMALL, "key", 3), DCTF_ERR_CACHE_CORRUPT);
    dctf_kv_close(kv);
    free(bytes);
}

/* Damage each file in turn; opening and reading must answer, never abort. */
static void test_open_damaged(void **state)
{
    struct dctf_kv *kv;
    struct dctf_kv_value value;
    struct dirent *entry;
    char path[400], copy[128], command[1024];
    unsigned refused = 0;
    DIR *files;

    (void)state;
    assert_int_equal(open_kv(&kv), DCTF_OK);
    put(kv, DCTF_KV_SHARD, "key", "value", 5, DCTF_KV_LOGGED);
    dctf_kv_close(kv);
    snprintf(copy, sizeof(copy), "%s-copy", dir);
    snprintf(command, sizeof(command), "rm -rf '%s' && cp -r '%s' '%s'", copy, dir, copy);
    assert_int_equal(system(command), 0);
    files = opendir(copy);
    assert_non_null(files);
    while ((entry = readdir(files))) {
        struct stat st;
        int fd;

        snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
        if (stat(path, &st) || !S_ISREG(st.st_mode) || !st.st_size || !strncmp(entry->d_name, "LOG", 3))
            continue;
        for (int half = 0; half < 2; half++) {
            snprintf(command, sizeof(command), "rm -rf '%s' && cp -r '%s' '%s'", dir, copy, dir);
            assert_int_equal(system(command), 0);
            fd = open(path, O_WRONLY | O_CLOEXEC);
            assert_true(fd >= 0);
            if (half)
                assert_int_equal(ftruncate(fd, st.st_size / 2), 0);
            else
                assert_int_equal(pwrite(fd, "\x5a\xa5\x5a\xa5", 4, st.st_size / 2), 4);
            close(fd);
            if (open_kv(&kv)) {
                assert_null(kv);
                refused++;
                continue;
            }
            if (!dctf_kv_get(kv, DCTF_KV_SHARD, "key", 3, &value))
                dctf_kv_value_put(&value);
            dctf_kv_close(kv);
        }
    }
    closedir(files);
    assert_true(refused > 0);
    snprintf(path, sizeof(path), "%s/CURRENT", dir);
    snprintf(
        command, sizeof(command), "rm -rf '%s' && cp -r '%s' '%s' && echo junk > '%s'", dir, copy, dir, path);
    assert_int_equal(system(command), 0);
    assert_int_equal(open_kv(&kv), DCTF_ERR_CACHE_CORRUPT);
    snprintf(command, sizeof(command), "rm -rf '%s'", copy);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        /* First: it forks, and RocksDB's threads stay once there are any. */
        cmocka_unit_test_setup_teardown(test_write_logged_survives_kill, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_get_after_put, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_write_batch_is_whole, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_merge_folds_across_reopen, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_compact_drops_expired, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_iterate_prefix, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_compact_returns_blob_space, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_files_take_what_is_in_them, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_usage_is_never_behind, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_collect_in_little_room, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_recover_waits_for_values, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_recover_after_disk_full, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_touch_finds_a_damaged_block, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_open_damaged, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
