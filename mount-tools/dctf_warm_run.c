/* SPDX-License-Identifier: Apache-2.0
 *
 * Shards wait in one list from the walk to the workers. It is not bounded: the total
 * must be known for an estimate, and an item costs its name and 32 bytes.
 */
#include "mount-tools/dctf_warm.h"

#include "base/clock.h"
#include "base/str.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIST_PAGE 1000
/* The daemon may have to list the directory at the source first. */
#define LIST_TIMEOUT_MS 60000
/* Failures named one by one; the rest is only counted. */
#define FAILURES_SHOWN 20

struct item {
    struct item *next;
    size_t target;
    uint64_t size;
    char path[]; /* inside the mount */
};

struct worker {
    struct dctf_warm *warm;
    pthread_t thread;
    bool started;
    struct dctf_client *client; /* this thread's; NULL: none open */
    size_t client_target;
    struct item *item;   /* guarded by warm->lock: under way, NULL when idle */
    uint64_t item_bytes; /* guarded by warm->lock: of it here, as last probed */
};

struct dctf_warm {
    struct dctf_warm_config config;
    pthread_mutex_t lock;
    pthread_cond_t more;            /* the list grew, the walk ended, or stop */
    pthread_cond_t progress;        /* the run finished */
    struct item *head, **tail;      /* guarded by lock */
    struct dctf_warm_counts counts; /* guarded by lock */
    bool stop;                      /* guarded by lock */
    unsigned busy;                  /* guarded by lock: workers with an item */
    struct worker walker;
    struct worker *workers;
};

static void finish_if_done_locked(struct dctf_warm *warm)
{
    if ((warm->counts.walked && !warm->head && !warm->busy) || (warm->stop && !warm->busy)) {
        warm->counts.finished = true;
        pthread_cond_broadcast(&warm->progress);
        pthread_cond_broadcast(&warm->more);
    }
}

static void stop_run(struct dctf_warm *warm)
{
    pthread_mutex_lock(&warm->lock);
    warm->stop = true;
    pthread_cond_broadcast(&warm->more);
    finish_if_done_locked(warm);
    pthread_mutex_unlock(&warm->lock);
}

static bool is_stopped(struct dctf_warm *warm)
{
    bool stop;

    pthread_mutex_lock(&warm->lock);
    stop = warm->stop;
    pthread_mutex_unlock(&warm->lock);
    return stop;
}

/* Counted in one of warm->counts. */
static void report(struct dctf_warm *warm, size_t target, const char *path,
    const struct dctf_client_error *error, uint64_t *counter)
{
    struct dctf_str subject;
    uint64_t count;

    pthread_mutex_lock(&warm->lock);
    count = ++*counter;
    pthread_mutex_unlock(&warm->lock);
    if (count > FAILURES_SHOWN)
        return;
    dctf_str_init(&subject);
    dctf_str_printf(&subject, "%s%s%s", warm->config.targets[target].mount.path, *path ? "/" : "", path);
    dctf_tool_report(false, error, dctf_str_c(&subject));
    dctf_str_fini(&subject);
    if (count == FAILURES_SHOWN)
        fputs("dctf: further failures of this kind are only counted\n", stderr);
}

static void fail(
    struct dctf_warm *warm, size_t target, const char *path, const struct dctf_client_error *error)
{
    report(warm, target, path, error, &warm->counts.failed);
}

/* Nothing more can be fetched; said once, whichever thread finds out first. */
static void lose_daemon(struct dctf_warm *warm, size_t target, const struct dctf_client_error *error)
{
    bool first;

    if (error->code == DCTF_ERR_INTERRUPTED)
        return;
    pthread_mutex_lock(&warm->lock);
    first = !warm->stop;
    warm->stop = true;
    warm->counts.failed += first;
    pthread_mutex_unlock(&warm->lock);
    if (first)
        dctf_tool_report(false, error, warm->config.names[target]);
    stop_run(warm);
}

/* The worker's connection to the daemon of `target`. A new one begins with a short question:
 * a daemon that is gone or frozen must not cost the long wait for a shard. Where there is
 * none the run ends, and this is DCTF_ERR_INTERRUPTED. */
static enum dctf_err client_for(struct worker *worker, size_t target, struct dctf_client_error *error)
{
    const struct dctf_warm_config *config = &worker->warm->config;
    json_t *request, *reply = NULL;
    enum dctf_err err;

