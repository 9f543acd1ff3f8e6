/* SPDX-License-Identifier: Apache-2.0
 *
 * Buffers come from mmap in power-of-two classes and return to a free list of
 * their class, so that a busy mount neither maps nor unmaps. Invariant:
 * lent + kept <= limit. A free buffer holds the link of its list in its first bytes.
 */
#include "base/budget.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#define CLASS_MIN_SHIFT 16u /* 64 KiB */
#define CLASS_MAX_SHIFT 26u /* 64 MiB */
#define CLASSES (CLASS_MAX_SHIFT - CLASS_MIN_SHIFT + 1)
#define HUGE_BYTES ((size_t)2 << 20) /* of a huge page on x86 and most arm64 */

struct free_buf {
    struct free_buf *next;
};

struct dctf_budget {
    pthread_mutex_t lock;
    uint64_t limit;
    uint64_t lent;                  /* guarded by lock */
    uint64_t kept;                  /* guarded by lock; in the free lists */
    struct free_buf *free[CLASSES]; /* guarded by lock; the last one put is first */
};

static size_t class_bytes(unsigned class)
{
    return (size_t)1 << (CLASS_MIN_SHIFT + class);
}

/* The smallest class that holds `bytes`; CLASSES when none does. */
static unsigned class_of(size_t bytes)
{
    unsigned class = 0;

    while (class < CLASSES && class_bytes(class) < bytes)
        class ++;
    return class;
}

enum dctf_err dctf_budget_new(uint64_t limit_bytes, struct dctf_budget **out)
{
    struct dctf_budget *budget = calloc(1, sizeof(*budget));

    *out = budget;
    if (!budget)
        return DCTF_ERR_NO_MEMORY;
    pthread_mutex_init(&budget->lock, NULL);
    budget->limit = limit_bytes;
    return DCTF_OK;
}

void dctf_budget_free(struct dctf_budget *budget)
{
    if (!budget)
        return;
    assert(budget->lent == 0);
    dctf_budget_trim(budget);
    pthread_mutex_destroy(&budget->lock);
    free(budget);
}

/* Move free buffers, largest first, to `victims` until `bytes` more may be
 * lent; all of them for UINT64_MAX. */
static void evict_locked(struct dctf_budget *budget, uint64_t bytes, struct free_buf *victims[CLASSES])
{
    for (unsigned class = CLASSES; class -- > 0;) {
        while (budget->free[class] && bytes > budget->limit - budget->lent - budget->kept) {
            struct free_buf *buf = budget->free[class];

            budget->free[class] = buf->next;
            budget->kept -= class_bytes(class);
            buf->next = victims[class];
            victims[class] = buf;
        }
    }
}

static void unmap(struct free_buf *victims[CLASSES])
{
    for (unsigned class = 0; class < CLASSES; class ++) {
        while (victims[class]) {
            struct free_buf *buf = victims[class];

            victims[class] = buf->next;
            munmap(buf, class_bytes(class));
        }
    }
}

/* Large buffers are of huge pages if the system lets us: with small ones the faults of a buffer's first use
 * cost as much as its bytes do. */
static void *map_new(size_t size)
{
    size_t spare = size >= HUGE_BYTES ? HUGE_BYTES : 0;
    char *map = mmap(NULL, size + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    size_t before;

    if (map == MAP_FAILED || spare == 0)
        return map == MAP_FAILED ? NULL : map;
    before = -(uintptr_t)map & (HUGE_BYTES - 1);
    if (before)
        munmap(map, before);
    if (spare - before)
        munmap(map + before + size, spare - before);
    madvise(map + before, size, MADV_HUGEPAGE);
    return map + before;
}

void *dctf_budget_buf_get(struct dctf_budget *budget, size_t bytes)
{
    struct free_buf *victims[CLASSES] = {0};
    unsigned class = class_of(bytes);
    struct free_buf *buf;
    size_t size;
    void *map;

    if (class == CLASSES)
        return NULL;
    size = class_bytes(class);
    pthread_mutex_lock(&budget->lock);
    buf = budget->free[class];
    if (buf) {
        budget->free[class] = buf->next;
        budget->kept -= size;
        budget->lent += size;
        pthread_mutex_unlock(&budget->lock);
        return buf;
    }
    if (size > budget->limit - budget->lent) {
        pthread_mutex_unlock(&budget->lock);
        return NULL;
    }
    evict_locked(budget, size, victims);
    budget->lent += size; /* reserved: the system calls need no lock */
    assert(budget->lent + budget->kept <= budget->limit);
    pthread_mutex_unlock(&budget->lock);

    unmap(victims);
    map = map_new(size);
    if (!map) {
        pthread_mutex_lock(&budget->lock);
        budget->lent -= size;
        pthread_mutex_unlock(&budget->lock);
        return NULL;
    }
    return map;
}

void dctf_budget_buf_put(struct dctf_budget *budget, void *buf, size_t bytes)
{
    unsigned class = class_of(bytes);
    struct free_buf *head = buf;
    size_t size;

    assert(class < CLASSES);
    size = class_bytes(class);
    pthread_mutex_lock(&budget->lock);
    assert(budget->lent >= size);
    budget->lent -= size;
    budget->kept += size;
    head->next = budget->free[class];
    budget->free[class] = head;
    pthread_mutex_unlock(&budget->lock);
}

void dctf_budget_trim(struct dctf_budget *budget)
{
    struct free_buf *victims[CLASSES] = {0};

    pthread_mutex_lock(&budget->lock);
    evict_locked(budget, UINT64_MAX, victims);
    pthread_mutex_unlock(&budget->lock);
    unmap(victims);
}

uint64_t dctf_budget_used(struct dctf_budget *budget)
{
    uint64_t lent;

    pthread_mutex_lock(&budget->lock);
    lent = budget->lent;
    pthread_mutex_unlock(&budget->lock);
    return lent;
}

uint64_t dctf_budget_limit(const struct dctf_budget *budget)
{
    return budget->limit;
}
