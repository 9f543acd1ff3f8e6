/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests of the control socket that are for all members of the cluster.
 *
 * Threads:   that of the connection; waits.
 * Ownership: nothing is kept.
 */
#ifndef DCTF_FS_CLUSTER_TELL_H
#define DCTF_FS_CLUSTER_TELL_H

#include "base/err.h"
#include "cluster/listings.h"

#include <jansson.h>
#include <stdbool.h>

struct dctf_fs;

/* With "scope": "cluster" in the request, have the other members do it too: "members" of the answer has a row
 * for each, "unreached" counts those that failed. DCTF_ERR_REQUEST_BAD: another scope, or no cluster. */
DCTF_MUST_CHECK
enum dctf_err dctf_control_tell(struct dctf_fs *fs, const json_t *request, enum dctf_tell what,
    const char *path, bool force, json_t *answer);

/* "heat" with "scope": "cluster": what the node that leads found. */
DCTF_MUST_CHECK
enum dctf_err dctf_control_cluster_heat(struct dctf_fs *fs, const json_t *request, json_t *answer);

#endif
