/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/s3_reach.h"

#include "base/clock.h"
#include "base/thread.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define DETAIL_BYTES 256u
#define SHOWN_MAX 4u

/* A look-up, shared by who waits and the thread that does it. */
struct dctf_reach_addresses {
    char host[256];
    char port[8];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned refs; /* guarded by lock, as all below */
    bool ended;
    int result; /* of getaddrinfo() */
    struct addrinfo *list;
};

/* --- the proxy, as libcurl finds it --- */

static const char *variable(const char *name)
{
    const char *value = getenv(name);

    return value && *value ? value : NULL;
}

/* Whether `bits` bits of two addresses are the same. */
static bool same_network(const unsigned char *a, const unsigned char *b, unsigned bits)
{
    unsigned bytes = bits / 8, rest = bits % 8;

    return memcmp(a, b, bytes) == 0 && (rest == 0 || (a[bytes] ^ b[bytes]) >> (8 - rest) == 0);
}

/* "10.0.0.0/8", "fd00::/8", or an address. */
static bool network_has(const char *network, int family, const unsigned char *address)
{
    unsigned most = family == AF_INET ? 32 : 128;
    const char *slash = strchr(network, '/');
    unsigned char net[16];
    char text[INET6_ADDRSTRLEN];
    unsigned bits = slash ? (unsigned)strtoul(slash + 1, NULL, 10) : most;

    snprintf(text, sizeof(text), "%.*s", slash ? (int)(slash - network) : (int)strlen(network), network);
    return bits <= most && inet_pton(family, text, net) == 1 && same_network(net, address, bits);
}

/* "example.net" and ".example.net" both mean the name and all below it. */
static bool name_is_below(const char *name, const char *domain)
{
    size_t name_len = strlen(name), len;

    domain += *domain == '.';
    len = strlen(domain);
    while (len > 0 && domain[len - 1] == '.')
        len--;
    return len > 0 && name_len >= len && strncasecmp(name + name_len - len, domain, len) == 0 &&
           (name_len == len || name[name_len - len - 1] == '.');
}

static bool goes_directly(const char *list, const char *host)
{
    unsigned char address[16];
    int family = inet_pton(AF_INET, host, address) == 1    ? AF_INET
                 : inet_pton(AF_INET6, host, address) == 1 ? AF_INET6
                                                           : 0;
    char entry[256];

    if (strcmp(list, "*") == 0)
        return true;
    for (list += strspn(list, " ,"); *list; list += strspn(list, " ,")) {
        size_t len = strcspn(list, " ,");

        snprintf(entry, sizeof(entry), "%.*s", (int)len, list);
        if (family ? network_has(entry, family, address) : name_is_below(host, entry))
            return true;
        list += len;
    }
    return false;
}

/* "host:port", "[address]:port" → host, address; "" for none. */
static void host_alone(const char *text, char *out, size_t cap)
{
    size_t len = *text == '[' ? strcspn(++text, "]") : strcspn(text, ":");

    snprintf(out, cap, "%.*s", (int)len, text);
}

const char *dctf_reach_proxy(const char *scheme, const char *host)
{
    bool tls = strcmp(scheme, "https") == 0;
    const char *proxy = variable(tls ? "https_proxy" : "http_proxy");
    const char *none = variable("no_proxy");
    char name[256];

    if (!none)
        none = variable("NO_PROXY");
    host_alone(host, name, sizeof(name));
    if (none && goes_directly(none, name))
        return NULL;
    if (!proxy && tls) /* HTTP_PROXY is what a CGI script gets from its caller: nobody reads it */
        proxy = variable("HTTPS_PROXY");
    if (!proxy)
        proxy = variable("all_proxy");
    return proxy ? proxy : variable("ALL_PROXY");
}

void dctf_reach_addresses_free(struct dctf_reach_addresses *addresses)
{
    bool last;

    if (!addresses)
        return;
    pthread_mutex_lock(&addresses->lock);
    last = --addresses->refs == 0;
    pthread_mutex_unlock(&addresses->lock);
    if (!last)
        return;
    if (addresses->list)
        freeaddrinfo(addresses->list);
    pthread_cond_destroy(&addresses->changed);
    pthread_mutex_destroy(&addresses->lock);
    free(addresses);
}

static void *look_up(void *ctx)
{
    struct dctf_reach_addresses *addresses = ctx;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    int result = getaddrinfo(addresses->host, addresses->port, &hints, &list);

    pthread_mutex_lock(&addresses->lock);
    addresses->result = result;
    addresses->list = result ? NULL : list;
    addresses->ended = true;
    pthread_cond_broadcast(&addresses->changed);
    pthread_mutex_unlock(&addresses->lock);
    dctf_reach_addresses_free(addresses);
    return NULL;
}

/* "name:9000", "[::1]:9000", "name" → host and port. */
static bool split(struct dctf_reach_addresses *addresses, const char *host, const char *scheme)
{
    const char *end = host + strlen(host);
    const char *colon = strrchr(host, ':');
    const char *port = strcmp(scheme, "https") == 0 ? "443" : "80";
    size_t len;

    if (host[0] == '[') {
        host++;
        end = strchr(host, ']');
        if (!end)
            return false;
        if (end[1] == ':')
            port = end + 2;
    } else if (colon) {
        end = colon;
        port = colon + 1;
    }
    len = (size_t)(end - host);
    if (len >= sizeof(addresses->host) || strlen(port) >= sizeof(addresses->port))
        return false;
    memcpy(addresses->host, host, len);
    memcpy(addresses->port, port, strlen(port) + 1);
    return true;
}

