/* SPDX-License-Identifier: Apache-2.0 */
#include "mount-tools/client.h"

#include "base/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* A reply longer than this is no answer of ours. */
#define REPLY_MAX_BYTES (256u * 1024u * 1024u)
#define READ_STEP_BYTES (64u * 1024u)

struct dctf_client {
    int fd;
    int stop_fd;
    int usable;
    uint64_t timeout_ms;
    char *buf; /* bytes received and not consumed yet */
    size_t len, cap;
};

enum dctf_err dctf_client_error_set(struct dctf_client_error *error, enum dctf_err err, const char *detail)
{
    error->code = (int)err;
    snprintf(error->name, sizeof(error->name), "%s", dctf_err_name(err));
    if (detail && *detail)
        snprintf(error->text, sizeof(error->text), "%s: %s", dctf_err_text(err), detail);
    else
        snprintf(error->text, sizeof(error->text), "%s", dctf_err_text(err));
    snprintf(error->remedy, sizeof(error->remedy), "%s", dctf_err_remedy(err));
    return err;
}

/* Wait until the socket is ready for `events` or the deadline has passed. */
static enum dctf_err wait_ready(const struct dctf_client *client, short events, uint64_t deadline_ms)
{
    struct pollfd fds[2] = {{.fd = client->fd, .events = events}, {.fd = client->stop_fd, .events = POLLIN}};

    for (;;) {
        uint64_t now = dctf_clock_mono_ms(NULL);
        uint64_t left = deadline_ms > now ? deadline_ms - now : 0;
        int n = poll(fds, 2, left > 1000000 ? 1000000 : (int)left);

        if (n < 0 && errno != EINTR)
            return DCTF_ERR_SYSTEM;
        if (n > 0 && fds[1].revents)
            return DCTF_ERR_INTERRUPTED;
        if (n > 0)
            return DCTF_OK;
        if (dctf_clock_mono_ms(NULL) >= deadline_ms)
            return DCTF_ERR_DAEMON_UNRESPONSIVE;
    }
}

static enum dctf_err connect_error(int errnum, const char *socket_path, struct dctf_client_error *error)
{
    enum dctf_err err = DCTF_ERR_DAEMON_UNRESPONSIVE;
    char detail[256];

    if (errnum == EACCES || errnum == EPERM)
        err = DCTF_ERR_PERMISSION;
    else if (errnum == ENOENT || errnum == ECONNREFUSED || errnum == ENAMETOOLONG)
        err = DCTF_ERR_NOT_MOUNTED;
    snprintf(detail, sizeof(detail), "%s: %s", socket_path, strerror(errnum));
    return dctf_client_error_set(error, err, detail);
}

/* A Unix socket whose backlog is full answers EAGAIN to a non-blocking connect and
 * cannot be polled for it, so it is tried again until the deadline. */
static int connect_until(int fd, const struct sockaddr_un *address, uint64_t deadline_ms, int stop_fd)
{
    struct pollfd stop = {.fd = stop_fd, .events = POLLIN};

    while (connect(fd, (const struct sockaddr *)address, sizeof(*address)) < 0) {
        if (errno != EAGAIN && errno != EINTR)
            return errno;
        if (dctf_clock_mono_ms(NULL) >= deadline_ms)
            return ETIMEDOUT;
        if (poll(&stop, 1, 20) > 0)
            return ETIMEDOUT;
    }
    return 0;
}

enum dctf_err dctf_client_open(
    const struct dctf_client_config *config, struct dctf_client **out, struct dctf_client_error *error)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct dctf_client *client;
    int errnum;

    *out = NULL;
    if (strlen(config->socket) >= sizeof(address.sun_path))
        return connect_error(ENAMETOOLONG, config->socket, error);
    memcpy(address.sun_path, config->socket, strlen(config->socket) + 1);
    client = calloc(1, sizeof(*client));
    if (!client)
        return dctf_client_error_set(error, DCTF_ERR_NO_MEMORY, NULL);
    client->stop_fd = config->stop_fd;
    client->timeout_ms = config->timeout_ms;
    client->usable = 1;
    client->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    errnum = client->fd < 0 ? errno
                            : connect_until(client->fd, &address,
                                  dctf_clock_mono_ms(NULL) + config->timeout_ms, config->stop_fd);
    if (errnum) {
        dctf_client_close(client);
        return connect_error(errnum, config->socket, error);
    }
    *out = client;
    return DCTF_OK;
}

void dctf_client_close(struct dctf_client *client)
{
    if (!client)
        return;
    if (client->fd >= 0)
        close(client->fd);
    free(client->buf);
    free(client);
}

int dctf_client_usable(const struct dctf_client *client)
{
    return client->usable;
}

static enum dctf_err send_all(struct dctf_client *client, const char *data, size_t len, uint64_t deadline_ms)
{
    while (len) {
        ssize_t n = send(client->fd, data, len, MSG_NOSIGNAL);

        if (n >= 0) {
            data += n;
            len -= (size_t)n;
        } else if (errno == EAGAIN) {
            enum dctf_err err = wait_ready(client, POLLOUT, deadline_ms);

            if (err)
                return err;
        } else if (errno != EINTR) {
            return DCTF_ERR_DAEMON_UNRESPONSIVE;
        }
    }
    return DCTF_OK;
}

static enum dctf_err reserve(struct dctf_client *client)
{
    size_t cap = client->cap ? client->cap * 2 : READ_STEP_BYTES;
    char *buf;

    if (client->cap - client->len >= READ_STEP_BYTES / 2)
        return DCTF_OK;
    if (cap > REPLY_MAX_BYTES)
        return DCTF_ERR_REQUEST_BAD;
    buf = realloc(client->buf, cap);
    if (!buf)
        return DCTF_ERR_NO_MEMORY;
    client->buf = buf;
    client->cap = cap;
    return DCTF_OK;
}

