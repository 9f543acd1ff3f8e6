/* SPDX-License-Identifier: Apache-2.0
 *
 * From the command line to a mount and back:
 *
 *   main thread    parse, check, go to the background; then new, mount, serve, free
 *   watch thread   signals, and the deadlines of starting and of leaving
 *   probe thread   has the mount looked at from outside and reports readiness
 *
 * The watch thread is the one that never waits for the filesystem, so that a start or an
 * end that hangs ends all the same.
 */
#include "mount-tools/dctffs_main.h"

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "base/str.h"
#include "base/thread.h"
#include "fs/daemon.h"
#include "fs/fs.h"
#include "fs/mountpoint.h"
#include "fs/runtime.h"
#include "mount-tools/dctffs_args.h"
#include "mount-tools/dctffs_probe.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FUSE_CONF "/etc/fuse.conf"
#define MOUNT_FAILED_STATUS 32 /* of a helper of mount(8) */
#define REPORT_MARGIN_MS 2000  /* the daemon's own verdict comes before its parent's */
#define LEAVE_MARGIN_MS 15000  /* beyond unmount_timeout, to close cache and source */
#define START_MARGIN_MS 5000   /* to clean up after a start that hangs */
#define WAKE_SIGNAL SIGUSR1

enum phase {
    STARTING, /* nothing is mounted */
    MOUNTING,
    MOUNTED,
    LEAVING, /* the session is over */
    ENDED,
};

struct run {
    struct dctffs_args args;
    struct dctf_config config;
    const struct dctf_origin_scheme *schemes;
    char *mountpoint;
    int lock_fd; /* until the report */
    struct dctf_daemon daemon;
    struct dctffs_probe probe;
    bool logs_elsewhere; /* than to stderr */
    pthread_t watch;
    sigset_t signals;

    pthread_mutex_t lock;
    enum phase phase;   /* guarded by lock; so are the rest */
    struct dctf_fs *fs; /* while mounted */
    unsigned stops;     /* asked for by signals */
    bool reported;
    bool failed;
};

static int failed_status(const struct dctffs_args *args, enum dctf_err err)
{
    bool is_usage = err / 1000 == 4 && err != DCTF_ERR_SOURCE_BAD;

    return args->is_helper && !is_usage ? MOUNT_FAILED_STATUS : 1;
}

/* The report is made once, by whoever comes first. */
static bool claim_report(struct run *run, bool failed)
{
    bool mine;

    pthread_mutex_lock(&run->lock);
    mine = !run->reported;
    if (mine) {
        run->reported = true;
        run->failed = failed;
    }
    pthread_mutex_unlock(&run->lock);
    if (mine) {
        dctf_runtime_unlock(run->mountpoint, run->lock_fd);
        run->lock_fd = -1;
    }
    return mine;
}

static void fail(struct run *run, enum dctf_err err, const char *what)
{
    char line[1024];

    if (!claim_report(run, true))
        return;
    dctf_daemon_failed(
        &run->daemon, dctf_daemon_error_line(run->args.program, err, what, line, sizeof(line)));
    if (run->logs_elsewhere)
        dctf_log(DCTF_LOG_ERROR, "main", "op=start what=\"%s\" err=%d", what, err);
}

static enum phase phase_of(struct run *run)
{
    enum phase phase;

    pthread_mutex_lock(&run->lock);
    phase = run->phase;
    pthread_mutex_unlock(&run->lock);
    return phase;
}

static void enter(struct run *run, enum phase phase, struct dctf_fs *fs)
{
    pthread_mutex_lock(&run->lock);
    run->phase = phase;
    run->fs = fs;
    for (unsigned i = 0; fs && i < run->stops; i++)
        dctf_fs_stop(fs); /* asked for while there was nothing to stop */
    pthread_mutex_unlock(&run->lock);
}

static bool is_stopping(struct run *run)
{
    bool stopping;

    pthread_mutex_lock(&run->lock);
    stopping = run->stops > 0;
    pthread_mutex_unlock(&run->lock);
    return stopping;
}

/* Leave without the main thread, which does not come back. */
static _Noreturn void give_up(struct run *run)
{
    enum phase phase = phase_of(run);

    if (phase == MOUNTING || phase == MOUNTED) {
        enum dctf_err err = dctf_mount_unmount(run->mountpoint, true);

        if (err && err != DCTF_ERR_NOT_MOUNTED)
            dctf_log(DCTF_LOG_ERROR, "main", "op=detach err=%d", err);
    }
    _exit(run->daemon.failed_status);
}

