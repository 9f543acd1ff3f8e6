/* SPDX-License-Identifier: Apache-2.0
 *
 * A target that parses is written back byte by byte the same: see transport/peer_wire_cursor.h.
 */
#include "transport/peer_wire.h"

#include "base/str.h"
#include "transport/peer_wire_cursor.h"
#include "transport/uri.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define DECIMAL_MAX 20u /* digits of a 64-bit number */

static const char *const class_words[DCTF_FETCH_CLASS_COUNT] = {
    [DCTF_FETCH_DEMAND] = "demand",
    [DCTF_FETCH_PREFETCH] = "prefetch",
    [DCTF_FETCH_REPLICATION] = "replication",
};
static const char *const encoding_words[] = {"plain", "lz4"};
static const char *const spare_words[] = {"", "keep", "full"};
static const char *const from_words[] = {
    [DCTF_PEER_FROM_CACHE] = "cache",
    [DCTF_PEER_FROM_ORIGIN] = "origin",
    [DCTF_PEER_FROM_PEER] = "peer",
};

_Static_assert(DCTF_PEER_TRY_BYTES == DCTF_PEER_TRY_MAX * (DCTF_PEER_NODE_MAX + 1), "room for all ids");

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* --- values --- */

/* The whole of `text`. */
static bool parse_decimal(const char *text, uint64_t max, uint64_t *out)
{
    struct cursor cursor = {text};

    *out = take_decimal(&cursor, max);
    return ended(&cursor);
}

static bool parse_hex(const char *text, uint64_t *out)
{
    struct cursor cursor = {text};

    *out = take_hex(&cursor);
    return ended(&cursor);
}

static bool parse_word(const char *text, const char *const *words, size_t count, unsigned *out)
{
    for (*out = 0; *out < count; ++*out) {
        if (!strcmp(text, words[*out]))
            return true;
    }
    *out = 0;
    return false;
}

/* --- targets --- */

void dctf_peer_target_write(struct dctf_str *out, const struct dctf_peer_ask *ask)
{
    if (ask->op == DCTF_PEER_PING) {
        dctf_str_puts(out, "/v1/ping");
        return;
    }
    if (dctf_peer_is_meta(ask->op)) {
        dctf_peer_meta_write(out, ask);
        return;
    }
    dctf_str_puts(out, ask->op == DCTF_PEER_HAVE ? "/v1/have/" : "/v1/blocks/");
    dctf_uri_encode(out, ask->key, strlen(ask->key), true);
    dctf_str_printf(out, "?ds=%016" PRIx64 "&size=%" PRIu64 "&etag=", ask->dataset, ask->size);
    dctf_uri_encode(out, ask->etag, strlen(ask->etag), false);
    dctf_str_printf(out, "&first=%" PRIu32 "&count=%" PRIu32, ask->first, ask->count);
    if (ask->want_count)
        dctf_str_printf(out, "&want=%" PRIu32 "-%" PRIu32, ask->want_first, ask->want_count);
}

/* Blocks [first, first + count) exist and are of one extent. */
static bool run_ok(uint32_t first, uint32_t count, uint32_t blocks)
{
    return count >= 1 && count <= DCTF_PEER_BLOCKS_MAX && first < blocks && count <= blocks - first &&
           first / DCTF_EXTENT_BLOCKS == (first + count - 1) / DCTF_EXTENT_BLOCKS;
}

static bool ranges_ok(const struct dctf_peer_ask *ask, bool wants)
{
    uint32_t blocks = dctf_blocks_of(ask->size);

    if (!ask->size || !run_ok(ask->first, ask->count, blocks))
        return false;
    if (!wants)
        return true;
    return run_ok(ask->want_first, ask->want_count, blocks) && ask->want_first <= ask->first &&
           ask->first + ask->count <= ask->want_first + ask->want_count;
}

