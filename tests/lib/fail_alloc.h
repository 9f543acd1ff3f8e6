/* SPDX-License-Identifier: Apache-2.0
 *
 * Make the Nth allocation fail, count what is not freed, and step in between before an allocation. The
 * allocation functions of the program's own objects are wrapped by the linker (see the
 * --wrap options of dctf_testbase), so it works below sanitizers too; what the
 * C library allocates for itself is not seen.
 *
 * Threads:   one thread arms at a time; only its allocations fail. Frees are seen
 *            from every thread.
 * Ownership: nothing is kept.
 */
#ifndef DCTF_TESTS_FAIL_ALLOC_H
#define DCTF_TESTS_FAIL_ALLOC_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

/* The `nth` allocation of this thread from now on (1 is the next) fails; those
 * after it succeed. 0 only counts. */
void fail_alloc_arm(unsigned nth);
/* Stop; true when an allocation was made to fail. */
bool fail_alloc_disarm(void);
/* Allocations of this thread made since it was armed and not freed until now. */
size_t fail_alloc_live(void);

/* Call before(ctx) ahead of each allocation of this thread, until it returns false: where a thread can be
 * stopped without a word in the code that is tested. Allocations that it makes itself are not told of. */
void fail_alloc_before(bool (*before)(void *ctx), void *ctx);

/* Call make(ctx) with its first, second, … allocation failing until it gets
 * through, then drop(ctx). Each failure must be DCTF_ERR_NO_MEMORY, leave
 * *made NULL (when `made` is given) and leak nothing. Returns how many
 * allocations were made to fail. */
unsigned fail_alloc_sweep(enum dctf_err (*make)(void *ctx), void (*drop)(void *ctx), void *ctx, void **made);

#endif
