/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/resolve.h"

#include "base/thread.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ADDRESSES_MAX 4096u

/* Shared by the owner and, while a look-up runs, its thread; the last frees it. */
struct dctf_resolver {
    char *host;
    pthread_mutex_t lock;
    pthread_cond_t done;
    /* guarded by lock */
    unsigned refs;
    bool busy;
    bool answered; /* and not taken */
    struct dctf_resolved answer;
};

void dctf_resolved_fini(struct dctf_resolved *resolved)
{
    free(resolved->addresses);
    *resolved = (struct dctf_resolved){.count = 0};
}

static void unref(struct dctf_resolver *resolver)
{
    bool last;

    pthread_mutex_lock(&resolver->lock);
    last = --resolver->refs == 0;
    pthread_mutex_unlock(&resolver->lock);
    if (!last)
        return;
    dctf_resolved_fini(&resolver->answer);
    pthread_cond_destroy(&resolver->done);
    pthread_mutex_destroy(&resolver->lock);
    free(resolver->host);
    free(resolver);
}

static void copy_addresses(const struct addrinfo *list, struct dctf_resolved *out)
{
    size_t count = 0;

    for (const struct addrinfo *at = list; at && count < ADDRESSES_MAX; at = at->ai_next)
        count++;
    out->addresses = calloc(count + 1, sizeof(*out->addresses));
    if (!out->addresses) {
        out->status = EAI_MEMORY;
        return;
    }
    for (const struct addrinfo *at = list; at && out->count < count; at = at->ai_next) {
        struct sockaddr_storage *to = &out->addresses[out->count];
        bool seen = false;

        if (at->ai_addrlen > sizeof(*to) || (at->ai_family != AF_INET && at->ai_family != AF_INET6))
            continue;
        memset(to, 0, sizeof(*to));
        memcpy(to, at->ai_addr, at->ai_addrlen);
        for (size_t i = 0; i < out->count && !seen; i++)
            seen = !memcmp(&out->addresses[i], to, sizeof(*to));
        out->count += !seen;
    }
}

static void *look_up(void *ctx)
{
    struct dctf_resolver *resolver = ctx;
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    struct dctf_resolved answer = {.status = getaddrinfo(resolver->host, NULL, &hints, &list)};

    if (!answer.status) {
        copy_addresses(list, &answer);
        freeaddrinfo(list);
    }
    pthread_mutex_lock(&resolver->lock);
    dctf_resolved_fini(&resolver->answer);
    resolver->answer = answer;
    resolver->answered = true;
    resolver->busy = false;
    pthread_cond_signal(&resolver->done);
    pthread_mutex_unlock(&resolver->lock);
    unref(resolver);
    return NULL;
}

enum dctf_err dctf_resolver_new(const char *host, struct dctf_resolver **out)
{
    struct dctf_resolver *resolver = calloc(1, sizeof(*resolver));
    enum dctf_err err;

    *out = NULL;
    if (!resolver)
        return DCTF_ERR_NO_MEMORY;
    resolver->host = strdup(host);
    err = resolver->host ? dctf_thread_cond_init(&resolver->done) : DCTF_ERR_NO_MEMORY;
    if (err) {
        free(resolver->host);
        free(resolver);
        return err;
    }
    pthread_mutex_init(&resolver->lock, NULL);
    resolver->refs = 1;
    *out = resolver;
    return DCTF_OK;
}

enum dctf_err dctf_resolver_ask(struct dctf_resolver *resolver)
{
    pthread_t thread;
    bool begin;
    enum dctf_err err;

    pthread_mutex_lock(&resolver->lock);
    begin = !resolver->busy;
    if (begin) {
        resolver->busy = true;
        resolver->answered = false;
        resolver->refs++;
    }
    pthread_mutex_unlock(&resolver->lock);
    if (!begin)
        return DCTF_OK;
    err = dctf_thread_start("resolver", look_up, resolver, &thread);
    if (!err) {
        pthread_detach(thread);
        return DCTF_OK;
    }
    pthread_mutex_lock(&resolver->lock);
    resolver->busy = false;
    resolver->refs--; /* the owner's is left */
    pthread_mutex_unlock(&resolver->lock);
    return err;
}

enum dctf_err dctf_resolver_take(
    struct dctf_resolver *resolver, uint64_t timeout_ms, struct dctf_resolved *out)
{
    struct timespec due;
    enum dctf_err err = DCTF_ERR_DEADLINE;
    int rc = 0;

    *out = (struct dctf_resolved){.count = 0};
    clock_gettime(CLOCK_MONOTONIC, &due);
    due.tv_sec += (time_t)(timeout_ms / 1000);
    due.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    due.tv_sec += due.tv_nsec / 1000000000;
    due.tv_nsec %= 1000000000;
    pthread_mutex_lock(&resolver->lock);
    while (!rc && !resolver->answered)
        rc = pthread_cond_timedwait(&resolver->done, &resolver->lock, &due);
    if (resolver->answered) {
        *out = resolver->answer;
        resolver->answer = (struct dctf_resolved){.count = 0};
        resolver->answered = false;
        err = DCTF_OK;
    }
    pthread_mutex_unlock(&resolver->lock);
    return err;
}

void dctf_resolver_free(struct dctf_resolver *resolver)
{
    if (resolver)
        unref(resolver);
}
