/* SPDX-License-Identifier: Apache-2.0 */
#include "mount-tools/dctffs_probe.h"

#include <errno.h>
#include <limits.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static _Noreturn void be_probe(int fd, const char *path)
{
    struct stat st;
    char go;
    int answer;

    /* The report to the waiting parent must end with the daemon, not with us. */
    if (fd > 3)
        close_range(3, (unsigned)fd - 1, 0);
    close_range((unsigned)fd + 1, UINT_MAX, 0);
    setsid(); /* no signals from the terminal */
    if (read(fd, &go, 1) != 1)
        _exit(0);
    answer = stat(path, &st) == 0 ? 0 : errno;
    _exit(send(fd, &answer, sizeof(answer), MSG_NOSIGNAL) < 0);
}

enum dctf_err dctffs_probe_start(struct dctffs_probe *probe, const char *path)
{
    int pair[2];

    *probe = (struct dctffs_probe)DCTFFS_PROBE_NONE;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return DCTF_ERR_SYSTEM;
    probe->pid = fork();
    if (probe->pid == 0)
        be_probe(pair[1], path);
    close(pair[1]);
    if (probe->pid < 0) {
        close(pair[0]);
        return DCTF_ERR_SYSTEM;
    }
    probe->fd = pair[0];
    return DCTF_OK;
}

int dctffs_probe_ask(struct dctffs_probe *probe)
{
    int answer = ECHILD;
    ssize_t got;

    if (send(probe->fd, "", 1, MSG_NOSIGNAL) != 1)
        return ECHILD;
    do {
        got = recv(probe->fd, &answer, sizeof(answer), MSG_WAITALL);
    } while (got < 0 && errno == EINTR);
    return got == sizeof(answer) ? answer : ECHILD;
}

void dctffs_probe_end(struct dctffs_probe *probe)
{
    if (probe->pid < 0)
        return;
    close(probe->fd);
    while (waitpid(probe->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    *probe = (struct dctffs_probe)DCTFFS_PROBE_NONE;
}
