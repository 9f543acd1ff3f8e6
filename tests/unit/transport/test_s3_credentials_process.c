/* SPDX-License-Identifier: Apache-2.0
 *
 * Credentials from processes, which take their time: their answers, who waits for them, and
 * the end.
 */
#include "s3_credentials_chain_fixture.h"

#include <fcntl.h>

/* --- credential_process --- */

static void set_process(struct home *home, const char *command)
{
    char text[1024];

    snprintf(text, sizeof(text), "[default]\ncredential_process = %s\n", command);
    write_file(home, ".aws/config", 0600, text);
}

static void test_get_process(void **state)
{
    struct home *home = *state;

    write_file(home, "answer", 0600,
        "{\"Version\": 1, \"AccessKeyId\": \"ASIAPROC000000000001\", \"SecretAccessKey\": \"secret-p\",\n"
        "\"SessionToken\": \"token-p\", \"Expiration\": \"2099-01-31T12:00:00+01:00\"}");
    set_process(home, "cat \"$HOME/answer\"");
    expect_keys(
        home, NULL, "ASIAPROC000000000001", "secret-p", "token-p", "profile default (credential_process)");
}

static void test_get_process_without_expiry(void **state)
{
    set_process(
        *state, "echo '{\"Version\":1,\"AccessKeyId\":\"AKIA1\",\"SecretAccessKey\":\"the-secret\"}'");
    expect_keys(*state, NULL, "AKIA1", "the-secret", "", "profile default (credential_process)");
}

static void test_get_process_failures(void **state)
{
    static const struct {
        const char *command;
        const char *words;
    } cases[] = {
        {"exit 3", "ended with status 3"},
        {"kill -9 $$", "ended by signal 9"},
        {"echo '{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"s\"}'", "\"Version\": 1"},
        {"echo '{\"Version\":2,\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"s\"}'", "\"Version\": 1"},
        {"echo '{\"Version\":1,\"AccessKeyId\":\"A\"}'", "no AccessKeyId and SecretAccessKey"},
        {"echo '[]'", "no JSON object"},
        {"echo hello", "no JSON object"},
        {"head -c 100000 /dev/zero", "more than 64 KiB"},
        {"echo '{\"Version\":1,\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"s\",\"Expiration\":\"soon\"}'",
            "Expiration soon is no time"},
        {"echo '{\"Version\":1,\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"s\","
         "\"Expiration\":\"2001-01-31T12:00:00Z\"}'",
            "had expired when it came"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        set_process(*state, cases[i].command);
        expect_failure(*state, NULL, DCTF_ERR_CREDENTIALS_FAILED, cases[i].words);
    }
}

static void test_free_ends_process(void **state)
{
    struct home *home = *state;
    struct dctf_s3_credentials *credentials;
    struct dctf_s3_keys *keys;
    char fifo[256];
    int fd;

    /* The process says that it runs, then stays. */
    assert_int_equal(mkfifo(path_in(home, "fifo", fifo), 0600), 0);
    set_process(home, "echo x > \"$HOME/fifo\"; sleep 600");
    credentials = make(home, NULL);
    assert_int_equal(dctf_s3_credentials_get(credentials, 0, &keys), DCTF_ERR_DEADLINE);
    fd = open(fifo, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    dctf_s3_credentials_free(credentials);
    close(fd);
}

/* --- waiting --- */

struct answers {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned count;
    enum dctf_err err;
    struct dctf_s3_keys *keys;
};

static void answered(void *ctx, enum dctf_err err, struct dctf_s3_keys *keys)
{
    struct answers *answers = ctx;

    pthread_mutex_lock(&answers->lock);
    answers->count++;
    answers->err = err;
    dctf_s3_keys_unref(answers->keys);
    answers->keys = keys;
    pthread_cond_broadcast(&answers->changed);
    pthread_mutex_unlock(&answers->lock);
}

static void wait_answers(struct answers *answers, unsigned count)
{
    pthread_mutex_lock(&answers->lock);
    while (answers->count < count)
        pthread_cond_wait(&answers->changed, &answers->lock);
    pthread_mutex_unlock(&answers->lock);
}

static void test_ask_answers_at_once(void **state)
{
    const struct dctf_s3_credentials_config config = {.access_key_id = "AKIA1", .secret_access_key = "s"};
    struct dctf_s3_credentials *credentials = make(*state, &config);
    struct answers answers = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

    dctf_s3_credentials_ask(credentials, 0, answered, &answers);
    assert_int_equal(answers.count, 1);
    assert_int_equal(answers.err, DCTF_OK);
    assert_string_equal(answers.keys->access_key_id, "AKIA1");
    dctf_s3_keys_unref(answers.keys);
    dctf_s3_credentials_free(credentials);
}

/* Many wait for one walk: the process runs once. */
static void test_ask_is_single_flight(void **state)
{
    struct home *home = *state;
    struct answers answers = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    struct dctf_s3_credentials *credentials;
    char fifo[256];
    char count[256];
    struct stat st;
    int fd;

    assert_int_equal(mkfifo(path_in(home, "fifo", fifo), 0600), 0);
    set_process(home, "echo x >> \"$HOME/count\"; cat \"$HOME/fifo\"");
    credentials = make(home, NULL);
    for (unsigned i = 0; i < 100; i++)
        dctf_s3_credentials_ask(credentials, WAIT_MS, answered, &answers);
    fd = open(fifo, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_true(dprintf(fd, "{\"Version\":1,\"AccessKeyId\":\"AKIA1\",\"SecretAccessKey\":\"s\"}") > 0);
    close(fd);
    wait_answers(&answers, 100);
    assert_int_equal(answers.err, DCTF_OK);
    assert_string_equal(answers.keys->access_key_id, "AKIA1");
    assert_int_equal(stat(path_in(home, "count", count), &st), 0);
    assert_int_equal(st.st_size, 2);
    dctf_s3_keys_unref(answers.keys);
    dctf_s3_credentials_free(credentials);
}

/* Each has its own bound, while the walk goes on. */
static void test_ask_has_own_bound(void **state)
{
    struct home *home = *state;
    struct answers patient = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    struct answers hasty = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    struct dctf_s3_credentials *credentials;
    char fifo[256];

    assert_int_equal(mkfifo(path_in(home, "fifo", fifo), 0600), 0);
    set_process(home, "cat \"$HOME/fifo\"");
    credentials = make(home, NULL);
    dctf_s3_credentials_ask(credentials, WAIT_MS, answered, &patient);
    dctf_s3_credentials_ask(credentials, 20, answered, &hasty);
    wait_answers(&hasty, 1);
    assert_int_equal(hasty.err, DCTF_ERR_DEADLINE);
    assert_int_equal(patient.count, 0);
    /* And the end answers who still waits. */
    dctf_s3_credentials_free(credentials);
    assert_int_equal(patient.count, 1);
    assert_int_equal(patient.err, DCTF_ERR_SHUTTING_DOWN);
    assert_null(patient.keys);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_get_process),
        TEST(test_get_process_without_expiry),
        TEST(test_get_process_failures),
        TEST(test_free_ends_process),
        TEST(test_ask_answers_at_once),
        TEST(test_ask_is_single_flight),
        TEST(test_ask_has_own_bound),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
