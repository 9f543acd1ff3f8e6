/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON answers of credential services and processes, read with jansson.
 */
#include "transport/s3_credentials_internal.h"

#include "transport/s3_xml.h"

#include <ctype.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* Cut "+HH:MM" or "-HHMM" off the end of `text`; seconds east of Greenwich. */
static bool cut_offset(char *text, int64_t *out_s)
{
    char *at = strrchr(text, 'T');
    char *sign;
    unsigned hours;
    unsigned minutes;
    int used = 0;

    *out_s = 0;
    sign = at ? strpbrk(at, "+-") : NULL;
    if (!sign)
        return true;
    if (sscanf(sign + 1, "%2u:%2u%n", &hours, &minutes, &used) != 2 || sign[1 + used]) {
        used = 0;
        if (sscanf(sign + 1, "%2u%2u%n", &hours, &minutes, &used) != 2 || sign[1 + used])
            return false;
    }
    if (hours > 23 || minutes > 59)
        return false;
    *out_s = (int64_t)(hours * 3600 + minutes * 60) * (*sign == '-' ? -1 : 1);
    *sign++ = 'Z';
    *sign = '\0';
    return true;
}

bool dctf_cred_time_parse(const char *text, uint64_t *out_ms)
{
    char copy[64];
    int64_t offset_s;
    int64_t ns;

    *out_ms = 0;
    if ((size_t)snprintf(copy, sizeof(copy), "%s", text) >= sizeof(copy))
        return false;
    if (!cut_offset(copy, &offset_s) || !dctf_iso8601_parse(copy, &ns))
        return false;
    ns = ns / 1000000 - offset_s * 1000;
    if (ns < 0)
        return false;
    *out_ms = (uint64_t)ns;
    return true;
}

/* jansson frees without overwriting. */
static void wipe_json(json_t *root)
{
    const char *name;
    json_t *value;

    json_object_foreach(root, name, value) if (json_is_string(value))
        explicit_bzero((void *)(uintptr_t)json_string_value(value), json_string_length(value));
    json_decref(root);
}

static const char *text_of(const json_t *root, const char *name)
{
    const char *text = json_string_value(json_object_get(root, name));

    return text ? text : "";
}

static enum dctf_err check_kind(struct dctf_cred_walk *walk, const json_t *root, enum dctf_cred_json kind)
{
    const char *code = text_of(root, "Code");

    if (kind == DCTF_CRED_JSON_PROCESS) {
        if (json_integer_value(json_object_get(root, "Version")) == 1)
            return DCTF_OK;
        return dctf_cred_why(
            walk, DCTF_ERR_CREDENTIALS_FAILED, "its output is not of \"Version\": 1, the only one known");
    }
    /* Only IMDS has a Code. */
    if (*code && strcasecmp(code, "Success") != 0)
        return dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_FAILED, "it answered Code %.60s: %.200s", code,
            text_of(root, "Message"));
    return DCTF_OK;
}

static enum dctf_err read_keys(struct dctf_cred_walk *walk, const json_t *root, enum dctf_cred_json kind,
    const char *source, struct dctf_s3_keys **out)
{
    static const char *const token_names[] = {"SessionToken", "Token"};
    const char *expiration = text_of(root, "Expiration");
    uint64_t expires_ms = UINT64_MAX;
    enum dctf_err err = check_kind(walk, root, kind);

    if (err)
        return err;
    if (*expiration && !dctf_cred_time_parse(expiration, &expires_ms))
        return dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_FAILED, "Expiration %.40s is no time", expiration);
    if (!*text_of(root, "AccessKeyId") || !*text_of(root, "SecretAccessKey"))
        return dctf_cred_why(
            walk, DCTF_ERR_CREDENTIALS_FAILED, "its answer has no AccessKeyId and SecretAccessKey");
    return dctf_cred_keys_new(walk, text_of(root, "AccessKeyId"), text_of(root, "SecretAccessKey"),
        text_of(root, token_names[kind]), expires_ms, source, out);
}

enum dctf_err dctf_cred_json_parse(struct dctf_cred_walk *walk, const char *text, size_t len,
    enum dctf_cred_json kind, const char *source, struct dctf_s3_keys **out)
{
    json_error_t error;
    json_t *root;
    enum dctf_err err;

    *out = NULL;
    /* Its error text quotes the input. */
    root = json_loadb(text, len, 0, &error);
    if (!root && json_error_code(&error) == json_error_out_of_memory)
        return dctf_cred_why(walk, DCTF_ERR_NO_MEMORY, "out of memory");
    if (!json_is_object(root)) {
        json_decref(root);
        return dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_FAILED, "its answer is no JSON object");
    }
    err = read_keys(walk, root, kind, source, out);
    wipe_json(root);
    return err;
}
