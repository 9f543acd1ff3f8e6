/* SPDX-License-Identifier: Apache-2.0
 *
 * GET, HEAD, PUT and DELETE of objects.
 */
#include "lib/s3_handlers.h"

#include <ctype.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct range {
    bool asked;
    uint64_t offset, length;
};

static enum MHD_Result reply_not_found(struct s3_request *request, enum s3_found found)
{
    struct s3_text more = {0};
    enum MHD_Result result;

    if (found == S3_NO_BUCKET)
        return s3_reply_error(request, 404, "NoSuchBucket", "The specified bucket does not exist", NULL);
    if (found == S3_IO_ERROR)
        return s3_reply_error(
            request, 500, "InternalError", "The object's bytes cannot be read or written", NULL);
    s3_text_element(&more, "Key", request->key);
    result = s3_reply_error(request, 404, "NoSuchKey", "The specified key does not exist.", more.data);
    s3_text_fini(&more);
    return result;
}

/* Whether a list of ETags such as "a", "b" or * names this one. */
static bool names_etag(const char *list, const char *etag)
{
    size_t len = strlen(etag);

    for (const char *at = list; (at = strstr(at, etag)); at += len) {
        bool opened = at == list || at[-1] == '"' || at[-1] == ',' || at[-1] == ' ';

        if (opened && (at[len] == '"' || at[len] == ',' || !at[len]))
            return true;
    }
    return !strcmp(list, "*");
}

static bool parse_number(const char **at, uint64_t *value)
{
    char *end;

    if (!isdigit((unsigned char)**at))
        return false;
    *value = strtoull(*at, &end, 10);
    *at = end;
    return true;
}

/* False: 416. What is no single range is taken for none, and all of the object is sent. */
static bool parse_range(const char *header, uint64_t size, struct range *range)
{
    uint64_t first = 0, last = UINT64_MAX;

    *range = (struct range){.length = size};
    if (!header || strncmp(header, "bytes=", 6) != 0)
        return true;
    const char *at = header + 6;
    bool has_first = parse_number(&at, &first);

    if (*at++ != '-')
        return true;
    bool has_last = parse_number(&at, &last);

    if (*at || (!has_first && !has_last) || (has_first && last < first))
        return true;
    range->asked = true;
    if (!has_first) {
        first = last < size ? size - last : 0;
        if (!last || !size)
            return false;
        last = size - 1;
    }
    if (first >= size)
        return false;
    range->offset = first;
    range->length = (last < size ? last : size - 1) - first + 1;
    return true;
}

/* New bytes of the same size, as somebody else might write them. */
static void overwrite(struct s3_request *request)
{
    struct s3_object_info info;
    struct s3_put put;
    char block[4096];
    unsigned char md5[16];
    int fd;

    if (s3_store_get(request->server->store, request->bucket, request->key, &info, &fd) != S3_FOUND)
        return;
    EVP_MD_CTX *hash = EVP_MD_CTX_new();
    ssize_t got;
    uint64_t left = info.size;
    bool ok =
        hash && EVP_DigestInit_ex(hash, EVP_md5(), NULL) && s3_store_put_begin(request->server->store, &put);

    while (ok && left && (got = read(fd, block, left < sizeof(block) ? (size_t)left : sizeof(block))) > 0) {
        for (ssize_t i = 0; i < got; i++)
            block[i] = (char)(block[i] + 1);
        EVP_DigestUpdate(hash, block, (size_t)got);
        left -= (uint64_t)got;
        ok = s3_store_put_write(&put, block, (size_t)got);
    }
    close(fd);
    if (ok && EVP_DigestFinal_ex(hash, md5, NULL))
        s3_store_put_commit(request->server->store, &put, request->bucket, request->key, md5,
            s3_settings_now(request->server->settings));
    EVP_MD_CTX_free(hash);
}

static void add_etag(struct s3_request *request, const char *etag)
{
    char quoted[160];

    if (request->plan.act.kind == S3_FAULT_WRONG_ETAG)
        etag = request->plan.act.etag[0] ? request->plan.act.etag : "00000000000000000000000000000bad";
    snprintf(quoted, sizeof(quoted), etag[0] == '"' ? "%s" : "\"%s\"", etag);
    s3_reply_header(request, "ETag", quoted);
}

/* 0: go on, else 304 or 412. */
static unsigned check_conditions(struct s3_request *request, const char *etag)
{
    const char *match = s3_request_header(request, "If-Match");
    const char *none = s3_request_header(request, "If-None-Match");

    if (match && !names_etag(match, etag))
        return 412;
    return none && names_etag(none, etag) ? 304 : 0;
}

static enum MHD_Result reply_precondition(struct s3_request *request, const char *condition)
{
    struct s3_text more = {0};

    s3_text_element(&more, "Condition", condition);
    enum MHD_Result result = s3_reply_error(request, 412, "PreconditionFailed",
        "At least one of the pre-conditions you specified did not hold", more.data);

    s3_text_fini(&more);
    return result;
}

