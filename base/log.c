/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t sink_lock = PTHREAD_MUTEX_INITIALIZER;
static int sink_fd = STDERR_FILENO; /* guarded by sink_lock */
static int sink_syslog;             /* guarded by sink_lock */
static char *sink_path;             /* guarded by sink_lock; NULL for stderr */
static atomic_int sink_level = DCTF_LOG_INFO;

static const char *const level_names[] = {"ERROR", "WARN", "INFO", "DEBUG"};

enum dctf_err dctf_log_level_parse(const char *word, enum dctf_log_level *out)
{
    for (int i = DCTF_LOG_ERROR; i <= DCTF_LOG_DEBUG; i++) {
        if (!strcasecmp(word, level_names[i])) {
            *out = (enum dctf_log_level)i;
            return DCTF_OK;
        }
    }
    *out = DCTF_LOG_INFO;
    return DCTF_ERR_OPTION_VALUE;
}

void dctf_log_set_level(enum dctf_log_level level)
{
    atomic_store_explicit(&sink_level, (int)level, memory_order_relaxed);
}

enum dctf_log_level dctf_log_level(void)
{
    return (enum dctf_log_level)atomic_load_explicit(&sink_level, memory_order_relaxed);
}

static int open_sink(const char *path)
{
    return open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
}

enum dctf_err dctf_log_setup(const struct dctf_log_config *config)
{
    int to_syslog = config->file && !strcmp(config->file, "syslog");
    int to_file = config->file && !to_syslog && strcmp(config->file, "-") != 0;
    char *path = NULL;
    int fd = STDERR_FILENO;

    if (to_file) {
        path = strdup(config->file);
        if (!path)
            return DCTF_ERR_NO_MEMORY;
        fd = open_sink(path);
        if (fd < 0) {
            free(path);
            return DCTF_ERR_SYSTEM;
        }
    }
    pthread_mutex_lock(&sink_lock);
    if (sink_path)
        close(sink_fd);
    free(sink_path);
    sink_path = path;
    sink_fd = fd;
    sink_syslog = to_syslog;
    pthread_mutex_unlock(&sink_lock);
    dctf_log_set_level(config->level);
    return DCTF_OK;
}

void dctf_log_reopen(void)
{
    pthread_mutex_lock(&sink_lock);
    if (sink_path) {
        int fd = open_sink(sink_path);

        if (fd >= 0) {
            close(sink_fd);
            sink_fd = fd;
        }
    }
    pthread_mutex_unlock(&sink_lock);
}

/* True when the line may pass; *dropped gets the lines lost before it. */
static int site_admits_locked(struct dctf_log_site *site, unsigned long long now_s, unsigned *dropped)
{
    *dropped = 0;
    if (site->window_s != now_s) {
        site->window_s = now_s;
        site->passed = 0;
    }
    if (site->passed >= DCTF_LOG_BURST) {
        site->dropped++;
        return 0;
    }
    site->passed++;
    *dropped = site->dropped;
    site->dropped = 0;
    return 1;
}

void dctf_log_write(
    struct dctf_log_site *site, enum dctf_log_level level, const char *component, const char *format, ...)
{
    static const int priorities[] = {LOG_ERR, LOG_WARNING, LOG_INFO, LOG_DEBUG};
    int saved = errno;
    char line[2048];
    char stamp[32];
    struct timespec ts;
    struct tm tm;
    unsigned dropped;
    va_list args;
    int n;

    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%S", &tm);
    n = snprintf(
        line, sizeof(line), "%s.%03ldZ %s %s ", stamp, ts.tv_nsec / 1000000, level_names[level], component);
    va_start(args, format);
    n += vsnprintf(line + n, sizeof(line) - (size_t)n - 64, format, args);
    va_end(args);
    if (n > (int)sizeof(line) - 65)
        n = (int)sizeof(line) - 65;

    pthread_mutex_lock(&sink_lock);
    if (site_admits_locked(site, (unsigned long long)ts.tv_sec, &dropped)) {
        if (dropped)
            n += snprintf(line + n, sizeof(line) - (size_t)n - 1, " dropped_lines=%u", dropped);
        if (sink_syslog) {
            syslog(priorities[level] | LOG_DAEMON, "%s", line + strlen(stamp) + 6);
        } else {
            line[n++] = '\n';
            if (write(sink_fd, line, (size_t)n) < 0) {
                /* Nowhere left to tell it. */
            }
        }
    }
    pthread_mutex_unlock(&sink_lock);
    errno = saved;
}
