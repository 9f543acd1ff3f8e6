/* SPDX-License-Identifier: Apache-2.0
 *
 * A source of shards behind one asynchronous interface: list a directory, look at
 * one key, read a range of one version.
 *
 * Threads:   any thread may start requests. Callbacks run with no lock held, exactly
 *            once per started request, on the origin's own threads or, for a request
 *            that had not begun, inside cancel and close; never inside start. They may
 *            start other requests. If start returns an error the callback never runs.
 * Ownership: a request is embedded in its caller, which keeps it alive until its
 *            callback ran. Strings are borrowed for the life of the request.
 *
 * An origin bounds nothing in time by itself: transport/fetch.h puts a deadline on
 * every wait. cancel() asks for an early end (the callback then gets
 * DCTF_ERR_CANCELLED, or the result if that came first). It may come when the
 * callback has just run: an origin ignores requests it does not hold, by address.
 * An origin that is stuck in the kernel may answer late, which costs a thread of its
 * pool, never a reader.
 */
#ifndef DCTF_TRANSPORT_ORIGIN_H
#define DCTF_TRANSPORT_ORIGIN_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One child of a directory, as the source tells it. The namespace applies the key
 * rules; an origin reports what is there. */
struct dctf_origin_entry {
    /* The component below the directory: any bytes but NUL; empty for an object store's
     * marker "dir/" and for "dir//…". */
    const char *name;
    bool is_dir; /* a common prefix or directory */
    uint64_t size;
    int64_t mtime_ns;
    const char *etag; /* "" for a directory */
};

struct dctf_clock;
struct dctf_config;
struct dctf_metrics;

struct dctf_origin_list {
    /* "" for the root, no slashes at the ends. What does not exist is
     * DCTF_ERR_NOT_FOUND; for an object store, a prefix that no key has. */
    const char *dir;
    /* A run of entries, in any order, valid during the call. False stops the
     * listing (done() gets DCTF_ERR_CANCELLED). */
    bool (*page)(struct dctf_origin_list *list, const struct dctf_origin_entry *entries, size_t count);
    void (*done)(struct dctf_origin_list *list, enum dctf_err err);
    void *ctx;
    uint64_t retry_after_ms; /* as in struct dctf_origin_get */
    void *origin_private;    /* for the origin */
};

struct dctf_origin_head {
    const char *key;
    /* `entry` (name = last component) is valid during the call; NULL on error. */
    void (*done)(struct dctf_origin_head *head, enum dctf_err err, const struct dctf_origin_entry *entry);
    void *ctx;
    uint64_t retry_after_ms; /* as in struct dctf_origin_get */
    void *origin_private;
};

struct dctf_origin_get {
    const char *key;
    const char *etag; /* the version asked for; another one is DCTF_ERR_VERSION_MISMATCH */
    uint64_t size;    /* of the version, bytes */
    uint64_t offset;
    size_t len;     /* > 0; offset + len ≤ size */
    void *buf;      /* ≥ len bytes; written until done() */
    unsigned class; /* enum dctf_fetch_class; a hint */
    /* `got` == len when err is DCTF_OK. */
    void (*done)(struct dctf_origin_get *get, enum dctf_err err, size_t got);
    void *ctx;
    uint64_t
        retry_after_ms; /* set before done() when a source that refused named a pause; 0 from the caller */
    void *origin_private;
};

struct dctf_origin;

/* One finding of examine(). */
struct dctf_origin_step {
    const char *name;   /* "dns", "tcp", "tls", "clock", "credentials", "region", "list", "get", "range" */
    enum dctf_err err;  /* DCTF_OK: it is well */
    bool skipped;       /* not looked at: because of `err`, which an earlier step told, or there is no need */
    const char *text;   /* what was found; never a secret */
    const char *remedy; /* NULL: that of `err` */
};

struct dctf_origin_ops {
    const char *scheme; /* "file" */
    enum dctf_err (*list)(struct dctf_origin *origin, struct dctf_origin_list *list);
    enum dctf_err (*head)(struct dctf_origin *origin, struct dctf_origin_head *head);
    enum dctf_err (*get)(struct dctf_origin *origin, struct dctf_origin_get *get);
    void (*cancel_list)(struct dctf_origin *origin, struct dctf_origin_list *list);
    void (*cancel_head)(struct dctf_origin *origin, struct dctf_origin_head *head);
    void (*cancel_get)(struct dctf_origin *origin, struct dctf_origin_get *get);
    /* Examine the source step by step for `dctf doctor`, blocking, at most `deadline_ms`:
     * `step` is called for each in order (on the caller's thread); strings are valid during
     * the call. What fails ends what depends on it. NULL: check() is all there is. */
    void (*examine)(struct dctf_origin *origin, uint64_t deadline_ms,
        void (*step)(void *ctx, const struct dctf_origin_step *step), void *ctx);
    /* Check now, blocking, at most `deadline_ms`, that the source can be listed.
     * `detail` (≥ 256 bytes) gets the reason in words. */
    enum dctf_err (*check)(struct dctf_origin *origin, uint64_t deadline_ms, char *detail);
    /* Cancel what runs, wait at most `wait_ms` for it, free. Requests stuck in the
     * kernel past that leave their thread behind, and are answered if it ever returns. */
    void (*close)(struct dctf_origin *origin, uint64_t wait_ms);
};

/* First member of every origin. */
struct dctf_origin {
    const struct dctf_origin_ops *ops;
};

struct dctf_origin_config {
    const char *source;   /* "file:///dir", "s3://bucket/prefix" */
    unsigned concurrency; /* requests at once */
    /* The options that origins have of their own; NULL: all defaults. Borrowed for life. */
    const struct dctf_config *options;
    struct dctf_metrics *metrics;   /* borrowed; may be NULL */
    const struct dctf_clock *clock; /* borrowed; NULL: the system's */
    char *detail;                   /* ≥ 256 bytes, may be NULL: gets why opening failed, in words */
};

/* A way to open a scheme; the daemon knows "file", test programs add theirs. */
struct dctf_origin_scheme {
    const char *scheme;
    enum dctf_err (*open)(const struct dctf_origin_config *config, struct dctf_origin **out);
};

/* Open by the scheme of config->source among `schemes` (ended by a NULL scheme).
 * DCTF_ERR_SOURCE_UNSUPPORTED for another one. */
DCTF_MUST_CHECK
enum dctf_err dctf_origin_open(const struct dctf_origin_scheme *schemes,
    const struct dctf_origin_config *config, struct dctf_origin **out);

/* S3 through libcurl or, with `s3_client=libs3`, through the system's libs3; the choice is made by
 * options->s3_client. */
DCTF_MUST_CHECK
enum dctf_err dctf_origin_s3_open(const struct dctf_origin_config *config, struct dctf_origin **out);
/* One of the two, whatever that option says. */
DCTF_MUST_CHECK
enum dctf_err dctf_origin_curl_open(const struct dctf_origin_config *config, struct dctf_origin **out);
DCTF_MUST_CHECK
enum dctf_err dctf_origin_libs3_open(const struct dctf_origin_config *config, struct dctf_origin **out);

/* The local directory (disk, NFS, Lustre): version = (mtime ns, size, inode). */
DCTF_MUST_CHECK
enum dctf_err dctf_origin_file_open(const struct dctf_origin_config *config, struct dctf_origin **out);

#endif
