/* SPDX-License-Identifier: Apache-2.0
 *
 * The source, step by step. The daemon looks at its own when it answers: only it knows its
 * credentials and its network. Else, and for a source that is not mounted, a child of this
 * process looks, with the configuration file, this environment, and the options that the
 * daemon left word of. A child, because a resolver may hang, and what a library does in
 * trouble must not take the other checks along.
 */
#include "mount-tools/dctf_doctor.h"

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "mount-tools/dctf_tool.h"
#include "transport/origin.h"

#include <errno.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* The child ends by itself at the time limit; this much later it is ended. */
#define GRACE_MS 1000u
#define REPORT_MAX (64u * 1024u)

extern char **environ;

/* --- telling --- */

/* One step as a check. What could not be looked at because something else failed is left out:
 * that failure is told. */
static void add_step(struct dctf_doctor *doctor, const json_t *step, bool is_ours)
{
    const char *name = json_string_value(json_object_get(step, "name"));
    const char *text = json_string_value(json_object_get(step, "text"));
    const char *remedy = json_string_value(json_object_get(step, "remedy"));
    enum dctf_err err = (enum dctf_err)json_integer_value(json_object_get(step, "code"));
    bool skipped = json_is_true(json_object_get(step, "skipped"));
    enum dctf_doctor_result result = err ? DCTF_DOCTOR_FAIL : DCTF_DOCTOR_OK;

    if (!name || !text || (skipped && err))
        return;
    /* Of a mount, the daemon's credentials count, and they may be others. */
    if (err && is_ours && doctor->mount)
        result = DCTF_DOCTOR_WARN;
    if (err)
        dctf_doctor_add(doctor, result, name, remedy ? remedy : dctf_err_remedy(err), "%d %s: %s", (int)err,
            dctf_err_name(err), text);
    else
        dctf_doctor_add(doctor, result, name, NULL, "%s", text);
}

bool dctf_doctor_source_of_daemon(struct dctf_doctor *doctor, const char *mountpoint)
{
    struct dctf_client_error error;
    json_t *request, *reply, *step;
    size_t i;

    request = json_pack("{s:s, s:I}", "cmd", "examine", "timeout_ms", (json_int_t)doctor->timeout_ms);
    if (dctf_tool_ask(mountpoint, doctor->timeout_ms + GRACE_MS, request, &reply, &error))
        return false;
    json_array_foreach(json_object_get(reply, "steps"), i, step) add_step(doctor, step, false);
    json_decref(reply);
    return true;
}

/* --- the child --- */

static void send_step(void *ctx, const struct dctf_origin_step *step)
{
    const char *remedy = step->remedy ? step->remedy : dctf_err_remedy(step->err);
    json_t *row =
        json_pack("{s:s, s:i, s:b}", "name", step->name, "code", (int)step->err, "skipped", step->skipped);
    char *line;

    if (json_object_set_new(row, "text", json_string(step->text ? step->text : "")))
        json_object_set_new(row, "text", json_string("(no text)"));
    json_object_set_new(row, "remedy", json_string(remedy));
    line = json_dumps(row, JSON_COMPACT);
    if (line)
        dprintf(*(int *)ctx, "%s\n", line);
    free(line);
    json_decref(row);
}

static void send_failure(int fd, enum dctf_err err, const char *text)
{
    struct dctf_origin_step step = {.name = "source", .err = err, .text = text};

    if (err == DCTF_OK)
        step.name = "list";
    send_step(&fd, &step);
}

static enum dctf_err load(
    struct dctf_config *config, const char *source, const char *options, struct dctf_config_error *error)
{
    enum dctf_err err = dctf_config_load_file(config, DCTF_CONFIG_FILE, false, source, error);

    /* One that only root may read is none to others; the environment may do. */
    if (err == DCTF_ERR_CONFIG_UNREADABLE)
        err = DCTF_OK;
    if (!err)
        err = dctf_config_load_env(config, environ, error);
    if (!err && options)
        err = dctf_config_load_options(config, options, error);
    return err;
}

