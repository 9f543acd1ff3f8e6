/* SPDX-License-Identifier: Apache-2.0
 *
 * A path is walked component by component against the mount table: nothing at or below a
 * dctffs mount point is looked up, so a dead or frozen daemon stops nobody here. Where
 * the daemon itself must be asked (is this mount dead?) a child does it, within a bound.
 */
#include "fs/mountpoint.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <unistd.h>

#define DETAIL_BYTES 256
#define LINKS_MAX 40   /* as the kernel's own bound */
#define STACKED_MAX 16 /* dead mounts on top of each other */
#define PROBE_MS 3000

struct mount_table {
    struct dctf_mount_info *mounts; /* in the order of mountinfo: the topmost last */
    size_t count;
};

void dctf_mount_info_fini(struct dctf_mount_info *info)
{
    free(info->path);
    free(info->fstype);
    free(info->source);
    free(info->options);
    *info = (struct dctf_mount_info){0};
}

/* The next field, cut at a blank; NULL at the end of the line. */
static char *next_field(char **cursor)
{
    char *field = *cursor;
    char *end;

    if (!field || !*field || *field == '\n')
        return NULL;
    end = field + strcspn(field, " \n");
    *cursor = *end == ' ' ? end + 1 : end;
    *end = '\0';
    return field;
}

static bool is_octal(char c)
{
    return c >= '0' && c <= '7';
}

/* mountinfo writes blanks, newlines, '#' and backslashes as \ooo. */
static char *unescape(const char *text)
{
    char *out = malloc(strlen(text) + 1);
    char *to = out;

    if (!out)
        return NULL;
    while (*text) {
        if (text[0] == '\\' && text[1] >= '0' && text[1] <= '3' && is_octal(text[2]) && is_octal(text[3])) {
            *to++ = (char)((text[1] - '0') * 64 + (text[2] - '0') * 8 + (text[3] - '0'));
            text += 4;
        } else {
            *to++ = *text++;
        }
    }
    *to = '\0';
    return out;
}

static bool parse_device(const char *text, unsigned *major_out, unsigned *minor_out)
{
    int end = 0;

    return text && sscanf(text, "%9u:%9u%n", major_out, minor_out, &end) == 2 && text[end] == '\0';
}

enum dctf_err dctf_mount_parse_line(const char *line, struct dctf_mount_info *out)
{
    enum dctf_err err = DCTF_ERR_REQUEST_BAD;
    char *copy = strdup(line);
    char *cursor = copy;
    char *device, *path, *field, *fstype, *source, *options;

    *out = (struct dctf_mount_info){0};
    if (!copy)
        return DCTF_ERR_NO_MEMORY;
    if (!next_field(&cursor) || !next_field(&cursor)) /* id, parent */
        goto out;
    device = next_field(&cursor);
    if (!parse_device(device, &out->major, &out->minor) || !next_field(&cursor)) /* root */
        goto out;
    path = next_field(&cursor);
    if (!path || path[0] != '/')
        goto out;
    do {
        field = next_field(&cursor); /* options of the mount, then optional fields up to a dash */
    } while (field && strcmp(field, "-") != 0);
    fstype = next_field(&cursor);
    source = next_field(&cursor);
    options = next_field(&cursor);
    if (!field || !fstype || !source)
        goto out;
    err = DCTF_ERR_NO_MEMORY;
    out->path = unescape(path);
    out->fstype = unescape(fstype);
    out->source = unescape(source);
    out->options = unescape(options ? options : "");
    if (out->path && out->fstype && out->source && out->options)
        err = DCTF_OK;
out:
    free(copy);
    if (err)
        dctf_mount_info_fini(out);
    return err;
}

static void table_fini(struct mount_table *table)
{
    for (size_t i = 0; i < table->count; i++)
        dctf_mount_info_fini(&table->mounts[i]);
    free(table->mounts);
    *table = (struct mount_table){0};
}

static enum dctf_err table_add(struct mount_table *table, const struct dctf_mount_info *info)
{
    if (table->count % 64 == 0) {
        struct dctf_mount_info *more = realloc(table->mounts, (table->count + 64) * sizeof(*more));

        if (!more)
            return DCTF_ERR_NO_MEMORY;
        table->mounts = more;
    }
    table->mounts[table->count++] = *info;
    return DCTF_OK;
}

static enum dctf_err table_load(struct mount_table *table)
{
    FILE *file = fopen("/proc/self/mountinfo", "re");
    enum dctf_err err = DCTF_OK;
    char *line = NULL;
    size_t cap = 0;

