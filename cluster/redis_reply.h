/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes to answers: hiredis's reader, with bounds. The bytes come from whoever answers at the
 * address, and are not trusted.
 *
 * Threads:   caller locks.
 * Ownership: new() gives an object to free(); values go to dctf_redis_value_free().
 */
#ifndef DCTF_CLUSTER_REDIS_REPLY_H
#define DCTF_CLUSTER_REDIS_REPLY_H

#include "cluster/redis.h"

/* Of one answer. */
#define DCTF_REDIS_BYTES_MAX (16u << 20)
#define DCTF_REDIS_VALUES_MAX (1u << 17)
#define DCTF_REDIS_DEPTH_MAX 7u /* arrays within arrays */

struct dctf_redis_reader;

DCTF_MUST_CHECK
enum dctf_err dctf_redis_reader_new(struct dctf_redis_reader **out);
void dctf_redis_reader_free(struct dctf_redis_reader *reader); /* NULL is allowed */
/* Take more bytes. DCTF_ERR_COORDINATOR_ANSWER when they exceed the bounds. */
DCTF_MUST_CHECK
enum dctf_err dctf_redis_reader_feed(struct dctf_redis_reader *reader, const void *data, size_t len);
/* The next answer; DCTF_OK with *out NULL when its bytes are not all there. After an error the reader is of
 * no more use. */
DCTF_MUST_CHECK
enum dctf_err dctf_redis_reader_next(struct dctf_redis_reader *reader, struct dctf_redis_value **out);
/* Bytes that belong to no answer taken so far. */
size_t dctf_redis_reader_pending(const struct dctf_redis_reader *reader);

#endif