static void show(const struct addrinfo *info, char *out, size_t cap)
{
    char host[128], port[16];

    if (getnameinfo(info->ai_addr, info->ai_addrlen, host, sizeof(host), port, sizeof(port),
            NI_NUMERICHOST | NI_NUMERICSERV))
        snprintf(out, cap, "?");
    else
        snprintf(out, cap, info->ai_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

static void show_all(const struct addrinfo *list, char *detail)
{
    size_t used = 0;
    unsigned shown = 0;

    for (const struct addrinfo *info = list; info && shown < SHOWN_MAX; info = info->ai_next) {
        char text[160];

        show(info, text, sizeof(text));
        if (used < DETAIL_BYTES)
            used +=
                (size_t)snprintf(detail + used, DETAIL_BYTES - used, "%s%s", shown++ > 0 ? ", " : "", text);
    }
}

static struct dctf_reach_addresses *start(const char *host, const char *scheme, enum dctf_err *err)
{
    struct dctf_reach_addresses *addresses = calloc(1, sizeof(*addresses));
    pthread_t thread;

    *err = addresses ? dctf_thread_cond_init(&addresses->changed) : DCTF_ERR_NO_MEMORY;
    if (*err) {
        free(addresses);
        return NULL;
    }
    pthread_mutex_init(&addresses->lock, NULL);
    addresses->refs = 2;
    if (!split(addresses, host, scheme))
        *err = DCTF_ERR_OPTION_VALUE;
    else
        *err = dctf_thread_start("dctf-resolve", look_up, addresses, &thread);
    if (!*err) {
        pthread_detach(thread);
        return addresses;
    }
    addresses->refs = 1;
    dctf_reach_addresses_free(addresses);
    return NULL;
}

enum dctf_err dctf_reach_resolve(
    const char *host, const char *scheme, uint64_t wait_ms, struct dctf_reach_addresses **out, char *detail)
{
    uint64_t due_ms = dctf_clock_mono_ms(NULL) + wait_ms;
    struct timespec due = {(time_t)(due_ms / 1000), (long)(due_ms % 1000) * 1000000};
    enum dctf_err err;
    struct dctf_reach_addresses *addresses = start(host, scheme, &err);

    *out = NULL;
    snprintf(detail, DETAIL_BYTES, "%.200s: %s", host, dctf_err_text(err));
    if (!addresses)
        return err;
    pthread_mutex_lock(&addresses->lock);
    while (!addresses->ended && pthread_cond_timedwait(&addresses->changed, &addresses->lock, &due) == 0)
        ;
    if (!addresses->ended) {
        snprintf(detail, DETAIL_BYTES, "%.200s: the resolver does not answer", host);
        err = DCTF_ERR_DEADLINE;
    } else if (addresses->result) {
        snprintf(detail, DETAIL_BYTES, "%.160s: %.80s", host, gai_strerror(addresses->result));
        err = DCTF_ERR_ORIGIN_UNREACHABLE;
    } else {
        show_all(addresses->list, detail);
    }
    pthread_mutex_unlock(&addresses->lock);
    if (err)
        dctf_reach_addresses_free(addresses);
    else
        *out = addresses;
    return err;
}

/* 0, or an errno. */
static int connect_one(const struct addrinfo *info, uint64_t due_ms)
{
    int fd = socket(info->ai_family, info->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, info->ai_protocol);
    struct pollfd wait = {.fd = fd, .events = POLLOUT};
    uint64_t now_ms = dctf_clock_mono_ms(NULL);
    socklen_t len = sizeof(int);
    int errnum = 0;

    if (fd < 0)
        return errno;
    if (connect(fd, info->ai_addr, info->ai_addrlen) < 0) {
        errnum = errno;
        if (errnum == EINPROGRESS) {
            errnum = ETIMEDOUT;
            if (poll(&wait, 1, due_ms > now_ms ? (int)(due_ms - now_ms) : 0) > 0 &&
                getsockopt(fd, SOL_SOCKET, SO_ERROR, &errnum, &len) < 0)
                errnum = errno;
        }
    }
    close(fd);
    return errnum;
}

enum dctf_err dctf_reach_connect(const struct dctf_reach_addresses *addresses, uint64_t wait_ms, char *detail)
{
    uint64_t due_ms = dctf_clock_mono_ms(NULL) + (wait_ms < 3600000 ? wait_ms : 3600000);
    char text[160] = "no address";
    int errnum = EHOSTUNREACH;

    for (const struct addrinfo *info = addresses->list; info && errnum; info = info->ai_next) {
        show(info, text, sizeof(text));
        errnum = connect_one(info, due_ms);
    }
    if (errnum)
        snprintf(detail, DETAIL_BYTES, "%s: %s", text, strerror(errnum));
    else
        snprintf(detail, DETAIL_BYTES, "%s", text);
    return errnum ? DCTF_ERR_ORIGIN_UNREACHABLE : DCTF_OK;
}
