/* SPDX-License-Identifier: Apache-2.0
 *
 * The members of the cluster, each asked anew by the daemon: only it knows the secret and the network.
 */
#include "mount-tools/dctf_doctor.h"

#include "mount-tools/dctf_tool.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/timex.h>

/* The daemon's answer may come so much later than the time limit of its questions. */
#define GRACE_MS 1000u
/* Members named one by one when something is wrong with them. */
#define NAMED_MAX 20u

static const char *text(const json_t *row, const char *field)
{
    const char *value = json_string_value(json_object_get(row, field));

    return value ? value : "";
}

/* Most others do not reach it (exclude_after_ms). True when it was told of. */
static bool check_excluded(struct dctf_doctor *doctor, const json_t *peer, bool self)
{
    if (!json_is_true(json_object_get(peer, "excluded")))
        return false;
    if (self)
        dctf_doctor_add(doctor, DCTF_DOCTOR_FAIL, "peer",
            "let `advertise`, or `listen`, be an address that the others reach, and a firewall its port",
            "most others do not reach this node at %s: it is nobody's home", text(peer, "address"));
    else
        dctf_doctor_add(doctor, DCTF_DOCTOR_WARN, "peer",
            "see whether it runs, and whether a firewall lets its port through",
            "%s at %s is nobody's home: most others do not reach it", text(peer, "id"),
            text(peer, "address"));
    return true;
}

/* One member's trouble; false when it has none. */
static bool check_peer(struct dctf_doctor *doctor, const json_t *peer)
{
    enum dctf_err err = (enum dctf_err)json_integer_value(json_object_get(peer, "code"));
    const char *id = text(peer, "id"), *address = text(peer, "address");

    if (err == DCTF_ERR_PEER_AUTH) {
        struct timex timex = {0};
        bool synced = adjtimex(&timex) != TIME_ERROR;

        dctf_doctor_add(doctor, DCTF_DOCTOR_FAIL, "peer", dctf_err_remedy(err),
            "%s at %s refuses this node: another cluster_secret or certificate, or clocks more than two "
            "minutes "
            "apart (its log says which)%s",
            id, address, synced ? "" : "; the clock of this machine is not synchronised");
    } else if (err) {
        dctf_doctor_add(doctor, DCTF_DOCTOR_FAIL, "peer",
            "see whether it runs, and whether a firewall lets its port through", "%s at %s: %d %s", id,
            address, (int)err, dctf_err_text(err));
    } else if (json_is_true(json_object_get(peer, "other_dataset"))) {
        dctf_doctor_add(doctor, DCTF_DOCTOR_FAIL, "peer",
            "mount the same SOURCE with the same release on all nodes of a cluster, or name the clusters "
            "apart",
            "%s at %s serves another dataset or release", id, address);
    } else if (json_is_true(json_object_get(peer, "other_view"))) {
        dctf_doctor_add(doctor, DCTF_DOCTOR_WARN, "peer",
            "none while nodes come and go; else give all nodes the same `peers`, or the same `redis` "
            "and `cluster`",
            "%s at %s sees other members than this node: what is fetched may be fetched twice", id, address);
    } else {
        return false;
    }
    return true;
}

void dctf_doctor_peers(struct dctf_doctor *doctor, const char *mountpoint)
{
    struct dctf_client_error error;
    json_t *request, *reply, *peer;
    uint64_t slowest_us = 0;
    size_t i, well = 0, named = 0, troubled = 0;

    request = json_pack("{s:s, s:I}", "cmd", "examine-peers", "timeout_ms", (json_int_t)doctor->timeout_ms);
    if (dctf_tool_ask(mountpoint, doctor->timeout_ms + GRACE_MS, request, &reply, &error))
        return; /* of another release, or as the check of the socket says */
    json_array_foreach(json_object_get(reply, "peers"), i, peer)
    {
        uint64_t us = (uint64_t)json_integer_value(json_object_get(peer, "first_byte_us"));

        if (json_is_true(json_object_get(peer, "self"))) {
            (void)check_excluded(doctor, peer, true);
            continue;
        }
        if (named < NAMED_MAX && (check_peer(doctor, peer) || check_excluded(doctor, peer, false))) {
            named++;
        } else if (json_integer_value(json_object_get(peer, "code"))) {
            troubled++;
        } else {
            well++;
            slowest_us = us > slowest_us ? us : slowest_us;
        }
    }
    if (troubled)
        dctf_doctor_add(doctor, DCTF_DOCTOR_FAIL, "peer", NULL, "%zu more do not answer", troubled);
    if (well)
        dctf_doctor_add(doctor, DCTF_DOCTOR_OK, "peers", NULL,
            "%zu answer and take this node's proof, the slowest within %.1f ms", well,
            (double)slowest_us / 1e3);
    else if (json_array_size(json_object_get(reply, "peers")) == 1)
        dctf_doctor_add(doctor, DCTF_DOCTOR_WARN, "peers", "see `peers` and `redis` in dctffs(8)",
            "this node is alone in its cluster");
    json_decref(reply);
}
