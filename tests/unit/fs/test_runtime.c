/* SPDX-License-Identifier: Apache-2.0
 *
 * As root the tests get a /run of their own (a mount namespace); as another user a
 * private XDG_RUNTIME_DIR.
 */
#include "fs/runtime.h"

#include "base/config.h"

#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static bool have_dir;

static void require_dir(void)
{
    if (!have_dir) {
        print_message("root needs mount namespaces for this test\n");
        skip();
    }
}

static struct dctf_runtime sample(const char *mountpoint)
{
    struct dctf_runtime runtime = {
        .mountpoint = strdup(mountpoint),
        .source = strdup("file:///data/\"quoted\"\n"),
        .cache_dir = strdup("/var/cache/\xff\xfe"), /* no UTF-8 */
        .version = strdup("0.1.0"),
        .options = strdup("endpoint=http://127.0.0.1:9000,region=x\\,y"),
        .pid = 4711,
        .started_ms = 1767225600123,
        .major = 0,
        .minor = 77,
    };

    assert_int_equal(dctf_runtime_socket_path(mountpoint, 1, &runtime.socket), DCTF_OK);
    return runtime;
}

static void test_write_read_remove(void **state)
{
    struct dctf_runtime runtime, again;
    struct stat st;

    (void)state;
    require_dir();
    runtime = sample("/mnt/features");
    assert_int_equal(dctf_runtime_read("/mnt/features", &again), DCTF_ERR_NOT_MOUNTED);
    assert_null(again.mountpoint);
    assert_int_equal(dctf_runtime_write(&runtime), DCTF_OK);
    assert_int_equal(dctf_runtime_read("/mnt/features", &again), DCTF_OK);
    assert_string_equal(again.mountpoint, runtime.mountpoint);
    assert_string_equal(again.source, runtime.source);
    assert_string_equal(again.cache_dir, runtime.cache_dir);
    assert_string_equal(again.socket, runtime.socket);
    assert_string_equal(again.version, runtime.version);
    assert_string_equal(again.options, runtime.options);
    assert_int_equal(again.pid, 4711);
    assert_true(again.started_ms == runtime.started_ms);
    assert_int_equal(again.minor, 77);
    dctf_runtime_fini(&again);
    assert_int_equal(dctf_runtime_read("/mnt/other", &again), DCTF_ERR_NOT_MOUNTED);

    close(open(runtime.socket, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    dctf_runtime_remove(&runtime);
    assert_int_equal(stat(runtime.socket, &st), -1);
    assert_int_equal(dctf_runtime_read("/mnt/features", &again), DCTF_ERR_NOT_MOUNTED);
    dctf_runtime_fini(&runtime);
}

static void test_remove_spares_a_later_daemon(void **state)
{
    struct dctf_runtime earlier, later, read;

    (void)state;
    require_dir();
    earlier = sample("/mnt/x");
    later = sample("/mnt/x");
    later.pid = 4712;
    assert_int_equal(dctf_runtime_write(&earlier), DCTF_OK);
    assert_int_equal(dctf_runtime_write(&later), DCTF_OK);
    dctf_runtime_remove(&earlier);
    assert_int_equal(dctf_runtime_read("/mnt/x", &read), DCTF_OK);
    assert_int_equal(read.pid, 4712);
    dctf_runtime_fini(&read);
    dctf_runtime_remove(&later);
    assert_int_equal(dctf_runtime_read("/mnt/x", &read), DCTF_ERR_NOT_MOUNTED);
    dctf_runtime_fini(&earlier);
    dctf_runtime_fini(&later);
}

static void overwrite(const char *socket, const char *text)
{
    char path[256];
    int fd;

    snprintf(path, sizeof(path), "%.*s.json", (int)strlen(socket) - 5, socket);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

static void test_read_junk(void **state)
{
    static const char *const junk[] = {
        "",
        "{",
        "[]",
        "{}",
        "{\"pid\":1}",
        "{\"pid\":1,\"mountpoint\":\"/mnt/j\",\"source\":\"s\"}",
        "{\"pid\":0,\"mountpoint\":\"/mnt/j\",\"source\":\"s\",\"socket\":\"x\"}",
        "{\"pid\":1,\"mountpoint\":\"/mnt/elsewhere\",\"source\":\"s\",\"socket\":\"x\"}",
        "{\"pid\":1,\"mountpoint_hex\":\"zz\",\"source\":\"s\",\"socket\":\"x\"}",
    };
    struct dctf_runtime runtime, read;

    (void)state;
    require_dir();
    runtime = sample("/mnt/j");
    for (size_t i = 0; i < sizeof(junk) / sizeof(junk[0]); i++) {
        overwrite(runtime.socket, junk[i]);
        assert_int_equal(dctf_runtime_read("/mnt/j", &read), DCTF_ERR_NOT_MOUNTED);
        assert_null(read.mountpoint);
    }
    dctf_runtime_remove(&runtime);
    dctf_runtime_fini(&runtime);
}

static void test_socket_path_fits_and_differs(void **state)
{
    char longest[4096];
    char *a, *b;

    (void)state;
    require_dir();
    memset(longest, 'y', sizeof(longest) - 1);
    longest[0] = '/';
    longest[sizeof(longest) - 1] = '\0';
    assert_int_equal(dctf_runtime_socket_path(longest, 0, &a), DCTF_OK);
    assert_true(strlen(a) < 108);
    free(a);
    assert_int_equal(dctf_runtime_socket_path("/a/m", 0, &a), DCTF_OK);
    assert_int_equal(dctf_runtime_socket_path("/b/m", 0, &b), DCTF_OK);
    assert_string_not_equal(a, b);
    free(a);
    free(b);
    assert_int_equal(dctf_runtime_socket_path("/", 0, &a), DCTF_OK);
    free(a);
}

static void test_lock_excludes_until_unlocked(void **state)
{
    int first, second, other;

    (void)state;
    require_dir();
    assert_int_equal(dctf_runtime_lock("/mnt/l", &first), DCTF_OK);
    assert_true(first >= 0);
    assert_int_equal(dctf_runtime_lock("/mnt/l", &second), DCTF_ERR_MOUNTPOINT_IN_USE);
    assert_int_equal(second, -1);
    assert_int_equal(dctf_runtime_lock("/mnt/other", &other), DCTF_OK);
    dctf_runtime_unlock("/mnt/other", other);
    dctf_runtime_unlock("/mnt/l", first);
    assert_int_equal(dctf_runtime_lock("/mnt/l", &second), DCTF_OK);
    dctf_runtime_unlock("/mnt/l", second);
    dctf_runtime_unlock("/mnt/l", -1);
}

/* Run in a child that is no longer root. */
static int as_nobody(int (*check)(void))
{
    int status = -1;
    pid_t child = fork();

    if (child == 0) {
        if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0))
            _exit(99);
        _exit(check());
    }
    waitpid(child, &status, 0);
    return status;
}

static int foreign_dir_is_refused(void)
{
    char *path;

    unsetenv("XDG_RUNTIME_DIR");
    return dctf_runtime_socket_path("/mnt/u", 1, &path) == DCTF_ERR_PERMISSION && !path ? 0 : 1;
}

static int own_dir_then_roots(void)
{
    struct dctf_runtime read;
    char *path;
    int bad = 0;

    unsetenv("XDG_RUNTIME_DIR");
    if (dctf_runtime_socket_path("/mnt/u", 1, &path) != DCTF_OK)
        return 1;
    bad |= strncmp(path, "/tmp/dctf-65534/", 16) != 0;
    free(path);
    bad |= dctf_runtime_read("/mnt/root", &read) != DCTF_OK || read.pid != 4711;
    dctf_runtime_fini(&read);
    return bad;
}

static int xdg_too_long_is_refused(void)
{
    char xdg[120];
    char *path;

    memset(xdg, 'x', sizeof(xdg) - 1);
    xdg[0] = '/';
    xdg[sizeof(xdg) - 1] = '\0';
    setenv("XDG_RUNTIME_DIR", xdg, 1);
    return dctf_runtime_socket_path("/mnt/u", 0, &path) == DCTF_ERR_NAME_TOO_LONG && !path ? 0 : 1;
}

static void test_other_users(void **state)
{
    struct dctf_runtime runtime;

    (void)state;
    require_dir();
    if (geteuid() != 0) {
        print_message("needs root\n");
        skip();
    }
    assert_int_equal(as_nobody(xdg_too_long_is_refused), 0);
    assert_int_equal(mount("tmp", "/tmp", "tmpfs", 0, "mode=1777"), 0);
    assert_int_equal(mkdir("/tmp/dctf-65534", 0777), 0);
    assert_int_equal(as_nobody(foreign_dir_is_refused), 0);
    assert_int_equal(rmdir("/tmp/dctf-65534"), 0);
    runtime = sample("/mnt/root");
    assert_int_equal(dctf_runtime_write(&runtime), DCTF_OK);
    assert_int_equal(as_nobody(own_dir_then_roots), 0);
    dctf_runtime_remove(&runtime);
    dctf_runtime_fini(&runtime);
    assert_int_equal(umount2("/tmp", MNT_DETACH), 0);
}

static bool make_private_dir(void)
{
    static char dir[] = "/tmp/dctf-xdg-XXXXXX";

    if (geteuid() == 0)
        return unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
               mount("run", "/run", "tmpfs", 0, "mode=755") == 0;
    return mkdtemp(dir) && setenv("XDG_RUNTIME_DIR", dir, 1) == 0;
}

static void test_options_without_secrets(void **state)
{
    struct dctf_config config, again;
    char *text;

    (void)state;
    assert_int_equal(dctf_config_init(&config), DCTF_OK);
    assert_null(dctf_runtime_options(&config));
    assert_int_equal(
        dctf_config_load_options(&config,
            "endpoint=http://[::1]:9,path_style=off,ca_file=/a\\,b#,s3_client=libs3,anonymous", NULL),
        DCTF_OK);
    assert_int_equal(dctf_config_set(&config, "secret_access_key", "hush", "test", NULL), DCTF_OK);
    assert_int_equal(dctf_config_set(&config, "session_token", "hush", "test", NULL), DCTF_OK);
    text = dctf_runtime_options(&config);
    assert_non_null(text);
    assert_null(strstr(text, "hush"));
    /* What was written is what `-o` takes. */
    assert_int_equal(dctf_config_init(&again), DCTF_OK);
    assert_int_equal(dctf_config_load_options(&again, text, NULL), DCTF_OK);
    assert_string_equal(again.endpoint, "http://[::1]:9");
    assert_string_equal(again.ca_file, "/a,b#");
    assert_int_equal(again.path_style, config.path_style);
    assert_int_equal(again.s3_client, config.s3_client);
    assert_true(again.anonymous);
    assert_false(dctf_config_is_set(&again, DCTF_OPTION_INDEX_region));
    free(text);
    dctf_config_fini(&again);
    dctf_config_fini(&config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_write_read_remove),
        cmocka_unit_test(test_options_without_secrets),
        cmocka_unit_test(test_remove_spares_a_later_daemon),
        cmocka_unit_test(test_read_junk),
        cmocka_unit_test(test_socket_path_fits_and_differs),
        cmocka_unit_test(test_lock_excludes_until_unlocked),
        cmocka_unit_test(test_other_users),
    };

    have_dir = make_private_dir();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
