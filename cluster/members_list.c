/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/members_internal.h"

#include "base/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DETAIL_BYTES 256u

void dctf_members_plain_node(const struct dctf_address *address, struct dctf_node *out)
{
    *out = (struct dctf_node){.weight = 1};
    snprintf(out->addr, sizeof(out->addr), "%s", address->text);
    snprintf(out->id, sizeof(out->id), "%.*s", (int)DCTF_NODE_ID_MAX, address->text);
}

static int compare_ids(const void *a, const void *b)
{
    return strcmp(((const struct dctf_node *)a)->id, ((const struct dctf_node *)b)->id);
}

static enum dctf_err parse_one(const char *text, size_t len, char *detail, struct dctf_node *out)
{
    struct dctf_address address;
    const char *wrong;
    char copy[DCTF_ADDRESS_MAX + 1], quoted[160];

    while (len && *text == ' ') {
        text++;
        len--;
    }
    while (len && text[len - 1] == ' ')
        len--;
    wrong = len ? dctf_address_parse(text, len, 0, &address) : "an entry is empty";
    if (!wrong && strlen(address.text) > DCTF_NODE_ID_MAX)
        wrong = "an address may have at most 63 bytes here";
    if (!wrong) {
        dctf_members_plain_node(&address, out);
        return DCTF_OK;
    }
    snprintf(copy, sizeof(copy), "%.*s", (int)(len < DCTF_ADDRESS_MAX ? len : DCTF_ADDRESS_MAX), text);
    snprintf(detail, DETAIL_BYTES, "peers: %s: %s", dctf_str_quote(copy, quoted, sizeof(quoted)), wrong);
    return DCTF_ERR_OPTION_VALUE;
}

enum dctf_err dctf_members_list_parse(
    const char *text, char *detail, struct dctf_node **out, size_t *out_count)
{
    struct dctf_node *nodes;
    size_t count = 1;
    enum dctf_err err = DCTF_OK;

    *out = NULL;
    *out_count = 0;
    for (const char *at = text; *at; at++)
        count += *at == ',';
    if (count > DCTF_NODES_MAX) {
        snprintf(detail, DETAIL_BYTES, "peers: more than %u members", DCTF_NODES_MAX);
        return DCTF_ERR_OPTION_VALUE;
    }
    nodes = calloc(count, sizeof(*nodes));
    if (!nodes)
        return DCTF_ERR_NO_MEMORY;
    for (size_t i = 0; !err && i < count; i++) {
        size_t len = strcspn(text, ",");

        err = parse_one(text, len, detail, &nodes[i]);
        text += len + 1;
    }
    if (!err)
        qsort(nodes, count, sizeof(*nodes), compare_ids);
    for (size_t i = 1; !err && i < count; i++) {
        if (strcmp(nodes[i - 1].id, nodes[i].id) != 0)
            continue;
        snprintf(detail, DETAIL_BYTES, "peers: %s is there twice", nodes[i].id);
        err = DCTF_ERR_OPTION_VALUE;
    }
    if (err) {
        free(nodes);
        return err;
    }
    *out = nodes;
    *out_count = count;
    return DCTF_OK;
}
