/* SPDX-License-Identifier: Apache-2.0
 *
 * Client of the control socket (docs/control-protocol.md): one JSON object per
 * line each way, a time-out on every wait.
 *
 * Threads:   one thread per client; clients are independent of each other.
 * Ownership: dctf_client_open() gives a client to pass to dctf_client_close().
 *            Replies are counted jansson objects that the caller drops.
 */
#ifndef DCTF_TOOLS_CLIENT_H
#define DCTF_TOOLS_CLIENT_H

#include "base/err.h"

#include <jansson.h>
#include <stdint.h>

struct dctf_client;

/* A failed call, in the words of the daemon where it spoke. */
struct dctf_client_error {
    int code; /* of the daemon; may be one this release does not know */
    char name[64];
    char text[512];
    char remedy[256];
};

struct dctf_client_config {
    const char *socket;  /* path; borrowed during open */
    uint64_t timeout_ms; /* of connecting, and of calls that name none */
    int stop_fd;         /* readable: every wait ends with DCTF_ERR_INTERRUPTED; -1 for none */
};

/* Connect. On failure *out is NULL and *error says why: DCTF_ERR_NOT_MOUNTED when
 * nothing listens, DCTF_ERR_PERMISSION, DCTF_ERR_DAEMON_UNRESPONSIVE. */
DCTF_MUST_CHECK
enum dctf_err dctf_client_open(
    const struct dctf_client_config *config, struct dctf_client **out, struct dctf_client_error *error);
void dctf_client_close(struct dctf_client *client); /* NULL is allowed */

/* Send `request` (borrowed) and wait for its answer. `timeout_ms` 0 takes the client's own.
 * On DCTF_OK *reply has "ok":true; else *reply is NULL and *error is set. After a
 * time-out or a broken connection the client can only be closed: later calls fail. */
DCTF_MUST_CHECK
enum dctf_err dctf_client_call(struct dctf_client *client, json_t *request, uint64_t timeout_ms,
    json_t **reply, struct dctf_client_error *error);
/* False once the connection cannot be used any more. */
int dctf_client_usable(const struct dctf_client *client);

/* Fill *error from the table, with `detail` (may be NULL) behind the text. Returns err. */
enum dctf_err dctf_client_error_set(struct dctf_client_error *error, enum dctf_err err, const char *detail);

/* Strings that need not be UTF-8: `field` when they are, else `field`_hex. */
DCTF_MUST_CHECK
enum dctf_err dctf_client_set_bytes(json_t *object, const char *field, const char *bytes);
/* Caller frees. NULL when the object has neither field, or on malformed hex. */
char *dctf_client_get_bytes(const json_t *object, const char *field);

#endif