    *table = (struct mount_table){0};
    if (!file) {
        dctf_log(DCTF_LOG_WARN, "fs", "op=mountinfo errno=%d err=%d", errno, DCTF_ERR_SYSTEM);
        return DCTF_ERR_SYSTEM;
    }
    while (!err && getline(&line, &cap, file) > 0) {
        struct dctf_mount_info info;

        err = dctf_mount_parse_line(line, &info);
        if (err == DCTF_ERR_REQUEST_BAD) { /* a line of a later kernel: not ours */
            err = DCTF_OK;
            continue;
        }
        if (!err)
            err = table_add(table, &info);
        if (err)
            dctf_mount_info_fini(&info);
    }
    free(line);
    fclose(file);
    if (err)
        table_fini(table);
    return err;
}

static bool is_dctffs(const struct dctf_mount_info *info)
{
    return !strcmp(info->fstype, DCTF_FSTYPE);
}

static struct dctf_mount_info *table_find(const struct mount_table *table, const char *path)
{
    for (size_t i = table->count; i > 0; i--) {
        if (!strcmp(table->mounts[i - 1].path, path))
            return &table->mounts[i - 1];
    }
    return NULL;
}

static bool lies_below(const char *path, const char *mountpoint, size_t len)
{
    return len == 1 || (!strncmp(path, mountpoint, len) && (path[len] == '/' || path[len] == '\0'));
}

/* The mount that serves an absolute, normalised path. */
static struct dctf_mount_info *table_find_above(const struct mount_table *table, const char *path)
{
    struct dctf_mount_info *best = NULL;
    size_t best_len = 0;

    for (size_t i = 0; i < table->count; i++) {
        size_t len = strlen(table->mounts[i].path);

        if (len >= best_len && lies_below(path, table->mounts[i].path, len)) {
            best = &table->mounts[i];
            best_len = len;
        }
    }
    return best;
}

static struct dctf_mount_info take_info(struct dctf_mount_info *info)
{
    struct dctf_mount_info taken = *info;

    *info = (struct dctf_mount_info){0};
    return taken;
}

enum dctf_err dctf_mount_find(const char *path, struct dctf_mount_info *out)
{
    struct mount_table table;
    struct dctf_mount_info *found;
    enum dctf_err err = table_load(&table);

    *out = (struct dctf_mount_info){0};
    if (err)
        return err;
    found = table_find(&table, path);
    if (found)
        *out = take_info(found);
    else
        err = DCTF_ERR_NOT_MOUNTED;
    table_fini(&table);
    return err;
}

enum dctf_err dctf_mount_each(bool (*visit)(void *ctx, const struct dctf_mount_info *info), void *ctx)
{
    struct mount_table table;
    enum dctf_err err = table_load(&table);

    if (err)
        return err;
    for (size_t i = 0; i < table.count; i++) {
        if (is_dctffs(&table.mounts[i]) && !visit(ctx, &table.mounts[i]))
            break;
    }
    table_fini(&table);
    return DCTF_OK;
}

static void drop_component(char *path)
{
    char *slash = strrchr(path, '/');

    slash[slash == path ? 1 : 0] = '\0';
}

/* Append to an absolute path of PATH_MAX bytes. */
static enum dctf_err add_component(char *path, const char *name, size_t len)
{
    size_t at = strlen(path);

    if (at > 1)
        path[at++] = '/';
    if (at + len + 1 > PATH_MAX)
        return DCTF_ERR_NAME_TOO_LONG;
    memcpy(path + at, name, len);
    path[at + len] = '\0';
    return DCTF_OK;
}

struct walk {
    const struct mount_table *table;
    char path[PATH_MAX]; /* resolved so far */
    char *text;          /* owned */
    const char *rest;    /* in text: still to walk */
    unsigned links;
    bool lexical; /* look nothing up any more */
};

/* `path` was just extended: when it is a link, go where it points. */
static enum dctf_err follow_link(struct walk *walk)
{
    const struct dctf_mount_info *mount = table_find(walk->table, walk->path);
    char target[PATH_MAX];
    char *text;
    ssize_t len;

    if (mount) { /* the root of a mount is no link */
        walk->lexical = is_dctffs(mount);
        return DCTF_OK;
    }
    len = readlink(walk->path, target, sizeof(target) - 1);
    if (len < 0) {
        walk->lexical = errno != EINVAL;
        return DCTF_OK;
    }
    target[len] = '\0';
    if (++walk->links > LINKS_MAX)
        return DCTF_ERR_MOUNTPOINT_BAD;
    if (asprintf(&text, "%s/%s", target, walk->rest) < 0)
        return DCTF_ERR_NO_MEMORY;
    free(walk->text);
    walk->rest = walk->text = text;
    if (target[0] == '/')
        strcpy(walk->path, "/");
    else
        drop_component(walk->path);
    return DCTF_OK;
}

