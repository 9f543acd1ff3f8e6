/* SPDX-License-Identifier: Apache-2.0
 *
 * libs3's statuses as our errors. HTTP statuses that the library does not know, 408, 429, 502 and
 * 504 among them, are one status to it: they are taken for what can pass.
 */
#include "transport/origin_libs3_internal.h"

#include <libs3.h>

/* The library or this machine, before anything was answered. */
static enum dctf_err of_library(S3Status status)
{
    switch (status) {
    case S3StatusOK:
        return DCTF_OK;
    case S3StatusOutOfMemory:
    case S3StatusFailedToInitializeRequest:
        return DCTF_ERR_NO_MEMORY;
    case S3StatusInvalidBucketNameTooLong:
    case S3StatusInvalidBucketNameFirstCharacter:
    case S3StatusInvalidBucketNameCharacter:
    case S3StatusInvalidBucketNameCharacterSequence:
    case S3StatusInvalidBucketNameTooShort:
    case S3StatusInvalidBucketNameDotQuadNotation:
    case S3StatusQueryParamsTooLong:
    case S3StatusHeadersTooLong:
    case S3StatusUriTooLong:
    case S3StatusBadIfMatchETag:
    case S3StatusIfMatchETagTooLong:
        return DCTF_ERR_S3_CLIENT_UNSAFE;
    case S3StatusKeyTooLong:
        return DCTF_ERR_NAME_TOO_LONG;
    case S3StatusXmlParseFailure:
    case S3StatusXmlDocumentTooLarge:
        return DCTF_ERR_BAD_RESPONSE;
    case S3StatusNameLookupError:
    case S3StatusFailedToConnect:
        return DCTF_ERR_ORIGIN_UNREACHABLE;
    case S3StatusServerFailedVerification:
        return DCTF_ERR_ORIGIN_TLS;
    case S3StatusAbortedByCallback:
        return DCTF_ERR_CANCELLED;
    default: /* InternalError (all that curl has no word for), ConnectionFailed, Interrupted */
        return DCTF_ERR_ORIGIN_IO;
    }
}

static enum dctf_err of_service(S3Status status)
{
    switch (status) {
    case S3StatusErrorNoSuchBucket:
        return DCTF_ERR_BUCKET_NOT_FOUND;
    case S3StatusErrorAccessDenied:
    case S3StatusErrorAccountProblem:
    case S3StatusErrorInvalidPayer:
    case S3StatusErrorNotSignedUp:
    case S3StatusHttpErrorForbidden:
        return DCTF_ERR_ORIGIN_ACCESS;
    case S3StatusErrorCredentialsNotSupported:
    case S3StatusErrorExpiredToken:
    case S3StatusErrorInvalidAccessKeyId:
    case S3StatusErrorInvalidSecurity:
    case S3StatusErrorInvalidToken:
    case S3StatusErrorMissingSecurityElement:
    case S3StatusErrorMissingSecurityHeader:
    case S3StatusErrorSignatureDoesNotMatch:
    case S3StatusErrorTokenRefreshRequired:
        return DCTF_ERR_ORIGIN_AUTH;
    case S3StatusErrorRequestTimeTooSkewed:
        return DCTF_ERR_CLOCK_SKEW;
    case S3StatusErrorPermanentRedirect:
    case S3StatusErrorRedirect:
    case S3StatusErrorTemporaryRedirect:
    case S3StatusHttpErrorMovedTemporarily:
        return DCTF_ERR_ORIGIN_REGION;
    case S3StatusErrorSlowDown:
        return DCTF_ERR_ORIGIN_THROTTLED;
    case S3StatusErrorInternalError:
    case S3StatusErrorOperationAborted:
    case S3StatusErrorRequestTimeout:
    case S3StatusErrorUnknown:
    case S3StatusHttpErrorConflict:
    case S3StatusHttpErrorUnknown:
        return DCTF_ERR_ORIGIN_IO;
    default: /* no answer to a request like ours */
        return DCTF_ERR_BAD_RESPONSE;
    }
}

enum dctf_err dctf_libs3_status(int number, bool listing)
{
    S3Status status = (S3Status)number;

    switch (status) {
    case S3StatusErrorNoSuchKey:
    case S3StatusHttpErrorNotFound: /* of a listing it is no S3 that answers */
        return listing ? DCTF_ERR_BAD_RESPONSE : DCTF_ERR_NOT_FOUND;
    case S3StatusErrorPreconditionFailed:
    case S3StatusErrorInvalidRange: /* the object has become shorter */
        return listing ? DCTF_ERR_BAD_RESPONSE : DCTF_ERR_VERSION_MISMATCH;
    default:
        return status < S3StatusErrorAccessDenied ? of_library(status) : of_service(status);
    }
}
