/* SPDX-License-Identifier: Apache-2.0
 *
 * What all scenarios of the cluster simulator share: the run they belong to, checks that tell how to
 * repeat a failure, chance, and tables of results.
 *
 * A run is decided by its scenario, its seed and its size alone: no clock, no thread, no socket.
 *
 * Threads:   one thread.
 * Ownership: the run belongs to main.
 */
#ifndef DCTF_TESTS_SIM_SIM_H
#define DCTF_TESTS_SIM_SIM_H

#include "base/clock.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sim_run {
    const char *scenario;
    uint64_t seed;
    bool full;      /* the sizes of the report; else those of a test */
    bool table;     /* print rows */
    uint64_t trace; /* hash of everything that happened: equal for equal runs */
    uint64_t steps;
};

/* Print what is wrong and how to repeat it, and exit with 1. */
__attribute__((format(printf, 3, 4), noreturn)) void sim_fail(
    const struct sim_run *run, uint64_t at_us, const char *format, ...);

/* An invariant: it holds at this moment of the run, or the program ends. */
#define SIM_CHECK(run, at_us, condition, ...)                                                                \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            sim_fail(run, at_us, __VA_ARGS__);                                                               \
    } while (0)

/* Zeroed memory; the simulator ends when there is none. */
void *sim_alloc(size_t count, size_t size);

/* [0, 1) */
double sim_unit(struct dctf_rng *rng);
/* [low, high] */
uint64_t sim_between(struct dctf_rng *rng, uint64_t low, uint64_t high);
bool sim_chance(struct dctf_rng *rng, unsigned permille);
/* Poisson distributed with this mean. */
unsigned sim_poisson(struct dctf_rng *rng, double mean);
/* A random order of 0 … count - 1. */
void sim_shuffle(struct dctf_rng *rng, uint32_t *out, uint32_t count);
/* Take a number into the trace. */
void sim_trace(struct sim_run *run, uint64_t number);

/* A table of results: its columns separated by '|', then its rows alike. */
void sim_columns(const struct sim_run *run, const char *columns);
__attribute__((format(printf, 2, 3))) void sim_row(const struct sim_run *run, const char *format, ...);
/* A line of text between tables. */
void sim_text(const struct sim_run *run, const char *text);

/* --- scenarios --- */

void scenario_coldstart(struct sim_run *run);
void scenario_churn(struct sim_run *run);
void scenario_views(struct sim_run *run);
void scenario_placement(struct sim_run *run);
void scenario_exclusion(struct sim_run *run);
void scenario_policy(struct sim_run *run);
void scenario_gate(struct sim_run *run);

#endif
