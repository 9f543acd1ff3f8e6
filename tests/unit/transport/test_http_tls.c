/* SPDX-License-Identifier: Apache-2.0
 *
 * TLS of the HTTP client: whom it trusts, and which failures are whose. The server is
 * `openssl s_server` where a handshake gets anywhere.
 */
#include "http_fixture.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

static char dir[] = "/tmp/dctf-http-tls-XXXXXX";
static char cert[64];
static char key[64];
static char other_cert[64]; /* of another name, same key */

struct tls_server {
    pid_t pid;
    int port;
};

static pid_t spawn(const char *const *argv, int out)
{
    posix_spawn_file_actions_t actions;
    pid_t pid;

    assert_int_equal(posix_spawn_file_actions_init(&actions), 0);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    if (out >= 0)
        posix_spawn_file_actions_adddup2(&actions, out, 1);
    else
        posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    assert_int_equal(posix_spawnp(&pid, argv[0], &actions, NULL, (char *const *)argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    return pid;
}

static void make_cert(const char *out, const char *name)
{
    char san[64];
    const char *const argv[] = {"openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
        "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", out, "-subj", "/CN=test", "-addext",
        san, "-days", "2", NULL};
    int status;
    pid_t pid;

    snprintf(san, sizeof(san), "subjectAltName=%s", name);
    pid = spawn(argv, -1);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* It answers so many connections, each with 200 and a page about the session. With `clients`, only clients
 * that this authority vouches for. */
static void tls_init_for(
    struct tls_server *tls, const char *of, const char *version, const char *connections, const char *clients)
{
    const char *const argv[] = {"openssl", "s_server", "-accept", "127.0.0.1:0", "-cert", of, "-key", key,
        "-www", "-naccept", connections, "-cipher", "ALL:@SECLEVEL=0", version, clients ? "-Verify" : NULL,
        "1", "-verify_return_error", "-CAfile", clients, NULL};
    char out[1024];
    size_t len = 0;
    int pipe_fds[2];
    char *at;

    assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
    tls->pid = spawn(argv, pipe_fds[1]);
    close(pipe_fds[1]);
    do {
        ssize_t got;

        assert_true(len + 1 < sizeof(out));
        assert_true(readable(pipe_fds[0], FOREVER_MS));
        got = read(pipe_fds[0], out + len, sizeof(out) - 1 - len);
        assert_true(got > 0);
        len += (size_t)got;
        out[len] = '\0';
        at = strstr(out, "ACCEPT 127.0.0.1:");
    } while (!at || !strchr(at, '\n'));
    tls->port = atoi(at + strlen("ACCEPT 127.0.0.1:"));
    close(pipe_fds[0]);
}

static void tls_init(struct tls_server *tls, const char *of, const char *version, const char *connections)
{
    tls_init_for(tls, of, version, connections, NULL);
}

static void tls_fini(struct tls_server *tls)
{
    int status;

    kill(tls->pid, SIGKILL);
    assert_int_equal(waitpid(tls->pid, &status, 0), tls->pid);
}

static int make_dir(void **state)
{
    (void)state;
    /* A server that ended, which it may, must not end the test by its pipe. */
    signal(SIGPIPE, SIG_IGN);
    assert_non_null(mkdtemp(dir));
    snprintf(cert, sizeof(cert), "%s/cert.pem", dir);
    snprintf(key, sizeof(key), "%s/other.key", dir);
    snprintf(other_cert, sizeof(other_cert), "%s/other.pem", dir);
    make_cert(other_cert, "DNS:other.test");
    snprintf(key, sizeof(key), "%s/key.pem", dir);
    make_cert(cert, "IP:127.0.0.1");
    return 0;
}

static int remove_dir(void **state)
{
    char other_key[64];

    (void)state;
    snprintf(other_key, sizeof(other_key), "%s/other.key", dir);
    unlink(cert);
    unlink(key);
    unlink(other_cert);
    unlink(other_key);
    return rmdir(dir);
}

/* How a GET from there ends for a client that trusts `ca_file`, and shows a certificate or not. */
static enum dctf_err get_as(
    int port, const char *ca_file, const char *cert_file, const char *key_file, struct fetch *fetch)
{
    struct dctf_http_config config = {
        .loops = 1, .no_proxy = true, .ca_file = ca_file, .cert_file = cert_file, .key_file = key_file};
    struct dctf_http *http;
    char url[64];
    enum dctf_err err;

    assert_int_equal(dctf_http_new(&config, &http), DCTF_OK);
    snprintf(url, sizeof(url), "https://127.0.0.1:%d/", port);
    fetch_init_url(fetch, url);
    fetch->request.total_ms = FOREVER_MS;
    fetch_start(fetch, http);
    err = fetch_wait(fetch);
    dctf_http_free(http);
    return err;
}

static enum dctf_err get(int port, const char *ca_file, struct fetch *fetch)
{
    return get_as(port, ca_file, NULL, NULL, fetch);
}

static void test_trust_named_authority(void **state)
{
    struct tls_server tls;
    struct fetch fetch;

    (void)state;
    tls_init(&tls, cert, "-tls1_2", "1");
    assert_int_equal(get(tls.port, cert, &fetch), DCTF_OK);
    assert_int_equal(fetch.status, 200);
    assert_non_null(strstr(fetch.body, "TLSv1.2"));
    fetch_fini(&fetch);
    tls_fini(&tls);
}

static void test_show_certificate(void **state)
{
    static const char *const versions[] = {"-tls1_2", "-tls1_3"};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct tls_server tls;
        struct fetch fetch;

        tls_init_for(&tls, cert, versions[i], "1", cert);
        assert_int_equal(get_as(tls.port, cert, cert, key, &fetch), DCTF_OK);
        assert_int_equal(fetch.status, 200);
        fetch_fini(&fetch);
        tls_fini(&tls);
    }
}

/* None, one of another authority, and one that cannot be read. In TLS 1.3 the client learns of a refusal only
 * when it reads the answer, and may find the connection reset before the alert: the server had not read the
 * request. */
static void test_certificate_is_refused(void **state)
{
    static const char *const versions[] = {"-tls1_2", "-tls1_3"};
    char other_key[sizeof(key)];

    (void)state;
    snprintf(other_key, sizeof(other_key), "%s/other.key", dir);
    for (size_t i = 0; i < 6; i++) {
        const char *shown = i / 2 == 0 ? NULL : i / 2 == 1 ? other_cert : "/nowhere/cert.pem";
        struct tls_server tls;
        struct fetch fetch;
        enum dctf_err err;

        tls_init_for(&tls, cert, versions[i % 2], "1", cert);
        err = get_as(tls.port, cert, shown, other_key, &fetch);
        if (i % 2 == 0 || err != DCTF_ERR_ORIGIN_IO)
            assert_int_equal(err, DCTF_ERR_ORIGIN_TLS);
        assert_int_equal(fetch.status, 0);
        fetch_fini(&fetch);
        tls_fini(&tls);
    }
}

static void expect_tls_error(const char *of, const char *version, const char *ca_file)
{
    struct tls_server tls;
    struct fetch fetch;

    tls_init(&tls, of, version, "1");
    assert_int_equal(get(tls.port, ca_file, &fetch), DCTF_ERR_ORIGIN_TLS);
    assert_int_equal(fetch.status, 0);
    assert_string_not_equal(fetch.text, "");
    fetch_fini(&fetch);
    tls_fini(&tls);
}

static void test_refuse_self_signed(void **state)
{
    (void)state;
    expect_tls_error(cert, "-tls1_2", NULL);
}

static void test_refuse_other_authority(void **state)
{
    (void)state;
    expect_tls_error(cert, "-tls1_2", other_cert);
}

static void test_refuse_other_name(void **state)
{
    char keep[sizeof(key)];

    (void)state;
    memcpy(keep, key, sizeof(key));
    snprintf(key, sizeof(key), "%s/other.key", dir);
    expect_tls_error(other_cert, "-tls1_2", other_cert);
    memcpy(key, keep, sizeof(key));
}

static void test_refuse_old_protocol(void **state)
{
    (void)state;
    expect_tls_error(cert, "-tls1_1", cert);
}

static void test_refuse_missing_authority(void **state)
{
    (void)state;
    expect_tls_error(cert, "-tls1_2", "/nowhere/ca.pem");
}

/* A server that speaks plain HTTP is no matter of trust, but it will not pass either. */
static void test_plain_server(void **state)
{
    struct dctf_http_config config = {.loops = 1, .no_proxy = true};
    struct dctf_http *http;
    struct server server;
    struct fetch fetch;
    char byte;
    int fd;

    (void)state;
    server_init(&server);
    assert_int_equal(dctf_http_new(&config, &http), DCTF_OK);
    fetch_init(&fetch, &server, "/");
    memmove(fetch.url + 5, fetch.url + 4, strlen(fetch.url + 4) + 1);
    fetch.url[4] = 's';
    fetch_start(&fetch, http);
    fd = server_accept(&server);
    server_read(fd, &byte, 1);
    server_send(fd, "HTTP/1.1 400 Bad Request\r\n\r\n");
    assert_int_equal(fetch_wait(&fetch), DCTF_ERR_ORIGIN_TLS);
    close(fd);
    fetch_fini(&fetch);
    dctf_http_free(http);
    server_fini(&server);
}

/* A handshake that is broken off or takes too long is a matter of reaching the server. */
static void test_broken_handshake(void **state)
{
    struct dctf_http_config config = {.loops = 1, .no_proxy = true, .connect_timeout_ms = 500};

    (void)state;
    for (int way = 0; way < 3; way++) {
        struct dctf_http *http;
        struct server server;
        struct fetch fetch;
        char hello[5];
        int fd;

        config.connect_timeout_ms = way == 2 ? 100 : FOREVER_MS;
        server_init(&server);
        assert_int_equal(dctf_http_new(&config, &http), DCTF_OK);
        fetch_init(&fetch, &server, "/");
        memmove(fetch.url + 5, fetch.url + 4, strlen(fetch.url + 4) + 1);
        fetch.url[4] = 's';
        fetch.request.silence_ms = 1; /* counts from the request on, which is never sent */
        fetch_start(&fetch, http);
        fd = server_accept(&server);
        server_read(fd, hello, sizeof(hello));
        if (way == 0)
            server_reset(fd);
        else if (way == 1)
            shutdown(fd, SHUT_WR);
        assert_int_equal(fetch_wait(&fetch), DCTF_ERR_ORIGIN_UNREACHABLE);
        if (way > 0)
            close(fd);
        fetch_fini(&fetch);
        dctf_http_free(http);
        server_fini(&server);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trust_named_authority),
        cmocka_unit_test(test_show_certificate),
        cmocka_unit_test(test_certificate_is_refused),
        cmocka_unit_test(test_refuse_self_signed),
        cmocka_unit_test(test_refuse_other_authority),
        cmocka_unit_test(test_refuse_other_name),
        cmocka_unit_test(test_refuse_old_protocol),
        cmocka_unit_test(test_refuse_missing_authority),
        cmocka_unit_test(test_plain_server),
        cmocka_unit_test(test_broken_handshake),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
