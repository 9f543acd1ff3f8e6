/* SPDX-License-Identifier: Apache-2.0
 *
 * The root is opened anew for each request: a source that is unmounted and mounted
 * again is found again, and nothing of ours keeps it busy but cached shards.
 */
#include "transport/file_tree.h"

#include "base/log.h"
#include "base/str.h"
#include "transport/file_handles.h"
#include "transport/file_root.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE_ENTRIES 1000u
#define HANDLES_MAX 64u
/* One pread(2): long enough to be cheap, short enough to notice a cancel. */
#define READ_BYTES (4u << 20)

struct dctf_file_tree {
    struct dctf_file_handles *handles;
    struct dctf_file_root root;
    char path[];
};

enum dctf_err dctf_file_tree_new(const char *root, bool walk, struct dctf_file_tree **out)
{
    size_t len = strlen(root) + 1;
    struct dctf_file_tree *tree = calloc(1, sizeof(*tree) + len);
    enum dctf_err err;

    *out = NULL;
    if (!tree)
        return DCTF_ERR_NO_MEMORY;
    memcpy(tree->path, root, len);
    tree->root.path = tree->path;
    atomic_init(&tree->root.walk, walk);
    err = dctf_file_handles_new(HANDLES_MAX, &tree->handles);
    if (err) {
        free(tree);
        return err;
    }
    *out = tree;
    return DCTF_OK;
}

void dctf_file_tree_free(struct dctf_file_tree *tree)
{
    if (!tree)
        return;
    dctf_file_handles_free(tree->handles);
    free(tree);
}

/* The one place where an errno of the source becomes ours. What the key rules
 * hide does not exist. */
static enum dctf_err tree_err(const char *call, const char *key, int errnum)
{
    enum dctf_err err;
    char quoted[256];

    switch (errnum) {
    case ENOTDIR:
    case ELOOP:
    case EXDEV:
    case ENXIO: /* opening a fifo or socket */
        return DCTF_ERR_NOT_FOUND;
    default:
        break;
    }
    err = dctf_err_from_errno_origin(errnum);
    if (err != DCTF_ERR_NOT_FOUND && err != DCTF_OK)
        dctf_log(DCTF_LOG_WARN, "file", "call=%s key=%s err=%d errno=%d %s", call,
            dctf_str_quote(key, quoted, sizeof(quoted)), (int)err, errnum, strerrordesc_np(errnum));
    return err;
}