static void examine(int fd, const char *source, const char *options, uint64_t timeout_ms)
{
    static const struct dctf_origin_scheme schemes[] = {
        {"file", dctf_origin_file_open}, {"s3", dctf_origin_s3_open}, {NULL, NULL}};
    struct dctf_config_error error = {""};
    struct dctf_config config;
    struct dctf_origin *origin;
    char detail[256] = "";
    struct dctf_origin_config ask = {.concurrency = 2, .options = &config, .detail = detail};
    enum dctf_err err = dctf_config_init(&config);

    if (err) {
        send_failure(fd, err, dctf_err_text(err));
        return;
    }
    err = load(&config, source, options, &error);
    if (err) {
        send_failure(fd, err, error.text);
        dctf_config_fini(&config);
        return;
    }
    ask.source = config.source ? config.source : source;
    err = dctf_origin_open(schemes, &ask, &origin);
    if (err) {
        send_failure(fd, err, detail[0] ? detail : dctf_err_text(err));
    } else {
        if (origin->ops->examine)
            origin->ops->examine(origin, timeout_ms, send_step, &fd);
        else if ((err = origin->ops->check(origin, timeout_ms, detail)) != DCTF_OK)
            send_failure(fd, err, detail[0] ? detail : dctf_err_text(err));
        else
            send_failure(fd, DCTF_OK, "the source can be listed");
        origin->ops->close(origin, GRACE_MS / 2);
    }
    dctf_config_fini(&config);
}

/* --- this process --- */

/* Take whole lines off the text. */
static void take_lines(struct dctf_doctor *doctor, char *text, size_t *len)
{
    char *end;

    while ((end = memchr(text, '\n', *len)) != NULL) {
        size_t line = (size_t)(end - text);
        json_t *step = json_loadb(text, line, 0, NULL);

        if (step)
            add_step(doctor, step, true);
        json_decref(step);
        *len -= line + 1;
        memmove(text, end + 1, *len);
    }
}

/* Steps as they come. True: the child has told all it had to tell. */
static bool follow(struct dctf_doctor *doctor, int fd, uint64_t due_ms)
{
    char *text = malloc(REPORT_MAX);
    bool ended = false;
    size_t len = 0;

    while (text && !ended && len < REPORT_MAX) {
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
        uint64_t now_ms = dctf_clock_mono_ms(NULL);
        int wait_ms = due_ms > now_ms ? (int)(due_ms - now_ms < 60000 ? due_ms - now_ms : 60000) : 0;
        int ready = poll(&poll_fd, 1, wait_ms);
        ssize_t got;

        if (ready < 0 && errno == EINTR)
            continue;
        if (ready < 0 || (ready == 0 && dctf_clock_mono_ms(NULL) >= due_ms))
            break;
        got = ready > 0 ? read(fd, text + len, REPORT_MAX - len) : -1;
        if (ready > 0 && got <= 0)
            ended = true;
        if (got > 0)
            len += (size_t)got;
        take_lines(doctor, text, &len);
    }
    free(text);
    return ended;
}

static void tell_environment(struct dctf_doctor *doctor, const char *source, const char *options)
{
    const struct passwd *user = getpwuid(geteuid());

    dctf_doctor_add(doctor, DCTF_DOCTOR_OK, "source", NULL,
        "%s, looked at by this command as %s with %s, this environment%s%s%s", source,
        user ? user->pw_name : "an unknown user", DCTF_CONFIG_FILE, options ? " and " : "",
        options ? options : "", doctor->mount ? "; the daemon may have others" : "");
}

void dctf_doctor_source(struct dctf_doctor *doctor, const char *source, const char *options)
{
    uint64_t due_ms = dctf_clock_mono_ms(NULL) + doctor->timeout_ms + GRACE_MS;
    bool ended = false;
    int fds[2];
    pid_t pid;

    if (pipe(fds))
        return;
    tell_environment(doctor, source, options);
    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        close(fds[0]);
        dctf_log_set_level(DCTF_LOG_ERROR); /* the steps say it */
        examine(fds[1], source, options, doctor->timeout_ms);
        _exit(0);
    }
    close(fds[1]);
    if (pid > 0)
        ended = follow(doctor, fds[0], due_ms);
    close(fds[0]);
    if (!ended)
        dctf_doctor_add(doctor, DCTF_DOCTOR_FAIL, "source", "the last step above tells how far it came",
            "%s could not be examined within %llu ms", source, (unsigned long long)doctor->timeout_ms);
    if (pid > 0) {
        kill(pid, SIGKILL);
        waitpid(pid, NULL, ended ? 0 : WNOHANG);
    }
}
