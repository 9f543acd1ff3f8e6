/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests that mount do so in a mount namespace of their own, as root.
 */
#include "fs/mountpoint.h"

#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static bool can_mount;

static void require_mount(void)
{
    if (!can_mount) {
        print_message("needs root, /dev/fuse and mount namespaces\n");
        skip();
    }
}

struct place {
    char dir[32];
    char mnt[64];
};

static void make_place(struct place *place)
{
    strcpy(place->dir, "/tmp/dctf-mnt-XXXXXX");
    assert_non_null(mkdtemp(place->dir));
    snprintf(place->mnt, sizeof(place->mnt), "%s/mnt", place->dir);
    assert_int_equal(mkdir(place->mnt, 0755), 0);
}

static void remove_place(struct place *place)
{
    assert_int_equal(rmdir(place->mnt), 0);
    assert_int_equal(rmdir(place->dir), 0);
}

/* A dctffs mount whose daemon is this descriptor: closed it is dead, unread it hangs. */
static int mount_fuse(const char *path, const char *fstype)
{
    char options[128];
    int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);

    assert_true(fd >= 0);
    snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", fd);
    assert_int_equal(mount("file:///data", path, fstype, MS_NOSUID | MS_NODEV, options), 0);
    return fd;
}

static void test_parse_line_fields(void **state)
{
    struct dctf_mount_info info;

    (void)state;
    assert_int_equal(dctf_mount_parse_line("36 35 0:52 / /mnt/a\\040b\\134c rw,nosuid shared:7 master:1 - "
                                           "fuse.dctffs s3://b/p ro,user_id=0,allow_other\n",
                         &info),
        DCTF_OK);
    assert_int_equal(info.major, 0);
    assert_int_equal(info.minor, 52);
    assert_string_equal(info.path, "/mnt/a b\\c");
    assert_string_equal(info.fstype, "fuse.dctffs");
    assert_string_equal(info.source, "s3://b/p");
    assert_string_equal(info.options, "ro,user_id=0,allow_other");
    dctf_mount_info_fini(&info);
    assert_null(info.path);

    assert_int_equal(dctf_mount_parse_line("1 0 8:1 / / rw - ext4 /dev/sda1 rw", &info), DCTF_OK);
    assert_string_equal(info.path, "/");
    dctf_mount_info_fini(&info);

    /* An empty source leaves an empty field. */
    assert_int_equal(dctf_mount_parse_line("1 0 0:5 / /x rw - tmpfs  rw", &info), DCTF_OK);
    assert_string_equal(info.source, "");
    assert_string_equal(info.options, "rw");
    dctf_mount_info_fini(&info);
}

static void test_parse_line_malformed(void **state)
{
    static const char *const lines[] = {
        "",
        "\n",
        " ",
        "36",
        "36 35 0:52 /",
        "36 35 052 / /mnt rw - t s o",
        "36 35 0:x / /mnt rw - t s o",
        "36 35 0:5x / /mnt rw - t s o",
        "36 35 0:52 / mnt rw - t s o",
        "36 35 0:52 / /mnt rw shared:1",
        "36 35 0:52 / /mnt rw -",
        "36 35 0:52 / /mnt rw - fuse",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        struct dctf_mount_info info;

        assert_int_equal(dctf_mount_parse_line(lines[i], &info), DCTF_ERR_REQUEST_BAD);
        assert_null(info.path);
    }
}

static void test_find_present_and_absent(void **state)
{
    struct dctf_mount_info info;

    (void)state;
    assert_int_equal(dctf_mount_find("/proc", &info), DCTF_OK);
    assert_string_equal(info.path, "/proc");
    dctf_mount_info_fini(&info);
    assert_int_equal(dctf_mount_find("/proc/self", &info), DCTF_ERR_NOT_MOUNTED);
    assert_null(info.path);
    assert_int_equal(dctf_mount_find_dctffs("/proc/self", &info), DCTF_ERR_NOT_MOUNTED);
}

static void check_resolve(const char *path, const char *expected)
{
    char *resolved;

    assert_int_equal(dctf_mountpoint_resolve(path, &resolved), DCTF_OK);
    assert_string_equal(resolved, expected);
    free(resolved);
}

static void test_resolve_lexically(void **state)
{
    char cwd[PATH_MAX];
    char expected[PATH_MAX + 8];

    (void)state;
    check_resolve("/", "/");
    check_resolve("//", "/");
    check_resolve("/..", "/");
    check_resolve("/no-such-dir/./x//y/../z/", "/no-such-dir/x/z");
    assert_non_null(getcwd(cwd, sizeof(cwd)));
    snprintf(expected, sizeof(expected), "%s/nope", cwd);
    check_resolve("nope", expected);
    check_resolve("./x/../nope/", expected);
}