/* A root that is gone is an unreachable source, not a missing key. */
static enum dctf_err open_root(struct dctf_file_tree *tree, int *out)
{
    int fd = open(tree->path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    enum dctf_err err;

    *out = fd;
    if (fd >= 0)
        return DCTF_OK;
    err = errno == ENOENT || errno == ENOTDIR || errno == ESTALE ? DCTF_ERR_ORIGIN_UNREACHABLE
                                                                 : tree_err("open", tree->path, errno);
    if (err == DCTF_ERR_NOT_FOUND)
        err = DCTF_ERR_ORIGIN_UNREACHABLE;
    return err;
}

/* --- versions --- */

static int64_t mtime_ns(const struct stat *st)
{
    return (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
}

static void format_etag(const struct stat *st, char *out)
{
    snprintf(out, DCTF_FILE_ETAG_BYTES, "%" PRIx64 "-%" PRIx64 "-%" PRIx64, (uint64_t)mtime_ns(st),
        (uint64_t)st->st_size, (uint64_t)st->st_ino);
}

static void fill_entry(const struct stat *st, const char *name, char *etag, struct dctf_origin_entry *out)
{
    *out = (struct dctf_origin_entry){
        .name = name,
        .is_dir = S_ISDIR(st->st_mode),
        .mtime_ns = mtime_ns(st),
        .etag = etag,
    };
    etag[0] = '\0';
    if (out->is_dir)
        return;
    out->size = (uint64_t)st->st_size;
    format_etag(st, etag);
}

/* --- list --- */

enum hidden {
    HIDDEN_LINK_TO_DIRECTORY,
    HIDDEN_LINK_DANGLING,
    HIDDEN_LINK_OUT,
    HIDDEN_SPECIAL,
    HIDDEN_COUNT,
    SHOWN, /* a file or a directory */
    GONE,  /* deleted since readdir */
};

struct listing {
    struct dctf_file_tree *tree;
    const char *dir;
    int dir_fd;
    bool told[HIDDEN_COUNT];
    size_t count;
    struct dctf_origin_entry entries[PAGE_ENTRIES];
    char names[PAGE_ENTRIES][NAME_MAX + 1];
    char etags[PAGE_ENTRIES][DCTF_FILE_ETAG_BYTES];
};

/* Whether following a link failed for what the link says, not for the source. */
static bool link_is_bad(int errnum)
{
    return errnum == ENOENT || errnum == ENOTDIR || errnum == ELOOP || errnum == EACCES ||
           errnum == ENAMETOOLONG;
}

static int classify_link(struct listing *listing, const char *name, struct stat *st)
{
    char target[PATH_MAX];
    char *key = NULL;
    int rc;

    if (fstatat(listing->dir_fd, name, st, AT_NO_AUTOMOUNT) < 0)
        return link_is_bad(errno) ? (int)HIDDEN_LINK_DANGLING : -errno;
    if (S_ISDIR(st->st_mode))
        return HIDDEN_LINK_TO_DIRECTORY;
    if (!S_ISREG(st->st_mode))
        return HIDDEN_SPECIAL;
    if (asprintf(&key, "%s%s%s", listing->dir, listing->dir[0] ? "/" : "", name) < 0)
        return -ENOMEM;
    rc = dctf_file_root_resolve(&listing->tree->root, key, target);
    free(key);
    if (rc == 0)
        return SHOWN;
    return rc == -EXDEV || link_is_bad(-rc) ? (int)HIDDEN_LINK_OUT : rc;
}

/* -errno when the entry cannot be looked at: a listing is complete or it fails. */
static int classify(struct listing *listing, const char *name, struct stat *st)
{
    if (fstatat(listing->dir_fd, name, st, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) < 0)
        return errno == ENOENT ? (int)GONE : -errno;
    if (S_ISLNK(st->st_mode))
        return classify_link(listing, name, st);
    return S_ISREG(st->st_mode) || S_ISDIR(st->st_mode) ? (int)SHOWN : (int)HIDDEN_SPECIAL;
}

static void tell_hidden(struct listing *listing, enum hidden kind, const char *name)
{
    static const char *const words[] = {
        [HIDDEN_LINK_TO_DIRECTORY] = "link to a directory",
        [HIDDEN_LINK_DANGLING] = "dangling link",
        [HIDDEN_LINK_OUT] = "link out of the source",
        [HIDDEN_SPECIAL] = "neither file nor directory",
    };
    char dir[256];
    char quoted[256];

    if (listing->told[kind])
        return;
    listing->told[kind] = true;
    dctf_log(DCTF_LOG_INFO, "file", "hidden dir=%s name=%s: %s (told once per listing)",
        dctf_str_quote(listing->dir, dir, sizeof(dir)), dctf_str_quote(name, quoted, sizeof(quoted)),
        words[kind]);
}

static enum dctf_err add_entry(struct listing *listing, const char *name)
{
    struct stat st;
    int kind = classify(listing, name, &st);

    if (kind < 0)
        return tree_err("fstatat", name, -kind);
    if (kind < HIDDEN_COUNT)
        tell_hidden(listing, (enum hidden)kind, name);
    if (kind != SHOWN)
        return DCTF_OK;
    snprintf(listing->names[listing->count], sizeof(listing->names[0]), "%s", name);
    fill_entry(&st, listing->names[listing->count], listing->etags[listing->count],
        &listing->entries[listing->count]);
    listing->count++;
    return DCTF_OK;
}

static enum dctf_err flush_page(struct listing *listing, struct dctf_origin_list *list)
{
    size_t count = listing->count;

    listing->count = 0;
    return count == 0 || list->page(list, listing->entries, count) ? DCTF_OK : DCTF_ERR_CANCELLED;
}

static enum dctf_err list_entries(
    struct listing *listing, DIR *stream, struct dctf_origin_list *list, const atomic_bool *cancelled)
{
    enum dctf_err err = DCTF_OK;

    while (!err) {
        const struct dirent *dirent;

        errno = 0;
        dirent = readdir(stream);
        if (!dirent && errno != 0)
            return tree_err("readdir", list->dir, errno);
        if (!dirent)
            return flush_page(listing, list);
        if (atomic_load_explicit(cancelled, memory_order_relaxed))
            return DCTF_ERR_CANCELLED;
        if (strcmp(dirent->d_name, ".") == 0 || strcmp(dirent->d_name, "..") == 0)
            continue;
        err = add_entry(listing, dirent->d_name);
        if (!err && listing->count == PAGE_ENTRIES)
            err = flush_page(listing, list);
    }
    return err;
}

enum dctf_err dctf_file_tree_list(
    struct dctf_file_tree *tree, struct dctf_origin_list *list, const atomic_bool *cancelled)
{
    struct listing *listing = NULL;
    DIR *stream = NULL;
    int root_fd;
    int fd = -1;
    enum dctf_err err;

    err = open_root(tree, &root_fd);
    if (err)
        return err;
    fd = dctf_file_root_open_plain(&tree->root, root_fd, list->dir, O_RDONLY | O_DIRECTORY | O_NONBLOCK);
    close(root_fd);
    if (fd < 0)
        return tree_err("open", list->dir, -fd);
    listing = calloc(1, sizeof(*listing));
    stream = listing ? fdopendir(fd) : NULL;
    if (!stream) {
        close(fd);
        err = DCTF_ERR_NO_MEMORY;
        goto out;
    }
    listing->tree = tree;
    listing->dir = list->dir;
    listing->dir_fd = fd;
    err = list_entries(listing, stream, list, cancelled);
out:
    if (stream)
        closedir(stream);
    free(listing);
    return err;
}

/* --- head, get, check --- */

enum dctf_err dctf_file_tree_head(
    struct dctf_file_tree *tree, const char *key, struct dctf_origin_entry *entry, char *etag)
{
    const char *slash = strrchr(key, '/');
    struct stat st;
    int root_fd;
    int fd;
    enum dctf_err err;

    err = open_root(tree, &root_fd);
    if (err)
        return err;
    fd = dctf_file_root_open_key(&tree->root, root_fd, key, O_PATH);
    close(root_fd);
    if (fd < 0)
        return tree_err("open", key, -fd);
    if (fstat(fd, &st) < 0)
        err = tree_err("fstat", key, errno);
    else if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
        err = DCTF_ERR_NOT_FOUND;
    else
        fill_entry(&st, slash ? slash + 1 : key, etag, entry);
    close(fd);
    return err;
}

/* Whether the path still leads to the file that is open. */
static bool handle_is_current(
    struct dctf_file_tree *tree, const char *key, const struct dctf_file_handle *handle)
{
    char *path;
    struct stat st;
    bool same;

    if (asprintf(&path, "%s/%s", tree->path, key) < 0)
        return false;
    same = stat(path, &st) == 0 && st.st_dev == handle->dev && st.st_ino == handle->ino;
    free(path);
    return same;
}

static enum dctf_err open_handle(struct dctf_file_tree *tree, const char *key, struct dctf_file_handle **out)
{
    struct dctf_file_handle *handle = dctf_file_handles_get(tree->handles, key);
    struct stat st;
    int root_fd;
    int fd;
    enum dctf_err err;

    *out = handle;
    if (handle && handle_is_current(tree, key, handle))
        return DCTF_OK;
    if (handle) {
        dctf_file_handles_drop(tree->handles, handle);
        dctf_file_handles_put(tree->handles, handle);
        *out = NULL;
    }
    err = open_root(tree, &root_fd);
    if (err)
        return err;
    fd = dctf_file_root_open_key(&tree->root, root_fd, key, O_RDONLY | O_NOCTTY | O_NONBLOCK);
    close(root_fd);
    if (fd < 0)
        return tree_err("open", key, -fd);
    if (fstat(fd, &st) < 0)
        err = tree_err("fstat", key, errno);
    else if (!S_ISREG(st.st_mode))
        err = DCTF_ERR_NOT_FOUND;
    if (err) {
        close(fd);
        return err;
    }
    return dctf_file_handles_add(tree->handles, key, fd, st.st_dev, st.st_ino, out);
}

static enum dctf_err compare_version(int fd, const struct dctf_origin_get *get)
{
    char etag[DCTF_FILE_ETAG_BYTES];
    struct stat st;

    if (fstat(fd, &st) < 0)
        return tree_err("fstat", get->key, errno);
    format_etag(&st, etag);
    return strcmp(etag, get->etag) == 0 ? DCTF_OK : DCTF_ERR_VERSION_MISMATCH;
}

static enum dctf_err read_range(
    int fd, const struct dctf_origin_get *get, const atomic_bool *cancelled, size_t *got)
{
    while (*got < get->len) {
        size_t want = get->len - *got < READ_BYTES ? get->len - *got : READ_BYTES;
        ssize_t n;

        if (atomic_load_explicit(cancelled, memory_order_relaxed))
            return DCTF_ERR_CANCELLED;
        n = pread(fd, (char *)get->buf + *got, want, (off_t)(get->offset + *got));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return tree_err("pread", get->key, errno);
        if (n == 0)
            return DCTF_ERR_SHORT_BODY;
        *got += (size_t)n;
    }
    return DCTF_OK;
}

enum dctf_err dctf_file_tree_get(
    struct dctf_file_tree *tree, const struct dctf_origin_get *get, const atomic_bool *cancelled, size_t *got)
{
    struct dctf_file_handle *handle;
    enum dctf_err changed;
    enum dctf_err err;

    *got = 0;
    err = open_handle(tree, get->key, &handle);
    if (err)
        return err;
    err = compare_version(handle->fd, get);
    if (!err) {
        err = read_range(handle->fd, get, cancelled, got);
        changed = compare_version(handle->fd, get);
        if ((!err || err == DCTF_ERR_SHORT_BODY) && changed)
            err = changed;
    }
    if (err && err != DCTF_ERR_CANCELLED)
        dctf_file_handles_drop(tree->handles, handle);
    dctf_file_handles_put(tree->handles, handle);
    return err;
}

enum dctf_err dctf_file_tree_check(struct dctf_file_tree *tree, char *detail)
{
    DIR *stream = opendir(tree->path);
    char quoted[160];
    int errnum = errno;

    detail[0] = '\0';
    if (stream) {
        errno = 0;
        if (readdir(stream) || errno == 0) {
            closedir(stream);
            return DCTF_OK;
        }
        errnum = errno;
        closedir(stream);
    }
    snprintf(
        detail, 256, "%s: %s", dctf_str_quote(tree->path, quoted, sizeof(quoted)), strerrordesc_np(errnum));
    return errnum == ENOENT || errnum == ENOTDIR || errnum == EACCES || errnum == EPERM
               ? DCTF_ERR_SOURCE_BAD
               : DCTF_ERR_ORIGIN_UNREACHABLE;
}
