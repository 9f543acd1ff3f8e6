/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/record.h"

#include <assert.h>
#include <endian.h>
#include <string.h>

#define FORMAT 1u
#define SUM_BYTES 8u
#define SHARD_HEAD 48u

static uint8_t *put16(uint8_t *p, uint16_t value)
{
    value = htole16(value);
    memcpy(p, &value, sizeof(value));
    return p + sizeof(value);
}

static uint8_t *put32(uint8_t *p, uint32_t value)
{
    value = htole32(value);
    memcpy(p, &value, sizeof(value));
    return p + sizeof(value);
}

static uint8_t *put64(uint8_t *p, uint64_t value)
{
    value = htole64(value);
    memcpy(p, &value, sizeof(value));
    return p + sizeof(value);
}

static uint16_t get16(const uint8_t *p)
{
    uint16_t value;

    memcpy(&value, p, sizeof(value));
    return le16toh(value);
}

static uint32_t get32(const uint8_t *p)
{
    uint32_t value;

    memcpy(&value, p, sizeof(value));
    return le32toh(value);
}

static uint64_t get64(const uint8_t *p)
{
    uint64_t value;

    memcpy(&value, p, sizeof(value));
    return le64toh(value);
}

static uint8_t *put_head(uint8_t *p, uint8_t b, uint8_t c)
{
    p[0] = FORMAT;
    p[1] = b;
    p[2] = c;
    p[3] = 0;
    return p + 4;
}

static uint64_t sum_of(const void *key, size_t key_len, const uint8_t *data, size_t len)
{
    return dctf_hash64_seed(data, len, dctf_hash64(key, key_len));
}

/* Append the sum of what was written since `buf`; returns the record's length. */
static size_t seal(const void *key, size_t key_len, uint8_t *buf, uint8_t *p)
{
    p = put64(p, sum_of(key, key_len, buf, (size_t)(p - buf)));
    return (size_t)(p - buf);
}

static bool is_sealed(const void *key, size_t key_len, const uint8_t *data, size_t len)
{
    return len >= 4 + SUM_BYTES && data[0] == FORMAT && data[3] == 0 &&
           get64(data + len - SUM_BYTES) == sum_of(key, key_len, data, len - SUM_BYTES);
}

void dctf_record_shard_of(const struct dctf_version *version, uint64_t dataset, enum dctf_record_kind kind,
    uint64_t present_bytes, struct dctf_record_shard *out)
{
    *out = (struct dctf_record_shard){
        .kind = kind,
        .feature_by =
            !strcmp(version->feature, version->key) ? DCTF_FEATURE_BY_FILE : DCTF_FEATURE_BY_DIRECTORY,
        .dataset = dataset,
        .size = version->size,
        .present_bytes = present_bytes,
        .key_hash = version->key_hash,
        .feature_id = version->feature_id,
        .key = version->key,
        .key_len = strlen(version->key),
        .etag = version->etag,
        .etag_len = strlen(version->etag),
    };
}

size_t dctf_record_shard_encode(
    const struct dctf_id *id, const struct dctf_record_shard *record, uint8_t *buf)
{
    uint8_t *p = put_head(buf, (uint8_t)record->kind, (uint8_t)record->feature_by);

    assert(record->key_len <= DCTF_KEY_MAX && record->etag_len <= DCTF_ETAG_MAX);
    p = put64(p, record->dataset);
    p = put64(p, record->size);
    p = put64(p, record->present_bytes);
    p = put64(p, record->key_hash);
    p = put64(p, record->feature_id);
    p = put16(p, (uint16_t)record->key_len);
    p = put16(p, (uint16_t)record->etag_len);
    memcpy(p, record->key, record->key_len);
    p += record->key_len;
    memcpy(p, record->etag, record->etag_len);
    p += record->etag_len;
    return seal(id->bytes, sizeof(id->bytes), buf, p);
}