/* The first asks for a clean end, the second for a quick one. */
static void stop(struct run *run)
{
    bool hopeless;

    pthread_mutex_lock(&run->lock);
    run->stops++;
    hopeless = !run->fs && run->phase < MOUNTED && run->stops > 1;
    if (run->fs)
        dctf_fs_stop(run->fs);
    pthread_mutex_unlock(&run->lock);
    if (hopeless)
        give_up(run);
}

static uint64_t deadline_in(uint64_t ms)
{
    uint64_t now = dctf_clock_mono_ms(NULL);

    return ms > UINT64_MAX - now ? UINT64_MAX : now + ms;
}

static int wait_for_signal(const sigset_t *signals, uint64_t deadline)
{
    uint64_t now = dctf_clock_mono_ms(NULL);
    uint64_t left = deadline > now ? deadline - now : 0;
    struct timespec wait;

    if (left > 3600000)
        left = 3600000;
    wait.tv_sec = (time_t)(left / 1000);
    wait.tv_nsec = (long)(left % 1000) * 1000000;
    return sigtimedwait(signals, NULL, &wait);
}

static void on_start_overdue(struct run *run)
{
    char what[128];

    snprintf(what, sizeof(what), "no answer within mount_timeout (%llu ms)",
        (unsigned long long)run->config.mount_timeout);
    fail(run, DCTF_ERR_MOUNT_TIMEOUT, what);
    stop(run);
    stop(run);
}

static void *watch(void *arg)
{
    struct run *run = arg;
    uint64_t start_by = deadline_in(run->config.mount_timeout);
    uint64_t leave_by = UINT64_MAX;

    for (;;) {
        int signal_number = wait_for_signal(&run->signals, start_by < leave_by ? start_by : leave_by);
        uint64_t now = dctf_clock_mono_ms(NULL);
        bool leaving = phase_of(run) == LEAVING;

        if (phase_of(run) == ENDED)
            return NULL;
        if (signal_number == SIGHUP)
            dctf_log_reopen();
        if (signal_number == SIGTERM || signal_number == SIGINT) {
            dctf_log(DCTF_LOG_INFO, "main", "op=stop signal=%d", signal_number);
            stop(run);
            leaving = true;
        }
        if (now >= start_by) {
            pthread_mutex_lock(&run->lock);
            leaving = !run->reported;
            pthread_mutex_unlock(&run->lock);
            start_by = UINT64_MAX;
            if (leaving) {
                on_start_overdue(run);
                leave_by = deadline_in(START_MARGIN_MS);
            }
        }
        if (leaving && leave_by == UINT64_MAX) {
            uint64_t grace = run->config.unmount_timeout;

            leave_by = deadline_in(grace > UINT64_MAX - LEAVE_MARGIN_MS ? grace : grace + LEAVE_MARGIN_MS);
        }
        if (now >= leave_by) {
            dctf_log(DCTF_LOG_ERROR, "main", "op=leave what=overdue err=%d", DCTF_ERR_DEADLINE);
            give_up(run);
        }
    }
}

static void *probe(void *arg)
{
    struct run *run = arg;
    int errnum = dctffs_probe_ask(&run->probe);
    char quoted[512];

    dctffs_probe_end(&run->probe);
    if (errnum) {
        char what[160];

        snprintf(what, sizeof(what), "the root of the mount does not answer: %s", strerror(errnum));
        fail(run, DCTF_ERR_MOUNT_FAILED, what);
        stop(run);
    } else if (claim_report(run, false)) {
        dctf_log(DCTF_LOG_INFO, "main", "op=mounted mountpoint=%s",
            dctf_str_quote(run->mountpoint, quoted, sizeof(quoted)));
        dctf_daemon_ready(&run->daemon);
    }
    return NULL;
}

static void wake_watch(struct run *run)
{
    pthread_kill(run->watch, WAKE_SIGNAL);
}

/* Mount, answer requests until the end, and clean up. */
static void serve(struct run *run, struct dctf_fs *fs)
{
    char detail[256] = "";
    pthread_t probe_thread;
    bool probing;
    enum dctf_err err;

    enter(run, MOUNTING, NULL);
    err = dctf_fs_mount(fs, detail);
    if (err) {
        enter(run, STARTING, NULL);
        fail(run, err, detail[0] ? detail : dctf_err_text(err));
        dctf_fs_free(fs);
        return;
    }
    enter(run, MOUNTED, fs);
    err = dctf_thread_start("dctf-probe", probe, run, &probe_thread);
    probing = !err;
    if (err) {
        fail(run, err, "no thread to look at the mount");
        stop(run);
    }
    err = dctf_fs_serve(fs);
    enter(run, LEAVING, NULL);
    wake_watch(run);
    if (err)
        dctf_log(DCTF_LOG_ERROR, "main", "op=serve err=%d", err);
    fail(run, err ? err : DCTF_ERR_MOUNT_FAILED, "the mount ended before it answered");
    dctf_fs_free(fs);
    if (probing)
        pthread_join(probe_thread, NULL);
    if (err) {
        pthread_mutex_lock(&run->lock);
        run->failed = true;
        pthread_mutex_unlock(&run->lock);
    }
}

