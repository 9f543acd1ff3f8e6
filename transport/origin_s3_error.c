/* SPDX-License-Identifier: Apache-2.0
 *
 * S3's errors as ours: the code of the error document where the table knows it, else the
 * status. Source: "Error responses", Amazon S3 API Reference; "Common error types" of
 * AWS's query services. Only a key or a bucket that is not there is ENOENT.
 */
#include "transport/s3_internal.h"

#include <string.h>

struct row {
    const char *code;
    enum dctf_err err;
    unsigned ailment;
};

static const struct row rows[] = {
    {"NoSuchKey", DCTF_ERR_NOT_FOUND, 0},
    {"NoSuchVersion", DCTF_ERR_NOT_FOUND, 0},
    {"NoSuchBucket", DCTF_ERR_BUCKET_NOT_FOUND, 0},
    {"PreconditionFailed", DCTF_ERR_VERSION_MISMATCH, 0},
    {"InvalidRange", DCTF_ERR_VERSION_MISMATCH, 0},
    {"AccessDenied", DCTF_ERR_ORIGIN_ACCESS, 0},
    {"AccessDeniedException", DCTF_ERR_ORIGIN_ACCESS, 0},
    {"AccountProblem", DCTF_ERR_ORIGIN_ACCESS, 0},
    {"AllAccessDisabled", DCTF_ERR_ORIGIN_ACCESS, 0},
    {"InvalidObjectState", DCTF_ERR_ORIGIN_ACCESS, 0}, /* archived: to be restored first */
    {"InvalidPayer", DCTF_ERR_ORIGIN_ACCESS, 0},
    {"NotSignedUp", DCTF_ERR_ORIGIN_ACCESS, 0},
    {"OptInRequired", DCTF_ERR_ORIGIN_ACCESS, 0},
    {"InvalidAccessKeyId", DCTF_ERR_ORIGIN_AUTH, DCTF_S3_AILS_CREDENTIALS},
    {"InvalidClientTokenId", DCTF_ERR_ORIGIN_AUTH, DCTF_S3_AILS_CREDENTIALS},
    {"UnrecognizedClientException", DCTF_ERR_ORIGIN_AUTH, DCTF_S3_AILS_CREDENTIALS},
    {"ExpiredToken", DCTF_ERR_ORIGIN_AUTH, DCTF_S3_AILS_CREDENTIALS},
    {"ExpiredTokenException", DCTF_ERR_ORIGIN_AUTH, DCTF_S3_AILS_CREDENTIALS},
    {"InvalidToken", DCTF_ERR_ORIGIN_AUTH, DCTF_S3_AILS_CREDENTIALS},
    {"TokenRefreshRequired", DCTF_ERR_ORIGIN_AUTH, DCTF_S3_AILS_CREDENTIALS},
    {"SignatureDoesNotMatch", DCTF_ERR_ORIGIN_AUTH, 0},
    {"AuthorizationHeaderMalformed", DCTF_ERR_ORIGIN_AUTH, DCTF_S3_AILS_REGION},
    {"AuthorizationQueryParametersError", DCTF_ERR_ORIGIN_AUTH, DCTF_S3_AILS_REGION},
    {"CredentialsNotSupported", DCTF_ERR_ORIGIN_AUTH, 0},
    {"InvalidSecurity", DCTF_ERR_ORIGIN_AUTH, 0},
    {"MissingAuthenticationToken", DCTF_ERR_ORIGIN_AUTH, 0},
    {"MissingSecurityHeader", DCTF_ERR_ORIGIN_AUTH, 0},
    {"RequestTimeTooSkewed", DCTF_ERR_CLOCK_SKEW, DCTF_S3_AILS_CLOCK},
    {"RequestExpired", DCTF_ERR_CLOCK_SKEW, DCTF_S3_AILS_CLOCK},
    {"RequestInTheFuture", DCTF_ERR_CLOCK_SKEW, DCTF_S3_AILS_CLOCK},
    {"IllegalLocationConstraintException", DCTF_ERR_ORIGIN_REGION, DCTF_S3_AILS_REGION},
    {"PermanentRedirect", DCTF_ERR_ORIGIN_REGION, DCTF_S3_AILS_REGION},
    {"TemporaryRedirect", DCTF_ERR_ORIGIN_REGION, DCTF_S3_AILS_REGION},
    {"Redirect", DCTF_ERR_ORIGIN_REGION, DCTF_S3_AILS_REGION},
    {"BandwidthLimitExceeded", DCTF_ERR_ORIGIN_THROTTLED, 0},
    {"LimitExceededException", DCTF_ERR_ORIGIN_THROTTLED, 0},
    {"PriorRequestNotComplete", DCTF_ERR_ORIGIN_THROTTLED, 0},
    {"RequestLimitExceeded", DCTF_ERR_ORIGIN_THROTTLED, 0},
    {"RequestThrottled", DCTF_ERR_ORIGIN_THROTTLED, 0},
    {"RequestThrottledException", DCTF_ERR_ORIGIN_THROTTLED, 0},
    {"SlowDown", DCTF_ERR_ORIGIN_THROTTLED, 0},
    {"ThrottledException", DCTF_ERR_ORIGIN_THROTTLED, 0},
    {"Throttling", DCTF_ERR_ORIGIN_THROTTLED, 0},
    {"ThrottlingException", DCTF_ERR_ORIGIN_THROTTLED, 0},
    {"TooManyRequests", DCTF_ERR_ORIGIN_THROTTLED, 0},
    {"TooManyRequestsException", DCTF_ERR_ORIGIN_THROTTLED, 0},
    {"InternalError", DCTF_ERR_ORIGIN_IO, 0},
    {"OperationAborted", DCTF_ERR_ORIGIN_IO, 0},
    {"RequestTimeout", DCTF_ERR_ORIGIN_IO, 0},
    {"RequestTimeoutException", DCTF_ERR_ORIGIN_IO, 0},
    {"ServiceUnavailable", DCTF_ERR_ORIGIN_IO, 0},
};

