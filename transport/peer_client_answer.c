/* SPDX-License-Identifier: Apache-2.0
 *
 * A peer's answer, of which nothing is taken on trust: the head says how many checksums there are and how
 * the body is encoded, which bounds the body; the body must hold exactly the blocks asked for; each block
 * must have its checksum.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/metric.h"
#include "transport/encoder.h"
#include "transport/peer_client_internal.h"

#include <stdlib.h>
#include <string.h>

static const char *header_of(const void *ctx, const char *name)
{
    return dctf_http_header(ctx, name);
}

/* --- the head --- */

/* A body of frames goes to a buffer of its own: a frame is never longer than its block and a head. */
static enum dctf_err take_frames(struct dctf_peer_errand *errand, struct dctf_http_request *request)
{
    size_t cap = errand->bytes + (size_t)errand->get->ask.count * DCTF_FRAME_HEAD_BYTES;

    if (!errand->client->accept_lz4)
        return DCTF_ERR_BAD_RESPONSE;
    errand->frames = malloc(cap);
    if (!errand->frames)
        return DCTF_ERR_NO_MEMORY;
    request->buf = errand->frames;
    request->buf_len = cap;
    return DCTF_OK;
}

enum dctf_err dctf_peer_errand_head(
    struct dctf_http_request *request, const struct dctf_http_response *response)
{
    struct dctf_peer_errand *errand = request->ctx;
    const struct dctf_peer_ask *ask = &errand->get->ask;
    bool meta = dctf_peer_is_meta(ask->op);
    size_t blocks = response->status != 200 ? 0 : meta ? 1 : ask->op == DCTF_PEER_BLOCKS ? ask->count : 0;
    enum dctf_err err = dctf_peer_told_parse(header_of, response, blocks, &errand->told);

    if (!err && blocks && errand->told.framed)
        err = meta ? DCTF_ERR_BAD_RESPONSE : take_frames(errand, request);
    return err;
}

/* --- the body --- */

static enum dctf_err decode(
    struct dctf_peer_errand *errand, size_t frames_len, struct dctf_peer_answer *answer)
{
    const struct dctf_peer_ask *ask = &errand->get->ask;
    const struct dctf_clock *clock = &errand->client->clock;
    uint64_t began_ns = dctf_clock_mono_ns(clock);
    const uint8_t *at = errand->frames;
    size_t left = frames_len;

    for (uint32_t i = 0; i < ask->count; i++) {
        size_t len = left >= DCTF_FRAME_HEAD_BYTES ? dctf_frame_len(at) : 0;
        enum dctf_err err;

        if (!len || len > left)
            return DCTF_ERR_BAD_RESPONSE;
        err = dctf_frame_decode(at, len, (char *)errand->get->buf + (size_t)i * DCTF_BLOCK_BYTES,
            dctf_block_len(ask->size, ask->first + i));
        if (err)
            return err;
        at += len;
        left -= len;
    }
    answer->decode_ns = dctf_clock_mono_ns(clock) - began_ns;
    return left ? DCTF_ERR_BAD_RESPONSE : DCTF_OK;
}

static enum dctf_err check_sums(const struct dctf_peer_errand *errand)
{
    const struct dctf_peer_get *get = errand->get;

    for (uint32_t i = 0; i < get->ask.count; i++) {
        uint64_t sum = dctf_hash64((char *)get->buf + (size_t)i * DCTF_BLOCK_BYTES,
            dctf_block_len(get->ask.size, get->ask.first + i));

        if (sum == errand->told.sums[i])
            continue;
        dctf_log(DCTF_LOG_WARN, "peer", "op=blocks addr=%s block=%u err=%d %s", get->addr,
            (unsigned)(get->ask.first + i), (int)DCTF_ERR_TRANSFER_CHECKSUM,
            dctf_err_text(DCTF_ERR_TRANSFER_CHECKSUM));
        dctf_metric_error(errand->client->metrics, DCTF_ERR_TRANSFER_CHECKSUM);
        return DCTF_ERR_TRANSFER_CHECKSUM;
    }
    return DCTF_OK;
}

static enum dctf_err take_blocks(struct dctf_peer_errand *errand, const struct dctf_http_response *response,
    struct dctf_peer_answer *answer)
{
    enum dctf_err err = DCTF_OK;

    answer->from_origin = errand->told.from == DCTF_PEER_FROM_ORIGIN;
    if (errand->frames)
        err = decode(errand, response->len, answer);
    else if (response->len != errand->bytes)
        err = DCTF_ERR_BAD_RESPONSE;
    return err ? err : check_sums(errand);
}

