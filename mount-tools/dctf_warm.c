/* SPDX-License-Identifier: Apache-2.0 */
#include "mount-tools/dctf_warm.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char help[] =
    "Usage: dctf warm [OPTION]… [PATH]…\n"
    "\n"
    "Fetch into the cache what is missing of every shard at or below PATH (default: the whole\n"
    "mount). Bytes already here are not fetched again, so a run that was stopped is resumed\n"
    "by starting it anew.\n"
    "\n"
    "      --share      in a cluster: only what this node is the home of; run on every node, it brings\n"
    "                   the whole into the cluster, each byte fetched once from the source\n"
    "      --cluster    the same from here: the other homes are asked to fetch their shares\n"
    "      --verify     also check the checksums of what is here; bad blocks are fetched again,\n"
    "                   and their shards named\n"
    "      --jobs N     shards at once (default 4)\n"
    "  -q, --quiet      no progress, no summary\n"
    "      --timeout T  longest wait for one shard (default: a minute, and a second per MiB)\n"
    "  -j, --json       the summary as a JSON object\n"
    "\n"
    "Exit status: 0 done (shards not kept for want of room included), 1 some failed,\n"
    "130 interrupted.\n";

/* Written by the signal handler, read by every wait: a pipe, since a flag alone would be
 * missed between its test and the wait. */
static int stop_pipe[2] = {-1, -1};
static volatile sig_atomic_t stop_signal;

static void on_signal(int number)
{
    int saved = errno;

    stop_signal = number;
    if (write(stop_pipe[1], "x", 1) < 0) {
        /* Full: it is readable already. */
    }
    errno = saved;
}

static int catch_signals(void)
{
    /* A second Ctrl-C ends the tool at once. */
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};

    if (pipe2(stop_pipe, O_CLOEXEC | O_NONBLOCK))
        return -1;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    return 0;
}

struct progress {
    bool tty;
    uint64_t started_ms, printed_ms;
    uint64_t mark_ms, mark_bytes; /* for the rate of late */
    double rate;                  /* bytes per second */
};

static void update_rate(struct progress *progress, const struct dctf_warm_counts *counts, uint64_t now_ms)
{
    double rate;

    if (now_ms < progress->mark_ms + 1000)
        return;
    rate = counts->bytes_done > progress->mark_bytes ? (double)(counts->bytes_done - progress->mark_bytes) *
                                                           1000.0 / (double)(now_ms - progress->mark_ms)
                                                     : 0;
    progress->rate = progress->rate > 0 ? 0.7 * progress->rate + 0.3 * rate : rate;
    progress->mark_ms = now_ms;
    progress->mark_bytes = counts->bytes_done;
}

static void print_progress(struct progress *progress, const struct dctf_warm_counts *counts)
{
    uint64_t now_ms = dctf_clock_mono_ms(NULL);
    char done[24], total[24], rate[24], left[24] = "?";
    unsigned percent =
        counts->bytes ? (unsigned)((double)counts->bytes_done * 100.0 / (double)counts->bytes) : 0;

    update_rate(progress, counts, now_ms);
    if (!progress->tty && now_ms < progress->printed_ms + 10000)
        return;
    progress->printed_ms = now_ms;
    if (counts->walked && progress->rate > 1 && counts->bytes >= counts->bytes_done)
        dctf_tool_show_duration(
            1000 * (uint64_t)((double)(counts->bytes - counts->bytes_done) / progress->rate + 1), left,
            sizeof(left));
    fprintf(stderr, "%s%llu/%llu%s files  %s/%s%s  %u%%  %s/s  ETA %s%s", progress->tty ? "\r" : "",
        (unsigned long long)counts->files_done, (unsigned long long)counts->files, counts->walked ? "" : "+",
        dctf_tool_show_bytes(counts->bytes_done, done, sizeof(done)),
        dctf_tool_show_bytes(counts->bytes, total, sizeof(total)), counts->walked ? "" : "+",
        percent > 100 ? 100 : percent, dctf_tool_show_bytes((uint64_t)progress->rate, rate, sizeof(rate)),
        left, progress->tty ? "\033[K" : "\n");
    fflush(stderr);
}

/* Show progress until the run has finished or a signal came. */
static void follow(struct dctf_warm *warm, bool quiet, struct dctf_warm_counts *counts)
{
    struct progress progress = {.tty = isatty(STDERR_FILENO) == 1, .started_ms = dctf_clock_mono_ms(NULL)};

    progress.printed_ms = progress.mark_ms = progress.started_ms;
    for (;;) {
        dctf_warm_look(warm, 250, counts);
        if (counts->finished || stop_signal)
            break;
        if (quiet)
            continue;
        if (dctf_clock_mono_ms(NULL) >= progress.mark_ms + 1000)
            dctf_warm_probe(warm);
        print_progress(&progress, counts);
    }
    if (!quiet && progress.tty)
        fputs("\r\033[K", stderr);
}

