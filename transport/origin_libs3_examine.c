/* SPDX-License-Identifier: Apache-2.0
 *
 * Looking at the source through libs3: credentials, a listing, and the first and last bytes of one
 * of its objects. Every look runs on a thread of the origin, so that the caller's wait is bounded.
 */
#include "transport/origin_libs3_internal.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLE_KEYS 100
#define SAMPLE_BYTES 65536

enum look { LOOK_CHECK, LOOK_CREDENTIALS, LOOK_LIST, LOOK_GET, LOOK_RANGE };

static void set_sample(struct dctf_libs3 *libs3, const struct dctf_s3_object *object)
{
    pthread_mutex_lock(&libs3->lock);
    free(libs3->sample_key);
    free(libs3->sample_etag);
    libs3->sample_key = object ? strdup(object->key) : NULL;
    libs3->sample_etag = object ? strdup(object->etag) : NULL;
    libs3->sample_size = object ? object->size : 0;
    pthread_mutex_unlock(&libs3->lock);
}

/* The first keys below the mount; a sample is the first of them that can be read. */
static enum dctf_err look_list(struct dctf_libs3 *libs3, unsigned max_keys, char *detail)
{
    struct dctf_libs3_page page = {.prefix = libs3->address.prefix, .max_keys = max_keys};
    const struct dctf_s3_object *sample = NULL;
    struct dctf_s3_list found;
    char ignored[DCTF_LIBS3_DETAIL_BYTES];
    enum dctf_err err = dctf_libs3_page(libs3, &page, &found);

    if (err) {
        memcpy(detail, page.detail, sizeof(page.detail));
        return err;
    }
    for (size_t i = 0; !sample && i < found.count; i++) {
        const struct dctf_s3_object *object = &found.objects[i];

        if (object->size > 0 && dctf_libs3_key_check(libs3, object->key, ignored) == DCTF_OK)
            sample = object;
    }
    set_sample(libs3, sample);
    snprintf(detail, DCTF_LIBS3_DETAIL_BYTES, "%zu%s keys, libs3 %s, Signature Version 2", found.count,
        found.truncated ? " and more" : "", dctf_libs3_version());
    dctf_s3_list_fini(&found);
    return DCTF_OK;
}

static enum dctf_err look_credentials(struct dctf_libs3 *libs3, char *detail)
{
    struct dctf_s3_keys *keys;
    enum dctf_err err = dctf_libs3_keys(libs3, &keys, detail);

    if (err)
        return err;
    dctf_s3_keys_unref(keys);
    dctf_s3_credentials_describe(libs3->credentials, detail, DCTF_LIBS3_DETAIL_BYTES);
    return DCTF_OK;
}

/* The beginning of the sample, or its last byte; DCTF_ERR_NOT_FOUND without one. */
static enum dctf_err look_object(struct dctf_libs3 *libs3, bool last, char *detail)
{
    struct dctf_libs3_call call = {0};
    char *key;
    char *etag;
    uint64_t size;
    void *buf = malloc(SAMPLE_BYTES);
    enum dctf_err err = DCTF_ERR_NO_MEMORY;

    pthread_mutex_lock(&libs3->lock);
    key = libs3->sample_key ? strdup(libs3->sample_key) : NULL;
    etag = libs3->sample_etag ? strdup(libs3->sample_etag) : NULL;
    size = libs3->sample_size;
    pthread_mutex_unlock(&libs3->lock);
    if (!key || !etag) {
        snprintf(detail, DCTF_LIBS3_DETAIL_BYTES, "no object to read");
        err = DCTF_ERR_NOT_FOUND;
    } else if (buf) {
        call.key = key;
        call.etag = etag;
        call.offset = last ? size - 1 : 0;
        call.len = last ? 1 : size < SAMPLE_BYTES ? (size_t)size : SAMPLE_BYTES;
        call.buf = buf;
        err = dctf_libs3_get(libs3, &call);
        snprintf(detail, DCTF_LIBS3_DETAIL_BYTES, "%zu of %zu bytes%s%.200s", call.got, call.len,
            *call.detail ? ": " : "", call.detail);
    }
    free(buf);
    free(key);
    free(etag);
    return err;
}

enum dctf_err dctf_libs3_probe(void *source, unsigned what, char *detail)
{
    struct dctf_libs3 *libs3 = source;
    char words[DCTF_LIBS3_DETAIL_BYTES];
    enum dctf_err err;

    switch ((enum look)what) {
    case LOOK_CREDENTIALS:
        return look_credentials(libs3, detail);
    case LOOK_LIST:
        return look_list(libs3, SAMPLE_KEYS, detail);
    case LOOK_GET:
        return look_object(libs3, false, detail);
    case LOOK_RANGE:
        return look_object(libs3, true, detail);
    case LOOK_CHECK:
        break;
    }
    err = look_list(libs3, 1, words);
    detail[0] = '\0';
    if (err)
        snprintf(detail, DCTF_LIBS3_DETAIL_BYTES, "s3://%s/%.64s: %.100s", libs3->address.bucket,
            libs3->address.prefix, words);
    return err;
}

void dctf_libs3_examine(struct dctf_origin *origin, uint64_t deadline_ms,
    void (*step)(void *ctx, const struct dctf_origin_step *step), void *ctx)
{
    static const char *const names[] = {
        [LOOK_CREDENTIALS] = "credentials", [LOOK_LIST] = "list", [LOOK_GET] = "get", [LOOK_RANGE] = "range"};
    uint64_t due_ms = dctf_clock_mono_ms(NULL) + deadline_ms;
    enum dctf_err ended = DCTF_OK;

    for (unsigned what = LOOK_CREDENTIALS; what <= LOOK_RANGE; what++) {
        uint64_t now_ms = dctf_clock_mono_ms(NULL);
        char detail[DCTF_LIBS3_DETAIL_BYTES] = "not looked at";
        struct dctf_origin_step result = {
            .name = names[what], .err = ended, .skipped = ended != DCTF_OK, .text = detail};

        if (!ended)
            result.err = dctf_blocking_probe(origin, what, due_ms > now_ms ? due_ms - now_ms : 0, detail);
        if (result.err == DCTF_ERR_NOT_FOUND && what >= LOOK_GET) { /* nothing to read: no failure */
            result.err = DCTF_OK;
            result.skipped = true;
        }
        ended = result.err;
        step(ctx, &result);
    }
}
