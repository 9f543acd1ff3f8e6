/* SPDX-License-Identifier: Apache-2.0
 *
 * Addresses as people write them, host:port, in one spelling, so that equal addresses are
 * equal texts.
 *
 * Threads:   any thread; no state.
 * Ownership: plain values.
 */
#ifndef DCTF_CLUSTER_ADDRESS_H
#define DCTF_CLUSTER_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DCTF_ADDRESS_MAX 127u

struct sockaddr;

struct dctf_address {
    char host[DCTF_ADDRESS_MAX +
              1]; /* without brackets; names in lower case, numbers as inet_ntop() has them */
    uint16_t port;
    char text[DCTF_ADDRESS_MAX + 1]; /* "host:port", IPv6 in brackets */
};

/* "host:port" of `len` bytes; `port` > 0 stands in for one that is not given. A name has letters, digits,
 * '-', '_' and '.'. NULL when it is well formed, else what is wrong (static). */
const char *dctf_address_parse(const char *text, size_t len, uint16_t port, struct dctf_address *out);
/* Of an IPv4 or IPv6 socket address, an IPv4-mapped one as IPv4; false for others. `port` is host order. */
bool dctf_address_of(const struct sockaddr *from, uint16_t port, struct dctf_address *out);

#endif
