/* SPDX-License-Identifier: Apache-2.0
 *
 * Mutual TLS of the peer server: who has no certificate of the authority does not get in. The client is curl.
 */
#include "peer_server_fixture.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>

extern char **environ;

static char dir[] = "/tmp/dctf-peer-tls-XXXXXX";

/* One of the files below `dir`; valid until the eighth call from now. */
static const char *file(const char *name)
{
    static char paths[8][64];
    static unsigned turn;

    turn = (turn + 1) % 8;
    snprintf(paths[turn], sizeof(paths[turn]), "%s/%s", dir, name);
    return paths[turn];
}

/* Its exit status; what it writes to its standard output is in the file `out`. */
static int run(const char *const *argv, const char *out)
{
    posix_spawn_file_actions_t actions;
    int status;
    pid_t pid;

    assert_int_equal(posix_spawn_file_actions_init(&actions), 0);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(
        &actions, 1, out ? out : "/dev/null", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    assert_int_equal(posix_spawnp(&pid, argv[0], &actions, NULL, (char *const *)argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* NAME.pem and NAME.key; signed by CA, or by itself when that is NULL. */
static void make_cert(const char *name, const char *ca)
{
    char cert[32], key[32], ca_cert[32], ca_key[32];
    const char *argv[24] = {"openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
        "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=test", "-addext",
        "subjectAltName=IP:127.0.0.1"};
    unsigned count = 14;

    snprintf(cert, sizeof(cert), "%s.pem", name);
    snprintf(key, sizeof(key), "%s.key", name);
    argv[count++] = "-out";
    argv[count++] = file(cert);
    argv[count++] = "-keyout";
    argv[count++] = file(key);
    if (ca) {
        snprintf(ca_cert, sizeof(ca_cert), "%s.pem", ca);
        snprintf(ca_key, sizeof(ca_key), "%s.key", ca);
        argv[count++] = "-CA";
        argv[count++] = file(ca_cert);
        argv[count++] = "-CAkey";
        argv[count++] = file(ca_key);
    }
    argv[count] = NULL;
    assert_int_equal(run(argv, NULL), 0);
}

static int make_dir(void **state)
{
    (void)state;
    signal(SIGPIPE, SIG_IGN);
    assert_non_null(mkdtemp(dir));
    make_cert("ca", NULL);
    make_cert("node", "ca");
    make_cert("other-ca", NULL);
    make_cert("stranger", "other-ca");
    return 0;
}

static int remove_dir(void **state)
{
    static const char *const names[] = {"ca.pem", "ca.key", "node.pem", "node.key", "other-ca.pem",
        "other-ca.key", "stranger.pem", "stranger.key", "body", "status", "junk"};

    (void)state;
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        unlink(file(names[i]));
    return rmdir(dir);
}

static struct dctf_peer_server_config tls_config(struct fixture *fixture)
{
    struct dctf_peer_server_config config = config_of(fixture);

    config.cert_file = file("node.pem");
    config.key_file = file("node.key");
    config.ca_file = file("ca.pem");
    return config;
}

/* What curl ends with; 0: *status is that of the answer, and its body in the file "body". */
static int curl(struct fixture *fixture, const struct asking *asking, const char *who, int *status)
{
    char url[1024], cert[32], key[32], text[16] = "";
    const char *argv[64] = {"curl", "--silent", "--max-time", "20", "--cacert", file("ca.pem"), "--output",
        file("body"), "--write-out", "%{http_code}"};
    unsigned count = 10;
    struct dctf_str head;
    char *line, *rest;
    FILE *out;
    int result;

    dctf_str_init(&head);
    write_head(&head, asking);
    line = strtok_r(head.data, "\r\n", &rest);
    snprintf(url, sizeof(url), "https://127.0.0.1:%u%.*s", dctf_peer_server_port(fixture->server),
        (int)strcspn(line + 4, " "), line + 4);
    argv[count++] = url;
    while ((line = strtok_r(NULL, "\r\n", &rest))) {
        argv[count++] = "--header";
        argv[count++] = line;
    }
    if (who) {
        snprintf(cert, sizeof(cert), "%s.pem", who);
        snprintf(key, sizeof(key), "%s.key", who);
        argv[count++] = "--cert";
        argv[count++] = file(cert);
        argv[count++] = "--key";
        argv[count++] = file(key);
    }
    argv[count] = NULL;
    result = run(argv, file("status"));
    dctf_str_fini(&head);
    out = fopen(file("status"), "re");
    assert_non_null(out);
    *status = fgets(text, sizeof(text), out) ? atoi(text) : 0;
    fclose(out);
    return result;
}

static void assert_body(struct fixture *fixture, const struct dctf_peer_ask *of)
{
    size_t len = (size_t)dctf_peer_ask_bytes(of);
    uint8_t *body = malloc(len + 1);
    FILE *in = fopen(file("body"), "re");

    assert_non_null(body);
    assert_non_null(in);
    assert_int_equal(fread(body, 1, len + 1, in), len);
    assert_memory_equal(body, fixture->data + (size_t)of->first * DCTF_BLOCK_BYTES, len);
    fclose(in);
    free(body);
}

static void test_serve_with_certificate(void **state)
{
    static const char *const keys[] = {"file", "now"};
    struct dctf_peer_server_config config;
    struct fixture fixture;
    int status;

    (void)state;
    config = tls_config(&fixture);
    fixture_start(&fixture, &config);
    for (unsigned i = 0; i < 2; i++) {
        struct asking asking = asking_of(DCTF_PEER_BLOCKS, keys[i], 5, 20);

        assert_int_equal(curl(&fixture, &asking, "node", &status), 0);
        assert_int_equal(status, 200);
        assert_body(&fixture, &asking.ask);
        wait_for(&fixture, &fixture.released, i + 1);
    }
    fixture_fini(&fixture);
}

/* With a secret, the certificate is not enough. */
static void test_refuse_certificate_without_proof(void **state)
{
    struct asking asking = asking_of(DCTF_PEER_BLOCKS, "now", 0, 1);
    struct dctf_peer_server_config config;
    struct fixture fixture;
    int status;

    (void)state;
    config = tls_config(&fixture);
    fixture_start(&fixture, &config);
    asking.secret = NULL;
    assert_int_equal(curl(&fixture, &asking, "node", &status), 0);
    assert_int_equal(status, 401);
    assert_int_equal(read_counter(&fixture, &fixture.handled), 0);
    fixture_fini(&fixture);
}

/* Nor is the secret without a certificate; and a certificate of another authority is none. */
static void test_refuse_strangers(void **state)
{
    struct asking asking = asking_of(DCTF_PEER_BLOCKS, "now", 0, 1);
    struct dctf_peer_server_config config;
    struct fixture fixture;
    int status, fd;

    (void)state;
    config = tls_config(&fixture);
    fixture_start(&fixture, &config);
    assert_int_not_equal(curl(&fixture, &asking, NULL, &status), 0);
    assert_int_equal(status, 0);
    assert_int_not_equal(curl(&fixture, &asking, "stranger", &status), 0);
    assert_int_equal(status, 0);
    fd = connect_to(&fixture); /* no TLS at all */
    send_asking(fd, &asking);
    shutdown(fd, SHUT_WR);
    while (!is_closed(fd)) { /* perhaps a TLS alert comes first */
    }
    close(fd);
    assert_int_equal(read_counter(&fixture, &fixture.handled), 0);
    assert_int_equal(curl(&fixture, &asking, "node", &status), 0);
    assert_int_equal(status, 200);
    fixture_fini(&fixture);
}

/* Certificates alone make an address safe that others reach. */
static void test_serve_off_loopback_without_secret(void **state)
{
    struct asking asking = asking_of(DCTF_PEER_PING, "", 0, 0);
    struct dctf_peer_server_config config;
    struct fixture fixture;
    int status;

    (void)state;
    config = tls_config(&fixture);
    config.listen = "0.0.0.0:0";
    config.secret = NULL;
    asking.secret = NULL;
    fixture_start(&fixture, &config);
    assert_int_equal(curl(&fixture, &asking, "node", &status), 0);
    assert_int_equal(status, 200);
    assert_int_not_equal(curl(&fixture, &asking, "stranger", &status), 0);
    fixture_fini(&fixture);
}

static void assert_start_fails(struct dctf_peer_server_config config)
{
    struct dctf_peer_server *server;
    char detail[256];

    assert_int_equal(dctf_peer_server_start(&config, detail, &server), DCTF_ERR_OPTION_VALUE);
    assert_true(*detail);
    assert_null(server);
}

static void test_start_with_bad_files(void **state)
{
    struct dctf_peer_server_config good, config;
    struct fixture fixture;
    FILE *junk = fopen(file("junk"), "we");

    (void)state;
    assert_non_null(junk);
    fputs("no certificate\n", junk);
    fclose(junk);
    fixture_init(&fixture);
    good = tls_config(&fixture);
    config = good;
    config.cert_file = "/nonexistent/cert.pem";
    assert_start_fails(config);
    config = good;
    config.ca_file = NULL;
    assert_start_fails(config);
    config = good;
    config.key_file = file("stranger.key"); /* not that of the certificate */
    assert_start_fails(config);
    config = good;
    config.ca_file = file("junk");
    assert_start_fails(config);
    fixture_fini(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_serve_with_certificate),
        cmocka_unit_test(test_refuse_certificate_without_proof),
        cmocka_unit_test(test_refuse_strangers),
        cmocka_unit_test(test_serve_off_loopback_without_secret),
        cmocka_unit_test(test_start_with_bad_files),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
