/* SPDX-License-Identifier: Apache-2.0
 *
 * A door that many pass and one may close: closing waits, within a bound, until
 * all who are inside have left. Unlike a rwlock, one may leave on another thread
 * than one entered on.
 *
 * Threads:   any thread. Entering costs one atomic on a counter that processors
 *            do not share; it waits only while the door is closed.
 * Ownership: embedded; init and fini.
 */
#ifndef DCTF_CACHE_DOOR_H
#define DCTF_CACHE_DOOR_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define DCTF_DOOR_LANES 8u

struct dctf_door_lane {
    _Alignas(64) atomic_uint inside;
};

struct dctf_door {
    struct dctf_door_lane lanes[DCTF_DOOR_LANES];
    atomic_bool closed; /* changed under lock */
    pthread_mutex_t lock;
    pthread_cond_t opened;
};

void dctf_door_init(struct dctf_door *door);
void dctf_door_fini(struct dctf_door *door);

/* The lane, for dctf_door_leave(). */
unsigned dctf_door_enter(struct dctf_door *door);
void dctf_door_leave(struct dctf_door *door, unsigned lane);

/* One thread at a time. True: nobody is inside until dctf_door_open(). False, with
 * the door open again, when somebody stayed inside for `wait_ms`. */
bool dctf_door_close(struct dctf_door *door, uint64_t wait_ms);
void dctf_door_open(struct dctf_door *door);

#endif
