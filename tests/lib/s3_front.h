/* SPDX-License-Identifier: Apache-2.0
 *
 * The HTTP side: listening sockets, threads, and a request's way from its first line to its handler.
 * One thread per connection, so that a request may wait.
 *
 * Threads:   start and stop from one thread.
 * Ownership: s3_front_start() gives what s3_front_stop() takes; the server outlives it.
 */
#ifndef DCTF_TESTS_S3_FRONT_H
#define DCTF_TESTS_S3_FRONT_H

#include "lib/s3_server.h"

#include <netinet/in.h>

struct s3_front; /* opaque */

struct s3_front_config {
    struct in_addr address; /* to listen on */
    uint16_t port;          /* 0: any that is free */
    uint16_t tls_port;
    const char *tls_cert, *tls_key; /* contents of PEM files; NULL: no TLS */
    unsigned idle_timeout;          /* seconds until a connection without requests is closed; 0: never */
};

/* NULL when it cannot listen; it is logged to stderr. */
struct s3_front *s3_front_start(struct s3_server *server, const struct s3_front_config *config);
uint16_t s3_front_port(const struct s3_front *front);
uint16_t s3_front_tls_port(const struct s3_front *front); /* 0: no TLS */
/* What waits because of a fault is broken off. */
void s3_front_stop(struct s3_front *front);

#endif
