/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/layout.h"

#include "base/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define FORMAT_MAGIC "dctffs-cache "
#define FORMAT_TEXT                                                                                          \
    FORMAT_MAGIC "1\n"                                                                                       \
                 "Cache of a dctffs mount: copies only, safe to delete while nothing is mounted on it.\n"

/* Put the words into `detail`; returns `err`. */
static enum dctf_err refuse(enum dctf_err err, char *detail, const char *dir, const char *what)
{
    char text[DCTF_LAYOUT_DETAIL_BYTES];

    snprintf(text, sizeof(text), "%s: %s", dir, what);
    if (detail)
        memcpy(detail, text, sizeof(text));
    dctf_log(DCTF_LOG_ERROR, "cache", "err=%d detail=\"%s\"", (int)err, text);
    return err;
}

static enum dctf_err refuse_errno(char *detail, const char *dir, const char *what)
{
    int saved = errno;
    enum dctf_err err = dctf_err_from_errno_cache(saved);
    char text[128];

    snprintf(text, sizeof(text), "%s: %s", what, strerror(saved));
    return refuse(err == DCTF_ERR_CACHE_NO_SPACE ? err : DCTF_ERR_CACHE_IO, detail, dir, text);
}

/* The directory itself is private; parents that are missing are as usual. */
static enum dctf_err make_dir(const char *dir, char *detail)
{
    char *path = strdup(dir);
    enum dctf_err err = DCTF_OK;

    if (!path)
        return DCTF_ERR_NO_MEMORY;
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(path, 0755);
        *slash = '/';
    }
    if (mkdir(dir, 0700) && errno != EEXIST)
        err = refuse_errno(detail, dir, "cannot make the directory");
    free(path);
    return err;
}

static bool has_format(int dir_fd)
{
    struct stat st;

    return !fstatat(dir_fd, "FORMAT", &st, AT_SYMLINK_NOFOLLOW);
}

/* What may lie in a directory that has no FORMAT yet. */
static bool is_harmless(const char *name)
{
    static const char *const names[] = {".", "..", "lost+found", "LOCK", "FORMAT.new"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (!strcmp(name, names[i]))
            return true;
    }
    return false;
}

static enum dctf_err check_foreign(int dir_fd, const char *dir, char *detail)
{
    struct dirent *entry;
    DIR *stream;
    int fd;
    bool foreign = false;

    if (has_format(dir_fd))
        return DCTF_OK;
    fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    stream = fd < 0 ? NULL : fdopendir(fd);
    if (!stream) {
        if (fd >= 0)
            close(fd);
        return refuse_errno(detail, dir, "cannot list the directory");
    }
    while (!foreign && (entry = readdir(stream)))
        foreign = !is_harmless(entry->d_name);
    closedir(stream);
    /* Another mount may have just made this cache. */
    if (foreign && !has_format(dir_fd))
        return refuse(DCTF_ERR_CACHE_FOREIGN, detail, dir, "not empty, and not a dctffs cache");
    return DCTF_OK;
}

static enum dctf_err take_lock(struct dctf_layout *layout, const char *dir, const char *owner, char *detail)
{
    char holder[160] = "held by ";
    size_t used = strlen(holder);
    ssize_t n;

