/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests of the S3 origin: an origin in front of a server whose every byte is sent by hand
 * from the test's thread, one request per connection, and requests that can be waited for.
 *
 * Threads:   the fixture belongs to the test's thread; a reply's fields are guarded by its lock
 *            until reply_wait() returned.
 * Ownership: embedded by the test.
 */
#ifndef DCTF_TESTS_ORIGIN_S3_FIXTURE_H
#define DCTF_TESTS_ORIGIN_S3_FIXTURE_H

#include "origin_fixture.h"
#include "transport/s3_internal.h"

static inline void fixture_init(struct fixture *fixture)
{
    fixture_init_with(fixture, "AKIDKEY");
    set_option(fixture, "region", "us-east-1");
    set_option(fixture, "origin_retries", "0");
}

static inline void fixture_open(struct fixture *fixture)
{
    assert_int_equal(fixture_open_with(fixture, dctf_origin_s3_open), DCTF_OK);
}

/* Take the next request; its head is in fixture->head. */
static inline int take(struct fixture *fixture)
{
    int fd = server_accept(&fixture->server);

    server_read_head(fd, fixture->head, sizeof(fixture->head));
    return fd;
}

/* Take the next request, send this, close. */
static inline void answer(struct fixture *fixture, const char *text)
{
    int fd = take(fixture);

    server_send(fd, text);
    close(fd);
}

/* An answer with a body, and headers (each ended by \r\n) before it. */
static inline void answer_with(
    struct fixture *fixture, const char *status, const char *headers, const char *body)
{
    size_t cap = strlen(headers) + strlen(body) + 256;
    char *text = malloc(cap);

    assert_non_null(text);
    snprintf(text, cap, "HTTP/1.1 %s\r\n%sConnection: close\r\nContent-Length: %zu\r\n\r\n%s", status,
        headers, strlen(body), body);
    answer(fixture, text);
    free(text);
}

static inline void answer_error(
    struct fixture *fixture, const char *status, const char *headers, const char *code)
{
    char body[512];

    snprintf(body, sizeof(body),
        "<?xml "
        "version=\"1.0\"?><Error><Code>%s</Code><Message>because</Message><RequestId>R1</RequestId></Error>",
        code);
    answer_with(fixture, status, headers, body);
}

/* Until nothing is left of the requests that were answered. */
static inline void await_idle(struct fixture *fixture)
{
    struct dctf_s3 *s3 = (struct dctf_s3 *)fixture->origin;
    struct timespec until = in_ms(FOREVER_MS);
    int rc = 0;

    pthread_mutex_lock(&s3->lock);
    while (s3->alive > 0 && !rc)
        rc = pthread_cond_timedwait(&s3->idle, &s3->lock, &until);
    pthread_mutex_unlock(&s3->lock);
    assert_int_equal(rc, 0);
}

/* No request is there, nor will come: all threads of the origin are idle. */
static inline void assert_no_request(struct fixture *fixture)
{
    await_idle(fixture);
    assert_false(readable(fixture->server.fd, 0));
}

static inline bool head_has(const struct fixture *fixture, const char *text)
{
    return strstr(fixture->head, text) != NULL;
}

/* --- requests --- */

struct reply {
    struct ending end;
    bool stop_paging; /* guarded by end's lock, as are pages and names */
    size_t got;
    unsigned pages;
    char names[4096]; /* of a listing: "a,b/,…" */
    char etag[64];
    uint64_t size;
    int64_t mtime_ns;
    char buf[64];
    struct dctf_origin_list list;
    struct dctf_origin_head head;
    struct dctf_origin_get get;
};

static inline void reply_init(struct reply *reply)
{
    memset(reply, 0, sizeof(*reply));
    ending_init(&reply->end);
}

static inline void reply_fini(struct reply *reply)
{
    ending_fini(&reply->end);
}

static inline enum dctf_err reply_wait(struct reply *reply)
{
    return ending_wait(&reply->end);
}

static inline void on_get_done(struct dctf_origin_get *get, enum dctf_err err, size_t got)
{
    struct reply *reply = get->ctx;

    reply->got = got;
    ending_set(&reply->end, err);
}

static inline void on_head_done(
    struct dctf_origin_head *head, enum dctf_err err, const struct dctf_origin_entry *entry)
{
    struct reply *reply = head->ctx;

    if (entry) {
        snprintf(reply->names, sizeof(reply->names), "%s", entry->name);
        snprintf(reply->etag, sizeof(reply->etag), "%s", entry->etag);
        reply->size = entry->size;
        reply->mtime_ns = entry->mtime_ns;
    }
    ending_set(&reply->end, err);
}

static inline bool on_page(
    struct dctf_origin_list *list, const struct dctf_origin_entry *entries, size_t count)
{
    struct reply *reply = list->ctx;
    bool more;

    pthread_mutex_lock(&reply->end.lock);
    for (size_t i = 0; i < count; i++) {
        size_t len = strlen(reply->names);

        snprintf(reply->names + len, sizeof(reply->names) - len, "%s%s,", entries[i].name,
            entries[i].is_dir ? "/" : "");
    }
    reply->pages++;
    more = !reply->stop_paging;
    pthread_cond_broadcast(&reply->end.changed);
    pthread_mutex_unlock(&reply->end.lock);
    return more;
}

static inline void on_list_done(struct dctf_origin_list *list, enum dctf_err err)
{
    struct reply *reply = list->ctx;

    ending_set(&reply->end, err);
}

/* Bytes `offset`… of version "abc" of 10 bytes of "dir/key". */
static inline enum dctf_err start_get(
    struct fixture *fixture, struct reply *reply, uint64_t offset, size_t len)
{
    reply->get = (struct dctf_origin_get){
        .key = "dir/key",
        .etag = "abc",
        .size = 10,
        .offset = offset,
        .len = len,
        .buf = reply->buf,
        .done = on_get_done,
        .ctx = reply,
    };
    return fixture->origin->ops->get(fixture->origin, &reply->get);
}

static inline enum dctf_err start_head(struct fixture *fixture, struct reply *reply)
{
    reply->head = (struct dctf_origin_head){.key = "dir/key", .done = on_head_done, .ctx = reply};
    return fixture->origin->ops->head(fixture->origin, &reply->head);
}

static inline enum dctf_err start_list(struct fixture *fixture, struct reply *reply, const char *dir)
{
    reply->list = (struct dctf_origin_list){.dir = dir, .page = on_page, .done = on_list_done, .ctx = reply};
    return fixture->origin->ops->list(fixture->origin, &reply->list);
}

#endif
