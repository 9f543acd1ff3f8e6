/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/runtime.h"

#include "base/config.h"
#include "base/log.h"
#include "base/str.h"
#include "base/version.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define ROOT_DIR "/run/dctf"
#define SOCKET_SUFFIX ".sock"
#define FILE_SUFFIX ".json"
#define LOCK_SUFFIX ".lock"
#define FILE_MAX (64 * 1024)
#define STEM_MAX 24 /* of the mount point's last component, for those who look */

static void user_dir(char *out, size_t cap)
{
    const char *xdg = getenv("XDG_RUNTIME_DIR");

    if (geteuid() == 0)
        snprintf(out, cap, "%s", ROOT_DIR);
    else if (xdg && xdg[0] == '/')
        snprintf(out, cap, "%s/dctf", xdg);
    else
        snprintf(out, cap, "/tmp/dctf-%u", (unsigned)geteuid());
}

/* `dir` made if need be, and nobody else's: /tmp is everyone's. */
static enum dctf_err make_user_dir(const char *dir)
{
    mode_t mode = geteuid() == 0 ? 0755 : 0700;
    struct stat st;

    if (mkdir(dir, mode) < 0 && errno != EEXIST) {
        dctf_log(DCTF_LOG_WARN, "fs", "op=mkdir dir=%s errno=%d err=%d", dir, errno, DCTF_ERR_SYSTEM);
        return DCTF_ERR_SYSTEM;
    }
    if (lstat(dir, &st) < 0)
        return DCTF_ERR_SYSTEM;
    if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 022))
        return DCTF_ERR_PERMISSION;
    return DCTF_OK;
}

/* "features-0123456789abcdef" for /mnt/features. */
static void name_of(const char *mountpoint, char *out, size_t cap)
{
    const char *slash = strrchr(mountpoint, '/');
    char stem[STEM_MAX + 1];
    size_t len = 0;

    for (const char *p = slash ? slash + 1 : mountpoint; *p && len < STEM_MAX; p++)
        stem[len++] = isalnum((unsigned char)*p) ? *p : '_';
    stem[len] = '\0';
    snprintf(out, cap, "%s-%016llx", stem, (unsigned long long)dctf_hash64(mountpoint, strlen(mountpoint)));
}

enum dctf_err dctf_runtime_socket_path(const char *mountpoint, int make_dir, char **out)
{
    enum dctf_err err;
    char dir[PATH_MAX];
    char name[64];

    *out = NULL;
    user_dir(dir, sizeof(dir));
    if (make_dir) {
        err = make_user_dir(dir);
        if (err)
            return err;
    }
    name_of(mountpoint, name, sizeof(name));
    if (asprintf(out, "%s/%s" SOCKET_SUFFIX, dir, name) < 0) {
        *out = NULL;
        return DCTF_ERR_NO_MEMORY;
    }
    if (strlen(*out) >= sizeof(((struct sockaddr_un *)NULL)->sun_path)) {
        free(*out);
        *out = NULL;
        return DCTF_ERR_NAME_TOO_LONG;
    }
    return DCTF_OK;
}

/* A file beside a socket: caller frees; NULL without memory or with a foreign name. */
static char *beside(const char *socket, const char *new_suffix)
{
    size_t len = socket ? strlen(socket) : 0;
    size_t suffix = strlen(SOCKET_SUFFIX);
    char *file;

    if (len <= suffix || strcmp(socket + len - suffix, SOCKET_SUFFIX) != 0)
        return NULL;
    return asprintf(&file, "%.*s%s", (int)(len - suffix), socket, new_suffix) < 0 ? NULL : file;
}

/* JSON is UTF-8, paths are any bytes: the latter travel as KEY_hex. False without memory. */
static bool put_text(json_t *object, const char *key, const char *text)
{
    struct dctf_str hex, hex_key;
    bool done;

    if (!text)
        return true;
    if (json_object_set_new(object, key, json_string(text)) == 0)
        return true;
    dctf_str_init(&hex);
    dctf_str_init(&hex_key);
    dctf_str_printf(&hex_key, "%s_hex", key);
    for (const unsigned char *p = (const unsigned char *)text; *p; p++)
        dctf_str_printf(&hex, "%02x", *p);
    done = !hex.err && !hex_key.err &&
           json_object_set_new(object, dctf_str_c(&hex_key), json_string(dctf_str_c(&hex))) == 0;
    dctf_str_fini(&hex);
    dctf_str_fini(&hex_key);
    return done;
}