static bool is_plausible(const struct dctf_record_shard *record)
{
    if (record->feature_by != DCTF_FEATURE_BY_DIRECTORY && record->feature_by != DCTF_FEATURE_BY_FILE)
        return false;
    if (memchr(record->key, '\0', record->key_len) || memchr(record->etag, '\0', record->etag_len))
        return false;
    if (record->present_bytes > record->size)
        return false;
    if (record->kind == DCTF_RECORD_SMALL)
        return record->size <= DCTF_RECORD_SMALL_BYTES && record->present_bytes == record->size;
    return record->kind == DCTF_RECORD_FILE && record->size > DCTF_RECORD_SMALL_BYTES &&
           record->size <= DCTF_RECORD_SIZE_MAX;
}

enum dctf_err dctf_record_shard_decode(
    const struct dctf_id *id, const void *data, size_t len, struct dctf_record_shard *out)
{
    const uint8_t *p = data;

    *out = (struct dctf_record_shard){0};
    if (len < SHARD_HEAD + SUM_BYTES || !is_sealed(id->bytes, sizeof(id->bytes), p, len))
        return DCTF_ERR_CACHE_CORRUPT;
    out->kind = (enum dctf_record_kind)p[1];
    out->feature_by = (enum dctf_feature_by)p[2];
    out->dataset = get64(p + 4);
    out->size = get64(p + 12);
    out->present_bytes = get64(p + 20);
    out->key_hash = get64(p + 28);
    out->feature_id = get64(p + 36);
    out->key_len = get16(p + 44);
    out->etag_len = get16(p + 46);
    out->key = (const char *)p + SHARD_HEAD;
    out->etag = out->key + out->key_len;
    if (out->key_len > DCTF_KEY_MAX || out->etag_len > DCTF_ETAG_MAX ||
        len != SHARD_HEAD + out->key_len + out->etag_len + SUM_BYTES || !is_plausible(out)) {
        *out = (struct dctf_record_shard){0};
        return DCTF_ERR_CACHE_CORRUPT;
    }
    return DCTF_OK;
}

enum dctf_err dctf_record_shard_version(
    const struct dctf_id *id, const struct dctf_record_shard *record, struct dctf_version **out)
{
    char key[DCTF_KEY_MAX + 1];
    char etag[DCTF_ETAG_MAX + 1];
    enum dctf_err err;

    memcpy(key, record->key, record->key_len);
    key[record->key_len] = '\0';
    memcpy(etag, record->etag, record->etag_len);
    etag[record->etag_len] = '\0';
    err = dctf_version_new(record->dataset, key, etag, record->size, record->feature_by, out);
    if (err)
        return err;
    if (memcmp((*out)->id.bytes, id->bytes, sizeof(id->bytes)) != 0) {
        dctf_version_unref(*out);
        *out = NULL;
        return DCTF_ERR_CACHE_CORRUPT;
    }
    return DCTF_OK;
}

void dctf_record_extent_key(const struct dctf_id *id, uint32_t extent, uint8_t key[DCTF_RECORD_EXTENT_KEY])
{
    uint32_t big = htobe32(extent);

    memcpy(key, id->bytes, sizeof(id->bytes));
    memcpy(key + sizeof(id->bytes), &big, sizeof(big));
}

bool dctf_record_extent_key_decode(const void *key, size_t len, struct dctf_id *id, uint32_t *extent)
{
    uint32_t big;

    *extent = 0;
    if (len != DCTF_RECORD_EXTENT_KEY)
        return false;
    memcpy(id->bytes, key, sizeof(id->bytes));
    memcpy(&big, (const uint8_t *)key + sizeof(id->bytes), sizeof(big));
    *extent = be32toh(big);
    return true;
}

size_t dctf_record_extent_encode(
    const uint8_t key[DCTF_RECORD_EXTENT_KEY], const struct dctf_record_extent *record, uint8_t *buf)
{
    uint8_t *p = put32(put_head(buf, 0, 0), record->present);

    for (unsigned i = 0; i < DCTF_EXTENT_BLOCKS; i++) {
        if (record->present & (1u << i))
            p = put64(p, record->hash[i]);
    }
    return seal(key, DCTF_RECORD_EXTENT_KEY, buf, p);
}

