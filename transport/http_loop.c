/* SPDX-License-Identifier: Apache-2.0
 *
 * One event loop: takes requests over, lets libcurl work, keeps the time limits and
 * tells the ends.
 *
 * Limits are looked at only when the earliest of them may have passed: bytes that come
 * move a limit away, never nearer, so `next_due_ns` stays a lower bound and is computed
 * anew when it is reached.
 */
#include "base/clock.h"
#include "base/log.h"
#include "transport/http_internal.h"

#include <assert.h>
#include <poll.h>

#define WAIT_MAX_MS 60000u
/* After a wait that libcurl could not do. */
#define PAUSE_MS 10

static void end(struct dctf_http_transfer *transfer, CURLcode code)
{
    struct dctf_http_request *request = transfer->request;
    struct dctf_http_loop *loop = transfer->loop;
    CURL *easy = transfer->easy;
    long connects = 0;
    enum dctf_err err;

    err = dctf_http_transfer_result(transfer, code);
    dctf_list_remove(&transfer->link);
    if (easy) {
        curl_easy_getinfo(easy, CURLINFO_NUM_CONNECTS, &connects);
        curl_multi_remove_handle(loop->multi, easy);
    }
    dctf_http_release(transfer, (uint64_t)connects);
    request->done(request, err, &transfer->response);
    /* The request may be gone. */
    dctf_http_transfer_free(transfer);
    /* A handle whose transfer failed may refuse some options from now on. */
    if (easy && code) {
        curl_easy_cleanup(easy);
    } else if (easy) {
        curl_easy_reset(easy);
        assert(loop->easies_len < loop->http->connections);
        loop->easies[loop->easies_len++] = easy;
    }
}

static void begin(struct dctf_http_loop *loop, struct dctf_http_transfer *transfer)
{
    CURLMcode rc;

    dctf_list_push_back(&loop->active, &transfer->link);
    transfer->easy = loop->easies_len > 0 ? loop->easies[--loop->easies_len] : curl_easy_init();
    transfer->verdict = dctf_http_transfer_setup(transfer);
    if (!transfer->verdict) {
        rc = curl_multi_add_handle(loop->multi, transfer->easy);
        if (rc)
            transfer->verdict = rc == CURLM_OUT_OF_MEMORY ? DCTF_ERR_NO_MEMORY : DCTF_ERR_INTERNAL;
    }
    if (transfer->verdict) {
        end(transfer, CURLE_FAILED_INIT);
        return;
    }
    if (transfer->due_ns < loop->next_due_ns)
        loop->next_due_ns = transfer->due_ns;
}

/* Those that waited in vain. Only the first loop looks. */
static void expire_waiting_locked(struct dctf_http *http, uint64_t now, struct dctf_list *ended)
{
    struct dctf_list *node;
    struct dctf_list *next;

    if (now < http->waiting_due_ns)
        return;
    http->waiting_due_ns = DCTF_HTTP_NEVER;
    for (node = http->waiting.next; node != &http->waiting; node = next) {
        struct dctf_http_transfer *transfer = dctf_list_entry(node, struct dctf_http_transfer, link);

        next = node->next;
        if (transfer->due_ns <= now) {
            dctf_list_remove(node);
            http->waiting_len--;
            transfer->state = DCTF_HTTP_ENDED;
            transfer->asked = DCTF_ERR_DEADLINE;
            transfer->loop = &http->loops[0];
            dctf_list_push_back(ended, node);
        } else if (transfer->due_ns < http->waiting_due_ns) {
            http->waiting_due_ns = transfer->due_ns;
        }
    }
}

/* Sort what came in: to begin, or to end with the reason in its verdict. */
static void take_inbox_locked(struct dctf_http_loop *loop, struct dctf_list *begun, struct dctf_list *ended)
{
    struct dctf_list *node;

    while ((node = dctf_list_pop(&loop->inbox))) {
        struct dctf_http_transfer *transfer = dctf_list_entry(node, struct dctf_http_transfer, link);

        if (!transfer->asked && loop->http->closing)
            transfer->asked = DCTF_ERR_SHUTTING_DOWN;
        if (!transfer->asked)
            transfer->state = DCTF_HTTP_RUNNING;
        dctf_list_push_back(transfer->asked ? ended : begun, node);
    }
}

static struct dctf_http_transfer *next_asked(struct dctf_http_loop *loop)
{
    struct dctf_http_transfer *transfer = NULL;
    struct dctf_list *node;

    pthread_mutex_lock(&loop->http->lock);
    node = dctf_list_pop(&loop->asked);
    if (node) {
        transfer = dctf_list_entry(node, struct dctf_http_transfer, asked_link);
        transfer->verdict = transfer->asked;
    }
    pthread_mutex_unlock(&loop->http->lock);
    return transfer;
}

/* Take over what other threads left for this loop. False: the client is closing, all
 * was told. */
