/* SPDX-License-Identifier: Apache-2.0
 *
 * One request to S3: credentials, signature, the exchange, what its answer means, and
 * one more try of each kind where the answer told how to do better. Tries after failures
 * that only time mends are the scheduler's (transport/fetch.h).
 */
#include "transport/s3_internal.h"

#include "base/log.h"
#include "transport/sigv4.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIGNED_MAX 6
/* Of the words of the credentials: as much as the one line of a failed mount has room for. */
#define CREDENTIALS_WORDS 140u
/* More than any deadline; what is longer is no different. */
#define RETRY_AFTER_MAX_MS (86400u * 1000u)

static const char *const methods[] = {[DCTF_S3_GET] = "GET", [DCTF_S3_LIST] = "GET", [DCTF_S3_HEAD] = "HEAD"};
static const char *const verbs[] = {[DCTF_S3_GET] = "get", [DCTF_S3_LIST] = "list", [DCTF_S3_HEAD] = "head"};

static enum dctf_s3_silence_kind silence_kind(const struct dctf_s3_request *request)
{
    return request->op == DCTF_S3_GET ? DCTF_S3_SILENCE_READ : DCTF_S3_SILENCE_META;
}

void dctf_s3_request_init(struct dctf_s3_request *request, struct dctf_s3_task *task, enum dctf_s3_op op)
{
    memset(request, 0, sizeof(*request));
    request->task = task;
    request->op = op;
    request->key = "";
    request->query = "";
    request->wait_ms = op == DCTF_S3_GET ? task->s3->read_deadline_ms : task->s3->list_deadline_ms;
    dctf_str_init(&request->url);
    dctf_str_init(&request->lines);
}

/* What belongs to one try. The header lines hold a session token. */
static void forget_try(struct dctf_s3_request *request)
{
    if (request->lines.data)
        explicit_bzero(request->lines.data, request->lines.len);
    dctf_str_clear(&request->lines);
    dctf_str_clear(&request->url);
    dctf_s3_keys_unref(request->keys);
    request->keys = NULL;
    dctf_s3_place_unref(request->place);
    request->place = NULL;
}

void dctf_s3_request_fini(struct dctf_s3_request *request)
{
    forget_try(request);
    dctf_s3_keys_unref(request->stale);
    request->stale = NULL;
    dctf_str_fini(&request->lines);
    dctf_str_fini(&request->url);
}

/* --- building --- */

static void add_line(struct dctf_str *lines, const char *name, const char *value)
{
    dctf_str_printf(lines, "%s: %s", name, value);
    dctf_str_add(lines, "", 1);
}

static enum dctf_err sign(
    struct dctf_s3_request *request, const char *path, const struct dctf_sigv4_header *headers, size_t count)
{
    const struct dctf_s3_keys *keys = request->keys;
    struct dctf_sigv4_request ask = {
        .method = methods[request->op],
        .path = path,
        .query = request->query,
        .headers = headers,
        .header_count = count,
        .payload_hash = DCTF_SIGV4_EMPTY_PAYLOAD,
        .region = request->place->address.region,
        .service = "s3",
        .now_s = dctf_s3_now_ms(request->task->s3) / 1000,
        .access_key_id = keys->access_key_id,
        .secret_access_key = keys->secret_access_key,
        .session_token = keys->session_token,
    };
    struct dctf_sigv4_signature signature;
    enum dctf_err err = dctf_sigv4_sign(&ask, &signature);

    if (err)
        return err;
    add_line(&request->lines, "x-amz-date", signature.date);
    add_line(&request->lines, "x-amz-content-sha256", DCTF_SIGV4_EMPTY_PAYLOAD);
    if (keys->session_token && *keys->session_token)
        add_line(&request->lines, "x-amz-security-token", keys->session_token);
    add_line(&request->lines, "Authorization", signature.authorization);
    dctf_sigv4_signature_fini(&signature);
    return DCTF_OK;
}

/* An ETag as a header: quoted, unless it brings quotes of its own (a weak one). */
static enum dctf_err quote_etag(const char *etag, char *out, size_t cap)
{
    int len = snprintf(out, cap, strchr(etag, '"') ? "%s" : "\"%s\"", etag);

    return len > 0 && (size_t)len < cap ? DCTF_OK : DCTF_ERR_INTERNAL;
}

