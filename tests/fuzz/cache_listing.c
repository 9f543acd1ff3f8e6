/* SPDX-License-Identifier: Apache-2.0
 *
 * Records of listings and of heat are untrusted: decode any bytes as each kind, and
 * encode again what was accepted: it must be the same bytes.
 */
#include "cache/heat.h"
#include "cache/heat_record.h"
#include "cache/listing_record.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The first byte tells how many bytes are the name; the rest is the record. */
static void try_entry(const uint8_t *data, size_t len)
{
    size_t name_len = data[0] < len - 1 ? data[0] : len - 1;
    uint8_t record[DCTF_LISTING_ENTRY_MAX];
    char buf[DCTF_ENTRY_BUF_BYTES];
    struct dctf_entry entry;

    if (dctf_listing_entry_decode(data + 1, name_len, data + 1 + name_len, len - 1 - name_len, buf, &entry)) {
        assert(!*entry.name && !*entry.etag);
        return;
    }
    assert(strlen(entry.name) == name_len && !memcmp(entry.name, data + 1, name_len));
    assert(dctf_listing_entry_encode(&entry, record) == len - 1 - name_len);
    assert(!memcmp(record, data + 1 + name_len, len - 1 - name_len));
}

static void try_listing(const uint8_t *data, size_t len)
{
    uint8_t record[DCTF_LISTING_DIR_BYTES], key[DCTF_LISTING_GENERATION_KEY];
    struct dctf_listing_state state;
    struct dctf_id id;
    uint64_t number;

    if (!dctf_listing_dir_decode(data, len, &state)) {
        dctf_listing_dir_encode(&state, record);
        assert(len == sizeof(record) && !memcmp(record, data, len) && state.generation != 0);
    }
    if (!dctf_listing_number_decode(data, len, &number)) {
        dctf_listing_number_encode(number, record);
        assert(len == DCTF_LISTING_NUMBER_BYTES && !memcmp(record, data, len));
    }
    if (dctf_listing_entry_key_decode(data, len, &id, &number)) {
        dctf_listing_generation_key(&id, number, key);
        assert(!memcmp(key, data, sizeof(key)));
    }
}

static void try_heat(const uint8_t *data, size_t len)
{
    struct dctf_heat_config config = {.half_life_ms = 1000, .ttl_ms = 100000};
    uint8_t record[DCTF_HEAT_RECORD_BYTES], state[DCTF_HEAT_RECORD_BYTES] = {0};
    struct dctf_heat_count count;

    if (dctf_heat_count_decode(data, len, &count)) {
        dctf_heat_count_encode(&count, record);
        assert(len == sizeof(record) && !memcmp(record, data, len));
    }
    for (; len >= sizeof(record); data += sizeof(record), len -= sizeof(record)) {
        dctf_heat_merge(&config, state, data);
        assert(dctf_heat_count_decode(state, sizeof(state), &count) && isfinite(count.weight));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    /* A copy of the exact size, so that reading past the end is seen. */
    uint8_t *copy = malloc(size ? size : 1);

    if (!copy)
        return 0;
    memcpy(copy, data, size);
    if (size > 0)
        try_entry(copy, size);
    try_listing(copy, size);
    try_heat(copy, size);
    free(copy);
    return 0;
}
