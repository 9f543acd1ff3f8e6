/* SPDX-License-Identifier: Apache-2.0
 *
 * Blocking requests, and the check at the start of a mount.
 */
#include "transport/s3_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ANSWER_BYTES_MAX (1024u * 1024u)
/* After a cancel the answer comes at once; this bounds our own mistakes. */
#define CANCEL_WAIT_MS 1000u
#define CHECK_PAUSE_MS 200u
#define IMDS_WAIT_MS 1000u

struct call {
    struct dctf_s3_task task; /* first */
    struct dctf_s3_request request;
    char *key; /* copies: the caller may leave first */
    char *query;
    char *if_match;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool answered; /* guarded by lock, as all below */
    enum dctf_err err;
    struct dctf_s3_answer answer;
};

static void call_free(struct dctf_s3_task *task)
{
    struct call *call = (struct call *)(void *)task;

    dctf_s3_request_fini(&call->request);
    dctf_s3_answer_fini(&call->answer);
    pthread_cond_destroy(&call->changed);
    pthread_mutex_destroy(&call->lock);
    free(call->key);
    free(call->query);
    free(call->if_match);
    free(call);
}

static void call_cancel(struct dctf_s3_task *task)
{
    dctf_s3_request_cancel(&((struct call *)(void *)task)->request);
}

void dctf_s3_answer_fini(struct dctf_s3_answer *answer)
{
    free(answer->body);
    answer->body = NULL;
}

static void copy_header(const struct dctf_http_response *response, const char *name, char *out, size_t cap)
{
    const char *value = dctf_http_header(response, name);

    snprintf(out, cap, "%s", value ? value : "");
}

static void take_response(struct dctf_s3_answer *answer, const struct dctf_http_response *response)
{
    answer->status = response->status;
    answer->total_ns = response->total_ns;
    copy_header(response, "date", answer->date, sizeof(answer->date));
    copy_header(response, "x-amz-bucket-region", answer->region, sizeof(answer->region));
    copy_header(response, "content-range", answer->content_range, sizeof(answer->content_range));
    copy_header(response, "etag", answer->etag, sizeof(answer->etag));
    copy_header(response, "server", answer->server, sizeof(answer->server));
    answer->body = response->body ? malloc(response->len + 1) : NULL;
    if (answer->body) {
        memcpy(answer->body, response->body, response->len);
        answer->body[response->len] = '\0';
        answer->len = response->len;
    }
}

static void call_done(
    struct dctf_s3_request *request, enum dctf_err err, const struct dctf_http_response *response)
{
    struct call *call = (struct call *)(void *)request->task;

    dctf_s3_task_end(&call->task);
    pthread_mutex_lock(&call->lock);
    if (response)
        take_response(&call->answer, response);
    memcpy(call->answer.detail, request->detail, sizeof(call->answer.detail));
    call->answer.error = request->error;
    call->err = err;
    call->answered = true;
    pthread_cond_broadcast(&call->changed);
    pthread_mutex_unlock(&call->lock);
    dctf_s3_task_unref(&call->task);
}

/* False: not within the time. */
static bool call_wait(struct call *call, uint64_t due_ms)
{
    struct timespec due = {(time_t)(due_ms / 1000), (long)(due_ms % 1000) * 1000000};
    bool answered;

    pthread_mutex_lock(&call->lock);
    while (!call->answered && pthread_cond_timedwait(&call->changed, &call->lock, &due) == 0)
        ;
    answered = call->answered;
    pthread_mutex_unlock(&call->lock);
    return answered;
}

static struct call *call_new(struct dctf_s3 *s3, const struct dctf_s3_call *ask)
{
    struct call *call = calloc(1, sizeof(*call));
    uint64_t now_ms = dctf_clock_mono_ms(NULL);

    if (!call)
        return NULL;
    if (dctf_thread_cond_init(&call->changed)) {
        free(call);
        return NULL;
    }
    pthread_mutex_init(&call->lock, NULL);
    call->task.s3 = s3;
    call->task.cancel = call_cancel;
    call->task.free = call_free;
    call->task.owner = call;
    dctf_s3_request_init(&call->request, &call->task, ask->op);
    call->key = strdup(ask->key ? ask->key : "");
    call->query = strdup(ask->query ? ask->query : "");
    call->if_match = ask->if_match ? strdup(ask->if_match) : NULL;
    call->request.key = call->key;
    call->request.query = call->query;
    call->request.if_match = call->if_match;
    if (ask->len > 0)
        snprintf(call->request.range, sizeof(call->request.range), "bytes=%" PRIu64 "-%" PRIu64, ask->first,
            ask->first + ask->len - 1);
    call->request.plain = ask->plain;
    call->request.quiet = ask->quiet;
    call->request.collect_max = ANSWER_BYTES_MAX;
    call->request.wait_ms = ask->due_ms > now_ms ? ask->due_ms - now_ms : 0;
    call->request.done = call_done;
    if (!call->key || !call->query || (ask->if_match && !call->if_match)) {
        call_free(&call->task);
        return NULL;
    }
    return call;
}

