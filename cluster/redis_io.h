/* SPDX-License-Identifier: Apache-2.0
 *
 * A TCP or TLS connection whose every step ends at a deadline, in monotonic milliseconds.
 * Certificates and host names are always verified.
 *
 * Threads:   one thread.
 * Ownership: embedded; open() is undone by close(), which a failed open() needs not.
 */
#ifndef DCTF_CLUSTER_REDIS_IO_H
#define DCTF_CLUSTER_REDIS_IO_H

#include "base/err.h"

#include <stdint.h>
#include <sys/socket.h>

struct ssl_st;
struct ssl_ctx_st;

struct dctf_redis_io {
    int fd;
    struct ssl_st *ssl; /* NULL: plain */
    const char *what;   /* of the last failure, in words; static */
    int status;         /* of the last failure: errno, or OpenSSL's verification result, or 0 */
};

/* What TLS needs for all connections. *out stays NULL on failure: DCTF_ERR_OPTION_VALUE for a ca_file
 * that cannot be used. */
DCTF_MUST_CHECK
enum dctf_err dctf_redis_tls_new(const char *ca_file, struct ssl_ctx_st **out);
void dctf_redis_tls_free(struct ssl_ctx_st *tls);

/* All of these: DCTF_ERR_COORDINATOR_GONE. `tls` NULL: plain. `host` is what the certificate must be for. */
DCTF_MUST_CHECK
enum dctf_err dctf_redis_io_open(struct dctf_redis_io *io, const struct sockaddr_storage *address,
    struct ssl_ctx_st *tls, const char *host, uint64_t due_ms);
void dctf_redis_io_close(struct dctf_redis_io *io);
DCTF_MUST_CHECK
enum dctf_err dctf_redis_io_write(struct dctf_redis_io *io, const void *data, size_t len, uint64_t due_ms);
/* One byte or more. */
DCTF_MUST_CHECK
enum dctf_err dctf_redis_io_read(
    struct dctf_redis_io *io, void *data, size_t cap, uint64_t due_ms, size_t *out_len);

#endif
