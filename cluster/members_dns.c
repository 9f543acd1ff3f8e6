/* SPDX-License-Identifier: Apache-2.0
 *
 * Members by DNS: each address of the name is one. A name with IPv4 addresses is taken by those alone,
 * since a node with two addresses would be two members with one cache.
 */
#include "cluster/members_internal.h"

#include "base/log.h"
#include "cluster/resolve.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DETAIL_BYTES 256u
/* How often the thread looks whether it is to end, while a look-up takes its time. */
#define SLICE_MS 50u
/* Peers that tell another view make us look again, at most this often. */
#define APART_MS 1000u

struct dctf_members_dns {
    struct dctf_address name;
    struct dctf_resolver *resolver;
    char self[DCTF_NODE_ID_MAX + 1]; /* id at the last look; "": not a member */
    bool told_absent, failing;
};

enum dctf_err dctf_members_dns_new(
    struct dctf_members *members, const char *text, char *detail, struct dctf_members_dns **out)
{
    struct dctf_members_dns *dns = calloc(1, sizeof(*dns));
    const char *wrong;
    enum dctf_err err;

    *out = NULL;
    if (!dns)
        return DCTF_ERR_NO_MEMORY;
    wrong = dctf_address_parse(text, strlen(text), 0, &dns->name);
    if (wrong) {
        snprintf(detail, DETAIL_BYTES, "peers: dns:NAME:PORT: %s", wrong);
        free(dns);
        return DCTF_ERR_OPTION_VALUE;
    }
    memcpy(dns->self, members->config.self.id, sizeof(dns->self));
    err = dctf_resolver_new(dns->name.host, &dns->resolver);
    if (err) {
        free(dns);
        return err;
    }
    *out = dns;
    return DCTF_OK;
}

void dctf_members_dns_free(struct dctf_members_dns *dns)
{
    if (!dns)
        return;
    dctf_resolver_free(dns->resolver);
    free(dns);
}

static int compare_ids(const void *a, const void *b)
{
    return strcmp(((const struct dctf_node *)a)->id, ((const struct dctf_node *)b)->id);
}

static size_t to_nodes(
    const struct dctf_members_dns *dns, const struct dctf_resolved *resolved, struct dctf_node *out)
{
    bool v4 = false;
    size_t count = 0, kept = 0;

    for (size_t i = 0; i < resolved->count; i++)
        v4 |= resolved->addresses[i].ss_family == AF_INET;
    for (size_t i = 0; i < resolved->count; i++) {
        const struct sockaddr *from = (const void *)&resolved->addresses[i];
        struct dctf_address address;

        if ((v4 && from->sa_family != AF_INET) || !dctf_address_of(from, dns->name.port, &address))
            continue;
        dctf_members_plain_node(&address, &out[count++]);
    }
    if (count)
        qsort(out, count, sizeof(*out), compare_ids);
    for (size_t i = 0; i < count; i++) { /* one address of two scopes reads the same */
        if (!kept || strcmp(out[kept - 1].id, out[i].id) != 0)
            out[kept++] = out[i];
    }
    return kept;
}

static const struct dctf_node *find(const struct dctf_node *nodes, size_t count, const char *id)
{
    for (size_t i = 0; i < count; i++) {
        if (!strcmp(nodes[i].id, id))
            return &nodes[i];
    }
    return NULL;
}

/* Which of them this node is: by what it advertises, else by the addresses of its interfaces. */
static const struct dctf_node *find_self(
    const struct dctf_members *members, const struct dctf_node *nodes, size_t count)
{
    const struct dctf_node *self = NULL;
    const char *addr = members->config.self.addr;
    struct dctf_address own = {.port = 0}, address;
    struct ifaddrs *interfaces;

    if (*addr && !dctf_address_parse(addr, strlen(addr), 0, &own)) {
        self = find(nodes, count, own.text);
        if (self || own.port != members->dns->name.port)
            return self;
    }
    if (getifaddrs(&interfaces))
        return NULL;
    for (const struct ifaddrs *at = interfaces; at && !self; at = at->ifa_next) {
        if (at->ifa_addr && dctf_address_of(at->ifa_addr, members->dns->name.port, &address))
            self = find(nodes, count, address.text);
    }
    freeifaddrs(interfaces);
    return self;
}

static void take_answer(struct dctf_members *members, const struct dctf_resolved *resolved)
{
    struct dctf_members_dns *dns = members->dns;
    struct dctf_node *nodes = calloc(resolved->count + 1, sizeof(*nodes));
    const struct dctf_node *self;
    size_t count;

    if (!nodes) {
        dctf_log(DCTF_LOG_ERROR, "members", "op=dns err=%d the old view stays", DCTF_ERR_NO_MEMORY);
        return;
    }
    count = to_nodes(dns, resolved, nodes);
    self = find_self(members, nodes, count);
    if (self)
        memcpy(dns->self, self->id, sizeof(dns->self));
    if (!self && !dns->told_absent)
        dctf_log(DCTF_LOG_WARN, "members",
            "op=dns name=%s members=%zu this node is none of them yet; set advertise to its address there",
            dns->name.host, count);
    dns->told_absent = !self;
    dctf_members_heard(members, nodes, count, dns->self, false);
    free(nodes);
}

/* False: it is time to end. */
static bool look(struct dctf_members *members)
{
    struct dctf_members_dns *dns = members->dns;
    struct dctf_resolved resolved;
    enum dctf_err err = dctf_resolver_ask(dns->resolver);

    if (err) {
        dctf_log(DCTF_LOG_ERROR, "members", "op=dns err=%d no thread to look the name up", err);
        return true;
    }
    while ((err = dctf_resolver_take(dns->resolver, SLICE_MS, &resolved))) {
        if (dctf_members_closing(members))
            return false;
        dctf_members_review(members, dns->self);
    }
    if (!resolved.status && resolved.count) {
        dns->failing = false;
        take_answer(members, &resolved);
    } else {
        if (!dns->failing)
            dctf_log(DCTF_LOG_WARN, "members", "op=dns name=%s the old view stays: %s", dns->name.host,
                resolved.status ? gai_strerror(resolved.status) : "no addresses");
        dns->failing = true;
    }
    dctf_resolved_fini(&resolved);
    return true;
}

/* Sleep until `due_ms`, or from `early_ms` on until another look is asked for; true: it is time to end. */
static bool pause_looking(struct dctf_members *members, uint64_t early_ms, uint64_t due_ms)
{
    bool closing = false, wanted = false;
    uint64_t now_ms;

    while (!closing && (now_ms = dctf_members_now_ms(members)) < (wanted ? early_ms : due_ms)) {
        uint64_t until_ms = wanted ? early_ms : due_ms, guard_ms = dctf_guard_due_ms(&members->guard);
        bool refresh;

        closing = dctf_members_sleep(members, guard_ms < until_ms ? guard_ms : until_ms, &refresh);
        wanted |= refresh;
        dctf_members_review(members, members->dns->self);
    }
    return closing;
}

void dctf_members_dns_run(struct dctf_members *members)
{
    uint64_t now_ms = dctf_members_now_ms(members);

    while (look(members) && !pause_looking(members, now_ms + APART_MS,
                                now_ms + dctf_members_jitter(members, members->config.heartbeat_ms)))
        now_ms = dctf_members_now_ms(members);
}