    if (worker->client && worker->client_target == target && dctf_client_usable(worker->client))
        return DCTF_OK;
    dctf_client_close(worker->client);
    worker->client_target = target;
    err = dctf_tool_connect(
        config->targets[target].mount.path, config->timeout_ms, config->stop_fd, &worker->client, error);
    if (!err) {
        request = json_pack("{s:s}", "cmd", "ping");
        err = dctf_client_call(worker->client, request, 0, &reply, error);
        json_decref(request);
        json_decref(reply);
    }
    if (!err)
        return DCTF_OK;
    lose_daemon(worker->warm, target, error);
    return dctf_client_error_set(error, DCTF_ERR_INTERRUPTED, NULL);
}

/* Ask about one path on the worker's connection. The request is taken. */
static enum dctf_err ask(struct worker *worker, size_t target, const char *path, json_t *request,
    uint64_t timeout_ms, json_t **reply, struct dctf_client_error *error)
{
    enum dctf_err err;

    *reply = NULL;
    if (!request || dctf_client_set_bytes(request, "path", path))
        err = dctf_client_error_set(error, DCTF_ERR_NO_MEMORY, NULL);
    else
        err = client_for(worker, target, error);
    if (!err)
        err = dctf_client_call(worker->client, request, timeout_ms, reply, error);
    json_decref(request);
    return err;
}

/* After a failed question: is the daemon still there? */
static void check_daemon(struct worker *worker, size_t target)
{
    struct dctf_client_error error;

    if (!is_stopped(worker->warm) && client_for(worker, target, &error))
        return; /* it has ended the run */
}

static enum dctf_err add_item(struct dctf_warm *warm, size_t target, const char *path, uint64_t size)
{
    size_t len = strlen(path) + 1;
    struct item *item = malloc(sizeof(*item) + len);

    if (!item)
        return DCTF_ERR_NO_MEMORY;
    item->next = NULL;
    item->target = target;
    item->size = size;
    memcpy(item->path, path, len);
    pthread_mutex_lock(&warm->lock);
    *warm->tail = item;
    warm->tail = &item->next;
    warm->counts.files++;
    warm->counts.bytes += size;
    pthread_cond_signal(&warm->more);
    pthread_mutex_unlock(&warm->lock);
    return DCTF_OK;
}

static char *join(const char *dir, const char *name)
{
    char *path = NULL;

    if (asprintf(&path, "%s%s%s", dir, *dir ? "/" : "", name) < 0)
        return NULL;
    return path;
}

static void walk_directory(struct dctf_warm *warm, size_t target, const char *dir);

static void walk_entry(
    struct dctf_warm *warm, size_t target, const char *dir, const json_t *entry, const char *name)
{
    char *path = join(dir, name);
    struct dctf_client_error error;
    enum dctf_err err = DCTF_OK;

    if (!path)
        err = DCTF_ERR_NO_MEMORY;
    else if (json_is_true(json_object_get(entry, "dir")))
        walk_directory(warm, target, path);
    else
        err = add_item(warm, target, path, (uint64_t)json_integer_value(json_object_get(entry, "size")));
    if (err) {
        dctf_client_error_set(&error, err, NULL);
        fail(warm, target, dir, &error);
    }
    free(path);
}

/* One page of a directory. Returns the name to go on after, NULL at the end. */
static char *walk_page(struct dctf_warm *warm, size_t target, const char *dir, const char *after)
{
    json_t *request = json_pack("{s:s, s:i}", "cmd", "list", "limit", LIST_PAGE);
    struct dctf_client_error error;
    json_t *reply, *entry;
    char *last = NULL;
    size_t i;

    if (after && dctf_client_set_bytes(request, "after", after)) {
        json_decref(request);
        request = NULL;
    }
    if (ask(&warm->walker, target, dir, request, LIST_TIMEOUT_MS, &reply, &error)) {
        if (error.code != DCTF_ERR_INTERRUPTED)
            fail(warm, target, dir, &error);
        check_daemon(&warm->walker, target);
        return NULL;
    }
    json_array_foreach(json_object_get(reply, "entries"), i, entry)
    {
        char *name = dctf_client_get_bytes(entry, "name");

        if (!name || is_stopped(warm)) {
            free(name);
            break;
        }
        walk_entry(warm, target, dir, entry, name);
        free(last);
        last = name;
    }
    if (!json_is_true(json_object_get(reply, "more")) || is_stopped(warm)) {
        free(last);
        last = NULL;
    }
    json_decref(reply);
    return last;
}

static void walk_directory(struct dctf_warm *warm, size_t target, const char *dir)
{
    char *after = NULL;

    do {
        char *last = walk_page(warm, target, dir, after);

        free(after);
        after = last;
    } while (after);
}

