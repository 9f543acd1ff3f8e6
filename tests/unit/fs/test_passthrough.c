/* SPDX-License-Identifier: Apache-2.0
 *
 * Passthrough against the kernel: a file system with one file, in a mount namespace of
 * its own. Needs root and /dev/fuse.
 */
#include "fs/passthrough.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#define FILE_INO 2
#define FILE_BYTES (3u << 20)

struct fixture {
    char dir[32];
    char mountpoint[64];
    char file[80];
    struct dctf_passthrough *passthrough;
    struct fuse_session *session;
    pthread_t loop;
    int backing_fd;
    int backing_id;
    bool keep_cache;
    atomic_int reads; /* that reached the daemon */
};

static bool can_mount;

static unsigned char byte_at(size_t offset)
{
    return (unsigned char)(offset * 31 + (offset >> 12));
}

static void fill_stat(fuse_ino_t ino, struct stat *st)
{
    *st = (struct stat){.st_ino = ino, .st_nlink = 1};
    st->st_mode = ino == FUSE_ROOT_ID ? S_IFDIR | 0755 : S_IFREG | 0444;
    st->st_size = ino == FUSE_ROOT_ID ? 0 : FILE_BYTES;
}

static void on_init(void *data, struct fuse_conn_info *conn)
{
    struct fixture *fixture = data;

    dctf_passthrough_init(fixture->passthrough, conn);
}

static void on_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct fuse_entry_param entry = {.ino = FILE_INO};

    if (parent != FUSE_ROOT_ID || strcmp(name, "f") != 0) {
        fuse_reply_err(req, ENOENT);
        return;
    }
    fill_stat(FILE_INO, &entry.attr);
    fuse_reply_entry(req, &entry);
}

static void on_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct stat st;

    (void)fi;
    fill_stat(ino, &st);
    fuse_reply_attr(req, &st, 0);
}

static void on_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct fixture *fixture = fuse_req_userdata(req);

    (void)ino;
    fi->fh = 7;
    fi->keep_cache = fixture->keep_cache;
    fixture->backing_id = dctf_passthrough_open(fixture->passthrough, fixture->backing_fd);
    if (fixture->backing_id > 0)
        dctf_passthrough_reply_open(fixture->passthrough, req, fi, fixture->backing_id);
    else
        fuse_reply_open(req, fi);
}

static void on_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *fi)
{
    struct fixture *fixture = fuse_req_userdata(req);
    char *buf = malloc(size);
    ssize_t got = buf ? pread(fixture->backing_fd, buf, size, offset) : -1;

    (void)ino;
    (void)fi;
    atomic_fetch_add(&fixture->reads, 1);
    if (got < 0)
        fuse_reply_err(req, EIO);
    else
        fuse_reply_buf(req, buf, (size_t)got);
    free(buf);
}

static void on_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct fixture *fixture = fuse_req_userdata(req);

    (void)ino;
    (void)fi;
    dctf_passthrough_close(fixture->passthrough, fixture->backing_id);
    fixture->backing_id = 0;
    fuse_reply_err(req, 0);
}

static const struct fuse_lowlevel_ops ops = {
    .init = on_init,
    .lookup = on_lookup,
    .getattr = on_getattr,
    .open = on_open,
    .read = on_read,
    .release = on_release,
};

static void *run_loop(void *arg)
{
    fuse_session_loop(((struct fixture *)arg)->session);
    return NULL;
}

static int write_backing(const char *dir)
{
    char path[64];
    unsigned char *bytes = malloc(FILE_BYTES);
    int fd;

    snprintf(path, sizeof(path), "%s/backing", dir);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_non_null(bytes);
    assert_true(fd >= 0);
    for (size_t i = 0; i < FILE_BYTES; i++)
        bytes[i] = byte_at(i);
    assert_int_equal(write(fd, bytes, FILE_BYTES), FILE_BYTES);
    free(bytes);
    return fd;
}

/* Everything up to the mount; attach and the loop are the test's. */
static void make_mount(struct fixture *fixture, bool wanted)
{
    char *argv[] = {(char *)"test", (char *)"-osubtype=dctffs,nosuid,nodev"};
    struct fuse_args args = FUSE_ARGS_INIT(2, argv);

    *fixture = (struct fixture){.dir = "/tmp/dctf-pass-XXXXXX"};
    assert_non_null(mkdtemp(fixture->dir));
    assert_int_equal(mount("dctf-test", fixture->dir, "tmpfs", 0, "size=16m"), 0);
    snprintf(fixture->mountpoint, sizeof(fixture->mountpoint), "%s/mnt", fixture->dir);
    snprintf(fixture->file, sizeof(fixture->file), "%s/f", fixture->mountpoint);
    assert_int_equal(mkdir(fixture->mountpoint, 0755), 0);
    fixture->backing_fd = write_backing(fixture->dir);
    assert_int_equal(dctf_passthrough_new(wanted, &fixture->passthrough), DCTF_OK);
    fixture->session = fuse_session_new(&args, &ops, sizeof(ops), fixture);
    fuse_opt_free_args(&args);
    assert_non_null(fixture->session);
    assert_int_equal(fuse_session_mount(fixture->session, fixture->mountpoint), 0);
}

