/* SPDX-License-Identifier: Apache-2.0
 *
 * S3 as an origin: what its parts share, from open to close. The parts: s3_internal.h.
 */
#include "transport/s3_internal.h"

#include "base/config.h"
#include "base/log.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PARSERS 2u
#define PARSE_QUEUE 1024u
/* Beside the scheduler's requests: calls of check and examine, and tries that overlap. */
#define SPARE_CONNECTIONS 4u

/* --- tasks --- */

void dctf_s3_task_ref(struct dctf_s3_task *task)
{
    __atomic_add_fetch(&task->refs, 1, __ATOMIC_RELAXED);
}

void dctf_s3_task_unref(struct dctf_s3_task *task)
{
    struct dctf_s3 *s3 = task->s3;

    if (__atomic_sub_fetch(&task->refs, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    task->free(task);
    pthread_mutex_lock(&s3->lock);
    s3->alive--;
    pthread_cond_broadcast(&s3->idle);
    pthread_mutex_unlock(&s3->lock); /* the last use of the origin: close() may go on */
}

enum dctf_err dctf_s3_task_begin(struct dctf_s3_task *task)
{
    struct dctf_s3 *s3 = task->s3;
    enum dctf_err err = DCTF_OK;

    task->refs = 1;
    dctf_list_init(&task->link);
    pthread_mutex_lock(&s3->lock);
    if (s3->closing) {
        err = DCTF_ERR_SHUTTING_DOWN;
    } else {
        dctf_list_push_back(&s3->tasks, &task->link);
        s3->alive++;
    }
    pthread_mutex_unlock(&s3->lock);
    return err;
}

void dctf_s3_task_end(struct dctf_s3_task *task)
{
    pthread_mutex_lock(&task->s3->lock);
    dctf_list_remove(&task->link);
    pthread_mutex_unlock(&task->s3->lock);
}

static void cancel_owner(struct dctf_origin *origin, const void *owner)
{
    struct dctf_s3 *s3 = (struct dctf_s3 *)origin;
    struct dctf_s3_task *found = NULL;

    pthread_mutex_lock(&s3->lock);
    for (struct dctf_list *node = s3->tasks.next; node != &s3->tasks && !found; node = node->next) {
        struct dctf_s3_task *task = dctf_list_entry(node, struct dctf_s3_task, link);

        if (task->owner == owner)
            found = task;
    }
    if (found)
        dctf_s3_task_ref(found);
    pthread_mutex_unlock(&s3->lock);
    if (!found)
        return;
    found->cancel(found);
    dctf_s3_task_unref(found);
}

static void cancel_get(struct dctf_origin *origin, struct dctf_origin_get *get)
{
    cancel_owner(origin, get);
}

static void cancel_list(struct dctf_origin *origin, struct dctf_origin_list *list)
{
    cancel_owner(origin, list);
}

static void cancel_head(struct dctf_origin *origin, struct dctf_origin_head *head)
{
    cancel_owner(origin, head);
}

/* Cancel every task there is; none comes any more. */
static void cancel_all(struct dctf_s3 *s3)
{
    struct dctf_s3_task *found;

    do { /* one at a time, since the lock is let go for each */
        found = NULL;
        pthread_mutex_lock(&s3->lock);
        for (struct dctf_list *node = s3->tasks.next; node != &s3->tasks && !found; node = node->next) {
            struct dctf_s3_task *task = dctf_list_entry(node, struct dctf_s3_task, link);

            if (!task->cancelled)
                found = task;
        }
        if (found) {
            found->cancelled = true;
            dctf_s3_task_ref(found);
        }
        pthread_mutex_unlock(&s3->lock);
        if (found) {
            found->cancel(found);
            dctf_s3_task_unref(found);
        }
    } while (found);
}

/* --- counting --- */

void dctf_s3_count(struct dctf_s3 *s3, enum dctf_metric metric, int64_t delta)
{
    pthread_mutex_lock(&s3->lock);
    dctf_metric_add(s3->metrics, metric, delta);
    pthread_mutex_unlock(&s3->lock);
}

void dctf_s3_gauge(struct dctf_s3 *s3, enum dctf_metric metric, int64_t value)
{
    pthread_mutex_lock(&s3->lock);
    dctf_metric_set(s3->metrics, metric, value);
    pthread_mutex_unlock(&s3->lock);
}

/* --- end --- */

static void destroy(struct dctf_s3 *s3)
{
    dctf_http_free(s3->http);
    if (s3->credentials)
        dctf_s3_credentials_free(s3->credentials);
    if (s3->parsers)
        dctf_pool_free(s3->parsers);
    if (s3->timers)
        dctf_timers_free(s3->timers);
    dctf_s3_silence_free(s3->silence);
    dctf_s3_place_unref(s3->place);
    pthread_cond_destroy(&s3->idle);
    pthread_mutex_destroy(&s3->lock);
    free(s3->source);
    free(s3->endpoint);
    free(s3);
}

static void s3_close(struct dctf_origin *origin, uint64_t wait_ms)
{
    struct dctf_s3 *s3 = (struct dctf_s3 *)origin;
    uint64_t due_ms = dctf_clock_mono_ms(NULL) + wait_ms;
    struct timespec due = {(time_t)(due_ms / 1000), (long)(due_ms % 1000) * 1000000};
    size_t left;

    pthread_mutex_lock(&s3->lock);
    s3->closing = true;
    pthread_mutex_unlock(&s3->lock);
    cancel_all(s3);
    pthread_mutex_lock(&s3->lock);
    /* Credentials let go of the orphans when they end: no service is waited for. */
    while (s3->alive > s3->orphans && pthread_cond_timedwait(&s3->idle, &s3->lock, &due) == 0)
        ;
    left = s3->alive - s3->orphans;
    s3->metrics = NULL;
    pthread_mutex_unlock(&s3->lock);
    if (left > 0)
        dctf_log(DCTF_LOG_WARN, "s3", "requests=%zu do not end and are left behind err=%d", left,
            (int)DCTF_ERR_DEADLINE);
    else
        destroy(s3);
}

/* --- start --- */

static const struct dctf_origin_ops s3_ops = {
    .scheme = "s3",
    .list = dctf_s3_list,
    .head = dctf_s3_head,
    .get = dctf_s3_get,
    .cancel_list = cancel_list,
    .cancel_head = cancel_head,
    .cancel_get = cancel_get,
    .examine = dctf_s3_examine,
    .check = dctf_s3_check,
    .close = s3_close,
};

/* The endpoint that environment or profile name, where no option does. The address may hold what it must
 * not, a password for one, so it is not logged. */
static enum dctf_err configured_endpoint(struct dctf_s3 *s3, const struct dctf_s3_credentials_config *config)
{
    struct dctf_s3_credentials *credentials = s3->credentials;
    const char *where = NULL;
    char *url = NULL;
    enum dctf_err err = DCTF_OK;

    if (!credentials) /* anonymous */
        err = dctf_s3_credentials_new(config, &credentials);
    if (!err)
        err = dctf_s3_credentials_endpoint(credentials, &url, &where);
    if (url) {
        dctf_log(DCTF_LOG_INFO, "s3", "endpoint is that of %s", where);
        free(s3->endpoint);
        s3->endpoint = url;
    }
    if (!s3->credentials && credentials)
        dctf_s3_credentials_free(credentials);
    return err;
}

static enum dctf_err make_parts(
    struct dctf_s3 *s3, const struct dctf_origin_config *config, const struct dctf_config *options)
{
    unsigned lists = config->concurrency / 4 > 2 ? config->concurrency / 4 : 2;
    struct dctf_http_config http = {
        .connections = config->concurrency + lists + SPARE_CONNECTIONS,
        .connect_timeout_ms = options->connect_timeout_ms,
        .ca_file = options->ca_file,
        .ca_dir = options->ca_dir,
    };
    struct dctf_s3_credentials_config credentials = {
        .access_key_id = options->access_key_id,
        .secret_access_key = options->secret_access_key,
        .session_token = options->session_token,
        .profile = options->profile,
        .config_file = options->aws_config_file,
        .credentials_file = options->aws_credentials_file,
        .region = options->region,
        .ca_file = options->ca_file,
        .ca_dir = options->ca_dir,
        .clock = config->clock,
    };
    enum dctf_err err = dctf_s3_silence_new(options->stall_timeout_min_ms, options->stall_timeout_max_ms,
        options->list_deadline_ms, &s3->silence);

    if (!err)
        err = dctf_http_new(&http, &s3->http);
    if (!err && !s3->anonymous)
        err = dctf_s3_credentials_new(&credentials, &s3->credentials);
    if (!err && !s3->endpoint[0])
        err = configured_endpoint(s3, &credentials);
    if (!err)
        err = dctf_pool_new(&(struct dctf_pool_config){"dctf-s3-list", PARSERS, PARSE_QUEUE}, &s3->parsers);
    if (!err)
        err = dctf_timers_new(&s3->timers);
    return err;
}

/* Where the bucket is, as far as it can be told without asking anybody. */
static enum dctf_err find_place(struct dctf_s3 *s3, const struct dctf_config *options, char *detail)
{
    char region[64];

    snprintf(region, sizeof(region), "%s", options->region);
    if (!region[0] && s3->credentials) {
        dctf_s3_credentials_region(s3->credentials, false, 0, region);
    } else if (!region[0]) {
        const char *env = getenv("AWS_REGION");

        if (!env || !*env)
            env = getenv("AWS_DEFAULT_REGION");
        snprintf(region, sizeof(region), "%s", env ? env : "");
    }
    s3->region_given = region[0] != '\0';
    if (s3->region_given && !dctf_s3_is_region(region)) {
        if (detail)
            snprintf(detail, DCTF_S3_DETAIL_BYTES, "region: \"%.60s\" is not the name of one", region);
        return DCTF_ERR_OPTION_VALUE;
    }
    return dctf_s3_place_new(s3, s3->region_given ? region : "us-east-1", detail, &s3->place);
}

static enum dctf_err open_with(
    const struct dctf_origin_config *config, const struct dctf_config *options, struct dctf_origin **out)
{
    struct dctf_s3 *s3 = calloc(1, sizeof(*s3));
    enum dctf_err err;

    if (!s3)
        return DCTF_ERR_NO_MEMORY;
    err = dctf_thread_cond_init(&s3->idle);
    if (err) {
        free(s3);
        return err;
    }
    pthread_mutex_init(&s3->lock, NULL);
    dctf_list_init(&s3->tasks);
    s3->base.ops = &s3_ops;
    s3->source = strdup(config->source);
    s3->endpoint = strdup(options->endpoint);
    s3->style = (enum dctf_s3_style)options->path_style; /* the words are in its order */
    s3->anonymous = options->anonymous;
    s3->requester_pays = options->requester_pays;
    s3->read_deadline_ms = options->read_deadline_ms;
    s3->list_deadline_ms = options->list_deadline_ms;
    s3->connect_timeout_ms = options->connect_timeout_ms;
    s3->retries = (unsigned)options->origin_retries;
    s3->metrics = config->metrics;
    if (config->clock)
        s3->clock = *config->clock;
    s3->rng.state = dctf_rng_seed();
    err = s3->source && s3->endpoint ? DCTF_OK : DCTF_ERR_NO_MEMORY;
    if (!err)
        err = make_parts(s3, config, options);
    if (!err)
        err = find_place(s3, options, config->detail);
    if (err) {
        destroy(s3);
        return err;
    }
    *out = &s3->base;
    return DCTF_OK;
}

enum dctf_err dctf_origin_curl_open(const struct dctf_origin_config *config, struct dctf_origin **out)
{
    struct dctf_config defaults;
    enum dctf_err err;

    *out = NULL;
    assert(config->concurrency > 0);
    if (config->detail)
        config->detail[0] = '\0';
    if (config->options)
        return open_with(config, config->options, out);
    err = dctf_config_init(&defaults);
    if (err)
        return err;
    err = open_with(config, &defaults, out);
    dctf_config_fini(&defaults);
    return err;
}

enum dctf_err dctf_origin_s3_open(const struct dctf_origin_config *config, struct dctf_origin **out)
{
    if (config->options && config->options->s3_client == 1)
        return dctf_origin_libs3_open(config, out);
    return dctf_origin_curl_open(config, out);
}
