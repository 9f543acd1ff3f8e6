/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks of a mount from outside: the process in /proc, the connection in /sys. Only
 * files of /proc that do not wait for the process's own memory lock are read (so not
 * cmdline).
 */
#include "mount-tools/dctf_doctor.h"

#include "base/str.h"
#include "mount-tools/dctf_tool.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Between two looks at something that may be momentary. */
#define LOOK_AGAIN_MS 150

static void pause_ms(unsigned ms)
{
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};

    nanosleep(&time, NULL);
}

/* State letter of a process or thread from its stat file, '\0' when it is gone. */
static char state_of(const char *stat_path)
{
    char line[512];
    const char *paren;

    if (!dctf_doctor_read(stat_path, line, sizeof(line)))
        return '\0';
    paren = strrchr(line, ')'); /* the name may hold anything */
    return paren && paren[1] == ' ' ? paren[2] : '\0';
}

/* Threads that are in an uninterruptible wait on two looks, with where they wait. */
static unsigned stuck_threads(pid_t pid, char *text, size_t cap)
{
    char path[320], name[64], where[128];
    int tids[64];
    unsigned found = 0, stuck = 0;
    size_t used = 0;
    struct dirent *entry;
    DIR *dir;

    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    dir = opendir(path);
    while (dir && (entry = readdir(dir)) && found < 64) {
        snprintf(path, sizeof(path), "/proc/%d/task/%s/stat", (int)pid, entry->d_name);
        if (entry->d_name[0] != '.' && state_of(path) == 'D')
            tids[found++] = atoi(entry->d_name);
    }
    if (dir)
        closedir(dir);
    *text = '\0';
    if (found)
        pause_ms(LOOK_AGAIN_MS);
    for (unsigned i = 0; i < found; i++) {
        snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", (int)pid, tids[i]);
        if (state_of(path) != 'D')
            continue;
        snprintf(path, sizeof(path), "/proc/%d/task/%d/comm", (int)pid, tids[i]);
        dctf_doctor_read(path, name, sizeof(name));
        snprintf(path, sizeof(path), "/proc/%d/task/%d/wchan", (int)pid, tids[i]);
        dctf_doctor_read(path, where, sizeof(where));
        if (++stuck <= 4 && used < cap)
            used += (size_t)snprintf(text + used, cap - used, "%s%s in %s", stuck > 1 ? ", " : "", name,
                *where && strcmp(where, "0") != 0 ? where : "?");
    }
    return stuck;
}

static void check_state(struct dctf_doctor *doctor, pid_t pid, char state)
{
    char remedy[64], where[400];
    unsigned stuck;

    if (state == 'T' || state == 't') {
        snprintf(remedy, sizeof(remedy), "kill -CONT %d, or end the debugger", (int)pid);
        dctf_doctor_add(
            doctor, DCTF_DOCTOR_FAIL, "daemon", remedy, "process %d is stopped (state %c)", (int)pid, state);
        return;
    }
    stuck = stuck_threads(pid, where, sizeof(where));
    if (stuck)
        dctf_doctor_add(doctor, DCTF_DOCTOR_WARN, "daemon",
            "the disk or network filesystem below the source or the cache does not answer; see dmesg",
            "process %d: %u threads in an uninterruptible wait (%s)", (int)pid, stuck, where);
    else
        dctf_doctor_add(
            doctor, DCTF_DOCTOR_OK, "daemon", NULL, "process %d is alive (state %c)", (int)pid, state);
}

bool dctf_doctor_process(struct dctf_doctor *doctor, const struct dctf_runtime *runtime)
{
    char path[64], name[64];
    char state;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)runtime->pid);
    state = state_of(path);
    snprintf(path, sizeof(path), "/proc/%d/comm", (int)runtime->pid);
    dctf_doctor_read(path, name, sizeof(name));
    /* The number may have gone to another program since. */
    if (!state || state == 'Z' || state == 'X' || !strstr(name, "dctffs")) {
        dctf_doctor_add(doctor, DCTF_DOCTOR_FAIL, "daemon",
            "mount again: a dead mount of dctffs is detached at start; or `umount -l` it",
            "process %d is gone: programs get \"Transport endpoint is not connected\"", (int)runtime->pid);
        return false;
    }
    check_state(doctor, runtime->pid, state);
    return true;
}

