/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/fail_alloc.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TRACKED_MAX 4096

/* The linker's names for the wrapped functions and the real ones. */
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *ptr, size_t size);
char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t len);
int __real_posix_memalign(void **out, size_t align, size_t size);
void *__real_aligned_alloc(size_t align, size_t size);
void __real_free(void *ptr);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *ptr, size_t size);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t len);
int __wrap_posix_memalign(void **out, size_t align, size_t size);
void *__wrap_aligned_alloc(size_t align, size_t size);
void __wrap_free(void *ptr);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uintptr_t tracked[TRACKED_MAX]; /* guarded by lock */
static atomic_size_t tracked_len;      /* changed under lock */
static _Thread_local bool armed;
static _Thread_local unsigned until_failure;
static _Thread_local bool struck;
static _Thread_local bool (*call_before)(void *ctx);
static _Thread_local void *before_ctx;

static void step_in(void)
{
    bool (*call)(void *ctx) = call_before;

    if (!call)
        return;
    call_before = NULL; /* it may allocate */
    if (call(before_ctx))
        call_before = call;
}

static bool must_fail(void)
{
    step_in();
    if (!armed || !until_failure || --until_failure)
        return false;
    struck = true;
    errno = ENOMEM;
    return true;
}

static void *track(void *ptr)
{
    if (armed && ptr) {
        pthread_mutex_lock(&lock);
        assert_true(tracked_len < TRACKED_MAX);
        tracked[tracked_len++] = (uintptr_t)ptr;
        pthread_mutex_unlock(&lock);
    }
    return ptr;
}

static void untrack(const void *ptr)
{
    /* A lock around every free would order the threads and hide races from TSan. */
    if (!atomic_load_explicit(&tracked_len, memory_order_relaxed))
        return;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < tracked_len; i++) {
        if (tracked[i] == (uintptr_t)ptr) {
            tracked[i] = tracked[--tracked_len];
            break;
        }
    }
    pthread_mutex_unlock(&lock);
}

void *__wrap_malloc(size_t size)
{
    return must_fail() ? NULL : track(__real_malloc(size));
}

void *__wrap_calloc(size_t count, size_t size)
{
    return must_fail() ? NULL : track(__real_calloc(count, size));
}

void *__wrap_realloc(void *ptr, size_t size)
{
    void *moved;

    if (must_fail())
        return NULL;
    untrack(ptr);
    moved = __real_realloc(ptr, size);
    return track(moved);
}

char *__wrap_strdup(const char *text)
{
    return must_fail() ? NULL : track(__real_strdup(text));
}

char *__wrap_strndup(const char *text, size_t len)
{
    return must_fail() ? NULL : track(__real_strndup(text, len));
}

int __wrap_posix_memalign(void **out, size_t align, size_t size)
{
    int rc;

    if (must_fail())
        return ENOMEM;
    rc = __real_posix_memalign(out, align, size);
    if (!rc)
        track(*out);
    return rc;
}

void *__wrap_aligned_alloc(size_t align, size_t size)
{
    return must_fail() ? NULL : track(__real_aligned_alloc(align, size));
}

void __wrap_free(void *ptr)
{
    untrack(ptr);
    __real_free(ptr);
}

void fail_alloc_arm(unsigned nth)
{
    pthread_mutex_lock(&lock);
    tracked_len = 0;
    pthread_mutex_unlock(&lock);
    until_failure = nth;
    struck = false;
    armed = true;
}

bool fail_alloc_disarm(void)
{
    armed = false;
    return struck;
}

size_t fail_alloc_live(void)
{
    size_t live;

    pthread_mutex_lock(&lock);
    live = tracked_len;
    pthread_mutex_unlock(&lock);
    return live;
}

void fail_alloc_before(bool (*before)(void *ctx), void *ctx)
{
    call_before = before;
    before_ctx = ctx;
}

unsigned fail_alloc_sweep(enum dctf_err (*make)(void *ctx), void (*drop)(void *ctx), void *ctx, void **made)
{
    for (unsigned nth = 1;; nth++) {
        enum dctf_err err;

        if (made)
            *made = &nth; /* anything but NULL */
        fail_alloc_arm(nth);
        err = make(ctx);
        if (!fail_alloc_disarm()) {
            assert_int_equal(err, DCTF_OK);
            drop(ctx);
            assert_int_equal(fail_alloc_live(), 0);
            return nth - 1;
        }
        assert_int_equal(err, DCTF_ERR_NO_MEMORY);
        if (made)
            assert_null(*made);
        assert_int_equal(fail_alloc_live(), 0);
    }
}
