/* SPDX-License-Identifier: Apache-2.0
 *
 * Leaving: unmount, or detach when files stay open, and break off what is stuck in the kernel.
 */
#include "fs/fs_private.h"

#include "base/clock.h"
#include "base/log.h"
#include "fs/loop.h"
#include "fs/mountpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define UNMOUNT_RETRY_MS 100u
#define ABORT_AFTER_MS 5000u /* from the end of the session on */

/* True while the kernel may still send requests, or wait for answers. */
static bool is_connected(const struct dctf_fs *fs)
{
    struct pollfd device = {.fd = fuse_session_fd(fs->session)};

    return device.fd >= 0 && poll(&device, 1, 0) >= 0 && !(device.revents & (POLLERR | POLLHUP | POLLNVAL));
}

void dctf_fs_abort(struct dctf_fs *fs)
{
    char path[64];
    int fd;

    /* Once it is disconnected, the number may be another mount's. */
    if (!fs->dev_minor || !is_connected(fs))
        return;
    snprintf(path, sizeof(path), "/sys/fs/fuse/connections/%u/abort", fs->dev_minor);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, "1", 1) != 1)
        dctf_log(DCTF_LOG_INFO, "mount", "op=abort errno=%d the kernel lets go when the daemon ends", errno);
    else
        dctf_log(DCTF_LOG_INFO, "mount", "op=abort requests of open files end with an error");
    if (fd >= 0)
        close(fd);
}

/* Sleep on stop_cond for at most `ms`. */
static void stop_wait_locked(struct dctf_fs *fs, unsigned ms)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)ms * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&fs->stop_cond, &fs->stop_lock, &until);
}

static uint64_t add_ms(uint64_t ms, uint64_t more)
{
    return more > UINT64_MAX - ms ? UINT64_MAX : ms + more;
}

/* Unmount while files are open is refused: ask again until they are closed, the time is
 * up, or somebody insists. Then detach, and break the loop off. */
static void *stop_thread(void *arg)
{
    struct dctf_fs *fs = arg;
    uint64_t until = add_ms(dctf_clock_mono_ms(NULL), fs->config->unmount_timeout);
    enum dctf_err err = DCTF_ERR_MOUNTPOINT_IN_USE;

    pthread_setname_np(pthread_self(), "dctf-stop");
    pthread_mutex_lock(&fs->stop_lock);
    while (err && !fs->ended && fs->stops < 2 && dctf_clock_mono_ms(NULL) < until) {
        pthread_mutex_unlock(&fs->stop_lock);
        err = dctf_mount_unmount(fs->mountpoint, false);
        pthread_mutex_lock(&fs->stop_lock);
        if (err && !fs->ended)
            stop_wait_locked(fs, UNMOUNT_RETRY_MS);
    }
    if (err && !fs->ended) {
        pthread_mutex_unlock(&fs->stop_lock);
        dctf_log(DCTF_LOG_WARN, "mount", "files are still open: detaching the mount err=%d", err);
        if (dctf_mount_unmount(fs->mountpoint, true))
            dctf_log(DCTF_LOG_WARN, "mount", "not detached err=%d", DCTF_ERR_MOUNTPOINT_IN_USE);
        fuse_session_exit(fs->session);
        dctf_loop_stop(fs->loop);
        until = dctf_clock_mono_ms(NULL);
        pthread_mutex_lock(&fs->stop_lock);
    }
    /* Unmounted, the loop ends by itself once the kernel has let go: at the latest when the last
     * open file of another mount namespace is closed. */
    until = add_ms(until, ABORT_AFTER_MS);
    while (!fs->ended && dctf_clock_mono_ms(NULL) < until)
        stop_wait_locked(fs, UNMOUNT_RETRY_MS);
    if (!fs->ended) {
        pthread_mutex_unlock(&fs->stop_lock);
        dctf_fs_abort(fs);
        pthread_mutex_lock(&fs->stop_lock);
    }
    pthread_mutex_unlock(&fs->stop_lock);
    return NULL;
}

void dctf_fs_stop(struct dctf_fs *fs)
{
    pthread_mutex_lock(&fs->stop_lock);
    fs->stops++;
    if (!fs->stop_started && !fs->ended)
        fs->stop_started = !pthread_create(&fs->stop_thread, NULL, stop_thread, fs);
    pthread_cond_broadcast(&fs->stop_cond);
    pthread_mutex_unlock(&fs->stop_lock);
}

bool dctf_fs_is_leaving(struct dctf_fs *fs)
{
    bool leaving;

    pthread_mutex_lock(&fs->stop_lock);
    leaving = fs->ended;
    pthread_mutex_unlock(&fs->stop_lock);
    return leaving;
}
