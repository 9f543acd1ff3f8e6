/* SPDX-License-Identifier: Apache-2.0
 *
 * The control file of origin_script.h: rules, and what they decide.
 *
 * Threads:   caller locks.
 * Ownership: a dctf_script_rules is embedded, zeroed at first.
 */
#ifndef DCTF_TESTS_ORIGIN_SCRIPT_RULES_H
#define DCTF_TESTS_ORIGIN_SCRIPT_RULES_H

#include "base/clock.h"
#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dctf_script_op {
    DCTF_SCRIPT_GET,
    DCTF_SCRIPT_LIST,
    DCTF_SCRIPT_HEAD,
    DCTF_SCRIPT_CHECK,
    DCTF_SCRIPT_OP_COUNT
};

/* What a rule does to a request. */
struct dctf_script_fate {
    uint64_t delay_ms;
    bool stall;
    bool hard;
    enum dctf_err err;
    bool cut;
    size_t cut_at;
};

struct dctf_script_rule;

struct dctf_script_rules {
    struct dctf_script_rule *rules;
    size_t count;
    struct dctf_rng rng;
    json_int_t seed;
    json_int_t serial;
    char *stats; /* path, NULL: none */
};

void dctf_script_rules_fini(struct dctf_script_rules *rules);
/* Take the place of the rules before. False: not understood, nothing changed; `why`
 * (JSON_ERROR_TEXT_LENGTH bytes) says what. */
bool dctf_script_rules_apply(struct dctf_script_rules *rules, json_t *json, char *why);
/* The fate of a request: the first rule that matches. Rolls dice and counts. */
struct dctf_script_fate dctf_script_rules_decide(
    struct dctf_script_rules *rules, enum dctf_script_op op, const char *key);
/* Whether any rule stalls such requests, whatever its dice and counts. */
bool dctf_script_rules_stall(const struct dctf_script_rules *rules, enum dctf_script_op op, const char *key);

#endif
