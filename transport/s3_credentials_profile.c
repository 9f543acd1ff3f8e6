/* SPDX-License-Identifier: Apache-2.0
 *
 * The profile of the shared files: which one, what it says, and roles it leads to.
 */
#include "transport/s3_credentials_internal.h"

#include "base/log.h"
#include "transport/aws_config.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* Roles that lead to roles. */
#define DEPTH_MAX 8

/* --- files --- */

static bool home_of(const struct dctf_cred_setup *setup, char *out, size_t cap)
{
    const char *home = dctf_cred_env(setup, "HOME");
    struct passwd pw;
    struct passwd *found = NULL;
    char text[2048];

    if (!home && !getpwuid_r(geteuid(), &pw, text, sizeof(text), &found) && found)
        home = found->pw_dir;
    return home && (size_t)snprintf(out, cap, "%s", home) < cap;
}

/* Option, variable or ~/.aws/NAME, with ~ put in; *named: not the default path. False: no home, or too
 * long. */
static bool path_of(const struct dctf_cred_setup *setup, const char *option, const char *variable,
    const char *name, char out[4096], bool *named)
{
    const char *path = *option ? option : dctf_cred_env(setup, variable);
    char home[2048] = "";

    *named = path != NULL;
    if (path && strncmp(path, "~/", 2) != 0)
        return (size_t)snprintf(out, 4096, "%s", path) < 4096;
    if (!home_of(setup, home, sizeof(home)))
        return false;
    if (path)
        return (size_t)snprintf(out, 4096, "%s/%s", home, path + 2) < 4096;
    return (size_t)snprintf(out, 4096, "%s/.aws/%s", home, name) < 4096;
}

static enum dctf_err read_file(struct dctf_cred_walk *walk, enum dctf_aws_config_kind kind)
{
    const struct dctf_cred_setup *setup = walk->setup;
    bool is_config = kind == DCTF_AWS_CONFIG_CONFIG;
    const char *option = is_config ? setup->config_file : setup->credentials_file;
    struct dctf_aws_config **out = is_config ? &walk->config : &walk->credentials;
    struct dctf_aws_config_error error;
    char path[4096];
    bool named;
    enum dctf_err err;

    if (!path_of(setup, option, is_config ? "AWS_CONFIG_FILE" : "AWS_SHARED_CREDENTIALS_FILE",
            is_config ? "config" : "credentials", path, &named)) {
        if (!named) /* no home directory, so no files in it */
            return DCTF_OK;
        return dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_FAILED, "the path of the %s file is too long",
            is_config ? "config" : "credentials");
    }
    err = dctf_aws_config_load(path, kind, out, &error);
    if (err == DCTF_ERR_NOT_FOUND && !*option) {
        if (!is_config)
            dctf_cred_explain(walk, "%s", error.text);
        return DCTF_OK;
    }
    if (err)
        return dctf_cred_why(
            walk, err == DCTF_ERR_NO_MEMORY ? err : DCTF_ERR_CREDENTIALS_FAILED, "%s", error.text);
    if (!is_config && dctf_aws_config_exposed(*out) && !atomic_exchange(&walk->setup->warned, true))
        dctf_log(DCTF_LOG_WARN, "s3", "err=%d credentials file=%s can be read by others: chmod 600",
            (int)DCTF_ERR_SECRET_EXPOSED, path);
    return DCTF_OK;
}

enum dctf_err dctf_cred_files(struct dctf_cred_walk *walk)
{
    enum dctf_err err;

    if (walk->files_read)
        return DCTF_OK;
    walk->why[0] = '\0';
    err = read_file(walk, DCTF_AWS_CONFIG_CREDENTIALS);
    if (!err)
        err = read_file(walk, DCTF_AWS_CONFIG_CONFIG);
    walk->files_read = !err;
    return err;
}