static bool parse_version(struct cursor *cursor, struct dctf_peer_ask *out)
{
    bool wants;

    take_encoded(cursor, "?", true, out->key, sizeof(out->key));
    take_word(cursor, "?ds=");
    out->dataset = take_hex(cursor);
    take_word(cursor, "&size=");
    out->size = take_decimal(cursor, DCTF_SIZE_MAX);
    take_word(cursor, "&etag=");
    take_encoded(cursor, "&", false, out->etag, sizeof(out->etag));
    take_word(cursor, "&first=");
    out->first = (uint32_t)take_decimal(cursor, UINT32_MAX);
    take_word(cursor, "&count=");
    out->count = (uint32_t)take_decimal(cursor, DCTF_PEER_BLOCKS_MAX);
    wants = cursor->at && *cursor->at;
    if (wants) {
        take_word(cursor, "&want=");
        out->want_first = (uint32_t)take_decimal(cursor, UINT32_MAX);
        take_word(cursor, "-");
        out->want_count = (uint32_t)take_decimal(cursor, DCTF_PEER_BLOCKS_MAX);
    }
    return ended(cursor) && key_ok(out->key) && ranges_ok(out, wants);
}

enum dctf_err dctf_peer_target_parse(const char *target, struct dctf_peer_ask *out)
{
    static const char blocks[] = "/v1/blocks/", have[] = "/v1/have/";
    struct cursor cursor = {target};

    memset(out, 0, sizeof(*out));
    if (strnlen(target, DCTF_PEER_TARGET_MAX + 1) > DCTF_PEER_TARGET_MAX)
        return DCTF_ERR_BAD_REQUEST;
    if (!strcmp(target, "/v1/ping")) {
        out->op = DCTF_PEER_PING;
        return DCTF_OK;
    }
    if (dctf_peer_meta_parse(target, out))
        return out->count ? DCTF_OK : DCTF_ERR_BAD_REQUEST;
    out->op = strncmp(target, have, sizeof(have) - 1) == 0 ? DCTF_PEER_HAVE : DCTF_PEER_BLOCKS;
    take_word(&cursor, out->op == DCTF_PEER_HAVE ? have : blocks);
    if (parse_version(&cursor, out))
        return DCTF_OK;
    memset(out, 0, sizeof(*out));
    return DCTF_ERR_BAD_REQUEST;
}

uint64_t dctf_peer_ask_bytes(const struct dctf_peer_ask *ask)
{
    uint64_t start = (uint64_t)ask->first * DCTF_BLOCK_BYTES;
    uint64_t end = start + (uint64_t)ask->count * DCTF_BLOCK_BYTES;

    if (ask->op == DCTF_PEER_PING || dctf_peer_is_meta(ask->op))
        return 0;
    return (end < ask->size ? end : ask->size) - start;
}

/* --- headers of a request --- */

bool dctf_peer_node_ok(const char *id, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (id[i] <= ' ' || id[i] > '~' || id[i] == ',')
            return false;
    }
    return len >= 1 && len <= DCTF_PEER_NODE_MAX;
}

static void add_decimal(dctf_peer_header_add *add, void *ctx, const char *name, uint64_t value)
{
    char text[DECIMAL_MAX + 1];

    snprintf(text, sizeof(text), "%" PRIu64, value);
    add(ctx, name, text);
}

static void add_hex(dctf_peer_header_add *add, void *ctx, const char *name, uint64_t value)
{
    char text[HEX_DIGITS + 1];

    snprintf(text, sizeof(text), "%016" PRIx64, value);
    add(ctx, name, text);
}

void dctf_peer_call_write(const struct dctf_peer_call *call, dctf_peer_header_add *add, void *ctx)
{
    uint64_t deadline_ms = call->deadline_ms;

    if (deadline_ms < 1)
        deadline_ms = 1;
    if (deadline_ms > DCTF_PEER_MS_MAX)
        deadline_ms = DCTF_PEER_MS_MAX;
    add(ctx, "Dctf-Node", call->node);
    add_hex(add, ctx, "Dctf-View", call->view);
    add(ctx, "Dctf-Class", class_words[call->class]);
    add(ctx, "Dctf-Hop", call->hop ? "1" : "0");
    add_decimal(add, ctx, "Dctf-Deadline", deadline_ms);
    if (call->accepts_lz4)
        add(ctx, "Dctf-Accept", "lz4");
    if (call->tried)
        add(ctx, "Dctf-Tried", "1");
    if (call->max_rate)
        add_decimal(add, ctx, "Dctf-Max-Rate", call->max_rate);
}