/* The header lines and the url, signed for `place` with `keys`. */
static enum dctf_err build(struct dctf_s3_request *request)
{
    const struct dctf_s3_address *address = &request->place->address;
    struct dctf_sigv4_header headers[SIGNED_MAX];
    char if_match[192];
    struct dctf_str path;
    size_t count = 0, lines = 0;
    enum dctf_err err = DCTF_OK;

    dctf_str_init(&path);
    dctf_s3_address_path(address, request->key, &path);
    dctf_s3_address_url(address, dctf_str_c(&path), request->query, &request->url);
    headers[count++] = (struct dctf_sigv4_header){"Host", address->host};
    if (request->range[0])
        headers[count++] = (struct dctf_sigv4_header){"Range", request->range};
    if (request->if_match) {
        err = quote_etag(request->if_match, if_match, sizeof(if_match));
        headers[count++] = (struct dctf_sigv4_header){"If-Match", if_match};
    }
    if (request->task->s3->requester_pays && !request->plain)
        headers[count++] = (struct dctf_sigv4_header){"x-amz-request-payer", "requester"};
    for (size_t i = 0; i < count; i++)
        add_line(&request->lines, headers[i].name, headers[i].value);
    add_line(&request->lines, "Accept-Encoding", "identity");
    if (!err)
        err = path.err;
    if (!err && request->keys)
        err = sign(request, dctf_str_c(&path), headers, count);
    dctf_str_fini(&path);
    if (!err)
        err = request->lines.err ? request->lines.err : request->url.err;
    if (err)
        return err;
    for (size_t at = 0; at < request->lines.len; at += strlen(request->lines.data + at) + 1) {
        assert(lines < DCTF_S3_LINES_MAX);
        request->line[lines++] = request->lines.data + at;
    }
    request->http = (struct dctf_http_request){
        .method = methods[request->op],
        .url = request->url.data,
        .headers = request->line,
        .header_count = lines,
        .buf = request->buf,
        .buf_len = request->buf_len,
        .collect_max = request->collect_max,
        .silence_ms = request->silence_ms,
        .ctx = request,
    };
    return DCTF_OK;
}

/* --- judging --- */

static const char *word(const struct dctf_http_response *response, const char *header)
{
    const char *value = dctf_http_header(response, header);

    return value ? value : "";
}

/* The region that an answer names, "" for none. */
static const char *named_region(
    const struct dctf_s3_request *request, const struct dctf_http_response *response)
{
    const char *region = word(response, "x-amz-bucket-region");

    return *region ? region : request->error.region;
}

/* Words for an answer that is not a success: "403 AccessDenied: …". */
static void describe_answer(
    struct dctf_s3_request *request, enum dctf_err err, const struct dctf_http_response *response)
{
    const struct dctf_s3_error *error = &request->error;
    char more[128] = "", text[512];

    if (err == DCTF_ERR_ORIGIN_REGION && error->endpoint[0])
        snprintf(more, sizeof(more), "; it names endpoint %.90s", error->endpoint);
    else if (err == DCTF_ERR_ORIGIN_REGION && *named_region(request, response))
        snprintf(more, sizeof(more), "; it names region %.63s", named_region(request, response));
    snprintf(text, sizeof(text), "HTTP %d%s%s%s%s%s", response->status, error->code[0] ? " " : "",
        error->code, error->message[0] ? ": " : "", error->message, more);
    snprintf(request->detail, sizeof(request->detail), "%.255s", text);
}

/* What went wrong on the way, in our terms and in words. */
static enum dctf_err judge_transfer(
    struct dctf_s3_request *request, enum dctf_err err, const struct dctf_http_response *response)
{
    struct dctf_s3 *s3 = request->task->s3;
    const char *text = dctf_http_error_text(response);

    if (err == DCTF_ERR_DEADLINE) { /* silence: another connection may do better */
        snprintf(request->detail, sizeof(request->detail), "silent for %" PRIu64 " ms", request->silence_ms);
        dctf_s3_silence_stalled(s3->silence, silence_kind(request), request->silence_ms);
        dctf_s3_count(s3, DCTF_METRIC_S3_STALLS, 1);
        /* Not a word: a link that swallows what is sent looks like this on a connection from before. */
        return response->status ? DCTF_ERR_ORIGIN_IO : DCTF_ERR_ORIGIN_UNREACHABLE;
    }
    if (!request->detail[0]) /* the head may have been refused, with better words */
        snprintf(request->detail, sizeof(request->detail), "%.200s", *text ? text : dctf_err_text(err));
    return err;
}

