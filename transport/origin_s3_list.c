/* SPDX-License-Identifier: Apache-2.0
 *
 * Directories: ListObjectsV2, page by page. A page is read and handed over on a thread of
 * the origin's pool, because that takes milliseconds and writes to a database; the one
 * after it is requested meanwhile, one ahead at most.
 *
 *   request ─ answer ─→ hold the body ─→ worker: parse, request the next, page()
 *                            ↑                                  │
 *                            └── whoever is later, answer or worker, goes on
 *
 * The first page's failures are the scheduler's to try again. Once pages were handed over
 * it cannot start anew, so a later page that fails in passing is asked for again here.
 */
#include "transport/s3_internal.h"

#include "base/log.h"
#include "transport/uri.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE_KEYS 1000u
#define PAGE_BYTES_MAX (16u * 1024u * 1024u)
#define PAGE_TRIES 8u
#define BACKOFF_MS 50u
#define BACKOFF_MAX_MS 5000u

struct list {
    struct dctf_s3_task task; /* first */
    struct dctf_s3_request request;
    struct dctf_origin_list *list;
    char *prefix; /* whole key prefix, with its slash */
    struct dctf_str query;
    struct dctf_timer again;
    bool later;     /* than the first page is what was asked for last */
    unsigned tries; /* of it */
    bool found;     /* there was an entry */

    /* guarded by the origin's lock */
    bool working;  /* a worker has a page */
    bool answered; /* the request is over; its result waits for the worker */
    bool stopped;  /* cancelled, or page() wants no more */
    bool backing_off;
    enum dctf_err verdict; /* the end is decided, and waits for the request to end */

    /* The result, the worker's once it is answered. */
    enum dctf_err err;
    char *body;
    size_t len;
};

static struct list *of_task(struct dctf_s3_task *task)
{
    return (struct list *)(void *)task;
}

static void list_free(struct dctf_s3_task *task)
{
    struct list *own = of_task(task);

    dctf_s3_request_fini(&own->request);
    dctf_str_fini(&own->query);
    free(own->prefix);
    free(own->body);
    free(own);
}

void dctf_s3_list_query(
    struct dctf_str *out, const char *prefix, bool delimiter, unsigned max_keys, const char *token)
{
    dctf_str_clear(out);
    if (token) {
        dctf_str_puts(out, "continuation-token=");
        dctf_uri_encode(out, token, strlen(token), false);
        dctf_str_puts(out, "&");
    }
    if (delimiter)
        dctf_str_puts(out, "delimiter=%2F&");
    dctf_str_printf(out, "encoding-type=url&list-type=2&max-keys=%u&prefix=", max_keys);
    dctf_uri_encode(out, prefix, strlen(prefix), false);
}

/* --- one page --- */

static enum dctf_err hand_over(struct list *own, struct dctf_s3_list *page)
{
    struct dctf_origin_entry *entries = calloc(page->count + 1, sizeof(*entries));
    enum dctf_err err = entries ? DCTF_OK : DCTF_ERR_NO_MEMORY;

    for (size_t i = 0; !err && i < page->count; i++) {
        char key[256];

        if (!dctf_s3_list_entry(page, i, own->prefix, &entries[i])) {
            dctf_log(DCTF_LOG_WARN, "s3", "listing has key=%s etag=\"%.40s\", which does not fit err=%d",
                dctf_str_quote(page->objects[i].key, key, sizeof(key)),
                page->objects[i].is_prefix ? "" : page->objects[i].etag, (int)DCTF_ERR_BAD_RESPONSE);
            err = DCTF_ERR_BAD_RESPONSE;
        }
    }
    if (!err && page->count > 0 && !own->list->page(own->list, entries, page->count))
        err = DCTF_ERR_CANCELLED;
    if (page->count > 0 || page->unusable > 0)
        own->found = true;
    if (page->unusable > 0) {
        char dir[256];

        dctf_s3_count(own->task.s3, DCTF_METRIC_HIDDEN_KEYS, (int64_t)page->unusable);
        dctf_log(DCTF_LOG_WARN, "s3", "hidden keys=%zu dir=%s why=\"NUL byte in the key\" (docs/keys.md)",
            page->unusable, dctf_str_quote(own->list->dir, dir, sizeof(dir)));
    }
    free(entries);
    return err;
}

/* --- the steps --- */

static void work(void *ctx);

/* On a worker, or where there is none to be had. */
static void end(struct list *own, enum dctf_err err)
{
    /* A root without keys is a directory without entries; any other is not there. */
    if (!err && !own->found && own->list->dir[0])
        err = DCTF_ERR_NOT_FOUND;
    own->list->retry_after_ms = own->request.retry_after_ms;
    dctf_s3_task_end(&own->task);
    own->list->done(own->list, err);
    dctf_s3_task_unref(&own->task);
}

