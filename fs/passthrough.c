/* SPDX-License-Identifier: Apache-2.0
 *
 * Without libfuse's own API the INIT reply lacks the passthrough flag. It is completed
 * here once, before the session loop: the session's descriptor is pointed at a pipe while
 * libfuse answers INIT, and the completed answer goes to the kernel. Every later
 * request takes libfuse's ordinary way, at no extra cost.
 */
#include "fs/passthrough.h"

#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 17)
#define HAVE_FUSE_PASSTHROUGH 1
#else
#define HAVE_FUSE_PASSTHROUGH 0
#endif

/* Protocol 7.40, spelled out because the kernel headers of Debian 12 end at 7.36. */
struct backing_map {
    int32_t fd;
    uint32_t flags;
    uint64_t padding;
};
#define BACKING_OPEN _IOW(229, 1, struct backing_map)
#define BACKING_CLOSE _IOW(229, 2, uint32_t)

enum state {
    OFF_OPTION,
    PENDING, /* INIT not answered yet */
    ON,
    OFF_KERNEL,
    OFF_WRITEBACK,
    OFF_PRIVILEGE,
    OFF_STACKED,
};

struct dctf_passthrough {
    struct fuse_session *session; /* set by attach, then constant */
    atomic_int state;             /* enum state */
};

enum dctf_err dctf_passthrough_new(bool wanted, struct dctf_passthrough **out)
{
    struct dctf_passthrough *passthrough = calloc(1, sizeof(*passthrough));

    *out = passthrough;
    if (!passthrough)
        return DCTF_ERR_NO_MEMORY;
    atomic_init(&passthrough->state, wanted ? PENDING : OFF_OPTION);
    return DCTF_OK;
}

void dctf_passthrough_free(struct dctf_passthrough *passthrough)
{
    free(passthrough);
}

bool dctf_passthrough_active(const struct dctf_passthrough *passthrough)
{
    return atomic_load_explicit(&passthrough->state, memory_order_relaxed) == ON;
}

const char *dctf_passthrough_reason(const struct dctf_passthrough *passthrough)
{
    switch ((enum state)atomic_load_explicit(&passthrough->state, memory_order_relaxed)) {
    case OFF_OPTION:
        return "off: passthrough=off";
    case PENDING:
        return "off: not negotiated yet";
    case ON:
        return "on";
    case OFF_KERNEL:
        return "off: kernel does not offer it (6.9 or later does)";
    case OFF_WRITEBACK:
        return "off: not together with the writeback cache";
    case OFF_PRIVILEGE:
        return "off: dctffs lacks CAP_SYS_ADMIN";
    case OFF_STACKED:
        return "off: the cache directory is on a stacked filesystem (overlayfs or the like)";
    }
    return "off";
}

static void turn_off(struct dctf_passthrough *passthrough, enum state why)
{
    int expected = ON;

    if (atomic_compare_exchange_strong(&passthrough->state, &expected, (int)why))
        dctf_log(DCTF_LOG_INFO, "fs", "passthrough=\"%s\"", dctf_passthrough_reason(passthrough));
}

/* The kernel looks at privilege before it looks at the descriptor. */
static void probe_privilege(struct dctf_passthrough *passthrough)
{
    struct backing_map map = {.fd = -1};

    if (ioctl(fuse_session_fd(passthrough->session), BACKING_OPEN, &map) < 0 && errno == EPERM)
        turn_off(passthrough, OFF_PRIVILEGE);
}

#if HAVE_FUSE_PASSTHROUGH

void dctf_passthrough_init(struct dctf_passthrough *passthrough, struct fuse_conn_info *conn)
{
    if (atomic_load(&passthrough->state) != PENDING)
        return;
    if (conn->want_ext & FUSE_CAP_WRITEBACK_CACHE)
        atomic_store(&passthrough->state, OFF_WRITEBACK);
    else if (fuse_set_feature_flag(conn, FUSE_CAP_PASSTHROUGH))
        atomic_store(&passthrough->state, ON);
    else
        atomic_store(&passthrough->state, OFF_KERNEL);
}

static enum dctf_err answer_init(
    struct dctf_passthrough *passthrough, struct fuse_session *session, const struct fuse_buf *request)
{
    (void)passthrough;
    fuse_session_process_buf(session, request);
    return DCTF_OK;
}