enum call_field { NODE, VIEW, CLASS, HOP, DEADLINE, ACCEPT, TRIED, MAX_RATE, FIELDS };
#define REQUIRED_FIELDS (1u << NODE | 1u << VIEW | 1u << CLASS | 1u << HOP | 1u << DEADLINE)

static bool parse_field(enum call_field field, const char *value, struct dctf_peer_call *out)
{
    uint64_t number = 0;
    unsigned word = 0;
    bool ok = false;

    switch (field) {
    case NODE:
        ok = dctf_peer_node_ok(value, strnlen(value, sizeof(out->node)));
        if (ok)
            memcpy(out->node, value, strlen(value) + 1);
        break;
    case VIEW:
        ok = parse_hex(value, &out->view);
        break;
    case CLASS:
        ok = parse_word(value, class_words, COUNT_OF(class_words), &word);
        out->class = (enum dctf_fetch_class)word;
        break;
    case HOP:
        ok = parse_decimal(value, 1, &number);
        out->hop = (unsigned)number;
        break;
    case DEADLINE:
        ok = parse_decimal(value, DCTF_PEER_MS_MAX, &out->deadline_ms) && out->deadline_ms;
        break;
    case ACCEPT:
        ok = out->accepts_lz4 = !strcmp(value, "lz4");
        break;
    case TRIED:
        ok = out->tried = !strcmp(value, "1");
        break;
    case MAX_RATE:
        ok = parse_decimal(value, UINT64_MAX, &out->max_rate) && out->max_rate;
        break;
    case FIELDS:
        break;
    }
    return ok;
}

enum dctf_err dctf_peer_call_parse(
    const struct dctf_peer_header *headers, size_t count, struct dctf_peer_call *out)
{
    static const char *const names[FIELDS] = {"Dctf-Node", "Dctf-View", "Dctf-Class", "Dctf-Hop",
        "Dctf-Deadline", "Dctf-Accept", "Dctf-Tried", "Dctf-Max-Rate"};
    unsigned seen = 0;

    memset(out, 0, sizeof(*out));
    for (size_t i = 0; i < count; i++) {
        for (unsigned field = 0; field < FIELDS; field++) {
            if (strcasecmp(headers[i].name, names[field]) != 0)
                continue;
            if (seen & 1u << field || !parse_field((enum call_field)field, headers[i].value, out)) {
                memset(out, 0, sizeof(*out));
                return DCTF_ERR_BAD_REQUEST;
            }
            seen |= 1u << field;
        }
    }
    if ((seen & REQUIRED_FIELDS) == REQUIRED_FIELDS)
        return DCTF_OK;
    memset(out, 0, sizeof(*out));
    return DCTF_ERR_BAD_REQUEST;
}

/* --- headers of an answer --- */

void dctf_peer_sums_write(struct dctf_str *out, const uint64_t *sums, size_t count)
{
    for (size_t i = 0; i < count; i++)
        dctf_str_printf(out, "%016" PRIx64, sums[i]);
}

bool dctf_peer_sums_parse(const char *text, uint64_t *sums, size_t count)
{
    struct cursor cursor = {text};

    for (size_t i = 0; i < count; i++)
        sums[i] = take_hex(&cursor);
    return ended(&cursor);
}

void dctf_peer_path_write(struct dctf_str *out, const struct dctf_peer_path *path)
{
    dctf_str_printf(
        out, "rtt=%" PRIu64 ",min=%" PRIu64 ",rate=%" PRIu64, path->rtt_us, path->min_rtt_us, path->rate);
}

bool dctf_peer_path_parse(const char *text, struct dctf_peer_path *out)
{
    struct cursor cursor = {text};

    take_word(&cursor, "rtt=");
    out->rtt_us = take_decimal(&cursor, UINT64_MAX);
    take_word(&cursor, ",min=");
    out->min_rtt_us = take_decimal(&cursor, UINT64_MAX);
    take_word(&cursor, ",rate=");
    out->rate = take_decimal(&cursor, UINT64_MAX);
    if (ended(&cursor))
        return true;
    *out = (struct dctf_peer_path){0};
    return false;
}

