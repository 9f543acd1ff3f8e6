/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests of what peers say: a handful of headers, written and looked up; targets that are read back.
 *
 * Threads:   one thread.
 * Ownership: embedded by the test.
 */
#ifndef DCTF_TESTS_PEER_WIRE_FIXTURE_H
#define DCTF_TESTS_PEER_WIRE_FIXTURE_H

#include "base/str.h"
#include "transport/peer_wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
/* cmocka needs setjmp, stdarg and stddef first */
#include <cmocka.h>

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

struct headers {
    struct dctf_peer_header items[16];
    char texts[16][1024];
    size_t count;
};

static inline void add_header(void *ctx, const char *name, const char *value)
{
    struct headers *headers = ctx;

    assert_true(headers->count < 16);
    snprintf(headers->texts[headers->count], sizeof(headers->texts[0]), "%s", value);
    headers->items[headers->count] = (struct dctf_peer_header){name, headers->texts[headers->count]};
    headers->count++;
}

static inline const char *get_header(const void *ctx, const char *name)
{
    const struct headers *headers = ctx;

    for (size_t i = 0; i < headers->count; i++) {
        if (!strcasecmp(headers->items[i].name, name))
            return headers->items[i].value;
    }
    return NULL;
}

static inline void set_header(struct headers *headers, const char *name, const char *value)
{
    for (size_t i = 0; i < headers->count; i++) {
        if (!strcasecmp(headers->items[i].name, name)) {
            snprintf(headers->texts[i], sizeof(headers->texts[i]), "%s", value);
            return;
        }
    }
    add_header(headers, name, value);
}

/* Write a target, read it back into *again, and write that: the same. `text`: how it is written; may be NULL.
 */
static inline void write_and_parse(
    const struct dctf_peer_ask *ask, const char *text, struct dctf_peer_ask *again)
{
    struct dctf_str target, second;

    dctf_str_init(&target);
    dctf_str_init(&second);
    dctf_peer_target_write(&target, ask);
    if (text)
        assert_string_equal(dctf_str_c(&target), text);
    assert_true(target.len <= DCTF_PEER_TARGET_MAX);
    assert_int_equal(dctf_peer_target_parse(dctf_str_c(&target), again), DCTF_OK);
    assert_int_equal(again->op, ask->op);
    assert_int_equal(again->dataset, ask->dataset);
    assert_string_equal(again->key, ask->key);
    assert_string_equal(again->etag, ask->etag);
    assert_int_equal(again->size, ask->size);
    dctf_peer_target_write(&second, again);
    assert_string_equal(dctf_str_c(&target), dctf_str_c(&second));
    dctf_str_fini(&target);
    dctf_str_fini(&second);
}

#endif