static char *unhex(const char *hex)
{
    size_t len = strlen(hex) / 2;
    char *text = malloc(len + 1);

    if (!text)
        return NULL;
    for (size_t i = 0; i < len; i++) {
        unsigned byte;

        if (sscanf(hex + 2 * i, "%2x", &byte) != 1) {
            free(text);
            return NULL;
        }
        text[i] = (char)byte;
    }
    text[len] = '\0';
    return text;
}

/* Owned; NULL when absent. */
static char *get_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    char hex_key[32];

    if (text)
        return strdup(text);
    snprintf(hex_key, sizeof(hex_key), "%s_hex", key);
    text = json_string_value(json_object_get(object, hex_key));
    return text ? unhex(text) : NULL;
}

static json_t *encode(const struct dctf_runtime *runtime)
{
    json_t *object = json_pack("{sI sI sI sI}", "pid", (json_int_t)runtime->pid, "started_ms",
        (json_int_t)runtime->started_ms, "major", (json_int_t)runtime->major, "minor",
        (json_int_t)runtime->minor);

    if (object && put_text(object, "mountpoint", runtime->mountpoint) &&
        put_text(object, "source", runtime->source) && put_text(object, "cache_dir", runtime->cache_dir) &&
        put_text(object, "socket", runtime->socket) && put_text(object, "version", runtime->version) &&
        put_text(object, "options", runtime->options))
        return object;
    json_decref(object);
    return NULL;
}

/* False when a field that every release writes is missing. */
static bool decode(const json_t *object, struct dctf_runtime *out)
{
    *out = (struct dctf_runtime){
        .mountpoint = get_text(object, "mountpoint"),
        .source = get_text(object, "source"),
        .cache_dir = get_text(object, "cache_dir"),
        .socket = get_text(object, "socket"),
        .version = get_text(object, "version"),
        .options = get_text(object, "options"),
        .pid = (pid_t)json_integer_value(json_object_get(object, "pid")),
        .started_ms = (uint64_t)json_integer_value(json_object_get(object, "started_ms")),
        .major = (unsigned)json_integer_value(json_object_get(object, "major")),
        .minor = (unsigned)json_integer_value(json_object_get(object, "minor")),
    };
    return out->mountpoint && out->source && out->socket && out->pid > 0;
}

static enum dctf_err write_file(const char *path, const char *text)
{
    enum dctf_err err = DCTF_ERR_SYSTEM;
    size_t len = strlen(text);
    char *temporary;
    int fd;

    if (asprintf(&temporary, "%s.XXXXXX", path) < 0)
        return DCTF_ERR_NO_MEMORY;
    fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0)
        goto out;
    if (write(fd, text, len) == (ssize_t)len && fchmod(fd, 0644) == 0 && rename(temporary, path) == 0)
        err = DCTF_OK;
    if (err)
        unlink(temporary);
out:
    if (err)
        dctf_log(DCTF_LOG_WARN, "fs", "op=write_runtime errno=%d err=%d", errno, err);
    if (fd >= 0)
        close(fd);
    free(temporary);
    return err;
}

enum dctf_err dctf_runtime_write(const struct dctf_runtime *runtime)
{
    char *path = beside(runtime->socket, FILE_SUFFIX);
    enum dctf_err err = DCTF_ERR_NO_MEMORY;
    json_t *object = NULL;
    char *text = NULL;

    if (path)
        object = encode(runtime);
    if (object)
        text = json_dumps(object, JSON_INDENT(2) | JSON_SORT_KEYS);
    if (text)
        err = write_file(path, text);
    free(text);
    json_decref(object);
    free(path);
    return err;
}

/* DCTF_ERR_NOT_MOUNTED when there is no such file, or none that can be believed. */
static enum dctf_err read_file(const char *path, struct dctf_runtime *out)
{
    enum dctf_err err = DCTF_ERR_NOT_MOUNTED;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    json_t *object = NULL;
    struct stat st;

    *out = (struct dctf_runtime){0};
    if (fd < 0)
        return err;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size <= FILE_MAX &&
        (st.st_uid == 0 || st.st_uid == geteuid()))
        object = json_loadfd(fd, JSON_REJECT_DUPLICATES, NULL);
    if (object && decode(object, out))
        err = DCTF_OK;
    else
        dctf_runtime_fini(out);
    json_decref(object);
    close(fd);
    return err;
}

static enum dctf_err read_in(const char *dir, const char *mountpoint, struct dctf_runtime *out)
{
    enum dctf_err err;
    char name[64];
    char *path;

