/* SPDX-License-Identifier: Apache-2.0
 *
 * What comes from Redis is untrusted. The first byte picks what the rest is taken for:
 *   m  RESP, as the list of members, and as their log       r  record of a member
 *   h  report of heat                                       p  part of a policy table
 *   a  address                                             u  whom a node does not reach
 *   x  who is left out
 */
#include "base/version.h"
#include "cluster/address.h"
#include "cluster/coordinator_record.h"
#include "cluster/members_record.h"
#include "cluster/redis_reply.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok)
{
    if (!ok)
        abort();
}

static void check_node(const struct dctf_node *node)
{
    struct dctf_address address;

    require(dctf_member_id_is_valid(node->id, strlen(node->id)));
    require(*node->addr || !node->weight);
    if (*node->addr) {
        require(!dctf_address_parse(node->addr, strlen(node->addr), 0, &address));
        require(!strcmp(address.text, node->addr));
    }
}

static void check_set(const struct dctf_member_set *set)
{
    require(set->count <= DCTF_NODES_MAX);
    for (size_t i = 0; i < set->count; i++) {
        check_node(&set->nodes[i]);
        require(!i || strcmp(set->nodes[i - 1].id, set->nodes[i].id) < 0);
    }
}

static void ignore(void *ctx, const char *id)
{
    (void)ctx;
    require(dctf_member_id_is_valid(id, strlen(id)));
}

/* The same answer as each thing it could be; the log continues from where it begins. */
static void try_answer(const struct dctf_redis_value *answer)
{
    struct dctf_member_set set = {.count = 0};
    char log_id[DCTF_MEMBER_LOG_ID_MAX + 1] = "0-1";
    uint64_t number;
    size_t bad;
    bool lost;

    dctf_redis_value_u64(answer, &number);
    if (!dctf_members_read_full(answer, &set, log_id, &bad))
        require(strlen(log_id) >= 3);
    check_set(&set);
    memcpy(log_id, "0-1", 4);
    if (!dctf_members_read_log(answer, &set, log_id, ignore, NULL, &lost, &bad))
        require(strchr(log_id, '-') != NULL);
    check_set(&set);
    dctf_member_set_fini(&set);
}

static void try_resp(const void *data, size_t size)
{
    struct dctf_redis_reader *reader;
    struct dctf_redis_value *answer = NULL;

    if (dctf_redis_reader_new(&reader))
        return;
    if (!dctf_redis_reader_feed(reader, data, size)) {
        while (!dctf_redis_reader_next(reader, &answer) && answer) {
            try_answer(answer);
            dctf_redis_value_free(answer);
        }
    }
    dctf_redis_reader_free(reader);
}

/* What was accepted is written again as it came, but for its form. */
static void try_record(const char *data, size_t size)
{
    struct dctf_node node, again;
    char info[DCTF_MEMBER_INFO_MAX + 1], record[DCTF_MEMBER_RECORD_MAX + 1] = "1|2|";

    if (!dctf_member_record_decode("id", 2, data, size, &node))
        return;
    check_node(&node);
    require(!dctf_member_info_encode(&node, info));
    strncat(record, info, sizeof(record) - 5);
    require(dctf_member_record_decode("id", 2, record, strlen(record), &again));
    require(!strcmp(again.addr, node.addr) && !strcmp(again.zone, node.zone) &&
            !strcmp(again.rack, node.rack) && !strcmp(again.host, node.host) && again.weight == node.weight);
}

static void mend(unsigned char *data, size_t size)
{
    uint64_t sum;

    if (size < 8)
        return;
    sum = dctf_hash64(data, size - 8);
    for (int i = 0; i < 8; i++)
        data[size - 8 + (size_t)i] = (unsigned char)(sum >> 8 * i);
}

static void try_report(const unsigned char *data, size_t size)
{
    static struct dctf_coordinator_heat heat[DCTF_COORDINATOR_HEAT_MAX];
    static unsigned char again[DCTF_COORDINATOR_RECORD_MAX];
    struct dctf_report_head head;

    if (dctf_report_decode(data, size, &head, heat))
        require(dctf_report_encode(&head, heat, again) == size);
}

static void try_part(const unsigned char *data, size_t size)
{
    static struct dctf_policy_entry entries[DCTF_POLICY_PART_MAX];
    static unsigned char again[DCTF_COORDINATOR_RECORD_MAX];
    struct dctf_part_head head;

    if (dctf_part_decode(data, size, &head, entries))
        require(dctf_part_encode(&head, entries, again) == size && !memcmp(again, data, size));
}

static void try_unreached(const unsigned char *data, size_t size)
{
    static struct dctf_unreached entries[DCTF_UNREACHED_MAX];
    static unsigned char again[DCTF_COORDINATOR_RECORD_MAX];
    size_t count;

    if (dctf_unreached_decode(data, size, entries, &count))
        require(dctf_unreached_encode(entries, count, again) == size && !memcmp(again, data, size));
}

static void try_excluded(const unsigned char *data, size_t size)
{
    static uint64_t nodes[DCTF_EXCLUDED_MAX];
    static unsigned char again[DCTF_COORDINATOR_RECORD_MAX];
    struct dctf_excluded_head head;

    if (dctf_excluded_decode(data, size, &head, nodes))
        require(dctf_excluded_encode(&head, nodes, again) == size && !memcmp(again, data, size));
}

static void try_sealed(char kind, const unsigned char *data, size_t size)
{
    if (kind == 'h')
        try_report(data, size);
    else if (kind == 'p')
        try_part(data, size);
    else if (kind == 'u')
        try_unreached(data, size);
    else
        try_excluded(data, size);
}

static void try_address(const char *data, size_t size)
{
    struct dctf_address address, again;

    if (dctf_address_parse(data, size, 0, &address))
        return;
    require(!dctf_address_parse(address.text, strlen(address.text), 0, &again));
    require(!strcmp(address.text, again.text) && address.port == again.port && address.port);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned char *copy;
    char kind;

    if (!size)
        return 0;
    kind = (char)*data++;
    copy = malloc(--size ? size : 1); /* of its exact length, so that a read past it is seen */
    if (!copy)
        return 0;
    memcpy(copy, data, size);
    if (kind == 'm')
        try_resp(copy, size);
    else if (kind == 'r')
        try_record((const char *)copy, size);
    else if (kind == 'a')
        try_address((const char *)copy, size);
    for (int mended = 0; mended < 2 && kind && strchr("hpux", kind); mended++) {
        try_sealed(kind, copy, size);
        mend(copy, size);
    }
    free(copy);
    return 0;
}
