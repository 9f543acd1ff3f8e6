/* SPDX-License-Identifier: Apache-2.0
 *
 * The source, step by step, from the name of its host to a range of an object. A step that
 * fails ends what depends on it.
 */
#include "transport/s3_internal.h"

#include "transport/s3_reach.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEP_MS_MIN 100u
#define LIST_KEYS 16u
#define GET_BYTES 65536u
#define RANGE_BYTES 1024u
/* AWS refuses at 15 minutes; a clock that is this far off will be there soon. */
#define CLOCK_BAD_S 600
#define CLOCK_GOOD_S 5

struct look {
    struct dctf_s3 *s3;
    struct dctf_s3_place *place;
    void (*step)(void *ctx, const struct dctf_origin_step *step);
    void *ctx;
    uint64_t due_ms;
    enum dctf_err broken; /* nothing further can be looked at */
    struct dctf_s3_answer front;
    /* An object to read. */
    char *key;
    char *etag;
    uint64_t size;
};

static DCTF_PRINTF(5, 6) void tell(
    struct look *look, const char *name, enum dctf_err err, const char *remedy, const char *format, ...)
{
    char text[512];
    struct dctf_origin_step step = {.name = name, .err = err, .text = text, .remedy = remedy};
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    look->step(look->ctx, &step);
}

static void skip(struct look *look, const char *name, const char *why)
{
    struct dctf_origin_step step = {.name = name, .err = look->broken, .skipped = true, .text = why};

    look->step(look->ctx, &step);
}

static uint64_t left_ms(const struct look *look)
{
    uint64_t now_ms = dctf_clock_mono_ms(NULL);

    return look->due_ms > now_ms + STEP_MS_MIN ? look->due_ms - now_ms : STEP_MS_MIN;
}

static enum dctf_err call(struct look *look, struct dctf_s3_call *ask, struct dctf_s3_answer *answer)
{
    enum dctf_err err;

    ask->due_ms = dctf_clock_mono_ms(NULL) + left_ms(look);
    ask->quiet = true;
    err = dctf_s3_call(look->s3, ask, answer);
    if (err && !answer->detail[0])
        snprintf(answer->detail, sizeof(answer->detail), "%.200s", dctf_err_text(err));
    return err;
}

/* --- the way there --- */

static void look_at_network(struct look *look)
{
    const struct dctf_s3_address *address = &look->place->address;
    uint64_t begun_ms = dctf_clock_mono_ms(NULL);
    struct dctf_reach_addresses *found = NULL;
    const char *proxy = dctf_reach_proxy(address->scheme, address->host);
    char detail[256];
    enum dctf_err err;

    if (proxy) {
        skip(look, "dns", "a proxy is set in the environment: it looks names up");
        skip(look, "tcp", "a proxy is set in the environment: it makes the connection");
        return;
    }
    err = dctf_reach_resolve(address->host, address->scheme, left_ms(look), &found, detail);
    if (err) {
        tell(look, "dns", err, "check the endpoint's name and this machine's resolver", "%s", detail);
        look->broken = err;
        skip(look, "tcp", "something before it failed");
        return;
    }
    tell(look, "dns", DCTF_OK, NULL, "%s is %s", address->host, detail);
    begun_ms = dctf_clock_mono_ms(NULL);
    err = dctf_reach_connect(found,
        look->s3->connect_timeout_ms < left_ms(look) ? look->s3->connect_timeout_ms : left_ms(look), detail);
    dctf_reach_addresses_free(found);
    if (err) {
        tell(look, "tcp", err, "check the endpoint's port, routes and firewalls", "%s", detail);
        look->broken = err;
        return;
    }
    tell(look, "tcp", DCTF_OK, NULL, "connected to %s in %" PRIu64 " ms", detail,
        dctf_clock_mono_ms(NULL) - begun_ms);
}

/* One unsigned request: any answer will do, its head has clock and region. */
static void look_at_front(struct look *look)
{
    bool https = strcmp(look->place->address.scheme, "https") == 0;
    struct dctf_s3_call ask = {.op = DCTF_S3_HEAD, .plain = true};
    enum dctf_err err = call(look, &ask, &look->front);

    if (look->front.status == 0) {
        tell(look, "tls", err, err == DCTF_ERR_ORIGIN_TLS ? NULL : "check that an S3 service listens there",
            "%s%s", https ? "" : "not used, and an http request got no answer: ", look->front.detail);
        look->broken = err;
    } else if (https) {
        tell(look, "tls", DCTF_OK, NULL, "the certificate is trusted; an answer came in %" PRIu64 " ms%s%s",
            look->front.total_ns / 1000000, look->front.server[0] ? ", from " : "", look->front.server);
    } else {
        skip(look, "tls", "not used: the endpoint is http, so that others may read along");
    }
}

