/* SPDX-License-Identifier: Apache-2.0
 *
 * The session's threads: they take the kernel's requests and answer them.
 *
 * The kernel wakes the threads that wait in a read of /dev/fuse in turn, so each that waits
 * there gets its share of a single reader's requests, with a stack and caches gone cold. So
 * few wait there (two, and more only while they do not suffice); the others sleep here and
 * the last one to fall asleep is woken first. Whenever a request is taken and nobody
 * waits for the next one, another thread is woken or started before the request is
 * handled: as long as fewer than threads_max handlers block, the next request, an interrupt for one,
 * is read at once.
 *
 * Threads:   one thread calls new, run and free; dctf_loop_stop() and dctf_loop_stats() any
 *            thread between new and free.
 * Ownership: dctf_loop_new() gives an object to pass to dctf_loop_free().
 */
#ifndef DCTF_FS_LOOP_H
#define DCTF_FS_LOOP_H

#include "base/err.h"
#include "fs/fuse_api.h"

struct dctf_loop;

struct dctf_loop_config {
    unsigned threads_max; /* ≥ 1 */
    /* How many may wait in receive() at once, at most; ≥ 1. More than there are processors to run
     * them on gain nothing. */
    unsigned receivers_max;
    /* Sent to a thread that waits in receive() when the loop ends. It must interrupt system
     * calls (a handler without SA_RESTART); the loop's threads unblock it. */
    int wake_signal;
    /* As fuse_session_receive_buf(): > 0: a request is in `buf`, whose memory is kept for the next
     * one and freed with free(); -EINTR or -EAGAIN: nothing, ask again; 0: the session is over;
     * any other errno, negative: it cannot go on. */
    int (*receive)(void *ctx, struct fuse_buf *buf);
    /* Answer it, now or later. May block. */
    void (*process)(void *ctx, const struct fuse_buf *buf);
    void *ctx;
};

DCTF_MUST_CHECK
enum dctf_err dctf_loop_new(const struct dctf_loop_config *config, struct dctf_loop **out);
/* Run until receive() ends it or dctf_loop_stop() was called, and every process() returned. What
 * receive() ended with, if that was an error: a negative errno; else 0. Once only. */
DCTF_MUST_CHECK
int dctf_loop_run(struct dctf_loop *loop);
/* End the loop, now or as soon as it runs. Returns at once. */
void dctf_loop_stop(struct dctf_loop *loop);
void dctf_loop_free(struct dctf_loop *loop);

struct dctf_loop_stats {
    unsigned threads;   /* started */
    unsigned receiving; /* in receive(), or about to be */
    unsigned wanted;    /* that many may be */
};
void dctf_loop_stats(struct dctf_loop *loop, struct dctf_loop_stats *out);

#endif