    layout->lock_fd = openat(layout->dir_fd, "LOCK", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (layout->lock_fd < 0)
        return refuse_errno(detail, dir, "cannot open LOCK");
    if (flock(layout->lock_fd, LOCK_EX | LOCK_NB)) {
        if (errno != EWOULDBLOCK)
            return refuse_errno(detail, dir, "cannot lock LOCK");
        n = pread(layout->lock_fd, holder + used, sizeof(holder) - used - 1, 0);
        holder[used + (n > 0 ? (size_t)n : 0)] = '\0';
        holder[strcspn(holder, "\n")] = '\0';
        return refuse(DCTF_ERR_CACHE_IN_USE, detail, dir, n > 0 ? holder : "held by another process");
    }
    /* For the eyes of the next one only: a full disk must not stop the mount. */
    if (!ftruncate(layout->lock_fd, 0) && owner && dprintf(layout->lock_fd, "%s\n", owner) < 0)
        dctf_log(DCTF_LOG_DEBUG, "cache", "LOCK not written errno=%d", errno);
    return DCTF_OK;
}

static enum dctf_err write_format(int dir_fd, const char *dir, char *detail)
{
    int fd = openat(dir_fd, "FORMAT.new", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    size_t len = strlen(FORMAT_TEXT);
    enum dctf_err err = DCTF_OK;

    if (fd < 0)
        return refuse_errno(detail, dir, "cannot write FORMAT");
    if (write(fd, FORMAT_TEXT, len) != (ssize_t)len || fsync(fd) ||
        renameat(dir_fd, "FORMAT.new", dir_fd, "FORMAT"))
        err = refuse_errno(detail, dir, "cannot write FORMAT");
    close(fd);
    return err;
}

static enum dctf_err check_format(int dir_fd, const char *dir, char *detail)
{
    char text[64] = "";
    char what[160];
    int fd = openat(dir_fd, "FORMAT", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    ssize_t n;

    if (fd < 0 && errno == ENOENT)
        return write_format(dir_fd, dir, detail);
    if (fd < 0)
        return refuse_errno(detail, dir, "cannot read FORMAT");
    n = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (n < 0)
        return refuse_errno(detail, dir, "cannot read FORMAT");
    text[n] = '\0';
    text[strcspn(text, "\n")] = '\0';
    if (!strcmp(text, FORMAT_MAGIC "1"))
        return DCTF_OK;
    for (char *p = text; *p; p++) {
        if (*p < ' ' || *p > '~')
            *p = '?';
    }
    snprintf(what, sizeof(what), "FORMAT says \"%s\", this release knows \"" FORMAT_MAGIC "1\"", text);
    return refuse(DCTF_ERR_CACHE_FORMAT, detail, dir, what);
}

enum dctf_err dctf_layout_open(const char *dir, const char *owner, char *detail, struct dctf_layout *out)
{
    enum dctf_err err;

