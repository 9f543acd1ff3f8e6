/* SPDX-License-Identifier: Apache-2.0
 *
 * The child reports on a socket pair: one byte for success, or the line to print. An end of
 * file without either means that it died.
 */
#include "fs/daemon.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define REPORT_READY "\001"
#define LINE_BYTES 1024
/* Every task of the host that reads the mount dies with the daemon, so it goes late. */
#define OOM_SCORE_ADJ (-500)

const char *dctf_daemon_error_line(
    const char *program, enum dctf_err err, const char *what, char *out, size_t cap)
{
    snprintf(out, cap, "%s: error %d %s: %s; remedy: %s", program, (int)err, dctf_err_name(err), what,
        dctf_err_remedy(err));
    return out;
}

/* stderr may be gone; there is nobody else to tell. */
static void print_line(const char *text)
{
    char line[LINE_BYTES + 1];
    int len = snprintf(line, sizeof(line), "%.*s\n", LINE_BYTES - 1, text);

    if (write(STDERR_FILENO, line, (size_t)len) < 0)
        return;
}

/* Read until the end of file; false when `deadline_ms` comes first. */
static bool read_report(int fd, uint64_t deadline_ms, char *report, size_t cap)
{
    size_t len = 0;

    for (;;) {
        struct pollfd pollfd = {.fd = fd, .events = POLLIN};
        uint64_t now = dctf_clock_mono_ms(NULL);
        uint64_t left = deadline_ms > now ? deadline_ms - now : 0;
        int ready = poll(&pollfd, 1, left > 60000 ? 60000 : (int)left);
        ssize_t got;

        if (ready < 0 && errno != EINTR)
            return false;
        if (ready <= 0) {
            if (left == 0)
                return false;
            continue;
        }
        got = read(fd, report + len, cap - 1 - len);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        len += (size_t)got;
    }
    report[len] = '\0';
    return true;
}

static void describe_end(pid_t child, char *out, size_t cap)
{
    int status;

    while (waitpid(child, &status, 0) < 0) {
        if (errno != EINTR) {
            snprintf(out, cap, "the daemon ended without a word");
            return;
        }
    }
    if (WIFSIGNALED(status))
        snprintf(out, cap, "the daemon was killed by signal %d (%s) while starting", WTERMSIG(status),
            strsignal(WTERMSIG(status)));
    else
        snprintf(out, cap, "the daemon ended with status %d while starting", WEXITSTATUS(status));
}

static _Noreturn void be_parent(const struct dctf_daemon *daemon, pid_t child, int fd, uint64_t timeout_ms)
{
    uint64_t now = dctf_clock_mono_ms(NULL);
    uint64_t deadline = timeout_ms > UINT64_MAX - now ? UINT64_MAX : now + timeout_ms;
    char report[LINE_BYTES];
    char line[LINE_BYTES];
    char what[128];

    if (!read_report(fd, deadline, report, sizeof(report))) {
        kill(child, SIGTERM);
        snprintf(what, sizeof(what), "no report within %llu ms", (unsigned long long)timeout_ms);
        print_line(dctf_daemon_error_line(daemon->program, DCTF_ERR_MOUNT_TIMEOUT, what, line, sizeof(line)));
    } else if (!strcmp(report, REPORT_READY)) {
        _exit(0);
    } else if (report[0]) {
        print_line(report);
    } else {
        describe_end(child, what, sizeof(what));
        print_line(dctf_daemon_error_line(daemon->program, DCTF_ERR_INTERNAL, what, line, sizeof(line)));
    }
    _exit(daemon->failed_status);
}

static bool point_at_null(int fd)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC | O_NOCTTY);
    bool done;

    if (null < 0)
        return false;
    if (null == fd)
        return fcntl(fd, F_SETFD, 0) == 0;
    done = dup2(null, fd) >= 0;
    close(null);
    return done;
}

enum dctf_err dctf_daemon_start(struct dctf_daemon *daemon, uint64_t timeout_ms)
{
    int pair[2];
    pid_t child;

    daemon->report_fd = -1;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return DCTF_ERR_SYSTEM;
    child = fork();
    if (child < 0) {
        close(pair[0]);
        close(pair[1]);
        return DCTF_ERR_SYSTEM;
    }
    if (child > 0) {
        close(pair[1]);
        be_parent(daemon, child, pair[0], timeout_ms);
    }
    close(pair[0]);
    daemon->report_fd = pair[1];
    setsid();
    if (chdir("/") < 0 || !point_at_null(STDIN_FILENO))
        return DCTF_ERR_SYSTEM;
    return DCTF_OK;
}

static void report(struct dctf_daemon *daemon, const char *text)
{
    /* The parent may have given up. */
    if (send(daemon->report_fd, text, strlen(text), MSG_NOSIGNAL) < 0)
        dctf_log(DCTF_LOG_WARN, "fs", "op=report errno=%d err=%d", errno, DCTF_ERR_SYSTEM);
    close(daemon->report_fd);
    daemon->report_fd = -1;
}

/* sd_notify(3): one datagram to a socket that is a path or, after '@', an abstract name. */
static void notify_service_manager(void)
{
    const char *name = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t len = name ? strlen(name) : 0;
    char text[64];
    int fd;

    if (len < 2 || len >= sizeof(address.sun_path) || (name[0] != '/' && name[0] != '@'))
        return;
    memcpy(address.sun_path, name, len);
    if (name[0] == '@')
        address.sun_path[0] = '\0';
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    snprintf(text, sizeof(text), "READY=1\nMAINPID=%ld", (long)getpid());
    if (sendto(fd, text, strlen(text), MSG_NOSIGNAL, (const struct sockaddr *)&address,
            (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len)) < 0)
        dctf_log(DCTF_LOG_WARN, "fs", "op=sd_notify errno=%d err=%d", errno, DCTF_ERR_SYSTEM);
    close(fd);
}

void dctf_daemon_ready(struct dctf_daemon *daemon)
{
    notify_service_manager();
    if (daemon->report_fd < 0)
        return;
    point_at_null(STDOUT_FILENO);
    point_at_null(STDERR_FILENO);
    report(daemon, REPORT_READY);
}

void dctf_daemon_failed(struct dctf_daemon *daemon, const char *text)
{
    if (daemon->report_fd < 0)
        print_line(text);
    else
        report(daemon, text);
}

static void protect_from_oom(void)
{
    FILE *file = fopen("/proc/self/oom_score_adj", "r+e");
    int now;

    if (!file)
        return;
    if (fscanf(file, "%9d", &now) == 1 && now > OOM_SCORE_ADJ) {
        rewind(file);
        fprintf(file, "%d", OOM_SCORE_ADJ);
    }
    fclose(file); /* refused without privilege, and that is fine */
}

void dctf_daemon_prepare_process(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
            dctf_log(DCTF_LOG_DEBUG, "fs", "op=setrlimit errno=%d", errno);
    }
    /* An arena per thread would keep what each once needed; buffers are not malloc's. */
    mallopt(M_ARENA_MAX, 4);
    protect_from_oom();
}
