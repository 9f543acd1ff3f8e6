/* SPDX-License-Identifier: Apache-2.0
 *
 * The three operations of the scheduler: what each sends to the origin and how
 * its answer reaches the caller. States and slots are fetch.c's.
 */
#include "transport/fetch_internal.h"

#include <assert.h>
#include <stdlib.h>

static void get_answered(struct dctf_origin_get *request, enum dctf_err err, size_t got)
{
    /* An origin that calls less than asked a success would hand on stale memory. */
    if (err == DCTF_OK && got != request->len)
        err = DCTF_ERR_SHORT_BODY;
    dctf_fetch_job_answered(request->ctx, err, got, NULL);
}

static void list_answered(struct dctf_origin_list *request, enum dctf_err err)
{
    dctf_fetch_job_answered(request->ctx, err, 0, NULL);
}

static void head_answered(
    struct dctf_origin_head *request, enum dctf_err err, const struct dctf_origin_entry *entry)
{
    dctf_fetch_job_answered(request->ctx, err, 0, err == DCTF_OK ? entry : NULL);
}

static bool list_page(struct dctf_origin_list *request, const struct dctf_origin_entry *entries, size_t count)
{
    struct dctf_fetch_job *job = request->ctx;
    bool more;

    if (!dctf_fetch_job_page_begin(job))
        return false;
    more = job->ask.list.page(job->ask.list.ctx, entries, count);
    return dctf_fetch_job_page_end(job) && more;
}

enum dctf_err dctf_fetch_get_submit(
    struct dctf_fetch *fetch, const struct dctf_fetch_get *get, uint64_t *job_id)
{
    struct dctf_fetch_job *job;
    enum dctf_err err;

    assert(get->len > 0 && get->offset <= get->size && get->len <= get->size - get->offset);
    assert(get->class < DCTF_FETCH_CLASS_COUNT);
    if (job_id)
        *job_id = 0;
    err = dctf_fetch_job_new(fetch, DCTF_FETCH_KIND_GET, NULL, &job);
    if (err)
        return err;
    job->class = get->class;
    job->ask.get = *get;
    job->request.get = (struct dctf_origin_get){
        .key = get->key,
        .etag = get->etag,
        .size = get->size,
        .offset = get->offset,
        .len = get->len,
        .buf = get->buf,
        .class = get->class,
        .done = get_answered,
        .ctx = job,
    };
    return dctf_fetch_job_submit(job, get->deadline_ms, job_id);
}

enum dctf_err dctf_fetch_list_submit(struct dctf_fetch *fetch, const struct dctf_fetch_list *list)
{
    struct dctf_fetch_job *job;
    enum dctf_err err;

    err = dctf_fetch_job_new(fetch, DCTF_FETCH_KIND_LIST, list->dir, &job);
    if (err)
        return err;
    job->class = DCTF_FETCH_DEMAND;
    job->silence_ms = list->silence_ms;
    job->ask.list = *list;
    job->request.list = (struct dctf_origin_list){
        .dir = job->name,
        .page = list_page,
        .done = list_answered,
        .ctx = job,
    };
    return dctf_fetch_job_submit(job, list->silence_ms, NULL);
}

enum dctf_err dctf_fetch_head_submit(struct dctf_fetch *fetch, const struct dctf_fetch_head *head)
{
    struct dctf_fetch_job *job;
    enum dctf_err err;

    err = dctf_fetch_job_new(fetch, DCTF_FETCH_KIND_HEAD, head->key, &job);
    if (err)
        return err;
    job->class = DCTF_FETCH_DEMAND;
    job->ask.head = *head;
    job->request.head = (struct dctf_origin_head){
        .key = job->name,
        .done = head_answered,
        .ctx = job,
    };
    return dctf_fetch_job_submit(job, head->deadline_ms, NULL);
}

static uint64_t *pause_of(struct dctf_fetch_job *job)
{
    switch (job->kind) {
    case DCTF_FETCH_KIND_LIST:
        return &job->request.list.retry_after_ms;
    case DCTF_FETCH_KIND_HEAD:
        return &job->request.head.retry_after_ms;
    case DCTF_FETCH_KIND_GET:
        break;
    }
    return &job->request.get.retry_after_ms;
}

enum dctf_err dctf_fetch_request_start(struct dctf_fetch_job *job)
{
    struct dctf_origin *origin = job->fetch->config.origin;

    *pause_of(job) = 0;
    switch (job->kind) {
    case DCTF_FETCH_KIND_GET:
        return origin->ops->get(origin, &job->request.get);
    case DCTF_FETCH_KIND_LIST:
        return origin->ops->list(origin, &job->request.list);
    case DCTF_FETCH_KIND_HEAD:
        return origin->ops->head(origin, &job->request.head);
    }
    return DCTF_ERR_INTERNAL;
}

uint64_t dctf_fetch_request_pause_ms(struct dctf_fetch_job *job)
{
    return *pause_of(job);
}

void dctf_fetch_request_cancel(struct dctf_fetch_job *job)
{
    struct dctf_origin *origin = job->fetch->config.origin;

    switch (job->kind) {
    case DCTF_FETCH_KIND_GET:
        origin->ops->cancel_get(origin, &job->request.get);
        break;
    case DCTF_FETCH_KIND_LIST:
        origin->ops->cancel_list(origin, &job->request.list);
        break;
    case DCTF_FETCH_KIND_HEAD:
        origin->ops->cancel_head(origin, &job->request.head);
        break;
    }
}

void dctf_fetch_request_done(struct dctf_fetch_job *job, bool buf_free, const struct dctf_origin_entry *entry)
{
    switch (job->kind) {
    case DCTF_FETCH_KIND_GET:
        job->ask.get.done(job->ask.get.ctx, job->verdict, buf_free);
        break;
    case DCTF_FETCH_KIND_LIST:
        job->ask.list.done(job->ask.list.ctx, job->verdict);
        break;
    case DCTF_FETCH_KIND_HEAD:
        job->ask.head.done(job->ask.head.ctx, job->verdict, entry);
        break;
    }
}

void dctf_fetch_request_release(struct dctf_fetch_job *job)
{
    if (job->kind == DCTF_FETCH_KIND_GET)
        job->ask.get.release(job->ask.get.ctx);
}

const char *dctf_fetch_request_verb(const struct dctf_fetch_job *job)
{
    switch (job->kind) {
    case DCTF_FETCH_KIND_GET:
        return "get";
    case DCTF_FETCH_KIND_LIST:
        return "list";
    case DCTF_FETCH_KIND_HEAD:
        return "head";
    }
    return "?";
}

const char *dctf_fetch_request_key(const struct dctf_fetch_job *job)
{
    return job->kind == DCTF_FETCH_KIND_GET ? job->ask.get.key : job->name;
}
