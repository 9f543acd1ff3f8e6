/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of providers and the walk over it; options and environment; sets of keys.
 */
#include "transport/s3_credentials_internal.h"

#include "base/log.h"
#include "base/str.h"
#include "transport/aws_config.h"
#include "transport/http.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* --- setup --- */

static enum dctf_err copy(const char *text, char **out)
{
    *out = strdup(text ? text : "");
    return *out ? DCTF_OK : DCTF_ERR_NO_MEMORY;
}

enum dctf_err dctf_cred_setup_init(
    struct dctf_cred_setup *setup, const struct dctf_s3_credentials_config *config)
{
    const struct {
        const char *from;
        char **to;
    } texts[] = {
        {config->access_key_id, &setup->access_key_id},
        {config->secret_access_key, &setup->secret_access_key},
        {config->session_token, &setup->session_token},
        {config->profile, &setup->profile},
        {config->config_file, &setup->config_file},
        {config->credentials_file, &setup->credentials_file},
        {config->region, &setup->region},
        {config->ca_file, &setup->ca_file},
        {config->ca_dir, &setup->ca_dir},
    };
    enum dctf_err err = DCTF_OK;

    memset(setup, 0, sizeof(*setup));
    for (size_t i = 0; !err && i < sizeof(texts) / sizeof(texts[0]); i++)
        err = copy(texts[i].from, texts[i].to);
    setup->env = config->env;
    if (config->clock)
        setup->clock = *config->clock;
    setup->call_timeout_ms = config->call_timeout_ms ? config->call_timeout_ms : 5000;
    atomic_init(&setup->stop, false);
    atomic_init(&setup->warned, false);
    pthread_mutex_init(&setup->lock, NULL);
    dctf_list_init(&setup->calls);
    if (err)
        dctf_cred_setup_fini(setup);
    return err;
}

void dctf_cred_setup_fini(struct dctf_cred_setup *setup)
{
    pthread_mutex_destroy(&setup->lock);
    free(setup->access_key_id);
    dctf_cred_wipe(setup->secret_access_key);
    dctf_cred_wipe(setup->session_token);
    free(setup->profile);
    free(setup->config_file);
    free(setup->credentials_file);
    free(setup->region);
    free(setup->ca_file);
    free(setup->ca_dir);
}

void dctf_cred_setup_stop(struct dctf_cred_setup *setup)
{
    atomic_store(&setup->stop, true);
    pthread_mutex_lock(&setup->lock);
    for (struct dctf_list *node = setup->calls.next; node != &setup->calls; node = node->next) {
        struct dctf_cred_ongoing *call = dctf_list_entry(node, struct dctf_cred_ongoing, link);

        dctf_http_cancel(call->http, call->request);
    }
    pthread_mutex_unlock(&setup->lock);
}

const char *dctf_cred_env(const struct dctf_cred_setup *setup, const char *name)
{
    char *const *env = setup->env ? setup->env : environ;
    size_t len = strlen(name);

    for (; env && *env; env++)
        if (!strncmp(*env, name, len) && (*env)[len] == '=')
            return (*env)[len + 1] ? *env + len + 1 : NULL;
    return NULL;
}

bool dctf_cred_env_true(const struct dctf_cred_setup *setup, const char *name)
{
    const char *value = dctf_cred_env(setup, name);

    return value && !strcasecmp(value, "true");
}

/* --- sets --- */

void dctf_cred_wipe(char *secret)
{
    if (!secret)
        return;
    explicit_bzero(secret, strlen(secret));
    free(secret);
}

void dctf_cred_wipe_str(struct dctf_str *secret)
{
    if (secret->data)
        explicit_bzero(secret->data, secret->cap);
    dctf_str_fini(secret);
}

void dctf_cred_mask(const char *access_key_id, char out[24])
{
    size_t len = strlen(access_key_id);

    if (len < 12)
        snprintf(out, 24, "%.2s…", access_key_id);
    else
        snprintf(out, 24, "%.4s…%s", access_key_id, access_key_id + len - 4);
}

