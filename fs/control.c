/* SPDX-License-Identifier: Apache-2.0
 *
 * The control socket: a thread that accepts, and one per connection, at most CONNECTIONS_MAX.
 * A peer must be root or the user that runs the daemon.
 */
#include "fs/fs_private.h"

#include "base/list.h"
#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define CONNECTIONS_MAX 64u
#define LINE_MAX_BYTES (64u * 1024u)
#define SEND_TIMEOUT_S 10

struct dctf_control {
    struct dctf_fs *fs;
    int listen_fd;
    int stop_fd; /* eventfd: readable once stopping */
    char *path;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t idle;
    struct dctf_list connections; /* guarded by lock */
    unsigned connection_count;    /* guarded by lock */
};

struct connection {
    struct dctf_list node;
    struct dctf_control *control;
    int fd;
};

static bool send_all(int fd, const char *data, size_t len)
{
    while (len) {
        ssize_t sent = send(fd, data, len, MSG_NOSIGNAL);

        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return false;
        data += sent;
        len -= (size_t)sent;
    }
    return true;
}

static bool answer_line(struct dctf_control *control, int fd, const char *line)
{
    json_t *request = json_loads(line, 0, NULL);
    json_t *answer = dctf_control_answer(control->fs, request);
    char *text = answer ? json_dumps(answer, JSON_COMPACT | JSON_PRESERVE_ORDER) : NULL;
    bool sent = text && send_all(fd, text, strlen(text)) && send_all(fd, "\n", 1);

    free(text);
    json_decref(answer);
    json_decref(request);
    return sent;
}

/* Wait for input or for the end. */
static bool readable(struct dctf_control *control, int fd)
{
    struct pollfd fds[] = {{.fd = fd, .events = POLLIN}, {.fd = control->stop_fd, .events = POLLIN}};

    while (poll(fds, 2, -1) < 0) {
        if (errno != EINTR)
            return false;
    }
    return !fds[1].revents && fds[0].revents;
}

static void serve_connection(struct dctf_control *control, int fd)
{
    char *buf = malloc(LINE_MAX_BYTES + 1);
    size_t used = 0;

    while (buf && readable(control, fd)) {
        ssize_t got = recv(fd, buf + used, LINE_MAX_BYTES - used, 0);
        char *newline;

        if (got <= 0)
            break;
        used += (size_t)got;
        buf[used] = '\0';
        while ((newline = memchr(buf, '\n', used))) {
            size_t line = (size_t)(newline - buf) + 1;

            *newline = '\0';
            if (!answer_line(control, fd, buf))
                goto out;
            memmove(buf, buf + line, used - line + 1);
            used -= line;
        }
        if (used == LINE_MAX_BYTES) { /* too long a line */
            answer_line(control, fd, "");
            break;
        }
    }
out:
    free(buf);
}

static void *connection_thread(void *arg)
{
    struct connection *connection = arg;
    struct dctf_control *control = connection->control;

    pthread_setname_np(pthread_self(), "dctf-control");
    serve_connection(control, connection->fd);
    pthread_mutex_lock(&control->lock);
    close(connection->fd); /* under the lock: dctf_control_stop() shuts down the numbers it finds listed */
    dctf_list_remove(&connection->node);
    control->connection_count--;
    pthread_cond_signal(&control->idle);
    pthread_mutex_unlock(&control->lock);
    free(connection);
    return NULL;
}

static bool may_connect(int fd)
{
    struct ucred peer;
    socklen_t len = sizeof(peer);

    return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) && (peer.uid == 0 || peer.uid == geteuid());
}

/* Takes ownership of `fd`. */
static void start_connection(struct dctf_control *control, int fd)
{
    struct timeval timeout = {.tv_sec = SEND_TIMEOUT_S};
    struct connection *connection = calloc(1, sizeof(*connection));
    pthread_attr_t attr;
    pthread_t thread;
    bool started = false;

    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
    if (!connection || !may_connect(fd)) {
        free(connection);
        close(fd);
        return;
    }
    connection->control = control;
    connection->fd = fd;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_mutex_lock(&control->lock);
    if (control->connection_count < CONNECTIONS_MAX &&
        !pthread_create(&thread, &attr, connection_thread, connection)) {
        dctf_list_push_back(&control->connections, &connection->node);
        control->connection_count++;
        started = true;
    }
    pthread_mutex_unlock(&control->lock);
    pthread_attr_destroy(&attr);
    if (!started) {
        close(fd);
        free(connection);
    }
}

static void *accept_thread(void *arg)
{
    struct dctf_control *control = arg;

    pthread_setname_np(pthread_self(), "dctf-control");
    while (readable(control, control->listen_fd)) {
        int fd = accept4(control->listen_fd, NULL, NULL, SOCK_CLOEXEC);

        if (fd >= 0) {
            start_connection(control, fd);
        } else if (errno != EINTR && errno != ECONNABORTED) {
            dctf_log(DCTF_LOG_WARN, "control", "accept failed why=\"%s\"", strerror(errno));
            poll(NULL, 0, 100); /* out of descriptors: they may come back */
        }
    }
    return NULL;
}

static int listen_on(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd;

    if (strlen(path) >= sizeof(address.sun_path))
        return -1;
    strcpy(address.sun_path, path);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    unlink(path); /* left behind by a daemon that died: the mount point is ours by now */
    if (bind(fd, (struct sockaddr *)&address, sizeof(address)) || listen(fd, 16)) {
        close(fd);
        return -1;
    }
    return fd;
}

enum dctf_err dctf_control_start(struct dctf_fs *fs, const char *socket_path, struct dctf_control **out)
{
    struct dctf_control *control = calloc(1, sizeof(*control));

    *out = NULL;
    if (!control)
        return DCTF_ERR_NO_MEMORY;
    control->fs = fs;
    control->path = strdup(socket_path);
    control->stop_fd = eventfd(0, EFD_CLOEXEC);
    control->listen_fd = listen_on(socket_path);
    dctf_list_init(&control->connections);
    pthread_mutex_init(&control->lock, NULL);
    pthread_cond_init(&control->idle, NULL);
    if (!control->path || control->stop_fd < 0 || control->listen_fd < 0 ||
        pthread_create(&control->thread, NULL, accept_thread, control)) {
        dctf_log(DCTF_LOG_ERROR, "control", "cannot listen err=%d path=%s why=\"%s\"", DCTF_ERR_SYSTEM,
            socket_path, strerror(errno));
        if (control->stop_fd >= 0)
            close(control->stop_fd);
        if (control->listen_fd >= 0)
            close(control->listen_fd);
        free(control->path);
        free(control);
        return DCTF_ERR_SYSTEM;
    }
    *out = control;
    return DCTF_OK;
}

void dctf_control_stop(struct dctf_control *control)
{
    uint64_t one = 1;

    if (!control)
        return;
    if (write(control->stop_fd, &one, sizeof(one)) < 0)
        dctf_log(DCTF_LOG_ERROR, "control", "cannot stop why=\"%s\"", strerror(errno));
    pthread_join(control->thread, NULL);
    pthread_mutex_lock(&control->lock);
    for (struct dctf_list *node = control->connections.next; node != &control->connections; node = node->next)
        shutdown(dctf_list_entry(node, struct connection, node)->fd, SHUT_RDWR);
    while (control->connection_count)
        pthread_cond_wait(&control->idle, &control->lock);
    pthread_mutex_unlock(&control->lock);
    unlink(control->path);
    close(control->listen_fd);
    close(control->stop_fd);
    pthread_cond_destroy(&control->idle);
    pthread_mutex_destroy(&control->lock);
    free(control->path);
    free(control);
}