/* Directory of the process's memory cgroup; false when unknown. */
static bool cgroup_dir(pid_t pid, bool *v2, char *out, size_t cap)
{
    char path[64], line[1024];
    bool found = false;
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%d/cgroup", (int)pid);
    file = fopen(path, "re");
    while (file && fgets(line, sizeof(line), file)) {
        char *group = strchr(line, ':');
        char *dir = group ? strchr(group + 1, ':') : NULL;

        if (!dir)
            continue;
        *dir++ = '\0';
        dir[strcspn(dir, "\n")] = '\0';
        if (strstr(group + 1, "memory")) {
            snprintf(out, cap, "/sys/fs/cgroup/memory%s", dir);
            *v2 = false;
            found = true;
            break;
        }
        if (!group[1]) {
            snprintf(out, cap, "/sys/fs/cgroup%s", dir);
            *v2 = found = true;
        }
    }
    if (file)
        fclose(file);
    return found;
}

static bool read_number(const char *dir, const char *name, uint64_t *out)
{
    char path[1200], line[64];

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return dctf_doctor_read(path, line, sizeof(line)) && sscanf(line, "%" SCNu64, out) == 1;
}

/* oom_kill of memory.events. */
static uint64_t oom_kills(const char *dir)
{
    char path[1200], line[128];
    uint64_t kills = 0;
    FILE *file;

    snprintf(path, sizeof(path), "%s/memory.events", dir);
    file = fopen(path, "re");
    while (file && fgets(line, sizeof(line), file))
        sscanf(line, "oom_kill %" SCNu64, &kills);
    if (file)
        fclose(file);
    return kills;
}

void dctf_doctor_memory(struct dctf_doctor *doctor, pid_t pid)
{
    char dir[1100], used_text[24], limit_text[24];
    uint64_t used = 0, limit = 0, kills;
    bool v2 = true;

    /* "max" is no number: no limit. v1 tells "none" by a huge one. */
    if (!cgroup_dir(pid, &v2, dir, sizeof(dir)) ||
        !read_number(dir, v2 ? "memory.max" : "memory.limit_in_bytes", &limit) || limit > UINT64_MAX / 4) {
        dctf_doctor_add(doctor, DCTF_DOCTOR_OK, "memory", NULL, "the daemon's cgroup sets no limit");
        return;
    }
    read_number(dir, v2 ? "memory.current" : "memory.usage_in_bytes", &used);
    kills = v2 ? oom_kills(dir) : 0;
    dctf_tool_show_bytes(used, used_text, sizeof(used_text));
    dctf_tool_show_bytes(limit, limit_text, sizeof(limit_text));
    if (kills)
        dctf_doctor_add(doctor, DCTF_DOCTOR_WARN, "memory",
            "raise the limit of the cgroup, or lower `memory`",
            "%s of %s in the daemon's cgroup; %" PRIu64 " processes were killed there for want of memory",
            used_text, limit_text, kills);
    else
        dctf_doctor_add(doctor, DCTF_DOCTOR_OK, "memory", NULL,
            "%s of %s in the daemon's cgroup (page cache included)", used_text, limit_text);
}

static void check_waiting(struct dctf_doctor *doctor, const struct dctf_mount_info *mount, bool answers)
{
    int waiting = dctf_mount_waiting(mount);
    char remedy[200];

    if (waiting > 0) {
        pause_ms(LOOK_AGAIN_MS);
        waiting = dctf_mount_waiting(mount);
    }
    if (waiting < 0) {
        dctf_doctor_add(doctor, DCTF_DOCTOR_WARN, "requests",
            "mount -t fusectl none /sys/fs/fuse/connections",
            "unknown: /sys/fs/fuse/connections is not there or not readable by this user");
    } else if (waiting == 0) {
        dctf_doctor_add(doctor, DCTF_DOCTOR_OK, "requests", NULL, "none waits in the kernel");
    } else if (answers) {
        dctf_doctor_add(doctor, DCTF_DOCTOR_OK, "requests", NULL, "%d under way", waiting);
    } else {
        snprintf(remedy, sizeof(remedy),
            "see the daemon's check; as the last resort `echo 1 > /sys/fs/fuse/connections/%u/abort` ends "
            "them with an error",
            mount->minor);
        dctf_doctor_add(
            doctor, DCTF_DOCTOR_FAIL, "requests", remedy, "%d programs wait for the daemon", waiting);
    }
}

void dctf_doctor_kernel_side(struct dctf_doctor *doctor, const struct dctf_mount_info *mount, bool answers)
{
    unsigned kb = dctf_mount_read_ahead(mount);

    check_waiting(doctor, mount, answers);
    if (kb == 0)
        dctf_doctor_add(doctor, DCTF_DOCTOR_OK, "read-ahead", NULL, "unknown");
    else if (kb < 512)
        dctf_doctor_add(doctor, DCTF_DOCTOR_WARN, "read-ahead",
            "mount as root, or write 1024 to /sys/class/bdi/MAJOR:MINOR/read_ahead_kb",
            "%u KiB: sequential reads through the daemon are slower than they could be", kb);
    else
        dctf_doctor_add(doctor, DCTF_DOCTOR_OK, "read-ahead", NULL, "%u KiB", kb);
}