static const struct row *row_of(const char *code)
{
    for (size_t i = 0; *code && i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (strcmp(rows[i].code, code) == 0)
            return &rows[i];
    }
    return NULL;
}

static enum dctf_err of_status(enum dctf_s3_op op, int status)
{
    switch (status) {
    case 401:
        return DCTF_ERR_ORIGIN_AUTH;
    case 403:
        return DCTF_ERR_ORIGIN_ACCESS;
    case 404: /* of a list it is no S3 that answers: what a bucket lacks is an empty list */
        return op == DCTF_S3_LIST ? DCTF_ERR_BAD_RESPONSE : DCTF_ERR_NOT_FOUND;
    case 412:
    case 416:
        return op == DCTF_S3_GET ? DCTF_ERR_VERSION_MISMATCH : DCTF_ERR_BAD_RESPONSE;
    case 429:
        return DCTF_ERR_ORIGIN_THROTTLED;
    case 408:
    case 409:
    case 425:
        return DCTF_ERR_ORIGIN_IO;
    case 301:
    case 302:
    case 307:
    case 308:
        return DCTF_ERR_ORIGIN_REGION;
    case 501:
    case 505:
        return DCTF_ERR_BAD_RESPONSE;
    default:
        return status >= 500 && status <= 599 ? DCTF_ERR_ORIGIN_IO : DCTF_ERR_BAD_RESPONSE;
    }
}

enum dctf_err dctf_s3_error_map(enum dctf_s3_op op, int status, const char *code)
{
    const struct row *row = row_of(code);

    if (!row)
        return of_status(op, status);
    /* A reader's errors, in the place of a directory's. */
    if (op == DCTF_S3_LIST && (row->err == DCTF_ERR_NOT_FOUND || row->err == DCTF_ERR_VERSION_MISMATCH))
        return DCTF_ERR_BAD_RESPONSE;
    return row->err;
}

unsigned dctf_s3_error_ailment(int status, const char *code)
{
    const struct row *row = row_of(code);

    if (row)
        return row->ailment;
    if (*code)
        return 0;
    /* No document, as for every HEAD: the status is all there is. A region is only believed
     * when the answer names one. */
    if (status == 400)
        return DCTF_S3_AILS_REGION | DCTF_S3_AILS_CREDENTIALS;
    if (status == 403 || (status >= 301 && status <= 308))
        return DCTF_S3_AILS_REGION;
    return 0;
}
