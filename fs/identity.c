/* SPDX-License-Identifier: Apache-2.0
 *
 * What a mount is called, where its cache lies and how much memory it has, by its options and the machine.
 */
#include "fs/fs_private.h"

#include "base/budget.h"
#include "base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB (1024ull * 1024u)
#define MEMORY_MIN (64 * MIB)
#define MEMORY_AUTO_MAX (1024 * MIB)

static uint64_t memory_of(const struct dctf_config *config)
{
    uint64_t memory = config->memory;

    if (memory == 0) {
        memory = dctf_budget_system_limit("/") / 4;
        if (memory > MEMORY_AUTO_MAX)
            memory = MEMORY_AUTO_MAX;
    }
    return memory < MEMORY_MIN ? MEMORY_MIN : memory;
}

static char *default_cache_dir(const struct dctf_fs *fs)
{
    const char *cache_home = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    struct dctf_str path;
    char *copy;

    dctf_str_init(&path);
    if (geteuid() == 0)
        dctf_str_puts(&path, "/var/cache/dctf/");
    else if (cache_home && *cache_home)
        dctf_str_printf(&path, "%s/dctf/", cache_home);
    else
        dctf_str_printf(&path, "%s/.cache/dctf/", home && *home ? home : "/tmp");
    if (fs->config->dataset)
        dctf_str_puts(&path, fs->config->dataset);
    else
        dctf_str_printf(&path, "%016" PRIx64, fs->dataset);
    copy = path.err ? NULL : strdup(dctf_str_c(&path));
    dctf_str_fini(&path);
    return copy;
}

enum dctf_err dctf_fs_identify(struct dctf_fs *fs, const struct dctf_fs_config *config)
{
    const struct dctf_config *options = config->config;

    fs->config = options;
    fs->source = strdup(config->source);
    fs->mountpoint = strdup(config->mountpoint);
    if (!fs->source || !fs->mountpoint)
        return DCTF_ERR_NO_MEMORY;
    fs->dataset = dctf_hash64(fs->source, strlen(fs->source));
    fs->feature_by = options->feature ? DCTF_FEATURE_BY_FILE : DCTF_FEATURE_BY_DIRECTORY;
    fs->started_ms = dctf_clock_wall_ms(NULL);
    fs->memory_bytes = memory_of(options);
    if (options->node && *options->node)
        snprintf(fs->node, sizeof(fs->node), "%s", options->node);
    else if (gethostname(fs->node, sizeof(fs->node) - 1))
        snprintf(fs->node, sizeof(fs->node), "localhost");
    if (options->cache_dir && *options->cache_dir)
        fs->cache_dir = strdup(options->cache_dir);
    else
        fs->cache_dir = default_cache_dir(fs);
    return fs->cache_dir ? DCTF_OK : DCTF_ERR_NO_MEMORY;
}