static void test_resolve_follows_links(void **state)
{
    struct place place;
    char link[96], path[160], expected[96];

    (void)state;
    make_place(&place);
    snprintf(link, sizeof(link), "%s/link", place.dir);
    assert_int_equal(symlink("mnt/.", link), 0);
    check_resolve(link, place.mnt);
    snprintf(path, sizeof(path), "%s/../link/sub", link);
    snprintf(expected, sizeof(expected), "%s/sub", place.mnt);
    check_resolve(path, expected);
    unlink(link);
    assert_int_equal(symlink(place.mnt, link), 0);
    check_resolve(link, place.mnt);
    unlink(link);
    remove_place(&place);
}

static void test_resolve_refuses(void **state)
{
    struct place place;
    char link[96];
    char *resolved;
    char *longest = malloc(PATH_MAX * 2);

    (void)state;
    make_place(&place);
    snprintf(link, sizeof(link), "%s/loop", place.dir);
    assert_int_equal(symlink("loop", link), 0);
    assert_int_equal(dctf_mountpoint_resolve(link, &resolved), DCTF_ERR_MOUNTPOINT_BAD);
    assert_null(resolved);
    unlink(link);
    remove_place(&place);

    assert_int_equal(dctf_mountpoint_resolve("", &resolved), DCTF_ERR_MOUNTPOINT_BAD);
    assert_non_null(longest);
    memset(longest, 'x', PATH_MAX * 2 - 1);
    longest[0] = '/';
    longest[PATH_MAX * 2 - 1] = '\0';
    assert_int_equal(dctf_mountpoint_resolve(longest, &resolved), DCTF_ERR_NAME_TOO_LONG);
    free(longest);
}

static void test_prepare_checks_directory(void **state)
{
    struct place place;
    char path[96];
    char detail[256];
    int fd;

    (void)state;
    make_place(&place);
    assert_int_equal(dctf_mountpoint_prepare(place.mnt, detail), DCTF_OK);
    snprintf(path, sizeof(path), "%s/none", place.dir);
    assert_int_equal(dctf_mountpoint_prepare(path, detail), DCTF_ERR_MOUNTPOINT_BAD);
    assert_non_null(strstr(detail, "No such file"));
    snprintf(path, sizeof(path), "%s/file", place.dir);
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(dctf_mountpoint_prepare(path, detail), DCTF_ERR_MOUNTPOINT_BAD);
    assert_non_null(strstr(detail, "not a directory"));
    unlink(path);
    assert_int_equal(dctf_mountpoint_prepare("/proc", detail), DCTF_ERR_MOUNTPOINT_IN_USE);
    assert_non_null(strstr(detail, "/proc"));
    remove_place(&place);
}

static void test_prepare_detaches_a_dead_mount(void **state)
{
    struct dctf_mount_info info;
    struct place place;
    char detail[256];

    (void)state;
    require_mount();
    make_place(&place);
    close(mount_fuse(place.mnt, DCTF_FSTYPE));
    assert_int_equal(dctf_mountpoint_prepare(place.mnt, detail), DCTF_OK);
    assert_int_equal(dctf_mount_find(place.mnt, &info), DCTF_ERR_NOT_MOUNTED);
    remove_place(&place);
}

static void test_prepare_leaves_a_foreign_dead_mount(void **state)
{
    struct dctf_mount_info info;
    struct place place;
    char detail[256];

    (void)state;
    require_mount();
    make_place(&place);
    close(mount_fuse(place.mnt, "fuse.other"));
    assert_int_equal(dctf_mountpoint_prepare(place.mnt, detail), DCTF_ERR_MOUNTPOINT_IN_USE);
    assert_non_null(strstr(detail, "fuse.other"));
    assert_int_equal(dctf_mount_find(place.mnt, &info), DCTF_OK);
    dctf_mount_info_fini(&info);
    assert_int_equal(dctf_mount_unmount(place.mnt, false), DCTF_OK);
    remove_place(&place);
}

/* Other dctffs mounts of the machine are visited too. */
struct search {
    const char *path;
    unsigned found;
};

static bool find_path(void *ctx, const struct dctf_mount_info *info)
{
    struct search *search = ctx;

    search->found += !strcmp(info->path, search->path);
    return search->found == 0;
}

static void test_hanging_mount_is_never_touched(void **state)
{
    struct dctf_mount_info info;
    struct place place;
    char path[96];
    struct search search = {.path = place.mnt};
    char detail[256];
    int fd;

    (void)state;
    require_mount();
    make_place(&place);
    fd = mount_fuse(place.mnt, DCTF_FSTYPE);
    snprintf(path, sizeof(path), "%s/a/../b", place.mnt);
    alarm(20); /* a look-up below the mount would wait for ever */
    assert_int_equal(dctf_mount_find_dctffs(path, &info), DCTF_OK);
    assert_string_equal(info.path, place.mnt);
    assert_string_equal(info.source, "file:///data");
    assert_int_equal(dctf_mount_each(find_path, &search), DCTF_OK);
    assert_int_equal(search.found, 1);
    assert_true(dctf_mount_waiting(&info) >= -1);
    if (dctf_mount_set_read_ahead(&info, 512) == DCTF_OK)
        assert_int_equal(dctf_mount_read_ahead(&info), 512);
    dctf_mount_info_fini(&info);
    assert_int_equal(dctf_mountpoint_prepare(place.mnt, detail), DCTF_ERR_MOUNTPOINT_IN_USE);
    assert_non_null(strstr(detail, "file:///data"));
    alarm(0);
    assert_int_equal(dctf_mount_unmount(place.mnt, true), DCTF_OK);
    close(fd);
    remove_place(&place);
}