static enum dctf_err walk_on(struct walk *walk)
{
    enum dctf_err err = DCTF_OK;

    while (!err) {
        const char *name = walk->rest + strspn(walk->rest, "/");
        size_t len = strcspn(name, "/");

        walk->rest = name + len;
        if (len == 0)
            break;
        if (len == 1 && name[0] == '.')
            continue;
        if (len == 2 && name[0] == '.' && name[1] == '.') {
            drop_component(walk->path);
            continue;
        }
        err = add_component(walk->path, name, len);
        if (!err && !walk->lexical)
            err = follow_link(walk);
    }
    return err;
}

static enum dctf_err resolve(const struct mount_table *table, const char *path, char **out)
{
    struct walk walk = {.table = table, .path = "/"};
    enum dctf_err err;
    char cwd[PATH_MAX];

    *out = NULL;
    if (!path[0])
        return DCTF_ERR_MOUNTPOINT_BAD;
    if (path[0] == '/')
        walk.text = strdup(path);
    else if (!getcwd(cwd, sizeof(cwd)) || cwd[0] != '/')
        return DCTF_ERR_MOUNTPOINT_BAD;
    else if (asprintf(&walk.text, "%s/%s", cwd, path) < 0)
        walk.text = NULL;
    if (!walk.text)
        return DCTF_ERR_NO_MEMORY;
    walk.rest = walk.text;
    err = walk_on(&walk);
    free(walk.text);
    if (!err && !(*out = strdup(walk.path)))
        err = DCTF_ERR_NO_MEMORY;
    return err;
}

enum dctf_err dctf_mountpoint_resolve(const char *path, char **out)
{
    struct mount_table table;
    enum dctf_err err = table_load(&table);

    *out = NULL;
    if (err)
        return err;
    err = resolve(&table, path, out);
    table_fini(&table);
    return err;
}

enum dctf_err dctf_mount_find_dctffs(const char *path, struct dctf_mount_info *out)
{
    struct mount_table table;
    struct dctf_mount_info *found;
    enum dctf_err err = table_load(&table);
    char *resolved = NULL;

    *out = (struct dctf_mount_info){0};
    if (err)
        return err;
    err = resolve(&table, path, &resolved);
    if (!err) {
        found = table_find_above(&table, resolved);
        if (found && is_dctffs(found))
            *out = take_info(found);
        else
            err = DCTF_ERR_NOT_MOUNTED;
    }
    free(resolved);
    table_fini(&table);
    return err;
}

/* statfs() is never answered from the kernel's caches. A child asks, since nothing
 * else can be left behind when the answer does not come. */
