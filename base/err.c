/* SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"

#include <errno.h>

/* Switches, not arrays: a code used twice does not compile. */

const char *dctf_err_name(enum dctf_err err)
{
    switch (err) {
    case DCTF_OK:
        return "OK";
#define X(code, name, errnum, class, text, remedy)                                                           \
    case DCTF_ERR_##name:                                                                                    \
        return #name;
#include "base/err.def"
#undef X
    }
    return "UNKNOWN";
}

const char *dctf_err_text(enum dctf_err err)
{
    switch (err) {
    case DCTF_OK:
        return "success";
#define X(code, name, errnum, class, text, remedy)                                                           \
    case DCTF_ERR_##name:                                                                                    \
        return text;
#include "base/err.def"
#undef X
    }
    return "unknown error";
}

const char *dctf_err_remedy(enum dctf_err err)
{
    switch (err) {
    case DCTF_OK:
        return "none needed";
#define X(code, name, errnum, class, text, remedy)                                                           \
    case DCTF_ERR_##name:                                                                                    \
        return remedy;
#include "base/err.def"
#undef X
    }
    return "please report it with the log";
}

int dctf_err_errno(enum dctf_err err)
{
    switch (err) {
    case DCTF_OK:
        return 0;
#define X(code, name, errnum, class, text, remedy)                                                           \
    case DCTF_ERR_##name:                                                                                    \
        return errnum;
#include "base/err.def"
#undef X
    }
    return EIO;
}

enum dctf_err_class dctf_err_class(enum dctf_err err)
{
    switch (err) {
    case DCTF_OK:
        break;
#define X(code, name, errnum, class, text, remedy)                                                           \
    case DCTF_ERR_##name:                                                                                    \
        return DCTF_ERR_CLASS_##class;
#include "base/err.def"
#undef X
    }
    return DCTF_ERR_CLASS_FATAL;
}

enum dctf_err dctf_err_from_errno_origin(int errnum)
{
    switch (errnum) {
    case 0:
        return DCTF_OK;
    case ENOENT:
        return DCTF_ERR_NOT_FOUND;
    case ENOTDIR:
        return DCTF_ERR_NOT_A_DIRECTORY;
    case EISDIR:
        return DCTF_ERR_IS_A_DIRECTORY;
    case EACCES:
    case EPERM:
        return DCTF_ERR_ORIGIN_ACCESS;
    case ENAMETOOLONG:
        return DCTF_ERR_NAME_TOO_LONG;
    case ESTALE: /* NFS: the file behind the handle is gone */
        return DCTF_ERR_VERSION_MISMATCH;
    case ETIMEDOUT:
        return DCTF_ERR_DEADLINE;
    case ENOTCONN:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENODEV:
        return DCTF_ERR_ORIGIN_UNREACHABLE;
    case ENOMEM:
        return DCTF_ERR_NO_MEMORY;
    default:
        return DCTF_ERR_ORIGIN_IO;
    }
}

enum dctf_err dctf_err_from_errno_cache(int errnum)
{
    switch (errnum) {
    case 0:
        return DCTF_OK;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        return DCTF_ERR_CACHE_NO_SPACE;
    case ENOENT:
        return DCTF_ERR_MISS;
    case ENOMEM:
        return DCTF_ERR_NO_MEMORY;
    default:
        return DCTF_ERR_CACHE_IO;
    }
}

enum dctf_err dctf_err_at(size_t i)
{
    static const enum dctf_err codes[] = {
#define X(code, name, errnum, class, text, remedy) DCTF_ERR_##name,
#include "base/err.def"
#undef X
    };
    return i < sizeof(codes) / sizeof(codes[0]) ? codes[i] : DCTF_OK;
}
