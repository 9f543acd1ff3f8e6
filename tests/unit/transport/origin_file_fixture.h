/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests of the directory origin on real directories. The program's own pread() stands in
 * for libc's, so that reads can fail, fall short, hang, or see the file change.
 *
 * Threads:   the hook is guarded by its lock, but what the test's thread sets while nothing reads; a reply's
 *            fields are guarded by its lock until reply_wait() returned.
 * Ownership: a reply is the test's, to free(); setup() and teardown() make and drop the world.
 */
#ifndef DCTF_TESTS_ORIGIN_FILE_FIXTURE_H
#define DCTF_TESTS_ORIGIN_FILE_FIXTURE_H

#include "transport/origin.h"

#include "transport/file_tree.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
/* cmocka needs some of the above first */
#include <cmocka.h>

/* --- pread that misbehaves --- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stall;
    unsigned stalled;  /* reads that hang now */
    int errnum;        /* of the next read */
    size_t short_by;   /* of each read but 1-byte ones */
    const char *touch; /* rewrite this file before the next read returns */
} hook = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static inline void write_file(const char *path, const char *bytes, size_t len)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, len), (ssize_t)len);
    close(fd);
}

ssize_t pread(int fd, void *buf, size_t len, off_t offset)
{
    const char *touch;
    int errnum;
    ssize_t n;

    pthread_mutex_lock(&hook.lock);
    hook.stalled++;
    pthread_cond_broadcast(&hook.changed);
    while (hook.stall)
        pthread_cond_wait(&hook.changed, &hook.lock);
    hook.stalled--;
    errnum = hook.errnum;
    hook.errnum = 0;
    touch = hook.touch;
    hook.touch = NULL;
    if (len > hook.short_by)
        len -= hook.short_by;
    pthread_mutex_unlock(&hook.lock);
    if (errnum) {
        errno = errnum;
        return -1;
    }
    n = syscall(SYS_pread64, fd, buf, len, offset);
    if (touch)
        write_file(touch, "changed!!!", 10);
    return n;
}

static inline void stall(bool on)
{
    pthread_mutex_lock(&hook.lock);
    hook.stall = on;
    pthread_cond_broadcast(&hook.changed);
    pthread_mutex_unlock(&hook.lock);
}

static inline void wait_stalled(unsigned count)
{
    pthread_mutex_lock(&hook.lock);
    while (hook.stalled < count)
        pthread_cond_wait(&hook.changed, &hook.lock);
    pthread_mutex_unlock(&hook.lock);
}

/* --- requests that can be waited for --- */

struct reply {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned done;
    enum dctf_err err;
    size_t got;
    struct dctf_origin_entry entry;
    char etag[DCTF_FILE_ETAG_BYTES];
    char names[4096][64]; /* of a listing; a '/' behind directories */
    uint64_t sizes[4096];
    size_t count;
    size_t pages;
    bool stop;                     /* page() says no */
    struct dctf_origin *cancel_on; /* page() cancels */
    bool hold;                     /* page() hangs */
    char buf[4096];
    struct dctf_origin_list list;
    struct dctf_origin_head head;
    struct dctf_origin_get get;
};

static inline struct reply *reply_new(void)
{
    struct reply *reply = calloc(1, sizeof(*reply));

    assert_non_null(reply);
    pthread_mutex_init(&reply->lock, NULL);
    pthread_cond_init(&reply->changed, NULL);
    return reply;
}

static inline void reply_done(struct reply *reply, enum dctf_err err)
{
    pthread_mutex_lock(&reply->lock);
    reply->done++;
    reply->err = err;
    pthread_cond_broadcast(&reply->changed);
    pthread_mutex_unlock(&reply->lock);
}

static inline enum dctf_err reply_wait(struct reply *reply)
{
    enum dctf_err err;

    pthread_mutex_lock(&reply->lock);
    while (reply->done == 0)
        pthread_cond_wait(&reply->changed, &reply->lock);
    assert_int_equal(reply->done, 1);
    err = reply->err;
    pthread_mutex_unlock(&reply->lock);
    return err;
}

static inline void reply_set_hold(struct reply *reply, bool hold)
{
    pthread_mutex_lock(&reply->lock);
    reply->hold = hold;
    pthread_cond_broadcast(&reply->changed);
    pthread_mutex_unlock(&reply->lock);
}

static inline bool on_page(
    struct dctf_origin_list *list, const struct dctf_origin_entry *entries, size_t count)
{
    struct reply *reply = list->ctx;

    if (reply->cancel_on)
        reply->cancel_on->ops->cancel_list(reply->cancel_on, list);
    pthread_mutex_lock(&reply->lock);
    reply->pages++;
    for (size_t i = 0; i < count; i++) {
        assert_true(reply->count < 4096);
        snprintf(reply->names[reply->count], sizeof(reply->names[0]), "%.62s%s", entries[i].name,
            entries[i].is_dir ? "/" : "");
        reply->sizes[reply->count++] = entries[i].size;
        assert_int_equal(entries[i].etag[0] == '\0', entries[i].is_dir);
    }
    pthread_cond_broadcast(&reply->changed);
    while (reply->hold)
        pthread_cond_wait(&reply->changed, &reply->lock);
    pthread_mutex_unlock(&reply->lock);
    return !reply->stop;
}

