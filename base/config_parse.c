/* SPDX-License-Identifier: Apache-2.0
 *
 * Options from the environment and from the command line.
 */
#include "base/config.h"

#include "base/config_table.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define ENV_PREFIX "DCTF_"
#define NAME_MAX_BYTES 63

static enum dctf_err load_variable(
    struct dctf_config *config, const char *variable, struct dctf_config_error *error)
{
    const char *equals = strchr(variable, '=');
    size_t prefix_len = strlen(ENV_PREFIX);
    char name[NAME_MAX_BYTES + 1];
    char where[NAME_MAX_BYTES + 32];
    size_t len;

    if (strncmp(variable, ENV_PREFIX, prefix_len) != 0 || !equals || !equals[1])
        return DCTF_OK;
    len = (size_t)(equals - variable) - prefix_len;
    if (len > NAME_MAX_BYTES)
        return DCTF_OK;
    for (size_t i = 0; i < len; i++) {
        char letter = variable[prefix_len + i];

        if (islower((unsigned char)letter)) /* another variable: they are case sensitive */
            return DCTF_OK;
        name[i] = (char)tolower((unsigned char)letter);
    }
    name[len] = '\0';
    if (!dctf_option_find(name))
        return DCTF_OK;
    memcpy(where, variable, prefix_len + len);
    strcpy(where + prefix_len + len, " in the environment");
    return dctf_config_set(config, name, equals + 1, where, error);
}

enum dctf_err dctf_config_load_env(
    struct dctf_config *config, char *const *env, struct dctf_config_error *error)
{
    enum dctf_err err = DCTF_OK;

    for (; *env && !err; env++)
        err = load_variable(config, *env, error);
    return err;
}

/* Options of mount(8), fstab(5) and libfuse that ask nothing of us. */
static bool is_customary(const char *name)
{
    static const char *const names[] = {"ro", "rw", "defaults", "_netdev", "nofail", "auto", "noauto", "user",
        "nouser", "users", "owner", "group", "exec", "noexec", "suid", "nosuid", "dev", "nodev", "sync",
        "async", "atime", "noatime", "relatime", "norelatime", "strictatime", "nostrictatime", "diratime",
        "nodiratime", "lazytime", "nolazytime", "comment", "fsname", "subtype", "default_permissions",
        "nonempty"};

    if (!strncmp(name, "x-", 2) || !strncmp(name, "X-", 2))
        return true;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (!strcmp(name, names[i]))
            return true;
    }
    return false;
}

/* Cut the next option off `*rest`, undoing `\,`; NULL at the end. */
static char *take_option(char **rest)
{
    char *item = *rest;
    char *write = item;
    char *read = item;

    if (!item)
        return NULL;
    while (*read && *read != ',') {
        if (read[0] == '\\' && read[1] == ',')
            read++;
        *write++ = *read++;
    }
    *rest = *read ? read + 1 : NULL;
    *write = '\0';
    return item;
}

enum dctf_err dctf_config_load_options(
    struct dctf_config *config, const char *options, struct dctf_config_error *error)
{
    char *text = strdup(options);
    char *rest = text;
    const struct dctf_option *option;
    enum dctf_err err = DCTF_OK;
    char *name;

    if (!text) {
        dctf_config_complain(error, "-o", "out of memory");
        return DCTF_ERR_NO_MEMORY;
    }
    while (!err && (name = take_option(&rest))) {
        char *value = strchr(name, '=');

        if (!*name)
            continue;
        if (value)
            *value++ = '\0';
        option = dctf_option_find(name);
        if (option && option->type == DCTF_OPTION_TYPE_SECRET) {
            dctf_config_complain(error, "-o", "%s on a command line, which everybody can read", name);
            err = DCTF_ERR_SECRET_EXPOSED;
        } else if (option || !is_customary(name))
            err = dctf_config_set(config, name, value, "-o", error);
    }
    free(text);
    return err;
}
