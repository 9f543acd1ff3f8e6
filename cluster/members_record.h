/* SPDX-License-Identifier: Apache-2.0
 *
 * What members say of themselves in Redis, and the answers that carry it.
 *
 *   info     JSON {"a":address,"z":zone,"r":rack,"h":host,"w":weight}, made by the member
 *   record   "JOINED|INCARNATION|info", made by the script that registers: milliseconds of the
 *            server's clock, and of the member's own
 *   log      entries ["1700000000000-0", ["o", set | del | bye, "n", id, ("r", record)]]
 *   full     [id of the last log entry, id, record, id, record, …]
 *
 * None of it is trusted: a record that makes no sense is passed over, an answer that does not is
 * refused as a whole.
 *
 * Threads:   caller locks. Pure.
 * Ownership: a set is embedded; fini() frees its nodes.
 */
#ifndef DCTF_CLUSTER_MEMBERS_RECORD_H
#define DCTF_CLUSTER_MEMBERS_RECORD_H

#include "base/err.h"
#include "cluster/redis.h"
#include "cluster/view.h"

#include <stdbool.h>
#include <stddef.h>

#define DCTF_MEMBER_INFO_MAX 1024u
#define DCTF_MEMBER_RECORD_MAX (DCTF_MEMBER_INFO_MAX + 48u)
/* Bytes of a log entry's id, without the NUL. */
#define DCTF_MEMBER_LOG_ID_MAX 41u

struct dctf_member_set {
    struct dctf_node *nodes; /* in the order of their ids */
    size_t count, cap;
};
void dctf_member_set_fini(struct dctf_member_set *set);
/* Add, or replace the one with its id. DCTF_ERR_OPTION_VALUE: DCTF_NODES_MAX are there already. */
DCTF_MUST_CHECK
enum dctf_err dctf_member_set_put(struct dctf_member_set *set, const struct dctf_node *node);
void dctf_member_set_drop(struct dctf_member_set *set, const char *id);
const struct dctf_node *dctf_member_set_find(const struct dctf_member_set *set, const char *id);

/* May be the id of a member: 1 to 63 printable ASCII characters, no spaces. */
bool dctf_member_id_is_valid(const char *id, size_t len);
/* Characters of the labels that are not printable ASCII become '_'. */
DCTF_MUST_CHECK
enum dctf_err dctf_member_info_encode(const struct dctf_node *node, char out[DCTF_MEMBER_INFO_MAX + 1]);
/* False: no record. */
bool dctf_member_record_decode(
    const char *id, size_t id_len, const char *record, size_t len, struct dctf_node *out);

/* *set, which is empty, gets the members. *bad counts records passed over. DCTF_ERR_COORDINATOR_ANSWER. */
DCTF_MUST_CHECK
enum dctf_err dctf_members_read_full(const struct dctf_redis_value *answer, struct dctf_member_set *set,
    char log_id[DCTF_MEMBER_LOG_ID_MAX + 1], size_t *bad);
/* Entries from `log_id` on, which the first of them must be; log_id moves to the last. `left` hears who said
 * good-bye. *lost: it is not the log that log_id was read from, or it has moved on too far; nothing was
 * changed. */
DCTF_MUST_CHECK
enum dctf_err dctf_members_read_log(const struct dctf_redis_value *answer, struct dctf_member_set *set,
    char log_id[DCTF_MEMBER_LOG_ID_MAX + 1], void (*left)(void *ctx, const char *id), void *ctx, bool *lost,
    size_t *bad);

#endif
