/* SPDX-License-Identifier: Apache-2.0
 *
 * A look at the database by a child of its own.
 *
 * RocksDB reports damage as a status nearly everywhere. But it reads the properties of a table before it
 * checks their sum, and where its assertions are on, as Debian builds release 7, some damage there ends the
 * process. A child opens the database first, for reading and with every table: what ends it would have
 * ended the daemon, and can be told instead.
 */
#include "base/log.h"
#include "base/str.h"
#include "cache/kv_private.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define ALL_TABLES (-1) /* of max_open_files: no table is opened later only */

/* Statuses are not looked at: who opens the database after this is told the same ones. */
static _Noreturn void open_and_exit(const struct dctf_kv_config *config, int output)
{
    struct rlimit none = {0};
    struct dctf_kv *kv;
    char *text = NULL;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setrlimit(RLIMIT_CORE, &none);
    if (dup2(output, STDERR_FILENO) < 0 || dctf_kv_make(config, &kv))
        _exit(0);
    rocksdb_options_set_max_open_files(kv->db_options, ALL_TABLES);
    (void)rocksdb_open_for_read_only_column_families(kv->db_options, kv->dir, DCTF_KV_CF_COUNT,
        dctf_kv_cf_names, (const rocksdb_options_t *const *)kv->cf_options, kv->cfs, 0, &text);
    _exit(0);
}

/* Its first line, whole or as much as fits. */
static void read_output(int fd, char *out, size_t size)
{
    char rest[512];
    size_t len = 0;
    ssize_t got;

    do {
        got = len + 1 < size ? read(fd, out + len, size - len - 1) : read(fd, rest, sizeof(rest));
        if (got > 0 && len + 1 < size)
            len += (size_t)got;
    } while (got > 0 || (got < 0 && errno == EINTR));
    out[len] = '\0';
    out[strcspn(out, "\n")] = '\0';
}

/* Somebody else ended it: that tells nothing of the database. */
static bool was_killed(int status)
{
    return WIFSIGNALED(status) && (WTERMSIG(status) == SIGKILL || WTERMSIG(status) == SIGTERM);
}

enum dctf_err dctf_kv_check(const struct dctf_kv_config *config)
{
    char output[DCTF_KV_DETAIL_BYTES - 48], quoted[2 * DCTF_KV_DETAIL_BYTES], path[4096];
    int fds[2], status = 0;
    pid_t child;

    snprintf(path, sizeof(path), "%s/CURRENT", config->dir);
    if (access(path, F_OK) || pipe2(fds, O_CLOEXEC))
        return DCTF_OK;
    child = fork();
    if (child == 0)
        open_and_exit(config, fds[1]);
    close(fds[1]);
    if (child > 0)
        read_output(fds[0], output, sizeof(output));
    close(fds[0]);
    if (child < 0)
        return DCTF_OK;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (!status || was_killed(status))
        return DCTF_OK;
    dctf_log(DCTF_LOG_ERROR, "kv", "err=%d op=check status=%d detail=%s", (int)DCTF_ERR_CACHE_CORRUPT, status,
        dctf_str_quote(output, quoted, sizeof(quoted)));
    if (config->detail)
        snprintf(config->detail, DCTF_KV_DETAIL_BYTES, "RocksDB gives up on a table: %s", output);
    return DCTF_ERR_CACHE_CORRUPT;
}
