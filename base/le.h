/* SPDX-License-Identifier: Apache-2.0
 *
 * Little-endian numbers of up to eight bytes in records and messages, at any address.
 *
 * Threads:   any; no state.
 * Ownership: none.
 */
#ifndef DCTF_BASE_LE_H
#define DCTF_BASE_LE_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

static inline void dctf_le_put(void *to, uint64_t value, unsigned bytes)
{
    value = htole64(value);
    memcpy(to, &value, bytes);
}

static inline uint64_t dctf_le_get(const void *from, unsigned bytes)
{
    uint64_t value = 0;

    memcpy(&value, from, bytes);
    return le64toh(value);
}

#endif
