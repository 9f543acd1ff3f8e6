/* SPDX-License-Identifier: Apache-2.0
 *
 * A request is PARKED until its delay or stall is over, then passed on or failed.
 * The control file is read under the lock: this is test code, and so a request
 * that follows a change of the file surely meets the new rules.
 */
#include "lib/origin_script.h"

#include "base/clock.h"
#include "base/list.h"
#include "base/log.h"
#include "base/str.h"
#include "base/thread.h"
#include "lib/origin_script_rules.h"

#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define TICK_MS 5u

struct script;

struct task {
    struct dctf_list link; /* guarded by the lock */
    struct script *script;
    unsigned refs; /* guarded by the lock: until answered, and one per cancel under way */
    bool parked;   /* guarded by the lock */
    enum dctf_script_op op;
    void *request; /* the caller's */
    const char *key;
    struct dctf_script_fate fate;
    uint64_t due_ms;
    size_t told; /* entries of a listing */
    bool cut;    /* the listing was ended by us */
    union {
        struct dctf_origin_get get;
        struct dctf_origin_list list;
        struct dctf_origin_head head;
    } inner;
};

struct script {
    struct dctf_origin base; /* first */
    struct dctf_origin *inner;
    char *control;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    /* guarded by lock */
    bool closing;
    struct dctf_list tasks; /* all that are not answered */
    struct dctf_script_rules rules;
    struct stat seen; /* of the control file last read */
    json_int_t counts[DCTF_SCRIPT_OP_COUNT];
    json_int_t bytes;
    json_t *keys;
};

static struct script *from_base(struct dctf_origin *base)
{
    return (struct script *)base;
}

/* --- the control file --- */

