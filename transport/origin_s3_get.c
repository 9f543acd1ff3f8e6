/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranges and heads of one object. A body is let in only when its head proves that it is
 * the range that was asked for, of the version that was asked for.
 */
#include "transport/s3_internal.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct get {
    struct dctf_s3_task task; /* first */
    struct dctf_s3_request request;
    struct dctf_origin_get *get;
    struct dctf_origin_head *head; /* the one or the other */
};

static struct get *of_request(struct dctf_s3_request *request)
{
    return (struct get *)(void *)request->task;
}

static void get_free(struct dctf_s3_task *task)
{
    struct get *get = (struct get *)(void *)task;

    dctf_s3_request_fini(&get->request);
    free(get);
}

static void get_cancel(struct dctf_s3_task *task)
{
    dctf_s3_request_cancel(&((struct get *)(void *)task)->request);
}

static struct get *get_new(struct dctf_origin *origin, enum dctf_s3_op op, const void *owner)
{
    struct get *get = calloc(1, sizeof(*get));

    if (!get)
        return NULL;
    get->task.s3 = (struct dctf_s3 *)origin;
    get->task.owner = owner;
    get->task.cancel = get_cancel;
    get->task.free = get_free;
    dctf_s3_request_init(&get->request, &get->task, op);
    return get;
}

/* Takes it. */
static enum dctf_err get_start(struct get *get)
{
    enum dctf_err err = dctf_s3_task_begin(&get->task);

    if (err) {
        get_free(&get->task);
        return err;
    }
    err = dctf_s3_request_start(&get->request);
    if (err) {
        dctf_s3_task_end(&get->task);
        dctf_s3_task_unref(&get->task);
    }
    return err;
}

/* --- ranges --- */

static bool take_number(const char **text, char end, uint64_t *out)
{
    char *after;

    if (**text < '0' || **text > '9')
        return false;
    *out = strtoull(*text, &after, 10);
    if (*after != end || after - *text > 19) /* more digits may have overflowed */
        return false;
    *text = after + (end != '\0');
    return true;
}

bool dctf_s3_content_range_parse(const char *text, uint64_t *first, uint64_t *last, uint64_t *total)
{
    if (strncmp(text, "bytes ", 6) != 0)
        return false;
    text += 6;
    return take_number(&text, '-', first) && take_number(&text, '/', last) && take_number(&text, '\0', total);
}

/* A header's ETag, "abc" in quotes as a rule, against one without. */
static bool is_etag(const char *header, const char *etag)
{
    size_t len = strlen(header);

    if (len >= 2 && header[0] == '"' && header[len - 1] == '"')
        return strlen(etag) == len - 2 && memcmp(header + 1, etag, len - 2) == 0;
    return strcmp(header, etag) == 0;
}

static enum dctf_err refuse(struct dctf_s3_request *request, enum dctf_err err, const char *what,
    const char *header, const struct dctf_http_response *response)
{
    snprintf(request->detail, sizeof(request->detail), "HTTP %d with %s %.120s", response->status, what,
        header ? header : "missing");
    return err;
}

/* An answer without an ETag passes: it was asked for with If-Match, and range and size fit. */
static enum dctf_err range_head(struct dctf_s3_request *request, const struct dctf_http_response *response)
{
    const struct dctf_origin_get *get = of_request(request)->get;
    const char *etag = dctf_http_header(response, "etag");
    const char *range = dctf_http_header(response, "content-range");
    const char *length = dctf_http_header(response, "content-length");
    uint64_t first = 0, last = get->size - 1, total = get->size, len;