static bool take(struct dctf_http_loop *loop, size_t *running)
{
    struct dctf_http *http = loop->http;
    bool first = loop == &http->loops[0];
    uint64_t now = dctf_clock_mono_ns(NULL);
    struct dctf_http_transfer *transfer;
    struct dctf_list begun;
    struct dctf_list ended;
    struct dctf_list *node;
    bool closing;

    dctf_list_init(&begun);
    dctf_list_init(&ended);
    pthread_mutex_lock(&http->lock);
    loop->woken = false;
    closing = http->closing;
    if (first)
        expire_waiting_locked(http, now, &ended);
    take_inbox_locked(loop, &begun, &ended);
    *running = loop->running;
    pthread_mutex_unlock(&http->lock);

    while ((node = dctf_list_pop(&begun)))
        begin(loop, dctf_list_entry(node, struct dctf_http_transfer, link));
    while ((transfer = next_asked(loop)))
        end(transfer, CURLE_ABORTED_BY_CALLBACK);
    while ((node = dctf_list_pop(&ended))) {
        transfer = dctf_list_entry(node, struct dctf_http_transfer, link);
        transfer->verdict = transfer->asked; /* which nobody changes once it is set */
        end(transfer, CURLE_ABORTED_BY_CALLBACK);
    }
    while (closing && !dctf_list_empty(&loop->active)) {
        transfer = dctf_list_entry(loop->active.next, struct dctf_http_transfer, link);
        transfer->verdict = DCTF_ERR_SHUTTING_DOWN;
        end(transfer, CURLE_ABORTED_BY_CALLBACK);
    }
    return !closing;
}

static void tell_finished(struct dctf_http_loop *loop)
{
    CURLMsg *message;
    int left;

    while ((message = curl_multi_info_read(loop->multi, &left))) {
        struct dctf_http_transfer *transfer = NULL;

        if (message->msg != CURLMSG_DONE)
            continue;
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &transfer);
        end(transfer, message->data.result);
    }
}

/* `now` was read before libcurl last took what had come: nothing that came in time is
 * held against a transfer because this thread was late. */
static void expire(struct dctf_http_loop *loop, uint64_t now)
{
    struct dctf_list *node;
    struct dctf_list *next;

    if (now < loop->next_due_ns)
        return;
    loop->next_due_ns = DCTF_HTTP_NEVER;
    for (node = loop->active.next; node != &loop->active; node = next) {
        struct dctf_http_transfer *transfer = dctf_list_entry(node, struct dctf_http_transfer, link);
        uint64_t due = dctf_http_transfer_due(transfer);

        next = node->next;
        if (due <= now) {
            transfer->verdict = DCTF_ERR_DEADLINE;
            end(transfer, CURLE_OPERATION_TIMEDOUT);
        } else if (due < loop->next_due_ns) {
            loop->next_due_ns = due;
        }
    }
}

static void wait_for_work(struct dctf_http_loop *loop)
{
    struct dctf_http *http = loop->http;
    uint64_t due = loop->next_due_ns;
    uint64_t now = dctf_clock_mono_ns(NULL);
    uint64_t timeout_ms;
    CURLMcode rc;

    if (loop == &http->loops[0]) {
        pthread_mutex_lock(&http->lock);
        if (http->waiting_due_ns < due)
            due = http->waiting_due_ns;
        pthread_mutex_unlock(&http->lock);
    }
    /* Rounded up: a limit that is a part of a millisecond away must not spin. */
    timeout_ms = due <= now ? 0 : (due - now + 999999u) / 1000000u;
    rc = curl_multi_poll(
        loop->multi, NULL, 0, (int)(timeout_ms < WAIT_MAX_MS ? timeout_ms : WAIT_MAX_MS), NULL);
    if (rc) {
        dctf_log(DCTF_LOG_WARN, "http", "err=%d cannot wait: %s", DCTF_ERR_SYSTEM, curl_multi_strerror(rc));
        poll(NULL, 0, PAUSE_MS);
    }
}

/* libcurl compares with the open connections, those in use included, when a request gives
 * one back, and closes at most one idle connection then. So after a burst more are kept
 * until as many further requests have ended. */
static void keep_idle(struct dctf_http_loop *loop, size_t running)
{
    size_t max = (running > 0 ? running - 1 : 0) + loop->http->idle_per_loop;

    if (max == loop->connections_max)
        return;
    loop->connections_max = max;
    curl_multi_setopt(loop->multi, CURLMOPT_MAXCONNECTS, (long)max);
}

void *dctf_http_loop_run(void *arg)
{
    struct dctf_http_loop *loop = arg;
    size_t running;

    while (take(loop, &running)) {
        uint64_t now = dctf_clock_mono_ns(NULL);
        int left;
        CURLMcode rc;

        keep_idle(loop, running);
        rc = curl_multi_perform(loop->multi, &left);
        if (rc)
            dctf_log(
                DCTF_LOG_WARN, "http", "err=%d cannot work: %s", DCTF_ERR_INTERNAL, curl_multi_strerror(rc));
        tell_finished(loop);
        expire(loop, now);
        wait_for_work(loop);
    }
    return NULL;
}
