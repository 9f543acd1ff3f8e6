/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/redis_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define OPTIONS_MAX 16
#define READY_TRIES 2000 /* of 5 ms */

struct redis_server {
    pid_t pid; /* 0: none */
    uint16_t port;
    bool tls;
    char dir[64];
    const char *options[OPTIONS_MAX];
};

static const char *find_program(char *path, size_t cap)
{
    static const char *const places[] = {"/usr/bin", "/usr/local/bin", "/usr/sbin"};

    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        snprintf(path, cap, "%s/redis-server", places[i]);
        if (!access(path, X_OK))
            return path;
    }
    return NULL;
}

bool redis_server_is_installed(void)
{
    char path[128];

    if (find_program(path, sizeof(path)))
        return true;
    fprintf(stderr, "\n*** SKIPPED: redis-server is not installed: nothing here was tested ***\n\n");
    return false;
}

static uint16_t free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || bind(fd, (void *)&address, len) || getsockname(fd, (void *)&address, &len))
        abort();
    close(fd);
    return ntohs(address.sin_port);
}

static void spawn(struct redis_server *server)
{
    char path[128], port[8],
        *argv[OPTIONS_MAX + 16] = {path, server->tls ? "--tls-port" : "--port", port, "--bind", "127.0.0.1",
            "--save", "", "--appendonly", "no", "--dir", server->dir, "--loglevel", "warning"};
    pid_t parent = getpid();
    int argc = 13;

    if (server->tls) {
        argv[argc++] = "--port";
        argv[argc++] = "0";
    }

    if (!find_program(path, sizeof(path)))
        abort();
    snprintf(port, sizeof(port), "%u", server->port);
    for (int i = 0; i < OPTIONS_MAX && server->options[i]; i++)
        argv[argc++] = (char *)server->options[i];
    server->pid = fork();
    if (server->pid < 0)
        abort();
    if (server->pid)
        return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!getenv("REDIS_SERVER_LOG"))
        dup2(open("/dev/null", O_WRONLY | O_CLOEXEC), STDOUT_FILENO);
    if (getppid() == parent)
        execv(path, argv);
    _exit(127);
}

/* A server says something to PING, be it that it wants a password; one that speaks TLS has to be believed. */
static bool is_ready(const struct redis_server *server)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(server->port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct timeval limit = {.tv_sec = 1};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char answer;
    bool ready;

    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    ready = !connect(fd, (void *)&address, sizeof(address)) &&
            (server->tls || (send(fd, "PING\r\n", 6, MSG_NOSIGNAL) == 6 && recv(fd, &answer, 1, 0) == 1));
    close(fd);
    return ready;
}

static bool await_ready(struct redis_server *server)
{
    for (int i = 0; i < READY_TRIES; i++) {
        if (is_ready(server))
            return true;
        if (waitpid(server->pid, NULL, WNOHANG) == server->pid) {
            server->pid = 0;
            return false;
        }
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    return false;
}

struct redis_server *redis_server_start(const char *const *options, bool tls)
{
    struct redis_server *server = calloc(1, sizeof(*server));

    if (!server)
        abort();
    snprintf(server->dir, sizeof(server->dir), "/tmp/dctf-test-redis-XXXXXX");
    if (!mkdtemp(server->dir))
        abort();
    server->tls = tls;
    for (int i = 0; options && options[i] && i < OPTIONS_MAX - 1; i++)
        server->options[i] = options[i];
    for (int i = 0; i < 5; i++) { /* another program may take the port in between */
        server->port = free_port();
        spawn(server);
        if (await_ready(server))
            return server;
        redis_server_kill(server);
    }
    abort();
}

uint16_t redis_server_port(const struct redis_server *server)
{
    return server->port;
}

void redis_server_signal(struct redis_server *server, int signal)
{
    if (server->pid > 0)
        kill(server->pid, signal);
}

void redis_server_kill(struct redis_server *server)
{
    if (server->pid <= 0)
        return;
    kill(server->pid, SIGKILL);
    waitpid(server->pid, NULL, 0);
    server->pid = 0;
}

void redis_server_restart(struct redis_server *server)
{
    redis_server_kill(server);
    spawn(server);
    if (!await_ready(server))
        abort();
}

void redis_server_stop(struct redis_server *server)
{
    redis_server_kill(server);
    rmdir(server->dir);
    free(server);
}

struct redis_server *redis_server_shared;

int redis_server_setup(void **state)
{
    (void)state;
    redis_server_shared = redis_server_start(NULL, false);
    return 0;
}

int redis_server_teardown(void **state)
{
    (void)state;
    redis_server_stop(redis_server_shared);
    redis_server_shared = NULL;
    return 0;
}