/* Retry-After of a 429 or 503 (RFC 9110, 10.2.3): seconds, or a date by the service's clock. */
static uint64_t retry_after_ms(struct dctf_s3_request *request, const struct dctf_http_response *response)
{
    const char *value = word(response, "retry-after");
    size_t digits = strspn(value, "0123456789");
    int64_t when_s, now_s;

    if (response->status != 429 && response->status != 503)
        return 0;
    if (digits > 0)
        return digits < 7 && value[digits] == '\0' ? strtoul(value, NULL, 10) * 1000 : RETRY_AFTER_MAX_MS;
    if (!dctf_s3_date_parse(value, &when_s))
        return 0;
    if (!dctf_s3_date_parse(word(response, "date"), &now_s))
        now_s = (int64_t)(dctf_s3_now_ms(request->task->s3) / 1000);
    if (when_s <= now_s)
        return 0;
    return (uint64_t)(when_s - now_s) < RETRY_AFTER_MAX_MS / 1000 ? (uint64_t)(when_s - now_s) * 1000
                                                                  : RETRY_AFTER_MAX_MS;
}

static enum dctf_err judge(
    struct dctf_s3_request *request, enum dctf_err err, const struct dctf_http_response *response)
{
    memset(&request->error, 0, sizeof(request->error));
    request->retry_after_ms = 0;
    if (err)
        return judge_transfer(request, err, response);
    if (response->status >= 200 && response->status <= 299)
        return DCTF_OK;
    if (response->body && response->len > 0)
        dctf_s3_error_parse(response->body, response->len, &request->error);
    err = dctf_s3_error_map(request->op, response->status, request->error.code);
    request->retry_after_ms = retry_after_ms(request, response);
    describe_answer(request, err, response);
    return err;
}

/* --- one more try --- */

static bool mend_region(struct dctf_s3_request *request, const struct dctf_http_response *response)
{
    const char *region = named_region(request, response);

    return *region && dctf_s3_place_learn(request->task->s3, request->place, region);
}

static bool mend_credentials(struct dctf_s3_request *request)
{
    if (!request->keys)
        return false;
    dctf_s3_credentials_renew(request->task->s3->credentials, request->keys);
    dctf_s3_keys_unref(request->stale);
    request->stale = request->keys;
    request->keys = NULL;
    return true;
}

/* Whether the answer told how to do better, and it was not tried yet. */
static bool mend(
    struct dctf_s3_request *request, enum dctf_err err, const struct dctf_http_response *response)
{
    unsigned ailment = request->error.code[0] || response->status >= 300
                           ? dctf_s3_error_ailment(response->status, request->error.code)
                           : 0;

    if (err == DCTF_ERR_VERSION_MISMATCH && response->status < 300)
        ailment = DCTF_S3_AILS_ETAG;
    if (request->plain || !err)
        return false;
    ailment &= ~request->mended;
    if (ailment & DCTF_S3_AILS_REGION && mend_region(request, response))
        request->mended |= DCTF_S3_AILS_REGION;
    else if (ailment & DCTF_S3_AILS_CLOCK &&
             dctf_s3_clock_learn(
                 request->task->s3, dctf_http_header(response, "date"), request->error.server_time))
        request->mended |= DCTF_S3_AILS_CLOCK;
    else if (ailment & DCTF_S3_AILS_CREDENTIALS && mend_credentials(request))
        request->mended |= DCTF_S3_AILS_CREDENTIALS;
    else if (ailment & DCTF_S3_AILS_ETAG)
        request->mended |= DCTF_S3_AILS_ETAG;
    else
        return false;
    return true;
}

/* --- the steps --- */

static enum dctf_err http_head(struct dctf_http_request *http, const struct dctf_http_response *response)
{
    struct dctf_s3_request *request = http->ctx;

    if (response->status < 200 || response->status > 299 || !request->on_head)
        return DCTF_OK;
    return request->on_head(request, response);
}

static void log_failure(
    const struct dctf_s3_request *request, enum dctf_err err, const struct dctf_http_response *response)
{
    char key[256], detail[512];

    if (err == DCTF_OK || err == DCTF_ERR_NOT_FOUND || err == DCTF_ERR_CANCELLED ||
        err == DCTF_ERR_SHUTTING_DOWN)
        return;
    dctf_log(request->quiet ? DCTF_LOG_DEBUG : DCTF_LOG_WARN, "s3",
        "op=%s key=%s status=%d code=%s request_id=%s err=%d %s", verbs[request->op],
        dctf_str_quote(request->label ? request->label : request->key, key, sizeof(key)),
        response ? response->status : 0, request->error.code[0] ? request->error.code : "-",
        request->error.request_id[0] ? request->error.request_id : "-", (int)err,
        dctf_str_quote(request->detail, detail, sizeof(detail)));
}