static void stats_write_locked(struct script *script)
{
    json_int_t pending = 0;
    json_int_t stalled = 0;
    char *part = NULL;
    json_t *json;

    if (!script->rules.stats)
        return;
    for (struct dctf_list *node = script->tasks.next; node != &script->tasks; node = node->next) {
        const struct task *task = dctf_list_entry(node, struct task, link);

        pending++;
        stalled += task->parked && task->fate.stall;
    }
    json = json_pack("{sI sI sI sI sI sI sI sO}", "serial", script->rules.serial, "get",
        script->counts[DCTF_SCRIPT_GET], "list", script->counts[DCTF_SCRIPT_LIST], "head",
        script->counts[DCTF_SCRIPT_HEAD], "bytes", script->bytes, "pending", pending, "stalled", stalled,
        "keys", script->keys);
    if (json && asprintf(&part, "%s.part", script->rules.stats) >= 0) {
        if (json_dump_file(json, part, JSON_COMPACT) != 0 || rename(part, script->rules.stats) != 0)
            dctf_log(DCTF_LOG_ERROR, "script", "cannot write %s err=%d", script->rules.stats,
                (int)DCTF_ERR_SYSTEM);
        free(part);
    }
    json_decref(json);
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static void control_read_locked(struct script *script)
{
    char why[JSON_ERROR_TEXT_LENGTH] = "";
    struct stat st = {0};
    json_error_t at;
    json_t *json;

    if (stat(script->control, &st) != 0)
        memset(&st, 0, sizeof(st));
    if (same_file(&st, &script->seen))
        return;
    json = st.st_ino ? json_load_file(script->control, 0, &at) : json_object();
    script->seen = st;
    if (!json)
        snprintf(why, sizeof(why), "%s", at.text);
    if (!json || !dctf_script_rules_apply(&script->rules, json, why))
        dctf_log(DCTF_LOG_ERROR, "script", "control file not understood: %s err=%d", why,
            (int)DCTF_ERR_CONFIG_SYNTAX);
    json_decref(json);
    stats_write_locked(script);
}

/* --- counting --- */

static json_t *key_stats_locked(struct script *script, const char *key)
{
    char quoted[4200];
    const char *name = key;
    json_t *probe = json_string(key);
    json_t *entry;

    if (!probe)
        name = dctf_str_quote(key, quoted, sizeof(quoted));
    json_decref(probe);
    entry = json_object_get(script->keys, name);
    if (!entry) {
        entry = json_pack("{si si s[]}", "gets", 0, "bytes", 0, "ranges");
        json_object_set_new(script->keys, name, entry);
    }
    return entry;
}

static void bump(json_t *entry, const char *field, json_int_t by)
{
    json_object_set_new(entry, field, json_integer(json_integer_value(json_object_get(entry, field)) + by));
}

static void count_locked(struct script *script, const struct task *task)
{
    const struct dctf_origin_get *get = task->request;
    json_t *entry;

    script->counts[task->op]++;
    if (task->op != DCTF_SCRIPT_GET)
        return;
    entry = key_stats_locked(script, task->key);
    bump(entry, "gets", 1);
    json_array_append_new(
        json_object_get(entry, "ranges"), json_pack("[II]", (json_int_t)get->offset, (json_int_t)get->len));
}

/* --- tasks --- */

static void unref_locked(struct task *task)
{
    if (--task->refs == 0)
        free(task);
}

/* Take the task off, for the one answer it gets. */
static void retire(struct task *task, size_t bytes)
{
    struct script *script = task->script;

    pthread_mutex_lock(&script->lock);
    dctf_list_remove(&task->link);
    if (bytes > 0) {
        script->bytes += (json_int_t)bytes;
        bump(key_stats_locked(script, task->key), "bytes", (json_int_t)bytes);
    }
    unref_locked(task);
    pthread_mutex_unlock(&script->lock);
}

static void fail(struct task *task, enum dctf_err err)
{
    enum dctf_script_op op = task->op;
    void *request = task->request;

    retire(task, 0);
    if (op == DCTF_SCRIPT_GET)
        ((struct dctf_origin_get *)request)->done(request, err, 0);
    else if (op == DCTF_SCRIPT_LIST)
        ((struct dctf_origin_list *)request)->done(request, err);
    else
        ((struct dctf_origin_head *)request)->done(request, err, NULL);
}

static void inner_got(struct dctf_origin_get *inner, enum dctf_err err, size_t got)
{
    struct task *task = inner->ctx;
    struct dctf_origin_get *get = task->request;

    if (!err && got < get->len)
        err = DCTF_ERR_SHORT_BODY;
    retire(task, got);
    get->done(get, err, got);
}

static bool inner_page(struct dctf_origin_list *inner, const struct dctf_origin_entry *entries, size_t count)
{
    struct task *task = inner->ctx;
    struct dctf_origin_list *list = task->request;

    if (task->fate.cut && count > task->fate.cut_at - task->told) {
        count = task->fate.cut_at - task->told;
        task->cut = true;
    }
    task->told += count;
    return (count == 0 || list->page(list, entries, count)) && !task->cut;
}

static void inner_listed(struct dctf_origin_list *inner, enum dctf_err err)
{
    struct task *task = inner->ctx;
    struct dctf_origin_list *list = task->request;

    if (task->cut)
        err = DCTF_ERR_SHORT_BODY;
    retire(task, 0);
    list->done(list, err);
}

static void inner_headed(
    struct dctf_origin_head *inner, enum dctf_err err, const struct dctf_origin_entry *entry)
{
    struct task *task = inner->ctx;
    struct dctf_origin_head *head = task->request;

    retire(task, 0);
    head->done(head, err, entry);
}

/* Start it at the origin behind. On failure nothing was called and the task stays. */
static enum dctf_err pass_on(struct task *task)
{
    struct dctf_origin *inner = task->script->inner;
    const struct dctf_origin_get *get = task->request;

    switch (task->op) {
    case DCTF_SCRIPT_GET:
        task->inner.get = *get;
        task->inner.get.done = inner_got;
        task->inner.get.ctx = task;
        if (task->fate.cut && task->fate.cut_at < get->len)
            task->inner.get.len = task->fate.cut_at;
        return inner->ops->get(inner, &task->inner.get);
    case DCTF_SCRIPT_LIST:
        task->inner.list = (struct dctf_origin_list){
            .dir = task->key, .page = inner_page, .done = inner_listed, .ctx = task};
        return inner->ops->list(inner, &task->inner.list);
    case DCTF_SCRIPT_HEAD:
        task->inner.head = (struct dctf_origin_head){.key = task->key, .done = inner_headed, .ctx = task};
        return inner->ops->head(inner, &task->inner.head);
    default:
        return DCTF_ERR_INTERNAL;
    }
}

/* What was parked is due. */
static void resume(struct task *task)
{
    enum dctf_err err = task->fate.err;

    if (!err && task->op == DCTF_SCRIPT_GET && task->fate.cut && task->fate.cut_at == 0)
        err = DCTF_ERR_SHORT_BODY;
    if (!err)
        err = pass_on(task);
    if (err)
        fail(task, err);
}

static struct task *due_locked(struct script *script)
{
    uint64_t now_ms = dctf_clock_mono_ms(NULL);

    for (struct dctf_list *node = script->tasks.next; node != &script->tasks; node = node->next) {
        struct task *task = dctf_list_entry(node, struct task, link);

        if (!task->parked || now_ms < task->due_ms)
            continue;
        if (task->fate.stall && dctf_script_rules_stall(&script->rules, task->op, task->key))
            continue;
        task->parked = false;
        return task;
    }
    return NULL;
}

static void *work(void *ctx)
{
    struct script *script = ctx;

    pthread_mutex_lock(&script->lock);
    while (!script->closing) {
        struct task *task;
        struct timespec ts;
        uint64_t until_ms;

        control_read_locked(script);
        task = due_locked(script);
        if (task) {
            pthread_mutex_unlock(&script->lock);
            resume(task);
            pthread_mutex_lock(&script->lock);
            continue;
        }
        until_ms = dctf_clock_mono_ms(NULL) + TICK_MS;
        ts = (struct timespec){(time_t)(until_ms / 1000), (long)(until_ms % 1000) * 1000000};
        pthread_cond_timedwait(&script->wake, &script->lock, &ts);
    }
    pthread_mutex_unlock(&script->lock);
    return NULL;
}

/* --- the interface --- */

static enum dctf_err submit(struct dctf_origin *base, enum dctf_script_op op, void *request, const char *key)
{
    struct script *script = from_base(base);
    struct task *task = calloc(1, sizeof(*task));
    enum dctf_err err = DCTF_OK;
    bool parked;

    if (!task)
        return DCTF_ERR_NO_MEMORY;
    *task = (struct task){.script = script, .op = op, .request = request, .key = key, .refs = 1};
    dctf_list_init(&task->link);
    pthread_mutex_lock(&script->lock);
    if (script->closing) {
        pthread_mutex_unlock(&script->lock);
        free(task);
        return DCTF_ERR_SHUTTING_DOWN;
    }
    control_read_locked(script);
    count_locked(script, task);
    task->fate = dctf_script_rules_decide(&script->rules, op, key);
    task->due_ms = dctf_clock_mono_ms(NULL) + task->fate.delay_ms;
    parked = task->fate.delay_ms > 0 || task->fate.stall || task->fate.err || task->fate.cut;
    task->parked = parked;
    dctf_list_push_back(&script->tasks, &task->link);
    if (parked)
        pthread_cond_signal(&script->wake);
    pthread_mutex_unlock(&script->lock);
    if (!parked)
        err = pass_on(task);
    if (err)
        retire(task, 0);
    return err;
}

static enum dctf_err script_list(struct dctf_origin *base, struct dctf_origin_list *list)
{
    return submit(base, DCTF_SCRIPT_LIST, list, list->dir);
}

static enum dctf_err script_head(struct dctf_origin *base, struct dctf_origin_head *head)
{
    return submit(base, DCTF_SCRIPT_HEAD, head, head->key);
}

static enum dctf_err script_get(struct dctf_origin *base, struct dctf_origin_get *get)
{
    return submit(base, DCTF_SCRIPT_GET, get, get->key);
}

static void cancel(struct dctf_origin *base, const void *request)
{
    struct script *script = from_base(base);
    struct task *found = NULL;
    bool parked = false;

    pthread_mutex_lock(&script->lock);
    for (struct dctf_list *node = script->tasks.next; node != &script->tasks && !found; node = node->next) {
        struct task *task = dctf_list_entry(node, struct task, link);

        if (task->request == request)
            found = task;
    }
    if (found && found->parked && found->fate.hard)
        found = NULL;
    if (found) {
        parked = found->parked;
        found->parked = false;
        found->refs++;
    }
    pthread_mutex_unlock(&script->lock);
    if (!found)
        return;
    if (parked)
        fail(found, DCTF_ERR_CANCELLED);
    else if (found->op == DCTF_SCRIPT_GET)
        script->inner->ops->cancel_get(script->inner, &found->inner.get);
    else if (found->op == DCTF_SCRIPT_LIST)
        script->inner->ops->cancel_list(script->inner, &found->inner.list);
    else
        script->inner->ops->cancel_head(script->inner, &found->inner.head);
    pthread_mutex_lock(&script->lock);
    unref_locked(found);
    pthread_mutex_unlock(&script->lock);
}

static void script_cancel_list(struct dctf_origin *base, struct dctf_origin_list *list)
{
    cancel(base, list);
}

static void script_cancel_head(struct dctf_origin *base, struct dctf_origin_head *head)
{
    cancel(base, head);
}

static void script_cancel_get(struct dctf_origin *base, struct dctf_origin_get *get)
{
    cancel(base, get);
}

static enum dctf_err script_check(struct dctf_origin *base, uint64_t deadline_ms, char *detail)
{
    static const struct timespec tick = {.tv_nsec = TICK_MS * 1000000};
    struct script *script = from_base(base);
    uint64_t now_ms = dctf_clock_mono_ms(NULL);
    uint64_t end_ms = now_ms + deadline_ms;
    struct dctf_script_fate fate;
    uint64_t due_ms;

    pthread_mutex_lock(&script->lock);
    control_read_locked(script);
    fate = dctf_script_rules_decide(&script->rules, DCTF_SCRIPT_CHECK, "");
    due_ms = now_ms + fate.delay_ms;
    while (now_ms < end_ms && (fate.stall || now_ms < due_ms)) {
        pthread_mutex_unlock(&script->lock);
        nanosleep(&tick, NULL);
        pthread_mutex_lock(&script->lock);
        control_read_locked(script);
        fate.stall = fate.stall && dctf_script_rules_stall(&script->rules, DCTF_SCRIPT_CHECK, "");
        now_ms = dctf_clock_mono_ms(NULL);
    }
    pthread_mutex_unlock(&script->lock);
    snprintf(detail, 256, "the script says so");
    if (fate.err && now_ms < end_ms)
        return fate.err;
    return now_ms < end_ms ? script->inner->ops->check(script->inner, end_ms - now_ms, detail)
                           : DCTF_ERR_DEADLINE;
}

static void script_free(struct script *script)
{
    dctf_script_rules_fini(&script->rules);
    free(script->control);
    json_decref(script->keys);
    pthread_cond_destroy(&script->wake);
    pthread_mutex_destroy(&script->lock);
    free(script);
}

static void script_close(struct dctf_origin *base, uint64_t wait_ms)
{
    struct script *script = from_base(base);
    struct dctf_list *node;
    bool left;

    pthread_mutex_lock(&script->lock);
    script->closing = true;
    pthread_cond_signal(&script->wake);
    pthread_mutex_unlock(&script->lock);
    pthread_join(script->thread, NULL);
    pthread_mutex_lock(&script->lock);
    for (node = script->tasks.next; node != &script->tasks;) {
        struct task *task = dctf_list_entry(node, struct task, link);

        node = node->next;
        if (!task->parked)
            continue;
        task->parked = false;
        pthread_mutex_unlock(&script->lock);
        fail(task, DCTF_ERR_CANCELLED);
        pthread_mutex_lock(&script->lock);
        node = script->tasks.next; /* the list may have changed */
    }
    pthread_mutex_unlock(&script->lock);
    script->inner->ops->close(script->inner, wait_ms);
    pthread_mutex_lock(&script->lock);
    stats_write_locked(script);
    left = !dctf_list_empty(&script->tasks);
    pthread_mutex_unlock(&script->lock);
    if (!left) /* else a request is stuck behind us and will come back here */
        script_free(script);
}

static const struct dctf_origin_ops script_ops = {
    .scheme = "script",
    .list = script_list,
    .head = script_head,
    .get = script_get,
    .cancel_list = script_cancel_list,
    .cancel_head = script_cancel_head,
    .cancel_get = script_cancel_get,
    .check = script_check,
    .close = script_close,
};

enum dctf_err dctf_origin_script_open(const struct dctf_origin_config *config, struct dctf_origin **out)
{
    static const struct dctf_origin_scheme schemes[] = {{"file", dctf_origin_file_open}, {NULL, NULL}};
    struct dctf_origin_config inner = *config;
    const char *path = config->source + strlen("script://");
    const char *mark = strchr(path, '?');
    struct script *script;
    enum dctf_err err;

    *out = NULL;
    if (path[0] != '/' || !mark)
        return DCTF_ERR_SOURCE_UNSUPPORTED;
    script = calloc(1, sizeof(*script));
    if (!script)
        return DCTF_ERR_NO_MEMORY;
    script->base.ops = &script_ops;
    script->control = strndup(path, (size_t)(mark - path));
    script->keys = json_object();
    dctf_list_init(&script->tasks);
    pthread_mutex_init(&script->lock, NULL);
    err = dctf_thread_cond_init(&script->wake);
    inner.source = mark + 1;
    if (!err && (!script->control || !script->keys))
        err = DCTF_ERR_NO_MEMORY;
    if (!err)
        err = dctf_origin_open(schemes, &inner, &script->inner);
    if (!err)
        err = dctf_thread_start("script-origin", work, script, &script->thread);
    if (err) {
        if (script->inner)
            script->inner->ops->close(script->inner, 0);
        script_free(script);
        return err;
    }
    *out = &script->base;
    return DCTF_OK;
}
