/* SPDX-License-Identifier: Apache-2.0 */
#include "sim.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void sim_fail(const struct sim_run *run, uint64_t at_us, const char *format, ...)
{
    va_list args;

    fflush(stdout);
    fprintf(stderr, "FAILED scenario=%s seed=%" PRIu64 " time=%.6fs: ", run->scenario, run->seed,
        (double)at_us / 1e6);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\nrepeat with: cluster_sim --seed %" PRIu64 "%s %s\n", run->seed,
        run->full ? " --full" : "", run->scenario);
    exit(1);
}

void *sim_alloc(size_t count, size_t size)
{
    void *memory = calloc(count ? count : 1, size);

    if (!memory) {
        fprintf(stderr, "cluster_sim: no memory\n");
        exit(2);
    }
    return memory;
}

double sim_unit(struct dctf_rng *rng)
{
    return (double)(dctf_rng_next(rng) >> 11) * 0x1p-53;
}

uint64_t sim_between(struct dctf_rng *rng, uint64_t low, uint64_t high)
{
    return low + dctf_rng_below(rng, high - low + 1);
}

bool sim_chance(struct dctf_rng *rng, unsigned permille)
{
    return dctf_rng_below(rng, 1000) < permille;
}

/* Multiplication of uniform numbers (Knuth); above a mean of 30 the normal distribution. */
unsigned sim_poisson(struct dctf_rng *rng, double mean)
{
    double limit, product = 1;
    unsigned count = 0;

    if (mean > 30) {
        double u = sim_unit(rng) + 0x1p-60, v = sim_unit(rng);
        double value = mean + sqrt(mean) * sqrt(-2 * log(u)) * cos(6.283185307179586 * v) + 0.5;

        return value > 0 ? (unsigned)value : 0;
    }
    limit = exp(-mean);
    for (;;) {
        product *= sim_unit(rng);
        if (product <= limit)
            return count;
        count++;
    }
}

void sim_shuffle(struct dctf_rng *rng, uint32_t *out, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = (uint32_t)dctf_rng_below(rng, i + 1);

        out[i] = out[at];
        out[at] = i;
    }
}

void sim_trace(struct sim_run *run, uint64_t number)
{
    struct dctf_rng mixer = {run->trace ^ number};

    run->trace = dctf_rng_next(&mixer);
    run->steps++;
}

static void print_cells(const char *text)
{
    printf("| ");
    for (; *text; text++) {
        if (*text == '|')
            printf(" | ");
        else
            putchar(*text);
    }
    printf(" |\n");
}

void sim_columns(const struct sim_run *run, const char *columns)
{
    if (!run->table)
        return;
    print_cells(columns);
    printf("|---");
    for (const char *at = columns; *at; at++) {
        if (*at == '|')
            printf("|---");
    }
    printf("|\n");
}

void sim_row(const struct sim_run *run, const char *format, ...)
{
    char text[512];
    va_list args;

    if (!run->table)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    print_cells(text);
    fflush(stdout);
}

void sim_text(const struct sim_run *run, const char *text)
{
    if (run->table)
        printf("%s\n", text);
}