static void test_find_topmost_and_nearest(void **state)
{
    struct dctf_mount_info info;
    struct place place;
    char below[96];
    int fd;

    (void)state;
    require_mount();
    make_place(&place);
    fd = mount_fuse(place.dir, DCTF_FSTYPE);
    assert_int_equal(mount("over", place.dir, "tmpfs", 0, NULL), 0);
    assert_int_equal(dctf_mount_find(place.dir, &info), DCTF_OK);
    assert_string_equal(info.fstype, "tmpfs");
    dctf_mount_info_fini(&info);
    snprintf(below, sizeof(below), "%s/x", place.dir);
    assert_int_equal(dctf_mount_find_dctffs(below, &info), DCTF_ERR_NOT_MOUNTED);
    assert_int_equal(dctf_mount_unmount(place.dir, false), DCTF_OK);
    assert_int_equal(dctf_mount_find_dctffs(below, &info), DCTF_OK);
    dctf_mount_info_fini(&info);
    /* A directory whose name only begins alike lies elsewhere. */
    snprintf(below, sizeof(below), "%sx", place.dir);
    assert_int_equal(dctf_mount_find_dctffs(below, &info), DCTF_ERR_NOT_MOUNTED);
    assert_int_equal(dctf_mount_unmount(place.dir, true), DCTF_OK);
    close(fd);
    remove_place(&place);
}

static void test_unmount_busy_then_lazy(void **state)
{
    struct place place;
    int fd;

    (void)state;
    require_mount();
    make_place(&place);
    assert_int_equal(mount("busy", place.mnt, "tmpfs", 0, NULL), 0);
    fd = open(place.mnt, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(dctf_mount_unmount(place.mnt, false), DCTF_ERR_MOUNTPOINT_IN_USE);
    assert_int_equal(dctf_mount_unmount(place.mnt, true), DCTF_OK);
    assert_int_equal(dctf_mount_unmount(place.mnt, false), DCTF_ERR_NOT_MOUNTED);
    close(fd);
    remove_place(&place);
}

static void test_unmount_without_the_right(void **state)
{
    struct dctf_mount_info info;
    struct place place;
    int status;
    pid_t child;

    (void)state;
    require_mount();
    make_place(&place);
    assert_int_equal(mount("keep", place.mnt, "tmpfs", 0, NULL), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (setgid(65534) != 0 || setuid(65534) != 0)
            _exit(9);
        _exit(dctf_mount_unmount(place.mnt, false) == DCTF_OK ? 1 : 0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(dctf_mount_find(place.mnt, &info), DCTF_OK);
    dctf_mount_info_fini(&info);
    assert_int_equal(dctf_mount_unmount(place.mnt, false), DCTF_OK);
    remove_place(&place);
}

static void test_read_ahead_unknown_device(void **state)
{
    struct dctf_mount_info info = {.major = 4000, .minor = 4000};

    (void)state;
    assert_int_equal(dctf_mount_read_ahead(&info), 0);
    assert_int_equal(dctf_mount_set_read_ahead(&info, 128), DCTF_ERR_SYSTEM);
    assert_int_equal(dctf_mount_waiting(&info), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse_line_fields),
        cmocka_unit_test(test_parse_line_malformed),
        cmocka_unit_test(test_find_present_and_absent),
        cmocka_unit_test(test_resolve_lexically),
        cmocka_unit_test(test_resolve_follows_links),
        cmocka_unit_test(test_resolve_refuses),
        cmocka_unit_test(test_prepare_checks_directory),
        cmocka_unit_test(test_prepare_detaches_a_dead_mount),
        cmocka_unit_test(test_prepare_leaves_a_foreign_dead_mount),
        cmocka_unit_test(test_hanging_mount_is_never_touched),
        cmocka_unit_test(test_find_topmost_and_nearest),
        cmocka_unit_test(test_unmount_busy_then_lazy),
        cmocka_unit_test(test_unmount_without_the_right),
        cmocka_unit_test(test_read_ahead_unknown_device),
    };

    can_mount = geteuid() == 0 && access("/dev/fuse", R_OK | W_OK) == 0 && unshare(CLONE_NEWNS) == 0 &&
                mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
