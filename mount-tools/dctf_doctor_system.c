/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks of the machine.
 */
#include "mount-tools/dctf_doctor.h"

#include "base/config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

/* Passthrough came with 6.9. */
#define PASSTHROUGH_MAJOR 6
#define PASSTHROUGH_MINOR 9

static bool file_has_word(const char *path, const char *word)
{
    FILE *file = fopen(path, "re");
    char line[512];
    bool found = false;

    while (file && !found && fgets(line, sizeof(line), file)) {
        char *save = NULL;

        for (char *token = strtok_r(line, " \t\n", &save); token && !found && *token != '#';
             token = strtok_r(NULL, " \t\n", &save))
            found = !strcmp(token, word);
    }
    if (file)
        fclose(file);
    return found;
}

static void check_kernel(struct dctf_doctor *doctor)
{
    struct utsname name;
    unsigned major = 0, minor = 0;
    bool passthrough;

    uname(&name);
    sscanf(name.release, "%u.%u", &major, &minor);
    passthrough = major > PASSTHROUGH_MAJOR || (major == PASSTHROUGH_MAJOR && minor >= PASSTHROUGH_MINOR);
    if (!file_has_word("/proc/filesystems", "fuse"))
        dctf_doctor_add(
            doctor, DCTF_DOCTOR_FAIL, "kernel", "modprobe fuse", "Linux %s without FUSE", name.release);
    else if (passthrough)
        dctf_doctor_add(doctor, DCTF_DOCTOR_OK, "kernel", NULL, "Linux %s with FUSE", name.release);
    else
        dctf_doctor_add(doctor, DCTF_DOCTOR_WARN, "kernel", "passthrough needs Linux 6.9 or later",
            "Linux %s: cached shards are served by the daemon", name.release);
}

static void check_device(struct dctf_doctor *doctor)
{
    if (!access("/dev/fuse", R_OK | W_OK))
        dctf_doctor_add(doctor, DCTF_DOCTOR_OK, "device", NULL, "/dev/fuse can be opened by this user");
    else if (errno == ENOENT)
        dctf_doctor_add(doctor, DCTF_DOCTOR_FAIL, "device",
            "modprobe fuse; a container needs --device /dev/fuse and CAP_SYS_ADMIN", "/dev/fuse is missing");
    else
        dctf_doctor_add(doctor, geteuid() ? DCTF_DOCTOR_WARN : DCTF_DOCTOR_FAIL, "device",
            "chmod 0666 /dev/fuse, or mount as root", "/dev/fuse: %s", strerror(errno));
}

static void check_fusermount(struct dctf_doctor *doctor)
{
    static const char *const places[] = {
        "/usr/bin/fusermount3", "/bin/fusermount3", "/usr/local/bin/fusermount3"};
    enum dctf_doctor_result bad = geteuid() ? DCTF_DOCTOR_FAIL : DCTF_DOCTOR_WARN;
    struct stat st;

    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        if (stat(places[i], &st))
            continue;
        if (st.st_mode & S_ISUID)
            dctf_doctor_add(doctor, DCTF_DOCTOR_OK, "fusermount3", NULL, "%s", places[i]);
        else
            dctf_doctor_add(doctor, bad, "fusermount3", "chmod u+s, or mount as root",
                "%s is not setuid: only root can mount", places[i]);
        return;
    }
    dctf_doctor_add(
        doctor, bad, "fusermount3", "install the package fuse3", "not found: only root can mount");
}

static void check_allow_other(struct dctf_doctor *doctor)
{
    if (file_has_word("/etc/fuse.conf", "user_allow_other"))
        dctf_doctor_add(doctor, DCTF_DOCTOR_OK, "fuse.conf", NULL, "every user may mount with allow_other");
    else
        dctf_doctor_add(doctor, geteuid() ? DCTF_DOCTOR_WARN : DCTF_DOCTOR_OK, "fuse.conf",
            geteuid() ? "add the line user_allow_other to /etc/fuse.conf" : NULL,
            "only root may mount with allow_other");
}

/* locate's scanner walks every mount that it is not told to leave out. */
static void check_updatedb(struct dctf_doctor *doctor)
{
    FILE *file = fopen("/etc/updatedb.conf", "re");
    char line[4096];
    bool pruned = false;

    if (!file) {
        dctf_doctor_add(doctor, DCTF_DOCTOR_OK, "updatedb", NULL, "no /etc/updatedb.conf on this machine");
        return;
    }
    while (fgets(line, sizeof(line), file)) {
        if (!strncmp(line, "PRUNEFS", 7) && strcasestr(line, DCTF_FSTYPE))
            pruned = true;
    }
    fclose(file);
    if (pruned)
        dctf_doctor_add(doctor, DCTF_DOCTOR_OK, "updatedb", NULL, "leaves %s out", DCTF_FSTYPE);
    else
        dctf_doctor_add(doctor, DCTF_DOCTOR_WARN, "updatedb",
            "add fuse.dctffs to PRUNEFS in /etc/updatedb.conf",
            "updatedb will walk every mount of this type");
}

static void check_config(struct dctf_doctor *doctor)
{
    struct dctf_config_error error = {0};
    struct dctf_config config;
    enum dctf_err err;

    if (access(DCTF_CONFIG_FILE, F_OK)) {
        dctf_doctor_add(doctor, DCTF_DOCTOR_OK, "config", NULL, "no %s: built-in defaults", DCTF_CONFIG_FILE);
        return;
    }
    if (dctf_config_init(&config))
        return;
    err = dctf_config_load_file(&config, DCTF_CONFIG_FILE, true, "", &error);
    if (err)
        dctf_doctor_add(doctor, DCTF_DOCTOR_FAIL, "config", dctf_err_remedy(err), "%s", error.text);
    else
        dctf_doctor_add(doctor, DCTF_DOCTOR_OK, "config", NULL, "%s is well-formed", DCTF_CONFIG_FILE);
    dctf_config_fini(&config);
}

void dctf_doctor_system(struct dctf_doctor *doctor)
{
    doctor->mount = NULL;
    check_kernel(doctor);
    check_device(doctor);
    check_fusermount(doctor);
    check_allow_other(doctor);
    check_updatedb(doctor);
    check_config(doctor);
}
