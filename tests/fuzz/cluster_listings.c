/* SPDX-License-Identifier: Apache-2.0
 *
 * Pages of listings, heat, and what members answer, come from other machines: any bytes are taken for one.
 * What is accepted is within its bounds, in order, and written again the same.
 */
#include "cluster/cluster_heat.h"
#include "cluster/listings_internal.h"
#include "cluster/listings_page.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_page(const uint8_t *data, size_t len, const char *after)
{
    size_t cap = len + DCTF_LISTINGS_PAGE_HEAD + DCTF_LISTINGS_PAGE_ENTRY_MAX;
    struct dctf_listings_page_writer writer;
    struct dctf_listings_page page;
    char last[DCTF_NAME_MAX + 1];
    struct dctf_entry entry;
    uint8_t *again;
    enum dctf_err err;

    if (dctf_listings_page_open(&page, data, len, after))
        return;
    again = malloc(cap);
    assert(again);
    strcpy(last, after);
    dctf_listings_page_begin(&writer, again, cap);
    while (!(err = dctf_listings_page_next(&page, &entry))) {
        assert(*entry.name && strlen(entry.name) <= DCTF_NAME_MAX && !strchr(entry.name, '/'));
        assert(strcmp(last, entry.name) < 0); /* bytes, as unsigned */
        assert(strlen(entry.etag) <= DCTF_ETAG_MAX && entry.size <= DCTF_SIZE_MAX);
        assert(!entry.is_dir || (!entry.size && !*entry.etag));
        strcpy(last, entry.name);
        assert(dctf_listings_page_add(&writer, &entry));
    }
    if (err == DCTF_ERR_NOT_FOUND) {
        assert(dctf_listings_page_end(&writer, &page.head) == len);
        assert(!memcmp(again, data, len));
    }
    free(again);
}

static void try_heat(const uint8_t *data, size_t len)
{
    struct dctf_cluster_heat_entry entry;
    struct dctf_heat_cursor cursor;
    size_t count = 0;

    if (dctf_heat_open(&cursor, data, len))
        return;
    while (!dctf_heat_next(&cursor, &entry)) {
        assert(entry.heat.class <= DCTF_POLICY_HOT && entry.heat.passes >= 0);
        assert(strlen(entry.path) <= DCTF_KEY_MAX && (entry.known || !*entry.path));
        count++;
    }
    assert(count <= len / 31);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t numbers[DCTF_TOLD_NUMBERS];
    uint8_t *copy = malloc(size ? size : 1), told[DCTF_TOLD_BYTES];

    if (!copy)
        return 0;
    memcpy(copy, data, size); /* of the exact size, so that reading past the end is seen */
    try_page(copy, size, "");
    try_page(copy, size, "b");
    try_heat(copy, size);
    if (dctf_told_decode(copy, size, numbers)) {
        dctf_told_encode(numbers, told);
        assert(!memcmp(told, copy, size));
    }
    free(copy);
    return 0;
}
