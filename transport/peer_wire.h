/* SPDX-License-Identifier: Apache-2.0
 *
 * What peers say to each other, as text: targets and headers of requests and answers. Pure
 * parsers and writers, shared by server and client, and fuzzed. There is one way to write a
 * target and a value, and the parsers take no other.
 *
 *   GET /v1/blocks/KEY?ds=HEX16&size=N&etag=ENCODED&first=BLOCK&count=BLOCKS[&want=FIRST-COUNT] HTTP/1.1
 *       fields in this order; KEY and ENCODED as transport/uri.h writes them; numbers in decimal
 *       without leading zeros; HEX16: 16 lower-case digits
 *       `want`: the run of the same extent that the asker is going to ask for in all
 *       Dctf-Node: id of the asker            Dctf-View: HEX16, hash of its view
 *       Dctf-Class: demand | prefetch | replication
 *       Dctf-Hop: 0 a probe: only what is here or on its way from the source
 *                 1 a reader asks a home: fetch it if need be, but wait for no other peer
 *       Dctf-Deadline: milliseconds the asker will wait
 *       Dctf-Tried: 1 those named by Dctf-Try were asked: answer now (else absent)
 *       Dctf-Accept: lz4 (else absent)        Dctf-Max-Rate: bytes/s (absent: none)
 *       Dctf-Auth: see transport/peer_auth.h
 *   200 body: the blocks, plain or as frames (transport/encoder.h)
 *       Dctf-Sums: XXH3 of each plain block, HEX16 each, no blanks
 *       Dctf-Encoding: plain | lz4            Dctf-From: cache | origin | peer
 *       Dctf-Wait: microseconds queued, on disk and at the source, before the first byte
 *       Dctf-Path: rtt=US,min=US,rate=BYTES_PER_S   of the server's socket (absent: not known)
 *       Dctf-Spare: keep     who answers is the home and has no room for them: the asker should keep them
 *   204 not here (probes)
 *   GET /v1/ping        200, no body, answered without disk
 *   GET /v1/have/KEY?…  as blocks, but no body: 200 here, 202 on its way from the source, 204 neither
 *       Dctf-Spare: full     with 204: nor has this node room for what another home has no room for
 *
 * About names, not bytes of shards; PATH may be empty, the root:
 *   GET /v1/list/PATH?ds=HEX16&n=MS[&gen=N&after=NAME]
 *       the listing of a directory, begun at most so many ms ago, from the source if need be:
 *       200 a page of it (cluster/listing_page.h), one sum of it; 202 it is being read, come again;
 *       204 that generation is gone. `gen` and `after`: the page that follows NAME, of the same generation
 *   GET /v1/sync/PATH?ds=HEX16&n=0|1    forget listings at or below (1: names in the kernel too)
 *   GET /v1/evict/PATH?ds=HEX16&n=0     drop the bytes of shards at or below
 *   GET /v1/heat/?ds=HEX16&n=MAX        what the one that leads knows of heat; 204 another one leads
 *       these three: 200 numbers or lines in a body with one sum
 *   GET /v1/stale/KEY?ds=HEX16&n=SIZE&etag=ENCODED   the source has this version no more: 204
 *
 * Every answer has Dctf-View, and may have Dctf-Wait and Dctf-Path. Every one outside of 2xx has
 * Dctf-Error, the code of base/err.def, from which its status follows:
 *   400 a request that cannot be understood (2025)   401 no or wrong proof (2021)
 *   404 the source has no such object (1001 and its like)
 *   409 other dataset or layout (2025)               412 the source has another version now (1003)
 *   500 the peer itself failed (all other codes)     502 the source failed (2001, 2002, 2003 …)
 *   503 busy (2022): come again after Dctf-Retry milliseconds, or ask one of Dctf-Try (ids, comma separated);
 *       going away (2008)
 *   504 the deadline passed (2004)
 *
 * Threads:   any thread; no state.
 * Ownership: parsed structures hold their text.
 */