/* The body of an answer about names is one piece with one sum. */
static enum dctf_err take_body(struct dctf_peer_errand *errand, const struct dctf_http_response *response,
    struct dctf_peer_answer *answer)
{
    answer->body_len = response->len;
    return response->len && dctf_hash64(errand->get->buf, response->len) == errand->told.sums[0]
               ? DCTF_OK
               : DCTF_ERR_TRANSFER_CHECKSUM;
}

/* --- the end --- */

/* A whole answer came. */
static enum dctf_err judge_status(struct dctf_peer_errand *errand, const struct dctf_http_response *response,
    struct dctf_peer_answer *answer)
{
    enum dctf_peer_op op = errand->get->ask.op;

    if (response->status < 200 || response->status > 299)
        return dctf_peer_status_err(response->status, errand->told.err);
    if (response->status == 204 && op != DCTF_PEER_PING)
        return DCTF_ERR_PEER_ABSENT;
    answer->on_its_way = response->status == 202 && (op == DCTF_PEER_HAVE || op == DCTF_PEER_LIST);
    if (response->status != 200 && !answer->on_its_way)
        return DCTF_ERR_BAD_RESPONSE;
    if (response->status == 200 && dctf_peer_is_meta(op))
        return take_body(errand, response, answer);
    return op == DCTF_PEER_BLOCKS ? take_blocks(errand, response, answer) : DCTF_OK;
}

/* What the HTTP client says of its origin, said of a peer. */
static enum dctf_err err_from_http(
    const struct dctf_peer_errand *errand, enum dctf_err err, const struct dctf_http_response *response)
{
    switch (err) {
    case DCTF_ERR_ORIGIN_UNREACHABLE:
    case DCTF_ERR_ORIGIN_IO:
    case DCTF_ERR_SHORT_BODY:
        return DCTF_ERR_PEER_GONE;
    case DCTF_ERR_ORIGIN_TLS:
        return DCTF_ERR_PEER_AUTH;
    case DCTF_ERR_DEADLINE: /* or silence, which ends earlier */
        return response->total_ns / 1000000u >= errand->get->deadline_ms ? err : DCTF_ERR_PEER_GONE;
    default:
        return err;
    }
}

/* An answer that is no result. Whether a peer that does not answer a ping or a probe is dead is for the
 * cluster to tell; bad blocks were told of above. */
static void log_answer(const struct dctf_peer_errand *errand, enum dctf_err err, int status)
{
    static const char *const ops[] = {[DCTF_PEER_BLOCKS] = "blocks",
        [DCTF_PEER_HAVE] = "have",
        [DCTF_PEER_PING] = "ping",
        [DCTF_PEER_LIST] = "list",
        [DCTF_PEER_SYNC] = "sync",
        [DCTF_PEER_EVICT] = "evict",
        [DCTF_PEER_STALE] = "stale",
        [DCTF_PEER_HEAT] = "heat"};
    bool usual = errand->get->ask.op != DCTF_PEER_BLOCKS || err == DCTF_ERR_PEER_ABSENT ||
                 err == DCTF_ERR_PEER_BUSY || err == DCTF_ERR_TRANSFER_CHECKSUM ||
                 err == DCTF_ERR_CANCELLED || err == DCTF_ERR_SHUTTING_DOWN;

    dctf_log(usual ? DCTF_LOG_DEBUG : DCTF_LOG_WARN, "peer", "op=%s addr=%s status=%d told=%d err=%d %s",
        ops[errand->get->ask.op], errand->get->addr, status, (int)errand->told.err, (int)err,
        dctf_err_name(err));
}

enum dctf_err dctf_peer_errand_judge(struct dctf_peer_errand *errand, enum dctf_err err,
    const struct dctf_http_response *response, struct dctf_peer_answer *answer)
{
    uint64_t first_us = response->first_byte_ns / 1000u;

    *answer = (struct dctf_peer_answer){
        .total_us = response->total_ns / 1000u,
        .wire_bytes = response->len,
        .path = errand->told.path,
        .view = errand->told.view,
        .spare = errand->told.spare,
    };
    if (response->first_byte_ns)
        answer->first_byte_us = first_us > errand->told.wait_us ? first_us - errand->told.wait_us : 1;
    if (err)
        err = err_from_http(errand, err, response);
    else if ((err = judge_status(errand, response, answer)))
        log_answer(errand, err, response->status);
    if (err == DCTF_ERR_PEER_BUSY) {
        answer->retry_ms = errand->told.retry_ms;
        memcpy(answer->try, errand->told.try, sizeof(answer->try));
    }
    return err;
}