/* Receive until the buffer holds a whole line; *line_len is its length without the newline. */
static enum dctf_err receive_line(struct dctf_client *client, uint64_t deadline_ms, size_t *line_len)
{
    size_t searched = 0;

    for (;;) {
        char *newline =
            client->len > searched ? memchr(client->buf + searched, '\n', client->len - searched) : NULL;
        enum dctf_err err;
        ssize_t n;

        if (newline) {
            *line_len = (size_t)(newline - client->buf);
            return DCTF_OK;
        }
        searched = client->len;
        err = reserve(client);
        if (!err)
            err = wait_ready(client, POLLIN, deadline_ms);
        if (err)
            return err;
        n = recv(client->fd, client->buf + client->len, client->cap - client->len, 0);
        if (n > 0)
            client->len += (size_t)n;
        else if (n == 0 || (errno != EAGAIN && errno != EINTR))
            return DCTF_ERR_DAEMON_UNRESPONSIVE;
    }
}

/* Copy the words of a failed answer. */
static enum dctf_err error_of_reply(const json_t *reply, struct dctf_client_error *error)
{
    const char *name = json_string_value(json_object_get(reply, "name"));
    const char *text = json_string_value(json_object_get(reply, "error"));
    const char *remedy = json_string_value(json_object_get(reply, "remedy"));
    int code = (int)json_integer_value(json_object_get(reply, "code"));

    if (code <= 0)
        return dctf_client_error_set(error, DCTF_ERR_REQUEST_BAD, "the answer has neither ok nor code");
    dctf_client_error_set(error, (enum dctf_err)code, NULL);
    if (name)
        snprintf(error->name, sizeof(error->name), "%s", name);
    if (text)
        snprintf(error->text, sizeof(error->text), "%s", text);
    if (remedy)
        snprintf(error->remedy, sizeof(error->remedy), "%s", remedy);
    return (enum dctf_err)code;
}

static enum dctf_err exchange(
    struct dctf_client *client, const char *line, uint64_t timeout_ms, json_t **reply)
{
    uint64_t deadline_ms = dctf_clock_mono_ms(NULL) + timeout_ms;
    size_t line_len = 0;
    enum dctf_err err = send_all(client, line, strlen(line), deadline_ms);

    if (!err)
        err = send_all(client, "\n", 1, deadline_ms);
    if (!err)
        err = receive_line(client, deadline_ms, &line_len);
    if (err)
        return err;
    *reply = json_loadb(client->buf, line_len, 0, NULL);
    client->len -= line_len + 1;
    memmove(client->buf, client->buf + line_len + 1, client->len);
    return *reply ? DCTF_OK : DCTF_ERR_REQUEST_BAD;
}

enum dctf_err dctf_client_call(struct dctf_client *client, json_t *request, uint64_t timeout_ms,
    json_t **reply, struct dctf_client_error *error)
{
    enum dctf_err err;
    char *line;

    *reply = NULL;
    if (!client->usable)
        return dctf_client_error_set(error, DCTF_ERR_DAEMON_UNRESPONSIVE, "the connection broke");
    line = json_dumps(request, JSON_COMPACT);
    if (!line)
        return dctf_client_error_set(error, DCTF_ERR_NO_MEMORY, NULL);
    err = exchange(client, line, timeout_ms ? timeout_ms : client->timeout_ms, reply);
    free(line);
    if (err) {
        client->usable = 0;
        return dctf_client_error_set(error, err, NULL);
    }
    if (!json_is_true(json_object_get(*reply, "ok"))) {
        err = error_of_reply(*reply, error);
        json_decref(*reply);
        *reply = NULL;
    }
    return err;
}

enum dctf_err dctf_client_set_bytes(json_t *object, const char *field, const char *bytes)
{
    static const char digits[] = "0123456789abcdef";
    json_t *value = json_string(bytes); /* NULL when it is not UTF-8 */
    size_t len = strlen(bytes);
    char name[64];
    char *hex;

    if (value)
        return json_object_set_new(object, field, value) ? DCTF_ERR_NO_MEMORY : DCTF_OK;
    hex = malloc(2 * len + 1);
    if (!hex)
        return DCTF_ERR_NO_MEMORY;
    for (size_t i = 0; i < len; i++) {
        hex[2 * i] = digits[(unsigned char)bytes[i] >> 4];
        hex[2 * i + 1] = digits[(unsigned char)bytes[i] & 15];
    }
    hex[2 * len] = '\0';
    snprintf(name, sizeof(name), "%s_hex", field);
    value = json_string(hex);
    free(hex);
    return json_object_set_new(object, name, value) ? DCTF_ERR_NO_MEMORY : DCTF_OK;
}

static int nibble(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

char *dctf_client_get_bytes(const json_t *object, const char *field)
{
    const char *text = json_string_value(json_object_get(object, field));
    char name[64];
    char *bytes;
    size_t len;

    if (text)
        return strdup(text);
    snprintf(name, sizeof(name), "%s_hex", field);
    text = json_string_value(json_object_get(object, name));
    if (!text)
        return NULL;
    len = strlen(text);
    bytes = len % 2 ? NULL : malloc(len / 2 + 1);
    if (!bytes)
        return NULL;
    for (size_t i = 0; i < len / 2; i++) {
        int high = nibble(text[2 * i]), low = nibble(text[2 * i + 1]);

        if (high < 0 || low < 0) {
            free(bytes);
            return NULL;
        }
        bytes[i] = (char)(high << 4 | low);
    }
    bytes[len / 2] = '\0';
    return bytes;
}
