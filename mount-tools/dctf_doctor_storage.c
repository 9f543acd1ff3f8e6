/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks of cache directory, and of a source that is a directory (others: dctf_doctor_source.c). Their disks
 * may hang, and a process that hangs in the kernel cannot be ended: a child looks, and tells its result
 * through a pipe.
 */
#include "mount-tools/dctf_doctor.h"

#include "base/clock.h"
#include "mount-tools/dctf_tool.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

struct look {
    int errnum;
    uint64_t total_bytes, free_bytes;
    uint64_t total_inodes, free_inodes; /* 0 and 0: the filesystem does not count them */
};

static void look_at(const char *dir, bool list, struct look *out)
{
    struct statvfs st;
    DIR *stream = NULL;
    bool failed = false;

    memset(out, 0, sizeof(*out));
    errno = 0;
    if (list) {
        stream = opendir(dir);
        failed = !stream || (!readdir(stream) && errno);
    }
    if (failed || statvfs(dir, &st)) {
        out->errnum = errno;
    } else {
        out->total_bytes = (uint64_t)st.f_blocks * st.f_frsize;
        out->free_bytes = (uint64_t)st.f_bavail * st.f_frsize;
        out->total_inodes = st.f_files;
        out->free_inodes = st.f_favail;
    }
    if (stream)
        closedir(stream);
}

/* Look at a directory from a child. False: it did not come back in time (or at all). */
static bool look_from_child(const char *dir, bool list, uint64_t timeout_ms, struct look *out)
{
    int fds[2];
    struct pollfd poll_fd = {.events = POLLIN};
    bool told;
    pid_t pid;

    if (pipe(fds))
        return false;
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        struct look result;
        ssize_t n;

        look_at(dir, list, &result);
        n = write(fds[1], &result, sizeof(result));
        _exit(n == (ssize_t)sizeof(result) ? 0 : 1);
    }
    close(fds[1]);
    poll_fd.fd = fds[0];
    told = pid > 0 && poll(&poll_fd, 1, timeout_ms > 60000 ? 60000 : (int)timeout_ms) > 0 &&
           read(fds[0], out, sizeof(*out)) == (ssize_t)sizeof(*out);
    close(fds[0]);
    if (pid > 0) {
        kill(pid, SIGKILL);
        /* One that hangs in the kernel is left to init. */
        waitpid(pid, NULL, told ? 0 : WNOHANG);
    }
    return told;
}

static void check_source(struct dctf_doctor *doctor, const struct dctf_runtime *runtime)
{
    static const char scheme[] = "file://";
    struct look look;

    if (strncmp(runtime->source, scheme, strlen(scheme)) != 0)
        return;
    if (!look_from_child(runtime->source + strlen(scheme), true, doctor->timeout_ms, &look))
        dctf_doctor_add(doctor, DCTF_DOCTOR_FAIL, "source",
            "check the disk or network filesystem that it lies on; cached shards are still served",
            "%s did not answer within %llu ms", runtime->source, (unsigned long long)doctor->timeout_ms);
    else if (look.errnum == EACCES && geteuid())
        dctf_doctor_add(doctor, DCTF_DOCTOR_WARN, "source", NULL,
            "%s: not to be listed by this user; the daemon's user counts", runtime->source);
    else if (look.errnum)
        dctf_doctor_add(doctor, DCTF_DOCTOR_FAIL, "source", "check that it exists and is mounted", "%s: %s",
            runtime->source, strerror(look.errnum));
    else
        dctf_doctor_add(doctor, DCTF_DOCTOR_OK, "source", NULL, "%s can be listed", runtime->source);
}

static void check_cache(struct dctf_doctor *doctor, const struct dctf_runtime *runtime)
{
    char free_text[24], total_text[24];
    struct look look;

    if (!look_from_child(runtime->cache_dir, false, doctor->timeout_ms, &look)) {
        dctf_doctor_add(doctor, DCTF_DOCTOR_FAIL, "cache", "check its disk (dmesg)",
            "%s did not answer within %llu ms", runtime->cache_dir, (unsigned long long)doctor->timeout_ms);
        return;
    }
    if (look.errnum) {
        dctf_doctor_add(doctor, look.errnum == EACCES && geteuid() ? DCTF_DOCTOR_WARN : DCTF_DOCTOR_FAIL,
            "cache", "check the directory and its disk", "%s: %s", runtime->cache_dir, strerror(look.errnum));
        return;
    }
    dctf_tool_show_bytes(look.free_bytes, free_text, sizeof(free_text));
    dctf_tool_show_bytes(look.total_bytes, total_text, sizeof(total_text));
    /* The reserve is 5 % and at most 1 GiB: below it nothing is cached. */
    if (look.free_bytes < look.total_bytes / 20 && look.free_bytes < (1ull << 30))
        dctf_doctor_add(doctor, DCTF_DOCTOR_WARN, "cache",
            "free space on that filesystem, or point cache_dir elsewhere",
            "%s: %s of %s free, less than the reserve", runtime->cache_dir, free_text, total_text);
    else if (look.total_inodes && look.free_inodes < look.total_inodes / 100)
        dctf_doctor_add(doctor, DCTF_DOCTOR_WARN, "cache",
            "remove files from that filesystem, or point cache_dir elsewhere", "%s: %llu of %llu inodes free",
            runtime->cache_dir, (unsigned long long)look.free_inodes, (unsigned long long)look.total_inodes);
    else
        dctf_doctor_add(doctor, DCTF_DOCTOR_OK, "cache", NULL, "%s: %s of %s free", runtime->cache_dir,
            free_text, total_text);
}

void dctf_doctor_storage(struct dctf_doctor *doctor, const struct dctf_runtime *runtime)
{
    check_source(doctor, runtime);
    if (runtime->cache_dir)
        check_cache(doctor, runtime);
}