    *out = (struct dctf_runtime){0};
    name_of(mountpoint, name, sizeof(name));
    if (asprintf(&path, "%s/%s" FILE_SUFFIX, dir, name) < 0)
        return DCTF_ERR_NO_MEMORY;
    err = read_file(path, out);
    free(path);
    if (!err && strcmp(out->mountpoint, mountpoint) != 0) { /* equal hashes */
        dctf_runtime_fini(out);
        err = DCTF_ERR_NOT_MOUNTED;
    }
    return err;
}

enum dctf_err dctf_runtime_read(const char *mountpoint, struct dctf_runtime *out)
{
    enum dctf_err err;
    char dir[PATH_MAX];

    user_dir(dir, sizeof(dir));
    err = read_in(dir, mountpoint, out);
    if (err == DCTF_ERR_NOT_MOUNTED && strcmp(dir, ROOT_DIR) != 0)
        err = read_in(ROOT_DIR, mountpoint, out);
    return err;
}

void dctf_runtime_remove(const struct dctf_runtime *runtime)
{
    char *path = beside(runtime->socket, FILE_SUFFIX);
    struct dctf_runtime now;
    bool ours;

    if (!path)
        return;
    ours = read_file(path, &now) != DCTF_OK || now.pid == runtime->pid;
    dctf_runtime_fini(&now);
    if (ours) {
        unlink(runtime->socket);
        unlink(path);
    }
    free(path);
}

static enum dctf_err lock_path(const char *mountpoint, char **out)
{
    enum dctf_err err;
    char *socket;

    *out = NULL;
    err = dctf_runtime_socket_path(mountpoint, 1, &socket);
    if (err)
        return err;
    *out = beside(socket, LOCK_SUFFIX);
    free(socket);
    return *out ? DCTF_OK : DCTF_ERR_NO_MEMORY;
}

/* Another process may have removed the file between our open and our lock. */
static bool is_same_file(int fd, const char *path)
{
    struct stat ours, now;

    return fstat(fd, &ours) == 0 && stat(path, &now) == 0 && ours.st_ino == now.st_ino &&
           ours.st_dev == now.st_dev;
}

enum dctf_err dctf_runtime_lock(const char *mountpoint, int *out)
{
    enum dctf_err err;
    char *path;

    *out = -1;
    err = lock_path(mountpoint, &path);
    if (err)
        return err;
    for (;;) {
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);

        if (fd < 0) {
            err = DCTF_ERR_SYSTEM;
            break;
        }
        if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
            err = errno == EWOULDBLOCK ? DCTF_ERR_MOUNTPOINT_IN_USE : DCTF_ERR_SYSTEM;
            close(fd);
            break;
        }
        if (is_same_file(fd, path)) {
            *out = fd;
            break;
        }
        close(fd);
    }
    free(path);
    return err;
}

void dctf_runtime_unlock(const char *mountpoint, int fd)
{
    char *path;

    if (fd < 0)
        return;
    if (lock_path(mountpoint, &path) == DCTF_OK)
        unlink(path); /* before the lock is gone: whoever opened it looks again */
    free(path);
    flock(fd, LOCK_UN);
    close(fd);
}

char *dctf_runtime_options(const struct dctf_config *config)
{
    static const enum dctf_option_index options[] = {
        DCTF_OPTION_INDEX_endpoint,
        DCTF_OPTION_INDEX_region,
        DCTF_OPTION_INDEX_path_style,
        DCTF_OPTION_INDEX_profile,
        DCTF_OPTION_INDEX_aws_config_file,
        DCTF_OPTION_INDEX_aws_credentials_file,
        DCTF_OPTION_INDEX_anonymous,
        DCTF_OPTION_INDEX_requester_pays,
        DCTF_OPTION_INDEX_ca_file,
        DCTF_OPTION_INDEX_ca_dir,
        DCTF_OPTION_INDEX_s3_client,
    };
    struct dctf_str text;
    char *copy;

    dctf_str_init(&text);
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        if (dctf_config_is_set(config, options[i]))
            dctf_config_write_option(config, options[i], &text);
    }
    copy = text.err || !text.len ? NULL : strdup(text.data);
    dctf_str_fini(&text);
    return copy;
}

void dctf_runtime_fini(struct dctf_runtime *runtime)
{
    free(runtime->mountpoint);
    free(runtime->source);
    free(runtime->cache_dir);
    free(runtime->socket);
    free(runtime->version);
    free(runtime->options);
    *runtime = (struct dctf_runtime){0};
}
