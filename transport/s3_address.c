/* SPDX-License-Identifier: Apache-2.0
 *
 * Strict on purpose: what is accepted here becomes a host that gets signed requests,
 * so only characters that cannot change the shape of a URL pass.
 */
#include "transport/s3_address.h"

#include "base/str.h"
#include "transport/uri.h"

#include <arpa/inet.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define DETAIL_MAX 256
#define KEY_MAX_BYTES 1024
#define HOST_MAX 253

#define DEFAULT_REGION "us-east-1"

#define LOWER "abcdefghijklmnopqrstuvwxyz"
#define UPPER "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
#define DIGITS "0123456789"

struct endpoint {
    const char *scheme;
    struct dctf_str host; /* lower case, with brackets and a port that is not the scheme's */
    struct dctf_str base_path;
    bool is_plain; /* a host name alone: a bucket can stand before it */
    bool is_address;
};

static enum dctf_err refuse(char *detail, enum dctf_err err, const char *format, ...) DCTF_PRINTF(3, 4);

static enum dctf_err refuse(char *detail, enum dctf_err err, const char *format, ...)
{
    va_list args;

    if (detail) {
        va_start(args, format);
        vsnprintf(detail, DETAIL_MAX, format, args);
        va_end(args);
    }
    return err;
}

static bool only(const char *text, size_t len, const char *allowed)
{
    for (size_t i = 0; i < len; i++) {
        if (!text[i] || !strchr(allowed, text[i]))
            return false;
    }
    return true;
}

static bool ends_with(const char *text, size_t len, const char *end)
{
    size_t end_len = strlen(end);

    return len >= end_len && !strncmp(text + len - end_len, end, end_len);
}

/* Endpoint */

/* Dot-separated labels of letters, digits, '-' and '_', none empty. */
static bool is_host_name(const char *text, size_t len)
{
    if (!len || len > HOST_MAX || !only(text, len, LOWER UPPER DIGITS "-_."))
        return false;
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '.' && (!i || i + 1 == len || text[i - 1] == '.'))
            return false;
    }
    return true;
}

static bool is_ip(int family, const char *text, size_t len)
{
    unsigned char address[sizeof(struct in6_addr)];
    char copy[INET6_ADDRSTRLEN];

    if (len >= sizeof(copy))
        return false;
    memcpy(copy, text, len);
    copy[len] = '\0';
    return inet_pton(family, copy, address) == 1;
}

static void add_lower(struct dctf_str *out, const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        char byte = text[i] >= 'A' && text[i] <= 'Z' ? (char)(text[i] - 'A' + 'a') : text[i];

        dctf_str_add(out, &byte, 1);
    }
}

/* The host of `text`; how many bytes it takes, 0 when it is none. */
static size_t parse_host(struct endpoint *endpoint, const char *text, size_t len)
{
    size_t host_len = 0;

    if (len && *text == '[') {
        const char *end = memchr(text, ']', len);

        if (!end || !is_ip(AF_INET6, text + 1, (size_t)(end - text - 1)))
            return 0;
        endpoint->is_address = true;
        host_len = (size_t)(end - text + 1);
    } else {
        while (host_len < len && text[host_len] != ':')
            host_len++;
        if (!is_host_name(text, host_len))
            return 0;
        endpoint->is_address = is_ip(AF_INET, text, host_len);
        /* "127.1" and such are addresses to the resolver alone. */
        if (!endpoint->is_address && only(text, host_len, DIGITS "."))
            return 0;
    }
    add_lower(&endpoint->host, text, host_len);
    return host_len;
}

static bool parse_port(const char *text, size_t len, unsigned *out)
{
    unsigned port = 0;

    if (!len || len > 5 || !only(text, len, DIGITS))
        return false;
    for (size_t i = 0; i < len; i++)
        port = port * 10 + (unsigned)(text[i] - '0');
    *out = port;
    return port >= 1 && port <= UINT16_MAX;
}

static enum dctf_err parse_authority(struct endpoint *endpoint, const char *text, size_t len, char *detail)
{
    size_t host_len = parse_host(endpoint, text, len);
    unsigned default_port = strcmp(endpoint->scheme, "https") ? 80 : 443;
    unsigned port = default_port;