int dctf_passthrough_reply_open(
    struct dctf_passthrough *passthrough, fuse_req_t req, struct fuse_file_info *fi, int backing_id)
{
    (void)passthrough;
    fi->keep_cache = 0;
    fi->nonseekable = 0;
    fi->cache_readdir = 0;
    fi->backing_id = backing_id;
    return fuse_reply_open(req, fi);
}

#else

#define INIT_PASSTHROUGH (UINT32_C(1) << (37 - 32)) /* in flags2 */
#define OPEN_PASSTHROUGH (UINT32_C(1) << 7)
#define OPEN_NOFLUSH (UINT32_C(1) << 5)
#define PASSTHROUGH_MINOR 40
/* Backing files may not lie on a stacked filesystem; one may be stacked over the mount. */
#define MAX_STACK_DEPTH 1

struct init_request {
    struct fuse_in_header header;
    uint32_t major, minor, max_readahead, flags, flags2;
};

struct init_reply {
    struct fuse_out_header header;
    uint32_t major, minor, max_readahead, flags;
    uint16_t max_background, congestion_threshold;
    uint32_t max_write, time_gran;
    uint16_t max_pages, map_alignment;
    uint32_t flags2, max_stack_depth;
    uint32_t unused[6];
};

struct open_reply {
    uint64_t fh;
    uint32_t open_flags;
    int32_t backing_id;
};

_Static_assert(sizeof(struct init_reply) == 16 + 64, "the INIT reply is 64 bytes since 7.23");
_Static_assert(sizeof(struct open_reply) == 16, "the open reply is 16 bytes");

void dctf_passthrough_init(struct dctf_passthrough *passthrough, struct fuse_conn_info *conn)
{
    int expected = PENDING;

    if (conn->want & FUSE_CAP_WRITEBACK_CACHE)
        atomic_compare_exchange_strong(&passthrough->state, &expected, OFF_WRITEBACK);
}

static bool is_offered(const struct fuse_buf *request)
{
    const struct init_request *init = request->mem;

    return request->size >= sizeof(*init) && init->header.opcode == FUSE_INIT && init->major == 7 &&
           init->minor >= PASSTHROUGH_MINOR && (init->flags & FUSE_INIT_EXT) &&
           (init->flags2 & INIT_PASSTHROUGH);
}

/* Returns whether the answer now takes the offer. */
static bool complete_reply(struct init_reply *reply, size_t size)
{
    if (size != sizeof(*reply) || reply->header.len != size || reply->header.error != 0 || reply->major != 7)
        return false;
    if (!(reply->flags & FUSE_INIT_EXT))
        reply->flags2 = 0;
    reply->flags |= FUSE_INIT_EXT;
    reply->flags2 |= INIT_PASSTHROUGH;
    reply->max_stack_depth = MAX_STACK_DEPTH;
    if (reply->minor < PASSTHROUGH_MINOR)
        reply->minor = PASSTHROUGH_MINOR;
    return true;
}

/* Let libfuse answer into a pipe; *reply gets its answer. */
static enum dctf_err catch_reply(
    struct fuse_session *session, const struct fuse_buf *request, struct init_reply *reply, size_t *size)
{
    enum dctf_err err = DCTF_ERR_SYSTEM;
    int fd = fuse_session_fd(session);
    /* Not F_DUPFD_CLOEXEC: ThreadSanitizer takes the kernel for a way from one thread to the next
     * only along descriptors that it has followed. */
    int saved = dup(fd);
    int pipes[2] = {-1, -1};
    ssize_t got;

    *size = 0;
    if (saved < 0 || fcntl(saved, F_SETFD, FD_CLOEXEC) < 0 || pipe2(pipes, O_CLOEXEC | O_NONBLOCK) < 0 ||
        dup3(pipes[1], fd, O_CLOEXEC) < 0)
        goto out;
    fuse_session_process_buf(session, request);
    if (dup3(saved, fd, O_CLOEXEC) < 0)
        goto out;
    got = read(pipes[0], reply, sizeof(*reply));
    if (got < (ssize_t)sizeof(reply->header))
        goto out;
    *size = (size_t)got;
    err = DCTF_OK;
out:
    if (err)
        dctf_log(DCTF_LOG_ERROR, "fs", "op=init errno=%d err=%d", errno, err);
    if (saved >= 0)
        close(saved);
    if (pipes[0] >= 0)
        close(pipes[0]);
    if (pipes[1] >= 0)
        close(pipes[1]);
    return err;
}

