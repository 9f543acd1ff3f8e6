/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests of the credential chain: a private home, and the environment that a test sets.
 *
 * Threads:   the test's; no other reads the environment while it is changed.
 * Ownership: embedded by the test; home_fini() removes the directory.
 */
#ifndef DCTF_TESTS_S3_CREDENTIALS_FIXTURE_H
#define DCTF_TESTS_S3_CREDENTIALS_FIXTURE_H

#include "transport/s3_credentials.h"

#include "transport/s3_credentials_internal.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
/* cmocka needs the four above first */
#include <cmocka.h>

#define WAIT_MS 60000u
#define ENV_MAX 16

struct home {
    char dir[64];
    char *env[ENV_MAX + 1];
    size_t env_count;
};

/* Set, or set anew. */
static inline void set_env(struct home *home, const char *name, const char *format, ...) DCTF_PRINTF(3, 4);
static inline void set_env(struct home *home, const char *name, const char *format, ...)
{
    char value[1024];
    va_list args;
    size_t i = 0;

    va_start(args, format);
    vsnprintf(value, sizeof(value), format, args);
    va_end(args);
    while (i < home->env_count &&
           (strncmp(home->env[i], name, strlen(name)) != 0 || home->env[i][strlen(name)] != '='))
        i++;
    assert_true(i < ENV_MAX);
    if (i == home->env_count)
        home->env_count++;
    free(home->env[i]);
    assert_true(asprintf(&home->env[i], "%s=%s", name, value) > 0);
}

static inline const char *path_in(const struct home *home, const char *name, char out[256])
{
    snprintf(out, 256, "%s/%s", home->dir, name);
    return out;
}

static inline void write_file(const struct home *home, const char *name, mode_t mode, const char *text)
{
    char path[256];
    FILE *file = fopen(path_in(home, name, path), "w");

    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, mode), 0);
}

static inline void home_init(struct home *home)
{
    char aws[256];

    memset(home, 0, sizeof(*home));
    snprintf(home->dir, sizeof(home->dir), "/tmp/dctf-creds-XXXXXX");
    assert_non_null(mkdtemp(home->dir));
    assert_int_equal(mkdir(path_in(home, ".aws", aws), 0700), 0);
    set_env(home, "HOME", "%s", home->dir);
    set_env(home, "AWS_EC2_METADATA_DISABLED", "true");
}

static inline void home_fini(struct home *home)
{
    char command[128];

    snprintf(command, sizeof(command), "rm -rf '%s'", home->dir);
    assert_int_equal(system(command), 0);
    for (size_t i = 0; i < home->env_count; i++)
        free(home->env[i]);
}

#endif