static struct dctf_fs_config fs_config(const struct run *run)
{
    return (struct dctf_fs_config){
        .config = &run->config,
        .source = run->config.source,
        .mountpoint = run->mountpoint,
        .schemes = run->schemes,
    };
}

static void make_fs(struct run *run)
{
    struct dctf_fs_config config = fs_config(run);
    char detail[256] = "";
    struct dctf_fs *fs;
    enum dctf_err err = dctf_fs_new(&config, detail, &fs);

    if (err) {
        fail(run, err, detail[0] ? detail : dctf_err_text(err));
    } else if (is_stopping(run)) {
        fail(run, DCTF_ERR_INTERRUPTED, "told to stop while starting");
        dctf_fs_free(fs);
    } else {
        serve(run, fs);
    }
}

static enum dctf_err set_up_log(struct run *run, char *detail)
{
    static const enum dctf_log_level levels[] = {/* the words of log_level */
        DCTF_LOG_INFO, DCTF_LOG_ERROR, DCTF_LOG_WARN, DCTF_LOG_DEBUG};
    struct dctf_log_config log = {.level = levels[run->config.log_level % 4]};

    if (run->config.log_file[0])
        log.file = run->config.log_file;
    else if (!run->args.foreground)
        log.file = "syslog";
    if (dctf_log_setup(&log) == DCTF_OK) {
        run->logs_elsewhere = log.file && strcmp(log.file, "-") != 0;
        return DCTF_OK;
    }
    snprintf(detail, 256, "log_file: %.150s cannot be opened: %s", run->config.log_file, strerror(errno));
    return DCTF_ERR_OPTION_VALUE;
}

/* In the daemon. Signals are blocked before the first thread, so that all inherit it. */
static void run_daemon(struct run *run)
{
    struct dctf_fs_config config = fs_config(run);
    char detail[256];
    enum dctf_err err = set_up_log(run, detail);

    if (!err) {
        dctf_daemon_prepare_process();
        err = dctf_fs_check_cache(&config, detail);
    }
    if (err) {
        fail(run, err, detail[0] ? detail : dctf_err_text(err));
        return;
    }
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&run->signals);
    sigaddset(&run->signals, SIGTERM);
    sigaddset(&run->signals, SIGINT);
    sigaddset(&run->signals, SIGHUP);
    sigaddset(&run->signals, WAKE_SIGNAL);
    pthread_sigmask(SIG_BLOCK, &run->signals, NULL);
    err = dctffs_probe_start(&run->probe, run->mountpoint);
    if (!err)
        err = dctf_thread_start("dctf-watch", watch, run, &run->watch);
    if (err) {
        fail(run, err, "no process to look at the mount, or no thread to wait for signals");
    } else {
        make_fs(run);
        enter(run, ENDED, NULL);
        wake_watch(run);
        pthread_join(run->watch, NULL);
    }
    dctffs_probe_end(&run->probe);
}

static bool user_allow_other(void)
{
    FILE *file = fopen(FUSE_CONF, "re");
    bool found = false;
    char *line = NULL;
    size_t cap = 0;

    if (!file)
        return false;
    while (!found && getline(&line, &cap, file) > 0) {
        const char *word = line + strspn(line, " \t");
        size_t len = strcspn(word, " \t\r\n#");

        found = len == strlen("user_allow_other") && !strncmp(word, "user_allow_other", len);
    }
    free(line);
    fclose(file);
    return found;
}

static bool is_within(const char *path, const char *dir)
{
    size_t len = strlen(dir);

    if (len == 1)
        return true;
    return !strncmp(path, dir, len) && (path[len] == '/' || path[len] == '\0');
}

/* Neither may `inner` lie within `outer` nor, `both_ways`, the other way round: one would be
 * read through the other. Paths that do not resolve are told by whoever opens them. */
static enum dctf_err check_apart(const char *inner_name, const char *inner, const char *outer_name,
    const char *outer, bool both_ways, char *detail)
{
    char *in = NULL, *out = NULL;
    enum dctf_err err = DCTF_OK;

    if (!inner || inner[0] != '/' || !outer || outer[0] != '/')
        return DCTF_OK;
    if (!dctf_mountpoint_resolve(inner, &in) && !dctf_mountpoint_resolve(outer, &out) &&
        (is_within(in, out) || (both_ways && is_within(out, in)))) {
        snprintf(detail, 256, "%s %.90s and %s %.90s lie within each other", inner_name, in, outer_name, out);
        err = DCTF_ERR_PATHS_OVERLAP;
    }
    free(in);
    free(out);
    return err;
}