    *out = (struct dctf_layout){.dir_fd = -1, .shards_fd = -1, .lock_fd = -1};
    err = make_dir(dir, detail);
    if (err)
        return err;
    out->dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (out->dir_fd < 0)
        return refuse_errno(detail, dir, "cannot open the directory");
    err = check_foreign(out->dir_fd, dir, detail);
    if (!err)
        err = take_lock(out, dir, owner, detail);
    if (!err)
        err = check_format(out->dir_fd, dir, detail);
    if (err)
        goto out;
    if (mkdirat(out->dir_fd, "shards", 0700) && errno != EEXIST) {
        err = refuse_errno(detail, dir, "cannot make shards/");
        goto out;
    }
    out->shards_fd = openat(out->dir_fd, "shards", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (out->shards_fd < 0) {
        err = refuse_errno(detail, dir, "cannot open shards/");
        goto out;
    }
    if (asprintf(&out->db_dir, "%s/" DCTF_LAYOUT_DB, dir) < 0) {
        out->db_dir = NULL;
        err = DCTF_ERR_NO_MEMORY;
    }
out:
    if (err)
        dctf_layout_close(out);
    return err;
}

unsigned dctf_layout_begin_opening(const struct dctf_layout *layout)
{
    char text[16] = "";
    unsigned before = 0;
    int fd = openat(layout->dir_fd, "OPENING", O_RDWR | O_CREAT | O_CLOEXEC, 0600);

    if (fd < 0)
        return 0; /* the disk is full, or worse: others will tell */
    if (pread(fd, text, sizeof(text) - 1, 0) > 0)
        before = (unsigned)strtoul(text, NULL, 10);
    snprintf(text, sizeof(text), "%u\n", before + 1);
    if (pwrite(fd, text, strlen(text), 0) < 0)
        before = 0;
    close(fd);
    return before;
}

void dctf_layout_end_opening(const struct dctf_layout *layout)
{
    (void)unlinkat(layout->dir_fd, "OPENING", 0);
}

void dctf_layout_close(struct dctf_layout *layout)
{
    if (layout->shards_fd >= 0)
        close(layout->shards_fd);
    if (layout->dir_fd >= 0)
        close(layout->dir_fd);
    if (layout->lock_fd >= 0)
        close(layout->lock_fd);
    free(layout->db_dir);
    *layout = (struct dctf_layout){.dir_fd = -1, .shards_fd = -1, .lock_fd = -1};
}

void dctf_layout_file_name(const struct dctf_id *id, char name[DCTF_LAYOUT_NAME_BYTES])
{
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < sizeof(id->bytes); i++) {
        name[2 * i] = digits[id->bytes[i] >> 4];
        name[2 * i + 1] = digits[id->bytes[i] & 15];
    }
    name[DCTF_LAYOUT_NAME_BYTES - 1] = '\0';
}

static int digit_of(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool dctf_layout_file_parse(const char *name, struct dctf_id *id)
{
    if (strlen(name) != DCTF_LAYOUT_NAME_BYTES - 1)
        return false;
    for (size_t i = 0; i < sizeof(id->bytes); i++) {
        int high = digit_of(name[2 * i]);
        int low = digit_of(name[2 * i + 1]);

        if (high < 0 || low < 0)
            return false;
        id->bytes[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

/* "XX/<32 hex>" */
#define FILE_PATH_BYTES (3 + DCTF_LAYOUT_NAME_BYTES)

static void file_path(const struct dctf_id *id, char path[FILE_PATH_BYTES])
{
    dctf_layout_file_name(id, path + 3);
    path[0] = path[3];
    path[1] = path[4];
    path[2] = '/';
}

static int open_or_make(const struct dctf_layout *layout, char path[FILE_PATH_BYTES])
{
    int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW;
    int fd = openat(layout->shards_fd, path, flags, 0600);

    if (fd >= 0 || errno != ENOENT)
        return fd;
    path[2] = '\0';
    if (mkdirat(layout->shards_fd, path, 0700) && errno != EEXIST)
        return -1;
    path[2] = '/';
    return openat(layout->shards_fd, path, flags, 0600);
}

enum dctf_err dctf_layout_file_open(
    const struct dctf_layout *layout, const struct dctf_id *id, bool create, uint64_t size, int *fd)
{
    char path[FILE_PATH_BYTES];
    struct stat st;
    enum dctf_err err;

    file_path(id, path);
    *fd = create ? open_or_make(layout, path)
                 : openat(layout->shards_fd, path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (*fd < 0)
        return errno == ENOENT ? DCTF_ERR_MISS : dctf_err_from_errno_cache(errno);
    /* The length is always the shard's own, so that a file cut short shows. */
    if (!create || (!fstat(*fd, &st) && (uint64_t)st.st_size == size) || !ftruncate(*fd, (off_t)size))
        return DCTF_OK;
    err = dctf_err_from_errno_cache(errno);
    close(*fd);
    *fd = -1;
    return err;
}

int dctf_layout_file_direct(const struct dctf_layout *layout, const struct dctf_id *id)
{
    char path[FILE_PATH_BYTES];

    file_path(id, path);
    return openat(layout->shards_fd, path, O_WRONLY | O_DIRECT | O_CLOEXEC | O_NOFOLLOW);
}

enum dctf_err dctf_layout_file_unlink(const struct dctf_layout *layout, const struct dctf_id *id)
{
    char path[FILE_PATH_BYTES];

    file_path(id, path);
    if (!unlinkat(layout->shards_fd, path, 0) || errno == ENOENT)
        return DCTF_OK;
    return dctf_err_from_errno_cache(errno);
}

void dctf_layout_each_file(const struct dctf_layout *layout, unsigned bucket,
    bool (*visit)(void *ctx, const struct dctf_id *id), void *ctx)
{
    char name[3];
    struct dirent *entry;
    struct dctf_id id;
    DIR *stream;
    int fd;

    snprintf(name, sizeof(name), "%02x", bucket % DCTF_LAYOUT_BUCKETS);
    fd = openat(layout->shards_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    stream = fd < 0 ? NULL : fdopendir(fd);
    if (!stream) {
        if (fd >= 0)
            close(fd);
        return;
    }
    while ((entry = readdir(stream))) {
        bool ours = dctf_layout_file_parse(entry->d_name, &id) && id.bytes[0] == bucket;

        if (entry->d_name[0] == '.')
            continue;
        if (!visit(ctx, ours ? &id : NULL))
            break;
    }
    closedir(stream);
}

uint64_t dctf_layout_dir_bytes(const struct dctf_layout *layout)
{
    uint64_t sum = 0;
    struct stat st;
    char name[3];

    if (!fstat(layout->dir_fd, &st))
        sum += (uint64_t)st.st_blocks * 512;
    if (!fstat(layout->shards_fd, &st))
        sum += (uint64_t)st.st_blocks * 512;
    for (unsigned bucket = 0; bucket < DCTF_LAYOUT_BUCKETS; bucket++) {
        snprintf(name, sizeof(name), "%02x", bucket);
        if (!fstatat(layout->shards_fd, name, &st, AT_SYMLINK_NOFOLLOW))
            sum += (uint64_t)st.st_blocks * 512;
    }
    return sum;
}

enum dctf_err dctf_layout_space(const struct dctf_layout *layout, struct dctf_layout_space *out)
{
    struct statvfs fs;

    *out = (struct dctf_layout_space){0};
    if (fstatvfs(layout->dir_fd, &fs))
        return dctf_err_from_errno_cache(errno);
    out->total_bytes = (uint64_t)fs.f_blocks * fs.f_frsize;
    out->free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    out->total_inodes = fs.f_files;
    out->free_inodes = fs.f_favail;
    return DCTF_OK;
}
