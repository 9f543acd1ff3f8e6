/* SPDX-License-Identifier: Apache-2.0
 *
 * The plainest FUSE server over one flat directory, to hold dctffs against:
 *
 *   bench_fuse [--memory] DIRECTORY MOUNTPOINT
 *
 * A read is answered by pread() from the file, or with --memory straight from a copy made
 * at the start: the least that any daemon can do. The session has the parameters of dctffs
 * (fs/ops.c, fs/fs.c). Stays in the foreground; SIGTERM ends it.
 */
#define FUSE_USE_VERSION 312
#include <fuse3/fuse_lowlevel.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define READ_MAX (1024u * 1024u)
#define SESSION_THREADS 16u
#define TIMEOUT_S 86400.0
#define FIRST_INO 2u

struct entry {
    char *name;
    char *copy; /* --memory */
    size_t size;
};

struct server {
    int dir_fd;
    bool memory;
    struct entry *entries; /* sorted by name; inode = index + FIRST_INO */
    size_t count;
};

static void die(const char *what)
{
    fprintf(stderr, "bench_fuse: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct entry *)a)->name, ((const struct entry *)b)->name);
}

static void load_copy(const struct server *server, struct entry *entry)
{
    int fd = openat(server->dir_fd, entry->name, O_RDONLY | O_CLOEXEC);
    size_t done = 0;
    struct stat st;

    if (fd < 0 || fstat(fd, &st))
        die(entry->name);
    entry->size = (size_t)st.st_size;
    entry->copy = malloc(entry->size + 1);
    if (!entry->copy)
        die(entry->name);
    while (done < entry->size) {
        ssize_t n = read(fd, entry->copy + done, entry->size - done);

        if (n <= 0)
            die(entry->name);
        done += (size_t)n;
    }
    close(fd);
}

static void load(struct server *server, const char *path)
{
    size_t slots = 0;
    struct dirent *found;
    DIR *dir = opendir(path);

    if (!dir)
        die(path);
    server->dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (server->dir_fd < 0)
        die(path);
    while ((found = readdir(dir))) {
        if (found->d_name[0] == '.')
            continue;
        if (server->count == slots) {
            slots = slots ? slots * 2 : 64;
            server->entries = realloc(server->entries, slots * sizeof(*server->entries));
            if (!server->entries)
                die(path);
        }
        server->entries[server->count] = (struct entry){.name = strdup(found->d_name)};
        if (!server->entries[server->count].name)
            die(path);
        server->count++;
    }
    closedir(dir);
    if (server->count > 1)
        qsort(server->entries, server->count, sizeof(*server->entries), by_name);
    for (size_t i = 0; server->memory && i < server->count; i++)
        load_copy(server, &server->entries[i]);
}

static struct entry *entry_of(const struct server *server, fuse_ino_t ino)
{
    return ino >= FIRST_INO && ino - FIRST_INO < server->count ? &server->entries[ino - FIRST_INO] : NULL;
}

static int stat_of(const struct server *server, fuse_ino_t ino, struct stat *st)
{
    const struct entry *entry = entry_of(server, ino);

    if (!entry && ino != FUSE_ROOT_ID)
        return ENOENT;
    if (fstatat(server->dir_fd, entry ? entry->name : ".", st, 0))
        return errno;
    st->st_ino = ino;
    return 0;
}

static void op_init(void *userdata, struct fuse_conn_info *conn)
{
    (void)userdata;
    conn->max_read = READ_MAX;
    conn->max_readahead = 32 * 1024 * 1024;
    conn->max_write = READ_MAX; /* libfuse derives max_pages from it, which bounds reads too */
    conn->max_background = 64;
    conn->congestion_threshold = 48;
    conn->want &= ~(unsigned)(FUSE_CAP_AUTO_INVAL_DATA | FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE |
                              FUSE_CAP_SPLICE_MOVE);
    conn->want |= conn->capable & (FUSE_CAP_ASYNC_READ | FUSE_CAP_PARALLEL_DIROPS);
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    const struct server *server = fuse_req_userdata(req);
    struct fuse_entry_param reply = {.attr_timeout = TIMEOUT_S, .entry_timeout = TIMEOUT_S};
    struct entry key = {.name = (char *)name};
    const struct entry *entry = NULL;
    int error = ENOENT;

    if (parent == FUSE_ROOT_ID && server->count)
        entry = bsearch(&key, server->entries, server->count, sizeof(key), by_name);
    if (entry) {
        reply.ino = (fuse_ino_t)(entry - server->entries) + FIRST_INO;
        error = stat_of(server, reply.ino, &reply.attr);
    }
    if (error)
        fuse_reply_err(req, error);
    else
        fuse_reply_entry(req, &reply);
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct stat st;
    int error = stat_of(fuse_req_userdata(req), ino, &st);

    (void)fi;
    if (error)
        fuse_reply_err(req, error);
    else
        fuse_reply_attr(req, &st, TIMEOUT_S);
}

static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    const struct server *server = fuse_req_userdata(req);
    const struct entry *entry = entry_of(server, ino);
    int fd = -1;

    if (!entry) {
        fuse_reply_err(req, EISDIR);
        return;
    }
    if (!server->memory) {
        fd = openat(server->dir_fd, entry->name, O_RDONLY | O_CLOEXEC);
        if (fd < 0) {
            fuse_reply_err(req, errno);
            return;
        }
        fi->fh = (uint64_t)fd;
    }
    fi->keep_cache = 1;
    fi->noflush = 1;
    if (fuse_reply_open(req, fi) == -ENOENT && fd >= 0)
        close(fd);
}

