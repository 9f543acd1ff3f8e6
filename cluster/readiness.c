/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/readiness.h"

#include "base/budget.h"
#include "base/pool.h"
#include "cache/store.h"

#include <stdio.h>
#include <string.h>

#define LOOK_MS 2000u
#define PASS_MS 5000u
#define WRITERS_MAX 16u
/* Hundredths of a percent of the time in which nothing could run for want of it. */
#define MEMORY_FULL_MAX 1000u
#define IO_FULL_MAX 4000u

unsigned dctf_pressure_full(const char *text)
{
    const char *line = !strncmp(text, "full ", 5) ? text : strstr(text, "\nfull ");
    unsigned whole, part;

    if (!line || sscanf(line + (*line == '\n'), "full avg10=%3u.%2u", &whole, &part) != 2)
        return 0;
    return whole * 100 + part;
}

/* A kernel without PSI says nothing, which is no pressure. */
static unsigned full_of(const struct dctf_readiness *readiness, const char *what)
{
    char path[512], text[512];
    size_t len;
    FILE *file;

    snprintf(path, sizeof(path), "%s/proc/pressure/%s", readiness->root, what);
    file = fopen(path, "re");
    if (!file)
        return 0;
    len = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    text[len] = '\0';
    return dctf_pressure_full(text);
}

static bool is_pressed(struct dctf_readiness *readiness, uint64_t now_ms)
{
    if (!readiness->looked_ms || now_ms - readiness->looked_ms >= LOOK_MS) {
        readiness->looked_ms = now_ms;
        readiness->pressed =
            full_of(readiness, "memory") > MEMORY_FULL_MAX || full_of(readiness, "io") > IO_FULL_MAX;
    }
    return readiness->pressed && now_ms - readiness->passed_ms < PASS_MS;
}

enum dctf_ready dctf_readiness_ask(struct dctf_readiness *readiness, size_t bytes, uint64_t now_ms)
{
    struct dctf_store_stats stats;

    if (dctf_budget_used(readiness->budget) + bytes > dctf_budget_limit(readiness->budget) / 2)
        return DCTF_UNREADY_MEMORY;
    if (dctf_pool_load(readiness->writers) > WRITERS_MAX)
        return DCTF_UNREADY_WRITERS;
    dctf_store_stats(readiness->store, &stats);
    if (stats.bypassing)
        return DCTF_UNREADY_DISK;
    if (is_pressed(readiness, now_ms))
        return DCTF_UNREADY_PRESSURE;
    readiness->passed_ms = now_ms;
    return DCTF_READY;
}
