/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

static const char *parse_port(const char *text, size_t len, uint16_t *out)
{
    uint32_t port = 0;

    if (!len || len > 5)
        return "the port is not a number from 1 to 65535";
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9')
            return "the port is not a number from 1 to 65535";
        port = port * 10 + (uint32_t)(text[i] - '0');
    }
    if (!port || port > UINT16_MAX)
        return "the port is not a number from 1 to 65535";
    *out = (uint16_t)port;
    return NULL;
}

static bool is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
}

static const char *take_name(const char *text, size_t len, struct dctf_address *out)
{
    struct in_addr v4;

    if (!len)
        return "the host is missing";
    if (len > DCTF_ADDRESS_MAX)
        return "the host is too long";
    for (size_t i = 0; i < len; i++) {
        if (!is_name_char(text[i]))
            return "the host has a character that no name has";
        out->host[i] = text[i] >= 'A' && text[i] <= 'Z' ? (char)(text[i] - 'A' + 'a') : text[i];
    }
    out->host[len] = '\0';
    if (inet_pton(AF_INET, out->host, &v4) == 1)
        inet_ntop(AF_INET, &v4, out->host, sizeof(out->host));
    return NULL;
}

static const char *take_v6(const char *text, size_t len, struct dctf_address *out)
{
    struct in6_addr v6;

    if (len > DCTF_ADDRESS_MAX)
        return "the host is too long";
    memcpy(out->host, text, len);
    out->host[len] = '\0';
    if (inet_pton(AF_INET6, out->host, &v6) != 1)
        return "what stands in brackets is no IPv6 address";
    inet_ntop(AF_INET6, &v6, out->host, sizeof(out->host));
    return NULL;
}

static const char *write_text(struct dctf_address *out)
{
    bool v6 = strchr(out->host, ':');
    char text[DCTF_ADDRESS_MAX + 16];
    int len = snprintf(text, sizeof(text), "%s%s%s:%u", v6 ? "[" : "", out->host, v6 ? "]" : "", out->port);

    if (len < 0 || (size_t)len >= sizeof(out->text))
        return "the address is too long";
    memcpy(out->text, text, (size_t)len + 1);
    return NULL;
}

const char *dctf_address_parse(const char *text, size_t len, uint16_t port, struct dctf_address *out)
{
    const char *end = text + len, *host_end, *wrong;

    *out = (struct dctf_address){.port = port};
    if (len && *text == '[') {
        host_end = memchr(text, ']', len);
        if (!host_end)
            return "a bracket is not closed";
        wrong = take_v6(text + 1, (size_t)(host_end - text) - 1, out);
        host_end++;
    } else {
        host_end = memchr(text, ':', len);
        if (!host_end)
            host_end = end;
        else if (memchr(host_end + 1, ':', (size_t)(end - host_end) - 1))
            return "an IPv6 address stands in brackets: [::1]:7100";
        wrong = take_name(text, (size_t)(host_end - text), out);
    }
    if (wrong)
        return wrong;
    if (host_end == end && !port)
        return "the port is missing";
    if (host_end != end) {
        if (*host_end != ':')
            return "something other than a port follows the host";
        wrong = parse_port(host_end + 1, (size_t)(end - host_end) - 1, &out->port);
    }
    return wrong ? wrong : write_text(out);
}

bool dctf_address_of(const struct sockaddr *from, uint16_t port, struct dctf_address *out)
{
    *out = (struct dctf_address){.port = port};
    if (from->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const void *)from;

        inet_ntop(AF_INET, &v4->sin_addr, out->host, sizeof(out->host));
    } else if (from->sa_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const void *)from;

        if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr))
            inet_ntop(AF_INET, &v6->sin6_addr.s6_addr[12], out->host, sizeof(out->host));
        else
            inet_ntop(AF_INET6, &v6->sin6_addr, out->host, sizeof(out->host));
    } else {
        return false;
    }
    return !write_text(out);
}