    if (etag && !is_etag(etag, get->etag))
        return refuse(request, DCTF_ERR_VERSION_MISMATCH, "etag", etag, response);
    if (response->status == 206) {
        if (!range || !dctf_s3_content_range_parse(range, &first, &last, &total))
            return refuse(request, DCTF_ERR_BAD_RESPONSE, "content-range", range, response);
    } else if (response->status != 200) {
        return refuse(request, DCTF_ERR_BAD_RESPONSE, "content-range", range, response);
    }
    if (first != get->offset || last != get->offset + get->len - 1 || total != get->size)
        return refuse(request, DCTF_ERR_BAD_RESPONSE, "content-range", range, response);
    if (length && (!take_number(&length, '\0', &len) || len != get->len))
        return refuse(request, DCTF_ERR_BAD_RESPONSE, "content-length",
            dctf_http_header(response, "content-length"), response);
    return DCTF_OK;
}

static void range_done(
    struct dctf_s3_request *request, enum dctf_err err, const struct dctf_http_response *response)
{
    struct get *own = of_request(request);
    struct dctf_origin_get *get = own->get;
    bool is_object = response && response->status >= 200 && response->status <= 299;
    size_t got = is_object ? response->len : 0;

    if (!err && got != get->len)
        err = DCTF_ERR_SHORT_BODY;
    get->retry_after_ms = request->retry_after_ms;
    dctf_s3_task_end(&own->task);
    get->done(get, err, got);
    dctf_s3_task_unref(&own->task);
}

enum dctf_err dctf_s3_get(struct dctf_origin *origin, struct dctf_origin_get *get)
{
    struct get *own = get_new(origin, DCTF_S3_GET, get);
    struct dctf_s3_request *request;

    if (!own)
        return DCTF_ERR_NO_MEMORY;
    assert(get->len > 0 && get->offset <= get->size && get->len <= get->size - get->offset);
    own->get = get;
    request = &own->request;
    request->key = get->key;
    request->if_match = get->etag;
    request->buf = get->buf;
    request->buf_len = get->len;
    request->on_head = range_head;
    request->done = range_done;
    snprintf(request->range, sizeof(request->range), "bytes=%" PRIu64 "-%" PRIu64, get->offset,
        get->offset + get->len - 1);
    return get_start(own);
}

/* --- heads --- */

static enum dctf_err read_head(
    const struct dctf_http_response *response, struct dctf_origin_entry *entry, char etag[192])
{
    const char *length = dctf_http_header(response, "content-length");
    const char *modified = dctf_http_header(response, "last-modified");
    const char *tag = dctf_http_header(response, "etag");
    size_t len = tag ? strlen(tag) : 0;
    int64_t modified_s = 0;

    if (!length || !take_number(&length, '\0', &entry->size) || len == 0 || len >= 192)
        return DCTF_ERR_BAD_RESPONSE;
    if (modified && dctf_s3_date_parse(modified, &modified_s))
        entry->mtime_ns = modified_s * 1000000000;
    if (len >= 2 && tag[0] == '"' && tag[len - 1] == '"') {
        tag++;
        len -= 2;
    }
    memcpy(etag, tag, len);
    etag[len] = '\0';
    entry->etag = etag;
    return DCTF_OK;
}

static void head_done(
    struct dctf_s3_request *request, enum dctf_err err, const struct dctf_http_response *response)
{
    struct get *own = of_request(request);
    const char *slash = strrchr(own->head->key, '/');
    struct dctf_origin_entry entry = {.name = slash ? slash + 1 : own->head->key};
    char etag[192];

    if (!err)
        err = read_head(response, &entry, etag);
    own->head->retry_after_ms = request->retry_after_ms;
    dctf_s3_task_end(&own->task);
    own->head->done(own->head, err, err ? NULL : &entry);
    dctf_s3_task_unref(&own->task);
}

enum dctf_err dctf_s3_head(struct dctf_origin *origin, struct dctf_origin_head *head)
{
    struct get *own = get_new(origin, DCTF_S3_HEAD, head);

    if (!own)
        return DCTF_ERR_NO_MEMORY;
    own->head = head;
    own->request.key = head->key;
    own->request.done = head_done;
    return get_start(own);
}