/* One to DCTF_PEER_TRY_MAX ids. */
static bool try_ok(const char *text)
{
    for (unsigned i = 0; i < DCTF_PEER_TRY_MAX; i++) {
        size_t len = strcspn(text, ",");

        if (!dctf_peer_node_ok(text, len))
            return false;
        if (!text[len])
            return true;
        text += len + 1;
    }
    return false;
}

/* Without memory a text is left out; the reader finds that out where it needs it. */
static void add_text(dctf_peer_header_add *add, void *ctx, const char *name, struct dctf_str *text)
{
    if (!text->err)
        add(ctx, name, dctf_str_c(text));
    dctf_str_clear(text);
}

void dctf_peer_told_write(const struct dctf_peer_told *told, dctf_peer_header_add *add, void *ctx)
{
    const struct dctf_peer_path *path = &told->path;
    struct dctf_str text;

    dctf_str_init(&text);
    if (told->err && told->err != DCTF_ERR_PEER_ABSENT)
        add_decimal(add, ctx, "Dctf-Error", (uint64_t)told->err);
    add_hex(add, ctx, "Dctf-View", told->view);
    if (told->wait_us)
        add_decimal(add, ctx, "Dctf-Wait", told->wait_us);
    if (path->rtt_us || path->min_rtt_us || path->rate) {
        dctf_peer_path_write(&text, path);
        add_text(add, ctx, "Dctf-Path", &text);
    }
    if (told->spare)
        add(ctx, "Dctf-Spare", spare_words[told->spare]);
    if (!told->err && told->sum_count) {
        dctf_peer_sums_write(&text, told->sums, told->sum_count);
        add_text(add, ctx, "Dctf-Sums", &text);
        add(ctx, "Dctf-Encoding", encoding_words[told->framed]);
        add(ctx, "Dctf-From", from_words[told->from]);
    }
    if (told->err == DCTF_ERR_PEER_BUSY) {
        add_decimal(
            add, ctx, "Dctf-Retry", told->retry_ms < DCTF_PEER_MS_MAX ? told->retry_ms : DCTF_PEER_MS_MAX);
        if (try_ok(told->try))
            add(ctx, "Dctf-Try", told->try);
    }
    dctf_str_fini(&text);
}

/* The code as it is if the table has it: another release may know more of them. */
static bool parse_err(const char *text, enum dctf_err *out)
{
    uint64_t code;
    enum dctf_err known;

    if (!parse_decimal(text, 9999, &code) || !code)
        return false;
    for (size_t i = 0; (known = dctf_err_at(i)); i++) {
        if ((uint64_t)known == code) {
            *out = known;
            return true;
        }
    }
    *out = DCTF_ERR_INTERNAL;
    return true;
}

static bool parse_blocks_told(const char *(*get)(const void *ctx, const char *name), const void *ctx,
    size_t blocks, struct dctf_peer_told *out)
{
    const char *sums = get(ctx, "Dctf-Sums");
    const char *encoding = get(ctx, "Dctf-Encoding");
    const char *from = get(ctx, "Dctf-From");
    unsigned word;

    if (blocks > DCTF_PEER_BLOCKS_MAX || !sums || !encoding || !from ||
        !dctf_peer_sums_parse(sums, out->sums, blocks) ||
        !parse_word(encoding, encoding_words, COUNT_OF(encoding_words), &word))
        return false;
    out->sum_count = blocks;
    out->framed = word != 0;
    if (!parse_word(from, from_words, COUNT_OF(from_words), &word))
        return false;
    out->from = (enum dctf_peer_from)word;
    return true;
}

static bool parse_told(const char *(*get)(const void *ctx, const char *name), const void *ctx, size_t blocks,
    struct dctf_peer_told *out)
{
    const char *value;
    unsigned word;

