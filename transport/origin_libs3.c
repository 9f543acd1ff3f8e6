/* SPDX-License-Identifier: Apache-2.0
 *
 * S3 through the system's libs3; origin_libs3_internal.h says how. What the library cannot do
 * safely is refused when it is asked for, here at the start where that can be told.
 */
#include "transport/origin_libs3_internal.h"

#include "base/config.h"
#include "base/log.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEYS_WAIT_MS 5000

enum dctf_err dctf_libs3_keys(struct dctf_libs3 *libs3, struct dctf_s3_keys **out, char *detail)
{
    enum dctf_err err = dctf_s3_credentials_get(libs3->credentials, KEYS_WAIT_MS, out);

    if (err) {
        snprintf(detail, DCTF_LIBS3_DETAIL_BYTES, "%s", dctf_err_text(err));
        return err;
    }
    if (!(*out)->session_token[0])
        return DCTF_OK;
    snprintf(detail, DCTF_LIBS3_DETAIL_BYTES, "libs3 cannot sign with temporary credentials (%.64s)",
        (*out)->source);
    dctf_s3_keys_unref(*out);
    *out = NULL;
    return DCTF_ERR_S3_CLIENT_UNSAFE;
}

/* Whether curl, below the library, would take "." or ".." out of the path. */
static bool has_dots(const char *key)
{
    for (;;) {
        size_t len = strcspn(key, "/");

        if ((len == 1 && key[0] == '.') || (len == 2 && key[0] == '.' && key[1] == '.'))
            return true;
        if (!key[len])
            return false;
        key += len + 1;
    }
}

enum dctf_err dctf_libs3_key_check(const struct dctf_libs3 *libs3, const char *key, char *detail)
{
    if (strlen(key) > DCTF_LIBS3_KEY_MAX) {
        snprintf(detail, DCTF_LIBS3_DETAIL_BYTES, "the key is longer than %d bytes", DCTF_LIBS3_KEY_MAX);
        return DCTF_ERR_NAME_TOO_LONG;
    }
    if (has_dots(key)) {
        snprintf(detail, DCTF_LIBS3_DETAIL_BYTES, "libs3 cannot ask for keys with \".\" or \"..\" in them");
        return DCTF_ERR_S3_CLIENT_UNSAFE;
    }
    for (const unsigned char *c = (const unsigned char *)key; *c; c++) {
        if (!libs3->plain[*c]) {
            snprintf(detail, DCTF_LIBS3_DETAIL_BYTES, "libs3 encodes byte 0x%02x of the key wrongly%s", *c,
                *c == ' ' ? ": a space would become a plus" : "");
            return DCTF_ERR_S3_CLIENT_UNSAFE;
        }
    }
    return DCTF_OK;
}

static enum dctf_err libs3_get(
    void *source, const struct dctf_origin_get *get, const atomic_bool *cancelled, size_t *got)
{
    struct dctf_libs3 *libs3 = source;
    struct dctf_libs3_call call = {
        .etag = get->etag, .offset = get->offset, .len = get->len, .buf = get->buf, .cancelled = cancelled};
    char quoted[200];
    char *whole;
    enum dctf_err err;

    *got = 0;
    if (asprintf(&whole, "%s%s", libs3->address.prefix, get->key) < 0)
        return DCTF_ERR_NO_MEMORY;
    call.key = whole;
    err = dctf_libs3_key_check(libs3, whole, call.detail);
    if (!err)
        err = dctf_libs3_get(libs3, &call);
    if (err && err != DCTF_ERR_CANCELLED && err != DCTF_ERR_VERSION_MISMATCH)
        dctf_log(DCTF_LOG_WARN, "s3", "client=libs3 op=get key=%s err=%d %s",
            dctf_str_quote(whole, quoted, sizeof(quoted)), (int)err, call.detail);
    *got = call.got;
    free(whole);
    return err;
}

static void libs3_free(void *source)
{
    struct dctf_libs3 *libs3 = source;

    if (libs3->credentials)
        dctf_s3_credentials_free(libs3->credentials);
    dctf_s3_address_fini(&libs3->address);
    pthread_mutex_destroy(&libs3->lock);
    free(libs3->host);
    free(libs3->sample_key);
    free(libs3->sample_etag);
    free(libs3);
}

