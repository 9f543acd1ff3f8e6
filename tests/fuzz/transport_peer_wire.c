/* SPDX-License-Identifier: Apache-2.0
 *
 * The first line is a target, the others are headers "name:value" of a request and of an answer. What is
 * taken is within its bounds, and written back as it came.
 */
#include "transport/peer_wire.h"

#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define HEADERS_MAX 24

struct headers {
    struct dctf_peer_header items[HEADERS_MAX];
    size_t count;
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok)
{
    if (!ok)
        abort();
}

static char *cut_line(char *text)
{
    char *end = strchrnul(text, '\n');

    if (!*end)
        return end;
    *end = '\0';
    return end + 1;
}

static void check_target(const char *target)
{
    struct dctf_peer_ask ask;
    struct dctf_str again;
    uint64_t end;

    if (dctf_peer_target_parse(target, &ask))
        return;
    dctf_str_init(&again);
    dctf_peer_target_write(&again, &ask);
    require(!strcmp(dctf_str_c(&again), target));
    dctf_str_fini(&again);
    if (ask.op == DCTF_PEER_PING)
        return;
    if (dctf_peer_is_meta(ask.op)) {
        require(ask.count == 1 && dctf_peer_ask_bytes(&ask) == 0);
        require(strlen(ask.key) <= DCTF_KEY_MAX && strlen(ask.after) <= DCTF_NAME_MAX);
        require(!ask.generation == !ask.after[0]);
        return;
    }
    require(ask.key[0] && strlen(ask.key) <= DCTF_KEY_MAX && strlen(ask.etag) <= DCTF_ETAG_MAX);
    require(ask.size && ask.size <= DCTF_SIZE_MAX);
    require(ask.count >= 1 && ask.count <= DCTF_PEER_BLOCKS_MAX);
    require(dctf_peer_ask_bytes(&ask) >= 1);
    end = (uint64_t)ask.first * DCTF_BLOCK_BYTES + dctf_peer_ask_bytes(&ask);
    require(end <= ask.size);
    require(ask.first / DCTF_EXTENT_BLOCKS == (ask.first + ask.count - 1) / DCTF_EXTENT_BLOCKS);
    if (ask.want_count)
        require(ask.want_first <= ask.first && ask.first + ask.count <= ask.want_first + ask.want_count);
}

static const char *get_header(const void *ctx, const char *name)
{
    const struct headers *headers = ctx;

    for (size_t i = 0; i < headers->count; i++) {
        if (!strcasecmp(headers->items[i].name, name))
            return headers->items[i].value;
    }
    return NULL;
}

/* Every header that is written is there already, the same. */
static void expect_header(void *ctx, const char *name, const char *value)
{
    const char *had = get_header(ctx, name);

    require(had && !strcmp(had, value));
}

static void check_told(struct headers *headers, size_t blocks)
{
    struct dctf_peer_told told;

    if (dctf_peer_told_parse(get_header, headers, blocks, &told))
        return;
    require(told.sum_count == blocks && told.retry_ms <= DCTF_PEER_MS_MAX);
    require(strlen(told.try) < sizeof(told.try));
    for (int status = 200; status < 600; status++)
        (void)dctf_peer_status_err(status, told.err);
    /* Left out: what was not there to be written back. */
    if (!get_header(headers, "Dctf-View") || told.err == DCTF_ERR_INTERNAL ||
        (told.err == DCTF_ERR_PEER_BUSY && !get_header(headers, "Dctf-Retry")) ||
        told.err == DCTF_ERR_PEER_ABSENT)
        return;
    dctf_peer_told_write(&told, expect_header, headers);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct headers headers = {.count = 0};
    struct dctf_peer_call call;
    char *text = malloc(size + 1);
    char *line;

    require(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    line = cut_line(text);
    check_target(text);
    while (*line && headers.count < HEADERS_MAX) {
        char *next = cut_line(line);
        char *colon = strchrnul(line, ':');

        headers.items[headers.count].name = line;
        headers.items[headers.count++].value = *colon ? colon + 1 : colon;
        *colon = '\0';
        line = next;
    }
    if (!dctf_peer_call_parse(headers.items, headers.count, &call)) {
        require(dctf_peer_node_ok(call.node, strlen(call.node)) && call.hop <= 1);
        dctf_peer_call_write(&call, expect_header, &headers);
    }
    check_told(&headers, 0);
    check_told(&headers, 1);
    check_told(&headers, DCTF_PEER_BLOCKS_MAX);
    free(text);
    return 0;
}