static void look_at_clock(struct look *look)
{
    int64_t theirs_s, off_s;

    if (!look->front.date[0] || !dctf_s3_date_parse(look->front.date, &theirs_s)) {
        skip(look, "clock", "the service does not tell the time");
        return;
    }
    off_s = (int64_t)(dctf_clock_wall_ms(&look->s3->clock) / 1000) - theirs_s;
    if (llabs((long long)off_s) >= CLOCK_BAD_S)
        tell(look, "clock", DCTF_ERR_CLOCK_SKEW, NULL,
            "this machine's clock is %" PRId64 " s off the service's", off_s);
    else if (llabs((long long)off_s) > CLOCK_GOOD_S)
        tell(look, "clock", DCTF_OK, NULL,
            "this machine's clock is %" PRId64 " s off the service's: within what is tolerated", off_s);
    else
        tell(look, "clock", DCTF_OK, NULL, "agrees with the service's");
}

/* --- who we are --- */

static void look_at_credentials(struct look *look)
{
    struct dctf_s3 *s3 = look->s3;
    struct dctf_s3_keys *keys;
    char words[400];
    enum dctf_err err;

    if (!s3->credentials) {
        tell(look, "credentials", DCTF_OK, NULL, "none: the bucket is read anonymously");
        return;
    }
    err = dctf_s3_credentials_get(s3->credentials, left_ms(look), &keys);
    dctf_s3_credentials_describe(s3->credentials, words, sizeof(words));
    tell(look, "credentials", err, NULL, "%s", words);
    if (err)
        look->broken = err;
    else
        dctf_s3_keys_unref(keys);
}

static void look_at_region(struct look *look)
{
    const char *ours = look->place->address.region;
    const char *theirs = look->front.region;

    if (look->front.error.code[0] && strcmp(look->front.error.code, "NoSuchBucket") == 0)
        theirs = "";
    if (!dctf_s3_is_region(theirs)) {
        skip(look, "region", "the service names none");
        return;
    }
    if (strcmp(ours, theirs) == 0) {
        tell(look, "region", DCTF_OK, NULL, "%s, as the service says", ours);
        return;
    }
    (void)dctf_s3_place_learn(look->s3, look->place, theirs);
    tell(look, "region", DCTF_OK, NULL,
        "the bucket is in %s, not in %s: requests go there; region=%s spares the detour", theirs, ours,
        theirs);
}

/* --- what is there --- */

/* Take the first object with bytes in it. */
static enum dctf_err choose(struct look *look, const struct dctf_s3_list *list)
{
    size_t skip_len = strlen(look->place->address.prefix);

    for (size_t i = 0; i < list->count && !look->key; i++) {
        const struct dctf_s3_object *object = &list->objects[i];

        if (object->is_prefix || object->size == 0 || strlen(object->key) <= skip_len)
            continue;
        look->key = strdup(object->key + skip_len);
        look->etag = strdup(object->etag);
        look->size = object->size;
        if (!look->key || !look->etag)
            return DCTF_ERR_NO_MEMORY;
    }
    return DCTF_OK;
}

static void look_at_list(struct look *look)
{
    struct dctf_s3_call ask = {.op = DCTF_S3_LIST};
    struct dctf_s3_answer answer;
    struct dctf_s3_list list;
    struct dctf_str query;
    enum dctf_err err;

    memset(&answer, 0, sizeof(answer));
    dctf_str_init(&query);
    dctf_s3_list_query(&query, look->place->address.prefix, false, LIST_KEYS, NULL);
    ask.query = query.data;
    err = query.err ? query.err : call(look, &ask, &answer);
    if (!err)
        err = dctf_s3_list_parse(answer.body ? answer.body : "", answer.len, &list);
    if (err) {
        tell(look, "list", err, NULL, "%s",
            answer.detail[0] ? answer.detail : "an answer came, but no listing: is it an S3 service?");
        look->broken = err;
    } else {
        size_t count = list.count;

        err = choose(look, &list);
        tell(look, "list", err, NULL, "%s%zu %s in %" PRIu64 " ms", list.truncated ? "at least " : "", count,
            count == 1 ? "object" : "objects", answer.total_ns / 1000000);
        dctf_s3_list_fini(&list);
    }
    dctf_s3_answer_fini(&answer);
    dctf_str_fini(&query);
}