static void walk_target(struct dctf_warm *warm, size_t target)
{
    const char *path = warm->config.targets[target].path;
    struct dctf_client_error error;
    json_t *reply;

    if (ask(&warm->walker, target, path, json_pack("{s:s}", "cmd", "stat"), LIST_TIMEOUT_MS, &reply,
            &error)) {
        if (error.code != DCTF_ERR_INTERRUPTED)
            fail(warm, target, path, &error);
        check_daemon(&warm->walker, target);
        return;
    }
    if (json_is_true(json_object_get(reply, "dir")))
        walk_directory(warm, target, path);
    else if (add_item(warm, target, path, (uint64_t)json_integer_value(json_object_get(reply, "size")))) {
        dctf_client_error_set(&error, DCTF_ERR_NO_MEMORY, NULL);
        fail(warm, target, path, &error);
    }
    json_decref(reply);
}

static void *walk(void *arg)
{
    struct worker *walker = arg;
    struct dctf_warm *warm = walker->warm;

    for (size_t i = 0; i < warm->config.count && !is_stopped(warm); i++)
        walk_target(warm, i);
    dctf_client_close(walker->client);
    walker->client = NULL;
    pthread_mutex_lock(&warm->lock);
    warm->counts.walked = true;
    pthread_cond_broadcast(&warm->more);
    finish_if_done_locked(warm);
    pthread_mutex_unlock(&warm->lock);
    return NULL;
}

/* The next item, NULL when there is nothing left to do. */
static struct item *take(struct worker *worker)
{
    struct dctf_warm *warm = worker->warm;
    struct item *item = NULL;

    pthread_mutex_lock(&warm->lock);
    while (!warm->head && !warm->counts.walked && !warm->stop)
        pthread_cond_wait(&warm->more, &warm->lock);
    if (warm->head && !warm->stop) {
        item = warm->head;
        warm->head = item->next;
        if (!warm->head)
            warm->tail = &warm->head;
        worker->item = item;
        worker->item_bytes = 0;
        warm->busy++;
    }
    pthread_mutex_unlock(&warm->lock);
    return item;
}

static uint64_t field(const json_t *reply, const char *name)
{
    json_int_t value = json_integer_value(json_object_get(reply, name));

    return value > 0 ? (uint64_t)value : 0;
}

/* What the daemon did of a shard in a cluster. */
static void book_share_locked(struct dctf_warm *warm, const json_t *reply)
{
    uint64_t share = field(reply, "share_bytes"), fetched = field(reply, "fetched_bytes");
    uint64_t unkept = field(reply, "not_kept_bytes"), away = field(reply, "away_bytes");

    warm->counts.unkept_bytes += unkept;
    warm->counts.unkept_files += unkept > 0;
    warm->counts.away_bytes += away;
    warm->counts.away_files += away > 0;
    warm->counts.present_bytes += share > fetched + away ? share - fetched - away : 0;
    warm->counts.present_files += share > 0 && fetched == 0 && away == 0;
}

/* Book the end of an item; `reply` NULL: it failed, or was given up on a signal. */
static void book(struct worker *worker, const json_t *reply, bool given_up)
{
    struct dctf_warm *warm = worker->warm;
    uint64_t size = worker->item->size, fetched = field(reply, "fetched_bytes");
    bool kept = !reply || !json_is_false(json_object_get(reply, "kept"));

    pthread_mutex_lock(&warm->lock);
    if (!given_up) {
        warm->counts.files_done++;
        warm->counts.bytes_done += size;
    }
    if (reply) {
        uint64_t held = field(reply, "present_bytes");

        warm->counts.fetched_bytes += fetched;
        warm->counts.bad_blocks += field(reply, "bad_blocks");
        if (warm->config.scope) {
            book_share_locked(warm, reply);
        } else if (!kept) {
            warm->counts.unkept_files++;
            warm->counts.unkept_bytes += size > held ? size - held : 0;
        } else {
            warm->counts.present_bytes += size > fetched ? size - fetched : 0;
            warm->counts.present_files += fetched == 0;
        }
    }
    free(worker->item);
    worker->item = NULL;
    warm->busy--;
    finish_if_done_locked(warm);
    pthread_mutex_unlock(&warm->lock);
}

static void *work(void *arg)
{
    struct worker *worker = arg;
    struct dctf_warm *warm = worker->warm;
    struct item *item;

    while ((item = take(worker))) {
        uint64_t timeout_ms = warm->config.shard_timeout_ms;
        struct dctf_client_error error;
        bool given_up = false;
        json_t *reply;

        /* A minute, and a second per MiB: slower than any source worth waiting for. */
        if (!timeout_ms)
            timeout_ms = 60000 + item->size / 1024 / 1024 * 1000;
        if (ask(worker, item->target, item->path,
                json_pack("{s:s, s:b, s:s*}", "cmd", "warm", "verify", (int)warm->config.verify, "scope",
                    warm->config.scope),
                timeout_ms, &reply, &error)) {
            given_up = error.code == DCTF_ERR_INTERRUPTED;
            if (!given_up)
                fail(warm, item->target, item->path, &error);
            check_daemon(worker, item->target);
        } else if (field(reply, "bad_blocks")) {
            dctf_client_error_set(&error, DCTF_ERR_VERIFY_FAILED, NULL);
            report(warm, item->target, item->path, &error, &warm->counts.bad_files);
        }
        book(worker, reply, given_up);
        json_decref(reply);
    }
    dctf_client_close(worker->client);
    worker->client = NULL;
    return NULL;
}

