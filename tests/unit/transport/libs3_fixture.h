/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests of the origin that reads through libs3: an origin of a server whose every byte the test
 * sends by hand, and requests that can be waited for.
 *
 * Threads:   the test's thread plays the server; replies are an origin's until await() returned.
 * Ownership: fixtures and replies are the test's.
 */
#ifndef DCTF_TESTS_LIBS3_FIXTURE_H
#define DCTF_TESTS_LIBS3_FIXTURE_H

#include "base/log.h"
#include "origin_fixture.h"
#include "transport/origin_libs3_internal.h"

/* --- an origin, and requests that can be waited for --- */

struct reply {
    struct ending end;
    size_t got;
    char names[2048]; /* of a listing: "a b/ …" */
    char buf[64];
    struct dctf_origin_list list;
    struct dctf_origin_head head;
    struct dctf_origin_get get;
};

static inline enum dctf_err open_origin(struct fixture *fixture)
{
    return fixture_open_with(fixture, dctf_origin_libs3_open);
}

static inline int setup(void **state)
{
    struct fixture *fixture = malloc(sizeof(*fixture));

    assert_non_null(fixture);
    fixture_init_with(fixture, "KEY");
    *state = fixture;
    return 0;
}

static inline int setup_open(void **state)
{
    setup(state);
    assert_int_equal(open_origin(*state), DCTF_OK);
    return 0;
}

static inline int teardown(void **state)
{
    fixture_fini(*state);
    free(*state);
    return 0;
}

static inline struct reply *reply_new(void)
{
    struct reply *reply = calloc(1, sizeof(*reply));

    assert_non_null(reply);
    ending_init(&reply->end);
    reply->list.ctx = reply->head.ctx = reply->get.ctx = reply;
    return reply;
}

static inline void reply_free(struct reply *reply)
{
    ending_fini(&reply->end);
    free(reply);
}

static inline void finish(struct reply *reply, enum dctf_err err, size_t got)
{
    reply->got = got;
    ending_set(&reply->end, err);
}

static inline enum dctf_err await(struct reply *reply)
{
    return ending_wait(&reply->end);
}

static inline void on_get(struct dctf_origin_get *get, enum dctf_err err, size_t got)
{
    finish(get->ctx, err, got);
}

static inline void on_list(struct dctf_origin_list *list, enum dctf_err err)
{
    finish(list->ctx, err, 0);
}

static inline void on_head(
    struct dctf_origin_head *head, enum dctf_err err, const struct dctf_origin_entry *entry)
{
    struct reply *reply = head->ctx;

    if (entry)
        snprintf(reply->names, sizeof(reply->names), "%s %llu %s", entry->name,
            (unsigned long long)entry->size, entry->etag);
    finish(reply, err, 0);
}

static inline bool on_page(
    struct dctf_origin_list *list, const struct dctf_origin_entry *entries, size_t count)
{
    struct reply *reply = list->ctx;

    for (size_t i = 0; i < count; i++) {
        size_t len = strlen(reply->names);

        snprintf(reply->names + len, sizeof(reply->names) - len, "[%s%s %llu %s]", entries[i].name,
            entries[i].is_dir ? "/" : "", (unsigned long long)entries[i].size, entries[i].etag);
    }
    return true;
}

static inline struct reply *start_get(struct fixture *fixture, const char *key, size_t offset, size_t len)
{
    struct reply *reply = reply_new();

    reply->get.key = key;
    reply->get.etag = "abc";
    reply->get.size = 1000;
    reply->get.offset = offset;
    reply->get.len = len;
    reply->get.buf = reply->buf;
    reply->get.done = on_get;
    assert_int_equal(fixture->origin->ops->get(fixture->origin, &reply->get), DCTF_OK);
    return reply;
}

static inline struct reply *start_list(struct fixture *fixture, const char *dir)
{
    struct reply *reply = reply_new();

    reply->list.dir = dir;
    reply->list.page = on_page;
    reply->list.done = on_list;
    assert_int_equal(fixture->origin->ops->list(fixture->origin, &reply->list), DCTF_OK);
    return reply;
}

/* Take one request, and check that it begins so; answer with that text, and close. */
static inline void serve(struct server *server, const char *line, char *head, size_t cap, const char *answer)
{
    char own[8192];
    int fd = server_accept(server);

    head = head ? head : own;
    cap = head == own ? sizeof(own) : cap;
    server_read_head(fd, head, cap);
    if (strncmp(head, line, strlen(line)) != 0)
        fail_msg("asked \"%.300s\" instead of \"%s\"", head, line);
    server_try_send(fd, answer, strlen(answer));
    close(fd);
}

static inline enum dctf_err ended(struct reply *reply, enum dctf_err err)
{
    assert_int_equal(await(reply), err);
    reply_free(reply);
    return err;
}

#define OK_206 "HTTP/1.1 206 Partial Content\r\nConnection: close\r\n"
#define OK_200 "HTTP/1.1 200 OK\r\nConnection: close\r\n"
#define XML_HEAD "<?xml version=\"1.0\" encoding=\"UTF-8\"?><ListBucketResult>"
#define XML_TAIL "</ListBucketResult>"
#define LIST "GET /bucket/?list-type=2&encoding-type=url&max-keys=1000&delimiter=%2F&prefix="

#define OPEN(test) cmocka_unit_test_setup_teardown(test, setup_open, teardown)

#endif