static void print_summary(const struct dctf_warm_counts *counts, uint64_t took_ms)
{
    char a[24], b[24], took[24];
    double seconds = (double)(took_ms ? took_ms : 1) / 1000.0;

    printf("%s: %llu of %llu files, %s in %s\n", stop_signal ? "interrupted" : "warmed",
        (unsigned long long)counts->files_done, (unsigned long long)counts->files,
        dctf_tool_show_bytes(counts->fetched_bytes + counts->present_bytes, a, sizeof(a)),
        dctf_tool_show_duration(took_ms, took, sizeof(took)));
    printf("  fetched          %s (%s/s)\n", dctf_tool_show_bytes(counts->fetched_bytes, a, sizeof(a)),
        dctf_tool_show_bytes((uint64_t)((double)counts->fetched_bytes / seconds), b, sizeof(b)));
    printf("  already present  %s (%llu files whole)\n",
        dctf_tool_show_bytes(counts->present_bytes, a, sizeof(a)), (unsigned long long)counts->present_files);
    printf("  not kept         %s (%llu files; no room in the cache)\n",
        dctf_tool_show_bytes(counts->unkept_bytes, a, sizeof(a)), (unsigned long long)counts->unkept_files);
    if (counts->bad_blocks)
        printf("  bad blocks       %llu, fetched again\n", (unsigned long long)counts->bad_blocks);
    if (counts->away_files)
        printf("  not reached      %s (%llu files; their homes do not answer, see `dctf peers`)\n",
            dctf_tool_show_bytes(counts->away_bytes, a, sizeof(a)), (unsigned long long)counts->away_files);
    printf("  failed           %llu\n", (unsigned long long)counts->failed);
}

static json_t *summary_json(const struct dctf_warm_counts *counts, uint64_t took_ms)
{
    return json_pack("{s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:b}", "ok",
        !counts->failed && !counts->away_files && !stop_signal && counts->finished, "files",
        (json_int_t)counts->files, "files_done", (json_int_t)counts->files_done, "bytes",
        (json_int_t)counts->bytes, "bytes_done", (json_int_t)counts->bytes_done, "fetched_bytes",
        (json_int_t)counts->fetched_bytes, "present_bytes", (json_int_t)counts->present_bytes,
        "present_files", (json_int_t)counts->present_files, "not_kept_files",
        (json_int_t)counts->unkept_files, "not_kept_bytes", (json_int_t)counts->unkept_bytes, "bad_blocks",
        (json_int_t)counts->bad_blocks, "failed", (json_int_t)counts->failed, "away_files",
        (json_int_t)counts->away_files, "away_bytes", (json_int_t)counts->away_bytes, "seconds",
        (double)took_ms / 1000.0, "interrupted", stop_signal != 0);
}

static int run(struct dctf_warm_config *config, bool json, bool quiet)
{
    uint64_t started_ms = dctf_clock_mono_ms(NULL), took_ms;
    struct dctf_warm_counts counts;
    struct dctf_client_error error;
    struct dctf_warm *warm;
    bool complete;
    enum dctf_err err;

    if (catch_signals())
        err = DCTF_ERR_SYSTEM;
    else {
        config->stop_fd = stop_pipe[0];
        err = dctf_warm_start(config, &warm);
    }
    if (err) {
        dctf_client_error_set(&error, err, NULL);
        return dctf_tool_report(json, &error, NULL);
    }
    follow(warm, quiet || json, &counts);
    dctf_warm_finish(warm, &counts);
    took_ms = dctf_clock_mono_ms(NULL) - started_ms;
    complete = counts.walked && counts.files_done == counts.files;
    if (json)
        dctf_tool_print_json(summary_json(&counts, took_ms));
    else if (!quiet)
        print_summary(&counts, took_ms);
    if (stop_signal) {
        fflush(stdout);
        signal(stop_signal, SIG_DFL);
        raise(stop_signal);
    }
    return counts.failed || counts.away_files || !complete ? DCTF_TOOL_FAILED : DCTF_TOOL_DONE;
}

int dctf_cmd_warm(int argc, char **argv)
{
    bool verify = false, quiet = false, share = false, cluster = false;
    uint64_t jobs = 4;
    const struct dctf_tool_flag flags[] = {{.name = "verify", .flag = &verify},
        {.name = "share", .flag = &share}, {.name = "cluster", .flag = &cluster},
        {.name = "quiet", .letter = 'q', .flag = &quiet},
        {.name = "jobs", .letter = 0, .number = &jobs, .min = 1, .max = 64}, {0}};
    struct dctf_tool_options options;
    struct dctf_client_error error;
    struct dctf_target *targets;
    const char **names;
    size_t count = 0, wanted;
    int first, failed = DCTF_TOOL_DONE, result = dctf_tool_parse(argc, argv, help, flags, &options, &first);

    if (result || !first)
        return result;
    if (share && cluster)
        return dctf_tool_usage("warm", "--share and --cluster exclude each other");
    wanted = argc > first ? (size_t)(argc - first) : 1;
    targets = calloc(wanted, sizeof(*targets));
    names = calloc(wanted, sizeof(*names));
    for (size_t i = 0; targets && names && i < wanted; i++) {
        const char *arg = argv[first + (int)i]; /* NULL when there is none */

        if (dctf_target_find(arg, &targets[count], &error)) {
            failed = dctf_tool_report(options.json, &error, arg);
            continue;
        }
        names[count] = arg ? arg : targets[count].mount.path;
        count++;
    }
    if (count) {
        struct dctf_warm_config config = {.targets = targets,
            .names = names,
            .count = count,
            .jobs = (unsigned)jobs,
            .verify = verify,
            .scope = share     ? "share"
                     : cluster ? "cluster"
                               : NULL,
            .timeout_ms = options.timeout_set && options.timeout_ms < DCTF_TOOL_TIMEOUT_MS
                              ? options.timeout_ms
                              : DCTF_TOOL_TIMEOUT_MS,
            .shard_timeout_ms = options.timeout_set ? options.timeout_ms : 0};

        result = run(&config, options.json, quiet);
    }
    for (size_t i = 0; i < count; i++)
        dctf_target_fini(&targets[i]);
    free(targets);
    free(names);
    return failed ? failed : result;
}
