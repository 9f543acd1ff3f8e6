/* SPDX-License-Identifier: Apache-2.0
 *
 * Look a host name up without being at the mercy of the resolver: getaddrinfo(3) has no
 * deadline, so that it runs on a thread of its own, which is left behind when it hangs.
 *
 * Threads:   new, ask, wait and free from one thread.
 * Ownership: new() gives an object to free(). Neither waits for the network.
 */
#ifndef DCTF_CLUSTER_RESOLVE_H
#define DCTF_CLUSTER_RESOLVE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

struct dctf_resolver;

struct dctf_resolved {
    struct sockaddr_storage *addresses; /* each once, in no order; their ports are 0 */
    size_t count;                       /* at most 4096 */
    int status;                         /* 0, or EAI_… of getaddrinfo() */
};

DCTF_MUST_CHECK
enum dctf_err dctf_resolver_new(const char *host, struct dctf_resolver **out);
/* Begin a look-up, unless one is under way. DCTF_ERR_SYSTEM when there is no thread for it. */
DCTF_MUST_CHECK
enum dctf_err dctf_resolver_ask(struct dctf_resolver *resolver);
/* Wait up to `timeout_ms` for the answer to the last ask(), and take it. DCTF_ERR_DEADLINE: not yet. */
DCTF_MUST_CHECK
enum dctf_err dctf_resolver_take(
    struct dctf_resolver *resolver, uint64_t timeout_ms, struct dctf_resolved *out);
void dctf_resolved_fini(struct dctf_resolved *resolved);
void dctf_resolver_free(struct dctf_resolver *resolver); /* NULL is allowed */

#endif