static enum dctf_err answer_init(
    struct dctf_passthrough *passthrough, struct fuse_session *session, const struct fuse_buf *request)
{
    struct init_reply reply;
    enum dctf_err err;
    bool taken;
    size_t size;

    if (!is_offered(request)) {
        atomic_store(&passthrough->state, OFF_KERNEL);
        fuse_session_process_buf(session, request);
        return DCTF_OK;
    }
    err = catch_reply(session, request, &reply, &size);
    if (err)
        return err;
    taken = atomic_load(&passthrough->state) == PENDING && complete_reply(&reply, size);
    if (write(fuse_session_fd(session), &reply, size) < 0) {
        dctf_log(DCTF_LOG_ERROR, "fs", "op=init errno=%d err=%d", errno, DCTF_ERR_MOUNT_FAILED);
        return DCTF_ERR_MOUNT_FAILED;
    }
    if (taken)
        atomic_store(&passthrough->state, ON);
    return DCTF_OK;
}

int dctf_passthrough_reply_open(
    struct dctf_passthrough *passthrough, fuse_req_t req, struct fuse_file_info *fi, int backing_id)
{
    struct open_reply reply = {
        .fh = fi->fh,
        .open_flags =
            OPEN_PASSTHROUGH | (fi->direct_io ? FOPEN_DIRECT_IO : 0) | (fi->noflush ? OPEN_NOFLUSH : 0),
        .backing_id = backing_id,
    };

    (void)passthrough;
    return fuse_reply_buf(req, (const char *)&reply, sizeof(reply));
}

#endif

enum dctf_err dctf_passthrough_attach(struct dctf_passthrough *passthrough, struct fuse_session *session)
{
    struct fuse_buf request = {0};
    enum dctf_err err;
    int got;

    passthrough->session = session;
    if (atomic_load(&passthrough->state) == OFF_OPTION)
        return DCTF_OK; /* the loop answers INIT */
    do {
        got = fuse_session_receive_buf(session, &request);
    } while (got == -EINTR);
    if (got <= 0) {
        dctf_log(DCTF_LOG_ERROR, "fs", "op=init errno=%d err=%d", -got, DCTF_ERR_MOUNT_FAILED);
        err = DCTF_ERR_MOUNT_FAILED;
        goto out;
    }
    err = answer_init(passthrough, session, &request);
    if (!err && fuse_session_exited(session))
        err = DCTF_ERR_MOUNT_FAILED;
    if (!err && dctf_passthrough_active(passthrough))
        probe_privilege(passthrough);
out:
    free(request.mem);
    return err;
}

int dctf_passthrough_open(struct dctf_passthrough *passthrough, int fd)
{
    struct backing_map map = {.fd = fd};
    int id;

    if (!dctf_passthrough_active(passthrough))
        return 0;
    id = ioctl(fuse_session_fd(passthrough->session), BACKING_OPEN, &map);
    if (id > 0)
        return id;
    if (id < 0 && errno == EPERM)
        turn_off(passthrough, OFF_PRIVILEGE);
    else if (id < 0 && errno == ELOOP)
        turn_off(passthrough, OFF_STACKED);
    else
        dctf_log(DCTF_LOG_WARN, "fs", "op=backing_open errno=%d err=%d", id < 0 ? errno : 0, DCTF_ERR_SYSTEM);
    return 0;
}

void dctf_passthrough_close(struct dctf_passthrough *passthrough, int backing_id)
{
    uint32_t id = (uint32_t)backing_id;

    if (backing_id <= 0 || !passthrough->session)
        return;
    /* Once unmounted the kernel has dropped every id: an error means no more than that. */
    if (ioctl(fuse_session_fd(passthrough->session), BACKING_CLOSE, &id) < 0)
        dctf_log(DCTF_LOG_DEBUG, "fs", "op=backing_close errno=%d", errno);
}