static bool is_cancelled(struct dctf_s3_request *request)
{
    struct dctf_s3 *s3 = request->task->s3;
    bool cancelled;

    pthread_mutex_lock(&s3->lock);
    cancelled = request->cancelled;
    pthread_mutex_unlock(&s3->lock);
    return cancelled;
}

/* The end: done(), and the reference that the request holds. */
static void finish(
    struct dctf_s3_request *request, enum dctf_err err, const struct dctf_http_response *response)
{
    struct dctf_s3_task *task = request->task;

    pthread_mutex_lock(&task->s3->lock);
    request->state = DCTF_S3_IDLE;
    pthread_mutex_unlock(&task->s3->lock);
    log_failure(request, err, response);
    forget_try(request);
    request->done(request, err, response);
    dctf_s3_task_unref(task);
}

static void http_done(
    struct dctf_http_request *http, enum dctf_err err, const struct dctf_http_response *response);

/* Sign and hand to the client. On failure nothing was started. */
static enum dctf_err send_now(struct dctf_s3_request *request)
{
    static const enum dctf_metric sent[] = {[DCTF_S3_GET] = DCTF_METRIC_S3_GET,
        [DCTF_S3_LIST] = DCTF_METRIC_S3_LIST,
        [DCTF_S3_HEAD] = DCTF_METRIC_S3_HEAD};
    struct dctf_s3_task *task = request->task;
    struct dctf_s3 *s3 = task->s3;
    enum dctf_s3_op op = request->op;
    enum dctf_err err;

    request->place = dctf_s3_place_get(s3);
    request->silence_ms = dctf_s3_silence_ms(s3->silence, silence_kind(request));
    request->detail[0] = '\0';
    err = build(request);
    if (err)
        return err;
    request->http.on_head = http_head;
    request->http.done = http_done;
    dctf_s3_task_ref(task); /* the answer may come before this ends */
    err = dctf_http_start(s3->http, &request->http);
    if (!err) {
        dctf_s3_count(s3, sent[op], 1);
        if (is_cancelled(request)) /* perhaps before the client knew it */
            dctf_http_cancel(s3->http, &request->http);
    }
    dctf_s3_task_unref(task);
    return err;
}

/* Whether the service refused just these before. */
static bool are_stale(const struct dctf_s3_request *request, const struct dctf_s3_keys *keys)
{
    const struct dctf_s3_keys *stale = request->stale;

    return stale && !strcmp(keys->access_key_id, stale->access_key_id) &&
           !strcmp(keys->secret_access_key, stale->secret_access_key) &&
           !strcmp(keys->session_token, stale->session_token);
}

/* Why there are none. What the last provider said matters most: a long text loses its beginning. */
static void describe_credentials(struct dctf_s3_request *request)
{
    char words[1024];
    size_t len;

    dctf_s3_credentials_describe(request->task->s3->credentials, words, sizeof(words));
    len = strlen(words);
    if (len < CREDENTIALS_WORDS)
        snprintf(request->detail, sizeof(request->detail), "%.200s", words);
    else
        snprintf(request->detail, sizeof(request->detail), "...%.200s", words + len - CREDENTIALS_WORDS);
}

/* The request is claimed, and has credentials (NULL: needs none) or an error in their place. */
static enum dctf_err go_on(struct dctf_s3_request *request, enum dctf_err err, struct dctf_s3_keys *keys)
{
    struct dctf_s3 *s3 = request->task->s3;

    if (err) {
        if (err != DCTF_ERR_CANCELLED && s3->credentials)
            describe_credentials(request);
        return err;
    }
    request->keys = keys;
    if (keys && are_stale(request, keys))
        return DCTF_ERR_ORIGIN_AUTH; /* the words are those of the refusal */
    if (is_cancelled(request))
        return DCTF_ERR_CANCELLED;
    return send_now(request);
}

