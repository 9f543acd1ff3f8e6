/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether a host can be reached, apart from what is asked of it: its name, a connection.
 * For `dctf doctor`, which tells the one from the other.
 *
 * Threads:   any thread; the calls block, within the time they are given.
 * Ownership: addresses are given to dctf_reach_addresses_free().
 */
#ifndef DCTF_TRANSPORT_S3_REACH_H
#define DCTF_TRANSPORT_S3_REACH_H

#include "base/err.h"

#include <stdint.h>

struct dctf_reach_addresses;

/* The proxy that the environment sets for requests to "host[:port]" or "[address]:port", NULL for none: what
 * libcurl takes, no_proxy included. */
const char *dctf_reach_proxy(const char *scheme, const char *host);

/* Look up "host[:port]" or "[address]:port"; without a port it is the scheme's. `detail`
 * (≥ 256 bytes) gets the addresses, or what went wrong. A resolver that hangs is left to
 * itself after `wait_ms`: DCTF_ERR_DEADLINE. */
DCTF_MUST_CHECK
enum dctf_err dctf_reach_resolve(
    const char *host, const char *scheme, uint64_t wait_ms, struct dctf_reach_addresses **out, char *detail);
void dctf_reach_addresses_free(struct dctf_reach_addresses *addresses);

/* Connect to one of them, and close. `detail` (≥ 256 bytes) gets which, or why none. */
DCTF_MUST_CHECK
enum dctf_err dctf_reach_connect(
    const struct dctf_reach_addresses *addresses, uint64_t wait_ms, char *detail);

#endif
