/* SPDX-License-Identifier: Apache-2.0
 *
 * A small HTTP server on 127.0.0.1 whose every answer the test computes: for services that
 * hand out credentials. One request per connection.
 *
 * Threads:   the handler runs on the server's threads, several at once.
 * Ownership: http_script_start() gives a server to http_script_stop(), which ends what
 *            hangs and waits for the handlers.
 */
#ifndef DCTF_TESTS_HTTP_SCRIPT_H
#define DCTF_TESTS_HTTP_SCRIPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct http_script;

struct http_script_request {
    char method[16];
    char target[1024];
    char head[16384]; /* lines after the first, as they came */
    char body[16384]; /* NUL-terminated */
};

struct http_script_reply {
    int status; /* 0: 200 */
    char body[16384];
    bool hang; /* no answer; the connection stays until the client leaves or the server stops */
    bool cut;  /* the connection is closed without an answer */
};

typedef void http_script_handle(
    void *ctx, const struct http_script_request *request, struct http_script_reply *reply);

struct http_script *http_script_start(http_script_handle *handle, void *ctx);
void http_script_stop(struct http_script *script);
uint16_t http_script_port(const struct http_script *script);

/* Value of a header of a request, "" when absent; name in any case. */
const char *http_script_header(const struct http_script_request *request, const char *name, char out[4096]);
/* Decoded value of a form's field in a request's body, "" when absent. */
const char *http_script_field(const struct http_script_request *request, const char *name, char out[4096]);

#endif
