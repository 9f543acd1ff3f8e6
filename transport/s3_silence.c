/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/s3_silence.h"

#include "base/quantile.h"

#include <pthread.h>
#include <stdlib.h>

#define SAMPLES_MIN 32u /* fewer tell nothing of a 99th percentile */
#define FACTOR 4u
#define BACKOFF_MAX 16u

struct sample {
    struct dctf_quantile first_byte;
    unsigned backoff; /* 1, 2, 4 … */
};

struct dctf_s3_silence {
    uint64_t min_ms, max_ms;
    uint64_t ceiling_ms[DCTF_S3_SILENCE_KINDS]; /* of what stalls may raise it to */
    pthread_mutex_t lock;
    struct sample samples[DCTF_S3_SILENCE_KINDS]; /* guarded by lock */
};

enum dctf_err dctf_s3_silence_new(
    uint64_t min_ms, uint64_t max_ms, uint64_t list_max_ms, struct dctf_s3_silence **out)
{
    struct dctf_s3_silence *silence = calloc(1, sizeof(*silence));

    *out = silence;
    if (!silence)
        return DCTF_ERR_NO_MEMORY;
    silence->min_ms = min_ms;
    silence->max_ms = max_ms > min_ms ? max_ms : min_ms;
    silence->ceiling_ms[DCTF_S3_SILENCE_READ] = silence->max_ms;
    silence->ceiling_ms[DCTF_S3_SILENCE_META] = list_max_ms > silence->max_ms ? list_max_ms : silence->max_ms;
    pthread_mutex_init(&silence->lock, NULL);
    for (size_t i = 0; i < DCTF_S3_SILENCE_KINDS; i++)
        silence->samples[i].backoff = 1;
    return DCTF_OK;
}

void dctf_s3_silence_free(struct dctf_s3_silence *silence)
{
    if (!silence)
        return;
    pthread_mutex_destroy(&silence->lock);
    free(silence);
}

static uint64_t base_ms_locked(const struct dctf_s3_silence *silence, const struct sample *sample)
{
    uint64_t ms;

    if (sample->first_byte.total < SAMPLES_MIN)
        return silence->max_ms;
    ms = dctf_quantile_ns(&sample->first_byte, 990) * FACTOR / 1000000;
    if (ms > silence->max_ms)
        return silence->max_ms;
    return ms < silence->min_ms ? silence->min_ms : ms;
}

static uint64_t allowed_ms_locked(const struct dctf_s3_silence *silence, enum dctf_s3_silence_kind kind)
{
    const struct sample *sample = &silence->samples[kind];
    uint64_t ceiling_ms = silence->ceiling_ms[kind];
    uint64_t ms = base_ms_locked(silence, sample);

    return ms > ceiling_ms / sample->backoff ? ceiling_ms : ms * sample->backoff;
}

uint64_t dctf_s3_silence_ms(struct dctf_s3_silence *silence, enum dctf_s3_silence_kind kind)
{
    uint64_t ms;

    pthread_mutex_lock(&silence->lock);
    ms = allowed_ms_locked(silence, kind);
    pthread_mutex_unlock(&silence->lock);
    return ms;
}

void dctf_s3_silence_answered(
    struct dctf_s3_silence *silence, enum dctf_s3_silence_kind kind, uint64_t first_byte_ns)
{
    struct sample *sample = &silence->samples[kind];

    pthread_mutex_lock(&silence->lock);
    /* An answer that needed the longer time shows that stalls are slowness here: keep it. */
    if (first_byte_ns / 1000000 <= base_ms_locked(silence, sample) / 2)
        sample->backoff = 1;
    dctf_quantile_add(&sample->first_byte, first_byte_ns);
    pthread_mutex_unlock(&silence->lock);
}

void dctf_s3_silence_stalled(
    struct dctf_s3_silence *silence, enum dctf_s3_silence_kind kind, uint64_t allowed_ms)
{
    struct sample *sample = &silence->samples[kind];

    pthread_mutex_lock(&silence->lock);
    if (sample->backoff < BACKOFF_MAX && allowed_ms >= allowed_ms_locked(silence, kind))
        sample->backoff *= 2;
    pthread_mutex_unlock(&silence->lock);
}