    if (!host_len)
        return refuse(detail, DCTF_ERR_OPTION_VALUE, "endpoint: not a host name or address");
    if (host_len < len &&
        (text[host_len] != ':' || !parse_port(text + host_len + 1, len - host_len - 1, &port)))
        return refuse(detail, DCTF_ERR_OPTION_VALUE, "endpoint: the port must be a number from 1 to 65535");
    endpoint->is_plain = !endpoint->is_address && port == default_port &&
                         strcmp(dctf_str_c(&endpoint->host), "localhost") != 0 &&
                         !ends_with(endpoint->host.data, endpoint->host.len, ".localhost");
    if (port != default_port)
        dctf_str_printf(&endpoint->host, ":%u", port);
    return DCTF_OK;
}

/* Whether `text` is a path component that neither the client nor a server rewrites. */
static bool is_path_component(const char *text, size_t len)
{
    if (!len || (len == 1 && *text == '.') || (len == 2 && !strncmp(text, "..", 2)))
        return false;
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '%') {
            if (len - i < 3 || !only(text + i + 1, 2, DIGITS "ABCDEFabcdef"))
                return false;
            i += 2;
        } else if (!only(text + i, 1, LOWER UPPER DIGITS "-._~")) {
            return false;
        }
    }
    return true;
}

static enum dctf_err parse_base_path(struct endpoint *endpoint, const char *text, char *detail)
{
    size_t len = strlen(text);

    while (len && text[len - 1] == '/')
        len--;
    for (size_t at = 0; at < len;) {
        size_t next = ++at; /* past the '/' */

        while (next < len && text[next] != '/')
            next++;
        if (!is_path_component(text + at, next - at))
            return refuse(detail, DCTF_ERR_OPTION_VALUE,
                "endpoint: its path may hold letters, digits, - . _ ~ and %%XX, and no empty, . or .. "
                "component");
        at = next;
    }
    dctf_str_add(&endpoint->base_path, text, len);
    if (len)
        endpoint->is_plain = false;
    return DCTF_OK;
}

static enum dctf_err parse_endpoint(struct endpoint *endpoint, const char *text, char *detail)
{
    enum dctf_err err;
    size_t len;

    endpoint->scheme = "https";
    if (!strncasecmp(text, "https://", 8)) {
        text += 8;
    } else if (!strncasecmp(text, "http://", 7)) {
        text += 7;
        endpoint->scheme = "http";
    } else if (strstr(text, "://")) {
        return refuse(detail, DCTF_ERR_OPTION_VALUE, "endpoint: it must begin with https:// or http://");
    }
    len = strcspn(text, "/?#");
    if (memchr(text, '@', len))
        return refuse(detail, DCTF_ERR_OPTION_VALUE,
            "endpoint: keys, user names and passwords do not belong into a URL; see docs/s3.md");
    if (strpbrk(text, "?#"))
        return refuse(detail, DCTF_ERR_OPTION_VALUE, "endpoint: it must not hold a query or a fragment");
    err = parse_authority(endpoint, text, len, detail);
    if (!err)
        err = parse_base_path(endpoint, text + len, detail);
    if (err)
        return err;
    return endpoint->host.err ? endpoint->host.err : endpoint->base_path.err;
}

/* Region and AWS's hosts */

static enum dctf_err check_region(const char *region, bool is_aws, char *detail)
{
    const char *allowed = is_aws ? LOWER DIGITS "-" : LOWER UPPER DIGITS "-_";

    /* A server names regions too: nothing that could turn the host into another. */
    if (strlen(region) > 63 || !only(region, strlen(region), allowed) || *region == '-')
        return refuse(detail, DCTF_ERR_OPTION_VALUE, "region: not a region's name, such as eu-west-1");
    return DCTF_OK;
}

static const char *aws_suffix(const char *region)
{
    static const struct {
        const char *regions, *suffix;
    } partitions[] = {
        {"cn-", "amazonaws.com.cn"},
        {"eusc-", "amazonaws.eu"},
        {"us-iso-", "c2s.ic.gov"},
        {"us-isob-", "sc2s.sgov.gov"},
        {"us-isof-", "csp.hci.ic.gov"},
        {"eu-isoe-", "cloud.adc-e.uk"},
    };

    for (size_t i = 0; i < sizeof(partitions) / sizeof(partitions[0]); i++) {
        if (!strncmp(region, partitions[i].regions, strlen(partitions[i].regions)))
            return partitions[i].suffix;
    }
    return "amazonaws.com";
}