const char *dctf_cred_profile_name(const struct dctf_cred_setup *setup, bool *explicit_out)
{
    const char *name = *setup->profile ? setup->profile : dctf_cred_env(setup, "AWS_PROFILE");

    *explicit_out = name != NULL;
    return name ? name : "default";
}

const char *dctf_cred_setting(const struct dctf_cred_walk *walk, const char *profile, const char *name)
{
    const char *value = dctf_aws_config_get(walk->credentials, profile, name);

    if (!value || !*value)
        value = dctf_aws_config_get(walk->config, profile, name);
    return value && *value ? value : NULL;
}

const char *dctf_cred_region(struct dctf_cred_walk *walk)
{
    const struct dctf_cred_setup *setup = walk->setup;
    const char *region = *setup->region ? setup->region : dctf_cred_env(setup, "AWS_REGION");
    bool named;

    if (!region)
        region = dctf_cred_env(setup, "AWS_DEFAULT_REGION");
    if (!region && !dctf_cred_files(walk))
        region = dctf_cred_setting(walk, dctf_cred_profile_name(setup, &named), "region");
    return region;
}

/* Whether environment or profile say that their endpoints are not to be used. */
static bool ignores_endpoints(struct dctf_cred_walk *walk, const char *profile)
{
    const char *word = dctf_cred_setting(walk, profile, "ignore_configured_endpoint_urls");

    if (dctf_cred_env(walk->setup, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"))
        return dctf_cred_env_true(walk->setup, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS");
    return word && strcasecmp(word, "true") == 0;
}

const char *dctf_cred_endpoint(struct dctf_cred_walk *walk, const char *variable, const char **where)
{
    bool named;
    const char *profile = dctf_cred_profile_name(walk->setup, &named);
    const char *url;

    /* What is wrong with the files is told when credentials are looked for in them. */
    if (dctf_cred_files(walk) == DCTF_ERR_NO_MEMORY || ignores_endpoints(walk, profile))
        return NULL;
    *where = variable;
    url = dctf_cred_env(walk->setup, variable);
    if (!url) {
        *where = "AWS_ENDPOINT_URL";
        url = dctf_cred_env(walk->setup, "AWS_ENDPOINT_URL");
    }
    if (!url) {
        *where = "endpoint_url of the profile";
        url = dctf_cred_setting(walk, profile, "endpoint_url");
    }
    return url;
}

/* Read `fd` to its end into `text` of DCTF_CRED_ANSWER_MAX bytes; an errno. */
static int read_small(int fd, char *text, size_t *len)
{
    *len = 0;
    while (*len < DCTF_CRED_ANSWER_MAX) {
        ssize_t n = read(fd, text + *len, DCTF_CRED_ANSWER_MAX - *len);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno;
        if (n == 0)
            return 0;
        *len += (size_t)n;
    }
    return EFBIG;
}

enum dctf_err dctf_cred_read_token(struct dctf_cred_walk *walk, const char *path, char **out)
{
    char *text = calloc(1, DCTF_CRED_ANSWER_MAX);
    size_t len = 0;
    int errnum;
    int fd;

    *out = NULL;
    if (!text)
        return dctf_cred_why(walk, DCTF_ERR_NO_MEMORY, "out of memory");
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    errnum = fd < 0 ? errno : read_small(fd, text, &len);
    if (fd >= 0)
        close(fd);
    while (!errnum && len > 0 && strchr(" \t\r\n", text[len - 1]))
        text[--len] = '\0';
    if (errnum || !len || strlen(text) != len) {
        explicit_bzero(text, DCTF_CRED_ANSWER_MAX);
        free(text);
        return dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_FAILED, "token file %s%s%s", path,
            errnum ? ": " : " holds no token", errnum ? strerrordesc_np(errnum) : "");
    }
    *out = text;
    return DCTF_OK;
}

/* --- profile --- */

/* Profiles on the way to the one that is looked at. */
struct way {
    const struct way *before;
    const char *profile;
    unsigned depth;
};

static enum dctf_err ask_named(
    struct dctf_cred_walk *walk, const char *profile, const struct way *before, struct dctf_s3_keys **out);

static bool is_on_way(const struct way *way, const char *profile)
{
    for (; way; way = way->before)
        if (!strcmp(way->profile, profile))
            return true;
    return false;
}

/* Text of keys_of() and others gets the profile's name when it is not the first. */
static enum dctf_err keys_of(struct dctf_cred_walk *walk, const char *profile, struct dctf_s3_keys **out)
{
    const char *key = dctf_cred_setting(walk, profile, "aws_access_key_id");
    const char *secret = dctf_cred_setting(walk, profile, "aws_secret_access_key");
    const char *token = dctf_cred_setting(walk, profile, "aws_session_token");
    char source[64];

    if (!key && !secret)
        return dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_NONE, "no keys in profile %s", profile);
    if (!key || !secret)
        return dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_FAILED, "profile %s has %s but no %s", profile,
            key ? "aws_access_key_id" : "aws_secret_access_key",
            key ? "aws_secret_access_key" : "aws_access_key_id");
    snprintf(source, sizeof(source), "profile %s", profile);
    return dctf_cred_keys_new(walk, key, secret, token ? token : "", UINT64_MAX, source, out);
}

