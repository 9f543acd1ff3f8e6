/* SPDX-License-Identifier: Apache-2.0
 *
 * The control interface; s3_server.h describes it.
 */
#include "lib/s3_handlers.h"

#include <stdlib.h>
#include <string.h>

static enum MHD_Result reply_wrong(struct s3_request *request, unsigned status, const char *what)
{
    return s3_reply_json(request, status, json_pack("{s:s}", "error", what));
}

static enum MHD_Result reply_ok(struct s3_request *request)
{
    return s3_reply_json(request, 200, json_pack("{s:b}", "ok", 1));
}

static enum MHD_Result reply_found(struct s3_request *request, enum s3_found found, json_t *json)
{
    if (found == S3_FOUND)
        return s3_reply_json(request, 200, json);
    json_decref(json);
    return reply_wrong(request, found == S3_IO_ERROR ? 400 : 404,
        found == S3_IO_ERROR ? "files cannot be read or written" : "no such bucket or key");
}

static bool is_method(const struct s3_request *request, const char *method)
{
    return !strcmp(request->method, method);
}

static enum MHD_Result control_settings(struct s3_request *request, json_t *body)
{
    struct s3_settings *settings = request->server->settings;
    struct s3_values values;
    const char *wrong = body ? s3_settings_set(settings, body) : NULL;

    if (wrong)
        return reply_wrong(request, 400, wrong);
    if (json_object_get(body, "seed")) {
        s3_settings_get(settings, &values);
        s3_faults_seed(request->server->faults, values.seed);
    }
    return s3_reply_json(request, 200, s3_settings_json(settings));
}

static void copy_text(json_t *object, const char *name, char *out, size_t size)
{
    const char *text = json_string_value(json_object_get(object, name));

    if (text)
        snprintf(out, size, "%s", text);
}

static void copy_flag(json_t *object, const char *name, bool *out)
{
    json_t *value = json_object_get(object, name);

    if (value)
        *out = json_is_true(value);
}

static enum MHD_Result control_buckets(struct s3_request *request, const char *rest, json_t *body)
{
    struct s3_store *store = request->server->store;
    struct s3_bucket_info info = {.region = "us-east-1"}, *all;
    const char *name = json_string_value(json_object_get(body, "name"));

    if (is_method(request, "DELETE"))
        return s3_store_drop_bucket(store, rest) ? reply_ok(request)
                                                 : reply_wrong(request, 404, "no such bucket");
    if (is_method(request, "GET")) {
        json_t *list = json_array();
        size_t count = s3_store_buckets(store, &all);

        for (size_t i = 0; i < count; i++)
            json_array_append_new(list,
                json_pack("{s:s,s:s,s:b,s:b,s:s}", "name", all[i].name, "region", all[i].region, "public",
                    all[i].is_public, "requester_pays", all[i].requester_pays, "redirect", all[i].redirect));
        free(all);
        return s3_reply_json(request, 200, json_pack("{s:o}", "buckets", list));
    }
    if (!name || strlen(name) >= sizeof(info.name))
        return reply_wrong(request, 400, "a bucket has a name");
    if (!s3_store_bucket(store, name, &info)) {
        strcpy(info.name, name);
        info.created_ns = s3_settings_now(request->server->settings);
    }
    copy_text(body, "region", info.region, sizeof(info.region));
    copy_text(body, "redirect", info.redirect, sizeof(info.redirect));
    copy_flag(body, "public", &info.is_public);
    copy_flag(body, "requester_pays", &info.requester_pays);
    const char *wrong = s3_store_set_bucket(store, &info);

    return wrong ? reply_wrong(request, 400, wrong) : reply_ok(request);
}

static enum MHD_Result control_objects(struct s3_request *request, const char *rest)
{
    size_t len = strcspn(rest, "/");

    if (!rest[len] || !rest[len + 1])
        return reply_wrong(request, 404, "/-/objects/BUCKET/KEY");
    request->bucket = s3_copy_n(rest, len);
    request->key = s3_copy(rest + len + 1);
    if (!s3_store_bucket(request->server->store, request->bucket, &request->info))
        return reply_wrong(request, 404, "no such bucket");
    if (is_method(request, "PUT"))
        return s3_handle_put(request);
    if (is_method(request, "DELETE"))
        return reply_found(request, s3_store_delete(request->server->store, request->bucket, request->key),
            json_pack("{s:b}", "ok", 1));
    return s3_handle_get(request);
}

static enum MHD_Result control_bulk(struct s3_request *request, json_t *body)
{
    const char *bucket, *prefix = "", *suffix = "";
    json_int_t first = 0, count, digits = 8, size;

    if (json_unpack(body, "{s:s,s?s,s?s,s?I,s:I,s?I,s:I}", "bucket", &bucket, "prefix", &prefix, "suffix",
            &suffix, "first", &first, "count", &count, "digits", &digits, "size", &size) ||
        first < 0 || count < 1 || count > 20000000 || digits < 1 || digits > 20 || size < 0)
        return reply_wrong(request, 400, "bucket, count and size are needed; prefix, suffix, first, digits");
    return reply_found(request,
        s3_store_bulk(request->server->store, bucket, prefix, suffix, (uint64_t)first, (uint64_t)count,
            (unsigned)digits, (uint64_t)size, s3_settings_now(request->server->settings)),
        json_pack("{s:I}", "count", count));
}

