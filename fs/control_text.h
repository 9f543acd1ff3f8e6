/* SPDX-License-Identifier: Apache-2.0
 *
 * Paths and names in control requests: `field` as text, or `field`_hex for bytes that are
 * not UTF-8.
 *
 * Threads:   any thread; pure.
 * Ownership: nothing is kept.
 */
#ifndef DCTF_FS_CONTROL_TEXT_H
#define DCTF_FS_CONTROL_TEXT_H

#include "base/err.h"

#include <jansson.h>

/* The value of the field without slashes at its ends, "" when it is absent. `out` ≥
 * DCTF_KEY_MAX + 1 bytes. DCTF_ERR_NAME_TOO_LONG, DCTF_ERR_REQUEST_BAD. */
DCTF_MUST_CHECK
enum dctf_err dctf_control_text(const json_t *request, const char *field, char *out);

#endif