#ifndef DCTF_TRANSPORT_PEER_WIRE_H
#define DCTF_TRANSPORT_PEER_WIRE_H

#include "base/err.h"
#include "base/version.h"
#include "transport/fetch.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dctf_str;

#define DCTF_PEER_BLOCKS_MAX DCTF_EXTENT_BLOCKS /* of one request */
#define DCTF_PEER_TRY_MAX 4u
#define DCTF_PEER_TRY_BYTES 256u /* of so many ids with what separates them, and a NUL */
#define DCTF_PEER_NODE_MAX 63u   /* bytes of an id: printable ASCII but blank and comma */
/* Of a target: path, and key with ETag or name with every byte encoded, and the numbers. */
#define DCTF_PEER_TARGET_MAX (256u + 3u * (DCTF_KEY_MAX + DCTF_NAME_MAX))
/* Longest body of an answer about names. */
#define DCTF_PEER_PAGE_BYTES (512u * 1024)
/* Longest time that is told. */
#define DCTF_PEER_MS_MAX 86400000u

/* --- targets --- */

enum dctf_peer_op {
    DCTF_PEER_BLOCKS,
    DCTF_PEER_HAVE,
    DCTF_PEER_PING,
    /* about names */
    DCTF_PEER_LIST,
    DCTF_PEER_SYNC,
    DCTF_PEER_EVICT,
    DCTF_PEER_STALE,
    DCTF_PEER_HEAT
};
static inline bool dctf_peer_is_meta(enum dctf_peer_op op)
{
    return op >= DCTF_PEER_LIST;
}

/* A request for blocks [first, first + count) of one version, or about a name. */
struct dctf_peer_ask {
    enum dctf_peer_op op;
    uint64_t dataset;
    char key[DCTF_KEY_MAX + 1]; /* or path */
    char etag[DCTF_ETAG_MAX + 1];
    uint64_t size;                   /* of the shard; about names: `n` */
    uint32_t first, count;           /* about names: count is 1 */
    uint32_t want_first, want_count; /* holds [first, first + count); count 0: the same */
    uint64_t generation;             /* of a listing; 0: the first page of the newest */
    char after[DCTF_NAME_MAX + 1];
};

/* Append the target of `ask`, percent-encoded. */
void dctf_peer_target_write(struct dctf_str *out, const struct dctf_peer_ask *ask);
/* Path and query as on the request line, undecoded. DCTF_ERR_BAD_REQUEST for anything that is no
 * target of ours: unknown or repeated or missing fields, blocks outside the shard, more than
 * DCTF_PEER_BLOCKS_MAX, a run that crosses an extent, NUL bytes, lengths, a key that no file can have
 * (docs/keys.md). A ping leaves the rest of `out` empty. */
DCTF_MUST_CHECK
enum dctf_err dctf_peer_target_parse(const char *target, struct dctf_peer_ask *out);
/* Plain bytes of the blocks asked for. */
uint64_t dctf_peer_ask_bytes(const struct dctf_peer_ask *ask);

/* --- headers of a request --- */

/* One header, from or for an HTTP library. Names are compared without case. */
struct dctf_peer_header {
    const char *name; /* "Dctf-Class" */
    const char *value;
};

struct dctf_peer_call {
    char node[DCTF_PEER_NODE_MAX + 1];
    uint64_t view;
    enum dctf_fetch_class class;
    unsigned hop;         /* 0 or 1 */
    uint64_t deadline_ms; /* 1 … DCTF_PEER_MS_MAX; others are brought there by the writer */
    uint64_t max_rate;    /* bytes/s; 0: none */
    bool accepts_lz4;
    bool tried; /* those that the peer named were asked */
};

/* What the writers of headers call, once for each; the texts are valid during the call. */
typedef void dctf_peer_header_add(void *ctx, const char *name, const char *value);

