/* SPDX-License-Identifier: Apache-2.0
 *
 * Objects lie in one array sorted by key. A listing walks it by position of the last
 * key told, page by page, so that changes between pages show as they do on S3.
 */
#include "lib/origin_memory.h"

#include "base/list.h"
#include "base/thread.h"
#include "base/version.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct object {
    char *key;
    unsigned char *data;
    size_t len;
    int64_t mtime_ns;
    char etag[DCTF_ETAG_MAX + 1];
};

enum op {
    OP_LIST,
    OP_HEAD,
    OP_GET,
};

struct task {
    struct dctf_list link;
    enum op op;
    void *request;
};

struct dctf_origin_memory {
    struct dctf_origin base; /* first */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    /* guarded by lock */
    struct dctf_list queue;
    bool closing;
    struct object *objects; /* sorted by key */
    size_t count;
    size_t cap;
    uint64_t puts;
    size_t page_size;
    struct dctf_origin_memory_counts counts;
};

static struct dctf_origin_memory *from_base(struct dctf_origin *base)
{
    return (struct dctf_origin_memory *)base;
}

/* The first object whose key is not less than `key`. */
static size_t position_locked(const struct dctf_origin_memory *memory, const char *key)
{
    size_t low = 0;
    size_t high = memory->count;

    while (low < high) {
        size_t mid = low + (high - low) / 2;

        if (strcmp(memory->objects[mid].key, key) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static struct object *find_locked(const struct dctf_origin_memory *memory, const char *key)
{
    size_t i = position_locked(memory, key);

    return i < memory->count && strcmp(memory->objects[i].key, key) == 0 ? &memory->objects[i] : NULL;
}

static enum dctf_err grow_locked(struct dctf_origin_memory *memory)
{
    size_t cap = memory->cap ? 2 * memory->cap : 64;
    struct object *objects;

    if (memory->count < memory->cap)
        return DCTF_OK;
    objects = realloc(memory->objects, cap * sizeof(objects[0]));
    if (!objects)
        return DCTF_ERR_NO_MEMORY;
    memory->objects = objects;
    memory->cap = cap;
    return DCTF_OK;
}

static void write_locked(
    struct dctf_origin_memory *memory, struct object *object, unsigned char *data, size_t len)
{
    memory->puts++;
    free(object->data);
    object->data = data;
    object->len = len;
    object->mtime_ns = 1700000000000000000 + (int64_t)memory->puts * 1000000000;
    snprintf(object->etag, sizeof(object->etag), "\"%016" PRIx64 "-%" PRIu64 "\"", dctf_hash64(data, len),
        memory->puts);
}

enum dctf_err dctf_origin_memory_put(
    struct dctf_origin_memory *memory, const char *key, const void *data, size_t len)
{
    unsigned char *copy = malloc(len + 1);
    char *name = strdup(key);
    struct object *object;
    enum dctf_err err = DCTF_ERR_NO_MEMORY;
    size_t i;

    if (!copy || !name)
        goto out;
    if (len > 0)
        memcpy(copy, data, len);
    pthread_mutex_lock(&memory->lock);
    err = grow_locked(memory);
    if (!err) {
        i = position_locked(memory, key);
        object = &memory->objects[i];
        if (i == memory->count || strcmp(object->key, key) != 0) {
            memmove(object + 1, object, (memory->count - i) * sizeof(*object));
            memset(object, 0, sizeof(*object));
            object->key = name;
            name = NULL;
            memory->count++;
        }
        write_locked(memory, object, copy, len);
        copy = NULL;
    }
    pthread_mutex_unlock(&memory->lock);
out:
    free(copy);
    free(name);
    return err;
}

enum dctf_err dctf_origin_memory_delete(struct dctf_origin_memory *memory, const char *key)
{
    struct object *object;
    enum dctf_err err = DCTF_ERR_NOT_FOUND;

    pthread_mutex_lock(&memory->lock);
    object = find_locked(memory, key);
    if (object) {
        free(object->key);
        free(object->data);
        memory->count--;
        memmove(object, object + 1, (memory->count - (size_t)(object - memory->objects)) * sizeof(*object));
        err = DCTF_OK;
    }
    pthread_mutex_unlock(&memory->lock);
    return err;
}

enum dctf_err dctf_origin_memory_etag(struct dctf_origin_memory *memory, const char *key, char *out)
{
    const struct object *object;

    out[0] = '\0';
    pthread_mutex_lock(&memory->lock);
    object = find_locked(memory, key);
    if (object)
        memcpy(out, object->etag, sizeof(object->etag));
    pthread_mutex_unlock(&memory->lock);
    return object ? DCTF_OK : DCTF_ERR_NOT_FOUND;
}

void dctf_origin_memory_page_size(struct dctf_origin_memory *memory, size_t entries)
{
    assert(entries > 0);
    pthread_mutex_lock(&memory->lock);
    memory->page_size = entries;
    pthread_mutex_unlock(&memory->lock);
}

void dctf_origin_memory_counts(struct dctf_origin_memory *memory, struct dctf_origin_memory_counts *out)
{
    pthread_mutex_lock(&memory->lock);
    *out = memory->counts;
    pthread_mutex_unlock(&memory->lock);
}

/* --- listing --- */

/* One page, copied out, as page() runs without the lock. */
struct page {
    struct dctf_origin_entry *entries;
    size_t count;
};

static void page_clear(struct page *page)
{
    for (size_t i = 0; i < page->count; i++) {
        free((void *)(uintptr_t)page->entries[i].name);
        free((void *)(uintptr_t)page->entries[i].etag);
    }
    page->count = 0;
}

static bool page_add(struct page *page, const char *name, size_t len, const struct object *object)
{
    struct dctf_origin_entry *entry = &page->entries[page->count];

    *entry = (struct dctf_origin_entry){
        .name = strndup(name, len),
        .is_dir = !object,
        .size = object ? object->len : 0,
        .mtime_ns = object ? object->mtime_ns : 0,
        .etag = strdup(object ? object->etag : ""),
    };
    page->count++;
    return entry->name && entry->etag;
}

/* Fill a page with what comes after *marker; *marker becomes the last key or prefix
 * told. False when out of memory. */
static bool fill_locked(
    const struct dctf_origin_memory *memory, const char *prefix, char **marker, struct page *page)
{
    size_t prefix_len = strlen(prefix);
    size_t i = position_locked(memory, *marker ? *marker : prefix);

    while (page->count < memory->page_size && i < memory->count) {
        const struct object *object = &memory->objects[i];
        const char *rest = object->key + prefix_len;
        const char *slash;
        size_t marker_len = *marker ? strlen(*marker) : 0;
        bool ok;

        if (strncmp(object->key, prefix, prefix_len) != 0)
            break;
        /* What was told already: the key itself, or all below a common prefix. */
        if (*marker && (strcmp(object->key, *marker) == 0 ||
                           (marker_len > prefix_len && (*marker)[marker_len - 1] == '/' &&
                               strncmp(object->key, *marker, marker_len) == 0))) {
            i++;
            continue;
        }
        slash = strchr(rest, '/');
        ok = slash ? page_add(page, rest, (size_t)(slash - rest), NULL)
                   : page_add(page, rest, strlen(rest), object);
        free(*marker);
        *marker = slash ? strndup(object->key, (size_t)(slash + 1 - object->key)) : strdup(object->key);
        if (!ok || !*marker)
            return false;
        i++;
    }
    return true;
}

static enum dctf_err run_list(struct dctf_origin_memory *memory, struct dctf_origin_list *list)
{
    struct page page = {0};
    char *prefix = NULL;
    char *marker = NULL;
    bool found = list->dir[0] == '\0';
    size_t page_size;
    enum dctf_err err = DCTF_ERR_NO_MEMORY;

    pthread_mutex_lock(&memory->lock);
    page_size = memory->page_size;
    pthread_mutex_unlock(&memory->lock);
    page.entries = calloc(page_size, sizeof(page.entries[0]));
    if (!page.entries || asprintf(&prefix, "%s%s", list->dir, list->dir[0] ? "/" : "") < 0) {
        free(page.entries);
        return DCTF_ERR_NO_MEMORY;
    }
    for (;;) {
        bool ok;

        pthread_mutex_lock(&memory->lock);
        assert(page_size == memory->page_size); /* set it between listings */
        ok = fill_locked(memory, prefix, &marker, &page);
        pthread_mutex_unlock(&memory->lock);
        if (!ok)
            break;
        found = found || page.count > 0;
        if (page.count == 0) {
            err = found ? DCTF_OK : DCTF_ERR_NOT_FOUND;
            break;
        }
        if (!list->page(list, page.entries, page.count)) {
            err = DCTF_ERR_CANCELLED;
            break;
        }
        page_clear(&page);
    }
    page_clear(&page);
    free(page.entries);
    free(marker);
    free(prefix);
    return err;
}

/* --- head and get --- */

static void run_head(struct dctf_origin_memory *memory, struct dctf_origin_head *head)
{
    const char *slash = strrchr(head->key, '/');
    char etag[DCTF_ETAG_MAX + 1];
    struct dctf_origin_entry entry = {.name = slash ? slash + 1 : head->key, .etag = etag};
    const struct object *object;

    pthread_mutex_lock(&memory->lock);
    object = find_locked(memory, head->key);
    if (object) {
        entry.size = object->len;
        entry.mtime_ns = object->mtime_ns;
        memcpy(etag, object->etag, sizeof(etag));
    }
    pthread_mutex_unlock(&memory->lock);
    head->done(head, object ? DCTF_OK : DCTF_ERR_NOT_FOUND, object ? &entry : NULL);
}

static void run_get(struct dctf_origin_memory *memory, struct dctf_origin_get *get)
{
    const struct object *object;
    enum dctf_err err = DCTF_OK;
    size_t got = 0;

    pthread_mutex_lock(&memory->lock);
    object = find_locked(memory, get->key);
    if (!object) {
        err = DCTF_ERR_NOT_FOUND;
    } else if (strcmp(object->etag, get->etag) != 0) {
        err = DCTF_ERR_VERSION_MISMATCH;
    } else if (get->offset < object->len) {
        got = object->len - get->offset < get->len ? object->len - get->offset : get->len;
        memcpy(get->buf, object->data + get->offset, got);
    }
    if (!err && got < get->len)
        err = DCTF_ERR_SHORT_BODY;
    memory->counts.bytes += got;
    pthread_mutex_unlock(&memory->lock);
    get->done(get, err, got);
}

/* --- the interface --- */

static void cancelled(const struct task *task)
{
    struct dctf_origin_list *list = task->request;
    struct dctf_origin_head *head = task->request;
    struct dctf_origin_get *get = task->request;

    switch (task->op) {
    case OP_LIST:
        list->done(list, DCTF_ERR_CANCELLED);
        break;
    case OP_HEAD:
        head->done(head, DCTF_ERR_CANCELLED, NULL);
        break;
    case OP_GET:
        get->done(get, DCTF_ERR_CANCELLED, 0);
        break;
    }
}

static void *work(void *ctx)
{
    struct dctf_origin_memory *memory = ctx;

    pthread_mutex_lock(&memory->lock);
    for (;;) {
        struct dctf_list *node = dctf_list_pop(&memory->queue);
        struct task *task;
        bool closing = memory->closing;

        if (!node && closing)
            break;
        if (!node) {
            pthread_cond_wait(&memory->wake, &memory->lock);
            continue;
        }
        task = dctf_list_entry(node, struct task, link);
        pthread_mutex_unlock(&memory->lock);
        if (closing) {
            cancelled(task);
        } else if (task->op == OP_LIST) {
            struct dctf_origin_list *list = task->request;

            list->done(list, run_list(memory, list));
        } else if (task->op == OP_HEAD) {
            run_head(memory, task->request);
        } else {
            run_get(memory, task->request);
        }
        free(task);
        pthread_mutex_lock(&memory->lock);
    }
    pthread_mutex_unlock(&memory->lock);
    return NULL;
}

static enum dctf_err submit(struct dctf_origin *base, enum op op, void *request)
{
    struct dctf_origin_memory *memory = from_base(base);
    struct task *task = calloc(1, sizeof(*task));
    enum dctf_err err = DCTF_OK;

    if (!task)
        return DCTF_ERR_NO_MEMORY;
    task->op = op;
    task->request = request;
    pthread_mutex_lock(&memory->lock);
    if (memory->closing) {
        err = DCTF_ERR_SHUTTING_DOWN;
        free(task);
    } else {
        memory->counts.list += op == OP_LIST;
        memory->counts.head += op == OP_HEAD;
        memory->counts.get += op == OP_GET;
        dctf_list_push_back(&memory->queue, &task->link);
        pthread_cond_signal(&memory->wake);
    }
    pthread_mutex_unlock(&memory->lock);
    return err;
}

static enum dctf_err memory_list(struct dctf_origin *base, struct dctf_origin_list *list)
{
    return submit(base, OP_LIST, list);
}

static enum dctf_err memory_head(struct dctf_origin *base, struct dctf_origin_head *head)
{
    return submit(base, OP_HEAD, head);
}

static enum dctf_err memory_get(struct dctf_origin *base, struct dctf_origin_get *get)
{
    return submit(base, OP_GET, get);
}

/* All requests end by themselves and at once: nothing to cancel. */

static void memory_cancel_list(struct dctf_origin *base, struct dctf_origin_list *list)
{
    (void)base;
    (void)list;
}

static void memory_cancel_head(struct dctf_origin *base, struct dctf_origin_head *head)
{
    (void)base;
    (void)head;
}

static void memory_cancel_get(struct dctf_origin *base, struct dctf_origin_get *get)
{
    (void)base;
    (void)get;
}

static enum dctf_err memory_check(struct dctf_origin *base, uint64_t deadline_ms, char *detail)
{
    (void)base;
    (void)deadline_ms;
    detail[0] = '\0';
    return DCTF_OK;
}

static void memory_close(struct dctf_origin *base, uint64_t wait_ms)
{
    struct dctf_origin_memory *memory = from_base(base);

    (void)wait_ms;
    pthread_mutex_lock(&memory->lock);
    memory->closing = true;
    pthread_cond_signal(&memory->wake);
    pthread_mutex_unlock(&memory->lock);
    pthread_join(memory->thread, NULL);
    for (size_t i = 0; i < memory->count; i++) {
        free(memory->objects[i].key);
        free(memory->objects[i].data);
    }
    free(memory->objects);
    pthread_cond_destroy(&memory->wake);
    pthread_mutex_destroy(&memory->lock);
    free(memory);
}

static const struct dctf_origin_ops memory_ops = {
    .scheme = "memory",
    .list = memory_list,
    .head = memory_head,
    .get = memory_get,
    .cancel_list = memory_cancel_list,
    .cancel_head = memory_cancel_head,
    .cancel_get = memory_cancel_get,
    .check = memory_check,
    .close = memory_close,
};

enum dctf_err dctf_origin_memory_new(struct dctf_origin_memory **out)
{
    struct dctf_origin_memory *memory = calloc(1, sizeof(*memory));
    enum dctf_err err;

    *out = NULL;
    if (!memory)
        return DCTF_ERR_NO_MEMORY;
    memory->base.ops = &memory_ops;
    memory->page_size = 1000;
    dctf_list_init(&memory->queue);
    pthread_mutex_init(&memory->lock, NULL);
    pthread_cond_init(&memory->wake, NULL);
    err = dctf_thread_start("memory-origin", work, memory, &memory->thread);
    if (err) {
        pthread_cond_destroy(&memory->wake);
        pthread_mutex_destroy(&memory->lock);
        free(memory);
        return err;
    }
    *out = memory;
    return DCTF_OK;
}

struct dctf_origin *dctf_origin_memory_base(struct dctf_origin_memory *memory)
{
    return &memory->base;
}