static enum dctf_err ask_credential_source(
    struct dctf_cred_walk *walk, const char *name, struct dctf_s3_keys **out)
{
    static const struct {
        const char *name;
        dctf_cred_ask *ask;
    } sources[] = {
        {"Environment", dctf_cred_ask_environment},
        {"Ec2InstanceMetadata", dctf_cred_ask_imds},
        {"EcsContainer", dctf_cred_ask_container},
    };

    for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++) {
        enum dctf_err err;

        if (strcasecmp(name, sources[i].name) != 0)
            continue;
        err = sources[i].ask(walk, out);
        if (err != DCTF_ERR_CREDENTIALS_NONE)
            return err;
        return dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_FAILED, "credential_source %s: %s", name, walk->why);
    }
    return dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_FAILED,
        "credential_source %.40s is none of Environment, Ec2InstanceMetadata, EcsContainer", name);
}

/* The keys a role is assumed with. */
static enum dctf_err ask_role_source(
    struct dctf_cred_walk *walk, const char *profile, const struct way *way, struct dctf_s3_keys **out)
{
    const char *from = dctf_cred_setting(walk, profile, "source_profile");
    const char *kind = dctf_cred_setting(walk, profile, "credential_source");
    enum dctf_err err;

    if (from && kind)
        return dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_FAILED,
            "profile %s has both source_profile and credential_source", profile);
    if (!from && !kind)
        return dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_FAILED,
            "profile %s has role_arn but no source_profile, credential_source or web_identity_token_file",
            profile);
    if (kind)
        return ask_credential_source(walk, kind, out);
    /* A profile may name itself: its own keys. */
    if (!strcmp(from, profile))
        err = keys_of(walk, profile, out);
    else
        err = ask_named(walk, from, way, out);
    if (err == DCTF_ERR_CREDENTIALS_NONE)
        return dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_FAILED, "source_profile %s of profile %s: %s", from,
            profile, walk->why);
    return err;
}

static enum dctf_err ask_role(struct dctf_cred_walk *walk, const char *profile, const char *arn,
    const struct way *way, struct dctf_s3_keys **out)
{
    const char *token_file = dctf_cred_setting(walk, profile, "web_identity_token_file");
    struct dctf_cred_role role = {
        .arn = arn,
        .session_name = dctf_cred_setting(walk, profile, "role_session_name"),
        .external_id = dctf_cred_setting(walk, profile, "external_id"),
        .duration_seconds = dctf_cred_setting(walk, profile, "duration_seconds"),
    };
    struct dctf_s3_keys *with = NULL;
    char source[64];
    enum dctf_err err;

    snprintf(source, sizeof(source), "profile %s (role)", profile);
    if (token_file)
        return dctf_cred_assume_web_identity(walk, &role, token_file, source, out);
    if (dctf_cred_setting(walk, profile, "mfa_serial"))
        return dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_FAILED,
            "profile %s asks for a code of mfa_serial, which nobody can type here; use credential_process",
            profile);
    err = ask_role_source(walk, profile, way, &with);
    if (!err)
        err = dctf_cred_assume_role(walk, &role, with, source, out);
    dctf_s3_keys_unref(with);
    return err;
}

