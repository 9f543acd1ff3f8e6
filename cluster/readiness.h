/* SPDX-License-Identifier: Apache-2.0
 *
 * The receiver's half of the gate: whether this node can take more in the background now. Memory,
 * writers and disk have to have room; what the kernel says of stalls (PSI) slows background down but does not
 * stop it: one request goes in five seconds whatever the pressure, since another's load may never end.
 *
 * Threads:   caller locks; reads /proc, at most once in two seconds.
 * Ownership: embedded; no resources.
 */
#ifndef DCTF_CLUSTER_READINESS_H
#define DCTF_CLUSTER_READINESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dctf_budget;
struct dctf_pool;
struct dctf_store;

enum dctf_ready {
    DCTF_READY,
    DCTF_UNREADY_MEMORY,
    DCTF_UNREADY_WRITERS,
    DCTF_UNREADY_DISK,
    DCTF_UNREADY_PRESSURE
};

struct dctf_readiness {
    struct dctf_budget *budget; /* borrowed */
    struct dctf_pool *writers;  /* borrowed */
    struct dctf_store *store;   /* borrowed */
    const char *root;           /* "" but in tests: before /proc/pressure */
    uint64_t looked_ms;         /* at the pressure; 0: never */
    bool pressed;
    uint64_t passed_ms; /* when something was let through last */
};

/* May a request for `bytes` begin? Those that may are taken to begin. */
enum dctf_ready dctf_readiness_ask(struct dctf_readiness *readiness, size_t bytes, uint64_t now_ms);
/* avg10 of the line "full" of a file of /proc/pressure, in hundredths of a percent; 0 when it has none. */
unsigned dctf_pressure_full(const char *text);

#endif
