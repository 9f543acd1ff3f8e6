/* SPDX-License-Identifier: Apache-2.0
 *
 * Two looks of the past are kept, so that every question is answered over at least MARK_MS, however often
 * and by however many it is asked.
 */
#include "fs/network.h"

#include "base/str.h"
#include "cluster/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <net/if.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MARK_MS 5000u
#define LEAST_MS 1000u

struct mark {
    uint64_t at_ms;
    struct dctf_network_look look;
};

struct dctf_network {
    const char *sys;
    struct dctf_clock clock;
    pthread_mutex_t lock;
    struct mark older, newer; /* guarded by lock */
};

static struct dctf_network_zone *find(struct dctf_network_look *look, const char *zone)
{
    for (size_t i = 0; i < look->count; i++) {
        if (!strcmp(look->zones[i].name, zone))
            return &look->zones[i];
    }
    return NULL;
}

void dctf_network_note(
    struct dctf_network_look *look, const char *zone, const char *addr, uint64_t in, uint64_t out)
{
    struct dctf_network_zone *at = find(look, zone);

    if (!at) {
        if (look->count == DCTF_NETWORK_ZONES)
            return;
        at = &look->zones[look->count++];
        snprintf(at->name, sizeof(at->name), "%s", zone);
    }
    if (!*at->addr)
        snprintf(at->addr, sizeof(at->addr), "%s", addr);
    at->in += in;
    at->out += out;
}

enum dctf_err dctf_network_new(const char *sys, const struct dctf_clock *clock, struct dctf_network **out)
{
    struct dctf_network *network = calloc(1, sizeof(*network));

    *out = network;
    if (!network)
        return DCTF_ERR_NO_MEMORY;
    network->sys = sys ? sys : "/sys/class/net";
    if (clock)
        network->clock = *clock;
    pthread_mutex_init(&network->lock, NULL);
    network->older.at_ms = network->newer.at_ms = dctf_clock_mono_ms(&network->clock);
    return DCTF_OK;
}

void dctf_network_free(struct dctf_network *network)
{
    if (!network)
        return;
    pthread_mutex_destroy(&network->lock);
    free(network);
}

/* The interface that has this address. */
static bool interface_with(const char *host, char *name)
{
    struct ifaddrs *interfaces;
    bool found = false;

    if (getifaddrs(&interfaces))
        return false;
    for (const struct ifaddrs *at = interfaces; at && !found; at = at->ifa_next) {
        struct dctf_address address;

        if (!at->ifa_addr || !dctf_address_of(at->ifa_addr, 1, &address) || strcmp(address.host, host) != 0)
            continue;
        snprintf(name, IF_NAMESIZE, "%s", at->ifa_name);
        found = true;
    }
    freeifaddrs(interfaces);
    return found;
}

/* The interface by which packets go to `addr`; false for names, which are not looked up here. */
static bool interface_to(const char *addr, char *name)
{
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_DGRAM};
    struct sockaddr_storage own;
    socklen_t len = sizeof(own);
    struct dctf_address address;
    struct addrinfo *to;
    bool known;
    int fd;

    if (dctf_address_parse(addr, strlen(addr), 0, &address) || getaddrinfo(address.host, "9", &hints, &to))
        return false;
    fd = socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    known = fd >= 0 && !connect(fd, to->ai_addr, to->ai_addrlen) && /* sends nothing */
            !getsockname(fd, (struct sockaddr *)&own, &len) &&
            dctf_address_of((struct sockaddr *)&own, 1, &address);
    if (fd >= 0)
        close(fd);
    freeaddrinfo(to);
    return known && interface_with(address.host, name);
}

/* Bytes per second of the link towards `addr`; 0: not known. */
static double speed_to(const struct dctf_network *network, const char *addr)
{
    char name[IF_NAMESIZE], path[512];
    long long megabits = 0;
    FILE *file;

    if (!interface_to(addr, name))
        return 0;
    snprintf(path, sizeof(path), "%s/%s/speed", network->sys, name);
    file = fopen(path, "re");
    if (!file)
        return 0;
    if (fscanf(file, "%lld", &megabits) != 1)
        megabits = 0;
    fclose(file);
    return megabits > 0 ? (double)megabits * 1e6 / 8 : 0;
}

static uint64_t grown(uint64_t now, uint64_t before)
{
    return now > before ? now - before : 0;
}

/* The look to compare with; `look` becomes the next one's when it is time. */
static void take_mark(
    struct dctf_network *network, const struct dctf_network_look *look, uint64_t now_ms, struct mark *out)
{
    pthread_mutex_lock(&network->lock);
    if (now_ms - network->newer.at_ms >= MARK_MS) {
        network->older = network->newer;
        network->newer = (struct mark){now_ms, *look};
    }
    *out = network->older;
    pthread_mutex_unlock(&network->lock);
}

void dctf_network_write(
    struct dctf_network *network, const struct dctf_network_look *look, struct dctf_str *out)
{
    uint64_t now_ms = dctf_clock_mono_ms(&network->clock);
    bool told = false;
    struct mark then;

    take_mark(network, look, now_ms, &then);
    for (size_t i = 0; now_ms - then.at_ms >= LEAST_MS && i < look->count; i++) {
        const struct dctf_network_zone *zone = &look->zones[i], *before = find(&then.look, zone->name);
        uint64_t in = grown(zone->in, before ? before->in : 0);
        uint64_t sent = grown(zone->out, before ? before->out : 0);
        double speed = speed_to(network, zone->addr);

        if (speed <= 0)
            continue;
        if (!told)
            dctf_str_puts(out,
                "# HELP dctf_network_utilization Share of the link's speed that bytes to or from "
                "the peers of a zone take, the busier way, over the last seconds\n"
                "# TYPE dctf_network_utilization gauge\n");
        told = true;
        dctf_str_puts(out, "dctf_network_utilization{az=\"");
        for (const char *c = zone->name; *c; c++) {
            if (*c == '"' || *c == '\\' || *c == '\n')
                dctf_str_puts(out, *c == '\n' ? "\\n" : *c == '"' ? "\\\"" : "\\\\");
            else
                dctf_str_add(out, c, 1);
        }
        dctf_str_printf(out, "\"} %.6f\n",
            (double)(in > sent ? in : sent) * 1000 / (double)(now_ms - then.at_ms) / speed);
    }
}
