/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/door.h"

#include "base/clock.h"

#include <sched.h>
#include <time.h>

void dctf_door_init(struct dctf_door *door)
{
    for (unsigned i = 0; i < DCTF_DOOR_LANES; i++)
        atomic_init(&door->lanes[i].inside, 0);
    atomic_init(&door->closed, false);
    pthread_mutex_init(&door->lock, NULL);
    pthread_cond_init(&door->opened, NULL);
}

void dctf_door_fini(struct dctf_door *door)
{
    pthread_mutex_destroy(&door->lock);
    pthread_cond_destroy(&door->opened);
}

unsigned dctf_door_enter(struct dctf_door *door)
{
    int cpu = sched_getcpu();
    unsigned lane = cpu < 0 ? 0 : (unsigned)cpu % DCTF_DOOR_LANES;

    for (;;) {
        atomic_fetch_add(&door->lanes[lane].inside, 1);
        if (!atomic_load(&door->closed))
            return lane;
        /* The same lane goes down again: a lane never shows less than its truth. */
        atomic_fetch_sub(&door->lanes[lane].inside, 1);
        pthread_mutex_lock(&door->lock);
        while (atomic_load(&door->closed))
            pthread_cond_wait(&door->opened, &door->lock);
        pthread_mutex_unlock(&door->lock);
    }
}

void dctf_door_leave(struct dctf_door *door, unsigned lane)
{
    atomic_fetch_sub(&door->lanes[lane].inside, 1);
}

bool dctf_door_close(struct dctf_door *door, uint64_t wait_ms)
{
    uint64_t deadline = dctf_clock_mono_ms(NULL) + wait_ms;

    pthread_mutex_lock(&door->lock);
    atomic_store(&door->closed, true);
    pthread_mutex_unlock(&door->lock);
    for (;;) {
        unsigned inside = 0;

        for (unsigned i = 0; i < DCTF_DOOR_LANES; i++)
            inside += atomic_load(&door->lanes[i].inside);
        if (!inside)
            return true;
        if (dctf_clock_mono_ms(NULL) >= deadline) {
            dctf_door_open(door);
            return false;
        }
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

void dctf_door_open(struct dctf_door *door)
{
    pthread_mutex_lock(&door->lock);
    atomic_store(&door->closed, false);
    pthread_cond_broadcast(&door->opened);
    pthread_mutex_unlock(&door->lock);
}
