/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/early.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum state {
    EARLY_FREE,
    EARLY_READING,
    EARLY_READY,
    EARLY_TAKEN,
};

struct dctf_early {
    pthread_mutex_t lock;
    uint64_t looked_up; /* latest look-up no open has followed yet; 0: none. Guarded by lock, as all below */
    unsigned streak;
    enum state state;
    struct dctf_id id;            /* of the bytes, but for FREE */
    void *read;                   /* parked; READING only */
    char bytes[DCTF_EARLY_BYTES]; /* of whoever made it READING or TAKEN; else guarded by lock */
};

enum dctf_err dctf_early_new(struct dctf_early **out)
{
    *out = calloc(1, sizeof(**out));
    if (!*out)
        return DCTF_ERR_NO_MEMORY;
    pthread_mutex_init(&(*out)->lock, NULL);
    return DCTF_OK;
}

void dctf_early_free(struct dctf_early *early)
{
    if (!early)
        return;
    assert(early->state == EARLY_FREE || early->state == EARLY_READY);
    pthread_mutex_destroy(&early->lock);
    free(early);
}

bool dctf_early_looked_up(struct dctf_early *early, uint64_t ino)
{
    bool likely;

    pthread_mutex_lock(&early->lock);
    if (early->looked_up)
        early->streak = 0;
    early->looked_up = ino;
    likely = early->streak >= DCTF_EARLY_STREAK;
    pthread_mutex_unlock(&early->lock);
    return likely;
}

void dctf_early_opened(struct dctf_early *early, uint64_t ino)
{
    pthread_mutex_lock(&early->lock);
    if (early->looked_up == ino) {
        early->looked_up = 0;
        if (early->streak < DCTF_EARLY_STREAK)
            early->streak++;
    }
    pthread_mutex_unlock(&early->lock);
}

void *dctf_early_claim(struct dctf_early *early, const struct dctf_id *id)
{
    void *bytes = NULL;

    pthread_mutex_lock(&early->lock);
    if (early->state == EARLY_FREE || early->state == EARLY_READY) {
        early->state = EARLY_READING;
        early->id = *id;
        bytes = early->bytes;
    }
    pthread_mutex_unlock(&early->lock);
    return bytes;
}

void *dctf_early_done(struct dctf_early *early, bool ok)
{
    void *read;

    pthread_mutex_lock(&early->lock);
    assert(early->state == EARLY_READING);
    read = early->read;
    early->read = NULL;
    if (!ok)
        early->state = EARLY_FREE;
    else
        early->state = read ? EARLY_TAKEN : EARLY_READY;
    pthread_mutex_unlock(&early->lock);
    return read;
}

static bool has_locked(const struct dctf_early *early, const struct dctf_id *id)
{
    return early->state != EARLY_FREE && !memcmp(early->id.bytes, id->bytes, sizeof(id->bytes));
}

bool dctf_early_has(struct dctf_early *early, const struct dctf_id *id)
{
    bool has;

    pthread_mutex_lock(&early->lock);
    has = has_locked(early, id);
    pthread_mutex_unlock(&early->lock);
    return has;
}

enum dctf_early_take dctf_early_take(
    struct dctf_early *early, const struct dctf_id *id, void *read, const void **bytes)
{
    enum dctf_early_take take = DCTF_EARLY_NONE;

    *bytes = NULL;
    pthread_mutex_lock(&early->lock);
    if (has_locked(early, id)) {
        if (early->state == EARLY_READY) {
            early->state = EARLY_TAKEN;
            *bytes = early->bytes;
            take = DCTF_EARLY_TAKEN;
        } else if (early->state == EARLY_READING && !early->read) {
            early->read = read;
            take = DCTF_EARLY_PARKED;
        }
    }
    pthread_mutex_unlock(&early->lock);
    return take;
}

void dctf_early_release(struct dctf_early *early, bool keep)
{
    pthread_mutex_lock(&early->lock);
    assert(early->state == EARLY_TAKEN);
    early->state = keep ? EARLY_READY : EARLY_FREE;
    pthread_mutex_unlock(&early->lock);
}
