/* SPDX-License-Identifier: Apache-2.0 */
#include "mount-tools/dctf_doctor.h"

#include "mount-tools/dctf_tool.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "Usage: dctf doctor [--json] [--timeout T] [MOUNT]…\n"
    "       dctf doctor [--json] [--timeout T] [-o OPTIONS] SOURCE…\n"
    "\n"
    "Check what dctffs needs on this machine, and each MOUNT (default: every one): process,\n"
    "kernel side, control socket, source, peers, cache directory, passthrough, memory. Never touches\n"
    "the mounted files, so that it works while the daemon is stopped, stuck or dead.\n"
    "\n"
    "A SOURCE, such as s3://bucket/prefix, need not be mounted: it is looked at step by step, from\n"
    "the name of its host to a range of an object, with the options that a mount would get.\n"
    "\n"
    "Each line begins with ok, warn or FAIL. Exit status: 1 when a check failed.\n";

static const char *const result_words[] = {"ok", "warn", "FAIL"};
static const char *const result_ids[] = {"ok", "warn", "fail"};

void dctf_doctor_add(struct dctf_doctor *doctor, enum dctf_doctor_result result, const char *check,
    const char *remedy, const char *format, ...)
{
    char text[1024], quoted[1400];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    doctor->counts[result]++;
    if (doctor->json) {
        json_array_append_new(
            doctor->checks, json_pack("{s:s?, s:s, s:s, s:s, s:s?}", "mount", doctor->mount, "check", check,
                                "result", result_ids[result], "text",
                                dctf_tool_show_text(text, quoted, sizeof(quoted)), "remedy", remedy));
        return;
    }
    printf(
        "%-4s  %-12s  %s\n", result_words[result], check, dctf_tool_show_text(text, quoted, sizeof(quoted)));
    if (remedy)
        printf("      %-12s  remedy: %s\n", "", remedy);
    fflush(stdout);
}

void dctf_doctor_fini(struct dctf_doctor *doctor)
{
    json_decref(doctor->checks);
    doctor->checks = NULL;
}

bool dctf_doctor_read(const char *path, char *buf, size_t cap)
{
    FILE *file = fopen(path, "re");
    bool ok = file && fgets(buf, (int)cap, file);

    if (file)
        fclose(file);
    if (ok)
        buf[strcspn(buf, "\n")] = '\0';
    else
        *buf = '\0';
    return ok;
}

/* The device in the record differs from the kernel's when another daemon mounted here
 * later, in another mount namespace for example. */
static void check_mount(struct dctf_doctor *doctor, const struct dctf_mount_info *mount)
{
    struct dctf_runtime runtime;
    enum dctf_err err;
    bool answers = false;

    doctor->mount = mount->path;
    dctf_doctor_add(doctor, DCTF_DOCTOR_OK, "mount", NULL, "%s from %s, device %u:%u", mount->path,
        mount->source, mount->major, mount->minor);
    err = dctf_runtime_read(mount->path, &runtime);
    if (err) {
        dctf_doctor_add(doctor, DCTF_DOCTOR_FAIL, "daemon",
            "ask as root or as the user that mounted; `umount -l` detaches a mount whose daemon is gone",
            "no record of a daemon for this mount");
        dctf_doctor_kernel_side(doctor, mount, false);
        return;
    }
    if (dctf_doctor_process(doctor, &runtime)) {
        answers = dctf_doctor_daemon(doctor, mount->path);
        dctf_doctor_memory(doctor, runtime.pid);
    }
    dctf_doctor_kernel_side(doctor, mount, answers);
    if (strncmp(runtime.source, "file://", strlen("file://")) != 0 &&
        !(answers && dctf_doctor_source_of_daemon(doctor, mount->path)))
        dctf_doctor_source(doctor, runtime.source, runtime.options);
    if (answers)
        dctf_doctor_peers(doctor, mount->path);
    dctf_doctor_storage(doctor, &runtime);
    dctf_runtime_fini(&runtime);
}

static void check_argument(struct dctf_doctor *doctor, const char *arg, const char *options)
{
    struct dctf_client_error error;
    struct dctf_target target;

    if (strstr(arg, "://")) {
        doctor->mount = NULL;
        dctf_doctor_source(doctor, arg, options);
        return;
    }
    if (dctf_target_find(arg, &target, &error)) {
        doctor->mount = arg;
        dctf_doctor_add(doctor, DCTF_DOCTOR_FAIL, "mount",
            "mount it with `dctffs SOURCE MOUNTPOINT` or `mount MOUNTPOINT`", "no dctffs is mounted at %s",
            arg);
    } else {
        check_mount(doctor, &target.mount);
    }
    dctf_target_fini(&target);
}

static void check_all(struct dctf_doctor *doctor)
{
    char **mounts;
    size_t count;

    if (dctf_tool_mounts(&mounts, &count)) {
        dctf_doctor_add(doctor, DCTF_DOCTOR_FAIL, "mount", "mount /proc", "cannot read /proc/self/mountinfo");
        return;
    }
    if (count == 0)
        dctf_doctor_add(doctor, DCTF_DOCTOR_WARN, "mount", NULL, "no dctffs is mounted");
    for (size_t i = 0; i < count; i++)
        check_argument(doctor, mounts[i], NULL);
    dctf_tool_mounts_free(mounts);
}

int dctf_cmd_doctor(int argc, char **argv)
{
    struct dctf_tool_options options;
    const char *source_options = NULL;
    const struct dctf_tool_flag flags[] = {
        {.name = "options", .letter = 'o', .text = &source_options}, {.name = NULL}};
    struct dctf_doctor doctor = {0};
    int first, result = dctf_tool_parse(argc, argv, help, flags, &options, &first);

    if (result || !first)
        return result;
    doctor.json = options.json;
    doctor.timeout_ms = options.timeout_ms;
    doctor.checks = json_array();
    dctf_doctor_system(&doctor);
    for (int i = first; i < argc; i++)
        check_argument(&doctor, argv[i], source_options);
    if (first == argc)
        check_all(&doctor);
    result = doctor.counts[DCTF_DOCTOR_FAIL] ? DCTF_TOOL_FAILED : DCTF_TOOL_DONE;
    if (options.json)
        dctf_tool_print_json(
            json_pack("{s:b, s:O}", "ok", result == DCTF_TOOL_DONE, "checks", doctor.checks));
    else
        printf("%u ok, %u to look at, %u FAILED\n", doctor.counts[DCTF_DOCTOR_OK],
            doctor.counts[DCTF_DOCTOR_WARN], doctor.counts[DCTF_DOCTOR_FAIL]);
    dctf_doctor_fini(&doctor);
    return result;
}
