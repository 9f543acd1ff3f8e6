/* SPDX-License-Identifier: Apache-2.0
 *
 * Levelled log lines: `2026-01-31T12:00:00.123Z WARN cache key=value …`.
 *
 * Threads:   any thread. A line is one write(2); errno is preserved. The sink
 *            is the only mutable file-scope state of the project.
 * Ownership: nothing is kept; formats are printf's, without a trailing newline.
 *
 * On WARN and above give `err=CODE` where there is one. Values that may hold
 * control characters or spaces (keys, paths) go through dctf_str_quote().
 */
#ifndef DCTF_BASE_LOG_H
#define DCTF_BASE_LOG_H

#include "base/err.h"

enum dctf_log_level {
    DCTF_LOG_ERROR,
    DCTF_LOG_WARN,
    DCTF_LOG_INFO,
    DCTF_LOG_DEBUG,
};

struct dctf_log_config {
    enum dctf_log_level level;
    const char *file; /* NULL or "-": stderr; "syslog": syslog(3); else appended to */
};

/* Point the sink elsewhere. On failure the old sink stays. */
DCTF_MUST_CHECK
enum dctf_err dctf_log_setup(const struct dctf_log_config *config);
/* Reopen the file (log rotation). */
void dctf_log_reopen(void);
void dctf_log_set_level(enum dctf_log_level level);
enum dctf_log_level dctf_log_level(void);
/* "error", "warn", "info", "debug"; DCTF_ERR_OPTION_VALUE for another word. */
DCTF_MUST_CHECK
enum dctf_err dctf_log_level_parse(const char *word, enum dctf_log_level *out);

/* State of one call site: lines past `DCTF_LOG_BURST` within one second are
 * dropped and their number is told with the next line that passes. */
#define DCTF_LOG_BURST 20
struct dctf_log_site {
    unsigned long long window_s;
    unsigned passed;
    unsigned dropped;
};

void dctf_log_write(struct dctf_log_site *site, enum dctf_log_level level, const char *component,
    const char *format, ...) DCTF_PRINTF(4, 5);

#define dctf_log(level, component, ...)                                                                      \
    do {                                                                                                     \
        static struct dctf_log_site dctf_log_site_;                                                          \
        if ((level) <= dctf_log_level())                                                                     \
            dctf_log_write(&dctf_log_site_, (level), (component), __VA_ARGS__);                              \
    } while (0)

#endif