    if ((value = get(ctx, "Dctf-Error")) && !parse_err(value, &out->err))
        return false;
    if ((value = get(ctx, "Dctf-View")) && !parse_hex(value, &out->view))
        return false;
    if ((value = get(ctx, "Dctf-Wait")) && !parse_decimal(value, UINT64_MAX, &out->wait_us))
        return false;
    if ((value = get(ctx, "Dctf-Path")) && !dctf_peer_path_parse(value, &out->path))
        return false;
    if ((value = get(ctx, "Dctf-Spare"))) {
        if (!*value || !parse_word(value, spare_words, COUNT_OF(spare_words), &word))
            return false;
        out->spare = (enum dctf_peer_spare)word;
    }
    if ((value = get(ctx, "Dctf-Retry")) && !parse_decimal(value, DCTF_PEER_MS_MAX, &out->retry_ms))
        return false;
    if ((value = get(ctx, "Dctf-Try"))) {
        if (!try_ok(value))
            return false;
        memcpy(out->try, value, strlen(value) + 1);
    }
    return !blocks || parse_blocks_told(get, ctx, blocks, out);
}

enum dctf_err dctf_peer_told_parse(const char *(*get)(const void *ctx, const char *name), const void *ctx,
    size_t blocks, struct dctf_peer_told *out)
{
    memset(out, 0, sizeof(*out));
    if (parse_told(get, ctx, blocks, out))
        return DCTF_OK;
    memset(out, 0, sizeof(*out));
    return DCTF_ERR_BAD_RESPONSE;
}

/* --- status and error --- */

int dctf_peer_status(enum dctf_err err)
{
    switch (err) {
    case DCTF_OK:
        return 200;
    case DCTF_ERR_PEER_ABSENT:
        return 204;
    case DCTF_ERR_BAD_REQUEST:
        return 400;
    case DCTF_ERR_PEER_AUTH:
        return 401;
    case DCTF_ERR_NOT_FOUND:
    case DCTF_ERR_NOT_A_DIRECTORY:
    case DCTF_ERR_IS_A_DIRECTORY:
    case DCTF_ERR_NAME_TOO_LONG:
        return 404;
    case DCTF_ERR_VERSION_MISMATCH:
        return 412;
    case DCTF_ERR_ORIGIN_IO:
    case DCTF_ERR_ORIGIN_ACCESS:
    case DCTF_ERR_ORIGIN_UNREACHABLE:
    case DCTF_ERR_SHORT_BODY:
    case DCTF_ERR_ORIGIN_THROTTLED:
    case DCTF_ERR_BAD_RESPONSE:
    case DCTF_ERR_ORIGIN_TLS:
    case DCTF_ERR_CREDENTIALS_NONE:
    case DCTF_ERR_CREDENTIALS_FAILED:
    case DCTF_ERR_ORIGIN_AUTH:
    case DCTF_ERR_CLOCK_SKEW:
    case DCTF_ERR_ORIGIN_REGION:
    case DCTF_ERR_BUCKET_NOT_FOUND:
        return 502;
    case DCTF_ERR_PEER_BUSY:
    case DCTF_ERR_SHUTTING_DOWN:
        return 503;
    case DCTF_ERR_DEADLINE:
        return 504;
    default:
        return 500;
    }
}

enum dctf_err dctf_peer_status_err(int status, enum dctf_err told)
{
    if (status == 409 && told == DCTF_ERR_BAD_REQUEST)
        return told;
    if (status >= 500 && (status == 500 || dctf_peer_status(told) != status))
        return DCTF_ERR_PEER_GONE;
    if (!told || dctf_peer_status(told) != status)
        return DCTF_ERR_BAD_RESPONSE;
    switch (told) {
    case DCTF_ERR_SHUTTING_DOWN:
        return DCTF_ERR_PEER_GONE;
    case DCTF_ERR_SHORT_BODY:
    case DCTF_ERR_BAD_RESPONSE:
        /* Of the source. To the asker these would say that the peer's own answer was bad. */
        return DCTF_ERR_ORIGIN_IO;
    default:
        return told;
    }
}