/* Let a worker look at the result. */
static void hand_to_worker(struct list *own)
{
    enum dctf_err err = dctf_pool_submit(own->task.s3->parsers, work, own);

    if (err) {
        free(own->body);
        own->body = NULL;
        end(own, err);
    }
}

/* The request is over: its result is there, for the worker that waits or the one that is at
 * the page before. */
static void answer(struct list *own, enum dctf_err err)
{
    struct dctf_s3 *s3 = own->task.s3;
    bool go;

    own->err = err;
    pthread_mutex_lock(&s3->lock);
    own->answered = true;
    go = !own->working;
    if (go)
        own->working = true;
    pthread_mutex_unlock(&s3->lock);
    if (go)
        hand_to_worker(own);
}

static void again_fired(void *ctx)
{
    struct list *own = ctx;
    struct dctf_s3 *s3 = own->task.s3;
    bool go;
    enum dctf_err err;

    pthread_mutex_lock(&s3->lock);
    go = own->backing_off;
    own->backing_off = false;
    pthread_mutex_unlock(&s3->lock);
    if (go) {
        err = dctf_s3_request_start(&own->request);
        if (err)
            answer(own, err);
    }
    dctf_s3_task_unref(&own->task);
}

/* Ask for a later page again, after a while: full jitter, as in transport/fetch.c. */
static bool try_again(struct list *own, enum dctf_err err)
{
    struct dctf_s3 *s3 = own->task.s3;
    uint64_t top = BACKOFF_MS;
    uint64_t pause_ms;
    bool go;

    if (!own->later || dctf_err_class(err) != DCTF_ERR_CLASS_RETRY || own->tries >= PAGE_TRIES)
        return false;
    for (unsigned i = 1; i < own->tries && top < BACKOFF_MAX_MS; i++)
        top *= 2;
    own->tries++;
    pause_ms = own->request.retry_after_ms < s3->list_deadline_ms / 4 * 3 ? own->request.retry_after_ms
                                                                          : s3->list_deadline_ms / 4 * 3;
    dctf_s3_task_ref(&own->task); /* the timer's */
    pthread_mutex_lock(&s3->lock);
    go = !own->stopped && !s3->closing &&
         dctf_timer_arm(s3->timers, &own->again, pause_ms + dctf_rng_below(&s3->rng, top + 1), again_fired,
             own) == DCTF_OK;
    own->backing_off = go;
    if (go)
        dctf_metric_add(s3->metrics, DCTF_METRIC_ORIGIN_RETRIES, 1);
    pthread_mutex_unlock(&s3->lock);
    if (!go)
        dctf_s3_task_unref(&own->task);
    return go;
}

static void page_done(
    struct dctf_s3_request *request, enum dctf_err err, const struct dctf_http_response *response)
{
    struct list *own = of_task(request->task);

    if (err && try_again(own, err))
        return;
    if (!err) { /* the response is valid during this call only */
        own->len = response->len;
        own->body = malloc(own->len + 1);
        if (own->body && own->len > 0)
            memcpy(own->body, response->body, own->len);
        if (!own->body)
            err = DCTF_ERR_NO_MEMORY;
    }
    answer(own, err);
}

static void list_cancel(struct dctf_s3_task *task)
{
    struct list *own = of_task(task);
    struct dctf_s3 *s3 = task->s3;
    bool backing_off;

    pthread_mutex_lock(&s3->lock);
    own->stopped = true;
    backing_off = own->backing_off;
    own->backing_off = false;
    pthread_mutex_unlock(&s3->lock);
    dctf_s3_request_cancel(&own->request);
    if (!backing_off)
        return;
    if (dctf_timer_cancel(s3->timers, &own->again))
        dctf_s3_task_unref(task);
    answer(own, DCTF_ERR_CANCELLED);
}

/* The held body as a page. An error document in a 200 is an error like another. */
static enum dctf_err parse(struct list *own, struct dctf_s3_list *page)
{
    struct dctf_s3_error error;
    const char *last = own->query.data;
    enum dctf_err err = dctf_s3_list_parse(own->body, own->len, page);