/* Keys and tokens go into header lines: printable ASCII without blanks. */
static bool is_token(const char *text)
{
    for (; *text; text++)
        if (*text <= ' ' || *text > '~')
            return false;
    return true;
}

/* The size of the block that holds the set and its strings. */
static size_t keys_size(const char *access_key_id, const char *secret_access_key, const char *session_token)
{
    return sizeof(struct dctf_s3_keys) + strlen(access_key_id) + strlen(secret_access_key) +
           strlen(session_token) + 3;
}

enum dctf_err dctf_cred_keys_new(struct dctf_cred_walk *walk, const char *access_key_id,
    const char *secret_access_key, const char *session_token, uint64_t expires_ms, const char *source,
    struct dctf_s3_keys **out)
{
    struct dctf_s3_keys *keys;
    char *at;

    *out = NULL;
    if (!*access_key_id || !*secret_access_key)
        return dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_FAILED, "%s is empty",
            *access_key_id ? "the secret access key" : "the access key");
    if (!is_token(access_key_id) || !is_token(secret_access_key) || !is_token(session_token))
        return dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_FAILED,
            "key, secret or session token holds a space or another character that none has");
    keys = malloc(keys_size(access_key_id, secret_access_key, session_token));
    if (!keys)
        return dctf_cred_why(walk, DCTF_ERR_NO_MEMORY, "out of memory");
    at = (char *)(keys + 1);
    keys->access_key_id = at;
    at = stpcpy(at, access_key_id) + 1;
    keys->secret_access_key = at;
    at = stpcpy(at, secret_access_key) + 1;
    keys->session_token = at;
    strcpy(at, session_token);
    keys->expires_ms = expires_ms;
    snprintf(keys->source, sizeof(keys->source), "%s", source);
    keys->refs = 1;
    *out = keys;
    return DCTF_OK;
}

void dctf_s3_keys_unref(struct dctf_s3_keys *keys)
{
    if (!keys || __atomic_sub_fetch(&keys->refs, 1, __ATOMIC_ACQ_REL))
        return;
    explicit_bzero(keys, keys_size(keys->access_key_id, keys->secret_access_key, keys->session_token));
    free(keys);
}

/* --- walk --- */

void dctf_cred_walk_init(struct dctf_cred_walk *walk, struct dctf_cred_setup *setup)
{
    memset(walk, 0, sizeof(*walk));
    walk->setup = setup;
    walk->call_timeout_ms = setup->call_timeout_ms;
}

void dctf_cred_walk_fini(struct dctf_cred_walk *walk)
{
    for (size_t i = 0; i < DCTF_CRED_NETS; i++)
        if (walk->http[i])
            dctf_http_free(walk->http[i]);
    dctf_aws_config_free(walk->config);
    dctf_aws_config_free(walk->credentials);
}

void dctf_cred_explain(struct dctf_cred_walk *walk, const char *format, ...)
{
    /* The arguments may point into the old text. */
    char why[sizeof(walk->why)];
    va_list args;

    va_start(args, format);
    vsnprintf(why, sizeof(why), format, args);
    va_end(args);
    for (char *at = why; *at; at++)
        if ((unsigned char)*at < ' ' || *at == 0x7f)
            *at = '?';
    memcpy(walk->why, why, sizeof(why));
}

static enum dctf_err ask_options(struct dctf_cred_walk *walk, struct dctf_s3_keys **out)
{
    const struct dctf_cred_setup *setup = walk->setup;

    if (!*setup->access_key_id && !*setup->secret_access_key)
        return dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_NONE, "none");
    return dctf_cred_keys_new(walk, setup->access_key_id, setup->secret_access_key, setup->session_token,
        UINT64_MAX, "options", out);
}

enum dctf_err dctf_cred_ask_environment(struct dctf_cred_walk *walk, struct dctf_s3_keys **out)
{
    const char *key = dctf_cred_env(walk->setup, "AWS_ACCESS_KEY_ID");
    const char *secret = dctf_cred_env(walk->setup, "AWS_SECRET_ACCESS_KEY");
    const char *token = dctf_cred_env(walk->setup, "AWS_SESSION_TOKEN");

