/* SPDX-License-Identifier: Apache-2.0
 *
 * dctf-s3-server: an S3 server for tests, on 127.0.0.1 by default. It stores objects on disk, checks
 * signatures with code of its own, plays the services that hand out credentials, misbehaves on
 * request and counts what it is asked. From Python: tests/e2e/dctf_e2e/s3.py.
 *
 *   dctf-s3-server [--dir DIR] [--address IPV4] [--port N] [--domain NAME]… [--region NAME] [--bucket NAME]…
 *                  [--import BUCKET=DIR]… [--key ACCESS:SECRET]… [--idle-timeout SECONDS]
 *                  [--tls-cert PEM --tls-key PEM [--tls-port N]] [--stdin-may-close]
 *
 * It prints one line, {"port": N, "tls_port": M or null, "pid": P}, when it answers, and ends on
 * SIGTERM, SIGINT, or when its stdin is closed. Without --dir the objects go to a private
 * directory that is removed at the end; with it they are there after a restart. --domain NAME (say
 * "localhost" or "s3.test") makes Host: BUCKET.NAME the virtual-host style; every other host is path style.
 * Without --key nobody is known: add keys below.
 *
 * What answers on the port
 *
 *   /-/…                              the control interface, never counted nor faulted
 *   /latest/…                         IMDS: token, role, credentials, region
 *   /v1/credentials, /v2/credentials/… container credentials (ECS, EKS Pod Identity)
 *   POST / of a form, or /?Action=…   STS: AssumeRole (signed), AssumeRoleWithWebIdentity
 *   http://host/…                     the same as a proxy: by its path and the Host header
 *   all else                          S3: ListBuckets, HeadBucket, GetBucketLocation, ListObjects V1 and V2,
 *                                     GET, HEAD, PUT, DELETE of objects
 *
 * Control: JSON in, JSON out; {"error": "…"} with 400 or 404 for what it does not understand
 *
 *   GET /-/health             {"ok": true, "now": server's clock}
 *   GET /-/settings           all settings
 *   POST /-/settings          any of
 *      "clock_offset": 0      seconds the server's clock is ahead
 *      "max_skew": 900        seconds a signed request may be off that clock
 *      "seed": 1              of the faults' dice; starts them anew
 *      "session_seconds": 3600   lifetime of the credentials handed out; fractions allowed
 *      "imds_v1": false       IMDS answers without a session token
 *      "imds_role": "dctf-role", "imds_region": "us-east-1"; an empty role: no role attached (404)
 *      "container_token": ""  what Authorization must be at the container endpoint; empty: anything
 *      "web_identity_token": ""  the WebIdentityToken that STS takes; empty: any that is not empty
 *      "list_space": "plus"   space in listings with encoding-type=url: "plus" (AWS, MinIO), "percent" (Ceph)
 *   GET /-/buckets
 *   POST /-/buckets           {"name": N, "region": "us-east-1", "public": false, "requester_pays": false,
 *                             "redirect": "host:port"}: make or change a bucket. With "redirect" it answers
 *                             301 to every other Host
 *   DELETE /-/buckets/N       with all of its objects
 *   PUT /-/objects/N/KEY      the body becomes the object (KEY percent-encoded as in S3); {"etag", "size",
 *                             "key"}
 *   GET, DELETE /-/objects/N/KEY
 *   POST /-/bulk              {"bucket": N, "prefix": "", "suffix": "", "first": 0, "count": C, "digits": 8,
 *                             "size": S}: objects PREFIX%0*uSUFFIX; they share one file's bytes, so a million
 *                             takes a second or two. Gone after a restart.
 *   POST /-/import            {"bucket": N, "dir": "/path", "prefix": ""}: the files below dir appear as
 *                             keys, not copied; ETag from mtime, size and inode. Ask again after files
 *                             changed, and after a restart. A PUT puts an object in front and leaves the
 *                             file alone.
 *   POST /-/keys              {"access_key": A, "secret_key": S, "session_token": T, "seconds": 60}; the last
 *                             two optional
 *   DELETE /-/keys/A
 *   POST /-/expire            all credentials with a session token, handed out or added, expire now
 *   GET /-/stats[?keys=1]     see below; DELETE /-/stats sets all to 0
 *   GET /-/requests[?n=100]   the last requests (at most 1,000 are kept), oldest first: {"op", "method",
 *                             "target", "host", "range", "if_match", "status", "bytes", "access_key",
 *                             "connection", "faults": [id]}; status 0: no answer in HTTP
 *   GET /-/faults             {"rules": […]}, each with "id", "matched" and "fired"
 *   POST /-/faults            one rule, or {"rules": […], "replace": true}; answers {"ids": […]}
 *   DELETE /-/faults[/ID]     what stalls because of the rule goes on
 *
 * Statistics: {"requests": {"list", "get", "head", "put", "delete", "bucket", "sts", "imds", "container",
 * "other"}, "status": {"200": n…}, "errors": {"NoSuchKey": n…} (S3 error codes answered), "bytes_out" (of
 * bodies; of an answer that was broken off what the kernel sent, headers included), "bytes_in",
 * "connections": {"open", "accepted"} (without those of the control interface), "in_flight", "max_in_flight",
 * "auth": {"v4", "v2", "anonymous"} (accepted), "not_canonical" (requests whose path or query was not encoded
 * the way it is signed: other servers might refuse them), "faults" (how often any fired), "keys":
 * {"BUCKET/KEY": gets}}. All but in_flight and connections count a request before its answer goes out.
 *
 * Faults. A rule: {"kind": K, what K needs, and any of
 *      "op": "get"            or a list of them, of the names in "requests" (default: all)
 *      "bucket": N, "prefix": P   the key begins with P (list: the asked prefix does)
 *      "p": 0.1               with this probability only
 *      "skip": 2              not for the first so many that match
 *      "count": 3}            at most so often
 * Of latency and slow every rule that matches acts; of the other kinds the first that matches.
 *
 *   latency       "ms": wait, then go on
 *   slow          "rate": bytes of the body per second
 *   status        "status": 503, "code": "SlowDown", "message", "retry_after": seconds
 *   slowdown      = status 503 SlowDown          internal  = status 500 InternalError
 *   throttle      = status 429 TooManyRequests   denied    = status 403 AccessDenied
 *   missing       = status 404 NoSuchKey         timeout   = status 400 RequestTimeout
 *   expired_token = status 400 ExpiredToken      skewed    = status 403 RequestTimeTooSkewed, with ServerTime
 *   redirect      "endpoint": "host:port", "region": R, "status": 301: PermanentRedirect (307: Temporary…)
 *   wrong_region  "region": R: 400 AuthorizationHeaderMalformed that names R
 *   reset         RST; "after": so many bytes of the body (default: before the headers)
 *   cut           "after": bytes of the body (default 0), then the connection is closed in good order
 *   stall         "after" as reset; "ms": then go on (default 0: until the rule is cleared or the client
 *                 leaves)
 *   garbage       bytes that are no HTTP, then close
 *   wrong_etag    get, head: "etag": "…" (default: another one) in the header
 *   wrong_range   get: Content-Range and body are those of a range that begins one byte later; with "total":
 *                 true the range is right and the total is not
 *   ignore_range  get: 200 with the whole body
 *   overwrite     get, head: the object gets new bytes of the same size, then the request is answered
 *   error_200     list: 200 with an error document
 *   truncated_xml list: 200 with the first half of the document
 *   invalid_xml   list: 200 with a document that is no XML
 *   empty         200 with no body
 *
 * Requests with a signature are checked as AWS does it; see s3_auth.h.
 */
#ifndef DCTF_TESTS_S3_SERVER_H
#define DCTF_TESTS_S3_SERVER_H

#include "lib/s3_fault.h"
#include "lib/s3_keys.h"
#include "lib/s3_settings.h"
#include "lib/s3_stats.h"
#include "lib/s3_store.h"

/* One server; what its threads share. Every part has locks of its own.
 *
 * Threads:   any thread.
 * Ownership: main() owns it and all of its parts until no thread of the server runs. */
struct s3_server {
    struct s3_store *store;
    struct s3_keys *keys;
    struct s3_faults *faults;
    struct s3_stats *stats;
    struct s3_settings *settings;
    const char *const *domains; /* for virtual-host style, ended by NULL */
};

#endif