    if (!err && page->truncated) {
        struct dctf_str next;

        /* A token that leads back to this page would never end. */
        dctf_str_init(&next);
        dctf_s3_list_query(&next, own->prefix, true, PAGE_KEYS, page->next_token ? page->next_token : "");
        err = next.err;
        if (!err && (!page->next_token || !*page->next_token || strcmp(next.data, last) == 0))
            err = DCTF_ERR_BAD_RESPONSE;
        dctf_str_fini(&next);
        if (err)
            dctf_s3_list_fini(page);
    } else if (err == DCTF_ERR_BAD_RESPONSE) {
        dctf_s3_error_parse(own->body, own->len, &error);
        if (error.code[0])
            err = dctf_s3_error_map(DCTF_S3_LIST, 200, error.code);
    }
    if (err) {
        char dir[256];

        dctf_log(DCTF_LOG_WARN, "s3", "op=list key=%s status=200 len=%zu err=%d the page cannot be read",
            dctf_str_quote(own->list->dir, dir, sizeof(dir)), own->len, (int)err);
    }
    return err;
}

static enum dctf_err request_next(struct list *own, const char *token)
{
    dctf_s3_list_query(&own->query, own->prefix, true, PAGE_KEYS, token);
    if (own->query.err)
        return own->query.err;
    own->request.query = own->query.data;
    own->later = true;
    own->tries = 1;
    return dctf_s3_request_start(&own->request);
}

/* One page of a result that has come. True: the request for the page after it is under way. */
static bool take_page(struct list *own)
{
    struct dctf_s3_list page;
    enum dctf_err next = DCTF_OK;
    enum dctf_err err = parse(own, &page);
    bool more;

    free(own->body);
    own->body = NULL;
    if (err) {
        struct dctf_s3 *s3 = own->task.s3;

        pthread_mutex_lock(&s3->lock);
        own->working = false; /* first: the answer may come before this ends */
        pthread_mutex_unlock(&s3->lock);
        if (!try_again(own, err))
            end(own, err);
        return false;
    }
    more = page.truncated;
    if (more)
        next = request_next(own, page.next_token);
    err = hand_over(own, &page);
    dctf_s3_list_fini(&page);
    if (!err)
        err = next;
    if (!more || next) {
        end(own, err);
        return false;
    }
    if (err) {
        own->verdict = err;
        list_cancel(&own->task);
    }
    return true;
}

/* Pages as long as there are results; `working` is ours until there is none. */
static void work(void *ctx)
{
    struct list *own = ctx;
    struct dctf_s3 *s3 = own->task.s3;
    bool go = true;

    dctf_s3_task_ref(&own->task);
    while (go) {
        enum dctf_err err = own->verdict ? own->verdict : own->err;

        pthread_mutex_lock(&s3->lock);
        own->answered = false;
        if (!err && own->stopped)
            err = DCTF_ERR_CANCELLED;
        pthread_mutex_unlock(&s3->lock);
        if (err) {
            end(own, err);
            break;
        }
        if (!take_page(own))
            break;
        pthread_mutex_lock(&s3->lock);
        go = own->answered;
        if (!go)
            own->working = false;
        pthread_mutex_unlock(&s3->lock);
    }
    dctf_s3_task_unref(&own->task);
}

enum dctf_err dctf_s3_list(struct dctf_origin *origin, struct dctf_origin_list *list)
{
    struct dctf_s3 *s3 = (struct dctf_s3 *)origin;
    struct list *own = calloc(1, sizeof(*own));
    struct dctf_s3_place *place;
    enum dctf_err err;

    if (!own)
        return DCTF_ERR_NO_MEMORY;
    own->task.s3 = s3;
    own->task.owner = list;
    own->task.cancel = list_cancel;
    own->task.free = list_free;
    own->list = list;
    dctf_str_init(&own->query);
    dctf_s3_request_init(&own->request, &own->task, DCTF_S3_LIST);
    place = dctf_s3_place_get(s3);
    if (asprintf(&own->prefix, "%s%s%s", place->address.prefix, list->dir, list->dir[0] ? "/" : "") < 0)
        own->prefix = NULL;
    dctf_s3_place_unref(place);
    err = own->prefix ? DCTF_OK : DCTF_ERR_NO_MEMORY;
    if (!err) {
        dctf_s3_list_query(&own->query, own->prefix, true, PAGE_KEYS, NULL);
        err = own->query.err;
    }
    own->request.query = own->query.data;
    own->request.label = list->dir;
    own->request.collect_max = PAGE_BYTES_MAX;
    own->request.done = page_done;
    if (!err)
        err = dctf_s3_task_begin(&own->task);
    if (err) {
        list_free(&own->task);
        return err;
    }
    err = dctf_s3_request_start(&own->request);
    if (err) {
        dctf_s3_task_end(&own->task);
        dctf_s3_task_unref(&own->task);
    }
    return err;
}
