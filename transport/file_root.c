/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/file_root.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A key that no listing can have shown. */
static bool key_is_odd(const char *key)
{
    for (const char *part = key;; part++) {
        size_t len = strcspn(part, "/");

        if (len == 0 || (len == 1 && part[0] == '.') || (len == 2 && part[0] == '.' && part[1] == '.'))
            return true;
        part += len;
        if (*part == '\0')
            return false;
    }
}

static int walk_plain(int root_fd, const char *path, int flags)
{
    char part[NAME_MAX + 1];
    int dir_fd = root_fd;
    int fd;

    for (;;) {
        size_t len = strcspn(path, "/");
        bool last = path[len] == '\0';

        if (len > NAME_MAX) {
            fd = -ENAMETOOLONG;
            break;
        }
        memcpy(part, path, len);
        part[len] = '\0';
        fd = openat(dir_fd, part, (last ? flags : O_PATH | O_DIRECTORY) | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
            fd = -errno;
        if (fd < 0 || last)
            break;
        if (dir_fd != root_fd)
            close(dir_fd);
        dir_fd = fd;
        path += len + 1;
    }
    if (dir_fd != root_fd)
        close(dir_fd);
    return fd;
}

/* O_PATH | O_NOFOLLOW opens a link itself, where openat2 says ELOOP: say the same. */
static int walk_checked(int root_fd, const char *path, int flags)
{
    int fd = walk_plain(root_fd, path, flags);
    struct stat st;

    if (fd < 0 || !(flags & O_PATH))
        return fd;
    if (fstat(fd, &st) < 0 || S_ISLNK(st.st_mode)) {
        close(fd);
        return -ELOOP;
    }
    return fd;
}

int dctf_file_root_open_plain(struct dctf_file_root *root, int root_fd, const char *path, int flags)
{
    struct open_how how = {
        .flags = (uint64_t)(unsigned)(flags | O_CLOEXEC),
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
    };
    long fd;

    if (path[0] == '\0')
        path = ".";
    else if (key_is_odd(path))
        return -ENOENT;
    if (!atomic_load_explicit(&root->walk, memory_order_relaxed)) {
        fd = syscall(SYS_openat2, root_fd, path, &how, sizeof(how));
        if (fd >= 0)
            return (int)fd;
        if (errno != ENOSYS && errno != EPERM) /* EPERM: a container's filter that does not know it */
            return -errno;
        atomic_store_explicit(&root->walk, true, memory_order_relaxed);
    }
    return walk_checked(root_fd, path, flags);
}

int dctf_file_root_resolve(struct dctf_file_root *root, const char *key, char *out)
{
    char *path = NULL;
    char *top = realpath(root->path, NULL);
    char *real = NULL;
    size_t len;
    int rc = -EXDEV;

    if (asprintf(&path, "%s/%s", root->path, key) < 0)
        path = NULL;
    errno = ENOMEM;
    if (path && top)
        real = realpath(path, NULL);
    if (!real) {
        rc = -errno;
    } else {
        len = strcmp(top, "/") == 0 ? 0 : strlen(top);
        if (strncmp(real, top, len) == 0 && real[len] == '/' && strlen(real + len) < PATH_MAX) {
            strcpy(out, real + len + 1);
            rc = 0;
        }
    }
    free(real);
    free(top);
    free(path);
    return rc;
}

static int open_link(struct dctf_file_root *root, int root_fd, const char *key, int flags)
{
    const char *slash = strrchr(key, '/');
    char path[PATH_MAX];
    struct stat st;
    int fd;

    if (slash) { /* directories are entered by their own name only */
        if ((size_t)(slash - key) >= sizeof(path))
            return -ENAMETOOLONG;
        memcpy(path, key, (size_t)(slash - key));
        path[slash - key] = '\0';
        fd = dctf_file_root_open_plain(root, root_fd, path, O_PATH | O_DIRECTORY);
        if (fd < 0)
            return fd;
        close(fd);
    }
    fd = dctf_file_root_resolve(root, key, path);
    if (fd < 0)
        return fd;
    fd = dctf_file_root_open_plain(root, root_fd, path, flags);
    if (fd >= 0 && (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))) {
        close(fd);
        return -ENOENT;
    }
    return fd;
}

int dctf_file_root_open_key(struct dctf_file_root *root, int root_fd, const char *key, int flags)
{
    int fd = dctf_file_root_open_plain(root, root_fd, key, flags);

    return fd == -ELOOP ? open_link(root, root_fd, key, flags) : fd;
}
