/* SPDX-License-Identifier: Apache-2.0
 *
 * Sockets of the peer server: the address it listens at, and what the kernel does for one connection.
 */
#include "transport/peer_server_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/tcp.h> /* the C library's struct tcp_info lacks min_rtt and delivery_rate */
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DETAIL_BYTES 256u
#define BACKLOG 256
/* Bytes not sent yet that the kernel takes in: enough to keep the wire busy between two visits of a thread,
 * few enough that a reply that is cut off has not been copied for nothing. */
#define NOT_SENT_BYTES (1024 * 1024)
/* Nobody holds a place for longer than so many bytes/s take. */
#define PACE_MIN (64u * 1024u)

/* "host:port" or "[v6]:port" in two; an empty host is the wildcard address. */
static bool split(const char *listen, char *host, size_t cap, char port[8])
{
    const char *colon = strrchr(listen, ':');
    const char *begin = listen, *end = colon;
    char *rest;

    if (!colon || strlen(colon + 1) < 1 || strlen(colon + 1) > 5 ||
        strspn(colon + 1, "0123456789") != strlen(colon + 1) || strtoul(colon + 1, &rest, 10) > 65535)
        return false;
    if (*begin == '[') {
        begin++;
        if (end <= begin || *--end != ']')
            return false;
    } else if (memchr(begin, ':', (size_t)(end - begin))) {
        return false;
    }
    if ((size_t)(end - begin) >= cap)
        return false;
    memcpy(host, begin, (size_t)(end - begin));
    host[end - begin] = '\0';
    strcpy(port, colon + 1);
    return true;
}

static enum dctf_err resolve(const char *listen, struct addrinfo **out, char *detail)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    char host[NI_MAXHOST], port[8];
    int result;

    *out = NULL;
    if (!split(listen, host, sizeof(host), port)) {
        snprintf(detail, DETAIL_BYTES, "listen=%.100s is not host:port", listen);
        return DCTF_ERR_OPTION_VALUE;
    }
    result = getaddrinfo(*host ? host : NULL, port, &hints, out);
    if (result) {
        snprintf(detail, DETAIL_BYTES, "listen=%.100s: %s", listen, gai_strerror(result));
        return DCTF_ERR_OPTION_VALUE;
    }
    return DCTF_OK;
}

static bool is_loopback(const struct sockaddr *addr)
{
    if (addr->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)addr;

        return ntohl(in->sin_addr.s_addr) >> 24 == 127;
    }
    if (addr->sa_family == AF_INET6) {
        const struct in6_addr *in6 = &((const struct sockaddr_in6 *)(const void *)addr)->sin6_addr;

        return IN6_IS_ADDR_LOOPBACK(in6) || (IN6_IS_ADDR_V4MAPPED(in6) && in6->s6_addr[12] == 127);
    }
    return false;
}

static enum dctf_err check_loopback(const struct addrinfo *list, const char *listen, char *detail)
{
    for (const struct addrinfo *info = list; info; info = info->ai_next) {
        if (is_loopback(info->ai_addr))
            continue;
        snprintf(detail, DETAIL_BYTES,
            "listen=%.100s can be reached from other machines: set cluster_secret or peer certificates",
            listen);
        return DCTF_ERR_PEER_UNSAFE;
    }
    return DCTF_OK;
}

/* Accepted sockets inherit these. */
static void set_options(int fd, uint64_t reply_timeout_ms)
{
    unsigned timeout = reply_timeout_ms > INT32_MAX ? INT32_MAX : (unsigned)reply_timeout_ms;
    int on = 1, not_sent = NOT_SENT_BYTES;

    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &not_sent, sizeof(not_sent));
    /* Ends a connection whose peer takes nothing, whether it is gone or only reads no more. */
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, sizeof(timeout));
}

static int listen_on(const struct addrinfo *info, uint64_t reply_timeout_ms)
{
    int fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int saved;

    if (fd < 0)
        return -1;
    set_options(fd, reply_timeout_ms);
    if (!bind(fd, info->ai_addr, info->ai_addrlen) && !listen(fd, BACKLOG))
        return fd;
    saved = errno;
    close(fd);
    errno = saved;
    return -1;
}

static unsigned port_of(int fd)
{
    union {
        struct sockaddr any;
        struct sockaddr_in in;
        struct sockaddr_in6 in6;
    } addr = {.in6 = {0}};
    socklen_t len = sizeof(addr);

    if (getsockname(fd, &addr.any, &len))
        return 0;
    return ntohs(addr.any.sa_family == AF_INET6 ? addr.in6.sin6_port : addr.in.sin_port);
}

enum dctf_err dctf_peer_socket_listen(const char *listen, bool loopback_only, uint64_t reply_timeout_ms,
    int *fd, unsigned *port, bool *ipv6, char *detail)
{
    struct addrinfo *list = NULL;
    enum dctf_err err = resolve(listen, &list, detail);

    *fd = -1;
    if (!err && loopback_only)
        err = check_loopback(list, listen, detail);
    if (err) {
        if (list)
            freeaddrinfo(list);
        return err;
    }
    for (struct addrinfo *info = list; info && *fd < 0; info = info->ai_next) {
        *fd = listen_on(info, reply_timeout_ms);
        *ipv6 = info->ai_family == AF_INET6;
    }
    freeaddrinfo(list);
    if (*fd < 0) {
        snprintf(detail, DETAIL_BYTES, "listen=%.100s: %s", listen, strerror(errno));
        return DCTF_ERR_SYSTEM;
    }
    *port = port_of(*fd);
    return DCTF_OK;
}

bool dctf_peer_socket_listens(int fd, unsigned port)
{
    int listens = 0;
    socklen_t len = sizeof(listens);

    return !getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) && listens && port_of(fd) == port;
}

void dctf_peer_socket_path(int fd, struct dctf_peer_path *out)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof(info);

    *out = (struct dctf_peer_path){0};
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len))
        return;
    out->rtt_us = info.tcpi_rtt;
    out->min_rtt_us = info.tcpi_min_rtt == UINT32_MAX ? 0 : info.tcpi_min_rtt;
    out->rate = info.tcpi_delivery_rate;
}

void dctf_peer_socket_pace(int fd, uint64_t rate)
{
    unsigned long value = !rate ? ~0ul : rate < PACE_MIN ? PACE_MIN : rate;

    setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &value, sizeof(value));
}
