/* SPDX-License-Identifier: Apache-2.0
 *
 * Defaults, values and their bounds. Where the text comes from is the business of
 * config_parse.c.
 */
#include "base/config.h"

#include "base/config_table.h"
#include "base/str.h"

#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define KIB 1024ull
#define MIB (1024 * KIB)
#define SECOND_MS 1000ull
#define DAY_MS (86400 * SECOND_MS)
#define SECRET_MIN_BYTES 16u

/* No bound means up to UINT32_MAX for a UINT and anything for the rest. */
static const struct bounds {
    uint64_t min, max;
    bool power_of_two;
    const char *text;
} bounds_of[DCTF_OPTION_COUNT] = {
#define B(field, ...) [DCTF_OPTION_INDEX_##field] = {__VA_ARGS__}
    B(cache_size, MIB, UINT64_MAX, false, "at least 1M"),
    B(cache_reserve_inodes_pct, 0, 50, false, "0 to 50"),
    B(memory, 64 * MIB, UINT64_MAX, false, "at least 64M"),
    B(fetch_max, 256 * KIB, 32 * MIB, true, "a power of two, 256K to 32M"),
    B(read_ahead_kb, 0, MIB, false, "0 to 1048576"),
    /* "inf" is no deadline, and nothing here may wait without one. */
    B(read_deadline_ms, 1, DAY_MS, false, "1ms to 1d"),
    B(list_deadline_ms, 1, DAY_MS, false, "1ms to 1d"),
    B(unmount_timeout, 0, DAY_MS, false, "at most 1d"),
    B(mount_timeout, 1, DAY_MS, false, "1ms to 1d"),
    B(origin_concurrency, 1, 256, false, "1 to 256"),
    B(origin_retries, 0, 10, false, "0 to 10"),
    B(origin_retry_budget, 0, 100, false, "0 to 100"),
    B(connect_timeout_ms, 1, DAY_MS, false, "1ms to 1d"),
    B(stall_timeout_min_ms, 1, DAY_MS, false, "1ms to 1d"),
    B(stall_timeout_max_ms, 1, DAY_MS, false, "1ms to 1d"),
    B(negative_ttl_ms, 0, SECOND_MS, false, "at most 1s"),
    B(heat_half_life, 60 * SECOND_MS, UINT64_MAX, false, "at least 1m"),
    /* The last id means "no change" to chown(2). */
    B(uid, 0, UINT32_MAX - 1, false, "0 to 4294967294"),
    B(gid, 0, UINT32_MAX - 1, false, "0 to 4294967294"),
    B(umask, 0, 0777, false, "0 to 0777"),
    B(nodes, 0, 4096, false, "0 to 4096"),
    B(settle_ms, 0, 60 * SECOND_MS, false, "at most 1m"),
    B(cluster_origin_concurrency, 1, 4096, false, "1 to 4096"),
    B(heartbeat_ms, 200, 60 * SECOND_MS, false, "200ms to 1m"),
    B(policy_poll_ms, 200, 500, false, "200ms to 500ms"),
    B(policy_interval, SECOND_MS, 600 * SECOND_MS, false, "1s to 10m"),
    B(exclude_after_ms, SECOND_MS, UINT64_MAX, false, "at least 1s"),
    B(topology_timeout_ms, 10, 60 * SECOND_MS, false, "10ms to 1m"),
    B(replicate_share_pct, 0, 90, false, "0 to 90"),
    B(replicate_rate, MIB, UINT64_MAX, false, "at least 1M"),
#undef B
};

/* A value before it is stored. */
union value {
    char *str; /* owned until stored */
    uint64_t number;
};

static enum dctf_option_index index_of(const struct dctf_option *option)
{
    return (enum dctf_option_index)(option - dctf_options);
}

static void *field_of(struct dctf_config *config, const struct dctf_option *option)
{
    return (char *)config + option->offset;
}

static bool parse_digits(const char *text, unsigned base, uint64_t *out)
{
    *out = 0;
    if (!*text)
        return false;
    for (; *text; text++) {
        unsigned digit = (unsigned)(unsigned char)*text - '0';

        if (digit >= base || __builtin_mul_overflow(*out, base, out) ||
            __builtin_add_overflow(*out, digit, out))
            return false;
    }
    return true;
}

static bool parse_bool(const char *text, uint64_t *out)
{
    static const char *const words[] = {"off", "on", "no", "yes", "false", "true", "0", "1"};

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (!strcasecmp(text, words[i])) {
            *out = i & 1;
            return true;
        }
    }
    return false;
}

static bool parse_word(const char *text, const char *words, uint64_t *out)
{
    size_t len = strlen(text);

    *out = 0;
    for (;; words++, (*out)++) {
        size_t word_len = strcspn(words, "|");

        if (word_len == len && !strncmp(words, text, len))
            return true;
        words += word_len;
        if (!*words)
            return false;
    }
}

