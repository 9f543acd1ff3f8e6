/* SPDX-License-Identifier: Apache-2.0
 *
 * AWS credentials: a chain of providers, tried in order until one has some, then that
 * one is asked again before they expire:
 *   options → environment → shared config and credentials files (profile: keys,
 *   credential_process, web identity, role_arn with source_profile or credential_source)
 *   → web identity (AssumeRoleWithWebIdentity) → container endpoint (ECS, EKS Pod
 *   Identity) → IMDSv2.
 *
 * Renewal follows the *expiry*, from five minutes ahead (or at half of a shorter life),
 * single flight, on a thread of its own; the old set is used while it is valid, and a
 * failed renewal is tried again with backoff. Requests hold an immutable snapshot. While a
 * set is valid no other provider's takes its place, except that one which failed and was
 * stood in for comes first again.
 *
 * Threads:   any thread. get() waits only when there is no valid set, and bounded.
 * Ownership: snapshots are counted; new() gives an object to free().
 */
#ifndef DCTF_TRANSPORT_S3_CREDENTIALS_H
#define DCTF_TRANSPORT_S3_CREDENTIALS_H

#include "base/clock.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct dctf_http;
struct dctf_s3_credentials;

/* One set; immutable. Never printed as a whole: access_key_id may be shown. */
struct dctf_s3_keys {
    char *access_key_id;
    char *secret_access_key;
    char *session_token; /* "" : none */
    uint64_t expires_ms; /* wall clock; UINT64_MAX: never */
    char source[64];     /* "environment", "profile NAME", "web identity", "IMDS role NAME" … for people */
    unsigned refs;       /* atomic */
};

struct dctf_s3_credentials_config {
    /* Options; "" or NULL when not given. Copied. */
    const char *access_key_id;
    const char *secret_access_key;
    const char *session_token;
    const char *profile;          /* NULL or "": AWS_PROFILE, else "default" */
    const char *config_file;      /* NULL or "": AWS_CONFIG_FILE, else ~/.aws/config */
    const char *credentials_file; /* NULL or "": AWS_SHARED_CREDENTIALS_FILE, else ~/.aws/credentials */
    const char *region;           /* for the regional STS; NULL or "": AWS_REGION, the profile's, us-east-1 */
    const char *ca_file;          /* for STS */
    const char *ca_dir;
    char *const *env; /* environ-like, read when providers run; borrowed for life. NULL: environ.
                         Endpoint overrides for tests and private clouds come from the
                         customary variables: AWS_ENDPOINT_URL_STS, AWS_ENDPOINT_URL,
                         AWS_EC2_METADATA_SERVICE_ENDPOINT, AWS_EC2_METADATA_DISABLED,
                         AWS_CONTAINER_CREDENTIALS_FULL_URI … */
    const struct dctf_clock *clock; /* NULL: the system's */
    uint64_t call_timeout_ms;       /* of one request to a service; 0: 5000; IMDS connects within 1000 */
};

/* Starts no request: the first get() or refresh does. */
DCTF_MUST_CHECK
enum dctf_err dctf_s3_credentials_new(
    const struct dctf_s3_credentials_config *config, struct dctf_s3_credentials **out);
void dctf_s3_credentials_free(struct dctf_s3_credentials *credentials);

/* The set to sign with now, counted. Waits at most wait_ms for a first one, or for the next
 * when the old one has expired, was rejected, or expires within seconds while the next is on
 * its way; with wait_ms 0 never. One failed attempt ends the wait; in the pause after it the
 * error is told at once, unless the next attempt lies within wait_ms.
 * DCTF_ERR_CREDENTIALS_NONE when no provider has any, _CREDENTIALS_FAILED when one failed and
 * no valid set is left, _DEADLINE. */
DCTF_MUST_CHECK
enum dctf_err dctf_s3_credentials_get(
    struct dctf_s3_credentials *credentials, uint64_t wait_ms, struct dctf_s3_keys **out);
void dctf_s3_keys_unref(struct dctf_s3_keys *keys); /* wipes the secrets with the last one */

/* The same without waiting: `ready` is called, exactly once, on the credentials' thread or
 * before this returns, with a counted set or the error, no lock held. It must not block: the
 * others wait. free() answers who still waits with DCTF_ERR_SHUTTING_DOWN. */
typedef void dctf_s3_keys_ready(void *ctx, enum dctf_err err, struct dctf_s3_keys *keys);
void dctf_s3_credentials_ask(
    struct dctf_s3_credentials *credentials, uint64_t wait_ms, dctf_s3_keys_ready *ready, void *ctx);

/* The service said that `stale` has expired or is unknown: renew now unless a newer set is
 * already here; get() and ask() then prefer to wait for that. Returns at once. */
void dctf_s3_credentials_renew(struct dctf_s3_credentials *credentials, const struct dctf_s3_keys *stale);

/* Region that files, environment or IMDS tell; "" when none does. IMDS is asked only when
 * `ask_imds`, for at most wait_ms. */
void dctf_s3_credentials_region(
    struct dctf_s3_credentials *credentials, bool ask_imds, uint64_t wait_ms, char out[64]);

/* The address of S3 that environment or profile name (AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, endpoint_url),
 * to be freed; NULL for none. *where: a static text that says which of them. DCTF_ERR_NO_MEMORY. */
DCTF_MUST_CHECK
enum dctf_err dctf_s3_credentials_endpoint(
    struct dctf_s3_credentials *credentials, char **out, const char **where);

/* For `dctf doctor` and status: one line without secrets, such as
 * "web identity, key ASIA…WXYZ, expires in 52 min"; why each provider before it had none. */
void dctf_s3_credentials_describe(struct dctf_s3_credentials *credentials, char *out, size_t cap);

#endif