enum dctf_err dctf_warm_start(const struct dctf_warm_config *config, struct dctf_warm **out)
{
    struct dctf_warm *warm = calloc(1, sizeof(*warm));
    struct worker *workers;
    unsigned started = 0;

    *out = NULL;
    if (!warm)
        return DCTF_ERR_NO_MEMORY;
    warm->config = *config;
    warm->tail = &warm->head;
    pthread_mutex_init(&warm->lock, NULL);
    pthread_cond_init(&warm->more, NULL);
    pthread_cond_init(&warm->progress, NULL);
    warm->workers = workers = calloc(config->jobs, sizeof(*workers));
    warm->walker.warm = warm;
    if (workers)
        warm->walker.started = !pthread_create(&warm->walker.thread, NULL, walk, &warm->walker);
    for (unsigned i = 0; workers && warm->walker.started && i < config->jobs; i++) {
        struct worker *worker = &workers[i];

        worker->warm = warm;
        worker->started = !pthread_create(&worker->thread, NULL, work, worker);
        started += worker->started;
    }
    if (!started) {
        struct dctf_warm_counts counts;

        stop_run(warm);
        dctf_warm_finish(warm, &counts);
        return DCTF_ERR_NO_MEMORY;
    }
    *out = warm;
    return DCTF_OK;
}

void dctf_warm_look(struct dctf_warm *warm, uint64_t wait_ms, struct dctf_warm_counts *out)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)(wait_ms / 1000);
    until.tv_nsec += (long)(wait_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&warm->lock);
    while (!warm->counts.finished) {
        if (pthread_cond_timedwait(&warm->progress, &warm->lock, &until))
            break;
    }
    *out = warm->counts;
    for (unsigned i = 0; i < warm->config.jobs; i++) {
        if (warm->workers[i].item)
            out->bytes_done += warm->workers[i].item_bytes;
    }
    pthread_mutex_unlock(&warm->lock);
}

/* The item of a worker, as a question; NULL when it is idle or small. */
static json_t *probe_question(struct dctf_warm *warm, unsigned i, size_t *target)
{
    json_t *request = NULL;
    const struct item *item;

    pthread_mutex_lock(&warm->lock);
    item = warm->workers[i].item;
    if (item && item->size >= 64u * 1024 * 1024) {
        *target = item->target;
        request = json_pack("{s:s}", "cmd", "stat");
        if (request && dctf_client_set_bytes(request, "path", item->path)) {
            json_decref(request);
            request = NULL;
        }
    }
    pthread_mutex_unlock(&warm->lock);
    return request;
}

void dctf_warm_probe(struct dctf_warm *warm)
{
    for (unsigned i = 0; i < warm->config.jobs; i++) {
        struct dctf_client_error error;
        json_t *reply, *request;
        size_t target = 0;

        request = probe_question(warm, i, &target);
        if (!request)
            continue;
        if (dctf_tool_ask(warm->config.targets[target].mount.path, 1000, request, &reply, &error))
            continue;
        pthread_mutex_lock(&warm->lock);
        /* The worker may be at another shard by now. */
        if (warm->workers[i].item && warm->workers[i].item->size == field(reply, "size"))
            warm->workers[i].item_bytes = field(reply, "present_bytes");
        pthread_mutex_unlock(&warm->lock);
        json_decref(reply);
    }
}

void dctf_warm_finish(struct dctf_warm *warm, struct dctf_warm_counts *out)
{
    stop_run(warm);
    for (unsigned i = 0; warm->workers && i < warm->config.jobs; i++) {
        if (warm->workers[i].started)
            pthread_join(warm->workers[i].thread, NULL);
    }
    if (warm->walker.started)
        pthread_join(warm->walker.thread, NULL);
    *out = warm->counts;
    while (warm->head) {
        struct item *item = warm->head;

        warm->head = item->next;
        free(item);
    }
    pthread_cond_destroy(&warm->progress);
    pthread_cond_destroy(&warm->more);
    pthread_mutex_destroy(&warm->lock);
    free(warm->workers);
    free(warm);
}