enum dctf_err dctf_s3_call(struct dctf_s3 *s3, const struct dctf_s3_call *ask, struct dctf_s3_answer *out)
{
    struct call *call = call_new(s3, ask);
    enum dctf_err err;
    bool answered;

    memset(out, 0, sizeof(*out));
    if (!call)
        return DCTF_ERR_NO_MEMORY;
    err = dctf_s3_task_begin(&call->task);
    if (err) {
        call_free(&call->task);
        return err;
    }
    dctf_s3_task_ref(&call->task); /* ours */
    err = dctf_s3_request_start(&call->request);
    if (err) {
        memcpy(out->detail, call->request.detail, sizeof(out->detail));
        dctf_s3_task_end(&call->task);
        dctf_s3_task_unref(&call->task);
        dctf_s3_task_unref(&call->task);
        return err;
    }
    answered = call_wait(call, ask->due_ms);
    if (!answered) {
        call_cancel(&call->task);
        call_wait(call, dctf_clock_mono_ms(NULL) + CANCEL_WAIT_MS);
        err = DCTF_ERR_DEADLINE;
    } else {
        pthread_mutex_lock(&call->lock);
        err = call->err;
        *out = call->answer;
        call->answer.body = NULL;
        pthread_mutex_unlock(&call->lock);
    }
    dctf_s3_task_unref(&call->task);
    return err;
}

/* --- check --- */

/* The instance's region, for credentials that came from the instance, when nobody named one. */
static void ask_instance_region(struct dctf_s3 *s3, uint64_t wait_ms)
{
    struct dctf_s3_place *place;
    struct dctf_s3_keys *keys;
    char region[64];

    if (s3->region_given || s3->endpoint[0] || !s3->credentials)
        return;
    if (dctf_s3_credentials_get(s3->credentials, wait_ms, &keys))
        return;
    if (strncmp(keys->source, "IMDS", 4) == 0) {
        dctf_s3_credentials_region(
            s3->credentials, true, wait_ms < IMDS_WAIT_MS ? wait_ms : IMDS_WAIT_MS, region);
        place = dctf_s3_place_get(s3);
        if (region[0])
            (void)dctf_s3_place_learn(s3, place, region);
        dctf_s3_place_unref(place);
    }
    dctf_s3_keys_unref(keys);
}

static enum dctf_err check_once(struct dctf_s3 *s3, uint64_t due_ms, uint64_t deadline_ms, char *detail)
{
    struct dctf_s3_place *place = dctf_s3_place_get(s3);
    struct dctf_s3_call call = {.op = DCTF_S3_LIST, .due_ms = due_ms};
    struct dctf_s3_answer answer;
    struct dctf_s3_list list;
    struct dctf_str query;
    enum dctf_err err;

    dctf_str_init(&query);
    dctf_s3_list_query(&query, place->address.prefix, true, 1, NULL);
    dctf_s3_place_unref(place);
    err = query.err;
    memset(&answer, 0, sizeof(answer));
    call.query = query.data;
    if (!err)
        err = dctf_s3_call(s3, &call, &answer);
    if (!err) {
        err = dctf_s3_list_parse(answer.body ? answer.body : "", answer.len, &list);
        if (!err)
            dctf_s3_list_fini(&list);
        else
            snprintf(answer.detail, sizeof(answer.detail),
                "HTTP %d, but no listing: is it an S3 service that answers?", answer.status);
    }
    if (err == DCTF_ERR_DEADLINE)
        snprintf(
            detail, DCTF_S3_DETAIL_BYTES, "%.100s: no answer within %" PRIu64 " ms", s3->source, deadline_ms);
    else if (err)
        snprintf(detail, DCTF_S3_DETAIL_BYTES, "%.100s: %.150s", s3->source,
            answer.detail[0] ? answer.detail : dctf_err_text(err));
    dctf_s3_answer_fini(&answer);
    dctf_str_fini(&query);
    return err;
}

/* A passing failure must not fail a mount at boot: it is tried again, within the time. */
enum dctf_err dctf_s3_check(struct dctf_origin *origin, uint64_t deadline_ms, char *detail)
{
    struct dctf_s3 *s3 = (struct dctf_s3 *)origin;
    uint64_t now_ms = dctf_clock_mono_ms(NULL);
    uint64_t due_ms = now_ms + deadline_ms;
    enum dctf_err err;

    detail[0] = '\0';
    ask_instance_region(s3, deadline_ms / 2);
    for (unsigned tries = 0;; tries++) {
        struct timespec pause = {0, CHECK_PAUSE_MS * 1000000l};

        err = check_once(s3, due_ms, deadline_ms, detail);
        now_ms = dctf_clock_mono_ms(NULL);
        if (dctf_err_class(err) != DCTF_ERR_CLASS_RETRY || tries >= s3->retries ||
            now_ms + CHECK_PAUSE_MS >= due_ms)
            break;
        nanosleep(&pause, NULL);
    }
    if (!err)
        detail[0] = '\0';
    return err;
}