static void start_loop(struct fixture *fixture)
{
    assert_int_equal(pthread_create(&fixture->loop, NULL, run_loop, fixture), 0);
}

static void end_mount(struct fixture *fixture)
{
    assert_int_equal(umount2(fixture->mountpoint, 0), 0);
    pthread_join(fixture->loop, NULL);
    fuse_session_unmount(fixture->session);
    fuse_session_destroy(fixture->session);
    dctf_passthrough_free(fixture->passthrough);
    close(fixture->backing_fd);
    assert_int_equal(umount2(fixture->dir, 0), 0);
    rmdir(fixture->dir);
}

static void check_contents(const char *path)
{
    unsigned char *bytes = malloc(FILE_BYTES);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t got = 0;
    ssize_t n;

    assert_non_null(bytes);
    assert_true(fd >= 0);
    while (got < FILE_BYTES && (n = read(fd, bytes + got, FILE_BYTES - got)) > 0)
        got += (size_t)n;
    assert_int_equal(got, FILE_BYTES);
    for (size_t i = 0; i < FILE_BYTES; i++)
        if (bytes[i] != byte_at(i))
            fail_msg("byte %zu differs", i);
    free(bytes);
    close(fd);
}

static void require_mount(void)
{
    if (!can_mount) {
        print_message("needs root, /dev/fuse and mount namespaces\n");
        skip();
    }
}

/* True when the kernel took the offer; else the test ends the mount and skips. */
static bool is_active(struct fixture *fixture)
{
    if (dctf_passthrough_active(fixture->passthrough))
        return true;
    print_message("passthrough is %s\n", dctf_passthrough_reason(fixture->passthrough));
    start_loop(fixture);
    end_mount(fixture);
    return false;
}

