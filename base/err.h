/* SPDX-License-Identifier: Apache-2.0
 *
 * Error codes: one table (err.def) from which code, names, errno, messages and
 * the documentation come.
 *
 * Threads:   any thread; everything here is pure.
 * Ownership: returned strings are static.
 */
#ifndef DCTF_BASE_ERR_H
#define DCTF_BASE_ERR_H

#include <stddef.h>

#define DCTF_MUST_CHECK __attribute__((warn_unused_result))
#define DCTF_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

enum dctf_err {
    DCTF_OK = 0,
#define X(code, name, errnum, class, text, remedy) DCTF_ERR_##name = code,
#include "base/err.def"
#undef X
};

enum dctf_err_class {
    DCTF_ERR_CLASS_FATAL, /* ends the operation */
    DCTF_ERR_CLASS_RETRY, /* may pass against the same source */
    DCTF_ERR_CLASS_NEXT,  /* ask another source */
};

/* "VERSION_MISMATCH"; "OK" for DCTF_OK, "UNKNOWN" for a code not in the table. */
const char *dctf_err_name(enum dctf_err err);
/* One line of text and one line of remedy, without a full stop. */
const char *dctf_err_text(enum dctf_err err);
const char *dctf_err_remedy(enum dctf_err err);
/* The positive errno FUSE answers with; 0 for DCTF_OK, EIO for an unknown code. */
int dctf_err_errno(enum dctf_err err);
enum dctf_err_class dctf_err_class(enum dctf_err err);

/* The code for an errno of a call on the *source* (`origin`) or on the local
 * cache or system (`local`). Unknown values keep a code of their layer. */
enum dctf_err dctf_err_from_errno_origin(int errnum);
enum dctf_err dctf_err_from_errno_cache(int errnum);

/* Walk the table: the i-th code in table order, DCTF_OK past the end. */
enum dctf_err dctf_err_at(size_t i);

#endif