static const struct dctf_blocking_ops libs3_ops = {
    .scheme = "s3",
    .thread_name = "dctf-libs3",
    .list = dctf_libs3_list,
    .head = dctf_libs3_head,
    .get = libs3_get,
    .probe = dctf_libs3_probe,
    .examine = dctf_libs3_examine,
    .free = libs3_free,
    .silent = "the service did not answer",
};

/* --- opening --- */

static enum dctf_err refuse(char *detail, const char *what)
{
    snprintf(detail, DCTF_LIBS3_DETAIL_BYTES, "libs3 %s %s; s3_client=curl can", dctf_libs3_version(), what);
    return DCTF_ERR_S3_CLIENT_UNSAFE;
}

static enum dctf_err refuse_options(const struct dctf_config *options, char *detail)
{
    if (!dctf_libs3_lists())
        return refuse(detail, "cannot tell a listing that was cut from a whole one");
    if (options->anonymous)
        return refuse(detail, "cannot leave a request unsigned");
    if (options->requester_pays)
        return refuse(detail, "cannot agree to pay for requests");
    if (options->session_token[0])
        return refuse(detail, "cannot sign with a session token");
    return DCTF_OK;
}

static enum dctf_err refuse_address(const struct dctf_s3_address *address, char *detail)
{
    if (address->is_aws)
        return refuse(detail, "speaks Signature Version 2 only, which AWS refuses: it needs an endpoint");
    if (strcmp(address->scheme, "http") != 0)
        return refuse(detail, "does not verify certificates: it cannot speak https safely");
    if (address->base_path[0])
        return refuse(detail, "cannot speak to an endpoint with a path");
    return DCTF_OK;
}

/* libs3 puts the bucket before the host by itself. */
static char *host_of(const struct dctf_s3_address *address)
{
    size_t len = strlen(address->bucket);

    if (address->path_style)
        return strdup(address->host);
    assert(strncmp(address->host, address->bucket, len) == 0 && address->host[len] == '.');
    return strdup(address->host + len + 1);
}

static enum dctf_err make_parts(struct dctf_libs3 *libs3, const struct dctf_origin_config *config,
    const struct dctf_config *options, char *detail)
{
    struct dctf_s3_credentials_config credentials = {
        .access_key_id = options->access_key_id,
        .secret_access_key = options->secret_access_key,
        .profile = options->profile,
        .config_file = options->aws_config_file,
        .credentials_file = options->aws_credentials_file,
        .region = options->region,
        .ca_file = options->ca_file,
        .ca_dir = options->ca_dir,
        .clock = config->clock,
    };
    const char *where;
    char *endpoint = NULL;
    enum dctf_err err = refuse_options(options, detail);

    if (!err)
        err = dctf_s3_credentials_new(&credentials, &libs3->credentials);
    if (!err && !options->endpoint[0])
        err = dctf_s3_credentials_endpoint(libs3->credentials, &endpoint, &where);
    if (!err)
        err = dctf_s3_address_init(&libs3->address, config->source, endpoint ? endpoint : options->endpoint,
            options->region, (enum dctf_s3_style)options->path_style,
            detail); /* the words are in its order */
    free(endpoint);
    if (!err)
        err = refuse_address(&libs3->address, detail);
    if (err)
        return err;
    libs3->host = host_of(&libs3->address);
    if (!libs3->host)
        return DCTF_ERR_NO_MEMORY;
    err = dctf_libs3_init();
    if (!err)
        err = dctf_libs3_learn(libs3, detail);
    return err;
}

enum dctf_err dctf_libs3_open(const struct dctf_origin_config *config, char *detail,
    struct dctf_libs3 **source, struct dctf_origin **out)
{
    unsigned listers = config->concurrency / 4 > 2 ? config->concurrency / 4 : 2;
    struct dctf_libs3 *libs3 = calloc(1, sizeof(*libs3));
    char words[DCTF_LIBS3_DETAIL_BYTES] = "";
    enum dctf_err err;

    *out = NULL;
    assert(config->concurrency > 0);
    if (!libs3)
        return DCTF_ERR_NO_MEMORY;
    pthread_mutex_init(&libs3->lock, NULL);
    err = make_parts(libs3, config, config->options, words);
    if (!err)
        err = dctf_blocking_new(&libs3_ops, libs3, config->concurrency, listers, out);
    if (err)
        libs3_free(libs3);
    else
        *source = libs3;
    if (detail)
        snprintf(detail, DCTF_LIBS3_DETAIL_BYTES, "%s", words);
    return err;
}