static void test_read_passes_through(void **state)
{
    struct fixture fixture;
    unsigned char *map;
    int fd;

    (void)state;
    require_mount();
    make_mount(&fixture, true);
    assert_string_equal(dctf_passthrough_reason(fixture.passthrough), "off: not negotiated yet");
    assert_int_equal(dctf_passthrough_attach(fixture.passthrough, fixture.session), DCTF_OK);
    if (!is_active(&fixture))
        skip();
    assert_string_equal(dctf_passthrough_reason(fixture.passthrough), "on");
    fixture.keep_cache = true; /* would be refused by the kernel if it were passed on */
    start_loop(&fixture);
    check_contents(fixture.file);
    assert_int_equal(atomic_load(&fixture.reads), 0);

    fd = open(fixture.file, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    map = mmap(NULL, FILE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(map != MAP_FAILED);
    assert_int_equal(map[FILE_BYTES - 1], byte_at(FILE_BYTES - 1));
    munmap(map, FILE_BYTES);
    close(fd);
    assert_int_equal(atomic_load(&fixture.reads), 0);
    end_mount(&fixture);
}

static void test_read_goes_to_the_daemon_when_not_wanted(void **state)
{
    struct fixture fixture;

    (void)state;
    require_mount();
    make_mount(&fixture, false);
    assert_int_equal(dctf_passthrough_attach(fixture.passthrough, fixture.session), DCTF_OK);
    assert_false(dctf_passthrough_active(fixture.passthrough));
    assert_string_equal(dctf_passthrough_reason(fixture.passthrough), "off: passthrough=off");
    start_loop(&fixture);
    check_contents(fixture.file);
    assert_true(atomic_load(&fixture.reads) > 0);
    end_mount(&fixture);
}

static void set_effective_sys_admin(bool on)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct caps[2];

    assert_int_equal(syscall(SYS_capget, &header, caps), 0);
    if (on)
        caps[0].effective |= 1u << CAP_SYS_ADMIN;
    else
        caps[0].effective &= ~(1u << CAP_SYS_ADMIN);
    assert_int_equal(syscall(SYS_capset, &header, caps), 0);
}

static void test_attach_without_privilege_turns_off(void **state)
{
    struct fixture fixture;

    (void)state;
    require_mount();
    make_mount(&fixture, true);
    set_effective_sys_admin(false);
    assert_int_equal(dctf_passthrough_attach(fixture.passthrough, fixture.session), DCTF_OK);
    set_effective_sys_admin(true);
    assert_false(dctf_passthrough_active(fixture.passthrough));
    assert_int_equal(strncmp(dctf_passthrough_reason(fixture.passthrough), "off: ", 5), 0);
    assert_int_equal(dctf_passthrough_open(fixture.passthrough, fixture.backing_fd), 0);
    start_loop(&fixture);
    check_contents(fixture.file);
    assert_true(atomic_load(&fixture.reads) > 0);
    end_mount(&fixture);
}

static void test_open_losing_privilege_turns_off(void **state)
{
    struct fixture fixture;

    (void)state;
    require_mount();
    make_mount(&fixture, true);
    assert_int_equal(dctf_passthrough_attach(fixture.passthrough, fixture.session), DCTF_OK);
    if (!is_active(&fixture))
        skip();
    set_effective_sys_admin(false);
    assert_int_equal(dctf_passthrough_open(fixture.passthrough, fixture.backing_fd), 0);
    set_effective_sys_admin(true);
    assert_string_equal(dctf_passthrough_reason(fixture.passthrough), "off: dctffs lacks CAP_SYS_ADMIN");
    start_loop(&fixture);
    check_contents(fixture.file);
    end_mount(&fixture);
}

static void test_open_bad_descriptor_stays_on(void **state)
{
    struct fixture fixture;

    (void)state;
    require_mount();
    make_mount(&fixture, true);
    assert_int_equal(dctf_passthrough_attach(fixture.passthrough, fixture.session), DCTF_OK);
    if (!is_active(&fixture))
        skip();
    assert_int_equal(dctf_passthrough_open(fixture.passthrough, -1), 0);
    assert_true(dctf_passthrough_active(fixture.passthrough));
    start_loop(&fixture);
    end_mount(&fixture);
}

static void test_open_on_overlay_turns_off(void **state)
{
    struct fixture fixture;
    char lower[64], merged[64], path[80], options[160];
    int fd;

    (void)state;
    require_mount();
    make_mount(&fixture, true);
    assert_int_equal(dctf_passthrough_attach(fixture.passthrough, fixture.session), DCTF_OK);
    if (!is_active(&fixture))
        skip();
    snprintf(lower, sizeof(lower), "%s/lower", fixture.dir);
    snprintf(merged, sizeof(merged), "%s/merged", fixture.dir);
    snprintf(path, sizeof(path), "%s/file", lower);
    snprintf(options, sizeof(options), "lowerdir=%s:%s", lower, merged);
    assert_int_equal(mkdir(lower, 0700), 0);
    assert_int_equal(mkdir(merged, 0700), 0);
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
    if (mount("overlay", merged, "overlay", MS_RDONLY, options) == 0) {
        snprintf(path, sizeof(path), "%s/file", merged);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        assert_true(fd >= 0);
        assert_int_equal(dctf_passthrough_open(fixture.passthrough, fd), 0);
        assert_false(dctf_passthrough_active(fixture.passthrough));
        assert_non_null(strstr(dctf_passthrough_reason(fixture.passthrough), "stacked"));
        close(fd);
        assert_int_equal(umount2(merged, 0), 0);
    } else {
        print_message("no overlayfs here\n");
    }
    start_loop(&fixture);
    end_mount(&fixture);
}

static void test_attach_after_unmount_fails(void **state)
{
    struct fixture fixture;

    (void)state;
    require_mount();
    make_mount(&fixture, true);
    assert_int_equal(umount2(fixture.mountpoint, 0), 0);
    assert_int_equal(dctf_passthrough_attach(fixture.passthrough, fixture.session), DCTF_ERR_MOUNT_FAILED);
    fuse_session_unmount(fixture.session);
    fuse_session_destroy(fixture.session);
    dctf_passthrough_free(fixture.passthrough);
    close(fixture.backing_fd);
    assert_int_equal(umount2(fixture.dir, 0), 0);
    rmdir(fixture.dir);
}

static void test_close_before_attach_is_nothing(void **state)
{
    struct dctf_passthrough *passthrough;

    (void)state;
    assert_int_equal(dctf_passthrough_new(true, &passthrough), DCTF_OK);
    assert_int_equal(dctf_passthrough_open(passthrough, 0), 0);
    dctf_passthrough_close(passthrough, 1);
    dctf_passthrough_free(passthrough);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read_passes_through),
        cmocka_unit_test(test_read_goes_to_the_daemon_when_not_wanted),
        cmocka_unit_test(test_attach_without_privilege_turns_off),
        cmocka_unit_test(test_open_losing_privilege_turns_off),
        cmocka_unit_test(test_open_bad_descriptor_stays_on),
        cmocka_unit_test(test_open_on_overlay_turns_off),
        cmocka_unit_test(test_attach_after_unmount_fails),
        cmocka_unit_test(test_close_before_attach_is_nothing),
    };

    can_mount = geteuid() == 0 && access("/dev/fuse", R_OK | W_OK) == 0 && unshare(CLONE_NEWNS) == 0 &&
                mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