enum dctf_err dctf_record_extent_decode(
    const uint8_t key[DCTF_RECORD_EXTENT_KEY], const void *data, size_t len, struct dctf_record_extent *out)
{
    const uint8_t *p = data;
    uint32_t present;

    memset(out, 0, sizeof(*out));
    if (len < 8 + SUM_BYTES || !is_sealed(key, DCTF_RECORD_EXTENT_KEY, p, len) || p[1] || p[2])
        return DCTF_ERR_CACHE_CORRUPT;
    present = get32(p + 4);
    if (len != 8 + 8 * (size_t)__builtin_popcount(present) + SUM_BYTES)
        return DCTF_ERR_CACHE_CORRUPT;
    out->present = present;
    p += 8;
    for (unsigned i = 0; i < DCTF_EXTENT_BLOCKS; i++) {
        if (present & (1u << i)) {
            out->hash[i] = get64(p);
            p += 8;
        }
    }
    return DCTF_OK;
}

size_t dctf_record_small_header_bytes(uint64_t size)
{
    return 16 + 8 * (size_t)dctf_blocks_of(size) + SUM_BYTES;
}

size_t dctf_record_small_encode(const struct dctf_id *id, uint64_t size, const uint64_t *hash, uint8_t *buf)
{
    uint32_t blocks = dctf_blocks_of(size);
    uint8_t *p = put64(put32(put_head(buf, 0, 0), blocks), size);

    assert(size <= DCTF_RECORD_SMALL_BYTES);
    for (uint32_t i = 0; i < blocks; i++)
        p = put64(p, hash[i]);
    return seal(id->bytes, sizeof(id->bytes), buf, p);
}

enum dctf_err dctf_record_small_decode(
    const struct dctf_id *id, uint64_t size, const void *data, size_t len, struct dctf_record_small *out)
{
    size_t header = dctf_record_small_header_bytes(size);
    const uint8_t *p = data;

    memset(out, 0, sizeof(*out));
    if (size > DCTF_RECORD_SMALL_BYTES || len != header + size ||
        !is_sealed(id->bytes, sizeof(id->bytes), p, header) || p[1] || p[2] ||
        get32(p + 4) != dctf_blocks_of(size) || get64(p + 8) != size)
        return DCTF_ERR_CACHE_CORRUPT;
    out->blocks = dctf_blocks_of(size);
    out->size = size;
    for (uint32_t i = 0; i < out->blocks; i++)
        out->hash[i] = get64(p + 16 + 8 * i);
    out->bytes = p + header;
    return DCTF_OK;
}

void dctf_record_meta_encode(const struct dctf_record_meta *record, uint8_t buf[DCTF_RECORD_META_BYTES])
{
    uint8_t *p = put32(put_head(buf, record->clean, 0), 0);

    p = put64(p, record->file_bytes);
    p = put64(p, record->small_bytes);
    p = put64(p, record->shards);
    (void)seal(DCTF_RECORD_META_KEY, sizeof(DCTF_RECORD_META_KEY) - 1, buf, p);
}

enum dctf_err dctf_record_meta_decode(const void *data, size_t len, struct dctf_record_meta *out)
{
    const uint8_t *p = data;

    *out = (struct dctf_record_meta){0};
    if (len != DCTF_RECORD_META_BYTES ||
        !is_sealed(DCTF_RECORD_META_KEY, sizeof(DCTF_RECORD_META_KEY) - 1, p, len) || p[1] > 1 || p[2])
        return DCTF_ERR_CACHE_CORRUPT;
    out->clean = p[1];
    out->file_bytes = get64(p + 8);
    out->small_bytes = get64(p + 16);
    out->shards = get64(p + 24);
    return DCTF_OK;
}
