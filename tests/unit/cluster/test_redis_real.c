/* SPDX-License-Identifier: Apache-2.0
 *
 * TLS and users, with a real redis-server.
 */
#include "cluster/redis.h"
#include "lib/redis_server.h"

#include <netdb.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define CALL_MS 5000u

static char dir[] = "/tmp/dctf-test-tls-XXXXXX";

static void run(const char *format, const char *a, const char *b)
{
    char command[1024];

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(command, sizeof(command), format, dir, a, b);
#pragma GCC diagnostic pop
    if (system(command)) /* NOLINT(cert-env33-c) */
        fail_msg("%s", command);
}

static void make_certificates(void)
{
    run("cd %s && openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 1 "
        "-subj /CN=%s >/dev/null 2>&1%s",
        "authority", "");
    run("cd %s && openssl req -x509 -newkey rsa:2048 -nodes -keyout other.key -out other.pem -days 1 "
        "-subj /CN=%s >/dev/null 2>&1%s",
        "other", "");
    run("cd %s && openssl req -newkey rsa:2048 -nodes -keyout server.key -out server.csr -subj /CN=%s "
        ">/dev/null 2>&1 && printf 'subjectAltName=%s' >server.ext && openssl x509 -req -in server.csr "
        "-CA ca.pem -CAkey ca.key -CAcreateserial -extfile server.ext -out server.pem -days 1 >/dev/null "
        "2>&1",
        "server", "DNS:localhost,DNS:redis.example");
}

static enum dctf_err ping(
    const char *url, const char *user, const char *password, const char *ca_file, const char *key)
{
    struct dctf_redis_config config = {.url = url,
        .user = user,
        .password = password,
        .ca_file = ca_file,
        .connect_ms = CALL_MS,
        .call_ms = CALL_MS};
    const char *words[] = {"GET", key};
    struct dctf_redis_value *value = NULL;
    struct dctf_redis *redis;
    char detail[256];
    enum dctf_err err;

    assert_int_equal(dctf_redis_new(&config, detail, &redis), DCTF_OK);
    err = dctf_redis_call(redis, 2, words, NULL, &value);
    if (!err)
        assert_int_equal(value->type, DCTF_REDIS_NIL);
    dctf_redis_value_free(value);
    dctf_redis_free(redis);
    return err;
}

/* debootstrap makes no /etc/hosts. */
static bool is_localhost_known(void)
{
    struct addrinfo *found;

    if (getaddrinfo("localhost", NULL, NULL, &found))
        return false;
    freeaddrinfo(found);
    return true;
}

static void test_tls(void **state)
{
    char cert[64], key[64], ca[64], other[64], url[64];
    const char *options[] = {"--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", ca,
        "--tls-auth-clients", "no", NULL};
    struct redis_server *server;

    (void)state;
    if (!is_localhost_known()) {
        print_message("skipped: the name localhost has no address here\n");
        skip();
    }
    snprintf(cert, sizeof(cert), "%s/server.pem", dir);
    snprintf(key, sizeof(key), "%s/server.key", dir);
    snprintf(ca, sizeof(ca), "%s/ca.pem", dir);
    snprintf(other, sizeof(other), "%s/other.pem", dir);
    server = redis_server_start(options, true);
    snprintf(url, sizeof(url), "rediss://localhost:%u", redis_server_port(server));
    assert_int_equal(ping(url, "", "", ca, "key"), DCTF_OK);
    assert_int_equal(ping(url, "", "", other, "key"), DCTF_ERR_COORDINATOR_GONE); /* not signed by it */
    assert_int_equal(ping(url, "", "", "", "key"), DCTF_ERR_COORDINATOR_GONE);    /* nor by the system's */
    snprintf(url, sizeof(url), "rediss://127.0.0.1:%u", redis_server_port(server));
    assert_int_equal(ping(url, "", "", ca, "key"), DCTF_ERR_COORDINATOR_GONE); /* for another name */
    redis_server_stop(server);
}

static void test_users(void **state)
{
    static const char *const options[] = {
        "--requirepass", "tiger-lily", "--user", "ann", "on", ">moon-flower", "~{dctf:*", "+@all", NULL};
    struct redis_server *server = redis_server_start(options, false);
    char url[64];

    (void)state;
    snprintf(url, sizeof(url), "redis://127.0.0.1:%u", redis_server_port(server));
    assert_int_equal(ping(url, "", "", "", "key"), DCTF_ERR_COORDINATOR_REFUSED);
    assert_int_equal(ping(url, "", "moon-flower", "", "key"), DCTF_ERR_COORDINATOR_REFUSED);
    assert_int_equal(ping(url, "", "tiger-lily", "", "key"), DCTF_OK);
    assert_int_equal(ping(url, "ann", "tiger-lily", "", "key"), DCTF_ERR_COORDINATOR_REFUSED);
    assert_int_equal(
        ping(url, "ann", "moon-flower", "", "key"), DCTF_ERR_COORDINATOR_REFUSED); /* not this key */
    assert_int_equal(ping(url, "ann", "moon-flower", "", "{dctf:1:a:b}:head"), DCTF_OK);
    redis_server_stop(server);
}

static int make_dir(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(dir));
    make_certificates();
    return 0;
}

static int drop_dir(void **state)
{
    (void)state;
    run("rm -rf -- %s %s %s", "", "");
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tls),
        cmocka_unit_test(test_users),
    };

    if (!redis_server_is_installed())
        return 0;
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