/* What is left when a profile has no keys and no role. */
static enum dctf_err ask_other(struct dctf_cred_walk *walk, const char *profile, struct dctf_s3_keys **out)
{
    const char *command = dctf_cred_setting(walk, profile, "credential_process");
    char source[64];

    if (command) {
        snprintf(source, sizeof(source), "profile %s (credential_process)", profile);
        return dctf_cred_process_run(walk, command, source, out);
    }
    if (dctf_cred_setting(walk, profile, "sso_session") ||
        dctf_cred_setting(walk, profile, "sso_start_url") ||
        dctf_cred_setting(walk, profile, "sso_account_id"))
        return dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_FAILED,
            "profile %s uses sso_…, which is not supported; use credential_process = aws configure "
            "export-credentials --profile %s",
            profile, profile);
    if (dctf_cred_setting(walk, profile, "web_identity_token_file"))
        return dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_FAILED,
            "profile %s has web_identity_token_file but no role_arn", profile);
    return dctf_cred_why(walk, DCTF_ERR_CREDENTIALS_NONE, "profile %s holds no credentials", profile);
}

static enum dctf_err ask_named(
    struct dctf_cred_walk *walk, const char *profile, const struct way *before, struct dctf_s3_keys **out)
{
    const struct way way = {before, profile, before ? before->depth + 1 : 0};
    const char *arn = dctf_cred_setting(walk, profile, "role_arn");
    enum dctf_err err;

    if (is_on_way(before, profile))
        return dctf_cred_why(
            walk, DCTF_ERR_CREDENTIALS_FAILED, "source_profile leads back to profile %s: a loop", profile);
    if (way.depth >= DEPTH_MAX)
        return dctf_cred_why(
            walk, DCTF_ERR_CREDENTIALS_FAILED, "source_profile leads over more than %d profiles", DEPTH_MAX);
    if (!dctf_aws_config_has(walk->credentials, profile) && !dctf_aws_config_has(walk->config, profile))
        return dctf_cred_why(
            walk, DCTF_ERR_CREDENTIALS_NONE, "there is no profile %s in the shared files", profile);
    /* A role outranks keys that are only there to assume it. Behind another profile's role it
     * is the other way round: that profile wants the keys. */
    if (arn && (!before || keys_of(walk, profile, out) == DCTF_ERR_CREDENTIALS_NONE))
        return ask_role(walk, profile, arn, &way, out);
    if (*out)
        return DCTF_OK;
    err = keys_of(walk, profile, out);
    return err == DCTF_ERR_CREDENTIALS_NONE ? ask_other(walk, profile, out) : err;
}

enum dctf_err dctf_cred_ask_profile(struct dctf_cred_walk *walk, struct dctf_s3_keys **out)
{
    bool named;
    const char *profile = dctf_cred_profile_name(walk->setup, &named);
    enum dctf_err err = dctf_cred_files(walk);

    *out = NULL;
    if (err)
        return err;
    /* The text that there is no credentials file says more than that it holds no profile. */
    if (!named && !walk->credentials && !walk->config && *walk->why)
        return DCTF_ERR_CREDENTIALS_NONE;
    err = ask_named(walk, profile, NULL, out);
    if (err == DCTF_ERR_CREDENTIALS_NONE && named)
        return DCTF_ERR_CREDENTIALS_FAILED;
    return err;
}