static bool is_dead(const char *path)
{
    uint64_t deadline = dctf_clock_mono_ms(NULL) + PROBE_MS;
    pid_t child = fork();
    int status;

    if (child < 0)
        return false;
    if (child == 0) {
        struct statfs st;

        _exit(statfs(path, &st) < 0 && (errno == ENOTCONN || errno == ECONNABORTED) ? 1 : 0);
    }
    while (waitpid(child, &status, WNOHANG) == 0) {
        if (dctf_clock_mono_ms(NULL) >= deadline) {
            kill(child, SIGKILL); /* reaped with this process if it cannot die yet */
            return false;
        }
        poll(NULL, 0, 10);
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 1;
}

static enum dctf_err check_directory(const char *path, char *detail)
{
    struct stat st;
    char quoted[PATH_MAX];

    dctf_str_quote(path, quoted, sizeof(quoted));
    if (stat(path, &st) < 0) {
        snprintf(detail, DETAIL_BYTES, "%.150s: %s", quoted, strerror(errno));
        return DCTF_ERR_MOUNTPOINT_BAD;
    }
    if (!S_ISDIR(st.st_mode)) {
        snprintf(detail, DETAIL_BYTES, "%.150s: not a directory", quoted);
        return DCTF_ERR_MOUNTPOINT_BAD;
    }
    return DCTF_OK;
}

enum dctf_err dctf_mountpoint_prepare(const char *path, char *detail)
{
    char quoted[PATH_MAX];

    detail[0] = '\0';
    dctf_str_quote(path, quoted, sizeof(quoted));
    for (int i = 0; i < STACKED_MAX; i++) {
        struct dctf_mount_info info;
        enum dctf_err err = dctf_mount_find(path, &info);

        if (err == DCTF_ERR_NOT_MOUNTED)
            return check_directory(path, detail);
        if (err) {
            snprintf(detail, DETAIL_BYTES, "the mount table cannot be read");
            return err;
        }
        if (!is_dctffs(&info) || !is_dead(path)) {
            snprintf(
                detail, DETAIL_BYTES, "%.80s (%.30s) is mounted on %.100s", info.source, info.fstype, quoted);
            dctf_mount_info_fini(&info);
            return DCTF_ERR_MOUNTPOINT_IN_USE;
        }
        dctf_mount_info_fini(&info);
        err = dctf_mount_unmount(path, true);
        if (err) {
            snprintf(detail, DETAIL_BYTES, "a dead mount on %.100s cannot be detached", quoted);
            return DCTF_ERR_MOUNTPOINT_IN_USE;
        }
        dctf_log(DCTF_LOG_WARN, "fs", "op=detach_stale_mount mountpoint=%s", quoted);
    }
    snprintf(detail, DETAIL_BYTES, "too many dead mounts on %.100s", quoted);
    return DCTF_ERR_MOUNTPOINT_IN_USE;
}

static int read_number(const char *path)
{
    FILE *file = fopen(path, "re");
    int value = -1;

    if (!file)
        return -1;
    if (fscanf(file, "%9d", &value) != 1)
        value = -1;
    fclose(file);
    return value;
}

static void read_ahead_path(const struct dctf_mount_info *info, char *out, size_t cap)
{
    snprintf(out, cap, "/sys/class/bdi/%u:%u/read_ahead_kb", info->major, info->minor);
}

enum dctf_err dctf_mount_set_read_ahead(const struct dctf_mount_info *info, unsigned kb)
{
    char path[64];
    int written;
    int fd;

    read_ahead_path(info, path, sizeof(path));
    fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return DCTF_ERR_SYSTEM;
    written = dprintf(fd, "%u\n", kb);
    close(fd);
    return written < 0 ? DCTF_ERR_SYSTEM : DCTF_OK;
}

unsigned dctf_mount_read_ahead(const struct dctf_mount_info *info)
{
    char path[64];
    int kb;

    read_ahead_path(info, path, sizeof(path));
    kb = read_number(path);
    return kb > 0 ? (unsigned)kb : 0;
}

int dctf_mount_waiting(const struct dctf_mount_info *info)
{
    char path[64];

    /* The directory is named by the device number as the kernel packs it. */
    snprintf(path, sizeof(path), "/sys/fs/fuse/connections/%u/waiting", (info->major << 20) | info->minor);
    return read_number(path);
}

/* The helper's words; returns its wait status, -1 when it cannot be run. */
static int run_fusermount(const char *path, bool lazy, char *said, size_t cap)
{
    char *argv[] = {(char *)"fusermount3", (char *)(lazy ? "-uz" : "-u"), (char *)"--", (char *)path, NULL};
    char *env[] = {(char *)"PATH=/usr/local/bin:/usr/bin:/bin", (char *)"LC_ALL=C", NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    int pipes[2];
    int status = -1;
    sigset_t none;
    ssize_t got;
    pid_t child;
    int rc;

    said[0] = '\0';
    if (pipe2(pipes, O_CLOEXEC) < 0)
        return -1;
    sigemptyset(&none);
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDWR, 0);
    posix_spawn_file_actions_adddup2(&actions, STDIN_FILENO, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, pipes[1], STDERR_FILENO);
    rc = posix_spawnp(&child, argv[0], &actions, &attr, argv, env);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&actions);
    close(pipes[1]);
    if (rc == 0) {
        got = read(pipes[0], said, cap - 1);
        said[got > 0 ? got : 0] = '\0';
        while (waitpid(child, &status, 0) < 0 && errno == EINTR)
            ;
    }
    close(pipes[0]);
    return status;
}

enum dctf_err dctf_mount_unmount(const char *path, bool lazy)
{
    char said[256];
    int status;

    if (umount2(path, UMOUNT_NOFOLLOW | (lazy ? MNT_DETACH : 0)) == 0)
        return DCTF_OK;
    if (errno == EBUSY)
        return DCTF_ERR_MOUNTPOINT_IN_USE;
    if (errno != EPERM)
        return DCTF_ERR_NOT_MOUNTED;
    status = run_fusermount(path, lazy, said, sizeof(said));
    if (status == 0)
        return DCTF_OK;
    if (strstr(said, "busy"))
        return DCTF_ERR_MOUNTPOINT_IN_USE;
    if (strstr(said, "not found in") || strstr(said, "not mounted"))
        return DCTF_ERR_NOT_MOUNTED;
    return DCTF_ERR_PERMISSION;
}
