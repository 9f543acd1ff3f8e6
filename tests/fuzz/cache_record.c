/* SPDX-License-Identifier: Apache-2.0
 *
 * Records of the database are untrusted: decode any bytes as each kind, with their
 * sum mended so that what lies behind the sum is reached too, and encode again what
 * was accepted: it must be the same bytes.
 */
#include "cache/record.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void mend(const void *key, size_t key_len, uint8_t *data, size_t len)
{
    uint64_t sum;

    if (len < 8)
        return;
    sum = dctf_hash64_seed(data, len - 8, dctf_hash64(key, key_len));
    for (int i = 0; i < 8; i++)
        data[len - 8 + (size_t)i] = (uint8_t)(sum >> 8 * i);
}

static void try_shard(const struct dctf_id *id, const uint8_t *data, size_t len)
{
    struct dctf_record_shard record;
    struct dctf_version *version;
    uint8_t buf[DCTF_RECORD_SHARD_MAX];

    if (dctf_record_shard_decode(id, data, len, &record))
        return;
    assert(dctf_record_shard_encode(id, &record, buf) == len && !memcmp(buf, data, len));
    if (!dctf_record_shard_version(id, &record, &version))
        dctf_version_unref(version);
}

static void try_extent(const struct dctf_id *id, const uint8_t *data, size_t len)
{
    struct dctf_record_extent record;
    uint8_t key[DCTF_RECORD_EXTENT_KEY];
    uint8_t buf[DCTF_RECORD_EXTENT_MAX];

    dctf_record_extent_key(id, 1, key);
    if (!dctf_record_extent_decode(key, data, len, &record))
        assert(dctf_record_extent_encode(key, &record, buf) == len && !memcmp(buf, data, len));
}

static void try_all(const struct dctf_id *id, uint64_t size, const uint8_t *data, size_t len)
{
    struct dctf_record_small small;
    struct dctf_record_meta meta;

    try_shard(id, data, len);
    try_extent(id, data, len);
    if (!dctf_record_small_decode(id, size, data, len, &small))
        assert(small.bytes + small.size == data + len);
    if (!dctf_record_meta_decode(data, len, &meta))
        assert(len == DCTF_RECORD_META_BYTES);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dctf_id id = {{0}};
    uint8_t key[DCTF_RECORD_EXTENT_KEY];
    uint64_t shard_size = 0;
    uint8_t *copy;
    size_t len;

    if (size < sizeof(id) + 4)
        return 0;
    memcpy(id.bytes, data, sizeof(id));
    memcpy(&shard_size, data + sizeof(id), 4);
    len = size - sizeof(id) - 4;
    copy = malloc(len ? len : 1); /* of its exact length, so that a read past it is seen */
    if (!copy)
        return 0;
    memcpy(copy, data + sizeof(id) + 4, len);
    try_all(&id, shard_size, copy, len);
    mend(id.bytes, sizeof(id), copy, len);
    try_all(&id, shard_size, copy, len);
    dctf_record_extent_key(&id, 1, key);
    mend(key, sizeof(key), copy, len);
    try_all(&id, shard_size, copy, len);
    mend(DCTF_RECORD_META_KEY, strlen(DCTF_RECORD_META_KEY), copy, len);
    try_all(&id, shard_size, copy, len);
    free(copy);
    return 0;
}
