/* SPDX-License-Identifier: Apache-2.0 */
#include "mount-tools/dctf_tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct mount_list {
    char **paths;
    size_t count;
    enum dctf_err err;
};

static bool collect(void *ctx, const struct dctf_mount_info *info)
{
    struct mount_list *list = ctx;
    char **paths = realloc(list->paths, (list->count + 2) * sizeof(*paths));

    if (paths) {
        list->paths = paths;
        paths[list->count] = strdup(info->path);
        paths[list->count + 1] = NULL;
    }
    if (!paths || !paths[list->count]) {
        list->err = DCTF_ERR_NO_MEMORY;
        return false;
    }
    list->count++;
    return true;
}

enum dctf_err dctf_tool_mounts(char ***out, size_t *count)
{
    struct mount_list list = {.paths = calloc(1, sizeof(char *))};
    enum dctf_err err = list.paths ? dctf_mount_each(collect, &list) : DCTF_ERR_NO_MEMORY;

    if (!err)
        err = list.err;
    *out = NULL;
    *count = 0;
    if (err) {
        dctf_tool_mounts_free(list.paths);
        return err;
    }
    *out = list.paths;
    *count = list.count;
    return DCTF_OK;
}

void dctf_tool_mounts_free(char **mounts)
{
    for (size_t i = 0; mounts && mounts[i]; i++)
        free(mounts[i]);
    free(mounts);
}

/* The only mount there is. */
static enum dctf_err sole_mount(char **out, struct dctf_client_error *error)
{
    char **mounts, text[400];
    size_t count;
    enum dctf_err err = dctf_tool_mounts(&mounts, &count);
    int used;

    if (err)
        return dctf_client_error_set(error, err, NULL);
    if (count == 1) {
        *out = strdup(mounts[0]);
        if (!*out)
            err = dctf_client_error_set(error, DCTF_ERR_NO_MEMORY, NULL);
    } else if (count == 0) {
        err = dctf_client_error_set(error, DCTF_ERR_NOT_MOUNTED, NULL);
    } else {
        used = snprintf(text, sizeof(text), "%zu dctffs are mounted, name one:", count);
        for (size_t i = 0; i < count && used < (int)sizeof(text); i++)
            used += snprintf(text + used, sizeof(text) - (size_t)used, " %s", mounts[i]);
        err = dctf_client_error_set(error, DCTF_ERR_USAGE, text);
    }
    dctf_tool_mounts_free(mounts);
    return err;
}

/* What is left of `path` below the mount point. */
static char *path_inside(const char *path, const char *mountpoint)
{
    path += strcmp(mountpoint, "/") ? strlen(mountpoint) : 0;
    return strdup(path + strspn(path, "/"));
}

enum dctf_err dctf_target_find(const char *arg, struct dctf_target *out, struct dctf_client_error *error)
{
    char *path = NULL;
    enum dctf_err err;

    memset(out, 0, sizeof(*out));
    if (!arg) {
        err = sole_mount(&path, error);
        if (err || !path)
            return err;
    } else {
        err = dctf_mountpoint_resolve(arg, &path);
    }
    if (!err)
        err = dctf_mount_find_dctffs(path, &out->mount);
    if (!err) {
        out->path = path_inside(path, out->mount.path);
        if (!out->path)
            err = DCTF_ERR_NO_MEMORY;
    }
    free(path);
    if (err) {
        dctf_client_error_set(error, err, NULL);
        dctf_target_fini(out);
    }
    return err;
}

void dctf_target_fini(struct dctf_target *target)
{
    dctf_mount_info_fini(&target->mount);
    free(target->path);
    memset(target, 0, sizeof(*target));
}
