/* SPDX-License-Identifier: Apache-2.0
 *
 * Deadlines: one thread that runs callbacks at a monotonic time.
 *
 * Threads:   any thread may arm and cancel. Callbacks run on the timer's thread
 *            one after another, with no lock held; they must not block.
 * Ownership: a dctf_timer is embedded in its owner, which keeps it alive until
 *            it fired or dctf_timer_cancel() returned.
 */
#ifndef DCTF_BASE_TIMER_H
#define DCTF_BASE_TIMER_H

#include "base/clock.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dctf_timers;

struct dctf_timer {
    uint64_t due_ms;
    void (*fire)(void *ctx);
    void *ctx;
    size_t slot; /* place in the heap + 1; 0 when not armed */
};

DCTF_MUST_CHECK
enum dctf_err dctf_timers_new(struct dctf_timers **out);
/* Stop the thread; timers still armed never fire. */
void dctf_timers_free(struct dctf_timers *timers);

/* Call fire(ctx) once `delay_ms` from now. The timer must not be armed. */
DCTF_MUST_CHECK
enum dctf_err dctf_timer_arm(struct dctf_timers *timers, struct dctf_timer *timer, uint64_t delay_ms,
    void (*fire)(void *ctx), void *ctx);
/* True: disarmed, fire will not run. False: it was not armed, or fire has
 * finished; a fire that is running on the timer's thread is waited for, except
 * when called from that very thread. Hold no lock that fire takes. */
bool dctf_timer_cancel(struct dctf_timers *timers, struct dctf_timer *timer);

#endif
