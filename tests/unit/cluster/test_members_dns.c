/* SPDX-License-Identifier: Apache-2.0
 *
 * Members by DNS. getaddrinfo() is this file's own: what a name has is what the test says.
 */
#include "cluster/members.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define BOUND_MS 10000u
#define HEARTBEAT_MS 20u

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    char addresses[512]; /* "10.0.0.1 ::2 …" */
    int status;
    bool hang;
    unsigned asked, entered;
} dns = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static struct addrinfo *one_of(const char *text, struct addrinfo *next)
{
    struct addrinfo *one = calloc(1, sizeof(*one));
    struct sockaddr_storage *to = calloc(1, sizeof(*to));
    struct sockaddr_in *v4 = (void *)to;
    struct sockaddr_in6 *v6 = (void *)to;

    assert_non_null(one);
    assert_non_null(to);
    one->ai_addr = (void *)to;
    one->ai_next = next;
    if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
        one->ai_addrlen = sizeof(*v4);
        v4->sin_family = AF_INET;
    } else {
        assert_int_equal(inet_pton(AF_INET6, text, &v6->sin6_addr), 1);
        one->ai_addrlen = sizeof(*v6);
        v6->sin6_family = AF_INET6;
    }
    one->ai_family = one->ai_addr->sa_family;
    return one;
}

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **out)
{
    char copy[sizeof(dns.addresses)], *rest;
    int status;

    (void)service;
    (void)hints;
    *out = NULL;
    pthread_mutex_lock(&dns.lock);
    dns.entered++;
    pthread_cond_broadcast(&dns.changed);
    while (dns.hang)
        pthread_cond_wait(&dns.changed, &dns.lock);
    status = strcmp(node, "shards.example") ? EAI_NONAME : dns.status;
    dns.asked++;
    memcpy(copy, dns.addresses, sizeof(copy));
    pthread_mutex_unlock(&dns.lock);
    if (status)
        return status;
    for (char *text = strtok_r(copy, " ", &rest); text; text = strtok_r(NULL, " ", &rest))
        *out = one_of(text, *out);
    return 0;
}

void freeaddrinfo(struct addrinfo *list)
{
    while (list) {
        struct addrinfo *next = list->ai_next;

        free(list->ai_addr);
        free(list);
        list = next;
    }
}