static enum MHD_Result reply_bad_range(struct s3_request *request, uint64_t size)
{
    struct s3_text more = {0};
    char text[64];

    snprintf(text, sizeof(text), "bytes */%llu", (unsigned long long)size);
    s3_reply_header(request, "Content-Range", text);
    s3_text_element(&more, "RangeRequested", s3_request_header(request, "Range"));
    s3_text_printf(&more, "<ActualObjectSize>%llu</ActualObjectSize>", (unsigned long long)size);
    enum MHD_Result result =
        s3_reply_error(request, 416, "InvalidRange", "The requested range is not satisfiable", more.data);

    s3_text_fini(&more);
    return result;
}

static enum MHD_Result reply_object(
    struct s3_request *request, const struct s3_object_info *info, int fd, struct range range)
{
    char text[96];
    const struct s3_act *act = &request->plan.act;
    uint64_t total = info->size;

    s3_time_http(info->mtime_ns, text);
    s3_reply_header(request, "Last-Modified", text);
    add_etag(request, info->etag);
    s3_reply_header(request, "Accept-Ranges", "bytes");
    s3_reply_header(request, "Content-Type", "binary/octet-stream");
    if (act->kind == S3_FAULT_IGNORE_RANGE)
        range = (struct range){.length = info->size};
    if (!range.asked)
        return s3_reply_file(request, 200, fd, 0, info->size);
    if (act->kind == S3_FAULT_WRONG_RANGE && act->total)
        total++;
    else if (act->kind == S3_FAULT_WRONG_RANGE && range.offset + range.length < info->size)
        range.offset++;
    else if (act->kind == S3_FAULT_WRONG_RANGE && range.length > 1)
        range = (struct range){true, range.offset + 1, range.length - 1};
    snprintf(text, sizeof(text), "bytes %llu-%llu/%llu", (unsigned long long)range.offset,
        (unsigned long long)(range.offset + range.length - 1), (unsigned long long)total);
    s3_reply_header(request, "Content-Range", text);
    return s3_reply_file(request, 206, fd, range.offset, range.length);
}

enum MHD_Result s3_handle_get(struct s3_request *request)
{
    struct s3_store *store = request->server->store;
    struct s3_object_info info;
    struct range range;
    int fd = -1;

    if (request->plan.act.kind == S3_FAULT_OVERWRITE)
        overwrite(request);
    enum s3_found found = s3_store_get(store, request->bucket, request->key, &info, &fd);

    if (found != S3_FOUND)
        return reply_not_found(request, found);
    unsigned condition = check_conditions(request, info.etag);

    if (condition == 0 && parse_range(s3_request_header(request, "Range"), info.size, &range)) {
        if (request->op == S3_GET)
            s3_store_count(store, request->bucket, request->key);
        return reply_object(request, &info, fd, range);
    }
    close(fd);
    if (condition == 304) {
        add_etag(request, info.etag);
        return s3_reply_empty(request, 304);
    }
    return condition ? reply_precondition(request, "If-Match") : reply_bad_range(request, info.size);
}

/* If-None-Match: * and If-Match of a PUT. */
static const char *put_condition_fails(struct s3_request *request)
{
    struct s3_object_info info;
    const char *match = s3_request_header(request, "If-Match"),
               *none = s3_request_header(request, "If-None-Match");
    bool there = s3_store_get(request->server->store, request->bucket, request->key, &info, NULL) == S3_FOUND;

    if (match && (!there || !names_etag(match, info.etag)))
        return "If-Match";
    return none && there && names_etag(none, info.etag) ? "If-None-Match" : NULL;
}

enum MHD_Result s3_handle_put(struct s3_request *request)
{
    char etag[33] = {0};
    struct s3_text hex = {0};
    const char *condition = put_condition_fails(request);

    if (!s3_is_utf8(request->key))
        return s3_reply_error(request, 400, "InvalidURI", "The key is not UTF-8", NULL);
    if (strlen(request->key) > 1024)
        return s3_reply_error(request, 400, "KeyTooLongError", "Your key is too long", NULL);
    if (condition)
        return reply_precondition(request, condition);
    if (request->body_bad)
        return reply_not_found(request, S3_IO_ERROR);
    enum s3_found found = s3_store_put_commit(request->server->store, &request->put, request->bucket,
        request->key, request->body_md5, s3_settings_now(request->server->settings));

    if (found != S3_FOUND)
        return reply_not_found(request, found);
    s3_text_hex(&hex, request->body_md5, 16);
    memcpy(etag, hex.data, 32);
    s3_text_fini(&hex);
    if (request->control)
        return s3_reply_json(request, 200,
            json_pack(
                "{s:s,s:I,s:s}", "etag", etag, "size", (json_int_t)request->body_size, "key", request->key));
    add_etag(request, etag);
    return s3_reply_empty(request, 200);
}

enum MHD_Result s3_handle_delete(struct s3_request *request)
{
    enum s3_found found = s3_store_delete(request->server->store, request->bucket, request->key);

    return found == S3_NO_BUCKET ? reply_not_found(request, found) : s3_reply_empty(request, 204);
}
