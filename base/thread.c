/* SPDX-License-Identifier: Apache-2.0 */
#include "base/thread.h"

#include <signal.h>
#include <stdio.h>
#include <time.h>

enum dctf_err dctf_thread_start(const char *name, void *(*run)(void *ctx), void *ctx, pthread_t *out)
{
    sigset_t all;
    sigset_t before;
    char cut[16];
    int rc;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(out, NULL, run, ctx);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc)
        return DCTF_ERR_SYSTEM;
    snprintf(cut, sizeof(cut), "%.15s", name);
    pthread_setname_np(*out, cut);
    return DCTF_OK;
}

enum dctf_err dctf_thread_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    int rc;

    if (pthread_condattr_init(&attr))
        return DCTF_ERR_SYSTEM;
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    rc = pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
    return rc ? DCTF_ERR_SYSTEM : DCTF_OK;
}