/* Bucket and prefix */

/* What AWS lets a bucket be called, but for reserved beginnings and ends. */
static bool is_dns_bucket(const char *name, size_t len)
{
    if (len < 3 || len > 63 || !only(name, len, LOWER DIGITS "-.") || is_ip(AF_INET, name, len))
        return false;
    if (strchr("-.", name[0]) || strchr("-.", name[len - 1]))
        return false;
    return !memmem(name, len, "..", 2);
}

static bool is_access_point(const char *name, size_t len)
{
    return ends_with(name, len, "-s3alias") || ends_with(name, len, "--ol-s3") ||
           ends_with(name, len, ".mrap");
}

static enum dctf_err check_bucket(const char *name, size_t len, bool is_aws, char *detail)
{
    const enum dctf_err err = DCTF_ERR_SOURCE_BAD;

    if (!len)
        return refuse(detail, err, "source: the bucket's name is missing: s3://bucket[/prefix]");
    if (len > 4 && !strncasecmp(name, "arn:", 4))
        return refuse(detail, err, "source: ARNs and access points are not supported; name the bucket");
    if (memchr(name, '@', len))
        return refuse(
            detail, err, "source: keys, user names and passwords do not belong into a URL; see docs/s3.md");
    if (!is_aws) {
        if (len < 3 || len > 255 || !only(name, len, LOWER UPPER DIGITS "-._") ||
            !only(name, 1, LOWER UPPER DIGITS))
            return refuse(detail, err,
                "source: a bucket's name has 3 to 255 letters, digits, dots, hyphens and underscores");
        return DCTF_OK;
    }
    if (is_access_point(name, len))
        return refuse(detail, err, "source: access points are not supported; name the bucket");
    if (ends_with(name, len, "--x-s3"))
        return refuse(detail, err, "source: directory buckets (S3 Express) are not supported");
    if (!is_dns_bucket(name, len))
        return refuse(detail, err,
            "source: a bucket's name has 3 to 63 lower-case letters, digits, dots and hyphens, and a letter "
            "or "
            "digit at both ends");
    return DCTF_OK;
}

/* One '/' may stand at its end. */
static enum dctf_err check_prefix(const char *prefix, size_t len, char *detail)
{
    if (len >= KEY_MAX_BYTES)
        return refuse(
            detail, DCTF_ERR_SOURCE_BAD, "source: the prefix is longer than %d bytes", KEY_MAX_BYTES - 1);
    for (size_t at = 0; at < len;) {
        size_t next = at;

        while (next < len && prefix[next] != '/')
            next++;
        if (next == at || (next - at <= 2 && only(prefix + at, next - at, ".")))
            return refuse(detail, DCTF_ERR_SOURCE_BAD, "source: an empty, . or .. component in the prefix");
        at = next + 1;
    }
    return DCTF_OK;
}

/* "s3://bucket/some/prefix" → bucket, "some/prefix/" */
static enum dctf_err set_source(struct dctf_s3_address *address, const char *source, char *detail)
{
    const char *name = source + strlen("s3://");
    const char *prefix;
    size_t prefix_len;
    size_t name_len;
    enum dctf_err err;

    if (strncmp(source, "s3://", strlen("s3://")) != 0)
        return refuse(detail, DCTF_ERR_SOURCE_BAD, "source: it must be s3://bucket[/prefix]");
    name_len = strcspn(name, "/");
    prefix = name + name_len + (name[name_len] == '/');
    prefix_len = strlen(prefix);
    err = check_bucket(name, name_len, address->is_aws, detail);
    if (!err)
        err = check_prefix(prefix, prefix_len, detail);
    if (err)
        return err;
    address->bucket = strndup(name, name_len);
    address->prefix = malloc(prefix_len + 2);
    if (!address->bucket || !address->prefix)
        return DCTF_ERR_NO_MEMORY;
    memcpy(address->prefix, prefix, prefix_len + 1);
    if (prefix_len && prefix[prefix_len - 1] != '/')
        memcpy(address->prefix + prefix_len, "/", 2);
    return DCTF_OK;
}

/* Style and host */

static enum dctf_err choose_style(
    struct dctf_s3_address *address, const struct endpoint *endpoint, enum dctf_s3_style style, char *detail)
{
    bool is_label = is_dns_bucket(address->bucket, strlen(address->bucket)) && !strchr(address->bucket, '.');

