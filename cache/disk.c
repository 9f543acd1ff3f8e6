/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WALKS_MAX 8u
#define NAME_BYTES 32u /* files with longer names are counted while they are listed */
#define NAMES_MAX 1024u

struct walk {
    DIR *stream;
    const char *suffix;
    struct dctf_disk_usage usage;
    size_t count;
    bool vanished; /* a file that was listed is gone: what replaced it may not have been listed */
    char names[NAMES_MAX][NAME_BYTES];
};

static bool ends_in(const char *name, const char *suffix)
{
    size_t len = strlen(name), end = strlen(suffix);

    return len >= end && !strcmp(name + len - end, suffix);
}

static void count_file(struct walk *walk, const char *name)
{
    struct stat st;
    uint64_t bytes;

    if (fstatat(dirfd(walk->stream), name, &st, AT_SYMLINK_NOFOLLOW)) {
        walk->vanished = walk->vanished || errno == ENOENT;
        return;
    }
    bytes = (uint64_t)st.st_blocks * 512;
    if (S_ISREG(st.st_mode) || !strcmp(name, "."))
        walk->usage.bytes += bytes;
    if (ends_in(name, walk->suffix) && bytes > walk->usage.largest)
        walk->usage.largest = bytes;
}

static void count_names(struct walk *walk)
{
    for (size_t i = 0; i < walk->count; i++)
        count_file(walk, walk->names[i]);
    walk->count = 0;
}

/* List first, then look: a file is replaced after its successor is there, so a walk in which
 * nothing vanished missed nothing. */
static void walk_once(struct walk *walk)
{
    struct dirent *entry;

    walk->usage = (struct dctf_disk_usage){0};
    walk->vanished = false;
    rewinddir(walk->stream);
    while ((entry = readdir(walk->stream))) {
        if (strlen(entry->d_name) >= NAME_BYTES) {
            count_file(walk, entry->d_name);
            continue;
        }
        if (walk->count == NAMES_MAX)
            count_names(walk);
        strcpy(walk->names[walk->count++], entry->d_name);
    }
    count_names(walk);
}

void dctf_disk_usage_of(const char *dir, const char *suffix, struct dctf_disk_usage *out)
{
    struct walk *walk = calloc(1, sizeof(*walk));

    *out = (struct dctf_disk_usage){0};
    if (!walk)
        return;
    walk->suffix = suffix;
    walk->stream = opendir(dir);
    for (unsigned i = 0; walk->stream && i < WALKS_MAX; i++) {
        walk_once(walk);
        /* Of walks that were all disturbed, each dimension's most. */
        if (!walk->vanished || walk->usage.bytes > out->bytes)
            out->bytes = walk->usage.bytes;
        if (!walk->vanished || walk->usage.largest > out->largest)
            out->largest = walk->usage.largest;
        if (!walk->vanished)
            break;
    }
    if (walk->stream)
        closedir(walk->stream);
    free(walk);
}

static enum dctf_err write_zeros(const char *path, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    void *zeros = calloc(1, bytes);
    enum dctf_err err = DCTF_OK;
    ssize_t n;

    if (fd < 0) {
        err = dctf_err_from_errno_cache(errno);
    } else if (!zeros) {
        err = DCTF_ERR_NO_MEMORY;
    } else {
        n = write(fd, zeros, bytes);
        if (n < 0)
            err = dctf_err_from_errno_cache(errno);
        else if ((size_t)n < bytes)
            err = DCTF_ERR_CACHE_NO_SPACE;
    }
    if (fd >= 0)
        close(fd);
    free(zeros);
    return err;
}

enum dctf_err dctf_disk_check_room(const char *dir, size_t bytes)
{
    enum dctf_err err;
    char *path;

    if (mkdir(dir, 0700) && errno != EEXIST)
        err = dctf_err_from_errno_cache(errno);
    else if (asprintf(&path, "%s/room.tmp", dir) < 0)
        return DCTF_ERR_NO_MEMORY;
    else {
        err = write_zeros(path, bytes);
        (void)unlink(path);
        free(path);
    }
    return err == DCTF_ERR_MISS ? DCTF_ERR_CACHE_IO : err;
}