static bool parse_size(const struct dctf_option *option, const char *text, uint64_t *out)
{
    if (dctf_option_has_auto(option) && !strcmp(text, "auto")) {
        /* A reserve of 0 is a wish of its own; the store takes UINT64_MAX for auto. */
        *out = index_of(option) == DCTF_OPTION_INDEX_cache_reserve ? UINT64_MAX : 0;
        return true;
    }
    return dctf_size_parse(text, out) == DCTF_OK && *out != UINT64_MAX;
}

static bool parse_ms(const struct dctf_option *option, const char *text, uint64_t *out)
{
    size_t len = strlen(option->name);
    uint64_t unit_ms = len > 3 && !strcmp(option->name + len - 3, "_ms") ? 1 : 1000;

    return dctf_duration_parse(text, unit_ms, out) == DCTF_OK;
}

static bool parse_number(const struct dctf_option *option, const char *text, uint64_t *out)
{
    switch (option->type) {
    case DCTF_OPTION_TYPE_SIZE:
        return parse_size(option, text, out);
    case DCTF_OPTION_TYPE_MS:
        return parse_ms(option, text, out);
    case DCTF_OPTION_TYPE_UINT:
        return parse_digits(text, 10, out);
    case DCTF_OPTION_TYPE_BOOL:
        return parse_bool(text, out);
    case DCTF_OPTION_TYPE_MODE:
        return parse_digits(text, 8, out);
    case DCTF_OPTION_TYPE_WORD:
        return parse_word(text, option->def, out);
    case DCTF_OPTION_TYPE_STR:
    case DCTF_OPTION_TYPE_SECRET:
        break;
    }
    return false;
}

static const char *expected(const struct dctf_option *option)
{
    switch (option->type) {
    case DCTF_OPTION_TYPE_SIZE:
        return dctf_option_has_auto(option) ? "a size such as 512M or 20G, or auto"
                                            : "a size such as 512M or 20G";
    case DCTF_OPTION_TYPE_MS:
        return "a duration such as 500ms, 30s, 5m, 6h, 7d or inf";
    case DCTF_OPTION_TYPE_UINT:
        return "a whole number";
    case DCTF_OPTION_TYPE_BOOL:
        return "on or off";
    case DCTF_OPTION_TYPE_MODE:
        return "an octal number such as 022";
    case DCTF_OPTION_TYPE_WORD:
        return option->def;
    case DCTF_OPTION_TYPE_STR:
    case DCTF_OPTION_TYPE_SECRET:
        break;
    }
    return "text without control characters";
}

static bool is_auto(const struct dctf_option *option, const char *text)
{
    return dctf_option_has_auto(option) && !strcmp(text, "auto");
}

/* What the value must be, NULL when it is. */
static const char *broken_bound(const struct dctf_option *option, const char *text, uint64_t number)
{
    const struct bounds *bounds = &bounds_of[index_of(option)];

    if (is_auto(option, text))
        return NULL;
    if (!bounds->text)
        return option->type == DCTF_OPTION_TYPE_UINT && number > UINT32_MAX ? "at most 4294967295" : NULL;
    if (number < bounds->min || number > bounds->max)
        return bounds->text;
    return bounds->power_of_two && (number & (number - 1)) ? bounds->text : NULL;
}

static bool has_control(const char *text)
{
    for (; *text; text++) {
        if (iscntrl((unsigned char)*text))
            return true;
    }
    return false;
}

static void free_text(const struct dctf_option *option, char *text)
{
    if (text && option->type == DCTF_OPTION_TYPE_SECRET)
        explicit_bzero(text, strlen(text));
    free(text);
}

static void store(struct dctf_config *config, const struct dctf_option *option, union value value)
{
    void *field = field_of(config, option);

    switch (option->type) {
    case DCTF_OPTION_TYPE_STR:
    case DCTF_OPTION_TYPE_SECRET:
        free_text(option, *(char **)field);
        *(char **)field = value.str;
        break;
    case DCTF_OPTION_TYPE_BOOL:
        *(bool *)field = value.number != 0;
        break;
    case DCTF_OPTION_TYPE_WORD:
        *(unsigned *)field = (unsigned)value.number;
        break;
    case DCTF_OPTION_TYPE_SIZE:
    case DCTF_OPTION_TYPE_MS:
    case DCTF_OPTION_TYPE_UINT:
    case DCTF_OPTION_TYPE_MODE:
        *(uint64_t *)field = value.number;
        break;
    }
}

static enum dctf_err complain_value(struct dctf_config_error *error, const char *where,
    const struct dctf_option *option, const char *value, const char *must_be)
{
    char quoted[80];

    if (option->type == DCTF_OPTION_TYPE_SECRET)
        snprintf(quoted, sizeof(quoted), "(not shown)");
    else
        dctf_str_quote(value, quoted, sizeof(quoted));
    dctf_config_complain(error, where, "bad value %s for %s: it must be %s", quoted, option->name, must_be);
    return DCTF_ERR_OPTION_VALUE;
}