    if (style == DCTF_S3_STYLE_AUTO)
        style = is_label && endpoint->is_plain ? DCTF_S3_STYLE_VIRTUAL : DCTF_S3_STYLE_PATH;
    address->path_style = style == DCTF_S3_STYLE_PATH;
    if (address->path_style)
        return DCTF_OK;
    if (endpoint->is_address)
        return refuse(detail, DCTF_ERR_OPTION_VALUE,
            "endpoint: an address cannot take the bucket's name; use path_style");
    if (!is_dns_bucket(address->bucket, strlen(address->bucket)))
        return refuse(detail, DCTF_ERR_SOURCE_BAD,
            "source: this bucket's name cannot be part of a host name; use path_style");
    return DCTF_OK;
}

static enum dctf_err set_host(struct dctf_s3_address *address, const struct endpoint *endpoint)
{
    struct dctf_str host;

    dctf_str_init(&host);
    if (!address->path_style)
        dctf_str_printf(&host, "%s.", address->bucket);
    dctf_str_puts(&host, dctf_str_c(&endpoint->host));
    if (host.err) {
        enum dctf_err err = host.err;

        dctf_str_fini(&host);
        return err;
    }
    address->host = host.data; /* taken over */
    address->scheme = strdup(endpoint->scheme);
    address->base_path = strdup(dctf_str_c(&endpoint->base_path));
    return address->scheme && address->base_path ? DCTF_OK : DCTF_ERR_NO_MEMORY;
}

static enum dctf_err init(struct dctf_s3_address *address, struct endpoint *endpoint, const char *source,
    const char *text, enum dctf_s3_style style, char *detail)
{
    enum dctf_err err = check_region(address->region, address->is_aws, detail);

    if (!err && address->is_aws) {
        endpoint->scheme = "https";
        endpoint->is_plain = true;
        dctf_str_printf(&endpoint->host, "s3.%s.%s", address->region, aws_suffix(address->region));
        err = endpoint->host.err;
    } else if (!err) {
        err = parse_endpoint(endpoint, text, detail);
    }
    if (!err)
        err = set_source(address, source, detail);
    if (!err)
        err = choose_style(address, endpoint, style, detail);
    if (!err)
        err = set_host(address, endpoint);
    return err;
}

enum dctf_err dctf_s3_address_init(struct dctf_s3_address *address, const char *source, const char *endpoint,
    const char *region, enum dctf_s3_style style, char *detail)
{
    struct endpoint parsed = {0};
    enum dctf_err err = DCTF_ERR_NO_MEMORY;

    if (detail)
        detail[0] = '\0';
    *address = (struct dctf_s3_address){
        .is_aws = !endpoint || !*endpoint,
        .region = strdup(region && *region ? region : DEFAULT_REGION),
    };
    if (address->region)
        err = init(address, &parsed, source, endpoint ? endpoint : "", style, detail);
    dctf_str_fini(&parsed.host);
    dctf_str_fini(&parsed.base_path);
    if (err)
        dctf_s3_address_fini(address);
    return err;
}

void dctf_s3_address_fini(struct dctf_s3_address *address)
{
    free(address->bucket);
    free(address->prefix);
    free(address->scheme);
    free(address->host);
    free(address->region);
    free(address->base_path);
    *address = (struct dctf_s3_address){0};
}

void dctf_s3_address_path(const struct dctf_s3_address *address, const char *key, struct dctf_str *out)
{
    dctf_str_puts(out, address->base_path);
    dctf_str_puts(out, "/");
    if (address->path_style) {
        dctf_uri_encode(out, address->bucket, strlen(address->bucket), false);
        dctf_str_puts(out, "/");
    }
    if (*key) {
        dctf_uri_encode(out, address->prefix, strlen(address->prefix), true);
        dctf_uri_encode(out, key, strlen(key), true);
    }
}

void dctf_s3_address_url(
    const struct dctf_s3_address *address, const char *path, const char *query, struct dctf_str *out)
{
    dctf_str_puts(out, address->scheme);
    dctf_str_puts(out, "://");
    dctf_str_puts(out, address->host);
    dctf_str_puts(out, path);
    if (query && *query) {
        dctf_str_puts(out, "?");
        dctf_str_puts(out, query);
    }
}
