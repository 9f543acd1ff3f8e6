/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/address.h"
#include "cluster/members.h"
#include "lib/fail_alloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct dctf_members_config config_of(const char *peers, const char *self)
{
    struct dctf_members_config config = {
        .peers = peers,
        .redis = "",
        .cluster = "test",
        .redis_user = "",
        .redis_password = "",
        .ca_file = "",
        .self = {.weight = 1 << 30},
    };

    snprintf(config.self.addr, sizeof(config.self.addr), "%s", self);
    snprintf(config.self.id, sizeof(config.self.id), "%.63s", self);
    return config;
}

static void must_parse(const char *text, const char *want)
{
    struct dctf_address address;

    assert_null(dctf_address_parse(text, strlen(text), 0, &address));
    assert_string_equal(address.text, want);
}

static void must_refuse(const char *text, const char *why)
{
    struct dctf_address address;
    const char *wrong = dctf_address_parse(text, strlen(text), 0, &address);

    assert_non_null(wrong);
    assert_non_null(strstr(wrong, why));
}

static void test_parse_address(void **state)
{
    struct dctf_address address;

    (void)state;
    must_parse("Node-1.Example:7100", "node-1.example:7100");
    must_parse("10.0.0.1:07100", "10.0.0.1:7100");
    must_parse("[0:0:0:0:0:0:0:1]:1", "[::1]:1");
    must_parse("[FE80::A]:65535", "[fe80::a]:65535");
    must_refuse("", "host is missing");
    must_refuse(":7100", "host is missing");
    must_refuse("a", "port is missing");
    must_refuse("a:", "1 to 65535");
    must_refuse("a:0", "1 to 65535");
    must_refuse("a:65536", "1 to 65535");
    must_refuse("a:7x", "1 to 65535");
    must_refuse("a:-1", "1 to 65535");
    must_refuse("::1:7100", "brackets");
    must_refuse("[::1:7100", "not closed");
    must_refuse("[::1]7100", "other than a port");
    must_refuse("[host]:7100", "no IPv6 address");
    must_refuse("a b:7100", "no name has");
    must_refuse("user@a:7100", "no name has");
    assert_null(dctf_address_parse("a", 1, 6379, &address));
    assert_string_equal(address.text, "a:6379");
    assert_null(dctf_address_parse("[::1]", 5, 6379, &address));
    assert_string_equal(address.text, "[::1]:6379");
}

static void test_open_list(void **state)
{
    struct dctf_members_config config = config_of("b:7100, A:7100,[::1]:7100", "B:7100");
    struct dctf_members *members;
    struct dctf_view *view;
    char detail[256];

    (void)state;
    assert_int_equal(dctf_members_open(&config, detail, &members), DCTF_OK);
    view = dctf_members_view(members);
    assert_int_equal(dctf_view_count(view), 3);
    assert_string_equal(dctf_view_node(view, 0)->id, "[::1]:7100");
    assert_string_equal(dctf_view_node(view, 1)->id, "a:7100");
    assert_string_equal(dctf_view_node(view, 1)->addr, "a:7100");
    assert_int_equal(dctf_view_self(view), 2);
    assert_true(dctf_members_stable_ms(members) == UINT64_MAX);
    assert_int_equal(dctf_members_age_ms(members), 0);
    dctf_members_refresh(members);
    dctf_view_unref(view);
    dctf_members_close(members);
}

/* Every node must place alike, whatever it knows of itself. */
static void test_open_list_same_on_all_nodes(void **state)
{
    struct dctf_members_config one = config_of("a:1,b:1,c:1", "a:1"), two = config_of("c:1,B:1,a:1", "b:1");
    struct dctf_members *members[2];
    struct dctf_view *views[2];
    char detail[256];

    (void)state;
    snprintf(one.self.zone, sizeof(one.self.zone), "east");
    snprintf(two.self.zone, sizeof(two.self.zone), "west");
    two.self.weight = 17;
    assert_int_equal(dctf_members_open(&one, detail, &members[0]), DCTF_OK);
    assert_int_equal(dctf_members_open(&two, detail, &members[1]), DCTF_OK);
    for (int i = 0; i < 2; i++) {
        views[i] = dctf_members_view(members[i]);
        assert_int_equal(dctf_view_self(views[i]), i);
    }
    assert_true(dctf_view_hash(views[0]) == dctf_view_hash(views[1]));
    for (int i = 0; i < 2; i++) {
        dctf_view_unref(views[i]);
        dctf_members_close(members[i]);
    }
}

