/* SPDX-License-Identifier: Apache-2.0
 *
 * One request, from the request line to the answer's end, and the ways to answer it.
 *
 * Threads:   the thread of its connection.
 * Ownership: s3_request_new() gives what s3_request_free() takes. Pointers that the accessors return
 *            are good as long as the request.
 */
#ifndef DCTF_TESTS_S3_REQUEST_H
#define DCTF_TESTS_S3_REQUEST_H

#include "lib/s3_server.h"
#include "lib/s3_text.h"

#include <microhttpd.h>
#include <openssl/evp.h>
#include <stdatomic.h>

struct s3_param {
    char *name;  /* decoded */
    char *value; /* decoded; "" when there is none */
};

/* Where a request's body goes. */
enum s3_sink { S3_SINK_NONE, S3_SINK_MEMORY, S3_SINK_OBJECT };

/* What lasts as long as the connection. */
struct s3_connection {
    uint64_t number;
    bool control; /* has carried a request to the control interface */
};

struct s3_request {
    struct s3_server *server;
    struct MHD_Connection *connection;
    struct s3_connection *peer;
    atomic_bool *stopping;

    const char *method;
    char *target;   /* as it was sent */
    char *raw_path; /* the part before '?' */
    char *path;     /* decoded */
    char *raw_query;
    struct s3_param *params;
    size_t params_count;
    bool malformed; /* an escape is broken, or stands for NUL */

    bool control;
    enum s3_op op;
    char *bucket; /* NULL: none */
    char *key;    /* NULL: none; decoded */
    bool virtual_host;
    bool bucket_known;
    struct s3_bucket_info info; /* when bucket_known */

    enum s3_sink sink;
    struct s3_text body;
    struct s3_put put;
    EVP_MD_CTX *md5, *sha256;
    unsigned char body_md5[16], body_sha256[32];
    uint64_t body_size;
    bool body_bad; /* too large, or not to be stored */

    struct s3_plan plan;
    struct s3_param headers[16]; /* of the answer */
    size_t headers_count;
    char id[17];
    char access_key[64];
    char error[64];
    enum s3_auth_kind auth;
    bool not_canonical;
    bool begun;    /* counted */
    bool answered; /* counted as such, as answer `answer` */
    uint64_t answer;
    unsigned status;
    uint64_t bytes; /* of the answer's body, when it is whole */
    uint64_t wire_before;
};

/* target: as it was sent. */
struct s3_request *s3_request_new(
    struct s3_server *server, struct MHD_Connection *connection, const char *target);
void s3_request_free(struct s3_request *request);

/* Method and headers are known: find out what is asked. */
void s3_request_route(struct s3_request *request, const char *method);

/* NULL when there is none. */
const char *s3_request_header(const struct s3_request *request, const char *name);
const char *s3_request_param(const struct s3_request *request, const char *name);

/* name=value&…, decoded; false when an escape is broken. */
bool s3_params_parse(const char *text, struct s3_param **params, size_t *count);
void s3_params_free(struct s3_param *params, size_t count);

/* The body; data is hashed, and kept as the sink says. Then, once, the end. */
void s3_request_body(struct s3_request *request, const char *data, size_t size);
void s3_request_body_end(struct s3_request *request);

/* A header of the answer. Both are copied. */
void s3_reply_header(struct s3_request *request, const char *name, const char *value);

/* Answers. text is taken; file: fd is taken. */
enum MHD_Result s3_reply_text(
    struct s3_request *request, unsigned status, const char *type, struct s3_text *text);
enum MHD_Result s3_reply_xml(struct s3_request *request, unsigned status, struct s3_text *text);
enum MHD_Result s3_reply_json(
    struct s3_request *request, unsigned status, json_t *json); /* takes the reference */
enum MHD_Result s3_reply_empty(struct s3_request *request, unsigned status);
enum MHD_Result s3_reply_file(
    struct s3_request *request, unsigned status, int fd, uint64_t offset, uint64_t length);
/* An S3 error document; more (may be NULL) is XML to put into it. */
enum MHD_Result s3_reply_error(
    struct s3_request *request, unsigned status, const char *code, const char *message, const char *more);

/* Wait, until the server stops (false), the client leaves (false), or the rule with this id, unless 0, is
 * cleared (true). ms 0: no other end. */
bool s3_request_nap(struct s3_request *request, double ms, unsigned rule);
/* RST to the client, now. */
void s3_request_reset(struct s3_request *request);
/* Bytes that the kernel has sent on the connection. */
uint64_t s3_request_wire_bytes(const struct s3_request *request);
int s3_request_socket(const struct s3_request *request);

#endif
