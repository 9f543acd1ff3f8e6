/* SPDX-License-Identifier: Apache-2.0
 *
 * Going to the background, with a report of readiness: the parent exits 0 only when
 * the mount answers.
 *
 * Threads:   one thread; no other thread may exist before dctf_daemon_start().
 *            dctf_daemon_ready() and _failed(): any thread, one of them once.
 * Ownership: values only; `program` is borrowed.
 */
#ifndef DCTF_FS_DAEMON_H
#define DCTF_FS_DAEMON_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct dctf_daemon {
    int report_fd;       /* -1 in the foreground */
    int failed_status;   /* exit status of the parent on failure */
    const char *program; /* begins the parent's own error lines */
};

/* Fork. In the child: a new session, `/` as working directory, stdin from /dev/null,
 * stderr still the user's until dctf_daemon_ready(); returns DCTF_OK. The parent
 * never returns: it waits for the child's report, at most `timeout_ms`, prints an error
 * line to stderr when there is one, and exits with 0 or failed_status. A child that
 * does not report in time is told to end (SIGTERM). */
DCTF_MUST_CHECK
enum dctf_err dctf_daemon_start(struct dctf_daemon *daemon, uint64_t timeout_ms);
/* Report success, to systemd too (NOTIFY_SOCKET); in the background detach stdout and
 * stderr. */
void dctf_daemon_ready(struct dctf_daemon *daemon);
/* Report failure: `text` is the one line the user sees (without a newline). */
void dctf_daemon_failed(struct dctf_daemon *daemon, const char *text);

/* Write "PROGRAM: error CODE NAME: WHAT; remedy: REMEDY" into `out`; returns `out`. */
const char *dctf_daemon_error_line(
    const char *program, enum dctf_err err, const char *what, char *out, size_t cap);

/* Raise RLIMIT_NOFILE to its hard limit, lower oom_score_adj where allowed, and keep the
 * allocator from holding an arena per thread. */
void dctf_daemon_prepare_process(void);

#endif