static enum MHD_Result control_import(struct s3_request *request, json_t *body)
{
    const char *bucket, *dir, *prefix = "";
    size_t count = 0;

    if (json_unpack(body, "{s:s,s:s,s?s}", "bucket", &bucket, "dir", &dir, "prefix", &prefix))
        return reply_wrong(request, 400, "bucket and dir are needed; prefix");
    enum s3_found found = s3_store_import(request->server->store, bucket, dir, prefix, &count);

    return reply_found(request, found, json_pack("{s:I}", "count", (json_int_t)count));
}

static enum MHD_Result control_keys(struct s3_request *request, const char *rest, json_t *body)
{
    struct s3_key key = {0};
    const char *access, *secret, *token = "";
    double seconds = 0;

    if (is_method(request, "DELETE"))
        return s3_keys_remove(request->server->keys, rest) ? reply_ok(request)
                                                           : reply_wrong(request, 404, "no such key");
    if (json_unpack(body, "{s:s,s:s,s?s,s?F}", "access_key", &access, "secret_key", &secret, "session_token",
            &token, "seconds", &seconds) ||
        strlen(access) >= sizeof(key.access) || strlen(secret) >= sizeof(key.secret) ||
        strlen(token) >= sizeof(key.token))
        return reply_wrong(request, 400, "access_key and secret_key are needed; session_token, seconds");
    strcpy(key.access, access);
    strcpy(key.secret, secret);
    strcpy(key.token, token);
    if (seconds > 0)
        key.expires_ns = s3_settings_now(request->server->settings) + (int64_t)(seconds * 1e9);
    s3_keys_add(request->server->keys, &key);
    return reply_ok(request);
}

static enum MHD_Result control_stats(struct s3_request *request)
{
    struct s3_server *server = request->server;

    if (is_method(request, "DELETE")) {
        s3_stats_reset(server->stats);
        s3_store_reset_counts(server->store);
        return reply_ok(request);
    }
    json_t *stats = s3_stats_json(server->stats);

    if (s3_request_param(request, "keys"))
        json_object_set_new(stats, "keys", s3_store_counts(server->store));
    return s3_reply_json(request, 200, stats);
}

static enum MHD_Result control_faults(struct s3_request *request, const char *rest, json_t *body)
{
    struct s3_faults *faults = request->server->faults;
    json_t *ids;

    if (is_method(request, "GET"))
        return s3_reply_json(request, 200, s3_faults_json(faults));
    if (is_method(request, "DELETE"))
        return s3_faults_remove(faults, (unsigned)strtoul(rest, NULL, 10))
                   ? reply_ok(request)
                   : reply_wrong(request, 404, "no such rule");
    const char *wrong = s3_faults_add(faults, body, &ids);

    return wrong ? reply_wrong(request, 400, wrong)
                 : s3_reply_json(request, 200, json_pack("{s:o}", "ids", ids));
}

static enum MHD_Result dispatch(struct s3_request *request, const char *name, const char *rest, json_t *body)
{
    struct s3_server *server = request->server;
    const char *last = s3_request_param(request, "n");

    if (!strcmp(name, "health"))
        return s3_reply_json(request, 200,
            json_pack("{s:b,s:f}", "ok", 1, "now", (double)s3_settings_now(server->settings) / 1e9));
    if (!strcmp(name, "settings"))
        return control_settings(request, body);
    if (!strcmp(name, "buckets"))
        return control_buckets(request, rest, body);
    if (!strcmp(name, "objects"))
        return control_objects(request, rest);
    if (!strcmp(name, "bulk"))
        return control_bulk(request, body);
    if (!strcmp(name, "import"))
        return control_import(request, body);
    if (!strcmp(name, "keys"))
        return control_keys(request, rest, body);
    if (!strcmp(name, "stats"))
        return control_stats(request);
    if (!strcmp(name, "faults"))
        return control_faults(request, rest, body);
    if (!strcmp(name, "requests"))
        return s3_reply_json(request, 200,
            json_pack("{s:o}", "requests",
                s3_stats_requests(server->stats, last ? strtoul(last, NULL, 10) : 1000)));
    if (!strcmp(name, "expire")) {
        s3_keys_expire(server->keys, s3_settings_now(server->settings));
        return reply_ok(request);
    }
    return reply_wrong(request, 404, "no such thing to control");
}

enum MHD_Result s3_handle_control(struct s3_request *request)
{
    const char *name = request->path + strlen("/-/");
    size_t len = strcspn(name, "/");
    char word[32];
    json_t *body = NULL;
    enum MHD_Result result;

    snprintf(word, sizeof(word), "%.*s", len < sizeof(word) ? (int)len : 0, name);
    if (request->malformed)
        return reply_wrong(request, 400, "an escape of the path is broken");
    if (is_method(request, "POST")) {
        body = json_loads(request->body.len ? request->body.data : "{}", 0, NULL);
        if (!json_is_object(body)) {
            json_decref(body);
            return reply_wrong(request, 400, "the body is no JSON object");
        }
    }
    result = dispatch(request, word, name + len + (name[len] == '/'), body);
    json_decref(body);
    return result;
}
