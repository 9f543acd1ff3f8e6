/* SPDX-License-Identifier: Apache-2.0 */
#include "base/budget.h"

#include "base/clock.h"
#include "lib/fail_alloc.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define KIB ((size_t)1024)
#define MIB (1024 * KIB)

static struct dctf_budget *budget_of(uint64_t limit)
{
    struct dctf_budget *budget;

    assert_int_equal(dctf_budget_new(limit, &budget), DCTF_OK);
    assert_int_equal(dctf_budget_limit(budget), limit);
    return budget;
}

/* Whether the address range is still mapped. */
static bool is_mapped(void *buf, size_t bytes)
{
    return msync(buf, bytes, MS_ASYNC) == 0;
}

static void test_get_rounds_up(void **state)
{
    static const struct {
        size_t asked, charged;
    } cases[] = {{0, 64 * KIB}, {1, 64 * KIB}, {64 * KIB, 64 * KIB}, {64 * KIB + 1, 128 * KIB},
        {3 * MIB, 4 * MIB}, {64 * MIB, 64 * MIB}};
    struct dctf_budget *budget = budget_of(256 * MIB);

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *buf = dctf_budget_buf_get(budget, cases[i].asked);

        assert_non_null(buf);
        assert_int_equal((uintptr_t)buf % 4096, 0);
        assert_int_equal(dctf_budget_used(budget), cases[i].charged);
        buf[0] = 1;
        buf[cases[i].charged - 1] = 1;
        dctf_budget_buf_put(budget, buf, cases[i].asked);
        assert_int_equal(dctf_budget_used(budget), 0);
    }
    assert_null(dctf_budget_buf_get(budget, 64 * MIB + 1));
    assert_null(dctf_budget_buf_get(budget, SIZE_MAX));
    dctf_budget_free(budget);
    dctf_budget_free(NULL);
}

static void test_get_within_limit(void **state)
{
    struct dctf_budget *budget = budget_of(MIB);
    void *half[2];
    void *buf;

    (void)state;
    assert_null(dctf_budget_buf_get(budget, MIB + 1));
    half[0] = dctf_budget_buf_get(budget, 512 * KIB);
    half[1] = dctf_budget_buf_get(budget, 512 * KIB);
    assert_non_null(half[0]);
    assert_non_null(half[1]);
    assert_null(dctf_budget_buf_get(budget, 1));
    dctf_budget_buf_put(budget, half[0], 512 * KIB);
    buf = dctf_budget_buf_get(budget, 1);
    assert_non_null(buf);
    dctf_budget_buf_put(budget, buf, 1);
    dctf_budget_buf_put(budget, half[1], 512 * KIB);
    dctf_budget_free(budget);

    budget = budget_of(100 * KIB); /* not a power of two */
    buf = dctf_budget_buf_get(budget, 64 * KIB);
    assert_non_null(buf);
    assert_null(dctf_budget_buf_get(budget, 1));
    dctf_budget_buf_put(budget, buf, 64 * KIB);
    dctf_budget_free(budget);
}

static void test_put_is_reused(void **state)
{
    struct dctf_budget *budget = budget_of(MIB);
    char *buf = dctf_budget_buf_get(budget, MIB);

    (void)state;
    assert_non_null(buf);
    buf[MIB - 1] = 'k';
    dctf_budget_buf_put(budget, buf, MIB);
    assert_ptr_equal(dctf_budget_buf_get(budget, MIB), buf);
    assert_int_equal(buf[MIB - 1], 'k'); /* the same pages, not new ones */
    dctf_budget_buf_put(budget, buf, MIB);
    dctf_budget_free(budget);
}

static void test_get_trims_other_classes(void **state)
{
    struct dctf_budget *budget = budget_of(MIB);
    void *small[4];
    void *big;
    unsigned mapped = 0;

    (void)state;
    for (int i = 0; i < 4; i++) {
        small[i] = dctf_budget_buf_get(budget, 256 * KIB);
        assert_non_null(small[i]);
    }
    for (int i = 0; i < 4; i++)
        dctf_budget_buf_put(budget, small[i], 256 * KIB);
    big = dctf_budget_buf_get(budget, 512 * KIB);
    assert_non_null(big);
    for (int i = 0; i < 4; i++)
        mapped += small[i] != big && is_mapped(small[i], 4096) &&
                  ((char *)small[i] < (char *)big || (char *)small[i] >= (char *)big + 512 * KIB);
    assert_int_equal(mapped, 2); /* no more than needed is given back */
    dctf_budget_buf_put(budget, big, 512 * KIB);
    dctf_budget_trim(budget);
    assert_false(is_mapped(big, 4096));
    dctf_budget_free(budget);
}

static void test_get_trims_after_reuse(void **state)
{
    struct dctf_budget *budget = budget_of(MIB);
    void *small = NULL;
    void *big;

    (void)state;
    for (int i = 0; i < 5; i++) {
        small = dctf_budget_buf_get(budget, 512 * KIB);
        assert_non_null(small);
        dctf_budget_buf_put(budget, small, 512 * KIB);
    }
    big = dctf_budget_buf_get(budget, MIB);
    assert_non_null(big);
    assert_true(
        !is_mapped(small, 4096) || ((char *)small >= (char *)big && (char *)small < (char *)big + MIB));
    dctf_budget_buf_put(budget, big, MIB);
    dctf_budget_free(budget);
}

