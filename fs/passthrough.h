/* SPDX-License-Identifier: Apache-2.0
 *
 * FUSE passthrough (kernel ≥ 6.9, CAP_SYS_ADMIN) behind one small module: through
 * libfuse's API where it has one (≥ 3.17), else by completing the INIT reply and
 * the open reply by hand (libfuse 3.13 – 3.16).
 *
 * Threads:   dctf_passthrough_new/_attach before the session loop; the rest any thread.
 * Ownership: dctf_passthrough_new() gives an object to pass to dctf_passthrough_free()
 *            after the session ended. The session is borrowed from _attach on: no
 *            _open and _close once it is destroyed.
 */
#ifndef DCTF_FS_PASSTHROUGH_H
#define DCTF_FS_PASSTHROUGH_H

#include "base/err.h"
#include "fs/fuse_api.h"

#include <stdbool.h>
#include <stdint.h>

struct dctf_passthrough;

/* `wanted` false: every call below works and says off. */
DCTF_MUST_CHECK
enum dctf_err dctf_passthrough_new(bool wanted, struct dctf_passthrough **out);
void dctf_passthrough_free(struct dctf_passthrough *passthrough);
/* After fuse_session_mount(), before the loop. Answers the kernel's INIT, so the
 * session's init handler runs within this call, and whether passthrough is active is
 * known when it returns. DCTF_ERR_MOUNT_FAILED when the kernel went away or the init
 * handler asked for what it does not offer. */
DCTF_MUST_CHECK
enum dctf_err dctf_passthrough_attach(struct dctf_passthrough *passthrough, struct fuse_session *session);
/* From the init handler. */
void dctf_passthrough_init(struct dctf_passthrough *passthrough, struct fuse_conn_info *conn);

/* In use: negotiated with the kernel and no backing open was refused for want of
 * privilege. */
bool dctf_passthrough_active(const struct dctf_passthrough *passthrough);
/* One phrase for `dctf status`: "on", "off: passthrough=off", "off: kernel does not offer it", … */
const char *dctf_passthrough_reason(const struct dctf_passthrough *passthrough);

/* Register `fd` with the kernel: > 0 a backing id, 0 when it cannot be used (the
 * caller serves by the daemon). On EPERM the module turns itself off; on ELOOP
 * (stacked filesystems) likewise; both are told in the log once. */
int dctf_passthrough_open(struct dctf_passthrough *passthrough, int fd);
void dctf_passthrough_close(struct dctf_passthrough *passthrough, int backing_id);

/* Answer an OPEN with a backing id. Of `fi` only fh, direct_io and noflush count: the
 * kernel refuses the others together with a backing file. Returns what fuse_reply_open()
 * would (-ENOENT when the request was interrupted). */
int dctf_passthrough_reply_open(
    struct dctf_passthrough *passthrough, fuse_req_t req, struct fuse_file_info *fi, int backing_id);

#endif
