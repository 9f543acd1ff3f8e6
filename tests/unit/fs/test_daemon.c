/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/daemon.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

struct outcome {
    int status;      /* of the parent */
    char said[1024]; /* on stderr, by parent and daemon */
};

/* Start a daemon that runs `body`, from a process that plays the user's command. The
 * pipe of stderr ends when both have gone or let go of it. */
static struct outcome start(void (*body)(struct dctf_daemon *daemon), uint64_t timeout_ms)
{
    struct outcome outcome = {0};
    size_t len = 0;
    int pipes[2];
    ssize_t got;
    pid_t child;

    assert_int_equal(pipe(pipes), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct dctf_daemon daemon = {.report_fd = -1, .failed_status = 32, .program = "test"};

        dup2(pipes[1], STDERR_FILENO);
        close(pipes[0]);
        close(pipes[1]);
        if (dctf_daemon_start(&daemon, timeout_ms) != DCTF_OK)
            _exit(98);
        body(&daemon);
        _exit(0);
    }
    close(pipes[1]);
    while ((got = read(pipes[0], outcome.said + len, sizeof(outcome.said) - 1 - len)) > 0)
        len += (size_t)got;
    close(pipes[0]);
    assert_int_equal(waitpid(child, &outcome.status, 0), child);
    return outcome;
}

static void be_ready(struct dctf_daemon *daemon)
{
    dctf_daemon_ready(daemon);
    fprintf(stderr, "nobody reads this\n");
}

static void test_ready_exits_zero(void **state)
{
    struct outcome outcome = start(be_ready, 10000);

    (void)state;
    assert_int_equal(outcome.status, 0);
    assert_string_equal(outcome.said, "");
}

static void check_surroundings(struct dctf_daemon *daemon)
{
    char cwd[64] = "";
    char c;

    if (getsid(0) != getpid())
        dctf_daemon_failed(daemon, "no session of its own");
    else if (!getcwd(cwd, sizeof(cwd)) || strcmp(cwd, "/") != 0)
        dctf_daemon_failed(daemon, "not in /");
    else if (read(STDIN_FILENO, &c, 1) != 0)
        dctf_daemon_failed(daemon, "stdin is not empty");
    else
        dctf_daemon_ready(daemon);
}

static void test_start_detaches(void **state)
{
    struct outcome outcome = start(check_surroundings, 10000);

    (void)state;
    assert_string_equal(outcome.said, "");
    assert_int_equal(outcome.status, 0);
}

static void fail_with_words(struct dctf_daemon *daemon)
{
    dctf_daemon_failed(daemon, "test: error 3010 MOUNT_FAILED: no");
}

static void test_failed_prints_the_line(void **state)
{
    struct outcome outcome = start(fail_with_words, 10000);

    (void)state;
    assert_int_equal(WEXITSTATUS(outcome.status), 32);
    assert_string_equal(outcome.said, "test: error 3010 MOUNT_FAILED: no\n");
}

static void end_silently(struct dctf_daemon *daemon)
{
    (void)daemon;
    _exit(3);
}

static void test_end_without_a_word(void **state)
{
    struct outcome outcome = start(end_silently, 10000);

    (void)state;
    assert_int_equal(WEXITSTATUS(outcome.status), 32);
    assert_non_null(strstr(outcome.said, "test: error 9002 INTERNAL: "));
    assert_non_null(strstr(outcome.said, "status 3"));
}

static void die_of_a_signal(struct dctf_daemon *daemon)
{
    (void)daemon;
    raise(SIGKILL);
}

static void test_death_by_signal(void **state)
{
    struct outcome outcome = start(die_of_a_signal, 10000);

    (void)state;
    assert_int_equal(WEXITSTATUS(outcome.status), 32);
    assert_non_null(strstr(outcome.said, "signal 9"));
}

/* Without SIGTERM from the parent stderr would never end and the test time out. */
static void stay_silent(struct dctf_daemon *daemon)
{
    (void)daemon;
    for (;;)
        pause();
}

static void test_timeout_ends_the_child(void **state)
{
    struct outcome outcome = start(stay_silent, 50);

    (void)state;
    assert_int_equal(WEXITSTATUS(outcome.status), 32);
    assert_non_null(strstr(outcome.said, "error 3016 MOUNT_TIMEOUT"));
}

static void report_late(struct dctf_daemon *daemon)
{
    struct pollfd parent = {.fd = daemon->report_fd, .events = POLLIN};

    signal(SIGTERM, SIG_IGN);
    poll(&parent, 1, -1); /* until the parent has given up */
    dctf_daemon_ready(daemon);
}

static void test_late_report_is_harmless(void **state)
{
    struct outcome outcome = start(report_late, 20);

    (void)state;
    assert_int_equal(WEXITSTATUS(outcome.status), 32);
}

static void test_foreground_notifies_systemd(void **state)
{
    struct dctf_daemon daemon = {.report_fd = -1};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char name[64], text[128], expected[64];
    socklen_t len;
    ssize_t got;
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);

    (void)state;
    assert_true(fd >= 0);
    snprintf(name, sizeof(name), "@dctf-test-%ld", (long)getpid());
    strcpy(address.sun_path, name);
    address.sun_path[0] = '\0';
    len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name));
    assert_int_equal(bind(fd, (struct sockaddr *)&address, len), 0);
    setenv("NOTIFY_SOCKET", name, 1);
    dctf_daemon_ready(&daemon);
    unsetenv("NOTIFY_SOCKET");
    got = recv(fd, text, sizeof(text) - 1, MSG_DONTWAIT);
    assert_true(got > 0);
    text[got] = '\0';
    snprintf(expected, sizeof(expected), "READY=1\nMAINPID=%ld", (long)getpid());
    assert_string_equal(text, expected);
    dctf_daemon_ready(&daemon);
    assert_int_equal(recv(fd, text, sizeof(text), MSG_DONTWAIT), -1);
    close(fd);
}

static void test_error_line(void **state)
{
    char line[256];

    (void)state;
    assert_string_equal(
        dctf_daemon_error_line("dctffs", DCTF_ERR_NO_MEMORY, "while starting", line, sizeof(line)),
        "dctffs: error 9001 NO_MEMORY: while starting; remedy: raise the memory limit of the daemon or "
        "lower `memory`");
}

static void test_prepare_raises_descriptors(void **state)
{
    struct rlimit limit;

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = 64;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    dctf_daemon_prepare_process();
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_true(limit.rlim_cur == limit.rlim_max);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ready_exits_zero),
        cmocka_unit_test(test_start_detaches),
        cmocka_unit_test(test_failed_prints_the_line),
        cmocka_unit_test(test_end_without_a_word),
        cmocka_unit_test(test_death_by_signal),
        cmocka_unit_test(test_timeout_ends_the_child),
        cmocka_unit_test(test_late_report_is_harmless),
        cmocka_unit_test(test_foreground_notifies_systemd),
        cmocka_unit_test(test_error_line),
        cmocka_unit_test(test_prepare_raises_descriptors),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
