/* SPDX-License-Identifier: Apache-2.0
 *
 * Targets of requests about names: listings, and what changes or was dropped.
 */
#include "base/str.h"
#include "transport/peer_wire_cursor.h"

#include <inttypes.h>

static const struct {
    const char *word;
    bool path;      /* else the path is empty */
    uint64_t n_max; /* of `n` */
} metas[] = {
    [DCTF_PEER_LIST] = {"/v1/list/", true, UINT64_MAX},
    [DCTF_PEER_SYNC] = {"/v1/sync/", true, 1},
    [DCTF_PEER_EVICT] = {"/v1/evict/", true, 0},
    [DCTF_PEER_STALE] = {"/v1/stale/", true, DCTF_SIZE_MAX},
    [DCTF_PEER_HEAT] = {"/v1/heat/", false, UINT32_MAX},
};
#define META_END ((unsigned)(sizeof(metas) / sizeof(metas[0])))

void dctf_peer_meta_write(struct dctf_str *out, const struct dctf_peer_ask *ask)
{
    dctf_str_puts(out, metas[ask->op].word);
    dctf_uri_encode(out, ask->key, strlen(ask->key), true);
    dctf_str_printf(out, "?ds=%016" PRIx64 "&n=%" PRIu64, ask->dataset, ask->size);
    if (ask->op == DCTF_PEER_STALE) {
        dctf_str_puts(out, "&etag=");
        dctf_uri_encode(out, ask->etag, strlen(ask->etag), false);
    }
    if (ask->op == DCTF_PEER_LIST && ask->generation) {
        dctf_str_printf(out, "&gen=%" PRIu64 "&after=", ask->generation);
        dctf_uri_encode(out, ask->after, strlen(ask->after), false);
    }
}

static bool path_ok(const struct dctf_peer_ask *ask)
{
    if (!*ask->key)
        return ask->op != DCTF_PEER_STALE;
    return metas[ask->op].path && key_ok(ask->key);
}

static bool parse(const char *at, struct dctf_peer_ask *out)
{
    struct cursor cursor = {at};

    take_encoded(&cursor, "?", true, out->key, sizeof(out->key));
    take_word(&cursor, "?ds=");
    out->dataset = take_hex(&cursor);
    take_word(&cursor, "&n=");
    out->size = take_decimal(&cursor, metas[out->op].n_max);
    if (out->op == DCTF_PEER_STALE) {
        take_word(&cursor, "&etag=");
        take_encoded(&cursor, "", false, out->etag, sizeof(out->etag));
    } else if (out->op == DCTF_PEER_LIST && cursor.at && *cursor.at) {
        take_word(&cursor, "&gen=");
        out->generation = take_decimal(&cursor, UINT64_MAX);
        take_word(&cursor, "&after=");
        take_encoded(&cursor, "", false, out->after, sizeof(out->after));
        if (!out->generation || !*out->after || strchr(out->after, '/'))
            return false;
    }
    return ended(&cursor) && path_ok(out);
}

bool dctf_peer_meta_parse(const char *target, struct dctf_peer_ask *out)
{
    for (unsigned op = DCTF_PEER_LIST; op < META_END; op++) {
        size_t len = strlen(metas[op].word);

        if (strncmp(target, metas[op].word, len) != 0)
            continue;
        out->op = (enum dctf_peer_op)op;
        if (parse(target + len, out))
            out->count = 1;
        else
            memset(out, 0, sizeof(*out));
        return true;
    }
    return false;
}