/* One range of the object, as reads ask for it. What does not fit is said in answer->detail. */
static enum dctf_err read_range(
    struct look *look, uint64_t first, uint64_t len, const char *etag, struct dctf_s3_answer *answer)
{
    struct dctf_s3_call ask = {
        .op = DCTF_S3_GET, .key = look->key, .if_match = etag, .first = first, .len = len};
    uint64_t from = 0, last = look->size - 1, total = look->size;
    enum dctf_err err = call(look, &ask, answer);

    if (err)
        return err;
    if (answer->status == 206 && !dctf_s3_content_range_parse(answer->content_range, &from, &last, &total))
        err = DCTF_ERR_BAD_RESPONSE;
    if (!err && (from != first || last != first + len - 1 || total != look->size))
        err = DCTF_ERR_BAD_RESPONSE;
    if (err)
        snprintf(answer->detail, sizeof(answer->detail),
            "asked for bytes %" PRIu64 "-%" PRIu64 " of %" PRIu64
            ", got HTTP %d with content-range \"%.60s\"",
            first, first + len - 1, look->size, answer->status, answer->content_range);
    else if (answer->len != len)
        err = DCTF_ERR_SHORT_BODY;
    if (err == DCTF_ERR_SHORT_BODY)
        snprintf(answer->detail, sizeof(answer->detail), "%zu bytes came of %" PRIu64, answer->len, len);
    return err;
}

static void look_at_get(struct look *look)
{
    uint64_t len = look->size < GET_BYTES ? look->size : GET_BYTES;
    struct dctf_s3_answer answer;
    char key[128];
    enum dctf_err err = read_range(look, 0, len, look->etag, &answer);

    dctf_str_quote(look->key, key, sizeof(key));
    if (err)
        tell(look, "get", err, NULL, "%s: %s", key, answer.detail);
    else
        tell(look, "get", DCTF_OK, NULL, "%" PRIu64 " bytes of %s in %" PRIu64 " ms", len, key,
            answer.total_ns / 1000000);
    dctf_s3_answer_fini(&answer);
}

/* A range from the middle; and whether another version is refused. */
static void look_at_range(struct look *look)
{
    uint64_t first = look->size / 2;
    uint64_t len = look->size - first < RANGE_BYTES ? look->size - first : RANGE_BYTES;
    struct dctf_s3_answer answer;
    enum dctf_err err = read_range(look, first, len, look->etag, &answer);

    if (err) {
        tell(look, "range", err, NULL, "%s", answer.detail);
        dctf_s3_answer_fini(&answer);
        return;
    }
    dctf_s3_answer_fini(&answer);
    err = read_range(look, first, len, "dctf-doctor-no-such-version", &answer);
    if (err == DCTF_ERR_VERSION_MISMATCH)
        tell(look, "range", DCTF_OK, NULL, "ranges are exact, and other versions are refused (If-Match)");
    else
        tell(look, "range", DCTF_OK, NULL,
            "ranges are exact; If-Match is ignored, so that versions are told by the ETag of each answer");
    dctf_s3_answer_fini(&answer);
}

void dctf_s3_examine(struct dctf_origin *origin, uint64_t deadline_ms,
    void (*step)(void *ctx, const struct dctf_origin_step *step), void *ctx)
{
    static const struct {
        const char *name;
        void (*run)(struct look *look);
        bool needs_object;
    } steps[] = {
        {"dns", look_at_network, false}, /* and tcp */
        {"tls", look_at_front, false},
        {"clock", look_at_clock, false},
        {"credentials", look_at_credentials, false},
        {"region", look_at_region, false},
        {"list", look_at_list, false},
        {"get", look_at_get, true},
        {"range", look_at_range, true},
    };
    struct dctf_s3 *s3 = (struct dctf_s3 *)origin;
    struct look look = {.s3 = s3, .step = step, .ctx = ctx};

    look.due_ms = dctf_clock_mono_ms(NULL) + deadline_ms;
    look.place = dctf_s3_place_get(s3);
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        if (look.broken)
            skip(&look, steps[i].name, "something before it failed");
        else if (steps[i].needs_object && !look.key)
            skip(&look, steps[i].name, "there is no object to read");
        else
            steps[i].run(&look);
    }
    dctf_s3_answer_fini(&look.front);
    dctf_s3_place_unref(look.place);
    free(look.key);
    free(look.etag);
}