static void test_open_list_without_self(void **state)
{
    struct dctf_members_config config = config_of("a:1,b:1", "c:1");
    struct dctf_members *members;
    struct dctf_view *view;
    char detail[256];

    (void)state;
    assert_int_equal(dctf_members_open(&config, detail, &members), DCTF_OK);
    view = dctf_members_view(members);
    assert_int_equal(dctf_view_count(view), 2);
    assert_int_equal(dctf_view_self(view), DCTF_NODE_NONE);
    dctf_view_unref(view);
    dctf_members_close(members);
}

static void test_open_alone(void **state)
{
    struct dctf_members_config config = config_of("", "a:1");
    struct dctf_members *members;
    struct dctf_view *view;
    char detail[256];

    (void)state;
    assert_int_equal(dctf_members_open(&config, detail, &members), DCTF_OK);
    view = dctf_members_view(members);
    assert_int_equal(dctf_view_count(view), 1);
    assert_int_equal(dctf_view_self(view), 0);
    dctf_view_unref(view);
    dctf_members_close(members);
}

static void refused(const char *peers, const char *redis, const char *why)
{
    struct dctf_members_config config = config_of(peers, "a:1");
    struct dctf_members *members = (void *)1;
    char detail[256];

    config.redis = redis;
    assert_int_equal(dctf_members_open(&config, detail, &members), DCTF_ERR_OPTION_VALUE);
    assert_null(members);
    if (!strstr(detail, why))
        fail_msg("\"%s\" does not say \"%s\"", detail, why);
}

static void test_open_refuses(void **state)
{
    struct dctf_members_config config = config_of("", "a:1");
    struct dctf_members *members;
    char detail[256], *many, *at;
    char label[128];

    (void)state;
    refused("a:1,,b:1", "", "empty");
    refused("a:1,", "", "empty");
    refused("a:1,b", "", "\"b\": the port is missing");
    refused("a:1,b:1,A:01", "", "a:1 is there twice");
    refused("a:1", "redis://b", "exclude each other");
    refused("dns:", "", "host is missing");
    refused("dns:name", "", "port is missing");
    memset(label, 'x', sizeof(label));
    memcpy(label + 62, ":1", 3);
    refused(label, "", "63 bytes");
    many = at = calloc(DCTF_NODES_MAX + 2, 16);
    assert_non_null(many);
    for (unsigned i = 0; i < DCTF_NODES_MAX + 1; i++)
        at += snprintf(at, 16, "%sn%u:1", i ? "," : "", i);
    config.peers = many;
    assert_int_equal(dctf_members_open(&config, detail, &members), DCTF_ERR_OPTION_VALUE);
    assert_non_null(strstr(detail, "more than 4096"));
    free(many);
}

static enum dctf_err make(void *ctx)
{
    struct dctf_members_config config = config_of("a:1,b:1", "a:1");
    char detail[256];

    return dctf_members_open(&config, detail, ctx);
}

static void drop(void *ctx)
{
    dctf_members_close(*(struct dctf_members **)ctx);
}

static void test_open_without_memory(void **state)
{
    struct dctf_members *members = NULL;

    (void)state;
    assert_true(fail_alloc_sweep(make, drop, &members, (void **)&members) > 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse_address),
        cmocka_unit_test(test_open_list),
        cmocka_unit_test(test_open_list_same_on_all_nodes),
        cmocka_unit_test(test_open_list_without_self),
        cmocka_unit_test(test_open_alone),
        cmocka_unit_test(test_open_refuses),
        cmocka_unit_test(test_open_without_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