static void *get_and_put(void *ctx)
{
    struct dctf_rng rng = {(uintptr_t)&rng};

    for (int i = 0; i < 2000; i++) {
        size_t bytes = (64 * KIB) << dctf_rng_below(&rng, 4);
        char *buf = dctf_budget_buf_get(ctx, bytes);

        if (!buf)
            continue;
        memset(buf, i, 64);
        for (int k = 0; k < 64; k++)
            assert_int_equal((unsigned char)buf[k], i & 255); /* nobody else has it */
        assert_true(dctf_budget_used(ctx) <= dctf_budget_limit(ctx));
        dctf_budget_buf_put(ctx, buf, bytes);
    }
    return NULL;
}

static void test_get_races_put(void **state)
{
    struct dctf_budget *budget = budget_of(MIB);
    pthread_t threads[3];

    (void)state;
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, get_and_put, budget), 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(dctf_budget_used(budget), 0);
    dctf_budget_free(budget);
}

static struct dctf_budget *swept;

static enum dctf_err sweep_make(void *ctx)
{
    (void)ctx;
    return dctf_budget_new(MIB, &swept);
}

static void sweep_drop(void *ctx)
{
    (void)ctx;
    dctf_budget_free(swept);
}

static void test_new_no_memory(void **state)
{
    (void)state;
    assert_int_equal(fail_alloc_sweep(sweep_make, sweep_drop, NULL, (void **)&swept), 1);
}

/* A made-up system below a temporary directory. */
static char root[64];

static void put_file(const char *path, const char *text)
{
    char full[512];
    FILE *file;

    snprintf(full, sizeof(full), "%s%s", root, path);
    for (char *slash = strchr(full + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(full, 0700);
        *slash = '/';
    }
    file = fopen(full, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static int setup_root(void **state)
{
    (void)state;
    strcpy(root, "/tmp/dctf-test-budget-XXXXXX");
    if (!mkdtemp(root))
        return -1;
    put_file("/proc/meminfo", "MemTotal:        8388608 kB\nMemFree: 1 kB\n");
    return 0;
}

static int teardown_root(void **state)
{
    char command[128];

    (void)state;
    snprintf(command, sizeof(command), "rm -rf %s", root);
    return system(command) ? -1 : 0;
}

static void test_system_limit_physical(void **state)
{
    (void)state;
    assert_int_equal(dctf_budget_system_limit(root), 8192 * MIB); /* no cgroup at all */
    put_file("/proc/self/cgroup", "0::/a/b\n");
    put_file("/sys/fs/cgroup/a/b/memory.max", "max\n");
    put_file("/sys/fs/cgroup/a/memory.max", "17179869184\n");
    assert_int_equal(dctf_budget_system_limit(root), 8192 * MIB);
}

static void test_system_limit_v2_ancestors(void **state)
{
    (void)state;
    put_file("/proc/self/cgroup", "0::/a/b/c\n");
    put_file("/sys/fs/cgroup/a/b/c/memory.max", "1073741824\n");
    assert_int_equal(dctf_budget_system_limit(root), 1024 * MIB);
    put_file("/sys/fs/cgroup/a/memory.max", "536870912\n"); /* b has no file */
    assert_int_equal(dctf_budget_system_limit(root), 512 * MIB);
}

static void test_system_limit_v2_container(void **state)
{
    (void)state;
    put_file("/proc/self/cgroup", "0::/\n");
    put_file("/sys/fs/cgroup/memory.max", "268435456\n");
    assert_int_equal(dctf_budget_system_limit(root), 256 * MIB);
    put_file("/proc/self/cgroup", "0::/of/the/host\n");
    assert_int_equal(dctf_budget_system_limit(root), 256 * MIB);
}

static void test_system_limit_v1(void **state)
{
    (void)state;
    put_file("/proc/self/cgroup",
        "3:cpuset:/x\n4:cpu,cpuacct:/x\n9:hugetlb,memory:/pod/one\n1:name=systemd:/\n0::/\n");
    put_file("/sys/fs/cgroup/memory/pod/one/memory.limit_in_bytes", "9223372036854771712\n");
    put_file("/sys/fs/cgroup/memory/pod/memory.limit_in_bytes", "134217728\n");
    put_file("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "1\n"); /* of another group */
    assert_int_equal(dctf_budget_system_limit(root), 128 * MIB);
}

static void test_system_limit_strange_files(void **state)
{
    (void)state;
    put_file("/proc/self/cgroup", "\nnothing\n0:\n0::\n::::\n0::relative\n");
    put_file("/sys/fs/cgroup/memory.max", "not a number\n");
    assert_int_equal(dctf_budget_system_limit(root), 8192 * MIB);
}

static void test_system_limit_here(void **state)
{
    (void)state;
    assert_true(dctf_budget_system_limit("/") > MIB);
    assert_true(
        dctf_budget_system_limit("/") <= (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE));
}

#define system_test(f) cmocka_unit_test_setup_teardown(f, setup_root, teardown_root)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_get_rounds_up),
        cmocka_unit_test(test_get_within_limit),
        cmocka_unit_test(test_put_is_reused),
        cmocka_unit_test(test_get_trims_other_classes),
        cmocka_unit_test(test_get_trims_after_reuse),
        cmocka_unit_test(test_get_races_put),
        cmocka_unit_test(test_new_no_memory),
        system_test(test_system_limit_physical),
        system_test(test_system_limit_v2_ancestors),
        system_test(test_system_limit_v2_container),
        system_test(test_system_limit_v1),
        system_test(test_system_limit_strange_files),
        cmocka_unit_test(test_system_limit_here),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
