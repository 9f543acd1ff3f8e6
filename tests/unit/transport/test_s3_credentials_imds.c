/* SPDX-License-Identifier: Apache-2.0
 *
 * Credentials and the region of IMDS: what it is sent, and what is made of every answer.
 */
#include "s3_credentials_service_fixture.h"

#include <netinet/in.h>
#include <sys/socket.h>

static void test_imds_v2(void **state)
{
    struct world *world = *state;

    enable_imds(world);
    /* A proxy is not for link-local services. */
    setenv("http_proxy", "http://127.0.0.1:1", 1);
    expect_keys(world, NULL, "ASIAIMDS000000000001", "IMDS role the-role");
    unsetenv("http_proxy");
    assert_int_equal(count_calls(world), 3);
    expect_call(world, 0, "PUT", "/latest/api/token");
    expect_header(world, 0, "X-aws-ec2-metadata-token-ttl-seconds", "21600");
    expect_call(world, 1, "GET", "/latest/meta-data/iam/security-credentials/");
    expect_header(world, 1, "X-aws-ec2-metadata-token", "imds-session");
    expect_call(world, 2, "GET", "/latest/meta-data/iam/security-credentials/the-role");
    expect_header(world, 2, "X-aws-ec2-metadata-token", "imds-session");
}

static void test_imds_failures(void **state)
{
    static const char roles[] = "/latest/meta-data/iam/security-credentials/";
    static const char role[] = "/latest/meta-data/iam/security-credentials/the-role";
    static const struct {
        const char *target;
        int status;
        enum dctf_err err;
        const char *body;
        const char *words;
    } cases[] = {
        {"/latest/api/token", 403, DCTF_ERR_CREDENTIALS_NONE, "", "IMDS: token: it answered 403"},
        {"/latest/api/token", 500, DCTF_ERR_CREDENTIALS_FAILED, "", "IMDS: token: it answered 500"},
        {"/latest/api/token", 200, DCTF_ERR_CREDENTIALS_FAILED, "", "IMDS: token: it answered 200"},
        {roles, 404, DCTF_ERR_CREDENTIALS_NONE, "", "IMDS: role of the instance: there is none"},
        {roles, 200, DCTF_ERR_CREDENTIALS_NONE, "", "IMDS: role of the instance: there is none"},
        {roles, 200, DCTF_ERR_CREDENTIALS_FAILED, "../../x", "the answer is no name"},
        {roles, 401, DCTF_ERR_CREDENTIALS_FAILED, "", "role of the instance: it answered 401"},
        {role, 500, DCTF_ERR_CREDENTIALS_FAILED, "", "keys of the role: it answered 500"},
        {role, 200, DCTF_ERR_CREDENTIALS_FAILED,
            "{\"Code\":\"AssumeRoleUnauthorizedAccess\",\"Message\":\"no trust\"}",
            "it answered Code AssumeRoleUnauthorizedAccess: no trust"},
    };
    struct world *world = *state;

    enable_imds(world);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        forget_calls(world);
        set_reply(world, cases[i].target, cases[i].status, cases[i].body);
        expect_failure(world, NULL, 0, cases[i].err, cases[i].words);
    }
}

static void test_imds_hop_limit(void **state)
{
    struct world *world = *state;

    enable_imds(world);
    set_hang(world, "/latest/api/token");
    expect_failure(world, NULL, 50, DCTF_ERR_CREDENTIALS_FAILED, "hop limit must be 2 or more");
}

static void test_imds_not_there(void **state)
{
    struct world *world = *state;

    set_env(&world->home, "AWS_EC2_METADATA_DISABLED", "false");
    set_env(&world->home, "AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1");
    expect_failure(world, NULL, 0, DCTF_ERR_CREDENTIALS_NONE, "IMDS: no answer within 1 s");
    set_env(&world->home, "AWS_EC2_METADATA_SERVICE_ENDPOINT", "elsewhere");
    expect_failure(world, NULL, 0, DCTF_ERR_CREDENTIALS_FAILED, "is no http:// address");
}

/* As off EC2: nobody takes the connection. A listener whose queue is full drops what comes. */
static void test_imds_does_not_connect(void **state)
{
    struct world *world = *state;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(address);
    int fds[5];

    fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fds[0], (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(fds[0], 0), 0);
    assert_int_equal(getsockname(fds[0], (struct sockaddr *)&address, &len), 0);
    for (unsigned i = 1; i < 5; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        (void)connect(fds[i], (struct sockaddr *)&address, sizeof(address));
    }
    set_env(&world->home, "AWS_EC2_METADATA_DISABLED", "false");
    set_env(
        &world->home, "AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:%u", ntohs(address.sin_port));
    expect_failure(world, NULL, 0, DCTF_ERR_CREDENTIALS_NONE, "IMDS: no answer within 1 s");
    for (unsigned i = 0; i < 5; i++)
        close(fds[i]);
}

static void test_region_of_imds(void **state)
{
    struct world *world = *state;
    struct dctf_s3_credentials *credentials;
    char region[64];

    enable_imds(world);
    credentials = make(world, 0, NULL);
    dctf_s3_credentials_region(credentials, true, WAIT_MS, region);
    assert_string_equal(region, "eu-west-1");
    set_env(&world->home, "AWS_REGION", "%s", "");
    dctf_s3_credentials_region(credentials, false, WAIT_MS, region);
    assert_string_equal(region, "");
    dctf_s3_credentials_region(credentials, true, WAIT_MS, region);
    assert_string_equal(region, "ap-south-1");
    expect_call(world, 1, "GET", "/latest/meta-data/placement/region");
    set_hang(world, "/latest/meta-data/placement/region");
    dctf_s3_credentials_region(credentials, true, 50, region);
    assert_string_equal(region, "");
    dctf_s3_credentials_free(credentials);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_imds_v2),
        TEST(test_imds_failures),
        TEST(test_imds_hop_limit),
        TEST(test_imds_not_there),
        TEST(test_imds_does_not_connect),
        TEST(test_region_of_imds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