static enum dctf_err check_places(struct run *run, char *detail)
{
    const char *source = run->config.source;
    const char *directory = strncmp(source, "file://", 7) ? NULL : source + 7;
    enum dctf_err err;

    if (run->config.allow_other && geteuid() != 0 && !user_allow_other()) {
        snprintf(detail, 256, "allow_other: %s has no line user_allow_other", FUSE_CONF);
        return DCTF_ERR_ALLOW_OTHER_FORBIDDEN;
    }
    err = dctf_mountpoint_resolve(run->args.mountpoint, &run->mountpoint);
    if (err) {
        snprintf(detail, 256, "%.200s: %s", run->args.mountpoint, dctf_err_text(err));
        return err;
    }
    err = check_apart("source", directory, "mount point", run->mountpoint, true, detail);
    if (!err)
        err = check_apart("cache_dir", run->config.cache_dir, "mount point", run->mountpoint, false, detail);
    if (!err)
        err = check_apart("cache_dir", run->config.cache_dir, "source", directory, false, detail);
    if (err)
        return err;
    err = dctf_runtime_lock(run->mountpoint, &run->lock_fd);
    if (err == DCTF_ERR_MOUNTPOINT_IN_USE) {
        snprintf(detail, 256, "another dctffs is mounting on %.150s at this moment", run->mountpoint);
        return err;
    }
    if (err)
        dctf_log(DCTF_LOG_WARN, "main", "op=lock_mountpoint err=%d", err);
    return dctf_mountpoint_prepare(run->mountpoint, detail);
}

/* Up to the fork. True when there is a mount to make. */
static bool prepare(struct run *run, int *status)
{
    struct dctf_config_error error = {""};
    enum dctf_err err = dctffs_args_load(&run->args, &run->config, &error);
    char detail[256] = "";

    if (!err && (err = check_places(run, detail)) != DCTF_OK)
        snprintf(error.text, sizeof(error.text), "%s", detail);
    *status = 0;
    if (!err && run->args.fake)
        return false;
    run->daemon.failed_status = failed_status(&run->args, DCTF_ERR_MOUNT_FAILED);
    if (!err && !run->args.foreground) {
        uint64_t timeout = run->config.mount_timeout;

        fflush(NULL);
        err = dctf_daemon_start(
            &run->daemon, timeout > UINT64_MAX - REPORT_MARGIN_MS ? timeout : timeout + REPORT_MARGIN_MS);
        snprintf(error.text, sizeof(error.text), "cannot go to the background: %s", strerror(errno));
    }
    if (!err)
        return true;
    *status = failed_status(&run->args, err);
    fail(run, err, error.text[0] ? error.text : dctf_err_text(err));
    return false;
}

static int run_mount(struct run *run)
{
    enum dctf_err err;
    int status;

    err = dctf_config_init(&run->config);
    if (err) {
        char line[512];

        dctf_daemon_failed(&run->daemon,
            dctf_daemon_error_line(run->args.program, err, dctf_err_text(err), line, sizeof(line)));
        return failed_status(&run->args, err);
    }
    pthread_mutex_init(&run->lock, NULL);
    if (prepare(run, &status)) {
        run_daemon(run);
        status = run->failed ? run->daemon.failed_status : 0;
    }
    dctf_runtime_unlock(run->mountpoint, run->lock_fd);
    pthread_mutex_destroy(&run->lock);
    free(run->mountpoint);
    dctf_config_fini(&run->config);
    return status;
}

int dctffs_main(int argc, char **argv, const struct dctf_origin_scheme *schemes)
{
    struct run run = {
        .schemes = schemes, .lock_fd = -1, .daemon = {.report_fd = -1}, .probe = DCTFFS_PROBE_NONE};
    char detail[256];
    char line[512];
    int status = 0;
    enum dctf_err err = dctffs_args_parse(argc, argv, &run.args, detail);

    run.daemon.program = run.args.program;
    if (err) {
        dctf_daemon_failed(
            &run.daemon, dctf_daemon_error_line(run.args.program, err, detail, line, sizeof(line)));
        status = 1;
    } else if (run.args.help) {
        dctffs_args_help(&run.args);
    } else if (run.args.version) {
        printf("%s %s\n", run.args.program, DCTF_VERSION);
    } else {
        status = run_mount(&run);
    }
    dctffs_args_fini(&run.args);
    return status;
}