/* Called by the credentials, perhaps from within the start. Drops the reference they held. */
static void keys_ready(void *ctx, enum dctf_err err, struct dctf_s3_keys *keys)
{
    struct dctf_s3_request *request = ctx;
    struct dctf_s3_task *task = request->task;
    struct dctf_s3 *s3 = task->s3;
    enum dctf_err *start_err = NULL;
    bool claimed;

    pthread_mutex_lock(&s3->lock);
    claimed = request->state == DCTF_S3_ASKING; /* else it was cancelled, and that was told */
    if (claimed) {
        request->state = DCTF_S3_SENT;
        if (request->start_err && pthread_equal(request->starter, pthread_self()))
            start_err = request->start_err;
    } else {
        s3->orphans--;
    }
    pthread_mutex_unlock(&s3->lock);
    if (!claimed) {
        dctf_s3_keys_unref(err ? NULL : keys);
    } else {
        err = go_on(request, err, keys);
        if (err && start_err)
            *start_err = err;
        else if (err)
            finish(request, err, NULL);
    }
    dctf_s3_task_unref(task);
}

static void ask(struct dctf_s3_request *request)
{
    struct dctf_s3_task *task = request->task;
    struct dctf_s3 *s3 = task->s3;
    uint64_t gone_ms = dctf_clock_mono_ms(NULL) - request->begun_ms;
    uint64_t wait_ms = request->wait_ms > gone_ms ? request->wait_ms - gone_ms : 0;
    bool cancelled;

    dctf_s3_task_ref(task);
    pthread_mutex_lock(&s3->lock);
    request->state = DCTF_S3_ASKING;
    cancelled = request->cancelled;
    pthread_mutex_unlock(&s3->lock);
    if (cancelled)
        keys_ready(request, DCTF_ERR_CANCELLED, NULL);
    else if (request->plain || !s3->credentials)
        keys_ready(request, DCTF_OK, NULL);
    else
        dctf_s3_credentials_ask(s3->credentials, wait_ms, keys_ready, request);
}

static void http_done(
    struct dctf_http_request *http, enum dctf_err err, const struct dctf_http_response *response)
{
    struct dctf_s3_request *request = http->ctx;
    struct dctf_s3 *s3 = request->task->s3;
    enum dctf_s3_silence_kind kind = silence_kind(request);

    if (response->first_byte_ns) {
        dctf_s3_silence_answered(s3->silence, kind, response->first_byte_ns);
        if (kind == DCTF_S3_SILENCE_READ)
            dctf_s3_gauge(s3, DCTF_METRIC_S3_STALL_TIMEOUT, (int64_t)dctf_s3_silence_ms(s3->silence, kind));
    }
    err = judge(request, err, response);
    if (!is_cancelled(request) && mend(request, err, response)) {
        forget_try(request);
        ask(request);
    } else {
        finish(request, err, response);
    }
}

enum dctf_err dctf_s3_request_start(struct dctf_s3_request *request)
{
    struct dctf_s3_task *task = request->task;
    struct dctf_s3 *s3 = task->s3;
    enum dctf_err err = DCTF_OK;

    request->mended = 0;
    request->detail[0] = '\0';
    request->begun_ms = dctf_clock_mono_ms(NULL);
    dctf_s3_task_ref(task); /* the request's */
    dctf_s3_task_ref(task); /* ours: it may be over when ask() returns */
    pthread_mutex_lock(&s3->lock);
    request->starter = pthread_self();
    request->start_err = &err;
    pthread_mutex_unlock(&s3->lock);
    ask(request);
    pthread_mutex_lock(&s3->lock);
    if (request->start_err == &err)
        request->start_err = NULL;
    if (err)
        request->state = DCTF_S3_IDLE;
    pthread_mutex_unlock(&s3->lock);
    if (err) {
        log_failure(request, err, NULL);
        forget_try(request);
        dctf_s3_task_unref(task);
    }
    dctf_s3_task_unref(task);
    return err;
}

void dctf_s3_request_cancel(struct dctf_s3_request *request)
{
    struct dctf_s3 *s3 = request->task->s3;
    bool asking, sent;

    pthread_mutex_lock(&s3->lock);
    request->cancelled = true;
    asking = request->state == DCTF_S3_ASKING;
    sent = request->state == DCTF_S3_SENT;
    if (asking) {
        request->state = DCTF_S3_SENT; /* claimed: the credentials come too late now */
        s3->orphans++;
    }
    pthread_mutex_unlock(&s3->lock);
    if (asking)
        finish(request, DCTF_ERR_CANCELLED, NULL);
    else if (sent)
        dctf_http_cancel(s3->http, &request->http);
}
