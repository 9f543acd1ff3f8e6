/* SPDX-License-Identifier: Apache-2.0 */
#include "base/version.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

struct counted_version {
    struct dctf_version version; /* first: the two share an address */
    atomic_uint refs;
    char text[]; /* key, etag and feature, each with its NUL */
};

uint64_t dctf_hash64(const void *data, size_t len)
{
    return XXH3_64bits(data, len);
}

uint64_t dctf_hash64_seed(const void *data, size_t len, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, len, seed);
}

static struct dctf_id id_of(XXH128_hash_t hash)
{
    XXH128_canonical_t canonical;
    struct dctf_id id;

    XXH128_canonicalFromHash(&canonical, hash);
    memcpy(id.bytes, canonical.digest, sizeof(id.bytes));
    return id;
}

struct dctf_id dctf_hash128(const void *data, size_t len)
{
    return id_of(XXH3_128bits(data, len));
}

/* Fields are hashed with their lengths, so that no two inputs look alike. */
static struct dctf_id version_id(uint64_t dataset, const char *key, const char *etag, uint64_t size)
{
    struct {
        uint64_t dataset, size, key_len, etag_len;
    } head = {dataset, size, strlen(key), strlen(etag)};
    char buf[sizeof(head) + DCTF_KEY_MAX + DCTF_ETAG_MAX];

    memcpy(buf, &head, sizeof(head));
    memcpy(buf + sizeof(head), key, head.key_len);
    memcpy(buf + sizeof(head) + head.key_len, etag, head.etag_len);
    return dctf_hash128(buf, sizeof(head) + head.key_len + head.etag_len);
}

enum dctf_err dctf_version_new(uint64_t dataset, const char *key, const char *etag, uint64_t size,
    enum dctf_feature_by by, struct dctf_version **out)
{
    size_t key_len = strlen(key);
    size_t etag_len = strlen(etag);
    const char *slash = strrchr(key, '/');
    size_t feature_len = by == DCTF_FEATURE_BY_FILE ? key_len : slash ? (size_t)(slash - key) : 0;
    struct counted_version *counted;
    char *text;

    *out = NULL;
    if (key_len > DCTF_KEY_MAX || etag_len > DCTF_ETAG_MAX)
        return DCTF_ERR_NAME_TOO_LONG;
    counted = malloc(sizeof(*counted) + key_len + etag_len + feature_len + 3);
    if (!counted)
        return DCTF_ERR_NO_MEMORY;
    atomic_init(&counted->refs, 1);
    text = counted->text;
    memcpy(text, key, key_len + 1);
    memcpy(text + key_len + 1, etag, etag_len + 1);
    memcpy(text + key_len + etag_len + 2, key, feature_len);
    text[key_len + etag_len + 2 + feature_len] = '\0';
    counted->version = (struct dctf_version){
        .id = version_id(dataset, key, etag, size),
        .key_hash = dctf_hash64_seed(key, key_len, dataset),
        .feature_id = dctf_hash64_seed(key, feature_len, dataset),
        .size = size,
        .key = text,
        .etag = text + key_len + 1,
        .feature = text + key_len + etag_len + 2,
    };
    *out = &counted->version;
    return DCTF_OK;
}

struct dctf_version *dctf_version_ref(struct dctf_version *version)
{
    struct counted_version *counted = (struct counted_version *)version;

    atomic_fetch_add_explicit(&counted->refs, 1, memory_order_relaxed);
    return version;
}

void dctf_version_unref(struct dctf_version *version)
{
    struct counted_version *counted = (struct counted_version *)version;
    unsigned before;

    if (!counted)
        return;
    before = atomic_fetch_sub_explicit(&counted->refs, 1, memory_order_acq_rel);
    assert(before > 0);
    if (before == 1)
        free(counted);
}
