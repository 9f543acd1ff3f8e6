/* SPDX-License-Identifier: Apache-2.0
 *
 * Directories and heads. A head is a listing too, of the one key: it tells the same ETag and time
 * as the directory does, to the same precision, and needs no header of the answer.
 */
#include "transport/origin_libs3_internal.h"

#include "base/log.h"
#include "transport/uri.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE_KEYS 1000

static void add_parameter(struct dctf_str *query, const char *name, const char *value)
{
    dctf_str_printf(query, "&%s=", name);
    dctf_uri_encode(query, value, strlen(value), false);
}

enum dctf_err dctf_libs3_page(
    struct dctf_libs3 *libs3, struct dctf_libs3_page *page, struct dctf_s3_list *out)
{
    struct dctf_str query;
    struct dctf_str body;
    struct dctf_libs3_call call = {.key = "", .body = &body, .cancelled = page->cancelled};
    enum dctf_err err;

    *out = (struct dctf_s3_list){0};
    dctf_str_init(&query);
    dctf_str_init(&body);
    dctf_str_printf(&query, "list-type=2&encoding-type=url&max-keys=%u", page->max_keys);
    if (page->delimiter)
        dctf_str_puts(&query, "&delimiter=%2F");
    add_parameter(&query, "prefix", page->prefix);
    if (page->token)
        add_parameter(&query, "continuation-token", page->token);
    err = query.err;
    call.query = dctf_str_c(&query);
    if (!err)
        err = dctf_libs3_get(libs3, &call);
    memcpy(page->detail, call.detail, sizeof(page->detail));
    if (!err) {
        err = dctf_s3_list_parse(dctf_str_c(&body), body.len, out);
        if (err)
            snprintf(page->detail, sizeof(page->detail), "the listing is no whole document");
    }
    dctf_str_fini(&body);
    dctf_str_fini(&query);
    return err;
}

/* The whole prefix of a directory, caller frees; NULL when out of memory. */
static char *prefix_of(const struct dctf_libs3 *libs3, const char *dir)
{
    char *prefix;

    if (asprintf(&prefix, "%s%s%s", libs3->address.prefix, dir, *dir ? "/" : "") < 0)
        return NULL;
    return prefix;
}

static void log_hidden(const char *dir, size_t count)
{
    char quoted[200];

    if (count > 0)
        dctf_log(DCTF_LOG_WARN, "s3", "client=libs3 hidden keys=%zu dir=%s why=\"NUL byte in the key\"",
            count, dctf_str_quote(dir, quoted, sizeof(quoted)));
}

static enum dctf_err hand_out(
    struct dctf_origin_list *list, struct dctf_libs3_page *page, struct dctf_s3_list *found)
{
    struct dctf_origin_entry *entries = calloc(found->count, sizeof(*entries));
    bool more;

    if (!entries)
        return DCTF_ERR_NO_MEMORY;
    for (size_t i = 0; i < found->count; i++) {
        if (!dctf_s3_list_entry(found, i, page->prefix, &entries[i])) {
            char quoted[160];

            snprintf(page->detail, sizeof(page->detail), "the listing has %s, which does not fit",
                dctf_str_quote(found->objects[i].key, quoted, sizeof(quoted)));
            free(entries);
            return DCTF_ERR_BAD_RESPONSE;
        }
    }
    more = list->page(list, entries, found->count);
    free(entries);
    return more ? DCTF_OK : DCTF_ERR_CANCELLED;
}

static void log_failure(const char *dir, enum dctf_err err, const char *detail)
{
    char quoted[200];

    if (err && err != DCTF_ERR_CANCELLED && err != DCTF_ERR_NOT_FOUND)
        dctf_log(DCTF_LOG_WARN, "s3", "client=libs3 op=list dir=%s err=%d %s",
            dctf_str_quote(dir, quoted, sizeof(quoted)), (int)err, detail);
}

/* Where the next page begins. A token that leads back to this page would never end. */
static enum dctf_err take_token(struct dctf_libs3_page *page, const struct dctf_s3_list *found, char **token)
{
    const char *next = found->next_token ? found->next_token : "";

    if (!*next || (*token && strcmp(next, *token) == 0)) {
        snprintf(page->detail, sizeof(page->detail), "the listing goes on with the same page");
        return DCTF_ERR_BAD_RESPONSE;
    }
    free(*token);
    *token = strdup(next);
    return *token ? DCTF_OK : DCTF_ERR_NO_MEMORY;
}

enum dctf_err dctf_libs3_list(void *source, struct dctf_origin_list *list, const atomic_bool *cancelled)
{
    struct dctf_libs3 *libs3 = source;
    char *prefix = prefix_of(libs3, list->dir);
    char *token = NULL;
    size_t seen = 0;
    bool truncated = true;
    struct dctf_libs3_page page = {
        .prefix = prefix, .delimiter = true, .max_keys = PAGE_KEYS, .cancelled = cancelled};
    enum dctf_err err = prefix ? DCTF_OK : DCTF_ERR_NO_MEMORY;

    while (!err && truncated) {
        struct dctf_s3_list found;

        page.token = token;
        err = dctf_libs3_page(libs3, &page, &found);
        if (err)
            break;
        seen += found.count + found.unusable;
        log_hidden(list->dir, found.unusable);
        truncated = found.truncated;
        if (found.count > 0)
            err = hand_out(list, &page, &found);
        if (!err && truncated)
            err = take_token(&page, &found, &token);
        dctf_s3_list_fini(&found);
        if (!err && atomic_load_explicit(cancelled, memory_order_relaxed))
            err = DCTF_ERR_CANCELLED;
    }
    /* A prefix that no key has does not exist; a bucket without keys does. */
    if (!err && seen == 0 && *prefix)
        err = DCTF_ERR_NOT_FOUND;
    log_failure(list->dir, err, page.detail);
    free(token);
    free(prefix);
    return err;
}

enum dctf_err dctf_libs3_head(
    void *source, const char *key, struct dctf_origin_entry *entry, char *etag, const atomic_bool *cancelled)
{
    struct dctf_libs3 *libs3 = source;
    struct dctf_s3_list found;
    const char *slash = strrchr(key, '/');
    char *whole;
    enum dctf_err err;

    if (asprintf(&whole, "%s%s", libs3->address.prefix, key) < 0)
        return DCTF_ERR_NO_MEMORY;
    /* No key sorts before its own name among those that begin with it. */
    struct dctf_libs3_page page = {.prefix = whole, .max_keys = 1, .cancelled = cancelled};

    err = dctf_libs3_page(libs3, &page, &found);
    if (!err && (found.count == 0 || strcmp(found.objects[0].key, whole) != 0))
        err = DCTF_ERR_NOT_FOUND;
    if (!err && (!dctf_s3_is_etag(found.objects[0].etag) ||
                    strlen(found.objects[0].etag) >= DCTF_BLOCKING_ETAG_BYTES))
        err = DCTF_ERR_BAD_RESPONSE;
    if (!err) {
        strcpy(etag, found.objects[0].etag);
        *entry = (struct dctf_origin_entry){
            .name = slash ? slash + 1 : key,
            .size = found.objects[0].size,
            .mtime_ns = found.objects[0].mtime_ns,
            .etag = etag,
        };
    }
    dctf_s3_list_fini(&found);
    log_failure(key, err, page.detail);
    free(whole);
    return err;
}