    if (!key && !secret)
        return dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_NONE, "AWS_ACCESS_KEY_ID not set");
    if (!key || !secret)
        return dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_FAILED, "%s is set, %s is not",
            key ? "AWS_ACCESS_KEY_ID" : "AWS_SECRET_ACCESS_KEY",
            key ? "AWS_SECRET_ACCESS_KEY" : "AWS_ACCESS_KEY_ID");
    return dctf_cred_keys_new(walk, key, secret, token ? token : "", UINT64_MAX, "environment", out);
}

/* As in AWS's own tools, a profile that the caller asked for outranks the environment. */
static enum dctf_err ask_environment(struct dctf_cred_walk *walk, struct dctf_s3_keys **out)
{
    if (*walk->setup->profile)
        return dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_NONE, "not asked, the profile is given");
    return dctf_cred_ask_environment(walk, out);
}

static const struct {
    const char *name; /* for people */
    dctf_cred_ask *ask;
    bool instant; /* reads no file, asks nobody */
} providers[] = {
    {"options", ask_options, true},
    {"environment", ask_environment, true},
    {"profile", dctf_cred_ask_profile, false},
    {"web identity", dctf_cred_ask_web_identity, false},
    {"container", dctf_cred_ask_container, false},
    {"IMDS", dctf_cred_ask_imds, false},
};
#define PROVIDERS (sizeof(providers) / sizeof(providers[0]))

/* Whether somebody named this provider, so that no other may stand in for it. */
static bool is_explicit(const struct dctf_cred_walk *walk, size_t i)
{
    bool named = false;

    if (providers[i].ask == ask_options)
        return true;
    if (providers[i].ask == dctf_cred_ask_profile)
        (void)dctf_cred_profile_name(walk->setup, &named);
    return named;
}

static void tell(struct dctf_cred_walk *walk, size_t i, struct dctf_str *trail)
{
    if (trail->len)
        dctf_str_puts(trail, "; ");
    if (providers[i].ask == dctf_cred_ask_profile)
        dctf_str_printf(
            trail, "profile %s: %s", dctf_cred_profile_name(walk->setup, &(bool){false}), walk->why);
    else
        dctf_str_printf(trail, "%s: %s", providers[i].name, walk->why);
}

enum dctf_err dctf_cred_walk_ask(struct dctf_cred_walk *walk, struct dctf_cred_span *span,
    struct dctf_str *trail, struct dctf_s3_keys **out)
{
    enum dctf_err result = DCTF_ERR_CREDENTIALS_NONE;
    size_t failed = PROVIDERS;

    *out = NULL;
    for (size_t i = span->first; i < span->end; i++) {
        enum dctf_err err = providers[i].ask(walk, out);

        if (err == DCTF_ERR_SHUTTING_DOWN || err == DCTF_ERR_NO_MEMORY)
            return err;
        if (!err) {
            *span = (struct dctf_cred_span){failed < i ? failed : i, i + 1};
            return DCTF_OK;
        }
        tell(walk, i, trail);
        if (err == DCTF_ERR_CREDENTIALS_NONE)
            continue;
        result = DCTF_ERR_CREDENTIALS_FAILED;
        failed = failed < i ? failed : i;
        if (!walk->quiet)
            dctf_log(DCTF_LOG_WARN, "s3", "err=%d credentials provider=\"%s\" failed: %s", (int)result,
                providers[i].name, walk->why);
        if (is_explicit(walk, i))
            break;
    }
    return result;
}

struct dctf_cred_span dctf_cred_span_all(void)
{
    return (struct dctf_cred_span){0, PROVIDERS};
}

struct dctf_cred_span dctf_cred_span_instant(void)
{
    size_t end = 0;

    while (end < PROVIDERS && providers[end].instant)
        end++;
    return (struct dctf_cred_span){0, end};
}