void dctf_peer_call_write(const struct dctf_peer_call *call, dctf_peer_header_add *add, void *ctx);
/* From all headers of a request, in any order. Those that are unknown are ignored, so that a newer asker can
 * say more. DCTF_ERR_BAD_REQUEST: one of ours twice, malformed, or missing. */
DCTF_MUST_CHECK
enum dctf_err dctf_peer_call_parse(
    const struct dctf_peer_header *headers, size_t count, struct dctf_peer_call *out);
/* Whether it can be a node's id: 1 … DCTF_PEER_NODE_MAX bytes of the set above. */
bool dctf_peer_node_ok(const char *id, size_t len);

/* --- headers of an answer --- */

enum dctf_peer_from { DCTF_PEER_FROM_CACHE, DCTF_PEER_FROM_ORIGIN, DCTF_PEER_FROM_PEER };
/* Whose room there is for blocks whose home has none. */
enum dctf_peer_spare { DCTF_PEER_SPARE_NOTHING, DCTF_PEER_SPARE_KEEP, DCTF_PEER_SPARE_FULL };

/* The way to the asker as the server's socket sees it. */
struct dctf_peer_path {
    uint64_t rtt_us, min_rtt_us, rate; /* bytes/s; 0: not told */
};
void dctf_peer_path_write(struct dctf_str *out, const struct dctf_peer_path *path);
bool dctf_peer_path_parse(const char *text, struct dctf_peer_path *out);

void dctf_peer_sums_write(struct dctf_str *out, const uint64_t *sums, size_t count);
/* Exactly `count` sums; false otherwise. */
bool dctf_peer_sums_parse(const char *text, uint64_t *sums, size_t count);

struct dctf_peer_told {
    enum dctf_err err; /* DCTF_OK for 2xx */
    uint64_t view;
    uint64_t wait_us;           /* 0: not told */
    struct dctf_peer_path path; /* zeros: not told */
    enum dctf_peer_spare spare;
    /* with 200 to blocks */
    size_t sum_count; /* 0 with every other answer, which has none of these */
    uint64_t sums[DCTF_PEER_BLOCKS_MAX];
    bool framed;
    enum dctf_peer_from from;
    /* with DCTF_ERR_PEER_BUSY */
    uint64_t retry_ms;             /* ≤ DCTF_PEER_MS_MAX */
    char try[DCTF_PEER_TRY_BYTES]; /* ids, comma separated; "" none */
};

/* Nothing is written for fields that do not go with the answer, nor a `try` that could not be parsed. */
void dctf_peer_told_write(const struct dctf_peer_told *told, dctf_peer_header_add *add, void *ctx);
/* `get` gives a header's value or NULL. `blocks` ≠ 0: so many sums, and with them encoding and from, must be
 * there. DCTF_ERR_BAD_RESPONSE: missing or malformed. An error code that is not in our table is
 * DCTF_ERR_INTERNAL in out->err. */
DCTF_MUST_CHECK
enum dctf_err dctf_peer_told_parse(const char *(*get)(const void *ctx, const char *name), const void *ctx,
    size_t blocks, struct dctf_peer_told *out);

/* --- status and error --- */

/* Status of an answer with this error (DCTF_OK: 200, PEER_ABSENT: 204); see above. BAD_REQUEST is 400:
 * who finds the dataset or the layout to be another says 409 itself. */
int dctf_peer_status(enum dctf_err err);
/* The reverse, for the asker: what a status outside 2xx means to it, given what Dctf-Error told (DCTF_OK:
 * nothing). Only a peer says 401, 404, 412, 502, 503 or 504 with the code that goes with it: without,
 * something else answered, and nothing follows from it about the object. What failed in the peer
 * itself, and going away, is DCTF_ERR_PEER_GONE. */
enum dctf_err dctf_peer_status_err(int status, enum dctf_err told);

#endif
