/* SPDX-License-Identifier: Apache-2.0
 *
 * What answers, by kind of request. Each is called once, when the body has ended.
 *
 * Threads:   the thread of the request.
 * Ownership: nothing is kept. The result is MHD's: MHD_NO closes the connection.
 */
#ifndef DCTF_TESTS_S3_HANDLERS_H
#define DCTF_TESTS_S3_HANDLERS_H

#include "lib/s3_request.h"

/* After faults that come before an answer; the S3 part checks who asks. */
enum MHD_Result s3_handle_s3(struct s3_request *request);
enum MHD_Result s3_handle_sts(struct s3_request *request);
enum MHD_Result s3_handle_imds(struct s3_request *request);
enum MHD_Result s3_handle_container(struct s3_request *request);
enum MHD_Result s3_handle_control(struct s3_request *request);

/* Parts of the S3 part: the bucket is known, the client may do it. */
enum MHD_Result s3_handle_list(struct s3_request *request);
enum MHD_Result s3_handle_get(struct s3_request *request); /* and head */
enum MHD_Result s3_handle_put(struct s3_request *request);
enum MHD_Result s3_handle_delete(struct s3_request *request);

/* STS has an error document of its own. */
enum MHD_Result s3_reply_sts_error(
    struct s3_request *request, unsigned status, const char *code, const char *message);

/* The fault that takes the place of an answer, if the plan has one: true, and *result is the answer. */
bool s3_handle_fault(struct s3_request *request, enum MHD_Result *result);

#endif