enum dctf_err dctf_config_set(struct dctf_config *config, const char *name, const char *value,
    const char *where, struct dctf_config_error *error)
{
    const struct dctf_option *option = dctf_option_find(name);
    union value parsed;

    if (!option)
        return dctf_config_complain_unknown(error, where, name);
    if (!value) {
        if (option->type != DCTF_OPTION_TYPE_BOOL) {
            dctf_config_complain(error, where, "%s needs a value: %s", name, expected(option));
            return DCTF_ERR_OPTION_VALUE;
        }
        value = "on";
    }
    if (dctf_option_is_text(option)) {
        if (has_control(value))
            return complain_value(error, where, option, value, expected(option));
        parsed.str = strdup(value);
        if (!parsed.str) {
            dctf_config_complain(error, where, "out of memory");
            return DCTF_ERR_NO_MEMORY;
        }
    } else {
        const char *must_be;

        if (!parse_number(option, value, &parsed.number))
            return complain_value(error, where, option, value, expected(option));
        must_be = broken_bound(option, value, parsed.number);
        if (must_be)
            return complain_value(error, where, option, value, must_be);
    }
    store(config, option, parsed);
    config->set_mask[index_of(option) / 64] |= 1ull << (index_of(option) % 64);
    return DCTF_OK;
}

bool dctf_config_is_set(const struct dctf_config *config, enum dctf_option_index option)
{
    return config->set_mask[option / 64] >> (option % 64) & 1;
}

/* The default of a WORD is the first of its words: index 0, as it is after clearing. */
enum dctf_err dctf_config_init(struct dctf_config *config)
{
    _Static_assert(DCTF_OPTION_COUNT <= sizeof(config->set_mask) * 8, "set_mask is too short");
    enum dctf_err err = DCTF_OK;

    *config = (struct dctf_config){0};
    for (size_t i = 0; i < DCTF_OPTION_COUNT && !err; i++) {
        const struct dctf_option *option = &dctf_options[i];

        if (option->type == DCTF_OPTION_TYPE_WORD)
            continue;
        err = dctf_config_set(config, option->name, option->def, "default", NULL);
        assert(err == DCTF_OK || err == DCTF_ERR_NO_MEMORY);
    }
    if (err) {
        dctf_config_fini(config);
        return err;
    }
    config->uid = geteuid();
    config->gid = getegid();
    memset(config->set_mask, 0, sizeof(config->set_mask));
    return DCTF_OK;
}

void dctf_config_fini(struct dctf_config *config)
{
    for (size_t i = 0; i < DCTF_OPTION_COUNT; i++) {
        if (dctf_option_is_text(&dctf_options[i]))
            free_text(&dctf_options[i], *(char **)field_of(config, &dctf_options[i]));
    }
    free(config->source);
    free(config->dataset);
    *config = (struct dctf_config){0};
}

enum dctf_err dctf_config_check(const struct dctf_config *config, struct dctf_config_error *error)
{
    char readahead[16];
    char memory[16];

    if (config->memory && config->readahead > config->memory) {
        dctf_config_complain(error, "options", "readahead (%s) must not be larger than memory (%s)",
            dctf_size_format(config->readahead, readahead, sizeof(readahead)),
            dctf_size_format(config->memory, memory, sizeof(memory)));
        return DCTF_ERR_OPTION_VALUE;
    }
    if (config->stall_timeout_min_ms > config->stall_timeout_max_ms) {
        dctf_config_complain(
            error, "options", "stall_timeout_min_ms must not be larger than stall_timeout_max_ms");
        return DCTF_ERR_OPTION_VALUE;
    }
    if (!*config->access_key_id != !*config->secret_access_key) {
        dctf_config_complain(
            error, "options", "access_key_id and secret_access_key are given together or not at all");
        return DCTF_ERR_OPTION_VALUE;
    }
    if (*config->cluster_secret && strlen(config->cluster_secret) < SECRET_MIN_BYTES) {
        dctf_config_complain(error, "options", "cluster_secret is shorter than %u bytes", SECRET_MIN_BYTES);
        return DCTF_ERR_OPTION_VALUE;
    }
    if (*config->peers && *config->redis) {
        dctf_config_complain(error, "options", "peers and redis exclude each other");
        return DCTF_ERR_OPTION_VALUE;
    }
    if (!*config->peer_cert != !*config->peer_key || !*config->peer_cert != !*config->peer_ca) {
        dctf_config_complain(
            error, "options", "peer_cert, peer_key and peer_ca are given together or not at all");
        return DCTF_ERR_OPTION_VALUE;
    }
    if (config->anonymous && *config->access_key_id) {
        dctf_config_complain(error, "options", "anonymous excludes access_key_id");
        return DCTF_ERR_OPTION_VALUE;
    }
    return DCTF_OK;
}
