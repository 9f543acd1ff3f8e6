/* SPDX-License-Identifier: Apache-2.0
 *
 * credential_process: a command of the user's whose output is a set of keys. It runs
 * through the shell, in a process group of its own, bounded in time and output.
 */
#include "transport/s3_credentials_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* How often a stop and the end of the process are looked for. */
#define SLICE_MS 20

/* Real time: a process does not run on a test's clock. */
static uint64_t now_ms(void)
{
    return dctf_clock_mono_ms(NULL);
}

static enum dctf_err spawn(struct dctf_cred_walk *walk, const char *command, int output, pid_t *out)
{
    char *const argv[] = {"sh", "-c", (char *)(uintptr_t)command, NULL};
    char *const *env = walk->setup->env ? walk->setup->env : environ;
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t none;
    sigset_t all;
    int rc;

    if (posix_spawn_file_actions_init(&actions))
        return dctf_cred_why(walk, DCTF_ERR_NO_MEMORY, "out of memory");
    if (posix_spawnattr_init(&attr)) {
        posix_spawn_file_actions_destroy(&actions);
        return dctf_cred_why(walk, DCTF_ERR_NO_MEMORY, "out of memory");
    }
    sigemptyset(&none);
    sigfillset(&all);
    /* The daemon's threads block signals and ignore some; a command expects neither. */
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &all);
    posix_spawnattr_setpgroup(&attr, 0);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    rc = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (!rc)
        rc = posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
    if (!rc)
        rc = posix_spawn(out, "/bin/sh", &actions, &attr, argv, env);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&actions);
    if (rc)
        return dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_FAILED, "credential_process cannot be started: %s",
            strerrordesc_np(rc));
    return DCTF_OK;
}

static enum dctf_err fail_late(struct dctf_cred_walk *walk)
{
    if (atomic_load(&walk->setup->stop))
        return dctf_cred_why(walk, DCTF_ERR_SHUTTING_DOWN, "shutting down");
    return dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_FAILED, "credential_process did not end within %u s",
        DCTF_CRED_PROCESS_MS / 1000);
}

static bool is_over(struct dctf_cred_walk *walk, uint64_t end_ms)
{
    return atomic_load(&walk->setup->stop) || now_ms() >= end_ms;
}

/* Read to the end of the output. */
static enum dctf_err collect(
    struct dctf_cred_walk *walk, int fd, uint64_t end_ms, char *text, size_t cap, size_t *out_len)
{
    size_t len = 0;

    *out_len = 0;
    for (;;) {
        struct pollfd pfd = {.fd = fd, .events = POLLIN};
        ssize_t n;

        if (is_over(walk, end_ms))
            return fail_late(walk);
        if (poll(&pfd, 1, SLICE_MS) <= 0)
            continue;
        n = read(fd, text + len, cap - len);
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n < 0)
            return dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_FAILED, "output of credential_process: %s",
                strerrordesc_np(errno));
        if (n == 0)
            break;
        len += (size_t)n;
        *out_len = len;
        if (len == cap)
            return dctf_cred_why(
                walk, DCTF_ERR_CREDENTIALS_FAILED, "credential_process writes more than 64 KiB");
    }
    return DCTF_OK;
}

static void nap(void)
{
    const struct timespec slice = {0, SLICE_MS * 1000000L};

    (void)nanosleep(&slice, NULL);
}

/* The process is gone when this returns, whatever happened. */
static enum dctf_err reap(struct dctf_cred_walk *walk, pid_t pid, uint64_t end_ms, enum dctf_err err)
{
    int status = 0;
    pid_t rc = 0;

    while (!err && (rc = waitpid(pid, &status, WNOHANG)) == 0) {
        if (is_over(walk, end_ms))
            err = fail_late(walk);
        else
            nap();
    }
    if (rc == 0) {
        (void)kill(-pid, SIGKILL);
        do
            rc = waitpid(pid, &status, 0);
        while (rc < 0 && errno == EINTR);
    }
    if (err)
        return err;
    /* A caller that ignores SIGCHLD leaves no status. */
    if (rc < 0 || (WIFEXITED(status) && !WEXITSTATUS(status)))
        return DCTF_OK;
    if (WIFSIGNALED(status))
        return dctf_cred_why(
            walk, DCTF_ERR_CREDENTIALS_FAILED, "credential_process ended by signal %d", WTERMSIG(status));
    return dctf_cred_why(
        walk, DCTF_ERR_CREDENTIALS_FAILED, "credential_process ended with status %d", WEXITSTATUS(status));
}

enum dctf_err dctf_cred_process_run(
    struct dctf_cred_walk *walk, const char *command, const char *source, struct dctf_s3_keys **out)
{
    uint64_t end_ms = now_ms() + DCTF_CRED_PROCESS_MS;
    char *text = malloc(DCTF_CRED_ANSWER_MAX);
    size_t len = 0;
    int pipes[2];
    pid_t pid = 0;
    enum dctf_err err;

    *out = NULL;
    if (!text)
        return dctf_cred_why(walk, DCTF_ERR_NO_MEMORY, "out of memory");
    if (pipe2(pipes, O_CLOEXEC)) {
        free(text);
        return dctf_cred_why(
            walk, DCTF_ERR_CREDENTIALS_FAILED, "credential_process: %s", strerrordesc_np(errno));
    }
    err = spawn(walk, command, pipes[1], &pid);
    close(pipes[1]);
    if (!err) {
        err = collect(walk, pipes[0], end_ms, text, DCTF_CRED_ANSWER_MAX, &len);
        err = reap(walk, pid, end_ms, err);
    }
    close(pipes[0]);
    if (!err) {
        err = dctf_cred_json_parse(walk, text, len, DCTF_CRED_JSON_PROCESS, source, out);
        if (err == DCTF_ERR_CREDENTIALS_FAILED)
            dctf_cred_explain(walk, "credential_process: %s", walk->why);
    }
    explicit_bzero(text, DCTF_CRED_ANSWER_MAX);
    free(text);
    return err;
}