static void set_dns(const char *addresses, int status, bool hang)
{
    pthread_mutex_lock(&dns.lock);
    snprintf(dns.addresses, sizeof(dns.addresses), "%s", addresses);
    dns.status = status;
    dns.hang = hang;
    pthread_cond_broadcast(&dns.changed);
    pthread_mutex_unlock(&dns.lock);
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

static uint64_t now_ms(void)
{
    return dctf_clock_mono_ms(NULL);
}

/* A look-up that began later than now has been heard. */
static void await_looks(void)
{
    uint64_t until_ms = now_ms() + BOUND_MS;
    unsigned first, asked;

    pthread_mutex_lock(&dns.lock);
    first = asked = dns.asked;
    pthread_mutex_unlock(&dns.lock);
    while (asked < first + 3) {
        assert_true(now_ms() < until_ms);
        nap();
        pthread_mutex_lock(&dns.lock);
        asked = dns.asked;
        pthread_mutex_unlock(&dns.lock);
    }
}

static struct dctf_members *open_name(const char *self)
{
    struct dctf_members_config config = {
        .peers = "dns:shards.example:7100",
        .redis = "",
        .cluster = "",
        .redis_user = "",
        .redis_password = "",
        .ca_file = "",
        .heartbeat_ms = HEARTBEAT_MS,
    };
    struct dctf_members *members;
    char detail[256];

    snprintf(config.self.addr, sizeof(config.self.addr), "%s", self);
    snprintf(config.self.id, sizeof(config.self.id), "%.63s", self);
    assert_int_equal(dctf_members_open(&config, detail, &members), DCTF_OK);
    return members;
}

static void describe(struct dctf_members *members, char out[512])
{
    struct dctf_view *view = dctf_members_view(members);
    size_t len = 0;

    for (uint32_t i = 0; i < dctf_view_count(view); i++)
        len += (size_t)snprintf(out + len, 512 - len, "%s%s%s", i ? " " : "",
            i == dctf_view_self(view) ? "*" : "", dctf_view_node(view, i)->id);
    dctf_view_unref(view);
}

static void await_view(struct dctf_members *members, const char *want)
{
    uint64_t until_ms = now_ms() + BOUND_MS;
    char is[512] = "";

    for (;;) {
        describe(members, is);
        if (!strcmp(is, want))
            return;
        if (now_ms() >= until_ms)
            fail_msg("the view is \"%s\", not \"%s\"", is, want);
        nap();
    }
}

static void must_be(struct dctf_members *members, const char *want)
{
    char is[512] = "";

    describe(members, is);
    assert_string_equal(is, want);
}

static void test_look_up(void **state)
{
    struct dctf_members *members;

    (void)state;
    set_dns("10.0.0.2 10.0.0.1", 0, false);
    members = open_name("10.0.0.2:7100");
    await_view(members, "10.0.0.1:7100 *10.0.0.2:7100");
    assert_true(dctf_members_age_ms(members) < BOUND_MS);
    set_dns("10.0.0.2 10.0.0.3 fd00::3 10.0.0.1", 0, false);
    await_view(members, "10.0.0.1:7100 *10.0.0.2:7100 10.0.0.3:7100");
    set_dns("10.0.0.2 10.0.0.3", 0, false);
    await_view(members, "*10.0.0.2:7100 10.0.0.3:7100");
    dctf_members_close(members);
}

static void test_look_up_v6_alone(void **state)
{
    struct dctf_members *members;

    (void)state;
    set_dns("fd00::2 fd00::1", 0, false);
    members = open_name("[FD00::1]:7100");
    await_view(members, "*[fd00::1]:7100 [fd00::2]:7100");
    dctf_members_close(members);
}

static void test_find_self_by_interface(void **state)
{
    struct dctf_members *members;

    (void)state;
    set_dns("127.0.0.1 10.255.255.1", 0, false);
    members = open_name("0.0.0.0:7100");
    await_view(members, "10.255.255.1:7100 *127.0.0.1:7100");
    dctf_members_close(members);
    members = open_name("0.0.0.0:7999"); /* another service of this machine */
    await_view(members, "10.255.255.1:7100 127.0.0.1:7100");
    dctf_members_close(members);
}

static void test_failures_keep_the_view(void **state)
{
    struct dctf_members *members;

    (void)state;
    set_dns("", EAI_AGAIN, false);
    members = open_name("10.0.0.2:7100");
    await_looks();
    must_be(members, "*10.0.0.2:7100");
    assert_true(dctf_members_age_ms(members) == UINT64_MAX);
    set_dns("10.0.0.1 10.0.0.2", 0, false);
    await_view(members, "10.0.0.1:7100 *10.0.0.2:7100");
    set_dns("", EAI_AGAIN, false);
    await_looks();
    set_dns("", 0, false);
    await_looks();
    must_be(members, "10.0.0.1:7100 *10.0.0.2:7100");
    dctf_members_close(members);
}

static void test_many_that_vanish_are_kept(void **state)
{
    struct dctf_members *members;

    (void)state;
    set_dns("10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4", 0, false);
    members = open_name("10.0.0.2:7100");
    await_view(members, "10.0.0.1:7100 *10.0.0.2:7100 10.0.0.3:7100 10.0.0.4:7100");
    set_dns("10.0.0.2", 0, false);
    await_looks();
    must_be(members, "10.0.0.1:7100 *10.0.0.2:7100 10.0.0.3:7100 10.0.0.4:7100");
    dctf_members_close(members);
}

/* The resolver hangs for as long as it likes: the end does not wait for it. */
static void test_close_while_the_resolver_hangs(void **state)
{
    struct dctf_members *members;
    uint64_t began_ms;
    unsigned before;

    (void)state;
    set_dns("10.0.0.2", 0, true);
    pthread_mutex_lock(&dns.lock);
    before = dns.entered;
    pthread_mutex_unlock(&dns.lock);
    members = open_name("10.0.0.2:7100");
    pthread_mutex_lock(&dns.lock);
    while (dns.entered == before)
        pthread_cond_wait(&dns.changed, &dns.lock);
    pthread_mutex_unlock(&dns.lock);
    must_be(members, "*10.0.0.2:7100");
    began_ms = now_ms();
    dctf_members_close(members);
    assert_true(now_ms() - began_ms < BOUND_MS / 2);
    set_dns("10.0.0.2", 0, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_look_up),
        cmocka_unit_test(test_look_up_v6_alone),
        cmocka_unit_test(test_find_self_by_interface),
        cmocka_unit_test(test_failures_keep_the_view),
        cmocka_unit_test(test_many_that_vanish_are_kept),
        cmocka_unit_test(test_close_while_the_resolver_hangs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
