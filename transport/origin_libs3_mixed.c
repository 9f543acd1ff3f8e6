/* SPDX-License-Identifier: Apache-2.0
 *
 * What opening with libs3 gives: its origin, and beside it one of the default client, made when it is first
 * needed, for the objects that libs3 cannot name.
 *
 * libs3 2.0 sends '+' for a space, and there is no way around it: what it signs and what it sends is
 * the key as it encodes it ('%' becomes "%25"), and the only part of a URL that it does not encode, the
 * bucket's name, it checks. Listings and heads carry the key in a query that is encoded here, so only
 * ranges are handed over.
 *
 * Threads:   any thread. `curl` is set once, under the lock.
 * Ownership: both origins are this one's; what opening was given is kept, as far as it is not borrowed
 *            for life.
 */
#include "transport/origin_libs3_internal.h"

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

struct mixed {
    struct dctf_origin base; /* first */
    struct dctf_origin *libs3;
    bool plain[256];
    bool prefix_is_plain;
    char *source;
    struct dctf_config defaults; /* what config.options are, when there were none */
    struct dctf_origin_config config;
    pthread_mutex_t lock;
    struct dctf_origin *curl; /* guarded by lock; NULL: not needed yet */
    bool closing;             /* guarded by lock */
};

static bool is_plain(const bool plain[256], const char *text)
{
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (!plain[*c])
            return false;
    }
    return true;
}

/* The default client's origin, made now if there is none. */
static enum dctf_err need_curl(struct mixed *mixed, struct dctf_origin **out)
{
    enum dctf_err err = DCTF_OK;
    bool made = false;

    pthread_mutex_lock(&mixed->lock);
    if (mixed->closing) {
        err = DCTF_ERR_SHUTTING_DOWN;
    } else if (!mixed->curl) {
        err = dctf_origin_curl_open(&mixed->config, &mixed->curl);
        made = !err;
    }
    *out = mixed->curl;
    pthread_mutex_unlock(&mixed->lock);
    if (made)
        dctf_log(DCTF_LOG_INFO, "s3",
            "client=libs3 keys with a space, which libs3 cannot name, are read with the default client");
    return err;
}

static struct dctf_origin *curl_of(struct mixed *mixed)
{
    struct dctf_origin *curl;

    pthread_mutex_lock(&mixed->lock);
    curl = mixed->curl;
    pthread_mutex_unlock(&mixed->lock);
    return curl;
}

static enum dctf_err mixed_get(struct dctf_origin *base, struct dctf_origin_get *get)
{
    struct mixed *mixed = (struct mixed *)base;
    struct dctf_origin *origin = mixed->libs3;

    if (!mixed->prefix_is_plain || !is_plain(mixed->plain, get->key)) {
        enum dctf_err err = need_curl(mixed, &origin);

        if (err)
            return err;
    }
    return origin->ops->get(origin, get);
}

/* The key may be gone by now: the one that does not hold the request ignores it. */
static void mixed_cancel_get(struct dctf_origin *base, struct dctf_origin_get *get)
{
    struct mixed *mixed = (struct mixed *)base;
    struct dctf_origin *curl = curl_of(mixed);

    mixed->libs3->ops->cancel_get(mixed->libs3, get);
    if (curl)
        curl->ops->cancel_get(curl, get);
}

static enum dctf_err mixed_list(struct dctf_origin *base, struct dctf_origin_list *list)
{
    struct dctf_origin *libs3 = ((struct mixed *)base)->libs3;

    return libs3->ops->list(libs3, list);
}

static void mixed_cancel_list(struct dctf_origin *base, struct dctf_origin_list *list)
{
    struct dctf_origin *libs3 = ((struct mixed *)base)->libs3;

    libs3->ops->cancel_list(libs3, list);
}

static enum dctf_err mixed_head(struct dctf_origin *base, struct dctf_origin_head *head)
{
    struct dctf_origin *libs3 = ((struct mixed *)base)->libs3;

    return libs3->ops->head(libs3, head);
}

static void mixed_cancel_head(struct dctf_origin *base, struct dctf_origin_head *head)
{
    struct dctf_origin *libs3 = ((struct mixed *)base)->libs3;

    libs3->ops->cancel_head(libs3, head);
}

static enum dctf_err mixed_check(struct dctf_origin *base, uint64_t deadline_ms, char *detail)
{
    struct dctf_origin *libs3 = ((struct mixed *)base)->libs3;

    return libs3->ops->check(libs3, deadline_ms, detail);
}

static void mixed_examine(struct dctf_origin *base, uint64_t deadline_ms,
    void (*step)(void *ctx, const struct dctf_origin_step *step), void *ctx)
{
    struct dctf_origin *libs3 = ((struct mixed *)base)->libs3;

    libs3->ops->examine(libs3, deadline_ms, step, ctx);
}

static void mixed_free(struct mixed *mixed)
{
    if (mixed->config.options == &mixed->defaults)
        dctf_config_fini(&mixed->defaults);
    pthread_mutex_destroy(&mixed->lock);
    free(mixed->source);
    free(mixed);
}

static void mixed_close(struct dctf_origin *base, uint64_t wait_ms)
{
    struct mixed *mixed = (struct mixed *)base;
    uint64_t due_ms = dctf_clock_mono_ms(NULL) + wait_ms;
    uint64_t now_ms;
    struct dctf_origin *curl;

    pthread_mutex_lock(&mixed->lock);
    mixed->closing = true;
    curl = mixed->curl;
    pthread_mutex_unlock(&mixed->lock);
    if (curl)
        curl->ops->close(curl, wait_ms);
    now_ms = dctf_clock_mono_ms(NULL);
    mixed->libs3->ops->close(mixed->libs3, due_ms > now_ms ? due_ms - now_ms : 0);
    mixed_free(mixed);
}

static const struct dctf_origin_ops mixed_ops = {
    .scheme = "s3",
    .list = mixed_list,
    .head = mixed_head,
    .get = mixed_get,
    .cancel_list = mixed_cancel_list,
    .cancel_head = mixed_cancel_head,
    .cancel_get = mixed_cancel_get,
    .examine = mixed_examine,
    .check = mixed_check,
    .close = mixed_close,
};

static enum dctf_err keep_config(struct mixed *mixed, const struct dctf_origin_config *config)
{
    enum dctf_err err;

    mixed->config = *config;
    mixed->config.detail = NULL; /* the opener's */
    mixed->source = strdup(config->source);
    mixed->config.source = mixed->source;
    if (!mixed->source)
        return DCTF_ERR_NO_MEMORY;
    if (config->options)
        return DCTF_OK;
    err = dctf_config_init(&mixed->defaults);
    if (!err)
        mixed->config.options = &mixed->defaults;
    return err;
}

enum dctf_err dctf_origin_libs3_open(const struct dctf_origin_config *config, struct dctf_origin **out)
{
    struct mixed *mixed = calloc(1, sizeof(*mixed));
    struct dctf_libs3 *source = NULL;
    enum dctf_err err;

    *out = NULL;
    if (!mixed)
        return DCTF_ERR_NO_MEMORY;
    pthread_mutex_init(&mixed->lock, NULL);
    mixed->base.ops = &mixed_ops;
    err = keep_config(mixed, config);
    if (!err)
        err = dctf_libs3_open(&mixed->config, config->detail, &source, &mixed->libs3);
    if (err) {
        mixed_free(mixed);
        return err;
    }
    memcpy(mixed->plain, source->plain, sizeof(mixed->plain));
    mixed->prefix_is_plain = is_plain(mixed->plain, source->address.prefix);
    *out = &mixed->base;
    return DCTF_OK;
}
