/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of s3_credentials*.c: the providers and what they share.
 *
 * A walk asks the providers of the table in order. It belongs to one thread, reads files
 * and environment afresh, and makes its HTTP clients when first needed, so that nothing
 * is held between renewals.
 *
 * Threads:   a setup is read-only but for `stop`, `calls` and `warned`; several walks may use it
 *            (renewal, and who asks for a region), and dctf_cred_setup_stop() may be called from another
 * thread. Ownership: a walk is on the caller's stack between _init() and _fini().
 */
#ifndef DCTF_TRANSPORT_S3_CREDENTIALS_INTERNAL_H
#define DCTF_TRANSPORT_S3_CREDENTIALS_INTERNAL_H

#include "base/clock.h"
#include "base/err.h"
#include "base/list.h"
#include "transport/s3_credentials.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dctf_aws_config;
struct dctf_http;
struct dctf_http_request;
struct dctf_str;

/* Bytes of an answer of a service or a process, of a token file. */
#define DCTF_CRED_ANSWER_MAX 65536u
/* A credential_process may take so long. */
#define DCTF_CRED_PROCESS_MS 60000u

/* Configuration, copied. */
struct dctf_cred_setup {
    char *access_key_id;
    char *secret_access_key;
    char *session_token;
    char *profile;
    char *config_file;
    char *credentials_file;
    char *region;
    char *ca_file;
    char *ca_dir;
    char *const *env;
    struct dctf_clock clock;
    uint64_t call_timeout_ms;

    atomic_bool stop;   /* end what runs, start nothing */
    atomic_bool warned; /* of a credentials file that others can read */
    pthread_mutex_t lock;
    struct dctf_list calls; /* of walks, under way; guarded by lock */
};

/* A call that dctf_cred_setup_stop() ends. */
struct dctf_cred_ongoing {
    struct dctf_list link; /* setup->calls */
    struct dctf_http *http;
    struct dctf_http_request *request;
};

DCTF_MUST_CHECK
enum dctf_err dctf_cred_setup_init(
    struct dctf_cred_setup *setup, const struct dctf_s3_credentials_config *config);
void dctf_cred_setup_fini(struct dctf_cred_setup *setup);
/* End the call that runs; may be called again until the walk has ended. */
void dctf_cred_setup_stop(struct dctf_cred_setup *setup);

/* One HTTP client for services beside the host (no proxy, connects within a second), one
 * for STS. */
enum dctf_cred_net { DCTF_CRED_NET_LOCAL, DCTF_CRED_NET_WIDE, DCTF_CRED_NETS };

struct dctf_cred_walk {
    struct dctf_cred_setup *setup;
    struct dctf_http *http[DCTF_CRED_NETS]; /* NULL until needed */
    bool files_read;
    struct dctf_aws_config *config;      /* NULL: no such file */
    struct dctf_aws_config *credentials; /* likewise */
    uint64_t call_timeout_ms;
    bool quiet;    /* a lock is held: log nothing */
    char why[480]; /* of the last provider that had none or failed; one line, no secrets */
};

void dctf_cred_walk_init(struct dctf_cred_walk *walk, struct dctf_cred_setup *setup);
void dctf_cred_walk_fini(struct dctf_cred_walk *walk);
/* Set walk->why; the value is `err`. */
void dctf_cred_explain(struct dctf_cred_walk *walk, const char *format, ...) DCTF_PRINTF(2, 3);
#define dctf_cred_why(walk, err, ...) (dctf_cred_explain((walk), __VA_ARGS__), (err))

/* Variable of the setup's environment, NULL when unset or empty. */
const char *dctf_cred_env(const struct dctf_cred_setup *setup, const char *name);
/* "true" in any case, as AWS's switches are. */
bool dctf_cred_env_true(const struct dctf_cred_setup *setup, const char *name);

/* A provider: DCTF_OK and a set; DCTF_ERR_CREDENTIALS_NONE: it does not apply here;
 * _CREDENTIALS_FAILED: it applies and failed; or _NO_MEMORY, _SHUTTING_DOWN. walk->why
 * says why. */
typedef enum dctf_err dctf_cred_ask(struct dctf_cred_walk *walk, struct dctf_s3_keys **out);

dctf_cred_ask dctf_cred_ask_environment;
dctf_cred_ask dctf_cred_ask_profile;
dctf_cred_ask dctf_cred_ask_web_identity;
dctf_cred_ask dctf_cred_ask_container;
dctf_cred_ask dctf_cred_ask_imds;

/* Providers to ask, `first` to before `end`. */
struct dctf_cred_span {
    size_t first;
    size_t end;
};

/* Ask the providers of the span until one has a set; `trail` gets "name: why; …" of those before
 * it. With a set the span becomes the one to renew it from: the provider that had it, and those
 * before it that should have had one and failed. */
