/* SPDX-License-Identifier: Apache-2.0
 *
 * What the daemon says of itself.
 */
#include "mount-tools/dctf_doctor.h"

#include "base/clock.h"
#include "mount-tools/dctf_tool.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static uint64_t number(const json_t *part, const char *field)
{
    json_int_t value = json_integer_value(json_object_get(part, field));

    return value > 0 ? (uint64_t)value : 0;
}

static void check_passthrough(struct dctf_doctor *doctor, const json_t *status)
{
    const json_t *part = json_object_get(status, "passthrough");
    const char *reason = json_string_value(json_object_get(part, "reason"));

    if (json_is_true(json_object_get(part, "active")))
        dctf_doctor_add(doctor, DCTF_DOCTOR_OK, "passthrough", NULL, "on");
    else if (reason && strstr(reason, "passthrough=off"))
        dctf_doctor_add(doctor, DCTF_DOCTOR_OK, "passthrough", NULL, "%s", reason);
    else
        dctf_doctor_add(doctor, DCTF_DOCTOR_WARN, "passthrough",
            "needs Linux 6.9, root (CAP_SYS_ADMIN) and a cache on a plain disk filesystem (not overlayfs)",
            "%s: the daemon serves cached shards", reason ? reason : "off");
}

static void check_origin(struct dctf_doctor *doctor, const json_t *status)
{
    const json_t *origin = json_object_get(status, "origin");
    uint64_t good_ms = number(origin, "last_success_ms"), bad_ms = number(origin, "last_error_ms");
    uint64_t now_ms = dctf_clock_wall_ms(NULL), stuck = number(origin, "abandoned");
    enum dctf_err err = (enum dctf_err)number(origin, "last_error_code");
    char age[24];

    if (bad_ms && bad_ms >= good_ms)
        dctf_doctor_add(doctor, DCTF_DOCTOR_FAIL, "transfers", dctf_err_remedy(err),
            "the last request to the source failed %s ago: %d %s",
            dctf_tool_show_duration(now_ms > bad_ms ? now_ms - bad_ms : 0, age, sizeof(age)), (int)err,
            dctf_err_text(err));
    else if (stuck)
        dctf_doctor_add(doctor, DCTF_DOCTOR_WARN, "transfers",
            "check the disk or network filesystem below the source",
            "%" PRIu64 " requests to the source were given up and are still stuck", stuck);
    else
        dctf_doctor_add(doctor, DCTF_DOCTOR_OK, "transfers", NULL, "%s",
            good_ms ? "the last request to the source went well" : "the source was not asked yet");
}

static void check_keeping(struct dctf_doctor *doctor, const json_t *status)
{
    const json_t *cache = json_object_get(status, "cache");
    uint64_t used = number(cache, "file_bytes") + number(cache, "index_bytes");
    char used_text[24], limit_text[24];

    dctf_tool_show_bytes(used, used_text, sizeof(used_text));
    dctf_tool_show_bytes(number(cache, "limit_bytes"), limit_text, sizeof(limit_text));
    if (json_is_true(json_object_get(cache, "bypassing")))
        dctf_doctor_add(doctor, DCTF_DOCTOR_FAIL, "keeping",
            "free space on the cache's filesystem; see dmesg for a broken disk",
            "nothing is kept at present (%s of %s used)", used_text, limit_text);
    else
        dctf_doctor_add(doctor, DCTF_DOCTOR_OK, "keeping", NULL, "%s of %s used", used_text, limit_text);
}

static void check_keys(struct dctf_doctor *doctor, const json_t *status)
{
    uint64_t hidden = number(status, "hidden_keys");

    if (hidden)
        dctf_doctor_add(doctor, DCTF_DOCTOR_WARN, "keys",
            "see docs/keys.md; the log names the first of each directory",
            "%" PRIu64 " keys cannot be shown as files", hidden);
}

bool dctf_doctor_daemon(struct dctf_doctor *doctor, const char *mountpoint)
{
    uint64_t before_ms = dctf_clock_mono_ms(NULL);
    struct dctf_client_error error;
    json_t *reply, *status;

    if (dctf_tool_ask(mountpoint, doctor->timeout_ms, json_pack("{s:s}", "cmd", "status"), &reply, &error)) {
        bool forbidden = error.code == DCTF_ERR_PERMISSION;

        dctf_doctor_add(doctor, forbidden ? DCTF_DOCTOR_WARN : DCTF_DOCTOR_FAIL, "socket",
            forbidden ? error.remedy : "see the daemon's check and its log; `umount -l` detaches the mount",
            "%s", error.text);
        return false;
    }
    dctf_doctor_add(doctor, DCTF_DOCTOR_OK, "socket", NULL, "the daemon answered within %" PRIu64 " ms",
        dctf_clock_mono_ms(NULL) - before_ms + 1);
    status = json_object_get(reply, "status");
    check_origin(doctor, status);
    check_keeping(doctor, status);
    check_passthrough(doctor, status);
    check_keys(doctor, status);
    json_decref(reply);
    return true;
}
