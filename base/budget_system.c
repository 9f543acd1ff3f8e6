/* SPDX-License-Identifier: Apache-2.0
 *
 * What this process may use. A limit applies to a cgroup and all below it, so
 * every ancestor counts. Inside a container /proc/self/cgroup may name a path of
 * the host that is not visible: then only the mounted root of the hierarchy
 * answers, which is the container's own group.
 */
#include "base/budget.h"

#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A decimal number in a file; UINT64_MAX for "max" or a file that is not there. */
static uint64_t read_limit(const char *path)
{
    uint64_t value = UINT64_MAX;
    FILE *file = fopen(path, "re");

    if (!file)
        return UINT64_MAX;
    if (fscanf(file, "%" SCNu64, &value) != 1)
        value = UINT64_MAX;
    fclose(file);
    return value;
}

/* The smallest limit of `group` (an absolute path below `mount`) and its ancestors. */
static uint64_t group_limit(const char *root, const char *mount, const char *group, const char *file)
{
    char path[PATH_MAX];
    uint64_t limit = UINT64_MAX;
    size_t len = strlen(group);

    for (;;) {
        while (len && group[len - 1] == '/')
            len--;
        if (snprintf(path, sizeof(path), "%s%s%.*s/%s", root, mount, (int)len, group, file) <
            (int)sizeof(path)) {
            uint64_t found = read_limit(path);

            if (found < limit)
                limit = found;
        }
        if (!len)
            return limit;
        while (len && group[len - 1] != '/')
            len--;
    }
}

static bool names_memory(const char *controllers)
{
    size_t len = strlen("memory");

    for (; *controllers; controllers += strcspn(controllers, ","), controllers += *controllers == ',') {
        if (strcspn(controllers, ",") == len && !strncmp(controllers, "memory", len))
            return true;
    }
    return false;
}

static uint64_t cgroup_limit(const char *root)
{
    char line[PATH_MAX + 256];
    uint64_t limit = UINT64_MAX;
    FILE *file;

    snprintf(line, sizeof(line), "%s/proc/self/cgroup", root);
    file = fopen(line, "re");
    if (!file)
        return UINT64_MAX;
    while (fgets(line, sizeof(line), file)) { /* ID:CONTROLLERS:/PATH */
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        uint64_t found = UINT64_MAX;

        if (!group)
            continue;
        *group++ = '\0';
        group[strcspn(group, "\n")] = '\0';
        if (!controllers[1])
            found = group_limit(root, "/sys/fs/cgroup", group, "memory.max");
        else if (names_memory(controllers + 1))
            found = group_limit(root, "/sys/fs/cgroup/memory", group, "memory.limit_in_bytes");
        if (found < limit)
            limit = found;
    }
    fclose(file);
    return limit;
}

static uint64_t physical_memory(const char *root)
{
    char line[PATH_MAX];
    uint64_t kib = 0;
    FILE *file;

    snprintf(line, sizeof(line), "%s/proc/meminfo", root);
    file = fopen(line, "re");
    if (file) {
        while (fgets(line, sizeof(line), file)) {
            if (sscanf(line, "MemTotal: %" SCNu64 " kB", &kib) == 1)
                break;
        }
        fclose(file);
    }
    if (kib)
        return kib * 1024;
    return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t dctf_budget_system_limit(const char *root)
{
    const char *prefix = strcmp(root, "/") != 0 ? root : "";
    uint64_t physical = physical_memory(prefix);
    uint64_t group = cgroup_limit(prefix);

    return group < physical ? group : physical;
}