DCTF_MUST_CHECK
enum dctf_err dctf_cred_walk_ask(struct dctf_cred_walk *walk, struct dctf_cred_span *span,
    struct dctf_str *trail, struct dctf_s3_keys **out);
/* All, and those at the beginning that are instant. */
struct dctf_cred_span dctf_cred_span_all(void);
struct dctf_cred_span dctf_cred_span_instant(void);

/* A counted set with copies of the strings. A set that cannot be one (empty, control
 * characters) is DCTF_ERR_CREDENTIALS_FAILED with walk->why. */
DCTF_MUST_CHECK
enum dctf_err dctf_cred_keys_new(struct dctf_cred_walk *walk, const char *access_key_id,
    const char *secret_access_key, const char *session_token, uint64_t expires_ms, const char *source,
    struct dctf_s3_keys **out);
/* "ASIA…WXYZ". */
void dctf_cred_mask(const char *access_key_id, char out[24]);
/* Overwrite and free. NULL is nothing. */
void dctf_cred_wipe(char *secret);
void dctf_cred_wipe_str(struct dctf_str *secret);

/* JSON of credential services and processes. A service says Token, a process SessionToken and
 * Version 1; a service must say Expiration when `must_expire`. */
enum dctf_cred_json { DCTF_CRED_JSON_PROCESS, DCTF_CRED_JSON_SERVICE };
DCTF_MUST_CHECK
enum dctf_err dctf_cred_json_parse(struct dctf_cred_walk *walk, const char *text, size_t len,
    enum dctf_cred_json kind, const char *source, struct dctf_s3_keys **out);
/* "2026-01-31T12:00:00Z", with a fraction or an offset "+01:00" → ms since the epoch. */
bool dctf_cred_time_parse(const char *text, uint64_t *out_ms);

/* Run `command` through the shell; its output is the JSON above. */
DCTF_MUST_CHECK
enum dctf_err dctf_cred_process_run(
    struct dctf_cred_walk *walk, const char *command, const char *source, struct dctf_s3_keys **out);

/* Read the shared files once per walk. Paths that the user gave must exist: `config_file` and
 * `credentials_file` options. */
DCTF_MUST_CHECK
enum dctf_err dctf_cred_files(struct dctf_cred_walk *walk);
/* Name of the profile; *explicit: somebody asked for it. */
/* The address that is configured for a service: by `variable`, AWS_ENDPOINT_URL, the profile; NULL: none.
 * Borrowed from environment or walk. *where: which of them. */
const char *dctf_cred_endpoint(struct dctf_cred_walk *walk, const char *variable, const char **where);
const char *dctf_cred_profile_name(const struct dctf_cred_setup *setup, bool *explicit_out);
/* Setting of a profile from the credentials file, else the config file; "" counts as absent. */
const char *dctf_cred_setting(const struct dctf_cred_walk *walk, const char *profile, const char *name);
/* Option, AWS_REGION, AWS_DEFAULT_REGION or the profile's; NULL when none. Reads the files. */
const char *dctf_cred_region(struct dctf_cred_walk *walk);
/* A small text file (token), blanks at its end cut; wiped and freed by the caller. */
DCTF_MUST_CHECK
enum dctf_err dctf_cred_read_token(struct dctf_cred_walk *walk, const char *path, char **out);

/* One bounded call. The body is to be wiped and freed, and NULL on failure. Transport failures
 * keep their codes; walk->why is set. */
DCTF_MUST_CHECK
enum dctf_err dctf_cred_call(struct dctf_cred_walk *walk, enum dctf_cred_net net,
    struct dctf_http_request *request, int *status, char **body);
/* Region that IMDS tells; walk->why when it does not. */
DCTF_MUST_CHECK
enum dctf_err dctf_cred_imds_region(struct dctf_cred_walk *walk, char out[64]);

/* A role to assume. NULL where not given. */
struct dctf_cred_role {
    const char *arn;
    const char *session_name;
    const char *external_id;
    const char *duration_seconds;
};
DCTF_MUST_CHECK
enum dctf_err dctf_cred_assume_role(struct dctf_cred_walk *walk, const struct dctf_cred_role *role,
    const struct dctf_s3_keys *with, const char *source, struct dctf_s3_keys **out);
DCTF_MUST_CHECK
enum dctf_err dctf_cred_assume_web_identity(struct dctf_cred_walk *walk, const struct dctf_cred_role *role,
    const char *token_file, const char *source, struct dctf_s3_keys **out);

/* For tests: wake the keeper and wait until it and the providers have nothing to do now. */
void dctf_s3_credentials_settle(struct dctf_s3_credentials *credentials);

#endif