static inline void on_list(struct dctf_origin_list *list, enum dctf_err err)
{
    reply_done(list->ctx, err);
}

static inline void on_head(
    struct dctf_origin_head *head, enum dctf_err err, const struct dctf_origin_entry *entry)
{
    struct reply *reply = head->ctx;

    assert_int_equal(entry != NULL, err == DCTF_OK);
    if (entry) {
        reply->entry = *entry;
        snprintf(reply->etag, sizeof(reply->etag), "%s", entry->etag);
    }
    reply_done(reply, err);
}

static inline void on_get(struct dctf_origin_get *get, enum dctf_err err, size_t got)
{
    struct reply *reply = get->ctx;

    reply->got = got;
    reply_done(reply, err);
}

static inline struct reply *start_list(struct dctf_origin *origin, const char *dir, bool hold)
{
    struct reply *reply = reply_new();

    reply->hold = hold;
    reply->list = (struct dctf_origin_list){.dir = dir, .page = on_page, .done = on_list, .ctx = reply};
    assert_int_equal(origin->ops->list(origin, &reply->list), DCTF_OK);
    return reply;
}

static inline struct reply *start_get(
    struct dctf_origin *origin, const char *key, const char *etag, uint64_t size, uint64_t offset, size_t len)
{
    struct reply *reply = reply_new();

    assert_true(len <= sizeof(reply->buf));
    snprintf(reply->etag, sizeof(reply->etag), "%s", etag);
    reply->get = (struct dctf_origin_get){.key = key,
        .etag = reply->etag,
        .size = size,
        .offset = offset,
        .len = len,
        .buf = reply->buf,
        .done = on_get,
        .ctx = reply};
    assert_int_equal(origin->ops->get(origin, &reply->get), DCTF_OK);
    return reply;
}

static inline enum dctf_err head(struct dctf_origin *origin, const char *key, struct reply **out)
{
    struct reply *reply = reply_new();
    enum dctf_err err;

    reply->head = (struct dctf_origin_head){.key = key, .done = on_head, .ctx = reply};
    assert_int_equal(origin->ops->head(origin, &reply->head), DCTF_OK);
    err = reply_wait(reply);
    *out = reply;
    return err;
}

/* Get the whole of `key` at its present version, and compare. */
static inline void assert_reads(struct dctf_origin *origin, const char *key, const char *bytes)
{
    struct reply *looked;
    struct reply *got;

    assert_int_equal(head(origin, key, &looked), DCTF_OK);
    assert_int_equal(looked->entry.size, strlen(bytes));
    got = start_get(origin, key, looked->etag, strlen(bytes), 0, strlen(bytes));
    assert_int_equal(reply_wait(got), DCTF_OK);
    assert_int_equal(got->got, strlen(bytes));
    assert_memory_equal(got->buf, bytes, strlen(bytes));
    free(got);
    free(looked);
}

/* --- one test's world: a private directory with a source in it --- */

struct world {
    char top[64];
    char source[128];
    struct dctf_origin *origin;
};

static const struct dctf_origin_scheme schemes[] = {{"file", dctf_origin_file_open}, {NULL, NULL}};

static inline const char *at(const struct world *world, const char *path)
{
    static _Thread_local char out[4][512];
    static _Thread_local unsigned next;
    char *buf = out[next++ % 4];

    snprintf(buf, 512, "%s/%s", world->top, path);
    return buf;
}

static inline int setup(void **state)
{
    struct world *world = calloc(1, sizeof(*world));
    struct dctf_origin_config config = {.source = world->source, .concurrency = 2};

    strcpy(world->top, "/tmp/dctf-origin-file-XXXXXX");
    if (!mkdtemp(world->top))
        return -1;
    mkdir(at(world, "root"), 0700);
    mkdir(at(world, "root/dir"), 0700);
    mkdir(at(world, "out"), 0700);
    write_file(at(world, "root/dir/one"), "0123456789", 10);
    write_file(at(world, "root/empty"), "", 0);
    write_file(at(world, "out/secret"), "secret", 6);
    snprintf(world->source, sizeof(world->source), "file://%s/root/", world->top);
    *state = world;
    return dctf_origin_open(schemes, &config, &world->origin) == DCTF_OK ? 0 : -1;
}

static inline int teardown(void **state)
{
    struct world *world = *state;
    char command[128];

    stall(false); /* a test may have failed in the middle */
    if (world->origin)
        world->origin->ops->close(world->origin, 10000);
    snprintf(command, sizeof(command), "rm -rf '%s'", world->top);
    if (system(command) != 0)
        return -1;
    free(world);
    return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

#endif