static void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *fi)
{
    static _Thread_local char *buffer;
    const struct server *server = fuse_req_userdata(req);
    const struct entry *entry = entry_of(server, ino);
    ssize_t got;

    if (server->memory) {
        size_t at = (size_t)offset < entry->size ? (size_t)offset : entry->size;

        fuse_reply_buf(req, entry->copy + at, size < entry->size - at ? size : entry->size - at);
        return;
    }
    if (!buffer)
        buffer = malloc(READ_MAX); /* as long as its thread, so never freed */
    got = buffer ? pread((int)fi->fh, buffer, size < READ_MAX ? size : READ_MAX, offset) : -1;
    if (got < 0)
        fuse_reply_err(req, errno);
    else
        fuse_reply_buf(req, buffer, (size_t)got);
}

static void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    const struct server *server = fuse_req_userdata(req);

    (void)ino;
    if (!server->memory)
        close((int)fi->fh);
    fuse_reply_err(req, 0);
}

static void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *fi)
{
    const struct server *server = fuse_req_userdata(req);
    char *buffer = malloc(size);
    size_t used = 0;

    (void)ino;
    (void)fi;
    if (!buffer) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    for (size_t i = (size_t)offset; i < server->count; i++) {
        struct stat st = {.st_ino = i + FIRST_INO, .st_mode = S_IFREG};
        size_t need =
            fuse_add_direntry(req, buffer + used, size - used, server->entries[i].name, &st, (off_t)i + 1);

        if (need > size - used)
            break;
        used += need;
    }
    fuse_reply_buf(req, buffer, used);
    free(buffer);
}

static const struct fuse_lowlevel_ops ops = {
    .init = op_init,
    .lookup = op_lookup,
    .getattr = op_getattr,
    .open = op_open,
    .read = op_read,
    .release = op_release,
    .readdir = op_readdir,
};

int main(int argc, char **argv)
{
    struct server server = {.memory = argc == 4 && !strcmp(argv[1], "--memory")};
    char *options[] = {"bench_fuse", "-o",
        "ro,nosuid,nodev,default_permissions,fsname=bench,subtype=bench,max_read=1048576", NULL};
    struct fuse_args args = FUSE_ARGS_INIT(3, options);
    struct fuse_loop_config *loop = fuse_loop_cfg_create();
    struct fuse_session *session;
    int result;

    if (argc != (server.memory ? 4 : 3) || !loop) {
        fprintf(stderr, "usage: bench_fuse [--memory] DIRECTORY MOUNTPOINT\n");
        return 2;
    }
    load(&server, argv[argc - 2]);
    session = fuse_session_new(&args, &ops, sizeof(ops), &server);
    if (!session || fuse_set_signal_handlers(session) || fuse_session_mount(session, argv[argc - 1]))
        return 1;
    fuse_loop_cfg_set_max_threads(loop, SESSION_THREADS);
    fuse_loop_cfg_set_idle_threads(loop, SESSION_THREADS);
    result = fuse_session_loop_mt(session, loop);
    fuse_loop_cfg_destroy(loop);
    fuse_session_unmount(session);
    fuse_session_destroy(session);
    fuse_opt_free_args(&args);
    return result < 0;
}
