/* SPDX-License-Identifier: Apache-2.0
 *
 * Lines: method, path, query, session token, then headers "name:value". The canonical
 * request keeps its lines whatever the texts are, and its query signs the same again.
 */
#include "transport/sigv4.h"

#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define HEADERS_MAX 8

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok)
{
    if (!ok)
        abort();
}

/* Ends the line at *text; the next one. */
static char *cut_line(char *text)
{
    char *end = strchrnul(text, '\n');

    if (!*end)
        return end;
    *end = '\0';
    return end + 1;
}

static size_t cut_headers(char *text, struct dctf_sigv4_header headers[static HEADERS_MAX])
{
    size_t count = 0;

    headers[count++] = (struct dctf_sigv4_header){"Host", "h"};
    while (*text && count < HEADERS_MAX) {
        char *next = cut_line(text);
        char *colon = strchrnul(text, ':');

        headers[count].name = text;
        headers[count++].value = *colon ? colon + 1 : colon;
        *colon = '\0';
        text = next;
    }
    return count;
}

/* The third line is the query; signing that gives the same request. */
static void check_again(struct dctf_sigv4_request request, const char *canonical)
{
    const char *query = strchr(strchr(canonical, '\n') + 1, '\n') + 1;
    char *copy = strndup(query, strcspn(query, "\n"));
    struct dctf_str again;

    require(copy != NULL);
    request.query = copy;
    dctf_str_init(&again);
    require(!dctf_sigv4_canonical_request(&request, &again));
    require(!strcmp(dctf_str_c(&again), canonical));
    dctf_str_fini(&again);
    free(copy);
}

static void check_request(const struct dctf_sigv4_request *request)
{
    struct dctf_sigv4_signature signature;
    struct dctf_str canonical;
    enum dctf_err err;

    dctf_str_init(&canonical);
    err = dctf_sigv4_canonical_request(request, &canonical);
    require(!err || err == DCTF_ERR_INTERNAL);
    require(dctf_sigv4_sign(request, &signature) == err);
    if (err) {
        require(!signature.authorization);
    } else {
        require(!strpbrk(signature.authorization, "\r\n"));
        require(strlen(strrchr(signature.authorization, '=')) == 65);
        check_again(*request, canonical.data);
    }
    dctf_sigv4_signature_fini(&signature);
    dctf_str_fini(&canonical);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dctf_sigv4_header headers[HEADERS_MAX];
    struct dctf_sigv4_request request = {
        .headers = headers,
        .payload_hash = DCTF_SIGV4_UNSIGNED_PAYLOAD,
        .region = "us-east-1",
        .service = "s3",
        .now_s = 1369353600,
        .access_key_id = "id",
        .secret_access_key = "secret",
    };
    char *text = malloc(size + 1);
    char *path;
    char *query;
    char *token;
    char *rest;

    require(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    path = cut_line(text);
    query = cut_line(path);
    token = cut_line(query);
    rest = cut_line(token);
    request.method = text;
    request.path = path;
    request.query = query;
    request.session_token = token;
    request.header_count = cut_headers(rest, headers);
    check_request(&request);
    request.service = "sts";
    request.no_content_sha256 = true;
    check_request(&request);
    free(text);
    return 0;
}
