/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/network.h"

#include "base/str.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

struct fixture {
    char sys[64];
    uint64_t now_ms;
    struct dctf_clock clock;
    struct dctf_network *network;
    struct dctf_str text;
};

static uint64_t mono_ns(void *ctx)
{
    return ((struct fixture *)ctx)->now_ms * 1000000;
}

static void set_speed(struct fixture *f, const char *text)
{
    char path[128];
    FILE *file;

    snprintf(path, sizeof(path), "%s/lo/speed", f->sys);
    file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    char path[128];

    assert_non_null(f);
    strcpy(f->sys, "/tmp/dctf-network-XXXXXX");
    assert_non_null(mkdtemp(f->sys));
    snprintf(path, sizeof(path), "%s/lo", f->sys);
    assert_int_equal(mkdir(path, 0700), 0);
    set_speed(f, "80\n"); /* Mbit/s: 10,000,000 bytes per second */
    f->now_ms = 1000;
    f->clock = (struct dctf_clock){.mono_ns = mono_ns, .ctx = f};
    assert_int_equal(dctf_network_new(f->sys, &f->clock, &f->network), DCTF_OK);
    dctf_str_init(&f->text);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    char command[128];

    dctf_network_free(f->network);
    dctf_str_fini(&f->text);
    snprintf(command, sizeof(command), "rm -r %s", f->sys);
    assert_int_equal(system(command), 0);
    free(f);
    return 0;
}

/* What is told `ms` later when so much has crossed in all. */
static const char *later(struct fixture *f, uint64_t ms, const char *addr, uint64_t in, uint64_t out)
{
    struct dctf_network_look look = {0};

    f->now_ms += ms;
    dctf_network_note(&look, "a", addr, in / 2, 0);
    dctf_network_note(&look, "a", addr, in - in / 2, out);
    dctf_str_fini(&f->text);
    dctf_str_init(&f->text);
    dctf_network_write(f->network, &look, &f->text);
    return dctf_str_c(&f->text);
}

static void assert_tells(const char *text, const char *value)
{
    char line[128];

    snprintf(line, sizeof(line), "\ndctf_network_utilization{az=\"a\"} %s\n", value);
    assert_non_null(strstr(text, line));
}

static void test_write_busier_way(void **state)
{
    struct fixture *f = *state;

    assert_string_equal(later(f, 500, "127.0.0.1:7100", 1000, 1000), ""); /* too soon to tell */
    assert_tells(later(f, 1500, "127.0.0.1:7100", 10000000, 4000000), "0.500000");
    assert_tells(later(f, 2000, "127.0.0.1:7100", 10000000, 40000000), "1.000000");
}

static void test_write_last_seconds_only(void **state)
{
    struct fixture *f = *state;

    assert_tells(later(f, 10000, "127.0.0.1:7100", 50000000, 0), "0.500000");
    assert_tells(later(f, 10000, "127.0.0.1:7100", 50000000, 0), "0.000000");
    assert_tells(later(f, 10000, "127.0.0.1:7100", 60000000, 0), "0.100000");
}

/* Two that look, one often: neither takes the other's time away. */
static void test_write_for_many_askers(void **state)
{
    struct fixture *f = *state;

    for (uint64_t i = 1; i <= 100; i++)
        later(f, 200, "127.0.0.1:7100", i * 400000, 0);
    assert_tells(later(f, 1, "127.0.0.1:7100", 100 * 400000, 0), "0.199960");
}

static void test_write_nothing_when_not_known(void **state)
{
    static const char *const speeds[] = {"-1\n", "0\n", "", "fast\n"};
    struct fixture *f = *state;

    for (size_t i = 0; i < sizeof(speeds) / sizeof(speeds[0]); i++) {
        set_speed(f, speeds[i]);
        assert_string_equal(later(f, 2000, "127.0.0.1:7100", 1000000, 0), "");
    }
    set_speed(f, "80\n");
    assert_string_equal(later(f, 2000, "node-7.example:7100", 1000000, 0), "");
    assert_string_equal(later(f, 2000, "", 1000000, 0), "");
}

static void test_note_more_zones_than_fit(void **state)
{
    struct dctf_network_look look = {0};

    (void)state;
    for (unsigned i = 0; i < 3 * DCTF_NETWORK_ZONES; i++) {
        char zone[16];

        snprintf(zone, sizeof(zone), "z%u", i);
        dctf_network_note(&look, zone, "127.0.0.1:1", i, i);
    }
    assert_int_equal(look.count, DCTF_NETWORK_ZONES);
    dctf_network_note(&look, "z3", "127.0.0.1:1", 10, 20);
    assert_int_equal(look.zones[3].in, 13);
    assert_int_equal(look.zones[3].out, 23);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_write_busier_way, setup, teardown),
        cmocka_unit_test_setup_teardown(test_write_last_seconds_only, setup, teardown),
        cmocka_unit_test_setup_teardown(test_write_for_many_askers, setup, teardown),
        cmocka_unit_test_setup_teardown(test_write_nothing_when_not_known, setup, teardown),
        cmocka_unit_test(test_note_more_zones_than_fit),
    };

    return cmocka_run_group_tests_name("network", tests, NULL, NULL);
}
